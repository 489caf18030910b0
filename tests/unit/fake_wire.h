/* A wire that is made up: ranks in one process, frames in lists, transfers that copy only when both ends are there (so a
 * send waits for its receive). It counts what moves, and fails when it is told to. */
#ifndef TESTS_FAKE_WIRE_H
#define TESTS_FAKE_WIRE_H

#include "comm/remote/remote.h"

typedef struct fake_net fake_net;

/* The world that the next ranks join; frames and bytes are counted over all ranks. */
typedef struct fake_world {
    int32_t size, joined;
    int open_code;            /* of the next open */
    int poll_code;            /* of the next poll */
    int frame_code;           /* of the next frame */
    int reorder;              /* frames of different peers are delivered in another order */
    int apart;                /* ranks are opened one after the other, by one thread: none waits for the others */
    int any_gone;             /* fake_lose was called */
    int quiet;                /* like MPI it does not say which ranks are gone */
    int stuck;                /* transfers never end, and cannot be cancelled */
    int32_t cut_from, cut_to; /* frames from one rank to the other go nowhere; equal: none; under the lock */
    int64_t frames, frame_bytes, transfers, transfer_bytes;
    int64_t most_frames; /* sent by one rank */
    fake_net **nets;     /* [size] */
    pthread_mutex_t lock;
    int nets_open;
} fake_world;

void fake_world_init(fake_world *w, int32_t size);
void fake_world_free(fake_world *w);
/* `options.module` carries the fake_world, and `options.rank` the rank. */
extern const ravel__wire fake_wire;
ravel_status fake_open(fake_world *w, int32_t rank, double timeout, ravel_comm **comm, ravel_error *err);
/* A rank is gone. */
void fake_lose(fake_world *w, int32_t rank, const char *why);

#endif
