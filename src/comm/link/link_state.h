/* What the files of the links share: link.c (hubs, polling, timers), link_open.c (listening, connecting, the
 * handshake), link_io.c (frames in and out), link_memory.c (shared memory), link_await.c (waiting for one link). */
#ifndef RAVEL_COMM_LINK_STATE_H
#define RAVEL_COMM_LINK_STATE_H

#include "base/memory.h"
#include "base/rng.h"
#include "comm/link/address.h"
#include "comm/link/link.h"
#include "comm/link/link_frame.h"
#include "comm/tls.h"
#include "comm/link/token.h"

#include <stdbool.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { LINK_LISTENERS = 4, LINK_IN_BYTES = 64 << 10, LINK_WHY = 640 };

typedef enum link_state {
    LINK_WAITS,    /* to try the next address, at retry_ns */
    LINK_CONNECTS, /* the system connects */
    LINK_SECURES,  /* agrees on keys of TLS */
    LINK_GREETS,   /* waits for the peer's greeting */
    LINK_PROVES,   /* waits for the peer's proof */
    LINK_UP,
    LINK_CLOSED /* on the list of closed links; freed when the poll ends */
} link_state;

/* What epoll's pointers point at: the first member of links, listeners and rings. */
typedef enum link_source { SOURCE_LINK, SOURCE_LISTENER, SOURCE_WAKE, SOURCE_RING } link_source;

/* Something to be sent: a frame, or bytes of the handshake (no head). */
typedef struct link_out {
    struct link_out *next;
    uint8_t head[RAVEL__HEAD_BYTES], sum[RAVEL__SUM_BYTES];
    int32_t head_bytes, sum_bytes; /* 0 or all */
    uint64_t number;
    /* the body goes through the ring: `head` is the head, then one record after the other and the sum */
    int32_t shared;
    int32_t gives; /* the ring's descriptors go with it */
    const uint8_t *body;
    int64_t bytes, done, summed; /* of the body; done: of everything, head and sum included */
    void *token;                 /* NULL: `body` is a copy that lies behind this struct */
    int64_t reserved;            /* bytes of that copy */
} link_out;

typedef enum link_stage { IN_HEAD, IN_BODY, IN_RECORD, IN_SUM } link_stage;

/* One end of the shared memory of one direction: see link_memory.c. */
typedef struct link_ring {
    link_source source;
    ravel__link *link;
    int memory, event;             /* descriptors; memory: until it was given to the peer */
    uint8_t *map;                  /* NULL: none */
    uint64_t at;                   /* bytes that this side has copied so far */
    uint64_t freed;                /* sender: that the receiver has */
    int32_t tried, watched, waits; /* sender: it was made or cannot be; epoll knows the event; there is no room */
} link_ring;
enum { RING_OUT, RING_IN };

typedef union ring_control {
    struct cmsghdr aligned;
    char bytes[CMSG_SPACE(2 * sizeof(int))];
} ring_control;

