/* Lists of rollouts, and the messages that carry them:
 *
 *     head   i64[8]: magic, kind, batch, version, group size, greedy, items, tokens
 *     items  i64[10 * items] as in train_rollout, `first` counted in this message
 *     tokens i32[tokens], log-probs f32[tokens]          where there are any
 */
#include "train/rl/rollout.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC INT64_C(0x33504d4c5652) /* "RVLMP3" */

typedef struct head {
    int64_t magic;
    train_order order;
    int64_t items, tokens;
} head;

enum { TAG_ORDER = 1, TAG_ANSWERS = 2, TAG_ROLLOUTS = 3 };
enum { HEAD = sizeof(head) / sizeof(int64_t), ITEM = sizeof(train_rollout) / sizeof(int64_t) };
_Static_assert(HEAD == 8 && ITEM == 10, "words of a message");

/* ---- batches of rollouts ---------------------------------------------------------------------------------------------- */

void train_rollouts_clear(train_rollouts *rollouts) {
    rollouts->count = rollouts->used = 0;
}

void train_rollouts_free(train_rollouts *x) {
    train__release(NULL, x->items, (size_t)x->room * sizeof *x->items);
    train__release(NULL, x->tokens, (size_t)x->token_room * sizeof *x->tokens);
    train__release(NULL, x->logprobs, (size_t)x->logprob_room * sizeof *x->logprobs);
    *x = (train_rollouts){0};
}

/* Counts lie within the room of their arrays. */
static int rollouts_ok(const train_rollouts *p) {
    return p->count >= 0 && p->count <= p->room && p->used >= 0 && p->used <= p->token_room &&
           p->used <= p->logprob_room;
}

/* Each array keeps its own room, so a failure leaves every one of them as it was or larger. */
static ravel_status reserve(train_rollouts *p, int64_t items, int64_t tokens, ravel_error *err) {
    void *array = train__grown(NULL, p->items, &p->room, p->count, items, sizeof *p->items);
    if (!array) return train__no_memory(err, (size_t)items * sizeof *p->items, "rollouts");
    p->items = array;
    array = train__grown(NULL, p->tokens, &p->token_room, p->used, tokens, sizeof *p->tokens);
    if (!array) return train__no_memory(err, (size_t)tokens * sizeof *p->tokens, "tokens of rollouts");
    p->tokens = array;
    array = train__grown(NULL, p->logprobs, &p->logprob_room, p->used, tokens, sizeof *p->logprobs);
    if (!array) return train__no_memory(err, (size_t)tokens * sizeof *p->logprobs, "log-probs of rollouts");
    p->logprobs = array;
    return RAVEL_OK;
}

ravel_status train_rollouts_add(train_rollouts *rollouts, const train_rollout *item, const int32_t *tokens,
                                const float *logprobs, ravel_error *err) {
    ravel_status status = reserve(rollouts, rollouts->count + 1, rollouts->used + item->length, err);
    if (status) return status;
    size_t n = (size_t)item->length;
    TRAIN_ASSERT(rollouts_ok(rollouts));
    TRAIN_ASSERT(item->length >= 1 && item->prompt >= 0 && item->prompt <= item->length);
    memcpy(rollouts->tokens + rollouts->used, tokens, n * sizeof *tokens);
    if (logprobs)
        memcpy(rollouts->logprobs + rollouts->used, logprobs, n * sizeof *logprobs);
    else
        memset(rollouts->logprobs + rollouts->used, 0, n * sizeof *logprobs);
    rollouts->items[rollouts->count] = *item;
    rollouts->items[rollouts->count++].first = rollouts->used;
    rollouts->used += item->length;
    TRAIN_ASSERT(rollouts_ok(rollouts));
    return RAVEL_OK;
}

static int by_group_and_member(const void *a, const void *b) {
    const train_rollout *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return (x->member > y->member) - (x->member < y->member);
}

