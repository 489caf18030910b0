/* train/model/hf/gguf.h: a model folder as one GGUF file, as llama.cpp reads it.
 *
 *     "GGUF" 3 | metadata: architecture, sizes, tokenizer, template | name, dims, type and place of each tensor | data
 *
 * Which families, and what their tensors are called there, are tables of gguf.c and gguf_text.c. */
#ifndef TRAIN_GGUF_H
#define TRAIN_GGUF_H

#include "base/buffer.h"
#include "base/json.h"

typedef enum train_gguf_type { TRAIN_GGUF_F32, TRAIN_GGUF_BF16, TRAIN_GGUF_F16, TRAIN_GGUF_Q8_0 } train_gguf_type;
#define TRAIN_GGUF_TYPES "f32|bf16|f16|q8_0"

/* Matrices get the type (those whose rows are no multiple of 32 are f16 instead of q8_0), vectors f32. `pre`: what
 * llama.cpp calls the way the tokenizer cuts text into words; NULL: found by its pattern. E_UNSUPPORTED names what GGUF
 * or llama.cpp has no place for. An error leaves no file. *context: the length in tokens up to which llama.cpp computes
 * the same, and which the file has, because it leaves out the model's sliding window; 0: it leaves out nothing. */
ravel_status train_gguf_export(const char *model, const char *out, int32_t type, const char *pre, int64_t *context,
                               ravel_error *err);

/* ---- metadata, of gguf_text.c too ---------------------------------------------------------------------------- */

typedef struct train_gguf_head {
    ravel__buffer text; /* key, type, value, ... */
    size_t bytes;
    uint64_t count;
    ravel_status status; /* of the first failure */
    ravel_error *err;
} train_gguf_head;

void train_gguf_text(train_gguf_head *head, const char *key, const char *value, size_t bytes);
void train_gguf_u32(train_gguf_head *head, const char *key, int64_t value);
void train_gguf_f32(train_gguf_head *head, const char *key, double value);
void train_gguf_bool(train_gguf_head *head, const char *key, int value);
/* Begins a list of `count` values, which follow; types of GGUF: 5 i32, 6 f32, 8 text. */
void train_gguf_list(train_gguf_head *head, const char *key, uint32_t type, uint64_t count);
void train_gguf_put(train_gguf_head *head, const void *bytes, size_t count);
void train_gguf_put_text(train_gguf_head *head, const char *text, size_t bytes);

/* The tokenizer of the folder, for `vocab` ids. */
ravel_status train_gguf_tokenizer(train_gguf_head *head, const char *model, int64_t vocab, const char *pre,
                                  ravel_error *err);

#endif
