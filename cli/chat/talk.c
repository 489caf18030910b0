#include "cli/chat/talk.h"

#include "cli/live.h"

#include "train/kernels/host.h"
#include "train/model/out.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct message {
    const char *role;
    char *text; /* [bytes] and a NUL */
    size_t bytes;
} message;

struct cli_talk {
    cli_talk_options options;
    cli_model models[2]; /* the second is opened beside the first, for a switch */
    int which;
    int64_t context; /* of a prompt and its answer */
    train_sampler *sampler;
    cli_live live;
    message *messages; /* [count]; the system's is the first */
    int64_t count, room;
    int64_t asked;   /* requests, each with random numbers of its own */
    int32_t *answer; /* [answered] tokens of the answer so far */
    int64_t answered, answer_room;
    int32_t by_token; /* it ended with a stop token */
    int32_t cut;      /* it ended at a limit of tokens */
    cli_talk_figures last;
};

static cli_model *model_of(cli_talk *t) {
    return &t->models[t->which];
}

/* ---- messages ------------------------------------------------------------------------------------------- */

static int has_system(const cli_talk *t) {
    return t->count > 0 && strcmp(t->messages[0].role, "system") == 0;
}

static void drop(cli_talk *t, int64_t at, int64_t count) {
    RAVEL_ASSERT(at >= 0 && at + count <= t->count);
    for (int64_t i = at; i < at + count; i++) free(t->messages[i].text);
    memmove(t->messages + at, t->messages + at + count, (size_t)(t->count - at - count) * sizeof *t->messages);
    t->count -= count;
}

static ravel_status insert(cli_talk *t, int64_t at, const char *role, const char *text, size_t bytes,
                           ravel_error *err) {
    message *grown = train__grown(NULL, t->messages, &t->room, t->count, t->count + 1, sizeof *grown);
    if (!grown) return ravel__no_memory(err, sizeof *grown, "a message");
    t->messages = grown;
    char *own = malloc(bytes + 1);
    if (!own) return ravel__no_memory(err, bytes, "a message");
    if (bytes) memcpy(own, text, bytes);
    own[bytes] = '\0';
    memmove(grown + at + 1, grown + at, (size_t)(t->count - at) * sizeof *grown);
    grown[at].role = role, grown[at].text = own, grown[at].bytes = bytes;
    t->count++;
    return RAVEL_OK;
}

static void put_row(const cli_talk *t, train_out *out) {
    train_out_puts(out, "{\"messages\": [");
    for (int64_t i = 0; i < t->count; i++) {
        train_out_print(out, "%s{\"role\": \"%s\", \"content\": ", i ? ", " : "", t->messages[i].role);
        train_out_quote(out, t->messages[i].text, t->messages[i].bytes);
        train_out_puts(out, "}");
    }
    train_out_puts(out, "]}");
}

void cli_talk_reset(cli_talk *t) {
    int first = has_system(t);
    drop(t, first, t->count - first);
}

ravel_status cli_talk_system(cli_talk *t, const char *text, ravel_error *err) {
    ravel_status status = text[0] ? insert(t, 0, "system", text, strlen(text), err) : RAVEL_OK;
    int64_t old = text[0] ? 1 : 0;
    if (!status && t->count > old && strcmp(t->messages[old].role, "system") == 0) drop(t, old, 1);
    return status;
}

ravel_status cli_talk_undo(cli_talk *t, ravel_error *err) {
    if (t->count - has_system(t) < 2) return ravel_error_set(err, RAVEL_E_STATE, "there is no turn to take back");
    drop(t, t->count - 2, 2);
    return RAVEL_OK;
}

ravel_status cli_talk_save(const cli_talk *t, const char *path, ravel_error *err) {
    train_out out = {0};
    if (t->count == has_system(t)) return ravel_error_set(err, RAVEL_E_STATE, "there is no turn to save");
    put_row(t, &out);
    train_out_puts(&out, "\n");
    FILE *f = out.failed ? NULL : fopen(path, "a");
    ravel_status status = out.failed ? ravel__no_memory(err, out.used, "a row")
                          : f        ? RAVEL_OK
                                     : train_file_error(err, "written", path);
    if (f && fwrite(out.data, 1, out.used, f) != out.used) status = train_file_error(err, "written", path);
    if (f && fclose(f) != 0 && !status) status = train_file_error(err, "written", path);
    train_out_free(&out);
    return status;
}

/* ---- an answer ------------------------------------------------------------------------------------------ */

static ravel_status keep(cli_talk *t, const int32_t *tokens, int64_t count, ravel_error *err) {
    int32_t *grown = train__grown(NULL, t->answer, &t->answer_room, t->answered, count, sizeof *grown);
    if (!grown) return ravel__no_memory(err, (size_t)count * sizeof *grown, "an answer");
    t->answer = grown;
    if (count > t->answered)
        memcpy(grown + t->answered, tokens + t->answered, (size_t)(count - t->answered) * sizeof *grown);
    t->answered = count;
    return RAVEL_OK;
}

