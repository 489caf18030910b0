/* Servers beside servers.c, which has their connections: what each of them is, which version it has, and the next step
 * that brings it to the one that is wanted.
 *
 *     LOOK -> (ravel) LOOK until it has pulled                                                   -> READY
 *          -> (vllm) INIT, once -> START -> UPDATE -> FINISH                                     -> READY
 *          -> (sglang) COMMAND                                                                   -> READY
 *
 * What fails begins with LOOK again. Only servers that are READY are chosen for requests. */
#include "train/rl/outside/remote.h"

#include "base/assert.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "train/kernels/host.h"
#include "train/model/hf/hf.h"
#include "train/rl/outside/child.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 512 };
static const double probe_seconds = 10, look_seconds = 0.01, again_seconds = 1;

typedef enum step { LOOK, INIT, START, UPDATE, FINISH, COMMAND, READY } step;

typedef struct server {
    char model[NAME];
    int32_t kind;
    step step;
    int asked;          /* its step is under way, as */
    int64_t post;       /* this number of its steps */
    int initialised;    /* vllm */
    int late;           /* it has failed to get there; it is not waited for */
    double next, until; /* the step waits until then; the version must be there then */
    train_child child;  /* sglang */
} server;

/* A request that is not answered. */
typedef struct ask {
    int64_t request;
    int32_t sample;  /* that alone: SGLang gives routes of one answer of a request; -1: all */
    int64_t id;      /* of the post; 0: none */
    int64_t version; /* of the server then */
    int32_t tried;
} ask;

struct train_remote {
    train_remote_options options;
    train_servers *servers;
    server *all;     /* [servers] */
    int64_t version; /* that servers must have */
    int warned;
    const train_request *requests;
    int64_t request_count;
    ask *asks; /* [ask_count] */
    int64_t ask_count, ask_room, posts;
    ravel__json *doc;
    int32_t *tokens; /* of an answer, as the next two */
    float *logprob;
    int64_t *versions, room[3];
    train_routes routes;
    ravel_error err; /* of a poll */
    ravel_error why; /* of the last server that did not get the version */
};

/* ---- weights -------------------------------------------------------------------------------------------- */

/* What is published: "names", the list of dtypes under `dtypes`, "shapes", "address", "token". */
static void put_tensors(const train_remote *r, train_out *o, const char *dtypes) {
    const train_params *p = r->options.params;
    const char *dtype = "float32";
    (void)train__torch_name(r->options.dtype, &dtype, NULL);
    train_out_puts(o, "\"address\":");
    train_out_quote(o, r->options.address, strlen(r->options.address));
    if (r->options.token) {
        train_out_puts(o, ",\"token\":");
        train_out_quote(o, r->options.token, strlen(r->options.token));
    }
    train_out_puts(o, ",\"names\":[");
    for (int64_t i = 0; i < p->count; i++) train_out_print(o, i ? ",\"%s\"" : "\"%s\"", p->tensors[i].name);
    train_out_print(o, "],\"%s\":[", dtypes);
    for (int64_t i = 0; i < p->count; i++) train_out_print(o, i ? ",\"%s\"" : "\"%s\"", dtype);
    train_out_puts(o, "],\"shapes\":[");
    for (int64_t i = 0; i < p->count; i++) {
        const train_tensor *t = &p->tensors[i];
        train_out_print(o, i ? ",[%lld" : "[%lld", (long long)t->whole[0]);
        if (t->rank == 2) train_out_print(o, ",%lld", (long long)t->whole[1]);
        train_out_puts(o, "]");
    }
    train_out_puts(o, "]");
}

static void set_step(train_remote *r, int32_t i, step to) {
    server *s = &r->all[i];
    s->step = to;
    s->asked = 0;
    s->next = 0;
    if (to == LOOK) s->until = train__now() + r->options.servers.seconds;
    if (to == READY) s->late = 0;
    train_servers_hold(r->servers, i, to != READY);
}

/* It begins again, after a while. */
static void fail(train_remote *r, int32_t i, const ravel_error *why) {
    server *s = &r->all[i];
    train_child_stop(&s->child, 0);
    set_step(r, i, LOOK);
    s->initialised = 0;
    if (!s->late && why->status != RAVEL_E_IO) /* else servers.c has said it */
        ravel__log(r->options.servers.logger, RAVEL_LOG_WARN, "%s", why->message);
    s->late = 1;
    s->next = train__now() + again_seconds;
    r->why = *why;
}

