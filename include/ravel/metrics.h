/* ravel/metrics.h: counts of tokens, FLOPs and time, reduced over ranks.
 *
 * Nouns
 *   metric    one row of RAVEL_METRIC_LIST: a name, a unit, how it is reduced over ranks, one sentence.
 *   metrics   one rank's counts since the last update, the values of the last update (the same on every rank), and the
 *             totals of the run.
 *   phase     a named stretch of time (forward, feed, refit, ...). Phases nest.
 *   update    one optimiser step. ravel_metrics_update reduces over ranks, computes the derived values, passes them to
 *             the sinks and starts the next update.
 *   sink      where the values of an update go: a log line, JSONL, CSV, TensorBoard, Prometheus, a trace.
 *   reducer   the two all-reduces that metrics need, as a hook; metrics do not depend on a communicator.
 *
 * The calling loop, the same on every rank:
 *
 *     ravel_metrics_options options;
 *     ravel_metrics_options_default(&options);
 *     options.reducer = &reducer;                       NULL for a single rank
 *     options.shape = &shape;                           for FLOPs
 *     ravel_metrics_create(&options, &m, &err);
 *     ravel_metrics_sink(m, "log:-", &err);
 *     ravel_metrics_sink(m, "jsonl:runs/a/metrics.jsonl", &err);
 *     for (int64_t step = 1; step <= updates; step++) {
 *         ravel_metrics_begin(m);
 *         ravel_metrics_phase_begin(m, RAVEL_PHASE_FEED, &err);
 *         ...
 *         ravel_metrics_phase_end(m, RAVEL_PHASE_FEED, &err);
 *         ravel_metrics_add_batch(m, &batch);           lengths, capacity, padded, loss tokens; of a feed: ravel_feed_batch
 *         ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LOSS, loss, 1);
 *         ravel_metrics_update(m, step, &err);
 *     }
 *     ravel_metrics_free(m);
 *
 * Exactness. Counts are integers from end to end, summed over ranks by one all-reduce; never one rank's number times
 * the number of ranks. Weighted means carry sums in fixed point, so that the result does not depend on the order in
 * which ranks or samples were added: the same samples on 1 or on 64 ranks give the same bits.
 *
 * Per-GPU figures divide by the number of ranks of the whole job (`world`), as Megatron does: if a model is spread
 * over tp x pp, a GPU's share is the job's tokens over all its GPUs.
 *
 * Threads. One object belongs to one thread, except that ravel_metrics_value, ravel_metrics_integer and
 * ravel_metrics_get may be called from any thread at any time. Nothing between ravel_metrics_begin and
 * ravel_metrics_update allocates.
 */
#ifndef RAVEL_METRICS_H
#define RAVEL_METRICS_H

#include <ravel/flops.h>
#include <ravel/options.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the table ------------------------------------------------------------------------------------------ */

typedef enum ravel_metric_kind {
    RAVEL_KIND_COUNTER, /* an integer */
    RAVEL_KIND_GAUGE,   /* a real number */
    RAVEL_KIND_TIMER    /* seconds */
} ravel_metric_kind;
#define RAVEL_METRIC_KIND_CHOICES "counter|gauge|timer"

/* How the ranks' contributions become one value. */
typedef enum ravel_metric_rule {
    RAVEL_RULE_SUM,    /* sum over ranks and calls */
    RAVEL_RULE_MEAN,   /* sum of value * weight / sum of weights, over ranks and calls */
    RAVEL_RULE_STD,    /* population standard deviation, weighted likewise */
    RAVEL_RULE_MIN,    /* least of all */
    RAVEL_RULE_MAX,    /* greatest of all */
    RAVEL_RULE_DERIVED /* worked out from other rows after the reduction; cannot be added to */
} ravel_metric_rule;
#define RAVEL_METRIC_RULE_CHOICES "sum|mean|std|min|max|derived"

/* Which runs show a row. A row without a value is left out of every sink: the loss of an update that had none, MFU
 * on an unknown GPU. */
typedef enum ravel_metric_show {
    RAVEL_SHOW_ALL,
    RAVEL_SHOW_RL /* only with options.rl */
} ravel_metric_show;
#define RAVEL_METRIC_SHOW_CHOICES "all|rl"

/* P(X, ID, name, sentence): the phases. They are a partition of the time between two rows of metrics: their self times,
 * and time/other_sec, which no phase covers, add up to time/wall_sec. Checkpoints and evaluation are no part of the
 * update: time/update_sec, and with it every throughput, is the same with and without them. */
#define RAVEL_PHASE_LIST(P, X)                                                     \
    P(X, ROLLOUT, "rollout", "generating responses")                               \
    P(X, REWARD, "reward", "scoring responses")                                    \
    P(X, ADVANTAGE, "advantage", "working out advantages and old log-probs")       \
    P(X, REFERENCE, "reference", "log-probs of the reference model")               \
    P(X, FEED, "feed", "waiting for packed batches: the exposed part of the feed") \
    P(X, FORWARD, "forward", "the forward pass")                                   \
    P(X, BACKWARD, "backward", "the backward pass")                                \
    P(X, ALL_REDUCE, "all_reduce", "summing gradients over ranks")                 \
    P(X, OPTIMIZER, "optimizer", "clipping gradients and updating weights")        \
    P(X, REFIT, "refit", "moving weights to the generators")                       \
    P(X, CHECKPOINT, "checkpoint", "saving a checkpoint")                          \
    P(X, EVAL, "eval", "evaluating")

