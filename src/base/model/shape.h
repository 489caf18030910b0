/* Work per token of a model's shape (ravel/shape.h). */
#ifndef RAVEL_BASE_SHAPE_H
#define RAVEL_BASE_SHAPE_H

#include <ravel/shape.h>

/* Work per token, the base of both costs and FLOPs:
 *   matmul weights   the weights that one token is multiplied with: its active experts, routers and the LM head, but
 *                    no embedding lookup. A forward pass takes 2 FLOPs for each, a backward pass 4.
 *   attention width  multiply-adds for one (query, key) pair, over all heads and layers: scores and weighted values.
 *                    A forward pass takes 2 FLOPs for each and causal attention has length * (length + 1) / 2 pairs. */
int64_t ravel__shape_matmul_weights(const ravel_shape *shape);
int64_t ravel__shape_attention_width(const ravel_shape *shape);

/* Rotary positions: element i of a head and element i + rotated / 2 turn by position * frequency, for i below rotated /
 * 2; the elements from `rotated` on do not turn. The frequency, without stretching (`theta`: of the layer) and with it
 * (`longer`: in a sequence of more than rope_positions). */
int64_t ravel__shape_rotated(const ravel_shape *shape);
double ravel__shape_plain_frequency(const ravel_shape *shape, double theta, int64_t pair);
/* Whether sequences of `length` tokens take the factors of long ones; and a model of sequences of up to `longest`
 * tokens in which all take the same: generators, whose answers grow, and what learns from them. */
int ravel__shape_is_long(const ravel_shape *shape, int64_t length);
void ravel__shape_settle_rope(ravel_shape *shape, int64_t longest);
double ravel__shape_frequency(const ravel_shape *shape, int longer, int64_t pair);

#endif
