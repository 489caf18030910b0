#include "refit/stage.h"

#include "refit/checksum.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* What was at a place before it was overwritten; the bytes follow, or are in the file. */
typedef struct record {
    ravel__box piece;
    int64_t first, count;
    int32_t item;
    int64_t bytes; /* in the place's own dtype */
    int64_t at;    /* in the file */
} record;

struct ravel__undo_block {
    ravel__undo_block *older;
    size_t bytes; /* of this allocation */
    record what;
    _Alignas(16) unsigned char saved[];
};

enum { CHUNK = 64 * 1024, CACHE_BYTES = 32 << 20 };

static int has_callbacks(const ravel_refit_sink *sink) {
    return sink->load != NULL;
}

/* ---- life ----------------------------------------------------------------------------------------------- */

static ravel_status check_sink(const ravel_refit_sink *sink, ravel_error *err) {
    if (!sink->load && (sink->begin || sink->commit || sink->abort))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a sink with callbacks needs load");
    if (sink->load && (!sink->abort || !sink->commit))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a sink with load needs commit and abort");
    if (sink->version < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the sink's version is %lld; it must be 0 or more",
                               (long long)sink->version);
    for (int64_t i = 0; i < sink->count && !sink->load; i++) {
        if (!sink->tensors[i].data)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "sink tensor \"%s\" has no data, and the sink no load",
                                   sink->tensors[i].name);
        if (!sink->tensors[i].spare != !sink->tensors[0].spare)
            return ravel_error_set(err, RAVEL_E_ARGUMENT,
                                   "spare is given for \"%s\" or \"%s\" only; all or none have it",
                                   sink->tensors[0].name, sink->tensors[i].name);
    }
    return RAVEL_OK;
}

ravel_status ravel__stage_init(ravel__stage *stage, const ravel_refit_sink *sink, const ravel__holding *holding,
                               const ravel_refit_options *options, const ravel_allocator *allocator, ravel_error *err) {
    ravel__stage s = {.sink = sink, .holding = holding, .allocator = allocator, .undo_file = -1};
    int64_t bytes = 0;
    if (!sink) {
        *stage = s;
        return RAVEL_OK;
    }
    ravel_status status = check_sink(sink, err);
    if (status != RAVEL_OK) return status;
    s.mode = options->stage;
    for (int64_t i = 0; i < holding->count; i++)
        bytes += ravel__box_count(&holding->items[i].view.box) * ravel_dtype_bytes(holding->items[i].dtype);
    s.far = bytes > CACHE_BYTES;
    s.undo_dir = options->undo_dir && options->undo_dir[0] ? options->undo_dir : NULL;
    s.version = sink->version;
    if (options->audit && has_callbacks(sink))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "audit needs a sink without callbacks");
    if (options->audit && holding->count > 0) {
        size_t size = (size_t)holding->count * 2 * sizeof *s.hashes;
        s.hashes = ravel__alloc(allocator, size);
        if (!s.hashes) return ravel__no_memory(err, size, "the tensors' hashes");
        s.next_hashes = s.hashes + holding->count;
    }
    *stage = s;
    return RAVEL_OK;
}

/* How far the item reaches into its tensor's memory, in elements. */
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

static void free_spares(ravel__stage *s) {
    if (!s->spares) return;
    for (int64_t i = 0; i < s->sink->count; i++) ravel__release(s->allocator, s->spares[i], s->spare_bytes[i]);
    ravel__release(s->allocator, (void *)s->spares, (size_t)s->sink->count * sizeof *s->spares);
    ravel__release(s->allocator, s->spare_bytes, (size_t)s->sink->count * sizeof *s->spare_bytes);
    s->spares = NULL;
    s->spare_bytes = NULL;
}

