/* Making the plan. Every rank goes through all tensors and all groups in the same order, so that replicas are chosen
 * alike everywhere, and keeps the slices of its own streams.
 *
 *     for each tensor, for each group that wants a box of it:
 *         rest = the box
 *         for each distinct box that senders have: slice = rest meets box; choose a sender; rest -= box */
#include "refit/plan.h"

#include "base/assert.h"
#include "base/hash.h"

#include <stdbool.h>
#include <string.h>

enum { REST_MOST = 256 };

typedef struct group {
    int32_t party;
    int32_t count;
    const int32_t *ranks;
} group;

/* A distinct box among the senders of a tensor, and the parties that have it. */
typedef struct holder {
    ravel__box box;
    int32_t parties; /* their list begins at planner.holder_parties[first] */
    int32_t first;
} holder;

/* The holders of a tensor, kept for the next ones that are cut in the same way: models have many tensors and few cuts. */
typedef struct holder_list {
    const ravel__tensor *of; /* NULL: free */
    holder *holders;
    int32_t *parties;
    int32_t count;
} holder_list;

enum { LISTS = 32 };

/* A slice before the streams are put together. */
typedef struct draft {
    ravel__slice slice;
    int32_t stream; /* out: group; in: sender_index */
    int32_t kind;   /* 0: out, 1: in, 2: out and local, 3: in and local */
} draft;

typedef struct planner {
    const ravel__catalog *c;
    int32_t rank;
    ravel__arena scratch;
    ravel__refit_plan *plan;
    ravel__differences *list;
    ravel_error *err;
    group *groups;
    int32_t group_count;
    int32_t *group_of_party; /* first group of a party, to which the next ones belong too */
    int32_t *sender_index;   /* [ranks], -1: no sender */
    int32_t sender_count;
    int64_t *load;            /* [ranks] bytes that each sender was given */
    int32_t *item_of[2];      /* [catalog count]: this rank's item, -1 */
    holder_list lists[LISTS]; /* all but the last keep what was found first */
    holder *holders;          /* of the tensor at hand */
    int32_t *holder_parties;
    int32_t holder_count;
    draft *drafts;
    int64_t draft_count, draft_room;
    int64_t coord_count, coord_room;
    int64_t *coords;
    ravel__hash digest;
} planner;

/* ---- senders and groups --------------------------------------------------------------------------------------- */

/* The most senders that have the same pieces: how many streams can leave at once for the same receivers. */
static int32_t most_replicas(const ravel__catalog *c) {
    int32_t most = 1;
    for (int32_t p = 0; p < c->party_count; p++)
        if (c->parties[p].side == RAVEL__OF_SOURCE && c->parties[p].count > most) most = c->parties[p].count;
    return most;
}

static ravel_status make_groups(planner *p) {
    const ravel__catalog *c = p->c;
    int32_t replicas = most_replicas(c);
    p->groups = ravel__arena_push(&p->scratch, (size_t)c->ranks, sizeof *p->groups);
    p->group_of_party = ravel__arena_push(&p->scratch, (size_t)c->party_count + 1, sizeof(int32_t));
    if (!p->groups || !p->group_of_party) return ravel__no_memory(p->err, 0, "the plan's groups");
    for (int32_t i = 0; i < c->party_count; i++) {
        const ravel__party *party = &c->parties[i];
        p->group_of_party[i] = p->group_count;
        if (party->side != RAVEL__OF_SINK) continue;
        if (party->count > replicas) {
            p->groups[p->group_count++] = (group){i, party->count, party->ranks};
            continue;
        }
        for (int32_t r = 0; r < party->count; r++) p->groups[p->group_count++] = (group){i, 1, party->ranks + r};
    }
    p->group_of_party[c->party_count] = p->group_count;
    RAVEL_ASSERT(p->group_count <= c->ranks);
    return RAVEL_OK;
}

