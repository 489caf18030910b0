/* Frames in and out of a socket.
 *
 * Out: a queue of frames; one sendmsg takes pieces of several. A long body goes straight from the caller's memory, and
 * is summed a slice ahead of the socket, while it is in cache. A small frame goes to the socket from the stack where
 * nothing is queued before it.
 *
 * In: small frames through the link's buffer, many per read; what is missing of a long body is read straight into its
 * place, and summed as it comes. */
#include "comm/link/link_state.h"

#include "base/assert.h"
#include "base/system/clock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum {
    SLICE = 256 << 10,     /* bytes that are summed, then sent from the cache */
    PIECES = 24,           /* of one sendmsg */
    READ_MOST = 512 << 10, /* bytes of one read into a body, which are summed in the cache */
    SUM_STEP = 1024,       /* a multiple of this is summed without a copy */
    TURN_BYTES = 8 << 20,  /* bytes that one link may move before the next link is served */
    DIRECT = 16 << 10,     /* a body with more than this missing is not read through the buffer */
    SMALL = 1024           /* a body up to this is sent in one piece with its head */
};

/* ---- out ------------------------------------------------------------------------------------------------ */

link_out *ravel__link_queue(ravel__link *link, const void *body, int64_t bytes, int copies) {
    RAVEL_ASSERT(bytes >= 0 && !link->first == !link->last);
    RAVEL_ASSERT(link->state != LINK_CLOSED && (bytes == 0 || body));
    size_t need = sizeof(link_out) + (copies ? (size_t)bytes : 0);
    link_out *o = ravel__alloc(link->hub->options.allocator, need);
    if (!o) return NULL;
    memset(o, 0, sizeof *o);
    o->reserved = copies ? bytes : 0;
    o->body = copies ? (const uint8_t *)(o + 1) : body;
    if (copies && bytes > 0) memcpy(o + 1, body, (size_t)bytes);
    o->bytes = bytes;
    if (link->last)
        link->last->next = o;
    else
        link->first = o;
    link->last = o;
    link->unsent += bytes;
    link->frames++;
    return o;
}

static void free_out(ravel__link *link, link_out *o) {
    ravel__release(link->hub->options.allocator, o, sizeof *o + (size_t)o->reserved);
}

void ravel__link_free_queue(ravel__link *link) {
    while (link->first) {
        link_out *o = link->first;
        link->first = o->next;
        free_out(link, o);
    }
    link->last = NULL;
    link->unsent = link->frames = 0;
    RAVEL_ASSERT(!link->first);
}

/* Sums the next slice, so that it may go. */
static void sum_ahead(ravel__link *link, link_out *o) {
    int64_t sent = o->done > o->head_bytes ? o->done - o->head_bytes : 0;
    if (!o->sum_bytes || o->summed >= o->bytes || o->summed - sent >= SLICE) return;
    RAVEL_ASSERT(o->summed >= sent && !o->shared); /* no byte goes before it is summed */
    int64_t part = o->bytes - o->summed < SLICE ? o->bytes - o->summed : SLICE;
    if (o->summed == 0) ravel__mac_begin(&link->summing, &link->out_key, o->number);
    ravel__mac_add(&link->summing, o->body + o->summed, (size_t)part);
    o->summed += part;
    RAVEL_ASSERT(part > 0 && o->summed <= o->bytes);
    if (o->summed == o->bytes) ravel__le64(o->sum, ravel__mac_end(&link->summing));
}

static int is_raw(uint32_t type) {
    return type == RAVEL__FRAME_RAW || type == RAVEL__FRAME_SHARED_RAW;
}

static int add_piece(struct iovec *list, int count, const void *at, int64_t bytes, int64_t *skip) {
    if (*skip >= bytes) {
        *skip -= bytes;
        return count;
    }
    RAVEL_ASSERT(*skip >= 0 && count < PIECES);
    list[count] = (struct iovec){(char *)at + *skip, (size_t)(bytes - *skip)};
    *skip = 0;
    return count + 1;
}

