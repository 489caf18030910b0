/* The options in which runs side by side differ, from their config.json. */
#include "cli/report/report.h"

#include "base/json.h"

#include <stdio.h>
#include <string.h>

typedef struct configs {
    ravel__json *docs[REPORT_RUNS_MAX];
    const ravel__json_node *roots[REPORT_RUNS_MAX]; /* NULL: the run has none */
    int count;
} configs;

static void close_configs(configs *c) {
    for (int i = 0; i < c->count; i++) ravel__json_free(c->docs[i]);
}

static void open_configs(const report_run *runs, int count, configs *c) {
    memset(c, 0, sizeof *c);
    c->count = count;
    RAVEL_ASSERT(count >= 1 && count <= REPORT_RUNS_MAX);
    for (int i = 0; i < count; i++) {
        const char *text = runs[i].config;
        if (text && ravel__json_parse(text, strlen(text), NULL, &c->docs[i], NULL) == RAVEL_OK)
            c->roots[i] = ravel__json_root(c->docs[i]);
    }
}

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

static void look(const configs *c, const char *key, report_option_line line, void *user) {
    char values[REPORT_RUNS_MAX][REPORT_OPTION];
    int differ = 0;
    for (int i = 0; i < c->count; i++) {
        write_value(c->roots[i] ? ravel__json_get(c->docs[i], c->roots[i], key) : NULL, values[i]);
        differ |= strcmp(values[i], values[0]) != 0;
    }
    if (differ && !is_left_out(key)) line(user, key, (const char(*)[REPORT_OPTION])values);
}

/* Keys of the first run in its order, then those that only later runs have. */
void report_options(const report_run *runs, int count, report_option_line line, void *user) {
    configs c;
    open_configs(runs, count, &c);
    for (int i = 0; i < count; i++) {
        if (!c.roots[i] || c.roots[i]->kind != RAVEL__JSON_OBJECT) continue;
        for (const ravel__json_node *x = ravel__json_first(c.docs[i], c.roots[i]); x;
             x = ravel__json_next(c.docs[i], x)) {
            int seen = 0;
            for (int j = 0; j < i; j++) seen |= c.roots[j] && ravel__json_get(c.docs[j], c.roots[j], x->key) != NULL;
            if (!seen) look(&c, x->key, line, user);
        }
    }
    close_configs(&c);
}
