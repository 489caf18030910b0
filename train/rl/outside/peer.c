/* Entries are the ids that an answer is owed to, and sessions between two answers.
 *
 *     QUEUED -> SENT -> ANSWERED (a session; else it is forgotten)
 *        ^--------'--> LOST, until it is taken                   back: of a server that is away
 *     LAST   -> SENT -> forgotten                                the line that ends a session */
#include "train/rl/outside/peer.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"
#include "train/kernels/host.h"
#include "train/rl/outside/child.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANYWHERE = -1, EARLY_ENDS = 3 };
#define NOBODY INT64_MIN /* the id of a last line: nothing is owed to it */

typedef enum state { QUEUED, LAST, SENT, ANSWERED, LOST } state;

typedef struct entry {
    int64_t id, post;
    state state;
    int32_t place; /* process or server; ANYWHERE: none yet */
    int32_t begun; /* it has been answered before */
    int32_t cost, alone;
    double deadline;
    ravel_status status;
    char *line; /* QUEUED, SENT: [bytes]; LOST: why */
    size_t bytes;
} entry;

typedef struct process {
    train_child child;
    int32_t entries, alone, worked;
    double began;
} process;

struct train_peer {
    train_peer_options options;
    train_servers *servers; /* NULL: a command */
    train_patience patience;
    int32_t early_ends; /* processes that ended by themselves before they answered */
    ravel_error why;    /* of the last end of a process */
    process *all;       /* [count] */
    int64_t count, room;
    entry *entries; /* [entry_count] */
    int64_t entry_count, entry_room, posts;
    train_served served; /* whose lines are being taken, from `line` on */
    size_t line;
    int serving;
    ravel__json *doc;
};

/* ---- entries -------------------------------------------------------------------------------------------- */

static entry *find(const train_peer *p, int64_t id) {
    for (int64_t i = 0; i < p->entry_count; i++)
        if (p->entries[i].id == id) return &p->entries[i];
    return NULL;
}

static void stop(process *at, double seconds) {
    train_child_stop(&at->child, seconds);
    at->worked = 0;
}

/* A process of its own ends. */
static void forget(train_peer *p, entry *e) {
    process *at = p->servers || e->place == ANYWHERE ? NULL : &p->all[e->place];
    if (at) at->entries--;
    if (at && at->alone) stop(at, 0);
    free(e->line);
    *e = p->entries[--p->entry_count];
    p->entries[p->entry_count].line = NULL;
}

static void lose_entry(entry *e, ravel_status status, const char *why, int32_t cost) {
    free(e->line);
    e->line = strdup(why);
    e->status = status ? status : RAVEL_E_CALLBACK;
    e->state = LOST;
    e->cost += cost;
}

/* With all that it has. */
static void lose_process(train_peer *p, int32_t place, const ravel_error *why) {
    process *at = &p->all[place];
    double now = train__now();
    int killed = at->child.code == 128 + SIGKILL || at->child.code == 128 + SIGTERM; /* from outside, most likely */
    if (!at->worked) train_patience_failed(&p->patience, at->began);
    p->early_ends += !at->worked && !killed;
    p->why = *why;
    stop(at, 0);
    for (int64_t i = 0; i < p->entry_count; i++) {
        entry *e = &p->entries[i];
        if (e->place != place || e->state == LOST || e->state == QUEUED || e->id == NOBODY) continue;
        int late = why->status == RAVEL_E_TIMEOUT, own = e->state == SENT && (!late || e->deadline <= now);
        int all = late || at->alone || !p->options.sessions;
        lose_entry(e, (ravel_status)why->status, why->message,
                   !own     ? 0
                   : !all   ? 1
                   : killed ? TRAIN_TRY / 4
                            : TRAIN_TRY);
        e->alone = own;
    }
}

/* ---- commands ------------------------------------------------------------------------------------------- */

