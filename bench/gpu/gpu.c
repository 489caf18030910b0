#include "bench/gpu/gpu.h"

#include <string.h>

enum { WAIT_SECONDS = 60 };
static const size_t busy_bytes = (size_t)1 << 30;

int gpu_open(gpu *g) {
    memset(g, 0, sizeof *g);
    if (ravel_device_open("cuda:0", &g->device, &g->err) == RAVEL_OK &&
        ravel_stream_create(g->device, &g->stream, &g->err) == RAVEL_OK)
        return 1;
    bench_note("left out: %s", g->err.message);
    return 0;
}

void gpu_close(gpu *g) {
    if (g->err.status) bench_note("FAILED: %s", g->err.message);
    ravel_stream_free(g->stream);
    ravel_device_free(g->device);
}

void *gpu_room(gpu *g, size_t bytes) {
    void *array = NULL;
    if (ravel_device_alloc(g->device, RAVEL_DEVICE, bytes, g->stream, &array, &g->err)) return NULL;
    (void)ravel_device_fill(g->device, array, 1, bytes, g->stream, &g->err);
    return array;
}

/* About .5 ms per GiB: 20 of them give the host 10 ms to queue what is measured. */
static void keep_busy(gpu *g, char *scratch) {
    for (int i = 0; i < 20; i++)
        (void)ravel_device_copy(g->device, scratch, scratch + busy_bytes, busy_bytes, g->stream, &g->err);
}

double gpu_seconds(gpu *g, int count, void (*body)(void *user, int i), void *user) {
    ravel_event *from = NULL, *to = NULL;
    double best = 1e300, took = 0;
    char *scratch = gpu_room(g, 2 * busy_bytes);
    (void)ravel_event_create(g->device, &from, &g->err);
    (void)ravel_event_create(g->device, &to, &g->err);
    for (int repeat = 0; repeat < 4 && !g->err.status; repeat++) { /* the first warms up */
        keep_busy(g, scratch);
        (void)ravel_event_record(from, g->stream, &g->err);
        for (int i = 0; i < count; i++) body(user, i);
        (void)ravel_event_record(to, g->stream, &g->err);
        (void)ravel_event_wait(to, WAIT_SECONDS, &g->err);
        (void)ravel_event_elapsed(from, to, &took, &g->err);
        if (repeat > 0 && took / count < best) best = took / count;
    }
    ravel_event_free(from);
    ravel_event_free(to);
    ravel_device_release(g->device, scratch, g->stream);
    return g->err.status ? 1e300 : best;
}

typedef struct copying {
    gpu *g;
    char *from, *to;
    size_t bytes;
    int places; /* pieces of `bytes` that fit */
} copying;

static void copy_once(void *user, int i) {
    copying *c = user;
    size_t at = (size_t)(i % c->places) * c->bytes;
    (void)ravel_device_copy(c->g->device, c->to + at, c->from + at, c->bytes, c->g->stream, &c->g->err);
}

double gpu_copy_seconds(gpu *g, size_t bytes) {
    size_t room = bytes > busy_bytes ? bytes : busy_bytes;
    copying c = {g, gpu_room(g, room), gpu_room(g, room), bytes, (int)(room / bytes)};
    double seconds = gpu_seconds(g, bytes < (size_t)64 << 20 ? 200 : 20, copy_once, &c);
    ravel_device_release(g->device, c.from, g->stream);
    ravel_device_release(g->device, c.to, g->stream);
    return seconds;
}
