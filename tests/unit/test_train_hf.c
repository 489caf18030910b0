/* Hugging Face folders: round trips in every dtype, shards, configs that the trainer would get wrong. */
#include "tests/unit/train_support.h"

#include "base/model/family.h"
#include "io/safetensors_writer.h"
#include "base/memory.h"
#include "base/rng.h"
#include "base/system/file.h"
#include "train/model/hf/gguf.h"
#include "train/run/grpo/pull.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static bool make_folder(char *folder, size_t bytes) {
    const char *base = getenv("TMPDIR");
    (void)snprintf(folder, bytes, "%s/ravel-hf-XXXXXX", base ? base : "/tmp");
    return EXPECT(mkdtemp(folder) != NULL);
}

static void remove_file(const char *folder, const char *name) {
    char path[1024];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    (void)unlink(path);
}

static bool write_text(const char *folder, const char *name, const char *text) {
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!EXPECT(f != NULL)) return false;
    (void)fputs(text, f);
    return EXPECT(fclose(f) == 0);
}

/* Saved, read back, and the same to what the dtype can say; all kinds of shape. */
static ravel_status read_array(void *user, const train_tensor *t, int64_t first, int64_t rows, void *to,
                               ravel_error *err) {
    const train_array *from = user;
    (void)err;
    from->kernels->download(from->device, to, train__at(from->data, from->dtype, t->offset + first * t->dims[1]),
                            (size_t)(rows * t->dims[1] * ravel_dtype_bytes(from->dtype)));
    return RAVEL_OK;
}

/* A folder of a model whose array is all here. */
static ravel_status save_array(const char *folder, const ravel_shape *shape, const train_params *params,
                               train_array *from, const train_folder_options *options, ravel_error *err) {
    train_rows_source rows = {read_array, from, from->dtype};
    return train_folder_save(folder, shape, params, &rows, options, err);
}

TEST(train_hf_round_trip) {
    static const struct {
        int32_t dtype;
        double off;
    } kinds[] = {{RAVEL_F32, 0}, {RAVEL_BF16, 4e-3}, {RAVEL_F16, 5e-4}};
    char folder[256];
    CHECK(make_folder(folder, sizeof folder));
    for (int i = 0; i < 6; i++) {
        ravel_shape shape = small_shape(), back;
        rig r;
        ravel_error err = RAVEL_ERROR_INIT;
        train_model_options o;
        train_model_options_default(&o);
        o.budget = 8;
        o.inference = 1;
        shape.tied = i & 1;
        shape.qk_norm = i % 3 == 0;
        shape.attention_bias = i % 3 == 1;
        shape.max_positions = 128;
        if (i < 2) shape.vocab = 11000; /* a tensor of more than one piece (2^18 elements) */
        CHECK(rig_open(&r, "cpu", 1, &shape, &o));
        CHECK_OK(train_model_init(r.model, 9, 0.3, &err), &err);
        const train_params *params = train_model_params(r.model);
        train_array weights = train_model_array(r.model), copy = weights;
        train_folder_options save = {.dtype = kinds[i / 2].dtype, .eos = i - 1};
        CHECK_OK(save_array(folder, &shape, params, &weights, &save, &err), &err);
        int32_t stops[2];
        CHECK_EQ(train_stops_read(folder, stops, 2), i > 0);
        if (i > 0) CHECK_EQ(stops[0], i - 1);
        CHECK_EQ(train_config_dtype(folder), kinds[i / 2].dtype);
        /* what servers get that hold this model, and generators that are not known to */
        train_config c;
        train_config_default(&c);
        c.model.model = folder;
        CHECK_EQ(train__grpo_published_dtype(&c, r.kernels), -1);
        c.grpo.rollout = "http://server:1";
        CHECK_EQ(train__grpo_published_dtype(&c, r.kernels), kinds[i / 2].dtype == RAVEL_BF16 ? RAVEL_BF16 : -1);
        CHECK_OK(train_config_read(folder, &back, &err), &err);
        CHECK(ravel__shape_family(&back) == ravel__shape_family(&shape));
        back.family = shape.family;
        CHECK(memcmp(&back, &shape, sizeof shape) == 0);
        float *loaded = calloc((size_t)params->elements, sizeof *loaded);
        copy.data = loaded;
        CHECK_OK(train_tensors_load(params, &copy, folder, &err), &err);
        double off = relative_distance(loaded, weights.data, params->elements);
        CHECK(off <= kinds[i / 2].off);
        save.dtype = RAVEL_I32;
        CHECK_EQ(save_array(folder, &shape, params, &weights, &save, &err), RAVEL_E_ARGUMENT);
        free(loaded);
        rig_close(&r);
    }
    remove_file(folder, "config.json");
    remove_file(folder, "model.safetensors");
    CHECK(rmdir(folder) == 0);
}

