/* Matching: which message belongs to which receive.
 *
 *     sender                               receiver
 *     small (and the peer has credit):
 *       EAGER tag, bytes, data       -->     into the posted receive, or kept as a stray until there is one
 *       (complete when the wire no longer needs this process, which may not poll for a long time)
 *                                    <--   CREDIT now and then: how many were taken
 *     else:
 *       OFFER tag, bytes, token      -->     kept until there is a receive
 *                                    <--   ACCEPT token, and a token of its own
 *       transfer                     -->     straight into the receive's memory
 *
 * Messages with one tag from one rank are matched in the order in which they were sent; nothing else orders them.
 * Memory for strays is bounded: a peer has at most REMOTE_CREDIT unmatched small messages, and its open requests.
 *
 * Frames come from other processes: a frame that is out of range, or answers no open offer, is dropped. */
#include "comm/remote/remote.h"

#include "base/assert.h"
#include "base/rng.h"

#include <string.h>

enum { SLOT_BITS = 14, SLOTS_MOST = 1 << SLOT_BITS, EAGER_MOST = REMOTE_FRAME_MOST - (int)sizeof(remote_head) };

/* ---- the world's lists ---------------------------------------------------------------------------------- */

int ravel__match_init(remote_world *w) {
    size_t n = (size_t)w->size;
    w->credits = ravel__calloc(NULL, 2 * n, sizeof *w->credits);
    w->contact = ravel__calloc(NULL, 2 * n, 1);
    if (!w->credits || !w->contact) return 0;
    w->taken = w->credits + n;
    w->lost = w->contact + n;
    for (size_t r = 0; r < n; r++) w->credits[r] = REMOTE_CREDIT;
    return 1;
}

static void free_strays(remote_stray **list) {
    while (*list) {
        remote_stray *s = *list;
        *list = s->next;
        ravel__release(NULL, s, 0);
    }
}

void ravel__match_free(remote_world *w) {
    size_t n = (size_t)w->size;
    for (int i = 0; i < REMOTE_WORLD_BUCKETS; i++) free_strays(&w->strays[i]);
    ravel__release(NULL, w->credits, 2 * n * sizeof *w->credits);
    ravel__release(NULL, w->contact, 2 * n);
    ravel__release(NULL, w->slots, (size_t)w->slot_room * sizeof(void *));
}

remote_rank *ravel__match_find(const remote_world *w, uint64_t id) {
    remote_rank *r = w->ports[id % REMOTE_WORLD_BUCKETS];
    while (r && r->id != id) r = r->next_port;
    return r;
}

int ravel__match_has_left(const remote_world *w, uint64_t id) {
    int64_t kept = w->left_count < REMOTE_LEFT_KEPT ? w->left_count : REMOTE_LEFT_KEPT;
    for (int64_t i = 0; i < kept; i++)
        if (w->left[i] == id) return 1;
    return 0;
}

static int is_frame_of(const remote_head *h, int32_t from, const remote_parcel *p) {
    return p->peer == from && p->tag == h->tag;
}

static uint32_t bucket_of(int32_t peer, uint32_t tag) {
    return (uint32_t)(ravel__mix64((uint64_t)(uint32_t)peer << 32 | tag) % REMOTE_BUCKETS);
}

/* ---- tokens --------------------------------------------------------------------------------------------- */

static int grow_slots(remote_world *w) {
    int32_t room = w->slot_room ? 2 * w->slot_room : 64;
    if (room > SLOTS_MOST) return 0;
    size_t before = (size_t)w->slot_room * sizeof(void *), after = (size_t)room * sizeof(void *);
    remote_parcel **slots = ravel__resize(NULL, w->slots, before, after);
    if (!slots) return 0;
    for (int32_t i = w->slot_room; i < room; i++) slots[i] = NULL;
    w->slots = slots;
    RAVEL_ASSERT(room > w->slot_room);
    w->slot_next = w->slot_room;
    w->slot_room = room;
    return 1;
}

/* A token that differs from all earlier ones, so that a late answer cannot match it. */
static int take_slot(remote_world *w, remote_parcel *p) {
    for (int32_t tries = 0; tries < w->slot_room; tries++, w->slot_next++) {
        int32_t i = w->slot_next % w->slot_room;
        if (w->slots[i]) continue;
        RAVEL_ASSERT(i >= 0 && i < w->slot_room);
        w->slots[i] = p;
        w->slot_next = i + 1;
        p->token = (uint32_t)i | ++w->generation << SLOT_BITS;
        return 1;
    }
    return grow_slots(w) && take_slot(w, p);
}

