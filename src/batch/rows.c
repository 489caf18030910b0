#include "batch/rows.h"

#include "base/assert.h"
#include "base/memory.h"
#include "device/handle.h"

#include <stdio.h>
#include <string.h>

static size_t up16(size_t bytes) {
    return ravel__round_up(bytes, 16);
}

ravel_status ravel__book_open(ravel__book *b, const ravel__book_room *room, ravel_error *err) {
    size_t tracks = up16((size_t)room->tracks * sizeof *b->tracks), runs = up16((size_t)room->runs * sizeof *b->runs);
    size_t samples = up16((size_t)room->sequences * sizeof *b->samples);
    size_t values = up16((size_t)room->values * sizeof *b->values);
    /* every list begins at a multiple of 16 */
    size_t lists = (size_t)room->list_words * sizeof(int32_t) + (size_t)room->tracks * 16;
    memset(b, 0, sizeof *b);
    b->room = up16(sizeof *b->head) + tracks + runs + samples + values + lists;
    char *block = ravel__calloc(NULL, 1, b->room);
    if (!block) return ravel__no_memory(err, b->room, "the description of a micro-batch");
    b->head = (ravel__rows_head *)(void *)block;
    b->head->tracks_at = (int64_t)up16(sizeof *b->head);
    b->head->runs_at = b->head->tracks_at + (int64_t)tracks;
    b->head->samples_at = b->head->runs_at + (int64_t)runs;
    b->head->values_at = b->head->samples_at + (int64_t)samples;
    b->tracks = (void *)(block + b->head->tracks_at);
    b->runs = (void *)(block + b->head->runs_at);
    b->samples = (void *)(block + b->head->samples_at);
    b->values = (void *)(block + b->head->values_at);
    b->lists = block + b->head->values_at + values;
    RAVEL_ASSERT(b->lists + lists == block + b->room && (uintptr_t)b->lists % 16 == (uintptr_t)block % 16);
    return RAVEL_OK;
}

void ravel__book_close(ravel__book *b) {
    ravel__release(NULL, b->head, b->room);
    b->head = NULL;
}

void ravel__book_run(ravel__book *b, const ravel__sequence *g, const ravel__run *run, int32_t segment) {
    if (run->count == 0) return;
    RAVEL_ASSERT((char *)(b->runs + b->head->runs + 1) <= (char *)b->samples);
    RAVEL_ASSERT(run->count > 0 && run->first >= 0 && run->step >= 1 &&
                 run->first + run->count * run->step <= INT32_MAX + run->step);
    RAVEL_ASSERT(g->index <= INT32_MAX && g->length <= INT32_MAX && g->lead <= INT32_MAX);
    b->runs[b->head->runs++] = (ravel__row_run){.offset = g->offset,
                                                .at = b->positions,
                                                .count = (int32_t)run->count,
                                                .first = (int32_t)run->first,
                                                .step = (int32_t)run->step,
                                                .lead = (int32_t)g->lead,
                                                .index = (int32_t)g->index,
                                                .length = (int32_t)g->length,
                                                .prompt = (int32_t)g->prompt,
                                                .segment = segment};
    b->positions += run->count;
}

/* The widest unit that divides the bytes of a position and both addresses. */
static int32_t widest_unit(size_t each, const void *source, const void *target) {
    uintptr_t all = (uintptr_t)each | (uintptr_t)source | (uintptr_t)target | 16;
    return (int32_t)(all & (~all + 1));
}

static ravel__row_track *next_track(ravel__book *b) {
    RAVEL_ASSERT((char *)(b->tracks + b->head->tracks + 1) <= (char *)b->runs);
    return &b->tracks[b->head->tracks++];
}

