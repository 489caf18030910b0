#include "train/serve/ask.h"

#include "base/assert.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

typedef enum kind { REAL, INTEGER, FLAG, TEXT, NODE, LIST, OFF, IGNORED } kind;

enum { COMPLETION = 1, CHAT = 2, BOTH = 3 };

typedef struct row {
    const char *name;
    kind kind;
    int32_t forms;
    size_t at;       /* in train_ask */
    double min, max; /* of a number, both included */
} row;

#define AT(field) offsetof(train_ask, field)
static const row rows[] = {
    {"model", TEXT, BOTH, AT(model), 0, 0},
    {"prompt", NODE, COMPLETION, AT(prompt), 0, 0},
    {"prompt_token_ids", NODE, COMPLETION, AT(prompt_ids), 0, 0},
    {"messages", LIST, CHAT, AT(messages), 0, 0},
    {"tools", LIST, CHAT, AT(tools), 0, 0}, /* the template reads it from the document, as `documents` */
    {"tool_choice", NODE, CHAT, AT(tool_choice), 0, 0},
    {"parallel_tool_calls", FLAG, CHAT, AT(several_calls), 0, 0},
    {"documents", IGNORED, CHAT, 0, 0, 0},
    {"chat_template_kwargs", IGNORED, CHAT, 0, 0, 0},
    {"max_tokens", INTEGER, COMPLETION, AT(max_tokens), 0, 1e9},
    {"max_tokens", INTEGER, CHAT, AT(max_tokens), 1, 1e9},
    {"max_completion_tokens", INTEGER, BOTH, AT(max_tokens), 1, 1e9},
    {"temperature", REAL, BOTH, AT(temperature), 0, 100},
    {"top_p", REAL, BOTH, AT(top_p), 1e-9, 1},
    {"top_k", INTEGER, BOTH, AT(top_k), -1, 1 << 24},
    {"min_p", REAL, BOTH, AT(min_p), 0, 0.999999},
    {"n", INTEGER, BOTH, AT(n), 1, 1e6},
    {"seed", INTEGER, BOTH, AT(seed), 0, 9.2e18},
    {"prompt_id", INTEGER, BOTH, AT(prompt_id), 0, 9e18},
    {"sample_id", INTEGER, BOTH, AT(sample_id), 0, 1 << 30},
    {"stream", FLAG, BOTH, AT(stream), 0, 0},
    {"stream_options", NODE, BOTH, AT(stream_options), 0, 0},
    {"stop", NODE, BOTH, AT(stop_node), 0, 0},
    {"stop_token_ids", LIST, BOTH, AT(stop_ids_node), 0, 0},
    {"ignore_eos", FLAG, BOTH, AT(ignore_eos), 0, 0},
    {"logprobs", INTEGER, COMPLETION, AT(logprobs), 0, 1e6},
    {"prompt_logprobs", INTEGER, COMPLETION, AT(prompt_logprobs), 0, 1e6},
    {"logprobs", FLAG, CHAT, AT(with_logprobs), 0, 0},
    {"top_logprobs", INTEGER, CHAT, AT(top_logprobs), 0, 1e6},
    {"return_token_ids", FLAG, BOTH, AT(token_ids), 0, 0},
    {"return_tokens_as_token_ids", FLAG, BOTH, AT(tokens_as_ids), 0, 0},
    {"user", IGNORED, BOTH, 0, 0, 0},
    {"metadata", IGNORED, BOTH, 0, 0, 0},
    {"store", IGNORED, BOTH, 0, 0, 0},
    {"service_tier", IGNORED, BOTH, 0, 0, 0},
    {"safety_identifier", IGNORED, BOTH, 0, 0, 0},
    {"prompt_cache_key", IGNORED, BOTH, 0, 0, 0},
    {"priority", IGNORED, BOTH, 0, 0, 0},
    {"request_id", IGNORED, BOTH, 0, 0, 0},
    {"echo", OFF, BOTH, 0, 0, 0},
    {"suffix", OFF, COMPLETION, 0, 0, 0},
    {"best_of", OFF, COMPLETION, 0, 1, 1},
    {"prompt_logprobs", OFF, CHAT, 0, 0, 0},
    {"presence_penalty", OFF, BOTH, 0, 0, 0},
    {"frequency_penalty", OFF, BOTH, 0, 0, 0},
    {"repetition_penalty", OFF, BOTH, 0, 1, 1},
    {"length_penalty", OFF, BOTH, 0, 1, 1},
    {"min_tokens", OFF, BOTH, 0, 0, 0},
    {"logit_bias", OFF, BOTH, 0, 0, 0},
    {"use_beam_search", OFF, BOTH, 0, 0, 0},
    {"include_stop_str_in_output", OFF, BOTH, 0, 0, 0},
    {"response_format", OFF, BOTH, 0, 0, 0},
    {"functions", OFF, CHAT, 0, 0, 0},
    {"modalities", OFF, CHAT, 0, 0, 0},
    {"skip_special_tokens", OFF, BOTH, 0, 1, 1},
    {"add_special_tokens", OFF, COMPLETION, 0, 1, 1},
    {"add_generation_prompt", OFF, CHAT, 0, 1, 1},
};

