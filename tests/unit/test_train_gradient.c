/* Every backward kernel against finite differences of its forward, in double: the reference set compiled once more with
 * train_real = double. Each test builds a scalar, sum(cotangent * output), and moves every input element a little. */
#define TRAIN_DOUBLE
#include "train/kernels/ref/ref.c"
#include "train/kernels/ref/layers.c"
#include "train/kernels/ref/experts.c"
#include "train/kernels/ref/head.c"
#include "train/kernels/ref/top.c"
#include "train/kernels/ref/attention.c"
#include "train/kernels/ref/loss.c"

#include "tests/unit/check.h"

#include "base/rng.h"
#include "tests/unit/normal.h"

#include <stdlib.h>

typedef struct problem {
    double (*value)(void *user); /* the scalar, from the inputs as they are now */
    void *user;
} problem;

static ravel__rng rng;

static double *random_array(int64_t n, double size) {
    double *x = malloc((size_t)n * sizeof *x);
    for (int64_t i = 0; i < n; i++) x[i] = size * ravel__rng_normal(&rng);
    return x;
}

static double *zeros(int64_t n) {
    return calloc((size_t)n, sizeof(double));
}

static double inner(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static double difference(const problem *p, double *x, double h) {
    double keep = *x;
    *x = keep + h;
    double up = p->value(p->user);
    *x = keep - h;
    double down = p->value(p->user);
    *x = keep;
    return (up - down) / (2 * h);
}

/* Central differences of p->value over each x[i], against gradient[i]; of two widths, so that the third derivative falls out. */
static bool agrees(const problem *p, const char *what, double *x, const double *gradient, int64_t n) {
    double worst = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double slope = (4 * difference(p, &x[i], 5e-4) - difference(p, &x[i], 1e-3)) / 3;
        worst = fmax(worst, fabs(slope - gradient[i]));
        size = fmax(size, fabs(gradient[i]));
    }
    if (worst <= 1e-7 * size && size > 0) return true;
    check_fail(__FILE__, __LINE__, "%s: gradient up to %g is wrong by %g", what, size, worst);
    return false;
}

/* ---- products ------------------------------------------------------------------------------------------- */

enum { M = 3, N = 4, K = 5 };

typedef struct product {
    double *a, *b, *cotangent;
    int trans_a, trans_b;
} product;

static double product_value(void *user) {
    product *p = user;
    double c[M * N];
    train_matmul x = {.m = M, .n = N, .k = K, .a = p->a, .b = p->b, .c = c};
    x.trans_a = p->trans_a;
    x.trans_b = p->trans_b;
    REF(matmul)(NULL, &x);
    return inner(c, p->cotangent, M * N);
}

/* The gradients of a product are products: d_a = g b', d_b = a' g, in the four layouts. */
TEST(train_gradient_of_matmul) {
    rng = ravel__rng_seed(check_seed());
    for (int layout = 0; layout < 4; layout++) {
        product p = {random_array(M * K, 1), random_array(K * N, 1), random_array(M * N, 1), layout & 1, layout >> 1};
        double *d_a = zeros(M * K), *d_b = zeros(K * N);
        train_matmul a = {
            .m = M, .n = K, .k = N, .a = p.cotangent, .b = p.b, .c = d_a, .trans_b = !p.trans_b, .add = 1};
        if (p.trans_a) a = (train_matmul){.m = K, .n = M, .k = N, .a = p.b, .b = p.cotangent, .c = d_a, .trans_b = 1};
        if (p.trans_a) a.trans_a = p.trans_b;
        train_matmul b = {.m = K, .n = N, .k = M, .a = p.a, .b = p.cotangent, .c = d_b, .trans_a = !p.trans_a};
        if (p.trans_b) b = (train_matmul){.m = N, .n = K, .k = M, .a = p.cotangent, .b = p.a, .c = d_b, .trans_a = 1};
        if (p.trans_b) b.trans_b = p.trans_a;
        REF(matmul)(NULL, &a);
        REF(matmul)(NULL, &b);
        problem q = {product_value, &p};
        EXPECT(agrees(&q, "a", p.a, d_a, M * K));
        EXPECT(agrees(&q, "b", p.b, d_b, K * N));
        free(p.a), free(p.b), free(p.cotangent), free(d_a), free(d_b);
    }
}

