/* The parts of refit that need no peers: checksum, boxes, views, rules, frames, settings. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "base/xxh3.h"
#include "refit/model/differences.h"
#include "refit/wire/frame.h"
#include "refit/session/hello.h"
#include "refit/model/holding.h"

#include <stdlib.h>

/* ---- checksum ------------------------------------------------------------------------------------------- */

static unsigned char *pattern(size_t bytes) {
    unsigned char *p = malloc(bytes ? bytes : 1);
    for (size_t i = 0; p && i < bytes; i++) p[i] = (unsigned char)((uint32_t)i * 2654435761u >> 13);
    return p;
}

/* Made by XXH3_64bits of libxxhash 0.8.1 over the pattern above. */
TEST(refit_checksum_is_xxh3) {
    static const struct {
        size_t bytes;
        uint64_t hash;
    } golden[] = {
        {0, 0x2d06800538d394c2u},      {1, 0xc44bdff4074eecdbu},    {3, 0xa1c4a8259b827291u},
        {4, 0xbb4e3d89ee0b271du},      {8, 0x79d02238b80e37b1u},    {9, 0xf64cecc4271ff461u},
        {16, 0x222e9aead6bddd51u},     {17, 0x47aad6b375eb4bbau},   {128, 0x421a9c905c6e66bau},
        {129, 0x9e2414800f83768au},    {240, 0xb714c5fd22744964u},  {241, 0xbc424a2c480dd281u},
        {1024, 0x1fd15e7d36f5e1bcu},   {1025, 0xfe08e5a874d23fd2u}, {4096, 0x84d9e7ce664c8217u},
        {100000, 0x1d43ec753d462301u},
    };
    unsigned char *p = pattern(100000);
    CHECK(p);
    for (size_t i = 0; i < sizeof golden / sizeof *golden; i++) {
        CHECK(ravel__xxh3_of(p, golden[i].bytes) == golden[i].hash);
        CHECK(ravel__xxh3_reference(p, golden[i].bytes) == golden[i].hash);
    }
    free(p);
}

/* In pieces of any size, with a copy to any address or without: the same hash, the right copy, and nothing beside it. */
TEST(refit_checksum_in_pieces_is_the_same) {
    enum { MOST = 96 * 1024, COPY = MOST + 256 };
    ravel__rng rng = ravel__rng_seed(check_seed());
    unsigned char *p = pattern(MOST), *copy = aligned_alloc(256, COPY);
    CHECK(p && copy);
    for (int64_t round = 0; round < check_rounds(400, 20000); round++) {
        size_t bytes = (size_t)ravel__rng_below(&rng, round % 8 ? 8192 : MOST), at = 0;
        size_t step = (size_t)1 << ravel__rng_below(&rng, 17);
        size_t shift = (size_t)ravel__rng_below(&rng, 2) ? 16 * (size_t)ravel__rng_below(&rng, 8)
                                                         : (size_t)ravel__rng_below(&rng, 100);
        ravel__xxh3 state, copying;
        ravel__xxh3_begin(&state);
        ravel__xxh3_begin(&copying);
        memset(copy, 0xee, COPY);
        while (at < bytes) {
            size_t n = (size_t)ravel__rng_below(&rng, step) + 1;
            if (n > bytes - at) n = bytes - at;
            ravel__xxh3_add(&state, p + at, n);
            ravel__xxh3_add_copy(&copying, copy + shift + at, p + at, n);
            at += n;
        }
        CHECK(ravel__xxh3_end(&state) == ravel__xxh3_of(p, bytes));
        CHECK(ravel__xxh3_end(&copying) == ravel__xxh3_of(p, bytes));
        CHECK(memcmp(copy + shift, p, bytes) == 0);
        CHECK(shift == 0 || copy[shift - 1] == 0xee);
        CHECK_EQ(copy[shift + bytes], 0xee);
        CHECK(ravel__xxh3_of(p, bytes) == ravel__xxh3_reference(p, bytes));
    }
    free(p);
    free(copy);
}

