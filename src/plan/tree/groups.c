/* Trees that need no tokens: groups with one prompt; and the check of an order that was given. */
#include <ravel/tree.h>

#include "base/assert.h"
#include "plan/tree/check.h"
#include "base/memory.h"
#include "base/sort.h"

#include <string.h>

#define MOST_SAMPLES (INT64_C(1) << 29)

static ravel_status check_count(int64_t count, ravel_error *err) {
    if (count >= 0 && count <= MOST_SAMPLES) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "the samples have count %lld; it must be from 0 to 2^29",
                           (long long)count);
}

/* ---- groups --------------------------------------------------------------------------------------------------- */

typedef struct grouping {
    int64_t count;
    const int64_t *lengths, *prompts, *groups;
    uint64_t *keys, *spare;
    int32_t *at, *spare_at;
} grouping;

static ravel_status check_prompts(const grouping *g, ravel_error *err) {
    for (int64_t i = 0; i < g->count; i++)
        if (g->prompts[i] < 0 || g->prompts[i] > g->lengths[i])
            return ravel_error_set(err, RAVEL_E_DATA, "sample %lld has a prompt of %lld tokens, and %lld in all",
                                   (long long)i, (long long)g->prompts[i], (long long)g->lengths[i]);
    return RAVEL_OK;
}

/* `at` in the order of groups, those by their first sample; inside, bare prompts come last. */
static ravel_status sort_groups(const grouping *g, ravel_error *err) {
    size_t n = (size_t)g->count;
    for (int64_t i = 0; i < g->count; i++) {
        g->keys[i] = (uint64_t)g->groups[i];
        g->at[i] = (int32_t)i;
    }
    ravel__sort_u64(g->keys, g->at, g->spare, g->spare_at, n); /* stable: the first of a run is the group's first */
    int32_t leader = 0;
    for (int64_t i = 0; i < g->count; i++) {
        int32_t row = g->at[i];
        if (!i || g->groups[row] != g->groups[leader]) leader = row;
        if (g->prompts[row] != g->prompts[leader])
            return ravel_error_set(
                err, RAVEL_E_DATA, "samples %d and %d are of group %lld, but their prompts have %lld and %lld tokens",
                leader, row, (long long)g->groups[row], (long long)g->prompts[leader], (long long)g->prompts[row]);
        g->keys[i] = 2 * (uint64_t)leader + (g->lengths[row] == g->prompts[row]);
    }
    ravel__sort_u64(g->keys, g->at, g->spare, g->spare_at, n);
    return RAVEL_OK;
}

static void write_groups(const grouping *g, int32_t *order, int64_t *shared) {
    for (int64_t i = 0; i < g->count; i++) {
        int32_t row = g->at[i];
        order[i] = row;
        shared[i] = i && g->groups[g->at[i - 1]] == g->groups[row] ? g->prompts[row] : 0;
    }
}

ravel_status ravel_tree_from_groups(int64_t count, const int64_t *lengths, const int64_t *prompts,
                                    const int64_t *groups, const ravel_allocator *allocator, int32_t *order,
                                    int64_t *shared, ravel_error *err) {
    ravel_status status = check_count(count, err);
    if (status) return status;
    size_t n = (size_t)count;
    ravel__arena arena;
    ravel__arena_init(&arena, allocator, 24 * n + 512);
    grouping g = {.count = count, .lengths = lengths, .prompts = prompts, .groups = groups};
    RAVEL__PUSH(&arena, g.keys, n);
    RAVEL__PUSH(&arena, g.spare, n);
    RAVEL__PUSH(&arena, g.at, n);
    RAVEL__PUSH(&arena, g.spare_at, n);
    status = ravel__arena_status(&arena, "sorting groups", err);
    if (!status) status = check_prompts(&g, err);
    if (!status) status = sort_groups(&g, err);
    if (!status) write_groups(&g, order, shared);
    ravel__arena_free(&arena);
    return status;
}

/* ---- the check ------------------------------------------------------------------------------------------------ */

static ravel_status check_order(int64_t count, const int32_t *order, const ravel_allocator *allocator,
                                ravel_error *err) {
    uint8_t *seen = ravel__calloc(allocator, (size_t)count, 1);
    if (!seen) return ravel__no_memory(err, (size_t)count, "checking an order");
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; !status && i < count; i++) {
        if (order[i] < 0 || order[i] >= count)
            status = ravel_error_set(err, RAVEL_E_DATA, "place %lld of the tree order has sample %d of %lld",
                                     (long long)i, order[i], (long long)count);
        else if (seen[order[i]]++)
            status = ravel_error_set(err, RAVEL_E_DATA, "sample %d has two places in the tree order; one is %lld",
                                     order[i], (long long)i);
    }
    ravel__release(allocator, seen, (size_t)count);
    return status;
}

ravel_status ravel__tree_check(int64_t count, const int64_t *lengths, const int32_t *order, const int64_t *shared,
                               const ravel_allocator *allocator, ravel_error *err) {
    ravel_status status = check_count(count, err);
    if (status || !count) return status;
    if (order && (status = check_order(count, order, allocator, err))) return status;
    int64_t before = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t length = lengths[order ? order[i] : i], most = length < before ? length : before;
        if (shared[i] < 0 || shared[i] > most)
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "place %lld of the tree order shares %lld tokens with the place before; its sample "
                                   "has %lld tokens and the one before %lld",
                                   (long long)i, (long long)shared[i], (long long)length, (long long)before);
        before = length;
    }
    return RAVEL_OK;
}
