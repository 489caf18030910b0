/* The THD layout: slots back to back on one token axis.
 *
 *     sequences    samples of the bin | tail padding | empty sequences      (a filler bin: one filler of one token
 *                                                                           instead of samples)
 *     fixed shape  max_samples + 1 sequences, always; else the tail is there only if there is a tail
 *
 * measure walks the bin once and decides every size; pack measures again, which is cheap beside the copying, and so
 * cannot write past the measured sizes. Fields are written sample by sample, all fields of a sample before the next:
 * labels and tokens, which share their source, then meet in the cache. */
#include "batch/rows.h"
#include "batch/thd.h"
#include "device/handle.h"

#include "base/options.h"

#include <stddef.h>
#include <string.h>

#define ROW(...) RAVEL__ROW(ravel_thd_options, __VA_ARGS__)

ravel_option_table ravel_thd_option_table(void) {
    static const ravel_option table[] = {
        ROW("align", I32, align, "1", 1, 1 << 20, NULL, "a slot is a multiple of this many tokens"),
        ROW("arrays", I32, arrays, "15", 0, RAVEL_THD_ALL, NULL,
            "arrays to make room for: 1 positions, 2 segments, 4 padding, 8 loss mask, summed"),
        ROW("total-multiple", I64, total_multiple, "1", 1, INT32_MAX, NULL,
            "the bin is padded to a multiple of this many tokens"),
        ROW("fixed-tokens", I64, fixed_tokens, "0", 0, INT32_MAX, NULL, "the bin is padded to exactly this; 0: off"),
        ROW("max-samples", I64, max_samples, "0", 0, INT32_MAX - 2, NULL,
            "fixed shape: cu_seqlens has this many + 2 entries"),
        ROW("max-seqlen", I64, max_seqlen, "0", 0, INT32_MAX, NULL, "value of max_seqlen; 0: the longest slot"),
        ROW("cp", I32, cp, "1", 1, 1 << 20, NULL, "context-parallel ranks"),
        ROW("cp-rank", I32, cp_rank, "-1", -1, 1 << 20, NULL, "pack only this rank's positions; -1: the whole bin"),
        ROW("cp-kind", ENUM, cp_kind, "zig-zag", 0, 0, RAVEL_CP_CHOICES, "how positions are distributed over cp ranks"),
        {NULL, 0, 0, NULL, 0, 0, NULL, NULL}};
    return table;
}

void ravel_thd_options_default(ravel_thd_options *options) {
    ravel__options_preset(ravel_thd_option_table(), options, sizeof *options);
}

/* ---- options -------------------------------------------------------------------------------------------- */

static ravel_status check_options(const ravel_thd_options *o, ravel_error *err) {
    ravel_cp cp = ravel__thd_cp(o);
    ravel_status status = ravel__cp_valid(&cp, o->cp_rank, 1, err);
    if (status) return status;
    if (o->total_multiple > 1 && o->total_multiple % o->align)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "total-multiple is %lld; it must be a multiple of align, %d",
                               (long long)o->total_multiple, o->align);
    if (o->fixed_tokens && (o->fixed_tokens % o->align || o->fixed_tokens % o->total_multiple))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "fixed-tokens is %lld; it must be a multiple of align, %d, and of total-multiple, %lld",
                               (long long)o->fixed_tokens, o->align, (long long)o->total_multiple);
    if (o->fixed_tokens && o->max_samples < 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a fixed shape needs max-samples, the most that a bin may hold");
    return RAVEL_OK;
}

ravel_status ravel__thd_options_read(const ravel_thd_options *options, ravel_thd_options *own, ravel_error *err) {
    ravel_thd_options_default(own);
    ravel_status status = ravel__take_options(ravel_thd_option_table(), "thd", options, own, sizeof *own, err);
    return status ? status : check_options(own, err);
}

/* ---- sizes ---------------------------------------------------------------------------------------------- */

