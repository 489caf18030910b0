/* Experts that several ranks share out (expert parallelism): rows of pairs go to the rank that has their expert, and
 * what it makes of them comes back (net.h).
 *
 *     pairs by expert   | to rank 0 | to rank 1 | ...      on every rank, as sort_pairs leaves them
 *     rank 1 receives   | of rank 0, by expert | of rank 1, by expert | ...
 *
 * All ranks know how many pairs each has for each expert, so every one works out who sends what. A rank takes as many
 * rows at a time as it has room for (train__exchange.capacity, what it would have if the load were even): if it gets
 * more, there are several rounds, of all ranks. So no row is dropped, and no buffer depends on the load. */
#include "train/model/net/net.h"

#include "base/assert.h"
#include "train/kernels/arena.h"

#include <string.h>

enum { SEND, SEND_AT, RECEIVE, RECEIVE_AT, SIZES };

/* Pairs that rank `from` has for the experts of `to`. */
static int64_t pairs_of(const train__exchange *x, int32_t from, int32_t to) {
    return x->totals[from * x->link.ranks + to];
}

void train__exchange_begin(train__exchange *x, const int32_t *offsets) {
    int64_t experts = x->experts, each = experts / x->link.ranks;
    int32_t ranks = x->link.ranks, *mine = x->counts + ranks * experts;
    x->offsets = offsets;
    for (int64_t e = 0; e < experts; e++) mine[e] = offsets[e + 1] - offsets[e];
    if (!x->link.status)
        train__link_note(&x->link, ravel_comm_allgather(ravel_comm_host(x->link.comm), mine, x->counts, experts,
                                                        RAVEL_I32, train__link_error(&x->link)));
    x->rounds = 0;
    if (x->link.status) return;
    for (int32_t to = 0; to < ranks; to++) {
        int64_t all = 0;
        for (int32_t from = 0; from < ranks; from++) {
            int64_t n = 0;
            for (int64_t e = to * each; e < (to + 1) * each; e++) n += x->counts[from * experts + e];
            x->totals[from * ranks + to] = n;
            all += n;
        }
        x->rounds = train__max(x->rounds, (all + x->capacity - 1) / x->capacity);
    }
}

/* Of the pairs that `from` has for `to`, those of a round: the first is *first, and it lies at *at of what `to`
 * receives. */
static int64_t span(const train__exchange *x, int32_t from, int32_t to, int64_t round, int64_t *first, int64_t *at) {
    int64_t before = 0, begin = round * x->capacity, end = begin + x->capacity;
    for (int32_t r = 0; r < from; r++) before += pairs_of(x, r, to);
    int64_t low = train__max(before, begin), high = train__min(before + pairs_of(x, from, to), end);
    *first = low - before;
    *at = low - begin;
    return train__max(high - low, 0);
}

/* In elements of `width` per pair; `back`: from where the experts are. Returns the most between two ranks. */
static int64_t set_sizes(const train__exchange *x, int64_t round, int64_t width, int back, int64_t **size) {
    int32_t ranks = x->link.ranks, me = x->link.rank;
    int64_t first, at, most = 0, each = x->experts / ranks;
    for (int i = 0; i < SIZES; i++) size[i] = x->sizes + i * ranks;
    for (int32_t r = 0; r < ranks; r++) {
        size[back ? RECEIVE : SEND][r] = width * span(x, me, r, round, &first, &at);
        size[back ? RECEIVE_AT : SEND_AT][r] = width * (x->offsets[r * each] + first);
        size[back ? SEND : RECEIVE][r] = width * span(x, r, me, round, &first, &at);
        size[back ? SEND_AT : RECEIVE_AT][r] = width * at;
        if (!size[SEND][r]) size[SEND_AT][r] = 0;
        if (!size[RECEIVE][r]) size[RECEIVE_AT][r] = 0;
        for (int32_t to = 0; to < ranks; to++) most = train__max(most, width * span(x, r, to, round, &first, &at));
    }
    return most;
}

/* Received rows lie rank by rank; order[i] is where the i-th of them in the order of experts is. */
static void sort_received(train__exchange *x, int64_t round) {
    int64_t each = x->experts / x->link.ranks, own = x->link.rank * each;
    int32_t n = 0;
    for (int64_t e = 0; e < each; e++) {
        x->first[e] = n;
        for (int32_t r = 0; r < x->link.ranks; r++) {
            const int32_t *counts = x->counts + r * x->experts + own;
            int64_t first, at, count = span(x, r, x->link.rank, round, &first, &at), begin = 0;
            for (int64_t before = 0; before < e; before++) begin += counts[before];
            int64_t low = train__max(begin, first), high = train__min(begin + counts[e], first + count);
            for (int64_t i = low; i < high; i++) x->order[n++] = (int32_t)(at + i - first);
        }
    }
    x->first[each] = n;
    RAVEL_ASSERT(n <= x->capacity);
}

