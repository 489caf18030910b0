/* Adapters: against the model into which they are merged, as PEFT folders, and their options. */
#include "tests/unit/train_job.h"
#include "tests/unit/train_support.h"

#include "train/model/generate/generator.h"
#include "train/model/hf/lora.h"
#include "train/run/config/config.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static const char *const sets[] = {"ref", "cpu"};

/* Of a layer: PEFT's name of each target in the model's table. */
static const char *const names[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
                                    "mlp.gate_proj",    "mlp.up_proj",      "mlp.down_proj"};
enum { NAMES = 7, TOKENS = 40 };

static float *at(const rig *r, void *array, const train_params *params, const char *format, int layer, const char *name,
                 const train_tensor **t) {
    char text[128];
    (void)r;
    (void)snprintf(text, sizeof text, format, layer, name);
    *t = train_params_find(params, text);
    return *t ? (float *)array + (*t)->offset : NULL;
}

/* One target: w, A, B and their gradients; NULL where it has no adapter. */
typedef struct target {
    const train_tensor *tw, *ta, *tb;
    float *w, *a, *b;
} target;

static target target_of(const rig *r, void *base, void *adapter, int layer, int name) {
    target t;
    const train_params *own = train_model_base_params(r->model), *lora = train_model_params(r->model);
    t.w = at(r, base, own, "model.layers.%d.%s.weight", layer, names[name], &t.tw);
    t.a = at(r, adapter, lora, "base_model.model.model.layers.%d.%s.lora_A.weight", layer, names[name], &t.ta);
    t.b = at(r, adapter, lora, "base_model.model.model.layers.%d.%s.lora_B.weight", layer, names[name], &t.tb);
    return t;
}

/* merged = w + scale B A, over all of them. */
static void merge(const rig *r, float *merged) {
    double scale = train_lora_scale(&train_model_params(r->model)->lora);
    for (int layer = 0; layer < r->shape.layers; layer++)
        for (int name = 0; name < NAMES; name++) {
            target t = target_of(r, merged, train_model_weights(r->model), layer, name);
            if (!t.a) continue;
            int64_t rank = t.ta->dims[0];
            for (int64_t i = 0; i < t.tw->dims[0]; i++)
                for (int64_t j = 0; j < t.tw->dims[1]; j++) {
                    double sum = 0;
                    for (int64_t k = 0; k < rank; k++)
                        sum += (double)t.b[i * rank + k] * (double)t.a[k * t.tw->dims[1] + j];
                    t.w[i * t.tw->dims[1] + j] += (float)(scale * sum);
                }
        }
}

/* dA = scale B' dW and dB = scale dW A', dW being the merged model's. */
static void expected(const rig *r, float *d_w, float *want) {
    const train_params *p = train_model_params(r->model);
    double scale = train_lora_scale(&p->lora);
    memset(want, 0, (size_t)p->elements * sizeof *want);
    for (int layer = 0; layer < r->shape.layers; layer++)
        for (int name = 0; name < NAMES; name++) {
            target g = target_of(r, d_w, want, layer, name);
            target t = target_of(r, d_w, train_model_weights(r->model), layer, name);
            if (!t.a) continue;
            int64_t rank = t.ta->dims[0], rows = t.tw->dims[0], columns = t.tw->dims[1];
            for (int64_t k = 0; k < rank; k++)
                for (int64_t i = 0; i < rows; i++)
                    for (int64_t j = 0; j < columns; j++) {
                        g.a[k * columns + j] += (float)(scale * t.b[i * rank + k] * g.w[i * columns + j]);
                        g.b[i * rank + k] += (float)(scale * g.w[i * columns + j] * t.a[k * columns + j]);
                    }
        }
}

static uint64_t draw(uint64_t *state, uint64_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

static void random_weights(float *to, int64_t count, double size, uint64_t *seed) {
    for (int64_t i = 0; i < count; i++) to[i] = (float)(size * ((double)draw(seed, 2001) / 1000 - 1));
}

static train_batch batch_of(const ravel_shape *shape, uint64_t *seed, int32_t *tokens, float *weights,
                            const int32_t *cu) {
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)draw(seed, (uint64_t)shape->vocab);
        weights[i] = draw(seed, 3) ? (float)draw(seed, 100) / 100 : 0;
    }
    return (train_batch){.samples = 3, .tokens = tokens, .cu_seqlens = cu, .weights = weights};
}

