/* The backward of a block of experts (net_experts.c). Pairs of token and expert are in the order of their forward. */
#include "train/model/model_internal.h"

#include "base/assert.h"

/* The gradient of all experts' matrices, or of those of the adapter. */
static void weights(const train_model *m, const train__routes *r, const void *d_y, const void *x, int64_t layer,
                    train_layer_tensor which) {
    void *d_w = train__model_grad(m, train_params_layer(m->params, layer, which));
    train__net_experts_weight(&m->net, r, d_w, d_y, x, layer, which);
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

/* What was received of a round, to the gradients of its rows, which take the place of the rows. */
static void round_backward(train_model *m, int64_t layer, const train__acts *a, int64_t rows) {
    const train__net *n = &m->net;
    train__exchange *x = n->exchange;
    int64_t ffn = n->shape.expert_ffn;
    const train__routes *r = &a->routes;
    train_weigh weigh = {.rows = rows, .width = ffn, .x = a->h, .weights = x->weights};
    weigh.d_y = m->working.d_h;
    weigh.d_weights = x->d_weights;
    train__net_experts_project(n, r, a->gate_up, x->rows, layer, TRAIN_GATE);
    train__net_experts_input(n, r, m->working.d_h, x->given, layer, TRAIN_DOWN);
    if (rows) {
        train__net_gate(n, a->h, a->gate_up, rows, ffn);
        n->kernels->weigh_backward(n->device, &weigh);
        train__net_gate_backward(n, a->gate_up, NULL, m->working.d_h, a->gate_up, rows, ffn);
    }
    weights(m, r, x->given, a->h, layer, TRAIN_DOWN);
    weights(m, r, a->gate_up, x->rows, layer, TRAIN_GATE);
    train__net_experts_input(n, r, x->rows, a->gate_up, layer, TRAIN_GATE);
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
    train__net_to_experts(&m->net, r, r->pairs, d_out, rows);
    train__net_experts_input(&m->net, r, m->working.d_h, r->pairs, layer, TRAIN_DOWN);
    activation_backward(m, a, rows);
    weights(m, r, r->pairs, a->h, layer, TRAIN_DOWN);
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
    train__net_to_experts(n, r, r->pairs, xn, rows);
    if (n->exchange)
        exchange_backward(m, layer, a, rows);
    else
        weights(m, r, a->gate_up, r->pairs, layer, TRAIN_GATE);
    router_backward(m, layer, a, rows);
    if (!train__model_frozen(m))
        train__net_linear_weight(n, train__model_grad(m, train_params_layer(m->params, layer, TRAIN_ROUTER)), d_logits,
                                 xn, rows, n->shape.experts, n->hidden);
    if (!n->exchange) train__net_experts_input(n, r, r->pairs, a->gate_up, layer, TRAIN_GATE);
    train__net_from_experts(n, r, d_x, r->pairs, rows);
    train_matmul rest = {.m = rows, .n = n->hidden, .k = n->shape.experts, .a = d_logits, .c = d_x, .add = 1};
    rest.b = train__net_layer_weight(n, layer, TRAIN_ROUTER);
    train__net_multiply(n, rest, n->types.weight, n->types.activation);
}
