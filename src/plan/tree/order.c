/* ravel_tree_order: a compressed trie over the samples, built one sample after another.
 *
 *     node   a run of tokens that every sample below it has: tokens [from, to) of `sample`, any of those below
 *     child  found by its first token (and key) in a hash table of (parent, token, key)
 *
 * Insertion walks down while whole runs are equal. Where a run differs inside, it is split in two; where no child
 * begins with the next token, the rest of the sample becomes a leaf. So a shared token is read twice, in the sample and
 * in the node's sample, and tokens beyond the first that differs are not read at all. The node's sample is the one that
 * came through last, since its tokens are most likely in the cache still.
 *
 * The order is depth first, children by the age of their first sample; samples that end at a node come after its
 * children. */
#include <ravel/tree.h>

#include "base/assert.h"
#include "base/memory.h"
#include "base/rng.h"

#include <string.h>

#define MOST_SAMPLES (INT64_C(1) << 29)

typedef struct node {
    int64_t to;              /* tokens from the root to the node's end */
    uint64_t key;            /* of the first token */
    int32_t token;           /* the first */
    int32_t name;            /* by which its children name it; it stays with the children where a run is split */
    int32_t parent;          /* name */
    int32_t sample;          /* whose tokens are read */
    int32_t first, last;     /* children, by age; -1: none */
    int32_t next;            /* sibling after this one */
    int32_t ends, ends_last; /* samples that end here, linked; -1: none */
} node;

typedef struct trie {
    const ravel_tree_input *in;
    node *nodes;
    int32_t *table; /* open addressing: nodes, -1: free */
    int32_t *twin;  /* [count] the next sample that ends at the same node */
    int32_t *stack; /* [2 * count + 1] nodes, for the walk */
    int32_t count;
    uint64_t mask;
} trie;

/* ---- children ------------------------------------------------------------------------------------------------- */

static int32_t token_at(const trie *t, int32_t sample, int64_t at) {
    return t->in->ids[t->in->offsets[sample] + at];
}

static uint64_t key_at(const trie *t, int32_t sample, int64_t at) {
    return t->in->token_keys ? t->in->token_keys[t->in->offsets[sample] + at] : 0;
}

/* Trees of different sample keys differ at the root already. */
static int same_tree(const trie *t, int32_t x, int32_t y) {
    return !t->in->sample_keys || t->in->sample_keys[x] == t->in->sample_keys[y];
}

/* Where the table has the child of `parent` (a name) that goes on like the sample after `at` tokens, or a free
 * place. */
static uint64_t place_of(const trie *t, int32_t parent, int32_t sample, int64_t at) {
    int32_t token = token_at(t, sample, at);
    uint64_t key = key_at(t, sample, at), mixed = (uint64_t)(uint32_t)parent << 32 | (uint32_t)token;
    if (key) mixed ^= ravel__mix64(key);
    if (!at && t->in->sample_keys) mixed ^= ravel__mix64(~t->in->sample_keys[sample]);
    for (uint64_t place = ravel__mix64(mixed) & t->mask;; place = (place + 1) & t->mask) {
        if (t->table[place] < 0) return place;
        const node *n = &t->nodes[t->table[place]];
        if (n->parent == parent && n->token == token && n->key == key && (at || same_tree(t, n->sample, sample)))
            return place;
    }
}

/* A node of the tokens at .. to - 1 of a sample, without children. */
static int32_t add_node(trie *t, int32_t parent, int32_t sample, int64_t at, int64_t to) {
    int32_t made = t->count++;
    RAVEL_ASSERT(made <= 2 * t->in->count);
    t->nodes[made] = (node){to, 0, 0, made, parent, sample, -1, -1, -1, -1, -1};
    if (at < to) {
        t->nodes[made].token = token_at(t, sample, at);
        t->nodes[made].key = key_at(t, sample, at);
    }
    return made;
}

static void add_child(trie *t, int32_t parent, int32_t child) {
    node *p = &t->nodes[parent];
    if (p->last >= 0)
        t->nodes[p->last].next = child;
    else
        p->first = child;
    p->last = child;
}

/* ---- comparing ------------------------------------------------------------------------------------------------ */

/* The first place of from .. to - 1 that differs, else `to`. The blocks compile to vector compares. */
static int64_t equal_ids(const int32_t *a, const int32_t *b, int64_t from, int64_t to) {
    enum { BLOCK = 32 };
    int64_t at = from;
    for (; at + BLOCK <= to; at += BLOCK) {
        uint32_t differ = 0;
        for (int i = 0; i < BLOCK; i++) differ |= (uint32_t)a[at + i] ^ (uint32_t)b[at + i];
        if (differ) break;
    }
    while (at < to && a[at] == b[at]) at++;
    return at;
}

static int64_t equal_until(const trie *t, int32_t x, int32_t y, int64_t from, int64_t to) {
    const ravel_tree_input *in = t->in;
    int64_t end = equal_ids(in->ids + in->offsets[x], in->ids + in->offsets[y], from, to);
    if (!in->token_keys) return end;
    const uint64_t *a = in->token_keys + in->offsets[x], *b = in->token_keys + in->offsets[y];
    int64_t at = from;
    while (at < end && a[at] == b[at]) at++;
    return at;
}

/* ---- insertion ------------------------------------------------------------------------------------------------ */

