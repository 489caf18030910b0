/* Blocks, each on the host and on the device, filled and staged in turn: while the device works on what one holds, the
 * host fills another. Internal to train/.
 *
 *     train__staging_begin(&s);                              waits until the host may write the next block
 *     int32_t *ids = train__staging_take(&s, n, 4, &there);   where the host writes, and where kernels will read
 *     train__staging_send(&s);                               begins the copy
 *     ... kernels ...
 *     train__staging_release(&s, block);                     no later kernel reads it */
#ifndef TRAIN_STAGING_H
#define TRAIN_STAGING_H

#include "train/kernels/arena.h"
#include "train/kernels/kernels.h"

enum { TRAIN__STAGES = 2, TRAIN__MOST_STAGES = 24 };

/* First of the device's staging slots: a model and a generator may share a device. */
enum { TRAIN__STAGE_MODEL = 0, TRAIN__STAGE_GENERATOR = TRAIN__MOST_STAGES };
_Static_assert(TRAIN__STAGE_GENERATOR + 2 * TRAIN__STAGES <= TRAIN_STAGES, "slots for both");

typedef struct train__staging {
    const train_kernels *kernels;
    train_device *device;
    int32_t first_slot;
    int32_t count;                                              /* of blocks */
    int32_t turn;                                               /* the block filled last */
    uint32_t busy;                                              /* a bit per block that later kernels may still read */
    size_t bytes;                                               /* of each block */
    void *host[TRAIN__MOST_STAGES], *block[TRAIN__MOST_STAGES]; /* allocated by the owner: alloc_host and alloc */
    train__cut cut;
} train__staging;

/* Turns to a block that is not busy: there must be one. */
void train__staging_begin(train__staging *s);
/* Room for count elements of `each` bytes; `there` is the address of a pointer, which is set to the device's
 * address. */
void *train__staging_take(train__staging *s, int64_t count, size_t each, const void *there);
void train__staging_send(train__staging *s);
void train__staging_release(train__staging *s, int32_t block);
/* All of them. */
void train__staging_release_all(train__staging *s);

#endif
