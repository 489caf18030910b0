/* What other frameworks do with prefix trees, by name, so that a user can compare. Bins stand in the order in which
 * they were made: bin b is micro-step b / dp of rank b % dp. */
#include "plan/tree/bins.h"

#include "base/assert.h"

#include <string.h>

static int has_room(ravel__yard *y, int32_t bin, ravel__span s) {
    ravel__weight w = ravel__weigh(y, &y->bin[bin], &s, 1);
    return y->bin[bin].tokens + w.tokens <= y->f->cap && y->bin[bin].rows + w.rows <= y->f->most;
}

static void take(ravel__yard *y, int32_t bin, ravel__span s) {
    while (bin >= y->bins && ravel__yard_open(y)) {}
    if (!ravel__yard_failed(y)) ravel__bin_take(y, &y->bin[bin], s);
}

/* ---- first fit -------------------------------------------------------------------------------------------------- */

/* Each leaf into the first bin with room for what it adds (AReaL's tries). */
static void fill_first(ravel__yard *y, const int32_t *group, int32_t dp) {
    (void)group;
    (void)dp;
    for (int32_t i = 0; i < y->f->count && !ravel__yard_failed(y); i++) {
        ravel__span s = {i, i + 1};
        int32_t bin = 0;
        while (bin < y->bins && !has_room(y, bin, s)) bin++;
        take(y, bin, s);
    }
}

/* ---- whole groups ----------------------------------------------------------------------------------------------- */

/* The bin of the open micro-step with the least cost that has room; -1: none. */
static int32_t least_bin(ravel__yard *y, int32_t first, int32_t dp, ravel__span s) {
    int32_t best = -1;
    for (int32_t b = first; b < first + dp; b++)
        if (has_room(y, b, s) && (best < 0 || y->bin[b].cost < y->bin[best].cost)) best = b;
    return best;
}

static void open_step(ravel__yard *y, int32_t dp) {
    for (int32_t r = 0; r < dp; r++) (void)ravel__yard_open(y);
}

static int32_t place_run(ravel__yard *y, int32_t first, int32_t dp, ravel__span s) {
    int32_t bin = least_bin(y, first, dp, s);
    if (bin < 0) {
        first = y->bins;
        open_step(y, dp);
        bin = first;
    }
    take(y, bin, s);
    return first;
}

/* The leaves of a run that fit a bin by themselves, at least one. */
static int32_t fitting(const ravel__yard *y, int32_t from, int32_t to) {
    int32_t end = from + 1;
    while (end < to && end < from + y->f->most &&
           ravel__span_weight(y, (ravel__span){from, end + 1}).tokens <= y->f->cap)
        end++;
    return end;
}

/* A run of leaves of one group goes whole to the rank of the open micro-step that has the least, and the micro-step
 * ends when none has room (TRL's streaming budget). A group over the cap is cut. */
static void fill_groups(ravel__yard *y, const int32_t *group, int32_t dp) {
    int32_t first = 0;
    open_step(y, dp);
    for (int32_t from = 0; from < y->f->count && !ravel__yard_failed(y);) {
        int32_t to = from + 1;
        while (to < y->f->count && group[to] == group[from]) to++;
        while (from < to && !ravel__yard_failed(y)) {
            int32_t end = fitting(y, from, to);
            first = place_run(y, first, dp, (ravel__span){from, end});
            from = end;
        }
    }
}

/* ---- the order cut ---------------------------------------------------------------------------------------------- */

/* dp runs of the least largest cost, each cut again where a bin is full (AReaL-DTA, with the cap added). */
static void fill_cut(ravel__yard *y, const int32_t *group, int32_t dp) {
    (void)group;
    const ravel__forest *f = y->f;
    ravel__forest open = *f; /* without caps */
    int64_t low = 0, high = 0;
    open.cap = open.most = INT64_MAX;
    for (int32_t i = 0; i < f->count; i++) {
        high += f->cost[i];
        if (f->cost[i] > low) low = f->cost[i];
    }
    while (low < high) {
        int64_t mid = low + (high - low) / 2;
        if (ravel__tree_cut(&open, mid, dp, NULL) <= dp)
            high = mid;
        else
            low = mid + 1;
    }
    int32_t *run = ravel__arena_push(y->arena, (size_t)f->count, sizeof *run);
    if (!run) return;
    (void)ravel__tree_cut(&open, high, dp, run);
    for (int32_t from = 0, step = 0; from < f->count && !ravel__yard_failed(y); step++) {
        int32_t to = from + 1, rank = run[from];
        while (to < f->count && run[to] == rank) to++;
        int32_t end = fitting(y, from, to);
        take(y, step * dp + rank, (ravel__span){from, end});
        if (end == to) step = -1; /* the next rank begins at its first micro-step */
        from = end;
    }
}

/* ---- front ------------------------------------------------------------------------------------------------------ */

static void (*const fills[])(ravel__yard *, const int32_t *, int32_t) = {
    [RAVEL_TREE_GROUPS] = fill_groups, [RAVEL_TREE_FIRST_FIT] = fill_first, [RAVEL_TREE_CUT] = fill_cut};

/* Leaves of one group have one number: the caller's groups, else the trees. */
static ravel_status number_leaves(const ravel__tree_job *job, const ravel__forest *f, int32_t *group) {
    int32_t groups = 0, *of = ravel__arena_push(job->arena, (size_t)job->count, sizeof *of);
    if (!of) return ravel__arena_status(job->arena, "groups of trees", job->err);
    ravel_status status = RAVEL_OK;
    if (job->input->groups)
        status = ravel__groups_number(job->input, job->rows, job->count, job->arena, of, &groups, job->err);
    for (int32_t i = 0; !status && i < job->count && job->input->groups; i++) group[f->leaf[i]] = of[i];
    for (int32_t k = 0; !status && k < f->count && !job->input->groups; k++)
        group[k] = f->shared[k] ? groups : ++groups;
    return status;
}

ravel_status ravel__tree_solve_named(const ravel__tree_job *job, const ravel__forest *f, int32_t *seat,
                                     ravel__solution *solution) {
    const ravel_plan_options *o = &job->rules->options;
    ravel__yard yard;
    int32_t *bin = ravel__arena_push(job->arena, (size_t)f->count, sizeof *bin);
    if (!bin) return ravel__arena_status(job->arena, "planning trees", job->err);
    ravel_status status = number_leaves(job, f, bin);
    if (status) return status;
    status = ravel__yard_make(f, 0, job->arena, &yard, job->err);
    if (!status) fills[o->tree_method](&yard, bin, o->dp);
    if (!status) status = ravel__yard_status(&yard, job->err);
    int32_t held = 0;
    for (int32_t b = 0; !status && b < yard.bins; b++) held += yard.bin[b].count > 0;
    *solution = (ravel__solution){ravel__steps_for(job->rules, yard.bins, o->dp), held};
    if (!status) ravel__yard_store(&yard, bin);
    for (int32_t i = 0; !status && i < job->count; i++) seat[i] = bin[f->leaf[i]];
    ravel__yard_free(&yard);
    return status;
}
