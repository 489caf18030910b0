#include "refit/model/plan.h"

#include "base/assert.h"
#include "base/hash.h"
#include "base/sort.h"

#include <stdio.h>
#include <string.h>

enum { REST_MOST = 64 };

/* ---- the index of a cut --------------------------------------------------------------------------------- */

typedef struct group {
    ravel__box box;
    int64_t end_so_far;      /* the largest end along the axis of this and all groups before */
    const int32_t *replicas; /* [count] senders, ascending */
    int32_t count;
} group;

/* How a box of a cut is put together. */
typedef struct pattern pattern;
struct pattern {
    pattern *next; /* of the same cut */
    ravel__box box;
    const ravel__piece *pieces;
    int32_t count;
};

typedef struct cut_index {
    int32_t axis;
    int32_t count;
    group *groups; /* NULL: not made yet */
    pattern *patterns;
} cut_index;

typedef struct planner {
    const ravel__directory *d;
    const ravel__holding *sink;
    const ravel__refit_plan_place *place;
    ravel__refit_plan *plan;
    ravel__arena scratch;
    cut_index *indexes;      /* [cuts] */
    const pattern **of_item; /* [items]; NULL: none */
    int32_t *tensor;         /* [items] of the directory */
    ravel__differences *list;
    ravel_error *err;
} planner;

static ravel_status no_memory(const planner *p) {
    return ravel__no_memory(p->err, 0, "a plan");
}

/* The dimension with the most different starts among the first holders: along it boxes are told apart best. */
static int32_t best_axis(const ravel__cut *cut) {
    RAVEL_ASSERT(cut->holders >= 1);
    int32_t best = 0, most = -1;
    for (int32_t d = 0; d < cut->ndim; d++) {
        int32_t changes = 0;
        int64_t last = -1;
        for (int32_t h = 0; h < cut->holders; h++) {
            int64_t start = cut->coords[2 * (int64_t)h * cut->ndim + d];
            changes += start != last;
            last = start;
        }
        if (changes > most) best = d, most = changes;
    }
    return best;
}

/* Equal boxes get equal keys; unequal ones may, too, and are told apart when they are compared. */
static uint64_t hash_box(const ravel__box *box) {
    ravel__hash h = ravel__hash_begin(1);
    ravel__hash_i64s(&h, box->start, (size_t)box->ndim);
    ravel__hash_i64s(&h, box->extent, (size_t)box->ndim);
    return ravel__hash_end(h);
}

typedef struct sorting {
    uint64_t *keys, *spare_keys;
    int32_t *order, *spare_order;
} sorting;

static int make_sorting(ravel__arena *arena, size_t count, sorting *s) {
    s->keys = ravel__arena_push(arena, count + 1, sizeof *s->keys);
    s->spare_keys = ravel__arena_push(arena, count + 1, sizeof *s->keys);
    s->order = ravel__arena_push(arena, count + 1, sizeof *s->order);
    s->spare_order = ravel__arena_push(arena, count + 1, sizeof *s->order);
    return s->keys && s->spare_keys && s->order && s->spare_order;
}

static void sort(sorting *s, size_t count) {
    ravel__sort_u64(s->keys, s->order, s->spare_keys, s->spare_order, count);
}

/* Groups holders with equal boxes. Holders come from the last to the first sender, so replicas are filled backwards. */
static int32_t group_holders(planner *p, const ravel__cut *cut, sorting *s, group *groups, int32_t *replicas) {
    int32_t count = 0, used = 0;
    for (int32_t h = 0; h < cut->holders; h++) {
        ravel__box box = ravel__cut_box(cut, cut->holders - 1 - h);
        s->keys[h] = hash_box(&box);
        s->order[h] = cut->holders - 1 - h;
    }
    sort(s, (size_t)cut->holders);
    (void)p;
    for (int32_t i = 0; i < cut->holders; i++) {
        ravel__box box = ravel__cut_box(cut, s->order[i]);
        if (ravel__box_count(&box) == 0) continue;
        group *last = count > 0 ? &groups[count - 1] : NULL;
        if (!last || !ravel__box_equal(&last->box, &box)) {
            groups[count] = (group){.box = box, .replicas = replicas + used};
            last = &groups[count++];
        }
        RAVEL_ASSERT(count > 0 && used < cut->holders && s->order[i] >= 0 && s->order[i] < cut->holders);
        replicas[used++] = cut->senders[s->order[i]];
        last->count++;
    }
    return count;
}

