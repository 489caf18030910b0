/* Reductions: the arithmetic, and the composite operations of back ends that only move bytes.
 *
 * Elements are combined in rank order, block by block, so that the result has the same bits in any order of arrival,
 * for any cut of the array, and over any back end.
 *
 * Composite all-reduce of a long array, a round for every `round` elements:
 *
 *     rank 0   a0 a1 a2      all-to-all       a0 b0 c0   reduce   s0      all-gather    s0 s1 s2
 *     rank 1   b0 b1 b2      ---------->      a1 b1 c1   ----->   s1      ---------->   s0 s1 s2
 *     rank 2   c0 c1 c2                       a2 b2 c2            s2                    s0 s1 s2
 *
 * A short one is a single all-gather that every rank reduces whole: log2 n messages. */
#include "comm/backend.h"

#include "base/assert.h"

#include <string.h>

enum {
    BLOCK = 512,             /* elements that are combined at a time, in cache */
    SHORT_BYTES = 32 * 1024, /* of all ranks together: one all-gather */
    SHORT_EACH = 1024,       /* so is this, of one rank, with any number of ranks: log2 n messages instead of n */
    ROUND_BYTES = 4 << 20,   /* of one round of a long one, at most */
    ROUND_LEAST = 4096,
    PIECE_USEFUL = 64 << 10, /* bytes of one message that are worth sending, with many ranks ... */
    ROUND_MOST = 64 << 20    /* ... as long as a round stays below this */
};

/* ---- arithmetic ----------------------------------------------------------------------------------------- */

/* acc[i] = acc[i] op x[i]; this file is compiled with -O3, which makes vectors of it. Sums of integers go through the
 * unsigned type, where wrapping is defined. */
#define EACH(expression) \
    for (int64_t i = 0; i < count; i++) acc[i] = (expression)
#define COMBINE(name, type, sum_type)                                                                           \
    static void combine_##name(int32_t reduce, void *restrict into, const void *restrict from, int64_t count) { \
        type *restrict acc = into;                                                                              \
        const type *restrict x = from;                                                                          \
        if (reduce == RAVEL_SUM)                                                                                \
            EACH((type)((sum_type)acc[i] + (sum_type)x[i]));                                                    \
        else if (reduce == RAVEL_MIN)                                                                           \
            EACH(x[i] < acc[i] || x[i] != x[i] ? x[i] : acc[i]);                                                \
        else                                                                                                    \
            EACH(x[i] > acc[i] || x[i] != x[i] ? x[i] : acc[i]);                                                \
    }
COMBINE(u8, uint8_t, uint32_t)
COMBINE(i8, int8_t, uint32_t)
COMBINE(i16, int16_t, uint32_t)
COMBINE(u16, uint16_t, uint32_t)
COMBINE(i32, int32_t, uint32_t)
COMBINE(u32, uint32_t, uint32_t)
COMBINE(i64, int64_t, uint64_t)
COMBINE(u64, uint64_t, uint64_t)
COMBINE(f32, float, float)
COMBINE(f64, double, double)

static const struct kernel {
    int32_t work; /* the dtype of the accumulator */
    void (*combine)(int32_t reduce, void *into, const void *from, int64_t count);
} kernels[RAVEL_DTYPE_COUNT] = {
    [RAVEL_U8] = {RAVEL_U8, combine_u8},    [RAVEL_I8] = {RAVEL_I8, combine_i8},
    [RAVEL_I16] = {RAVEL_I16, combine_i16}, [RAVEL_U16] = {RAVEL_U16, combine_u16},
    [RAVEL_I32] = {RAVEL_I32, combine_i32}, [RAVEL_U32] = {RAVEL_U32, combine_u32},
    [RAVEL_I64] = {RAVEL_I64, combine_i64}, [RAVEL_U64] = {RAVEL_U64, combine_u64},
    [RAVEL_F16] = {RAVEL_F32, combine_f32}, [RAVEL_BF16] = {RAVEL_F32, combine_f32},
    [RAVEL_F32] = {RAVEL_F32, combine_f32}, [RAVEL_F64] = {RAVEL_F64, combine_f64},
};

