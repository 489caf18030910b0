/* The kinds of stage: in place (a first version), two sets, copy on commit, an undo log, and the caller's callbacks. */
#include "refit/model/carrier.h"
#include "refit/stage/stage.h"

#include "base/assert.h"

#include <string.h>

/* ---- sets ----------------------------------------------------------------------------------------------- */

/* Elements from the start of a tensor's memory to the end of the item. */
static int64_t reach_of(const ravel__view *v) {
    int64_t end = v->offset + 1;
    for (int32_t d = 0; d < v->box.ndim; d++) {
        int64_t index = v->box.extent[d] - 1;
        if (index < 0) return 0;
        end += v->block > 0 && d == v->block_dim ? index / v->block * v->block_stride + index % v->block * v->strides[d]
                                                 : index * v->strides[d];
    }
    return end;
}

/* Memory of a second set, where the first one is. */
static void *set_alloc(const ravel__stage *s, size_t bytes) {
    ravel__carrier *carrier = s->holding->carrier;
    return carrier ? ravel__carrier_alloc(carrier, bytes) : ravel__alloc(s->allocator, bytes);
}

static void set_free(const ravel__stage *s, void *array, size_t bytes) {
    ravel__carrier *carrier = s->holding->carrier;
    if (carrier)
        ravel__carrier_release(carrier, array);
    else
        ravel__release(s->allocator, array, bytes);
}

static void free_spares(ravel__stage *s) {
    RAVEL_ASSERT(!s->spare_bytes || s->sink);
    size_t count = s->sink ? (size_t)s->sink->count : 0;
    for (size_t i = 0; s->spares && s->spare_bytes && i < count; i++) set_free(s, s->spares[i], s->spare_bytes[i]);
    ravel__release(s->allocator, (void *)s->spares, count * sizeof *s->spares);
    ravel__release(s->allocator, s->spare_bytes, count * sizeof *s->spare_bytes);
    s->spares = NULL;
    s->spare_bytes = NULL;
}

/* Whether the caller gave the second set: of all tensors or of none (stage.c), leaving out those without elements
 * here. */
static int has_spares(const ravel_refit_sink *sink) {
    for (int64_t i = 0; i < sink->count; i++)
        if (sink->tensors[i].spare) return 1;
    return 0;
}

/* A second set for tensors that came without one. */
static ravel_status make_spares(ravel__stage *s, ravel_error *err) {
    size_t count = (size_t)s->sink->count;
    if (s->spares || count == 0 || has_spares(s->sink)) return RAVEL_OK;
    RAVEL_ASSERT(s->live == 0); /* without a second set only the first can be */
    s->spares = ravel__calloc(s->allocator, count, sizeof *s->spares);
    s->spare_bytes = ravel__calloc(s->allocator, count, sizeof *s->spare_bytes);
    int whole = s->spares && s->spare_bytes;
    for (int64_t i = 0; whole && i < s->holding->count + s->holding->ties; i++) {
        const ravel__view *view = &s->holding->items[i].view;
        size_t bytes = (size_t)reach_of(view) * (size_t)ravel_dtype_bytes(view->dtype);
        if (bytes > s->spare_bytes[view->tensor]) s->spare_bytes[view->tensor] = bytes;
    }
    for (size_t i = 0; whole && i < count; i++) {
        s->spares[i] = set_alloc(s, s->spare_bytes[i]);
        whole = s->spares[i] || s->spare_bytes[i] == 0;
    }
    if (whole) return RAVEL_OK;
    free_spares(s);
    return ravel_error_set(err, RAVEL_E_MEMORY,
                           "out of memory for a second set of weights; give spare addresses, or stage with undo");
}

void ravel__stage_prepare(ravel__stage *s, const _Atomic int32_t *stop) {
    enum { STEP = 1 << 20 };
    if (s->kind->begin != make_spares || s->now == s->kind || s->holding->carrier || make_spares(s, NULL)) return;
    for (int64_t i = 0; s->spares && i < s->sink->count; i++)
        for (size_t at = 0; at < s->spare_bytes[i] && !atomic_load(stop); at += STEP) {
            size_t left = s->spare_bytes[i] - at;
            memset((char *)s->spares[i] + at, 0, left < STEP ? left : STEP);
        }
}

