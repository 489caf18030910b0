/* ravel plan --fit: a cost model from measured micro-batches, and the file of it that --cost reads.
 *
 * Measurements are JSON lines, one micro-batch (or the sum of several) each:
 *
 *     {"lengths": [812, 4096, 77], "width": 2, "seconds": 0.0312}
 *     {"tokens": 4985, "squares": 17442481, "micro_steps": 1, "seconds": 0.0299}
 *
 * or the metrics.jsonl of a run: tokens/actual, tokens/squares, batch/micro_steps, and the time of forward and
 * backward: by the GPU's events, else on the slowest rank (of the whole update where they were not measured). A row is
 * over all ranks, whose number is (batch/bins + batch/fillers) / batch/micro_steps; a rank has its share of the tokens.
 * The first update, in which memory is touched and kernels are chosen, is left out. A folder stands for its
 * metrics.jsonl. */
#include "cli/plan/plan.h"

#include "base/json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- reading ---------------------------------------------------------------------------------------------- */

/* The first of two members that is a number. */
static int number(const ravel__json *doc, const char *a, const char *b, double *value) {
    const ravel__json_node *root = ravel__json_root(doc);
    return ravel__json_real(ravel__json_get(doc, root, a), value) ||
           (b && ravel__json_real(ravel__json_get(doc, root, b), value));
}

static int add_lengths(const ravel__json *doc, ravel_cost_sample *s) {
    const ravel__json_node *list = ravel__json_get(doc, ravel__json_root(doc), "lengths");
    double length;
    if (!list || list->kind != RAVEL__JSON_ARRAY) return 0;
    for (const ravel__json_node *x = ravel__json_first(doc, list); x; x = ravel__json_next(doc, x)) {
        if (!ravel__json_real(x, &length)) return 0;
        s->tokens += length;
        s->squares += length * length;
    }
    return 1;
}

/* Forward and backward: by the GPU's events, else on the slowest rank; or the whole update. */
static int seconds_of(const ravel__json *doc, double *seconds) {
    double forward, head, backward;
    if (number(doc, "seconds", NULL, seconds)) return 1;
    if (number(doc, "gpu/forward_sec", NULL, &forward) && number(doc, "gpu/head_sec", NULL, &head) &&
        number(doc, "gpu/backward_sec", NULL, &backward)) {
        *seconds = forward + head + backward;
        return 1;
    }
    if (number(doc, "time/forward_max_sec", NULL, &forward) && number(doc, "time/backward_max_sec", NULL, &backward)) {
        *seconds = forward + backward;
        return 1;
    }
    return number(doc, "time/update_sec", NULL, seconds);
}

/* A run's row is over all ranks. */
static void take_share(const ravel__json *doc, ravel_cost_sample *s) {
    double bins, fillers = 0;
    if (!number(doc, "batch/bins", NULL, &bins) || s->micro_steps < 1) return;
    (void)number(doc, "batch/fillers", NULL, &fillers);
    double ranks = (bins + fillers) / s->micro_steps;
    if (ranks <= 1) return;
    s->tokens /= ranks;
    s->squares /= ranks;
}

/* Rows of a run that measure no update: of an evaluation, or the first one. */
static int is_left_out(const ravel__json *doc) {
    double step, value;
    if (!number(doc, "step", NULL, &step) || number(doc, "seconds", NULL, &value)) return 0;
    return step <= 1 || !number(doc, "tokens/actual", NULL, &value);
}

static ravel_status read_row(const ravel__json *doc, const char *path, long line, ravel_cost_sample *s,
                             ravel_error *err) {
    double width = 1, steps = 1;
    memset(s, 0, sizeof *s);
    int sizes = add_lengths(doc, s) || (number(doc, "tokens", "tokens/actual", &s->tokens) &&
                                        number(doc, "squares", "tokens/squares", &s->squares));
    if (!sizes)
        return ravel_error_set(
            err, RAVEL_E_DATA,
            "%s, line %ld: no \"lengths\", and no \"tokens\" with \"squares\" (the sum of squared lengths); both "
            "are needed to tell the linear from the quadratic part",
            path, line);
    if (!seconds_of(doc, &s->seconds))
        return ravel_error_set(err, RAVEL_E_DATA, "%s, line %ld: no \"seconds\"", path, line);
    (void)number(doc, "width", NULL, &width);
    (void)number(doc, "micro_steps", "batch/micro_steps", &steps);
    s->micro_steps = steps;
    take_share(doc, s);
    s->width = width >= 1 && width <= 1 << 20 ? (int32_t)width : 0;
    return RAVEL_OK;
}

