#include "device_body.h"

#include "base/rng.h"
#include "base/sparse.h"
#include "device/handle.h"
#include "device/shared.h"

#include "check.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 3 << 20, SECONDS = 30 };

static void fill_pattern(unsigned char *p, size_t bytes, unsigned seed) {
    for (size_t i = 0; i < bytes; i++) p[i] = (unsigned char)(i * 31 + seed + (i >> 9));
}

void device_body_moves(ravel_device *device) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_stream *one = NULL, *two = NULL;
    ravel_event *event = NULL;
    void *a = NULL, *b = NULL, *pinned = NULL;
    unsigned char *in = malloc(BYTES), *out = calloc(1, BYTES);
    int32_t done = 0;
    CHECK(in && out);
    fill_pattern(in, BYTES, 7);
    CHECK_OK(ravel_stream_create(device, &one, &err), &err);
    CHECK_OK(ravel_stream_create(device, &two, &err), &err);
    CHECK_OK(ravel_event_create(device, &event, &err), &err);
    CHECK_OK(ravel_event_test(event, &done, &err), &err);
    CHECK_EQ(done, 1);
    CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, BYTES, one, &a, &err), &err);
    CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, BYTES, two, &b, &err), &err);
    CHECK_OK(ravel_device_alloc(device, RAVEL_PINNED, BYTES, two, &pinned, &err), &err);
    /* host -> device in one stream; device -> device -> pinned in the other, after it */
    CHECK_OK(ravel_device_copy(device, a, in, BYTES, one, &err), &err);
    memset(in, 0, BYTES); /* plain host memory was read already */
    CHECK_OK(ravel_device_fill(device, a, 0xab, 1000, one, &err), &err);
    CHECK_OK(ravel_event_record(event, one, &err), &err);
    CHECK_OK(ravel_event_order(event, two, &err), &err);
    CHECK_OK(ravel_device_copy(device, b, a, BYTES, two, &err), &err);
    CHECK_OK(ravel_device_copy(device, pinned, b, BYTES, two, &err), &err);
    CHECK_OK(ravel_stream_wait(two, SECONDS, &err), &err);
    CHECK_OK(ravel_event_wait(event, SECONDS, &err), &err);
    fill_pattern(in, BYTES, 7);
    memset(in, 0xab, 1000);
    CHECK(memcmp(in, pinned, BYTES) == 0);
    /* ravel_stream_follow orders, and brings the bytes back to plain memory */
    CHECK_OK(ravel_device_fill(device, b, 0x11, BYTES, two, &err), &err);
    CHECK_OK(ravel_stream_follow(one, two, &err), &err);
    CHECK_OK(ravel_device_copy(device, out, b, BYTES, one, &err), &err);
    CHECK_OK(ravel_stream_wait(one, SECONDS, &err), &err);
    for (int i = 0; i < BYTES; i += 997) CHECK_EQ(out[i], 0x11);
    ravel_device_release(device, a, one);
    ravel_device_release(device, b, two);
    ravel_device_release(device, pinned, two);
    ravel_event_free(event);
    ravel_stream_free(one);
    ravel_stream_free(two);
    free(in);
    free(out);
}

static int64_t driver_allocs(ravel_device *device) {
    ravel_device_info info = {.size = sizeof info};
    return ravel_device_get_info(device, &info, NULL) == RAVEL_OK ? info.driver_allocs : -1;
}

void device_body_cache(ravel_device *device) {
    enum { BLOCKS = 12, ROUNDS = 5 };
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_stream *streams[2] = {NULL, NULL};
    int64_t before = 0;
    for (int i = 0; i < 2; i++) CHECK_OK(ravel_stream_create(device, &streams[i], &err), &err);
    for (int round = 0; round < ROUNDS; round++) {
        void *blocks[BLOCKS];
        if (round == 1) before = driver_allocs(device);
        for (int i = 0; i < BLOCKS; i++) {
            size_t bytes = (size_t)(100 + i * i * 777);
            CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, bytes, streams[(i + round) % 2], &blocks[i], &err), &err);
            CHECK_EQ((uintptr_t)blocks[i] % 256, 0);
            CHECK_OK(ravel_device_fill(device, blocks[i], (unsigned char)i, bytes, streams[(i + round) % 2], &err),
                     &err);
        }
        for (int i = 0; i < BLOCKS; i++) {
            unsigned char first = 99, last = 99;
            size_t bytes = (size_t)(100 + i * i * 777);
            ravel_stream *s = streams[(i + round) % 2];
            CHECK_OK(ravel_device_copy(device, &first, blocks[i], 1, s, &err), &err);
            CHECK_OK(ravel_device_copy(device, &last, (char *)blocks[i] + bytes - 1, 1, s, &err), &err);
            CHECK_OK(ravel_stream_wait(s, SECONDS, &err), &err);
            CHECK(first == i && last == i);
            ravel_device_release(device, blocks[i], s);
        }
    }
    CHECK_EQ(driver_allocs(device), before);
    ravel_device_info info = {.size = sizeof info};
    CHECK_OK(ravel_device_get_info(device, &info, &err), &err);
    CHECK_EQ(info.used_bytes, 0);
    CHECK(info.cached_bytes > 0);
    for (int i = 0; i < 2; i++) CHECK_OK(ravel_stream_wait(streams[i], SECONDS, &err), &err);
    for (int i = 0; i < 2; i++) ravel_stream_free(streams[i]);
}

