/* Shared by serve.c (life, answers), routes.c (requests) and page.c (metrics). */
#ifndef TRAIN_SERVE_INTERNAL_H
#define TRAIN_SERVE_INTERNAL_H

#include "train/serve/exchange.h"
#include "train/serve/serve.h"

#include "http/http.h"

#include <signal.h>

enum { TRAIN__CODES = 12 };

typedef struct train__serve_counts {
    int32_t codes[TRAIN__CODES]; /* status codes in the order they were first given; 0: none yet */
    int64_t answers[TRAIN__CODES];
    int64_t gone;           /* clients that went before their answer was complete */
    int64_t streams;        /* whose first token came */
    double first_seconds;   /* sum over streams, from the request to the first token */
    int64_t ended;          /* requests for completions that were answered */
    double request_seconds; /* sum over them */
} train__serve_counts;

struct train_serve {
    train_serve_options options;
    ravel__http_server *http;
    train_engine *engine;
    train_exchange *first; /* that are not answered yet */
    train__serve_counts counts;
    ravel__json *doc; /* of small requests */
    volatile sig_atomic_t stop;
    int64_t created;
    uint64_t drawn;         /* ids and seeds */
    train_calls_form calls; /* of tools, as the model writes them */
    int flat;               /* its template takes contents as text alone */
    int warned;             /* that they are not known */
    double page_at;         /* of the last metrics page, and the tokens then */
    int64_t page_tokens;
    double page_rate;
};

/* routes.c: every request. */
void train__serve_route(train_serve *s, const ravel__http_request *r);
/* An answer, counted. */
void train__serve_answer(train_serve *s, uint64_t id, int32_t code, const char *type, const train_out *out);
/* OpenAI's error object. param NULL: null. */
void train__serve_refuse(train_serve *s, uint64_t id, int32_t code, const char *param, const char *message);
/* The object alone. */
void train__serve_error(train_out *out, int32_t code, const char *param, const char *message);
void train__serve_count(train_serve *s, int32_t code);

/* serve.c: takes the exchange, whose jobs are set, to the engine. */
void train__serve_begin(train_serve *s, train_exchange *x);

/* page.c: text for Prometheus. */
void train__serve_page(train_serve *s, train_out *out);

#endif
