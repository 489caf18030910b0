/* Lanes, links and the small messages of the server; pulls are served in serve_job.c. */
#include "refit/publish/serve_job.h"
#include "refit/publish/handout.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/bytes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNSENT_MOST = 8 << 20, POLL_MS = 100, LOOK_NS = 100 * 1000 * 1000 };

static const int64_t watch_ns = 2000 * (int64_t)1000 * 1000; /* a WATCH is answered at the latest after this */

void ravel__client_fail(ravel__client *c, uint64_t id, ravel_status status, const char *message) {
    unsigned char body[RAVEL__FAILED_BYTES];
    ravel__message head = {.kind = RAVEL__PULL_FAILED, .id = id, .bytes = sizeof body};
    ravel__failed_encode(status, message, body);
    (void)ravel__link_send(c->link, &head, body, NULL, NULL);
}

/* ---- links ---------------------------------------------------------------------------------------------- */

static int link_up(void *user, ravel__link *link, const void *hello, int32_t bytes) {
    ravel__serve_lane *lane = user;
    ravel__client *c = ravel__calloc(lane->server->allocator, 1, sizeof *c);
    (void)hello, (void)bytes;
    if (!c) return 0;
    RAVEL_ASSERT(!lane->clients || !lane->clients->before);
    c->lane = lane;
    c->link = link;
    c->next = lane->clients;
    if (c->next) c->next->before = c;
    lane->clients = c;
    ravel__link_set_owner(link, c);
    return 1;
}

static void forget(ravel__client *c) {
    RAVEL_ASSERT(c->before ? c->before->next == c : c->lane->clients == c);
    ravel__server *server = c->lane->server;
    ravel__job_end(c);
    ravel__release(server->allocator, c->body, c->body_bytes);
    if (c->before) c->before->next = c->next;
    if (c->next) c->next->before = c->before;
    if (c->lane->clients == c) c->lane->clients = c->next;
    pthread_mutex_lock(&server->report_lock);
    for (int64_t i = 0; i < server->report_count; i++)
        if (server->reports[i].from == c) server->reports[i].from = NULL;
    pthread_mutex_unlock(&server->report_lock);
    ravel__release(server->allocator, c, sizeof *c);
}

static void link_down(void *user, ravel__link *link, const char *why) {
    (void)user, (void)why;
    if (ravel__link_owner(link)) forget(ravel__link_owner(link));
}

/* A body is kept until its message is handled; a link has one at a time. */
static void *link_place(void *user, ravel__link *link, const ravel__message *head) {
    RAVEL_ASSERT(ravel__link_owner(link));
    ravel__client *c = ravel__link_owner(link);
    (void)user;
    if (head->bytes > RAVEL__ASK_MOST) return NULL;
    if ((size_t)head->bytes > c->body_bytes) {
        ravel__release(c->lane->server->allocator, c->body, c->body_bytes);
        c->body = ravel__alloc(c->lane->server->allocator, (size_t)head->bytes);
        c->body_bytes = c->body ? (size_t)head->bytes : 0;
    }
    return c->body;
}

/* ---- small messages ------------------------------------------------------------------------------------- */

static void send_versions(ravel__client *c) {
    ravel__server *server = c->lane->server;
    ravel__versions v = {.session = server->session};
    v.count = ravel__store_list(server->store, v.list);
    RAVEL_ASSERT(v.count >= 0 && v.count <= RAVEL__STORE_KEEP_MOST);
    ravel__message head = {.kind = RAVEL__PULL_VERSIONS, .id = c->watch_id};
    head.bytes = ravel__versions_bytes(v.count);
    c->watching = 0;
    (void)ravel__link_send(c->link, &head, &v, NULL, NULL);
}

