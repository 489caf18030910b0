/* The reference set and the CUDA set side by side: the same values on both, rounded to bf16 first, the same call, and
 * the largest difference of what came out.
 *
 *     pair p;
 *     if (!pair_open(&p, &limits)) return;
 *     pair_array x = pair_random(&p, n, PAIR_ACTIVATION, 1), y = pair_zeros(&p, n, PAIR_ACTIVATION);
 *     EACH_SIDE p.set[side]->scale(p.device[side], y.on[side], x.on[side], 2, n);
 *     NEAR(&p, &y, 0.01);
 *     pair_close(&p);
 */
#ifndef TESTS_GPU_PAIR_H
#define TESTS_GPU_PAIR_H

#include "tests/unit/check.h"
#include "train/kernels/kernels.h"

enum { REF_SIDE, CUDA_SIDE, SIDES };
typedef enum pair_kind { PAIR_ACTIVATION, PAIR_WEIGHT, PAIR_GRAD, PAIR_REAL, PAIR_INT, PAIR_DOUBLE } pair_kind;

#define EACH_SIDE for (int side = 0; side < SIDES; side++)
/* Fails the test where the two sides of an array differ by `most` or more. */
#define NEAR(p, array, most)                                                                                    \
    do {                                                                                                        \
        double near_d = pair_difference(p, array);                                                              \
        if (!(near_d < (most))) check_fail(__FILE__, __LINE__, "%s differs by %g of its size", #array, near_d); \
    } while (0)

enum { PAIR_ARRAYS = 64 };

typedef struct pair_array {
    void *on[SIDES];
    int64_t n;
    pair_kind kind;
} pair_array;

typedef struct pair {
    const train_kernels *set[SIDES];
    train_device *device[SIDES];
    pair_array arrays[PAIR_ARRAYS]; /* released by pair_close */
    int count;
    uint64_t seed;
} pair;

/* false: there is no GPU or no CUDA set (the test is then skipped, with the reason), or something failed. */
bool pair_open(pair *p, const train_limits *limits);
/* Frees everything; a failure that a device kept fails the test. */
void pair_close(pair *p);

/* Values about normal(0, scale), rounded to the CUDA side's type on both sides. */
pair_array pair_random(pair *p, int64_t n, pair_kind kind, float scale);
pair_array pair_zeros(pair *p, int64_t n, pair_kind kind);
pair_array pair_ints(pair *p, const int32_t *values, int64_t n);
pair_array pair_reals(pair *p, const float *values, int64_t n);
/* As floats, from one side. */
void pair_read(pair *p, const pair_array *a, int side, float *values);
/* max of |cuda - ref| / (rms(ref) + |ref|): bf16 rounds large numbers in larger steps. Anything that is not finite on one side alone counts as 1e9. */
double pair_difference(pair *p, const pair_array *a);
/* Random numbers of the test. */
uint32_t pair_next(pair *p);
int64_t pair_below(pair *p, int64_t n);

#endif
