#include "train/learn/learner_internal.h"

#include "train/model/hf.h"
#include "train/kernels/host.h"
#include "train/rl/task.h"

#include <ravel/exchange.h>

#include <math.h>
#include <string.h>

/* ---- shape and size ------------------------------------------------------------------------------------- */

ravel_status train_shape(const train_model_choice *choice, ravel_shape *shape, ravel_error *err) {
    if (choice->model) return train_config_read(choice->model, shape, err);
    if (choice->shape) {
        size_t n = strlen(choice->shape);
        int file = strchr(choice->shape, '/') || (n > 5 && strcmp(choice->shape + n - 5, ".json") == 0);
        return file ? train_config_read(choice->shape, shape, err) : ravel_shape_named(choice->shape, shape, err);
    }
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
    return ravel_shape_check(shape, err);
}

void train_stop_tokens(const train_model_choice *choice, int32_t *stops, int32_t *count) {
    *count = choice->model ? train_stops_read(choice->model, stops, TRAIN_STOPS) : 0;
    if (*count) return;
    stops[0] = TRAIN_TOKEN_EOS;
    *count = 1;
}

int32_t train_threads(const train_config *config, const ravel_shape *shape, int32_t processors, int32_t ranks) {
    if (config->model.threads) return config->model.threads;
    double work = 6.0 * (double)ravel_shape_matmul_weights(shape) * (double)config->plan.budget;
    double most = fmin(work / 1e9, (double)processors / (double)(ranks > 0 ? ranks : 1));
    return most < 2 ? 1 : (int32_t)fmin(most, 1024);
}

ravel_status train_device_open(const train_model_choice *choice, const ravel_allocator *allocator,
                               const train_kernels **kernels, train_device **device, ravel_error *err) {
    train_device_options options = {.threads = choice->threads, .products = choice->products, .allocator = allocator};
    ravel_status status = train_kernels_find(choice->kernels, kernels, err);
    return status ? status : (*kernels)->open(&options, device, err);
}

static void model_options(const train_config *config, const ravel_allocator *allocator, train_model_options *options) {
    train_model_options_default(options);
    options->budget = config->plan.budget;
    options->recompute = config->model.recompute;
    options->allocator = allocator;
}

/* Shares are multiples of 16 elements, as tensors are. */
static int64_t share_begin(int64_t elements, int32_t ranks, int32_t rank) {
    return ravel_share(elements / 16, ranks, rank) * 16;
}

ravel_status train_learner_estimate(const train_config *config, const ravel_shape *shape, int32_t ranks,
                                    train_estimate *estimate, ravel_error *err) {
    const train_kernels *kernels;
    train_model_options options;
    model_options(config, NULL, &options);
    ravel_status status = train_kernels_find(config->model.kernels, &kernels, err);
    if (!status) status = train_model_memory(kernels, config->model.threads, shape, &options, &estimate->model, err);
    if (status) return status;
    int64_t elements = estimate->model.weights / (int64_t)sizeof(train_real), share = elements;
    if (config->learn.zero) share = share_begin(elements, ranks, 1);
    estimate->optimizer = train_optimizer_bytes(share);
    if (config->learn.zero && ranks > 1) estimate->optimizer += share * (int64_t)sizeof(train_real);
    estimate->total = estimate->model.total + estimate->optimizer;
    return RAVEL_OK;
}

/* ---- life ----------------------------------------------------------------------------------------------- */

static ravel_status make_shares(train_learner *l, ravel_error *err) {
    int64_t elements = train_model_params(l->model)->elements;
    l->counts = train__calloc(l->allocator, (size_t)l->ranks, sizeof *l->counts);
    if (!l->counts) return train__no_memory(err, (size_t)l->ranks * sizeof *l->counts, "shares of the optimiser");
    if (!l->config->learn.zero || l->ranks == 1) {
        for (int32_t r = 0; r < l->ranks; r++) l->counts[r] = elements;
        return RAVEL_OK;
    }
    if (elements / 16 < l->ranks)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a model of %lld elements cannot be sharded over %d ranks",
                               (long long)elements, l->ranks);
    for (int32_t r = 0; r < l->ranks; r++)
        l->counts[r] = share_begin(elements, l->ranks, r + 1) - share_begin(elements, l->ranks, r);
    l->first = share_begin(elements, l->ranks, l->rank);
    size_t bytes = (size_t)l->counts[l->rank] * sizeof *l->share;
    void *block = NULL;
    ravel_status status = l->kernels->alloc(l->device, bytes, &block, err);
    l->share = block;
    return status;
}