void train_rollouts_sort(train_rollouts *rollouts) {
    if (rollouts->count) qsort(rollouts->items, (size_t)rollouts->count, sizeof *rollouts->items, by_group_and_member);
    for (int64_t i = 1; i < rollouts->count; i++)
        TRAIN_ASSERT(by_group_and_member(&rollouts->items[i - 1], &rollouts->items[i]) <= 0);
}

ravel_status train_rollouts_take(train_rollouts *to, const train_rollouts *from, int32_t parts, int32_t part,
                                 ravel_error *err) {
    ravel_status status = RAVEL_OK;
    TRAIN_ASSERT(part >= 0 && part < parts && from != to);
    for (int64_t i = 0; i < from->count && !status; i++) {
        const train_rollout *x = &from->items[i];
        if ((x->group % parts + parts) % parts == part)
            status = train_rollouts_add(to, x, from->tokens + x->first, from->logprobs + x->first, err);
    }
    train_rollouts_sort(to);
    return status;
}

int64_t train_rollouts_outside(const train_rollout *items, int64_t count, int64_t tokens) {
    TRAIN_ASSERT(tokens >= 0);
    for (int64_t i = 0; i < count; i++) {
        const train_rollout *x = &items[i];
        if (x->first < 0 || x->first > tokens || x->length < 1 || x->length > tokens - x->first || x->prompt < 0 ||
            x->prompt > x->length)
            return i;
    }
    return -1;
}

/* ---- messages ------------------------------------------------------------------------------------------- */

static ravel_status send_rollouts(ravel_comm *comm, int32_t peer, int32_t tag, train_order order,
                                  const train_rollouts *x, ravel_error *err) {
    TRAIN_ASSERT(!x || rollouts_ok(x));
    head h = {MAGIC, order, x ? x->count : 0, x ? x->used : 0};
    ravel_status status = ravel_comm_send(comm, &h, HEAD, RAVEL_I64, peer, tag, err);
    if (!status && h.items) status = ravel_comm_send(comm, x->items, h.items * ITEM, RAVEL_I64, peer, tag, err);
    if (!status && h.tokens) status = ravel_comm_send(comm, x->tokens, h.tokens, RAVEL_I32, peer, tag, err);
    if (!status && h.tokens) status = ravel_comm_send(comm, x->logprobs, h.tokens, RAVEL_F32, peer, tag, err);
    return status;
}

static ravel_status receive_rollouts(ravel_comm *comm, int32_t peer, int32_t tag, train_order *order, train_rollouts *x,
                                     ravel_error *err) {
    head h;
    ravel_status status = ravel_comm_recv(comm, &h, HEAD, RAVEL_I64, peer, tag, err);
    if (status) return status;
    if (h.magic != MAGIC || h.items < 0 || h.tokens < 0)
        return ravel_error_set(err, RAVEL_E_DATA, "rank %d sent something that is no rollout message", peer);
    int64_t from = x->count, base = x->used;
    TRAIN_ASSERT(rollouts_ok(x));
    status = reserve(x, from + h.items, base + h.tokens, err);
    if (!status && h.items) status = ravel_comm_recv(comm, x->items + from, h.items * ITEM, RAVEL_I64, peer, tag, err);
    if (!status && h.tokens) status = ravel_comm_recv(comm, x->tokens + base, h.tokens, RAVEL_I32, peer, tag, err);
    if (!status && h.tokens) status = ravel_comm_recv(comm, x->logprobs + base, h.tokens, RAVEL_F32, peer, tag, err);
    if (status) return status;
    if (train_rollouts_outside(x->items + from, h.items, h.tokens) >= 0)
        return ravel_error_set(err, RAVEL_E_DATA, "rank %d sent a rollout that is out of bounds", peer);
    x->count += h.items;
    x->used += h.tokens;
    for (int64_t i = from; i < x->count; i++) {
        x->items[i].first += base;
        TRAIN_ASSERT(x->items[i].first + x->items[i].length <= x->used);
    }
    *order = h.order;
    return RAVEL_OK;
}