static ravel_status make_index(planner *p, int32_t number) {
    const ravel__cut *cut = &p->d->cuts[number];
    cut_index *index = &p->indexes[number];
    size_t holders = (size_t)cut->holders;
    int32_t *replicas = ravel__arena_push(&p->plan->arena, holders, sizeof *replicas);
    group *groups = ravel__arena_push(&p->scratch, holders, sizeof *groups);
    index->groups = ravel__arena_push(&p->scratch, holders, sizeof *groups);
    sorting s;
    if (!replicas || !groups || !index->groups || !make_sorting(&p->scratch, holders, &s)) return no_memory(p);
    RAVEL_ASSERT(number >= 0 && number < p->d->cut_count);
    index->axis = best_axis(cut);
    index->count = group_holders(p, cut, &s, groups, replicas);
    for (int32_t g = 0; g < index->count; g++) {
        s.keys[g] = cut->ndim > 0 ? (uint64_t)groups[g].box.start[index->axis] : 0;
        s.order[g] = g;
    }
    sort(&s, (size_t)index->count);
    int64_t end = 0;
    for (int32_t g = 0; g < index->count; g++) {
        group *to = &index->groups[g];
        *to = groups[s.order[g]];
        int64_t its = cut->ndim > 0 ? to->box.start[index->axis] + to->box.extent[index->axis] : 1;
        end = its > end ? its : end;
        RAVEL_ASSERT(g == 0 || to[-1].end_so_far <= end);
        to->end_so_far = end;
    }
    return RAVEL_OK;
}

/* The first group that starts at or behind `end` along the axis. */
static int32_t first_behind(const cut_index *index, int64_t end) {
    int32_t low = 0, high = index->count;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (index->groups[middle].box.start[index->axis] < end)
            low = middle + 1;
        else
            high = middle;
    }
    RAVEL_ASSERT(low == index->count || index->groups[low].box.start[index->axis] >= end);
    return low;
}

/* ---- patterns ------------------------------------------------------------------------------------------- */

typedef struct cover {
    ravel__box rest[REST_MOST];
    int32_t rest_count;
    ravel__piece *pieces;
    int32_t count, room;
} cover;

/* Takes from what is left to be covered what the group has. */
static ravel_status take_group(planner *p, const group *g, cover *c, const char *name) {
    ravel__box next[REST_MOST], meet;
    int32_t next_count = 0;
    for (int32_t i = 0; i < c->rest_count; i++) {
        if (next_count + 2 * RAVEL_REFIT_DIMS > REST_MOST)
            return ravel_error_set(p->err, RAVEL_E_UNSUPPORTED, "\"%s\" is cut too irregularly to plan", name);
        if (ravel__box_meet(&c->rest[i], &g->box, &meet)) {
            if (c->count == c->room) {
                int32_t room = 2 * c->room + 16;
                ravel__piece *more = ravel__arena_push(&p->plan->arena, (size_t)room, sizeof *more);
                if (!more) return no_memory(p);
                if (c->count > 0) memcpy(more, c->pieces, (size_t)c->count * sizeof *more);
                c->pieces = more;
                c->room = room;
            }
            c->pieces[c->count++] = (ravel__piece){
                .box = meet, .count = ravel__box_count(&meet), .replicas = g->replicas, .replica_count = g->count};
        }
        next_count += ravel__box_without(&c->rest[i], &g->box, next + next_count);
    }
    if (next_count > 0) memcpy(c->rest, next, (size_t)next_count * sizeof *next);
    c->rest_count = next_count;
    RAVEL_ASSERT(next_count >= 0 && next_count <= REST_MOST && c->count <= c->room);
    return RAVEL_OK;
}

