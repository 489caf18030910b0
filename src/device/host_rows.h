/* The jobs of kernels.h in plain C: the reference, and the host driver's implementation. */
#ifndef RAVEL_DEVICE_HOST_ROWS_H
#define RAVEL_DEVICE_HOST_ROWS_H

#include "device/kernels.h"

void ravel__host_rows(const ravel__rows_head *block);
void ravel__host_count_mask(const ravel__mask_job *job);
void ravel__host_cast(const ravel__cast_job *job);
void ravel__host_compare(const ravel__compare_job *job);

#endif
