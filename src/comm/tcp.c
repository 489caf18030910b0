/* TCP as a wire (comm/wire.h), over links (comm/link/link.h).
 *
 * The ranks meet once at rank 0 (tcp_meet.c), which sends every rank the addresses of all others. Other connections are
 * made when two ranks first exchange a message: collectives use trees and rings, so a rank has about 2 log2(n) of them,
 * not n. A rank always sends on the first link between the two, so that its frames stay in order; if both connect at
 * the same time there are two links, one per direction.
 *
 *     frames      link messages of their own
 *     transfers   pieces of TCP_PIECE, the next one queued when the last one has gone, so that frames get in between
 *
 * A peer is lost when its links are down: its process ended, its machine failed (keep-alive), or bytes were damaged.
 * A peer that closes in order sends a closing frame; it has left. */
#include "comm/tcp.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/memory.h"
#include "comm/remote/remote.h"
#include "comm/link/token.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char farewell[] = "left";
enum { DYING_NS = 500000000 };
#define CLOSE_SECONDS 30.0 /* without a byte that moves; peers on busy processors are slow */

/* ---- lost peers ----------------------------------------------------------------------------------------- */

static void free_waiting(tcp_waiting **list) {
    while (*list) {
        tcp_waiting *w = *list;
        *list = w->next;
        ravel__release(NULL, w, sizeof *w + (size_t)w->bytes);
    }
}

/* A lost peer has nothing left; frames wait only for a link that is not up; what it sent on is one of its links. */
static bool peer_ok(const tcp_peer *p) {
    if (p->lost && (p->out || p->from || p->waiting || p->links[0] || p->links[1] || p->dying_ns)) return false;
    if ((p->waiting == NULL) != (p->waiting_count == 0) || (p->waiting && p->out_is_up)) return false;
    return (!p->from || p->from == p->links[0] || p->from == p->links[1]) && (p->out || !p->out_is_up);
}

static int has_left(const char *why) {
    char words[sizeof farewell + 32];
    (void)snprintf(words, sizeof words, "closed the link: %s", farewell);
    return strstr(why, words) != NULL;
}

static void report_lost(tcp_peer *p, const char *why) {
    if (p->lost) return;
    p->lost = 1;
    p->net->dying -= p->dying_ns != 0;
    p->dying_ns = 0;
    p->out = p->from = NULL;
    p->out_is_up = 0;
    free_waiting(&p->waiting);
    p->waiting_count = 0;
    RAVEL_ASSERT(p->net->dying >= 0);
    for (int i = 0; i < 2; i++)
        if (p->links[i]) ravel__link_close(p->links[i], NULL), p->links[i] = NULL;
    RAVEL_ASSERT(peer_ok(p));
    if (p->net->state == TCP_RUNS) p->net->events.lost(p->net->events.user, p->rank, has_left(why) ? NULL : why);
}

static void on_down(void *user, ravel__link *link, const char *why) {
    ravel__net *net = user;
    tcp_peer *p = ravel__link_owner(link);
    if (net->state == TCP_MEETS) ravel__tcp_meet_down(net, link, why);
    if (!p) return;
    for (int i = 0; i < 2; i++)
        if (p->links[i] == link) p->links[i] = NULL;
    if (p->from == link) p->from = NULL;
    (void)snprintf(net->why, sizeof net->why, "%s", why);
    if (!p->links[0] && !p->links[1]) {
        report_lost(p, why);
    } else if (!p->dying_ns) { /* what the other link still holds is read first */
        p->dying_ns = ravel__clock_ns();
        p->left = has_left(why);
        (void)snprintf(p->why, sizeof p->why, "%s", why);
        net->dying++;
    }
    if (p->out == link) p->out_is_up = 0;
    RAVEL_ASSERT(peer_ok(p));
}

/* ---- links of a peer ------------------------------------------------------------------------------------ */

