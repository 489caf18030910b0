/* XXH3, 64 bits. Inputs up to 240 bytes are mixed directly; longer ones go through eight lanes:
 *
 *     block of 1024 bytes = 16 stripes of 64 bytes          secret: 192 bytes
 *     [stripe 0][stripe 1] ... [stripe 15]  scramble        stripe n uses secret[8n .. 8n+64)
 *       lanes += lo32(x ^ s) * hi32(x ^ s), and x into the neighbour lane
 *
 * The last block is never scrambled, and the last 64 bytes of the input are taken once more with another part of the
 * secret. So a state keeps back up to one block: it may be the last.
 *
 * The loop over stripes exists four times: portable, NEON (which every aarch64 has), SSE2 (which every x86-64 has) and
 * AVX2 (chosen when the processor has it), the last also with a store of what it has just loaded: a copy that is hashed
 * on the way. All give the same bits. */
#include "base/assert.h"
#include "base/xxh3.h"

#include "base/system/copy.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { SECRET = 192, STRIPE = 64, STRIPES = 16, BLOCK = STRIPE * STRIPES, MEDIUM_MOST = 240, STEP_BLOCKS = 32 };
enum { LINE = 64, AHEAD = 4096 }; /* of the cache; how far what comes is fetched, in bytes */

#define PRIME32_1 0x9e3779b1u
#define PRIME32_2 0x85ebca77u
#define PRIME32_3 0xc2b2ae3du
#define PRIME64_1 0x9e3779b185ebca87u
#define PRIME64_2 0xc2b2ae3d27d4eb4fu
#define PRIME64_3 0x165667b19e3779f9u
#define PRIME64_4 0x85ebca77c2b2ae63u
#define PRIME64_5 0x27d4eb2f165667c5u
#define PRIME_MX1 0x165667919e3779f9u
#define PRIME_MX2 0x9fb21c651e98df25u

static const unsigned char secret[SECRET] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
};

static inline uint64_t read64(const unsigned char *p) {
    uint64_t x;
    memcpy(&x, p, 8);
    return x;
}

static inline uint32_t read32(const unsigned char *p) {
    uint32_t x;
    memcpy(&x, p, 4);
    return x;
}

static inline uint64_t rotate(uint64_t x, int bits) {
    return (x << bits) | (x >> (64 - bits));
}

