/* ravel generate: samples answers from a model folder, one prompt on the command line or a file of them. */
#include "cli/live.h"
#include "cli/model.h"

#include "train/kernels/host.h"
#include "train/model/out.h"
#include "train/rl/prompts.h"

#include "base/log.h"
#include "base/memory.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct generate_options {
    int32_t raw;
    const char *prompt, *data, *out, *stop;
    int32_t samples, json, top_k, quiet;
    double temperature, top_p, min_p;
    int64_t max_tokens, slots, repeat, keep;
    uint64_t seed;
    cli_model_options model; /* of a table of its own, as the next */
    cli_pull_options pull;
} generate_options;

#define ROW(...) RAVEL__ROW(generate_options, __VA_ARGS__)

static const ravel_option table[] = {
    ROW("prompt", STRING, prompt, NULL, 0, 0, NULL,
        "answer this; the answer is printed as it grows. -: standard input"),
    ROW("data", STRING, data, NULL, 0, 0, "FILE",
        "answer every row of a JSON-lines file: messages, prompt or input_ids. -: standard input"),
    ROW("raw", BOOL, raw, "false", 0, 0, NULL, "take prompts as they are, not as a turn of the model's chat format"),
    ROW("out", STRING, out, "-", 0, 0, "FILE", "where JSON lines go; -: standard output"),
    ROW("json", BOOL, json, "false", 0, 0, NULL, "the answer to --prompt as JSON lines too"),
    ROW("samples", I32, samples, "1", 1, 65536, NULL, "answers to each prompt"),
    ROW("max-tokens", I64, max_tokens, "256", 1, 1e9, NULL, "limit of tokens per answer"),
    ROW("temperature", F64, temperature, "1", 0, 100, NULL, "sampling temperature; 0: always the likeliest token"),
    ROW("top-k", I32, top_k, "0", 0, 1 << 24, NULL, "sample among the k likeliest tokens; 0: all"),
    ROW("top-p", F64, top_p, "1", 1e-9, 1, NULL, "sample among the likeliest tokens of this total probability"),
    ROW("min-p", F64, min_p, "0", 0, 0.999999, NULL, "drop tokens less likely than this times the likeliest; 0: none"),
    ROW("stop", STRING, stop, NULL, 0, 0, "TEXT",
        "an answer ends before this text; may be given several times. A special token's text is that token"),
    ROW("seed", U64, seed, "0", 0, 0, NULL, "seed of sampling: the same seed gives the same answers"),
    ROW("repeat", I64, repeat, "1", 0, 1e12, NULL,
        "passes over the rows of --data, each with other random numbers; 0: until interrupted"),
    ROW("slots", I64, slots, "16", 1, 65536, NULL, "concurrent sequences"),
    ROW("keep-tokens", I64, keep, "0", 0, 1e12, NULL,
        "tokens of ended sequences whose keys and values are kept, for prompts that begin alike; 0: none"),
    ROW("quiet", BOOL, quiet, "false", 0, 0, NULL, "print only answers and errors"),
    {0}};

static const char usage[] =
    "usage: ravel generate MODEL --prompt TEXT | --data FILE.jsonl [options]\n\n"
    "Samples answers with the generator that training uses.\n\n"
    "examples:\n"
    "  ravel generate runs/sft-1 --prompt 'sort 312:' --temperature 0\n"
    "  ravel generate Qwen3-0.6B --data prompts.jsonl --samples 4 --out answers.jsonl\n"
    "  ravel generate Qwen3-0.6B --raw --prompt 'Q: 6*7? A:' --stop 'Q:' --stop 'A:'\n"
    "  git diff | ravel generate Qwen3-0.6B --prompt -\n"
    "  ravel generate Qwen3-0.6B --pull trainer-0:7700 --data prompts.jsonl --repeat 0 >answers.jsonl\n\n"
    "A row of the output: {\"row\", \"sample\", \"prompt\", \"response\", \"prompt_ids\", \"response_ids\", "
    "\"tokens\",\n\"ended\", \"logprob\"}, and with --pull \"version\" and \"last_version\": of the weights that the "
    "answer was\nbegun and ended with. Rows are in the order of the input.\n\n";

