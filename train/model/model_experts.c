/* The backward of a block of experts (net_experts.c). Pairs of token and expert are in the order of their forward. */
#include "train/model/model_internal.h"

#include "base/assert.h"

/* What the products of one matrix of all experts read and write; rows are those of pairs. */
typedef struct products {
    const train_model *m;
    const train__routes *r;
    int64_t n, k; /* of a matrix */
    int64_t layer;
    train_layer_tensor which;
} products;

static products products_of(const train_model *m, const train__routes *r, int64_t layer, train_layer_tensor which) {
    products p = {.m = m, .r = r, .layer = layer, .which = which};
    train__net_expert_size(&m->net, which, &p.n, &p.k);
    RAVEL_ASSERT(p.n > 0 && p.k > 0);
    return p;
}

/* The gradients of all experts' matrices. */
static void *grads_of(const train_model *m, int64_t layer, train_layer_tensor which) {
    return train__model_grad(m, train_params_layer(m->params, layer, which));
}

/* d_x = d_y w */
static void inputs(const products *p, void *d_x, const void *d_y) {
    const train__net *n = &p->m->net;
    for (int64_t e = 0; e < n->shape.experts; e++) {
        int64_t at = p->r->offsets[e], rows = p->r->offsets[e + 1] - at;
        if (rows)
            train__net_expert_input(n, train__net_at(n, d_x, at * p->k), train__net_at(n, d_y, at * p->n),
                                    &(train__expert){p->layer, e, p->which, NULL}, rows);
    }
}

/* d_w += d_y' x, or those of the adapter */
static void weights(const products *p, const void *d_y, const void *x) {
    const train__net *n = &p->m->net;
    void *d_w = grads_of(p->m, p->layer, p->which);
    for (int64_t e = 0; e < n->shape.experts; e++) {
        int64_t at = p->r->offsets[e], rows = p->r->offsets[e + 1] - at;
        if (rows)
            train__net_expert_weight(n, d_w, train__net_at(n, d_y, at * p->n), train__net_at(n, x, at * p->k),
                                     &(train__expert){p->layer, e, p->which, NULL}, rows);
    }
}

/* gate_up becomes its own gradient, and h its product with the weights. */
static void activation_backward(train_model *m, const train__acts *a, int64_t rows) {
    const train__net *n = &m->net;
    int64_t pairs = train__net_pairs(n, rows), ffn = n->shape.expert_ffn;
    train_weigh weigh = train__net_weigh(n, &a->routes, a->h, rows);
    weigh.d_y = m->working.d_h;
    weigh.d_weights = m->working.d_weights;
    train__net_gate(n, a->h, a->gate_up, pairs, ffn);
    n->kernels->weigh_backward(n->device, &weigh);
    train__net_gate_backward(n, a->gate_up, NULL, m->working.d_h, a->gate_up, pairs, ffn);
}

/* ---- experts on several ranks ----------------------------------------------------------------------------- */

typedef struct passed {
    const train_model *m;
    const void *d_y, *x; /* received rows */
    void *d_x;
    int64_t layer, n, k;
    train_layer_tensor which;
} passed;

static void passed_inputs(void *user, int64_t expert, int64_t at, int64_t rows) {
    const passed *p = user;
    const train__net *n = &p->m->net;
    train__net_expert_input(n, train__net_at(n, p->d_x, at * p->k), train__net_at(n, p->d_y, at * p->n),
                            &(train__expert){p->layer, expert, p->which, NULL}, rows);
}

static void passed_weights(void *user, int64_t expert, int64_t at, int64_t rows) {
    const passed *p = user;
    const train__net *n = &p->m->net;
    train__net_expert_weight(n, grads_of(p->m, p->layer, p->which), train__net_at(n, p->d_y, at * p->n),
                             train__net_at(n, p->x, at * p->k), &(train__expert){p->layer, expert, p->which, NULL},
                             rows);
}

static passed passed_of(const train_model *m, int64_t layer, train_layer_tensor which, const void *d_y, const void *x,
                        void *d_x) {
    passed p = {.m = m, .d_y = d_y, .x = x, .d_x = d_x, .layer = layer, .which = which};
    train__net_expert_size(&m->net, which, &p.n, &p.k);
    return p;
}

