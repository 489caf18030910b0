/* Writing and reading one slot. See slot.h for the picture. */
#include "batch/slot.h"
#include "base/memory.h"

#include <string.h>

/* ---- loops ---------------------------------------------------------------------------------------------- */

/* Compilers make vectors of a loop whose length they know, at any optimisation level: sixteen at a time, then the
 * rest. */

/* first, first + step, ... */
static void count_up(int32_t *out, int64_t first, int64_t step, int64_t count) {
    int64_t i = 0;
    for (; step == 1 && i + 16 <= count; i += 16) {
        int32_t start = (int32_t)(first + i);
        for (int32_t j = 0; j < 16; j++) out[i + j] = start + j;
    }
    for (; i < count; i++) out[i] = (int32_t)(first + i * step);
}

#define FILL(name, type)                                                                                   \
    static void name(char *target, const unsigned char *pattern, int64_t count) {                          \
        type block[16];                                                                                    \
        for (int j = 0; j < 16; j++) memcpy(&block[j], pattern, sizeof *block);                            \
        int64_t i = 0;                                                                                     \
        for (; i + 16 <= count; i += 16) memcpy(target + i * (int64_t)sizeof *block, block, sizeof block); \
        for (; i < count; i++) memcpy(target + i * (int64_t)sizeof *block, pattern, sizeof *block);        \
    }
FILL(fill_2, uint16_t)
FILL(fill_4, uint32_t)
FILL(fill_8, uint64_t)

static inline void fill(const ravel__track *t, char *target, int64_t positions) {
    if (positions <= 0) return;
    if (t->uniform) {
        memset(target, t->pad[0], (size_t)positions * t->each);
        return;
    }
    int64_t count = positions * t->width;
    switch (t->element) {
    case 2: fill_2(target, t->pad, count); break;
    case 4: fill_4(target, t->pad, count); break;
    default: fill_8(target, t->pad, count); break;
    }
}

/* ---- fields --------------------------------------------------------------------------------------------- */

ravel_status ravel__track_init(const ravel_field *field, void *target, ravel__track *track, ravel_error *err) {
    const char *name = field->name ? field->name : "(no name)";
    int32_t element = ravel_dtype_bytes(field->dtype);
    memset(track, 0, sizeof *track);
    if (element == 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "field \"%s\": dtype %d is none of RAVEL_DTYPE_LIST", name,
                               field->dtype);
    if (field->kind < RAVEL_FIELD_TOKEN || field->kind > RAVEL_FIELD_SPREAD)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "field \"%s\": kind %d is none of ravel_field_kind", name,
                               field->kind);
    if (field->width < 0 || field->width > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "field \"%s\": a width of %lld", name, (long long)field->width);
    if (field->pad != 0 && !ravel_dtype_store(field->dtype, track->pad, field->pad))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "field \"%s\": the pad value %g is nothing that %s can hold",
                               name, field->pad, ravel_dtype_name(field->dtype));
    track->kind = field->kind;
    track->element = element;
    track->width = field->width ? field->width : 1;
    track->each = (size_t)track->width * (size_t)element;
    track->source = field->data;
    track->target = target;
    track->uniform = 1;
    for (int32_t i = 1; i < element; i++) track->uniform &= track->pad[i] == track->pad[0];
    return RAVEL_OK;
}

/* Positions that hold an element, from the guest's first token on, and the element of the first: */
static inline int64_t held(int32_t kind, const ravel__guest *g) {
    if (g->index < 0) return 0;
    return kind == RAVEL_FIELD_NEXT || kind == RAVEL_FIELD_STEP ? g->length - 1 : g->length;
}

static inline int64_t origin(int32_t kind, const ravel__guest *g) {
    switch (kind) {
    case RAVEL_FIELD_NEXT: return g->offset + 1;
    case RAVEL_FIELD_STEP: return g->offset - g->index; /* every sample before it has one element less than tokens */
    default: return g->offset;
    }
}

void ravel__track_pack(const ravel__track *t, const ravel__guest *g, const ravel__run *run, int64_t at) {
    int64_t from, to;
    char *target = t->target + (size_t)at * t->each;
    ravel__run_span(run, g->lead, g->lead + held(t->kind, g), &from, &to);
    fill(t, target, from);
    char *first = target + (size_t)from * t->each;
    if (t->kind == RAVEL_FIELD_SPREAD) {
        const char *value = t->source + (size_t)(g->index < 0 ? 0 : g->index) * t->each;
        for (int64_t k = from; k < to; k++, first += t->each) memcpy(first, value, t->each);
    } else if (to > from) {
        int64_t element = origin(t->kind, g) + run->first + from * run->step - g->lead;
        ravel__take(first, t->source + (size_t)element * t->each, to - from, run->step, t->each);
    }
    fill(t, target + (size_t)to * t->each, run->count - to);
}

