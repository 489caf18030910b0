/* The CUDA set against the reference: products, rows, norms, rotation, gated units, an update. */
#include "tests/gpu/pair.h"

#include <math.h>
#include <stdlib.h>

static const train_limits LIMITS = {.tokens = 600,
                                    .longest = 600,
                                    .samples = 16,
                                    .width = 8192,
                                    .hidden = 4096,
                                    .heads = 16,
                                    .kv_heads = 8,
                                    .head_dim = 128,
                                    .vocab = 1000};

TEST(cuda_products) {
    pair p;
    if (!pair_open(&p, &LIMITS)) return;
    const int64_t m = 300, n = 256, k = 192;
    pair_array x = pair_random(&p, m * k, PAIR_ACTIVATION, 1), w = pair_random(&p, n * k, PAIR_WEIGHT, 1);
    pair_array y = pair_zeros(&p, m * n, PAIR_ACTIVATION), d_x = pair_zeros(&p, m * k, PAIR_ACTIVATION);
    pair_array d_y = pair_random(&p, m * n, PAIR_ACTIVATION, 1), d_w = pair_random(&p, n * k, PAIR_GRAD, 1);
    EACH_SIDE {
        const train_types *t = &p.set[side]->types;
        train_matmul forward = {
            .m = m, .n = n, .k = k, .a = x.on[side], .b = w.on[side], .c = y.on[side], .trans_b = 1};
        forward.a_type = forward.c_type = t->activation;
        forward.b_type = t->weight;
        p.set[side]->matmul(p.device[side], &forward);
        train_matmul input = {.m = m, .n = k, .k = n, .a = d_y.on[side], .b = w.on[side], .c = d_x.on[side]};
        input.a_type = input.c_type = t->activation;
        input.b_type = t->weight;
        p.set[side]->matmul(p.device[side], &input);
        train_matmul weight = {.m = n, .n = k, .k = m, .a = d_y.on[side], .b = x.on[side], .c = d_w.on[side]};
        weight.trans_a = weight.add = 1;
        weight.a_type = weight.b_type = t->activation;
        weight.c_type = t->grad;
        p.set[side]->matmul(p.device[side], &weight);
    }
    NEAR(&p, &y, 0.02);
    NEAR(&p, &d_x, 0.02);
    NEAR(&p, &d_w, 1e-4);
    pair_close(&p);
}

/* Rows of an invariant product have the same bits whatever the number of rows. */
TEST(cuda_products_batch_invariant) {
    pair p;
    if (!pair_open(&p, &LIMITS)) return;
    const int64_t most = 257, n = 512, k = 1024;
    pair_array x = pair_random(&p, most * k, PAIR_ACTIVATION, 1), w = pair_random(&p, n * k, PAIR_WEIGHT, 1);
    pair_array y = pair_zeros(&p, most * n, PAIR_ACTIVATION);
    float *all = malloc(most * n * sizeof *all), *some = malloc(most * n * sizeof *some);
    static const int64_t rows[] = {257, 1, 2, 7, 64, 128, 200};
    for (int i = 0; i < 14; i++) { /* both kinds */
        int64_t m = rows[i % 7];
        train_matmul product = {.m = m, .n = n, .k = k, .a = x.on[1], .b = w.on[1], .c = y.on[1], .trans_b = 1};
        product.a_type = product.b_type = product.c_type = RAVEL_BF16;
        product.batch_invariant = i < 7 ? TRAIN_INVARIANT_MANY : TRAIN_INVARIANT_FEW;
        p.set[1]->matmul(p.device[1], &product);
        pair_read(&p, &y, 1, i % 7 ? some : all);
        if (i % 7 && memcmp(all, some, (size_t)(m * n) * sizeof *all) != 0)
            check_fail(__FILE__, __LINE__, "%lld rows give other bits than 257", (long long)m);
    }
    free(all);
    free(some);
    pair_close(&p);
}

