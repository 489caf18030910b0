/* train/rl/policy.h: the options of GRPO and its variants, and rewards to advantages. Pure functions on host arrays, in
 * double; no model, no batch layout, no communication.
 *
 * Per group (the answers to one prompt), rewards r become advantages:
 *     grpo      (r - mean) / (std + 1e-6)         std over the group, with G - 1
 *     dr-grpo    r - mean                         no division, so all prompts have equal weight
 *     rloo       r - mean of the others           = (r - mean) * G / (G - 1)
 *     none       r
 *
 * The loss per token is a kernel: train/kernels/loss.h has its formula. */
#ifndef TRAIN_POLICY_H
#define TRAIN_POLICY_H

#include <ravel/options.h>

#include "train/kernels/loss.h"

/* The numbers of ravel_advantage. */
typedef enum train_advantage {
    TRAIN_ADVANTAGE_GRPO,
    TRAIN_ADVANTAGE_DR_GRPO,
    TRAIN_ADVANTAGE_RLOO,
    TRAIN_ADVANTAGE_NONE
} train_advantage;
#define TRAIN_ADVANTAGE_CHOICES "grpo|dr-grpo|rloo|none"

/* Estimators whose gradient is that of a divergence. k1, l - f, is not among them: its gradient is 0 in the mean. */
typedef enum train_policy_kl { TRAIN_POLICY_K2, TRAIN_POLICY_K3 } train_policy_kl;
#define TRAIN_KL_CHOICES "k2|k3"

typedef enum train_ratio { TRAIN_RATIO_TOKEN, TRAIN_RATIO_SEQUENCE } train_ratio;
#define TRAIN_RATIO_CHOICES "token|sequence"

typedef struct train_policy {
    int32_t advantage; /* train_advantage */
    int32_t ratio;     /* train_ratio */
    int32_t kl_kind;   /* train_policy_kl */
    int32_t reserved;
    double clip_low, clip_high;
    double dual_clip; /* above 1; 0: off */
    double kl;        /* weight of the divergence from the reference model; 0: off */
    double tis;       /* cap of the importance weight; 0: off */
    double overlong_penalty;
    int64_t overlong_buffer; /* tokens below the limit over which the penalty grows; 0: off */
} train_policy;

/* The rows behind `ravel train grpo --help`. */
ravel_option_table train_policy_option_table(void);

/* ---- rewards -------------------------------------------------------------------------------------------- */

/* rewards[count] to advantages[count]; samples with equal groups[i] (any order, any ids) are a group. A group whose
 * rewards are all equal, or of one sample, has advantages of 0, except with kind none. scratch[2 * count]. */
void train_advantages(int32_t kind, const double *rewards, const int64_t *groups, int64_t count, double *advantages,
                      int64_t *scratch);

/* The length penalty (DAPO's soft overlong punishment) of answers near the limit: 0 up to limit - buffer tokens, then linear down to -penalty
 * at the limit. Added to the reward. */
double train_overlong(const train_policy *policy, int64_t tokens, int64_t limit);

/* ---- the loss ------------------------------------------------------------------------------------------- */

/* The options of the loss kernel; `gap` and `entropy` (weight of the bonus) are the caller's. */
train_policy_terms train_policy_terms_of(const train_policy *policy, train_gap gap, double entropy);

#endif
