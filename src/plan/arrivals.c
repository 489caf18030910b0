/* Pushing: columns that grow, all or nothing, and ranks for groups. */
#include "plan/arrivals.h"

#include "base/assert.h"
#include "base/rng.h"

#include <string.h>

/* ---- create and free ---------------------------------------------------------------------------------------- */

void ravel_planner_options_default(ravel_planner_options *options) {
    *options =
        (ravel_planner_options){.size = sizeof *options, .fill = 0.95, .idle = 0.02, .max_wait = -1, .max_stale = -1};
}

static ravel_status check_options(const ravel_plan_options *o, const ravel_planner_options *p, ravel_error *err) {
    if (!(p->fill > 0 && p->fill <= 1))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "fill is %g; it must be above 0 and at most 1", p->fill);
    if (!(p->idle >= 0 && p->idle <= 1))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "idle is %g; it must be from 0 to 1", p->idle);
    if (p->max_wait < -1 || p->max_stale < -1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "max_wait is %lld and max_stale %lld; they must be -1 or more",
                               (long long)p->max_wait, (long long)p->max_stale);
    if (o->updates > 1 || o->samples_per_update)
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "arrivals are cut into updates by flushing; leave updates at 1 and samples-per-update at "
            "0");
    return RAVEL_OK;
}

/* The planner's own copy of an option's text, since the caller may free its copy first. */
static ravel_status own_text(const ravel_plan_options *o, const char **text, char **copy, ravel_error *err) {
    if (!*text) return RAVEL_OK;
    size_t bytes = strlen(*text) + 1;
    *copy = ravel__alloc(o->allocator, bytes);
    if (!*copy) return ravel__no_memory(err, bytes, "a planner");
    *text = memcpy(*copy, *text, bytes);
    return RAVEL_OK;
}

static void free_text(const ravel_plan_options *o, char *text) {
    if (text) ravel__release(o->allocator, text, strlen(text) + 1);
}

ravel_status ravel_planner_create(const ravel_plan_options *options, const ravel_planner_options *how,
                                  ravel_planner **planner, ravel_error *err) {
    ravel_plan_options own;
    ravel_planner_options waiting;
    ravel_planner_options_default(&waiting);
    if (how) memcpy(&waiting, how, how->size < sizeof waiting ? how->size : sizeof waiting);
    ravel_status status = ravel__options_read(options, &own, err);
    if (!status) status = check_options(&own, &waiting, err);
    if (status) return status;
    ravel_planner *p = ravel__calloc(own.allocator, 1, sizeof *p);
    ravel__u128 *total = ravel__calloc(own.allocator, (size_t)own.dp, sizeof *total);
    int64_t *volume = ravel__calloc(own.allocator, (size_t)own.dp, sizeof *volume);
    if (!p || !total || !volume) {
        ravel__release(own.allocator, p, sizeof *p);
        ravel__release(own.allocator, total, (size_t)own.dp * sizeof *total);
        ravel__release(own.allocator, volume, (size_t)own.dp * sizeof *volume);
        return ravel__no_memory(err, sizeof *p + (size_t)own.dp * 24, "a planner");
    }
    p->options = own;
    p->own = waiting;
    p->total = total;
    p->rank_volume = volume;
    p->cap = own.cp * own.budget / own.align;
    p->report.size = sizeof p->report;
    ravel__waiting_count(p);
    status = own_text(&p->options, &p->options.cp_widths, &p->widths, err);
    if (!status) status = own_text(&p->options, &p->options.cp_price, &p->prices, err);
    if (status)
        ravel_planner_free(p);
    else
        *planner = p;
    return status;
}

static void free_seats(ravel_planner *p) {
    ravel__release(p->options.allocator, p->seats.group, (size_t)p->seats.room * sizeof *p->seats.group);
    ravel__release(p->options.allocator, p->seats.rank, (size_t)p->seats.room * sizeof *p->seats.rank);
    memset(&p->seats, 0, sizeof p->seats);
}

