/* ravel eval: the loss of a model on files of rows, by file; of pairs how often it prefers the chosen answer. */
#include "cli/ranks.h"

#include "train/run/config/resolve.h"
#include "train/run/sft/eval.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct eval_options {
    const char *data, *adapter, *reference, *out;
    int32_t pairs, json, ranks, quiet;
    double beta, timeout;
    int64_t batch;
} eval_options;

#define ROW(...) RAVEL__ROW(eval_options, __VA_ARGS__)

static const ravel_option table[] = {
    ROW("data", STRING, data, NULL, 0, 0, "FILES",
        "JSON lines, or arrays of rows, one or several files: messages, prompt and completion, text, input_ids; with --pairs chosen and rejected"),
    ROW("pairs", BOOL, pairs, "false", 0, 0, NULL,
        "rows are pairs: how often the chosen answer is preferred, and the loss of dpo"),
    ROW("reference", STRING, reference, NULL, 0, 0, "FOLDER",
        "with --pairs: what log-probs are compared with; without it the adapter's model, or nothing"),
    ROW("beta", F64, beta, "0.1", 1e-9, 1e9, NULL, "with --pairs: factor of the log-ratios"),
    ROW("adapter", STRING, adapter, NULL, 0, 0, "FOLDER", "a LoRA adapter beside the model"),
    ROW("json", BOOL, json, "false", 0, 0, NULL, "one JSON object instead of a table"),
    ROW("out", STRING, out, "-", 0, 0, "FILE", "output file; -: standard output"),
    ROW("batch", I64, batch, "256", 1, 1e9, NULL, "rows that are planned together"),
    ROW("ranks", I32, ranks, "0", 0, 4096, NULL, "ranks; 0: tp * cp * dp * pp"),
    ROW("timeout", F64, timeout, "0", 0, 1e9, NULL,
        "seconds that a rank waits for another; 0: RAVEL_COMM_TIMEOUT, else 600"),
    ROW("quiet", BOOL, quiet, "false", 0, 0, NULL, "no progress on the terminal"),
    {0}};

/* ---- options ------------------------------------------------------------------------------------------------- */

enum { SETS = 8, MOST_ROWS = 64 };

/* Of training's parts those that say how a model is run; not how it is learnt. */
static const struct {
    const char *title, *without;
} parts_taken[] = {
    {"model",
     "model|shape|hidden|layers|heads|kv-heads|head-dim|ffn|experts|experts-active|expert-ffn|vocab|init-seed|init-std|"
     "recompute|tree-attention|graphs"},
    {"ranks", "overlap"},
    {"rows", "data"},
    {"packing", ""}};

typedef struct rows {
    ravel_option of[sizeof parts_taken / sizeof *parts_taken + 1][MOST_ROWS];
} rows;

static int make_sets(eval_options *o, train_config *config, ravel_comm_options *comm, rows *kept, cli_options *sets) {
    train_section parts[TRAIN_SECTIONS];
    int count = train_config_sections(config, TRAIN_SFT, parts), n = 0;
    sets[n++] = (cli_options){"evaluation", table, o};
    for (size_t k = 0; k < sizeof parts_taken / sizeof *parts_taken; k++)
        for (int i = 0; i < count; i++)
            if (strcmp(parts[i].title, parts_taken[k].title) == 0)
                sets[n++] = (cli_options){parts[i].title,
                                          cli_without(parts[i].table, parts_taken[k].without, kept->of[k], MOST_ROWS),
                                          parts[i].options};
    ravel_option *last = kept->of[sizeof parts_taken / sizeof *parts_taken];
    sets[n++] = (cli_options){"ranks in several processes",
                              cli_without(ravel_comm_option_table(), "comm-timeout", last, MOST_ROWS), comm};
    RAVEL_ASSERT(n <= SETS);
    return n;
}

static int help(void) {
    eval_options o;
    train_config config;
    ravel_comm_options comm;
    rows kept;
    cli_options sets[SETS] = {{0}};
    ravel_options_default(table, &o);
    train_config_default(&config);
    ravel_comm_options_default(&comm);
    printf(
        "usage: ravel eval MODEL --data FILE [FILE ...] [options]\n\n"
        "The loss of a model on rows, its perplexity, and the share of tokens that it finds likeliest, by file; with\n"
        "--pairs how often it prefers the chosen answer. MODEL is a folder, a run or an adapter.\n\n"
        "examples:\n"
        "  ravel eval runs/sft-1 --data held-out.jsonl\n"
        "  ravel eval Qwen3-0.6B --adapter lora --data math.jsonl code.jsonl --json\n"
        "  ravel eval runs/dpo-1 --reference Qwen3-0.6B --data pairs.jsonl --pairs\n"
        "  mpirun -n 4 ravel eval Qwen3-0.6B --data held-out.jsonl --tp 2\n");
    cli_print_options(sets, make_sets(&o, &config, &comm, &kept, sets));
    return CLI_OK;
}

