/* Refit: how much of the work overlaps, how fast it is against memcpy, how much memory it takes, how many bytes move.
 *
 * Ranks are threads. The model is Qwen3-0.6B's shape with fewer layers and a smaller vocabulary, so that two or three
 * copies of it are far larger than the caches and fit any machine. Ratios are taken inside one run, best of several,
 * the sides taking turns. */
#include "bench/bench.h"

#include <ravel/refit.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TENSORS_MOST = 512, RANKS_MOST = 8, REPEATS = 9 };

/* One rank's set of tensors, in one block. */
typedef struct set {
    ravel_refit_tensor tensors[TENSORS_MOST];
    char names[TENSORS_MOST][RAVEL_REFIT_NAME_BYTES];
    int64_t count, bytes;
    char *block, *spare;
} set;

static int make_set(set *s, const ravel_shape *shape, int32_t dtype, int32_t tp, int32_t index, int spare) {
    s->count = ravel_refit_shape_tensors(shape, dtype, tp, index, s->tensors, s->names[0], TENSORS_MOST);
    s->bytes = 0;
    for (int64_t i = 0; i < s->count; i++)
        s->bytes += ravel_refit_tensor_elements(&s->tensors[i]) * ravel_dtype_bytes(dtype);
    s->block = malloc((size_t)s->bytes + 1);
    s->spare = spare ? malloc((size_t)s->bytes + 1) : NULL;
    if (s->count > TENSORS_MOST || !s->block || (spare && !s->spare)) return 0;
    memset(s->block, 1, (size_t)s->bytes);
    if (spare) memset(s->spare, 1, (size_t)s->bytes);
    int64_t at = 0;
    for (int64_t i = 0; i < s->count; i++) {
        s->tensors[i].data = s->block + at;
        s->tensors[i].spare = spare ? s->spare + at : NULL;
        at += ravel_refit_tensor_elements(&s->tensors[i]) * ravel_dtype_bytes(dtype);
    }
    return 1;
}

static void free_set(set *s) {
    free(s->block);
    free(s->spare);
}

/* ---- a run ---------------------------------------------------------------------------------------------- */

typedef struct counting {
    ravel_allocator allocator;
    _Atomic int64_t live, peak;
} counting;

static void *count_resize(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    counting *c = user;
    int64_t change = (int64_t)new_bytes - (int64_t)old_bytes, live = atomic_fetch_add(&c->live, change) + change;
    int64_t peak = atomic_load(&c->peak);
    while (live > peak && !atomic_compare_exchange_weak(&c->peak, &peak, live)) {}
    if (new_bytes) return realloc(ptr, new_bytes);
    free(ptr);
    return NULL;
}

typedef struct run {
    ravel_shape shape;
    int32_t dtype[2], senders, receivers; /* each side's tensor parallelism */
    int32_t replicas;                     /* receivers hold the whole model each */
    ravel_refit_options options;
    int32_t updates;
    double iterate_wait, load_wait; /* seconds of waiting per GB: as a device or a gather would take */
    int copies;                     /* a memcpy of the same bytes between updates, on the receiver */
    set sets[RANKS_MOST];
    counting memory[RANKS_MOST];
    ravel_refit_report best;              /* of the fastest update */
    double memcpy_seconds, cores_seconds; /* of the copies: on one core, on all */
    int64_t extra;                        /* the most that a rank took beyond N * B */
    int32_t failed;
} run;

static void wait_for(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    (void)nanosleep(&t, NULL);
}

typedef struct slow {
    const run *r;
    const set *s;
} slow;

static ravel_status slow_iterate(void *user, int64_t index, const void **data, ravel_error *err) {
    const slow *w = user;
    int64_t bytes = ravel_refit_tensor_elements(&w->s->tensors[index]) * ravel_dtype_bytes(w->r->dtype[0]);
    (void)err;
    wait_for((double)bytes * 1e-9 * w->r->iterate_wait);
    *data = w->s->tensors[index].data;
    return RAVEL_OK;
}

static ravel_status slow_load(void *user, const ravel_refit_piece *piece, ravel_error *err) {
    const slow *w = user;
    (void)err;
    wait_for((double)(piece->count * ravel_dtype_bytes(piece->dtype)) * 1e-9 * w->r->load_wait);
    return RAVEL_OK;
}

static void ignore(void *user, int64_t version) {
    (void)user;
    (void)version;
}

static double copy_set(const set *s) {
    double begin = bench_seconds();
    memcpy(s->spare, s->block, (size_t)s->bytes);
    return bench_seconds() - begin;
}

