/* Frozen weights that stay in the map of their file: of every family, whole and on tensor-parallel ranks, the losses and answers
 * have the bits of a flat array, and gradients of an adapter differ by rounding; what cannot be mapped is loaded. */
#include "tests/unit/train_support.h"

#include "base/model/family.h"
#include "train/model/generate/generator.h"
#include "train/model/hf/base.h"
#include "train/model/hf/lora.h"

#include <ravel/comm.h>

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { TOKENS = 30 };

static bool read_shape(const char *model, char *folder, ravel_shape *shape) {
    ravel_error err = RAVEL_ERROR_INIT;
    golden_folder(folder, model);
    if (!train_config_read(folder, shape, &err)) return true;
    check_fail(__FILE__, __LINE__, "%s", err.message);
    return false;
}

/* A model with an adapter whose A and B are not 0. */
static bool open_adapted(rig *r, const ravel_shape *shape, int mapped, ravel_comm *tp) {
    train_model_options o;
    train_model_options_default(&o);
    o.budget = TOKENS;
    o.mapped = mapped;
    o.tp = tp;
    o.lora = (train_lora){.rank = 4, .alpha = 8, .targets = train_lora_all()};
    if (!rig_open(r, "cpu", 2, shape, &o)) return false;
    float *w = train_model_weights(r->model);
    for (int64_t i = 0; i < train_model_params(r->model)->elements; i++) w[i] = .05f * (float)sin((double)(i * 3 + 1));
    return true;
}

