/* FLOPs of a packed batch in 128-bit integers. See the formula in ravel/flops.h.
 *
 * A sum that overflows stays overflowed: every step goes through `mul` and `add`, which keep a flag, and the flag is
 * checked once at the end. */
#include <ravel/flops.h>

#include "base/assert.h"
#include "base/model/shape.h"

#include <stdio.h>

typedef unsigned __int128 u128;

typedef struct counter {
    u128 value;
    int overflow;
} counter;

static u128 wide(ravel_u128 x) {
    return (u128)x.high << 64 | x.low;
}

static ravel_u128 narrow(u128 x) {
    ravel_u128 result = {(uint64_t)(x >> 64), (uint64_t)x};
    return result;
}

static u128 mul(u128 a, u128 b, int *overflow) {
    u128 result;
    *overflow |= __builtin_mul_overflow(a, b, &result);
    return result;
}

static void add(counter *sum, u128 x) {
    sum->overflow |= __builtin_add_overflow(sum->value, x, &sum->value);
}

/* ---- sums of lengths ------------------------------------------------------------------------------------ */

/* A square below 2^62 is added as two halves of 32 bits, so that 64-bit sums carry a whole block exactly. */
void ravel_lengths_add(ravel_lengths_sum *sum, const int64_t *lengths, int64_t count) {
    int64_t tokens = 0, samples = 0, shortest = INT64_MAX, longest = 0;
    u128 squares = wide(sum->squares);
    for (int64_t i = 0; i < count;) {
        int64_t block = count - i < 4096 ? count - i : 4096;
        uint64_t low = 0, high = 0;
        for (int64_t end = i + block; i < end; i++) {
            int64_t length = lengths[i] > 0 ? lengths[i] : 0;
            uint64_t square = (uint64_t)length * (uint64_t)length;
            tokens += length;
            samples += length > 0;
            low += square & UINT32_MAX;
            high += square >> 32;
            longest = length > longest ? length : longest;
            shortest = length > 0 && length < shortest ? length : shortest;
        }
        squares += ((u128)high << 32) + low;
    }
    RAVEL_ASSERT(samples <= (count > 0 ? count : 0) && tokens >= longest && (!samples || shortest <= longest));
    ravel_lengths_sum part = {samples, tokens, {0, 0}, samples ? shortest : 0, longest};
    sum->squares = narrow(squares);
    ravel_lengths_merge(sum, &part);
}

void ravel_lengths_merge(ravel_lengths_sum *sum, const ravel_lengths_sum *other) {
    if (other->samples && (!sum->samples || other->shortest < sum->shortest)) sum->shortest = other->shortest;
    if (other->longest > sum->longest) sum->longest = other->longest;
    sum->samples += other->samples;
    sum->tokens += other->tokens;
    sum->squares = narrow(wide(sum->squares) + wide(other->squares));
}

/* ---- operations ----------------------------------------------------------------------------------------- */

/* Multiply-adds of a forward pass. */
typedef struct products {
    u128 layers, attention, head, adapter;
    u128 below; /* of `layers`, those with the first layer's input, which depends on nothing that an adapter trains */
} products;

static products products_of(const ravel_shape *shape, const ravel_lengths_sum *sum, int64_t head_tokens,
                            int64_t adapter, int *over) {
    int64_t weights = ravel__shape_matmul_weights(shape), width = ravel__shape_attention_width(shape);
    u128 tokens = (u128)sum->tokens, head = (u128)shape->hidden * (u128)shape->vocab;
    u128 heads = shape->kv_rank ? 0 : (u128)shape->heads + 2 * (u128)shape->kv_heads;
    u128 pairs = (wide(sum->squares) + tokens) / 2; /* L * L + L is even for every sample */
    *over = weights == INT64_MAX || width == INT64_MAX;
    RAVEL_ASSERT(*over || (u128)weights >= head);
    return (products){.layers = mul(tokens, (u128)weights - head, over),
                      .attention = mul(pairs, (u128)width, over),
                      .head = mul((u128)head_tokens, head, over),
                      .adapter = mul(tokens, (u128)adapter, over),
                      .below = *over ? 0 : tokens * heads * (u128)shape->head_dim * (u128)shape->hidden};
}

/* Products with frozen weights are made once in backward, for the gradient of their input. */
static counter backward_of(const products *p, int *over) {
    u128 twice = p->attention + p->adapter, once = p->layers + p->head;
    counter sum = {0, 0};
    RAVEL_ASSERT(p->below <= p->layers || *over);
    add(&sum, mul(4, twice, over));
    add(&sum, p->adapter ? mul(2, once - p->below, over) : mul(4, once, over));
    return sum;
}

ravel_status ravel_flops_adapted(const ravel_shape *shape, const ravel_lengths_sum *sum, int64_t head_tokens,
                                 int64_t adapter, ravel_recompute recompute, ravel_flops *flops, ravel_error *err) {
    int over;
    ravel_status status = ravel_shape_check(shape, err);
    if (status) return status;
    if (sum->tokens < 0 || head_tokens < 0 || adapter < 0 || recompute < RAVEL_RECOMPUTE_NONE ||
        recompute > RAVEL_RECOMPUTE_FULL)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "FLOPs of %lld tokens, %lld of them through the head, an adapter of %lld weights, "
            "recompute %d: no number may be negative and recompute must be one of " RAVEL_RECOMPUTE_CHOICES,
            (long long)sum->tokens, (long long)head_tokens, (long long)adapter, (int)recompute);
    const products p = products_of(shape, sum, head_tokens, adapter, &over);
    counter forward = {0, 0}, again = {0, 0}, model = {0, 0};
    add(&forward, mul(2, p.layers + p.adapter, &over));
    add(&forward, mul(2, p.attention, &over));
    if (recompute == RAVEL_RECOMPUTE_FULL) again = forward;
    if (recompute == RAVEL_RECOMPUTE_ATTENTION) add(&again, mul(2, p.attention, &over));
    add(&forward, mul(2, p.head, &over));
    const counter backward = backward_of(&p, &over);
    add(&model, forward.value);
    add(&model, backward.value);
    counter hardware = model;
    add(&hardware, again.value);
    if (over || forward.overflow || backward.overflow || hardware.overflow)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "the FLOPs of %lld tokens of this shape do not fit 128 bits",
                               (long long)sum->tokens);
    *flops = (ravel_flops){narrow(forward.value), narrow(backward.value), narrow(again.value), narrow(model.value),
                           narrow(hardware.value)};
    return RAVEL_OK;
}

ravel_status ravel_flops_count(const ravel_shape *shape, const ravel_lengths_sum *sum, int64_t head_tokens,
                               ravel_recompute recompute, ravel_flops *flops, ravel_error *err) {
    return ravel_flops_adapted(shape, sum, head_tokens, 0, recompute, flops, err);
}

double ravel_flops_real(ravel_u128 count) {
    return (double)wide(count);
}
