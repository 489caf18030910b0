/* train/serve/ask.h: what a client asks for: the JSON of /v1/completions and /v1/chat/completions, checked.
 *
 * A pure function of the document, so that it can be fuzzed. Fields are rows of one table: taken, without effect here
 * and therefore ignored (user, metadata), or acceptable only as "off" (echo, logit_bias, ...). Any other field is an
 * error: a server that ignores what it does not know answers another question than it was asked. */
#ifndef TRAIN_SERVE_ASK_H
#define TRAIN_SERVE_ASK_H

#include "base/json.h"

enum { TRAIN_ASK_STOPS = 16, TRAIN_ASK_STOP_IDS = 16, TRAIN_ASK_STOP_BYTES = 256 };

typedef struct train_ask {
    int32_t chat; /* 1: of /v1/chat/completions */
    const char *model;
    const ravel__json_node *prompt, *prompt_ids, *messages, *stop_node, *stop_ids_node, *stream_options, *tools,
        *tool_choice;
    double temperature, top_p, min_p;
    int64_t top_k, n, max_tokens; /* max_tokens -1: as many as fit; 0: with prompt_logprobs only */
    int64_t seed;                 /* -1: none */
    int64_t prompt_id;            /* of the first prompt: part of the seed */
    int64_t sample_id;            /* of the first choice of each: likewise */
    int64_t logprobs;             /* likeliest tokens beside each; -1: no log-probs at all */
    int64_t top_logprobs;         /* as asked, of chat */
    int64_t prompt_logprobs;      /* likeliest tokens beside each of the prompt's; -1: no log-probs of the prompt */
    int32_t with_logprobs;        /* of chat */
    int32_t stream, usage;
    int32_t ignore_eos, token_ids, tokens_as_ids;
    int32_t several_calls;              /* one answer may call several tools */
    const char *stops[TRAIN_ASK_STOPS]; /* strings of the document */
    int32_t stop_count;
    int32_t stop_ids[TRAIN_ASK_STOP_IDS];
    int32_t stop_id_count;
    const char *field; /* what an error is about; NULL: the whole */
} train_ask;

typedef struct train_ask_limits {
    int64_t samples; /* largest n */
    int64_t vocab;
    int32_t top; /* most likeliest tokens */
} train_ask_limits;

/* Whether calls of tools are looked for. */
int train_ask_calls(const train_ask *ask);
/* E_ARGUMENT says what is wrong and names ask->field. Strings and nodes belong to the document. */
ravel_status train_ask_parse(const ravel__json *doc, int32_t chat, const train_ask_limits *limits, train_ask *ask,
                             ravel_error *err);
/* Prompts of a completion: a text, tokens, or a list of these. Their number, and the first, which ravel__json_next
 * follows: strings and arrays of integers. E_ARGUMENT if one is anything else. */
ravel_status train_ask_prompts(const ravel__json *doc, train_ask *ask, int64_t *count, ravel_error *err);
const ravel__json_node *train_ask_first_prompt(const ravel__json *doc, const train_ask *ask);
/* Tokens below `vocab` from an array, to ids[node->count]. E_ARGUMENT names the place. */
ravel_status train_ask_tokens(const ravel__json *doc, const ravel__json_node *node, int64_t vocab, int32_t *ids,
                              ravel_error *err);

#endif