/* ---- two processes -------------------------------------------------------------------------------------- */

/* Maps what comes over the socket and checks it before and after the maker has gone. 0: all was right. */
static int reader(const char *name, int socket) {
    ravel_device *device = NULL;
    ravel_stream *stream = NULL;
    ravel__shared *shared = NULL;
    size_t bytes = 0, size = sizeof bytes;
    int fd = -1;
    char word[8] = "", ready = 1;
    if (ravel_device_open(name, &device, NULL) || ravel_stream_create(device, &stream, NULL)) return 1;
    if (ravel__fd_recv(socket, &fd, &bytes, &size, SECONDS, NULL) || size != sizeof bytes) return 2;
    if (ravel__shared_import(device, fd, bytes, 0, &shared, NULL)) return 3;
    (void)close(fd);
    for (int i = 0; i < 2; i++) {
        char *data = ravel__shared_data(shared);
        if (ravel_device_copy(device, word, data + bytes - 8, 8, stream, NULL)) return 4;
        if (ravel_stream_wait(stream, SECONDS, NULL)) return 5;
        if (memcmp(word, "\x5e\x5e\x5e\x5e\x5e\x5e\x5e\x5e", 8) != 0) return 6;
        memset(word, 0, sizeof word);
        if (i == 0 && write(socket, &ready, 1) != 1) return 7;
        if (i == 0 && read(socket, &ready, 1) != 0) return 8; /* until the maker has closed */
    }
    ravel__shared_free(shared);
    ravel_stream_free(stream);
    ravel_device_free(device);
    return 0;
}

/* The maker is a process of its own as well: a forked child cannot use a CUDA that its parent has begun. */
static int maker(const char *name, int socket) {
    ravel_device *device = NULL;
    ravel_stream *stream = NULL;
    ravel__shared *shared = NULL;
    char ready = 0;
    if (ravel_device_open(name, &device, NULL) || ravel_stream_create(device, &stream, NULL)) return 11;
    if (ravel__shared_create(device, BYTES + 5, &shared, NULL)) return 12;
    size_t bytes = ravel__shared_bytes(shared);
    if (bytes < BYTES + 5 || ravel__shared_fd(shared) < 0) return 13;
    if (ravel_device_fill(device, ravel__shared_data(shared), 0x5e, bytes, stream, NULL)) return 14;
    if (ravel_stream_wait(stream, SECONDS, NULL)) return 15;
    if (ravel__fd_send(socket, ravel__shared_fd(shared), &bytes, sizeof bytes, SECONDS, NULL)) return 16;
    if (read(socket, &ready, 1) != 1) return 17;
    ravel__shared_free(shared);
    ravel_stream_free(stream);
    ravel_device_free(device);
    return 0;
}

void device_body_share(const char *name) {
    int pair[2], status;
    pid_t children[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    (void)fflush(NULL);
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            (void)close(pair[1 - i]);
            (void)alarm(2 * SECONDS);
            _exit(i ? reader(name, pair[1]) : maker(name, pair[0]));
        }
    }
    (void)close(pair[0]);
    (void)close(pair[1]);
    for (int i = 0; i < 2; i++) {
        CHECK(waitpid(children[i], &status, 0) == children[i]);
        CHECK_EQ(status, 0);
    }
}

/* ---- comparing ------------------------------------------------------------------------------------------ */

enum { COMPARED = 12, COMPARED_MOST = 300 << 10 };

typedef struct compared {
    ravel__compare_span spans[COMPARED];
    uint64_t used;
    int64_t bytes; /* of a buffer */
    unsigned char *base, *fresh, *out;
} compared;

/* A share of a span's elements: none, all, or any between; or the last one of every `apart`, for gaps of any length. */
static void change_span(ravel__rng *rng, const compared *c, const ravel__compare_span *s) {
    uint64_t share = ravel__rng_below(rng, 3) ? ravel__rng_below(rng, 1000) : ravel__rng_below(rng, 2) * 1000;
    int64_t apart = ravel__rng_below(rng, 4) ? 0 : 1 + (int64_t)ravel__rng_below(rng, 3000);
    for (int64_t i = 0; i < s->bytes / s->each; i++) {
        int differs = apart ? i % apart == apart - 1 : ravel__rng_below(rng, 1000) < share;
        int64_t byte = i * s->each + (int64_t)ravel__rng_below(rng, (uint64_t)s->each);
        if (differs) c->fresh[s->at + byte] ^= (unsigned char)(1 << ravel__rng_below(rng, 8));
    }
}

