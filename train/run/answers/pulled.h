/* train/run/answers/pulled.h: weights that a generator pulls from a publication (ravel/publish.h), and commits between
 * its own steps.
 *
 *     train_pulled_open(&options, &to, &pulled, &err);         connects, and waits for the first version
 *     while (generating) {
 *         train_pulled_step(pulled, idle, tokens, &err);       stages what is newer, commits what is complete
 *         train_generator_step(...);
 *     }
 *     train_pulled_free(pulled);
 *
 * A lost trainer or a failed stage is logged and retried; the generator continues with its current version. */
#ifndef TRAIN_PULLED_H
#define TRAIN_PULLED_H

#include <ravel/publish.h>

#include "train/run/answers/weight_sets.h"

/* When a complete version is committed. step: between any two steps; answers that are running go on with it, over what
 * the cache holds from the version before. idle: only while no answer is running, so each answer is of one version.
 * answer: for answers that begin from then on, while running ones finish with the version that they began with; only
 * for adapters, of which several versions are held. auto: answer for adapters, step for models. */
typedef enum train_commit { TRAIN_COMMIT_AUTO, TRAIN_COMMIT_STEP, TRAIN_COMMIT_IDLE, TRAIN_COMMIT_ANSWER } train_commit;
#define TRAIN_COMMIT_CHOICES "auto|step|idle|answer"

typedef struct train_pulled_options {
    const char *address;
    int32_t commit;             /* train_commit */
    int32_t versions;           /* of an adapter, that are held at once; 0: 2 */
    int32_t tls;                /* 1: connections are encrypted */
    double timeout;             /* seconds for the first version; then without progress, after which a stage fails */
    const volatile int *stop;   /* not 0: open returns; may be NULL */
    const ravel_logger *logger; /* NULL: silent */
} train_pulled_options;

typedef struct train_pulled train_pulled;

/* Where versions go. */
typedef struct train_pulled_to {
    const ravel_refit_sink *sink;
    /* A version is in the puller's tensors: the generator's next step is to use it. */
    ravel_status (*install)(void *user, ravel_puller *puller, const ravel_pull_report *report, ravel_error *err);
    int (*room)(void *user); /* whether a version can be installed beside those that running answers use; NULL: never */
    void *user;
} train_pulled_to;

/* The two sets of a model's weights. */
train_pulled_to train_pulled_sets(train_weight_sets *sets);
/* ravel_pull_options of these. */
ravel_pull_options train_pulled_connection(const train_pulled_options *options);

/* What `to` names must outlive it. E_MISMATCH if the trainers' model is another one, E_TIMEOUT without a first
 * version. */
ravel_status train_pulled_open(const train_pulled_options *options, const train_pulled_to *to, train_pulled **pulled,
                               ravel_error *err);
void train_pulled_free(train_pulled *pulled);

/* idle: no answer is running. tokens: drawn so far in all; the report to the trainers has tokens per second. */
ravel_status train_pulled_step(train_pulled *pulled, int idle, int64_t tokens, ravel_error *err);

/* Figures since it was opened. */
typedef struct train_pulled_stats {
    int64_t version; /* live */
    int64_t commits;
    int64_t bytes;         /* that arrived, for all commits */
    double prepare_most;   /* seconds of the longest preparation, while generating went on */
    double pause_sum;      /* seconds of all commits, in which nothing was generated */
    double pause_most;     /* of the longest */
    double tokens_per_sec; /* as last reported */
} train_pulled_stats;
train_pulled_stats train_pulled_counts(const train_pulled *pulled);

#endif
