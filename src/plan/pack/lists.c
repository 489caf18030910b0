/* Bins as lists of samples, and splitting them until every rank has work in every micro-step. */
#include "plan/internal.h"

#include "base/assert.h"
#include "base/heap.h"
#include "base/sort.h"

#include <string.h>

ravel_status ravel__lists_make(const ravel__job *job, const int32_t *bin, int32_t bins, int32_t most,
                               ravel__lists *lists) {
    const ravel__pool *pool = job->pool;
    RAVEL_ASSERT(bins <= most);
    lists->bins = bins;
    lists->start = ravel__arena_push(job->arena, (size_t)most + 1, sizeof *lists->start);
    lists->bin = ravel__arena_push(job->arena, (size_t)most, sizeof *lists->bin);
    lists->items = ravel__arena_push(job->arena, (size_t)pool->count, sizeof *lists->items);
    if (!lists->start || !lists->items || !lists->bin)
        return ravel__no_memory(job->err, (size_t)most * sizeof *lists->bin, "the lists of bins");
    memset(lists->bin, 0, (size_t)most * sizeof *lists->bin);
    for (int32_t i = 0; i < pool->count; i++) {
        RAVEL_ASSERT(bin[i] >= 0 && bin[i] < bins);
        ravel__bin_add(job->rules, pool, &lists->bin[bin[i]], i);
    }
    int32_t sum = 0;
    for (int32_t b = 0; b < bins; b++) {
        lists->start[b] = sum;
        sum += lists->bin[b].rows;
    }
    RAVEL_ASSERT(sum == pool->count); /* each sample is in one list */
    for (int32_t i = 0; i < pool->count; i++) lists->items[lists->start[bin[i]]++] = i;
    for (int32_t b = 0; b < bins; b++) lists->start[b] -= lists->bin[b].rows;
    return RAVEL_OK;
}

void ravel__lists_bins(const ravel__lists *lists, int32_t *bin) {
    for (int32_t b = 0; b < lists->bins; b++)
        for (int32_t i = 0; i < lists->bin[b].rows; i++) bin[lists->items[lists->start[b] + i]] = b;
}

ravel_status ravel__lists_order(const ravel__job *job, const ravel__lists *lists, int32_t *order) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    size_t k = (size_t)lists->bins;
    uint64_t *key = ravel__arena_push(job->arena, k, 8), *spare = ravel__arena_push(job->arena, k, 8);
    int32_t *spare_order = ravel__arena_push(job->arena, k, 4);
    if (!key || !spare || !spare_order) {
        ravel__arena_rewind(job->arena, mark);
        return ravel__no_memory(job->err, k * 20, "ordering bins");
    }
    for (int32_t b = 0; b < lists->bins; b++) {
        order[b] = b;
        key[b] = ~(uint64_t)lists->bin[b].cost;
    }
    ravel__sort_u64(key, order, spare, spare_order, k);
    for (size_t i = 1; i < k; i++) RAVEL_ASSERT(lists->bin[order[i - 1]].cost >= lists->bin[order[i]].cost);
    ravel__arena_rewind(job->arena, mark);
    return RAVEL_OK;
}

/* ---- splitting ---------------------------------------------------------------------------------------------- */

/* Packed: longest first, each to the cheaper side. The first `kept` items stay; returns kept. */
static int32_t halve(const ravel__job *job, int32_t *items, int32_t count, int32_t *spare) {
    int64_t here = 0, there = 0;
    int32_t kept = 0, gone = 0;
    for (int32_t i = 0; i < count; i++) {
        int64_t cost = job->pool->cost[items[i]];
        if (here <= there) {
            here += cost;
            items[kept++] = items[i];
        } else {
            there += cost;
            spare[gone++] = items[i];
        }
    }
    if (!gone) spare[gone++] = items[--kept]; /* all costs are 0: any cut is equal */
    memcpy(items + kept, spare, (size_t)gone * sizeof *items);
    return kept;
}

/* Padded: similar lengths stay together, so the list is cut where the more expensive side is cheapest. */
static int32_t cut(const ravel__job *job, const int32_t *items, int32_t count, int64_t *tail) {
    ravel__bin bin;
    memset(&bin, 0, sizeof bin);
    for (int32_t i = count - 1; i > 0; i--) {
        ravel__bin_add(job->rules, job->pool, &bin, items[i]);
        tail[i] = bin.cost;
    }
    memset(&bin, 0, sizeof bin);
    int64_t least = INT64_MAX;
    int32_t best = 1;
    for (int32_t i = 0; i + 1 < count; i++) {
        ravel__bin_add(job->rules, job->pool, &bin, items[i]);
        int64_t larger = bin.cost > tail[i + 1] ? bin.cost : tail[i + 1];
        if (larger < least) {
            least = larger;
            best = i + 1;
        }
    }
    return best;
}

void ravel__lists_halve(const ravel__job *job, ravel__lists *lists, int32_t from, int32_t to, void *scratch) {
    int32_t *items = lists->items + lists->start[from], count = lists->bin[from].rows;
    int packed = job->rules->options.layout == RAVEL_LAYOUT_PACKED;
    int32_t kept = packed ? halve(job, items, count, scratch) : cut(job, items, count, scratch);
    RAVEL_ASSERT(kept > 0 && kept < count);
    lists->start[to] = lists->start[from] + kept;
    ravel__bin_collect(job->rules, job->pool, items, kept, &lists->bin[from]);
    ravel__bin_collect(job->rules, job->pool, items + kept, count - kept, &lists->bin[to]);
    RAVEL_ASSERT(lists->bin[from].rows + lists->bin[to].rows == count);
}

ravel_status ravel__lists_split(const ravel__job *job, ravel__lists *lists, int32_t target) {
    if (lists->bins >= target) return RAVEL_OK;
    ravel__mark mark = ravel__arena_mark(job->arena);
    int32_t longest = 0;
    for (int32_t b = 0; b < lists->bins; b++)
        if (lists->bin[b].rows > longest) longest = lists->bin[b].rows;
    ravel__heap h = {ravel__arena_push(job->arena, (size_t)target, sizeof *h.at), 0}; /* bins that can be split */
    void *spare = ravel__arena_push(job->arena, (size_t)longest, sizeof(int64_t));
    if (!h.at || !spare) {
        ravel__arena_rewind(job->arena, mark);
        return ravel__no_memory(job->err, (size_t)target * sizeof *h.at, "splitting bins");
    }
    for (int32_t b = 0; b < lists->bins; b++)
        if (lists->bin[b].rows > 1) ravel__heap_push(&h, lists->bin[b].cost, b);
    while (lists->bins < target && h.count) {
        int32_t b = ravel__heap_pop(&h), made = lists->bins++;
        ravel__lists_halve(job, lists, b, made, spare);
        if (lists->bin[b].rows > 1) ravel__heap_push(&h, lists->bin[b].cost, b);
        if (lists->bin[made].rows > 1) ravel__heap_push(&h, lists->bin[made].cost, made);
    }
    ravel__arena_rewind(job->arena, mark);
    return RAVEL_OK;
}
