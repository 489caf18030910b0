/* LPT, longest processing time first: samples go largest cost first to the cheapest of the given number of bins that
 * has room. The number of bins is the least that the lower bound and parity allow; what will not fit opens further
 * ones. */
#include "plan/internal.h"

#include "base/assert.h"
#include "base/heap.h"

#include <string.h>

static ravel_status no_memory(const ravel__job *job, size_t bytes) {
    return ravel__no_memory(job->err, bytes, "balancing");
}

int32_t ravel__wanted_bins(const ravel__job *job) {
    int64_t bins = ravel__steps_for(job->rules, job->bound, job->dp) * job->dp;
    RAVEL_ASSERT(bins >= 1 || job->rules->steps_done);
    return bins < job->pool->count ? (int32_t)bins : job->pool->count;
}

/* TRIES: cheapest bins that are looked at before a new one is opened. EMPTY: the key of an empty bin, above all others,
 * so that bins full of samples that cost nothing hide none of them. */
enum { TRIES = 64, EMPTY = 1 };

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
    int32_t *order = ravel__arena_push(job->arena, n, sizeof *order), made = ravel__wanted_bins(job);
    lpt l = {ravel__arena_push(job->arena, n, sizeof *l.bin),
             {ravel__arena_push(job->arena, n, sizeof *l.cheapest.at), 0}};
    if (!order || !l.bin || !l.cheapest.at) {
        ravel__arena_rewind(job->arena, mark);
        return no_memory(job, n * sizeof *l.bin);
    }
    ravel_status status = ravel__pool_order(job, order);
    if (status) return status;
    memset(l.bin, 0, (size_t)made * sizeof *l.bin);
    for (int32_t b = 0; b < made; b++) ravel__heap_push(&l.cheapest, EMPTY, b);
    for (size_t i = 0; i < n; i++) {
        int32_t b = choose(job, &l, order[i]);
        if (b < 0) {
            b = made++;
            memset(&l.bin[b], 0, sizeof *l.bin);
            ravel__bin_add(job->rules, job->pool, &l.bin[b], order[i]);
            ravel__heap_push(&l.cheapest, -l.bin[b].cost, b);
        }
        RAVEL_ASSERT(b >= 0 && b < made && (size_t)made <= n);
        RAVEL_ASSERT(l.bin[b].size <= job->rules->cap && l.bin[b].rows <= job->rules->most);
        bin[order[i]] = b;
    }
    *bins = made;
    ravel__arena_rewind(job->arena, mark);
    return RAVEL_OK;
}