static ravel_status add_slot(const ravel_thd_options *o, const ravel__sequence *seq, int64_t slot_index, ravel_thd *t,
                             ravel_error *err) {
    ravel_cp cp = ravel__thd_cp(o);
    int64_t slot = ravel__multiple_up(seq->length, o->align);
    if (slot % ravel__cp_multiple(&cp)) return ravel__cp_uneven(&cp, slot_index, seq->index, slot, o->align, err);
    if (o->max_seqlen && slot > o->max_seqlen)
        return ravel_error_set(err, RAVEL_E_OVERSIZE, "sample %lld takes a slot of %lld tokens, over max-seqlen, %lld",
                               (long long)seq->index, (long long)slot, (long long)o->max_seqlen);
    t->tokens += slot;
    if (t->tokens > INT32_MAX)
        return ravel_error_set(
            err, RAVEL_E_OVERFLOW,
            "the bin has more than 2^31 - 1 slot tokens, which cu_seqlens cannot count: use a smaller "
            "budget");
    if (slot > t->max_seqlen) t->max_seqlen = slot;
    if (seq->length > t->max_length) t->max_length = seq->length;
    return RAVEL_OK;
}

static ravel_status add_samples(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_thd_options *o,
                                ravel_thd *t, ravel_error *err) {
    enum { AHEAD = 16 };
    ravel__sequence seq = ravel__no_sample(1);
    if (bin->count == 0) return add_slot(o, &seq, 0, t, err);
    for (int64_t i = 0; i < bin->count; i++) {
        if (ragged->offsets && i + AHEAD < bin->count && bin->samples[i + AHEAD] >= 0 &&
            bin->samples[i + AHEAD] < ragged->count)
            __builtin_prefetch(&ragged->offsets[bin->samples[i + AHEAD]]);
        ravel_status status = ravel__sequence_get(ragged, bin->samples[i], &seq, err);
        if (!status) status = add_slot(o, &seq, i, t, err);
        if (status) return status;
        t->actual_tokens += seq.length;
    }
    return RAVEL_OK;
}

/* Sequences and tokens of a fixed shape, or what does not fit. */
static ravel_status fix_shape(const ravel_thd_options *o, ravel_thd *t, ravel_error *err) {
    if (t->samples_count > o->max_samples)
        return ravel_error_set(err, RAVEL_E_OVERSIZE, "the bin has %lld samples, over max-samples, %lld",
                               (long long)t->samples_count, (long long)o->max_samples);
    if (t->tokens > o->fixed_tokens)
        return ravel_error_set(err, RAVEL_E_OVERSIZE, "the bin has %lld slot tokens, over fixed-tokens, %lld",
                               (long long)t->tokens, (long long)o->fixed_tokens);
    t->sequences = o->max_samples + 1;
    t->tokens = o->fixed_tokens;
    t->max_seqlen = o->fixed_tokens;
    return RAVEL_OK;
}

static ravel_status add_tail(const ravel_thd_options *o, ravel_thd *t, ravel_error *err) {
    int64_t total = ravel__multiple_up(t->tokens, o->total_multiple), tail = total - t->tokens;
    if (total > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "padded to total-multiple the bin has %lld tokens, over 2^31 - 1",
                               (long long)total);
    RAVEL_ASSERT(tail >= 0 && tail < o->total_multiple);
    t->sequences = (t->samples_count ? t->samples_count : 1) + (tail > 0);
    t->tokens = total;
    if (tail > t->max_seqlen) t->max_seqlen = tail;
    return RAVEL_OK;
}

/* All sizes into a record whose arrays are NULL. */
static ravel_status measure(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_thd_options *o, ravel_thd *t,
                            ravel_error *err) {
    memset(t, 0, sizeof *t);
    ravel_status status = ravel__bin_valid(ragged, bin, err);
    if (status) return status;
    t->samples_count = bin->count;
    status = add_samples(ragged, bin, o, t, err);
    int64_t slots = t->tokens;
    if (!status) status = o->fixed_tokens ? fix_shape(o, t, err) : add_tail(o, t, err);
    if (status) return status;
    ravel_cp cp = ravel__thd_cp(o);
    if (t->tokens % ravel__cp_multiple(&cp))
        return ravel__cp_uneven(&cp, t->samples_count ? t->samples_count : 1, -1, t->tokens - slots, o->align, err);
    if (o->max_seqlen && t->tokens - slots > o->max_seqlen) /* kernels are told that no slot is longer */
        return ravel_error_set(err, RAVEL_E_OVERSIZE,
                               "the tail that pads the bin from %lld to %lld tokens is a slot over max-seqlen, %lld",
                               (long long)slots, (long long)t->tokens, (long long)o->max_seqlen);
    if (o->max_seqlen) t->max_seqlen = o->max_seqlen;
    RAVEL_ASSERT(t->actual_tokens <= slots && slots <= t->tokens && t->max_length <= t->max_seqlen);
    RAVEL_ASSERT(t->sequences >= 1 && t->sequences >= t->samples_count);
    t->local_tokens = o->cp_rank < 0 ? t->tokens : t->tokens / o->cp;
    RAVEL_ASSERT(o->cp_rank < 0 || t->local_tokens * o->cp == t->tokens);
    return RAVEL_OK;
}

