/* A trainer rank's exchange with the generators: orders, answers, evaluation and refit. */
#include "train/run/grpo/internal.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include "base/json.h"
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
    RAVEL_ASSERT(tp >= 1 && g->generators % tp == 0 && first >= 0 && count >= 0);
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; g->rank == 0 && i < g->generators && !status; i++) {
        train_rollouts_clear(&g->asking);
        for (int64_t q = i / tp; q < count && !status; q += g->generators / tp)
            status = train_prompts_add(g->prompts, first + q, &g->asking, err);
        if (!status) status = train_order_send(g->world, g->count + i, &order, &g->asking, err);
    }
    return status;
}

static int64_t *asked_from(train__grpo *g, int64_t batch) {
    RAVEL_ASSERT(batch >= 0);
    return &g->asked_from[batch % (int64_t)(sizeof g->asked_from / sizeof *g->asked_from)];
}

/* The newest batch whose questions may be begun while `due` is waited for: its answers are learnt `async` versions
 * later at most, and it belongs to this run. */
static int64_t newest_admitted(const train__grpo *g, int64_t due) {
    const train_state *s = &g->run.state;
    int64_t left = g->run.steps - s->step, updates = g->config->grpo.updates;
    int64_t last = s->batch + (left + updates - 1) / updates - 1;
    return train__min(due + train__max(g->config->grpo.async, 1) - 1, train__max(last, due));
}

/* Whether answers may be given up after a signal: the same weights give them again after a resume, or there is nothing
 * to resume. Else they are waited for, because updates that run beside them cannot be taken back, or because several
 * weights drew them. */
static int may_stop(const train__grpo *g, int64_t batch) {
    const train_grpo_options *o = &g->config->grpo;
    if (batch == g->run.state.batch) return o->async <= 1 || g->run.state.step == 0;
    return o->async == 1 && o->updates == 1;
}

/* Batches that the bound allows now are admitted; `batch` is due. */
ravel_status train__grpo_order(train__grpo *g, int64_t batch, ravel_error *err) {
    train_order order = {.kind = TRAIN_ORDER_GENERATE,
                         .due = batch,
                         .group_size = g->config->grpo.group_size,
                         .may_stop = may_stop(g, batch)};
    int64_t last = newest_admitted(g, batch), prompts = g->config->grpo.prompts;
    ravel_status status = RAVEL_OK;
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_ROLLOUT, NULL);
    if (last <= g->admitted) status = train__grpo_send(g, order, 0, 0, err);
    while (!status && g->admitted < last) {
        order.batch = ++g->admitted;
        order.due = g->admitted == last ? batch : TRAIN_NOTHING_DUE;
        *asked_from(g, g->admitted) = g->run.state.question;
        status = train__grpo_send(g, order, g->run.state.question, prompts, err);
        g->run.state.question += prompts;
    }
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_ROLLOUT, NULL);
    g->waiting_batch = batch;
    g->have_waiting = 0;
    return status;
}

/* ---- answers -------------------------------------------------------------------------------------------- */

static ravel_status receive_answers(train__grpo *g, int64_t batch, train_rollouts *answers, ravel_error *err) {
    train_order of = {0};
    RAVEL_ASSERT(g->leaders && batch >= EVAL_BATCH);
    ravel_status status =
        train_answers_receive(g->world, g->count, g->config->grpo.generator_tp, batch, answers, &of, err);
    g->waited += of.waited;
    if (status || !of.stopped) return status;
    return ravel_error_set(err, RAVEL_E_STATE, "stopped by a signal while answers were being generated");
}

/* Fails on all ranks if too many answers of the batch could not be scored. */
static ravel_status check_dropped(train__grpo *g, int64_t kept, int64_t dropped, int plain, const ravel_error *why,
                                  ravel_error *err) {
    int64_t counts[] = {kept, dropped}, total;
    RAVEL_ASSERT(g->leaders && kept >= 0 && dropped >= 0);
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
    RAVEL_ASSERT(rollouts->count >= 0 && g->run.state.version >= 0);
    ravel_status status = train_experience_load(&g->batch, rollouts, g->run.state.version, err);
    train_scoring scoring = g->config->grpo.scoring;
    scoring.max_tokens = train_config_rollout_tokens(g->config);
    if (!status && !plain) train_experience_length_rules(&g->batch, &scoring, &g->config->policy);
    return status;
}

