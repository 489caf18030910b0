/* Packing by example: the picture of the header, fixed shapes, fillers, padded layouts, and what is refused. */
#include "tests/unit/check.h"

#include <ravel/batch.h>

#include <stdlib.h>

static const int32_t ids[] = {11, 12, 13, 21, 22, 23, 24, 25, 31};
static const float mask[] = {0, 0, 1, 0, 1, 1, 1, 1, 1};
static const float step[] = {1.5f, 2.5f, 3.5f, 4.5f, 5.5f, 6.5f};
static const double reward[] = {0.25, 0.5, 0.75};
static const int64_t offsets[] = {0, 3, 8, 9}, prompts[] = {2, 1, 1};

static const ravel_field fields[] = {
    {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32, .data = ids, .pad = 99},
    {.name = "labels", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_I32, .data = ids, .pad = -100},
    {.name = "mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_F32, .data = mask},
    {.name = "old_logprobs", .kind = RAVEL_FIELD_STEP, .dtype = RAVEL_F32, .data = step},
    {.name = "reward", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_F64, .data = reward, .pad = -1},
    {.name = "advantage", .kind = RAVEL_FIELD_SPREAD, .dtype = RAVEL_F64, .data = reward},
};
static const ravel_ragged ragged = {
    .size = sizeof ragged, .count = 3, .offsets = offsets, .prompts = prompts, .fields = fields, .field_count = 6};

/* Measures, allocates and packs; free(*block). */
static ravel_status pack(const ravel_bin *bin, const ravel_thd_options *options, ravel_thd *thd, void **block,
                         ravel_error *err) {
    *thd = (ravel_thd){.size = sizeof *thd};
    *block = NULL;
    ravel_status status = ravel_thd_measure(&ragged, bin, options, thd, err);
    if (status) return status;
    size_t bytes = ravel_thd_bytes(&ragged, options, thd);
    *block = malloc(bytes);
    memset(*block, 0xee, bytes);
    ravel_thd_place(&ragged, options, *block, thd);
    return ravel_thd_pack(&ragged, bin, options, thd, err);
}

#define CHECK_ARRAY(type, array, ...)                                                                                 \
    do {                                                                                                              \
        const type check_want[] = {__VA_ARGS__};                                                                      \
        const type *check_have = (array);                                                                             \
        for (size_t check_i = 0; check_i < sizeof check_want / sizeof *check_want; check_i++)                         \
            if (check_have[check_i] != check_want[check_i]) {                                                         \
                check_fail(__FILE__, __LINE__, "%s[%zu] is %g, not %g", #array, check_i, (double)check_have[check_i], \
                           (double)check_want[check_i]);                                                              \
                return;                                                                                               \
            }                                                                                                         \
    } while (0)

TEST(batch_packs_the_picture_of_the_header) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_thd_options options;
    ravel_thd_options_default(&options);
    options.align = 4;
    options.total_multiple = 16;
    const int32_t order[] = {0, 1};
    const ravel_bin bin = {order, 2};
    ravel_thd t;
    void *block;
    CHECK_OK(pack(&bin, &options, &t, &block, &err), &err);
    CHECK(t.samples_count == 2 && t.sequences == 3 && t.tokens == 16 && t.local_tokens == 16 && t.actual_tokens == 8);
    CHECK(t.max_seqlen == 8 && t.max_length == 5);
    CHECK_ARRAY(int32_t, t.cu_seqlens, 0, 3, 8, 8);
    CHECK_ARRAY(int32_t, t.cu_seqlens_padded, 0, 4, 12, 16);
    CHECK_ARRAY(int32_t, t.samples, 0, 1, -1);
    CHECK_ARRAY(int32_t, t.positions, 0, 1, 2, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0);
    CHECK_ARRAY(int32_t, t.segments, 1, 1, 1, 0, 2, 2, 2, 2, 2, 0, 0, 0, 0, 0, 0, 0);
    CHECK_ARRAY(uint8_t, t.padding, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1);
    CHECK_ARRAY(float, t.loss_mask, 0, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    CHECK_ARRAY(int32_t, t.fields[0], 11, 12, 13, 99, 21, 22, 23, 24, 25, 99, 99, 99, 99, 99, 99, 99);
    CHECK_ARRAY(int32_t, t.fields[1], 12, 13, -100, -100, 22, 23, 24, 25, -100, -100, -100, -100, -100, -100, -100,
                -100);
    CHECK_ARRAY(float, t.fields[2], 0, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0);
    CHECK_ARRAY(float, t.fields[3], 1.5f, 2.5f, 0, 0, 3.5f, 4.5f, 5.5f, 6.5f, 0, 0, 0, 0, 0, 0, 0, 0);
    CHECK_ARRAY(double, t.fields[4], 0.25, 0.5, -1);
    CHECK_ARRAY(double, t.fields[5], 0.25, 0.25, 0.25, 0, 0.5, 0.5, 0.5, 0.5, 0.5, 0, 0, 0, 0, 0, 0, 0);
    for (int i = 0; i < 6; i++) CHECK((uintptr_t)t.fields[i] % 256 == 0);
    free(block);
}

TEST(batch_fixed_shape_is_the_same_for_every_bin) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_thd_options options;
    ravel_thd_options_default(&options);
    options.align = 2;
    options.fixed_tokens = 12;
    options.max_samples = 4;
    const int32_t order[] = {2, 1};
    for (int64_t count = 0; count <= 2; count++) {
        const ravel_bin bin = {order, count};
        ravel_thd t;
        void *block;
        CHECK_OK(pack(&bin, &options, &t, &block, &err), &err);
        CHECK(t.sequences == 5 && t.tokens == 12 && t.max_seqlen == 12 && t.samples_count == count);
        if (count == 2) {
            CHECK_ARRAY(int32_t, t.cu_seqlens, 0, 1, 6, 6, 6, 6);
            CHECK_ARRAY(int32_t, t.cu_seqlens_padded, 0, 2, 8, 12, 12, 12);
            CHECK_ARRAY(int32_t, t.samples, 2, 1, -1, -1, -1);
            CHECK_ARRAY(double, t.fields[4], 0.75, 0.5, -1, -1, -1);
            CHECK_ARRAY(int32_t, t.fields[0], 31, 99, 21, 22, 23, 24, 25, 99, 99, 99, 99, 99);
        }
        if (count == 0) { /* a filler */
            CHECK_ARRAY(int32_t, t.cu_seqlens, 0, 1, 1, 1, 1, 1);
            CHECK_ARRAY(int32_t, t.cu_seqlens_padded, 0, 2, 12, 12, 12, 12);
            CHECK_ARRAY(int32_t, t.samples, -1, -1, -1, -1, -1);
        }
        free(block);
    }
    options.max_seqlen = 8;
    const ravel_bin bin = {order, 2};
    ravel_thd t = {.size = sizeof t};
    CHECK_OK(ravel_thd_measure(&ragged, &bin, &options, &t, &err), &err);
    CHECK_EQ(t.max_seqlen, 8);
}

