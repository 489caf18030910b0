/* Bins as spans of leaves: weighing, adding, taking out. */
#include "plan/tree/bins.h"

#include "base/assert.h"

#include <string.h>

/* ---- tables ----------------------------------------------------------------------------------------------------- */

static void fill_minima(ravel__yard *y, int32_t levels) {
    const ravel__forest *f = y->f;
    for (int32_t i = 0; i < f->count; i++) y->least[0][i] = (uint32_t)f->shared[i];
    for (int32_t k = 1; k < levels; k++) {
        const uint32_t *below = y->least[k - 1];
        int32_t half = 1 << (k - 1);
        for (int32_t i = 0; i + 2 * half <= f->count; i++)
            y->least[k][i] = below[i] < below[i + half] ? below[i] : below[i + half];
    }
}

static void fill_sums(ravel__yard *y) {
    const ravel__forest *f = y->f;
    y->own_tokens[0] = y->own_cost[0] = 0;
    for (int32_t i = 0; i < f->count; i++) {
        y->own_tokens[i + 1] = y->own_tokens[i] + f->length[i] - f->shared[i];
        y->own_cost[i + 1] = y->own_cost[i] + f->cost[i] - f->twice[i];
    }
}

ravel_status ravel__yard_make(const ravel__forest *f, int64_t work, ravel__arena *arena, ravel__yard *y,
                              ravel_error *err) {
    size_t n = (size_t)f->count + 1;
    *y = (ravel__yard){.f = f, .arena = arena, .work = work};
    ravel__arena_init(&y->spans, arena->allocator, 64 * n + 4096);
    RAVEL__PUSH(arena, y->level, n + 1);
    RAVEL__PUSH(arena, y->own_tokens, n);
    RAVEL__PUSH(arena, y->own_cost, n);
    ravel_status status = ravel__arena_status(arena, "the bins of trees", err);
    if (status) return status;
    y->level[0] = y->level[1] = 0;
    for (size_t i = 2; i < n; i++) y->level[i] = (uint8_t)(y->level[i / 2] + 1);
    int32_t levels = y->level[f->count] + 1;
    uint32_t *table = ravel__arena_push(arena, (size_t)levels * n, sizeof *table);
    RAVEL__PUSH(arena, y->least, (size_t)levels);
    status = ravel__arena_status(arena, "the bins of trees", err);
    if (status) return status;
    for (int32_t k = 0; k < levels; k++) y->least[k] = table + (size_t)k * n;
    fill_minima(y, levels);
    fill_sums(y);
    return RAVEL_OK;
}

void ravel__yard_free(ravel__yard *y) {
    ravel__arena_free(&y->spans);
}

/* ---- weighing --------------------------------------------------------------------------------------------------- */

ravel__weight ravel__span_between(const ravel__yard *y, ravel__span s, int32_t left, int32_t right) {
    const ravel__rules *rules = y->f->rules;
    ravel__weight w = ravel__span_weight(y, s);
    if (left >= 0) {
        int64_t shared = ravel__leaves_share(y, left, s.from);
        w.tokens -= shared;
        w.cost -= ravel__cost_of(rules, shared);
    }
    if (right >= 0) {
        int64_t shared = ravel__leaves_share(y, s.to - 1, right);
        w.tokens -= shared;
        w.cost -= ravel__cost_of(rules, shared);
    }
    if (left >= 0 && right >= 0) {
        int64_t both = ravel__leaves_share(y, left, right);
        w.tokens += both;
        w.cost += ravel__cost_of(rules, both);
    }
    return w;
}

