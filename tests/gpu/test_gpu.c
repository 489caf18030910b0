/* The device's test bodies on CUDA, and its kernels against the host's functions. `make test-gpu` on a machine with a GPU. */
#include "device/handle.h"
#include "base/xxh3.h"
#include "tests/unit/batch_device_body.h"
#include "tests/unit/check.h"
#include "tests/unit/device_body.h"

#include <ravel/dtype.h>

#include <math.h>
#include <stdlib.h>

enum { SECONDS = 60 };

typedef struct gpu {
    ravel_device *device;
    ravel_stream *stream;
    ravel_error err;
} gpu;

static bool gpu_open(gpu *g) {
    memset(g, 0, sizeof *g);
    bool good = EXPECT(ravel_device_open("cuda:0", &g->device, &g->err) == RAVEL_OK) &&
                EXPECT(ravel_stream_create(g->device, &g->stream, &g->err) == RAVEL_OK);
    if (!good) fprintf(stderr, "    %s\n", g->err.message);
    return good;
}

static void gpu_close(gpu *g) {
    if (g->err.status) fprintf(stderr, "    %s\n", g->err.message);
    EXPECT(g->err.status == 0);
    ravel_stream_free(g->stream);
    ravel_device_free(g->device);
}

static void *room(gpu *g, size_t bytes) {
    void *array = NULL;
    EXPECT(ravel_device_alloc(g->device, RAVEL_DEVICE, bytes, g->stream, &array, &g->err) == RAVEL_OK);
    return array;
}

static void *put(gpu *g, const void *data, size_t bytes) {
    void *array = room(g, bytes);
    EXPECT(ravel_device_copy(g->device, array, data, bytes, g->stream, &g->err) == RAVEL_OK);
    return array;
}

static void get(gpu *g, void *data, const void *array, size_t bytes) {
    EXPECT(ravel_device_copy(g->device, data, array, bytes, g->stream, &g->err) == RAVEL_OK);
    EXPECT(ravel_stream_wait(g->stream, SECONDS, &g->err) == RAVEL_OK);
}

/* Two processes first: a process that has begun CUDA cannot be forked. */
TEST(gpu_0_share_between_processes) {
    device_body_share("cuda:0");
}

TEST(gpu_1_moves_and_cache) {
    gpu g;
    CHECK(gpu_open(&g));
    device_body_moves(g.device);
    device_body_cache(g.device);
    gpu_close(&g);
}

TEST(gpu_compare_as_on_the_host) {
    gpu g;
    CHECK(gpu_open(&g));
    device_body_compare(g.device, check_scale(40, 2000));
    gpu_close(&g);
}

TEST(gpu_batch_thd) {
    gpu g;
    CHECK(gpu_open(&g));
    batch_device_body_thd(g.device, check_scale(60, 2000));
    gpu_close(&g);
}

TEST(gpu_batch_padded) {
    gpu g;
    CHECK(gpu_open(&g));
    batch_device_body_padded(g.device, check_scale(40, 1000));
    gpu_close(&g);
}

TEST(gpu_batch_trees) {
    gpu g;
    CHECK(gpu_open(&g));
    batch_device_body_tree(g.device, check_scale(40, 1000));
    gpu_close(&g);
}

TEST(gpu_batch_weights) {
    gpu g;
    CHECK(gpu_open(&g));
    batch_device_body_weights(g.device, check_scale(60, 1000));
    batch_device_body_refusals(g.device);
    gpu_close(&g);
}

/* ---- hashes --------------------------------------------------------------------------------------------- */

/* ---- casts ---------------------------------------------------------------------------------------------- */

static const int32_t packed_types[RAVEL__CAST_KINDS] = {RAVEL_U8, RAVEL_BF16, RAVEL_F16};

enum { PIECES = 60, CAST_MOST = 2 << 20 };

/* Random pieces with their packed bytes as the host makes them. */
typedef struct layout {
    ravel__cast_piece pieces[PIECES];
    float *tensors; /* on the host, [CAST_MOST] */
    float *there;   /* the same on the device */
    int64_t first[PIECES];
    int count;
    int64_t bytes;
    unsigned char *packed;
} layout;

static uint64_t next_random(uint64_t *seed) {
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *seed >> 33;
}

/* Any bits are a float: not-a-numbers, infinities and subnormals are among them. */
static void make_tensors(float *tensors, uint64_t *seed) {
    for (int64_t i = 0; i < CAST_MOST; i++) {
        uint32_t bits = (uint32_t)(next_random(seed) << 16 ^ next_random(seed));
        if (next_random(seed) % 4) bits = (bits & 0x807fffff) | (uint32_t)(100 + next_random(seed) % 40) << 23;
        memcpy(&tensors[i], &bits, sizeof bits);
    }
}

