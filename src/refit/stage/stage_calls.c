/* The kind of stage whose memory is the caller's: sink.begin, load, then commit or abort. */
#include "refit/stage/stage.h"

#include "base/assert.h"

typedef struct loading {
    const ravel_refit_sink *sink;
    ravel_refit_piece piece;
    const char *data; /* NULL: kept */
    int64_t each;
} loading;

static ravel_status load_one(void *user, int64_t at, int64_t count, ravel_error *err) {
    loading *l = user;
    RAVEL_ASSERT(at >= 0 && count > 0 && l->piece.tensor < l->sink->count);
    l->piece.first = at;
    l->piece.count = count;
    l->piece.data = l->data;
    ravel_status status = l->sink->load(l->sink->user, &l->piece, err);
    if (l->data) l->data += count * l->each;
    if (status == RAVEL_OK) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_CALLBACK, "the sink's load failed for \"%s\"",
                           l->sink->tensors[l->piece.tensor].name);
}

static ravel_status load(ravel__stage *s, const ravel__span *span, int32_t dtype, const void *data, ravel_error *err) {
    RAVEL_ASSERT(s->sink->load && span->count > 0);
    const ravel__view *view = &s->holding->items[span->item].view;
    loading l = {.sink = s->sink, .data = data, .each = ravel_dtype_bytes(dtype)};
    l.piece.tensor = view->tensor;
    l.piece.dtype = dtype;
    return ravel__view_pieces(view, span->box, span->first, span->count, load_one, &l, err);
}

static ravel_status keep(ravel__stage *s, const ravel__span *span, ravel_error *err) {
    return load(s, span, s->holding->items[span->item].view.dtype, NULL, err);
}

static ravel_status begin(ravel__stage *s, ravel_error *err) {
    if (!s->sink->begin) return RAVEL_OK;
    ravel_status status = s->sink->begin(s->sink->user, s->next.version, err);
    if (status == RAVEL_OK || status == RAVEL_E_MEMORY) return status;
    return ravel_error_set(err, RAVEL_E_CALLBACK, "the sink's begin failed");
}

static void *no_memory_of_ours(const ravel__stage *s, int64_t tensor) {
    (void)s, (void)tensor;
    return NULL;
}

static ravel_status commit(ravel__stage *s, ravel_error *err) {
    RAVEL_ASSERT(s->next.version > 0);
    (void)err;
    s->sink->commit(s->sink->user, s->next.version);
    return RAVEL_OK;
}

static ravel_status undo(ravel__stage *s, ravel_error *err) {
    (void)err;
    s->sink->abort(s->sink->user, s->next.version);
    return RAVEL_OK;
}

const ravel__stage_kind ravel__stage_callbacks = {
    .name = "callbacks",
    .begin = begin,
    .write = load,
    .keep = keep,
    .target = no_memory_of_ours,
    .commit = commit,
    .abort = undo,
};
