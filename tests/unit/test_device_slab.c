/* Slabs on the host driver and on the stub: bytes, padding, hashes, and back. */
#include "base/rng.h"
#include "base/xxh3.h"
#include "device/handle.h"
#include "tests/unit/check.h"
#include "tests/unit/stub_driver.h"

#include <ravel/slab.h>

#include <stdlib.h>

enum { TENSORS = 40, MOST = 3000 };

typedef struct case_ {
    ravel_slab_tensor tensors[TENSORS], targets[TENSORS];
    float *data[TENSORS], *back[TENSORS];
    int64_t count;
} case_;

static void make_case(case_ *c, ravel__rng *r) {
    static const int32_t packed[] = {RAVEL_BF16, RAVEL_F16, RAVEL_F32, RAVEL_BF16};
    c->count = 1 + (int64_t)ravel__rng_below(r, TENSORS);
    for (int64_t i = 0; i < c->count; i++) {
        int64_t n = 1 + (int64_t)ravel__rng_below(r, ravel__rng_below(r, 3) ? 200 : MOST);
        c->data[i] = malloc((size_t)n * sizeof(float));
        c->back[i] = calloc((size_t)n, sizeof(float));
        for (int64_t k = 0; k < n; k++) c->data[i][k] = (float)ravel__rng_below(r, 2001) / 64 - 15;
        c->tensors[i] = (ravel_slab_tensor){c->data[i], n, RAVEL_F32, packed[ravel__rng_below(r, 4)], 0};
        c->targets[i] = c->tensors[i];
        c->targets[i].data = c->back[i];
    }
}

static void free_case(case_ *c) {
    for (int64_t i = 0; i < c->count; i++) {
        free(c->data[i]);
        free(c->back[i]);
    }
}

/* Every tensor's packed bytes are the host's conversion, padding is zero, and hashes are those of the bytes. */
static bool packed_right(const case_ *c, const ravel_slab *slab, const unsigned char *packed, const uint64_t *hashes,
                         int64_t block) {
    int64_t end = 0, bytes = ravel_slab_bytes(slab);
    bool good = true;
    for (int64_t i = 0; good && i < c->count; i++) {
        unsigned char want[MOST * 4];
        const ravel_slab_tensor *t = &c->tensors[i];
        int64_t at = ravel_slab_offset(slab, i), size = t->count * ravel_dtype_bytes(t->packed);
        good = EXPECT(at % 256 == 0 && at >= end);
        for (; good && end < at; end++) good = EXPECT(packed[end] == 0);
        good = good && EXPECT(ravel_dtype_convert(t->dtype, t->data, t->packed, want, t->count, NULL) == RAVEL_OK) &&
               EXPECT(memcmp(want, packed + at, (size_t)size) == 0);
        end = at + size;
    }
    for (int64_t at = 0, i = 0; good && at < bytes; at += block, i++)
        good = EXPECT(hashes[i] == ravel__xxh3_of(packed + at, (size_t)(bytes - at < block ? bytes - at : block)));
    return good;
}

