/* One pass over both versions, a stretch of STRETCH elements at a time: first the positions of the elements that
 * differ, then their records.
 *
 *     base   [a b c d e f g h] ...
 *     fresh  [a b C d e f G h] ...     positions: 2 6     records: 2 C, 3 G
 *
 * Which elements change cannot be predicted, so positions are written without a branch on them: AVX-512 compresses a
 * vector of indices by the mask of a comparison, AVX2 and NEON write the lowest two bits of every mask, wanted or
 * not. */
#include "base/sparse.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__AARCH64EL__)
#include <arm_neon.h>
#endif

enum { STEP = 64, STRETCH = 4096, POSITIONS = STRETCH + STEP, ESCAPE = 255, AHEAD = 4096 };

#define INLINE static inline __attribute__((always_inline))

/* ---- positions ------------------------------------------------------------------------------------------ */

/* Which of `count` elements, at most STRETCH, differ: their positions; returns how many. Room for POSITIONS. */
typedef size_t (*find_fn)(const unsigned char *a, const unsigned char *b, size_t count, uint16_t *positions);

/* Elements `at` to `count`, one by one. */
INLINE size_t find_rest(const unsigned char *a, const unsigned char *b, size_t at, size_t count, size_t each,
                        uint16_t *positions, size_t n) {
    for (; at < count; at++) {
        positions[n] = (uint16_t)at;
        n += memcmp(a + at * each, b + at * each, each) != 0;
    }
    return n;
}

/* Bit i * scale of the mask: element at + i differs. */
INLINE size_t add_mask(uint64_t mask, size_t at, size_t scale, uint16_t *positions, size_t n) {
    size_t end = n + (size_t)__builtin_popcountll(mask);
    for (int i = 0; i < 2; i++, mask &= mask - 1)
        positions[n + (size_t)i] = (uint16_t)(at + (size_t)__builtin_ctzll(mask | (uint64_t)1 << 63) / scale);
    for (n += 2; __builtin_expect(n < end, 0); mask &= mask - 1)
        positions[n++] = (uint16_t)(at + (size_t)__builtin_ctzll(mask) / scale);
    return end;
}

/* A find_fn that goes through whole steps with ADD, which has the step's two pointers, and then through the rest. */
#define FIND(NAME, TARGET, EACH, ADD)                                                                          \
    TARGET static size_t NAME(const unsigned char *a, const unsigned char *b, size_t count, uint16_t *found) { \
        size_t at = 0, n = 0;                                                                                  \
        for (; at + STEP / (EACH) <= count; at += STEP / (EACH)) {                                             \
            const unsigned char *x = a + at * (EACH), *y = b + at * (EACH);                                    \
            __builtin_prefetch(x + AHEAD);                                                                     \
            __builtin_prefetch(y + AHEAD);                                                                     \
            n = ADD;                                                                                           \
        }                                                                                                      \
        return find_rest(a, b, at, count, EACH, found, n);                                                     \
    }

/* Portable: words first, elements only in words that differ. */
INLINE size_t add_portable(const unsigned char *a, const unsigned char *b, size_t at, size_t each, uint16_t *positions,
                           size_t n) {
    uint64_t any = 0, x[STEP / 8], y[STEP / 8];
    memcpy(x, a, STEP);
    memcpy(y, b, STEP);
    for (int i = 0; i < STEP / 8; i++) any |= x[i] ^ y[i];
    for (size_t i = 0; any && i < STEP / each; i++) {
        positions[n] = (uint16_t)(at + i);
        n += memcmp(a + i * each, b + i * each, each) != 0;
    }
    return n;
}

FIND(portable1, , 1, add_portable(x, y, at, 1, found, n))
FIND(portable2, , 2, add_portable(x, y, at, 2, found, n))
FIND(portable4, , 4, add_portable(x, y, at, 4, found, n))
FIND(portable8, , 8, add_portable(x, y, at, 8, found, n))

#if defined(__x86_64__)

#define AVX2   __attribute__((target("avx2,bmi,popcnt")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512vbmi2,bmi,popcnt")))

/* movemask has a bit per byte, so an element's first byte stands for it: FIRST selects these. */
#define MASK_AVX2(NAME, EQUAL, FIRST)                                                                               \
    AVX2 static inline uint64_t NAME(const unsigned char *a, const unsigned char *b) {                              \
        const __m256i *x = (const __m256i *)(const void *)a, *y = (const __m256i *)(const void *)b;                 \
        uint32_t low = (uint32_t)_mm256_movemask_epi8(EQUAL(_mm256_loadu_si256(x), _mm256_loadu_si256(y)));         \
        uint32_t top = (uint32_t)_mm256_movemask_epi8(EQUAL(_mm256_loadu_si256(x + 1), _mm256_loadu_si256(y + 1))); \
        return ~((uint64_t)top << 32 | low) & (FIRST);                                                              \
    }
