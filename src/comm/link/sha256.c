#include "comm/link/sha256.h"

#include "base/assert.h"

#include <string.h>

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int by) {
    return x >> by | x << (32 - by);
}

static void expand(const uint8_t *block, uint32_t *w) {
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] =
            w[i - 16] + w[i - 7] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
}

static void compress(ravel__sha256 *h, const uint8_t *block) {
    uint32_t w[64], v[8];
    expand(block, w);
    memcpy(v, h->state, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t e = v[4], a = v[0];
        uint32_t one = v[7] + (rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25)) + ((e & v[5]) ^ (~e & v[6])) +
                       round_constants[i] + w[i];
        uint32_t two = (rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22)) + ((a & v[1]) ^ (a & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += one;
        v[0] = one + two;
    }
    for (int i = 0; i < 8; i++) h->state[i] += v[i];
}

void ravel__sha256_begin(ravel__sha256 *h) {
    static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    memcpy(h->state, start, sizeof start);
    h->bytes = 0;
}

void ravel__sha256_add(ravel__sha256 *h, const void *data, size_t bytes) {
    const uint8_t *from = data;
    while (bytes > 0) {
        size_t used = h->bytes % 64, part = 64 - used < bytes ? 64 - used : bytes;
        memcpy(h->block + used, from, part);
        h->bytes += part;
        from += part;
        bytes -= part;
        if (used + part == 64) compress(h, h->block);
    }
}

void ravel__sha256_end(ravel__sha256 *h, uint8_t digest[RAVEL__SHA256_BYTES]) {
    static const uint8_t one = 0x80, zero = 0;
    uint64_t bits = h->bytes * 8;
    uint8_t length[8];
    ravel__sha256_add(h, &one, 1);
    while (h->bytes % 64 != 56) ravel__sha256_add(h, &zero, 1);
    RAVEL_ASSERT((h->bytes + 8) % 64 == 0); /* the length ends the last block */
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)(bits >> (56 - 8 * i));
    ravel__sha256_add(h, length, 8);
    for (int i = 0; i < 32; i++) digest[i] = (uint8_t)(h->state[i / 4] >> (24 - 8 * (i % 4)));
}

void ravel__hmac_begin(ravel__hmac *h, const void *key, size_t bytes) {
    RAVEL_ASSERT(key || bytes == 0);
    uint8_t block[64] = {0}, pad[64];
    if (bytes > 64) {
        ravel__sha256_begin(&h->inner);
        ravel__sha256_add(&h->inner, key, bytes);
        ravel__sha256_end(&h->inner, block);
    } else if (bytes > 0) {
        memcpy(block, key, bytes);
    }
    for (int i = 0; i < 64; i++) pad[i] = block[i] ^ 0x36;
    ravel__sha256_begin(&h->inner);
    ravel__sha256_add(&h->inner, pad, 64);
    for (int i = 0; i < 64; i++) pad[i] = block[i] ^ 0x5c;
    ravel__sha256_begin(&h->outer);
    ravel__sha256_add(&h->outer, pad, 64);
}

void ravel__hmac_add(ravel__hmac *h, const void *data, size_t bytes) {
    ravel__sha256_add(&h->inner, data, bytes);
}

void ravel__hmac_end(ravel__hmac *h, uint8_t digest[RAVEL__SHA256_BYTES]) {
    uint8_t inner[RAVEL__SHA256_BYTES];
    ravel__sha256_end(&h->inner, inner);
    ravel__sha256_add(&h->outer, inner, sizeof inner);
    ravel__sha256_end(&h->outer, digest);
}

int ravel__digest_equal(const uint8_t a[RAVEL__SHA256_BYTES], const uint8_t b[RAVEL__SHA256_BYTES]) {
    volatile uint8_t difference = 0;
    for (int i = 0; i < RAVEL__SHA256_BYTES; i++) difference = difference | (uint8_t)(a[i] ^ b[i]);
    return difference == 0;
}
