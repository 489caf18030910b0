/* A kernel set with parts left out: a step then runs the others alone, over the same shapes and memory. */
#ifndef BENCH_GPU_PARTS_H
#define BENCH_GPU_PARTS_H

#include "train/kernels/kernels.h"

enum {
    PART_LAYERS = 1,     /* products of layers */
    PART_HEAD = 2,       /* products of the head */
    PART_ATTENTION = 4,  /* forward and backward */
    PART_ROWS = 8,       /* embedding, norms, rotation, swiglu */
    PART_LOSS = 16,      /* softmax and loss */
    PART_OPTIMIZER = 32, /* norm of the gradient, AdamW */
    PART_ALL = 63,
    PART_SKELETON = PART_LAYERS | PART_HEAD | PART_ATTENTION
};

/* The table that calls `real`; all parts at first. There is one. `vocab` tells the head's products. */
const train_kernels *parts_of(const train_kernels *real, int64_t vocab);
void parts_keep(uint32_t parts);

#endif
