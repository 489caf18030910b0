/* train/learn/gather.h: rows of a whole model's arrays from the ranks that have parts of them. Internal to train/learn.
 *
 * Rank 0 asks for the rows of every tensor, block by block in the order of the whole model's table (train_rows_source);
 * all other ranks send their parts of each block in the same order. A block comes from every tensor-parallel rank that
 * counts the tensor and, where an array is sharded, from each rank that has a piece; no rank ever holds more than a
 * block of it.
 *
 *     rank 0:   train__gather_open, then `rows` as often as the table says, then train__gather_drain
 *     others:   train__gather_open, then train__gather_send
 *
 * The files do not depend on the mesh: a reader may have another one. */
#ifndef TRAIN_GATHER_H
#define TRAIN_GATHER_H

#include "train/kernels/arena.h"
#include "train/learn/learner_internal.h"
#include "train/model/hf/hf.h"

/* Which array: one of train_states, or the weights. */
enum { TRAIN__WEIGHTS = TRAIN_MASTER + 1 };

typedef struct train__gather {
    train_learner *l;
    train__arena arena; /* of all arrays here */
    int32_t which;
    train_rows_source rows; /* rank 0 */
    train_params *whole;    /* the table of the whole model */
    train_params **tables;  /* rank 0: [parts * tp] */
    train_shares **shares;  /* rank 0: of each table, over the replicas */
    int32_t table_count;
    int32_t *members; /* [ranks] groups of replicas, see ravel_mesh_groups */
    void *piece, *block;
    int64_t piece_bytes;
    int64_t tensor, row; /* the next block */
} train__gather;

ravel_status train__gather_open(train__gather *g, train_learner *learner, ravel_error *err);
/* Begins with the rows of one of the arrays. */
void train__gather_begin(train__gather *g, int32_t which);
/* All but rank 0: sends everything. */
ravel_status train__gather_send(train__gather *g, ravel_error *err);
/* Rank 0: receives and drops the blocks that were not asked for. */
ravel_status train__gather_drain(train__gather *g, ravel_error *err);
void train__gather_close(train__gather *g);

/* The table of what is trained: of a part, or (NULL) of the whole model. */
ravel_status train__learner_params(const train_learner *learner, const train_slice *part, train_params **params,
                                   ravel_error *err);
/* A part's array on this rank. */
train_array train__array_of(const train_learner *l, int32_t chunk, int32_t which);

#endif
