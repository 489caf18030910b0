/* train/run/grpo/seats.h: the rollouts that a generator works on (episodes.h), for the two files that are them: episodes.c (turns),
 * seats.c (lists: what is over, what is asked, what goes into a checkpoint). */
#ifndef TRAIN_GRPO_SEATS_H
#define TRAIN_GRPO_SEATS_H

#include "train/rl/turns.h"
#include "train/run/grpo/episodes.h"

typedef enum place { FREE, AT_ENV, READY, DRAWING } place;

/* A rollout that is worked on. */
typedef struct seat {
    place place;
    train_rollout item; /* `first` is of the question's tokens in `questions` */
    int64_t question;   /* tokens of it */
    int64_t greedy, used;
    int32_t tried, alone, ended; /* tried: in sixteenths */
    int64_t parted;              /* answers in the parts of it that are done */
    int32_t begun, lost;         /* the environment has answered to the start; is lost while the generator draws */
    int32_t *tokens;             /* [slot_tokens], `used` of them */
    float *logprobs;
    int32_t *versions;
    int16_t *routes; /* [slot_tokens, route_width] of the first `routed` tokens; NULL: not wanted */
    int64_t routed;
    train_turns turns;
} seat;

struct train__episodes {
    train__episodes_options options;
    int has_env;                   /* 0: rollouts of one answer */
    train_peer *env;               /* NULL also on ranks of a generator after its first */
    train_out heard;               /* what it has said */
    train_sampling sampling[2];    /* greedy: [1] */
    seat *seats;                   /* [count] */
    int64_t count, taken, running; /* running: at the generator */
    /* not begun; item.member is the next member, item.turns the group's size, item.ended greedy */
    train_rollouts questions;
    int64_t next;
    train_rollouts done, spare; /* rollouts that are over */
    double paused;              /* since when */
    int64_t due, due_left;      /* batch that is worked on first, and its rollouts that are not over */
    train_request *requests[2]; /* take turns, because the generator borrows them */
    int64_t *seat_of;           /* of each request; -1: over */
    int64_t request_count, request_room[2], seat_room;
    int32_t turn, warnings, differing;
    train_polls polls;
    char *text; /* of an action */
    int64_t text_room;
};

/* Adds what the seat holds as `item`. */
ravel_status train__seat_copy(const train__episodes *e, const seat *s, const train_rollout *item, train_rollouts *to,
                              ravel_error *err);
/* What is held becomes a sample of its own: the environment replaces the conversation. Its reward is that of the rollout,
 * which goes on. */
ravel_status train__seat_part(train__episodes *e, seat *s, ravel_error *err);
/* The parts of a rollout that is over have its reward; forget: it begins again. */
void train__seat_settle(train__episodes *e, seat *s, int forget);
/* Rollouts of the batch that is due go to `answers`, others stay. */
ravel_status train__seats_hand_over(train__episodes *e, train_rollouts *answers, ravel_error *err);

#endif
