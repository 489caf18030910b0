/* The calling thread's loop: hands packed frames to the wire, takes arriving ones in turn, gives them to the loader and
 * passes them on. It alone uses the communicator. It never waits for one thing only: each round looks at everything,
 * and when nothing moved, sleeps briefly or until a helper signals.
 *
 *     sender's slot     FREE -> PACKING -> SENDING -> FREE          (local streams: -> LOADING -> FREE)
 *     receiver's slot   FREE -> NOTICE -> FRAME -> LOADING -> FREE
 *
 * A receiver asks for a stream's next notice only after the one before has come, since that says whether there is a
 * next; and gives its buffers to streams in their turn, so that the frame that comes first in the order of the whole
 * communicator (streams.h) always has a buffer waiting for it. */
#include "refit/session/stream.h"

#include "base/assert.h"
#include "base/clock.h"

#include <sched.h>
#include <stdbool.h>
#include <string.h>

enum {
    REQUESTS_MOST = RAVEL_REQUESTS_MAX - RAVEL__SLOT_SENDS,
    YIELDS = 16,
    NAP_NS = 40 * 1000,
    LONG_NAP_NS = 400 * 1000,
    TELL_NS = 50 * 1000 * 1000,
    TEAM_SHARE = 8 << 20, /* bytes of an update that are worth another thread */
    PATIENCE = 20         /* deadlines */
};

static int32_t notice_tag(const ravel__stream *s) {
    return 2 * s->tag;
}
static int32_t frame_tag(const ravel__stream *s) {
    return 2 * s->tag + 1;
}

/* ---- time and progress ---------------------------------------------------------------------------------- */

static void moved(ravel_refit *refit) {
    refit->wire.progress_ns = refit->wire.now_ns;
}

/* A phase that is on while its count is above 0. */
static void phase_count(ravel_refit *refit, int32_t *count, int32_t change, int64_t *since, int64_t *total) {
    int64_t now = ravel__clock_ns();
    if (*count == 0) *since = now;
    *count += change;
    RAVEL_ASSERT(*count >= 0);
    if (*count == 0) *total += now - *since;
    refit->wire.now_ns = now;
}

void ravel__stream_tell(ravel_refit *refit) {
    ravel__wire_state *w = &refit->wire;
    if (!refit->options.progress || w->now_ns - w->told_ns < TELL_NS) return;
    w->told_ns = w->now_ns;
    refit->options.progress(refit->options.progress_user, w->done_bytes, w->total_bytes);
}

/* ---- requests ------------------------------------------------------------------------------------------- */

static ravel_status post_send(ravel_refit *refit, ravel_comm *comm, ravel_request **request, const void *data,
                              int64_t bytes, int32_t peer, int32_t tag, ravel_error *err) {
    RAVEL_ASSERT(!*request && bytes >= 0 && peer >= 0 && peer < refit->ranks && peer != refit->rank);
    ravel_status status = ravel__isend(refit->transport, comm, data, bytes, peer, tag, request, err);
    refit->wire.open_requests += *request != NULL;
    RAVEL_ASSERT(refit->wire.open_requests <= RAVEL_REQUESTS_MAX);
    return status;
}

static ravel_status send_notice(ravel_refit *refit, ravel__refit_buffer *slot, int32_t c, int32_t peer,
                                const ravel__stream *s, ravel_error *err) {
    return post_send(refit, refit->comm, &slot->sends[RAVEL__SENDS * c], slot->notice_bytes, RAVEL__NOTICE_BYTES, peer,
                     notice_tag(s), err);
}

/* The frame, and its payloads where they are apart. `bad`: it is empty. */
static ravel_status send_frame(ravel_refit *refit, ravel__refit_buffer *slot, int32_t c, int32_t peer,
                               const ravel__stream *s, int bad, ravel_error *err) {
    RAVEL_ASSERT(c >= 0 && c < RAVEL__FANOUT_MOST);
    ravel_request **sends = &slot->sends[RAVEL__SENDS * c];
    int64_t bytes = bad ? 0 : (int64_t)slot->notice.bytes, apart = bad ? 0 : slot->payload_bytes;
    RAVEL_ASSERT(apart == 0 || (refit->data && slot->payload));
    ravel_status status = post_send(refit, refit->comm, &sends[1], slot->data, bytes, peer, frame_tag(s), err);
    if (status == RAVEL_OK && apart > 0)
        status = post_send(refit, refit->data, &sends[2], slot->payload + RAVEL__FRAME_HEADER, apart, peer,
                           frame_tag(s), err);
    refit->wire.bytes_sent += bytes + apart + RAVEL__NOTICE_BYTES;
    return status;
}