static ravel_status make_senders(planner *p) {
    size_t ranks = (size_t)p->c->ranks;
    p->sender_index = ravel__arena_push(&p->scratch, ranks, sizeof(int32_t));
    p->load = ravel__arena_push(&p->scratch, ranks, sizeof(int64_t));
    if (!p->sender_index || !p->load) return ravel__no_memory(p->err, 0, "the plan's senders");
    memset(p->load, 0, ranks * sizeof(int64_t));
    for (size_t r = 0; r < ranks; r++)
        p->sender_index[r] = p->c->hellos[r].roles & RAVEL__SOURCE ? p->sender_count++ : -1;
    RAVEL_ASSERT(p->sender_count <= p->c->ranks);
    return RAVEL_OK;
}

static ravel_status index_items(planner *p, int32_t side, const ravel__holding *holding) {
    RAVEL_ASSERT((side == RAVEL__OF_SOURCE || side == RAVEL__OF_SINK) && (!holding || holding->count <= INT32_MAX));
    size_t count = (size_t)p->c->count;
    p->item_of[side] = ravel__arena_push(&p->scratch, count, sizeof(int32_t));
    if (!p->item_of[side]) return ravel__no_memory(p->err, count * 4, "the plan's tensors");
    for (size_t i = 0; i < count; i++) p->item_of[side][i] = -1;
    for (int64_t i = 0; holding && i < holding->count; i++) {
        int64_t tensor = ravel__names_find(&p->c->names, holding->items[i].name);
        if (tensor >= 0) p->item_of[side][tensor] = (int32_t)i;
    }
    return RAVEL_OK;
}

/* ---- choice of senders ------------------------------------------------------------------------------------- */

/* Whether two tensors are cut alike over the same parties. */
static int same_shares(const ravel__tensor *a, const ravel__tensor *b) {
    size_t bytes = 2 * (size_t)a->ndim * sizeof(int64_t);
    if (a->ndim != b->ndim || memcmp(a->dims, b->dims, bytes / 2) != 0) return 0;
    const ravel__share *x = a->shares[RAVEL__OF_SOURCE], *y = b->shares[RAVEL__OF_SOURCE];
    for (; x && y; x = x->next, y = y->next)
        if (x->party != y->party || memcmp(x->coords, y->coords, bytes) != 0) return 0;
    return !x && !y;
}

static void collect_holders(planner *p, const ravel__tensor *t) {
    int32_t used = 0;
    p->holder_count = 0;
    for (const ravel__share *s = t->shares[RAVEL__OF_SOURCE]; s; s = s->next) {
        ravel__box box = ravel__share_box(t, s);
        int known = ravel__box_count(&box) == 0;
        for (int32_t h = 0; h < p->holder_count && !known; h++) known = ravel__box_equal(&p->holders[h].box, &box);
        if (known) continue;
        RAVEL_ASSERT(p->holder_count < p->c->ranks);
        holder *h = &p->holders[p->holder_count++];
        *h = (holder){.box = box, .first = used};
        for (const ravel__share *o = s; o; o = o->next) {
            ravel__box other = ravel__share_box(t, o);
            if (!ravel__box_equal(&other, &box)) continue;
            p->holder_parties[used++] = o->party;
            RAVEL_ASSERT(used <= p->c->ranks && p->c->parties[o->party].side == RAVEL__OF_SOURCE);
            h->parties++;
        }
    }
}

static ravel_status find_holders(planner *p, const ravel__tensor *t) {
    int32_t i = 0;
    while (i < LISTS && p->lists[i].of && !same_shares(p->lists[i].of, t)) i++;
    int known = i < LISTS && p->lists[i].of != NULL;
    if (i == LISTS) i = LISTS - 1;
    holder_list *l = &p->lists[i];
    if (!l->holders) {
        l->holders = ravel__arena_push(&p->scratch, (size_t)p->c->ranks, sizeof *l->holders);
        l->parties = ravel__arena_push(&p->scratch, (size_t)p->c->ranks, sizeof *l->parties);
        if (!l->holders || !l->parties) return ravel__no_memory(p->err, 0, "the plan's senders");
    }
    p->holders = l->holders;
    p->holder_parties = l->parties;
    if (!known) {
        collect_holders(p, t);
        l->of = t;
        l->count = p->holder_count;
    }
    RAVEL_ASSERT(l->of && l->count >= 0 && l->count <= p->c->ranks);
    p->holder_count = l->count;
    return RAVEL_OK;
}