/* The shared process with the fewest sessions, or one that nobody has. */
static ravel_status choose(train_peer *p, int alone, int32_t *place, ravel_error *err) {
    int64_t best = -1, shared = p->options.processes;
    for (int64_t i = alone ? shared : 0; i < (alone ? p->count : shared); i++) {
        if (alone && p->all[i].entries) continue;
        if (best < 0 || p->all[i].entries < p->all[best].entries) best = i;
    }
    if (best < 0) {
        process *all = train__grown(NULL, p->all, &p->room, p->count, p->count + 1, sizeof *all);
        if (!all) return ravel__no_memory(err, sizeof *all, "a process");
        p->all = all;
        best = p->count++;
        all[best] = (process){.alone = 1};
    }
    *place = (int32_t)best;
    p->all[best].entries++;
    return RAVEL_OK;
}

/* Starts the processes that lines wait for, and writes these. */
static void write_lines(train_peer *p) {
    for (int64_t i = 0; i < p->entry_count; i++) {
        entry *e = &p->entries[i];
        ravel_error why = RAVEL_ERROR_INIT;
        if (e->state != QUEUED) continue;
        process *at = &p->all[e->place];
        if (!at->child.pid && p->patience.until > train__now()) continue;
        if (!at->child.pid) at->began = train__now();
        ravel_status status = train_child_start(&at->child, p->options.target, p->options.what, &why);
        if (!status) status = train_child_write(&at->child, e->line, e->bytes, &why);
        e->state = SENT;
        e->deadline = train__now() + p->options.seconds;
        if (status) lose_process(p, e->place, &why);
    }
}

static void lose_late(train_peer *p) {
    double now = train__now();
    for (int64_t i = 0; i < p->entry_count; i++) {
        entry *e = &p->entries[i];
        ravel_error why = RAVEL_ERROR_INIT;
        if (e->state != SENT || e->deadline > now) continue;
        (void)ravel_error_set(&why, RAVEL_E_TIMEOUT, "%s: no answer came within %g s", p->options.what,
                              p->options.seconds);
        lose_process(p, e->place, &why);
    }
}

/* ---- servers -------------------------------------------------------------------------------------------- */

static int64_t count_queued(const train_peer *p, int32_t place) {
    int64_t count = 0;
    for (int64_t i = 0; i < p->entry_count; i++) count += p->entries[i].state <= LAST && p->entries[i].place == place;
    return count;
}

/* Up to `count` of the lines that wait for `place`, as one request to a server. */
static void post_lines(train_peer *p, int32_t at, int32_t place, int64_t count) {
    train_out body = {0};
    ravel_error why = RAVEL_ERROR_INIT;
    const train_post post = {.id = ++p->posts, .body = &body};
    for (int64_t i = 0; i < p->entry_count && count > 0; i++) {
        entry *e = &p->entries[i];
        if (e->state > LAST || e->place != place) continue;
        train_out_put(&body, e->line, e->bytes);
        e->state = SENT;
        e->place = at;
        e->post = post.id;
        count--;
    }
    if (train_servers_post(p->servers, at, &post, &why) == RAVEL_OK) return;
    train_out_free(&body);
    for (int64_t i = 0; i < p->entry_count; i++)
        if (p->entries[i].state == SENT && p->entries[i].post == post.id)
            lose_entry(&p->entries[i], (ravel_status)why.status, why.message, TRAIN_TRY);
}

/* So many lines in each request that none of them waits. */
static void post_all(train_peer *p) {
    int64_t count, servers = train_servers_count(p->servers), idle;
    for (int32_t at = 0; at < servers; at++)
        while ((count = count_queued(p, at)) && (idle = train_servers_idle(p->servers, at)) > 0)
            post_lines(p, at, at, (count + idle - 1) / idle);
    for (int32_t at; (count = count_queued(p, ANYWHERE)) && (at = train_servers_choose(p->servers)) >= 0;) {
        idle = 0;
        for (int32_t i = 0; i < servers; i++) idle += train_servers_idle(p->servers, i);
        idle = train__max(idle, 1);
        post_lines(p, at, ANYWHERE, (count + idle - 1) / idle);
    }
}