/* What /v1/models says. */
static ravel_status read_models(train_remote *r, int32_t i, int64_t *version, ravel_error *err) {
    const char *url = train_servers_url(r->servers, i);
    server *s = &r->all[i];
    const ravel__json_node *list = ravel__json_get(r->doc, ravel__json_root(r->doc), "data");
    const ravel__json_node *first = list ? ravel__json_first(r->doc, list) : NULL;
    const ravel__json_node *id = ravel__json_get(r->doc, first, "id"),
                           *owner = ravel__json_get(r->doc, first, "owned_by");
    if (!id || id->kind != RAVEL__JSON_STRING || id->bytes >= NAME)
        return ravel_error_set(err, RAVEL_E_DATA, "%s/v1/models lists no model", url);
    (void)snprintf(s->model, sizeof s->model, "%s", r->options.model ? r->options.model : id->as.string);
    (void)ravel__json_integer(ravel__json_get(r->doc, first, "version"), version);
    s->kind = r->options.kind                   ? r->options.kind
              : ravel__json_is(owner, "ravel")  ? TRAIN_REMOTE_RAVEL
              : ravel__json_is(owner, "vllm")   ? TRAIN_REMOTE_VLLM
              : ravel__json_is(owner, "sglang") ? TRAIN_REMOTE_SGLANG
                                                : TRAIN_REMOTE_AUTO;
    if (s->kind == TRAIN_REMOTE_AUTO)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "%s: its models are owned by nobody that is known here; say --rollout-kind", url);
    if (s->kind != TRAIN_REMOTE_RAVEL && r->options.params->lora.rank)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "%s: only ravel serve takes adapters", url);
    return RAVEL_OK;
}

/* One that pulls is looked at until it has the version. */
static ravel_status take_look(train_remote *r, int32_t i, ravel_error *err) {
    server *s = &r->all[i];
    int64_t has = 0;
    ravel_status status = read_models(r, i, &has, err);
    if (status) return status;
    if (s->kind != TRAIN_REMOTE_RAVEL) {
        set_step(r, i, s->kind == TRAIN_REMOTE_SGLANG ? COMMAND : s->initialised ? START : INIT);
    } else if (has >= r->version) {
        set_step(r, i, READY);
    } else if (train__now() < s->until) {
        s->next = train__now() + look_seconds;
    } else {
        return ravel_error_set(err, RAVEL_E_TIMEOUT,
                               "%s has version %lld and not %lld after %g s; does it run with --pull %s?",
                               train_servers_url(r->servers, i), (long long)has, (long long)r->version,
                               r->options.servers.seconds, r->options.address);
    }
    return RAVEL_OK;
}

static void take_step(train_remote *r, const train_served *a) {
    int32_t i = a->at;
    server *s = &r->all[i];
    ravel_error why = a->why;
    if (!s->asked || a->id != -s->post) return; /* of before it failed */
    s->asked = 0;
    ravel_status status = (ravel_status)why.status;
    if (!status && s->step == LOOK) status = ravel__json_parse(a->body, a->bytes, NULL, &r->doc, &why);
    if (!status && s->step == LOOK)
        status = take_look(r, i, &why);
    else if (!status) {
        s->initialised = 1;
        set_step(r, i, s->step == FINISH ? READY : s->step + 1);
    }
    if (status) fail(r, i, &why);
}

static void put_step(const train_remote *r, const server *s, train_out *body) {
    if (s->step == INIT) {
        train_out_puts(body, "{\"init_info\":{");
        put_tensors(r, body, "dtype_names");
        train_out_puts(body, "}}");
    } else if (s->step == UPDATE) {
        train_out_print(body, "{\"update_info\":{\"version\":%lld}}", (long long)r->version);
    } else if (s->step == FINISH) {
        train_out_print(body, "{\"weight_version\":\"%lld\"}", (long long)r->version);
    } else {
        train_out_puts(body, "{}");
    }
}

static const char *command_of(const train_remote *r) {
    return r->options.command ? r->options.command : "exec python3 -m ravel.adapters.sglang";
}

