/* The shape of a model from its Hugging Face config.json, or by name from a few published ones.
 *
 * Configs of Llama-like models differ in three ways: the default of a missing key (a row of `kinds` by model_type), the
 * names of the expert keys (the first that is present), and which layers have experts. */
#include <ravel/file.h>
#include <ravel/json.h>
#include <ravel/shape.h>

#include "base/memory.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { LARGEST_CONFIG = 16 << 20 };

/* transformers' defaults for missing keys. */
typedef struct kind {
    const char *model_type;
    int32_t kv_heads; /* 0: as many as heads */
    int32_t head_dim; /* 0: hidden / heads */
    int32_t qk_norm, bias, gated, tied;
    double rope_theta, norm_eps;
    int64_t max_positions;
} kind;

/* clang-format off */
static const kind kinds[] = {
    /*              kv  dim norm bias gated tied theta eps positions */
    {"llama",        0,   0, 0, 0, 1, 0, 1e4, 1e-6,   2048}, /* and every model_type that is not listed */
    {"mistral",      8,   0, 0, 0, 1, 0, 1e4, 1e-6, 131072},
    {"ministral",    8,   0, 0, 0, 1, 0, 1e4, 1e-6, 131072},
    {"mixtral",      8,   0, 0, 0, 1, 0, 1e6, 1e-5, 131072},
    {"qwen2",        0,   0, 0, 1, 1, 0, 1e4, 1e-6,  32768},
    {"qwen2_moe",    0,   0, 0, 1, 1, 0, 1e4, 1e-6,  32768},
    {"qwen3",        0, 128, 1, 0, 1, 0, 1e4, 1e-6,  32768},
    {"qwen3_moe",    4,   0, 1, 0, 1, 0, 1e4, 1e-6,  32768},
    {"deepseek_v2",  0,   0, 0, 0, 1, 0, 1e4, 1e-6,   2048},
    {"deepseek_v3",  0,   0, 0, 0, 1, 0, 1e4, 1e-6,   4096},
    {"gemma",        0, 256, 0, 0, 1, 1, 1e4, 1e-6,   8192},
    {"gemma2",       4, 256, 0, 0, 1, 1, 1e4, 1e-6,   8192},
    {"gemma3_text",  4, 256, 1, 0, 1, 1, 1e6, 1e-6, 131072},
    {"gpt_oss",      8,  64, 0, 1, 1, 0, 1.5e5, 1e-5, 131072},
    {"glm4_moe",     8,   0, 0, 0, 1, 0, 1e4, 1e-5, 131072},
    {"starcoder2",   2,   0, 0, 1, 0, 1, 1e4, 1e-5,   4096},
    {"nemotron",     0,   0, 0, 0, 0, 0, 1e4, 1e-5,   4096},
};
/* clang-format on */

typedef struct reader {
    const ravel_json *doc;
    const ravel_json_node *root;
    ravel_error *err;
    ravel_status status; /* the first thing that was wrong */
} reader;

/* ---- keys ----------------------------------------------------------------------------------------------- */

static const ravel_json_node *member(const reader *r, const char *key) {
    const ravel_json_node *node = ravel_json_get(r->doc, r->root, key);
    return node && node->kind != RAVEL_JSON_NULL ? node : NULL;
}

static void refuse(reader *r, const char *key, const char *wanted) {
    if (!r->status) r->status = ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\" must be %s", key, wanted);
}

/* The number at `key`, or `missing` where the key is absent or null. */
static int64_t number(reader *r, const char *key, int64_t missing) {
    const ravel_json_node *node = member(r, key);
    int64_t value = missing;
    if (node && (!ravel_json_integer(node, &value) || value < 0 || value > INT64_C(1) << 31)) {
        refuse(r, key, "a whole number from 0 to 2^31");
        return missing;
    }
    return value;
}

static int64_t essential(reader *r, const char *key) {
    if (!member(r, key) && !r->status)
        r->status = ravel_error_set(r->err, RAVEL_E_DATA, "\"%s\" is missing; is this a model's config.json?", key);
    return number(r, key, 1);
}

/* The number at the first of the keys that is there. */
static int64_t any_number(reader *r, const char *const *keys, int64_t missing) {
    for (; *keys; keys++)
        if (member(r, *keys)) return number(r, *keys, missing);
    return missing;
}

