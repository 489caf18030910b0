/* The end of an update: gradients summed over ranks, their norm, the optimiser's step. */
#include "train/learn/learner_internal.h"

#include "base/assert.h"
#include "train/kernels/host.h"

void train_learner_begin(train_learner *l) {
    for (int32_t i = 0; i < l->count; i++) train_model_clear_grads(l->part[i].model);
}

/* ---- gradients ------------------------------------------------------------------------------------------ */

/* Ranks that have a unit: replicas, or those with the same experts. */
static ravel_comm *comm_of(const train_learner *l, const train_unit *u) {
    return u->experts ? l->parts->experts : l->replicas;
}

/* Unit by unit, if ranks share out the experts. */
static ravel_status sum_units(train_learner *l, const train__part *p, ravel_error *err) {
    const train_params *params = train_model_params(p->model);
    train_array grads = train_model_grad_array(p->model);
    ravel_status status = RAVEL_OK;
    for (int64_t u = 0; u < params->unit_count && !status; u++) {
        const train_unit *unit = &params->units[u];
        if (ravel_comm_size(comm_of(l, unit)) > 1)
            status = train__port_sum(train_model_port(p->model), comm_of(l, unit), train_array_at(&grads, unit->first),
                                     unit->count, grads.dtype, err);
    }
    return status;
}

/* Over replicas: every unit's runs to the ranks that have them, back into the gradients. */
static ravel_status scatter_gradients(train_learner *l, const train__part *p, ravel_error *err) {
    const train_shares *s = p->shares;
    train_array grads = train_model_grad_array(p->model);
    ravel_status status = RAVEL_OK;
    for (int64_t u = 0; u < s->params->unit_count && !status; u++) {
        const train_unit *unit = &s->params->units[u];
        train_runs runs = train_shares_runs(s, u, l->run_counts);
        RAVEL_ASSERT(p->run && runs.counts[runs.rank] <= s->most_of_unit);
        if (runs.ranks == 1) continue;
        status = train__port_scatter(train_model_port(p->model), comm_of(l, unit), train_array_at(&grads, unit->first),
                                     p->run, (train__pieces){runs.counts, 0}, grads.dtype, err);
        if (!status)
            l->kernels->copy(l->device, train_array_at(&grads, train_shares_begin(s, u, s->rank)), p->run,
                             (size_t)(runs.counts[runs.rank] * ravel_dtype_bytes(grads.dtype)));
    }
    return status;
}

static ravel_status sum_gradients(train_learner *l, const train__part *p, ravel_error *err) {
    RAVEL_ASSERT(p->model && p->shares && (p->shares->ranks == 1 || p->shares->ranks == l->ranks));
    void *grads = train_model_grads(p->model);
    if (l->ranks == 1 && !l->parts->wires) return RAVEL_OK;
    if (train_model_shares(p->model)) return train_model_finish_grads(p->model, err);
    if (p->shares->ranks > 1) return scatter_gradients(l, p, err);
    if (train_model_params(p->model)->part.ep > 1) return sum_units(l, p, err);
    return train__port_sum(train_model_port(p->model), l->replicas, grads, p->shares->most, l->kernels->types.grad,
                           err);
}

/* A tied embedding: over the first and the last stage. Both have shared it out alike. */
static ravel_status sum_tied(train_learner *l, const train__part *p, ravel_error *err) {
    const train_tensor *t = train_params_find(train_model_params(p->model), "model.embed_tokens.weight");
    train_array grads = train_model_grad_array(p->model);
    int64_t begin = t ? t->offset : 0, end = t ? begin + t->count : 0;
    RAVEL_ASSERT(l->ends && end <= train_model_params(p->model)->elements);
    if (!t || !train_shares_cut(p->shares, p->shares->rank, &begin, &end)) return RAVEL_OK;
    return train__port_sum(train_model_port(p->model), l->ends, train_array_at(&grads, begin), end - begin, grads.dtype,
                           err);
}

/* After the replicas, on this rank's share: over tensor-parallel ranks, and for a tied embedding over the stages. */
static ravel_status sum_copies(train_learner *l, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < l->count && !status; i++) {
        status = train_model_sum_grads(l->part[i].model, l->part[i].shares, err);
        if (!status && l->ends) status = sum_tied(l, &l->part[i], err);
    }
    return status;
}

/* ---- the norm ------------------------------------------------------------------------------------------- */

/* Every rank gets the sums of squares of all shares: each is added to zeros, so its bits stay. */
static ravel_status gather_squares(train_learner *l, const train__part *p, ravel_error *err) {
    int64_t count;
    double *sums = train_optimizer_squares(p->optimizer, &count);
    RAVEL_ASSERT(sums && count >= 0);
    ravel_comm *comm = p->shares->ranks > 1 ? l->replicas : l->parts->ep;
    return comm ? train__port_sum(train_model_port(p->model), comm, sums, count, RAVEL_F64, err) : RAVEL_OK;
}

/* The clip scale of every part. If several ranks hold one model, each part's sum of squares is gathered over those
 * ranks. */
