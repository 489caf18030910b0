/* train/run/config/resolve.h: what a user names as a model, wherever a model is accepted.
 *
 *     a model folder     config.json and weights: of Hugging Face, or a checkpoint of ravel train
 *     a run folder       its newest checkpoint
 *     an adapter folder  adapter_config.json (PEFT, or a checkpoint of a run that trained an adapter): the model that it names, and
 *                        the adapter beside it */
#ifndef TRAIN_RESOLVE_H
#define TRAIN_RESOLVE_H

#include "train/model/hf/files.h"

typedef struct train_model_path {
    char model[TRAIN_PATH];
    char adapter[TRAIN_PATH]; /* "": none */
    int64_t step;             /* of the checkpoint of a run folder; -1: another folder */
} train_model_path;

/* A name as on the Hugging Face hub ("org/name") that is no folder is looked for in the hub's cache; E_IO, with the command
 * that downloads it, if it is not there.
 * E_STATE for a run without a checkpoint, E_DATA for an adapter whose model is not known or not there. Whether the
 * model folder can be read is not looked at. */
ravel_status train_model_resolve(const char *given, train_model_path *path, ravel_error *err);

/* With an adapter beside the model (NULL: none), as --adapter names it. E_ARGUMENT if the model is one itself. */
ravel_status train_model_resolve_with(const char *given, const char *adapter, train_model_path *path, ravel_error *err);

/* path[TRAIN_PATH]: of a run folder its newest checkpoint, and its step; any other folder as given, and -1. E_STATE for
 * a run without a checkpoint. */
ravel_status train_run_resolve(const char *given, char *path, int64_t *step, ravel_error *err);
/* The adapter that `given` names, a PEFT folder or a run that trained one: path[TRAIN_PATH]. E_DATA if it is
 * none. */
ravel_status train_adapter_resolve(const char *given, char *path, ravel_error *err);
/* The model of an adapter's folder: path[TRAIN_PATH]. A relative path is looked for from here, from the adapter's folder and
 * from those above it. E_DATA if it is not there. */
ravel_status train_adapter_find_base(const char *adapter, char *path, ravel_error *err);

#endif
