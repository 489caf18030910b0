#include "base/assert.h"
#include "base/hash.h"

void ravel__hash_i64s(ravel__hash *h, const int64_t *x, size_t count) {
    RAVEL_ASSERT(x || !count);
    ravel__hash_u64(h, count);
    for (size_t i = 0; i < count; i++) ravel__hash_u64(h, (uint64_t)x[i]);
}

void ravel__hash_i32s(ravel__hash *h, const int32_t *x, size_t count) {
    RAVEL_ASSERT(x || !count);
    ravel__hash_u64(h, count);
    size_t i = 0;
    for (; i + 1 < count; i += 2) ravel__hash_u64(h, (uint64_t)(uint32_t)x[i] << 32 | (uint32_t)x[i + 1]);
    if (i < count) ravel__hash_u64(h, (uint32_t)x[i]);
}

void ravel__hash_bytes(ravel__hash *h, const void *data, size_t bytes) {
    RAVEL_ASSERT(data || !bytes);
    const unsigned char *p = data;
    ravel__hash_u64(h, bytes);
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        for (size_t j = 0; j < 8 && i + j < bytes; j++) word |= (uint64_t)p[i + j] << (8 * j);
        ravel__hash_u64(h, word);
    }
}
