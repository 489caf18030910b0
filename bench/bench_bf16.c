/* Weights in bf16 on a CPU against the same in f32, one thread: a large product with them, and that of one step of a
 * generator. */
#include "bench/bench.h"
#include "train/kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>

enum { TOKENS = 512, WIDTH = 2048, STEP_ROWS = 4, STEP_WIDTH = 5120, REPEATS = 5 };

static const char *const sets[] = {"cpu", "cpu-bf16", "cpu-avx512bf16"};
enum { SETS = sizeof sets / sizeof *sets };

typedef struct job {
    const train_kernels *kernels;
    train_device *device;
    train_matmul product;
} job;

static void multiply(void *user) {
    const job *j = user;
    j->kernels->matmul(j->device, &j->product);
}

/* Seconds of a product of `rows` rows; 0: this machine does not have the set. */
static double seconds(const char *set, int64_t rows, int64_t width, int invariant) {
    const train_limits limits = {.tokens = rows, .width = width};
    job j = {0};
    double best = 0;
    if (train_kernels_find(set, &j.kernels, NULL)) return 0;
    if (j.kernels->open(NULL, &j.device, NULL) || j.kernels->reserve(j.device, &limits, NULL)) exit(1);
    size_t each = (size_t)ravel_dtype_bytes(j.kernels->types.weight);
    float *a = calloc((size_t)(rows * width), sizeof *a), *c = calloc((size_t)(rows * width), sizeof *c);
    void *b = calloc((size_t)(width * width), each);
    if (!a || !b || !c) exit(1);
    j.product = (train_matmul){.m = rows, .n = width, .k = width, .a = a, .b = b, .c = c, .trans_b = 1};
    j.product.a_type = j.product.c_type = RAVEL_F32;
    j.product.b_type = j.kernels->types.weight;
    j.product.batch_invariant = invariant;
    best = bench_best(REPEATS, multiply, &j);
    j.kernels->close(j.device);
    free(a), free(b), free(c);
    return best;
}

BENCH(train_bf16) {
    double product[SETS], step[SETS];
    for (int i = 0; i < SETS; i++) {
        product[i] = seconds(sets[i], TOKENS, WIDTH, 0);
        step[i] = seconds(sets[i], STEP_ROWS, STEP_WIDTH, 1);
    }
    bench_report("train.bf16_vs_f32", product[0] / product[1], "x", HIGHER,
                 "speed of %d x %d x %d with weights in bf16 over f32, one thread, %.0f GFLOP/s", TOKENS, WIDTH, WIDTH,
                 2e-9 * TOKENS * WIDTH * WIDTH / product[1]);
    if (product[2] > 0)
        bench_report("train.avx512bf16_vs_f32", product[0] / product[2], "x", HIGHER,
                     "the same by AVX512-BF16, %.0f GFLOP/s", 2e-9 * TOKENS * WIDTH * WIDTH / product[2]);
    bench_report("generate.bf16_vs_f32", step[0] / step[1], "x", HIGHER,
                 "%d rows by a matrix of %d x %d, as a step of a generator, which reads weights once", STEP_ROWS,
                 STEP_WIDTH, STEP_WIDTH);
}