/* Answers a WATCH where there is something new, or it has waited long enough. */
static void look_at_watch(ravel__client *c, int64_t now) {
    ravel_refit_identity list[RAVEL__STORE_KEEP_MOST];
    if (!c->watching) return;
    int32_t count = ravel__store_list(c->lane->server->store, list);
    int news = count > 0 && (list[0].version != c->known.version || list[0].nonce != c->known.nonce);
    if (news || now >= c->watch_until) send_versions(c);
}

static void take_watch(ravel__client *c, const ravel__message *head, const unsigned char *body) {
    if (head->bytes != sizeof c->known)
        return ravel__client_fail(c, head->id, RAVEL_E_DATA, "a WATCH has another length");
    memcpy(&c->known, body, sizeof c->known);
    c->watching = 1;
    c->watch_id = head->id;
    c->watch_until = ravel__clock_ns() + watch_ns;
    look_at_watch(c, ravel__clock_ns());
}

/* The place of a generator's report: its own, a free one, or the oldest of those whose links are closed. Under the
 * lock. */
static ravel__reported *report_place(ravel__server *s, uint64_t generator) {
    RAVEL_ASSERT(s->report_count <= s->report_room);
    ravel__reported *gone = NULL;
    for (int64_t i = 0; i < s->report_count; i++) {
        ravel__reported *r = &s->reports[i];
        if (r->report.generator == generator) return r;
        if (!r->from && (!gone || r->at_ns < gone->at_ns)) gone = r;
    }
    if (s->report_count == s->report_room && s->report_room < RAVEL__REPORTS_MOST) {
        int64_t room = 2 * s->report_room + 16;
        size_t each = sizeof *s->reports;
        ravel__reported *more =
            ravel__resize(s->allocator, s->reports, (size_t)s->report_room * each, (size_t)room * each);
        if (more) s->reports = more, s->report_room = room;
    }
    return s->report_count < s->report_room ? &s->reports[s->report_count++] : gone;
}

static void take_report(ravel__client *c, const ravel__message *head, const unsigned char *body) {
    ravel__server *s = c->lane->server;
    ravel__pull_report report;
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel__pull_report_decode(body, head->bytes, &report, &err) != RAVEL_OK)
        return ravel__client_fail(c, head->id, RAVEL_E_DATA, err.message);
    pthread_mutex_lock(&s->report_lock);
    ravel__reported *place = report_place(s, report.generator);
    if (place) *place = (ravel__reported){.report = report, .at_ns = ravel__clock_ns(), .from = c};
    pthread_mutex_unlock(&s->report_lock);
}

static void send_directory(ravel__client *c, uint64_t id) {
    const ravel__server *s = c->lane->server;
    ravel__message head = {.kind = RAVEL__PULL_DIRECTORY, .id = id, .bytes = (int64_t)s->directory_bytes};
    ravel_error err = RAVEL_ERROR_INIT;
    /* The bytes outlive the hub, so they are not copied. */
    if (ravel__link_send(c->link, &head, s->directory, c, &err) != RAVEL_OK)
        ravel__client_fail(c, id, RAVEL_E_MEMORY, err.message);
}

static void link_message(void *user, ravel__link *link, const ravel__message *head, void *body) {
    RAVEL_ASSERT(ravel__link_owner(link));
    ravel__client *c = ravel__link_owner(link);
    (void)user;
    if (head->bytes > 0 && !body)
        return ravel__client_fail(c, head->id, RAVEL_E_MEMORY,
                                  "the trainer has no memory for this message, or it is too long");
    switch (head->kind) {
    case RAVEL__PULL_DIRECTORY: send_directory(c, head->id); break;
    case RAVEL__PULL_WATCH: take_watch(c, head, body); break;
    case RAVEL__PULL_REPORT: take_report(c, head, body); break;
    case RAVEL__PULL_PULL: ravel__job_begin(c, head->id, body, head->bytes, 0); break;
    case RAVEL__PULL_MAP: ravel__job_begin(c, head->id, body, head->bytes, 1); break;
    case RAVEL__PULL_READ: ravel__job_read(c, head->id); break;
    default: ravel__client_fail(c, head->id, RAVEL_E_DATA, "a message of an unknown kind"); break;
    }
}

