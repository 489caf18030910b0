/* Decode steps as graphs.
 *
 * The kernels of two steps differ only in the number of rows and in the longest cache. Both are rounded up to a bucket;
 * padding rows belong to a slot that no sequence has. The first step of a bucket runs without a graph, which also
 * chooses the algorithms of its products; the second one is recorded, and later ones are one graph launch.
 *
 * Everything that a recorded kernel reads is at a fixed address: the arrays of a pass, and the two blocks of `rows`, which
 * are filled in turn. A graph belongs to a set of weights, of which a refit has two. It is dropped when the device's own
 * memory moves, or when there are too many. */
#include "train/model/generator_internal.h"

#include "train/kernels/assert.h"

enum { FEW_ROWS = 8, STEPS_PER_OCTAVE = 4, LONGEST_STEP = 512 };

/* Communication is not recorded, so tensor-parallel steps have no graphs. */
static int records(const train_generator *g) {
    return g->tp.ranks == 1 && g->options.graphs == TRAIN_GRAPHS_AUTO && g->net.kernels->capture_begin != NULL;
}

static int pads(const train_generator *g) {
    return g->options.graphs == TRAIN_GRAPHS_PADDED || records(g);
}

int64_t train__generator_bucket(const train_generator *g, int64_t rows) {
    int64_t step = FEW_ROWS;
    if (!pads(g) || rows == 0) return rows;
    while (step * 2 * STEPS_PER_OCTAVE <= rows) step *= 2;
    TRAIN_ASSERT(rows <= g->options.slots);
    return train__min((rows + step - 1) / step * step, g->options.slots);
}

int32_t train__generator_longest(const train_generator *g, int32_t longest) {
    if (!pads(g)) return longest;
    TRAIN_ASSERT(longest >= 0 && longest <= g->options.slot_tokens);
    return (int32_t)train__min((longest + LONGEST_STEP - 1) / LONGEST_STEP * LONGEST_STEP, g->options.slot_tokens);
}

static train__recorded *find(train_generator *g, int64_t rows, int32_t longest) {
    for (int32_t i = 0; i < g->recorded_count; i++) {
        train__recorded *r = &g->recorded[i];
        if (r->rows == rows && r->longest == longest && r->turn == g->turn && r->weights == g->net.weights) return r;
    }
    if (g->recorded_count == TRAIN__GRAPHS) train__generator_drop_graphs(g);
    train__recorded *r = &g->recorded[g->recorded_count++];
    TRAIN_ASSERT(g->recorded_count <= TRAIN__GRAPHS);
    *r = (train__recorded){.weights = g->net.weights, .rows = rows, .longest = longest, .turn = g->turn};
    return r;
}

void train__generator_drop_graphs(train_generator *g) {
    for (int32_t i = 0; i < g->recorded_count; i++)
        if (g->recorded[i].graph) g->net.kernels->graph_free(g->net.device, g->recorded[i].graph);
    g->recorded_count = 0;
}

/* NULL: recording failed; the next sync reports why. */
static train_graph *record(train_generator *g, void (*kernels)(void *user), void *user) {
    const train_kernels *k = g->net.kernels;
    train_graph *graph = NULL;
    if (k->capture_begin(g->net.device, NULL)) return NULL;
    kernels(user);
    return k->capture_end(g->net.device, &graph, NULL) ? NULL : graph;
}

void train__generator_replay(train_generator *g, int64_t rows, int32_t longest, void (*kernels)(void *user),
                             void *user) {
    const train_kernels *k = g->net.kernels;
    train__recorded *r = records(g) ? find(g, rows, longest) : NULL;
    TRAIN_ASSERT(rows > 0 && rows <= g->options.slots);
    if (r && r->graph && !k->graph_valid(g->net.device, r->graph)) {
        k->graph_free(g->net.device, r->graph);
        r->graph = NULL;
    }
    if (r && !r->graph && r->runs++ > 0) r->graph = record(g, kernels, user);
    if (r && r->graph)
        k->graph_run(g->net.device, r->graph);
    else
        kernels(user);
}