int ravel__can_reduce(int32_t dtype) {
    return dtype >= 0 && dtype < RAVEL_DTYPE_COUNT && kernels[dtype].combine != NULL;
}

/* The block as the accumulator's type: where it lies, or converted into `room`. */
static const void *block_of(const struct kernel *k, int32_t dtype, const char *from, void *room, int64_t count) {
    if (k->work == dtype && (uintptr_t)from % 8 == 0) return from;
    (void)ravel_dtype_convert(dtype, from, k->work, room, count, NULL);
    return room;
}

void ravel__reduce(int32_t dtype, int32_t reduce, const char *const *sources, int32_t count, int64_t offset,
                   int64_t bytes, char *out) {
    RAVEL_ASSERT(ravel__can_reduce(dtype) && reduce >= RAVEL_SUM && reduce <= RAVEL_MAX && count > 0);
    _Alignas(64) char acc[BLOCK * 8], next[BLOCK * 8];
    const struct kernel *k = &kernels[dtype];
    int64_t each = ravel_dtype_bytes(dtype);
    RAVEL_ASSERT(offset >= 0 && offset % each == 0 && bytes >= 0 && bytes % each == 0);
    for (int64_t at = 0; at < bytes; at += BLOCK * each) {
        int64_t part = bytes - at < BLOCK * each ? bytes - at : BLOCK * each, n = part / each;
        (void)ravel_dtype_convert(dtype, sources[0] + offset + at, k->work, acc, n, NULL);
        for (int32_t s = 1; s < count; s++)
            k->combine(reduce, acc, block_of(k, dtype, sources[s] + offset + at, next, n), n);
        (void)ravel_dtype_convert(k->work, acc, dtype, out + at, n, NULL);
    }
}

/* ---- composites ----------------------------------------------------------------------------------------- */

/* Elements that each rank reduces in one round: no more than the transport takes in one message, and is worth the room;
 * with many ranks, messages of useful size. */
int64_t ravel__reduce_piece(int32_t ranks, int64_t chunk_bytes, int64_t each, int64_t longest) {
    RAVEL_ASSERT(ranks > 0 && each > 0 && chunk_bytes > 0);
    int64_t bytes = chunk_bytes < ROUND_BYTES ? chunk_bytes : ROUND_BYTES;
    int64_t useful = ROUND_MOST / ranks < PIECE_USEFUL ? ROUND_MOST / ranks : PIECE_USEFUL;
    int64_t piece = (bytes > ROUND_LEAST ? bytes : ROUND_LEAST) / each / ranks;
    if (chunk_bytes >= ROUND_BYTES && piece < useful / each) piece = useful / each;
    if (piece > longest) piece = longest;
    RAVEL_ASSERT(piece <= longest);
    return piece > 0 ? piece : 1;
}

/* A step of the reduction `whole`: it is named after it, and compared with its size. */
static ravel__call step_of(const ravel__call *whole, int32_t kind, int64_t total) {
    ravel__call step = {.kind = kind, .label = whole->kind, .dtype = whole->dtype, .reduce = whole->reduce};
    step.total = total;
    step.root = whole->root;
    return step;
}

/* sources[r] of pieces that lie one after the other. */
static void point_at(const char **sources, const char *first, int32_t count, int64_t stride) {
    RAVEL_ASSERT(count > 0 && stride >= 0);
    for (int32_t r = 0; r < count; r++) sources[r] = first + r * stride;
}