/* A file of these weights with stacked experts: the first expert of each layer declares, the others come after it. */
static bool write_stacked(const char *path, const train_params *p, const float *weights) {
    ravel__safetensors_writer *w = NULL;
    int64_t index;
    bool ok = ravel__safetensors_writer_create(path, NULL, &w, NULL) == RAVEL_OK;
    for (int pass = 0, place = 0; pass < 2 && ok; pass++)
        for (int64_t i = 0; i < p->count && ok; i++) {
            const train_tensor *t = &p->tensors[i];
            int64_t elements = t->stacked ? t->stacked_dims[0] * t->stacked_dims[1] : t->count;
            if (t->stacked && t->stacked_first > 0) continue;
            if (t->stacked && t->stacked_dims[2]) elements *= t->stacked_dims[2];
            if (!pass) {
                ok =
                    ravel__safetensors_writer_declare(w, t->stacked ? t->stacked : t->name, RAVEL_F32,
                                                      !t->stacked          ? t->rank
                                                      : t->stacked_dims[2] ? 3
                                                                           : 2,
                                                      t->stacked ? t->stacked_dims : t->dims, &index, NULL) == RAVEL_OK;
                continue;
            }
            float *all = calloc((size_t)elements, sizeof *all);
            for (int64_t k = i; k < p->count; k++)
                if (k == i || (t->stacked && p->tensors[k].stacked && strcmp(p->tensors[k].stacked, t->stacked) == 0))
                    memcpy(all + p->tensors[k].stacked_first, weights + p->tensors[k].offset,
                           (size_t)p->tensors[k].count * sizeof *all);
            ok = ravel__safetensors_writer_write(w, place++, all, elements * 4, NULL) == RAVEL_OK;
            free(all);
        }
    ok = ok && ravel__safetensors_writer_finish(w, NULL) == RAVEL_OK;
    ravel__safetensors_writer_free(w);
    return ok;
}

/* Models with experts, as they are written and read: configs of every family, dense layers among the others; and the weights with
 * all experts of a layer in two tensors. */
TEST(train_hf_experts_come_back) {
    char folder[256], from[256], path[300];
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(make_folder(folder, sizeof folder));
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    for (int m = 0; m < 3; m++) {
        rig r;
        ravel_shape shape, back;
        train_model_options o;
        train_model_options_default(&o);
        o.budget = 8;
        o.inference = 1;
        golden_folder(from, golden_model(GOLDEN_MODELS - 3 + m));
        CHECK_OK(train_config_read(from, &shape, &err), &err);
        shape.router_aux = m == 1 ? 0.25 : 0;
        CHECK(rig_open(&r, "cpu", 1, &shape, &o));
        const train_params *params = train_model_params(r.model);
        train_array weights = train_model_array(r.model), copy = weights;
        CHECK_OK(train_tensors_load(params, &weights, from, &err), &err);
        train_folder_options save = {.dtype = RAVEL_F32, .eos = -1};
        CHECK_OK(save_array(folder, &shape, params, &weights, &save, &err), &err);
        CHECK_OK(train_config_read(folder, &back, &err), &err);
        CHECK(memcmp(&back, &shape, sizeof shape) == 0);
        float *loaded = calloc((size_t)params->elements, sizeof *loaded);
        copy.data = loaded;
        CHECK_OK(train_tensors_load(params, &copy, folder, &err), &err);
        CHECK(memcmp(loaded, weights.data, (size_t)params->elements * sizeof *loaded) == 0);
        CHECK(write_stacked(path, params, loaded));
        memset(loaded, 0, (size_t)params->elements * sizeof *loaded);
        CHECK_OK(train_tensors_load(params, &copy, folder, &err), &err);
        CHECK(memcmp(loaded, weights.data, (size_t)params->elements * sizeof *loaded) == 0);
        free(loaded);
        rig_close(&r);
    }
    remove_file(folder, "config.json");
    remove_file(folder, "model.safetensors");
    CHECK(rmdir(folder) == 0);
}

