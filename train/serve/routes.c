/* Requests: what each path takes, and the checks before the engine. */
#include "train/serve/internal.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"

#include "train/kernels/host.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char json_type[] = "application/json";

/* ---- small answers -------------------------------------------------------------------------------------- */

void train__serve_count(train_serve *s, int32_t code) {
    for (int i = 0; i < TRAIN__CODES; i++) {
        if (s->counts.codes[i] && s->counts.codes[i] != code) continue;
        s->counts.codes[i] = code;
        s->counts.answers[i]++;
        return;
    }
}

void train__serve_answer(train_serve *s, uint64_t id, int32_t code, const char *type, const train_out *out) {
    const char *headers = code == 429   ? "Retry-After: 1\r\n"
                          : code == 401 ? "WWW-Authenticate: Bearer\r\n"
                          : code == 405 ? "Allow: GET, POST, HEAD\r\n"
                                        : NULL;
    train__serve_count(s, code);
    (void)ravel__http_server_answer(s->http, id, code, type, headers, out->data, out->used);
}

void train__serve_error(train_out *out, int32_t code, const char *param, const char *message) {
    static const struct {
        int32_t code;
        const char *type;
    } types[] = {{401, "authentication_error"},
                 {404, "not_found_error"},
                 {429, "rate_limit_error"},
                 {500, "server_error"},
                 {503, "service_unavailable"}};
    const char *type = "invalid_request_error";
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].code == code) type = types[i].type;
    train_out_puts(out, "{\"error\":{\"message\":");
    train_out_quote(out, message, strlen(message));
    train_out_print(out, ",\"type\":\"%s\",\"param\":", type);
    if (param)
        train_out_quote(out, param, strlen(param));
    else
        train_out_puts(out, "null");
    train_out_print(out, ",\"code\":%d}}", code);
}

void train__serve_refuse(train_serve *s, uint64_t id, int32_t code, const char *param, const char *message) {
    train_out out = {0};
    train__serve_error(&out, code, param, message);
    train_out_puts(&out, "\n");
    train__serve_answer(s, id, code, json_type, &out);
    train_out_free(&out);
}

static void answer(train_serve *s, const ravel__http_request *r, train_out *out) {
    if (out->failed)
        train__serve_refuse(s, r->id, 500, NULL, "no memory for an answer");
    else
        train__serve_answer(s, r->id, 200, json_type, out);
    train_out_free(out);
}

static void get_health(train_serve *s, const ravel__http_request *r) {
    train_out out = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    if (s->stop || train_engine_status(s->engine, &err)) {
        train__serve_refuse(s, r->id, 503, NULL, s->stop ? "the server is stopping" : err.message);
        return;
    }
    train_out_puts(&out, "{\"status\":\"ok\"}\n");
    answer(s, r, &out);
}

static void get_metrics(train_serve *s, const ravel__http_request *r) {
    train_out out = {0};
    train__serve_page(s, &out);
    train__serve_answer(s, r->id, 200, "text/plain; version=0.0.4; charset=utf-8", &out);
    train_out_free(&out);
}

/* Model 0 is the server's own, the others are adapters. */
static const char *model_name(const train_serve *s, int32_t i) {
    return i == 0 ? s->options.name : s->options.adapters[i - 1];
}

static void put_model(const train_serve *s, int32_t i, train_out *out) {
    train_out_puts(out, "{\"id\":");
    train_out_quote(out, model_name(s, i), strlen(model_name(s, i)));
    train_out_print(out,
                    ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"ravel\",\"max_model_len\":%lld,"
                    "\"version\":%lld",
                    (long long)s->created, (long long)s->options.slot_tokens,
                    i ? 1 : (long long)train_engine_counts(s->engine).pulled.version);
    if (i) train_out_puts(out, ",\"parent\":");
    if (i) train_out_quote(out, s->options.name, strlen(s->options.name));
    train_out_puts(out, "}");
}

