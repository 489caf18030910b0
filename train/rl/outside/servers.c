#include "train/rl/outside/servers.h"

#include "base/assert.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "train/kernels/host.h"

#include "http/http.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { URL = 1024 };
static const double pause_first = 0.25, pause_most = 30;

typedef struct server {
    char url[URL];
    train_patience patience;
    int32_t running, held;
    char failure[200]; /* the last */
} server;

typedef struct post {
    ravel__http_call *call; /* NULL: the name of the server is not known */
    ravel__http_answer answer;
    char *body;
    train_served served;
    int64_t polled;     /* index in the polls */
    double began, look; /* look: at the latest then, for deadlines */
    int sent, over;     /* over: its outcome waits to be taken */
} post;

struct train_servers {
    train_servers_options options;
    server *all; /* [count] */
    int32_t count;
    post **posts; /* [post_count] */
    int64_t post_count, post_room;
    post *taken; /* whose answer the caller reads */
};

/* ---- what is waited for --------------------------------------------------------------------------------- */

int64_t train_polls_add(train_polls *p, int fd, short events) {
    if (fd < 0) {
        train_polls_due(p, 1);
        return -1;
    }
    struct pollfd *fds = train__grown(NULL, p->fds, &p->room, p->count, p->count + 1, sizeof *fds);
    if (!fds) return -1;
    p->fds = fds;
    fds[p->count] = (struct pollfd){fd, events, 0};
    return p->count++;
}

void train_polls_due(train_polls *p, double when) {
    if (p->until == 0 || when < p->until) p->until = when;
}

int train_polls_ready(const train_polls *p, int64_t index) {
    return index < 0 || p->fds[index].revents;
}

void train_polls_wait(train_polls *p, double seconds) {
    double left = p->until > 0 ? fmin(seconds, p->until - train__now()) : seconds;
    (void)poll(p->fds, (nfds_t)p->count, left > 60 ? 60000 : left > 0 ? (int)ceil(left * 1000) : 0);
}

void train_polls_free(train_polls *p) {
    ravel__release(NULL, p->fds, (size_t)p->room * sizeof *p->fds);
    *p = (train_polls){0};
}

/* ---- patience ------------------------------------------------------------------------------------------- */

void train_patience_failed(train_patience *p, double began) {
    double now = train__now();
    if (p->failures && began < p->last) return;
    if (!p->failures) p->since = now;
    p->last = now;
    p->until = now + fmin(pause_most, ldexp(pause_first, p->failures < 20 ? p->failures : 20));
    p->failures++;
}

void train_patience_worked(train_patience *p) {
    *p = (train_patience){.worked = 1};
}

int train_patience_over(const train_patience *p, double wait) {
    return p->failures > 1 && p->last - p->since >= wait;
}

/* ---- the list ------------------------------------------------------------------------------------------- */

int train_servers_are(const char *text) {
    return text && (strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0);
}

static ravel_status add_server(train_servers *s, const char *url, size_t bytes, ravel_error *err) {
    server *to = &s->all[s->count];
    if (s->options.openai) {
        while (bytes && url[bytes - 1] == '/') bytes--;
        if (bytes > 3 && strncmp(url + bytes - 3, "/v1", 3) == 0) bytes -= 3;
    }
    if (s->count == TRAIN_SERVERS || bytes >= URL)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s takes up to %d servers, of up to %d bytes each",
                               s->options.what, TRAIN_SERVERS, URL - 1);
    (void)snprintf(to->url, sizeof to->url, "%.*s", (int)bytes, url);
    s->count++;
    ravel_status status = ravel__http_check(to->url, err);
    if (status) ravel_error_prefix(err, "%s", s->options.what);
    return status;
}

ravel_status train_servers_open(const train_servers_options *options, train_servers **servers, ravel_error *err) {
    train_servers *s = calloc(1, sizeof *s);
    if (s) s->all = calloc(TRAIN_SERVERS, sizeof *s->all);
    if (!s || !s->all) {
        free(s);
        return ravel__no_memory(err, TRAIN_SERVERS * sizeof(server), "a list of servers");
    }
    s->options = *options;
    ravel_status status = RAVEL_OK;
    for (const char *at = options->urls; *at && !status;) {
        size_t bytes = strcspn(at, ", ");
        if (bytes) status = add_server(s, at, bytes, err);
        at += bytes + strspn(at + bytes, ", ");
    }
    if (!status && s->count == 0)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT, "%s needs a server: http://host:port", options->what);
    if (status) {
        train_servers_free(s);
        return status;
    }
    *servers = s;
    return RAVEL_OK;
}

