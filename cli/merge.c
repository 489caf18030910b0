/* ravel merge: the whole model with a LoRA adapter added to its weights. */
#include "cli/cli.h"

#include "base/system/team.h"
#include "train/model/hf/lora.h"
#include "train/run/config/resolve.h"

#include <stdio.h>

typedef struct merge_options {
    const char *model, *adapter, *out;
    int32_t dtype, threads;
    int64_t shard;
} merge_options;

#define ROW(...) RAVEL__ROW(merge_options, __VA_ARGS__)

static const ravel_option table[] = {
    ROW("adapter", STRING, adapter, NULL, 0, 0, "FOLDER",
        "a PEFT folder (adapter_config.json, adapter_model.safetensors), or a run or checkpoint of ravel train --lora-rank"),
    ROW("model", STRING, model, NULL, 0, 0, "FOLDER", "the base model; by default the one that its config names"),
    ROW("out", STRING, out, NULL, 0, 0, "FOLDER", "folder for the merged model: new or empty"),
    ROW("dtype", ENUM, dtype, "model", 0, 0, "model|f32|bf16|f16", "dtype of its weights; model: as they are there"),
    ROW("save-shard", I64, shard, "0", 0, 1e15, NULL, "size limit of a safetensors file; 0: 5 GiB"),
    ROW("threads", I32, threads, "0", 0, RAVEL__TEAM_MOST, NULL, "0: one per processor"),
    {0}};

static ravel_status run(const merge_options *o, ravel_error *err) {
    static const int32_t dtypes[] = {-1, RAVEL_F32, RAVEL_BF16, RAVEL_F16};
    char base[TRAIN_PATH], adapter[TRAIN_PATH];
    int64_t step;
    ravel_status status = train_adapter_resolve(o->adapter, adapter, err);
    if (!status)
        status = o->model ? train_run_resolve(o->model, base, &step, err) : train_adapter_find_base(adapter, base, err);
    if (status) return status;
    int32_t threads = o->threads ? o->threads : ravel__processors(RAVEL__TEAM_MOST);
    return train_adapter_merge(base, adapter, o->out, dtypes[o->dtype], o->shard, threads, err);
}

static ravel_status check(const merge_options *o, ravel_error *err) {
    if (!o->adapter || !o->out)
        return CLI_REFUSE(err, "name the adapter, and --out FOLDER: ravel merge runs/sft-1 --out merged");
    if (train_path_exists(o->out) && !train_folder_is_empty(o->out))
        return CLI_REFUSE(err, "--out %s is not an empty folder; give a new one", o->out);
    ravel_status status = cli_claim_input("model", o->model, err);
    if (!status) status = cli_claim_input("adapter", o->adapter, err);
    return status ? status : cli_claim_output("out", o->out, err);
}

static const char usage[] = "usage: ravel merge ADAPTER --out FOLDER [options]\n\n"
                            "Writes the whole model: its weights with the adapter's scale * B A added to them.\n\n"
                            "examples:\n"
                            "  ravel merge runs/sft-1 --out merged\n"
                            "  ravel merge lora --model Qwen3-0.6B --out merged --dtype bf16\n";

int cli_merge(int argc, char **argv) {
    merge_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    const char *words[1];
    int word_count, code;
    const cli_options sets[] = {{"options", table, &o}};
    const cli_form form = {"merge", usage, NULL, sets, 1, 1};
    if (!cli_begin(&form, argc, argv, words, &word_count, &code)) return code;
    ravel_status status = RAVEL_OK;
    if (word_count && o.adapter)
        status = CLI_REFUSE(&err, "the adapter is given twice: as \"%.200s\" and as --adapter", words[0]);
    if (word_count) o.adapter = words[0];
    if (status || check(&o, &err)) return cli_usage("merge", &err);
    if (run(&o, &err)) return cli_fail("merge", &err);
    printf("%s is the whole model\n", o.out);
    return CLI_OK;
}
