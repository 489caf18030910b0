/* Agreement at the boundary of two phases: did any rank fail, and do all ranks hold the same digest? The one protocol
 * that splits, meshes, the feed and refit use. The public forms are ravel_agree and ravel_compare (ravel/comm.h). */
#ifndef RAVEL_COMM_AGREE_H
#define RAVEL_COMM_AGREE_H

#include <ravel/comm.h>

/* ravel_agree and ravel_compare in one all-reduce of three words. `digest` NULL: this rank has nothing to compare. The
 * sentence for a mismatch begins "rank 3 has", "ranks 3, 5 have", and goes on with `what` ("another plan").
 * Of several failures the lowest rank's is reported; RAVEL_E_END ("I stopped because another rank did") is reported
 * only if no rank has another failure. If the communicator itself fails, that failure is returned (on a rank with
 * its own failure: that one), and ravel_comm_alive tells the two cases apart. */
ravel_status ravel__agree(ravel_comm *comm, ravel_status mine, const uint64_t *digest, const char *what,
                          const ravel_allocator *allocator, ravel_error *err);

/* As ravel_agree. A failure of the communicator itself is in *loss (loss->status 0: none), for any status of this rank.
 * */
ravel_status ravel__agree_or_lost(ravel_comm *comm, ravel_status mine, ravel_error *loss, ravel_error *err);

#endif
