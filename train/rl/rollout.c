/* Lists of rollouts, and the messages that carry them:
 *
 *     head   i64[11]: magic, kind, batch, due, version, group size, greedy, waited, items, tokens, width
 *     items  i64[18 * items] as in train_rollout, `first` counted in this message
 *     tokens i32[tokens], log-probs f32[tokens], versions i32[tokens], routes i16[tokens * width]     if there are any
 */
#include "train/rl/rollout.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC INT64_C(0x38504d4c5652) /* "RVLMP8" */

typedef struct head {
    int64_t magic;
    train_order order;
    int64_t items, tokens, width;
} head;

enum { TAG_ORDER = 1, TAG_ANSWERS = 2, TAG_ROLLOUTS = 3 };
enum { HEAD = sizeof(head) / sizeof(int64_t), ITEM = sizeof(train_rollout) / sizeof(int64_t) };
_Static_assert(HEAD == 13 && ITEM == 19, "words of a message");

/* ---- batches of rollouts
 * ---------------------------------------------------------------------------------------------- */

void train_rollouts_clear(train_rollouts *rollouts) {
    rollouts->count = rollouts->used = 0;
}

void train_rollouts_free(train_rollouts *x) {
    ravel__release(NULL, x->items, (size_t)x->room * sizeof *x->items);
    ravel__release(NULL, x->tokens, (size_t)x->token_room * sizeof *x->tokens);
    ravel__release(NULL, x->logprobs, (size_t)x->logprob_room * sizeof *x->logprobs);
    ravel__release(NULL, x->versions, (size_t)x->version_room * sizeof *x->versions);
    ravel__release(NULL, x->routes, (size_t)x->route_room * sizeof *x->routes);
    *x = (train_rollouts){0};
}

/* Counts lie within the room of their arrays. */
static int rollouts_ok(const train_rollouts *p) {
    return p->count >= 0 && p->count <= p->room && p->used >= 0 && p->used <= p->token_room &&
           p->used <= p->logprob_room && p->used <= p->version_room && p->used * p->width <= p->route_room;
}

/* Each array keeps its own room, so a failure leaves every one of them as it was or larger. */
static ravel_status reserve(train_rollouts *p, int64_t items, int64_t tokens, ravel_error *err) {
    void *array = train__grown(NULL, p->items, &p->room, p->count, items, sizeof *p->items);
    if (!array) return ravel__no_memory(err, (size_t)items * sizeof *p->items, "rollouts");
    p->items = array;
    array = train__grown(NULL, p->tokens, &p->token_room, p->used, tokens, sizeof *p->tokens);
    if (!array) return ravel__no_memory(err, (size_t)tokens * sizeof *p->tokens, "tokens of rollouts");
    p->tokens = array;
    array = train__grown(NULL, p->logprobs, &p->logprob_room, p->used, tokens, sizeof *p->logprobs);
    if (!array) return ravel__no_memory(err, (size_t)tokens * sizeof *p->logprobs, "log-probs of rollouts");
    p->logprobs = array;
    array = train__grown(NULL, p->versions, &p->version_room, p->used, tokens, sizeof *p->versions);
    if (!array) return ravel__no_memory(err, (size_t)tokens * sizeof *p->versions, "versions of rollouts");
    p->versions = array;
    if (!p->width) return RAVEL_OK;
    array = train__grown(NULL, p->routes, &p->route_room, p->used * p->width, tokens * p->width, sizeof *p->routes);
    if (!array) return ravel__no_memory(err, (size_t)(tokens * p->width) * sizeof *p->routes, "routes of rollouts");
    p->routes = array;
    return RAVEL_OK;
}

static void clear_routes(train_rollouts *p, int64_t first, int64_t tokens) {
    for (int64_t i = first * p->width; i < (first + tokens) * p->width; i++) p->routes[i] = -1;
}

