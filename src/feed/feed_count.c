/* What a bin and an update hold. Owners count from the columns and the plan, every rank counts its own bins from the
 * metadata: both through the same view of a bin. */
#include "feed/feed.h"

#include "base/assert.h"

#include <ravel/tree_batch.h>

#include <string.h>

__extension__ typedef unsigned __int128 wide;

/* ---- tokens of the budget ------------------------------------------------------------------------------- */

static int64_t align_of(const ravel_plan_options *plan, int32_t width) {
    return plan->cp_pool ? ravel_plan_slot(plan, 1, width) : plan->align;
}

static int64_t up(int64_t tokens, int64_t align) {
    RAVEL_ASSERT(tokens >= 0 && align > 0);
    return (tokens + align - 1) / align * align;
}

ravel_plan_options ravel__tree_options(const ravel_feed *feed) {
    ravel_plan_options options = feed->plan;
    int32_t widths[RAVEL_FIT_WIDTHS], count = ravel_plan_widths(&options, widths);
    int32_t ranks = count ? widths[count - 1] : options.cp;
    if (ranks > 1) options.align = (int32_t)ravel__common_multiple(options.align, RAVEL_TREE_CHUNKS * ranks);
    return options;
}

static int64_t at(const ravel__bin_view *b, const int64_t *column, int64_t i) {
    return column[b->samples ? b->samples[i] : i];
}

/* The padded layouts: rows x longest, or rows x (longest prompt + longest response). */
static int64_t rectangle(const ravel__bin_view *b, int64_t align) {
    int64_t prompt = 0, rest = 0;
    for (int64_t i = 0; i < b->count; i++) {
        int64_t first = b->prompts ? at(b, b->prompts, i) : 0, after = at(b, b->lengths, i) - first;
        if (first > prompt) prompt = first;
        if (after > rest) rest = after;
    }
    return b->count * (up(prompt, align) + up(rest, align));
}

int64_t ravel__bin_tokens(const ravel_feed *feed, const ravel__bin_view *b) {
    int64_t sum = 0, align = align_of(&feed->plan, b->width);
    if (!b->count) return align_of(&feed->plan, 1); /* a filler */
    if (feed->plan.layout != RAVEL_LAYOUT_PACKED) return rectangle(b, align);
    for (int64_t i = 0; i < b->count; i++)
        sum += b->shared ? at(b, b->lengths, i) - b->shared[i] : up(at(b, b->lengths, i), align);
    if (!b->shared) return sum;
    ravel_plan_options options = ravel__tree_options(feed);
    return up(sum, align_of(&options, b->width)); /* the bin is one slot */
}

/* ---- updates -------------------------------------------------------------------------------------------- */

static void add_length(ravel_update_counts *counts, int64_t length, int64_t loss_tokens) {
    uint64_t square = (uint64_t)length * (uint64_t)length;
    RAVEL_ASSERT(length >= 0 && length <= INT64_C(1) << 31 && loss_tokens >= 0 && loss_tokens <= length);
    counts->samples++;
    counts->tokens += length;
    counts->squares_low += square;
    counts->squares_high += counts->squares_low < square;
    counts->loss_tokens += loss_tokens;
    counts->loss_samples += loss_tokens > 0;
    if (counts->shortest == 0 || length < counts->shortest) counts->shortest = length;
    if (length > counts->longest) counts->longest = length;
}

/* A bin, or a filler. Ranks of a group but its first have neither. */
static void add_bin(const ravel_feed *feed, const ravel__bin_view *b, ravel_update_counts *counts) {
    counts->bins += b->count > 0;
    counts->fillers += b->count == 0;
    counts->padded_tokens += ravel__bin_tokens(feed, b);
    for (int64_t i = 0; i < b->count; i++) {
        add_length(counts, at(b, b->lengths, i), at(b, b->loss, i));
        if (b->shared) counts->shared_tokens += b->shared[i];
    }
}

/* A sum of 2^-40ths in words of 32 bits, as ravel/weights.h has it. */
static void add_words(int64_t words[3], wide value) {
    for (int i = 0; i < 3; i++) words[i] += (int64_t)(uint32_t)(value >> (32 * i));
}

static void add_loss(const ravel__columns *c, int64_t s, ravel_counts *loss) {
    int64_t learnt = c->at[COLUMN_LOSS][s];
    wide weight = c->at[COLUMN_WEIGHT] ? (wide)(uint64_t)c->at[COLUMN_WEIGHT][s] : (wide)1 << 40;
    add_words(loss->weight, weight);
    if (learnt) add_words(loss->weight_with_loss, weight);
    add_words(loss->weighted_tokens, weight * (uint64_t)learnt);
}

void ravel__count_update(const ravel_feed *feed, const ravel__columns *c, const ravel_plan *plan, int64_t update,
                         int32_t dp, ravel_update_counts *counts, ravel_counts *loss) {
    memset(counts, 0, sizeof *counts);
    memset(loss, 0, sizeof *loss);
    counts->micro_steps = plan->update_offsets[update + 1] - plan->update_offsets[update];
    for (int64_t step = plan->update_offsets[update]; step < plan->update_offsets[update + 1]; step++)
        for (int32_t rank = dp < 0 ? 0 : dp; rank < (dp < 0 ? plan->dp : dp + 1); rank++) {
            ravel_group group = ravel_plan_group(plan, step, rank);
            const int64_t *shared = plan->shared && group.count ? plan->shared + (group.samples - plan->samples) : NULL;
            const ravel__bin_view bin = {c->at[COLUMN_LENGTH], c->at[COLUMN_LOSS], c->at[COLUMN_PROMPT], shared,
                                         group.samples,        group.count,        group.width};
            counts->capacity_tokens += feed->plan.cp * feed->plan.budget;
            if (group.first != rank) continue;
            add_bin(feed, &bin, counts);
            for (int64_t i = 0; i < group.count; i++) add_loss(c, group.samples[i], loss);
        }
    RAVEL_ASSERT(counts->loss_samples <= counts->samples && counts->loss_tokens <= counts->tokens);
    loss->samples = counts->samples;
    loss->samples_with_loss = counts->loss_samples;
    loss->tokens = counts->tokens;
    loss->loss_tokens = counts->loss_tokens;
}

void ravel__count_mine(const ravel_feed *feed, const ravel__prepared *slot, int64_t update,
                       ravel_update_counts *counts) {
    const ravel_meta *m = &slot->meta;
    RAVEL_ASSERT(update >= 0 && update < m->updates);
    memset(counts, 0, sizeof *counts);
    counts->micro_steps = slot->update_steps[update + 1] - slot->update_steps[update];
    for (int64_t s = slot->update_steps[update]; s < slot->update_steps[update + 1]; s++) {
        int64_t first = slot->micros[s].first;
        const ravel__bin_view bin = {.lengths = m->lengths + first,
                                     .loss = m->loss_tokens + first,
                                     .prompts = m->prompts ? m->prompts + first : NULL,
                                     .shared = m->shared ? m->shared + first : NULL,
                                     .count = m->bin_samples[s],
                                     .width = slot->micros[s].cp};
        counts->capacity_tokens += feed->plan.cp * feed->plan.budget;
        if (!m->group_first || m->group_first[s] == feed->place.at.dp) add_bin(feed, &bin, counts);
    }
    RAVEL_ASSERT(counts->samples <= m->samples && counts->tokens >= counts->samples);
}
