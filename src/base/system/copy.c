#include "base/assert.h"
#include "base/system/copy.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)
#include <emmintrin.h>

enum { FAR_LEAST = 4096 };

/* 64 bytes at a time to an aligned place; returns how many were copied. */
static size_t copy_lines(char *to, const char *from, size_t bytes) {
    RAVEL_ASSERT((uintptr_t)to % 16 == 0);
    size_t at = 0;
    for (; at + 64 <= bytes; at += 64) {
        __m128i x[4];
        memcpy(x, from + at, sizeof x);
        for (int i = 0; i < 4; i++) _mm_stream_si128((__m128i *)(void *)(to + at + 16 * i), x[i]);
    }
    _mm_sfence();
    return at;
}
#endif

void ravel__copy_far(void *to, const void *from, size_t bytes) {
    char *out = to;
    const char *in = from;
#if defined(__x86_64__)
    if (bytes >= FAR_LEAST) {
        size_t head = (size_t)(-(uintptr_t)out & 63);
        RAVEL_ASSERT(head < 64 && head <= bytes);
        memcpy(out, in, head);
        size_t lines = head + copy_lines(out + head, in + head, bytes - head);
        out += lines, in += lines, bytes -= lines;
    }
#endif
    if (bytes > 0) memcpy(out, in, bytes);
}
