/* From columns to a plan, and from the plan to the message that each dp rank gets.
 *
 * Rows that come already packed are several samples each. They are planned like any other samples, or, with method =
 * as-is, kept whole: the planner is given rows, and its bins are then taken apart:
 *
 *     samples   0 1 2 | 3 | 4 5          rows 0, 1, 2; a row is as long as its slots together
 *     plan      bin 0: row 0   bin 1: row 1   bin 2: row 2
 *     routed    bin 0: 0 1 2   bin 1: 3       bin 2: 4 5
 */
#include "feed/feed.h"

#include "base/assert.h"
#include "base/hash.h"
#include "base/log.h"

#include <inttypes.h>
#include <string.h>

__extension__ typedef unsigned __int128 wide;

/* ---- planning ------------------------------------------------------------------------------------------- */

/* Input of the planner, and the rows of as-is. Arrays of `count`, except `rows`. */
typedef struct given {
    int32_t *homes, *updates;
    int64_t *lengths, *groups; /* of rows, as-is */
    int64_t *row_starts;       /* [rows + 1] first sample of each, as-is */
    int64_t rows;
} given;

static ravel_status make_room(ravel__buffer *buffer, const ravel_allocator *allocator, int64_t count, given *g,
                              ravel_error *err) {
    ravel_status status =
        ravel__buffer_reserve(buffer, allocator, count + 1, 4 * sizeof(int64_t), "the planner's input", err);
    if (status) return status;
    char *at = buffer->at;
    g->lengths = (int64_t *)(void *)at;
    g->groups = g->lengths + count;
    g->row_starts = g->groups + count;
    g->homes = (int32_t *)(void *)(g->row_starts + count + 1);
    g->updates = g->homes + count;
    return RAVEL_OK;
}

static void set_homes(const ravel_feed *feed, const ravel__columns *c, int32_t *homes) {
    int64_t i = 0;
    for (int32_t r = 0; r < feed->plan.dp; r++)
        for (int64_t k = 0; k < c->counts[r]; k++) homes[i++] = r;
    RAVEL_ASSERT(i == c->count); /* every sample has one home */
}

static void set_updates(const ravel__columns *c, int32_t *updates) {
    RAVEL_ASSERT(c->count == 0 || c->at[COLUMN_UPDATE]);
    for (int64_t i = 0; i < c->count; i++) {
        int64_t u = c->at[COLUMN_UPDATE][i];
        updates[i] = u < 0 || u > INT32_MAX ? -1 : (int32_t)u;
    }
}

static int64_t align_of(const ravel_feed *feed, int32_t width) {
    return feed->plan.cp_pool ? ravel_plan_slot(&feed->plan, 1, width) : feed->plan.align;
}

static int64_t slot_of(const ravel_feed *feed, int64_t length) {
    RAVEL_ASSERT(length >= 0 && feed->plan.align > 0);
    int64_t align = feed->plan.align;
    return (length + align - 1) / align * align;
}

int64_t ravel__bin_tokens(const ravel_feed *feed, const int64_t *lengths, int64_t count, int32_t width) {
    RAVEL_ASSERT(count >= 0 && width > 0);
    int64_t sum = 0, longest = 0, align = align_of(feed, width);
    RAVEL_ASSERT(align > 0);
    for (int64_t i = 0; i < count; i++) {
        int64_t slot = (lengths[i] + align - 1) / align * align;
        sum += slot;
        if (slot > longest) longest = slot;
    }
    if (count == 0) return align; /* a filler */
    return feed->plan.layout == RAVEL_LAYOUT_PADDED ? count * longest : sum;
}

/* The same where samples share prefixes: the bin is one slot. */
int64_t ravel__tree_tokens(const ravel_feed *feed, const ravel_meta *meta, int64_t first, int64_t count) {
    int64_t sum = 0;
    for (int64_t i = first; i < first + count; i++) sum += meta->lengths[i] - meta->shared[i];
    return slot_of(feed, count ? sum : 1);
}