static void get_models(train_serve *s, const ravel__http_request *r) {
    train_out out = {0};
    train_out_puts(&out, "{\"object\":\"list\",\"data\":[");
    for (int32_t i = 0; i <= s->options.adapter_count; i++) {
        if (i) train_out_puts(&out, ",");
        put_model(s, i, &out);
    }
    train_out_puts(&out, "]}\n");
    answer(s, r, &out);
}

/* Whether the end of a path, in which any byte may stand as %xx, is this name. */
static int is_name(const char *path, const char *name) {
    for (; *path && *name; path++, name++) {
        unsigned byte = (unsigned char)*path;
        if (byte == '%' && isxdigit((unsigned char)path[1]) && isxdigit((unsigned char)path[2])) {
            char digits[3] = {path[1], path[2], 0};
            byte = (unsigned)strtoul(digits, NULL, 16);
            path += 2;
        }
        if (byte != (unsigned char)*name) return 0;
    }
    return !*path && !*name;
}

static const char one_model[] = "/v1/models/";

static void get_model(train_serve *s, const ravel__http_request *r) {
    train_out out = {0};
    for (int32_t i = 0; i <= s->options.adapter_count; i++) {
        if (!is_name(r->path + sizeof one_model - 1, model_name(s, i))) continue;
        put_model(s, i, &out);
        train_out_puts(&out, "\n");
        answer(s, r, &out);
        return;
    }
    train__serve_refuse(s, r->id, 404, "model", "there is no such model here: see /v1/models");
}

/* ---- tokens --------------------------------------------------------------------------------------------- */

/* The body, parsed into s->doc; 0 and an answer where it is no JSON object. */
static int read_body(train_serve *s, const ravel__http_request *r, ravel__json **doc) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = ravel__json_parse(r->body, r->bytes, NULL, doc, &err);
    if (!status && ravel__json_root(*doc)->kind == RAVEL__JSON_OBJECT) return 1;
    train__serve_refuse(s, r->id, status == RAVEL_E_MEMORY ? 503 : 400, NULL,
                        status ? err.message : "the body must be a JSON object");
    return 0;
}

/* The tokens of a conversation. */
static ravel_status encode_chat(train_serve *s, const ravel__json *doc, const int32_t **ids, int64_t *count,
                                ravel_error *err) {
    train_out talk = {0};
    ravel_status status = RAVEL_OK;
    if (!train_calls_conversation(&talk, doc, ravel__json_root(doc), s->flat))
        status =
            ravel_error_set(err, RAVEL_E_DATA, "a content has a part without \"text\"; this model takes text alone");
    else if (talk.failed)
        status = ravel__no_memory(err, talk.used, "a conversation");
    if (!status) status = train_text_prompt(s->options.text, talk.data, talk.used, NULL, 0, ids, count, err);
    train_out_free(&talk);
    return status;
}

static void post_tokenize(train_serve *s, const ravel__http_request *r) {
    ravel_error err = RAVEL_ERROR_INIT;
    const int32_t *ids = NULL;
    int64_t count = 0;
    if (!read_body(s, r, &s->doc)) return;
    const ravel__json_node *root = ravel__json_root(s->doc), *prompt = ravel__json_get(s->doc, root, "prompt");
    ravel_status status = RAVEL_OK;
    if (prompt && prompt->kind == RAVEL__JSON_STRING)
        status = train_text_encode(s->options.text, prompt->as.string, prompt->bytes, &ids, &count, &err);
    else if (ravel__json_get(s->doc, root, "messages"))
        status = encode_chat(s, s->doc, &ids, &count, &err);
    else
        status = ravel_error_set(&err, RAVEL_E_ARGUMENT, "give \"prompt\", a text, or \"messages\"");
    if (status) {
        train__serve_refuse(s, r->id, 400, NULL, err.message);
        return;
    }
    train_out out = {0};
    train_out_print(&out, "{\"count\":%lld,\"max_model_len\":%lld,\"tokens\":", (long long)count,
                    (long long)s->options.slot_tokens);
    train_out_tokens(&out, ids, count);
    train_out_puts(&out, "}\n");
    answer(s, r, &out);
}

