/* Element types: names, and conversions against a plain reading of the formats. */
#include "tests/unit/check.h"

#include "base/dtype.h"
#include "base/rng.h"

#include <ravel/dtype.h>

#include <math.h>

TEST(dtype_names_and_sizes) {
    ravel_error err = RAVEL_ERROR_INIT;
    for (int32_t d = 0; d < RAVEL_DTYPE_COUNT; d++) {
        int32_t parsed = -1;
        CHECK_OK(ravel_dtype_parse(ravel_dtype_name(d), &parsed, &err), &err);
        CHECK_EQ(parsed, d);
        CHECK_OK(ravel_dtype_parse(ravel__dtype_tag(d), &parsed, &err), &err);
        CHECK_EQ(parsed, d);
        CHECK(ravel_dtype_bytes(d) > 0 && ravel_dtype_kind(d));
    }
    int32_t d = -1;
    CHECK_OK(ravel_dtype_parse("torch.bfloat16", &d, &err), &err);
    CHECK_EQ(d, RAVEL_BF16);
    CHECK_OK(ravel_dtype_parse("Float32", &d, &err), &err);
    CHECK_EQ(d, RAVEL_F32);
    CHECK_OK(ravel_dtype_parse("float8_e4m3fn", &d, &err), &err);
    CHECK_EQ(d, RAVEL_F8_E4M3);
    CHECK_EQ(ravel_dtype_parse("float31", &d, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "\"float31\" is not a dtype; there are u8, i8,");
    CHECK_EQ(d, RAVEL_F8_E4M3);
    CHECK(!ravel_dtype_name(RAVEL_DTYPE_COUNT) && !ravel_dtype_bytes(-1) && !ravel__dtype_tag(99));
}

/* Every 16-bit pattern: the fast loops agree with the reference, and a round trip gives the pattern back. */
static void every_pattern(int32_t dtype) {
    static uint16_t codes[65536], back[65536];
    static float values[65536];
    ravel_error err = RAVEL_ERROR_INIT;
    for (uint32_t i = 0; i < 65536; i++) codes[i] = (uint16_t)i;
    CHECK_OK(ravel_dtype_convert(dtype, codes, RAVEL_F32, values, 65536, &err), &err);
    CHECK_OK(ravel_dtype_convert(RAVEL_F32, values, dtype, back, 65536, &err), &err);
    for (uint32_t i = 0; i < 65536; i++) {
        double value;
        uint16_t stored;
        CHECK(ravel_dtype_load(dtype, &codes[i], &value));
        CHECK(isnan(value) ? isnan(values[i]) : value == (double)values[i]);
        CHECK_EQ(signbit(value) != 0, signbit(values[i]) != 0);
        if (isnan(value)) continue; /* NaNs become quiet */
        CHECK_EQ(back[i], i);
        CHECK(ravel_dtype_store(dtype, &stored, value));
        CHECK_EQ(stored, i);
    }
}

TEST(dtype_every_half_survives_a_round_trip) {
    every_pattern(RAVEL_F16);
    every_pattern(RAVEL_BF16);
}

/* Between two neighbours of the small format: below the middle goes down, above goes up, the middle to even. */
static void every_boundary(int32_t dtype, uint32_t infinity) {
    for (uint32_t i = 0; i < infinity; i++) {
        uint16_t low = (uint16_t)i, high = (uint16_t)(i + 1), got[3];
        double a, b;
        ravel_dtype_load(dtype, &low, &a);
        ravel_dtype_load(dtype, &high, &b);
        if (i + 1 == infinity) { /* the step that would come next, had it a number */
            uint16_t before = (uint16_t)(i - 1);
            double c;
            ravel_dtype_load(dtype, &before, &c);
            b = a + (a - c);
        }
        float middle = (float)((a + b) / 2),
              three[3] = {nextafterf(middle, -INFINITY), middle, nextafterf(middle, INFINITY)};
        if ((double)middle != (a + b) / 2) continue; /* below f32's own resolution */
        CHECK_OK(ravel_dtype_convert(RAVEL_F32, three, dtype, got, 3, NULL), &(ravel_error)RAVEL_ERROR_INIT);
        CHECK_EQ(got[0], i);
        CHECK_EQ(got[1], i & 1 ? i + 1 : i);
        CHECK_EQ(got[2], i + 1);
        for (int k = 0; k < 3; k++) {
            uint16_t reference;
            ravel_dtype_store(dtype, &reference, three[k]);
            CHECK_EQ(got[k], reference);
        }
    }
}

TEST(dtype_rounds_to_nearest_even_at_every_boundary) {
    every_boundary(RAVEL_F16, 0x7c00);
    every_boundary(RAVEL_BF16, 0x7f80);
}

TEST(dtype_fast_loops_agree_with_the_reference_on_random_floats) {
    enum { N = 4099 };
    static uint32_t bits[N];
    static float values[N];
    static uint16_t got[N + 1];
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_rounds(20, 2000); round++) {
        for (int i = 0; i < N; i++) bits[i] = (uint32_t)ravel__rng_next(&r);
        memcpy(values, bits, sizeof values);
        for (int32_t dtype = RAVEL_F16; dtype <= RAVEL_BF16; dtype++) {
            char *target = (char *)got + round % 2; /* also where nothing is aligned */
            CHECK_EQ(ravel_dtype_convert(RAVEL_F32, values, dtype, target, N, NULL), RAVEL_OK);
            for (int i = 0; i < N; i++) {
                uint16_t code, reference;
                memcpy(&code, target + 2 * i, 2);
                ravel_dtype_store(dtype, &reference, values[i]);
                CHECK_EQ(code, reference);
            }
        }
    }
}

