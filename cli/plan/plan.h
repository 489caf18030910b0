/* ravel plan, in parts:
 *
 *   plan.c          the command: its own options, --help, one plan and its outputs
 *   plan_input.c    lengths, homes, groups, costs: from files or a mock, into a ravel_plan_input
 *   plan_tree.c     --tree: samples that share prefixes
 *   plan_tables.c   many plans: --compare and --sweep, and their JSON
 *   plan_columns.c  their figures as a table of text or CSV
 *   plan_page.c     ... and as a page
 *   plan_advice.c   which rows of a sweep to take, and why
 *   plan_model.c    --shape: the cost of a model, and the memory of a rank that trains it
 *   plan_oversize.c samples that fit no bin: how many, and where they are
 *   plan_fit.c      --fit: a cost model from measurements
 *   plan_print.c    text output: the summary */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include "cli/cli.h"
#include "io/columns.h"
#include "train/run/config/machine.h"

#include <ravel/lengths.h>
#include <ravel/plan.h>
#include <ravel/report.h>

/* The command's own flags. */
enum { PLAN_PRICES = 256 };

typedef struct plan_flags {
    const char *lengths, *mock, *cost, *costs, *home, *groups, *update_ids;
    const char *json, *csv, *html, *svg, *sweep, *fit;
    const char *tokenizer, *text_field, *tree;
    char prices[PLAN_PRICES]; /* of --cost FILE */
    int64_t mock_count, mock_seed;
    int32_t compare, quiet, pp, vpp;
    const char *shape, *kernels; /* --shape and what belongs to it */
    int64_t memory;
    int32_t recompute, shard, tp;
    const char *sweep_words[72]; /* the words of --sweep, in order */
    int sweep_count;
} plan_flags;

/* ---- input ---------------------------------------------------------------------------------------------- */

typedef struct plan_model plan_model;

typedef struct plan_data {
    ravel_plan_input input;
    const plan_model *model; /* NULL: without --shape */
    char source[512];        /* for people: "lengths.csv, prompt_len + response_len" */
    char title[256];
    const char *file;       /* of the lengths, for sentences */
    int64_t total, longest; /* tokens */
    int64_t limit;          /* rows that were asked for at most; 0: all */
    ravel_lengths *lengths;
    ravel__column *costs, *groups;
    int32_t *homes, *updates; /* from malloc */
    int64_t *text_lines;      /* from malloc; of texts: the line of each sample in its file */
    int32_t *tree_order;      /* from malloc, of --tree: the sample of each place of the tree order */
    int64_t *tree_shared, *tree_groups;
} plan_data;

/* Reads everything; options.updates and options.group_rule may be -1 and are then derived from the input. */
ravel_status plan_data_read(const plan_flags *flags, const ravel_read_options *read, ravel_plan_options *options,
                            plan_data *data, ravel_error *err);
/* plan_tree.c: lengths, order, shared tokens and groups of --tree. */
ravel_status plan_tree_read(const plan_flags *flags, const ravel_read_options *read, plan_data *data, ravel_error *err);
void plan_data_free(plan_data *data);
/* Whether inputs and outputs are different files, before anything is read. */
ravel_status plan_claim_files(const plan_flags *flags, ravel_error *err);

/* LIN:QUAD, tokens, a config.json (or its folder), a file of --fit, or a named shape. The width prices of a file go to
 * `prices`, and options.cp_price points there unless it is set. */
ravel_status plan_cost(const char *text, ravel_plan_options *options, char prices[PLAN_PRICES], ravel_error *err);

/* --fit: the exit code. */
int plan_fit(const plan_flags *flags);

/* ---- plan_model.c: a model, by --shape ---- */

extern const ravel_option plan_model_table[]; /* of plan_flags */
/* *model is NULL without --shape. Sets options.cost unless --cost is given. */
ravel_status plan_model_open(const plan_flags *flags, ravel_plan_options *options, plan_model **model,
                             ravel_error *err);
void plan_model_free(plan_model *model);
/* Bytes of the largest rank that trains it with these options; -1: it cannot be trained so. */
int64_t plan_model_memory(const plan_model *model, const ravel_plan_options *options);
int64_t plan_model_limit(const plan_model *model); /* --memory; 0: none */
/* What a rank needs with the fewest options more that make it fit --memory, which `text` names, and -1: none do. */
int64_t plan_model_remedy(const plan_model *model, const ravel_plan_options *options, char *text, size_t size);
/* On stderr, if a rank needs more than --memory: what would help. */
void plan_warn_memory(const plan_data *data, const ravel_plan_options *options);
/* "qwen3-8b, kernels cpu, recompute light, shard none" */
const char *plan_model_text(const plan_model *model);

/* ---- results -------------------------------------------------------------------------------------------- */

