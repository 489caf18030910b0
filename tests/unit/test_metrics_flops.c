/* FLOPs against hand-worked counts and against a sum over every sample, layer and position. GPU peaks. */
#include "tests/unit/check.h"

#include "base/rng.h"

#include <ravel/flops.h>

#include <stdlib.h>

typedef unsigned __int128 u128;

static u128 wide(ravel_u128 x) {
    return (u128)x.high << 64 | x.low;
}

static ravel_shape named(const char *name) {
    ravel_shape shape = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel_shape_named(name, &shape, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
    return shape;
}

static ravel_flops count(const ravel_shape *shape, const int64_t *lengths, int64_t n, ravel_recompute recompute) {
    ravel_lengths_sum sum = {0};
    ravel_flops flops = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_lengths_add(&sum, lengths, n);
    if (ravel_flops_count(shape, &sum, sum.tokens, recompute, &flops, &err))
        check_fail(__FILE__, __LINE__, "%s", err.message);
    return flops;
}

/* ---- by hand -------------------------------------------------------------------------------------------- */

/* Two samples, 1000 and 24 tokens: T = 1024 tokens, and 1000 * 1001 / 2 + 24 * 25 / 2 = 500,500 + 300 = 500,800 pairs.
 */
static const int64_t two[] = {1000, 24};

TEST(flops_of_qwen3_06b_by_hand) {
    /* hidden 1024, 28 layers, 16 heads and 8 kv heads of 128, ffn 3072, vocabulary 151,936 */
    const uint64_t q = 1024 * 2048;          /*   2,097,152 */
    const uint64_t kv = 2 * 1024 * 1024;     /*   2,097,152 */
    const uint64_t out = 2048 * 1024;        /*   2,097,152 */
    const uint64_t ffn = 3 * 1024 * 3072;    /*   9,437,184 */
    const uint64_t layer = 15728640;         /* the sum of the four */
    const uint64_t layers = 440401920;       /* 28 of them */
    const uint64_t head = 155582464;         /* 1024 * 151,936 */
    const uint64_t token = 595984384;        /* layers + head: multiply-adds of one token */
    const uint64_t pair = 2 * 16 * 128 * 28; /* 114,688: a score and a value, each of 2048, in 28 layers */
    CHECK_EQ(q + kv + out + ffn, layer);
    CHECK_EQ(28 * layer, layers);
    CHECK_EQ(UINT64_C(1024) * 151936, head);
    CHECK_EQ(layers + head, token);
    const uint64_t forward = 2 * (1024 * token + 500800 * pair);
    CHECK_EQ(forward, UINT64_C(1335447519232)); /* 2 * (610,288,009,216 + 57,435,750,400) */
    ravel_shape shape = named("qwen3-0.6b");
    ravel_flops f = count(&shape, two, 2, RAVEL_RECOMPUTE_NONE);
    CHECK(wide(f.forward) == forward && wide(f.backward) == 2 * (u128)forward && wide(f.model) == 3 * (u128)forward);
    CHECK(wide(f.hardware) == wide(f.model) && wide(f.recompute) == 0);
    f = count(&shape, two, 2, RAVEL_RECOMPUTE_FULL);
    CHECK(wide(f.recompute) == forward - 2 * 1024 * head); /* the head is not run again */
    f = count(&shape, two, 2, RAVEL_RECOMPUTE_ATTENTION);
    CHECK(wide(f.recompute) == 2 * 500800 * pair && wide(f.hardware) == wide(f.model) + wide(f.recompute));
}

/* Backward of a frozen weight is one product, not two; of the first layer's q, k and v none; of the adapter's weights two. */
TEST(flops_of_an_adapter_by_hand) {
    const int64_t adapter = 28 * 16 * (1024 + 2048); /* rank 16 on q */
    const uint64_t tokens = 1024, layers = 440401920, head = 155582464, pair = 114688, pairs = 500800;
    const uint64_t below = 2 * 2097152; /* q, and k with v */
    ravel_lengths_sum sum = {0};
    ravel_flops f = {0};
    ravel_shape shape = named("qwen3-0.6b");
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_lengths_add(&sum, two, 2);
    CHECK_OK(ravel_flops_adapted(&shape, &sum, 1000, adapter, RAVEL_RECOMPUTE_FULL, &f, &err), &err);
    const u128 again = 2 * (tokens * (layers + adapter) + pairs * pair);
    CHECK(wide(f.recompute) == again && wide(f.forward) == again + 2 * 1000 * head);
    CHECK(wide(f.backward) == 2 * (tokens * (layers - below) + 1000 * head) + 4 * (tokens * adapter + pairs * pair));
    CHECK(wide(f.model) == wide(f.forward) + wide(f.backward) && wide(f.hardware) == wide(f.model) + again);
    CHECK_EQ(ravel_flops_adapted(&shape, &sum, 1000, -1, RAVEL_RECOMPUTE_FULL, &f, &err), RAVEL_E_ARGUMENT);
}

TEST(flops_of_llama3_8b_by_hand) {
    /* hidden 4096, 32 layers, 32 heads and 8 kv heads of 128, ffn 14,336, vocabulary 128,256, untied head */
    const uint64_t attention = 16777216 + 2 * 4194304 + 16777216; /* q, k and v, out: 41,943,040 */
    const uint64_t ffn = 176160768;                               /* 3 * 4096 * 14,336 */
    const uint64_t token = 32 * (attention + ffn) + 525336576;    /* 4096 * 128,256 */
    CHECK_EQ(token, 7504658432); /* 8.03 billion parameters less 525 million of embeddings less norms */
    const uint64_t pair = 2 * 4096 * 32;
    const uint64_t forward = 2 * (1024 * token + 500800 * pair);
    CHECK_EQ(forward, UINT64_C(15632103899136));
    ravel_shape shape = named("llama-8b");
    ravel_flops f = count(&shape, two, 2, RAVEL_RECOMPUTE_NONE);
    CHECK(wide(f.forward) == forward);
    /* With as many kv heads as heads, only k and v grow: 2 * 3 * 4,194,304 more in each layer; scores stay. */
    shape.kv_heads = 32;
    f = count(&shape, two, 2, RAVEL_RECOMPUTE_NONE);
    CHECK(wide(f.forward) == forward + 2 * (uint64_t)1024 * 32 * 6 * 4194304);
    shape.tied = 1; /* changes nothing */
    CHECK(wide(count(&shape, two, 2, RAVEL_RECOMPUTE_NONE).forward) == wide(f.forward));
}

TEST(flops_of_mixtral_and_qwen3_moe_by_hand) {
    /* Mixtral-8x7B: hidden 4096, 32 layers, 32 heads, 8 kv heads, 2 of 8 experts of 14,336, vocabulary 32,000 */
    const uint64_t attention = 41943040, router = 4096 * 8, experts = 2 * UINT64_C(176160768);
    const uint64_t token = 32 * (attention + router + experts) + 4096 * 32000;
    CHECK_EQ(token, 12748587008); /* "13 billion active parameters" */
    ravel_shape shape = named("mixtral-8x7b");
    ravel_flops f = count(&shape, two, 2, RAVEL_RECOMPUTE_NONE);
    CHECK(wide(f.forward) == 2 * (1024 * (u128)token + (u128)500800 * 2 * 4096 * 32));
    /* Qwen3-30B-A3B: hidden 2048, 48 layers, 32 heads and 4 kv heads of 128, 8 of 128 experts of 768, 151,936 */
    const uint64_t layer = 2048 * 4096 + 2 * 2048 * 512 + 4096 * 2048 /* attention: 18,874,368 */
                           + 2048 * 128                               /* router:       262,144 */
                           + 8 * 3 * 2048 * 768;                      /* experts:   37,748,736 */
    CHECK_EQ(layer, 56885248);
    shape = named("qwen3-30b-a3b");
    f = count(&shape, two, 2, RAVEL_RECOMPUTE_NONE);
    const u128 forward = 2 * (1024 * ((u128)48 * layer + UINT64_C(2048) * 151936) + (u128)500800 * 2 * 4096 * 48);
    CHECK(wide(f.forward) == forward);
    /* A shared expert of 1000 and two dense layers of 6144 */
    shape.shared_ffn = 1000;
    shape.dense_layers = 2;
    f = count(&shape, two, 2, RAVEL_RECOMPUTE_NONE);
    const u128 change = (u128)46 * 3 * 2048 * 1000 + (u128)2 * 3 * 2048 * 6144 - (u128)2 * (2048 * 128 + 37748736);
    CHECK(wide(f.forward) == forward + 2 * 1024 * change);
}

/* ---- sample by sample ----------------------------------------------------------------------------------- */

/* Layer by layer and position by position, no sums of squares. */
static u128 forward_of_sample(const ravel_shape *s, int64_t length) {
    u128 macs = 0, d = (u128)s->heads * s->head_dim, k = (u128)s->kv_heads * s->head_dim, h = s->hidden;
    for (int64_t layer = 0; layer < s->layers; layer++) {
        int dense = !s->experts || layer < s->dense_layers;
        u128 block =
            dense ? (u128)(s->gated ? 3 : 2) * h * s->ffn
                  : h * s->experts + (u128)(s->gated ? 3 : 2) * h * (s->experts_active * s->expert_ffn + s->shared_ffn);
        for (int64_t t = 0; t < length; t++) macs += h * d + 2 * h * k + d * h + block + 2 * d * (u128)(t + 1);
    }
    return 2 * (macs + (u128)length * h * s->vocab);
}

TEST(flops_from_sums_equal_a_sum_over_samples_bit_for_bit) {
    static const char *const names[] = {"qwen3-0.6b", "llama-8b", "mixtral-8x7b", "qwen3-30b-a3b"};
    ravel__rng r = ravel__rng_seed(check_seed());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ravel_shape shape = named(names[i]);
        int64_t lengths[40];
        u128 by_sample = 0, one_by_one = 0;
        int64_t n = check_scale(12, 40);
        for (int64_t j = 0; j < n; j++) {
            lengths[j] = 1 + (int64_t)ravel__rng_below(&r, 3000);
            by_sample += forward_of_sample(&shape, lengths[j]);
            one_by_one += wide(count(&shape, &lengths[j], 1, RAVEL_RECOMPUTE_NONE).model);
        }
        ravel_flops f = count(&shape, lengths, n, RAVEL_RECOMPUTE_NONE);
        CHECK(wide(f.forward) == by_sample);
        CHECK(wide(f.model) == 3 * by_sample && wide(f.model) == one_by_one);
    }
}