/* Cuts the run of a node after `at` tokens. The node keeps its place among its siblings and the upper part; a new one
 * takes the rest, with the children, and with the name that they know. */
static void split(trie *t, int32_t upper, int64_t at) {
    node *u = &t->nodes[upper];
    int32_t lower = add_node(t, t->count, u->sample, at, u->to), name = t->nodes[lower].name;
    node *l = &t->nodes[lower];
    RAVEL_ASSERT(at < u->to);
    l->name = u->name;
    l->first = u->first;
    l->last = u->last;
    l->ends = u->ends;
    l->ends_last = u->ends_last;
    l->parent = u->name = name;
    u->to = at;
    u->first = u->last = lower;
    u->ends = u->ends_last = -1;
    t->table[place_of(t, name, l->sample, at)] = lower;
}

static void end_at(trie *t, int32_t where, int32_t sample) {
    node *n = &t->nodes[where];
    t->twin[sample] = -1;
    if (n->ends_last >= 0)
        t->twin[n->ends_last] = sample;
    else
        n->ends = sample;
    n->ends_last = sample;
}

static void insert(trie *t, int32_t sample) {
    int64_t at = 0, length = t->in->offsets[sample + 1] - t->in->offsets[sample];
    int32_t where = 0;
    while (at < length) {
        uint64_t place = place_of(t, t->nodes[where].name, sample, at);
        int32_t child = t->table[place];
        if (child < 0) {
            child = add_node(t, t->nodes[where].name, sample, at, length);
            t->table[place] = child;
            add_child(t, where, child);
            at = length;
        } else {
            const node *n = &t->nodes[child];
            int64_t most = n->to < length ? n->to : length, same = equal_until(t, sample, n->sample, at, most);
            RAVEL_ASSERT(same > at && same <= n->to);
            if (same < n->to) split(t, child, same);
            t->nodes[child].sample = sample;
            at = same;
        }
        where = child;
    }
    end_at(t, where, sample);
}

/* ---- walking -------------------------------------------------------------------------------------------------- */

/* Depth first. `low`: the least depth that was gone back to since the last sample, which is what the next one
 * shares. */
static void walk(const trie *t, int32_t *order, int64_t *shared) {
    int64_t low = 0, placed = 0;
    int32_t top = 0, now = 0;
    for (;;) {
        const node *n = &t->nodes[now];
        t->stack[top++] = now;
        if (n->first >= 0) {
            now = n->first;
            continue;
        }
        for (;;) { /* all children are done */
            n = &t->nodes[t->stack[--top]];
            for (int32_t s = n->ends; s >= 0; s = t->twin[s]) {
                order[placed] = s;
                shared[placed++] = low;
                low = n->to;
            }
            if (!top) {
                RAVEL_ASSERT(placed == t->in->count);
                return;
            }
            int64_t depth = t->nodes[t->stack[top - 1]].to;
            if (depth < low) low = depth;
            if (n->next >= 0) break;
        }
        now = n->next;
    }
}

/* ---- front ---------------------------------------------------------------------------------------------------- */

static ravel_status check_input(const ravel_tree_input *in, ravel_error *err) {
    if (in->count < 0 || in->count > MOST_SAMPLES)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the samples have count %lld; it must be from 0 to 2^29",
                               (long long)in->count);
    if (in->count && !in->offsets) return ravel_error_set(err, RAVEL_E_ARGUMENT, "the samples have no offsets");
    for (int64_t i = 0; i < in->count; i++)
        if (in->offsets[i] < 0 || in->offsets[i + 1] < in->offsets[i])
            return ravel_error_set(err, RAVEL_E_DATA, "sample %lld begins at %lld and ends at %lld of the ids",
                                   (long long)i, (long long)in->offsets[i], (long long)in->offsets[i + 1]);
    if (in->count && in->offsets[in->count] > in->offsets[0] && !in->ids)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the samples have offsets but no ids");
    return RAVEL_OK;
}

ravel_status ravel_tree_order(const ravel_tree_input *input, int32_t *order, int64_t *shared, ravel_error *err) {
    if (!input || !input->size)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the samples have size 0; set it to sizeof(ravel_tree_input)");
    ravel_tree_input own = {0};
    memcpy(&own, input, input->size < sizeof own ? input->size : sizeof own);
    ravel_status status = check_input(&own, err);
    if (status) return status;
    size_t n = (size_t)own.count, slots = 64, nodes = 2 * n + 1;
    while (slots < 4 * n) slots *= 2;
    ravel__arena arena;
    ravel__arena_init(&arena, own.allocator, 0);
    trie t = {.in = &own, .mask = slots - 1};
    RAVEL__PUSH(&arena, t.nodes, nodes);
    RAVEL__PUSH(&arena, t.table, slots);
    RAVEL__PUSH(&arena, t.twin, n);
    RAVEL__PUSH(&arena, t.stack, nodes);
    status = ravel__arena_status(&arena, "the order of trees", err);
    if (!status) {
        memset(t.table, 0xff, slots * sizeof *t.table);
        add_node(&t, -1, 0, 0, 0); /* the root */
        for (int64_t i = 0; i < own.count; i++) insert(&t, (int32_t)i);
        walk(&t, order, shared);
    }
    ravel__arena_free(&arena);
    return status;
}
