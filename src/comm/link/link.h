/* Links: framed, authenticated, deadline-aware connections between two processes that were not launched together.
 *
 *   hub       one process's end of many links: it listens, connects, and moves the bytes of all its links in ravel__hub_poll,
 *             in the caller's thread. There is no thread per link, and a poll costs what the ready links cost (epoll).
 *   link      a connection whose both ends have proven that they know the token
 *   message   a head (kind, id, length) and a body; messages of a link arrive whole, checked, and in order
 *   handler   the owner's functions, called inside ravel__hub_poll only
 *
 * The calling loop of a server:
 *
 *     ravel__hub_options o;
 *     ravel__hub_options_default(&o);
 *     o.listen = "0.0.0.0:7000", o.token = token;
 *     ravel__hub_open(&o, &handler, &hub, &err);
 *     while (!done) ravel__hub_poll(hub, .5, &err);        up -> place, message, ... -> down
 *     ravel__hub_free(hub);
 *
 * and of a client: open without `listen`, then ravel__hub_connect, then the same loop.
 *
 * States of a link: connect or accept -> greeting and proof (within options.handshake) -> `up` -> messages -> `down`,
 * once, with the reason: closed by the peer (with the peer's sentence), reset, damaged bytes, silent for too long,
 * never reached. A link whose `up` was not called gets `down` only if it came from ravel__hub_connect. After `down`
 * returns the link is freed and uses none of the caller's memory.
 *
 * Strangers: an accepted link that has not proven itself holds little and nothing for long. Each step of the handshake
 * has room for max_strangers of them, and closes one of the host with most of them for a new one, so honest peers get
 * in beside any number of others. Links stay below the process's limit of descriptors, with a reserve for files. A peer
 * that is refused is told why; if it was only for now, it tries again.
 *
 * Lost peers: a process that ends closes its sockets, which is seen at once. A machine that vanishes is found by the
 * kernel's keep-alive, and by bytes that stay unacknowledged, within options.keepalive. A peer that runs but does not
 * poll is found only if options.silence is set: each side sends a heartbeat every options.heartbeat while it polls.
 *
 * What crosses the wire is written down in comm/link/link_frame.h. Everything from it is checked before it is used, and
 * carries a tag that nobody can make who does not know the token (comm/link/mac.h). With options.tls it is encrypted
 * (comm/tls.h).
 *
 * Threads: a hub and its links belong to one thread at a time; ravel__hub_wake may be called from any. */
#ifndef RAVEL_COMM_LINK_H
#define RAVEL_COMM_LINK_H

#include <ravel/base.h>

typedef struct ravel__hub ravel__hub;
typedef struct ravel__link ravel__link;

typedef struct ravel__hub_options {
    /* An address (comm/link/address.h) or several, comma-separated; NULL: this hub only connects. Port 0: any free
     * one. */
    const char *listen;
    /* Shared secret; NULL or "": none was given (comm/link/token.h says what is used then); "none": as `open`. */
    const char *token;
    const char *allow; /* networks that may connect, like 10.0.0.0/8,fd00::/8; NULL: any */
    int32_t open;      /* 1: without a token every peer may connect, also from other machines */
    int32_t max_links; /* limit of accepted links that are up; more are refused */
    /* Limit of accepted links per step of the handshake; for one more, one of the host with most is closed. */
    int32_t max_strangers;
    /* Bytes queued on a link above which nothing is read from it; 0: no limit. One side only: two ends that both wait
     * for the other to read would wait forever. */
    int64_t max_unsent;
    int64_t max_body; /* bytes of the longest message that is accepted */
    int32_t once;     /* 1: a refused connection is not tried again */
    double handshake; /* seconds that an accepted connection may take to prove itself */
    double heartbeat; /* seconds between heartbeats; 0: none */
    double silence;   /* seconds without a byte after which a peer is lost; 0: never */
    double keepalive; /* seconds after which a vanished machine is lost; 0: the system's default */
    int32_t tls;      /* 1: TCP connections are encrypted (comm/tls.h), also if RAVEL_TLS is 1 */
    int32_t shared;   /* 1: long bodies go through shared memory where a Unix socket joins the two and both want it */
    const ravel_allocator *allocator;
} ravel__hub_options;

/* The head of a message. */
typedef struct ravel__message {
    uint32_t kind;
    uint64_t id;
    int64_t bytes; /* of the body: 0 .. the peer's max_body */
} ravel__message;

typedef struct ravel__hub_handler {
    void *user;
    /* The link is up. hello[bytes] is what the peer gave to connect; nothing on the connecting side. Returning 0
     * refuses the link; it is closed without `down`. May be NULL. */
    int (*up)(void *user, ravel__link *link, const void *hello, int32_t bytes);
    /* A message with a body begins: where its bytes go, room for head->bytes. NULL: they are read and dropped. May be
     * NULL. */
    void *(*place)(void *user, ravel__link *link, const ravel__message *head);
    /* The whole message has arrived and, unless it was sent raw inside a machine, its tag is right; body: what `place`
     * returned. */
    void (*message)(void *user, ravel__link *link, const ravel__message *head, void *body);
    /* The body that was sent with this token is the caller's again. May be NULL. */
    void (*sent)(void *user, ravel__link *link, void *token);
    /* The link is lost. `why` is a sentence without a full stop. */
    void (*down)(void *user, ravel__link *link, const char *why);
} ravel__hub_handler;