struct ravel__link {
    link_source source;
    ravel__hub *hub;
    ravel__link *next, *prev;
    void *owner;
    int fd;
    link_state state;
    int32_t connects;     /* this side began */
    int32_t was_up;       /* `up` was called */
    int32_t wants_out;    /* epoll was asked for room to write */
    int32_t writing;      /* ravel__link_write is running: what is queued meanwhile goes out with it */
    int32_t write_failed; /* writing failed: only what still comes is read, which says why */
    int32_t is_tcp;
    uint8_t bucket;      /* of an accepted link's host */
    void *tls;           /* a session; NULL: none */
    int32_t paused;      /* its queue is long: nothing is read */
    uint32_t token_kind; /* RAVEL__TOKEN_...: of this side */
    uint32_t peer_token_kind;
    int64_t deadline_ns, retry_ns, pause_ns;
    double patience;                /* seconds until the deadline, as they were given */
    char *addresses, *next_address; /* connecting side */
    char peer[RAVEL__ADDRESS_TEXT], trouble[LINK_WHY];
    /* the handshake */
    uint8_t mine[RAVEL__GREETING_BYTES + RAVEL__HELLO_MOST], theirs[RAVEL__GREETING_BYTES + RAVEL__HELLO_MOST];
    int32_t mine_bytes, theirs_bytes;
    uint64_t most_out; /* the longest body that the peer takes */
    /* in */
    uint8_t *in; /* [LINK_IN_BYTES] */
    int32_t in_at, in_end;
    link_stage stage;
    ravel__link_head frame;
    uint8_t *body; /* where it goes; NULL: nowhere */
    uint64_t got, summed, in_number, out_number;
    ravel__mac_key in_key, out_key;
    ravel__mac running;
    uint8_t goodbye[RAVEL__HELLO_MOST + 1];
    /* out */
    link_out *first, *last;
    int64_t unsent, frames; /* bytes and frames of the queue */
    ravel__mac summing;     /* of the one frame that is summed in part */
    int64_t last_in_ns, last_out_ns, stuck_ns;
    link_ring rings[2]; /* RING_OUT, RING_IN */
    int given[2];       /* descriptors that came and were not looked at yet; -1: none */
    const char *fault;  /* why this side gave the link up while it wrote; NULL: it has not */
};

typedef struct link_listener {
    link_source source;
    int fd;
    int32_t paused;
    ravel__address at;
    dev_t device; /* of a Unix socket's file, which is removed at the end */
    ino_t inode;
} link_listener;

/* A link that a thread waits for alone. Between LENT and BACK only that thread touches `at` and `got`. */
typedef enum link_loan_state { LOAN_NONE, LOAN_LENT, LOAN_BACK } link_loan_state;

typedef struct link_loan {
    ravel__link *link; /* NULL: none */
    int state;         /* atomic */
    int fd, error;
    uint8_t *at; /* [room] */
    size_t room;
    ssize_t got;
    int takes, given[2]; /* descriptors that came with it */
} link_loan;

struct ravel__hub {
    link_source wake_source;
    int epoll, wake;
    ravel__hub_options options;
    char *token, *allow;
    const ravel__tls *tls; /* NULL: none */
    void *tls_context;
    char *user_token; /* NULL: not needed yet */
    ravel__hub_handler handler;
    link_listener listeners[LINK_LISTENERS];
    int32_t listener_count, up; /* up: accepted links that are */
    char address[LINK_LISTENERS * RAVEL__ADDRESS_TEXT];
    ravel__link *links, *closed;
    int64_t tick_ns, soonest_ns, polled_ns, events;
    ravel__rng luck;  /* which stranger is closed for another one; nobody outside knows it */
    ravel__link *hot; /* what bytes came from last */
    uint32_t peeks;   /* polls that looked at it alone */
    link_loan loan;
};

/* ---- link.c ---- */
ravel__link *ravel__link_new(ravel__hub *hub, int connects);
/* What holds between two calls, for assertions: counts of the queue, places in the buffer, what the state says of the
 * descriptor. */
bool ravel__link_ok(const ravel__link *link);
/* Loses the link: `down` where its owner knows of it. */
void ravel__link_lose(ravel__link *link, const char *why);
/* Takes it from its list and closes the descriptor; freed when the poll ends. */
void ravel__link_drop(ravel__link *link);
/* Puts the descriptor under epoll, with or without an interest in writing; in reading, unless it is paused. */
int ravel__link_watch(ravel__link *link, int adds, int out);
char *ravel__link_copy_text(const ravel_allocator *allocator, const char *text);

/* ---- link_await.c ---- */
/* The socket may be read without MSG_DONTWAIT: such a read waits RAVEL__AWAIT_NS at most. */
void ravel__link_may_wait(const ravel__link *link);
/* Takes a link back that was read, and parses what came. */
void ravel__hub_take_back(ravel__hub *hub);
/* Closes the descriptor, now or when it is back. */
void ravel__link_close_fd(ravel__link *link);
static inline int ravel__link_is_lent(const ravel__link *link) {
    return link->hub->loan.link == link;
}