static ravel_status wrong(train_ask *ask, const char *field, const char *must, ravel_error *err) {
    ask->field = field;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s must be %s", field, must);
}

static const row *find(const char *name, int32_t form) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if ((rows[i].forms & form) && strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

/* Whether a value asks for nothing: null, false, 0, "", [], {}, or the number that is the default. */
static int is_off(const ravel__json *doc, const row *r, const ravel__json_node *n) {
    double number;
    int flag;
    if (n->kind == RAVEL__JSON_NULL) return 1;
    if (ravel__json_boolean(n, &flag)) return flag == (r->min > 0);
    if (ravel__json_real(n, &number)) return number == r->min;
    if (n->kind == RAVEL__JSON_STRING)
        return n->bytes == 0 || ravel__json_is(n, "auto") || ravel__json_is(n, "none") || ravel__json_is(n, "text");
    if (ravel__json_is(ravel__json_get(doc, n, "type"), "text")) return 1;
    return n->count == 0;
}

static ravel_status take_number(train_ask *ask, const row *r, const ravel__json_node *n, ravel_error *err) {
    char *to = (char *)ask + r->at;
    double number;
    int64_t whole = 0;
    int is_number = ravel__json_real(n, &number), fits = is_number && number >= r->min && number <= r->max;
    if (fits && r->kind == INTEGER) fits = ravel__json_integer(n, &whole);
    ask->field = r->name;
    if (!fits)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s must be %s from %g to %g", r->name,
                               r->kind == INTEGER ? "a whole number" : "a number", r->min, r->max);
    if (r->kind == INTEGER)
        memcpy(to, &whole, sizeof whole);
    else
        memcpy(to, &number, sizeof number);
    return RAVEL_OK;
}

static ravel_status take_member(const ravel__json *doc, train_ask *ask, const row *r, const ravel__json_node *n,
                                ravel_error *err) {
    char *to = (char *)ask + r->at;
    const void *node = n;
    int flag;
    if (n->kind == RAVEL__JSON_NULL || r->kind == IGNORED) return RAVEL_OK;
    switch (r->kind) {
    case REAL:
    case INTEGER: return take_number(ask, r, n, err);
    case FLAG:
        if (!ravel__json_boolean(n, &flag)) return wrong(ask, r->name, "true or false", err);
        memcpy(to, &(int32_t){flag}, sizeof(int32_t));
        return RAVEL_OK;
    case TEXT:
        if (n->kind != RAVEL__JSON_STRING) return wrong(ask, r->name, "a text", err);
        memcpy(to, &n->as.string, sizeof n->as.string);
        return RAVEL_OK;
    case LIST:
        if (n->kind != RAVEL__JSON_ARRAY) return wrong(ask, r->name, "a list", err);
        memcpy(to, &node, sizeof node);
        return RAVEL_OK;
    case NODE: memcpy(to, &node, sizeof node); return RAVEL_OK;
    case OFF:
        if (is_off(doc, r, n)) return RAVEL_OK;
        ask->field = r->name;
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s is not supported by this server: leave it out", r->name);
    case IGNORED: break;
    }
    return RAVEL_OK;
}

