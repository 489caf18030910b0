/* ravel generate: samples answers from a model folder, one prompt on the command line or a file of them. */
#include "cli/cli.h"

#include "train/kernels/host.h"
#include "train/rl/prompts.h"
#include "train/run/sampler.h"
#include "train/run/stops.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct generate_options {
    int32_t raw;
    const char *model, *prompt, *data, *out, *stop, *stop_ids, *kernels, *chat_format, *chat_args;
    int32_t samples, threads, json, top_k, gpu, graphs;
    double temperature, top_p, min_p;
    int64_t max_tokens, slots, repeat;
    uint64_t seed;
    const char *pull;
    int32_t pull_commit, quiet;
    double pull_timeout;
    int32_t pull_tls;
} generate_options;

/* clang-format off */
#define ROW(name, kind, field, preset, min, max, choices, doc) \
    { name, RAVEL_OPTION_##kind, offsetof(generate_options, field), preset, min, max, choices, doc }
/* clang-format on */

static const ravel_option table[] = {
    ROW("model", STRING, model, NULL, 0, 0, "FOLDER", "a Hugging Face folder, or a checkpoint of ravel train"),
    ROW("prompt", STRING, prompt, NULL, 0, 0, NULL, "answer this; the answer is printed as it grows"),
    ROW("data", STRING, data, NULL, 0, 0, "FILE",
        "answer every row of a JSON-lines file: messages, prompt or input_ids"),
    ROW("chat-format", STRING, chat_format, NULL, 0, 0, "NAME",
        "how conversations are written: chatml, llama3, ...; without it as the model's template says"),
    ROW("chat-args", STRING, chat_args, NULL, 0, 0, "JSON",
        "variables of the chat template, such as {\"enable_thinking\": false}"),
    ROW("raw", BOOL, raw, "false", 0, 0, NULL, "take prompts as they are, not as a turn of the model's chat format"),
    ROW("out", STRING, out, "-", 0, 0, "FILE", "where JSON lines go; -: standard output"),
    ROW("json", BOOL, json, "false", 0, 0, NULL, "the answer to --prompt as JSON lines too"),
    ROW("samples", I32, samples, "1", 1, 65536, NULL, "answers to each prompt"),
    ROW("max-tokens", I64, max_tokens, "256", 1, 1e9, NULL, "tokens of an answer, at most"),
    ROW("temperature", F64, temperature, "1", 0, 100, NULL, "sampling temperature; 0: always the likeliest token"),
    ROW("top-k", I32, top_k, "0", 0, 1 << 24, NULL, "sample among the k likeliest tokens; 0: all"),
    ROW("top-p", F64, top_p, "1", 1e-9, 1, NULL, "sample among the likeliest tokens of this total probability"),
    ROW("min-p", F64, min_p, "0", 0, 0.999999, NULL, "drop tokens less likely than this times the likeliest; 0: none"),
    ROW("stop", STRING, stop, NULL, 0, 0, "TEXT",
        "an answer ends before this text; may be given several times. A special token's text is that token"),
    ROW("stop-ids", STRING, stop_ids, NULL, 0, 0, "TOKENS",
        "token ids that end an answer, as 151645,151643; without it the model's eos_token_id, or 257"),
    ROW("seed", U64, seed, "0", 0, 0, NULL, "seed of sampling: the same seed gives the same answers"),
    ROW("repeat", I64, repeat, "1", 0, 1e12, NULL,
        "passes over the rows of --data, each with other random numbers; 0: until interrupted"),
    ROW("slots", I64, slots, "16", 1, 65536, NULL, "sequences that run at once"),
    ROW("kernels", STRING, kernels, "cpu", 0, 0, NULL, "kernel set: cpu, cuda, ref, ..."),
    ROW("device", I32, gpu, "0", 0, 1023, NULL, "which GPU, with --kernels cuda"),
    ROW("graphs", ENUM, graphs, "auto", 0, 0, TRAIN_GRAPHS_CHOICES,
        "decode steps as recorded graphs, with --kernels cuda; on: an error where that cannot be"),
    ROW("threads", I32, threads, "0", 0, 1024, NULL, "0: one per processor"),
    ROW("quiet", BOOL, quiet, "false", 0, 0, NULL, "print only answers and errors"),
    {0}};

static const ravel_option pull_table[] = {
    ROW("pull", STRING, pull, NULL, 0, 0, "ADDRESS",
        "pull weights from trainers (ravel train grpo --publish): host:port, unix:/path; --model says shape and tokenizer"),
    ROW("pull-commit", ENUM, pull_commit, "step", 0, 0, TRAIN_COMMIT_CHOICES,
        "step: a new version is used from the next token on; idle: only when no answer is running"),
    ROW("pull-tls", BOOL, pull_tls, "false", 0, 0, NULL,
        "encrypt the connections to them (--publish-tls); also RAVEL_TLS=1"),
    ROW("pull-timeout", F64, pull_timeout, "60", 0.01, 86400, NULL,
        "seconds to wait for the first version, and without progress of a later one"),
    {0}};

static void help(void) {
    generate_options o;
    ravel_options_default(table, &o);
    ravel_options_default(pull_table, &o);
    const cli_options sets[] = {{"options", table, &o}, {"weights that trainers publish", pull_table, &o}};
    printf(
        "usage: ravel generate --model FOLDER --prompt TEXT | --data FILE.jsonl [options]\n\n"
        "Samples answers with the generator that training uses.\n\n"
        "examples:\n"
        "  ravel generate --model runs/sft-1/checkpoints/step-00000200 --prompt 'sort 312:' --temperature 0\n"
        "  ravel generate --model Qwen3-0.6B --data prompts.jsonl --samples 4 --out answers.jsonl\n"
        "  ravel generate --model Qwen3-0.6B --raw --prompt 'Q: 6*7? A:' --stop 'Q:' --stop 'A:'\n"
        "  ravel generate --model Qwen3-0.6B --pull trainer-0:7700 --data prompts.jsonl --repeat 0 >answers.jsonl\n\n"
        "A row of the output: {\"row\", \"sample\", \"prompt\", \"response\", \"prompt_ids\", \"response_ids\", "
        "\"tokens\",\n\"ended\", \"logprob\"}, and with --pull \"version\" and \"last_version\": of the weights that the "
        "answer was\nbegun and ended with. Rows are in the order of the input.\n\n");
    cli_print_options(sets, 2);
}

/* ---- the job -------------------------------------------------------------------------------------------- */

/* An answer that waits until those before it are there. */
typedef struct waiting {
    int32_t *tokens;
    int64_t count;
    double logprob;
    int64_t version, last_version; /* of the weights that it was begun and ended with */
    int32_t ended;
} waiting;

enum { STOP_TEXTS = 16, STOP_BYTES = 256 };

typedef struct job {
    const generate_options *o;
    train_model_choice choice;
    train_sampling sampling;
    int32_t stops[TRAIN_STOPS];
    train_stop_texts stop_texts;
    train_text *text;
    train_prompts *prompts;
    train_sampler *sampler;
    train_request *requests; /* [block] */
    waiting *answers;        /* [block * samples] */
    int64_t block;
    int64_t pass;  /* over the rows, from 0 */
    int64_t shown; /* tokens of the streamed answer */
    train_stop_stream stream;
    ravel_json *doc; /* of the prompt */
    cli_output output;
    int64_t lines; /* written to it */
    ravel_logger logger;
    char *buffer; /* of a line */
    size_t room;
} job;

static volatile int stop_requested;

static void on_signal(int number) {
    signal(number, SIG_DFL);
    stop_requested = 1;
}

static ravel_status make_stops(job *j, int64_t vocab, ravel_error *err) {
    int32_t count = 0;
    if (j->o->stop_ids)
        count = train_stops_parse(j->o->stop_ids, vocab, j->stops, err);
    else
        train_stop_tokens(&j->choice, j->stops, &count);
    j->sampling.stop = j->stops;
    j->sampling.stops = count;
    TRAIN_ASSERT(count <= TRAIN_STOPS);
    return count > 0 ? RAVEL_OK : RAVEL_E_ARGUMENT;
}

/* Whether the answer holds a text that ends it. It was asked before for all tokens but the last, so the end of the
 * answer is enough: as many tokens as the longest text has bytes, and their text as far as it fits. */
static int holds_stop(void *user, const int32_t *tokens, int64_t count) {
    const job *j = user;
    char text[4096];
    int64_t most = (int64_t)train_stop_longest(&j->stop_texts) + 1, window = train__min(count, most);
    TRAIN_ASSERT(count > 0 && window > 0 && window <= count);
    size_t bytes = train_text_decode(j->text, tokens + count - window, window, text, sizeof text);
    for (; bytes >= sizeof text && window > 1; window /= 2)
        bytes = train_text_decode(j->text, tokens + count - window / 2, window / 2, text, sizeof text);
    bytes = bytes < sizeof text ? bytes : sizeof text - 1;
    return train_stop_find(&j->stop_texts, text, bytes) < bytes;
}

/* A special token gives no text: where its name is a stop text, its id is a stop token. */
static ravel_status make_stop_texts(job *j, ravel_error *err) {
    const ravel_tokenizer *tokenizer = train_text_tokenizer(j->text);
    for (int32_t i = 0; i < j->stop_texts.count; i++) {
        const char *text = j->stop_texts.texts[i];
        int32_t id = tokenizer ? ravel_tokenizer_id(tokenizer, text, strlen(text)) : -1;
        if (id < 0 || !ravel_tokenizer_is_special(tokenizer, id)) continue;
        if (j->sampling.stops == TRAIN_STOPS)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "%d tokens can end an answer at most", TRAIN_STOPS);
        j->stops[j->sampling.stops++] = id;
    }
    j->sampling.ends = j->stop_texts.count > 0 ? holds_stop : NULL;
    j->sampling.user = j;
    return RAVEL_OK;
}