ravel_status ravel__stream_ask(ravel_refit *refit, ravel__refit_buffer *slot, ravel_error *err) {
    RAVEL_ASSERT(slot->state == RAVEL__SLOT_NOTICE && !slot->recv && refit->in_states[slot->stream].awaiting);
    int32_t peer = refit->in_states[slot->stream].parent, tag = notice_tag(&refit->streams.in[slot->stream]);
    ravel_status status =
        ravel_comm_irecv(refit->comm, slot->notice_bytes, RAVEL__NOTICE_BYTES, RAVEL_U8, peer, tag, &slot->recv, err);
    refit->wire.open_requests += slot->recv != NULL;
    return status;
}

static ravel_status post_frame_recv(ravel_refit *refit, ravel__refit_buffer *slot, ravel_error *err) {
    RAVEL_ASSERT(slot->state == RAVEL__SLOT_FRAME && !slot->recv && !slot->loan.lender);
    const ravel__transport *t = refit->transport;
    int32_t peer = refit->in_states[slot->stream].parent, tag = frame_tag(&refit->streams.in[slot->stream]);
    int64_t bytes = (int64_t)slot->notice.bytes;
    ravel_status status =
        refit->borrows ? ravel__iborrow(t, refit->comm, &slot->loan, bytes, peer, tag, &slot->recv, err)
                       : ravel_comm_irecv(refit->comm, slot->buffer, bytes, RAVEL_U8, peer, tag, &slot->recv, err);
    refit->wire.open_requests += slot->recv != NULL;
    return status;
}

/* *done: the request is complete. E_MISMATCH (a message of another length) does not break the communicator: it sets
 * *bad. */
static ravel_status test_request(ravel_refit *refit, ravel_request **request, int32_t *done, int32_t *bad,
                                 ravel_error *err) {
    *done = 1;
    *bad = 0;
    if (!*request) return RAVEL_OK;
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = ravel__test(refit->transport, *request, done, &why);
    if (!*done) return RAVEL_OK;
    *request = NULL;
    refit->wire.open_requests--;
    RAVEL_ASSERT(refit->wire.open_requests >= 0);
    moved(refit);
    if (status == RAVEL_E_MISMATCH) {
        *bad = 1;
        return RAVEL_OK;
    }
    if (status != RAVEL_OK) ravel_error_set(err, status, "%s", why.message);
    return status;
}

/* Tests a slot's sends; *all: they are complete. */
static ravel_status test_sends(ravel_refit *refit, ravel__refit_buffer *slot, int32_t *all, int32_t *bad,
                               ravel_error *err) {
    *all = 1;
    *bad = 0;
    for (int32_t i = 0; i < RAVEL__SLOT_SENDS; i++) {
        int32_t done, wrong;
        ravel_status status = test_request(refit, &slot->sends[i], &done, &wrong, err);
        if (status != RAVEL_OK) return status;
        *all &= done;
        *bad |= wrong;
    }
    return RAVEL_OK;
}

/* ---- sender --------------------------------------------------------------------------------------------- */

ravel_status ravel__stream_send(ravel_refit *refit, int32_t index, ravel_error *err) {
    ravel__refit_buffer *slot = &refit->out_pool.slots[index];
    const ravel__stream *s = &refit->streams.out[slot->stream];
    ravel__out_state *o = &refit->out_states[slot->stream];
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(slot->state == RAVEL__SLOT_PACKING && slot->stream >= 0 && slot->stream < refit->streams.out_count);
    moved(refit);
    o->frame = slot->notice.flags & RAVEL__FRAME_LAST_OF_WINDOW ? 0 : o->frame + 1;
    if (s->local) {
        slot->state = RAVEL__SLOT_LOADING;
        slot->loaded = 0;
        ravel__slot_queue_put(&refit->loader.arrived, index + refit->in_pool.count);
        return RAVEL_OK;
    }
    slot->state = RAVEL__SLOT_SENDING;
    slot->began_ns = ravel__clock_ns();
    phase_count(refit, &refit->wire.sending, 1, &refit->wire.send_since, &refit->wire.send_ns);
    ravel__notice_encode(&slot->notice, slot->notice_bytes);
    for (int32_t c = 0; c < o->child_count && status == RAVEL_OK; c++) {
        status = send_notice(refit, slot, c, o->children[c], s, err);
        if (status == RAVEL_OK) status = send_frame(refit, slot, c, o->children[c], s, 0, err);
    }
    refit->wire.frames++;
    return status;
}

