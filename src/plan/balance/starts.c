#include "plan/balance/balance.h"

#include "plan/pack/fit.h"

#include "base/assert.h"
#include "base/heap.h"

#include <string.h>

static ravel_status no_memory(const ravel__basis *b, size_t bytes) {
    return ravel__no_memory(b->job->err, bytes, "the default method");
}

/* ---- spread ------------------------------------------------------------------------------------------------- */

/* Repairs what is overfull of a spread over `bins`. */
static ravel_status repair(const ravel__basis *b, const ravel__job *job, int32_t bins, int32_t over, int32_t *bin,
                           int *made) {
    RAVEL_ASSERT(bins >= 1 && over >= 0);
    *made = over == 0;
    if (over == 0 || over > (b->passes < 4 ? bins / 4 : bins)) return RAVEL_OK;
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__lists lists;
    ravel_status status = ravel__lists_make(job, bin, bins, bins, &lists);
    if (!status) status = ravel__repair(job, &lists, b->passes, b->partners, &over);
    if (!status && over == 0) {
        *made = 1;
        ravel__lists_bins(&lists, bin);
    }
    ravel__arena_rewind(job->arena, mark);
    return status;
}

static ravel_status spread_and_repair(const ravel__basis *b, const ravel__job *job, int32_t bins, int by_slots,
                                      int32_t *bin, int *made) {
    int32_t over;
    *made = 0;
    ravel_status status = ravel__spread(job, bins, by_slots, bin, &over);
    return status ? status : repair(b, job, bins, over, bin, made);
}

/* Karmarkar-Karp ignores the cap and max_samples; a result that breaks max_samples is not repaired. */
static ravel_status difference_and_repair(const ravel__basis *b, int32_t *bin, int *made) {
    const ravel__job *job = b->job;
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__lists lists;
    int32_t bins, over = 0;
    *made = 0;
    ravel_status status = ravel__difference(job, b->bins, bin, &bins);
    if (!status) status = ravel__lists_make(job, bin, b->bins, b->bins, &lists);
    for (int32_t i = 0; !status && i < b->bins; i++) {
        if (lists.bin[i].rows > job->rules->most) over = INT32_MAX;
        if (over < INT32_MAX) over += lists.bin[i].size > job->rules->cap;
    }
    ravel__arena_rewind(job->arena, mark);
    return status ? status : repair(b, job, b->bins, over, bin, made);
}

/* ---- mixed -------------------------------------------------------------------------------------------------- */

typedef struct mixing {
    ravel__fit fit;
    int64_t *room;
    int32_t *rows;
    ravel__node *most_room;
} mixing;

static ravel_status make_mixing(const ravel__basis *b, mixing *m) {
    ravel__arena *arena = b->job->arena;
    size_t k = (size_t)b->bins;
    m->room = ravel__arena_push(arena, k, sizeof *m->room);
    m->rows = ravel__arena_push(arena, k, sizeof *m->rows);
    m->most_room = ravel__arena_push(arena, k, sizeof *m->most_room);
    if (!m->room || !m->rows || !m->most_room) return no_memory(b, k * 28);
    return ravel__fit_make(&m->fit, arena, b->job->rules->cap, b->bins, b->job->err);
}

/* Best-fit of the samples from `from` on into bins that hold the ones before. Returns the first that found no room. */
static int32_t top_up(const ravel__basis *b, mixing *m, int32_t from, int32_t *bin) {
    const ravel__pool *pool = b->job->pool;
    int64_t most = b->job->rules->most, room;
    for (int32_t i = 0; i < b->bins; i++) {
        m->room[i] = b->job->rules->cap;
        m->rows[i] = 0;
    }
    for (int32_t i = 0; i < from; i++) {
        RAVEL_ASSERT(bin[i] >= 0 && bin[i] < b->bins);
        m->room[bin[i]] -= pool->slot[i];
        m->rows[bin[i]]++;
    }
    for (int32_t i = 0; i < b->bins; i++)
        if (m->rows[i] < most) ravel__fit_put(&m->fit, i, m->room[i]);
    for (; from < pool->count; from++) {
        int32_t to = ravel__fit_take(&m->fit, pool->slot[from], &room);
        if (to < 0) break;
        bin[from] = to;
        m->room[to] = room - pool->slot[from];
        RAVEL_ASSERT(m->room[to] >= 0);
        if (++m->rows[to] < most) ravel__fit_put(&m->fit, to, m->room[to]);
    }
    return from;
}

