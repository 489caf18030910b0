#include "train/model/net/staging.h"

#include "base/assert.h"

#include <string.h>

/* One busy bit per block, and room for all of them in the device's slots. */
static int staging_ok(const train__staging *s) {
    return s->count > 0 && s->count <= TRAIN__MOST_STAGES && s->turn >= 0 && s->turn < s->count && s->first_slot >= 0 &&
           s->first_slot + s->count <= TRAIN_STAGES && !(s->busy >> s->count);
}

void train__staging_begin(train__staging *s) {
    RAVEL_ASSERT(staging_ok(s));
    do s->turn = (s->turn + 1) % s->count;
    while (s->busy >> s->turn & 1 && s->busy != (1u << s->count) - 1);
    RAVEL_ASSERT(!(s->busy >> s->turn & 1));
    s->busy |= 1u << s->turn;
    s->kernels->stage_wait(s->device, s->first_slot + s->turn);
    s->cut = (train__cut){s->host[s->turn], 0};
    RAVEL_ASSERT(s->cut.base && s->block[s->turn]);
}

void *train__staging_take(train__staging *s, int64_t count, size_t each, const void *there) {
    char *host = train__cut_take(&s->cut, count, each);
    RAVEL_ASSERT(s->busy >> s->turn & 1);
    char *device = (char *)s->block[s->turn] + (host - s->cut.base);
    RAVEL_ASSERT(s->cut.used <= s->bytes);
    union { /* the address of the caller's pointer, whatever it points to */
        const void *given;
        void *to;
    } place = {there};
    memcpy(place.to, &device, sizeof device);
    return host;
}

void train__staging_send(train__staging *s) {
    RAVEL_ASSERT(s->busy >> s->turn & 1 && s->cut.used <= s->bytes);
    s->kernels->stage(s->device, s->first_slot + s->turn, s->block[s->turn], s->host[s->turn], s->cut.used);
}

void train__staging_release(train__staging *s, int32_t block) {
    RAVEL_ASSERT(block >= 0 && block < s->count);
    if (s->busy >> block & 1) s->kernels->stage_release(s->device, s->first_slot + block);
    s->busy &= ~(1u << block);
}

void train__staging_release_all(train__staging *s) {
    RAVEL_ASSERT(staging_ok(s));
    for (int32_t i = 0; i < s->count; i++) train__staging_release(s, i);
}