static void post_detokenize(train_serve *s, const ravel__http_request *r) {
    ravel_error err = RAVEL_ERROR_INIT;
    if (!read_body(s, r, &s->doc)) return;
    const ravel__json_node *tokens = ravel__json_get(s->doc, ravel__json_root(s->doc), "tokens");
    if (!tokens || tokens->kind != RAVEL__JSON_ARRAY) {
        train__serve_refuse(s, r->id, 400, "tokens", "tokens must be a list of tokens");
        return;
    }
    int32_t *ids = malloc((size_t)tokens->count * sizeof *ids + 1);
    ravel_status status = ids ? train_ask_tokens(s->doc, tokens, s->options.vocab, ids, &err)
                              : ravel__no_memory(&err, (size_t)tokens->count * sizeof *ids, "tokens");
    if (status) {
        train__serve_refuse(s, r->id, ids ? 400 : 503, "tokens", err.message);
        free(ids);
        return;
    }
    train_out out = {0};
    size_t bytes = train_text_decode(s->options.text, ids, tokens->count, NULL, 0);
    char *text = malloc(bytes + 1);
    if (text) {
        (void)train_text_decode(s->options.text, ids, tokens->count, text, bytes + 1);
        train_out_puts(&out, "{\"prompt\":");
        train_out_quote(&out, text, bytes);
        train_out_puts(&out, "}\n");
    }
    out.failed |= !text;
    answer(s, r, &out);
    free(text);
    free(ids);
}

/* ---- completions ---------------------------------------------------------------------------------------- */

static int ends(void *user, const int32_t *tokens, int64_t count) {
    const train_job *job = user;
    return train_stop_reached(job->stops, job->text, tokens, count);
}

static ravel_status too_long(train_exchange *x, int64_t count, int64_t slot_tokens, ravel_error *err) {
    x->ask.field = count < slot_tokens ? "max_tokens" : x->ask.chat ? "messages" : "prompt";
    if (count >= slot_tokens)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the prompt has %lld tokens; this server holds %lld of prompt and answer (--context)",
                               (long long)count, (long long)slot_tokens);
    return ravel_error_set(
        err, RAVEL_E_ARGUMENT,
        "the prompt has %lld tokens and max_tokens is %lld; this server holds %lld of both (--context)",
        (long long)count, (long long)x->ask.max_tokens, (long long)slot_tokens);
}

/* The index-th prompt becomes a job. */
static ravel_status add_job(train_serve *s, train_exchange *x, const int32_t *ids, int64_t count, ravel_error *err) {
    const train_ask *ask = &x->ask;
    const train_serve_options *o = &s->options;
    if (count < 1) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a prompt needs at least one token");
    if (count >= o->slot_tokens || (ask->max_tokens > 0 && count + ask->max_tokens > o->slot_tokens))
        return too_long(x, count, o->slot_tokens, err);
    train_job *job;
    ravel_status status = train_job_create(ids, count, &job, err);
    if (status) return status;
    x->jobs[x->count] = job;
    job->id = ask->prompt_id + x->count;
    job->first_sample = (int32_t)ask->sample_id;
    job->index = x->count++;
    job->samples = (int32_t)ask->n;
    job->streams = ask->stream;
    job->prompt_top = (int32_t)ask->prompt_logprobs;
    job->user = x;
    job->adapter = x->adapter;
    job->stops = &x->stops;
    job->text = x->text;
    train_sampling *to = &job->sampling;
    to->temperature = ask->temperature;
    to->top_p = ask->top_p;
    to->min_p = ask->min_p;
    to->top_k = (int32_t)ask->top_k;
    to->max_tokens = ask->max_tokens > 0 ? ask->max_tokens : ask->max_tokens == 0; /* one, that is not shown */
    to->seed = ask->seed >= 0 ? (uint64_t)ask->seed : train__random(s->drawn, 1, 0);
    to->top = ask->logprobs > 0 ? (int32_t)ask->logprobs : 0;
    if (!ask->ignore_eos) memcpy(job->stop_ids, o->stops, (size_t)o->stop_count * sizeof *o->stops);
    to->stops = ask->ignore_eos ? 0 : o->stop_count;
    for (int32_t i = 0; i < ask->stop_id_count; i++) job->stop_ids[to->stops++] = ask->stop_ids[i];
    to->stop = job->stop_ids;
    to->ends = x->stops.count ? ends : NULL;
    to->user = job;
    return train_stop_specials(&x->stops, x->text, job->stop_ids, &to->stops,
                               (int32_t)(sizeof job->stop_ids / sizeof *job->stop_ids), err);
}