int64_t train__exchange_round(const train__net *net, int64_t round) {
    train__exchange *x = net->exchange;
    sort_received(x, round);
    int64_t rows = x->first[x->experts / x->link.ranks];
    if (rows) net->kernels->upload(net->device, x->order_there, x->order, (size_t)rows * sizeof *x->order);
    return rows;
}

void train__exchange_move(const train__net *net, int64_t round, const void *from, void *to, int back) {
    train__exchange *x = net->exchange;
    int64_t *size[SIZES], most = set_sizes(x, round, net->hidden, back, size);
    train_rows move = {.rows = x->first[x->experts / x->link.ranks], .width = net->hidden};
    move.to = back ? x->wire : to;
    move.from = back ? from : x->wire;
    *(back ? &move.to_ids : &move.from_ids) = x->order_there;
    if (back) net->kernels->copy_rows(net->device, &move);
    train__link_exchange(&x->link, back ? x->wire : from, size[SEND], size[SEND_AT], back ? to : x->wire, size[RECEIVE],
                         size[RECEIVE_AT], most, net->types.activation);
    if (!back) net->kernels->copy_rows(net->device, &move);
}

void train__exchange_numbers(train__exchange *x, int64_t round, const train_real *from, train_real *to, int back) {
    int64_t *size[SIZES], rows = x->first[x->experts / x->link.ranks];
    (void)set_sizes(x, round, 1, back, size);
    int32_t type = sizeof(train_real) == sizeof(double) ? RAVEL_F64 : RAVEL_F32;
    for (int64_t i = 0; i < rows && back; i++) x->numbers[x->order[i]] = from[i];
    if (x->link.status) return;
    train__link_note(&x->link, ravel_comm_alltoallv(ravel_comm_host(x->link.comm), back ? x->numbers : from, size[SEND],
                                                    size[SEND_AT], back ? to : x->numbers, size[RECEIVE],
                                                    size[RECEIVE_AT], type, train__link_error(&x->link)));
    for (int64_t i = 0; i < rows && !back; i++) to[i] = x->numbers[x->order[i]];
}

/* ---- forward ---------------------------------------------------------------------------------------------- */

/* The weights of pairs, in the order of experts, from the device. */
void train__exchange_weights(const train__net *net, const train__routes *r, int64_t rows) {
    train__exchange *x = net->exchange;
    const int32_t *place = net->router->index + train__net_pairs(net, rows);
    int64_t pairs = train__net_pairs(net, rows);
    net->kernels->download(net->device, x->by_place, r->weights, (size_t)pairs * sizeof *x->by_place);
    for (int64_t p = 0; p < pairs; p++) x->out[p] = x->by_place[place[p]];
}

void train__exchange_receive_weights(const train__net *net, int64_t round, int64_t rows) {
    train__exchange *x = net->exchange;
    train__exchange_numbers(x, round, x->out, x->in, 0);
    if (rows) net->kernels->upload(net->device, x->weights, x->in, (size_t)rows * sizeof *x->in);
}

void train__exchange_forward(const train__net *net, int64_t layer, const train__acts *a, int64_t rows) {
    train__exchange *x = net->exchange;
    const train__routes *r = &a->routes;
    train__exchange_begin(x, r->offsets);
    train__exchange_weights(net, r, rows);
    for (int64_t round = 0; round < x->rounds; round++) {
        int64_t here = train__exchange_round(net, round);
        train__exchange_move(net, round, r->pairs, x->rows, 0);
        train__exchange_receive_weights(net, round, here);
        train__net_experts_project(net, r, a->gate_up, x->rows, layer, TRAIN_GATE);
        if (here) train__net_gate(net, a->h, a->gate_up, here, net->shape.expert_ffn);
        train_weigh weigh = {.rows = here, .width = net->shape.expert_ffn, .x = a->h, .weights = x->weights};
        if (here) net->kernels->weigh(net->device, &weigh);
        train__net_experts_project(net, r, x->rows, a->h, layer, TRAIN_DOWN);
        train__exchange_move(net, round, x->rows, r->pairs, 1);
    }
}