void ravel_planner_free(ravel_planner *p) {
    if (!p) return;
    const ravel_allocator *allocator = p->options.allocator;
#define X(type, name) ravel__release(allocator, p->waiting.name, (size_t)p->waiting.room * sizeof(type));
    RAVEL__WAITING_LIST(X)
#undef X
    free_seats(p);
    free_text(&p->options, p->widths);
    free_text(&p->options, p->prices);
    ravel__release(allocator, p->total, (size_t)p->options.dp * sizeof *p->total);
    ravel__release(allocator, p->rank_volume, (size_t)p->options.dp * sizeof *p->rank_volume);
    ravel__release(allocator, p, sizeof *p);
}

int64_t ravel_planner_waiting(const ravel_planner *planner) {
    return planner->waiting.count;
}

void ravel_planner_advance(ravel_planner *planner, int64_t now, int64_t version) {
    if (now > planner->now) planner->now = now;
    if (version > planner->version) planner->version = version;
}

/* ---- sums --------------------------------------------------------------------------------------------------- */

static void count_row(ravel_planner *p, int64_t row) {
    const ravel__waiting *w = &p->waiting;
    RAVEL_ASSERT(row < w->count && w->count <= w->room && w->slots[row] >= 0);
    RAVEL_ASSERT(w->ranks[row] >= -1 && w->ranks[row] < p->options.dp);
    p->volume += w->slots[row];
    if (w->ranks[row] >= 0) p->rank_volume[w->ranks[row]] += w->slots[row];
    if (w->deadlines[row] < p->next_deadline) p->next_deadline = w->deadlines[row];
    if (w->versions[row] < p->oldest_version) p->oldest_version = w->versions[row];
}

void ravel__waiting_count(ravel_planner *p) {
    p->volume = p->wait_for = 0;
    p->next_deadline = p->oldest_version = INT64_MAX;
    memset(p->rank_volume, 0, (size_t)p->options.dp * sizeof *p->rank_volume);
    for (int64_t i = 0; i < p->waiting.count; i++) count_row(p, i);
}

ravel_plan_input ravel__waiting_input(const ravel_planner *p, const ravel__waiting *w) {
    int apart = p->options.layout == RAVEL_LAYOUT_PADDED_2D;
    ravel_plan_input input = {.size = sizeof input,
                              .count = w->count,
                              .lengths = w->lengths,
                              .prompts = apart ? w->prompts : NULL,
                              .responses = apart ? w->responses : NULL,
                              .costs = p->has_costs ? w->costs : NULL,
                              .groups = p->has_groups ? w->groups : NULL,
                              .homes = p->has_homes ? w->homes : NULL,
                              .shared = p->has_trees ? w->shared : NULL};
    return input;
}

void ravel__waiting_share(const ravel__waiting *w, const int32_t *rows, int64_t count, int64_t *shared) {
    int64_t before = -1;
    for (int64_t k = 0; k < count; k++) {
        int64_t least = before < 0 ? 0 : INT64_MAX;
        for (int64_t i = before + 1; i <= rows[k]; i++)
            if (w->shared[i] < least) least = w->shared[i];
        before = rows[k];
        RAVEL_ASSERT(k <= rows[k]); /* what is written was read */
        shared[k] = least;
    }
}

int64_t ravel__waiting_slot(const ravel_planner *p, int64_t length, int64_t shared) {
    int64_t slot = ravel__units(length - shared, p->options.align);
    return slot > 0 ? slot : 1;
}

/* ---- growing ------------------------------------------------------------------------------------------------ */

/* Room for `more` further rows in every column. A column that grew before another failed stays as it was to its users:
 * `room` is set when all have grown, and a column is always freed by the room it was last given. */
