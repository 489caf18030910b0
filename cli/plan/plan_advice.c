/* Which budget of a sweep to take. Of the rows that differ in budget and cp alone, those within 1 % of the fastest are
 * as good as it; of these the one with the least memory is taken, or, where memory is not known, with the smallest
 * budget. */
#include "cli/plan/plan.h"

#include <stdio.h>
#include <string.h>

static const double close_enough = 0.99;
enum { MOST_LINES = 12, LINE = 640 };

/* What is chosen; all other keys are what the user has. */
static int is_choice(const char *head) {
    return strcmp(head, "budget") == 0 || strcmp(head, "cp") == 0;
}

static int find_head(const plan_table *t, const char *name) {
    for (int l = 0; l < t->labels; l++)
        if (strcmp(t->heads[l], name) == 0) return l;
    return -1;
}

void plan_label(const plan_table *t, const plan_result *r, int label, char text[PLAN_LABEL]) {
    int64_t size = r->options.budget;
    int is_size = strcmp(t->heads[label], "budget") == 0 && size >= 1024 && size % 1024 == 0;
    if (is_size && size % (1 << 20) == 0)
        (void)snprintf(text, PLAN_LABEL, "%lldM", (long long)(size >> 20));
    else if (is_size)
        (void)snprintf(text, PLAN_LABEL, "%lldk", (long long)(size >> 10));
    else
        (void)snprintf(text, PLAN_LABEL, "%s", r->label[label]);
}

static int same_group(const plan_table *t, const plan_result *a, const plan_result *b) {
    for (int l = 0; l < t->labels; l++)
        if (!is_choice(t->heads[l]) && strcmp(a->label[l], b->label[l]) != 0) return 0;
    return 1;
}

/* "--budget 16k --cp 2" */
static void name_choice(const plan_table *t, const plan_result *r, char *text, size_t size) {
    char label[PLAN_LABEL];
    size_t used = 0;
    text[0] = '\0';
    for (int l = 0; l < t->labels && used < size; l++) {
        plan_label(t, r, l, label);
        if (is_choice(t->heads[l]))
            used += (size_t)snprintf(text + used, size - used, "%s--%s %s", used ? " " : "", t->heads[l], label);
    }
}

/* "dp 8, method ffd: "; "" where nothing else is swept. */
static void name_group(const plan_table *t, const plan_result *r, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int l = 0; l < t->labels && used < size; l++)
        if (!is_choice(t->heads[l]))
            used += (size_t)snprintf(text + used, size - used, "%s%s %s", used ? ", " : "", t->heads[l], r->label[l]);
    if (used && used < size) (void)snprintf(text + used, size - used, ": ");
}

/* The rows of a group. */
typedef struct group {
    const plan_result *fastest, *best; /* of those that fit; NULL: none does */
    const plan_result *least;          /* memory, of all */
    int rows, failed, large;
} group;

static int is_smaller(const plan_result *a, const plan_result *b) {
    int64_t x = a->memory >= 0 ? a->memory : a->options.budget * a->options.cp;
    int64_t y = b->memory >= 0 ? b->memory : b->options.budget * b->options.cp;
    return x < y || (x == y && a->speed > b->speed);
}

static group look(const plan_table *t, const plan_result *first, int64_t limit) {
    group g = {0};
    const plan_result *end = t->results + t->count;
    for (const plan_result *r = first; r < end; r++) {
        if (!same_group(t, first, r)) continue;
        g.rows++;
        g.failed += r->err.status != 0;
        if (r->err.status) continue;
        if (!g.least || is_smaller(r, g.least)) g.least = r;
        int large = limit > 0 && r->memory > limit;
        g.large += large;
        if (!large && (!g.fastest || r->speed > g.fastest->speed)) g.fastest = r;
    }
    for (const plan_result *r = first; r < end && g.fastest; r++) {
        if (!same_group(t, first, r) || r->err.status || (limit > 0 && r->memory > limit)) continue;
        if (r->speed < close_enough * g.fastest->speed) continue;
        if (!g.best || is_smaller(r, g.best)) g.best = r;
    }
    return g;
}

/* "; 2 rows need more, 1 has no plan" */
static void name_rest(const group *g, int64_t limit, char *text, size_t size) {
    char bytes[TRAIN_BYTES_TEXT];
    size_t used = 0;
    text[0] = '\0';
    if (g->large)
        used = (size_t)snprintf(text, size, "; %d row%s more than %s", g->large, g->large == 1 ? " needs" : "s need",
                                train_bytes_text(limit, bytes));
    if (g->failed && used < size)
        (void)snprintf(text + used, size - used, "; %d row%s no plan", g->failed, g->failed == 1 ? " has" : "s have");
}