static void pack_piece(layout *l, int i) {
    ravel__cast_piece *p = &l->pieces[i];
    int32_t type = packed_types[p->kind];
    const float *from = l->tensors + l->first[i];
    int64_t count = p->bytes / ravel_dtype_bytes(type);
    if (p->kind == RAVEL__CAST_COPY) {
        memcpy(l->packed + p->at, from, (size_t)p->bytes);
    } else {
        EXPECT(ravel_dtype_convert(RAVEL_F32, from, type, l->packed + p->at, count, NULL) == RAVEL_OK);
    }
}

static void make_layout(layout *l, uint64_t *seed) {
    int64_t element = 0;
    l->bytes = 0;
    l->count = 1 + (int)(next_random(seed) % PIECES);
    for (int i = 0; i < l->count; i++) {
        int kind = (int)(next_random(seed) % RAVEL__CAST_KINDS), each = ravel_dtype_bytes(packed_types[kind]);
        int64_t elements =
            next_random(seed) % 3 ? (int64_t)(next_random(seed) % 300) : (int64_t)(next_random(seed) % 20000);
        element += next_random(seed) % 2 ? (4 - element % 4) % 4 : (int64_t)(next_random(seed) % 3);
        l->first[i] = element;
        l->pieces[i] = (ravel__cast_piece){.at = l->bytes,
                                           .bytes = (1 + elements) * (kind == RAVEL__CAST_COPY ? 4 : each),
                                           .tensor = l->there + element,
                                           .kind = kind};
        element += 1 + elements;
        int64_t align = next_random(seed) % 2 ? 16 : 256;
        l->bytes = (l->bytes + l->pieces[i].bytes + align - 1) / align * align;
    }
    memset(l->packed, 0, (size_t)l->bytes);
    for (int i = 0; i < l->count; i++) pack_piece(l, i);
}

static int32_t *make_first(const layout *l, int64_t block, int64_t blocks) {
    int32_t *first = malloc((size_t)blocks * sizeof *first);
    for (int64_t b = 0; b < blocks; b++) {
        int32_t i = 0;
        while (i < l->count && l->pieces[i].at + l->pieces[i].bytes <= b * block) i++;
        first[b] = i;
    }
    return first;
}

static void check_bytes(const void *a, const void *b, size_t bytes, const char *what) {
    for (size_t i = 0; i < bytes; i++)
        if (((const char *)a)[i] != ((const char *)b)[i]) {
            check_fail(__FILE__, __LINE__, "%s: byte %zu of %zu", what, i, bytes);
            return;
        }
}

static void check_values(const uint64_t *hashes, const unsigned char *packed, int64_t bytes, int64_t block) {
    for (int64_t at = 0, i = 0; at < bytes; at += block, i++)
        EXPECT(hashes[i] == ravel__xxh3_of(packed + at, (size_t)(bytes - at < block ? bytes - at : block)));
}

