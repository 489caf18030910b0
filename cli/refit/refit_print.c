/* The output of ravel refit: text, JSON and a trace. */
#include "cli/refit/refit.h"

#include "train/model/out.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

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

static void put_report(ravel__printer *out, const ravel_refit_report *r, int last) {
    ravel__printer_format(out,
                          "  {\"version\": %" PRId64 ", \"bytes_needed\": %" PRId64 ", \"bytes_moved\": %" PRId64
                          ", \"bytes_kept\": %" PRId64 ", \"bytes_sparse\": %" PRId64
                          ", \"delta\": %d,\n   \"num_buffers\": %d, \"buffer_bytes\": %" PRId64
                          ", \"frames\": %" PRId64
                          ", \"senders\": %d, \"receivers\": %d, \"served\": %d,\n   \"seconds\": %.6f, "
                          "\"gb_per_second\": %.4f, \"overlap\": %.4f, \"peak_bytes\": %" PRId64
                          ", \"stage_bytes\": %" PRId64 ",\n   \"phases\": {",
                          r->version, r->bytes_needed, r->bytes_moved, r->bytes_kept, r->bytes_sparse, r->delta,
                          r->num_buffers, r->buffer_bytes, r->frames, r->senders, r->receivers, r->served, r->seconds,
                          r->gb_per_second, r->overlap, r->peak_most, r->stage_bytes);
    for (int32_t i = 0; i < RAVEL_REFIT_PHASES; i++) {
        char phase[16];
        (void)ravel__choice_word(RAVEL_REFIT_PHASE_NAMES, i, phase, sizeof phase);
        ravel__printer_format(out, "%s\"%s\": %.6f", i ? ", " : "", phase, r->phase_most[i]);
    }
    ravel__printer_format(out, "}}%s\n", last ? "" : ",");
}

void refit_print_json(ravel__printer *out, const void *user) {
    const refit_result *result = user;
    const refit_job *job = result->job;
    ravel__printer_string(out, "{\"input\": ");
    ravel__printer_quote(out, job->flags.from);
    ravel__printer_format(out, ", \"senders\": %d, \"send_tp\": %d, \"receivers\": %d, \"receive_tp\": %d,\n",
                          job->flags.senders, job->flags.send_tp, job->receivers, job->flags.receive_tp);
    ravel__printer_format(out, " \"compared_receivers\": %lld, \"refits\": [\n", (long long)result->compared);
    for (int64_t i = 0; i < job->flags.updates; i++) put_report(out, &result->reports[i], i == job->flags.updates - 1);
    ravel__printer_string(out, " ]}\n");
}

/* ---- trace ---------------------------------------------------------------------------------------------- */

/* Rank 0 writes its own and then what the others send. */
static ravel_status collect(ravel_comm *comm, const train_out *mine, cli_output *out, ravel_error *err) {
    ravel_status status = cli_output_write(out, mine->data, mine->used, err);
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
    train_out mine = {0};
    ravel_status status = ravel_refit_trace(refit, rank == 0, rank == ranks - 1, cli_output_keep, &mine, err);
    if (status == RAVEL_OK && rank > 0) {
        int64_t bytes = (int64_t)mine.used;
        status = ravel_comm_send(comm, &bytes, 1, RAVEL_I64, 0, 1, err);
        if (status == RAVEL_OK) status = ravel_comm_send(comm, mine.data, bytes, RAVEL_U8, 0, 2, err);
    } else if (status == RAVEL_OK) {
        cli_output out;
        status = cli_output_open(&out, path, err);
        if (status == RAVEL_OK) status = cli_output_close(&out, collect(comm, &mine, &out, err), err);
    }
    train_out_free(&mine);
    return status;
}
