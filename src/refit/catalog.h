/* The catalog: every tensor that any rank sends or wants, from all manifests. It exists only while a refit connects.
 *
 *     parties    ranks whose manifests of one side are the same bytes (replicas); each such manifest is read once
 *     tensor     name, dims, dtype on each side, and the box of each party that has it
 *
 * Tensors are in the order in which the senders list them, lowest rank first. Every rank reads the same manifests in
 * the same order, so every rank has the same catalog, and finds the same differences. */
#ifndef RAVEL_REFIT_CATALOG_H
#define RAVEL_REFIT_CATALOG_H

#include "refit/hello.h"
#include "refit/manifest.h"
#include "refit/names.h"

enum { RAVEL__OF_SOURCE, RAVEL__OF_SINK }; /* index of a side */

typedef struct ravel__share {
    struct ravel__share *next;
    int32_t party;
    int32_t reserved;
    int64_t coords[]; /* start[ndim], extent[ndim] */
} ravel__share;

typedef struct ravel__tensor {
    const char *name;
    int32_t ndim;
    int32_t dtype;                     /* that travels; set by ravel__catalog_check */
    int32_t side_dtype[2];             /* -1: the side does not have it */
    int32_t last_party[2];             /* that had it; -1: none */
    int32_t first_rank[2];             /* the lowest rank that has it, for sentences */
    ravel__share *shares[2], **end[2]; /* of each side, in the order of parties */
    int64_t dims[RAVEL_REFIT_DIMS];
    int32_t window;   /* see plan.h */
    int32_t reported; /* a difference was found: one is enough */
} ravel__tensor;

typedef struct ravel__party {
    int32_t side;  /* index */
    int32_t count; /* ranks */
    int32_t *ranks;
    int64_t bytes; /* of its pieces as they travel; set by ravel__catalog_check */
} ravel__party;

typedef struct ravel__catalog {
    ravel__arena arena;
    const ravel__hello *hellos; /* [ranks] */
    int32_t ranks;
    ravel__party *parties;
    int32_t party_count;
    int32_t *party_of[2]; /* [ranks]; -1: the rank has no such side */
    ravel__tensor *tensors;
    int64_t count, room;
    ravel__names names;
    int64_t total; /* bytes of all tensors that any rank has, each counted once; kept far from overflow */
} ravel__catalog;

/* Makes the parties from the hellos, which must stay. */
ravel_status ravel__catalog_init(ravel__catalog *catalog, const ravel__hello *hellos, int32_t ranks,
                                 const ravel_allocator *allocator, ravel_error *err);
void ravel__catalog_free(ravel__catalog *catalog);
/* Reads the manifest of one party; parties in order. Shapes and dtypes that contradict what is known are differences. */
ravel_status ravel__catalog_add(ravel__catalog *catalog, int32_t party, const void *bytes, size_t size,
                                ravel__differences *list, ravel_error *err);
/* After the last party: names that only one side has, dtypes across sides; sets the dtype that travels. */
void ravel__catalog_check(ravel__catalog *catalog, ravel__differences *list);
/* The most bytes that one receiver takes; after ravel__catalog_check. */
int64_t ravel__catalog_stream_bytes(const ravel__catalog *catalog);

/* The dtype in which a tensor travels from `source` to `sink` under a ravel_refit_cast; -1: it cannot. */
int32_t ravel__travel_dtype(int32_t source, int32_t sink, int32_t cast);
ravel__box ravel__share_box(const ravel__tensor *tensor, const ravel__share *share);
/* Whether both sides have it, so that it moves. */
static inline int ravel__tensor_moves(const ravel__tensor *t) {
    return t->side_dtype[RAVEL__OF_SOURCE] >= 0 && t->side_dtype[RAVEL__OF_SINK] >= 0;
}

#endif