void ravel__book_field(ravel__book *b, const ravel__track *track, const void *source, void *target, int64_t positions) {
    ravel__row_track *t = next_track(b);
    *t = (ravel__row_track){.source = source, .target = target, .positions = positions, .kind = track->kind};
    t->unit = widest_unit(track->each, source, target);
    t->units = (int32_t)(track->each / (size_t)t->unit);
    RAVEL_ASSERT(t->unit >= 1 && t->unit <= 16 && (size_t)t->units * (size_t)t->unit == track->each);
    for (size_t i = 0; i < sizeof t->pad; i++) t->pad[i] = track->pad[i % (size_t)track->element];
}

void ravel__book_derived(ravel__book *b, ravel__row_kind kind, void *target, int32_t bytes) {
    if (!target) return;
    *next_track(b) = (ravel__row_track){
        .target = target, .positions = b->positions, .kind = (int32_t)kind, .unit = bytes, .units = 1};
}

int32_t *ravel__book_list(ravel__book *b, void *target, int64_t words) {
    char *list = b->lists;
    b->lists += up16((size_t)words * sizeof(int32_t));
    RAVEL_ASSERT(b->lists <= (char *)b->head + b->room);
    if (target)
        *next_track(b) = (ravel__row_track){.target = target,
                                            .positions = words,
                                            .offset = list - (char *)b->head,
                                            .kind = RAVEL__ROW_COPY,
                                            .unit = 4,
                                            .units = 1};
    return (int32_t *)(void *)list;
}

/* Units per thread: the fewest with which all tiles still run at once. */
static int32_t choose_items(const ravel__book *b) {
    int64_t units = 0;
    int32_t items = RAVEL__ROW_FEW;
    for (int32_t i = 0; i < b->head->tracks; i++) units += b->tracks[i].positions * b->tracks[i].units;
    while (items < RAVEL__ROW_ITEMS && units / (items * RAVEL__ROW_THREADS) > RAVEL__ROW_ONE_WAVE) items *= 2;
    return items;
}

ravel_status ravel__book_launch(ravel__book *b, ravel_stream *stream, ravel_error *err) {
    int64_t tiles = 0;
    int32_t items = choose_items(b);
    for (int32_t i = 0; i < b->head->tracks; i++) {
        ravel__row_track *t = &b->tracks[i];
        t->first_tile = (int32_t)tiles;
        t->items = items;
        tiles += ravel__row_tiles(t);
        if (tiles > INT32_MAX)
            return ravel_error_set(err, RAVEL_E_OVERFLOW,
                                   "a micro-batch of more than 2^31 tiles: use a smaller budget");
    }
    b->head->tiles = (int32_t)tiles;
    b->head->bytes = b->lists - (char *)b->head;
    RAVEL_ASSERT(b->head->bytes > 0 && (size_t)b->head->bytes <= b->room);
    return ravel__launch_rows(stream, b->head, err);
}

static void describe(const ravel_field *field, char *text, size_t bytes) {
    (void)snprintf(text, bytes, "field \"%.60s\"", field->name ? field->name : "");
}

ravel_status ravel__book_source(const ravel_field *field, ravel_stream *stream, ravel_error *err) {
    char what[80];
    describe(field, what, sizeof what);
    const uint32_t kinds = 1u << RAVEL_PINNED | 1u << RAVEL_DEVICE;
    if (field->place.kind == RAVEL_HOST)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "%s is in host memory, which a device cannot read: copy it to the device, put it into "
                               "pinned memory, or pack on the host",
                               what);
    ravel_status status = ravel__place_check(&field->place, kinds, what, err);
    ravel_stream *own = field->place.stream;
    if (status || !own || own->native == stream->native) return status;
    return ravel_stream_follow(stream, own, err);
}

ravel_status ravel__host_source(const ravel_field *field, ravel_error *err) {
    char what[80];
    describe(field, what, sizeof what);
    if (field->place.kind != RAVEL_DEVICE)
        return ravel__place_check(&field->place, 1u << RAVEL_HOST | 1u << RAVEL_PINNED, what, err);
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                           "%s is in device memory and the other side in host memory: set the place of the packed "
                           "arrays too, or copy the field",
                           what);
}