/* Spare sets for the tensors that came without. */
static ravel_status make_spares(ravel__stage *s, ravel_error *err) {
    size_t count = (size_t)s->sink->count;
    if (s->spares || count == 0 || s->sink->tensors[0].spare) return RAVEL_OK;
    s->spares = ravel__calloc(s->allocator, count, sizeof *s->spares);
    s->spare_bytes = ravel__calloc(s->allocator, count, sizeof *s->spare_bytes);
    if (!s->spares || !s->spare_bytes) goto short_of_memory;
    for (int64_t i = 0; i < s->holding->count; i++) {
        const ravel__view *view = &s->holding->items[i].view;
        size_t bytes = (size_t)reach_of(view) * (size_t)ravel_dtype_bytes(view->dtype);
        if (bytes > s->spare_bytes[view->tensor]) s->spare_bytes[view->tensor] = bytes;
    }
    for (size_t i = 0; i < count; i++) {
        s->spares[i] = ravel__alloc(s->allocator, s->spare_bytes[i]);
        if (s->spare_bytes[i] > 0 && !s->spares[i]) goto short_of_memory;
    }
    return RAVEL_OK;
short_of_memory:
    if (s->spares && s->spare_bytes) {
        free_spares(s);
    } else {
        ravel__release(s->allocator, (void *)s->spares, count * sizeof *s->spares);
        ravel__release(s->allocator, s->spare_bytes, count * sizeof *s->spare_bytes);
        s->spares = NULL;
        s->spare_bytes = NULL;
    }
    return ravel_error_set(err, RAVEL_E_MEMORY,
                           "out of memory for a second set of weights; give spare addresses, or stage with undo");
}

static void *set_of(const ravel__stage *s, int64_t tensor, int32_t set) {
    const ravel_refit_tensor *t = &s->sink->tensors[tensor];
    if (set == 0) return t->data;
    return t->spare ? t->spare : s->spares ? s->spares[tensor] : NULL;
}

void *ravel__stage_data(const ravel__stage *stage, int64_t tensor) {
    if (!stage->sink || has_callbacks(stage->sink) || tensor < 0 || tensor >= stage->sink->count) return NULL;
    return set_of(stage, tensor, stage->live);
}

/* The set that is being written. */
static void *target_of(const ravel__stage *s, int64_t tensor) {
    int in_place = s->first || s->mode == RAVEL_REFIT_UNDO;
    return set_of(s, tensor, in_place ? s->live : !s->live);
}

/* ---- undo log ------------------------------------------------------------------------------------------- */

static ravel_status io_error(ravel_error *err, const ravel__stage *s, const char *what) {
    return ravel_error_set(err, RAVEL_E_IO, "the undo log in \"%s\" could not be %s: %s", s->undo_dir, what,
                           strerror(errno));
}

static ravel_status open_log(ravel__stage *s, ravel_error *err) {
    char path[4096];
    if (!s->undo_dir || s->undo_file >= 0) return RAVEL_OK;
    if (snprintf(path, sizeof path, "%s/ravel-undo-XXXXXX", s->undo_dir) >= (int)sizeof path)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the undo folder's name is too long");
    s->undo_file = mkostemp(path, O_CLOEXEC);
    if (s->undo_file < 0) return io_error(err, s, "made");
    (void)unlink(path);
    s->undo_end = 0;
    return RAVEL_OK;
}

static ravel_status file_write(ravel__stage *s, const unsigned char *data, size_t bytes, ravel_error *err) {
    while (bytes > 0) {
        ssize_t n = pwrite(s->undo_file, data, bytes, s->undo_end);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return io_error(err, s, "written");
        data += n;
        bytes -= (size_t)n;
        s->undo_end += n;
    }
    return RAVEL_OK;
}