static ravel_status reserve(ravel_planner *p, int64_t more, ravel_error *err) {
    ravel__waiting *w = &p->waiting, grown = *w;
    if (w->count + more <= w->room) return RAVEL_OK;
    int64_t room = w->room ? w->room : 64;
    RAVEL_ASSERT(more > 0 && room > 0);
    while (room < w->count + more) room *= 2;
    memset(&grown, 0, sizeof grown);
    const ravel_allocator *allocator = p->options.allocator;
    int whole = 1;
#define X(type, name)                                                              \
    grown.name = whole ? ravel__alloc(allocator, (size_t)room * sizeof(type)) : 0; \
    whole = whole && grown.name;
    RAVEL__WAITING_LIST(X)
#undef X
    ravel__waiting *gone = whole ? w : &grown;
    int64_t gone_room = whole ? w->room : room;
#define X(type, name)                                                                    \
    if (whole && w->count) memcpy(grown.name, w->name, (size_t)w->count * sizeof(type)); \
    ravel__release(allocator, gone->name, (size_t)gone_room * sizeof(type));
    RAVEL__WAITING_LIST(X)
#undef X
    if (!whole) return ravel__no_memory(err, (size_t)room * 96, "samples that wait");
    RAVEL_ASSERT(room >= w->count + more);
    grown.count = w->count;
    grown.room = room;
    *w = grown;
    return RAVEL_OK;
}

/* ---- seats for groups --------------------------------------------------------------------------------------- */

static int64_t probe(const ravel__seats *s, int64_t group) {
    RAVEL_ASSERT(s->room > 0 && (s->room & (s->room - 1)) == 0 && s->count < s->room);
    uint64_t mask = (uint64_t)s->room - 1, at = ravel__mix64((uint64_t)group) & mask;
    while (s->rank[at] >= 0 && s->group[at] != group) at = (at + 1) & mask;
    return (int64_t)at;
}

/* At most half full after `more` further groups. */
static ravel_status reserve_seats(ravel_planner *p, int64_t more, ravel_error *err) {
    ravel__seats old = p->seats, grown = {NULL, NULL, 0, old.room ? old.room : 64};
    while (grown.room < 2 * (old.count + more)) grown.room *= 2;
    if (grown.room == old.room) return RAVEL_OK;
    grown.group = ravel__alloc(p->options.allocator, (size_t)grown.room * sizeof *grown.group);
    grown.rank = ravel__alloc(p->options.allocator, (size_t)grown.room * sizeof *grown.rank);
    if (!grown.group || !grown.rank) {
        ravel__release(p->options.allocator, grown.group, (size_t)grown.room * sizeof *grown.group);
        ravel__release(p->options.allocator, grown.rank, (size_t)grown.room * sizeof *grown.rank);
        return ravel__no_memory(err, (size_t)grown.room * 12, "the ranks of groups");
    }
    memset(grown.rank, 0xff, (size_t)grown.room * sizeof *grown.rank);
    for (int64_t i = 0; i < old.room; i++) {
        if (old.rank[i] < 0) continue;
        int64_t at = probe(&grown, old.group[i]);
        grown.group[at] = old.group[i];
        grown.rank[at] = old.rank[i];
        grown.count++;
    }
    RAVEL_ASSERT(grown.count == old.count && 2 * (grown.count + more) <= grown.room);
    free_seats(p);
    p->seats = grown;
    return RAVEL_OK;
}

/* The group's rank; a new group goes to the rank with the least cost. */
static int32_t seat_group(ravel_planner *p, int64_t group) {
    int64_t at = probe(&p->seats, group);
    if (p->seats.rank[at] >= 0) return p->seats.rank[at];
    int32_t best = 0;
    for (int32_t r = 1; r < p->options.dp; r++)
        if (p->total[r] < p->total[best]) best = r;
    RAVEL_ASSERT(best >= 0 && best < p->options.dp);
    p->seats.group[at] = group;
    p->seats.rank[at] = best;
    p->seats.count++;
    return best;
}

/* ---- pushing ------------------------------------------------------------------------------------------------ */

