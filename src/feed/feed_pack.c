/* Exchange, weights, packing: the steps of an owner after the agreement.
 *
 *     arrived    samples of this rank's bins, bin after bin          (exchange)
 *     weights    one float per token, from the update's counts          (ravel/weights.h)
 *     labels     the tokens again, shifted one position to the left
 *     packed     each micro-batch into its place in the slot, cut for this cp rank on the way
 *
 * A rank that is not an owner computes cu_seqlens, positions and the like from the metadata. */
#include "feed/pack.h"

#include "base/assert.h"
#include "batch/weights.h"

#include <string.h>

/* ---- room, before the agreement ------------------------------------------------------------------------- */

ravel_status ravel__feed_reserve(ravel_feed *feed, ravel_error *err) {
    if (!feed->work.exchange) return RAVEL_OK;
    RAVEL_ASSERT(feed->work.sizes.samples >= 0 && feed->work.sizes.tokens >= feed->work.sizes.samples);
    ravel_status status = ravel__buffer_reserve(&feed->work.result, feed->allocator, feed->work.sizes.result_bytes, 1,
                                                "the samples of an update", err);
    if (!status)
        status = ravel__buffer_reserve(&feed->work.scratch, feed->allocator, feed->work.sizes.scratch_bytes, 1,
                                       "an exchange of samples", err);
    return status ? status : ravel__weights_reserve(feed, feed->work.sizes.samples, feed->work.sizes.tokens, err);
}

ravel_status ravel__weights_reserve(ravel_feed *feed, int64_t samples, int64_t tokens, ravel_error *err) {
    RAVEL_ASSERT(samples >= 0 && tokens >= samples);
    if (!feed->place.weighs) return RAVEL_OK;
    return ravel__buffer_reserve(&feed->work.weight_values, feed->allocator, samples * 8 + tokens * 4, 1,
                                 "loss weights", err);
}

/* ---- exchange ------------------------------------------------------------------------------------------- */

ravel_status ravel__feed_exchange(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    if (!feed->work.exchange) return RAVEL_OK;
    RAVEL_ASSERT((int64_t)feed->work.result.room >= feed->work.sizes.result_bytes);
    RAVEL_ASSERT((int64_t)feed->work.scratch.room >= feed->work.sizes.scratch_bytes);
    slot->update.sent_bytes += feed->work.sizes.sent_bytes;
    slot->update.needed_bytes += feed->work.sizes.needed_bytes;
    slot->update.kept_bytes += feed->work.sizes.kept_bytes;
    return ravel_exchange_run(feed->work.exchange, feed->place.dp, &feed->work.sendable, feed->work.result.at,
                              feed->work.scratch.at, &feed->work.arrived, err);
}

/* ---- weights -------------------------------------------------------------------------------------------- */

void ravel__pack_input_init(ravel_feed *feed, const ravel_ragged *store, const int64_t *place_of,
                            ravel__pack_input *input) {
    const ravel__fields *fields = &feed->fields;
    input->store = store;
    for (int64_t f = 0; f < fields->count; f++) {
        input->fields[f] = fields->list[f];
        int64_t at = f >= fields->given ? -1 : place_of ? place_of[f] : f;
        RAVEL_ASSERT(at < store->field_count);
        input->fields[f].data = at < 0 ? NULL : store->fields[at].data;
    }
    input->weights = NULL;
    input->sample_weights = NULL;
    if (feed->place.weighs && feed->work.weight_values.at) {
        input->weights = (float *)(void *)((char *)feed->work.weight_values.at + 8 * store->count);
        if (fields->sample_weight >= 0) input->sample_weights = feed->work.weight_values.at;
    }
    if (fields->labels >= fields->given) input->fields[fields->labels].data = input->fields[fields->tokens].data;
    input->fields[fields->weights].data = input->weights;
}

void ravel__pack_input_weigh(const ravel_feed *feed, ravel__pack_input *input) {
    const ravel_field *field = &input->fields[feed->fields.sample_weight < 0 ? 0 : feed->fields.sample_weight];
    for (int64_t i = 0; input->sample_weights && i < input->store->count; i++)
        (void)ravel_dtype_load(field->dtype, (const char *)field->data + i * ravel_dtype_bytes(field->dtype),
                               &input->sample_weights[i]);
}

