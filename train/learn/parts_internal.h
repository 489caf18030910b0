/* The struct train_parts, shared by parts.c (create, free), parts_run.c (run) and the learner. */
#ifndef TRAIN_PARTS_INTERNAL_H
#define TRAIN_PARTS_INTERNAL_H

#include "train/kernels/arena.h"
#include "train/learn/parts.h"
#include "train/model/hf/base.h"

/* A micro-batch in flight. */
typedef struct train__flight {
    train_loss loss;
    int64_t rows;         /* of the micro-batch on this rank */
    train__message forth; /* its output is being sent to the next part */
    train__message back;  /* the gradient of its input to the part before */
} train__flight;

struct train_parts {
    train_parts_options options;
    ravel_shape shape;
    ravel_mesh *mesh;
    ravel_mesh_layout layout;
    ravel_mesh_coord at;
    ravel_comm *pp;                 /* ranks of the pipeline, the mesh's */
    train__wires *wires;            /* NULL: arrays travel over host communicators; else these are NCCL's: */
    ravel_comm *tp, *cp, *replicas; /* the mesh's; replicas: ranks that have the same parameters */
    ravel_comm *ep_host, *experts_host, *ep,
        *experts;            /* ranks that share out the experts, and those of `replicas` that have
                                                          the same ones; NULL: no ranks do */
    ravel_comm *edges[2][2]; /* [gradients][sent]: rows or gradients, received (0) or sent (1): rank 0 sends */
    ravel_comm *ring_hosts[RAVEL_FIT_WIDTHS]; /* below `rings` */
    int32_t width_count;                      /* hybrid: widths that groups may have, rising, */
    int32_t widths[RAVEL_FIT_WIDTHS];
    ravel_comm *rings[RAVEL_FIT_WIDTHS]; /* and this rank's group of each; NULL: width 1 */
    const train_kernels *kernels;
    train_device *device;
    int32_t count; /* of chunks */
    train_model *models[TRAIN_CHUNKS];
    train_base bases[TRAIN_CHUNKS]; /* beside adapters: frozen weights that are mapped */
    int32_t flights[TRAIN_CHUNKS];
    train__flight running[TRAIN_CHUNKS][TRAIN_FLIGHTS];
    ravel_status sent; /* the first failure of a send that ended between products */
    ravel_error sent_error;
    train__arena arena;    /* of the next two */
    int32_t *cu;           /* [budget + 1] where a context-parallel rank's shards begin */
    float *logprob;        /* [budget] of a micro-batch that is scored */
    double *micro_seconds; /* [micro_count] of the last update, without waits */
    int64_t micro_count, micro_room;
    double aux;                  /* coefficient of the load loss of experts; 0: it is not trained */
    int64_t *load;               /* [layers, experts] of the last update */
    float *balance;              /* [experts] */
    int32_t *counted;            /* [budget] tokens of a shard that are no alignment */
    train_router_figures router; /* of the last update */
    int16_t *routes;             /* [budget, layers, active] of a micro-batch that is scored; with options.replay */
};

/* Moves the sends that are under way along, without waiting; `user` is a train_parts. */
void train__parts_progress(void *user);

/* The model part that a chunk of this rank is: chunk * pp + stage. */
static inline int32_t train__parts_number(const train_parts *p, int32_t chunk) {
    RAVEL_ASSERT(chunk >= 0 && chunk < p->count);
    return chunk * train_layout_pp(&p->layout) + p->at.pp;
}

/* The communicator of the same ranks for arrays of the device: `host` itself, or NCCL's. Collective over `host` if
 * it is NCCL's for the first time. */
ravel_status train__parts_join(train_parts *p, ravel_comm *host, train__wire_use use, ravel_comm **comm,
                               ravel_error *err);

#endif