static ravel_status clip(train_learner *l, ravel_error *err) {
    double most = l->options.learn->clip_grad;
    RAVEL_ASSERT(most >= 0 && (l->sharers || l->count == 1));
    if (!l->sharers) {
        train_optimizer_clip(l->part[0].optimizer, NULL, 0, most);
        return RAVEL_OK;
    }
    int32_t rank = ravel_comm_rank(l->sharers), ranks = ravel_comm_size(l->sharers);
    int64_t all = (int64_t)ranks * l->count;
    RAVEL_ASSERT(rank < ranks && l->squares && l->square_block);
    double *mine = l->squares + rank * l->count;
    for (int32_t i = 0; i < l->count; i++) mine[i] = train_optimizer_total(l->part[i].optimizer);
    ravel_status status = ravel_comm_allgather(l->sharers, mine, l->squares, l->count, RAVEL_F64, err);
    if (status) return status;
    l->kernels->upload(l->device, l->square_block, l->squares, (size_t)all * sizeof *l->squares);
    for (int32_t i = 0; i < l->count; i++) train_optimizer_clip(l->part[i].optimizer, l->square_block, all, most);
    return RAVEL_OK;
}

/* ---- the step ------------------------------------------------------------------------------------------- */

/* Figures of the losses are where the last part is, once for all tensor-parallel ranks; the norm is everywhere. */
static ravel_status read_figures(train_learner *l, ravel_error *err) {
    int32_t part = train__parts_number(l->parts, l->count - 1);
    ravel_status status = train_model_read(l->part[l->count - 1].model, &l->update, err);
    if (part < train_layout_parts(&l->parts->layout) - 1 || l->parts->at.tp > 0) l->update.sums = (train_loss_sums){0};
    return status;
}

/* Every replica gets the weights that the others have stepped. */
static ravel_status gather_weights(train_learner *l, const train__part *p, ravel_error *err) {
    const train_shares *s = p->shares;
    train_array weights = train_model_array(p->model);
    ravel_status status = RAVEL_OK;
    if (weights.shares || s->ranks == 1) return RAVEL_OK;
    RAVEL_ASSERT(s->ranks == l->ranks && s->rank == l->rank);
    for (int64_t u = 0; u < s->params->unit_count && !status; u++) {
        train_runs runs = train_shares_runs(s, u, l->run_counts);
        if (runs.ranks > 1)
            status = train__port_gather(train_model_port(p->model), comm_of(l, &s->params->units[u]),
                                        train_array_at(&weights, train_shares_begin(s, u, s->rank)),
                                        train_array_at(&weights, s->params->units[u].first),
                                        (train__pieces){runs.counts, 0}, weights.dtype, err);
    }
    return status;
}

static ravel_status step(train_learner *l, double lr, ravel_error *err) {
    RAVEL_ASSERT(lr >= 0 && l->count >= 1);
    l->kernels->phase(l->device, TRAIN_PHASE_OPTIMIZER);
    ravel_status status = clip(l, err);
    if (status) return status;
    for (int32_t i = 0; i < l->count; i++) train_optimizer_step(l->part[i].optimizer, lr);
    l->kernels->phase(l->device, TRAIN_PHASE_OTHER);
    status = read_figures(l, err);
    if (status || !(l->update.clip.finite > 0)) return status; /* the same on every rank: they have the same sums */
    for (int32_t i = 0; i < l->count && !status; i++) status = gather_weights(l, &l->part[i], err);
    return status;
}

static ravel_status reduce(train_learner *l, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < l->count && !status; i++) status = sum_gradients(l, &l->part[i], err);
    if (!status) status = sum_copies(l, err);
    for (int32_t i = 0; i < l->count && !status; i++) status = gather_squares(l, &l->part[i], err);
    return status;
}

ravel_status train_learner_reduce(train_learner *l, ravel_metrics *metrics, ravel_error *err) {
    if (metrics) (void)ravel_metrics_phase_begin(metrics, RAVEL_PHASE_ALL_REDUCE, NULL);
    ravel_status status = reduce(l, err);
    if (metrics) (void)ravel_metrics_phase_end(metrics, RAVEL_PHASE_ALL_REDUCE, NULL);
    return status;
}

ravel_status train_learner_step(train_learner *l, double lr, ravel_metrics *metrics, double *norm, int32_t *skipped,
                                ravel_error *err) {
    if (metrics) (void)ravel_metrics_phase_begin(metrics, RAVEL_PHASE_OPTIMIZER, NULL);
    ravel_status status = step(l, lr, err);
    if (metrics) (void)ravel_metrics_phase_end(metrics, RAVEL_PHASE_OPTIMIZER, NULL);
    *norm = l->update.clip.norm;
    *skipped = !(l->update.clip.finite > 0);
    RAVEL_ASSERT(status || *skipped || *norm >= 0);
    for (int32_t i = 0; i < l->count && !status && *skipped; i++) --*train_optimizer_steps(l->part[i].optimizer);
    return status;
}

const train_loss_sums *train_learner_sums(const train_learner *l) {
    return &l->update.sums;
}
