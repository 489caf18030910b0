/* Rows, position by position. Written to be read: the host's fast path is src/batch. */
#include "device/host_rows.h"

#include "base/assert.h"

#include <string.h>

typedef struct work {
    const ravel__rows_head *head;
    const char *block;
    const ravel__row_run *runs;
    const int32_t *samples;
    const double *values;
} work;

static size_t each_of(const ravel__row_track *t) {
    RAVEL_ASSERT(t->unit >= 1 && t->unit <= 16 && (t->unit & (t->unit - 1)) == 0 && t->units >= 0);
    return (size_t)t->unit * (size_t)t->units;
}

static void put_pad(const ravel__row_track *t, char *at) {
    size_t each = each_of(t), first = (size_t)(at - (char *)t->target);
    for (size_t i = 0; i < each; i++) at[i] = (char)t->pad[(first + i) % sizeof t->pad];
}

static void move_element(const work *j, const ravel__row_track *t, int64_t position, int64_t element) {
    RAVEL_ASSERT(position >= 0 && position < t->positions && element >= -1);
    size_t each = each_of(t);
    const char *source = t->source;
    char *target = t->target;
    if (j->head->scatter) {
        if (element >= 0) memcpy(target + (size_t)element * each, source + (size_t)position * each, each);
    } else if (element >= 0) {
        memcpy(target + (size_t)position * each, source + (size_t)element * each, each);
    } else {
        put_pad(t, target + (size_t)position * each);
    }
}

static uint64_t bits_at(const void *data, int64_t element, int32_t bytes) {
    RAVEL_ASSERT(bytes >= 1 && bytes <= 8 && element >= 0);
    uint64_t bits = 0;
    memcpy(&bits, (const char *)data + element * bytes, (size_t)bytes);
    return bits;
}

static void put_weight(const work *j, const ravel__row_track *t, int32_t run, int64_t k) {
    RAVEL_ASSERT(run >= 0 && run < j->head->runs && (t->unit == 4 || t->unit == 8));
    const ravel__row_run *r = &j->runs[run];
    uint64_t one;
    memcpy(&one, t->pad, sizeof one);
    int counts = k > 0 && (t->source ? bits_at(t->source, ravel__mask_element(t->mask_kind, r, k), t->mask_bytes) == one
                                     : k >= ravel__first_response(r));
    if (t->unit == 4)
        ((float *)t->target)[r->offset + k] = counts ? (float)j->values[run] : 0;
    else
        ((double *)t->target)[r->offset + k] = counts ? j->values[run] : 0;
}

static void do_run(const work *j, const ravel__row_track *t, int32_t run) {
    const ravel__row_run *r = &j->runs[run];
    RAVEL_ASSERT(r->count > 0 && r->at >= 0 &&
                 (run == 0 || r->at == r[-1].at + r[-1].count)); /* in order, without gaps */
    for (int64_t k = 0; k < r->count; k++) {
        int64_t position = r->at + k;
        if (t->kind <= RAVEL__ROW_SPREAD) {
            move_element(j, t, position, ravel__row_element(t->kind, r, k));
        } else if (t->kind == RAVEL__ROW_WEIGHT) {
            put_weight(j, t, run, k);
        } else {
            uint32_t bits = ravel__row_derived(t->kind, r, k);
            memcpy((char *)t->target + (size_t)position * (size_t)t->unit, &bits, (size_t)t->unit);
        }
    }
}

void ravel__host_rows(const ravel__rows_head *head) {
    const char *block = (const char *)head;
    work j = {head, block, (const void *)(block + head->runs_at), (const void *)(block + head->samples_at),
              (const void *)(block + head->values_at)};
    const ravel__row_track *tracks = (const void *)(block + head->tracks_at);
    for (int32_t i = 0; i < head->tracks; i++) {
        const ravel__row_track *t = &tracks[i];
        if (t->kind == RAVEL__ROW_COPY) {
            RAVEL_ASSERT(t->offset >= head->values_at && t->offset + t->positions * (int64_t)each_of(t) <= head->bytes);
            memcpy(t->target, block + t->offset, (size_t)t->positions * each_of(t));
        } else if (t->kind == RAVEL__ROW_SAMPLE) {
            for (int64_t s = 0; s < t->positions; s++) move_element(&j, t, s, j.samples[s]);
        } else {
            for (int32_t r = 0; r < head->runs; r++) do_run(&j, t, r);
        }
    }
}

void ravel__host_count_mask(const ravel__mask_job *job) {
    for (int32_t i = 0; i < job->count; i++) {
        const ravel__row_run *r = &job->runs[i];
        RAVEL_ASSERT(r->length >= 0 && r->index >= 0);
        int64_t ones = 0;
        for (int64_t t = 1; t < r->length; t++) {
            uint64_t bits = bits_at(job->mask, ravel__mask_element(job->mask_kind, r, t), job->mask_bytes);
            if (bits != 0 && bits != job->one && bits != job->minus) {
                ones = -t;
                break;
            }
            ones += bits == job->one;
        }
        job->counts[i] = ones;
    }
}