TEST(cuda_norms) {
    static const int64_t widths[] = {64, 128, 512, 1024, 2048, 2560, 4096, 8192};
    for (int i = 0; i < 8; i++) {
        pair p;
        train_limits limits = LIMITS;
        limits.tokens = widths[i] == 1024 ? 7001 : 500; /* more than three rows per warp */
        if (!pair_open(&p, &limits)) return;
        int64_t rows = limits.tokens, width = widths[i], n = rows * width;
        pair_array x = pair_random(&p, n, PAIR_ACTIVATION, 1), add = pair_random(&p, n, PAIR_ACTIVATION, 1);
        pair_array w = pair_random(&p, width, PAIR_WEIGHT, 1), sum = pair_zeros(&p, n, PAIR_ACTIVATION);
        pair_array y = pair_zeros(&p, n, PAIR_ACTIVATION), plain = pair_zeros(&p, n, PAIR_ACTIVATION);
        pair_array added = pair_zeros(&p, n, PAIR_ACTIVATION); /* only the sum: no weight, no y */
        pair_array d_y = pair_random(&p, n, PAIR_ACTIVATION, 1), d_x = pair_random(&p, n, PAIR_ACTIVATION, 1);
        pair_array d_w = pair_random(&p, width, PAIR_GRAD, 1);
        EACH_SIDE {
            train_norm norm = {.rows = rows, .width = width, .eps = 1e-6F, .x = x.on[side], .weight = w.on[side]};
            norm.y = plain.on[side];
            p.set[side]->rmsnorm(p.device[side], &norm);
            norm.add = add.on[side];
            norm.sum = sum.on[side];
            norm.y = y.on[side];
            p.set[side]->rmsnorm(p.device[side], &norm);
            train_norm plus = {.rows = rows, .width = width, .x = x.on[side], .add = add.on[side]};
            plus.sum = added.on[side];
            p.set[side]->rmsnorm(p.device[side], &plus);
            train_norm back = {.rows = rows, .width = width, .eps = 1e-6F, .x = x.on[side], .weight = w.on[side]};
            back.d_y = d_y.on[side];
            back.d_x = d_x.on[side];
            back.d_weight = d_w.on[side];
            p.set[side]->rmsnorm_backward(p.device[side], &back);
        }
        NEAR(&p, &plain, 0.05);
        NEAR(&p, &sum, 0.03);
        NEAR(&p, &added, 0.03);
        NEAR(&p, &y, 0.06);
        NEAR(&p, &d_x, 0.05);
        NEAR(&p, &d_w, 1e-4);
        pair_close(&p);
    }
}

TEST(cuda_rope) {
    enum { MOST_TOKENS = 2500 };
    static const int32_t dims[] = {16, 32, 64, 96, 128, 256};
    for (int i = 0; i < 24; i++) { /* half of them turn in part */
        pair p;
        train_limits limits = LIMITS;
        int32_t many = dims[i / 4] == 128; /* more than three chunks per warp, and chunks that are not full */
        int32_t heads = many ? 10 : 6, kv = many ? 3 : 2, dim = dims[i / 4], positions[MOST_TOKENS];
        limits.head_dim = dim;
        limits.tokens = many ? MOST_TOKENS : 100;
        if (!pair_open(&p, &limits)) return;
        int64_t tokens = limits.tokens, qkv_n = tokens * (heads + 2 * kv) * dim;
        for (int t = 0; t < tokens; t++) positions[t] = (int32_t)pair_below(&p, 200);
        pair_array qkv = pair_random(&p, qkv_n, PAIR_ACTIVATION, 1), place = pair_ints(&p, positions, tokens);
        pair_array cosine = pair_random(&p, 200 * dim / 2, PAIR_REAL, 1),
                   sine = pair_random(&p, 200 * dim / 2, PAIR_REAL, 1);
        pair_array q_w = pair_random(&p, dim, PAIR_WEIGHT, 1), k_w = pair_random(&p, dim, PAIR_WEIGHT, 1);
        pair_array q = pair_zeros(&p, tokens * heads * dim, PAIR_ACTIVATION),
                   k = pair_zeros(&p, tokens * kv * dim, PAIR_ACTIVATION);
        pair_array d_q = pair_random(&p, tokens * heads * dim, PAIR_ACTIVATION, 1),
                   d_k = pair_random(&p, tokens * kv * dim, PAIR_ACTIVATION, 1);
        pair_array d_qkv = pair_zeros(&p, qkv_n, PAIR_ACTIVATION);
        pair_array d_qw = pair_random(&p, dim, PAIR_GRAD, 1), d_kw = pair_random(&p, dim, PAIR_GRAD, 1);
        EACH_SIDE {
            train_rope rope = {.tokens = tokens, .heads = heads, .kv_heads = kv, .head_dim = dim, .eps = 1e-6F};
            rope.rotated = i % 4 < 2 ? 0 : dim / 2;
            rope.qkv = qkv.on[side];
            rope.cosine = cosine.on[side];
            rope.sine = sine.on[side];
            rope.positions = place.on[side];
            rope.q = q.on[side];
            rope.k = k.on[side];
            rope.d_q = d_q.on[side];
            rope.d_k = d_k.on[side];
            rope.d_qkv = d_qkv.on[side];
            if (i % 2) {
                rope.q_weight = q_w.on[side];
                rope.k_weight = k_w.on[side];
                rope.d_q_weight = d_qw.on[side];
                rope.d_k_weight = d_kw.on[side];
            }
            p.set[side]->rope(p.device[side], &rope);
            p.set[side]->rope_backward(p.device[side], &rope);
        }
        NEAR(&p, &q, 0.05);
        NEAR(&p, &k, 0.05);
        NEAR(&p, &d_qkv, 0.05);
        NEAR(&p, &d_qw, 1e-3);
        NEAR(&p, &d_kw, 1e-3);
        pair_close(&p);
    }
}

