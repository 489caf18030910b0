/* One link from a generator to a trainer rank, with blocking calls: connect, ask, or send and receive. A lost link is
 * E_IO, not E_PEER_LOST, which would mean that the generator's own communicator is lost. */
#ifndef RAVEL_REFIT_DIAL_H
#define RAVEL_REFIT_DIAL_H

#include "comm/link/link.h"

#include <stdatomic.h>

/* A message that answers; body in memory of the dial's allocator, NULL if it has none. */
typedef struct ravel__reply {
    uint32_t kind;
    int32_t came;
    unsigned char *body;
    size_t bytes;
} ravel__reply;

typedef struct ravel__dial {
    ravel__hub *hub;
    ravel__link *link; /* NULL: not connected */
    int32_t is_up;
    char why[256]; /* it went down */
    /* set by the user before ravel__dial_open */
    const char *token;
    int32_t tls;
    const ravel_allocator *allocator;
    int64_t max_body;
    void *user; /* place, message: of what comes; NULL: only answers to ravel__dial_ask do */
    void *(*place)(void *user, const ravel__message *head);
    void (*message)(void *user, const ravel__message *head, void *body);
    ravel__reply reply;          /* to the last question */
    const _Atomic int32_t *stop; /* ends every wait with E_END; NULL: nothing does */
} ravel__dial;

/* Connects; waits at most `timeout` seconds. */
ravel_status ravel__dial_open(ravel__dial *dial, const char *address, double timeout, ravel_error *err);
/* Sends a copy of the body. */
ravel_status ravel__dial_send(ravel__dial *dial, uint32_t kind, uint64_t id, const void *body, int64_t bytes,
                              ravel_error *err);
/* Receives until *done. E_IO: `timeout` seconds without a message, or the link is lost, with the reason. */
ravel_status ravel__dial_run(ravel__dial *dial, const int32_t *done, double timeout, ravel_error *err);
/* Sends, and waits for one message of this kind, which is then in dial->reply until the next question. A FAILED is
 * returned as its status; E_DATA: another message came. */
ravel_status ravel__dial_ask(ravel__dial *dial, uint32_t kind, const void *body, int64_t bytes, uint32_t answer,
                             double timeout, ravel_error *err);
/* Safe in every state. */
void ravel__dial_close(ravel__dial *dial);

#endif