static ravel_status start_command(train_remote *r, int32_t i, ravel_error *err) {
    server *s = &r->all[i];
    const char *url = train_servers_url(r->servers, i);
    train_out line = {0};
    train_out_puts(&line, "{\"url\":");
    train_out_quote(&line, url, strlen(url));
    train_out_print(&line, ",\"version\":%lld,", (long long)r->version);
    put_tensors(r, &line, "dtypes");
    train_out_puts(&line, "}\n");
    ravel_status status = line.failed ? ravel__no_memory(err, line.used, "a request")
                                      : train_child_start(&s->child, command_of(r), url, err);
    if (!status) status = train_child_write(&s->child, line.data, line.used, err);
    if (!status) train_child_finish(&s->child);
    train_out_free(&line);
    return status;
}

static void watch_command(train_remote *r, int32_t i, const train_polls *polls) {
    server *s = &r->all[i];
    const char *url = train_servers_url(r->servers, i), *line;
    ravel_error why = RAVEL_ERROR_INIT;
    size_t bytes;
    int code = 0, over;
    (void)train_child_advance(&s->child, polls, url, &why);
    while (train_child_line(&s->child, &line, &bytes))
        ravel__log(r->options.servers.logger, RAVEL_LOG_INFO, "%s: %.*s", url, bytes > 300 ? 300 : (int)bytes, line);
    over = train_child_over(&s->child, &code);
    if (!over && train__now() < s->until) return;
    if (!over)
        (void)ravel_error_set(&why, RAVEL_E_TIMEOUT, "%s: \"%.200s\" took longer than %g s", url, command_of(r),
                              r->options.servers.seconds);
    else if (code)
        (void)ravel_error_set(&why, RAVEL_E_IO, "%s: \"%.200s\" ended with %d", url, command_of(r), code);
    train_child_stop(&s->child, 0);
    if (!over || code)
        fail(r, i, &why);
    else
        set_step(r, i, READY);
}

/* The next step of a server that has not the version. */
static void drive(train_remote *r, int32_t i) {
    static const char *const paths[] = {"/v1/models", "/init_weight_transfer_engine", "/start_weight_update",
                                        "/update_weights", "/finish_weight_update"};
    server *s = &r->all[i];
    ravel_error why = RAVEL_ERROR_INIT;
    train_out body = {0};
    if (s->step == READY || s->asked || s->next > train__now() || train_servers_idle(r->servers, i) <= 0) return;
    const train_post post = {.id = -(s->post + 1),
                             .path = s->step == COMMAND ? NULL : paths[s->step],
                             .body = s->step == LOOK ? NULL : &body,
                             .seconds = s->step == LOOK ? probe_seconds : 0};
    s->asked = 1;
    s->post++;
    if (s->step > LOOK) put_step(r, s, &body);
    ravel_status status =
        s->step == COMMAND ? start_command(r, i, &why) : train_servers_post(r->servers, i, &post, &why);
    train_out_free(&body);
    if (status) fail(r, i, &why);
}

/* vLLM's log-probs are before the temperature, unless it is told otherwise; it does not say which. */
static void warn_of_vllm(train_remote *r) {
    int vllm = 0;
    for (int32_t i = 0; i < train_servers_count(r->servers); i++) vllm |= r->all[i].kind == TRAIN_REMOTE_VLLM;
    if (vllm && !r->warned && r->options.temperature != 1)
        ravel__log(r->options.servers.logger, RAVEL_LOG_WARN,
                   "temperature %g: vLLM must run with --logprobs-mode processed_logprobs, or its log-probs are others",
                   r->options.temperature);
    r->warned |= vllm;
}

/* Servers that have the version, and those that are getting there. */
static int32_t count_ready(const train_remote *r, int32_t *coming) {
    int32_t ready = 0;
    *coming = 0;
    for (int32_t i = 0; i < train_servers_count(r->servers); i++) {
        const server *s = &r->all[i];
        ready += s->step == READY;
        *coming += s->step != READY && !s->late && (s->asked || train_servers_idle(r->servers, i) > 0);
    }
    return ready;
}

