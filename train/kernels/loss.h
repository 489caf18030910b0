/* train/kernels/loss.h: from log-probs of scored tokens to a loss and its derivatives, on the device.
 *
 * A row is one scored token. Two losses, both sums over rows, so that micro-batches and ranks simply add up:
 *
 *   negative log-likelihood (policy == NULL)
 *     loss = -weight * l                                  coef = -weight
 *
 *   policy, with l the log-prob now, o the old one (at the start of the batch), g the generator's, f the reference's
 *     ratio = exp(l - o)                                  or, `sequence`, exp(mean over the sample of l - o)
 *     loss  = weight * ( max(-ratio * A, -clip(ratio, 1 - clip_low, 1 + clip_high) * A)
 *                           and for A < 0 at most -dual_clip * A
 *                        * c                              the correction (ravel/policy.h); a constant to the derivative
 *                      + kl * k(l, f)                     k1: l - f, k2: (l - f)^2 / 2, k3: exp(f - l) - (f - l) - 1
 *                      - entropy * entropy of the row )
 *     coef = d(loss) / dl,  entropy_coef = d(loss) / d(entropy)
 *
 * With `sequence`, one ratio serves all tokens of a sample, and a correction may be one weight for all of them; then
 * all its log-probs must be known first (train__terms_couple): `sequence_sums` reduces them per sample, and the loss
 * kernel reads the sums. Where a sample's tokens are spread over ranks (context parallel), the sums of the ranks are
 * added in between.
 *
 * Samples that share a prefix share its log-probs, but not its losses: `first`, `list` and `row_of` then say which
 * losses each log-prob has, every loss with its own weight, advantage and old log-prob. Derivatives of a row are added
 * up over its losses; advantages never are, since the clip depends on their signs.
 *
 * What a run reports is added up on the device in `train_loss_sums` and read back once per update. */
#ifndef TRAIN_LOSS_H
#define TRAIN_LOSS_H

#include <ravel/policy.h>

/* Numbers of rows, in every set. */
#ifdef TRAIN_DOUBLE
typedef double train_real;
#define TRAIN__REAL RAVEL_F64
#else
typedef float train_real;
#define TRAIN__REAL RAVEL_F32
#endif

typedef enum train_kl { TRAIN_KL_K1, TRAIN_KL_K2, TRAIN_KL_K3 } train_kl;

/* Which log-prob is the trainer's for the weights that generated, so that it can be compared with the generator's. */
typedef enum train_gap { TRAIN_GAP_NONE, TRAIN_GAP_OLD, TRAIN_GAP_NOW } train_gap;

typedef struct train_policy_terms {
    int32_t sequence; /* one ratio per sample */
    int32_t kl_kind;  /* train_kl */
    int32_t gap;      /* train_gap */
    int32_t reserved; /* 0 */
    double clip_low, clip_high;
    double dual_clip; /* above 1; 0: off */
    double kl;        /* weight of the divergence from the reference; 0: off */
    double entropy;   /* weight of the entropy bonus; 0: off */
    ravel_correction correction;
} train_policy_terms;

/* Whether the loss of a token depends on the other tokens of its sample. */
static inline int train__terms_couple(const train_policy_terms *terms) {
    return terms->sequence || terms->correction.sequence;
}

/* Sums over rows; divide by `tokens` for means. Doubles alone, so that several can be added or sent as an array. */
typedef struct train_loss_sums {
    double loss;       /* what is minimised */
    double tokens;     /* rows */
    double nll;        /* sum of -l */
    double entropy;    /* sum of entropies, where they were worked out */
    double ratio;      /* this and the rest: policy only */
    double clipped;    /* rows whose derivative the clip took away */
    double approx_kl;  /* sum of exp(l - o) - (l - o) - 1 against the old policy */
    double kl;         /* sum of k against the reference */
    double gap;        /* sum of |trainer's log-prob for the generator's weights - g| */
    double gap_exp;    /* sum of exp of that */
    double gap_tokens; /* rows in these two: 0 if the trainer's log-probs are unknown */
    double corrected;  /* this and the next four: of the correction, as in ravel_policy_sums */
    double weight, weight_square, raw_square, outside;
    double ratio_max; /* the largest ratio, and */
    double gap_max;   /* the largest gap: maxima, not sums; 0 if there are no rows */
} train_loss_sums;

/* Per sample: what `sequence_sums` finds. */
typedef struct train_sequence_sums {
    double step;   /* sum of l - o */
    double tokens; /* rows */
    double gap;    /* sum of o - g, with a correction of samples */
    double weight; /* sum of weight * c, with a correction of tokens; else of weight */
} train_sequence_sums;

/* Arrays are on the device, [rows]; those that the terms do not ask for may be NULL. With `first`, row r has the losses
 * list[first[r]] .. list[first[r + 1] - 1], and weights, old, generator, reference, advantages and samples are
 * [losses]. */
typedef struct train_loss_rows {
    int64_t rows;
    const train_policy_terms *policy; /* host memory; NULL: negative log-likelihood */
    const train_real *logprob;        /* l */
    const train_real *entropy;        /* NULL: not worked out */
    const float *weights;
    const float *old, *generator, *reference, *advantages; /* o, g, f, A; policy only. old NULL: o = l, a constant */
    const int32_t *samples;                                /* sample of the row, ascending; coupled only */
    const train_sequence_sums *sequences;                  /* [samples] coupled only */
    train_real *coef;                                      /* = */
    train_real *entropy_coef;                              /* = if given: with an entropy bonus */
    train_loss_sums *sums;                                 /* += (maxima: the larger) */
    int64_t losses;        /* with `first`: of all rows, for sequence_sums; else unused */
    const int32_t *first;  /* [rows + 1] NULL: row r has loss r alone */
    const int32_t *list;   /* [losses] */
    const int32_t *row_of; /* [losses] of a loss; for sequence_sums, which takes all rows */
} train_loss_rows;

#endif
