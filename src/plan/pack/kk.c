/* Karmarkar-Karp differencing into k parts, by cost, made to keep the cap.
 *
 * A part is a set of samples and its cost; a tuple is up to k parts, the missing ones being empty. The two tuples of
 * greatest spread (largest part less smallest) are joined, largest parts against smallest, until one is left:
 *
 *     a: 9 7 4 .   b: 8 3 . .     k = 4:  a's 4 meets b's 3?  no: 3 + 2 parts are one more than 4, so the cheapest of
 *                                 each, 4 and 3, become one part: 9 8 7 7
 *
 * Parts are never empty, so that all tuples together have at most n of them. A tuple is a pairing heap of its parts,
 * cheapest on top: joining takes one step where there is room for all, and else as many as parts must be added up. So
 * time is near n log n and memory is linear; the usual form keeps n tuples of k numbers. */
#include "plan/pack/fit.h"

#include "base/assert.h"
#include "base/heap.h"

#include <string.h>

static ravel_status no_memory(const ravel__job *job, size_t bytes) {
    return ravel__no_memory(job->err, bytes, "differencing");
}

typedef struct part {
    int64_t sum;
    int32_t child, sibling; /* of the pairing heap, -1: none */
    int32_t head, tail;     /* samples, linked through `next` */
} part;

typedef struct kk {
    int32_t k;
    part *parts;
    int32_t *next;         /* by sample */
    int32_t *top, *size;   /* by tuple: its cheapest part, how many there are */
    int64_t *largest;      /* by tuple */
    ravel__heap widest;    /* tuples by spread */
    int32_t *left, *right; /* scratch of k: the cheapest parts of two tuples */
} kk;

/* ---- a tuple's heap ----------------------------------------------------------------------------------------- */

static int cheaper(const kk *s, int32_t a, int32_t b) {
    return s->parts[a].sum != s->parts[b].sum ? s->parts[a].sum < s->parts[b].sum : a < b;
}

static int32_t meld(kk *s, int32_t a, int32_t b) {
    if (a < 0 || b < 0) return a < 0 ? b : a;
    if (cheaper(s, b, a)) {
        int32_t swap = a;
        a = b;
        b = swap;
    }
    s->parts[b].sibling = s->parts[a].child;
    s->parts[a].child = b;
    return a;
}

/* Joins the children of the removed top into one heap: in pairs from the left, then all from the right. */
static int32_t take_top(kk *s, int32_t tuple) {
    RAVEL_ASSERT(s->size[tuple] > 0 && s->top[tuple] >= 0);
    int32_t top = s->top[tuple], at = s->parts[top].child, pairs = -1, rest = -1;
    while (at >= 0) {
        int32_t a = at, b = s->parts[a].sibling;
        at = b < 0 ? -1 : s->parts[b].sibling;
        s->parts[a].sibling = -1;
        if (b >= 0) s->parts[b].sibling = -1;
        a = meld(s, a, b);
        s->parts[a].sibling = pairs;
        pairs = a;
    }
    while (pairs >= 0) {
        int32_t next = s->parts[pairs].sibling;
        s->parts[pairs].sibling = -1;
        rest = meld(s, rest, pairs);
        pairs = next;
    }
    RAVEL_ASSERT(rest < 0 || !cheaper(s, rest, top)); /* the top was the cheapest */
    s->top[tuple] = rest;
    s->size[tuple]--;
    s->parts[top].child = s->parts[top].sibling = -1;
    return top;
}

static void put(kk *s, int32_t tuple, int32_t p) {
    s->top[tuple] = meld(s, s->top[tuple], p);
    s->size[tuple]++;
    if (s->parts[p].sum > s->largest[tuple]) s->largest[tuple] = s->parts[p].sum;
}

/* ---- differencing ------------------------------------------------------------------------------------------- */

/* Part q's samples go to part p. */
static void absorb(kk *s, int32_t p, int32_t q) {
    s->parts[p].sum += s->parts[q].sum;
    RAVEL_ASSERT(p != q && s->next[s->parts[p].tail] < 0);
    s->next[s->parts[p].tail] = s->parts[q].head;
    s->parts[p].tail = s->parts[q].tail;
}

/* Joins tuple b into a. As many of the cheapest parts of each as there are too many are added up crosswise, the
 * cheapest of a to the largest of b's; the others stay parts. */
static void join_tuples(kk *s, int32_t a, int32_t b) {
    int32_t many = s->size[a] + s->size[b] - s->k;
    RAVEL_ASSERT(a != b && many <= s->size[a] && many <= s->size[b]);
    for (int32_t i = 0; i < many; i++) s->left[i] = take_top(s, a);
    for (int32_t i = 0; i < many; i++) s->right[i] = take_top(s, b);
    for (int32_t i = 0; i < many; i++) absorb(s, s->left[i], s->right[many - 1 - i]);
    s->top[a] = meld(s, s->top[a], s->top[b]);
    s->size[a] += s->size[b];
    if (s->largest[b] > s->largest[a]) s->largest[a] = s->largest[b];
    for (int32_t i = 0; i < many; i++) put(s, a, s->left[i]);
    RAVEL_ASSERT(s->size[a] <= s->k && s->largest[a] >= s->parts[s->top[a]].sum);
}

