/* Run directories into tables of numbers.
 *
 * metrics.jsonl may be long, may end in the middle of a line (the run is still going, or was killed) and may hold an
 * update twice (a run that was resumed from an older checkpoint). A line that is no object with a step is counted and
 * left out; a step that is not above the last one throws away the rows from that step on, since the resumed run wrote
 * them again. Keys come in the same order on every line, so that the next key is nearly always the next column. */
#include "cli/report/report.h"

#include "base/system/file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_SERIES = 4096, MOST_RANKS = 65536 };

/* ---- files ---------------------------------------------------------------------------------------------- */

ravel_status report_slurp(const char *folder, const char *name, char **text, size_t *bytes, ravel_error *err) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path)
        return CLI_REFUSE(err, "the path %.60s... is too long", folder);
    if (access(path, F_OK) != 0 && errno == ENOENT)
        return ravel_error_set(err, RAVEL_E_END, "%s: there is no such file", path);
    return ravel__file_read(path, SIZE_MAX, NULL, text, bytes, err);
}

ravel_status report_slurp_any(const char *folder, const char *name, char **text, size_t *bytes, ravel_error *err) {
    ravel_error missing = RAVEL_ERROR_INIT;
    *text = NULL;
    *bytes = 0;
    ravel_status status = report_slurp(folder, name, text, bytes, &missing);
    return status == RAVEL_OK || status == RAVEL_E_END ? RAVEL_OK : ravel_error_set(err, status, "%s", missing.message);
}

int report_lines(const char *text, size_t bytes, report_line take, void *user) {
    ravel__json *doc = NULL;
    const char *end = text ? text + bytes : NULL;
    int ok = 1;
    for (const char *at = text, *newline; ok && at < end; at = newline + 1) {
        newline = memchr(at, '\n', (size_t)(end - at));
        if (!newline) break; /* not whole yet */
        int object = ravel__json_parse(at, (size_t)(newline - at), NULL, &doc, NULL) == RAVEL_OK &&
                     ravel__json_root(doc)->kind == RAVEL__JSON_OBJECT;
        ok = take(user, object ? doc : NULL, at, (size_t)(newline - at));
        cli_progress("reading", (double)(newline - text), (double)bytes);
    }
    cli_progress_end();
    ravel__json_free(doc);
    return ok;
}

/* ---- tables --------------------------------------------------------------------------------------------- */

static void free_table(report_table *t) {
    for (int64_t i = 0; i < t->count; i++) {
        free(t->series[i].name);
        free(t->series[i].values);
    }
    free(t->series);
    free(t->steps);
    free(t->busy);
    memset(t, 0, sizeof *t);
}

static int grow_column(double **values, int64_t old_room, int64_t room) {
    double *grown = realloc(*values, (size_t)room * sizeof *grown);
    RAVEL_ASSERT(room >= old_room && old_room >= 0);
    if (!grown) return 0;
    for (int64_t i = old_room; i < room; i++) grown[i] = NAN;
    *values = grown;
    return 1;
}

static int grow_rows(report_table *t) {
    int64_t room = t->room ? t->room * 2 : 256;
    RAVEL_ASSERT(t->rows == t->room);
    int64_t *steps = realloc(t->steps, (size_t)room * sizeof *steps);
    if (!steps) return 0;
    t->steps = steps;
    for (int64_t i = 0; i < t->count; i++)
        if (!grow_column(&t->series[i].values, t->room, room)) return 0;
    if (t->ranks && !grow_column(&t->busy, t->room * t->ranks, room * t->ranks)) return 0;
    t->room = room;
    return 1;
}

static report_series *add_series(report_table *t, const char *name) {
    if (t->count == MOST_SERIES) return NULL;
    if (t->count == t->series_room) {
        int64_t room = t->series_room ? t->series_room * 2 : 64;
        report_series *grown = realloc(t->series, (size_t)room * sizeof *grown);
        if (!grown) return NULL;
        t->series = grown;
        t->series_room = room;
    }
    report_series *s = &t->series[t->count];
    s->values = NULL;
    s->name = strdup(name);
    if (!s->name || !grow_column(&s->values, 0, t->room)) {
        free(s->name);
        return NULL;
    }
    t->count++;
    RAVEL_ASSERT(t->count <= t->series_room && t->count <= MOST_SERIES);
    return s;
}

/* `*next` is where the key is expected. */
static report_series *column_for(report_table *t, const char *name, int64_t *next) {
    if (*next < t->count && strcmp(t->series[*next].name, name) == 0) return &t->series[(*next)++];
    for (int64_t i = 0; i < t->count; i++)
        if (strcmp(t->series[i].name, name) == 0) {
            *next = i + 1;
            return &t->series[i];
        }
    return add_series(t, name);
}

