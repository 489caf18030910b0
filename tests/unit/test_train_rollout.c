/* Rollouts over ranks: every group arrives whole at its trainer, whatever the numbers of ranks. */
#include "tests/unit/check.h"

#include "train/rl/rollout.h"

typedef struct job {
    int32_t trainers, generators;
    int64_t prompts, group_size;
    int64_t seen[8]; /* rollouts that each trainer got */
} job;

static int32_t token_of(int64_t group, int64_t member, int64_t place) {
    return (int32_t)(group * 1000 + member * 100 + place);
}

static ravel_status generator(ravel_comm *comm, job *j, ravel_error *err) {
    train_rollouts prompts, answers;
    train_order order = {0};
    memset(&prompts, 0, sizeof prompts);
    memset(&answers, 0, sizeof answers);
    ravel_status status;
    while (!(status = train_order_receive(comm, &order, &prompts, err)) && order.kind == TRAIN_ORDER_GENERATE) {
        train_rollouts_clear(&answers);
        for (int64_t i = prompts.count - 1; i >= 0 && !status; i--) /* backwards: the order must not matter */
            for (int64_t m = 0; m < order.group_size && !status; m++) {
                const train_rollout *p = &prompts.items[i];
                int32_t tokens[64];
                float logprobs[64];
                train_rollout r = *p;
                r.member = m;
                r.length = p->length + 1 + m;
                r.version = 5;
                for (int64_t t = 0; t < r.length; t++) {
                    tokens[t] = token_of(r.group, m, t);
                    logprobs[t] = -(float)t;
                }
                status = train_rollouts_add(&answers, &r, tokens, logprobs, NULL, err);
            }
        if (!status) status = train_answers_send(comm, j->trainers, 1, order, &answers, err);
        if (status) break;
    }
    train_rollouts_free(&prompts);
    train_rollouts_free(&answers);
    return status;
}

static ravel_status send_prompts(ravel_comm *comm, const job *j, int64_t batch, ravel_error *err) {
    train_rollouts prompts;
    ravel_status status = RAVEL_OK;
    for (int32_t g = 0; g < j->generators && !status; g++) {
        memset(&prompts, 0, sizeof prompts);
        for (int64_t i = g; i < j->prompts && !status; i += j->generators) {
            int32_t tokens[8] = {0};
            train_rollout p = {.length = 1 + i % 7, .prompt = 1 + i % 7, .group = i};
            status = train_rollouts_add(&prompts, &p, tokens, NULL, NULL, err);
        }
        train_order order = {.kind = TRAIN_ORDER_GENERATE, .batch = batch, .group_size = j->group_size, .waited = 7};
        if (!status) status = train_order_send(comm, j->trainers + g, &order, &prompts, err);
        train_rollouts_free(&prompts);
    }
    return status;
}

static void check_answers(const train_rollouts *a, const job *j, int32_t rank) {
    int64_t i = 0;
    for (int64_t group = rank; group < j->prompts; group += j->trainers)
        for (int64_t m = 0; m < j->group_size; m++, i++) {
            CHECK(i < a->count);
            const train_rollout *r = &a->items[i];
            CHECK(r->group == group && r->member == m && r->length == r->prompt + 1 + m && r->version == 5);
            for (int64_t t = 0; t < r->length; t++) {
                CHECK_EQ(a->tokens[r->first + t], token_of(group, m, t));
                CHECK(a->logprobs[r->first + t] == -(float)t);
            }
        }
    CHECK_EQ(i, a->count);
}

static ravel_status rank_body(ravel_comm *comm, void *user, ravel_error *err) {
    job *j = user;
    int32_t rank = ravel_comm_rank(comm);
    if (rank >= j->trainers) return generator(comm, j, err);
    train_rollouts answers;
    ravel_status status = RAVEL_OK;
    memset(&answers, 0, sizeof answers);
    for (int64_t batch = 0; batch < 3 && !status; batch++) {
        if (rank == 0) status = send_prompts(comm, j, batch, err);
        train_rollouts_clear(&answers);
        train_order of = {0};
        if (!status) status = train_answers_receive(comm, j->trainers, 1, batch, &answers, &of, err);
        if (!status) EXPECT(of.waited == 7 * j->generators && !of.stopped);
        if (!status) check_answers(&answers, j, rank);
        j->seen[rank] += answers.count;
    }
    train_order stop = {.kind = TRAIN_ORDER_STOP};
    for (int32_t g = 0; rank == 0 && g < j->generators && !status; g++)
        status = train_order_send(comm, j->trainers + g, &stop, NULL, err);
    train_rollouts_free(&answers);
    return status;
}

TEST(rollouts_reach_their_trainers_whole) {
    for (int32_t trainers = 1; trainers <= 3; trainers++)
        for (int32_t generators = 1; generators <= 3; generators++)
            for (int64_t prompts = 0; prompts <= 9; prompts += 3) {
                job j = {trainers, generators, prompts, 4, {0}};
                ravel_error err = RAVEL_ERROR_INIT;
                CHECK_OK(ravel_threads_run(trainers + generators, NULL, rank_body, &j, &err), &err);
                int64_t seen = 0;
                for (int i = 0; i < trainers; i++) seen += j.seen[i];
                CHECK_EQ(seen, 3 * 4 * prompts);
            }
}
