/* An adapter added to the weights of its model, row block by row block: no tensor is ever whole in memory. */
#include "train/model/hf/lora.h"

#include "base/assert.h"
#include "base/memory.h"
#include "train/kernels/arena.h"

#include <stdio.h>
#include <string.h>

typedef struct merger {
    const train_kernels *kernels;
    train_device *device;
    train_params *own, *adapter;
    float *weights; /* [adapter->elements] B times the scale */
    ravel_safetensors *file;
} merger;

static const train_tensor *find_half(const merger *m, const char *weight, char half) {
    char name[160];
    size_t stem = strlen(weight) - (strlen(weight) > 6 ? strlen("weight") : 0);
    (void)snprintf(name, sizeof name, "base_model.model.%.*slora_%c.weight", (int)stem, weight, half);
    return train_params_find(m->adapter, name);
}

/* The tensors of the adapter beside a matrix of the model; 0: there are none. */
static int find_halves(const merger *m, const train_tensor *t, const train_tensor **a, const train_tensor **b) {
    *a = find_half(m, t->file_name, 'A'); /* that q, k and v of a fused tensor have in common */
    *b = find_half(m, t->name, 'B');
    return *a && *b;
}

static ravel_status read_rows(void *user, const train_tensor *t, int64_t first, int64_t rows, void *to,
                              ravel_error *err) {
    const merger *m = user;
    train_tensor_file from = {0};
    const train_tensor *a, *b;
    ravel_status status = train_tensor_find(t, m->file, &from, err);
    if (!status)
        status =
            ravel_safetensor_read(from.tensor, from.first + first * t->dims[1], rows * t->dims[1], RAVEL_F32, to, err);
    if (status || !find_halves(m, t, &a, &b)) return status;
    RAVEL_ASSERT(a->dims[0] == b->dims[1] && a->dims[1] == t->dims[1] && first + rows <= b->dims[0]);
    train_matmul product = {.m = rows, .n = t->dims[1], .k = a->dims[0], .c = to, .add = 1};
    product.a = m->weights + b->offset + first * b->dims[1];
    product.b = m->weights + a->offset;
    product.a_type = product.b_type = product.c_type = RAVEL_F32;
    m->kernels->matmul(m->device, &product);
    return m->kernels->sync(m->device, err);
}

static void scale_halves(merger *m) {
    float scale = (float)train_lora_scale(&m->adapter->lora);
    for (int64_t i = 0; i < m->adapter->count; i++) {
        const train_tensor *t = &m->adapter->tensors[i];
        for (int64_t k = 0; k < t->count && strstr(t->name, ".lora_B."); k++) m->weights[t->offset + k] *= scale;
    }
}

static ravel_status open_merger(merger *m, const ravel_shape *shape, const train_lora *lora, const char *model,
                                const char *adapter, int32_t threads, ravel_error *err) {
    ravel_status status = train_kernels_find("cpu", &m->kernels, err);
    if (!status) status = m->kernels->open(&(train_device_options){.threads = threads}, &m->device, err);
    if (!status) status = train_params_create(shape, NULL, NULL, &m->own, err);
    if (!status) status = train_trained_params(shape, NULL, lora, NULL, &m->adapter, err);
    if (!status) status = train_weights_open(model, &m->file, err);
    if (status) return status;
    int64_t widest = TRAIN_PIECE;
    for (int64_t i = 0; i < m->own->count; i++) widest = train__max(widest, m->own->tensors[i].dims[1]);
    const train_limits limits = {.tokens = widest, .width = lora->rank, .inference = 1};
    status = m->kernels->reserve(m->device, &limits, err);
    size_t bytes = (size_t)m->adapter->elements * sizeof(float);
    void *block = NULL;
    if (!status) status = m->kernels->alloc(m->device, bytes, &block, err);
    m->weights = block;
    if (status) return status;
    m->kernels->zero(m->device, block, bytes);
    const train_array to = {m->kernels, m->device, block, RAVEL_F32, NULL};
    status = train_adapter_load(m->adapter, &to, adapter, err);
    if (!status) scale_halves(m);
    return status;
}

static void close_merger(merger *m) {
    if (m->weights) m->kernels->release(m->device, m->weights, (size_t)m->adapter->elements * sizeof(float));
    ravel_safetensors_free(m->file);
    train_params_free(m->own);
    train_params_free(m->adapter);
    if (m->device) m->kernels->close(m->device);
}

ravel_status train_adapter_merge(const char *model, const char *adapter, const char *out, int32_t dtype,
                                 int64_t shard_bytes, int32_t threads, ravel_error *err) {
    merger m = {0};
    ravel_shape shape;
    train_lora lora;
    ravel_status status = train_config_read(model, &shape, err);
    if (!status) status = train_adapter_read(adapter, &lora, err);
    if (!status) status = open_merger(&m, &shape, &lora, model, adapter, threads, err);
    if (!status) {
        const train_rows_source rows = {read_rows, &m, RAVEL_F32};
        int32_t stored = ravel_safetensors_at(m.file, 0)->dtype;
        train_folder_options options = {.dtype = dtype >= 0 ? dtype : stored, .eos = -1, .shard_bytes = shard_bytes};
        options.source = model;
        status = train_folder_save(out, &shape, m.own, &rows, &options, err);
    }
    close_merger(&m);
    return status;
}
