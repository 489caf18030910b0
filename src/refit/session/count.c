/* An update's report as metrics: the rows refit/... are of the slowest rank. */
#include <ravel/metrics.h>
#include <ravel/refit.h>

void ravel_refit_count(const ravel_refit_report *report, ravel_metrics *metrics) {
    const double *most = report->phase_most;
    const struct {
        int32_t row;
        double value;
    } rows[] = {{RAVEL_METRIC_REFIT_TOTAL, report->seconds},
                {RAVEL_METRIC_REFIT_ITERATE, most[RAVEL_REFIT_ITERATE]},
                {RAVEL_METRIC_REFIT_PACK, most[RAVEL_REFIT_PACK]},
                {RAVEL_METRIC_REFIT_SEND, most[RAVEL_REFIT_SEND]},
                {RAVEL_METRIC_REFIT_RECEIVE, most[RAVEL_REFIT_RECEIVE]},
                {RAVEL_METRIC_REFIT_LOAD, most[RAVEL_REFIT_VERIFY] + most[RAVEL_REFIT_LOAD]},
                {RAVEL_METRIC_REFIT_COMMIT, most[RAVEL_REFIT_VOTE]},
                {RAVEL_METRIC_REFIT_OVERLAP, report->overlap},
                {RAVEL_METRIC_REFIT_RATE, report->gb_per_second}};
    (void)ravel_metrics_count(metrics, RAVEL_METRIC_REFIT_BYTES_NEEDED, report->bytes_needed);
    (void)ravel_metrics_count(metrics, RAVEL_METRIC_REFIT_BYTES_MOVED, report->bytes_moved);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        (void)ravel_metrics_add(metrics, rows[i].row, rows[i].value, 1);
}
