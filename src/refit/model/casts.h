/* Lists of casts: pieces of tensors in device memory, and where they lie packed in a buffer there. One kernel moves all
 * of them, converts on the way, and hashes the packed bytes span by span.
 *
 *     add, add, ... -> run                     pack: gather, cast, hash; unpack: hash, cast, scatter
 *     add, add, ... -> run, run, ...           the same list again is not sent to the device again
 *     drop -> add, add, ... -> run
 *
 * A span that is hashed should have at most RAVEL__CASTS_SPAN bytes: one group of threads hashes it. By one thread at a
 * time. */
#ifndef RAVEL_REFIT_CASTS_H
#define RAVEL_REFIT_CASTS_H

#include "refit/model/view.h"

#include <ravel/device.h>

enum { RAVEL__CASTS_SPAN = 256 * 1024, RAVEL__CARRY_SECONDS = 120 /* the longest wait for the device */ };

typedef struct ravel__casts ravel__casts;

/* For tensors of the carrier, with a stream of its own, and lists in memory of the allocator. */
ravel_status ravel__casts_create(ravel__carrier *carrier, const ravel_allocator *allocator, ravel__casts **casts,
                                 ravel_error *err);
void ravel__casts_free(ravel__casts *casts); /* NULL: nothing */
ravel_stream *ravel__casts_stream(const ravel__casts *casts);

/* Whether kernels cast between a tensor's dtype and `wire`. */
int ravel__casts_can(int32_t dtype, int32_t wire);
/* Bytes at .. at+bytes of the buffer, which get a hash; `at` is a multiple of 16 and grows from call to call. Pieces
 * lie in spans. Without any, all of the buffer is moved and nothing is hashed. */
ravel_status ravel__casts_span(ravel__casts *casts, int64_t at, int64_t bytes, ravel_error *err);
/* Elements first .. first+count of `piece` (a box inside the view's) of a tensor, which are at byte `at` of the buffer
 * as `wire`. E_UNSUPPORTED: no kernel casts them, or they lie too scattered. */
ravel_status ravel__casts_add(ravel__casts *casts, const ravel__view *view, const void *tensor, const ravel__box *piece,
                              int64_t first, int64_t count, int32_t wire, int64_t at, ravel_error *err);
/* One run of adjacent elements, `bytes` long when packed; kind: ravel__cast_of. */
ravel_status ravel__casts_add_run(ravel__casts *casts, void *elements, int32_t kind, int64_t at, int64_t bytes,
                                  ravel_error *err);
/* Where the elements are if they are one run that is not converted; else NULL. */
void *ravel__casts_only(const ravel__casts *casts);
/* Whether the added pieces should run before more are added. */
int ravel__casts_full(const ravel__casts *casts);
/* Moves all pieces, after what is in the casts' stream and what the carrier follows, and waits. *hashes, unless NULL:
 * of the spans, until the next run. */
ravel_status ravel__casts_run(ravel__casts *casts, void *buffer, int64_t bytes, int unpack, const uint64_t **hashes,
                              ravel_error *err);
/* Forgets what was added. */
void ravel__casts_drop(ravel__casts *casts);

#endif
