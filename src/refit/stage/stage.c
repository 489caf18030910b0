/* The front of the stage: versions, audit; the kinds of stage.h hold the bytes. */
#include "refit/model/carrier.h"
#include "refit/stage/stage.h"

#include "base/assert.h"
#include "base/xxh3.h"

#include <stdbool.h>
#include <string.h>

enum { CHUNK = 64 * 1024, CACHE_BYTES = 32 << 20 };

/* By ravel_refit_stage. */
static const ravel__stage_kind *const kinds[] = {&ravel__stage_spare, &ravel__stage_undo, &ravel__stage_copy};
_Static_assert(RAVEL_REFIT_SPARE == 0 && RAVEL_REFIT_UNDO == 1 && RAVEL_REFIT_COPY == 2, "the order of `kinds`");

/* ---- create and free --------------------------------------------------------------------------------------------- */

/* A tensor with elements on this rank has data; either all of them have a spare set or none. */
static ravel_status check_tensors(const ravel_refit_sink *sink, const ravel__holding *holding, ravel_error *err) {
    const ravel_refit_tensor *bare = ravel__holding_without_data(holding, sink->tensors), *first = NULL;
    if (bare)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "sink tensor \"%s\" has no data, and the sink no load",
                               bare->name);
    for (int64_t i = 0; i < holding->count + holding->ties; i++) {
        const ravel_refit_tensor *t = &sink->tensors[holding->items[i].view.tensor];
        if (ravel__box_count(&holding->items[i].view.box) == 0) continue;
        if (!first) first = t;
        if (!t->spare != !first->spare)
            return ravel_error_set(err, RAVEL_E_ARGUMENT,
                                   "spare is given for \"%s\" or \"%s\" only; all or none have it", first->name,
                                   t->name);
    }
    return RAVEL_OK;
}

static ravel_status check_sink(const ravel_refit_sink *sink, const ravel__holding *holding,
                               const ravel_refit_options *options, ravel_error *err) {
    if (!sink->load && (sink->begin || sink->commit || sink->abort))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a sink with callbacks needs load");
    if (sink->load && (!sink->abort || !sink->commit))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a sink with load needs commit and abort");
    if (sink->version < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the sink's version is %lld; it must be 0 or more",
                               (long long)sink->version);
    if (options->audit && sink->load)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "audit needs a sink without callbacks");
    return sink->load ? RAVEL_OK : check_tensors(sink, holding, err);
}

static int64_t bytes_of(const ravel__holding *holding) {
    int64_t bytes = 0;
    for (int64_t i = 0; i < holding->count; i++)
        bytes += ravel__box_count(&holding->items[i].view.box) * ravel_dtype_bytes(holding->items[i].dtype);
    return bytes;
}

ravel_status ravel__stage_init(ravel__stage *s, const ravel_refit_sink *sink, const ravel__holding *holding,
                               const ravel_refit_options *options, const ravel_allocator *allocator, ravel_error *err) {
    memset(s, 0, sizeof *s);
    if (!sink) return RAVEL_OK;
    ravel_status status = check_sink(sink, holding, options, err);
    if (status != RAVEL_OK) return status;
    if (options->audit && holding->count > 0) {
        size_t size = (size_t)holding->count * 2 * sizeof *s->hashes;
        s->hashes = ravel__alloc(allocator, size);
        if (!s->hashes) return ravel__no_memory(err, size, "the tensors' hashes");
        s->next_hashes = s->hashes + holding->count;
    }
    RAVEL_ASSERT(options->stage >= 0 && options->stage < (int32_t)(sizeof kinds / sizeof kinds[0]));
    s->kind = sink->load ? &ravel__stage_callbacks : kinds[options->stage];
    s->sink = sink;
    s->holding = holding;
    s->allocator = allocator;
    s->far = bytes_of(holding) > CACHE_BYTES;
    s->held.version = sink->version;
    pthread_mutex_init(&s->lock, NULL);
    return RAVEL_OK;
}

void ravel__stage_free(ravel__stage *s) {
    if (!s->sink) return;
    if (s->active) (void)ravel__stage_abort(s, NULL);
    ravel__stage_free_sets(s);
    ravel__stage_free_log(s);
    uint64_t *first = s->hashes < s->next_hashes ? s->hashes : s->next_hashes;
    if (s->hashes) ravel__release(s->allocator, first, (size_t)s->holding->count * 2 * sizeof *first);
    pthread_mutex_destroy(&s->lock);
    memset(s, 0, sizeof *s);
}

