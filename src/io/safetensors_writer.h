/* Writing a file of tensors piece by piece (ravel_safetensors_write writes tensors that are in memory). */
#ifndef RAVEL_IO_SAFETENSORS_WRITER_H
#define RAVEL_IO_SAFETENSORS_WRITER_H

#include <ravel/safetensors.h>

typedef struct ravel__safetensors_writer ravel__safetensors_writer;

/* The calling loop:
 *
 *     ravel__safetensors_writer *w = NULL;
 *     ravel__safetensors_writer_create("model.safetensors", NULL, &w, &err);
 *     ravel__safetensors_writer_metadata(w, "format", "pt", &err);
 *     ravel__safetensors_writer_declare(w, name, RAVEL_F32, 2, dims, &index, &err);   once per tensor
 *     for (int64_t row = 0; row < dims[0]; row++)                       tensors in any order, pieces of any size
 *         ravel__safetensors_writer_write(w, index, data + row * dims[1], dims[1] * 4, &err);
 *     ravel__safetensors_writer_finish(w, &err);
 *     ravel__safetensors_writer_free(w);          without a finish, it removes what was written
 *
 * The bytes of a tensor come in their order; memory is a few hundred bytes per tensor of any size. In the file, larger
 * dtypes come first (declaration order within a size), so that every tensor is aligned. */
ravel_status ravel__safetensors_writer_create(const char *path, const ravel_safetensors_options *options,
                                              ravel__safetensors_writer **writer, ravel_error *err);
/* Removes the temporary file where the writer was not finished. */
void ravel__safetensors_writer_free(ravel__safetensors_writer *writer);
/* Both only before the first write. A repeated name is an error (of metadata: the later value counts). */
ravel_status ravel__safetensors_writer_metadata(ravel__safetensors_writer *writer, const char *key, const char *value,
                                                ravel_error *err);
ravel_status ravel__safetensors_writer_declare(ravel__safetensors_writer *writer, const char *name, int32_t dtype,
                                               int32_t rank, const int64_t *dims, int64_t *index, ravel_error *err);
/* The next `bytes` of tensor `index`. */
ravel_status ravel__safetensors_writer_write(ravel__safetensors_writer *writer, int64_t index, const void *data,
                                             int64_t bytes, ravel_error *err);
/* Every byte of every tensor must have come. After this the path holds the file. */
ravel_status ravel__safetensors_writer_finish(ravel__safetensors_writer *writer, ravel_error *err);

#endif