enum { PLAN_KEYS = 8, PLAN_LABEL = 48 };

/* One plan of several. */
typedef struct plan_result {
    char label[PLAN_KEYS][PLAN_LABEL]; /* the method, or the values of the sweep */
    ravel_plan_options options;
    char prices[PLAN_PRICES]; /* of a cost that is a file */
    ravel_plan_stats stats;
    uint64_t digest;
    double seconds;
    double speed;    /* predicted tokens per second and rank, over that of the best row with the same cost */
    int64_t memory;  /* of a rank, with --shape; -1: not known */
    int32_t taken;   /* plan_advise takes it */
    ravel_error err; /* err.status: there is no plan, and why */
} plan_result;

typedef struct plan_table {
    const char *name; /* the JSON's member: "compare" or "sweep" */
    const plan_flags *flags;
    const plan_data *data;
    const ravel_plan_options *options;
    plan_result *results;
    int count;
    const char *heads[PLAN_KEYS]; /* titles of the labels */
    int labels;
} plan_table;

/* Makes a plan and times it. */
ravel_status plan_make(const plan_data *data, const ravel_plan_options *options, ravel_plan **plan, double *seconds,
                       ravel_error *err);
int plan_compare(const plan_flags *flags, const plan_data *data, const ravel_plan_options *options);
int plan_sweep(const plan_flags *flags, const plan_data *data, const ravel_plan_options *options);
/* Whether every word of --sweep can be understood, before anything is read. */
ravel_status plan_sweep_check(const plan_flags *flags, const ravel_plan_options *options, ravel_error *err);

/* Writes one line of advice; `bad`: that nothing fits. */
typedef void (*plan_say)(void *user, const char *line, int bad);
/* Which budget (and cp) to take for each combination of the other keys, and why, or with which options one would fit;
 * sets `taken` of the rows. Nothing if neither budgets nor cp are compared. say NULL: only that. */
void plan_advise(const plan_table *table, plan_say say, void *user);
/* A label as people write it: a budget of 16384 is 16k. */
void plan_label(const plan_table *table, const plan_result *result, int label, char text[PLAN_LABEL]);

/* ---- printing ------------------------------------------------------------------------------------------- */

enum { PLAN_HEADING = 700 };

void plan_print_summary(const plan_data *data, const ravel_plan_options *options, const ravel_plan *plan,
                        double seconds);
/* The bubble that a pipeline of the flags' pp and vpp makes of the plan. */
void plan_print_bubble(const plan_flags *flags, const ravel_bubble *bubble);
/* What was planned, and what was left out (plan NULL: the table says it): "2,000 samples, ...". */
void plan_heading_samples(const plan_data *data, const ravel_plan *plan, char text[PLAN_HEADING]);
/* For what: ranks, budget, layout, cost. */
void plan_heading_options(const plan_data *data, const ravel_plan_options *options, char text[PLAN_HEADING]);

/* A column of figures: how it is called for people and for machines, how it is worked out, how it is written, and
 * whether less (-1) or more (1) of it is better. */
typedef struct plan_column {
    const char *head, *name;
    double (*value)(const plan_result *r);
    enum { PLAN_COUNT, PLAN_SHARE, PLAN_RATIO, PLAN_MILLISECONDS, PLAN_MEMORY } kind;
    int better;
    enum { PLAN_ALWAYS, PLAN_WITH_HOMES, PLAN_WITH_SKIPPED, PLAN_WITH_TREES, PLAN_WITH_MODEL } shown;
} plan_column;

/* The index-th column that this table has; NULL after the last. */
const plan_column *plan_column_at(const plan_table *table, int index);
void plan_column_cell(const plan_column *column, const plan_result *result, char text[PLAN_LABEL]);
/* The best cell of a column, as it is written: what looks equal is equally good. "": the column has no best. */
void plan_column_best(const plan_table *table, const plan_column *column, char text[PLAN_LABEL]);

void plan_table_print(const plan_table *table);
/* Of a plan_table, as cli_output_print takes them: CSV, and a page with a bar for each row's speed. */
void plan_table_csv(ravel__printer *out, const void *table);
void plan_table_html(ravel__printer *out, const void *table);

/* ---- plan_oversize.c: samples that fit no bin ---- */

typedef struct plan_left_out {
    int64_t samples, tokens, longest;
} plan_left_out;
plan_left_out plan_count_left_out(const plan_data *data, const ravel_plan *plan);
/* If err is E_OVERSIZE: adds the number of samples that do not fit, the longest, and the lines of the first ones. */
void plan_explain_oversize(const plan_data *data, const ravel_plan_options *options, ravel_error *err);
/* Lists on stderr the samples that were left out. */
void plan_warn_skipped(const plan_data *data, const ravel_plan_options *options, const ravel_plan *plan);

#endif
