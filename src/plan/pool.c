/* The samples of one problem, sorted. */
#include "plan/internal.h"

#include "base/assert.h"
#include "base/sort.h"

#include <string.h>

/* ---- pool --------------------------------------------------------------------------------------------------- */

static void fill_pool(const ravel__rules *rules, const ravel_plan_input *input, ravel__pool *pool) {
    for (int32_t i = 0; i < pool->count; i++) {
        int32_t row = pool->row[i];
        pool->cost[i] = ravel__sample_cost(rules, input, row);
        RAVEL_ASSERT(pool->cost[i] >= 0);
        if (!pool->prompt) continue;
        int64_t prompt;
        (void)ravel__slot(rules, input, row, &prompt);
        pool->prompt[i] = (uint32_t)prompt;
    }
}

ravel_status ravel__pool_make(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                              int32_t count, ravel__arena *arena, ravel__pool *pool, ravel_error *err) {
    size_t n = (size_t)count;
    int apart = rules->options.layout == RAVEL_LAYOUT_PADDED_2D;
    memset(pool, 0, sizeof *pool);
    pool->count = count;
    RAVEL__PUSH(arena, pool->row, n);
    RAVEL__PUSH(arena, pool->slot, n);
    RAVEL__PUSH(arena, pool->cost, n); /* scratch of the sort before it holds costs */
    if (apart) pool->prompt = ravel__arena_push(arena, n, sizeof *pool->prompt);
    ravel_status status = ravel__arena_status(arena, "the samples of an update", err);
    if (status) return status;
    for (int32_t i = 0; i < count; i++) {
        int64_t prompt;
        pool->row[i] = rows[i];
        pool->slot[i] = ~(uint32_t)ravel__slot(rules, input, rows[i], &prompt);
    }
    uint32_t *spare = (uint32_t *)(void *)pool->cost;
    ravel__sort_u32(pool->slot, pool->row, spare, (int32_t *)(void *)(spare + n), n);
    for (int32_t i = 0; i < count; i++) pool->slot[i] = ~pool->slot[i];
    for (int32_t i = 0; i < count; i++)
        RAVEL_ASSERT(pool->slot[i] <= rules->cap && (i == 0 || pool->slot[i] <= pool->slot[i - 1]));
    fill_pool(rules, input, pool);
    return RAVEL_OK;
}

int ravel__pool_ordered(const ravel__pool *pool) {
    int32_t i = 1;
    while (i < pool->count && pool->cost[i - 1] >= pool->cost[i]) i++;
    return i >= pool->count;
}

ravel_status ravel__pool_order(const ravel__job *job, int32_t *order) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    size_t n = (size_t)job->pool->count;
    uint64_t *keys = ravel__arena_push(job->arena, n, 8), *spare = ravel__arena_push(job->arena, n, 8);
    int32_t *spare_order = ravel__arena_push(job->arena, n, 4);
    ravel_status status = ravel__arena_status(job->arena, "ordering samples", job->err);
    if (!status) {
        for (int32_t i = 0; i < job->pool->count; i++) {
            order[i] = i;
            keys[i] = ~(uint64_t)job->pool->cost[i];
        }
        ravel__sort_u64(keys, order, spare, spare_order, n);
        for (size_t i = 1; i < n; i++) RAVEL_ASSERT(job->pool->cost[order[i - 1]] >= job->pool->cost[order[i]]);
    }
    ravel__arena_rewind(job->arena, mark);
    return status;
}
