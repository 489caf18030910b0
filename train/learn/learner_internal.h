/* The learner's own struct, for the two files that are the learner: learner.c and learner_state.c. */
#ifndef TRAIN_LEARNER_INTERNAL_H
#define TRAIN_LEARNER_INTERNAL_H

#include "train/learn/learner.h"

struct train_learner {
    const train_config *config;
    const ravel_allocator *allocator;
    ravel_shape shape;
    ravel_comm *comm;
    const train_kernels *kernels;
    train_device *device;
    train_model *model;
    train_optimizer *optimizer;
    int64_t *counts; /* [ranks] elements of each rank's share; one that holds all, without ZeRO */
    int64_t first;   /* of this rank's share */
    int32_t ranks, rank;
    int32_t eos;       /* token that ends an answer, for config.json; -1: not known */
    train_real *share; /* [counts[rank]] where reduce-scatter puts it; NULL without ZeRO */
    float *weights;    /* [budget] shifted */
    int64_t weights_room;
};

#endif
