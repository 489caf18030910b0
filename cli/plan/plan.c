/* ravel plan: lengths in, plan out, and its report. */
#include "cli/plan/plan.h"

#include "io/columns.h"

#include <ravel/report.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROW(...) RAVEL__ROW(plan_flags, __VA_ARGS__)
static const ravel_option input_table[] = {
    ROW("lengths", STRING, lengths, NULL, 0, 0, "FILE", "samples' lengths: CSV, JSONL or NPY; - is standard input"),
    ROW("tokenizer", STRING, tokenizer, NULL, 0, 0, "FOLDER",
        "--lengths is JSON lines of text: count its tokens, by this model folder's tokenizer"),
    ROW("text-field", STRING, text_field, NULL, 0, 0, "PATH",
        "with --tokenizer: the member that is the text; without it, whole rows as ravel train takes them"),
    ROW("tree", STRING, tree, NULL, 0, 0, "FILE",
        "instead of --lengths: JSON lines of samples that share prefixes, {\"path\":[[node,tokens],...]} or token ids; a "
        "shared token is computed once per bin"),
    ROW("mock", STRING, mock, NULL, 0, 0, "JSON",
        "instead of --lengths: synthetic lengths, as {\"type\":\"lognormal\",\"max_seq_len\":8192}, or @FILE"),
    ROW("mock-count", I64, mock_count, "0", 0, 0x1p31, NULL, "mock samples; 0: as the JSON says"),
    ROW("mock-seed", I64, mock_seed, "-1", -1, 0x1p62, NULL, "another seed than the JSON's; -1: the JSON's"),
    ROW("cost", STRING, cost, NULL, 0, 0, "COST",
        "cost of a sample: LIN:QUAD for LIN * length + QUAD * length^2 (and :OVERHEAD per micro-step), tokens, a model's "
        "config.json, a file of --fit, or a known shape such as qwen3-8b [tokens]"),
    ROW("fit", STRING, fit, NULL, 0, 0, "RUN",
        "make no plan: fit linear, quadratic, overhead and width prices to measured times (JSON lines with lengths and "
        "seconds, or a run's metrics.jsonl); --json FILE is then what --cost reads"),
    ROW("costs", STRING, costs, NULL, 0, 0, "FILE", "instead of --cost: each sample's own cost, a column of numbers"),
    ROW("home", STRING, home, NULL, 0, 0, "FILE", "the rank that holds each sample now, a column of numbers; -1: none"),
    ROW("groups", STRING, groups, NULL, 0, 0, "FILE",
        "each sample's group, a column of numbers; group-rule is then update unless given"),
    ROW("update-ids", STRING, update_ids, NULL, 0, 0, "FILE",
        "which update each sample belongs to, a column of numbers from 0"),
    {0}};

static const ravel_option output_table[] = {
    ROW("json", STRING, json, NULL, 0, 0, "FILE", "write the plan as JSON; - is standard output"),
    ROW("csv", STRING, csv, NULL, 0, 0, "FILE", "write a row for every bin, or the table, as CSV"),
    ROW("html", STRING, html, NULL, 0, 0, "FILE", "write a page with the picture of the plan, or with the table"),
    ROW("svg", STRING, svg, NULL, 0, 0, "FILE", "write a small still picture"),
    ROW("compare", BOOL, compare, "false", 0, 0, NULL, "a table of all methods"),
    ROW("sweep", STRING, sweep, NULL, 0, 0, "KEY=LIST",
        "a table of all combinations: --sweep budget=8k,16k,32k dp=8,64; any option of planning, and cost"),
    ROW("pp", I32, pp, "1", 1, 4096, NULL, "print the plan's bubble in a pipeline of this many stages"),
    ROW("vpp", I32, vpp, "1", 1, 4096, NULL,
        "... with this many chunks per stage (interleaved; --multiple must then be a multiple of pp)"),
    ROW("quiet", BOOL, quiet, "false", 0, 0, NULL, "no summary"),
    {0}};

