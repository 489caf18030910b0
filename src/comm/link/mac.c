/* The loop over a chunk exists four times: portable, NEON, SSE2 (which every x86-64 has) and AVX2 (if the processor has
 * it).
 *
 *     chunk     [a0 b0 a1 b1 a2 b2 a3 b3] [ ... ]    units of 32 bytes: four pairs of 32-bit words
 *     digest 0  += (a + k)(b + k')                   keys of this unit
 *     digest 1  += (a + k)(b + k')                   keys of the next unit */
#include "comm/link/mac.h"

#include "base/assert.h"

#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__AARCH64EL__)
#include <arm_neon.h>
#endif

enum { UNIT = RAVEL__MAC_UNIT, WORDS = UNIT / 4, POLY_BITS = 61 };
static const uint64_t prime = ((uint64_t)1 << POLY_BITS) - 1;

static inline uint32_t load32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static inline uint64_t load64(const uint8_t *p) {
    return load32(p) | (uint64_t)load32(p + 4) << 32;
}

/* ---- SipHash-2-4 ----------------------------------------------------------------------------------------- */

static inline uint64_t rotate(uint64_t x, int bits) {
    return x << bits | x >> (64 - bits);
}

static inline void sip_round(uint64_t v[4]) {
    v[0] += v[1], v[1] = rotate(v[1], 13) ^ v[0], v[0] = rotate(v[0], 32);
    v[2] += v[3], v[3] = rotate(v[3], 16) ^ v[2];
    v[0] += v[3], v[3] = rotate(v[3], 21) ^ v[0];
    v[2] += v[1], v[1] = rotate(v[1], 17) ^ v[2], v[2] = rotate(v[2], 32);
}

static inline void sip_word(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    sip_round(v);
    sip_round(v);
    v[0] ^= word;
}

uint64_t ravel__siphash(const uint64_t key[2], const void *text, size_t bytes) {
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                     key[1] ^ 0x7465646279746573u};
    const uint8_t *p = text;
    uint64_t last = (uint64_t)bytes << 56;
    for (; bytes >= 8; bytes -= 8, p += 8) sip_word(v, load64(p));
    for (size_t i = 0; i < bytes; i++) last |= (uint64_t)p[i] << 8 * i;
    sip_word(v, last);
    v[2] ^= 0xff;
    for (int i = 0; i < 4; i++) sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* ---- keys ------------------------------------------------------------------------------------------------ */

void ravel__mac_key_make(ravel__mac_key *key, const uint8_t secret[RAVEL__MAC_SECRET]) {
    const uint64_t words[2] = {load64(secret), load64(secret + 8)},
                   rest[2] = {load64(secret + 16), load64(secret + 24)};
    enum { KEYS = sizeof key->words / sizeof *key->words };
    _Static_assert(KEYS % 2 == 0, "two words at a time");
    for (uint32_t i = 0; i < KEYS; i += 2) {
        const uint8_t text[2] = {(uint8_t)i, (uint8_t)(i >> 8)};
        uint64_t two = ravel__siphash(words, text, sizeof text);
        key->words[i] = (uint32_t)two;
        key->words[i + 1] = (uint32_t)(two >> 32);
    }
    uint64_t *const others[] = {key->points, key->points + 1, key->text, key->text + 1, key->body, key->body + 1};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const uint8_t text[1] = {(uint8_t)i};
        *others[i] = ravel__siphash(rest, text, sizeof text);
    }
    for (int i = 0; i < 2; i++) key->points[i] &= ((uint64_t)1 << (POLY_BITS - 1)) - 1;
}

uint64_t ravel__mac_text(const ravel__mac_key *key, const void *text, size_t bytes) {
    return ravel__siphash(key->text, text, bytes);
}

/* ---- the digests of a chunk ------------------------------------------------------------------------------- */

