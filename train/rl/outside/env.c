#include "train/rl/outside/env.h"

#include "base/assert.h"
#include "base/memory.h"

#include <math.h>
#include <string.h>

/* ---- lines to the environment --------------------------------------------------------------------------- */

static ravel_status send_line(train_peer *env, int64_t id, train_out *line, int alone, ravel_error *err) {
    train_out_puts(line, "}\n");
    ravel_status status = line->failed ? ravel__no_memory(err, line->used, "a line to an environment")
                                       : train_peer_send(env, id, line->data, line->used, alone, err);
    train_out_free(line);
    return status;
}

ravel_status train_env_start(train_peer *env, int64_t id, int64_t seed, const char *row, int alone, ravel_error *err) {
    train_out line = {0};
    train_out_print(&line, "{\"id\": %lld, \"event\": \"start\", \"seed\": %lld", (long long)id, (long long)seed);
    if (row) train_out_puts(&line, ", \"row\": ");
    if (row) train_out_puts(&line, row);
    return send_line(env, id, &line, alone, err);
}

ravel_status train_env_step(train_peer *env, int64_t id, const train_env_action *a, ravel_error *err) {
    train_out line = {0};
    train_out_print(&line, "{\"id\": %lld, \"event\": \"step\", \"action\": ", (long long)id);
    train_out_quote(&line, a->text, a->bytes);
    train_out_puts(&line, ", \"ids\": ");
    train_out_tokens(&line, a->ids, a->tokens);
    train_out_print(&line, ", \"ended\": %s, \"last\": %s", a->ended ? "true" : "false", a->last ? "true" : "false");
    return send_line(env, id, &line, 0, err);
}

void train_env_end(train_peer *env, int64_t id, const char *reason) {
    train_out line = {0};
    train_out_print(&line, "{\"id\": %lld, \"event\": \"end\", \"reason\": \"%s\"}\n", (long long)id, reason);
    train_out_put(&line, "", 1); /* a NUL */
    train_peer_forget(env, id, line.failed ? NULL : line.data);
    train_out_free(&line);
}

/* ---- answers -------------------------------------------------------------------------------------------- */

/* What is not about the conversation. NULL, or what is wrong with it. */
static const char *read_answer(const train_reply *a, train_env_reply *r) {
    const ravel__json_node *x = ravel__json_get(a->doc, a->root, "reward");
    if (x && (!ravel__json_real(x, &r->reward) || !isfinite(r->reward))) return "a reward is a finite number";
    x = ravel__json_get(a->doc, a->root, "accuracy");
    if (x && (!ravel__json_real(x, &r->accuracy) || !isfinite(r->accuracy))) return "an accuracy is a finite number";
    (void)ravel__json_boolean(ravel__json_get(a->doc, a->root, "end"), &r->end);
    return NULL;
}

/* A text, or a list of messages as JSON, to `out`; 0: it is neither. */
static int put_said(train_out *out, const train_reply *a, const ravel__json_node *x, int32_t *listed) {
    *listed = x->kind == RAVEL__JSON_ARRAY && x->count;
    if (x->kind == RAVEL__JSON_STRING) train_out_put(out, x->as.string, x->bytes);
    if (*listed) train_out_json(out, a->doc, x);
    return x->kind == RAVEL__JSON_STRING || *listed;
}

static const ravel__json_node *given(const train_reply *a, const char *name) {
    const ravel__json_node *x = ravel__json_get(a->doc, a->root, name);
    return x && x->kind != RAVEL__JSON_NULL ? x : NULL;
}

/* An answer: the reply, and its texts behind it, each with a NUL: the role, what is said, the conversation in place of the
 * one so far. */
