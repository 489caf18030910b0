/* Kernels of a micro-batch as recorded graphs, kept by what they depend on. Internal to train/.
 *
 * Nouns
 *   run    kernels that are called one after the other without the host waiting in between: the layers forward, the head,
 *          the layers backward.
 *   key    all that a run's kernels depend on beside the contents of device memory: sizes, addresses, constants, and how
 *          the kernel set cuts attention. Two runs with one key call the same kernels with the same arguments.
 *
 *     first time      called: this chooses algorithms and builds plans, for which the host may wait
 *     second time     recorded, and the graph is launched
 *     later           the graph is launched
 *
 * A graph that is launched gives the bits of the calls. At most `most` keys are remembered; a new one takes the
 * place of the one that was used longest ago. A graph is recorded again when the device's own memory has moved
 * (graph_valid). */
#ifndef TRAIN_GRAPHS_H
#define TRAIN_GRAPHS_H

#include "train/kernels/kernels.h"

enum { TRAIN__GRAPH_PLACES = 96, TRAIN__KEY_WORDS = 48 };

/* Starts as {0}. */
typedef struct train__graph_key {
    int64_t words[TRAIN__KEY_WORDS];
    int64_t count;
} train__graph_key;

void train__key_add(train__graph_key *key, int64_t word);
void train__key_add_pointer(train__graph_key *key, const void *pointer);
/* `bytes` is a multiple of 8; the struct has no padding. */
void train__key_add_struct(train__graph_key *key, const void *data, size_t bytes);

typedef struct train__graph_place {
    train__graph_key key;
    train_graph *graph; /* NULL: none yet */
    int64_t used;       /* when; 0: never */
} train__graph_place;

/* Starts as {0} with the first four set. The kernel set has graphs (capture_begin is not NULL). */
typedef struct train__graphs {
    const train_kernels *kernels;
    train_device *device;
    train__graph_place *places; /* [most] the owner's */
    int64_t most;               /* 0: TRAIN__GRAPH_PLACES */
    int64_t count, clock;
    int64_t called, recorded, launched, dropped; /* runs without a graph; graphs made; launches; graphs freed */
} train__graphs;

/* Calls `kernels`, or launches what they were when they were recorded. A launch is of `phase` (train_phase) as a whole;
 * else `kernels` says it; -1: of none. A graph that cannot be recorded is a failure of the device, which the next sync
 * reports. */
void train__graphs_run(train__graphs *graphs, const train__graph_key *key, int32_t phase, void (*kernels)(void *user),
                       void *user);
/* Whether `wanted` (train_graphs) can be had. `apart`: no other rank has a part in the kernels; what ranks exchange is
 * not recorded. */
ravel_status train__graphs_check(int32_t wanted, const train_kernels *kernels, int apart, ravel_error *err);
/* Frees all graphs and forgets the keys. */
void train__graphs_drop(train__graphs *graphs);

#endif
