/* train/learn/pipeline.h: the order in which a pipeline stage runs its micro-batches, as a table. Pure functions: a
 * test simulates the tables of all stages, for deadlocks, memory and the time that the planner predicts
 * (ravel_pipeline_bubble).
 *
 * The model is cut into pp * vpp parts; part c * pp + p is chunk c of stage p. Micro-batch m goes forward through all
 * parts and back. With vpp 1 this is 1F1B, with more the interleaved schedule:
 *
 *     pp 2, vpp 1      stage 0   F0 F1 B0 F2 B1 F3 B2 B3        a stage holds at most pp - p micro-batches
 *                      stage 1   F0 B0 F1 B1 F2 B2 F3 B3
 *
 * Interleaved: micro-batches go in groups of pp through chunk 0, then chunk 1, ...; backward through the last chunk
 * first. The number of micro-batches is then a multiple of pp (the feed adds fillers). Per chunk, forwards and
 * backwards are both in the order of micro-batches, so a chunk's micro-batches in flight use its places in turn. */
#ifndef TRAIN_PIPELINE_H
#define TRAIN_PIPELINE_H

#include <ravel/base.h>

typedef struct train_pipeline {
    int32_t pp, vpp;
    int64_t micros; /* micro-batches of the update */
} train_pipeline;

/* E_ARGUMENT says what is wrong: vpp without pp, micro-batches that are no multiple of pp with vpp. */
ravel_status train_pipeline_check(const train_pipeline *p, ravel_error *err);

typedef struct train_op {
    int64_t micro;
    int32_t chunk;
    int32_t backward;
} train_op;

/* Operations of one stage: 2 * micros * vpp, and number `index` of them. */
int64_t train_pipeline_ops(const train_pipeline *p);
train_op train_pipeline_op(const train_pipeline *p, int32_t stage, int64_t index);

/* Micro-batches of a chunk between the start of their forward and the end of their backward, at most, for any number of
 * micro-batches. */
int32_t train_pipeline_flights(int32_t pp, int32_t vpp, int32_t stage, int32_t chunk);

#endif
