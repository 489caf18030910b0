/* train/run/config/cost.h: what a sample costs, so that ranks get equal work: --cost.
 *
 *     model    (the default) FLOPs of the model that is trained: forward, backward (of frozen layers without the gradients of
 *              weights), recomputation, the reference model, and the LM head on the tokens that are scored
 *     fit      `model` at first; after a few updates a model that fits the measured micro-batches of all ranks. It is kept in
 *              the checkpoint
 *     else     what `ravel plan --cost` takes (ravel_cost_read)
 *
 * The plan's idle share is only as good as its cost: plan/idle_measured stands beside plan/idle_share.
 *
 *     train_cost_open(&cost, &own, kind, &shape, scored, comm, &err);      sets own.plan.cost, before the feed is made
 *     train_cost_resume(&cost, &own, &run.state);                          what a checkpoint has
 *     ... after train_parts_learn of an update:
 *     train_cost_add(&cost, &own, &run, mesh, feed, parts, &changed, &err);
 *     if (changed) the feed is made again, since its plans are to have the new cost
 *     train_cost_close(&cost);
 */
#ifndef TRAIN_COST_H
#define TRAIN_COST_H

#include "train/run/run.h"

enum { TRAIN_COST_PRICES = 256 };

typedef struct train_cost {
    char prices[TRAIN_COST_PRICES]; /* of a file: what plan.cp_price points to */
    int32_t fits;                   /* measurements are still being collected */
    int64_t updates;                /* of these, */
    int64_t count;                  /* and measurements of this rank */
    void *blocks;                   /* [block_count] this rank's measurements, then those of all ranks */
    size_t block_count;
    double *seconds; /* [seconds_room] of the micro-batches of an update, of all ranks */
    int64_t seconds_room;
} train_cost;

/* The cost of `model`: a pure function. scored: share of tokens that the LM head is run on, 0 .. 1. */
ravel_status train_cost_of_model(const train_config *config, train_kind kind, const ravel_shape *shape, double scored,
                                 ravel_cost *result, ravel_error *err);
/* Whether the word of --cost can be used. Files are opened. */
ravel_status train_cost_check(const char *word, ravel_error *err);

/* Collective: rank 0 reads the file. */
ravel_status train_cost_open(train_cost *cost, train_config *own, train_kind kind, const ravel_shape *shape,
                             double scored, ravel_comm *comm, ravel_error *err);
/* A resumed run: the fitted cost of its checkpoint. */
void train_cost_resume(train_cost *cost, train_config *own, const train_state *state);
void train_cost_close(train_cost *cost);

/* Collective over the mesh, after an update's train_parts_learn: measures how long ranks waited for one another, and
 * with `fit` collects, and sets the cost when there are enough measurements. *changed: own->plan.cost is another
 * now. */
ravel_status train_cost_add(train_cost *cost, train_config *own, train_run *run, const ravel_mesh *mesh,
                            const ravel_feed *feed, const train_parts *parts, int *changed, ravel_error *err);

/* Adds what a micro-batch computes: what samples share counts once, as in plans (ravel/tree.h). */
void train_cost_add_sizes(ravel_cost_sample *sample, const ravel_micro_batch *micro);

/* The share of the time that ranks waited for one another. seconds [ranks][steps]; met in every micro-step, or once. */
double train_idle_share(const double *seconds, int32_t ranks, int64_t steps, int32_t every_step);

#endif