ravel_status train_remote_update(train_remote *r, int64_t version, train_answer_fn answer, void *user,
                                 ravel_error *err) {
    const volatile int *stop = r->options.stop;
    double until = train__now() + r->options.servers.wait;
    int32_t ready, coming;
    ravel_status status = RAVEL_OK;
    r->version = version;
    for (int32_t i = 0; i < train_servers_count(r->servers); i++) {
        set_step(r, i, LOOK);
        r->all[i].late = 0;
    }
    while (!status && (!(ready = count_ready(r, &coming)) || coming)) {
        ravel_error gone = RAVEL_ERROR_INIT;
        train_polls polls = {0};
        train_remote_poll(r, &polls);
        train_polls_wait(&polls, 0.2);
        status = train_remote_advance(r, &polls, answer, user, &gone);
        train_polls_free(&polls);
        if (stop && *stop) return ravel_error_set(err, RAVEL_E_STATE, "stopped by a signal while servers take weights");
        if (status == RAVEL_E_TIMEOUT || (!status && !ready && train__now() > until))
            status = ravel_error_set(err, RAVEL_E_TIMEOUT,
                                     "none of %d servers took version %lld of the weights within %g s: %s",
                                     train_servers_count(r->servers), (long long)version, r->options.servers.wait,
                                     status ? gone.message : r->why.message);
        else if (status)
            status = ravel_error_set(err, status, "%s", gone.message);
    }
    if (!status) warn_of_vllm(r);
    return status;
}

/* ---- requests ------------------------------------------------------------------------------------------- */

static int one_by_one(const train_remote *r) {
    int any = 0;
    for (int32_t i = 0; i < train_servers_count(r->servers) && r->routes.topk; i++)
        any |= r->all[i].kind == TRAIN_REMOTE_SGLANG;
    return any;
}

static ravel_status add_asks(train_remote *r, const train_request *requests, int64_t first, int64_t more,
                             ravel_error *err) {
    int64_t need = r->ask_count + more;
    int apart = one_by_one(r);
    for (int64_t i = 0; i < more && apart; i++) need += requests[i].samples - 1;
    ask *asks = train__grown(NULL, r->asks, &r->ask_room, r->ask_count, need, sizeof *asks);
    if (!asks) return ravel__no_memory(err, (size_t)need * sizeof *asks, "requests");
    r->asks = asks;
    for (int64_t i = 0; i < more; i++)
        for (int32_t k = 0; k < (apart ? requests[i].samples : 1); k++)
            asks[r->ask_count++] = (ask){.request = first + i, .sample = apart ? k : -1};
    r->request_count = first + more;
    return RAVEL_OK;
}

/* The request with the answers that the ask wants. */
static train_request request_of(const train_remote *r, const ask *a) {
    train_request q = r->requests[a->request];
    if (a->sample < 0) return q;
    q.first_sample += a->sample;
    q.samples = 1;
    return q;
}

ravel_status train_remote_begin(train_remote *r, const train_request *requests, int64_t count, ravel_error *err) {
    train_servers_clear(r->servers);
    for (int32_t i = 0; i < train_servers_count(r->servers); i++) r->all[i].asked = 0;
    r->ask_count = 0;
    r->requests = requests;
    return add_asks(r, requests, 0, count, err);
}

ravel_status train_remote_start(train_remote *r, const train_request *requests, int64_t ended, int64_t more,
                                ravel_error *err) {
    ravel_status status = add_asks(r, requests + r->request_count - ended, r->request_count, more, err);
    if (status) return status;
    for (int64_t i = 0; i < r->ask_count; i++) r->asks[i].request -= ended;
    r->request_count -= ended;
    r->requests = requests;
    return RAVEL_OK;
}

int64_t train_remote_idle(const train_remote *r) {
    return train__max(0, (int64_t)train_servers_count(r->servers) * r->options.servers.slots - r->ask_count);
}

int64_t train_remote_busy(const train_remote *r) {
    return r->ask_count;
}

/* Tokens that an answer may have. */
static int64_t room_of(const train_remote *r, const train_request *q) {
    return train__min(q->sampling->max_tokens - q->earlier, r->options.slot_tokens - q->count);
}