/* A sample whose part number is not 0 belongs to the row of the one before it; homes, updates and groups are those of
 * a row's first sample. */
static void fold_rows(const ravel_feed *feed, const ravel__columns *c, given *g) {
    g->rows = 0;
    for (int64_t i = 0; i < c->count; i++) {
        int64_t row = g->rows - 1;
        if (c->at[COLUMN_PART][i] == 0 || i == 0) {
            row = g->rows++;
            g->row_starts[row] = i;
            g->lengths[row] = 0;
            g->homes[row] = g->homes[i];
            g->updates[row] = g->updates[i];
            g->groups[row] = c->at[COLUMN_GROUP] ? c->at[COLUMN_GROUP][i] : 0;
        }
        g->lengths[row] += slot_of(feed, c->at[COLUMN_LENGTH][i]);
        RAVEL_ASSERT(row >= 0 && row < g->rows && g->row_starts[row] <= i);
    }
    g->row_starts[g->rows] = c->count;
    RAVEL_ASSERT(g->rows <= c->count && (c->count == 0 || g->row_starts[0] == 0));
}

/* The plan over samples from the plan over rows. */
static ravel_status unfold_rows(ravel__buffer *buffer, const ravel_allocator *allocator, const ravel__columns *c,
                                const given *g, ravel_plan *plan, ravel_error *err) {
    size_t offsets_bytes = (size_t)(plan->bins + 1) * sizeof(int64_t);
    ravel_status status = ravel__buffer_reserve(buffer, allocator, (int64_t)offsets_bytes + 4 * c->count, 1,
                                                "the samples of packed rows", err);
    if (status) return status;
    int64_t *offsets = buffer->at, at = 0;
    int32_t *samples = (int32_t *)(void *)(offsets + plan->bins + 1);
    for (int64_t bin = 0; bin < plan->bins; bin++) {
        offsets[bin] = at;
        for (int64_t i = plan->bin_offsets[bin]; i < plan->bin_offsets[bin + 1]; i++)
            for (int64_t s = g->row_starts[plan->samples[i]]; s < g->row_starts[plan->samples[i] + 1]; s++)
                samples[at++] = (int32_t)s;
    }
    offsets[plan->bins] = at;
    RAVEL_ASSERT(at <= c->count && (plan->stats.skipped || at == c->count)); /* no sample twice, none lost */
    plan->count = c->count;
    plan->bin_offsets = offsets;
    plan->samples = samples;
    return RAVEL_OK;
}

/* The planner names the first sample that fits no bin by its number in the batch; say which row that is, and what budget
 * would hold them all. */
static void say_where(const ravel_feed *feed, const ravel__columns *c, const given *g, const ravel_plan_input *input,
                      ravel_error *err) {
    int64_t ranks = feed->plan.cp_pool ? feed->plan.cp_pool : feed->plan.cp, cap = ranks * feed->plan.budget;
    int64_t first = -1, longest = 0;
    if (!err || err->status != RAVEL_E_OVERSIZE) return;
    for (int64_t i = 0; i < input->count; i++) {
        if (first < 0 && slot_of(feed, input->lengths[i]) > cap) first = i;
        if (input->lengths[i] > longest) longest = input->lengths[i];
    }
    if (first < 0) return; /* the widest group has fewer ranks than the pool: the planner's sentence must do */
    int64_t sample = feed->plan.method == RAVEL_METHOD_AS_IS ? g->row_starts[first] : first;
    ravel_error_prefix(err, "row %" PRId64 " (the longest of the batch has %" PRId64 " tokens)",
                       c->at[COLUMN_ID][sample], longest);
}

