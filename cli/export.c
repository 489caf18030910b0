/* ravel export: a model as one GGUF file, for llama.cpp and what is built on it. */
#include "cli/cli.h"

#include "base/system/team.h"
#include "train/model/hf/gguf.h"
#include "train/model/hf/lora.h"
#include "train/run/config/resolve.h"

#include <stdio.h>
#include <string.h>

typedef struct export_options {
    const char *gguf, *adapter, *pre;
    int32_t type;
} export_options;

#define ROW(...) RAVEL__ROW(export_options, __VA_ARGS__)

static const ravel_option table[] = {
    ROW("gguf", STRING, gguf, NULL, 0, 0, "FILE", "the file to write"),
    ROW("type", ENUM, type, "bf16", 0, 0, TRAIN_GGUF_TYPES, "of the matrices; vectors are f32"),
    ROW("adapter", STRING, adapter, NULL, 0, 0, "FOLDER",
        "a LoRA adapter to add to the weights; the merged model is written beside the file first, and removed after"),
    ROW("pre", STRING, pre, NULL, 0, 0, "NAME",
        "what llama.cpp calls the way the tokenizer cuts text into words; without it found by its pattern"),
    {0}};

static ravel_status run(const export_options *o, const char *given, int64_t *context, ravel_error *err) {
    train_model_path path;
    char merged[TRAIN_PATH];
    ravel_status status = train_model_resolve_with(given, o->adapter, &path, err);
    if (status) return status;
    if (!path.adapter[0]) return train_gguf_export(path.model, o->gguf, o->type, o->pre, context, err);
    if (snprintf(merged, sizeof merged, "%s.merged", o->gguf) >= (int)sizeof merged)
        return CLI_REFUSE(err, "--gguf %.60s...: the path is too long", o->gguf);
    if (train_path_exists(merged))
        return ravel_error_set(err, RAVEL_E_STATE, "%s is in the way of the merged model: remove it", merged);
    status =
        train_adapter_merge(path.model, path.adapter, merged, RAVEL_F32, 0, ravel__processors(RAVEL__TEAM_MOST), err);
    if (!status) status = train_gguf_export(merged, o->gguf, o->type, o->pre, context, err);
    (void)train_folder_remove(merged, NULL);
    return status;
}

static const char usage[] =
    "usage: ravel export MODEL --gguf FILE [options]\n\n"
    "Writes a model folder, a run or an adapter as one GGUF file: weights, tokenizer and chat template.\n\n"
    "examples:\n"
    "  ravel export runs/sft-1 --gguf model.gguf\n"
    "  ravel export Qwen3-0.6B --adapter lora --gguf model.gguf --type q8_0\n";

int cli_export(int argc, char **argv) {
    export_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    const char *words[1];
    int count = 0, code;
    int64_t context = 0;
    const cli_options sets[] = {{"options", table, &o}};
    const cli_form form = {"export", usage, NULL, sets, 1, 1};
    if (!cli_begin(&form, argc, argv, words, &count, &code)) return code;
    ravel_status status = RAVEL_OK;
    if (count == 0 || !o.gguf) status = CLI_REFUSE(&err, "name a model and a file: ravel export MODEL --gguf FILE");
    if (!status) status = cli_claim_input("model", words[0], &err);
    if (!status) status = cli_claim_input("adapter", o.adapter, &err);
    if (!status) status = cli_claim_output("gguf", o.gguf, &err);
    if (status) return cli_usage("export", &err);
    cli_busy("exporting");
    status = run(&o, words[0], &context, &err);
    cli_busy_end();
    if (status) return cli_fail("export", &err);
    printf("%s is the model for llama.cpp\n", o.gguf);
    if (context)
        printf(
            "its context is %lld tokens: llama.cpp leaves out this family's sliding window, and computes the same up to there\n",
            (long long)context);
    return CLI_OK;
}