static void free_out(ravel_refit *refit, int32_t index) {
    RAVEL_ASSERT(index >= 0 && index < refit->out_pool.count);
    for (int32_t i = 0; i < RAVEL__SLOT_SENDS; i++) RAVEL_ASSERT(!refit->out_pool.slots[index].sends[i]); /* all over */
    refit->out_pool.slots[index].state = RAVEL__SLOT_PACKING;
    ravel__slot_queue_put(&refit->packer.free, index);
}

ravel_status ravel__stream_finish_sends(ravel_refit *refit, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < refit->out_pool.count && status == RAVEL_OK; i++) {
        ravel__refit_buffer *slot = &refit->out_pool.slots[i];
        int32_t all, bad; /* the receiver reports it in the vote */
        if (slot->state == RAVEL__SLOT_LOADING && slot->loaded) {
            refit->wire.done_bytes += slot->covered;
            free_out(refit, i);
            moved(refit);
        }
        if (slot->state != RAVEL__SLOT_SENDING) continue;
        status = test_sends(refit, slot, &all, &bad, err);
        if (status != RAVEL_OK || !all) continue;
        phase_count(refit, &refit->wire.sending, -1, &refit->wire.send_since, &refit->wire.send_ns);
        ravel__trace_add(&refit->trace, RAVEL_REFIT_SEND, i, slot->number, slot->began_ns, refit->wire.now_ns,
                         (int64_t)slot->notice.bytes + slot->payload_bytes);
        refit->wire.done_bytes += slot->covered;
        free_out(refit, i);
    }
    return status;
}

static ravel_status step_sender(ravel_refit *refit, ravel_error *err) {
    ravel_status status = ravel__stream_finish_sends(refit, err);
    while (status == RAVEL_OK && refit->wire.open_requests < REQUESTS_MOST) {
        int32_t index = ravel__slot_queue_look(&refit->packer.ready);
        if (index < 0) break;
        status = ravel__stream_send(refit, index, err);
    }
    return status;
}

/* Nothing is packed, being packed or on its way. */
static int sender_done(ravel_refit *refit) {
    if (!refit->wire.packed_all || !ravel__slot_queue_is_empty(&refit->packer.ready)) return 0;
    for (int32_t i = 0; i < refit->out_pool.count; i++) {
        int32_t state = refit->out_pool.slots[i].state;
        if (state == RAVEL__SLOT_SENDING || state == RAVEL__SLOT_LOADING) return 0;
    }
    return 1;
}

/* ---- receiver ------------------------------------------------------------------------------------------- */

static int in_window(const ravel_refit *refit, int32_t stream, int32_t window) {
    RAVEL_ASSERT(stream >= 0 && stream < refit->streams.in_count && window >= 0);
    const ravel__stream *s = &refit->streams.in[stream];
    ravel__in_state *in = &refit->in_states[stream];
    while (in->slice < s->slices && refit->streams.slices[s->first + in->slice].window < window) in->slice++;
    return in->slice < s->slices && refit->streams.slices[s->first + in->slice].window == window;
}

/* The stream whose turn it is: -1: none is left; -2: it cannot be known yet. */
int32_t ravel__stream_next_in_turn(ravel_refit *refit) {
    ravel__wire_state *w = &refit->wire;
    int32_t count = refit->streams.in_count;
    RAVEL_ASSERT(w->next >= 0 && (count == 0 || w->next < count) && w->window >= 0);
    for (;; w->window++, w->next = 0) {
        int open = 0;
        for (int32_t tried = 0; tried < count; tried++) {
            int32_t stream = (w->next + tried) % count;
            ravel__in_state *in = &refit->in_states[stream];
            if (in->ended || in->window_ended || !in_window(refit, stream, w->window)) continue;
            if (in->awaiting) return -2;
            w->next = (stream + 1) % count;
            return stream;
        }
        for (int32_t i = 0; i < count; i++) {
            open |= !refit->in_states[i].ended;
            refit->in_states[i].window_ended = 0;
        }
        if (!open || w->window >= refit->streams.windows) return -1;
    }
}

static ravel_status want_frames(ravel_refit *refit, ravel_error *err) {
    for (int32_t i = 0; i < refit->in_pool.count && refit->wire.wanted > 0; i++) {
        ravel__refit_buffer *slot = &refit->in_pool.slots[i];
        if (slot->state != RAVEL__SLOT_FREE || refit->wire.open_requests >= REQUESTS_MOST) continue;
        int32_t stream = ravel__stream_next_in_turn(refit);
        if (stream < 0) return RAVEL_OK;
        RAVEL_ASSERT(!slot->recv && refit->in_states[stream].active && !refit->in_states[stream].ended);
        slot->state = RAVEL__SLOT_NOTICE;
        slot->stream = stream;
        refit->in_states[stream].awaiting = 1;
        ravel_status status = ravel__stream_ask(refit, slot, err);
        if (status != RAVEL_OK) return status;
    }
    return RAVEL_OK;
}

