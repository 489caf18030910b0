/* ravel/slab.h: tensors in one packed buffer, cast and checked on the way.
 *
 * Nouns
 *   slab     where each of a list of tensors lies in one packed buffer: one after the other, each aligned to 256 bytes.
 *   block    `block` bytes of the packed buffer; each has a hash, XXH3-64 of its packed bytes: the same value on the host
 *            and on a device, and whether packing or unpacking made it.
 *
 * A trainer packs its f32 master weights as bf16 into memory that it shares (ravel_shared_create); a generator maps
 * that memory and unpacks it into its own parameters. Each is one pass over memory, in which bytes are read, cast,
 * written and hashed; equal hashes on both sides prove that the generator has read what the trainer has written.
 *
 *     ravel_slab_tensor tensors[] = {{.data = weight, .count = n, .dtype = RAVEL_F32, .packed = RAVEL_BF16}};
 *     ravel_slab_create(device, tensors, count, 256 << 10, &slab, &err);
 *     ... packed = memory of ravel_slab_bytes(slab), hashes = pinned memory of ravel_slab_blocks(slab) words ...
 *     ravel_slab_pack(slab, packed, hashes, stream, &err);         returns at once; hashes are there when the stream is
 *
 * Threads: a slab is not changed by packing; any number of streams may use it. */
#ifndef RAVEL_SLAB_H
#define RAVEL_SLAB_H

#include <ravel/device.h>
#include <ravel/dtype.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ravel_slab ravel_slab;

typedef struct ravel_slab_tensor {
    void *data;     /* memory of the device; pack reads it, unpack writes it */
    int64_t count;  /* elements, at least 1 */
    int32_t dtype;  /* of the tensor */
    int32_t packed; /* in the buffer: the same, or bf16, f16 or f8-e4m3 of an f32 tensor */
    double scale;   /* f8-e4m3: what values are multiplied by before they are rounded, above 0; 0 means 1 */
} ravel_slab_tensor;

/* `block` is a multiple of 1024; 256 KiB is a good size. The list is copied. E_UNSUPPORTED names a tensor whose dtypes
 * cannot be cast. */
RAVEL_API ravel_status ravel_slab_create(ravel_device *device, const ravel_slab_tensor *tensors, int64_t count,
                                         int64_t block, ravel_slab **slab, ravel_error *err);
RAVEL_API void ravel_slab_free(ravel_slab *slab);
/* Bytes of the packed buffer, a multiple of 256; its blocks; where tensor i begins in it. */
RAVEL_API int64_t ravel_slab_bytes(const ravel_slab *slab);
RAVEL_API int64_t ravel_slab_blocks(const ravel_slab *slab);
RAVEL_API int64_t ravel_slab_offset(const ravel_slab *slab, int64_t tensor);

/* Tensors to `packed` (aligned to 16) and back, in `stream`. hashes[blocks] is memory that the device can write, device
 * or pinned; NULL: none are wanted. What is between tensors is packed as zeros. f8-e4m3 cannot be unpacked into f32. */
RAVEL_API ravel_status ravel_slab_pack(const ravel_slab *slab, void *packed, uint64_t *hashes, ravel_stream *stream,
                                       ravel_error *err);
RAVEL_API ravel_status ravel_slab_unpack(const ravel_slab *slab, const void *packed, uint64_t *hashes,
                                         ravel_stream *stream, ravel_error *err);
/* The hashes alone, of any bytes that are aligned to 16. */
RAVEL_API ravel_status ravel_slab_hash(const void *data, int64_t bytes, int64_t block, uint64_t *hashes,
                                       ravel_stream *stream, ravel_error *err);

/* ---- fp8 with a scale per block -------------------------------------------------------------------------- */

/* Rows and columns of a block. */
#define RAVEL_FP8_BLOCK 128

/* A matrix as fp8 checkpoints have it, and engines load it: NAME.weight of f8-e4m3, and NAME.weight_scale_inv, an f32
 * per block. A value is weight * scale_inv; scale_inv is the block's largest absolute value / 448, so nothing is too
 * large. A block whose scale would be below the smallest normal f32 becomes zeros with scale 1. Values must be finite.
 * Blocks at the lower and right edge may be smaller. */
typedef struct ravel_fp8_matrix {
    const void *data;   /* [rows, cols], rows `stride` elements apart; memory of the device, as weight and scale_inv */
    int32_t dtype;      /* RAVEL_F32 or RAVEL_BF16 */
    int32_t reserved;   /* 0 */
    int64_t rows, cols; /* at least 1 */
    int64_t stride;     /* 0: cols */
    void *weight;       /* [rows, cols] f8-e4m3, without gaps */
    float *scale_inv;   /* [ravel_fp8_scales(rows, cols)], row-major over blocks */
} ravel_fp8_matrix;

/* Blocks of a matrix: ceil(rows / 128) * ceil(cols / 128). */
RAVEL_API int64_t ravel_fp8_scales(int64_t rows, int64_t cols);
/* data to weight and scale_inv, in `stream`; one pass over memory, the same bits on the host and on a GPU. To send
 * them, list both as tensors of a refit source: the rules for vllm and sglang fuse scales like their weights. */
RAVEL_API ravel_status ravel_fp8_pack(const ravel_fp8_matrix *matrix, ravel_stream *stream, ravel_error *err);
/* Whether fp8 checkpoints keep the tensor of that Hugging Face name in fp8: matrices of projections (q_proj, down_proj,
 * those of experts). Embeddings, norms, the head and routers stay as they are. */
RAVEL_API int ravel_fp8_takes(const char *name, int32_t ndim);

#ifdef __cplusplus
}
#endif
#endif
