/* The struct train_learner, shared by learner.c, update.c and checkpoint.c. */
#ifndef TRAIN_LEARNER_INTERNAL_H
#define TRAIN_LEARNER_INTERNAL_H

#include "train/learn/learner.h"

/* One part's optimiser, and this rank's share of it. */
typedef struct train__shares {
    train_model *model;
    train_optimizer *optimizer;
    int64_t *counts; /* [ranks] elements of each rank's share; all of them where nothing is sharded */
    int64_t first;   /* of this rank's share */
    int64_t *pieces; /* [ranks] sums of squares of each share; NULL where nothing is sharded */
    void *share;     /* [counts[rank]] where reduce-scatter puts it; NULL where nothing is sharded */
} train__shares;

struct train_learner {
    train_learner_options options;
    ravel_shape shape;
    ravel_mesh *mesh;
    ravel_comm *world;    /* all trainer ranks */
    ravel_comm *replicas; /* data-parallel and context-parallel ranks: they have the same parameters */
    int32_t ranks, rank;  /* in `replicas` */
    ravel_comm *sharers;  /* tp and pp: they have the parts of one model; NULL: this rank has it all */
    ravel_comm *ends;     /* first and last stage, where the embedding is tied; else NULL */
    double *squares;      /* [ranks of sharers * count] */
    int32_t count;        /* of parts */
    train_parts *parts;
    train__shares shares[TRAIN_CHUNKS];
    const train_kernels *kernels;
    train_device *device;
    int32_t eos;         /* token that ends an answer, for config.json; -1: not known */
    train_update update; /* of the last train_learner_finish */
};

/* Where the share of rank `rank` of `ranks` begins. Shares begin at multiples of TRAIN_SPAN, so that sums of squares do not
 * depend on them. */
int64_t train__share_begin(int64_t elements, int32_t ranks, int32_t rank);

#endif
