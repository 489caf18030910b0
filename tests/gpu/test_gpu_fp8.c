/* fp8 blocks on the GPU: the bits that the host makes. */
#include "base/rng.h"
#include "tests/unit/check.h"

#include <ravel/slab.h>

#include <math.h>
#include <stdlib.h>

enum { MOST = 700, SECONDS = 60 };

typedef struct side {
    ravel_device *device;
    ravel_stream *stream;
    void *data, *weight, *scales;
} side;

static bool open_side(side *s, const char *name) {
    ravel_error err = RAVEL_ERROR_INIT;
    memset(s, 0, sizeof *s);
    return EXPECT(ravel_device_open(name, &s->device, &err) == RAVEL_OK) &&
           EXPECT(ravel_stream_create(s->device, &s->stream, &err) == RAVEL_OK) &&
           EXPECT(ravel_device_alloc(s->device, RAVEL_DEVICE, MOST * MOST * 4, s->stream, &s->data, &err) ==
                  RAVEL_OK) &&
           EXPECT(ravel_device_alloc(s->device, RAVEL_DEVICE, MOST * MOST, s->stream, &s->weight, &err) == RAVEL_OK) &&
           EXPECT(ravel_device_alloc(s->device, RAVEL_DEVICE, 256 * 4, s->stream, &s->scales, &err) == RAVEL_OK);
}

static void close_side(side *s) {
    ravel_device_release(s->device, s->data, s->stream);
    ravel_device_release(s->device, s->weight, s->stream);
    ravel_device_release(s->device, s->scales, s->stream);
    ravel_stream_free(s->stream);
    ravel_device_free(s->device);
}

/* Packs there and brings codes and scales back. */
static bool pack_there(side *s, const void *data, ravel_fp8_matrix m, uint8_t *weight, float *scales) {
    ravel_error err = RAVEL_ERROR_INIT;
    size_t count = (size_t)ravel_fp8_scales(m.rows, m.cols) * sizeof *scales;
    m.data = s->data, m.weight = s->weight, m.scale_inv = s->scales;
    return EXPECT(ravel_device_copy(s->device, s->data, data, MOST * MOST * 4, s->stream, &err) == RAVEL_OK) &&
           EXPECT(ravel_fp8_pack(&m, s->stream, &err) == RAVEL_OK) &&
           EXPECT(ravel_device_copy(s->device, weight, s->weight, (size_t)(m.rows * m.cols), s->stream, &err) ==
                  RAVEL_OK) &&
           EXPECT(ravel_device_copy(s->device, scales, s->scales, count, s->stream, &err) == RAVEL_OK) &&
           EXPECT(ravel_stream_wait(s->stream, SECONDS, &err) == RAVEL_OK);
}

TEST(gpu_cast_fp8_blocks_as_on_the_host) {
    ravel__rng r = ravel__rng_seed(check_seed());
    float *data = malloc(MOST * MOST * 4), scales[2][256];
    uint8_t *codes[2] = {malloc(MOST * MOST), malloc(MOST * MOST)};
    side there, here;
    if (!open_side(&there, "cuda:0") || !open_side(&here, "host")) return;
    for (int64_t i = 0; i < MOST * MOST; i++)
        data[i] = (float)ldexp((double)ravel__rng_below(&r, 20001) - 10000, -(int)ravel__rng_below(&r, 140));
    for (int64_t round = 0; round < check_scale(20, 300); round++) {
        ravel_fp8_matrix m = {.dtype = round % 2 ? RAVEL_F32 : RAVEL_BF16};
        m.rows = 1 + (int64_t)ravel__rng_below(&r, MOST);
        m.cols = 1 + (int64_t)ravel__rng_below(&r, MOST);
        m.stride = round % 3 ? 0 : MOST;
        if (!pack_there(&there, data, m, codes[0], scales[0]) || !pack_there(&here, data, m, codes[1], scales[1]))
            break;
        EXPECT(memcmp(codes[0], codes[1], (size_t)(m.rows * m.cols)) == 0);
        EXPECT(memcmp(scales[0], scales[1], (size_t)ravel_fp8_scales(m.rows, m.cols) * 4) == 0);
    }
    close_side(&there);
    close_side(&here);
    free(data), free(codes[0]), free(codes[1]);
}