/* ---- the job -------------------------------------------------------------------------------------------- */

/* An answer that waits until those before it are there. */
typedef struct waiting {
    int32_t *tokens;
    int64_t count;
    double logprob;
    int64_t version, last_version; /* of the weights that it was begun and ended with */
    int32_t ended;
} waiting;

typedef struct job {
    const generate_options *o;
    cli_model model;
    train_sampling sampling;
    train_stop_texts stop_texts;
    train_prompts *prompts;
    train_sampler *sampler;
    train_request *requests; /* [block] */
    waiting *answers;        /* [block * samples] */
    int64_t block;
    int64_t pass; /* over the rows, from 0 */
    cli_live live;
    char *prompt; /* --prompt, or standard input */
    size_t prompt_bytes;
    cli_output output;
    int64_t lines; /* written to it */
    ravel_logger logger;
    train_out line; /* that is being made */
} job;

static int holds_stop(void *user, const int32_t *tokens, int64_t count) {
    const job *j = user;
    return train_stop_reached(&j->stop_texts, j->model.text, tokens, count);
}

static ravel_status make_stop_texts(job *j, ravel_error *err) {
    j->sampling.stop = j->model.stops;
    j->sampling.stops = j->model.stop_count;
    j->sampling.ends = j->stop_texts.count > 0 ? holds_stop : NULL;
    j->sampling.user = j;
    return train_stop_specials(&j->stop_texts, j->model.text, j->model.stops, &j->sampling.stops, TRAIN_STOPS, err);
}

/* ---- output --------------------------------------------------------------------------------------------- */

/* Streams the new tokens of the one answer. */
static ravel_status stream(void *user, const int32_t *tokens, int64_t count, ravel_error *err) {
    job *j = user;
    return cli_live_show(&j->live, tokens, count, err);
}

static void put_ids(train_out *o, const char *key, const int32_t *ids, int64_t count) {
    train_out_print(o, ", \"%s\": [", key);
    for (int64_t i = 0; i < count; i++) train_out_print(o, i ? ", %d" : "%d", ids[i]);
    train_out_puts(o, "]");
}

/* stops NULL: the whole text. */
static void put_text(train_out *o, const job *j, const char *key, const int32_t *ids, int64_t count,
                     const train_stop_texts *stops) {
    size_t bytes = train_text_decode(j->model.text, ids, count, NULL, 0);
    char *text = malloc(bytes + 1);
    o->failed |= !text;
    if (!text) return;
    (void)train_text_decode(j->model.text, ids, count, text, bytes + 1);
    if (stops) bytes = train_stop_find(stops, text, bytes);
    train_out_print(o, ", \"%s\": ", key);
    train_out_quote(o, text, bytes);
    free(text);
}

static ravel_status print_line(job *j, int64_t row, int32_t sample, const train_request *r, const waiting *a,
                               ravel_error *err) {
    train_out *o = &j->line;
    o->used = 0;
    train_out_print(o, "{\"row\": %lld, \"sample\": %d", (long long)row, sample);
    if (j->o->repeat != 1) train_out_print(o, ", \"pass\": %lld", (long long)j->pass);
    put_text(o, j, "prompt", r->prompt, r->count, NULL);
    put_text(o, j, "response", a->tokens, a->count - (a->ended == 1), &j->stop_texts);
    put_ids(o, "prompt_ids", r->prompt, r->count);
    put_ids(o, "response_ids", a->tokens, a->count);
    train_out_print(o, ", \"tokens\": %lld, \"ended\": %s, \"logprob\": %.9g", (long long)a->count,
                    a->ended ? "true" : "false", a->logprob);
    if (j->o->pull.pull)
        train_out_print(o, ", \"version\": %lld, \"last_version\": %lld", (long long)a->version,
                        (long long)a->last_version);
    train_out_puts(o, "}\n");
    if (o->failed) return ravel__no_memory(err, o->used, "a line of output");
    j->lines++;
    return cli_output_write(&j->output, o->data, o->used, err);
}

