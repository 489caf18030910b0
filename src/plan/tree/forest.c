/* The leaves of a problem. A sample that another one covers is computed for nothing wherever that one is, so it goes
 * with it and is no leaf; unless max_samples may bind, where every sample counts. */
#include "plan/tree/tree.h"

#include "base/assert.h"

typedef struct cover {
    ravel__forest *f;
    int32_t *first;  /* [count] by leaf: the sample that it is */
    int32_t *parent; /* [samples] the sample that covers this one; itself: a leaf */
} cover;

static void add_leaf(cover *c, int32_t sample, int64_t length, int64_t shared) {
    ravel__forest *f = c->f;
    f->length[f->count] = length;
    f->shared[f->count] = shared;
    c->first[f->count++] = sample;
}

/* `shared`: with the last leaf. Leaves that the sample covers are taken back: what it shares with the leaf before them
 * is the least of both. */
static void add_sample(cover *c, int32_t sample, int64_t length, int64_t shared) {
    ravel__forest *f = c->f;
    c->parent[sample] = sample;
    while (f->count && shared == f->length[f->count - 1]) {
        int64_t before = f->shared[--f->count];
        c->parent[c->first[f->count]] = sample;
        if (before < shared) shared = before;
    }
    if (f->count && shared == length)
        c->parent[sample] = c->first[f->count - 1];
    else
        add_leaf(c, sample, length, f->count ? shared : 0);
}

/* A sample's leaf, through samples that were covered in turn; paths are halved on the way. */
static int32_t root_of(int32_t *parent, int32_t sample) {
    while (parent[sample] != sample) sample = parent[sample] = parent[parent[sample]];
    return sample;
}

static void collapse(cover *c, const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                     const int64_t *shared) {
    ravel__forest *f = c->f;
    int64_t low = 0; /* what the next sample shares with the last leaf */
    for (int32_t i = 0; i < f->samples; i++) {
        int64_t length = ravel__length(input, rows[i]);
        if (shared[i] < low) low = shared[i];
        RAVEL_ASSERT(length <= rules->cap * rules->options.align);
        if (f->most < f->samples) {
            c->parent[i] = i;
            add_leaf(c, i, length, shared[i]);
        } else {
            add_sample(c, i, length, low);
        }
        low = c->parent[i] == i ? INT64_MAX : low;
    }
    for (int32_t k = 0; k < f->count; k++) f->leaf[c->first[k]] = k;
    for (int32_t i = 0; i < f->samples; i++)
        if (c->parent[i] != i) f->leaf[i] = f->leaf[root_of(c->parent, i)];
}

/* ---- nodes ------------------------------------------------------------------------------------------------------ */

/* The open nodes of one pass over the leaves: depth, and the number of nodes that were there when it was opened. */
typedef struct open_nodes {
    int64_t *depth;
    int32_t *first;
    int32_t top;
} open_nodes;

static void open_node(open_nodes *o, int64_t depth, int32_t first) {
    o->top++;
    o->depth[o->top] = depth;
    o->first[o->top] = first;
}

/* Nodes from `first` on are below the new one. */
static void close_node(ravel__forest *f, int64_t depth, int64_t path, int32_t first, int32_t leaf) {
    int32_t made = f->nodes++;
    ravel__tree_node *n = &f->node[made];
    *n = (ravel__tree_node){depth, path, leaf, leaf + 1, -1, made - first + 1};
    for (int32_t c = made - 1; c >= first; c -= f->node[c].size) {
        f->node[c].parent = made;
        n->from = f->node[c].from;
    }
}

static void list_nodes(ravel__forest *f, open_nodes *o) {
    o->top = -1;
    open_node(o, 0, 0);
    for (int32_t i = 0; i < f->count; i++) {
        int64_t next = f->shared[i + 1];
        if (next > o->depth[o->top]) open_node(o, next, f->nodes);
        close_node(f, f->length[i], f->cost[i], f->nodes, i);
        while (o->depth[o->top] > next) {
            int64_t depth = o->depth[o->top];
            int32_t first = o->first[o->top];
            close_node(f, depth, ravel__cost_of(f->rules, depth), first, i);
            if (o->depth[o->top - 1] < next)
                o->depth[o->top] = next; /* the parent was not open yet; it begins where its child did */
            else
                o->top--;
        }
    }
    RAVEL_ASSERT(o->top == 0);
    close_node(f, 0, 0, 0, f->count - 1);
}

ravel_status ravel__forest_make(const ravel__rules *rules, const ravel_plan_input *input, const int32_t *rows,
                                const int64_t *shared, int32_t count, ravel__arena *arena, ravel__forest *f,
                                ravel_error *err) {
    size_t n = (size_t)count + 1;
    *f = (ravel__forest){
        .rules = rules, .samples = count, .most = rules->most, .cap = rules->cap * rules->options.align};
    RAVEL__PUSH(arena, f->leaf, n);
    RAVEL__PUSH(arena, f->length, n);
    RAVEL__PUSH(arena, f->shared, n);
    RAVEL__PUSH(arena, f->cost, n);
    RAVEL__PUSH(arena, f->twice, n);
    RAVEL__PUSH(arena, f->node, 2 * n);
    ravel__mark mark = ravel__arena_mark(arena);
    cover c = {.f = f};
    open_nodes open;
    RAVEL__PUSH(arena, c.first, n);
    RAVEL__PUSH(arena, c.parent, n);
    RAVEL__PUSH(arena, open.depth, n);
    RAVEL__PUSH(arena, open.first, n);
    ravel_status status = ravel__arena_status(arena, "the trees of an update", err);
    if (status) return status;
    collapse(&c, rules, input, rows, shared);
    f->length[f->count] = f->shared[f->count] = 0;
    f->cost[f->count] = 0;
    for (int32_t i = 0; i < f->count; i++) f->cost[i] = ravel__sample_cost(rules, input, rows[c.first[i]]);
    for (int32_t i = 0; i <= f->count; i++) f->twice[i] = ravel__cost_of(rules, f->shared[i]);
    list_nodes(f, &open);
    ravel__arena_rewind(arena, mark);
    return RAVEL_OK;
}
