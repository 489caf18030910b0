/* The output of ravel refit: text, JSON and a trace. */
#include "cli/refit/refit.h"

#include "base/options.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void refit_print_bytes(double bytes, char *text, size_t room) {
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    int unit = 0;
    for (; bytes >= 999.5 && unit < 4; unit++) bytes /= 1000;
    RAVEL_ASSERT(unit < (int)(sizeof units / sizeof *units));
    (void)snprintf(text, room, "%.3g %s", bytes, units[unit]);
}

void refit_print_report(const ravel_refit_report *r, int64_t update) {
    const double *p = r->phase_most;
    char needed[24], moved[24], kept[24], sparse[24], buffer[24], peak[24];
    refit_print_bytes((double)r->bytes_needed, needed, sizeof needed);
    refit_print_bytes((double)r->bytes_moved, moved, sizeof moved);
    refit_print_bytes((double)r->bytes_sparse, sparse, sizeof sparse);
    refit_print_bytes((double)r->bytes_kept, kept, sizeof kept);
    refit_print_bytes((double)r->buffer_bytes, buffer, sizeof buffer);
    refit_print_bytes((double)r->peak_most, peak, sizeof peak);
    printf("version %" PRId64 ": %s needed, %s moved", update, needed, moved);
    if (r->delta) printf(", %s unchanged", kept);
    if (r->bytes_sparse > 0) printf(", %s as changed elements", sparse);
    printf(" in %.3f s: %.2f GB/s\n", r->seconds, r->gb_per_second);
    printf("  %d buffers of %s, %s per rank in all; pack %.3f s, wire %.3f s, load %.3f s, %.0f %% of the shorter two "
           "hidden\n",
           r->num_buffers, buffer, peak, p[RAVEL_REFIT_ITERATE] + p[RAVEL_REFIT_PACK], p[RAVEL_REFIT_RECEIVE],
           p[RAVEL_REFIT_VERIFY] + p[RAVEL_REFIT_LOAD], 100 * r->overlap);
}

/* ---- JSON ----------------------------------------------------------------------------------------------- */

static ravel_status put(cli_output *out, ravel_error *err, const char *format, ...) RAVEL_PRINTF(3, 4);
static ravel_status put(cli_output *out, ravel_error *err, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return cli_output_write(out, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1, err);
}

static ravel_status put_report(cli_output *out, const ravel_refit_report *r, int last, ravel_error *err) {
    ravel_status status =
        put(out, err,
            "  {\"version\": %" PRId64 ", \"bytes_needed\": %" PRId64 ", \"bytes_moved\": %" PRId64
            ", \"bytes_kept\": %" PRId64 ", \"bytes_sparse\": %" PRId64
            ", \"delta\": %d,\n   \"num_buffers\": %d, \"buffer_bytes\": %" PRId64 ", \"frames\": %" PRId64
            ", \"senders\": %d, \"receivers\": %d, \"served\": %d,\n   \"seconds\": %.6f, "
            "\"gb_per_second\": %.4f, \"overlap\": %.4f, \"peak_bytes\": %" PRId64 ", \"stage_bytes\": %" PRId64
            ",\n   \"phases\": {",
            r->version, r->bytes_needed, r->bytes_moved, r->bytes_kept, r->bytes_sparse, r->delta, r->num_buffers,
            r->buffer_bytes, r->frames, r->senders, r->receivers, r->served, r->seconds, r->gb_per_second, r->overlap,
            r->peak_most, r->stage_bytes);
    for (int32_t i = 0; i < RAVEL_REFIT_PHASES && status == RAVEL_OK; i++) {
        char phase[16];
        (void)ravel__choice_word(RAVEL_REFIT_PHASE_NAMES, i, phase, sizeof phase);
        status = put(out, err, "%s\"%s\": %.6f", i ? ", " : "", phase, r->phase_most[i]);
    }
    return status == RAVEL_OK ? put(out, err, "}}%s\n", last ? "" : ",") : status;
}

ravel_status refit_write_json(const refit_job *job, const ravel_refit_report *reports, int64_t count, int32_t compared,
                              ravel_error *err) {
    cli_output out;
    ravel_status status = cli_output_open(&out, job->flags.json, err);
    if (status != RAVEL_OK) return status;
    const char *input = job->flags.from;
    char quoted[1100];
    if (ravel__json_quote(input, strlen(input), quoted, sizeof quoted) >= sizeof quoted) (void)strcpy(quoted, "\"\"");
    status =
        put(&out, err, "{\"input\": %s, \"senders\": %d, \"send_tp\": %d, \"receivers\": %d, \"receive_tp\": %d,\n",
            quoted, job->flags.senders, job->flags.send_tp, job->receivers, job->flags.receive_tp);
    if (status == RAVEL_OK) status = put(&out, err, " \"compared_receivers\": %d, \"refits\": [\n", compared);
    for (int64_t i = 0; i < count && status == RAVEL_OK; i++)
        status = put_report(&out, &reports[i], i == count - 1, err);
    if (status == RAVEL_OK) status = put(&out, err, " ]}\n");
    return cli_output_close(&out, status, err);
}

/* ---- trace ---------------------------------------------------------------------------------------------- */

typedef struct text {
    char *bytes;
    size_t used, room;
} text;

static ravel_status keep(void *user, const char *piece, size_t bytes, ravel_error *err) {
    text *t = user;
    if (t->used + bytes > t->room) {
        size_t room = (t->room + bytes) * 2;
        char *more = realloc(t->bytes, room);
        if (!more) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory for the trace");
        t->bytes = more;
        t->room = room;
    }
    memcpy(t->bytes + t->used, piece, bytes);
    RAVEL_ASSERT(t->used + bytes <= t->room);
    t->used += bytes;
    return RAVEL_OK;
}

/* Rank 0 writes its own and then what the others send. */
static ravel_status collect(ravel_comm *comm, text *mine, cli_output *out, ravel_error *err) {
    ravel_status status = cli_output_write(out, mine->bytes, mine->used, err);
    for (int32_t r = 1; r < ravel_comm_size(comm) && status == RAVEL_OK; r++) {
        int64_t bytes = 0;
        status = ravel_comm_recv(comm, &bytes, 1, RAVEL_I64, r, 1, err);
        char *theirs = status == RAVEL_OK ? malloc((size_t)bytes + 1) : NULL;
        if (status == RAVEL_OK && !theirs) status = ravel_error_set(err, RAVEL_E_MEMORY, "out of memory for the trace");
        if (status == RAVEL_OK) status = ravel_comm_recv(comm, theirs, bytes, RAVEL_U8, r, 2, err);
        if (status == RAVEL_OK) status = cli_output_write(out, theirs, (size_t)bytes, err);
        free(theirs);
    }
    return status;
}

ravel_status refit_write_trace(ravel_comm *comm, const ravel_refit *refit, const char *path, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm), ranks = ravel_comm_size(comm);
    text mine = {0};
    ravel_status status = ravel_refit_trace(refit, rank == 0, rank == ranks - 1, keep, &mine, err);
    if (status == RAVEL_OK && rank > 0) {
        int64_t bytes = (int64_t)mine.used;
        status = ravel_comm_send(comm, &bytes, 1, RAVEL_I64, 0, 1, err);
        if (status == RAVEL_OK) status = ravel_comm_send(comm, mine.bytes, bytes, RAVEL_U8, 0, 2, err);
    } else if (status == RAVEL_OK) {
        cli_output out;
        status = cli_output_open(&out, path, err);
        if (status == RAVEL_OK) status = cli_output_close(&out, collect(comm, &mine, &out, err), err);
    }
    free(mine.bytes);
    return status;
}
