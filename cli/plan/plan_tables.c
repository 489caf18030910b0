/* Many plans of the same samples: --compare (every method) and --sweep (every combination of some options' values). */
#include "cli/plan/plan.h"

#include "report/plan_json.h"
#include "base/json.h"

#include <ravel/report.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VALUES = 256, MOST_PLANS = 10000 };

/* ---- running and writing -------------------------------------------------------------------------------- */

static void run(const plan_data *data, plan_result *r) {
    ravel_plan *plan = NULL;
    r->memory = -1;
    if (r->err.status) return;
    ravel_error_clear(&r->err);
    int32_t cp = r->options.cp;
    if (cp > 1 && ravel_plan_cp_price(&r->options, cp) < 0) {
        CLI_REFUSE(&r->err, "cp-price \"%.60s\" has no price of width %d", r->options.cp_price, cp);
        return;
    }
    if (plan_make(data, &r->options, &plan, &r->seconds, &r->err)) {
        plan_explain_oversize(data, &r->options, &r->err);
        return;
    }
    if (data->model) r->memory = plan_model_memory(data->model, &r->options);
    r->stats = plan->stats;
    r->digest = plan->digest;
    ravel_plan_free(plan);
}

/* Tokens per unit of time and rank, by the cost model. Fixed context parallelism has its price, as a pool's groups
 * do. */
static double speed_of(const plan_result *r) {
    double ranks = r->options.cp_pool ? r->options.cp_pool : r->options.dp;
    double time = ldexp((double)r->stats.time, (int)r->stats.cost_shift);
    if (r->options.cp > 1) time *= 1 + (double)ravel_plan_cp_price(&r->options, r->options.cp) / 1000;
    RAVEL_ASSERT(ranks > 0 && r->stats.time >= 0);
    return time > 0 ? (double)r->stats.flat_tokens / (time * ranks) : 0;
}

/* Costs have no common unit, so a row is compared with those that have its cost. */
static int same_cost(const plan_result *a, const plan_result *b) {
    const ravel_cost *x = &a->options.cost, *y = &b->options.cost;
    return x->linear == y->linear && x->quadratic == y->quadratic && x->overhead == y->overhead;
}

static void set_speeds(plan_result *results, int count) {
    RAVEL_ASSERT(count > 0);
    for (int i = 0; i < count; i++) {
        double best = 0;
        for (int j = 0; j < count; j++) {
            if (results[j].err.status || !same_cost(&results[i], &results[j])) continue;
            double speed = speed_of(&results[j]);
            if (speed > best) best = speed;
        }
        results[i].speed = best > 0 && !results[i].err.status ? speed_of(&results[i]) / best : 0;
    }
}

static void run_all(const plan_data *data, plan_result *results, int count) {
    for (int i = 0; i < count; i++) {
        cli_progress("planning", i, count);
        run(data, &results[i]);
    }
    cli_progress_end();
    set_speeds(results, count);
}

/* {"budget":8192,"dp":8,"digest":"...","plan_ms":1.5,"stats":{...}}; values of options as they are in "options". */
static void put_result(ravel__printer *out, const plan_table *t, const plan_result *r) {
    ravel_plan shell; /* only its figures are written; samples that were left out are counted there, not listed */
    ravel__printer_string(out, "{");
    for (int l = 0; l < t->labels; l++) {
        const ravel_option *row = ravel_option_find(ravel_plan_option_table(), t->heads[l]);
        char key[64], value[512];
        (void)snprintf(key, sizeof key, "%s", t->heads[l]);
        for (char *c = key; *c; c++)
            if (*c == '-') *c = '_';
        ravel__printer_quote(out, key);
        ravel__printer_string(out, ":");
        if (row && row->type != RAVEL_OPTION_ENUM && row->type != RAVEL_OPTION_STRING && !r->err.status) {
            ravel_option_format(row, &r->options, value, sizeof value);
            ravel__printer_string(out, value);
        } else {
            ravel__printer_quote(out, r->label[l]);
        }
        ravel__printer_string(out, ",");
    }
    if (r->err.status) {
        ravel__printer_string(out, "\"error\":");
        ravel__printer_quote(out, r->err.message);
        ravel__printer_string(out, "}");
        return;
    }
    if (r->memory >= 0) ravel__printer_format(out, "\"memory_bytes\":%lld,", (long long)r->memory);
    ravel__printer_format(out, "\"digest\":\"%016llx\",\"plan_ms\":%.4f,\"relative_speed\":%.6f,\"stats\":",
                          (unsigned long long)r->digest, 1e3 * r->seconds, r->speed);
    memset(&shell, 0, sizeof shell);
    shell.stats = r->stats;
    shell.stats.skipped = 0;
    ravel__plan_stats_json(out, &shell);
    ravel__printer_string(out, "}");
}

