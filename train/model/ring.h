/* Context parallelism: attention over samples whose tokens are spread over ranks. Internal to train/.
 *
 * A sample is cut into 2R chunks and rank r has chunks r and 2R-1-r, one behind the other (zig-zag), so that every rank
 * has the same work. Keys and values go around the ring; when rank r holds those of rank j, it computes
 *
 *     j = r     all its queries over all these keys, causal            (its second chunk is behind its first)
 *     j < r     all its queries over the first chunk of j, every key   (the second lies behind all of them)
 *     j > r     its second chunk's queries over both chunks, every key (the first chunk sees none of them)
 *
 * and merges the outputs by their log-sum-exps. In backward, the gradients of keys and values travel one step behind them and
 * return to their rank after the last step.
 *
 * Transfers overlap with attention: the block of step s is sent on while attention reads it, and the gradients of step s - 1
 * arrive while those of step s are made, to which they are added then. What is left to wait for is the link's `seconds`. */
#ifndef TRAIN_RING_H
#define TRAIN_RING_H

#include "train/model/model_internal.h"

/* a->o and a->lse from a->q, a->k and the v part of a->qkv. */
void train__ring_forward(const train_model *m, const train__acts *a);
/* d_q, d_k and the v part of d_qkv, from d_o; all in the working block, d_q and d_k set to 0 by the caller. */
void train__ring_backward(const train_model *m, const train__acts *a);

#endif
