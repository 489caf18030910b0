/* Input and options, checked once; every error names its sample or option. The result is the rules of the plan; no
 * other file of the planner checks input again. */
#include "plan/hybrid/hybrid.h"

#include "base/assert.h"
#include "plan/tree/check.h"

#include <ravel/tree.h>

#include <string.h>

/* ---- one sample --------------------------------------------------------------------------------------------- */

int ravel__is_oversize(const ravel__rules *rules, const ravel_plan_input *input, int64_t row) {
    RAVEL_ASSERT(row >= 0 && row < input->count);
    int64_t prompt;
    return ravel__slot(rules, input, row, &prompt) > rules->cap;
}

/* ---- checks ------------------------------------------------------------------------------------------------- */

static ravel_status check_arrays(const ravel_plan_input *in, const ravel_plan_options *options, ravel_error *err) {
    if (in->count < 0 || in->count > RAVEL__MOST_SAMPLES)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the input has count %lld; it must be from 0 to 2^29",
                               (long long)in->count);
    if (!in->prompts != !in->responses)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the input has %s but no %s; give both or lengths",
                               in->prompts ? "prompts" : "responses", in->prompts ? "responses" : "prompts");
    if (in->count && !in->lengths && !in->prompts)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the input has neither lengths nor prompts and responses");
    if (in->count && options->layout == RAVEL_LAYOUT_PADDED_2D && !in->prompts)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "layout padded-2d needs prompts and responses, not lengths alone");
    if (in->count && options->group_rule != RAVEL_GROUPS_FREE && !in->groups)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "group-rule is not free, but the input has no groups");
    if (in->updates && options->samples_per_update)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the input says which update each sample belongs to; "
                               "samples-per-update must be 0 then");
    return RAVEL_OK;
}

static ravel_status bad_length(const ravel_plan_input *in, int64_t row, ravel_error *err) {
    if (in->prompts && (in->prompts[row] < 0 || in->prompts[row] > RAVEL__LONGEST))
        return ravel_error_set(err, RAVEL_E_DATA, "sample %lld has a prompt of %lld tokens; it must be from 0 to 2^31",
                               (long long)row, (long long)in->prompts[row]);
    if (in->prompts && (in->responses[row] < 0 || in->responses[row] > RAVEL__LONGEST))
        return ravel_error_set(err, RAVEL_E_DATA,
                               "sample %lld has a response of %lld tokens; it must be from 0 to 2^31", (long long)row,
                               (long long)in->responses[row]);
    int64_t both = in->prompts ? in->prompts[row] + in->responses[row] : 0;
    if (in->prompts && in->lengths && in->lengths[row] != both)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "sample %lld has length %lld, but its prompt and response have %lld tokens",
                               (long long)row, (long long)in->lengths[row], (long long)both);
    return ravel_error_set(err, RAVEL_E_DATA, "sample %lld has length %lld; it must be from 1 to 2^31 (%lld)",
                           (long long)row, (long long)ravel__length(in, row), (long long)RAVEL__LONGEST);
}

static ravel_status check_lengths(const ravel_plan_input *in, ravel_error *err) {
    if (!in->lengths && !in->prompts) return RAVEL_OK; /* nothing at all */
    for (int64_t i = 0; i < in->count; i++) {
        if (in->prompts) {
            int64_t p = in->prompts[i], r = in->responses[i];
            if (p < 0 || p > RAVEL__LONGEST || r < 0 || r > RAVEL__LONGEST) return bad_length(in, i, err);
            if (in->lengths && in->lengths[i] != p + r) return bad_length(in, i, err);
        }
        int64_t length = ravel__length(in, i);
        if (length < 1 || length > RAVEL__LONGEST) return bad_length(in, i, err);
    }
    return RAVEL_OK;
}

static ravel_status check_costs_and_homes(const ravel_plan_input *in, const ravel_plan_options *options,
                                          ravel_error *err) {
    for (int64_t i = 0; in->costs && i < in->count; i++)
        if (in->costs[i] < 0)
            return ravel_error_set(err, RAVEL_E_DATA, "sample %lld has cost %lld; it must not be negative",
                                   (long long)i, (long long)in->costs[i]);
    for (int64_t i = 0; in->homes && i < in->count; i++)
        if (in->homes[i] < -1 || in->homes[i] >= options->dp)
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "sample %lld has home rank %d; it must be from 0 to %d, or -1 for none",
                                   (long long)i, in->homes[i], options->dp - 1);
    return RAVEL_OK;
}

/* Ids are below `updates` where that was given, else below the number of samples: a stray id is an error and does not
 * create a million empty updates. */
