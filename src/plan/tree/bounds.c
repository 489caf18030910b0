/* What no plan of whole samples can be below.
 *
 * Bins: a bin that holds a node spends the node's path, e tokens, and has cap - e left for what is below it. So
 *
 *     copies(v) = max(1, copies of a child, below(v) / (cap - e(v)) rounded up)
 *     below(v)  = sum over children of (their tokens * their copies + below)
 *
 * bins hold v, and at the top (e = 0) that is the bound on bins. Time: in a plan of time T a rank that holds v has paid
 * the cost of its path at least once, so with costs instead of tokens, T instead of cap and max(copies, ranks) instead
 * of copies it is the ranks that hold v. The bound is the least T for which no node needs more than dp ranks and the
 * top has work for no more than dp of them; it grows with less time, so bisection finds it.
 */
#include "plan/tree/tree.h"

#include "base/assert.h"

typedef struct ground {
    const ravel__forest *f;
    int32_t *copies; /* [nodes] */
    int64_t *below;  /* [nodes] tokens, then work */
    int32_t *most;   /* [nodes] copies, then ranks, of a child */
} ground;

static int64_t divide_up(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

static void clear(ground *g) {
    for (int32_t v = 0; v < g->f->nodes; v++) {
        g->below[v] = 0;
        g->most[v] = 1;
    }
}

/* Adds a finished node to its parent: `own` of its run as often as it is computed, and who holds it. */
static void fold(ground *g, int32_t v, int64_t own, int32_t times, int32_t holders) {
    int32_t p = g->f->node[v].parent;
    g->below[p] += own * times + g->below[v];
    if (holders > g->most[p]) g->most[p] = holders;
}

static int64_t count_bins(ground *g) {
    clear(g);
    for (int32_t v = 0; v < g->f->nodes; v++) {
        const ravel__tree_node *n = &g->f->node[v];
        int64_t room = g->f->cap - n->depth;
        g->copies[v] = g->most[v];
        if (g->below[v] > room && divide_up(g->below[v], room) > g->copies[v])
            g->copies[v] = (int32_t)divide_up(g->below[v], room);
        if (n->parent >= 0) fold(g, v, n->depth - g->f->node[n->parent].depth, g->copies[v], g->copies[v]);
    }
    return g->copies[g->f->nodes - 1];
}

/* Whether time T may be enough; *work is what the ranks have to do then. */
static int may_fit(ground *g, int64_t time, int32_t dp, int64_t *work) {
    clear(g);
    for (int32_t v = 0; v + 1 < g->f->nodes; v++) {
        const ravel__tree_node *n = &g->f->node[v];
        int64_t room = time - n->path, ranks = g->most[v];
        if (room < 0 || (room == 0 && g->below[v])) return 0;
        if (g->below[v] > room && divide_up(g->below[v], room) > ranks) ranks = divide_up(g->below[v], room);
        if (ranks > dp) return 0;
        fold(g, v, n->path - g->f->node[n->parent].path, ranks > g->copies[v] ? (int32_t)ranks : g->copies[v],
             (int32_t)ranks);
    }
    *work = g->below[g->f->nodes - 1];
    return divide_up(*work, dp) <= time;
}

enum { FINE = 15 }; /* the bound is within 2^-FINE of the least time */

static int64_t bound_time(ground *g, int32_t dp) {
    int64_t work = 0, least = 0, low, high;
    for (int32_t i = 0; i < g->f->count; i++) {
        if (g->f->cost[i] > least) least = g->f->cost[i];
        work += g->f->cost[i] - g->f->twice[i];
    }
    low = divide_up(work, dp) > least ? divide_up(work, dp) : least;
    high = low;
    while (!may_fit(g, high, dp, &work)) {
        low = high + 1;
        high = dp == 1 && work > high ? work : high + high / 8 + 1;
    }
    while (high - low > low >> FINE) {
        int64_t mid = low + (high - low) / 2;
        if (may_fit(g, mid, dp, &work))
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

ravel_status ravel__forest_bound(const ravel__forest *f, int32_t dp, ravel__arena *arena, ravel__tree_bound *bound,
                                 ravel_error *err) {
    *bound = (ravel__tree_bound){0};
    ravel__mark mark = ravel__arena_mark(arena);
    size_t n = (size_t)f->nodes;
    ground g = {.f = f};
    RAVEL__PUSH(arena, g.copies, n);
    RAVEL__PUSH(arena, g.below, n);
    RAVEL__PUSH(arena, g.most, n);
    ravel_status status = ravel__arena_status(arena, "the bounds of trees", err);
    if (!status && f->count) {
        int64_t rows = divide_up(f->samples, f->rules->most);
        bound->bins = count_bins(&g);
        if (rows > bound->bins) bound->bins = rows;
        bound->time = bound_time(&g, dp);
    }
    bound->steps = ravel__steps_for(f->rules, bound->bins, dp);
    ravel__arena_rewind(arena, mark);
    return status;
}

void ravel__tree_bound_add(const ravel__rules *rules, const ravel__tree_bound *bound, ravel_plan_stats *stats) {
    int64_t steps = ravel__steps_for(rules, bound->bins, rules->options.dp);
    if (!bound->bins && !rules->options.min_micro_steps) steps = 0;
    stats->bins_lower_bound += bound->bins;
    stats->micro_steps_lower_bound += steps;
    stats->time_lower_bound += bound->time + steps * rules->overhead;
}