/* The lines of a request whose answer has been taken, or has not come. */
static void settle(train_peer *p, const train_served *x) {
    for (int64_t i = p->entry_count; i-- > 0;) {
        entry *e = &p->entries[i];
        char text[128];
        if (e->state != SENT || e->post != x->id) continue;
        if (e->id == NOBODY) {
            forget(p, e);
            continue;
        }
        int later = x->code == 429 || x->code == 503, placed = p->options.sessions && e->begun;
        e->cost += x->outcome == TRAIN_AWAY ? x->cost : 0;
        if (x->outcome == TRAIN_AWAY && e->cost < TRAIN_TRY && (later || !placed)) {
            e->state = QUEUED;
            if (!placed) e->place = ANYWHERE;
            continue;
        }
        (void)snprintf(text, sizeof text, "%s: the answer has no line with id %lld", p->options.what, (long long)e->id);
        lose_entry(e, (ravel_status)x->why.status, x->outcome ? x->why.message : text,
                   x->outcome == TRAIN_AWAY ? 0 : TRAIN_TRY);
    }
}

/* ---- answers -------------------------------------------------------------------------------------------- */

/* A process that wrote this is of no use; a server's other answers are. */
static int refuse(train_peer *p, int32_t place, const char *line, size_t bytes, const char *why) {
    ravel_error sentence = RAVEL_ERROR_INIT;
    (void)ravel_error_set(&sentence, RAVEL_E_CALLBACK, "%s: it wrote \"%.*s\"%s", p->options.what,
                          bytes > 120 ? 120 : (int)bytes, line, why);
    if (p->servers)
        ravel__log(p->options.logger, RAVEL_LOG_WARN, "%s", sentence.message);
    else
        lose_process(p, place, &sentence);
    return 0;
}

/* 1: it is an answer. */
static int take_line(train_peer *p, int32_t place, const char *line, size_t bytes, train_reply *r) {
    int64_t id;
    int gone = 0;
    if (bytes == 0) return 0;
    if (ravel__json_parse(line, bytes, NULL, &p->doc, NULL))
        return refuse(p, place, line, bytes, ", which is not a JSON line");
    *r = (train_reply){.doc = p->doc, .root = ravel__json_root(p->doc), .line = line, .bytes = bytes};
    if (!ravel__json_integer(ravel__json_get(p->doc, r->root, "id"), &id))
        return refuse(p, place, line, bytes, "; expected {\"id\": ...}");
    entry *e = find(p, id);
    if (!e && p->options.sessions) return 0; /* one that has ended */
    if (!e) return refuse(p, place, line, bytes, ", and no such id is asked for");
    if (e->place != place || e->state == LOST || (p->servers && (e->state != SENT || e->post != p->served.id)))
        return 0;
    if (e->state != SENT) return refuse(p, place, line, bytes, ", a second answer");
    const ravel__json_node *error = ravel__json_get(p->doc, r->root, "error");
    (void)ravel__json_boolean(ravel__json_get(p->doc, r->root, "lost"), &gone);
    if (!p->servers) p->all[place].worked = 1, train_patience_worked(&p->patience);
    if (error || gone) {
        char text[512];
        (void)snprintf(text, sizeof text, "%s: %.400s", p->options.what,
                       error && error->kind == RAVEL__JSON_STRING ? error->as.string : "it does not know the episode");
        lose_entry(e, RAVEL_E_CALLBACK, text, gone ? 1 : TRAIN_TRY);
        return 0;
    }
    r->id = id;
    e->state = ANSWERED;
    e->begun = 1;
    e->cost = 0;
    free(e->line);
    e->line = NULL;
    if (!p->options.sessions) forget(p, e);
    return 1;
}

static int take_from_processes(train_peer *p, train_reply *r) {
    const char *line;
    size_t bytes;
    for (int32_t i = 0; i < p->count; i++)
        while (p->all[i].child.pid && train_child_line(&p->all[i].child, &line, &bytes))
            if (take_line(p, i, line, bytes, r)) return 1;
    return 0;
}

