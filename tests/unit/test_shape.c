/* Shapes from configs and by name. */
#include "tests/unit/check.h"

#include "base/model/shape.h"

#include <ravel/shape.h>

#include <stdlib.h>
#include <unistd.h>

static ravel_status parse(const char *text, ravel_shape *shape, ravel_error *err) {
    return ravel_shape_parse(text, strlen(text), shape, err);
}

/* Provenance: the parameter counts that the models' publishers give (DeepSeek-V3 without its extra prediction layer
 * and without the 58 * 256 correction biases of its routers). One wrong size or forgotten matrix and they would not be
 * met. */
TEST(shape_parameters_of_published_models) {
    static const struct {
        const char *name;
        int64_t parameters;
    } rows[] = {{"qwen3-0.6b", 596049920},      {"qwen3-1.7b", 1720574976},        {"qwen3-4b", 4022468096},
                {"qwen3-8b", 8190735360},       {"qwen3-14b", 14768307200},        {"qwen3-32b", 32762123264},
                {"qwen2.5-0.5b", 494032768},    {"qwen2.5-1.5b", 1543714304},      {"qwen2.5-3b", 3085938688},
                {"qwen2.5-7b", 7615616512},     {"qwen2.5-14b", 14770033664},      {"qwen2.5-32b", 32763876352},
                {"llama-1b", 1235814400},       {"llama-3b", 3212749824},          {"llama-8b", 8030261248},
                {"llama-70b", 70553706496},     {"mistral-7b", 7248023552},        {"mixtral-8x7b", 46702792704},
                {"qwen3-30b-a3b", 30532122624}, {"qwen3-235b-a22b", 235093634560}, {"deepseek-v3", 671026404352}};
    int32_t count = 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ravel_shape shape;
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(ravel_shape_named(rows[i].name, &shape, &err), &err);
        CHECK_OK(ravel_shape_check(&shape, &err), &err);
        if (!EXPECT(ravel_shape_parameters(&shape) == rows[i].parameters))
            printf("    %s: %lld\n", rows[i].name, (long long)ravel_shape_parameters(&shape));
    }
    while (ravel_shape_name(count)) count++;
    CHECK_EQ(count, sizeof rows / sizeof *rows);
}

TEST(shape_token_costs) {
    ravel_shape shape;
    CHECK_EQ(ravel_shape_named("qwen3-0.6b", &shape, NULL), RAVEL_OK);
    /* q, k, v and o, three feed-forward matrices, and the (tied) LM head */
    int64_t layer = 1024 * (16 + 8 + 8) * 128 + 16 * 128 * 1024 + 3 * 1024 * 3072;
    CHECK_EQ(ravel__shape_matmul_weights(&shape), 28 * layer + INT64_C(151936) * 1024);
    CHECK_EQ(ravel__shape_attention_width(&shape), 28 * 16 * 256);
    CHECK_EQ(ravel_shape_named("mixtral-8x7b", &shape, NULL), RAVEL_OK);
    layer = 4096 * 48 * 128 + 4096 * 4096 + 2 * INT64_C(3) * 4096 * 14336 + 4096 * 8;
    CHECK_EQ(ravel__shape_matmul_weights(&shape), 32 * layer + INT64_C(32000) * 4096);
    CHECK_EQ(ravel_shape_named("deepseek-v3", &shape, NULL), RAVEL_OK);
    CHECK_EQ(ravel__shape_attention_width(&shape), 61 * 128 * (192 + 128));
}

TEST(shape_names_are_suggested) {
    ravel_shape shape;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_shape_named("qwen3-8B", &shape, &err), RAVEL_OK);
    CHECK_EQ(shape.hidden, 4096);
    CHECK_EQ(ravel_shape_named("qwen-3-8b", &shape, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "did you mean qwen3-8b?");
    CHECK_HAS(err.message, "deepseek-v3");
    CHECK(!ravel_shape_name(-1));
}

#define LLAMA \
    "\"hidden_size\": 4096, \"num_hidden_layers\": 32, \"num_attention_heads\": 32, \"vocab_size\": 128256, \"intermediate_size\": 14336"

