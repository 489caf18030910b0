/* Every architecture against transformers (tests/golden/archs/make.py): losses, gradients, generation, folders written. */
#include "tests/unit/train_support.h"

#include "train/model/hf/arch.h"
#include "train/model/generate/generator.h"

#include <math.h>
#include <stdlib.h>

enum { COUNT = 4, MOST = 80 };
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

static bool open_model_with(rig *r, const char *set, const char *folder, const train_model_options *o) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_shape shape;
    if (train_config_read(folder, &shape, &err)) return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    if (!rig_open(r, set, 1, &shape, o)) return false;
    train_array weights = train_model_array(r->model);
    if (train_tensors_load(train_model_params(r->model), &weights, folder, &err) == RAVEL_OK) return true;
    check_fail(__FILE__, __LINE__, "%s", err.message);
    return false;
}

static bool open_model(rig *r, const char *set, const char *folder, int32_t recompute) {
    train_model_options o;
    train_model_options_default(&o);
    o.budget = MOST;
    o.recompute = recompute;
    return open_model_with(r, set, folder, &o);
}

/* The farthest tensor. */
static double compare_gradients(const rig *r, const vectors *v, const char *model) {
    const train_params *p = train_model_params(r->model);
    double most = 0;
    float *grads = rig_grads(r);
    for (int64_t i = 0; i < p->count; i++) {
        char name[256];
        const ravel_safetensor *want = NULL;
        const train_tensor *t = &p->tensors[i];
        const int64_t dims[2] = {t->file_rows, t->dims[1]}, *stacked = t->stacked_dims;
        (void)snprintf(name, sizeof name, "grad/%s", t->stacked ? t->stacked : t->file_name);
        int32_t rank = !t->stacked ? t->rank : stacked[2] ? 3 : 2;
        if (ravel_safetensors_get(v->file, name, rank, t->stacked ? stacked : dims, &want, NULL)) {
            check_fail(__FILE__, __LINE__, "%s: no %s", model, name);
            continue;
        }
        const float *part = (const float *)want->data + (t->stacked ? t->stacked_first : t->file_first * t->dims[1]);
        double off = relative_distance(grads + t->offset, part, t->count);
        most = fmax(most, off);
        if (off > 1e-4) check_fail(__FILE__, __LINE__, "%s: %s is off by %g", model, t->name, off);
    }
    free(grads);
    return most;
}

/* Loss to 1e-5, every token to 1e-5, every gradient tensor to 1e-4, for every set and every way to recompute. */
TEST(train_archs_are_those_of_transformers) {
    static const char *const sets[] = {"ref", "cpu", "cpu", "cpu"};
    for (int m = 0; m < GOLDEN_MODELS; m++)
        for (int i = 0; i < 4; i++) {
            char folder[256];
            rig r;
            vectors v;
            ravel_error err = RAVEL_ERROR_INIT;
            float logprob[MOST];
            golden_folder(folder, golden_model(m));
            CHECK(vectors_open(&v, folder) && open_model(&r, sets[i], folder, i > 1 ? i - 1 : 0));
            train_batch b = {.samples = COUNT, .tokens = v.tokens, .cu_seqlens = v.cu, .weights = v.weights};
            train_result result = {.logprob = logprob};
            CHECK_OK(train_model_learn(r.model, &b, NULL, &result, &err), &err);
            if (!(fabs(result.loss - v.loss) < 1e-5 * v.loss))
                check_fail(__FILE__, __LINE__, "%s: loss is %.9g, transformers has %.9g", golden_model(m), result.loss,
                           v.loss);
            for (int t = 0; t < v.cu[COUNT]; t++) CHECK(fabs((double)logprob[t] + v.nll[t]) < 2e-5);
            double off = compare_gradients(&r, &v, golden_model(m));
            if (i == 1 && getenv("RAVEL_VERBOSE"))
                printf("    | %s | %.0e | %.0e |\n", golden_model(m), fabs(result.loss - v.loss) / v.loss, off);
            ravel_safetensors_free(v.file);
            rig_close(&r);
        }
}

