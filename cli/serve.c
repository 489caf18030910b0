/* ravel serve: a model as a server that OpenAI's clients use. */
#include "cli/model.h"

#include "base/log.h"
#include "http/server.h"
#include "train/kernels/host.h"
#include "train/serve/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ADAPTERS = 256 };

typedef struct serve_options {
    cli_model_options model;
    cli_pull_options pull;
    const char *listen, *name, *key;
    int64_t slots, context, keep, prefill, queue, body;
    int32_t top, connections, quiet;
    double grace;
    const char *adapter; /* the last one; all of them: */
    const char *adapters[ADAPTERS], *adapter_names[ADAPTERS];
    int32_t adapter_count;
} serve_options;

#define ROW(...) RAVEL__ROW(serve_options, __VA_ARGS__)

static const ravel_option table[] = {
    ROW("adapter", STRING, adapter, NULL, 0, 0, cli_several,
        "a PEFT adapter (LoRA) that clients ask for as model NAME; may be given several times. FOLDER alone: the model "
        "answers with it"),
    ROW("listen", STRING, listen, "127.0.0.1:8000", 0, 0, "ADDRESS",
        "port, or address:port; 0.0.0.0:8000 for other machines; port 0: any free one"),
    ROW("name", STRING, name, NULL, 0, 0, NULL, "of the model, as clients give it; without it the folder's name"),
    ROW("api-key", STRING, key, NULL, 0, 0, "KEY",
        "clients must send it (Authorization: Bearer KEY); better in the variable RAVEL_API_KEY"),
    ROW("slots", I64, slots, "32", 1, 65536, NULL, "concurrent answers"),
    ROW("context", I64, context, "0", 0, 1e9, NULL,
        "limit of tokens in a prompt and its answer together; 0: 4096 or the model's limit"),
    ROW("keep-tokens", I64, keep, "32768", 0, 1e12, NULL,
        "tokens of ended answers whose keys and values are kept, for prompts that begin alike; 0: none"),
    ROW("prefill-rows", I64, prefill, "512", 0, 1e9, NULL,
        "limit of prompt tokens between two tokens of running answers, at least 128; longer prompts run in parts. 0: none"),
    ROW("queue", I64, queue, "1024", 0, 1e9, NULL, "limit of prompts that wait for slots; beyond it clients get 429"),
    ROW("top-logprobs", I32, top, "20", 0, 1000, NULL, "likeliest tokens that a client may ask for"),
    ROW("max-connections", I32, connections, "1024", 1, 65536, NULL, "concurrent connections; further ones wait"),
    ROW("max-body", I64, body, "67108864", 1024, 1e9, NULL, "bytes of a request"),
    ROW("grace", F64, grace, "30", 0, 86400, NULL, "seconds that answers may take after SIGTERM or Ctrl-C"),
    ROW("quiet", BOOL, quiet, "false", 0, 0, NULL, "print only errors"),
    {0}};

static const char usage[] =
    "usage: ravel serve MODEL [options]\n\n"
    "Serves a model folder, a run or an adapter over HTTP, as OpenAI's API: /v1/completions, /v1/chat/completions,\n"
    "/v1/models; and /tokenize, /detokenize, /health, /metrics.\n\n"
    "examples:\n"
    "  ravel serve Qwen3-0.6B\n"
    "  ravel serve runs/sft-1 --listen 0.0.0.0:8000 --name mine --slots 64\n"
    "  ravel serve Qwen3-0.6B --adapter sql=runs/sql --adapter chat=lora-chat\n"
    "  ravel serve Qwen3-0.6B --pull trainer-0:7700          weights of a run, version by version\n"
    "  curl http://127.0.0.1:8000/v1/completions -d '{\"prompt\": \"Once\", \"max_tokens\": 20, \"stream\": true}'\n\n";

static train_serve *volatile serving;

/* The first signal lets answers end. */
static void end_answers(int number) {
    (void)number;
    if (serving) train_serve_stop(serving);
}

