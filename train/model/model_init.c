/* Initial weights: a matrix is normal, a norm is 1, a bias is 0. Every number is a function of seed, tensor and place
 * in the whole tensor, so it does not depend on ranks or threads. Threads fill a chunk on the host; it is uploaded whole. */
#include "train/model/model_internal.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

enum { CHUNK = 1 << 22 /* elements */, STEP = 256, ALONE = 1 << 18 /* fewer are not worth a thread */, THREADS = 16 };

typedef struct filling {
    const train_tensor *tensor;
    uint64_t seed;
    double deviation;
    int32_t type; /* of `out` */
    int64_t first, count;
    char *out; /* [count] */
} filling;

static void *fill(void *user) {
    const filling *f = user;
    const train_tensor *t = f->tensor;
    int is_norm = t->rank == 1 && !strstr(t->name, "bias");
    TRAIN_ASSERT(f->first >= 0 && f->first + f->count <= t->count && f->out);
    train_real row[STEP];
    for (int64_t done = 0; done < f->count; done += STEP) {
        int64_t count = train__min(f->count - done, STEP);
        for (int64_t i = 0; i < count; i++) {
            int64_t at = f->first + done + i, r = at / t->dims[1], c = at % t->dims[1];
            uint64_t place = (uint64_t)((t->first[0] + r) * t->whole[1] + t->first[1] + c);
            double normal = t->rank == 2 ? train__random_normal(f->seed, (uint64_t)t->number, place) : 0;
            row[i] = (train_real)(is_norm ? 1 : f->deviation * normal);
        }
        (void)ravel_dtype_convert(TRAIN__REAL, row, f->type, f->out + done * ravel_dtype_bytes(f->type), count, NULL);
    }
    return NULL;
}

static int32_t cores(void) {
    cpu_set_t set;
    int32_t count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count < THREADS ? count : THREADS;
}

/* Parts of a chunk on threads, the last one here; a part whose thread cannot be made is filled here too. */
static void fill_chunk(const filling *chunk) {
    pthread_t made[THREADS];
    filling parts[THREADS];
    int32_t threads = chunk->count < ALONE ? 1 : cores(), running = 0;
    TRAIN_ASSERT(threads >= 1 && threads <= THREADS);
    for (int32_t i = 0; i < threads; i++) {
        int64_t from = chunk->count * i / threads, to = chunk->count * (i + 1) / threads;
        parts[i] = *chunk;
        parts[i].first += from;
        parts[i].count = to - from;
        parts[i].out += from * ravel_dtype_bytes(chunk->type);
        if (i + 1 < threads && pthread_create(&made[running], NULL, fill, &parts[i]) == 0)
            running++;
        else
            (void)fill(&parts[i]);
    }
    while (running > 0) (void)pthread_join(made[--running], NULL);
    TRAIN_ASSERT(running == 0);
}

static void init_tensor(train_model *m, filling f, char *out) {
    const train_tensor *t = f.tensor;
    const train_array to = train_model_array(m);
    int64_t begin = t->offset, end = begin + t->count;
    size_t each = (size_t)ravel_dtype_bytes(f.type);
    if (to.shares && !train_shares_cut(to.shares, to.shares->rank, &begin, &end)) return;
    for (f.first = begin - t->offset; begin < end; begin += f.count, f.first += f.count) {
        f.count = train__min(end - begin, CHUNK);
        TRAIN_ASSERT(f.first + f.count <= t->count);
        f.out = out;
        fill_chunk(&f);
        m->net.kernels->upload(m->net.device, train_array_at(&to, begin), out, (size_t)f.count * each);
    }
}

ravel_status train_model_init(train_model *m, uint64_t seed, double deviation, ravel_error *err) {
    if (!(deviation >= 0)) return ravel_error_set(err, RAVEL_E_ARGUMENT, "deviation must not be negative");
    filling f = {.seed = seed, .deviation = deviation > 0 ? deviation : 0.02, .type = m->net.types.weight};
    train__arena arena = {.allocator = m->arena.allocator};
    int64_t most = 0;
    for (int64_t i = 0; i < m->params->count; i++) most = train__max(most, m->params->tensors[i].count);
    char *out = train__arena_take_array(&arena, train__min(most, CHUNK), (size_t)ravel_dtype_bytes(f.type));
    ravel_status status = train__arena_status(&arena, "a chunk of weights", err);
    for (int64_t i = 0; i < m->params->count && !status; i++) {
        f.tensor = m->params->tensors + i;
        init_tensor(m, f, out);
    }
    train__arena_free(&arena);
    return status ? status : m->net.kernels->sync(m->net.device, err);
}
