/* Several threads may read at once: each call borrows a reader of the inner source from a short list. */
#include "train/run/data.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 64 };

typedef struct worker {
    ravel_reader *reader;
    uint8_t *mask; /* [room] */
    int64_t room;
} worker;

typedef struct pairs {
    ravel_source *inner;
    pthread_mutex_t lock;
    worker *idle[WORKERS];
    int32_t idle_count;
} pairs;

static void free_worker(worker *w) {
    ravel_reader_free(w->reader);
    train__release(NULL, w->mask, (size_t)w->room);
    free(w);
}

static ravel_status borrow(pairs *p, worker **out, ravel_error *err) {
    (void)pthread_mutex_lock(&p->lock);
    TRAIN_ASSERT(p->idle_count >= 0 && p->idle_count <= WORKERS);
    worker *w = p->idle_count > 0 ? p->idle[--p->idle_count] : NULL;
    (void)pthread_mutex_unlock(&p->lock);
    if (!w) w = calloc(1, sizeof *w);
    if (!w) return train__no_memory(err, sizeof *w, "a reader");
    ravel_status status = w->reader ? RAVEL_OK : ravel_reader_create(p->inner, NULL, NULL, &w->reader, err);
    if (status)
        free_worker(w);
    else
        *out = w;
    return status;
}

static void give_back(pairs *p, worker *w) {
    (void)pthread_mutex_lock(&p->lock);
    int kept = p->idle_count < WORKERS;
    TRAIN_ASSERT(p->idle_count >= 0 && w->reader);
    if (kept) p->idle[p->idle_count++] = w;
    (void)pthread_mutex_unlock(&p->lock);
    if (!kept) free_worker(w);
}

static ravel_status join_pair(const pairs *p, worker *w, int64_t row, const ravel_samples *samples,
                              ravel_collector *collector, ravel_error *err) {
    const ravel_ragged *r = &samples->ragged;
    if (r->count == 0) return RAVEL_OK; /* a bad row that is skipped */
    if (r->count != 2) {
        char where[256];
        (void)ravel_source_where(p->inner, row, where, sizeof where);
        return ravel_error_set(err, RAVEL_E_DATA, "%s: this row is no pair: it needs \"chosen\" and \"rejected\"",
                               where);
    }
    int64_t from = r->offsets[0], count = r->offsets[2] - from;
    int32_t chosen = (int32_t)(r->offsets[1] - from);
    TRAIN_ASSERT(chosen >= 1 && chosen < count); /* both answers have tokens */
    const int32_t *tokens = (const int32_t *)r->fields[0].data + from;
    if (2 * (int64_t)chosen == count && memcmp(tokens, tokens + chosen, (size_t)chosen * sizeof *tokens) == 0) {
        char where[256];
        (void)ravel_source_where(p->inner, row, where, sizeof where);
        return ravel_error_set(err, RAVEL_E_DATA, "%s: chosen and rejected are the same: there is nothing to prefer",
                               where);
    }
    uint8_t *mask = train__grown(NULL, w->mask, &w->room, 0, count, sizeof *mask);
    if (!mask) return train__no_memory(err, (size_t)count, "a pair");
    w->mask = mask;
    memcpy(mask, (const uint8_t *)r->fields[1].data + from, (size_t)count);
    mask[0] = mask[chosen] = 0; /* nothing predicts the first token of an answer's prompt */
    const void *data[] = {(const int32_t *)r->fields[0].data + from, mask, &chosen};
    return ravel_collector_add(collector, count, data, err);
}

static ravel_status read_row(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    pairs *p = user;
    worker *w = NULL;
    const ravel_samples *samples;
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = borrow(p, &w, &why);
    if (!status && w) {
        status = ravel_reader_read(w->reader, &row, 1, &samples, &why);
        if (!status) status = join_pair(p, w, row, samples, collector, &why);
        give_back(p, w);
    }
    return status ? ravel_error_set(err, status, "%s", why.message) : RAVEL_OK;
}

static void close_pairs(void *user) {
    pairs *p = user;
    for (int32_t i = 0; i < p->idle_count; i++) free_worker(p->idle[i]);
    ravel_source_free(p->inner);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}

ravel_status train_pair_source(ravel_source *inner, ravel_source **source, ravel_error *err) {
    static const ravel_field fields[] = {
        {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32},
        {.name = "loss_mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_U8},
        {.name = "chosen", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_I32},
    };
    pairs *p = calloc(1, sizeof *p);
    if (!p) {
        ravel_source_free(inner);
        return train__no_memory(err, sizeof *p, "a source of pairs");
    }
    p->inner = inner;
    (void)pthread_mutex_init(&p->lock, NULL);
    ravel_source_hooks hooks = {.size = sizeof hooks,
                                .user = p,
                                .count = ravel_source_count(inner),
                                .fields = fields,
                                .field_count = 3,
                                .read = read_row,
                                .close = close_pairs};
    ravel_status status = ravel_source_callbacks(&hooks, source, err);
    if (status) close_pairs(p);
    return status;
}