ravel_weights_options ravel__weights_of(const ravel_feed *feed, const ravel_meta *meta, int64_t update) {
    RAVEL_ASSERT(update >= 0 && update < meta->updates);
    ravel_weights_options options = feed->weights;
    options.micro_steps = meta->counts[update].micro_steps;
    return options;
}

/* ---- packing -------------------------------------------------------------------------------------------- */

/* Micro-batch s as a store of its own, its samples 0, 1, 2, ... */
static ravel_ragged micro_store(const ravel__pack_input *input, const ravel__prepared *slot, int64_t s,
                                int64_t field_count, ravel_field *shifted) {
    RAVEL_ASSERT(s >= 0 && s < slot->meta.micro_steps);
    const ravel__micro *micro = &slot->micros[s];
    ravel_ragged ragged = ravel__micro_ragged(micro, slot->meta.bin_samples[s], input->fields, field_count, shifted);
    if (input->store->prompts) ragged.prompts = input->store->prompts + micro->first;
    return ragged;
}

static ravel_status fill_weights(ravel_feed *feed, const ravel__prepared *slot, const ravel__pack_input *input,
                                 ravel_error *err) {
    ravel_field shifted[RAVEL__FIELDS_MAX + 2];
    const ravel_meta *meta = &slot->meta;
    for (int64_t u = 0; u < meta->updates; u++) {
        ravel_weights_options options = ravel__weights_of(feed, meta, u);
        for (int64_t s = slot->update_steps[u]; s < slot->update_steps[u + 1]; s++) {
            if (meta->bin_samples[s] == 0) continue;
            RAVEL_ASSERT(input->weights);
            ravel_ragged store = micro_store(input, slot, s, feed->fields.count, shifted);
            store = ravel__fields_to_weigh(&feed->fields, &store);
            const ravel_field *mask = feed->fields.mask >= 0 ? &shifted[feed->fields.mask] : NULL;
            const double *own = input->sample_weights ? input->sample_weights + slot->micros[s].first : NULL;
            ravel_status status = ravel__weights_fill(&store, NULL, mask, own,
                                                      meta->loss_tokens + slot->micros[s].first, &meta->loss_counts[u],
                                                      &options, RAVEL_F32, input->weights + slot->micros[s].token, err);
            if (status) return status;
        }
    }
    return RAVEL_OK;
}

static ravel_status pack_all(ravel_feed *feed, ravel__prepared *slot, const ravel__pack_input *input,
                             ravel_error *err) {
    ravel_field shifted[RAVEL__FIELDS_MAX + 2];
    ravel_status status = RAVEL_OK;
    for (int64_t s = 0; s < slot->meta.micro_steps && !status; s++) {
        ravel_ragged store = micro_store(input, slot, s, feed->fields.count, shifted);
        ravel_bin bin = {slot->iota, slot->meta.bin_samples[s]};
        ravel_thd_options options = ravel__micro_thd(feed, slot, s);
        status = ravel_thd_pack(&store, &bin, &options, &slot->micros[s].thd, err);
    }
    return status;
}

/* Arrays that follow from the metadata alone. */
static ravel_status pack_shape(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    ravel_field shifted[RAVEL__FIELDS_MAX + 2];
    ravel_status status = RAVEL_OK;
    for (int64_t s = 0; s < slot->meta.micro_steps && !status; s++) {
        ravel_ragged store = ravel__micro_ragged(&slot->micros[s], slot->meta.bin_samples[s], NULL, 0, shifted);
        ravel_bin bin = {slot->iota, slot->meta.bin_samples[s]};
        ravel_thd bare = slot->micros[s].thd;
        ravel_thd_options options = ravel__micro_thd(feed, slot, s);
        bare.fields = NULL;
        status = ravel_thd_pack(&store, &bin, &options, &bare, err);
    }
    return status;
}

ravel_status ravel__feed_pack(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    ravel__pack_input input;
    if (!feed->work.exchange) return pack_shape(feed, slot, err);
    ravel__pack_input_init(feed, &feed->work.arrived, feed->work.sendable_of, &input);
    RAVEL_ASSERT(feed->work.arrived.count == slot->meta.samples); /* what the metadata of this rank promised */
    ravel_status status = ravel__tree_compare(slot, &feed->work.arrived, err);
    if (!status && feed->place.weighs) {
        ravel__pack_input_weigh(feed, &input);
        status = fill_weights(feed, slot, &input, err);
    }
    return status ? status : pack_all(feed, slot, &input, err);
}