static tcp_waiting *new_waiting(int32_t peer, const void *head, int32_t head_bytes, const void *body,
                                int32_t body_bytes) {
    tcp_waiting *w = ravel__alloc(NULL, sizeof *w + (size_t)head_bytes + (size_t)body_bytes);
    if (!w) return NULL;
    *w = (tcp_waiting){NULL, peer, head_bytes + body_bytes};
    memcpy(w->data, head, (size_t)head_bytes);
    if (body_bytes > 0) memcpy(w->data + head_bytes, body, (size_t)body_bytes);
    return w;
}

static void append(tcp_waiting **list, tcp_waiting *w) {
    while (*list) list = &(*list)->next;
    *list = w;
}

static int send_frame(tcp_peer *p, const void *data, int32_t bytes) {
    RAVEL_ASSERT(p->out && p->out_is_up && bytes > 0 && bytes <= TCP_FRAME_MOST);
    ravel__message head = {TCP_FRAME, 0, bytes};
    ravel_status status = ravel__link_send(p->out, &head, data, NULL, NULL);
    return status == RAVEL_E_MEMORY ? RAVEL__WIRE_MEMORY : 0; /* a link that is down calls the handler itself */
}

static void use(tcp_peer *p, ravel__link *link) {
    RAVEL_ASSERT(!p->lost && link);
    p->out = link;
    p->out_is_up = 1;
    for (tcp_waiting *w = p->waiting; w; w = w->next) (void)send_frame(p, w->data, w->bytes);
    free_waiting(&p->waiting);
    p->waiting_count = 0;
    RAVEL_ASSERT(peer_ok(p));
}

void ravel__tcp_adopt(ravel__net *net, ravel__link *link, int32_t peer, int own) {
    RAVEL_ASSERT(peer >= 0 && peer < net->ranks && peer != net->rank && (own == 0 || own == 1));
    tcp_peer *p = &net->peers[peer];
    p->links[!own] = link;
    ravel__link_set_owner(link, p);
    if (!p->out || p->out == link) use(p, link);
}

void ravel__tcp_forget(ravel__net *net, int32_t peer, const char *why) {
    RAVEL_ASSERT(net->state == TCP_MEETS && peer >= 0 && peer < net->ranks && !net->peers[peer].receives);
    tcp_peer *p = &net->peers[peer];
    for (int i = 0; i < 2; i++) {
        if (p->links[i]) ravel__link_close(p->links[i], why);
        ravel__release(NULL, p->frames[i], TCP_FRAME_MOST);
    }
    free_waiting(&p->waiting);
    for (tcp_waiting **at = &net->early; *at;) {
        tcp_waiting *w = *at;
        if (w->peer != peer) {
            at = &w->next;
            continue;
        }
        *at = w->next;
        ravel__release(NULL, w, sizeof *w + (size_t)w->bytes);
    }
    net->dying -= p->dying_ns != 0;
    *p = (tcp_peer){.net = net, .rank = peer};
}

/* The addresses of a peer that this rank can reach: Unix sockets only on the same machine. */
static const char *reachable(const ravel__net *net, int32_t peer) {
    const char *address = net->hellos[peer].address, *comma = strchr(address, ',');
    int foreign = !net->machine || net->hellos[peer].machine != net->machine;
    return foreign && comma && strncmp(address, "unix:", 5) == 0 ? comma + 1 : address;
}

static void reach(ravel__net *net, tcp_peer *p) {
    RAVEL_ASSERT(!p->out && !p->lost && p->rank != net->rank);
    tcp_hello hello = net->hellos[net->rank];
    ravel_error err = RAVEL_ERROR_INIT;
    hello.world = net->world;
    if (ravel__hub_connect(net->hub, reachable(net, p->rank), &hello, sizeof hello, net->timeout, p, &p->out, &err))
        report_lost(p, err.message);
    else
        p->links[0] = p->out;
}

