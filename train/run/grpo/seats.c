#include "train/run/grpo/seats.h"

#include "base/assert.h"
#include "base/memory.h"
#include "train/kernels/host.h"

#include <string.h>

/* ---- what a seat holds ---------------------------------------------------------------------------------- */

ravel_status train__seat_copy(const train__episodes *e, const seat *s, const train_rollout *item, train_rollouts *to,
                              ravel_error *err) {
    ravel_status status = train_rollouts_add(to, item, s->tokens, s->logprobs, s->versions, err);
    if (status || !s->routes) return status;
    return train_rollouts_set_routes(to, s->routes, train__min(s->routed, item->length), e->options.route_width, err);
}

ravel_status train__seat_part(train__episodes *e, seat *s, ravel_error *err) {
    train_rollout x = s->item;
    x.length = s->used;
    x.turns -= s->parted;
    x.ended = 1;
    x.retried = x.wasted = x.differs = 0;
    x.progress = TRAIN_ROLLOUT_BEGUN;
    RAVEL_ASSERT(x.turns > 0 && s->begun);
    ravel_status status = train__seat_copy(e, s, &x, &e->done, err);
    s->parted = s->item.turns;
    s->item.part++;
    s->used = s->routed = s->begun = 0;
    return status;
}

void train__seat_settle(train__episodes *e, seat *s, int forget) {
    int64_t kept = 0;
    for (int64_t i = 0; s->item.part && i < e->done.count; i++) {
        train_rollout *x = &e->done.items[i];
        int own = x->group == s->item.group && x->member == s->item.member && x->batch == s->item.batch;
        if (own && forget) {
            s->item.wasted += train_rollout_drawn(&e->done, x);
            continue;
        }
        if (own) {
            x->progress = TRAIN_ROLLOUT_OVER;
            x->reward = s->item.reward;
            x->accuracy = s->item.accuracy;
            x->scored = s->item.scored;
        }
        e->done.items[kept++] = *x;
    }
    if (s->item.part) e->done.count = kept;
    if (forget) s->item.part = s->parted = 0;
}

/* ---- lists of rollouts ---------------------------------------------------------------------------------- */

ravel_status train__seats_hand_over(train__episodes *e, train_rollouts *answers, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    train_rollouts_clear(&e->spare);
    for (int64_t i = 0; i < e->done.count && !status; i++) {
        const train_rollout *x = &e->done.items[i];
        status = train_rollouts_copy(x->batch == e->due ? answers : &e->spare, &e->done, x, err);
    }
    train_rollouts swap = e->done;
    if (status) return status;
    e->done = e->spare;
    e->spare = swap;
    return RAVEL_OK;
}

/* Leaves out questions that nobody needs: all of their rollouts are over. A seat gets a copy of its own. */
static ravel_status compact_questions(train__episodes *e, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    train_rollouts_clear(&e->spare);
    for (int64_t i = 0; i < e->questions.count && !status; i++) {
        const train_rollout *q = &e->questions.items[i];
        if (q->member < q->turns) status = train_rollouts_copy(&e->spare, &e->questions, q, err);
    }
    for (int64_t i = 0; i < e->count && !status; i++) {
        train_rollout *x = &e->seats[i].item,
                      q = {.first = x->first, .length = e->seats[i].question, .batch = x->batch};
        if (e->seats[i].place == FREE) continue;
        status = train_rollouts_copy(&e->spare, &e->questions, &q, err);
        x->first = e->spare.used - q.length;
    }
    if (status) return status;
    train_rollouts swap = e->questions;
    e->questions = e->spare;
    e->spare = swap;
    e->next = 0;
    return RAVEL_OK;
}

ravel_status train__episodes_add(train__episodes *e, const train_rollouts *questions, int64_t batch, int64_t group_size,
                                 int greedy, ravel_error *err) {
    ravel_status status = compact_questions(e, err);
    for (int64_t i = 0; i < questions->count && !status; i++) {
        train_rollout q = questions->items[i];
        q.member = 0;
        q.turns = group_size;
        q.ended = greedy;
        q.batch = batch;
        status = train_rollouts_add(&e->questions, &q, questions->tokens + questions->items[i].first, NULL, NULL, err);
    }
    return status;
}

