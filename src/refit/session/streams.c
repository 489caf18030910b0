#include "refit/session/streams.h"

#include "base/assert.h"
#include "base/bytes.h"

#include <stdbool.h>
#include <string.h>

enum { REQUEST_HEADER = 16 };

/* ---- groups --------------------------------------------------------------------------------------------- */

/* The lowest rank that has the manifest of rank `rank` on this side (0: sources, 1: sinks). */
static int32_t twin_of(const ravel__hello *hellos, int32_t side, int32_t rank) {
    const ravel__hello *h = &hellos[rank];
    int32_t role = side ? RAVEL__SINK : RAVEL__SOURCE, r = 0;
    RAVEL_ASSERT(h->roles & role);
    while (!(hellos[r].roles & role) || hellos[r].digest[side] != h->digest[side] ||
           hellos[r].manifest_bytes[side] != h->manifest_bytes[side])
        r++;
    return r;
}

/* Ranks that have the same manifest as `rank`, into `out` where it is not NULL; returns how many. */
static int32_t twins(const ravel__hello *hellos, int32_t ranks, int32_t side, int32_t rank, int32_t *out) {
    int32_t count = 0;
    for (int32_t r = rank; r < ranks; r++) {
        if (!(hellos[r].roles & (side ? RAVEL__SINK : RAVEL__SOURCE)) || twin_of(hellos, side, r) != rank) continue;
        if (out) out[count] = r;
        count++;
    }
    return count;
}

/* The most senders that have the same pieces: how many streams can leave at once for the same receivers. */
static int32_t most_replicas(const ravel__hello *hellos, int32_t ranks) {
    int32_t most = 1;
    for (int32_t r = 0; r < ranks; r++) {
        if (!(hellos[r].roles & RAVEL__SOURCE) || twin_of(hellos, 0, r) != r) continue;
        int32_t count = twins(hellos, ranks, 0, r, NULL);
        if (count > most) most = count;
    }
    return most;
}

static int add_group(ravel__groups *g, const int32_t *members, int32_t count, int32_t rank) {
    int32_t *copy = ravel__arena_push(&g->arena, (size_t)count, sizeof *copy);
    if (!copy) return 0;
    memcpy(copy, members, (size_t)count * sizeof *copy);
    for (int32_t i = 0; i < count; i++)
        if (copy[i] == rank) g->mine = g->count;
    g->ranks[g->count] = copy;
    g->sizes[g->count++] = count;
    return 1;
}

ravel_status ravel__groups_make(const ravel__hello *hellos, int32_t ranks, int32_t rank,
                                const ravel_allocator *allocator, ravel__groups *groups, ravel_error *err) {
    ravel__groups g = {.mine = -1};
    int32_t replicas = most_replicas(hellos, ranks), senders = 0;
    ravel__arena_init(&g.arena, allocator, 4096);
    g.ranks = ravel__arena_push(&g.arena, (size_t)ranks, sizeof *g.ranks);
    g.sizes = ravel__arena_push(&g.arena, (size_t)ranks, sizeof *g.sizes);
    g.sender_index = ravel__arena_push(&g.arena, (size_t)ranks, sizeof *g.sender_index);
    int32_t *members = ravel__arena_push(&g.arena, (size_t)ranks, sizeof *members);
    int made = g.ranks && g.sizes && g.sender_index && members;
    for (int32_t r = 0; r < ranks && made; r++) {
        g.sender_index[r] = hellos[r].roles & RAVEL__SOURCE ? senders++ : -1;
        if (!(hellos[r].roles & RAVEL__SINK) || twin_of(hellos, 1, r) != r) continue;
        int32_t count = twins(hellos, ranks, 1, r, members);
        if (count > replicas) {
            made = add_group(&g, members, count, rank);
            continue;
        }
        for (int32_t i = 0; i < count && made; i++) made = add_group(&g, members + i, 1, rank);
    }
    RAVEL_ASSERT(!made || g.count <= ranks);
    if (made)
        *groups = g;
    else
        ravel__groups_free(&g);
    return made ? RAVEL_OK : ravel__no_memory(err, (size_t)ranks * 16, "the groups of receivers");
}

void ravel__groups_free(ravel__groups *groups) {
    ravel__arena_free(&groups->arena);
    memset(groups, 0, sizeof *groups);
}

