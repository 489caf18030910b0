/* The calling thread's loop: hands packed frames to the wire, takes arriving ones in turn, gives them to the loader and
 * passes them on. It alone uses the communicator. It never waits for one thing only: each round looks at everything,
 * and when nothing moved, sleeps briefly or until a helper signals.
 *
 *     sender's slot     FREE -[packer]-> PACKED -> HELD -> FREE          HELD: sent, passed on, or loaded (local streams)
 *     receiver's slot   FREE -> HEAD -> PAYLOADS -> HELD -> FREE
 *
 * A receiver asks for a stream's next head only after the one before has come, since that says whether there is a
 * next; and gives its buffers to streams in their turn, so that the frame that comes first in the order of the whole
 * communicator (streams.h) always has a buffer waiting for it.
 *
 * One frame at a time (`in_order`) is moved over communicators whose messages move only while one of them is waited for
 * (the caller's own transport, whose send may wait for its receive), and over NCCL, whose operations wait for their
 * peers in the order of a stream: every request is waited for, and a frame begins when the one before it is complete.
 * All ranks go through their frames in the same order, so both ends of the first one are waiting for it, and ranks
 * cannot wait for one another in a ring. Packing and loading still run beside it. */
#include "refit/session/session.h"

#include "base/assert.h"
#include "base/system/clock.h"

#include <sched.h>
#include <stdbool.h>
#include <string.h>

enum {
    REQUESTS_MOST = RAVEL_REQUESTS_MAX - RAVEL__SLOT_SENDS,
    YIELDS = 16,
    NAP_NS = 40 * 1000,
    LONG_NAP_NS = 400 * 1000,
    HELPER_NAP_NS = 10 * 1000 * 1000,
    TELL_NS = 50 * 1000 * 1000,
    TEAM_SHARE = 8 << 20, /* bytes of an update that are worth another thread */
    PATIENCE = 20         /* deadlines */
};

/* A thread that packs, or that loads. */
typedef struct helper {
    ravel_refit *refit;
    int (*work)(ravel_refit *refit); /* on one frame; 0: there is none now */
    ravel__bell *bell;               /* rung when there may be one */
    pthread_t thread;
    int32_t running;
    _Atomic int32_t stop;
} helper;

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

static void tell(ravel_refit *refit) {
    ravel__wire_state *w = &refit->wire;
    if (!refit->options.progress || w->now_ns - w->told_ns < TELL_NS) return;
    w->told_ns = w->now_ns;
    refit->options.progress(refit->options.progress_user, w->done_bytes, w->total_bytes);
}

/* ---- slots ---------------------------------------------------------------------------------------------- */

/* Those of the receiver's pool, then those of the sender's. */
static int32_t slot_count(const ravel_refit *refit) {
    return refit->in_pool.count + refit->out_pool.count;
}

static int is_own(const ravel_refit *refit, int32_t index) {
    return index >= refit->in_pool.count;
}

static ravel__refit_buffer *slot_at(const ravel_refit *refit, int32_t index) {
    RAVEL_ASSERT(index >= 0 && index < slot_count(refit));
    return is_own(refit, index) ? &refit->out_pool.slots[index - refit->in_pool.count] : &refit->in_pool.slots[index];
}

static int32_t state_of(const ravel__refit_buffer *slot) {
    return atomic_load(&slot->state);
}

static void set_state(ravel__refit_buffer *slot, int32_t state) {
    atomic_store(&slot->state, state);
}

static void load_next(ravel_refit *refit, ravel__refit_buffer *slot) {
    slot->order = refit->wire.to_load++;
    atomic_store(&slot->load, RAVEL__LOAD_DUE);
    ravel__bell_ring(&refit->loader.bell);
}

/* ---- requests ------------------------------------------------------------------------------------------- */

/* The two messages of a frame. */
enum { HEAD, PAYLOADS };

static int32_t tag_of(const ravel__stream *s, int part) {
    return 2 * s->tag + part;
}

