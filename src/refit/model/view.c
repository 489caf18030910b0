/* Walking a range of a box in memory.
 *
 * The box's dimensions are first merged if memory allows it (a whole contiguous tensor is one run). The innermost
 * one that is left is the run; the outer ones are an odometer. Copies and casts then work on runs. */
#include "refit/model/carrier.h"

#include "base/assert.h"
#include "base/system/copy.h"

#include <string.h>

typedef struct loops {
    int32_t n;
    int64_t extent[RAVEL_REFIT_DIMS], stride[RAVEL_REFIT_DIMS];
    int64_t start[RAVEL_REFIT_DIMS]; /* of the piece, in the view: only used by a blocked dimension */
    int32_t blocked;                 /* which of them, -1: none */
    int64_t base;                    /* where the piece's first element would be without blocks */
} loops;

/* Outer dimension first. A dimension that continues its outer neighbour in memory is merged into it. */
static loops make_loops(const ravel__view *view, const ravel__box *piece) {
    RAVEL_ASSERT(piece->ndim == view->box.ndim && (view->block == 0 || view->block_dim < piece->ndim));
    loops l = {.blocked = -1, .base = view->offset};
    for (int32_t d = 0; d < piece->ndim; d++) {
        int64_t start = piece->start[d] - view->box.start[d], extent = piece->extent[d], stride = view->strides[d];
        int blocked = view->block > 0 && d == view->block_dim;
        if (!blocked) l.base += start * stride;
        if (!blocked && extent == 1) continue;
        if (l.n > 0 && !blocked && l.blocked != l.n - 1 && l.stride[l.n - 1] == extent * stride) {
            l.extent[l.n - 1] *= extent;
            l.stride[l.n - 1] = stride;
            continue;
        }
        if (blocked) l.blocked = l.n;
        l.extent[l.n] = extent;
        l.stride[l.n] = stride;
        l.start[l.n++] = start;
    }
    if (l.n == 0) l.extent[l.n] = 1, l.stride[l.n] = 1, l.start[l.n++] = 0;
    return l;
}

static int64_t place(const ravel__view *view, const loops *l, int32_t d, int64_t index) {
    RAVEL_ASSERT(d >= 0 && d < l->n && index >= 0 && index < l->extent[d]);
    if (d != l->blocked) return index * l->stride[d];
    index += l->start[d];
    return index / view->block * view->block_stride + index % view->block * l->stride[d];
}

/* How far the run may go from `index` of the innermost dimension. */
static int64_t run_length(const ravel__view *view, const loops *l, int64_t index, int64_t count) {
    int32_t inner = l->n - 1;
    int64_t run = l->extent[inner] - index;
    if (inner == l->blocked) {
        int64_t block = view->block - (index + l->start[inner]) % view->block;
        if (block < run) run = block;
    }
    RAVEL_ASSERT(run > 0);
    return run < count ? run : count;
}

ravel_status ravel__view_walk(const ravel__view *view, const ravel__box *piece, int64_t first, int64_t count,
                              ravel__run_fn run, void *user, ravel_error *err) {
    loops l = make_loops(view, piece);
    RAVEL_ASSERT(l.n >= 1 && l.n <= RAVEL_REFIT_DIMS);
    RAVEL_ASSERT(first >= 0 && count >= 0 && first + count <= ravel__box_count(piece));
    int64_t index[RAVEL_REFIT_DIMS];
    for (int32_t d = l.n - 1; d >= 0; d--) {
        if (l.extent[d] == 0) return RAVEL_OK;
        index[d] = first % l.extent[d];
        first /= l.extent[d];
    }
    while (count > 0) {
        int64_t at = l.base;
        for (int32_t d = 0; d < l.n; d++) at += place(view, &l, d, index[d]);
        int64_t length = run_length(view, &l, index[l.n - 1], count);
        RAVEL_ASSERT(length > 0 && at >= 0);
        ravel_status status = run(user, at, length, l.stride[l.n - 1], err);
        if (status != RAVEL_OK) return status;
        count -= length;
        index[l.n - 1] += length;
        for (int32_t d = l.n - 1; d > 0 && index[d] == l.extent[d]; d--) {
            index[d] = 0;
            index[d - 1]++;
        }
    }
    return RAVEL_OK;
}