/* Packs on the device and compares bytes and hashes; unpacks them into another place and compares that. */
static void check_layout(gpu *g, const layout *l, int64_t block, int unpack) {
    int64_t blocks = (l->bytes + block - 1) / block;
    int32_t *first = make_first(l, block, blocks);
    uint64_t *values = malloc((size_t)blocks * 8);
    unsigned char *back = malloc((size_t)l->bytes);
    float *tensors = calloc(CAST_MOST, sizeof *tensors);
    ravel__cast_piece moved[PIECES];
    void *target = put(g, tensors, CAST_MOST * sizeof *tensors), *moved_there = NULL;
    ravel__cast_job job = {.pieces = put(g, l->pieces, (size_t)l->count * sizeof *l->pieces),
                           .first = put(g, first, (size_t)blocks * sizeof *first),
                           .count = l->count,
                           .blocks = blocks,
                           .packed = room(g, (size_t)l->bytes),
                           .bytes = l->bytes,
                           .block = block,
                           .hashes = room(g, (size_t)blocks * 8)};
    EXPECT(ravel_device_fill(g->device, job.packed, 0xcc, (size_t)l->bytes, g->stream, &g->err) == RAVEL_OK);
    EXPECT(ravel__launch_cast(g->stream, &job, &g->err) == RAVEL_OK);
    get(g, back, job.packed, (size_t)l->bytes);
    check_bytes(back, l->packed, (size_t)l->bytes, "packed");
    get(g, values, job.hashes, (size_t)blocks * 8);
    check_values(values, l->packed, l->bytes, block);
    if (unpack) {
        for (int i = 0; i < l->count; i++) {
            moved[i] = l->pieces[i];
            moved[i].tensor = (float *)target + l->first[i];
        }
        const ravel__cast_piece *own = job.pieces;
        job.pieces = moved_there = put(g, moved, (size_t)l->count * sizeof *moved);
        job.unpack = 1;
        EXPECT(ravel_device_fill(g->device, job.hashes, 0, (size_t)blocks * 8, g->stream, &g->err) == RAVEL_OK);
        EXPECT(ravel__launch_cast(g->stream, &job, &g->err) == RAVEL_OK);
        get(g, values, job.hashes, (size_t)blocks * 8);
        check_values(values, l->packed, l->bytes, block);
        float *result = malloc(CAST_MOST * sizeof *result);
        get(g, result, target, CAST_MOST * sizeof *result);
        for (int i = 0; i < l->count; i++) {
            const ravel__cast_piece *p = &l->pieces[i];
            int32_t type = packed_types[p->kind];
            int64_t count = p->bytes / ravel_dtype_bytes(type);
            if (p->kind == RAVEL__CAST_COPY)
                memcpy(tensors + l->first[i], l->packed + p->at, (size_t)p->bytes);
            else
                EXPECT(ravel_dtype_convert(type, l->packed + p->at, RAVEL_F32, tensors + l->first[i], count, NULL) ==
                       0);
        }
        /* every bit, but a NaN may be quieted by the conversion */
        for (int64_t i = 0; i < CAST_MOST; i++)
            if (memcmp(&result[i], &tensors[i], 4) != 0 && !(isnan(result[i]) && isnan(tensors[i]))) {
                check_fail(__FILE__, __LINE__, "unpacked: element %lld", (long long)i);
                break;
            }
        free(result);
        job.pieces = own;
    }
    ravel_device_release(g->device, moved_there, g->stream);
    ravel_device_release(g->device, (void *)(uintptr_t)job.pieces, g->stream);
    ravel_device_release(g->device, (void *)(uintptr_t)job.first, g->stream);
    ravel_device_release(g->device, job.packed, g->stream);
    ravel_device_release(g->device, job.hashes, g->stream);
    ravel_device_release(g->device, target, g->stream);
    free(first);
    free(values);
    free(back);
    free(tensors);
}

TEST(gpu_cast_as_on_the_host) {
    gpu g;
    uint64_t seed = check_seed();
    CHECK(gpu_open(&g));
    layout *l = calloc(1, sizeof *l);
    l->tensors = malloc(CAST_MOST * sizeof(float));
    l->packed = malloc(CAST_MOST * sizeof(float));
    make_tensors(l->tensors, &seed);
    l->there = put(&g, l->tensors, CAST_MOST * sizeof(float));
    for (int64_t i = 0; i < check_scale(30, 400); i++) {
        int unpack = (int)(i % 2);
        make_layout(l, &seed);
        check_layout(&g, l, (int64_t)1024 << next_random(&seed) % 9, unpack);
    }
    ravel_device_release(g.device, l->there, g.stream);
    free(l->tensors);
    free(l->packed);
    free(l);
    gpu_close(&g);
}

/* ---- failures, in a process of their own: CUDA is of no use in it afterwards ----------------------------- */

TEST(fatal_error_kills_the_handle_only) {
    gpu g;
    CHECK(gpu_open(&g));
    void *array = room(&g, 1 << 20);
    /* an address that is nobody's */
    const ravel__cast_piece piece = {.bytes = 4096, .tensor = (char *)array + ((size_t)1 << 44)};
    const int32_t first = 0;
    const ravel__cast_job bad = {.pieces = put(&g, &piece, sizeof piece),
                                 .first = put(&g, &first, sizeof first),
                                 .count = 1,
                                 .blocks = 1,
                                 .packed = array,
                                 .bytes = 4096,
                                 .block = 4096};
    ravel_status status = ravel__launch_cast(g.stream, &bad, &g.err);
    if (!status) status = ravel_stream_wait(g.stream, SECONDS, &g.err);
    CHECK_EQ(status, RAVEL_E_DEVICE);
    CHECK_HAS(g.err.message, "cudaErrorIllegalAddress");
    ravel_error_clear(&g.err);
    CHECK_EQ(ravel_device_fill(g.device, array, 0, 1, g.stream, &g.err), RAVEL_E_DEAD);
    CHECK_HAS(g.err.message, "cudaErrorIllegalAddress");
    ravel_error_clear(&g.err);
    gpu_close(&g); /* safe */
}
