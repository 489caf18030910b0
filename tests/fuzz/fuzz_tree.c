/* Prefix trees of any numbers: token ids to an order, an order and shared tokens (right or not) to a plan, a bin to a layout and its
 * pieces. What is taken must keep what the headers promise; what is refused must be said. */
#include <ravel/plan.h>

#include "plan/tree/check.h"
#include <ravel/tree.h>
#include <ravel/tree_batch.h>

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { SAMPLES = 24, TOKENS = 2048, RANKS = 3 };

typedef struct input {
    const uint8_t *data;
    size_t left;
} input;

static int32_t next(input *in) {
    if (!in->left) return 0;
    in->left--;
    return *in->data++;
}

static void must(int holds) {
    if (!holds) abort();
}

/* Numbers of any size now and then, small ones mostly. */
static int64_t number(input *in) {
    int64_t x = next(in);
    return x < 250 ? x : x == 250 ? -1 : x == 251 ? INT64_MAX : x == 252 ? INT64_MIN : ((int64_t)next(in) << 24);
}

static void try_layout(const int32_t *cu, const int32_t *shared, int64_t count, int64_t align) {
    ravel_tree_bin bin = {cu, shared, count};
    ravel_tree_batch b = {.size = sizeof b};
    ravel_error err = RAVEL_ERROR_INIT;
    int32_t owners[RAVEL_TREE_CHUNKS * RANKS];
    if (ravel_tree_measure(&bin, align, &b, &err)) {
        must(err.message[0] != 0);
        return;
    }
    if (b.tokens > 1 << 16 || b.path_tokens > 1 << 16) return;
    void *block = malloc(ravel_tree_bytes(&b) + 1);
    must(block != NULL);
    ravel_tree_place(block, &b);
    must(ravel_tree_pack(&bin, &b, &err) == RAVEL_OK && b.unique <= b.tokens && b.levels <= b.nodes_most);
    for (int64_t i = 0; i < b.path_tokens; i++) must(b.path[i] >= 0 && b.path[i] < b.unique);
    for (int64_t p = 0; p < b.unique; p++) must(b.parents[p] < p && b.limits[p] > p && b.limits[p] <= b.unique);
    int64_t tokens = 0;
    int whole = b.tokens % (RAVEL_TREE_CHUNKS * RANKS) == 0;
    must((ravel_tree_deal(&b, RANKS, owners, NULL, &err) == RAVEL_OK) == whole);
    for (int32_t r = 0; r < RANKS && whole; r++) {
        ravel_tree_piece piece = {.size = sizeof piece};
        must(ravel_tree_piece_measure(&bin, &b, owners, RANKS, r, &piece, &err) == RAVEL_OK);
        tokens += piece.tokens;
    }
    must(!whole || tokens == b.tokens);
    free(block);
}

static void try_plan(input *in, int64_t count, const int64_t *lengths, const int32_t *order, const int64_t *shared) {
    ravel_plan_options o;
    ravel_plan *plan = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan_options_default(&o);
    o.budget = 1 + next(in) * 8;
    o.oversize = next(in) % 2;
    o.effort = RAVEL_EFFORT_FAST;
    o.align = 1 + next(in) % 9;
    o.dp = 1 + next(in) % 4;
    if (next(in) % 3 == 0) o.cp_pool = 1 + next(in) % 6, o.dp = 1;
    ravel_plan_input given = {
        .size = sizeof given, .count = count, .lengths = lengths, .order = order, .shared = shared};
    if (ravel_plan_create(&given, &o, &plan, &err)) {
        must(err.message[0] != 0);
        return;
    }
    must(ravel_plan_check(&given, &o, plan, &err) == RAVEL_OK);
    ravel_plan_free(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    input in = {data, bytes};
    int64_t count = 1 + next(&in) % SAMPLES, offsets[SAMPLES + 1] = {0}, shared[SAMPLES], lengths[SAMPLES];
    int32_t ids[TOKENS + 255], order[SAMPLES], cu[SAMPLES + 1] = {0}, own[SAMPLES];
    ravel_error err = RAVEL_ERROR_INIT;
    for (int64_t i = 0; i < count; i++) { /* a piece of an earlier sample, then other ids */
        int64_t from = i ? next(&in) % i : 0, copy = next(&in) % 64, at = offsets[i], more = 1 + next(&in) % 16;
        for (int64_t k = 0; k < copy && i && offsets[from] + k < offsets[from + 1] && at < TOKENS; k++)
            ids[at++] = ids[offsets[from] + k];
        for (int64_t k = 0; k < more; k++) ids[at++] = next(&in) % 4;
        offsets[i + 1] = at < TOKENS ? at : TOKENS;
        lengths[i] = offsets[i + 1] - offsets[i];
        if (!lengths[i]) count = i ? i : 1;
    }
    ravel_tree_input trees = {.size = sizeof trees, .count = count, .offsets = offsets, .ids = ids};
    must(ravel_tree_order(&trees, order, shared, &err) == RAVEL_OK);
    must(ravel__tree_check(count, lengths, order, shared, NULL, &err) == RAVEL_OK);
    for (int64_t i = 0; i < count; i++) {
        cu[i + 1] = cu[i] + (int32_t)lengths[order[i]];
        own[i] = (int32_t)shared[i];
    }
    int64_t align = 1 + next(&in);
    try_layout(cu, own, count, align);
    try_plan(&in, count, lengths, order, shared);
    while (in.left) { /* and now what nobody has checked */
        int64_t i = next(&in) % count;
        switch (next(&in) % 4) {
        case 0: shared[i] = number(&in); break;
        case 1: order[i] = (int32_t)number(&in); break;
        case 2: own[i] = (int32_t)number(&in); break;
        default: cu[i + 1] = (int32_t)number(&in); break;
        }
    }
    try_layout(cu, own, count, align);
    try_plan(&in, count, lengths, order, shared);
    return 0;
}