void ravel__mac_digest_reference(const ravel__mac_key *key, const uint8_t *chunk, size_t bytes, uint64_t digest[2]) {
    RAVEL_ASSERT(bytes % UNIT == 0 && bytes <= RAVEL__MAC_CHUNK);
    const uint32_t *k = key->words;
    digest[0] = digest[1] = 0;
    for (size_t at = 0; at < bytes; at += 8, k += 2) {
        uint32_t a = load32(chunk + at), b = load32(chunk + at + 4);
        digest[0] += (uint64_t)(uint32_t)(a + k[0]) * (uint32_t)(b + k[1]);
        digest[1] += (uint64_t)(uint32_t)(a + k[WORDS]) * (uint32_t)(b + k[WORDS + 1]);
    }
}

#if defined(__x86_64__)

static void digest_sse2(const ravel__mac_key *key, const uint8_t *chunk, size_t bytes, uint64_t digest[2]) {
    const __m128i *p = (const __m128i *)(const void *)chunk, *k = (const __m128i *)(const void *)key->words;
    __m128i sum[2] = {_mm_setzero_si128(), _mm_setzero_si128()};
    uint64_t lanes[2];
    for (size_t i = 0; i < bytes / sizeof *p; i++) {
        __m128i x = _mm_loadu_si128(p + i);
        for (int pass = 0; pass < 2; pass++) {
            __m128i t = _mm_add_epi32(x, _mm_loadu_si128(k + i + 2 * pass));
            sum[pass] = _mm_add_epi64(sum[pass], _mm_mul_epu32(t, _mm_srli_epi64(t, 32)));
        }
    }
    for (int pass = 0; pass < 2; pass++) {
        memcpy(lanes, &sum[pass], sizeof lanes);
        digest[pass] = lanes[0] + lanes[1];
    }
}

