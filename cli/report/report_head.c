/* The headline of a run: what was trained on what, from what to what, in how long and on how many ranks. */
#include "cli/report/report.h"

#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The last part of a path; of a checkpoint, the name of its run: "runs/a/checkpoints/step-00000200" -> "a". */
static void name_of(const char *path, char *out, size_t room) {
    const char *checkpoints = strstr(path, "/checkpoints/");
    size_t length = checkpoints ? (size_t)(checkpoints - path) : strlen(path);
    while (length > 1 && path[length - 1] == '/') length--;
    size_t start = length;
    while (start > 0 && path[start - 1] != '/') start--;
    (void)snprintf(out, room, "%.*s", (int)(length - start), path + start);
}

static void add(char *out, size_t room, const char *a, const char *b) {
    size_t used = strlen(out);
    (void)snprintf(out + used, room - used, "%s%s", a, b);
}

static void describe_model(const ravel__json *options, char *out, size_t room) {
    char name[200] = "";
    const char *model = report_text(options, "model"), *shape = report_text(options, "shape");
    if (model || shape) name_of(model ? model : shape, name, sizeof name);
    if (report_number(options, "lora-rank") > 0)
        add(out, room, " of an adapter for ", name);
    else if (model)
        add(out, room, " of ", name);
    else if (shape)
        add(out, room, " of a new ", name);
    else
        add(out, room, " of a new byte model", "");
}

static void describe_data(const ravel__json *options, char *out, size_t room) {
    char name[200];
    const char *data = report_text(options, "data"), *task = report_text(options, "task");
    if (data && strchr(data, ' ')) {
        int files = 1;
        for (const char *c = data; *c; c++) files += *c == ' ' && c > data && c[-1] != '\\';
        (void)snprintf(name, sizeof name, "%d files", files);
        if (files == 1) name_of(data, name, sizeof name);
        add(out, room, " on ", name);
    } else if (data) {
        name_of(data, name, sizeof name);
        add(out, room, " on ", name);
    } else if (task) {
        add(out, room, " on the task ", task);
    } else if (report_text(options, "mock")) {
        add(out, room, " on mock data", "");
    }
}

static void describe(const report_run *run, char *out, size_t room) {
    const ravel__json *options = run->options;
    const char *kind = report_text(options, "kind");
    if (kind && strcmp(kind, "sft") == 0)
        (void)snprintf(out, room, "Fine-tuning");
    else if (kind && strcmp(kind, "dpo") == 0)
        (void)snprintf(out, room, "Preference training");
    else if (kind && strcmp(kind, "grpo") == 0)
        (void)snprintf(out, room, "Reinforcement learning");
    else
        (void)snprintf(out, room, "Run %s", run->name);
    if (!kind) return;
    describe_model(options, out, room);
    describe_data(options, out, room);
}

/* What the run is judged by: an evaluation where it was measured twice, else what it was trained on. */
static void describe_change(const report_run *run, char *out, size_t room) {
    static const struct {
        const char *name, *word;
    } rows[] = {{"eval/reward", "Evaluated reward"},
                {"reward/mean", "Reward"},
                {"eval/loss", "Evaluated loss"},
                {"train/token_nll", "Loss per token"},
                {"train/loss", "Loss"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const report_series *s = report_find(&run->metrics, rows[i].name);
        int64_t count = 0;
        for (int64_t r = 0; s && r < run->metrics.rows; r++) count += !isnan(s->values[r]);
        if (count < 2) continue;
        (void)snprintf(out, room, "%s %.3g to %.3g", rows[i].word, report_first(&run->metrics, rows[i].name),
                       report_last(&run->metrics, rows[i].name));
        return;
    }
}

static void describe_ranks(const report_run *run, char *out, size_t room) {
    char text[300] = "";
    double ranks = report_number(run->facts, "ranks"), generators = report_number(run->options, "generators");
    const char *machine = report_text(run->facts, run->gpu ? "gpu" : "cpu");
    if (ranks >= 1 && report_is_rl(run) && generators >= 1)
        (void)snprintf(text, sizeof text, ", on %.0f trainer%s and %.0f generator%s", ranks, ranks > 1 ? "s" : "",
                       generators, generators > 1 ? "s" : "");
    else if (ranks >= 1)
        (void)snprintf(text, sizeof text, ", on %.0f %s%s", ranks, run->gpu ? "GPU" : "rank", ranks > 1 ? "s" : "");
    if (text[0] && machine) {
        add(text, sizeof text, " (", machine);
        add(text, sizeof text, ")", "");
    }
    add(out, room, text, "");
}

void report_head(const report_run *run, report_headline *head) {
    char time[64], updates[64], text[200];
    const report_figure *of_time = report_figure_find("time"), *of_updates = report_figure_find("updates");
    RAVEL_ASSERT(of_time && of_updates);
    head->change[0] = '\0';
    describe(run, head->what, sizeof head->what);
    describe_change(run, head->change, sizeof head->change);
    double count = report_value(of_updates, &run->metrics);
    (void)report_format(of_time->style, report_value(of_time, &run->metrics), time, sizeof time);
    (void)report_format(of_updates->style, count, updates, sizeof updates);
    (void)snprintf(text, sizeof text, "%s%s update%s%s%s", head->change[0] ? " in " : "", updates,
                   count == 1 ? "" : "s", time[0] && report_value(of_time, &run->metrics) > 0 ? ", " : "",
                   report_value(of_time, &run->metrics) > 0 ? time : "");
    add(head->change, sizeof head->change, text, "");
    describe_ranks(run, head->change, sizeof head->change);
}

void report_progress(const report_run *run, char *text, size_t bytes) {
    enum { LAST = 20 }; /* updates whose mean time counts */
    const report_table *t = &run->metrics;
    double planned = report_number(run->facts, "updates"), steps = report_number(run->options, "steps");
    if (!(planned > 0)) planned = steps;
    const report_series *clock = report_find(t, "time");
    int64_t last = t->rows - 1, first = last > LAST ? last - LAST : 0;
    text[0] = '\0';
    if (planned > 0 && last >= 0) {
        char left[32] = "";
        double each =
            clock && last > first ? (clock->values[last] - clock->values[first]) / (double)(last - first) : NAN;
        (void)report_format(REPORT_SECONDS, (planned - (double)t->steps[last]) * each, left, sizeof left);
        (void)snprintf(text, bytes, "%s of %s%s%s%s", ravel__thousands(t->steps[last]).text,
                       ravel__thousands((int64_t)planned).text, left[0] ? ", " : "", left, left[0] ? " left" : "");
    }
}