TEST(refit_checksum_sees_every_bit) {
    unsigned char *p = pattern(2000);
    CHECK(p);
    for (size_t bytes = 1; bytes < 2000; bytes += 1 + bytes / 7) {
        uint64_t whole = ravel__xxh3_of(p, bytes);
        for (size_t i = 0; i < bytes; i++) {
            p[i] ^= (unsigned char)(1 << i % 8);
            CHECK(ravel__xxh3_of(p, bytes) != whole);
            p[i] ^= (unsigned char)(1 << i % 8);
        }
    }
    free(p);
}

/* ---- boxes ---------------------------------------------------------------------------------------------- */

static ravel__box random_box(ravel__rng *rng, int32_t ndim, int64_t dim) {
    ravel__box b = {.ndim = ndim};
    for (int32_t d = 0; d < ndim; d++) {
        b.start[d] = (int64_t)ravel__rng_below(rng, (uint64_t)dim);
        b.extent[d] = (int64_t)ravel__rng_below(rng, (uint64_t)(dim - b.start[d])) + 1;
    }
    return b;
}

static int has_point(const ravel__box *b, const int64_t *at) {
    for (int32_t d = 0; d < b->ndim; d++)
        if (at[d] < b->start[d] || at[d] >= b->start[d] + b->extent[d]) return 0;
    return 1;
}

/* Every point of a is in the meeting or in exactly one of the rest, and no other point is. */
TEST(refit_boxes_meet_and_part) {
    enum { DIM = 6 };
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_rounds(300, 20000); round++) {
        int32_t ndim = (int32_t)ravel__rng_below(&rng, 3) + 1;
        ravel__box a = random_box(&rng, ndim, DIM), b = random_box(&rng, ndim, DIM), meet = {0};
        ravel__box rest[2 * RAVEL_REFIT_DIMS];
        int met = ravel__box_meet(&a, &b, &meet);
        int32_t count = ravel__box_without(&a, &b, rest);
        CHECK(count <= 2 * ndim);
        int64_t at[3] = {0}, points = 1;
        for (int32_t d = 0; d < ndim; d++) points *= DIM;
        for (int64_t p = 0; p < points; p++) {
            int64_t left = p;
            for (int32_t d = 0; d < ndim; d++, left /= DIM) at[d] = left % DIM;
            int in_rest = 0;
            for (int32_t i = 0; i < count; i++) in_rest += has_point(&rest[i], at);
            CHECK_EQ(met && has_point(&meet, at), has_point(&a, at) && has_point(&b, at));
            CHECK_EQ(in_rest, has_point(&a, at) && !has_point(&b, at));
        }
    }
}

TEST(refit_parts_cover_a_dimension) {
    for (int64_t dim = 0; dim < 40; dim++)
        for (int64_t parts = 1; parts < 12; parts++) {
            CHECK_EQ(ravel__part_start(dim, parts, 0), 0);
            CHECK_EQ(ravel__part_start(dim, parts, parts), dim);
            for (int64_t i = 0; i < parts; i++) {
                int64_t size = ravel__part_start(dim, parts, i + 1) - ravel__part_start(dim, parts, i);
                CHECK(size >= dim / parts && size <= dim / parts + 1);
            }
        }
    CHECK_EQ(ravel__part_start(INT64_MAX, 7, 7), INT64_MAX);
}

/* ---- views ---------------------------------------------------------------------------------------------- */

/* The element at a position of the view's box, found the slow way. */
static int64_t slow_place(const ravel__view *v, const ravel__box *piece, int64_t element) {
    int64_t at = v->offset;
    for (int32_t d = piece->ndim - 1; d >= 0; d--) {
        int64_t i = element % piece->extent[d] + piece->start[d] - v->box.start[d];
        element /= piece->extent[d];
        if (v->block > 0 && d == v->block_dim)
            at += i / v->block * v->block_stride + i % v->block * v->strides[d];
        else
            at += i * v->strides[d];
    }
    return at;
}