static void free_slot(remote_world *w, const remote_parcel *p) {
    RAVEL_ASSERT(w->slots[p->token % SLOTS_MOST] == p);
    w->slots[p->token % SLOTS_MOST] = NULL;
}

static remote_parcel *find_slot(const remote_world *w, uint32_t token) {
    int32_t i = (int32_t)(token % SLOTS_MOST);
    return i < w->slot_room && w->slots[i] && w->slots[i]->token == token ? w->slots[i] : NULL;
}

/* ---- frames --------------------------------------------------------------------------------------------- */

int ravel__match_tell(remote_world *w, int32_t peer, const remote_head *head, const void *body, int32_t bytes) {
    remote_head h = *head;
    RAVEL_ASSERT(peer >= 0 && peer < w->size && peer != w->rank && bytes >= 0);
    RAVEL_ASSERT(head->kind > 0 && head->kind < FRAME_KINDS && (int)sizeof *head + bytes <= REMOTE_FRAME_MOST);
    h.magic = REMOTE_MAGIC;
    if (w->lost[peer] || w->stuck) return 0;
    w->contact[peer] = 1;
    w->frames++;
    w->bytes += (int64_t)sizeof h + bytes;
    return w->wire->frame(w->net, peer, &h, sizeof h, body, bytes);
}

static void give_credit(remote_world *w, int32_t peer) {
    remote_head h = {.kind = FRAME_CREDIT};
    if (peer == w->rank || ++w->taken[peer] < REMOTE_CREDIT / 2) return;
    RAVEL_ASSERT(w->taken[peer] <= REMOTE_CREDIT);
    h.note = (uint32_t)w->taken[peer];
    w->taken[peer] = 0;
    (void)ravel__match_tell(w, peer, &h, NULL, 0);
}

static void accept_offer(remote_world *w, int32_t peer, const remote_head *offer, const remote_parcel *p) {
    remote_head h = {
        .kind = FRAME_ACCEPT, .token = offer->token, .note = p == NULL, .bytes = p ? (int64_t)p->token : 0};
    if (peer == w->rank)
        ravel__match_frame(w, peer, &h, NULL);
    else
        (void)ravel__match_tell(w, peer, &h, NULL, 0);
}

/* ---- a message meets its receive ------------------------------------------------------------------------ */

static void take_offer(remote_world *w, int32_t peer, const remote_head *h, remote_parcel *p) {
    RAVEL_ASSERT(h->kind == FRAME_OFFER && p->state == PARCEL_POSTED);
    remote_parcel *own = peer == w->rank ? find_slot(w, h->token) : NULL;
    if (peer == w->rank || h->bytes == 0) {
        if (own && own->bytes > 0) memcpy(p->data, own->data, (size_t)own->bytes);
        p->state = PARCEL_DONE;
        accept_offer(w, peer, h, NULL);
        return;
    }
    RAVEL_ASSERT(!p->sends && p->bytes == h->bytes);
    p->state = PARCEL_MOVES;
    if (!take_slot(w, p)) { /* treated as not arrived: the receive ends at its deadline */
        p->state = PARCEL_POSTED;
        return;
    }
    p->transfer = (ravel__transfer){.peer = peer, .token = p->token, .data = p->data, .bytes = p->bytes};
    if (w->wire->recv(w->net, &p->transfer) == 0) accept_offer(w, peer, h, p);
}

static void deliver(remote_world *w, int32_t peer, const remote_head *h, const char *body, remote_parcel *p) {
    RAVEL_ASSERT(!p->sends && p->state == PARCEL_POSTED && p->tag == h->tag && p->peer == peer);
    if (h->bytes != p->bytes || (h->note && p->note && h->note != p->note)) {
        p->state = PARCEL_DONE;
        p->mismatch = 1;
        p->got_bytes = h->bytes;
        p->got_note = h->note;
        if (h->kind == FRAME_OFFER) accept_offer(w, peer, h, NULL);
    } else if (h->kind == FRAME_OFFER) {
        take_offer(w, peer, h, p);
    } else {
        RAVEL_ASSERT(h->bytes == 0 || (p->data && body));
        if (h->bytes > 0) memcpy(p->data, body, (size_t)h->bytes);
        p->state = PARCEL_DONE;
    }
    if (h->kind == FRAME_EAGER) give_credit(w, peer);
}

