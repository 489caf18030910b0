#include "train/learn/whole.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/learn/gather.h"

/* Whether every rank has all of the model; with `shard` an adapter may be whole, and the model beside it is not. */
static int is_lent(const train_learner *l) {
    return l->count == 1 && !l->sharers && l->options.learn->ep <= 1 && l->options.learn->shard != TRAIN_SHARD_PARAMS;
}

static ravel_status take_tensor(train__gather *g, const train_tensor *t, const train_array *to, ravel_error *err) {
    int64_t block = train_block_rows(t), each = ravel_dtype_bytes(to->dtype);
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(block > 0 && g->rows.dtype == to->dtype);
    for (int64_t row = 0; row < t->dims[0] && !status; row += block) {
        int64_t rows = train__min(block, t->dims[0] - row);
        status = g->rows.read(g->rows.user, t, row, rows, g->block, err);
        if (!status)
            to->kernels->upload(to->device, train_array_at(to, t->offset + row * t->dims[1]), g->block,
                                (size_t)(rows * t->dims[1] * each));
    }
    return status;
}

/* Rank 0. After an error of its own it still receives, so that no sender blocks. */
static ravel_status take_all(train__gather *g, train_whole *w, ravel_error *err) {
    int32_t type = g->l->kernels->types.weight;
    ravel_error lost = RAVEL_ERROR_INIT;
    w->taken_bytes = (size_t)(g->whole->elements * ravel_dtype_bytes(type));
    ravel_status status = w->kernels->alloc(w->device, w->taken_bytes, &w->taken, err), drained;
    const train_array to = {w->kernels, w->device, w->taken, type, NULL};
    if (!status) w->kernels->zero(w->device, w->taken, w->taken_bytes);
    for (int64_t i = 0; i < g->whole->count && !status; i++) status = take_tensor(g, &g->whole->tensors[i], &to, err);
    if (!status) g->tensor = g->whole->count;
    drained = train__gather_drain(g, &lost);
    if (!status && drained) status = ravel_error_set(err, drained, "%s", lost.message);
    return status;
}

/* The adapter's model is frozen: what its folder has is what every rank has parts of. */
static ravel_status load_base(train_learner *l, train_whole *w, ravel_error *err) {
    train_params *params = NULL;
    const train_model_choice *m = l->options.model;
    ravel_status status = train_params_create(&l->shape, NULL, l->options.allocator, &params, err);
    if (!status)
        status = train_base_open(&w->loaded, l->kernels, l->device, params, m->model, m->init_seed, m->init_std, err);
    train_params_free(params);
    w->base = w->loaded.frozen;
    return status;
}

static ravel_status take(train_learner *l, train_whole *w, ravel_error *err) {
    train__gather g;
    int first = ravel_comm_rank(l->world) == 0;
    ravel_status status = ravel_agree(l->world, train__gather_open(&g, l, err), err);
    if (!status) {
        train__gather_begin(&g, TRAIN__WEIGHTS);
        status = first ? take_all(&g, w, err) : train__gather_send(&g, err);
        w->weights = w->taken;
    }
    train__gather_close(&g);
    if (!status && first && l->options.model->lora.rank) status = load_base(l, w, err);
    return ravel_agree(l->world, status, err);
}

ravel_status train_whole_open(train_learner *l, train_whole *w, ravel_error *err) {
    *w = (train_whole){.kernels = l->kernels, .device = l->device};
    RAVEL_ASSERT(l->count >= 1);
    if (!is_lent(l)) return take(l, w, err);
    if (ravel_comm_rank(l->world) != 0) return RAVEL_OK;
    train_model *model = l->part[0].model;
    w->weights = train_model_weights(model);
    if (l->options.model->lora.rank) w->base = train_model_frozen(model);
    return RAVEL_OK;
}

void train_whole_close(train_whole *w) {
    train_base_close(&w->loaded);
    if (w->taken) w->kernels->release(w->device, w->taken, w->taken_bytes);
    *w = (train_whole){0};
}
