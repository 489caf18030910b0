/* train/serve/serve.h: a generator as a server that OpenAI's clients use unchanged.
 *
 *     train_serve_open(&options, &serve, &err);
 *     train_serve_run(serve, &err);          until train_serve_stop, from a signal handler for one
 *     train_serve_free(serve);
 *
 * Two threads: this one has all connections, reads requests, makes tokens of prompts and JSON of answers (http/http.h);
 * the other one generates (engine.h). Routes, and what they take, are in docs/serve.md. */
#ifndef TRAIN_SERVE_H
#define TRAIN_SERVE_H

#include "train/serve/engine.h"

typedef struct train_serve train_serve;

typedef struct train_serve_options {
    const char *listen;          /* as ravel__http_server_options.listen */
    const char *name;            /* of the model */
    const char *const *adapters; /* [adapter_count] names of the sampler's adapters, which are models to clients */
    int32_t adapter_count;
    const char *key;            /* clients must send; NULL: none */
    train_sampler *sampler;     /* belongs to the server until it is freed */
    train_text *text;           /* likewise */
    const int32_t *stops;       /* [stop_count] tokens that end an answer */
    int32_t stop_count;         /* at most TRAIN_STOPS */
    int32_t top;                /* of the sampler's generator */
    int64_t vocab;              /* of the model */
    int64_t slots, slot_tokens; /* of the sampler's generator */
    int64_t queue;              /* prompts that wait at most; then 429 */
    int64_t body_bytes;         /* of a request */
    int32_t connections;
    double grace; /* seconds that answers may take after train_serve_stop */
    const ravel_logger *logger;
} train_serve_options;

ravel_status train_serve_open(const train_serve_options *options, train_serve **serve, ravel_error *err);
void train_serve_free(train_serve *serve);
int32_t train_serve_port(const train_serve *serve);
/* Returns after train_serve_stop: RAVEL_OK; or with the error that ended the generator. */
ravel_status train_serve_run(train_serve *serve, ravel_error *err);
/* From a signal handler or another thread: no more requests are taken; what runs may end within the grace. */
void train_serve_stop(train_serve *serve);

#endif
