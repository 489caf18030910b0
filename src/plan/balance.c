/* The methods that balance a known number of bins: LPT and Karmarkar-Karp, both made to keep the cap. The number is the
 * least that the lower bound and parity allow; what will not fit opens further bins. */
#include "plan/fit.h"

#include "base/heap.h"
#include "base/sort.h"

#include <string.h>

static ravel_status no_room(const ravel__job *job, size_t bytes) {
    return ravel__no_memory(job->err, bytes, "balancing");
}

static int32_t wanted_bins(const ravel__job *job) {
    int64_t bins = ravel__steps_for(job->rules, job->bound, job->dp) * job->dp;
    return bins < job->pool->count ? (int32_t)bins : job->pool->count;
}

/* ---- LPT ---------------------------------------------------------------------------------------------------- */

enum { TRIES = 64 }; /* cheapest bins that are looked at before a new one is opened */

typedef struct lpt {
    ravel__bin *bin;
    ravel__heap cheapest; /* by -cost */
} lpt;

/* The cheapest bin with room for the sample, in its new place; -1: none of those looked at. */
static int32_t choose(const ravel__job *job, lpt *l, int32_t sample) {
    int32_t full[TRIES], tried = 0, found = -1;
    while (l->cheapest.count && tried < TRIES) {
        int32_t bin = l->cheapest.at[0].id;
        if (ravel__bin_fits(job->rules, job->pool, &l->bin[bin], sample)) {
            found = bin;
            ravel__bin_add(job->rules, job->pool, &l->bin[bin], sample);
            l->cheapest.at[0].key = -l->bin[bin].cost;
            ravel__heap_sink(&l->cheapest);
            break;
        }
        full[tried++] = ravel__heap_pop(&l->cheapest);
    }
    for (; tried > 0; tried--) ravel__heap_push(&l->cheapest, -l->bin[full[tried - 1]].cost, full[tried - 1]);
    return found;
}

ravel_status ravel__pack_lpt(const ravel__job *job, int32_t *bin, int32_t *bins) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    size_t n = (size_t)job->pool->count;
    int32_t *order = ravel__arena_push(job->arena, n, sizeof *order), made = wanted_bins(job);
    lpt l = {ravel__arena_push(job->arena, n, sizeof *l.bin),
             {ravel__arena_push(job->arena, n, sizeof *l.cheapest.at), 0}};
    if (!order || !l.bin || !l.cheapest.at) {
        ravel__arena_rewind(job->arena, mark);
        return no_room(job, n * sizeof *l.bin);
    }
    ravel_status status = ravel__pool_order(job, order);
    if (status) return status;
    memset(l.bin, 0, (size_t)made * sizeof *l.bin);
    for (int32_t b = 0; b < made; b++) ravel__heap_push(&l.cheapest, 0, b);
    for (size_t i = 0; i < n; i++) {
        int32_t b = choose(job, &l, order[i]);
        if (b < 0) {
            b = made++;
            memset(&l.bin[b], 0, sizeof *l.bin);
            ravel__bin_add(job->rules, job->pool, &l.bin[b], order[i]);
            ravel__heap_push(&l.cheapest, -l.bin[b].cost, b);
        }
        bin[order[i]] = b;
    }
    *bins = made;
    ravel__arena_rewind(job->arena, mark);
    return RAVEL_OK;
}

/* ---- Karmarkar-Karp ----------------------------------------------------------------------------------------- */

/* A part is a set of samples and its cost; a tuple is up to k parts, dearest first, the missing ones being empty:
 *
 *     tuple t:  first[t] -> part -> part -> ... -> last[t]        size[t] parts, spread = dearest - cheapest
 *
 * The two tuples of greatest spread are joined, dearest parts against cheapest, until one is left. Parts are never
 * empty, so that all tuples together have at most n of them and joining singles costs next to nothing: that keeps time
 * near n log n and memory linear, where the textbook's n tuples of k numbers would not. */
typedef struct part {
    int64_t sum;
    int32_t up, down;   /* dearer and cheaper neighbour in the tuple, -1 at the ends */
    int32_t head, tail; /* samples, linked through `next` */
} part;

typedef struct kk {
    int32_t k;
    part *parts;
    int32_t *next;                /* by sample */
    int32_t *first, *last, *size; /* by tuple */
    ravel__heap widest;           /* tuples by spread */
    uint64_t *keys, *spare_keys;  /* scratch of k for sorting sums */
    int32_t *order, *spare_order;
} kk;

