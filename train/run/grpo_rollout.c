/* A trainer rank's exchange with the generators: orders, answers, evaluation and refit. */
#include "train/run/grpo_internal.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <ravel/json.h>
#include <ravel/safetensors.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EVAL_BATCH = -1 };

/* ---- orders --------------------------------------------------------------------------------------------- */

/* All ranks of a generator get its order. */
ravel_status train__grpo_send(train__grpo *g, train_order order, int64_t first, int64_t count, ravel_error *err) {
    int32_t tp = g->config->grpo.generator_tp;
    TRAIN_ASSERT(tp >= 1 && g->generators % tp == 0 && first >= 0 && count >= 0);
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; g->rank == 0 && i < g->generators && !status; i++) {
        train_rollouts_clear(&g->asking);
        for (int64_t q = i / tp; q < count && !status; q += g->generators / tp)
            status = train_prompts_add(g->prompts, first + q, &g->asking, err);
        if (!status) status = train_order_send(g->world, g->count + i, &order, &g->asking, err);
    }
    return status;
}

ravel_status train__grpo_order(train__grpo *g, int64_t batch, ravel_error *err) {
    train_order order = {.kind = TRAIN_ORDER_GENERATE, .batch = batch, .group_size = g->config->grpo.group_size};
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_ROLLOUT, NULL);
    ravel_status status = train__grpo_send(g, order, g->run.state.question, g->config->grpo.prompts, err);
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_ROLLOUT, NULL);
    g->ordered_from = g->run.state.question;
    g->run.state.question += g->config->grpo.prompts;
    g->waiting_batch = batch;
    g->have_waiting = 0;
    return status;
}

/* ---- answers -------------------------------------------------------------------------------------------- */

static ravel_status receive_answers(train__grpo *g, int64_t batch, train_rollouts *answers, ravel_error *err) {
    TRAIN_ASSERT(g->leaders && batch >= EVAL_BATCH);
    return train_answers_receive(g->world, g->count, g->config->grpo.generator_tp, batch, answers, err);
}

/* Fails on all ranks if too many answers of the batch could not be scored. */
static ravel_status check_dropped(train__grpo *g, int64_t kept, int64_t dropped, int plain, const ravel_error *why,
                                  ravel_error *err) {
    int64_t counts[] = {kept, dropped}, total;
    TRAIN_ASSERT(g->leaders && kept >= 0 && dropped >= 0);
    ravel_status status = ravel_comm_allreduce(g->leaders, counts, counts, 2, RAVEL_I64, RAVEL_SUM, err);
    if (status) return status;
    total = counts[0] + counts[1];
    double all = (double)total, share = all > 0 ? (double)counts[1] / all : 0;
    if (all > 0 && g->rank == 0 && !plain)
        (void)ravel_metrics_add(g->run.metrics, RAVEL_METRIC_REWARD_DROPPED, share, all);
    if (!plain) g->scored += counts[0], g->dropped += counts[1];
    if (counts[1] == 0 || (counts[0] > 0 && share <= g->config->grpo.max_dropped)) return RAVEL_OK;
    if (dropped > 0 && counts[0] == 0)
        status = ravel_error_set(err, RAVEL_E_CALLBACK, "no answer could be scored: %s", why->message);
    if (dropped > 0 && counts[0] > 0)
        status =
            ravel_error_set(err, RAVEL_E_CALLBACK, "%lld of %lld answers could not be scored (--max-dropped %g): %s",
                            (long long)counts[1], (long long)total, g->config->grpo.max_dropped, why->message);
    return ravel_agree(g->leaders, status, err);
}

/* Lays a batch of scored answers out. */
static ravel_status load_answers(train__grpo *g, const train_rollouts *rollouts, int plain, ravel_error *err) {
    TRAIN_ASSERT(rollouts->count >= 0 && g->run.state.version >= 0);
    ravel_status status = train_experience_load(&g->batch, rollouts, g->run.state.version, err);
    if (!status && !plain) train_experience_length_rules(&g->batch, &g->config->grpo.scoring, &g->config->policy);
    return status;
}

