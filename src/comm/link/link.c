/* Hubs: making and freeing, polling, timers. See link.h. */
#include "comm/link/link_state.h"

#include "base/assert.h"
#include "base/system/clock.h"

#include <errno.h>
#include <linux/sockios.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <unistd.h>

enum { EVENTS = 64, TICK_NS = 250000000 };
#define SECOND 1e9

void ravel__hub_options_default(ravel__hub_options *o) {
    memset(o, 0, sizeof *o);
    o->max_links = 65536;
    o->max_strangers = 64;
    o->max_body = (int64_t)1 << 40;
    o->handshake = 10;
    o->heartbeat = 2;
    o->keepalive = 20;
    o->shared = 1;
}

char *ravel__link_copy_text(const ravel_allocator *allocator, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = ravel__alloc(allocator, bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

static void release_text(const ravel_allocator *allocator, char *text) {
    if (text) ravel__release(allocator, text, strlen(text) + 1);
}

bool ravel__link_ok(const ravel__link *l) {
    if ((l->first == NULL) != (l->last == NULL) || (l->first == NULL) != (l->frames == 0)) return false;
    if (l->unsent < 0 || l->in_at < 0 || l->in_at > l->in_end || l->in_end > LINK_IN_BYTES) return false;
    if (l->state == LINK_UP && (!l->was_up || l->got > l->frame.bytes || l->summed > l->got)) return false;
    if (l->state == LINK_CLOSED) return l->fd < 0 && !l->first;
    return l->state == LINK_WAITS ? l->fd < 0 : l->fd >= 0;
}

/* ---- links ---------------------------------------------------------------------------------------------- */

ravel__link *ravel__link_new(ravel__hub *hub, int connects) {
    const ravel_allocator *a = hub->options.allocator;
    ravel__link *link = ravel__calloc(a, 1, sizeof *link);
    if (link) link->in = ravel__alloc(a, LINK_IN_BYTES);
    if (!link || !link->in) {
        ravel__release(a, link, sizeof *link);
        return NULL;
    }
    link->source = SOURCE_LINK;
    link->hub = hub;
    link->fd = -1;
    ravel__rings_init(link);
    link->connects = connects;
    link->next = hub->links;
    if (link->next) link->next->prev = link;
    hub->links = link;
    RAVEL_ASSERT(ravel__link_ok(link));
    return link;
}

void ravel__link_drop(ravel__link *link) {
    ravel__hub *hub = link->hub;
    RAVEL_ASSERT(link->state != LINK_CLOSED);
    RAVEL_ASSERT(link->prev ? link->prev->next == link : hub->links == link);
    ravel__link_end_tls(link);
    ravel__link_close_fd(link);
    if (hub->hot == link) hub->hot = NULL;
    link->state = LINK_CLOSED;
    hub->up -= !link->connects && link->was_up;
    RAVEL_ASSERT(hub->up >= 0);
    if (link->prev)
        link->prev->next = link->next;
    else
        hub->links = link->next;
    if (link->next) link->next->prev = link->prev;
    link->prev = NULL;
    link->next = hub->closed;
    hub->closed = link;
    ravel__link_free_queue(link);
    ravel__rings_free(link);
    RAVEL_ASSERT(ravel__link_ok(link));
}

static void free_closed(ravel__hub *hub) {
    const ravel_allocator *a = hub->options.allocator;
    for (ravel__link **at = &hub->closed; *at;) {
        ravel__link *link = *at;
        if (ravel__link_is_lent(link)) {
            at = &link->next;
            continue;
        }
        *at = link->next;
        RAVEL_ASSERT(link->state == LINK_CLOSED && link->fd < 0 && !link->first && hub->hot != link);
        release_text(a, link->addresses);
        ravel__release(a, link->in, LINK_IN_BYTES);
        ravel__release(a, link, sizeof *link);
    }
}

void ravel__link_lose(ravel__link *link, const char *why) {
    ravel__hub *hub = link->hub;
    int known = link->was_up || link->connects;
    char words[LINK_WHY];
    if (link->state == LINK_CLOSED) return;
    (void)snprintf(words, sizeof words, "%s", why);
    ravel__link_drop(link);
    if (!known || !hub->handler.down) return;
    hub->events++;
    hub->handler.down(hub->handler.user, link, words);
}

void ravel__link_close(ravel__link *link, const char *why) {
    ravel__message head = {0, 0, why ? (int64_t)strnlen(why, RAVEL__HELLO_MOST) : 0};
    if (link->state == LINK_CLOSED) return;
    if (link->state == LINK_UP && !link->write_failed)
        (void)ravel__link_frame(link, RAVEL__FRAME_GOODBYE, &head, why, NULL, NULL);
    if (link->state != LINK_CLOSED) ravel__link_drop(link);
}

int ravel__link_watch(ravel__link *link, int adds, int out) {
    RAVEL_ASSERT(link->fd >= 0 && link->state != LINK_CLOSED);
    struct epoll_event event = {.events = (link->paused ? 0u : EPOLLIN) | (out ? EPOLLOUT : 0u), .data.ptr = link};
    link->wants_out = out;
    return epoll_ctl(link->hub->epoll, adds ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, link->fd, &event);
}

int64_t ravel__link_unsent(const ravel__link *link) {
    return link->unsent;
}
int64_t ravel__link_shared(const ravel__link *link) {
    return (int64_t)link->rings[RING_OUT].at;
}
int64_t ravel__link_frames(const ravel__link *link) {
    return link->frames;
}
void *ravel__link_owner(const ravel__link *link) {
    return link->owner;
}
void ravel__link_set_owner(ravel__link *link, void *owner) {
    link->owner = owner;
}

/* ---- hubs ----------------------------------------------------------------------------------------------- */

static ravel_status prepare(ravel__hub *hub, ravel_error *err) {
    const ravel__hub_options *o = &hub->options;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = hub};
    hub->epoll = epoll_create1(EPOLL_CLOEXEC);
    hub->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (hub->epoll < 0 || hub->wake < 0 || epoll_ctl(hub->epoll, EPOLL_CTL_ADD, hub->wake, &event) < 0)
        return ravel_error_set(err, RAVEL_E_IO, "cannot make what a hub polls: %s", strerror(errno));
    int none = o->token && ravel__token_is_none(o->token);
    hub->options.open |= none;
    hub->token = ravel__link_copy_text(o->allocator, o->token && !none ? o->token : "");
    hub->allow = ravel__link_copy_text(o->allocator, o->allow ? o->allow : "");
    if (!hub->token || !hub->allow) return ravel__no_memory(err, 64, "a hub");
    ravel_status status = ravel__networks_check(hub->allow, err);
    if (!status) status = ravel__hub_open_tls(hub, err);
    return status || !o->listen ? status : ravel__hub_listen(hub, o->listen, err);
}

ravel_status ravel__hub_open(const ravel__hub_options *options, const ravel__hub_handler *handler, ravel__hub **out,
                             ravel_error *err) {
    ravel__hub *hub = ravel__calloc(options->allocator, 1, sizeof *hub);
    if (!hub) return ravel__no_memory(err, sizeof *hub, "a hub");
    hub->wake_source = SOURCE_WAKE;
    hub->epoll = hub->wake = -1;
    hub->options = *options;
    hub->handler = *handler;
    hub->polled_ns = ravel__clock_ns();
    uint64_t seed = 0;
    (void)getrandom(&seed, sizeof seed, 0);
    hub->luck = ravel__rng_seed(seed);
    ravel_status status = prepare(hub, err);
    if (status)
        ravel__hub_free(hub);
    else
        *out = hub;
    return status;
}

void ravel__hub_free(ravel__hub *hub) {
    if (!hub) return;
    const ravel_allocator *a = hub->options.allocator;
    hub->handler = (ravel__hub_handler){0};
    while (hub->links) ravel__link_close(hub->links, NULL);
    RAVEL_ASSERT(hub->up == 0 && !hub->hot);
    RAVEL_ASSERT(hub->loan.state != LOAN_LENT);
    ravel__hub_take_back(hub);
    free_closed(hub);
    RAVEL_ASSERT(!hub->closed && hub->listener_count <= LINK_LISTENERS);
    for (int32_t i = 0; i < hub->listener_count; i++) {
        ravel__listener_remove(&hub->listeners[i]);
        (void)close(hub->listeners[i].fd);
    }
    ravel__hub_close_tls(hub);
    if (hub->epoll >= 0) (void)close(hub->epoll);
    if (hub->wake >= 0) (void)close(hub->wake);
    release_text(a, hub->token);
    release_text(a, hub->user_token);
    release_text(a, hub->allow);
    ravel__release(a, hub, sizeof *hub);
}

const char *ravel__hub_address(const ravel__hub *hub) {
    return hub->address;
}

void ravel__hub_set_once(ravel__hub *hub, int32_t once) {
    hub->options.once = once;
}

/* Bytes in the kernel's send queue that the peer has not acknowledged. */
static int64_t in_kernel(const ravel__link *link) {
    int bytes = 0;
    return link->fd >= 0 && link->is_tcp && ioctl(link->fd, SIOCOUTQ, &bytes) == 0 ? bytes : 0;
}

int ravel__hub_drain(ravel__hub *hub, double seconds) {
    int64_t end = 0, before = INT64_MAX;
    for (;;) {
        int64_t left = 0;
        for (const ravel__link *l = hub->links; l; l = l->next)
            if (l->state == LINK_UP && !l->write_failed) left += l->unsent + in_kernel(l);
        if (left == 0) return 1;
        if (left < before) end = ravel__clock_ns() + (int64_t)(seconds * SECOND);
        before = left;
        if (ravel__clock_ns() > end) return 0;
        (void)ravel__hub_poll(hub, 0.001, NULL, NULL);
    }
}

void ravel__hub_wake(ravel__hub *hub) {
    uint64_t one = 1;
    ssize_t ignored = write(hub->wake, &one, sizeof one);
    (void)ignored;
}

/* ---- timers --------------------------------------------------------------------------------------------- */

static void lose_in_time(ravel__link *link, const char *what, double seconds) {
    char why[LINK_WHY];
    (void)snprintf(why, sizeof why, "%s %s %.3g s%s%.400s", link->peer, what, seconds, link->trouble[0] ? ": " : "",
                   link->trouble);
    ravel__link_lose(link, why);
}

/* Sent bytes that the peer's kernel has not acknowledged for longer than keepalive: its machine is lost. Needs two
 * ticks, since bytes that were just sent cannot be acknowledged yet. */
static int is_stuck(ravel__link *link, int64_t now, int fresh) {
    RAVEL_ASSERT(link->fd >= 0);
    struct tcp_info info;
    socklen_t bytes = sizeof info;
    double limit = link->hub->options.keepalive;
    if (!link->is_tcp || limit <= 0 || getsockopt(link->fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) < 0) return 0;
    if (!info.tcpi_unacked || fresh)
        link->stuck_ns = 0;
    else if (!link->stuck_ns)
        link->stuck_ns = now;
    return link->stuck_ns && (double)(now - link->stuck_ns) > limit * SECOND &&
           info.tcpi_last_ack_recv > (uint32_t)(limit * 1000);
}

/* fresh: this hub was not polled for a while, so a missing heartbeat may be its own fault. */
static void watch_up(ravel__link *link, int64_t now, int fresh) {
    RAVEL_ASSERT(link->state == LINK_UP);
    const ravel__hub_options *o = &link->hub->options;
    ravel__message none = {0, 0, 0};
    if (fresh) link->last_in_ns = now;
    if (o->silence > 0 && (double)(now - link->last_in_ns) > o->silence * SECOND) {
        lose_in_time(link, "has been silent for", o->silence);
    } else if (is_stuck(link, now, fresh)) {
        lose_in_time(link, "has acknowledged nothing for", o->keepalive);
    } else if (o->heartbeat > 0 && !link->first && (double)(now - link->last_out_ns) > o->heartbeat * SECOND) {
        (void)ravel__link_frame(link, RAVEL__FRAME_HEARTBEAT, &none, NULL, NULL, NULL);
    }
}

static void watch_waiting(ravel__link *link, int64_t now) {
    RAVEL_ASSERT(link->state != LINK_UP && link->state != LINK_CLOSED && link->deadline_ns > 0);
    if (now > link->deadline_ns)
        lose_in_time(link, link->connects ? "could not be reached within" : "did not prove itself within",
                     link->patience);
    else if (link->state == LINK_WAITS && now >= link->retry_ns)
        ravel__link_try(link, now);
    if (link->state == LINK_WAITS && link->retry_ns < link->hub->soonest_ns) link->hub->soonest_ns = link->retry_ns;
}

static void resume_listeners(ravel__hub *hub) {
    for (int32_t i = 0; i < hub->listener_count; i++) {
        link_listener *l = &hub->listeners[i];
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = l};
        if (l->paused) (void)epoll_ctl(hub->epoll, EPOLL_CTL_ADD, l->fd, &event);
        l->paused = 0;
    }
}

