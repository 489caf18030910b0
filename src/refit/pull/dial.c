#include "refit/pull/dial.h"

#include "base/assert.h"
#include "base/memory.h"
#include "refit/wire/pull_wire.h"
#include "base/system/clock.h"

#include <stdio.h>
#include <string.h>

static const double look_seconds = 0.05; /* how often a wait looks at `stop` */
static const double give_up_seconds = 5; /* for a link to say that it has */

static int link_up(void *user, ravel__link *link, const void *hello, int32_t bytes) {
    ravel__dial *d = user;
    (void)link, (void)hello, (void)bytes;
    d->is_up = 1;
    return 1;
}

static void *link_place(void *user, ravel__link *link, const ravel__message *head) {
    ravel__dial *d = user;
    (void)link;
    if (d->message) return d->place ? d->place(d->user, head) : NULL;
    if (d->reply.came || d->reply.body || head->bytes < 1) return NULL;
    d->reply.body = ravel__alloc(d->allocator, (size_t)head->bytes);
    d->reply.bytes = d->reply.body ? (size_t)head->bytes : 0;
    return d->reply.body;
}

static void link_message(void *user, ravel__link *link, const ravel__message *head, void *body) {
    ravel__dial *d = user;
    (void)link;
    if (d->message) return d->message(d->user, head, body);
    d->reply.kind = head->bytes > 0 && !body ? 0 : head->kind;
    d->reply.came = 1;
}

static void link_down(void *user, ravel__link *link, const char *why) {
    ravel__dial *d = user;
    (void)link;
    d->link = NULL;
    d->is_up = 0;
    (void)snprintf(d->why, sizeof d->why, "%s", why);
}

/* Polls until *done. `timeout` is for the whole wait if `deadline` is set, else for the time between two
 * messages. */
static ravel_status wait(ravel__dial *d, const int32_t *done, double timeout, int deadline, ravel_error *err) {
    RAVEL_ASSERT(d->hub);
    int64_t since = ravel__clock_ns();
    while (!*done) {
        int64_t events = 0;
        if (d->stop && atomic_load(d->stop)) return ravel_error_set(err, RAVEL_E_END, "it was stopped");
        if (!d->link) /* who was not reached is named */
            return ravel_error_set(err, RAVEL_E_IO, "%s%s", done == &d->is_up ? "" : "the trainer's link: ", d->why);
        ravel_status status = ravel__hub_poll(d->hub, look_seconds, &events, err);
        if (status != RAVEL_OK) return status;
        int64_t now = ravel__clock_ns();
        if (events > 0 && !deadline) since = now;
        if (!*done && (double)(now - since) * 1e-9 > timeout)
            return ravel_error_set(err, RAVEL_E_IO, "nothing came from the trainer for %.3g s", timeout);
    }
    return RAVEL_OK;
}

ravel_status ravel__dial_open(ravel__dial *d, const char *address, double timeout, ravel_error *err) {
    RAVEL_ASSERT(!d->hub && !d->link);
    ravel__hub_handler handler = {d, link_up, link_place, link_message, NULL, link_down};
    ravel__hub_options o;
    ravel__hub_options_default(&o);
    o.token = d->token;
    o.tls = d->tls;
    o.max_body = d->max_body;
    o.allocator = d->allocator;
    d->is_up = 0;
    d->why[0] = '\0';
    ravel_status status = ravel__hub_open(&o, &handler, &d->hub, err);
    if (status == RAVEL_OK) status = ravel__hub_connect(d->hub, address, NULL, 0, timeout, d, &d->link, err);
    /* the link gives up after `timeout`, and says why it was not reached */
    if (status == RAVEL_OK) status = wait(d, &d->is_up, timeout + give_up_seconds, 1, err);
    if (status != RAVEL_OK && !d->why[0]) ravel_error_prefix(err, "%s", address);
    return status;
}

ravel_status ravel__dial_send(ravel__dial *d, uint32_t kind, uint64_t id, const void *body, int64_t bytes,
                              ravel_error *err) {
    RAVEL_ASSERT(bytes >= 0 && (bytes == 0 || body));
    ravel__message head = {.kind = kind, .id = id, .bytes = bytes};
    if (!d->link) return ravel_error_set(err, RAVEL_E_IO, "the trainer's link: %s", d->why);
    return ravel__link_send(d->link, &head, body, NULL, err);
}

ravel_status ravel__dial_run(ravel__dial *d, const int32_t *done, double timeout, ravel_error *err) {
    return wait(d, done, timeout, 0, err);
}

static void drop_reply(ravel__dial *d) {
    ravel__release(d->allocator, d->reply.body, d->reply.bytes);
    d->reply = (ravel__reply){0};
}

ravel_status ravel__dial_ask(ravel__dial *d, uint32_t kind, const void *body, int64_t bytes, uint32_t answer,
                             double timeout, ravel_error *err) {
    RAVEL_ASSERT(!d->message);
    drop_reply(d);
    ravel_status status = ravel__dial_send(d, kind, 0, body, bytes, err);
    if (status == RAVEL_OK) status = ravel__dial_run(d, &d->reply.came, timeout, err);
    if (status != RAVEL_OK || d->reply.kind == answer) return status;
    if (d->reply.kind == RAVEL__PULL_FAILED) return ravel__failed_decode(d->reply.body, (int64_t)d->reply.bytes, err);
    return ravel_error_set(err, RAVEL_E_DATA, "the trainer sent another message than was asked for, or a larger one");
}

void ravel__dial_close(ravel__dial *d) {
    drop_reply(d);
    if (d->hub) ravel__hub_free(d->hub);
    d->hub = NULL;
    d->link = NULL;
    d->is_up = 0;
}