/* Smaller is better; ties go to the lower rank. */
static int64_t price(const planner *p, int32_t sender, const group *g) {
    RAVEL_ASSERT(p->sender_index[sender] >= 0 && g->count > 0);
    const ravel__hello *hellos = p->c->hellos;
    int32_t to = g->ranks[0];
    if (g->count == 1 && sender == to) return -1; /* nothing has to travel */
    return p->load[sender] + (hellos[sender].host == hellos[to].host ? 0 : INT64_MAX / 2);
}

static int32_t choose_sender(const planner *p, const holder *h, const group *g) {
    int32_t best = -1;
    int64_t best_price = 0;
    for (int32_t i = 0; i < h->parties; i++) {
        const ravel__party *party = &p->c->parties[p->holder_parties[h->first + i]];
        for (int32_t r = 0; r < party->count; r++) {
            int32_t sender = party->ranks[r];
            int64_t its = price(p, sender, g);
            if (best >= 0 && (its > best_price || (its == best_price && sender > best))) continue;
            best = sender;
            best_price = its;
        }
    }
    RAVEL_ASSERT(best >= 0);
    return best;
}

static int is_member(const group *g, int32_t rank) {
    for (int32_t i = 0; i < g->count; i++)
        if (g->ranks[i] == rank) return 1;
    return 0;
}

/* ---- drafts --------------------------------------------------------------------------------------------- */

static int64_t keep_coords(planner *p, const ravel__box *box) {
    int64_t at = p->coord_count, need = at + 2 * (int64_t)box->ndim;
    if (box->ndim == 0) return at;
    if (need > p->coord_room) {
        int64_t room = need + p->coord_room / 2 + 256;
        int64_t *coords = ravel__resize(p->scratch.allocator, p->coords, (size_t)p->coord_room * 8, (size_t)room * 8);
        if (!coords) return -1;
        p->coords = coords;
        p->coord_room = room;
    }
    memcpy(p->coords + at, box->start, (size_t)box->ndim * 8);
    memcpy(p->coords + at + box->ndim, box->extent, (size_t)box->ndim * 8);
    p->coord_count = need;
    RAVEL_ASSERT(p->coord_count <= p->coord_room);
    return at;
}

static ravel_status keep_draft(planner *p, const draft *d) {
    if (p->draft_count == p->draft_room) {
        int64_t room = p->draft_room + p->draft_room / 2 + 64;
        size_t each = sizeof *p->drafts;
        draft *drafts =
            ravel__resize(p->scratch.allocator, p->drafts, (size_t)p->draft_room * each, (size_t)room * each);
        if (!drafts) return ravel__no_memory(p->err, (size_t)room * each, "the plan's slices");
        p->drafts = drafts;
        p->draft_room = room;
    }
    p->drafts[p->draft_count++] = *d;
    return RAVEL_OK;
}

/* One slice from a sender to a group: into the streams of this rank that it belongs to. */
static ravel_status add_slice(planner *p, int64_t index, int32_t g, int32_t sender, const ravel__box *box) {
    const ravel__tensor *t = &p->c->tensors[index];
    const group *to = &p->groups[g];
    int inside = is_member(to, sender), me_out = sender == p->rank, me_in = is_member(to, p->rank);
    int64_t count = ravel__box_count(box);
    ravel__hash_u64(&p->digest, (uint64_t)index << 32 | (uint32_t)g);
    ravel__hash_u64(&p->digest, (uint64_t)sender);
    ravel__hash_i64s(&p->digest, box->start, (size_t)box->ndim);
    ravel__hash_i64s(&p->digest, box->extent, (size_t)box->ndim);
    p->load[sender] += count * ravel_dtype_bytes(t->dtype) * (inside && to->count == 1 ? 0 : 1);
    RAVEL_ASSERT(sender >= 0 && sender < p->c->ranks && p->sender_index[sender] >= 0 && count > 0);
    if (!me_out && !me_in) return RAVEL_OK;
    int64_t coords = keep_coords(p, box);
    if (coords < 0) return ravel__no_memory(p->err, 0, "the plan's slices");
    draft d = {
        .slice = {.tensor = (int32_t)index, .window = t->window, .dtype = t->dtype, .count = count, .coords = coords}};
    ravel_status status = RAVEL_OK;
    /* out, then in, each over the wire and inside the rank */
    for (int32_t kind = 0; kind < 4 && status == RAVEL_OK; kind++) {
        int local = kind >= 2, in = kind & 1;
        int wanted = local ? me_out && inside : in ? me_in && !me_out : me_out && to->count > inside;
        if (!wanted) continue;
        d.kind = kind;
        d.stream = in ? p->sender_index[sender] : g;
        d.slice.item = p->item_of[in ? RAVEL__OF_SINK : RAVEL__OF_SOURCE][index];
        RAVEL_ASSERT(d.stream >= 0);
        status = keep_draft(p, &d);
    }
    return status;
}