static void tick(ravel__hub *hub, int64_t now) {
    int fresh = now - hub->tick_ns > 8 * (int64_t)TICK_NS, regular = now - hub->tick_ns >= TICK_NS;
    hub->soonest_ns = INT64_MAX;
    for (ravel__link *link = hub->links, *next; link; link = next) {
        next = link->next;
        RAVEL_ASSERT(ravel__link_ok(link) && link->state != LINK_CLOSED && link->hub == hub);
        if (link->state != LINK_UP)
            watch_waiting(link, now);
        else if (regular)
            watch_up(link, now, fresh);
    }
    if (!regular) return;
    resume_listeners(hub);
    hub->tick_ns = now;
}

/* ---- polling -------------------------------------------------------------------------------------------- */

static void serve(ravel__hub *hub, const struct epoll_event *event) {
    link_source *source = event->data.ptr;
    uint64_t count;
    RAVEL_ASSERT(*source == SOURCE_LINK || *source == SOURCE_LISTENER || *source == SOURCE_WAKE ||
                 *source == SOURCE_RING);
    if (*source == SOURCE_LISTENER) {
        ravel__hub_accept(hub, event->data.ptr);
    } else if (*source == SOURCE_WAKE) {
        ssize_t ignored = read(hub->wake, &count, sizeof count);
        (void)ignored;
        hub->events++;
    } else if (*source == SOURCE_RING) {
        ravel__ring_room_came(event->data.ptr);
    } else {
        ravel__link *link = event->data.ptr;
        if (link->state == LINK_CLOSED || link->state == LINK_WAITS) return;
        if (link->state == LINK_CONNECTS || link->state == LINK_SECURES) {
            (link->state == LINK_CONNECTS ? ravel__link_connected : ravel__link_secure)(link);
            return;
        }
        if (event->events & EPOLLOUT) ravel__link_write(link), ravel__link_resume(link);
        if (link->state != LINK_CLOSED && event->events & ~(uint32_t)EPOLLOUT) ravel__link_read(link);
    }
}