void ravel__track_unpack(const ravel__track *t, const ravel__guest *g, const ravel__run *run, const char *packed,
                         int64_t at, char *out) {
    int64_t from, to;
    ravel__run_span(run, g->lead, g->lead + held(t->kind, g), &from, &to);
    if (to <= from) return;
    int64_t element = origin(t->kind, g) + run->first + from * run->step - g->lead;
    ravel__put(out + (size_t)element * t->each, packed + (size_t)(at + from) * t->each, to - from, run->step, t->each);
}

void ravel__track_pack_sample(const ravel__track *t, const ravel__guest *g, int64_t at) {
    char *target = t->target + (size_t)at * t->each;
    if (g->index < 0)
        fill(t, target, 1);
    else
        memcpy(target, t->source + (size_t)g->index * t->each, t->each);
}

void ravel__track_unpack_sample(const ravel__track *t, const ravel__guest *g, const char *packed, int64_t at,
                                char *out) {
    memcpy(out + (size_t)g->index * t->each, packed + (size_t)at * t->each, t->each);
}

/* ---- derived arrays ------------------------------------------------------------------------------------- */

static void put_positions(int32_t *out, const ravel__run *run, const ravel__guest *g, int64_t from, int64_t to) {
    memset(out, 0, (size_t)from * sizeof *out);
    count_up(out + from, run->first + from * run->step - g->lead, run->step, to - from);
    memset(out + to, 0, (size_t)(run->count - to) * sizeof *out);
}

static void put_segments(int32_t *out, const ravel__run *run, int32_t segment, int64_t from, int64_t to) {
    memset(out, 0, (size_t)from * sizeof *out);
    fill_4((char *)(out + from), (const unsigned char *)&segment, to - from);
    memset(out + to, 0, (size_t)(run->count - to) * sizeof *out);
}

static void put_flags(uint8_t *out, const ravel__run *run, int inside, int64_t from, int64_t to) {
    memset(out, !inside, (size_t)from);
    memset(out + from, inside, (size_t)(to - from));
    memset(out + to, !inside, (size_t)(run->count - to));
}

static void put_loss(float *out, const ravel__run *run, const ravel__guest *g) {
    int64_t from, to;
    const float one = 1;
    int64_t predicts = g->prompt > 0 ? g->prompt - 1 : 0; /* the first position that predicts a response's token */
    ravel__run_span(run, g->lead + predicts, g->lead + g->length - 1, &from, &to);
    memset(out, 0, (size_t)from * sizeof *out);
    fill_4((char *)(out + from), (const unsigned char *)&one, to - from);
    memset(out + to, 0, (size_t)(run->count - to) * sizeof *out);
}

void ravel__derived_pack(const ravel__derived *d, const ravel__guest *g, int32_t segment, const ravel__run *run,
                         int64_t at) {
    int64_t from, to;
    ravel__run_span(run, g->lead, g->lead + g->length, &from, &to);
    if (d->positions) put_positions(d->positions + at, run, g, from, to);
    if (d->segments) put_segments(d->segments + at, run, segment, from, to);
    if (d->hidden) put_flags(d->hidden + at, run, 0, from, to);
    if (d->shown) put_flags(d->shown + at, run, 1, from, to);
    if (d->loss) put_loss(d->loss + at, run, g);
}

/* ---- one block, many arrays ----------------------------------------------------------------------------- */

/* A block that is only counted leaves room to align it. */
ravel__cutter ravel__cutter_begin(void *block) {
    ravel__cutter cutter = {block, block ? 0 : RAVEL__PIECE_ALIGN};
    uintptr_t rest = (uintptr_t)block % RAVEL__PIECE_ALIGN;
    if (block && rest) cutter.used = RAVEL__PIECE_ALIGN - rest;
    return cutter;
}

void *ravel__cutter_take(ravel__cutter *cutter, int64_t count, size_t each) {
    size_t at = cutter->used, bytes;
    if (at == SIZE_MAX || !ravel__size_mul((size_t)count, each, &bytes) || bytes > SIZE_MAX / 2 - RAVEL__PIECE_ALIGN ||
        at > SIZE_MAX / 2) {
        cutter->used = SIZE_MAX;
        return NULL;
    }
    cutter->used = at + ravel__round_up(bytes, RAVEL__PIECE_ALIGN);
    return cutter->block ? cutter->block + at : NULL;
}