/* Payloads go over NCCL where there is one. */
static ravel_comm *comm_of(const ravel_refit *refit, int part) {
    return part == PAYLOADS && refit->data ? refit->data : refit->comm;
}

/* One message of the slot's frame to its c-th child. `bad`: the payloads are passed on as an empty message. */
static ravel_status send_part(ravel_refit *refit, ravel__refit_buffer *slot, int part, int32_t c, int32_t peer,
                              const ravel__stream *s, int bad, ravel_error *err) {
    RAVEL_ASSERT(c >= 0 && c < RAVEL__FANOUT_MOST && peer >= 0 && peer < refit->ranks && peer != refit->rank);
    ravel_request **request = &slot->sends[RAVEL__SENDS * c + part];
    const void *data = part == HEAD ? (const void *)slot->head : slot->data;
    int64_t bytes = part == HEAD ? (int64_t)refit->head_bytes : bad ? 0 : (int64_t)slot->head->bytes;
    if (part == PAYLOADS && slot->head->bytes == 0) return RAVEL_OK;
    RAVEL_ASSERT(!*request);
    ravel_status status =
        ravel__isend(refit->transport, comm_of(refit, part), data, bytes, peer, tag_of(s, part), request, err);
    refit->wire.open_requests += *request != NULL;
    RAVEL_ASSERT(refit->wire.open_requests <= RAVEL_REQUESTS_MAX);
    refit->wire.bytes_sent += bytes;
    return status;
}

/* Begins to receive the head or the payloads of the slot's stream. */
static ravel_status receive_part(ravel_refit *refit, ravel__refit_buffer *slot, int part, ravel_error *err) {
    RAVEL_ASSERT(!slot->recv && !slot->loan.lender);
    ravel_comm *comm = comm_of(refit, part);
    int32_t peer = refit->in_states[slot->stream].parent, tag = tag_of(&refit->streams.in[slot->stream], part);
    int64_t bytes = part == HEAD ? (int64_t)refit->head_bytes : (int64_t)slot->head->bytes;
    void *to = part == HEAD ? (void *)slot->head : slot->buffer;
    ravel_status status = RAVEL_OK;
    if (part == PAYLOADS && bytes == 0) return RAVEL_OK;
    if (part == PAYLOADS && refit->borrows)
        status = ravel__iborrow(refit->transport, comm, &slot->loan, bytes, peer, tag, &slot->recv, err);
    else
        status = ravel_comm_irecv(comm, to, bytes, RAVEL_U8, peer, tag, &slot->recv, err);
    refit->wire.open_requests += slot->recv != NULL;
    return status;
}

/* *done: the request is complete; with `wait` it is. E_MISMATCH (a message of another length) does not break the
 * communicator: it sets *bad. */
static ravel_status complete(ravel_refit *refit, ravel_request **request, int wait, int32_t *done, int32_t *bad,
                             ravel_error *err) {
    ravel_error why = RAVEL_ERROR_INIT;
    *done = 1;
    *bad = 0;
    if (!*request) return RAVEL_OK;
    ravel_status status =
        wait ? ravel_request_wait(*request, &why) : ravel__test(refit->transport, *request, done, &why);
    if (!*done) return RAVEL_OK;
    *request = NULL;
    refit->wire.open_requests--;
    RAVEL_ASSERT(refit->wire.open_requests >= 0);
    if (wait) refit->wire.now_ns = ravel__clock_ns();
    moved(refit);
    *bad = status == RAVEL_E_MISMATCH;
    return status == RAVEL_OK || *bad ? RAVEL_OK : ravel_error_set(err, status, "%s", why.message);
}

/* *all: the slot's sends are complete. A wrong length is reported in the vote by who received. */
static ravel_status test_sends(ravel_refit *refit, ravel__refit_buffer *slot, int32_t *all, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    *all = 1;
    for (int32_t i = 0; i < RAVEL__SLOT_SENDS && status == RAVEL_OK; i++) {
        int32_t done, bad;
        status = complete(refit, &slot->sends[i], refit->in_order, &done, &bad, err);
        *all &= done;
    }
    return status;
}

