/* From columns to a plan (feed_rows.c has its input), and from the plan to the message that each dp rank gets. */
#include "feed/feed.h"

#include "base/assert.h"
#include "base/hash.h"
#include "base/log.h"

#include <ravel/tree_batch.h>

#include <inttypes.h>
#include <string.h>

__extension__ typedef unsigned __int128 wide;

/* ---- planning ------------------------------------------------------------------------------------------- */

/* The planner names the first sample that fits no bin by its number in the batch; say which row that is, and what
 * budget would hold them all. */
static void say_where(const ravel_feed *feed, const ravel__columns *c, const ravel__given *g,
                      const ravel_plan_input *input, ravel_error *err) {
    int64_t ranks = feed->plan.cp_pool ? feed->plan.cp_pool : feed->plan.cp, cap = ranks * feed->plan.budget;
    int64_t first = -1, longest = 0;
    if (!err || err->status != RAVEL_E_OVERSIZE) return;
    for (int64_t i = 0; i < input->count; i++) {
        if (first < 0 && ravel__rows_slot(feed, input->lengths[i]) > cap) first = i;
        if (input->lengths[i] > longest) longest = input->lengths[i];
    }
    if (first < 0) return; /* the widest group has fewer ranks than the pool: the planner's sentence must do */
    int64_t sample = ravel__rows_sample(g, first);
    ravel_error_prefix(err, "row %" PRId64 " (the longest of the batch has %" PRId64 " tokens)",
                       c->at[COLUMN_ID][sample], longest);
}

/* The most tokens of a bin's samples, each counted whole. */
static int64_t most_flat(const ravel_feed *feed, const ravel__columns *c, const ravel__given *g,
                         const ravel_plan *plan) {
    int64_t most = 0;
    RAVEL_ASSERT(plan);
    for (int64_t bin = 0; bin < plan->bins; bin++) {
        int64_t flat = 0;
        for (int64_t i = plan->bin_offsets[bin]; i < plan->bin_offsets[bin + 1]; i++)
            for (int64_t s = ravel__rows_sample(g, plan->samples[i]); s < ravel__rows_sample(g, plan->samples[i] + 1);
                 s++)
                flat += ravel_plan_slot(&feed->plan, c->at[COLUMN_LENGTH][s], 0);
        if (flat > most) most = flat;
    }
    return most;
}

enum { LOWER_BUDGETS = 6 }; /* that are tried to come within share-limit */

/* A plan whose bins are within share-limit: budgets are lowered until it is, as both kinds of tokens fall with them. A
 * lower budget must not leave out a sample that the given one holds. */
static ravel_status plan_within(const ravel_feed *feed, const ravel__columns *c, const ravel__given *g,
                                const ravel_plan_input *input, ravel_plan **made, ravel_error *err) {
    ravel_plan_options options = ravel__tree_options(feed);
    int64_t limit = feed->options.share_limit, flat = 0;
    ravel_status status = ravel_plan_create(input, &options, made, err);
    int64_t skipped = status ? 0 : (*made)->stats.skipped;
    for (int i = 0; !status && limit > 0 && (flat = most_flat(feed, c, g, *made)) > limit; i++) {
        RAVEL_ASSERT(flat > 0);
        ravel_plan_free(*made);
        *made = NULL;
        options.budget = (int64_t)((wide)options.budget * (wide)limit * 9 / ((wide)flat * 10));
        if (i < LOWER_BUDGETS && options.budget >= options.align &&
            ravel_plan_create(input, &options, made, NULL) == RAVEL_OK && (*made)->stats.skipped == skipped)
            continue;
        ravel_plan_free(*made);
        *made = NULL;
        status = ravel_error_set(err, RAVEL_E_OVERSIZE,
                                 "a bin has samples of %" PRId64 " tokens in all, over share-limit, %" PRId64
                                 ", and cannot be smaller: raise it, or set share-prefix to auto or off",
                                 flat, limit);
    }
    return status;
}

/* Of two plans the one that leaves out fewer samples, else the shared one if it is 2 % faster. */
static int is_better(const ravel_plan *shared, const ravel_plan *flat) {
    int64_t more = shared->stats.skipped - flat->stats.skipped;
    return more ? more < 0 : shared->stats.time < flat->stats.time / 100 * 98;
}

/* With auto, shared prefixes must be worth it, or the plan the only one that is possible. */
static ravel_status plan_shared(const ravel_feed *feed, const ravel__columns *c, ravel__given *g,
                                ravel_plan_input *input, ravel_plan **made, ravel_error *err) {
    ravel_plan *shared = NULL, *flat = NULL;
    int must = feed->options.share_prefix == RAVEL_SHARE_ON;
    ravel__rows_input(feed, c, 1, g, input);
    ravel_status status = plan_within(feed, c, g, input, &shared, err);
    if (status && (must || status != RAVEL_E_OVERSIZE)) return status;
    *made = shared;
    int some = shared && (shared->shared || ravel__rows_share(c, g));
    if (!status && (some ? must : g->rows < 0 && !shared->stats.skipped)) return RAVEL_OK;
    if (status) ravel_error_clear(err); /* without sharing it may fit */
    if (!some) {
        ravel_plan_free(shared); /* its rows are shorter than their slots */
        shared = NULL;
    }
    ravel__rows_input(feed, c, 0, g, input);
    status = ravel_plan_create(input, &feed->plan, &flat, shared ? NULL : err);
    int better = shared && (status || is_better(shared, flat));
    ravel_plan_free(better ? flat : shared);
    *made = better ? shared : flat;
    if (better) ravel__rows_input(feed, c, 1, g, input);
    return better ? RAVEL_OK : status;
}