/* ---- output --------------------------------------------------------------------------------------------- */

static ravel_status print_piece(const char *piece, size_t bytes, ravel_error *err) {
    if (fwrite(piece, 1, bytes, stdout) == bytes && fflush(stdout) == 0) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_IO, "standard output: %s", strerror(errno));
}

/* Prints the new text of the answer, up to a possible beginning of a stop text. */
static ravel_status show_piece(job *j, const char *piece, size_t bytes, ravel_error *err) {
    ravel_status status = train_stop_stream_push(&j->stream, piece, bytes, &piece, &bytes, err);
    return !status && bytes ? print_piece(piece, bytes, err) : status;
}

/* Streams the new tokens of the one answer. */
static ravel_status stream(void *user, const int32_t *tokens, int64_t count, ravel_error *err) {
    job *j = user;
    ravel_status status = RAVEL_OK;
    TRAIN_ASSERT(j->shown >= 0 && count >= 0);
    for (; j->shown < count && !status; j->shown++) {
        const char *piece;
        size_t bytes;
        train_text_push(j->text, tokens[j->shown], &piece, &bytes);
        status = show_piece(j, piece, bytes, err);
    }
    return status;
}

static ravel_status end_stream(job *j, ravel_error *err) {
    const char *piece;
    size_t bytes;
    train_text_flush(j->text, &piece, &bytes);
    ravel_status status = show_piece(j, piece, bytes, err);
    train_stop_stream_flush(&j->stream, &piece, &bytes);
    if (!status && bytes) status = print_piece(piece, bytes, err);
    return status ? status : print_piece("\n", 1, err);
}