/* After a wrong notice nothing more can be received: the length of the frame is unknown. */
static ravel_status check_notice(const ravel_refit *refit, const ravel__refit_buffer *slot, ravel_error *err) {
    RAVEL_ASSERT(slot->stream >= 0 && slot->stream < refit->streams.in_count);
    const ravel__in_state *in = &refit->in_states[slot->stream];
    int32_t sender = refit->streams.in[slot->stream].sender;
    ravel_error why = RAVEL_ERROR_INIT;
    ravel__notice n;
    ravel_status status = ravel__notice_decode(slot->notice_bytes, &n, &why);
    if (status != RAVEL_OK)
        return ravel_error_set(err, RAVEL_E_PEER_LOST, "the stream from rank %d cannot go on: %s", sender, why.message);
    if (n.sequence != in->sequence || n.bytes < RAVEL__FRAME_HEADER || n.bytes > (uint64_t)refit->terms.buffer_bytes)
        return ravel_error_set(err, RAVEL_E_PEER_LOST,
                               "the stream from rank %d cannot go on: it announces frame %llu of %llu bytes", sender,
                               (unsigned long long)n.sequence, (unsigned long long)n.bytes);
    return RAVEL_OK;
}

ravel_status ravel__stream_notice_came(ravel_refit *refit, ravel__refit_buffer *slot, ravel_error *err) {
    ravel__in_state *in = &refit->in_states[slot->stream];
    const ravel__stream *s = &refit->streams.in[slot->stream];
    ravel_status status = check_notice(refit, slot, err);
    if (status != RAVEL_OK) return status;
    (void)ravel__notice_decode(slot->notice_bytes, &slot->notice, NULL);
    RAVEL_ASSERT(slot->state == RAVEL__SLOT_NOTICE && in->awaiting && !in->ended && refit->wire.wanted > 0);
    in->awaiting = 0;
    in->sequence++;
    in->window_ended = (slot->notice.flags & RAVEL__FRAME_LAST_OF_WINDOW) != 0;
    in->frame = in->window_ended ? 0 : in->frame + 1;
    if (slot->notice.flags & RAVEL__FRAME_LAST) {
        in->ended = 1;
        refit->wire.wanted--;
    }
    slot->state = RAVEL__SLOT_FRAME;
    slot->torn = slot->loaded = 0;
    slot->number = refit->wire.frames++;
    slot->began_ns = ravel__clock_ns();
    phase_count(refit, &refit->wire.receiving, 1, &refit->wire.receive_since, &refit->wire.receive_ns);
    status = post_frame_recv(refit, slot, err);
    for (int32_t c = 0; c < in->child_count && status == RAVEL_OK; c++)
        status = send_notice(refit, slot, c, in->children[c], s, err);
    return status;
}

/* After a wrong header nothing more can be received: the length of the payloads is unknown. */
ravel_status ravel__stream_take_apart(ravel_refit *refit, ravel__refit_buffer *slot, ravel_error *err) {
    RAVEL_ASSERT(refit->data && slot->payload && !slot->recv && slot->state == RAVEL__SLOT_FRAME);
    const ravel__stream *s = &refit->streams.in[slot->stream];
    ravel_error why = RAVEL_ERROR_INIT;
    ravel__frame_head head = {0};
    ravel_status status = ravel__frame_open_apart(slot->buffer, (size_t)slot->notice.bytes, &head, &why);
    if (status == RAVEL_OK && head.table > (uint64_t)refit->terms.buffer_bytes)
        status = ravel_error_set(&why, RAVEL_E_DATA, "its payloads are larger than a buffer");
    if (status != RAVEL_OK)
        return ravel_error_set(err, RAVEL_E_PEER_LOST, "the stream from rank %d cannot go on: %s", s->sender,
                               why.message);
    slot->payload_bytes = (int64_t)head.table - RAVEL__FRAME_HEADER;
    if (slot->payload_bytes == 0) return RAVEL_OK;
    status = ravel_comm_irecv(refit->data, slot->payload + RAVEL__FRAME_HEADER, slot->payload_bytes, RAVEL_U8,
                              refit->in_states[slot->stream].parent, frame_tag(s), &slot->recv, err);
    refit->wire.open_requests += slot->recv != NULL;
    return status;
}

