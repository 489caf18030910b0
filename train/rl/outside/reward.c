#include "train/rl/outside/reward.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct train_reward {
    train_peer *peer;
    const volatile int *stop; /* NULL, or not 0: give up */
    const ravel_logger *logger;
    int32_t retries;
    train_mix mix;
};

/* ---- lines to the command ------------------------------------------------------------------------------- */

static void put_text(train_out *o, const char *key, const char *text, size_t bytes) {
    train_out_print(o, ", \"%s\": ", key);
    train_out_quote(o, text, bytes);
}

static ravel_status send_line(const train_reward *r, int64_t id, const train_rollout_text *x, ravel_error *err) {
    train_out o = {0};
    train_out_print(&o, "{\"id\": %lld", (long long)id);
    put_text(&o, "prompt", x->prompt, x->prompt_bytes);
    put_text(&o, "response", x->response, x->response_bytes);
    if (x->answer) put_text(&o, "answer", x->answer, x->answer_bytes);
    train_out_puts(&o, ", \"prompt_ids\": ");
    train_out_tokens(&o, x->prompt_ids, x->prompt_tokens);
    train_out_puts(&o, ", \"response_ids\": ");
    train_out_tokens(&o, x->response_ids, x->tokens);
    train_out_print(&o, ", \"tokens\": %lld, \"ended\": %s", (long long)x->tokens, x->ended ? "true" : "false");
    if (x->row) train_out_puts(&o, ", \"row\": ");
    if (x->row) train_out_puts(&o, x->row);
    train_out_puts(&o, "}\n");
    ravel_status status = o.failed ? ravel__no_memory(err, o.used, "a line to the reward command")
                                   : train_peer_send(r->peer, id, o.data, o.used, 0, err);
    train_out_free(&o);
    return status;
}

/* ---- a batch -------------------------------------------------------------------------------------------- */

/* The command's parts of a line; must[200]: what is missing. */
static int read_values(const train_reward *r, const train_reply *a, double *values, char *must) {
    const ravel__json_node *named = ravel__json_get(a->doc, a->root, "rewards");
    for (int32_t i = 0; i < r->mix.count; i++) {
        const train_mix_part *part = &r->mix.parts[i];
        int plain = part->kind == TRAIN_MIX_COMMAND;
        values[i] = 0;
        if (!train_mix_commanded(&r->mix, i)) continue;
        const ravel__json_node *at = plain   ? ravel__json_get(a->doc, a->root, "reward")
                                     : named ? ravel__json_get(a->doc, named, part->name)
                                             : NULL;
        if (ravel__json_real(at, &values[i]) && isfinite(values[i])) continue;
        (void)snprintf(must, 200,
                       plain ? "expected {\"id\": ..., \"reward\": a finite number}"
                             : "expected {\"id\": ..., \"rewards\": {\"%s\": a finite number}}",
                       part->name);
        return 0;
    }
    return 1;
}

static void take_score(const train_reward *r, train_reply *a, train_score *score) {
    char must[200];
    train_score got = {0};
    if (!read_values(r, a, got.values, must)) {
        train_peer_wrong(r->peer, a, must);
        return;
    }
    got.accuracy = got.reward = train_mix_sum(&r->mix, got.values);
    got.judged = ravel__json_real(ravel__json_get(a->doc, a->root, "accuracy"), &got.accuracy);
    *score = got;
}

/* A line that was lost is sent again, as often as its tries allow. */
static ravel_status lose(const train_reward *r, const train_reply *a, const train_rollout_text *rollouts,
                         int32_t *tried, int64_t *left, ravel_error *why, ravel_error *err) {
    if (strcmp(why->message, a->why) != 0) ravel__log(r->logger, RAVEL_LOG_WARN, "%s", a->why);
    (void)ravel_error_set(why, a->status, "%s", a->why);
    tried[a->id] += a->cost;
    if (tried[a->id] < TRAIN_TRY * (r->retries + 1)) return send_line(r, a->id, &rollouts[a->id], err);
    --*left;
    return RAVEL_OK;
}

static ravel_status converse(const train_reward *r, const train_rollout_text *rollouts, train_score *scores,
                             int32_t *tried, int64_t left, ravel_error *why, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    train_reply a;
    while (left > 0 && !status) {
        train_peer_wait(r->peer, 0.2);
        if (r->stop && *r->stop)
            return ravel_error_set(err, RAVEL_E_STATE, "stopped by a signal while waiting for rewards");
        while (!status && train_peer_take(r->peer, &a)) {
            if (!a.status) take_score(r, &a, &scores[a.id]);
            left -= !a.status;
            if (a.status) status = lose(r, &a, rollouts, tried, &left, why, err);
        }
        ravel_error gone = RAVEL_ERROR_INIT;
        if (status || !train_peer_status(r->peer, &gone)) continue;
        *why = gone;
        break;
    }
    return status;
}

ravel_status train_reward_score(train_reward *r, const train_rollout_text *rollouts, int64_t count, train_score *scores,
                                ravel_error *why, ravel_error *err) {
    int64_t left = 0;
    ravel_status status = RAVEL_OK;
    int32_t *tried = calloc((size_t)count + 1, sizeof *tried);
    if (!tried) return ravel__no_memory(err, (size_t)count * sizeof *tried, "rewards");
    for (int64_t i = 0; i < count && !status; i++) {
        if (!isnan(scores[i].reward)) continue;
        status = send_line(r, i, &rollouts[i], err);
        left++;
    }
    if (!status) status = converse(r, rollouts, scores, tried, left, why, err);
    train_peer_clear(r->peer); /* what nobody waits for */
    free(tried);
    return status;
}

ravel_status train_reward_create(const train_peer_options *options, int32_t retries, const volatile int *stop,
                                 train_reward **reward, ravel_error *err) {
    train_peer_options own = *options;
    train_reward *r = calloc(1, sizeof *r);
    if (!r) return ravel__no_memory(err, sizeof *r, "the reward command");
    own.what = "reward command";
    *r = (train_reward){.stop = stop, .logger = own.logger, .retries = retries};
    r->mix = (train_mix){{{"command", TRAIN_MIX_COMMAND, 1}}, 1};
    ravel_status status = train_peer_open(&own, &r->peer, err);
    if (status) {
        free(r);
        return status;
    }
    *reward = r;
    return RAVEL_OK;
}

void train_reward_set_mix(train_reward *r, const train_mix *mix) {
    RAVEL_ASSERT(mix->count > 0 && mix->count <= TRAIN_MIX_PARTS);
    r->mix = *mix;
}

void train_reward_free(train_reward *r) {
    if (!r) return;
    train_peer_free(r->peer);
    free(r);
}
