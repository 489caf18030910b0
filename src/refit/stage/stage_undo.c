/* The kind of stage that writes the live set: old bytes go to a log in memory first, and are restored after a
 * failure. The log is a list, newest first, so that an element that was written twice gets its oldest bytes
 * back. */
#include "refit/stage/stage.h"

#include "base/assert.h"

/* A span before it was overwritten, in its own dtype. */
struct ravel__undo_block {
    ravel__undo_block *older;
    size_t size; /* of this allocation */
    ravel__box box;
    ravel__span span; /* box points to the one above */
    _Alignas(16) unsigned char saved[];
};

static void push(ravel__stage *s, ravel__undo_block *b) {
    pthread_mutex_lock(&s->log_lock);
    b->older = s->log;
    s->log = b;
    pthread_mutex_unlock(&s->log_lock);
}

static ravel_status save(ravel__stage *s, const ravel__span *span, ravel_error *err) {
    const ravel__view *view = &s->holding->items[span->item].view;
    const void *live = ravel__stage_set(s, view->tensor, s->live);
    RAVEL_ASSERT(span->count > 0 && span->item < s->holding->count + s->holding->ties);
    size_t size = sizeof(ravel__undo_block) + (size_t)(span->count * ravel_dtype_bytes(view->dtype));
    ravel__undo_block *b = ravel__alloc(s->allocator, size);
    if (!b) return ravel__no_memory(err, size, "the undo log");
    *b = (ravel__undo_block){.size = size, .box = *span->box, .span = *span};
    b->span.box = &b->box;
    ravel_status status =
        ravel__view_gather(view, live, span->box, span->first, span->count, view->dtype, b->saved, err);
    if (status == RAVEL_OK)
        push(s, b);
    else
        ravel__release(s->allocator, b, size);
    return status;
}

static ravel_status restore(const ravel__stage *s, const ravel__undo_block *b, ravel_error *err) {
    RAVEL_ASSERT(b->span.box == &b->box && b->span.count >= 0);
    const ravel__view *view = &s->holding->items[b->span.item].view;
    void *live = ravel__stage_set(s, view->tensor, s->live);
    return ravel__view_scatter(view, live, &b->box, b->span.first, b->span.count, view->dtype, b->saved, 0, err);
}

/* Empties the log; with `back`, writes everything back first. */
static ravel_status drop_log(ravel__stage *s, int back, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    while (s->log) {
        ravel__undo_block *b = s->log;
        if (back && status == RAVEL_OK) status = restore(s, b, err);
        s->log = b->older;
        ravel__release(s->allocator, b, b->size);
    }
    return status;
}

void ravel__stage_free_log(ravel__stage *s) {
    (void)drop_log(s, 0, NULL);
}

static ravel_status open_log(ravel__stage *s, ravel_error *err) {
    RAVEL_ASSERT(!s->log);
    (void)s, (void)err;
    return RAVEL_OK;
}

/* ---- the kind ------------------------------------------------------------------------------------------- */

static void *live_set(const ravel__stage *s, int64_t tensor) {
    return ravel__stage_set(s, tensor, s->live);
}

static ravel_status save_and_write(ravel__stage *s, const ravel__span *span, int32_t dtype, const void *data,
                                   ravel_error *err) {
    const ravel__view *view = &s->holding->items[span->item].view;
    ravel_status status = save(s, span, err);
    if (status != RAVEL_OK) return status;
    return ravel__view_scatter(view, live_set(s, view->tensor), span->box, span->first, span->count, dtype, data,
                               s->far, err);
}

static ravel_status keep(ravel__stage *s, const ravel__span *span, ravel_error *err) {
    (void)s, (void)span, (void)err;
    return RAVEL_OK;
}

static ravel_status commit(ravel__stage *s, ravel_error *err) {
    return drop_log(s, 0, err);
}

static ravel_status put_back(ravel__stage *s, ravel_error *err) {
    return drop_log(s, 1, err);
}

const ravel__stage_kind ravel__stage_undo = {
    .name = "undo",
    .begin = open_log,
    .write = save_and_write,
    .keep = keep,
    .target = live_set,
    .commit = commit,
    .abort = put_back,
};