/* ---- sender --------------------------------------------------------------------------------------------- */

/* A packed slot begins to go to its children, or to this rank's own loader. */
static ravel_status send_frame(ravel_refit *refit, ravel__refit_buffer *slot, ravel_error *err) {
    const ravel__stream *s = &refit->streams.out[slot->stream];
    ravel__out_state *o = &refit->out_states[slot->stream];
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(state_of(slot) == RAVEL__SLOT_PACKED && slot->number == refit->wire.to_send);
    moved(refit);
    refit->wire.to_send++;
    o->frame = slot->head->flags & RAVEL__FRAME_LAST_OF_WINDOW ? 0 : o->frame + 1;
    set_state(slot, RAVEL__SLOT_HELD);
    if (s->local) {
        load_next(refit, slot);
        return RAVEL_OK;
    }
    slot->began_ns = ravel__clock_ns();
    phase_count(refit, &refit->wire.sending, 1, &refit->wire.send_since, &refit->wire.send_ns);
    for (int32_t i = 0; i < RAVEL__SENDS * o->child_count && status == RAVEL_OK; i++)
        status = send_part(refit, slot, i % RAVEL__SENDS, i / RAVEL__SENDS, o->children[i / RAVEL__SENDS], s, 0, err);
    refit->wire.frames++;
    return status;
}

/* The packed slot whose turn it is; NULL: it is not packed yet. */
static ravel__refit_buffer *next_packed(const ravel_refit *refit) {
    for (int32_t i = 0; i < refit->out_pool.count; i++) {
        ravel__refit_buffer *slot = &refit->out_pool.slots[i];
        if (state_of(slot) == RAVEL__SLOT_PACKED && slot->number == refit->wire.to_send) return slot;
    }
    return NULL;
}

/* A slot that everybody has, and that is loaded, is free again. */
static ravel_status finish(ravel_refit *refit, int32_t index, ravel_error *err) {
    ravel__refit_buffer *slot = slot_at(refit, index);
    int32_t all, own = is_own(refit, index);
    ravel_status status = test_sends(refit, slot, &all, err);
    if (status != RAVEL_OK || !all || atomic_load(&slot->load) == RAVEL__LOAD_DUE) return status;
    if (own && !refit->streams.out[slot->stream].local) {
        phase_count(refit, &refit->wire.sending, -1, &refit->wire.send_since, &refit->wire.send_ns);
        ravel__trace_add(&refit->trace, RAVEL_REFIT_SEND, index - refit->in_pool.count, slot->number, slot->began_ns,
                         refit->wire.now_ns, (int64_t)slot->head->bytes);
    }
    if (!own) ravel__comm_give_back(refit->comm, &slot->loan);
    refit->wire.done_bytes += slot->covered;
    moved(refit);
    atomic_store(&slot->load, RAVEL__LOAD_NONE);
    set_state(slot, RAVEL__SLOT_FREE);
    if (own) ravel__bell_ring(&refit->packer.bell);
    return RAVEL_OK;
}

/* ---- receiver ------------------------------------------------------------------------------------------- */

static int in_window(const ravel_refit *refit, int32_t stream, int32_t window) {
    RAVEL_ASSERT(stream >= 0 && stream < refit->streams.in_count && window >= 0);
    const ravel__stream *s = &refit->streams.in[stream];
    ravel__in_state *in = &refit->in_states[stream];
    const ravel__want *wants = &refit->plan.wants[s->first];
    while (in->want < s->count && refit->streams.window_of[wants[in->want].tensor] < window) in->want++;
    return in->want < s->count && refit->streams.window_of[wants[in->want].tensor] == window;
}

/* The incoming stream whose turn it is; the next call gives the one after it. -1: none is left; -2: it cannot be known
 * before the head that is awaited has come. */
