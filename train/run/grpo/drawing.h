/* train/run/grpo/drawing.h: what draws the answers of a generator rank: its own generator, or servers (--rollout). Both take
 * train_request and give train_answer; an answer without tokens is one that no server gave. */
#ifndef TRAIN_GRPO_DRAWING_H
#define TRAIN_GRPO_DRAWING_H

#include "train/kernels/host.h"
#include "train/model/generate/generator.h"
#include "train/rl/outside/remote.h"

/* One of the two. */
typedef struct train__drawing {
    train_generator *own;
    train_remote *remote;
} train__drawing;

static inline ravel_status train__draw_begin(train__drawing d, const train_request *requests, int64_t count,
                                             ravel_error *err) {
    return d.own ? train_generator_begin(d.own, requests, count, err)
                 : train_remote_begin(d.remote, requests, count, err);
}

static inline ravel_status train__draw_start(train__drawing d, const train_request *requests, int64_t ended,
                                             int64_t more, ravel_error *err) {
    return d.own ? train_generator_start(d.own, requests, ended, more, err)
                 : train_remote_start(d.remote, requests, ended, more, err);
}

static inline int64_t train__draw_idle(train__drawing d) {
    return d.own ? train_generator_idle_slots(d.own) : train_remote_idle(d.remote);
}

static inline int64_t train__draw_busy(train__drawing d) {
    return d.own ? train_generator_busy(d.own) : train_remote_busy(d.remote);
}

/* A generator is never waited for. */
static inline void train__draw_poll(train__drawing d, train_polls *polls) {
    if (d.remote)
        train_remote_poll(d.remote, polls);
    else if (train_generator_busy(d.own))
        train_polls_due(polls, train__now());
}

static inline ravel_status train__draw_advance(train__drawing d, const train_polls *polls, train_answer_fn answer,
                                               void *user, ravel_error *err) {
    if (d.remote) return train_remote_advance(d.remote, polls, answer, user, err);
    return train_generator_busy(d.own) ? train_generator_step(d.own, answer, user, err) : RAVEL_OK;
}

#endif