/* ---- help ----------------------------------------------------------------------------------------------- */

static const char help_top[] =
    "usage: ravel plan --lengths FILE --budget SIZE [--dp N] [options]\n"
    "       ravel plan --mock JSON --budget SIZE [--dp N] [options]\n"
    "\n"
    "Packs samples of any lengths into bins (micro-batches) that never exceed the budget, the same number\n"
    "on every data-parallel rank, balanced for what the ranks wait for; and reports how good the plan is\n"
    "against lower bounds. Sizes take 16k and 1M.\n";

static const char help_methods[] = "\nMethods (--method):\n";

static const char help_end[] =
    "\n\nExamples:\n"
    "  ravel plan --lengths lengths.csv --budget 16k --dp 16\n"
    "  ravel plan --lengths data.jsonl --field usage.prompt,usage.completion --budget 32k --dp 8 --cost qwen3-8b\n"
    "  ravel plan --lengths lengths.npy --budget 16k --dp 64 --compare\n"
    "  ravel plan --lengths chat.jsonl --tokenizer models/SmolLM2 --budget 16k --dp 8\n"
    "  ravel plan --tree rollouts.jsonl --budget 32k --dp 8 --cost 24576:1 --compare\n"
    "  ravel plan --lengths lengths.csv --sweep budget=8k,16k,32k dp=8,64\n"
    "  ravel plan --lengths lengths.csv --dp 8 --sweep budget=8k,16k,32k --shape qwen3-8b --memory 80G\n"
    "  ravel plan --lengths lengths.csv --budget 16k --dp 16 --json plan.json --html plan.html\n"
    "  ravel plan --mock '{\"type\":\"lognormal\",\"max_seq_len\":8192}' --mock-count 10000 --budget 16k --dp 16\n"
    "  cut -d, -f2 trace.csv | ravel plan --lengths - --format csv --budget 8k --dp 8 --json - | jq .stats\n"
    "\nExit codes: 0 done, 1 the data is wrong, 2 the command line is wrong. See also ravel-plan(1).\n";

static int help(const cli_options *sets, int count) {
    (void)fputs(help_top, stdout);
    cli_print_options(sets, count);
    (void)fputs(help_methods, stdout);
    for (int32_t m = 0; ravel_method_name(m); m++) printf("  %-22s %s\n", ravel_method_name(m), ravel_method_doc(m));
    printf("\nKnown shapes (--cost, --shape):\n ");
    for (int32_t i = 0; ravel_shape_name(i); i++) printf("%s%s", i && i % 7 == 0 ? "\n  " : " ", ravel_shape_name(i));
    (void)fputs(help_end, stdout);
    return CLI_OK;
}

/* ---- one plan ------------------------------------------------------------------------------------------- */

ravel_status plan_make(const plan_data *data, const ravel_plan_options *options, ravel_plan **plan, double *seconds,
                       ravel_error *err) {
    double started = cli_now();
    ravel_status status = ravel_plan_create(&data->input, options, plan, err);
    *seconds = cli_now() - started;
    RAVEL_ASSERT(*seconds >= 0 && (status || *plan));
    return status;
}

/* One file of a plan: where to, and what writes it. */
typedef struct target {
    const char *path;
    ravel_status (*write)(const ravel_plan_input *, const ravel_plan_options *, const ravel_plan *, ravel_write, void *,
                          ravel_error *);
    double bytes_a_sample, bytes_a_bin; /* about, for the progress line */
} target;

static ravel_status write_target(const target *t, const plan_data *data, const ravel_plan_options *options,
                                 const ravel_plan *plan, ravel_error *err) {
    cli_output output;
    ravel_status status = cli_output_open(&output, t->path, err);
    if (status) return status;
    output.expected = t->bytes_a_sample * (double)plan->stats.samples + t->bytes_a_bin * (double)plan->bins;
    RAVEL_ASSERT(output.expected >= 0);
    if (t->write)
        status = t->write(&data->input, options, plan, cli_output_write, &output, err);
    else
        status = ravel_plan_html(&data->input, options, plan, data->title, cli_output_write, &output, err);
    return cli_output_close(&output, status, err);
}

