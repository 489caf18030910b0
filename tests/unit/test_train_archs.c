/* Every architecture against transformers (tests/golden/archs/make.py): losses, gradients, generation, folders written. */
#include "tests/unit/train_support.h"

#include "train/model/arch.h"
#include "train/model/generator.h"

#include <math.h>
#include <stdlib.h>

enum { COUNT = 4, MOST = 80 };
static const char *const models[] = {"llama2", "llama3", "llama-linear", "smollm", "mistral", "qwen2", "qwen3"};
enum { MODELS = sizeof models / sizeof *models };

/* The four samples of a golden folder side by side, each token weighing 1 / tokens. */
typedef struct vectors {
    ravel_safetensors *file;
    int32_t tokens[MOST], cu[COUNT + 1];
    float weights[MOST];
    double nll[MOST], loss; /* at the tokens themselves */
} vectors;

static bool vectors_open(vectors *v, const char *folder) {
    ravel_error err = RAVEL_ERROR_INIT;
    char name[512];
    int32_t scored = 0;
    *v = (vectors){0};
    (void)snprintf(name, sizeof name, "%s/golden.safetensors", folder);
    if (ravel_safetensors_open(name, NULL, &v->file, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    for (int i = 0; i < COUNT; i++) {
        (void)snprintf(name, sizeof name, "ids/%d", i);
        const ravel_safetensor *ids = ravel_safetensors_find(v->file, name);
        v->cu[i + 1] = v->cu[i] + (int32_t)ids->count;
        memcpy(v->tokens + v->cu[i], ids->data, (size_t)ids->count * sizeof *v->tokens);
        (void)snprintf(name, sizeof name, "nll/%d", i);
        const ravel_safetensor *nll = ravel_safetensors_find(v->file, name);
        if (!nll) continue;
        memcpy(v->nll + v->cu[i] + 1, nll->data, (size_t)nll->count * sizeof *v->nll);
        scored += (int32_t)nll->count;
    }
    for (int i = 0; i < v->cu[COUNT]; i++) v->weights[i] = 1 / (float)scored, v->loss += v->nll[i] / scored;
    return true;
}

static void folder_of(char *folder, size_t bytes, const char *model) {
    (void)snprintf(folder, bytes, "tests/golden/archs/%s", model);
}

static bool open_model(rig *r, const char *set, const char *folder, int32_t recompute) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_shape shape;
    train_model_options o;
    train_model_options_default(&o);
    o.budget = MOST;
    o.recompute = recompute;
    if (train_config_read(folder, &shape, &err)) return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    if (!rig_open(r, set, 1, &shape, &o)) return false;
    train_array weights = train_model_array(r->model);
    if (train_tensors_load(train_model_params(r->model), &weights, folder, &err) == RAVEL_OK) return true;
    check_fail(__FILE__, __LINE__, "%s", err.message);
    return false;
}

static void compare_gradients(const rig *r, const vectors *v, const char *model) {
    const train_params *p = train_model_params(r->model);
    float *grads = rig_grads(r);
    for (int64_t i = 0; i < p->count; i++) {
        char name[256];
        const ravel_safetensor *want = NULL;
        (void)snprintf(name, sizeof name, "grad/%s", p->tensors[i].name);
        CHECK(ravel_safetensors_get(v->file, name, p->tensors[i].rank, p->tensors[i].dims, &want, NULL) == RAVEL_OK);
        double off = relative_distance(grads + p->tensors[i].offset, want->data, want->count);
        if (off > 1e-4) check_fail(__FILE__, __LINE__, "%s: %s is off by %g", model, name, off);
    }
    free(grads);
}

/* Loss to 1e-5, every token to 1e-5, every gradient tensor to 1e-4, for every set and every way to recompute. */
TEST(train_archs_are_those_of_transformers) {
    static const char *const sets[] = {"ref", "cpu", "cpu", "cpu"};
    for (int m = 0; m < MODELS; m++)
        for (int i = 0; i < 4; i++) {
            char folder[256];
            rig r;
            vectors v;
            ravel_error err = RAVEL_ERROR_INIT;
            float logprob[MOST];
            folder_of(folder, sizeof folder, models[m]);
            CHECK(vectors_open(&v, folder) && open_model(&r, sets[i], folder, i > 1 ? i - 1 : 0));
            train_batch b = {.samples = COUNT, .tokens = v.tokens, .cu_seqlens = v.cu, .weights = v.weights};
            train_result result = {.logprob = logprob};
            CHECK_OK(train_model_learn(r.model, &b, NULL, &result, &err), &err);
            if (!(fabs(result.loss - v.loss) < 1e-5 * v.loss))
                check_fail(__FILE__, __LINE__, "%s: loss is %.9g, transformers has %.9g", models[m], result.loss,
                           v.loss);
            for (int t = 0; t < v.cu[COUNT]; t++) CHECK(fabs((double)logprob[t] + v.nll[t]) < 2e-5);
            compare_gradients(&r, &v, models[m]);
            ravel_safetensors_free(v.file);
            rig_close(&r);
        }
}

/* ---- generation ----------------------------------------------------------------------------------------- */

typedef struct heard {
    int32_t tokens[256];
    float logprob[256];
    int64_t count;
} heard;

static ravel_status hear(void *user, const train_answer *a, ravel_error *err) {
    heard *h = user;
    (void)err;
    memcpy(h->tokens, a->tokens, (size_t)a->count * sizeof *a->tokens);
    memcpy(h->logprob, a->logprob, (size_t)a->count * sizeof *a->logprob);
    h->count = a->count;
    return RAVEL_OK;
}

/* Answers that run over several pages, with windows and scaled positions: the generator's log-probs are the model's. */
TEST(train_archs_generate_what_they_score) {
    static const char *const sets[] = {"ref", "cpu"};
    enum { LONG = 150 };
    for (int i = 0; i < 2 * MODELS; i++) {
        char folder[256];
        rig r;
        ravel_error err = RAVEL_ERROR_INIT;
        train_generator *g = NULL;
        train_generator_options go;
        train_sampling sampling;
        heard h = {.count = 0};
        folder_of(folder, sizeof folder, models[i / 2]);
        CHECK(open_model(&r, sets[i % 2], folder, 0));
        train_generator_options_default(&go);
        train_sampling_default(&sampling);
        go.slot_tokens = LONG;
        go.slots = 2;
        sampling.seed = (uint64_t)i;
        CHECK_OK(train_generator_create(r.kernels, r.device, &r.shape, &go, &g, &err), &err);
        train_generator_set_weights(g, train_model_weights(r.model), 1);
        static const int32_t prompt[] = {5, 9, 60, 3, 3, 17, 22, 31, 40};
        train_request request = {.prompt = prompt, .count = 9, .samples = 1, .sampling = &sampling};
        CHECK_OK(train_generator_run(g, &request, 1, hear, &h, &err), &err);
        CHECK_EQ(h.count, LONG - 9);
        train_model *scorer = NULL;
        train_model_options o;
        train_model_options_default(&o);
        o.budget = LONG;
        o.inference = 1;
        CHECK_OK(train_model_create(r.kernels, r.device, &r.shape, &o, &scorer, &err), &err);
        train_array to = train_model_array(scorer);
        CHECK_OK(train_tensors_load(train_model_params(scorer), &to, folder, &err), &err);
        int32_t tokens[LONG], cu[2] = {0, LONG};
        float logprob[LONG];
        memcpy(tokens, prompt, sizeof prompt);
        memcpy(tokens + 9, h.tokens, (LONG - 9) * sizeof *tokens);
        train_batch b = {.samples = 1, .tokens = tokens, .cu_seqlens = cu};
        train_result result = {.logprob = logprob};
        CHECK_OK(train_model_score(scorer, &b, &result, &err), &err);
        for (int t = 9; t < LONG; t++) CHECK(fabsf(logprob[t] - h.logprob[t - 9]) < 5e-5f);
        train_model_free(scorer);
        train_generator_free(g);
        rig_close(&r);
    }
}

/* ---- the table ------------------------------------------------------------------------------------------ */

TEST(train_archs_rows_are_found_by_their_shapes) {
    for (int m = 0; m < MODELS; m++) {
        char folder[256];
        ravel_shape shape;
        folder_of(folder, sizeof folder, models[m]);
        CHECK(train_config_read(folder, &shape, NULL) == RAVEL_OK);
        const train_arch *arch = train_arch_of(&shape);
        CHECK(strncmp(models[m], arch->model_type, 5) == 0 || strcmp(models[m], "smollm") == 0);
    }
    int count = 0;
    while (train_arch_row(count)) count++;
    CHECK_EQ(count, 4);
}
