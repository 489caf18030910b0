/* Agreement at the boundary of two phases: did anyone fail, and has everyone planned the same? */
#ifndef RAVEL_FEED_AGREE_H
#define RAVEL_FEED_AGREE_H

#include <ravel/exchange.h>

/* ravel_agree and ravel_compare in one all-reduce. `digest` NULL: this rank has nothing to compare. The sentence for a
 * mismatch begins "rank 3 has", "ranks 3, 5 have", and goes on with `what` ("another plan"). */
ravel_status ravel__agree(ravel_comm *comm, ravel_status mine, const uint64_t *digest, const char *what,
                          ravel_allocator const *allocator, ravel_error *err);

#endif
