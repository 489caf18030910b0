#include "train/learn/learner_internal.h"

#include "train/model/hf.h"
#include "train/kernels/host.h"

#include <ravel/exchange.h>

#include <math.h>
#include <string.h>

/* ---- size ----------------------------------------------------------------------------------------------- */

static void model_options(const train_learner_options *from, train_model_options *options) {
    train_model_options_default(options);
    options->budget = from->budget;
    options->recompute = from->model->recompute;
    options->allocator = from->allocator;
}

/* Shares begin at multiples of TRAIN_SPAN, so that sums of squares do not depend on them. */
static int64_t share_begin(int64_t elements, int32_t ranks, int32_t rank) {
    int64_t spans = (elements + TRAIN_SPAN - 1) / TRAIN_SPAN;
    return train__min(ravel_share(spans, ranks, rank) * TRAIN_SPAN, elements);
}

ravel_status train_learner_estimate(const train_learner_options *options, const ravel_shape *shape, int32_t ranks,
                                    train_estimate *estimate, ravel_error *err) {
    const train_kernels *kernels;
    train_model_options model;
    model_options(options, &model);
    ravel_status status = train_kernels_find(options->model->kernels, &kernels, err);
    if (!status) status = train_model_memory(kernels, options->model->threads, shape, &model, &estimate->model, err);
    if (status) return status;
    int64_t elements = estimate->model.weights / ravel_dtype_bytes(kernels->types.weight), share = elements;
    if (options->learn->zero) share = share_begin(elements, ranks, 1);
    estimate->optimizer = train_optimizer_bytes(kernels, share, elements);
    if (options->learn->zero && ranks > 1) estimate->optimizer += share * ravel_dtype_bytes(kernels->types.grad);
    estimate->total = estimate->model.total + estimate->optimizer;
    return RAVEL_OK;
}

/* ---- life ----------------------------------------------------------------------------------------------- */

static size_t share_bytes(const train_learner *l) {
    return (size_t)(l->counts[l->rank] * ravel_dtype_bytes(l->kernels->types.grad));
}

static ravel_status make_shares(train_learner *l, ravel_error *err) {
    int64_t elements = train_model_params(l->model)->elements;
    l->counts = train__calloc(l->options.allocator, (size_t)l->ranks, sizeof *l->counts);
    if (!l->counts) return train__no_memory(err, (size_t)l->ranks * sizeof *l->counts, "shares of the optimiser");
    if (!l->options.learn->zero || l->ranks == 1) {
        for (int32_t r = 0; r < l->ranks; r++) l->counts[r] = elements;
        return RAVEL_OK;
    }
    if (elements <= (l->ranks - 1) * (int64_t)TRAIN_SPAN)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a model of %lld elements cannot be sharded over %d ranks",
                               (long long)elements, l->ranks);
    for (int32_t r = 0; r < l->ranks; r++)
        l->counts[r] = share_begin(elements, l->ranks, r + 1) - share_begin(elements, l->ranks, r);
    l->first = share_begin(elements, l->ranks, l->rank);
    return l->kernels->alloc(l->device, share_bytes(l), &l->share, err);
}

static ravel_status make_optimizer(train_learner *l, ravel_error *err) {
    const train_learn_options *learn = l->options.learn;
    train_optimizer_options options;
    train_optimizer_options_default(&options);
    options.beta1 = learn->beta1;
    options.beta2 = learn->beta2;
    options.eps = learn->eps;
    options.decay = learn->weight_decay;
    options.first = l->first;
    options.count = l->counts[l->rank];
    return train_optimizer_create(l->model, &options, l->options.allocator, &l->optimizer, err);
}

ravel_status train__set_weights(train_model *model, const train_model_choice *choice, ravel_error *err) {
    train_array weights = train_model_array(model);
    if (choice->model) return train_tensors_load(train_model_params(model), &weights, choice->model, err);
    return train_model_init(model, choice->init_seed, choice->init_std, err);
}