static ravel_status add_prompt(train_serve *s, train_exchange *x, const ravel__json_node *n, ravel_error *err) {
    const int32_t *ids;
    int64_t count = n->count;
    if (n->kind == RAVEL__JSON_STRING) {
        ravel_status status = train_text_encode(s->options.text, n->as.string, n->bytes, &ids, &count, err);
        return status ? status : add_job(s, x, ids, count, err);
    }
    int32_t *own = malloc((size_t)count * sizeof *own + 1);
    if (!own) return ravel__no_memory(err, (size_t)count * sizeof *own, "a prompt");
    ravel_status status = train_ask_tokens(x->doc, n, s->options.vocab, own, err);
    if (!status) status = add_job(s, x, own, count, err);
    free(own);
    return status;
}

static ravel_status add_prompts(train_serve *s, train_exchange *x, ravel_error *err) {
    const int32_t *ids;
    int64_t count = 1;
    ravel_status status = x->ask.chat ? RAVEL_OK : train_ask_prompts(x->doc, &x->ask, &count, err);
    if (!status && (status = train_engine_fits(s->engine, count, x->ask.n, err))) x->ask.field = "prompt";
    if (status) return status;
    x->jobs = calloc((size_t)count, sizeof(train_job *));
    x->choices = calloc((size_t)(count * x->ask.n), sizeof *x->choices);
    if (!x->jobs || !x->choices) return ravel__no_memory(err, (size_t)count * sizeof *x->choices, "prompts");
    if (x->ask.chat) {
        x->ask.field = "messages";
        status = encode_chat(s, x->doc, &ids, &count, err);
        return status ? status : add_job(s, x, ids, count, err);
    }
    x->ask.field = "prompt";
    const ravel__json_node *n = train_ask_first_prompt(x->doc, &x->ask);
    for (int64_t i = 0; i < count && !status; i++, n = ravel__json_next(x->doc, n)) status = add_prompt(s, x, n, err);
    return status;
}

static void look_for_calls(train_serve *s, train_exchange *x) {
    if (!train_ask_calls(&x->ask)) return;
    x->calls = (train_calls_options){s->calls, x->ask.several_calls ? INT64_MAX : 1, x->doc, x->ask.tools};
    if (s->calls || s->warned++) return;
    ravel__log(s->options.logger, RAVEL_LOG_WARN,
               "the chat template writes calls of tools in no form that is known here: they are given as text");
}

static ravel_status read_ask(train_serve *s, train_exchange *x, const ravel__http_request *r, int chat,
                             ravel_error *err) {
    train_ask_limits limits = {s->options.slots, s->options.vocab, s->options.top};
    ravel_status status = ravel__json_parse(r->body, r->bytes, NULL, &x->doc, err);
    if (!status) status = train_ask_parse(x->doc, chat, &limits, &x->ask, err);
    if (status) return status;
    int32_t i = 0;
    while (x->ask.model && i <= s->options.adapter_count && strcmp(x->ask.model, model_name(s, i)) != 0) i++;
    if (i > s->options.adapter_count) {
        x->ask.field = "model";
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "there is no model \"%.100s\" here; this server has \"%.100s\"%s", x->ask.model,
                               s->options.name, s->options.adapter_count ? " and adapters: see /v1/models" : "");
    }
    x->adapter = i;
    x->model = model_name(s, i);
    x->stops = (train_stop_texts){x->ask.stops, x->ask.stop_count};
    look_for_calls(s, x);
    return add_prompts(s, x, err);
}

