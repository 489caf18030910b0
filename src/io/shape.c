/* The shape of a model from its Hugging Face config.json, or by name from a few published ones.
 *
 * Configs of Llama-like models differ in three ways: the default of a missing key (the family's row, ravel__family_at),
 * the names of the expert keys (the first that is present), and which layers have experts. */
#include "base/model/family.h"
#include "base/json.h"
#include "base/model/shape.h"
#include "base/system/file.h"
#include <ravel/shape.h>

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { LARGEST_CONFIG = 16 << 20 };

typedef struct reader {
    const ravel__json *doc;
    const ravel__json_node *root;
    ravel_error *err;
    ravel_status status; /* the first thing that was wrong */
} reader;

/* ---- keys ----------------------------------------------------------------------------------------------- */

static const ravel__json_node *member(const reader *r, const char *key) {
    const ravel__json_node *node = ravel__json_get(r->doc, r->root, key);
    return node && node->kind != RAVEL__JSON_NULL ? node : NULL;
}

static void refuse(reader *r, const char *key, const char *wanted) {
    if (!r->status) r->status = ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\" must be %s", key, wanted);
}

/* The number at `key`, or `missing` where the key is absent or null. */
static int64_t number(reader *r, const char *key, int64_t missing) {
    const ravel__json_node *node = member(r, key);
    int64_t value = missing;
    if (node && (!ravel__json_integer(node, &value) || value < 0 || value > INT64_C(1) << 31)) {
        refuse(r, key, "a whole number from 0 to 2^31");
        return missing;
    }
    return value;
}

/* `missing` 0: the key must be there. */
static int64_t essential(reader *r, const char *key, int64_t missing) {
    if (!member(r, key) && !missing && !r->status)
        r->status = ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\" is missing; is this a model's config.json?", key);
    return number(r, key, missing ? missing : 1);
}

/* The number at the first of the keys that is there. */
static int64_t any_number(reader *r, const char *const *keys, int64_t missing) {
    for (; *keys; keys++)
        if (member(r, *keys)) return number(r, *keys, missing);
    return missing;
}

static int32_t flag(reader *r, const char *key, int32_t missing) {
    const ravel__json_node *node = member(r, key);
    int value = missing;
    if (node && !ravel__json_boolean(node, &value)) refuse(r, key, "true or false");
    return value;
}

static double real(reader *r, const char *key, double missing) {
    const ravel__json_node *node = member(r, key);
    double value = missing;
    if (node && (!ravel__json_real(node, &value) || !(value > 0))) {
        refuse(r, key, "a positive number");
        return missing;
    }
    return value;
}

/* ---- pieces --------------------------------------------------------------------------------------------- */

static int32_t find_family(const reader *r) {
    const ravel__json_node *type = member(r, "model_type");
    for (int32_t i = 1; ravel__family_at(i); i++)
        if (ravel__json_is(type, ravel__family_at(i)->model_type)) return i;
    return 0;
}