/* `bad`: it has another length than was announced. What is then passed on is empty, and so bad there too. */
ravel_status ravel__stream_frame_came(ravel_refit *refit, int32_t index, int32_t bad, ravel_error *err) {
    RAVEL_ASSERT(index >= 0 && index < refit->in_pool.count && !refit->in_pool.slots[index].recv);
    ravel__refit_buffer *slot = &refit->in_pool.slots[index];
    ravel__in_state *in = &refit->in_states[slot->stream];
    int64_t bytes = (int64_t)slot->notice.bytes + slot->payload_bytes;
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(slot->state == RAVEL__SLOT_FRAME && slot->notice.sequence == in->arrived);
    in->arrived++;
    phase_count(refit, &refit->wire.receiving, -1, &refit->wire.receive_since, &refit->wire.receive_ns);
    ravel__trace_add(&refit->trace, RAVEL_REFIT_RECEIVE, index, slot->number, slot->began_ns, refit->wire.now_ns,
                     bytes);
    refit->wire.bytes_received += bytes + RAVEL__NOTICE_BYTES;
    slot->data = refit->borrows ? slot->loan.data : slot->buffer;
    slot->torn = bad;
    slot->state = RAVEL__SLOT_LOADING;
    for (int32_t c = 0; c < in->child_count && status == RAVEL_OK; c++)
        status = send_frame(refit, slot, c, in->children[c], &refit->streams.in[slot->stream], bad, err);
    ravel__slot_queue_put(&refit->loader.arrived, index);
    return status;
}

ravel_status ravel__stream_step_slot(ravel_refit *refit, int32_t index, ravel_error *err) {
    ravel__refit_buffer *slot = &refit->in_pool.slots[index];
    int32_t done, bad;
    if (slot->state == RAVEL__SLOT_NOTICE || slot->state == RAVEL__SLOT_FRAME) {
        /* Frames of a stream are taken in their order, though both may be here: loader and children count on it. */
        const ravel__in_state *in = &refit->in_states[slot->stream];
        if (slot->state == RAVEL__SLOT_FRAME && slot->notice.sequence != in->arrived) return RAVEL_OK;
        ravel_status status = test_request(refit, &slot->recv, &done, &bad, err);
        if (status != RAVEL_OK || !done) return status;
        bad |= slot->recv_bad;
        slot->recv_bad = 0;
        if (slot->state == RAVEL__SLOT_FRAME) return ravel__stream_frame_came(refit, index, bad, err);
        if (bad) return ravel_error_set(err, RAVEL_E_PEER_LOST, "a notice of another length came");
        return ravel__stream_notice_came(refit, slot, err);
    }
    if (slot->state == RAVEL__SLOT_LOADING) {
        ravel_status status = test_sends(refit, slot, &done, &bad, err);
        if (status != RAVEL_OK) return status;
        if (!done || !slot->loaded) return RAVEL_OK;
        ravel__comm_give_back(refit->comm, &slot->loan);
        refit->wire.done_bytes += slot->covered;
        slot->state = RAVEL__SLOT_FREE;
    }
    return RAVEL_OK;
}

/* Buffers that the loader has given back, of either pool. */
void ravel__stream_take_loaded(ravel_refit *refit) {
    for (int32_t index; (index = ravel__slot_queue_look(&refit->loader.loaded)) >= 0; moved(refit)) {
        RAVEL_ASSERT(index < refit->in_pool.count + refit->out_pool.count);
        if (index < refit->in_pool.count)
            refit->in_pool.slots[index].loaded = 1;
        else
            refit->out_pool.slots[index - refit->in_pool.count].loaded = 1;
    }
}

static ravel_status step_receiver(ravel_refit *refit, ravel_error *err) {
    ravel__stream_take_loaded(refit);
    for (int32_t i = 0; i < refit->in_pool.count; i++) {
        ravel_status status = ravel__stream_step_slot(refit, i, err);
        if (status != RAVEL_OK) return status;
    }
    return want_frames(refit, err);
}

static int receiver_done(const ravel_refit *refit) {
    if (refit->wire.wanted > 0) return 0;
    for (int32_t i = 0; i < refit->in_pool.count; i++)
        if (refit->in_pool.slots[i].state != RAVEL__SLOT_FREE) return 0;
    return 1;
}

/* ---- helpers -------------------------------------------------------------------------------------------- */

/* One frame, if a buffer is free; 0: everything is packed. */
static int pack_one(ravel_refit *refit, int32_t index) {
    RAVEL_ASSERT(index >= 0 && index < refit->out_pool.count);
    if (!ravel__packer_next(&refit->packer, &refit->out_pool.slots[index], index)) return 0;
    ravel__slot_queue_put(&refit->packer.ready, index);
    return 1;
}