static int write_all(const plan_flags *flags, const plan_data *data, const ravel_plan_options *options,
                     const ravel_plan *plan) {
    const target targets[] = {{flags->json, ravel_plan_json, 7, 120},
                              {flags->csv, ravel_plan_csv, 7, 40},
                              {flags->html, NULL, 12, 30},
                              {flags->svg, ravel_plan_svg, 0, 0}};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        if (targets[i].path && write_target(&targets[i], data, options, plan, &err)) return cli_fail("plan", &err);
    }
    return CLI_OK;
}

/* How many of the outputs go to standard output. */
static int standard_outputs(const plan_flags *f) {
    const char *const paths[] = {f->json, f->csv, f->html, f->svg};
    int count = 0;
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) count += paths[i] && strcmp(paths[i], "-") == 0;
    return count;
}

static int plan_once(const plan_flags *flags, const plan_data *data, const ravel_plan_options *options) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    double seconds;
    cli_busy("planning");
    ravel_status status = plan_make(data, options, &plan, &seconds, &err);
    cli_busy_end();
    if (status) plan_explain_oversize(data, options, &err);
    if (status) return cli_fail("plan", &err);
    plan_warn_skipped(data, options, plan);
    RAVEL_ASSERT(plan->stats.over_budget == 0 || options->oversize == RAVEL_OVERSIZE_ALONE);
    ravel_bubble bubble = {0, 0, 0};
    int staged = flags->pp > 1 || flags->vpp > 1, says = !flags->quiet && !standard_outputs(flags);
    if (staged) status = ravel_plan_bubble(plan, flags->pp, flags->vpp, &bubble, &err);
    if (!status && says) plan_print_summary(data, options, plan, seconds);
    if (!status && says && staged) plan_print_bubble(flags, &bubble);
    if (!status && data->model) plan_warn_memory(data, options);
    int code = status ? cli_usage("plan", &err) : write_all(flags, data, options, plan);
    ravel_plan_free(plan);
    return code;
}

/* ---- the command ---------------------------------------------------------------------------------------- */

/* Checks of the flags, before anything is read. */
static ravel_status check_flags(const plan_flags *f, const ravel_plan_options *options, int words, ravel_error *err) {
    if (!f->sweep && words)
        return CLI_REFUSE(err, "\"%.60s\" is neither an option nor part of --sweep; see --help", f->sweep_words[0]);
    if (f->sweep && f->compare)
        return CLI_REFUSE(
            err, "--compare and --sweep are two tables; to sweep over methods, write --sweep method=ravel,ffd,kk");
    if ((f->sweep || f->compare) && f->svg)
        return CLI_REFUSE(err, "--svg shows one plan; leave out --compare and --sweep");
    if (standard_outputs(f) > 1) return CLI_REFUSE(err, "only one output can be standard output");
    if (!f->sweep && !options->budget && options->method != RAVEL_METHOD_FIXED_COUNT)
        return CLI_REFUSE(
            err, "--budget is missing or 0: how many tokens fit one micro-batch, for example --budget 16k; without a "
                 "budget micro-batches are of N samples: --method count --count N");
    if (f->tree && (f->tokenizer || f->costs))
        return CLI_REFUSE(err, "--%s is for --lengths; --tree has the tokens of its samples%s",
                          f->costs ? "costs" : "tokenizer", f->costs ? ", and --cost is their cost model" : "");
    if (f->mock && f->tokenizer) return CLI_REFUSE(err, "--tokenizer is for --lengths; a mock makes lengths up");
    if (options->cp_widths && !options->cp_pool && !f->sweep)
        return CLI_REFUSE(err, "--cp-widths are those of --cp-pool; give --cp-pool too");
    if (f->cost && f->costs) return CLI_REFUSE(err, "give --cost or --costs, not both");
    ravel_status status = f->sweep ? plan_sweep_check(f, options, err) : RAVEL_OK;
    return status ? status : plan_claim_files(f, err);
}

