/* What no plan of whole samples can be below.
 *
 * Bins: a bin that holds a node spends the node's path, e tokens, and has cap - e left for what is below it. So
 *
 *     copies(v) = max(1, copies of a child, below(v) / (cap - e(v)) rounded up)
 *     below(v)  = sum over children of (their tokens * their copies + below)
 *
 * bins hold v, and at the top (e = 0) that is the bound on bins. Time: in a plan of time T a rank that holds v has paid the
 * cost of its path at least once, so with costs instead of tokens, T instead of cap and max(copies, ranks) instead of
 * copies it is the ranks that hold v. The bound is the least T for which no node needs more than dp ranks and the top has
 * work for no more than dp of them; it grows with less time, so bisection finds it.
 *
 * Nodes are visited children first, by one pass over the leaves with the open nodes on a stack. */
#include "plan/tree/tree.h"

#include "base/assert.h"

/* A node, children first. */
typedef struct node {
    int64_t depth;  /* tokens of its path */
    int64_t path;   /* their cost */
    int32_t parent; /* index; always after its children */
    int32_t copies;
} node;

typedef struct ground {
    const ravel__forest *f;
    node *nodes; /* the last one is the top */
    int32_t count;
    int64_t *below;  /* [count] tokens, then work */
    int32_t *most;   /* [count] copies, then ranks, of a child */
    int32_t *stack;  /* open: [top] a node's first finished child, linked by parent */
    int64_t *depths; /* of the open nodes */
} ground;

static int64_t divide_up(int64_t a, int64_t b) {
    return a / b + (a % b != 0);
}

/* Closes a node whose children are chained from `child` by their parent fields; returns it. */
static int32_t close_node(ground *g, int64_t depth, int32_t child) {
    int32_t made = g->count++;
    g->nodes[made] = (node){depth, ravel__cost_of(g->f->rules, depth), -1, 1};
    while (child >= 0) {
        int32_t next = g->nodes[child].parent;
        g->nodes[child].parent = made;
        child = next;
    }
    return made;
}

/* Chains a finished node to the children of the open one at the top of the stack. */
static void attach(ground *g, int32_t top, int32_t child) {
    g->nodes[child].parent = g->stack[top];
    g->stack[top] = child;
}

static int32_t open_node(ground *g, int32_t top, int64_t depth) {
    g->depths[top] = depth;
    g->stack[top] = -1;
    return top;
}

static void list_nodes(ground *g) {
    const ravel__forest *f = g->f;
    int32_t top = open_node(g, 0, 0);
    g->count = 0;
    for (int32_t i = 0; i < f->count; i++) {
        int64_t next = f->shared[i + 1];
        if (next > g->depths[top]) top = open_node(g, top + 1, next);
        attach(g, top, close_node(g, f->length[i], -1));
        while (g->depths[top] > next) {
            int32_t done = close_node(g, g->depths[top], g->stack[top]);
            if (g->depths[top - 1] < next)
                open_node(g, top, next);
            else
                top--;
            attach(g, top, done);
        }
    }
    RAVEL_ASSERT(top == 0);
    close_node(g, 0, g->stack[0]);
}

static void clear(ground *g) {
    for (int32_t v = 0; v < g->count; v++) {
        g->below[v] = 0;
        g->most[v] = 1;
    }
}

/* Adds a finished node to its parent: `own` of its run as often as it is computed, and who holds it. */
static void fold(ground *g, int32_t v, int64_t own, int32_t times, int32_t holders) {
    int32_t p = g->nodes[v].parent;
    g->below[p] += own * times + g->below[v];
    if (holders > g->most[p]) g->most[p] = holders;
}

static int64_t count_bins(ground *g) {
    clear(g);
    for (int32_t v = 0; v < g->count; v++) {
        node *n = &g->nodes[v];
        int64_t room = g->f->cap - n->depth;
        n->copies = g->most[v];
        if (g->below[v] > room && divide_up(g->below[v], room) > n->copies)
            n->copies = (int32_t)divide_up(g->below[v], room);
        if (n->parent >= 0) fold(g, v, n->depth - g->nodes[n->parent].depth, n->copies, n->copies);
    }
    return g->nodes[g->count - 1].copies;
}

/* Whether time T may be enough; *work is what the ranks have to do then. */
static int may_fit(ground *g, int64_t time, int32_t dp, int64_t *work) {
    clear(g);
    for (int32_t v = 0; v + 1 < g->count; v++) {
        const node *n = &g->nodes[v];
        int64_t room = time - n->path, ranks = g->most[v];
        if (room < 0 || (room == 0 && g->below[v])) return 0;
        if (g->below[v] > room && divide_up(g->below[v], room) > ranks) ranks = divide_up(g->below[v], room);
        if (ranks > dp) return 0;
        fold(g, v, n->path - g->nodes[n->parent].path, ranks > n->copies ? (int32_t)ranks : n->copies, (int32_t)ranks);
    }
    *work = g->below[g->count - 1];
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
    size_t n = 2 * (size_t)f->count + 1, open = (size_t)f->count + 1;
    ground g = {.f = f,
                .nodes = ravel__arena_push(arena, n, sizeof *g.nodes),
                .below = ravel__arena_push(arena, n, sizeof *g.below),
                .most = ravel__arena_push(arena, n, sizeof *g.most),
                .stack = ravel__arena_push(arena, open, sizeof *g.stack),
                .depths = ravel__arena_push(arena, open, sizeof *g.depths)};
    if (!g.nodes || !g.below || !g.most || !g.stack || !g.depths) {
        ravel__arena_rewind(arena, mark);
        return ravel__no_memory(err, n * 40, "the bounds of trees");
    }
    if (f->count) {
        int64_t rows = divide_up(f->samples, f->rules->most);
        list_nodes(&g);
        bound->bins = count_bins(&g);
        if (rows > bound->bins) bound->bins = rows;
        bound->time = bound_time(&g, dp);
    }
    bound->steps = ravel__steps_for(f->rules, bound->bins, dp);
    if (!bound->bins && !f->rules->options.min_micro_steps) bound->steps = 0;
    ravel__arena_rewind(arena, mark);
    return RAVEL_OK;
}

void ravel__tree_bound_add(const ravel__rules *rules, const ravel__tree_bound *bound, ravel_plan_stats *stats) {
    stats->bins_lower_bound += bound->bins;
    stats->micro_steps_lower_bound += bound->steps;
    stats->time_lower_bound += bound->time + bound->steps * rules->overhead;
}
