/* The methods of other frameworks, by name: next-fit, first-fit, best-fit, modified first-fit, fixed counts.
 *
 * In the packed layout, first-fit decreasing is made bin by bin: a bin takes the longest remaining sample that fits,
 * again and again. That is the same packing as looking for the first bin for every sample, and needs only "the longest
 * remaining sample that fits a given room" (remaining.h). Best-fit decreasing keeps the open bins in an index by room
 * (fit.h).
 *
 * In the padded layouts, taking longest first, a bin's width is fixed by its first sample and the bins before it are
 * full, so first-fit, best-fit and next-fit are the same. With prompts and responses padded apart they differ; the fits
 * then look at the last few open bins, since older ones are nearly full. */
#include "plan/pack/fit.h"
#include "plan/pack/remaining.h"

#include "base/assert.h"
#include "base/sort.h"

#include <string.h>

static ravel_status no_memory(const ravel__job *job, size_t bytes) {
    return ravel__no_memory(job->err, bytes, "packing");
}

/* ---- next-fit ----------------------------------------------------------------------------------------------- */

/* `order` NULL: longest first. */
static void next_fit(const ravel__job *job, const int32_t *order, int64_t most, int32_t *bin, int32_t *bins) {
    ravel__bin open;
    memset(&open, 0, sizeof open);
    int32_t now = 0;
    for (int32_t i = 0; i < job->pool->count; i++) {
        int32_t sample = order ? order[i] : i;
        if (open.rows && (open.rows >= most || !ravel__bin_fits(job->rules, job->pool, &open, sample))) {
            memset(&open, 0, sizeof open);
            now++;
        }
        ravel__bin_add(job->rules, job->pool, &open, sample);
        RAVEL_ASSERT(open.size <= job->rules->cap && open.rows <= job->rules->most);
        bin[sample] = now;
    }
    RAVEL_ASSERT(now < job->pool->count || !job->pool->count);
    *bins = job->pool->count ? now + 1 : 0;
}

/* Pool indices in the order of their rows. */
static int32_t *original_order(const ravel__job *job) {
    size_t n = (size_t)job->pool->count;
    uint32_t *keys = ravel__arena_push(job->arena, n, sizeof *keys);
    uint32_t *spare = ravel__arena_push(job->arena, n, sizeof *spare);
    int32_t *order = ravel__arena_push(job->arena, n, 4), *spare_order = ravel__arena_push(job->arena, n, 4);
    if (!keys || !spare || !order || !spare_order) {
        no_memory(job, n * 16);
        return NULL;
    }
    for (int32_t i = 0; i < job->pool->count; i++) {
        keys[i] = (uint32_t)job->pool->row[i];
        order[i] = i;
    }
    ravel__sort_u32(keys, order, spare, spare_order, n);
    return order;
}

static ravel_status in_order(const ravel__job *job, int64_t most, int32_t *bin, int32_t *bins) {
    ravel__mark mark = ravel__arena_mark(job->arena);
    int32_t *order = original_order(job);
    if (order) next_fit(job, order, most, bin, bins);
    ravel__arena_rewind(job->arena, mark);
    return order ? RAVEL_OK : RAVEL_E_MEMORY;
}

ravel_status ravel__pack_next_fit(const ravel__job *job, int32_t *bin, int32_t *bins) {
    return in_order(job, INT64_MAX, bin, bins);
}

ravel_status ravel__pack_fixed_count(const ravel__job *job, int32_t *bin, int32_t *bins) {
    return in_order(job, job->rules->options.count, bin, bins);
}

ravel_status ravel__pack_as_is(const ravel__job *job, int32_t *bin, int32_t *bins) {
    return in_order(job, 1, bin, bins);
}

ravel_status ravel__pack_next_fit_decreasing(const ravel__job *job, int32_t *bin, int32_t *bins) {
    next_fit(job, NULL, INT64_MAX, bin, bins);
    return RAVEL_OK;
}

/* ---- padded: fits over the last few open bins --------------------------------------------------------------- */

enum { WINDOW = 64 };