void *ravel__stage_set(const ravel__stage *s, int64_t tensor, int32_t set) {
    RAVEL_ASSERT(tensor >= 0 && tensor < s->sink->count && (set == 0 || set == 1));
    const ravel_refit_tensor *t = &s->sink->tensors[tensor];
    if (set == 0) return t->data;
    return t->spare ? t->spare : s->spares ? s->spares[tensor] : NULL;
}

static ravel_status copy_set(const ravel__stage *s, int32_t from, int32_t to, ravel_error *err) {
    RAVEL_ASSERT(from != to);
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < s->holding->count + s->holding->ties && status == RAVEL_OK; i++) {
        const ravel__view *view = &s->holding->items[i].view;
        const void *source = ravel__stage_set(s, view->tensor, from);
        void *target = ravel__stage_set(s, view->tensor, to);
        if (source && target)
            status = ravel__view_copy(view, source, target, &view->box, 0, ravel__box_count(&view->box), err);
    }
    return status;
}

void ravel__stage_free_sets(ravel__stage *s) {
    if (s->spares && s->live) (void)copy_set(s, 1, 0, NULL);
    free_spares(s);
}

/* ---- shared by the kinds ------------------------------------------------------------------------------- */

static void *live_set(const ravel__stage *s, int64_t tensor) {
    return ravel__stage_set(s, tensor, s->live);
}

static ravel_status write_set(ravel__stage *s, const ravel__refit_span *span, int32_t dtype, const void *data,
                              ravel_error *err) {
    RAVEL_ASSERT(s->now->target(s, s->holding->items[span->item].view.tensor));
    const ravel__view *view = &s->holding->items[span->item].view;
    return ravel__view_scatter(view, s->now->target(s, view->tensor), span->box, span->first, span->count, dtype, data,
                               s->far, err);
}

static ravel_status copy_from_live(ravel__stage *s, const ravel__refit_span *span, ravel_error *err) {
    const ravel__view *view = &s->holding->items[span->item].view;
    void *live = live_set(s, view->tensor), *target = s->now->target(s, view->tensor);
    RAVEL_ASSERT(live != target);
    return ravel__view_copy(view, live, target, span->box, span->first, span->count, err);
}

static ravel_status nothing(ravel__stage *s, ravel_error *err) {
    (void)s, (void)err;
    return RAVEL_OK;
}

/* ---- in place: the first version ------------------------------------------------------------------------ */

const ravel__stage_kind ravel__stage_in_place = {
    .name = "in place",
    .begin = nothing,
    .write = write_set,
    .keep = NULL, /* there is nothing: ravel__stage_keep refuses */
    .target = live_set,
    .commit = nothing,
    .abort = nothing,
    .direct = 1,
};

/* ---- spare: two sets ------------------------------------------------------------------------------------ */

static void *other_set(const ravel__stage *s, int64_t tensor) {
    return ravel__stage_set(s, tensor, !s->live);
}

static ravel_status swap_sets(ravel__stage *s, ravel_error *err) {
    (void)err;
    s->live = !s->live;
    RAVEL_ASSERT(s->live == 0 || s->spares || s->sink->count == 0 || has_spares(s->sink));
    return RAVEL_OK;
}

const ravel__stage_kind ravel__stage_spare = {
    .name = "spare",
    .begin = make_spares,
    .write = write_set,
    .keep = copy_from_live,
    .target = other_set,
    .commit = swap_sets,
    .abort = nothing,
    .direct = 1,
    .survives = 1,
};

/* ---- copy: the live set keeps its addresses --------------------------------------------------------------- */

static ravel_status copy_to_data(ravel__stage *s, ravel_error *err) {
    RAVEL_ASSERT(s->live == 0);
    ravel_status status = ravel__carrier_follow(s->holding->carrier, err);
    return status == RAVEL_OK ? copy_set(s, 1, 0, err) : status;
}