/* ---- checkpoints --------------------------------------------------------------------------------------- */

/* A rollout with an environment begins again: the environment is not in a checkpoint. */
ravel_status train__episodes_keep(const train__episodes *e, train_rollouts *all, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < e->done.count && !status; i++)
        if (e->done.items[i].progress == TRAIN_ROLLOUT_OVER)
            status = train_rollouts_copy(all, &e->done, &e->done.items[i], err);
    for (int64_t i = 0; i < e->count && !status; i++) {
        const seat *s = &e->seats[i];
        train_rollout x = s->item;
        if (s->place == FREE) continue;
        x.progress = e->has_env ? TRAIN_ROLLOUT_ASKED : TRAIN_ROLLOUT_BEGUN;
        x.length = e->has_env ? s->question : s->used;
        x.prompt = s->question;
        x.part = 0;
        if (e->has_env) x.turns = x.member + 1;
        if (e->has_env)
            status = train_rollouts_copy(all, &e->questions, &x, err);
        else
            status = train__seat_copy(e, s, &x, all, err);
    }
    for (int64_t i = 0; i < e->questions.count && !status; i++) {
        train_rollout q = e->questions.items[i];
        q.progress = TRAIN_ROLLOUT_ASKED;
        if (q.member < q.turns) status = train_rollouts_copy(all, &e->questions, &q, err);
    }
    return status;
}

static int is_known(const int16_t *row, int64_t width) {
    for (int64_t i = 0; i < width; i++)
        if (row[i] >= 0) return 1;
    return 0;
}

static ravel_status restore_seat(train__episodes *e, seat *s, const train_rollouts *all, const train_rollout *x,
                                 ravel_error *err) {
    train_rollout q = {.first = x->first, .length = x->prompt, .batch = x->batch};
    ravel_status status = train_rollouts_copy(&e->questions, all, &q, err);
    if (status) return status;
    s->item = *x;
    s->item.first = e->questions.used - q.length;
    s->question = x->prompt;
    s->used = x->length;
    s->greedy = s->tried = s->alone = 0;
    s->begun = s->lost = 0;
    memcpy(s->tokens, all->tokens + x->first, (size_t)x->length * sizeof *s->tokens);
    memcpy(s->logprobs, all->logprobs + x->first, (size_t)x->length * sizeof *s->logprobs);
    memcpy(s->versions, all->versions + x->first, (size_t)x->length * sizeof *s->versions);
    int64_t width = e->options.route_width;
    s->routed = 0;
    if (s->routes && all->width == width) {
        const int16_t *rows = all->routes + x->first * width;
        memcpy(s->routes, rows, (size_t)(x->length * width) * sizeof *rows);
        while (s->routed < x->length && is_known(rows + s->routed * width, width)) s->routed++;
    }
    s->place = READY;
    e->taken++;
    return RAVEL_OK;
}

ravel_status train__episodes_restore(train__episodes *e, const train_rollouts *all, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int64_t room = e->options.slot_tokens, seats = 0;
    for (int64_t i = 0; i < all->count && !status; i++) {
        train_rollout x = all->items[i];
        int begun = x.progress == TRAIN_ROLLOUT_BEGUN,
            fits = x.length < room && x.drawn >= 0 && x.drawn <= x.length - x.prompt;
        if (begun && (e->has_env || seats == e->count || !fits)) { /* other options than before: from its beginning */
            x = (train_rollout){.first = x.first,
                                .length = x.prompt,
                                .prompt = x.prompt,
                                .group = x.group,
                                .member = x.member,
                                .turns = x.member + 1,
                                .batch = x.batch,
                                .progress = TRAIN_ROLLOUT_ASKED};
            begun = 0;
        }
        if (x.progress == TRAIN_ROLLOUT_ASKED && x.length >= room)
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "a question of %lld tokens and its answer do not fit the %lld tokens of a rollout",
                                   (long long)x.length, (long long)room);
        status = begun                               ? restore_seat(e, &e->seats[seats++], all, &x, err)
                 : x.progress == TRAIN_ROLLOUT_ASKED ? train_rollouts_copy(&e->questions, all, &x, err)
                                                     : train_rollouts_copy(&e->done, all, &x, err);
    }
    return status;
}