MASK_AVX2(avx2_mask1, _mm256_cmpeq_epi8, UINT64_MAX)
MASK_AVX2(avx2_mask2, _mm256_cmpeq_epi16, UINT64_MAX / 3)
MASK_AVX2(avx2_mask4, _mm256_cmpeq_epi32, UINT64_MAX / 15)
MASK_AVX2(avx2_mask8, _mm256_cmpeq_epi64, UINT64_MAX / 255)

FIND(avx2_1, AVX2, 1, add_mask(avx2_mask1(x, y), at, 1, found, n))
FIND(avx2_2, AVX2, 2, add_mask(avx2_mask2(x, y), at, 2, found, n))
FIND(avx2_4, AVX2, 4, add_mask(avx2_mask4(x, y), at, 4, found, n))
FIND(avx2_8, AVX2, 8, add_mask(avx2_mask8(x, y), at, 8, found, n))

/* Positions at .. at+32 by their mask. Eight places are written, or if more differ all 32; as many count as differ. */
AVX512 static inline size_t add_compressed(uint32_t mask, size_t at, uint16_t *positions, size_t n) {
    static const uint16_t order[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                       16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
    __m512i all = _mm512_add_epi16(_mm512_loadu_si512(order), _mm512_set1_epi16((short)at));
    __m512i some = _mm512_maskz_compress_epi16(mask, all);
    size_t found = (size_t)__builtin_popcount(mask);
    _mm_storeu_si128((__m128i *)(void *)(positions + n), _mm512_castsi512_si128(some));
    if (__builtin_expect(found > 8, 0)) _mm512_storeu_si512(positions + n, some);
    return n + found;
}

AVX512 static inline size_t add_compressed_bytes(const unsigned char *a, const unsigned char *b, size_t at,
                                                 uint16_t *positions, size_t n) {
    uint64_t mask = _mm512_cmpneq_epi8_mask(_mm512_loadu_si512(a), _mm512_loadu_si512(b));
    n = add_compressed((uint32_t)mask, at, positions, n);
    return add_compressed((uint32_t)(mask >> 32), at + 32, positions, n);
}

#define DIFFERS(SUFFIX) _mm512_cmpneq_##SUFFIX##_mask(_mm512_loadu_si512(x), _mm512_loadu_si512(y))

FIND(avx512_1, AVX512, 1, add_compressed_bytes(x, y, at, found, n))
FIND(avx512_2, AVX512, 2, add_compressed(DIFFERS(epi16), at, found, n))
FIND(avx512_4, AVX512, 4, add_compressed(DIFFERS(epi32), at, found, n))
FIND(avx512_8, AVX512, 8, add_compressed(DIFFERS(epi64), at, found, n))

static int has_set(int set) {
    if (set == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi");
    if (set == 2) return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vbmi2");
    return set == 0;
}

/* By set, and by log2 of an element's bytes. */
static const find_fn finders[RAVEL__SPARSE_SETS][4] = {{portable1, portable2, portable4, portable8},
                                                       {avx2_1, avx2_2, avx2_4, avx2_8},
                                                       {avx512_1, avx512_2, avx512_4, avx512_8}};
#elif defined(__AARCH64EL__)

/* A bit per byte: each byte keeps its own bit, and neighbours are added until 64 bits are left. */
INLINE uint64_t neon_mask(uint8x16_t a, uint8x16_t b, uint8x16_t c, uint8x16_t d) {
    static const uint8_t own[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t bits = vld1q_u8(own);
    uint8x16_t low = vpaddq_u8(vandq_u8(a, bits), vandq_u8(b, bits)),
               top = vpaddq_u8(vandq_u8(c, bits), vandq_u8(d, bits));
    uint8x16_t all = vpaddq_u8(low, top);
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(all, all)), 0);
}

#define EQUALS(TYPE, I) (uint8x16_t)((TYPE)vld1q_u8(x + 16 * (I)) == (TYPE)vld1q_u8(y + 16 * (I)))
#define DIFFERS(TYPE)   ~neon_mask(EQUALS(TYPE, 0), EQUALS(TYPE, 1), EQUALS(TYPE, 2), EQUALS(TYPE, 3))

FIND(neon_1, , 1, add_mask(DIFFERS(uint8x16_t), at, 1, found, n))
FIND(neon_2, , 2, add_mask(DIFFERS(uint16x8_t) & UINT64_MAX / 3, at, 2, found, n))
FIND(neon_4, , 4, add_mask(DIFFERS(uint32x4_t) & UINT64_MAX / 15, at, 4, found, n))
FIND(neon_8, , 8, add_mask(DIFFERS(uint64x2_t) & UINT64_MAX / 255, at, 8, found, n))

static int has_set(int set) {
    return set <= 1;
}

static const find_fn finders[2][4] = {{portable1, portable2, portable4, portable8}, {neon_1, neon_2, neon_4, neon_8}};

#else

static int has_set(int set) {
    return set == 0;
}

static const find_fn finders[1][4] = {{portable1, portable2, portable4, portable8}};
#endif

/* ---- records -------------------------------------------------------------------------------------------- */

typedef struct writer {
    unsigned char *out, *limit; /* no byte at `limit` is written */
    size_t next;                /* element after the last record */
} writer;

/* Records of the elements at + positions[n], whose values are in `fresh`, the bytes from element `at` on; 0: they do
 * not fit. */
INLINE int add_records(writer *to, const unsigned char *fresh, size_t at, const uint16_t *positions, size_t n,
                       size_t each) {
    writer w = *to; /* in registers */
    int fits = 1;
    for (size_t i = 0; i < n && fits; i++) {
        size_t gap = at + positions[i] - w.next;
        fits = (size_t)(w.limit - w.out) > gap / ESCAPE + each;
        if (!fits) break;
        for (; __builtin_expect(gap >= ESCAPE, 0); gap -= ESCAPE) *w.out++ = ESCAPE;
        *w.out++ = (unsigned char)gap;
        memcpy(w.out, fresh + positions[i] * each, each);
        w.out += each;
        w.next = at + positions[i] + 1;
    }
    *to = w;
    return fits;
}

/* `each` 0: gaps alone. */
static int add_any(writer *w, const unsigned char *fresh, size_t at, const uint16_t *positions, size_t n, size_t each) {
    if (each == 0) return add_records(w, fresh, at, positions, n, 0);
    if (each == 1) return add_records(w, fresh, at, positions, n, 1);
    if (each == 2) return add_records(w, fresh, at, positions, n, 2);
    return each == 4 ? add_records(w, fresh, at, positions, n, 4) : add_records(w, fresh, at, positions, n, 8);
}

/* Elements at .. at+n of a bitmap, n at most STRETCH and `at` a multiple of it. */
static size_t find_marked(const uint64_t *bits, size_t at, size_t n, uint16_t *positions) {
    size_t found = 0;
    for (size_t i = 0; i < n; i += 64)
        for (uint64_t word = bits[(at + i) / 64]; word; word &= word - 1)
            positions[found++] = (uint16_t)(i + (size_t)__builtin_ctzll(word));
    return found;
}

static int best_set(void) {
    return has_set(2) ? 2 : has_set(1) ? 1 : 0;
}

/* Records of what differs between a and b, or of what is marked; 0: they do not all fit. */
static int add_all(writer *w, int set, const unsigned char *a, const uint64_t *bits, const unsigned char *b,
                   size_t count, size_t each, int gaps_alone, size_t *changed) {
    find_fn find = finders[set][__builtin_ctzll(each)];
    uint16_t positions[POSITIONS];
    int fits = w->out < w->limit;
    *changed = 0;
    for (size_t at = 0; at < count; at += STRETCH) {
        size_t m = count - at < STRETCH ? count - at : STRETCH;
        size_t n = bits ? find_marked(bits, at, m, positions) : find(a + at * each, b + at * each, m, positions);
        *changed += n;
        if (n > 0 && fits) fits = add_any(w, b + at * each, at, positions, n, gaps_alone ? 0 : each);
    }
    return fits;
}

static int64_t encode(int set, const void *base, const uint64_t *bits, const void *fresh, size_t count, size_t each,
                      unsigned char *out, size_t *changed) {
    RAVEL_ASSERT((each == 1 || each == 2 || each == 4 || each == 8) && count <= UINT32_MAX);
    writer w = {.out = out + RAVEL__SPARSE_HEADER, .limit = out + count * each};
    if (!add_all(&w, set, base, bits, fresh, count, each, 0, changed) || w.out == w.limit) return 0;
    ravel__put32(out, (uint32_t)count);
    ravel__put32(out + 4, (uint32_t)*changed);
    return w.out - out;
}

int64_t ravel__sparse_encode_by(int set, const void *base, const void *fresh, size_t count, size_t each,
                                unsigned char *out, size_t *changed) {
    return has_set(set) ? encode(set, base, NULL, fresh, count, each, out, changed) : -1;
}

size_t ravel__sparse_encode(const void *base, const void *fresh, size_t count, size_t each, unsigned char *out,
                            size_t *changed) {
    return (size_t)encode(best_set(), base, NULL, fresh, count, each, out, changed);
}

size_t ravel__sparse_encode_marked(const uint64_t *bits, const void *fresh, size_t count, size_t each,
                                   unsigned char *out, size_t *changed) {
    return (size_t)encode(0, NULL, bits, fresh, count, each, out, changed);
}

int64_t ravel__sparse_positions(const void *base, const void *fresh, size_t count, size_t each, unsigned char *out,
                                size_t room) {
    writer w = {.out = out, .limit = out + room};
    size_t changed;
    return add_all(&w, best_set(), base, NULL, fresh, count, each, 1, &changed) ? w.out - out : -1;
}

int ravel__sparse_pays(const void *base, const void *fresh, size_t count, size_t each) {
    enum { PLACES = 16 };
    const unsigned char *a = base, *b = fresh;
    size_t n = STEP / each, apart = (count - n) / (PLACES - 1);
    uint16_t positions[POSITIONS];
    if (count < 4 * PLACES * n) return 1;
    for (size_t place = 0; place < PLACES; place++) {
        size_t at = place * apart * each, differ = find_rest(a + at, b + at, 0, n, each, positions, 0);
        if (differ * (each + 1) < n * each) return 1; /* a record takes each + 1 bytes, or more */
    }
    return 0;
}

/* ---- apply ---------------------------------------------------------------------------------------------- */

static ravel_status broken(ravel_error *err, const char *why) {
    return ravel_error_set(err, RAVEL_E_DATA, "a sparse block is broken: %s", why);
}

/* Goes over the next record's gap: next is then the element that its value is of. 0: the records are wrong. */
INLINE int read_gap(ravel__sparse *s, size_t from, size_t each) {
    s->next = SIZE_MAX;
    if (s->left == 0) return 1;
    for (; s->at < s->end && *s->at == ESCAPE; s->at++) from += ESCAPE;
    if ((size_t)(s->end - s->at) < 1 + each) return 0;
    from += *s->at++;
    s->next = from;
    s->left--;
    return from < s->count;
}

size_t ravel__sparse_count(const void *bytes, size_t size, size_t *changed) {
    int whole = size >= RAVEL__SPARSE_HEADER;
    if (changed) *changed = whole ? ravel__get32((const unsigned char *)bytes + 4) : 0;
    return whole ? ravel__get32(bytes) : 0;
}

ravel_status ravel__sparse_open(ravel__sparse *s, const void *bytes, size_t size, size_t count, size_t each,
                                ravel_error *err) {
    RAVEL_ASSERT(each == 1 || each == 2 || each == 4 || each == 8);
    const unsigned char *p = bytes;
    if (size < RAVEL__SPARSE_HEADER || ravel__get32(p) != count) return broken(err, "it is of another block");
    *s = (ravel__sparse){.at = p + RAVEL__SPARSE_HEADER, .end = p + size, .each = each, .count = count};
    s->changed = s->left = ravel__get32(p + 4);
    return read_gap(s, 0, each) ? RAVEL_OK : broken(err, "its records end early");
}

INLINE int apply(ravel__sparse *s, unsigned char *block, size_t first, size_t end, size_t each) {
    ravel__sparse at = *s; /* in registers */
    int right = 1;
    while (right && at.next < end) {
        memcpy(block + (at.next - first) * each, at.at, each);
        at.at += each;
        right = read_gap(&at, at.next + 1, each);
    }
    *s = at;
    return right;
}

ravel_status ravel__sparse_apply(ravel__sparse *s, void *block, size_t first, size_t n, ravel_error *err) {
    RAVEL_ASSERT(first + n <= s->count && s->next >= first);
    int right = s->each == 1   ? apply(s, block, first, first + n, 1)
                : s->each == 2 ? apply(s, block, first, first + n, 2)
                : s->each == 4 ? apply(s, block, first, first + n, 4)
                               : apply(s, block, first, first + n, 8);
    return right ? RAVEL_OK : broken(err, "its records end early or are outside of it");
}

ravel_status ravel__sparse_end(const ravel__sparse *s, ravel_error *err) {
    return s->next == SIZE_MAX && s->at == s->end ? RAVEL_OK : broken(err, "bytes are left");
}
