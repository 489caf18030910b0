/* The table of metrics as Markdown: what docs/metrics.md is made from. */
#include "cli/report/report.h"

#include <ravel/metrics.h>

#include <stdio.h>
#include <string.h>

static void list_group(const char *title, int32_t show, ravel__printer *out) {
    ravel__printer_format(out, "\n### %s\n\n| name | kind | unit | over ranks | what it is |\n|---|---|---|---|---|\n",
                          title);
    for (int32_t id = 0; id < RAVEL_METRICS; id++) {
        const ravel_metric *row = ravel_metric_row(id);
        if (row->show != show) continue;
        char kind[16] = "", rule[16] = "";
        (void)ravel__choice_word(RAVEL_METRIC_KIND_CHOICES, row->kind, kind, sizeof kind);
        (void)ravel__choice_word(RAVEL_METRIC_RULE_CHOICES, row->rule, rule, sizeof rule);
        ravel__printer_format(out, "| `%s` | %s | %s | %s | ", row->name, kind, row->unit, rule);
        for (const char *c = row->doc; *c; c++) { /* a bar would end the cell */
            if (*c == '|') ravel__printer_string(out, "\\");
            ravel__printer_put(out, c, 1);
        }
        ravel__printer_string(out, " |\n");
    }
}

static void list_gpus(ravel__printer *out) {
    double peak;
    ravel__printer_string(out, "\n### GPUs whose peak is known\n\n| GPU | dense bf16, TFLOP/s |\n|---|---|\n");
    for (int32_t i = 0; ravel_gpu_name(i, &peak); i++)
        ravel__printer_format(out, "| %s | %.6g |\n", ravel_gpu_name(i, NULL), peak / 1e12);
}

static void list_sinks(ravel__printer *out) {
    static const struct {
        const char *word, *target, *sentence;
    } sinks[] = {
#define X(id, word, target, sentence) {word, target, sentence},
        RAVEL_SINK_LIST(X)
#undef X
    };
    ravel__printer_string(out, "\n### Sinks\n\n| kind | target | what it writes |\n|---|---|---|\n");
    for (size_t i = 0; i < sizeof sinks / sizeof *sinks; i++)
        ravel__printer_format(out, "| `%s` | %s | %s |\n", sinks[i].word, sinks[i].target, sinks[i].sentence);
}

void report_list(ravel__printer *out, const void *unused) {
    (void)unused;
    list_group("In every run", RAVEL_SHOW_ALL, out);
    list_group("In RL runs", RAVEL_SHOW_RL, out);
    list_sinks(out);
    list_gpus(out);
}