/* On a leader. Scores what has no reward yet, and lays the batch out; `plain`: right or wrong, without length rules (evaluation). */
static ravel_status score(train__grpo *g, train_rollouts *rollouts, int plain, ravel_error *err) {
    const train_grpo_options *o = &g->config->grpo;
    int64_t dropped = 0;
    ravel_error why = RAVEL_ERROR_INIT;
    train_scorer scorer = {.prompts = g->prompts,
                           .text = g->text,
                           .command = g->command,
                           .retries = o->reward_retries,
                           .partial = plain ? 0 : o->scoring.partial,
                           .logger = g->run.hooks.logger};
    ravel_phase phase = plain ? RAVEL_PHASE_EVAL : RAVEL_PHASE_REWARD;
    (void)ravel_metrics_phase_begin(g->run.metrics, phase, NULL);
    ravel_status status = train_rollouts_score(rollouts, &scorer, &dropped, &why, err);
    if (!status) status = load_answers(g, rollouts, plain, err);
    (void)ravel_metrics_phase_end(g->run.metrics, phase, NULL);
    status = ravel_agree(g->leaders, status, err);
    return status ? status : check_dropped(g, rollouts->count, dropped, plain, &why, err);
}

/* Whether some answers of the group at i are right and others wrong; *end is behind the last of them. Rollouts are sorted
 * by group. Accuracy, and not the reward: a length rule or a part of an answer would make every group look different. */
static int group_is_useful(const train_rollouts *x, int64_t i, int64_t *end) {
    int differs = 0;
    TRAIN_ASSERT(i >= 0 && i < x->count);
    int64_t j = i + 1;
    for (; j < x->count && x->items[j].group == x->items[i].group; j++)
        differs |= x->items[j].accuracy != x->items[i].accuracy;
    *end = j;
    return differs;
}

static int64_t count_useful(const train_rollouts *x) {
    int64_t useful = 0;
    for (int64_t i = 0, end; i < x->count; i = end) useful += group_is_useful(x, i, &end);
    return useful;
}

/* The number of the `wanted`-th useful group over all ranks, or INT64_MAX where there are not as many: groups beyond it
 * are left out. */
static ravel_status last_group(train__grpo *g, int64_t wanted, int64_t *last, ravel_error *err) {
    const train_rollouts *x = &g->answers;
    int64_t n = 0, *all = NULL, total = 0;
    TRAIN_ASSERT(g->leaders && wanted > 0);
    size_t bytes = (size_t)(count_useful(x) + 1) * sizeof(int64_t);
    int64_t *own = train__alloc(NULL, bytes);
    ravel_status status = ravel_agree(g->leaders, own ? RAVEL_OK : train__no_memory(err, bytes, "groups"), err);
    *last = INT64_MAX;
    if (!own) return status;
    for (int64_t i = 0, end; !status && i < x->count; i = end)
        if (group_is_useful(x, i, &end)) own[n++] = x->items[i].group;
    if (!status) status = train_groups_gather(g->leaders, own, n, &all, &total, err);
    TRAIN_ASSERT(status || total >= n);
    if (!status && all && total > wanted) *last = all[wanted - 1];
    train__release(NULL, all, (size_t)total * sizeof *all);
    train__release(NULL, own, bytes);
    return status;
}

/* Keeps the useful groups up to `last`. */
static ravel_status keep_useful(train__grpo *g, int64_t last, ravel_error *err) {
    train_rollouts *x = &g->answers;
    int64_t kept = 0;
    for (int64_t i = 0, end; i < x->count; i = end)
        if (group_is_useful(x, i, &end) && x->items[i].group <= last)
            for (int64_t j = i; j < end; j++) x->items[kept++] = x->items[j];
    TRAIN_ASSERT(kept <= x->count);
    x->count = kept;
    return score(g, &g->answers, 0, err);
}

static ravel_status copy_rollouts(const train_rollouts *from, train_rollouts *to, ravel_error *err) {
    train_rollouts_clear(to);
    return train_rollouts_take(to, from, 1, 0, err);
}

/* Response tokens: everything that was generated counts, also what is left out later. */
static void count_tokens(train__grpo *g, const train_rollouts *rollouts) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < rollouts->count; i++) tokens += rollouts->items[i].length - rollouts->items[i].prompt;
    TRAIN_ASSERT(tokens >= 0);
    (void)ravel_metrics_count(g->run.metrics, RAVEL_METRIC_ROLLOUT_TOKENS, tokens);
}