static void link_after(kk *s, int32_t tuple, int32_t above, int32_t p) {
    int32_t below = above >= 0 ? s->parts[above].down : s->first[tuple];
    s->parts[p].up = above;
    s->parts[p].down = below;
    if (above >= 0)
        s->parts[above].down = p;
    else
        s->first[tuple] = p;
    if (below >= 0)
        s->parts[below].up = p;
    else
        s->last[tuple] = p;
    s->size[tuple]++;
}

static void unlink_part(kk *s, int32_t tuple, int32_t p) {
    int32_t up = s->parts[p].up, down = s->parts[p].down;
    if (up >= 0)
        s->parts[up].down = down;
    else
        s->first[tuple] = down;
    if (down >= 0)
        s->parts[down].up = up;
    else
        s->last[tuple] = up;
    s->size[tuple]--;
}

/* Into its place by cost, looked for from both ends at once. */
static void insert_part(kk *s, int32_t tuple, int32_t p) {
    int64_t sum = s->parts[p].sum;
    int32_t low = s->last[tuple], high = s->first[tuple];
    while (low >= 0) {
        if (s->parts[low].sum >= sum) break;
        low = s->parts[low].up;
        if (s->parts[high].sum < sum) {
            low = s->parts[high].up;
            break;
        }
        high = s->parts[high].down;
    }
    link_after(s, tuple, low, p);
}

/* Part q's samples go to part p. */
static void absorb(kk *s, int32_t p, int32_t q) {
    s->parts[p].sum += s->parts[q].sum;
    s->next[s->parts[p].tail] = s->parts[q].head;
    s->parts[p].tail = s->parts[q].tail;
}

/* Joins tuple b into a. The cheapest `both` parts of each are added crosswise; the others stay parts. */
static void join_tuples(kk *s, int32_t a, int32_t b) {
    int32_t both = s->size[a] + s->size[b] - s->k, count = 0;
    if (both > 0) { /* a's cheapest meets the dearest of b's cheapest */
        int32_t q = s->last[b];
        for (int32_t i = 1; i < both; i++) q = s->parts[q].up;
        for (; count < both; count++) {
            int32_t p = s->last[a], cheaper_q = s->parts[q].down;
            unlink_part(s, a, p);
            unlink_part(s, b, q);
            absorb(s, p, q);
            s->keys[count] = ~(uint64_t)s->parts[p].sum;
            s->order[count] = p;
            q = cheaper_q;
        }
        ravel__sort_u64(s->keys, s->order, s->spare_keys, s->spare_order, (size_t)count);
    }
    if (count + s->size[b] <= 2) { /* the ordinary case: a single */
        for (int32_t i = 0; i < count; i++) insert_part(s, a, s->order[i]);
        while (s->size[b] > 0) {
            int32_t p = s->first[b];
            unlink_part(s, b, p);
            insert_part(s, a, p);
        }
        return;
    }
    int32_t at = s->first[a], above = -1, i = 0;
    while (i < count || s->size[b] > 0) { /* three sorted runs into one */
        int32_t p = i < count ? s->order[i] : s->first[b];
        if (i < count && s->size[b] > 0 && s->parts[s->first[b]].sum > s->parts[p].sum) p = s->first[b];
        for (; at >= 0 && s->parts[at].sum >= s->parts[p].sum; at = s->parts[at].down) above = at;
        if (i < count && p == s->order[i])
            i++;
        else
            unlink_part(s, b, p);
        link_after(s, a, above, p);
        above = p;
    }
}

static void difference(kk *s) {
    while (s->widest.count > 1) {
        int32_t a = ravel__heap_pop(&s->widest), b = s->widest.at[0].id;
        if (s->size[b] > s->size[a]) { /* the larger absorbs the other and takes the top */
            int32_t swap = a;
            a = b;
            b = swap;
        }
        join_tuples(s, a, b);
        int64_t cheapest = s->size[a] < s->k ? 0 : s->parts[s->last[a]].sum;
        s->widest.at[0] = (ravel__node){s->parts[s->first[a]].sum - cheapest, a};
        ravel__heap_sink(&s->widest);
    }
}

