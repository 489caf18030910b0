/* train/run/grpo/episodes.h: rollouts that a generator works on turn by turn, beside one another.
 *
 *     question x group size -> seats -> the generator draws an answer -> over, without an environment
 *                                ^------ observation <- environment <-----'  or: its reply ends it, or a limit does
 *
 * A rollout has a seat from its beginning to its end; there are as many seats as the generator has slots. Its tokens
 * stay in the seat; a turn is a request whose prompt is everything so far, of which the generator has kept the pages. A
 * rollout whose environment is lost begins again, up to --env-retries times, alone in a process if it may have been the
 * reason; then it is dropped: it comes out without a score.
 *
 * Rollouts of several batches may be worked on at once (--async). One batch is due at a time: when its last rollout is
 * over, the others pause where they are, so that what is drawn by which weights depends on numbers of tokens and never
 * on time. Servers (--rollout) are not paused: what they draw goes on while they take new weights, and is heard by
 * train__episodes_answer in the meantime.
 *
 * Of ranks that share a generator's layers the first has the environment, and the others do what it hears, in its order.
 *
 * What is drawn is a function of the weights, the question and what the environment says: random numbers are of (seed,
 * group, member, turn), and a rollout that begins again draws the same tokens. */
#ifndef TRAIN_GRPO_EPISODES_H
#define TRAIN_GRPO_EPISODES_H

#include "train/rl/outside/env.h"
#include "train/rl/prompts.h"
#include "train/run/grpo/drawing.h"
#include "train/run/run.h"

typedef struct train__episodes train__episodes;

typedef struct train__episodes_options {
    const train_config *config;
    train__drawing drawing;
    int64_t slot_tokens; /* of a rollout */
    int64_t route_width; /* elements of a token's route; 0: routes are not wanted */
    const train_prompts *prompts;
    train_text *text;
    const int32_t *stops; /* [stop_count] tokens that end an answer */
    int32_t stop_count;
    ravel_comm *tp;           /* ranks of the generator; NULL: one */
    const train_hooks *hooks; /* may be NULL */
} train__episodes_options;

/* What the options point to must outlive it. */
ravel_status train__episodes_create(const train__episodes_options *options, train__episodes **episodes,
                                    ravel_error *err);
void train__episodes_free(train__episodes *episodes);

/* Questions to answer, each `group_size` times. */
ravel_status train__episodes_add(train__episodes *episodes, const train_rollouts *questions, int64_t batch,
                                 int64_t group_size, int greedy, ravel_error *err);
/* Works until all rollouts of batch order->due are over, and adds them to `answers`, in any order. Those of other
 * batches that were worked on in the meantime, because there were seats for them, stay and go on with the next call,
 * with the weights that the generator has then. If a signal ends it, order->stopped is set, and what is not over of the
 * batch is dropped. */
ravel_status train__episodes_run(train__episodes *episodes, train_order *order, train_rollouts *answers,
                                 ravel_error *err);
/* Of servers, between two calls; `user` is the episodes. */
ravel_status train__episodes_answer(void *user, const train_answer *answer, ravel_error *err);
/* For a checkpoint, between two calls: adds what is here to `all`, and takes it into episodes that have nothing yet. A
 * rollout with an environment begins again. */
ravel_status train__episodes_keep(const train__episodes *episodes, train_rollouts *all, ravel_error *err);
ravel_status train__episodes_restore(train__episodes *episodes, const train_rollouts *all, ravel_error *err);

#endif
