#include "plan/pack/fit.h"

#include "base/assert.h"
#include "base/rng.h"

#include <string.h>

/* ---- bitmap tree -------------------------------------------------------------------------------------------- */

/* Each level has a bit to spare, so that the search may step past its end. */
static ravel_status make_bitmap(ravel__fit *fit, ravel__arena *arena, int64_t cap, ravel_error *err) {
    size_t bits = (size_t)cap + 1, words;
    fit->head = ravel__arena_push(arena, bits, sizeof *fit->head);
    if (!fit->head) return ravel__no_memory(err, bits * sizeof *fit->head, "the index of open bins");
    do {
        words = bits / 64 + 1;
        uint64_t *level = ravel__arena_push(arena, words, sizeof *level);
        if (!level) return ravel__no_memory(err, words * sizeof *level, "the index of open bins");
        memset(level, 0, words * sizeof *level);
        fit->level[fit->levels++] = level;
        bits = words;
    } while (words > 1);
    return RAVEL_OK;
}

static void put_bitmap(ravel__fit *fit, int32_t bin, int64_t room) {
    RAVEL_ASSERT(room >= 0);
    int there = fit->level[0][room >> 6] >> (room & 63) & 1;
    fit->next[bin] = there ? fit->head[room] : -1;
    fit->head[room] = bin;
    for (int l = 0; !there && l < fit->levels; l++) {
        uint64_t *word = &fit->level[l][room >> 6], before = *word;
        *word |= UINT64_C(1) << (room & 63);
        if (before) return;
        room >>= 6;
    }
}

/* The least set bit at or after `at`, or -1: up until a word has one, then down to the leaf. */
static int64_t find_bitmap(const ravel__fit *fit, int64_t at) {
    for (int l = 0; l < fit->levels; l++) {
        uint64_t word = fit->level[l][at >> 6] >> (at & 63);
        if (word) {
            at += __builtin_ctzll(word);
            while (l-- > 0) at = at << 6 | __builtin_ctzll(fit->level[l][at]);
            return at;
        }
        at = (at >> 6) + 1;
    }
    return -1;
}

static int32_t take_bitmap(ravel__fit *fit, int64_t need, int64_t *room) {
    int64_t at = find_bitmap(fit, need);
    if (at < 0) return -1;
    int32_t bin = fit->head[at];
    *room = at;
    RAVEL_ASSERT(at >= need && bin >= 0);
    fit->head[at] = fit->next[bin];
    if (fit->next[bin] >= 0) return bin;
    for (int l = 0; l < fit->levels; l++) {
        uint64_t *word = &fit->level[l][at >> 6];
        *word &= ~(UINT64_C(1) << (at & 63));
        if (*word) return bin;
        at >>= 6;
    }
    return bin;
}

/* ---- treap -------------------------------------------------------------------------------------------------- */

/* Ordered by (room, bin); a parent's priority is above its children's. `next` holds left children. */
static int above(int32_t a, int32_t b) {
    return ravel__mix64((uint64_t)a) > ravel__mix64((uint64_t)b);
}

static int before(const ravel__fit *fit, int32_t a, int64_t room, int32_t bin) {
    return fit->room[a] != room ? fit->room[a] < room : a < bin;
}

/* Cuts the tree at `root` into what comes before (room, bin) and the rest, without recursion: two cut edges grow
 * downwards. */
static void cut(ravel__fit *fit, int32_t root, int64_t room, int32_t bin, int32_t *low, int32_t *high) {
    while (root >= 0) {
        if (before(fit, root, room, bin)) {
            *low = root;
            low = &fit->right[root];
            root = *low;
        } else {
            *high = root;
            high = &fit->next[root];
            root = *high;
        }
    }
    *low = -1;
    *high = -1;
}

static int32_t join(ravel__fit *fit, int32_t low, int32_t high) {
    int32_t root = -1, *seam = &root;
    while (low >= 0 && high >= 0) {
        if (above(low, high)) {
            *seam = low;
            seam = &fit->right[low];
            low = *seam;
        } else {
            *seam = high;
            seam = &fit->next[high];
            high = *seam;
        }
    }
    *seam = low >= 0 ? low : high;
    return root;
}

static void put_treap(ravel__fit *fit, int32_t bin, int64_t room) {
    int32_t *at = &fit->root;
    while (*at >= 0 && above(*at, bin)) at = before(fit, *at, room, bin) ? &fit->right[*at] : &fit->next[*at];
    RAVEL_ASSERT(room >= 0 && *at != bin);
    fit->room[bin] = room;
    cut(fit, *at, room, bin, &fit->next[bin], &fit->right[bin]);
    *at = bin;
}

static int32_t take_treap(ravel__fit *fit, int64_t need, int64_t *room) {
    int32_t *at = &fit->root, *best = NULL;
    while (*at >= 0) {
        if (fit->room[*at] >= need) {
            best = at;
            at = &fit->next[*at];
        } else {
            at = &fit->right[*at];
        }
    }
    if (!best) return -1;
    int32_t bin = *best;
    *best = join(fit, fit->next[bin], fit->right[bin]);
    *room = fit->room[bin];
    return bin;
}

/* ---- front -------------------------------------------------------------------------------------------------- */

ravel_status ravel__fit_make(ravel__fit *fit, ravel__arena *arena, int64_t cap, int32_t bins, ravel_error *err) {
    size_t n = (size_t)bins;
    memset(fit, 0, sizeof *fit);
    fit->root = -1;
    fit->next = ravel__arena_push(arena, n, sizeof *fit->next);
    if (!fit->next) return ravel__no_memory(err, n * sizeof *fit->next, "the index of open bins");
    if (cap <= (1 << 16) || cap <= 2 * (int64_t)bins) return make_bitmap(fit, arena, cap, err);
    fit->right = ravel__arena_push(arena, n, sizeof *fit->right);
    fit->room = ravel__arena_push(arena, n, sizeof *fit->room);
    if (!fit->right || !fit->room) return ravel__no_memory(err, n * 12, "the index of open bins");
    return RAVEL_OK;
}

void ravel__fit_put(ravel__fit *fit, int32_t bin, int64_t room) {
    if (fit->levels)
        put_bitmap(fit, bin, room);
    else
        put_treap(fit, bin, room);
}

int32_t ravel__fit_take(ravel__fit *fit, int64_t need, int64_t *room) {
    int32_t bin = fit->levels ? take_bitmap(fit, need, room) : take_treap(fit, need, room);
    RAVEL_ASSERT(bin < 0 || *room >= need);
    return bin;
}