static ravel_status cover(planner *p, int64_t index, int32_t g, const ravel__box *wanted) {
    ravel__tensor *t = &p->c->tensors[index];
    ravel__box rest[REST_MOST], next[REST_MOST];
    int32_t count = ravel__box_count(wanted) > 0, next_count;
    rest[0] = *wanted;
    for (int32_t h = 0; h < p->holder_count && count > 0; h++) {
        int32_t sender = -1;
        next_count = 0;
        for (int32_t i = 0; i < count; i++) {
            ravel__box meet;
            if (next_count + 2 * RAVEL_REFIT_DIMS > REST_MOST)
                return ravel_error_set(p->err, RAVEL_E_UNSUPPORTED, "\"%s\" is cut too irregularly to plan", t->name);
            if (ravel__box_meet(&rest[i], &p->holders[h].box, &meet)) {
                if (sender < 0) sender = choose_sender(p, &p->holders[h], &p->groups[g]);
                ravel_status status = add_slice(p, index, g, sender, &meet);
                if (status != RAVEL_OK) return status;
            }
            next_count += ravel__box_without(&rest[i], &p->holders[h].box, next + next_count);
        }
        memcpy(rest, next, (size_t)next_count * sizeof *rest);
        RAVEL_ASSERT(next_count <= REST_MOST);
        count = next_count;
    }
    if (count > 0 && !t->reported++) {
        char text[128];
        ravel__box_describe(&rest[0], text, sizeof text);
        ravel__differences_add(p->list, "\"%s\": no sender has %s, which rank %d (receiver) wants", t->name, text,
                               p->groups[g].ranks[0]);
    }
    return RAVEL_OK;
}

static ravel_status plan_tensor(planner *p, int64_t index) {
    const ravel__tensor *t = &p->c->tensors[index];
    ravel_status found = find_holders(p, t);
    if (found != RAVEL_OK) return found;
    for (const ravel__share *s = t->shares[RAVEL__OF_SINK]; s; s = s->next) {
        ravel__box box = ravel__share_box(t, s);
        int64_t bytes = ravel__box_count(&box) * ravel_dtype_bytes(t->dtype);
        RAVEL_ASSERT(p->c->parties[s->party].side == RAVEL__OF_SINK);
        for (int32_t g = p->group_of_party[s->party]; g < p->group_of_party[s->party + 1]; g++) {
            p->plan->bytes_needed += bytes * p->groups[g].count;
            ravel_status status = cover(p, index, g, &box);
            if (status != RAVEL_OK) return status;
        }
    }
    return RAVEL_OK;
}

/* ---- windows -------------------------------------------------------------------------------------------- */

static int32_t make_windows(const ravel__catalog *c, int32_t groups, int64_t buffer_bytes) {
    int sequential = 0;
    int32_t window = 0;
    int64_t inside = 0;
    for (int32_t r = 0; r < c->ranks; r++) sequential |= c->hellos[r].sequential;
    for (int64_t i = 0; i < c->count; i++) {
        ravel__tensor *t = &c->tensors[i];
        if (!ravel__tensor_moves(t) || t->dtype < 0) continue;
        ravel__box whole = ravel__box_whole(t->ndim, t->dims);
        int64_t bytes = ravel__box_count(&whole) * ravel_dtype_bytes(t->dtype) + 512;
        if (sequential && groups > 1 && inside > 0 && inside + bytes > buffer_bytes) {
            window++;
            inside = 0;
        }
        inside += bytes;
        t->window = window;
    }
    RAVEL_ASSERT(window >= 0 && inside >= 0);
    return window + 1;
}

/* ---- streams -------------------------------------------------------------------------------------------- */