/* Whether every bin's samples, each counted whole, are within the limit. */
static ravel_status check_limit(const ravel_feed *feed, const ravel__columns *c, const ravel_plan *plan,
                                ravel_error *err) {
    for (int64_t bin = 0; bin < plan->bins && feed->options.share_limit; bin++) {
        int64_t flat = 0;
        for (int64_t i = plan->bin_offsets[bin]; i < plan->bin_offsets[bin + 1]; i++)
            flat += slot_of(feed, c->at[COLUMN_LENGTH][plan->samples[i]]);
        if (flat > feed->options.share_limit)
            return ravel_error_set(err, RAVEL_E_OVERSIZE,
                                   "a bin has samples of %" PRId64 " tokens in all, over share-limit, %" PRId64
                                   ": raise it, or set share-prefix to auto or off",
                                   flat, feed->options.share_limit);
    }
    return RAVEL_OK;
}

/* With auto, shared prefixes must be worth it: the plan must be 2 % faster. */
static ravel_status plan_shared(const ravel_feed *feed, const ravel__columns *c, ravel_plan_input *input,
                                ravel_plan **made, ravel_error *err) {
    ravel_plan *shared = NULL, *flat = NULL;
    int must = feed->options.share_prefix == RAVEL_SHARE_ON;
    input->shared = c->shared;
    input->order = c->order;
    ravel_status status = ravel_plan_create(input, &feed->plan, &shared, err);
    ravel_status fits = status ? status : check_limit(feed, c, shared, must ? err : NULL);
    input->shared = NULL;
    input->order = NULL;
    if (!status && must) status = fits;
    if (!status && !must && shared->shared) status = ravel_plan_create(input, &feed->plan, &flat, err);
    int better = flat && !fits && shared->stats.time < flat->stats.time / 100 * 98;
    *made = status ? NULL : flat && !better ? flat : shared;
    if (*made != shared) ravel_plan_free(shared);
    if (*made != flat) ravel_plan_free(flat);
    return status;
}

ravel_status ravel__plan_columns(const ravel_feed *feed, const ravel__columns *c, ravel__plan_scratch *scratch,
                                 ravel_plan **made, ravel_plan *routed, ravel_error *err) {
    given g = {0};
    int whole_rows = feed->plan.method == RAVEL_METHOD_AS_IS;
    ravel_status status = make_room(&scratch->input, feed->allocator, c->count, &g, err);
    if (status) return status;
    if (c->count > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "a batch of %" PRId64 " samples; 2^31 - 1 are the most",
                               c->count);
    set_homes(feed, c, g.homes);
    if (c->at[COLUMN_UPDATE]) set_updates(c, g.updates);
    ravel_plan_input input = {.size = sizeof input,
                              .count = c->count,
                              .lengths = c->at[COLUMN_LENGTH],
                              .groups = c->at[COLUMN_GROUP],
                              .homes = g.homes,
                              .updates = c->at[COLUMN_UPDATE] ? g.updates : NULL};
    if (feed->options.owners == RAVEL_OWNERS_ROOT_ONLY) input.homes = NULL;
    if (whole_rows) {
        fold_rows(feed, c, &g);
        input.count = g.rows;
        input.lengths = g.lengths;
        if (input.groups) input.groups = g.groups;
    }
    status = c->shared ? plan_shared(feed, c, &input, made, err) : ravel_plan_create(&input, &feed->plan, made, err);
    if (status) say_where(feed, c, &g, &input, err);
    if (status) return status;
    RAVEL_ASSERT(*made);
    *routed = **made;
    return whole_rows ? unfold_rows(&scratch->expanded, feed->allocator, c, &g, routed, err) : RAVEL_OK;
}

/* ---- counts --------------------------------------------------------------------------------------------- */

/* A sum of 2^-40ths in words of 32 bits, as ravel/weights.h has it. */
static void add_words(int64_t words[3], wide value) {
    for (int i = 0; i < 3; i++) words[i] += (int64_t)(uint32_t)(value >> (32 * i));
}