/* ---- stops ---------------------------------------------------------------------------------------------- */

static ravel_status take_stop(train_ask *ask, const ravel__json_node *n, ravel_error *err) {
    if (n->kind != RAVEL__JSON_STRING || n->bytes == 0 || n->bytes > TRAIN_ASK_STOP_BYTES ||
        strlen(n->as.string) != n->bytes || ask->stop_count == TRAIN_ASK_STOPS)
        return wrong(ask, "stop", "a text of 1 to 256 bytes, or a list of up to 16", err);
    ask->stops[ask->stop_count++] = n->as.string;
    return RAVEL_OK;
}

static ravel_status take_stops(const ravel__json *doc, train_ask *ask, int64_t vocab, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    const ravel__json_node *list = ask->stop_node;
    if (list && list->kind == RAVEL__JSON_ARRAY)
        for (const ravel__json_node *n = ravel__json_first(doc, list); n && !status; n = ravel__json_next(doc, n))
            status = take_stop(ask, n, err);
    else if (list)
        status = take_stop(ask, list, err);
    if (!status && ask->stop_ids_node) {
        if (ask->stop_ids_node->count > TRAIN_ASK_STOP_IDS) return wrong(ask, "stop_token_ids", "up to 16 tokens", err);
        ask->field = "stop_token_ids";
        ask->stop_id_count = ask->stop_ids_node->count;
        status = train_ask_tokens(doc, ask->stop_ids_node, vocab, ask->stop_ids, err);
    }
    return status;
}

/* ---- all of it ------------------------------------------------------------------------------------------ */

/* What concerns more than one field. */
static ravel_status check(const ravel__json *doc, train_ask *ask, const train_ask_limits *limits, ravel_error *err) {
    char text[64];
    const ravel__json_node *usage = ravel__json_get(doc, ask->stream_options, "include_usage");
    (void)ravel__json_boolean(usage, &ask->usage);
    if (ask->top_k < 0) ask->top_k = 0;
    if (ask->chat && ask->with_logprobs) ask->logprobs = ask->top_logprobs < 0 ? 0 : ask->top_logprobs;
    if (ask->chat && !ask->with_logprobs && ask->top_logprobs > 0)
        return wrong(ask, "logprobs", "true if top_logprobs is given", err);
    (void)snprintf(text, sizeof text, "at most %d (--top-logprobs)", limits->top);
    if (ask->logprobs > limits->top) return wrong(ask, ask->chat ? "top_logprobs" : "logprobs", text, err);
    if (ask->prompt_logprobs > limits->top) return wrong(ask, "prompt_logprobs", text, err);
    if (ask->prompt_logprobs >= 0 && ask->stream) return wrong(ask, "stream", "off if prompt_logprobs is given", err);
    if (ask->max_tokens == 0 && ask->prompt_logprobs < 0)
        return wrong(ask, "max_tokens", "1 or more unless prompt_logprobs is given", err);
    (void)snprintf(text, sizeof text, "at most %lld, the concurrent answers (--slots)", (long long)limits->samples);
    if (ask->n > limits->samples) return wrong(ask, "n", text, err);
    if (ask->chat && (!ask->messages || ask->messages->count == 0))
        return wrong(ask, "messages", "a list with at least one message", err);
    if (ask->tool_choice && !ravel__json_is(ask->tool_choice, "auto") && !ravel__json_is(ask->tool_choice, "none"))
        return wrong(ask, "tool_choice", "\"auto\" or \"none\": this server cannot make a model call a tool", err);
    if (!ask->chat && !ask->prompt == !ask->prompt_ids)
        return wrong(ask, "prompt", "given, or prompt_token_ids, and not both", err);
    return RAVEL_OK;
}

