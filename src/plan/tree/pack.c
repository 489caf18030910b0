/* Packing: few bins, few cuts.
 *
 * Nodes come children first. A subtree that fits a bin is one item of the node above. A node that does not fit packs
 * its items, largest first, each into the bin with the least added cost, then the least room; its bins are those that
 * were opened below it, which all hold its path already. The emptiest of them goes up as an item, to be filled with
 * something else.
 *
 *     node does not fit       items: [child][child][rest of a child]  ->  bins [====][====][== ] -> rest of this
 * node */
#include "plan/tree/bins.h"

#include "base/assert.h"
#include "base/sort.h"

#include <string.h>

typedef struct item {
    ravel__span own;          /* a whole subtree */
    const ravel__span *spans; /* or a rest: its spans */
    int32_t count;
    int32_t kin, kin_end; /* a rest: the bins of its own subtree */
    ravel__weight weight; /* by itself */
} item;

typedef struct packing {
    ravel__yard *y;
    int64_t limit;
    int64_t norm;   /* cost that weighs as much as one token: the scarcer of both decides */
    int32_t *first; /* [nodes] number of bins before the first that was opened below the node; -1: it fits a bin */
    item *rest;     /* [nodes] */
    item *items;    /* [nodes] of the node that is being packed */
    uint64_t *keys, *spare;
    int32_t *order, *spare_order;
} packing;

static int64_t room_in(const packing *p, const ravel__tree_bin *b) {
    int64_t tokens = (p->y->f->cap - b->tokens) * p->norm, cost = p->limit - b->cost;
    return tokens < cost ? tokens : cost;
}

static int fits(const packing *p, const ravel__tree_bin *b, const ravel__weight *w) {
    return b->tokens + w->tokens <= p->y->f->cap && b->cost + w->cost <= p->limit && b->rows + w->rows <= p->y->f->most;
}

/* ---- one node --------------------------------------------------------------------------------------------------- */

/* Every bin of the node holds its path, so an item adds the same to each. Only a rest may share more, with its kin. */
static int32_t find_bin(const packing *p, const item *it, int32_t first, const ravel__tree_node *n) {
    int32_t best = -1;
    int64_t best_cost = 0, best_room = 0;
    ravel__weight plain = it->weight;
    plain.tokens -= n->depth;
    plain.cost -= n->path;
    p->y->work -= (p->y->bins - first) / 8 + 1;
    for (int32_t b = first; b < p->y->bins; b++) {
        const ravel__tree_bin *bin = &p->y->bin[b];
        ravel__weight w = plain;
        if (b >= it->kin && b < it->kin_end) w = ravel__weigh(p->y, bin, it->spans, it->count);
        if (!fits(p, bin, &w)) continue;
        int64_t room = room_in(p, bin);
        if (best >= 0 && (w.cost > best_cost || (w.cost == best_cost && room >= best_room))) continue;
        best = b;
        best_cost = w.cost;
        best_room = room;
    }
    return best;
}

static void put(const packing *p, const item *it, int32_t bin) {
    if (bin < 0) {
        if (!ravel__yard_open(p->y)) return;
        bin = p->y->bins - 1;
    }
    if (!it->spans) ravel__bin_take(p->y, &p->y->bin[bin], it->own);
    for (int32_t k = 0; it->spans && k < it->count; k++) ravel__bin_take(p->y, &p->y->bin[bin], it->spans[k]);
}

/* Largest first, ties in tree order. Items are listed last child first. */
static void order_items(const packing *p, int32_t count, const ravel__tree_node *n) {
    for (int32_t i = 0; i < count; i++) {
        const item *it = &p->items[count - 1 - i];
        int64_t tokens = (it->weight.tokens - n->depth) * p->norm, cost = it->weight.cost - n->path;
        p->keys[i] = ~(uint64_t)(tokens > cost ? tokens : cost);
        p->order[i] = count - 1 - i;
    }
    ravel__sort_u64(p->keys, p->order, p->spare, p->spare_order, (size_t)count);
}

