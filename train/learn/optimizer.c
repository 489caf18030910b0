#include "train/learn/optimizer.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include <math.h>

enum { SUMS = 1024 }; /* that are read at a time */

struct train_optimizer {
    train_model *model;
    const train_kernels *kernels;
    train_device *device;
    const ravel_allocator *allocator;
    train_optimizer_options options;
    train_shares *shares;
    int64_t count; /* elements of the share */
    void *m, *v;   /* [count] moments */
    void *master;  /* [count], or NULL if the weights are the master weights */
    double *sums;  /* [pieces] */
    int64_t pieces;
    int64_t steps;
};

void train_optimizer_options_default(train_optimizer_options *options) {
    *options = (train_optimizer_options){.size = sizeof *options, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0};
}

/* Spans of a tensor that this rank counts. */
static int64_t pieces_of(const train_tensor *t) {
    int64_t span = train_tensor_span(t);
    RAVEL_ASSERT(span > 0 && span % t->dims[1] == 0);
    return t->counted ? (t->count + span - 1) / span : 0;
}

static int64_t all_pieces(const train_params *p) {
    int64_t count = 0;
    for (int64_t i = 0; i < p->count; i++) count += pieces_of(&p->tensors[i]);
    return count;
}

static int holds_master(const train_kernels *k) {
    return k->types.master != k->types.weight;
}

static int32_t moment_type(const train_kernels *k, int32_t moments) {
    return moments == TRAIN_MOMENTS_BF16 ? RAVEL_BF16 : k->types.moment;
}

static size_t moment_bytes(const train_kernels *k, int32_t moments, int64_t count) {
    return (size_t)(train__max(count, 1) * ravel_dtype_bytes(moment_type(k, moments)));
}

static size_t master_bytes(const train_kernels *k, int64_t count) {
    return holds_master(k) ? (size_t)(train__max(count, 1) * ravel_dtype_bytes(k->types.master)) : 0;
}

int64_t train_optimizer_bytes(const train_kernels *k, const train_shares *shares, train_moments moments) {
    return (int64_t)(2 * moment_bytes(k, (int32_t)moments, shares->most) + master_bytes(k, shares->most)) +
           all_pieces(shares->params) * (int64_t)sizeof(double);
}

static ravel_status take_memory(train_optimizer *o, ravel_error *err) {
    const train_kernels *k = o->kernels;
    size_t moment = moment_bytes(k, o->options.moments, o->count);
    RAVEL_ASSERT(o->count >= 0 && o->count <= o->shares->most && o->pieces >= 0);
    void *sums = NULL;
    ravel_status status = k->alloc(o->device, moment, &o->m, err);
    if (!status) status = k->alloc(o->device, moment, &o->v, err);
    if (!status && holds_master(k)) status = k->alloc(o->device, master_bytes(k, o->count), &o->master, err);
    if (!status) status = k->alloc(o->device, (size_t)train__max(o->pieces, 1) * sizeof(double), &sums, err);
    o->sums = sums;
    if (status) return status;
    k->zero(o->device, o->m, moment);
    k->zero(o->device, o->v, moment);
    return RAVEL_OK;
}

ravel_status train_optimizer_create(train_model *model, const train_optimizer_options *options,
                                    const ravel_allocator *allocator, train_optimizer **optimizer, ravel_error *err) {
    train_optimizer *o = ravel__calloc(allocator, 1, sizeof *o);
    if (!o) return ravel__no_memory(err, sizeof *o, "an optimiser");
    RAVEL_ASSERT(options->moments == TRAIN_MOMENTS_F32 || options->moments == TRAIN_MOMENTS_BF16);
    const train_params *params = train_model_params(model);
    o->model = model;
    o->kernels = train_model_kernels(model);
    o->device = train_model_device(model);
    o->allocator = allocator;
    o->options = *options;
    RAVEL_ASSERT(options->ranks >= 0 && options->rank >= 0 && options->size == sizeof *options);
    o->pieces = all_pieces(params);
    ravel_status status = train_shares_create(params, options->ranks, options->rank, allocator, &o->shares, err);
    if (!status) {
        o->count = o->shares->places[params->unit_count];
        status = take_memory(o, err);
    }
    if (status) {
        train_optimizer_free(o);
        return status;
    }
    train_optimizer_take_weights(o);
    *optimizer = o;
    return RAVEL_OK;
}

void train_optimizer_free(train_optimizer *o) {
    if (!o) return;
    const train_kernels *k = o->kernels;
    k->release(o->device, o->m, moment_bytes(k, o->options.moments, o->count));
    k->release(o->device, o->v, moment_bytes(k, o->options.moments, o->count));
    k->release(o->device, o->master, master_bytes(k, o->count));
    k->release(o->device, o->sums, (size_t)train__max(o->pieces, 1) * sizeof *o->sums);
    train_shares_free(o->shares);
    ravel__release(o->allocator, o, sizeof *o);
}

const train_shares *train_optimizer_shares(const train_optimizer *o) {
    return o->shares;
}

/* Cuts a run of one unit's elements to the share; 0 if none is left. */
static int cut(const train_optimizer *o, int64_t *begin, int64_t *end) {
    return train_shares_cut(o->shares, o->shares->rank, begin, end);
}

/* ---- squares -------------------------------------------------------------------------------------------- */