/* ---- generating ----------------------------------------------------------------------------------------- */

static ravel_status keep(void *user, const train_answer *a, ravel_error *err) {
    job *j = user;
    waiting *w = &j->answers[a->request * j->o->samples + a->sample];
    RAVEL_ASSERT(a->request >= 0 && a->request < j->block && a->sample >= 0 && a->sample < j->o->samples);
    size_t bytes = (size_t)a->count * sizeof *w->tokens;
    if (j->o->prompt && !j->o->json) return stream(user, a->tokens, a->count - (a->ended == 1), err);
    w->tokens = malloc(bytes);
    if (!w->tokens) return ravel__no_memory(err, bytes, "an answer");
    RAVEL_ASSERT(a->count > 0);
    memcpy(w->tokens, a->tokens, bytes);
    w->count = a->count;
    w->ended = a->ended;
    w->version = a->version;
    w->last_version = a->versions[a->count - 1];
    w->logprob = 0;
    for (int64_t i = 0; i < a->count; i++) w->logprob += (double)a->logprob[i];
    return RAVEL_OK;
}

static ravel_status print_block(job *j, int64_t first, int64_t count, ravel_error *err) {
    RAVEL_ASSERT(first >= 0 && count <= j->block);
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
    const char *prompt = j->prompt;
    size_t bytes = j->prompt_bytes;
    train_out *row = &j->line;
    if (j->o->raw) return train_text_encode(j->model.text, prompt, bytes, tokens, count, err);
    row->used = 0;
    train_out_puts(row, "{\"prompt\": ");
    train_out_quote(row, prompt, bytes);
    train_out_puts(row, "}");
    if (row->failed) return ravel__no_memory(err, bytes, "a prompt");
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = train_text_prompt(j->model.text, row->data, row->used, prompt, bytes, tokens, count, &why);
    if (!status) return RAVEL_OK;
    int of_template = status == RAVEL_E_UNSUPPORTED || status == RAVEL_E_DATA;
    return ravel_error_set(err, status, "%s%s", why.message,
                           of_template && !strstr(why.message, "--raw") ? " (--raw takes the prompt as it is)" : "");
}

static ravel_status make_requests(job *j, int64_t rows, int64_t first, int64_t count, ravel_error *err) {
    RAVEL_ASSERT(count <= j->block && first + count <= rows);
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
    RAVEL_ASSERT(j->block > 0 && j->requests && j->answers && (!streaming || rows == 1));
    train_sampler_hooks hooks = {.partial = streaming ? stream : NULL, .answer = keep, .stop = &cli_stop, .user = j};
    ravel_status status = RAVEL_OK;
    for (int64_t first = 0; first < rows && !status && !cli_stop; first += j->block) {
        int64_t count = train__min(j->block, rows - first);
        status = make_requests(j, rows, first, count, err);
        if (!status) status = train_sampler_run(j->sampler, j->requests, count, &hooks, err);
        ravel_status printed = streaming ? RAVEL_OK : print_block(j, first, count, status ? NULL : err);
        if (!status) status = printed;
        cli_progress("generating", (double)(first + count), (double)rows);
    }
    cli_progress_end();
    if (streaming && !status) status = cli_live_end(&j->live, err);
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
    for (j->pass = 0; !status && !cli_stop && !j->output.closed && j->pass < passes; j->pass++)
        status = run_blocks(j, rows, err);
    return status;
}

/* Text on standard input ends with a newline that is not the prompt's. */
static ravel_status read_prompt(job *j, ravel_error *err) {
    const char *given = j->o->prompt;
    if (strcmp(given, "-") != 0) {
        j->prompt = strdup(given);
        j->prompt_bytes = strlen(given);
        return j->prompt ? RAVEL_OK : ravel__no_memory(err, strlen(given), "a prompt");
    }
    ravel_status status = ravel__file_read("-", 64 << 20, NULL, &j->prompt, &j->prompt_bytes, err);
    if (!status && j->prompt_bytes && j->prompt[j->prompt_bytes - 1] == '\n') j->prompt_bytes--;
    return status;
}

