/* A feed-forward block that is a choice of experts (net.h), forward; its backward is model_experts.c's.
 *
 *     xn ── router ── logits ── top-k ── ids, weights
 *      │                                  │  to the host, which sorts the pairs of token and expert by expert
 *      └── rows by expert [pairs, C] ── gate up of each expert ── swiglu ── times weight ── down of each expert ──┐
 *                                                        y of a token = the sum of its pairs' rows  ◄─────────────┘
 *
 * No pair is dropped, so the number of rows of an expert is only known when the tokens have been routed: the ids go to
 * the host once per layer and pass, and the order of the pairs comes back. Multiplying with the weight before the
 * product and not after it gives the same sum, and backward needs no output of an expert: the gradient of a weight is a
 * dot product of rows that are there.
 *
 * A tensor-parallel rank has a share of the columns of every expert, and all of the router: what it gives to the
 * gradients of weights, logits and router is its part of a sum over ranks. */
#include "train/model/net/net.h"

#include "base/assert.h"
#include "train/kernels/arena.h"

#include <string.h>

int64_t train__net_pairs(const train__net *net, int64_t rows) {
    RAVEL_ASSERT(rows >= 0);
    return rows * net->shape.experts_active;
}

size_t train__routes_cut(const train__net *net, int64_t rows, char *base, train__routes *r) {
    train__cut cut = {base, 0};
    int64_t pairs = train__net_pairs(net, rows);
    r->logits = train__cut_take(&cut, 1, train__net_bytes(net, rows * net->shape.experts));
    r->ids = train__cut_take(&cut, pairs, sizeof *r->ids);
    r->weights = train__cut_take(&cut, pairs, sizeof *r->weights);
    r->index = train__cut_take(&cut, train__index_elements(net, rows), sizeof *r->index);
    return cut.used;
}

int64_t train__index_elements(const train__net *net, int64_t rows) {
    return 3 * train__net_pairs(net, rows) + rows + 1;
}

/* ---- sorting, on the host --------------------------------------------------------------------------------- */

/* By expert and, of one expert, in the order of rows. index: [pairs] row of a pair | [pairs] its place among ids |
 * [pairs] pairs by row | [rows + 1] where a row's begin there. */
static void sort_pairs(const train__net *net, const int32_t *ids, int64_t rows, int32_t *offsets, int32_t *index) {
    int64_t active = net->shape.experts_active, pairs = rows * active, experts = net->shape.experts;
    int32_t *row = index, *place = row + pairs, *list = place + pairs, *first = list + pairs;
    memset(offsets, 0, (size_t)(experts + 1) * sizeof *offsets);
    for (int64_t i = 0; i < pairs; i++) {
        RAVEL_ASSERT(ids[i] >= 0 && ids[i] < experts);
        offsets[ids[i] + 1]++;
    }
    for (int64_t e = 0; e < experts; e++) offsets[e + 1] += offsets[e];
    for (int64_t i = 0; i < pairs; i++) {
        int32_t p = offsets[ids[i]]++; /* which leaves the begin of the next expert */
        row[p] = (int32_t)(i / active);
        place[p] = (int32_t)i;
        list[i] = p;
    }
    memmove(offsets + 1, offsets, (size_t)experts * sizeof *offsets);
    offsets[0] = 0;
    for (int64_t r = 0; r <= rows; r++) first[r] = (int32_t)(r * active);
    RAVEL_ASSERT(offsets[experts] == pairs);
}

void train__net_sort(const train__net *net, const int32_t *ids, int64_t rows, int32_t *offsets) {
    sort_pairs(net, ids, rows, offsets, net->router->index);
}

/* ---- forward ---------------------------------------------------------------------------------------------- */

train_route train__net_route(const train__net *net, const train__routes *r, int64_t rows) {
    return (train_route){.rows = rows,
                         .experts = (int32_t)net->shape.experts,
                         .active = (int32_t)net->shape.experts_active,
                         .normalise = (int32_t)net->shape.router_norm,
                         .logits = r->logits,
                         .ids = r->ids,
                         .weights = r->weights};
}

train_weigh train__net_weigh(const train__net *net, const train__routes *r, void *h, int64_t rows) {
    int64_t pairs = train__net_pairs(net, rows);
    return (train_weigh){
        .rows = pairs, .width = net->shape.expert_ffn, .x = h, .weights = r->weights, .places = r->index + pairs};
}

void train__net_to_experts(const train__net *net, const train__routes *r, void *to, const void *x, int64_t rows) {
    train_rows move = {.rows = train__net_pairs(net, rows), .width = net->hidden, .to = to, .from = x};
    move.from_ids = r->index;
    net->kernels->copy_rows(net->device, &move);
}

void train__net_from_experts(const train__net *net, const train__routes *r, void *y, const void *from, int64_t rows) {
    int64_t pairs = train__net_pairs(net, rows);
    train_rows move = {.rows = rows, .width = net->hidden, .to = y, .from = from};
    move.from_ids = r->index + 2 * pairs;
    move.first = r->index + 3 * pairs;
    net->kernels->copy_rows(net->device, &move);
}