void ravel__match_keep(remote_stray **list, int32_t peer, const remote_head *h, const char *body) {
    RAVEL_ASSERT(h->bytes >= 0 || h->kind != FRAME_EAGER);
    size_t bytes = h->kind == FRAME_EAGER || h->kind == FRAME_FAILED ? (size_t)h->bytes : 0;
    remote_stray *s = ravel__alloc(NULL, sizeof *s + bytes);
    if (!s) return; /* no memory: its receive ends at its deadline */
    *s = (remote_stray){NULL, peer, *h};
    if (bytes) memcpy(s->body, body, bytes);
    while (*list) list = &(*list)->next;
    *list = s;
}

static void take_message(remote_world *w, int32_t peer, const remote_head *h, const char *body) {
    remote_rank *port = ravel__match_find(w, h->port);
    if (!port) {
        if (!ravel__match_has_left(w, h->port))
            ravel__match_keep(&w->strays[h->port % REMOTE_WORLD_BUCKETS], peer, h, body);
        else if (h->kind == FRAME_EAGER)
            give_credit(w, peer);
        return;
    }
    uint32_t b = bucket_of(peer, h->tag);
    for (remote_parcel **link = &port->posted[b]; *link; link = &(*link)->next) {
        remote_parcel *p = *link;
        if (!is_frame_of(h, peer, p)) continue;
        *link = p->next;
        deliver(w, peer, h, body, p);
        return;
    }
    ravel__match_keep(&port->strays[b], peer, h, body);
}

static void take_accept(remote_world *w, int32_t peer, const remote_head *h) {
    remote_parcel *p = find_slot(w, h->token);
    if (!p || !p->sends || p->peer != peer || p->state != PARCEL_OFFERED) return;
    if (h->note) {
        free_slot(w, p);
        p->state = PARCEL_DONE;
        return;
    }
    RAVEL_ASSERT(w->slots[p->token % SLOTS_MOST] == p);
    RAVEL_ASSERT(p->transfer.state == RAVEL__TRANSFER_IDLE);
    p->transfer = (ravel__transfer){.peer = peer, .token = (uint32_t)h->bytes, .data = p->data, .bytes = p->bytes};
    p->state = PARCEL_MOVES;
    w->bytes += p->bytes;
    (void)w->wire->send(w->net, &p->transfer); /* if this fails the peer is lost, and `lost` is called */
}

void ravel__match_frame(remote_world *w, int32_t peer, const remote_head *h, const char *body) {
    if (h->bytes < 0) return;
    if (h->kind == FRAME_EAGER || h->kind == FRAME_OFFER)
        take_message(w, peer, h, body);
    else if (h->kind == FRAME_ACCEPT)
        take_accept(w, peer, h);
    else if (h->kind == FRAME_CREDIT && h->note <= (uint32_t)(REMOTE_CREDIT - w->credits[peer]))
        w->credits[peer] = (int16_t)(w->credits[peer] + (int16_t)h->note);
    RAVEL_ASSERT(w->credits[peer] >= 0 && w->credits[peer] <= REMOTE_CREDIT);
}

/* ---- parcels -------------------------------------------------------------------------------------------- */

static int begin_send(remote_world *w, remote_parcel *p) {
    RAVEL_ASSERT(p->sends && (p->state == PARCEL_IDLE || p->state == PARCEL_DONE));
    remote_head h = {.kind = FRAME_OFFER, .port = p->port->id, .tag = p->tag, .note = p->note, .bytes = p->bytes};
    if (p->peer != w->rank && p->bytes <= EAGER_MOST && w->credits[p->peer] > 0) {
        h.kind = FRAME_EAGER;
        w->credits[p->peer]--;
        RAVEL_ASSERT(w->credits[p->peer] >= 0 && w->credits[p->peer] < REMOTE_CREDIT);
        if (!w->lost[p->peer]) {
            int code = ravel__match_tell(w, p->peer, &h, p->data, (int32_t)p->bytes);
            p->ticket = w->wire->given(w->net, p->peer);
            p->state = PARCEL_SENT;
            return code;
        }
    }
    p->state = PARCEL_OFFERED;
    if (!take_slot(w, p)) return RAVEL__WIRE_MEMORY;
    h.token = p->token;
    if (p->peer != w->rank) return ravel__match_tell(w, p->peer, &h, NULL, 0);
    ravel__match_frame(w, w->rank, &h, NULL);
    return 0;
}

static int begin_recv(remote_world *w, remote_parcel *p) {
    uint32_t b = bucket_of(p->peer, p->tag);
    RAVEL_ASSERT(b < REMOTE_BUCKETS && !p->sends);
    p->state = PARCEL_POSTED;
    for (remote_stray **link = &p->port->strays[b]; *link; link = &(*link)->next) {
        remote_stray *s = *link;
        if (!is_frame_of(&s->head, s->peer, p)) continue;
        *link = s->next;
        deliver(w, s->peer, &s->head, s->body, p);
        ravel__release(NULL, s, 0);
        return 0;
    }
    remote_parcel **end = &p->port->posted[b];
    while (*end) end = &(*end)->next;
    *end = p;
    return 0;
}

