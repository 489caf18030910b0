/* The tensors of a model's shape: one row each, with how tensor parallelism cuts it. */
#include <ravel/refit.h>

#include "refit/model/box.h"

#include <stdint.h>

#include <stdio.h>
#include <string.h>

typedef struct lister {
    ravel_refit_tensor *tensors;
    char *names;
    int64_t most, count;
    int32_t dtype, tp, index;
    int64_t layer;
    char name[RAVEL_REFIT_NAME_BYTES];
} lister;

/* Writes the next tensor under the name that was just written to l->name. cut: the dimension that is cut, -1: none;
 * units: the most parts that it can have. */
static void add(lister *l, int32_t cut, int64_t units, int64_t rows, int64_t columns) {
    int64_t i = l->count++;
    if (i >= l->most) return;
    char *name = l->names + i * RAVEL_REFIT_NAME_BYTES;
    ravel_refit_tensor *t = &l->tensors[i];
    memcpy(name, l->name, RAVEL_REFIT_NAME_BYTES);
    *t = (ravel_refit_tensor){.name = name, .dtype = l->dtype, .ndim = columns > 0 ? 2 : 1, .dims = {rows, columns}};
    if (cut < 0) return;
    t->parts[cut] = units < l->tp ? (int32_t)units : l->tp;
    t->index[cut] = (int32_t)((int64_t)l->index * t->parts[cut] / l->tp);
}

static void add_global(lister *l, const char *name, int32_t cut, int64_t rows, int64_t columns) {
    (void)snprintf(l->name, sizeof l->name, "%s", name);
    add(l, cut, rows, rows, columns);
}

/* A tensor of the current layer. */
static void add_layer(lister *l, const char *name, int32_t cut, int64_t units, int64_t rows, int64_t columns) {
    (void)snprintf(l->name, sizeof l->name, "model.layers.%lld.%s", (long long)l->layer, name);
    add(l, cut, units, rows, columns);
}

static void add_attention(lister *l, const ravel_shape *s) {
    int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    add_layer(l, "input_layernorm.weight", -1, 1, s->hidden, 0);
    add_layer(l, "self_attn.q_proj.weight", 0, s->heads, q, s->hidden);
    add_layer(l, "self_attn.k_proj.weight", 0, s->kv_heads, kv, s->hidden);
    add_layer(l, "self_attn.v_proj.weight", 0, s->kv_heads, kv, s->hidden);
    if (s->attention_bias) {
        add_layer(l, "self_attn.q_proj.bias", 0, s->heads, q, 0);
        add_layer(l, "self_attn.k_proj.bias", 0, s->kv_heads, kv, 0);
        add_layer(l, "self_attn.v_proj.bias", 0, s->kv_heads, kv, 0);
    }
    if (s->qk_norm) {
        add_layer(l, "self_attn.q_norm.weight", -1, 1, s->head_dim, 0);
        add_layer(l, "self_attn.k_norm.weight", -1, 1, s->head_dim, 0);
    }
    add_layer(l, "self_attn.o_proj.weight", 1, s->heads, s->hidden, q);
    add_layer(l, "post_attention_layernorm.weight", -1, 1, s->hidden, 0);
}

/* gate, up and down of a block; `prefix` ends with a dot. */
static void add_block(lister *l, const ravel_shape *s, const char *prefix, int64_t ffn) {
    static const char *const names[] = {"gate_proj.weight", "up_proj.weight", "down_proj.weight"};
    for (int i = s->gated ? 0 : 1; i < 3; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "%s%s", prefix, names[i]);
        add_layer(l, name, i == 2, ffn, i == 2 ? s->hidden : ffn, i == 2 ? ffn : s->hidden);
    }
}

static void add_experts(lister *l, const ravel_shape *s) {
    add_layer(l, "mlp.gate.weight", -1, 1, s->experts, s->hidden);
    for (int64_t e = 0; e < s->experts; e++) {
        char prefix[40];
        (void)snprintf(prefix, sizeof prefix, "mlp.experts.%lld.", (long long)e);
        add_block(l, s, prefix, s->expert_ffn);
    }
    if (s->shared_ffn > 0) add_block(l, s, "mlp.shared_expert.", s->shared_ffn);
}

int64_t ravel_refit_shape_tensors(const ravel_shape *shape, int32_t dtype, int32_t tp, int32_t index,
                                  ravel_refit_tensor *tensors, char *names, int64_t most) {
    lister l = {
        .tensors = tensors, .names = names, .most = most, .dtype = dtype, .tp = tp < 1 ? 1 : tp, .index = index};
    add_global(&l, "model.embed_tokens.weight", 0, shape->vocab, shape->hidden);
    for (l.layer = 0; l.layer < shape->layers; l.layer++) {
        add_attention(&l, shape);
        if (ravel_shape_has_experts(shape, l.layer))
            add_experts(&l, shape);
        else
            add_block(&l, shape, "mlp.", shape->ffn);
    }
    add_global(&l, "model.norm.weight", -1, shape->hidden, 0);
    if (!shape->tied) add_global(&l, "lm_head.weight", 0, shape->vocab, shape->hidden);
    return l.count;
}

int64_t ravel_refit_tensor_elements(const ravel_refit_tensor *t) {
    int64_t count = 1;
    for (int32_t d = 0; d < t->ndim; d++) {
        int64_t parts = t->parts[d] > 0 ? t->parts[d] : 1;
        int64_t extent =
            ravel__part_start(t->dims[d], parts, t->index[d] + 1) - ravel__part_start(t->dims[d], parts, t->index[d]);
        count *= t->ndim > 0 && t->extent[0] > 0 ? t->extent[d] : extent;
    }
    return count;
}