/* A frame that no child waits for goes back to its lender at once. */
static void load_one(ravel_refit *refit, int32_t index) {
    ravel__loader *l = &refit->loader;
    int32_t own = refit->in_pool.count;
    RAVEL_ASSERT(index >= 0 && index < own + refit->out_pool.count);
    if (index < own) {
        ravel__refit_buffer *slot = &refit->in_pool.slots[index];
        ravel__loader_take(l, slot, slot->stream, index);
        if (refit->in_states[slot->stream].child_count == 0) ravel__comm_give_back(refit->comm, &slot->loan);
    } else {
        ravel__refit_buffer *slot = &refit->out_pool.slots[index - own];
        ravel__loader_take(l, slot, refit->out_states[slot->stream].local_in, index);
    }
    ravel__slot_queue_put(&l->loaded, index);
}

static void *pack_all(void *argument) {
    ravel__helper *h = argument;
    for (int32_t index; (index = ravel__slot_queue_take(&h->refit->packer.free)) >= 0;) {
        if (!pack_one(h->refit, index)) break;
        ravel__bell_ring(&h->refit->bell);
    }
    atomic_store(&h->ended, 1);
    ravel__bell_ring(&h->refit->bell);
    return NULL;
}

static void *load_all(void *argument) {
    ravel__helper *h = argument;
    for (int32_t index; (index = ravel__slot_queue_take(&h->refit->loader.arrived)) >= 0;) {
        load_one(h->refit, index);
        ravel__bell_ring(&h->refit->bell);
    }
    atomic_store(&h->ended, 1);
    return NULL;
}

/* Without a helper thread (the system allows no more) the loop does the work itself. */
static void start(ravel__helper *h, ravel_refit *refit, int wanted, void *(*body)(void *)) {
    *h = (ravel__helper){.refit = refit};
    atomic_init(&h->ended, !wanted);
    int none = refit->transport && refit->transport->no_helpers;
    if (wanted && !none) h->running = pthread_create(&h->thread, NULL, body, h) == 0;
}

static void stop(ravel__helper *h, ravel__slot_queue *queue) {
    ravel__slot_queue_close(queue);
    if (h->running) pthread_join(h->thread, NULL);
}

void ravel__stream_help_out(ravel_refit *refit, ravel__helper *packer, const ravel__helper *loader) {
    int32_t index;
    if (!packer->running && !atomic_load(&packer->ended) &&
        (index = ravel__slot_queue_look(&refit->packer.free)) >= 0) {
        if (!pack_one(refit, index)) atomic_store(&packer->ended, 1);
        moved(refit);
    }
    if (!loader->running && (index = ravel__slot_queue_look(&refit->loader.arrived)) >= 0) load_one(refit, index);
}

/* ---- the loop ------------------------------------------------------------------------------------------- */

static void reset(ravel_refit *refit) {
    ravel__wire_state *w = &refit->wire;
    memset(w, 0, sizeof *w);
    w->now_ns = w->progress_ns = w->told_ns = ravel__clock_ns();
    for (int32_t i = 0; i < refit->streams.out_count; i++) refit->out_states[i].frame = 0;
    for (int32_t i = 0; i < refit->streams.in_count; i++) {
        refit->in_states[i].frame = 0;
        w->wanted += refit->in_states[i].active;
        w->total_bytes += refit->in_states[i].active ? refit->streams.in[i].bytes : 0;
    }
    for (int32_t i = 0; i < refit->streams.out_count; i++)
        w->total_bytes += refit->packer.cursors[i].active ? refit->streams.out[i].bytes : 0;
    for (int32_t i = 0; i < refit->in_pool.count; i++) refit->in_pool.slots[i].state = RAVEL__SLOT_FREE;
    for (int32_t i = 0; i < refit->out_pool.count; i++) free_out(refit, i);
}

static ravel_status check_deadline(const ravel_refit *refit, ravel_error *err) {
    double limit = refit->options.timeout > 0 ? refit->options.timeout : ravel_comm_timeout(refit->comm);
    double waited = (double)(refit->wire.now_ns - refit->wire.progress_ns) * 1e-9;
    if (waited <= limit) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_TIMEOUT, "no weights moved for %.3g s (%lld of %lld bytes had)", limit,
                           (long long)refit->wire.done_bytes, (long long)refit->wire.total_bytes);
}

/* ---- sleeping ------------------------------------------------------------------------------------------- */

/* How many buffers are with the helpers, and what is on its way. */
typedef struct activity {
    int32_t packing, loading, receiving;
    int32_t sending, passing;      /* sends of own frames; of frames that came from elsewhere */
    int32_t holding;               /* frames that are borrowed until others have them too */
    ravel__refit_buffer *receiver; /* one that waits for a notice or frame */
    ravel_request **send;          /* the oldest frame's that is under way */
    int64_t oldest;                /* its number */
} activity;

