/* ravel plan, in parts:
 *
 *   plan.c          the command: its own options, --help, one plan and its outputs
 *   plan_input.c    lengths, homes, groups, costs: from files or a mock, into a ravel_plan_input
 *   plan_tree.c     --tree: samples that share prefixes
 *   plan_tables.c   many plans: --compare and --sweep, as tables, CSV and JSON
 *   plan_oversize.c samples that fit no bin: how many, and where they are
 *   plan_fit.c      --fit: a cost model from measurements
 *   plan_print.c    text output: the summary, and tables of results */
#ifndef CLI_PLAN_H
#define CLI_PLAN_H

#include "cli/cli.h"

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
    const char *sweep_words[72]; /* the words of --sweep, in order */
    int sweep_count;
} plan_flags;

/* ---- input ---------------------------------------------------------------------------------------------- */

typedef struct plan_data {
    ravel_plan_input input;
    char source[512]; /* for people: "lengths.csv, prompt_len + response_len" */
    char title[256];
    const char *file;       /* of the lengths, for sentences */
    int64_t total, longest; /* tokens */
    int64_t limit;          /* rows that were asked for at most; 0: all */
    ravel_lengths *lengths;
    ravel_column *costs, *groups;
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

/* ---- results -------------------------------------------------------------------------------------------- */

/* One plan of several. */
typedef struct plan_result {
    char label[8][48]; /* the method, or the values of the sweep */
    ravel_plan_options options;
    char prices[PLAN_PRICES]; /* of a cost that is a file */
    ravel_plan_stats stats;
    uint64_t digest;
    double seconds;
    double speed;    /* predicted tokens per second and rank, over that of the best row with the same cost */
    ravel_error err; /* err.status: there is no plan, and why */
} plan_result;

/* Makes a plan and times it. */
ravel_status plan_make(const plan_data *data, const ravel_plan_options *options, ravel_plan **plan, double *seconds,
                       ravel_error *err);
int plan_compare(const plan_flags *flags, const plan_data *data, const ravel_plan_options *options);
int plan_sweep(const plan_flags *flags, const plan_data *data, const ravel_plan_options *options);
/* Whether every word of --sweep can be understood, before anything is read. */
ravel_status plan_sweep_check(const plan_flags *flags, const ravel_plan_options *options, ravel_error *err);

/* ---- printing ------------------------------------------------------------------------------------------- */

void plan_print_summary(const plan_data *data, const ravel_plan_options *options, const ravel_plan *plan,
                        double seconds);
/* The bubble that a pipeline of the flags' pp and vpp makes of the plan. */
void plan_print_bubble(const plan_flags *flags, const ravel_bubble *bubble);
/* The first lines of a summary or table: what was planned, what was left out (plan NULL: the table says it) and, unless
 * the plans differ in it (`many`), for what. */
void plan_print_heading(const plan_data *data, const ravel_plan_options *options, const ravel_plan *plan, int many);
/* `heads` are the titles of the labels. The best figure of a column is marked. */
void plan_print_table(const plan_result *results, int count, const char *const *heads, int labels, int with_homes);
/* The same table as a page of its own, with a bar for each row's speed. */
ravel_status plan_table_html(const plan_result *results, int count, const char *const *heads, int labels,
                             const char *title, int with_homes, cli_output *output, ravel_error *err);
ravel_status plan_table_csv(const plan_result *results, int count, const char *const *heads, int labels,
                            cli_output *output, ravel_error *err);

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
