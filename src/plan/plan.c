/* A plan as one block of memory: a list of arrays, each of which gets its place after the struct. */
#include "plan/internal.h"

#include "base/assert.h"

#include <string.h>

/* ---- arrays -------------------------------------------------------------------------------------------------- */

enum { WIDE = 9, NARROW = 5, ARRAYS = WIDE + NARROW };

typedef struct array {
    void **at;
    int64_t count;
} array;

/* 64-bit arrays first, so that each is aligned. */
static void list_arrays(ravel__plan *p, const ravel__plan_size *s, array *list) {
    RAVEL_ASSERT(s->micro_steps >= 0 && s->dp >= 1 && s->updates >= 1 && s->samples + s->skipped <= s->count);
    int64_t bins = s->micro_steps * s->dp, steps = s->hybrid ? s->micro_steps + 1 : 0,
            groups = s->hybrid ? s->groups : 0;
    const array rows[ARRAYS] = {
        {(void **)&p->update_offsets, s->updates + 1},
        {(void **)&p->bin_offsets, bins + 1},
        {(void **)&p->bin_tokens, bins},
        {(void **)&p->bin_slots, bins},
        {(void **)&p->bin_costs, bins},
        {(void **)&p->ids, s->has_ids ? s->count : 0},
        {(void **)&p->group_offsets, steps},
        {(void **)&p->group_sample_offsets, s->hybrid ? groups + 1 : 0},
        {(void **)&p->shared, s->trees ? s->samples : 0},
        {(void **)&p->samples, s->samples},
        {(void **)&p->skipped, s->skipped},
        {(void **)&p->group_first, groups},
        {(void **)&p->group_width, groups},
        {(void **)&p->rank_group, s->hybrid ? bins : 0},
    };
    memcpy(list, rows, sizeof rows);
}

static size_t array_bytes(const array *a, int which) {
    RAVEL_ASSERT(which >= 0 && which < ARRAYS && a->count >= 0);
    size_t each = which < WIDE ? sizeof(int64_t) : sizeof(int32_t);
    return ravel__round_up((size_t)a->count * each, sizeof(int64_t));
}

static void set_api(ravel__plan *p, const ravel__plan_size *s) {
    p->api = (ravel_plan){.count = s->count,
                          .updates = s->updates,
                          .micro_steps = s->micro_steps,
                          .bins = s->micro_steps * s->dp,
                          .dp = (int32_t)s->dp,
                          .update_offsets = p->update_offsets,
                          .bin_offsets = p->bin_offsets,
                          .samples = p->samples,
                          .bin_tokens = p->bin_tokens,
                          .bin_slots = p->bin_slots,
                          .bin_costs = p->bin_costs,
                          .skipped = p->skipped};
    if (!s->has_ids) p->ids = NULL;
    p->api.shared = p->shared = s->trees ? p->shared : NULL;
    if (!s->hybrid) return;
    RAVEL_ASSERT(s->groups >= 0 && s->groups <= s->samples);
    p->hybrid = (ravel_hybrid){.pool = (int32_t)s->dp,
                               .groups = s->groups,
                               .group_offsets = p->group_offsets,
                               .group_first = p->group_first,
                               .group_width = p->group_width,
                               .group_sample_offsets = p->group_sample_offsets,
                               .rank_group = p->rank_group};
    p->api.hybrid = &p->hybrid;
}

ravel__plan *ravel__plan_alloc(const ravel__plan_size *size, const ravel_allocator *allocator, ravel_error *err) {
    ravel__plan none = {0};
    array list[ARRAYS];
    size_t head = ravel__round_up(sizeof(ravel__plan), sizeof(int64_t)), bytes = head;
    list_arrays(&none, size, list);
    for (int i = 0; i < ARRAYS; i++) bytes += array_bytes(&list[i], i);
    ravel__plan *plan = ravel__alloc(allocator, bytes);
    if (!plan) {
        ravel__no_memory(err, bytes, "a plan");
        return NULL;
    }
    memset(plan, 0, head);
    list_arrays(plan, size, list);
    char *at = (char *)plan + head;
    for (int i = 0; i < ARRAYS; i++) {
        *list[i].at = at;
        at += array_bytes(&list[i], i);
    }
    RAVEL_ASSERT(at == (char *)plan + bytes);
    plan->allocator = allocator;
    plan->bytes = bytes;
    set_api(plan, size);
    return plan;
}

/* ---- workspace ----------------------------------------------------------------------------------------------- */

/* Bytes per sample: pool, candidates, the lists and trades of one start, differencing; per bin: the plan's own five
 * words, and a struct ravel__bin in each of three lists. The index of open bins has a word per room (pack/fit.h). */
enum { PER_SAMPLE = 400, PER_BIN = 320, PER_RANK = 256, PER_PAIR_OF_RANKS = 8, PER_ROOM = 6, FIXED_BYTES = 65536 };

static double most_bins(double count, const ravel_plan_options *o) {
    double ranks = o->cp_pool > 0 ? o->cp_pool : o->dp, multiple = o->multiple, updates = o->updates;
    double least = o->min_micro_steps > 1 ? (double)o->min_micro_steps : 1;
    if (o->samples_per_update > 0) updates = 2 * count / (double)o->samples_per_update + 2;
    if (o->group_rule == RAVEL_GROUPS_RANK || o->cp_pool > 0) count *= ranks;
    return count + updates * (least + 6 * multiple) * ranks;
}

size_t ravel_plan_workspace(int64_t count, const ravel_plan_options *o) {
    double n = (double)count, ranks = o->cp_pool > 0 ? o->cp_pool : o->dp, room = (double)o->cp * (double)o->budget;
    double index = 2 * n > 65536 ? 2 * n : 65536;
    double bytes = FIXED_BYTES + n * PER_SAMPLE + most_bins(n, o) * PER_BIN + ranks * PER_RANK +
                   (ranks <= 128 ? ranks * ranks * PER_PAIR_OF_RANKS : 0) + (room < index ? room : index) * PER_ROOM;
    return bytes < (double)(SIZE_MAX / 2) ? (size_t)bytes : SIZE_MAX / 2;
}

void ravel_plan_free(ravel_plan *plan) {
    ravel__plan *own = (ravel__plan *)(void *)plan;
    if (own) ravel__release(own->allocator, own, own->bytes);
}

const int64_t *ravel_planner_ids(const ravel_plan *plan) {
    return ((const ravel__plan *)(const void *)plan)->ids;
}
