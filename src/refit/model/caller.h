/* What callers give: structs of any library version, an allocator, a source.
 *
 * The folders of refit, from the bottom; each includes those above it in this list:
 *
 *     model/      what is where: boxes, views, names and rules, holdings, manifests, the directory of all senders, and
 *                 the plan of one receiver: which slices it wants from whom
 *     wire/       frames of slices, the messages of a pull, payloads in device memory
 *     stage/      a version beside the live one, and the switch
 *     publish/    trainers: kept versions, and the threads that serve them
 *     pull/       generators: threads that pull a version into the stage
 *     session/    the collective form: all receivers pull the same version at once, over the ranks' own communicator
 *
 *     manifests -> directory -> plan -+-> PULL over a link -----> store -> blocks and frames -+-> verify -> stage -> commit
 *                                     \-> request over the comm -> source -> frames ----------/
 *
 * The two forms differ in where the bytes come from and in what carries them. A publication keeps a copy, so that trainers
 * go on at once, and serves whoever asks, whenever. A session reads the source while the trainers wait: no copy, N
 * buffers of B bytes whatever the tensors are, tensors that exist one at a time (iterate), receivers that pass frames on,
 * and NCCL or MPI between machines. That is why it has a loop of its own (session/stream.c). */
#ifndef RAVEL_REFIT_CALLER_H
#define RAVEL_REFIT_CALLER_H

#include "refit/model/holding.h"

#include <stdatomic.h>

/* Copies a struct of `size` bytes that may be older, and so shorter, than this library's, which has `bytes`; the rest of
 * `to` stays as it is. */
ravel_status ravel__struct_take(void *to, size_t bytes, const void *from, size_t size, const char *what,
                                ravel_error *err);

/* Counts what it hands out; wraps the caller's allocator. */
typedef struct ravel__counted {
    ravel_allocator allocator; /* hand out this one */
    const ravel_allocator *inner;
    _Atomic int64_t live, peak;
} ravel__counted;

void ravel__counted_init(ravel__counted *counted, const ravel_allocator *inner);

/* Random, never 0. */
uint64_t ravel__fresh_nonce(void);
/* E_ARGUMENT names a tensor without data, if the source does not iterate. */
ravel_status ravel__source_check(const ravel_refit_source *source, const ravel__holding *holding, ravel_error *err);

#endif
