#include "batch/mask.h"

#include <string.h>

ravel_status ravel__mask_init(const ravel_field *field, ravel__mask *mask, ravel_error *err) {
    memset(mask, 0, sizeof *mask);
    if (!field) return RAVEL_OK;
    mask->name = field->name ? field->name : "mask";
    if (field->kind != RAVEL_FIELD_TOKEN && field->kind != RAVEL_FIELD_NEXT && field->kind != RAVEL_FIELD_STEP)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "\"%s\": a loss mask is given per token (TOKEN, NEXT or STEP)",
                               mask->name);
    if (field->width > 1 || !field->data)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "\"%s\": a loss mask has data, and a width of 1", mask->name);
    if (!ravel_dtype_store(field->dtype, &mask->one, 1))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "\"%s\": a loss mask cannot be of dtype %d", mask->name,
                               field->dtype);
    if (ravel_dtype_kind(field->dtype) == 'f') ravel_dtype_store(field->dtype, &mask->minus, -0.0);
    mask->kind = field->kind;
    mask->element = ravel_dtype_bytes(field->dtype);
    mask->data = field->data;
    return RAVEL_OK;
}

/* Where the element of the sequence's token 1 lies. */
static const char *predictions(const ravel__mask *m, const ravel__sequence *g) {
    int64_t element = m->kind == RAVEL_FIELD_STEP ? g->offset - g->index : g->offset + 1;
    return m->data + element * m->element;
}

/* Tokens from this one on belong to the response, and can be predicted. */
static int64_t first_response(const ravel__sequence *g) {
    return g->prompt > 1 ? g->prompt : 1;
}

static uint64_t element_at(const ravel__mask *m, const char *at) {
    uint64_t bits = 0;
    memcpy(&bits, at, (size_t)m->element);
    return bits;
}

/* ---- counting ------------------------------------------------------------------------------------------- */

/* Ones, and whether anything is neither one nor zero. A minus zero is zero. */
#define COUNT(type)                                            \
    do {                                                       \
        const type one = (type)m->one, minus = (type)m->minus; \
        for (int64_t i = 0; i < count; i++) {                  \
            type x;                                            \
            memcpy(&x, at + i * (int64_t)sizeof x, sizeof x);  \
            ones += x == one;                                  \
            zeros += x == 0 || x == minus;                     \
        }                                                      \
    } while (0)

/* Bytes of 0 and 1, the usual mask: eight at a time. A product with all ones adds up the bytes of a word. */
static int64_t count_bytes(const char *at, int64_t count, int *odd) {
    const uint64_t ones_each = UINT64_C(0x0101010101010101);
    uint64_t others = 0, word;
    int64_t ones = 0, i = 0;
    for (; i + 8 <= count; i += 8) {
        memcpy(&word, at + i, sizeof word);
        others |= word & ~ones_each;
        ones += (int64_t)((word & ones_each) * ones_each >> 56);
    }
    for (; i < count; i++) {
        others |= (uint64_t)(unsigned char)at[i] & ~UINT64_C(1);
        ones += at[i] & 1;
    }
    RAVEL_ASSERT(ones <= count);
    *odd = others != 0;
    return ones;
}

static int64_t count_ones(const ravel__mask *m, const char *at, int64_t count, int *odd) {
    int64_t ones = 0, zeros = 0;
    if (m->element == 1 && m->one == 1 && m->minus == 0) return count_bytes(at, count, odd);
    switch (m->element) {
    case 1: COUNT(uint8_t); break;
    case 2: COUNT(uint16_t); break;
    case 4: COUNT(uint32_t); break;
    default: COUNT(uint64_t); break;
    }
    RAVEL_ASSERT(ones + zeros <= count); /* nothing is both */
    *odd = ones + zeros != count;
    return ones;
}

ravel_status ravel__mask_bad_value(const ravel__mask *m, int64_t sample, int64_t token, ravel_error *err) {
    return ravel_error_set(
        err, RAVEL_E_DATA,
        "\"%s\" of sample %lld, token %lld is neither 0 nor 1: a loss mask says whether a token counts; "
        "how much belongs into the loss or into sample_weights",
        m->name, (long long)sample, (long long)token);
}

static ravel_status bad_value(const ravel__mask *m, const ravel__sequence *g, ravel_error *err) {
    const char *at = predictions(m, g);
    int64_t t = 1;
    for (uint64_t bits; t < g->length; t++, at += m->element) {
        bits = element_at(m, at);
        if (bits != 0 && bits != m->one && bits != m->minus) break;
    }
    return ravel__mask_bad_value(m, g->index, t, err);
}

ravel_status ravel__mask_count(const ravel__mask *m, const ravel__sequence *g, int64_t *ones, ravel_error *err) {
    if (!m->data) {
        int64_t first = first_response(g);
        *ones = g->length > first ? g->length - first : 0;
        return RAVEL_OK;
    }
    int odd = 0;
    int64_t found = count_ones(m, predictions(m, g), g->length - 1, &odd);
    RAVEL_ASSERT(g->index >= 0 && found >= 0 && found < g->length);
    if (odd) return bad_value(m, g, err);
    *ones = found;
    return RAVEL_OK;
}

int ravel__mask_at(const ravel__mask *m, const ravel__sequence *g, int64_t t) {
    RAVEL_ASSERT(t >= 1 && t < g->length);
    if (!m->data) return t >= first_response(g);
    return element_at(m, predictions(m, g) + (t - 1) * m->element) == m->one;
}

/* ---- spreading ------------------------------------------------------------------------------------------ */

/* Sixteen at a time, which compilers make vectors of, then the rest. */
#define SPREAD_AS(type)                                                                \
    do {                                                                               \
        const type one = (type)m->one;                                                 \
        int64_t t = 1;                                                                 \
        type x[16];                                                                    \
        for (; t + 16 <= g->length; t += 16, at += sizeof x) {                         \
            memcpy(x, at, sizeof x);                                                   \
            for (int64_t k = 0; k < 16; k++) weights[t + k] = x[k] == one ? value : 0; \
        }                                                                              \
        for (; t < g->length; t++, at += sizeof *x) {                                  \
            memcpy(x, at, sizeof *x);                                                  \
            weights[t] = *x == one ? value : 0;                                        \
        }                                                                              \
    } while (0)

#define SPREAD(name, real)                                                                 \
    void name(const ravel__mask *m, const ravel__sequence *g, real value, real *weights) { \
        weights[0] = 0;                                                                    \
        if (!m->data) {                                                                    \
            int64_t first = first_response(g);                                             \
            for (int64_t t = 1; t < g->length; t++) weights[t] = t >= first ? value : 0;   \
            return;                                                                        \
        }                                                                                  \
        const char *at = predictions(m, g);                                                \
        switch (m->element) {                                                              \
        case 1: SPREAD_AS(uint8_t); break;                                                 \
        case 2: SPREAD_AS(uint16_t); break;                                                \
        case 4: SPREAD_AS(uint32_t); break;                                                \
        default: SPREAD_AS(uint64_t); break;                                               \
        }                                                                                  \
    }
SPREAD(ravel__mask_spread_f32, float)
SPREAD(ravel__mask_spread_f64, double)
