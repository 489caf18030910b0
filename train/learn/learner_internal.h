/* The struct train_learner, shared by learner.c, update.c and checkpoint.c. */
#ifndef TRAIN_LEARNER_INTERNAL_H
#define TRAIN_LEARNER_INTERNAL_H

#include "train/learn/learner.h"
#include "train/learn/parts_internal.h"

/* One part of the model and its optimiser. */
typedef struct train__part {
    train_model *model;
    train_optimizer *optimizer;
    const train_shares *shares; /* the optimiser's: of one rank if nothing is sharded */
    void *run;                  /* [shares->most_of_unit] where reduce-scatter puts a run; NULL if it is not used */
} train__part;

struct train_learner {
    train_learner_options options;
    ravel_shape shape;
    ravel_mesh *mesh;
    ravel_comm *world; /* all trainer ranks */
    /* data-parallel and context-parallel ranks: they have the same parameters; of device arrays */
    ravel_comm *replicas;
    int32_t ranks, rank; /* in `replicas` */
    int64_t *run_counts; /* [ranks] scratch */
    ravel_comm *sharers; /* tp and pp: they have the parts of one model; NULL: this rank has it all */
    ravel_comm *ends;    /* first and last stage, where the embedding is tied; else NULL; of device arrays */
    ravel_comm *ends_host;
    double *squares;    /* [ranks of sharers * count] on the host, and */
    void *square_block; /* on the device */
    int32_t count;      /* of parts */
    train_parts *parts;
    train__part part[TRAIN_CHUNKS];
    const train_kernels *kernels;
    train_device *device;
    int32_t eos;         /* token that ends an answer, for config.json; -1: not known */
    train_update update; /* of the last train_learner_step */
};

#endif