static int take_from_servers(train_peer *p, train_reply *r) {
    for (;;) {
        while (p->serving && p->served.outcome == TRAIN_GOOD && p->line < p->served.bytes) {
            const char *from = p->served.body + p->line, *end = memchr(from, '\n', p->served.bytes - p->line);
            size_t bytes = end ? (size_t)(end - from) : p->served.bytes - p->line;
            p->line += bytes + 1;
            if (take_line(p, p->served.at, from, bytes, r)) return 1;
        }
        if (p->serving) settle(p, &p->served);
        p->serving = train_servers_take(p->servers, &p->served);
        p->line = 0;
        if (!p->serving) return 0;
    }
}

static int take_lost(train_peer *p, train_reply *r) {
    for (int64_t i = 0; i < p->entry_count; i++) {
        entry *e = &p->entries[i];
        if (e->state != LOST) continue;
        *r = (train_reply){.id = e->id, .status = e->status, .cost = e->cost, .alone = e->alone};
        (void)ravel_error_set(&p->why, e->status, "%s", e->line ? e->line : p->options.what);
        r->why = p->why.message;
        forget(p, e);
        return 1;
    }
    return 0;
}

int train_peer_take(train_peer *p, train_reply *r) {
    if (p->servers ? take_from_servers(p, r) : take_from_processes(p, r)) return 1;
    if (!p->servers) lose_late(p);
    return take_lost(p, r);
}

/* ---- public functions ----------------------------------------------------------------------------------- */

ravel_status train_peer_send(train_peer *p, int64_t id, const char *line, size_t bytes, int alone, ravel_error *err) {
    entry *e = find(p, id);
    RAVEL_ASSERT(!e || (e->state == ANSWERED && !e->line));
    char *copy = malloc(bytes);
    entry *all = train__grown(NULL, p->entries, &p->entry_room, p->entry_count, p->entry_count + 1, sizeof *all);
    if (all) p->entries = all;
    if (!copy || !all) {
        free(copy);
        return ravel__no_memory(err, bytes, "a line");
    }
    e = find(p, id);
    int32_t place = ANYWHERE;
    ravel_status status = e || p->servers ? RAVEL_OK : choose(p, alone, &place, err);
    if (status) {
        free(copy);
        return status;
    }
    if (!e) {
        e = &p->entries[p->entry_count++];
        *e = (entry){.id = id, .place = place};
    }
    memcpy(copy, line, bytes);
    e->line = copy;
    e->bytes = bytes;
    e->state = QUEUED;
    if (!p->servers) write_lines(p);
    return RAVEL_OK;
}

void train_peer_forget(train_peer *p, int64_t id, const char *line) {
    entry *e = find(p, id);
    if (!e) return;
    int placed = e->place != ANYWHERE && e->state != LOST && line;
    if (placed && !p->servers && p->all[e->place].child.pid)
        (void)train_child_write(&p->all[e->place].child, line, strlen(line), NULL);
    if (!placed || !p->servers || !(e->begun || e->state == SENT)) {
        forget(p, e);
        return;
    }
    free(e->line);
    e->line = strdup(line);
    e->bytes = e->line ? strlen(line) : 0;
    e->id = NOBODY;
    e->state = LAST;
}

void train_peer_clear(train_peer *p) {
    if (p->servers) train_servers_clear(p->servers);
    while (p->entry_count) {
        entry *e = &p->entries[p->entry_count - 1];
        if (e->state == SENT && !p->servers) stop(&p->all[e->place], 0);
        forget(p, e);
    }
    p->serving = 0;
}

void train_peer_wrong(train_peer *p, train_reply *r, const char *must) {
    (void)ravel_error_set(&p->why, RAVEL_E_CALLBACK, "%s: it wrote \"%.*s\"; %s", p->options.what,
                          r->bytes > 120 ? 120 : (int)r->bytes, r->line, must);
    r->status = RAVEL_E_CALLBACK;
    r->why = p->why.message;
    r->cost = TRAIN_TRY;
    train_peer_forget(p, r->id, NULL);
}

