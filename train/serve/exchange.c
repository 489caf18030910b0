#include "train/serve/exchange.h"

#include "base/assert.h"
#include "base/memory.h"

#include "train/kernels/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void train_exchange_free(train_exchange *x) {
    if (!x) return;
    for (int64_t i = 0; x->choices && i < x->count * x->ask.n; i++) {
        train_text_stream_close(&x->choices[i].letters);
        train_stop_stream_free(&x->choices[i].stop);
        train_out_free(&x->choices[i].text);
        train_calls_free(&x->choices[i].calls);
    }
    for (int64_t i = 0; i < x->count; i++) train_job_free(x->jobs[i]);
    ravel__json_free(x->doc);
    free(x->choices);
    free(x->jobs);
    free(x);
}

/* ---- text ----------------------------------------------------------------------------------------------- */

static ravel_status show(train_serve_choice *c, const char *piece, size_t bytes, ravel_error *err) {
    ravel_status status = train_stop_stream_push(&c->stop, piece, bytes, &piece, &bytes, err);
    if (!status) train_out_put(&c->text, piece, bytes);
    return status;
}

static void read_calls(const train_exchange *x, train_serve_choice *c) {
    if (x->calls.form) train_calls_read(&c->calls, &x->calls, c->text.data, c->text.used, c->ended != 0);
}

static const train_out *shown(const train_exchange *x, const train_serve_choice *c) {
    return x->calls.form ? &c->calls.text : &c->text;
}

static ravel_status advance(train_exchange *x, train_serve_choice *c, const train_job_answer *a, ravel_error *err) {
    const char *piece;
    size_t bytes;
    int32_t ended = atomic_load(&a->ended);
    int64_t count = x->ask.max_tokens ? atomic_load(&a->count) : 0;
    int64_t letters = count - (count && atomic_load(&a->by_token) ? 1 : 0);
    ravel_status status = RAVEL_OK;
    if (!c->letters.text) {
        train_stop_stream_init(&c->stop, &x->stops);
        status = train_text_stream_open(x->text, &c->letters, err);
    }
    /* `by_token` may be ahead of `count`: the last token then waits for the end to be told. */
    for (int64_t i = c->seen; i < letters && !status; i++) {
        train_text_stream_push(&c->letters, a->tokens[i], &piece, &bytes);
        status = show(c, piece, bytes, err);
    }
    c->seen = ended ? count : train__max(c->seen, letters);
    if (!ended) read_calls(x, c);
    if (status || !ended || c->ended) return status;
    train_text_stream_flush(&c->letters, &piece, &bytes);
    status = show(c, piece, bytes, err);
    train_stop_stream_flush(&c->stop, &piece, &bytes);
    train_out_put(&c->text, piece, bytes);
    c->ended = x->ask.max_tokens ? ended : 3;
    read_calls(x, c);
    return status;
}

static train_serve_choice *choices_of(train_exchange *x, const train_job *job) {
    RAVEL_ASSERT(job->index >= 0 && job->index < x->count);
    return x->choices + job->index * x->ask.n;
}

ravel_status train_exchange_advance(train_exchange *x, const train_job *job, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; job->answers && i < job->samples && !status; i++) {
        train_serve_choice *c = choices_of(x, job) + i;
        status = advance(x, c, &job->answers[i], err);
        if (c->text.failed || c->calls.text.failed) status = ravel__no_memory(err, c->text.used, "an answer");
    }
    return status;
}

/* ---- tokens --------------------------------------------------------------------------------------------- */

/* The bytes of a token, special ones by name. */
static const char *token_bytes(const train_exchange *x, int32_t id, char own[16], size_t *bytes) {
    const ravel_tokenizer *t = train_text_tokenizer(x->text);
    const char *text = t && !x->ask.tokens_as_ids ? ravel_tokenizer_bytes(t, id, bytes) : NULL;
    if (text) return text;
    if (!t && !x->ask.tokens_as_ids && id < 256 && !train_text_missing(x->text)) {
        own[0] = (char)id;
        *bytes = 1;
    } else {
        *bytes = (size_t)snprintf(own, 16, "token_id:%d", id % 1000000);
    }
    return own;
}