static ravel_status on_partial(void *user, const int32_t *tokens, int64_t count, ravel_error *err) {
    cli_talk *t = user;
    ravel_status status = keep(t, tokens, count, err);
    return status ? status : cli_live_show(&t->live, tokens, count, err);
}

static ravel_status on_answer(void *user, const train_answer *a, ravel_error *err) {
    cli_talk *t = user;
    t->by_token = a->ended == 1;
    t->cut = a->ended == 0;
    ravel_status status = keep(t, a->tokens, a->count, err);
    return status ? status : cli_live_show(&t->live, a->tokens, a->count - t->by_token, err);
}

static int holds_stop(void *user, const int32_t *tokens, int64_t count) {
    cli_talk *t = user;
    return train_stop_reached(t->options.stops, model_of(t)->text, tokens, count);
}

/* The conversation as tokens, without its oldest turns where it is too long; raw: the last message. */
static ravel_status encode(cli_talk *t, const int32_t **tokens, int64_t *count, ravel_error *err) {
    int64_t spare = train__min(t->options.sampling->max_tokens, t->context / 4), forgotten = 0;
    ravel_status status;
    if (t->options.raw) {
        const message *m = &t->messages[t->count - 1];
        status = train_text_encode(model_of(t)->text, m->text, m->bytes, tokens, count, err);
    } else {
        for (;;) {
            train_out row = {0};
            int first = has_system(t);
            put_row(t, &row);
            status = row.failed ? ravel__no_memory(err, row.used, "a conversation")
                                : train_text_prompt(model_of(t)->text, row.data, row.used, NULL, 0, tokens, count, err);
            train_out_free(&row);
            if (status || *count + spare <= t->context || t->count - first < 3) break;
            drop(t, first, 2);
            forgotten++;
        }
    }
    if (forgotten)
        (void)fprintf(stderr, "(the conversation is longer than --context %lld: its first %lld turn%s forgotten)\n",
                      (long long)t->context, (long long)forgotten, forgotten == 1 ? " is" : "s are");
    if (status || *count < t->context) return status;
    return ravel_error_set(err, RAVEL_E_DATA, "it has %lld tokens, but --context is %lld", (long long)*count,
                           (long long)t->context);
}

static ravel_status run(cli_talk *t, ravel_error *err) {
    const cli_talk_sampling *o = t->options.sampling;
    cli_model *m = model_of(t);
    train_sampling sampling;
    train_sampling_default(&sampling);
    sampling.temperature = o->temperature;
    sampling.top_p = o->top_p;
    sampling.min_p = o->min_p;
    sampling.top_k = o->top_k;
    sampling.seed = o->seed >= 0 ? (uint64_t)o->seed : train__random((uint64_t)time(NULL), (uint64_t)clock(), 0);
    sampling.stop = m->stops;
    sampling.stops = m->stop_count;
    sampling.ends = t->options.stops->count ? holds_stop : NULL;
    sampling.user = t;
    train_request request = {.id = t->asked++, .samples = 1, .sampling = &sampling};
    train_sampler_hooks hooks = {.partial = on_partial, .answer = on_answer, .stop = t->options.stop, .user = t};
    ravel_status status = train_stop_specials(t->options.stops, m->text, m->stops, &sampling.stops, TRAIN_STOPS, err);
    if (!status) status = encode(t, &request.prompt, &request.count, err);
    if (status) return status;
    sampling.max_tokens = train__min(o->max_tokens, t->context - request.count);
    t->answered = t->by_token = t->cut = 0;
    int64_t kept = train_generator_counts(train_sampler_generator(t->sampler)).kept_tokens;
    double begun = cli_now();
    status = train_sampler_run(t->sampler, &request, 1, &hooks, err);
    ravel_status ended = cli_live_end(&t->live, status ? NULL : err);
    if (t->cut && sampling.max_tokens == o->max_tokens)
        (void)fprintf(stderr, "(cut at --max-tokens %lld)\n", (long long)o->max_tokens);
    else if (t->cut)
        (void)fprintf(stderr, "(cut at --context %lld)\n", (long long)t->context);
    t->last = (cli_talk_figures){.prompt = request.count,
                                 .answer = t->answered,
                                 .kept = train_generator_counts(train_sampler_generator(t->sampler)).kept_tokens - kept,
                                 .seconds = cli_now() - begun};
    return status ? status : ended;
}

