/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104): what the handshake of a link needs to prove a shared token. */
#ifndef RAVEL_COMM_SHA256_H
#define RAVEL_COMM_SHA256_H

#include <stddef.h>
#include <stdint.h>

enum { RAVEL__SHA256_BYTES = 32 };

typedef struct ravel__sha256 {
    uint32_t state[8];
    uint64_t bytes; /* so far */
    uint8_t block[64];
} ravel__sha256;

void ravel__sha256_begin(ravel__sha256 *h);
void ravel__sha256_add(ravel__sha256 *h, const void *data, size_t bytes);
void ravel__sha256_end(ravel__sha256 *h, uint8_t digest[RAVEL__SHA256_BYTES]);

typedef struct ravel__hmac {
    ravel__sha256 inner, outer;
} ravel__hmac;

void ravel__hmac_begin(ravel__hmac *h, const void *key, size_t bytes);
void ravel__hmac_add(ravel__hmac *h, const void *data, size_t bytes);
void ravel__hmac_end(ravel__hmac *h, uint8_t digest[RAVEL__SHA256_BYTES]);

/* Whether two digests are equal, in a time that does not depend on where they differ. */
int ravel__digest_equal(const uint8_t a[RAVEL__SHA256_BYTES], const uint8_t b[RAVEL__SHA256_BYTES]);

#endif
