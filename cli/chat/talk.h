/* A conversation with a model, in the terminal: the messages so far, and an answer to them as it is made.
 *
 *     cli_talk_open(&options, &talk, &err);
 *     cli_talk_say(talk, text, bytes, &err);       a user's turn, and the model's, on standard output
 *     cli_talk_switch(talk, model, adapter, &err)  the same conversation with other weights
 *     cli_talk_free(talk);
 *
 * Each answer is to the whole conversation, which the model's chat template writes; its beginning is found in kept
 * pages (train/model/generate/generator.h), so that only what is new is run. If it no longer fits the context, the
 * oldest turns are forgotten, and the talk says so. With `raw` there is no conversation: each text is continued as it
 * is. */
#ifndef CLI_TALK_H
#define CLI_TALK_H

#include "cli/model.h"

#include "train/run/answers/stops.h"

typedef struct cli_talk cli_talk;

typedef struct cli_talk_sampling {
    double temperature, top_p, min_p;
    int32_t top_k;
    int64_t max_tokens, seed; /* seed below 0: another one each time */
} cli_talk_sampling;

typedef struct cli_talk_options {
    const cli_model_options *model; /* these pointers must outlive the talk */
    const cli_pull_options *pull;
    const cli_talk_sampling *sampling; /* may change between turns */
    const train_stop_texts *stops;
    int64_t context; /* 0: cli_model_context */
    int32_t raw;
    volatile int *stop; /* not 0: an answer ends where it is */
    const ravel_logger *logger;
} cli_talk_options;

typedef struct cli_talk_figures {
    int64_t turns;          /* messages, the system's included */
    int64_t prompt, answer; /* tokens of the last turn */
    int64_t kept;           /* of the prompt, found in kept pages */
    double seconds;         /* of the last answer */
    int64_t version;        /* of the weights, if they are pulled */
} cli_talk_figures;

/* E_UNSUPPORTED for a model without a chat template, unless `raw`. */
ravel_status cli_talk_open(const cli_talk_options *options, cli_talk **talk, ravel_error *err);
void cli_talk_free(cli_talk *talk);

/* On an error the turn is not part of the conversation. */
ravel_status cli_talk_say(cli_talk *talk, const char *text, size_t bytes, ravel_error *err);
/* Another answer to the last turn; E_STATE if there is none. */
ravel_status cli_talk_retry(cli_talk *talk, ravel_error *err);
/* Takes the last turn and its answer back; E_STATE if there is none. */
ravel_status cli_talk_undo(cli_talk *talk, ravel_error *err);
/* Forgets all turns; the system's message stays. */
void cli_talk_reset(cli_talk *talk);
/* "": none. */
ravel_status cli_talk_system(cli_talk *talk, const char *text, ravel_error *err);
/* Appends the conversation to a file, as a row {"messages": [...]} that can be trained on. */
ravel_status cli_talk_save(const cli_talk *talk, const char *path, ravel_error *err);

/* As --model and --adapter; NULL: no adapter. On an error the old ones stay, or, where they cannot be read any more,
 * the status is E_STATE. */
ravel_status cli_talk_switch(cli_talk *talk, const char *model, const char *adapter, ravel_error *err);
/* What the weights are read from. */
const train_model_path *cli_talk_path(const cli_talk *talk);
cli_talk_figures cli_talk_last(const cli_talk *talk);

#endif
