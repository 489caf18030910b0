/* train/learn/checkpoint.h: a learner in and out of a checkpoint folder.
 *
 *     config.json, model.safetensors   the model as Hugging Face reads it, in options.save_dtype; where an adapter is trained,
 *                                      a PEFT folder instead: adapter_config.json, adapter_model.safetensors
 *     optimizer.safetensors            flat f32 arrays "moment1", "moment2" and, where the model is not saved in f32,
 *                                      "weights", in the order of the whole model's table (train/model/params.h); metadata
 *                                      "steps"
 *
 * The files do not depend on the mesh that wrote them: a run can resume on another mesh, and with other sharding.
 * Moments are written in f32 for any --moments: bf16 ones come back with the same bits, and a run that goes on
 * with the other --moments converts them. */
#ifndef TRAIN_CHECKPOINT_H
#define TRAIN_CHECKPOINT_H

#include "train/learn/learner.h"

/* Collective over the mesh. Rank 0 writes; the others send it their parts, one block of rows at a time. alone: rank 0
 * by itself, where its peers are lost; E_UNSUPPORTED if those hold parts of the model or of the optimiser's
 * states. */
ravel_status train_learner_save(train_learner *learner, const char *folder, int alone, ravel_error *err);
/* On every rank, from a folder that train_learner_save wrote, on any mesh. */
ravel_status train_learner_load(train_learner *learner, const char *folder, ravel_error *err);

#endif
