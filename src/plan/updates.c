/* Cutting a batch into updates: by the caller's ids, into a given number, or after a given number of samples; in input
 * order or shuffled; whole groups where asked. */
#include "plan/tree/tree.h"

#include "base/assert.h"
#include "base/rng.h"
#include "base/sort.h"

/* ---- groups ------------------------------------------------------------------------------------------------- */

/* Sorted by id, the rows of a group are neighbours and, the sort being stable, its first appearance comes first.
 * Numbers are given in a second pass over the rows, so that they follow the order of appearance. */
ravel_status ravel__groups_number(const ravel_plan_input *input, const int32_t *rows, int32_t count,
                                  ravel__arena *arena, int32_t *group, int32_t *groups, ravel_error *err) {
    ravel__mark mark = ravel__arena_mark(arena);
    size_t n = (size_t)count;
    uint64_t *keys = ravel__arena_push(arena, n, sizeof *keys), *spare = ravel__arena_push(arena, n, sizeof *spare);
    int32_t *at = ravel__arena_push(arena, n, sizeof *at), *spare_at = ravel__arena_push(arena, n, sizeof *spare_at);
    if (!keys || !spare || !at || !spare_at) {
        ravel__arena_rewind(arena, mark);
        return ravel__no_memory(err, n * 24, "sorting groups");
    }
    for (int32_t i = 0; i < count; i++) {
        keys[i] = (uint64_t)input->groups[rows[i]] ^ (UINT64_C(1) << 63);
        at[i] = i;
    }
    ravel__sort_u64(keys, at, spare, spare_at, n);
    int32_t *leader = spare_at; /* position of the group's first row */
    for (int32_t i = 0; i < count; i++) leader[at[i]] = i && keys[i] == keys[i - 1] ? leader[at[i - 1]] : at[i];
    *groups = 0;
    for (int32_t i = 0; i < count; i++) group[i] = leader[i] == i ? (*groups)++ : group[leader[i]];
    RAVEL_ASSERT(*groups <= count && (*groups > 0) == (count > 0));
    ravel__arena_rewind(arena, mark);
    return RAVEL_OK;
}

/* ---- dealing ------------------------------------------------------------------------------------------------ */

static void shuffle(int32_t *order, int32_t count, uint64_t seed) {
    ravel__rng rng = ravel__rng_seed(seed);
    for (int32_t i = count - 1; i > 0; i--) {
        int32_t j = (int32_t)ravel__rng_below(&rng, (uint64_t)i + 1), swap = order[i];
        order[i] = order[j];
        order[j] = swap;
    }
}

/* Deals `count` pieces (samples, or groups of `size` samples) in `order`; the update of piece p goes to update[p]. */
static int32_t deal_pieces(const ravel__rules *rules, const int32_t *order, int32_t count, const int32_t *size,
                           int32_t *update) {
    int64_t cut = rules->options.samples_per_update, dealt = 0, here = 0;
    int32_t now = 0;
    for (int32_t i = 0; i < count; i++) {
        int64_t samples = size ? size[order[i]] : 1;
        if (cut) {
            if (here && here + samples > cut) {
                now++;
                here = 0;
            }
            here += samples;
        } else { /* by the middle of the piece, so that no update is off by more than one piece */
            now = (int32_t)((2 * dealt + samples) * rules->updates / (2 * (int64_t)rules->placed));
        }
        update[order[i]] = now;
        RAVEL_ASSERT(now >= 0 && now < rules->updates);
        dealt += samples;
    }
    RAVEL_ASSERT(dealt == rules->placed); /* every sample is in one piece */
    return cut ? now + 1 : rules->updates;
}

