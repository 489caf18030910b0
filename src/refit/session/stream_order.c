/* The loop for communicators whose messages move only while one of them is waited for (the caller's own transport, whose
 * send may wait for its receive), and for NCCL, whose operations wait for their peers in the order of a stream. One frame at a time: all ranks go through their frames in the one order of the whole
 * communicator (streams.h), so both ends of the first frame in that order are waiting for it, and ranks cannot wait for
 * one another in a ring. Packing and loading still run beside it. */
#include "refit/session/stream.h"

#include "base/assert.h"
#include "base/clock.h"

enum { NAP_NS = 400 * 1000 };

/* Where a frame comes in the order. */
typedef struct place {
    int64_t window, frame, turn, sender;
} place;

static place place_of(const ravel__stream *s, int64_t window, int64_t frame) {
    return (place){window, frame, s->turn, s->sender};
}

static int goes_before(const place *a, const place *b) {
    if (a->window != b->window) return a->window < b->window;
    if (a->frame != b->frame) return a->frame < b->frame;
    return a->turn != b->turn ? a->turn < b->turn : a->sender < b->sender;
}

/* ---- one frame ------------------------------------------------------------------------------------------ */

static ravel_status wait_sends(ravel_refit *refit, ravel__refit_buffer *slot, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int32_t bad; /* the receiver reports it in the vote */
    for (int32_t i = 0; i < RAVEL__SLOT_SENDS && status == RAVEL_OK; i++)
        if (slot->sends[i]) status = ravel__stream_wait(refit, &slot->sends[i], &bad, err);
    return status;
}

static ravel_status send_frame(ravel_refit *refit, int32_t index, ravel_error *err) {
    RAVEL_ASSERT(index >= 0 && index < refit->out_pool.count);
    ravel_status status = ravel__stream_send(refit, index, err);
    return status == RAVEL_OK ? wait_sends(refit, &refit->out_pool.slots[index], err) : status;
}

static ravel_status receive_frame(ravel_refit *refit, int32_t index, int32_t stream, ravel_error *err) {
    ravel__refit_buffer *slot = &refit->in_pool.slots[index];
    RAVEL_ASSERT(slot->state == RAVEL__SLOT_FREE && !slot->recv && stream < refit->streams.in_count);
    int32_t bad = 0;
    slot->state = RAVEL__SLOT_NOTICE;
    slot->stream = stream;
    refit->in_states[stream].awaiting = 1;
    ravel_status status = ravel__stream_ask(refit, slot, err);
    if (status == RAVEL_OK) status = ravel__stream_wait(refit, &slot->recv, &bad, err);
    if (status == RAVEL_OK && bad) status = ravel_error_set(err, RAVEL_E_PEER_LOST, "a notice of another length came");
    if (status == RAVEL_OK) status = ravel__stream_notice_came(refit, slot, err);
    if (status == RAVEL_OK) status = ravel__stream_wait(refit, &slot->recv, &bad, err);
    if (status == RAVEL_OK && refit->data && !bad) {
        status = ravel__stream_take_apart(refit, slot, err);
        if (status == RAVEL_OK && slot->recv) status = ravel__stream_wait(refit, &slot->recv, &bad, err);
    }
    if (status == RAVEL_OK && refit->data && bad)
        status = ravel_error_set(err, RAVEL_E_PEER_LOST, "a frame of another length than announced came");
    if (status == RAVEL_OK) status = ravel__stream_frame_came(refit, index, bad, err);
    return status == RAVEL_OK ? wait_sends(refit, slot, err) : status;
}

/* ---- the loop ------------------------------------------------------------------------------------------- */

/* The next frame in each direction: its slot, or its stream; -1: none, or not known yet. */
typedef struct ends {
    int32_t out, in;
} ends;

static int32_t free_slot(const ravel_refit *refit) {
    for (int32_t i = 0; i < refit->in_pool.count; i++)
        if (refit->in_pool.slots[i].state == RAVEL__SLOT_FREE) return i;
    return -1;
}

static int is_loading(const ravel__pool *pool) {
    for (int32_t i = 0; i < pool->count; i++)
        if (pool->slots[i].state == RAVEL__SLOT_LOADING) return 1;
    return 0;
}

static ravel_status take_back(ravel_refit *refit, ravel_error *err) {
    ravel_status status = ravel__stream_finish_sends(refit, err);
    ravel__stream_take_loaded(refit);
    for (int32_t i = 0; i < refit->in_pool.count && status == RAVEL_OK; i++)
        status = ravel__stream_step_slot(refit, i, err);
    return status;
}

/* The one of the two that comes first. Both are known: a rank must not begin a later frame. */
static ravel_status move_one(ravel_refit *refit, ends *e, int32_t slot, ravel_error *err) {
    place out = {0}, in = {0};
    int32_t index = e->out, stream = e->in;
    RAVEL_ASSERT(index >= 0 || (stream >= 0 && slot >= 0));
    if (index >= 0) {
        const ravel__refit_buffer *s = &refit->out_pool.slots[index];
        out = place_of(&refit->streams.out[s->stream], s->notice.window, refit->out_states[s->stream].frame);
    }
    if (stream >= 0) in = place_of(&refit->streams.in[stream], refit->wire.window, refit->in_states[stream].frame);
    if (stream < 0 || (index >= 0 && goes_before(&out, &in))) {
        e->out = -1;
        return send_frame(refit, index, err);
    }
    e->in = -1;
    return receive_frame(refit, slot, stream, err);
}

ravel_status ravel__stream_in_order(ravel_refit *refit, ravel__helper *packer, const ravel__helper *loader,
                                    ravel_error *err) {
    ends e = {-1, -1};
    ravel_status status = RAVEL_OK;
    while (status == RAVEL_OK) {
        uint32_t seen = atomic_load(&refit->bell.word);
        int packed_all = atomic_load(&packer->ended); /* read before the ready queue */
        refit->wire.now_ns = ravel__clock_ns();
        ravel__stream_help_out(refit, packer, loader);
        status = take_back(refit, err);
        if (e.out < 0) e.out = ravel__slot_queue_look(&refit->packer.ready);
        if (e.in < 0 && refit->wire.wanted > 0) e.in = ravel__stream_next_in_turn(refit);
        int32_t slot = free_slot(refit);
        int known = (e.out >= 0 || packed_all) && (e.in < 0 || slot >= 0);
        if (status == RAVEL_OK && known && (e.out >= 0 || e.in >= 0)) {
            status = move_one(refit, &e, slot, err);
        } else if (status == RAVEL_OK) {
            if (known && !is_loading(&refit->in_pool) && !is_loading(&refit->out_pool)) break;
            ravel__futex_wait(&refit->bell.word, seen, refit->wire.now_ns + NAP_NS);
        }
        ravel__stream_tell(refit);
    }
    return status;
}