ravel_status ravel__thd_read(const ravel_thd *thd, ravel_thd *own, ravel_error *err) {
    return ravel__record_read("thd", thd, thd->size, offsetof(ravel_thd, place), own, sizeof *own, err);
}

ravel_status ravel_thd_measure(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_thd_options *options,
                               ravel_thd *thd, ravel_error *err) {
    ravel_thd_options own;
    ravel_thd fresh;
    ravel_status status = ravel__thd_read(thd, &fresh, err);
    if (!status) status = ravel__thd_options_read(options, &own, err);
    if (!status) status = measure(ragged, bin, &own, &fresh, err);
    if (status) return status;
    thd->samples_count = fresh.samples_count;
    thd->sequences = fresh.sequences;
    thd->tokens = fresh.tokens;
    thd->local_tokens = fresh.local_tokens;
    thd->actual_tokens = fresh.actual_tokens;
    thd->max_seqlen = fresh.max_seqlen;
    thd->max_length = fresh.max_length;
    return RAVEL_OK;
}

/* ---- one block ------------------------------------------------------------------------------------------ */

static int64_t field_positions(const ravel_thd *thd, const ravel_field *field) {
    return field->kind == RAVEL_FIELD_SAMPLE ? thd->sequences : thd->local_tokens;
}

static size_t field_each(const ravel_field *field) {
    return (size_t)(field->width > 0 ? field->width : 1) * (size_t)ravel_dtype_bytes(field->dtype);
}

size_t ravel_thd_field_bytes(const ravel_thd *thd, const ravel_field *field) {
    return (size_t)field_positions(thd, field) * field_each(field);
}

/* The one order of arrays in a block, for counting (block NULL) and for placing. */
static size_t cut(const ravel_ragged *ragged, const ravel_thd_options *o, void *block, ravel_thd *t) {
    ravel__cutter cutter = ravel__cutter_begin(block);
    int64_t n = t->local_tokens;
    int ours = !t->fields || t->fields == t->placed; /* a caller's table stays where it is */
    if (ours && t->place.kind != RAVEL_DEVICE) {
        void **table = ravel__cutter_take(&cutter, ragged->field_count, sizeof *table);
        if (block) t->fields = t->placed = table;
    }
    t->cu_seqlens = ravel__cutter_take(&cutter, t->sequences + 1, sizeof *t->cu_seqlens);
    t->cu_seqlens_padded = ravel__cutter_take(&cutter, t->sequences + 1, sizeof *t->cu_seqlens_padded);
    t->samples = ravel__cutter_take(&cutter, t->sequences, sizeof *t->samples);
    t->positions = o->arrays & RAVEL_THD_POSITIONS ? ravel__cutter_take(&cutter, n, sizeof *t->positions) : NULL;
    t->segments = o->arrays & RAVEL_THD_SEGMENTS ? ravel__cutter_take(&cutter, n, sizeof *t->segments) : NULL;
    t->padding = o->arrays & RAVEL_THD_PADDING ? ravel__cutter_take(&cutter, n, sizeof *t->padding) : NULL;
    t->loss_mask = o->arrays & RAVEL_THD_LOSS_MASK ? ravel__cutter_take(&cutter, n, sizeof *t->loss_mask) : NULL;
    for (int64_t i = 0; i < ragged->field_count; i++) {
        const ravel_field *field = &ragged->fields[i];
        void *array = ravel__cutter_take(&cutter, field_positions(t, field), field_each(field));
        if (block && t->fields) t->fields[i] = array;
    }
    return cutter.used;
}

size_t ravel_thd_bytes(const ravel_ragged *ragged, const ravel_thd_options *options, const ravel_thd *thd) {
    ravel_thd own;
    return ravel__thd_read(thd, &own, NULL) ? SIZE_MAX : cut(ragged, options, NULL, &own);
}

