#include "batch/writer.h"

#include "base/assert.h"

#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
enum { CAN_STREAM = 1 };

static inline void stream_line(char *target, const char *source) {
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)source);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(source + 16));
    __m128i c = _mm_loadu_si128((const __m128i *)(const void *)(source + 32));
    __m128i d = _mm_loadu_si128((const __m128i *)(const void *)(source + 48));
    _mm_stream_si128((__m128i *)(void *)target, a);
    _mm_stream_si128((__m128i *)(void *)(target + 16), b);
    _mm_stream_si128((__m128i *)(void *)(target + 32), c);
    _mm_stream_si128((__m128i *)(void *)(target + 48), d);
}

static inline void fence(void) {
    _mm_sfence();
}
#else
enum { CAN_STREAM = 0 };

static inline void stream_line(char *target, const char *source) {
    memcpy(target, source, RAVEL__LINE);
}

static inline void fence(void) {}
#endif

enum { BLOCK = 1024, AHEAD = 512, STREAM_FROM = 8 << 20 };

int ravel__writer_streams(size_t bytes) {
    return CAN_STREAM && bytes >= STREAM_FROM;
}

static inline size_t into_line(const ravel__writer *writer) {
    return (uintptr_t)writer->at % RAVEL__LINE;
}

void ravel__writer_open(ravel__writer *writer, void *array, int stream) {
    writer->at = array;
    writer->stream = stream;
    writer->plain = (RAVEL__LINE - into_line(writer)) % RAVEL__LINE;
}

void ravel__writer_close(ravel__writer *writer) {
    if (!writer->stream) return;
    size_t waiting = into_line(writer);
    RAVEL_ASSERT(waiting < RAVEL__LINE && writer->plain < RAVEL__LINE);
    if (waiting && !writer->plain) memcpy(writer->at - waiting, writer->line, waiting);
    fence();
}

/* The bytes before the first whole line share it with something that is not ours. Returns how many it took. */
static size_t copy_plain(ravel__writer *writer, const char *source, size_t bytes) {
    size_t n = bytes < writer->plain ? bytes : writer->plain;
    memcpy(writer->at, source, n);
    writer->at += n;
    writer->plain -= n;
    return n;
}

static void copy_lines(ravel__writer *writer, const char *source, size_t bytes) {
    if (writer->plain) {
        size_t n = copy_plain(writer, source, bytes);
        source += n;
        bytes -= n;
        if (writer->plain) return;
    }
    RAVEL_ASSERT(writer->plain == 0);
    size_t begun = into_line(writer);
    if (begun) {
        size_t n = RAVEL__LINE - begun < bytes ? RAVEL__LINE - begun : bytes;
        memcpy(writer->line + begun, source, n);
        writer->at += n;
        if (begun + n < RAVEL__LINE) return;
        stream_line(writer->at - RAVEL__LINE, writer->line);
        source += n;
        bytes -= n;
    }
    char *target = writer->at;
    RAVEL_ASSERT((uintptr_t)target % RAVEL__LINE == 0); /* streaming stores need it */
    for (; bytes >= AHEAD + RAVEL__LINE; bytes -= RAVEL__LINE, source += RAVEL__LINE, target += RAVEL__LINE) {
        __builtin_prefetch(source + AHEAD); /* never past the piece */
        stream_line(target, source);
    }
    for (; bytes >= RAVEL__LINE; bytes -= RAVEL__LINE, source += RAVEL__LINE, target += RAVEL__LINE)
        stream_line(target, source);
    memcpy(writer->line, source, bytes);
    writer->at = target + bytes;
}

void ravel__writer_copy(ravel__writer *writer, const void *source, size_t bytes) {
    if (bytes == 0) return;
    if (writer->stream) {
        copy_lines(writer, source, bytes);
        return;
    }
    memcpy(writer->at, source, bytes);
    writer->at += bytes;
}

/* ---- what is not in memory side by side ----------------------------------------------------------------- */

/* Elements of any alignment. */
typedef uint16_t __attribute__((aligned(1), may_alias)) element2;
typedef uint32_t __attribute__((aligned(1), may_alias)) element4;
typedef uint64_t __attribute__((aligned(1), may_alias)) element8;

/* The steps of cp 2, 4 and 8 are constants, so that the compiler loads whole vectors and shuffles (this file is built
 * with -O3); the source has all the positions in between, so that reading them is allowed. Every line of the source is
 * read for a few of its elements, and processors prefetch no further than a page: what comes NEXT is prefetched here,
 * line by line, never past `end`. */
enum { NEXT = 2048, PIECE = 128 }; /* bytes ahead; bytes of the target between two rounds of prefetching */
#define EVERY(type, step)                                                                   \
    for (int64_t i = 0; i < count; i += PIECE / (int64_t)sizeof(type)) {                    \
        const type *from = (const type *)(const void *)source + i * (step);                 \
        type *to = (type *)(void *)target + i;                                              \
        prefetch_lines((const char *)from + NEXT, (int64_t)(PIECE * (step)), end);          \
        if (count - i >= PIECE / (int64_t)sizeof(type))                                     \
            for (int k = 0; k < (int)(PIECE / sizeof(type)); k++) to[k] = from[k * (step)]; \
        else                                                                                \
            for (int64_t k = 0; k < count - i; k++) to[k] = from[k * (step)];               \
    }