static ravel_status make_pattern(planner *p, int32_t cut, const ravel__box *wanted, const char *name, pattern *made) {
    cut_index *index = &p->indexes[cut];
    cover c = {.rest_count = ravel__box_count(wanted) > 0};
    ravel_status status = index->groups ? RAVEL_OK : make_index(p, cut);
    if (status != RAVEL_OK) return status;
    RAVEL_ASSERT(index->groups);
    c.rest[0] = *wanted;
    int64_t from = wanted->ndim > 0 ? wanted->start[index->axis] : 0;
    int32_t behind = wanted->ndim > 0 ? first_behind(index, from + wanted->extent[index->axis]) : index->count, g;
    for (g = behind; g > 0 && index->groups[g - 1].end_so_far > from;) g--;
    for (; g < behind && c.rest_count > 0 && status == RAVEL_OK; g++)
        status = take_group(p, &index->groups[g], &c, name);
    if (status != RAVEL_OK) return status;
    if (c.rest_count > 0) {
        char text[128];
        ravel__box_describe(&c.rest[0], text, sizeof text);
        ravel__differences_add(p->list, "\"%s\": no sender has %s, which %s wants", name, text, p->place->who);
    }
    *made = (pattern){.box = *wanted, .pieces = c.pieces, .count = c.count};
    return RAVEL_OK;
}

/* A receiver wants few different boxes of one cut. */
static ravel_status find_pattern(planner *p, int32_t cut, const ravel__box *box, const char *name,
                                 const pattern **found) {
    pattern **list = &p->indexes[cut].patterns, *made;
    for (*found = *list; *found; *found = (*found)->next)
        if (ravel__box_equal(&(*found)->box, box)) return RAVEL_OK;
    made = ravel__arena_push(&p->scratch, 1, sizeof *made);
    if (!made) return no_memory(p);
    ravel_status status = make_pattern(p, cut, box, name, made);
    if (status != RAVEL_OK) return status;
    made->next = *list;
    *found = *list = made;
    return RAVEL_OK;
}

/* ---- items ---------------------------------------------------------------------------------------------- */

static int castable(int32_t dtype) {
    return ravel_dtype_kind(dtype) == 'f' && ravel_dtype_bytes(dtype) >= 2;
}

int32_t ravel__travel_dtype(int32_t source, int32_t sink, int32_t cast) {
    if (source == sink) return source;
    if (cast != RAVEL_REFIT_NARROW || !castable(source) || !castable(sink)) return -1;
    return ravel_dtype_bytes(sink) < ravel_dtype_bytes(source) ? sink : source;
}

static const char *describe_dims(int32_t ndim, const int64_t *dims, char text[96]) {
    size_t used = (size_t)snprintf(text, 96, "[");
    for (int32_t d = 0; d < ndim && used < 96; d++)
        used += (size_t)snprintf(text + used, 96 - used, "%s%lld", d ? ", " : "", (long long)dims[d]);
    if (used < 96) (void)snprintf(text + used, 96 - used, "]");
    return text;
}