static ravel_status rank_body(ravel_comm *comm, void *user, ravel_error *err) {
    run *r = user;
    int32_t rank = ravel_comm_rank(comm), sender = rank < r->senders;
    int32_t tp = sender ? r->senders : r->replicas ? 1 : r->receivers;
    int32_t index = sender ? rank : r->replicas ? 0 : rank - r->senders;
    set *s = &r->sets[rank];
    slow w = {r, s};
    ravel_refit_options o = r->options;
    ravel_refit *refit = NULL;
    counting *memory = &r->memory[rank];
    int waits = r->load_wait > 0;
    if (!make_set(s, &r->shape, r->dtype[!sender], tp, index, !sender && !waits)) return RAVEL_E_MEMORY;
    memory->allocator = (ravel_allocator){count_resize, memory};
    o.allocator = &memory->allocator;
    ravel_refit_source source = {.size = sizeof source, .tensors = s->tensors, .count = s->count};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = s->tensors, .count = s->count};
    if (r->iterate_wait > 0) source.iterate = slow_iterate, source.user = &w;
    if (waits) sink.load = slow_load, sink.commit = sink.abort = ignore, sink.user = &w;
    ravel_status status = ravel_refit_create(comm, sender ? &source : NULL, sender ? NULL : &sink, &o, &refit, err);
    for (int32_t v = 1; v <= r->updates && status == RAVEL_OK; v++) {
        ravel_refit_report report = {.size = sizeof report};
        status = ravel_comm_barrier(comm, err);
        if (status == RAVEL_OK) status = ravel_refit_update(refit, v, &report, err);
        if (status == RAVEL_OK) status = ravel_comm_barrier(comm, err);
        if (rank != r->senders || status != RAVEL_OK) continue;
        if (v > 1 && (r->best.seconds == 0 || report.seconds < r->best.seconds)) r->best = report;
        if (!r->copies) continue;
        double one = copy_set(s), all = bench_copy(bench_cores(), s->spare, s->block, (size_t)s->bytes);
        if (v > 1 && (r->memcpy_seconds == 0 || one < r->memcpy_seconds)) r->memcpy_seconds = one;
        if (v > 1 && (r->cores_seconds == 0 || all < r->cores_seconds)) r->cores_seconds = all;
    }
    ravel_refit_free(refit);
    return status;
}

static int run_it(run *r) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = ravel_threads_run(r->senders + r->receivers, NULL, rank_body, r, &err);
    r->extra = 0;
    for (int32_t i = 0; i < r->senders + r->receivers; i++) {
        int64_t extra = atomic_load(&r->memory[i].peak) - r->best.num_buffers * r->best.buffer_bytes;
        if (extra > r->extra) r->extra = extra;
        free_set(&r->sets[i]);
    }
    if (status != RAVEL_OK) bench_note("refit: %s", err.message);
    return status == RAVEL_OK;
}

/* About `bytes` of model in bf16. */
static run *new_run(int64_t bytes) {
    run *r = calloc(1, sizeof *r);
    if (!r || ravel_shape_named("qwen3-0.6b", &r->shape, NULL) != RAVEL_OK) exit(1);
    r->shape.vocab = 32768;
    r->shape.layers = 1;
    while (2 * ravel_shape_parameters(&r->shape) < bytes && r->shape.layers < 28) r->shape.layers++;
    r->dtype[0] = r->dtype[1] = RAVEL_BF16;
    r->senders = r->receivers = 1;
    r->updates = REPEATS;
    ravel_refit_options_default(&r->options);
    return r;
}

/* ---- figures -------------------------------------------------------------------------------------------- */

BENCH(refit_speed) {
    run *r = new_run(400 << 20);
    r->copies = 1;
    if (run_it(r)) {
        double rate = (double)r->best.bytes_needed / r->best.seconds * 1e-9;
        double copy = (double)r->best.bytes_needed / r->memcpy_seconds * 1e-9;
        bench_report("refit.gb_per_second", rate, "GB/s", HIGHER, "%.0f MB bf16, 1 to 1 threads ranks, %d x %.1f MB",
                     (double)r->best.bytes_needed * 1e-6, r->best.num_buffers, (double)r->best.buffer_bytes * 1e-6);
        double cores = (double)r->best.bytes_needed / r->cores_seconds * 1e-9;
        bench_report("refit.vs_memcpy", rate / copy, "x", HIGHER, "of memcpy of the same bytes, %.2f GB/s", copy);
        bench_report("refit.collective_cores_vs_copy", rate / cores, "x", HIGHER,
                     "of memcpy on all %d cores, %.1f GB/s; default threads; each byte is copied twice", bench_cores(),
                     cores);
    }
    free(r);
}

