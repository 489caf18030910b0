/* The inside of a puller.
 *
 *     pull.c         create, poll, stage, commit, free: the caller's thread; the only one that uses the communicator
 *     pull_watch.c   a thread on the generator's rank 0 that receives announcements of versions and sends reports
 *     pull_work.c    the threads of one stage: each has a link, takes tasks, verifies and loads
 *     pull_map.c     tasks of trainers on the same device: read where they lie
 *
 *     stage() -> [coordinator: directory, where the trainers are new; tasks] -> [worker] [worker] ... -> done or failed
 */
#ifndef RAVEL_REFIT_PULL_H
#define RAVEL_REFIT_PULL_H

#include "refit/model/plan.h"
#include "refit/wire/pull_wire.h"
#include "refit/model/caller.h"
#include "refit/wire/block.h"

#include <ravel/publish.h>

/* ---- announcements of versions ---- */

typedef struct ravel__watch {
    const char *address, *token;
    int32_t tls;
    const ravel_allocator *allocator;
    pthread_t thread;
    int32_t running;
    _Atomic int32_t stop;
    pthread_mutex_t lock;
    ravel__versions versions; /* the last announced versions; count 0: none yet */
    int32_t connected;
    ravel__pull_report report;
    int32_t report_due;
} ravel__watch;

ravel_status ravel__watch_start(ravel__watch *watch, ravel_error *err);
void ravel__watch_stop(ravel__watch *watch);
ravel__versions ravel__watch_versions(ravel__watch *watch);
void ravel__watch_report(ravel__watch *watch, const ravel__pull_report *report);
/* The last report again, with another speed. */
void ravel__watch_speed(ravel__watch *watch, double tokens_per_second);

/* ---- a stage ---- */

/* Wants of one sender that one worker asks for at once. */
typedef struct ravel__pull_task {
    int32_t sender;
    int64_t first, count; /* of plan.wants */
} ravel__pull_task;

typedef struct ravel__mapping ravel__mapping; /* pull_map.c */

typedef enum ravel__pull_progress {
    RAVEL__PULL_NONE,    /* nothing is staged */
    RAVEL__PULL_RUNNING, /* threads are pulling */
    RAVEL__PULL_DONE,    /* complete and verified here */
    RAVEL__PULL_BROKEN   /* failed here */
} ravel__pull_progress;

struct ravel_puller {
    ravel_pull_options options;
    ravel_refit_sink sink_copy;
    ravel__counted memory, stage_memory;
    ravel__arena arena; /* names of the holding */
    ravel__holding holding;
    ravel__stage stage;
    ravel_comm *comm;
    int32_t rank, ranks;
    char *address, *token; /* copies: the caller may clear a secret after create; token NULL: none */
    uint64_t generator;    /* the same on every rank */
    int32_t threads;
    /* of the trainers that it knows */
    uint64_t session; /* 0: no plan */
    ravel__directory directory;
    ravel__refit_plan plan;
    ravel__watch watch; /* rank 0 */
    /* of the stage at hand */
    ravel_refit_identity next, base;
    uint64_t next_session;
    pthread_t coordinator;
    int32_t coordinating; /* the thread exists */
    _Atomic int32_t progress, stop;
    ravel__pull_task *tasks;
    int64_t task_count, task_room;
    _Atomic int64_t next_task;
    pthread_mutex_t lock; /* of status, why and mappings */
    ravel_status status;
    ravel_error why;
    ravel__tally tally;
    int32_t distrust;         /* changes of the live version came out wrong: the next stage asks for everything */
    ravel__mapping *mappings; /* of trainers on the same device */
    _Atomic int32_t mapped;   /* trainer ranks that were read that way */
    int64_t began_ns, done_ns;
    int32_t senders;
    int64_t commits;
    double tokens_per_second;
};

/* pull_work.c: the directory of the trainers at puller->address, which the caller frees. Waits at most
 * options.timeout. */
ravel_status ravel__pull_directory(ravel_puller *puller, ravel__directory *directory, ravel_error *err);
/* Fetches the directory of the trainers at puller->address and plans. Waits at most options.timeout. */
ravel_status ravel__pull_meet(ravel_puller *puller, ravel_error *err);
/* Starts the threads of a stage, after ravel__stage_begin. */
ravel_status ravel__pull_start(ravel_puller *puller, ravel_error *err);
/* pull_map.c. Whether the sender may be on the same device. */
int ravel__pull_may_map(const ravel_puller *puller, int32_t sender);
/* Stages a task from the memory of its sender. *done 0: it does not share it, pull over the link. */
ravel_status ravel__pull_map(ravel_puller *puller, const ravel__pull_task *task, const char *address, int *done,
                             ravel_error *err);
void ravel__pull_unmap(ravel_puller *puller);
/* Stops the threads at any point, and waits for them. */
void ravel__pull_stop(ravel_puller *puller);

#endif