typedef struct adjacent {
    ravel__piece_fn each;
    void *user;
} adjacent;

static ravel_status split_run(void *user, int64_t at, int64_t count, int64_t stride, ravel_error *err) {
    const adjacent *a = user;
    ravel_status status = RAVEL_OK;
    if (stride == 1) return a->each(a->user, at, count, err);
    for (int64_t i = 0; i < count && status == RAVEL_OK; i++) status = a->each(a->user, at + i * stride, 1, err);
    return status;
}

ravel_status ravel__view_pieces(const ravel__view *view, const ravel__box *piece, int64_t first, int64_t count,
                                ravel__piece_fn each, void *user, ravel_error *err) {
    adjacent a = {each, user};
    return ravel__view_walk(view, piece, first, count, split_run, &a, err);
}

/* ---- copies --------------------------------------------------------------------------------------------- */

enum { CHUNK = 1024 };

typedef struct transfer {
    char *memory;
    char *packed;
    size_t each, packed_each; /* bytes of an element */
    int32_t dtype, packed_dtype;
    int far;
} transfer;

/* Strided elements to and from a contiguous array; sizes are constants so that each becomes a plain loop. */
#define STRIDED(BYTES)                                                                         \
    static void pull##BYTES(char *out, const char *from, int64_t stride, int64_t count) {      \
        for (int64_t i = 0; i < count; i++) memcpy(out + i * BYTES, from + i * stride, BYTES); \
    }                                                                                          \
    static void push##BYTES(char *to, int64_t stride, const char *in, int64_t count) {         \
        for (int64_t i = 0; i < count; i++) memcpy(to + i * stride, in + i * BYTES, BYTES);    \
    }
STRIDED(1)
STRIDED(2)
STRIDED(4)
STRIDED(8)

/* By log2 of an element's bytes. */
static void (*const pulls[])(char *, const char *, int64_t, int64_t) = {pull1, pull2, pull4, pull8};
static void (*const pushes[])(char *, int64_t, const char *, int64_t) = {push1, push2, push4, push8};

static void pull(size_t each, char *out, const char *from, int64_t stride, int64_t count) {
    RAVEL_ASSERT(each == 1 || each == 2 || each == 4 || each == 8);
    pulls[__builtin_ctzll(each)](out, from, stride * (int64_t)each, count);
}

static void push(size_t each, char *to, int64_t stride, const char *in, int64_t count) {
    RAVEL_ASSERT(each == 1 || each == 2 || each == 4 || each == 8);
    pushes[__builtin_ctzll(each)](to, stride * (int64_t)each, in, count);
}

static ravel_status gather_run(void *user, int64_t at, int64_t count, int64_t stride, ravel_error *err) {
    transfer *t = user;
    const char *from = t->memory + at * (int64_t)t->each;
    char chunk[CHUNK * 8];
    ravel_status status = RAVEL_OK;
    if (stride == 1) {
        status = ravel_dtype_convert(t->dtype, from, t->packed_dtype, t->packed, count, err);
    } else if (t->dtype == t->packed_dtype) {
        pull(t->each, t->packed, from, stride, count);
    } else {
        for (int64_t i = 0; i < count && status == RAVEL_OK; i += CHUNK) {
            int64_t n = count - i < CHUNK ? count - i : CHUNK;
            pull(t->each, chunk, from + i * stride * (int64_t)t->each, stride, n);
            status =
                ravel_dtype_convert(t->dtype, chunk, t->packed_dtype, t->packed + i * (int64_t)t->packed_each, n, err);
        }
    }
    t->packed += count * (int64_t)t->packed_each;
    return status;
}

