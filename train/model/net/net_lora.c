/* The products of an adapter. Targets that are one matrix to the model have their A one below the other, so x is read
 * once for all of them:
 *
 *     u [rows, 3 rank] = scale * x [Aq; Ak; Av]'        y_q += u_q Bq'     y_k += u_k Bk'     y_v += u_v Bv'
 *
 * and backward, with the same scale in u (made again from x, which costs less than to keep it) and in d_u:
 *
 *     d_u = scale * [d_y_q Bq, d_y_k Bk, d_y_v Bv]      d_x += d_u [Aq; Ak; Av]
 *     d_B += d_y' u   for each                          d_A += d_u' x   for all
 *
 * Of a family whose files have them as one tensor (ravel__family.fused) they are one target: u is [rows, rank].
 *
 * Tensor-parallel ranks add nothing here: what is partial in y, d_x, d_A and d_B is summed where the model's own is. */
#include "train/model/hf/lora.h"
#include "train/model/net/net.h"

#include "base/assert.h"

typedef struct part {
    int64_t b;             /* offset of B */
    int64_t column, width; /* in y */
} part;

typedef struct group {
    part parts[TRAIN__JOINED];
    int64_t count, rank;
    int64_t a;    /* offset of the first A */
    int64_t n, k; /* of the matrix */
    int64_t wide; /* of u: count * rank */
    double scale;
    const train_params *params;
    const void *weights;
} group;

/* The targets among the tensors that are one matrix; 0: none. */
static int find_group(const train__net *net, const train_params *p, const void *weights, const train__matrix *m,
                      group *g) {
    int64_t widths[TRAIN__JOINED], layer = m->layer;
    train_layer_tensor which = m->which;
    *g = (group){.rank = p->lora.rank, .scale = train_lora_scale(&p->lora), .params = p, .weights = weights};
    int members = train__net_matrix(net, m, &g->n, &g->k, widths);
    if (p->lora.family->fused) members = 1, widths[0] = g->n; /* their B are one matrix */
    const int64_t apart = m->expert > 0 ? m->expert * p->expert_stride : 0;
    for (int64_t i = 0, column = 0; i < members; i++) {
        int64_t width = widths[i];
        int64_t b = train_params_lora(p, layer, (train_layer_tensor)(which + i), TRAIN_LORA_B);
        if (b >= 0) {
            if (!g->count) g->a = train_params_lora(p, layer, (train_layer_tensor)(which + i), TRAIN_LORA_A);
            g->parts[g->count++] = (part){b + apart, column, width};
        }
        column += width;
    }
    g->a += apart;
    g->wide = g->count * g->rank;
    return g->count > 0;
}

static const void *weight(const train__net *net, const group *g, int64_t offset) {
    RAVEL_ASSERT(offset >= 0 && offset < g->params->elements);
    return train__at(g->weights, net->types.weight, offset);
}

static void *grad(const train__net *net, int64_t offset) {
    RAVEL_ASSERT(offset >= 0 && net->adapter.grads);
    return train__at(net->adapter.grads, net->types.grad, offset);
}

/* Element `at` of an array of activations. */
static void *columns(const train__net *net, const void *array, int64_t at) {
    return train__net_at(net, array, at);
}

static void make_u(const train__net *net, const group *g, const void *x, int64_t rows) {
    train_matmul product = {.m = rows, .n = g->wide, .k = g->k, .a = x, .c = net->adapter.u, .trans_b = 1};
    product.b = weight(net, g, g->a);
    product.scale = g->scale;
    product.batch_invariant = net->batch_invariant;
    train__net_multiply(net, product, net->types.weight, net->types.activation);
}

