/* ravel/weights.h: loss weights that make packing exact.
 *
 * The loss of an update is a sum over tokens of weight * token loss, and the weights are worked out once, from integer
 * counts over the whole update on all ranks. Then cutting, order, packing, data and context parallelism and fillers
 * cannot change the loss or its gradient: every rank and micro-step just adds up what it has.
 *
 *     mode                       weight of a loss token of sample s        the update's loss
 *     token-mean                 1 / loss tokens                           mean over all loss tokens
 *     seq-mean-token-mean        1 / (samples * loss tokens of s)          mean over samples of their token means
 *     seq-mean-token-sum         1 / samples                               mean over samples of their token sums
 *     seq-mean-token-sum-norm    1 / (samples * divisor)                   the same, over a constant
 *
 * With the caller's weight w per sample the means are weighted: w / sum of w * loss tokens; w / (sum of w * loss tokens
 * of s); and so on.
 *
 * Nouns
 *   loss token   a token whose mask is 1, except the first token of a sample, which nothing predicts. So a sample of
 *                one token has none. A sample of a fixed shape (ragged.offsets NULL) is one loss token itself: all modes
 *                but the last are then the mean over samples.
 *   counts       the input of the weights: integers only, so that summing them over ranks in any order gives the same
 *                result.
 *   factor       compensates averages that the framework takes afterwards: dp where gradients are averaged over
 *                data-parallel ranks, micro-steps where losses are averaged over them, cp likewise.
 *
 *     ravel_counts counts = {0};
 *     for (int b = 0; b < bin_count; b++)                              this rank's bins of the update
 *         ravel_counts_add(&ragged, &bins[b], &mask, NULL, &counts, &err);
 *     ravel_counts_sum(&counts, &hook, &err);                          no call where every rank counted everything
 *     for (int b = 0; b < bin_count; b++)
 *         ravel_weights_fill(&ragged, &bins[b], &mask, NULL, &counts, &options, RAVEL_F32, weights, &err);
 *     ... pack `weights` as a field of kind RAVEL_FIELD_NEXT; loss = sum of weights * token losses
 *
 * The only division is the last one, in double: weight = (factor * w) / denominator, both sides exact in a
 * double (as long as counts are below 2^53); then it is rounded to the dtype that was asked for.
 *
 * On a device: a mask whose place is device memory is counted there, and the call waits for the counts (integers, so
 * they are those of the host); options.place = device writes the weights there, by one launch, with the bits of the
 * host.
 *
 * Threads: pure functions on the caller's memory.
 */
#ifndef RAVEL_WEIGHTS_H
#define RAVEL_WEIGHTS_H

#include <ravel/batch.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- counts --------------------------------------------------------------------------------------------- */

/* int64_t throughout and nothing else, so it can be summed over ranks as an array of RAVEL_COUNTS_WORDS. The last nine
 * are three sums of 2^-40ths, each in words of 32 bits, lowest first: word i is worth 2^(32 i - 40). Words are not
 * carried over until they are read, so a sum may exceed 32 bits; 2^31 samples fit. */
typedef struct ravel_counts {
    int64_t samples;             /* samples */
    int64_t samples_with_loss;   /* those that have a loss token */
    int64_t tokens;              /* real tokens */
    int64_t loss_tokens;         /* loss tokens */
    int64_t weight[3];           /* sum of samples' weights */
    int64_t weight_with_loss[3]; /* ... of those that have a loss token */
    int64_t weighted_tokens[3];  /* sum of weight * loss tokens */
} ravel_counts;
#define RAVEL_COUNTS_WORDS 13

/* Sums `count` values over all ranks in place (an all-reduce). */
typedef struct ravel_sum_hook {
    ravel_status (*sum)(void *user, int64_t *values, size_t count, ravel_error *err);
    void *user;
} ravel_sum_hook;

/* Adds the samples of a bin (NULL: the whole store) to the counts.
 *   mask            a field of kind TOKEN or NEXT (L elements per sample, of which the first is not looked at) or STEP
 *                   (L - 1), width 1, any integer, float or bool dtype. 0 and 1 are the only values: E_DATA names
 *                   another. NULL: ragged.prompts decide, and where those are NULL too every token counts.
 *   sample_weights  [ragged.count], or NULL for 1. From 0 to 4096; they are taken to the nearest 2^-40, in the
 *                   numerator as well as in the sums, so the identity below stays exact. */