static train_lora random_lora(uint64_t *seed) {
    static const train_layer_tensor all[] = {TRAIN_Q, TRAIN_K, TRAIN_V, TRAIN_O, TRAIN_GATE, TRAIN_UP, TRAIN_DOWN};
    train_lora l = {.rank = 1 + (int32_t)draw(seed, 9), .alpha = 1 + (double)draw(seed, 20)};
    l.rslora = (int32_t)draw(seed, 2);
    while (!l.targets)
        for (int i = 0; i < NAMES; i++) l.targets |= (uint32_t)draw(seed, 2) << all[i];
    return l;
}

/* Loss, log-probs and gradients against those of the model into which the adapter is merged, and, with it off, of the model
 * alone. */
static void compare_with_merged(const char *set, uint64_t seed) {
    static const int32_t cu[] = {0, 7, 8, TOKENS};
    train_model_options o;
    rig adapted, merged;
    ravel_shape shape = small_shape();
    int32_t tokens[TOKENS];
    float weights[TOKENS], got_logprob[TOKENS], want_logprob[TOKENS];
    train_result got = {.logprob = got_logprob}, want = {.logprob = want_logprob};
    train_batch batch = batch_of(&shape, &seed, tokens, weights, cu);
    train_model_options_default(&o);
    o.budget = 64;
    o.recompute = (int32_t)draw(&seed, 3);
    shape.attention_bias = (int32_t)draw(&seed, 2);
    if (!rig_open(&merged, set, 2, &shape, &o)) return;
    o.lora = random_lora(&seed);
    if (!rig_open(&adapted, set, 2, &shape, &o)) return;
    const train_params *p = train_model_params(adapted.model), *own = train_model_params(merged.model);
    train_array base = train_model_base_array(adapted.model);
    size_t bytes = (size_t)own->elements * sizeof(float);
    CHECK(train_model_init(adapted.model, seed, 0.2, NULL) == RAVEL_OK);
    memcpy(train_model_weights(merged.model), base.data, bytes);
    CHECK(train_model_learn(adapted.model, &batch, NULL, &got, NULL) == RAVEL_OK);
    CHECK(train_model_score(merged.model, &batch, &want, NULL) == RAVEL_OK);
    EXPECT(largest_difference(got_logprob, want_logprob, TOKENS) < 1e-6); /* B is 0 */
    for (int64_t i = 0; i < p->count; i++)
        random_weights((float *)train_model_weights(adapted.model) + p->tensors[i].offset, p->tensors[i].count, 0.3,
                       &seed);
    merge(&adapted, train_model_weights(merged.model));
    train_model_clear_grads(adapted.model);
    for (int i = 0; i < 2; i++) CHECK(train_model_learn(adapted.model, &batch, NULL, &got, NULL) == RAVEL_OK);
    CHECK(train_model_learn(merged.model, &batch, NULL, &want, NULL) == RAVEL_OK);
    CHECK(train_model_learn(merged.model, &batch, NULL, &want, NULL) == RAVEL_OK);
    EXPECT(largest_difference(got_logprob, want_logprob, TOKENS) < 1e-4);
    EXPECT(fabs(got.loss - want.loss) < 1e-5 * (1 + fabs(want.loss)));
    float *d_w = rig_grads(&merged), *d_got = rig_grads(&adapted),
          *d_want = malloc((size_t)p->elements * sizeof *d_want);
    expected(&adapted, d_w, d_want);
    for (int64_t i = 0; i < p->count; i++) {
        const train_tensor *t = &p->tensors[i];
        double off = relative_distance(d_got + t->offset, d_want + t->offset, t->count);
        if (!EXPECT(off < 1e-4)) printf("    %s: %s off by %g\n", set, t->name, off);
    }
    train_model_set_adapter(adapted.model, 0);
    memcpy(train_model_weights(merged.model), base.data, bytes);
    CHECK(train_model_score(adapted.model, &batch, &got, NULL) == RAVEL_OK);
    CHECK(train_model_score(merged.model, &batch, &want, NULL) == RAVEL_OK);
    EXPECT(memcmp(got_logprob, want_logprob, sizeof got_logprob) == 0);
    free(d_w), free(d_got), free(d_want);
    rig_close(&adapted);
    rig_close(&merged);
}

TEST(train_lora_is_the_merged_model) {
    uint64_t seed = check_seed();
    for (int i = 0; i < check_rounds(6, 60); i++)
        for (int s = 0; s < 2; s++) compare_with_merged(sets[s], seed + (uint64_t)i);
}

/* ---- PEFT's own ------------------------------------------------------------------------------------------- */