ravel_status train_servers_check(const char *what, const char *urls, ravel_error *err) {
    train_servers *servers = NULL;
    ravel_status status = train_servers_open(&(train_servers_options){.what = what, .urls = urls}, &servers, err);
    train_servers_free(servers);
    return status;
}

static void free_post(post *p) {
    if (!p) return;
    ravel__http_call_free(p->call);
    ravel__http_answer_free(&p->answer);
    free(p->body);
    free(p);
}

void train_servers_free(train_servers *s) {
    if (!s) return;
    train_servers_clear(s);
    free_post(s->taken);
    ravel__release(NULL, s->posts, (size_t)s->post_room * sizeof(post *));
    free(s->all);
    free(s);
}

int32_t train_servers_count(const train_servers *s) {
    return s->count;
}

const char *train_servers_url(const train_servers *s, int32_t at) {
    return s->all[at].url;
}

int32_t train_servers_idle(const train_servers *s, int32_t at) {
    const server *x = &s->all[at];
    return x->patience.until > train__now() ? 0 : s->options.slots - x->running;
}

void train_servers_hold(train_servers *s, int32_t at, int held) {
    s->all[at].held = held;
}

int32_t train_servers_choose(const train_servers *s) {
    int32_t best = -1;
    for (int32_t i = 0; i < s->count; i++)
        if (!s->all[i].held && train_servers_idle(s, i) > 0 && (best < 0 || s->all[i].running < s->all[best].running))
            best = i;
    return best;
}

ravel_status train_servers_status(const train_servers *s, ravel_error *err) {
    const server *newest = s->all;
    for (int32_t i = 0; i < s->count; i++) {
        if (!train_patience_over(&s->all[i].patience, s->options.wait)) return RAVEL_OK;
        if (s->all[i].patience.last > newest->patience.last) newest = &s->all[i];
    }
    return ravel_error_set(err, RAVEL_E_TIMEOUT, "%s: no server has answered for %g s (--service-wait): %s",
                           s->options.what, s->options.wait, newest->failure);
}

/* ---- requests ------------------------------------------------------------------------------------------- */

ravel_status train_servers_post(train_servers *s, int32_t at, const train_post *ask, ravel_error *err) {
    char url[URL + 64];
    ravel__http_call_options options;
    if (ask->body && ask->body->failed) return ravel__no_memory(err, ask->body->used, "a request");
    post **posts = train__grown(NULL, s->posts, &s->post_room, s->post_count, s->post_count + 1, sizeof(post *));
    if (posts) s->posts = posts;
    post *p = posts ? calloc(1, sizeof *p) : NULL;
    if (!p) return ravel__no_memory(err, sizeof *p, "a request");
    p->served = (train_served){.id = ask->id, .at = at};
    p->polled = -1;
    p->began = train__now();
    size_t bytes = ask->body ? ask->body->used : 0;
    if (ask->body) {
        p->body = ask->body->data;
        *ask->body = (train_out){0};
    }
    ravel__http_call_options_default(&options);
    options.key = s->options.key;
    options.seconds = ask->seconds > 0 ? ask->seconds : s->options.seconds;
    options.answer_bytes = (int64_t)1 << 30;
    if (s->options.type) options.type = s->options.type;
    (void)snprintf(url, sizeof url, "%s%s", s->all[at].url, ask->path ? ask->path : "");
    ravel_status status = ravel__http_call_begin(url, p->body, bytes, &options, &p->call, &p->served.why);
    if (status == RAVEL_E_MEMORY || status == RAVEL_E_ARGUMENT) {
        if (err) *err = p->served.why;
        free_post(p);
        return status;
    }
    s->all[at].running++;
    s->posts[s->post_count++] = p;
    return RAVEL_OK; /* a name that is not known shows as its outcome */
}

void train_servers_clear(train_servers *s) {
    for (int64_t i = 0; i < s->post_count; i++) {
        if (!s->posts[i]->over) s->all[s->posts[i]->served.at].running--;
        free_post(s->posts[i]);
    }
    s->post_count = 0;
}