static void make_d_u(const train__net *net, const group *g, const void *d_y, int64_t rows) {
    for (int64_t i = 0; i < g->count; i++) {
        const part *p = &g->parts[i];
        train_matmul product = {.m = rows, .n = g->rank, .k = p->width, .lda = g->n, .ldc = g->wide};
        product.a = columns(net, d_y, p->column);
        product.b = weight(net, g, p->b);
        product.c = columns(net, net->adapter.d_u, i * g->rank);
        product.scale = g->scale;
        train__net_multiply(net, product, net->types.weight, net->types.activation);
    }
}

static void project(const train__net *net, const train__adapter_run *run, void *y, const void *x,
                    const train__matrix *m, int64_t rows) {
    group g;
    if (!find_group(net, run->params, run->weights, m, &g)) return;
    make_u(net, &g, x, rows);
    for (int64_t i = 0; i < g.count; i++) {
        const part *p = &g.parts[i];
        train_matmul product = {.m = rows, .n = p->width, .k = g.rank, .lda = g.wide, .ldc = g.n, .trans_b = 1};
        product.a = columns(net, net->adapter.u, i * g.rank);
        product.b = weight(net, &g, p->b);
        product.c = columns(net, y, p->column);
        product.add = 1;
        product.batch_invariant = net->batch_invariant;
        train__net_multiply(net, product, net->types.weight, net->types.activation);
    }
}

/* The rows of an expert are in the order of the tokens, so those of a run of tokens follow one another. */
void train__adapter_project(const train__net *net, void *y, const void *x, const train__matrix *m, int64_t rows) {
    const train__adapter *a = &net->adapter;
    const train__adapter_run all = {rows, a->params, a->weights}, *runs = a->runs ? a->runs : &all;
    const int64_t count = a->runs ? a->run_count : 1;
    const int32_t *tokens = a->runs ? m->tokens : NULL;
    int64_t n, k, widths[TRAIN__JOINED], first = 0, end, token = 0;
    (void)train__net_matrix(net, m, &n, &k, widths);
    for (int64_t i = 0; i < count; i++, first = end) {
        token += runs[i].rows;
        for (end = tokens ? first : token; tokens && end < rows && tokens[end] < token;) end++;
        if (runs[i].weights && end > first)
            project(net, &runs[i], columns(net, y, first * n), columns(net, x, first * k), m, end - first);
    }
    RAVEL_ASSERT(first == rows && (m->expert < 0 || tokens || !a->runs));
}

void train__adapter_input(const train__net *net, void *d_x, const void *d_y, const train__matrix *m, int64_t rows) {
    group g;
    if (!find_group(net, net->adapter.params, net->adapter.weights, m, &g)) return;
    make_d_u(net, &g, d_y, rows);
    train_matmul product = {.m = rows, .n = g.k, .k = g.wide, .a = net->adapter.d_u, .c = d_x, .add = 1};
    product.b = weight(net, &g, g.a);
    train__net_multiply(net, product, net->types.weight, net->types.activation);
}

void train__adapter_weight(const train__net *net, const void *d_y, const void *x, const train__matrix *m,
                           int64_t rows) {
    group g;
    if (!net->adapter.weights || !find_group(net, net->adapter.params, net->adapter.weights, m, &g)) return;
    make_u(net, &g, x, rows);
    make_d_u(net, &g, d_y, rows);
    for (int64_t i = 0; i < g.count; i++) {
        const part *p = &g.parts[i];
        train_matmul product = {.m = p->width, .n = g.rank, .k = rows, .lda = g.n, .ldb = g.wide, .trans_a = 1};
        product.a = columns(net, d_y, p->column);
        product.b = columns(net, net->adapter.u, i * g.rank);
        product.c = grad(net, p->b);
        product.add = 1;
        train__net_multiply(net, product, net->types.activation, net->types.grad);
    }
    train_matmul product = {.m = g.wide, .n = g.k, .k = rows, .a = net->adapter.d_u, .b = x, .trans_a = 1};
    product.c = grad(net, g.a);
    product.add = 1;
    train__net_multiply(net, product, net->types.activation, net->types.grad);
}
