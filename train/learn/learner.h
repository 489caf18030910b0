/* train/learn/learner.h: one trainer rank: a model, its optimiser, and what an update does with the ranks beside it.
 *
 *     train_learner_begin(learner);                                        gradients to zero
 *     for each micro-batch of the update:
 *         train_learner_batch(learner, &micro, &batch, &err);              the feed's arrays as the model takes them
 *         train_model_learn(train_learner_model(learner), &batch, ...);
 *     train_learner_finish(learner, lr, ..., &err);                         sum over ranks, clip, step
 *
 * Summing over ranks, plain or sharded (ZeRO-1), gives the same bits: elements are added in rank order either way.
 *
 *     plain    gradients: all-reduce                every rank steps everything
 *     zero     gradients: reduce-scatter            every rank steps its share, then weights: all-gather
 *
 * Weights and log-probs stand at different places on the two sides: in a packed batch (ravel/batch.h) at the position
 * that predicts a token, in the model (train/model/model.h) at the predicted token itself, one later. train_learner_batch
 * shifts the weights; fields that are declared RAVEL_FIELD_TOKEN already stand where the model wants them. */
#ifndef TRAIN_LEARNER_H
#define TRAIN_LEARNER_H

#include <ravel/feed.h>
#include <ravel/metrics.h>

#include "train/run/config.h"
#include "train/learn/optimizer.h"

typedef struct train_learner train_learner;

/* The shape that a configuration asks for: of --model, --shape, or the byte model of its numbers. */
ravel_status train_shape(const train_model_choice *choice, ravel_shape *shape, ravel_error *err);

/* The tokens that end an answer: what the model's folder says, or the byte models' own. */
enum { TRAIN_STOPS = 16 };
void train_stop_tokens(const train_model_choice *choice, int32_t *stops, int32_t *count);

/* The threads of each rank: what the configuration says, or an even share of `processors` for `ranks` ranks that work at
 * the same time, where a micro-batch is at least a GFLOP for every thread: below that, threads wait for one another more
 * than they help. */
int32_t train_threads(const train_config *config, const ravel_shape *shape, int32_t processors, int32_t ranks);

/* The kernels that a configuration asks for, and a device of theirs. */
ravel_status train_device_open(const train_model_choice *choice, const ravel_allocator *allocator,
                               const train_kernels **kernels, train_device **device, ravel_error *err);

/* Bytes that a rank will take, by purpose; a pure function of the configuration. */
typedef struct train_estimate {
    train_memory model;
    int64_t optimizer;
    int64_t total;
} train_estimate;
ravel_status train_learner_estimate(const train_config *config, const ravel_shape *shape, int32_t ranks,
                                    train_estimate *estimate, ravel_error *err);

/* Collective over `comm`, the trainer ranks. Weights are loaded or initialised, the same on every rank. `config` and
 * `comm` must outlive it. */
ravel_status train_learner_create(const train_config *config, const ravel_shape *shape, ravel_comm *comm,
                                  const ravel_allocator *allocator, train_learner **learner, ravel_error *err);
void train_learner_free(train_learner *learner);

train_model *train_learner_model(train_learner *learner);

void train_learner_begin(train_learner *learner);
/* *batch borrows from the micro-batch and from the learner, until the next call. */
ravel_status train_learner_batch(train_learner *learner, const ravel_micro_batch *micro, train_batch *batch,
                                 ravel_error *err);
/* Weight 1 wherever a token counts: then the model's loss is the sum of their negative log-likelihoods. */
void train_learner_count_tokens(train_learner *learner, const train_batch *batch);
/* *norm is the global gradient norm before clipping. A norm that is not finite leaves the weights alone on every rank
 * and sets *skipped. `metrics` (may be NULL) gets the phases. */
ravel_status train_learner_finish(train_learner *learner, double lr, ravel_metrics *metrics, double *norm,
                                  int32_t *skipped, ravel_error *err);

/* ---- checkpoints ---------------------------------------------------------------------------------------- */

/* Collective. Rank 0 writes config.json and model.safetensors (a Hugging Face folder), and optimizer.safetensors with
 * master weights and both moments, whoever holds them. */
ravel_status train_learner_save(train_learner *learner, const char *folder, ravel_error *err);
/* On every rank, from a folder that train_learner_save wrote, with any number of ranks. */
ravel_status train_learner_load(train_learner *learner, const char *folder, ravel_error *err);

/* ---- metrics -------------------------------------------------------------------------------------------- */

/* X(ID, name, unit, sentence): rows of RL runs beside the library's own. */
#define TRAIN_METRIC_LIST(X)                                                                         \
    X(EVAL_REWARD, "eval/reward", "", "mean reward of greedy answers to the evaluation's questions") \
    X(TIS_MEAN, "policy/tis_mean", "", "mean importance weight, trainer / generator, after the cap") \
    X(TIS_CAPPED, "policy/tis_capped_share", "share", "loss tokens whose importance weight was above the cap")

typedef enum train_metric {
    TRAIN_METRIC_BEFORE = RAVEL_METRICS - 1,
#define X(ID, name, unit, sentence) TRAIN_METRIC_##ID,
    TRAIN_METRIC_LIST(X)
#undef X
} train_metric;

/* Metrics for a rank of `comm`: reduced over it. `rl` turns the RL rows on. */
ravel_status train_metrics_create(const train_config *config, const ravel_shape *shape, ravel_comm *comm, int rl,
                                  int32_t world, int64_t steps, const ravel_logger *logger, ravel_metrics **metrics,
                                  ravel_error *err);
/* The counts of a feed's update. */
void train_metrics_update_counts(ravel_metrics *metrics, const ravel_feed_update *update);

#endif