typedef enum ravel_phase {
#define P(x, id, name, sentence) RAVEL_PHASE_##id,
    RAVEL_PHASE_LIST(P, )
#undef P
        RAVEL_PHASES
} ravel_phase;

/* The rows that every phase has. */
#define RAVEL_METRIC_PHASE_ROWS(X, id, name, sentence)                                                                 \
    X(TIME_##id##_MEAN, "time/" name "_mean_sec", TIMER, "s", DERIVED, ALL,                                            \
      "time of the update in " sentence ", nested phases included; mean over ranks")                                   \
    X(TIME_##id##_MAX, "time/" name "_max_sec", TIMER, "s", DERIVED, ALL, "the same of the slowest rank")              \
    X(TIME_##id##_SLOWEST, "time/" name "_slowest_rank", GAUGE, "rank", DERIVED, ALL,                                  \
      "which rank that was; the lowest if several tie")                                                                \
    X(TIME_##id##_SELF, "time/" name "_self_sec", TIMER, "s", DERIVED, ALL,                                            \
      "time/" name "_mean_sec without the phases nested in it: self times and time/other_sec add up to time/wall_sec") \
    X(TIME_##id##_TOTAL, "time_total/" name "_sec", TIMER, "s", DERIVED, ALL,                                          \
      "time/" name "_mean_sec summed over the updates of the run")

/* X(ID, name, kind, unit, rule, show, sentence). No name is the path prefix of another. */
#define RAVEL_METRIC_LIST(X)                                                                                           \
    X(TOKENS_CAPACITY, "tokens/capacity", COUNTER, "tokens", SUM, ALL, "room in all bins and fillers: bins * budget")  \
    X(TOKENS_PADDED, "tokens/padded", COUNTER, "tokens", SUM, ALL,                                                     \
      "sum of slots: lengths rounded up to the alignment")                                                             \
    X(TOKENS_ACTUAL, "tokens/actual", COUNTER, "tokens", SUM, ALL, "sum of real lengths")                              \
    X(TOKENS_SHARED, "tokens/shared", COUNTER, "tokens", SUM, ALL,                                                     \
      "of tokens/actual those that were not computed again, because a sample before has the same prefix")              \
    X(TOKENS_LOSS, "tokens/loss", COUNTER, "tokens", SUM, ALL, "tokens with a loss weight that is not zero")           \
    X(TOKENS_SQUARES, "tokens/squares", COUNTER, "tokens^2", SUM, ALL,                                                 \
      "sum of squared lengths, for ravel plan --fit; at most 2^62 per rank")                                           \
    X(BATCH_SAMPLES, "batch/samples", COUNTER, "samples", SUM, ALL, "samples in the update")                           \
    X(BATCH_BINS, "batch/bins", COUNTER, "bins", SUM, ALL, "micro-batches that hold samples")                          \
    X(BATCH_FILLERS, "batch/fillers", COUNTER, "bins", SUM, ALL, "empty micro-batches that keep ranks in step")        \
    X(BATCH_MICRO_STEPS, "batch/micro_steps", COUNTER, "micro-steps", MAX, ALL, "micro-steps in the update")           \
    X(TOKENS_PER_SEC, "throughput/tokens_per_sec", GAUGE, "tokens/s", DERIVED, ALL,                                    \
      "samples * seq_length / time/update_sec, as Megatron counts it; actual tokens if no seq_length was given")       \
    X(TOKENS_PER_SEC_PER_GPU, "throughput/tokens_per_sec_per_gpu", GAUGE, "tokens/s", DERIVED, ALL,                    \
      "throughput/tokens_per_sec over the ranks of the whole job")                                                     \
    X(COMPUTE_TOKENS_PER_SEC, "throughput/compute_tokens_per_sec", GAUGE, "tokens/s", DERIVED, ALL,                    \
      "tokens that were computed, padding included (padded, or capacity in fixed-shape mode) / time/update_sec")       \
    X(COMPUTE_TOKENS_PER_SEC_PER_GPU, "throughput/compute_tokens_per_sec_per_gpu", GAUGE, "tokens/s", DERIVED, ALL,    \
      "throughput/compute_tokens_per_sec over the ranks of the whole job")                                             \
    X(ACTUAL_TOKENS_PER_SEC, "throughput/actual_tokens_per_sec", GAUGE, "tokens/s", DERIVED, ALL,                      \
      "tokens/actual / time/update_sec")                                                                               \
    X(ACTUAL_TOKENS_PER_SEC_PER_GPU, "throughput/actual_tokens_per_sec_per_gpu", GAUGE, "tokens/s", DERIVED, ALL,      \
      "throughput/actual_tokens_per_sec over the ranks of the whole job")                                              \
    X(SAMPLES_PER_SEC, "throughput/samples_per_sec", GAUGE, "samples/s", DERIVED, ALL,                                 \
      "batch/samples / time/update_sec")                                                                               \
    X(PACKING_EFFICIENCY, "throughput/packing_efficiency", GAUGE, "share", DERIVED, ALL,                               \
      "(tokens/actual - tokens/shared) / tokens/capacity")                                                             \
    X(PADDING_SHARE, "throughput/padding_share", GAUGE, "share", DERIVED, ALL,                                         \
      "1 - (tokens/actual - tokens/shared) / tokens/padded")                                                           \
    X(AVG_SEQ_LENGTH, "throughput/avg_seq_length", GAUGE, "tokens", DERIVED, ALL, "tokens/actual / batch/samples")     \
    X(MIN_SEQ_LENGTH, "throughput/min_seq_length", COUNTER, "tokens", MIN, ALL, "shortest sample")                     \
    X(MAX_SEQ_LENGTH, "throughput/max_seq_length", COUNTER, "tokens", MAX, ALL, "longest sample")                      \
    X(FLOPS_MODEL, "flops/model", GAUGE, "FLOP", DERIVED, ALL,                                                         \
      "forward and backward of the update, exact before it became a double")                                           \
    X(FLOPS_HARDWARE, "flops/hardware", GAUGE, "FLOP", DERIVED, ALL, "flops/model and what was recomputed")            \
    X(TFLOPS, "throughput/tflops", GAUGE, "TFLOP/s", DERIVED, ALL, "flops/model / time/update_sec / 1e12")             \
    X(TFLOPS_PER_GPU, "throughput/tflops_per_gpu", GAUGE, "TFLOP/s", DERIVED, ALL,                                     \
      "throughput/tflops over the ranks of the whole job")                                                             \
    X(MFU, "throughput/mfu", GAUGE, "share", DERIVED, ALL,                                                             \
      "model FLOP/s per GPU over its dense peak; absent if the peak is unknown")                                       \
    X(HFU, "throughput/hfu", GAUGE, "share", DERIVED, ALL,                                                             \
      "the same with what was recomputed; absent without recomputation")                                               \
    X(IDLE_SHARE, "balance/idle_share", GAUGE, "share", DERIVED, ALL,                                                  \
      "1 - mean over ranks of busy time / the busiest rank's; busy is self time in forward and backward")              \
    X(IMBALANCE, "balance/imbalance", GAUGE, "ratio", DERIVED, ALL,                                                    \
      "the busiest rank's busy time / the mean over ranks")                                                            \
    X(TOKEN_IMBALANCE, "balance/token_imbalance", GAUGE, "ratio", DERIVED, ALL,                                        \
      "most padded tokens on a rank / the mean over ranks that have a batch")                                          \
    X(PLAN_IDLE_SHARE, "plan/idle_share", GAUGE, "share", MAX, ALL,                                                    \
      "share of rank time spent waiting that the plan predicts")                                                       \
    X(PLAN_IMBALANCE, "plan/imbalance", GAUGE, "ratio", MAX, ALL, "slowest rank / mean rank that the plan predicts")   \
    X(FEED_EXPOSED_SEC, "feed/exposed_sec", TIMER, "s", DERIVED, ALL,                                                  \
      "time that training waited for the feed, mean over ranks")                                                       \
    X(FEED_EXPOSED_SHARE, "feed/exposed_share", GAUGE, "share", DERIVED, ALL, "feed/exposed_sec / time/update_sec")    \
    X(RUN_UPDATES, "run/updates", COUNTER, "updates", DERIVED, ALL,                                                    \
      "updates so far, over resumes too, as all of run/")                                                              \
    X(RUN_CONSUMED_SAMPLES, "run/consumed_samples", COUNTER, "samples", DERIVED, ALL, "samples so far")                \
    X(RUN_CONSUMED_BINS, "run/consumed_bins", COUNTER, "bins", DERIVED, ALL, "micro-batches that held samples so far") \
    X(RUN_CONSUMED_TOKENS, "run/consumed_tokens", COUNTER, "tokens", DERIVED, ALL, "actual tokens so far")             \
    X(RUN_CONSUMED_LOSS_TOKENS, "run/consumed_loss_tokens", COUNTER, "tokens", DERIVED, ALL, "loss tokens so far")     \
    X(RUN_ELAPSED_SEC, "run/elapsed_sec", TIMER, "s", DERIVED, ALL, "sum of time/update_sec so far")                   \
    X(RUN_TOKENS_PER_SEC, "run/tokens_per_sec", GAUGE, "tokens/s", DERIVED, ALL,                                       \
      "run/consumed_tokens / run/elapsed_sec")                                                                         \
    X(TIME_UPDATE, "time/update_sec", TIMER, "s", MAX, ALL,                                                            \
      "wall time of the update on the slowest rank, without checkpoints and evaluation")                               \
    X(TIME_WALL, "time/wall_sec", TIMER, "s", MAX, ALL,                                                                \
      "wall time since the row before on the slowest rank, with everything that was done")                             \
    X(TIME_OTHER, "time/other_sec", TIMER, "s", DERIVED, ALL,                                                          \
      "time/wall_sec that no phase covers, mean over ranks; waiting for the slowest rank is part of it")               \
    RAVEL_PHASE_LIST(RAVEL_METRIC_PHASE_ROWS, X)                                                                       \
    X(TIME_FORWARD_MICRO, "time/forward_micro_step_sec", TIMER, "s", DERIVED, ALL,                                     \
      "time/forward_mean_sec, which is the update's total, over its micro-steps")                                      \
    X(TIME_BACKWARD_MICRO, "time/backward_micro_step_sec", TIMER, "s", DERIVED, ALL,                                   \
      "time/backward_mean_sec, likewise a total, over the micro-steps")                                                \
    X(MEMORY_RSS, "memory/rss_bytes", COUNTER, "bytes", MAX, ALL,                                                      \
      "resident memory of the largest rank's process, now")                                                            \
    X(MEMORY_RSS_PEAK, "memory/rss_peak_bytes", COUNTER, "bytes", MAX, ALL, "its high-water mark")                     \
    X(MEMORY_RSS_UPDATE_PEAK, "memory/rss_update_peak_bytes", COUNTER, "bytes", MAX, ALL,                              \
      "its high-water mark since the row before; only with options.update_peaks")                                      \
    X(MEMORY_DEVICE, "memory/device_bytes", COUNTER, "bytes", MAX, ALL,                                                \
      "device memory in use on the fullest device; given by the caller, who knows the allocator")                      \
    X(MEMORY_DEVICE_PEAK, "memory/device_peak_bytes", COUNTER, "bytes", MAX, ALL,                                      \
      "its high-water mark, given likewise")                                                                           \
    X(MEMORY_DEVICE_UPDATE_PEAK, "memory/device_update_peak_bytes", COUNTER, "bytes", MAX, ALL,                        \
      "its high-water mark since the row before, given likewise")                                                      \
    X(TRAIN_LOSS, "train/loss", GAUGE, "", SUM, ALL,                                                                   \
      "the update's loss: sum over ranks and tokens of weight * token loss")                                           \
    X(TRAIN_TOKEN_NLL, "train/token_nll", GAUGE, "nats", MEAN, ALL, "mean negative log-likelihood over loss tokens")   \
    X(TRAIN_GRAD_NORM, "train/grad_norm", GAUGE, "", MAX, ALL, "global gradient norm before clipping")                 \
    X(TRAIN_LEARNING_RATE, "train/learning_rate", GAUGE, "", MAX, ALL, "of this update")                               \
    X(TRAIN_SKIPPED, "train/skipped", COUNTER, "updates", MAX, ALL,                                                    \
      "1 if the step was left out because of a bad gradient")                                                          \
    X(EVAL_LOSS, "eval/loss", GAUGE, "nats", MEAN, ALL, "mean loss over the evaluation tokens")                        \
    X(REFIT_BYTES_NEEDED, "refit/bytes_needed", COUNTER, "bytes", MAX, ALL, "bytes that the generators lacked")        \
    X(REFIT_BYTES_MOVED, "refit/bytes_moved", COUNTER, "bytes", MAX, ALL, "bytes that were sent")                      \
    X(REFIT_TOTAL, "refit/total_sec", TIMER, "s", MAX, ALL, "the whole refit on the slowest rank")                     \
    X(REFIT_ITERATE, "refit/iterate_sec", TIMER, "s", MAX, ALL, "handing out tensors")                                 \
    X(REFIT_PACK, "refit/pack_sec", TIMER, "s", MAX, ALL, "casting and copying into buffers")                          \
    X(REFIT_SEND, "refit/send_sec", TIMER, "s", MAX, ALL, "on the wire, sender's side")                                \
    X(REFIT_RECEIVE, "refit/receive_sec", TIMER, "s", MAX, ALL, "on the wire, receiver's side")                        \
    X(REFIT_LOAD, "refit/load_sec", TIMER, "s", MAX, ALL, "verifying and loading")                                     \
    X(REFIT_COMMIT, "refit/commit_sec", TIMER, "s", MAX, ALL, "voting and flipping the version")                       \
    X(REFIT_OVERLAP, "refit/overlap_share", GAUGE, "share", MAX, ALL,                                                  \
      "share of the smaller phases that was hidden behind the largest")                                                \
    X(REFIT_RATE, "refit/gb_per_sec", GAUGE, "GB/s", MAX, ALL, "bytes needed / total time / 1e9")                      \
    X(REFIT_PUBLISH, "refit/publish_sec", TIMER, "s", MAX, ALL, "publishing a version on the slowest trainer rank")    \
    X(REFIT_PREPARE, "refit/prepare_sec", TIMER, "s", MAX, ALL,                                                        \
      "staging a version on the slowest connected generator, which goes on generating")                                \
    X(REFIT_PAUSE, "refit/pause_sec", TIMER, "s", MAX, ALL, "what the slowest connected generator waited to commit")   \
    X(REFIT_VERSION_LAG, "refit/version_lag", GAUGE, "versions", MAX, ALL,                                             \
      "versions that the connected generator furthest behind lacked when the next one was published")                  \
    X(REFIT_GENERATORS, "refit/generators", COUNTER, "generators", MAX, ALL, "connected generators that reported")     \
    X(REFIT_GENERATOR_TOKENS, "refit/generator_tokens_per_sec", GAUGE, "tokens/s", MAX, ALL,                           \
      "tokens per second of all connected generators together, as they reported")                                      \
    X(REFIT_SENT, "refit/sent_bytes", COUNTER, "bytes", SUM, ALL,                                                      \
      "bytes of weights that were sent since the row before; of refits that compare, and of publications")             \
    X(REFIT_CHANGED, "refit/changed_share", GAUGE, "share", MEAN, ALL,                                                 \
      "elements that changed / elements of blocks that were compared with what the generator holds")                   \
    X(REFIT_COMPARED, "refit/compared_share", GAUGE, "share", MEAN, ALL,                                               \
      "elements of these blocks / elements that generators asked for; the others were sent whole")                     \
    X(REFIT_BLOCKS_WHOLE, "refit/blocks_whole", COUNTER, "blocks", SUM, ALL, "blocks that were sent whole")            \
    X(REFIT_BLOCKS_SPARSE, "refit/blocks_sparse", COUNTER, "blocks", SUM, ALL,                                         \
      "blocks of which only the changed elements were sent")                                                           \
    X(REFIT_BLOCKS_KEPT, "refit/blocks_kept", COUNTER, "blocks", SUM, ALL, "blocks that did not change")               \
    X(REWARD_MEAN, "reward/mean", GAUGE, "", MEAN, RL, "over samples of all ranks")                                    \
    X(REWARD_STD, "reward/std", GAUGE, "", STD, RL, "over samples of all ranks (population)")                          \
    X(REWARD_MIN, "reward/min", GAUGE, "", MIN, RL, "over samples of all ranks")                                       \
    X(REWARD_MAX, "reward/max", GAUGE, "", MAX, RL, "over samples of all ranks")                                       \
    X(REWARD_ZERO_VARIANCE, "reward/zero_variance_group_share", GAUGE, "share", MEAN, RL,                              \
      "groups whose rewards are all equal / groups")                                                                   \
    X(REWARD_DROPPED, "reward/dropped_share", GAUGE, "share", MEAN, RL,                                                \
      "answers that could not be scored and were left out / answers")                                                  \
    X(EVAL_REWARD, "eval/reward", GAUGE, "", MEAN, RL, "mean reward of greedy answers to the evaluation's questions")  \
    X(RESPONSE_LENGTH_MEAN, "response/length_mean", GAUGE, "tokens", MEAN, RL, "over samples of all ranks")            \
    X(RESPONSE_LENGTH_MIN, "response/length_min", COUNTER, "tokens", MIN, RL, "over samples of all ranks")             \
    X(RESPONSE_LENGTH_MAX, "response/length_max", COUNTER, "tokens", MAX, RL, "over samples of all ranks")             \
    X(RESPONSE_TRUNCATED, "response/truncated_share", GAUGE, "share", MEAN, RL,                                        \
      "responses cut at the length limit / responses")                                                                 \
    X(ROLLOUT_TOKENS, "rollout/tokens", COUNTER, "tokens", SUM, RL, "response tokens generated for this update")       \
    X(ROLLOUT_TOKENS_PER_SEC, "rollout/tokens_per_sec", GAUGE, "tokens/s", DERIVED, RL,                                \
      "rollout/tokens / time/rollout_max_sec")                                                                         \
    X(ROLLOUT_STALENESS, "rollout/staleness_mean", GAUGE, "versions", MEAN, RL,                                        \
      "weight versions between generating and training, over samples")                                                 \
    X(POLICY_RATIO_MEAN, "policy/ratio_mean", GAUGE, "", MEAN, RL,                                                     \
      "exp(log-prob now - log-prob when sampled), over loss tokens")                                                   \
    X(POLICY_RATIO_MAX, "policy/ratio_max", GAUGE, "", MAX, RL, "greatest over loss tokens")                           \
    X(POLICY_APPROX_KL, "policy/approx_kl", GAUGE, "nats", MEAN, RL,                                                   \
      "ratio - 1 - log ratio, over loss tokens: old policy to new")                                                    \
    X(POLICY_KL_REF, "policy/kl_ref", GAUGE, "nats", MEAN, RL,                                                         \
      "KL to the reference policy by the same estimator, over loss tokens")                                            \
    X(POLICY_ENTROPY, "policy/entropy", GAUGE, "nats", MEAN, RL, "of the next-token distribution, over loss tokens")   \
    X(POLICY_CLIP_SHARE, "policy/clip_share", GAUGE, "share", MEAN, RL, "loss tokens whose ratio was clipped")         \
    X(POLICY_GAP_MEAN, "policy/logprob_gap_mean", GAUGE, "nats", MEAN, RL,                                             \
      "|log-prob trainer - log-prob generator|, over loss tokens")                                                     \
    X(POLICY_GAP_MAX, "policy/logprob_gap_max", GAUGE, "nats", MAX, RL, "greatest over loss tokens")                   \
    X(TOKEN_MULT_PROB_ERROR, "token_mult_prob_error", GAUGE, "", MEAN, RL,                                             \
      "mean over loss tokens of exp|log-prob trainer - log-prob generator|: 1 is perfect agreement")

/* Numbers may change between versions; names do not. */
typedef enum ravel_metric_id {
#define X(id, name, kind, unit, rule, show, sentence) RAVEL_METRIC_##id,
    RAVEL_METRIC_LIST(X)
#undef X
        RAVEL_METRICS
} ravel_metric_id;

typedef struct ravel_metric {
    const char *name; /* "throughput/tokens_per_sec" */
    const char *unit; /* "tokens/s"; may be empty */
    const char *doc;  /* one sentence */
    int32_t kind;     /* ravel_metric_kind */
    int32_t rule;     /* ravel_metric_rule */
    int32_t show;     /* ravel_metric_show */
    int32_t reserved;
} ravel_metric;

/* The built-in row with this id; NULL outside 0 .. RAVEL_METRICS-1. */
RAVEL_API const ravel_metric *ravel_metric_row(int32_t id);
RAVEL_API const char *ravel_phase_name(int32_t phase);

/* ---- the object ----------------------------------------------------------------------------------------- */

typedef enum ravel_metrics_op { RAVEL_METRICS_SUM, RAVEL_METRICS_MAX } ravel_metrics_op;

/* The reductions that metrics need. An update makes exactly two calls, the same on every rank: one SUM, one MAX. */
typedef struct ravel_metrics_reducer {
    int32_t rank, size; /* size up to 2^18 */
    /* Replaces values[0 .. count-1] by the sum or maximum over ranks. An error is returned by ravel_metrics_update. */
    ravel_status (*all_reduce)(void *user, int64_t *values, int64_t count, ravel_metrics_op op, ravel_error *err);
    void *user;
} ravel_metrics_reducer;

typedef enum ravel_metrics_compute { RAVEL_COMPUTE_PADDED, RAVEL_COMPUTE_CAPACITY } ravel_metrics_compute;

typedef struct ravel_metrics_options {
    size_t size;        /* sizeof(ravel_metrics_options), set by ravel_metrics_options_default */
    int64_t world;      /* ranks (GPUs) of the whole job, for per-GPU figures; 0: the reducer's size */
    int64_t updates;    /* planned, for "12/100" and the time left; 0: unknown */
    int64_t seq_length; /* what a sample would be padded to without packing; 0: unknown */
    double peak_flops;  /* of one GPU, FLOP/s; 0: looked up by `gpu` */
    const char *gpu;    /* as ravel_gpu_peak takes it; NULL or unknown: no MFU. Copied. */
    int32_t rl;         /* 1: RL rows are on */
    int32_t counts;     /* 0: another rank of the same data-parallel group counts this rank's batches (tp, cp, pp) */
    int32_t compute;    /* ravel_metrics_compute: tokens that a bin computes, its slots or its capacity */
    int32_t recompute;  /* ravel_recompute */
    int32_t per_rank;   /* JSONL and the report show figures per rank for up to this number of ranks */
    /* 1: memory/rss_update_peak_bytes. The kernel's mark of this process (VmHWM, ru_maxrss) is then reset with every
     * row; ranks that are threads reset it for each other: take the maximum */
    int32_t update_peaks;
    const ravel_shape *shape;             /* NULL: no FLOPs. Copied. */
    const ravel_metrics_reducer *reducer; /* NULL: this is the only rank. Copied. */
    /* rows of the caller's own; ids from RAVEL_METRICS. Copied, strings too. A name that another row has, in other
     * punctuation or as a path prefix, is E_ARGUMENT; so are "step" and "ranks" */
    const ravel_metric *extra;
    int64_t extra_count;
    const ravel_logger *logger;       /* where a failing sink is reported, once; it must outlive the object */
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive the object */
    int64_t adapter; /* weights of an adapter that is trained beside the frozen model (ravel_flops_adapted); 0: none */
} ravel_metrics_options;

RAVEL_API void ravel_metrics_options_default(ravel_metrics_options *options);
/* The rows of the options that are numbers, words and strings, for flags and configs. */
RAVEL_API ravel_option_table ravel_metrics_option_table(void);

typedef struct ravel_metrics ravel_metrics;

RAVEL_API ravel_status ravel_metrics_create(const ravel_metrics_options *options, ravel_metrics **metrics,
                                            ravel_error *err);
/* Flushes and closes the sinks. */
RAVEL_API void ravel_metrics_free(ravel_metrics *metrics);

/* ---- counting, on each rank ----------------------------------------------------------------------------- */

/* Starts the update's clock. Without it the clock starts where the last update ended. What is timed in between belongs
 * to the next update's phases and to its time/wall_sec, but not to its time/update_sec. */
RAVEL_API void ravel_metrics_begin(ravel_metrics *metrics);

/* A batch: a bin, or all bins of an update at once; call as often as there are. Sizes are of this rank. */
typedef struct ravel_metrics_batch {
    size_t size;            /* sizeof(ravel_metrics_batch) */
    const int64_t *lengths; /* [samples] real lengths; or NULL and `sum` */
    int64_t samples;
    const ravel_lengths_sum *sum; /* instead of lengths */
    int64_t capacity;             /* budget * cp * (bins + fillers) */
    int64_t padded;               /* sum of slots, fillers included */
    int64_t loss;                 /* tokens with a loss weight */
    int64_t head;                 /* tokens through the LM head; 0: all actual tokens, -1: none */
    int64_t bins;
    int64_t fillers;
    int64_t micro_steps; /* bins + fillers of this rank */
    int64_t shared;      /* tokens of `lengths` that are computed once for several samples, each time but the first */
} ravel_metrics_batch;
RAVEL_API void ravel_metrics_add_batch(ravel_metrics *metrics, const ravel_metrics_batch *batch);

/* Samples that came from generators. Arrays of `count`; each may be NULL. Nothing happens unless options.rl. Rollouts
 * that were discarded are not among them, so rollout/tokens is counted separately:
 * ravel_metrics_count(m, RAVEL_METRIC_ROLLOUT_TOKENS, tokens). */
typedef struct ravel_metrics_rollouts {
    size_t size; /* sizeof(ravel_metrics_rollouts) */
    int64_t count;
    const double *rewards;
    const int64_t *groups;    /* equal ids stand side by side and on one rank; otherwise NULL and add_groups */
    const int64_t *responses; /* lengths */
    const uint8_t *truncated; /* 1: cut at the length limit */
    const double *staleness;  /* weight versions */
} ravel_metrics_rollouts;
RAVEL_API void ravel_metrics_add_rollouts(ravel_metrics *metrics, const ravel_metrics_rollouts *rollouts);
/* Groups counted elsewhere: how many, and how many of them had one reward throughout. */
RAVEL_API void ravel_metrics_add_groups(ravel_metrics *metrics, int64_t groups, int64_t zero_variance);

/* Per-token figures. Arrays of `count`; `weights` NULL: all tokens count once, else a token counts if its weight is
 * not 0; the others may be NULL and their rows stay empty. Nothing happens unless options.rl. */
typedef struct ravel_metrics_tokens {
    size_t size; /* sizeof(ravel_metrics_tokens) */
    int64_t count;
    const float *weights;
    const float *logprobs;  /* of the trainer, now */
    const float *old;       /* of the policy that is being improved */
    const float *generator; /* as the generator gave them */
    const float *trainer;   /* the trainer's for the generator's weights; NULL: `old`, or else `logprobs` */
    const float *reference; /* of the reference policy */
    const float *entropy;
    const float *advantages;    /* with it a token counts as clipped only if the clip takes effect */
    double clip_low, clip_high; /* ratio outside [1 - low, 1 + high]; both 0: no clip share */
} ravel_metrics_tokens;
RAVEL_API void ravel_metrics_add_tokens(ravel_metrics *metrics, const ravel_metrics_tokens *tokens);

/* Any other row that is not DERIVED: a value with a weight (1 if the rule takes none), or an integer. Returns 0,
 * and does nothing, for an id that does not exist, is derived or is switched off. */
RAVEL_API int ravel_metrics_add(ravel_metrics *metrics, int32_t id, double value, double weight);
RAVEL_API int ravel_metrics_count(ravel_metrics *metrics, int32_t id, int64_t value);

/* Phases nest to a depth of 16; `end` must name the innermost open phase (E_STATE otherwise, nothing changes). A phase
 * that is open at ravel_metrics_update is cut there and goes on in the next update. */
RAVEL_API ravel_status ravel_metrics_phase_begin(ravel_metrics *metrics, ravel_phase phase, ravel_error *err);
RAVEL_API ravel_status ravel_metrics_phase_end(ravel_metrics *metrics, ravel_phase phase, ravel_error *err);
/* Time that was measured elsewhere (another thread, the device); it is not taken from the phase that is open. */
RAVEL_API void ravel_metrics_phase_add(ravel_metrics *metrics, ravel_phase phase, double seconds);

/* ---- the update ----------------------------------------------------------------------------------------- */

/* Ends update number `step`: reduces, derives, publishes, writes to the sinks, and resets the counts. Collective:
 * every rank calls it with the same step (E_MISMATCH names the range otherwise). Fails only if the reducer does; a
 * failing sink is reported to the logger once and tried again at the next update. */
RAVEL_API ravel_status ravel_metrics_update(ravel_metrics *metrics, int64_t step, ravel_error *err);

/* A row that is no update: what was added and timed since the last one, such as an evaluation before the first update.
 * It has no time/update_sec, and counts as none. Collective, as above. */
RAVEL_API ravel_status ravel_metrics_report(ravel_metrics *metrics, int64_t step, ravel_error *err);

/* ---- reading the last update, on every rank, from any thread --------------------------------------------- */

/* 1 and the value, or 0 when there is none by that name, or none in the last update. */
RAVEL_API int ravel_metrics_get(ravel_metrics *metrics, const char *name, double *value);
RAVEL_API int ravel_metrics_value(ravel_metrics *metrics, int32_t id, double *value);
/* For COUNTER rows: exact. */
RAVEL_API int ravel_metrics_integer(ravel_metrics *metrics, int32_t id, int64_t *value);
/* Rows, the caller's own included: ids are 0 .. count-1. */
RAVEL_API int32_t ravel_metrics_rows(const ravel_metrics *metrics);
RAVEL_API const ravel_metric *ravel_metrics_row(const ravel_metrics *metrics, int32_t id);
/* Whether the row is switched on in this object (RL rows are not, in other runs). */
RAVEL_API int ravel_metrics_enabled(const ravel_metrics *metrics, int32_t id);
/* The exact counts behind flops/model; 0 when there was no shape. */
RAVEL_API int ravel_metrics_flops(ravel_metrics *metrics, ravel_flops *flops);
/* Of one rank in the last update: busy seconds, idle share (1 - busy / the busiest's), padded tokens. 0 outside the
 * ranks that are shown (options.per_rank). */
RAVEL_API int ravel_metrics_rank(ravel_metrics *metrics, int32_t rank, double *busy_sec, double *idle_share,
                                 int64_t *padded);
/* The log line of the last update, as the log sink writes it; returns its length like snprintf. */
RAVEL_API size_t ravel_metrics_line(ravel_metrics *metrics, char *text, size_t bytes);

/* ---- totals, for checkpoints ------------------------------------------------------------------------------ */

typedef struct ravel_metrics_totals {
    int64_t updates, samples, bins, tokens, loss_tokens;
    int64_t capacity, computed; /* of all bins; tokens less those that samples of a bin shared */
    double seconds;
    double phases[16]; /* by ravel_phase: sum over updates of the mean over ranks */
} ravel_metrics_totals;
RAVEL_API void ravel_metrics_get_totals(ravel_metrics *metrics, ravel_metrics_totals *totals);
/* A resumed run goes on from here; the same on every rank, before the first update. */
RAVEL_API void ravel_metrics_set_totals(ravel_metrics *metrics, const ravel_metrics_totals *totals);

/* ---- sinks ---------------------------------------------------------------------------------------------- */

/* X(ID, word, target, sentence). Targets: a file, "-" for standard output, or as the row says. */
#define RAVEL_SINK_LIST(X)                                                                                             \
    X(LOG, "log", "file, - or nothing", "one line per update; to the logger if no target is given")                    \
    X(PROGRESS, "progress", "file, - or nothing", "a live line on a terminal (standard error), plain lines elsewhere") \
    X(JSONL, "jsonl", "file", "one JSON object per update")                                                            \
    X(CSV, "csv", "file", "one row per update, one column per metric")                                                 \
    X(TENSORBOARD, "tensorboard", "folder", "event files as TensorBoard (and its W&B sync) reads them")                \
    X(PROMETHEUS, "prometheus", "file", "the text format for the node exporter, replaced whole at every update")       \
    X(HTTP, "http", "[address:]port", "the same text at http://127.0.0.1:port/metrics")                                \
    X(TRACE, "trace", "folder", "Chrome and Perfetto trace of the phases, one file per rank: trace-RANK.json")

typedef enum ravel_sink_kind {
#define X(id, word, target, sentence) RAVEL_SINK_##id,
    RAVEL_SINK_LIST(X)
#undef X
        RAVEL_SINKS
} ravel_sink_kind;

/* Adds a sink, "kind:target" ("jsonl:runs/a/metrics.jsonl", "http:9464", "log"). The same call on every rank: kinds
 * that show reduced values open on rank 0 only, `trace` on every rank. A file of an earlier run is continued: after
 * its last whole line. E_ARGUMENT for an unknown kind, E_IO if the target cannot be opened now; later failures go
 * to the logger. Up to 16 sinks. */
RAVEL_API ravel_status ravel_metrics_sink(ravel_metrics *metrics, const char *spec, ravel_error *err);
/* As above, with "every": only updates whose step is a multiple of it are written. */
RAVEL_API ravel_status ravel_metrics_sink_every(ravel_metrics *metrics, const char *spec, int64_t every,
                                                ravel_error *err);
/* The port that the http sink listens on ("http:0" takes any free one); 0 when there is none. */
RAVEL_API int32_t ravel_metrics_http_port(const ravel_metrics *metrics);
/* How many sinks are failing now. */
RAVEL_API int32_t ravel_metrics_sinks_failed(const ravel_metrics *metrics);

/* A run directory, as `ravel report` reads it: makes `folder`, writes config.json (`config`: a JSON object as text, or
 * NULL) and environment.json, and adds the sinks jsonl:FOLDER/metrics.jsonl, csv, tensorboard and trace that `sinks`
 * names ("jsonl,tensorboard,trace"; NULL: "jsonl"). Collective in the sense of ravel_metrics_sink. */
RAVEL_API ravel_status ravel_metrics_run(ravel_metrics *metrics, const char *folder, const char *config,
                                         const char *sinks, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
