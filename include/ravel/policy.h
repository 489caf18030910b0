/* ravel/policy.h (experimental): rewards to advantages, and the policy losses of RL, over plain arrays. Pure
 * functions in double; no
 * model, no batch layout, no communication, so that any framework can call them.
 *
 * Per group (the answers to one prompt), rewards r become advantages A:
 *     grpo      (r - mean) / (std + 1e-6)         std over the group, with G - 1
 *     dr-grpo    r - mean                         no division, so all prompts have equal weight
 *     rloo       r - mean of the others           = (r - mean) * G / (G - 1)
 *     none       r
 *
 * The loss is a sum over tokens, so that micro-batches and ranks simply add up. With l the log-prob of a token now, o
 * the old one (at the start of the batch), g the generator's, f the reference's and w its weight (ravel/weights.h):
 *     ratio = exp(l - o)                           or, ratio = sequence, exp(mean over the sample of l - o)
 *     loss  = w * ( max(-ratio * A, -clip(ratio, 1 - clip_low, 1 + clip_high) * A)
 *                      and for A < 0 at most -dual_clip * A
 *                   * c                            the correction below; a constant to the derivative
 *                   + kl * k(l, f) )               k2: (l - f)^2 / 2, k3: exp(f - l) - (f - l) - 1
 *
 * The generator's log-probs are never quite the trainer's: other kernels, other weights. The correction c weighs each
 * token by x = exp(o - g), or each sample by x = exp(sum over its tokens of o - g), inside the limits [low, high];
 * outside it is the nearer limit (truncated: tis, seq-tis) or 0 (masked: mis, seq-mis, icepop). cispo weighs by x =
 * exp(l - g), truncated, and in place of the clipped ratio has -A * l: the gradient of every token is kept.
 * RAVEL_CORRECTION_LIST has the papers.
 *
 *     ravel_advantages(RAVEL_ADVANTAGE_GRPO, rewards, groups, count, advantages, scratch, &err);
 *     ravel_policy_rows rows = {.size = sizeof rows, .count = tokens, .logprobs = now, .old = old,
 *                               .advantages = advantages_of_tokens, .weights = weights};
 *     ravel_policy_loss(NULL, &rows, NULL, slopes, &sums, &err);              slopes: d(sums.loss) / d(logprobs)
 */
#ifndef RAVEL_POLICY_H
#define RAVEL_POLICY_H

#include <ravel/options.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- advantages ----------------------------------------------------------------------------------------- */

typedef enum ravel_advantage {
    RAVEL_ADVANTAGE_GRPO,
    RAVEL_ADVANTAGE_DR_GRPO,
    RAVEL_ADVANTAGE_RLOO,
    RAVEL_ADVANTAGE_NONE
} ravel_advantage;
#define RAVEL_ADVANTAGE_CHOICES "grpo|dr-grpo|rloo|none"

/* rewards[count] to advantages[count]; samples with equal groups[i] (any order, any ids) are a group. A group whose
 * rewards are all equal, or of one sample, has advantages of 0, except with kind none. scratch[2 * count]. E_ARGUMENT
 * for another kind, E_DATA names a reward that is not finite. */
RAVEL_API ravel_status ravel_advantages(int32_t kind, const double *rewards, const int64_t *groups, int64_t count,
                                        double *advantages, int64_t *scratch, ravel_error *err);

/* ---- the loss ------------------------------------------------------------------------------------------- */

/* Estimators of a divergence. The gradient of k1, l - f, is 0 in the mean: it is for reports. */
typedef enum ravel_kl { RAVEL_KL_K1, RAVEL_KL_K2, RAVEL_KL_K3 } ravel_kl;
#define RAVEL_KL_CHOICES "k1|k2|k3"

typedef enum ravel_ratio { RAVEL_RATIO_TOKEN, RAVEL_RATIO_SEQUENCE } ravel_ratio;
#define RAVEL_RATIO_CHOICES "token|sequence"

/* X(NAME, name, sequence, masked, now, low, high, paper): the weight is of the sample, not of the token; 0 outside of
 * the limits, not the nearer of them; of the log-prob now, not of the old one; the limits by default. */