/* ---- the run ------------------------------------------------------------------------------------------------- */

typedef struct job {
    eval_options o;
    train_config config;
    ravel_comm_options comm;
    train_model_path model, reference;
    train_hooks hooks;
    train_eval_options eval;
    train_eval_figures figures[TRAIN_FILES]; /* rank 0's */
} job;

static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
    job *j = user;
    train_eval_figures figures[TRAIN_FILES] = {{0}};
    ravel_status status =
        train_evaluate(j->o.pairs ? TRAIN_DPO : TRAIN_SFT, &j->config, &j->eval, comm, &j->hooks, figures, err);
    if (ravel_comm_rank(comm) == 0) memcpy(j->figures, figures, sizeof figures);
    return status;
}

static ravel_status resolve(job *j, const char *model, ravel_error *err) {
    ravel_status status = train_model_resolve_with(model, j->o.adapter, &j->model, err);
    if (!status && j->o.reference) status = train_model_resolve(j->o.reference, &j->reference, err);
    if (!status && j->reference.adapter[0])
        status = ravel_error_set(err, RAVEL_E_UNSUPPORTED, "--reference %s is an adapter; merge it first (ravel merge)",
                                 j->o.reference);
    if (status) return status;
    j->config.model.model = j->model.model;
    j->config.model.adapter = j->model.adapter[0] ? j->model.adapter : NULL;
    j->eval.reference = j->o.reference ? j->reference.model : NULL;
    return RAVEL_OK;
}

static ravel_status settle(job *j, const char *model, ravel_error *err) {
    train_kind kind = j->o.pairs ? TRAIN_DPO : TRAIN_SFT;
    train_config *c = &j->config;
    c->model.model = model;
    c->run.ranks = j->o.ranks;
    c->run.timeout = j->o.timeout;
    c->run.quiet = j->o.quiet;
    c->sft.batch = j->o.batch;
    c->dpo.beta = j->o.beta;
    c->source.data = j->o.data;
    c->learn.share_prefix = RAVEL_SHARE_OFF;
    train_config_settle(c, kind);
    ravel_status status = train_files_parse(j->o.data, &j->eval.files, err);
    if (!status && j->eval.files.weighted)
        status = CLI_REFUSE(err, "files of --data have no shares here: each is evaluated whole");
    if (!status && j->o.reference && !j->o.pairs) status = CLI_REFUSE(err, "--reference is for --pairs");
    for (int32_t i = 0; i < j->eval.files.count && !status; i++)
        status = cli_claim_input("data", j->eval.files.paths[i], err);
    if (!status) status = cli_claim_output("out", j->o.out, err);
    return status ? status : train_config_check(c, kind, err);
}

/* ---- the result ---------------------------------------------------------------------------------------------- */

/* All files together; rewards too. */
static train_eval_figures sum_up(const job *j) {
    train_eval_figures all = {0};
    for (int32_t i = 0; i < j->eval.files.count; i++) {
        const train_eval_figures *f = &j->figures[i];
        all.rows += f->rows;
        all.tokens += f->tokens;
        all.loss += f->tokens * f->loss;
        all.right += f->tokens * f->right;
        all.chosen += f->tokens * f->chosen;
        all.rejected += f->tokens * f->rejected;
    }
    double n = all.tokens > 0 ? all.tokens : 1;
    all.loss /= n, all.right /= n, all.chosen /= n, all.rejected /= n;
    return all;
}

static void put_number(ravel__printer *out, const char *name, double value) {
    if (isfinite(value))
        ravel__printer_format(out, ", \"%s\": %.9g", name, value);
    else
        ravel__printer_format(out, ", \"%s\": null", name);
}

static void put_named(ravel__printer *out, const char *name, const char *text) {
    if (!text) return;
    ravel__printer_string(out, name);
    ravel__printer_quote(out, text);
}

static void put_figures(ravel__printer *out, const job *j, const train_eval_figures *f) {
    ravel__printer_format(out, "\"rows\": %lld, \"%s\": %.0f", (long long)f->rows, j->o.pairs ? "pairs" : "tokens",
                          f->tokens);
    put_number(out, "loss", f->loss);
    if (!j->o.pairs) put_number(out, "perplexity", exp(f->loss));
    put_number(out, "accuracy", f->right);
    if (j->o.pairs) put_number(out, "reward_chosen", f->chosen);
    if (j->o.pairs) put_number(out, "reward_rejected", f->rejected);
    ravel__printer_string(out, "}");
}