/* DAPO's dynamic sampling: more prompts until enough groups have right and wrong answers, a few rounds at most. Useful
 * groups are kept. */
static ravel_status sample_dynamically(train__grpo *g, ravel_error *err) {
    const train_grpo_options *o = &g->config->grpo;
    ravel_status status = RAVEL_OK;
    for (int32_t round = 0; !status && round < o->dynamic_rounds; round++) {
        int64_t useful = count_useful(&g->answers);
        status = ravel_comm_allreduce(g->leaders, &useful, &useful, 1, RAVEL_I64, RAVEL_SUM, err);
        if (status || useful >= o->prompts) break;
        train_order order = {.kind = TRAIN_ORDER_GENERATE, .batch = g->run.state.batch, .group_size = o->group_size};
        (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_ROLLOUT, NULL);
        status = train__grpo_send(g, order, g->run.state.question, o->prompts, err);
        g->run.state.question += o->prompts;
        train_rollouts_clear(&g->more);
        if (!status) status = receive_answers(g, g->run.state.batch, &g->more, err);
        (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_ROLLOUT, NULL);
        if (!status) count_tokens(g, &g->more);
        if (!status) status = ravel_agree(g->leaders, train_rollouts_take(&g->answers, &g->more, 1, 0, err), err);
        if (!status) status = score(g, &g->answers, 0, err);
    }
    int64_t last = INT64_MAX;
    if (!status) status = last_group(g, o->prompts, &last, err);
    return status ? status : keep_useful(g, last, err);
}

static ravel_status receive_waiting(train__grpo *g, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (g->have_waiting) return RAVEL_OK;
    TRAIN_ASSERT(g->waiting_batch >= 0);
    train_rollouts_clear(&g->waiting);
    if (g->leaders) status = receive_answers(g, g->waiting_batch, &g->waiting, err);
    if (!status) g->have_waiting = 1;
    return status;
}

/* A generator takes no order while it still has answers to hand over. */
ravel_status train__grpo_drain(train__grpo *g, ravel_error *err) {
    if (g->waiting_batch < 0) return RAVEL_OK;
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_ROLLOUT, NULL);
    ravel_status status = receive_waiting(g, err);
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_ROLLOUT, NULL);
    return status;
}

/* On a leader: scores the answers and, where that is wanted, asks for more. */
static ravel_status lead(train__grpo *g, ravel_error *err) {
    count_tokens(g, &g->answers);
    ravel_status status = g->config->grpo.async ? copy_rollouts(&g->answers, &g->kept, err) : RAVEL_OK;
    status = ravel_agree(g->leaders, status, err);
    if (!status) status = score(g, &g->answers, 0, err);
    if (!status) train__grpo_show_sample(g);
    if (!status && g->config->grpo.dynamic_sampling) status = sample_dynamically(g, err);
    return status;
}

/* The scored answers of a leader to the ranks that learn from them too. */
static ravel_status share(train__grpo *g, int plain, ravel_error *err) {
    TRAIN_ASSERT(g->replica);
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_ROLLOUT, NULL);
    ravel_status status = train_rollouts_broadcast(g->replica, &g->answers, err);
    if (!status && !g->leaders) status = load_answers(g, &g->answers, plain, err);
    status = ravel_agree(g->trainers, status, err);
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_ROLLOUT, NULL);
    return status;
}

ravel_status train__grpo_collect(train__grpo *g, ravel_error *err) {
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_ROLLOUT, NULL);
    ravel_status status = receive_waiting(g, err);
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_ROLLOUT, NULL);
    if (status) return status;
    train_rollouts swap = g->answers;
    TRAIN_ASSERT(g->have_waiting);
    g->answers = g->waiting;
    g->waiting = swap;
    g->have_waiting = 0;
    g->kept_batch = g->config->grpo.async ? g->waiting_batch : -1;
    g->waiting_batch = -1;
    if (g->leaders) status = lead(g, err);
    status = ravel_agree(g->trainers, status, err);
    return status ? status : share(g, 0, err);
}