/* ---- rows ----------------------------------------------------------------------------------------------- */

enum { ROWS = 7, WIDTH = 5, TABLE = 4 };
/* The table holds ids 5 to 8. Row 8 is never picked: its gradient is 0; 3 and 9 are elsewhere: rows of zeros. */
static const int32_t picks[ROWS] = {7, 5, 7, 3, 7, 5, 9}, by_id[ROWS] = {3, 1, 5, 0, 2, 4, 6};

typedef struct lookup {
    double *table, *bias, *cotangent;
} lookup;

static double lookup_value(void *user) {
    lookup *p = user;
    double y[ROWS * WIDTH];
    train_embedding x = {.rows = ROWS, .width = WIDTH, .first = 5, .count = TABLE, .ids = picks, .table = p->table};
    x.y = y;
    REF(embed)(NULL, &x);
    REF(bias)(NULL, y, p->bias, ROWS, WIDTH, WIDTH);
    for (int i = 0; i < ROWS * WIDTH; i++) y[i] = y[i] * y[i];
    return inner(y, p->cotangent, ROWS * WIDTH);
}

TEST(train_gradient_of_rows_and_bias) {
    rng = ravel__rng_seed(check_seed());
    lookup p = {random_array(TABLE * WIDTH, 1), random_array(WIDTH, 1), random_array(ROWS * WIDTH, 1)};
    double *d_table = zeros(TABLE * WIDTH), *d_bias = zeros(WIDTH), d_y[ROWS * WIDTH];
    for (int i = 0; i < ROWS * WIDTH; i++)
        d_y[i] =
            2 * p.cotangent[i] *
            ((picks[i / WIDTH] == 3 || picks[i / WIDTH] == 9 ? 0
                                                             : p.table[(picks[i / WIDTH] - 5) * WIDTH + i % WIDTH]) +
             p.bias[i % WIDTH]);
    train_embedding back = {.rows = ROWS, .width = WIDTH, .first = 5, .count = TABLE, .ids = picks, .ordered = ROWS};
    back.d_y = d_y;
    back.d_table = d_table;
    back.order = by_id;
    REF(embed_backward)(NULL, &back);
    REF(bias_backward)(NULL, d_bias, d_y, ROWS, WIDTH, WIDTH);
    problem q = {lookup_value, &p};
    EXPECT(agrees(&q, "table", p.table, d_table, TABLE * WIDTH));
    EXPECT(agrees(&q, "bias", p.bias, d_bias, WIDTH));
    free(p.table), free(p.bias), free(p.cotangent), free(d_table), free(d_bias);
}

/* ---- rms-norm ------------------------------------------------------------------------------------------- */

typedef struct norm {
    double *x, *add, *weight, *cotangent, *sum_cotangent;
} norm;

static double norm_value(void *user) {
    norm *p = user;
    double y[ROWS * WIDTH], sum[ROWS * WIDTH];
    train_norm n = {
        .rows = ROWS, .width = WIDTH, .eps = 1e-3, .shift = 1, .x = p->x, .add = p->add, .weight = p->weight};
    n.y = y;
    n.sum = sum;
    REF(rmsnorm)(NULL, &n);
    return inner(y, p->cotangent, ROWS * WIDTH) + inner(sum, p->sum_cotangent, ROWS * WIDTH);
}