/* The bin of the last few for a sample: the first that it fits, or the one whose rectangle grows by least; -1: none. */
static int32_t look_back(const ravel__job *job, const ravel__bin *open, int32_t made, int32_t sample, int best) {
    int32_t choice = -1;
    int64_t least = INT64_MAX;
    for (int32_t b = made > WINDOW ? made - WINDOW : 0; b < made; b++) {
        const ravel__bin *bin = &open[b % WINDOW];
        int64_t size = ravel__bin_size_with(job->rules, job->pool, bin, sample);
        if (size > job->rules->cap || bin->rows >= job->rules->most || size - bin->size >= least) continue;
        least = size - bin->size;
        choice = b;
        if (!best) break;
    }
    return choice;
}

static void window_fit(const ravel__job *job, int best, int32_t *bin, int32_t *bins) {
    ravel__bin open[WINDOW];
    int32_t made = 0;
    for (int32_t i = 0; i < job->pool->count; i++) {
        bin[i] = look_back(job, open, made, i, best);
        if (bin[i] < 0) {
            bin[i] = made++;
            memset(&open[bin[i] % WINDOW], 0, sizeof *open);
        }
        ravel__bin_add(job->rules, job->pool, &open[bin[i] % WINDOW], i);
        RAVEL_ASSERT(open[bin[i] % WINDOW].size <= job->rules->cap);
    }
    *bins = made;
}

static int is_packed(const ravel__job *job) {
    return job->rules->options.layout == RAVEL_LAYOUT_PACKED;
}

/* ---- best-fit decreasing ------------------------------------------------------------------------------------ */

/* Into bins of at most `cap`; a sample that is longer has a bin of its own. */
ravel_status ravel__pack_best_fit(const ravel__job *job, int64_t cap, int32_t *bin, int32_t *bins) {
    const ravel__pool *pool = job->pool;
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__fit fit;
    int capped = job->rules->most < pool->count;
    int32_t made = 0, *rows = ravel__arena_push(job->arena, capped ? (size_t)pool->count : 0, sizeof *rows);
    ravel_status status = ravel__fit_make(&fit, job->arena, cap, pool->count, job->err);
    if (!status && !rows) status = no_memory(job, (size_t)pool->count * sizeof *rows);
    for (int32_t i = 0; !status && i < pool->count; i++) {
        int64_t slot = pool->slot[i], room = slot > cap ? slot : cap;
        int32_t b = slot > cap ? -1 : ravel__fit_take(&fit, slot, &room);
        if (b < 0) {
            b = made++;
            if (capped) rows[b] = 0;
        }
        RAVEL_ASSERT(room >= slot && b < pool->count);
        bin[i] = b;
        if (!capped || ++rows[b] < job->rules->most) ravel__fit_put(&fit, b, room - slot);
    }
    ravel__arena_rewind(job->arena, mark);
    *bins = made;
    return status;
}

ravel_status ravel__pack_bfd(const ravel__job *job, int32_t *bin, int32_t *bins) {
    if (is_packed(job)) return ravel__pack_best_fit(job, job->rules->cap, bin, bins);
    window_fit(job, 1, bin, bins);
    return RAVEL_OK;
}

/* ---- first-fit decreasing ------------------------------------------------------------------------------------- */

/* Bins from number `made` on, each filled with the longest that fits until none does. */
static int32_t fill_new_bins(const ravel__job *job, ravel__remaining *r, int32_t *bin, int32_t made) {
    for (int32_t first = ravel__remaining_from(r, 0); first < r->count; first = ravel__remaining_from(r, first)) {
        int64_t room = job->rules->cap;
        int32_t rows = 0;
        for (int32_t i = first; i < r->count && rows < job->rules->most; i = ravel__remaining_within(r, room, i)) {
            bin[i] = made;
            rows++;
            room -= r->slot[i];
            RAVEL_ASSERT(room >= 0);
            ravel__remaining_take(r, i);
        }
        made++;
    }
    return made;
}

ravel_status ravel__pack_ffd(const ravel__job *job, int32_t *bin, int32_t *bins) {
    if (!is_packed(job)) {
        window_fit(job, 0, bin, bins);
        return RAVEL_OK;
    }
    ravel__mark mark = ravel__arena_mark(job->arena);
    ravel__remaining r;
    int ready = ravel__remaining_make(job, &r);
    if (ready) *bins = fill_new_bins(job, &r, bin, 0);
    ravel__arena_rewind(job->arena, mark);
    return ready ? RAVEL_OK : no_memory(job, (size_t)job->pool->count * sizeof *r.skip);
}

