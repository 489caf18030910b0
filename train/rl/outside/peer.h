/* train/rl/outside/peer.h: what answers lines of JSON for a run: a command of the user's, or HTTP servers. Rewards and environments
 * are such peers.
 *
 * Nouns
 *   line      {"id": 17, ...} from the run, and one line with the same id back, in any order. To a command lines go over its
 *             standard input, to a server as the body of a POST, several in one where there are more than it takes at once.
 *   session   lines of one id, one after the other, which the same process or server gets: an environment's episode.
 *   process   a running `sh -c COMMAND` with any number of sessions.
 *   alone     a session in a process that no other has: one that was there when its process crashed.
 *
 * A line is lost if its process ends, writes something else, or does not answer in time, and then all sessions of that process
 * are. Of a server, it is lost if the connection ends after it was sent; what could not be sent, or is refused by 429 or 503,
 * waits and is sent again, a session's first line anywhere. {"id": 17, "error": "text"} loses that session alone.
 *
 * {"id": 17, "lost": true}
 * is the answer of a server that does not know the session, since it was started again.
 *
 * What is lost has a cost for its id, in sixteenths of a try (TRAIN_TRY, servers.h): an error, a wrong or a late answer, and the
 * end of a process that it had alone, are a try (a quarter of one, where a signal killed it); the end of a process that it shared, or of a connection, a sixteenth; if others were
 * the reason, nothing. A peer that does not work is left alone for a pause (servers.h).
 *
 *     train_peer_open(&options, &peer, &err);
 *     train_peer_send(peer, id, line, bytes, 0, &err);
 *     train_peer_wait(peer, 1.0);                                 or poll, train_polls_wait, advance
 *     while (train_peer_take(peer, &reply)) ...                  train_peer_send, or train_peer_forget
 *     train_peer_status(peer, &err)                               it has not worked for too long
 */
#ifndef TRAIN_PEER_H
#define TRAIN_PEER_H

#include "base/json.h"
#include "train/rl/outside/servers.h"

typedef struct train_peer train_peer;

typedef struct train_peer_options {
    const char *what;   /* begins sentences: "environment" */
    const char *target; /* a command, or URLs */
    const char *key;    /* of servers; NULL: none */
    int32_t processes;  /* of a command, beside those that are alone */
    int32_t slots;      /* requests at once per server */
    double seconds;     /* for an answer */
    double wait;        /* without a peer that works */
    int32_t sessions;   /* 0: each line stands for itself */
    const ravel_logger *logger;
} train_peer_options;

/* Nothing is started before the first line. E_ARGUMENT for an empty command, and what is no URL. */
ravel_status train_peer_open(const train_peer_options *options, train_peer **peer, ravel_error *err);
/* Closes the input of all processes, gives them a second to leave, then kills them. */
void train_peer_free(train_peer *peer);

/* A line with its end, which is copied. alone: if a session begins with it. An error is one of the machine. */
ravel_status train_peer_send(train_peer *peer, int64_t id, const char *line, size_t bytes, int alone, ravel_error *err);
/* Nothing more of this id; `line` is the last one that is sent, where it can be, and not answered. NULL: none. */
void train_peer_forget(train_peer *peer, int64_t id, const char *line);

/* Nothing more of any id; processes that owe answers are killed. */
void train_peer_clear(train_peer *peer);

/* Strings live until the next call. */
typedef struct train_reply {
    int64_t id;
    ravel_status status; /* not RAVEL_OK: lost, `why` says how; the id is forgotten then */
    const char *why;
    int32_t cost;                 /* in sixteenths of a try */
    int32_t alone;                /* it is better sent to a process of its own */
    const ravel__json *doc;       /* the answer */
    const ravel__json_node *root; /* of it */
    const char *line;             /* [bytes] */
    size_t bytes;
} train_reply;

/* The next answer that has come, or the next loss; 0: none. */
int train_peer_take(train_peer *peer, train_reply *reply);
/* An answer that was just taken is not what was asked for: it becomes a loss, which says what it must be. */
void train_peer_wrong(train_peer *peer, train_reply *reply, const char *must);
/* Nobody has listened for so long: deadlines are as much later. */
void train_peer_defer(train_peer *peer, double seconds);
void train_peer_poll(train_peer *peer, train_polls *polls);
void train_peer_advance(train_peer *peer, const train_polls *polls);
/* The three together. */
void train_peer_wait(train_peer *peer, double seconds);
/* E_CALLBACK, E_TIMEOUT: it has never worked, or not for `wait` seconds. */
ravel_status train_peer_status(const train_peer *peer, ravel_error *err);

#endif