/* The parts of --reward, of what was scored now. */
static void add_parts(train__grpo *g, const train_mix_sums *sums) {
    double n = (double)sums->count;
    if (!g->config->grpo.reward || sums->count == 0) return;
    for (int32_t i = 0; i < g->mix.count; i++)
        (void)ravel_metrics_add(g->run.metrics, TRAIN_METRIC_REWARD_PARTS + i, sums->values[i] / n, n);
}

/* On a leader. Scores what has no reward yet, and lays the batch out; `plain`: right or wrong, without length rules
 * (evaluation). */
static ravel_status score(train__grpo *g, train_rollouts *rollouts, int plain, ravel_error *err) {
    const train_grpo_options *o = &g->config->grpo;
    int64_t dropped = 0;
    ravel_error why = RAVEL_ERROR_INIT;
    train_mix_sums sums = {.count = 0};
    train_scorer scorer = {.prompts = g->prompts,
                           .text = g->text,
                           .mix = &g->mix,
                           .sums = &sums,
                           .max_tokens = o->scoring.max_tokens,
                           .command = g->command,
                           .env = train_config_has_env(g->config),
                           .partial = plain ? 0 : o->scoring.partial};
    ravel_phase phase = plain ? RAVEL_PHASE_EVAL : RAVEL_PHASE_REWARD;
    (void)ravel_metrics_phase_begin(g->run.metrics, phase, NULL);
    ravel_status status = train_rollouts_score(rollouts, &scorer, &dropped, &why, err);
    if (!status && dropped && g->run.hooks.stop && *g->run.hooks.stop) /* unfinished because of it */
        status = ravel_error_set(err, RAVEL_E_STATE, "stopped by a signal while waiting for rollouts");
    if (!status && !plain) add_parts(g, &sums);
    if (!status) status = load_answers(g, rollouts, plain, err);
    (void)ravel_metrics_phase_end(g->run.metrics, phase, NULL);
    status = ravel_agree(g->leaders, status, err);
    return status ? status : check_dropped(g, rollouts->count, dropped, plain, &why, err);
}

/* Whether some answers of the group at i are right and others wrong; *end is behind the last of them. Rollouts are
 * sorted by group. Accuracy, and not the reward: a length rule or a part of an answer would make every group look
 * different. */
static int group_is_useful(const train_rollouts *x, int64_t i, int64_t *end) {
    int differs = 0;
    RAVEL_ASSERT(i >= 0 && i < x->count);
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

/* The number of the `wanted`-th useful group over all ranks, or INT64_MAX if there are not as many: groups beyond it
 * are left out. */
static ravel_status last_group(train__grpo *g, int64_t wanted, int64_t *last, ravel_error *err) {
    const train_rollouts *x = &g->answers;
    int64_t n = 0, *all = NULL, total = 0;
    RAVEL_ASSERT(g->leaders && wanted > 0);
    size_t bytes = (size_t)(count_useful(x) + 1) * sizeof(int64_t);
    int64_t *own = ravel__alloc(NULL, bytes);
    ravel_status status = ravel_agree(g->leaders, own ? RAVEL_OK : ravel__no_memory(err, bytes, "groups"), err);
    *last = INT64_MAX;
    if (!own) return status;
    for (int64_t i = 0, end; !status && i < x->count; i = end)
        if (group_is_useful(x, i, &end)) own[n++] = x->items[i].group;
    if (!status) status = train_groups_gather(g->leaders, own, n, &all, &total, err);
    RAVEL_ASSERT(status || total >= n);
    if (!status && all && total > wanted) *last = all[wanted - 1];
    ravel__release(NULL, all, (size_t)total * sizeof *all);
    ravel__release(NULL, own, bytes);
    return status;
}

/* Keeps the useful groups up to `last`. */
static ravel_status keep_useful(train__grpo *g, int64_t last, ravel_error *err) {
    train_rollouts *x = &g->answers;
    int64_t kept = 0;
    for (int64_t i = 0, end; i < x->count; i = end)
        if (group_is_useful(x, i, &end) && x->items[i].group <= last)
            for (int64_t j = i; j < end; j++) x->items[kept++] = x->items[j];
    RAVEL_ASSERT(kept <= x->count);
    x->count = kept;
    return score(g, &g->answers, 0, err);
}

static ravel_status copy_rollouts(const train_rollouts *from, train_rollouts *to, ravel_error *err) {
    train_rollouts_clear(to);
    return train_rollouts_take(to, from, 1, 0, err);
}

static ravel_status copy_in_order(const train_rollouts *from, train_rollouts *to, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    train_rollouts_clear(to);
    for (int64_t i = 0; i < from->count && !status; i++) {
        const train_rollout *x = &from->items[i];
        status = train_rollouts_copy(to, from, x, err);
    }
    return status;
}

/* Response tokens: everything that was generated counts, also what is left out later. */
static void count_tokens(train__grpo *g, const train_rollouts *rollouts) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < rollouts->count; i++) tokens += train_rollout_drawn(rollouts, &rollouts->items[i]);
    RAVEL_ASSERT(tokens >= 0);
    g->drawn += tokens;
    (void)ravel_metrics_count(g->run.metrics, RAVEL_METRIC_ROLLOUT_TOKENS, tokens);
}

