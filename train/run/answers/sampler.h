/* train/run/answers/sampler.h: answers from a model folder, by the generator that training uses: one process, one
 * device.
 *
 *     train_sampler_open(&options, &sampler, &err);
 *     train_sampler_run(sampler, requests, count, &hooks, &err);      as often as wanted
 *     train_sampler_free(sampler);
 *
 * Weights are those of the folder, or pulled from trainers that publish them (train/run/answers/pulled.h): a whole
 * model, of which the folder gives only shape and tokenizer, or an adapter beside the folder's weights
 * (train/run/answers/published.h). */
#ifndef TRAIN_SAMPLER_H
#define TRAIN_SAMPLER_H

#include "train/learn/choice.h"
#include "train/model/generate/generator.h"
#include "train/rl/text.h"
#include "train/run/answers/pulled.h"

typedef struct train_sampler train_sampler;

typedef struct train_sampler_options {
    const train_model_choice *model; /* must outlive the sampler */
    int64_t slots;                   /* sequences at once */
    int64_t slot_tokens;             /* the most tokens of a prompt and its answer */
    int64_t keep, prefill_rows;      /* as in train_generator_options */
    int32_t top;                     /* likewise */
    const char *const *adapters;     /* [adapter_count] PEFT folders: train_request.adapter 1, 2, ... */
    int32_t adapter_count;
    const train_pulled_options *pull; /* weights from a publication; NULL: the folder's */
    const ravel_logger *logger;       /* for what is slow; may be NULL */
} train_sampler_options;

/* With `pull` it waits for the first version. E_MEMORY, before anything large is allocated, if the machine has not enough. */
ravel_status train_sampler_open(const train_sampler_options *options, train_sampler **sampler, ravel_error *err);
void train_sampler_free(train_sampler *sampler);

typedef struct train_sampler_hooks {
    /* After every step: the tokens that sequence 0 of request 0 has so far. May be NULL. */
    ravel_status (*partial)(void *user, const int32_t *tokens, int64_t count, ravel_error *err);
    train_answer_fn answer;   /* once per answer, as they end */
    const volatile int *stop; /* not 0: end after this step; may be NULL */
    void *user;
} train_sampler_hooks;

ravel_status train_sampler_run(train_sampler *sampler, const train_request *requests, int64_t count,
                               const train_sampler_hooks *hooks, ravel_error *err);

/* For a program that starts and cancels requests itself, between steps: the generator, and weights to pull. `idle`: no
 * answer is running. */
train_generator *train_sampler_generator(train_sampler *sampler);
ravel_status train_sampler_pull(train_sampler *sampler, int idle, ravel_error *err);

/* Figures of the pulls; for a folder's weights, which are version 1, zeros. */
train_pulled_stats train_sampler_pulled(const train_sampler *sampler);

#endif