static ravel__view random_view(ravel__rng *rng, int64_t *span) {
    ravel__view v = {.box = random_box(rng, (int32_t)ravel__rng_below(rng, 4), 7), .dtype = RAVEL_F32};
    int32_t order[RAVEL_REFIT_DIMS] = {0};
    int64_t step = (int64_t)ravel__rng_below(rng, 4) == 0 ? 2 : 1;
    for (int32_t d = 0; d < v.box.ndim; d++) order[d] = d;
    if (ravel__rng_below(rng, 2))
        for (int32_t d = v.box.ndim - 1; d > 0; d--) { /* any order of dimensions: transposed views */
            int32_t other = (int32_t)ravel__rng_below(rng, (uint64_t)d + 1), swap = order[d];
            order[d] = order[other];
            order[other] = swap;
        }
    for (int32_t i = v.box.ndim - 1; i >= 0; i--) {
        v.strides[order[i]] = step;
        step *= v.box.extent[order[i]] + (int64_t)ravel__rng_below(rng, 2);
    }
    v.offset = (int64_t)ravel__rng_below(rng, 5);
    if (v.box.ndim > 0 && ravel__rng_below(rng, 3) == 0) {
        v.block_dim = 0;
        v.block = (int64_t)ravel__rng_below(rng, 3) + 1;
        for (int32_t d = 1; d < v.box.ndim; d++) v.strides[d] = d == v.box.ndim - 1 ? 1 : 8;
        v.strides[0] = 64;
        v.block_stride = 64 * (v.block + (int64_t)ravel__rng_below(rng, 3));
        step = 64 * 64;
    }
    *span = step + 4096;
    return v;
}

TEST(refit_views_gather_and_scatter_any_range) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    ravel_error err = RAVEL_ERROR_INIT;
    for (int64_t round = 0; round < check_rounds(500, 30000); round++) {
        int64_t span;
        ravel__view v = random_view(&rng, &span);
        ravel__box piece = v.box;
        for (int32_t d = 0; d < piece.ndim; d++) {
            int64_t cut = (int64_t)ravel__rng_below(&rng, (uint64_t)piece.extent[d]);
            piece.start[d] += cut;
            piece.extent[d] = (int64_t)ravel__rng_below(&rng, (uint64_t)(piece.extent[d] - cut)) + 1;
        }
        float *memory = malloc((size_t)span * sizeof *memory), *other = malloc((size_t)span * sizeof *other);
        CHECK(memory && other);
        for (int64_t i = 0; i < span; i++) memory[i] = (float)i, other[i] = -1;
        int64_t total = ravel__box_count(&piece), first = (int64_t)ravel__rng_below(&rng, (uint64_t)total);
        int64_t count = (int64_t)ravel__rng_below(&rng, (uint64_t)(total - first)) + 1;
        float packed[512];
        double wide[512];
        CHECK(count <= 512);
        CHECK_OK(ravel__view_gather(&v, memory, &piece, first, count, RAVEL_F32, packed, &err), &err);
        CHECK_OK(ravel__view_gather(&v, memory, &piece, first, count, RAVEL_F64, wide, &err), &err);
        for (int64_t i = 0; i < count; i++) {
            CHECK_EQ(packed[i], slow_place(&v, &piece, first + i));
            CHECK_EQ(wide[i], packed[i]);
        }
        int wide_way = (int)ravel__rng_below(&rng, 2);
        CHECK_OK(ravel__view_scatter(&v, other, &piece, first, count, wide_way ? RAVEL_F64 : RAVEL_F32,
                                     wide_way ? (void *)wide : (void *)packed, 0, &err),
                 &err);
        int64_t written = 0;
        for (int64_t i = 0; i < span; i++) written += other[i] >= 0;
        CHECK_EQ(written, count);
        for (int64_t i = 0; i < count; i++)
            CHECK_EQ(other[slow_place(&v, &piece, first + i)], slow_place(&v, &piece, first + i));
        for (int64_t i = 0; i < span; i++) other[i] = -1;
        ravel__view_copy(&v, memory, other, &piece, first, count, NULL);
        for (int64_t i = 0; i < count; i++)
            CHECK_EQ(other[slow_place(&v, &piece, first + i)], slow_place(&v, &piece, first + i));
        free(memory);
        free(other);
    }
}