static ravel_status file_read(const ravel__stage *s, unsigned char *data, size_t bytes, int64_t at, ravel_error *err) {
    while (bytes > 0) {
        ssize_t n = pread(s->undo_file, data, bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return io_error(err, s, "read");
        data += n;
        bytes -= (size_t)n;
        at += n;
    }
    return RAVEL_OK;
}

/* Saves what is at the place now. In memory the bytes are kept with the record; in a file only the record is. */
static ravel_status save(ravel__stage *s, int32_t item, const ravel__box *piece, int64_t first, int64_t count,
                         ravel_error *err) {
    const ravel__view *view = &s->holding->items[item].view;
    const void *live = set_of(s, view->tensor, s->live);
    int64_t each = ravel_dtype_bytes(view->dtype), bytes = count * each;
    size_t size = sizeof(ravel__undo_block) + (s->undo_file < 0 ? (size_t)bytes : 0);
    ravel__undo_block *b = ravel__alloc(s->allocator, size);
    if (!b) return ravel__no_memory(err, size, "the undo log");
    *b = (ravel__undo_block){.older = s->log, .bytes = size};
    b->what =
        (record){.piece = *piece, .first = first, .count = count, .item = item, .bytes = bytes, .at = s->undo_end};
    ravel_status status = RAVEL_OK;
    if (s->undo_file < 0) {
        status = ravel__view_gather(view, live, piece, first, count, view->dtype, b->saved, err);
    } else {
        unsigned char chunk[CHUNK];
        for (int64_t done = 0; done < count && status == RAVEL_OK;) {
            int64_t n = CHUNK / each < count - done ? CHUNK / each : count - done;
            status = ravel__view_gather(view, live, piece, first + done, n, view->dtype, chunk, err);
            if (status == RAVEL_OK) status = file_write(s, chunk, (size_t)(n * each), err);
            done += n;
        }
    }
    if (status != RAVEL_OK) {
        ravel__release(s->allocator, b, size);
        return status;
    }
    s->log = b;
    return RAVEL_OK;
}

static ravel_status restore(const ravel__stage *s, const ravel__undo_block *b, ravel_error *err) {
    const record *r = &b->what;
    const ravel__view *view = &s->holding->items[r->item].view;
    void *live = set_of(s, view->tensor, s->live);
    int64_t each = ravel_dtype_bytes(view->dtype);
    if (s->undo_file < 0)
        return ravel__view_scatter(view, live, &r->piece, r->first, r->count, view->dtype, b->saved, 0, err);
    unsigned char chunk[CHUNK];
    ravel_status status = RAVEL_OK;
    for (int64_t done = 0; done < r->count && status == RAVEL_OK;) {
        int64_t n = CHUNK / each < r->count - done ? CHUNK / each : r->count - done;
        status = file_read(s, chunk, (size_t)(n * each), r->at + done * each, err);
        if (status == RAVEL_OK)
            status = ravel__view_scatter(view, live, &r->piece, r->first + done, n, view->dtype, chunk, 0, err);
        done += n;
    }
    return status;
}

/* Forgets the log; with `back`, puts everything back first. */
static ravel_status drop_log(ravel__stage *s, int back, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    while (s->log) {
        ravel__undo_block *b = s->log;
        if (back && status == RAVEL_OK) status = restore(s, b, err);
        s->log = b->older;
        ravel__release(s->allocator, b, b->bytes);
    }
    if (s->undo_file >= 0 && s->undo_end > 0) (void)!ftruncate(s->undo_file, 0);
    s->undo_end = 0;
    return status;
}

/* ---- a version ------------------------------------------------------------------------------------------ */

ravel_status ravel__stage_begin(ravel__stage *s, int64_t version, uint64_t lineage, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (!s->sink) return RAVEL_OK;
    s->first = s->version == 0;
    s->prepared = 0;
    if (has_callbacks(s->sink)) {
        if (s->sink->begin) status = s->sink->begin(s->sink->user, version, err);
        if (status != RAVEL_OK && status != RAVEL_E_MEMORY) status = RAVEL_E_CALLBACK;
        if (status == RAVEL_E_CALLBACK) ravel_error_set(err, status, "the sink's begin failed");
    } else if (!s->first) {
        status = s->mode == RAVEL_REFIT_UNDO ? open_log(s, err) : make_spares(s, err);
    }
    if (status != RAVEL_OK) return status;
    s->active = 1;
    s->next = version;
    s->next_lineage = lineage;
    return RAVEL_OK;
}

typedef struct loading {
    const ravel_refit_sink *sink;
    ravel_refit_piece piece;
    const char *data; /* NULL: kept */
    int64_t each;
} loading;

static ravel_status load_one(loading *l, int64_t at, int64_t count, ravel_error *err) {
    l->piece.first = at;
    l->piece.count = count;
    l->piece.data = l->data;
    ravel_status status = l->sink->load(l->sink->user, &l->piece, err);
    if (l->data) l->data += count * l->each;
    if (status == RAVEL_OK) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_CALLBACK, "the sink's load failed for \"%s\"",
                           l->sink->tensors[l->piece.tensor].name);
}