static void put_request(const train_remote *r, const server *s, const train_request *q, train_out *o) {
    const train_sampling *how = q->sampling;
    int ravel = s->kind == TRAIN_REMOTE_RAVEL;
    uint64_t seed = ravel ? how->seed : train__random(how->seed, (uint64_t)q->id, (uint64_t)q->first_sample) >> 33;
    train_out_puts(o, "{\"model\":");
    train_out_quote(o, s->model, strlen(s->model));
    train_out_puts(o, ",\"prompt\":");
    train_out_tokens(o, q->prompt, q->count);
    train_out_print(o, ",\"n\":%d,\"max_tokens\":%lld,\"temperature\":%.17g,\"top_p\":%.17g,\"seed\":%lld", q->samples,
                    (long long)room_of(r, q), how->temperature, how->top_p, (long long)(seed & INT64_MAX));
    if (how->top_k > 0) train_out_print(o, ",\"top_k\":%d", how->top_k);
    train_out_puts(o, ",\"logprobs\":0,\"return_token_ids\":true,\"stop_token_ids\":");
    train_out_tokens(o, how->stop, how->stops);
    if (r->routes.topk && s->kind != TRAIN_REMOTE_VLLM) train_out_puts(o, ",\"return_routed_experts\":true");
    if (ravel)
        train_out_print(o, ",\"ignore_eos\":true,\"prompt_id\":%lld,\"sample_id\":%d", (long long)q->id,
                        q->first_sample);
    train_out_puts(o, "}");
}

/* ---- answers -------------------------------------------------------------------------------------------- */

static ravel_status make_room(train_remote *r, int64_t tokens, ravel_error *err) {
    int32_t *ids = train__grown(NULL, r->tokens, &r->room[0], 0, tokens, sizeof *ids);
    if (ids) r->tokens = ids;
    float *logprob = train__grown(NULL, r->logprob, &r->room[1], 0, tokens, sizeof *logprob);
    if (logprob) r->logprob = logprob;
    int64_t *versions = train__grown(NULL, r->versions, &r->room[2], 0, tokens, sizeof *versions);
    if (versions) r->versions = versions;
    return ids && logprob && versions ? RAVEL_OK : ravel__no_memory(err, (size_t)tokens * 16, "an answer");
}

/* The tokens of a choice, their log-probs and versions; without these all are of the version that it was asked of. */
static ravel_status take_tokens(train_remote *r, const ravel__json_node *choice, int64_t most, int64_t version,
                                int64_t *count, ravel_error *err) {
    const ravel__json *doc = r->doc;
    const ravel__json_node *ids = ravel__json_get(doc, choice, "token_ids"),
                           *z = ravel__json_get(doc, choice, "versions");
    const ravel__json_node *list = ravel__json_path(doc, choice, "logprobs.token_logprobs");
    int64_t n = 0, id;
    double value;
    if (!ids || ids->kind != RAVEL__JSON_ARRAY || !list || list->kind != RAVEL__JSON_ARRAY ||
        ids->count != list->count || ids->count < 1 || ids->count > most)
        return ravel_error_set(err, RAVEL_E_MISMATCH,
                               "a choice needs token_ids and as many logprobs.token_logprobs, from 1 to %lld; the "
                               "server must know return_token_ids",
                               (long long)most);
    ravel_status status = make_room(r, ids->count, err);
    if (status) return status;
    z = z && z->kind == RAVEL__JSON_ARRAY && z->count == ids->count ? ravel__json_first(doc, z) : NULL;
    const ravel__json_node *x = ravel__json_first(doc, ids), *y = ravel__json_first(doc, list);
    for (; x && y; x = ravel__json_next(doc, x), y = ravel__json_next(doc, y), n++) {
        if (!ravel__json_integer(x, &id) || id < 0 || id >= r->options.vocab || !ravel__json_real(y, &value))
            return ravel_error_set(err, RAVEL_E_MISMATCH,
                                   "token %lld of a choice is not one below %lld with a log-prob", (long long)n,
                                   (long long)r->options.vocab);
        r->tokens[n] = (int32_t)id;
        r->logprob[n] = (float)value;
        r->versions[n] = version;
        (void)ravel__json_integer(z, &r->versions[n]);
        z = z ? ravel__json_next(doc, z) : NULL;
    }
    *count = n;
    return RAVEL_OK;
}

/* vLLM and ravel serve have them in the choice, SGLang beside the choices. */
static ravel_status take_routes(train_remote *r, const train_request *q, const ravel__json_node *choice,
                                train_answer *a, ravel_error *err) {
    const ravel__json_node *own = ravel__json_get(r->doc, choice, "routed_experts"),
                           *all = ravel__json_path(r->doc, ravel__json_root(r->doc), "sglext.routed_experts");
    const ravel__json_node *text = own && own->kind == RAVEL__JSON_STRING ? own : all;
    if (!text || text->kind != RAVEL__JSON_STRING)
        return ravel_error_set(err, RAVEL_E_MISMATCH,
                               "the answer has no routes (--router-replay rollout): vLLM and SGLang give them with "
                               "--enable-return-routed-experts");
    ravel_status status = train_routes_read(&r->routes, text->as.string, text->bytes, q->count + a->count, err);
    a->routes = r->routes.rows;
    a->route_count = r->routes.count;
    return status;
}

