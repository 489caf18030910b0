#include "train/learn/optimizer.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <math.h>

struct train_optimizer {
    train_model *model;
    const train_kernels *kernels;
    train_device *device;
    const ravel_allocator *allocator;
    train_optimizer_options options;
    void *m, *v;  /* [count] moments */
    void *master; /* [count], or NULL where the weights are the master weights */
    double *sums; /* [pieces] */
    int64_t pieces;
    int64_t elements;
    int64_t steps;
};

void train_optimizer_options_default(train_optimizer_options *options) {
    *options = (train_optimizer_options){
        .size = sizeof *options, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0, .first = 0, .count = 0};
}

static int64_t spans_of(int64_t elements) {
    return (elements + TRAIN_SPAN - 1) / TRAIN_SPAN;
}

static int holds_master(const train_kernels *k) {
    return k->types.master != k->types.weight;
}

static size_t moment_bytes(const train_kernels *k, int64_t count) {
    return (size_t)(train__max(count, 1) * ravel_dtype_bytes(k->types.moment));
}

static size_t master_bytes(const train_kernels *k, int64_t count) {
    return holds_master(k) ? (size_t)(train__max(count, 1) * ravel_dtype_bytes(k->types.master)) : 0;
}

int64_t train_optimizer_bytes(const train_kernels *k, int64_t count, int64_t elements) {
    return (int64_t)(2 * moment_bytes(k, count) + master_bytes(k, count)) +
           spans_of(elements) * (int64_t)sizeof(double);
}

static ravel_status check_share(const train_optimizer *o, ravel_error *err) {
    int64_t first = o->options.first, count = o->options.count;
    int begins = first % TRAIN_SPAN == 0 || first == o->elements;
    if (first >= 0 && count >= 0 && first + count <= o->elements && begins) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "the share %lld + %lld is outside the model's %lld elements or does not begin at a multiple "
                           "of %d",
                           (long long)first, (long long)count, (long long)o->elements, TRAIN_SPAN);
}

static ravel_status take_memory(train_optimizer *o, ravel_error *err) {
    const train_kernels *k = o->kernels;
    int64_t count = o->options.count;
    size_t moment = moment_bytes(k, count);
    void *sums = NULL;
    ravel_status status = k->alloc(o->device, moment, &o->m, err);
    if (!status) status = k->alloc(o->device, moment, &o->v, err);
    if (!status && holds_master(k)) status = k->alloc(o->device, master_bytes(k, count), &o->master, err);
    if (!status) status = k->alloc(o->device, (size_t)train__max(o->pieces, 1) * sizeof(double), &sums, err);
    o->sums = sums;
    if (status) return status;
    k->zero(o->device, o->m, moment);
    k->zero(o->device, o->v, moment);
    return RAVEL_OK;
}

ravel_status train_optimizer_create(train_model *model, const train_optimizer_options *options,
                                    const ravel_allocator *allocator, train_optimizer **optimizer, ravel_error *err) {
    train_optimizer *o = train__calloc(allocator, 1, sizeof *o);
    if (!o) return train__no_memory(err, sizeof *o, "an optimiser");
    o->model = model;
    o->kernels = train_model_kernels(model);
    o->device = train_model_device(model);
    o->allocator = allocator;
    o->options = *options;
    o->elements = train_model_params(model)->elements;
    if (!o->options.count) o->options.count = o->elements - o->options.first;
    if (o->options.count < 0) o->options.count = 0;
    o->pieces = train_optimizer_pieces(o, o->elements);
    ravel_status status = check_share(o, err);
    if (!status) status = take_memory(o, err);
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
    k->release(o->device, o->m, moment_bytes(k, o->options.count));
    k->release(o->device, o->v, moment_bytes(k, o->options.count));
    k->release(o->device, o->master, master_bytes(k, o->options.count));
    k->release(o->device, o->sums, (size_t)train__max(o->pieces, 1) * sizeof *o->sums);
    train__release(o->allocator, o, sizeof *o);
}

/* ---- squares -------------------------------------------------------------------------------------------- */

/* The next run of elements that this rank counts, from tensor *i on; 0 where there is none. The gaps between tensors are 0. */
static int next_run(const train_params *p, int64_t *i, int64_t *begin, int64_t *end) {
    while (*i < p->count && !p->tensors[*i].counted) ++*i;
    if (*i == p->count) return 0;
    *begin = p->tensors[*i].offset;
    while (*i < p->count && p->tensors[*i].counted) ++*i;
    *end = *i < p->count ? p->tensors[*i].offset : p->elements;
    return 1;
}

/* Pieces of elements begin .. end - 1: a span each, the first and the last may be short. */
static int64_t pieces_of(int64_t begin, int64_t end) {
    return end > begin ? spans_of(end) - begin / TRAIN_SPAN : 0;
}

int64_t train_optimizer_pieces(const train_optimizer *o, int64_t first) {
    int64_t count = 0;
    for (int64_t i = 0, begin, end; next_run(train_model_params(o->model), &i, &begin, &end);)
        count += pieces_of(begin, train__min(end, first));
    return count;
}