/* Streaming stores: every length and alignment around the limit writes what a plain copy writes, and nothing else. */
TEST(refit_views_far_copies) {
    enum { MOST = 9000 };
    unsigned char *from = pattern(MOST), to[MOST + 256];
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(from);
    for (int64_t count = 4000; count < MOST; count += 613)
        for (int64_t offset = 0; offset < 130; offset += 3) {
            ravel__view v = {
                .box = {.ndim = 1, .extent = {count}}, .offset = offset, .strides = {1}, .dtype = RAVEL_U8};
            memset(to, 0xee, sizeof to);
            if (offset + count > (int64_t)sizeof to) continue;
            CHECK_OK(ravel__view_scatter(&v, to, &v.box, 0, count, RAVEL_U8, from, 1, &err), &err);
            CHECK(memcmp(to + offset, from, (size_t)count) == 0);
            for (int64_t i = 0; i < (int64_t)sizeof to; i++)
                if (i < offset || i >= offset + count) CHECK_EQ(to[i], 0xee);
        }
    free(from);
}

/* ---- rules ---------------------------------------------------------------------------------------------- */

static ravel_status hold(const ravel_refit_tensor *t, const ravel_refit_rule *rules, int64_t rule_count,
                         ravel__arena *arena, ravel__holding *h, ravel_error *err) {
    ravel__arena_init(arena, NULL, 1024);
    return ravel__holding_make(t, 1, rules, rule_count, 0, "source", arena, h, err);
}

static const ravel_refit_rule qkv_rule = {
    .name = "l.*.qkv", .parts = "l.*.q,l.*.k,l.*.v", .join = RAVEL_REFIT_QKV, .heads = 8, .kv_heads = 2};

TEST(refit_rules_take_qkv_apart) {
    ravel__arena arena;
    ravel__holding h = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_tensor t = {.name = "l.11.qkv", .dtype = RAVEL_BF16, .ndim = 2, .dims = {48, 16}};
    t.parts[0] = 4; /* head size 4; 2 query heads, and one of 2 key heads on two ranks each */
    for (t.index[0] = 0; t.index[0] < 4; t.index[0]++) {
        CHECK_OK(hold(&t, &qkv_rule, 1, &arena, &h, &err), &err);
        CHECK_EQ(h.count, 3);
        CHECK_STR(h.items[0].name, "l.11.q");
        CHECK_STR(h.items[2].name, "l.11.v");
        CHECK_EQ(h.items[0].dims[0], 32);
        CHECK_EQ(h.items[1].dims[0], 8);
        CHECK_EQ(h.items[0].view.box.start[0], 8 * t.index[0]);
        CHECK_EQ(h.items[0].view.box.extent[0], 8);
        CHECK_EQ(h.items[1].view.box.start[0], 4 * (t.index[0] / 2));
        CHECK_EQ(h.items[1].view.box.extent[0], 4);
        CHECK_EQ(h.items[1].view.offset, 8 * 16);
        CHECK_EQ(h.items[2].view.offset, 12 * 16);
        ravel__holding_free(&h, NULL);
        ravel__arena_free(&arena);
    }
}

TEST(refit_rules_take_grouped_qkv_apart) {
    ravel__arena arena;
    ravel__holding h = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_rule rule = qkv_rule;
    ravel_refit_tensor t = {.name = "l.0.qkv", .dtype = RAVEL_F32, .ndim = 2, .dims = {48, 2}};
    float memory[48][2], q[64], k[16], v[16];
    rule.join = RAVEL_REFIT_QKV_GROUPED;
    /* Group g: rows of q heads 4g .. 4g+3, then of k head g, then of v head g; 4 rows per head. */
    for (int row = 0; row < 48; row++) {
        int group = row / 24, in = row % 24;
        int value = in < 16 ? group * 16 + in : in < 20 ? 100 + group * 4 + in - 16 : 200 + group * 4 + in - 20;
        memory[row][0] = (float)value;
        memory[row][1] = (float)value + 0.5f;
    }
    CHECK_OK(hold(&t, &rule, 1, &arena, &h, &err), &err);
    CHECK_EQ(h.count, 3);
    float *out[3] = {q, k, v};
    for (int i = 0; i < 3; i++) {
        const ravel__view *view = &h.items[i].view;
        CHECK_OK(ravel__view_gather(view, memory, &view->box, 0, ravel__box_count(&view->box), RAVEL_F32, out[i], &err),
                 &err);
    }
    for (int row = 0; row < 32; row++) CHECK(q[2 * row] == (float)row && q[2 * row + 1] == (float)row + 0.5f);
    for (int row = 0; row < 8; row++) CHECK(k[2 * row] == 100 + (float)row && v[2 * row] == 200 + (float)row);
    ravel__holding_free(&h, NULL);
    ravel__arena_free(&arena);
    t.parts[0] = 2;
    t.index[0] = 1;
    CHECK_OK(hold(&t, &rule, 1, &arena, &h, &err), &err);
    CHECK_EQ(h.items[0].view.box.start[0], 16);
    CHECK_EQ(h.items[1].view.box.start[0], 4);
    ravel__holding_free(&h, NULL);
    ravel__arena_free(&arena);
}

