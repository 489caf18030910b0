/* Writing and reading one slot. See slot.h for the picture. */
#include "batch/slot.h"
#include "base/memory.h"

#include <string.h>

/* ---- fields --------------------------------------------------------------------------------------------- */

ravel_status ravel__track_init(const ravel_field *field, ravel__track *track, ravel_error *err) {
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
    RAVEL_ASSERT(track->each >= 1 && track->each / (size_t)element == (size_t)track->width);
    return RAVEL_OK;
}

int64_t ravel__field_held(int32_t kind, const ravel__sequence *g) {
    if (g->index < 0) return 0;
    RAVEL_ASSERT(g->length >= 1);
    return kind == RAVEL_FIELD_NEXT || kind == RAVEL_FIELD_STEP ? g->length - 1 : g->length;
}

int64_t ravel__field_first(int32_t kind, const ravel__sequence *g) {
    switch (kind) {
    case RAVEL_FIELD_NEXT: return g->offset + 1;
    case RAVEL_FIELD_STEP:
        RAVEL_ASSERT(g->index <= g->offset);
        return g->offset - g->index; /* every sample before it has one element less than tokens */
    default: return g->offset;
    }
}

static void fill(ravel__track *t, int64_t positions) {
    ravel__writer_fill(&t->writer, t->pad, t->element, positions * t->width);
}

static void spread(ravel__track *t, const ravel__sequence *g, int64_t positions) {
    if (positions <= 0) return;
    RAVEL_ASSERT(g->index >= 0 && t->source);
    const char *value = t->source + (size_t)g->index * t->each;
    if (t->width == 1)
        ravel__writer_fill(&t->writer, value, t->element, positions);
    else
        for (int64_t i = 0; i < positions; i++) ravel__writer_copy(&t->writer, value, t->each);
}

void ravel__track_pack(ravel__track *t, const ravel__sequence *g, const ravel__run *run) {
    int64_t from, to;
    const char *begin = t->writer.at;
    RAVEL_ASSERT(t->kind != RAVEL_FIELD_SAMPLE && g->lead >= 0 && g->length >= 0);
    ravel__run_span(run, g->lead, g->lead + ravel__field_held(t->kind, g), &from, &to);
    fill(t, from);
    if (t->kind == RAVEL_FIELD_SPREAD) {
        spread(t, g, to - from);
    } else if (to > from) {
        int64_t element = ravel__field_first(t->kind, g) + run->first + from * run->step - g->lead;
        RAVEL_ASSERT(t->source && element >= 0);
        ravel__writer_take(&t->writer, t->source + (size_t)element * t->each, to - from, run->step, t->each);
    }
    fill(t, run->count - to);
    RAVEL_ASSERT((size_t)(t->writer.at - begin) == (size_t)run->count * t->each);
}

void ravel__track_soon(const ravel__track *t, const ravel__sequence *g) {
    if (t->kind == RAVEL_FIELD_SAMPLE || t->kind == RAVEL_FIELD_SPREAD)
        __builtin_prefetch(t->source + (size_t)g->index * t->each);
    else
        ravel__soon(t->source + (size_t)ravel__field_first(t->kind, g) * t->each, (size_t)g->length * t->each);
}

void ravel__track_unpack(const ravel__track *t, const ravel__sequence *g, const ravel__run *run, const char *packed,
                         int64_t at, char *out) {
    int64_t from, to;
    ravel__run_span(run, g->lead, g->lead + ravel__field_held(t->kind, g), &from, &to);
    if (to <= from) return;
    int64_t element = ravel__field_first(t->kind, g) + run->first + from * run->step - g->lead;
    RAVEL_ASSERT(g->index >= 0 && element >= 0 && at >= 0);
    ravel__put(out + (size_t)element * t->each, packed + (size_t)(at + from) * t->each, to - from, run->step, t->each);
}

void ravel__track_pack_sample(ravel__track *t, const ravel__sequence *g) {
    if (g->index < 0)
        fill(t, 1);
    else
        ravel__writer_copy(&t->writer, t->source + (size_t)g->index * t->each, t->each);
}

void ravel__track_unpack_sample(const ravel__track *t, const ravel__sequence *g, const char *packed, int64_t at,
                                char *out) {
    RAVEL_ASSERT(g->index >= 0 && at >= 0);
    memcpy(out + (size_t)g->index * t->each, packed + (size_t)at * t->each, t->each);
}

/* ---- derived arrays ------------------------------------------------------------------------------------- */

