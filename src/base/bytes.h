/* Little-endian numbers at any address: what goes over the wire is written field by field. */
#ifndef RAVEL_BASE_BYTES_H
#define RAVEL_BASE_BYTES_H

#include <stdint.h>
#include <string.h>

static inline void ravel__put16(unsigned char *p, uint16_t x) {
    p[0] = (unsigned char)x;
    p[1] = (unsigned char)(x >> 8);
}
static inline void ravel__put32(unsigned char *p, uint32_t x) {
    ravel__put16(p, (uint16_t)x);
    ravel__put16(p + 2, (uint16_t)(x >> 16));
}
static inline void ravel__put64(unsigned char *p, uint64_t x) {
    ravel__put32(p, (uint32_t)x);
    ravel__put32(p + 4, (uint32_t)(x >> 32));
}
static inline uint16_t ravel__get16(const unsigned char *p) {
    return (uint16_t)(p[0] | p[1] << 8);
}
static inline uint32_t ravel__get32(const unsigned char *p) {
    return ravel__get16(p) | (uint32_t)ravel__get16(p + 2) << 16;
}
static inline uint64_t ravel__get64(const unsigned char *p) {
    return ravel__get32(p) | (uint64_t)ravel__get32(p + 4) << 32;
}

#endif