/* A folder in shards reads back as the same weights; tensors beyond those that the config describes are named. */
TEST(train_hf_shards_and_tensors_too_many) {
    char folder[256], path[400];
    rig r;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_shape shape = small_shape();
    train_model_options o;
    train_model_options_default(&o);
    o.budget = 8;
    o.inference = 1;
    CHECK(make_folder(folder, sizeof folder) && rig_open(&r, "cpu", 1, &shape, &o));
    CHECK_OK(train_model_init(r.model, 9, 0.3, &err), &err);
    const train_params *params = train_model_params(r.model);
    train_array weights = train_model_array(r.model), copy = weights;
    train_folder_options save = {.dtype = RAVEL_F32, .eos = -1, .shard_bytes = params->parameters * 4 / 3};
    CHECK_OK(save_array(folder, &shape, params, &weights, &save, &err), &err);
    float *loaded = calloc((size_t)params->elements, sizeof *loaded);
    copy.data = loaded;
    CHECK_OK(train_tensors_load(params, &copy, folder, &err), &err);
    CHECK(relative_distance(loaded, weights.data, params->elements) == 0);
    rig_close(&r);
    shape.layers = 1; /* the folder has one more */
    CHECK(rig_open(&r, "cpu", 1, &shape, &o));
    weights = train_model_array(r.model);
    CHECK_EQ(train_tensors_load(train_model_params(r.model), &weights, folder, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "model.layers.1.");
    rig_close(&r);
    int shards = 0;
    for (int n = 2; n < 9 && !shards; n++) {
        (void)snprintf(path, sizeof path, "%s/model-00001-of-%05d.safetensors", folder, n);
        if (access(path, F_OK) == 0) shards = n;
    }
    CHECK(shards >= 3);
    for (int i = 1; i <= shards; i++) {
        (void)snprintf(path, sizeof path, "model-%05d-of-%05d.safetensors", i, shards);
        remove_file(folder, path);
    }
    remove_file(folder, "model.safetensors.index.json");
    remove_file(folder, "config.json");
    CHECK(rmdir(folder) == 0);
    free(loaded);
}

/* One NaN or infinity anywhere is found, whatever the dtype, and the tensor named. */
TEST(train_hf_weights_that_are_not_finite) {
    static const int32_t dtypes[] = {RAVEL_F32, RAVEL_BF16, RAVEL_F16};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    char folder[256], element[64];
    rig r;
    ravel_shape shape = small_shape();
    train_model_options o;
    train_model_options_default(&o);
    o.budget = 8;
    o.inference = 1;
    CHECK(make_folder(folder, sizeof folder) && rig_open(&r, "cpu", 1, &shape, &o));
    const train_params *params = train_model_params(r.model);
    train_array weights = train_model_array(r.model);
    for (int i = 0; i < 9; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        const train_tensor *t = params->tensors + (i * 5) % params->count;
        int64_t at = i % 2 ? t->count - 1 : 0;
        train_folder_options save = {.dtype = dtypes[i % 3], .eos = -1};
        CHECK_OK(train_model_init(r.model, 9, 0.3, &err), &err);
        ((float *)weights.data)[t->offset + at] = values[i / 3];
        CHECK_OK(save_array(folder, &shape, params, &weights, &save, &err), &err);
        CHECK_EQ(train_tensors_load(params, &weights, folder, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, t->name);
        (void)snprintf(element, sizeof element, "NaN or infinity, first in element %lld of", (long long)at);
        CHECK_HAS(err.message, element);
    }
    rig_close(&r);
    remove_file(folder, "model.safetensors");
    remove_file(folder, "config.json");
    CHECK(rmdir(folder) == 0);
}

/* Nothing that is not finite, or would not be in the file's type, is written. */
TEST(train_hf_gguf_refuses_what_its_type_cannot_hold) {
    static const struct {
        float value;
        int32_t type;
        const char *says;
    } cases[] = {{NAN, TRAIN_GGUF_F32, "NaN or infinity"},
                 {INFINITY, TRAIN_GGUF_F16, "NaN or infinity"},
                 {NAN, TRAIN_GGUF_Q8_0, "NaN or infinity"},
                 {-1e5F, TRAIN_GGUF_F16, "-100000, which this type cannot"},
                 {1e5F, TRAIN_GGUF_BF16, NULL},
                 {65504, TRAIN_GGUF_F16, NULL}};
    char folder[256], out[300];
    rig r;
    ravel_shape shape = small_shape();
    train_model_options o;
    train_model_options_default(&o);
    o.budget = 8;
    o.inference = 1;
    CHECK(make_folder(folder, sizeof folder) && rig_open(&r, "cpu", 1, &shape, &o));
    (void)snprintf(out, sizeof out, "%s/model.gguf", folder);
    const train_params *params = train_model_params(r.model);
    train_array weights = train_model_array(r.model);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        const train_tensor *t = train_params_find(params, "model.layers.1.mlp.down_proj.weight");
        train_folder_options save = {.dtype = RAVEL_F32, .eos = -1};
        int64_t context;
        CHECK_OK(train_model_init(r.model, 9, 0.3, &err), &err);
        ((float *)weights.data)[t->offset + t->count - 1] = cases[i].value;
        CHECK_OK(save_array(folder, &shape, params, &weights, &save, &err), &err);
        ravel_status status = train_gguf_export(folder, out, cases[i].type, NULL, &context, &err);
        CHECK_EQ(status, cases[i].says ? RAVEL_E_DATA : RAVEL_OK);
        if (cases[i].says) CHECK_HAS(err.message, "blk.1.ffn_down.weight holds ");
        if (cases[i].says) CHECK_HAS(err.message, cases[i].says);
        CHECK_EQ(unlink(out) == 0, !cases[i].says);
    }
    rig_close(&r);
    remove_file(folder, "model.safetensors");
    remove_file(folder, "config.json");
    CHECK(rmdir(folder) == 0);
}

/* The flag of that name in a GGUF file's metadata; -1: it is not there. */
static int gguf_flag(const train_gguf_head *head, const char *key) {
    const char *text = head->text.at, *at = memmem(text, head->bytes, key, strlen(key));
    return at ? at[strlen(key) + 4] : -1;
}

/* bos and eos of this tokenizer are one token: what goes before a text does not go behind it too. */
TEST(train_hf_gguf_adds_eos_only_behind_a_text) {
    static const struct {
        const char *config;
        int bos, eos;
    } cases[] = {{"{\"bos_token\": \"<|im_end|>\", \"eos_token\": \"<|im_end|>\", \"add_bos_token\": true}", 1, 0},
                 {"{\"bos_token\": \"<|im_end|>\", \"eos_token\": \"<|im_end|>\", \"add_bos_token\": true, "
                  "\"add_eos_token\": true}",
                  1, 1},
                 {"{\"bos_token\": \"<|im_end|>\", \"eos_token\": \"<|im_end|>\"}", 0, 0}};
    char folder[256], path[300], *json = NULL;
    size_t bytes;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(make_folder(folder, sizeof folder));
    CHECK_OK(ravel__file_read("tests/golden/text/smol/tokenizer.json", 1 << 20, NULL, &json, &bytes, &err), &err);
    CHECK(write_text(folder, "tokenizer.json", json));
    ravel__release(NULL, json, bytes + 1);
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_gguf_head head = {.err = &err};
        CHECK(write_text(folder, "tokenizer_config.json", cases[i].config));
        ravel_status status = train_gguf_tokenizer(&head, folder, 4096, NULL, &err);
        if (status == RAVEL_E_UNSUPPORTED && strstr(err.message, "pcre2")) break; /* no regular expressions */
        CHECK_OK(status, &err);
        CHECK_EQ(gguf_flag(&head, "tokenizer.ggml.add_bos_token"), cases[i].bos);
        CHECK_EQ(gguf_flag(&head, "tokenizer.ggml.add_eos_token"), cases[i].eos);
        ravel__buffer_free(&head.text, NULL);
    }
    remove_file(folder, "tokenizer_config.json");
    remove_file(folder, "tokenizer.json");
    CHECK(rmdir(folder) == 0);
}

