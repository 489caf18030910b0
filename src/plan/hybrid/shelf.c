/* One micro-step: groups that all take at most a given time.
 *
 * The longest remaining sample opens a group of the narrowest width that is fast enough; then the longest that fit fill
 * it up, in time and in slots, until the pool has no rank left:
 *
 *     time limit ------------------------------
 *                |  sample  |short| ' |short|     groups side by side, as wide as they have ranks
 *                |  4 ranks |  1  |1  |  1  |
 *
 * Ranks that are left over widen the slowest group, as long as that makes it faster. */
#include "plan/hybrid/hybrid.h"
#include "plan/pack/remaining.h"

#include "base/assert.h"

/* ---- what remains --------------------------------------------------------------------------------------------- */

enum { LOOK = 16 }; /* costs that do not follow lengths: places looked at for one that is short enough */

/* The first remaining place at or after `from` of at most this cost and this length; r->count: none. */
static int32_t remaining_within(const ravel__rest *r, int64_t cost, int64_t length, int32_t from) {
    int32_t low = from, count = r->count - from, by_length = r->tasks->by_length;
    for (int32_t reach = 8; reach < count; reach *= 4) { /* what fits is often near */
        int32_t at = from + reach;
        if ((r->cost[at] <= cost) & (!by_length | (r->length[at] <= length))) {
            count = at - low;
            break;
        }
        low = at + 1;
    }
    count = count < r->count - low ? count : r->count - low;
    while (count > 0) {
        int32_t half = count / 2, middle = low + half;
        int fits = (r->cost[middle] <= cost) & (!by_length | (r->length[middle] <= length));
        low = fits ? low : middle + 1;
        count = fits ? half : count - half - 1;
    }
    RAVEL_ASSERT(low >= from && low <= r->count);
    low = ravel__skip_from(r->skip, low);
    for (int32_t looks = 0; low < r->count && r->length[low] > length; low = ravel__skip_from(r->skip, low + 1))
        if (++looks == LOOK) return r->count;
    return low;
}

/* ---- groups ----------------------------------------------------------------------------------------------------- */

/* Opens a group at `place` and fills it with what fits; `fill_limit`: the most cost for all but the first. */
static void fill_group(ravel__rest *r, ravel__shelf *s, int32_t place, int32_t w, int64_t fill_limit) {
    const ravel__tasks *t = r->tasks;
    ravel__group *g = &s->group[s->groups++];
    int64_t room = t->widths->room[w], multiple = t->widths->multiple[w];
    *g = (ravel__group){.width = w, .first = s->members};
    while (place < r->count) {
        g->cost += r->cost[place];
        g->slots += ravel__width_slot(t->widths, r->length[place], w);
        s->value += t->worth[r->left[place]];
        s->member[s->members++] = place;
        r->skip[place] = place + 1;
        RAVEL_ASSERT(g->slots <= room);
        int64_t left = room - g->slots; /* a multiple too */
        if (++g->count >= t->rules->most || left < multiple || g->cost >= fill_limit) break;
        place = remaining_within(r, fill_limit - g->cost, left, place);
    }
    s->ranks_free -= t->widths->width[w];
    RAVEL_ASSERT(s->ranks_free >= 0 && s->members <= r->count && g->count <= t->rules->most);
}

static int64_t slots_at(const ravel__rest *r, const ravel__shelf *s, const ravel__group *g, int32_t w) {
    int64_t slots = 0;
    for (int32_t i = g->first; i < g->first + g->count; i++)
        slots += ravel__width_slot(r->tasks->widths, r->length[s->member[i]], w);
    return slots;
}

static int32_t slowest(const ravel__widths *widths, ravel__shelf *s) {
    int32_t worst = 0;
    s->time = 0;
    for (int32_t g = 0; g < s->groups; g++) {
        int64_t time = ravel__group_time(widths, s->group[g].cost, s->group[g].width);
        if (time <= s->time) continue;
        s->time = time;
        worst = g;
    }
    return worst;
}

/* The slowest group takes the next width while there are ranks for it. */
static void widen_slowest(const ravel__rest *r, ravel__shelf *s) {
    const ravel__widths *widths = r->tasks->widths;
    for (;;) {
        ravel__group *g = &s->group[slowest(widths, s)];
        int32_t next = g->width + 1;
        if (next >= widths->count || widths->width[next] - widths->width[g->width] > s->ranks_free) return;
        int64_t slots = slots_at(r, s, g, next);
        if (slots > widths->room[next] || ravel__group_time(widths, g->cost, next) >= s->time) return;
        s->ranks_free -= widths->width[next] - widths->width[g->width];
        g->width = next;
        g->slots = slots;
        RAVEL_ASSERT(s->ranks_free >= 0 && slots <= widths->room[next]);
    }
}

void ravel__shelf_fill(ravel__rest *r, int64_t time, int32_t fill, ravel__shelf *s) {
    const ravel__widths *widths = r->tasks->widths;
    int64_t limit[RAVEL__MOST_WIDTHS], fill_limit[RAVEL__MOST_WIDTHS];
    ravel__time_limits(widths, time, limit);
    ravel__time_limits(widths, time / 16 * fill, fill_limit);
    if (widths->width[0] == 1) fill_limit[0] = limit[0];
    s->groups = s->members = 0;
    s->value = 0;
    s->ranks_free = widths->pool;
    int32_t narrow = widths->width[0];
    for (int32_t place = 0; s->ranks_free >= narrow; place++) {
        place = ravel__skip_from(r->skip, place);
        if (place >= r->count) break;
        int32_t w = ravel__task_width(r->tasks, r->left[place], limit);
        if (w >= 0 && widths->width[w] <= s->ranks_free) fill_group(r, s, place, w, fill_limit[w]);
    }
    if (s->groups) widen_slowest(r, s);
    for (int32_t i = 0; i < s->members; i++) r->skip[s->member[i]] = s->member[i]; /* only those were changed */
}