/* ---- experts -------------------------------------------------------------------------------------------- */

static void compare_load_gradients(const rig *r, const vectors *v, const char *prefix, const char *model) {
    const train_params *p = train_model_params(r->model);
    float *grads = rig_grads(r);
    int compared = 0;
    for (int64_t i = 0; i < p->count; i++) {
        char name[256];
        const train_tensor *t = &p->tensors[i];
        (void)snprintf(name, sizeof name, "%s/%s", prefix, t->stacked ? t->stacked : t->file_name);
        const ravel_safetensor *want = ravel_safetensors_find(v->file, name);
        if (!want || want->count != t->count) continue;
        double off = relative_distance(grads + t->offset, want->data, t->count);
        if (off > 1e-4) check_fail(__FILE__, __LINE__, "%s: %s of %s is off by %g", model, prefix, t->name, off);
        compared++;
    }
    CHECK(compared >= 2);
    free(grads);
}

/* The derivative by a probability: all layers together, or each by itself. */
static void balance_of(const rig *r, int by_layer, float *balance) {
    int64_t experts = r->shape.experts, layers = r->shape.layers, sparse = 0;
    const int64_t *load = train_model_load(r->model);
    double tokens[8] = {0}, all = 0;
    for (int64_t i = 0; i < layers * experts; i++)
        tokens[i / experts] += (double)load[i] / (double)r->shape.experts_active;
    for (int64_t l = 0; l < layers; l++) all += tokens[l], sparse += tokens[l] > 0;
    for (int64_t i = 0; i < layers * experts; i++) {
        double together = 0, n = tokens[i / experts];
        for (int64_t l = 0; l < layers; l++) together += (double)load[l * experts + i % experts];
        balance[i] = (float)(by_layer ? n > 0 ? (double)(experts * load[i]) / (n * n * (double)sparse) : 0
                                      : (double)experts * together / (all * all));
    }
}

/* The load loss and its gradients are those of transformers' load_balancing_loss_func: over all layers together, as its models
 * train it, and layer by layer. Samples lie in slots, whose padding is no load. */
