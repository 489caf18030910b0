/* train/run/sft/eval.h: a model's loss on rows of files, and on pairs how often it prefers the chosen answer; what the evaluation of
 * sft and dpo does, without training, on any mesh. */
#ifndef TRAIN_EVAL_H
#define TRAIN_EVAL_H

#include "train/run/run.h"

typedef struct train_eval_options {
    const char
        *reference; /* pairs: the model folder that log-probs are compared with; NULL: the model without its adapter, or
                              without one none: then margins are of the answers' own log-probs */
    train_files files;
} train_eval_options;

/* Of a file, the same on every rank. */
typedef struct train_eval_figures {
    int64_t rows;
    double tokens; /* that carry loss; of pairs how many pairs */
    double loss;   /* mean of -log p of these tokens; of pairs the loss of dpo */
    double
        right; /* share of tokens than which none is likelier; of pairs those whose chosen answer has the larger margin */
    double chosen, rejected; /* pairs: mean rewards, beta times the log-ratios */
} train_eval_figures;

/* Every rank of `comm` calls it. figures[files.count]. TRAIN_SFT or TRAIN_DPO; config->sft.batch samples at a time. */
ravel_status train_evaluate(train_kind kind, const train_config *config, const train_eval_options *options,
                            ravel_comm *comm, const train_hooks *hooks, train_eval_figures *figures, ravel_error *err);

#endif
