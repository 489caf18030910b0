/* train/rl/policy.h: the arithmetic of GRPO and its kin. Rewards to advantages, and log-probs to a loss and its
 * derivative. Pure functions on host arrays, in double; no model, no batch layout, no communication.
 *
 * Per group (the answers to one prompt), rewards r become advantages:
 *     grpo      (r - mean) / (std + 1e-6)         std over the group, with G - 1
 *     dr-grpo    r - mean                         no division: long and easy prompts weigh like any other
 *     rloo       r - mean of the others           = (r - mean) * G / (G - 1)
 *     none       r
 *
 * Per token, with l the trainer's log-prob now, o the old one (at the start of the batch), g the generator's and f the
 * reference model's:
 *     ratio = exp(l - o)                          or, ratio = sequence, exp(mean over the sample of l - o)
 *     loss  = -min(ratio * A, clip(ratio, 1 - clip_low, 1 + clip_high) * A)
 *             and for A < 0 never above -dual_clip * A
 *             * min(exp(o - g), tis)              truncated importance sampling, a constant to the derivative
 *           + kl * k(l, f)                        k1: l - f, k2: (l - f)^2 / 2, k3: exp(f - l) - (f - l) - 1
 * The sum over tokens of weight * loss is what training minimises, where the weights are Ravel's exact ones; what goes
 * into the backward pass is coef = d(sum) / dl, token by token. */
#ifndef TRAIN_POLICY_H
#define TRAIN_POLICY_H

#include <ravel/options.h>

typedef enum train_advantage {
    TRAIN_ADVANTAGE_GRPO,
    TRAIN_ADVANTAGE_DR_GRPO,
    TRAIN_ADVANTAGE_RLOO,
    TRAIN_ADVANTAGE_NONE
} train_advantage;
#define TRAIN_ADVANTAGE_CHOICES "grpo|dr-grpo|rloo|none"

typedef enum train_kl { TRAIN_KL_K1, TRAIN_KL_K2, TRAIN_KL_K3 } train_kl;
#define TRAIN_KL_CHOICES "k1|k2|k3"

typedef enum train_ratio { TRAIN_RATIO_TOKEN, TRAIN_RATIO_SEQUENCE } train_ratio;
#define TRAIN_RATIO_CHOICES "token|sequence"

typedef struct train_policy {
    int32_t advantage; /* train_advantage */
    int32_t ratio;     /* train_ratio */
    int32_t kl_kind;   /* train_kl */
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

/* The soft punishment of answers that come near the limit: 0 up to limit - buffer tokens, then linear down to -penalty
 * at the limit. Added to the reward. */
double train_overlong(const train_policy *policy, int64_t tokens, int64_t limit);

/* ---- the loss ------------------------------------------------------------------------------------------- */

/* Sums over tokens that have weight, so that several calls (samples, micro-batches, ranks) can be added up; divide by
 * `tokens` for means. */
typedef struct train_policy_sums {
    double loss;   /* sum of weight * loss: the figure that is minimised */
    double tokens; /* how many tokens had weight */
    double ratio, ratio_max;
    double clipped;    /* tokens whose derivative the clip took away */
    double approx_kl;  /* sum of exp(l - o) - (l - o) - 1 against the old policy */
    double kl;         /* sum of k against the reference */
    double gap;        /* sum of |trainer's log-prob for the generator's weights - g| */
    double gap_exp;    /* sum of exp of that: token_mult_prob_error is this over tokens */
    double gap_tokens; /* over how many tokens: 0 where nobody knows the trainer's */
    double gap_max;
    double tis;        /* sum of importance weights */
    double tis_capped; /* tokens whose importance weight was above the cap */
} train_policy_sums;

/* One sample of `count` tokens. Arrays of count: `now` (l), `old` (o), `generator` (g, or NULL where tis is off and no
 * gap is wanted), `reference` (f, NULL where kl is 0), `weights` (0 where a token carries no loss). Writes coef[count]
 * and adds to *sums. */
void train_policy_loss(const train_policy *policy, int64_t count, double advantage, const float *now, const float *old,
                       const float *generator, const float *trainer, const float *reference, const float *weights,
                       float *coef, train_policy_sums *sums);

#endif