void ravel_thd_place(const ravel_ragged *ragged, const ravel_thd_options *options, void *block, ravel_thd *thd) {
    ravel_thd own;
    if (ravel__thd_read(thd, &own, NULL)) return; /* measuring has set the error */
    (void)cut(ragged, options, block, &own);
    memcpy(thd, &own, thd->size);
}

/* ---- packing -------------------------------------------------------------------------------------------- */

enum { TRACKS = 32 }; /* fields that are written in one go; more take another */

typedef struct packing {
    const ravel_ragged *ragged;
    const ravel_bin *bin;
    const ravel_thd_options *options;
    const ravel_thd *thd;
    ravel_cp cp;
    int stream; /* past the caches, see writer.h */
    int track_count;
    ravel__track tracks[TRACKS];
    ravel__derived derived;
} packing;

ravel__sequence ravel__thd_sequence(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_thd_options *options,
                                    int64_t tokens, int64_t i, int64_t begin, int64_t *slot) {
    int64_t filled = bin->count ? bin->count : 1;
    ravel__sequence seq = ravel__no_sample(i == 0 && bin->count == 0);
    if (i < bin->count) (void)ravel__sequence_get(ragged, bin->samples[i], &seq, NULL);
    *slot = i < filled ? ravel__multiple_up(seq.length, options->align) : i == filled ? tokens - begin : 0;
    RAVEL_ASSERT(*slot >= seq.length && begin + *slot <= tokens);
    return seq;
}

/* Prefetches what is packed a few samples later: samples of a bin lie anywhere in the store. */
static void look_ahead(const packing *p, int64_t i) {
    enum { NEAR = 3, FAR = 16 };
    const ravel_bin *bin = p->bin;
    if (!p->ragged->offsets) return;
    if (i + FAR < bin->count) __builtin_prefetch(&p->ragged->offsets[bin->samples[i + FAR]]);
    if (i + NEAR >= bin->count) return;
    RAVEL_ASSERT(bin->samples[i + NEAR] >= 0 && bin->samples[i + NEAR] < p->ragged->count); /* measure has looked */
    int64_t index = bin->samples[i + NEAR], begin = p->ragged->offsets[index];
    const ravel__sequence seq = {index, begin, p->ragged->offsets[index + 1] - begin, 0, 0};
    for (int k = 0; k < p->track_count; k++) ravel__track_soon(&p->tracks[k], &seq);
}

static void pack_slot(packing *p, const ravel__sequence *seq, int64_t i, int64_t slot) {
    ravel__run runs[2];
    int count = ravel__slot_runs(&p->cp, p->options->cp_rank, slot, runs);
    for (int r = 0; r < count; r++) {
        for (int k = 0; k < p->track_count; k++)
            if (p->tracks[k].kind != RAVEL_FIELD_SAMPLE) ravel__track_pack(&p->tracks[k], seq, &runs[r]);
        ravel__derived_pack(&p->derived, seq, (int32_t)i + 1, &runs[r]);
    }
    for (int k = 0; k < p->track_count; k++)
        if (p->tracks[k].kind == RAVEL_FIELD_SAMPLE) ravel__track_pack_sample(&p->tracks[k], seq);
}

static void pack_sequences(packing *p) {
    const ravel_thd *t = p->thd;
    int64_t begin = 0, real = 0, slot;
    if (t->cu_seqlens) t->cu_seqlens[0] = 0;
    if (t->cu_seqlens_padded) t->cu_seqlens_padded[0] = 0;
    if (t->host_slots) t->host_slots[0] = 0;
    for (int64_t i = 0; i < t->sequences; i++) {
        look_ahead(p, i);
        ravel__sequence seq = ravel__thd_sequence(p->ragged, p->bin, p->options, t->tokens, i, begin, &slot);
        pack_slot(p, &seq, i, slot);
        real += seq.length;
        begin += slot;
        if (t->samples) t->samples[i] = (int32_t)seq.index;
        if (t->cu_seqlens) t->cu_seqlens[i + 1] = (int32_t)real;
        if (t->cu_seqlens_padded) t->cu_seqlens_padded[i + 1] = (int32_t)begin;
        if (t->host_samples) t->host_samples[i] = (int32_t)seq.index;
        if (t->host_slots) t->host_slots[i + 1] = (int32_t)begin;
    }
    RAVEL_ASSERT(begin == t->tokens && real == t->actual_tokens + (p->bin->count == 0));
    RAVEL_ASSERT(!p->derived.wanted[RAVEL__POSITIONS] ||
                 p->derived.writers[RAVEL__POSITIONS].at == (char *)(t->positions + t->local_tokens));
    for (int k = 0; k < p->track_count; k++) ravel__writer_close(&p->tracks[k].writer);
    ravel__derived_close(&p->derived);
}

