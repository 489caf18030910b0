/* A link of the server, and the pull that it serves. */
#ifndef RAVEL_REFIT_SERVE_JOB_H
#define RAVEL_REFIT_SERVE_JOB_H

#include "refit/publish/serve.h"

enum {
    RAVEL__JOB_BUFFERS = 4,
    RAVEL__JOB_BUFFER_BYTES = 256 * 1024,
    RAVEL__JOB_BLOCKS = 16 /* messages of a link that the system has not taken yet */
};

typedef struct ravel__job_buffer {
    unsigned char *bytes; /* [RAVEL__JOB_BUFFER_BYTES]; NULL: not needed yet */
    int32_t busy;
} ravel__job_buffer;

typedef struct ravel__pull_job {
    int32_t active;
    int32_t mapped; /* the generator reads the version where it is; nothing is sent */
    uint64_t id;
    ravel_error why; /* status not RAVEL_OK: it ends with FAILED */
    ravel__kept *kept;
    ravel_refit_identity held;      /* by the generator */
    ravel__kept *base;              /* its bytes, for comparing; NULL: they are not kept (any more) */
    ravel__trail trail;             /* then what changed since */
    struct ravel__changes *changes; /* since the base, of a store on a device; NULL: not needed yet */
    int32_t on_host; /* the device cannot find them: versions are brought to the host and compared there */
    ravel_refit_identity identity;
    ravel__asked *asked; /* [count] */
    int64_t count;
    char *same;    /* [store->tiles.blocks]: unchanged since the base; NULL: no base */
    int64_t slice; /* the next one, and its next element */
    int64_t first;
    int32_t in_flight;
    int32_t serving; /* inside serve_more: `sent` may be called from there */
    ravel__job_buffer buffers[RAVEL__JOB_BUFFERS];
} ravel__pull_job;

struct ravel__client {
    ravel__serve_lane *lane;
    ravel__link *link;
    ravel__client *next, *before;
    unsigned char *body; /* of the message that is being read */
    size_t body_bytes;
    int32_t watching;
    uint64_t watch_id;
    int64_t watch_until;
    ravel_refit_identity known;
    ravel__pull_job job;
};

/* serve.c: answers with FAILED. */
void ravel__client_fail(ravel__client *client, uint64_t id, ravel_status status, const char *message);

/* A PULL came, or a MAP (`mapped`): checks it and begins to serve. A wrong one is answered with FAILED. The version of
 * a MAP is used until READ, which ends it with END, or until it is revoked, which closes the link. */
void ravel__job_begin(ravel__client *client, uint64_t id, const unsigned char *body, int64_t bytes, int mapped);
void ravel__job_read(ravel__client *client, uint64_t id);
/* The system has taken a message. */
void ravel__job_sent(ravel__client *client, void *token);
int ravel__job_is_revoked(const ravel__client *client);
/* Goes on without the base, or the lists since, if the trainer wants to replace them. */
void ravel__job_check_base(ravel__client *client);
/* Releases the version and the buffers. */
void ravel__job_end(ravel__client *client);

#endif