/* Stops writing; the next read ends the link with the reason. */
static void spoil(ravel__link *link, const char *why) {
    link->fault = why;
    link->write_failed = 1;
    (void)shutdown(link->fd, SHUT_RDWR);
}

/* The next piece of a shared body: into the ring, with a record (and at the end the sum) where the head was. 0: not
 * now. */
static int next_record(ravel__link *link, link_out *o) {
    RAVEL_ASSERT(o->summed < o->bytes);
    RAVEL_ASSERT(o->shared && o->done == o->head_bytes && o->summed >= 0);
    int64_t put = ravel__ring_put(link, o->body + o->summed, o->bytes - o->summed);
    if (put < 0) spoil(link, "the peer wrote garbage into the shared memory");
    if (put <= 0) return 0;
    RAVEL_ASSERT(put <= o->bytes - o->summed && put <= RAVEL__RING_BYTES);
    ravel__ring_record_write(&link->out_key, o->number, (uint64_t)o->summed, (uint32_t)put, o->head);
    if (o->sum_bytes && o->summed == 0) ravel__mac_begin(&link->summing, &link->out_key, o->number);
    if (o->sum_bytes) ravel__mac_add(&link->summing, o->body + o->summed, (size_t)put);
    o->summed += put;
    o->done = 0;
    o->head_bytes = RAVEL__RECORD_BYTES;
    if (o->summed < o->bytes || !o->sum_bytes) return 1;
    ravel__le64(o->head + RAVEL__RECORD_BYTES, ravel__mac_end(&link->summing));
    o->head_bytes += RAVEL__SUM_BYTES;
    return 1;
}

/* Bytes of it that go through the socket; of a shared one, up to the end of this record. */
static int64_t socket_bytes(const link_out *o) {
    return o->head_bytes + (o->shared ? 0 : o->bytes + o->sum_bytes);
}

static int add_shared(ravel__link *link, struct iovec *list, int count, link_out *o, int *whole) {
    *whole = 0;
    if (o->done == o->head_bytes && !next_record(link, o)) return count;
    int64_t skip = o->done;
    *whole = o->summed == o->bytes;
    return add_piece(list, count, o->head, o->head_bytes, &skip);
}

/* Adds the bytes of this frame that may be sent now; *whole: all that are left of it. */
static int add_frame(ravel__link *link, struct iovec *list, int count, link_out *o, int *whole) {
    RAVEL_ASSERT(count + 3 <= PIECES && o->done >= 0 && o->done <= socket_bytes(o));
    int64_t skip = o->done;
    if (o->shared) return add_shared(link, list, count, o, whole);
    sum_ahead(link, o);
    int64_t ready = o->sum_bytes ? o->summed : o->bytes;
    count = add_piece(list, count, o->head, o->head_bytes, &skip);
    count = add_piece(list, count, o->body, ready, &skip);
    *whole = ready == o->bytes;
    return *whole ? add_piece(list, count, o->sum, o->sum_bytes, &skip) : count;
}

/* `bytes` have gone: frames that are over leave the queue. */
static void advance(ravel__link *link, int64_t bytes) {
    while (bytes > 0 && link->first) {
        link_out *o = link->first;
        int64_t left = socket_bytes(o) - o->done, part = bytes < left ? bytes : left;
        RAVEL_ASSERT(left >= 0 && part >= 0);
        o->done += part;
        bytes -= part;
        if (part < left || (o->shared && o->summed < o->bytes)) return;
        link->first = o->next;
        if (!link->first) link->last = NULL;
        link->unsent -= o->bytes;
        link->frames--;
        RAVEL_ASSERT(link->unsent >= 0 && link->frames >= 0 && (link->frames == 0) == !link->first);
        void *token = o->token;
        free_out(link, o);
        if (!token || !link->hub->handler.sent) continue;
        link->hub->events++;
        link->hub->handler.sent(link->hub->handler.user, link, token);
        if (link->state == LINK_CLOSED) return;
    }
}