static ravel_status deal_samples(const ravel__rules *rules, ravel__arena *arena, int32_t *update, int32_t *updates,
                                 ravel_error *err) {
    int32_t *order = ravel__arena_push(arena, (size_t)rules->placed, sizeof *order);
    if (!order) return ravel__no_memory(err, (size_t)rules->placed * sizeof *order, "dealing samples");
    for (int32_t i = 0; i < rules->placed; i++) order[i] = i;
    if (rules->options.shuffle) shuffle(order, rules->placed, rules->options.seed);
    *updates = deal_pieces(rules, order, rules->placed, NULL, update);
    return RAVEL_OK;
}

static ravel_status deal_groups(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                                ravel__arena *arena, int32_t *update, int32_t *updates, ravel_error *err) {
    size_t n = (size_t)rules->placed;
    int32_t groups, *group = ravel__arena_push(arena, n, sizeof *group), *size, *order, *group_update;
    if (!group) return ravel__no_memory(err, n * sizeof *group, "dealing groups");
    ravel_status status = ravel__groups_number(input, rows, rules->placed, arena, group, &groups, err);
    if (status) return status;
    size = ravel__arena_push(arena, (size_t)groups, sizeof *size);
    order = ravel__arena_push(arena, (size_t)groups, sizeof *order);
    group_update = ravel__arena_push(arena, (size_t)groups, sizeof *group_update);
    if (!size || !order || !group_update) return ravel__no_memory(err, (size_t)groups * 12, "dealing groups");
    for (int32_t g = 0; g < groups; g++) {
        size[g] = 0;
        order[g] = g;
    }
    for (int32_t i = 0; i < rules->placed; i++) size[group[i]]++;
    if (rules->options.shuffle) shuffle(order, groups, rules->options.seed);
    *updates = deal_pieces(rules, order, groups, size, group_update);
    for (int32_t i = 0; i < rules->placed; i++) update[i] = group_update[group[i]];
    return RAVEL_OK;
}

/* The caller's ids, which must not tear a group apart where groups are to stay whole. */
static ravel_status take_ids(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                             ravel__arena *arena, int32_t *update, ravel_error *err) {
    size_t n = (size_t)rules->placed;
    for (int32_t i = 0; i < rules->placed; i++) update[i] = input->updates[rows[i]];
    if (rules->options.group_rule == RAVEL_GROUPS_FREE) return RAVEL_OK;
    int32_t groups, *group = ravel__arena_push(arena, n, sizeof *group), *first = ravel__arena_push(arena, n, 4);
    if (!group || !first) return ravel__no_memory(err, n * 8, "checking groups");
    ravel_status status = ravel__groups_number(input, rows, rules->placed, arena, group, &groups, err);
    if (status) return status;
    for (int32_t i = 0; i < rules->placed; i++) first[i] = -1;
    for (int32_t i = 0; i < rules->placed; i++) {
        int32_t *leader = &first[group[i]];
        if (*leader < 0) *leader = i;
        if (update[*leader] != update[i])
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "samples %d and %d are of group %lld, but their updates are %d and %d; group-rule "
                                   "asks for one update per group",
                                   rows[*leader], rows[i], (long long)input->groups[rows[i]], update[*leader],
                                   update[i]);
    }
    return RAVEL_OK;
}

static void list_placed(const ravel__rules *rules, const ravel_plan_input *input, int32_t *rows) {
    int32_t placed = 0;
    for (int64_t i = 0; i < input->count; i++)
        if (!rules->skipped || !ravel__is_oversize(rules, input, i)) rows[placed++] = (int32_t)i;
    RAVEL_ASSERT(placed == rules->placed);
}