static void run_cases(ravel_device *device, int64_t rounds) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__rng r = ravel__rng_seed(check_seed());
    ravel_stream *stream = NULL;
    CHECK_OK(ravel_stream_create(device, &stream, &err), &err);
    for (int64_t round = 0; round < rounds; round++) {
        case_ c;
        ravel_slab *slab = NULL, *target = NULL;
        void *packed = NULL, *hashes = NULL, *again = NULL;
        int64_t block = 1024 << ravel__rng_below(&r, 5);
        make_case(&c, &r);
        CHECK_OK(ravel_slab_create(device, c.tensors, c.count, block, &slab, &err), &err);
        CHECK_OK(ravel_slab_create(device, c.targets, c.count, block, &target, &err), &err);
        size_t words = (size_t)ravel_slab_blocks(slab) * 8, bytes = (size_t)ravel_slab_bytes(slab);
        CHECK_OK(ravel_device_alloc(device, RAVEL_DEVICE, bytes, stream, &packed, &err), &err);
        CHECK_OK(ravel_device_alloc(device, RAVEL_PINNED, words, stream, &hashes, &err), &err);
        CHECK_OK(ravel_device_alloc(device, RAVEL_PINNED, words, stream, &again, &err), &err);
        CHECK_OK(ravel_slab_pack(slab, packed, hashes, stream, &err), &err);
        CHECK_OK(ravel_slab_unpack(target, packed, again, stream, &err), &err);
        CHECK_OK(ravel_stream_wait(stream, 10, &err), &err);
        CHECK(packed_right(&c, slab, packed, hashes, block));
        CHECK(memcmp(hashes, again, words) == 0);
        for (int64_t i = 0; i < c.count; i++)
            for (int64_t k = 0; k < c.tensors[i].count; k++) /* half of bf16's last place at 16 */
                CHECK(c.back[i][k] - c.data[i][k] <= 0.0625f && c.data[i][k] - c.back[i][k] <= 0.0625f);
        memset(hashes, 0, words);
        CHECK_OK(ravel_slab_hash(packed, (int64_t)bytes, block, hashes, stream, &err), &err);
        CHECK_OK(ravel_stream_wait(stream, 10, &err), &err);
        CHECK(memcmp(hashes, again, words) == 0);
        ravel_device_release(device, packed, stream);
        ravel_device_release(device, hashes, stream);
        ravel_device_release(device, again, stream);
        ravel_slab_free(slab);
        ravel_slab_free(target);
        free_case(&c);
    }
    ravel_stream_free(stream);
}

TEST(device_slab_packs_casts_and_hashes) {
    ravel_device *device = NULL;
    CHECK(ravel_device_open("host", &device, NULL) == RAVEL_OK);
    run_cases(device, check_scale(30, 500));
    ravel_device_free(device);
    stub_reset();
    CHECK(ravel__device_make(&stub_driver, 0, &device, NULL) == RAVEL_OK);
    run_cases(device, check_scale(30, 500));
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
}

TEST(device_slab_refuses_with_a_sentence) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = NULL;
    ravel_slab *slab = NULL;
    ravel_stream *stream = NULL;
    float data[4] = {1, 2, 3, 4000};
    unsigned char packed[256 + 16], *at = packed + (16 - (uintptr_t)packed % 16) % 16;
    CHECK(ravel_device_open("host", &device, NULL) == RAVEL_OK);
    CHECK(ravel_stream_create(device, &stream, NULL) == RAVEL_OK);
    ravel_slab_tensor t = {data, 4, RAVEL_BF16, RAVEL_F32, 0};
    CHECK_EQ(ravel_slab_create(device, &t, 1, 1024, &slab, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "bf16 cannot be packed as f32");
    t = (ravel_slab_tensor){(char *)data + 1, 4, RAVEL_F32, RAVEL_F32, 0};
    ravel_error_clear(&err);
    CHECK_EQ(ravel_slab_create(device, &t, 1, 1024, &slab, &err), RAVEL_E_ARGUMENT);
    t = (ravel_slab_tensor){data, 4, RAVEL_F32, RAVEL_F8_E4M3, -1};
    CHECK_EQ(ravel_slab_create(device, &t, 1, 1024, &slab, NULL), RAVEL_E_ARGUMENT);
    t.scale = 0.1;
    CHECK_EQ(ravel_slab_create(device, &t, 1, 1000, &slab, NULL), RAVEL_E_ARGUMENT);
    CHECK_EQ(ravel_slab_create(device, &t, 0, 1024, &slab, NULL), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
    CHECK_OK(ravel_slab_create(device, &t, 1, 1024, &slab, &err), &err);
    CHECK_OK(ravel_slab_pack(slab, at, NULL, stream, &err), &err);
    const unsigned char want[5] = {0x1d, 0x25, 0x2a, 0x7c, 0}; /* 0.1, 0.2, 0.3, 400 rounded to e4m3 */
    CHECK(memcmp(at, want, sizeof want) == 0);
    CHECK_EQ(ravel_slab_unpack(slab, at, NULL, stream, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "f8-e4m3");
    CHECK_EQ(ravel_slab_pack(slab, at + 1, NULL, stream, NULL), RAVEL_E_ARGUMENT);
    ravel_slab_free(slab);
    ravel_stream_free(stream);
    ravel_device_free(device);
}