/* A column of one element a row has a stride even where the piece has no holes. */
static ravel_status load_run(void *user, int64_t at, int64_t count, int64_t stride, ravel_error *err) {
    if (stride == 1) return load_one(user, at, count, err);
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < count && status == RAVEL_OK; i++) status = load_one(user, at + i * stride, 1, err);
    return status;
}

static ravel_status load(const ravel__stage *s, int32_t item, const ravel__box *piece, int64_t first, int64_t count,
                         int32_t dtype, const void *data, ravel_error *err) {
    const ravel__view *view = &s->holding->items[item].view;
    loading l = {.sink = s->sink, .data = data, .each = ravel_dtype_bytes(dtype)};
    l.piece.tensor = view->tensor;
    l.piece.dtype = dtype;
    return ravel__view_walk(view, piece, first, count, load_run, &l, err);
}

ravel_status ravel__stage_write(ravel__stage *s, int32_t item, const ravel__box *piece, int64_t first, int64_t count,
                                int32_t dtype, const void *data, ravel_error *err) {
    const ravel__view *view = &s->holding->items[item].view;
    ravel_status status = RAVEL_OK;
    if (has_callbacks(s->sink)) return load(s, item, piece, first, count, dtype, data, err);
    if (!s->first && s->mode == RAVEL_REFIT_UNDO) status = save(s, item, piece, first, count, err);
    if (status != RAVEL_OK) return status;
    return ravel__view_scatter(view, target_of(s, view->tensor), piece, first, count, dtype, data, s->far, err);
}

void *ravel__stage_place(const ravel__stage *s, int32_t item, const ravel__box *piece, int64_t first, int32_t dtype) {
    const ravel__view *view = &s->holding->items[item].view;
    int logged = !s->first && s->mode == RAVEL_REFIT_UNDO;
    if (!s->far || logged || has_callbacks(s->sink)) return NULL;
    char *target = target_of(s, view->tensor);
    const char *place = ravel__view_direct(view, target, piece, first, dtype);
    return place ? target + (place - target) : NULL;
}

ravel_status ravel__stage_keep(ravel__stage *s, int32_t item, const ravel__box *piece, int64_t first, int64_t count,
                               ravel_error *err) {
    const ravel__view *view = &s->holding->items[item].view;
    if (has_callbacks(s->sink)) return load(s, item, piece, first, count, view->dtype, NULL, err);
    void *live = set_of(s, view->tensor, s->live), *target = target_of(s, view->tensor);
    if (live != target) ravel__view_copy(view, live, target, piece, first, count);
    return RAVEL_OK;
}

static uint64_t hash_item(const ravel__item *item, const void *data) {
    unsigned char chunk[CHUNK];
    ravel__xxh3 state;
    int64_t count = ravel__box_count(&item->view.box), each = ravel_dtype_bytes(item->view.dtype);
    ravel__xxh3_begin(&state);
    for (int64_t done = 0; done < count;) {
        int64_t n = CHUNK / each < count - done ? CHUNK / each : count - done;
        (void)ravel__view_gather(&item->view, data, &item->view.box, done, n, item->view.dtype, chunk, NULL);
        ravel__xxh3_add(&state, chunk, (size_t)(n * each));
        done += n;
    }
    return ravel__xxh3_end(&state);
}