double *train_optimizer_squares(train_optimizer *o, int64_t *count) {
    const train_params *p = train_model_params(o->model);
    train_array grads = train_model_grad_array(o->model);
    double *sums = o->sums;
    int elsewhere =
        o->shares->ranks == 1 && p->part.ep_rank > 0; /* the rest of the model is counted once, and then added */
    if (o->shares->ranks > 1 || elsewhere) o->kernels->zero(o->device, sums, (size_t)o->pieces * sizeof *sums);
    for (int64_t i = 0; i < p->count; i++) {
        const train_tensor *t = &p->tensors[i];
        int64_t begin = t->offset, end = begin + t->count, span = train_tensor_span(t);
        if (!t->counted) continue;
        if (cut(o, &begin, &end) && (t->expert || !elsewhere))
            o->kernels->sum_squares(o->device, train_array_at(&grads, begin), end - begin, span,
                                    sums + (begin - t->offset) / span);
        sums += pieces_of(t);
    }
    RAVEL_ASSERT(sums == o->sums + o->pieces);
    *count = o->pieces;
    return o->sums;
}

double train_optimizer_total(const train_optimizer *o) {
    double part[SUMS], total = 0;
    for (int64_t first = 0; first < o->pieces; first += SUMS) {
        int64_t count = train__min(SUMS, o->pieces - first);
        o->kernels->download(o->device, part, o->sums + first, (size_t)count * sizeof *part);
        for (int64_t i = 0; i < count; i++) total += part[i];
    }
    return total;
}

void train_optimizer_clip(train_optimizer *o, const double *sums, int64_t count, double most) {
    RAVEL_ASSERT(count >= 0 && most >= 0);
    o->kernels->clip(o->device, sums ? sums : o->sums, sums ? count : o->pieces, most,
                     &train_model_update(o->model)->clip);
}

/* ---- a step --------------------------------------------------------------------------------------------- */

/* One run of elements that decay alike, cut to the share. */
static void step_run(train_optimizer *o, int64_t begin, int64_t end, int decays, double lr) {
    const train_types *types = &o->kernels->types;
    int32_t moment = moment_type(o->kernels, o->options.moments);
    train_array weights = train_model_array(o->model), grads = train_model_grad_array(o->model);
    if (!cut(o, &begin, &end)) return;
    int64_t at = train_shares_local(o->shares, begin);
    RAVEL_ASSERT(at >= 0 && at + end - begin <= o->count && o->steps >= 1);
    void *weight = train_array_at(&weights, begin);
    train_adamw step = {.n = end - begin,
                        .master = o->master ? train__at(o->master, types->master, at) : weight,
                        .weight = weight,
                        .m = train__at(o->m, moment, at),
                        .v = train__at(o->v, moment, at),
                        .grad = train_array_at(&grads, begin),
                        .clip = &train_model_update(o->model)->clip,
                        .lr = lr,
                        .beta1 = o->options.beta1,
                        .beta2 = o->options.beta2,
                        .eps = o->options.eps,
                        .decay = decays ? o->options.decay : 0,
                        .step = o->steps,
                        .moment_type = moment};
    o->kernels->adamw(o->device, &step);
}

static void step_unit(train_optimizer *o, const train_unit *u, double lr) {
    const train_tensor *tensors = train_model_params(o->model)->tensors;
    int64_t last = u->tensor + u->tensors;
    for (int64_t i = u->tensor, next; i < last; i = next) { /* neighbours that decay alike go in one call */
        for (next = i + 1; next < last && tensors[next].decay == tensors[i].decay;) next++;
        int64_t end = next < last ? tensors[next].offset : u->first + u->count;
        RAVEL_ASSERT(tensors[i].offset < end); /* tensors are in the order of their offsets */
        step_run(o, tensors[i].offset, end, tensors[i].decay, lr);
    }
}

void train_optimizer_step(train_optimizer *o, double lr) {
    const train_params *p = train_model_params(o->model);
    RAVEL_ASSERT(lr >= 0 && o->steps >= 0);
    o->steps++;
    for (int64_t i = 0; i < p->unit_count; i++) step_unit(o, &p->units[i], lr);
}

/* ---- states --------------------------------------------------------------------------------------------- */

train_array train_optimizer_array(train_optimizer *o, train_states which) {
    int32_t moment = moment_type(o->kernels, o->options.moments);
    if (which == TRAIN_MASTER && !o->master) return train_model_array(o->model);
    if (which == TRAIN_MASTER)
        return (train_array){o->kernels, o->device, o->master, o->kernels->types.master, o->shares};
    return (train_array){o->kernels, o->device, which == TRAIN_MOMENT1 ? o->m : o->v, moment, o->shares};
}

void train_optimizer_take_weights(train_optimizer *o) {
    const train_types *t = &o->kernels->types;
    const train_shares *s = o->shares;
    train_array weights = train_model_array(o->model);
    for (int64_t u = 0; u < s->params->unit_count && o->master; u++) {
        int64_t begin = train_shares_begin(s, u, s->rank), count = s->places[u + 1] - s->places[u];
        RAVEL_ASSERT(count >= 0 && s->places[u] + count <= o->count);
        if (count > 0)
            o->kernels->convert(o->device, train__at(o->master, t->master, s->places[u]), t->master,
                                train_array_at(&weights, begin), t->weight, count);
    }
}

int64_t *train_optimizer_steps(train_optimizer *o) {
    return &o->steps;
}

double train_learning_rate(train_schedule schedule, double lr, double min_lr, int64_t warmup, int64_t step,
                           int64_t steps) {
    RAVEL_ASSERT(step >= 1 && warmup >= 0 && lr >= 0);
    if (step <= warmup) return lr * (double)step / (double)(warmup + 1);
    if (schedule == TRAIN_CONSTANT || steps <= warmup) return lr;
    double share = train__min(step, steps + 1) - warmup - 1, whole = steps - warmup, left = 1 - share / whole;
    RAVEL_ASSERT(whole > 0 && left >= 0 && left <= 1);
    if (schedule == TRAIN_COSINE) left = 0.5 * (1 + cos(3.14159265358979323846 * (1 - left)));
    return min_lr + (lr - min_lr) * left;
}
