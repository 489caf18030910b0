/* train/model/hf/hf.h: models as Hugging Face keeps them: a folder with config.json and safetensors files.
 *
 *     ravel_shape shape;
 *     train_config_read("Qwen3-0.6B", &shape, &err);
 *     train_model_create(kernels, device, &shape, &options, &model, &err);
 *     train_array weights = train_model_array(model);
 *     train_tensors_load(train_model_params(model), &weights, "Qwen3-0.6B", &err);
 *     ...
 *     train_folder_save("out", &shape, params, &rows, &(train_folder_options){.dtype = RAVEL_BF16}, &err);
 *
 * Any flat array of the parameters' layout can be loaded and saved, not only weights: the optimiser's states too.
 */
#ifndef TRAIN_HF_H
#define TRAIN_HF_H

#include <ravel/safetensors.h>

#include "train/model/params.h"
#include "io/safetensors_writer.h"

/* The shape from a config.json, or from the folder that holds it. E_UNSUPPORTED names what the trainer lacks: a
 * model_type that is not in its table (arch.h), another activation or rope, biases, windows or soft caps. */
ravel_status train_config_read(const char *path, ravel_shape *shape, ravel_error *err);
/* The dtype that a config.json says its weights have; -1: it says none of f32, bf16 and f16, or there is none. */
int32_t train_config_dtype(const char *path);
/* A config.json that transformers reads back as the same model; `dtype` is what it says of the weights, `eos` the token
 * that ends an answer (-1: not written). */
ravel_status train_config_write(const char *path, const ravel_shape *shape, int32_t dtype, int32_t eos,
                                ravel_error *err);

/* The tokens that end an answer, as the folder's generation_config.json or else its config.json says (eos_token_id, one
 * or several): at most `room` of them; returns how many, 0 if neither file has the key. */
int32_t train_stops_read(const char *folder, int32_t *stops, int32_t room);

/* Fills the array from a safetensors file, an index or a folder. Every tensor must be there with its shape; f32, bf16
 * and f16 are converted to the array's dtype. A tensor that is not in the table is E_UNSUPPORTED and named: the config
 * then describes another model; NaN or infinity in one is E_DATA. On an error the array may be partly filled. */
ravel_status train_tensors_load(const train_params *params, const train_array *to, const char *path, ravel_error *err);

/* Where the tensors are in an open file, to be read there: places[params->count]. Vectors (norms, biases) are converted
 * to `dtype` into `vectors`, which has room for train_vectors of them. 0: they can't, because a matrix has another
 * dtype, is not aligned, or is a part by columns, or because there are experts. */
int train_tensors_mappable(const train_params *params, int32_t dtype, const ravel_safetensors *file);
int64_t train_vectors(const train_params *params); /* elements, gaps included */
/* After train_tensors_mappable: fills both. The same errors as train_tensors_load. */
ravel_status train_tensors_map(const train_params *params, int32_t dtype, const ravel_safetensors *file,
                               const void **places, void *vectors, ravel_error *err);

/* The weights of a model folder (its index or model.safetensors), or a safetensors file. */
ravel_status train_weights_open(const char *path, ravel_safetensors **file, ravel_error *err);
/* The dtype of its largest tensor; below 0: there is none. */
int32_t train_weights_dtype(const char *path);

/* Where the rows of a model's tensors come from when they are written, in the order of the table: a whole model's
 * array, or ranks that have parts of it. A tensor is asked for in blocks of train_block_rows rows, one after the
 * other. */
typedef struct train_rows_source {
    /* to = rows first .. first + rows - 1 of the tensor, [rows, dims[1]] of `dtype` */
    ravel_status (*read)(void *user, const train_tensor *tensor, int64_t first, int64_t rows, void *to,
                         ravel_error *err);
    void *user;
    int32_t dtype;
} train_rows_source;
int64_t train_block_rows(const train_tensor *tensor);

/* A tensor of a safetensors file that is read, and one that is written. */
enum { TRAIN_PIECE = 1 << 18 }; /* elements per copy between device and file */
typedef struct train_tensor_file {
    const ravel_safetensor *tensor;
    int64_t first;  /* its element that the whole tensor begins with */
    int32_t finite; /* 1: NaN or infinity in it is E_DATA */
    void *piece;    /* [TRAIN_PIECE] of the array's dtype */
} train_tensor_file;
typedef struct train_tensor_writer {
    ravel__safetensors_writer *writer;
    const train_rows_source *from;
    int32_t dtype;           /* of the file */
    void *piece, *converted; /* a block of rows as received, and in the dtype of the file */
} train_tensor_writer;
/* Its place in a file: by its own name or, of experts, in the stack that the file has; of a model with images, in its model
 * of text. */
ravel_status train_tensor_find(const train_tensor *tensor, const ravel_safetensors *file, train_tensor_file *from,
                               ravel_error *err);
/* The part of the tensor that the array has. */
ravel_status train_tensor_load(const train_tensor *tensor, const train_tensor_file *file, const train_array *to,
                               ravel_error *err);
/* All rows of the tensor, to the file's tensor `index`. */
ravel_status train_tensor_save(const train_tensor_writer *writer, int64_t index, const train_tensor *tensor,
                               ravel_error *err);

/* All tensors of the table as one safetensors file. */
ravel_status train_tensors_save(const char *path, const train_params *params, const train_rows_source *from,
                                int32_t dtype, ravel_error *err);

typedef struct train_folder_options {
    int32_t dtype;       /* of the file: RAVEL_F32, RAVEL_BF16, RAVEL_F16 */
    int32_t eos;         /* token that ends an answer, for config.json; -1: not known */
    int64_t shard_bytes; /* the most bytes of one safetensors file, as far as tensors allow; 0: 5 GiB */
    const char *source; /* folder that the model came from: its config.json is kept (with the new dtype), and so are its
                            tokenizer, chat template and generation config; NULL: none */
} train_folder_options;

/* config.json and model.safetensors (or its shards and their index) in `folder`, which is made where it is missing. */
ravel_status train_folder_save(const char *folder, const ravel_shape *shape, const train_params *params,
                               const train_rows_source *from, const train_folder_options *options, ravel_error *err);

/* The files of a model's folder beside its weights, which other programs need with a checkpoint: config.json (with
 * `dtype`), the tokenizer's files, chat template and generation_config.json, copied where they are there. */
ravel_status train_folder_copy_rest(const char *from, const char *to, int32_t dtype, ravel_error *err);

/* float32, bfloat16 or float16; E_ARGUMENT if weights are not saved as that. */
ravel_status train__torch_name(int32_t dtype, const char **name, ravel_error *err);

#endif
