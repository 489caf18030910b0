/* ravel/safetensors.h (experimental): named tensors in a file, the format of Hugging Face checkpoints.
 *
 *     8 bytes          n bytes                              the rest
 *     n, little-endian {"name": {"dtype", "shape",          tensors back to back, without holes
 *                       "data_offsets"}, "__metadata__"}
 *
 * Nouns
 *   file     an open reader: one file, or all shards of a checkpoint as if they were one. The bytes are mapped, not
 *            read, so opening takes the same time for any size. It owns everything it returns until it is freed.
 *   tensor   a name, a dtype, dims and a view of the bytes.
 *
 * Reading
 *
 *     ravel_safetensors *file = NULL;
 *     if (ravel_safetensors_open("model.safetensors", NULL, &file, &err)) ...
 *     const ravel_safetensor *t = NULL;
 *     const int64_t dims[] = {vocab, hidden};
 *     if (ravel_safetensors_get(file, "model.embed_tokens.weight", 2, dims, &t, &err)) ...
 *     ravel_safetensor_read(t, 0, t->count, RAVEL_F32, weights, &err);        whatever the file's dtype is
 *     ravel_safetensors_free(file);
 *
 * Files are untrusted: the whole header is checked before anything is returned (lengths, types, overflow, holes,
 * overlaps, repeated names), and the error names the actual format (a Git LFS pointer, a zip, ...). If another process
 * truncates the file while it is mapped, reading raises SIGBUS: writers must replace files, as the writer here does,
 * and not rewrite them in place.
 *
 * Threads: a file may be read by many threads at once.
 */
#ifndef RAVEL_SAFETENSORS_H
#define RAVEL_SAFETENSORS_H

#include <ravel/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A header of more bytes than this is refused, as the reference implementation does. */
#define RAVEL_SAFETENSORS_HEADER_MOST 100000000

typedef struct ravel_safetensor {
    const char *name;    /* UTF-8, NUL-terminated */
    int32_t dtype;       /* ravel_dtype */
    int32_t rank;        /* number of dims; 0: a scalar, of one element */
    const int64_t *dims; /* [rank], row-major: the last one is contiguous; a dim may be 0 */
    int64_t count;       /* elements: the product of dims */
    int64_t bytes;       /* count * bytes of the dtype */
    const void *data;    /* [bytes], in the map */
    int32_t aligned;     /* data may be read as an array of the dtype. The format does not guarantee it; where this is 0
                            use ravel_safetensor_read or memcpy */
    int32_t shard;       /* which file of a set it came from, 0 for a single file */
} ravel_safetensor;

/* ---- reading -------------------------------------------------------------------------------------------- */

typedef struct ravel_safetensors ravel_safetensors;

/* Opens a file; or a "*.index.json" (every shard that it names, each once); or a folder that holds
 * "model.safetensors.index.json" or, failing that, one or more "*.safetensors". E_IO if the system refused, E_DATA
 * where the content is wrong; the sentence begins with the file's name. */
RAVEL_API ravel_status ravel_safetensors_open(const char *path, const ravel_allocator *allocator,
                                              ravel_safetensors **file, ravel_error *err);
RAVEL_API void ravel_safetensors_free(ravel_safetensors *file);

/* Tensors in the order of their bytes (shard by shard). NULL when there is no such one. */
RAVEL_API int64_t ravel_safetensors_count(const ravel_safetensors *file);
RAVEL_API const ravel_safetensor *ravel_safetensors_at(const ravel_safetensors *file, int64_t index);
/* By name, in logarithmic time; NULL when there is none. */
RAVEL_API const ravel_safetensor *ravel_safetensors_find(const ravel_safetensors *file, const char *name);

/* By name, and it must have these dims (rank -1: any, dims may be NULL). E_DATA says what is missing, with the
 * nearest name that there is, or how the shape differs. */
RAVEL_API ravel_status ravel_safetensors_get(const ravel_safetensors *file, const char *name, int32_t rank,
                                             const int64_t *dims, const ravel_safetensor **tensor, ravel_error *err);

/* Elements first .. first+count-1 converted to `dtype` (see ravel_dtype_convert) into `out`. */
RAVEL_API ravel_status ravel_safetensor_read(const ravel_safetensor *tensor, int64_t first, int64_t count,
                                             int32_t dtype, void *out, ravel_error *err);

/* "__metadata__": text to text, in the order of the file; for a set, the first shard's. */
RAVEL_API int64_t ravel_safetensors_metadata_count(const ravel_safetensors *file);
RAVEL_API const char *ravel_safetensors_metadata_key(const ravel_safetensors *file, int64_t index);
RAVEL_API const char *ravel_safetensors_metadata_value(const ravel_safetensors *file, int64_t index);
/* The value of a key; NULL when there is none. */
RAVEL_API const char *ravel_safetensors_metadata(const ravel_safetensors *file, const char *key);

/* ---- writing -------------------------------------------------------------------------------------------- */

typedef enum ravel_durability {
    RAVEL_DURABLE, /* a temporary file beside it, fsync, rename, fsync of the folder: after a crash or a power cut
                      the path holds the old file or the new one, whole */
    RAVEL_ATOMIC,  /* temporary file and rename, no fsync: other processes see the old or the new one, whole */
    RAVEL_IN_PLACE /* straight into the path */
} ravel_durability;

typedef struct ravel_safetensors_options {
    size_t size;                      /* sizeof(ravel_safetensors_options) */
    int32_t durability;               /* ravel_durability */
    int32_t reserved;                 /* 0 */
    const ravel_allocator *allocator; /* NULL: malloc; it must outlive the writer */
} ravel_safetensors_options;

RAVEL_API void ravel_safetensors_options_default(ravel_safetensors_options *options);

/* All of it at once: `tensors` need name, dtype, rank, dims and data; `metadata` is key, value, key, value, ... */
RAVEL_API ravel_status ravel_safetensors_write(const char *path, const ravel_safetensor *tensors, int64_t count,
                                               const char *const *metadata, int64_t metadata_count,
                                               const ravel_safetensors_options *options, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
