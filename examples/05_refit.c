/* Refit by example: two trainers hand new weights to two generators, over and over.
 *
 *     build/examples/05_refit                 four ranks in this process
 *     mpirun -n 4 build/examples/05_refit     four processes
 *
 * The trainers keep f32 masters cut in halves (tp 2), q, k and v apart. The generators keep whole bf16 weights with q,
 * k and v fused, two sets of them: they generate from one while the other is being filled. No rank gathers anything:
 * each trainer sends the rows that it has, once, cast on the way; the generators pass them on to each other. */
#include <ravel/refit.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRAINERS = 2, GENERATORS = 2, HIDDEN = 256, HEADS = 8, KV_HEADS = 2, HEAD = 32, VERSIONS = 3 };
enum { Q_ROWS = HEADS * HEAD, KV_ROWS = KV_HEADS * HEAD, QKV_ROWS = Q_ROWS + 2 * KV_ROWS };

/* Stands in for a training step. */
static void train(float *weights, int64_t count, int64_t version) {
    for (int64_t i = 0; i < count; i++) weights[i] = (float)version;
}

static ravel_status trainer(ravel_comm *comm, int32_t index, ravel_error *err) {
    static const char *const names[] = {"layer.0.q", "layer.0.k", "layer.0.v"};
    const int64_t rows[] = {Q_ROWS, KV_ROWS, KV_ROWS};
    ravel_refit_tensor tensors[3];
    ravel_refit_options options;
    ravel_refit *refit = NULL;
    float *mine = calloc(QKV_ROWS / TRAINERS * HIDDEN, sizeof *mine), *at = mine;
    if (!mine) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    for (int i = 0; i < 3; i++) {
        tensors[i] = (ravel_refit_tensor){.name = names[i], .dtype = RAVEL_F32, .ndim = 2, .dims = {rows[i], HIDDEN}};
        tensors[i].parts[0] = TRAINERS; /* rows are cut in two, and this rank has one half */
        tensors[i].index[0] = index;
        tensors[i].data = at;
        at += rows[i] / TRAINERS * HIDDEN;
    }
    ravel_refit_source source = {.size = sizeof source, .tensors = tensors, .count = 3};
    ravel_refit_options_default(&options);
    options.cast = RAVEL_REFIT_NARROW;
    ravel_status status = ravel_refit_create(comm, &source, NULL, &options, &refit, err);
    for (int64_t version = 1; version <= VERSIONS && status == RAVEL_OK; version++) {
        ravel_refit_report report = {.size = sizeof report};
        train(mine, QKV_ROWS / TRAINERS * HIDDEN, version);
        status = ravel_refit_update(refit, version, &report, err);
        if (status == RAVEL_OK && index == 0)
            printf("version %lld: %lld bytes needed, %lld moved, %.2f ms\n", (long long)version,
                   (long long)report.bytes_needed, (long long)report.bytes_moved, report.seconds * 1e3);
    }
    ravel_refit_free(refit);
    free(mine);
    return status;
}

static ravel_status generator(ravel_comm *comm, ravel_error *err) {
    ravel_refit_rule rule = {.name = "layer.*.qkv",
                             .parts = "layer.*.q,layer.*.k,layer.*.v",
                             .join = RAVEL_REFIT_QKV,
                             .heads = HEADS,
                             .kv_heads = KV_HEADS};
    ravel_refit_tensor fused = {.name = "layer.0.qkv", .dtype = RAVEL_BF16, .ndim = 2, .dims = {QKV_ROWS, HIDDEN}};
    ravel_refit_options options;
    ravel_refit *refit = NULL;
    uint16_t *sets = calloc(2 * QKV_ROWS * HIDDEN, sizeof *sets);
    if (!sets) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    fused.data = sets;
    fused.spare = sets + QKV_ROWS * HIDDEN;
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &fused, .count = 1, .rules = &rule, .rule_count = 1};
    ravel_refit_options_default(&options);
    options.cast = RAVEL_REFIT_NARROW;
    ravel_status status = ravel_refit_create(comm, NULL, &sink, &options, &refit, err);
    for (int i = 0; i < VERSIONS && status == RAVEL_OK; i++) {
        status = ravel_refit_update(refit, 0, NULL, err); /* 0: the trainers' version */
        if (status != RAVEL_OK) break;
        const uint16_t *live = ravel_refit_data(refit, 0);
        double first = 0, last = 0;
        (void)ravel_dtype_load(RAVEL_BF16, &live[0], &first);
        (void)ravel_dtype_load(RAVEL_BF16, &live[QKV_ROWS * HIDDEN - 1], &last);
        printf("rank %d generates with version %lld from set %d: %g ... %g\n", ravel_comm_rank(comm),
               (long long)ravel_refit_version(refit), live != sets, first, last);
    }
    ravel_refit_free(refit);
    free(sets);
    return status;
}

static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    (void)user;
    if (ravel_comm_size(comm) <= TRAINERS)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%d ranks: two train, so it takes three or more",
                               ravel_comm_size(comm));
    return rank < TRAINERS ? trainer(comm, rank, err) : generator(comm, err);
}

int main(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    ravel_status status;
    if (strcmp(ravel_comm_auto_kind(NULL), "mpi") == 0) {
        status = ravel_comm_open("auto", NULL, &comm, &err);
        if (status == RAVEL_OK) status = work(comm, NULL, &err);
        ravel_comm_free(comm);
    } else {
        status = ravel_threads_run(TRAINERS + GENERATORS, NULL, work, NULL, &err);
    }
    if (status != RAVEL_OK) (void)fprintf(stderr, "%s\n", err.message);
    return status != RAVEL_OK;
}
