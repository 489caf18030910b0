/* Context parallelism: attention over samples whose tokens are spread over ranks. Internal to train/.
 *
 * A sample is cut into 2R chunks and rank r has chunks r and 2R-1-r, one behind the other (zig-zag), so that every rank
 * has the same work. Keys and values go around the ring; when rank r holds those of rank j, it computes
 *
 *     j = r     all its queries over all these keys, causal            (its second chunk is behind its first)
 *     j < r     all its queries over the first chunk of j, every key   (the second lies behind all of them)
 *     j > r     its second chunk's queries over both chunks, every key (the first chunk sees none of them)
 *
 * and merges the outputs by their log-sum-exps. In backward, the gradients of keys and values travel one step behind
 * them and return to their rank after the last step.
 *
 * Transfers overlap with attention: the block of step s is sent on while attention reads it, and the gradients of step
 * s - 1 arrive while those of step s are made, to which they are added then. What is left to wait for is the link's
 * `seconds`.
 *
 * Chunk by chunk (ring_chunks.c). With a sliding window most ranks are too far away to be seen, and the positions of a
 * rank's two chunks, which are not adjacent, play a part. Each chunk is then attended to by itself:
 *
 *     j = r     both chunks over themselves, causal; its second over its first, 2R-1-2r chunks back
 *     j < r     its first over the first of j, r-j chunks back; its second over the first of j, 2R-1-r-j back
 *     j > r     its second over the second of j, j-r back; its second over the first of j, 2R-1-r-j back
 *
 * Which rows of a chunk see which of the other (train__view) is laid out with the batch; what is not seen is left out.
 * Blocks do not travel around the ring: step s sends a block s ranks on and its gradients back. A step at which no rank
 * sees anything (the shortest sample has s and R-s chunks or more of the window between) is left out by all of them. */
#ifndef TRAIN_RING_H
#define TRAIN_RING_H

#include "train/model/model_internal.h"

/* Around the ring. a->o and a->lse from a->q, a->k and the v part of a->qkv. */
void train__ring_forward(const train_model *m, train__micro *mb, const train__acts *a);
/* d_q, d_k and the v part of d_qkv, from d_o; all in the working block, d_q and d_k set to 0 by the caller. */
void train__ring_backward(const train_model *m, train__micro *mb, const train__acts *a);
/* Chunk by chunk: the views of the current batch, which is being staged; and the same two. */
void train__ring_lay_out(train_model *m, train__micro *mb);
void train__ring_chunks_forward(const train_model *m, train__micro *mb, const train__acts *a);
void train__ring_chunks_backward(const train_model *m, train__micro *mb, const train__acts *a);
/* The next step at which some rank sees something, where the shortest chunk is of this length (window 0: all do);
 * `ranks`: there is none. */
int32_t train__ring_step_after(int32_t ranks, int32_t step, int64_t window, int64_t chunk);

/* ---- shared by both ---- */

enum { TRAIN__RING_KV, TRAIN__RING_D_KV }; /* tags */

/* kv = keys and values of this rank, side by side: [tokens, 2 * kv_width]. */
void train__ring_pack(const train_model *m, const train__micro *mb, void *kv, const train__acts *a);
/* Gradients of such a block to d_k and the v part of d_qkv. */
void train__ring_unpack(const train_model *m, const train__micro *mb, const void *kv);
/* Where backward of a block reads the gradient of the outputs and writes those of the queries, keys and values. */
void train__ring_gradients(const train_model *m, train_attention *x, void *d_kv);
/* x += add, gradients of a block. */
void train__ring_add(const train_model *m, const train__micro *mb, void *x, const void *add);
/* Whose block this rank has in `step`. */
int32_t train__ring_owner(train__micro *mb, int32_t step);

#endif
