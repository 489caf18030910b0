/* The state of one trainer rank in GRPO, for the files that are its loop: grpo.c (the loop), rollout.c (getting
 * answers), learn.c (learning from them), refit.c (weights to the generators). */
#ifndef TRAIN_GRPO_INTERNAL_H
#define TRAIN_GRPO_INTERNAL_H

#include <ravel/exchange.h>
#include <ravel/publish.h>

#include "train/rl/experience.h"
#include "train/rl/outside/teacher.h"
#include "train/run/config/cost.h"
#include "train/run/config/devices.h"
#include "train/run/grpo/grpo.h"
#include "train/run/grpo/pull.h"
#include "base/log.h"
#include "train/run/scores.h"

/* Routes of the pass that scored old log-probs, by update, part and micro-step (--router-replay first). */
typedef struct train__grpo_routes {
    int16_t *rows; /* [room] of which `used` */
    int64_t used, room;
    int64_t *keys; /* [4 * key_room] update, part, micro-step, and where its rows begin */
    int64_t count, key_room;
} train__grpo_routes;

typedef struct train__grpo {
    train_config *config; /* this rank's own: its GPU, its cost of samples */
    train_devices devices;
    train_cost cost;
    int new_cost;         /* the feed is to be made again before the next batch */
    ravel_comm *world;    /* trainers and generators */
    ravel_comm *trainers; /* the trainers alone */
    ravel_comm *leaders;  /* one trainer per data-parallel rank: they receive and score answers; NULL on the others */
    ravel_comm *replica;  /* the ranks that learn from the same samples; its rank 0 is a leader */
    int32_t rank, count, generators, local; /* ranks on this machine */
    train_run run;
    ravel_shape shape;
    ravel_mesh *mesh;
    ravel_feed *feed;
    int64_t flat_tokens; /* 0: prefixes are not shared */
    train_learner *learner;
    train_parts *reference;     /* where --kl is above 0; NULL with an adapter: the trained model without it */
    train_model_choice teacher; /* of the reference, with --teacher */
    train_teacher *taught;      /* on leaders, where the teacher is behind servers */
    train_text *text;           /* of the model */
    train_prompts *prompts;
    train_mix mix; /* of rewards */
    train_reward *command;
    ravel_refit *refit;                   /* collective; NULL: the run's generators pull from the publisher */
    ravel_publisher *publisher;           /* also for --publish; NULL: nobody pulls */
    train__meeting meeting;               /* with the run's generators, if they pull */
    train_place place;                    /* of the weights, if they pull */
    ravel_refit_source source, published; /* published: with the adapter's configuration, where an adapter is trained */
    ravel_refit_tensor *tensors;
    int64_t tensor_count, tensor_room;
    char *adapter_config; /* of malloc */
    size_t config_bytes;
    void *config_there; /* where the other tensors are, if that is not the host's memory */
    void *host_weights; /* a copy for a collective refit, where the kernels' memory is not the host's; else NULL */
    size_t host_bytes;  /* of all parts of the model, which lie one behind the other */
    train_rollouts answers, waiting, asking, more;
    train_rollouts gathered; /* rank 0: what waits on all trainers, for a checkpoint */
    train_rollouts kept;  /* --async: the answers of the current batch as received, for a checkpoint after an error */
    train_state boundary; /* at the start of the current batch */
    int64_t admitted;     /* newest batch whose questions the generators have */
    int64_t boundary_admitted;                /* at the start of the current batch */
    int64_t asked_from[TRAIN_ASYNC_MOST + 2]; /* first question of each batch that is not learnt yet, at batch % room */
    train_rollouts begun;                     /* a checkpoint's rollouts that go back to the generators */
    int64_t drawn;                            /* tokens of the batch, also of answers that are left out */
    int64_t waited;                           /* microseconds of generators without an order, since the last row */
    int64_t kept_batch;                       /* its number; -1: none */
    int32_t stepped_back;                     /* after an error: nothing is asked of the generators any more */
    int32_t flat_in_row;                      /* batches whose rewards were equal within every group */
    train_experience batch;
    int64_t waiting_batch;             /* that was ordered and not used yet; -1: none */
    int32_t have_waiting;              /* its answers are here already */
    int32_t old_by_trainer;            /* old log-probs are the trainer's at the start of the batch */
    train_scores reference_scores;     /* of the update, by micro-step */
    train_scores top_ids, top_logprob; /* --teacher-topk: the same of its likeliest tokens */
    int32_t *picked_ids;               /* [picked_room] of a micro-batch */
    float *picked_logprob;             /* the same */
    int64_t picked_room;
    train_scores old;          /* of the batch's later updates, by update and micro-step */
    train__grpo_routes routes; /* the same */
    int64_t update; /* which one of its batch; in the first the weights are those that the batch began with */
    double reward_last;
    double sampled[2][5]; /* mean rewards of the first and of the last five batches of this process */
    int64_t batches;
    int64_t scored, dropped;            /* answers of this process */
    ravel_refit_report report;          /* of the last refit */
    double refits, overlap, gb_per_sec; /* how many, and sums over them */
} train__grpo;