static void put_token(train_out *o, const train_exchange *x, int32_t id) {
    char own[16];
    size_t bytes;
    const char *text = token_bytes(x, id, own, &bytes);
    train_out_quote(o, text, bytes);
}

static double real_of(float logprob) {
    return logprob >= -9999.0f ? (double)logprob : -9999.0;
}

/* {"token", "logprob", "bytes"} without its end. */
static void put_chat_token(train_out *o, const train_exchange *x, int32_t id, float logprob) {
    char own[16];
    size_t bytes;
    const char *text = token_bytes(x, id, own, &bytes);
    train_out_puts(o, "{\"token\":");
    train_out_quote(o, text, bytes);
    train_out_print(o, ",\"logprob\":%.9g,\"bytes\":[", real_of(logprob));
    for (size_t i = 0; i < bytes; i++) train_out_print(o, i ? ",%d" : "%d", (unsigned char)text[i]);
    train_out_puts(o, "]");
}

static void put_chat_logprobs(train_out *o, const train_exchange *x, const train_job_answer *a, int64_t from,
                              int64_t to) {
    int64_t top = x->ask.logprobs;
    train_out_puts(o, "{\"content\":[");
    for (int64_t i = from; i < to; i++) {
        if (i > from) train_out_puts(o, ",");
        put_chat_token(o, x, a->tokens[i], a->logprob[i]);
        train_out_puts(o, ",\"top_logprobs\":[");
        for (int64_t k = 0; k < top; k++) {
            if (k) train_out_puts(o, ",");
            put_chat_token(o, x, a->top[i * top + k].token, a->top[i * top + k].logprob);
            train_out_puts(o, "}");
        }
        train_out_puts(o, "]}");
    }
    train_out_puts(o, "]}");
}

static void put_top(train_out *o, const train_exchange *x, const train_top *top, int64_t count) {
    train_out_puts(o, "{");
    for (int64_t k = 0; k < count; k++) {
        if (k) train_out_puts(o, ",");
        put_token(o, x, top[k].token);
        train_out_print(o, ":%.9g", real_of(top[k].logprob));
    }
    train_out_puts(o, "}");
}

static void put_logprobs(train_out *o, const train_exchange *x, train_serve_choice *c, const train_job_answer *a,
                         int64_t from, int64_t to) {
    int64_t top = x->ask.logprobs;
    train_out_puts(o, "{\"tokens\":[");
    for (int64_t i = from; i < to; i++) {
        if (i > from) train_out_puts(o, ",");
        put_token(o, x, a->tokens[i]);
    }
    train_out_puts(o, "],\"token_logprobs\":[");
    for (int64_t i = from; i < to; i++) train_out_print(o, i > from ? ",%.9g" : "%.9g", real_of(a->logprob[i]));
    train_out_puts(o, top ? "],\"top_logprobs\":[" : "],\"top_logprobs\":null,\"text_offset\":[");
    for (int64_t i = from; top && i < to; i++) {
        if (i > from) train_out_puts(o, ",");
        put_top(o, x, a->top + i * top, top);
    }
    if (top) train_out_puts(o, "],\"text_offset\":[");
    for (int64_t i = from; i < to; i++) {
        char own[16];
        size_t bytes;
        const char *text = token_bytes(x, a->tokens[i], own, &bytes);
        train_out_print(o, i > from ? ",%lld" : "%lld", (long long)c->offset);
        for (size_t k = 0; k < bytes; k++) c->offset += ((unsigned char)text[k] & 0xc0) != 0x80;
    }
    train_out_puts(o, "]}");
}

/* "logprobs" and what belongs to tokens [from, to) of a choice. */
static void put_tokens(train_out *o, const train_exchange *x, train_serve_choice *c, const train_job_answer *a,
                       int64_t from, int64_t to) {
    train_out_puts(o, ",\"logprobs\":");
    if (x->ask.logprobs < 0)
        train_out_puts(o, "null");
    else if (x->ask.chat)
        put_chat_logprobs(o, x, a, from, to);
    else
        put_logprobs(o, x, c, a, from, to);
    if (!x->ask.token_ids) return;
    train_out_puts(o, ",\"token_ids\":");
    train_out_tokens(o, a->tokens + from, to - from);
    train_out_puts(o, ",\"versions\":[");
    for (int64_t i = from; i < to; i++) train_out_print(o, i > from ? ",%lld" : "%lld", (long long)a->versions[i]);
    train_out_puts(o, "]");
}

