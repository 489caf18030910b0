/* What the files of the links share: link.c (hubs, polling, timers), link_open.c (listening, connecting, the handshake),
 * link_io.c (frames in and out), link_await.c (waiting for one link). */
#ifndef RAVEL_COMM_LINK_STATE_H
#define RAVEL_COMM_LINK_STATE_H

#include "base/memory.h"
#include "comm/address.h"
#include "comm/link.h"
#include "comm/link_frame.h"

#include <sys/types.h>

enum { LINK_LISTENERS = 4, LINK_IN_BYTES = 64 << 10, LINK_WHY = 640 };

typedef enum link_state {
    LINK_WAITS,    /* to try the next address, at retry_ns */
    LINK_CONNECTS, /* the system connects */
    LINK_GREETS,   /* waits for the peer's greeting */
    LINK_PROVES,   /* waits for the peer's proof */
    LINK_UP,
    LINK_CLOSED /* on the list of closed ones; freed when the poll ends */
} link_state;

/* What epoll's pointers point at: the first member of links and listeners. */
typedef enum link_source { SOURCE_LINK, SOURCE_LISTENER, SOURCE_WAKE } link_source;

/* Something to be sent: a frame, or bytes of the handshake (no head). */
typedef struct link_out {
    struct link_out *next;
    uint8_t head[RAVEL__HEAD_BYTES], sum[RAVEL__SUM_BYTES];
    int32_t head_bytes, sum_bytes; /* 0 or all */
    uint32_t number;
    const uint8_t *body;
    int64_t bytes, done, summed; /* of the body; done: of everything, head and sum included */
    void *token;                 /* NULL: `body` is a copy that lies behind this struct */
    int64_t reserved;            /* bytes of that copy */
} link_out;

typedef enum link_stage { IN_HEAD, IN_BODY, IN_SUM } link_stage;

struct ravel__link {
    link_source source;
    ravel__hub *hub;
    ravel__link *next, *prev;
    void *owner;
    int fd;
    link_state state;
    int32_t connects;  /* this side began */
    int32_t was_up;    /* `up` was called */
    int32_t wants_out; /* epoll was asked for room to write */
    int32_t writing;   /* ravel__link_write is running: what is queued meanwhile goes out with it */
    int32_t mute;      /* writing failed: only what still comes is read, which says why */
    int32_t is_tcp;
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
    ravel__frame frame;
    uint8_t *body; /* where it goes; NULL: nowhere */
    uint64_t got, summed, in_salt, out_salt;
    uint32_t in_number, out_number;
    ravel__body_sum running;
    uint8_t goodbye[RAVEL__HELLO_MOST + 1];
    /* out */
    link_out *first, *last;
    int64_t unsent, frames;  /* bytes and frames of the queue */
    ravel__body_sum summing; /* of the one frame that is summed in part */
    int64_t last_in_ns, last_out_ns, stuck_ns;
};

typedef struct link_listener {
    link_source source;
    int fd;
    int32_t paused;
    ravel__address at;
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
} link_loan;

struct ravel__hub {
    link_source wake_source;
    int epoll, wake;
    ravel__hub_options options;
    char *token, *allow;
    ravel__hub_handler handler;
    link_listener listeners[LINK_LISTENERS];
    int32_t listener_count, accepted;
    char address[LINK_LISTENERS * RAVEL__ADDRESS_TEXT];
    uint8_t hello[RAVEL__HELLO_MOST];
    int32_t hello_bytes;
    ravel__link *links, *closed;
    int64_t tick_ns, soonest_ns, polled_ns, events;
    ravel__link *hot; /* what bytes came from last */
    uint32_t glances; /* polls that looked at it alone */
    link_loan loan;
};

/* ---- link.c ---- */
ravel__link *ravel__link_new(ravel__hub *hub, int connects);
/* Loses the link: `down` where its owner knows of it. */
void ravel__link_lose(ravel__link *link, const char *why);
/* Takes it from its list and closes the descriptor; freed when the poll ends. */
void ravel__link_drop(ravel__link *link);
/* Puts the descriptor under epoll, with or without an interest in writing. */
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

/* ---- link_open.c ---- */
ravel_status ravel__hub_listen(ravel__hub *hub, const char *list, ravel_error *err);
void ravel__hub_accept(ravel__hub *hub, link_listener *listener);
/* The next address of a connecting link. */
void ravel__link_try(ravel__link *link, int64_t now);
/* An attempt failed: the next address, or the first one again after a pause. */
void ravel__link_again(ravel__link *link, int64_t now, const char *trouble);
/* The system has connected, or failed to. */
void ravel__link_connected(ravel__link *link);
/* Bytes of the handshake have come: link->in[in_at .. in_end]. */
void ravel__link_handshake(ravel__link *link);

/* ---- link_io.c ---- */
/* A frame or raw bytes at the end of the queue; NULL: no memory. */
link_out *ravel__link_queue(ravel__link *link, const void *body, int64_t bytes, int copies);
ravel_status ravel__link_frame(ravel__link *link, uint32_t type, const ravel__message *head, const void *body,
                               void *token, ravel_error *err);
void ravel__link_write(ravel__link *link);
void ravel__link_read(ravel__link *link);
void ravel__link_free_queue(ravel__link *link);
/* A read into the buffer gave this: bytes, 0 (closed) or -1 and the system's error. */
void ravel__link_took(ravel__link *link, ssize_t got, int error);

#endif
