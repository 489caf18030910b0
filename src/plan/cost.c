/* What samples cost: from text, from a model's shape. */
#include "plan/internal.h"

#include <stdlib.h>
#include <string.h>

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
    return ravel_parse_size(word, value, NULL) == RAVEL_OK && *value >= 0;
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

/* Forward, per token: 2 FLOPs a weight that it meets. Causal attention of a sequence of n: 2 FLOPs a pair and unit of
 * width, over n^2 / 2 pairs. Backward is twice the forward in both, so it cancels. */
ravel_status ravel_cost_from_shape(const ravel_shape *shape, ravel_cost *cost, ravel_error *err) {
    ravel_status status = ravel_shape_check(shape, err);
    if (status) return status;
    ravel__u128 linear = 2 * (ravel__u128)ravel_shape_matmul_weights(shape);
    ravel__u128 quadratic = (ravel__u128)ravel_shape_attention_width(shape);
    ravel__u128 divisor = greatest_divisor(linear, quadratic), most = (ravel__u128)1 << 30;
    linear /= divisor;
    quadratic /= divisor;
    while (linear > most && quadratic > 1) {
        linear = (linear + 1) / 2;
        quadratic = (quadratic + 1) / 2;
    }
    while (linear > (ravel__u128)1 << 53) linear /= 2; /* no model: the ratio is beyond anything that matters */
    cost->linear = (int64_t)linear;
    cost->quadratic = (int64_t)quadratic;
    cost->overhead = 0;
    return RAVEL_OK;
}
