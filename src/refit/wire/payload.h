/* Payloads of frames in device memory, for wires that send from there (NCCL): they never pass through host memory.
 *
 *     packer    add, add, ... (one per entry)  ->  run: one kernel gathers, casts and hashes all of them
 *     loader    add, add, ...                  ->  run: one kernel hashes what arrived and scatters it
 *
 * An addition has at most RAVEL__PAYLOAD_BLOCK bytes: one group of threads hashes it. By one thread at a time. */
#ifndef RAVEL_REFIT_PAYLOAD_H
#define RAVEL_REFIT_PAYLOAD_H

#include "refit/model/carrier.h"

enum { RAVEL__PAYLOAD_BLOCK = 256 * 1024 };

typedef struct ravel__payload ravel__payload;

/* Whether a kernel makes `wire` of a tensor's dtype (or, with `unpack`, the tensor's dtype of wire). */
int ravel__payload_can(int32_t dtype, int32_t wire, int unpack);

/* For tensors of the carrier, with lists in memory of the allocator. */
ravel_status ravel__payload_create(ravel__carrier *carrier, const ravel_allocator *allocator, ravel__payload **payload,
                                   ravel_error *err);
void ravel__payload_free(ravel__payload *payload); /* NULL: nothing */

/* Elements first .. first+count of `piece` (a box inside the view's) of a tensor, which are at byte `at` of the buffer as
 * `wire`; `at` is a multiple of 16 and grows from call to call. */
ravel_status ravel__payload_add(ravel__payload *payload, const ravel__view *view, const void *tensor,
                                const ravel__box *piece, int64_t first, int64_t count, int32_t wire, int64_t at,
                                ravel_error *err);
/* Whether the added entries should run before more are added. */
int ravel__payload_full(const ravel__payload *payload);
/* Moves all added entries, after the work that the carrier follows, and waits. *hashes: [*count] XXH3 of the packed
bytes, in
 * the order of the additions, until the next add. Nothing is added afterwards. */
ravel_status ravel__payload_run(ravel__payload *payload, void *buffer, int64_t bytes, int unpack,
                                const uint64_t **hashes, int64_t *count, ravel_error *err);
/* Forgets what was added. */
void ravel__payload_drop(ravel__payload *payload);

#endif
