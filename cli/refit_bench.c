/* ravel refit --bench: synthetic weights of a model's shape, and a table over numbers and sizes of buffers. */
#include "cli/refit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LIST_MOST = 16, CASES_MOST = LIST_MOST * LIST_MOST };

typedef struct bench_case {
    int32_t buffers;
    int64_t bytes;
    ravel_refit_report best;
} bench_case;

typedef struct bench {
    refit_job *job;
    ravel_shape shape;
    int64_t layers; /* of the whole model */
    bench_case cases[CASES_MOST];
    int32_t count;
    double memcpy_gb; /* of one core, for comparison */
} bench;

/* ---- what to run ---------------------------------------------------------------------------------------- */

static ravel_status parse_list(const char *what, const char *list, int64_t least, int64_t most, int64_t *out,
                               int32_t *count, ravel_error *err) {
    *count = 0;
    for (const char *at = list; at;) {
        char word[32];
        size_t bytes = strcspn(at, ",");
        int64_t value = 0;
        if (bytes >= sizeof word || *count == LIST_MOST)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "--%s \"%.60s\": at most %d short numbers", what, list,
                                   LIST_MOST);
        memcpy(word, at, bytes);
        word[bytes] = '\0';
        if (ravel_parse_size(word, &value, err) != RAVEL_OK) {
            ravel_error_prefix(err, "--%s", what);
            return RAVEL_E_ARGUMENT;
        }
        if (value < least || value > most)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "--%s has %s; allowed is %lld to %lld", what, word,
                                   (long long)least, (long long)most);
        out[(*count)++] = value;
        at = at[bytes] ? at + bytes + 1 : NULL;
    }
    return RAVEL_OK;
}

static ravel_status make_cases(bench *b, ravel_error *err) {
    int64_t buffers[LIST_MOST], sizes[LIST_MOST];
    int32_t n = 0, m = 0;
    ravel_status status = parse_list("buffers", b->job->flags.buffers, 1, 16, buffers, &n, err);
    if (status == RAVEL_OK) status = parse_list("sizes", b->job->flags.sizes, 4096, (int64_t)1 << 40, sizes, &m, err);
    for (int32_t i = 0; i < n && status == RAVEL_OK; i++)
        for (int32_t k = 0; k < m; k++) b->cases[b->count++] = (bench_case){(int32_t)buffers[i], sizes[k], {0}};
    TRAIN_ASSERT(b->count <= CASES_MOST);
    return status;
}

static int32_t dtype_of(const refit_job *job) {
    return job->dtype >= 0 ? job->dtype : RAVEL_BF16;
}

/* Bytes that all ranks' weights take: senders once, receivers twice. */
static double weight_of(const bench *b, const ravel_shape *shape) {
    const refit_job *job = b->job;
    double copies = (double)job->flags.senders / job->flags.send_tp + 2.0 * job->receivers / job->flags.receive_tp;
    TRAIN_ASSERT(copies > 0);
    return (double)ravel_dtype_bytes(dtype_of(job)) * (double)ravel_shape_parameters(shape) * copies;
}

/* A vocabulary that takes a quarter of the room at most, and as many layers as fit. */
static void scale(bench *b) {
    double room = (double)b->job->flags.memory;
    ravel_shape bare = b->shape;
    b->layers = b->shape.layers;
    if (weight_of(b, &b->shape) <= room) return;
    for (bare.layers = 1; bare.vocab > 1024 && weight_of(b, &bare) > room / 4; bare.vocab /= 2) {}
    b->shape.vocab = bare.vocab;
    while (b->shape.layers > 1 && weight_of(b, &b->shape) > room) b->shape.layers--;
}

/* ---- one rank ------------------------------------------------------------------------------------------- */

static double memcpy_rate(const refit_set *set) {
    TRAIN_ASSERT(set->block && set->spare && set->bytes > 0);
    double best = 0;
    for (int i = 0; i < 3; i++) {
        double begin = cli_now();
        memcpy(set->spare, set->block, (size_t)set->bytes);
        double rate = (double)set->bytes / (cli_now() - begin) * 1e-9;
        if (rate > best) best = rate;
    }
    return best;
}

/* Versions go on counting over the cases, so that every update sends. */
static ravel_status run_case(bench *b, ravel_comm *comm, const refit_set *set, const refit_place *place, int32_t index,
                             ravel_error *err) {
    TRAIN_ASSERT(index >= 0 && index < b->count);
    bench_case *c = &b->cases[index];
    ravel_refit_options o = b->job->options;
    ravel_refit_source source = {.size = sizeof source, .tensors = set->tensors, .count = set->count};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = set->tensors, .count = set->count};
    ravel_refit *refit = NULL;
    o.num_buffers = c->buffers;
    o.buffer_bytes = c->bytes;
    ravel_status status =
        ravel_refit_create(comm, place->side ? NULL : &source, place->side ? &sink : NULL, &o, &refit, err);
    for (int64_t v = 0; v <= b->job->flags.updates && status == RAVEL_OK; v++) {
        ravel_refit_report report = {.size = sizeof report};
        status = ravel_refit_update(refit, v + 1, &report, err);
        if (status != RAVEL_OK || ravel_comm_rank(comm) != 0 || v == 0) continue; /* the first one touches new memory */
        if (c->best.size == 0 || report.seconds < c->best.seconds) c->best = report;
    }
    ravel_refit_free(refit);
    return status;
}