void train_peer_defer(train_peer *p, double seconds) {
    for (int64_t i = 0; i < p->entry_count; i++) p->entries[i].deadline += seconds;
}

void train_peer_poll(train_peer *p, train_polls *polls) {
    if (p->servers) post_all(p);
    if (p->servers) train_servers_poll(p->servers, polls);
    for (int64_t i = 0; i < p->entry_count; i++) {
        const entry *e = &p->entries[i];
        if (e->state == LOST) train_polls_due(polls, train__now());
        if (e->state == SENT && !p->servers) train_polls_due(polls, e->deadline);
        if (e->state == QUEUED && !p->servers) train_polls_due(polls, p->patience.until);
    }
    for (int64_t i = 0; i < p->count; i++)
        if (p->all[i].child.pid) train_child_poll(&p->all[i].child, polls);
}

void train_peer_advance(train_peer *p, const train_polls *polls) {
    if (p->servers) {
        train_servers_advance(p->servers, polls);
        return;
    }
    for (int32_t i = 0; i < p->count; i++) {
        ravel_error why = RAVEL_ERROR_INIT;
        if (!p->all[i].child.pid) continue;
        if (train_child_advance(&p->all[i].child, polls, p->options.what, &why)) lose_process(p, i, &why);
    }
    write_lines(p);
}

void train_peer_wait(train_peer *p, double seconds) {
    train_polls polls = {0};
    train_peer_poll(p, &polls);
    train_polls_wait(&polls, seconds);
    train_peer_advance(p, &polls);
    train_polls_free(&polls);
}

ravel_status train_peer_status(const train_peer *p, ravel_error *err) {
    if (p->servers) return train_servers_status(p->servers, err);
    if (!p->patience.worked && p->early_ends >= EARLY_ENDS)
        return ravel_error_set(err, RAVEL_E_CALLBACK, "%s (%d times, and it has never answered)", p->why.message,
                               p->early_ends);
    if (!train_patience_over(&p->patience, p->options.wait)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_TIMEOUT, "%s: nothing was answered for %g s (--service-wait): %.300s",
                           p->options.what, p->options.wait, p->why.message);
}

ravel_status train_peer_open(const train_peer_options *o, train_peer **peer, ravel_error *err) {
    const train_servers_options servers = {.what = o->what,
                                           .urls = o->target,
                                           .key = o->key,
                                           .type = "application/x-ndjson",
                                           .slots = o->slots,
                                           .seconds = o->seconds,
                                           .wait = o->wait,
                                           .logger = o->logger};
    if (!o->target || !*o->target) return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s: the command is empty", o->what);
    if (!(o->seconds > 0)) return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s: a time limit above 0 is needed", o->what);
    int served = train_servers_are(o->target);
    RAVEL_ASSERT(o->processes >= 1 && (!served || o->slots >= 1));
    train_peer *p = calloc(1, sizeof *p);
    if (p) p->all = ravel__calloc(NULL, (size_t)o->processes, sizeof *p->all);
    if (!p || !p->all) {
        free(p);
        return ravel__no_memory(err, sizeof(train_peer), o->what);
    }
    p->options = *o;
    p->count = p->room = o->processes;
    ravel_status status = served ? train_servers_open(&servers, &p->servers, err) : RAVEL_OK;
    if (status) {
        train_peer_free(p);
        return status;
    }
    *peer = p;
    return RAVEL_OK;
}

void train_peer_free(train_peer *p) {
    if (!p) return;
    for (int64_t i = 0; i < p->count; i++) {
        stop(&p->all[i], 1);
        train_child_free(&p->all[i].child);
    }
    for (int64_t i = 0; i < p->entry_count; i++) free(p->entries[i].line);
    train_servers_free(p->servers);
    ravel__json_free(p->doc);
    ravel__release(NULL, p->all, (size_t)p->room * sizeof *p->all);
    ravel__release(NULL, p->entries, (size_t)p->entry_room * sizeof *p->entries);
    free(p);
}