static const char *put_answer(train_out *heard, const train_reply *a, train_env_reply *r) {
    const ravel__json_node *role = given(a, "role"), *said = given(a, "observation"), *context = given(a, "context");
    const char *name = role && role->kind == RAVEL__JSON_STRING ? role->as.string : "user";
    size_t head = heard->used;
    const char *wrong = read_answer(a, r);
    if (wrong) return wrong;
    train_out_put(heard, (const char *)r, sizeof *r);
    train_out_put(heard, name, strlen(name) + 1);
    size_t from = heard->used;
    if (said && !put_said(heard, a, said, &r->listed)) return "an observation is a text or a list of messages";
    r->bytes = heard->used - from;
    r->observation = said ? name : NULL;
    train_out_put(heard, "", 1);
    from = heard->used;
    if (context && (context->kind != RAVEL__JSON_ARRAY || !context->count)) return "a context is a list of messages";
    if (context) train_out_json(heard, a->doc, context);
    r->context_bytes = heard->used - from;
    r->context = context ? name : NULL;
    train_out_put(heard, "", 1);
    if (!heard->failed) memcpy(heard->data + head, r, sizeof *r);
    return NULL;
}

static void put_loss(train_out *heard, const train_reply *a) {
    const train_env_reply r = {.id = a->id,
                               .status = a->status,
                               .cost = a->cost,
                               .alone = a->alone,
                               .end = 1,
                               .observation = a->why,
                               .bytes = strlen(a->why),
                               .accuracy = NAN};
    train_out_put(heard, (const char *)&r, sizeof r);
    train_out_put(heard, "", 1);
    train_out_put(heard, a->why, r.bytes + 1);
    train_out_put(heard, "", 1);
}

int train_env_take(train_peer *env, train_out *heard) {
    train_reply a;
    size_t before = heard->used;
    if (!train_peer_take(env, &a)) return 0;
    train_env_reply r = {.id = a.id, .accuracy = NAN};
    const char *wrong = a.status ? NULL : put_answer(heard, &a, &r);
    if (wrong) heard->used = before;
    if (wrong) train_peer_wrong(env, &a, wrong);
    if (a.status)
        put_loss(heard, &a);
    else if (r.end)
        train_peer_forget(env, a.id, NULL);
    return 1;
}

int train_env_heard(const train_out *heard, size_t *at, train_env_reply *r) {
    if (*at == heard->used) return 0;
    memcpy(r, heard->data + *at, sizeof *r);
    r->role = heard->data + *at + sizeof *r;
    const char *said = r->role + strlen(r->role) + 1, *context = said + r->bytes + 1;
    if (r->observation) r->observation = said;
    if (r->context) r->context = context;
    *at = (size_t)(context - heard->data) + r->context_bytes + 1;
    RAVEL_ASSERT(*at <= heard->used);
    return 1;
}

/* ---- several ranks -------------------------------------------------------------------------------------- */

static ravel_status take_all(train_peer *env, train_out *heard, ravel_error *err) {
    while (train_env_take(env, heard)) {}
    if (heard->failed) return ravel__no_memory(err, heard->used, "what an environment says");
    return train_peer_status(env, err);
}

ravel_status train_env_hear(train_peer *env, ravel_comm *comm, train_out *heard, ravel_error *err) {
    heard->used = 0;
    ravel_status status = env ? take_all(env, heard, err) : RAVEL_OK;
    int64_t bytes = (int64_t)heard->used;
    if (!comm) return status;
    status = ravel_agree(comm, status, err);
    if (!status) status = ravel_comm_broadcast(comm, &bytes, 1, RAVEL_I64, 0, err);
    if (status || bytes == 0) return status;
    char *to = env ? heard->data : train_out_take(heard, (size_t)bytes);
    status = ravel_agree(comm, to ? RAVEL_OK : ravel__no_memory(err, (size_t)bytes, "what an environment says"), err);
    return status ? status : ravel_comm_broadcast(comm, to, bytes, RAVEL_U8, 0, err);
}

ravel_status train_env_open(const train_peer_options *options, train_peer **env, ravel_error *err) {
    train_peer_options own = *options;
    own.what = "environment";
    own.sessions = 1;
    return train_peer_open(&own, env, err);
}