/* --sweep's value is the first of its words, and the words after it belong to it too. */
static ravel_status parse(int argc, char **argv, const cli_options *sets, int count, plan_flags *flags,
                          ravel_plan_options *options, ravel_error *err) {
    const char *words[63];
    int word_count = 0;
    ravel_status status = cli_parse(argc, argv, sets, count, words, 63, &word_count, err);
    if (status) return status;
    status = cli_values(argc, argv, sets, count, "sweep", flags->sweep_words, 8, &flags->sweep_count, err);
    if (status) return status;
    for (int i = 0; i < word_count; i++) flags->sweep_words[flags->sweep_count++] = words[i];
    if (flags->fit) return plan_claim_files(flags, err);
    RAVEL_ASSERT(flags->sweep_count <= (int)(sizeof flags->sweep_words / sizeof *flags->sweep_words));
    if (flags->cost) status = plan_cost(flags->cost, options, flags->prices, err);
    if (status) return status;
    return check_flags(flags, options, word_count, err);
}

/* --method count without --budget: the size that the outputs show is that of `count` of the longest sample. */
static int64_t room_of_count(const ravel_plan_options *o, int64_t longest) {
    int64_t align = ravel_plan_align(o), slot = align > 0 ? (longest + align - 1) / align * align : longest;
    const int64_t limit = INT64_C(1) << 40;
    if (o->layout == RAVEL_LAYOUT_PADDED_2D) slot *= 2; /* the longest prompt and the longest response */
    RAVEL_ASSERT(slot > 0 && o->count > 0);
    return slot > limit / o->count ? limit : (slot * o->count + o->cp - 1) / o->cp;
}

int cli_plan(int argc, char **argv) {
    plan_flags flags;
    ravel_read_options read;
    ravel_plan_options options;
    memset(&flags, 0, sizeof flags);
    ravel_options_default(input_table, &flags);
    ravel_options_default(output_table, &flags);
    ravel_options_default(plan_model_table, &flags);
    ravel_read_options_default(&read);
    ravel_plan_options_default(&options);
    const cli_options sets[] = {
        {"Samples", input_table, &flags},
        {"Reading", ravel_read_option_table(), &read},
        {"Planning", ravel_plan_option_table(), &options},
        {"Model", plan_model_table, &flags},
        {"Output (a summary is printed unless something else goes to standard output)", output_table, &flags}};
    enum { SETS = sizeof sets / sizeof *sets };
    if (cli_wants_help(argc, argv)) return help(sets, SETS);
    (void)signal(SIGPIPE, SIG_IGN); /* a reader that closes its pipe must not end the command in the middle of a file */
    ravel_error err = RAVEL_ERROR_INIT;
    options.updates = options.group_rule = -1; /* not given */
    ravel_status status = parse(argc, argv, sets, SETS, &flags, &options, &err);
    if (status == RAVEL_E_IO || status == RAVEL_E_DATA) return cli_fail("plan", &err);
    if (status) return cli_usage("plan", &err);
    if (flags.fit) return plan_fit(&flags);
    plan_data data;
    plan_model *model;
    if (plan_model_open(&flags, &options, &model, &err)) return cli_usage("plan", &err);
    if (plan_data_read(&flags, &read, &options, &data, &err)) {
        plan_model_free(model);
        return cli_fail("plan", &err);
    }
    data.model = model;
    if (!options.budget && !flags.sweep) options.budget = room_of_count(&options, data.longest);
    int code = flags.sweep     ? plan_sweep(&flags, &data, &options)
               : flags.compare ? plan_compare(&flags, &data, &options)
                               : plan_once(&flags, &data, &options);
    plan_data_free(&data);
    plan_model_free(model);
    return code;
}
