/* train/rl/outside/remote.h: answers from inference servers over HTTP, instead of a generator of our own: ravel serve, vLLM,
 * SGLang. It takes the requests that a generator takes, and gives its answers.
 *
 *     train_remote_open(&options, &remote, &err);
 *     train_remote_update(remote, version, on_answer, user, &err);     every server takes the published weights
 *     train_remote_begin(remote, requests, count);
 *     while (train_remote_busy(remote)) {
 *         train_remote_poll(remote, &polls), train_polls_wait(&polls, 0.2);
 *         train_remote_advance(remote, &polls, on_answer, user, &err);
 *     }
 *     train_remote_close(remote);
 *
 * Tokens in, tokens out: a request is POST /v1/completions with one prompt as tokens, n answers, return_token_ids and
 * logprobs, which the three servers understand alike. `slots` of them are at each server at once (servers.h).
 *
 * How a server gets weights that the trainers publish (ravel/publish.h):
 *     ravel     it pulls by itself (ravel serve --pull); waited for until /v1/models says the version
 *     vllm      /init_weight_transfer_engine once, then /start_weight_update, /update_weights, /finish_weight_update, with the
 *               backend of ravel.adapters.vllm (the server runs with VLLM_SERVER_DEV_MODE=1)
 *     sglang    a command per server and version, which gets a line of JSON; without another `python3 -m ravel.adapters.sglang`
 *
 * A server that was away is brought to the version again before it is used. What has no answer after all its tries is
 * given out as an answer without tokens. 4xx is an error of the run: it would be the same everywhere. */
#ifndef TRAIN_REMOTE_H
#define TRAIN_REMOTE_H

#include "train/model/generate/generator.h"
#include "train/rl/routes_read.h"
#include "train/rl/outside/servers.h"

typedef enum train_remote_kind {
    TRAIN_REMOTE_AUTO, /* as /v1/models says (owned_by) */
    TRAIN_REMOTE_RAVEL,
    TRAIN_REMOTE_VLLM,
    TRAIN_REMOTE_SGLANG
} train_remote_kind;
#define TRAIN_REMOTE_CHOICES "auto|ravel|vllm|sglang"

typedef struct train_remote train_remote;

typedef struct train_remote_options {
    train_servers_options servers; /* seconds: also of an update; wait: also for the first server that has one */
    const char *model;             /* name there; NULL: the first that a server has */
    const char *command;           /* gives a server the weights, of sglang; NULL: see above */
    int32_t kind;                  /* train_remote_kind */
    int32_t retries;
    double temperature;         /* of most requests */
    int64_t vocab, slot_tokens; /* slot_tokens: of a prompt and its answer */
    train_routes routes;        /* topk not 0: answers must have the experts of their tokens */
    const volatile int *stop;   /* not 0: an update ends with E_STATE; may be NULL */
    /* what is published */
    const char *address, *token; /* token NULL: none */
    const train_params *params;
    int32_t dtype;
} train_remote_options;

/* Nothing is asked yet. E_ARGUMENT for a URL that cannot be one. The options' pointers must outlive it. */
ravel_status train_remote_open(const train_remote_options *options, train_remote **remote, ravel_error *err);
void train_remote_close(train_remote *remote);

/* Brings the servers to this version. E_TIMEOUT if none of them got there. Those that did not are tried again later.
 * What they are drawing goes on, and `answer` is called for what ends in the meantime. */
ravel_status train_remote_update(train_remote *remote, int64_t version, train_answer_fn answer, void *user,
                                 ravel_error *err);

/* As train_generator_begin, _start, _idle_slots and _busy, by prompts: what is asked for is borrowed until it is
 * answered. */
ravel_status train_remote_begin(train_remote *remote, const train_request *requests, int64_t count, ravel_error *err);
ravel_status train_remote_start(train_remote *remote, const train_request *requests, int64_t ended, int64_t more,
                                ravel_error *err);
int64_t train_remote_idle(const train_remote *remote);
int64_t train_remote_busy(const train_remote *remote);

/* Asks what can be asked, and says what is waited for. */
void train_remote_poll(train_remote *remote, train_polls *polls);
/* Calls `answer` for what has come; count 0: no server answered. E_MISMATCH if one answers otherwise than asked, with
 * its sentence; E_TIMEOUT if none has worked for too long. */
ravel_status train_remote_advance(train_remote *remote, const train_polls *polls, train_answer_fn answer, void *user,
                                  ravel_error *err);

#endif
