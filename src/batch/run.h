/* A run: positions first, first + step, ... of a slot, `count` of them, that lie side by side in an array.
 *
 * A whole slot is one run; a zig-zag shard of it is two; a striped shard is one with a step. */
#ifndef RAVEL_BATCH_RUN_H
#define RAVEL_BATCH_RUN_H

#include "base/assert.h"

#include <ravel/batch.h>

typedef struct ravel__run {
    int64_t first, count, step;
} ravel__run;

/* The runs of `rank` (-1: the whole slot) in a slot of `length` positions: 1 or 2. The length must be a multiple of
 * ravel__cp_multiple if there is a rank. */
int ravel__slot_runs(const ravel_cp *cp, int32_t rank, int64_t length, ravel__run runs[2]);

/* A slot's length must be a multiple of this. */
static inline int64_t ravel__cp_multiple(const ravel_cp *cp) {
    return cp->ranks <= 1 ? 1 : cp->kind == RAVEL_CP_ZIGZAG ? 2 * (int64_t)cp->ranks : cp->ranks;
}

/* ranks, kind, and 0 <= rank < ranks (or -1 where `whole_too`). */
ravel_status ravel__cp_valid(const ravel_cp *cp, int32_t rank, int whole_too, ravel_error *err);
/* The sentence for a slot that cannot be dealt out; sample -1: no name. */
ravel_status ravel__cp_uneven(const ravel_cp *cp, int64_t slot, int64_t sample, int64_t length, int64_t align,
                              ravel_error *err);

/* The part [*from, *to) of a run whose positions lie in [low, high). */
static inline void ravel__run_span(const ravel__run *run, int64_t low, int64_t high, int64_t *from, int64_t *to) {
    low -= run->first;
    high -= run->first;
    if (run->step > 1) {
        low = low > 0 ? (low + run->step - 1) / run->step : 0;
        high = high > 0 ? (high + run->step - 1) / run->step : 0;
    }
    if (low < 0) low = 0;
    if (high > run->count) high = run->count;
    *from = low < run->count ? low : run->count;
    *to = high > *from ? high : *from;
    RAVEL_ASSERT(0 <= *from && *from <= *to && *to <= run->count);
}

/* `count` pieces of `each` bytes that lie side by side, to every step-th place of `target`. */
void ravel__put(char *target, const char *source, int64_t count, int64_t step, size_t each);

/* Prefetches the first cache lines of data that is read soon. (Always inline: compilers take a function that only
 * prefetches for one without effect, and drop its calls.) */
__attribute__((always_inline)) static inline void ravel__soon(const char *at, size_t bytes) {
    enum { LINE = 64, MOST = 8 };
    size_t lines = bytes / LINE + 1;
    for (size_t i = 0; i < lines && i < MOST; i++) __builtin_prefetch(at + i * LINE);
}

#endif
