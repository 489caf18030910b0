#include "train/model/hf/arch.h"

#include <stdio.h>
#include <string.h>

/* ---- config keys that are refused ---------------------------------------------------------------------- */

static ravel_status lacks(ravel_error *err, const char *what) {
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the trainer has no %s", what);
}

static ravel_status unknown_type(const ravel__json_node *type, ravel_error *err) {
    char list[256] = "";
    const ravel__family *f;
    for (int32_t i = 0; (f = ravel__family_at(i)); i++) {
        size_t used = strlen(list);
        if (f->architecture) (void)snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", f->model_type);
    }
    if (!type || type->kind != RAVEL__JSON_STRING)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "the config has no model_type; the trainer has %s", list);
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "model_type \"%s\"; the trainer has %s", type->as.string, list);
}

/* Keys that must be absent, null, false, or the number given. */
static const struct {
    const char *key;
    double plain;
    const char *what;
    enum { ANY, SCALARS, EXPERTS, PARTIAL } but; /* families with such may have another */
} plain_keys[] = {
    {"mlp_bias", 0, "biases in feed-forward blocks (mlp_bias)", ANY},
    {"attn_logit_softcapping", 0, "soft cap of attention scores (attn_logit_softcapping)", ANY},
    {"final_logit_softcapping", 0, "soft cap of logits (final_logit_softcapping)", ANY},
    {"use_sliding_window", 0, "sliding windows in some layers (use_sliding_window)", ANY},
    {"partial_rotary_factor", 1, "rope on a part of a head (partial_rotary_factor)", PARTIAL},
    {"rope_parameters.partial_rotary_factor", 1, "rope on a part of a head (partial_rotary_factor)", PARTIAL},
    {"use_bidirectional_attention", 0, "attention to later tokens (use_bidirectional_attention)", ANY},
    {"clip_qkv", 0, "limit of queries, keys and values (clip_qkv)", ANY},
    {"attention_multiplier", 0, "scale of attention scores (attention_multiplier)", SCALARS},
    {"embedding_multiplier", 1, "scale of embeddings (embedding_multiplier)", SCALARS},
    {"residual_multiplier", 1, "scale of residuals (residual_multiplier)", SCALARS},
    {"logits_scaling", 1, "scale of logits (logits_scaling)", SCALARS},
    {"quantization_config", 0, "quantised weights (quantization_config): save the model in bf16 or f32 first", ANY},
    {"num_experts", 0, "experts (num_experts) of this model_type", EXPERTS},
    {"num_local_experts", 0, "experts (num_local_experts) of this model_type", EXPERTS},
    {"router_jitter_noise", 0, "noise in the router (router_jitter_noise)", ANY},
};

static int is_plain(const ravel__json_node *node, double plain) {
    double value;
    int flag;
    if (!node || node->kind == RAVEL__JSON_NULL) return 1;
    if (ravel__json_boolean(node, &flag)) return flag == (plain != 0);
    return ravel__json_real(node, &value) && value == plain;
}

int64_t train_arch_window(const ravel_shape *s, int64_t layer) {
    return s->window_every && (layer + 1) % s->window_every == 0 ? 0 : s->window;
}

int train_arch_has_rope(const ravel_shape *s, int64_t layer) {
    return !s->rope_every || (layer + 1) % s->rope_every != 0;
}

/* "layer_types" and "no_rope_layers": every layer must be of the kind that the shape says. */
static ravel_status check_layers(const ravel__json *doc, const ravel__json_node *root, const ravel_shape *s,
                                 ravel_error *err) {
    const ravel__json_node *types = ravel__json_get(doc, root, "layer_types"), *n;
    const ravel__json_node *ropes = ravel__json_get(doc, root, "no_rope_layers");
    int64_t layer = 0, rope;
    for (n = types && types->kind == RAVEL__JSON_ARRAY ? ravel__json_first(doc, types) : NULL; n;
         n = ravel__json_next(doc, n), layer++)
        if (!ravel__json_is(n, train_arch_window(s, layer) ? "sliding_attention" : "full_attention"))
            return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                                   "the trainer has no layers of different kinds (layer_types) in such an order: layer "
                                   "%lld; every n-th layer of a family with sliding windows may see all keys",
                                   (long long)layer);
    layer = 0;
    for (n = ropes && ropes->kind == RAVEL__JSON_ARRAY ? ravel__json_first(doc, ropes) : NULL; n;
         n = ravel__json_next(doc, n), layer++)
        if (!ravel__json_integer(n, &rope) || rope != train_arch_has_rope(s, layer))
            return ravel_error_set(
                err, RAVEL_E_UNSUPPORTED,
                "the trainer has no layers without rope (no_rope_layers) in such an order: layer %lld; "
                "every n-th layer of a SmolLM3 may be one",
                (long long)layer);
    return RAVEL_OK;
}

