/* Communication of tensor parallelism: all-reduces and all-gathers over the ranks that share every layer. Internal to
 * train/.
 *
 * A rank holds a share of the heads, of the feed-forward columns and of the vocabulary (train_slice), and all rows:
 *
 *     xn ── qkv (columns) ── attention on its heads ── o (rows) ── SUM ── + ── norm ── gate up (columns) ── down (rows) ── SUM
 *     tokens ── embedding (its part of the vocabulary, zeros elsewhere) ── SUM
 *     rows ── logits of its part ── max, sum, target: GATHER ── log-probs of the whole vocabulary
 *
 * and in backward a SUM after each product by columns, whose gradient of the input is partial on each rank.
 *
 * The layers' functions return no status, so the first failure of a communicator is stored here and later calls do
 * nothing; the function that runs a batch returns it at its end. */
#ifndef TRAIN_PARALLEL_H
#define TRAIN_PARALLEL_H

#include <ravel/comm.h>

typedef struct train__link {
    ravel_comm *comm; /* NULL: one rank */
    int32_t ranks, rank;
    ravel_status status; /* the first failure */
    ravel_error error;
} train__link;

/* A link over `comm`, or of one rank where it is NULL. */
train__link train__link_over(ravel_comm *comm);
/* Another communicator for the link; a failure stays. */
void train__link_set(train__link *link, ravel_comm *comm);
/* x = the sum over ranks, in place; no operation with one rank. */
void train__link_sum(train__link *link, void *x, int64_t count, int32_t dtype);
/* all [ranks, count] = every rank's `mine`. */
void train__link_gather(train__link *link, const void *mine, void *all, int64_t count, int32_t dtype);
/* Sends `out` to the next rank and receives `in` from the one before, around the ring. */
void train__link_shift(train__link *link, const void *out, void *in, int64_t count, int32_t dtype);
/* The first failure, reported once. */
ravel_status train__link_status(train__link *link, ravel_error *err);

#endif