TEST(dtype_known_values) {
    static const struct {
        int32_t dtype;
        double value;
        uint16_t code;
    } known[] = {
        {RAVEL_F16, 1, 0x3c00},          {RAVEL_F16, 65504, 0x7bff},   {RAVEL_F16, 65519.99, 0x7bff},
        {RAVEL_F16, 65520, 0x7c00},      {RAVEL_F16, 0x1p-24, 1},      {RAVEL_F16, 0x1p-25, 0},
        {RAVEL_F16, 0x1.8p-25, 1},       {RAVEL_F16, -0.0, 0x8000},    {RAVEL_BF16, 1, 0x3f80},
        {RAVEL_BF16, 3.4e38, 0x7f80},    {RAVEL_BF16, -2.5, 0xc020},   {RAVEL_F8_E4M3, 448, 0x7e},
        {RAVEL_F8_E4M3, 464, 0x7e},      {RAVEL_F8_E4M3, 465, 0x7f},   {RAVEL_F8_E4M3, -1, 0xb8},
        {RAVEL_F8_E4M3, 0x1p-9, 1},      {RAVEL_F8_E5M2, 57344, 0x7b}, {RAVEL_F8_E5M2, 61440, 0x7c},
        {RAVEL_F8_E5M2, INFINITY, 0x7c}, {RAVEL_F16, 1e-320, 0},       {RAVEL_F64, 0, 0},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint64_t code = 0;
        CHECK(ravel_dtype_store(known[i].dtype, &code, known[i].value));
        CHECK_EQ(code, known[i].code);
    }
    /* 1 + 2^-11 + 2^-40 is above the middle in f16; by way of f32 it would be the middle, and go down */
    double twice = 1 + 0x1p-11 + 0x1p-40;
    uint16_t once;
    CHECK_EQ(ravel_dtype_convert(RAVEL_F64, &twice, RAVEL_F16, &once, 1, NULL), RAVEL_OK);
    CHECK_EQ(once, 0x3c01);
}

TEST(dtype_integers_fit_or_are_named) {
    ravel_error err = RAVEL_ERROR_INIT;
    const int64_t wide[] = {0, -1, INT32_MAX, INT32_MIN, (int64_t)INT32_MAX + 1};
    int32_t narrow[5];
    CHECK_OK(ravel_dtype_convert(RAVEL_I64, wide, RAVEL_I32, narrow, 4, &err), &err);
    CHECK(narrow[1] == -1 && narrow[2] == INT32_MAX && narrow[3] == INT32_MIN);
    CHECK_EQ(ravel_dtype_convert(RAVEL_I64, wide, RAVEL_I32, narrow, 5, &err), RAVEL_E_OVERFLOW);
    CHECK_STR(err.message, "element 4 is 2147483648, which does not fit i32");
    ravel_error_clear(&err);
    uint64_t unsigned_[4];
    CHECK_EQ(ravel_dtype_convert(RAVEL_I64, wide, RAVEL_U64, unsigned_, 4, &err), RAVEL_E_OVERFLOW);
    CHECK_STR(err.message, "element 1 is -1, which does not fit u64");
    ravel_error_clear(&err);
    const int64_t big =
        (INT64_C(1) << 54) + (INT64_C(1) << 30) + 1; /* above the middle of two floats, in the last bit */
    float single;
    CHECK_OK(ravel_dtype_convert(RAVEL_I64, &big, RAVEL_F32, &single, 1, &err), &err);
    CHECK(single == 0x1p54f + 0x1p31f);
    const uint8_t flags[] = {0, 1, 7};
    float weights[3];
    CHECK_OK(ravel_dtype_convert(RAVEL_BOOL, flags, RAVEL_F32, weights, 3, &err), &err);
    CHECK(weights[0] == 0 && weights[1] == 1 && weights[2] == 1);
    CHECK_EQ(ravel_dtype_convert(RAVEL_F32, weights, RAVEL_I32, narrow, 3, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "f32 cannot become i32");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_dtype_convert(99, weights, RAVEL_I32, narrow, 3, &err), RAVEL_E_ARGUMENT);
    CHECK(!ravel_dtype_store(RAVEL_U8, narrow, 256) && !ravel_dtype_store(RAVEL_U8, narrow, 0.5));
    CHECK(ravel_dtype_store(RAVEL_U8, narrow, 255) && ravel_dtype_store(RAVEL_I64, unsigned_, -0x1p63));
    CHECK(!ravel_dtype_store(RAVEL_I64, unsigned_, 0x1p63) && !ravel_dtype_store(RAVEL_I32, unsigned_, NAN));
    CHECK(!ravel_dtype_store(RAVEL_C64, unsigned_, 0) && !ravel_dtype_store(99, unsigned_, 0));
}