/* What holds between two calls: a version is staged, in doubt or neither, and a set is live that there is. */
static bool stage_ok(const ravel__stage *s) {
    if (s->active && (!s->now || s->next.version <= 0 || s->prepared.version != 0)) return false;
    if (s->prepared.version != 0 && !s->now->survives) return false;
    return (s->live == 0 || s->live == 1) && (s->live == 0 || s->kind == &ravel__stage_spare) && s->held.version >= 0;
}

/* ---- a version ------------------------------------------------------------------------------------------ */

ravel_status ravel__stage_begin(ravel__stage *s, ravel_refit_identity next, ravel_error *err) {
    if (!s->sink) return RAVEL_OK;
    RAVEL_ASSERT(!s->active && next.version > 0);
    RAVEL_ASSERT(stage_ok(s));
    int first = s->held.version == 0 && s->kind != &ravel__stage_callbacks;
    s->now = first ? &ravel__stage_in_place : s->kind;
    s->prepared = (ravel_refit_identity){0};
    s->next = next;
    ravel_status status = s->now->begin(s, err);
    if (status == RAVEL_OK) status = ravel__carrier_follow(s->holding->carrier, err);
    s->active = status == RAVEL_OK;
    return status;
}

/* The next item that is tied to the span's; 0: none. */
static int next_tied(const ravel__stage *s, ravel__refit_span *span) {
    int64_t tied = s->holding->items[span->item].tied;
    RAVEL_ASSERT(tied == 0 || (tied >= s->holding->count && tied < s->holding->count + s->holding->ties));
    span->item = (int32_t)tied;
    return tied > 0;
}

ravel_status ravel__stage_write(ravel__stage *s, const ravel__refit_span *span, int32_t dtype, const void *data,
                                ravel_error *err) {
    RAVEL_ASSERT(span->first >= 0 && span->count > 0 && data);
    RAVEL_ASSERT(s->active && span->item >= 0 && span->item < s->holding->count);
    ravel_status status = s->now->write(s, span, dtype, data, err);
    for (ravel__refit_span tied = *span; status == RAVEL_OK && next_tied(s, &tied);)
        status = s->now->write(s, &tied, dtype, data, err);
    return status;
}

ravel_status ravel__stage_keep(ravel__stage *s, const ravel__refit_span *span, ravel_error *err) {
    RAVEL_ASSERT(s->active && span->item >= 0 && span->item < s->holding->count);
    if (s->held.version == 0)
        return ravel_error_set(err, RAVEL_E_DATA, "a sender keeps elements that were never received");
    ravel_status status = s->now->keep(s, span, err);
    for (ravel__refit_span tied = *span; status == RAVEL_OK && next_tied(s, &tied);)
        status = s->now->keep(s, &tied, err);
    return status;
}

void *ravel__stage_address(const ravel__stage *s, const ravel__refit_span *span, int32_t dtype) {
    RAVEL_ASSERT(s->active && span->item >= 0 && span->item < s->holding->count);
    const ravel__view *view = &s->holding->items[span->item].view;
    if (!s->now->direct || s->holding->items[span->item].tied) return NULL;
    char *target = s->now->target(s, view->tensor);
    const char *place = ravel__view_direct(view, target, span->box, span->first, dtype);
    return place ? target + (place - target) : NULL;
}

int ravel__stage_patches(const ravel__stage *s) {
    return s->sink && s->kind != &ravel__stage_callbacks;
}

ravel_status ravel__stage_read_live(const ravel__stage *s, const ravel__refit_span *span, int32_t dtype, void *out,
                                    ravel_error *err) {
    const ravel__view *view = &s->holding->items[span->item].view;
    if (!ravel__stage_patches(s))
        return ravel_error_set(err, RAVEL_E_DATA, "changes came for elements that cannot be read here");
    return ravel__view_gather(view, ravel__stage_set(s, view->tensor, s->live), span->box, span->first, span->count,
                              dtype, out, err);
}