static int on_up(void *user, ravel__link *link, const void *bytes, int32_t count) {
    ravel__net *net = user;
    tcp_hello hello;
    tcp_peer *p = ravel__link_owner(link);
    if (p) { /* this rank connected */
        RAVEL_ASSERT(p->net == net && (p->links[0] == link || p->links[1] == link));
        use(p, link);
        return 1;
    }
    if (net->state == TCP_CLOSES) return 0;
    if (net->state == TCP_MEETS && (net->rank == 0 || link == net->root))
        return ravel__tcp_meet_up(net, link, bytes, count);
    if (!ravel__tcp_read_hello(bytes, count, &hello) || hello.ranks != net->ranks || hello.rank < 0 ||
        hello.rank >= net->ranks || hello.rank == net->rank)
        return 0;
    p = &net->peers[hello.rank];
    if (p->lost || p->links[1] || (net->state == TCP_RUNS && hello.world != net->world)) return 0;
    p->claim = hello.world;
    ravel__tcp_adopt(net, link, hello.rank, 0);
    return 1;
}

/* ---- messages ------------------------------------------------------------------------------------------- */

static ravel__transfer **find_receive(tcp_peer *p, uint32_t token) {
    ravel__transfer **link = &p->receives;
    while (*link && (*link)->token != token) link = (ravel__transfer **)(void *)&(*link)->inside;
    return link;
}

/* Each link has its own: while one frame is not whole yet, others come over other links. NULL: no memory; the frame is
 * dropped, and its receive ends at its deadline. */
static char *place_frame(tcp_peer *p, const ravel__link *link, int64_t bytes) {
    RAVEL_ASSERT(link == p->links[0] || link == p->links[1]);
    char **frame = &p->frames[link == p->links[1]];
    if (bytes > TCP_FRAME_MOST) return NULL;
    if (!*frame) *frame = ravel__alloc(NULL, TCP_FRAME_MOST);
    return *frame;
}

static void *on_place(void *user, ravel__link *link, const ravel__message *head) {
    ravel__net *net = user;
    tcp_peer *p = ravel__link_owner(link);
    if (head->kind == TCP_FRAME) return p ? place_frame(p, link, head->bytes) : NULL;
    if (net->state == TCP_MEETS && head->kind == TCP_TABLE && link == net->root)
        return head->bytes <= TCP_FRAME_MOST ? net->table : NULL;
    if (net->state == TCP_MEETS && head->kind == TCP_HELLOS && link == net->root)
        return head->bytes == net->ranks * (int64_t)sizeof *net->hellos ? net->incoming : NULL;
    if (head->kind != TCP_DATA || !p) return NULL;
    ravel__transfer *t = *find_receive(p, (uint32_t)(head->id >> 32));
    int64_t at = (int64_t)(uint32_t)head->id * TCP_PIECE;
    if (!t || at != t->moved || head->bytes > t->bytes - at) return NULL;
    RAVEL_ASSERT(t->state == RAVEL__TRANSFER_RUNS && at >= 0 && at + head->bytes <= t->bytes);
    return (char *)t->data + at;
}

static void take_data(tcp_peer *p, const ravel__message *head) {
    ravel__transfer **link = find_receive(p, (uint32_t)(head->id >> 32)), *t = *link;
    if (!t) return;
    RAVEL_ASSERT(t->state == RAVEL__TRANSFER_RUNS && t->peer == p->rank);
    int64_t got = t->moved + head->bytes;
    RAVEL_ASSERT(got <= t->bytes); /* on_place has checked it */
    t->moved = got;
    if (got < t->bytes) return;
    *link = t->inside;
    t->state = RAVEL__TRANSFER_DONE;
}

static void on_message(void *user, ravel__link *link, const ravel__message *head, void *body) {
    ravel__net *net = user;
    tcp_peer *p = ravel__link_owner(link);
    if (net->state == TCP_CLOSES || !body) return;
    if (p) p->from = link;
    if (head->kind == TCP_TABLE || head->kind == TCP_HELLOS) {
        if (net->state == TCP_MEETS && link == net->root) ravel__tcp_meet_message(net, head->kind, body, head->bytes);
    } else if (p && head->kind == TCP_FRAME && net->ready) {
        net->events.frame(net->events.user, p->rank, body, (int32_t)head->bytes);
    } else if (p && head->kind == TCP_FRAME) {
        tcp_waiting *w = new_waiting(p->rank, body, (int32_t)head->bytes, NULL, 0);
        if (w) append(&net->early, w);
    } else if (p && head->kind == TCP_DATA) {
        take_data(p, head);
    }
}