ravel_status train_ask_parse(const ravel__json *doc, int32_t chat, const train_ask_limits *limits, train_ask *ask,
                             ravel_error *err) {
    const ravel__json_node *root = ravel__json_root(doc);
    int32_t form = chat ? CHAT : COMPLETION;
    *ask = (train_ask){.chat = chat,
                       .temperature = 1,
                       .top_p = 1,
                       .n = 1,
                       .max_tokens = chat ? -1 : 16,
                       .seed = -1,
                       .logprobs = -1,
                       .top_logprobs = -1,
                       .prompt_logprobs = -1,
                       .several_calls = 1};
    if (root->kind != RAVEL__JSON_OBJECT)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the body must be a JSON object");
    for (const ravel__json_node *n = ravel__json_first(doc, root); n; n = ravel__json_next(doc, n)) {
        const row *r = find(n->key, form);
        ask->field = r ? r->name : NULL;
        if (!r && find(n->key, BOTH))
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "%.60s does not belong to %s", n->key,
                                   chat ? "chat completions" : "completions");
        if (!r) return ravel_error_set(err, RAVEL_E_ARGUMENT, "there is no field \"%.60s\" here", n->key);
        ravel_status status = take_member(doc, ask, r, n, err);
        if (status) return status;
    }
    ravel_status status = take_stops(doc, ask, limits->vocab, err);
    if (!status) status = check(doc, ask, limits, err);
    if (!status) ask->field = NULL;
    return status;
}

int train_ask_calls(const train_ask *ask) {
    return ask->tools && ask->tools->count && !ravel__json_is(ask->tool_choice, "none");
}

/* ---- prompts -------------------------------------------------------------------------------------------- */

static const ravel__json_node *prompts_of(const train_ask *ask) {
    return ask->prompt ? ask->prompt : ask->prompt_ids;
}

static int is_one(const ravel__json *doc, const ravel__json_node *n) {
    if (n->kind != RAVEL__JSON_ARRAY) return 1;
    const ravel__json_node *first = ravel__json_first(doc, n);
    return !first || (first->kind != RAVEL__JSON_ARRAY && first->kind != RAVEL__JSON_STRING);
}

ravel_status train_ask_prompts(const ravel__json *doc, train_ask *ask, int64_t *count, ravel_error *err) {
    static const char must[] = "a text, a list of tokens, or a list of these, none of them empty lists";
    const ravel__json_node *all = prompts_of(ask);
    int one = is_one(doc, all);
    for (const ravel__json_node *n = one ? all : ravel__json_first(doc, all); n;
         n = one ? NULL : ravel__json_next(doc, n))
        if ((n->kind != RAVEL__JSON_STRING || !ask->prompt) && (n->kind != RAVEL__JSON_ARRAY || n->count == 0))
            return wrong(ask, ask->prompt ? "prompt" : "prompt_token_ids", must, err);
    *count = one ? 1 : all->count;
    return RAVEL_OK;
}

const ravel__json_node *train_ask_first_prompt(const ravel__json *doc, const train_ask *ask) {
    const ravel__json_node *all = prompts_of(ask);
    return is_one(doc, all) ? all : ravel__json_first(doc, all);
}

ravel_status train_ask_tokens(const ravel__json *doc, const ravel__json_node *node, int64_t vocab, int32_t *ids,
                              ravel_error *err) {
    int64_t i = 0, id;
    for (const ravel__json_node *n = ravel__json_first(doc, node); n; n = ravel__json_next(doc, n), i++) {
        if (!ravel__json_integer(n, &id) || id < 0 || id >= vocab)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "token %lld is not a whole number from 0 to %lld",
                                   (long long)i, (long long)vocab - 1);
        ids[i] = (int32_t)id;
    }
    RAVEL_ASSERT(i == node->count);
    return RAVEL_OK;
}