/* What was received of a round, to the gradients of its rows, which take the place of the rows. */
static void round_backward(train_model *m, int64_t layer, const train__acts *a, int64_t rows) {
    const train__net *n = &m->net;
    train__exchange *x = n->exchange;
    int64_t ffn = n->shape.expert_ffn;
    passed down = passed_of(m, layer, TRAIN_DOWN, x->given, a->h, m->working.d_h);
    passed up = passed_of(m, layer, TRAIN_GATE, a->gate_up, x->rows, x->rows);
    train_weigh weigh = {.rows = rows, .width = ffn, .x = a->h, .weights = x->weights};
    weigh.d_y = m->working.d_h;
    weigh.d_weights = x->d_weights;
    train__exchange_project(n, a->gate_up, x->rows, layer, TRAIN_GATE);
    train__exchange_each(n, passed_inputs, &down);
    if (rows) {
        train__net_gate(n, a->h, a->gate_up, rows, ffn);
        n->kernels->weigh_backward(n->device, &weigh);
        train__net_gate_backward(n, a->gate_up, NULL, m->working.d_h, a->gate_up, rows, ffn);
    }
    train__exchange_each(n, passed_weights, &down);
    train__exchange_each(n, passed_weights, &up);
    train__exchange_each(n, passed_inputs, &up);
}

/* r->pairs holds the rows of xn, and x->sorted the gradients of what the experts gave for them; r->pairs gets the
 * gradients of the rows, and working.d_weights those of the weights. */
static void exchange_backward(train_model *m, int64_t layer, const train__acts *a, int64_t rows) {
    const train__net *n = &m->net;
    train__exchange *x = n->exchange;
    int64_t pairs = train__net_pairs(n, rows);
    const int32_t *place = n->router->index + pairs;
    n->kernels->download(n->device, n->router->ids, a->routes.ids, (size_t)pairs * sizeof *n->router->ids);
    train__net_sort(n, n->router->ids, rows, a->routes.offsets);
    train__exchange_begin(x, a->routes.offsets);
    train__exchange_weights(n, &a->routes, rows);
    for (int64_t round = 0; round < x->rounds; round++) {
        int64_t here = train__exchange_round(n, round);
        train__exchange_move(n, round, a->routes.pairs, x->rows, 0);
        train__exchange_move(n, round, x->sorted, x->given, 0);
        train__exchange_receive_weights(n, round, here);
        round_backward(m, layer, a, here);
        train__exchange_move(n, round, x->rows, a->routes.pairs, 1);
        if (here) n->kernels->download(n->device, x->in, x->d_weights, (size_t)here * sizeof *x->in);
        train__exchange_numbers(x, round, x->in, x->out_back, 1);
    }
    for (int64_t p = 0; p < pairs; p++) x->by_place[place[p]] = x->out_back[p];
    n->kernels->upload(n->device, m->working.d_weights, x->by_place, (size_t)pairs * sizeof *x->by_place);
}

/* ---- the two halves --------------------------------------------------------------------------------------- */

void train__model_experts_down(train_model *m, int64_t layer, const train__acts *a, const void *d_out, int64_t rows) {
    const train__routes *r = &a->routes;
    if (m->net.exchange) {
        train__net_to_experts(&m->net, r, m->net.exchange->sorted, d_out, rows);
        return;
    }
    products down = products_of(m, r, layer, TRAIN_DOWN);
    train__net_to_experts(&m->net, r, r->pairs, d_out, rows);
    inputs(&down, m->working.d_h, r->pairs);
    activation_backward(m, a, rows);
    weights(&down, r->pairs, a->h);
}

static void router_backward(train_model *m, int64_t layer, const train__acts *a, int64_t rows) {
    const train__net *n = &m->net;
    train_route route = train__net_route(n, &a->routes, rows);
    route.d_weights = m->working.d_weights;
    route.d_logits = m->working.d_logits;
    if (m->balanced && m->tp.rank == 0) /* what ranks give is added */
        route.balance = m->balance + (layer - m->params->part.first_layer) * n->shape.experts;
    route.counted = a->routes.counted;
    route.row_loss = m->row_loss;
    n->kernels->route_backward(n->device, &route);
}

void train__model_experts_up(train_model *m, int64_t layer, const train__acts *a, const void *xn, void *d_x,
                             int64_t rows) {
    const train__net *n = &m->net;
    const train__routes *r = &a->routes;
    void *d_logits = m->working.d_logits;
    products up = products_of(m, r, layer, TRAIN_GATE);
    train__net_to_experts(n, r, r->pairs, xn, rows);
    if (n->exchange)
        exchange_backward(m, layer, a, rows);
    else
        weights(&up, a->gate_up, r->pairs);
    router_backward(m, layer, a, rows);
    if (!train__model_frozen(m))
        train__net_linear_weight(n, train__model_grad(m, train_params_layer(m->params, layer, TRAIN_ROUTER)), d_logits,
                                 xn, rows, n->shape.experts, n->hidden);
    if (!n->exchange) inputs(&up, r->pairs, a->gate_up);
    train__net_from_experts(n, r, d_x, r->pairs, rows);
    train_matmul rest = {.m = rows, .n = n->hidden, .k = n->shape.experts, .a = d_logits, .c = d_x, .add = 1};
    rest.b = train__net_layer_weight(n, layer, TRAIN_ROUTER);
    train__net_multiply(n, rest, n->types.weight, n->types.activation);
}
