/* train/rl/dpo.h: the loss of direct preference optimisation, pure arithmetic.
 *
 * With lc, lr the sums of the policy's log-probs of the chosen and of the rejected answer, fc, fr those of the
 * reference:
 *     margin = beta * ((lc - fc) - (lr - fr))
 *     loss   = -log sigmoid(margin)                      log 2 where the policy still is the reference
 * (Rafailov et al., Direct Preference Optimization, arXiv 2305.18290, equation 7.) */
#ifndef TRAIN_DPO_LOSS_H
#define TRAIN_DPO_LOSS_H

#include <math.h>

#include "base/assert.h"

/* The loss of a margin, and its derivative by it. */
static inline double train_dpo_loss(double margin, double *slope) {
    double tail = exp(-fabs(margin)); /* exp of something that is never above 0 */
    RAVEL_ASSERT(!(tail < 0) && !(tail > 1));
    *slope = margin > 0 ? -tail / (1 + tail) : -1 / (1 + tail);
    return (margin > 0 ? 0 : -margin) + log1p(tail);
}

/* Sums over pairs. */
typedef struct train_dpo_sums {
    double loss;             /* of weight * loss: what is minimised */
    double plain;            /* of the loss */
    double pairs;            /* how many */
    double right;            /* pairs whose margin is above 0 */
    double chosen, rejected; /* of the rewards, beta * (lc - fc) and beta * (lr - fr) */
} train_dpo_sums;

#endif