static ravel_status take_choice(train_remote *r, const train_request *q, const ravel__json_node *choice,
                                train_answer *a, ravel_error *err) {
    int64_t index;
    if (!ravel__json_integer(ravel__json_get(r->doc, choice, "index"), &index) || index < 0 || index >= q->samples)
        return ravel_error_set(err, RAVEL_E_MISMATCH, "a choice needs an index from 0 to %d", q->samples - 1);
    ravel_status status = take_tokens(r, choice, room_of(r, q), a->version, &a->count, err);
    a->sample = q->first_sample + (int32_t)index;
    a->ended = ravel__json_is(ravel__json_get(r->doc, choice, "finish_reason"), "stop");
    if (!status) a->version = r->versions[0];
    a->tokens = r->tokens;
    a->logprob = a->kept_logprob = r->logprob;
    a->versions = r->versions;
    return status || !r->routes.topk ? status : take_routes(r, q, choice, a, err);
}

/* Whether there are as many choices as were asked for, and all of them came to their end. */
static ravel_status check_choices(const train_remote *r, const train_request *q, const ravel__json_node *list,
                                  ravel_error *err) {
    if (!list || list->kind != RAVEL__JSON_ARRAY || list->count != q->samples)
        return ravel_error_set(err, RAVEL_E_MISMATCH, "%d choices were asked for, and %d came", q->samples,
                               list ? list->count : 0);
    for (const ravel__json_node *n = ravel__json_first(r->doc, list); n; n = ravel__json_next(r->doc, n)) {
        const ravel__json_node *reason = ravel__json_get(r->doc, n, "finish_reason");
        if (!ravel__json_is(reason, "stop") && !ravel__json_is(reason, "length"))
            return ravel_error_set(err, RAVEL_E_IO, "an answer ended for another reason than stop and length");
    }
    return RAVEL_OK;
}

static ravel_status take_choices(train_remote *r, const ask *asked, train_answer_fn answer, void *user,
                                 ravel_error *err) {
    const train_request of = request_of(r, asked), *q = &of;
    const int64_t request = asked->request;
    const ravel__json_node *list = ravel__json_get(r->doc, ravel__json_root(r->doc), "choices");
    ravel_status status = check_choices(r, q, list, err);
    for (const ravel__json_node *n = status ? NULL : ravel__json_first(r->doc, list); n && !status;
         n = ravel__json_next(r->doc, n)) {
        train_answer a = {.request = request, .id = q->id, .version = asked->version};
        status = take_choice(r, q, n, &a, err);
        if (!status) status = answer(user, &a, err);
    }
    return status;
}

/* What no server answered. */
static ravel_status give_up(train_remote *r, const ask *asked, train_answer_fn answer, void *user, ravel_error *err) {
    const train_request of = request_of(r, asked), *q = &of;
    const int64_t request = asked->request;
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < q->samples && !status; i++) {
        const train_answer none = {
            .request = request, .id = q->id, .sample = q->first_sample + i, .version = r->version};
        status = answer(user, &none, err);
    }
    return status;
}

static int is_final(ravel_status status) {
    return status == RAVEL_E_MISMATCH || status == RAVEL_E_MEMORY;
}

static ravel_status take_answer(train_remote *r, const train_served *a, train_answer_fn answer, void *user,
                                ravel_error *err) {
    ravel_error why = a->why;
    ravel_status status = (ravel_status)why.status;
    int64_t i = 0;
    while (i < r->ask_count && r->asks[i].id != a->id) i++;
    if (i == r->ask_count) return RAVEL_OK;
    ask *q = &r->asks[i];
    if (!status) status = ravel__json_parse(a->body, a->bytes, NULL, &r->doc, &why);
    const ask asked = *q;
    if (a->outcome == TRAIN_AWAY && a->code != 429) fail(r, a->at, &why);
    q->id = 0;
    q->tried += a->outcome == TRAIN_GOOD ? TRAIN_TRY : a->cost;
    int over = q->tried >= TRAIN_TRY * (r->options.retries + 1);
    if (!status) status = take_choices(r, &asked, answer, user, &why);
    if (a->outcome == TRAIN_GOOD && status && !a->why.status)
        ravel_error_prefix(&why, "%s/v1/completions", train_servers_url(r->servers, a->at));
    if (is_final(status)) return ravel_error_set(err, status, "%s", why.message);
    if (status && !over) return RAVEL_OK; /* it is asked again */
    q = &r->asks[i];
    memmove(q, q + 1, (size_t)(--r->ask_count - i) * sizeof *q);
    return status ? give_up(r, &asked, answer, user, err) : RAVEL_OK;
}

