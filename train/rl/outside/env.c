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

/* NULL, or what is wrong with it. */
static const char *read_answer(const train_reply *a, train_env_reply *r) {
    const ravel__json_node *x = ravel__json_get(a->doc, a->root, "reward");
    if (x && (!ravel__json_real(x, &r->reward) || !isfinite(r->reward))) return "a reward is a finite number";
    x = ravel__json_get(a->doc, a->root, "accuracy");
    if (x && (!ravel__json_real(x, &r->accuracy) || !isfinite(r->accuracy))) return "an accuracy is a finite number";
    x = ravel__json_get(a->doc, a->root, "role");
    if (x && x->kind == RAVEL__JSON_STRING) r->role = x->as.string;
    (void)ravel__json_boolean(ravel__json_get(a->doc, a->root, "end"), &r->end);
    x = ravel__json_get(a->doc, a->root, "observation");
    if (!x || x->kind == RAVEL__JSON_NULL) return NULL;
    if (x->kind != RAVEL__JSON_STRING) return "an observation is a text";
    r->observation = x->as.string;
    r->bytes = x->bytes;
    return NULL;
}

int train_env_take(train_peer *env, train_env_reply *r) {
    train_reply a;
    if (!train_peer_take(env, &a)) return 0;
    *r = (train_env_reply){.id = a.id, .role = "user", .accuracy = NAN};
    const char *wrong = a.status ? NULL : read_answer(&a, r);
    if (wrong) train_peer_wrong(env, &a, wrong);
    if (a.status)
        *r = (train_env_reply){.id = a.id,
                               .status = a.status,
                               .cost = a.cost,
                               .alone = a.alone,
                               .end = 1,
                               .observation = a.why,
                               .bytes = strlen(a.why),
                               .role = "user",
                               .accuracy = NAN};
    else if (r->end)
        train_peer_forget(env, a.id, NULL);
    return 1;
}

/* ---- several ranks -------------------------------------------------------------------------------------- */

/* One answer after the other, each with its texts. */
static ravel_status take_all(train_peer *env, train_out *heard, ravel_error *err) {
    train_env_reply r;
    while (train_env_take(env, &r)) {
        train_out_put(heard, (const char *)&r, sizeof r);
        train_out_put(heard, r.role, strlen(r.role) + 1);
        train_out_put(heard, r.observation, r.bytes);
        train_out_put(heard, "", 1);
    }
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

int train_env_heard(const train_out *heard, size_t *at, train_env_reply *r) {
    if (*at == heard->used) return 0;
    memcpy(r, heard->data + *at, sizeof *r);
    r->role = heard->data + *at + sizeof *r;
    const char *text = r->role + strlen(r->role) + 1;
    if (r->observation) r->observation = text;
    *at = (size_t)(text - heard->data) + r->bytes + 1;
    RAVEL_ASSERT(*at <= heard->used);
    return 1;
}

ravel_status train_env_open(const train_peer_options *options, train_peer **env, ravel_error *err) {
    train_peer_options own = *options;
    own.what = "environment";
    own.sessions = 1;
    return train_peer_open(&own, env, err);
}