static void advise_group(const plan_table *t, const group *g, const plan_result *first, int64_t limit,
                         char line[LINE]) {
    char who[120], best[80], fastest[80], rest[96], bytes[TRAIN_BYTES_TEXT], more[TRAIN_BYTES_TEXT], memory[64] = "";
    char gain[160] = "";
    name_group(t, first, who, sizeof who);
    name_rest(g, limit, rest, sizeof rest);
    if (!g->best) {
        if (g->least) name_choice(t, g->least, best, sizeof best);
        (void)snprintf(line, LINE, "%snone%s%s%s%s", who, rest, g->least ? "; the least is " : "",
                       g->least ? train_bytes_text(g->least->memory, bytes) : "", g->least ? " per rank" : "");
        return;
    }
    name_choice(t, g->best, best, sizeof best);
    if (g->best->memory >= 0)
        (void)snprintf(memory, sizeof memory, ", %s per rank", train_bytes_text(g->best->memory, bytes));
    if (g->fastest->speed > 1.00005 * g->best->speed) {
        name_choice(t, g->fastest, fastest, sizeof fastest);
        (void)snprintf(gain, sizeof gain, "; %s is %.2f %% faster%s%s", fastest,
                       100 * (g->fastest->speed / g->best->speed - 1), g->fastest->memory >= 0 ? " with " : "",
                       g->fastest->memory >= 0 ? train_bytes_text(g->fastest->memory, more) : "");
    }
    (void)snprintf(line, LINE, "%s%s%s: the %s within 1 %% of the fastest%s%s", who, best, memory,
                   g->best->memory >= 0 ? "least memory" : "smallest", gain, rest);
}

/* For each budget of a group of which none fits: options with which it would. Returns the lines. */
static int say_remedies(const plan_table *t, const plan_result *first, int room, plan_say say, void *user) {
    char line[LINE], choice[80], options[96], bytes[TRAIN_BYTES_TEXT];
    int lines = 0;
    for (const plan_result *r = first; r < t->results + t->count && lines < room; r++) {
        if (!same_group(t, first, r) || r->err.status) continue;
        int64_t memory = plan_model_remedy(t->data->model, &r->options, options, sizeof options);
        name_choice(t, r, choice, sizeof choice);
        if (memory >= 0)
            (void)snprintf(line, LINE, "  %s fits with%s: %s per rank", choice, options,
                           train_bytes_text(memory, bytes));
        else
            (void)snprintf(line, LINE, "  %s does not fit with --shard params, --recompute full and --tp %d either",
                           choice, 8 * t->flags->tp);
        say(user, line, 0);
        lines++;
    }
    return lines;
}

/* Speeds of different costs are not compared. */
static int has_one_cost(const plan_table *t) {
    for (int i = 1; i < t->count; i++) {
        const ravel_cost *a = &t->results[0].options.cost, *b = &t->results[i].options.cost;
        if (a->linear != b->linear || a->quadratic != b->quadratic || a->overhead != b->overhead) return 0;
    }
    return 1;
}

/* One group: its line, and what would help. Returns the lines. */
static int advise(const plan_table *t, const plan_result *first, int room, plan_say say, void *user) {
    char line[LINE];
    int64_t limit = t->data->model ? plan_model_limit(t->data->model) : 0;
    group g = look(t, first, limit);
    if (g.failed == g.rows) return 0; /* the rows say why */
    if (g.best) t->results[g.best - t->results].taken = 1;
    if (!say) return 1;
    advise_group(t, &g, first, limit, line);
    say(user, line, !g.best);
    return 1 + (!g.best && t->data->model ? say_remedies(t, first, room - 1, say, user) : 0);
}

void plan_advise(const plan_table *t, plan_say say, void *user) {
    char line[LINE];
    int lines = 0;
    if ((find_head(t, "budget") < 0 && find_head(t, "cp") < 0) || !has_one_cost(t)) return;
    for (int i = 0; i < t->count && lines < MOST_LINES; i++) {
        const plan_result *first = &t->results[i];
        int seen = 0;
        for (int j = 0; j < i && !seen; j++) seen = same_group(t, &t->results[j], first);
        if (!seen) lines += advise(t, first, MOST_LINES - lines, say, user);
    }
    if (!say || lines == 0) return;
    if (t->options->cost.overhead == 0 && find_head(t, "budget") >= 0)
        say(user,
            "A micro-step by itself costs nothing here, so small budgets look as good as large ones: --shape counts the "
            "reading of weights, --cost FILE what ravel plan --fit measured.",
            0);
    if (!t->data->model) return;
    (void)snprintf(line, LINE, "Memory per rank of ravel train: %s.", plan_model_text(t->data->model));
    say(user, line, 0);
}
