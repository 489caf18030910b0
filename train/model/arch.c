#include "train/model/arch.h"

#include "train/kernels/assert.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
static const train_arch rows[] = {
    /* type     class                norm bias window */
    {"llama",   "LlamaForCausalLM",   0, 0, 0, "Llama 2 and 3, SmolLM, SmolLM2, TinyLlama"},
    {"mistral", "MistralForCausalLM", 0, 0, 1, "Mistral 7B"},
    {"qwen2",   "Qwen2ForCausalLM",   0, 1, 0, "Qwen2, Qwen2.5"},
    {"qwen3",   "Qwen3ForCausalLM",   1, 0, 0, "Qwen3"},
};
/* clang-format on */
enum { ROWS = sizeof rows / sizeof *rows };

const train_arch *train_arch_row(int32_t index) {
    return index >= 0 && index < ROWS ? rows + index : NULL;
}

const train_arch *train_arch_of(const ravel_shape *s) {
    TRAIN_ASSERT(s->layers > 0);
    for (int i = 0; i < ROWS; i++)
        if (rows[i].qk_norm == s->qk_norm && rows[i].bias == s->attention_bias && (rows[i].window || !s->window))
            return rows + i;
    return rows;
}

/* ---- config keys that are refused ---------------------------------------------------------------------- */

static ravel_status lacks(ravel_error *err, const char *what) {
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the trainer has no %s", what);
}

static const train_arch *find(const ravel_json_node *type) {
    for (int i = 0; i < ROWS; i++)
        if (ravel_json_is(type, rows[i].model_type)) return rows + i;
    return NULL;
}

static ravel_status unknown_type(const ravel_json_node *type, ravel_error *err) {
    char list[128] = "";
    for (int i = 0; i < ROWS; i++) {
        size_t used = strlen(list);
        (void)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", rows[i].model_type);
    }
    if (!type || type->kind != RAVEL_JSON_STRING)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the config has no model_type; the trainer has %s", list);
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "model_type \"%s\"; the trainer has %s", type->as.string, list);
}

/* Keys that must be absent, null, false, or the number given. */
static const struct {
    const char *key;
    double plain;
    const char *what;
} plain_keys[] = {
    {"mlp_bias", 0, "biases in feed-forward blocks (mlp_bias)"},
    {"attn_logit_softcapping", 0, "soft cap of attention scores (attn_logit_softcapping)"},
    {"final_logit_softcapping", 0, "soft cap of logits (final_logit_softcapping)"},
    {"use_sliding_window", 0, "sliding windows in some layers (use_sliding_window)"},
    {"partial_rotary_factor", 1, "rope on a part of a head (partial_rotary_factor)"},
    {"attention_multiplier", 0, "scale of attention scores (attention_multiplier)"},
    {"embedding_multiplier", 1, "scale of embeddings (embedding_multiplier)"},
    {"residual_multiplier", 1, "scale of residuals (residual_multiplier)"},
    {"logits_scaling", 1, "scale of logits (logits_scaling)"},
    {"quantization_config", 0, "quantised weights (quantization_config): save the model in bf16 or f32 first"},
    {"num_experts", 0, "experts (num_experts)"},
    {"num_local_experts", 0, "experts (num_local_experts)"},
};

static int is_plain(const ravel_json_node *node, double plain) {
    double value;
    int flag;
    if (!node || node->kind == RAVEL_JSON_NULL) return 1;
    if (ravel_json_boolean(node, &flag)) return flag == (plain != 0);
    return ravel_json_real(node, &value) && value == plain;
}

/* "layer_types": every layer must be of the one kind that the model has. */
static int layers_alike(const ravel_json *doc, const ravel_json_node *list, int64_t window) {
    if (!list || list->kind != RAVEL_JSON_ARRAY) return 1;
    for (const ravel_json_node *n = ravel_json_first(doc, list); n; n = ravel_json_next(doc, n))
        if (!ravel_json_is(n, window ? "sliding_attention" : "full_attention")) return 0;
    return 1;
}

static ravel_status check_rope(const ravel_json *doc, const ravel_json_node *root, const ravel_shape *s,
                               ravel_error *err) {
    static const char *const places[] = {"rope_parameters.rope_type", "rope_scaling.rope_type", "rope_scaling.type"};
    const ravel_json_node *type = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places && !type; i++) type = ravel_json_path(doc, root, places[i]);
    if (s->rope == RAVEL_ROPE_OTHER)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "rope of type \"%s\"; the trainer has default, linear and llama3",
                               type && type->kind == RAVEL_JSON_STRING ? type->as.string : "?");
    if (s->rope == RAVEL_ROPE_LLAMA3 && !(s->rope_high > s->rope_low))
        return ravel_error_set(err, RAVEL_E_DATA, "high_freq_factor must be above low_freq_factor");
    return RAVEL_OK;
}

ravel_status train_arch_check(const ravel_json *doc, const ravel_shape *s, ravel_error *err) {
    const ravel_json_node *root = ravel_json_root(doc), *act = ravel_json_get(doc, root, "hidden_act");
    const ravel_json_node *type = ravel_json_get(doc, root, "model_type");
    const train_arch *arch = find(type);
    if (!arch) return unknown_type(type, err);
    if (act && act->kind == RAVEL_JSON_STRING && !ravel_json_is(act, "silu"))
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "hidden_act \"%s\"; the trainer has silu", act->as.string);
    for (size_t i = 0; i < sizeof plain_keys / sizeof *plain_keys; i++)
        if (!is_plain(ravel_json_get(doc, root, plain_keys[i].key), plain_keys[i].plain))
            return lacks(err, plain_keys[i].what);
    if (s->attention_bias != arch->bias)
        return lacks(err, arch->bias ? "Qwen2 without biases on q, k and v"
                                     : "biases on q, k, v and o (attention_bias) of this model_type");
    if (s->qk_norm != arch->qk_norm) return lacks(err, "norms of q and k (use_qk_norm) of this model_type");
    if (!layers_alike(doc, ravel_json_get(doc, root, "layer_types"), s->window))
        return lacks(err, "layers of different kinds (layer_types)");
    return check_rope(doc, root, s, err);
}