/* Its folder, as tests/golden/adapters/make.py wrote it, beside a model of tests/golden/archs. */
static bool open_peft(rig *r, const char *set, const char *name, char *folder) {
    char base[256];
    ravel_shape shape;
    train_model_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    train_model_options_default(&o);
    o.budget = TOKENS;
    (void)snprintf(folder, 256, "tests/golden/adapters/%s", name);
    (void)snprintf(base, sizeof base, "tests/golden/archs/%s", name);
    ravel_status status = train_config_read(base, &shape, &err);
    if (!status) status = train_adapter_read(folder, &o.lora, &err);
    if (!status && !rig_open(r, set, 1, &shape, &o)) return false;
    if (!status) {
        train_array to = train_model_base_array(r->model), adapter = train_model_array(r->model);
        status = train_tensors_load(train_model_base_params(r->model), &to, base, &err);
        if (!status) status = train_adapter_load(train_model_params(r->model), &adapter, folder, &err);
    }
    if (status) check_fail(__FILE__, __LINE__, "%s: %s", name, err.message);
    return !status;
}

static void compare_with_peft(const char *set, const char *name) {
    char folder[256], path[300];
    rig r;
    ravel_safetensors *made = NULL, *ids = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(open_peft(&r, set, name, folder));
    (void)snprintf(path, sizeof path, "%s/golden.safetensors", folder);
    CHECK_OK(ravel_safetensors_open(path, NULL, &made, &err), &err);
    (void)snprintf(path, sizeof path, "tests/golden/archs/%s/golden.safetensors", name);
    CHECK_OK(ravel_safetensors_open(path, NULL, &ids, &err), &err);
    const ravel_safetensor *tokens = ravel_safetensors_find(ids, "ids/0");
    CHECK(tokens && tokens->count <= TOKENS);
    int32_t cu[] = {0, (int32_t)tokens->count};
    float weights[TOKENS], logprob[TOKENS];
    for (int64_t t = 0; t < tokens->count; t++) weights[t] = 1 / (float)(tokens->count - 1);
    train_batch batch = {.samples = 1, .tokens = tokens->data, .cu_seqlens = cu, .weights = weights};
    train_result result = {.logprob = logprob};
    for (int on = 0; on < 2; on++) {
        const double *nll = ravel_safetensors_find(made, on ? "nll" : "base")->data;
        train_model_set_adapter(r.model, on);
        train_model_clear_grads(r.model);
        CHECK_OK(train_model_learn(r.model, &batch, NULL, &result, &err), &err);
        for (int64_t t = 1; t < tokens->count; t++) EXPECT(fabs((double)logprob[t] + nll[t - 1]) < 2e-5);
    }
    const train_params *p = train_model_params(r.model);
    float *grads = rig_grads(&r);
    int64_t count = 2; /* nll and base */
    for (int64_t i = 0; i < p->count; i++) {
        const train_tensor *t = &p->tensors[i];
        const ravel_safetensor *want = NULL;
        (void)snprintf(path, sizeof path, "grad/%s", t->file_name);
        const int64_t dims[2] = {t->file_rows, t->dims[1]};
        CHECK_OK(ravel_safetensors_get(made, path, 2, dims, &want, &err), &err);
        double off =
            relative_distance(grads + t->offset, (const float *)want->data + t->file_first * dims[1], t->count);
        if (!EXPECT(off < 1e-4)) printf("    %s, %s: %s off by %g\n", set, name, t->name, off);
        count += t->file_first == 0;
    }
    CHECK_EQ(count, ravel_safetensors_count(made));
    free(grads);
    ravel_safetensors_free(made);
    ravel_safetensors_free(ids);
    rig_close(&r);
}

static const char *const adapted[] = {"llama3", "qwen2", "gemma3", "phi3", "olmoe", "mixtral"};
enum { ADAPTED = sizeof adapted / sizeof *adapted };

/* Losses with the adapter on and off, and the gradient of every A and B to 1e-4. */
TEST(train_lora_is_that_of_peft) {
    for (int i = 0; i < ADAPTED; i++)
        for (int s = 0; s < 2; s++) compare_with_peft(sets[s], adapted[i]);
}

