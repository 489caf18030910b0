/* A kernel set with parts left out: a step then runs the others alone, over the same shapes and memory. It also counts
 * what a part's calls must read and write, and can time one part inside a whole step. */
#ifndef BENCH_GPU_PARTS_H
#define BENCH_GPU_PARTS_H

#include "train/kernels/kernels.h"

enum {
    PART_LAYERS = 1,    /* products of layers */
    PART_HEAD = 2,      /* products of the head */
    PART_ATTENTION = 4, /* forward and backward */
    PART_EMBED = 8,     /* the embedding, its gradient, rows moved, biases */
    PART_NORM = 16,
    PART_NORM_BACK = 32,
    PART_ROPE = 64,
    PART_ROPE_BACK = 128,
    PART_SWIGLU = 256,
    PART_SWIGLU_BACK = 512,
    PART_LOSS = 1024,      /* softmax and loss */
    PART_OPTIMIZER = 2048, /* norm of the gradient, AdamW */
    PART_ALL = 4095,
    PART_ROWS = PART_EMBED | PART_NORM | PART_NORM_BACK | PART_ROPE | PART_ROPE_BACK | PART_SWIGLU | PART_SWIGLU_BACK,
    PART_SKELETON = PART_LAYERS | PART_HEAD | PART_ATTENTION
};

/* The table that calls `real`; all parts at first. There is one. `vocab` tells the head's products. */
const train_kernels *parts_of(const train_kernels *real, int64_t vocab);
void parts_keep(uint32_t parts);

typedef struct parts_traffic {
    int64_t calls;
    double bytes; /* read and written once each; of weights and tables, which stay in a cache, nothing */
} parts_traffic;

/* From here on the time of this part's calls is in the phase TRAIN_PHASE_OPTIMIZER, which nothing else uses, and the
 * counts begin at 0. 0: no part. Not for products and attention. */
void parts_watch(uint32_t part);
parts_traffic parts_watched(void);

#endif
