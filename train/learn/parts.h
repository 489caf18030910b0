/* train/learn/parts.h: one rank's parts of a model on a mesh, and the two ways to run an update's micro-batches through
 * them.
 *
 * A rank has `vpp` parts (chunks of its pipeline stage), each a train_model with the communicators of its
 * tensor-parallel and context-parallel ranks. Micro-batches come from the feed; hidden rows go from part to part over
 * the pipeline's ranks, in the order of the schedule (pipeline.h):
 *
 *     train_parts_learn    forward and backward of all micro-batches of the update; gradients add up
 *     train_parts_score    forward only; log-probs arrive where the last part is
 *
 * With one part and one rank this is: for each micro-batch, forward and backward.
 *
 * Hybrid context parallelism (`plan` with cp_pool): the data-parallel ranks are the pool, and every micro-batch has a
 * group of its own width. The communicators of all groups that a plan can have are made once, at creation.
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

/* Over what the load of an expert is counted for the load loss: a layer's experts, the loss being the mean over layers;
 * or experts of the same number in all layers together, as transformers does. */
typedef enum train_router_scope { TRAIN_ROUTER_MODEL, TRAIN_ROUTER_LAYER } train_router_scope;
#define TRAIN_ROUTER_SCOPES "model|layer"

typedef struct train_parts_options {
    const train_model_choice *model; /* must outlive the parts */
    int64_t budget;                  /* tokens per micro-batch and context-parallel rank */
    /* of the feed, for the widths of groups (cp_pool); NULL: every sample has cp ranks */
    const ravel_plan_options *plan;
    int32_t inference;    /* no gradients: only train_parts_score */
    int64_t flat_tokens;  /* samples may share prefixes (train_model_options.flat_tokens); 0: they don't */
    int32_t shard;        /* weights and gradients are sharded over dp x cp ranks (train_model_options.shard) */
    int32_t top;          /* train_model_options.top */
    int32_t replay;       /* batches may have routes (train_batch.routes) */
    int32_t ep;           /* ranks of dp x cp that share out the experts, neighbours; 0 means 1 */
    int32_t router_scope; /* train_router_scope */
    double router_aux;    /* coefficient of the load loss of experts; below 0: the shape's */
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
/* train_model_set_adapter of all parts. */
void train_parts_set_adapter(train_parts *parts, int on);
const train_kernels *train_parts_kernels(const train_parts *parts);
train_device *train_parts_device(const train_parts *parts);
/* The ranks that share the samples of a micro-batch of `cp` ranks, for arrays of the host; NULL: this one alone. */
ravel_comm *train_parts_ring(const train_parts *parts, int32_t cp);
/* Ends NCCL's communicators, before anything that their operations use is released. `why`: this rank failed; or
 * NULL. */
void train_parts_disconnect(train_parts *parts, const ravel_error *why);
/* The caller's functions for each micro-batch; either may be NULL. Called once per part, in the order of the schedule;
 * a micro-batch's arrays that a part does not get are NULL. */
typedef struct train_work {
    /* Fills the loss of a micro-batch, and may change its batch; without it the loss is the weighted sum. `loss` is
     * NULL if it is scored. */
    ravel_status (*begin)(void *user, const ravel_micro_batch *micro, train_batch *batch, train_loss *loss,
                          ravel_error *err);
    /* score, on the last part: log-probs of a micro-batch, [local tokens]. */
    ravel_status (*take)(void *user, const ravel_micro_batch *micro, const train_batch *batch, const float *logprob,
                         ravel_error *err);
    /* score, on every part: the routes that a micro-batch took, [rows, layers of the part, active experts], as
     * train_batch.routes takes them. */
    ravel_status (*routed)(void *user, const ravel_micro_batch *micro, const int16_t *routes, int64_t rows,
                           ravel_error *err);
    void *user;
    double temperature; /* of the log-probs; 0 means 1 */
    int32_t *top_ids;   /* score: [budget, top], filled for each `take` (train_result.top_ids); NULL: not */
    float *top_logprob; /* with it */
    float
        *right; /* score: [budget], filled for each `take` with 1 if no token is likelier than the target; NULL: not */
} train_work;

/* Time of the schedule on this rank, in seconds (over NCCL: of its GPU, by events; else of the host, which waits), and
 * the idle share that the planner predicts (ravel_pipeline_bubble). */
typedef struct train_parts_time {
    double seconds;           /* from its start until all stages were done */
    double busy;              /* of these in forward and backward calls; the rest are waits for other stages, */
    double forward, backward; /* busy, without waits for tensor-parallel, context-parallel and expert-parallel ranks: */
    double tp, cp, ep;        /* communication that no computation hides; over NCCL that of ep is in tp */
    double predicted;         /* idle share */
    /* seconds that it waited for sharded weights and gradients (--shard params); in forward and backward */
    double exposed;
} train_parts_time;

/* Experts of the last update, the same on every rank. The load of an expert is as a multiple of the mean of its
 * layer. */
typedef struct train_router_figures {
    int64_t layers;    /* with experts; 0: there is nothing to report */
    double load_mean;  /* largest load of a layer, mean over layers */
    double load_worst; /* and of all layers */
    double unused;     /* share of experts that no token went to */
    double loss;       /* the load loss before its coefficient; 0 if it is not trained */
} train_router_figures;
const train_router_figures *train_parts_router(const train_parts *parts);

/* Collective over the mesh: the current update of the feed. `metrics` may be NULL; it gets the phases. A failure on one
 * rank ends the call on all. */
ravel_status train_parts_learn(train_parts *parts, const ravel_feed *feed, int64_t micros, const train_work *work,
                               ravel_metrics *metrics, train_parts_time *time, ravel_error *err);
/* Seconds of each of its micro-batches on this rank, forward and backward, without what it waited for others: [*count],
 * until the next call. On a GPU they are those of putting work into streams. */
const double *train_parts_micro_seconds(const train_parts *parts, int64_t *count);
ravel_status train_parts_score(train_parts *parts, const ravel_feed *feed, int64_t micros, const train_work *work,
                               ravel_error *err);

#endif