TEST(shape_reads_configs_as_transformers_does) {
    ravel_shape a, b;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(parse("{\"model_type\": \"llama\", " LLAMA ", \"num_key_value_heads\": 8, \"rms_norm_eps\": 1e-05, "
                   "\"rope_theta\": 500000.0, \"max_position_embeddings\": 8192, \"head_dim\": null}",
                   &a, &err),
             &err);
    CHECK_OK(ravel_shape_named("llama-8b", &b, &err), &err);
    b.family = a.family; /* which names do not have */
    CHECK(memcmp(&a, &b, sizeof a) == 0);
    /* what is left out: as many kv heads as heads, theta 1e4, untied */
    CHECK_OK(parse("{" LLAMA "}", &a, &err), &err);
    CHECK(a.kv_heads == 32 && a.head_dim == 128 && a.rope_theta == 1e4 && !a.tied && a.gated && !a.qk_norm);
    CHECK_OK(parse("{\"model_type\": \"mistral\", " LLAMA "}", &a, &err), &err);
    CHECK_EQ(a.kv_heads, 8);
    CHECK_OK(parse("{\"model_type\": \"qwen2\", " LLAMA "}", &a, &err), &err);
    CHECK(a.attention_bias && !a.qk_norm);
    CHECK_OK(parse("{\"model_type\": \"qwen3\", \"hidden_size\": 1024, \"num_hidden_layers\": 28, "
                   "\"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"vocab_size\": 151936, "
                   "\"intermediate_size\": 3072, \"tie_word_embeddings\": true, \"max_position_embeddings\": 40960, "
                   "\"rope_parameters\": {\"rope_theta\": 1000000.0, \"rope_type\": \"default\"}}",
                   &a, &err),
             &err);
    CHECK_OK(ravel_shape_named("qwen3-0.6b", &b, &err), &err);
    b.family = a.family;                  /* which names do not have */
    CHECK(memcmp(&a, &b, sizeof a) == 0); /* head_dim 128 although hidden / heads is 64 */
    CHECK_OK(parse("{\"vision_config\": {}, \"text_config\": {" LLAMA "}}", &a, &err), &err);
    CHECK_EQ(a.hidden, 4096);
}

TEST(shape_reads_experts) {
    ravel_shape a, b;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(parse("{\"model_type\": \"mixtral\", \"hidden_size\": 4096, \"num_hidden_layers\": 32, "
                   "\"num_attention_heads\": 32, \"num_key_value_heads\": 8, \"vocab_size\": 32000, "
                   "\"intermediate_size\": 14336, \"num_local_experts\": 8, \"num_experts_per_tok\": 2, "
                   "\"max_position_embeddings\": 32768, \"rope_theta\": 1e6, \"rms_norm_eps\": 1e-05}",
                   &a, &err),
             &err);
    CHECK_OK(ravel_shape_named("mixtral-8x7b", &b, &err), &err);
    b.family = a.family; /* which names do not have */
    CHECK(memcmp(&a, &b, sizeof a) == 0);
    CHECK_OK(
        parse("{\"model_type\": \"qwen3_moe\", \"hidden_size\": 2048, \"num_hidden_layers\": 48, "
              "\"num_attention_heads\": 32, \"num_key_value_heads\": 4, \"head_dim\": 128, \"vocab_size\": 151936, "
              "\"intermediate_size\": 6144, \"moe_intermediate_size\": 768, \"num_experts\": 128, "
              "\"num_experts_per_tok\": 8, \"mlp_only_layers\": [], \"decoder_sparse_step\": 1, "
              "\"norm_topk_prob\": true, \"max_position_embeddings\": 40960, \"rope_theta\": 1000000}",
              &a, &err),
        &err);
    CHECK_OK(ravel_shape_named("qwen3-30b-a3b", &b, &err), &err);
    b.family = a.family; /* which names do not have */
    CHECK(memcmp(&a, &b, sizeof a) == 0);
    CHECK_OK(
        parse(
            "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 7168, \"num_hidden_layers\": 61, "
            "\"num_attention_heads\": 128, \"num_key_value_heads\": 128, \"vocab_size\": 129280, "
            "\"intermediate_size\": 18432, \"moe_intermediate_size\": 2048, \"n_routed_experts\": 256, "
            "\"n_shared_experts\": 1, \"norm_topk_prob\": true, \"norm_topk_prob\": true, \"num_experts_per_tok\": 8, \"first_k_dense_replace\": 3, "
            "\"moe_layer_freq\": 1, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, "
            "\"qk_rope_head_dim\": 64, \"v_head_dim\": 128, \"max_position_embeddings\": 163840}",
            &a, &err),
        &err);
    CHECK_OK(ravel_shape_named("deepseek-v3", &b, &err), &err);
    b.family = a.family; /* which names do not have */
    CHECK(memcmp(&a, &b, sizeof a) == 0);
    /* dense layers by list and by step: 1, 3, 5, 7 have experts, of which 3 is listed as dense */
    CHECK_OK(parse("{\"model_type\": \"qwen2_moe\", \"hidden_size\": 64, \"num_hidden_layers\": 8, "
                   "\"num_attention_heads\": 4, \"vocab_size\": 100, \"moe_intermediate_size\": 16, "
                   "\"shared_expert_intermediate_size\": 48, \"num_experts\": 4, \"num_experts_per_tok\": 2, "
                   "\"mlp_only_layers\": [3], \"decoder_sparse_step\": 2, \"intermediate_size\": 96}",
                   &a, &err),
             &err);
    CHECK(a.dense_layers == 5 && a.shared_ffn == 48 && a.expert_ffn == 16 && a.ffn == 96);
}