/* The emptiest bin of the node becomes its rest if it is less than three quarters full. */
static void keep_rest(const packing *p, int32_t v, int32_t first) {
    ravel__yard *y = p->y;
    int32_t best = first;
    for (int32_t b = first + 1; b < y->bins; b++)
        if (room_in(p, &y->bin[b]) > room_in(p, &y->bin[best])) best = b;
    ravel__tree_bin *bin = &y->bin[best], last = y->bin[y->bins - 1];
    int64_t all = p->limit < RAVEL__NO_LIMIT ? p->limit : y->f->cap;
    if (room_in(p, bin) <= all / 4) return;
    p->rest[v] = (item){.spans = bin->spans,
                        .count = bin->count,
                        .kin = first,
                        .kin_end = y->bins - 1,
                        .weight = {bin->tokens, bin->cost, bin->rows}};
    *bin = last;
    y->bin[--y->bins] = (ravel__tree_bin){0}; /* its spans are the rest's now */
}

static void pack_node(const packing *p, int32_t v, int rests) {
    const ravel__forest *f = p->y->f;
    const ravel__tree_node *n = &f->node[v];
    int32_t first = p->y->bins, count = 0;
    for (int32_t c = v - 1; c > v - n->size; c -= f->node[c].size) {
        const ravel__tree_node *child = &f->node[c];
        ravel__span own = {child->from, child->to};
        if (p->first[c] < 0) p->items[count++] = (item){.own = own, .weight = ravel__span_weight(p->y, own)};
        if (p->first[c] >= 0 && p->rest[c].count) p->items[count++] = p->rest[c];
        if (p->first[c] >= 0 && p->first[c] < first) first = p->first[c];
    }
    order_items(p, count, n);
    for (int32_t i = 0; i < count && !ravel__yard_failed(p->y); i++) {
        const item *it = &p->items[p->order[i]];
        put(p, it, find_bin(p, it, first, n));
    }
    p->first[v] = first;
    p->rest[v] = (item){0};
    if (rests && n->parent >= 0 && p->y->bins > first) keep_rest(p, v, first);
}

static int fits_alone(const packing *p, const ravel__tree_node *n) {
    ravel__weight w = ravel__span_weight(p->y, (ravel__span){n->from, n->to});
    return n->size == 1 || (w.tokens <= p->y->f->cap && w.cost <= p->limit && w.rows <= p->y->f->most);
}

/* ---- the forest ------------------------------------------------------------------------------------------------- */

static void make(ravel__yard *y, int64_t limit, packing *p) {
    size_t n = (size_t)y->f->nodes;
    *p =
        (packing){.y = y, .limit = limit, .norm = limit < RAVEL__NO_LIMIT && limit > y->f->cap ? limit / y->f->cap : 1};
    RAVEL__PUSH(y->arena, p->first, n);
    RAVEL__PUSH(y->arena, p->rest, n);
    RAVEL__PUSH(y->arena, p->items, n);
    RAVEL__PUSH(y->arena, p->keys, n);
    RAVEL__PUSH(y->arena, p->spare, n);
    RAVEL__PUSH(y->arena, p->order, n);
    RAVEL__PUSH(y->arena, p->spare_order, n);
}

void ravel__tree_pack(ravel__yard *y, int64_t limit, int rests) {
    ravel__mark mark = ravel__arena_mark(y->arena);
    packing p;
    ravel__yard_clear(y);
    y->work -= y->f->nodes / 8;
    make(y, limit < RAVEL__NO_LIMIT ? limit : RAVEL__NO_LIMIT, &p);
    for (int32_t v = 0; v < y->f->nodes && !ravel__yard_failed(y); v++) {
        p.first[v] = -1;
        if (v == y->f->nodes - 1 || !fits_alone(&p, &y->f->node[v])) pack_node(&p, v, rests);
    }
    ravel__arena_rewind(y->arena, mark);
}

/* ---- dissolving ------------------------------------------------------------------------------------------------- */

/* What was moved where, so that it can go back. */
typedef struct moved {
    ravel__span *span;
    int32_t *bin;
    int32_t count;
} moved;

