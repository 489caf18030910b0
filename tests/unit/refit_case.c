#include "tests/unit/refit_case.h"

#include <stdlib.h>

int32_t case_ranks(const refit_case *c) {
    return c->both ? c->senders : c->senders + c->receivers;
}

int32_t case_side_rank(const refit_case *c, int side, int32_t rank) {
    if (c->both) return rank;
    if (side == 0) return rank < c->senders ? rank : -1;
    return rank >= c->senders ? rank - c->senders : -1;
}

static int32_t divisor_of(ravel__rng *rng, int32_t n) {
    int32_t d;
    do d = (int32_t)ravel__rng_below(rng, (uint64_t)n) + 1;
    while (n % d != 0);
    return d;
}

static int32_t random_float(ravel__rng *rng) {
    static const int32_t floats[] = {RAVEL_F32, RAVEL_BF16, RAVEL_F16, RAVEL_F64};
    return floats[ravel__rng_below(rng, 4)];
}

static void random_tensor(case_tensor *t, int32_t index, ravel__rng *rng, int cast) {
    static const int32_t others[] = {RAVEL_U8, RAVEL_I32, RAVEL_I64, RAVEL_F8_E4M3};
    (void)snprintf(t->name, sizeof t->name, "layers.%d.w%d", index / 3, index);
    t->ndim = (int32_t)ravel__rng_below(rng, 4);
    for (int32_t d = 0; d < t->ndim; d++) t->dims[d] = (int64_t)ravel__rng_below(rng, 24) + (d == 0 ? 1 : 2);
    if (ravel__rng_below(rng, 12) == 0 && t->ndim > 0) t->dims[0] = 0;
    if (ravel__rng_below(rng, 10) == 0 && t->ndim == 2) t->dims[0] = 400; /* larger than a small buffer */
    t->dtype[0] = t->dtype[1] = ravel__rng_below(rng, 3) ? random_float(rng) : others[ravel__rng_below(rng, 4)];
    if (cast && ravel_dtype_kind(t->dtype[0]) == 'f' && ravel_dtype_bytes(t->dtype[0]) > 1)
        t->dtype[1] = random_float(rng);
    for (int side = 0; side < 2; side++) t->dim[side] = (int32_t)ravel__rng_below(rng, (uint64_t)t->ndim + 1) - 1;
}

void case_random(refit_case *c, ravel__rng *rng) {
    memset(c, 0, sizeof *c);
    ravel_refit_options *o = &c->options;
    ravel_refit_options_default(o);
    c->both = ravel__rng_below(rng, 5) == 0;
    c->senders = (int32_t)ravel__rng_below(rng, 4) + 1;
    c->receivers = c->both ? c->senders : (int32_t)ravel__rng_below(rng, 5) + 1;
    c->tp[0] = divisor_of(rng, c->senders);
    c->tp[1] = divisor_of(rng, c->receivers);
    o->cast = (int32_t)ravel__rng_below(rng, 2);
    o->stage = (int32_t)ravel__rng_below(rng, 3);
    o->delta = ravel__rng_below(rng, 3) == 0;
    o->sparse = (int32_t)ravel__rng_below(rng, 2);
    o->delta_block = 256 << ravel__rng_below(rng, 4);
    if (ravel__rng_below(rng, 2)) o->threads = 1 + (int32_t)ravel__rng_below(rng, 4);
    o->audit = (int32_t)ravel__rng_below(rng, 2);
    o->num_buffers = (int32_t)ravel__rng_below(rng, 3) + 1;
    o->buffer_bytes = 4096 + 512 * (int64_t)ravel__rng_below(rng, 12);
    c->count = (int32_t)ravel__rng_below(rng, CASE_TENSORS) + 1;
    for (int32_t i = 0; i < c->count; i++) random_tensor(&c->tensors[i], i, rng, o->cast);
}

void case_for_nccl(refit_case *c) {
    if (c->options.stage == RAVEL_REFIT_UNDO) c->options.stage = RAVEL_REFIT_SPARE;
    c->options.delta = 0;
    for (int32_t i = 0; i < c->count; i++) {
        int32_t *d = c->tensors[i].dtype;
        int wide = ravel_dtype_bytes(d[0]) == 8 || ravel_dtype_bytes(d[1]) == 8;
        if (wide || ravel_dtype_bytes(d[0]) == ravel_dtype_bytes(d[1])) d[1] = d[0];
    }
}

/* Neighbouring ranks are of one tensor-parallel group on the senders, and of one replica set on the receivers. */
static int32_t part_of(const refit_case *c, int side, int32_t side_rank) {
    int32_t n = side ? c->receivers : c->senders, replicas = n / c->tp[side];
    return side ? side_rank / replicas : side_rank % c->tp[side];
}