static ravel_status rank_body(ravel_comm *comm, void *user, ravel_error *err) {
    bench *b = user;
    int32_t rank = ravel_comm_rank(comm);
    refit_place place = refit_place_of(b->job, rank);
    refit_set set = {0};
    ravel_status status = refit_set_of_shape(&b->shape, dtype_of(b->job), place.tp, place.index, place.side, &set, err);
    if (status != RAVEL_OK) ravel_comm_abort(comm, err);
    for (int32_t i = 0; i < b->count && status == RAVEL_OK; i++) {
        if (rank == 0 && !b->job->flags.quiet) cli_progress("measuring", i, b->count);
        status = run_case(b, comm, &set, &place, i, err);
    }
    if (rank == 0) cli_progress_end();
    if (status == RAVEL_OK) status = ravel_comm_barrier(comm, err);
    double rate = status == RAVEL_OK && rank == b->job->flags.senders ? memcpy_rate(&set) : 0;
    if (status == RAVEL_OK) status = ravel_comm_allreduce(comm, &rate, &rate, 1, RAVEL_F64, RAVEL_MAX, err);
    if (rank == 0) b->memcpy_gb = rate;
    refit_set_free(&set);
    return status;
}

/* ---- the table ------------------------------------------------------------------------------------------ */

static void print_table(const bench *b, int under_mpi) {
    const refit_job *job = b->job;
    char bytes[24];
    refit_print_bytes((double)b->cases[0].best.bytes_needed / job->receivers, bytes, sizeof bytes);
    printf("%s", job->flags.shape);
    if (b->shape.layers < b->layers)
        printf(" with %lld of its %lld layers and a vocabulary of %lld", (long long)b->shape.layers,
               (long long)b->layers, (long long)b->shape.vocab);
    printf(", %s per receiver; %d sender%s (tp %d), %d receiver%s (tp %d), %s; memcpy %.1f GB/s\n\n", bytes,
           job->flags.senders, job->flags.senders == 1 ? "" : "s", job->flags.send_tp, job->receivers,
           job->receivers == 1 ? "" : "s", job->flags.receive_tp, under_mpi ? "processes" : "threads", b->memcpy_gb);
    printf("buffers      size  seconds     GB/s  overlap   pack s   wire s   load s  extra\n");
    for (int32_t i = 0; i < b->count; i++) {
        const ravel_refit_report *r = &b->cases[i].best;
        const double *p = r->phase_most;
        char size[24], extra[24];
        refit_print_bytes((double)r->buffer_bytes, size, sizeof size);
        refit_print_bytes((double)(r->peak_most - r->num_buffers * r->buffer_bytes), extra, sizeof extra);
        printf("%7d %9s %8.4f %8.2f %6.0f %% %8.4f %8.4f %8.4f  %s\n", r->num_buffers, size, r->seconds,
               r->gb_per_second, 100 * r->overlap, p[RAVEL_REFIT_ITERATE] + p[RAVEL_REFIT_PACK], p[RAVEL_REFIT_RECEIVE],
               p[RAVEL_REFIT_VERIFY] + p[RAVEL_REFIT_LOAD], extra);
    }
}

static ravel_status write_json(const bench *b, ravel_error *err) {
    ravel_refit_report *reports = calloc((size_t)b->count, sizeof *reports);
    if (!reports) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    for (int32_t i = 0; i < b->count; i++) reports[i] = b->cases[i].best;
    ravel_status status = refit_write_json(b->job, reports, b->count, 0, err);
    free(reports);
    return status;
}

static ravel_status prepare(bench *b, int32_t ranks, ravel_error *err) {
    ravel_status status = refit_settle(b->job, ranks, err);
    if (status == RAVEL_OK) status = ravel_shape_named(b->job->flags.shape, &b->shape, err);
    if (status == RAVEL_OK) status = make_cases(b, err);
    if (status == RAVEL_OK) scale(b);
    return status;
}

int refit_bench(refit_job *job, int under_mpi) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    bench *b = calloc(1, sizeof *b);
    if (!b) return CLI_FAILED;
    b->job = job;
    ravel_status status = under_mpi ? ravel_comm_open("auto", &job->comm, &comm, &err) : RAVEL_OK;
    int32_t ranks = comm ? ravel_comm_size(comm) : job->flags.ranks;
    int first = !comm || ravel_comm_rank(comm) == 0, usage = 0;
    if (status == RAVEL_OK) {
        status = prepare(b, ranks, &err);
        usage = status != RAVEL_OK;
    }
    if (status == RAVEL_OK)
        status = comm ? rank_body(comm, b, &err) : ravel_threads_run(ranks, &job->comm, rank_body, b, &err);
    if (status == RAVEL_OK && first && !job->flags.quiet && !job->to_stdout) print_table(b, under_mpi);
    if (status == RAVEL_OK && first && job->flags.json) status = write_json(b, &err);
    ravel_comm_free(comm);
    free(b);
    if (status == RAVEL_OK) return CLI_OK;
    if (usage) return first ? cli_usage("refit", &err) : CLI_USAGE;
    return cli_fail("refit", &err);
}
