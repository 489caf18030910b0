/* NCCL without GPUs: ranks are threads, arrays are host memory. It does what NCCL would do with a sequence of calls, and
 * notes what NCCL would not forgive: a message outside a group, a call while the last one is still pending, another stream
 * than before, ranks whose collectives differ, a send and a receive of different sizes. */
#ifndef TESTS_MOCK_NCCL_H
#define TESTS_MOCK_NCCL_H

#include "comm/nccl.h"

typedef struct mock_nccl_state {
    int64_t violations;
    int64_t groups, messages, collectives; /* that were begun */
    int64_t gathers, scatters;             /* of the collectives: all-gathers and reduce-scatters */
    int64_t live;                          /* communicators that were not freed */
    int32_t stuck;                         /* nothing ever completes */
    int32_t broken;                        /* this code is what `state` says; 0: none */
} mock_nccl_state;

extern mock_nccl_state mock_nccl;
extern const ravel__nccl mock_nccl_table;
void mock_nccl_reset(void);
/* From now on, for all ranks; from any thread. */
void mock_nccl_break(int32_t stuck, int32_t broken);

#endif
