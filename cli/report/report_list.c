/* The table of metrics as Markdown: what docs/metrics.md is made from. */
#include "cli/report/report.h"

#include "base/options.h"

#include <ravel/metrics.h>

#include <stdio.h>
#include <string.h>

static ravel_status list_group(const char *title, int32_t show, cli_output *out, ravel_error *err) {
    ravel_status status = report_put(
        out, err, "\n### %s\n\n| name | kind | unit | over ranks | what it is |\n|---|---|---|---|---|\n", title);
    for (int32_t id = 0; id < RAVEL_METRICS && !status; id++) {
        const ravel_metric *row = ravel_metric_row(id);
        if (row->show != show) continue;
        char kind[16] = "", rule[16] = "", doc[512];
        (void)ravel__choice_word(RAVEL_METRIC_KIND_CHOICES, row->kind, kind, sizeof kind);
        (void)ravel__choice_word(RAVEL_METRIC_RULE_CHOICES, row->rule, rule, sizeof rule);
        size_t used = 0;
        for (const char *c = row->doc; *c && used + 3 < sizeof doc; c++) { /* a bar would end the cell */
            if (*c == '|') doc[used++] = '\\';
            doc[used++] = *c;
        }
        doc[used] = '\0';
        status = report_put(out, err, "| `%s` | %s | %s | %s | %s |\n", row->name, kind, row->unit, rule, doc);
    }
    return status;
}

static ravel_status list_gpus(cli_output *out, ravel_error *err) {
    ravel_status status =
        report_put(out, err, "\n### GPUs whose peak is known\n\n| GPU | dense bf16, TFLOP/s |\n|---|---|\n");
    double peak;
    for (int32_t i = 0; !status && ravel_gpu_name(i, &peak); i++)
        status = report_put(out, err, "| %s | %.6g |\n", ravel_gpu_name(i, NULL), peak / 1e12);
    return status;
}

static ravel_status list_sinks(cli_output *out, ravel_error *err) {
    static const struct {
        const char *word, *target, *sentence;
    } sinks[] = {
#define X(id, word, target, sentence) {word, target, sentence},
        RAVEL_SINK_LIST(X)
#undef X
    };
    ravel_status status = report_put(out, err, "\n### Sinks\n\n| kind | target | what it writes |\n|---|---|---|\n");
    for (size_t i = 0; i < sizeof sinks / sizeof *sinks && !status; i++)
        status = report_put(out, err, "| `%s` | %s | %s |\n", sinks[i].word, sinks[i].target, sinks[i].sentence);
    return status;
}

ravel_status report_list(cli_output *out, ravel_error *err) {
    ravel_status status = list_group("In every run", RAVEL_SHOW_ALL, out, err);
    if (!status) status = list_group("In RL runs", RAVEL_SHOW_RL, out, err);
    if (!status) status = list_sinks(out, err);
    return status ? status : list_gpus(out, err);
}
