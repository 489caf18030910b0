/* train/rl/outside/env.h: environments that answer a model turn by turn: the user's command, or HTTP servers (peer.h).
 *
 * Nouns
 *   episode   one rollout in its environment: start, then an answer of the environment to every action, until its end. It
 *             has an id of the caller's; the environment keeps the states of all its episodes apart by their ids.
 *
 * Lines of JSON, to the standard input of the command, or as the body of a POST:
 *
 *     {"id": 17, "event": "start", "seed": 4, "row": {...}}              "row" is that of the data file, if there is one
 *     {"id": 17, "event": "step", "action": "50", "ids": [53, 48, 257], "ended": true, "last": false}
 *     {"id": 17, "event": "end", "reason": "turns"}                      nothing is answered to this one
 *
 * and back, one line for each start and each step, in any order:
 *
 *     {"id": 17, "observation": "too high", "reward": 0}                 the next turn begins
 *     {"id": 17, "reward": 1, "end": true, "accuracy": 1}                the episode is over
 *     {"id": 17, "observation": [{"role": "tool", "content": "7"}, ...]}  several messages
 *     {"id": 17, "context": [messages], "observation": "go on"}          these replace the conversation
 *     {"id": 17, "error": "text"}                                        this episode has failed, and no other
 *     {"id": 17, "lost": true}                                           a server that was started again does not know it
 *
 * Equal seeds must give equal episodes: the rollouts of a group have the same seed, so that their rewards compare.
 * Rewards of an episode are added up. "role" says who speaks in an observation ("user"; "tool" for the answer to a
 * call). "ended" is false for an action that was cut off at the limit; after one with "last" true there is no further
 * turn.
 *
 *     train_env_open(&options, &env, &err);
 *     train_env_start(env, id, seed, row, 0, &err);
 *     while (episodes) {
 *         train_peer_wait(env, 1.0);
 *         train_env_hear(env, NULL, &heard, &err);
 *         for (size_t at = 0; train_env_heard(&heard, &at, &reply);) ...      train_env_step, or train_env_end
 *     }
 */
#ifndef TRAIN_ENV_H
#define TRAIN_ENV_H

#include <ravel/comm.h>

#include "train/rl/outside/peer.h"

/* A peer with sessions; `what` is set here. It is waited for, and freed, as any peer. */
ravel_status train_env_open(const train_peer_options *options, train_peer **env, ravel_error *err);

/* `row`: one line of JSON, or NULL. An error is one of the machine: no memory, no process. */
ravel_status train_env_start(train_peer *env, int64_t id, int64_t seed, const char *row, int alone, ravel_error *err);
typedef struct train_env_action {
    const char *text; /* [bytes] */
    size_t bytes;
    const int32_t *ids; /* [tokens] */
    int64_t tokens;
    int32_t ended, last;
} train_env_action;
ravel_status train_env_step(train_peer *env, int64_t id, const train_env_action *action, ravel_error *err);
/* The caller wants nothing more of an episode that is not over. */
void train_env_end(train_peer *env, int64_t id, const char *reason);

/* Its strings are in what was heard. */
typedef struct train_env_reply {
    int64_t id;
    ravel_status status;     /* not RAVEL_OK: the episode is lost, `observation` says why */
    int32_t cost, alone;     /* of a lost one, as train_reply */
    int32_t end;             /* the episode is over; also if it is lost */
    const char *observation; /* [bytes]; NULL: none */
    size_t bytes;
    int32_t listed;      /* it is a list of messages, as JSON */
    const char *context; /* [context_bytes] likewise; NULL: the conversation goes on */
    size_t context_bytes;
    const char *role;
    double reward;
    double accuracy; /* NAN: none was given */
} train_env_reply;

/* Appends the next answer that has come to `heard`; 0: there is none. */
int train_env_take(train_peer *env, train_out *heard);
/* For ranks that do the same at the same time: all answers that have come to the first rank, which has the environment, in
 * `heard` on all of them; `env` is NULL on the others. Its status (train_peer_status) is an error of all. comm NULL: one
 * rank. */
ravel_status train_env_hear(train_peer *env, ravel_comm *comm, train_out *heard, ravel_error *err);
/* The answer at *at, 0 at first; 0 after the last. */
int train_env_heard(const train_out *heard, size_t *at, train_env_reply *reply);

#endif