TEST(batch_filler_is_one_token_without_weight) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_thd_options options;
    ravel_thd_options_default(&options);
    options.align = 4;
    options.cp = 2;
    const ravel_bin bin = {NULL, 0};
    ravel_thd t;
    void *block;
    CHECK_OK(pack(&bin, &options, &t, &block, &err), &err);
    CHECK(t.samples_count == 0 && t.sequences == 1 && t.tokens == 4 && t.actual_tokens == 0 && t.max_length == 1);
    CHECK_ARRAY(int32_t, t.cu_seqlens, 0, 1);
    CHECK_ARRAY(int32_t, t.fields[0], 99, 99, 99, 99);
    CHECK_ARRAY(int32_t, t.fields[1], -100, -100, -100, -100);
    CHECK_ARRAY(float, t.loss_mask, 0, 0, 0, 0);
    CHECK_ARRAY(uint8_t, t.padding, 0, 1, 1, 1);
    free(block);
}

TEST(batch_padded_layouts) {
    ravel_error err = RAVEL_ERROR_INIT;
    const int32_t order[] = {0, 1};
    const ravel_bin bin = {order, 2};
    static const struct {
        int32_t side;
        int64_t rows, columns, prompt_columns;
        int32_t tokens[18], labels[18], positions[18];
        uint8_t attention[18];
        float loss[18];
        int32_t starts[3];
    } cases[] = {
        {RAVEL_PAD_RIGHT,
         2,
         6,
         0,
         {11, 12, 13, 99, 99, 99, 21, 22, 23, 24, 25, 99},
         {12, 13, -100, -100, -100, -100, 22, 23, 24, 25, -100, -100},
         {0, 1, 2, 0, 0, 0, 0, 1, 2, 3, 4, 0},
         {1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 0},
         {0, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0},
         {0, 0}},
        {RAVEL_PAD_LEFT,
         2,
         6,
         0,
         {99, 99, 99, 11, 12, 13, 99, 21, 22, 23, 24, 25},
         {-100, -100, -100, 12, 13, -100, -100, 22, 23, 24, 25, -100},
         {0, 0, 0, 0, 1, 2, 0, 0, 1, 2, 3, 4},
         {0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1},
         {0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 1, 0},
         {3, 1}},
        {RAVEL_PAD_2D,
         3,
         6,
         2,
         {11, 12, 13, 99, 99, 99, 99, 21, 22, 23, 24, 25, 99, 99, 99, 99, 99, 99},
         {12, 13, -100, -100, -100, -100, -100, 22, 23, 24, 25, -100, -100, -100, -100, -100, -100, -100},
         {0, 1, 2, 0, 0, 0, 0, 0, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0},
         {1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0},
         {0, 1, 0, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0},
         {0, 1, 0}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        ravel_padded_options options;
        ravel_padded_options_default(&options);
        options.side = cases[c].side;
        options.align = 2;
        options.rows = cases[c].side == RAVEL_PAD_2D ? 3 : 0;
        ravel_padded p = {.size = sizeof p};
        CHECK_OK(ravel_padded_measure(&ragged, &bin, &options, &p, &err), &err);
        CHECK_EQ(p.rows, cases[c].rows);
        CHECK_EQ(p.columns, cases[c].columns);
        CHECK_EQ(p.prompt_columns, cases[c].prompt_columns);
        size_t bytes = ravel_padded_bytes(&ragged, &p), n = (size_t)(p.rows * p.columns);
        void *block = malloc(bytes);
        memset(block, 0xee, bytes);
        ravel_padded_place(&ragged, block, &p);
        CHECK_OK(ravel_padded_pack(&ragged, &bin, &options, &p, &err), &err);
        CHECK(memcmp(p.fields[0], cases[c].tokens, n * 4) == 0);
        CHECK(memcmp(p.fields[1], cases[c].labels, n * 4) == 0);
        CHECK(memcmp(p.positions, cases[c].positions, n * 4) == 0);
        CHECK(memcmp(p.attention_mask, cases[c].attention, n) == 0);
        CHECK(memcmp(p.loss_mask, cases[c].loss, n * 4) == 0);
        CHECK(memcmp(p.starts, cases[c].starts, (size_t)p.rows * 4) == 0);
        CHECK(p.samples[0] == 0 && p.samples[1] == 1 && (p.rows < 3 || p.samples[2] == -1));
        free(block);
    }
}

TEST(batch_refuses_with_a_sentence) {
    const int32_t order[] = {1, 0}, wrong[] = {0, 7};
    static const struct {
        const char *option, *value, *option_2, *value_2, *says;
        ravel_status status;
    } cases[] = {
        {"align", "6", "cp", "2",
         "sample 1 takes a slot of 6 tokens, and zig-zag sharding over cp 2 needs a multiple of 4: align should be 12",
         RAVEL_E_ARGUMENT},
        {"cp", "3", "cp-kind", "striped", "sample 1 takes a slot of 5 tokens, and striped sharding over cp 3",
         RAVEL_E_ARGUMENT},
        {"cp", "4", "cp-rank", "4", "cp rank 4 is not one of the 4", RAVEL_E_ARGUMENT},
        {"align", "4", "total-multiple", "6", "total-multiple is 6; it must be a multiple of align, 4",
         RAVEL_E_ARGUMENT},
        {"align", "4", "fixed-tokens", "18", "fixed-tokens is 18; it must be a multiple of align, 4", RAVEL_E_ARGUMENT},
        {"align", "4", "fixed-tokens", "20", "a fixed shape needs max-samples", RAVEL_E_ARGUMENT},
        {"max-samples", "2", "fixed-tokens", "7", "the bin has 8 slot tokens, over fixed-tokens, 7", RAVEL_E_OVERSIZE},
        {"max-samples", "1", "fixed-tokens", "8", "the bin has 2 samples, over max-samples, 1", RAVEL_E_OVERSIZE},
        {"align", "1", "max-seqlen", "4", "sample 1 takes a slot of 5 tokens, over max-seqlen, 4", RAVEL_E_OVERSIZE},
    };
    const ravel_bin bin = {order, 2}, bad = {wrong, 2};
    ravel_thd_options options;
    ravel_thd t = {.size = sizeof t};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_thd_options_default(&options);
        CHECK_OK(ravel_option_set(ravel_thd_option_table(), &options, cases[i].option, cases[i].value, &err), &err);
        CHECK_OK(ravel_option_set(ravel_thd_option_table(), &options, cases[i].option_2, cases[i].value_2, &err), &err);
        CHECK_EQ(ravel_thd_measure(&ragged, &bin, &options, &t, &err), cases[i].status);
        CHECK_HAS(err.message, cases[i].says);
        CHECK_EQ(t.tokens, 0);
    }
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_thd_options_default(&options);
    CHECK_EQ(ravel_thd_measure(&ragged, &bad, &options, &t, &err), RAVEL_E_ARGUMENT);
    CHECK_STR(err.message, "the bin names sample 7, and the store has 3");
    ravel_error_clear(&err);
    CHECK_OK(ravel_thd_measure(&ragged, &bin, &options, &t, &err), &err);
    options.align = 2; /* the slot can be dealt out, the tail cannot */
    options.cp = 2;
    options.fixed_tokens = 10;
    options.max_samples = 2;
    const ravel_bin first = {order + 1, 1};
    CHECK_EQ(ravel_thd_measure(&ragged, &first, &options, &t, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "slot 1 has 6 tokens, and zig-zag sharding over cp 2 needs a multiple of 4");
    ravel_error_clear(&err);
    ravel_thd_options_default(&options);
    const ravel_bin shorter = {order, 1};
    CHECK_EQ(ravel_thd_pack(&ragged, &shorter, &options, &t, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "measured as 8 tokens in 2 sequences, and this bin has 5 in 1");
    ravel_error_clear(&err);
    ravel_field spread = fields[5];
    int32_t cu[] = {0, 5, 8}, samples[] = {1, 0};
    t.cu_seqlens_padded = cu;
    t.samples = samples;
    CHECK_EQ(ravel_thd_unpack(&ragged, &options, &t, &spread, reward, samples, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "cannot be collected");
    ravel_error_clear(&err);
    cu[1] = 4;
    spread.kind = RAVEL_FIELD_TOKEN;
    CHECK_EQ(ravel_thd_unpack(&ragged, &options, &t, &spread, reward, samples, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "sample 1 has 5 tokens, and its slot only 4");
}

/* What is behind an option struct's size is not looked at; a size of 0 is a struct that nobody filled. */
TEST(batch_older_callers_get_defaults) {
    const int32_t order[] = {1, 0};
    const ravel_bin bin = {order, 2};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_thd_options options;
    ravel_thd t = {.size = sizeof t};
    memset(&options, 0x7f, sizeof options);
    options.size = offsetof(ravel_thd_options, total_multiple);
    options.align = 4;
    options.arrays = RAVEL_THD_ALL;
    CHECK_OK(ravel_thd_measure(&ragged, &bin, &options, &t, &err), &err);
    CHECK_EQ(t.tokens, 12);
    options.size = 0;
    CHECK_EQ(ravel_thd_measure(&ragged, &bin, &options, &t, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "ravel_thd_options_default");
    ravel_error_clear(&err);
    ravel_padded_options sides;
    ravel_padded p = {.size = sizeof p};
    memset(&sides, 0x7f, sizeof sides);
    sides.size = offsetof(ravel_padded_options, rows);
    sides.side = RAVEL_PAD_LEFT;
    sides.align = 4;
    CHECK_OK(ravel_padded_measure(&ragged, &bin, &sides, &p, &err), &err);
    CHECK(p.rows == 2 && p.columns == 8);
    sides.size = 0;
    CHECK_EQ(ravel_padded_measure(&ragged, &bin, &sides, &p, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "ravel_padded_options_default");
}

TEST(batch_refuses_bins_of_2_to_the_31_tokens) {
    ravel_error err = RAVEL_ERROR_INIT;
    const int64_t huge[] = {0, INT32_MAX, 2 * (int64_t)INT32_MAX};
    ravel_ragged store = {.size = sizeof store, .count = 2, .offsets = huge};
    ravel_thd_options options;
    ravel_thd_options_default(&options);
    ravel_thd t = {.size = sizeof t};
    const int32_t order[] = {0, 1};
    const ravel_bin one = {order, 1}, two = {order, 2};
    CHECK_OK(ravel_thd_measure(&store, &one, &options, &t, &err), &err);
    CHECK_EQ(t.tokens, INT32_MAX);
    CHECK_EQ(ravel_thd_measure(&store, &two, &options, &t, &err), RAVEL_E_OVERFLOW);
    CHECK_HAS(err.message, "more than 2^31 - 1 slot tokens");
    ravel_error_clear(&err);
    options.align = 2;
    CHECK_EQ(ravel_thd_measure(&store, &one, &options, &t, &err), RAVEL_E_OVERFLOW);
    ravel_error_clear(&err);
    options.align = 1;
    options.total_multiple = 2;
    CHECK_EQ(ravel_thd_measure(&store, &one, &options, &t, &err), RAVEL_E_OVERFLOW);
    CHECK_HAS(err.message, "padded to total-multiple the bin has 2147483648 tokens");
}

TEST(batch_checks_a_store) {
    static const struct {
        int64_t offsets[3];
        ravel_field field;
        int64_t prompts[2];
        const char *says;
    } cases[] = {
        {{0, 3, 3}, {.name = "x", .dtype = RAVEL_I32, .data = ids}, {0, 0}, "sample 1 goes from token 3 to 3"},
        {{0, 3, 2}, {.name = "x", .dtype = RAVEL_I32, .data = ids}, {0, 0}, "sample 1 goes from token 3 to 2"},
        {{1, 3, 4}, {.name = "x", .dtype = RAVEL_I32, .data = ids}, {0, 0}, "offsets begin with 1"},
        {{0, 3, 4}, {.name = "x", .dtype = 77, .data = ids}, {0, 0}, "field \"x\": dtype 77"},
        {{0, 3, 4}, {.name = "x", .dtype = RAVEL_I32, .kind = 9, .data = ids}, {0, 0}, "field \"x\": kind 9"},
        {{0, 3, 4}, {.name = "x", .dtype = RAVEL_I32}, {0, 0}, "field \"x\" has no data"},
        {{0, 3, 4},
         {.name = "x", .dtype = RAVEL_U8, .data = ids, .pad = -100},
         {0, 0},
         "the pad value -100 is nothing that u8 can hold"},
        {{0, 3, 4}, {.name = "x", .dtype = RAVEL_I32, .data = ids, .width = -1}, {0, 0}, "a width of -1"},
        {{0, 3, 4}, {.name = "x", .dtype = RAVEL_I32, .data = ids}, {4, 0}, "sample 0 of 3 tokens has a prompt of 4"},
        {{0, 3, INT64_MAX}, {.name = "x", .dtype = RAVEL_I32, .data = ids}, {0, 0}, "it must have 1 to 2^31 - 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        const ravel_ragged store = {.size = sizeof store,
                                    .count = 2,
                                    .offsets = cases[i].offsets,
                                    .prompts = cases[i].prompts,
                                    .fields = &cases[i].field,
                                    .field_count = 1};
        CHECK(ravel_ragged_check(&store, &err) != RAVEL_OK);
        CHECK_HAS(err.message, cases[i].says);
    }
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_ragged_check(&ragged, &err), &err);
    CHECK_EQ(ravel_ragged_find(&ragged, "reward"), 4);
    CHECK_EQ(ravel_ragged_find(&ragged, "rewards"), -1);
    CHECK_EQ(ravel_field_bytes(&ragged, &fields[3]), 24);
    const ravel_field twice[] = {fields[0], fields[0]};
    const ravel_ragged store = {
        .size = sizeof store, .count = 3, .offsets = offsets, .fields = twice, .field_count = 2};
    CHECK_EQ(ravel_ragged_check(&store, &err), RAVEL_E_ARGUMENT);
    CHECK_STR(err.message, "field \"tokens\" is there twice");
}
