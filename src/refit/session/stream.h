/* What the two loops of a stream share: stream.c, where messages move while they are tested, and stream_order.c, for
 * communicators whose messages move only while one of them is waited for. */
#ifndef RAVEL_REFIT_STREAM_H
#define RAVEL_REFIT_STREAM_H

#include "refit/session/session.h"

/* A thread that packs, or that loads. */
typedef struct ravel__helper {
    ravel_refit *refit;
    pthread_t thread;
    int32_t running;
    _Atomic int32_t ended;
} ravel__helper;

/* Packs or loads one frame where no helper does it. */
void ravel__stream_help_out(ravel_refit *refit, ravel__helper *packer, const ravel__helper *loader);
void ravel__stream_tell(ravel_refit *refit);

/* A packed slot begins to go to its children, or to this rank's own loader. */
ravel_status ravel__stream_send(ravel_refit *refit, int32_t index, ravel_error *err);
/* The incoming stream whose turn it is; the next call gives the one after it. -1: none is left; -2: not known before the
 * notice that is awaited has come. */
int32_t ravel__stream_next_in_turn(ravel_refit *refit);
/* Receives the notice of the slot's stream. */
ravel_status ravel__stream_ask(ravel_refit *refit, ravel__refit_buffer *slot, ravel_error *err);
/* It is here: receives the frame, and passes the notice on. */
ravel_status ravel__stream_notice_came(ravel_refit *refit, ravel__refit_buffer *slot, ravel_error *err);
/* Of a frame whose payloads are apart, the rest is here: receives them. */
ravel_status ravel__stream_take_apart(ravel_refit *refit, ravel__refit_buffer *slot, ravel_error *err);
/* It is here: to the loader, and passed on. `bad`: it has another length than was announced. */
ravel_status ravel__stream_frame_came(ravel_refit *refit, int32_t index, int32_t bad, ravel_error *err);
/* Looks at one incoming slot. */
ravel_status ravel__stream_step_slot(ravel_refit *refit, int32_t index, ravel_error *err);
/* Buffers that the loader has given back, of either pool. */
void ravel__stream_take_loaded(ravel_refit *refit);
/* Outgoing slots that all receivers have go back to the packer. */
ravel_status ravel__stream_finish_sends(ravel_refit *refit, ravel_error *err);
/* Waits for one request, and leaves it as done. *bad: it had another length, which is no loss. */
ravel_status ravel__stream_wait(ravel_refit *refit, ravel_request **request, int32_t *bad, ravel_error *err);

/* stream_order.c */
ravel_status ravel__stream_in_order(ravel_refit *refit, ravel__helper *packer, const ravel__helper *loader,
                                    ravel_error *err);

#endif