TEST(flops_lengths_sums_are_exact_and_merge) {
    ravel__rng r = ravel__rng_seed(check_seed());
    enum { N = 10000 };
    int64_t *lengths = malloc(N * sizeof *lengths);
    CHECK(lengths);
    u128 squares = 0;
    int64_t tokens = 0;
    for (int i = 0; i < N; i++) {
        lengths[i] =
            i % 3 ? 1 + (int64_t)ravel__rng_below(&r, 100000) : (INT64_C(1) << 31) - (int64_t)ravel__rng_below(&r, 9);
        tokens += lengths[i];
        squares += (u128)lengths[i] * (u128)lengths[i];
    }
    CHECK(squares >> 64); /* the point of 128 bits */
    ravel_lengths_sum all = {0}, left = {0}, right = {0}, none = {0};
    ravel_lengths_add(&all, lengths, N);
    ravel_lengths_add(&left, lengths, 1234);
    ravel_lengths_add(&right, lengths + 1234, N - 1234);
    ravel_lengths_merge(&left, &right);
    ravel_lengths_merge(&left, &none);
    CHECK(wide(all.squares) == squares && all.tokens == tokens && all.samples == N);
    CHECK(memcmp(&all, &left, sizeof all) == 0);
    ravel_lengths_merge(&none, &all);
    CHECK(memcmp(&all, &none, sizeof all) == 0);
    const int64_t odd[] = {0, -5, 3};
    ravel_lengths_sum small = {0};
    ravel_lengths_add(&small, odd, 3); /* what is no length is left out */
    CHECK(small.samples == 1 && small.tokens == 3 && small.shortest == 3 && small.longest == 3);
    free(lengths);
}