/* The bin that takes a span: with a limit the least added cost, then the least room; without one the least cost in the
 * end. */
static int32_t find_home(ravel__yard *y, ravel__span s, int32_t except, int64_t limit) {
    int32_t best = -1;
    int64_t best_cost = 0, best_next = 0, most = limit ? limit : INT64_MAX;
    ravel__weight least = ravel__span_least(y, s);
    y->work -= y->bins / 8;
    for (int32_t b = 0; b < y->bins; b++) {
        const ravel__tree_bin *bin = &y->bin[b];
        if (b == except || bin->tokens + least.tokens > y->f->cap || bin->cost + least.cost > most) continue;
        ravel__weight w = ravel__weigh(y, bin, &s, 1);
        if (bin->tokens + w.tokens > y->f->cap || bin->rows + w.rows > y->f->most) continue;
        if (bin->cost + w.cost > most) continue;
        int64_t cost = limit ? w.cost : bin->cost + w.cost, next = -bin->cost;
        if (best >= 0 && (cost > best_cost || (cost == best_cost && next >= best_next))) continue;
        best = b;
        best_cost = cost;
        best_next = next;
    }
    return best;
}

/* Where a span of several leaves parts highest up: the last leaf before the least shared of its inside. */
static int32_t fork_of(const ravel__yard *y, ravel__span s) {
    int64_t least = ravel__leaves_share(y, s.from, s.to - 1);
    int32_t i = s.from + 1;
    while (y->f->shared[i] != least) i++;
    return i;
}

/* Whole spans first; what finds no home is parted and tried again, the larger piece of the order first. */
static int rehouse(ravel__yard *y, int32_t from, int64_t limit, ravel__span *stack, moved *m) {
    int32_t top = y->bin[from].count;
    if (top) memcpy(stack, y->bin[from].spans, (size_t)top * sizeof *stack);
    while (top) {
        ravel__span s = stack[--top];
        int32_t to = find_home(y, s, from, limit);
        if (to < 0 && s.to - s.from == 1) return 0;
        if (to < 0) {
            int32_t fork = fork_of(y, s);
            stack[top++] = (ravel__span){s.from, fork};
            stack[top++] = (ravel__span){fork, s.to};
            continue;
        }
        ravel__bin_give(y, &y->bin[from], s);
        ravel__bin_take(y, &y->bin[to], s);
        m->span[m->count] = s;
        m->bin[m->count++] = to;
    }
    return 1;
}

int ravel__tree_dissolve(ravel__yard *y, int64_t limit) {
    int32_t least = 0;
    int64_t room = 0, need = 0;
    for (int32_t b = 0; b < y->bins; b++) {
        if (y->bin[b].cost < y->bin[least].cost) least = b;
        room += y->f->cap - y->bin[b].tokens;
    }
    if (y->bins < 2) return 0;
    for (int32_t k = 0; k < y->bin[least].count; k++) need += ravel__span_least(y, y->bin[least].spans[k]).tokens;
    if (need > room - (y->f->cap - y->bin[least].tokens)) return 0;
    ravel__mark mark = ravel__arena_mark(y->arena);
    size_t n = (size_t)y->bin[least].rows + 1;
    ravel__span *stack = ravel__arena_push(y->arena, n, sizeof *stack);
    moved m = {ravel__arena_push(y->arena, n, sizeof *m.span), ravel__arena_push(y->arena, n, sizeof *m.bin), 0};
    int gone = !ravel__yard_failed(y) && rehouse(y, least, limit, stack, &m);
    while (!gone && m.count) {
        m.count--;
        ravel__bin_give(y, &y->bin[m.bin[m.count]], m.span[m.count]);
        ravel__bin_take(y, &y->bin[least], m.span[m.count]);
    }
    if (gone) {
        ravel__tree_bin swap = y->bin[least];
        y->bin[least] = y->bin[y->bins - 1];
        y->bin[--y->bins] = swap;
    }
    ravel__arena_rewind(y->arena, mark);
    return gone;
}
