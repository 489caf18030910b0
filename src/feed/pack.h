/* A store of samples with everything that is packed from it: its own fields, labels and weights. */
#ifndef RAVEL_FEED_PACK_H
#define RAVEL_FEED_PACK_H

#include "batch/slot.h"
#include "feed/feed.h"

typedef struct ravel__pack_input {
    const ravel_ragged *store;
    ravel_field fields[RAVEL__FIELDS_MAX + 2]; /* as in feed->fields; data NULL if it is not there */
    float *weights;                            /* [tokens] */
    double *sample_weights;                    /* [samples], or NULL */
} ravel__pack_input;

/* place_of: where field f is in the store, -1 where it is not; NULL: where it is in the feed. Weights live in
 * feed->work.weight_values, which must have room (ravel__weights_reserve). */
void ravel__pack_input_init(ravel_feed *feed, const ravel_ragged *store, const int64_t *place_of,
                            ravel__pack_input *input);
/* The samples' own weights as doubles. */
void ravel__pack_input_weigh(const ravel_feed *feed, ravel__pack_input *input);

ravel_weights_options ravel__weights_of(const ravel_feed *feed, const ravel_meta *meta, int64_t update);

/* All memory for the steps after the agreement. */
ravel_status ravel__feed_reserve(ravel_feed *feed, ravel_error *err);
ravel_status ravel__weights_reserve(ravel_feed *feed, int64_t samples, int64_t tokens, ravel_error *err);

/* The arrays of one micro-batch that a stage with these roles has, one after the other; a shared part is made of this
 * for every micro-step. */
void ravel__place_fields(const ravel__fields *fields, int32_t roles, ravel_thd *thd, ravel__cutter *cutter);
/* Their bytes without alignment. */
int64_t ravel__element_bytes(const ravel__fields *fields, int32_t roles, const ravel_thd *thd);

/* The root: room for one stage's shards, and sending them to all ranks. */
ravel_status ravel__root_reserve(ravel_feed *feed, ravel_error *err);
ravel_status ravel__root_send(ravel_feed *feed, ravel__prepared *slot, ravel_error *err);

#endif