static ssize_t write_once(ravel__link *link) {
    RAVEL_ASSERT(link->first && link->fd >= 0 && !link->write_failed);
    struct iovec list[PIECES];
    ring_control control;
    int count = 0, whole = 1, gives = link->first->gives && link->first->done == 0;
    for (link_out *o = link->first; o && whole && count + 3 <= PIECES; o = o->next) {
        if (o->gives && o != link->first) break; /* descriptors belong to the first byte of a call */
        count = add_frame(link, list, count, o, &whole);
    }
    struct msghdr message = {.msg_iov = list, .msg_iovlen = (size_t)count};
    if (count == 0) return errno = EAGAIN, -1; /* there is no room in the ring */
    RAVEL_ASSERT(count <= PIECES);
    if (gives) ravel__ring_attach(link, &message, &control);
    ssize_t sent = link->tls ? link->hub->tls->write(link->tls, list, count)
                             : sendmsg(link->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (gives && sent > 0) ravel__ring_attached(link);
    return sent;
}

void ravel__link_write(ravel__link *link) {
    RAVEL_ASSERT(ravel__link_ok(link));
    int64_t moved = 0;
    if (link->writing) return;
    link->writing = 1;
    while (link->first && !link->write_failed && moved < TURN_BYTES && link->fd >= 0) {
        ssize_t sent = write_once(link);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) link->write_failed = 1;
        if (sent < 0) break;
        moved += sent;
        advance(link, sent);
    }
    link->writing = 0;
    RAVEL_ASSERT(ravel__link_ok(link));
    if (moved) link->last_out_ns = ravel__clock_ns();
    int wants = (link->first && !link->write_failed && !link->rings[RING_OUT].waits) || link->paused;
    if (link->fd >= 0 && wants != link->wants_out) (void)ravel__link_watch(link, 0, wants);
}

/* A small frame, at once and in one piece. 0: not now, and nothing has gone. What the socket does not take is
 * queued. */
static int send_at_once(ravel__link *link, const ravel__link_head *f, const void *body) {
    uint8_t whole[RAVEL__HEAD_BYTES + SMALL + RAVEL__SUM_BYTES];
    int64_t body_bytes = (int64_t)f->bytes, bytes = RAVEL__HEAD_BYTES + body_bytes;
    if (link->first || link->writing || body_bytes > SMALL || f->type == RAVEL__FRAME_RING) return 0;
    RAVEL_ASSERT(link->frames == 0 && link->unsent == 0 && body_bytes >= 0);
    ravel__link_head_write(f, &link->out_key, whole);
    if (body_bytes > 0) memcpy(whole + RAVEL__HEAD_BYTES, body, (size_t)body_bytes);
    if (body_bytes > 0 && !is_raw(f->type)) {
        ravel__mac_begin(&link->summing, &link->out_key, f->number);
        ravel__mac_add(&link->summing, body, (size_t)body_bytes);
        ravel__le64(whole + bytes, ravel__mac_end(&link->summing));
        bytes += RAVEL__SUM_BYTES;
    }
    const struct iovec one = {whole, (size_t)bytes};
    ssize_t sent = link->tls ? link->hub->tls->write(link->tls, &one, 1)
                             : send(link->fd, whole, (size_t)bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent <= 0) return 0;
    RAVEL_ASSERT(sent <= bytes && bytes <= (int64_t)sizeof whole);
    link->out_number++;
    link->last_out_ns = link->hub->polled_ns;
    if (sent == bytes) return 1;
    if (!ravel__link_queue(link, whole + sent, bytes - sent, 1))
        spoil(link, "out of memory");
    else
        ravel__link_write(link);
    return 1;
}

ravel_status ravel__link_frame(ravel__link *link, uint32_t type, const ravel__message *head, const void *body,
                               void *token, ravel_error *err) {
    RAVEL_ASSERT(link->state == LINK_UP && head->bytes >= 0 && type > 0 && type < RAVEL__FRAME_TYPES);
    ravel__link_head f = {type, head->kind, link->out_number, head->id, (uint64_t)head->bytes};
    if (!token && link->fd >= 0 && send_at_once(link, &f, body)) return RAVEL_OK;
    link_out *o = ravel__link_queue(link, body, head->bytes, !token && head->bytes > 0);
    if (!o) return ravel__no_memory(err, sizeof *o + (size_t)head->bytes, "a message");
    o->gives = type == RAVEL__FRAME_RING;
    o->shared = type == RAVEL__FRAME_SHARED || type == RAVEL__FRAME_SHARED_RAW;
    ravel__link_head_write(&f, &link->out_key, o->head);
    o->number = link->out_number++;
    o->head_bytes = RAVEL__HEAD_BYTES;
    o->sum_bytes = head->bytes > 0 && !is_raw(type) ? RAVEL__SUM_BYTES : 0;
    o->token = token;
    if (link->first == o) ravel__link_write(link); /* nothing is before it */
    return RAVEL_OK;
}

