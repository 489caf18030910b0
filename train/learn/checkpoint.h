/* train/learn/checkpoint.h: a learner in and out of a checkpoint folder.
 *
 *     config.json, model.safetensors   the model as Hugging Face reads it, in options.save_dtype
 *     optimizer.safetensors            flat f32 arrays "moment1", "moment2" and, where the model is not saved in f32,
 *                                      "weights"; metadata "steps"
 *
 * The files say nothing about shares: a run can go on with another number of ranks. */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H

#include "train/learn/learner.h"

/* Collective. Rank 0 writes; the others send it their shares, one at a time. */
ravel_status train_learner_save(train_learner *learner, const char *folder, ravel_error *err);
/* Rank 0 by itself, where its peers are lost. E_UNSUPPORTED where the optimiser states are sharded over them. */
ravel_status train_learner_save_alone(train_learner *learner, const char *folder, ravel_error *err);
/* On every rank, from a folder that train_learner_save wrote, with any number of ranks. */
ravel_status train_learner_load(train_learner *learner, const char *folder, ravel_error *err);

#endif