TEST(train_archs_load_losses_are_those_of_transformers) {
    static const char *const sets[] = {"ref", "cpu", "cpu", "cpu"};
    for (int m = GOLDEN_MODELS - 3; m < GOLDEN_MODELS; m++)
        for (int i = 0; i < 8; i++) {
            char folder[256];
            rig r;
            vectors v;
            ravel_error err = RAVEL_ERROR_INIT;
            float balance[64], weights[MOST] = {0};
            int32_t tokens[MOST] = {0}, starts[COUNT + 1] = {0}, by_layer = i % 2;
            double loss = 0, want = 0, losses[8];
            train_model_options o;
            train_model_options_default(&o);
            o.budget = MOST;
            o.load_loss = 1;
            o.recompute = i > 3 ? i / 2 - 1 : 0;
            golden_folder(folder, golden_model(m));
            CHECK(vectors_open(&v, folder) && open_model_with(&r, sets[i / 2], folder, &o));
            for (int s = 0; s < COUNT; s++) {
                memcpy(tokens + starts[s], v.tokens + v.cu[s], (size_t)(v.cu[s + 1] - v.cu[s]) * sizeof *tokens);
                starts[s + 1] = starts[s] + v.cu[s + 1] - v.cu[s] + s % 2;
            }
            train_batch b = {.samples = COUNT,
                             .tokens = tokens,
                             .cu_seqlens = v.cu,
                             .cu_seqlens_padded = starts,
                             .weights = weights};
            CHECK_OK(train_model_stage_count(r.model, 0, &b, &err), &err);
            balance_of(&r, by_layer, balance);
            train_model_set_balance(r.model, balance);
            CHECK_OK(train_model_learn(r.model, &b, NULL, NULL, &err), &err);
            CHECK_OK(train_model_balance_sum(r.model, &loss, &err), &err);
            const ravel_safetensor *t = ravel_safetensors_find(v.file, by_layer ? "load" : "load_all");
            CHECK(t && ravel_safetensor_read(t, 0, t->count, RAVEL_F64, losses, NULL) == RAVEL_OK);
            for (int64_t l = 0; l < t->count; l++) want += losses[l] / (double)t->count;
            if (!(fabs(loss - want) < 1e-5 * want))
                check_fail(__FILE__, __LINE__, "%s: load loss is %.9g, transformers has %.9g", golden_model(m), loss,
                           want);
            compare_load_gradients(&r, &v, by_layer ? "load_grad" : "load_all_grad", golden_model(m));
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
    for (int i = 0; i < 2 * GOLDEN_MODELS; i++) {
        char folder[256];
        rig r;
        ravel_error err = RAVEL_ERROR_INIT;
        train_generator *g = NULL;
        train_generator_options go;
        train_sampling sampling;
        heard h = {.count = 0};
        golden_folder(folder, golden_model(i / 2));
        CHECK(open_model(&r, sets[i % 2], folder, 0));
        train_generator_options_default(&go);
        train_sampling_default(&sampling);
        go.slot_tokens = LONG;
        go.slots = 2;
        sampling.seed = (uint64_t)i;
        CHECK_OK(train_generator_create(r.kernels, r.device, &r.shape, &go, &g, &err), &err);
        train_generator_set_weights(g, train_model_weights(r.model), 1);
        static const int32_t prompt[] = {5, 9, 40, 3, 3, 17, 22, 31, 40};
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
    for (int m = 0; m < GOLDEN_MODELS; m++) {
        char folder[256];
        ravel_shape shape;
        golden_folder(folder, golden_model(m));
        CHECK(train_config_read(folder, &shape, NULL) == RAVEL_OK);
        const ravel__family *family = ravel__shape_family(&shape);
        size_t same = strlen(family->model_type) < 5 ? strlen(family->model_type) : 5;
        CHECK(strncmp(golden_model(m), family->model_type, same) == 0 || strcmp(golden_model(m), "smollm") == 0);
        if (m > 6) continue;
        shape.family = 0; /* as of a new model: by its traits */
        CHECK(ravel__shape_family(&shape) == family);
    }
}

/* The likeliest tokens after a prompt are those of transformers. */
TEST(train_archs_answer_like_transformers) {
    static const char *const sets[] = {"ref", "cpu"};
    for (int i = 0; i < 2 * GOLDEN_MODELS; i++) {
        char folder[256];
        rig r;
        vectors v;
        heard h = {.count = 0};
        ravel_error err = RAVEL_ERROR_INIT;
        train_generator *g = NULL;
        train_generator_options go;
        train_sampling sampling;
        golden_folder(folder, golden_model(i / 2));
        CHECK(vectors_open(&v, folder));
        const ravel_safetensor *greedy = ravel_safetensors_find(v.file, "greedy");
        if (greedy) {
            CHECK(open_model(&r, sets[i % 2], folder, 0));
            train_generator_options_default(&go);
            train_sampling_default(&sampling);
            sampling.temperature = 0;
            go.slot_tokens = greedy->count;
            go.slots = 1;
            CHECK_OK(train_generator_create(r.kernels, r.device, &r.shape, &go, &g, &err), &err);
            train_generator_set_weights(g, train_model_weights(r.model), 1);
            train_request request = {.prompt = greedy->data, .count = 9, .samples = 1, .sampling = &sampling};
            CHECK_OK(train_generator_run(g, &request, 1, hear, &h, &err), &err);
            CHECK_EQ(h.count, greedy->count - 9);
            if (memcmp(h.tokens, (const int32_t *)greedy->data + 9, (size_t)h.count * sizeof *h.tokens) != 0)
                check_fail(__FILE__, __LINE__, "%s: other tokens than transformers", golden_model(i / 2));
            train_generator_free(g);
            rig_close(&r);
        }
        ravel_safetensors_free(v.file);
    }
}