/* ---- grpo.c ---- */

/* The text of the model and the questions, on trainers, and on generators with an environment. Prompts have `longest`
 * tokens at most. Both are the caller's to free, also after an error. */
ravel_status train__grpo_open_prompts(const train_config *config, int64_t vocab, int64_t longest, train_text **text,
                                      train_prompts **prompts, ravel_error *err);

/* ---- rollout.c ---- */

/* Trainer 0 deals `count` questions from `first` on to the generators, one after the other, with the order. */
ravel_status train__grpo_send(train__grpo *g, train_order order, int64_t first, int64_t count, ravel_error *err);
/* Groups that batch number `batch` asks for begin here; a batch may ask for more of them in further rounds. */
ravel_status train__grpo_order(train__grpo *g, int64_t batch, ravel_error *err);
/* The answers of the batch that was ordered, in g->answers, with enough useful groups where --dynamic-sampling asks. */
ravel_status train__grpo_collect(train__grpo *g, ravel_error *err);
/* Greedy answers to questions that are never trained on, and the mean reward of all ranks. */
ravel_status train__grpo_evaluate(train__grpo *g, double *reward, ravel_error *err);
/* Receives the answers of a batch that was ordered but is not needed yet: generators take no order before that. */
ravel_status train__grpo_drain(train__grpo *g, ravel_error *err);
/* Before the last update of a batch changes the weights: the answers that are under way come from the weights of now,
 * and a checkpoint of after the update needs them. */
ravel_status train__grpo_settle(void *user, ravel_error *err);
/* After an error: the state, and the waiting answers, that a checkpoint can be made of. Without an update since the
 * batch began that is the beginning of the batch; with one, the batch counts as done. */
void train__grpo_step_back(train__grpo *g);
/* To the generators what they had begun when the checkpoint was written. */
ravel_status train__grpo_return_begun(train__grpo *g, ravel_error *err);
/* Rollouts that wait, in and out of a checkpoint folder: gather on every rank, write on rank 0, read on every rank. A
 * file whose items or tokens are out of bounds is E_DATA. */
ravel_status train__grpo_gather_waiting(void *user, ravel_error *err);
ravel_status train__grpo_write_waiting(void *user, const char *folder, ravel_error *err);
ravel_status train__grpo_read_waiting(train__grpo *g, const char *folder, int64_t vocab, ravel_error *err);

/* ---- samples.c ---- */

/* One of g->answers, with its reward, to samples.jsonl and every --show-every batches to the logger. */
void train__grpo_show_sample(const train__grpo *g);

/* ---- refit.c ---- */

ravel_status train__grpo_refit_open(train__grpo *g, ravel_error *err);
void train__grpo_refit_close(train__grpo *g);
/* The weights to the generators, as this version. */
ravel_status train__grpo_refit(train__grpo *g, int64_t version, ravel_error *err);
/* Waits, for --publish-linger at most, until the generators that are connected to --publish hold the last version. */
ravel_status train__grpo_linger(train__grpo *g, ravel_error *err);

/* ---- generate.c ---- */

/* After a step: sets order->stopped if a signal asks for an end and the order allows it, the same on the ranks `tp` of a
 * generator (NULL: one). */
ravel_status train__grpo_stopped(const train_hooks *hooks, ravel_comm *tp, train_order *order, ravel_error *err);

/* ---- routes.c: --router-replay ---- */

/* Keeps what a micro-batch took (train_work.routed); `user` is the train__grpo. */
ravel_status train__grpo_routes_take(void *user, const ravel_micro_batch *micro, const int16_t *routes, int64_t rows,
                                     ravel_error *err);
/* Gives a batch the routes that it is to take, if any. */
void train__grpo_routes_give(const train__grpo *g, const ravel_micro_batch *micro, train_batch *batch);
void train__grpo_routes_free(train__grpo_routes *routes);

/* ---- learn.c ---- */

/* Rewards, advantages and log-probs of g->answers, and the batch handed to the feed. */
ravel_status train__grpo_prepare(train__grpo *g, ravel_error *err);
/* One optimiser step: the feed's next update. */
ravel_status train__grpo_update(train__grpo *g, ravel_error *err);

#endif