void ravel__hub_options_default(ravel__hub_options *options);

/* E_ARGUMENT: a bad address or network, or a public address without a token. E_IO: the address is in use, ... */
ravel_status ravel__hub_open(const ravel__hub_options *options, const ravel__hub_handler *handler, ravel__hub **hub,
                             ravel_error *err);
/* Closes all links (peers see "closed"), without `down`. Never waits. */
void ravel__hub_free(ravel__hub *hub);
/* The addresses it listens on, comma-separated, with the real ports; "": none. Belongs to the hub. */
const char *ravel__hub_address(const ravel__hub *hub);
/* From now on refused connections are not tried again (once = 1), or are. */
void ravel__hub_set_once(ravel__hub *hub, int32_t once);

/* Starts to connect to `address`, or to the first of several (comma-separated) that answers; a refused connection is
 * retried until `timeout` seconds have passed. `up` or `down` follows. Waits only for the lookup of a host name. */
ravel_status ravel__hub_connect(ravel__hub *hub, const char *address, const void *hello, int32_t hello_bytes,
                                double timeout, void *owner, ravel__link **link, ravel_error *err);

/* Moves bytes and calls handlers, then returns; waits at most `seconds` where there is nothing to do. *events (may be
 * NULL): handlers that were called. Fails only if the system does. Handlers may send, connect and close, not
 * poll. */
ravel_status ravel__hub_poll(ravel__hub *hub, double seconds, int64_t *events, ravel_error *err);
/* Polls only the link that bytes last came from: cheaper for requests and answers between two peers. 1: handlers were
 * called; 0: nothing came; -1: a whole poll is due. */
int ravel__hub_peek(ravel__hub *hub);
/* Waits until a poll has something to do, at most `ns`; 1: it has. Any thread, also while another polls. */
int ravel__hub_sleep(const ravel__hub *hub, int64_t ns);
/* Waiting for one peer alone, with one system call per message instead of two (link_await.c):
 *     lend    1: the link's socket belongs to the caller now, and polls leave it alone. 0: use ravel__hub_sleep. A hub
 *             lends one link at a time, and none that has bytes to write or is inside a body
 *     await   reads what comes, within RAVEL__AWAIT_NS; the thread that lent, also while another polls
 * The next poll takes the link back, with what was read. */
int ravel__link_lend(ravel__link *link);
void ravel__hub_await(ravel__hub *hub);
enum { RAVEL__AWAIT_NS = 2000000 };
/* Polls until everything that was sent is with the peers' kernels, or no byte has moved for `seconds`; then most links
 * can be closed without losing what they carry. 1: it is. */
int ravel__hub_drain(ravel__hub *hub, double seconds);
/* Ends a poll that waits; from any thread. */
void ravel__hub_wake(ravel__hub *hub);

/* Sends a message: what can go at once goes, the rest while polling. token NULL: the body is copied where it does not
 * go out at once. Else body[head->bytes] must stay as it is until `sent` (which may be called before this returns) or
 * `down`. E_ARGUMENT: longer than the peer takes. E_STATE: the link is not up or is lost; `down` says why. */
ravel_status ravel__link_send(ravel__link *link, const ravel__message *head, const void *body, void *token,
                              ravel_error *err);
/* The same without a tag of the body inside a machine: for bytes whose hash the receiver knows and compares anyway.
 * Over TCP, where others could change both, as ravel__link_send. */
ravel_status ravel__link_send_raw(ravel__link *link, const ravel__message *head, const void *body, void *token,
                                  ravel_error *err);
/* Cancels a send: the caller may reuse the body at once, and `sent` is not called. The rest is sent from a copy, since
 * the peer expects it. 0: no memory for the copy, and the link is lost. */
int ravel__link_detach(ravel__link *link, void *token);
/* If the body that is being received goes to `body`, stops writing there: the rest is read and dropped, and `message`
 * gets NULL. */
void ravel__link_forget(ravel__link *link, const void *body);
/* Bytes that were given to send and not yet to the kernel. */
int64_t ravel__link_unsent(const ravel__link *link);
/* Bytes of bodies that went through shared memory. */
int64_t ravel__link_shared(const ravel__link *link);
/* Frames, of any kind, of which a part was not yet given to the kernel. */
int64_t ravel__link_frames(const ravel__link *link);
/* Sends a closing frame with the reason if it can, and closes. `down` is not called; queued messages are dropped. Any
 * handler may call it. */
void ravel__link_close(ravel__link *link, const char *why);

void *ravel__link_owner(const ravel__link *link);
void ravel__link_set_owner(ravel__link *link, void *owner);

#endif
