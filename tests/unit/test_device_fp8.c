/* fp8 with a scale per block: scales and codes against their definition, on the host's device and on the stub. */
#include "base/rng.h"
#include "device/handle.h"
#include "tests/unit/check.h"
#include "tests/unit/stub_driver.h"

#include <ravel/slab.h>

#include <math.h>
#include <stdlib.h>

enum { MOST = 400 * 400, WAIT = 60 };

typedef struct case_ {
    ravel_fp8_matrix m;
    double *values; /* [rows, cols] */
    float *data;    /* of either dtype */
    uint8_t *weight;
    float *scales;
} case_;

static bool make_case(case_ *c, ravel__rng *r) {
    int64_t rows = 1 + (int64_t)ravel__rng_below(r, 300), cols = 1 + (int64_t)ravel__rng_below(r, 300);
    int32_t dtype = ravel__rng_below(r, 2) ? RAVEL_F32 : RAVEL_BF16;
    int64_t stride = cols + (int64_t)ravel__rng_below(r, 2) * (int64_t)ravel__rng_below(r, 50);
    c->values = calloc(MOST, sizeof *c->values);
    c->data = calloc(MOST, sizeof *c->data);
    c->weight = malloc(MOST);
    c->scales = malloc(16 * sizeof *c->scales);
    if (!c->values || !c->data || !c->weight || !c->scales) return false;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++) {
            int zero = i / RAVEL_FP8_BLOCK == 1 && j < RAVEL_FP8_BLOCK; /* a block of zeros */
            double x = zero ? 0 : ldexp((double)ravel__rng_below(r, 20001) - 10000, -(int)ravel__rng_below(r, 24));
            char *at = (char *)c->data + (i * stride + j) * ravel_dtype_bytes(dtype);
            (void)ravel_dtype_store(dtype, at, x);
            (void)ravel_dtype_load(dtype, at, &c->values[i * cols + j]);
        }
    c->m = (ravel_fp8_matrix){c->data, dtype, 0, rows, cols, stride == cols ? 0 : stride, c->weight, c->scales};
    return true;
}

static void free_case(case_ *c) {
    free(c->values), free(c->data), free(c->weight), free(c->scales);
}

static double value_of(uint8_t code) {
    double value = 0;
    (void)ravel_dtype_load(RAVEL_F8_E4M3, &code, &value);
    return value;
}

/* No other code of the same sign is nearer to x; of two as near, the even one. */
static bool nearest(uint8_t code, double x) {
    double off = fabs(value_of(code) - x);
    if (signbit(x) != (code >> 7) || isnan(value_of(code))) return false;
    for (int step = -1; step <= 1; step += 2) {
        int other = (code & 0x7f) + step;
        if (other < 0 || other > 0x7e) continue; /* 0x7f is NaN */
        double distance = fabs(value_of((uint8_t)(other | (code & 0x80))) - x);
        if (distance < off || (distance == off && code % 2 == 1)) return false;
    }
    return true;
}

static void check_block(const case_ *c, int64_t row, int64_t col) {
    const ravel_fp8_matrix *m = &c->m;
    int64_t across = (m->cols + RAVEL_FP8_BLOCK - 1) / RAVEL_FP8_BLOCK;
    float most = 0, scale = m->scale_inv[row / RAVEL_FP8_BLOCK * across + col / RAVEL_FP8_BLOCK];
    for (int64_t i = row; i < row + RAVEL_FP8_BLOCK && i < m->rows; i++)
        for (int64_t j = col; j < col + RAVEL_FP8_BLOCK && j < m->cols; j++)
            most = fmaxf(most, (float)fabs(c->values[i * m->cols + j]));
    EXPECT(scale == (most > 0 ? most / 448 : 1));
    for (int64_t i = row; i < row + RAVEL_FP8_BLOCK && i < m->rows; i++)
        for (int64_t j = col; j < col + RAVEL_FP8_BLOCK && j < m->cols; j++) {
            float scaled = (float)c->values[i * m->cols + j] / scale;
            if (nearest(c->weight[i * m->cols + j], (double)scaled)) continue;
            check_fail(__FILE__, __LINE__, "row %lld, column %lld: %g became %g", (long long)i, (long long)j,
                       (double)scaled, value_of(c->weight[i * m->cols + j]));
            return;
        }
}

