/* What callers give: structs of any library version, an allocator, a source.
 *
 * The folders of refit, from the bottom; each includes those above it in this list:
 *
 *     model/      what is where: boxes, views, names and rules, holdings, manifests, the directory of all senders, and
 *                 the plan of one receiver: which slices it wants from whom; memory of devices (carrier.h, casts.h)
 *     stage/      a version beside the live one, and the switch
 *     wire/       blocks (block.h: the one way to send and to take elements), the messages of a pull, frames of blocks
 *     publish/    trainers: kept versions, and the threads that serve them
 *     pull/       generators: threads that pull a version into the stage
 *     session/    the collective form: all receivers pull the same version at once, over the ranks' own communicator
 *
 *     manifests -> directory -> plan -+-> PULL over a link -----> store -> blocks ------------+-> verify -> stage -> commit
 *                                     \-> request over the comm -> source -> frames ----------/
 *
 * Directory, plan, requests, blocks, stage, and lists of casts on devices are the same in both forms. They differ in
 * where the bytes come from and in what carries them. A publication keeps a copy, so that trainers go on at once, and
 * serves whoever asks, whenever. A session reads the source while the trainers wait: no copy, N buffers of B bytes
 * whatever the tensors are, tensors that exist one at a time (iterate), receivers that pass frames on, no copy on the
 * way over threads, and NCCL or MPI between machines. Over the links of a publication all of these would be lost, so it
 * has one loop of its own (session/stream.c), for every communicator. */
#ifndef RAVEL_REFIT_CALLER_H
#define RAVEL_REFIT_CALLER_H

#include "refit/model/holding.h"

#include <stdatomic.h>

/* Counts what it hands out; wraps the caller's allocator. */
typedef struct ravel__counted {
    ravel_allocator allocator; /* hand out this one */
    const ravel_allocator *inner;
    _Atomic int64_t live, peak;
} ravel__counted;

void ravel__counted_init(ravel__counted *counted, const ravel_allocator *inner);

/* Random, never 0. */
uint64_t ravel__fresh_nonce(void);
/* A copy of the caller's source or sink, and its holding. E_ARGUMENT also names a tensor without data, if the source
 * does not iterate. */
ravel_status ravel__source_take(const ravel_refit_source *from, ravel_refit_source *copy, ravel__arena *arena,
                                ravel__holding *holding, ravel_error *err);
ravel_status ravel__sink_take(const ravel_refit_sink *from, ravel_refit_sink *copy, ravel__arena *arena,
                              ravel__holding *holding, ravel_error *err);

#endif