static inline uint64_t fold128(uint64_t a, uint64_t b) {
    __extension__ typedef unsigned __int128 u128;
    u128 product = (u128)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static inline uint64_t avalanche(uint64_t x) {
    x = (x ^ (x >> 37)) * PRIME_MX1;
    return x ^ (x >> 32);
}

static inline uint64_t avalanche_xxh64(uint64_t x) {
    x = (x ^ (x >> 33)) * PRIME64_2;
    x = (x ^ (x >> 29)) * PRIME64_3;
    return x ^ (x >> 32);
}

/* ---- up to 240 bytes ------------------------------------------------------------------------------------ */

static uint64_t hash_small(const unsigned char *p, size_t n) {
    RAVEL_ASSERT(n <= 16);
    if (n == 0) return avalanche_xxh64(read64(secret + 56) ^ read64(secret + 64));
    if (n <= 3) {
        uint32_t mixed = p[n - 1] | (uint32_t)n << 8 | (uint32_t)p[0] << 16 | (uint32_t)p[n >> 1] << 24;
        return avalanche_xxh64((read32(secret) ^ read32(secret + 4)) ^ (uint64_t)mixed);
    }
    if (n <= 8) {
        uint64_t x = (read64(secret + 8) ^ read64(secret + 16)) ^ (read32(p + n - 4) | (uint64_t)read32(p) << 32);
        x = (x ^ rotate(x, 49) ^ rotate(x, 24)) * PRIME_MX2;
        x = (x ^ ((x >> 35) + n)) * PRIME_MX2;
        return x ^ (x >> 28);
    }
    uint64_t low = (read64(secret + 24) ^ read64(secret + 32)) ^ read64(p);
    uint64_t high = (read64(secret + 40) ^ read64(secret + 48)) ^ read64(p + n - 8);
    return avalanche(n + __builtin_bswap64(low) + high + fold128(low, high));
}

static inline uint64_t mix(const unsigned char *p, size_t offset) {
    return fold128(read64(p) ^ read64(secret + offset), read64(p + 8) ^ read64(secret + offset + 8));
}

static uint64_t hash_medium(const unsigned char *p, size_t n) {
    RAVEL_ASSERT(n > 16 && n <= MEDIUM_MOST);
    uint64_t acc = n * PRIME64_1;
    if (n <= 128) {
        for (size_t i = ((n - 1) >> 5) + 1; i-- > 0;)
            acc += mix(p + i * 16, i * 32) + mix(p + n - i * 16 - 16, i * 32 + 16);
        return avalanche(acc);
    }
    for (size_t i = 0; i < 8; i++) acc += mix(p + i * 16, i * 16);
    acc = avalanche(acc);
    for (size_t i = 8; i < n >> 4; i++) acc += mix(p + i * 16, (i - 8) * 16 + 3);
    return avalanche(acc + mix(p + n - 16, 119));
}

/* ---- eight lanes ---------------------------------------------------------------------------------------- */

typedef void (*blocks_fn)(uint64_t acc[8], const unsigned char *p, size_t blocks);

static void stripes_portable(uint64_t acc[8], const unsigned char *p, size_t stripes, const unsigned char *key) {
    for (; stripes > 0; stripes--, p += STRIPE, key += 8)
        for (int i = 0; i < 8; i++) {
            uint64_t x = read64(p + i * 8), keyed = x ^ read64(key + i * 8);
            acc[i ^ 1] += x;
            acc[i] += (keyed & 0xffffffffu) * (keyed >> 32);
        }
}

static void blocks_portable(uint64_t acc[8], const unsigned char *p, size_t blocks) {
    for (; blocks > 0; blocks--, p += BLOCK) {
        stripes_portable(acc, p, STRIPES, secret);
        for (int i = 0; i < 8; i++)
            acc[i] = (acc[i] ^ (acc[i] >> 47) ^ read64(secret + SECRET - STRIPE + i * 8)) * PRIME32_1;
    }
}

#if defined(__x86_64__)

/* One stripe into V vectors of lanes; the macro is the loop body for both widths. */
#define STRIPE_INTO(lanes, V, WIDE, PREFIX, SUFFIX)                                                          \
    for (int v = 0; v < (V); v++) {                                                                          \
        WIDE x = PREFIX##_loadu_##SUFFIX((const WIDE *)(const void *)p + v);                                 \
        WIDE keyed = PREFIX##_xor_##SUFFIX(x, PREFIX##_loadu_##SUFFIX((const WIDE *)(const void *)key + v)); \
        WIDE product = PREFIX##_mul_epu32(keyed, PREFIX##_srli_epi64(keyed, 32));                            \
        WIDE swapped = PREFIX##_shuffle_epi32(x, 0x4e);                                                      \
        (lanes)[v] = PREFIX##_add_epi64((lanes)[v], PREFIX##_add_epi64(product, swapped));                   \
    }
#define SCRAMBLE(lanes, V, WIDE, PREFIX, SUFFIX, ALL32)                                             \
    for (int v = 0; v < (V); v++) {                                                                 \
        WIDE x = PREFIX##_xor_##SUFFIX((lanes)[v], PREFIX##_srli_epi64((lanes)[v], 47));            \
        const unsigned char *end = secret + SECRET - STRIPE;                                        \
        x = PREFIX##_xor_##SUFFIX(x, PREFIX##_loadu_##SUFFIX((const WIDE *)(const void *)end + v)); \
        WIDE high = PREFIX##_slli_epi64(PREFIX##_mul_epu32(PREFIX##_srli_epi64(x, 32), ALL32), 32); \
        (lanes)[v] = PREFIX##_add_epi64(PREFIX##_mul_epu32(x, ALL32), high);                        \
    }

static void blocks_sse2(uint64_t acc[8], const unsigned char *p, size_t blocks) {
    __m128i lanes[4], prime = _mm_set1_epi32((int)PRIME32_1);
    memcpy(lanes, acc, sizeof lanes);
    for (; blocks > 0; blocks--) {
        const unsigned char *key = secret;
        for (int n = 0; n < STRIPES; n++, p += STRIPE, key += 8) STRIPE_INTO(lanes, 4, __m128i, _mm, si128)
        SCRAMBLE(lanes, 4, __m128i, _mm, si128, prime)
    }
    memcpy(acc, lanes, sizeof lanes);
}

__attribute__((target("avx2"))) static void blocks_avx2(uint64_t acc[8], const unsigned char *p, size_t blocks) {
    __m256i lanes[2], prime = _mm256_set1_epi32((int)PRIME32_1);
    memcpy(lanes, acc, sizeof lanes);
    for (; blocks > 0; blocks--) {
        const unsigned char *key = secret;
        for (int n = 0; n < STRIPES; n++, p += STRIPE, key += 8) {
            _mm_prefetch((const char *)p + AHEAD, _MM_HINT_T0);
            STRIPE_INTO(lanes, 2, __m256i, _mm256, si256)
        }
        SCRAMBLE(lanes, 2, __m256i, _mm256, si256, prime)
    }
    memcpy(acc, lanes, sizeof lanes);
}

/* Past the cache, whole lines of `to` at a time, wherever it begins; what stands before its first line and after its last
 * one is copied as usual. */
__attribute__((target("avx2"))) static void copy_blocks_avx2(uint64_t acc[8], const unsigned char *p, size_t blocks,
                                                             unsigned char *to) {
    __m256i lanes[2], prime = _mm256_set1_epi32((int)PRIME32_1);
    size_t head = -(uintptr_t)to % LINE, lines = (blocks * BLOCK - head) / LINE;
    memcpy(lanes, acc, sizeof lanes);
    memcpy(to, p, head);
    for (to += head; blocks > 0; blocks--) {
        const unsigned char *key = secret;
        for (int n = 0; n < STRIPES; n++, p += STRIPE, key += 8) {
            const __m256i *from = (const __m256i *)(const void *)(p + head);
            _mm_prefetch((const char *)p + AHEAD, _MM_HINT_T0);
            if (lines > 0) {
                _mm256_stream_si256((__m256i *)(void *)to, _mm256_loadu_si256(from));
                _mm256_stream_si256((__m256i *)(void *)to + 1, _mm256_loadu_si256(from + 1));
                to += LINE;
                lines--;
            }
            STRIPE_INTO(lanes, 2, __m256i, _mm256, si256)
        }
        SCRAMBLE(lanes, 2, __m256i, _mm256, si256, prime)
    }
    if (head) memcpy(to, p - (LINE - head), LINE - head);
    _mm_sfence();
    memcpy(acc, lanes, sizeof lanes);
}

static blocks_fn fastest(void) {
    return __builtin_cpu_supports("avx2") ? blocks_avx2 : blocks_sse2;
}

/* 1 if it could be done in one go. */
static int copy_blocks_at_once(uint64_t acc[8], const unsigned char *p, size_t blocks, unsigned char *to) {
    if (!__builtin_cpu_supports("avx2")) return 0;
    copy_blocks_avx2(acc, p, blocks, to);
    return 1;
}

#else

#if defined(__aarch64__)

static inline uint64x2_t load2(const unsigned char *p) {
    return vreinterpretq_u64_u8(vld1q_u8(p));
}

static inline void stripe_neon(uint64x2_t lanes[4], const unsigned char *p, const unsigned char *key) {
    for (int v = 0; v < 4; v++) {
        uint64x2_t x = load2(p + 16 * v), keyed = veorq_u64(x, load2(key + 16 * v));
        lanes[v] = vaddq_u64(lanes[v], vextq_u64(x, x, 1));
        lanes[v] = vmlal_u32(lanes[v], vmovn_u64(keyed), vshrn_n_u64(keyed, 32));
    }
}

static void blocks_neon(uint64_t acc[8], const unsigned char *p, size_t blocks) {
    uint64x2_t lanes[4];
    const uint32x2_t prime = vdup_n_u32(PRIME32_1);
    memcpy(lanes, acc, sizeof lanes);
    for (; blocks > 0; blocks--) {
        for (int n = 0; n < STRIPES; n++, p += STRIPE) stripe_neon(lanes, p, secret + 8 * n);
        for (int v = 0; v < 4; v++) { /* scramble: a product of 64 bits out of two of 32 */
            uint64x2_t x = veorq_u64(lanes[v], vshrq_n_u64(lanes[v], 47));
            x = veorq_u64(x, load2(secret + SECRET - STRIPE + 16 * v));
            uint64x2_t high = vshlq_n_u64(vmull_u32(vshrn_n_u64(x, 32), prime), 32);
            lanes[v] = vmlal_u32(high, vmovn_u64(x), prime);
        }
    }
    memcpy(acc, lanes, sizeof lanes);
}

static blocks_fn fastest(void) {
    return blocks_neon;
}

#else

static blocks_fn fastest(void) {
    return blocks_portable;
}

#endif

static int copy_blocks_at_once(uint64_t acc[8], const unsigned char *p, size_t blocks, unsigned char *to) {
    (void)acc, (void)p, (void)blocks, (void)to;
    return 0;
}

#endif

/* Else step by step, so that the second reading is from the cache. */
static void copy_blocks(uint64_t acc[8], const unsigned char *p, size_t blocks, unsigned char *to) {
    if (copy_blocks_at_once(acc, p, blocks, to)) return;
    for (size_t n; blocks > 0; blocks -= n, p += n * BLOCK, to += n * BLOCK) {
        n = blocks < STEP_BLOCKS ? blocks : STEP_BLOCKS;
        fastest()(acc, p, n);
        ravel__copy_far(to, p, n * BLOCK);
    }
}

/* ---- longer than 240 bytes ------------------------------------------------------------------------------ */

static const uint64_t initial[8] = {PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                    PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1};

/* The last block, of 1 to 1024 bytes at p, and the last 64 bytes of the whole input at `end`. */
static uint64_t finish(const uint64_t running[8], const unsigned char *p, size_t n, const unsigned char *end,
                       uint64_t total) {
    RAVEL_ASSERT(n >= 1 && n <= BLOCK && total > MEDIUM_MOST);
    uint64_t acc[8], result = total * PRIME64_1;
    memcpy(acc, running, sizeof acc);
    stripes_portable(acc, p, (n - 1) / STRIPE, secret);
    stripes_portable(acc, end, 1, secret + SECRET - 71);
    for (int i = 0; i < 8; i += 2)
        result += fold128(acc[i] ^ read64(secret + 11 + i * 8), acc[i + 1] ^ read64(secret + 19 + i * 8));
    return avalanche(result);
}

static uint64_t hash_large(const unsigned char *p, size_t n, blocks_fn blocks) {
    RAVEL_ASSERT(n > MEDIUM_MOST);
    uint64_t acc[8];
    size_t whole = (n - 1) / BLOCK;
    memcpy(acc, initial, sizeof acc);
    blocks(acc, p, whole);
    return finish(acc, p + whole * BLOCK, n - whole * BLOCK, p + n - STRIPE, n);
}

static uint64_t hash_with(const void *data, size_t bytes, blocks_fn blocks) {
    if (bytes <= 16) return hash_small(data, bytes);
    return bytes <= MEDIUM_MOST ? hash_medium(data, bytes) : hash_large(data, bytes, blocks);
}

uint64_t ravel__xxh3_of(const void *data, size_t bytes) {
    return hash_with(data, bytes, fastest());
}

uint64_t ravel__xxh3_reference(const void *data, size_t bytes) {
    return hash_with(data, bytes, blocks_portable);
}

/* ---- in pieces ------------------------------------------------------------------------------------------ */

void ravel__xxh3_begin(ravel__xxh3 *state) {
    memcpy(state->acc, initial, sizeof state->acc);
    state->total = 0;
    state->held = 0;
}

/* Blocks that are surely not the last, with their last 64 bytes kept for a short tail after them. */
static void consume(ravel__xxh3 *state, const unsigned char *p, size_t blocks, unsigned char *to) {
    RAVEL_ASSERT(blocks >= 1);
    memcpy(state->last, p + blocks * BLOCK - STRIPE, STRIPE);
    if (to)
        copy_blocks(state->acc, p, blocks, to);
    else
        fastest()(state->acc, p, blocks);
}

/* At the end of the buffer. */
static void hold(ravel__xxh3 *state, const unsigned char *p, size_t bytes, unsigned char *to) {
    RAVEL_ASSERT(state->held + bytes <= BLOCK);
    if (bytes > 0) memcpy(state->buffer + state->held, p, bytes);
    if (bytes > 0 && to) memcpy(to, p, bytes);
    state->held += bytes;
}

/* `to`: NULL, or where a copy goes. */
static void add(ravel__xxh3 *state, const unsigned char *p, size_t bytes, unsigned char *to) {
    state->total += bytes;
    if (state->held + bytes <= BLOCK) {
        hold(state, p, bytes, to);
        return;
    }
    if (state->held > 0) {
        size_t fill = BLOCK - state->held;
        hold(state, p, fill, to);
        consume(state, state->buffer, 1, NULL);
        state->held = 0;
        p += fill;
        bytes -= fill;
        if (to) to += fill;
    }
    size_t whole = bytes > 0 ? (bytes - 1) / BLOCK : 0;
    if (whole > 0) consume(state, p, whole, to);
    hold(state, p + whole * BLOCK, bytes - whole * BLOCK, to ? to + whole * BLOCK : NULL);
}

void ravel__xxh3_add(ravel__xxh3 *state, const void *data, size_t bytes) {
    add(state, data, bytes, NULL);
}

void ravel__xxh3_add_copy(ravel__xxh3 *state, void *to, const void *data, size_t bytes) {
    add(state, data, bytes, to);
}

uint64_t ravel__xxh3_end(const ravel__xxh3 *state) {
    RAVEL_ASSERT(state->held <= BLOCK && (state->total > BLOCK || state->held == state->total));
    if (state->total <= BLOCK) return hash_with(state->buffer, state->held, blocks_portable);
    unsigned char end[STRIPE];
    size_t held = state->held < STRIPE ? state->held : STRIPE;
    memcpy(end, state->last + held, STRIPE - held);
    memcpy(end + STRIPE - held, state->buffer + state->held - held, held);
    return finish(state->acc, state->buffer, state->held, end, state->total);
}