static void put_json(ravel__printer *out, const void *user) {
    const plan_table *t = user;
    ravel__printer_string(out, "{\"version\":1,\n\"options\":");
    ravel__plan_options_json(out, t->options);
    ravel__printer_format(out, ",\n\"%s\":[", t->name);
    for (int i = 0; i < t->count; i++) {
        ravel__printer_string(out, i ? ",\n" : "\n");
        put_result(out, t, &t->results[i]);
    }
    ravel__printer_string(out, "]}\n");
}

static int is_standard(const char *path) {
    return path && strcmp(path, "-") == 0;
}

static void say(void *user, const char *line, int bad) {
    (void)bad;
    (void)fprintf(user, "%s\n", line);
}

static void print_table(const plan_table *t, int many) {
    char heading[PLAN_HEADING];
    plan_heading_samples(t->data, NULL, heading);
    printf("%s  (%s)\n", heading, t->data->source);
    plan_heading_options(t->data, t->options, heading);
    if (!many) printf("%s\n", heading);
    plan_table_print(t);
    printf("\n");
    plan_advise(t, say, stdout);
}

/* Prints and writes the finished table; the exit code. */
static int finish(const plan_table *t, int many) {
    ravel_error err = RAVEL_ERROR_INIT;
    int good = 0;
    for (int i = 0; i < t->count; i++) good += !t->results[i].err.status;
    if (!t->flags->quiet && !is_standard(t->flags->json) && !is_standard(t->flags->csv) &&
        !is_standard(t->flags->html)) {
        print_table(t, many);
    }
    ravel_status status = RAVEL_OK;
    if (t->flags->json) status = cli_output_print(t->flags->json, put_json, t, &err);
    if (!status && t->flags->csv) status = cli_output_print(t->flags->csv, plan_table_csv, t, &err);
    if (!status && t->flags->html) status = cli_output_print(t->flags->html, plan_table_html, t, &err);
    if (status) return cli_fail("plan", &err);
    if (good) return CLI_OK;
    return cli_fail("plan", &t->results[0].err);
}

/* ---- every method --------------------------------------------------------------------------------------- */

enum { TREE_METHODS = RAVEL_TREE_CUT }; /* beside ravel's own */

static void add_tree_method(plan_result *r, const ravel_plan_options *options, int32_t method) {
    char word[24] = "";
    (void)ravel__choice_word(RAVEL_TREE_METHOD_CHOICES, method, word, sizeof word);
    (void)snprintf(r->label[0], sizeof r->label[0], "tree %s", word);
    r->options = *options;
    r->options.tree_method = method;
}

int plan_compare(const plan_flags *flags, const plan_data *data, const ravel_plan_options *options) {
    plan_table t = {"compare", flags, data, options, NULL, 0, {"method"}, 1};
    while (ravel_method_name(t.count)) t.count++;
    plan_result *results = calloc((size_t)t.count + TREE_METHODS + 1, sizeof *results);
    if (!results) return CLI_FAILED;
    for (int32_t m = 0; m < t.count; m++) {
        (void)snprintf(results[m].label[0], sizeof results[m].label[0], "%s", ravel_method_name(m));
        results[m].options = *options;
        results[m].options.method = m;
    }
    for (int32_t m = 1; data->tree_shared && m <= TREE_METHODS; m++) add_tree_method(&results[t.count++], options, m);
    run_all(data, results, t.count);
    t.results = results;
    int code = finish(&t, 0);
    free(results);
    return code;
}

/* ---- every combination ---------------------------------------------------------------------------------- */

/* One word of --sweep: budget=8k,16k,32k */
typedef struct key {
    char name[48];
    char values[VALUES][200];
    int count;
} key;

static ravel_status parse_values(const char *text, key *k, ravel_error *err) {
    while (*text) {
        size_t length = strcspn(text, ",");
        if (length == 0 || length >= sizeof k->values[0] || k->count == VALUES)
            return CLI_REFUSE(err, "sweep: %s has an empty or overlong value, or more than %d of them", k->name,
                              VALUES);
        memcpy(k->values[k->count], text, length);
        k->values[k->count++][length] = '\0';
        text += length;
        if (*text && !*++text) return CLI_REFUSE(err, "sweep: %s ends with a comma", k->name);
    }
    return RAVEL_OK;
}