const ravel__stage_kind ravel__stage_copy = {
    .name = "copy",
    .begin = make_spares,
    .write = write_set,
    .keep = copy_from_live,
    .target = other_set,
    .commit = copy_to_data,
    .abort = nothing,
    .direct = 1,
    .survives = 1,
};

/* ---- undo: old bytes go to a log first -------------------------------------------------------------------- */

/* A list, newest first, so that an element that was written twice gets its oldest bytes back. */

/* A span before it was overwritten, in its own dtype. */
struct ravel__undo_block {
    ravel__undo_block *older;
    size_t size; /* of this allocation */
    ravel__box box;
    ravel__refit_span span; /* box points to the one above */
    _Alignas(16) unsigned char saved[];
};

static void push(ravel__stage *s, ravel__undo_block *b) {
    pthread_mutex_lock(&s->lock);
    b->older = s->log;
    s->log = b;
    pthread_mutex_unlock(&s->lock);
}

static ravel_status save(ravel__stage *s, const ravel__refit_span *span, ravel_error *err) {
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

static ravel_status save_and_write(ravel__stage *s, const ravel__refit_span *span, int32_t dtype, const void *data,
                                   ravel_error *err) {
    ravel_status status = save(s, span, err);
    return status == RAVEL_OK ? write_set(s, span, dtype, data, err) : status;
}

static ravel_status leave(ravel__stage *s, const ravel__refit_span *span, ravel_error *err) {
    (void)s, (void)span, (void)err;
    return RAVEL_OK;
}

static ravel_status forget_log(ravel__stage *s, ravel_error *err) {
    return drop_log(s, 0, err);
}

static ravel_status put_back(ravel__stage *s, ravel_error *err) {
    return drop_log(s, 1, err);
}

const ravel__stage_kind ravel__stage_undo = {
    .name = "undo",
    .begin = nothing,
    .write = save_and_write,
    .keep = leave,
    .target = live_set,
    .commit = forget_log,
    .abort = put_back,
};

/* ---- callbacks: the memory is the caller's ---------------------------------------------------------------- */

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

static ravel_status load(ravel__stage *s, const ravel__refit_span *span, int32_t dtype, const void *data,
                         ravel_error *err) {
    RAVEL_ASSERT(s->sink->load && span->count > 0);
    const ravel__view *view = &s->holding->items[span->item].view;
    loading l = {.sink = s->sink, .data = data, .each = ravel_dtype_bytes(dtype)};
    l.piece.tensor = view->tensor;
    l.piece.dtype = dtype;
    pthread_mutex_lock(&s->lock);
    ravel_status status = ravel__view_pieces(view, span->box, span->first, span->count, load_one, &l, err);
    pthread_mutex_unlock(&s->lock);
    return status;
}

static ravel_status load_kept(ravel__stage *s, const ravel__refit_span *span, ravel_error *err) {
    return load(s, span, s->holding->items[span->item].view.dtype, NULL, err);
}

static ravel_status call_begin(ravel__stage *s, ravel_error *err) {
    if (!s->sink->begin) return RAVEL_OK;
    ravel_status status = s->sink->begin(s->sink->user, s->next.version, err);
    if (status == RAVEL_OK || status == RAVEL_E_MEMORY) return status;
    return ravel_error_set(err, RAVEL_E_CALLBACK, "the sink's begin failed");
}

static void *no_memory_of_ours(const ravel__stage *s, int64_t tensor) {
    (void)s, (void)tensor;
    return NULL;
}

static ravel_status call_commit(ravel__stage *s, ravel_error *err) {
    RAVEL_ASSERT(s->next.version > 0);
    (void)err;
    s->sink->commit(s->sink->user, s->next.version);
    return RAVEL_OK;
}

static ravel_status call_abort(ravel__stage *s, ravel_error *err) {
    (void)err;
    s->sink->abort(s->sink->user, s->next.version);
    return RAVEL_OK;
}

const ravel__stage_kind ravel__stage_callbacks = {
    .name = "callbacks",
    .begin = call_begin,
    .write = load,
    .keep = load_kept,
    .target = no_memory_of_ours,
    .commit = call_commit,
    .abort = call_abort,
};