/* Weights that are what they differ from 1, of a part of wider rows. */
TEST(cuda_rmsnorm_of_parts_of_rows) {
    pair p;
    if (!pair_open(&p, &LIMITS)) return;
    const int64_t rows = 77, width = 320, ld = 512;
    pair_array x = pair_random(&p, rows * ld, PAIR_ACTIVATION, 1), y = pair_zeros(&p, rows * ld, PAIR_ACTIVATION);
    pair_array weight = pair_random(&p, width, PAIR_WEIGHT, 0.1), d_y = pair_random(&p, rows * ld, PAIR_ACTIVATION, 1);
    pair_array d_x = pair_zeros(&p, rows * width, PAIR_ACTIVATION), d_weight = pair_zeros(&p, width, PAIR_GRAD);
    EACH_SIDE {
        train_norm n = {.rows = rows, .width = width, .eps = 1e-6f, .shift = 1, .ld_x = ld, .ld_y = ld};
        n.x = x.on[side];
        n.weight = weight.on[side];
        n.y = y.on[side];
        p.set[side]->rmsnorm(p.device[side], &n);
        n.y = NULL;
        n.d_y = d_y.on[side];
        n.d_x = d_x.on[side];
        n.d_weight = d_weight.on[side];
        p.set[side]->rmsnorm_backward(p.device[side], &n);
    }
    NEAR(&p, &y, 0.05);
    NEAR(&p, &d_x, 0.05);
    NEAR(&p, &d_weight, 0.2);
    pair_close(&p);
}

TEST(cuda_gated) {
    pair p;
    if (!pair_open(&p, &LIMITS)) return;
    int64_t rows = 77, ffn = 384, n = rows * ffn;
    pair_array gate_up = pair_random(&p, 2 * n, PAIR_ACTIVATION, 2), h = pair_zeros(&p, n, PAIR_ACTIVATION);
    pair_array d_h = pair_random(&p, n, PAIR_ACTIVATION, 1), d = pair_zeros(&p, 2 * n, PAIR_ACTIVATION);
    pair_array again = pair_zeros(&p, n, PAIR_ACTIVATION);
    for (int32_t gelu = 0; gelu < 2; gelu++) {
        EACH_SIDE {
            train_gated x = {rows, ffn, gelu, gate_up.on[side], .h = h.on[side]};
            p.set[side]->gated(p.device[side], &x);
            x.h = again.on[side], x.d_h = d_h.on[side], x.d_gate_up = d.on[side];
            p.set[side]->gated_backward(p.device[side], &x);
        }
        NEAR(&p, &h, 0.05);
        NEAR(&p, &again, 0.05);
        NEAR(&p, &d, 0.05);
    }
    EACH_SIDE p.set[side]->scale(p.device[side], h.on[side], d_h.on[side], 0.3, n - 5);
    NEAR(&p, &h, 0.05);
    pair_close(&p);
}

