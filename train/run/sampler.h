/* train/run/sampler.h: answers from a model folder, by the generator that training uses: one process, one device.
 *
 *     train_sampler_open(&options, &sampler, &err);
 *     train_sampler_run(sampler, requests, count, &hooks, &err);      as often as wanted
 *     train_sampler_free(sampler);
 *
 * Weights are those of the folder, or pulled from trainers that publish them (train/run/pulled.h); then the folder
 * gives only the model's shape and tokenizer. */
#ifndef TRAIN_SAMPLER_H
#define TRAIN_SAMPLER_H

#include "train/learn/choice.h"
#include "train/model/generator.h"
#include "train/rl/text.h"
#include "train/run/pulled.h"

typedef struct train_sampler train_sampler;

typedef struct train_sampler_options {
    const train_model_choice *model;  /* must outlive the sampler */
    int64_t slots;                    /* sequences at once */
    int64_t slot_tokens;              /* the most tokens of a prompt and its answer */
    const train_pulled_options *pull; /* weights from a publication; NULL: the folder's */
} train_sampler_options;

/* With `pull` it waits for the first version. */
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

/* Figures of the pulls; for a folder's weights, which are version 1, zeros. */
train_pulled_stats train_sampler_pulled(const train_sampler *sampler);

#endif
