/* Completing bins one after another: a bin takes the longest remaining sample, then what fills it best. Several second
 * samples are tried, each followed by the longest that still fit, and the fullest is kept:
 *
 *     cap 10, remaining 4 4 4 3 3 3 3 3     second 4: [4 4 . .]     second 3: [4 3 3]     the latter
 *
 * This finds combinations that first-fit and best-fit miss: lengths that fill a bin together, such as two of .3 beside
 * one of .4. The number of seconds tried per bin and the total work are bounded; when the work is used up, the rest is
 * first-fit. */
#include "plan/pack/remaining.h"

#include "base/assert.h"

#include <string.h>

typedef struct completion {
    const ravel__job *job;
    ravel__remaining left;
    int32_t seconds;      /* tried in a bin, at most */
    int64_t lookups_left; /* samples that may still be looked up */
    int32_t *pick, *best;
    int32_t picks, bests;
} completion;

/* Fills up the room with `second` and the longest that fit after it; returns the room that is left. */
static int64_t fill_up(completion *c, int64_t room, int32_t second) {
    c->picks = 0;
    for (int32_t i = second; i < c->left.count && c->picks + 1 < c->job->rules->most;) {
        c->pick[c->picks++] = i;
        room -= c->left.slot[i];
        RAVEL_ASSERT(room >= 0);
        i = ravel__remaining_within(&c->left, room, i + 1);
    }
    c->lookups_left -= c->picks + 1;
    return room;
}

static void keep_picks(completion *c) {
    int32_t *swap = c->best;
    c->best = c->pick;
    c->bests = c->picks;
    c->pick = swap;
}

/* The seconds are spaced so that those of at least a third of the room are all passed; each is shorter than the one
 * before. */
static void find_best(completion *c, int32_t first) {
    int64_t room = c->job->rules->cap - c->left.slot[first], least = INT64_MAX;
    RAVEL_ASSERT(room >= 0 && c->seconds > 0);
    int32_t second = ravel__remaining_within(&c->left, room, first + 1);
    int32_t stride = (ravel__remaining_within(&c->left, room / 3, second) - second) / c->seconds;
    c->bests = 0;
    for (int32_t t = 0; t < c->seconds && second < c->left.count; t++) {
        int64_t rest = fill_up(c, room, second);
        if (rest < least) {
            least = rest;
            keep_picks(c);
        }
        if (least == 0 || c->lookups_left < 0) return;
        int32_t shorter = ravel__remaining_within(&c->left, (int64_t)c->left.slot[second] - 1, second + 1);
        second = second + stride < c->left.count ? ravel__remaining_from(&c->left, second + stride) : c->left.count;
        if (second < shorter) second = shorter;
    }
}

static int32_t complete_all(completion *c, int32_t *bin) {
    int32_t made = 0, first = 0;
    while ((first = ravel__remaining_from(&c->left, first)) < c->left.count) {
        ravel__remaining_take(&c->left, first);
        find_best(c, first);
        bin[first] = made;
        for (int32_t i = 0; i < c->bests; i++) {
            bin[c->best[i]] = made;
            ravel__remaining_take(&c->left, c->best[i]);
        }
        made++;
        RAVEL_ASSERT(made <= c->left.count && c->bests < c->job->rules->most);
    }
    return made;
}

ravel_status ravel__pack_complete(const ravel__job *job, int32_t seconds, int32_t lookups, int32_t *bin,
                                  int32_t *bins) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    size_t n = (size_t)job->pool->count;
    completion c = {.job = job, .seconds = seconds, .lookups_left = (int64_t)lookups * job->pool->count};
    c.pick = ravel__arena_push(job->arena, n, sizeof *c.pick);
    c.best = ravel__arena_push(job->arena, n, sizeof *c.best);
    int ready = ravel__remaining_make(job, &c.left) && c.pick && c.best;
    if (ready) *bins = complete_all(&c, bin);
    ravel__arena_rewind(job->arena, mark);
    return ready ? RAVEL_OK : ravel__no_memory(job->err, n * 12, "completing bins");
}