static void put_reason(train_out *o, const train_serve_choice *c) {
    const char *stop = c->calls.count ? "\"tool_calls\"" : "\"stop\"";
    train_out_print(o, ",\"finish_reason\":%s", !c->ended ? "null" : c->ended == 3 ? "\"length\"" : stop);
}

/* Nine letters and digits: what Mistral's template takes. */
static void put_call_id(train_out *o, const train_exchange *x, const train_serve_choice *c, int64_t call) {
    uint64_t number = train__random(x->drawn, (uint64_t)(c - x->choices), (uint64_t)call);
    train_out_print(o, "\"id\":\"%09llx\"", (unsigned long long)(number & 0xfffffffff));
}

/* Calls [from, count) of a choice; `event`: with their index. */
static void put_calls(train_out *o, const train_exchange *x, const train_serve_choice *c, int64_t from, int event) {
    const char *parts = c->calls.parts.data;
    if (from == c->calls.count) return;
    train_out_puts(o, ",\"tool_calls\":[");
    for (int64_t i = from; i < c->calls.count; i++) {
        const train_call *call = &c->calls.all[i];
        train_out_puts(o, i > from ? ",{" : "{");
        if (event) train_out_print(o, "\"index\":%lld,", (long long)i);
        put_call_id(o, x, c, i);
        train_out_puts(o, ",\"type\":\"function\",\"function\":{\"name\":");
        train_out_quote(o, parts + call->name, call->name_bytes);
        train_out_puts(o, ",\"arguments\":");
        train_out_quote(o, parts + call->arguments, call->arguments_bytes);
        train_out_puts(o, "}}");
    }
    train_out_puts(o, "]");
}

static void put_prompt_ids(train_out *o, const train_job *job) {
    train_out_puts(o, ",\"prompt_token_ids\":");
    train_out_tokens(o, job->prompt, job->count);
}

static void put_scored(train_out *o, const train_exchange *x, int32_t id, float logprob, int64_t rank) {
    train_out_print(o, "\"%d\":{\"logprob\":%.9g,\"rank\":", id, real_of(logprob));
    train_out_print(o, rank ? "%lld" : "null", (long long)rank);
    train_out_puts(o, ",\"decoded_token\":");
    put_token(o, x, id);
    train_out_puts(o, "}");
}

/* null, then per token {"TOKEN": {"logprob", "rank", "decoded_token"}}: itself, and the likeliest beside it. */
static void put_prompt_logprobs(train_out *o, const train_exchange *x, const train_job *job) {
    int64_t top = x->ask.prompt_logprobs;
    if (top < 0) return;
    train_out_puts(o, ",\"prompt_logprobs\":[null");
    for (int64_t t = 1; t < job->count; t++) {
        const train_top *best = top ? job->prompt_best + t * top : NULL;
        int64_t own = 0;
        while (own < top && best[own].token != job->prompt[t]) own++;
        train_out_puts(o, ",{");
        put_scored(o, x, job->prompt[t], job->prompt_logprob[t], own < top ? own + 1 : 0);
        for (int64_t k = 0; k < top; k++) {
            if (k == own) continue;
            train_out_puts(o, ",");
            put_scored(o, x, best[k].token, best[k].logprob, k + 1);
        }
        train_out_puts(o, "}");
    }
    train_out_puts(o, "]");
}

/* ---- whole and in events -------------------------------------------------------------------------------- */

static void put_head(train_out *o, const train_exchange *x, const char *object) {
    train_out_print(o, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", x->id, object,
                    (long long)x->created);
    train_out_quote(o, x->model, strlen(x->model));
}

static void put_usage(train_out *o, const train_exchange *x) {
    int64_t prompts = 0, answers = 0;
    for (int64_t i = 0; i < x->count; i++) prompts += x->jobs[i]->count;
    for (int64_t i = 0; i < x->count * x->ask.n; i++) answers += x->choices[i].seen;
    train_out_print(o, ",\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,\"total_tokens\":%lld}",
                    (long long)prompts, (long long)answers, (long long)prompts + (long long)answers);
}