static ravel_status make_room(job *j, size_t bytes, ravel_error *err) {
    if (bytes <= j->room) return RAVEL_OK;
    char *grown = realloc(j->buffer, bytes);
    if (!grown) return train__no_memory(err, bytes, "a line of output");
    j->buffer = grown;
    j->room = bytes;
    return RAVEL_OK;
}

static size_t put_ids(char *at, const char *key, const int32_t *ids, int64_t count) {
    char *begin = at;
    at += sprintf(at, ", \"%s\": [", key);
    for (int64_t i = 0; i < count; i++) at += sprintf(at, i ? ", %d" : "%d", ids[i]);
    *at++ = ']';
    return (size_t)(at - begin);
}

/* stops NULL: the whole text. */
static size_t put_text(const job *j, char *at, size_t room, const char *key, const int32_t *ids, int64_t count,
                       const train_stop_texts *stops) {
    size_t bytes = train_text_decode(j->text, ids, count, NULL, 0), used = (size_t)sprintf(at, ", \"%s\": ", key);
    TRAIN_ASSERT(used < room);
    char *text = malloc(bytes + 1);
    if (!text) return used + (size_t)sprintf(at + used, "null");
    (void)train_text_decode(j->text, ids, count, text, bytes + 1);
    if (stops) bytes = train_stop_find(stops, text, bytes);
    used += ravel_json_quote(text, bytes, at + used, room - used);
    free(text);
    return used;
}

