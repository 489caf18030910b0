/* train/learn/parts.h: one rank's parts of a model on a mesh, and the two ways to run an update's micro-batches through them.
 *
 * A rank has `vpp` parts (chunks of its pipeline stage), each a train_model with the communicators of its tensor-parallel and
 * context-parallel ranks. Micro-batches come from the feed; hidden rows go from part to part over the pipeline's ranks, in
 * the order of the schedule (pipeline.h):
 *
 *     train_parts_learn    forward and backward of all micro-batches of the update; gradients add up
 *     train_parts_score    forward only; log-probs arrive where the last part is
 *
 * With one part and one rank this is: for each micro-batch, forward and backward.
 *
 * Hybrid context parallelism (`plan` with cp_pool): the data-parallel ranks are the pool, and every micro-batch has a group of
 * its own width. The communicators of all groups that a plan can have are made once, at creation.
 *
 * Weights, targets, old log-probs and all results stand at the token that predicts, as the feed packs them. */
#ifndef TRAIN_PARTS_H
#define TRAIN_PARTS_H

#include <ravel/feed.h>
#include <ravel/metrics.h>

#include "train/learn/choice.h"
#include "train/learn/layout.h"
#include "train/model/model.h"

typedef struct train_parts train_parts;

typedef struct train_parts_options {
    const train_model_choice *model; /* must outlive the parts */
    int64_t budget;                  /* tokens per micro-batch and context-parallel rank */
    const ravel_plan_options
        *plan;           /* of the feed, for the widths of groups (cp_pool); NULL: every sample has cp ranks */
    int32_t inference;   /* no gradients: only train_parts_score */
    int32_t pairs;       /* samples may be two sequences (train_batch.splits) */
    int64_t flat_tokens; /* samples may share prefixes (train_model_options.flat_tokens); 0: they don't */
    int32_t shard;       /* weights and gradients are sharded over dp x cp ranks (train_model_options.shard) */
    const ravel_allocator *allocator;
} train_parts_options;

/* Collective over the mesh, which must outlive the parts. Weights are loaded or initialised. */
ravel_status train_parts_create(const train_parts_options *options, const ravel_shape *shape, ravel_mesh *mesh,
                                train_parts **parts, ravel_error *err);
void train_parts_free(train_parts *parts);
/* The most context-parallel ranks of a sample: the mesh's, or the widest group of the plan. */
int32_t train_parts_widest(const ravel_plan_options *plan, const ravel_mesh_layout *layout);
/* Bytes of one rank of pipeline stage `stage`; a pure function. */
ravel_status train_parts_memory(const train_parts_options *options, const ravel_shape *shape,
                                const ravel_mesh_layout *layout, int32_t stage, train_memory *memory, ravel_error *err);

int32_t train_parts_count(const train_parts *parts);
train_model *train_parts_model(const train_parts *parts, int32_t chunk);
const train_kernels *train_parts_kernels(const train_parts *parts);
train_device *train_parts_device(const train_parts *parts);
/* The ranks that share the samples of a micro-batch of `cp` ranks, for arrays of the host; NULL: this one alone. */
ravel_comm *train_parts_ring(const train_parts *parts, int32_t cp);
/* Ends NCCL's communicators, before anything that their operations use is released. `why`: this rank failed; or NULL. */
void train_parts_disconnect(train_parts *parts, const ravel_error *why);
/* The caller's functions for each micro-batch; either may be NULL. Called once per part, in the order of the schedule;
 * a micro-batch's arrays that a part does not get are NULL. */
typedef struct train_work {
    /* Fills the loss of a micro-batch, and may change its batch; without it the loss is the weighted sum. `loss` is NULL
     * where it is scored. */
    ravel_status (*begin)(void *user, const ravel_micro_batch *micro, train_batch *batch, train_loss *loss,
                          ravel_error *err);
    /* score, on the last part: log-probs of a micro-batch, [local tokens]. */
    ravel_status (*take)(void *user, const ravel_micro_batch *micro, const train_batch *batch, const float *logprob,
                         ravel_error *err);
    void *user;
    double temperature; /* of the log-probs; 0 means 1 */
} train_work;

/* Time of the schedule on this rank, in seconds (over NCCL: of its GPU, by events; else of the host, which waits), and the idle share that the planner predicts (ravel_pipeline_bubble). */
typedef struct train_parts_time {
    double seconds;           /* from its start until all stages were done */
    double busy;              /* of these in forward and backward calls; the rest are waits for other stages, */
    double forward, backward; /* busy, without waits for tensor-parallel (tp) and context-parallel (cp) ranks: */
    double tp, cp;            /* communication that no computation hides */
    double predicted;         /* idle share */
    double
        exposed; /* seconds that it waited for sharded weights and gradients (--shard params); in forward and backward */
} train_parts_time;

/* Collective over the mesh: the current update of the feed. `metrics` may be NULL; it gets the phases. A failure on one rank
 * ends the call on all. */
ravel_status train_parts_learn(train_parts *parts, const ravel_feed *feed, int64_t micros, const train_work *work,
                               ravel_metrics *metrics, train_parts_time *time, ravel_error *err);
/* Seconds of each of its micro-batches on this rank, forward and backward, without what it waited for others: [*count], until
 * the next call. On a GPU they are those of putting work into streams. */
const double *train_parts_micro_seconds(const train_parts *parts, int64_t *count);
ravel_status train_parts_score(train_parts *parts, const ravel_feed *feed, int64_t micros, const train_work *work,
                               ravel_error *err);

#endif
