#include "bench/train_profile.h"

#include "bench/bench.h"

#include <stdio.h>
#include <string.h>

static const train_kernels *real;
static train_kernels timed;
static profile_row table[PROFILE_ROWS];
static int used;

static void add(const char *name, double began, double flops) {
    double took = bench_seconds() - began;
    int i = 0;
    while (i < used && strcmp(table[i].name, name) != 0) i++;
    if (i == PROFILE_ROWS) return;
    if (i == used) (void)snprintf(table[used++].name, sizeof table->name, "%s", name);
    table[i].seconds += took;
    table[i].flops += flops;
    table[i].calls++;
}

static void time_matmul(train_device *d, const train_matmul *x) {
    char name[sizeof table->name];
    double began = bench_seconds();
    real->matmul(d, x);
    (void)snprintf(name, sizeof name, "matmul %lldx%lldx%lld %c%c%s", (long long)x->m, (long long)x->n, (long long)x->k,
                   x->trans_a ? 'T' : 'N', x->trans_b ? 'T' : 'N', x->add ? " +=" : "");
    add(name, began, 2.0 * (double)x->m * (double)x->n * (double)x->k);
}

/* Slots of the form (device, const arguments *). */
#define SLOTS(X)                           \
    X(copy_rows, train_rows)               \
    X(embed, train_embedding)              \
    X(embed_backward, train_embedding)     \
    X(rmsnorm, train_norm)                 \
    X(rmsnorm_backward, train_norm)        \
    X(rope, train_rope)                    \
    X(rope_backward, train_rope)           \
    X(attention, train_attention)          \
    X(attention_backward, train_attention) \
    X(gated, train_gated)                  \
    X(gated_backward, train_gated)         \
    X(softmax_parts, train_softmax)        \
    X(softmax_combine, train_softmax)      \
    X(softmax_backward, train_softmax)     \
    X(loss, train_loss_rows)               \
    X(adamw, train_adamw)

#define TIMED(slot, type)                                     \
    static void time_##slot(train_device *d, const type *x) { \
        double began = bench_seconds();                       \
        real->slot(d, x);                                     \
        add(#slot, began, 0);                                 \
    }
SLOTS(TIMED)

static void time_zero(train_device *d, void *block, size_t bytes) {
    double began = bench_seconds();
    real->zero(d, block, bytes);
    add("zero", began, 0);
}

static void time_sum_squares(train_device *d, const void *grads, int64_t n, int64_t span, double *sums) {
    double began = bench_seconds();
    real->sum_squares(d, grads, n, span, sums);
    add("sum_squares", began, 0);
}

const train_kernels *profile_wrap(const train_kernels *kernels) {
    real = kernels;
    timed = *kernels;
#define WRAP(slot, type) timed.slot = time_##slot;
    SLOTS(WRAP)
    timed.matmul = time_matmul;
    timed.zero = time_zero;
    timed.sum_squares = time_sum_squares;
    return &timed;
}

void profile_clear(void) {
    used = 0;
    memset(table, 0, sizeof table);
}

int profile_take(profile_row rows[PROFILE_ROWS], int steps) {
    for (int i = 0; i < used; i++) {
        rows[i] = table[i];
        rows[i].seconds /= steps;
        rows[i].flops /= steps;
        rows[i].calls /= steps;
    }
    return used;
}