static int32_t next_in_turn(ravel_refit *refit) {
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

/* Waits for the stream's next head in the slot. */
static ravel_status ask(ravel_refit *refit, ravel__refit_buffer *slot, int32_t stream, ravel_error *err) {
    RAVEL_ASSERT(refit->in_states[stream].active && !refit->in_states[stream].ended);
    set_state(slot, RAVEL__SLOT_HEAD);
    slot->stream = stream;
    refit->in_states[stream].awaiting = 1;
    return receive_part(refit, slot, HEAD, err);
}

/* After a wrong head nothing more can be received: the length of the payloads is unknown. */
static ravel_status check_head(const ravel_refit *refit, const ravel__refit_buffer *slot, ravel_error *err) {
    const ravel__frame *f = slot->head;
    int32_t sender = refit->streams.in[slot->stream].sender;
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = ravel__frame_check(f, refit->head_bytes, ravel__frame_capacity(refit), &why);
    if (status == RAVEL_OK && (f->sequence != refit->in_states[slot->stream].sequence ||
                               f->sender != (uint32_t)sender || f->window != (uint32_t)refit->wire.window))
        status = ravel_error_set(&why, RAVEL_E_DATA, "it sends frame %llu of window %u of rank %u",
                                 (unsigned long long)f->sequence, f->window, f->sender);
    if (status == RAVEL_OK) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_PEER_LOST, "the stream from rank %d cannot go on: %s", sender, why.message);
}

/* The head is here: receives the payloads, and passes the head on. */
static ravel_status head_came(ravel_refit *refit, ravel__refit_buffer *slot, int32_t bad, ravel_error *err) {
    ravel__in_state *in = &refit->in_states[slot->stream];
    if (bad) return ravel_error_set(err, RAVEL_E_PEER_LOST, "the head of a frame came with another length");
    ravel_status status = check_head(refit, slot, err);
    if (status != RAVEL_OK) return status;
    RAVEL_ASSERT(state_of(slot) == RAVEL__SLOT_HEAD && in->awaiting && !in->ended && refit->wire.wanted > 0);
    in->awaiting = 0;
    in->sequence++;
    in->window_ended = (slot->head->flags & RAVEL__FRAME_LAST_OF_WINDOW) != 0;
    in->frame = in->window_ended ? 0 : in->frame + 1;
    if (slot->head->flags & RAVEL__FRAME_LAST) {
        in->ended = 1;
        refit->wire.wanted--;
    }
    set_state(slot, RAVEL__SLOT_PAYLOADS);
    slot->torn = 0;
    slot->number = refit->wire.frames++;
    slot->began_ns = ravel__clock_ns();
    phase_count(refit, &refit->wire.receiving, 1, &refit->wire.receive_since, &refit->wire.receive_ns);
    status = receive_part(refit, slot, PAYLOADS, err);
    for (int32_t c = 0; c < in->child_count && status == RAVEL_OK; c++)
        status = send_part(refit, slot, HEAD, c, in->children[c], &refit->streams.in[slot->stream], 0, err);
    return status;
}

/* The payloads are here: to the loader, and passed on. `bad`: they have another length than the head says; what is then
 * passed on is empty, and so bad there too. */