static ravel_status make_weights(train_learner *l, ravel_error *err) {
    l->weights = train__calloc(l->options.allocator, (size_t)l->options.budget, sizeof *l->weights);
    return l->weights ? RAVEL_OK
                      : train__no_memory(err, (size_t)l->options.budget * sizeof *l->weights, "loss weights");
}

ravel_status train_learner_create(const train_learner_options *options, const ravel_shape *shape, ravel_comm *comm,
                                  train_learner **learner, ravel_error *err) {
    train_learner *l = train__calloc(options->allocator, 1, sizeof *l);
    if (!l) return train__no_memory(err, sizeof *l, "a trainer");
    train_model_options model;
    int32_t stops[TRAIN_STOPS], stop_count;
    model_options(options, &model);
    train_stop_tokens(options->model, stops, &stop_count);
    l->options = *options;
    l->shape = *shape;
    l->comm = comm;
    l->ranks = ravel_comm_size(comm);
    l->rank = ravel_comm_rank(comm);
    l->eos = stops[0] < shape->vocab ? stops[0] : -1;
    ravel_status status = train_device_open(options->model, options->allocator, &l->kernels, &l->device, err);
    if (!status && l->ranks > 1 && !l->kernels->host_memory)
        status =
            ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                            "kernels \"%s\" with %d trainer ranks: gradients are summed in host memory only; use one "
                            "trainer rank",
                            l->kernels->name, l->ranks);
    if (!status) status = train_model_create(l->kernels, l->device, shape, &model, &l->model, err);
    if (!status) status = make_weights(l, err);
    if (!status) status = make_shares(l, err);
    if (!status) status = make_optimizer(l, err);
    if (!status) status = train__set_weights(l->model, options->model, err);
    if (!status) train_optimizer_take_weights(l->optimizer);
    status = ravel_agree(comm, status, err);
    if (status) {
        train_learner_free(l);
        return status;
    }
    *learner = l;
    return RAVEL_OK;
}

void train_learner_free(train_learner *l) {
    if (!l) return;
    train_optimizer_free(l->optimizer);
    if (l->share) l->kernels->release(l->device, l->share, share_bytes(l));
    train_model_free(l->model);
    if (l->device) l->kernels->close(l->device);
    train__release(l->options.allocator, l->counts, (size_t)l->ranks * sizeof *l->counts);
    train__release(l->options.allocator, l->weights, (size_t)l->options.budget * sizeof *l->weights);
    train__release(l->options.allocator, l, sizeof *l);
}

train_model *train_learner_model(train_learner *l) {
    return l->model;
}

/* ---- an update ------------------------------------------------------------------------------------------ */

void train_learner_begin(train_learner *l) {
    train_model_clear_grads(l->model);
}

ravel_status train_learner_batch(train_learner *l, const ravel_micro_batch *micro, train_batch *batch,
                                 ravel_error *err) {
    const ravel_thd *thd = micro->thd;
    if (thd->local_tokens > l->options.budget)
        return ravel_error_set(err, RAVEL_E_OVERSIZE, "a micro-batch of %lld tokens is over the budget of %lld",
                               (long long)thd->local_tokens, (long long)l->options.budget);
    memset(l->weights, 0, (size_t)thd->local_tokens * sizeof *l->weights);
    for (int64_t i = 0; i < thd->samples_count; i++) { /* from where a token is predicted to the token */
        int64_t at = thd->cu_seqlens_padded[i], n = thd->cu_seqlens[i + 1] - thd->cu_seqlens[i];
        if (n > 1) memcpy(l->weights + at + 1, micro->weights + at, (size_t)(n - 1) * sizeof *l->weights);
    }
    *batch = (train_batch){.samples = (int32_t)thd->samples_count,
                           .tokens = micro->tokens,
                           .cu_seqlens = thd->cu_seqlens,
                           .cu_seqlens_padded = thd->cu_seqlens_padded,
                           .weights = l->weights};
    return RAVEL_OK;
}