static uint64_t hash_item(const ravel__item *item, const void *data) {
    unsigned char chunk[CHUNK];
    ravel__xxh3 state;
    int64_t count = ravel__box_count(&item->view.box), each = ravel_dtype_bytes(item->view.dtype);
    ravel__xxh3_begin(&state);
    for (int64_t done = 0, n; done < count; done += n) {
        n = CHUNK / each < count - done ? CHUNK / each : count - done;
        (void)ravel__view_gather(&item->view, data, &item->view.box, done, n, item->view.dtype, chunk, NULL);
        ravel__xxh3_add(&state, chunk, (size_t)(n * each));
    }
    return ravel__xxh3_end(&state);
}

void ravel__stage_seal(ravel__stage *s) {
    if (!s->active || !s->hashes) return;
    RAVEL_ASSERT(s->next_hashes && s->next_hashes != s->hashes);
    for (int64_t i = 0; i < s->holding->count; i++) {
        const ravel__item *item = &s->holding->items[i];
        s->next_hashes[i] = hash_item(item, s->now->target(s, item->view.tensor));
    }
}

static ravel_status make_live(ravel__stage *s, ravel_refit_identity identity, ravel_error *err) {
    RAVEL_ASSERT(s->now && identity.version > 0);
    s->held = (ravel_refit_identity){0};
    ravel_status status = s->now->commit(s, err);
    if (status != RAVEL_OK) return status;
    if (s->hashes) {
        uint64_t *swap = s->hashes;
        s->hashes = s->next_hashes;
        s->next_hashes = swap;
    }
    s->held = identity;
    RAVEL_ASSERT(stage_ok(s));
    return RAVEL_OK;
}

ravel_status ravel__stage_commit(ravel__stage *s, ravel_error *err) {
    if (!s->active) return RAVEL_OK;
    RAVEL_ASSERT(stage_ok(s));
    s->active = 0;
    return make_live(s, s->next, err);
}

ravel_status ravel__stage_abort(ravel__stage *s, ravel_error *err) {
    if (!s->active) return RAVEL_OK;
    RAVEL_ASSERT(stage_ok(s));
    s->active = 0;
    ravel_status status = s->now->abort(s, err);
    if (status != RAVEL_OK) s->held = (ravel_refit_identity){0};
    return status;
}

void ravel__stage_give_up(ravel__stage *s, ravel_error *why) {
    ravel_error undo = RAVEL_ERROR_INIT;
    if (ravel__stage_abort(s, &undo) != RAVEL_OK && why)
        ravel_error_prefix(
            why, "%s: the old version was not restored, and the weights of this rank are invalid; the first error",
            undo.message);
}

ravel_status ravel__stage_doubt(ravel__stage *s, ravel_error *err) {
    if (!s->active) return RAVEL_OK;
    if (!s->now->survives) return ravel__stage_abort(s, err);
    s->active = 0;
    RAVEL_ASSERT(s->prepared.version == 0);
    s->prepared = s->next;
    RAVEL_ASSERT(stage_ok(s));
    return RAVEL_OK;
}

void ravel__stage_resolve(ravel__stage *s, int committed) {
    RAVEL_ASSERT(!s->active && (s->prepared.version == 0 || s->now->survives));
    if (s->prepared.version > 0 && committed) (void)make_live(s, s->prepared, NULL);
    s->prepared = (ravel_refit_identity){0};
}

/* ---- the live version ----------------------------------------------------------------------------------- */

void *ravel__stage_data(const ravel__stage *s, int64_t tensor) {
    if (!s->sink || s->sink->load || tensor < 0 || tensor >= s->sink->count) return NULL;
    return ravel__stage_set(s, tensor, s->live);
}

ravel_status ravel__stage_audit(const ravel__stage *s, ravel_error *err) {
    if (!s->hashes || s->held.version == 0 || (s->sink->version == s->held.version && s->held.nonce == 0))
        return ravel_error_set(err, RAVEL_E_STATE, "there is nothing to audit: it needs options.audit and a refit");
    for (int64_t i = 0; i < s->holding->count; i++) {
        const ravel__item *item = &s->holding->items[i];
        if (hash_item(item, ravel__stage_set(s, item->view.tensor, s->live)) != s->hashes[i])
            return ravel_error_set(err, RAVEL_E_CHECKSUM, "\"%s\" is not what version %lld had", item->name,
                                   (long long)s->held.version);
    }
    return RAVEL_OK;
}