static ravel_status read_rows(FILE *file, const char *path, ravel_cost_sample **samples, int64_t *count,
                              ravel_error *err) {
    char *line = NULL;
    size_t room = 0;
    ravel__json *doc = NULL;
    ravel_status status = RAVEL_OK;
    int64_t most = 0;
    ssize_t bytes;
    for (long number_of_line = 1; !status && (bytes = getline(&line, &room, file)) > 0; number_of_line++) {
        if (strspn(line, " \t\r\n") == (size_t)bytes) continue;
        if (*count == most) {
            most = most ? 2 * most : 256;
            ravel_cost_sample *grown = realloc(*samples, (size_t)most * sizeof *grown);
            if (!grown) {
                status = ravel_error_set(err, RAVEL_E_MEMORY, "out of memory for %lld measurements", (long long)most);
                break;
            }
            *samples = grown;
        }
        ravel_error inner = RAVEL_ERROR_INIT;
        status = ravel__json_parse(line, (size_t)bytes, NULL, &doc, &inner);
        if (status && line[bytes - 1] != '\n') { /* not whole: the run is still going, or was killed */
            status = RAVEL_OK;
            break;
        }
        if (status) ravel_error_set(err, status, "%s, line %ld: %s", path, number_of_line, inner.message);
        RAVEL_ASSERT(*count < most);
        if (!status && is_left_out(doc)) continue;
        if (!status) status = read_row(doc, path, number_of_line, &(*samples)[*count], err);
        if (!status) ++*count;
    }
    ravel__json_free(doc);
    free(line);
    return status;
}

/* ---- writing ---------------------------------------------------------------------------------------------- */

static void format_prices(const ravel_cost_fit *f, char *text, size_t room) {
    size_t used = 0;
    text[0] = '\0';
    for (int32_t i = 1; i < f->widths && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%d:%d", i > 1 ? "," : "", f->width[i], f->price[i]);
}

static ravel_status write_fit(const ravel_cost_fit *f, const char *path, ravel_error *err) {
    char prices[256], text[1024];
    cli_output output;
    format_prices(f, prices, sizeof prices);
    int bytes =
        snprintf(text, sizeof text,
                 "{\"ravel_cost\": 1, \"linear\": %lld, \"quadratic\": %lld, \"overhead\": %lld, \"cp_price\": "
                 "\"%s\",\n \"seconds_per_unit\": %.9g, \"samples\": %lld, \"mean_error\": %.6g, "
                 "\"worst_error\": %.6g, \"apart_error\": %.6g, \"apart_worst\": %.6g, \"far\": %lld}\n",
                 (long long)f->cost.linear, (long long)f->cost.quadratic, (long long)f->cost.overhead, prices, f->unit,
                 (long long)f->samples, f->error, f->worst_error, f->apart_error, f->apart_worst, (long long)f->far);
    RAVEL_ASSERT(bytes > 0 && (size_t)bytes < sizeof text);
    ravel_status status = cli_output_open(&output, path, err);
    if (status) return status;
    return cli_output_close(&output, cli_output_write(&output, text, (size_t)bytes, err), err);
}

static void print_fit(const ravel_cost_fit *f) {
    printf("%lld measurements: mean error %.2f %%, worst %.2f %%\n", (long long)f->samples, 100 * f->error,
           100 * f->worst_error);
    if (f->far) printf("  without %lld that are more than 25 %% off\n", (long long)f->far);
    if (f->apart_worst > 0)
        printf("  on measurements that were kept apart (every fifth, five times): mean error %.2f %%, worst %.2f %%\n",
               100 * f->apart_error, 100 * f->apart_worst);
    printf("  --cost %lld:%lld:%lld\n", (long long)f->cost.linear, (long long)f->cost.quadratic,
           (long long)f->cost.overhead);
    printf("  %.4g us per 1,000 tokens, %.4g us per 1,000 tokens squared, %.4g us per micro-step\n",
           1e9 * f->unit * (double)f->cost.linear, 1e12 * f->unit * (double)f->cost.quadratic,
           1e6 * f->unit * (double)f->cost.overhead);
    for (int32_t i = 1; i < f->widths; i++)
        printf("  width %d: %d per mille more than its share\n", f->width[i], f->price[i]);
}

/* A fit of the few that agree would be no cost of this machine. */
static ravel_status check_fit(const ravel_cost_fit *f, const char *path, ravel_error *err) {
    if (2 * f->far <= f->samples) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_DATA,
        "%.900s: %lld of %lld measurements are more than 25 %% off the best cost model, so there is none: measure "
        "with nothing else on the machine, and micro-batches of some milliseconds or more",
        path, (long long)f->far, (long long)f->samples);
}

int plan_fit(const plan_flags *flags) {
    char path[1024];
    struct stat info;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_cost_sample *samples = NULL;
    ravel_cost_fit fit;
    int64_t count = 0;
    int folder = stat(flags->fit, &info) == 0 && S_ISDIR(info.st_mode);
    (void)snprintf(path, sizeof path, "%s%s", flags->fit, folder ? "/metrics.jsonl" : "");
    FILE *file = fopen(path, "r");
    ravel_status status = file ? read_rows(file, path, &samples, &count, &err)
                               : ravel_error_set(&err, RAVEL_E_IO, "%.900s: cannot open it: %s", path, strerror(errno));
    if (file) (void)fclose(file);
    if (!status) status = ravel_cost_fit_make(samples, count, &fit, &err);
    if (!status) status = check_fit(&fit, path, &err);
    free(samples);
    if (status) return cli_fail("plan", &err);
    if (!flags->quiet && !(flags->json && strcmp(flags->json, "-") == 0)) print_fit(&fit);
    if (flags->json && write_fit(&fit, flags->json, &err)) return cli_fail("plan", &err);
    return CLI_OK;
}
