/* train/rl/rollout.h: prompts to the generator ranks, answers back to the trainer ranks.
 *
 * Nouns
 *   rollout   a prompt and one answer to it, side by side. A prompt by itself is a rollout whose answer is still empty.
 *   group     the answers to one prompt.
 *   rollouts  a list of rollouts: one array of items, one of tokens, one of log-probs, one of versions. It grows as it
 *             is filled and is used again for every batch.
 *   version   of the weights that drew a token, counted from 1; 0: the token was given, by the prompt or by an
 *             environment between two answers, and carries no loss.
 *   order     the next command of trainer 0 to a generator: answer these prompts, take new weights, stop. Answers to the
 *             prompts of one order may be due with a later order: that many batches a generator is ahead.
 *
 *     trainer 0            generator 0            generator 1
 *        |-- order: generate -->|                      |
 *        |-- order: generate ------------------------->|
 *        |                      |  (generates)         |         a group goes whole to trainer group % receivers,
 *     trainer t <---------------+----------------------+         so that advantages need no communication
 *        |-- order: refit ----->|  (all ranks refit)   |
 *
 * Ranks are those of one communicator: trainers 0 .. T-1, generators T .. T+G-1. A message is a head of integers with a
 * magic number, then the arrays that it announces. */
#ifndef TRAIN_ROLLOUT_H
#define TRAIN_ROLLOUT_H

#include <ravel/comm.h>

typedef enum train_rollout_progress {
    TRAIN_ROLLOUT_OVER,
    TRAIN_ROLLOUT_BEGUN, /* it is a question and a part of the answer */
    TRAIN_ROLLOUT_ASKED, /* it is a question, asked `turns` times, of which `member` are begun */
} train_rollout_progress;

typedef struct train_rollout {
    int64_t first;     /* of its tokens in the list */
    int64_t length;    /* prompt and answer */
    int64_t prompt;    /* tokens before the first that the model drew */
    int64_t group;     /* which prompt, by the caller's number */
    int64_t member;    /* which answer to it, 0 .. */
    int64_t ended;     /* 1: with an end token, 0: cut off */
    int64_t version;   /* of the weights that it was begun with */
    int64_t turns;     /* answers in it: 1, or as many as an environment (env.h) took */
    int64_t retried;   /* times that it was begun again, because its environment was lost */
    int64_t wasted;    /* tokens that were drawn before that */
    int64_t differs;   /* turns whose tokens differ from what the chat template writes */
    int64_t scored;    /* 1: `reward` is there; an answer is scored once */
    int64_t batch;     /* that asked for it */
    int64_t progress;  /* train_rollout_progress; in the trainers' lists rollouts are over */
    int64_t drawn;     /* BEGUN: tokens of the turn that is being drawn */
    int64_t generator; /* that works on it, in a checkpoint */
    int64_t part;      /* 0 ..: of a rollout whose environment has replaced the conversation, each is a sample */
    double reward;     /* without length rules */
    double accuracy;   /* 1 right, 0 wrong; of a reward command what it says, else its reward */
} train_rollout;

/* All zero is an empty list. */
typedef struct train_rollouts {
    train_rollout *items; /* [count] */
    int32_t *tokens;      /* [used] */
    float *logprobs;      /* [used] the generator's, of each token; 0 on given ones */
    int32_t *versions;    /* [used] of the weights that drew each token; 0: it was given */
    int64_t count, room;
    int64_t used, token_room, logprob_room, version_room;
    int16_t *routes; /* [used, width] experts of each token (ravel/routes.h), -1: not known */
    int64_t width;   /* 0: there are no routes */
    int64_t route_room;
} train_rollouts;

void train_rollouts_clear(train_rollouts *rollouts);
void train_rollouts_free(train_rollouts *rollouts);
/* Copies a rollout in; item->first is ignored. logprobs NULL: zeros; versions NULL: item->version behind the prompt. On
 * E_MEMORY the list is as it was. */
ravel_status train_rollouts_add(train_rollouts *rollouts, const train_rollout *item, const int32_t *tokens,
                                const float *logprobs, const int32_t *versions, ravel_error *err);