static int make_kk(const ravel__job *job, kk *s) {
    size_t n = (size_t)job->pool->count, k = (size_t)s->k;
    ravel__arena *arena = job->arena;
    s->parts = ravel__arena_push(arena, n, sizeof *s->parts);
    s->next = ravel__arena_push(arena, n, sizeof *s->next);
    s->first = ravel__arena_push(arena, n, sizeof *s->first);
    s->last = ravel__arena_push(arena, n, sizeof *s->last);
    s->size = ravel__arena_push(arena, n, sizeof *s->size);
    s->widest.at = ravel__arena_push(arena, n, sizeof *s->widest.at);
    s->keys = ravel__arena_push(arena, k, sizeof *s->keys);
    s->spare_keys = ravel__arena_push(arena, k, sizeof *s->spare_keys);
    s->order = ravel__arena_push(arena, k, sizeof *s->order);
    s->spare_order = ravel__arena_push(arena, k, sizeof *s->spare_order);
    return s->parts && s->next && s->first && s->last && s->size && s->widest.at && s->keys && s->spare_keys &&
           s->order && s->spare_order;
}

static void begin_kk(const ravel__job *job, kk *s) {
    for (int32_t i = 0; i < job->pool->count; i++) {
        s->parts[i] = (part){job->pool->cost[i], -1, -1, i, i};
        s->next[i] = -1;
        s->first[i] = s->last[i] = i;
        s->size[i] = 1;
        ravel__heap_push(&s->widest, s->k > 1 ? job->pool->cost[i] : 0, i);
    }
}

/* ---- the cap, kept ------------------------------------------------------------------------------------------ */

/* Keeps in each bin, longest first, what fits; the rest goes to the fullest bin with room (packed), or to new bins.
 * `bin` says the wish and becomes the truth; *bins may grow. */
static ravel_status keep_cap(const ravel__job *job, int32_t *bin, int32_t *bins) {
    const ravel__pool *pool = job->pool;
    int32_t made = *bins, wished = *bins, out = 0;
    ravel__bin *state = ravel__arena_push(job->arena, (size_t)pool->count, sizeof *state);
    int32_t *outs = ravel__arena_push(job->arena, (size_t)pool->count, sizeof *outs);
    ravel__fit fit;
    ravel_status status = ravel__fit_make(&fit, job->arena, job->rules->cap, pool->count, job->err);
    if (status || !state || !outs) return no_room(job, (size_t)pool->count * sizeof *state);
    memset(state, 0, (size_t)wished * sizeof *state);
    for (int32_t i = 0; i < pool->count; i++) {
        if (ravel__bin_fits(job->rules, pool, &state[bin[i]], i))
            ravel__bin_add(job->rules, pool, &state[bin[i]], i);
        else
            outs[out++] = i;
    }
    int packed = job->rules->options.layout == RAVEL_LAYOUT_PACKED;
    for (int32_t b = 0; packed && b < wished; b++)
        if (state[b].rows < job->rules->most) ravel__fit_put(&fit, b, job->rules->cap - state[b].size);
    for (int32_t i = 0; i < out; i++) {
        int64_t room;
        int32_t b = packed ? ravel__fit_take(&fit, pool->slot[outs[i]], &room) : -1;
        if (b < 0 && !packed && made > wished && ravel__bin_fits(job->rules, pool, &state[made - 1], outs[i]))
            b = made - 1;
        if (b < 0) {
            b = made++;
            memset(&state[b], 0, sizeof *state);
        }
        ravel__bin_add(job->rules, pool, &state[b], outs[i]);
        bin[outs[i]] = b;
        if (packed && state[b].rows < job->rules->most) ravel__fit_put(&fit, b, job->rules->cap - state[b].size);
    }
    *bins = made;
    return RAVEL_OK;
}

ravel_status ravel__pack_kk(const ravel__job *job, int32_t *bin, int32_t *bins) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    kk s;
    memset(&s, 0, sizeof s);
    s.k = wanted_bins(job);
    *bins = 0;
    if (job->pool->count == 0) return RAVEL_OK;
    if (!make_kk(job, &s)) {
        ravel__arena_rewind(job->arena, mark);
        return no_room(job, (size_t)job->pool->count * sizeof *s.parts);
    }
    begin_kk(job, &s);
    difference(&s);
    for (int32_t p = s.first[s.widest.at[0].id]; p >= 0; p = s.parts[p].down, ++*bins)
        for (int32_t i = s.parts[p].head; i >= 0; i = s.next[i]) bin[i] = *bins;
    ravel__arena_rewind(job->arena, mark);
    ravel_status status = keep_cap(job, bin, bins);
    ravel__arena_rewind(job->arena, mark);
    return status;
}