/* What environments took. */
static void count_turns(train__grpo *g, const train_rollouts *x) {
    double turns = 0, given = 0, differs = 0, retried = 0, wasted = 0, drawn = 0, n = 0;
    if (!train_config_has_env(g->config) || x->count == 0) return;
    for (int64_t i = 0; i < x->count; i++) {
        const train_rollout *r = &x->items[i];
        n += r->part == 0;
        turns += (double)r->turns;
        drawn += (double)train_rollout_drawn(x, r);
        given += (double)(r->length - r->prompt);
        wasted += (double)r->wasted;
        differs += (double)r->differs;
        retried += r->retried > 0;
    }
    (void)ravel_metrics_add(g->run.metrics, TRAIN_METRIC_ENV_TURNS, turns / n, n);
    (void)ravel_metrics_add(g->run.metrics, TRAIN_METRIC_ENV_TOKENS, (given - drawn) / n, n);
    (void)ravel_metrics_add(g->run.metrics, TRAIN_METRIC_ENV_RETRIED, retried / n, n);
    if (wasted + drawn > 0)
        (void)ravel_metrics_add(g->run.metrics, TRAIN_METRIC_ENV_WASTED, wasted / (wasted + drawn), wasted + drawn);
    if (turns > 0) (void)ravel_metrics_add(g->run.metrics, TRAIN_METRIC_ENV_DIFFERS, differs / turns, turns);
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
        int64_t batch = g->run.state.batch;
        train_order order = {TRAIN_ORDER_GENERATE, .batch = batch, .due = batch, .group_size = o->group_size,
                             .may_stop = may_stop(g, batch)};
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
    RAVEL_ASSERT(g->waiting_batch >= 0);
    train_rollouts_clear(&g->waiting);
    if (g->leaders) status = receive_answers(g, g->waiting_batch, &g->waiting, err);
    status = ravel_agree(g->trainers, status, err);
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

/* On a leader: scores the answers and, if that is wanted, asks for more. */
static ravel_status lead(train__grpo *g, ravel_error *err) {
    g->drawn = 0;
    count_tokens(g, &g->answers);
    count_turns(g, &g->answers);
    ravel_status status = g->config->grpo.async ? copy_rollouts(&g->answers, &g->kept, err) : RAVEL_OK;
    status = ravel_agree(g->leaders, status, err);
    if (!status) status = score(g, &g->answers, 0, err);
    if (!status) train__grpo_show_sample(g);
    if (!status && g->config->grpo.dynamic_sampling) status = sample_dynamically(g, err);
    return status;
}

/* The scored answers of a leader to the ranks that learn from them too. */
static ravel_status share(train__grpo *g, int plain, ravel_error *err) {
    RAVEL_ASSERT(g->replica);
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
    RAVEL_ASSERT(g->have_waiting);
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
    train_order order = {TRAIN_ORDER_GENERATE, .batch = EVAL_BATCH, .due = EVAL_BATCH,
                         .group_size = 1,      .greedy = 1,         .may_stop = 1};
    ravel_status status = train__grpo_send(g, order, TRAIN_EVAL_FIRST, count, err);
    train_rollouts_clear(&g->answers);
    if (!status) status = receive_answers(g, EVAL_BATCH, &g->answers, err);
    if (!status) status = score(g, &g->answers, 1, err);
    for (int64_t i = 0; !status && i < g->batch.count; i++)
        if (g->batch.last[i])
            sums[0] += g->batch.rewards[i], sums[1] += 1; /* a rollout of several samples counts once */
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
    if (status == RAVEL_E_STATE) { /* stopped by a signal */
        ravel_error_clear(err);
        status = RAVEL_OK;
        g->run.stopped = 1;
    }
    if (!status) status = ravel_comm_allreduce(g->trainers, sums, sums, 2, RAVEL_F64, RAVEL_SUM, err);
    if (!status && sums[1] > 0 && !g->run.stopped) {
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
    if (g->waiting_batch > g->boundary.batch && !g->have_waiting) g->waiting_batch = -1;
}

/* Batches after `have` are asked for again, from question `from` on. */
static void ask_again(train__grpo *g, int64_t have, int64_t from, int lost) {
    g->run.state.question = from;
    g->admitted = have;
    if (lost && g->rank == 0)
        ravel__log(g->run.hooks.logger, RAVEL_LOG_WARN,
                   "the answers that were being generated are lost: a resumed run asks the same questions again, with "
                   "newer weights");
}

void train__grpo_step_back(train__grpo *g) {
    int64_t updates = g->run.state.step - g->boundary.step;
    RAVEL_ASSERT(updates >= 0 && !g->stepped_back);
    g->stepped_back = 1;
    if (updates > 0) {
        count_batch_as_done(g);
        int64_t done = g->waiting_batch < 0 ? g->boundary.batch : g->waiting_batch;
        if (g->admitted > done) ask_again(g, done, *asked_from(g, done + 1), 1);
        return;
    }
    train_rollouts swap = g->waiting;
    g->run.state = g->boundary;
    g->waiting = g->kept;
    g->kept = swap;
    g->waiting_batch = g->kept_batch == g->boundary.batch ? g->kept_batch : -1;
    int64_t have = g->waiting_batch < 0 ? g->boundary.batch - 1 : g->waiting_batch, from = g->boundary.question;
    int lost = g->boundary_admitted > have; /* else the same weights give the same answers again */
    if (lost) from = *asked_from(g, have + 1);
    if (g->boundary_admitted < have) from = *asked_from(g, have) + g->config->grpo.prompts;
    ask_again(g, have, from, lost);
}

ravel_status train__grpo_settle(void *user, ravel_error *err) {
    train__grpo *g = user;
    int last = g->update + 1 == g->config->grpo.updates || g->run.state.step + 1 == g->run.steps;
    return last ? train__grpo_drain(g, err) : RAVEL_OK;
}

/* What generators work on, on rank 0. They have no order now: what was due is here. */
static ravel_status gather_begun(train__grpo *g, ravel_error *err) {
    int32_t tp = g->config->grpo.generator_tp;
    train_rollouts_clear(&g->begun);
    if (g->rank != 0 || g->stepped_back || g->admitted <= g->waiting_batch) return RAVEL_OK;
    ravel_status status = train__grpo_send(g, (train_order){.kind = TRAIN_ORDER_KEEP}, 0, 0, err);
    for (int32_t i = 0; i < g->generators && !status; i += tp) {
        int64_t before = g->begun.count;
        status = train_rollouts_receive(g->world, g->count + i, &g->begun, err);
        for (int64_t k = before; k < g->begun.count && !status; k++) g->begun.items[k].generator = i / tp;
    }
    return status;
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
    return status ? status : gather_begun(g, err);
}

ravel_status train__grpo_return_begun(train__grpo *g, ravel_error *err) {
    const train_order order = {.kind = TRAIN_ORDER_RESTORE};
    int32_t tp = g->config->grpo.generator_tp, count = g->generators / tp;
    ravel_status status = RAVEL_OK;
    if (g->rank != 0 || g->begun.count == 0) return RAVEL_OK;
    for (int32_t i = 0; i < g->generators && !status; i++) {
        train_rollouts_clear(&g->asking);
        for (int64_t k = 0; k < g->begun.count && !status; k++) {
            const train_rollout *x = &g->begun.items[k];
            if (x->generator % count == i / tp) status = train_rollouts_copy(&g->asking, &g->begun, x, err);
        }
        if (!status) status = train_order_send(g->world, g->count + i, &order, &g->asking, err);
    }
    train_rollouts_clear(&g->begun);
    return status;
}

/* A list as four arrays, and a fifth with routes; `begun`: of what generators work on. */
enum { ARRAYS = 5, ROUTES = 4 };
static const char *const list_names[2][ARRAYS] = {
    {"items", "tokens", "logprobs", "versions", "routes"},
    {"begun_items", "begun_tokens", "begun_logprobs", "begun_versions", "begun_routes"}};
static const int32_t list_dtypes[ARRAYS] = {RAVEL_I64, RAVEL_I32, RAVEL_F32, RAVEL_I32, RAVEL_I16};
enum { WORDS = sizeof(train_rollout) / sizeof(int64_t) };

/* Returns how many there are. */
static int64_t list_arrays(const train_rollouts *p, int begun, int64_t dims[4], ravel_safetensor tensors[ARRAYS]) {
    dims[0] = p->count, dims[1] = WORDS, dims[2] = p->used, dims[3] = p->width;
    const void *data[] = {p->items, p->tokens, p->logprobs, p->versions, p->routes};
    int count = p->width && p->used ? ARRAYS : ROUTES;
    for (int i = 0; i < count; i++)
        tensors[i] = (ravel_safetensor){.name = list_names[begun][i],
                                        .dtype = list_dtypes[i],
                                        .rank = i == 0 || i == ROUTES ? 2 : 1,
                                        .dims = i ? dims + 2 : dims,
                                        .data = data[i]};
    return count;
}

ravel_status train__grpo_write_waiting(void *user, const char *folder, ravel_error *err) {
    train__grpo *g = user;
    char path[TRAIN_PATH], number[32];
    if (g->waiting_batch < 0) return RAVEL_OK;
    int64_t dims[2][4], from[TRAIN_ASYNC_MOST + 2], ahead = g->admitted - g->waiting_batch;
    ravel_safetensor tensors[2 * ARRAYS + 1];
    RAVEL_ASSERT(g->rank == 0 && ahead >= 0 && ahead <= TRAIN_ASYNC_MOST);
    int64_t count = list_arrays(&g->gathered, 0, dims[0], tensors);
    if (ahead) count += list_arrays(&g->begun, 1, dims[1], tensors + count);
    for (int64_t i = 0; i < ahead; i++) from[i] = *asked_from(g, g->waiting_batch + 1 + i);
    if (ahead)
        tensors[count++] =
            (ravel_safetensor){.name = "asked_from", .dtype = RAVEL_I64, .rank = 1, .dims = &ahead, .data = from};
    ravel_status status = train_path_join(path, folder, waiting_name, err);
    (void)snprintf(number, sizeof number, "%lld", (long long)g->waiting_batch);
    const char *metadata[] = {"batch", number};
    ravel_safetensors_options options;
    ravel_safetensors_options_default(&options);
    options.durability = RAVEL_IN_PLACE;
    return status ? status : ravel_safetensors_write(path, tensors, count, metadata, 1, &options, err);
}

static int is_array(const ravel_safetensor *t, int32_t dtype, int32_t rank) {
    return t->dtype == dtype && t->rank == rank && t->aligned;
}

/* A list of a file, which `x` then points into. */
static ravel_status find_list(const ravel_safetensors *file, int begun, train_rollouts *x, ravel_error *err) {
    const ravel_safetensor *t[ARRAYS];
    int good = 1;
    for (int i = 0; i < ROUTES; i++) {
        ravel_status status = ravel_safetensors_get(file, list_names[begun][i], -1, NULL, &t[i], err);
        if (status) return status;
        good = good && is_array(t[i], list_dtypes[i], i ? 1 : 2) && (i < 2 || t[i]->count == t[1]->count);
    }
    t[ROUTES] = ravel_safetensors_find(file, list_names[begun][ROUTES]);
    good = good && (!t[ROUTES] || (is_array(t[ROUTES], RAVEL_I16, 2) && t[ROUTES]->dims[0] == t[1]->count));
    if (!good || t[0]->dims[1] != WORDS)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "it must hold a batch, items as i64 [n, %d], tokens as i32, and as many logprobs as "
                               "f32, versions as i32 and, if there are, routes as i16",
                               (int)WORDS);
    *x = (train_rollouts){.items = (train_rollout *)t[0]->data,
                          .tokens = (int32_t *)t[1]->data,
                          .logprobs = (float *)t[2]->data,
                          .versions = (int32_t *)t[3]->data,
                          .routes = t[ROUTES] ? (int16_t *)t[ROUTES]->data : NULL,
                          .width = t[ROUTES] ? t[ROUTES]->dims[1] : 0,
                          .count = t[0]->dims[0],
                          .used = t[1]->count};
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

/* Generators take these as they are. */
static ravel_status check_begun(const train_rollouts *x, ravel_error *err) {
    for (int64_t i = 0; i < x->count; i++) {
        const train_rollout *r = &x->items[i];
        int asked = r->progress == TRAIN_ROLLOUT_ASKED && r->member < r->turns && r->turns <= 65536;
        int begun = r->progress == TRAIN_ROLLOUT_BEGUN && r->drawn >= 0 && r->drawn == r->length - r->prompt;
        if (r->prompt >= 1 && r->member >= 0 && r->generator >= 0 && r->batch >= 0 &&
            (r->progress == TRAIN_ROLLOUT_OVER || asked || begun))
            continue;
        return ravel_error_set(err, RAVEL_E_DATA, "rollout %lld that was begun is none", (long long)i);
    }
    return RAVEL_OK;
}

/* On every trainer the numbers; on rank 0 the rollouts, for the generators. */
static ravel_status read_begun(train__grpo *g, const ravel_safetensors *file, int64_t vocab, ravel_error *err) {
    const ravel_safetensor *from = ravel_safetensors_find(file, "asked_from");
    train_rollouts all = {0};
    g->admitted = g->waiting_batch;
    if (!from) return RAVEL_OK;
    if (!is_array(from, RAVEL_I64, 1) || from->count > TRAIN_ASYNC_MOST)
        return ravel_error_set(err, RAVEL_E_DATA, "asked_from must be i64 [up to %d]", (int)TRAIN_ASYNC_MOST);
    const int64_t *first = from->data;
    for (int64_t i = 0; i < from->count; i++) *asked_from(g, ++g->admitted) = first[i];
    ravel_status status = find_list(file, 1, &all, err);
    if (!status) status = check_arrays(&all, vocab, err);
    if (!status) status = check_begun(&all, err);
    if (status) return status;
    if (train_config_episodes(g->config)) return g->rank == 0 ? copy_in_order(&all, &g->begun, err) : RAVEL_OK;
    g->run.state.question = first[0]; /* --async was above 1, and generators of now take a batch at a time */
    g->admitted = g->waiting_batch;
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
    const char *number = ravel_safetensors_metadata(file, "batch");
    status = number ? find_list(file, 0, &all, err) : ravel_error_set(err, RAVEL_E_DATA, "it has no number of a batch");
    if (!status) status = check_arrays(&all, vocab, err);
    if (!status && number) g->waiting_batch = strtoll(number, NULL, 10);
    if (!status) status = read_begun(g, file, vocab, err);
    if (status) ravel_error_prefix(err, "%s", path);
    train_rollouts_clear(&g->waiting);
    if (!status && g->leaders)
        status = train_rollouts_take(&g->waiting, &all, ravel_comm_size(g->leaders), ravel_comm_rank(g->leaders), err);
    g->have_waiting = !status;
    ravel_safetensors_free(file);
    return status;
}