static void link_sent(void *user, ravel__link *link, void *token) {
    ravel__client *c = ravel__link_owner(link);
    (void)user;
    if (c && token != c) ravel__job_sent(c, token);
}

/* ---- lanes ---------------------------------------------------------------------------------------------- */

/* Closes links whose version the trainer wants to replace, and answers watches. */
static void look_at_clients(ravel__serve_lane *lane) {
    int64_t now = ravel__clock_ns();
    for (ravel__client *c = lane->clients, *next; c; c = next) {
        next = c->next;
        ravel__job_check_base(c);
        if (ravel__job_is_revoked(c)) {
            ravel__link_close(c->link, "the trainers no longer keep this version; stage the newest");
            forget(c); /* the link no longer uses the version's bytes */
            continue;
        }
        look_at_watch(c, now);
    }
}

static void *serve(void *argument) {
    ravel__serve_lane *lane = argument;
    int64_t looked = 0;
    while (!atomic_load(&lane->server->stop)) {
        ravel_error err = RAVEL_ERROR_INIT;
        if (ravel__hub_poll(lane->hub, POLL_MS * 1e-3, NULL, &err) != RAVEL_OK) break;
        int64_t now = ravel__clock_ns();
        if (!atomic_exchange(&lane->attention, 0) && now - looked < LOOK_NS) continue;
        looked = now;
        look_at_clients(lane);
    }
    /* Without this thread the versions that its links read would never be released. */
    while (lane->clients) {
        ravel__client *c = lane->clients;
        ravel__link_close(c->link, "the trainer ends");
        forget(c);
    }
    return NULL;
}

static void wake_lanes(void *user) {
    ravel__server *s = user;
    for (int32_t i = 0; i < s->lanes; i++) {
        atomic_store(&s->lane[i].attention, 1);
        ravel__hub_wake(s->lane[i].hub);
    }
}

/* The address of lane i beside the first one's. */
static void lane_address(const char *first, int32_t lane, char *text, size_t bytes) {
    const char *colon = strrchr(first, ':');
    if (lane == 0)
        (void)snprintf(text, bytes, "%s", first);
    else if (strncmp(first, "unix:", 5) == 0)
        (void)snprintf(text, bytes, "%s.%d", first, lane);
    else
        (void)snprintf(text, bytes, "%.*s:0", colon ? (int)(colon - first) : 0, first);
}

ravel_status ravel__server_open(ravel__server *s, ravel__store *store, const char *address, int32_t lanes,
                                const ravel__lane_options *options, const ravel_allocator *allocator,
                                ravel_error *err) {
    RAVEL_ASSERT(lanes >= 1 && lanes <= RAVEL__LANES_MOST);
    memset(s, 0, sizeof *s);
    s->allocator = allocator;
    s->store = store;
    s->sparse = options->sparse;
    pthread_mutex_init(&s->report_lock, NULL);
    for (; s->lanes < lanes; s->lanes++) {
        ravel__serve_lane *lane = &s->lane[s->lanes];
        ravel__hub_handler handler = {lane, link_up, link_place, link_message, link_sent, link_down};
        ravel__hub_options o;
        char text[512];
        lane_address(address, s->lanes, text, sizeof text);
        ravel__hub_options_default(&o);
        o.listen = text;
        o.token = options->token;
        o.allow = options->allow;
        o.open = options->open;
        o.tls = options->tls;
        o.max_links = options->max_links;
        o.max_body = RAVEL__ASK_MOST;
        o.max_unsent = UNSENT_MOST; /* a generator that asks and does not read waits */
        o.allocator = allocator;
        lane->server = s;
        ravel_status status = ravel__hub_open(&o, &handler, &lane->hub, err);
        if (status != RAVEL_OK) return status;
    }
    return RAVEL_OK;
}