/* Forgets the rows from `step` on. */
static void rewind_to(report_table *t, int64_t step) {
    if (t->lost_loss >= step) t->lost_loss = 0;
    while (t->rows > 0 && t->steps[t->rows - 1] >= step) {
        t->rows--;
        t->again++;
        for (int64_t i = 0; i < t->count; i++) t->series[i].values[t->rows] = NAN;
        for (int64_t r = 0; r < t->ranks; r++) t->busy[t->rows * t->ranks + r] = NAN;
    }
}

/* The ranks' busy seconds. A run that was resumed on another number of ranks keeps those of its last stretch. */
static int take_ranks(report_table *t, const ravel__json *doc, const ravel__json_node *list) {
    if (!list || list->kind != RAVEL__JSON_ARRAY || list->count < 1 || list->count > MOST_RANKS) return 1;
    if (list->count != t->ranks) {
        free(t->busy);
        t->busy = NULL;
        t->ranks = list->count;
        if (!grow_column(&t->busy, 0, t->room * t->ranks)) return 0;
    }
    RAVEL_ASSERT(t->busy && t->rows < t->room);
    double *row = t->busy + t->rows * t->ranks;
    for (const ravel__json_node *x = ravel__json_first(doc, list); x; x = ravel__json_next(doc, x), row++)
        (void)ravel__json_real(x, row);
    return 1;
}

static int take_row(report_table *t, const ravel__json *doc, int64_t step) {
    const ravel__json_node *root = ravel__json_root(doc);
    rewind_to(t, step);
    if (t->rows == t->room && !grow_rows(t)) return 0;
    RAVEL_ASSERT(t->rows < t->room && (t->rows == 0 || t->steps[t->rows - 1] < step));
    int64_t next = 0;
    for (const ravel__json_node *x = ravel__json_first(doc, root); x; x = ravel__json_next(doc, x)) {
        double value;
        if (x->kind == RAVEL__JSON_NULL && !t->lost_loss && strcmp(x->key, "train/loss") == 0) t->lost_loss = step;
        if (strcmp(x->key, "step") == 0 || !ravel__json_real(x, &value)) continue;
        report_series *s = column_for(t, x->key, &next);
        if (!s) return 0;
        s->values[t->rows] = value;
    }
    if (!take_ranks(t, doc, ravel__json_path(doc, root, "ranks.busy_sec"))) return 0;
    t->steps[t->rows++] = step;
    return 1;
}

/* A number for a row that has none: refit.jsonl may count versions instead. */
static int step_of(const ravel__json *doc, int64_t *step) {
    const ravel__json_node *root = doc ? ravel__json_root(doc) : NULL;
    return root && (ravel__json_integer(ravel__json_get(doc, root, "step"), step) ||
                    ravel__json_integer(ravel__json_get(doc, root, "version"), step));
}

static int take_line(void *user, const ravel__json *doc, const char *line, size_t bytes) {
    report_table *t = user;
    int64_t step;
    (void)line;
    t->lines++;
    if (step_of(doc, &step)) return take_row(t, doc, step);
    if (bytes && t->bad_lines++ == 0) t->first_bad = t->lines;
    return 1;
}

static ravel_status take_lines(report_table *t, char *text, size_t bytes, ravel_error *err) {
    int ok = report_lines(text, bytes, take_line, t);
    free(text);
    return ok ? RAVEL_OK : ravel_error_set(err, RAVEL_E_MEMORY, "out of memory: the run is too long to be read");
}

/* ---- runs ----------------------------------------------------------------------------------------------- */

/* A JSON file that may be missing. */
static ravel_status read_optional(const char *folder, const char *name, char **text, ravel__json **doc,
                                  ravel_error *err) {
    size_t bytes = 0;
    ravel_status status = report_slurp_any(folder, name, text, &bytes, err);
    if (status || !*text) return status;
    status = ravel__json_parse(*text, bytes, NULL, doc, err);
    if (status) ravel_error_prefix(err, "%s/%s", folder, name);
    if (!status && ravel__json_root(*doc)->kind != RAVEL__JSON_OBJECT) ravel__json_free(*doc), *doc = NULL;
    return status;
}

double report_number(const ravel__json *doc, const char *key) {
    double value = NAN;
    if (doc) (void)ravel__json_real(ravel__json_get(doc, ravel__json_root(doc), key), &value);
    return value;
}

const char *report_text(const ravel__json *doc, const char *key) {
    const ravel__json_node *node = doc ? ravel__json_get(doc, ravel__json_root(doc), key) : NULL;
    return node && node->kind == RAVEL__JSON_STRING && node->bytes ? node->as.string : NULL;
}