static void count_sample(const ravel__columns *c, int64_t s, ravel_update_counts *counts, wide *squares,
                         ravel_counts *loss) {
    RAVEL_ASSERT(s >= 0 && s < c->count);
    int64_t length = c->at[COLUMN_LENGTH][s], learnt = c->at[COLUMN_LOSS][s];
    RAVEL_ASSERT(learnt >= 0 && learnt < length);
    wide weight = c->at[COLUMN_WEIGHT] ? (wide)(uint64_t)c->at[COLUMN_WEIGHT][s] : (wide)1 << 40;
    counts->samples++;
    counts->tokens += length;
    *squares += (wide)(uint64_t)length * (uint64_t)length;
    counts->loss_tokens += learnt;
    counts->loss_samples += learnt > 0;
    if (counts->shortest == 0 || length < counts->shortest) counts->shortest = length;
    if (length > counts->longest) counts->longest = length;
    add_words(loss->weight, weight);
    if (learnt) add_words(loss->weight_with_loss, weight);
    add_words(loss->weighted_tokens, weight * (uint64_t)learnt);
}

void ravel__count_update(const ravel_feed *feed, const ravel__columns *c, const ravel_plan *plan, int64_t update,
                         int32_t dp, ravel_update_counts *counts, ravel_counts *loss) {
    int64_t begin = plan->update_offsets[update] * plan->dp, end = plan->update_offsets[update + 1] * plan->dp;
    wide squares = 0;
    memset(counts, 0, sizeof *counts);
    memset(loss, 0, sizeof *loss);
    counts->micro_steps = plan->update_offsets[update + 1] - plan->update_offsets[update];
    for (int64_t bin = begin; bin < end; bin++) {
        if (dp >= 0 && bin % plan->dp != dp) continue;
        int64_t first = plan->bin_offsets[bin], last = plan->bin_offsets[bin + 1];
        int filler = plan->hybrid ? plan->hybrid->rank_group[bin] < 0 : last == first;
        for (int64_t i = first; i < last; i++) {
            count_sample(c, plan->samples[i], counts, &squares, loss);
            if (plan->shared) counts->shared_tokens += plan->shared[i];
        }
        counts->padded_tokens += filler ? align_of(feed, 1) : plan->bin_slots[bin];
        counts->bins += last > first;
        counts->fillers += filler;
        counts->capacity_tokens += feed->plan.cp * feed->plan.budget;
    }
    RAVEL_ASSERT(counts->loss_samples <= counts->samples && counts->loss_tokens <= counts->tokens);
    RAVEL_ASSERT(counts->shortest <= counts->longest && counts->bins <= end - begin);
    counts->squares_low = (uint64_t)squares;
    counts->squares_high = (int64_t)(squares >> 64);
    loss->samples = counts->samples;
    loss->samples_with_loss = counts->loss_samples;
    loss->tokens = counts->tokens;
    loss->loss_tokens = counts->loss_tokens;
}

/* ---- the message ---------------------------------------------------------------------------------------- */

/* Room for the arrays of a message, in feed->work.scratch: counts of all updates, then those of the dp rank. */
typedef struct parts {
    ravel_update_counts *counts;
    ravel_counts *loss;
    int64_t *bin_samples, *group_first, *group_width, *lengths, *ids, *part, *learnt, *shared;
} parts;

static ravel_status parts_room(ravel_feed *feed, const ravel_plan *plan, parts *p, ravel_error *err) {
    int64_t words = plan->updates * (RAVEL_UPDATE_WORDS + RAVEL_COUNTS_WORDS) + 3 * plan->micro_steps + 5 * plan->count;
    ravel_status status = ravel__buffer_reserve(&feed->work.scratch, feed->allocator, words + 1, sizeof(int64_t),
                                                "a metadata message", err);
    if (status) return status;
    int64_t *at = feed->work.scratch.at;
    p->counts = (ravel_update_counts *)(void *)at;
    p->loss = (ravel_counts *)(void *)(at += plan->updates * RAVEL_UPDATE_WORDS);
    p->bin_samples = at += plan->updates * RAVEL_COUNTS_WORDS;
    p->group_first = at += plan->micro_steps;
    p->group_width = at += plan->micro_steps;
    p->lengths = at += plan->micro_steps;
    p->ids = at += plan->count;
    p->part = at += plan->count;
    p->learnt = at += plan->count;
    p->shared = at + plan->count;
    RAVEL_ASSERT(p->shared + plan->count == (int64_t *)feed->work.scratch.at + words);
    return RAVEL_OK;
}