static ravel_status send_as(ravel__link *link, uint32_t type, const ravel__message *head, const void *body, void *token,
                            ravel_error *err) {
    if (link->state != LINK_UP || link->write_failed)
        return ravel_error_set(err, RAVEL_E_STATE, "the link to %s is not up", link->peer);
    if (head->bytes < 0 || (uint64_t)head->bytes > link->most_out)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s takes messages of at most %llu bytes, not %lld", link->peer,
                               (unsigned long long)link->most_out, (long long)head->bytes);
    if (link->tls && type == RAVEL__FRAME_MESSAGE) type = RAVEL__FRAME_RAW; /* its records have tags of their own */
    if (ravel__ring_offers(link, head->bytes)) {
        ravel__message ring = {0, RAVEL__RING_BYTES, 0};
        ravel_status status = ravel__link_frame(link, RAVEL__FRAME_RING, &ring, NULL, NULL, err);
        if (status) return status;
    }
    if (head->bytes >= RAVEL__SHARED_LEAST && ravel__ring_is_ready(link))
        type = type == RAVEL__FRAME_RAW ? RAVEL__FRAME_SHARED_RAW : RAVEL__FRAME_SHARED;
    return ravel__link_frame(link, type, head, body, token, err);
}

ravel_status ravel__link_send(ravel__link *link, const ravel__message *head, const void *body, void *token,
                              ravel_error *err) {
    return send_as(link, RAVEL__FRAME_MESSAGE, head, body, token, err);
}

ravel_status ravel__link_send_raw(ravel__link *link, const ravel__message *head, const void *body, void *token,
                                  ravel_error *err) {
    return send_as(link, link->is_tcp ? RAVEL__FRAME_MESSAGE : RAVEL__FRAME_RAW, head, body, token, err);
}

int ravel__link_detach(ravel__link *link, void *token) {
    link_out **at = &link->first;
    while (*at && (*at)->token != token) at = &(*at)->next;
    link_out *o = *at;
    if (!o) return 1;
    int64_t sent = o->shared ? o->summed : o->done > o->head_bytes ? o->done - o->head_bytes : 0;
    int64_t left = o->bytes - sent;
    RAVEL_ASSERT(sent >= 0 && left >= 0);
    link_out *copy = ravel__alloc(link->hub->options.allocator, sizeof *o + (size_t)left);
    if (!copy) {
        o->token = NULL;
        ravel__link_lose(link, "out of memory");
        return 0;
    }
    *copy = *o;
    RAVEL_ASSERT(o->token == token && o->reserved == 0); /* it was the caller's memory */
    if (left > 0) memcpy(copy + 1, o->body + sent, (size_t)left);
    copy->body = (const uint8_t *)(copy + 1) - sent; /* what was sent is not looked at again */
    copy->reserved = left;
    copy->token = NULL;
    *at = copy;
    if (link->last == o) link->last = copy;
    free_out(link, o);
    return 1;
}

void ravel__link_forget(ravel__link *link, const void *body) {
    if (link->body == body) link->body = NULL;
}

/* ---- in ------------------------------------------------------------------------------------------------- */

static int is_shared(const ravel__link *link) {
    return link->frame.type == RAVEL__FRAME_SHARED || link->frame.type == RAVEL__FRAME_SHARED_RAW;
}

