/* train/serve/engine.h: a generator in a thread of its own, for a program that gets requests at any time.
 *
 *        front (one thread)                              engine (one thread)
 *     submit(job) --- queue, first come first ---> starts jobs while slots are idle
 *     cancel(job) ------------------------------->  frees their slots between steps
 *                                                  one step: a token for every running answer
 *     take() <-------- jobs with news, wake() <---  appends the tokens to the answers of their jobs
 *
 * A job is a prompt and `samples` answers. Its arrays are as long as the answers can be from the moment it starts, so
 * the engine appends and then moves `count`, and the front reads up to `count` without a lock. A job belongs to the
 * engine from submit until it was taken with `last_news` 1. Weights are pulled between steps, and while nothing
 * runs. */
#ifndef TRAIN_SERVE_ENGINE_H
#define TRAIN_SERVE_ENGINE_H

#include "train/run/answers/sampler.h"
#include "train/run/answers/stops.h"

#include <stdatomic.h>

typedef struct train_engine train_engine;

typedef struct train_job_answer {
    int32_t *tokens;   /* [room] */
    float *logprob;    /* [room] */
    int64_t *versions; /* [room] of the weights that drew each */
    train_top *top;    /* [room, sampling.top]; NULL if it is 0 */
    atomic_llong count;
    atomic_int by_token; /* its last token is a stop token; set before it is counted */
    /* 0: it goes on; 1: by a stop token, 2: by a stop text, 3: at its length; set after its last one */
    atomic_int ended;
} train_job_answer;

typedef struct train_job {
    /* set before submit */
    int32_t *prompt; /* [count], owned by the job */
    int64_t count;
    int64_t id;    /* as train_request.id */
    int64_t index; /* the caller's own */
    int32_t samples, first_sample;
    int32_t adapter; /* as train_request.adapter */
    train_sampling sampling;
    int32_t stop_ids[TRAIN_STOPS + 16];
    const train_stop_texts *stops; /* outlives the job */
    const train_text *text;
    int32_t prompt_top; /* likeliest tokens beside each of the prompt's; -1: no log-probs of the prompt */
    int32_t streams;    /* 1: every token is news; 0: only the end */
    void *user;
    /* set by the engine */
    train_job_answer *answers; /* [samples]; NULL before it started, and where it never does */
    float *prompt_logprob;     /* [count] as train_request.prompt_logprob; NULL: not wanted */
    train_top *prompt_best;    /* [count, prompt_top] as train_request.prompt_top */
    int64_t room;              /* tokens of an answer */
    int32_t left;              /* answers that go on */
    ravel_error error;         /* why it has no answers */
    atomic_int cancelled, over, news;
    int32_t last_news;      /* when it was taken: it was over, and will not be taken again */
    struct train_job *next; /* in the queue, in the list of news */
} train_job;

typedef struct train_engine_options {
    train_sampler *sampler;
    int64_t slots, slot_tokens; /* of the sampler's generator */
    int32_t top;                /* likewise */
    int64_t queue;              /* jobs that wait for slots at most */
    const ravel_logger *logger; /* NULL: silent */
    void (*wake)(void *user);   /* from the engine's thread: take() has something */
    void *user;
} train_engine_options;

/* An empty job for a prompt, which is copied. */
ravel_status train_job_create(const int32_t *prompt, int64_t count, train_job **job, ravel_error *err);
void train_job_free(train_job *job);

/* The sampler must outlive the engine, and belongs to it meanwhile. */
ravel_status train_engine_open(const train_engine_options *options, train_engine **engine, ravel_error *err);
/* Ends the thread after its step. Every job must have been taken back before, or `over` is never said. */
void train_engine_close(train_engine *engine);

/* E_ARGUMENT if so many jobs of so many samples can never be taken together. For any count, before they are made. */
ravel_status train_engine_fits(const train_engine *engine, int64_t count, int64_t samples, ravel_error *err);
/* E_OVERSIZE if the queue cannot take those of them that do not begin at once in idle slots; none of them is taken then.
 * E_STATE after the engine failed. */
ravel_status train_engine_submit(train_engine *engine, train_job *const *jobs, int64_t count, ravel_error *err);
void train_engine_cancel(train_engine *engine, train_job *job);
/* Jobs with news, as a list by `next` that is the caller's. */
train_job *train_engine_take(train_engine *engine);

typedef struct train_engine_stats {
    int64_t waiting, running; /* jobs in the queue; answers in slots */
    train_generator_stats generator;
    train_pulled_stats pulled;
} train_engine_stats;
/* As of the last step. */
train_engine_stats train_engine_counts(train_engine *engine);
/* RAVEL_OK, or why the engine has stopped. */
ravel_status train_engine_status(train_engine *engine, ravel_error *err);

#endif