static int wait_ms(const ravel__hub *hub, double seconds, int64_t now) {
    int64_t most = hub->tick_ns + TICK_NS < hub->soonest_ns ? hub->tick_ns + TICK_NS : hub->soonest_ns;
    double until = (double)(most - now) / 1e6, asked = seconds * 1e3;
    double least = asked < until ? asked : until;
    return least <= 0 ? 0 : (int)ceil(least);
}

int ravel__hub_peek(ravel__hub *hub) {
    enum { PEEKS = 32 };
    int whole = ++hub->peeks % PEEKS == 0; /* the other links and the timers have their turn */
    hub->events = 0;
    ravel__hub_take_back(hub);
    if (hub->events && !whole) {
        free_closed(hub);
        return 1;
    }
    ravel__link *link = hub->hot;
    RAVEL_ASSERT(!link || (link->state != LINK_CLOSED && link->hub == hub));
    if (!link || link->state != LINK_UP || link->wants_out || link->rings[RING_OUT].waits || whole) return -1;
    int64_t now = ravel__clock_ns();
    if (now - hub->tick_ns >= TICK_NS || now >= hub->soonest_ns) return -1;
    hub->polled_ns = now;
    ravel__link_read(link);
    free_closed(hub);
    return hub->events > 0;
}

int ravel__hub_sleep(const ravel__hub *hub, int64_t ns) {
    struct epoll_event event;
    return epoll_wait(hub->epoll, &event, 1, (int)((ns + 999999) / 1000000)) > 0;
}

ravel_status ravel__hub_poll(ravel__hub *hub, double seconds, int64_t *events, ravel_error *err) {
    struct epoll_event list[EVENTS];
    int64_t now = ravel__clock_ns(), end = now + (int64_t)(seconds * SECOND);
    ravel_status status = RAVEL_OK;
    hub->events = 0;
    ravel__hub_take_back(hub);
    for (;;) {
        if (now - hub->tick_ns >= TICK_NS || now >= hub->soonest_ns) tick(hub, now);
        double left = hub->events ? 0 : (double)(end - now) / SECOND;
        int count = epoll_wait(hub->epoll, list, EVENTS, wait_ms(hub, left, now));
        now = hub->polled_ns = ravel__clock_ns();
        for (int i = 0; i < count; i++) serve(hub, &list[i]);
        if (count < 0 && errno != EINTR)
            status = ravel_error_set(err, RAVEL_E_IO, "polling failed: %s", strerror(errno));
        if (status || hub->events || now >= end) break;
    }
    free_closed(hub);
    if (events) *events = hub->events;
    return status;
}
