/* train/serve/exchange.h: a request for completions and its answer as OpenAI's JSON, whole or in events.
 *
 *     choice index = prompt * n + sample
 *
 * Both forms take the text of a choice from the same stream of tokens, so that the pieces of an answer are together
 * what the whole answer has. Beyond OpenAI's fields, as vLLM spells them: `token_ids` and `prompt_token_ids` with
 * return_token_ids, `prompt_logprobs`; and of our own `versions`, the version of the weights that each token was drawn with, beside
 * token_ids. */
#ifndef TRAIN_SERVE_EXCHANGE_H
#define TRAIN_SERVE_EXCHANGE_H

#include "train/serve/ask.h"
#include "train/serve/engine.h"
#include "train/rl/calls.h"

typedef struct train_serve_choice {
    train_text_stream letters;
    train_stop_stream stop;
    train_out text;
    train_calls calls;       /* in it, if they are looked for */
    int64_t seen, told;      /* tokens in `text`; in events that were written */
    size_t sent;             /* bytes of what is shown in events */
    int64_t called;          /* calls in events */
    int64_t offset;          /* characters of the tokens in events or in the whole answer */
    int32_t ended;           /* as train_job_answer; `text` is complete */
    int32_t begun, finished; /* the first and the last event were written */
} train_serve_choice;

typedef struct train_exchange {
    uint64_t http;    /* 0: the client is gone */
    ravel__json *doc; /* of the request */
    train_ask ask;
    train_stop_texts stops;
    train_calls_options calls; /* form NONE: they are text */
    const char *model;
    int32_t adapter; /* of the model */
    const train_text *text;
    train_job **jobs; /* [count] of each prompt */
    int64_t count, over, first_tokens;
    train_serve_choice *choices; /* [count * ask.n] */
    char id[40];
    uint64_t drawn;         /* the number in it */
    int64_t created;        /* seconds since 1970 */
    double began, first_at; /* train__now */
    struct train_exchange *next, *previous;
} train_exchange;

void train_exchange_free(train_exchange *x);
/* Takes what the job has more; the first call opens its choices. */
ravel_status train_exchange_advance(train_exchange *x, const train_job *job, ravel_error *err);
/* The events of what is new of the job's choices. */
void train_exchange_events(train_exchange *x, const train_job *job, train_out *out);
/* After the last one: usage, where it was asked for, and [DONE]. */
void train_exchange_end(const train_exchange *x, train_out *out);
void train_exchange_whole(train_exchange *x, train_out *out);

#endif