TEST(refit_rules_stack_experts) {
    ravel__arena arena;
    ravel__holding h = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_rule rule = {.name = "m.*.w13", .parts = "m.*.e.#.gate,m.*.e.#.up", .stack = 6};
    ravel_refit_tensor t = {.name = "m.2.w13", .dtype = RAVEL_BF16, .ndim = 3, .dims = {6, 8, 4}};
    t.parts[0] = 3, t.index[0] = 1; /* experts 2 and 3 */
    t.parts[1] = 2, t.index[1] = 1; /* the second half of each */
    CHECK_OK(hold(&t, &rule, 1, &arena, &h, &err), &err);
    CHECK_EQ(h.count, 4);
    CHECK_STR(h.items[0].name, "m.2.e.2.gate");
    CHECK_STR(h.items[3].name, "m.2.e.3.up");
    CHECK_EQ(h.items[3].ndim, 2);
    CHECK_EQ(h.items[3].dims[0], 4);
    CHECK_EQ(h.items[3].view.box.start[0], 2);
    CHECK_EQ(h.items[3].view.box.extent[0], 2);
    CHECK_EQ(h.items[3].view.offset, 4 * 4 + 2 * 4);
    ravel__holding_free(&h, NULL);
    ravel__arena_free(&arena);
}

TEST(refit_rules_join_by_shares_and_rename) {
    ravel__arena arena;
    ravel__holding h = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_rule rules[2] = {{.name = "in_proj", .parts = "z,x,b", .dim = 1, .shares = {3, 2, 1}},
                                 {.name = "decoder.*.norm*.w", .parts = "model.*.n*"}};
    ravel_refit_tensor t = {.name = "in_proj", .dtype = RAVEL_F32, .ndim = 2, .dims = {5, 12}};
    CHECK_OK(hold(&t, rules, 2, &arena, &h, &err), &err);
    CHECK_EQ(h.count, 3);
    CHECK_EQ(h.items[1].dims[1], 4);
    CHECK_EQ(h.items[1].view.offset, 6);
    CHECK_EQ(h.items[1].view.strides[0], 12);
    ravel__holding_free(&h, NULL);
    ravel__arena_free(&arena);
    ravel_refit_tensor n = {.name = "decoder.7.norm2.w", .dtype = RAVEL_F32, .ndim = 1, .dims = {9}, .start = {3}};
    n.extent[0] = 4;
    CHECK_OK(hold(&n, rules, 2, &arena, &h, &err), &err);
    CHECK_STR(h.items[0].name, "model.7.n2");
    CHECK_EQ(h.items[0].view.box.start[0], 3);
    ravel__holding_free(&h, NULL);
    ravel__arena_free(&arena);
}

static void expect_refused(const ravel_refit_tensor *t, const ravel_refit_rule *rule, const char *words) {
    ravel__arena arena;
    ravel__holding h = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = hold(t, rule, rule ? 1 : 0, &arena, &h, &err);
    CHECK(status == RAVEL_E_ARGUMENT || status == RAVEL_E_OVERFLOW);
    CHECK_HAS(err.message, words);
    ravel__arena_free(&arena);
}