TEST(train_gradient_of_rmsnorm) {
    rng = ravel__rng_seed(check_seed());
    int n = ROWS * WIDTH;
    norm p = {random_array(n, 1), random_array(n, 1), random_array(WIDTH, 1), random_array(n, 1), random_array(n, 1)};
    double *sum = zeros(n), *y = zeros(n), *d_x = zeros(n), *d_weight = zeros(WIDTH);
    train_norm forward = {
        .rows = ROWS, .width = WIDTH, .eps = 1e-3, .shift = 1, .x = p.x, .add = p.add, .weight = p.weight};
    forward.y = y;
    forward.sum = sum;
    REF(rmsnorm)(NULL, &forward);
    memcpy(d_x, p.sum_cotangent, (size_t)n * sizeof *d_x); /* what comes along the residual is added to */
    train_norm back = {
        .rows = ROWS, .width = WIDTH, .eps = 1e-3, .shift = 1, .x = sum, .weight = p.weight, .d_y = p.cotangent};
    back.d_x = d_x;
    back.d_weight = d_weight;
    REF(rmsnorm_backward)(NULL, &back);
    problem q = {norm_value, &p};
    EXPECT(agrees(&q, "x", p.x, d_x, n));
    EXPECT(agrees(&q, "add", p.add, d_x, n));
    EXPECT(agrees(&q, "weight", p.weight, d_weight, WIDTH));
    free(p.x), free(p.add), free(p.weight), free(p.cotangent), free(p.sum_cotangent);
    free(sum), free(y), free(d_x), free(d_weight);
}

/* ---- rotation ------------------------------------------------------------------------------------------- */

enum { TOKENS = 6, HEADS = 4, KV_HEADS = 2, DIM = 6, QKV = (HEADS + 2 * KV_HEADS) * DIM };
static const int32_t places[TOKENS] = {0, 1, 2, 0, 0, 1};

typedef struct turn {
    train_rope rope;
    double *cotangent_q, *cotangent_k;
} turn;

static double turn_value(void *user) {
    turn *p = user;
    REF(rope)(NULL, &p->rope);
    return inner(p->rope.q, p->cotangent_q, TOKENS * HEADS * DIM) +
           inner(p->rope.k, p->cotangent_k, TOKENS * KV_HEADS * DIM);
}