/* 1 where the tensor of the directory can become the item; *dtype travels. */
static int check_item(planner *p, const ravel__item *item, const ravel__listed *t, int32_t *dtype) {
    RAVEL_ASSERT(t->cut >= 0 && t->cut < p->d->cut_count);
    const ravel__cut *cut = &p->d->cuts[t->cut];
    if (cut->ndim != item->ndim || memcmp(cut->dims, item->dims, (size_t)item->ndim * sizeof *item->dims) != 0) {
        char there[96], here[96];
        ravel__differences_add(p->list, "\"%s\": shape %s on rank %d (sender), %s on %s", item->name,
                               describe_dims(cut->ndim, cut->dims, there), ravel__cut_first(cut),
                               describe_dims(item->ndim, item->dims, here), p->place->who);
        return 0;
    }
    *dtype = ravel__travel_dtype(t->dtype, item->dtype, p->place->cast);
    if (*dtype >= 0) return 1;
    ravel__differences_add(p->list, "\"%s\": %s on rank %d (sender), %s on %s%s", item->name,
                           ravel_dtype_name(t->dtype), ravel__cut_first(cut), ravel_dtype_name(item->dtype),
                           p->place->who,
                           p->place->cast == RAVEL_REFIT_EXACT && castable(t->dtype) && castable(item->dtype)
                               ? " (cast narrow would convert it)"
                               : "");
    return 0;
}

static ravel_status plan_items(planner *p) {
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < p->sink->count && status == RAVEL_OK; i++) {
        const ravel__item *item = &p->sink->items[i];
        int64_t at = ravel__names_find(&p->d->names, item->name);
        p->of_item[i] = NULL;
        p->plan->dtypes[i] = item->dtype;
        if (at < 0) {
            ravel__differences_add(p->list, "\"%s\": %s wants it, no sender has it", item->name, p->place->who);
            continue;
        }
        p->tensor[i] = (int32_t)at;
        if (!check_item(p, item, &p->d->tensors[at], &p->plan->dtypes[i])) continue;
        status = find_pattern(p, p->d->tensors[at].cut, &item->view.box, item->name, &p->of_item[i]);
    }
    return status;
}

/* ---- wants ---------------------------------------------------------------------------------------------- */

static int is_near(const planner *p, int32_t sender) {
    return p->d->machines[sender] == p->place->machine;
}

/* Those of this rank's machine take turns; if there is none, all do. */
static int32_t choose(const planner *p, const ravel__piece *piece, int64_t item, int32_t number) {
    RAVEL_ASSERT(piece->replica_count >= 1 && piece->count > 0);
    int32_t near = 0;
    if (piece->replica_count == 1) return piece->replicas[0];
    for (int32_t r = 0; r < piece->replica_count; r++) {
        if (piece->replicas[r] == p->place->self) return p->place->self;
        near += is_near(p, piece->replicas[r]);
    }
    uint64_t turn = p->place->turn + (uint64_t)item + (uint64_t)number;
    if (near == 0) return piece->replicas[turn % (uint64_t)piece->replica_count];
    int32_t r = 0;
    for (uint64_t skip = turn % (uint64_t)near; skip > 0 || !is_near(p, piece->replicas[r]); r++)
        skip -= (uint64_t)is_near(p, piece->replicas[r]);
    return piece->replicas[r];
}

/* The sink's items in the order of the directory's tensors, which is the order in which senders list them. */
static ravel_status order_items(planner *p, int32_t **order, int64_t *count) {
    sorting s;
    if (!make_sorting(&p->scratch, (size_t)p->sink->count, &s)) return no_memory(p);
    *count = 0;
    for (int64_t i = 0; i < p->sink->count; i++) {
        if (!p->of_item[i]) continue;
        s.keys[*count] = (uint64_t)p->tensor[i];
        s.order[(*count)++] = (int32_t)i;
    }
    sort(&s, (size_t)*count);
    *order = s.order;
    return RAVEL_OK;
}

/* Bytes of all wants must fit, and so must sums of them over ranks. */
static ravel_status weigh(planner *p, const ravel__piece *piece, int32_t dtype) {
    int64_t bytes = piece->count * ravel_dtype_bytes(dtype);
    if (__builtin_add_overflow(p->plan->bytes, bytes, &p->plan->bytes) || p->plan->bytes > INT64_MAX >> 20)
        return ravel_error_set(p->err, RAVEL_E_OVERFLOW, "the tensors of a receiver have more than 2^43 bytes");
    return RAVEL_OK;
}