/* Tokens of a prompt and its answer: no more than the model is made for. */
static ravel_status limit_tokens(const job *j, int64_t longest, int64_t *tokens, ravel_error *err) {
    int64_t most = j->model.shape.max_positions;
    *tokens = longest + j->o->max_tokens;
    if (most <= 0 || *tokens <= most) return RAVEL_OK;
    if (longest >= most)
        return ravel_error_set(
            err, RAVEL_E_DATA,
            "%s of %lld tokens leaves no room for an answer: the model is made for %lld (max_position_embeddings); "
            "shorten it",
            j->o->data ? "the longest prompt," : "a prompt", (long long)longest, (long long)most);
    *tokens = most;
    ravel__log(&j->logger, RAVEL_LOG_WARN,
               "answers end where prompt and answer have %lld tokens together: the model is made for no more "
               "(max_position_embeddings)",
               (long long)most);
    return RAVEL_OK;
}

static ravel_status open_job(job *j, int64_t *rows, ravel_error *err) {
    const generate_options *o = j->o;
    const int32_t *tokens;
    int64_t longest = 0, tokens_of_slot = 0;
    train_sampling_default(&j->sampling);
    j->sampling.temperature = o->temperature;
    j->sampling.top_p = o->top_p;
    j->sampling.min_p = o->min_p;
    j->sampling.top_k = o->top_k;
    j->sampling.max_tokens = o->max_tokens;
    j->sampling.seed = o->seed;
    ravel_status status = cli_model_open(&o->model, &j->model, err);
    if (!status) status = make_stop_texts(j, err);
    if (!status) status = cli_live_open(&j->live, j->model.text, &j->stop_texts, err);
    if (!status && o->data) {
        train_prompts_options options = {
            .data = o->data, .text = j->model.text, .vocab = j->model.shape.vocab, .raw = o->raw};
        status = train_prompts_open(&options, &j->prompts, err);
        if (!status) longest = train_prompts_longest(j->prompts);
        if (!status) *rows = train_prompts_rows(j->prompts);
    } else if (!status) {
        status = read_prompt(j, err);
        if (!status) status = encode_prompt(j, &tokens, &longest, err);
        *rows = 1;
    }
    if (!status) status = limit_tokens(j, longest, &tokens_of_slot, err);
    train_pulled_options pull = cli_pulled(&o->pull, &cli_stop, &j->logger);
    train_sampler_options options = {.model = &j->model.choice,
                                     .slots = train__min(o->slots, *rows * o->samples),
                                     .slot_tokens = tokens_of_slot,
                                     .keep = o->keep,
                                     .logger = &j->logger,
                                     .pull = o->pull.pull ? &pull : NULL};
    if (!status) status = train_sampler_open(&options, &j->sampler, err);
    if (status) return status;
    j->block = train__min(*rows, train__max(1, 8 * o->slots / o->samples));
    RAVEL_ASSERT(*rows > 0 && j->block > 0);
    j->requests = calloc((size_t)j->block, sizeof *j->requests);
    j->answers = calloc((size_t)j->block * (size_t)o->samples, sizeof *j->answers);
    return j->requests && j->answers ? RAVEL_OK : ravel__no_memory(err, (size_t)j->block, "requests");
}

static void close_job(job *j) {
    train_sampler_free(j->sampler);
    train_prompts_free(j->prompts);
    cli_live_close(&j->live);
    cli_model_close(&j->model);
    free(j->prompt);
    free(j->requests);
    free(j->answers);
    train_out_free(&j->line);
}

/* Not all that was asked for: rows that are written stay, under a name that says so. An hour's work must not go with
 * the last minute's. Without an end (--repeat 0) an interruption is the end, and the name is the final one. */