/* Routing, chosen and given, and the weights of rows. The logits are bf16 on both sides, so both choose the same experts. */
TEST(cuda_experts) {
    pair p;
    if (!pair_open(&p, &LIMITS)) return;
    enum { TOKENS = 93, EXPERTS = 40, ACTIVE = 6, PAIRS = TOKENS * ACTIVE, WIDE = 264 };
    static int32_t zeros[PAIRS], orders[PAIRS];
    for (int i = 0; i < PAIRS; i++) orders[i] = PAIRS - 1 - i;
    pair_array logits = pair_random(&p, TOKENS * EXPERTS, PAIR_ACTIVATION, 2),
               d_w = pair_random(&p, PAIRS, PAIR_REAL, 1);
    pair_array ids = pair_ints(&p, zeros, PAIRS), weights = pair_zeros(&p, PAIRS, PAIR_REAL);
    pair_array d_logits = pair_zeros(&p, TOKENS * EXPERTS, PAIR_ACTIVATION);
    pair_array balance = pair_random(&p, EXPERTS, PAIR_REAL, 1), loss = pair_zeros(&p, TOKENS, PAIR_REAL);
    for (int kind = 0; kind < 4; kind++) {
        EACH_SIDE {
            train_route x = {
                .rows = TOKENS, .experts = EXPERTS, .active = ACTIVE, .normalise = kind & 1, .given = kind & 2};
            x.logits = logits.on[side];
            x.ids = ids.on[side];
            x.weights = weights.on[side];
            x.d_weights = d_w.on[side];
            x.d_logits = d_logits.on[side];
            x.balance = kind < 2 ? balance.on[side] : NULL;
            x.row_loss = loss.on[side];
            p.set[side]->route(p.device[side], &x);
            p.set[side]->route_backward(p.device[side], &x);
        }
        NEAR(&p, &ids, 1e-6);
        NEAR(&p, &weights, 1e-3);
        NEAR(&p, &d_logits, 0.05);
        NEAR(&p, &loss, 1e-3);
    }
    pair_array x = pair_random(&p, PAIRS * WIDE, PAIR_ACTIVATION, 1),
               d = pair_random(&p, PAIRS * WIDE, PAIR_ACTIVATION, 1);
    pair_array places = pair_ints(&p, orders, PAIRS), d_weights = pair_zeros(&p, PAIRS, PAIR_REAL);
    EACH_SIDE {
        train_weigh w = {
            .rows = PAIRS, .width = WIDE, .x = x.on[side], .weights = weights.on[side], .places = places.on[side]};
        p.set[side]->weigh(p.device[side], &w);
        w.d_y = d.on[side];
        w.d_weights = d_weights.on[side];
        p.set[side]->weigh_backward(p.device[side], &w);
    }
    NEAR(&p, &x, 0.05);
    NEAR(&p, &d, 0.05);
    NEAR(&p, &d_weights, 0.05);
    pair_close(&p);
}

static int by_id(const void *a, const void *b, void *ids) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b, *id = ids;
    return id[x] != id[y] ? (id[x] < id[y] ? -1 : 1) : (x > y) - (x < y);
}

