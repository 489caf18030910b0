/* Lower bounds on bins and time.
 *
 * Bins, packed: the volume bound, samples / max_samples, and Martello and Toth's L2. For every limit a: samples longer
 * than cap - a share a bin with nothing of a or more; those over half a bin have one each; the rest of at least a must
 * go into what the halves leave or into further bins:
 *
 *     longer than cap - a      cap/2 .. cap - a        a .. cap/2        shorter than a: left out
 *     [a bin each]             [a bin each, room]      [fill the room, then further bins]
 *
 * Bins, padded: taking longest first, rows x longest, is optimal there (swap any longer sample of a later bin forward
 * and no bin grows), so its count is the bound itself; padded-2d is bounded by it, every rectangle being at least as
 * wide as its widest sample.
 *
 * Time: perfect balance, and the largest sample; plus the overhead of the micro-steps that are needed. */
#include "plan/internal.h"

#include "base/assert.h"

static int64_t divide_up(int64_t a, int64_t b) {
    RAVEL_ASSERT(a >= 0 && b > 0);
    return a / b + (a % b != 0);
}

/* Slots are longest first. The limit a runs over the slots of at most half a bin, longest to shortest; as it shrinks,
 * more of the large ones (from `whole` on) have room beside them for something of a or more. */
int64_t ravel__martello_toth(const ravel__pool *pool, int64_t cap, int64_t volume) {
    int64_t best = volume, large_sum = 0, small_sum = 0;
    int32_t large = 0;
    while (large < pool->count && pool->slot[large] > cap / 2) large++;
    if (large > best) best = large;
    for (int32_t i = large, whole = large; i < pool->count; i++) {
        small_sum += pool->slot[i];
        if (i + 1 < pool->count && pool->slot[i + 1] == pool->slot[i]) continue;
        while (whole > 0 && pool->slot[whole - 1] <= cap - pool->slot[i]) large_sum += pool->slot[--whole];
        RAVEL_ASSERT(whole >= 0 && (i == large || pool->slot[i] <= pool->slot[i - 1])); /* longest first */
        int64_t spill = small_sum - ((large - whole) * cap - large_sum);
        int64_t bound = large + (spill > 0 ? divide_up(spill, cap) : 0);
        if (bound > best) best = bound;
    }
    return best;
}

static int64_t rectangle_bound(const ravel__rules *rules, const ravel__pool *pool) {
    int64_t bins = 0;
    for (int32_t i = 0; i < pool->count; bins++) {
        int64_t rows = rules->cap / pool->slot[i], left = pool->count - i;
        if (rows > rules->most) rows = rules->most;
        i += (int32_t)(rows < left ? rows : left);
    }
    return bins;
}

int64_t ravel__bins_bound(const ravel__rules *rules, const ravel__pool *pool) {
    if (pool->count == 0) return 0;
    if (rules->options.layout != RAVEL_LAYOUT_PACKED) return rectangle_bound(rules, pool);
    int64_t volume = 0, rows = divide_up(pool->count, rules->most);
    for (int32_t i = 0; i < pool->count; i++) volume += pool->slot[i];
    int64_t bound = ravel__martello_toth(pool, rules->cap, divide_up(volume, rules->cap));
    RAVEL_ASSERT(bound >= 1 && bound <= pool->count); /* every sample fits a bin */
    return bound > rows ? bound : rows;
}

int64_t ravel__time_bound(const ravel__rules *rules, const ravel__pool *pool, int64_t steps) {
    int64_t total = 0, largest = 0;
    for (int32_t i = 0; i < pool->count; i++) {
        total += pool->cost[i];
        if (pool->cost[i] > largest) largest = pool->cost[i];
    }
    int64_t even = divide_up(total, rules->options.dp);
    RAVEL_ASSERT(largest <= total && steps >= 0);
    return (even > largest ? even : largest) + steps * rules->overhead;
}

int64_t ravel__steps_for(const ravel__rules *rules, int64_t bins, int32_t dp) {
    int64_t done = rules->steps_done, steps = divide_up(bins, dp) + done, multiple = rules->options.multiple;
    if (steps < rules->options.min_micro_steps) steps = rules->options.min_micro_steps;
    if (steps < 1) steps = 1;
    RAVEL_ASSERT(done >= 0 && steps >= done);
    return divide_up(steps, multiple) * multiple - done;
}

void ravel__bounds_add(const ravel__rules *rules, const ravel__pool *pool, int64_t bins, ravel_plan_stats *stats) {
    int64_t steps = ravel__steps_for(rules, bins, rules->options.dp);
    if (!bins && !rules->options.min_micro_steps) steps = 0;
    stats->bins_lower_bound += bins;
    stats->micro_steps_lower_bound += steps;
    stats->time_lower_bound += ravel__time_bound(rules, pool, steps);
}

/* ---- jobs --------------------------------------------------------------------------------------------------- */

void ravel__job_bound(ravel__job *job) {
    job->bound = ravel__bins_bound(job->rules, job->pool);
    int64_t per_bin = job->bound > 0 ? job->pool->count / job->bound : 0;
    job->limits = ravel__search_limits_for(job->rules->options.effort, job->pool->count, per_bin);
}

ravel__job ravel__job_for(const ravel__rules *rules, const ravel_plan_input *input, const ravel__pool *pool,
                          ravel__arena *arena, ravel_error *err) {
    ravel__job job = {.rules = rules,
                      .pool = pool,
                      .input = input,
                      .arena = arena,
                      .err = err,
                      .method = rules->options.method,
                      .dp = rules->options.dp};
    ravel__job_bound(&job);
    return job;
}