/* ---- transfers ------------------------------------------------------------------------------------------ */

static int next_piece(tcp_peer *p, ravel__transfer *t) {
    RAVEL_ASSERT(p->out && p->out_is_up && t->state == RAVEL__TRANSFER_RUNS && t->moved < t->bytes);
    int64_t at = t->moved;
    ravel__message head = {TCP_DATA, (uint64_t)t->token << 32 | (uint64_t)(at / TCP_PIECE), t->bytes - at};
    if (head.bytes > TCP_PIECE) head.bytes = TCP_PIECE;
    RAVEL_ASSERT(at >= 0 && at % TCP_PIECE == 0 && head.bytes >= 0);
    p->given++;
    ravel_status status = ravel__link_send(p->out, &head, (char *)t->data + at, t, NULL);
    return status == RAVEL_E_MEMORY ? RAVEL__WIRE_MEMORY : 0;
}

static void on_sent(void *user, ravel__link *link, void *token) {
    tcp_peer *p = ravel__link_owner(link);
    ravel__transfer *t = token;
    if (token == user || !p) return; /* the hellos of the table */
    int64_t at = t->moved + TCP_PIECE;
    RAVEL_ASSERT(t->state == RAVEL__TRANSFER_RUNS && t->peer == p->rank);
    t->moved = at;
    if (at >= t->bytes)
        t->state = RAVEL__TRANSFER_DONE;
    else
        (void)next_piece(p, t);
}

static int wire_send(ravel__net *net, ravel__transfer *t) {
    RAVEL_ASSERT(t->peer >= 0 && t->peer < net->ranks && t->peer != net->rank && t->bytes > 0);
    tcp_peer *p = &net->peers[t->peer];
    t->state = RAVEL__TRANSFER_RUNS;
    t->inside = NULL, t->moved = 0;
    return p->lost || !p->out_is_up ? 0 : next_piece(p, t);
}

static int wire_recv(ravel__net *net, ravel__transfer *t) {
    RAVEL_ASSERT(t->peer >= 0 && t->peer < net->ranks && t->peer != net->rank && t->bytes > 0);
    RAVEL_ASSERT(!*find_receive(&net->peers[t->peer], t->token)); /* a token names one transfer */
    tcp_peer *p = &net->peers[t->peer];
    t->state = RAVEL__TRANSFER_RUNS;
    t->inside = p->receives;
    t->moved = 0;
    p->receives = t;
    return 0;
}

static int wire_cancel(ravel__net *net, ravel__transfer *t) {
    tcp_peer *p = &net->peers[t->peer];
    ravel__transfer **link = &p->receives;
    while (*link && *link != t) link = (ravel__transfer **)(void *)&(*link)->inside;
    if (*link) {
        *link = t->inside;
        for (int i = 0; i < 2; i++)
            if (p->links[i]) ravel__link_forget(p->links[i], (char *)t->data + t->moved);
    } else if (t->state == RAVEL__TRANSFER_RUNS && p->out_is_up) { /* one that is down is freed */
        (void)ravel__link_detach(p->out, t);
    }
    *t = (ravel__transfer){0};
    return 1;
}

static int wire_frame(ravel__net *net, int32_t peer, const void *head, int32_t head_bytes, const void *body,
                      int32_t body_bytes) {
    RAVEL_ASSERT(peer >= 0 && peer < net->ranks && peer != net->rank && head_bytes > 0 && body_bytes >= 0);
    tcp_peer *p = &net->peers[peer];
    RAVEL_ASSERT(head_bytes + body_bytes <= TCP_FRAME_MOST && peer_ok(p));
    char whole[TCP_FRAME_MOST];
    if (p->lost) return 0;
    p->given++;
    if (p->out_is_up) {
        memcpy(whole, head, (size_t)head_bytes);
        if (body_bytes > 0) memcpy(whole + head_bytes, body, (size_t)body_bytes);
        return send_frame(p, whole, head_bytes + body_bytes);
    }
    tcp_waiting *w = new_waiting(peer, head, head_bytes, body, body_bytes);
    if (!w) return RAVEL__WIRE_MEMORY;
    append(&p->waiting, w);
    p->waiting_count++;
    if (!p->out) reach(net, p);
    return 0;
}