ravel_status train_order_send(ravel_comm *comm, int32_t generator, const train_order *order,
                              const train_rollouts *prompts, ravel_error *err) {
    TRAIN_ASSERT(order->kind >= TRAIN_ORDER_GENERATE && order->kind <= TRAIN_ORDER_STOP);
    return send_rollouts(comm, generator, TAG_ORDER, *order, prompts, err);
}

ravel_status train_order_receive(ravel_comm *comm, train_order *order, train_rollouts *prompts, ravel_error *err) {
    train_rollouts_clear(prompts);
    return receive_rollouts(comm, 0, TAG_ORDER, order, prompts, err);
}

ravel_status train_answers_send(ravel_comm *comm, int32_t receivers, int32_t stride, int64_t batch,
                                const train_rollouts *answers, ravel_error *err) {
    train_rollouts share = {0};
    TRAIN_ASSERT(receivers > 0 && stride > 0 && (receivers - 1) * stride < ravel_comm_size(comm));
    ravel_status status = RAVEL_OK;
    for (int32_t t = 0; t < receivers && !status; t++) {
        train_rollouts_clear(&share);
        status = train_rollouts_take(&share, answers, receivers, t, err);
        if (!status) status = send_rollouts(comm, t * stride, TAG_ANSWERS, (train_order){.batch = batch}, &share, err);
    }
    train_rollouts_free(&share);
    return status;
}

ravel_status train_answers_receive(ravel_comm *comm, int32_t trainers, int32_t stride, int64_t batch,
                                   train_rollouts *answers, ravel_error *err) {
    int32_t size = ravel_comm_size(comm);
    TRAIN_ASSERT(stride > 0 && trainers > 0 && (size - trainers) % stride == 0);
    for (int32_t g = trainers; g < size; g += stride) {
        train_order order;
        ravel_status status = receive_rollouts(comm, g, TAG_ANSWERS, &order, answers, err);
        if (status) return status;
        if (order.batch != batch)
            return ravel_error_set(err, RAVEL_E_DATA, "generator rank %d sent answers of batch %lld, not %lld", g,
                                   (long long)order.batch, (long long)batch);
    }
    train_rollouts_sort(answers);
    return RAVEL_OK;
}

ravel_status train_rollouts_send(ravel_comm *comm, int32_t peer, const train_rollouts *rollouts, ravel_error *err) {
    return send_rollouts(comm, peer, TAG_ROLLOUTS, (train_order){0}, rollouts, err);
}

ravel_status train_rollouts_receive(ravel_comm *comm, int32_t peer, train_rollouts *rollouts, ravel_error *err) {
    train_order order;
    return receive_rollouts(comm, peer, TAG_ROLLOUTS, &order, rollouts, err);
}

ravel_status train_rollouts_broadcast(ravel_comm *comm, train_rollouts *rollouts, ravel_error *err) {
    int64_t sizes[] = {rollouts->count, rollouts->used};
    if (ravel_comm_size(comm) == 1) return RAVEL_OK;
    ravel_status status = ravel_comm_broadcast(comm, sizes, 2, RAVEL_I64, 0, err);
    if (status) return status;
    status = ravel_agree(comm, reserve(rollouts, sizes[0], sizes[1], err), err);
    if (!status && sizes[0]) status = ravel_comm_broadcast(comm, rollouts->items, sizes[0] * ITEM, RAVEL_I64, 0, err);
    if (!status && sizes[1]) status = ravel_comm_broadcast(comm, rollouts->tokens, sizes[1], RAVEL_I32, 0, err);
    if (!status && sizes[1]) status = ravel_comm_broadcast(comm, rollouts->logprobs, sizes[1], RAVEL_F32, 0, err);
    if (status) return status;
    TRAIN_ASSERT(sizes[0] <= rollouts->room && sizes[1] <= rollouts->token_room);
    rollouts->count = sizes[0];
    rollouts->used = sizes[1];
    TRAIN_ASSERT(rollouts_ok(rollouts));
    return RAVEL_OK;
}