static void turn_free(turn *p) {
    void *all[] = {p->rope.q,          p->rope.k,      p->rope.d_qkv, p->rope.d_q_weight,
                   p->rope.d_k_weight, p->cotangent_q, p->cotangent_k};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

TEST(train_gradient_of_rope_with_and_without_norm) {
    rng = ravel__rng_seed(check_seed());
    for (int kind = 0; kind < 4; kind++) {
        int with_norm = kind % 2;
        double *qkv = random_array(TOKENS * QKV, 1), *wq = random_array(DIM, 1), *wk = random_array(DIM, 1);
        double cosine[3 * DIM / 2], sine[3 * DIM / 2];
        for (int i = 0; i < 3 * DIM / 2; i++) cosine[i] = cos(0.3 * i), sine[i] = sin(0.3 * i);
        turn p = {.cotangent_q = random_array(TOKENS * HEADS * DIM, 1),
                  .cotangent_k = random_array(TOKENS * KV_HEADS * DIM, 1)};
        p.rope = (train_rope){.tokens = TOKENS,
                              .heads = HEADS,
                              .kv_heads = KV_HEADS,
                              .head_dim = DIM,
                              .rotated = kind < 2 ? 0 : DIM / 4 * 2,
                              .eps = 1e-3,
                              .qkv = qkv,
                              .q_weight = with_norm ? wq : NULL,
                              .k_weight = with_norm ? wk : NULL,
                              .cosine = cosine,
                              .sine = sine,
                              .positions = places,
                              .q = zeros(TOKENS * HEADS * DIM),
                              .k = zeros(TOKENS * KV_HEADS * DIM),
                              .d_q = p.cotangent_q,
                              .d_k = p.cotangent_k,
                              .d_qkv = zeros(TOKENS * QKV),
                              .d_q_weight = zeros(DIM),
                              .d_k_weight = zeros(DIM)};
        REF(rope_backward)(NULL, &p.rope);
        problem q = {turn_value, &p};
        EXPECT(agrees(&q, "qkv", qkv, p.rope.d_qkv, TOKENS * QKV)); /* the v part stays 0 */
        if (with_norm) EXPECT(agrees(&q, "q weight", wq, p.rope.d_q_weight, DIM));
        if (with_norm) EXPECT(agrees(&q, "k weight", wk, p.rope.d_k_weight, DIM));
        turn_free(&p);
        free(qkv), free(wq), free(wk);
    }
}

/* ---- attention ------------------------------------------------------------------------------------------ */

/* Three samples with a gap: rows 3 and 9 belong to nobody. With `cut`, queries are the last rows of samples, or all of
 * them seen from further on, or before their keys. */
static const int32_t starts[] = {0, 4, 10}, lengths[] = {3, 5, 1};
static const int32_t cut_starts[] = {1, 4, 10}, cut_lengths[] = {2, 5, 1}, cut_shifts[] = {1, 9, -1};
enum { SPAN = 11 };

typedef struct attend_problem {
    train_attention x;
    double *cotangent;
} attend_problem;

static double attend_value(void *user) {
    attend_problem *p = user;
    REF(attention)(NULL, &p->x);
    return inner(p->x.o, p->cotangent, SPAN * HEADS * DIM);
}

static void attention_gradient(int cut, int window) {
    int nq = SPAN * HEADS * DIM, nk = SPAN * KV_HEADS * DIM;
    double *q = random_array(nq, 1), *k = random_array(nk, 1), *v = random_array(nk, 1);
    double *o = zeros(nq), *lse = zeros(SPAN * HEADS), *cotangent = random_array(nq, 1);
    double *d_q = zeros(nq), *d_k = zeros(nk), *d_v = zeros(nk);
    train_ragged batch = {.tokens = SPAN, .longest = 5, .starts = starts, .lengths = lengths};
    train_ragged some = {.tokens = SPAN, .longest = 5, .starts = cut_starts, .lengths = cut_lengths};
    attend_problem p = {.cotangent = cotangent};
    p.x = (train_attention){.samples = 3,
                            .window = window,
                            .queries = cut ? some : batch,
                            .keys = batch,
                            .shifts = cut ? cut_shifts : NULL,
                            .heads = HEADS,
                            .kv_heads = KV_HEADS,
                            .head_dim = DIM,
                            .scale = 0.4,
                            .q = q,
                            .k = k,
                            .v = v,
                            .o = o,
                            .lse = lse,
                            .ld_q = HEADS * DIM,
                            .ld_k = KV_HEADS * DIM,
                            .ld_v = KV_HEADS * DIM,
                            .d_o = cotangent,
                            .d_q = d_q,
                            .d_k = d_k,
                            .d_v = d_v,
                            .ld_dq = HEADS * DIM,
                            .ld_dk = KV_HEADS * DIM,
                            .ld_dv = KV_HEADS * DIM};
    REF(attention)(NULL, &p.x);
    REF(attention_backward)(NULL, &p.x);
    problem whole = {attend_value, &p};
    EXPECT(agrees(&whole, "q", q, d_q, nq)); /* gaps: no gradient, and moving them changes nothing */
    EXPECT(agrees(&whole, "k", k, d_k, nk));
    EXPECT(agrees(&whole, "v", v, d_v, nk));
    free(q), free(k), free(v), free(o), free(lse), free(cotangent), free(d_q), free(d_k), free(d_v);
}

TEST(train_gradient_of_attention) {
    rng = ravel__rng_seed(check_seed());
    attention_gradient(0, 0);
    attention_gradient(0, 2);
    attention_gradient(1, 0);
    attention_gradient(1, 3);
}

/* ---- feed-forward and head ------------------------------------------------------------------------------ */

typedef struct gate {
    double *gate_up, *cotangent;
    int gelu;
} gate;

static double gate_value(void *user) {
    gate *p = user;
    double h[ROWS * WIDTH];
    REF(gated)(NULL, &(train_gated){ROWS, WIDTH, p->gelu, p->gate_up, .h = h});
    return inner(h, p->cotangent, ROWS * WIDTH);
}

static void gate_gradient(int with_gelu) {
    gate p = {random_array(2 * ROWS * WIDTH, 2), random_array(ROWS * WIDTH, 1), with_gelu};
    double *d = zeros(2 * ROWS * WIDTH), h[ROWS * WIDTH], again[ROWS * WIDTH];
    memcpy(d, p.gate_up, 2 * ROWS * WIDTH * sizeof *d);
    REF(gated)(NULL, &(train_gated){ROWS, WIDTH, with_gelu, p.gate_up, .h = h});
    REF(gated_backward)(NULL, &(train_gated){ROWS, WIDTH, with_gelu, d, again, p.cotangent, d});
    EXPECT(memcmp(h, again, sizeof h) == 0);
    problem q = {gate_value, &p};
    EXPECT(agrees(&q, "gate and up", p.gate_up, d, 2 * ROWS * WIDTH));
    free(p.gate_up), free(p.cotangent), free(d);
}

TEST(train_gradient_of_swiglu_and_geglu_in_place) {
    rng = ravel__rng_seed(check_seed());
    gate_gradient(0);
    gate_gradient(1);
}

/* Routing: the weights of the chosen experts and the load, as functions of the logits; which experts it chooses stays. */
enum { EXPERTS = 6, ACTIVE = 3 };
typedef struct routing {
    train_route x;
    double *cotangent;
} routing;

static double route_value(void *user) {
    routing *p = user;
    double total = 0;
    REF(route)(NULL, &p->x);
    for (int r = 0; r < ROWS; r++) {
        const double *row = (const double *)p->x.logits + r * EXPERTS;
        double whole = log_sum(row, EXPERTS);
        for (int e = 0; e < EXPERTS && p->x.balance && p->x.counted[r]; e++)
            total += p->x.counted[r] * p->x.balance[e] * exp(row[e] - whole);
    }
    return total + inner(p->x.weights, p->cotangent, ROWS * ACTIVE);
}

TEST(train_gradient_of_routing) {
    rng = ravel__rng_seed(check_seed());
    static const int32_t counted[ROWS] = {1, 1, 0, 3, 0, 1, 2};
    for (int kind = 0; kind < 4; kind++) {
        double *logits = random_array(ROWS * EXPERTS, 1), *balance = random_array(EXPERTS, 1), weights[ROWS * ACTIVE];
        double d[ROWS * EXPERTS], row_loss[ROWS] = {0}, loss = 0;
        int32_t ids[ROWS * ACTIVE];
        routing p = {.cotangent = random_array(ROWS * ACTIVE, 1)};
        p.x = (train_route){.rows = ROWS,
                            .experts = EXPERTS,
                            .active = ACTIVE,
                            .normalise = kind & 1,
                            .logits = logits,
                            .ids = ids,
                            .weights = weights,
                            .d_weights = p.cotangent,
                            .d_logits = d,
                            .balance = kind & 2 ? balance : NULL,
                            .counted = counted,
                            .row_loss = row_loss};
        REF(route)(NULL, &p.x);
        REF(route_backward)(NULL, &p.x);
        p.x.given = 1; /* a step of the difference must not choose others */
        problem q = {route_value, &p};
        EXPECT(agrees(&q, "router logits", logits, d, ROWS * EXPERTS));
        for (int r = 0; r < ROWS; r++) loss += row_loss[r];
        EXPECT(fabs(loss - (route_value(&p) - inner(weights, p.cotangent, ROWS * ACTIVE))) < 1e-12);
        free(logits), free(balance), free(p.cotangent);
    }
}

typedef struct weighing {
    double *x, *weights, *cotangent;
    const int32_t *places;
} weighing;

static double weigh_value(void *user) {
    weighing *p = user;
    double x[ROWS * WIDTH];
    memcpy(x, p->x, sizeof x);
    REF(weigh)(NULL, &(train_weigh){.rows = ROWS, .width = WIDTH, .x = x, .weights = p->weights, .places = p->places});
    return inner(x, p->cotangent, ROWS * WIDTH);
}

TEST(train_gradient_of_weighing) {
    rng = ravel__rng_seed(check_seed());
    static const int32_t order[ROWS] = {3, 0, 6, 1, 5, 2, 4};
    weighing p = {random_array(ROWS * WIDTH, 1), random_array(ROWS, 1), random_array(ROWS * WIDTH, 1), order};
    double x[ROWS * WIDTH], d_x[ROWS * WIDTH], d_weights[ROWS];
    memcpy(x, p.x, sizeof x);
    memcpy(d_x, p.cotangent, sizeof d_x);
    REF(weigh_backward)
    (NULL, &(train_weigh){.rows = ROWS,
                          .width = WIDTH,
                          .x = x,
                          .weights = p.weights,
                          .places = order,
                          .d_y = d_x,
                          .d_weights = d_weights});
    problem q = {weigh_value, &p};
    EXPECT(agrees(&q, "weights", p.weights, d_weights, ROWS));
    EXPECT(agrees(&q, "rows", p.x, d_x, ROWS * WIDTH));
    free(p.x), free(p.weights), free(p.cotangent);
}

typedef struct head {
    train_softmax x;
    double *logprob_cotangent, *entropy_cotangent;
} head;

static double head_value(void *user) {
    head *p = user;
    REF(softmax_parts)(NULL, &p->x);
    REF(softmax_combine)(NULL, &p->x);
    return inner(p->x.logprob, p->logprob_cotangent, ROWS) + inner(p->x.entropy, p->entropy_cotangent, ROWS);
}

/* Whether a target is the likeliest token, of a vocabulary in one part or in parts of several ranks. */
TEST(train_softmax_says_whether_targets_are_likeliest) {
    rng = ravel__rng_seed(check_seed());
    enum { VOCAB = 8, RANKS = 2, PART = VOCAB / RANKS };
    double *logits = random_array(ROWS * VOCAB, 2), half[ROWS * PART], parts[RANKS * 4 * ROWS], out[3][ROWS];
    int32_t targets[ROWS];
    for (int r = 0; r < ROWS; r++) {
        targets[r] = (int32_t)(ravel__rng_next(&rng) % VOCAB);
        if (r % 2) logits[r * VOCAB + targets[r]] = 9; /* often enough */
    }
    for (int ranks = 1; ranks <= RANKS; ranks++) {
        int columns = VOCAB / ranks;
        for (int rank = 0; rank < ranks; rank++) {
            for (int i = 0; i < ROWS * columns; i++)
                half[i % (ROWS * PART)] = logits[i / columns * VOCAB + rank * columns + i % columns];
            REF(softmax_parts)
            (NULL, &(train_softmax){.rows = ROWS,
                                    .columns = columns,
                                    .first = rank * columns,
                                    .logits = ranks == 1 ? logits : half,
                                    .scale = 0.7,
                                    .targets = targets,
                                    .parts = parts + rank * 4 * ROWS});
        }
        REF(softmax_combine)
        (NULL, &(train_softmax){
                   .rows = ROWS, .parts = parts, .ranks = ranks, .logprob = out[0], .lse = out[1], .right = out[2]});
        for (int r = 0; r < ROWS; r++) {
            int likeliest = 1;
            for (int i = 0; i < VOCAB; i++) likeliest &= logits[r * VOCAB + i] <= logits[r * VOCAB + targets[r]];
            EXPECT(out[2][r] == likeliest);
        }
    }
    free(logits);
}

TEST(train_gradient_of_softmax_and_entropy) {
    rng = ravel__rng_seed(check_seed());
    enum { VOCAB = 9 };
    static const int32_t targets[ROWS] = {0, 8, 3, 3, 1, 2, 7};
    double *logits = random_array(ROWS * VOCAB, 2), *d = zeros(ROWS * VOCAB), logprob[ROWS], lse[ROWS], entropy[ROWS];
    double parts[4 * ROWS];
    head p = {.logprob_cotangent = random_array(ROWS, 1), .entropy_cotangent = random_array(ROWS, 1)};
    p.x = (train_softmax){.rows = ROWS,
                          .columns = VOCAB,
                          .parts = parts,
                          .ranks = 1,
                          .logits = logits,
                          .scale = 0.7,
                          .targets = targets,
                          .logprob = logprob,
                          .lse = lse,
                          .entropy = entropy};
    REF(softmax_parts)(NULL, &p.x);
    REF(softmax_combine)(NULL, &p.x);
    train_softmax back = p.x;
    memcpy(d, logits, ROWS * VOCAB * sizeof *d);
    back.logits = d;
    back.coef = p.logprob_cotangent;
    back.entropy_coef = p.entropy_cotangent;
    REF(softmax_backward)(NULL, &back);
    problem q = {head_value, &p};
    EXPECT(agrees(&q, "logits", logits, d, ROWS * VOCAB));
    free(logits), free(d), free(p.logprob_cotangent), free(p.entropy_cotangent);
}

/* ---- a teacher's likeliest tokens ----------------------------------------------------------------------- */

enum { TOP_VOCAB = 12, TOP_MOST = 5 };

typedef struct topped {
    const double *logits; /* [ROWS, TOP_VOCAB] */
    int32_t ranks, count, targets[ROWS], places[ROWS], ids[2 * ROWS * TOP_MOST];
    float teacher[2 * ROWS * TOP_MOST], weights[ROWS];
    double coef[ROWS], gradient[ROWS * TOP_VOCAB];
    train_loss_sums sums;
} topped;

/* Columns of one rank. */
static void part_of(const double *all, int32_t ranks, int32_t rank, double *part) {
    int columns = TOP_VOCAB / ranks;
    for (int i = 0; i < ROWS * columns; i++) part[i] = all[i / columns * TOP_VOCAB + rank * columns + i % columns];
}

static void log_sums(const double *logits, double scale, double *lse) {
    for (int r = 0; r < ROWS; r++) lse[r] = log_sum_exp(logits + r * TOP_VOCAB, TOP_VOCAB, scale);
}

static train_top_rows top_rows_of(topped *p, int32_t rank, double *part, double *parts, const double *lse) {
    return (train_top_rows){.rows = ROWS,
                            .columns = TOP_VOCAB / p->ranks,
                            .first = rank * (TOP_VOCAB / p->ranks),
                            .logits = part,
                            .scale = 0.7,
                            .count = p->count,
                            .ranks = p->ranks,
                            .parts = parts,
                            .lse = lse,
                            .targets = p->targets,
                            .places = p->places,
                            .ids = p->ids,
                            .logprob = p->teacher,
                            .weights = p->weights,
                            .weight = 1.3,
                            .sums = &p->sums};
}

/* The teacher's likeliest tokens by ranks that share the vocabulary, into `to`. */
static void pick(topped *to, const double *logits) {
    double part[ROWS * TOP_VOCAB], parts[3 * 2 * ROWS * TOP_MOST], lse[ROWS];
    log_sums(logits, 0.7, lse);
    for (int32_t rank = 0; rank < to->ranks; rank++) {
        part_of(logits, to->ranks, rank, part);
        train_top_rows top = top_rows_of(to, rank, part, parts + rank * 2 * ROWS * to->count, lse);
        REF(top_parts)(NULL, &top);
        top.parts = parts;
        if (rank == to->ranks - 1) REF(top_combine)(NULL, &top);
    }
}

/* The loss, and p->gradient, as the head works them out on ranks that share the vocabulary. */
static double top_value(void *user) {
    topped *p = user;
    double part[ROWS * TOP_VOCAB], parts[ROWS * TOP_MOST], sum[ROWS * TOP_MOST] = {0}, rest[ROWS], lse[ROWS];
    double coefs[ROWS], mine[ROWS * TOP_MOST], figure = 0;
    log_sums(p->logits, 0.7, lse);
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        part_of(p->logits, p->ranks, rank, part);
        train_top_rows top = top_rows_of(p, rank, part, parts, lse);
        REF(top_gather)(NULL, &top);
        for (int i = 0; i < ROWS * p->count; i++) sum[i] += parts[i];
    }
    for (int32_t rank = 0; rank < p->ranks; rank++) {
        part_of(p->logits, p->ranks, rank, part);
        memcpy(mine, sum, sizeof mine);
        memcpy(coefs, p->coef, sizeof coefs);
        train_top_rows top = top_rows_of(p, rank, part, mine, lse);
        top.coef = coefs;
        top.rest = rest;
        p->sums = (train_loss_sums){0};
        REF(top_loss)(NULL, &top);
        figure = p->sums.loss;
        train_softmax back = {.rows = ROWS,
                              .columns = top.columns,
                              .first = top.first,
                              .logits = part,
                              .scale = 0.7,
                              .targets = p->targets,
                              .lse = lse,
                              .coef = coefs};
        REF(softmax_backward)(NULL, &back);
        REF(top_backward)(NULL, &top);
        for (int i = 0; i < ROWS * (int)top.columns; i++)
            p->gradient[i / top.columns * TOP_VOCAB + top.first + i % top.columns] = part[i];
    }
    for (int r = 0; r < ROWS; r++) figure += p->coef[r] * (0.7 * p->logits[r * TOP_VOCAB + p->targets[r]] - lse[r]);
    return figure;
}

