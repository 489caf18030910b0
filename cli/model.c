#include "cli/model.h"

#include "base/system/team.h"
#include "train/kernels/host.h"

#include <string.h>

#define MODEL(...) RAVEL__ROW(cli_model_options, __VA_ARGS__)
#define PULL(...)  RAVEL__ROW(cli_pull_options, __VA_ARGS__)

const ravel_option cli_model_table[] = {
    MODEL("model", STRING, model, NULL, 0, 0, "FOLDER",
          "a Hugging Face folder, a run or a checkpoint of ravel train, or an adapter's folder"),
    MODEL(
        "adapter", STRING, adapter, NULL, 0, 0, "FOLDER",
        "answer with this PEFT adapter (LoRA), or that of a run, beside the weights; --model is by default the model that it names"),
    MODEL("chat-format", STRING, chat_format, NULL, 0, 0, "NAME",
          "how conversations are written: chatml, llama3, ...; by default the model's template"),
    MODEL("chat-args", STRING, chat_args, NULL, 0, 0, "JSON",
          "variables of the chat template, such as {\"enable_thinking\": false}"),
    MODEL("stop-ids", STRING, stop_ids, NULL, 0, 0, "TOKENS",
          "token ids that end an answer, as 151645,151643; by default the model's eos_token_id, or 257"),
    MODEL("kernels", STRING, kernels, "auto", 0, 0, "NAME", TRAIN_KERNELS_HELP),
    MODEL("device", I32, gpu, "0", 0, 1023, NULL, "which GPU, with --kernels cuda"),
    MODEL("graphs", ENUM, graphs, "auto", 0, 0, TRAIN_GRAPHS_CHOICES,
          "CUDA graphs for decode steps, with --kernels cuda; on: fail if unsupported"),
    MODEL("threads", I32, threads, "0", 0, 1024, NULL, "0: one per processor"),
    {0}};

const ravel_option cli_pull_table[] = {
    PULL(
        "pull", STRING, pull, NULL, 0, 0, "ADDRESS",
        "pull weights from trainers (ravel train grpo --publish): host:port, unix:/path; --model says shape and tokenizer "
        "or, if an adapter is published, is the model beside it"),
    PULL("pull-commit", ENUM, commit, "auto", 0, 0, TRAIN_COMMIT_CHOICES,
         "step: a new version is used from the next token on; idle: only when no answer is running; answer: by answers "
         "that begin from then on (adapters only). auto: answer for adapters, else step"),
    PULL("pull-versions", I32, versions, "2", 1, 1024, NULL,
         "versions of an adapter held at once: with --pull-commit answer a new one waits until the answers of the "
         "oldest have ended"),
    PULL("pull-tls", BOOL, tls, "false", 0, 0, NULL,
         "encrypt the connections to them (--publish-tls); also RAVEL_TLS=1"),
    PULL("pull-timeout", F64, timeout, "60", 0.01, 86400, NULL,
         "seconds to wait for the first version, and without progress of a later one"),
    {0}};

ravel_status cli_model_check(cli_model_options *o, const char *word, ravel_error *err) {
    if (word && o->model) return CLI_REFUSE(err, "the model is given twice: as \"%.200s\" and as --model", word);
    if (word) o->model = word;
    if (!o->model) {
        o->model = o->adapter;
        o->adapter = NULL;
    }
    if (o->model) return RAVEL_OK;
    return CLI_REFUSE(err, "give --model FOLDER: a model folder, a run, a checkpoint or an adapter");
}

enum { STOP_BYTES = 256 };

ravel_status cli_stops(int argc, char **argv, const cli_options *sets, int set_count, const char **stops, int *count,
                       ravel_error *err) {
    ravel_status status = cli_values(argc, argv, sets, set_count, "stop", stops, CLI_STOPS, count, err);
    for (int i = 0; i < *count && !status; i++)
        if (!stops[i][0] || strlen(stops[i]) > STOP_BYTES)
            status =
                CLI_REFUSE(err, "a --stop text must have from 1 to %d bytes, not %zu", STOP_BYTES, strlen(stops[i]));
    return status;
}

static ravel_status find_stops(const cli_model_options *o, cli_model *m, ravel_error *err) {
    if (o->stop_ids)
        m->stop_count = train_stops_parse(o->stop_ids, m->shape.vocab, m->stops, err);
    else
        train_stop_tokens(&m->choice, m->stops, &m->stop_count);
    RAVEL_ASSERT(m->stop_count <= TRAIN_STOPS);
    return m->stop_count > 0 ? RAVEL_OK : RAVEL_E_ARGUMENT;
}

ravel_status cli_model_open(const cli_model_options *o, cli_model *m, ravel_error *err) {
    ravel_status status = train_model_resolve_with(o->model, o->adapter, &m->path, err);
    m->choice = (train_model_choice){.model = m->path.model,
                                     .adapter = m->path.adapter[0] ? m->path.adapter : NULL,
                                     .kernels = o->kernels,
                                     .gpu = o->gpu,
                                     .graphs = o->graphs,
                                     .deterministic = 1,
                                     .threads = o->threads ? o->threads : ravel__processors(RAVEL__TEAM_MOST)};
    if (!status) status = train_shape(&m->choice, &m->shape, err);
    if (!status) status = train_choice_settle(&m->choice, 1, err);
    if (!status) status = find_stops(o, m, err);
    if (!status) status = train_text_open(m->path.model, m->shape.vocab, o->chat_format, o->chat_args, &m->text, err);
    return status;
}

ravel_status cli_model_context(int64_t wanted, const ravel_shape *shape, int64_t *context, ravel_error *err) {
    *context = wanted ? wanted : 4096;
    if (shape->max_positions <= 0 || *context <= shape->max_positions) return RAVEL_OK;
    if (wanted)
        return CLI_REFUSE(err, "--context %lld: the model can do %lld (max_position_embeddings)", (long long)wanted,
                          (long long)shape->max_positions);
    *context = shape->max_positions;
    return RAVEL_OK;
}

void cli_model_close(cli_model *m) {
    train_text_free(m->text);
    m->text = NULL;
}

train_pulled_options cli_pulled(const cli_pull_options *o, const volatile int *stop, const ravel_logger *logger) {
    return (train_pulled_options){.address = o->pull,
                                  .commit = o->commit,
                                  .versions = o->versions,
                                  .timeout = o->timeout,
                                  .tls = o->tls,
                                  .stop = stop,
                                  .logger = logger};
}