void ravel__derived_add(ravel__derived *d, ravel__derived_kind kind, void *array, int stream) {
    d->wanted[kind] = array != NULL;
    ravel__writer_open(&d->writers[kind], array, stream);
}

void ravel__derived_close(ravel__derived *d) {
    for (int i = 0; i < RAVEL__DERIVED_COUNT; i++)
        if (d->wanted[i]) ravel__writer_close(&d->writers[i]);
}

/* `inside` on the span [from, to) of a run, 0 or `outside` around it. */
static void put_span(ravel__writer *writer, int32_t bytes, const void *outside, const void *inside,
                     const ravel__run *run, int64_t from, int64_t to) {
    RAVEL_ASSERT(0 <= from && from <= to && to <= run->count);
    ravel__writer_fill(writer, outside, bytes, from);
    ravel__writer_fill(writer, inside, bytes, to - from);
    ravel__writer_fill(writer, outside, bytes, run->count - to);
}

static const int32_t zero = 0;

static void put_positions(ravel__writer *writer, const ravel__run *run, const ravel__sequence *g, int64_t from,
                          int64_t to) {
    RAVEL_ASSERT(from == to || run->first + from * run->step >= g->lead);
    ravel__writer_fill(writer, &zero, sizeof zero, from);
    ravel__writer_count_up(writer, run->first + from * run->step - g->lead, run->step, to - from);
    ravel__writer_fill(writer, &zero, sizeof zero, run->count - to);
}

static void put_loss(ravel__writer *writer, const ravel__run *run, const ravel__sequence *g) {
    int64_t from, to;
    const float one = 1;
    RAVEL_ASSERT(g->prompt >= 0 && g->prompt <= g->length);
    int64_t predicts = g->prompt > 0 ? g->prompt - 1 : 0; /* the first position that predicts a response's token */
    ravel__run_span(run, g->lead + predicts, g->lead + g->length - 1, &from, &to);
    put_span(writer, sizeof one, &zero, &one, run, from, to);
}

void ravel__derived_pack(ravel__derived *d, const ravel__sequence *g, int32_t segment, const ravel__run *run) {
    static const uint8_t no = 0, yes = 1;
    int64_t from, to;
    ravel__run_span(run, g->lead, g->lead + g->length, &from, &to);
    if (d->wanted[RAVEL__POSITIONS]) put_positions(&d->writers[RAVEL__POSITIONS], run, g, from, to);
    if (d->wanted[RAVEL__SEGMENTS])
        put_span(&d->writers[RAVEL__SEGMENTS], sizeof segment, &zero, &segment, run, from, to);
    if (d->wanted[RAVEL__HIDDEN]) put_span(&d->writers[RAVEL__HIDDEN], 1, &yes, &no, run, from, to);
    if (d->wanted[RAVEL__SHOWN]) put_span(&d->writers[RAVEL__SHOWN], 1, &no, &yes, run, from, to);
    if (d->wanted[RAVEL__LOSS]) put_loss(&d->writers[RAVEL__LOSS], run, g);
}

/* ---- one block, many arrays ----------------------------------------------------------------------------- */

/* A block that is only counted leaves room to align it. */
ravel__cutter ravel__cutter_begin(void *block) {
    ravel__cutter cutter = {block, block ? 0 : RAVEL__PIECE_ALIGN};
    uintptr_t rest = (uintptr_t)block % RAVEL__PIECE_ALIGN;
    if (block && rest) cutter.used = RAVEL__PIECE_ALIGN - rest;
    RAVEL_ASSERT(cutter.used <= RAVEL__PIECE_ALIGN); /* what counting has left room for */
    return cutter;
}

void *ravel__cutter_take(ravel__cutter *cutter, int64_t count, size_t each) {
    size_t at = cutter->used, bytes;
    RAVEL_ASSERT(count >= 0);
    if (at == SIZE_MAX || !ravel__size_mul((size_t)count, each, &bytes) || bytes > SIZE_MAX / 2 - RAVEL__PIECE_ALIGN ||
        at > SIZE_MAX / 2) {
        cutter->used = SIZE_MAX;
        return NULL;
    }
    cutter->used = at + ravel__round_up(bytes, RAVEL__PIECE_ALIGN);
    RAVEL_ASSERT(cutter->used >= at + bytes);
    RAVEL_ASSERT(!cutter->block || (uintptr_t)(cutter->block + at) % RAVEL__PIECE_ALIGN == 0);
    return cutter->block ? cutter->block + at : NULL;
}
