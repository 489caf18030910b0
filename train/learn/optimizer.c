#include "train/learn/optimizer.h"

#include "train/kernels/host.h"

#include <math.h>

struct train_optimizer {
    train_model *model;
    const ravel_allocator *allocator;
    train_optimizer_options options;
    train_real *m, *v; /* [count] on the device */
    int64_t steps;
};

void train_optimizer_options_default(train_optimizer_options *options) {
    *options = (train_optimizer_options){
        .size = sizeof *options, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0, .first = 0, .count = 0};
}

int64_t train_optimizer_bytes(int64_t count) {
    return 2 * count * (int64_t)sizeof(train_real);
}

ravel_status train_optimizer_create(train_model *model, const train_optimizer_options *options,
                                    const ravel_allocator *allocator, train_optimizer **optimizer, ravel_error *err) {
    const train_kernels *k = train_model_kernels(model);
    train_device *device = train_model_device(model);
    int64_t elements = train_model_params(model)->elements;
    train_optimizer *o = train__calloc(allocator, 1, sizeof *o);
    if (!o) return train__no_memory(err, sizeof *o, "an optimiser");
    o->model = model;
    o->allocator = allocator;
    o->options = *options;
    if (!o->options.count) o->options.count = elements - o->options.first;
    size_t bytes = (size_t)o->options.count * sizeof(train_real);
    ravel_status status = RAVEL_OK;
    void *m = NULL, *v = NULL;
    if (o->options.first < 0 || o->options.count < 1 || o->options.first + o->options.count > elements)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT, "the share %lld + %lld is outside the model's %lld elements",
                                 (long long)o->options.first, (long long)o->options.count, (long long)elements);
    if (!status) status = k->alloc(device, bytes, &m, err);
    o->m = m;
    if (!status) status = k->alloc(device, bytes, &v, err);
    o->v = v;
    if (status) {
        train_optimizer_free(o);
        return status;
    }
    k->zero(device, m, bytes);
    k->zero(device, v, bytes);
    *optimizer = o;
    return RAVEL_OK;
}

void train_optimizer_free(train_optimizer *o) {
    if (!o) return;
    size_t bytes = (size_t)o->options.count * sizeof(train_real);
    const train_kernels *k = train_model_kernels(o->model);
    k->release(train_model_device(o->model), o->m, bytes);
    k->release(train_model_device(o->model), o->v, bytes);
    train__release(o->allocator, o, sizeof *o);
}

double train_optimizer_sum_squares(train_optimizer *o) {
    double sum = 0;
    train_model_kernels(o->model)->sum_squares(train_model_device(o->model),
                                               train_model_grads(o->model) + o->options.first, o->options.count, &sum);
    return sum;
}

/* One run of elements that decay alike, cut to the share. */
static void step_run(train_optimizer *o, int64_t begin, int64_t end, int decays, double lr, double grad_scale) {
    int64_t first = o->options.first, last = first + o->options.count;
    begin = train__max(begin, first);
    end = train__min(end, last);
    if (begin >= end) return;
    train_adamw step = {.n = end - begin,
                        .w = train_model_weights(o->model) + begin,
                        .m = o->m + (begin - first),
                        .v = o->v + (begin - first),
                        .grad = train_model_grads(o->model) + begin,
                        .lr = lr,
                        .beta1 = o->options.beta1,
                        .beta2 = o->options.beta2,
                        .eps = o->options.eps,
                        .decay = decays ? o->options.decay : 0,
                        .grad_scale = grad_scale,
                        .step = o->steps};
    train_model_kernels(o->model)->adamw(train_model_device(o->model), &step);
}

void train_optimizer_step(train_optimizer *o, double lr, double grad_scale) {
    const train_params *p = train_model_params(o->model);
    o->steps++;
    for (int64_t i = 0, begin = 0, next; i < p->count; i = next) { /* neighbours that decay alike go in one call */
        for (next = i + 1; next < p->count && p->tensors[next].decay == p->tensors[i].decay;) next++;
        int64_t end = next < p->count ? p->tensors[next].offset : p->elements;
        step_run(o, begin, end, p->tensors[i].decay, lr, grad_scale);
        begin = end;
    }
}

train_real *train_optimizer_first_moment(train_optimizer *o) {
    return o->m;
}

train_real *train_optimizer_second_moment(train_optimizer *o) {
    return o->v;
}

int64_t train_optimizer_steps(const train_optimizer *o) {
    return o->steps;
}

void train_optimizer_set_steps(train_optimizer *o, int64_t steps) {
    o->steps = steps;
}

double train_clip_scale(double norm, double most) {
    return most > 0 && norm > most ? most / (norm + 1e-6) : 1;
}

double train_learning_rate(train_schedule schedule, double lr, double min_lr, int64_t warmup, int64_t step,
                           int64_t steps) {
    if (step <= warmup) return lr * (double)step / (double)(warmup + 1);
    if (schedule == TRAIN_CONSTANT || steps <= warmup) return lr;
    double share = train__min(step, steps + 1) - warmup - 1, whole = steps - warmup, left = 1 - share / whole;
    if (schedule == TRAIN_COSINE) left = 0.5 * (1 + cos(3.14159265358979323846 * (1 - left)));
    return min_lr + (lr - min_lr) * left;
}