ravel_status ravel__plan_columns(const ravel_feed *feed, const ravel__columns *c, ravel__plan_scratch *scratch,
                                 ravel_plan **made, ravel_plan *routed, ravel_error *err) {
    ravel_plan_input input;
    ravel__given *g = &scratch->given;
    ravel_status status = ravel__rows_room(feed, c->count, scratch, err);
    if (status) return status;
    if (c->count > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "a batch of %" PRId64 " samples; the limit is 2^31 - 1",
                               c->count);
    ravel__rows_input(feed, c, 0, g, &input);
    status = c->shared ? plan_shared(feed, c, g, &input, made, err) : ravel_plan_create(&input, &feed->plan, made, err);
    if (status) say_where(feed, c, g, &input, err);
    if (status) return status;
    RAVEL_ASSERT(*made);
    *routed = **made;
    return ravel__rows_unfold(feed, c, scratch, routed, err);
}

/* ---- the message ---------------------------------------------------------------------------------------- */

/* Room for the arrays of a message, in feed->work.scratch: counts of all updates, then those of the dp rank. */
typedef struct parts {
    ravel_update_counts *counts;
    ravel_counts *loss;
    int64_t *bin_samples, *group_first, *group_width, *lengths, *ids, *part, *learnt, *shared, *prompts;
} parts;

static ravel_status parts_room(ravel_feed *feed, const ravel_plan *plan, parts *p, ravel_error *err) {
    int64_t words = plan->updates * (RAVEL_UPDATE_WORDS + RAVEL_COUNTS_WORDS) + 3 * plan->micro_steps + 6 * plan->count;
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
    p->shared = at += plan->count;
    p->prompts = at + plan->count;
    RAVEL_ASSERT(p->prompts + plan->count == (int64_t *)feed->work.scratch.at + words);
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
            p->prompts[k] = c->at[COLUMN_PROMPT] ? c->at[COLUMN_PROMPT][s] : 0;
            p->shared[k] = plan->shared ? plan->shared[group.samples - plan->samples + i] : 0;
        }
    }
    RAVEL_ASSERT(k <= plan->count); /* the room of parts_room */
    return k;
}

static ravel_status encode(ravel_feed *feed, const parts *p, int64_t samples, ravel_words *words, ravel_error *err) {
    const ravel_plan *plan = &feed->work.routed;
    ravel_meta meta = {.size = sizeof meta,
                       .flags = (plan->hybrid ? RAVEL_META_HYBRID : 0) | (plan->shared ? RAVEL_META_SHARED : 0) |
                                (feed->fields.prompts ? RAVEL_META_PROMPTS : 0),
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
                       .shared = p->shared,
                       .prompts = p->prompts};
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
    if (plan->stats.skipped + plan->stats.over_budget == 0 || feed->place.at.dp != 0 || feed->place.at.tp != 0 ||
        feed->place.at.cp != 0 || feed->place.at.pp != 0)
        return;
    const ravel__columns *c = &feed->work.columns;
    const ravel__given *g = &feed->work.planning.given;
    if (plan->stats.over_budget)
        ravel__log(feed->logger, RAVEL_LOG_WARN,
                   "%" PRId64 " samples over the budget of %" PRId64 " tokens run in micro-batches of their own, the "
                   "longest with %" PRId64 " tokens",
                   plan->stats.over_budget, feed->plan.budget, plan->stats.longest);
    for (int64_t i = 0; i < plan->stats.skipped; i++) {
        int64_t first = ravel__rows_sample(g, plan->skipped[i]), tokens = 0;
        for (int64_t s = first; s < ravel__rows_sample(g, plan->skipped[i] + 1); s++) tokens += c->at[COLUMN_LENGTH][s];
        ravel__log(feed->logger, RAVEL_LOG_WARN, "row %" PRId64 " with %" PRId64 " tokens fits no bin and is skipped",
                   c->at[COLUMN_ID][first], tokens);
    }
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
    int cuts = !feed->work.routed.shared;
    if (!status && feed->plan.cp_pool && cuts)
        status = ravel_exchange_cut_groups(feed->work.exchange, &feed->plan, cp.kind,
                                           feed->work.columns.at[COLUMN_LENGTH], err);
    else if (!status && cp.ranks > 1 && cuts)
        status = ravel_exchange_cut(feed->work.exchange, &cp, feed->place.at.cp, feed->thd.align,
                                    feed->work.columns.at[COLUMN_LENGTH], err);
    if (!status) ravel_exchange_measure(feed->work.exchange, &feed->work.sendable, &feed->work.sizes);
    return status;
}
