/* Prompts, answers and rewards of a run. The file stays in memory as it is; a sample is a line of it. */
#include "cli/report/report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 300 }; /* on a page */

static int is_before(const report_sample *a, const report_sample *b) {
    return a->step < b->step || (a->step == b->step && a->sample < b->sample);
}

static int add(report_samples *s, const report_sample *item) {
    while (s->count > 0 && !is_before(&s->items[s->count - 1], item)) s->count--;
    if (s->count == s->room) {
        int64_t room = s->room ? 2 * s->room : 256;
        report_sample *grown = realloc(s->items, (size_t)room * sizeof *grown);
        if (!grown) return 0;
        s->items = grown;
        s->room = room;
    }
    s->items[s->count++] = *item;
    RAVEL_ASSERT(s->count <= s->room && (s->count == 1 || is_before(&s->items[s->count - 2], item)));
    return 1;
}

static int take_line(void *user, const ravel__json *doc, const char *line, size_t bytes) {
    report_sample item = {.line = line, .bytes = bytes};
    const ravel__json_node *root = doc ? ravel__json_root(doc) : NULL;
    if (!root || !ravel__json_integer(ravel__json_get(doc, root, "step"), &item.step)) return 1;
    (void)ravel__json_integer(ravel__json_get(doc, root, "sample"), &item.sample);
    return add(user, &item);
}

ravel_status report_samples_read(const char *folder, report_samples *samples, ravel_error *err) {
    size_t bytes = 0;
    memset(samples, 0, sizeof *samples);
    ravel_status status = report_slurp_any(folder, "samples.jsonl", &samples->text, &bytes, err);
    if (status || report_lines(samples->text, bytes, take_line, samples)) return status;
    return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory: there are too many samples");
}

void report_samples_free(report_samples *samples) {
    free(samples->text);
    free(samples->items);
    memset(samples, 0, sizeof *samples);
}

int64_t report_samples_shown(const report_samples *samples) {
    return samples->count < SHOWN ? samples->count : SHOWN;
}

const report_sample *report_samples_at(const report_samples *samples, int64_t i) {
    int64_t shown = report_samples_shown(samples);
    RAVEL_ASSERT(i >= 0 && i < shown);
    return &samples->items[shown > 1 ? i * (samples->count - 1) / (shown - 1) : 0];
}

enum { QUOTED = 80 };

/* The text of a member as a JSON string, QUOTED bytes of it at most: its beginning, or its end, where a question is. */
static void quote(const ravel__json *doc, const char *key, int end, char *out, size_t room) {
    const ravel__json_node *node = ravel__json_get(doc, ravel__json_root(doc), key);
    const char *text = node && node->kind == RAVEL__JSON_STRING ? node->as.string : "";
    size_t bytes = *text ? node->bytes : 0, from = end && bytes > QUOTED ? bytes - QUOTED : 0;
    while (from > 0 && ((unsigned char)text[from] & 0xc0) == 0x80) from++;
    bytes = bytes - from > QUOTED ? QUOTED : bytes - from;
    (void)ravel__json_quote(text + from, bytes, out, room);
}

void report_samples_last(const report_samples *samples, char *text, size_t bytes) {
    ravel__json *doc = NULL;
    char prompt[512], response[512];
    double reward = 0;
    text[0] = '\0';
    if (samples->count == 0) return;
    const report_sample *last = &samples->items[samples->count - 1];
    if (ravel__json_parse(last->line, last->bytes, NULL, &doc, NULL)) return;
    quote(doc, "prompt", 1, prompt, sizeof prompt);
    quote(doc, "response", 0, response, sizeof response);
    int known = ravel__json_real(ravel__json_get(doc, ravel__json_root(doc), "reward"), &reward);
    (void)snprintf(text, bytes, known ? "%s -> %s, reward %.4g" : "%s -> %s", prompt, response, reward);
    cli_make_printable(text);
    ravel__json_free(doc);
}