/* ---- modified first-fit decreasing -------------------------------------------------------------------------- */

/* Johnson and Garey's: samples over half a bin open one each (A). Left to right each of these bins takes the longest
 * sample over a third (B) that fits; right to left those without one take the two that fit best over a sixth (C: the
 * shortest and the longest beside it); left to right all take what still fits; the rest is first-fit in new bins. */
typedef struct mffd {
    ravel__remaining left;
    int64_t *room;  /* of the A bins */
    int32_t *rows;  /* in them */
    int32_t big;    /* A bins */
    int32_t over_3; /* samples over a third are before this index */
    int32_t over_6;
} mffd;

static void place(mffd *m, int32_t *bin, int32_t b, int32_t sample) {
    bin[sample] = b;
    m->room[b] -= m->left.slot[sample];
    m->rows[b]++;
    RAVEL_ASSERT(m->room[b] >= 0);
    ravel__remaining_take(&m->left, sample);
}

static void add_seconds(mffd *m, int64_t most, int32_t *bin) {
    for (int32_t b = 0; b < m->big && m->rows[b] < most; b++) {
        int32_t i = ravel__remaining_within(&m->left, m->room[b], m->big);
        if (i < m->over_3) place(m, bin, b, i);
    }
}

static void add_pairs(mffd *m, int64_t most, int32_t *bin) {
    int32_t last = m->over_6 - 1; /* the shortest C that may remain */
    for (int32_t b = m->big - 1; b >= 0 && most >= 3; b--) {
        if (m->rows[b] > 1) continue;
        while (last >= m->over_3 && m->left.skip[last] != last) last--;
        int32_t second = last - 1;
        while (second >= m->over_3 && m->left.skip[second] != second) second--;
        if (second < m->over_3) return;
        if ((int64_t)m->left.slot[last] + m->left.slot[second] > m->room[b]) continue;
        place(m, bin, b, last);
        int32_t i = ravel__remaining_within(&m->left, m->room[b], m->over_3);
        if (i < m->over_6) place(m, bin, b, i);
    }
}

static void add_rest(mffd *m, int64_t most, int32_t *bin) {
    for (int32_t b = 0; b < m->big; b++)
        while (m->rows[b] < most) {
            int32_t i = ravel__remaining_within(&m->left, m->room[b], m->big);
            if (i >= m->left.count) break;
            place(m, bin, b, i);
        }
}

static int32_t first_at_most(const ravel__pool *pool, int64_t slot) {
    int32_t low = 0, high = pool->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (pool->slot[middle] <= slot)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

ravel_status ravel__pack_mffd(const ravel__job *job, int32_t *bin, int32_t *bins) {
    if (!is_packed(job)) return ravel__pack_ffd(job, bin, bins);
    ravel__mark mark = ravel__arena_mark(job->arena);
    int64_t cap = job->rules->cap, most = job->rules->most;
    mffd m;
    m.big = first_at_most(job->pool, cap / 2);
    m.over_3 = first_at_most(job->pool, cap / 3);
    m.over_6 = first_at_most(job->pool, cap / 6);
    m.room = ravel__arena_push(job->arena, (size_t)m.big, sizeof *m.room);
    m.rows = ravel__arena_push(job->arena, (size_t)m.big, sizeof *m.rows);
    if (!m.room || !m.rows || !ravel__remaining_make(job, &m.left)) {
        ravel__arena_rewind(job->arena, mark);
        return no_memory(job, (size_t)job->pool->count * sizeof *m.left.skip);
    }
    RAVEL_ASSERT(m.big <= m.over_3 && m.over_3 <= m.over_6 && m.over_6 <= job->pool->count);
    for (int32_t b = 0; b < m.big; b++) {
        m.room[b] = cap;
        m.rows[b] = 0;
        place(&m, bin, b, b);
    }
    if (most > 1) {
        add_seconds(&m, most, bin);
        add_pairs(&m, most, bin);
        add_rest(&m, most, bin);
    }
    *bins = fill_new_bins(job, &m.left, bin, m.big);
    RAVEL_ASSERT(*bins >= m.big && *bins <= job->pool->count);
    ravel__arena_rewind(job->arena, mark);
    return RAVEL_OK;
}
