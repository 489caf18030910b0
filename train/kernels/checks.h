/* train/kernels/checks.h: what kernels.h says of the arguments of each kernel, as conditions to assert. A check
 * compares a few numbers and reads no array. The host sets assert them; a call of no rows may leave its pointers
 * NULL. */
#ifndef TRAIN_CHECKS_H
#define TRAIN_CHECKS_H

#include "base/assert.h"
#include "train/kernels/kernels.h"

static inline int train__ld_ok(int64_t ld, int64_t width) {
    return ld == 0 || ld >= width;
}

static inline int train__heads_ok(int32_t heads, int32_t kv_heads, int32_t head_dim) {
    return heads > 0 && kv_heads > 0 && heads % kv_heads == 0 && head_dim > 0;
}

static inline int train__matmul_ok(const train_matmul *x) {
    if (x->m < 0 || x->n < 0 || x->k < 0 || (x->add && x->scale != 0)) return 0;
    if (x->m > 0 && x->n > 0 && x->k > 0 && !(x->a && x->b && x->c)) return 0;
    return train__ld_ok(x->lda, x->trans_a ? x->m : x->k) && train__ld_ok(x->ldb, x->trans_b ? x->k : x->n) &&
           train__ld_ok(x->ldc, x->n);
}

static inline int train__rows_ok(const train_rows *x) {
    return x->rows >= 0 && x->width >= 0 && train__ld_ok(x->ld_to, x->width) && train__ld_ok(x->ld_from, x->width) &&
           (x->rows == 0 || x->width == 0 || (x->to && x->from));
}

static inline int train__gated_ok(const train_gated *x) {
    return x->rows >= 0 && x->ffn > 0 && !x->d_h == !x->d_gate_up && (x->rows == 0 || (x->gate_up && (x->d_h || x->h)));
}

static inline int train__route_ok(const train_route *x) {
    return x->rows >= 0 && x->active > 0 && x->active <= x->experts &&
           (x->rows == 0 || (x->logits && x->ids && x->weights));
}

static inline int train__route_backward_ok(const train_route *x) {
    return train__route_ok(x) && (x->rows == 0 || (x->d_weights && x->d_logits)) && (!x->balance || x->row_loss);
}

static inline int64_t train__weigh_place(const train_weigh *x, int64_t row) {
    return x->places ? x->places[row] : row;
}

static inline int train__weigh_ok(const train_weigh *x) {
    return x->rows >= 0 && x->width > 0 && (x->rows == 0 || (x->x && x->weights)) && !x->d_y == !x->d_weights;
}

static inline int train__embedding_ok(const train_embedding *x) {
    return x->rows >= 0 && x->width > 0 && x->first >= 0 && x->count >= 0 && (x->rows == 0 || (x->ids && x->y));
}

static inline int train__embedding_backward_ok(const train_embedding *x) {
    return x->rows >= 0 && x->width > 0 && x->first >= 0 && x->ordered >= 0 && x->ordered <= x->rows &&
           (x->ordered == 0 || (x->ids && x->d_y && x->d_table && x->order));
}

static inline int train__bias_ok(const void *x, const void *bias, int64_t rows, int64_t width, int64_t ld) {
    return rows >= 0 && width > 0 && ld >= width && bias && (rows == 0 || x);
}

static inline int train__norm_ld_ok(const train_norm *x) {
    return train__ld_ok(x->ld_x, x->width) && train__ld_ok(x->ld_y, x->width);
}

static inline int train__norm_ok(const train_norm *x) {
    return x->rows >= 0 && x->width > 0 && x->eps >= 0 && train__norm_ld_ok(x) &&
           (!x->add || (x->sum && !x->ld_x && !x->ld_y)) && (!x->y || x->weight) && (x->rows == 0 || x->x);
}

static inline int train__norm_backward_ok(const train_norm *x) {
    return x->rows >= 0 && x->width > 0 && x->eps >= 0 && x->weight && x->d_weight && train__norm_ld_ok(x) &&
           (x->rows == 0 || (x->x && x->d_y && x->d_x));
}

static inline int train__rope_ok(const train_rope *x) {
    return x->tokens >= 0 && train__heads_ok(x->heads, x->kv_heads, x->head_dim) && x->head_dim % 2 == 0 &&
           x->rotated >= 0 && x->rotated <= x->head_dim && x->rotated % 2 == 0 && !x->q_weight == !x->k_weight &&
           (x->tokens == 0 || (x->qkv && x->cosine && x->sine && x->positions));
}