static ravel_status scatter_run(void *user, int64_t at, int64_t count, int64_t stride, ravel_error *err) {
    transfer *t = user;
    char *to = t->memory + at * (int64_t)t->each;
    char chunk[CHUNK * 8];
    ravel_status status = RAVEL_OK;
    if (stride == 1 && t->far && t->dtype == t->packed_dtype) {
        ravel__copy_far(to, t->packed, (size_t)count * t->each);
    } else if (stride == 1) {
        status = ravel_dtype_convert(t->packed_dtype, t->packed, t->dtype, to, count, err);
    } else if (t->dtype == t->packed_dtype) {
        push(t->each, to, stride, t->packed, count);
    } else {
        for (int64_t i = 0; i < count && status == RAVEL_OK; i += CHUNK) {
            int64_t n = count - i < CHUNK ? count - i : CHUNK;
            status =
                ravel_dtype_convert(t->packed_dtype, t->packed + i * (int64_t)t->packed_each, t->dtype, chunk, n, err);
            push(t->each, to + i * stride * (int64_t)t->each, stride, chunk, n);
        }
    }
    t->packed += count * (int64_t)t->packed_each;
    return status;
}

static transfer make_transfer(const ravel__view *view, const void *memory, int32_t dtype, const void *packed) {
    transfer t = {0};
    /* Gather writes `out`, scatter writes data; the public functions keep them const. */
    memcpy(&t.memory, &memory, sizeof t.memory);
    memcpy(&t.packed, &packed, sizeof t.packed);
    t.each = (size_t)ravel_dtype_bytes(view->dtype);
    t.packed_each = (size_t)ravel_dtype_bytes(dtype);
    t.dtype = view->dtype;
    t.packed_dtype = dtype;
    RAVEL_ASSERT(t.each > 0 && t.packed_each > 0 && !view->carrier);
    return t;
}

const void *ravel__view_direct(const ravel__view *view, const void *data, const ravel__box *piece, int64_t first,
                               int32_t dtype) {
    if (view->carrier) return NULL;
    loops l = make_loops(view, piece);
    if (dtype != view->dtype || l.n != 1 || l.stride[0] != 1 || l.blocked >= 0) return NULL;
    return (const char *)data + (l.base + first) * (int64_t)ravel_dtype_bytes(dtype);
}

int64_t ravel__view_run(const ravel__view *view, const ravel__box *piece) {
    loops l = make_loops(view, piece);
    int64_t extent = l.extent[l.n - 1];
    if (l.stride[l.n - 1] != 1 || extent < 1) return 1;
    return l.blocked == l.n - 1 && view->block < extent ? view->block : extent;
}

ravel_status ravel__view_gather(const ravel__view *view, const void *data, const ravel__box *piece, int64_t first,
                                int64_t count, int32_t dtype, void *out, ravel_error *err) {
    if (view->carrier) return ravel__carrier_gather(view->carrier, view, data, piece, first, count, dtype, out, err);
    transfer t = make_transfer(view, data, dtype, out);
    return ravel__view_walk(view, piece, first, count, gather_run, &t, err);
}

ravel_status ravel__view_scatter(const ravel__view *view, void *data, const ravel__box *piece, int64_t first,
                                 int64_t count, int32_t dtype, const void *in, int far, ravel_error *err) {
    if (view->carrier) return ravel__carrier_scatter(view->carrier, view, data, piece, first, count, dtype, in, err);
    transfer t = make_transfer(view, data, dtype, in);
    t.far = far;
    return ravel__view_walk(view, piece, first, count, scatter_run, &t, err);
}

static ravel_status copy_run(void *user, int64_t at, int64_t count, int64_t stride, ravel_error *err) {
    transfer *t = user;
    const char *from = t->packed + at * (int64_t)t->each;
    char *to = t->memory + at * (int64_t)t->each;
    (void)err;
    if (stride == 1)
        memcpy(to, from, (size_t)count * t->each);
    else
        for (int64_t i = 0; i < count; i++)
            memcpy(to + i * stride * (int64_t)t->each, from + i * stride * (int64_t)t->each, t->each);
    return RAVEL_OK;
}

ravel_status ravel__view_copy(const ravel__view *view, const void *from, void *to, const ravel__box *piece,
                              int64_t first, int64_t count, ravel_error *err) {
    if (view->carrier) return ravel__carrier_copy(view->carrier, view, from, to, piece, first, count, err);
    transfer t = make_transfer(view, to, view->dtype, from);
    return ravel__view_walk(view, piece, first, count, copy_run, &t, err);
}
