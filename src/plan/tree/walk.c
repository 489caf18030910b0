/* From the tree order to the bins: one pass over the places, with the running minima of `shared` on a stack.
 *
 *     places   0  1  2  3  4  5  6
 *     shared   0  5  3  8  8  4  9        stack at place 6: (2: 3) (5: 4) (6: 9)
 *
 * The least of places j + 1 .. i is the first entry of the stack that is beyond j. */
#include "plan/tree/tree.h"

#include "base/assert.h"

typedef struct minima {
    int32_t *place;
    int64_t *value;
    int32_t top;
} minima;

static void push(minima *m, int32_t place, int64_t value) {
    while (m->top && m->value[m->top - 1] >= value) m->top--;
    m->place[m->top] = place;
    m->value[m->top++] = value;
}

static int64_t least_after(const minima *m, int32_t place) {
    int32_t low = 0, high = m->top - 1;
    while (low < high) {
        int32_t mid = (low + high) / 2;
        if (m->place[mid] > place)
            high = mid;
        else
            low = mid + 1;
    }
    RAVEL_ASSERT(m->place[low] > place);
    return m->value[low];
}

ravel_status ravel__tree_walk(const ravel__tree_order *tree, const int32_t *bin, int32_t bins, int32_t *next,
                              ravel__arena *arena, int32_t *samples, int64_t *shared, ravel_error *err) {
    size_t n = (size_t)tree->count;
    ravel__mark mark = ravel__arena_mark(arena);
    int32_t *last = ravel__arena_push(arena, (size_t)bins, sizeof *last); /* place of the bin's last sample; -1: none */
    minima m = {.top = 0};
    RAVEL__PUSH(arena, m.place, n);
    RAVEL__PUSH(arena, m.value, n);
    ravel_status status = ravel__arena_status(arena, "walking trees", err);
    for (int32_t b = 0; !status && b < bins; b++) last[b] = -1;
    for (int32_t i = 0; !status && i < tree->count; i++) {
        int32_t row = tree->order ? tree->order[i] : i, b = bin[row];
        push(&m, i, tree->shared[i]);
        if (b < 0) continue;
        RAVEL_ASSERT(b < bins);
        shared[next[b]] = last[b] < 0 ? 0 : least_after(&m, last[b]);
        samples[next[b]++] = row;
        last[b] = i;
    }
    ravel__arena_rewind(arena, mark);
    return status;
}

ravel_status ravel__tree_list(const ravel_plan_input *input, const int32_t *bin, int64_t bins, const int64_t *offsets,
                              ravel__arena *arena, int32_t *samples, int64_t *shared, ravel_error *err) {
    ravel__mark mark = ravel__arena_mark(arena);
    ravel__tree_order tree = {(int32_t)input->count, input->shared, input->order};
    int32_t *next = ravel__arena_push(arena, (size_t)bins, sizeof *next);
    if (!next) return ravel__arena_status(arena, "walking trees", err);
    for (int64_t b = 0; b < bins; b++) next[b] = (int32_t)offsets[b];
    ravel_status status = ravel__tree_walk(&tree, bin, (int32_t)bins, next, arena, samples, shared, err);
    for (int64_t b = 0; !status && b < bins; b++) RAVEL_ASSERT(next[b] == offsets[b + 1]);
    ravel__arena_rewind(arena, mark);
    return status;
}