/* A list without routes becomes one whose routes are not known. */
static ravel_status set_width(train_rollouts *p, int64_t width, ravel_error *err) {
    if (!width || p->width == width) return RAVEL_OK;
    if (p->width && p->used)
        return ravel_error_set(err, RAVEL_E_DATA, "routes of %lld experts per token, and of %lld", (long long)p->width,
                               (long long)width);
    int64_t need = train__max(p->used, 1) * width;
    int16_t *array = train__grown(NULL, p->routes, &p->route_room, 0, need, sizeof *array);
    if (!array) return ravel__no_memory(err, (size_t)need * sizeof *array, "routes of rollouts");
    p->routes = array;
    p->width = width;
    clear_routes(p, 0, p->used);
    return RAVEL_OK;
}

ravel_status train_rollouts_add(train_rollouts *rollouts, const train_rollout *item, const int32_t *tokens,
                                const float *logprobs, const int32_t *versions, ravel_error *err) {
    ravel_status status = reserve(rollouts, rollouts->count + 1, rollouts->used + item->length, err);
    if (status) return status;
    size_t n = (size_t)item->length;
    RAVEL_ASSERT(rollouts_ok(rollouts));
    RAVEL_ASSERT(item->length >= 1 && item->prompt >= 0 && item->prompt <= item->length);
    memcpy(rollouts->tokens + rollouts->used, tokens, n * sizeof *tokens);
    if (logprobs)
        memcpy(rollouts->logprobs + rollouts->used, logprobs, n * sizeof *logprobs);
    else
        memset(rollouts->logprobs + rollouts->used, 0, n * sizeof *logprobs);
    int32_t drawn = (int32_t)train__max(item->version, 1); /* a server may not say which */
    for (int64_t i = 0; i < item->length; i++)
        rollouts->versions[rollouts->used + i] = versions ? versions[i] : i < item->prompt ? 0 : drawn;
    clear_routes(rollouts, rollouts->used, item->length);
    rollouts->items[rollouts->count] = *item;
    rollouts->items[rollouts->count++].first = rollouts->used;
    rollouts->used += item->length;
    RAVEL_ASSERT(rollouts_ok(rollouts));
    return RAVEL_OK;
}

ravel_status train_rollouts_set_routes(train_rollouts *x, const int16_t *routes, int64_t count, int64_t width,
                                       ravel_error *err) {
    RAVEL_ASSERT(x->count > 0 && width > 0);
    const train_rollout *last = &x->items[x->count - 1];
    RAVEL_ASSERT(count >= 0 && count <= last->length);
    ravel_status status = set_width(x, width, err);
    if (!status && count) memcpy(x->routes + last->first * width, routes, (size_t)(count * width) * sizeof *x->routes);
    return status;
}

ravel_status train_rollouts_copy(train_rollouts *to, const train_rollouts *from, const train_rollout *item,
                                 ravel_error *err) {
    int64_t at = item->first;
    ravel_status status =
        train_rollouts_add(to, item, from->tokens + at, from->logprobs + at, from->versions + at, err);
    if (status || !from->width) return status;
    return train_rollouts_set_routes(to, from->routes + at * from->width, item->length, from->width, err);
}

int64_t train_rollout_drawn(const train_rollouts *rollouts, const train_rollout *item) {
    int64_t drawn = 0;
    RAVEL_ASSERT(item->first >= 0 && item->first + item->length <= rollouts->used);
    for (int64_t i = item->prompt; i < item->length; i++) drawn += rollouts->versions[item->first + i] > 0;
    return drawn;
}

static int by_group_and_member(const void *a, const void *b) {
    const train_rollout *x = a, *y = b;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    if (x->member != y->member) return x->member < y->member ? -1 : 1;
    return (x->part > y->part) - (x->part < y->part);
}

void train_rollouts_sort(train_rollouts *rollouts) {
    if (rollouts->count) qsort(rollouts->items, (size_t)rollouts->count, sizeof *rollouts->items, by_group_and_member);
    for (int64_t i = 1; i < rollouts->count; i++)
        RAVEL_ASSERT(by_group_and_member(&rollouts->items[i - 1], &rollouts->items[i]) <= 0);
}