static ravel_status payloads_came(ravel_refit *refit, int32_t index, int32_t bad, ravel_error *err) {
    RAVEL_ASSERT(index >= 0 && index < refit->in_pool.count && !refit->in_pool.slots[index].recv);
    ravel__refit_buffer *slot = &refit->in_pool.slots[index];
    ravel__in_state *in = &refit->in_states[slot->stream];
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(state_of(slot) == RAVEL__SLOT_PAYLOADS && slot->head->sequence == in->arrived);
    if (bad && refit->data) /* NCCL cannot recover from it */
        return ravel_error_set(err, RAVEL_E_PEER_LOST, "a frame of another length than announced came");
    in->arrived++;
    phase_count(refit, &refit->wire.receiving, -1, &refit->wire.receive_since, &refit->wire.receive_ns);
    ravel__trace_add(&refit->trace, RAVEL_REFIT_RECEIVE, index, slot->number, slot->began_ns, refit->wire.now_ns,
                     (int64_t)slot->head->bytes);
    refit->wire.bytes_received += (int64_t)refit->head_bytes + (int64_t)slot->head->bytes;
    slot->data = refit->borrows ? slot->loan.data : slot->buffer;
    slot->torn = bad;
    set_state(slot, RAVEL__SLOT_HELD);
    for (int32_t c = 0; c < in->child_count && status == RAVEL_OK; c++)
        status = send_part(refit, slot, PAYLOADS, c, in->children[c], &refit->streams.in[slot->stream], bad, err);
    load_next(refit, slot);
    moved(refit);
    return status;
}

/* Looks at one slot. */
static ravel_status step_slot(ravel_refit *refit, int32_t index, ravel_error *err) {
    ravel__refit_buffer *slot = slot_at(refit, index);
    int32_t done, bad, state = state_of(slot), head = state == RAVEL__SLOT_HEAD;
    if (state == RAVEL__SLOT_HELD) return finish(refit, index, err);
    if (!head && state != RAVEL__SLOT_PAYLOADS) return RAVEL_OK;
    /* Frames of a stream are taken in their order, though both may be here: loader and children count on it. */
    if (!head && slot->head->sequence != refit->in_states[slot->stream].arrived) return RAVEL_OK;
    ravel_status status = complete(refit, &slot->recv, refit->in_order, &done, &bad, err);
    if (status != RAVEL_OK || !done) return status;
    bad |= slot->recv_bad;
    slot->recv_bad = 0;
    return head ? head_came(refit, slot, bad, err) : payloads_came(refit, index, bad, err);
}

/* ---- which frame begins --------------------------------------------------------------------------------- */

/* Whether the packed frame comes before the next one of the stream, in the order of frames (streams.h). */
static int sends_first(const ravel_refit *refit, const ravel__refit_buffer *slot, int32_t stream) {
    const ravel__stream *a = &refit->streams.out[slot->stream], *b = &refit->streams.in[stream];
    const int64_t out[] = {slot->head->window, refit->out_states[slot->stream].frame, a->turn, a->sender};
    const int64_t in[] = {refit->wire.window, refit->in_states[stream].frame, b->turn, b->sender};
    int i = 0;
    while (i < 3 && out[i] == in[i]) i++;
    return out[i] < in[i];
}

static ravel__refit_buffer *free_slot(const ravel_refit *refit) {
    for (int32_t i = 0; i < refit->in_pool.count; i++)
        if (state_of(&refit->in_pool.slots[i]) == RAVEL__SLOT_FREE) return &refit->in_pool.slots[i];
    return NULL;
}

/* Begins frames while there are packed ones, and buffers for those that come. In order, the first of both, which must
 * be known: a rank must not begin a later one. */
static ravel_status begin_frames(ravel_refit *refit, ravel_error *err) {
    ravel__wire_state *w = &refit->wire;
    ravel_status status = RAVEL_OK;
    while (status == RAVEL_OK && w->open_requests < (refit->in_order ? 1 : REQUESTS_MOST)) {
        ravel__refit_buffer *out = next_packed(refit), *in = free_slot(refit);
        if (w->coming < 0 && w->wanted > 0) w->coming = next_in_turn(refit);
        if (refit->in_order && ((!out && !w->packed_all) || (w->coming >= 0 && !in))) return RAVEL_OK;
        if (out && (!refit->in_order || w->coming < 0 || sends_first(refit, out, w->coming))) {
            status = send_frame(refit, out, err);
        } else if (w->coming >= 0 && in) {
            int32_t stream = w->coming;
            w->coming = -1;
            status = ask(refit, in, stream, err);
        } else {
            return RAVEL_OK;
        }
    }
    return status;
}

