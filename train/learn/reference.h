/* train/learn/reference.h: the model that training began with, without gradients: the reference policy of a KL term and
 * of DPO. */
#ifndef TRAIN_REFERENCE_H
#define TRAIN_REFERENCE_H

#include "train/learn/learner.h"

typedef struct train_reference train_reference;

/* Weights as train_learner_create sets them before the first update. */
ravel_status train_reference_create(const train_learner_options *options, const ravel_shape *shape,
                                    train_reference **reference, ravel_error *err);
void train_reference_free(train_reference *reference);
train_model *train_reference_model(train_reference *reference);
/* Bytes that it allocates; a pure function. */
ravel_status train_reference_bytes(const train_learner_options *options, const ravel_shape *shape, int64_t *bytes,
                                   ravel_error *err);

#endif