/* The samples of one dp rank in bin order; returns how many. */
static int64_t list_samples(const ravel__columns *c, const ravel_plan *plan, int32_t dp, parts *p) {
    int64_t k = 0;
    for (int64_t step = 0; step < plan->micro_steps; step++) {
        ravel_group group = ravel_plan_group(plan, step, dp);
        p->bin_samples[step] = group.count;
        p->group_first[step] = group.first;
        p->group_width[step] = group.width;
        for (int64_t i = 0; i < group.count; i++, k++) {
            int32_t s = group.samples[i];
            p->lengths[k] = c->at[COLUMN_LENGTH][s];
            p->ids[k] = c->at[COLUMN_ID][s];
            p->part[k] = c->at[COLUMN_PART][s];
            p->learnt[k] = c->at[COLUMN_LOSS][s];
            p->shared[k] = plan->shared ? plan->shared[group.samples - plan->samples + i] : 0;
        }
    }
    RAVEL_ASSERT(k <= plan->count); /* the room of parts_room */
    return k;
}

static ravel_status encode(ravel_feed *feed, const parts *p, int64_t samples, ravel_words *words, ravel_error *err) {
    const ravel_plan *plan = &feed->work.routed;
    ravel_meta meta = {.size = sizeof meta,
                       .flags = plan->hybrid   ? RAVEL_META_HYBRID
                                : plan->shared ? RAVEL_META_SHARED
                                               : 0,
                       .updates = plan->updates,
                       .micro_steps = plan->micro_steps,
                       .samples = samples,
                       .epoch = feed->work.next.epoch,
                       .position = feed->work.next.position,
                       .batch = feed->work.batch,
                       .counts = p->counts,
                       .loss_counts = p->loss,
                       .bin_samples = p->bin_samples,
                       .group_first = p->group_first,
                       .group_width = p->group_width,
                       .lengths = p->lengths,
                       .ids = p->ids,
                       .parts = p->part,
                       .loss_tokens = p->learnt,
                       .shared = p->shared};
    int64_t before = words->count;
    ravel_status status = ravel_words_resize(words, before + ravel_meta_words(&meta), err);
    return status ? status : ravel_meta_encode(&meta, words->at + before, words->count - before, err);
}

/* The root makes one for every dp rank, one after the other; any other owner only its own. */
static ravel_status make_messages(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    RAVEL_ASSERT(feed->place.at.dp < feed->work.routed.dp);
    const ravel_plan *plan = &feed->work.routed;
    int all = feed->options.owners == RAVEL_OWNERS_ROOT_ONLY;
    parts p;
    ravel_status status = parts_room(feed, plan, &p, err);
    if (status) return status;
    for (int64_t u = 0; u < plan->updates; u++)
        ravel__count_update(feed, &feed->work.columns, plan, u, -1, &p.counts[u], &p.loss[u]);
    if (plan->updates) p.counts[0].skipped = plan->stats.skipped;
    slot->words.count = 0;
    for (int32_t dp = 0; dp < plan->dp && !status; dp++)
        if (all || dp == feed->place.at.dp)
            status = encode(feed, &p, list_samples(&feed->work.columns, plan, dp, &p), &slot->words, err);
    return status;
}

/* ---- the step ------------------------------------------------------------------------------------------- */

static void tell_skipped(const ravel_feed *feed, const ravel_plan *plan) {
    if (plan->stats.skipped == 0 || feed->place.at.dp != 0 || feed->place.at.tp != 0 || feed->place.at.cp != 0 ||
        feed->place.at.pp != 0)
        return;
    int whole_rows = feed->plan.method == RAVEL_METHOD_AS_IS;
    for (int64_t i = 0; i < plan->stats.skipped && !whole_rows; i++) {
        int32_t s = plan->skipped[i];
        ravel__log(feed->logger, RAVEL_LOG_WARN, "row %" PRId64 " with %" PRId64 " tokens fits no bin and is skipped",
                   feed->work.columns.at[COLUMN_ID][s], feed->work.columns.at[COLUMN_LENGTH][s]);
    }
    if (whole_rows)
        ravel__log(feed->logger, RAVEL_LOG_WARN, "%" PRId64 " packed rows fit no bin and are skipped",
                   plan->stats.skipped);
}

