#include "train/rl/outside/teacher.h"

#include "base/assert.h"
#include "base/json.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 512 };
#define MODELS INT64_C(-1) /* id of the question for the model's name */

struct train_teacher {
    train_servers *servers;
    int32_t retries;
    const volatile int *stop;
    char model[NAME]; /* "": not known yet */
    ravel__json *doc;
};

/* Samples to be scored: those that are asked again, then from `next` on. */
typedef struct scoring {
    train_teacher *t;
    train_experience *x;
    int64_t next, left, again_count;
    int64_t *again; /* [samples] */
    int32_t *tried; /* [samples] in sixteenths */
    int naming;     /* the model's name is asked for */
} scoring;

/* The log-probs of a sample's tokens, from the answer. */
static ravel_status take(const train_experience *x, int64_t sample, const ravel__json *doc, const char *server,
                         ravel_error *err) {
    int64_t first = x->offsets[sample], count = x->offsets[sample + 1] - first, t = 0;
    const ravel__json_node *choice = ravel__json_first(doc, ravel__json_get(doc, ravel__json_root(doc), "choices"));
    const ravel__json_node *list = ravel__json_get(doc, choice, "prompt_logprobs");
    if (!list || list->kind != RAVEL__JSON_ARRAY || list->count != count)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "%s: the answer has no \"prompt_logprobs\" of %lld tokens in its first choice; a "
                               "teacher's server must know this field, as vLLM does",
                               server, (long long)count);
    for (const ravel__json_node *n = ravel__json_first(doc, list); n; n = ravel__json_next(doc, n), t++) {
        char key[16];
        double logprob = 0;
        RAVEL_ASSERT(t < count);
        x->taught[first + t] = 0;
        if (t == 0 || !x->mask[first + t]) continue;
        (void)snprintf(key, sizeof key, "%d", x->ids[first + t]);
        if (!ravel__json_real(ravel__json_get(doc, ravel__json_get(doc, n, key), "logprob"), &logprob) || logprob > 0)
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "%s: \"prompt_logprobs\" has no log-prob of token %s at place %lld", server, key,
                                   (long long)t);
        x->taught[first + t] = (float)logprob;
    }
    return RAVEL_OK;
}

/* The first model that the server lists. */
static ravel_status take_name(train_teacher *t, const char *server, ravel_error *err) {
    const ravel__json_node *list = ravel__json_get(t->doc, ravel__json_root(t->doc), "data");
    const ravel__json_node *id = ravel__json_get(t->doc, ravel__json_first(t->doc, list), "id");
    if (!id || id->kind != RAVEL__JSON_STRING || id->bytes >= NAME)
        return ravel_error_set(err, RAVEL_E_DATA, "%s/v1/models lists no model", server);
    (void)snprintf(t->model, sizeof t->model, "%s", id->as.string);
    return RAVEL_OK;
}

static ravel_status ask(scoring *s, int64_t sample, int32_t at, ravel_error *err) {
    const train_experience *x = s->x;
    train_out body = {0};
    const train_post post = {.id = sample, .path = "/v1/completions", .body = &body};
    train_out_puts(&body, "{\"model\":");
    train_out_quote(&body, s->t->model, strlen(s->t->model));
    train_out_puts(&body, ",\"max_tokens\":1,\"temperature\":0,\"prompt_logprobs\":0,\"prompt\":");
    train_out_tokens(&body, x->ids + x->offsets[sample], x->offsets[sample + 1] - x->offsets[sample]);
    train_out_puts(&body, "}");
    ravel_status status = train_servers_post(s->t->servers, at, &post, err);
    train_out_free(&body);
    return status;
}

/* As many as the servers take now; at first the name alone. */
static ravel_status ask_all(scoring *s, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int32_t at = 0;
    while (!status && (s->again_count || s->next < s->x->count) && (at = train_servers_choose(s->t->servers)) >= 0) {
        if (!s->t->model[0]) {
            const train_post post = {.id = MODELS, .path = "/v1/models"};
            if (s->naming) break;
            s->naming = 1;
            status = train_servers_post(s->t->servers, at, &post, err);
        } else {
            status = ask(s, s->again_count ? s->again[--s->again_count] : s->next++, at, err);
        }
    }
    return status;
}

/* What failed is asked again, until its tries are used up. */
static ravel_status settle(scoring *s, const train_served *a, ravel_error *err) {
    train_teacher *t = s->t;
    const char *url = train_servers_url(t->servers, a->at);
    ravel_error why = a->why;
    ravel_status status = (ravel_status)why.status;
    if (!status) status = ravel__json_parse(a->body, a->bytes, NULL, &t->doc, &why);
    if (!status) status = a->id == MODELS ? take_name(t, url, &why) : take(s->x, a->id, t->doc, url, &why);
    if (a->id == MODELS) s->naming = 0;
    if (!status && a->id != MODELS) s->left--;
    if (!status) return RAVEL_OK;
    int32_t *tried = &s->tried[a->id == MODELS ? s->x->count : a->id];
    *tried += a->cost;
    if (status == RAVEL_E_DATA || status == RAVEL_E_MEMORY || *tried >= TRAIN_TRY * (t->retries + 1))
        return ravel_error_set(err, status, "--teacher: %s", why.message);
    if (a->id != MODELS) s->again[s->again_count++] = a->id;
    return RAVEL_OK;
}

ravel_status train_teacher_score(train_teacher *t, train_experience *x, ravel_error *err) {
    scoring s = {.t = t, .x = x, .left = x->count};
    train_served a;
    RAVEL_ASSERT(x->with_teacher);
    size_t bytes = ((size_t)x->count + 1) * (sizeof *s.again + sizeof *s.tried);
    s.again = calloc(1, bytes);
    if (!s.again) return ravel__no_memory(err, bytes, "a teacher");
    s.tried = (int32_t *)(void *)(s.again + x->count + 1);
    ravel_status status = RAVEL_OK;
    while (!status && s.left) {
        train_polls polls = {0};
        status = ask_all(&s, err);
        train_servers_poll(t->servers, &polls);
        train_polls_wait(&polls, 0.2);
        train_servers_advance(t->servers, &polls);
        train_polls_free(&polls);
        while (!status && train_servers_take(t->servers, &a)) status = settle(&s, &a, err);
        if (!status && t->stop && *t->stop)
            status = ravel_error_set(err, RAVEL_E_STATE, "stopped by a signal while waiting for the teacher");
        if (!status) status = train_servers_status(t->servers, err);
    }
    train_servers_clear(t->servers);
    free(s.again);
    return status;
}

ravel_status train_teacher_open(const train_servers_options *options, int32_t retries, const volatile int *stop,
                                train_teacher **teacher, ravel_error *err) {
    train_servers_options own = *options;
    train_teacher *t = calloc(1, sizeof *t);
    if (!t) return ravel__no_memory(err, sizeof *t, "a teacher");
    own.what = "--teacher";
    own.openai = 1;
    *t = (train_teacher){.retries = retries, .stop = stop};
    ravel_status status = train_servers_open(&own, &t->servers, err);
    if (status) {
        free(t);
        return status;
    }
    *teacher = t;
    return RAVEL_OK;
}

void train_teacher_free(train_teacher *t) {
    if (!t) return;
    train_servers_free(t->servers);
    ravel__json_free(t->doc);
    free(t);
}
