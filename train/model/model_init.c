/* Initial weights: a matrix is normal, a norm multiplies with 1, a bias is 0; of an adapter A is uniform and B is 0.
 * Every number is a function of seed, tensor and place in the whole tensor, so it does not depend on ranks or threads.
 * Threads fill a chunk on the host; it is uploaded whole. */
#include "train/model/model_internal.h"

#include "base/assert.h"
#include "base/model/family.h"
#include "base/system/team.h"
#include "train/kernels/host.h"

#include <math.h>
#include <string.h>

enum { CHUNK = 1 << 22 /* elements */, STEP = 256, ALONE = 1 << 18 /* fewer are not worth a thread */, THREADS = 16 };

typedef struct filling {
    const train_tensor *tensor;
    uint64_t seed;
    double deviation;   /* below 0: an adapter */
    int32_t unit_norms; /* norms multiply with 1 + weight */
    int32_t type;       /* of `out` */
    int64_t first, count;
    char *out; /* [count] */
} filling;

/* The number at `place` of the whole tensor. */
static double number_at(const filling *f, uint64_t place) {
    const train_tensor *t = f->tensor;
    uint64_t stream = (uint64_t)t->number;
    if (f->deviation >= 0) return f->deviation * train__random_normal(f->seed, stream, place);
    if (strstr(t->name, ".lora_B.")) return 0;
    return (2 * (double)train__random_unit(f->seed, stream, place) - 1) / sqrt((double)t->whole[1]);
}

static void fill(const filling *f) {
    const train_tensor *t = f->tensor;
    int is_norm = t->rank == 1 && !strstr(t->name, "bias") && !f->unit_norms;
    RAVEL_ASSERT(f->first >= 0 && f->first + f->count <= t->count && f->out);
    train_real row[STEP];
    for (int64_t done = 0; done < f->count; done += STEP) {
        int64_t count = train__min(f->count - done, STEP);
        for (int64_t i = 0; i < count; i++) {
            int64_t at = f->first + done + i, r = at / t->dims[1], c = at % t->dims[1];
            uint64_t place = (uint64_t)((t->first[0] + r) * t->whole[1] + t->first[1] + c);
            row[i] = (train_real)(is_norm ? 1 : t->rank == 2 ? number_at(f, place) : 0);
        }
        (void)ravel_dtype_convert(TRAIN__REAL, row, f->type, f->out + done * ravel_dtype_bytes(f->type), count, NULL);
    }
}

/* Part i of a chunk. */
typedef struct chunk {
    filling f;
    int32_t parts;
} chunk;

static void fill_part(void *user, int64_t i, int32_t thread) {
    const chunk *c = user;
    int64_t from = c->f.count * i / c->parts, to = c->f.count * (i + 1) / c->parts;
    filling part = c->f;
    (void)thread;
    part.first += from;
    part.count = to - from;
    part.out += from * ravel_dtype_bytes(part.type);
    fill(&part);
}

static void fill_chunk(const filling *f) {
    chunk c = {*f, f->count < ALONE ? 1 : ravel__processors(THREADS)};
    ravel__team_once(c.parts, c.parts, fill_part, &c);
}

static void init_tensor(const train_array *to, filling f, char *out) {
    const train_tensor *t = f.tensor;
    int64_t begin = t->offset, end = begin + t->count;
    size_t each = (size_t)ravel_dtype_bytes(f.type);
    if (to->shares && !train_shares_cut(to->shares, to->shares->rank, &begin, &end)) return;
    for (f.first = begin - t->offset; begin < end; begin += f.count, f.first += f.count) {
        f.count = train__min(end - begin, CHUNK);
        RAVEL_ASSERT(f.first + f.count <= t->count);
        f.out = out;
        fill_chunk(&f);
        to->kernels->upload(to->device, train_array_at(to, begin), out, (size_t)f.count * each);
    }
}

static ravel_status init_all(const train_params *params, const train_array *to, uint64_t seed, double deviation,
                             ravel_error *err) {
    filling f = {.seed = seed, .deviation = deviation, .type = to->dtype, .unit_norms = params->unit_norms};
    train__arena arena = {0};
    int64_t most = 0;
    for (int64_t i = 0; i < params->count; i++) most = train__max(most, params->tensors[i].count);
    char *out = train__arena_take_array(&arena, train__min(most, CHUNK), (size_t)ravel_dtype_bytes(f.type));
    ravel_status status = train__arena_status(&arena, "a chunk of weights", err);
    for (int64_t i = 0; i < params->count && !status; i++) {
        f.tensor = params->tensors + i;
        init_tensor(to, f, out);
    }
    train__arena_free(&arena);
    return status ? status : to->kernels->sync(to->device, err);
}

ravel_status train_params_init(const train_params *params, const train_array *to, uint64_t seed, double deviation,
                               ravel_error *err) {
    if (!(deviation >= 0)) return ravel_error_set(err, RAVEL_E_ARGUMENT, "deviation must not be negative");
    RAVEL_ASSERT(params->elements > 0 && to->data);
    return init_all(params, to, seed, params->lora.rank ? -1 : deviation > 0 ? deviation : 0.02, err);
}

ravel_status train_model_init(train_model *m, uint64_t seed, double deviation, ravel_error *err) {
    const train_array base = train_model_base_array(m), trained = train_model_array(m);
    ravel_status status = train_params_init(m->params, &base, seed, deviation, err);
    return status || !m->adapter ? status : train_params_init(m->adapter, &trained, seed, deviation, err);
}