static ravel_status make_optimizer(train_learner *l, ravel_error *err) {
    const train_learn_options *learn = &l->config->learn;
    train_optimizer_options options;
    train_optimizer_options_default(&options);
    options.beta1 = learn->beta1;
    options.beta2 = learn->beta2;
    options.eps = learn->eps;
    options.decay = learn->weight_decay;
    options.first = l->first;
    options.count = l->counts[l->rank];
    return train_optimizer_create(l->model, &options, l->allocator, &l->optimizer, err);
}

static ravel_status set_weights(train_learner *l, ravel_error *err) {
    const train_model_choice *choice = &l->config->model;
    if (choice->model)
        return train_tensors_load(train_model_params(l->model), l->kernels, l->device, train_model_weights(l->model),
                                  choice->model, err);
    return train_model_init(l->model, choice->init_seed, choice->init_std, err);
}

ravel_status train_learner_create(const train_config *config, const ravel_shape *shape, ravel_comm *comm,
                                  const ravel_allocator *allocator, train_learner **learner, ravel_error *err) {
    train_learner *l = train__calloc(allocator, 1, sizeof *l);
    if (!l) return train__no_memory(err, sizeof *l, "a trainer");
    train_model_options options;
    int32_t stops[TRAIN_STOPS], stop_count;
    model_options(config, allocator, &options);
    train_stop_tokens(&config->model, stops, &stop_count);
    l->config = config;
    l->allocator = allocator;
    l->shape = *shape;
    l->comm = comm;
    l->ranks = ravel_comm_size(comm);
    l->rank = ravel_comm_rank(comm);
    l->eos = stops[0] < shape->vocab ? stops[0] : -1;
    ravel_status status = train_device_open(&config->model, allocator, &l->kernels, &l->device, err);
    if (!status) status = train_model_create(l->kernels, l->device, shape, &options, &l->model, err);
    if (!status) status = make_shares(l, err);
    if (!status) status = make_optimizer(l, err);
    if (!status) status = set_weights(l, err);
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
    if (l->share) l->kernels->release(l->device, l->share, (size_t)l->counts[l->rank] * sizeof *l->share);
    train_model_free(l->model);
    if (l->device) l->kernels->close(l->device);
    train__release(l->allocator, l->counts, (size_t)l->ranks * sizeof *l->counts);
    train__release(l->allocator, l->weights, (size_t)l->weights_room * sizeof *l->weights);
    train__release(l->allocator, l, sizeof *l);
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
    if (thd->local_tokens > l->weights_room) {
        float *grown = train__alloc(l->allocator, (size_t)thd->local_tokens * sizeof *grown);
        if (!grown) return train__no_memory(err, (size_t)thd->local_tokens * sizeof *grown, "loss weights");
        train__release(l->allocator, l->weights, (size_t)l->weights_room * sizeof *l->weights);
        l->weights = grown;
        l->weights_room = thd->local_tokens;
    }
    memset(l->weights, 0, (size_t)thd->local_tokens * sizeof *l->weights);
    for (int64_t i = 0; i < thd->samples_count; i++) { /* from the position that predicts to the token predicted */
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

void train_learner_count_tokens(train_learner *l, const train_batch *batch) {
    int64_t tokens = batch->cu_seqlens_padded[batch->samples];
    for (int64_t i = 0; i < tokens; i++) l->weights[i] = l->weights[i] != 0;
}

/* The CPU sets keep gradients and weights in host memory, where a communicator can take them as they are. */
static ravel_status sum_gradients(train_learner *l, ravel_error *err) {
    train_real *grads = train_model_grads(l->model);
    if (l->ranks == 1) return RAVEL_OK;
    if (!l->share) return ravel_comm_allreduce(l->comm, grads, grads, l->counts[0], RAVEL_F32, RAVEL_SUM, err);
    ravel_status status = ravel_comm_reduce_scatterv(l->comm, grads, l->share, l->counts, RAVEL_F32, RAVEL_SUM, err);
    if (!status) l->kernels->copy(l->device, grads + l->first, l->share, (size_t)l->counts[l->rank] * sizeof *grads);
    return status;
}

static ravel_status gradient_norm(train_learner *l, double *norm, ravel_error *err) {
    double squares = train_optimizer_sum_squares(l->optimizer);
    ravel_status status = RAVEL_OK;
    if (l->share) status = ravel_comm_allreduce(l->comm, &squares, &squares, 1, RAVEL_F64, RAVEL_SUM, err);
    *norm = sqrt(squares);
    return status;
}

static ravel_status step(train_learner *l, double lr, double norm, ravel_error *err) {
    train_real *weights = train_model_weights(l->model);
    train_optimizer_step(l->optimizer, lr, train_clip_scale(norm, l->config->learn.clip_grad));
    if (!l->share) return RAVEL_OK;
    return ravel_comm_allgatherv(l->comm, weights + l->first, weights, l->counts, NULL, RAVEL_F32, err);
}

ravel_status train_learner_finish(train_learner *l, double lr, ravel_metrics *metrics, double *norm, int32_t *skipped,
                                  ravel_error *err) {
    if (metrics) (void)ravel_metrics_phase_begin(metrics, RAVEL_PHASE_ALL_REDUCE, NULL);
    ravel_status status = sum_gradients(l, err);
    if (!status) status = gradient_norm(l, norm, err);
    if (metrics) (void)ravel_metrics_phase_end(metrics, RAVEL_PHASE_ALL_REDUCE, NULL);
    if (status) return status;
    *skipped = !isfinite(*norm); /* the same on every rank: they all have the same sum */
    if (*skipped) return RAVEL_OK;
    if (metrics) (void)ravel_metrics_phase_begin(metrics, RAVEL_PHASE_OPTIMIZER, NULL);
    status = step(l, lr, *norm, err);
    if (metrics) (void)ravel_metrics_phase_end(metrics, RAVEL_PHASE_OPTIMIZER, NULL);
    return status;
}

/* ---- metrics -------------------------------------------------------------------------------------------- */

static ravel_status reduce_over_comm(void *user, int64_t *values, int64_t count, ravel_metrics_op op,
                                     ravel_error *err) {
    return ravel_comm_allreduce(user, values, values, count, RAVEL_I64, op == RAVEL_METRICS_SUM ? RAVEL_SUM : RAVEL_MAX,
                                err);
}

static const ravel_metric extra_rows[] = {
#define X(ID, metric, units, sentence) \
    {.name = metric,                   \
     .doc = sentence,                  \
     .unit = units,                    \
     .kind = RAVEL_KIND_GAUGE,         \
     .rule = RAVEL_RULE_MEAN,          \
     .show = RAVEL_SHOW_RL},
    TRAIN_METRIC_LIST(X)
#undef X
};

ravel_status train_metrics_create(const train_config *config, const ravel_shape *shape, ravel_comm *comm, int rl,
                                  int32_t world, int64_t steps, const ravel_logger *logger, ravel_metrics **metrics,
                                  ravel_error *err) {
    ravel_metrics_reducer reducer = {ravel_comm_rank(comm), ravel_comm_size(comm), reduce_over_comm, comm};
    ravel_metrics_options options;
    ravel_metrics_options_default(&options);
    options.world = world;
    options.updates = steps;
    options.gpu = config->run.gpu;
    options.rl = rl;
    options.extra = rl ? extra_rows : NULL;
    options.extra_count = rl ? (int64_t)(sizeof extra_rows / sizeof *extra_rows) : 0;
    options.recompute = config->model.recompute ? RAVEL_RECOMPUTE_FULL : RAVEL_RECOMPUTE_NONE;
    options.shape = shape;
    options.reducer = &reducer;
    options.logger = logger;
    return ravel_metrics_create(&options, metrics, err);
}

void train_metrics_update_counts(ravel_metrics *metrics, const ravel_feed_update *update) {
    ravel_lengths_sum sum;
    ravel_metrics_batch batch;
    ravel_feed_batch(&update->mine, &sum, &batch);
    batch.head = batch.loss > 0 ? batch.loss : -1; /* only what is learnt goes through the head */
    ravel_metrics_add_batch(metrics, &batch);
    if (update->plan) {
        (void)ravel_metrics_add(metrics, RAVEL_METRIC_PLAN_IDLE_SHARE, update->plan->idle_update, 1);
        (void)ravel_metrics_add(metrics, RAVEL_METRIC_PLAN_IMBALANCE, update->plan->imbalance, 1);
    }
}