/* The first span that begins after a leaf. */
static int32_t place_after(const ravel__tree_bin *b, int32_t leaf) {
    int32_t low = 0, high = b->count;
    while (low < high) {
        int32_t mid = (low + high) / 2;
        if (b->spans[mid].from > leaf)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

ravel__weight ravel__weigh(ravel__yard *y, const ravel__tree_bin *b, const ravel__span *spans, int32_t count) {
    ravel__weight sum = {0, 0, 0};
    int32_t before = -1; /* the last leaf that was added */
    y->work -= count;
    for (int32_t i = 0; i < count; i++) {
        int32_t at = place_after(b, spans[i].from), left = at ? b->spans[at - 1].to - 1 : -1;
        int32_t right = at < b->count ? b->spans[at].from : -1;
        if (before > left) left = before;
        ravel__weight w = ravel__span_between(y, spans[i], left, right);
        sum.tokens += w.tokens;
        sum.cost += w.cost;
        sum.rows += w.rows;
        before = spans[i].to - 1;
    }
    return sum;
}

/* ---- changing --------------------------------------------------------------------------------------------------- */

/* Without memory nothing changes any more: what was not taken cannot be given back. */
static int grow(ravel__yard *y, ravel__tree_bin *b) {
    if (ravel__yard_failed(y)) return 0;
    if (b->count < b->room) return 1;
    int32_t room = b->room ? 2 * b->room : 4;
    ravel__span *spans = ravel__arena_push(&y->spans, (size_t)room, sizeof *spans);
    if (!spans) return 0;
    if (b->count) memcpy(spans, b->spans, (size_t)b->count * sizeof *spans);
    b->spans = spans;
    b->room = room;
    return 1;
}

static void insert(ravel__tree_bin *b, int32_t at, ravel__span s) {
    memmove(b->spans + at + 1, b->spans + at, (size_t)(b->count - at) * sizeof *b->spans);
    b->spans[at] = s;
    b->count++;
}

static void erase(ravel__tree_bin *b, int32_t at) {
    b->count--;
    memmove(b->spans + at, b->spans + at + 1, (size_t)(b->count - at) * sizeof *b->spans);
}

void ravel__bin_take(ravel__yard *y, ravel__tree_bin *b, ravel__span s) {
    int32_t at = place_after(b, s.from), left = at ? b->spans[at - 1].to - 1 : -1;
    int32_t right = at < b->count ? b->spans[at].from : -1;
    if (!grow(y, b)) return;
    RAVEL_ASSERT(s.from < s.to && left < s.from && (right < 0 || right >= s.to));
    ravel__weight w = ravel__span_between(y, s, left, right);
    b->tokens += w.tokens;
    b->cost += w.cost;
    b->rows += w.rows;
    if (left >= 0 && left + 1 == s.from) { /* they join */
        b->spans[at - 1].to = s.to;
        if (right != s.to) return;
        b->spans[at - 1].to = b->spans[at].to;
        erase(b, at);
    } else if (right == s.to) {
        b->spans[at].from = s.from;
    } else {
        insert(b, at, s);
    }
}

void ravel__bin_give(ravel__yard *y, ravel__tree_bin *b, ravel__span s) {
    int32_t at = place_after(b, s.from) - 1;
    if (!grow(y, b)) return;
    ravel__span whole = b->spans[at];
    RAVEL_ASSERT(at >= 0 && s.from < s.to && whole.from <= s.from && s.to <= whole.to);
    int32_t left = whole.from < s.from ? s.from - 1 : at ? b->spans[at - 1].to - 1 : -1;
    int32_t right = s.to < whole.to ? s.to : at + 1 < b->count ? b->spans[at + 1].from : -1;
    ravel__weight w = ravel__span_between(y, s, left, right);
    b->tokens -= w.tokens;
    b->cost -= w.cost;
    b->rows -= w.rows;
    if (whole.from < s.from) {
        b->spans[at].to = s.from;
        if (s.to < whole.to) insert(b, at + 1, (ravel__span){s.to, whole.to});
    } else if (s.to < whole.to) {
        b->spans[at].from = s.to;
    } else {
        erase(b, at);
    }
}

/* ---- all bins --------------------------------------------------------------------------------------------------- */

ravel__tree_bin *ravel__yard_open(ravel__yard *y) {
    if (y->bins == y->room) {
        int32_t room = y->room ? 2 * y->room : 64;
        ravel__tree_bin *bin = ravel__arena_push(&y->spans, (size_t)room, sizeof *bin);
        if (!bin) return NULL;
        if (y->bins) memcpy(bin, y->bin, (size_t)y->bins * sizeof *bin);
        memset(bin + y->bins, 0, (size_t)(room - y->bins) * sizeof *bin);
        y->bin = bin;
        y->room = room;
    }
    ravel__tree_bin *b = &y->bin[y->bins++]; /* the memory of a bin that was there is used again */
    b->count = 0;
    b->rows = b->tokens = b->cost = 0;
    return b;
}

void ravel__yard_clear(ravel__yard *y) {
    y->bins = 0;
}

void ravel__yard_load(ravel__yard *y, const int32_t *bin, int32_t bins) {
    ravel__yard_clear(y);
    while (y->bins < bins && ravel__yard_open(y)) {}
    for (int32_t i = 0, to; i < y->f->count && !ravel__yard_failed(y); i = to) {
        for (to = i + 1; to < y->f->count && bin[to] == bin[i];) to++;
        ravel__bin_take(y, &y->bin[bin[i]], (ravel__span){i, to});
    }
}

void ravel__yard_store(const ravel__yard *y, int32_t *bin) {
    for (int32_t b = 0; b < y->bins; b++)
        for (int32_t k = 0; k < y->bin[b].count; k++)
            for (int32_t i = y->bin[b].spans[k].from; i < y->bin[b].spans[k].to; i++) bin[i] = b;
}
