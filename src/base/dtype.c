/* Element types: the table, and conversion between them.
 *
 * Small floats come in two ways. `narrow` and `widen` do any format through double with integer arithmetic and are
 * the reference; the loops for f32 <-> bf16, f16 and f64 do the same without a branch, sixteen elements at a time so
 * that the compiler makes vectors of them. The tests compare the two over every pattern of 16 bits and around every
 * rounding boundary.
 *
 * Every conversion runs in blocks over aligned buffers, so the arrays themselves may lie anywhere (safetensors
 * promises no alignment). */
#include <ravel/dtype.h>

#include "base/assert.h"
#include "base/dtype.h"

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "elements are little-endian");

typedef struct dtype_row {
    int32_t bytes;
    char kind;
    const char *tag, *name, *also;
} dtype_row;

static const dtype_row rows[] = {
#define X(NAME, number, bytes, kind, name, also) [number] = {bytes, kind, #NAME, name, also},
    RAVEL_DTYPE_LIST(X)
#undef X
};
static_assert(sizeof rows / sizeof *rows == RAVEL_DTYPE_COUNT, "RAVEL_DTYPE_COUNT is the length of the list");

static const dtype_row *row_of(int32_t dtype) {
    return dtype >= 0 && dtype < RAVEL_DTYPE_COUNT ? &rows[dtype] : NULL;
}

int32_t ravel_dtype_bytes(int32_t dtype) {
    return row_of(dtype) ? rows[dtype].bytes : 0;
}

const char *ravel_dtype_name(int32_t dtype) {
    return row_of(dtype) ? rows[dtype].name : NULL;
}

const char *ravel__dtype_tag(int32_t dtype) {
    return row_of(dtype) ? rows[dtype].tag : NULL;
}

char ravel_dtype_kind(int32_t dtype) {
    return row_of(dtype) ? rows[dtype].kind : '\0';
}

static char fold(char c) {
    return c == '_' ? '-' : (char)tolower((unsigned char)c);
}

/* Whether `text` is one of the words of "a|b|c". */
static int is_one_of(const char *words, const char *text) {
    RAVEL_ASSERT(words && text);
    while (*words) {
        size_t n = strcspn(words, "|"), i = 0;
        while (i < n && text[i] && fold(text[i]) == words[i]) i++;
        if (i == n && !text[n]) return 1;
        words += words[n] ? n + 1 : n;
    }
    return 0;
}

ravel_status ravel_dtype_parse(const char *text, int32_t *dtype, ravel_error *err) {
    const char *word = strncmp(text, "torch.", 6) == 0 ? text + 6 : text;
    for (int32_t i = 0; i < RAVEL_DTYPE_COUNT; i++)
        if (is_one_of(rows[i].name, word) || is_one_of(rows[i].also, word)) {
            *dtype = i;
            return RAVEL_OK;
        }
    char all[256] = "";
    for (int32_t i = 0; i < RAVEL_DTYPE_COUNT; i++) {
        size_t used = strlen(all);
        RAVEL_ASSERT(used < sizeof all);
        (void)snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", rows[i].name);
    }
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "\"%.40s\" is not a dtype; there are %s", text, all);
}

/* ---- any small float, through double (the reference) ----------------------------------------------------- */

typedef struct format {
    int exponent, mantissa; /* bits */
    int infinite;           /* has infinities; else only the all-ones pattern is NaN (e4m3) */
} format;

static const format *format_of(int32_t dtype) {
    static const format formats[] = {{5, 10, 1}, {8, 7, 1}, {4, 3, 0}, {5, 2, 1}};
    switch (dtype) {
    case RAVEL_F16: return &formats[0];
    case RAVEL_BF16: return &formats[1];
    case RAVEL_F8_E4M3: return &formats[2];
    case RAVEL_F8_E5M2: return &formats[3];
    default: return NULL;
    }
}

/* A NaN keeps its sign and the top of its payload, and becomes quiet. */
static uint32_t narrow_nan(const format *f, uint64_t bits) {
    RAVEL_ASSERT(f->exponent + f->mantissa < 16 && f->mantissa >= 1);
    uint32_t top = ((1u << f->exponent) - 1) << f->mantissa;
    if (!f->infinite) return top | ((1u << f->mantissa) - 1);
    return top | 1u << (f->mantissa - 1) | (uint32_t)((bits & ((UINT64_C(1) << 52) - 1)) >> (52 - f->mantissa));
}