int ravel__match_begin(remote_parcel *p) {
    remote_world *w = p->port->world;
    RAVEL_ASSERT(p->member >= 0 && p->member < p->port->comm->size);
    p->peer = remote_world_rank(p->port->comm, p->member);
    RAVEL_ASSERT(p->peer >= 0 && p->peer < w->size && (p->bytes == 0 || p->data));
    p->next = NULL;
    p->mismatch = 0;
    return p->sends ? begin_send(w, p) : begin_recv(w, p);
}

int ravel__match_done(remote_parcel *p) {
    if (!p->port) return 1; /* has not begun */
    const remote_world *w = p->port->world;
    if (p->state == PARCEL_SENT && w->wire->gone(w->net, p->peer) >= p->ticket) p->state = PARCEL_DONE;
    if (p->state == PARCEL_MOVES && p->transfer.state == RAVEL__TRANSFER_DONE) {
        RAVEL_ASSERT(p->transfer.peer == p->peer);
        free_slot(p->port->world, p);
        p->transfer = (ravel__transfer){0};
        p->state = PARCEL_DONE;
    }
    return p->state == PARCEL_DONE || p->state == PARCEL_IDLE;
}

int ravel__match_is_hopeless(const remote_parcel *p) {
    if (p->state == PARCEL_DONE || p->state == PARCEL_IDLE || p->state == PARCEL_SENT) return 0;
    if (p->state == PARCEL_MOVES && p->transfer.state == RAVEL__TRANSFER_DONE)
        return 0; /* its peer may leave after it */
    RAVEL_ASSERT(p->port && p->peer < p->port->world->size);
    return p->port->world->lost[p->peer] || (p->state != PARCEL_MOVES && p->port->left[p->member]);
}

int ravel__match_cancel(remote_parcel *p) {
    if (!p->port || ravel__match_done(p)) return 1;
    remote_world *w = p->port->world;
    if (p->state == PARCEL_SENT) {
        p->state = PARCEL_IDLE; /* the wire has a copy */
    } else if (p->state == PARCEL_POSTED) {
        remote_parcel **link = &p->port->posted[bucket_of(p->peer, p->tag)];
        while (*link && *link != p) link = &(*link)->next;
        if (*link) *link = p->next;
    } else if (p->state == PARCEL_OFFERED) {
        if (find_slot(w, p->token) == p) free_slot(w, p);
    } else {
        if (w->stuck || !w->wire->cancel(w->net, &p->transfer)) return 0;
        free_slot(w, p);
    }
    p->state = PARCEL_IDLE;
    return 1;
}

/* ---- communicators are created and freed ------------------------------------------------------------------------- */

void ravel__match_adopt(remote_rank *me) {
    remote_world *w = me->world;
    remote_stray **link = &w->strays[me->id % REMOTE_WORLD_BUCKETS];
    RAVEL_ASSERT(!ravel__match_find(w, me->id));
    me->next_port = w->ports[me->id % REMOTE_WORLD_BUCKETS];
    w->ports[me->id % REMOTE_WORLD_BUCKETS] = me;
    while (*link) {
        remote_stray *s = *link;
        if (s->head.port != me->id) {
            link = &s->next;
            continue;
        }
        *link = s->next;
        if (s->head.kind == FRAME_EAGER || s->head.kind == FRAME_OFFER)
            ravel__match_keep(&me->strays[bucket_of(s->peer, s->head.tag)], s->peer, &s->head, s->body);
        else
            ravel__remote_notice(w, s->peer, &s->head, s->body);
        ravel__release(NULL, s, 0);
    }
}

void ravel__match_close(remote_rank *me) {
    remote_world *w = me->world;
    remote_rank **link = &w->ports[me->id % REMOTE_WORLD_BUCKETS];
    while (*link && *link != me) link = &(*link)->next_port;
    if (*link) *link = me->next_port;
    me->next_port = NULL;
    w->left[w->left_count++ % REMOTE_LEFT_KEPT] = me->id;
    for (int i = 0; i < REMOTE_BUCKETS; i++) {
        RAVEL_ASSERT(!me->posted[i]); /* its operations are over */
        for (remote_stray *s = me->strays[i]; s; s = s->next)
            if (s->head.kind == FRAME_EAGER) give_credit(w, s->peer);
        free_strays(&me->strays[i]);
    }
}