static int64_t wire_given(const ravel__net *net, int32_t peer) {
    return net->peers[peer].given;
}

static int64_t wire_gone(const ravel__net *net, int32_t peer) {
    const tcp_peer *p = &net->peers[peer];
    RAVEL_ASSERT(p->waiting_count >= 0 && p->waiting_count <= p->given);
    return p->given - p->waiting_count - (p->out_is_up ? ravel__link_frames(p->out) : 0);
}

/* ---- progress ------------------------------------------------------------------------------------------- */

static void flush_early(ravel__net *net) {
    net->ready = 1;
    while (net->early) {
        tcp_waiting *w = net->early;
        net->early = w->next;
        net->events.frame(net->events.user, w->peer, w->data, w->bytes);
        ravel__release(NULL, w, sizeof *w + (size_t)w->bytes);
    }
}

/* A peer that left has closed both links; the other link closes after its queued data. */
static void end_dying(ravel__net *net) {
    RAVEL_ASSERT(net->dying > 0);
    int64_t now = ravel__clock_ns();
    for (int32_t r = 0; r < net->ranks; r++) {
        tcp_peer *p = &net->peers[r];
        int64_t most = p->left ? (int64_t)(CLOSE_SECONDS * 1e9) : DYING_NS;
        if (p->dying_ns && now - p->dying_ns > most) report_lost(p, p->why);
    }
}

static int poll_all(ravel__net *net, char *why) {
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel__hub_poll(net->hub, 0, NULL, &err)) {
        (void)snprintf(why, 480, "%.470s", err.message);
        return RAVEL__WIRE_BROKEN;
    }
    if (net->dying) end_dying(net);
    return 0;
}

static int wire_poll(ravel__net *net, char *why) {
    if (!net->ready) flush_early(net);
    int ready = net->dying ? -1 : ravel__hub_peek(net->hub);
    int woken = ready >= 0 && __atomic_exchange_n(&net->woken, 0, __ATOMIC_RELAXED);
    return ready > 0 || (ready == 0 && !woken) ? 0 : poll_all(net, why);
}

static int wire_aim(ravel__net *net, int32_t peer) {
    const tcp_peer *p = &net->peers[peer];
    return p->from && !p->lost && !net->dying && ravel__link_lend(p->from);
}

static void wire_sleep(ravel__net *net, int32_t aimed, int64_t ns) {
    if (aimed)
        ravel__hub_await(net->hub);
    else if (ravel__hub_sleep(net->hub, ns))
        __atomic_store_n(&net->woken, 1, __ATOMIC_RELAXED);
}

/* ---- open and close ---------------------------------------------------------------------------------------------- */

static void free_net(ravel__net *net) {
    size_t n = (size_t)net->ranks;
    if (net->file[0]) (void)unlink(net->file);
    ravel__hub_free(net->hub);
    free_waiting(&net->early);
    for (size_t r = 0; net->peers && r < n; r++) {
        free_waiting(&net->peers[r].waiting);
        for (int i = 0; i < 2; i++) ravel__release(NULL, net->peers[r].frames[i], TCP_FRAME_MOST);
    }
    ravel__release(NULL, net->peers, n * sizeof *net->peers);
    ravel__release(NULL, net->hellos, n * sizeof *net->hellos);
    ravel__release(NULL, net->incoming, n * sizeof *net->incoming);
    ravel__release(NULL, net->arrivals, 2 * n * sizeof(void *));
    ravel__release(NULL, net->loose_hellos, n * sizeof *net->loose_hellos);
    ravel__release(NULL, net, sizeof *net);
}

/* Sends frames that were queued while their peer was being connected. */
static int has_waiting(const ravel__net *net) {
    for (int32_t r = 0; r < net->ranks; r++)
        if (net->peers[r].waiting && net->peers[r].out) return 1;
    return 0;
}

/* Sends all queued bytes before the sockets are closed. This waits only if a peer has not answered its first
 * connection yet, or does not read. */