/* The answer's tokens as a message. */
static ravel_status take_answer(cli_talk *t, ravel_error *err) {
    const train_text *text = model_of(t)->text;
    int64_t count = t->answered - t->by_token;
    size_t bytes = train_text_decode(text, t->answer, count, NULL, 0);
    char *said = malloc(bytes + 1);
    if (!said) return ravel__no_memory(err, bytes, "an answer");
    (void)train_text_decode(text, t->answer, count, said, bytes + 1);
    bytes = train_stop_find(t->options.stops, said, bytes);
    ravel_status status = insert(t, t->count, "assistant", said, bytes, err);
    free(said);
    return status;
}

/* To the last message, which is a user's. */
static ravel_status answer(cli_talk *t, ravel_error *err) {
    ravel_status status = run(t, err);
    if (!status) status = take_answer(t, err);
    if (status) drop(t, t->count - 1, 1);
    return status;
}

ravel_status cli_talk_say(cli_talk *t, const char *text, size_t bytes, ravel_error *err) {
    if (t->options.raw) cli_talk_reset(t);
    ravel_status status = insert(t, t->count, "user", text, bytes, err);
    return status ? status : answer(t, err);
}

ravel_status cli_talk_retry(cli_talk *t, ravel_error *err) {
    if (t->count - has_system(t) < 2) return ravel_error_set(err, RAVEL_E_STATE, "there is no turn to answer again");
    drop(t, t->count - 1, 1);
    return answer(t, err);
}

/* ---- the model ------------------------------------------------------------------------------------------ */

static ravel_status open_sampler(cli_talk *t, ravel_error *err) {
    const cli_model *m = model_of(t);
    train_pulled_options pull = cli_pulled(t->options.pull, t->options.stop, t->options.logger);
    ravel_status status = cli_model_context(t->options.context, &m->shape, &t->context, err);
    train_sampler_options options = {.model = &m->choice,
                                     .slots = 1,
                                     .slot_tokens = t->context,
                                     .keep = t->context,
                                     .logger = t->options.logger,
                                     .pull = t->options.pull->pull ? &pull : NULL};
    if (!status) status = train_sampler_open(&options, &t->sampler, err);
    return status ? status : cli_live_open(&t->live, m->text, t->options.stops, err);
}

static void close_sampler(cli_talk *t) {
    train_sampler_free(t->sampler);
    t->sampler = NULL;
    cli_live_close(&t->live);
}

static ravel_status open_model(const cli_talk *t, const char *path, const char *adapter, cli_model *m,
                               ravel_error *err) {
    cli_model_options options = *t->options.model;
    options.model = path;
    options.adapter = adapter;
    ravel_status status = cli_model_open(&options, m, err);
    const char *silent = status || t->options.raw ? NULL : train_text_no_chat(m->text);
    return silent
               ? ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                                 "%s cannot hold a conversation: %s (--raw continues each text as it is)", path, silent)
               : status;
}

ravel_status cli_talk_open(const cli_talk_options *options, cli_talk **talk, ravel_error *err) {
    cli_talk *t = calloc(1, sizeof *t);
    if (!t) return ravel__no_memory(err, sizeof *t, "a conversation");
    t->options = *options;
    ravel_status status = open_model(t, options->model->model, options->model->adapter, model_of(t), err);
    if (!status) status = open_sampler(t, err);
    if (status) {
        cli_talk_free(t);
        return status;
    }
    *talk = t;
    return RAVEL_OK;
}

void cli_talk_free(cli_talk *t) {
    if (!t) return;
    close_sampler(t);
    drop(t, 0, t->count);
    for (int i = 0; i < 2; i++) cli_model_close(&t->models[i]);
    ravel__release(NULL, t->messages, (size_t)t->room * sizeof *t->messages);
    ravel__release(NULL, t->answer, (size_t)t->answer_room * sizeof *t->answer);
    free(t);
}

/* The old weights go before the new ones come: both may not fit. */
ravel_status cli_talk_switch(cli_talk *t, const char *path, const char *adapter, ravel_error *err) {
    ravel_error again = RAVEL_ERROR_INIT;
    cli_model *next = &t->models[!t->which];
    ravel_status status = open_model(t, path, adapter, next, err);
    if (!status) {
        close_sampler(t);
        t->which = !t->which;
        status = open_sampler(t, err);
        if (status) {
            close_sampler(t);
            t->which = !t->which;
            if (open_sampler(t, &again)) {
                *err = again;
                err->status = status = RAVEL_E_STATE;
            }
        }
    }
    cli_model_close(&t->models[!t->which]);
    return status;
}

const train_model_path *cli_talk_path(const cli_talk *t) {
    return &t->models[t->which].path;
}

cli_talk_figures cli_talk_last(const cli_talk *t) {
    cli_talk_figures f = t->last;
    f.turns = t->count;
    f.version = train_sampler_pulled(t->sampler).version;
    return f;
}
