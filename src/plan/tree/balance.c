/* Balance: the largest bin of a micro-step gives a subtree to another bin, or changes one for a smaller one.
 *
 *     unit    the leaves of a bin under one ancestor: what can move without cutting more than the way to it
 *     gain    what the bin loses with it; what the other bin pays for it differs, by what that one shares with it
 *
 * Bins are sorted, so micro-steps hold bins of like cost. A partner is one of the smallest bins of the micro-step, or
 * the bin of another micro-step with the most room below that one's largest. */
#include "plan/tree/bins.h"

#include "base/assert.h"
#include "base/sort.h"

#include <string.h>

enum {
    PARTNERS = 10, /* bins that are tried for the largest one */
    NEAR = 3,      /* partners of a swap that are tried on either side of the best size */
    UNITS = 96,    /* units of a bin: with more, those nearest to what is to move */
    PASSES = 4
};

typedef struct unit {
    int32_t from, to; /* leaves of the bin that are in from .. to - 1 */
    ravel__weight gain;
} unit;

typedef struct units {
    unit *list;
    int32_t count, room;
} units;

typedef struct balance {
    ravel__yard *y;
    int32_t dp;
    units x, y_units;
    int32_t *leaf, *stack; /* of one bin */
    int64_t *share, *depth;
    ravel__weight *sum;
    ravel__span *parts, *back; /* [leaves] */
    uint64_t *keys, *spare;
    int32_t *order, *spare_order;
    int64_t
        above; /* what the other bins of a partner's rank cost, less those of the largest rank; 0: bins are compared */
    int64_t *total; /* [dp] by rank, */
    int32_t *low, *spare_ranks;
    ravel__tree_bin *dealt; /* a micro-step's bins */
} balance;

/* ---- order ------------------------------------------------------------------------------------------------------ */

static int before(const ravel__tree_bin *a, const ravel__tree_bin *b) {
    if (a->cost != b->cost) return a->cost > b->cost;
    int32_t x = a->count ? a->spans[0].from : INT32_MAX, y = b->count ? b->spans[0].from : INT32_MAX;
    return x < y;
}

/* Shell sort: bins are nearly in order already, but for the first time. */
static void sort_bins(ravel__tree_bin *bin, int32_t count) {
    for (int32_t gap = count / 2; gap > 0; gap /= 2)
        for (int32_t i = gap; i < count; i++) {
            ravel__tree_bin b = bin[i];
            int32_t k = i;
            for (; k >= gap && before(&b, &bin[k - gap]); k -= gap) bin[k] = bin[k - gap];
            bin[k] = b;
        }
}

int64_t ravel__tree_sort(ravel__yard *y, int32_t dp) {
    int64_t sum = 0;
    sort_bins(y->bin, y->bins);
    for (int32_t b = 0; b < y->bins; b += dp) sum += y->bin[b].cost;
    return sum;
}

/* ---- units ------------------------------------------------------------------------------------------------------ */

static void add_unit(const balance *b, units *u, int32_t from, int32_t to, int32_t count) {
    if ((from == 0 && to == count) || u->count == u->room) return;
    int64_t up = b->share[from] > b->share[to] ? b->share[from] : b->share[to];
    const ravel__rules *rules = b->y->f->rules;
    ravel__weight gain = {b->sum[to].tokens - b->sum[from].tokens + b->share[from] - up,
                          b->sum[to].cost - b->sum[from].cost + ravel__cost_of(rules, b->share[from]) -
                              ravel__cost_of(rules, up),
                          to - from};
    u->list[u->count++] = (unit){b->leaf[from], b->leaf[to - 1] + 1, gain};
}

static int32_t list_leaves(const balance *b, const ravel__tree_bin *bin) {
    const ravel__forest *f = b->y->f;
    int32_t count = 0;
    b->sum[0] = (ravel__weight){0, 0, 0};
    for (int32_t k = 0; k < bin->count; k++)
        for (int32_t i = bin->spans[k].from; i < bin->spans[k].to; i++) {
            int fresh = i == bin->spans[k].from;
            int64_t share = !fresh ? f->shared[i] : count ? ravel__leaves_share(b->y, b->leaf[count - 1], i) : 0;
            int64_t cost = !fresh ? f->twice[i] : ravel__cost_of(f->rules, share);
            b->share[count] = share;
            b->leaf[count] = i;
            b->sum[count + 1] =
                (ravel__weight){b->sum[count].tokens + f->length[i] - share, b->sum[count].cost + f->cost[i] - cost, 0};
            count++;
        }
    b->share[count] = 0;
    return count;
}