/* The group's ranks without the sender, rotated per sender so that no rank is first in every tree. */
static ravel_status set_members(planner *p, ravel__stream *s, const group *g, int32_t sender_index) {
    s->members = ravel__arena_push(&p->plan->arena, (size_t)g->count, sizeof(int32_t));
    if (!s->members) return ravel__no_memory(p->err, 0, "the plan's streams");
    for (int32_t i = 0; i < g->count; i++) {
        int32_t rank = g->ranks[(i + sender_index) % g->count];
        if (s->local ? rank == s->sender : rank != s->sender) s->members[s->member_count++] = rank;
    }
    RAVEL_ASSERT(s->member_count <= g->count && (!s->local || s->member_count <= 1));
    return RAVEL_OK;
}

static ravel_status new_stream(planner *p, ravel__stream *s, int32_t sender, int32_t g, int local) {
    RAVEL_ASSERT(sender >= 0 && g >= 0 && g < p->group_count);
    int32_t index = p->sender_index[sender];
    *s = (ravel__stream){.sender = sender, .tag = index, .local = local};
    s->turn = ((g - index) % p->group_count + p->group_count) % p->group_count;
    return set_members(p, s, &p->groups[g], index);
}

static int32_t sender_of_index(const planner *p, int32_t index) {
    RAVEL_ASSERT(index >= 0 && index < p->sender_count);
    for (int32_t r = 0; r < p->c->ranks; r++)
        if (p->sender_index[r] == index) return r;
    return -1;
}

/* Takes the drafts of one stream, in their order, to the end of the plan's slices. */
static void take_drafts(planner *p, ravel__stream *s, int32_t kind, int32_t key) {
    s->first = p->plan->slice_count;
    for (int64_t i = 0; i < p->draft_count; i++) {
        const draft *d = &p->drafts[i];
        if (d->kind != kind || d->stream != key) continue;
        RAVEL_ASSERT(p->plan->slice_count < p->draft_count);
        p->plan->slices[p->plan->slice_count++] = d->slice;
        s->slices++;
        s->bytes += d->slice.count * ravel_dtype_bytes(d->slice.dtype);
    }
}

static void sort_by_turn(ravel__stream *streams, int32_t count) {
    for (int32_t i = 1; i < count; i++) {
        ravel__stream x = streams[i];
        int32_t j = i;
        for (; j > 0; j--) {
            const ravel__stream *y = &streams[j - 1];
            if (y->turn < x.turn || (y->turn == x.turn && y->sender <= x.sender)) break;
            streams[j] = *y;
        }
        streams[j] = x;
    }
}

static int32_t own_group(const planner *p) {
    for (int32_t g = 0; g < p->group_count; g++)
        if (is_member(&p->groups[g], p->rank)) return g;
    return -1;
}

/* Which of the streams of a kind have slices. */
static void mark_used(const planner *p, int32_t kind, int32_t keys, char *used) {
    memset(used, 0, (size_t)keys + 1);
    for (int64_t i = 0; i < p->draft_count; i++)
        if (p->drafts[i].kind == kind) used[p->drafts[i].stream] = 1;
}

/* Streams are in the order of turns, and each has a part of the slices to itself, in the order of windows. */
static bool streams_ok(const ravel__refit_plan *plan, const ravel__stream *streams, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        const ravel__stream *s = &streams[i], *before = i > 0 ? s - 1 : NULL;
        if (before && (before->turn > s->turn || (before->turn == s->turn && before->sender > s->sender))) return false;
        if (s->first < 0 || s->slices < 1 || s->first + s->slices > plan->slice_count || s->bytes < 1) return false;
        for (int64_t k = 1; k < s->slices; k++)
            if (plan->slices[s->first + k].window < plan->slices[s->first + k - 1].window) return false;
    }
    return true;
}