/* On a leader: the greedy answers to `count` questions, and their rewards' sum and number. */
static ravel_status ask_greedily(train__grpo *g, int64_t count, double *sums, ravel_error *err) {
    train_order order = {.kind = TRAIN_ORDER_GENERATE, .batch = EVAL_BATCH, .group_size = 1, .greedy = 1};
    ravel_status status = train__grpo_send(g, order, TRAIN_EVAL_FIRST, count, err);
    train_rollouts_clear(&g->answers);
    if (!status) status = receive_answers(g, EVAL_BATCH, &g->answers, err);
    if (!status) status = score(g, &g->answers, 1, err);
    for (int64_t i = 0; !status && i < g->batch.count; i++, sums[1] += 1) sums[0] += g->batch.rewards[i];
    return status;
}

ravel_status train__grpo_evaluate(train__grpo *g, double *reward, ravel_error *err) {
    int64_t count = train_prompts_eval_count(g->prompts, g->config->grpo.eval_prompts);
    double sums[2] = {0, 0};
    *reward = NAN;
    if (count == 0) return RAVEL_OK;
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_EVAL, NULL);
    ravel_status status = train__grpo_drain(g, err);
    if (!status && g->leaders) status = ask_greedily(g, count, sums, err);
    status = ravel_agree(g->trainers, status, err);
    if (!status) status = ravel_comm_allreduce(g->trainers, sums, sums, 2, RAVEL_F64, RAVEL_SUM, err);
    if (!status && sums[1] > 0) {
        *reward = sums[0] / sums[1];
        (void)ravel_metrics_add(g->run.metrics, RAVEL_METRIC_EVAL_REWARD, *reward, 1);
        train_run_note_eval(&g->run, *reward, 1);
    }
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_EVAL, NULL);
    return status;
}

/* ---- checkpoints ---------------------------------------------------------------------------------------- */

static const char waiting_name[] = "rollouts.safetensors";

/* With an update: what waits are the answers to the next batch, if they are here. */
static void count_batch_as_done(train__grpo *g) {
    train_state *s = &g->run.state;
    s->batch = g->boundary.batch + 1;
    s->version = train__max(s->version, g->boundary.version + 1);
    if (g->waiting_batch <= g->boundary.batch || g->have_waiting) return;
    s->question = g->ordered_from;
    g->waiting_batch = -1;
    if (g->rank == 0)
        train_log(g->run.hooks.logger, RAVEL_LOG_WARN,
                  "the answers that were being generated are lost: a resumed run asks the same questions again, with "
                  "newer weights");
}

void train__grpo_step_back(train__grpo *g) {
    int64_t updates = g->run.state.step - g->boundary.step;
    TRAIN_ASSERT(updates >= 0 && !g->stepped_back);
    g->stepped_back = 1;
    if (updates > 0) {
        count_batch_as_done(g);
        return;
    }
    train_rollouts swap = g->waiting;
    g->run.state = g->boundary;
    g->waiting = g->kept;
    g->kept = swap;
    g->waiting_batch = g->kept_batch == g->boundary.batch ? g->kept_batch : -1;
}

ravel_status train__grpo_settle(void *user, ravel_error *err) {
    train__grpo *g = user;
    int last = g->update + 1 == g->config->grpo.updates || g->run.state.step + 1 == g->run.steps;
    return last ? train__grpo_drain(g, err) : RAVEL_OK;
}

ravel_status train__grpo_gather_waiting(void *user, ravel_error *err) {
    train__grpo *g = user;
    ravel_status status = g->stepped_back ? RAVEL_OK : train__grpo_drain(g, err);
    train_rollouts_clear(&g->gathered);
    if (status || g->waiting_batch < 0 || !g->leaders) return status;
    if (g->rank != 0) return train_rollouts_send(g->leaders, 0, &g->waiting, err);
    status = copy_rollouts(&g->waiting, &g->gathered, err);
    for (int32_t r = 1; r < ravel_comm_size(g->leaders) && !status; r++)
        status = train_rollouts_receive(g->leaders, r, &g->gathered, err);
    return status;
}