/* "runs/a/" -> "a" */
static void name_run(report_run *run) {
    const char *folder = run->folder;
    size_t length = strlen(folder);
    while (length > 1 && folder[length - 1] == '/') length--;
    size_t start = length;
    RAVEL_ASSERT(length >= 1 || !folder[0]);
    while (start > 0 && folder[start - 1] != '/') start--;
    (void)snprintf(run->name, sizeof run->name, "%.*s", (int)(length - start), folder + start);
}

int report_is_rl(const report_run *run) {
    return report_find(&run->metrics, "reward/mean") || report_find(&run->metrics, "eval/reward");
}

ravel_status report_read(const char *folder, report_run *run, ravel_error *err) {
    struct stat info;
    memset(run, 0, sizeof *run);
    run->folder = folder;
    name_run(run);
    if (stat(folder, &info) != 0 || !S_ISDIR(info.st_mode))
        return ravel_error_set(err, RAVEL_E_DATA, "%s: no such folder; expected a run directory", folder);
    char *text = NULL;
    size_t bytes = 0;
    ravel_status status = report_slurp(folder, "metrics.jsonl", &text, &bytes, err);
    if (!status) status = take_lines(&run->metrics, text, bytes, err);
    if (!status && run->metrics.rows == 0)
        status = ravel_error_set(err, RAVEL_E_DATA, "%s/metrics.jsonl: there is no whole update in it", folder);
    if (!status) status = report_slurp_any(folder, "refit.jsonl", &text, &bytes, err);
    if (!status && text) status = take_lines(&run->refit, text, bytes, err);
    if (!status) status = report_samples_read(folder, &run->samples, err);
    if (!status) status = report_timeline_read(folder, &run->timeline, err);
    if (!status) status = read_optional(folder, "config.json", &run->config, &run->options, err);
    if (!status) status = read_optional(folder, "environment.json", &run->environment, &run->facts, err);
    run->gpu = report_text(run->facts, "gpu") != NULL;
    if (status) report_free(run);
    return status;
}

void report_free(report_run *run) {
    free_table(&run->metrics);
    free_table(&run->refit);
    report_samples_free(&run->samples);
    report_timeline_free(&run->timeline);
    free(run->config);
    free(run->environment);
    ravel__json_free(run->options);
    ravel__json_free(run->facts);
    run->config = run->environment = NULL;
    run->options = run->facts = NULL;
}

/* Runs of the same name get their whole path; of the same path, a number. */
static void tell_apart(report_run *runs, int count) {
    for (int i = 1; i < count; i++)
        for (int k = 0; k < i; k++) {
            if (strcmp(runs[i].name, runs[k].name) != 0) continue;
            if (strcmp(runs[i].folder, runs[k].folder) == 0)
                (void)snprintf(runs[i].name, REPORT_NAME_BYTES, "%.240s #%d", runs[i].folder, i + 1);
            else
                (void)snprintf(runs[i].name, REPORT_NAME_BYTES, "%.240s", runs[i].folder);
        }
}

ravel_status report_read_all(const char *const *folders, int count, report_run *runs, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(count > 0 && count <= REPORT_RUNS_MAX);
    memset(runs, 0, (size_t)count * sizeof *runs);
    for (int i = 0; i < count && !status; i++) status = report_read(folders[i], &runs[i], err);
    if (!status) tell_apart(runs, count);
    return status;
}

void report_free_all(report_run *runs, int count) {
    for (int i = 0; i < count; i++) report_free(&runs[i]);
}

/* ---- columns -------------------------------------------------------------------------------------------- */

const report_series *report_find(const report_table *t, const char *name) {
    for (int64_t i = 0; i < t->count; i++)
        if (strcmp(t->series[i].name, name) == 0) return &t->series[i];
    return NULL;
}

double report_first(const report_table *t, const char *name) {
    const report_series *s = report_find(t, name);
    for (int64_t i = 0; s && i < t->rows; i++)
        if (!isnan(s->values[i])) return s->values[i];
    return NAN;
}

double report_last(const report_table *t, const char *name) {
    const report_series *s = report_find(t, name);
    for (int64_t i = t->rows; s && i > 0; i--)
        if (!isnan(s->values[i - 1])) return s->values[i - 1];
    return NAN;
}

double report_sum(const report_table *t, const char *name, const char *weight) {
    const report_series *s = report_find(t, name), *w = weight ? report_find(t, weight) : NULL;
    double sum = 0;
    if (!s || (weight && !w)) return 0;
    for (int64_t i = 0; i < t->rows; i++)
        if (!isnan(s->values[i]) && (!w || !isnan(w->values[i]))) sum += s->values[i] * (w ? w->values[i] : 1);
    return sum;
}