/* Counts the slot's open sends. */
static int32_t find_sends(ravel__refit_buffer *slot, activity *s) {
    int32_t count = 0;
    for (int32_t i = 0; i < RAVEL__SLOT_SENDS; i++) {
        if (!slot->sends[i]) continue;
        count++;
        if (s->send && s->oldest <= slot->number) continue;
        s->send = &slot->sends[i];
        s->oldest = slot->number;
    }
    return count;
}

static activity find_activity(ravel_refit *refit) {
    activity s = {0};
    for (int32_t i = 0; i < refit->out_pool.count; i++) {
        ravel__refit_buffer *slot = &refit->out_pool.slots[i];
        s.packing += slot->state == RAVEL__SLOT_PACKING && !refit->wire.packed_all;
        s.loading += slot->state == RAVEL__SLOT_LOADING && !slot->loaded;
        s.sending += find_sends(slot, &s);
    }
    for (int32_t i = 0; i < refit->in_pool.count; i++) {
        ravel__refit_buffer *slot = &refit->in_pool.slots[i];
        int loading = slot->state == RAVEL__SLOT_LOADING;
        s.loading += loading && !slot->loaded;
        s.holding += loading && refit->borrows && refit->in_states[slot->stream].child_count > 0;
        if (slot->recv) {
            s.receiver = slot;
            s.receiving++;
        }
        s.passing += find_sends(slot, &s);
    }
    RAVEL_ASSERT((s.send != NULL) == (s.sending + s.passing > 0) && (s.receiver != NULL) == (s.receiving > 0));
    return s;
}

/* Waits for one request, and leaves it as done. */
ravel_status ravel__stream_wait(ravel_refit *refit, ravel_request **request, int32_t *bad, ravel_error *err) {
    RAVEL_ASSERT(*request && refit->wire.open_requests > 0);
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = ravel_request_wait(*request, &why);
    *request = NULL;
    refit->wire.open_requests--;
    refit->wire.now_ns = ravel__clock_ns();
    moved(refit);
    *bad = status == RAVEL_E_MISMATCH;
    if (status == RAVEL_OK || *bad) return RAVEL_OK;
    return ravel_error_set(err, status, "%s", why.message);
}

/* Nothing moved for a while. Where one thing comes before all others, waits for it in the communicator, which wakes this
 * thread at once; else sleeps briefly, or until a helper signals. A rank that may have something to send, or a buffer to give back,
 * must not wait for a receive: the peer may be waiting for that send or buffer. Of its sends it may wait for the one that
 * is first in the order of frames (streams.h), which is known among its own and among those that it passes on. */
static ravel_status idle(ravel_refit *refit, int32_t *idle_rounds, uint32_t seen, ravel_error *err) {
    int32_t bad;
    if (++*idle_rounds < YIELDS) {
        (void)sched_yield();
        return RAVEL_OK;
    }
    activity s = find_activity(refit);
    if (s.receiving == 1 && s.holding == 0 && refit->wire.packed_all)
        return ravel__stream_wait(refit, &s.receiver->recv, &s.receiver->recv_bad, err);
    if (s.receiving == 0 && s.packing == 0 && s.loading == 0 && (s.sending > 0) != (s.passing > 0))
        return ravel__stream_wait(refit, s.send, &bad, err);
    ravel_status status = ravel_comm_alive(refit->comm, err);
    if (status == RAVEL_OK) status = check_deadline(refit, err);
    /* A finished send is not urgent while the packer has another buffer to go on with. */
    int64_t nap = s.receiving > 0 || s.packing <= 1 ? NAP_NS : LONG_NAP_NS;
    if (status == RAVEL_OK) ravel__futex_wait(&refit->bell.word, seen, refit->wire.now_ns + nap);
    return status;
}

/* Of a request that is still open, the communicator itself gives back when it is freed. */
static void give_all_back(ravel_refit *refit) {
    for (int32_t i = 0; i < refit->in_pool.count; i++)
        if (!refit->in_pool.slots[i].recv) ravel__comm_give_back(refit->comm, &refit->in_pool.slots[i].loan);
}

static ravel_status loop(ravel_refit *refit, ravel__helper *packer, const ravel__helper *loader, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int32_t idle_rounds = 0;
    while (status == RAVEL_OK) {
        uint32_t seen = atomic_load(&refit->bell.word);
        int packer_ended = atomic_load(&packer->ended);
        int64_t before = refit->wire.progress_ns;
        refit->wire.now_ns = ravel__clock_ns();
        ravel__stream_help_out(refit, packer, loader);
        status = step_sender(refit, err);
        if (status == RAVEL_OK) status = step_receiver(refit, err);
        refit->wire.packed_all = packer_ended; /* seen before the ready queue was emptied */
        if (status != RAVEL_OK || (sender_done(refit) && receiver_done(refit))) break;
        ravel__stream_tell(refit);
        if (refit->wire.progress_ns != before)
            idle_rounds = 0;
        else
            status = idle(refit, &idle_rounds, seen, err);
    }
    return status;
}

