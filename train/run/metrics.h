/* train/run/metrics.h: the metrics of a run: the library's table, and the trainer's own rows. */
#ifndef TRAIN_METRICS_H
#define TRAIN_METRICS_H

#include <ravel/comm.h>
#include <ravel/feed.h>

#include "train/run/config/config.h"

/* X(ID, name, unit, sentence): rows of a run beside the library's own. */
#define TRAIN_METRIC_LIST(X)                                                                                          \
    X(CORRECTION_MEAN, "policy/correction_mean", "",                                                                  \
      "mean weight by --correction, over loss tokens, or samples for seq-")                                           \
    X(CORRECTION_ESS, "policy/correction_ess", "share",                                                               \
      "effective sample size by these weights, as a share: (sum w)^2 / (n sum w^2), mean over ranks")                 \
    X(CORRECTION_CHI2, "policy/correction_chi_square", "",                                                            \
      "chi-square of trainer and generator: mean of (trainer / generator)^2 before the limits, less 1")               \
    X(CORRECTION_TRUNCATED, "policy/correction_truncated_share", "share", "loss tokens, or samples, put on a limit")  \
    X(CORRECTION_DROPPED, "policy/correction_dropped_share", "share",                                                 \
      "loss tokens, or samples, beyond a limit, that were masked out")                                                \
    X(TOKEN_STALENESS, "rollout/token_staleness_mean", "versions",                                                    \
      "versions between the weights that drew a token and those that learn from it")                                  \
    X(TOKEN_STALENESS_MAX, "rollout/token_staleness_max", "versions", "the largest of these")                         \
    X(TOKEN_STALENESS_0, "rollout/token_staleness_0_share", "share", "response tokens of the weights that learn")     \
    X(TOKEN_STALENESS_1, "rollout/token_staleness_1_share", "share", "response tokens one version old")               \
    X(TOKEN_STALENESS_2, "rollout/token_staleness_2_share", "share", "two versions old")                              \
    X(TOKEN_STALENESS_3, "rollout/token_staleness_3_share", "share", "three versions old")                            \
    X(TOKEN_STALENESS_4, "rollout/token_staleness_4_share", "share", "four versions old or older")                    \
    X(CONTINUED, "rollout/continued_share", "share", "rollouts that went on with newer weights than they began with") \
    X(CONTINUED_TOKENS, "rollout/continued_tokens_mean", "tokens", "response tokens of such a rollout")               \
    X(GENERATOR_WAIT, "rollout/generator_wait_sec", "s",                                                              \
      "time that a generator waited for orders: it was as far ahead as --async allows")                               \
    X(DROPPED_TOKENS, "rollout/dropped_tokens_share", "share",                                                        \
      "response tokens of rollouts that were not scored, or whose group was replaced")                                \
    X(ENV_TURNS, "env/turns_mean", "", "answers of the model per rollout with an environment")                        \
    X(ENV_TOKENS, "env/tokens_mean", "tokens", "tokens of observations per rollout, between its answers")             \
    X(ENV_RETRIED, "env/retried_share", "share", "rollouts that were begun again because their environment was lost") \
    X(ENV_WASTED, "env/wasted_tokens_share", "share", "drawn tokens of rollouts that were begun again after them")    \
    X(ENV_DIFFERS, "env/template_differs_share", "share",                                                             \
      "turns after which the chat template writes the conversation so far in other tokens than those that are held")  \
    X(DPO_ACCURACY, "dpo/accuracy", "share",                                                                          \
      "pairs whose chosen answer gained more on the reference than the rejected one")                                 \
    X(DPO_MARGIN, "dpo/margin", "", "mean of beta * (gain of the chosen answer - gain of the rejected one)")          \
    X(DPO_CHOSEN, "dpo/chosen_reward", "", "mean of beta * gain of the chosen answer on the reference")               \
    X(DPO_REJECTED, "dpo/rejected_reward", "", "mean of beta * gain of the rejected answer on the reference")         \
    X(BUBBLE, "pipeline/bubble_share", "share",                                                                       \
      "time that pipeline stages waited for one another, of the time of forward and backward")                        \
    X(BUBBLE_PREDICTED, "pipeline/bubble_predicted", "share",                                                         \
      "the same as the planner predicts it from the FLOPs of the micro-batches")                                      \
    X(TP_EXPOSED, "comm/tp_exposed_share", "share",                                                                   \
      "time that tensor-parallel ranks waited for one another, of the time of forward and backward")                  \
    X(EP_EXPOSED, "comm/ep_exposed_share", "share",                                                                   \
      "time that expert-parallel ranks waited for one another's rows, of the same time")                              \
    X(CP_EXPOSED, "comm/cp_exposed_share", "share",                                                                   \
      "time that context-parallel ranks waited for keys, values and their gradients, of the same time")               \
    X(SHARD_EXPOSED, "shard/exposed_share", "share",                                                                  \
      "time that ranks waited for sharded weights and gradients, of the time of forward and backward")                \
    X(IDLE_MEASURED, "plan/idle_measured", "share",                                                                   \
      "plan/idle_share as it was measured: time in forward and backward that ranks waited for one another")           \
    X(ROUTER_LOSS, "router/load_loss", "",                                                                            \
      "load loss of experts over all tokens of the update, before --router-aux; apart from train/loss")               \
    X(ROUTER_MEAN, "router/load_max", "",                                                                             \
      "tokens of a layer's most used expert, as a multiple of its mean expert's; mean over layers")                   \
    X(ROUTER_WORST, "router/load_worst", "", "the same of the layer where it is largest")                             \
    X(ROUTER_UNUSED, "router/unused_share", "share", "experts that no token of the update went to")                   \
    X(GPU_FORWARD, "gpu/forward_sec", "s", "GPU time of the update in forward passes, by events")                     \
    X(GPU_HEAD, "gpu/head_sec", "s", "GPU time in logits, losses and their gradient")                                 \
    X(GPU_BACKWARD, "gpu/backward_sec", "s", "GPU time in backward passes")                                           \
    X(GPU_OPTIMIZER, "gpu/optimizer_sec", "s", "GPU time in clipping and AdamW")                                      \
    X(GPU_OTHER, "gpu/other_sec", "s", "GPU time since the update before in none of these, idle time too")            \
    X(GPU_USED, "gpu/used_bytes", "bytes", "memory of the GPU in use by anybody, libraries included")                 \
    X(GPU_SCRATCH, "gpu/scratch_bytes", "bytes", "memory that kernels hold beside weights and activations")