/* Samples that fit no bin go to the bins with most room; returns the number of overfull bins. */
static int32_t overfill(const ravel__basis *b, mixing *m, int32_t from, int32_t *bin) {
    RAVEL_ASSERT(from >= 0 && from <= b->job->pool->count);
    const ravel__pool *pool = b->job->pool;
    ravel__heap most_room = {m->most_room, 0};
    int32_t over = 0;
    for (int32_t i = 0; i < b->bins; i++)
        if (m->rows[i] < b->job->rules->most) ravel__heap_push(&most_room, m->room[i], i);
    for (; from < pool->count; from++) {
        if (!most_room.count) return INT32_MAX;
        int32_t to = ravel__heap_pop(&most_room);
        bin[from] = to;
        m->room[to] -= pool->slot[from];
        if (++m->rows[to] < b->job->rules->most) ravel__heap_push(&most_room, m->room[to], to);
    }
    for (int32_t i = 0; i < b->bins; i++) over += m->room[i] < 0;
    return over;
}

static ravel_status mix(const ravel__basis *b, int32_t longer, int32_t *bin, int *made) {
    RAVEL_ASSERT(longer >= 0 && longer <= b->job->pool->count);
    ravel__mark mark = ravel__arena_mark(b->job->arena);
    ravel__pool first = *b->job->pool;
    ravel__job some = *b->job;
    mixing m;
    int32_t over = 0;
    first.count = longer;
    some.pool = &first;
    ravel_status status = ravel__spread(&some, b->bins, 0, bin, &over);
    *made = 0;
    if (status || over) return status;
    status = make_mixing(b, &m);
    if (!status) {
        int32_t rest = top_up(b, &m, longer, bin);
        if (b->job->pool->count - rest > b->bins / 8) over = INT32_MAX; /* too many to repair */
        if (!over) over = overfill(b, &m, rest, bin);
    }
    ravel__arena_rewind(b->job->arena, mark);
    return status ? status : repair(b, b->job, b->bins, over, bin, made);
}

/* Spreading more samples balances better, but leaves less room for the rest. */
static ravel_status mix_most(const ravel__basis *b, int32_t *bin, int *made) {
    int64_t count = b->job->pool->count;
    ravel_status status = RAVEL_OK;
    *made = 0;
    if (!ravel__pool_ordered(b->job->pool)) return RAVEL_OK; /* the longer samples are not the more expensive ones */
    for (int32_t share = b->passes < 4 ? 10 : 14; !status && !*made && share >= 4; share -= 2) {
        status = mix(b, (int32_t)(count * share / 16), bin, made);
        if (b->passes < 4) break;
    }
    return status;
}

/* ---- packed ------------------------------------------------------------------------------------------------- */

/* Numbers the packed bins by cost, largest cost first: from -> to. */
static ravel_status rank_bins(const ravel__basis *b, const ravel__lists *lists, int32_t *number) {
    ravel__mark mark = ravel__arena_mark(b->job->arena);
    int32_t *order = ravel__arena_push(b->job->arena, (size_t)lists->bins, sizeof *order);
    ravel_status status = order ? ravel__lists_order(b->job, lists, order) : no_memory(b, (size_t)lists->bins * 4);
    for (int32_t i = 0; !status && i < lists->bins; i++) {
        RAVEL_ASSERT(order[i] >= 0 && order[i] < lists->bins);
        number[order[i]] = i;
    }
    ravel__arena_rewind(b->job->arena, mark);
    return status;
}

/* The samples whose bin is numbered `kept` or more, as a pool of their own. */
typedef struct tail {
    ravel__pool pool;
    int32_t *from, *bin;
} tail;

static ravel_status make_tail(const ravel__basis *b, const int32_t *packed, const int32_t *number, int32_t kept,
                              tail *t) {
    RAVEL_ASSERT(kept >= 0);
    const ravel__pool *pool = b->job->pool;
    int32_t count = 0;
    for (int32_t i = 0; i < pool->count; i++) count += number[packed[i]] >= kept;
    size_t n = (size_t)count;
    memset(t, 0, sizeof *t);
    t->pool.count = count;
    t->pool.slot = ravel__arena_push(b->job->arena, n, sizeof *t->pool.slot);
    t->pool.cost = ravel__arena_push(b->job->arena, n, sizeof *t->pool.cost);
    t->from = ravel__arena_push(b->job->arena, n, sizeof *t->from);
    t->bin = ravel__arena_push(b->job->arena, n, sizeof *t->bin);
    if (!t->pool.slot || !t->pool.cost || !t->from || !t->bin) return no_memory(b, n * 20);
    for (int32_t i = 0, at = 0; i < pool->count; i++) {
        if (number[packed[i]] < kept) continue;
        t->pool.slot[at] = pool->slot[i];
        t->pool.cost[at] = pool->cost[i];
        t->from[at++] = i;
    }
    return RAVEL_OK;
}