static bool learn(const rig *r, double *loss, float *logprob, int adapter) {
    int32_t tokens[TOKENS], cu[] = {0, 11, TOKENS};
    ravel_error err = RAVEL_ERROR_INIT;
    for (int i = 0; i < TOKENS; i++) tokens[i] = (i * 7 + 3) % 40;
    train_batch b = {.samples = 2, .tokens = tokens, .cu_seqlens = cu};
    train_result result = {.logprob = logprob};
    train_model_set_adapter(r->model, adapter);
    if (train_model_learn(r->model, &b, NULL, &result, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    *loss = result.loss;
    return true;
}

/* Of the ranks of `tp` (NULL: one rank), which have a part each. */
static ravel_status learn_both(ravel_comm *tp, void *user, ravel_error *err) {
    const char *model = user;
    char folder[256];
    ravel_shape shape;
    rig flat, mapped;
    train_base base;
    double loss[2];
    float logprob[2][TOKENS];
    if (!read_shape(model, folder, &shape) || !open_adapted(&flat, &shape, 0, tp) ||
        !open_adapted(&mapped, &shape, 1, tp))
        return ravel_error_set(err, RAVEL_E_STATE, "%s cannot be opened", model);
    train_array to = train_model_base_array(flat.model);
    const train_params *own = train_model_base_params(mapped.model);
    ravel_status status = train_tensors_load(train_model_base_params(flat.model), &to, folder, err);
    if (!status) status = train_base_open(&base, mapped.kernels, mapped.device, own, folder, 0, 0, err);
    if (status) return status;
    EXPECT(base.file && base.frozen.places && !base.frozen.flat);
    train_model_set_frozen(mapped.model, base.frozen);
    for (int adapter = 0; adapter < 2; adapter++) {
        if (!learn(&flat, &loss[0], logprob[0], adapter) || !learn(&mapped, &loss[1], logprob[1], adapter)) break;
        if (memcmp(logprob[0], logprob[1], sizeof logprob[0]) != 0)
            check_fail(__FILE__, __LINE__, "%s: losses differ (%.9g, %.9g)", model, loss[0], loss[1]);
    }
    float *a = rig_grads(&flat), *b = rig_grads(&mapped);
    EXPECT(relative_distance(b, a, train_model_params(flat.model)->elements) < 2e-5);
    free(a), free(b);
    train_base_close(&base); /* before its device */
    rig_close(&flat), rig_close(&mapped);
    return RAVEL_OK;
}

TEST(train_mapped_models_learn_as_loaded_ones) {
    for (int m = 0; golden_model(m); m++) {
        char folder[256];
        ravel_shape shape;
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK(read_shape(golden_model(m), folder, &shape));
        if (ravel__shape_family(&shape)->fused) continue; /* these take no adapter */
        CHECK_OK(learn_both(NULL, (void *)(uintptr_t)golden_model(m), &err), &err);
    }
}

/* Rows of q, k, v, gate and up, columns of o and down. */
TEST(train_mapped_parts_learn_as_loaded_ones) {
    static const char *const parted[] = {"llama2", "qwen2", "gemma3", "granite", "mixtral"};
    for (int m = 0; m < 5; m++) {
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(ravel_threads_run(2, NULL, learn_both, (void *)(uintptr_t)parted[m], &err), &err);
    }
}

/* ---- answers -------------------------------------------------------------------------------------------- */

typedef struct heard {
    int32_t tokens[TOKENS];
    float logprob[TOKENS];
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

static bool answer(const train_kernels *kernels, train_device *device, const ravel_shape *shape, train_frozen weights,
                   heard *h) {
    static const int32_t prompt[] = {5, 9, 31, 3};
    ravel_error err = RAVEL_ERROR_INIT;
    train_generator *g = NULL;
    train_generator_options o;
    train_sampling sampling;
    train_generator_options_default(&o);
    train_sampling_default(&sampling);
    o.slots = 2;
    o.slot_tokens = TOKENS;
    train_request request = {.prompt = prompt, .count = 4, .samples = 1, .sampling = &sampling};
    *h = (heard){.count = -1};
    ravel_status status = train_generator_create(kernels, device, shape, &o, &g, &err);
    if (!status) train_generator_set_base(g, weights);
    if (!status) status = train_generator_run(g, &request, 1, hear, h, &err);
    train_generator_free(g);
    if (status) check_fail(__FILE__, __LINE__, "%s", err.message);
    return !status && h->count == TOKENS - 4;
}

TEST(train_mapped_generators_answer_as_loaded_ones) {
    const train_kernels *k = NULL;
    train_device *device = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(train_kernels_find("cpu", &k, &err), &err);
    CHECK_OK(k->open(NULL, &device, &err), &err);
    for (int m = 0; golden_model(m); m++) {
        char folder[256];
        ravel_shape shape;
        heard flat, mapped;
        train_base base;
        train_params *params = NULL;
        CHECK(read_shape(golden_model(m), folder, &shape));

        CHECK_OK(train_params_create(&shape, NULL, NULL, &params, &err), &err);
        CHECK_OK(train_base_open(&base, k, device, params, folder, 0, 0, &err), &err);
        float *all = calloc((size_t)params->elements, sizeof *all);
        const train_array to = {k, device, all, RAVEL_F32, NULL};
        CHECK_OK(train_tensors_load(params, &to, folder, &err), &err);
        CHECK(answer(k, device, &shape, base.frozen, &mapped));
        CHECK(answer(k, device, &shape, (train_frozen){.flat = all}, &flat));
        if (memcmp(&flat, &mapped, sizeof flat) != 0)
            check_fail(__FILE__, __LINE__, "%s: other answers", golden_model(m));
        free(all);
        train_params_free(params);
        train_base_close(&base);
    }
    k->close(device);
}

/* ---- what is not mapped ---------------------------------------------------------------------------------- */

static bool maps(const char *set, const char *model, const train_slice *part) {
    const train_kernels *k = NULL;
    char folder[256];
    ravel_shape shape;
    train_params *params = NULL;
    bool yes = read_shape(model, folder, &shape) && !train_kernels_find(set, &k, NULL) &&
               !train_params_create(&shape, part, NULL, &params, NULL) && train_base_maps(k, params, folder);
    train_params_free(params);
    return yes;
}

TEST(train_mapped_only_where_files_hold_what_kernels_read) {
    const train_slice half = {.tp = 2, .tp_rank = 1}, later = {.first_layer = 1, .last_layer = 2};
    CHECK(maps("cpu", "llama2", NULL) && maps("ref", "llama2", NULL) && maps("cpu", "llama2", &later));
    CHECK(maps("cpu", "llama2", &half) && maps("cpu", "mixtral", NULL));
    CHECK(!maps("cpu-bf16", "llama2", NULL)); /* the file has f32 */
}

/* NaN in a mapped file is found when it is opened, as in one that is loaded. */
TEST(train_mapped_files_are_checked) {
    char folder[] = "/tmp/ravel-mapped-XXXXXX", from[256], path[300];
    ravel_shape shape;
    ravel_safetensors *file = NULL;
    const train_kernels *k = NULL;
    train_device *device = NULL;
    train_params *params = NULL;
    train_base base;
    ravel_error err = RAVEL_ERROR_INIT;
    const float bad = NAN;
    CHECK(mkdtemp(folder) && read_shape("llama2", from, &shape));
    CHECK_OK(train_kernels_find("cpu", &k, &err), &err);
    CHECK_OK(k->open(NULL, &device, &err), &err);
    CHECK_OK(train_params_create(&shape, NULL, NULL, &params, &err), &err);
    CHECK_OK(train_weights_open(from, &file, &err), &err);
    int64_t count = ravel_safetensors_count(file);
    ravel_safetensor *tensors = calloc((size_t)count, sizeof *tensors);
    for (int64_t i = 0; i < count; i++) tensors[i] = *ravel_safetensors_at(file, i);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    for (int64_t i = 0; i < count; i++) {
        if (!strstr(tensors[i].name, "0.mlp.down_proj")) continue;
        float *changed = malloc((size_t)tensors[i].bytes);
        memcpy(changed, tensors[i].data, (size_t)tensors[i].bytes);
        changed[tensors[i].count - 1] = bad;
        tensors[i].data = changed;
        CHECK_OK(ravel_safetensors_write(path, tensors, count, NULL, 0, NULL, &err), &err);
        free(changed);
    }
    CHECK_EQ(train_base_open(&base, k, device, params, folder, 0, 0, &err), RAVEL_E_DATA);
    CHECK(strstr(err.message, "0.mlp.down_proj") && strstr(err.message, "NaN"));
    train_base_close(&base);
    (void)unlink(path);
    (void)rmdir(folder);
    free(tensors);
    ravel_safetensors_free(file);
    train_params_free(params);
    k->close(device);
}
