/* Context parallel: dealing the positions of every slot to ranks, and collecting them again.
 *
 *     slot of 12, cp 3, zig-zag            runs of a rank
 *     0 0 1 1 2 2 2 2 1 1 0 0              rank 0: 0..1, 10..11    rank 1: 2..3, 8..9    rank 2: 4..5, 6..7
 *
 * Causal attention at position p looks at p + 1 keys, so a chunk from the front and its mirror from the back always
 * make the same sum. Gathering is one memcpy per run; only the striped kind moves single positions. */
#include "batch/writer.h"
#include "batch/rows.h"
#include "device/handle.h"

#include "base/options.h"
#include "batch/cp.h"

#include <stdio.h>
#include <string.h>

int ravel__slot_runs(const ravel_cp *cp, int32_t rank, int64_t length, ravel__run runs[2]) {
    int64_t ranks = cp->ranks;
    if (rank < 0 || ranks <= 1) {
        runs[0] = (ravel__run){0, length, 1};
        return 1;
    }
    RAVEL_ASSERT(rank < ranks && length >= 0 && length % ravel__cp_multiple(cp) == 0);
    if (cp->kind == RAVEL_CP_CONTIGUOUS) {
        runs[0] = (ravel__run){rank * (length / ranks), length / ranks, 1};
        return 1;
    }
    if (cp->kind == RAVEL_CP_STRIPED) {
        runs[0] = (ravel__run){rank, length / ranks, ranks};
        return 1;
    }
    int64_t chunk = length / (2 * ranks);
    runs[0] = (ravel__run){rank * chunk, chunk, 1};
    runs[1] = (ravel__run){(2 * ranks - 1 - rank) * chunk, chunk, 1};
    RAVEL_ASSERT(runs[0].first + chunk <= runs[1].first && runs[1].first + chunk <= length);
    return 2;
}

/* ---- moving --------------------------------------------------------------------------------------------- */

/* memcpy of a known size is one load and one store, whatever the alignment. */
#define STEPS(each)                                                                                        \
    case each:                                                                                             \
        for (int64_t i = 0; i < count; i++) memcpy(target + i * step * (each), source + i * (each), each); \
        break
void ravel__put(char *target, const char *source, int64_t count, int64_t step, size_t each) {
    if (count <= 0) return;
    RAVEL_ASSERT(step >= 1 && each >= 1);
    if (step == 1) {
        memcpy(target, source, (size_t)count * each);
        return;
    }
    switch (each) {
        STEPS(1);
        STEPS(2);
        STEPS(4);
        STEPS(8);
    default:
        for (int64_t i = 0; i < count; i++) memcpy(target + (size_t)(i * step) * each, source + (size_t)i * each, each);
    }
}
#undef STEPS

/* ---- checks --------------------------------------------------------------------------------------------- */

ravel_status ravel__cp_valid(const ravel_cp *cp, int32_t rank, int whole_too, ravel_error *err) {
    int32_t ranks = cp->ranks > 1 ? cp->ranks : 1;
    if (cp->ranks < 0 || cp->ranks > 1 << 20)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "cp is %d; it must be from 1 to 2^20", cp->ranks);
    if (cp->kind < RAVEL_CP_ZIGZAG || cp->kind > RAVEL_CP_STRIPED)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "cp kind %d is none of " RAVEL_CP_CHOICES, cp->kind);
    if (rank >= ranks || rank < (whole_too ? -1 : 0))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "cp rank %d is not one of the %d", rank, ranks);
    return RAVEL_OK;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

ravel_status ravel__cp_uneven(const ravel_cp *cp, int64_t slot, int64_t sample, int64_t length, int64_t align,
                              ravel_error *err) {
    char choices[32] = "", who[64];
    int64_t multiple = ravel__cp_multiple(cp), right = align / common_divisor(align, multiple) * multiple;
    ravel__choice_word(RAVEL_CP_CHOICES, cp->kind, choices, sizeof choices);
    if (sample >= 0)
        (void)snprintf(who, sizeof who, "sample %lld takes a slot of", (long long)sample);
    else
        (void)snprintf(who, sizeof who, "slot %lld has", (long long)slot);
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "%s %lld tokens, and %s sharding over cp %d needs a multiple of %lld: align "
                           "should be %lld",
                           who, (long long)length, choices, cp->ranks, (long long)multiple, (long long)right);
}

ravel_status ravel__cp_check(const ravel_cp *cp, const int32_t *cu_slots, int64_t slots, const int32_t *samples,
                             ravel_error *err) {
    ravel_status status = ravel__cp_valid(cp, 0, 1, err);
    if (status) return status;
    if (slots < 0 || cu_slots[0] != 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the boundaries of %lld slots must begin with 0",
                               (long long)slots);
    int32_t multiple = (int32_t)ravel__cp_multiple(cp);
    for (int64_t i = 0; i < slots; i++) {
        if (cu_slots[i + 1] < cu_slots[i])
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "slot %lld ends at %d, before it begins at %d", (long long)i,
                                   cu_slots[i + 1], cu_slots[i]);
        int32_t length = cu_slots[i + 1] - cu_slots[i];
        if (length % multiple) return ravel__cp_uneven(cp, i, samples ? samples[i] : -1, length, 1, err);
    }
    return RAVEL_OK;
}

/* ---- the calls ------------------------------------------------------------------------------------------ */

static ravel_status check_rank(const ravel_cp *cp, int32_t rank, const int32_t *cu_slots, int64_t slots,
                               ravel_error *err) {
    ravel_status status = ravel__cp_valid(cp, rank, 0, err);
    return status ? status : ravel__cp_check(cp, cu_slots, slots, NULL, err);
}

