#include "train/run/sft/answers.h"

#include "base/assert.h"
#include "base/log.h"
#include "train/kernels/host.h"
#include "train/learn/whole.h"
#include "train/model/generate/generator.h"
#include "train/rl/text.h"

#include <ravel/exchange.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TRIES = 8 }; /* rows that are looked at for each prompt: some have none */

/* A row: its prompt, then its answer. */
typedef struct question {
    int32_t *tokens; /* [prompt + answer] */
    int64_t prompt, answer;
} question;

struct train_answers {
    const train_config *config;
    const ravel_shape *shape;
    train_text *text; /* rank 0 */
    question *items;  /* rank 0: [count] */
    int64_t count, longest;
    int32_t stops[TRAIN_STOPS], stop_count;
    int32_t over; /* rank 0: they failed once and are not tried again */
};

/* ---- prompts -------------------------------------------------------------------------------------------- */

/* The first sample of a row. Without a prompt, or with one that leaves no room for an answer, nothing is added. */
static ravel_status take_sample(train_answers *a, const ravel_samples *samples, ravel_error *err) {
    const ravel_ragged *r = &samples->ragged;
    int64_t tokens = ravel_ragged_find(r, "tokens"), mask = ravel_ragged_find(r, "loss_mask");
    if (r->count < 1 || tokens < 0 || mask < 0) return RAVEL_OK;
    const int32_t *ids = r->fields[tokens].data;
    const uint8_t *learnt = r->fields[mask].data;
    int64_t count = r->offsets[1], prompt = 0, end, most = a->shape->max_positions;
    RAVEL_ASSERT(count >= 1 && r->offsets[0] == 0);
    while (prompt < count && !learnt[prompt]) prompt++;
    for (end = prompt; end < count && learnt[end]; end++) continue;
    if (prompt < 2 || prompt == count || (most > 0 && prompt >= most)) return RAVEL_OK;
    question *q = &a->items[a->count];
    q->tokens = malloc((size_t)end * sizeof *ids);
    if (!q->tokens) return ravel__no_memory(err, (size_t)end * sizeof *ids, "a prompt");
    memcpy(q->tokens, ids, (size_t)end * sizeof *ids);
    q->prompt = prompt;
    q->answer = end - prompt;
    a->longest = train__max(a->longest, prompt);
    a->count++;
    return RAVEL_OK;
}

/* Rows at equal distances, and those after them while there are prompts missing. */
static ravel_status read_prompts(train_answers *a, const ravel_source *source, int64_t wanted, ravel_error *err) {
    ravel_reader *reader = NULL;
    const ravel_samples *samples;
    int64_t rows = ravel_source_count(source);
    wanted = train__min(wanted, rows);
    a->items = calloc((size_t)train__max(wanted, 1), sizeof *a->items);
    if (!a->items) return ravel__no_memory(err, (size_t)wanted * sizeof *a->items, "prompts");
    ravel_status status = ravel_reader_create(source, NULL, NULL, &reader, err);
    for (int64_t i = 0; i < wanted && !status; i++) {
        int64_t first = i * rows / wanted, end = train__min((i + 1) * rows / wanted, first + TRIES), before = a->count;
        for (int64_t row = first; row < end && a->count == before && !status; row++) {
            status = ravel_reader_read(reader, &row, 1, &samples, err);
            if (!status) status = take_sample(a, samples, err);
        }
    }
    ravel_reader_free(reader);
    return status;
}

static ravel_status open_first(train_answers *a, const train_answers_options *o, ravel_error *err) {
    const train_config *c = o->config;
    ravel_status status = train_text_open(c->sft.task ? NULL : c->model.model, o->shape->vocab, c->source.chat_format,
                                          c->source.chat_args, &a->text, err);
    train_stop_tokens(&c->model, a->stops, &a->stop_count);
    return status ? status : read_prompts(a, o->source, c->sft.eval_samples, err);
}

ravel_status train_answers_open(const train_answers_options *o, ravel_comm *comm, train_answers **answers,
                                ravel_error *err) {
    *answers = NULL;
    if (!o->source || o->config->sft.eval_samples == 0) return RAVEL_OK;
    train_answers *a = ravel__calloc(NULL, 1, sizeof *a);
    ravel_status status = a ? RAVEL_OK : ravel__no_memory(err, sizeof *a, "answers");
    if (a) {
        a->config = o->config;
        a->shape = o->shape;
        if (ravel_comm_rank(comm) == 0) status = open_first(a, o, err);
    }
    status = ravel_agree(comm, status, err);
    int64_t count = status || !a ? 0 : a->count;
    if (!status) status = ravel_comm_broadcast(comm, &count, 1, RAVEL_I64, 0, err);
    if (status || count == 0)
        train_answers_free(a);
    else
        *answers = a;
    return status;
}

void train_answers_free(train_answers *a) {
    if (!a) return;
    for (int64_t i = 0; i < a->count; i++) free(a->items[i].tokens);
    free(a->items);
    train_text_free(a->text);
    ravel__release(NULL, a, sizeof *a);
}

/* ---- answers -------------------------------------------------------------------------------------------- */

typedef struct showing {
    const train_answers *a;
    const train_run *run;
    FILE *file;   /* NULL: it cannot be written */
    int64_t item; /* the prompt */
} showing;

