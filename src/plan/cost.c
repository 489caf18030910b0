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

/* Multiply-adds of one token in the weight matrices of all layers, and in the LM head. Looking up an embedding costs
 * nothing. */
static ravel__u128 matrix_work(const ravel_shape *s) {
    ravel__u128 hidden = (ravel__u128)s->hidden, heads = (ravel__u128)s->heads * (ravel__u128)s->head_dim;
    ravel__u128 attention = hidden * (2 * heads + 2 * (ravel__u128)s->kv_heads * (ravel__u128)s->head_dim);
    ravel__u128 matrices = s->gated ? 3 : 2, dense = matrices * hidden * (ravel__u128)s->ffn;
    ravel__u128 layers = (ravel__u128)s->layers, dense_layers = s->experts ? (ravel__u128)s->dense_layers : layers;
    ravel__u128 active = (ravel__u128)s->experts_active * (ravel__u128)s->expert_ffn + (ravel__u128)s->shared_ffn;
    ravel__u128 sparse = matrices * hidden * active + hidden * (ravel__u128)s->experts; /* and the router */
    return layers * attention + dense_layers * dense + (layers - dense_layers) * sparse +
           hidden * (ravel__u128)s->vocab;
}

static ravel__u128 greatest_divisor(ravel__u128 a, ravel__u128 b) {
    while (b) {
        ravel__u128 rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static ravel_status check_shape(const ravel_shape *s, ravel_error *err) {
    const struct {
        const char *name;
        int64_t value, least;
    } rows[] = {{"hidden", s->hidden, 1},
                {"layers", s->layers, 1},
                {"heads", s->heads, 1},
                {"kv_heads", s->kv_heads, 1},
                {"head_dim", s->head_dim, 1},
                {"vocab", s->vocab, 1},
                {"ffn", s->ffn, 0},
                {"experts", s->experts, 0},
                {"experts_active", s->experts_active, 0},
                {"expert_ffn", s->expert_ffn, 0},
                {"shared_ffn", s->shared_ffn, 0},
                {"dense_layers", s->dense_layers, 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].value < rows[i].least || rows[i].value >= INT64_C(1) << 31)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "the shape's %s is %lld; it must be from %lld to 2^31 - 1",
                                   rows[i].name, (long long)rows[i].value, (long long)rows[i].least);
    if (s->dense_layers > s->layers)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the shape has %lld dense layers of %lld layers",
                               (long long)s->dense_layers, (long long)s->layers);
    return RAVEL_OK;
}

/* Forward, per token: 2 FLOPs a multiply-add. Causal attention of a sequence of n: scores and values, 2 FLOPs each,
 * over n^2 / 2 pairs: 2 * heads * head_dim * n^2 a layer. Backward is twice the forward in both, so it cancels. */
ravel_status ravel_cost_from_shape(const ravel_shape *shape, ravel_cost *cost, ravel_error *err) {
    ravel_status status = check_shape(shape, err);
    if (status) return status;
    ravel__u128 linear = 2 * matrix_work(shape);
    ravel__u128 quadratic = 2 * (ravel__u128)shape->layers * (ravel__u128)shape->heads * (ravel__u128)shape->head_dim;
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