/* One all-gather; every rank that wants it reduces all of it. */
static ravel_status reduce_short(ravel_comm *comm, const ravel__call *whole, ravel_error *err) {
    int64_t bytes = whole->count * ravel_dtype_bytes(whole->dtype);
    size_t pointers = (size_t)comm->size * sizeof(char *), need = pointers + (size_t)(bytes * comm->size);
    char *spare = ravel__comm_spare(comm, need);
    if (!spare) return ravel__no_memory(err, need, "a reduction");
    const char **sources = (const char **)(void *)spare;
    ravel__call gather = step_of(whole, RAVEL__ALLGATHER, whole->count);
    gather.count = whole->count;
    gather.send = whole->send;
    gather.recv = spare + pointers;
    ravel_status status = ravel__comm_run(comm, &gather, err);
    if (status || (whole->kind == RAVEL__REDUCE && whole->root != comm->rank)) return status;
    point_at(sources, gather.recv, comm->size, bytes);
    ravel__reduce(whole->dtype, whole->reduce, sources, comm->size, 0, bytes, whole->recv);
    return RAVEL_OK;
}

/* What the rounds of a long reduction share. */
typedef struct rounds {
    const ravel__call *whole;
    int64_t each, total;
    int64_t *counts, *offsets, *mine; /* [size] each */
    const char **sources;             /* [size] */
    char *pieces;                     /* of every rank, for this one to reduce */
    char *result;
} rounds;

static ravel_status rounds_init(ravel_comm *comm, const ravel__call *whole, int64_t piece, int64_t total, rounds *w,
                                ravel_error *err) {
    int64_t n = comm->size;
    w->whole = whole;
    w->each = ravel_dtype_bytes(whole->dtype);
    w->total = total;
    size_t lists = (size_t)n * (3 * sizeof(int64_t) + sizeof(char *)), data = (size_t)(piece * w->each);
    size_t need = lists + data * ((size_t)n + 1);
    char *spare = ravel__comm_spare(comm, need);
    if (!spare) {
        (void)ravel__no_memory(err, need, "a reduction");
        return RAVEL_E_MEMORY;
    }
    RAVEL_ASSERT(piece > 0 && total >= 0 && comm->spare_bytes >= need);
    w->counts = (int64_t *)(void *)spare;
    w->offsets = w->counts + n;
    w->mine = w->offsets + n;
    w->sources = (const char **)(void *)(w->mine + n);
    w->pieces = spare + lists;
    w->result = w->pieces + data * (size_t)n;
    return RAVEL_OK;
}

/* Piece r of send (counts[r] at offsets[r]) goes to rank r, which reduces what it got into `out`. */
static ravel_status scatter_and_reduce(ravel_comm *comm, rounds *w, char *out, ravel_error *err) {
    int64_t mine = w->counts[comm->rank];
    RAVEL_ASSERT(mine >= 0 && (mine == 0 || out));
    for (int32_t r = 0; r < comm->size; r++) w->mine[r] = mine;
    ravel__call scatter = step_of(w->whole, RAVEL__ALLTOALL, w->total);
    scatter.send = w->whole->send;
    scatter.send_counts = w->counts;
    scatter.send_offsets = w->offsets;
    scatter.recv = w->pieces;
    scatter.recv_counts = w->mine;
    ravel_status status = ravel__comm_run(comm, &scatter, err);
    if (status) return status;
    point_at(w->sources, w->pieces, comm->size, mine * w->each);
    ravel__reduce(w->whole->dtype, w->whole->reduce, w->sources, comm->size, 0, mine * w->each, out);
    return RAVEL_OK;
}

/* The reduced pieces of one round to all ranks, or to the root. */
static ravel_status spread(ravel_comm *comm, rounds *w, ravel_error *err) {
    RAVEL_ASSERT(w->whole->kind == RAVEL__ALLREDUCE || w->whole->kind == RAVEL__REDUCE);
    int64_t mine = w->counts[comm->rank];
    int is_root = w->whole->root == comm->rank, to_all = w->whole->kind == RAVEL__ALLREDUCE;
    ravel__call step = step_of(w->whole, to_all ? RAVEL__ALLGATHER : RAVEL__ALLTOALL, w->total);
    step.send = w->result;
    step.recv_counts = w->counts;
    step.recv_offsets = w->offsets;
    step.recv = w->whole->recv;
    if (!to_all) {
        memset(w->mine, 0, (size_t)comm->size * sizeof *w->mine);
        w->mine[w->whole->root] = mine;
        step.send_counts = w->mine;
        if (!is_root) memset(w->counts, 0, (size_t)comm->size * sizeof *w->counts);
    }
    return ravel__comm_run(comm, &step, err);
}

