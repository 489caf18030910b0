/* A team: threads that stay, and share loops of numbered tasks with the thread that owns them.
 *
 *     start -> run, run, ... -> stop
 *
 * A run takes some microseconds beyond its tasks if the threads are still awake, which they are for about 50
 * microseconds after the run before, so loops of a fraction of a millisecond can be shared. With more threads than
 * processors they sleep at once: the thread that is waited for may need the processor. A loop that takes milliseconds
 * or more can have a team of its own (ravel__team_once). */
#ifndef RAVEL_BASE_TEAM_H
#define RAVEL_BASE_TEAM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

enum { RAVEL__TEAM_MOST = 1024, RAVEL__TEAM_LINE = 64 }; /* threads, the owner's among them; bytes of a cache line */

/* Words that several threads write are a line apart. */
typedef struct ravel__team {
    int32_t others; /* threads beside the owner's */
    int32_t looks;  /* before a waiting thread sleeps */
    void (*task)(void *user, int64_t index, int32_t thread);
    void *user;
    int64_t count;
    pthread_t threads[RAVEL__TEAM_MOST];
    _Atomic uint32_t seated;   /* threads that have a number */
    _Atomic uint32_t bell;     /* rung when there are tasks, and at the end */
    _Atomic uint32_t sleepers; /* threads that wait for the bell */
    _Atomic uint32_t ending;
    char apart[RAVEL__TEAM_LINE];
    _Atomic uint64_t ticket; /* number of the run << 32 | unclaimed tasks */
    char far_apart[RAVEL__TEAM_LINE];
    _Atomic uint32_t done;  /* tasks of this run that are over */
    _Atomic uint32_t waits; /* 1: the owner may sleep until all are */
} ravel__team;

/* At most `threads` threads, the caller's among them; fewer where they cannot be made (team->others says). */
void ravel__team_start(ravel__team *team, int32_t threads);
/* Calls task(user, i, thread) once for every i below `count` (at most 2^31), and returns when all are over. By the
 * owner, which is thread 0; the others are 1 .. others. Low numbers are begun first. */
void ravel__team_run(ravel__team *team, int64_t count, void (*task)(void *user, int64_t index, int32_t thread),
                     void *user);
/* Ends the threads; the team can be started again. */
void ravel__team_stop(ravel__team *team);

/* start, run and stop of a team of at most `threads` threads, the caller's among them. */
void ravel__team_once(int32_t threads, int64_t count, void (*task)(void *user, int64_t index, int32_t thread),
                      void *user);
/* Processors that this process may use, 1 to `most`. */
int32_t ravel__processors(int32_t most);

#endif