#define RAVEL_CORRECTION_LIST(X)                                                                 \
    X(NONE, "none", 0, 0, 0, 0, 0, "")                                                           \
    X(TIS, "tis", 0, 0, 0, 0, 2,                                                                 \
      "Yao et al. 2025, Your Efficient RL Framework Secretly Brings You Off-Policy RL Training") \
    X(MIS, "mis", 0, 1, 0, 0, 2, "Liu et al. 2025, When Speed Kills Stability")                  \
    X(SEQ_TIS, "seq-tis", 1, 0, 0, 0, 2, "Liu et al. 2025, When Speed Kills Stability")          \
    X(SEQ_MIS, "seq-mis", 1, 1, 0, 0, 2, "Liu et al. 2025, When Speed Kills Stability")          \
    X(ICEPOP, "icepop", 0, 1, 0, 0.5, 5, "Ling team 2025, Every Step Evolves, arXiv:2510.18855") \
    X(CISPO, "cispo", 0, 0, 1, 0, 5, "MiniMax 2025, MiniMax-M1, arXiv:2506.13585; the limit of arXiv:2510.13786")

typedef enum ravel_correction_kind {
#define X(NAME, name, sequence, masked, now, low, high, paper) RAVEL_CORRECTION_##NAME,
    RAVEL_CORRECTION_LIST(X)
#undef X
        RAVEL_CORRECTIONS
} ravel_correction_kind;
#define RAVEL_CORRECTION_CHOICES "none|tis|mis|seq-tis|seq-mis|icepop|cispo"

typedef struct ravel_correction {
    int32_t kind; /* ravel_correction_kind; NONE: the weight is 1 */
    int32_t sequence, masked, now;
    double low, high;
    const char *name, *paper;
} ravel_correction;

/* The row of a kind. A limit that is not 0 takes the place of the row's. E_ARGUMENT for another kind, for limits that
 * are no range, and for limits without a correction. */
RAVEL_API ravel_status ravel_policy_get_correction(int32_t kind, double low, double high, ravel_correction *correction,
                                                   ravel_error *err);

typedef struct ravel_policy_options {
    size_t size;     /* sizeof(ravel_policy_options), set by ravel_policy_options_default */
    int32_t ratio;   /* ravel_ratio */
    int32_t kl_kind; /* ravel_kl */
    double clip_low, clip_high;
    double dual_clip;                       /* above 1; 0: off */
    double kl;                              /* weight of the divergence from the reference; 0: off */
    int32_t correction;                     /* ravel_correction_kind */
    double correction_low, correction_high; /* its limits; 0: the row's */
} ravel_policy_options;

RAVEL_API void ravel_policy_options_default(ravel_policy_options *options);
RAVEL_API ravel_option_table ravel_policy_option_table(void);

/* Arrays of `count` tokens, borrowed for the call. Those that the options do not ask for may be NULL. */
typedef struct ravel_policy_rows {
    size_t size; /* sizeof(ravel_policy_rows) */
    int64_t count;
    const float *logprobs;   /* l */
    const float *old;        /* o; NULL: o = l, a constant: the first step of a batch */
    const float *generator;  /* g; with a correction */
    const float *reference;  /* f; with kl */
    const float *advantages; /* A of each token */
    const float *weights;    /* w; 0 leaves a token out */
    const int32_t *samples;  /* ratio or correction of samples: that of each token, 0 .. sample_count-1, in any order */
    int64_t sample_count;
} ravel_policy_rows;

/* Sums over tokens; divide by `tokens` for means. */
typedef struct ravel_policy_sums {
    double loss;          /* what is minimised */
    double tokens;        /* with a weight that is not 0; so are all below */
    double ratio;         /* of ratios, and */
    double ratio_max;     /* the largest; 0 if there are no tokens */
    double clipped;       /* tokens whose derivative the clip took away */
    double approx_kl;     /* of exp(l - o) - (l - o) - 1, against the old policy */
    double kl;            /* of k, against the reference */
    double corrected;     /* tokens that a correction weighed, or samples, if it weighs those; 0: none. Over these: */
    double weight;        /* of c, */
    double weight_square; /* of c^2: the effective share of the sample is weight^2 / (corrected * weight_square), */
    double raw_square;    /* of x^2: chi-square of trainer and generator is raw_square / corrected - 1, */
    double outside;       /* those beyond the limits: dropped if masked, else truncated */
} ravel_policy_sums;

/* losses[count] (may be NULL): each token's part of sums->loss. slopes[count] (may be NULL): d(sums->loss) / dl.
 * options NULL: the defaults. Sums are set, not added to. E_ARGUMENT for an option out of range or an array that is
 * missing, E_DATA for a sample number outside of its range. */
RAVEL_API ravel_status ravel_policy_loss(const ravel_policy_options *options, const ravel_policy_rows *rows,
                                         float *losses, float *slopes, ravel_policy_sums *sums, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
