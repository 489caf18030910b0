#include "tests/unit/feed_device_body.h"

#include "tests/unit/check.h"

#include <ravel/feed.h>

#include <stdlib.h>

enum { UPDATES = 9, ARRAYS = 4, KEPT = 4096, WAIT = 60 };

/* An array as the host had it, and what the device has read of it. */
typedef struct pair {
    void *was, *read; /* read: page-locked */
    size_t bytes;
} pair;

typedef struct rig {
    ravel_device *device;
    ravel_stream *stream;
    ravel_feed *feed;
    pair pairs[KEPT];
    int64_t count;
    ravel_error err;
} rig;

static void read_array(rig *r, const void *array, size_t bytes) {
    const void *there = ravel_feed_device(r->feed, array);
    pair *p = &r->pairs[r->count];
    if (!array || bytes == 0 || r->count == KEPT) return;
    if (!EXPECT(there != NULL)) return;
    *p = (pair){.was = malloc(bytes), .bytes = bytes};
    memcpy(p->was, array, bytes);
    EXPECT(ravel_device_alloc(r->device, RAVEL_PINNED, bytes, r->stream, &p->read, &r->err) == RAVEL_OK);
    EXPECT(ravel_device_copy(r->device, p->read, there, bytes, r->stream, &r->err) == RAVEL_OK);
    r->count++;
}

static void read_micro(rig *r, const ravel_micro_batch *m) {
    size_t tokens = (size_t)m->thd->local_tokens;
    if (!EXPECT(m->ready != NULL)) return;
    EXPECT(ravel_event_order(m->ready, r->stream, &r->err) == RAVEL_OK);
    read_array(r, m->tokens, tokens * sizeof *m->tokens);
    read_array(r, m->labels, tokens * sizeof *m->labels);
    read_array(r, m->weights, tokens * sizeof *m->weights);
    read_array(r, m->thd->cu_seqlens, ((size_t)m->thd->sequences + 1) * sizeof *m->thd->cu_seqlens);
}

static void compare(rig *r) {
    EXPECT(ravel_stream_wait(r->stream, WAIT, &r->err) == RAVEL_OK);
    for (int64_t i = 0; i < r->count; i++) {
        EXPECT(memcmp(r->pairs[i].was, r->pairs[i].read, r->pairs[i].bytes) == 0);
        free(r->pairs[i].was);
        ravel_device_release(r->device, r->pairs[i].read, r->stream);
    }
    r->count = 0;
}

static void use(rig *r) {
    const ravel_feed_update *update = NULL;
    ravel_micro_batch micro;
    for (int i = 0; i < UPDATES && EXPECT(ravel_feed_next(r->feed, &update, &r->err) == RAVEL_OK); i++) {
        ravel_feed_iter iter = ravel_feed_iterate(r->feed, 0);
        while (ravel_feed_iter_next(&iter, &micro)) read_micro(r, &micro);
        EXPECT(ravel_feed_device(r->feed, &micro) == NULL);
        if (i % 4 == 3) compare(r); /* the host was several batches ahead */
    }
    compare(r);
}

void feed_device_body(ravel_device *device) {
    rig *r = calloc(1, sizeof *r);
    ravel_comm *self = NULL;
    ravel_mesh *mesh = NULL;
    ravel_mesh_options mesh_options;
    ravel_source *source = NULL;
    ravel_source_options source_options;
    ravel_plan_options plan;
    ravel_feed_options options;
    ravel_source_options_default(&source_options);
    source_options.mock = "{\"type\":\"lognormal\",\"max_seq_len\":200,\"min_seq_len\":1,\"mean_seq_len\":40,"
                          "\"count\":500,\"prompt_share\":0.3,\"seed\":3}";
    source_options.vocab = 1000;
    ravel_plan_options_default(&plan);
    plan.budget = 256;
    ravel_mesh_options_default(&mesh_options);
    ravel_feed_options_default(&options);
    options.samples = 24;
    options.prefetch = 2;
    options.plan = &plan;
    r->device = device;
    EXPECT(ravel_stream_create(device, &r->stream, &r->err) == RAVEL_OK);
    options.place = (ravel_place){RAVEL_DEVICE, 0, r->stream};
    if (EXPECT(ravel_source_open(&source_options, &source, &r->err) == RAVEL_OK) &&
        EXPECT(ravel_comm_self(NULL, &self, &r->err) == RAVEL_OK) &&
        EXPECT(ravel_mesh_create(self, &mesh_options, &mesh, &r->err) == RAVEL_OK) &&
        EXPECT(ravel_feed_create(mesh, source, &options, &r->feed, &r->err) == RAVEL_OK))
        use(r);
    if (r->err.status) check_fail(__FILE__, __LINE__, "%s", r->err.message);
    ravel_feed_free(r->feed);
    options.place.stream = NULL;
    ravel_error_clear(&r->err);
    EXPECT(ravel_feed_create(mesh, source, &options, &r->feed, &r->err) == RAVEL_E_ARGUMENT);
    EXPECT(strstr(r->err.message, "place.stream") != NULL);
    ravel_mesh_free(mesh);
    ravel_comm_free(self);
    ravel_source_free(source);
    ravel_stream_free(r->stream);
    free(r);
}