RAVEL_API ravel_status ravel_counts_add(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_field *mask,
                                        const double *sample_weights, ravel_counts *counts, ravel_error *err);
/* Local counts to global counts. The hook's error is passed on. */
RAVEL_API ravel_status ravel_counts_sum(ravel_counts *counts, const ravel_sum_hook *hook, ravel_error *err);
/* Loss tokens of one sample. */
RAVEL_API ravel_status ravel_counts_sample(const ravel_ragged *ragged, int64_t sample, const ravel_field *mask,
                                           int64_t *loss_tokens, ravel_error *err);

/* ---- weights -------------------------------------------------------------------------------------------- */

typedef enum ravel_loss_mode {
    RAVEL_TOKEN_MEAN,
    RAVEL_SEQ_MEAN_TOKEN_MEAN,
    RAVEL_SEQ_MEAN_TOKEN_SUM,
    RAVEL_SEQ_MEAN_TOKEN_SUM_NORM
} ravel_loss_mode;
#define RAVEL_LOSS_CHOICES "token-mean|seq-mean-token-mean|seq-mean-token-sum|seq-mean-token-sum-norm"

/* How the framework combines the parts. */
typedef enum ravel_framework { RAVEL_FRAMEWORK_SUM, RAVEL_FRAMEWORK_MEAN } ravel_framework;
#define RAVEL_FRAMEWORK_CHOICES "sum|mean"

/* Samples without a loss token, in the seq-mean modes. */
typedef enum ravel_empty_rule {
    RAVEL_EMPTY_COUNT, /* they are samples like any other, with a loss of 0 */
    RAVEL_EMPTY_SKIP   /* the mean is over samples that have a loss token */
} ravel_empty_rule;
#define RAVEL_EMPTY_CHOICES "count|skip"

typedef struct ravel_weights_options {
    size_t size;         /* sizeof(ravel_weights_options) */
    int32_t mode;        /* ravel_loss_mode */
    int32_t empty;       /* ravel_empty_rule */
    int64_t divisor;     /* for seq-mean-token-sum-norm: a constant, e.g. the longest response allowed */
    int32_t dp;          /* data-parallel ranks */
    int32_t dp_reduce;   /* ravel_framework: gradients are summed or averaged over them */
    int64_t micro_steps; /* of this update */
    int32_t cp;          /* context-parallel ranks */
    int32_t cp_reduce;   /* ravel_framework */
    int32_t step_reduce; /* ravel_framework: losses are summed or averaged over micro-steps */
    int32_t reserved;    /* 0 */
    ravel_place place;   /* where ravel_weights_fill writes; a device's mask needs a device's weights */
} ravel_weights_options;

RAVEL_API void ravel_weights_options_default(ravel_weights_options *options);
RAVEL_API ravel_option_table ravel_weights_option_table(void);

/* Writes the weights of every token of the bin's samples (NULL: the whole store): the sample's weight at loss tokens, 0
 * at the others. `weights` is [offsets[count]] of RAVEL_F32 or RAVEL_F64, one for each token as the token that is
 * predicted: pack it as RAVEL_FIELD_NEXT; of samples without tokens, [count], to pack as RAVEL_FIELD_SAMPLE. `counts`
 * are those of the whole update, over all ranks. */
RAVEL_API ravel_status ravel_weights_fill(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_field *mask,
                                          const double *sample_weights, const ravel_counts *counts,
                                          const ravel_weights_options *options, int32_t dtype, void *weights,
                                          ravel_error *err);

/* What the weights of all tokens on all ranks sum to: the factor, times
 *     token-mean 1;   seq-mean-token-mean: samples with loss / samples;   seq-mean-token-sum: loss tokens / samples;
 *     seq-mean-token-sum-norm: loss tokens / (samples * divisor)          (weighted, if there are weights)
 * 0 if there is no loss token at all. */
RAVEL_API ravel_status ravel_weights_total(const ravel_counts *counts, const ravel_weights_options *options,
                                           double *total, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