/* ---- helpers -------------------------------------------------------------------------------------------- */

/* 0: there is no free buffer, or everything is packed. */
static int pack_one(ravel_refit *refit) {
    ravel__packer *p = &refit->packer;
    for (int32_t i = 0; i < refit->out_pool.count && !atomic_load(&p->ended); i++) {
        ravel__refit_buffer *slot = &refit->out_pool.slots[i];
        if (state_of(slot) != RAVEL__SLOT_FREE) continue;
        if (ravel__packer_next(p, slot, i))
            set_state(slot, RAVEL__SLOT_PACKED);
        else
            atomic_store(&p->ended, 1);
        return 1;
    }
    return 0;
}

/* The frame that arrived first. One that no child waits for goes back to its lender at once. */
static int load_one(ravel_refit *refit) {
    int32_t first = -1;
    for (int32_t i = 0; i < slot_count(refit); i++)
        if (atomic_load(&slot_at(refit, i)->load) == RAVEL__LOAD_DUE &&
            (first < 0 || slot_at(refit, i)->order < slot_at(refit, first)->order))
            first = i;
    if (first < 0) return 0;
    ravel__refit_buffer *slot = slot_at(refit, first);
    int own = is_own(refit, first);
    ravel__loader_take(&refit->loader, slot, own ? refit->out_states[slot->stream].local_in : slot->stream, first);
    if (!own && refit->in_states[slot->stream].child_count == 0) ravel__comm_give_back(refit->comm, &slot->loan);
    atomic_store(&slot->load, RAVEL__LOAD_DONE);
    return 1;
}

static void *help(void *argument) {
    helper *h = argument;
    for (;;) {
        uint32_t seen = atomic_load(&h->bell->word);
        if (h->work(h->refit))
            ravel__bell_ring(&h->refit->bell);
        else if (atomic_load(&h->stop))
            return NULL;
        else
            ravel__futex_wait(&h->bell->word, seen, ravel__clock_ns() + HELPER_NAP_NS);
    }
}

/* Without a helper thread (the system allows no more) the loop does the work itself. */
static void start(helper *h, ravel_refit *refit, int wanted, int (*work)(ravel_refit *refit), ravel__bell *bell) {
    *h = (helper){.refit = refit, .work = work, .bell = bell};
    int none = refit->transport && refit->transport->no_helpers;
    if (wanted && !none) h->running = pthread_create(&h->thread, NULL, help, h) == 0;
}

/* After it has finished what it is at. */
static void stop(helper *h) {
    atomic_store(&h->stop, 1);
    ravel__bell_ring(h->bell);
    if (h->running) pthread_join(h->thread, NULL);
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
    w->coming = -1;
    refit->in_order = refit->data || refit->comm->backend->moves_in_wait;
    for (int32_t i = 0; i < slot_count(refit); i++) {
        set_state(slot_at(refit, i), RAVEL__SLOT_FREE);
        atomic_store(&slot_at(refit, i)->load, RAVEL__LOAD_NONE);
    }
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
    ravel__refit_buffer *receiver; /* one that waits for a message */
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
    for (int32_t i = 0; i < slot_count(refit); i++) {
        ravel__refit_buffer *slot = slot_at(refit, i);
        int own = is_own(refit, i);
        s.packing += own && state_of(slot) == RAVEL__SLOT_FREE && !refit->wire.packed_all;
        s.loading += atomic_load(&slot->load) == RAVEL__LOAD_DUE;
        s.holding += !own && state_of(slot) == RAVEL__SLOT_HELD && refit->borrows &&
                     refit->in_states[slot->stream].child_count > 0;
        if (slot->recv) {
            s.receiver = slot;
            s.receiving++;
        }
        *(own ? &s.sending : &s.passing) += find_sends(slot, &s);
    }
    RAVEL_ASSERT((s.send != NULL) == (s.sending + s.passing > 0) && (s.receiver != NULL) == (s.receiving > 0));
    return s;
}