/* Numbers of a config are short, and read back bit for bit. */
TEST(train_hf_numbers_are_short_and_exact) {
    char folder[256], path[512], text[4096] = "";
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__rng r = ravel__rng_seed(check_seed());
    static const int32_t kinds[] = {RAVEL_ROPE_LINEAR, RAVEL_ROPE_LLAMA3, RAVEL_ROPE_YARN, RAVEL_ROPE_LONG};
    CHECK(make_folder(folder, sizeof folder));
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    for (int i = 0; i < 200; i++) {
        ravel_shape shape = small_shape(), back;
        shape.max_positions = 128;
        shape.rope = kinds[i % 4];
        shape.rope_factor = i ? 1 + 9 * ravel__rng_unit(&r) : 8;
        shape.norm_eps = i ? 1e-6 + 1e-4 * ravel__rng_unit(&r) : 1e-5;
        if (i) shape.rope_theta = 1e4 + 1e6 * ravel__rng_unit(&r);
        shape.rope_low = i % 4 % 3 > 0, shape.rope_high = 4 * shape.rope_low, shape.rope_positions = i % 4 ? 64 : 0;
        shape.rope_exact = i % 8 == 2;
        if (i % 4 > 1) shape.rope_attention = 1 + ravel__rng_unit(&r);
        if (i % 4 == 3) shape.rope_factor = 0;
        for (int pair = 0; i % 4 == 3 && pair < shape.head_dim / 2; pair++)
            shape.rope_short[pair] = shape.rope_long[pair] = 1 + (float)ravel__rng_unit(&r);
        CHECK_OK(train_config_write(path, &shape, RAVEL_F32, 2, &err), &err);
        CHECK_OK(train_config_read(folder, &back, &err), &err);
        CHECK(back.norm_eps == shape.norm_eps && back.rope_theta == shape.rope_theta);
        CHECK(back.rope_factor == shape.rope_factor && back.rope_low == shape.rope_low);
        CHECK(back.rope_high == shape.rope_high && back.rope_positions == shape.rope_positions);
        CHECK(back.rope_attention == shape.rope_attention && back.rope_exact == shape.rope_exact);
        CHECK(memcmp(back.rope_short, shape.rope_short, sizeof back.rope_short) == 0);
        CHECK(memcmp(back.rope_long, shape.rope_long, sizeof back.rope_long) == 0);
        if (i > 0) continue;
        FILE *f = fopen(path, "r");
        CHECK(f != NULL && fread(text, 1, sizeof text - 1, f) > 0 && fclose(f) == 0);
        CHECK_HAS(text, "\"rms_norm_eps\": 1e-05\n");
        CHECK_HAS(text, "\"factor\": 8}");
    }
    remove_file(folder, "config.json");
    CHECK(rmdir(folder) == 0);
}

