/* Random models, cut at random over senders and receivers, with contents that can be checked anywhere. */
#ifndef TESTS_REFIT_CASE_H
#define TESTS_REFIT_CASE_H

#include "tests/unit/check.h"

#include "base/rng.h"

#include <ravel/refit.h>

enum { CASE_TENSORS = 24, CASE_RANKS = 9 };

typedef struct case_tensor {
    char name[48];
    int32_t ndim;
    int64_t dims[3];
    int32_t dtype[2]; /* of the senders, of the receivers */
    int32_t dim[2];   /* cut along this one on each side; -1: whole everywhere */
} case_tensor;

typedef struct refit_case {
    int32_t senders, receivers, both; /* ranks: senders first; with `both`, they are the same ranks */
    int32_t tp[2];                    /* of each side; the rest are replicas */
    int32_t count;
    case_tensor tensors[CASE_TENSORS];
    ravel_refit_options options;
} refit_case;

/* One rank's tensors of one side, with memory. */
typedef struct case_side {
    ravel_refit_tensor tensors[CASE_TENSORS];
    int64_t count;
    int64_t elements[CASE_TENSORS]; /* of the pieces here */
} case_side;

int32_t case_ranks(const refit_case *c);
/* The rank's number among the senders (side 0) or receivers (side 1), -1: it is none. */
int32_t case_side_rank(const refit_case *c, int side, int32_t rank);

/* Anything: counts, cuts, dtypes, options. */
void case_random(refit_case *c, ravel__rng *rng);
/* What NCCL has no kernel for is left out: casts from and to f64 and between 16-bit floats, delta, undo. */
void case_for_nccl(refit_case *c);
/* The tensors of a rank; spare: a second set too. */
bool case_side_make(const refit_case *c, int side, int32_t rank, int spare, case_side *out);
void case_side_free(case_side *side);

/* Fills the pieces with the contents of a version. */
void case_fill(const refit_case *c, case_side *side, int64_t version);
/* How many elements of a piece at `data` are not what the version has. */
int64_t case_wrong(const case_side *side, int64_t tensor, const void *data, int64_t version);
/* Wrong elements of all tensors of a session's live version. */
int64_t case_wrong_live(const refit_case *c, const case_side *side, const ravel_refit *refit, int64_t version);

/* ---- small models, written out ---- */

enum { FLOATS = 5000 };

/* A tensor of `count` floats, and contents that say which they are. */
ravel_refit_tensor float_tensor(const char *name, float *data, int64_t count);
void fill_floats(float *p, int64_t count, float value);
bool floats_are(const float *p, int64_t count, float value);

/* What every rank does, over threads. */
typedef struct few_ranks {
    ravel_refit_options options;
    ravel_status (*body)(ravel_comm *comm, struct few_ranks *f, ravel_error *err);
    void *extra;
} few_ranks;

ravel_status run_few(few_ranks *f, int32_t ranks, ravel_error *err);

#endif