/* "0.0.0.0:7700" becomes "host:7700". */
static int reachable(const char *bound, const char *host, char *text, size_t bytes) {
    static const char *const any[] = {"0.0.0.0:", "[::]:"};
    for (size_t i = 0; i < sizeof any / sizeof *any; i++) {
        size_t length = strlen(any[i]);
        if (strncmp(bound, any[i], length) == 0)
            return snprintf(text, bytes, strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, bound + length) < (int)bytes;
    }
    return snprintf(text, bytes, "%s", bound) < (int)bytes;
}

ravel_status ravel__server_addresses(const ravel__server *s, const char *host, char *text, size_t bytes,
                                     ravel_error *err) {
    size_t used = 0;
    for (int32_t i = 0; i < s->lanes; i++) {
        char one[512], comma = i > 0 ? ',' : '\0';
        if (!reachable(ravel__hub_address(s->lane[i].hub), host, one, sizeof one) || used + strlen(one) + 2 > bytes)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "the addresses of %d serving threads are too long", s->lanes);
        if (comma) text[used++] = comma;
        memcpy(text + used, one, strlen(one) + 1);
        used += strlen(one);
        RAVEL_ASSERT(used < bytes);
    }
    return RAVEL_OK;
}

static ravel_status map_items(ravel__server *s, const ravel__directory *d, ravel_error *err) {
    const ravel__holding *holding = s->store->holding;
    s->tensors = d->count;
    s->item_of = ravel__alloc(s->allocator, ((size_t)d->count + 1) * sizeof *s->item_of);
    if (!s->item_of) return ravel__no_memory(err, (size_t)d->count * sizeof *s->item_of, "the map of tensors");
    if (ravel__directory_index(d, holding, s->item_of) != holding->count)
        return ravel_error_set(err, RAVEL_E_INTERNAL, "a tensor of this rank is not in the directory");
    return RAVEL_OK;
}

ravel_status ravel__server_start(ravel__server *s, const unsigned char *bytes, size_t size,
                                 const ravel__directory *directory, ravel_error *err) {
    RAVEL_ASSERT(!s->item_of && !s->handout && size > 0);
    ravel_status status = map_items(s, directory, err);
    if (status == RAVEL_OK && s->store->on_device) status = ravel__handout_open(s->store, &s->handout, err);
    if (status != RAVEL_OK) return status;
    s->directory = bytes;
    s->directory_bytes = size;
    s->session = directory->digest;
    s->store->wake = wake_lanes;
    s->store->wake_user = s;
    for (int32_t i = 0; i < s->lanes; i++) {
        if (pthread_create(&s->lane[i].thread, NULL, serve, &s->lane[i]) != 0)
            return ravel_error_set(err, RAVEL_E_MEMORY, "no thread could be made to serve generators");
        s->lane[i].running = 1;
    }
    return RAVEL_OK;
}

void ravel__server_close(ravel__server *s) {
    if (!s->store) return;
    atomic_store(&s->stop, 1);
    wake_lanes(s);
    for (int32_t i = 0; i < s->lanes; i++) {
        if (s->lane[i].running) (void)pthread_join(s->lane[i].thread, NULL);
        s->lane[i].running = 0;
    }
    for (int32_t i = 0; i < s->lanes; i++) RAVEL_ASSERT(!s->lane[i].clients); /* their threads have let go of them */
    ravel__handout_close(s->handout);
    s->store->wake = NULL;
    for (int32_t i = 0; i < s->lanes; i++) {
        ravel__hub_free(s->lane[i].hub);
        ravel__release(s->allocator, s->lane[i].scratch, RAVEL__LANE_SCRATCH);
    }
    ravel__release(s->allocator, s->item_of, ((size_t)s->tensors + 1) * sizeof *s->item_of);
    ravel__release(s->allocator, s->reports, (size_t)s->report_room * sizeof *s->reports);
    pthread_mutex_destroy(&s->report_lock);
    memset(s, 0, sizeof *s);
}