typedef void run_fn(void *user, int64_t begin, const ravel__run *run, int64_t at);

/* Calls `each` for every run of the rank: the slot's begin, the run, and where the run begins in the shard. */
static ravel_status walk(const ravel_cp *cp, int32_t rank, const int32_t *cu_slots, int64_t slots, run_fn *each,
                         void *user, ravel_error *err) {
    ravel_status status = check_rank(cp, rank, cu_slots, slots, err);
    if (status) return status;
    int64_t at = 0;
    for (int64_t i = 0; i < slots; i++) {
        ravel__run runs[2];
        int count = ravel__slot_runs(cp, rank, cu_slots[i + 1] - cu_slots[i], runs);
        for (int r = 0; r < count; r++) {
            RAVEL_ASSERT(cu_slots[i] + runs[r].first + (runs[r].count - 1) * runs[r].step < cu_slots[i + 1]);
            each(user, cu_slots[i], &runs[r], at);
            at += runs[r].count;
        }
    }
    RAVEL_ASSERT(at * (cp->ranks > 1 ? cp->ranks : 1) ==
                 cu_slots[slots]); /* every rank has the same number of positions */
    return RAVEL_OK;
}

typedef struct moving {
    const char *from;
    char *to;
    size_t each;
} moving;

static void scatter_run(void *user, int64_t begin, const ravel__run *run, int64_t at) {
    const moving *m = user;
    ravel__put(m->to + (size_t)(begin + run->first) * m->each, m->from + (size_t)at * m->each, run->count, run->step,
               m->each);
}

/* A shard is written from front to back, and read in pieces that lie far apart: those of a few slots ahead are
 * prefetched while this one is copied. */
static void gather_host(const ravel_cp *cp, int32_t rank, const int32_t *cu_slots, int64_t slots, const void *whole,
                        size_t each, void *shard) {
    enum { AHEAD = 2 };
    const char *from = whole;
    ravel__writer writer;
    size_t bytes = (size_t)cu_slots[slots] / (cp->ranks > 1 ? (size_t)cp->ranks : 1) * each;
    ravel__writer_open(&writer, shard, ravel__writer_streams(bytes));
    for (int64_t i = 0; i < slots; i++) {
        ravel__run runs[2];
        if (i + AHEAD < slots) {
            const int32_t *next = cu_slots + i + AHEAD;
            int count = ravel__slot_runs(cp, rank, next[1] - next[0], runs);
            for (int r = 0; r < count; r++)
                ravel__soon(from + (size_t)(next[0] + runs[r].first) * each,
                            (size_t)(runs[r].count * runs[r].step) * each);
        }
        int count = ravel__slot_runs(cp, rank, cu_slots[i + 1] - cu_slots[i], runs);
        for (int r = 0; r < count; r++)
            ravel__writer_take(&writer, from + (size_t)(cu_slots[i] + runs[r].first) * each, runs[r].count,
                               runs[r].step, each);
    }
    RAVEL_ASSERT((size_t)(writer.at - (char *)shard) == bytes);
    ravel__writer_close(&writer);
}

/* On a device. A slot is a sample of its own: its positions are elements of the whole array. */
static void book_run(void *user, int64_t begin, const ravel__run *run, int64_t at) {
    const ravel__sequence slot = {.index = 0, .offset = begin, .length = run->first + run->count * run->step};
    (void)at;
    ravel__book_run(user, &slot, run, 0);
}

static ravel_status move_on_device(const ravel_cp *cp, int32_t rank, const int32_t *cu_slots, int64_t slots,
                                   const void *from, size_t each, void *to, int scatter, const ravel_place *place,
                                   ravel_error *err) {
    const ravel__book_room room = {.tracks = 1, .runs = ravel__runs_most(cp, rank, slots)};
    const ravel__track track = {.kind = RAVEL_FIELD_TOKEN, .element = 1, .width = (int64_t)each, .each = each};
    ravel__book book;
    ravel_status status = ravel__book_open(&book, &room, err);
    if (status) return status;
    book.head->scatter = scatter;
    status = walk(cp, rank, cu_slots, slots, book_run, &book, err);
    if (!status) {
        ravel__book_field(&book, &track, from, to, book.positions);
        status = ravel__book_launch(&book, place->stream, err);
    }
    ravel__book_close(&book);
    return status;
}

static ravel_status check_place(const ravel_place *place, ravel_error *err) {
    return place ? ravel__place_check(place, RAVEL__ALL_KINDS, "the array", err) : RAVEL_OK;
}

ravel_status ravel_cp_gather(const ravel_cp *cp, int32_t rank, const int32_t *cu_slots, int64_t slots,
                             const void *whole, size_t each, void *shard, const ravel_place *place, ravel_error *err) {
    ravel_status status = check_rank(cp, rank, cu_slots, slots, err);
    if (!status) status = check_place(place, err);
    if (status) return status;
    if (place && place->kind == RAVEL_DEVICE)
        return move_on_device(cp, rank, cu_slots, slots, whole, each, shard, 0, place, err);
    gather_host(cp, rank, cu_slots, slots, whole, each, shard);
    return RAVEL_OK;
}

ravel_status ravel_cp_scatter(const ravel_cp *cp, int32_t rank, const int32_t *cu_slots, int64_t slots,
                              const void *shard, size_t each, void *whole, const ravel_place *place, ravel_error *err) {
    moving m = {shard, whole, each};
    ravel_status status = check_place(place, err);
    if (status) return status;
    if (place && place->kind == RAVEL_DEVICE)
        return move_on_device(cp, rank, cu_slots, slots, shard, each, whole, 1, place, err);
    return walk(cp, rank, cu_slots, slots, scatter_run, &m, err);
}
