/* Rules of well-known frameworks, to Hugging Face names. */
#include <ravel/refit.h>

#include <string.h>

#define LAYER     "model.layers.*."
#define ATTENTION LAYER "self_attn."
#define QKV(what) ATTENTION "q_proj." what "," ATTENTION "k_proj." what "," ATTENTION "v_proj." what
#define GATED     LAYER "mlp.gate_proj.weight," LAYER "mlp.up_proj.weight"
#define EXPERT    LAYER "mlp.experts.#."

/* heads and stacks are filled in. */
static const ravel_refit_rule vllm[] = {
    {.name = ATTENTION "qkv_proj.weight", .parts = QKV("weight"), .join = RAVEL_REFIT_QKV},
    {.name = ATTENTION "qkv_proj.bias", .parts = QKV("bias"), .join = RAVEL_REFIT_QKV},
    {.name = LAYER "mlp.gate_up_proj.weight", .parts = GATED},
    {.name = LAYER "mlp.experts.w13_weight", .parts = EXPERT "gate_proj.weight," EXPERT "up_proj.weight", .stack = 1},
    {.name = LAYER "mlp.experts.w2_weight", .parts = EXPERT "down_proj.weight", .stack = 1},
    {.name = ATTENTION "qkv_proj.weight_scale_inv", .parts = QKV("weight_scale_inv"), .join = RAVEL_REFIT_QKV},
    {.name = LAYER "mlp.gate_up_proj.weight_scale_inv",
     .parts = LAYER "mlp.gate_proj.weight_scale_inv," LAYER "mlp.up_proj.weight_scale_inv"},
    {.name = LAYER "mlp.shared_expert.gate_up_proj.weight",
     .parts = LAYER "mlp.shared_expert.gate_proj.weight," LAYER "mlp.shared_expert.up_proj.weight"},
    {.name = LAYER "mlp.shared_experts.gate_up_proj.weight",
     .parts = LAYER "mlp.shared_experts.gate_proj.weight," LAYER "mlp.shared_experts.up_proj.weight"},
    {.name = LAYER "mlp.experts.w13_weight_scale_inv",
     .parts = EXPERT "gate_proj.weight_scale_inv," EXPERT "up_proj.weight_scale_inv",
     .stack = 1},
    {.name = LAYER "mlp.experts.w2_weight_scale_inv", .parts = EXPERT "down_proj.weight_scale_inv", .stack = 1},
};

/* Wrappers that put a prefix before Hugging Face's names. Patterns match whole names, so one row per depth. */
/* clang-format off */
#define UNWRAP(prefix, rest) \
    { .name = prefix rest, .parts = rest }
#define UNWRAP_INSIDE(infix, rest) \
    { .name = LAYER infix rest, .parts = LAYER rest }
/* clang-format on */
#define UNWRAP_LAYER(infix)                                                                                 \
    UNWRAP_INSIDE(infix, "*.weight"), UNWRAP_INSIDE(infix, "*.*.weight"), UNWRAP_INSIDE(infix, "*.*.bias"), \
        UNWRAP_INSIDE(infix, "*.*.*.*.weight")
static const ravel_refit_rule fsdp2[] = {
    UNWRAP("_orig_mod.", "model.embed_tokens.weight"),
    UNWRAP("_orig_mod.", "model.norm.weight"),
    UNWRAP("_orig_mod.", "lm_head.weight"),
    UNWRAP("_orig_mod.", "model.layers.*.*.weight"),
    UNWRAP("_orig_mod.", "model.layers.*.*.*.weight"),
    UNWRAP("_orig_mod.", "model.layers.*.*.*.bias"),
    UNWRAP("_orig_mod.", "model.layers.*.*.*.*.*.weight"),
    UNWRAP_LAYER("_orig_mod."), /* compiled layer by layer */
    UNWRAP_LAYER("_checkpoint_wrapped_module."),
};

#define CORE "decoder.layers.*."