/* "rope_theta" at the top, or under "rope_parameters" where newer files keep it. */
static double rope_theta(reader *r, double missing) {
    double value;
    const char *const places[] = {"rope_parameters.rope_theta", "rope_parameters.full_attention.rope_theta",
                                  "rope_scaling.rope_theta"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (ravel__json_real(ravel__json_path(r->doc, r->root, places[i]), &value) && value > 0) return value;
    return real(r, "rope_theta", missing);
}

/* The object that says how rope is scaled, under its new or its old name; of layers of two kinds, that of those without
 * a window. */
static const ravel__json_node *scaling(const reader *r) {
    const ravel__json_node *node = member(r, "rope_parameters"),
                           *full = ravel__json_get(r->doc, node, "full_attention");
    return full ? full : node ? node : member(r, "rope_scaling");
}

static double scaling_number(reader *r, const char *key, double missing) {
    double value = missing;
    const ravel__json_node *node = ravel__json_get(r->doc, scaling(r), key);
    if (node && node->kind != RAVEL__JSON_NULL && (!ravel__json_real(node, &value) || !(value > 0)))
        refuse(r, key, "a positive number");
    return value;
}

/* The numbers of a list, one for each rotated pair. */
static void factors(reader *r, const char *key, const ravel_shape *s, float *to) {
    const ravel__json_node *list = ravel__json_get(r->doc, scaling(r), key), *n = NULL;
    int64_t pairs = ravel__shape_rotated(s) / 2, i = 0;
    double value;
    if (list && list->kind == RAVEL__JSON_ARRAY) n = ravel__json_first(r->doc, list);
    for (; n && i < RAVEL_ROPE_PAIRS && ravel__json_real(n, &value) && value > 0; n = ravel__json_next(r->doc, n))
        to[i++] = (float)value;
    if (n || i != pairs) refuse(r, key, "a list of a positive number for each rotated pair of a head, at most 64");
}

/* What cosines and sines are multiplied with: given, or from how far the positions are stretched. */
static double attention_factor(reader *r, const ravel_shape *s, double factor) {
    double given = scaling_number(r, "attention_factor", 0), mscale = scaling_number(r, "mscale", 0);
    double all = scaling_number(r, "mscale_all_dim", 0), by = factor > 1 ? .1 * log(factor) : 0;
    if (given > 0) return given;
    if (s->rope == RAVEL_ROPE_LONG) return factor > 1 ? sqrt(1 + log(factor) / log((double)s->rope_positions)) : 1;
    return mscale > 0 && all > 0 ? (mscale * by + 1) / (all * by + 1) : by + 1;
}

static void read_stretched(reader *r, ravel_shape *s) {
    int truncate = 1;
    double ratio = (double)s->max_positions / (double)(s->rope_positions ? s->rope_positions : 1);
    s->rope_factor = scaling_number(r, "factor", ratio > 0 ? ratio : 1);
    s->rope_attention = attention_factor(r, s, s->rope_factor);
    if (s->rope == RAVEL_ROPE_LONG) {
        s->rope_factor = 0;
        factors(r, "short_factor", s, s->rope_short);
        factors(r, "long_factor", s, s->rope_long);
        return;
    }
    s->rope_high = scaling_number(r, "beta_fast", 32);
    s->rope_low = scaling_number(r, "beta_slow", 1);
    s->rope_exact = ravel__json_boolean(ravel__json_get(r->doc, scaling(r), "truncate"), &truncate) && !truncate;
    if (s->rope_theta <= 1) refuse(r, "rope_theta", "above 1 with yarn");
}

static void read_rope(reader *r, const ravel__family *f, ravel_shape *s) {
    static const struct {
        const char *name;
        ravel_rope rope;
    } ropes[] = {{"default", RAVEL_ROPE_PLAIN}, {"linear", RAVEL_ROPE_LINEAR}, {"llama3", RAVEL_ROPE_LLAMA3},
                 {"longrope", RAVEL_ROPE_LONG}, {"su", RAVEL_ROPE_LONG},       {"yarn", RAVEL_ROPE_YARN}};
    const ravel__json_node *node = scaling(r), *type = ravel__json_get(r->doc, node, "rope_type");
    if (!type) type = ravel__json_get(r->doc, node, "type");
    if (!type || type->kind != RAVEL__JSON_STRING) return;
    s->rope = RAVEL_ROPE_OTHER;
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++)
        if (ravel__json_is(type, ropes[i].name)) s->rope = (int32_t)ropes[i].rope;
    if (s->rope == RAVEL_ROPE_YARN && f->fused) s->rope = RAVEL_ROPE_LONG; /* as old files of Phi-3 name it */
    if (s->rope == RAVEL_ROPE_PLAIN || s->rope == RAVEL_ROPE_OTHER) return;
    if (s->rope == RAVEL_ROPE_LINEAR) {
        s->rope_factor = scaling_number(r, "factor", 1);
        return;
    }
    double positions = (double)number(r, "original_max_position_embeddings", 0);
    if (positions == 0) positions = scaling_number(r, "original_max_position_embeddings", (double)s->max_positions);
    if (!(positions >= 2 && positions <= (double)(INT64_C(1) << 31))) {
        refuse(r, "original_max_position_embeddings", "a number from 2 to 2^31");
        return;
    }
    s->rope_positions = (int64_t)positions;
    if (s->rope != RAVEL_ROPE_LLAMA3) {
        read_stretched(r, s);
        return;
    }
    s->rope_factor = scaling_number(r, "factor", 1);
    s->rope_low = scaling_number(r, "low_freq_factor", 1);
    s->rope_high = scaling_number(r, "high_freq_factor", 4);
}

/* The base of layers with a window: under "rope_parameters", or a key of its own in older files. */
static void read_local_rope(reader *r, const ravel__family *f, ravel_shape *s) {
    double value;
    if (!s->window) return;
    if (ravel__json_real(ravel__json_path(r->doc, r->root, "rope_parameters.sliding_attention.rope_theta"), &value)) {
        s->rope_local = value;
        if (!(value > 0)) refuse(r, "rope_parameters.sliding_attention.rope_theta", "a positive number");
    } else {
        s->rope_local = real(r, "rope_local_base_freq", f->rope_local);
    }
}