/* Counting sort of the placed rows by update. `rows` is replaced. */
static ravel_status group_rows(ravel__deal *deal, const int32_t *update, int32_t count, ravel__arena *arena,
                               ravel_error *err) {
    int32_t *sorted = ravel__arena_push(arena, (size_t)count, sizeof *sorted);
    if (!sorted) return ravel__no_memory(err, (size_t)count * sizeof *sorted, "dealing samples");
    for (int32_t u = 0; u <= deal->updates; u++) deal->start[u] = 0;
    for (int32_t i = 0; i < count; i++) {
        RAVEL_ASSERT(update[i] >= 0 && update[i] < deal->updates);
        deal->start[update[i] + 1]++;
    }
    for (int32_t u = 0; u < deal->updates; u++) deal->start[u + 1] += deal->start[u];
    for (int32_t i = 0; i < count; i++) sorted[deal->start[update[i]]++] = deal->rows[i];
    for (int32_t u = deal->updates; u > 0; u--) deal->start[u] = deal->start[u - 1];
    deal->start[0] = 0;
    for (int32_t i = 0; i < count; i++) deal->rows[i] = sorted[i];
    for (int32_t u = 0; u < deal->updates; u++) RAVEL_ASSERT(deal->start[u] <= deal->start[u + 1]);
    RAVEL_ASSERT(deal->start[deal->updates] == count);
    return RAVEL_OK;
}

/* The rows again, in tree order inside each update. */
static ravel_status order_trees(const ravel_plan_input *input, ravel__arena *arena, ravel__deal *deal,
                                ravel_error *err) {
    ravel__tree_order tree = {(int32_t)input->count, input->shared, input->order};
    int32_t placed = deal->start[deal->updates];
    deal->shared = ravel__arena_push(arena, (size_t)placed, sizeof *deal->shared);
    ravel__mark mark = ravel__arena_mark(arena);
    int32_t *update = ravel__arena_push(arena, (size_t)input->count, sizeof *update);
    int32_t *next = ravel__arena_push(arena, (size_t)deal->updates, sizeof *next);
    if (!deal->shared || !update || !next) return ravel__no_memory(err, (size_t)input->count * 16, "dealing trees");
    for (int32_t i = 0; i < tree.count; i++) update[i] = -1;
    for (int32_t u = 0; u < deal->updates; u++) {
        next[u] = deal->start[u];
        for (int32_t i = deal->start[u]; i < deal->start[u + 1]; i++) update[deal->rows[i]] = u;
    }
    ravel_status status = ravel__tree_walk(&tree, update, deal->updates, next, arena, deal->rows, deal->shared, err);
    ravel__arena_rewind(arena, mark);
    return status;
}

static ravel_status deal_make(const ravel__rules *rules, const ravel_plan_input *input, ravel__arena *arena,
                              ravel__deal *deal, ravel_error *err) {
    size_t n = (size_t)rules->placed, most = (size_t)rules->updates + 1;
    deal->rows = ravel__arena_push(arena, n, sizeof *deal->rows);
    deal->start = ravel__arena_push(arena, most, sizeof *deal->start);
    deal->updates = rules->updates;
    deal->shared = NULL;
    if (!deal->rows || !deal->start) return ravel__no_memory(err, (n + most) * 4, "dealing samples");
    list_placed(rules, input, deal->rows);
    deal->start[0] = 0;
    deal->start[1] = rules->placed;
    if (rules->updates == 1) return RAVEL_OK;
    ravel__mark mark = ravel__arena_mark(arena);
    int32_t *update = ravel__arena_push(arena, n, sizeof *update);
    ravel_status status = RAVEL_OK;
    if (!update)
        status = ravel__no_memory(err, n * sizeof *update, "dealing samples");
    else if (input->updates)
        status = take_ids(rules, input, deal->rows, arena, update, err);
    else if (rules->options.group_rule == RAVEL_GROUPS_FREE)
        status = deal_samples(rules, arena, update, &deal->updates, err);
    else
        status = deal_groups(rules, input, deal->rows, arena, update, &deal->updates, err);
    if (!status) status = group_rows(deal, update, rules->placed, arena, err);
    ravel__arena_rewind(arena, mark);
    return status;
}

ravel_status ravel__deal_make(const ravel__rules *rules, const ravel_plan_input *input, ravel__arena *arena,
                              ravel__deal *deal, ravel_error *err) {
    ravel_status status = deal_make(rules, input, arena, deal, err);
    return status || !rules->trees ? status : order_trees(input, arena, deal, err);
}