/* The next expert that has rows, after m->expert: at .. at + rows - 1; 0: there is none. */
static int next_expert(const train__net *net, const train__routes *r, train__matrix *m, int64_t *at, int64_t *rows) {
    const int32_t *first = net->exchange ? net->exchange->first : r->offsets;
    for (*rows = 0; *rows == 0;) {
        if (++m->expert == net->params->expert_count) return 0;
        *at = first[m->expert];
        *rows = first[m->expert + 1] - *at;
    }
    m->tokens = net->exchange ? NULL : net->router->index + *at;
    return 1;
}

/* Rows n and columns k. */
static void size_of(const train__net *net, train_layer_tensor which, int64_t *n, int64_t *k) {
    const train__matrix first = {0, 0, which, NULL};
    int64_t widths[TRAIN__JOINED];
    (void)train__net_matrix(net, &first, n, k, widths);
}

void train__net_experts_project(const train__net *net, const train__routes *r, void *y, const void *x, int64_t layer,
                                train_layer_tensor which) {
    train__matrix m = train__dense(layer, which);
    int64_t n, k, at, rows;
    size_of(net, which, &n, &k);
    while (next_expert(net, r, &m, &at, &rows))
        train__net_project(net, train__net_at(net, y, at * n), train__net_at(net, x, at * k), m, rows);
}

void train__net_experts_input(const train__net *net, const train__routes *r, void *d_x, const void *d_y, int64_t layer,
                              train_layer_tensor which) {
    train__matrix m = train__dense(layer, which);
    int64_t n, k, at, rows;
    size_of(net, which, &n, &k);
    while (next_expert(net, r, &m, &at, &rows))
        train__net_project_input(net, train__net_at(net, d_x, at * k), train__net_at(net, d_y, at * n), m, rows);
}

void train__net_experts_weight(const train__net *net, const train__routes *r, void *d_w, const void *d_y, const void *x,
                               int64_t layer, train_layer_tensor which) {
    train__matrix m = train__dense(layer, which);
    int64_t n, k, at, rows;
    size_of(net, which, &n, &k);
    while (next_expert(net, r, &m, &at, &rows))
        train__net_project_weight(net, d_w, train__net_at(net, d_y, at * n), train__net_at(net, x, at * k), m, rows);
}

/* What the host keeps of the ids: the load, and a record of routes. */
static void note(const train__net *net, const train__routes *r, const int32_t *ids, int64_t rows) {
    int64_t active = net->shape.experts_active;
    for (int64_t i = 0; r->load && i < rows; i++)
        for (int64_t k = 0; k < active; k++) r->load[ids[i * active + k]] += r->times ? r->times[i] : 1;
    for (int64_t i = 0; r->record && i < rows; i++) {
        int16_t *to = r->record + (r->record_rows ? r->record_rows[i] : i) * r->record_stride;
        for (int64_t k = 0; k < active; k++) to[k] = (int16_t)ids[i * active + k];
    }
}

/* The logits, ids and weights, and the order of the pairs. */
static void route(const train__net *net, int64_t layer, const train__routes *r, const void *xn, int64_t rows) {
    const train_kernels *k = net->kernels;
    const train__router *host = net->router;
    int64_t pairs = train__net_pairs(net, rows);
    train_route x = train__net_route(net, r, rows);
    RAVEL_ASSERT(host && rows <= host->rows && r->offsets);
    train__net_linear(net, r->logits, xn, train_params_layer(net->params, layer, TRAIN_ROUTER), rows,
                      net->shape.experts, net->hidden);
    if (r->given) k->copy(net->device, r->ids, r->given, (size_t)pairs * sizeof *r->ids);
    x.given = r->given != NULL;
    k->route(net->device, &x);
    k->download(net->device, host->ids, r->ids, (size_t)pairs * sizeof *host->ids);
    note(net, r, host->ids, rows);
    sort_pairs(net, host->ids, rows, r->offsets, host->index);
    k->upload(net->device, r->index, host->index, (size_t)(3 * pairs + rows + 1) * sizeof *host->index);
}

void train__net_experts(const train__net *net, int64_t layer, const train__acts *a, const void *xn, void *y,
                        int64_t rows) {
    const train__routes *r = &a->routes;
    int64_t pairs = train__net_pairs(net, rows);
    RAVEL_ASSERT(rows > 0 && r->logits && r->index && r->pairs);
    route(net, layer, r, xn, rows);
    if (net->exchange && !y) return; /* backward makes gate and up again */
    train__net_to_experts(net, r, r->pairs, xn, rows);
    if (net->exchange) {
        train__exchange_forward(net, layer, a, rows);
        train__net_from_experts(net, r, y, r->pairs, rows);
        return;
    }
    train__net_experts_project(net, r, a->gate_up, r->pairs, layer, TRAIN_GATE);
    if (!y) return;
    train__net_gate(net, a->h, a->gate_up, pairs, net->shape.expert_ffn);
    train_weigh weigh = train__net_weigh(net, r, a->h, rows);
    net->kernels->weigh(net->device, &weigh);
    train__net_experts_project(net, r, r->pairs, a->h, layer, TRAIN_DOWN);
    train__net_from_experts(net, r, y, r->pairs, rows);
}