/* Its value is the divergence as it is written in kernels.h, its gradient that of finite differences, on one rank and on
 * several, with K of the whole vocabulary too, and where the model has nothing left for the other tokens. */
TEST(train_gradient_of_a_teachers_likeliest_tokens) {
    rng = ravel__rng_seed(check_seed());
    static const struct {
        int32_t count, ranks;
        double size; /* of logits */
    } cases[] = {{1, 1, 1.5}, {3, 1, 1.5}, {3, 3, 1.5}, {5, 2, 1}, {5, 3, 1}, {2, 1, 30}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        static topped p, one;
        double *logits = random_array(ROWS * TOP_VOCAB, cases[c].size), *teacher = random_array(ROWS * TOP_VOCAB, 1.5);
        p = (topped){.logits = logits, .ranks = cases[c].ranks, .count = cases[c].count};
        for (int r = 0; r < ROWS; r++) {
            p.targets[r] = (int32_t)(ravel__rng_next(&rng) % TOP_VOCAB);
            p.places[r] = 2 * r + 1;
            p.weights[r] = (float)(0.5 + r);
            p.coef[r] = 0.3 * r - 1;
        }
        one = p;
        one.ranks = 1;
        pick(&p, teacher);
        pick(&one, teacher);
        CHECK(memcmp(p.ids, one.ids, sizeof p.ids) == 0 && memcmp(p.teacher, one.teacher, sizeof p.teacher) == 0);
        problem q = {top_value, &p};
        (void)top_value(&p);
        double *gradient = random_array(ROWS * TOP_VOCAB, 1), want = 0, lse[ROWS];
        memcpy(gradient, p.gradient, sizeof p.gradient);
        log_sums(logits, 0.7, lse);
        for (int r = 0; r < ROWS && cases[c].size < 2; r++) {
            double in_p = 0, in_q = 0, sum = 0;
            for (int k = 0; k < p.count; k++) {
                int at = p.places[r] * p.count + k;
                double l = 0.7 * logits[r * TOP_VOCAB + p.ids[at]] - lse[r], f = (double)p.teacher[at];
                for (int i = 0, higher = 0; i < TOP_VOCAB && k == 0; i++) {
                    higher += teacher[r * TOP_VOCAB + i] > teacher[r * TOP_VOCAB + p.ids[at]];
                    EXPECT(higher == 0);
                }
                in_p += exp(f), in_q += exp(l), sum += exp(f) * (f - l);
            }
            want += 1.3 * (double)p.weights[r] * (sum + (1 - in_p) * log((1 - in_p) / (1 - in_q)));
        }
        if (cases[c].size < 2) CHECK(fabs(p.sums.loss - want) < 1e-9 * fabs(want));
        EXPECT(agrees(&q, "logits of a teacher's loss", logits, gradient, ROWS * TOP_VOCAB));
        free(gradient), free(logits), free(teacher);
    }
}