/* Counts wants per sender, then writes them where they belong. */
static ravel_status make_wants(planner *p) {
    ravel__refit_plan *plan = p->plan;
    int64_t *next = plan->first_want + 1, items = 0;
    int32_t *order = NULL;
    ravel_status status = order_items(p, &order, &items);
    for (int pass = 0; pass < 2 && status == RAVEL_OK; pass++) {
        for (int64_t n = 0; n < items; n++) {
            int32_t i = order[n];
            const pattern *from = p->of_item[i];
            for (int32_t k = 0; k < from->count; k++) {
                int32_t sender = choose(p, &from->pieces[k], i, k);
                RAVEL_ASSERT(sender >= 0 && sender < plan->senders);
                if (pass == 0)
                    next[sender]++;
                else
                    plan->wants[next[sender]++] = (ravel__want){i, p->tensor[i], &from->pieces[k]};
                if (pass == 0 && status == RAVEL_OK) status = weigh(p, &from->pieces[k], plan->dtypes[i]);
            }
        }
        if (pass == 1 || status != RAVEL_OK) break;
        /* next[s] becomes the first want of sender s; after the second pass, of sender s + 1. */
        int64_t total = 0;
        for (int32_t s = 0; s < plan->senders; s++) {
            int64_t count = next[s];
            next[s] = total;
            total += count;
        }
        plan->want_count = total;
        plan->wants = ravel__arena_push(&plan->arena, (size_t)total, sizeof *plan->wants);
        if (!plan->wants) return no_memory(p);
    }
    RAVEL_ASSERT(status != RAVEL_OK ||
                 (plan->first_want[0] == 0 && plan->first_want[plan->senders] == plan->want_count));
    return status;
}

static ravel_status run(planner *p) {
    size_t items = (size_t)p->sink->count, senders = (size_t)p->d->senders;
    p->plan->senders = p->d->senders;
    p->plan->dtypes = ravel__arena_push(&p->plan->arena, items, sizeof *p->plan->dtypes);
    p->plan->first_want = ravel__arena_push(&p->plan->arena, senders + 1, sizeof *p->plan->first_want);
    p->indexes = ravel__arena_push(&p->scratch, (size_t)p->d->cut_count, sizeof *p->indexes);
    p->of_item = ravel__arena_push(&p->scratch, items, sizeof(void *));
    p->tensor = ravel__arena_push(&p->scratch, items, sizeof *p->tensor);
    if (!p->plan->dtypes || !p->plan->first_want || !p->indexes || !p->of_item || !p->tensor) return no_memory(p);
    memset(p->plan->first_want, 0, (senders + 1) * sizeof *p->plan->first_want);
    if (p->d->cut_count > 0) memset(p->indexes, 0, (size_t)p->d->cut_count * sizeof *p->indexes);
    ravel_status status = plan_items(p);
    return status == RAVEL_OK ? make_wants(p) : status;
}

ravel_status ravel__refit_plan_make(const ravel__directory *directory, const ravel__holding *sink,
                                    const ravel__refit_plan_place *place, const ravel_allocator *allocator,
                                    ravel__refit_plan *plan, ravel__differences *list, ravel_error *err) {
    ravel__refit_plan made = {0};
    planner p = {.d = directory, .sink = sink, .place = place, .plan = &made, .list = list, .err = err};
    ravel__arena_init(&made.arena, allocator, 16384);
    ravel__arena_init(&p.scratch, allocator, 65536);
    ravel_status status = run(&p);
    ravel__arena_free(&p.scratch);
    if (status == RAVEL_OK)
        *plan = made;
    else
        ravel__refit_plan_free(&made);
    return status;
}

void ravel__refit_plan_free(ravel__refit_plan *plan) {
    ravel__arena_free(&plan->arena);
    memset(plan, 0, sizeof *plan);
}
