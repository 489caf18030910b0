#include "train/learn/choice.h"

#include "base/assert.h"
#include "base/model/shape.h"
#include "train/model/hf/lora.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int is_file(const char *name) {
    size_t n = strlen(name);
    return strchr(name, '/') || (n > 5 && strcmp(name + n - 5, ".json") == 0);
}

ravel_status train_shape(const train_model_choice *choice, ravel_shape *shape, ravel_error *err) {
    if (choice->model) return train_config_read(choice->model, shape, err);
    if (choice->shape && is_file(choice->shape)) return train_config_read(choice->shape, shape, err);
    if (choice->shape) return ravel_shape_named(choice->shape, shape, err);
    *shape = (ravel_shape){.hidden = choice->hidden,
                           .layers = choice->layers,
                           .heads = choice->heads,
                           .kv_heads = choice->kv_heads,
                           .head_dim = choice->head_dim,
                           .ffn = choice->ffn,
                           .vocab = choice->vocab,
                           .max_positions = 32768,
                           .tied = 1,
                           .qk_norm = 1,
                           .gated = 1,
                           .rope_theta = 1e6,
                           .norm_eps = 1e-6};
    if (choice->experts) {
        shape->experts = choice->experts;
        shape->experts_active = choice->experts_active;
        shape->expert_ffn = choice->expert_ffn ? choice->expert_ffn : choice->ffn / choice->experts_active;
        shape->router_norm = 1;
    }
    return ravel_shape_check(shape, err);
}

ravel_status train_choice_kernels(const train_model_choice *c, const train_kernels **kernels, ravel_error *err) {
    const char *set = c->set ? c->set : c->kernels;
    RAVEL_ASSERT(set);
    return train_kernels_find(strcmp(set, "auto") == 0 ? "cpu" : set, kernels, err);
}

static const char *choose_set(const train_model_choice *c, int frozen) {
    static const char *const of_bf16[] = {"cpu-avx512bf16", "cpu-bf16"};
    const train_kernels *kernels;
    if (!c->kernels || strcmp(c->kernels, "auto") != 0) return c->kernels;
    if (!frozen || !c->model || train_weights_dtype(c->model) != RAVEL_BF16) return "cpu";
    return of_bf16[train_kernels_find(of_bf16[0], &kernels, NULL) != RAVEL_OK];
}

static ravel_status settle_lora(train_model_choice *c, ravel_error *err) {
    c->lora = (train_lora){0};
    if (c->adapter) return train_adapter_read(c->adapter, &c->lora, err);
    if (!c->lora_rank) return RAVEL_OK;
    c->lora.rank = c->lora_rank;
    c->lora.alpha = c->lora_alpha > 0 ? c->lora_alpha : 2.0 * c->lora_rank;
    c->lora.rslora = c->lora_rslora;
    const char *targets = c->lora_targets ? c->lora_targets : "all-linear";
    ravel_status status = train_lora_targets(targets, &c->lora.targets, err);
    return status ? status : train_lora_check(&c->lora, err);
}

ravel_status train_choice_settle(train_model_choice *c, int frozen, ravel_error *err) {
    ravel_status status = settle_lora(c, err);
    c->set = choose_set(c, frozen || c->lora.rank > 0);
    return status;
}

void train_stop_tokens(const train_model_choice *choice, int32_t *stops, int32_t *count) {
    *count = choice->model ? train_stops_read(choice->model, stops, TRAIN_STOPS) : 0;
    RAVEL_ASSERT(*count >= 0 && *count <= TRAIN_STOPS);
    if (*count) return;
    stops[0] = TRAIN_TOKEN_EOS;
    *count = 1;
}

/* "3,17" as list[most] of numbers below `limit`; returns how many, 0 if it is anything else. */
static int32_t parse_list(const char *text, int64_t limit, int32_t *list, int32_t most) {
    int32_t count = 0;
    for (const char *at = text; count < most; at++) {
        char *end;
        long long number = strtoll(at, &end, 10);
        if (end == at || (*end && *end != ',') || number < 0 || number >= limit) break;
        list[count++] = (int32_t)number;
        if (!*end) return count;
        at = end;
    }
    return 0;
}

int32_t train_stops_parse(const char *text, int64_t vocab, int32_t *stops, ravel_error *err) {
    int32_t count = parse_list(text, vocab, stops, TRAIN_STOPS);
    if (!count)
        ravel_error_set(err, RAVEL_E_ARGUMENT, "stop-ids is \"%.60s\"; it must be up to %d tokens below %lld, as 3,17",
                        text, TRAIN_STOPS, (long long)vocab);
    return count;
}

ravel_status train_gpus_parse(const char *name, const char *text, int32_t *list, int32_t *count, ravel_error *err) {
    *count = 0;
    if (!text || strcmp(text, "auto") == 0) return RAVEL_OK;
    *count = parse_list(text, TRAIN_GPUS, list, TRAIN_GPUS);
    if (*count) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "%s is \"%.60s\"; it must be auto, a GPU from 0 to %d, or a list of them like 0,1,2,3", name,
                           text, TRAIN_GPUS - 1);
}

int32_t train_threads(const train_model_choice *choice, const ravel_shape *shape, int64_t budget, int32_t processors,
                      int32_t ranks) {
    if (choice->threads) return choice->threads;
    double work = 6.0 * (double)ravel__shape_matmul_weights(shape) * (double)budget;
    double most = fmin(work / 1e9, (double)processors / (double)(ranks > 0 ? ranks : 1));
    RAVEL_ASSERT(work >= 0 && most >= 0);
    return most < 2 ? 1 : (int32_t)fmin(most, 1024);
}

ravel_status train_device_open(const train_model_choice *choice, const ravel_allocator *allocator,
                               const train_kernels **kernels, train_device **device, ravel_error *err) {
    train_device_options options = {.threads = choice->threads, .allocator = allocator};
    options.gpu = choice->gpu;
    options.any_order = !choice->deterministic;
    RAVEL_ASSERT(choice->threads >= 0);
    ravel_status status = train_choice_kernels(choice, kernels, err);
    return status ? status : (*kernels)->open(&options, device, err);
}
