/* THD arrays in device memory: the host walks the bin as pack does, and writes runs instead of elements. */
#include "batch/rows.h"
#include "batch/thd.h"

#include "device/handle.h"

#include "base/assert.h"

#include <string.h>

typedef struct packing {
    const ravel_ragged *ragged;
    const ravel_bin *bin;
    const ravel_thd_options *options;
    const ravel_thd *thd;
    ravel__book book;
    int32_t *real, *slots, *samples; /* lists of the block */
} packing;

/* The lists go to the device with the launch, and to the caller's host memory. */
static void add_lists(packing *p) {
    RAVEL_ASSERT(p->thd->sequences >= 0);
    const ravel_thd *t = p->thd;
    p->real = ravel__book_list(&p->book, t->cu_seqlens, t->sequences + 1);
    p->slots = ravel__book_list(&p->book, t->cu_seqlens_padded, t->sequences + 1);
    p->samples = ravel__book_list(&p->book, t->samples, t->sequences);
}

static void add_runs(packing *p) {
    ravel_cp cp = ravel__thd_cp(p->options);
    int64_t begin = 0, real = 0, slot;
    for (int64_t i = 0; i < p->thd->sequences; i++) {
        ravel__run runs[2];
        ravel__sequence seq = ravel__thd_sequence(p->ragged, p->bin, p->options, p->thd->tokens, i, begin, &slot);
        int count = ravel__slot_runs(&cp, p->options->cp_rank, slot, runs);
        RAVEL_ASSERT(count >= 0 && count <= 2 && slot >= seq.length);
        for (int r = 0; r < count; r++) ravel__book_run(&p->book, &seq, &runs[r], (int32_t)i + 1);
        real += seq.length;
        begin += slot;
        RAVEL_ASSERT(begin <= p->thd->tokens && real <= begin);
        p->samples[i] = p->book.samples[i] = (int32_t)seq.index;
        p->real[i + 1] = (int32_t)real;
        p->slots[i + 1] = (int32_t)begin;
    }
}

static ravel_status add_field(packing *p, int64_t f, ravel_error *err) {
    RAVEL_ASSERT(f >= 0 && f < p->ragged->field_count && p->thd->fields[f]);
    const ravel_field *field = &p->ragged->fields[f];
    ravel__track track;
    ravel_status status = ravel__track_init(field, &track, err);
    if (!status && !field->data && p->bin->count)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT, "field \"%s\" has no data", field->name ? field->name : "");
    if (!status && p->bin->count) status = ravel__book_source(field, p->thd->place.stream, err);
    if (status) return status;
    ravel__book_field(&p->book, &track, field->data, p->thd->fields[f],
                      track.kind == RAVEL_FIELD_SAMPLE ? p->thd->sequences : p->thd->local_tokens);
    return RAVEL_OK;
}

static ravel_status add_fields(packing *p, ravel_error *err) {
    if (p->ragged->field_count && !p->thd->fields)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "thd.fields is NULL: arrays on a device need a table of %lld pointers in host memory",
                               (long long)p->ragged->field_count);
    for (int64_t f = 0; f < p->ragged->field_count; f++) {
        ravel_status status = p->thd->fields[f] ? add_field(p, f, err) : RAVEL_OK;
        if (status) return status;
    }
    return RAVEL_OK;
}

static void add_derived(packing *p) {
    const ravel_thd *t = p->thd;
    ravel__book_derived(&p->book, RAVEL__ROW_POSITIONS, t->positions, 4);
    ravel__book_derived(&p->book, RAVEL__ROW_SEGMENTS, t->segments, 4);
    ravel__book_derived(&p->book, RAVEL__ROW_HIDDEN, t->padding, 1);
    ravel__book_derived(&p->book, RAVEL__ROW_LOSS, t->loss_mask, 4);
}

static void keep_lists(const packing *p) {
    RAVEL_ASSERT(p->samples && p->slots);
    const ravel_thd *t = p->thd;
    if (t->host_samples) memcpy(t->host_samples, p->samples, (size_t)t->sequences * sizeof *p->samples);
    if (t->host_slots) memcpy(t->host_slots, p->slots, (size_t)(t->sequences + 1) * sizeof *p->slots);
}

ravel_status ravel__thd_pack_device(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_thd_options *options,
                                    const ravel_thd *thd, ravel_error *err) {
    packing p = {.ragged = ragged, .bin = bin, .options = options};
    const ravel_cp cp = ravel__thd_cp(options);
    p.thd = thd;
    const ravel__book_room room = {.tracks = ragged->field_count + 7,
                                   .runs = ravel__runs_most(&cp, options->cp_rank, thd->sequences),
                                   .sequences = thd->sequences,
                                   .list_words = 3 * thd->sequences + 2};
    ravel_status status = ravel__book_open(&p.book, &room, err);
    if (status) return status;
    add_lists(&p);
    add_runs(&p);
    status = add_fields(&p, err);
    if (!status) {
        add_derived(&p);
        status = ravel__book_launch(&p.book, thd->place.stream, err);
    }
    if (!status) keep_lists(&p);
    ravel__book_close(&p.book);
    return status;
}
