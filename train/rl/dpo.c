#include "train/rl/dpo.h"

#include "train/kernels/assert.h"

#include <math.h>

double train_dpo_loss(double margin, double *slope) {
    double tail = exp(-fabs(margin)); /* exp of something that is never above 0 */
    TRAIN_ASSERT(!(tail < 0) && !(tail > 1));
    *slope = margin > 0 ? -tail / (1 + tail) : -1 / (1 + tail);
    return (margin > 0 ? 0 : -margin) + log1p(tail);
}
