/* train/learn/learner.h: one trainer rank: its parts of a model on a mesh, their optimiser, and the reductions over
 * ranks.
 *
 *     train_learner_begin(learner);                                        gradients to zero
 *     train_parts_learn(train_learner_parts(learner), feed, ...);          forward and backward of the update
 *     train_learner_reduce(learner, metrics, &err);                        sum over ranks
 *     train_learner_step(learner, lr, ..., &err);                          clip, step
 *
 * Gradients that are summed, and over which ranks:
 *
 *     data and context     everything: plain or sharded, elements are added in rank order either way
 *     tensor parallel      then norms of q and k, shared key heads: the ranks that have them
 *     pipeline             then the tied embedding: first and last stage
 *
 *     --shard none      gradients: all-reduce                every rank steps everything that it has
 *     --shard states    gradients: reduce-scatter            every rank steps its share, then weights: all-gather (ZeRO-1)
 *     --shard params    gradients: reduce-scatter per layer  every rank steps its share; weights stay sharded, and a layer's
 *                       and micro-batch                      are gathered where it runs (FSDP, ZeRO-3; train/model/ranks/units.h)
 *
 * The norm counts each parameter of the model once: sums of squares of fixed spans, added in a fixed order, so it does
 * not depend on sharding either. The three give the same bits where a rank has one micro-batch per update. With
 * several, `params` adds over ranks before it adds over micro-batches, the other two after: that differs by
 * rounding. */
#ifndef TRAIN_LEARNER_H
#define TRAIN_LEARNER_H

#include "train/learn/optimizer.h"
#include "train/learn/parts.h"

typedef struct train_learner train_learner;

/* What is sharded over data-parallel and context-parallel ranks. */
typedef enum train_shard { TRAIN_SHARD_NONE, TRAIN_SHARD_STATES, TRAIN_SHARD_PARAMS } train_shard;
#define TRAIN_SHARD_CHOICES "none|states|params"

typedef struct train_learn_options {
    double lr, min_lr;
    int32_t schedule; /* train_schedule */
    int32_t shard;    /* train_shard */
    int64_t warmup;
    double weight_decay, beta1, beta2, eps, clip_grad;
    int32_t aggregation;  /* ravel_loss_mode: how token losses become one loss */
    int32_t moments;      /* train_moments */
    int64_t norm;         /* divisor of seq-mean-token-sum-norm; 0: a length that the run has */
    int64_t share_limit;  /* the most tokens of a micro-batch's samples if prefixes are shared, in budgets */
    int32_t share_prefix; /* ravel_share_prefix: what samples share is computed once */
    int32_t ep;           /* train_parts_options.ep */
    int32_t router_scope; /* train_router_scope */
    double router_aux;    /* train_parts_options.router_aux */
} train_learn_options;

/* Arguments of a learner; the pointers must outlive it. */
typedef struct train_learner_options {
    const train_model_choice *model;
    const train_learn_options *learn;
    int64_t budget;                   /* tokens per micro-batch */
    const ravel_plan_options *plan;   /* as in train_parts_options */
    int64_t flat_tokens;              /* as in train_parts_options */
    int32_t save_dtype;               /* of the model in a checkpoint: RAVEL_F32 or RAVEL_BF16 */
    int32_t replay;                   /* as in train_parts_options */
    int32_t top;                      /* as in train_parts_options */
    int64_t save_shard;               /* the most bytes of one of its files; 0: 5 GiB */
    const ravel_allocator *allocator; /* NULL: malloc */
} train_learner_options;

/* Collective over the mesh of trainer ranks, which must outlive it. Weights are loaded or initialised. */
ravel_status train_learner_create(const train_learner_options *options, const ravel_shape *shape, ravel_mesh *mesh,
                                  train_learner **learner, ravel_error *err);
/* Ends NCCL's communicators, if there are any: before the first of several models on a GPU is freed, since freeing
 * waits for all of the GPU's operations. NULL does nothing. */
void train_learner_disconnect(train_learner *learner);
void train_learner_free(train_learner *learner);

/* The options of the learner's parts; with `inference`, those of a reference model on the same mesh. */
train_parts_options train_learner_parts_options(const train_learner_options *options, int inference);

/* Bytes that the largest rank allocates, by purpose; a pure function. */
typedef struct train_estimate {
    train_memory model;
    int64_t optimizer;
    int64_t total;
    int32_t stage; /* of the pipeline, that has this rank */
} train_estimate;
ravel_status train_learner_estimate(const train_learner_options *options, const ravel_shape *shape,
                                    const ravel_mesh_layout *layout, train_estimate *estimate, ravel_error *err);

train_parts *train_learner_parts(train_learner *learner);
void train_learner_begin(train_learner *learner);
/* Gradients that are complete on this rank, summed over ranks. The weights are as before. `metrics` (may be NULL) gets
 * the phase, as below. */
ravel_status train_learner_reduce(train_learner *learner, ravel_metrics *metrics, ravel_error *err);
/* *norm is the global gradient norm before clipping. A norm that is not finite leaves the weights as they are on every
 * rank and sets *skipped. */
ravel_status train_learner_step(train_learner *learner, double lr, ravel_metrics *metrics, double *norm,
                                int32_t *skipped, ravel_error *err);
/* Loss sums of the last finished update on this rank; summed over ranks they are the model's. All 0 on ranks whose
 * figures another rank reports. */
const train_loss_sums *train_learner_sums(const train_learner *learner);

#endif