static ravel_status parse_key(const char *word, key *k, ravel_error *err) {
    const char *equals = strchr(word, '=');
    memset(k, 0, sizeof *k);
    if (!equals || equals == word || !equals[1] || (size_t)(equals - word) >= sizeof k->name)
        return CLI_REFUSE(err, "sweep: \"%.60s\" is not an option and its values; write budget=8k,16k,32k", word);
    memcpy(k->name, word, (size_t)(equals - word));
    const ravel_option *row = ravel_option_find(ravel_plan_option_table(), k->name);
    if (row) (void)snprintf(k->name, sizeof k->name, "%s", row->name);
    return parse_values(equals + 1, k, err);
}

static ravel_status apply(const key *k, int value, plan_result *r, int label, ravel_error *err) {
    const ravel_option *row = ravel_option_find(ravel_plan_option_table(), k->name);
    RAVEL_ASSERT(value >= 0 && value < k->count && label >= 0 && label < PLAN_KEYS);
    (void)snprintf(r->label[label], sizeof r->label[label], "%.47s", k->values[value]);
    if (strcmp(k->name, "cost") == 0) return plan_cost(k->values[value], &r->options, r->prices, err);
    ravel_status status = ravel_option_set(ravel_plan_option_table(), &r->options, k->name, k->values[value], err);
    if (status) return status;
    if (row->type == RAVEL_OPTION_I64 || row->type == RAVEL_OPTION_I32) { /* 16k is shown as 16,384 */
        char text[48];
        int64_t number = 0;
        ravel_option_format(row, &r->options, text, sizeof text);
        if (ravel__parse_size(text, &number, NULL) == RAVEL_OK)
            (void)snprintf(r->label[label], sizeof r->label[label], "%lld", (long long)number);
    }
    return RAVEL_OK;
}

static ravel_status parse_keys(const plan_flags *flags, key *keys, int *count, int *plans, ravel_error *err) {
    *plans = 1;
    if (flags->sweep_count > PLAN_KEYS) return CLI_REFUSE(err, "sweep: at most %d options at a time", PLAN_KEYS);
    for (*count = 0; *count < flags->sweep_count; ++*count) {
        ravel_status status = parse_key(flags->sweep_words[*count], &keys[*count], err);
        if (status) return status;
        *plans *= keys[*count].count;
        if (*plans > MOST_PLANS) return CLI_REFUSE(err, "sweep: more than %d plans", MOST_PLANS);
    }
    return RAVEL_OK;
}

ravel_status plan_sweep_check(const plan_flags *flags, const ravel_plan_options *options, ravel_error *err) {
    key *keys = calloc(PLAN_KEYS, sizeof *keys);
    plan_result *scratch = calloc(1, sizeof *scratch);
    int count = 0, plans = 0;
    ravel_status status = keys && scratch ? parse_keys(flags, keys, &count, &plans, err)
                                          : ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    for (int k = 0; k < count && !status; k++)
        for (int v = 0; v < keys[k].count && !status; v++) {
            scratch->options = *options;
            status = apply(&keys[k], v, scratch, 0, err);
            if (status) ravel_error_prefix(err, "sweep");
        }
    free(keys);
    free(scratch);
    return status;
}

/* Row `i` counted in the keys' values, the last key running fastest. */
static void combine(const key *keys, int count, int i, const ravel_plan_options *base, plan_result *r) {
    r->options = *base;
    for (int k = count - 1; k >= 0; k--) {
        (void)apply(&keys[k], i % keys[k].count, r, k, &r->err);
        i /= keys[k].count;
    }
    RAVEL_ASSERT(i == 0); /* all values are used up */
}

static int sweep(plan_table *t, const key *keys) {
    for (int k = 0; k < t->labels; k++) t->heads[k] = keys[k].name;
    RAVEL_ASSERT(t->labels > 0 && t->labels <= PLAN_KEYS && t->count <= MOST_PLANS);
    for (int i = 0; i < t->count; i++) combine(keys, t->labels, i, t->options, &t->results[i]);
    run_all(t->data, t->results, t->count);
    plan_advise(t, NULL, NULL);
    return finish(t, 1);
}

int plan_sweep(const plan_flags *flags, const plan_data *data, const ravel_plan_options *options) {
    key *keys = calloc(PLAN_KEYS, sizeof *keys);
    plan_table t = {"sweep", flags, data, options, NULL, 0, {NULL}, 0};
    ravel_error err = RAVEL_ERROR_INIT;
    int code = CLI_FAILED;
    if (keys && parse_keys(flags, keys, &t.labels, &t.count, &err) == RAVEL_OK)
        t.results = calloc((size_t)t.count + 1, sizeof *t.results);
    if (t.results) {
        code = sweep(&t, keys);
    } else {
        ravel_error_set(&err, RAVEL_E_MEMORY, "out of memory for %d plans", t.count);
        code = cli_fail("plan", &err);
    }
    free(t.results);
    free(keys);
    return code;
}