/* Nothing moved for a while. Where one thing comes before all others, waits for it in the communicator, which wakes
 * this thread at once; else sleeps briefly, or until a helper signals. A rank that may have something to send, or a
 * buffer to give back, must not wait for a receive: the peer may be waiting for that send or buffer. Of its sends it
 * may wait for the one that is first in the order of frames (streams.h), which is known among its own and among those
 * that it passes on. */
static ravel_status idle(ravel_refit *refit, int32_t *idle_rounds, uint32_t seen, ravel_error *err) {
    int32_t done, bad;
    if (refit->in_order) { /* requests are waited for; without one, the packer or the loader is */
        if (refit->wire.open_requests == 0)
            ravel__futex_wait(&refit->bell.word, seen, refit->wire.now_ns + LONG_NAP_NS);
        return RAVEL_OK;
    }
    if (++*idle_rounds < YIELDS) {
        (void)sched_yield();
        return RAVEL_OK;
    }
    activity s = find_activity(refit);
    if (s.receiving == 1 && s.holding == 0 && refit->wire.packed_all && !next_packed(refit))
        return complete(refit, &s.receiver->recv, 1, &done, &s.receiver->recv_bad, err);
    if (s.receiving == 0 && s.packing == 0 && s.loading == 0 && (s.sending > 0) != (s.passing > 0))
        return complete(refit, s.send, 1, &done, &bad, err);
    ravel_status status = ravel_comm_alive(refit->comm, err);
    if (status == RAVEL_OK) status = check_deadline(refit, err);
    /* A finished send is not urgent while the packer has another buffer to go on with. */
    int64_t nap = s.receiving > 0 || s.packing <= 1 ? NAP_NS : LONG_NAP_NS;
    if (status == RAVEL_OK) ravel__futex_wait(&refit->bell.word, seen, refit->wire.now_ns + nap);
    return status;
}

static int is_passed_on(const ravel__refit_buffer *slot) {
    for (int32_t i = 0; i < RAVEL__SLOT_SENDS; i++)
        if (slot->sends[i]) return 1;
    return 0;
}

/* Of a request that is still open, the communicator itself gives back when it is freed. */
static void give_back(ravel_refit *refit) {
    for (int32_t i = 0; i < refit->in_pool.count; i++) {
        ravel__refit_buffer *slot = &refit->in_pool.slots[i];
        if (!slot->recv && !is_passed_on(slot)) ravel__comm_give_back(refit->comm, &slot->loan);
    }
}

/* Whether a's frame comes before b's in an order that is the same on all ranks. */
static int settles_first(const ravel_refit *refit, const ravel__refit_buffer *a, const ravel__refit_buffer *b) {
    const ravel__stream *x = &refit->streams.in[a->stream], *y = &refit->streams.in[b->stream];
    if (x->sender != y->sender) return x->sender < y->sender;
    return x->turn != y->turn ? x->turn < y->turn : a->head->sequence < b->head->sequence;
}

void ravel__refit_give_all_back(ravel_refit *refit) {
    for (;;) {
        ravel__refit_buffer *first = NULL;
        for (int32_t i = 0; i < refit->in_pool.count; i++) {
            ravel__refit_buffer *slot = &refit->in_pool.slots[i];
            if (!slot->loan.lender || slot->recv) continue;
            if (!first || settles_first(refit, slot, first)) first = slot;
        }
        if (!first) return;
        for (int32_t i = 0; i < RAVEL__SLOT_SENDS; i++) {
            if (!first->sends[i]) continue;
            refit->comm->backend->cancel(refit->comm, first->sends[i]);
            ravel__request_give(refit->comm, first->sends[i]);
            first->sends[i] = NULL;
        }
        ravel__comm_give_back(refit->comm, &first->loan);
    }
}