#define DEFINE_COLLECT(name, type)                                                                     \
    static void name(char *target, const char *source, int64_t count, int64_t step, const char *end) { \
        switch (step) {                                                                                \
        case 2: EVERY(type, 2); break;                                                                 \
        case 4: EVERY(type, 4); break;                                                                 \
        case 8: EVERY(type, 8); break;                                                                 \
        default: EVERY(type, step); break;                                                             \
        }                                                                                              \
    }
__attribute__((always_inline)) static inline void prefetch_lines(const char *at, int64_t bytes, const char *end) {
    for (; bytes > 0 && at < end; bytes -= RAVEL__LINE, at += RAVEL__LINE) __builtin_prefetch(at);
}
DEFINE_COLLECT(collect1, uint8_t)
DEFINE_COLLECT(collect2, element2)
DEFINE_COLLECT(collect4, element4)
DEFINE_COLLECT(collect8, element8)

static void collect(char *target, const char *source, int64_t count, int64_t step, size_t each, const char *end) {
    switch (each) {
    case 1: collect1(target, source, count, step, end); break;
    case 2: collect2(target, source, count, step, end); break;
    case 4: collect4(target, source, count, step, end); break;
    default: collect8(target, source, count, step, end); break;
    }
}

void ravel__writer_take(ravel__writer *writer, const char *source, int64_t count, int64_t step, size_t each) {
    int64_t stride = step * (int64_t)each;
    RAVEL_ASSERT(count >= 0 && step >= 1 && each >= 1);
    if (step == 1) {
        ravel__writer_copy(writer, source, (size_t)count * each);
    } else if (each > 8 || (each & (each - 1))) {
        for (int64_t i = 0; i < count; i++) ravel__writer_copy(writer, source + i * stride, each);
    } else {
        char block[BLOCK];
        for (int64_t i = 0, room = BLOCK / (int64_t)each; i < count; i += room) {
            int64_t n = count - i < room ? count - i : room;
            collect(block, source + i * stride, n, step, each, source + count * stride);
            ravel__writer_copy(writer, block, (size_t)n * each);
        }
    }
}

/* ---- what is not in memory at all ----------------------------------------------------------------------- */

static inline void put_line(ravel__writer *writer, const char *line) {
    if (writer->stream && into_line(writer)) { /* an array that is not aligned to its elements */
        copy_lines(writer, line, RAVEL__LINE);
        return;
    }
    if (writer->stream)
        stream_line(writer->at, line);
    else
        memcpy(writer->at, line, RAVEL__LINE);
    writer->at += RAVEL__LINE;
}

/* Elements up to the end of the line that was begun: after them come whole lines. */
static int64_t to_line_end(const ravel__writer *writer, int64_t each, int64_t count) {
    int64_t n = (int64_t)((RAVEL__LINE - into_line(writer)) % RAVEL__LINE) / each;
    return n < count ? n : count;
}

void ravel__writer_fill(ravel__writer *writer, const void *pattern, int32_t bytes, int64_t count) {
    RAVEL_ASSERT(bytes >= 1 && bytes <= 8 && RAVEL__LINE % bytes == 0);
    if (count <= 0) return;
    if (count == 1) {
        ravel__writer_copy(writer, pattern, (size_t)bytes);
        return;
    }
    char line[RAVEL__LINE];
    int64_t in_line = RAVEL__LINE / bytes, head = to_line_end(writer, bytes, count);
    for (int64_t i = 0; i < in_line && i < count; i++) memcpy(line + i * bytes, pattern, (size_t)bytes);
    ravel__writer_copy(writer, line, (size_t)(head * bytes));
    for (count -= head; count >= in_line; count -= in_line) put_line(writer, line);
    ravel__writer_copy(writer, line, (size_t)(count * bytes));
}

enum { NUMBERS = RAVEL__LINE / sizeof(int32_t) };

/* The inner loops' length is known at compile time: compilers make vectors of those at any optimisation level. */
void ravel__writer_count_up(ravel__writer *writer, int64_t first, int64_t step, int64_t count) {
    uint32_t line[NUMBERS], by = (uint32_t)step;
    int64_t head = to_line_end(writer, sizeof *line, count);
    for (uint32_t j = 0; j < NUMBERS; j++) line[j] = (uint32_t)first + j * by;
    ravel__writer_copy(writer, line, (size_t)head * sizeof *line);
    for (uint32_t j = 0; j < NUMBERS; j++) line[j] += (uint32_t)head * by;
    for (count -= head; count >= NUMBERS; count -= NUMBERS) {
        put_line(writer, (const char *)line);
        for (uint32_t j = 0; j < NUMBERS; j++) line[j] += NUMBERS * by;
    }
    ravel__writer_copy(writer, line, (size_t)count * sizeof *line);
}
