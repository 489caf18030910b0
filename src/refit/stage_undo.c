/* The kind of stage that writes the live set: old bytes go to a log first, in memory or in a file, and are restored
 * after a failure. The log is a list, newest first, so that an element that was written twice gets its oldest bytes
 * back. */
#include "refit/stage.h"

#include "base/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK = 64 * 1024 };

/* A span before it was overwritten, in its own dtype. */
struct ravel__undo_block {
    ravel__undo_block *older;
    size_t size; /* of this allocation */
    ravel__box box;
    ravel__span span;                   /* box points to the one above */
    int64_t at;                         /* in the file */
    _Alignas(16) unsigned char saved[]; /* without a file */
};

static ravel_status io_error(ravel_error *err, const ravel__stage *s, const char *what) {
    return ravel_error_set(err, RAVEL_E_IO, "the undo log in \"%s\" could not be %s: %s", s->undo_dir, what,
                           strerror(errno));
}

static ravel_status open_log(ravel__stage *s, ravel_error *err) {
    RAVEL_ASSERT(!s->log && s->undo_end == 0);
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

static ravel_status file_write(const ravel__stage *s, const unsigned char *data, size_t bytes, int64_t at,
                               ravel_error *err) {
    RAVEL_ASSERT(s->undo_file >= 0 && at >= 0);
    while (bytes > 0) {
        ssize_t n = pwrite(s->undo_file, data, bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return io_error(err, s, "written");
        data += n;
        bytes -= (size_t)n;
        at += n;
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

/* Bytes of the span in the file, from or to the live set, in chunks. */
static ravel_status through_file(const ravel__stage *s, const ravel__undo_block *b, int back, ravel_error *err) {
    RAVEL_ASSERT(s->undo_file >= 0 && b->at >= 0 && b->span.box == &b->box);
    const ravel__view *view = &s->holding->items[b->span.item].view;
    void *live = ravel__stage_set(s, view->tensor, s->live);
    int64_t each = ravel_dtype_bytes(view->dtype), count = b->span.count;
    unsigned char chunk[CHUNK];
    ravel_status status = RAVEL_OK;
    for (int64_t done = 0, n; done < count && status == RAVEL_OK; done += n) {
        n = CHUNK / each < count - done ? CHUNK / each : count - done;
        int64_t first = b->span.first + done, at = b->at + done * each;
        if (back) status = file_read(s, chunk, (size_t)(n * each), at, err);
        if (back && status == RAVEL_OK)
            status = ravel__view_scatter(view, live, &b->box, first, n, view->dtype, chunk, 0, err);
        if (!back) status = ravel__view_gather(view, live, &b->box, first, n, view->dtype, chunk, err);
        if (!back && status == RAVEL_OK) status = file_write(s, chunk, (size_t)(n * each), at, err);
    }
    return status;
}

static void push(ravel__stage *s, ravel__undo_block *b, int64_t file_bytes) {
    pthread_mutex_lock(&s->log_lock);
    RAVEL_ASSERT(file_bytes >= 0 && s->undo_end >= 0);
    b->older = s->log;
    b->at = s->undo_end;
    s->undo_end += file_bytes;
    s->log = b;
    pthread_mutex_unlock(&s->log_lock);
}

static ravel_status save(ravel__stage *s, const ravel__span *span, ravel_error *err) {
    const ravel__view *view = &s->holding->items[span->item].view;
    const void *live = ravel__stage_set(s, view->tensor, s->live);
    int64_t bytes = span->count * ravel_dtype_bytes(view->dtype);
    int in_file = s->undo_file >= 0;
    RAVEL_ASSERT(span->count > 0 && span->item < s->holding->count + s->holding->ties);
    size_t size = sizeof(ravel__undo_block) + (in_file ? 0 : (size_t)bytes);
    ravel__undo_block *b = ravel__alloc(s->allocator, size);
    if (!b) return ravel__no_memory(err, size, "the undo log");
    *b = (ravel__undo_block){.size = size, .box = *span->box, .span = *span};
    b->span.box = &b->box;
    ravel_status status = RAVEL_OK;
    if (!in_file)
        status = ravel__view_gather(view, live, span->box, span->first, span->count, view->dtype, b->saved, err);
    if (status != RAVEL_OK) {
        ravel__release(s->allocator, b, size);
        return status;
    }
    push(s, b, in_file ? bytes : 0);
    if (in_file) status = through_file(s, b, 0, err);
    /* Nothing of the span was overwritten yet: an empty record restores nothing. */
    if (status != RAVEL_OK) b->span.count = 0;
    return status;
}

static ravel_status restore(const ravel__stage *s, const ravel__undo_block *b, ravel_error *err) {
    RAVEL_ASSERT(b->span.box == &b->box && b->span.count >= 0);
    const ravel__view *view = &s->holding->items[b->span.item].view;
    void *live = ravel__stage_set(s, view->tensor, s->live);
    if (s->undo_file >= 0) return through_file(s, b, 1, err);
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
    if (s->undo_file >= 0 && s->undo_end > 0) (void)!ftruncate(s->undo_file, 0);
    s->undo_end = 0;
    RAVEL_ASSERT(!s->log);
    return status;
}

void ravel__stage_free_log(ravel__stage *s) {
    (void)drop_log(s, 0, NULL);
    if (s->undo_file >= 0) (void)close(s->undo_file);
    s->undo_file = -1;
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
