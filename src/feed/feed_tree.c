/* Finding what samples share before they are planned, although each rank has read its own samples only.
 *
 *     mine     a 64-bit hash per block of tokens of each sample, each hash over all blocks up to its own
 *     all      the hashes of all dp ranks: one all-gather
 *     order    samples with equal hashes begin alike: tree order and shared tokens, by whole blocks (ravel/tree.h)
 *
 * Blocks have as many tokens as keep the hashes of a batch at MOST_WORDS or less: 1 token in small batches, where shared lengths
 * are then exact, 64 at the most. Every field of kind TOKEN is hashed, as the hidden state may depend on each of them. That
 * hashes are equal is not taken for equal tokens: the rank that packs compares them (ravel__tree_compare). */
#include "feed/pack.h"

#include <ravel/tree.h>

#include "base/assert.h"
#include "base/hash.h"

#include <inttypes.h>
#include <string.h>

enum { MOST_WORDS = 1 << 17, MOST_BLOCK = 64 };

int64_t ravel__tree_block(const ravel__columns *c) {
    int64_t tokens = 0, block = 1;
    for (int64_t i = 0; i < c->count; i++) tokens += c->at[COLUMN_LENGTH][i];
    while (block < MOST_BLOCK && tokens / block > MOST_WORDS) block *= 2;
    return block;
}

/* Hashes of all samples. */
static int64_t words_of(const ravel__columns *c, int64_t block) {
    int64_t words = 0;
    for (int64_t i = 0; i < c->count; i++) words += c->at[COLUMN_LENGTH][i] / block;
    return words;
}

/* The hashes of a sample's blocks; returns where the next one's go. */
static uint64_t *hash_sample(const ravel_feed *feed, const ravel_ragged *r, int64_t i, int64_t block, uint64_t *out) {
    int64_t begin = r->offsets[i], length = r->offsets[i + 1] - begin;
    ravel__hash h = ravel__hash_begin(4);
    for (int64_t t = 0; t + block <= length; t += block) {
        for (int64_t f = 0; f < feed->fields.given; f++) {
            const ravel_field *field = &feed->fields.list[f];
            size_t each = (size_t)ravel__field_each(field);
            if (field->kind == RAVEL_FIELD_TOKEN)
                ravel__hash_bytes(&h, (const char *)r->fields[f].data + (size_t)(begin + t) * each,
                                  (size_t)block * each);
        }
        *out++ = ravel__hash_end(h);
    }
    return out;
}

void ravel__tree_hash(const ravel_feed *feed, const ravel_samples *samples, int64_t block, uint64_t *out) {
    for (int64_t i = 0; i < samples->ragged.count; i++) out = hash_sample(feed, &samples->ragged, i, block, out);
}

/* From the hashes of all samples: shared tokens and tree order into c->shared and c->order. */
ravel_status ravel__tree_find(const ravel_feed *feed, ravel__columns *c, const uint64_t *hashes, int64_t block,
                              ravel_error *err) {
    int64_t words = words_of(c, block);
    ravel_status status =
        ravel__buffer_reserve(&c->tree, feed->allocator, 2 * c->count + 1 + (c->count + words + 1) / 2, sizeof(int64_t),
                              "trees of samples", err);
    if (status) return status;
    int64_t *shared = c->tree.at, *offsets = shared + c->count;
    int32_t *order = (int32_t *)(void *)(offsets + c->count + 1), *ids = order + c->count;
    offsets[0] = 0;
    for (int64_t i = 0; i < c->count; i++) offsets[i + 1] = offsets[i] + c->at[COLUMN_LENGTH][i] / block;
    for (int64_t k = 0; k < words; k++) ids[k] = (int32_t)(hashes[k] & INT32_MAX);
    const ravel_tree_input input = {.size = sizeof input,
                                    .count = c->count,
                                    .offsets = offsets,
                                    .ids = ids,
                                    .token_keys = hashes,
                                    .allocator = feed->allocator};
    status = ravel_tree_order(&input, order, shared, err);
    for (int64_t i = 0; i < c->count && !status; i++) shared[i] *= block;
    c->shared = status ? NULL : shared;
    c->order = order;
    return status;
}

/* Hashes of each dp rank. */
static void count_words(const ravel__columns *c, int32_t dp, int64_t block, int64_t *counts) {
    int64_t i = 0;
    for (int32_t r = 0; r < dp; r++) {
        counts[r] = 0;
        for (int64_t k = 0; k < c->counts[r]; k++, i++) counts[r] += c->at[COLUMN_LENGTH][i] / block;
    }
}

ravel_status ravel__feed_tree(ravel_feed *feed, ravel_error *err) {
    ravel__columns *c = &feed->work.columns;
    int32_t dp = feed->plan.dp;
    int64_t block = ravel__tree_block(c);
    int together = feed->options.owners != RAVEL_OWNERS_ROOT_ONLY && dp > 1;
    int64_t words = words_of(c, block);
    ravel_status status = ravel__buffer_reserve(&feed->work.hashes, feed->allocator, dp + 2 * words + 1,
                                                sizeof(int64_t), "hashes of samples", err);
    if (status) { /* the others are on their way into the gather */
        if (together) ravel_comm_abort(feed->place.world, err);
        return status;
    }
    int64_t *counts = feed->work.hashes.at, *mine = counts + dp, *all = mine + words;
    count_words(c, dp, block, counts);
    ravel__tree_hash(feed, feed->work.mine, block, (uint64_t *)(void *)mine);
    if (together) status = ravel_gather(feed->place.dp, mine, counts, 1, all, err);
    if (together) feed->work.gathered_bytes += counts[feed->place.at.dp] * 8 * (dp - 1);
    return status ? status : ravel__tree_find(feed, c, (const uint64_t *)(void *)(together ? all : mine), block, err);
}

/* ---- packing -------------------------------------------------------------------------------------------- */

/* Whether every TOKEN field of sample i of the store begins as that of the sample before it. */
static int begins_alike(const ravel_ragged *store, int64_t i, int64_t shared) {
    for (int64_t f = 0; f < store->field_count; f++) {
        const ravel_field *field = &store->fields[f];
        size_t each = (size_t)ravel__field_each(field);
        if (field->kind != RAVEL_FIELD_TOKEN || !field->data) continue;
        if (memcmp((const char *)field->data + (size_t)store->offsets[i] * each,
                   (const char *)field->data + (size_t)store->offsets[i - 1] * each, (size_t)shared * each) != 0)
            return 0;
    }
    return 1;
}

ravel_status ravel__tree_compare(const ravel__prepared *slot, const ravel_ragged *arrived, ravel_error *err) {
    const ravel_meta *m = &slot->meta;
    for (int64_t i = 1; m->shared && i < m->samples; i++)
        if (m->shared[i] && !begins_alike(arrived, i, m->shared[i]))
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "rows %" PRId64 " and %" PRId64 " have equal hashes of their first %" PRId64
                                   " tokens, and other tokens: read this batch with share-prefix off",
                                   m->ids[i - 1], m->ids[i], m->shared[i]);
    return RAVEL_OK;
}
