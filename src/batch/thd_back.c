/* From packed order back to sample order, and the list of sample and position per packed token.
 *
 * Both walk the sequences of a packed bin by thd->samples and thd->cu_seqlens_padded alone, so they work for any bin
 * that was packed, here or elsewhere. */
#include "batch/rows.h"

#include "batch/cp.h"
#include "batch/thd.h"
#include "device/handle.h"

typedef struct walking {
    const ravel_ragged *ragged;
    ravel_thd thd; /* a copy: an older caller's is shorter */
    ravel_thd_options options;
    ravel_cp cp;
    const int32_t *samples, *slots; /* [sequences], [sequences + 1], in host memory */
} walking;

/* One sequence: its sample, its runs, and where they begin in the packed array. */
typedef struct stop {
    ravel__sequence seq;
    ravel__run runs[2];
    int run_count;
    int64_t index, at;
} stop;

typedef void stop_fn(void *user, const stop *stop);

static ravel_status begin_walk(walking *w, const ravel_thd *thd, const ravel_thd_options *options,
                               const ravel_field *field, ravel_error *err) {
    const ravel_bin none = {NULL, 0};
    ravel_status status = ravel__thd_read(thd, &w->thd, err);
    if (!status) status = ravel__thd_options_read(options, &w->options, err);
    if (!status) status = ravel__bin_valid(w->ragged, &none, err);
    if (!status) status = ravel__place_check(&w->thd.place, RAVEL__ALL_KINDS, "thd", err);
    if (status) return status;
    w->cp = ravel__thd_cp(&w->options);
    int there = w->thd.place.kind == RAVEL_DEVICE;
    w->samples = there ? w->thd.host_samples : w->thd.samples;
    w->slots = there ? w->thd.host_slots : w->thd.cu_seqlens_padded;
    if (!w->samples || !w->slots)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "unpacking needs %s",
                               there ? "thd.host_samples and thd.host_slots, where the arrays are on a device"
                                     : "thd.samples and thd.cu_seqlens_padded");
    if (field->kind == RAVEL_FIELD_SPREAD)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "field \"%s\": a value that was spread over a sample's tokens cannot be collected; unpack "
            "it per token",
            field->name ? field->name : "");
    return ravel__cp_check(&w->cp, w->slots, w->thd.sequences, w->samples, err);
}

static ravel_status look(const walking *w, int64_t i, stop *s, ravel_error *err) {
    int64_t slot = w->slots[i + 1] - w->slots[i];
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(slot >= 0); /* ravel__cp_check has seen the boundaries */
    s->index = i;
    s->seq = ravel__no_sample(0);
    s->run_count = ravel__slot_runs(&w->cp, w->options.cp_rank, slot, s->runs);
    if (w->samples[i] >= 0) status = ravel__sequence_get(w->ragged, w->samples[i], &s->seq, err);
    if (!status && slot < s->seq.length)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "sample %lld has %lld tokens, and its slot only %lld",
                               (long long)s->seq.index, (long long)s->seq.length, (long long)slot);
    return status;
}

static ravel_status walk(const walking *w, stop_fn *visit, void *user, ravel_error *err) {
    stop s = {.at = 0};
    for (int64_t i = 0; i < w->thd.sequences; i++) {
        ravel_status status = look(w, i, &s, err);
        if (status) return status;
        visit(user, &s);
        for (int r = 0; r < s.run_count; r++) s.at += s.runs[r].count;
    }
    RAVEL_ASSERT(w->options.cp_rank >= 0 || s.at == w->slots[w->thd.sequences]);
    return RAVEL_OK;
}

/* ---- unpacking ------------------------------------------------------------------------------------------ */

typedef struct unpacking {
    ravel__track track;
    const char *packed;
    char *out;
} unpacking;

static void unpack_stop(void *user, const stop *s) {
    unpacking *u = user;
    int64_t at = s->at;
    RAVEL_ASSERT(at >= 0 && s->run_count >= 1 && s->run_count <= 2);
    if (s->seq.index < 0) return;
    if (u->track.kind == RAVEL_FIELD_SAMPLE) {
        ravel__track_unpack_sample(&u->track, &s->seq, u->packed, s->index, u->out);
        return;
    }
    for (int r = 0; r < s->run_count; r++) {
        ravel__track_unpack(&u->track, &s->seq, &s->runs[r], u->packed, at, u->out);
        at += s->runs[r].count;
    }
}

/* On a device: the same walk writes runs. */
static void book_stop(void *user, const stop *s) {
    ravel__book *book = user;
    RAVEL_ASSERT(s->index >= 0 && s->seq.index <= INT32_MAX);
    book->samples[s->index] = (int32_t)s->seq.index;
    for (int r = 0; r < s->run_count; r++) ravel__book_run(book, &s->seq, &s->runs[r], 0);
}

static ravel_status unpack_device(const walking *w, const unpacking *u, ravel_error *err) {
    const ravel__book_room room = {.tracks = 1,
                                   .runs = ravel__runs_most(&w->cp, w->options.cp_rank, w->thd.sequences),
                                   .sequences = w->thd.sequences};
    ravel__book book;
    ravel_status status = ravel__book_open(&book, &room, err);
    if (status) return status;
    book.head->scatter = 1;
    status = walk(w, book_stop, &book, err);
    if (!status) {
        int64_t positions = u->track.kind == RAVEL_FIELD_SAMPLE ? w->thd.sequences : book.positions;
        ravel__book_field(&book, &u->track, u->packed, u->out, positions);
        status = ravel__book_launch(&book, w->thd.place.stream, err);
    }
    ravel__book_close(&book);
    return status;
}

ravel_status ravel_thd_unpack(const ravel_ragged *ragged, const ravel_thd_options *options, const ravel_thd *thd,
                              const ravel_field *field, const void *packed, void *out, ravel_error *err) {
    walking w = {.ragged = ragged};
    unpacking u = {.packed = packed, .out = out};
    ravel_status status = begin_walk(&w, thd, options, field, err);
    if (!status) status = ravel__track_init(field, &u.track, err);
    if (status) return status;
    return w.thd.place.kind == RAVEL_DEVICE ? unpack_device(&w, &u, err) : walk(&w, unpack_stop, &u, err);
}