/* Tokenizer and end tokens of a model travel with it. */
TEST(train_hf_rest_of_a_folder) {
    char from[256], to[256], text[64] = "";
    int32_t stops[4];
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(make_folder(from, sizeof from) && make_folder(to, sizeof to));
    CHECK(write_text(from, "config.json",
                     "{\"eos_token_id\": 7, \"router_jitter_noise\": 0.0, \"theta\": 5e5, \"k\": 2}"));
    CHECK(train_stops_read(from, stops, 4) == 1 && stops[0] == 7);
    CHECK(write_text(from, "generation_config.json", "{\"eos_token_id\": [5, 6, 8, 9, 10]}"));
    CHECK(train_stops_read(from, stops, 4) == 4 && stops[0] == 5 && stops[3] == 9);
    CHECK(write_text(from, "tokenizer.json", "the tokenizer"));
    CHECK_OK(train_folder_copy_rest(from, to, RAVEL_F32, &err), &err);
    CHECK(train_stops_read(to, stops, 4) == 4);
    char path[512], config[256] = "";
    (void)snprintf(path, sizeof path, "%s/config.json", to);
    FILE *f = fopen(path, "r");
    CHECK(f != NULL && fread(config, 1, sizeof config - 1, f) > 0 && fclose(f) == 0);
    CHECK_HAS(config, "\"router_jitter_noise\": 0.0,"); /* transformers tells real numbers from integers */
    CHECK_HAS(config, "\"theta\": 500000.0,");
    CHECK_HAS(config, "\"k\": 2");
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", to);
    f = fopen(path, "r");
    CHECK(f != NULL);
    CHECK(fgets(text, sizeof text, f) != NULL);
    (void)fclose(f);
    CHECK_STR(text, "the tokenizer");
    for (int i = 0; i < 2; i++) {
        remove_file(i ? from : to, "config.json");
        remove_file(i ? from : to, "generation_config.json");
        remove_file(i ? from : to, "tokenizer.json");
        CHECK(rmdir(i ? from : to) == 0);
    }
}