/* Every push of an update must have the same columns. */
static ravel_status check_columns(const ravel_planner *p, const ravel_plan_input *in, ravel_error *err) {
    const struct {
        const char *name;
        int now, before;
    } rows[] = {{"costs", in->costs != NULL, p->has_costs},
                {"groups", in->groups != NULL, p->has_groups},
                {"homes", in->homes != NULL, p->has_homes}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].now != rows[i].before && p->pushed)
            return ravel_error_set(
                err, RAVEL_E_ARGUMENT,
                "this push has %s%s and earlier ones of the update had %s; give them always or never",
                rows[i].now ? "" : "no ", rows[i].name, rows[i].now ? "none" : "some");
    if (in->updates)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "arrivals are cut into updates by flushing; leave out updates");
    if (p->waiting.count + in->count > RAVEL__MOST_SAMPLES)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%lld samples wait already; at most 2^29 can",
                               (long long)p->waiting.count);
    return RAVEL_OK;
}

/* Before the shift, which differs from push to push. */
static ravel__u128 cost_of(const ravel__rules *rules, const ravel_plan_input *in, int64_t row) {
    return (ravel__u128)ravel__sample_cost(rules, in, row) << rules->shift;
}

static void append(ravel_planner *p, const ravel__rules *rules, const ravel_plan_input *in, const int64_t *ids,
                   int64_t place) {
    int64_t row = in->order ? in->order[place] : place;
    RAVEL_ASSERT(row >= 0 && row < in->count && p->waiting.count < p->waiting.room);
    ravel__waiting *w = &p->waiting;
    int64_t at = w->count++;
    w->lengths[at] = ravel__length(in, row);
    w->prompts[at] = in->prompts ? in->prompts[row] : 0;
    w->responses[at] = in->prompts ? in->responses[row] : w->lengths[at];
    w->costs[at] = in->costs ? in->costs[row] : 0;
    w->groups[at] = in->groups ? in->groups[row] : 0;
    w->homes[at] = in->homes ? in->homes[row] : -1;
    w->ids[at] = ids ? ids[row] : p->next_id + row;
    w->shared[at] = rules->trees ? in->shared[place] : 0;
    int64_t prompt, slot = ravel__slot(rules, in, row, &prompt);
    int fits = slot <= rules->cap;
    w->slots[at] = !fits ? 0 : rules->trees ? ravel__waiting_slot(p, w->lengths[at], w->shared[at]) : slot;
    w->versions[at] = in->versions ? in->versions[row] : p->version;
    w->arrived[at] = p->now;
    w->arrived_steps[at] = p->steps_ever;
    w->deadlines[at] = in->deadlines ? in->deadlines[row] : INT64_MAX;
    int64_t latest;
    if (p->own.max_wait >= 0 && !__builtin_add_overflow(p->now, p->own.max_wait, &latest) && latest < w->deadlines[at])
        w->deadlines[at] = latest;
    w->ranks[at] = -1;
    if (rules->options.group_rule == RAVEL_GROUPS_RANK) {
        w->ranks[at] = seat_group(p, w->groups[at]);
        if (fits) p->total[w->ranks[at]] += cost_of(rules, in, row);
    }
    count_row(p, at);
}

ravel_status ravel_planner_push(ravel_planner *p, const ravel_plan_input *input, const int64_t *ids, ravel_error *err) {
    ravel__rules rules;
    ravel_plan_input own;
    ravel_status status = ravel__rules_make(input, &p->options, &rules, &own, err);
    if (!status) status = check_columns(p, &own, err);
    if (!status) status = reserve(p, own.count, err);
    if (!status && rules.options.group_rule == RAVEL_GROUPS_RANK) status = reserve_seats(p, own.count, err);
    if (status || own.count == 0) return status;
    if (!p->pushed) {
        p->has_costs = own.costs != NULL;
        p->has_groups = own.groups != NULL;
        p->has_homes = own.homes != NULL;
    }
    p->pushed = 1;
    p->has_trees = p->has_trees || rules.trees;
    for (int64_t i = 0; i < own.count; i++) append(p, &rules, &own, ids, i);
    if (!ids) p->next_id += own.count;
    return RAVEL_OK;
}