/* Digest of everything that must be equal on all planners: the plan, and every integer of every sample. */
static uint64_t digest_of(const ravel_feed *feed) {
    const ravel__columns *c = &feed->work.columns;
    ravel__hash h = ravel__hash_begin(2);
    ravel__hash_u64(&h, feed->work.plan_made->digest);
    ravel__hash_i64s(&h, c->columns.at, (size_t)(c->count * c->column_count));
    ravel__hash_u64(&h, (uint64_t)feed->work.next.epoch);
    ravel__hash_u64(&h, (uint64_t)feed->work.next.position);
    ravel__hash_u64(&h, (uint64_t)feed->work.batch);
    return ravel__hash_end(h);
}

/* The fields that this stage's arrays are made of, of the samples that this rank holds. */
static void choose_fields(ravel_feed *feed) {
    RAVEL_ASSERT(feed->work.mine->ragged.field_count >= feed->fields.given || feed->work.mine->ragged.count == 0);
    const ravel_ragged *mine = &feed->work.mine->ragged;
    int64_t count = 0;
    for (int64_t f = 0; f < feed->fields.given; f++) {
        int needed = ravel__fields_needed(&feed->fields, f, feed->place.have);
        feed->work.sendable_of[f] = needed ? count : -1;
        if (!needed) continue;
        feed->work.sendable_fields[count] = feed->fields.list[f];
        feed->work.sendable_fields[count++].data = mine->fields[f].data;
    }
    feed->work.sendable = *mine;
    feed->work.sendable.prompts = !feed->work.has_prompts ? NULL
                                  : mine->prompts         ? mine->prompts
                                                          : feed->submission.no_offsets;
    feed->work.sendable.fields = feed->work.sendable_fields;
    feed->work.sendable.field_count = count;
    RAVEL_ASSERT(count <= RAVEL__FIELDS_MAX);
}

ravel_status ravel__feed_plan(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    RAVEL_ASSERT(feed->place.owner && !slot->planned && !feed->work.plan_made && !feed->work.exchange);
    ravel_status status = ravel__plan_columns(feed, &feed->work.columns, &feed->work.planning, &feed->work.plan_made,
                                              &feed->work.routed, err);
    if (!status) status = make_messages(feed, slot, err);
    if (status) return status;
    RAVEL_ASSERT(feed->work.plan_made && feed->work.routed.count == feed->work.columns.count);
    slot->stats = feed->work.plan_made->stats;
    slot->planned = 1;
    feed->work.digest = digest_of(feed);
    tell_skipped(feed, feed->work.plan_made);
    if (feed->options.owners == RAVEL_OWNERS_ROOT_ONLY || feed->place.have == 0) return RAVEL_OK;
    choose_fields(feed);
    status = ravel_exchange_create(&feed->work.routed, feed->work.columns.counts, feed->work.columns.at[COLUMN_LENGTH],
                                   feed->place.at.dp, feed->allocator, &feed->work.exchange, err);
    const ravel_cp cp = {feed->thd.cp, feed->thd.cp_kind};
    if (!status && feed->plan.cp_pool)
        status = ravel_exchange_cut_groups(feed->work.exchange, &feed->plan, cp.kind,
                                           feed->work.columns.at[COLUMN_LENGTH], err);
    else if (!status && cp.ranks > 1)
        status = ravel_exchange_cut(feed->work.exchange, &cp, feed->place.at.cp, feed->thd.align,
                                    feed->work.columns.at[COLUMN_LENGTH], err);
    if (!status) ravel_exchange_measure(feed->work.exchange, &feed->work.sendable, &feed->work.sizes);
    return status;
}