TEST(shape_refuses_with_a_sentence) {
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"[]", "must be a JSON object"},
        {"{", "line 1"},
        {"{}", "\"hidden_size\" is missing"},
        {"{" LLAMA ", \"num_key_value_heads\": 5}", "32 heads are not a multiple of 5"},
        {"{" LLAMA ", \"head_dim\": 3}", "head_dim is 3"},
        {"{" LLAMA ", \"num_key_value_heads\": 0}", "kv_heads is 0"},
        {"{" LLAMA ", \"rope_theta\": -1}", "\"rope_theta\" must be a positive number"},
        {"{" LLAMA ", \"tie_word_embeddings\": 3}", "true or false"},
        {"{" LLAMA ", \"num_experts\": 4, \"num_experts_per_tok\": 5}", "at most the number of experts"},
        {"{\"hidden_size\": \"big\"}", "\"hidden_size\" must be a whole number"},
        {"{\"hidden_size\": 1e12}", "\"hidden_size\" must be a whole number"},
        {"{\"hidden_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 0}", "\"vocab_size\" is missing"},
        {"{\"hidden_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 0, \"vocab_size\": 3}", "at least 1"},
        {"{\"hidden_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"vocab_size\": 3}",
         "\"intermediate_size\" is missing"},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"yarn\", \"original_max_position_embeddings\": 1e300}}",
         "\"original_max_position_embeddings\" must be"},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"llama3\", \"original_max_position_embeddings\": 0.5}}",
         "\"original_max_position_embeddings\" must be"},
        {"{" LLAMA ", \"partial_rotary_factor\": 1e300}", "\"partial_rotary_factor\" must be at most 1"},
        {"{\"model_type\": \"gemma3_text\", " LLAMA ", \"sliding_window\": 64, \"rope_parameters\": "
         "{\"sliding_attention\": {\"rope_theta\": -1}}}",
         "rope_theta\" must be a positive number"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_shape shape, before;
        memset(&shape, 0x5a, sizeof shape);
        before = shape;
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_EQ(parse(cases[i].text, &shape, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, cases[i].says);
        CHECK(memcmp(&shape, &before, sizeof shape) == 0);
    }
}

/* Its time must not be the layers times the list's length. */
TEST(shape_reads_long_lists_of_dense_layers) {
    enum { NUMBERS = 1 << 20 };
    static const char head[] = "{\"hidden_size\": 64, \"num_hidden_layers\": 65536, \"num_attention_heads\": 4, "
                               "\"vocab_size\": 100, \"intermediate_size\": 64, \"num_experts\": 4, "
                               "\"mlp_only_layers\": [3";
    ravel_shape shape;
    ravel_error err = RAVEL_ERROR_INIT;
    char *text = malloc(sizeof head + 2 * (size_t)NUMBERS + 2), *at = text;
    CHECK(text);
    memcpy(at, head, sizeof head - 1);
    at += sizeof head - 1;
    for (int i = 0; i < NUMBERS; i++, at += 2) memcpy(at, ",3", 2);
    memcpy(at, "]}", 2);
    CHECK_OK(ravel_shape_parse(text, (size_t)(at + 2 - text), &shape, &err), &err);
    CHECK(shape.dense_layers == 1 && shape.dense_mask[0] == 8 && !shape.dense_mask[1]);
    free(text);
}

TEST(shape_reads_files_and_folders) {
    char folder[] = "/tmp/ravel-shape-XXXXXX", path[64];
    ravel_shape shape;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_EQ(ravel_shape_read(path, &shape, &err), RAVEL_E_IO);
    CHECK_HAS(err.message, "config.json: cannot open it: No such file");
    FILE *f = fopen(path, "w");
    CHECK(f);
    fprintf(f, "{" LLAMA "}");
    fclose(f);
    ravel_error_clear(&err);
    CHECK_OK(ravel_shape_read(path, &shape, &err), &err);
    CHECK_OK(ravel_shape_read(folder, &shape, &err), &err);
    CHECK_EQ(shape.vocab, 128256);
    f = fopen(path, "w");
    fprintf(f, "{\"hidden_size\": 3,\n oops}");
    fclose(f);
    CHECK_EQ(ravel_shape_read(path, &shape, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "config.json: JSON, line 2, column 2");
    unlink(path);
    rmdir(folder);
}
