/* Families of models: one row each, read by everything that depends on what a family is. Adding one is adding a row. */
#include "base/model/family.h"

#include <stddef.h>

/* clang-format off */
#define NORMS_BEFORE {"input_layernorm", NULL, "post_attention_layernorm", NULL}
#define NORMS_AFTER {NULL, "post_attention_layernorm", NULL, "post_feedforward_layernorm"}
#define NORMS_AROUND \
    {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"}
#define FAMILY(type, class, where) .model_type = type, .architecture = class, .norms = where
#define DEFAULTS(kv, dim, theta, eps, positions) \
    .kv_heads = kv, .head_dim = dim, .rope_theta = theta, .norm_eps = eps, .max_positions = positions
#define EXPERTS "mlp.gate", .experts = {"mlp.experts", "gate_proj", "up_proj", "down_proj"}
#define KEYS(...) .expert_keys = {__VA_ARGS__}
#define OTHER(type) .model_type = type, .norms = NORMS_BEFORE

static const ravel__family rows[] = {
    /* the first row is also that of every model_type that is not listed */
    /* Llama 2 and 3, SmolLM, SmolLM2, TinyLlama */
    {FAMILY("llama", "LlamaForCausalLM", NORMS_BEFORE),
     DEFAULTS(0, 0, 1e4, 1e-6, 2048)},
    /* Mistral 7B */
    {FAMILY("mistral", "MistralForCausalLM", NORMS_BEFORE), .windows = 2,
     DEFAULTS(8, 0, 1e4, 1e-6, 131072)},
    /* Qwen2, Qwen2.5 */
    {FAMILY("qwen2", "Qwen2ForCausalLM", NORMS_BEFORE), .bias = 1,
     DEFAULTS(0, 0, 1e4, 1e-6, 32768)},
    /* Qwen3 */
    {FAMILY("qwen3", "Qwen3ForCausalLM", NORMS_BEFORE), .qk_norm = RAVEL_QK_NORM_HEAD,
     DEFAULTS(0, 128, 1e4, 1e-6, 32768)},
    /* Mixtral */
    {FAMILY("mixtral", "MixtralForCausalLM", NORMS_BEFORE), .windows = 1, .router = "block_sparse_moe.gate",
     .experts = {"block_sparse_moe.experts", "w1", "w3", "w2"}, .router_norm = 2, .active = 2,
     KEYS("num_local_experts"),
     DEFAULTS(8, 0, 1e6, 1e-5, 131072)},
    /* Qwen3 30B A3B and 235B A22B */
    {FAMILY("qwen3_moe", "Qwen3MoeForCausalLM", NORMS_BEFORE), .qk_norm = RAVEL_QK_NORM_HEAD, .router = EXPERTS, .active = 8,
     KEYS("num_experts", "moe_intermediate_size"),
     DEFAULTS(4, 0, 1e4, 1e-6, 32768)},
    /* OLMoE */
    {FAMILY("olmoe", "OlmoeForCausalLM", NORMS_BEFORE), .qk_norm = RAVEL_QK_NORM_WHOLE, .router = EXPERTS, .active = 8,
     KEYS("num_experts"),
     DEFAULTS(0, 0, 1e4, 1e-5, 4096)},
    /* Gemma 3; of 4B and above what reads text */
    {FAMILY("gemma3_text", "Gemma3ForCausalLM", NORMS_AROUND), .unit_norms = 1,
     .activation = RAVEL__ACTIVATION_GELU, .windows = 2, .scaled_embedding = 1, .qk_norm = RAVEL_QK_NORM_HEAD, .tied = 1,
     DEFAULTS(4, 256, 1e6, 1e-6, 131072), .rope_local = 1e4, .heads = 8, .vocab = 262208},
    /* SmolLM3 */
    {FAMILY("smollm3", "SmolLM3ForCausalLM", NORMS_BEFORE), .rope_every = 4, .tied = 1,
     DEFAULTS(4, 0, 2e6, 1e-6, 32768)},
    /* OLMo 2 */
    {FAMILY("olmo2", "Olmo2ForCausalLM", NORMS_AFTER), .qk_norm = RAVEL_QK_NORM_WHOLE,
     DEFAULTS(0, 0, 1e4, 1e-5, 2048)},
    /* Phi-3, Phi-3.5 mini, Phi-4 and Phi-4-mini */
    {FAMILY("phi3", "Phi3ForCausalLM", NORMS_BEFORE), .fused = 1, .partial = 1, .windows = 1,
     DEFAULTS(0, 0, 1e4, 1e-5, 4096)},
    /* Granite 3 */
    {FAMILY("granite", "GraniteForCausalLM", NORMS_BEFORE), .scalars = 1,
     DEFAULTS(0, 0, 1e4, 1e-6, 2048)},
    {OTHER("ministral"),                 DEFAULTS(8,   0, 1e4,   1e-6, 131072)},
    {OTHER("qwen2_moe"), .bias = 1,      DEFAULTS(0,   0, 1e4,   1e-6,  32768)},
    {OTHER("deepseek_v2"),               DEFAULTS(0,   0, 1e4,   1e-6,   2048)},
    {OTHER("deepseek_v3"),               DEFAULTS(0,   0, 1e4,   1e-6,   4096)},
    {OTHER("gemma"), .tied = 1,          DEFAULTS(0, 256, 1e4,   1e-6,   8192)},
    {OTHER("gemma2"), .tied = 1,         DEFAULTS(4, 256, 1e4,   1e-6,   8192)},
    {OTHER("gpt_oss"), .bias = 1,        DEFAULTS(8,  64, 1.5e5, 1e-5, 131072)},
    {OTHER("glm4_moe"),                  DEFAULTS(8,   0, 1e4,   1e-5, 131072)},
    {OTHER("starcoder2"), .bias = 1, .ungated = 1, .tied = 1, DEFAULTS(2, 0, 1e4, 1e-5, 4096)},
    {OTHER("nemotron"), .ungated = 1,    DEFAULTS(0,   0, 1e4,   1e-5,   4096)},
};
/* clang-format on */
enum { ROWS = sizeof rows / sizeof *rows };

const ravel__family *ravel__family_at(int32_t index) {
    return index >= 0 && index < ROWS ? rows + index : NULL;
}

/* A shape that names no family is of the first of those without traits that it cannot say. */
const ravel__family *ravel__shape_family(const ravel_shape *s) {
    if (s->family > 0 && s->family < ROWS) return rows + s->family;
    for (int i = 0; i < ROWS && rows[i].architecture && !rows[i].unit_norms; i++)
        if (!rows[i].router == !s->experts && rows[i].qk_norm == s->qk_norm && rows[i].bias == s->attention_bias &&
            (rows[i].windows || !s->window))
            return rows + i;
    return rows;
}

const ravel__json_node *ravel__family_config(const ravel__json *doc) {
    const ravel__json_node *root = ravel__json_root(doc), *text = ravel__json_get(doc, root, "text_config"),
                           *hidden = ravel__json_get(doc, root, "hidden_size");
    int part = text && text->kind == RAVEL__JSON_OBJECT && (!hidden || hidden->kind == RAVEL__JSON_NULL);
    return part ? text : root;
}