/* "hidden_act", or "hidden_activation". */
static ravel_status check_activation(const ravel__json *doc, const ravel__json_node *root, const ravel__family *f,
                                     ravel_error *err) {
    const char *has = f->activation == RAVEL__ACTIVATION_GELU ? "gelu_pytorch_tanh" : "silu";
    const ravel__json_node *act = ravel__json_get(doc, root, "hidden_activation");
    if (!act || act->kind != RAVEL__JSON_STRING) act = ravel__json_get(doc, root, "hidden_act");
    if (!act || act->kind != RAVEL__JSON_STRING || ravel__json_is(act, has)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "hidden_act \"%s\"; the trainer has %s", act->as.string, has);
}

static ravel_status check_rope(const ravel__json *doc, const ravel__json_node *root, const ravel_shape *s,
                               ravel_error *err) {
    static const char *const places[] = {"rope_parameters.full_attention.rope_type", "rope_parameters.rope_type",
                                         "rope_scaling.rope_type", "rope_scaling.type"};
    const ravel__json_node *type = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places && !type; i++) type = ravel__json_path(doc, root, places[i]);
    if (s->rope == RAVEL_ROPE_OTHER)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "rope of type \"%s\"; the trainer has default, linear, llama3, yarn and longrope",
                               type && type->kind == RAVEL__JSON_STRING ? type->as.string : "?");
    type = ravel__json_path(doc, root, "rope_parameters.sliding_attention.rope_type");
    if (s->rope_local > 0 && type && !ravel__json_is(type, "default"))
        return lacks(err, "scaled rope in layers with a sliding window (rope_parameters.sliding_attention)");
    if ((s->rope == RAVEL_ROPE_LLAMA3 || s->rope == RAVEL_ROPE_YARN) && !(s->rope_high > s->rope_low))
        return ravel_error_set(err, RAVEL_E_DATA,
                               "high_freq_factor must be above low_freq_factor, and beta_fast above beta_slow");
    return RAVEL_OK;
}

ravel_status train_arch_known(const ravel__json *doc, ravel_error *err) {
    const ravel__json_node *type = ravel__json_get(doc, ravel__family_config(doc), "model_type");
    const ravel__family *f;
    for (int32_t i = 0; (f = ravel__family_at(i)); i++)
        if (f->architecture && ravel__json_is(type, f->model_type)) return RAVEL_OK;
    return unknown_type(type, err);
}

ravel_status train_arch_check(const ravel__json *doc, const ravel_shape *s, ravel_error *err) {
    const ravel__json_node *root = ravel__family_config(doc);
    const ravel__family *f = ravel__family_at(s->family);
    ravel_status status = check_activation(doc, root, f, err);
    if (status) return status;
    const int has[] = {0, f->scalars, f->router != NULL, f->partial}; /* by `but` */
    for (size_t i = 0; i < sizeof plain_keys / sizeof *plain_keys; i++)
        if (!has[plain_keys[i].but] && !is_plain(ravel__json_path(doc, root, plain_keys[i].key), plain_keys[i].plain))
            return lacks(err, plain_keys[i].what);
    if (f->router && !s->experts) return lacks(err, "models of this model_type with fewer than 2 experts");
    if (s->attention_bias != f->bias)
        return lacks(err, f->bias ? "Qwen2 without biases on q, k and v"
                                  : "biases on q, k, v and o (attention_bias) of this model_type");
    if (s->qk_norm != f->qk_norm) return lacks(err, "norms of q and k (use_qk_norm) of this model_type");
    status = check_layers(doc, root, s, err);
    return status ? status : check_rope(doc, root, s, err);
}