TEST(train_hf_weights_that_do_not_fit) {
    rig r;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_shape shape;
    train_model_options o;
    train_model_options_default(&o);
    o.budget = 8;
    o.inference = 1;
    CHECK_OK(train_config_read(GOLDEN "/config.json", &shape, &err), &err);
    shape.ffn = 161;
    CHECK(rig_open(&r, "cpu", 1, &shape, &o));
    train_array weights = train_model_array(r.model);
    CHECK_EQ(train_tensors_load(train_model_params(r.model), &weights, GOLDEN "/model.safetensors", &err),
             RAVEL_E_DATA);
    CHECK_HAS(err.message, "mlp.gate_proj.weight");
    rig_close(&r);
    shape.ffn = 160;
    shape.tied = 0;
    CHECK(rig_open(&r, "cpu", 1, &shape, &o));
    ravel_error_clear(&err);
    weights = train_model_array(r.model);
    CHECK_EQ(train_tensors_load(train_model_params(r.model), &weights, GOLDEN "/model.safetensors", &err),
             RAVEL_E_DATA);
    CHECK_HAS(err.message, "lm_head.weight");
    ravel_error_clear(&err);
    CHECK_EQ(train_tensors_load(train_model_params(r.model), &weights, GOLDEN "/missing.safetensors", &err),
             RAVEL_E_IO);
    rig_close(&r);
}

/* The table of tensors is made before any file is looked at: of this config it would take hours. */
TEST(train_hf_experts_without_number) {
    ravel_shape shape;
    train_params *params = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    static const char text[] =
        "{\"model_type\": \"mixtral\", \"hidden_size\": 2, \"num_hidden_layers\": 65536, \"num_attention_heads\": 1, "
        "\"num_key_value_heads\": 1, \"head_dim\": 2, \"vocab_size\": 300, \"intermediate_size\": 1, "
        "\"num_local_experts\": 2147483648}";
    CHECK_OK(ravel_shape_parse(text, sizeof text - 1, &shape, &err), &err);
    CHECK_EQ(train_params_create(&shape, NULL, NULL, &params, &err), RAVEL_E_OVERFLOW);
    CHECK_HAS(err.message, "more than 2^20 experts");
}

