/* The CUDA set against the reference: softmax statistics and gradients, losses, sampling. */
#include "tests/gpu/pair.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static train_limits head_limits(int64_t vocab) {
    return (train_limits){.tokens = 256,
                          .longest = 256,
                          .samples = 8,
                          .width = 1024,
                          .hidden = 256,
                          .heads = 4,
                          .kv_heads = 4,
                          .head_dim = 64,
                          .vocab = vocab};
}

enum { MOST_ROWS = 141, LOGIT = 3 }; /* more rows than run at a time; the size of logits */

/* Log-sum-exp and gradients that the fused form made have the bits of those that are made one after the other. `seed` is
 * the one that its logits came from. */
static void fused_bits(pair *p, train_softmax s, const pair_array *gradients, const pair_array *lse, uint64_t seed) {
    size_t n = (size_t)(s.rows * s.columns);
    float *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b);
    uint64_t now = p->seed;
    p->seed = seed;
    pair_array logits = pair_random(p, (int64_t)n, PAIR_ACTIVATION, LOGIT);
    p->seed = now;
    pair_array apart = pair_zeros(p, s.rows, PAIR_REAL), logprob = pair_zeros(p, s.rows, PAIR_REAL);
    s.logits = logits.on[CUDA_SIDE];
    s.lse = apart.on[CUDA_SIDE];
    s.logprob = logprob.on[CUDA_SIDE];
    p->set[CUDA_SIDE]->softmax_parts(p->device[CUDA_SIDE], &s);
    p->set[CUDA_SIDE]->softmax_combine(p->device[CUDA_SIDE], &s);
    p->set[CUDA_SIDE]->softmax_backward(p->device[CUDA_SIDE], &s);
    pair_read(p, lse, CUDA_SIDE, a);
    pair_read(p, &apart, CUDA_SIDE, b);
    CHECK(memcmp(a, b, (size_t)s.rows * sizeof *a) == 0);
    pair_read(p, gradients, CUDA_SIDE, a);
    pair_read(p, &logits, CUDA_SIDE, b);
    CHECK(memcmp(a, b, n * sizeof *a) == 0);
    free(a);
    free(b);
}

static void softmax_case(int64_t rows, int64_t columns, int64_t first, int fused) {
    pair p;
    train_limits limits = head_limits(columns);
    if (!pair_open(&p, &limits)) return;
    int32_t targets[MOST_ROWS];
    for (int i = 0; i < rows; i++)
        targets[i] = (int32_t)(fused ? pair_below(&p, columns) : pair_below(&p, columns + 2 * first));
    uint64_t seed = p.seed;
    pair_array x = pair_random(&p, rows * columns, PAIR_ACTIVATION, LOGIT), y = pair_ints(&p, targets, rows);
    pair_array parts = pair_zeros(&p, 4 * rows, PAIR_REAL), logprob = pair_zeros(&p, rows, PAIR_REAL);
    pair_array lse = pair_zeros(&p, rows, PAIR_REAL), entropy = pair_zeros(&p, rows, PAIR_REAL);
    pair_array coef = pair_random(&p, rows, PAIR_REAL, 1), bonus = pair_random(&p, rows, PAIR_REAL, 1);
    EACH_SIDE {
        train_softmax s = {
            .rows = rows, .columns = columns, .first = fused ? 0 : first, .logits = x.on[side], .scale = 0.7F};
        s.targets = y.on[side];
        s.parts = parts.on[side];
        s.ranks = 1;
        s.logprob = logprob.on[side];
        s.lse = lse.on[side];
        s.coef = coef.on[side];
        if (fused && p.set[side]->softmax_fused) {
            p.set[side]->softmax_fused(p.device[side], &s);
            if (side == CUDA_SIDE) fused_bits(&p, s, &x, &lse, seed);
            continue;
        }
        if (!fused) {
            s.entropy = entropy.on[side];
            s.entropy_coef = bonus.on[side];
        }
        p.set[side]->softmax_parts(p.device[side], &s);
        p.set[side]->softmax_combine(p.device[side], &s);
        p.set[side]->softmax_backward(p.device[side], &s);
    }
    NEAR(&p, &lse, 1e-4);
    if (first == 0) NEAR(&p, &logprob, 1e-4);
    NEAR(&p, &entropy, 1e-3);
    /* Gradients are tiny but for the target's: compare with the largest, not with the root mean square. */
    float *a = malloc((size_t)(rows * columns) * sizeof *a), *b = malloc((size_t)(rows * columns) * sizeof *b);
    double worst = 0, most = 0;
    pair_read(&p, &x, REF_SIDE, a);
    pair_read(&p, &x, CUDA_SIDE, b);
    for (int64_t i = 0; i < rows * columns; i++) {
        worst = fmax(worst, fabs((double)a[i] - b[i]));
        most = fmax(most, fabs((double)a[i]));
    }
    if (!(worst < 0.006 * most)) check_fail(__FILE__, __LINE__, "gradients differ by %g of %g", worst, most);
    free(a);
    free(b);
    pair_close(&p);
}

TEST(cuda_softmax) {
    softmax_case(140, 1000, 0, 0);
    softmax_case(140, 1000, 300, 0);
    softmax_case(140, 257, 0, 0);
    softmax_case(140, 20000, 0, 0);
    softmax_case(140, 1000, 0, 1);
    softmax_case(140, 257, 0, 1);
    softmax_case(140, 20000, 0, 1);
}

/* Rows that a cluster of blocks holds, and the first that it does not. */
TEST(cuda_softmax_large) {
    softmax_case(MOST_ROWS, 65536, 0, 1);
    softmax_case(1, 65544, 0, 1);
    softmax_case(67, 151936, 0, 1);
    softmax_case(3, 163840, 0, 1);
    softmax_case(3, 163848, 0, 1);
}