/* The bin's subtrees: single leaves, and every run under one ancestor. */
static void list_units(balance *b, const ravel__tree_bin *bin, units *u) {
    int32_t count = list_leaves(b, bin), top = 0;
    u->count = 0;
    b->y->work -= count / 4 + 1;
    for (int32_t k = 1; k <= count; k++) {
        int32_t start = k - 1;
        int64_t v = k < count ? b->share[k] : -1;
        add_unit(b, u, k - 1, k, count);
        while (top && b->depth[top - 1] > v) {
            start = b->stack[--top];
            add_unit(b, u, start, k, count);
        }
        if (k < count && (!top || b->depth[top - 1] < v)) {
            b->stack[top] = start;
            b->depth[top++] = v;
        }
    }
}

/* By gain, smallest first. */
static void sort_units(balance *b, units *u) {
    for (int32_t i = 0; i < u->count; i++) {
        b->keys[i] = (uint64_t)u->list[i].gain.cost;
        b->order[i] = i;
    }
    ravel__sort_u64(b->keys, b->order, b->spare, b->spare_order, (size_t)u->count);
}

/* ---- moving ----------------------------------------------------------------------------------------------------- */

/* The spans of a unit. */
static int32_t cut_out(const ravel__tree_bin *bin, const unit *u, ravel__span *parts) {
    int32_t count = 0;
    for (int32_t k = 0; k < bin->count && bin->spans[k].from < u->to; k++) {
        ravel__span s = bin->spans[k];
        if (s.to <= u->from) continue;
        if (s.from < u->from) s.from = u->from;
        if (s.to > u->to) s.to = u->to;
        parts[count++] = s;
    }
    return count;
}

static void move(ravel__yard *y, ravel__tree_bin *from, ravel__tree_bin *to, const ravel__span *parts, int32_t count) {
    for (int32_t k = 0; k < count; k++) {
        ravel__bin_give(y, from, parts[k]);
        ravel__bin_take(y, to, parts[k]);
    }
}

/* ---- one exchange ----------------------------------------------------------------------------------------------- */

typedef struct offer {
    int64_t better; /* by how much the largest bin (or rank) and its partner come down */
    int32_t from, partner, swaps;
    unit out, in;
    int64_t above;
} offer;

static void consider(const balance *b, offer *best, int64_t better, int32_t from, int32_t partner, const unit *out,
                     const unit *in) {
    if (better <= best->better) return;
    *best = (offer){better, from, partner, in != NULL, *out, in ? *in : (unit){0}, b->above};
}

/* `limit`: what a partner in another micro-step may cost, that of the largest bin there. So no exchange adds time. */
static int64_t improvement(int64_t x, int64_t new_x, int64_t new_y, int64_t limit, int same_step) {
    if (same_step) return x - (new_x > new_y ? new_x : new_y);
    return new_y > limit ? 0 : x - new_x;
}