ravel_status train_rollouts_take(train_rollouts *to, const train_rollouts *from, int32_t parts, int32_t part,
                                 ravel_error *err) {
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(part >= 0 && part < parts && from != to);
    for (int64_t i = 0; i < from->count && !status; i++) {
        const train_rollout *x = &from->items[i];
        if ((x->group % parts + parts) % parts == part) status = train_rollouts_copy(to, from, x, err);
    }
    train_rollouts_sort(to);
    return status;
}

int64_t train_rollouts_outside(const train_rollout *items, int64_t count, int64_t tokens) {
    RAVEL_ASSERT(tokens >= 0);
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
    RAVEL_ASSERT(!x || rollouts_ok(x));
    head h = {MAGIC, order, x ? x->count : 0, x ? x->used : 0, x && x->used ? x->width : 0};
    ravel_status status = ravel_comm_send(comm, &h, HEAD, RAVEL_I64, peer, tag, err);
    if (!status && h.items) status = ravel_comm_send(comm, x->items, h.items * ITEM, RAVEL_I64, peer, tag, err);
    if (!status && h.tokens) status = ravel_comm_send(comm, x->tokens, h.tokens, RAVEL_I32, peer, tag, err);
    if (!status && h.tokens) status = ravel_comm_send(comm, x->logprobs, h.tokens, RAVEL_F32, peer, tag, err);
    if (!status && h.tokens) status = ravel_comm_send(comm, x->versions, h.tokens, RAVEL_I32, peer, tag, err);
    if (!status && h.width) status = ravel_comm_send(comm, x->routes, h.tokens * h.width, RAVEL_I16, peer, tag, err);
    return status;
}

static ravel_status receive_rollouts(ravel_comm *comm, int32_t peer, int32_t tag, train_order *order, train_rollouts *x,
                                     ravel_error *err) {
    head h;
    ravel_status status = ravel_comm_recv(comm, &h, HEAD, RAVEL_I64, peer, tag, err);
    if (status) return status;
    if (h.magic != MAGIC || h.items < 0 || h.tokens < 0 || h.width < 0 || h.width > 65536)
        return ravel_error_set(err, RAVEL_E_DATA, "rank %d sent something that is no rollout message", peer);
    int64_t from = x->count, base = x->used;
    RAVEL_ASSERT(rollouts_ok(x));
    status = set_width(x, h.width, err);
    if (!status) status = reserve(x, from + h.items, base + h.tokens, err);
    if (!status && h.items) status = ravel_comm_recv(comm, x->items + from, h.items * ITEM, RAVEL_I64, peer, tag, err);
    if (!status && h.tokens) status = ravel_comm_recv(comm, x->tokens + base, h.tokens, RAVEL_I32, peer, tag, err);
    if (!status && h.tokens) status = ravel_comm_recv(comm, x->logprobs + base, h.tokens, RAVEL_F32, peer, tag, err);
    if (!status && h.tokens) status = ravel_comm_recv(comm, x->versions + base, h.tokens, RAVEL_I32, peer, tag, err);
    if (!status && h.width)
        status = ravel_comm_recv(comm, x->routes + base * h.width, h.tokens * h.width, RAVEL_I16, peer, tag, err);
    if (status) return status;
    if (!h.width) clear_routes(x, base, h.tokens);
    if (train_rollouts_outside(x->items + from, h.items, h.tokens) >= 0)
        return ravel_error_set(err, RAVEL_E_DATA, "rank %d sent a rollout that is out of bounds", peer);
    x->count += h.items;
    x->used += h.tokens;
    for (int64_t i = from; i < x->count; i++) {
        x->items[i].first += base;
        RAVEL_ASSERT(x->items[i].first + x->items[i].length <= x->used);
    }
    *order = h.order;
    return RAVEL_OK;
}