bool case_side_make(const refit_case *c, int side, int32_t rank, int spare, case_side *out) {
    int32_t part = part_of(c, side, case_side_rank(c, side, rank));
    memset(out, 0, sizeof *out);
    out->count = c->count;
    for (int32_t i = 0; i < c->count; i++) {
        const case_tensor *t = &c->tensors[i];
        ravel_refit_tensor *x = &out->tensors[i];
        *x = (ravel_refit_tensor){.name = t->name, .dtype = t->dtype[side], .ndim = t->ndim};
        memcpy(x->dims, t->dims, sizeof t->dims);
        if (t->dim[side] >= 0) {
            x->parts[t->dim[side]] = c->tp[side];
            x->index[t->dim[side]] = part;
        }
        int64_t count = 1;
        for (int32_t d = 0; d < t->ndim; d++) {
            int64_t parts = x->parts[d] ? x->parts[d] : 1;
            count *= t->dims[d] * (x->index[d] + 1) / parts - t->dims[d] * x->index[d] / parts;
        }
        out->elements[i] = count;
        size_t bytes = (size_t)(count > 0 ? count : 1) * (size_t)ravel_dtype_bytes(x->dtype);
        x->data = calloc(1, bytes);
        x->spare = spare ? calloc(1, bytes) : NULL;
        if (!x->data || (spare && !x->spare)) return false;
    }
    return true;
}

void case_side_free(case_side *side) {
    for (int64_t i = 0; i < side->count; i++) {
        free(side->tensors[i].data);
        free(side->tensors[i].spare);
    }
    side->count = 0;
}

/* A small whole number that every dtype holds exactly, of the element's place in the whole tensor. Every fourth tensor
 * changes only every other version, and of every other fourth one in 64 elements per version, so that there is something for
 * delta to find. */
static double truth(int64_t tensor, int64_t element, int64_t version) {
    if (tensor % 4 == 3) version /= 2;
    if (tensor % 4 == 1 && ravel__mix64((uint64_t)element) % 64 > 0) version = 0;
    uint64_t x = ravel__mix64((uint64_t)tensor * 1000003u + (uint64_t)element * 31u + ravel__mix64((uint64_t)version));
    return (double)(x % 13);
}

/* The element's number in the whole tensor. */
static int64_t global_of(const ravel_refit_tensor *t, int64_t element) {
    int64_t at[RAVEL_REFIT_DIMS], global = 0;
    for (int32_t d = t->ndim - 1; d >= 0; d--) {
        int64_t parts = t->parts[d] ? t->parts[d] : 1, start = t->dims[d] * t->index[d] / parts;
        int64_t extent = t->dims[d] * (t->index[d] + 1) / parts - start;
        at[d] = start + element % extent;
        element /= extent;
    }
    for (int32_t d = 0; d < t->ndim; d++) global = global * t->dims[d] + at[d];
    return global;
}

void case_fill(const refit_case *c, case_side *side, int64_t version) {
    for (int32_t i = 0; i < c->count; i++) {
        const ravel_refit_tensor *t = &side->tensors[i];
        char *p = t->data;
        for (int64_t e = 0; e < side->elements[i]; e++)
            (void)ravel_dtype_store(t->dtype, p + e * ravel_dtype_bytes(t->dtype), truth(i, global_of(t, e), version));
    }
}

int64_t case_wrong(const case_side *side, int64_t tensor, const void *data, int64_t version) {
    const ravel_refit_tensor *t = &side->tensors[tensor];
    const char *p = data;
    int64_t wrong = 0;
    for (int64_t e = 0; e < side->elements[tensor]; e++) {
        double value = -1;
        (void)ravel_dtype_load(t->dtype, p + e * ravel_dtype_bytes(t->dtype), &value);
        wrong += value != truth(tensor, global_of(t, e), version);
    }
    return wrong;
}

int64_t case_wrong_live(const refit_case *c, const case_side *side, const ravel_refit *refit, int64_t version) {
    int64_t wrong = 0;
    for (int32_t i = 0; i < c->count; i++) wrong += case_wrong(side, i, ravel_refit_data(refit, i), version);
    return wrong;
}

/* ---- small models ---------------------------------------------------------------------------------------- */

ravel_refit_tensor float_tensor(const char *name, float *data, int64_t count) {
    return (ravel_refit_tensor){.name = name, .dtype = RAVEL_F32, .ndim = 1, .dims = {count}, .data = data};
}

void fill_floats(float *p, int64_t count, float value) {
    for (int64_t i = 0; i < count; i++) p[i] = value + (float)(i % 7);
}

bool floats_are(const float *p, int64_t count, float value) {
    for (int64_t i = 0; i < count; i++)
        if (p[i] != value + (float)(i % 7)) return false;
    return true;
}

static ravel_status few_rank(ravel_comm *comm, void *user, ravel_error *err) {
    few_ranks *f = user;
    return f->body(comm, f, err);
}

ravel_status run_few(few_ranks *f, int32_t ranks, ravel_error *err) {
    ravel_comm_options o;
    ravel_comm_options_default(&o);
    o.timeout = 20;
    return ravel_threads_run(ranks, &o, few_rank, f, err);
}