void train_learner_set_unit_weights(train_learner *l, const train_batch *batch) {
    int64_t tokens = batch->cu_seqlens_padded[batch->samples];
    for (int64_t i = 0; i < tokens; i++) l->weights[i] = l->weights[i] != 0;
}

/* The CPU sets keep gradients and weights in host memory, where a communicator can take them as they are. */
static ravel_status sum_gradients(train_learner *l, ravel_error *err) {
    int32_t type = l->kernels->types.grad;
    void *grads = train_model_grads(l->model);
    if (l->ranks == 1) return RAVEL_OK;
    if (!l->share) return ravel_comm_allreduce(l->comm, grads, grads, l->counts[0], type, RAVEL_SUM, err);
    ravel_status status = ravel_comm_reduce_scatterv(l->comm, grads, l->share, l->counts, type, RAVEL_SUM, err);
    if (!status) l->kernels->copy(l->device, train__at(grads, type, l->first), l->share, share_bytes(l));
    return status;
}

/* Every rank gets the sums of squares of all shares, and adds them in the same order. */
static ravel_status gather_squares(train_learner *l, ravel_error *err) {
    int64_t count, first = l->first / TRAIN_SPAN;
    double *sums = train_optimizer_squares(l->optimizer, &count);
    if (!l->share) return RAVEL_OK;
    int64_t *counts = train__calloc(l->options.allocator, (size_t)l->ranks, sizeof *counts);
    if (!counts) return train__no_memory(err, (size_t)l->ranks * sizeof *counts, "counts of sums");
    for (int32_t r = 0; r < l->ranks; r++) counts[r] = (l->counts[r] + TRAIN_SPAN - 1) / TRAIN_SPAN;
    ravel_status status = ravel_comm_allgatherv(l->comm, sums + first, sums, counts, NULL, RAVEL_F64, err);
    train__release(l->options.allocator, counts, (size_t)l->ranks * sizeof *counts);
    return status;
}

static ravel_status step(train_learner *l, double lr, ravel_error *err) {
    int32_t type = l->kernels->types.weight;
    void *weights = train_model_weights(l->model);
    l->kernels->phase(l->device, TRAIN_PHASE_OPTIMIZER);
    train_optimizer_clip(l->optimizer, l->options.learn->clip_grad);
    train_optimizer_step(l->optimizer, lr);
    l->kernels->phase(l->device, TRAIN_PHASE_OTHER);
    ravel_status status = train_model_read(l->model, &l->update, err);
    if (status || !(l->update.clip.finite > 0)) return status; /* the same on every rank: they have the same sums */
    if (!l->share) return RAVEL_OK;
    return ravel_comm_allgatherv(l->comm, train__at(weights, type, l->first), weights, l->counts, NULL, type, err);
}

ravel_status train_learner_finish(train_learner *l, double lr, ravel_metrics *metrics, double *norm, int32_t *skipped,
                                  ravel_error *err) {
    if (metrics) (void)ravel_metrics_phase_begin(metrics, RAVEL_PHASE_ALL_REDUCE, NULL);
    ravel_status status = sum_gradients(l, err);
    if (!status) status = gather_squares(l, err);
    if (metrics) (void)ravel_metrics_phase_end(metrics, RAVEL_PHASE_ALL_REDUCE, NULL);
    if (status) return status;
    if (metrics) (void)ravel_metrics_phase_begin(metrics, RAVEL_PHASE_OPTIMIZER, NULL);
    status = step(l, lr, err);
    if (metrics) (void)ravel_metrics_phase_end(metrics, RAVEL_PHASE_OPTIMIZER, NULL);
    *norm = l->update.clip.norm;
    *skipped = !(l->update.clip.finite > 0);
    if (!status && *skipped) train_optimizer_skip(l->optimizer);
    return status;
}

const train_loss_sums *train_learner_sums(const train_learner *l) {
    return &l->update.sums;
}
