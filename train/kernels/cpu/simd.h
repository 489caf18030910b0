/* Vectors of the instruction set that the including file is compiled for. Internal to the fast CPU sets.
 *
 * avx512.c, avx2.c and base.c switch the compiler to their instruction set, define CPU_LANES (floats in a vector) and
 * the other macros of set.h, and include it; so each body is written once, in the compiler's vector types, and compiled
 * once per instruction set. Multiplications and additions are fused where the machine can. */
#ifndef TRAIN_CPU_SIMD_H
#define TRAIN_CPU_SIMD_H

#include <stdint.h>
#include <string.h>

#define LANES  CPU_LANES
#define INLINE static inline __attribute__((always_inline))

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));

INLINE vf load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void store(float *p, vf v) {
    memcpy(p, &v, sizeof v);
}

/* The first n < LANES elements, 0 behind them. */
#if CPU_LANES == 16 && defined(__x86_64__)
INLINE vf load_first(const float *p, int64_t n) {
    return (vf)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
}

INLINE void store_first(float *p, vf v, int64_t n) {
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)v);
}
#elif CPU_LANES == 8 && defined(__x86_64__)
INLINE __m256i first_lanes(int64_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

INLINE vf load_first(const float *p, int64_t n) {
    return (vf)_mm256_maskload_ps(p, first_lanes(n));
}

INLINE void store_first(float *p, vf v, int64_t n) {
    _mm256_maskstore_ps(p, first_lanes(n), (__m256)v);
}
#else
INLINE vf load_first(const float *p, int64_t n) {
    vf v = {0};
    for (int64_t i = 0; i < n; i++) v[i] = p[i];
    return v;
}

INLINE void store_first(float *p, vf v, int64_t n) {
    for (int64_t i = 0; i < n; i++) p[i] = v[i];
}
#endif

/* The first n <= LANES elements. */
INLINE void store_some(float *p, vf v, int64_t n) {
    if (n == LANES)
        store(p, v);
    else
        store_first(p, v, n);
}

/* Elements i .. of a row of n, as a step of a loop over i += LANES. */
INLINE vf load_at(const float *p, int64_t i, int64_t n) {
    return n - i >= LANES ? load(p + i) : load_first(p + i, n - i);
}

INLINE void store_at(float *p, vf v, int64_t i, int64_t n) {
    if (n - i >= LANES)
        store(p + i, v);
    else
        store_first(p + i, v, n - i);
}

/* LANES elements of bf16, and the same of a row of n from i on. */
INLINE vf widen(const uint16_t *p) {
    typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
    typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
    vh half;
    memcpy(&half, p, sizeof half);
    return (vf)(__builtin_convertvector(half, vu) << 16);
}

INLINE vf widen_at(const uint16_t *p, int64_t i, int64_t n) {
    uint16_t some[LANES] = {0};
    if (n - i >= LANES) return widen(p + i);
    memcpy(some, p + i, (size_t)(n - i) * sizeof *p);
    return widen(some);
}

/* As load_at, from a row of weights, which are bf16 where `narrow` is set. */
INLINE vf weight_at(const void *row, int64_t i, int64_t n, int narrow) {
    return narrow ? widen_at(row, i, n) : load_at(row, i, n);
}

INLINE vf splat(float x) {
    return x - (vf){0};
}

#if CPU_LANES == 16 && defined(__x86_64__)
INLINE vf larger(vf a, vf b) {
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
}
INLINE vf smaller(vf a, vf b) {
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
}
INLINE vf root_of(vf a) {
    return (vf)_mm512_sqrt_ps((__m512)a);
}
#elif CPU_LANES == 8 && defined(__x86_64__)
INLINE vf larger(vf a, vf b) {
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
}
INLINE vf smaller(vf a, vf b) {
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
}
INLINE vf root_of(vf a) {
    return (vf)_mm256_sqrt_ps((__m256)a);
}
#else
INLINE vf larger(vf a, vf b) {
    vi m = a > b;
    return (vf)(((vi)a & m) | ((vi)b & ~m));
}
INLINE vf smaller(vf a, vf b) {
    vi m = a < b;
    return (vf)(((vi)a & m) | ((vi)b & ~m));
}
INLINE vf root_of(vf a) {
#if defined(__SSE2__)
    return (vf)_mm_sqrt_ps((__m128)a);
#elif defined(__aarch64__)
    return (vf)vsqrtq_f32((float32x4_t)a);
#else
    for (int i = 0; i < LANES; i++) a[i] = sqrtf(a[i]);
    return a;
#endif
}
#endif

/* Element i + n of v at i, around the end. */
#if CPU_LANES == 16
#define TURNED(v, n)                                                                                           \
    __builtin_shufflevector(v, v, (n), (n) + 1, (n) + 2, (n) + 3, (n) + 4, (n) + 5, (n) + 6, (n) + 7, (n) + 8, \
                            (n) + 9, (n) + 10, (n) + 11, (n) + 12, (n) + 13, (n) + 14, (n) + 15)
#elif CPU_LANES == 8
#define TURNED(v, n) __builtin_shufflevector(v, v, (n), (n) + 1, (n) + 2, (n) + 3, (n) + 4, (n) + 5, (n) + 6, (n) + 7)
#else
#define TURNED(v, n) __builtin_shufflevector(v, v, (n), (n) + 1, (n) + 2, (n) + 3)
#endif

/* Halves are added until one is left: the same order everywhere. */
INLINE float sum_of(vf v) {
#if CPU_LANES == 16
    v += TURNED(v, 8);
#endif
#if CPU_LANES >= 8
    v += TURNED(v, 4);
#endif
    v += TURNED(v, 2);
    v += TURNED(v, 1);
    return v[0];
}

INLINE float largest_of(vf v) {
#if CPU_LANES == 16
    v = larger(v, TURNED(v, 8));
#endif
#if CPU_LANES >= 8
    v = larger(v, TURNED(v, 4));
#endif
    v = larger(v, TURNED(v, 2));
    v = larger(v, TURNED(v, 1));
    return v[0];
}

/* v where lanes first .. end-1 stand, `fill` elsewhere. */
INLINE vf within(vf v, int64_t first, int64_t end, float fill) {
    if (first <= 0 && end >= LANES) return v;
    vi lane = {0}, from = (int32_t)first - (vi){0}, to = (int32_t)end - (vi){0};
    UNROLL
    for (int i = 0; i < LANES; i++) lane[i] = i;
    vi keep = (lane >= from) & (lane < to);
    return (vf)(((vi)v & keep) | ((vi)splat(fill) & ~keep));
}

/* to[k * ld_to + j] = from[j * ld_from + k] for j in 0 .. count-1 (count <= LANES) and k in 0 .. length-1. Squares of
 * LANES x LANES are turned in registers: log2(LANES) rounds of interleaving row i with row i + LANES/2. */
#if CPU_LANES == 16
#define LOW_HALVES(a, b)  __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define HIGH_HALVES(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif CPU_LANES == 8
#define LOW_HALVES(a, b)  __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define HIGH_HALVES(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LOW_HALVES(a, b)  __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define HIGH_HALVES(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

/* Rows to columns, in registers. */
INLINE void turn(vf *row) {
    vf mixed[LANES];
    UNROLL
    for (int round = 1; round < LANES; round *= 2) {
        UNROLL
        for (int i = 0; i < LANES / 2; i++) {
            mixed[2 * i] = LOW_HALVES(row[i], row[i + LANES / 2]);
            mixed[2 * i + 1] = HIGH_HALVES(row[i], row[i + LANES / 2]);
        }
        UNROLL
        for (int i = 0; i < LANES; i++) row[i] = mixed[i];
    }
}

INLINE void transpose_square(float *to, int64_t ld_to, const float *from, int64_t ld_from) {
    vf row[LANES];
    UNROLL
    for (int i = 0; i < LANES; i++) row[i] = load(from + i * ld_from);
    turn(row);
    UNROLL
    for (int i = 0; i < LANES; i++) store(to + i * ld_to, row[i]);
}

static void transpose(float *to, int64_t ld_to, const float *from, int64_t ld_from, int64_t length, int64_t count) {
    int64_t k = 0;
    if (count == LANES)
        for (; k + LANES <= length; k += LANES) transpose_square(to + k * ld_to, ld_to, from + k, ld_from);
    for (; k < length; k++)
        for (int64_t j = 0; j < count; j++) to[k * ld_to + j] = from[j * ld_from + k];
}

/* The same of a source in bf16. */
static void transpose_narrow(float *to, int64_t ld_to, const uint16_t *from, int64_t ld_from, int64_t length,
                             int64_t count) {
    for (int64_t k = 0; k < length; k += LANES) {
        vf row[LANES];
        for (int i = 0; i < LANES; i++) row[i] = i < count ? widen_at(from + i * ld_from, k, length) : (vf){0};
        turn(row);
        for (int64_t i = 0; i < train__min(LANES, length - k); i++) store_some(to + (k + i) * ld_to, row[i], count);
    }
}

/* e^x to about 1e-7 relative, for x from -87 up to 88 (beyond, the value at that end): x = n ln2 + r with |r| <= ln2/2,
 * a polynomial for e^r, and n added to the exponent. */
INLINE vf exp_of(vf x) {
    x = larger(smaller(x, splat(88.0f)), splat(-87.0f));
    vf shifted = x * splat(1.44269504f) + splat(12582912.0f); /* 1.5 * 2^23: n is in the low bits */
    vf n = shifted - splat(12582912.0f);
    vf r = x - n * splat(0.693359375f) + n * splat(2.12194440e-4f);
    vf p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = p * r * r + r + splat(1.0f);
    return (vf)((vi)p + ((vi)shifted << 23));
}

#endif