static ravel_status print_line(job *j, int64_t row, int32_t sample, const train_request *r, const waiting *a,
                               ravel_error *err) {
    size_t texts = train_text_decode(j->text, r->prompt, r->count, NULL, 0) +
                   train_text_decode(j->text, a->tokens, a->count, NULL, 0);
    size_t room = 512 + 6 * texts + 13 * (size_t)(r->count + a->count);
    ravel_status status = make_room(j, room, err);
    if (status) return status;
    char *at = j->buffer, *end = j->buffer + j->room;
    at += sprintf(at, "{\"row\": %lld, \"sample\": %d", (long long)row, sample);
    if (j->o->repeat != 1) at += sprintf(at, ", \"pass\": %lld", (long long)j->pass);
    at += put_text(j, at, (size_t)(end - at), "prompt", r->prompt, r->count, NULL);
    at += put_text(j, at, (size_t)(end - at), "response", a->tokens, a->count - (a->ended == 1), &j->stop_texts);
    at += put_ids(at, "prompt_ids", r->prompt, r->count);
    at += put_ids(at, "response_ids", a->tokens, a->count);
    at += sprintf(at, ", \"tokens\": %lld, \"ended\": %s, \"logprob\": %.9g", (long long)a->count,
                  a->ended ? "true" : "false", a->logprob);
    if (j->o->pull)
        at += sprintf(at, ", \"version\": %lld, \"last_version\": %lld", (long long)a->version,
                      (long long)a->last_version);
    at += sprintf(at, "}\n");
    TRAIN_ASSERT(at < end);
    j->lines++;
    return cli_output_write(&j->output, j->buffer, (size_t)(at - j->buffer), err);
}

/* ---- generating ----------------------------------------------------------------------------------------- */

static ravel_status keep(void *user, const train_answer *a, ravel_error *err) {
    job *j = user;
    waiting *w = &j->answers[a->request * j->o->samples + a->sample];
    TRAIN_ASSERT(a->request >= 0 && a->request < j->block && a->sample >= 0 && a->sample < j->o->samples);
    size_t bytes = (size_t)a->count * sizeof *w->tokens;
    if (j->o->prompt && !j->o->json) return stream(user, a->tokens, a->count - (a->ended == 1), err);
    w->tokens = malloc(bytes);
    if (!w->tokens) return train__no_memory(err, bytes, "an answer");
    TRAIN_ASSERT(a->count > 0);
    memcpy(w->tokens, a->tokens, bytes);
    w->count = a->count;
    w->ended = a->ended;
    w->version = a->version;
    w->last_version = train_sampler_pulled(j->sampler).version;
    w->logprob = 0;
    for (int64_t i = 0; i < a->count; i++) w->logprob += (double)a->logprob[i];
    return RAVEL_OK;
}

static ravel_status print_block(job *j, int64_t first, int64_t count, ravel_error *err) {
    TRAIN_ASSERT(first >= 0 && count <= j->block);
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < count; i++)
        for (int32_t s = 0; s < j->o->samples; s++) {
            waiting *w = &j->answers[i * j->o->samples + s];
            if (w->tokens && !status) status = print_line(j, first + i, s, &j->requests[i], w, err);
            free(w->tokens);
            w->tokens = NULL;
        }
    if (j->o->repeat != 1 && j->output.file == stdout) (void)fflush(stdout); /* for a reader that goes along */
    return status;
}

/* As a row {"prompt": ..}, which a chat format makes a user's turn, or as plain text. */
static ravel_status encode_prompt(job *j, const int32_t **tokens, int64_t *count, ravel_error *err) {
    const char *prompt = j->o->prompt;
    if (!prompt) return ravel_error_set(err, RAVEL_E_ARGUMENT, "give --prompt or --data");
    size_t bytes = strlen(prompt), room = 6 * bytes + 32;
    if (j->o->raw) return train_text_encode(j->text, prompt, bytes, tokens, count, err);
    char *line = malloc(room);
    if (!line) return train__no_memory(err, room, "a prompt");
    size_t used = (size_t)sprintf(line, "{\"prompt\": ");
    used += ravel_json_quote(prompt, bytes, line + used, room - used);
    line[used++] = '}';
    TRAIN_ASSERT(used < room);
    ravel_status status = ravel_json_parse(line, used, NULL, &j->doc, err);
    if (!status) status = train_text_prompt(j->text, j->doc, ravel_json_root(j->doc), tokens, count, err);
    free(line);
    return status;
}

