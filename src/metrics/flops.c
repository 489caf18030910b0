/* FLOPs of a packed batch in 128-bit integers. See the formula in ravel/flops.h.
 *
 * A sum that overflows stays overflowed: every step goes through `mul` and `add`, which keep a flag, and the flag is
 * checked once at the end. */
#include <ravel/flops.h>

#include "base/assert.h"

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

ravel_status ravel_flops_count(const ravel_shape *shape, const ravel_lengths_sum *sum, int64_t head_tokens,
                               ravel_recompute recompute, ravel_flops *flops, ravel_error *err) {
    ravel_status status = ravel_shape_check(shape, err);
    if (status) return status;
    if (sum->tokens < 0 || head_tokens < 0 || recompute < RAVEL_RECOMPUTE_NONE || recompute > RAVEL_RECOMPUTE_FULL)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "FLOPs of %lld tokens, %lld of them through the head, recompute %d: tokens must not be "
                               "negative and recompute must be one of " RAVEL_RECOMPUTE_CHOICES,
                               (long long)sum->tokens, (long long)head_tokens, (int)recompute);
    int64_t weights = ravel_shape_matmul_weights(shape), width = ravel_shape_attention_width(shape);
    int over = weights == INT64_MAX || width == INT64_MAX;
    u128 head_weights = (u128)shape->hidden * (u128)shape->vocab;
    RAVEL_ASSERT(over || (u128)weights >= head_weights);
    u128 pairs = (wide(sum->squares) + (u128)sum->tokens) / 2; /* L * L + L is even for every sample */
    u128 layers = mul((u128)sum->tokens, (u128)weights - head_weights, &over);
    u128 attention = mul(pairs, (u128)width, &over);
    u128 head = mul((u128)head_tokens, head_weights, &over);
    counter forward = {0, 0}, model = {0, 0}, again = {0, 0}, hardware = {0, 0};
    add(&forward, mul(2, layers, &over));
    add(&forward, mul(2, attention, &over));
    if (recompute == RAVEL_RECOMPUTE_FULL) again = forward;
    if (recompute == RAVEL_RECOMPUTE_ATTENTION) add(&again, mul(2, attention, &over));
    add(&forward, mul(2, head, &over));
    add(&model, mul(3, forward.value, &over));
    add(&hardware, model.value);
    add(&hardware, again.value);
    if (over || forward.overflow || hardware.overflow)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "the FLOPs of %lld tokens of this shape do not fit 128 bits",
                               (long long)sum->tokens);
    RAVEL_ASSERT(hardware.value >= model.value && model.value >= forward.value);
    flops->forward = narrow(forward.value);
    flops->backward = narrow(2 * forward.value);
    flops->recompute = narrow(again.value);
    flops->model = narrow(model.value);
    flops->hardware = narrow(hardware.value);
    return RAVEL_OK;
}

double ravel_flops_real(ravel_u128 count) {
    return (double)wide(count);
}

size_t ravel_flops_format(ravel_u128 count, char *text, size_t bytes) {
    char digits[40];
    size_t at = sizeof digits - 1;
    u128 rest = wide(count);
    digits[at] = '\0';
    do digits[--at] = (char)('0' + (int)(rest % 10));
    while (rest /= 10);
    RAVEL_ASSERT(at < sizeof digits - 1);
    return (size_t)snprintf(text, bytes, "%s", digits + at);
}