/* The last part of a path. */
static const char *base_name(char *path) {
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = '\0';
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

static ravel_status serve(const serve_options *o, train_serve_options *to, ravel_error *err) {
    train_serve *s = NULL;
    ravel_status status = train_serve_open(to, &s, err);
    if (status) return status;
    serving = s;
    if (cli_stop) train_serve_stop(s);
    if (!o->quiet)
        (void)fprintf(stderr, "ravel serve: %s at port %d of %s, %lld slots of %lld tokens\n", to->name,
                      (int)train_serve_port(s), o->listen, (long long)to->slots, (long long)to->slot_tokens);
    status = train_serve_run(s, err);
    serving = NULL;
    train_serve_free(s);
    return status;
}

/* Before a model is loaded: a port that is taken is said at once. */
static ravel_status check_address(const char *listen, ravel_error *err) {
    int fd = -1;
    int32_t port;
    ravel_status status = ravel__http_listen(listen, &fd, &port, err);
    if (fd >= 0) (void)close(fd);
    return status;
}

static ravel_status run(serve_options *o, ravel_error *err) {
    cli_model model = {0};
    cli_voice voice = {"serve", o->quiet, 0};
    ravel_logger logger = {cli_log, &voice};
    train_sampler *sampler = NULL;
    char name[TRAIN_PATH];
    int64_t context = 0;
    (void)snprintf(name, sizeof name, "%s", o->model.model);
    const char *own = o->name ? o->name : base_name(name);
    for (int32_t i = 0; i < o->adapter_count; i++)
        if (strcmp(o->adapter_names[i], own) == 0)
            return CLI_REFUSE(err, "the adapter \"%.200s\" has the model's name: give one of them another (--name)",
                              own);
    ravel_status status = check_address(o->listen, err);
    if (!status) status = cli_model_open(&o->model, &model, err);
    if (!status) status = cli_model_context(o->context, &model.shape, &context, err);
    int32_t top = (int32_t)train__min(o->top, model.shape.vocab);
    train_pulled_options pull = cli_pulled(&o->pull, &cli_stop, &logger);
    train_sampler_options options = {.model = &model.choice,
                                     .slots = o->slots,
                                     .slot_tokens = context,
                                     .keep = o->keep,
                                     .prefill_rows = o->prefill,
                                     .top = top,
                                     .adapters = o->adapters,
                                     .adapter_count = o->adapter_count,
                                     .logger = &logger,
                                     .pull = o->pull.pull ? &pull : NULL};
    if (!status) status = train_sampler_open(&options, &sampler, err);
    train_serve_options to = {.listen = o->listen,
                              .name = own,
                              .adapters = o->adapter_names,
                              .adapter_count = o->adapter_count,
                              .key = o->key ? o->key : getenv("RAVEL_API_KEY"),
                              .sampler = sampler,
                              .text = model.text,
                              .stops = model.stops,
                              .stop_count = model.stop_count,
                              .top = top,
                              .vocab = model.shape.vocab,
                              .slots = o->slots,
                              .slot_tokens = context,
                              .queue = o->queue,
                              .body_bytes = o->body,
                              .connections = o->connections,
                              .grace = o->grace,
                              .logger = &logger};
    const char *silent = status ? NULL : train_text_no_chat(model.text);
    if (silent) ravel__log(&logger, RAVEL_LOG_WARN, "/v1/chat/completions will be refused: %s", silent);
    if (!status) status = serve(o, &to, err);
    train_sampler_free(sampler);
    cli_model_close(&model);
    return status;
}

/* "NAME=FOLDER" is an adapter beside the model, "FOLDER" the model's own. The words of the command line are
 * cut in place. */
static ravel_status take_adapters(serve_options *o, const char *const *values, int count, ravel_error *err) {
    static char paths[ADAPTERS][TRAIN_PATH];
    o->model.adapter = NULL;
    for (int i = 0; i < count; i++) {
        char *value = (char *)values[i], *equals = strchr(value, '=');
        if (!equals || memchr(value, '/', (size_t)(equals - value))) {
            if (o->model.adapter)
                return CLI_REFUSE(err, "--adapter %.200s is the second one without a name: give NAME=FOLDER", value);
            o->model.adapter = value;
            continue;
        }
        *equals = '\0';
        if (!*value || !equals[1]) return CLI_REFUSE(err, "--adapter %s=%s: give NAME=FOLDER", value, equals + 1);
        for (int32_t k = 0; k < o->adapter_count; k++)
            if (strcmp(o->adapter_names[k], value) == 0)
                return CLI_REFUSE(err, "two adapters are called \"%.200s\"", value);
        char *path = paths[o->adapter_count];
        ravel_status status = train_adapter_resolve(equals + 1, path, err);
        if (status) return status;
        o->adapter_names[o->adapter_count] = value;
        o->adapters[o->adapter_count++] = path;
    }
    return RAVEL_OK;
}

int cli_serve(int argc, char **argv) {
    serve_options o = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_option rows[16];
    const char *words[1], *adapters[ADAPTERS];
    int adapter_count = 0, word_count = 0, code;
    const cli_options sets[] = {{"the model", cli_without(cli_model_table, "adapter", rows, 16), &o.model},
                                {"serving", table, &o},
                                {"weights that trainers publish", cli_pull_table, &o.pull}};
    const cli_form form = {"serve", usage, NULL, sets, 3, 1};
    if (!cli_begin(&form, argc, argv, words, &word_count, &code)) return code;
    if (cli_values(argc, argv, sets, 3, "adapter", adapters, ADAPTERS, &adapter_count, &err))
        return cli_usage("serve", &err);
    if (take_adapters(&o, adapters, adapter_count, &err)) return cli_fail("serve", &err);
    if (cli_model_check(&o.model, word_count ? words[0] : NULL, &err)) return cli_usage("serve", &err);
    cli_catch_stop(end_answers);
    return run(&o, &err) ? cli_fail("serve", &err) : CLI_OK;
}
