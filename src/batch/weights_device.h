/* Counting a mask and writing weights where they are: on a device. */
#ifndef RAVEL_BATCH_WEIGHTS_DEVICE_H
#define RAVEL_BATCH_WEIGHTS_DEVICE_H

#include "batch/mask.h"
#include "batch/rows.h"

/* Loss tokens of the bin's samples (NULL: of the whole store), [n], which the caller releases with its n *
 * sizeof(int64_t) bytes. Waits for the device. E_DATA names the first token whose mask is neither 0 nor 1. */
ravel_status ravel__count_on_device(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_field *field,
                                    const ravel__mask *mask, int64_t **counts, ravel_error *err);

/* The track that writes values[run] at loss tokens into `weights`, of `bytes` bytes each. */
void ravel__book_weights(ravel__book *book, const ravel__mask *mask, void *weights, int32_t bytes);

#endif