static ravel_status reduce_long(ravel_comm *comm, const ravel__call *whole, ravel_error *err) {
    rounds w = {NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL};
    int64_t n = comm->size, piece = ravel__reduce_piece(comm->size, comm->chunk_bytes, ravel_dtype_bytes(whole->dtype),
                                                        (whole->count + n - 1) / n);
    ravel_status status = rounds_init(comm, whole, piece, whole->count, &w, err);
    for (int64_t base = 0; base < whole->count && !status; base += piece * n) {
        for (int32_t r = 0; r < n; r++) {
            int64_t from = base + r * piece, left = whole->count - from;
            w.offsets[r] = left > 0 ? from : 0;
            w.counts[r] = left < 0 ? 0 : left < piece ? left : piece;
            RAVEL_ASSERT(w.offsets[r] + w.counts[r] <= whole->count);
        }
        status = scatter_and_reduce(comm, &w, w.result, err);
        if (!status) status = spread(comm, &w, err);
    }
    return status;
}

static int64_t count_of(const ravel__call *whole, int32_t rank) {
    return whole->recv_counts ? whole->recv_counts[rank] : whole->count;
}

/* Round by round through every rank's piece at the same time; at least one, so that the ranks compare. */
static ravel_status reduce_scatter(ravel_comm *comm, const ravel__call *whole, ravel_error *err) {
    rounds w = {NULL, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL};
    int64_t total = 0, longest = 0, each = ravel_dtype_bytes(whole->dtype);
    for (int32_t r = 0; r < comm->size; r++) {
        longest = count_of(whole, r) > longest ? count_of(whole, r) : longest;
        total += count_of(whole, r);
    }
    int64_t piece = ravel__reduce_piece(comm->size, comm->chunk_bytes, each, longest), base = 0;
    ravel_status status = rounds_init(comm, whole, piece, total, &w, err);
    if (status) return status;
    do {
        int64_t start = 0;
        for (int32_t r = 0; r < comm->size; start += count_of(whole, r++)) {
            int64_t left = count_of(whole, r) - base;
            w.counts[r] = left < 0 ? 0 : left < piece ? left : piece;
            w.offsets[r] = start + base;
        }
        char *out = w.counts[comm->rank] ? (char *)whole->recv + base * each : NULL;
        status = scatter_and_reduce(comm, &w, out, err);
        base += piece;
    } while (base < longest && !status);
    return status;
}

/* Arguments are checked as a whole first, on a request that is not started. */
static ravel_status check_call(ravel_comm *comm, const ravel__call *call, ravel_error *err) {
    ravel_request *r;
    ravel_error inner = RAVEL_ERROR_INIT;
    ravel_status status = ravel__comm_usable(comm, err);
    if (status) return status;
    status = ravel__request_take(comm, &r, &inner);
    if (!status) {
        status = ravel__op_prepare(comm, call, r, &inner);
        ravel__request_give(comm, r);
    }
    return status ? ravel__comm_fail(comm, ravel__op_names[call->kind], status, &inner, err) : RAVEL_OK;
}

ravel_status ravel__reduce_composite(ravel_comm *comm, const ravel__call *call, ravel_error *err) {
    ravel_status status = check_call(comm, call, err);
    if (status) return status;
    if (call->kind == RAVEL__REDUCE_SCATTER) return reduce_scatter(comm, call, err);
    RAVEL_ASSERT(call->kind == RAVEL__ALLREDUCE || call->kind == RAVEL__REDUCE);
    int64_t each = ravel_dtype_bytes(call->dtype);
    if (call->count <= SHORT_BYTES / each / comm->size || call->count <= SHORT_EACH / each)
        return reduce_short(comm, call, err);
    return reduce_long(comm, call, err);
}