/* The n of "every n-th layer is of the kind `other`" (a string, or the number 0): the place of the first, 0 without. */
static int64_t every(const reader *r, const ravel__json_node *list, const char *other) {
    int64_t place = 0, value;
    if (!list || list->kind != RAVEL__JSON_ARRAY) return 0;
    for (const ravel__json_node *n = ravel__json_first(r->doc, list); n; n = ravel__json_next(r->doc, n)) {
        place++;
        if (other ? ravel__json_is(n, other) : ravel__json_integer(n, &value) && value == 0) return place;
    }
    return 0;
}

/* Layers of two kinds: the shape knows patterns in which every n-th is different, and takes the first such layer's
 * place for n; who builds the model checks the others (train_arch_check). */
static void read_layers(reader *r, const ravel__family *f, ravel_shape *s) {
    const ravel__json_node *types = member(r, "layer_types"), *ropes = member(r, "no_rope_layers");
    if (f->windows == 2 && !ravel__json_get(r->doc, r->root, "sliding_window")) s->window = 4096;
    if (f->windows) s->window = number(r, "sliding_window", s->window);
    if (s->window && f->scaled_embedding)
        s->window_every = number(r, "sliding_window_pattern", number(r, "_sliding_window_pattern", 6));
    if (s->window && types) s->window_every = every(r, types, "full_attention");
    if (s->window && types && s->window_every == 1) s->window = s->window_every = 0;
    if (f->rope_every)
        s->rope_every = ropes ? every(r, ropes, NULL) : number(r, "no_rope_layer_interval", f->rope_every);
}

static void read_scalars(reader *r, const ravel__family *f, ravel_shape *s) {
    if (f->scalars) {
        s->attention_scale = real(r, "attention_multiplier", 1);
        s->embedding_scale = real(r, "embedding_multiplier", 1);
        s->residual_scale = real(r, "residual_multiplier", 1);
        s->logits_scale = real(r, "logits_scaling", 1);
    } else if (f->scaled_embedding) {
        s->attention_scale = 1 / sqrt(real(r, "query_pre_attn_scalar", 256));
        s->embedding_scale = sqrt((double)s->hidden);
    }
}

/* The layers of an MoE model with a dense block. DeepSeek gives a number of leading layers and a frequency, Qwen
 * a list and a step that counts from 1. */
static void find_dense(reader *r, ravel_shape *s) {
    int64_t leading = number(r, "first_k_dense_replace", 0), every = number(r, "moe_layer_freq", 1);
    int64_t step = number(r, "decoder_sparse_step", 1), layers = s->layers;
    const ravel__json_node *list = member(r, "mlp_only_layers"), *n = NULL;
    uint64_t listed[2] = {0};
    int64_t value;
    if (layers > 65536) return; /* ravel_shape_check will say so */
    if (list && list->kind == RAVEL__JSON_ARRAY) n = ravel__json_first(r->doc, list);
    for (; n; n = ravel__json_next(r->doc, n)) {
        if (!ravel__json_integer(n, &value) || value < 0 || value >= layers) continue;
        if (value < 128)
            listed[value / 64] |= UINT64_C(1) << value % 64;
        else
            refuse(r, "mlp_only_layers", "of the first 128 layers");
    }
    for (int64_t i = 0; i < layers; i++) {
        int is_listed = i < 128 && (listed[i / 64] >> i % 64 & 1);
        if (!(i < leading || (every > 1 && i % every != 0) || (step > 1 && (i + 1) % step != 0) || is_listed)) continue;
        s->dense_layers++;
        if (i < 128) s->dense_mask[i / 64] |= UINT64_C(1) << i % 64;
        if (i >= 128) refuse(r, "num_hidden_layers", "at most 128 if some layers after the first have no experts");
    }
    if (s->dense_layers == leading) s->dense_mask[0] = s->dense_mask[1] = 0; /* which is what they mean */
}

static void read_experts(reader *r, const ravel__family *f, ravel_shape *s) {
    static const char *const counts[] = {"num_local_experts", "num_experts", "n_routed_experts", NULL};
    static const char *const actives[] = {"num_experts_per_tok", "experts_per_token", "moe_topk", NULL};
    static const char *const widths[] = {"moe_intermediate_size", "expert_intermediate_size", "intermediate_size",
                                         NULL};
    int64_t experts = any_number(r, counts, 0);
    if (experts <= 1) return;
    s->experts = experts;
    s->experts_active = any_number(r, actives, f->active ? f->active : 2);
    s->expert_ffn = any_number(r, widths, 0);
    s->shared_ffn = number(r, "shared_expert_intermediate_size", number(r, "n_shared_experts", 0) * s->expert_ffn);
    find_dense(r, s);
    s->router_norm = f->router_norm == 2 || flag(r, "norm_topk_prob", f->router_norm);
    if (flag(r, "output_router_logits", 0)) s->router_aux = real(r, "router_aux_loss_coef", 0.001);
    if (s->experts_active > experts) refuse(r, "num_experts_per_tok", "at most the number of experts");
    if (s->expert_ffn == 0) refuse(r, "moe_intermediate_size", "given, or intermediate_size");
}

