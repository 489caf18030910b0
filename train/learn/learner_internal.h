/* The learner's own struct, for the files that are the learner: learner.c and checkpoint.c. */
#ifndef TRAIN_LEARNER_INTERNAL_H
#define TRAIN_LEARNER_INTERNAL_H

#include "train/learn/learner.h"

struct train_learner {
    train_learner_options options;
    ravel_shape shape;
    ravel_comm *comm;
    const train_kernels *kernels;
    train_device *device;
    train_model *model;
    train_optimizer *optimizer;
    int64_t *counts; /* [ranks] elements of each rank's share; one that holds all, without ZeRO */
    int64_t first;   /* of this rank's share */
    int32_t ranks, rank;
    int32_t eos;         /* token that ends an answer, for config.json; -1: not known */
    void *share;         /* [counts[rank]] where reduce-scatter puts it; NULL without ZeRO */
    train_update update; /* of the last train_learner_finish */
    float *weights;      /* [budget] at the tokens that they weigh */
};

/* Weights of the chosen folder, or new ones. */
ravel_status train__set_weights(train_model *model, const train_model_choice *choice, ravel_error *err);

#endif
