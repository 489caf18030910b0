/* The model of a command that samples from it (generate, serve, chat): its options, and what they open. */
#ifndef CLI_MODEL_H
#define CLI_MODEL_H

#include "cli/cli.h"

#include "train/run/config/resolve.h"
#include "train/run/answers/sampler.h"

typedef struct cli_model_options {
    const char *model, *adapter, *kernels, *chat_format, *chat_args, *stop_ids;
    int32_t threads, gpu, graphs;
} cli_model_options;
extern const ravel_option cli_model_table[];

typedef struct cli_pull_options {
    const char *pull;
    int32_t commit, tls, versions;
    double timeout;
} cli_pull_options;
extern const ravel_option cli_pull_table[];

typedef struct cli_model {
    train_model_path path;
    train_model_choice choice;
    ravel_shape shape;
    int32_t stops[TRAIN_STOPS], stop_count;
    train_text *text;
} cli_model;

/* All values of --stop: *count texts to stops[CLI_STOPS]. */
enum { CLI_STOPS = 16 };
ravel_status cli_stops(int argc, char **argv, const cli_options *sets, int set_count, const char **stops, int *count,
                       ravel_error *err);
/* E_ARGUMENT without a model. `word`: the model as an argument, or NULL. An adapter without a model is a model, which
 * it names. */
ravel_status cli_model_check(cli_model_options *options, const char *word, ravel_error *err);
/* Shape, tokenizer and stop tokens, without the weights. */
ravel_status cli_model_open(const cli_model_options *options, cli_model *model, ravel_error *err);
void cli_model_close(cli_model *model);
/* Tokens of a prompt and its answer, at most: as wanted, or 0: 4096, or what the model can. */
ravel_status cli_model_context(int64_t wanted, const ravel_shape *shape, int64_t *context, ravel_error *err);
/* `stop` ends the wait for a first version. */
train_pulled_options cli_pulled(const cli_pull_options *options, const volatile int *stop, const ravel_logger *logger);

#endif