static const ravel_refit_rule megatron[] = {
    {.name = "embedding.word_embeddings.weight", .parts = "model.embed_tokens.weight"},
    {.name = CORE "self_attention.linear_qkv.weight", .parts = QKV("weight"), .join = RAVEL_REFIT_QKV_GROUPED},
    {.name = CORE "self_attention.linear_qkv.bias", .parts = QKV("bias"), .join = RAVEL_REFIT_QKV_GROUPED},
    {.name = CORE "self_attention.linear_qkv.layer_norm_weight", .parts = LAYER "input_layernorm.weight"},
    {.name = CORE "input_layernorm.weight", .parts = LAYER "input_layernorm.weight"},
    {.name = CORE "self_attention.q_layernorm.weight", .parts = ATTENTION "q_norm.weight"},
    {.name = CORE "self_attention.k_layernorm.weight", .parts = ATTENTION "k_norm.weight"},
    {.name = CORE "self_attention.linear_proj.weight", .parts = ATTENTION "o_proj.weight"},
    {.name = CORE "pre_mlp_layernorm.weight", .parts = LAYER "post_attention_layernorm.weight"},
    {.name = CORE "mlp.linear_fc1.layer_norm_weight", .parts = LAYER "post_attention_layernorm.weight"},
    {.name = CORE "mlp.linear_fc1.weight", .parts = GATED},
    {.name = CORE "mlp.linear_fc2.weight", .parts = LAYER "mlp.down_proj.weight"},
    {.name = CORE "mlp.router.weight", .parts = LAYER "mlp.gate.weight"},
    {.name = CORE "mlp.router.expert_bias", .parts = LAYER "mlp.gate.e_score_correction_bias"},
    {.name = "decoder.final_layernorm.weight", .parts = "model.norm.weight"},
    {.name = "output_layer.weight", .parts = "lm_head.weight"},
    /* grouped experts, stacked by the caller; a map says which expert is where */
    {.name = CORE "mlp.experts.linear_fc1.weight",
     .parts = EXPERT "gate_proj.weight," EXPERT "up_proj.weight",
     .stack = 1},
    {.name = CORE "mlp.experts.linear_fc2.weight", .parts = EXPERT "down_proj.weight", .stack = 1},
    /* and one tensor per expert, numbered at the end of the name */
    {.name = CORE "mlp.experts.linear_fc1.weight*",
     .parts = LAYER "mlp.experts.*.gate_proj.weight," LAYER "mlp.experts.*.up_proj.weight"},
    {.name = CORE "mlp.experts.linear_fc2.weight*", .parts = LAYER "mlp.experts.*.down_proj.weight"},
    {.name = CORE "mlp.shared_experts.gate_weight", .parts = LAYER "mlp.shared_expert_gate.weight"},
    {.name = CORE "mlp.shared_experts.linear_fc1.weight",
     .parts = LAYER "mlp.shared_expert.gate_proj.weight," LAYER "mlp.shared_expert.up_proj.weight"},
    {.name = CORE "mlp.shared_experts.linear_fc2.weight", .parts = LAYER "mlp.shared_expert.down_proj.weight"},
};

static const struct {
    const char *name;
    const ravel_refit_rule *rules;
    int64_t count;
} sets[] = {
    {"vllm", vllm, sizeof vllm / sizeof *vllm},
    {"sglang", vllm, sizeof vllm / sizeof *vllm}, /* the same module names */
    {"megatron", megatron, sizeof megatron / sizeof *megatron},
    {"fsdp2", fsdp2, sizeof fsdp2 / sizeof *fsdp2},
    {"hf", fsdp2, sizeof fsdp2 / sizeof *fsdp2},
};

/* Of models whose output layer is the embedding: where an engine has both, both are that one tensor. They come
 * first. */
static const ravel_refit_rule tied[] = {
    {.name = "lm_head.weight", .parts = "model.embed_tokens.weight"},
    {.name = "output_layer.weight", .parts = "model.embed_tokens.weight"},
    {.name = "_orig_mod.lm_head.weight", .parts = "model.embed_tokens.weight"},
};

int64_t ravel_refit_rules_named(const char *set, int64_t heads, int64_t kv_heads, int64_t experts,
                                ravel_refit_rule *rules, int64_t most) {
    size_t length = strcspn(set, "+");
    int ties = strcmp(set + length, "+tied") == 0;
    if (set[length] && !ties) return 0;
    for (size_t s = 0; s < sizeof sets / sizeof *sets; s++) {
        if (strlen(sets[s].name) != length || strncmp(sets[s].name, set, length) != 0) continue;
        int64_t count = 0;
        for (size_t i = 0; ties && i < sizeof tied / sizeof *tied; i++, count++)
            if (count < most) rules[count] = tied[i];
        for (int64_t i = 0; i < sets[s].count; i++) {
            ravel_refit_rule rule = sets[s].rules[i];
            if (rule.stack > 0 && experts <= 0) continue;
            if (rule.stack > 0) rule.stack = experts;
            if (rule.join != RAVEL_REFIT_CONCAT) rule.heads = heads, rule.kv_heads = kv_heads;
            if (count < most) rules[count] = rule;
            count++;
        }
        return count;
    }
    return 0;
}
