/* train/run/grpo/pull.h: weights from the trainers to the run's own generators by publish and pull (--refit pull).
 *
 *     trainers      publish a version where it lies (a GPU: in memory of the device that can be shared), then order
 *     generators    pull it (the same GPU: from device memory to device memory), verify it, and switch
 *
 * The other way is collective: ravel_refit_update on all ranks, over their communicator. There weights of a GPU go
 * through host memory. Every rank makes the same calls in the same order:
 *
 *     train__grpo_way              which of the two; collective over all ranks
 *     train__grpo_serve            trainers: the publication
 *     train__grpo_connect          generators: their end of it
 */
#ifndef TRAIN_GRPO_PULL_H
#define TRAIN_GRPO_PULL_H

#include <ravel/publish.h>

#include "train/run/config/config.h"
#include "train/run/answers/weight_sets.h"

/* Sent by trainer 0 to the other ranks: the address, the token that the publication requires ("": none), and its dtype. */
typedef struct train__meeting {
    char address[512], token[256];
    int32_t dtype;
} train__meeting;

/* Of a collective refit: what the configuration says of buffers. The same on every rank. */
ravel_refit_options train__grpo_buffers(const train_config *config);

/* What --refit-delta auto means for ranks of one machine, or of several. */
void train__grpo_settle_delta(train_config *config, int one_machine);
/* The dtype of a publication; -1: as the weights are trained. */
int32_t train__grpo_published_dtype(const train_config *config, const train_kernels *kernels);

/* Whether generators shall pull, where their machine allows it. */
int train__grpo_pulls(const train_config *config, const train_kernels *kernels);
/* `gpu`: this rank's. Where pulling is the way, *place is open and is the caller's to close. */
ravel_status train__grpo_way(const train_config *config, const train_kernels *kernels, int32_t gpu, ravel_comm *world,
                             train_place *place, int *pulls, ravel_error *err);

/* `trainers`: their communicator; rank 0 of `world` is the first of them. `address`: where generators that were not
 * launched with the run pull, too (--publish), so that there is one copy of the weights for all; NULL: only those of
 * the run, at an address and with a token that nobody else knows. Source and meeting must outlive the publisher. */
ravel_status train__grpo_serve(ravel_comm *world, ravel_comm *trainers, const ravel_refit_source *source,
                               const char *address, ravel_publish_options options, train__meeting *meeting,
                               ravel_publisher **publisher, ravel_error *err);
/* `comm`: the ranks of this generator. Sink and meeting must outlive the puller. */
ravel_status train__grpo_connect(ravel_comm *world, ravel_comm *comm, const ravel_refit_sink *sink,
                                 train__meeting *meeting, ravel_puller **puller, ravel_error *err);

/* Commits `version`, which is published. */
ravel_status train__grpo_pull(ravel_puller *puller, int64_t version, ravel_pull_report *report, ravel_error *err);

#endif
