#include "train/serve/internal.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/system/file.h"

#include "train/kernels/host.h"

#include <string.h>
#include <time.h>

/* ---- exchanges ------------------------------------------------------------------------------------------ */

static void forget(train_serve *s, train_exchange *x) {
    if (x->previous)
        x->previous->next = x->next;
    else
        s->first = x->next;
    if (x->next) x->next->previous = x->previous;
    train_exchange_free(x);
}

/* Nobody waits for the answer any more. */
static void abandon(train_serve *s, train_exchange *x) {
    x->http = 0;
    for (int64_t i = 0; i < x->count; i++)
        if (!atomic_load(&x->jobs[i]->over)) train_engine_cancel(s->engine, x->jobs[i]);
}

static void client_gone(void *user, uint64_t id) {
    train_serve *s = user;
    for (train_exchange *x = s->first; x; x = x->next)
        if (x->http == id) {
            s->counts.gone++;
            abandon(s, x);
            return;
        }
}

void train__serve_begin(train_serve *s, train_exchange *x) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = train_engine_submit(s->engine, x->jobs, x->count, &err);
    if (status) {
        int code = status == RAVEL_E_OVERSIZE ? 429 : status == RAVEL_E_ARGUMENT ? 400 : 503;
        train__serve_refuse(s, x->http, code, code == 400 ? "prompt" : NULL, err.message);
        train_exchange_free(x);
        return;
    }
    x->next = s->first;
    if (x->next) x->next->previous = x;
    s->first = x;
    if (x->ask.stream)
        (void)ravel__http_server_begin(s->http, x->http, 200, "text/event-stream; charset=utf-8",
                                       "Cache-Control: no-cache\r\n");
}

/* ---- answers -------------------------------------------------------------------------------------------- */

static void answered(train_serve *s, train_exchange *x) {
    s->counts.ended++;
    s->counts.request_seconds += train__now() - x->began;
    if (x->ask.stream) train__serve_count(s, 200);
    x->http = 0;
}

static void fail(train_serve *s, train_exchange *x, const char *message) {
    if (!x->http) return;
    if (x->ask.stream) {
        train_out out = {0};
        train_out_puts(&out, "data: ");
        train__serve_error(&out, 500, NULL, message);
        train_out_puts(&out, "\n\n");
        (void)ravel__http_server_write(s->http, x->http, out.data, out.used);
        ravel__http_server_end(s->http, x->http);
        train__serve_count(s, 500);
        train_out_free(&out);
    } else {
        train__serve_refuse(s, x->http, 500, NULL, message);
    }
    abandon(s, x);
}

static void tell_events(train_serve *s, train_exchange *x, const train_job *job) {
    train_out out = {0};
    int64_t seen = x->choices[job->index * x->ask.n].seen;
    if (!x->first_at && seen) {
        x->first_at = train__now();
        s->counts.streams++;
        s->counts.first_seconds += x->first_at - x->began;
    }
    train_exchange_events(x, job, &out);
    if (x->over == x->count) train_exchange_end(x, &out);
    if (out.failed)
        fail(s, x, "no memory for an answer");
    else if (out.used)
        (void)ravel__http_server_write(s->http, x->http, out.data, out.used);
    train_out_free(&out);
    if (x->http && x->over == x->count) {
        ravel__http_server_end(s->http, x->http);
        answered(s, x);
    }
}

static void tell_whole(train_serve *s, train_exchange *x) {
    train_out out = {0};
    train_exchange_whole(x, &out);
    if (out.failed) {
        fail(s, x, "no memory for an answer");
    } else {
        train__serve_answer(s, x->http, 200, "application/json", &out);
        answered(s, x);
    }
    train_out_free(&out);
}

static void take_news(train_serve *s, train_job *job) {
    train_exchange *x = job->user;
    ravel_error err = RAVEL_ERROR_INIT;
    x->over += job->last_news;
    if (job->error.status) fail(s, x, job->error.message);
    if (x->http && train_exchange_advance(x, job, &err)) fail(s, x, err.message);
    if (x->http && x->ask.stream)
        tell_events(s, x, job);
    else if (x->http && x->over == x->count)
        tell_whole(s, x);
    if (x->over == x->count) forget(s, x);
}

/* ---- life ----------------------------------------------------------------------------------------------- */

static void handle(void *user, ravel__http_server *server, const ravel__http_request *r) {
    (void)server;
    train__serve_route(user, r);
}

static void wake(void *user) {
    train_serve *s = user;
    ravel__http_server_wake(s->http);
}

ravel_status train_serve_open(const train_serve_options *options, train_serve **serve, ravel_error *err) {
    train_serve *s = ravel__calloc(NULL, 1, sizeof *s);
    if (!s) return ravel__no_memory(err, sizeof *s, "a server");
    s->options = *options;
    s->calls = train_calls_form_of(options->text);
    s->flat = train_calls_flat(options->text);
    s->created = (int64_t)time(NULL);
    s->drawn = train__random((uint64_t)s->created, (uint64_t)(train__now() * 1e9), 0);
    ravel__http_server_options http;
    ravel__http_server_options_default(&http);
    http.listen = options->listen;
    http.connections = options->connections;
    http.body_bytes = options->body_bytes;
    http.json = 1;
    http.handle = handle;
    http.gone = client_gone;
    http.user = s;
    train_engine_options engine = {.sampler = options->sampler,
                                   .slots = options->slots,
                                   .slot_tokens = options->slot_tokens,
                                   .top = options->top,
                                   .queue = options->queue,
                                   .logger = options->logger,
                                   .wake = wake,
                                   .user = s};
    ravel_status status = ravel__http_server_create(&http, &s->http, err);
    if (!status) status = train_engine_open(&engine, &s->engine, err);
    if (status) {
        train_serve_free(s);
        return status;
    }
    if (options->connections > ravel__connections_most())
        ravel__log(options->logger, RAVEL_LOG_WARN,
                   "%d connections are more than the limit of descriptors allows: at most %lld at once (ulimit -n)",
                   (int)options->connections, (long long)ravel__connections_most());
    *serve = s;
    return RAVEL_OK;
}

void train_serve_free(train_serve *s) {
    if (!s) return;
    train_engine_close(s->engine);
    while (s->first) forget(s, s->first);
    ravel__http_server_free(s->http);
    ravel__json_free(s->doc);
    ravel__release(NULL, s, sizeof *s);
}

int32_t train_serve_port(const train_serve *s) {
    return ravel__http_server_port(s->http);
}

void train_serve_stop(train_serve *s) {
    s->stop = 1;
    ravel__http_server_wake(s->http);
}

static int all_answered(const train_serve *s) {
    int32_t open, busy;
    ravel__http_server_count(s->http, &open, &busy);
    return !s->first && busy == 0;
}

ravel_status train_serve_run(train_serve *s, ravel_error *err) {
    double until = 0;
    ravel_status status = RAVEL_OK;
    while (!status) {
        status = ravel__http_server_step(s->http, until > 0 ? 0.1 : -1, err);
        for (train_job *job = train_engine_take(s->engine), *next; job; job = next) {
            next = job->next;
            take_news(s, job);
        }
        if (s->stop && until == 0) {
            until = train__now() + s->options.grace;
            ravel__http_server_drain(s->http);
        }
        if (!status) status = train_engine_status(s->engine, err);
        if (until > 0 && (all_answered(s) || train__now() > until)) break;
    }
    if (status) (void)ravel__http_server_step(s->http, 0, NULL); /* the errors that the last news made */
    return status;
}