static ravel_status check_updates(const ravel_plan_input *in, const ravel_plan_options *options, int32_t *updates,
                                  ravel_error *err) {
    *updates = options->updates;
    if (!in->updates) return RAVEL_OK;
    int64_t limit = options->updates > 1 ? options->updates : in->count;
    for (int64_t i = 0; i < in->count; i++) {
        if (in->updates[i] < 0 || in->updates[i] >= limit)
            return ravel_error_set(err, RAVEL_E_DATA, "sample %lld has update %d; it must be from 0 to %lld%s",
                                   (long long)i, in->updates[i], (long long)limit - 1,
                                   options->updates > 1 ? "" : " (set updates to allow more)");
        if (in->updates[i] >= *updates) *updates = in->updates[i] + 1;
    }
    return RAVEL_OK;
}

static ravel_status oversize(const ravel__rules *rules, const ravel_plan_input *in, int64_t row, ravel_error *err) {
    RAVEL_ASSERT(rules->options.oversize == RAVEL_OVERSIZE_ERROR && ravel__is_oversize(rules, in, row));
    const ravel_plan_options *o = &rules->options;
    int64_t prompt, slot = ravel__slot(rules, in, row, &prompt) * o->align, room = rules->cap * o->align;
    if (o->cp_pool)
        return ravel_error_set(
            err, RAVEL_E_OVERSIZE,
            "sample %lld has %lld tokens; the widest group, %d ranks of budget %lld, holds %lld: raise "
            "budget or cp-pool, or set oversize to skip",
            (long long)row, (long long)ravel__length(in, row), rules->widths.width[rules->widths.count - 1],
            (long long)o->budget, (long long)room);
    return ravel_error_set(err, RAVEL_E_OVERSIZE,
                           "sample %lld has %lld tokens, a slot of %lld; a bin holds %lld (cp %d * budget %lld, align "
                           "%d): raise budget or cp, or set oversize to skip or alone",
                           (long long)row, (long long)ravel__length(in, row), (long long)slot, (long long)room, o->cp,
                           (long long)o->budget, o->align);
}

/* Costs of samples are taken as they are, and the model says what a prefix costs: never more than the sample. */
static ravel_status check_tree_costs(const ravel_plan_options *o, const ravel_plan_input *in, ravel_error *err) {
    for (int64_t k = 0; in->costs && k < in->count; k++) {
        int64_t row = in->order ? in->order[k] : k, next = k + 1 < in->count ? in->shared[k + 1] : 0;
        ravel__u128 n = (ravel__u128)(next > in->shared[k] ? next : in->shared[k]);
        if (n * (ravel__u128)o->cost.linear + n * n * (ravel__u128)o->cost.quadratic > (ravel__u128)in->costs[row])
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "sample %lld has cost %lld, less than the %lld tokens that it shares: give costs in "
                                   "units of the cost model, or leave out shared",
                                   (long long)row, (long long)in->costs[row], (long long)n);
    }
    return RAVEL_OK;
}

/* Trees: an order and shared tokens that can be, with a layout and a cost that know them. Nothing shared is no
 * trees. */
static ravel_status check_trees(const ravel_plan_options *o, ravel_plan_input *in, int32_t *trees, ravel_error *err) {
    *trees = 0;
    if (in->order && !in->shared)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the input has a tree order but no shared tokens; give both");
    if (!in->count) in->shared = NULL;
    if (!in->shared) in->order = NULL;
    if (!in->shared) return RAVEL_OK;
    int64_t *lengths = NULL;
    if (!in->lengths) {
        lengths = ravel__alloc(o->allocator, (size_t)in->count * sizeof *lengths);
        if (!lengths) return ravel__no_memory(err, (size_t)in->count * sizeof *lengths, "checking trees");
        for (int64_t i = 0; i < in->count; i++) lengths[i] = ravel__length(in, i);
    }
    ravel_status status =
        ravel__tree_check(in->count, lengths ? lengths : in->lengths, in->order, in->shared, o->allocator, err);
    ravel__release(o->allocator, lengths, (size_t)in->count * sizeof *lengths);
    for (int64_t i = 0; !status && !*trees && i < in->count; i++) *trees = in->shared[i] > 0;
    if (status) return status;
    if (!*trees) {
        in->shared = NULL;
        in->order = NULL;
        return RAVEL_OK;
    }
    if (o->layout != RAVEL_LAYOUT_PACKED)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "samples share prefixes, which the padded layouts compute once per row; set layout to "
                               "packed, or leave out shared");
    status = check_tree_costs(o, in, err);
    if (status) return status;
    if (o->tree_method != RAVEL_TREE_RAVEL && o->group_rule == RAVEL_GROUPS_RANK && o->dp > 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "group-rule rank needs tree-method ravel; the others do not keep groups on a rank");
    if (o->oversize == RAVEL_OVERSIZE_ALONE)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "oversize alone is not for samples that share prefixes: set it to skip, or leave out shared");
    if (o->tree_method != RAVEL_TREE_RAVEL && o->cp_pool)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "cp-pool needs tree-method ravel; the others know no widths");
    return RAVEL_OK;
}