static uint32_t narrow(const format *f, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    int bias = (1 << (f->exponent - 1)) - 1;
    uint32_t sign = (uint32_t)(bits >> 63) << (f->exponent + f->mantissa);
    uint32_t last = (1u << (f->exponent + f->mantissa)) - 1;                 /* exponent and mantissa all ones */
    uint32_t beyond = f->infinite ? last - ((1u << f->mantissa) - 1) : last; /* infinity, or NaN if there is none */
    if (isnan(value)) return sign | narrow_nan(f, bits);
    if (isinf(value)) return sign | beyond;
    int power = (int)(bits >> 52 & 0x7ff) - 1023;
    uint64_t whole = (bits & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;
    if (power == -1023) return sign; /* a subnormal double is far below every small float */
    int below = 1 - bias - power, shift = 52 - f->mantissa + (below > 0 ? below : 0);
    if (shift > 53) return sign;
    RAVEL_ASSERT(shift >= 1 && shift <= 53);
    uint64_t kept = whole >> shift, rest = whole & ((UINT64_C(1) << shift) - 1), half = UINT64_C(1) << (shift - 1);
    kept += rest > half || (rest == half && (kept & 1));
    /* A carry out of the mantissa moves on into the exponent, which is just what it should do. */
    uint64_t code = below > 0 ? kept : ((uint64_t)(power + bias - 1) << f->mantissa) + kept;
    return sign | (code >= beyond ? beyond : (uint32_t)code);
}

static double widen(const format *f, uint32_t code) {
    RAVEL_ASSERT(code >> (f->exponent + f->mantissa) <= 1);
    int bias = (1 << (f->exponent - 1)) - 1;
    uint32_t ones = (1u << f->exponent) - 1, mantissa = code & ((1u << f->mantissa) - 1);
    uint32_t exponent = code >> f->mantissa & ones;
    double sign = code >> (f->exponent + f->mantissa) & 1 ? -1.0 : 1.0, value;
    if (f->infinite && exponent == ones)
        value = mantissa ? NAN : INFINITY;
    else if (!f->infinite && exponent == ones && mantissa == (1u << f->mantissa) - 1)
        value = NAN;
    else if (exponent == 0)
        value = ldexp((double)mantissa, 1 - bias - f->mantissa);
    else
        value = ldexp((double)(mantissa | 1u << f->mantissa), (int)exponent - bias - f->mantissa);
    return copysign(value, sign);
}

/* ---- one element ---------------------------------------------------------------------------------------- */

/* Integers and truth values; 0 when the dtype is another. *negative says that the value is below zero, and then
 * *value is its two's complement. */
static int load_integer(int32_t dtype, const void *element, uint64_t *value, int *negative) {
    char kind = ravel_dtype_kind(dtype);
    int32_t bytes = ravel_dtype_bytes(dtype), bits = 8 * bytes;
    if (bits < 8 || (kind != 'i' && kind != 'u' && kind != 'b')) return 0;
    uint64_t raw = 0;
    memcpy(&raw, element, (size_t)bytes);
    *negative = kind == 'i' && raw >> (bits - 1) & 1;
    if (*negative && bits < 64) raw |= ~UINT64_C(0) << bits;
    *value = kind == 'b' ? raw != 0 : raw;
    return 1;
}

static int store_integer(int32_t dtype, void *element, uint64_t value, int negative) {
    char kind = ravel_dtype_kind(dtype);
    int32_t bytes = ravel_dtype_bytes(dtype), bits = 8 * bytes;
    if (kind == 'u') {
        if (negative || (bits < 64 && value >> bits)) return 0;
    } else if (kind == 'i') {
        uint64_t magnitude = negative ? ~value : value;
        if (magnitude >> (bits - 1)) return 0;
    } else {
        return 0;
    }
    RAVEL_ASSERT(bytes >= 1 && bytes <= 8);
    memcpy(element, &value, (size_t)bytes);
    return 1;
}

int ravel_dtype_load(int32_t dtype, const void *element, double *value) {
    uint64_t whole;
    int negative;
    if (load_integer(dtype, element, &whole, &negative)) {
        *value = negative ? (double)(int64_t)whole : (double)whole;
        return 1;
    }
    if (dtype == RAVEL_F64) {
        memcpy(value, element, sizeof *value);
        return 1;
    }
    if (dtype == RAVEL_F32) {
        float single;
        memcpy(&single, element, sizeof single);
        *value = single;
        return 1;
    }
    const format *f = format_of(dtype);
    if (!f) return 0;
    uint32_t code = 0;
    memcpy(&code, element, (size_t)ravel_dtype_bytes(dtype));
    *value = widen(f, code);
    return 1;
}

static int store_whole(int32_t dtype, void *element, double value) {
    static const double least = -9223372036854775808.0, beyond = 18446744073709551616.0; /* -2^63, 2^64 */
    if (value != floor(value) || value < least || value >= beyond) return 0;
    /* cppcheck-suppress floatConversionOverflow ; what is beyond was refused above */
    uint64_t whole = value < 0 ? (uint64_t)(int64_t)value : (uint64_t)value;
    return store_integer(dtype, element, whole, value < 0);
}

int ravel_dtype_store(int32_t dtype, void *element, double value) {
    if (dtype == RAVEL_F64) {
        memcpy(element, &value, sizeof value);
        return 1;
    }
    if (dtype == RAVEL_F32) {
        float single = (float)value;
        memcpy(element, &single, sizeof single);
        return 1;
    }
    if (dtype == RAVEL_BOOL) {
        if (value != 0 && value != 1) return 0;
        *(uint8_t *)element = value != 0;
        return 1;
    }
    const format *f = format_of(dtype);
    if (!f) return row_of(dtype) && store_whole(dtype, element, value);
    uint32_t code = narrow(f, value);
    memcpy(element, &code, (size_t)ravel_dtype_bytes(dtype));
    return 1;
}

/* ---- loops ---------------------------------------------------------------------------------------------- */

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint16_t bf16_of(float value) {
    uint32_t u = bits_of(value), rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7fffffff) > 0x7f800000 ? (u >> 16 | 0x40) : rounded);
}