/* Prepares the wanted fields from `*next` on, as many as fit. */
static ravel_status take_tracks(packing *p, int64_t *next, ravel_error *err) {
    const ravel_ragged *ragged = p->ragged;
    p->track_count = 0;
    for (; *next < ragged->field_count && p->track_count < TRACKS; (*next)++) {
        const ravel_field *field = &ragged->fields[*next];
        void *target = p->thd->fields ? p->thd->fields[*next] : NULL;
        if (!target) continue;
        ravel__track *track = &p->tracks[p->track_count++];
        ravel_status status = ravel__track_init(field, track, err);
        if (!status && p->bin->count) status = ravel__host_source(field, err);
        if (status) return status;
        if (!field->data && p->bin->count)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "field \"%s\" has no data", field->name ? field->name : "");
        ravel__writer_open(&track->writer, target, p->stream);
    }
    return RAVEL_OK;
}

static void open_derived(packing *p) {
    const ravel_thd *t = p->thd;
    ravel__derived_add(&p->derived, RAVEL__POSITIONS, t->positions, p->stream);
    ravel__derived_add(&p->derived, RAVEL__SEGMENTS, t->segments, p->stream);
    ravel__derived_add(&p->derived, RAVEL__HIDDEN, t->padding, p->stream);
    ravel__derived_add(&p->derived, RAVEL__LOSS, t->loss_mask, p->stream);
}

/* Bytes of all that will be written. */
static size_t output_bytes(const packing *p) {
    const ravel_thd *t = p->thd;
    size_t bytes = 0, n = (size_t)t->local_tokens;
    for (int64_t i = 0; i < p->ragged->field_count; i++)
        if (t->fields && t->fields[i]) bytes += ravel_thd_field_bytes(t, &p->ragged->fields[i]);
    return bytes + n * ((t->positions ? 4 : 0) + (t->segments ? 4 : 0) + (t->padding ? 1 : 0) + (t->loss_mask ? 4 : 0));
}

static ravel_status check_same(const ravel_thd *thd, const ravel_thd *fresh, ravel_error *err) {
    if (thd->tokens == fresh->tokens && thd->local_tokens == fresh->local_tokens && thd->sequences == fresh->sequences)
        return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_ARGUMENT,
        "thd was measured as %lld tokens in %lld sequences, and this bin has %lld in %lld: measure it "
        "again before packing",
        (long long)thd->local_tokens, (long long)thd->sequences, (long long)fresh->local_tokens,
        (long long)fresh->sequences);
}

ravel_status ravel_thd_pack(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_thd_options *options,
                            const ravel_thd *thd, ravel_error *err) {
    ravel_thd_options own;
    ravel_thd fresh, t;
    ravel_status status = ravel__thd_read(thd, &t, err);
    if (!status) status = ravel__thd_options_read(options, &own, err);
    if (!status) status = measure(ragged, bin, &own, &fresh, err);
    if (!status) status = check_same(&t, &fresh, err);
    if (!status) status = ravel__place_check(&t.place, RAVEL__ALL_KINDS, "thd", err);
    if (status) return status;
    if (t.place.kind == RAVEL_DEVICE) return ravel__thd_pack_device(ragged, bin, &own, &t, err);
    packing p = {.ragged = ragged, .bin = bin, .options = &own, .thd = &t, .cp = ravel__thd_cp(&own)};
    p.stream = ravel__writer_streams(output_bytes(&p));
    open_derived(&p);
    int64_t next = 0;
    do { /* one round, unless there are very many fields */
        status = take_tracks(&p, &next, err);
        if (status) return status;
        pack_sequences(&p);
        memset(p.derived.wanted, 0, sizeof p.derived.wanted);
    } while (next < ragged->field_count);
    return RAVEL_OK;
}
