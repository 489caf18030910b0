/* The options in which runs side by side differ, from their config.json. */
#include "cli/report/report.h"

#include <stdio.h>
#include <string.h>

/* Options whose 0 stands for what the run finds out. */
static int is_auto(const char *key, double value) {
    static const char *const keys[] = {"ranks", "dp", "threads", "steps", "max-tokens", "env-tokens", "lora-alpha"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (value == 0 && strcmp(key, keys[i]) == 0) return 1;
    return 0;
}

static void write_value(const ravel__json_node *node, char text[REPORT_OPTION]) {
    static const char *const words[] = {
        [RAVEL__JSON_NULL] = "-", [RAVEL__JSON_FALSE] = "false", [RAVEL__JSON_TRUE] = "true"};
    double number = 0;
    if (!node || node->kind <= RAVEL__JSON_TRUE)
        (void)snprintf(text, REPORT_OPTION, "%s", node ? words[node->kind] : "-");
    else if (node->kind == RAVEL__JSON_STRING)
        (void)snprintf(text, REPORT_OPTION, "%s", node->as.string);
    else if (ravel__json_real(node, &number))
        (void)snprintf(text, REPORT_OPTION, is_auto(node->key, number) ? "auto" : "%.10g", number);
    else
        (void)snprintf(text, REPORT_OPTION, "...");
}

/* What says where and how a run went on, and not what it did. */
static int is_left_out(const char *key) {
    static const char *const keys[] = {"run", "resume", "quiet", "sinks", "http"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(key, keys[i]) == 0) return 1;
    return 0;
}

static const ravel__json_node *find(const report_run *run, const char *key) {
    return run->options ? ravel__json_get(run->options, ravel__json_root(run->options), key) : NULL;
}

static void look(const report_run *runs, int count, const char *key, report_option_line line, void *user) {
    char values[REPORT_RUNS_MAX][REPORT_OPTION];
    int differ = 0;
    for (int i = 0; i < count; i++) {
        write_value(find(&runs[i], key), values[i]);
        differ |= strcmp(values[i], values[0]) != 0;
    }
    if (differ && !is_left_out(key)) line(user, key, (const char(*)[REPORT_OPTION])values);
}

/* Keys of the first run in its order, then those that only later runs have. */
void report_options(const report_run *runs, int count, report_option_line line, void *user) {
    RAVEL_ASSERT(count >= 1 && count <= REPORT_RUNS_MAX);
    for (int i = 0; i < count; i++) {
        const ravel__json *doc = runs[i].options;
        for (const ravel__json_node *x = doc ? ravel__json_first(doc, ravel__json_root(doc)) : NULL; x;
             x = ravel__json_next(doc, x)) {
            int seen = 0;
            for (int j = 0; j < i; j++) seen |= find(&runs[j], x->key) != NULL;
            if (!seen) look(runs, count, x->key, line, user);
        }
    }
}
