/* See pair.h. */
#include "tests/gpu/pair.h"

#include <math.h>
#include <stdlib.h>

uint32_t pair_next(pair *p) {
    uint64_t x = p->seed += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)(x >> 32);
}

int64_t pair_below(pair *p, int64_t n) {
    return (int64_t)(pair_next(p) % (uint32_t)n);
}

static float normal(pair *p) {
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(pair_next(p) & 0xffff) / 65536.0F - 0.5F;
    return sum * 1.7320508F;
}

bool pair_open(pair *p, const train_limits *limits) {
    ravel_error err = {0};
    train_device_options options = {.threads = 1};
    memset(p, 0, sizeof *p);
    p->seed = check_seed();
    ravel_status status = train_kernels_find("cuda", &p->set[CUDA_SIDE], &err);
    if (!status) status = p->set[CUDA_SIDE]->open(&options, &p->device[CUDA_SIDE], &err);
    if (status == RAVEL_E_UNSUPPORTED) check_skip(err.message);
    if (status && status != RAVEL_E_UNSUPPORTED) check_fail(__FILE__, __LINE__, "%s", err.message);
    if (status) return false;
    if (train_kernels_find("ref", &p->set[REF_SIDE], &err) ||
        p->set[REF_SIDE]->open(&options, &p->device[REF_SIDE], &err)) {
        check_fail(__FILE__, __LINE__, "%s", err.message);
        return false;
    }
    for (int side = 0; side < SIDES; side++)
        if (p->set[side]->reserve(p->device[side], limits, &err)) {
            check_fail(__FILE__, __LINE__, "%s", err.message);
            return false;
        }
    return true;
}

static int32_t type_of(const pair *p, int side, pair_kind kind) {
    const train_types *t = &p->set[side]->types;
    switch (kind) {
    case PAIR_ACTIVATION: return t->activation;
    case PAIR_WEIGHT: return t->weight;
    case PAIR_GRAD: return t->grad;
    case PAIR_INT: return RAVEL_I32;
    case PAIR_DOUBLE: return RAVEL_F64;
    default: return RAVEL_F32;
    }
}

void pair_close(pair *p) {
    ravel_error err = {0};
    for (int side = 0; side < SIDES; side++) {
        if (!p->device[side]) continue;
        if (p->set[side]->sync(p->device[side], &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
        for (int i = 0; i < p->count; i++) {
            pair_array *a = &p->arrays[i];
            size_t bytes = (size_t)a->n * (size_t)ravel_dtype_bytes(type_of(p, side, a->kind));
            p->set[side]->release(p->device[side], a->on[side], bytes);
        }
        p->set[side]->close(p->device[side]);
    }
}

static pair_array put(pair *p, const void *values, int64_t n, pair_kind kind, int32_t type) {
    pair_array a = {.n = n, .kind = kind};
    ravel_error err = {0};
    for (int side = 0; side < SIDES; side++) {
        int32_t own = type_of(p, side, kind);
        size_t bytes = (size_t)n * (size_t)ravel_dtype_bytes(own);
        void *host = malloc(bytes ? bytes : 1);
        if (type == own)
            memcpy(host, values, bytes);
        else
            (void)ravel_dtype_convert(type, values, own, host, n, &err);
        if (p->set[side]->alloc(p->device[side], bytes ? bytes : 1, &a.on[side], &err))
            check_fail(__FILE__, __LINE__, "%s", err.message);
        else
            p->set[side]->upload(p->device[side], a.on[side], host, bytes);
        free(host);
    }
    if (p->count < PAIR_ARRAYS)
        p->arrays[p->count++] = a;
    else
        check_fail(__FILE__, __LINE__, "too many arrays in one test");
    return a;
}

pair_array pair_random(pair *p, int64_t n, pair_kind kind, float scale) {
    float *values = malloc((size_t)n * sizeof *values);
    uint16_t *half = malloc((size_t)n * sizeof *half);
    ravel_error err = {0};
    for (int64_t i = 0; i < n; i++) values[i] = scale * normal(p);
    int32_t narrow = type_of(p, CUDA_SIDE, kind);
    if (narrow == RAVEL_BF16) {
        (void)ravel_dtype_convert(RAVEL_F32, values, RAVEL_BF16, half, n, &err);
        (void)ravel_dtype_convert(RAVEL_BF16, half, RAVEL_F32, values, n, &err);
    }
    pair_array a = put(p, values, n, kind, RAVEL_F32);
    free(values);
    free(half);
    return a;
}

pair_array pair_zeros(pair *p, int64_t n, pair_kind kind) {
    pair_array a;
    if (kind == PAIR_DOUBLE) {
        double *zeros = calloc((size_t)n, sizeof *zeros);
        a = put(p, zeros, n, kind, RAVEL_F64);
        free(zeros);
        return a;
    }
    float *zeros = calloc((size_t)n, sizeof *zeros);
    a = put(p, zeros, n, kind, kind == PAIR_INT ? RAVEL_I32 : RAVEL_F32);
    free(zeros);
    return a;
}

pair_array pair_ints(pair *p, const int32_t *values, int64_t n) {
    return put(p, values, n, PAIR_INT, RAVEL_I32);
}

pair_array pair_reals(pair *p, const float *values, int64_t n) {
    return put(p, values, n, PAIR_REAL, RAVEL_F32);
}

void pair_read(pair *p, const pair_array *a, int side, float *values) {
    int32_t type = type_of(p, side, a->kind);
    void *host = malloc((size_t)a->n * (size_t)ravel_dtype_bytes(type));
    ravel_error err = {0};
    p->set[side]->download(p->device[side], host, a->on[side], (size_t)a->n * (size_t)ravel_dtype_bytes(type));
    if (type == RAVEL_I32)
        for (int64_t i = 0; i < a->n; i++) values[i] = (float)((int32_t *)host)[i];
    else if (type == RAVEL_F64)
        for (int64_t i = 0; i < a->n; i++) values[i] = (float)((double *)host)[i];
    else
        (void)ravel_dtype_convert(type, host, RAVEL_F32, values, a->n, &err);
    free(host);
}

double pair_difference(pair *p, const pair_array *a) {
    float *ref = malloc((size_t)a->n * sizeof *ref), *cuda = malloc((size_t)a->n * sizeof *cuda);
    double worst = 0, squares = 0;
    pair_read(p, a, REF_SIDE, ref);
    pair_read(p, a, CUDA_SIDE, cuda);
    for (int64_t i = 0; i < a->n; i++) {
        if (isfinite(ref[i]) != isfinite(cuda[i]) || (!isfinite(ref[i]) && (ref[i] > 0) != (cuda[i] > 0))) worst = 1e9;
        if (!isfinite(ref[i]) || !isfinite(cuda[i])) continue;
        squares += (double)ref[i] * ref[i];
    }
    double size = sqrt(squares / (double)(a->n > 0 ? a->n : 1)) + 1e-12;
    for (int64_t i = 0; i < a->n; i++)
        if (isfinite(ref[i]) && isfinite(cuda[i]))
            worst = fmax(worst, fabs((double)cuda[i] - ref[i]) / (size + fabs((double)ref[i])));
    free(ref);
    free(cuda);
    return worst;
}