/* ---- going on ------------------------------------------------------------------------------------------- */

static ravel_status post_asks(train_remote *r, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int32_t at;
    for (int64_t i = 0; i < r->ask_count && !status; i++) {
        train_out body = {0};
        if (r->asks[i].id) continue;
        if ((at = train_servers_choose(r->servers)) < 0) break;
        const train_request q = request_of(r, &r->asks[i]);
        put_request(r, &r->all[at], &q, &body);
        r->asks[i].id = ++r->posts;
        r->asks[i].version = r->version;
        const train_post post = {.id = r->posts, .path = "/v1/completions", .body = &body};
        status = train_servers_post(r->servers, at, &post, err);
        train_out_free(&body);
    }
    return status;
}

void train_remote_poll(train_remote *r, train_polls *polls) {
    for (int32_t i = 0; i < train_servers_count(r->servers); i++) {
        server *s = &r->all[i];
        drive(r, i);
        if (s->child.pid) train_child_poll(&s->child, polls);
        if (s->step == COMMAND) train_polls_due(polls, train__now() + look_seconds);
        if (s->step != READY && s->next > 0) train_polls_due(polls, s->next);
    }
    ravel_status status = r->err.status ? RAVEL_OK : post_asks(r, &r->err);
    if (status) train_polls_due(polls, train__now());
    train_servers_poll(r->servers, polls);
}

ravel_status train_remote_advance(train_remote *r, const train_polls *polls, train_answer_fn answer, void *user,
                                  ravel_error *err) {
    train_served a;
    ravel_status status = RAVEL_OK;
    if (r->err.status) {
        if (err) *err = r->err;
        return (ravel_status)r->err.status;
    }
    for (int32_t i = 0; i < train_servers_count(r->servers); i++)
        if (r->all[i].child.pid) watch_command(r, i, polls);
    train_servers_advance(r->servers, polls);
    while (!status && train_servers_take(r->servers, &a)) {
        if (a.id < 0)
            take_step(r, &a);
        else
            status = take_answer(r, &a, answer, user, err);
    }
    return status ? status : train_servers_status(r->servers, err);
}

/* ---- life ----------------------------------------------------------------------------------------------- */

ravel_status train_remote_open(const train_remote_options *options, train_remote **remote, ravel_error *err) {
    train_remote *r = calloc(1, sizeof *r);
    if (!r) return ravel__no_memory(err, sizeof *r, "a list of servers");
    r->options = *options;
    r->routes = options->routes;
    r->options.servers.what = "--rollout";
    r->options.servers.openai = 1;
    ravel_status status = train_servers_open(&r->options.servers, &r->servers, err);
    if (!status && !(r->all = calloc((size_t)train_servers_count(r->servers), sizeof *r->all)))
        status = ravel__no_memory(err, sizeof *r->all, "a list of servers");
    if (status) {
        train_remote_close(r);
        return status;
    }
    *remote = r;
    return RAVEL_OK;
}

void train_remote_close(train_remote *r) {
    if (!r) return;
    for (int32_t i = 0; r->all && i < train_servers_count(r->servers); i++) {
        train_child_stop(&r->all[i].child, 0);
        train_child_free(&r->all[i].child);
    }
    train_servers_free(r->servers);
    train_routes_free(&r->routes);
    ravel__json_free(r->doc);
    ravel__release(NULL, r->tokens, (size_t)r->room[0] * sizeof *r->tokens);
    ravel__release(NULL, r->logprob, (size_t)r->room[1] * sizeof *r->logprob);
    ravel__release(NULL, r->versions, (size_t)r->room[2] * sizeof *r->versions);
    ravel__release(NULL, r->asks, (size_t)r->ask_room * sizeof *r->asks);
    free(r->all);
    free(r);
}