static ravel_status make_streams(planner *p) {
    ravel__refit_plan *plan = p->plan;
    int32_t most = p->group_count + p->sender_count + 2, mine = own_group(p);
    char *used = ravel__arena_push(&p->scratch, (size_t)most + 1, 1);
    plan->slices = ravel__arena_push(&plan->arena, (size_t)p->draft_count, sizeof *plan->slices);
    plan->coords = ravel__arena_push(&plan->arena, (size_t)p->coord_count, sizeof *plan->coords);
    plan->out = ravel__arena_push(&plan->arena, (size_t)p->group_count + 1, sizeof *plan->out);
    plan->in = ravel__arena_push(&plan->arena, (size_t)p->sender_count + 1, sizeof *plan->in);
    if (!used || !plan->slices || !plan->coords || !plan->out || !plan->in)
        return ravel__no_memory(p->err, 0, "the plan's streams");
    if (p->coord_count > 0) memcpy(plan->coords, p->coords, (size_t)p->coord_count * sizeof *plan->coords);
    for (int32_t kind = 0; kind < 4; kind++) {
        int in = kind & 1, local = kind >= 2;
        int32_t keys = in ? p->sender_count : p->group_count;
        mark_used(p, kind, keys, used);
        for (int32_t key = 0; key < keys; key++) {
            if (!used[key]) continue;
            ravel__stream *s = in ? &plan->in[plan->in_count++] : &plan->out[plan->out_count++];
            ravel_status status =
                in ? new_stream(p, s, sender_of_index(p, key), mine, local) : new_stream(p, s, p->rank, key, local);
            if (status != RAVEL_OK) return status;
            take_drafts(p, s, kind, key);
        }
    }
    RAVEL_ASSERT(plan->slice_count == p->draft_count && plan->out_count <= p->group_count + 1);
    RAVEL_ASSERT(plan->in_count <= p->sender_count + 1);
    sort_by_turn(plan->out, plan->out_count);
    sort_by_turn(plan->in, plan->in_count);
    RAVEL_ASSERT(streams_ok(plan, plan->out, plan->out_count) && streams_ok(plan, plan->in, plan->in_count));
    return RAVEL_OK;
}

/* ---- the plan ------------------------------------------------------------------------------------------ */

static ravel_status run(planner *p, const ravel__holding *source, const ravel__holding *sink, int64_t buffer_bytes) {
    ravel_status status = make_groups(p);
    if (status == RAVEL_OK) status = make_senders(p);
    if (status == RAVEL_OK) status = index_items(p, RAVEL__OF_SOURCE, source);
    if (status == RAVEL_OK) status = index_items(p, RAVEL__OF_SINK, sink);
    if (status != RAVEL_OK) return status;
    p->plan->windows = make_windows(p->c, p->group_count, buffer_bytes);
    p->digest = ravel__hash_begin(0x7265666974);
    for (int64_t i = 0; i < p->c->count && status == RAVEL_OK; i++)
        if (ravel__tensor_moves(&p->c->tensors[i]) && p->c->tensors[i].dtype >= 0) status = plan_tensor(p, i);
    p->plan->digest = ravel__hash_end(p->digest);
    return status == RAVEL_OK ? make_streams(p) : status;
}

ravel_status ravel__refit_plan_make(const ravel__catalog *catalog, int32_t rank, const ravel__holding *source,
                                    const ravel__holding *sink, int64_t buffer_bytes, const ravel_allocator *allocator,
                                    ravel__refit_plan *plan, ravel__differences *list, ravel_error *err) {
    ravel__refit_plan made = {0};
    planner p = {.c = catalog, .rank = rank, .plan = &made, .list = list, .err = err};
    ravel__arena_init(&made.arena, allocator, 4096);
    ravel__arena_init(&p.scratch, allocator, 4096);
    ravel_status status = run(&p, source, sink, buffer_bytes);
    ravel__release(allocator, p.drafts, (size_t)p.draft_room * sizeof *p.drafts);
    ravel__release(allocator, p.coords, (size_t)p.coord_room * sizeof *p.coords);
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

ravel__box ravel__slice_box(const ravel__refit_plan *plan, const ravel__slice *slice, int32_t ndim) {
    ravel__box box = {.ndim = ndim};
    RAVEL_ASSERT(ndim >= 0 && ndim <= RAVEL_REFIT_DIMS && slice->coords >= 0);
    memcpy(box.start, plan->coords + slice->coords, (size_t)ndim * sizeof(int64_t));
    memcpy(box.extent, plan->coords + slice->coords + ndim, (size_t)ndim * sizeof(int64_t));
    return box;
}