typedef enum train_metric {
    TRAIN_METRIC_BEFORE = RAVEL_METRICS - 1,
#define X(ID, name, unit, sentence) TRAIN_METRIC_##ID,
    TRAIN_METRIC_LIST(X)
#undef X
        TRAIN_METRIC_REWARD_PARTS /* reward/NAME for each part of --reward, in its order */
} train_metric;

/* Metrics of a rank of `comm`, reduced over it. `world`: ranks of the whole job; `steps`: updates to run in all. */
ravel_status train_metrics_create(const train_config *config, train_kind kind, const ravel_shape *shape,
                                  ravel_comm *comm, int32_t world, int64_t steps, const ravel_logger *logger,
                                  ravel_metrics **metrics, ravel_error *err);
/* The counts of a feed's update, once for all ranks that work on the same samples, and what the plan predicts for ranks
 * that wait for one another as `sync` says. */
void train_metrics_add_update(ravel_metrics *metrics, const ravel_mesh *mesh, const ravel_feed_update *update,
                              ravel_sync sync);
/* A GPU set's time per phase, by its events, and its memory; of other sets nothing. After an update: what it waits for
 * is done. Returns the seconds of forward and backward; 0 for other sets. */
double train_metrics_add_gpu(ravel_metrics *metrics, const train_kernels *kernels, train_device *device);
/* The load of experts, if there are any. */
void train_metrics_add_router(ravel_metrics *metrics, const train_parts *parts);
/* How long ranks waited for one another in forward and backward, by axis, where it has several, and for sharded
 * parameters. */
void train_metrics_add_time(ravel_metrics *metrics, const ravel_mesh *mesh, const train_parts_time *time);

#endif
