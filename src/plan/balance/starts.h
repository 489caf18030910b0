/* Starts of the default method: all samples of an update in micro-steps * dp bins, under the cap. */
#ifndef RAVEL_PLAN_BALANCE_STARTS_H
#define RAVEL_PLAN_BALANCE_STARTS_H

#include "plan/internal.h"

typedef enum ravel__start {
    RAVEL__START_COSTS,  /* spread by cost over all bins */
    RAVEL__START_SLOTS,  /* spread by slots over all bins */
    RAVEL__START_PARTS,  /* Karmarkar-Karp over all bins */
    RAVEL__START_MIXED,  /* the longer samples spread by cost, the shorter ones best-fit into what room that leaves */
    RAVEL__START_SHRUNK, /* best-fit into bins a little below the cap, so that each has room for trades */
    RAVEL__START_PACKED  /* the packed bins; what is in the last micro-step is spread over its ranks */
} ravel__start;

typedef struct ravel__basis {
    const ravel__job *job;
    const int32_t *packed; /* the bin of every sample in the packing with the fewest bins */
    int32_t packed_bins;
    int32_t bins;             /* micro-steps * dp */
    int32_t passes, partners; /* limits on repairing overfull bins */
} ravel__basis;

/* Makes the start, as lists of basis->bins bins in the job's arena, or reports that it is impossible. PACKED is always
 * possible. */
ravel_status ravel__start_make(const ravel__basis *basis, ravel__start start, ravel__lists *lists, int *made);

#endif
