/* A loop over numbered tasks on several threads. */
#ifndef RAVEL_REFIT_WORKERS_H
#define RAVEL_REFIT_WORKERS_H

#include <stdint.h>

/* Calls task(user, i) for every i below `count`, each once, on at most `threads` threads, the caller's among them. Where
 * no thread can be made, the caller does everything. */
void ravel__workers_run(int32_t threads, int64_t count, void (*task)(void *user, int64_t index), void *user);
/* Threads to use where an option says 0: the cores that this process may run on, at most `most`. */
int32_t ravel__workers_default(int32_t most);

#endif