static int32_t lay_out_spans(ravel__rng *rng, compared *c) {
    int32_t blocks = 1 + (int32_t)ravel__rng_below(rng, COMPARED);
    memset(c->spans, 0, sizeof c->spans);
    c->bytes = 0;
    for (int32_t b = 0; b < blocks; b++) {
        int32_t each = 1 << ravel__rng_below(rng, 4);
        int64_t most = b == 0  ? COMPARED_MOST
                       : b % 3 ? 40
                               : 20000,
                count = 1 + (int64_t)ravel__rng_below(rng, (uint64_t)(most / each));
        c->spans[b] = (ravel__compare_span){.at = c->bytes, .bytes = (int32_t)count * each, .each = each};
        c->bytes += (count * each + 15) / 16 * 16 + 16 * (int64_t)ravel__rng_below(rng, 3);
    }
    for (int64_t i = 0; i < c->bytes; i++) c->base[i] = (unsigned char)ravel__rng_below(rng, 256);
    memcpy(c->fresh, c->base, (size_t)c->bytes);
    for (int32_t b = 0; b < blocks; b++) change_span(rng, c, &c->spans[b]);
    return blocks;
}

static void *put_there(ravel_device *d, ravel_stream *stream, const void *data, size_t bytes) {
    void *there = NULL;
    EXPECT(ravel_device_alloc(d, RAVEL_DEVICE, bytes, stream, &there, NULL) == RAVEL_OK);
    if (there && data) EXPECT(ravel_device_copy(d, there, data, bytes, stream, NULL) == RAVEL_OK);
    return there;
}

/* Spans and `used` come back into `c`, and the bytes into c->out. */
static void compare_there(ravel_device *d, ravel_stream *stream, compared *c, int32_t blocks) {
    size_t bytes = (size_t)c->bytes, lists = (size_t)blocks * sizeof *c->spans;
    ravel_error err = RAVEL_ERROR_INIT;
    c->used = 0;
    void *fresh = put_there(d, stream, c->fresh, bytes), *base = put_there(d, stream, c->base, bytes);
    void *out = put_there(d, stream, NULL, bytes), *used = put_there(d, stream, &c->used, sizeof c->used);
    void *spans = put_there(d, stream, c->spans, lists);
    const ravel__compare_job job = {
        .fresh = fresh, .base = base, .spans = spans, .blocks = blocks, .out = out, .used = used};
    EXPECT(ravel__launch_compare(stream, &job, &err) == RAVEL_OK);
    EXPECT(ravel_device_copy(d, c->spans, spans, lists, stream, &err) == RAVEL_OK);
    EXPECT(ravel_device_copy(d, &c->used, used, sizeof c->used, stream, &err) == RAVEL_OK);
    EXPECT(ravel_device_copy(d, c->out, out, bytes, stream, &err) == RAVEL_OK);
    EXPECT(ravel_stream_wait(stream, SECONDS, &err) == RAVEL_OK);
    ravel_device_release(d, fresh, stream);
    ravel_device_release(d, base, stream);
    ravel_device_release(d, out, stream);
    ravel_device_release(d, used, stream);
    ravel_device_release(d, spans, stream);
}

static bool span_is_right(const compared *c, const ravel__compare_span *s, unsigned char *want) {
    size_t changed, bytes = (size_t)s->bytes, each = (size_t)s->each;
    size_t size = ravel__sparse_encode(c->base + s->at, c->fresh + s->at, bytes / each, each, want, &changed);
    if (size == 0) memcpy(want, c->fresh + s->at, size = bytes);
    return EXPECT(s->size == (int32_t)size && s->changed == (int32_t)changed) &&
           EXPECT(s->found % 16 == 0 && (uint64_t)s->found + size <= c->used) &&
           EXPECT(memcmp(want, c->out + s->found, size) == 0);
}

void device_body_compare(ravel_device *device, int64_t rounds) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    ravel_stream *stream = NULL;
    compared c;
    size_t room = (COMPARED + 1) * COMPARED_MOST;
    unsigned char *memory = malloc(4 * room);
    CHECK(memory);
    CHECK(ravel_stream_create(device, &stream, NULL) == RAVEL_OK);
    c.base = memory, c.fresh = memory + room, c.out = memory + 2 * room;
    for (int64_t round = 0; round < rounds; round++) {
        uint64_t most = 0;
        int32_t blocks = lay_out_spans(&rng, &c);
        compare_there(device, stream, &c, blocks);
        for (int32_t b = 0; b < blocks; b++) {
            if (!span_is_right(&c, &c.spans[b], memory + 3 * room)) round = rounds;
            most += ((uint64_t)c.spans[b].size + 15) / 16 * 16;
        }
        CHECK_EQ(c.used, most); /* nothing lies between them */
    }
    ravel_stream_free(stream);
    free(memory);
}