/* ---- link_memory.c ---- */
void ravel__rings_init(ravel__link *link);
void ravel__rings_free(ravel__link *link);
/* 1: a ring was made now, for a body of `bytes`: a RING frame goes first. */
int ravel__ring_offers(ravel__link *link, int64_t bytes);
/* Whether the receiver has mapped it. */
int ravel__ring_is_ready(const ravel__link *link);
/* The descriptors, with the bytes of a RING frame; and when those have gone. */
void ravel__ring_attach(ravel__link *link, struct msghdr *message, ring_control *control);
void ravel__ring_attached(ravel__link *link);
/* Copies the beginning of from[bytes] into the ring: the bytes; 0: no room now; -1: the peer wrote garbage into it. */
int64_t ravel__ring_put(ravel__link *link, const uint8_t *from, int64_t bytes);
void ravel__ring_room_came(link_ring *ring);
/* recvmsg; `takes`: descriptors that come with it, too. */
ssize_t ravel__link_recv(int fd, struct iovec *list, int count, int flags, int takes, int given[2]);
/* A RING frame has come. */
void ravel__ring_take(ravel__link *link);
int ravel__ring_is_mapped(const ravel__link *link);
/* Copies the next piece out of the ring; to NULL: drops it. */
void ravel__ring_get(ravel__link *link, uint8_t *to, uint64_t bytes);

/* ---- link_open.c ---- */
ravel_status ravel__hub_listen(ravel__hub *hub, const char *list, ravel_error *err);
void ravel__hub_accept(ravel__hub *hub, link_listener *listener);
/* Removes the file of its Unix socket, if it is still that one. */
void ravel__listener_remove(const link_listener *listener);
/* The next address of a connecting link. */
void ravel__link_try(ravel__link *link, int64_t now);
/* An attempt failed: the next address, or the first one again after a pause. */
void ravel__link_again(ravel__link *link, int64_t now, const char *trouble);
/* The system has connected, or failed to. */
void ravel__link_connected(ravel__link *link);
/* The secret of this link's ends. */
const char *ravel__link_token(const ravel__link *link);
/* Sends this side's greeting. */
void ravel__link_greet(ravel__link *link);
/* Ends a link before it is up; an accepted one is told why. */
void ravel__link_refuse(ravel__link *link, const char *why);
/* Bytes of the handshake have come: link->in[in_at .. in_end]. */
void ravel__link_handshake(ravel__link *link);

/* ---- link_tls.c ---- */
/* Opens what sessions need, if the options or the environment ask for TLS. */
ravel_status ravel__hub_open_tls(ravel__hub *hub, ravel_error *err);
void ravel__hub_close_tls(ravel__hub *hub);
/* 1: this link is encrypted, and agrees on keys first. */
int ravel__link_begins_tls(ravel__link *link);
void ravel__link_end_tls(ravel__link *link);
/* The socket of a link that agrees on keys can be read or written. */
void ravel__link_secure(ravel__link *link);
/* As recvmsg: reads until the list is full or nothing is left. */
ssize_t ravel__link_tls_recv(ravel__link *link, const struct iovec *list, int count);
/* Whether bytes were decrypted that no event announces. */
int ravel__link_tls_pending(const ravel__link *link);

/* ---- link_io.c ---- */
/* A frame or raw bytes at the end of the queue; NULL: no memory. */
link_out *ravel__link_queue(ravel__link *link, const void *body, int64_t bytes, int copies);
ravel_status ravel__link_frame(ravel__link *link, uint32_t type, const ravel__message *head, const void *body,
                               void *token, ravel_error *err);
void ravel__link_write(ravel__link *link);
void ravel__link_read(ravel__link *link);
void ravel__link_free_queue(ravel__link *link);
/* Reads again, if it was paused and its queue is short enough. */
void ravel__link_resume(ravel__link *link);
/* A read into the buffer gave this: bytes, 0 (closed) or -1 and the system's error. */
void ravel__link_took(ravel__link *link, ssize_t got, int error);

#endif
