/* Which machine this process runs on, and whether another process of it still runs. */
#ifndef RAVEL_COMM_MACHINE_H
#define RAVEL_COMM_MACHINE_H

#include <stdint.h>

/* The same number for two processes that can see each other's process ids: same boot, same pid namespace. 0: unknown,
 * equal to no other's. Containers on one host differ, and so do hosts with equal host names. */
uint64_t ravel__machine_number(void);

/* A process by its id and start time, which together are never reused. pid 0: none, or not on this machine. */
typedef struct ravel__process {
    uint64_t machine;
    int64_t pid, started;
} ravel__process;

ravel__process ravel__process_self(void);
/* Whether the process, one of this machine, has ended. */
int ravel__process_is_gone(const ravel__process *p);

#endif
