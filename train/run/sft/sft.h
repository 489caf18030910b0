/* train/run/sft/sft.h: supervised fine-tuning, on data, mock data or the answers of a verifiable task, and preference
 * pairs. */
#ifndef TRAIN_SFT_H
#define TRAIN_SFT_H

#include "train/run/run.h"

/* Supervised fine-tuning (TRAIN_SFT), or the same on preference pairs with the loss of train/rl/dpo.h (TRAIN_DPO).
 * Every rank of `comm` is a trainer and calls it. summary may be NULL. */
ravel_status train_tune(train_kind kind, const train_config *config, ravel_comm *comm, const train_hooks *hooks,
                        train_summary *summary, ravel_error *err);

/* How its rows are read: with the model's tokenizer where it has one. */
ravel_source_options train_tune_rows(const train_config *config, train_kind kind, const ravel_shape *shape);

/* A source of a task's questions and answers, rows first .. first+count-1 of (task, seed, level). */
ravel_status train_task_source(const char *task, uint64_t seed, int32_t level, int64_t first, int64_t count,
                               ravel_source **source, ravel_error *err);

#endif
