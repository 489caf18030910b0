#include "train/learn/pipeline.h"

#include "base/assert.h"

ravel_status train_pipeline_check(const train_pipeline *p, ravel_error *err) {
    if (p->pp < 1 || p->vpp < 1 || p->micros < 0 || (p->vpp > 1 && p->pp == 1))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "pp %d with vpp %d; virtual stages need a pipeline of 2 or more",
                               p->pp, p->vpp);
    if (p->vpp > 1 && p->micros % p->pp)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "%lld micro-batches; the interleaved schedule needs a multiple of pp, %d",
                               (long long)p->micros, p->pp);
    return RAVEL_OK;
}

int64_t train_pipeline_ops(const train_pipeline *p) {
    RAVEL_ASSERT(p->micros >= 0 && p->vpp >= 1);
    return 2 * p->micros * p->vpp;
}

/* Forwards of a stage before its first backward. */
static int64_t warmup(const train_pipeline *p, int32_t stage) {
    int64_t all = p->micros * p->vpp, behind = p->pp - stage - 1;
    int64_t most = p->vpp == 1 ? behind : 2 * behind + (int64_t)(p->vpp - 1) * p->pp;
    RAVEL_ASSERT(behind >= 0 && most >= behind);
    return most < all ? most : all;
}

/* The k-th forward; the k-th backward is the same with the chunks in reverse order. */
static train_op nth(const train_pipeline *p, int64_t k, int32_t backward) {
    RAVEL_ASSERT(k >= 0 && k < p->micros * p->vpp);
    if (p->vpp == 1) return (train_op){k, 0, backward};
    int64_t group = (int64_t)p->pp * p->vpp, in = k % group;
    int32_t chunk = (int32_t)(in / p->pp);
    return (train_op){k / group * p->pp + in % p->pp, backward ? p->vpp - 1 - chunk : chunk, backward};
}

train_op train_pipeline_op(const train_pipeline *p, int32_t stage, int64_t index) {
    RAVEL_ASSERT(stage >= 0 && stage < p->pp && index >= 0 && index < train_pipeline_ops(p));
    int64_t all = p->micros * p->vpp, first = warmup(p, stage), i = index - first;
    if (i < 0) return nth(p, index, 0);
    if (i < 2 * (all - first))
        return i % 2 ? nth(p, i / 2, 1) : nth(p, first + i / 2, 0); /* one forward, one backward */
    return nth(p, index - all, 1);
}

int32_t train_pipeline_flights(int32_t pp, int32_t vpp, int32_t stage, int32_t chunk) {
    train_pipeline p = {pp, vpp, 4 * (int64_t)pp};
    RAVEL_ASSERT(pp >= 1 && vpp >= 1 && chunk >= 0 && chunk < vpp);
    int32_t now = 0, most = 0;
    for (int64_t i = 0; i < train_pipeline_ops(&p); i++) {
        train_op op = train_pipeline_op(&p, stage, i);
        if (op.chunk != chunk) continue;
        now += op.backward ? -1 : 1;
        RAVEL_ASSERT(now >= 0); /* a backward follows its forward */
        if (now > most) most = now;
    }
    RAVEL_ASSERT(now == 0); /* every forward has its backward */
    return most;
}