ravel_status train__grpo_write_waiting(void *user, const char *folder, ravel_error *err) {
    train__grpo *g = user;
    char path[TRAIN_PATH], number[32];
    if (g->waiting_batch < 0) return RAVEL_OK;
    const train_rollouts *p = &g->gathered;
    TRAIN_ASSERT(g->rank == 0);
    const int64_t words = sizeof(train_rollout) / sizeof(int64_t), items[] = {p->count, words}, tokens[] = {p->used};
    const ravel_safetensor tensors[] = {
        {.name = "items", .dtype = RAVEL_I64, .rank = 2, .dims = items, .data = p->items},
        {.name = "tokens", .dtype = RAVEL_I32, .rank = 1, .dims = tokens, .data = p->tokens},
        {.name = "logprobs", .dtype = RAVEL_F32, .rank = 1, .dims = tokens, .data = p->logprobs}};
    ravel_status status = train_path_join(path, folder, waiting_name, err);
    (void)snprintf(number, sizeof number, "%lld", (long long)g->waiting_batch);
    const char *metadata[] = {"batch", number};
    ravel_safetensors_options options;
    ravel_safetensors_options_default(&options);
    options.durability = RAVEL_IN_PLACE;
    return status ? status : ravel_safetensors_write(path, tensors, 3, metadata, 1, &options, err);
}

static int is_array(const ravel_safetensor *t, int32_t dtype, int32_t rank) {
    return t->dtype == dtype && t->rank == rank && t->aligned;
}

/* The arrays of a file, which `x` then points into, and their batch. */
static ravel_status find_arrays(const ravel_safetensors *file, train_rollouts *x, int64_t *batch, ravel_error *err) {
    const int64_t words = sizeof(train_rollout) / sizeof(int64_t);
    const char *number = ravel_safetensors_metadata(file, "batch");
    const ravel_safetensor *items, *tokens, *logprobs;
    ravel_status status = ravel_safetensors_get(file, "items", -1, NULL, &items, err);
    if (!status) status = ravel_safetensors_get(file, "tokens", -1, NULL, &tokens, err);
    if (!status) status = ravel_safetensors_get(file, "logprobs", -1, NULL, &logprobs, err);
    if (status) return status;
    if (!number || !is_array(items, RAVEL_I64, 2) || items->dims[1] != words || !is_array(tokens, RAVEL_I32, 1) ||
        !is_array(logprobs, RAVEL_F32, 1) || logprobs->count != tokens->count)
        return ravel_error_set(
            err, RAVEL_E_DATA,
            "it must hold a batch, items as i64 [n, %lld], tokens as i32 and as many logprobs as f32",
            (long long)words);
    *x = (train_rollouts){.items = (train_rollout *)items->data,
                          .tokens = (int32_t *)tokens->data,
                          .logprobs = (float *)logprobs->data,
                          .count = items->dims[0],
                          .used = tokens->count};
    *batch = strtoll(number, NULL, 10);
    return RAVEL_OK;
}

static ravel_status check_arrays(const train_rollouts *x, int64_t vocab, ravel_error *err) {
    int64_t bad = train_rollouts_outside(x->items, x->count, x->used);
    if (bad >= 0)
        return ravel_error_set(err, RAVEL_E_DATA, "rollout %lld is outside of the %lld tokens of the file",
                               (long long)bad, (long long)x->used);
    for (int64_t i = 0; i < x->used; i++)
        if (x->tokens[i] < 0 || x->tokens[i] >= vocab)
            return ravel_error_set(err, RAVEL_E_DATA, "token %lld is %d; it must be from 0 to %lld", (long long)i,
                                   x->tokens[i], (long long)vocab - 1);
    return RAVEL_OK;
}

/* A leader takes its groups; any number of leaders may have written them. */
ravel_status train__grpo_read_waiting(train__grpo *g, const char *folder, int64_t vocab, ravel_error *err) {
    char path[TRAIN_PATH];
    ravel_safetensors *file = NULL;
    train_rollouts all = {0};
    ravel_status status = train_path_join(path, folder, waiting_name, err);
    if (status || !train_path_exists(path)) return status; /* nothing waited */
    status = ravel_safetensors_open(path, NULL, &file, err);
    if (status) return status;
    status = find_arrays(file, &all, &g->waiting_batch, err);
    if (!status) status = check_arrays(&all, vocab, err);
    if (status) ravel_error_prefix(err, "%s", path);
    train_rollouts_clear(&g->waiting);
    if (!status && g->leaders)
        status = train_rollouts_take(&g->waiting, &all, ravel_comm_size(g->leaders), ravel_comm_rank(g->leaders), err);
    g->have_waiting = !status;
    ravel_safetensors_free(file);
    return status;
}