TEST(cuda_losses) {
    enum { ROWS = 1500 };
    static const train_policy_terms terms[] = {
        {.clip_low = 0.2, .clip_high = 0.28, .kl_kind = TRAIN_KL_K3, .kl = 0.1, .gap = TRAIN_GAP_OLD},
        {.clip_low = 0.2, .clip_high = 0.2, .dual_clip = 3, .gap = TRAIN_GAP_NOW},
        {.clip_low = 0.1, .clip_high = 0.2, .kl_kind = TRAIN_KL_K2, .kl = 0.3, .entropy = 0.01},
        {.sequence = 1, .clip_low = 0.02, .clip_high = 0.03, .kl_kind = TRAIN_KL_K3, .kl = 0.05},
    };
    for (int i = -1; i < 4 * RAVEL_CORRECTIONS; i++) {
        pair p;
        train_policy_terms own = terms[i < 0 ? 0 : i % 4];
        if (i >= 0) (void)ravel_policy_get_correction(i / 4, 0, 0, &own.correction, NULL);
        if (own.sequence && own.correction.now) continue;
        train_limits limits = head_limits(1000);
        if (!pair_open(&p, &limits)) return;
        int32_t samples[ROWS];
        for (int r = 0; r < ROWS; r++) samples[r] = r / 190;
        pair_array now = pair_random(&p, ROWS, PAIR_REAL, 0.5F), old = pair_random(&p, ROWS, PAIR_REAL, 0.5F);
        pair_array gen = pair_random(&p, ROWS, PAIR_REAL, 0.5F), ref = pair_random(&p, ROWS, PAIR_REAL, 0.5F);
        pair_array adv = pair_random(&p, ROWS, PAIR_REAL, 1), w = pair_random(&p, ROWS, PAIR_REAL, 1),
                   ent = pair_random(&p, ROWS, PAIR_REAL, 1);
        pair_array in = pair_ints(&p, samples, ROWS), coef = pair_zeros(&p, ROWS, PAIR_REAL),
                   e_coef = pair_zeros(&p, ROWS, PAIR_REAL);
        pair_array sums = pair_zeros(&p, sizeof(train_loss_sums) / 8, PAIR_DOUBLE),
                   sequences = pair_zeros(&p, 8 * sizeof(train_sequence_sums) / 8, PAIR_DOUBLE);
        EACH_SIDE {
            train_loss_rows l = {.rows = ROWS, .logprob = now.on[side], .entropy = ent.on[side], .weights = w.on[side]};
            l.old = old.on[side];
            l.generator = gen.on[side];
            l.reference = ref.on[side];
            l.advantages = adv.on[side];
            l.samples = in.on[side];
            l.sequences = sequences.on[side];
            l.coef = coef.on[side];
            l.entropy_coef = e_coef.on[side];
            l.sums = sums.on[side];
            l.policy = i < 0 ? NULL : &own;
            if (i >= 0 && train__terms_couple(&own)) p.set[side]->sequence_sums(p.device[side], &l, sequences.on[side]);
            p.set[side]->loss(p.device[side], &l);
        }
        NEAR(&p, &sequences, 1e-5);
        NEAR(&p, &coef, 1e-4);
        NEAR(&p, &e_coef, 1e-5);
        NEAR(&p, &sums, 1e-4);
        pair_close(&p);
    }
}

/* Logits are multiples of a step, so many tokens tie. */
TEST(cuda_sampling) {
    enum { ROWS = 200, VOCAB = 3001 };
    pair p;
    train_limits limits = head_limits(VOCAB);
    limits.inference = 1;
    if (!pair_open(&p, &limits)) return;
    train_choice choices[ROWS];
    for (int r = 0; r < ROWS; r++) {
        static const float p_values[] = {1, 0.9F, 0.5F, 0.05F}, min_values[] = {0, 0.02F, 0.3F};
        choices[r] = (train_choice){.temperature = r % 10 == 0 ? 0 : 0.5F + 0.1F * (float)(r % 7)};
        choices[r].top_p = p_values[r % 4];
        choices[r].top_k = r % 3 == 0 ? 0 : 1 + (int32_t)pair_below(&p, 60);
        choices[r].min_p = min_values[r % 5 % 3];
        choices[r].uniform = (float)(pair_next(&p) >> 8) / 16777216.0F;
    }
    pair_array logits = pair_random(&p, ROWS * VOCAB, PAIR_ACTIVATION, 3);
    pair_array c = pair_reals(&p, (const float *)(const void *)choices, ROWS * (int64_t)(sizeof *choices / 4));
    pair_array tokens = pair_zeros(&p, ROWS, PAIR_INT), logprob = pair_zeros(&p, ROWS, PAIR_REAL),
               kept = pair_zeros(&p, ROWS, PAIR_REAL);
    float a[ROWS], b[ROWS];
    EACH_SIDE {
        train_sample s = {
            .rows = ROWS, .vocab = VOCAB, .logits = logits.on[side], .choices = c.on[side], .tokens = tokens.on[side]};
        s.logprob = logprob.on[side];
        s.kept_logprob = kept.on[side];
        p.set[side]->sample(p.device[side], &s);
    }
    pair_read(&p, &tokens, REF_SIDE, a);
    pair_read(&p, &tokens, CUDA_SIDE, b);
    int other = 0;
    for (int r = 0; r < ROWS; r++) other += a[r] != b[r];
    if (other > 0) check_fail(__FILE__, __LINE__, "%d of %d rows draw another token than the reference", other, ROWS);
    if (other == 0) {
        NEAR(&p, &logprob, 1e-4);
        NEAR(&p, &kept, 1e-3);
    }
    pair_close(&p);
}
