/* Communication inside a layer: the collectives of tensor parallelism, and the ring of context parallelism. Internal to
 * train/.
 *
 * A tensor-parallel rank holds a share of the heads, of the feed-forward columns and of the vocabulary (train_slice):
 *
 *     xn ── qkv (columns) ── attention on its heads ── o (rows) ── SUM ── + ── norm ── gate up (columns) ── down (rows) ── SUM
 *     tokens ── embedding (its part of the vocabulary, zeros elsewhere) ── SUM
 *     rows ── logits of its part ── max, sum, target: GATHER ── log-probs of the whole vocabulary
 *
 * and in backward a SUM after each product by columns, whose gradient of the input is partial on each rank.
 *
 * With sequence parallelism a rank holds a share of the rows between the products: a SUM becomes a reduce-scatter, and each
 * product by columns begins with an all-gather. In backward the gradient of a product by rows is gathered, and the input
 * of a product by columns is gathered again for the gradient of its weight.
 *
 * The layers' functions return no status, so the first failure of a communicator is stored here and later calls do
 * nothing; the function that runs a batch returns it at its end. */
#ifndef TRAIN_PARALLEL_H
#define TRAIN_PARALLEL_H

#include "train/model/exchange.h"

typedef struct train__link {
    const train__exchange *exchange;
    ravel_comm *comm; /* NULL: one rank */
    int32_t ranks, rank;
    double seconds;      /* that calls have waited: exposed communication */
    ravel_status status; /* the first failure */
    ravel_error error;
} train__link;

/* A link over `comm`, or of one rank where it is NULL, for arrays of the exchange's device. */
train__link train__link_over(ravel_comm *comm, const train__exchange *exchange);
/* Another communicator for the link; a failure stays. */
void train__link_set(train__link *link, ravel_comm *comm);
/* x = the sum over ranks, in place; no operation with one rank. */
void train__link_sum(train__link *link, void *x, int64_t count, int32_t dtype);
/* all [ranks, count] = every rank's `mine`. */
void train__link_gather(train__link *link, const void *mine, void *all, int64_t count, int32_t dtype);
/* mine [count] = this rank's piece of the sum of every rank's all [ranks, count]. */
void train__link_scatter(train__link *link, const void *all, void *mine, int64_t count, int32_t dtype);

/* A transfer around the ring: `out` goes `hop` ranks on while `in` comes from as many back. begin starts it, and computation may go on that only reads `out`; finish waits, and is called once for each begin. Two transfers at a time have
 * different tags. */
typedef struct train__shift {
    train__message in, out;
} train__shift;
enum { TRAIN__SHIFT_PLACES = 4 }; /* for messages: two shifts at a time */
void train__link_begin(train__link *link, train__shift *shift, int32_t tag, int32_t hop, const void *out, void *in,
                       int64_t count, int32_t dtype);
void train__link_finish(train__link *link, train__shift *shift);
/* The first failure, reported once. */
ravel_status train__link_status(train__link *link, ravel_error *err);

#endif
