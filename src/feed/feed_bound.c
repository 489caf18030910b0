/* The most memory that a feed can hold, from the sizes of its batches alone. A buffer grows to at most twice the
 * largest size that was needed, so the bound is twice the sum of all needs. */
#include "feed/pack.h"

/* The largest sizes of a batch on this rank. */
typedef struct worst {
    const ravel_feed *feed;
    int64_t steps, samples, tokens;  /* micro-steps; samples and tokens on all ranks */
    int64_t own_samples, own_tokens; /* in this rank's bins */
    int64_t positions;               /* of this cp rank, in all micro-steps, padding included */
    int64_t sequences;               /* in all micro-steps */
} worst;

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Positions of one rank in one micro-step, of whatever width its group is. */
static int64_t most_positions(const ravel_feed *feed) {
    int64_t most = 0, pool = feed->plan.cp_pool ? feed->plan.cp_pool : 1;
    for (int32_t width = 1; width <= pool; width++) {
        ravel_thd_options thd = ravel__group_thd(feed, width, 0);
        int64_t here = thd.cp * feed->plan.budget + thd.align + thd.total_multiple;
        if (here / thd.cp + 1 > most) most = here / thd.cp + 1;
    }
    return most;
}

static worst worst_of(const ravel_feed *feed, int64_t steps, int64_t samples, int64_t tokens) {
    const ravel_thd_options *thd = &feed->thd;
    int64_t extra = thd->fixed_tokens ? thd->max_samples + 2 : 3;
    int64_t widest = feed->plan.cp_pool ? feed->plan.cp_pool : feed->plan.cp;
    worst w = {.feed = feed, .steps = steps, .samples = samples, .tokens = tokens, .own_samples = samples};
    w.own_tokens = least(tokens, steps * widest * feed->plan.budget);
    w.positions = steps * most_positions(feed);
    if (feed->options.share_prefix != RAVEL_SHARE_OFF || feed->plan.oversize == RAVEL_OVERSIZE_ALONE) {
        /* bins hold whole samples, and the budget does not count them, or samples over the budget */
        w.own_tokens = tokens;
        w.positions = tokens + samples * thd->align + steps * (thd->align + thd->total_multiple);
    }
    w.sequences = samples + extra * steps;
    return w;
}

/* The arrays of the fields that `roles` get, each micro-batch's aligned. */
static int64_t field_arrays(const worst *w, int32_t roles) {
    const ravel__fields *fields = &w->feed->fields;
    int64_t bytes = 0;
    for (int64_t f = 0; f < fields->count; f++) {
        const ravel_field *field = &fields->list[f];
        if (!ravel__fields_wanted(fields, f, roles)) continue;
        bytes += ravel__field_each(field) * (field->kind == RAVEL_FIELD_SAMPLE ? w->sequences : w->positions);
        bytes += w->steps * RAVEL__PIECE_ALIGN;
    }
    return bytes;
}

/* The samples themselves, with the fields that this stage exchanges. */
static int64_t sample_bytes(const worst *w, int64_t samples, int64_t tokens) {
    const ravel__fields *fields = &w->feed->fields;
    int64_t bytes = 0;
    for (int64_t f = 0; f < fields->given; f++)
        if (ravel__fields_needed(fields, f, w->feed->place.have))
            bytes += ravel__field_bytes(&fields->list[f], samples, tokens) + RAVEL__ALIGN;
    return bytes + 8 * samples + RAVEL__ALIGN; /* and prompts */
}

/* One slot: message, index, arrays. */
static int64_t slot_bytes(const worst *w) {
    const ravel_feed *feed = w->feed;
    int64_t fields = feed->fields.count, vpp = feed->place.layout.vpp, updates = w->samples + 1;
    int64_t messages = feed->options.owners == RAVEL_OWNERS_ROOT_ONLY ? feed->plan.dp : 1;
    int64_t receivers = feed->plan.cp_pool ? messages : 1; /* a sample may go to every rank of the pool */
    int64_t words =
        messages * (RAVEL_META_HEAD + 1 + updates * (RAVEL_UPDATE_WORDS + RAVEL_COUNTS_WORDS) + 3 * w->steps) +
        6 * w->samples * receivers;
    int64_t index = 8 * (w->samples + w->steps) + 4 * w->own_samples + 8 * (updates + 1) +
                    w->steps * (int64_t)(sizeof(ravel__micro) + (size_t)vpp * sizeof(ravel_thd)) +
                    8 * (1 + vpp) * w->steps * fields + 7 * 16;
    int64_t own = 12 * w->sequences + w->positions * (4 + 4 * feed->options.segments + feed->options.padding) +
                  6 * w->steps * RAVEL__PIECE_ALIGN;
    return 8 * words + index + own + field_arrays(w, feed->place.have) + RAVEL__PIECE_ALIGN;
}

/* Planning: columns of integers, the planner's input, rows taken apart, a message being made. */
static int64_t planning_bytes(const worst *w) {
    int64_t rows = w->feed->place.layout.ranks + w->feed->options.samples, bins = w->steps * w->feed->plan.dp;
    int64_t columns = 8 * w->samples * (2 * (COLUMNS - 1) + COLUMNS), input = 8 * 9 * (w->samples + 1);
    int64_t tree = 12 * w->samples + 8, expanded = 8 * (bins + 1) + 21 * w->samples + 24;
    int64_t message =
        8 * ((w->samples + 1) * (RAVEL_UPDATE_WORDS + RAVEL_COUNTS_WORDS) + 3 * w->steps + 6 * w->samples + 1);
    return 8 * rows + 8 * (w->samples + 1) + columns + input + tree + expanded + message;
}

/* More on owners: samples that arrive, what is on the wire, weights, the root's two buffers. */
static int64_t moving_bytes(const worst *w) {
    const ravel_feed *feed = w->feed;
    int32_t roles = 0;
    if (!feed->place.owner) return 0;
    int64_t weights = 8 * w->samples + 4 * w->tokens;
    if (feed->options.owners == RAVEL_OWNERS_ROOT_ONLY) {
        for (int32_t p = 0; p < feed->place.layout.sizes[3]; p++) roles |= feed->place.stage_roles[p];
        return weights + 2 * field_arrays(w, roles) + 3 * RAVEL__PIECE_ALIGN +
               w->steps * (int64_t)(sizeof(ravel_thd) + (size_t)feed->fields.count * sizeof(void *)) + 32;
    }
    int64_t arrived = sample_bytes(w, w->own_samples, w->own_tokens) + 8 * (w->own_samples + 1) +
                      (int64_t)sizeof(ravel_field) * (feed->fields.given + 1) + 3 * RAVEL__ALIGN;
    int64_t receivers = feed->plan.cp_pool ? feed->plan.cp_pool : 1;
    int64_t wire = sample_bytes(w, w->samples * receivers, w->tokens * receivers) +
                   sample_bytes(w, w->own_samples, w->own_tokens) + 5 * 8 * feed->plan.dp + 4 * RAVEL__ALIGN;
    return weights + arrived + wire;
}

int64_t ravel_feed_bound(const ravel_feed *feed, int64_t micro_steps, int64_t samples, int64_t tokens) {
    enum { PILES = 12 };
    worst w = worst_of(feed, micro_steps, samples, tokens);
    int64_t slots = feed->queue.depth + 1;
    int64_t needs = slots * slot_bytes(&w) + planning_bytes(&w) + moving_bytes(&w);
    return (int64_t)sizeof *feed + 2 * needs + (PILES + 3 * slots) * 2 * RAVEL__ALIGN;
}