TEST(cuda_embedding_and_rows) {
    pair p;
    if (!pair_open(&p, &LIMITS)) return;
    enum { ROWS = 400, WIDTH = 256, VOCAB = 50 };
    int32_t ids[ROWS], order[ROWS];
    for (int i = 0; i < ROWS; i++) {
        ids[i] = (int32_t)pair_below(&p, VOCAB + 20); /* some outside this part of the table */
        order[i] = i;
    }
    qsort_r(order, ROWS, sizeof *order, by_id, ids);
    pair_array id = pair_ints(&p, ids, ROWS), sorted = pair_ints(&p, order, ROWS);
    pair_array table = pair_random(&p, VOCAB * WIDTH, PAIR_WEIGHT, 1),
               y = pair_zeros(&p, ROWS * WIDTH, PAIR_ACTIVATION);
    pair_array d_y = pair_random(&p, ROWS * WIDTH, PAIR_ACTIVATION, 1),
               d_table = pair_random(&p, VOCAB * WIDTH, PAIR_GRAD, 1);
    pair_array picked = pair_zeros(&p, ROWS * WIDTH, PAIR_ACTIVATION);
    pair_array bias = pair_random(&p, WIDTH, PAIR_WEIGHT, 1), d_bias = pair_random(&p, WIDTH, PAIR_GRAD, 1);
    EACH_SIDE {
        train_embedding e = {.rows = ROWS, .width = WIDTH, .first = 10, .count = VOCAB, .ids = id.on[side]};
        e.table = table.on[side];
        e.y = y.on[side];
        e.d_y = d_y.on[side];
        e.d_table = d_table.on[side];
        e.order = sorted.on[side];
        e.ordered = ROWS;
        p.set[side]->embed(p.device[side], &e);
        p.set[side]->embed_backward(p.device[side], &e);
        train_rows rows = {
            .rows = ROWS, .width = WIDTH, .to = picked.on[side], .from = d_y.on[side], .from_ids = sorted.on[side]};
        p.set[side]->copy_rows(p.device[side], &rows);
        p.set[side]->bias(p.device[side], y.on[side], bias.on[side], ROWS, WIDTH, WIDTH);
        p.set[side]->bias_backward(p.device[side], d_bias.on[side], d_y.on[side], ROWS, WIDTH, WIDTH);
    }
    NEAR(&p, &y, 0.03);
    NEAR(&p, &d_table, 1e-5);
    NEAR(&p, &picked, 1e-9);
    NEAR(&p, &d_bias, 1e-4);
    pair_close(&p);
}

/* `moments`: PAIR_GRAD, or PAIR_ACTIVATION for bf16 on the GPU. */
static void update_case(pair_kind moments) {
    pair p;
    int narrow = moments == PAIR_ACTIVATION;
    if (!pair_open(&p, &LIMITS)) return;
    const int64_t n = 3 * TRAIN_SPAN + 1000, spans = 4;
    pair_array grad = pair_random(&p, n, PAIR_GRAD, 1), master = pair_random(&p, n, PAIR_GRAD, 1);
    pair_array weight = pair_zeros(&p, n, PAIR_WEIGHT), m = pair_random(&p, n, moments, 0.1F),
               v = pair_zeros(&p, n, moments);
    pair_array sums = pair_zeros(&p, spans, PAIR_DOUBLE), clip = pair_zeros(&p, 3, PAIR_DOUBLE);
    EACH_SIDE {
        p.set[side]->sum_squares(p.device[side], grad.on[side], n, TRAIN_SPAN, sums.on[side]);
        p.set[side]->clip(p.device[side], sums.on[side], spans, 1, clip.on[side]);
        train_adamw a = {.n = n, .master = master.on[side], .m = m.on[side], .v = v.on[side], .grad = grad.on[side]};
        a.weight = side == REF_SIDE ? master.on[side] : weight.on[side];
        a.clip = clip.on[side];
        a.lr = 0.01;
        a.beta1 = 0.9;
        a.beta2 = 0.95;
        a.eps = 1e-8;
        a.decay = 0.1;
        a.step = 3;
        a.moment_type = narrow ? p.set[side]->types.activation : RAVEL_F32;
        p.set[side]->adamw(p.device[side], &a);
    }
    NEAR(&p, &sums, 1e-5);
    NEAR(&p, &clip, 1e-5);
    NEAR(&p, &master, 1e-4);
    NEAR(&p, &m, narrow ? 0.03 : 1e-5);
    NEAR(&p, &v, narrow ? 0.03 : 1e-5);
    float *copy = malloc(n * sizeof *copy), *exact = malloc(n * sizeof *exact);
    pair_read(&p, &weight, CUDA_SIDE, copy);
    pair_read(&p, &master, CUDA_SIDE, exact);
    for (int64_t i = 0; i < n; i++)
        if (fabsf(copy[i] - exact[i]) > fabsf(exact[i]) / 200) {
            check_fail(__FILE__, __LINE__, "weight %lld is %g, its master %g", (long long)i, copy[i], exact[i]);
            break;
        }
    free(copy);
    free(exact);
    pair_close(&p);
}

TEST(cuda_update) {
    update_case(PAIR_GRAD);
    update_case(PAIR_ACTIVATION);
}