__attribute__((target("avx2"))) static void digest_avx2(const ravel__mac_key *key, const uint8_t *chunk, size_t bytes,
                                                        uint64_t digest[2]) {
    const __m256i *p = (const __m256i *)(const void *)chunk, *k = (const __m256i *)(const void *)key->words;
    __m256i one = _mm256_setzero_si256(), two = one, next = _mm256_loadu_si256(k);
    uint64_t lanes[4];
    for (size_t i = 0; i < bytes / sizeof *p; i++) {
        __m256i x = _mm256_loadu_si256(p + i), t = _mm256_add_epi32(x, next);
        next = _mm256_loadu_si256(k + i + 1);
        one = _mm256_add_epi64(one, _mm256_mul_epu32(t, _mm256_srli_epi64(t, 32)));
        t = _mm256_add_epi32(x, next);
        two = _mm256_add_epi64(two, _mm256_mul_epu32(t, _mm256_srli_epi64(t, 32)));
    }
    memcpy(lanes, &one, sizeof lanes);
    digest[0] = lanes[0] + lanes[1] + lanes[2] + lanes[3];
    memcpy(lanes, &two, sizeof lanes);
    digest[1] = lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

void ravel__mac_digest(const ravel__mac_key *key, const uint8_t *chunk, size_t bytes, uint64_t digest[2]) {
    RAVEL_ASSERT(bytes % UNIT == 0 && bytes <= RAVEL__MAC_CHUNK);
    if (__builtin_cpu_supports("avx2"))
        digest_avx2(key, chunk, bytes, digest);
    else
        digest_sse2(key, chunk, bytes, digest);
}

#elif defined(__AARCH64EL__)

void ravel__mac_digest(const ravel__mac_key *key, const uint8_t *chunk, size_t bytes, uint64_t digest[2]) {
    RAVEL_ASSERT(bytes % UNIT == 0 && bytes <= RAVEL__MAC_CHUNK);
    const uint32_t *k = key->words;
    uint64x2_t sum[2] = {vdupq_n_u64(0), vdupq_n_u64(0)};
    for (size_t at = 0; at < bytes; at += UNIT, k += WORDS) {
        uint32x4_t x = vreinterpretq_u32_u8(vld1q_u8(chunk + at)), y = vreinterpretq_u32_u8(vld1q_u8(chunk + at + 16));
        for (int pass = 0; pass < 2; pass++) {
            uint32x4_t s = vaddq_u32(x, vld1q_u32(k + WORDS * pass)), t = vaddq_u32(y, vld1q_u32(k + WORDS * pass + 4));
            uint32x4_t a = vuzp1q_u32(s, t), b = vuzp2q_u32(s, t);
            sum[pass] = vmlal_u32(sum[pass], vget_low_u32(a), vget_low_u32(b));
            sum[pass] = vmlal_high_u32(sum[pass], a, b);
        }
    }
    for (int pass = 0; pass < 2; pass++) digest[pass] = vaddvq_u64(sum[pass]);
}

#else

void ravel__mac_digest(const ravel__mac_key *key, const uint8_t *chunk, size_t bytes, uint64_t digest[2]) {
    ravel__mac_digest_reference(key, chunk, bytes, digest);
}

#endif

/* ---- bodies ---------------------------------------------------------------------------------------------- */

/* sum * point + word modulo the prime; sum below 2 * prime, the others below 2^60. */
static inline uint64_t step(uint64_t sum, uint64_t point, uint64_t word) {
    __extension__ typedef unsigned __int128 u128;
    u128 product = (u128)sum * point + word;
    uint64_t folded = ((uint64_t)product & prime) + (uint64_t)(product >> POLY_BITS);
    return folded >= prime ? folded - prime : folded;
}

/* Two digests are three words below 2^60. */
static void take_chunk(ravel__mac *m, const uint8_t *chunk, size_t bytes) {
    const uint64_t low = ((uint64_t)1 << 60) - 1;
    uint64_t digest[2];
    ravel__mac_digest(m->key, chunk, bytes, digest);
    const uint64_t words[3] = {digest[0] & low, digest[1] & low, digest[0] >> 60 | digest[1] >> 60 << 4};
    for (int w = 0; w < 3; w++)
        for (int i = 0; i < 2; i++) m->sums[i] = step(m->sums[i], m->key->points[i], words[w]);
}

void ravel__mac_begin(ravel__mac *m, const ravel__mac_key *key, uint64_t number) {
    m->key = key;
    m->number = number;
    m->total = m->held = 0;
    m->sums[0] = m->sums[1] = 0;
}

void ravel__mac_add(ravel__mac *m, const void *data, size_t bytes) {
    const uint8_t *from = data;
    RAVEL_ASSERT(m->held < RAVEL__MAC_CHUNK);
    m->total += bytes;
    if (m->held > 0 || bytes < RAVEL__MAC_CHUNK) {
        size_t room = RAVEL__MAC_CHUNK - m->held, part = bytes < room ? bytes : room;
        if (part > 0) memcpy(m->buffer + m->held, from, part);
        m->held += part;
        from += part, bytes -= part;
        if (m->held < RAVEL__MAC_CHUNK) return;
        take_chunk(m, m->buffer, RAVEL__MAC_CHUNK);
        m->held = 0;
    }
    for (; bytes >= RAVEL__MAC_CHUNK; from += RAVEL__MAC_CHUNK, bytes -= RAVEL__MAC_CHUNK)
        take_chunk(m, from, RAVEL__MAC_CHUNK);
    if (bytes > 0) memcpy(m->buffer, from, bytes);
    m->held = bytes;
}

uint64_t ravel__mac_end(ravel__mac *m) {
    if (m->held > 0) {
        size_t whole = (m->held + UNIT - 1) / UNIT * UNIT;
        memset(m->buffer + m->held, 0, whole - m->held);
        take_chunk(m, m->buffer, whole);
    }
    const uint64_t words[4] = {m->number, m->total, m->sums[0], m->sums[1]};
    uint8_t text[sizeof words];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (uint8_t)(words[i / 8] >> i % 8 * 8);
    return ravel__siphash(m->key->body, text, sizeof text);
}
