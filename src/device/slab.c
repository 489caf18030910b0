/* Slabs: the layout is worked out once, on the host, and kept where the device can read it. */
#include "device/slab.h"

#include "base/assert.h"
#include "base/memory.h"

#include <stdbool.h>
#include <string.h>

enum { ALIGN = 256, UPLOAD_SECONDS = 60 };

struct ravel_slab {
    ravel_device *device;
    int64_t count, bytes, block, blocks;
    ravel__cast_piece *pieces; /* [count], on the host */
    void *there;               /* pieces and first, on the device */
    int32_t *first;            /* [blocks], on the device */
    int no_unpack;             /* a tensor that cannot be unpacked, plus 1 */
};

static const struct cast {
    int32_t dtype, packed, kind;
} casts[] = {{RAVEL_F32, RAVEL_BF16, RAVEL__CAST_F32_BF16},
             {RAVEL_F32, RAVEL_F16, RAVEL__CAST_F32_F16},
             {RAVEL_F32, RAVEL_F8_E4M3, RAVEL__CAST_F32_F8_E4M3}};

int32_t ravel__slab_cast(int32_t dtype, int32_t packed) {
    if (dtype == packed) return RAVEL__CAST_COPY;
    for (size_t i = 0; i < sizeof casts / sizeof *casts; i++)
        if (casts[i].dtype == dtype && casts[i].packed == packed) return casts[i].kind;
    return -1;
}

static ravel_status check_tensor(const ravel_slab_tensor *t, int64_t i, ravel_error *err) {
    int32_t each = ravel_dtype_bytes(t->dtype);
    if (!each || !ravel_dtype_bytes(t->packed))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "tensor %lld: dtype %d or %d is none of RAVEL_DTYPE_LIST",
                               (long long)i, t->dtype, t->packed);
    if (ravel__slab_cast(t->dtype, t->packed) < 0)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "tensor %lld: %s cannot be packed as %s; the same dtype can, and f32 as bf16, f16 or "
                               "f8-e4m3",
                               (long long)i, ravel_dtype_name(t->dtype), ravel_dtype_name(t->packed));
    if (!t->data || t->count < 1 || t->count > INT64_MAX / 16 || (uintptr_t)t->data % (uintptr_t)each)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "tensor %lld has %lld elements; it must have at least one, and data that is aligned to "
                               "its dtype",
                               (long long)i, (long long)t->count);
    if (!(t->scale >= 0 && t->scale < 3e38))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "tensor %lld: a scale of %g; it must be above 0", (long long)i,
                               t->scale);
    return RAVEL_OK;
}

static ravel_status lay_out(ravel_slab *s, const ravel_slab_tensor *tensors, ravel_error *err) {
    for (int64_t i = 0; i < s->count; i++) {
        const ravel_slab_tensor *t = &tensors[i];
        ravel_status status = check_tensor(t, i, err);
        if (status) return status;
        s->pieces[i] = (ravel__cast_piece){.at = s->bytes,
                                           .bytes = t->count * ravel_dtype_bytes(t->packed),
                                           .tensor = t->data,
                                           .scale = t->scale > 0 ? (float)t->scale : 1.0f,
                                           .kind = ravel__slab_cast(t->dtype, t->packed)};
        RAVEL_ASSERT(s->bytes % ALIGN == 0 && s->pieces[i].bytes > 0 && s->pieces[i].kind >= 0);
        if (s->pieces[i].kind == RAVEL__CAST_F32_F8_E4M3 && !s->no_unpack) s->no_unpack = (int)i + 1;
        if (__builtin_add_overflow(s->bytes, (s->pieces[i].bytes + ALIGN - 1) / ALIGN * ALIGN, &s->bytes))
            return ravel_error_set(err, RAVEL_E_OVERFLOW, "the tensors have more bytes than 64 bits can count");
    }
    s->blocks = (s->bytes + s->block - 1) / s->block;
    if (s->blocks > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "%lld blocks are over 2^31 - 1: use larger ones",
                               (long long)s->blocks);
    return RAVEL_OK;
}

/* Pieces lie one behind the other, each at a multiple of ALIGN, and end with the slab. */
static bool slab_ok(const ravel_slab *s) {
    int64_t end = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const ravel__cast_piece *p = &s->pieces[i];
        if (p->at != end || p->at % ALIGN || p->bytes < 1 || p->kind < 0 || p->kind >= RAVEL__CAST_KINDS) return false;
        end = p->at + (p->bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    return end == s->bytes && s->blocks == (s->bytes + s->block - 1) / s->block;
}

void ravel__slab_first(const ravel__cast_piece *pieces, int64_t count, const ravel__cast_span *spans, int64_t blocks,
                       int64_t block, int32_t *first) {
    int32_t piece = 0;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t at = spans ? spans[b].at : b * block;
        RAVEL_ASSERT(at >= 0 && (b == 0 || at >= (spans ? spans[b - 1].at : (b - 1) * block))); /* pieces only go on */
        while (piece < count && pieces[piece].at + pieces[piece].bytes <= at) piece++;
        first[b] = piece;
        RAVEL_ASSERT(piece <= count && (piece == 0 || pieces[piece - 1].at + pieces[piece - 1].bytes <= at));
    }
}

