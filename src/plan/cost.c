/* The cost model: of a length, of a sample, of a bin; and where it comes from (text, a model's shape). */
#include "plan/internal.h"

#include "base/assert.h"
#include "base/model/shape.h"
#include "base/options.h"

#include <stdlib.h>
#include <string.h>

/* ---- samples ------------------------------------------------------------------------------------------------ */

int64_t ravel__cost_of_wide(const ravel__rules *rules, int64_t length) {
    RAVEL_ASSERT(length >= 0 && rules->shift >= 0 && rules->shift < 127);
    const ravel_cost *cost = &rules->options.cost;
    ravel__u128 n = (ravel__u128)length, wide = n * (ravel__u128)cost->linear + n * n * (ravel__u128)cost->quadratic;
    return (int64_t)((wide + (((ravel__u128)1 << rules->shift) - 1)) >> rules->shift);
}

/* ---- bins --------------------------------------------------------------------------------------------------- */

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* The cost of one row of the bin's rectangle: of its width by the model, or the caller's largest. A width that has not
 * changed needs no new product. */
static int64_t row_cost(const ravel__rules *rules, const ravel__bin *bin, int64_t width_before, int64_t slot,
                        int64_t cost) {
    RAVEL_ASSERT(bin->rows >= 1 && cost >= 0);
    int64_t width = (int64_t)bin->prompt + bin->rest, each = cost;
    if (!rules->own_costs && width != slot)
        each = width == width_before ? bin->row_cost : ravel__cost_of(rules, width * rules->options.align);
    return each > bin->row_cost ? each : bin->row_cost;
}

void ravel__bin_put_padded(const ravel__rules *rules, ravel__bin *bin, uint32_t slot, uint32_t prompt, int64_t cost) {
    RAVEL_ASSERT(prompt <= slot);
    int64_t before = (int64_t)bin->prompt + bin->rest;
    bin->rows++;
    bin->prompt = larger(bin->prompt, prompt);
    bin->rest = larger(bin->rest, slot - prompt);
    bin->size = ((int64_t)bin->prompt + bin->rest) * bin->rows;
    bin->row_cost = row_cost(rules, bin, before, slot, cost);
    bin->cost = bin->row_cost * bin->rows;
}

int64_t ravel__bin_size_with(const ravel__rules *rules, const ravel__pool *pool, const ravel__bin *bin,
                             int32_t sample) {
    RAVEL_ASSERT(sample >= 0 && sample < pool->count);
    if (rules->options.layout == RAVEL_LAYOUT_PACKED) return bin->size + pool->slot[sample];
    uint32_t prompt = pool->prompt ? pool->prompt[sample] : 0;
    RAVEL_ASSERT(prompt <= pool->slot[sample]);
    int64_t width = (int64_t)larger(bin->prompt, prompt) + larger(bin->rest, pool->slot[sample] - prompt);
    return width * (bin->rows + 1);
}

int ravel__bin_fits(const ravel__rules *rules, const ravel__pool *pool, const ravel__bin *bin, int32_t sample) {
    return bin->rows < rules->most && ravel__bin_size_with(rules, pool, bin, sample) <= rules->cap;
}

void ravel__bin_collect(const ravel__rules *rules, const ravel__pool *pool, const int32_t *samples, int32_t count,
                        ravel__bin *bin) {
    RAVEL_ASSERT(count >= 0 && (samples || !count));
    memset(bin, 0, sizeof *bin);
    for (int32_t i = 0; i < count; i++) ravel__bin_add(rules, pool, bin, samples[i]);
}

/* ---- from text ---------------------------------------------------------------------------------------------- */

static ravel_status bad_cost(const char *text, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "cost \"%.60s\" is not LINEAR:QUADRATIC, LINEAR:QUADRATIC:OVERHEAD or \"tokens\", "
                           "for example 24576:1",
                           text);
}