/* The merged folder has the losses that PEFT has with the adapter beside the model. */
TEST(train_lora_merges_what_peft_wrote) {
    for (int i = 0; i < ADAPTED; i++) {
        char base[256], folder[256], merged[64], path[300];
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_shape shape;
        train_model_options o;
        rig r;
        ravel_safetensors *made = NULL, *ids = NULL;
        job_folder(merged);
        (void)snprintf(base, sizeof base, "tests/golden/archs/%s", adapted[i]);
        (void)snprintf(folder, sizeof folder, "tests/golden/adapters/%s", adapted[i]);
        CHECK_OK(train_adapter_merge(base, folder, merged, -1, 0, 2, &err), &err);
        CHECK_OK(train_config_read(merged, &shape, &err), &err);
        train_model_options_default(&o);
        o.budget = TOKENS;
        CHECK(rig_open(&r, "cpu", 1, &shape, &o));
        const train_array to = train_model_array(r.model);
        CHECK_OK(train_tensors_load(train_model_params(r.model), &to, merged, &err), &err);
        (void)snprintf(path, sizeof path, "%s/golden.safetensors", folder);
        CHECK_OK(ravel_safetensors_open(path, NULL, &made, &err), &err);
        (void)snprintf(path, sizeof path, "%s/golden.safetensors", base);
        CHECK_OK(ravel_safetensors_open(path, NULL, &ids, &err), &err);
        const ravel_safetensor *tokens = ravel_safetensors_find(ids, "ids/0");
        const double *nll = ravel_safetensors_find(made, "nll")->data;
        const int32_t cu[] = {0, (int32_t)tokens->count};
        float logprob[TOKENS];
        train_batch batch = {.samples = 1, .tokens = tokens->data, .cu_seqlens = cu};
        train_result result = {.logprob = logprob};
        CHECK_OK(train_model_score(r.model, &batch, &result, &err), &err);
        for (int64_t t = 1; t < tokens->count; t++) EXPECT(fabs((double)logprob[t] + nll[t - 1]) < 2e-5);
        ravel_safetensors_free(made);
        ravel_safetensors_free(ids);
        rig_close(&r);
        job_wipe(merged);
    }
}

/* Targets of a fused tensor go together, and experts that ranks share out are not all. */
TEST(train_lora_targets_fit_the_family) {
    static const struct {
        const char *model, *targets, *says;
        int32_t ep;
    } rows[] = {{"phi3", "q_proj,v_proj", "gate_up_proj", 1},
                {"phi3", "qkv_proj,o", NULL, 1},
                {"phi3", "up", "qkv_proj", 1},
                {"mixtral", "w1,w2,w3", NULL, 1},
                {"mixtral", "w1,w2,w3", "--ep", 2},
                {"mixtral", "w1,o", NULL, 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char base[256];
        ravel_shape shape;
        train_params *params = NULL;
        train_lora lora = {.rank = 2, .alpha = 4};
        ravel_error err = RAVEL_ERROR_INIT;
        const train_slice part = {.ep = rows[i].ep};
        (void)snprintf(base, sizeof base, "tests/golden/archs/%s", rows[i].model);
        CHECK_OK(train_config_read(base, &shape, &err), &err);
        CHECK_OK(train_lora_targets(rows[i].targets, &lora.targets, &err), &err);
        CHECK_EQ(train_trained_params(&shape, &part, &lora, NULL, &params, &err),
                 rows[i].says ? RAVEL_E_ARGUMENT : RAVEL_OK);
        if (rows[i].says) CHECK_HAS(err.message, rows[i].says);
        train_params_free(params);
    }
}

/* Configurations that PEFT wrote: plain LoRA is read, and what would compute something else is refused by the name of its key. */
TEST(train_lora_reads_what_it_can_apply) {
    char *line = NULL;
    size_t room = 0;
    int lines = 0;
    FILE *f = fopen("tests/golden/adapters/configs.txt", "r");
    CHECK(f != NULL);
    for (; getline(&line, &room, f) > 0; lines++) {
        train_lora lora = {0};
        ravel_error err = RAVEL_ERROR_INIT;
        char *config = strchr(line, ' ');
        *config++ = '\0';
        ravel_status status = train_adapter_parse(config, strlen(config), &lora, &err);
        CHECK_EQ(status, strcmp(line, "ok") == 0 ? RAVEL_OK : RAVEL_E_UNSUPPORTED);
        if (status) CHECK_HAS(err.message, line);
        if (strcmp(line, "init_lora_weights") == 0) CHECK_HAS(err.message, "path_initial_model_for_weight_conversion");
        CHECK(status || (lora.rank == 8 && lora.targets != 0));
    }
    CHECK_EQ(lines, 35);
    free(line);
    (void)fclose(f);
}