TEST(train_hf_configs_that_it_would_get_wrong) {
#define SIZES                                                                                                \
    "\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, " \
    "\"intermediate_size\": 64, \"vocab_size\": 100"
    static const struct {
        const char *text;
        ravel_status status;
        const char *says;
    } rows[] = {
        {"{" SIZES "}", RAVEL_OK, ""},
        {"{" SIZES ", \"rope_scaling\": null, \"use_sliding_window\": false}", RAVEL_OK, ""},
        {"{" SIZES ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}}", RAVEL_OK, ""},
        {"{" SIZES ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}}", RAVEL_OK, ""},
        {"{" SIZES ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": -2}}", RAVEL_E_DATA, "factor"},
        {"{" SIZES ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"low_freq_factor\": 9}}", RAVEL_E_DATA, "above"},
        {"{" SIZES ", \"mlp_bias\": true}", RAVEL_E_UNSUPPORTED, "mlp_bias"},
        {"{" SIZES ", \"attention_bias\": true}", RAVEL_E_UNSUPPORTED, "attention_bias"},
        {"{" SIZES ", \"attn_logit_softcapping\": 50.0}", RAVEL_E_UNSUPPORTED, "soft cap"},
        {"{" SIZES ", \"attn_logit_softcapping\": null}", RAVEL_OK, ""},
        {"{" SIZES ", \"use_qk_norm\": true}", RAVEL_E_UNSUPPORTED, "use_qk_norm"},
        {"{" SIZES ", \"partial_rotary_factor\": 0.5}", RAVEL_E_UNSUPPORTED, "partial_rotary_factor"},
        {"{" SIZES ", \"partial_rotary_factor\": 1.0}", RAVEL_OK, ""},
        {"{" SIZES ", \"quantization_config\": {}}", RAVEL_E_UNSUPPORTED, "quantised"},
        {"{" SIZES ", \"layer_types\": [\"full_attention\"]}", RAVEL_OK, ""},
        {"{" SIZES ", \"layer_types\": [\"sliding_attention\"]}", RAVEL_E_UNSUPPORTED, "layer_types"},
        {"{" SIZES ", \"model_type\": \"gemma2\"}", RAVEL_E_UNSUPPORTED,
         "llama, mistral, qwen2, qwen3, mixtral, qwen3_moe, olmoe, gemma3_text, smollm3"},
        {"{" SIZES ", \"model_type\": \"mistral\", \"num_key_value_heads\": 2, \"sliding_window\": 16}", RAVEL_OK, ""},
        {"{" SIZES ", \"model_type\": \"qwen2\", \"use_sliding_window\": true}", RAVEL_E_UNSUPPORTED,
         "use_sliding_window"},
        {"{" SIZES ", \"rope_scaling\": {\"type\": \"yarn\"}}", RAVEL_OK, ""},
        {"{" SIZES ", \"rope_scaling\": {\"type\": \"yarn\", \"beta_slow\": 40}}", RAVEL_E_DATA, "beta_fast"},
        {"{" SIZES ", \"rope_scaling\": {\"type\": \"dynamic\"}}", RAVEL_E_UNSUPPORTED, "dynamic"},
        {"{" SIZES ", \"rope_scaling\": {\"type\": \"longrope\"}}", RAVEL_E_DATA, "short_factor"},
        {"{" SIZES ", \"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 1, 1, 1, 1, 1, 1, 0], "
         "\"long_factor\": [1, 1, 1, 1, 1, 1, 1, 1]}}",
         RAVEL_E_DATA, "short_factor"},
        {"{" SIZES ", \"model_type\": \"phi3\", \"partial_rotary_factor\": 0.5}", RAVEL_OK, ""},
        {"{" SIZES ", \"model_type\": \"phi3\", \"partial_rotary_factor\": 0.05}", RAVEL_E_DATA,
         "partial_rotary_factor"},
        {"{" SIZES ", \"hidden_act\": \"gelu\"}", RAVEL_E_UNSUPPORTED, "gelu"},
        {"{" SIZES ", \"use_sliding_window\": true}", RAVEL_E_UNSUPPORTED, "use_sliding_window"},
        {"{" SIZES ", \"model_type\": \"smollm3\", \"num_key_value_heads\": 4}", RAVEL_OK, ""},
        {"{" SIZES ", \"model_type\": \"smollm3\", \"num_key_value_heads\": 4, \"no_rope_layers\": [2]}",
         RAVEL_E_UNSUPPORTED, "no_rope_layers"},
        {"{" SIZES ", \"model_type\": \"mistral\", \"num_key_value_heads\": 2, \"sliding_window\": 9, "
         "\"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
         RAVEL_E_UNSUPPORTED, "layer_types"},
        {"{" SIZES ", \"model_type\": \"granite\", \"residual_multiplier\": 0.5}", RAVEL_OK, ""},
        {"{" SIZES ", \"residual_multiplier\": 0.5}", RAVEL_E_UNSUPPORTED, "residual_multiplier"},
        {"{" SIZES ", \"model_type\": \"gemma3_text\", \"hidden_activation\": \"gelu\"}", RAVEL_E_UNSUPPORTED,
         "gelu_pytorch_tanh"},
        {"{" SIZES ", \"model_type\": \"olmo2\", \"clip_qkv\": 8.0}", RAVEL_E_UNSUPPORTED, "clip_qkv"},
        {"{" SIZES, RAVEL_E_DATA, "config.json"},
        {"", RAVEL_E_DATA, "config.json"},
    };
    char folder[256];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_shape shape;
    CHECK(make_folder(folder, sizeof folder));
    CHECK_EQ(train_config_read(folder, &shape, &err), RAVEL_E_IO);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ravel_error_clear(&err);
        CHECK(write_text(folder, "config.json", rows[i].text));
        CHECK_EQ(train_config_read(folder, &shape, &err), rows[i].status);
        CHECK_HAS(err.message, rows[i].says);
    }
    remove_file(folder, "config.json");
    CHECK(rmdir(folder) == 0);
}