ravel__refit_plan_place ravel__groups_place(const ravel__groups *g, const ravel__hello *hellos, int32_t rank) {
    RAVEL_ASSERT(g->mine >= 0 && g->mine < g->count);
    const int32_t *members = g->ranks[g->mine];
    ravel__refit_plan_place place = {.turn = (uint64_t)g->mine, .cast = hellos[rank].cast, .self = -1};
    place.machine = hellos[rank].host;
    for (int32_t i = 0; i < g->sizes[g->mine]; i++)
        if (hellos[members[i]].host != place.machine) place.machine = 0;
    if (g->sizes[g->mine] == 1) place.self = rank;
    return place;
}

/* ---- making ----------------------------------------------------------------------------------------------- */

typedef struct maker {
    const ravel__streams_from *from;
    ravel__arena scratch;
    ravel__streams *to;
    int32_t rank, ranks;
    int32_t *item_of; /* [tensors] of this rank's source; -1: none */
    /* requests: bytes for and from each rank, and where they are */
    int64_t *out_bytes, *out_at, *in_bytes, *in_at;
    unsigned char *out, *in;
    ravel_error *err;
} maker;

static ravel_status no_memory(const maker *m) {
    return ravel__no_memory(m->err, 0, "the streams of a refit");
}

static void make_windows(maker *m) {
    const ravel__directory *d = m->from->directory;
    int sequential = 0;
    int32_t window = 0;
    int64_t inside = 0;
    for (int32_t r = 0; r < m->ranks; r++) sequential |= m->from->hellos[r].sequential;
    for (int64_t i = 0; i < d->count; i++) {
        const ravel__cut *cut = &d->cuts[d->tensors[i].cut];
        ravel__box whole = ravel__box_whole(cut->ndim, cut->dims);
        int64_t bytes = ravel__box_count(&whole) * ravel_dtype_bytes(d->tensors[i].dtype) + 512;
        m->to->window_of[i] = window;
        if (!m->from->moves[i]) continue;
        if (sequential && m->from->groups->count > 1 && inside > 0 && bytes > m->from->buffer_bytes - inside) {
            window++;
            inside = 0;
        }
        inside = bytes < INT64_MAX - inside ? inside + bytes : INT64_MAX;
        m->to->window_of[i] = window;
    }
    RAVEL_ASSERT(window >= 0 && inside >= 0);
    m->to->windows = window + 1;
}

/* ---- requests ------------------------------------------------------------------------------------------- */

/* The group's first rank asks for all of its members. */
static int asks(const maker *m) {
    const ravel__groups *g = m->from->groups;
    return m->from->plan && g->mine >= 0 && g->ranks[g->mine][0] == m->rank;
}

static int64_t wants_of(const ravel__refit_plan *plan, int32_t sender) {
    return plan->first_want[sender + 1] - plan->first_want[sender];
}

static int64_t request_bytes(const ravel__refit_plan *plan, int32_t sender) {
    int64_t count = wants_of(plan, sender);
    return count > 0 ? REQUEST_HEADER + ravel__ask_wants_bytes(plan, plan->first_want[sender], count) : 0;
}

static void put_request(const maker *m, int32_t sender, unsigned char *out, int64_t bytes) {
    const ravel__refit_plan *plan = m->from->plan;
    int64_t count = wants_of(plan, sender);
    RAVEL_ASSERT(count > 0 && count <= UINT32_MAX && bytes > REQUEST_HEADER);
    ravel__put32(out + 8, (uint32_t)count);
    ravel__put32(out + 12, 0);
    ravel__ask_put_wants(out + REQUEST_HEADER, plan, m->from->sink, plan->first_want[sender], count, 1);
    ravel__put64(out, ravel__sum_of(out, (size_t)bytes));
}

static int64_t lay_out(const int64_t *bytes, int64_t *at, int32_t ranks) {
    int64_t sum = 0;
    for (int32_t r = 0; r < ranks; r++) {
        at[r] = sum;
        sum += bytes[r];
    }
    return sum;
}

