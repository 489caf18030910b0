/* train/rl/policy.h: the options of GRPO and its variants, and how the length of an answer changes its reward. Pure
 * functions; no model, no batch layout, no communication. Rewards become advantages in ravel/policy.h; the loss per
 * token is a kernel, train/kernels/loss.h. */
#ifndef TRAIN_POLICY_H
#define TRAIN_POLICY_H

#include <ravel/policy.h>

#include "train/kernels/loss.h"

/* Estimators whose gradient is that of a divergence. k1, l - f, is not among them: its gradient is 0 in the mean. */
typedef enum train_policy_kl { TRAIN_POLICY_K2, TRAIN_POLICY_K3 } train_policy_kl;
#define TRAIN_KL_CHOICES "k2|k3"

typedef struct train_policy {
    int32_t advantage; /* ravel_advantage */
    int32_t ratio;     /* ravel_ratio */
    int32_t kl_kind;   /* train_policy_kl */
    double clip_low, clip_high;
    double dual_clip;                       /* above 1; 0: off */
    double kl;                              /* weight of the divergence from the reference model; 0: off */
    int32_t correction;                     /* ravel_correction_kind */
    double correction_low, correction_high; /* its limits; 0: the row's */
    double overlong_penalty;
    int64_t overlong_buffer; /* tokens below the limit over which the penalty grows; 0: off */
} train_policy;

/* The rows behind `ravel train grpo --help`. */
ravel_option_table train_policy_option_table(void);

/* The length penalty (DAPO's soft overlong punishment) of answers near the limit: 0 up to limit - buffer tokens, then
 * linear down to -penalty at the limit. Added to the reward. */
double train_overlong(const train_policy *policy, int64_t tokens, int64_t limit);

/* The options of the loss kernel, of options that train_config_check accepts; `gap` and `entropy` (weight of the bonus)
 * are the caller's. */
train_policy_terms train_policy_terms_of(const train_policy *policy, train_gap gap, double entropy);

#endif
