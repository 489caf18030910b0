/* Weights of samples whose loss tokens are known, or that are cut: their masks are not whole. Internal to libravel. */
#ifndef RAVEL_BATCH_WEIGHTS_H
#define RAVEL_BATCH_WEIGHTS_H

#include <ravel/weights.h>

/* ravel_weights_fill; loss_tokens [count of the bin or store]: of each whole sample; NULL: counted here. */
ravel_status ravel__weights_fill(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_field *mask,
                                 const double *sample_weights, const int64_t *loss_tokens, const ravel_counts *counts,
                                 const ravel_weights_options *options, int32_t dtype, void *weights, ravel_error *err);

#endif
