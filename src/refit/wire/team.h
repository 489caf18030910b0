/* A team: threads that stay while a version streams and share loops of numbered tasks with the thread that owns them.
 *
 *     start -> run, run, ... -> stop
 *
 * A run takes some microseconds beyond its tasks if the threads are still awake, so frames of a few MiB can be shared. A
 * loop that takes milliseconds or more can have a team of its own (ravel__team_once). */
#ifndef RAVEL_REFIT_TEAM_H
#define RAVEL_REFIT_TEAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum { RAVEL__TEAM_MOST = 64 }; /* threads, the owner's among them */

typedef struct ravel__team {
    int32_t others; /* threads beside the owner's */
    pthread_t threads[RAVEL__TEAM_MOST];
    void (*task)(void *user, int64_t index);
    void *user;
    _Atomic uint64_t ticket;   /* number of the run << 32 | unclaimed tasks */
    _Atomic uint32_t done;     /* tasks of this run that are over */
    _Atomic uint32_t bell;     /* rung when there are tasks, and at the end */
    _Atomic uint32_t sleepers; /* threads that wait for the bell */
    _Atomic uint32_t ending;
} ravel__team;

/* At most `threads` threads, the caller's among them; fewer where they cannot be made. */
void ravel__team_start(ravel__team *team, int32_t threads);
/* Calls task(user, i) once for every i below `count` (at most 2^31), and returns when all are over. By the owner. */
void ravel__team_run(ravel__team *team, int64_t count, void (*task)(void *user, int64_t index), void *user);
/* Ends the threads; the team can be started again. */
void ravel__team_stop(ravel__team *team);

/* start, run and stop of a team of at most `threads` threads, the caller's among them. */
void ravel__team_once(int32_t threads, int64_t count, void (*task)(void *user, int64_t index), void *user);
/* Cores that this process may use, 1 to `most`. */
int32_t ravel__team_default(int32_t most);

#endif