static void complete(train_serve *s, const ravel__http_request *r, int chat) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_exchange *x = calloc(1, sizeof *x);
    if (!x) {
        train__serve_refuse(s, r->id, 503, NULL, "no memory for a request");
        return;
    }
    s->drawn = train__random(s->drawn, 0, 0);
    x->http = r->id;
    x->drawn = s->drawn;
    x->model = s->options.name;
    x->text = s->options.text;
    x->created = (int64_t)time(NULL);
    x->began = train__now();
    (void)snprintf(x->id, sizeof x->id, "%s-%016llx", chat ? "chatcmpl" : "cmpl", (unsigned long long)s->drawn);
    ravel_status status = read_ask(s, x, r, chat, &err);
    if (!status) {
        train__serve_begin(s, x);
        return;
    }
    int known = status == RAVEL_E_UNSUPPORTED && x->ask.field && strcmp(x->ask.field, "model") == 0;
    train__serve_refuse(s, r->id, known ? 404 : status == RAVEL_E_MEMORY ? 503 : 400, x->ask.field, err.message);
    train_exchange_free(x);
}

static void post_completions(train_serve *s, const ravel__http_request *r) {
    complete(s, r, 0);
}

static void post_chat(train_serve *s, const ravel__http_request *r) {
    complete(s, r, 1);
}

/* ---- the table ------------------------------------------------------------------------------------------ */

static const struct route {
    const char *path;
    int post, open; /* without a key */
    void (*handle)(train_serve *s, const ravel__http_request *r);
} routes[] = {{"/v1/completions", 1, 0, post_completions},
              {"/v1/chat/completions", 1, 0, post_chat},
              {"/v1/models", 0, 0, get_models},
              {one_model, 0, 0, get_model}, /* and a name */
              {"/tokenize", 1, 0, post_tokenize},
              {"/detokenize", 1, 0, post_detokenize},
              {"/health", 0, 1, get_health},
              {"/metrics", 0, 0, get_metrics}};

/* Whether the request has the key; the time that it takes does not say how much of it is right. */
static int has_key(const train_serve *s, const ravel__http_request *r) {
    const char *sent = ravel__http_header(r, "Authorization"), *key = s->options.key;
    if (!key) return 1;
    if (!sent || strncmp(sent, "Bearer ", 7) != 0) return 0;
    sent += 7;
    size_t bytes = strlen(sent), wanted = strlen(key);
    unsigned differs = bytes != wanted;
    for (size_t i = 0; i < bytes; i++) differs |= (unsigned char)(sent[i] ^ key[i % (wanted ? wanted : 1)]);
    return !differs;
}

void train__serve_route(train_serve *s, const ravel__http_request *r) {
    const struct route *found = NULL;
    char text[256];
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (strcmp(routes[i].path, r->path) == 0 ||
            (routes[i].path == one_model && strncmp(r->path, one_model, sizeof one_model - 1) == 0))
            found = &routes[i];
    int post = strcmp(r->method, "POST") == 0, get = strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0;
    if (!(found && found->open) && !has_key(s, r)) {
        train__serve_refuse(s, r->id, 401, NULL, "the API key is missing or wrong: send \"Authorization: Bearer KEY\"");
    } else if (!found) {
        (void)snprintf(text, sizeof text, "there is no %.150s here", r->path);
        train__serve_refuse(s, r->id, 404, NULL, text);
    } else if (found->post ? !post : !get) {
        (void)snprintf(text, sizeof text, "%s takes %s", found->path, found->post ? "POST" : "GET");
        train__serve_refuse(s, r->id, 405, NULL, text);
    } else {
        found->handle(s, r);
    }
}
