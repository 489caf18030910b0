/* train/model/hf/lora.h: low-rank adapters (LoRA) beside the frozen matrices of a model, and their PEFT folders.
 *
 * A matrix w [out, in] that is a target gets two small ones, A [rank, in] and B [out, rank]; only these are trained:
 *
 *     y = x w' + scale * (x A') B'          scale = alpha / rank, with rsLoRA alpha / sqrt(rank)
 *
 * The tensors of an adapter are a table of their own (params.h), named as PEFT names them, so that everything that
 * works on parameters (gradients over ranks, the optimiser, checkpoints, refit) works on an adapter as it does on a
 * model. Experts are named one by one, as PEFT has named them before transformers stacked them: PEFT reads both.
 *
 * Tensor-parallel: of a target whose rows are split (q, k, v, gate, up), every rank has all of A and its rows of B; of
 * one whose columns are split (o, down), its columns of A and all of B. What every rank has gets its gradient summed
 * over them.
 *
 * A PEFT folder is adapter_config.json and adapter_model.safetensors. */
#ifndef TRAIN_LORA_H
#define TRAIN_LORA_H

#include "train/model/hf/hf.h"

#define TRAIN_ADAPTER_CONFIG "adapter_config.json"

enum { TRAIN_LORA_RANK = 4096 }; /* the largest */

/* y += scale * (x A') B' for each target. */
double train_lora_scale(const train_lora *lora);
/* E_ARGUMENT says which of the numbers is out of range. */
ravel_status train_lora_check(const train_lora *lora, ravel_error *err);
/* E_ARGUMENT if these kernels have no products for its rank. */
ravel_status train_lora_check_kernels(const train_lora *lora, const train_kernels *kernels, ravel_error *err);
/* "q,k,v,o,gate,up,down", "q_proj,v_proj" or "all-linear" as a bit per matrix of a layer; "qv" is an error. */
ravel_status train_lora_targets(const char *list, uint32_t *targets, ravel_error *err);

/* The targets of "all-linear". */
uint32_t train_lora_all(void);

/* The table of an adapter; of a model where `lora` is NULL or its rank 0. Every expert has A and B of its own. */
ravel_status train_trained_params(const ravel_shape *shape, const train_slice *part, const train_lora *lora,
                                  const ravel_allocator *allocator, train_params **params, ravel_error *err);

/* Parameters of that table for the whole model; `active`: those that a token meets, of experts its own. 0 where there can
 * be none. */
int64_t train_trained_parameters(const ravel_shape *shape, const train_lora *lora, int active);

/* From the adapter_config.json of a PEFT folder. E_UNSUPPORTED names what cannot be applied: another kind of adapter,
 * DoRA, biases, other modules, ranks per layer, an init_lora_weights that changed the model, keys that are not
 * known. */
ravel_status train_adapter_read(const char *folder, train_lora *lora, ravel_error *err);
/* The same from the text of one, and that text, [*bytes] of malloc. `base`: as in train_adapter_save. */
ravel_status train_adapter_parse(const char *text, size_t bytes, train_lora *lora, ravel_error *err);
ravel_status train_adapter_print(const train_lora *lora, const char *base, char **text, size_t *bytes,
                                 ravel_error *err);
/* The model that it was trained on as its config has it, path[TRAIN_PATH]: a folder or a name of the hub; "" where it
 * does not say. */
ravel_status train_adapter_base(const char *folder, char *path, ravel_error *err);
/* The weights of a PEFT folder, of adapters of this table. */
ravel_status train_adapter_load(const train_params *params, const train_array *to, const char *folder,
                                ravel_error *err);
/* A PEFT folder, which is made where it is missing. `base`: folder of the model; NULL: it has none. */
ravel_status train_adapter_save(const char *folder, const train_params *params, const char *base,
                                const train_rows_source *from, int32_t dtype, ravel_error *err);

/* lora_merge.c: the whole model with an adapter added to its weights, in `out`, in a dtype of train_folder_options or
 * (below 0) that of the model's weights. The bits do not depend on the number of threads. */
ravel_status train_adapter_merge(const char *model, const char *adapter, const char *out, int32_t dtype,
                                 int64_t shard_bytes, int32_t threads, ravel_error *err);

#endif
