/* Decode steps as graphs.
 *
 * The kernels of two steps differ only in the number of rows and in the longest cache. Both are rounded up to a bucket;
 * padding rows belong to a slot that no sequence has. The second step of a bucket is recorded (graphs.h).
 *
 * Everything that a recorded kernel reads is at a fixed address: the arrays of a pass, and the two blocks of `rows`,
 * which are filled in turn. A graph belongs to a set of weights, of which a refit has two. */
#include "train/model/generate/generator_internal.h"

#include "base/assert.h"

enum { FEW_ROWS = 8, STEPS_PER_OCTAVE = 4, LONGEST_STEP = 512 };

/* Communication is not recorded, so tensor-parallel steps have no graphs; nor is the host's sorting of rows by
 * expert. */
static int records(const train_generator *g) {
    return g->tp.ranks == 1 && !g->net.shape.experts && g->options.graphs != TRAIN_GRAPHS_OFF &&
           g->net.kernels->capture_begin != NULL;
}

static int pads(const train_generator *g) {
    return g->options.padded || records(g);
}

int64_t train__generator_bucket(const train_generator *g, int64_t rows) {
    int64_t step = FEW_ROWS;
    if (!pads(g) || rows == 0) return rows;
    while (step * 2 * STEPS_PER_OCTAVE <= rows) step *= 2;
    RAVEL_ASSERT(rows <= g->options.slots);
    return train__min((rows + step - 1) / step * step, g->options.slots);
}

int32_t train__generator_longest(const train_generator *g, int32_t longest) {
    if (!pads(g)) return longest;
    RAVEL_ASSERT(longest >= 0 && longest <= g->options.slot_tokens);
    return (int32_t)train__min((longest + LONGEST_STEP - 1) / LONGEST_STEP * LONGEST_STEP, g->options.slot_tokens);
}

void train__generator_replay(train_generator *g, int64_t rows, int32_t longest, void (*kernels)(void *user),
                             void *user) {
    train__graph_key key = {.count = 0};
    RAVEL_ASSERT(rows > 0 && rows <= g->options.slots);
    if (!records(g) || g->net.adapter.run_count > 1) { /* which rows go through which adapter changes with every step */
        kernels(user);
        return;
    }
    train__key_add_pointer(&key, g->net.weights);
    train__key_add_pointer(&key, g->net.places);
    train__key_add_pointer(&key, g->net.adapter.run_count ? g->runs[0].weights : NULL);
    train__key_add(&key, rows);
    train__key_add(&key, longest);
    train__key_add(&key, g->turn); /* the two blocks that it reads and writes */
    train__graphs_run(&g->graphs, &key, -1, kernels, user);
}