static void wire_close(ravel__net *net, int32_t broken) {
    double patience = broken ? 0.2 : CLOSE_SECONDS;
    int64_t end = ravel__clock_ns() + (int64_t)(patience * 1e9);
    net->state = TCP_CLOSES;
    while (has_waiting(net) && ravel__clock_ns() < end) (void)ravel__hub_poll(net->hub, 0.002, NULL, NULL);
    (void)ravel__hub_drain(net->hub, patience);
    for (int32_t r = 0; r < net->ranks; r++)
        for (int i = 0; i < 2; i++)
            if (net->peers[r].links[i]) ravel__link_close(net->peers[r].links[i], farewell);
    (void)ravel__hub_drain(net->hub, 0.2);
    free_net(net);
}

ravel__hub_handler ravel__tcp_handler(ravel__net *net) {
    return (ravel__hub_handler){net, on_up, on_place, on_message, on_sent, on_down};
}

static ravel__net *new_net(const ravel__wire_open *how, const ravel__launch *launch) {
    size_t n = (size_t)launch->ranks;
    ravel__net *net = ravel__calloc(NULL, 1, sizeof *net);
    if (!net) return NULL;
    net->events = how->events;
    net->rank = launch->rank;
    net->ranks = launch->ranks;
    net->machine = ravel__machine_number();
    net->peers = ravel__calloc(NULL, n, sizeof *net->peers);
    net->hellos = ravel__calloc(NULL, n, sizeof *net->hellos);
    net->incoming = ravel__calloc(NULL, n, sizeof *net->incoming);
    net->arrivals = ravel__calloc(NULL, 2 * n, sizeof(void *));
    net->loose_hellos = ravel__calloc(NULL, n, sizeof *net->loose_hellos);
    if (!net->peers || !net->hellos || !net->incoming || !net->arrivals || !net->loose_hellos) {
        free_net(net);
        return NULL;
    }
    net->loose = net->arrivals + n;
    for (int32_t r = 0; r < net->ranks; r++) net->peers[r].net = net, net->peers[r].rank = r;
    return net;
}

static int wire_open(ravel__wire_open *how, ravel__net **out, int32_t *rank, int32_t *size) {
    const ravel_comm_options *o = how->options;
    ravel__launch launch;
    ravel_error err = RAVEL_ERROR_INIT;
    char token[RAVEL__TOKEN_MOST];
    ravel_status status = ravel__launch_find(o, &launch, &err);
    if (!status) status = ravel__token_find(NULL, o->token_file, token, &err);
    if (status) {
        (void)snprintf(how->why, sizeof how->why, "%.470s", err.message);
        return RAVEL__WIRE_ARGUMENT;
    }
    ravel__net *net = new_net(how, &launch);
    if (!net) return RAVEL__WIRE_MEMORY;
    net->timeout = o->timeout;
    int code = ravel__tcp_meet(net, o, &launch, token, how->deadline_ns);
    if (code) {
        (void)snprintf(how->why, sizeof how->why, "%s", net->why);
        free_net(net);
        return code;
    }
    net->state = TCP_RUNS;
    ravel__hub_set_once(net->hub, 1);
    *out = net, *rank = net->rank, *size = net->ranks;
    return 0;
}

const ravel__wire ravel__tcp_wire = {
    .version = RAVEL__WIRE_VERSION,
    .bytes = sizeof ravel__tcp_wire,
    .name = "tcp",
    .frame_most = TCP_FRAME_MOST,
    .tells_lost = 1,
    .open = wire_open,
    .close = wire_close,
    .frame = wire_frame,
    .given = wire_given,
    .gone = wire_gone,
    .send = wire_send,
    .recv = wire_recv,
    .cancel = wire_cancel,
    .poll = wire_poll,
    .aim = wire_aim,
    .sleep = wire_sleep,
};

ravel_status ravel_comm_tcp(const ravel_comm_options *options, ravel_comm **comm, ravel_error *err) {
    ravel_comm_options o;
    ravel_status status = ravel__comm_options_take(options, &o, err);
    return status ? status : ravel__remote_open(&ravel__tcp_wire, &o, 0, comm, err);
}
