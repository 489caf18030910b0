/* What the trainer's tests share: a model on a device of a named set, the golden samples, comparisons. */
#ifndef TESTS_TRAIN_SUPPORT_H
#define TESTS_TRAIN_SUPPORT_H

#include "tests/unit/check.h"

#include "train/model/hf/hf.h"
#include "train/model/model.h"

#define GOLDEN "tests/golden/qwen3-tiny"

/* The golden models of all families (tests/golden/archs/make.py), dense ones first: the i-th name, or NULL after the
 * last; and its folder. */
const char *golden_model(int i);
enum { GOLDEN_MODELS = 19 };
void golden_folder(char folder[256], const char *model);

typedef struct rig {
    const train_kernels *kernels;
    train_device *device;
    train_model *model;
    ravel_shape shape;
} rig;

/* Whether this machine can run the set. */
bool rig_can(const char *set);
/* A model of `shape` with `options`, on `threads`; weights are 0. */
bool rig_open(rig *r, const char *set, int32_t threads, const ravel_shape *shape, const train_model_options *options);
/* The golden model with its weights. */
bool rig_golden(rig *r, const char *set, int32_t threads, const train_model_options *options);
void rig_close(rig *r);

/* A small shape that every kernel has an awkward case in. */
ravel_shape small_shape(void);

/* The flat array of gradients, copied to the host; free it. */
float *rig_grads(const rig *r);

/* ||a - b|| / ||b|| */
double relative_distance(const float *a, const float *b, int64_t n);
double largest_difference(const float *a, const float *b, int64_t n);

enum { SAMPLES = 7, MODES = 3 };

/* The golden batch: samples, masks, losses. */
typedef struct golden {
    ravel_safetensors *file;
    int32_t lengths[SAMPLES];
    const int32_t *ids[SAMPLES];
    const float *mask[SAMPLES];
    const double *nll[SAMPLES]; /* NULL for the sample of one token */
} golden;

extern const char *const golden_modes[MODES];
extern const double golden_losses[MODES];

bool golden_open(golden *g);
/* weights[t] of sample i in an aggregation mode, the loss being sum(weight * nll). */
float golden_weight(const golden *g, int mode, int sample, int32_t t);
/* Samples order[0 .. count-1] side by side, slots rounded up to `align`. Free with batch_free. */
train_batch golden_batch(const golden *g, int mode, const int *order, int count, int32_t align);
void batch_free(train_batch *b);

#endif
