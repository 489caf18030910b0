/* train/run/grpo/grpo.h: reinforcement learning on verifiable rewards, with separate generator and trainer ranks.
 *
 *     ranks 0 .. T-1        trainers: reward, advantage, feed, learn                    train/run/grpo/grpo.c
 *     ranks T .. T+G-1      generators: answer prompts with the weights they have       train/run/grpo/generate.c
 *
 * With --rollout a generator rank has no weights and asks inference servers (remote.c).
 *
 * One batch, synchronous (--async 0), and with generation one version ahead (--async 1):
 *
 *     trainers     prompts  wait....  learn  refit |  prompts ...
 *     generators            answer           refit |
 *
 *     trainers     (answers of b are here)  prompts of b+1  learn b      refit |  answers of b+1 ...
 *     generators                            answer b+1 with the old weights    refit |
 *
 * --async N above 1: the same, and slots that batch b+1 does not need work on b+2 .. b+N (episodes.h). What is due and
 * which weights draw a token follow from the order of messages alone:
 *
 *     order b+1 (questions of b+N with it) -> generators work until b+1 is over -> answers -> refit -> order b+2 ...
 *
 * Reproducible: question numbers, not random draws; each answer's random numbers are its own (seed, group,
 * member); answers are put in order before anything is computed; checkpoints are written between batches and hold the
 * rollouts that wait. */
#ifndef TRAIN_GRPO_H
#define TRAIN_GRPO_H

#include "train/run/run.h"

/* Every rank of `comm` calls it, trainers and generators. summary (may be NULL) is filled on trainers. */
ravel_status train_grpo(const train_config *config, ravel_comm *comm, const train_hooks *hooks, train_summary *summary,
                        ravel_error *err);

/* The generators' side. `group` is the communicator of the generators alone. */
ravel_status train_grpo_generate(const train_config *config, const ravel_shape *shape, ravel_comm *world,
                                 ravel_comm *group, const train_hooks *hooks, ravel_error *err);

#endif