TEST(refit_tensors_that_make_no_sense) {
    ravel_refit_tensor good = {.name = "l.0.qkv", .dtype = RAVEL_F32, .ndim = 2, .dims = {48, 16}}, t = good;
    ravel_refit_rule rule = qkv_rule;
    t.name = "", expect_refused(&t, NULL, "has no name"), t = good;
    t.dtype = 99, expect_refused(&t, NULL, "there is no dtype 99"), t = good;
    t.ndim = 7, expect_refused(&t, NULL, "7 dimensions, at most 6"), t = good;
    t.dims[1] = -3, expect_refused(&t, NULL, "dimension 1 is -3"), t = good;
    t.dims[0] = t.dims[1] = INT64_MAX / 2, expect_refused(&t, NULL, "more than 2^63 bytes"), t = good;
    t.parts[0] = 4, t.index[0] = 4, expect_refused(&t, NULL, "index 4 of 4 parts"), t = good;
    t.start[1] = 10, t.extent[0] = 48, t.extent[1] = 7, expect_refused(&t, NULL, "do not lie in 0 .. 16"), t = good;
    t.strides[0] = -1, expect_refused(&t, NULL, "is negative"), t = good;
    t.dims[0] = 50, expect_refused(&t, &rule, "no multiple of heads + 2 * kv_heads"), t = good;
    t.parts[0] = 3, expect_refused(&t, &rule, "cannot be cut into this number of equal parts"), t = good;
    t.extent[0] = 4, t.extent[1] = 16, expect_refused(&t, &rule, "cut by parts and index"), t = good;
    rule.parts = "q,,v", expect_refused(&t, &rule, "separated by commas"), rule = qkv_rule;
    rule.parts = "q,k", expect_refused(&t, &rule, "three parts"), rule = qkv_rule;
    rule.parts = "q.*.*,k,v", expect_refused(&t, &rule, "more stars than the name"), rule = qkv_rule;
    rule.kv_heads = 3, expect_refused(&t, &rule, "multiple of kv_heads"), rule = qkv_rule;
    rule.dim = 2, expect_refused(&t, &rule, "no such dimension"), rule = qkv_rule;
    rule.stack = 4, expect_refused(&t, &rule, "its first dimension is not the stack"), rule = qkv_rule;
    rule.name = "l.*.qkv", rule.parts = "q,q,v", expect_refused(&t, &rule, "\"q\" twice");
}

/* ---- hello ------------------------------------------------------------------------------------------------ */

TEST(refit_hello_refuses_every_changed_byte) {
    ravel__hello a = {.roles = 3, .manifest_bytes = {99, 99}, .held = {7, 9, 0}};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__hello_seal(&a);
    CHECK_OK(ravel__hello_check(&a, &err), &err);
    for (size_t i = 0; i < sizeof a; i++) {
        ravel__hello b = a;
        ((unsigned char *)&b)[i] ^= 1;
        CHECK(ravel__hello_check(&b, NULL) != RAVEL_OK);
    }
}

/* A hello with a right checksum and a wrong number is refused, and the sentence names the field. */
TEST(refit_hello_refuses_absurd_numbers) {
    const ravel__hello fine = {.roles = 3, .manifest_bytes = {99, 99}, .settings = {2, 1, 4096, 1 << 20}};
    ravel__hello bad[9];
    ravel_error err = RAVEL_ERROR_INIT;
    for (int i = 0; i < 9; i++) bad[i] = fine;
    bad[0].settings.buffer_bytes = 300;
    bad[1].settings.num_buffers = 200;
    bad[2].manifest_bytes[0] = (int64_t)1 << 60;
    bad[3].manifest_bytes[1] = -1;
    bad[4].roles = 7;
    bad[5].held.version = -4;
    bad[6].delta = 1000;
    bad[7].manifest_bytes[1] = 0;
    ravel__hello_seal(&bad[8]);
    CHECK_OK(ravel__hello_check(&bad[8], &err), &err);
    for (int i = 0; i < 8; i++) {
        ravel_error_clear(&err);
        ravel__hello_seal(&bad[i]);
        CHECK_EQ(ravel__hello_check(&bad[i], &err), RAVEL_E_DATA);
        CHECK(strstr(err.message, "its hello says") == err.message);
    }
}