static inline float of_bf16(uint16_t code) {
    return float_of((uint32_t)code << 16);
}

/* Normal: rebias and round with integers. Subnormal: adding 0.5 lets the adder round at the right bit. */
static inline uint16_t f16_of(float value) {
    uint32_t u = bits_of(value), a = u & 0x7fffffff;
    uint32_t normal = (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13;
    uint32_t tiny = bits_of(float_of(a) + 0.5f) - 0x3f000000;
    uint32_t nan = 0x7e00 | (a >> 13 & 0x3ff);
    uint32_t code = a < 0x38800000 ? tiny : normal;
    code = a >= 0x47800000 ? 0x7c00 : code; /* 2^16 and more; from 65520 up rounding has arrived there already */
    code = a > 0x7f800000 ? nan : code;
    return (uint16_t)(u >> 16 & 0x8000) | (uint16_t)code;
}

/* Subnormal: the mantissa under an exponent of its own, less that exponent's one. */
static inline float of_f16(uint16_t code) {
    uint32_t sign = (uint32_t)(code & 0x8000) << 16, a = (uint32_t)(code & 0x7fff) << 13;
    uint32_t normal = a + 0x38000000;
    uint32_t tiny = bits_of(float_of(a + 0x38800000) - float_of(0x38800000));
    uint32_t special = a + 0x70000000;
    uint32_t bits = a < 0x00800000 ? tiny : normal;
    bits = a >= 0x0f800000 ? special : bits;
    return float_of(sign | bits);
}

/* Sixteen at a time: a loop of known length is what compilers turn into vectors at any optimisation level. */
#define LOOP(name, in_type, out_type, one)                               \
    static void name(const void *source, void *target, size_t count) {   \
        const in_type *in = source;                                      \
        out_type *out = target;                                          \
        size_t i = 0;                                                    \
        for (; i + 16 <= count; i += 16)                                 \
            for (size_t j = 0; j < 16; j++) out[i + j] = one(in[i + j]); \
        for (; i < count; i++) out[i] = one(in[i]);                      \
    }
LOOP(f32_to_bf16, float, uint16_t, bf16_of)
LOOP(bf16_to_f32, uint16_t, float, of_bf16)
LOOP(f32_to_f16, float, uint16_t, f16_of)
LOOP(f16_to_f32, uint16_t, float, of_f16)
LOOP(f32_to_f64, float, double, (double))
LOOP(f64_to_f32, double, float, (float))

typedef void convert_fn(const void *source, void *target, size_t count);

static convert_fn *fast_path(int32_t from, int32_t to) {
    static const struct {
        int32_t from, to;
        convert_fn *run;
    } paths[] = {{RAVEL_F32, RAVEL_BF16, f32_to_bf16}, {RAVEL_BF16, RAVEL_F32, bf16_to_f32},
                 {RAVEL_F32, RAVEL_F16, f32_to_f16},   {RAVEL_F16, RAVEL_F32, f16_to_f32},
                 {RAVEL_F32, RAVEL_F64, f32_to_f64},   {RAVEL_F64, RAVEL_F32, f64_to_f32}};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (paths[i].from == from && paths[i].to == to) return paths[i].run;
    return NULL;
}

enum { BLOCK = 512 }; /* elements; two blocks of doubles are 8 KiB of stack */

/* The arrays are used in place where they are aligned, and through a block's copy where they are not. */
static void convert_fast(convert_fn *run, const char *source, size_t from, char *target, size_t to, size_t count) {
    RAVEL_ASSERT(from >= 1 && from <= sizeof(double) && to >= 1 && to <= sizeof(double));
    int copy_in = (uintptr_t)source % from != 0, copy_out = (uintptr_t)target % to != 0;
    if (!copy_in && !copy_out) {
        run(source, target, count);
        return;
    }
    double in[BLOCK] = {0}, out[BLOCK] = {0};
    for (size_t i = 0; i < count; i += BLOCK) {
        size_t n = count - i < BLOCK ? count - i : BLOCK;
        RAVEL_ASSERT(n >= 1 && n <= BLOCK);
        if (copy_in) memcpy(in, source + i * from, n * from);
        run(copy_in ? (const void *)in : source + i * from, copy_out ? (void *)out : target + i * to, n);
        if (copy_out) memcpy(target + i * to, out, n * to);
    }
}

/* ---- conversion ----------------------------------------------------------------------------------------- */

static int is_whole(int32_t dtype) {
    char kind = ravel_dtype_kind(dtype);
    return kind == 'i' || kind == 'u' || kind == 'b';
}

static ravel_status convert_integers(int32_t from, const char *source, int32_t to, char *target, size_t count,
                                     ravel_error *err) {
    RAVEL_ASSERT(is_whole(from) && is_whole(to) && to != RAVEL_BOOL);
    size_t in = (size_t)ravel_dtype_bytes(from), out = (size_t)ravel_dtype_bytes(to);
    for (size_t i = 0; i < count; i++) {
        uint64_t value = 0;
        int negative = 0;
        load_integer(from, source + i * in, &value, &negative);
        if (store_integer(to, target + i * out, value, negative)) continue;
        if (negative)
            return ravel_error_set(err, RAVEL_E_OVERFLOW, "element %zu is %lld, which does not fit %s", i,
                                   (long long)value, ravel_dtype_name(to));
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "element %zu is %llu, which does not fit %s", i,
                               (unsigned long long)value, ravel_dtype_name(to));
    }
    return RAVEL_OK;
}