/* Everything was sent, taken and loaded: no request is open, and no frame is borrowed. */
static bool stream_is_over(const ravel_refit *refit) {
    for (int32_t i = 0; i < refit->in_pool.count; i++) {
        const ravel__refit_buffer *slot = &refit->in_pool.slots[i];
        if (slot->state != RAVEL__SLOT_FREE || slot->recv || slot->loan.lender) return false;
    }
    for (int32_t i = 0; i < refit->streams.in_count; i++)
        if (!refit->in_states[i].ended || refit->in_states[i].awaiting) return false;
    return refit->wire.open_requests == 0 && refit->wire.wanted == 0 && refit->wire.sending == 0 &&
           refit->wire.receiving == 0;
}

/* A rank that is done waits here for the others, as long as they make progress: each of them watches its own deadline and
 * ends the communicator when it passes, so this rank need not count seconds. A stopped process (SIGSTOP) watches no
 * deadline and is not detected as lost; PATIENCE deadlines bound the wait then. */
static ravel_status wait_for_others(ravel_refit *refit, ravel_error *err) {
    RAVEL_ASSERT(stream_is_over(refit));
    double limit = ravel_comm_timeout(refit->comm);
    ravel_request *request = NULL;
    ravel_comm_set_timeout(refit->comm, PATIENCE * limit);
    ravel_status status = ravel_comm_ibarrier(refit->comm, &request, err);
    for (int32_t done = request == NULL, rounds = 0; status == RAVEL_OK && !done; rounds++) {
        status = ravel_request_test(request, &done, err);
        if (status != RAVEL_OK || done) break;
        status = ravel_comm_alive(refit->comm, err);
        if (rounds < YIELDS)
            (void)sched_yield();
        else
            ravel__futex_wait(&refit->bell.word, atomic_load(&refit->bell.word), ravel__clock_ns() + NAP_NS);
    }
    ravel_comm_set_timeout(refit->comm, limit);
    return status;
}

/* Threads for `bytes` of weights: fewer for small ones, unless the caller chose. */
static int32_t team_of(const ravel_refit *refit, int64_t bytes) {
    RAVEL_ASSERT(bytes >= 0 && refit->threads >= 1);
    int64_t worth = 1 + bytes / TEAM_SHARE;
    return refit->options.threads > 0 || worth > refit->threads ? refit->threads : (int32_t)worth;
}

static void start_teams(ravel_refit *refit) {
    int64_t out = 0, in = 0;
    for (int32_t i = 0; i < refit->streams.out_count; i++)
        out += refit->packer.cursors[i].active * refit->streams.out[i].bytes;
    for (int32_t i = 0; i < refit->streams.in_count; i++) in += refit->in_states[i].active * refit->streams.in[i].bytes;
    ravel__team_start(&refit->packer.team, refit->packer.payload ? 1 : team_of(refit, out));
    ravel__team_start(&refit->loader.team,
                      refit->loader.payload || !refit->sink || refit->sink->load ? 1 : team_of(refit, in));
}

ravel_status ravel__refit_stream(ravel_refit *refit, ravel_error *err) {
    ravel__helper packer, loader;
    reset(refit);
    start_teams(refit);
    start(&packer, refit, refit->streams.out_count > 0, pack_all);
    start(&loader, refit, refit->streams.in_count > 0, load_all);
    int in_order = refit->data || refit->comm->backend->moves_in_wait;
    ravel_status status =
        in_order ? ravel__stream_in_order(refit, &packer, &loader, err) : loop(refit, &packer, &loader, err);
    if (refit->options.progress && status == RAVEL_OK) {
        refit->wire.told_ns = 0;
        ravel__stream_tell(refit);
    }
    /* A loader that waits for a frame and a packer that waits for a buffer see their queues closed; both finish what they
     * are at. The packer may be in a callback for long, so what is borrowed goes back first. Requests that are still
     * open end with the communicator, before the buffers do. */
    stop(&loader, &refit->loader.arrived);
    give_all_back(refit);
    stop(&packer, &refit->packer.free);
    ravel__team_stop(&refit->loader.team);
    ravel__team_stop(&refit->packer.team);
    return status == RAVEL_OK ? wait_for_others(refit, err) : status;
}