void ravel__stage_seal(ravel__stage *s) {
    if (!s->active || !s->hashes) return;
    for (int64_t i = 0; i < s->holding->count; i++) {
        const ravel__item *item = &s->holding->items[i];
        s->next_hashes[i] = hash_item(item, target_of(s, item->view.tensor));
    }
}

/* The staged set becomes the live one. */
static void switch_over(ravel__stage *s, int64_t version, uint64_t lineage) {
    if (!s->first && s->mode == RAVEL_REFIT_SPARE && !has_callbacks(s->sink)) s->live = !s->live;
    if (s->hashes) {
        uint64_t *swap = s->hashes;
        s->hashes = s->next_hashes;
        s->next_hashes = swap;
    }
    s->version = version;
    s->lineage = lineage;
}

void ravel__stage_commit(ravel__stage *s) {
    if (!s->active) return;
    s->active = 0;
    switch_over(s, s->next, s->next_lineage);
    (void)drop_log(s, 0, NULL);
    if (has_callbacks(s->sink)) s->sink->commit(s->sink->user, s->next);
}

ravel_status ravel__stage_abort(ravel__stage *s, ravel_error *err) {
    if (!s->active) return RAVEL_OK;
    s->active = 0;
    if (has_callbacks(s->sink)) {
        s->sink->abort(s->sink->user, s->next);
        return RAVEL_OK;
    }
    ravel_status status = drop_log(s, 1, err);
    if (status != RAVEL_OK) s->version = 0;
    return status;
}

ravel_status ravel__stage_doubt(ravel__stage *s, ravel_error *err) {
    if (!s->active) return RAVEL_OK;
    if (has_callbacks(s->sink) || s->first || s->mode == RAVEL_REFIT_UNDO) return ravel__stage_abort(s, err);
    s->active = 0;
    s->prepared = s->next;
    s->prepared_lineage = s->next_lineage;
    return RAVEL_OK;
}

void ravel__stage_resolve(ravel__stage *s, int switched) {
    if (s->prepared > 0 && switched) switch_over(s, s->prepared, s->prepared_lineage);
    s->prepared = 0;
}

ravel_status ravel__stage_audit(const ravel__stage *s, ravel_error *err) {
    if (!s->hashes || s->version == 0 || (s->sink->version == s->version && s->lineage == 0))
        return ravel_error_set(err, RAVEL_E_STATE, "there is nothing to audit: it needs options.audit and a refit");
    for (int64_t i = 0; i < s->holding->count; i++) {
        const ravel__item *item = &s->holding->items[i];
        if (hash_item(item, set_of(s, item->view.tensor, s->live)) != s->hashes[i])
            return ravel_error_set(err, RAVEL_E_CHECKSUM, "\"%s\" is not what version %lld had", item->name,
                                   (long long)s->version);
    }
    return RAVEL_OK;
}

void ravel__stage_free(ravel__stage *s) {
    if (!s->sink) return;
    if (s->active) (void)ravel__stage_abort(s, NULL);
    /* A live set that goes away is copied to the caller's own. */
    for (int64_t i = 0; s->spares && s->live && i < s->holding->count; i++) {
        const ravel__view *view = &s->holding->items[i].view;
        const void *from = s->spares[view->tensor];
        if (from)
            ravel__view_copy(view, from, s->sink->tensors[view->tensor].data, &view->box, 0,
                             ravel__box_count(&view->box));
    }
    (void)drop_log(s, 0, NULL);
    if (s->undo_file >= 0) (void)close(s->undo_file);
    free_spares(s);
    uint64_t *first = s->hashes < s->next_hashes ? s->hashes : s->next_hashes;
    if (s->hashes) ravel__release(s->allocator, first, (size_t)s->holding->count * 2 * sizeof *first);
    memset(s, 0, sizeof *s);
}
