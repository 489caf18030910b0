/* An update in any layout against one rank: random meshes, whole runs of one update, and what is compared. */
#ifndef TESTS_TRAIN_LAYOUT_H
#define TESTS_TRAIN_LAYOUT_H

#include "tests/unit/train_job.h"

typedef struct layout_outcome {
    double loss, norm, shared; /* shared: tokens of all updates */
    double load;               /* router/load_loss of the last update; 0: none */
    float *moment;             /* [count] */
    int64_t count;
} layout_outcome;

uint64_t layout_draw(uint64_t *state, uint64_t below);
/* Samples of 3 to 40 tokens, 12 in the update, for a model of four layers. */
void layout_small_job(train_config *c);
/* One update, its loss and the first moment, which is the caller's to free. */
bool layout_run_once(train_config *c, train_kind kind, int32_t ranks, layout_outcome *out);
/* An adapter in place of the model, whose A and B are not 0: what two updates on one rank left. path[128] is its folder. */
bool layout_adapt(train_config *c, train_kind kind, uint64_t *seed, char folder[64], char path[128]);
double layout_distance(const layout_outcome *one, const layout_outcome *many);
void layout_compare(const char *what, const layout_outcome *one, const layout_outcome *many, double most);
/* A mesh of 2 to `most` ranks that the model allows. */
int32_t layout_random_mesh(uint64_t *seed, const ravel_shape *shape, int32_t most, ravel_mesh_options *m);

#endif