static void begin_body(ravel__link *link) {
    ravel__hub *hub = link->hub;
    ravel__message head = {link->frame.kind, link->frame.id, (int64_t)link->frame.bytes};
    link->stage = !link->frame.bytes ? IN_HEAD : is_shared(link) ? IN_RECORD : IN_BODY;
    link->got = link->summed = 0;
    RAVEL_ASSERT(link->frame.bytes <= (uint64_t)link->hub->options.max_body);
    link->body = NULL;
    if (!link->frame.bytes) return;
    ravel__mac_begin(&link->running, &link->in_key, link->frame.number);
    if (link->frame.type == RAVEL__FRAME_GOODBYE)
        link->body = link->goodbye;
    else if (hub->handler.place)
        link->body = hub->handler.place(hub->handler.user, link, &head);
}

static void end_frame(ravel__link *link) {
    RAVEL_ASSERT(link->got == link->frame.bytes && link->state == LINK_UP);
    ravel__hub *hub = link->hub;
    ravel__message head = {link->frame.kind, link->frame.id, (int64_t)link->frame.bytes};
    char why[LINK_WHY], text[256];
    link->stage = IN_HEAD;
    if (link->frame.type == RAVEL__FRAME_HEARTBEAT) return;
    if (link->frame.type == RAVEL__FRAME_RING) {
        ravel__ring_take(link);
        return;
    }
    if (link->frame.type == RAVEL__FRAME_GOODBYE) {
        RAVEL_ASSERT(link->frame.bytes < sizeof link->goodbye); /* ravel__link_head_read has checked it */
        ravel__peer_text(link->goodbye, link->frame.bytes, text, sizeof text);
        (void)snprintf(why, sizeof why, "%s closed the link%s%s", link->peer, text[0] ? ": " : "", text);
        ravel__link_lose(link, why);
        return;
    }
    hub->events++;
    if (hub->handler.message) hub->handler.message(hub->handler.user, link, &head, link->body);
}

static void damaged(ravel__link *link, const char *what) {
    char why[LINK_WHY];
    (void)snprintf(why, sizeof why, "%s sent %s", link->peer, what);
    ravel__link_lose(link, why);
}

static void take_head(ravel__link *link) {
    RAVEL_ASSERT(link->in_end - link->in_at >= RAVEL__HEAD_BYTES);
    const char *wrong = ravel__link_head_read(link->in + link->in_at, &link->in_key, link->in_number,
                                              (uint64_t)link->hub->options.max_body, &link->frame);
    if (wrong) {
        damaged(link, wrong);
        return;
    }
    if (link->is_tcp && !link->tls && is_raw(link->frame.type)) {
        damaged(link, "a body without a tag");
        return;
    }
    if (is_shared(link) && !ravel__ring_is_mapped(link)) {
        damaged(link, "a body in shared memory, but the link has none");
        return;
    }
    link->in_at += RAVEL__HEAD_BYTES;
    RAVEL_ASSERT(link->in_at <= link->in_end && link->stage == IN_HEAD);
    link->in_number++;
    begin_body(link);
    if (link->stage == IN_HEAD && link->state == LINK_UP) end_frame(link);
}

/* Sums what has come of the body; all of it where it is whole. */
static void sum_body(ravel__link *link) {
    uint64_t upto = link->got == link->frame.bytes ? link->got : link->got / SUM_STEP * SUM_STEP;
    RAVEL_ASSERT(link->got <= link->frame.bytes && link->summed <= upto);
    if (link->body && upto > link->summed && !is_raw(link->frame.type))
        ravel__mac_add(&link->running, link->body + link->summed, (size_t)(upto - link->summed));
    link->summed = upto;
    if (link->got == link->frame.bytes) link->stage = IN_SUM;
}

static void take_body(ravel__link *link) {
    RAVEL_ASSERT(link->stage == IN_BODY && link->got < link->frame.bytes);
    uint64_t left = link->frame.bytes - link->got, here = (uint64_t)(link->in_end - link->in_at);
    uint64_t part = left < here ? left : here;
    if (link->body) memcpy(link->body + link->got, link->in + link->in_at, (size_t)part);
    link->in_at += (int32_t)part;
    link->got += part;
    RAVEL_ASSERT(link->in_at <= link->in_end);
    sum_body(link);
}

