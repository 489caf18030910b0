/* The tree order cut into runs: a new bin where the next leaf does not fit. */
#include "plan/tree/tree.h"

#include "base/assert.h"

int32_t ravel__tree_cut(const ravel__forest *f, int64_t limit, int32_t bins, int32_t *bin) {
    int32_t made = 0;
    int64_t tokens = 0, cost = 0, rows = 0;
    for (int32_t i = 0; i < f->count; i++) {
        int64_t more = f->length[i] - f->shared[i], price = f->cost[i] - f->twice[i];
        if (!made || tokens + more > f->cap || cost + price > limit || rows == f->most) {
            if (made == bins) return bins + 1;
            made++;
            more = f->length[i];
            price = f->cost[i];
            tokens = cost = rows = 0;
        }
        tokens += more;
        cost += price;
        rows++;
        RAVEL_ASSERT(tokens <= f->cap);
        if (bin) bin[i] = made - 1;
    }
    return made;
}