/* Nothing is packed, being packed, expected or in a buffer. */
static int is_done(const ravel_refit *refit) {
    if (!refit->wire.packed_all || refit->wire.wanted > 0) return 0;
    for (int32_t i = 0; i < slot_count(refit); i++)
        if (state_of(slot_at(refit, i)) != RAVEL__SLOT_FREE) return 0;
    return 1;
}

static ravel_status loop(ravel_refit *refit, const helper *packer, const helper *loader, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int32_t idle_rounds = 0;
    while (status == RAVEL_OK) {
        uint32_t seen = atomic_load(&refit->bell.word);
        int64_t before = refit->wire.progress_ns;
        refit->wire.packed_all = atomic_load(&refit->packer.ended); /* read before the slots are */
        refit->wire.now_ns = ravel__clock_ns();
        if (!packer->running && pack_one(refit)) moved(refit);
        if (!loader->running && load_one(refit)) moved(refit);
        for (int32_t i = 0; i < slot_count(refit) && status == RAVEL_OK; i++) status = step_slot(refit, i, err);
        if (status == RAVEL_OK) status = begin_frames(refit, err);
        if (status != RAVEL_OK || is_done(refit)) break;
        tell(refit);
        if (refit->wire.progress_ns != before)
            idle_rounds = 0;
        else
            status = idle(refit, &idle_rounds, seen, err);
    }
    return status;
}

/* ---- the whole of it ------------------------------------------------------------------------------------ */

/* Everything was sent, taken and loaded: no request is open, and no frame is borrowed. */
static bool stream_is_over(const ravel_refit *refit) {
    for (int32_t i = 0; i < refit->in_pool.count; i++) {
        const ravel__refit_buffer *slot = &refit->in_pool.slots[i];
        if (state_of(slot) != RAVEL__SLOT_FREE || slot->recv || slot->loan.lender) return false;
    }
    for (int32_t i = 0; i < refit->streams.in_count; i++)
        if (!refit->in_states[i].ended || refit->in_states[i].awaiting) return false;
    return refit->wire.open_requests == 0 && refit->wire.wanted == 0 && refit->wire.sending == 0 &&
           refit->wire.receiving == 0;
}

/* A rank that is done waits here for the others, as long as they make progress: each of them watches its own deadline
 * and ends the communicator when it passes, so this rank need not count seconds. A stopped process (SIGSTOP) watches no
 * deadline and is not detected as lost; PATIENCE deadlines bound the wait then. */
static ravel_status wait_for_others(ravel_refit *refit, ravel_error *err) {
    RAVEL_ASSERT(stream_is_over(refit));
    double limit = ravel_comm_timeout(refit->comm);
    ravel_comm_set_timeout(refit->comm, PATIENCE * limit);
    ravel_status status = ravel_comm_barrier(refit->comm, err);
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
    ravel__team_start(&refit->packer.team, refit->packer.casts ? 1 : team_of(refit, out));
    ravel__team_start(&refit->loader.team,
                      refit->loader.casts || !refit->sink || refit->sink->load ? 1 : team_of(refit, in));
}

ravel_status ravel__refit_stream(ravel_refit *refit, ravel_error *err) {
    helper packer, loader;
    reset(refit);
    start_teams(refit);
    start(&packer, refit, refit->streams.out_count > 0, pack_one, &refit->packer.bell);
    start(&loader, refit, refit->streams.in_count > 0, load_one, &refit->loader.bell);
    ravel_status status = loop(refit, &packer, &loader, err);
    if (refit->options.progress && status == RAVEL_OK) {
        refit->wire.told_ns = 0;
        tell(refit);
    }
    /* Both finish what they are at. The packer may be in a callback for long, so what is borrowed goes back first.
     * Requests that are still open end with the communicator, before the buffers do. */
    stop(&loader);
    give_back(refit);
    stop(&packer);
    ravel__team_stop(&refit->loader.team);
    ravel__team_stop(&refit->packer.team);
    return status == RAVEL_OK ? wait_for_others(refit, err) : status;
}