static void put_event(train_out *o, train_exchange *x, const train_job *job, int32_t sample) {
    train_serve_choice *c = choices_of(x, job) + sample;
    const train_job_answer *a = &job->answers[sample];
    int chat = x->ask.chat, first = !c->begun;
    const train_out *text = shown(x, c);
    train_out_puts(o, "data: ");
    put_head(o, x, chat ? "chat.completion.chunk" : "text_completion");
    if (chat && first && x->ask.token_ids) put_prompt_ids(o, job);
    train_out_print(o, ",\"choices\":[{\"index\":%lld,", (long long)job->index * x->ask.n + sample);
    train_out_puts(o, !chat   ? "\"text\":"
                      : first ? "\"delta\":{\"role\":\"assistant\",\"content\":"
                              : "\"delta\":{\"content\":");
    train_out_quote(o, text->data + c->sent, text->used - c->sent);
    put_calls(o, x, c, c->called, 1);
    if (chat) train_out_puts(o, "}");
    put_tokens(o, x, c, a, c->told, c->seen);
    if (!chat && first && x->ask.token_ids) put_prompt_ids(o, job);
    put_reason(o, c);
    train_out_puts(o, "}]");
    if (x->ask.usage) train_out_puts(o, ",\"usage\":null");
    train_out_puts(o, "}\n\n");
    c->begun = 1;
    c->sent = text->used;
    c->called = c->calls.count;
    c->told = c->seen;
    c->finished = c->ended != 0;
}

void train_exchange_events(train_exchange *x, const train_job *job, train_out *o) {
    int tokens = x->ask.token_ids || x->ask.logprobs >= 0;
    for (int32_t i = 0; job->answers && i < job->samples; i++) {
        train_serve_choice *c = choices_of(x, job) + i;
        int more =
            shown(x, c)->used > c->sent || c->calls.count > c->called || (tokens && c->seen > c->told) || c->ended;
        if (more && !c->finished) put_event(o, x, job, i);
    }
}

void train_exchange_end(const train_exchange *x, train_out *o) {
    if (x->ask.usage) {
        train_out_puts(o, "data: ");
        put_head(o, x, x->ask.chat ? "chat.completion.chunk" : "text_completion");
        train_out_puts(o, ",\"choices\":[]");
        put_usage(o, x);
        train_out_puts(o, "}\n\n");
    }
    train_out_puts(o, "data: [DONE]\n\n");
}

static void put_choice(train_out *o, train_exchange *x, const train_job *job, int32_t sample) {
    train_serve_choice *c = choices_of(x, job) + sample;
    train_out_print(o, "{\"index\":%lld,", (long long)job->index * x->ask.n + sample);
    train_out_puts(o, x->ask.chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    const train_out *text = shown(x, c);
    if (c->calls.count && !text->used)
        train_out_puts(o, "null");
    else
        train_out_quote(o, text->data, text->used);
    put_calls(o, x, c, 0, 0);
    if (x->ask.chat) train_out_puts(o, ",\"refusal\":null}");
    put_tokens(o, x, c, &job->answers[sample], 0, c->seen);
    if (!x->ask.chat && x->ask.token_ids) put_prompt_ids(o, job);
    put_prompt_logprobs(o, x, job);
    put_reason(o, c);
    train_out_puts(o, "}");
}

void train_exchange_whole(train_exchange *x, train_out *o) {
    put_head(o, x, x->ask.chat ? "chat.completion" : "text_completion");
    if (x->ask.chat && x->ask.token_ids) put_prompt_ids(o, x->jobs[0]);
    train_out_puts(o, ",\"choices\":[");
    for (int64_t i = 0; i < x->count * x->ask.n; i++) {
        if (i) train_out_puts(o, ",");
        put_choice(o, x, x->jobs[i / x->ask.n], (int32_t)(i % x->ask.n));
    }
    train_out_puts(o, "]");
    put_usage(o, x);
    train_out_puts(o, "}\n");
}