static void put_json(ravel__printer *out, const void *user) {
    const job *j = user;
    const train_eval_figures all = sum_up(j);
    put_named(out, "{\"model\": ", j->config.model.model);
    put_named(out, ", \"adapter\": ", j->config.model.adapter);
    put_named(out, ", \"reference\": ", j->eval.reference);
    ravel__printer_string(out, ",\n \"files\": [");
    for (int32_t i = 0; i < j->eval.files.count; i++) {
        put_named(out, i ? ",\n  {\"file\": " : "\n  {\"file\": ", j->eval.files.paths[i]);
        ravel__printer_string(out, ", ");
        put_figures(out, j, &j->figures[i]);
    }
    ravel__printer_string(out, "],\n \"all\": {");
    put_figures(out, j, &all);
    ravel__printer_string(out, "}\n");
}

static void put_line(ravel__printer *out, const job *j, const char *name, const train_eval_figures *f) {
    if (j->o.pairs)
        ravel__printer_format(out, "%10lld %12.0f %10.4f %9.2f%% %9.4f %9.4f  ", (long long)f->rows, f->tokens, f->loss,
                              100 * f->right, f->chosen, f->rejected);
    else
        ravel__printer_format(out, "%10lld %12.0f %10.4f %11.4g %9.2f%%  ", (long long)f->rows, f->tokens, f->loss,
                              exp(f->loss), 100 * f->right);
    ravel__printer_string(out, name);
    ravel__printer_string(out, "\n");
}

static void put_table(ravel__printer *out, const void *user) {
    const job *j = user;
    const train_eval_figures all = sum_up(j);
    if (j->o.pairs)
        ravel__printer_format(out, "%10s %12s %10s %10s %9s %9s  file\n", "rows", "pairs", "loss", "accuracy", "chosen",
                              "rejected");
    else
        ravel__printer_format(out, "%10s %12s %10s %11s %10s  file\n", "rows", "tokens", "loss", "perplexity",
                              "accuracy");
    for (int32_t i = 0; i < j->eval.files.count; i++) put_line(out, j, j->eval.files.paths[i], &j->figures[i]);
    if (j->eval.files.count > 1) put_line(out, j, "all", &all);
}

static ravel_status parse(int argc, char **argv, job *j, const char **model, ravel_error *err) {
    rows kept;
    cli_options sets[SETS] = {{0}};
    int count = 0;
    ravel_options_default(table, &j->o);
    train_config_default(&j->config);
    ravel_comm_options_default(&j->comm);
    ravel_status status =
        cli_parse(argc, argv, sets, make_sets(&j->o, &j->config, &j->comm, &kept, sets), model, 1, &count, err);
    if (!status && (count == 0 || !j->o.data))
        status = CLI_REFUSE(err, "name a model and its data: ravel eval MODEL --data FILE; see --help");
    return status;
}

int cli_eval(int argc, char **argv) {
    ravel_error err = RAVEL_ERROR_INIT;
    const char *model = NULL;
    cli_joined joined = {0};
    int code = CLI_OK;
    if (cli_wants_help(argc, argv)) return help();
    job *j = calloc(1, sizeof *j);
    int words = j ? cli_join_files(argc, argv, &joined) : 0;
    ravel_status status = words ? parse(words, joined.words, j, &model, &err)
                                : ravel_error_set(&err, RAVEL_E_MEMORY, "out of memory for the options");
    if (!status && j) status = settle(j, model, &err);
    if (status || !j) {
        code = cli_usage("eval", &err);
    } else {
        cli_voice warns = {"eval", 1, 0}, shows = {"eval", j->o.quiet, 0};
        const ravel_logger logger = {cli_log, &warns};
        j->hooks = (train_hooks){.logger = &logger, .progress = {cli_show_progress, &shows, NULL}};
        cli_ranks ranks = {.config = &j->config,
                           .comm = &j->comm,
                           .count = train_config_ranks(&j->config),
                           .busy = train_config_ranks(&j->config)};
        status = resolve(j, model, &err);
        if (!status) status = cli_ranks_run(&ranks, work, j, &err);
        cli_progress_end();
        if (!status && ranks.first) status = cli_output_print(j->o.out, j->o.json ? put_json : put_table, j, &err);
        if (status) code = cli_fail("eval", &err);
    }
    cli_free_joined(&joined);
    free(j);
    return code;
}