static ravel_status make_requests(job *j, int64_t rows, int64_t first, int64_t count, ravel_error *err) {
    TRAIN_ASSERT(count <= j->block && first + count <= rows);
    for (int64_t i = 0; i < count; i++) {
        train_request *r = &j->requests[i];
        *r = (train_request){.id = first + i + j->pass * rows, .samples = j->o->samples, .sampling = &j->sampling};
        if (j->prompts)
            r->prompt = train_prompts_row(j->prompts, first + i, &r->count);
        else if (encode_prompt(j, &r->prompt, &r->count, err))
            return err->status;
    }
    return RAVEL_OK;
}

/* Blocks of requests: enough to keep the slots busy, few enough to hold their answers. */
static ravel_status run_blocks(job *j, int64_t rows, ravel_error *err) {
    int streaming = j->o->prompt && !j->o->json;
    TRAIN_ASSERT(j->block > 0 && j->requests && j->answers && (!streaming || rows == 1));
    train_sampler_hooks hooks = {
        .partial = streaming ? stream : NULL, .answer = keep, .stop = &stop_requested, .user = j};
    ravel_status status = RAVEL_OK;
    for (int64_t first = 0; first < rows && !status && !stop_requested; first += j->block) {
        int64_t count = train__min(j->block, rows - first);
        status = make_requests(j, rows, first, count, err);
        if (!status) status = train_sampler_run(j->sampler, j->requests, count, &hooks, err);
        ravel_status printed = streaming ? RAVEL_OK : print_block(j, first, count, status ? NULL : err);
        if (!status) status = printed;
        cli_progress("generating", (double)(first + count), (double)rows);
    }
    cli_progress_end();
    if (streaming && !status) status = end_stream(j, err);
    return status;
}

/* Prints figures of the pulls to standard error; answers go to standard output. */
static void say_pulled(const job *j) {
    train_pulled_stats s = train_sampler_pulled(j->sampler);
    if (s.commits == 0 || j->o->quiet) return;
    (void)fprintf(
        stderr,
        "versions pulled: %lld, %.4g MB; longest preparation %.4f s (while generating), longest pause %.3f ms, "
        "all pauses %.3f ms\n",
        (long long)s.commits, (double)s.bytes * 1e-6, s.prepare_most, 1e3 * s.pause_most, 1e3 * s.pause_sum);
}

static ravel_status run_passes(job *j, int64_t rows, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int64_t passes = j->o->repeat ? j->o->repeat : INT64_MAX;
    for (j->pass = 0; !status && !stop_requested && !j->output.closed && j->pass < passes; j->pass++)
        status = run_blocks(j, rows, err);
    return status;
}

static void write_log(void *user, ravel_log_level level, const char *text) {
    const job *j = user;
    cli_progress_end();
    if (level >= RAVEL_LOG_WARN || (level == RAVEL_LOG_INFO && !j->o->quiet))
        (void)fprintf(stderr, "ravel generate: %s\n", text);
}

static int32_t processors(void) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? (int32_t)CPU_COUNT(&allowed) : 1;
}

static ravel_status open_job(job *j, int64_t *rows, ravel_error *err) {
    const generate_options *o = j->o;
    ravel_shape shape;
    const int32_t *tokens;
    int64_t longest = 0;
    j->choice = (train_model_choice){.model = o->model, .kernels = o->kernels, .gpu = o->gpu, .graphs = o->graphs};
    j->choice.deterministic = 1;
    j->choice.threads = o->threads ? o->threads : processors();
    train_sampling_default(&j->sampling);
    j->sampling.temperature = o->temperature;
    j->sampling.top_p = o->top_p;
    j->sampling.min_p = o->min_p;
    j->sampling.top_k = o->top_k;
    j->sampling.max_tokens = o->max_tokens;
    j->sampling.seed = o->seed;
    ravel_status status = train_shape(&j->choice, &shape, err);
    if (!status) status = make_stops(j, shape.vocab, err);
    if (!status) status = train_text_open(o->model, shape.vocab, o->chat_format, o->chat_args, &j->text, err);
    if (!status) status = make_stop_texts(j, err);
    if (!status && o->data) {
        train_prompts_options options = {.data = o->data, .text = j->text, .vocab = shape.vocab, .raw = o->raw};
        status = train_prompts_open(&options, &j->prompts, err);
        if (!status) longest = train_prompts_longest(j->prompts);
        if (!status) *rows = train_prompts_rows(j->prompts);
    } else if (!status) {
        status = encode_prompt(j, &tokens, &longest, err);
        *rows = 1;
    }
    train_pulled_options pull = {.address = o->pull,
                                 .commit = o->pull_commit,
                                 .timeout = o->pull_timeout,
                                 .tls = o->pull_tls,
                                 .stop = &stop_requested,
                                 .logger = &j->logger};
    train_sampler_options options = {.model = &j->choice,
                                     .slots = train__min(o->slots, *rows * o->samples),
                                     .slot_tokens = longest + o->max_tokens,
                                     .pull = o->pull ? &pull : NULL};
    if (!status) status = train_sampler_open(&options, &j->sampler, err);
    if (status) return status;
    j->block = train__min(*rows, train__max(1, 8 * o->slots / o->samples));
    TRAIN_ASSERT(*rows > 0 && j->block > 0);
    j->requests = calloc((size_t)j->block, sizeof *j->requests);
    j->answers = calloc((size_t)j->block * (size_t)o->samples, sizeof *j->answers);
    return j->requests && j->answers ? RAVEL_OK : train__no_memory(err, (size_t)j->block, "requests");
}