/* The three stages of the pipeline, in seconds. */
static void stages_of(const ravel_refit_report *p, double stages[3]) {
    stages[0] = p->phase_most[RAVEL_REFIT_ITERATE] + p->phase_most[RAVEL_REFIT_PACK];
    stages[1] = p->phase_most[RAVEL_REFIT_RECEIVE];
    stages[2] = p->phase_most[RAVEL_REFIT_VERIFY] + p->phase_most[RAVEL_REFIT_LOAD];
}

/* N = 1 runs the stages one after the other, so it times each alone; N = 2 and 3 overlap them. */
static void overlap(const char *suffix, double iterate_wait, double load_wait, const char *what) {
    double alone[3] = {0}, seconds[4] = {0};
    for (int32_t n = 1; n <= 3; n++) {
        run *r = new_run(200 << 20);
        r->shape.vocab = 4096; /* no tensor so large that making it alone keeps the others waiting */
        r->options.num_buffers = n;
        r->options.buffer_bytes = 2 << 20;
        r->iterate_wait = iterate_wait;
        r->load_wait = load_wait;
        if (iterate_wait > 0) r->updates = 3;
        if (!run_it(r)) exit(1);
        seconds[n] = r->best.seconds;
        if (n == 1) stages_of(&r->best, alone);
        free(r);
    }
    double most = 0, sum = 0, fastest = seconds[2] < seconds[3] ? seconds[2] : seconds[3];
    for (int i = 0; i < 3; i++) {
        sum += alone[i];
        if (alone[i] > most) most = alone[i];
    }
    char name[64];
    (void)snprintf(name, sizeof name, "refit.time_vs_largest_phase%s", suffix);
    bench_report(name, fastest / most, "x", LOWER, "pack %.0f, wire %.0f, load %.0f ms; 2 buffers %.0f, 3 %.0f ms; %s",
                 alone[0] * 1e3, alone[1] * 1e3, alone[2] * 1e3, seconds[2] * 1e3, seconds[3] * 1e3, what);
    (void)snprintf(name, sizeof name, "refit.one_buffer_vs_n%s", suffix);
    bench_report(name, seconds[1] / fastest, "x", HIGHER, "1 buffer %.0f ms, sum of phases %.0f ms; %s",
                 seconds[1] * 1e3, sum * 1e3, what);
}

BENCH(refit_overlap) {
    overlap("", 2, 2, "iterate and load wait 2 s/GB, as for a gather and a device");
    overlap("_cpu", 0, 0, "all of it work of this machine's cores");
}

BENCH(refit_memory) {
    int64_t worst = 0;
    for (int32_t big = 0; big < 2; big++) {
        run *r = new_run(100 << 20);
        r->updates = 3;
        r->options.num_buffers = 2 + big;
        /* the embedding, 64 MiB, is ten times the smaller buffer and more */
        r->options.buffer_bytes = big ? (6 << 20) : (1 << 20);
        if (!run_it(r)) exit(1);
        if (r->extra > worst) worst = r->extra;
        free(r);
    }
    bench_report("refit.extra_bytes_over_bound", (double)worst, "bytes", LOWER,
                 "beyond N*B on the worst rank, tensor of 10 and 64 buffers; allowed: below 1 MiB");
}

BENCH(refit_reshard) {
    static const int32_t cuts[][2] = {{4, 2}, {2, 4}, {3, 2}};
    double worst = 0, seconds = 0;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        run *r = new_run(100 << 20);
        r->senders = cuts[i][0];
        r->receivers = cuts[i][1];
        r->updates = 3;
        if (!run_it(r)) exit(1);
        double ratio = (double)r->best.bytes_moved / (double)r->best.bytes_needed;
        if (ratio > worst) worst = ratio;
        seconds += r->best.seconds;
        free(r);
    }
    bench_report("refit.reshard_bytes_ratio", worst, "x", LOWER,
                 "moved / needed, tp 4 to 2, 2 to 4, 3 to 2; %.0f ms in all", seconds * 1e3);
}

BENCH(refit_broadcast) {
    run *r = new_run(100 << 20);
    r->receivers = 3;
    r->replicas = 1;
    r->updates = 5;
    if (run_it(r))
        bench_report("refit.broadcast_gb_per_second", (double)r->best.bytes_needed / r->best.seconds * 1e-9, "GB/s",
                     HIGHER, "1 to 3 receivers, all bytes that arrive; this machine's cores do all four ranks");
    free(r);
}