/* Keeps the largest whole micro-steps of packed bins and spreads the rest over the remaining ones. `bin` comes with the
 * packed bins and leaves with the new ones. */
static ravel_status spread_tail(const ravel__basis *b, int32_t packed_bins, const int32_t *number, int32_t *bin,
                                int *made) {
    RAVEL_ASSERT(packed_bins >= 1 && packed_bins <= b->bins);
    int32_t kept = (packed_bins - 1) / b->job->dp * b->job->dp;
    tail t;
    ravel_status status = make_tail(b, bin, number, kept, &t);
    ravel__job job = *b->job;
    job.pool = &t.pool;
    if (!status) status = spread_and_repair(b, &job, b->bins - kept, 0, t.bin, made);
    if (status || !*made) return status;
    for (int32_t i = 0; i < b->job->pool->count; i++) bin[i] = number[bin[i]];
    for (int32_t i = 0; i < t.pool.count; i++) {
        RAVEL_ASSERT(t.bin[i] >= 0 && kept + t.bin[i] < b->bins);
        bin[t.from[i]] = kept + t.bin[i];
    }
    return RAVEL_OK;
}

static ravel_status keep_packed(const ravel__basis *b, int32_t packed_bins, int32_t *bin, int *made) {
    ravel__mark mark = ravel__arena_mark(b->job->arena);
    int32_t *number = ravel__arena_push(b->job->arena, (size_t)packed_bins, sizeof *number);
    ravel__lists lists;
    ravel_status status = number ? RAVEL_OK : no_memory(b, (size_t)packed_bins * sizeof *number);
    if (!status) status = ravel__lists_make(b->job, bin, packed_bins, packed_bins, &lists);
    if (!status) status = rank_bins(b, &lists, number);
    if (!status) status = spread_tail(b, packed_bins, number, bin, made);
    ravel__arena_rewind(b->job->arena, mark);
    return status;
}

/* ---- shrunk ------------------------------------------------------------------------------------------------- */

/* Gives the room of the spare bins to all bins alike; a little less, and again, if that takes too many. */
static ravel_status pack_shrunk(const ravel__basis *b, int32_t *bin, int32_t *bins) {
    RAVEL_ASSERT(b->bins >= b->packed_bins);
    int64_t cap = b->job->rules->cap, less = cap * (b->bins - b->packed_bins) / b->bins;
    ravel_status status = RAVEL_OK;
    *bins = INT32_MAX;
    for (int32_t tries = b->passes < 4 ? 1 : 4; !status && *bins > b->bins && tries > 0 && less > 0; tries--) {
        status = ravel__pack_best_fit(b->job, cap - less, bin, bins);
        less -= less / 4 + 1;
    }
    return status;
}

/* ---- front -------------------------------------------------------------------------------------------------- */

static ravel_status fill(const ravel__basis *b, ravel__start start, int32_t *bin, int32_t *bins, int *made) {
    ravel_status status = RAVEL_OK;
    *bins = b->packed_bins;
    if (start == RAVEL__START_COSTS || start == RAVEL__START_SLOTS)
        return spread_and_repair(b, b->job, b->bins, start == RAVEL__START_SLOTS, bin, made);
    if (start == RAVEL__START_PARTS) return difference_and_repair(b, bin, made);
    if (start == RAVEL__START_MIXED) return mix_most(b, bin, made);
    if (start == RAVEL__START_SHRUNK) {
        status = pack_shrunk(b, bin, bins);
        if (status || *bins > b->bins) return status;
    } else {
        memcpy(bin, b->packed, (size_t)b->job->pool->count * sizeof *bin);
    }
    return keep_packed(b, *bins, bin, made);
}

ravel_status ravel__start_make(const ravel__basis *basis, ravel__start start, ravel__lists *lists, int *made) {
    size_t n = (size_t)basis->job->pool->count;
    int32_t bins, *bin = ravel__arena_push(basis->job->arena, n, sizeof *bin);
    *made = 0;
    if (!bin) return no_memory(basis, n * sizeof *bin);
    ravel_status status = fill(basis, start, bin, &bins, made);
    int whole = *made;
    if (status || (!whole && (start < RAVEL__START_SHRUNK || bins > basis->bins))) return status;
    status = ravel__lists_make(basis->job, bin, whole ? basis->bins : bins, basis->bins, lists);
    if (!status && !whole) status = ravel__lists_split(basis->job, lists, basis->bins);
    lists->bins = basis->bins;
    for (int32_t b = 0; !status && b < lists->bins; b++)
        RAVEL_ASSERT(lists->bin[b].size <= basis->job->rules->cap && lists->bin[b].rows <= basis->job->rules->most);
    *made = !status;
    return status;
}
