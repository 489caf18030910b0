#include "tests/unit/train_support.h"

#include <math.h>
#include <stdlib.h>

static const char *const models[GOLDEN_MODELS + 1] = {
    "llama2",     "llama3",     "llama-linear", "smollm",        "mistral", "qwen2", "qwen3",
    "qwen3-tied", "qwen3-yarn", "gemma3",       "gemma3-images", "smollm3", "olmo2", "phi3",
    "phi3-long",  "granite",    "mixtral",      "qwen3_moe",     "olmoe"};

const char *golden_model(int i) {
    return models[i];
}

void golden_folder(char folder[256], const char *model) {
    (void)snprintf(folder, 256, "tests/golden/archs/%s", model);
}

bool rig_can(const char *set) {
    const train_kernels *kernels = NULL;
    return train_kernels_find(set, &kernels, NULL) == RAVEL_OK;
}

/* New memory is full of NaNs, so that whatever reads it before writing shows. */
static void *poison(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    (void)user;
    if (new_bytes == 0) return free(ptr), NULL;
    char *result = realloc(ptr, new_bytes);
    if (result && new_bytes > old_bytes) memset(result + old_bytes, 0xff, new_bytes - old_bytes);
    return result;
}
static const ravel_allocator poisoned = {poison, NULL};

bool rig_open(rig *r, const char *set, int32_t threads, const ravel_shape *shape, const train_model_options *options) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_model_options own = *options;
    *r = (rig){.shape = *shape};
    if (!own.allocator) own.allocator = &poisoned;
    train_device_options device = {.threads = threads, .allocator = own.allocator};
    if (train_kernels_find(set, &r->kernels, &err) || r->kernels->open(&device, &r->device, &err) ||
        train_model_create(r->kernels, r->device, shape, &own, &r->model, &err)) {
        check_fail(__FILE__, __LINE__, "%s: %s", set, err.message);
        rig_close(r);
        return false;
    }
    return true;
}

bool rig_golden(rig *r, const char *set, int32_t threads, const train_model_options *options) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_shape shape;
    if (train_config_read(GOLDEN, &shape, &err)) return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    if (!rig_open(r, set, threads, &shape, options)) return false;
    train_array weights = train_model_array(r->model);
    if (train_tensors_load(train_model_params(r->model), &weights, GOLDEN "/model.safetensors", &err) == RAVEL_OK)
        return true;
    check_fail(__FILE__, __LINE__, "%s", err.message);
    rig_close(r);
    return false;
}

void rig_close(rig *r) {
    train_model_free(r->model);
    if (r->kernels) r->kernels->close(r->device);
    *r = (rig){0};
}

ravel_shape small_shape(void) {
    return (ravel_shape){.hidden = 24,
                         .layers = 2,
                         .heads = 6,
                         .kv_heads = 2,
                         .head_dim = 10,
                         .ffn = 35,
                         .vocab = 53,
                         .tied = 1,
                         .qk_norm = 1,
                         .gated = 1,
                         .rope_theta = 10000,
                         .norm_eps = 1e-6};
}

float *rig_grads(const rig *r) {
    size_t bytes = (size_t)train_model_params(r->model)->elements * sizeof(float);
    float *grads = malloc(bytes);
    r->kernels->download(r->device, grads, train_model_grads(r->model), bytes);
    return grads;
}

double relative_distance(const float *a, const float *b, int64_t n) {
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        off += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(off) / (sqrt(size) + 1e-300);
}

double largest_difference(const float *a, const float *b, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs((double)a[i] - b[i]));
    return most;
}

/* ---- the golden batch ----------------------------------------------------------------------------------- */

const char *const golden_modes[MODES] = {"token-mean", "seq-mean-token-sum", "seq-mean-token-mean"};
const double golden_losses[MODES] = {5.956859643164495, 193.17244842833432, 5.141060818250137}; /* expected.json */

static const void *field(const golden *g, const char *name, int i) {
    char text[32];
    (void)snprintf(text, sizeof text, "%s/%d", name, i);
    const ravel_safetensor *t = ravel_safetensors_find(g->file, text);
    return t && t->aligned ? t->data : NULL;
}

bool golden_open(golden *g) {
    static const int32_t lengths[SAMPLES] = {17, 1, 64, 33, 128, 5, 90};
    ravel_error err = RAVEL_ERROR_INIT;
    *g = (golden){0};
    if (ravel_safetensors_open(GOLDEN "/batch.safetensors", NULL, &g->file, &err))
        return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    for (int i = 0; i < SAMPLES; i++) {
        g->lengths[i] = lengths[i];
        g->ids[i] = field(g, "ids", i);
        g->mask[i] = field(g, "mask", i);
        g->nll[i] = field(g, "token_nll", i);
    }
    return true;
}

static double masked_tokens(const golden *g, int sample) {
    double count = 0;
    for (int32_t t = 1; t < g->lengths[sample]; t++) count += g->mask[sample][t];
    return count;
}

float golden_weight(const golden *g, int mode, int sample, int32_t t) {
    double all = 0, here = masked_tokens(g, sample);
    for (int i = 0; i < SAMPLES; i++) all += masked_tokens(g, i);
    if (t == 0 || g->mask[sample][t] == 0) return 0;
    if (mode == 0) return (float)(g->mask[sample][t] / all);
    return (float)(g->mask[sample][t] / SAMPLES / (mode == 2 ? here : 1));
}

train_batch golden_batch(const golden *g, int mode, const int *order, int count, int32_t align) {
    int32_t *cu = calloc((size_t)count + 1, sizeof *cu), *padded = calloc((size_t)count + 1, sizeof *padded);
    for (int i = 0; i < count; i++) {
        cu[i + 1] = cu[i] + g->lengths[order[i]];
        padded[i + 1] = padded[i] + (g->lengths[order[i]] + align - 1) / align * align;
    }
    int32_t *tokens = malloc((size_t)padded[count] * sizeof *tokens);
    float *weights = malloc((size_t)padded[count] * sizeof *weights);
    for (int32_t t = 0; t < padded[count]; t++) tokens[t] = -7, weights[t] = 3; /* gaps hold anything */
    for (int i = 0; i < count; i++)
        for (int32_t t = 0; t < g->lengths[order[i]]; t++) {
            tokens[padded[i] + t] = g->ids[order[i]][t];
            weights[padded[i] + t] = golden_weight(g, mode, order[i], t);
        }
    return (train_batch){
        .samples = count, .tokens = tokens, .cu_seqlens = cu, .cu_seqlens_padded = padded, .weights = weights};
}

void batch_free(train_batch *b) {
    free((void *)b->tokens);
    free((void *)b->cu_seqlens);
    free((void *)b->cu_seqlens_padded);
    free((void *)b->weights);
}
