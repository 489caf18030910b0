/* What the files of the CUDA module share. Kernels return a cudaError_t as int. */
#ifndef RAVEL_DEVICE_CUDA_H
#define RAVEL_DEVICE_CUDA_H

#include "device/driver.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The module's one export. */
RAVEL_API const ravel__driver *ravel_driver(void);

/* Makes the device current for this thread, and what was current before again; `code` is passed through. */
int ravel__cuda_enter(void *inside, int *before);
int ravel__cuda_leave(void *inside, int before, int code);

int ravel__cuda_rows(const ravel__rows *rows, void *stream);
int ravel__cuda_count_mask(const ravel__mask_job *job, void *stream);
int ravel__cuda_cast(const ravel__cast_job *job, void *stream);
int ravel__cuda_compare(const ravel__compare_job *job, void *stream);

#ifdef __cplusplus
}
#endif
#endif