/* Takes one number up to ':' or the end. */
static int take_number(const char **text, int64_t *value) {
    char word[32];
    size_t length = strcspn(*text, ":");
    if (length == 0 || length >= sizeof word) return 0;
    memcpy(word, *text, length);
    word[length] = '\0';
    *text += length;
    return ravel__parse_size(word, value, NULL) == RAVEL_OK && *value >= 0;
}

ravel_status ravel_cost_parse(const char *text, ravel_cost *cost, ravel_error *err) {
    ravel_cost parsed = {1, 0, 0};
    if (strcmp(text, "tokens") != 0) {
        int64_t *const fields[] = {&parsed.linear, &parsed.quadratic, &parsed.overhead};
        const char *rest = text;
        int taken = 0;
        for (; taken < 3; taken++) {
            if (!take_number(&rest, fields[taken])) return bad_cost(text, err);
            if (*rest != ':') break;
            rest++;
        }
        if (*rest || taken == 0 || taken == 3) return bad_cost(text, err);
    }
    if (parsed.linear > INT64_C(1) << 53 || parsed.quadratic > INT64_C(1) << 30 || parsed.overhead > INT64_C(1) << 53)
        return ravel_error_set(err, RAVEL_E_OVERFLOW,
                               "cost \"%.60s\" is too large: linear and overhead go to 2^53, quadratic to 2^30; only "
                               "ratios matter",
                               text);
    *cost = parsed;
    return RAVEL_OK;
}

/* ---- from a shape ------------------------------------------------------------------------------------------- */

static ravel__u128 greatest_divisor(ravel__u128 a, ravel__u128 b) {
    while (b) {
        ravel__u128 rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Scaled down by what divides both, and to a linear part of at most 2^30. */
static void set_scaled(ravel__u128 linear, ravel__u128 quadratic, ravel_cost *cost) {
    ravel__u128 divisor = greatest_divisor(linear, quadratic), most = (ravel__u128)1 << 30;
    RAVEL_ASSERT(divisor >= 1);
    linear /= divisor;
    quadratic /= divisor;
    while ((linear > most && quadratic > 1) || quadratic > most) {
        linear = (linear + 1) / 2;
        quadratic = (quadratic + 1) / 2;
    }
    while (linear > (ravel__u128)1 << 53) linear /= 2; /* not a real model: the ratio is out of range */
    *cost = (ravel_cost){(int64_t)linear, (int64_t)quadratic, 0};
}

/* Forward, per token: 2 FLOPs per weight that it is multiplied with. Causal attention of a sequence of n: 2 FLOPs per
 * pair and unit of width, over n^2 / 2 pairs. */
ravel_status ravel_cost_from_passes(const ravel_shape *shape, const ravel_passes *passes, ravel_cost *cost,
                                    ravel_error *err) {
    const int32_t given[] = {passes->layers, passes->head, passes->attention}, most = 1000000;
    ravel_status status = ravel_shape_check(shape, err);
    for (int i = 0; i < 3 && !status; i++)
        if (given[i] < 0 || given[i] > most || given[0] == 0)
            status = ravel_error_set(err, RAVEL_E_ARGUMENT,
                                     "passes of layers %d, head %d and attention %d: they must be from 0 to %d, and "
                                     "those of layers above 0",
                                     given[0], given[1], given[2], most);
    if (status) return status;
    ravel__u128 all = (ravel__u128)ravel__shape_matmul_weights(shape),
                head = (ravel__u128)shape->hidden * (ravel__u128)shape->vocab;
    RAVEL_ASSERT(all > head);
    set_scaled(2 * ((all - head) * (ravel__u128)given[0] + head * (ravel__u128)given[1]),
               (ravel__u128)ravel__shape_attention_width(shape) * (ravel__u128)given[2], cost);
    RAVEL_ASSERT(cost->linear >= 1 && cost->quadratic >= 0);
    return RAVEL_OK;
}

ravel_status ravel_cost_from_shape(const ravel_shape *shape, ravel_cost *cost, ravel_error *err) {
    return ravel_cost_from_passes(shape, &(ravel_passes){300, 300, 300}, cost, err);
}