/* The sentence of an error answer: OpenAI's object, FastAPI's detail, or its beginning. */
static void quote_answer(const ravel__http_answer *a, char *text, size_t room) {
    ravel__json *doc = NULL;
    const char *said = a->body;
    if (ravel__json_parse(a->body, a->bytes, NULL, &doc, NULL) == RAVEL_OK) {
        static const char *const paths[] = {"error.message", "message", "detail", "error"};
        for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
            const ravel__json_node *n = ravel__json_path(doc, ravel__json_root(doc), paths[i]);
            if (n && n->kind == RAVEL__JSON_STRING) {
                said = n->as.string;
                break;
            }
        }
    }
    (void)snprintf(text, room, "%.300s", said);
    ravel__json_free(doc);
}

static void judge(post *p, const char *url) {
    train_served *x = &p->served;
    char said[320];
    if (x->why.status) {
        x->outcome = x->why.status == RAVEL_E_IO ? TRAIN_AWAY : TRAIN_FAILED;
        x->cost = x->outcome == TRAIN_FAILED ? TRAIN_TRY : p->sent;
        return;
    }
    x->code = p->answer.code;
    x->body = p->answer.body;
    x->bytes = p->answer.bytes;
    if (x->code == 200) return;
    int later = x->code == 429 || x->code == 408 || x->code == 503;
    x->outcome = later || x->code >= 500 ? TRAIN_AWAY : TRAIN_REFUSED;
    x->cost = x->outcome == TRAIN_REFUSED ? TRAIN_TRY : !later;
    quote_answer(&p->answer, said, sizeof said);
    (void)ravel_error_set(&x->why, x->outcome == TRAIN_REFUSED ? RAVEL_E_MISMATCH : RAVEL_E_IO, "%s answered %d: %s",
                          url, x->code, said);
}

/* What the outcome says about the server. */
static void note(train_servers *s, const post *p) {
    server *x = &s->all[p->served.at];
    const ravel_logger *logger = s->options.logger;
    int away = p->served.outcome == TRAIN_AWAY, had = x->patience.failures, known = x->patience.worked;
    x->running--;
    if (!away) {
        if (had && known) ravel__log(logger, RAVEL_LOG_INFO, "%s is used again", x->url);
        train_patience_worked(&x->patience);
        return;
    }
    train_patience_failed(&x->patience, p->began);
    (void)snprintf(x->failure, sizeof x->failure, "%.199s", p->served.why.message);
    if (!had && known)
        ravel__log(logger, RAVEL_LOG_WARN, "%s; it is left alone for a while", p->served.why.message);
    else if (!had)
        ravel__log(logger, RAVEL_LOG_INFO, "waiting for a server: %s", p->served.why.message);
}

static void go_on(train_servers *s, post *p) {
    int done = 0;
    short events;
    ravel_status status = (ravel_status)p->served.why.status;
    if (p->call) status = ravel__http_call_step(p->call, &done, &p->answer, &p->served.why);
    if (p->call && ravel__http_call_fd(p->call, &events) >= 0) p->sent |= events == POLLIN;
    if (!status && !done) return;
    ravel__http_call_free(p->call);
    p->call = NULL;
    judge(p, s->all[p->served.at].url);
    note(s, p);
    p->over = 1;
}

int train_servers_take(train_servers *s, train_served *served) {
    free_post(s->taken);
    s->taken = NULL;
    for (int64_t i = 0; i < s->post_count; i++) {
        if (!s->posts[i]->over) continue;
        s->taken = s->posts[i];
        memmove(s->posts + i, s->posts + i + 1, (size_t)(s->post_count - i - 1) * sizeof(post *));
        s->post_count--;
        *served = s->taken->served;
        return 1;
    }
    return 0;
}

void train_servers_poll(train_servers *s, train_polls *polls) {
    double now = train__now();
    for (int64_t i = 0; i < s->post_count; i++) {
        post *p = s->posts[i];
        short events = 0;
        int fd = p->over || !p->call ? -1 : ravel__http_call_fd(p->call, &events);
        p->polled = train_polls_add(polls, fd, events);
        p->look = now + 1;
        train_polls_due(polls, p->look);
    }
    for (int32_t i = 0; i < s->count; i++)
        if (s->all[i].patience.until > now) train_polls_due(polls, s->all[i].patience.until);
}

void train_servers_advance(train_servers *s, const train_polls *polls) {
    double now = train__now();
    for (int64_t i = 0; i < s->post_count; i++) {
        post *p = s->posts[i];
        if (!p->over && (p->look <= now || train_polls_ready(polls, p->polled))) go_on(s, p);
    }
}