static void read_latent(reader *r, ravel_shape *s) {
    s->kv_rank = number(r, "kv_lora_rank", 0);
    if (!s->kv_rank) return;
    s->q_rank = number(r, "q_lora_rank", 0);
    s->rope_dim = number(r, "qk_rope_head_dim", 64);
    s->v_dim = number(r, "v_head_dim", 128);
    s->head_dim = number(r, "qk_nope_head_dim", 128) + s->rope_dim;
    s->kv_heads = s->heads;
}

/* Rope on the first elements of a head. */
static void read_partial(reader *r, ravel_shape *s) {
    double share = scaling_number(r, "partial_rotary_factor", real(r, "partial_rotary_factor", 1));
    if (s->kv_rank || share == 1) return;
    if (share < 1) s->rope_dim = (int64_t)(share * (double)s->head_dim);
    if (share > 1 || s->rope_dim < 2) refuse(r, "partial_rotary_factor", "at most 1, and rotate 2 elements of a head");
}

static void read_shape(reader *r, ravel_shape *s) {
    s->family = find_family(r);
    const ravel__family *k = ravel__family_at(s->family);
    s->hidden = essential(r, "hidden_size", 0);
    s->layers = essential(r, "num_hidden_layers", 0);
    s->heads = essential(r, "num_attention_heads", k->heads);
    s->vocab = essential(r, "vocab_size", k->vocab);
    if (!s->heads) refuse(r, "num_attention_heads", "at least 1");
    s->kv_heads = number(r, "num_key_value_heads", k->kv_heads ? k->kv_heads : s->heads);
    s->head_dim = number(r, "head_dim", k->head_dim ? k->head_dim : s->heads ? s->hidden / s->heads : 0);
    read_experts(r, k, s);
    s->ffn = s->experts ? number(r, "intermediate_size", s->expert_ffn) : essential(r, "intermediate_size", 0);
    read_latent(r, s);
    s->max_positions = number(r, "max_position_embeddings", k->max_positions);
    s->tied = flag(r, "tie_word_embeddings", k->tied);
    s->qk_norm = member(r, "use_qk_norm") ? flag(r, "use_qk_norm", 0) : k->qk_norm;
    s->attention_bias = flag(r, "attention_bias", flag(r, "qkv_bias", k->bias));
    s->gated = !k->ungated;
    s->rope_theta = rope_theta(r, k->rope_theta);
    s->norm_eps = real(r, "rms_norm_eps", real(r, "norm_epsilon", k->norm_eps));
    read_partial(r, s);
    read_rope(r, k, s);
    read_layers(r, k, s);
    read_local_rope(r, k, s);
    read_scalars(r, k, s);
}

/* ---- public --------------------------------------------------------------------------------------------- */

ravel_status ravel_shape_parse(const char *json_text, size_t bytes, ravel_shape *shape, ravel_error *err) {
    ravel__json *doc = NULL;
    ravel_shape fresh;
    memset(&fresh, 0, sizeof fresh);
    ravel_status status = ravel__json_parse(json_text, bytes, NULL, &doc, err);
    if (status) return status;
    reader r = {doc, ravel__json_root(doc), err, RAVEL_OK};
    if (r.root->kind != RAVEL__JSON_OBJECT) {
        refuse(&r, "config", "a JSON object");
    } else {
        r.root = ravel__family_config(doc);
        read_shape(&r, &fresh);
    }
    ravel__json_free(doc);
    if (!r.status) r.status = ravel_shape_check(&fresh, err);
    if (!r.status) *shape = fresh;
    return r.status;
}

ravel_status ravel_shape_read(const char *path, ravel_shape *shape, ravel_error *err) {
    char inside[4096], *text;
    struct stat info;
    size_t bytes;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode) &&
        snprintf(inside, sizeof inside, "%s/config.json", path) < (int)sizeof inside)
        path = inside;
    ravel_status status = ravel__file_read(path, LARGEST_CONFIG, NULL, &text, &bytes, err);
    if (status) return status;
    ravel_error inner = RAVEL_ERROR_INIT;
    status = ravel_shape_parse(text, bytes, shape, &inner);
    ravel__release(NULL, text, bytes + 1);
    return status ? ravel_error_set(err, status, "%s: %s", path, inner.message) : RAVEL_OK;
}