static void integers_to_floats(int32_t from, const char *source, int32_t to, char *target, size_t count) {
    RAVEL_ASSERT(is_whole(from) && (to == RAVEL_F32 || to == RAVEL_F64));
    size_t in = (size_t)ravel_dtype_bytes(from);
    for (size_t i = 0; i < count; i++) {
        uint64_t value = 0;
        int negative = 0;
        load_integer(from, source + i * in, &value, &negative);
        if (to == RAVEL_F32) { /* straight from the integer: by way of double it would be rounded twice */
            float single = negative ? (float)(int64_t)value : (float)value;
            memcpy(target + i * sizeof single, &single, sizeof single);
        } else {
            double real = negative ? (double)(int64_t)value : (double)value;
            memcpy(target + i * sizeof real, &real, sizeof real);
        }
    }
}

static void convert_floats(int32_t from, const char *source, int32_t to, char *target, size_t count) {
    RAVEL_ASSERT(ravel_dtype_kind(from) == 'f' && ravel_dtype_kind(to) == 'f');
    size_t in = (size_t)ravel_dtype_bytes(from), out = (size_t)ravel_dtype_bytes(to);
    for (size_t i = 0; i < count; i++) {
        double value = 0;
        ravel_dtype_load(from, source + i * in, &value);
        ravel_dtype_store(to, target + i * out, value);
    }
}

ravel_status ravel_dtype_convert(int32_t from, const void *source, int32_t to, void *target, int64_t count,
                                 ravel_error *err) {
    const dtype_row *in = row_of(from), *out = row_of(to);
    if (!in || !out)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "dtype %d is none of RAVEL_DTYPE_LIST", in ? to : from);
    if (count < 0) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a count of %lld elements", (long long)count);
    if (count == 0) return RAVEL_OK;
    size_t n = (size_t)count;
    convert_fn *fast = fast_path(from, to);
    if (from == to)
        memcpy(target, source, n * (size_t)in->bytes);
    else if (fast)
        convert_fast(fast, source, (size_t)in->bytes, target, (size_t)out->bytes, n);
    else if (in->kind == 'f' && out->kind == 'f')
        convert_floats(from, source, to, target, n);
    else if (is_whole(from) && (to == RAVEL_F32 || to == RAVEL_F64))
        integers_to_floats(from, source, to, target, n);
    else if (is_whole(from) && is_whole(to) && to != RAVEL_BOOL)
        return convert_integers(from, source, to, target, n, err);
    else
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "%s cannot become %s: floats convert to floats, integers to integers, f32 or f64",
                               in->name, out->name);
    return RAVEL_OK;
}