static void take_record(ravel__link *link) {
    RAVEL_ASSERT(link->stage == IN_RECORD && link->got < link->frame.bytes && ravel__ring_is_mapped(link));
    uint32_t piece;
    const char *wrong = ravel__ring_record_read(link->in + link->in_at, &link->in_key, link->frame.number, link->got,
                                                link->frame.bytes - link->got, &piece);
    if (wrong) {
        damaged(link, wrong);
        return;
    }
    link->in_at += RAVEL__RECORD_BYTES;
    ravel__ring_get(link, link->body ? link->body + link->got : NULL, piece);
    link->got += piece;
    RAVEL_ASSERT(link->got <= link->frame.bytes);
    sum_body(link);
}

static int32_t sum_bytes(const ravel__link *link) {
    return is_raw(link->frame.type) ? 0 : RAVEL__SUM_BYTES;
}

static void take_sum(ravel__link *link) {
    if (sum_bytes(link) == 0) {
        end_frame(link);
        return;
    }
    RAVEL_ASSERT(link->stage == IN_SUM && link->got == link->frame.bytes);
    uint64_t sum = ravel__read64(link->in + link->in_at);
    link->in_at += RAVEL__SUM_BYTES;
    if (link->body && sum != ravel__mac_end(&link->running))
        damaged(link, "a body that was changed on the way, or was made by somebody else");
    else
        end_frame(link);
}

static int is_full(const ravel__link *link) {
    int64_t most = link->hub->options.max_unsent;
    return most > 0 && !link->write_failed && link->unsent + link->frames * (int64_t)sizeof(link_out) > most;
}

/* Reads no more until the queue is shorter. */
static void pause_reading(ravel__link *link) {
    if (link->paused || link->fd < 0) return;
    link->paused = 1;
    (void)ravel__link_watch(link, 0, 1);
}

static void parse(ravel__link *link);

void ravel__link_resume(ravel__link *link) {
    if (link->state != LINK_UP || !link->paused || is_full(link)) return;
    link->paused = 0;
    (void)ravel__link_watch(link, 0, link->first && !link->write_failed && !link->rings[RING_OUT].waits);
    parse(link);
    if (link->tls) ravel__link_read(link); /* what was decrypted meanwhile */
}

/* Everything that the buffer holds, unless the queue becomes too long. */
static void parse(ravel__link *link) {
    while (link->state != LINK_CLOSED) {
        if (link->state == LINK_UP && is_full(link)) {
            pause_reading(link);
            break;
        }
        int32_t here = link->in_end - link->in_at;
        if (link->state != LINK_UP) {
            int32_t before = link->in_at;
            ravel__link_handshake(link);
            if (link->in_at == before) break;
        } else if (link->stage == IN_HEAD && here >= RAVEL__HEAD_BYTES) {
            take_head(link);
        } else if (link->stage == IN_BODY && here > 0) {
            take_body(link);
        } else if (link->stage == IN_RECORD && here >= RAVEL__RECORD_BYTES) {
            take_record(link);
        } else if (link->stage == IN_SUM && here >= sum_bytes(link)) {
            take_sum(link);
        } else {
            break;
        }
    }
    RAVEL_ASSERT(ravel__link_ok(link));
    RAVEL_ASSERT(link->in_at <= link->in_end && link->in_end <= LINK_IN_BYTES);
    if (link->in_at == link->in_end) link->in_at = link->in_end = 0;
}

static void lose_by_errno(ravel__link *link, ssize_t got) {
    char why[LINK_WHY];
    const char *hint = link->state == LINK_UP ? "" : " in the handshake; are token and allowed addresses right?";
    if (got < 0)
        (void)snprintf(why, sizeof why, "the connection to %s failed (%s)%s", link->peer, strerror(errno), hint);
    else
        (void)snprintf(why, sizeof why, "%s closed the connection%s", link->peer, hint);
    if (got < 0 && errno == EBADMSG && link->tls)
        (void)snprintf(why, sizeof why,
                       "%s sent a TLS record that was changed on the way, or was made by somebody else", link->peer);
    if (link->fault) (void)snprintf(why, sizeof why, "the link to %s was given up: %s", link->peer, link->fault);
    if (link->connects && link->state == LINK_GREETS && !link->tls) /* perhaps it is only just starting */
        ravel__link_again(link, ravel__clock_ns(), why);
    else
        ravel__link_lose(link, why);
}