static void close_job(job *j) {
    train_sampler_free(j->sampler);
    train_prompts_free(j->prompts);
    train_text_free(j->text);
    train_stop_stream_free(&j->stream);
    ravel_json_free(j->doc);
    free(j->requests);
    free(j->answers);
    free(j->buffer);
}

/* Answers that are written stay, also after an error: an hour's work must not go with the last minute's. */
static ravel_status close_output(job *j, ravel_status status, ravel_error *err) {
    ravel_error own = RAVEL_ERROR_INIT;
    if (!status || j->lines == 0 || j->output.file == stdout) return cli_output_close(&j->output, status, err);
    if (cli_output_close(&j->output, RAVEL_OK, &own)) return status;
    (void)fprintf(stderr, "ravel generate: %s has the %lld answers from before the error\n", j->o->out,
                  (long long)j->lines);
    return status;
}

static ravel_status run(const generate_options *o, train_stop_texts stops, ravel_error *err) {
    job j = {.o = o, .stop_texts = stops};
    j.logger = (ravel_logger){write_log, &j};
    int64_t rows = 0;
    int lines = o->data || o->json;
    train_stop_stream_init(&j.stream, &j.stop_texts);
    ravel_status status = open_job(&j, &rows, err);
    if (!status && lines) {
        status = cli_output_open(&j.output, o->out, err);
        if (!status) status = close_output(&j, run_passes(&j, rows, err), err);
    } else if (!status) {
        status = run_passes(&j, rows, err);
    }
    if (j.sampler) say_pulled(&j);
    close_job(&j);
    return status;
}

static ravel_status check(const generate_options *o, ravel_error *err) {
    if (!o->model)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "give --model FOLDER: a Hugging Face folder or a checkpoint");
    if (!o->prompt == !o->data)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "give --prompt TEXT or --data FILE.jsonl%s",
                               o->data ? ", not both" : "");
    if (o->prompt && !o->json && o->samples > 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "several --samples are written as JSON lines: add --json");
    if (o->prompt && !o->json && strcmp(o->out, "-") != 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "--out is for JSON lines: add --json");
    if (o->prompt && o->repeat != 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "--repeat is for the rows of --data");
    ravel_status status = cli_claim_input("model", o->model, err);
    if (!status) status = cli_claim_input("data", o->data, err);
    return status ? status : cli_claim_output("out", o->out, err);
}

static ravel_status check_stops(const char *const *texts, int count, ravel_error *err) {
    for (int i = 0; i < count; i++)
        if (!texts[i][0] || strlen(texts[i]) > STOP_BYTES)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "a --stop text must have from 1 to %d bytes, not %zu",
                                   STOP_BYTES, strlen(texts[i]));
    return RAVEL_OK;
}

int cli_generate(int argc, char **argv) {
    generate_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    const char *words[1], *stops[STOP_TEXTS];
    int word_count, stop_count = 0;
    const cli_options sets[] = {{"options", table, &o}, {"pull", pull_table, &o}};
    if (cli_wants_help(argc, argv)) {
        help();
        return CLI_OK;
    }
    ravel_options_default(table, &o);
    ravel_options_default(pull_table, &o);
    if (cli_parse(argc, argv, sets, 2, words, 0, &word_count, &err) ||
        cli_values(argc, argv, sets, 2, "stop", stops, STOP_TEXTS, &stop_count, &err) ||
        check_stops(stops, stop_count, &err) || check(&o, &err))
        return cli_usage("generate", &err);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return run(&o, (train_stop_texts){stops, stop_count}, &err) ? cli_fail("generate", &err) : CLI_OK;
}
