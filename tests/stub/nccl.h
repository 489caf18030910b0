/* NCCL on the stub's streams (gpu.h): an operation runs in its stream's thread, where it waits for the other ranks, as NCCL's kernels
 * do on a GPU. Ranks are threads or processes of one machine: bytes go through a file in shared memory. Sums are added in the order of
 * ranks, as communicators of host memory add. */
#ifndef TESTS_STUB_NCCL_H
#define TESTS_STUB_NCCL_H

#include "comm/nccl.h"

extern const ravel__nccl stub_nccl;

#endif