/* The first of the partner's units, by gain, of at least this much. */
static int32_t first_of(const balance *b, int64_t want) {
    int32_t low = 0, high = b->y_units.count;
    while (low < high) {
        int32_t mid = (low + high) / 2;
        if ((int64_t)b->keys[mid] < want)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* Whether two units have a common ancestor: then neither can be weighed while the other is where it was. */
static int are_related(const ravel__yard *y, const unit *a, const unit *b) {
    int32_t i = a->from < b->from ? a->from : b->from, j = a->from < b->from ? b->from : a->from;
    return ravel__leaves_share(y, i, j) > 0;
}

/* What the parts add to a bin that gives others away. */
static ravel__weight weigh_without(ravel__yard *y, ravel__tree_bin *bin, const ravel__span *parts, int32_t count,
                                   const ravel__span *gone, int32_t gone_count) {
    for (int32_t k = 0; k < gone_count; k++) ravel__bin_give(y, bin, gone[k]);
    ravel__weight w = ravel__weigh(y, bin, parts, count);
    for (int32_t k = 0; k < gone_count; k++) ravel__bin_take(y, bin, gone[k]);
    return w;
}

static void try_swaps(balance *b, int32_t x, int32_t y, const unit *out, int32_t out_parts, const ravel__weight *alone,
                      int64_t limit, int same_step, offer *best) {
    ravel__yard *yard = b->y;
    ravel__tree_bin *bin_x = &yard->bin[x], *bin_y = &yard->bin[y];
    int64_t new_x = bin_x->cost - out->gain.cost, other = bin_y->cost + b->above, new_y = other + alone->cost;
    int64_t want = same_step ? (new_y - new_x) / 2 : new_y - limit;
    int32_t at = first_of(b, want);
    for (int32_t j = at > NEAR ? at - NEAR : 0; j < b->y_units.count && j < at + NEAR; j++) {
        const unit *in = &b->y_units.list[b->order[j]];
        int64_t left_y = new_y - in->gain.cost;
        if (improvement(bin_x->cost, new_x, left_y, limit, same_step) <= best->better) continue;
        int32_t parts = cut_out(bin_y, in, b->back);
        ravel__weight v = ravel__weigh(yard, bin_x, b->back, parts), w = *alone;
        if (are_related(yard, out, in)) {
            w = weigh_without(yard, bin_y, b->parts, out_parts, b->back, parts);
            v = weigh_without(yard, bin_x, b->back, parts, b->parts, out_parts);
            left_y = other + w.cost - in->gain.cost;
        }
        if (bin_x->tokens - out->gain.tokens + v.tokens > yard->f->cap ||
            bin_y->tokens + w.tokens - in->gain.tokens > yard->f->cap ||
            bin_x->rows - out->gain.rows + v.rows > yard->f->most ||
            bin_y->rows + w.rows - in->gain.rows > yard->f->most)
            continue;
        consider(b, best, improvement(bin_x->cost, new_x + v.cost, left_y, limit, same_step), x, y, out, in);
    }
}

static void try_partner(balance *b, int32_t x, int32_t y, int64_t limit, int same_step, offer *best) {
    ravel__yard *yard = b->y;
    const ravel__tree_bin *bin_x = &yard->bin[x], *bin_y = &yard->bin[y];
    int64_t other = bin_y->cost + b->above, gap = same_step ? bin_x->cost - other : limit - bin_y->cost;
    if (gap <= 0) return;
    list_units(b, bin_y, &b->y_units);
    sort_units(b, &b->y_units);
    int32_t skip = b->x.count / UNITS + 1;
    for (int32_t i = 0; i < b->x.count && yard->work > 0; i++) {
        const unit *out = &b->x.list[i];
        if (out->gain.cost <= best->better) continue;
        if (skip > 1 && out->to - out->from == 1 && i % skip) continue; /* some of very many leaves */
        int32_t parts = cut_out(bin_x, out, b->parts);
        ravel__weight w = ravel__weigh(yard, bin_y, b->parts, parts);
        if (bin_y->tokens + w.tokens <= yard->f->cap && bin_y->rows + w.rows <= yard->f->most)
            consider(b, best, improvement(bin_x->cost, bin_x->cost - out->gain.cost, other + w.cost, limit, same_step),
                     x, y, out, NULL);
        if (w.cost > gap / 2) try_swaps(b, x, y, out, parts, &w, limit, same_step, best);
    }
}

/* A swap was weighed as if the units had nothing to do with each other; if it is worse than that, it is taken back. */
static int carry_out(balance *b, const offer *o, int64_t limit, int same_step) {
    ravel__yard *yard = b->y;
    ravel__tree_bin *bin_x = &yard->bin[o->from], *bin_y = &yard->bin[o->partner];
    int64_t before_x = bin_x->cost;
    int32_t out = cut_out(bin_x, &o->out, b->parts), in = o->swaps ? cut_out(bin_y, &o->in, b->back) : 0;
    move(yard, bin_x, bin_y, b->parts, out);
    move(yard, bin_y, bin_x, b->back, in);
    if (improvement(before_x, bin_x->cost, bin_y->cost + o->above, limit, same_step) > 0 &&
        bin_x->tokens <= yard->f->cap && bin_y->tokens <= yard->f->cap && bin_x->rows <= yard->f->most &&
        bin_y->rows <= yard->f->most)
        return 1;
    move(yard, bin_x, bin_y, b->back, in);
    move(yard, bin_y, bin_x, b->parts, out);
    return 0;
}

/* ---- micro-steps ------------------------------------------------------------------------------------------------ */

/* Exchanges that bring less than 2^-FINEST of a bin are left; a micro-step is even if its largest bin is within
 * 2^-EVEN of the mean. */
enum { FINEST = 16, EVEN = 12 };

static int is_even(const ravel__yard *y, int32_t first, int32_t count) {
    int64_t largest = y->bin[first].cost, spare = 0;
    for (int32_t b = first + 1; b < first + count; b++) spare += largest - y->bin[b].cost;
    return spare / count <= largest >> EVEN;
}

/* The bins of a micro-step in order, largest first. */
static void settle(balance *b, int32_t first) {
    int32_t count = b->y->bins - first < b->dp ? b->y->bins - first : b->dp;
    sort_bins(b->y->bin + first, count);
}

/* The largest bin of the micro-step comes first, then the smallest ones at its end. */
static int relieve(balance *b, int32_t first, int32_t count) {
    ravel__yard *yard = b->y;
    offer best = {.partner = -1, .better = yard->bin[first].cost >> FINEST};
    list_units(b, &yard->bin[first], &b->x);
    for (int32_t k = 0; k < PARTNERS && k + 1 < count; k++) try_partner(b, first, first + count - 1 - k, 0, 1, &best);
    for (int32_t s = 0; s < yard->bins && best.partner < 0; s += b->dp) { /* the smallest of every other micro-step */
        int32_t last = (s + b->dp < yard->bins ? s + b->dp : yard->bins) - 1;
        if (s != first && last > s) try_partner(b, first, last, yard->bin[s].cost, 0, &best);
    }
    if (best.partner < 0) return 0;
    int same_step = best.partner >= first && best.partner < first + count;
    int32_t step = best.partner / b->dp * b->dp;
    int done = carry_out(b, &best, yard->bin[step].cost, same_step);
    settle(b, first);
    if (!same_step) settle(b, step);
    return done;
}

static void make(ravel__yard *y, int32_t dp, balance *b) {
    size_t n = (size_t)y->f->count + 2;
    *b = (balance){.y = y, .dp = dp, .x = {.room = 2 * (int32_t)n}, .y_units = {.room = 2 * (int32_t)n}};
    RAVEL__PUSH(y->arena, b->x.list, 2 * n);
    RAVEL__PUSH(y->arena, b->y_units.list, 2 * n);
    RAVEL__PUSH(y->arena, b->leaf, n);
    RAVEL__PUSH(y->arena, b->stack, n);
    RAVEL__PUSH(y->arena, b->share, n);
    RAVEL__PUSH(y->arena, b->depth, n);
    RAVEL__PUSH(y->arena, b->sum, n);
    RAVEL__PUSH(y->arena, b->parts, n);
    RAVEL__PUSH(y->arena, b->back, n);
    RAVEL__PUSH(y->arena, b->keys, 2 * n);
    RAVEL__PUSH(y->arena, b->spare, 2 * n);
    RAVEL__PUSH(y->arena, b->order, 2 * n);
    RAVEL__PUSH(y->arena, b->spare_order, 2 * n);
    RAVEL__PUSH(y->arena, b->total, (size_t)dp);
    RAVEL__PUSH(y->arena, b->low, (size_t)dp);
    RAVEL__PUSH(y->arena, b->spare_ranks, (size_t)dp);
    RAVEL__PUSH(y->arena, b->dealt, (size_t)dp);
}

int64_t ravel__tree_balance(ravel__yard *y, int32_t dp, int32_t rounds) {
    ravel__mark mark = ravel__arena_mark(y->arena);
    balance b;
    int64_t last = ravel__tree_sort(y, dp);
    if (dp < 2) return last;
    make(y, dp, &b);
    for (int32_t pass = 0; pass < PASSES && !ravel__yard_failed(y); pass++) {
        for (int32_t first = 0; first < y->bins; first += dp)
            for (int32_t r = 0; r < rounds && y->work > 0 && !ravel__yard_failed(y); r++) {
                int32_t count = y->bins - first < dp ? y->bins - first : dp;
                if (is_even(y, first, count) || !relieve(&b, first, count)) break;
            }
        int64_t now = ravel__tree_sort(y, dp);
        if (now >= last - last / 20000) break;
        last = now;
    }
    ravel__arena_rewind(y->arena, mark);
    return ravel__tree_sort(y, dp);
}

/* ---- ranks ------------------------------------------------------------------------------------------------------ */

/* Ranks by what they have in all, least first. */
static void order_ranks(balance *b, int32_t *ranks, uint64_t *key, uint64_t *spare) {
    for (int32_t r = 0; r < b->dp; r++) {
        key[r] = (uint64_t)b->total[r];
        ranks[r] = r;
    }
    ravel__sort_u64(key, ranks, spare, b->spare_ranks, (size_t)b->dp);
}

/* The largest bin of a micro-step to the rank that has the least so far: bin s * dp + r is then rank r's. */
static void deal(balance *b, uint64_t *key, uint64_t *spare) {
    ravel__yard *y = b->y;
    sort_bins(y->bin, y->bins);
    memset(b->total, 0, (size_t)b->dp * sizeof *b->total);
    for (int32_t first = 0; first < y->bins; first += b->dp) {
        order_ranks(b, b->low, key, spare);
        memcpy(b->dealt, y->bin + first, (size_t)b->dp * sizeof *b->dealt);
        for (int32_t k = 0; k < b->dp; k++) {
            y->bin[first + b->low[k]] = b->dealt[k];
            b->total[b->low[k]] += b->dealt[k].cost;
        }
    }
}

/* One of the largest rank's bins gives to, or exchanges with, a bin of one of the ranks that have least. */
static int relieve_rank(balance *b, int32_t heavy) {
    ravel__yard *y = b->y;
    offer best = {.partner = -1, .better = b->total[heavy] >> FINEST};
    for (int32_t x = heavy; x < y->bins; x += b->dp) {
        list_units(b, &y->bin[x], &b->x);
        for (int32_t k = 0; k < NEAR && b->low[k] != heavy; k++)
            for (int32_t at = b->low[k]; at < y->bins; at += b->dp) {
                b->above = (b->total[b->low[k]] - y->bin[at].cost) - (b->total[heavy] - y->bin[x].cost);
                try_partner(b, x, at, 0, 1, &best);
            }
    }
    if (best.partner < 0) return 0;
    int32_t to = best.partner % b->dp;
    b->total[heavy] -= y->bin[best.from].cost;
    b->total[to] -= y->bin[best.partner].cost;
    int done = carry_out(b, &best, 0, 1);
    b->total[heavy] += y->bin[best.from].cost;
    b->total[to] += y->bin[best.partner].cost;
    return done;
}

int64_t ravel__tree_balance_ranks(ravel__yard *y, int32_t dp, int32_t rounds) {
    ravel__mark mark = ravel__arena_mark(y->arena);
    balance b;
    int64_t most = 0;
    uint64_t *key = ravel__arena_push(y->arena, (size_t)dp, 8), *spare = ravel__arena_push(y->arena, (size_t)dp, 8);
    make(y, dp, &b);
    if (!ravel__yard_failed(y)) deal(&b, key, spare);
    for (int64_t r = 0; r < (int64_t)rounds * (y->bins / dp) && y->work > 0 && !ravel__yard_failed(y); r++) {
        int64_t sum = 0;
        order_ranks(&b, b.low, key, spare);
        int32_t heavy = b.low[dp - 1];
        most = b.total[heavy];
        for (int32_t k = 0; k < dp; k++) sum += b.total[k];
        if (most - sum / dp <= most >> EVEN || !relieve_rank(&b, heavy)) break;
    }
    for (int32_t r = 0; r < dp && !ravel__yard_failed(y); r++)
        if (!r || b.total[r] > most) most = b.total[r];
    ravel__arena_rewind(y->arena, mark);
    return most;
}

/* ---- empty bins ------------------------------------------------------------------------------------------------- */

/* The bin of two or more leaves that costs most; -1: all are single. */
static int32_t largest_of_two(const ravel__yard *y, int32_t first, int32_t end) {
    int32_t best = -1;
    for (int32_t b = first; b < end; b++)
        if (y->bin[b].rows > 1 && (best < 0 || y->bin[b].cost > y->bin[best].cost)) best = b;
    return best;
}

/* The bin's subtrees below its topmost fork, smallest first, as units whose gain is what they have of their own.
 * Returns the cost of the way to the fork, which both halves pay. */
static int64_t list_branches(balance *b, const ravel__tree_bin *bin, units *u) {
    int32_t count = list_leaves(b, bin), start = 0;
    int64_t fork = INT64_MAX;
    for (int32_t k = 1; k < count; k++)
        if (b->share[k] < fork) fork = b->share[k];
    int64_t path = ravel__cost_of(b->y->f->rules, fork);
    u->count = 0;
    for (int32_t k = 1; k <= count; k++) {
        if (k < count && b->share[k] > fork) continue;
        int64_t first = ravel__cost_of(b->y->f->rules, b->share[start]);
        ravel__weight own = {0, b->sum[k].cost - b->sum[start].cost + first - path, 0};
        u->list[u->count++] = (unit){b->leaf[start], b->leaf[k - 1] + 1, own};
        start = k;
    }
    sort_units(b, u);
    return path;
}

/* Branches go to the half that has less, largest first; those of the second half become parts. Returns the larger
 * half's cost. */
static int64_t choose_half(balance *b, const ravel__tree_bin *bin, int32_t *count) {
    int64_t path = list_branches(b, bin, &b->y_units), halves[2] = {path, path};
    *count = 0;
    for (int32_t i = b->y_units.count - 1; i >= 0; i--) {
        const unit *branch = &b->y_units.list[b->order[i]];
        int second = halves[1] < halves[0] || (halves[1] == halves[0] && i + 1 < b->y_units.count);
        halves[second] += branch->gain.cost;
        if (second) *count += cut_out(bin, branch, b->back + *count);
    }
    return halves[0] > halves[1] ? halves[0] : halves[1];
}

/* Into the empty bin goes a half of the branches, or one subtree where that is more even. */
static void halve(balance *b, int32_t from, int32_t empty) {
    ravel__yard *y = b->y;
    int32_t parts;
    int64_t cost = choose_half(b, &y->bin[from], &parts);
    offer best = {.partner = -1, .better = y->bin[from].cost - cost};
    y->work = INT64_MAX;
    list_units(b, &y->bin[from], &b->x);
    try_partner(b, from, empty, 0, 1, &best);
    if (best.partner >= 0)
        (void)carry_out(b, &best, 0, 1);
    else
        move(y, &y->bin[from], &y->bin[empty], b->back, parts);
    RAVEL_ASSERT(ravel__yard_failed(y) || (y->bin[from].count && y->bin[empty].count));
}

/* A half from the same micro-step adds no time. */
int ravel__tree_fill(ravel__yard *y, int32_t dp) {
    ravel__mark mark = ravel__arena_mark(y->arena);
    balance b = {0};
    for (int32_t k = 0; k < y->bins && !ravel__yard_failed(y); k++) {
        if (y->bin[k].count) continue;
        int32_t from = largest_of_two(y, k / dp * dp, k / dp * dp + dp);
        if (from < 0) from = largest_of_two(y, 0, y->bins);
        if (from < 0) break;
        if (!b.y) make(y, 1, &b);
        if (!ravel__yard_failed(y)) halve(&b, from, k);
    }
    ravel__arena_rewind(y->arena, mark);
    return b.y != NULL;
}