/* Collective. A rank without memory fails alone, and with it the communicator. */
static ravel_status exchange_requests(maker *m) {
    ravel_comm *comm = m->from->comm;
    for (int32_t r = 0; r < m->ranks; r++) m->out_bytes[r] = asks(m) ? request_bytes(m->from->plan, r) : 0;
    ravel_status status = ravel_comm_alltoall(comm, m->out_bytes, m->in_bytes, 1, RAVEL_I64, m->err);
    if (status != RAVEL_OK) return status;
    int64_t sent = lay_out(m->out_bytes, m->out_at, m->ranks), got = lay_out(m->in_bytes, m->in_at, m->ranks);
    m->out = ravel__arena_push(&m->scratch, (size_t)sent + 1, 1);
    m->in = ravel__arena_push(&m->scratch, (size_t)got + 1, 1);
    if (!m->out || !m->in) return no_memory(m);
    for (int32_t r = 0; r < m->ranks; r++)
        if (m->out_bytes[r] > 0) put_request(m, r, m->out + m->out_at[r], m->out_bytes[r]);
    return ravel_comm_alltoallv(comm, m->out, m->out_bytes, m->out_at, m->in, m->in_bytes, m->in_at, RAVEL_U8, m->err);
}

static const ravel__view *view_of(const void *source, int32_t item) {
    return &((const ravel__holding *)source)->items[item].view;
}

/* The slices that rank `from` asks for. */
static ravel_status read_request(const maker *m, int32_t from, ravel__asked **asked, int64_t *count) {
    const unsigned char *p = m->in + m->in_at[from];
    int64_t bytes = m->in_bytes[from];
    if (bytes < REQUEST_HEADER || ravel__get64(p) != ravel__sum_of(p, (size_t)bytes))
        return ravel_error_set(m->err, RAVEL_E_CHECKSUM, "the request of rank %d arrived changed", from);
    *count = ravel__get32(p + 8);
    if (!m->from->source || *count > (bytes - REQUEST_HEADER) / 8)
        return ravel_error_set(m->err, RAVEL_E_DATA, "rank %d asks for what is not here", from);
    *asked = ravel__arena_push(&m->to->arena, (size_t)*count, sizeof **asked);
    if (!*asked) return no_memory(m);
    return ravel__ask_slices(p + REQUEST_HEADER, bytes - REQUEST_HEADER, *count, view_of, m->from->source, m->item_of,
                             m->from->directory->count, *asked, m->err);
}

/* ---- streams -------------------------------------------------------------------------------------------- */

/* The group's ranks without the sender, rotated per sender so that no rank is first in every tree. */
static ravel_status set_members(const maker *m, ravel__stream *s, int32_t group) {
    const ravel__groups *g = m->from->groups;
    int32_t size = g->sizes[group], index = g->sender_index[s->sender];
    s->members = ravel__arena_push(&m->to->arena, (size_t)size, sizeof *s->members);
    if (!s->members) return no_memory(m);
    for (int32_t i = 0; i < size; i++) {
        int32_t rank = g->ranks[group][(i + index) % size];
        if (s->local ? rank == s->sender : rank != s->sender) s->members[s->member_count++] = rank;
    }
    RAVEL_ASSERT(s->member_count <= size && (!s->local || s->member_count <= 1));
    return RAVEL_OK;
}

/* Puts a stream in its place. */
static ravel_status add_stream(const maker *m, ravel__stream *list, int32_t *count, ravel__stream s, int32_t group) {
    const ravel__groups *g = m->from->groups;
    int32_t index = g->sender_index[s.sender], at = (*count)++;
    RAVEL_ASSERT(index >= 0 && group >= 0 && group < g->count && s.count > 0);
    s.tag = index;
    s.turn = ((group - index) % g->count + g->count) % g->count;
    ravel_status status = set_members(m, &s, group);
    for (; at > 0; at--) {
        const ravel__stream *y = &list[at - 1];
        if (y->turn < s.turn || (y->turn == s.turn && y->sender <= s.sender)) break;
        list[at] = *y;
    }
    list[at] = s;
    return status;
}

static int is_member(const ravel__groups *g, int32_t group, int32_t rank) {
    for (int32_t i = 0; i < g->sizes[group]; i++)
        if (g->ranks[group][i] == rank) return 1;
    return 0;
}

