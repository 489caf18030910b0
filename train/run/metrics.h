/* train/run/metrics.h: the metrics of a run: the library's table, and the trainer's own rows. */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H

#include <ravel/comm.h>
#include <ravel/feed.h>

#include "train/run/config.h"

/* X(ID, name, unit, sentence): rows of a run beside the library's own. */
#define TRAIN_METRIC_LIST(X)                                                                                   \
    X(TIS_MEAN, "policy/tis_mean", "", "mean importance weight, trainer / generator, after the cap")           \
    X(TIS_CAPPED, "policy/tis_capped_share", "share", "loss tokens whose importance weight was above the cap") \
    X(DPO_ACCURACY, "dpo/accuracy", "share",                                                                   \
      "pairs whose chosen answer gained more on the reference than the rejected one")                          \
    X(DPO_MARGIN, "dpo/margin", "", "mean of beta * (gain of the chosen answer - gain of the rejected one)")   \
    X(DPO_CHOSEN, "dpo/chosen_reward", "", "mean of beta * gain of the chosen answer on the reference")        \
    X(DPO_REJECTED, "dpo/rejected_reward", "", "mean of beta * gain of the rejected answer on the reference")  \
    X(BUBBLE, "pipeline/bubble_share", "share",                                                                \
      "time that pipeline stages waited for one another, of the time of forward and backward")                 \
    X(BUBBLE_PREDICTED, "pipeline/bubble_predicted", "share",                                                  \
      "the same as the planner predicts it from the FLOPs of the micro-batches")                               \
    X(TP_EXPOSED, "comm/tp_exposed_share", "share",                                                            \
      "time that tensor-parallel ranks waited for one another, of the time of forward and backward")           \
    X(CP_EXPOSED, "comm/cp_exposed_share", "share",                                                            \
      "time that context-parallel ranks waited for keys, values and their gradients, of the same time")        \
    X(SHARD_EXPOSED, "shard/exposed_share", "share",                                                           \
      "time that ranks waited for sharded weights and gradients, of the time of forward and backward")         \
    X(IDLE_MEASURED, "plan/idle_measured", "share",                                                            \
      "plan/idle_share as it was measured: time in forward and backward that ranks waited for one another")    \
    X(GPU_FORWARD, "gpu/forward_sec", "s", "GPU time of the update in forward passes, by events")              \
    X(GPU_HEAD, "gpu/head_sec", "s", "GPU time in logits, losses and their gradient")                          \
    X(GPU_BACKWARD, "gpu/backward_sec", "s", "GPU time in backward passes")                                    \
    X(GPU_OPTIMIZER, "gpu/optimizer_sec", "s", "GPU time in clipping and AdamW")                               \
    X(GPU_OTHER, "gpu/other_sec", "s", "GPU time since the update before in none of these, idle time too")     \
    X(GPU_USED, "gpu/used_bytes", "bytes", "memory of the GPU in use by anybody, libraries included")          \
    X(GPU_SCRATCH, "gpu/scratch_bytes", "bytes", "memory that kernels hold beside weights and activations")

typedef enum train_metric {
    TRAIN_METRIC_BEFORE = RAVEL_METRICS - 1,
#define X(ID, name, unit, sentence) TRAIN_METRIC_##ID,
    TRAIN_METRIC_LIST(X)
#undef X
} train_metric;

/* Metrics of a rank of `comm`, reduced over it. `world`: ranks of the whole job; `steps`: updates to run in all. */
ravel_status train_metrics_create(const train_config *config, train_kind kind, const ravel_shape *shape,
                                  ravel_comm *comm, int32_t world, int64_t steps, const ravel_logger *logger,
                                  ravel_metrics **metrics, ravel_error *err);
/* The counts of a feed's update, once for all ranks that work on the same samples, and what the plan predicts for ranks
 * that wait for one another as `sync` says. */
void train_metrics_add_update(ravel_metrics *metrics, const ravel_mesh *mesh, const ravel_feed_update *update,
                              ravel_sync sync);
/* A GPU set's time per phase, by its events, and its memory; of other sets nothing. After an update: what it waits for is
 * done. Returns the seconds of forward and backward; 0 for other sets. */
double train_metrics_add_gpu(ravel_metrics *metrics, const train_kernels *kernels, train_device *device);
/* How long ranks waited for one another in forward and backward, by axis, where it has several, and for sharded
 * parameters. */
void train_metrics_add_time(ravel_metrics *metrics, const ravel_mesh *mesh, const train_parts_time *time);

#endif
