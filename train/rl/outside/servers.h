/* train/rl/outside/servers.h: HTTP servers that a run asks: generators, teachers, rewards, environments. Many requests are in
 * flight at once; nothing here waits but train_polls_wait.
 *
 * Nouns
 *   patience   of a server, or of a command (peer.h): after a failure it is left alone for a pause, 0.25 s and twice as
 *              long each time, up to 30 s. `wait` seconds of failures in a row end the run.
 *   away       no connection, one that ended without an answer, 408, 429 or 5xx: the request is to be asked again, here
 *              or elsewhere, when the server works again.
 *   failed     no answer in time, or one that is not HTTP, of a server that works.
 *   cost       of an outcome, in sixteenths of a try (TRAIN_TRY). Failed: a try. Away after the request was sent: one
 *              sixteenth, because the request may be the reason; else nothing.
 *
 *     train_servers_open(&options, &servers, &err);
 *     while (work) {
 *         while (more && (at = train_servers_choose(servers)) >= 0) train_servers_post(servers, at, &post, &err);
 *         train_polls polls = {0};
 *         train_servers_poll(servers, &polls);                      and others that are waited for
 *         train_polls_wait(&polls, 0.2);
 *         train_servers_advance(servers, &polls);
 *         while (train_servers_take(servers, &served)) ...           ask again what was away
 *         if (train_servers_status(servers, &err)) ...                no server has worked for too long
 *     }
 */
#ifndef TRAIN_SERVERS_H
#define TRAIN_SERVERS_H

#include "train/model/out.h"

#include <poll.h>

enum { TRAIN_SERVERS = 256, TRAIN_TRY = 16 };

/* ---- what is waited for --------------------------------------------------------------------------------- */

/* All zero is an empty one. */
typedef struct train_polls {
    struct pollfd *fds; /* [count] */
    int64_t count, room;
    double until; /* train__now; 0: no deadline */
} train_polls;

/* Returns its index; -1: no memory, so that it counts as ready. fd below 0: it is ready. */
int64_t train_polls_add(train_polls *polls, int fd, short events);
/* Something is due then. */
void train_polls_due(train_polls *polls, double when);
int train_polls_ready(const train_polls *polls, int64_t index);
/* Up to `seconds`. */
void train_polls_wait(train_polls *polls, double seconds);
void train_polls_free(train_polls *polls);

/* ---- patience ------------------------------------------------------------------------------------------- */

/* All zero: nothing has failed. */
typedef struct train_patience {
    int32_t failures;          /* in a row */
    int32_t worked;            /* ever */
    double since, last, until; /* the first and the last failure; left alone until then */
} train_patience;

/* What had begun before the last failure is of that one. */
void train_patience_failed(train_patience *patience, double began);
void train_patience_worked(train_patience *patience);
int train_patience_over(const train_patience *patience, double wait);

/* ---- servers -------------------------------------------------------------------------------------------- */

typedef struct train_servers train_servers;

typedef struct train_servers_options {
    const char *what; /* begins sentences: "--teacher" */
    const char *urls; /* http://a:8000,http://b:8000 */
    int32_t openai;   /* what stands before /v1: a URL with /v1 at its end is taken, too */
    const char *key;  /* Authorization: Bearer; NULL: none */
    const char *type; /* of bodies; NULL: JSON */
    int32_t slots;    /* requests at once per server */
    double seconds;   /* of a request */
    double wait;      /* of failures in a row */
    const ravel_logger *logger;
} train_servers_options;

/* Whether it begins like URLs, rather than a command or a folder. */
int train_servers_are(const char *text);
/* E_ARGUMENT where one of them is no URL. Nothing is asked yet. The options' pointers must outlive it. */
ravel_status train_servers_open(const train_servers_options *options, train_servers **servers, ravel_error *err);
ravel_status train_servers_check(const char *what, const char *urls, ravel_error *err);
void train_servers_free(train_servers *servers);

int32_t train_servers_count(const train_servers *servers);
const char *train_servers_url(const train_servers *servers, int32_t at);
/* Requests that a server takes now; 0 while it is left alone. */
int32_t train_servers_idle(const train_servers *servers, int32_t at);
/* A held server is not chosen. */
void train_servers_hold(train_servers *servers, int32_t at, int held);
/* The one with the fewest requests that takes one now, or -1. */
int32_t train_servers_choose(const train_servers *servers);

typedef struct train_post {
    int64_t id;
    const char *path; /* after the URL; NULL: none */
    train_out *body;  /* taken; NULL: GET */
    double seconds;   /* 0: those of the options */
} train_post;

ravel_status train_servers_post(train_servers *servers, int32_t at, const train_post *post, ravel_error *err);
/* Nobody wants their answers. */
void train_servers_clear(train_servers *servers);

typedef enum train_outcome { TRAIN_GOOD, TRAIN_AWAY, TRAIN_FAILED, TRAIN_REFUSED /* 4xx */ } train_outcome;

typedef struct train_served {
    int64_t id;
    int32_t at;
    train_outcome outcome;
    int32_t code;     /* 0: no answer */
    int32_t cost;     /* in sixteenths of a try */
    const char *body; /* [bytes] and a NUL; until the next call. NULL without an answer */
    size_t bytes;
    ravel_error why; /* of those that are not good */
} train_served;

/* The next outcome, or 0. */
int train_servers_take(train_servers *servers, train_served *served);
void train_servers_poll(train_servers *servers, train_polls *polls);
void train_servers_advance(train_servers *servers, const train_polls *polls);
/* E_TIMEOUT: none has worked for `wait` seconds. */
ravel_status train_servers_status(const train_servers *servers, ravel_error *err);

#endif
