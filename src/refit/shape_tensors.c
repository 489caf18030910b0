/* The tensors of a model's shape: one row each, with how tensor parallelism cuts it. */
#include <ravel/refit.h>

#include "refit/box.h"

#include <stdio.h>
#include <string.h>

typedef struct lister {
    ravel_refit_tensor *tensors;
    char *names;
    int64_t most, count;
    int32_t dtype, tp, index;
} lister;

/* cut: the dimension that is cut, -1: none; `units`: the most parts that it can have. */
static void add(lister *l, int32_t cut, int64_t units, int64_t rows, int64_t columns, const char *format, int64_t layer,
                int64_t expert) {
    int64_t i = l->count++;
    if (i >= l->most) return;
    char *name = l->names + i * RAVEL_REFIT_NAME_BYTES;
    ravel_refit_tensor *t = &l->tensors[i];
    // cppcheck-suppress wrongPrintfScanfArgNum ; the format is one of a few of this file, with none to two numbers
    (void)snprintf(name, RAVEL_REFIT_NAME_BYTES, format, (long long)layer, (long long)expert);
    *t = (ravel_refit_tensor){.name = name, .dtype = l->dtype, .ndim = columns > 0 ? 2 : 1, .dims = {rows, columns}};
    if (columns == 0) t->dims[1] = 0;
    if (cut < 0) return;
    t->parts[cut] = units < l->tp ? (int32_t)units : l->tp;
    t->index[cut] = (int32_t)((int64_t)l->index * t->parts[cut] / l->tp);
}

static void add_attention(lister *l, const ravel_shape *s, int64_t layer) {
    int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    add(l, -1, 1, s->hidden, 0, "model.layers.%lld.input_layernorm.weight", layer, 0);
    add(l, 0, s->heads, q, s->hidden, "model.layers.%lld.self_attn.q_proj.weight", layer, 0);
    add(l, 0, s->kv_heads, kv, s->hidden, "model.layers.%lld.self_attn.k_proj.weight", layer, 0);
    add(l, 0, s->kv_heads, kv, s->hidden, "model.layers.%lld.self_attn.v_proj.weight", layer, 0);
    if (s->attention_bias) {
        add(l, 0, s->heads, q, 0, "model.layers.%lld.self_attn.q_proj.bias", layer, 0);
        add(l, 0, s->kv_heads, kv, 0, "model.layers.%lld.self_attn.k_proj.bias", layer, 0);
        add(l, 0, s->kv_heads, kv, 0, "model.layers.%lld.self_attn.v_proj.bias", layer, 0);
    }
    if (s->qk_norm) {
        add(l, -1, 1, s->head_dim, 0, "model.layers.%lld.self_attn.q_norm.weight", layer, 0);
        add(l, -1, 1, s->head_dim, 0, "model.layers.%lld.self_attn.k_norm.weight", layer, 0);
    }
    add(l, 1, s->heads, s->hidden, q, "model.layers.%lld.self_attn.o_proj.weight", layer, 0);
    add(l, -1, 1, s->hidden, 0, "model.layers.%lld.post_attention_layernorm.weight", layer, 0);
}

static void add_dense(lister *l, const ravel_shape *s, int64_t layer) {
    if (s->gated) add(l, 0, s->ffn, s->ffn, s->hidden, "model.layers.%lld.mlp.gate_proj.weight", layer, 0);
    add(l, 0, s->ffn, s->ffn, s->hidden, "model.layers.%lld.mlp.up_proj.weight", layer, 0);
    add(l, 1, s->ffn, s->hidden, s->ffn, "model.layers.%lld.mlp.down_proj.weight", layer, 0);
}

static void add_experts(lister *l, const ravel_shape *s, int64_t layer) {
    int64_t ffn = s->expert_ffn;
    add(l, -1, 1, s->experts, s->hidden, "model.layers.%lld.mlp.gate.weight", layer, 0);
    for (int64_t e = 0; e < s->experts; e++) {
        add(l, 0, ffn, ffn, s->hidden, "model.layers.%lld.mlp.experts.%lld.gate_proj.weight", layer, e);
        add(l, 0, ffn, ffn, s->hidden, "model.layers.%lld.mlp.experts.%lld.up_proj.weight", layer, e);
        add(l, 1, ffn, s->hidden, ffn, "model.layers.%lld.mlp.experts.%lld.down_proj.weight", layer, e);
    }
    if (s->shared_ffn == 0) return;
    add(l, 0, s->shared_ffn, s->shared_ffn, s->hidden, "model.layers.%lld.mlp.shared_expert.gate_proj.weight", layer,
        0);
    add(l, 0, s->shared_ffn, s->shared_ffn, s->hidden, "model.layers.%lld.mlp.shared_expert.up_proj.weight", layer, 0);
    add(l, 1, s->shared_ffn, s->hidden, s->shared_ffn, "model.layers.%lld.mlp.shared_expert.down_proj.weight", layer,
        0);
}

int64_t ravel_refit_shape_tensors(const ravel_shape *shape, int32_t dtype, int32_t tp, int32_t index,
                                  ravel_refit_tensor *tensors, char *names, int64_t most) {
    lister l = {tensors, names, most, 0, dtype, tp < 1 ? 1 : tp, index};
    add(&l, 0, shape->vocab, shape->vocab, shape->hidden, "model.embed_tokens.weight", 0, 0);
    for (int64_t layer = 0; layer < shape->layers; layer++) {
        add_attention(&l, shape, layer);
        if (shape->experts > 0 && layer >= shape->dense_layers)
            add_experts(&l, shape, layer);
        else
            add_dense(&l, shape, layer);
    }
    add(&l, -1, 1, shape->hidden, 0, "model.norm.weight", 0, 0);
    if (!shape->tied) add(&l, 0, shape->vocab, shape->vocab, shape->hidden, "lm_head.weight", 0, 0);
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