TEST(flops_refuse_and_overflow_with_a_sentence) {
    ravel_shape shape = named("llama-8b"), empty = {0};
    ravel_lengths_sum sum = {.samples = 1, .tokens = 10};
    ravel_flops f = {.model = {1, 2}};
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(ravel_flops_count(&empty, &sum, 1, RAVEL_RECOMPUTE_NONE, &f, &err) != RAVEL_OK);
    ravel_error_clear(&err);
    CHECK_EQ(ravel_flops_count(&shape, &sum, -1, RAVEL_RECOMPUTE_NONE, &f, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "none|attention|full");
    ravel_error_clear(&err);
    sum.squares.high = UINT64_MAX / 4;
    CHECK_EQ(ravel_flops_count(&shape, &sum, 1, RAVEL_RECOMPUTE_NONE, &f, &err), RAVEL_E_OVERFLOW);
    CHECK(f.model.high == 1 && f.model.low == 2);
}

TEST(flops_as_a_real_number) {
    CHECK(ravel_flops_real((ravel_u128){1, 0}) == 0x1p64);
}

/* ---- peaks ---------------------------------------------------------------------------------------------- */

TEST(flops_peaks_of_known_gpus_only) {
    static const struct {
        const char *name;
        double teraflops;
    } cases[] = {{"NVIDIA H100 80GB HBM3", 989.4},
                 {"NVIDIA H100 PCIe", 756},
                 {"NVIDIA H100 NVL", 835.5},
                 {"h100", 989.4},
                 {"NVIDIA H200", 989.4},
                 {"NVIDIA H200 NVL", 835.5},
                 {"NVIDIA GH200 480GB", 989.4},
                 {"NVIDIA A100-SXM4-80GB", 312},
                 {"NVIDIA A100 80GB PCIe", 312},
                 {"NVIDIA A100-PCIE-40GB", 312},
                 {"NVIDIA L40S", 362.05},
                 {"NVIDIA L4", 121},
                 {"NVIDIA B200", 2250},
                 {"NVIDIA H20", 148},
                 {"NVIDIA GeForce RTX 4090", 165.2},
                 {"NVIDIA GeForce RTX 4090 D", 147.1},
                 {"AMD Instinct MI300X", 1307.4},
                 {"AMD Instinct MI300X OAM", 1307.4},
                 /* not surely known */
                 {"NVIDIA GeForce RTX 4090 Laptop GPU", 0},
                 {"NVIDIA A100-SXM4-80GB MIG 1g.10gb", 0},
                 {"NVIDIA H100 80GB HBM3 MIG 3g.40gb", 0},
                 {"NVIDIA H300", 0},
                 {"AMD Instinct MI250X", 0},
                 {"Tesla V100-SXM2-16GB", 0},
                 {"", 0},
                 {"NVIDIA", 0},
                 {"80GB", 0},
                 {"a b c d e f g h i j k l m n o p q H100", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (ravel_gpu_peak(cases[i].name) != cases[i].teraflops * 1e12)
            check_fail(__FILE__, __LINE__, "%s: %g", cases[i].name, ravel_gpu_peak(cases[i].name));
    CHECK(ravel_gpu_peak(NULL) == 0);
    double peak;
    int32_t rows = 0;
    for (const char *name; (name = ravel_gpu_name(rows, &peak)); rows++) CHECK(ravel_gpu_peak(name) == peak);
    CHECK(rows > 20 && !ravel_gpu_name(-1, NULL));
}