/* What a group wants from this rank: over the wire and, if this rank is one of its members, inside it. */
static ravel_status serve_group(maker *m, int32_t group) {
    const ravel__groups *g = m->from->groups;
    int32_t from = g->ranks[group][0], reads_live = 1;
    ravel__stream s = {.sender = m->rank};
    ravel__asked *asked = NULL;
    if (m->in_bytes[from] == 0) return RAVEL_OK;
    for (int32_t i = 0; i < g->sizes[group]; i++) reads_live &= m->from->hellos[g->ranks[group][i]].reads_live;
    ravel_status status = read_request(m, from, &asked, &s.count);
    RAVEL_ASSERT(status != RAVEL_OK || asked);
    for (int64_t i = 0; i < s.count && status == RAVEL_OK; i++) {
        if (asked[i].count == 0 || (i > 0 && asked[i].tensor < asked[i - 1].tensor))
            status = ravel_error_set(m->err, RAVEL_E_DATA, "rank %d asks for an empty slice, or out of order", from);
        if (!reads_live) asked[i].flags = 0;
        s.bytes += asked[i].count * ravel_dtype_bytes(asked[i].dtype);
    }
    s.asked = asked;
    int inside = is_member(g, group, m->rank);
    if (status == RAVEL_OK && g->sizes[group] > inside) status = add_stream(m, m->to->out, &m->to->out_count, s, group);
    s.local = 1;
    return status == RAVEL_OK && inside ? add_stream(m, m->to->out, &m->to->out_count, s, group) : status;
}

static ravel_status receive_from(maker *m, int32_t sender) {
    const ravel__refit_plan *plan = m->from->plan;
    ravel__stream s = {.sender = sender, .local = sender == m->rank, .first = plan->first_want[sender]};
    s.count = wants_of(plan, sender);
    for (int64_t i = 0; i < s.count; i++) s.bytes += ravel__want_bytes(plan, &plan->wants[s.first + i]);
    return s.count == 0 ? RAVEL_OK : add_stream(m, m->to->in, &m->to->in_count, s, m->from->groups->mine);
}

/* Streams are in the order of turns. */
static bool streams_ok(const ravel__stream *streams, int32_t count) {
    for (int32_t i = 0; i < count; i++) {
        const ravel__stream *s = &streams[i], *before = i > 0 ? s - 1 : NULL;
        if (before && (before->turn > s->turn || (before->turn == s->turn && before->sender > s->sender))) return false;
        if (s->count < 1 || s->bytes < 1) return false;
    }
    return true;
}

static ravel_status run(maker *m) {
    size_t tensors = (size_t)m->from->directory->count + 1, ranks = (size_t)m->ranks;
    m->to->window_of = ravel__arena_push(&m->to->arena, tensors, sizeof *m->to->window_of);
    m->item_of = ravel__arena_push(&m->scratch, tensors, sizeof *m->item_of);
    m->out_bytes = ravel__arena_push(&m->scratch, 4 * ranks, sizeof *m->out_bytes);
    m->to->out = ravel__arena_push(&m->to->arena, 2 * (size_t)m->from->groups->count + 1, sizeof *m->to->out);
    m->to->in = ravel__arena_push(&m->to->arena, ranks + 1, sizeof *m->to->in);
    if (!m->to->window_of || !m->item_of || !m->out_bytes || !m->to->out || !m->to->in) return no_memory(m);
    m->out_at = m->out_bytes + ranks;
    m->in_bytes = m->out_at + ranks;
    m->in_at = m->in_bytes + ranks;
    make_windows(m);
    static const ravel__holding nothing;
    (void)ravel__directory_index(m->from->directory, m->from->source ? m->from->source : &nothing, m->item_of);
    ravel_status status = exchange_requests(m);
    for (int32_t g = 0; g < m->from->groups->count && status == RAVEL_OK; g++) status = serve_group(m, g);
    for (int32_t s = 0; m->from->plan && s < m->ranks && status == RAVEL_OK; s++) status = receive_from(m, s);
    RAVEL_ASSERT(status != RAVEL_OK ||
                 (streams_ok(m->to->out, m->to->out_count) && streams_ok(m->to->in, m->to->in_count)));
    return status;
}

ravel_status ravel__streams_make(const ravel__streams_from *from, const ravel_allocator *allocator,
                                 ravel__streams *streams, ravel_error *err) {
    ravel__streams made = {0};
    maker m = {.from = from, .to = &made, .err = err};
    m.rank = ravel_comm_rank(from->comm);
    m.ranks = ravel_comm_size(from->comm);
    ravel__arena_init(&made.arena, allocator, 4096);
    ravel__arena_init(&m.scratch, allocator, 4096);
    ravel_status status = run(&m);
    ravel__arena_free(&m.scratch);
    if (status == RAVEL_OK)
        *streams = made;
    else
        ravel__streams_free(&made);
    return status;
}

void ravel__streams_free(ravel__streams *s) {
    ravel__arena_free(&s->arena);
    memset(s, 0, sizeof *s);
}