static void difference(kk *s) {
    while (s->widest.count > 1) {
        int32_t a = ravel__heap_pop(&s->widest), b = s->widest.at[0].id;
        join_tuples(s, a, b);
        int64_t cheapest = s->size[a] < s->k ? 0 : s->parts[s->top[a]].sum;
        s->widest.at[0] = (ravel__node){s->largest[a] - cheapest, a};
        ravel__heap_sink(&s->widest);
    }
}

static int make_kk(const ravel__job *job, kk *s) {
    size_t n = (size_t)job->pool->count, k = (size_t)s->k;
    ravel__arena *arena = job->arena;
    s->parts = ravel__arena_push(arena, n, sizeof *s->parts);
    s->next = ravel__arena_push(arena, n, sizeof *s->next);
    s->top = ravel__arena_push(arena, n, sizeof *s->top);
    s->size = ravel__arena_push(arena, n, sizeof *s->size);
    s->largest = ravel__arena_push(arena, n, sizeof *s->largest);
    s->widest.at = ravel__arena_push(arena, n, sizeof *s->widest.at);
    s->left = ravel__arena_push(arena, k, sizeof *s->left);
    s->right = ravel__arena_push(arena, k, sizeof *s->right);
    return s->parts && s->next && s->top && s->size && s->largest && s->widest.at && s->left && s->right;
}

static void begin(const ravel__job *job, kk *s) {
    for (int32_t i = 0; i < job->pool->count; i++) {
        s->parts[i] = (part){job->pool->cost[i], -1, -1, i, i};
        s->next[i] = -1;
        s->top[i] = i;
        s->size[i] = 1;
        s->largest[i] = job->pool->cost[i];
        ravel__heap_push(&s->widest, s->k > 1 ? job->pool->cost[i] : 0, i);
    }
}

/* Parts are numbered from the cheapest on; those that would be empty have no number. */
ravel_status ravel__difference(const ravel__job *job, int32_t k, int32_t *bin, int32_t *bins) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    kk s;
    memset(&s, 0, sizeof s);
    s.k = k;
    *bins = 0;
    if (job->pool->count == 0) return RAVEL_OK;
    if (!make_kk(job, &s)) {
        ravel__arena_rewind(job->arena, mark);
        return no_memory(job, (size_t)job->pool->count * sizeof *s.parts);
    }
    begin(job, &s);
    difference(&s);
    int32_t last = s.widest.at[0].id;
    RAVEL_ASSERT(s.widest.count == 1 && s.size[last] <= k);
    for (; s.size[last] > 0; ++*bins)
        for (int32_t i = s.parts[take_top(&s, last)].head; i >= 0; i = s.next[i]) bin[i] = *bins;
    ravel__arena_rewind(job->arena, mark);
    return RAVEL_OK;
}

/* ---- the cap, kept ------------------------------------------------------------------------------------------ */

/* Keeps in each bin, longest first, what fits; the rest goes to the fullest bin with room (packed), or to new bins.
 * `bin` holds the wanted bins on entry and the final ones on return; *bins may grow. */
static ravel_status keep_cap(const ravel__job *job, int32_t *bin, int32_t *bins) {
    const ravel__pool *pool = job->pool;
    int32_t made = *bins, wanted = *bins, out = 0;
    ravel__bin *state = ravel__arena_push(job->arena, (size_t)pool->count, sizeof *state);
    int32_t *left_over = ravel__arena_push(job->arena, (size_t)pool->count, sizeof *left_over);
    ravel__fit fit;
    ravel_status status = ravel__fit_make(&fit, job->arena, job->rules->cap, pool->count, job->err);
    if (status || !state || !left_over) return no_memory(job, (size_t)pool->count * sizeof *state);
    memset(state, 0, (size_t)wanted * sizeof *state);
    for (int32_t i = 0; i < pool->count; i++) {
        if (ravel__bin_fits(job->rules, pool, &state[bin[i]], i))
            ravel__bin_add(job->rules, pool, &state[bin[i]], i);
        else
            left_over[out++] = i;
    }
    int packed = job->rules->options.layout == RAVEL_LAYOUT_PACKED;
    for (int32_t b = 0; packed && b < wanted; b++)
        if (state[b].rows < job->rules->most) ravel__fit_put(&fit, b, job->rules->cap - state[b].size);
    for (int32_t i = 0; i < out; i++) {
        int64_t room;
        int32_t b = packed ? ravel__fit_take(&fit, pool->slot[left_over[i]], &room) : -1;
        if (b < 0 && !packed && made > wanted && ravel__bin_fits(job->rules, pool, &state[made - 1], left_over[i]))
            b = made - 1;
        if (b < 0) {
            b = made++;
            memset(&state[b], 0, sizeof *state);
        }
        ravel__bin_add(job->rules, pool, &state[b], left_over[i]);
        RAVEL_ASSERT(made <= pool->count && state[b].size <= job->rules->cap);
        bin[left_over[i]] = b;
        if (packed && state[b].rows < job->rules->most) ravel__fit_put(&fit, b, job->rules->cap - state[b].size);
    }
    *bins = made;
    return RAVEL_OK;
}

ravel_status ravel__pack_kk(const ravel__job *job, int32_t *bin, int32_t *bins) {
    ravel_status status = ravel__difference(job, ravel__wanted_bins(job), bin, bins);
    if (status || job->pool->count == 0) return status;
    ravel__mark mark = ravel__arena_mark(job->arena);
    status = keep_cap(job, bin, bins);
    ravel__arena_rewind(job->arena, mark);
    return status;
}