/* ---- sums --------------------------------------------------------------------------------------------------- */

typedef struct sums {
    ravel__u128 tokens, squares, costs;
    int64_t longest;      /* of the samples that are placed */
    int64_t widest[2];    /* prompt and response, units */
    uint64_t widest_cost; /* the caller's largest */
} sums;

static ravel_status add_up(ravel__rules *rules, const ravel_plan_input *in, sums *s, ravel_error *err) {
    int64_t align = rules->options.align, most = rules->cap * align;
    int plain = rules->options.layout == RAVEL_LAYOUT_PACKED, alone = rules->options.oversize == RAVEL_OVERSIZE_ALONE;
    memset(s, 0, sizeof *s);
    if (alone && rules->cap < 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a budget of %lld tokens holds no slot (align %lld)",
                               (long long)rules->options.budget, (long long)align);
    for (int64_t i = 0; i < in->count; i++) {
        int64_t length = ravel__length(in, i), prompt = 0;
        if (!alone && (plain ? length > most : ravel__is_oversize(rules, in, i))) {
            if (rules->options.oversize == RAVEL_OVERSIZE_ERROR) return oversize(rules, in, i, err);
            rules->skipped++;
            continue;
        }
        RAVEL_ASSERT(length >= 1 && length <= RAVEL__LONGEST);
        s->tokens += (ravel__u128)length;
        s->squares += (ravel__u128)((uint64_t)length * (uint64_t)length);
        if (length > s->longest) s->longest = length;
        if (in->costs) {
            s->costs += (ravel__u128)in->costs[i];
            if ((uint64_t)in->costs[i] > s->widest_cost) s->widest_cost = (uint64_t)in->costs[i];
        }
        if (plain) continue;
        RAVEL_ASSERT(in->prompts || rules->options.layout != RAVEL_LAYOUT_PADDED_2D);
        int64_t rest = ravel__slot_whole(rules, in, i, &prompt) - prompt;
        if (prompt > s->widest[0]) s->widest[0] = prompt;
        if (rest > s->widest[1]) s->widest[1] = rest;
    }
    rules->placed = (int32_t)in->count - rules->skipped;
    RAVEL_ASSERT(rules->placed >= 0 && rules->skipped >= 0 && (plain && !alone ? s->longest <= most : 1));
    return RAVEL_OK;
}

/* The most that all samples can cost together, before the shift. */
static ravel__u128 most_cost(const ravel__rules *rules, const ravel_plan_input *in, const sums *s) {
    RAVEL_ASSERT(rules->placed >= 0 && s->longest >= 0);
    const ravel_cost *cost = &rules->options.cost;
    if (rules->options.layout == RAVEL_LAYOUT_PACKED)
        return in->costs ? s->costs : s->tokens * (ravel__u128)cost->linear + s->squares * (ravel__u128)cost->quadratic;
    ravel__u128 rows = (ravel__u128)rules->placed;
    if (in->costs) return rows * s->widest_cost;
    int64_t widest = (s->widest[0] + s->widest[1]) * rules->options.align;
    ravel__u128 width = (ravel__u128)widest;
    return rows * (width * (ravel__u128)cost->linear + width * width * (ravel__u128)cost->quadratic);
}

static ravel_status too_many_bins(const ravel__rules *rules, int64_t least, ravel_error *err) {
    const ravel_plan_options *o = &rules->options;
    return ravel_error_set(
        err, RAVEL_E_OVERFLOW,
        "updates %d * micro-steps of at least %lld (min-micro-steps %lld, multiple %d) * dp %d could "
        "come to more than 2^30 bins; lower one of them",
        rules->updates, (long long)least, (long long)o->min_micro_steps, o->multiple, o->dp);
}

/* Bins are counted in 31 bits. A plan of more would be a mistake in min-micro-steps, multiple or dp. */
static ravel_status check_bins(const ravel__rules *rules, ravel__i128 *bins, ravel_error *err) {
    const ravel_plan_options *o = &rules->options;
    ravel__i128 least = o->min_micro_steps > 1 ? o->min_micro_steps : 1;
    least = (least + o->multiple - 1) / o->multiple * o->multiple;
    *bins = rules->placed + (ravel__i128)rules->updates * (least + o->multiple) * o->dp;
    if (*bins > RAVEL__MOST_BINS) return too_many_bins(rules, (int64_t)least, err);
    RAVEL_ASSERT(*bins >= rules->placed);
    if (o->group_rule == RAVEL_GROUPS_RANK) *bins = RAVEL__MOST_BINS; /* one rank may need many more than the others */
    return RAVEL_OK;
}