static ravel_status send_there(ravel_slab *s, ravel_error *err) {
    RAVEL_ASSERT(slab_ok(s) && !s->there);
    size_t pieces = (size_t)s->count * sizeof *s->pieces, first = (size_t)s->blocks * sizeof *s->first;
    int32_t *list = ravel__alloc(NULL, first);
    ravel_stream *stream = NULL;
    if (!list) return ravel__no_memory(err, first, "a slab");
    ravel__slab_first(s->pieces, s->count, NULL, s->blocks, s->block, list);
    ravel_status status = ravel_stream_create(s->device, &stream, err);
    if (!status) status = ravel_device_alloc(s->device, RAVEL_DEVICE, pieces + first, stream, &s->there, err);
    if (!status) s->first = (int32_t *)(void *)((char *)s->there + pieces);
    if (!status) status = ravel_device_copy(s->device, s->there, s->pieces, pieces, stream, err);
    if (!status) status = ravel_device_copy(s->device, s->first, list, first, stream, err);
    if (!status) status = ravel_stream_wait(stream, UPLOAD_SECONDS, err);
    ravel_stream_free(stream);
    ravel__release(NULL, list, first);
    return status;
}

ravel_status ravel_slab_create(ravel_device *device, const ravel_slab_tensor *tensors, int64_t count, int64_t block,
                               ravel_slab **slab, ravel_error *err) {
    if (count < 1 || count >= INT32_MAX)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a slab of %lld tensors", (long long)count);
    if (block < 1024 || block % 1024 || block > INT64_C(1) << 40)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "blocks of %lld bytes; it must be a multiple of 1024",
                               (long long)block);
    ravel_slab *s = ravel__calloc(NULL, 1, sizeof *s);
    if (!s) return ravel__no_memory(err, sizeof *s, "a slab");
    *s = (ravel_slab){.device = device, .count = count, .block = block};
    s->pieces = ravel__calloc(NULL, (size_t)count, sizeof *s->pieces);
    ravel_status status =
        s->pieces ? lay_out(s, tensors, err) : ravel__no_memory(err, (size_t)count * sizeof *s->pieces, "a slab");
    if (!status) status = send_there(s, err);
    if (status)
        ravel_slab_free(s);
    else
        *slab = s;
    return status;
}

void ravel_slab_free(ravel_slab *slab) {
    if (!slab) return;
    RAVEL_ASSERT(!slab->first ||
                 (char *)slab->first == (char *)slab->there + (size_t)slab->count * sizeof *slab->pieces);
    ravel_device_release(slab->device, slab->there, NULL);
    ravel__release(NULL, slab->pieces, (size_t)slab->count * sizeof *slab->pieces);
    ravel__release(NULL, slab, sizeof *slab);
}

int64_t ravel_slab_bytes(const ravel_slab *slab) {
    return slab->bytes;
}

int64_t ravel_slab_blocks(const ravel_slab *slab) {
    return slab->blocks;
}

int64_t ravel_slab_offset(const ravel_slab *slab, int64_t tensor) {
    RAVEL_ASSERT(tensor >= 0 && tensor < slab->count);
    RAVEL_ASSERT(slab->pieces[tensor].at % ALIGN == 0 && slab->pieces[tensor].at < slab->bytes);
    return slab->pieces[tensor].at;
}

/* ---- moving --------------------------------------------------------------------------------------------- */

static ravel_status move(const ravel_slab *s, void *packed, uint64_t *hashes, int unpack, ravel_stream *stream,
                         ravel_error *err) {
    const ravel__cast_job job = {.pieces = s->there,
                                 .first = s->first,
                                 .count = s->count,
                                 .blocks = s->blocks,
                                 .packed = packed,
                                 .bytes = s->bytes,
                                 .block = s->block,
                                 .unpack = unpack,
                                 .hashes = hashes};
    RAVEL_ASSERT(s->there && s->first && s->blocks > 0);
    if (stream->device != s->device || (uintptr_t)packed % 16)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "a slab's stream must be of its own device, and its buffer aligned to 16 bytes");
    return ravel__launch_cast(stream, &job, err);
}

ravel_status ravel_slab_pack(const ravel_slab *slab, void *packed, uint64_t *hashes, ravel_stream *stream,
                             ravel_error *err) {
    return move(slab, packed, hashes, 0, stream, err);
}

ravel_status ravel_slab_unpack(const ravel_slab *slab, const void *packed, uint64_t *hashes, ravel_stream *stream,
                               ravel_error *err) {
    if (slab->no_unpack)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "tensor %d is f32 and packed as f8-e4m3, which has lost it",
                               slab->no_unpack - 1);
    return move(slab, (void *)packed, hashes, 1, stream, err);
}

ravel_status ravel_slab_hash(const void *data, int64_t bytes, int64_t block, uint64_t *hashes, ravel_stream *stream,
                             ravel_error *err) {
    const ravel__hash_job job = {.data = data, .bytes = bytes, .block = block, .hashes = hashes};
    if (bytes < 0 || block < 1024 || block % 1024 || (uintptr_t)data % 16)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "hashing needs data aligned to 16 bytes and blocks of a multiple of 1024");
    return ravel__launch_hash(stream, &job, err);
}