ravel_status train_order_send(ravel_comm *comm, int32_t generator, const train_order *order,
                              const train_rollouts *prompts, ravel_error *err) {
    RAVEL_ASSERT(order->kind >= TRAIN_ORDER_GENERATE && order->kind <= TRAIN_ORDER_STOP);
    return send_rollouts(comm, generator, TAG_ORDER, *order, prompts, err);
}

ravel_status train_order_receive(ravel_comm *comm, train_order *order, train_rollouts *prompts, ravel_error *err) {
    train_rollouts_clear(prompts);
    return receive_rollouts(comm, 0, TAG_ORDER, order, prompts, err);
}

ravel_status train_answers_send(ravel_comm *comm, int32_t receivers, int32_t stride, train_order of,
                                const train_rollouts *answers, ravel_error *err) {
    train_rollouts share = {0};
    RAVEL_ASSERT(receivers > 0 && stride > 0 && (receivers - 1) * stride < ravel_comm_size(comm));
    ravel_status status = RAVEL_OK;
    for (int32_t t = 0; t < receivers && !status; t++) {
        train_rollouts_clear(&share);
        status = train_rollouts_take(&share, answers, receivers, t, err);
        if (!status) status = send_rollouts(comm, t * stride, TAG_ANSWERS, of, &share, err);
    }
    train_rollouts_free(&share);
    return status;
}

ravel_status train_answers_receive(ravel_comm *comm, int32_t trainers, int32_t stride, int64_t batch,
                                   train_rollouts *answers, train_order *of, ravel_error *err) {
    int32_t size = ravel_comm_size(comm);
    *of = (train_order){.batch = batch};
    RAVEL_ASSERT(stride > 0 && trainers > 0 && (size - trainers) % stride == 0);
    for (int32_t g = trainers; g < size; g += stride) {
        train_order order;
        ravel_status status = receive_rollouts(comm, g, TAG_ANSWERS, &order, answers, err);
        if (status) return status;
        if (order.batch != batch)
            return ravel_error_set(err, RAVEL_E_DATA, "generator rank %d sent answers of batch %lld, not %lld", g,
                                   (long long)order.batch, (long long)batch);
        of->waited += order.waited;
        of->stopped |= order.stopped;
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
    int64_t sizes[] = {rollouts->count, rollouts->used, rollouts->width};
    if (ravel_comm_size(comm) == 1) return RAVEL_OK;
    ravel_status status = ravel_comm_broadcast(comm, sizes, 3, RAVEL_I64, 0, err);
    if (status) return status;
    if (ravel_comm_rank(comm) > 0) train_rollouts_clear(rollouts);
    status = set_width(rollouts, sizes[2], err);
    if (!status) status = reserve(rollouts, sizes[0], sizes[1], err);
    status = ravel_agree(comm, status, err);
    if (!status && sizes[0]) status = ravel_comm_broadcast(comm, rollouts->items, sizes[0] * ITEM, RAVEL_I64, 0, err);
    if (!status && sizes[1]) status = ravel_comm_broadcast(comm, rollouts->tokens, sizes[1], RAVEL_I32, 0, err);
    if (!status && sizes[1]) status = ravel_comm_broadcast(comm, rollouts->logprobs, sizes[1], RAVEL_F32, 0, err);
    if (!status && sizes[1]) status = ravel_comm_broadcast(comm, rollouts->versions, sizes[1], RAVEL_I32, 0, err);
    if (!status && sizes[1] && sizes[2])
        status = ravel_comm_broadcast(comm, rollouts->routes, sizes[1] * sizes[2], RAVEL_I16, 0, err);
    if (status) return status;
    RAVEL_ASSERT(sizes[0] <= rollouts->room && sizes[1] <= rollouts->token_room);
    rollouts->count = sizes[0];
    rollouts->used = sizes[1];
    RAVEL_ASSERT(rollouts_ok(rollouts));
    return RAVEL_OK;
}