/* As text without special tokens; the caller's, NULL: no memory. */
static char *text_of(const train_answers *a, const int32_t *ids, int64_t count) {
    size_t bytes = train_text_decode(a->text, ids, count, NULL, 0);
    char *text = malloc(bytes + 1);
    if (text) (void)train_text_decode(a->text, ids, count, text, bytes + 1);
    return text;
}

static void put_member(FILE *f, const char *key, const char *text) {
    (void)fprintf(f, ", \"%s\": ", key);
    (void)train_file_quote(f, text, strlen(text));
}

enum { SHOWN = 80 };

/* For a line of the terminal. */
static char *without_breaks(char *text) {
    for (char *c = text; *c; c++)
        if (*c == '\n' || *c == '\r' || *c == '\t') *c = ' ';
    return text;
}

/* Nothing depends on samples.jsonl, so write errors are ignored; a full disk is reported by the next checkpoint. */
static ravel_status show(void *user, const train_answer *answer, ravel_error *err) {
    showing *s = user;
    const question *q = &s->a->items[s->item];
    char *prompt = text_of(s->a, q->tokens, q->prompt), *right = text_of(s->a, q->tokens + q->prompt, q->answer);
    char *response = text_of(s->a, answer->tokens, answer->count);
    int whole = prompt && right && response;
    if (whole && s->file) {
        (void)fprintf(s->file, "{\"step\": %lld, \"sample\": %lld", (long long)s->run->state.step, (long long)s->item);
        put_member(s->file, "prompt", prompt);
        put_member(s->file, "response", response);
        put_member(s->file, "answer", right);
        (void)fputs("}\n", s->file);
    }
    size_t bytes = whole ? strlen(prompt) : 0, from = bytes > SHOWN ? bytes - SHOWN : 0; /* a long prompt's end */
    while (from && ((unsigned char)prompt[from] & 0xc0) == 0x80) from++;
    if (whole)
        ravel__log(s->run->hooks.logger, RAVEL_LOG_INFO, "  %s%s -> %.200s", from ? "..." : "",
                   without_breaks(prompt) + from, without_breaks(response));
    free(prompt);
    free(right);
    free(response);
    return whole ? RAVEL_OK : ravel__no_memory(err, bytes, "an answer");
}

static ravel_status ask(const train_answers *a, train_generator *generator, showing *s, ravel_error *err) {
    train_sampling sampling;
    train_request *requests = calloc((size_t)a->count, sizeof *requests);
    if (!requests) return ravel__no_memory(err, (size_t)a->count * sizeof *requests, "requests");
    train_sampling_default(&sampling);
    sampling.temperature = 0;
    sampling.max_tokens = a->config->sft.eval_tokens;
    sampling.stop = a->stops;
    sampling.stops = a->stop_count;
    for (int64_t i = 0; i < a->count; i++)
        requests[i] = (train_request){
            .prompt = a->items[i].tokens, .count = a->items[i].prompt, .id = i, .samples = 1, .sampling = &sampling};
    ravel_status status = RAVEL_OK;
    const volatile int none = 0, *stop = s->run->hooks.stop ? s->run->hooks.stop : &none;
    for (s->item = 0; s->item < a->count && !status; s->item++) { /* one after the other: the file has them in order */
        status = train_generator_begin(generator, requests + s->item, 1, err);
        while (!status && !*stop && train_generator_busy(generator))
            status = train_generator_step(generator, show, s, err);
    }
    free(requests);
    return status;
}

static ravel_status generate(const train_answers *a, const train_whole *whole, showing *s, ravel_error *err) {
    train_generator_options options;
    train_generator *generator = NULL;
    int64_t most = a->shape->max_positions, room = a->longest + a->config->sft.eval_tokens;
    train_generator_options_default(&options);
    options.slots = 1;
    options.slot_tokens = most > 0 ? train__min(room, most) : room;
    options.lora = a->config->model.lora;
    ravel_status status = train_generator_create(whole->kernels, whole->device, a->shape, &options, &generator, err);
    if (!status && options.lora.rank) train_generator_set_base(generator, whole->base);
    if (!status) train_generator_set_weights(generator, whole->weights, 1);
    if (!status) status = ask(a, generator, s, err);
    train_generator_free(generator);
    return status;
}

static void show_all(train_answers *a, const train_run *run, const train_whole *whole) {
    char path[TRAIN_PATH];
    ravel_error why = RAVEL_ERROR_INIT;
    showing s = {.a = a, .run = run};
    if (a->over) return;
    if (!train_path_join(path, run->folder, "samples.jsonl", NULL)) s.file = fopen(path, "a");
    if (generate(a, whole, &s, &why)) {
        a->over = 1;
        ravel__log(run->hooks.logger, RAVEL_LOG_WARN, "no answers to the evaluation's prompts from here on: %s",
                   why.message);
    }
    if (s.file) (void)fclose(s.file);
}

ravel_status train_answers_show(train_answers *a, const train_run *run, train_learner *learner, ravel_error *err) {
    train_whole whole;
    if (!a) return RAVEL_OK;
    ravel_status status = train_whole_open(learner, &whole, err);
    if (!status && whole.weights && run->rank == 0) show_all(a, run, &whole);
    train_whole_close(&whole);
    return status;
}