static ravel_status close_output(job *j, ravel_status status, int64_t all, ravel_error *err) {
    ravel_error own = RAVEL_ERROR_INIT;
    int endless = j->o->repeat == 0, cut = !j->output.closed && (status ? j->lines > 0 : !endless && j->lines < all);
    if (!cut) return cli_output_close(&j->output, status, err);
    if (j->output.aside[0] && !endless) cli_output_partial(&j->output);
    ravel_status closed = cli_output_close(&j->output, RAVEL_OK, status ? &own : err);
    if (!closed)
        (void)fprintf(stderr, "ravel generate: %s after %s%s%s answers%s%s\n", status ? "ended" : "interrupted",
                      ravel__thousands(j->lines).text, endless ? "" : " of ", endless ? "" : ravel__thousands(all).text,
                      j->output.aside[0] ? "; they are in " : "", j->output.aside[0] ? j->output.target : "");
    return status ? status : closed;
}

/* Answers that are asked for in all; 0: no end. */
static int64_t wanted(const generate_options *o, int64_t rows) {
    int64_t each = rows * o->samples;
    return o->repeat > INT64_MAX / each ? INT64_MAX : each * o->repeat;
}

static ravel_status run(const generate_options *o, train_stop_texts stops, ravel_error *err) {
    job j = {.o = o, .stop_texts = stops};
    cli_voice voice = {"generate", o->quiet, 0};
    j.logger = (ravel_logger){cli_log, &voice};
    int64_t rows = 0;
    int lines = o->data || o->json;
    ravel_status status = open_job(&j, &rows, err);
    if (!status && lines) {
        status = cli_output_open(&j.output, o->out, err);
        if (!status) status = close_output(&j, run_passes(&j, rows, err), wanted(o, rows), err);
    } else if (!status) {
        status = run_passes(&j, rows, err);
    }
    if (j.sampler) say_pulled(&j);
    close_job(&j);
    return status;
}

static ravel_status check(const generate_options *o, ravel_error *err) {
    if (!o->prompt == !o->data)
        return CLI_REFUSE(err, "give --prompt TEXT or --data FILE.jsonl%s", o->data ? ", not both" : "");
    if (o->prompt && !o->json && o->samples > 1)
        return CLI_REFUSE(err, "several --samples are written as JSON lines: add --json");
    if (o->prompt && !o->json && strcmp(o->out, "-") != 0)
        return CLI_REFUSE(err, "--out is for JSON lines: add --json");
    if (o->prompt && o->repeat != 1) return CLI_REFUSE(err, "--repeat is for the rows of --data");
    ravel_status status = cli_claim_input("model", o->model.model, err);
    if (!status) status = cli_claim_input("adapter", o->model.adapter, err);
    if (!status) status = cli_claim_input("data", o->data, err);
    if (!status) status = cli_claim_output("out", o->out, err);
    return status ? status : cli_claim_partial("out", o->out, err);
}

int cli_generate(int argc, char **argv) {
    generate_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    const char *words[1], *stops[CLI_STOPS];
    int word_count = 0, stop_count = 0, code;
    const cli_options sets[] = {{"the model", cli_model_table, &o.model},
                                {"answers", table, &o},
                                {"weights that trainers publish", cli_pull_table, &o.pull}};
    const cli_form form = {"generate", usage, NULL, sets, 3, 1};
    if (!cli_begin(&form, argc, argv, words, &word_count, &code)) return code;
    if (cli_stops(argc, argv, sets, 3, stops, &stop_count, &err) ||
        cli_model_check(&o.model, word_count ? words[0] : NULL, &err) || check(&o, &err))
        return cli_usage("generate", &err);
    cli_catch_stop(NULL);
    code = run(&o, (train_stop_texts){stops, stop_count}, &err) ? cli_fail("generate", &err) : CLI_OK;
    return cli_stop && o.repeat ? 128 + cli_stop : code; /* as a shell has it */
}
