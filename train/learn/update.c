/* The end of an update: gradients summed over ranks, their norm, the optimiser's step. */
#include "train/learn/learner_internal.h"

#include "train/kernels/host.h"

void train_learner_begin(train_learner *l) {
    for (int32_t i = 0; i < l->count; i++) train_model_clear_grads(l->shares[i].model);
}

/* ---- gradients ------------------------------------------------------------------------------------------ */

/* Over tensor-parallel ranks, and for a tied embedding over the two stages that have it. */
static ravel_status sum_copies(train_learner *l, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < l->count && !status; i++) status = train_model_sum_grads(l->shares[i].model, err);
    for (int32_t i = 0; i < l->count && l->ends && !status; i++) {
        train_model *model = l->shares[i].model;
        const train_tensor *t = train_params_find(train_model_params(model), "model.embed_tokens.weight");
        int32_t type = l->kernels->types.grad;
        if (!t) continue;
        void *grads = train__at(train_model_grads(model), type, t->offset);
        status = ravel_comm_allreduce(l->ends, grads, grads, t->count, type, RAVEL_SUM, err);
    }
    return status;
}

/* The CPU sets keep gradients and weights in host memory, where a communicator can take them as they are. */
static ravel_status sum_gradients(train_learner *l, const train__shares *s, ravel_error *err) {
    int32_t type = l->kernels->types.grad;
    void *grads = train_model_grads(s->model);
    if (l->ranks == 1) return RAVEL_OK;
    if (!s->share) return ravel_comm_allreduce(l->replicas, grads, grads, s->counts[0], type, RAVEL_SUM, err);
    ravel_status status = ravel_comm_reduce_scatterv(l->replicas, grads, s->share, s->counts, type, RAVEL_SUM, err);
    if (!status)
        l->kernels->copy(l->device, train__at(grads, type, s->first), s->share,
                         (size_t)(s->counts[l->rank] * ravel_dtype_bytes(type)));
    return status;
}

/* ---- the norm ------------------------------------------------------------------------------------------- */

/* Every rank gets the sums of squares of all shares, and adds them in the same order. */
static ravel_status gather_squares(train_learner *l, const train__shares *s, ravel_error *err) {
    int64_t count;
    double *sums = train_optimizer_squares(s->optimizer, &count);
    if (!s->share) return RAVEL_OK;
    const double *mine = sums + train_optimizer_pieces(s->optimizer, s->first);
    return ravel_comm_allgatherv(l->replicas, mine, sums, s->pieces, NULL, RAVEL_F64, err);
}

/* The clip scale of every part. Where several ranks hold one model, each part's sum of squares is gathered over those
 * ranks. */
static ravel_status clip(train_learner *l, ravel_error *err) {
    double most = l->options.learn->clip_grad;
    if (!l->sharers) {
        train_optimizer_clip(l->shares[0].optimizer, most);
        return RAVEL_OK;
    }
    int32_t rank = ravel_comm_rank(l->sharers), ranks = ravel_comm_size(l->sharers);
    double *mine = l->squares + rank * l->count;
    for (int32_t i = 0; i < l->count; i++) {
        int64_t count;
        const double *sums = train_optimizer_sums(l->shares[i].optimizer, &count);
        mine[i] = 0;
        for (int64_t k = 0; k < count; k++) mine[i] += sums[k];
    }
    ravel_status status = ravel_comm_allgather(l->sharers, mine, l->squares, l->count, RAVEL_F64, err);
    for (int32_t i = 0; i < l->count && !status; i++)
        train_optimizer_clip_over(l->shares[i].optimizer, l->squares, (int64_t)ranks * l->count, most);
    return status;
}

/* ---- the step ------------------------------------------------------------------------------------------- */

/* Figures of the losses are where the last part is, once for all tensor-parallel ranks; the norm is everywhere. */
static ravel_status read_figures(train_learner *l, ravel_error *err) {
    ravel_status status = train_model_read(l->shares[l->count - 1].model, &l->update, err);
    if (!train_parts_is_last(l->parts) || ravel_mesh_coords(l->mesh).tp > 0) l->update.sums = (train_loss_sums){0};
    return status;
}

static ravel_status step(train_learner *l, double lr, ravel_error *err) {
    int32_t type = l->kernels->types.weight;
    l->kernels->phase(l->device, TRAIN_PHASE_OPTIMIZER);
    ravel_status status = clip(l, err);
    if (status) return status;
    for (int32_t i = 0; i < l->count; i++) train_optimizer_step(l->shares[i].optimizer, lr);
    l->kernels->phase(l->device, TRAIN_PHASE_OTHER);
    status = read_figures(l, err);
    if (status || !(l->update.clip.finite > 0)) return status; /* the same on every rank: they have the same sums */
    for (int32_t i = 0; i < l->count && !status; i++) {
        const train__shares *s = &l->shares[i];
        void *weights = train_model_weights(s->model);
        if (s->share)
            status = ravel_comm_allgatherv(l->replicas, train__at(weights, type, s->first), weights, s->counts, NULL,
                                           type, err);
    }
    return status;
}

ravel_status train_learner_finish(train_learner *l, double lr, ravel_metrics *metrics, double *norm, int32_t *skipped,
                                  ravel_error *err) {
    if (metrics) (void)ravel_metrics_phase_begin(metrics, RAVEL_PHASE_ALL_REDUCE, NULL);
    ravel_status status = sum_copies(l, err);
    for (int32_t i = 0; i < l->count && !status; i++) {
        status = sum_gradients(l, &l->shares[i], err);
        if (!status) status = gather_squares(l, &l->shares[i], err);
    }
    if (metrics) (void)ravel_metrics_phase_end(metrics, RAVEL_PHASE_ALL_REDUCE, NULL);
    if (status) return status;
    if (metrics) (void)ravel_metrics_phase_begin(metrics, RAVEL_PHASE_OPTIMIZER, NULL);
    status = step(l, lr, err);
    if (metrics) (void)ravel_metrics_phase_end(metrics, RAVEL_PHASE_OPTIMIZER, NULL);
    *norm = l->update.clip.norm;
    *skipped = !(l->update.clip.finite > 0);
    for (int32_t i = 0; i < l->count && !status && *skipped; i++) train_optimizer_skip(l->shares[i].optimizer);
    return status;
}

const train_loss_sums *train_learner_sums(const train_learner *l) {
    return &l->update.sums;
}