static void run_cases(ravel_device *device, int64_t rounds) {
    ravel__rng r = ravel__rng_seed(check_seed());
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_stream *stream = NULL;
    CHECK_OK(ravel_stream_create(device, &stream, &err), &err);
    for (int64_t round = 0; round < rounds; round++) {
        case_ c;
        if (!EXPECT(make_case(&c, &r))) break;
        EXPECT(ravel_fp8_pack(&c.m, stream, &err) == RAVEL_OK);
        EXPECT(ravel_stream_wait(stream, WAIT, &err) == RAVEL_OK);
        for (int64_t i = 0; i < c.m.rows; i += RAVEL_FP8_BLOCK)
            for (int64_t j = 0; j < c.m.cols; j += RAVEL_FP8_BLOCK) check_block(&c, i, j);
        free_case(&c);
    }
    ravel_stream_free(stream);
}

TEST(device_fp8_blocks) {
    ravel_device *device = NULL;
    CHECK(ravel_device_open("host", &device, NULL) == RAVEL_OK);
    run_cases(device, check_scale(12, 300));
    ravel_device_free(device);
    stub_reset();
    CHECK(ravel__device_make(&stub_driver, 0, &device, NULL) == RAVEL_OK);
    run_cases(device, check_scale(6, 100));
    ravel_device_free(device);
    CHECK_EQ(stub.live, 0);
}

/* Worked out by hand: the largest value becomes 448, a block too small for a scale becomes zeros. */
TEST(device_fp8_golden) {
    static const float rows[2][4] = {{896, -448, 3, 0}, {1e-38f, -1e-39f, 0, 1e-40f}};
    static const uint8_t codes[2][4] = {{0x7e, 0xf6, 0x3c, 0}, {0, 0x80, 0, 0}};
    static const float scales[2] = {2, 1};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_device *device = NULL;
    ravel_stream *stream = NULL;
    CHECK_OK(ravel_device_open("host", &device, &err), &err);
    CHECK_OK(ravel_stream_create(device, &stream, &err), &err);
    for (int i = 0; i < 2; i++) {
        uint8_t weight[4];
        float scale;
        ravel_fp8_matrix m = {rows[i], RAVEL_F32, 0, 1, 4, 0, weight, &scale};
        CHECK_OK(ravel_fp8_pack(&m, stream, &err), &err);
        CHECK(scale == scales[i]);
        CHECK_EQ(memcmp(weight, codes[i], 4), 0);
        m.dtype = RAVEL_F16;
        CHECK_EQ(ravel_fp8_pack(&m, stream, &err), RAVEL_E_UNSUPPORTED);
        CHECK_HAS(err.message, "f16 cannot be packed as fp8");
        ravel_error_clear(&err);
        m.dtype = RAVEL_F32;
        m.stride = 3;
        CHECK_EQ(ravel_fp8_pack(&m, stream, &err), RAVEL_E_ARGUMENT);
        ravel_error_clear(&err);
    }
    CHECK_EQ(ravel_fp8_scales(129, 128), 2);
    ravel_stream_free(stream);
    ravel_device_free(device);
}

TEST(device_fp8_names) {
    static const char *const taken[] = {"model.layers.0.self_attn.q_proj.weight", "model.layers.3.mlp.down_proj.weight",
                                        "model.layers.9.mlp.experts.17.gate_proj.weight",
                                        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"};
    static const char *const left[] = {"model.embed_tokens.weight",
                                       "lm_head.weight",
                                       "model.norm.weight",
                                       "model.layers.0.mlp.gate.weight",
                                       "model.layers.0.self_attn.q_proj.bias",
                                       "model.layers.0.self_attn.q_norm.weight",
                                       ".weight",
                                       "weight"};
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) CHECK(ravel_fp8_takes(taken[i], 2));
    for (size_t i = 0; i < sizeof left / sizeof *left; i++) CHECK(!ravel_fp8_takes(left[i], 2));
    CHECK(!ravel_fp8_takes(taken[0], 1));
}