static inline int train__rope_backward_ok(const train_rope *x) {
    return train__rope_ok(x) && (x->tokens == 0 || (x->d_q && x->d_k && x->d_qkv)) &&
           (!x->q_weight || (x->d_q_weight && x->d_k_weight));
}

static inline int train__ragged_ok(const train_ragged *x, int32_t samples) {
    return x->tokens >= 0 && x->longest >= 0 && (samples == 0 || (x->starts && x->lengths));
}

static inline int train__attention_ok(const train_attention *x) {
    int64_t width = (int64_t)x->heads * x->head_dim, kv_width = (int64_t)x->kv_heads * x->head_dim;
    return x->samples >= 0 && train__heads_ok(x->heads, x->kv_heads, x->head_dim) && x->window >= 0 &&
           train__ragged_ok(&x->queries, x->samples) && train__ragged_ok(&x->keys, x->samples) && x->ld_q >= width &&
           x->ld_k >= kv_width && x->ld_v >= kv_width && (!x->at_end || x->shifts) &&
           (x->samples == 0 || (x->q && x->o && x->lse));
}

static inline int train__attention_backward_ok(const train_attention *x) {
    int64_t width = (int64_t)x->heads * x->head_dim, kv_width = (int64_t)x->kv_heads * x->head_dim;
    return train__attention_ok(x) && x->ld_dq >= width && x->ld_dk >= kv_width && x->ld_dv >= kv_width &&
           (x->samples == 0 || (x->d_o && x->d_q && x->d_k && x->d_v));
}

static inline int train__merge_ok(const train_merge *x) {
    return train__ragged_ok(&x->queries, x->samples) && x->heads > 0 && x->head_dim > 0 && x->o != x->other_o &&
           x->lse != x->other_lse;
}

static inline int train__cache_ok(const train_cache *x) {
    return x->k && x->v && x->table && x->pages_per_slot > 0 && x->kv_heads > 0 && x->head_dim > 0;
}

static inline int train__cache_write_ok(const train_cache_write *x) {
    int64_t width = (int64_t)x->cache.kv_heads * x->cache.head_dim;
    return train__cache_ok(&x->cache) && x->rows >= 0 && x->ld_k >= width && x->ld_v >= width &&
           (x->rows == 0 || (x->k && x->v && (x->back || (x->slots && x->positions))));
}

static inline int train__cached_ok(const train_cached *x) {
    return train__cache_ok(&x->cache) && train__heads_ok(x->heads, x->cache.kv_heads, x->cache.head_dim) &&
           x->rows >= 0 && x->window >= 0 && x->ld_q >= (int64_t)x->heads * x->cache.head_dim &&
           (x->rows == 0 || (x->q && x->o && x->slots && x->lengths));
}

static inline int train__softmax_ok(const train_softmax *x) {
    return x->rows >= 0 && x->columns > 0 && x->first >= 0 && x->scale > 0 &&
           (x->rows == 0 || (x->logits && x->targets));
}

static inline int train__top_ok(const train_top_rows *x) {
    return x->rows >= 0 && x->columns > 0 && x->first >= 0 && x->scale > 0 && x->count > 0 &&
           (x->rows == 0 || x->logits);
}

static inline int train__sample_ok(const train_sample *x) {
    return x->rows >= 0 && x->vocab > 0 && (!x->last || x->places) &&
           (x->rows == 0 || (x->logits && x->choices && x->tokens && x->logprob && x->kept_logprob));
}

static inline int train__loss_ok(const train_loss_rows *x) {
    const train_policy_terms *p = x->policy;
    if (x->rows < 0 || (x->rows > 0 && !(x->logprob && x->weights)) || (x->first && !x->list)) return 0;
    return !p || x->rows == 0 || (x->advantages && (!p->sequence || x->samples) && p->clip_low >= 0 && p->kl >= 0);
}

static inline int train__adamw_ok(const train_adamw *x) {
    return x->n >= 0 && x->master && x->weight && x->m && x->v && x->grad && x->clip && x->step >= 1 && x->beta1 >= 0 &&
           x->beta1 <= 1 && x->beta2 >= 0 && x->beta2 <= 1 && x->eps >= 0;
}

#endif
