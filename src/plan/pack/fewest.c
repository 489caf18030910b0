/* The fewest bins: best-fit decreasing, and more where that is above the lower bound and another try may pay. The named
 * methods are compared later, as whole plans (balance/solve.c). */
#include "plan/balance/balance.h"

#include "base/assert.h"

#include <string.h>

/* The packings tried besides best-fit. */
typedef struct fewest {
    const ravel__job *job;
    int32_t passes, partners, tolerance;
    int32_t *bin, bins; /* the best so far */
    int32_t *trial;
} fewest;

static void keep(fewest *f, int32_t bins) {
    RAVEL_ASSERT(bins >= f->job->bound); /* which no packing is below */
    if (bins >= f->bins) return;
    int32_t *swap = f->bin;
    f->bin = f->trial;
    f->trial = swap;
    f->bins = bins;
}

static ravel_status try_complete(fewest *f, int32_t seconds, int32_t lookups) {
    int32_t bins;
    ravel_status status = ravel__pack_complete(f->job, seconds, lookups, f->trial, &bins);
    if (!status) keep(f, bins);
    return status;
}

/* Spreads slots evenly over just the given number of bins: that works where bins hold many samples. */
static ravel_status try_spread(fewest *f, int32_t bins) {
    ravel__job job = *f->job;
    job.dp = 1;
    int32_t over;
    ravel_status status = ravel__spread(&job, bins, 1, f->trial, &over);
    if (status || over > bins / f->tolerance) return status;
    ravel__mark mark = ravel__arena_mark(job.arena);
    ravel__lists lists;
    if (over) {
        status = ravel__lists_make(&job, f->trial, bins, bins, &lists);
        if (!status) status = ravel__repair(&job, &lists, f->passes, f->partners, &over);
        if (!status && !over) ravel__lists_bins(&lists, f->trial);
    }
    if (!status && !over) keep(f, bins);
    ravel__arena_rewind(job.arena, mark);
    return status;
}

/* Whether fewer bins would mean fewer micro-steps. */
static int matters(const fewest *f, int32_t bound) {
    const ravel__job *job = f->job;
    return ravel__steps_for(job->rules, bound, job->dp) < ravel__steps_for(job->rules, f->bins, job->dp);
}

/* All bins of the fewest micro-steps that the bound allows, if that is fewer than there are. */
static int64_t least_bins(const fewest *f, int32_t bound) {
    int64_t bins = ravel__steps_for(f->job->rules, bound, f->job->dp) * f->job->dp;
    return bins < f->bins ? bins : f->bins - 1;
}

static ravel_status try_all(fewest *f, int32_t bound) {
    ravel_status status = RAVEL_OK;
    /* the fullest bins first are not the fewest in all: trying fewer seconds leaves better samples for later bins */
    for (int32_t seconds = 2; !status && seconds <= 64 && f->bins > bound; seconds *= 2)
        status = try_complete(f, seconds, 2 * seconds);
    for (int32_t i = 0; !status && i < 4 && f->bins > bound + i; i++) status = try_spread(f, bound + i);
    if (!status && matters(f, bound)) status = try_spread(f, (int32_t)least_bins(f, bound));
    if (!status && matters(f, bound)) { /* all bins of one micro-step less */
        int64_t bins = (ravel__steps_for(f->job->rules, f->bins, f->job->dp) - 1) * f->job->dp;
        if (bins >= bound && bins < f->bins) status = try_spread(f, (int32_t)bins);
    }
    return status;
}

/* Whether the given number of bins leave a little room: 1 part in 256, or many samples per bin to choose from. */
static int roomy(const fewest *f, int64_t bins) {
    int64_t volume = 0, room = bins * f->job->rules->cap;
    for (int32_t i = 0; i < f->job->pool->count; i++) volume += f->job->pool->slot[i];
    return volume <= room - room / 256 || f->job->pool->count / bins >= 8;
}

/* At the default effort only the packings that are likely to help, and only if one micro-step is a large share. */
static ravel_status try_likely(fewest *f, int32_t bound) {
    ravel_status status = RAVEL_OK;
    int64_t least = least_bins(f, bound);
    if (f->job->pool->count > f->job->limits->pack_samples) return RAVEL_OK;
    if (matters(f, bound) && roomy(f, least)) status = try_spread(f, (int32_t)least);
    if (!status && matters(f, bound)) status = try_complete(f, 4, 4);
    if (!status && f->bins > bound && f->job->pool->count / bound >= 8) status = try_spread(f, bound);
    return status;
}

ravel_status ravel__pack_fewest(const ravel__job *job, int thorough, int32_t *bin, int32_t *bins) {
    fewest f = {job, thorough ? 8 : 2, thorough ? 128 : 32, thorough ? 2 : 4, bin, 0, NULL};
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel_status status = ravel__pack_bfd(job, bin, &f.bins);
    int32_t bound = (int32_t)job->bound;
    if (!status && f.bins > bound && job->rules->options.effort != RAVEL_EFFORT_FAST) {
        f.trial = ravel__arena_push(job->arena, (size_t)job->pool->count, sizeof *f.trial);
        if (!f.trial)
            status = ravel__no_memory(job->err, (size_t)job->pool->count * sizeof *f.trial, "packing");
        else
            status = thorough ? try_all(&f, bound) : try_likely(&f, bound);
    }
    if (!status && f.bin != bin) memcpy(bin, f.bin, (size_t)job->pool->count * sizeof *bin);
    RAVEL_ASSERT(status || (f.bins >= bound && f.bins <= job->pool->count));
    *bins = f.bins;
    ravel__arena_rewind(job->arena, mark);
    return status;
}