/* Copies an item of another list in, with its routes. */
ravel_status train_rollouts_copy(train_rollouts *to, const train_rollouts *from, const train_rollout *item,
                                 ravel_error *err);
/* Routes of the rollout that was added last, [count, width] of its first tokens. E_DATA: the list has another width. */
ravel_status train_rollouts_set_routes(train_rollouts *rollouts, const int16_t *routes, int64_t count, int64_t width,
                                       ravel_error *err);
/* How many of its tokens the model drew. */
int64_t train_rollout_drawn(const train_rollouts *rollouts, const train_rollout *item);
/* By (group, member, part): the order of a batch does not depend on which rank was first. Tokens stay where they are. */
void train_rollouts_sort(train_rollouts *rollouts);
/* Adds those of `from` whose group is `part` modulo `parts`, and sorts. */
ravel_status train_rollouts_take(train_rollouts *to, const train_rollouts *from, int32_t parts, int32_t part,
                                 ravel_error *err);
/* Of items from a message or a file, the first that does not lie inside `tokens` tokens; -1: all of them do. */
int64_t train_rollouts_outside(const train_rollout *items, int64_t count, int64_t tokens);

typedef enum train_order_kind {
    TRAIN_ORDER_GENERATE,
    TRAIN_ORDER_REFIT,
    TRAIN_ORDER_KEEP,    /* the rollouts that are not handed over, to trainer 0, for a checkpoint */
    TRAIN_ORDER_RESTORE, /* those of a checkpoint */
    TRAIN_ORDER_STOP
} train_order_kind;

enum { TRAIN_NOTHING_DUE = -2 };

typedef struct train_order {
    int64_t kind;       /* train_order_kind */
    int64_t batch;      /* running number of the prompts of this order */
    int64_t due;        /* GENERATE: work until this batch is answered and hand it over; or TRAIN_NOTHING_DUE */
    int64_t version;    /* REFIT: of the weights to come */
    int64_t group_size; /* answers to each prompt */
    int64_t greedy;     /* 1: always the likeliest token (evaluation) */
    int64_t waited;     /* of answers: microseconds that the generator has waited for orders since the last */
    int64_t may_stop;   /* GENERATE: a signal to stop ends it */
    int64_t stopped;    /* of answers: it did, and they are not all */
} train_order;

/* From trainer 0 to one generator; `prompts` may be NULL. */
ravel_status train_order_send(ravel_comm *comm, int32_t generator, const train_order *order,
                              const train_rollouts *prompts, ravel_error *err);
/* On a generator: waits for the next order of trainer 0; prompts are put into the cleared rollouts. */
ravel_status train_order_receive(ravel_comm *comm, train_order *order, train_rollouts *prompts, ravel_error *err);

/* On a generator: to every trainer its groups. Answers go to `receivers` of the trainers, those whose rank is a
 * multiple of `stride`: one for all ranks that learn from the same samples. */
ravel_status train_answers_send(ravel_comm *comm, int32_t receivers, int32_t stride, train_order of,
                                const train_rollouts *answers, ravel_error *err);
/* On a trainer: adds what every generator has for it, sorted. The first of each `stride` generator ranks sends. E_DATA
 * where a message is not of this batch. *of: `waited` of all together, and whether one `stopped`. */
ravel_status train_answers_receive(ravel_comm *comm, int32_t trainers, int32_t stride, int64_t batch,
                                   train_rollouts *answers, train_order *of, ravel_error *err);

/* A whole list from one rank to another; the receiver adds it to its own. */
ravel_status train_rollouts_send(ravel_comm *comm, int32_t peer, const train_rollouts *rollouts, ravel_error *err);
ravel_status train_rollouts_receive(ravel_comm *comm, int32_t peer, train_rollouts *rollouts, ravel_error *err);
/* Collective: replaces the lists of all other ranks by that of rank 0. */
ravel_status train_rollouts_broadcast(ravel_comm *comm, train_rollouts *rollouts, ravel_error *err);

#endif