/* Divides all costs by a power of two so that their sum stays below 2^61; in hybrid plans below 2^41. */
static void choose_shift(ravel__rules *rules, const ravel_plan_input *in, const sums *s, ravel__i128 bins) {
    const ravel__u128 limit = (ravel__u128)1 << (rules->widths.count ? 41 : 61); /* room for prices per mille */
    ravel__u128 total = most_cost(rules, in, s), overhead = (ravel__u128)rules->options.cost.overhead;
    ravel__u128 sum = total + overhead * (ravel__u128)bins;
    while ((sum >> rules->shift) + (ravel__u128)(rules->placed + bins) >= limit) rules->shift++;
    rules->wide = rules->shift > 0;
    rules->overhead = (int64_t)((overhead + (((ravel__u128)1 << rules->shift) - 1)) >> rules->shift);
    RAVEL_ASSERT(rules->overhead >= 0 && (sum >> rules->shift) < limit);
}

/* Count-based bins without a budget: room for `count` samples as long as the longest. */
static int64_t budget_of_count(const ravel_plan_input *in, const ravel_plan_options *o) {
    const int64_t limit = INT64_C(1) << 40, sample = INT64_C(1) << 32;
    int64_t prompt = 0, rest = 1;
    for (int64_t i = 0; i < in->count; i++) {
        int64_t p = in->prompts ? in->prompts[i] : 0, r = in->prompts && in->responses ? in->responses[i] : 0;
        if (!in->prompts && in->lengths) r = in->lengths[i];
        if (p > prompt) prompt = p;
        if (r > rest) rest = r;
    }
    if (prompt > sample || rest > sample) return limit; /* refused below */
    int64_t slot = (prompt + o->align - 1) / o->align * o->align + (rest + o->align - 1) / o->align * o->align;
    RAVEL_ASSERT(slot > 0 && o->count >= 1 && o->cp >= 1);
    return slot > limit / o->count ? limit : (slot * o->count + o->cp - 1) / o->cp;
}

ravel_status ravel__rules_make(const ravel_plan_input *input, const ravel_plan_options *options, ravel__rules *rules,
                               ravel_plan_input *own, ravel_error *err) {
    memset(rules, 0, sizeof *rules);
    memset(own, 0, sizeof *own);
    ravel_status status = ravel__options_read(options, &rules->options, err);
    if (status) return status;
    if (!input || !input->size)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the plan's input has size 0; set it to sizeof(ravel_plan_input)");
    memcpy(own, input, input->size < sizeof *own ? input->size : sizeof *own);
    const ravel_plan_options *o = &rules->options;
    if (!o->budget) rules->options.budget = budget_of_count(own, o);
    rules->cap = o->cp * o->budget / o->align;
    if (o->cp_pool) { /* a sample fits if the widest group holds it */
        status = ravel__widths_make(o, &rules->widths, err);
        if (status) return status;
        rules->cap = rules->widths.room[rules->widths.count - 1] / o->align;
    }
    rules->most = o->max_samples ? o->max_samples : INT32_MAX;
    if (!(status = check_arrays(own, o, err)) && !(status = check_lengths(own, err)) &&
        !(status = check_costs_and_homes(own, o, err)))
        status = check_updates(own, o, &rules->updates, err);
    if (!status) status = check_trees(o, own, &rules->trees, err);
    if (status) return status;
    sums s;
    ravel__i128 bins;
    status = add_up(rules, own, &s, err);
    if (status) return status;
    if (o->samples_per_update) {
        int64_t cuts = (rules->placed + o->samples_per_update - 1) / o->samples_per_update;
        if (o->group_rule != RAVEL_GROUPS_FREE) cuts = 2 * cuts + 1; /* at most: whole groups may leave half empty */
        rules->updates = cuts > 1 ? (int32_t)cuts : 1;
    }
    status = check_bins(rules, &bins, err);
    if (status) return status;
    choose_shift(rules, own, &s, bins);
    rules->own_costs = own->costs != NULL;
    rules->by_time = o->objective == RAVEL_OBJECTIVE_TIME ||
                     (o->objective == RAVEL_OBJECTIVE_AUTO && (rules->overhead || rules->trees));
    RAVEL_ASSERT(rules->cap >= 0 && rules->most >= 1 && rules->updates >= 1 && o->dp >= 1 && o->multiple >= 1);
    return RAVEL_OK;
}
