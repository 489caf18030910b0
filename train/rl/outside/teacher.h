/* train/rl/outside/teacher.h: a teacher behind servers: its log-probs of tokens that the model drew (--teacher http://...).
 *
 *     POST /v1/completions {"model", "prompt": [tokens], "max_tokens": 1, "prompt_logprobs": 0}
 *     -> {"choices": [{"prompt_logprobs": [null, {"TOKEN": {"logprob": -0.1}}, ...]}]}
 *
 * That is vLLM's field: an object per token of the prompt, which has at least that token. Several servers share the
 * samples; what fails is tried again elsewhere. Log-probs are at temperature 1. */
#ifndef TRAIN_TEACHER_H
#define TRAIN_TEACHER_H

#include "train/rl/experience.h"
#include "train/rl/outside/servers.h"

typedef struct train_teacher train_teacher;

/* The model is the first that a server lists. retries: of a sample, before it is an error. *stop not 0: E_STATE. */
ravel_status train_teacher_open(const train_servers_options *options, int32_t retries, const volatile int *stop,
                                train_teacher **teacher, ravel_error *err);
void train_teacher_free(train_teacher *teacher);
/* Log-probs of all tokens of the samples, x->taught[tokens]; 0 for the first of each and for those that carry no
 * loss. */
ravel_status train_teacher_score(train_teacher *teacher, train_experience *x, ravel_error *err);

#endif
