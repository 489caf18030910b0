#include "train/model/net/graphs.h"

#include "base/assert.h"

#include <string.h>

void train__key_add(train__graph_key *key, int64_t word) {
    RAVEL_ASSERT(key->count < TRAIN__KEY_WORDS);
    key->words[key->count++] = word;
}

void train__key_add_pointer(train__graph_key *key, const void *pointer) {
    train__key_add(key, (int64_t)(intptr_t)pointer);
}

void train__key_add_struct(train__graph_key *key, const void *data, size_t bytes) {
    RAVEL_ASSERT(bytes % sizeof(int64_t) == 0);
    for (size_t at = 0; at < bytes; at += sizeof(int64_t)) {
        int64_t word;
        memcpy(&word, (const char *)data + at, sizeof word);
        train__key_add(key, word);
    }
}

static int same_key(const train__graph_key *a, const train__graph_key *b) {
    return a->count == b->count && memcmp(a->words, b->words, (size_t)a->count * sizeof *a->words) == 0;
}

static void drop(train__graphs *g, train__graph_place *p) {
    if (!p->graph) return;
    g->kernels->graph_free(g->device, p->graph);
    p->graph = NULL;
    g->dropped++;
}

/* A new place, or the one used longest ago, emptied. */
static train__graph_place *free_place(train__graphs *g) {
    if (g->count < (g->most ? g->most : TRAIN__GRAPH_PLACES)) return &g->places[g->count++];
    train__graph_place *oldest = &g->places[0];
    for (int64_t i = 1; i < g->count; i++)
        if (g->places[i].used < oldest->used) oldest = &g->places[i];
    drop(g, oldest);
    return oldest;
}

static train__graph_place *find(train__graphs *g, const train__graph_key *key) {
    for (int64_t i = 0; i < g->count; i++)
        if (same_key(&g->places[i].key, key)) return &g->places[i];
    train__graph_place *p = free_place(g);
    *p = (train__graph_place){.key = *key};
    return p;
}

/* NULL: recording failed, and so has the device. */
static train_graph *record(train__graphs *g, void (*kernels)(void *user), void *user) {
    train_graph *graph = NULL;
    if (g->kernels->capture_begin(g->device, NULL)) return NULL;
    kernels(user);
    if (g->kernels->capture_end(g->device, &graph, NULL)) return NULL;
    g->recorded++;
    return graph;
}

void train__graphs_run(train__graphs *g, const train__graph_key *key, int32_t phase, void (*kernels)(void *user),
                       void *user) {
    train__graph_place *p = find(g, key);
    if (p->graph && !g->kernels->graph_valid(g->device, p->graph)) drop(g, p);
    if (!p->graph && p->used > 0) p->graph = record(g, kernels, user);
    p->used = ++g->clock;
    if (!p->graph) {
        g->called++;
        kernels(user);
        return;
    }
    if (phase >= 0) g->kernels->phase(g->device, phase);
    g->kernels->graph_run(g->device, p->graph);
    g->launched++;
}

ravel_status train__graphs_check(int32_t wanted, const train_kernels *kernels, int apart, ravel_error *err) {
    if (wanted != TRAIN_GRAPHS_ON || (kernels->capture_begin && apart)) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_UNSUPPORTED, "--graphs on: %s; use --graphs auto",
        kernels->capture_begin
            ? "ranks that share layers, samples or weights cannot record their kernels, and models with "
              "experts cannot either"
            : "this kernel set has no graphs");
}

void train__graphs_drop(train__graphs *g) {
    for (int64_t i = 0; i < g->count; i++) drop(g, &g->places[i]);
    g->count = 0;
}