/* The squares of elements begin .. end - 1, of which `sums` are. */
static void sum_run(const train_optimizer *o, int64_t begin, int64_t end, double *sums) {
    int32_t type = o->kernels->types.grad;
    const void *grads = train_model_grads(o->model);
    int64_t whole = train__min(train__round_up(begin, TRAIN_SPAN), end); /* up to here one short piece */
    if (whole > begin) o->kernels->sum_squares(o->device, train__at(grads, type, begin), whole - begin, sums++);
    if (end > whole) o->kernels->sum_squares(o->device, train__at(grads, type, whole), end - whole, sums);
}

double *train_optimizer_squares(train_optimizer *o, int64_t *count) {
    int64_t first = o->options.first, last = first + o->options.count;
    double *sums = o->sums;
    for (int64_t i = 0, begin, end; next_run(train_model_params(o->model), &i, &begin, &end);) {
        int64_t from = train__max(begin, first), to = train__min(end, last);
        if (to > from) sum_run(o, from, to, sums + from / TRAIN_SPAN - begin / TRAIN_SPAN);
        sums += pieces_of(begin, end);
    }
    *count = o->pieces;
    return o->sums;
}

const double *train_optimizer_sums(const train_optimizer *o, int64_t *count) {
    *count = o->pieces;
    return o->sums;
}

void train_optimizer_clip_over(train_optimizer *o, const double *sums, int64_t count, double most) {
    o->kernels->clip(o->device, sums, count, most, &train_model_update(o->model)->clip);
}

void train_optimizer_clip(train_optimizer *o, double most) {
    train_optimizer_clip_over(o, o->sums, o->pieces, most);
}

/* ---- a step --------------------------------------------------------------------------------------------- */

/* One run of elements that decay alike, cut to the share. */
static void step_run(train_optimizer *o, int64_t begin, int64_t end, int decays, double lr) {
    const train_types *types = &o->kernels->types;
    int64_t first = o->options.first;
    begin = train__max(begin, first);
    end = train__min(end, first + o->options.count);
    if (begin >= end) return;
    void *weight = train__at(train_model_weights(o->model), types->weight, begin);
    train_adamw step = {.n = end - begin,
                        .master = o->master ? train__at(o->master, types->master, begin - first) : weight,
                        .weight = weight,
                        .m = train__at(o->m, types->moment, begin - first),
                        .v = train__at(o->v, types->moment, begin - first),
                        .grad = train__at(train_model_grads(o->model), types->grad, begin),
                        .clip = &train_model_update(o->model)->clip,
                        .lr = lr,
                        .beta1 = o->options.beta1,
                        .beta2 = o->options.beta2,
                        .eps = o->options.eps,
                        .decay = decays ? o->options.decay : 0,
                        .step = o->steps,
                        .moment_type = types->moment};
    o->kernels->adamw(o->device, &step);
}

void train_optimizer_step(train_optimizer *o, double lr) {
    const train_params *p = train_model_params(o->model);
    o->steps++;
    for (int64_t i = 0, begin = 0, next; i < p->count; i = next) { /* neighbours that decay alike go in one call */
        for (next = i + 1; next < p->count && p->tensors[next].decay == p->tensors[i].decay;) next++;
        int64_t end = next < p->count ? p->tensors[next].offset : p->elements;
        TRAIN_ASSERT(begin < end && end <= p->elements); /* tensors are in the order of their offsets */
        step_run(o, begin, end, p->tensors[i].decay, lr);
        begin = end;
    }
}

void train_optimizer_skip(train_optimizer *o) {
    TRAIN_ASSERT(o->steps > 0);
    o->steps--;
}

/* ---- states --------------------------------------------------------------------------------------------- */

/* The share in the weights. */
static void *share_of(const train_optimizer *o) {
    return train__at(train_model_weights(o->model), o->kernels->types.weight, o->options.first);
}

void *train_optimizer_master(train_optimizer *o) {
    return o->master ? o->master : share_of(o);
}

void train_optimizer_take_weights(train_optimizer *o) {
    const train_types *t = &o->kernels->types;
    if (o->master) o->kernels->convert(o->device, o->master, t->master, share_of(o), t->weight, o->options.count);
}

void *train_optimizer_first_moment(train_optimizer *o) {
    return o->m;
}

void *train_optimizer_second_moment(train_optimizer *o) {
    return o->v;
}

int64_t train_optimizer_steps(const train_optimizer *o) {
    return o->steps;
}

void train_optimizer_set_steps(train_optimizer *o, int64_t steps) {
    o->steps = steps;
}

double train_learning_rate(train_schedule schedule, double lr, double min_lr, int64_t warmup, int64_t step,
                           int64_t steps) {
    if (step <= warmup) return lr * (double)step / (double)(warmup + 1);
    if (schedule == TRAIN_CONSTANT || steps <= warmup) return lr;
    double share = train__min(step, steps + 1) - warmup - 1, whole = steps - warmup, left = 1 - share / whole;
    if (schedule == TRAIN_COSINE) left = 0.5 * (1 + cos(3.14159265358979323846 * (1 - left)));
    return min_lr + (lr - min_lr) * left;
}