/* One read. The bytes that came; 0: none now; -1: the link is lost. *full: as many as there was room for. */
static int64_t read_into(ravel__link *link, struct iovec *list, int count, int *full) {
    ssize_t got = link->tls ? ravel__link_tls_recv(link, list, count)
                            : ravel__link_recv(link->fd, list, count, MSG_DONTWAIT, !link->is_tcp, link->given);
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
    if (got <= 0) {
        lose_by_errno(link, got);
        return -1;
    }
    *full = (size_t)got == list[0].iov_len + (count > 1 ? list[1].iov_len : 0);
    link->hub->hot = link;
    return got;
}

/* Through the buffer: many small frames at once. */
static int64_t read_buffer(ravel__link *link, int *full) {
    if (link->in_at > 0) { /* room at the end */
        memmove(link->in, link->in + link->in_at, (size_t)(link->in_end - link->in_at));
        link->in_end -= link->in_at;
        link->in_at = 0;
    }
    struct iovec list = {link->in + link->in_end, (size_t)(LINK_IN_BYTES - link->in_end)};
    RAVEL_ASSERT(list.iov_len > 0);
    int64_t got = read_into(link, &list, 1, full);
    if (got > 0) link->in_end += (int32_t)got;
    RAVEL_ASSERT(link->in_end <= LINK_IN_BYTES);
    return got;
}

/* Straight to where the body goes; with its end comes the head of the next frame, and no more, since that may be
 * long. */
static int64_t read_body(ravel__link *link, uint64_t left, int *full) {
    RAVEL_ASSERT(left > 0 && left == link->frame.bytes - link->got && link->body && !is_shared(link));
    size_t room = left < READ_MOST ? (size_t)left : READ_MOST;
    struct iovec list[2] = {{link->body + link->got, room}, {link->in, (size_t)sum_bytes(link) + RAVEL__HEAD_BYTES}};
    int64_t got = read_into(link, list, room == left ? 2 : 1, full);
    if (got <= 0) return got;
    link->in_at = 0;
    link->in_end = got > (int64_t)room ? (int32_t)(got - (int64_t)room) : 0;
    link->got += (uint64_t)(got - link->in_end);
    RAVEL_ASSERT(link->in_end <= LINK_IN_BYTES && link->got <= link->frame.bytes);
    sum_body(link);
    return got;
}

static int64_t read_once(ravel__link *link, int *full) {
    uint64_t left = link->stage == IN_BODY ? link->frame.bytes - link->got : 0;
    int direct = link->state == LINK_UP && link->body && link->in_at == link->in_end && left > DIRECT;
    return direct ? read_body(link, left, full) : read_buffer(link, full);
}

void ravel__link_took(ravel__link *link, ssize_t got, int error) {
    if (got < 0 && (error == EAGAIN || error == EWOULDBLOCK || error == EINTR)) return;
    errno = error;
    if (got <= 0) {
        lose_by_errno(link, got);
        return;
    }
    RAVEL_ASSERT(link->in_at == link->in_end && got <= LINK_IN_BYTES);
    link->in_at = 0, link->in_end = (int32_t)got;
    link->last_in_ns = link->hub->polled_ns;
    link->hub->hot = link;
    parse(link);
}

void ravel__link_read(ravel__link *link) {
    int64_t moved = 0;
    int full = 1;
    if (ravel__link_is_lent(link)) return;
    RAVEL_ASSERT(link->state >= LINK_GREETS && ravel__link_ok(link));
    while (link->fd >= 0 && full && !link->paused && (moved < TURN_BYTES || ravel__link_tls_pending(link))) {
        int64_t got = read_once(link, &full);
        if (got <= 0) return;
        moved += got;
        link->last_in_ns = link->hub->polled_ns;
        parse(link);
        full |= link->state == LINK_UP && link->stage != IN_HEAD; /* the rest is likely on its way */
    }
}