static int32_t flag(reader *r, const char *key, int32_t missing) {
    const ravel_json_node *node = member(r, key);
    int value = missing;
    if (node && !ravel_json_boolean(node, &value)) refuse(r, key, "true or false");
    return value;
}

static double real(reader *r, const char *key, double missing) {
    const ravel_json_node *node = member(r, key);
    double value = missing;
    if (node && (!ravel_json_real(node, &value) || !(value > 0))) {
        refuse(r, key, "a positive number");
        return missing;
    }
    return value;
}

/* ---- pieces --------------------------------------------------------------------------------------------- */

static const kind *find_kind(const reader *r) {
    const ravel_json_node *type = member(r, "model_type");
    for (size_t i = 1; i < sizeof kinds / sizeof *kinds; i++)
        if (ravel_json_is(type, kinds[i].model_type)) return &kinds[i];
    return &kinds[0];
}

/* "rope_theta" at the top, or under "rope_parameters" where newer files keep it. */
static double rope_theta(reader *r, double missing) {
    double value;
    const char *const places[] = {"rope_parameters.rope_theta", "rope_parameters.full_attention.rope_theta",
                                  "rope_scaling.rope_theta"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (ravel_json_real(ravel_json_path(r->doc, r->root, places[i]), &value) && value > 0) return value;
    return real(r, "rope_theta", missing);
}

/* The object that says how rope is scaled, under its new or its old name. */
static const ravel_json_node *scaling(const reader *r) {
    const ravel_json_node *node = member(r, "rope_parameters");
    return node ? node : member(r, "rope_scaling");
}

static double scaling_number(reader *r, const char *key, double missing) {
    double value = missing;
    const ravel_json_node *node = ravel_json_get(r->doc, scaling(r), key);
    if (node && node->kind != RAVEL_JSON_NULL && (!ravel_json_real(node, &value) || !(value > 0)))
        refuse(r, key, "a positive number");
    return value;
}

static void read_rope(reader *r, ravel_shape *s) {
    static const struct {
        const char *name;
        ravel_rope rope;
    } ropes[] = {{"default", RAVEL_ROPE_PLAIN}, {"linear", RAVEL_ROPE_LINEAR}, {"llama3", RAVEL_ROPE_LLAMA3}};
    const ravel_json_node *node = scaling(r), *type = ravel_json_get(r->doc, node, "rope_type");
    if (!type) type = ravel_json_get(r->doc, node, "type");
    if (!type || type->kind != RAVEL_JSON_STRING) return;
    s->rope = RAVEL_ROPE_OTHER;
    for (size_t i = 0; i < sizeof ropes / sizeof *ropes; i++)
        if (ravel_json_is(type, ropes[i].name)) s->rope = (int32_t)ropes[i].rope;
    if (s->rope == RAVEL_ROPE_PLAIN) return;
    s->rope_factor = scaling_number(r, "factor", 1);
    if (s->rope != RAVEL_ROPE_LLAMA3) return;
    s->rope_low = scaling_number(r, "low_freq_factor", 1);
    s->rope_high = scaling_number(r, "high_freq_factor", 4);
    s->rope_positions = (int64_t)scaling_number(r, "original_max_position_embeddings", (double)s->max_positions);
}

/* Mistral has a window unless it is null; Qwen's is turned on by a flag of its own. Where only some layers have a
 * window, the shape has none. */
static void read_window(reader *r, const kind *k, ravel_shape *s) {
    int mistral = strcmp(k->model_type, "mistral") == 0;
    if (mistral && !ravel_json_get(r->doc, r->root, "sliding_window")) s->window = 4096;
    if (mistral) s->window = number(r, "sliding_window", s->window);
}

static int listed(const reader *r, const ravel_json_node *list, int64_t layer) {
    int64_t value;
    if (!list || list->kind != RAVEL_JSON_ARRAY) return 0;
    for (const ravel_json_node *n = ravel_json_first(r->doc, list); n; n = ravel_json_next(r->doc, n))
        if (ravel_json_integer(n, &value) && value == layer) return 1;
    return 0;
}

/* Number of layers of an MoE model with a dense block. DeepSeek gives a number of leading layers and a frequency, Qwen
 * a list and a step that counts from 1. */
static int64_t count_dense(reader *r, int64_t layers) {
    int64_t leading = number(r, "first_k_dense_replace", 0), every = number(r, "moe_layer_freq", 1);
    int64_t step = number(r, "decoder_sparse_step", 1), dense = 0;
    const ravel_json_node *list = member(r, "mlp_only_layers");
    if (layers > 65536) return 0; /* ravel_shape_check will say so */
    for (int64_t i = 0; i < layers; i++)
        dense +=
            i < leading || (every > 1 && i % every != 0) || (step > 1 && (i + 1) % step != 0) || listed(r, list, i);
    return dense;
}

static void read_experts(reader *r, ravel_shape *s) {
    static const char *const counts[] = {"num_local_experts", "num_experts", "n_routed_experts", NULL};
    static const char *const actives[] = {"num_experts_per_tok", "experts_per_token", "moe_topk", NULL};
    static const char *const widths[] = {"moe_intermediate_size", "expert_intermediate_size", "intermediate_size",
                                         NULL};
    int64_t experts = any_number(r, counts, 0);
    if (experts <= 1) return;
    s->experts = experts;
    s->experts_active = any_number(r, actives, 2);
    s->expert_ffn = any_number(r, widths, 0);
    s->shared_ffn = number(r, "shared_expert_intermediate_size", number(r, "n_shared_experts", 0) * s->expert_ffn);
    s->dense_layers = count_dense(r, s->layers);
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

static void read_shape(reader *r, ravel_shape *s) {
    const kind *k = find_kind(r);
    s->hidden = essential(r, "hidden_size");
    s->layers = essential(r, "num_hidden_layers");
    s->heads = essential(r, "num_attention_heads");
    s->vocab = essential(r, "vocab_size");
    if (!s->heads) refuse(r, "num_attention_heads", "at least 1");
    s->kv_heads = number(r, "num_key_value_heads", k->kv_heads ? k->kv_heads : s->heads);
    s->head_dim = number(r, "head_dim", k->head_dim ? k->head_dim : s->heads ? s->hidden / s->heads : 0);
    read_experts(r, s);
    s->ffn = s->experts ? number(r, "intermediate_size", s->expert_ffn) : essential(r, "intermediate_size");
    read_latent(r, s);
    s->max_positions = number(r, "max_position_embeddings", k->max_positions);
    s->tied = flag(r, "tie_word_embeddings", k->tied);
    s->qk_norm = flag(r, "use_qk_norm", k->qk_norm);
    s->attention_bias = flag(r, "attention_bias", flag(r, "qkv_bias", k->bias));
    s->gated = k->gated;
    s->rope_theta = rope_theta(r, k->rope_theta);
    s->norm_eps = real(r, "rms_norm_eps", real(r, "norm_epsilon", k->norm_eps));
    read_rope(r, s);
    read_window(r, k, s);
}

/* ---- public --------------------------------------------------------------------------------------------- */

ravel_status ravel_shape_parse(const char *json_text, size_t bytes, ravel_shape *shape, ravel_error *err) {
    ravel_json *doc = NULL;
    ravel_shape fresh;
    memset(&fresh, 0, sizeof fresh);
    ravel_status status = ravel_json_parse(json_text, bytes, NULL, &doc, err);
    if (status) return status;
    reader r = {doc, ravel_json_root(doc), err, RAVEL_OK};
    if (r.root->kind != RAVEL_JSON_OBJECT) {
        refuse(&r, "config", "a JSON object");
    } else {
        const ravel_json_node *text_model = member(&r, "text_config");
        if (!member(&r, "hidden_size") && text_model) r.root = text_model;
        read_shape(&r, &fresh);
    }
    ravel_json_free(doc);
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
    ravel_status status = ravel_file_read(path, LARGEST_CONFIG, NULL, &text, &bytes, err);
    if (status) return status;
    ravel_error inner = RAVEL_ERROR_INIT;
    status = ravel_shape_parse(text, bytes, shape, &inner);
    ravel__release(NULL, text, bytes + 1);
    return status ? ravel_error_set(err, status, "%s: %s", path, inner.message) : RAVEL_OK;
}
