#include "train/model/ranks/shares.h"

#include "base/assert.h"
#include "train/kernels/host.h"

int64_t train_tensor_span(const train_tensor *t) {
    RAVEL_ASSERT(t->dims[1] > 0);
    return train__max(TRAIN_SPAN / t->dims[1], 1) * t->dims[1];
}

/* Where rank `rank` begins in a unit: the first beginning of a span at or after its even share. */
static int64_t begin_of(const train_params *p, const train_unit *u, int32_t ranks, int32_t rank) {
    int64_t end = u->first + u->count, at = u->first + u->count / ranks * rank + u->count % ranks * rank / ranks;
    if (rank == 0 || rank == ranks) return rank ? end : u->first;
    for (int64_t i = u->tensor; i < u->tensor + u->tensors; i++) {
        const train_tensor *t = &p->tensors[i];
        int64_t span = train_tensor_span(t), begin = t->offset;
        if (at > t->offset) begin += train__round_up(at - t->offset, span);
        if (begin < t->offset + t->count) return begin;
    }
    return end;
}

/* The same, if experts are shared out over `ep` of the ranks: those that have the same ones, every ep-th rank, have
 * runs. */
static int64_t begin_at(const train_params *p, const train_unit *u, int32_t ranks, int32_t rank) {
    int32_t ep = p->part.ep, before = (rank - p->part.ep_rank + ep - 1) / ep; /* such ranks below this one */
    if (!u->experts || ranks == 1) return begin_of(p, u, ranks, rank);
    RAVEL_ASSERT(ranks % ep == 0);
    return begin_of(p, u, ranks / ep, before);
}

static void fill(train_shares *s, int64_t *counts, int64_t *places) {
    const train_params *p = s->params;
    for (int32_t r = 0; r < s->ranks; r++) {
        int64_t all = 0;
        for (int64_t u = 0; u < p->unit_count; u++) {
            int64_t begin = begin_at(p, &p->units[u], s->ranks, r), end = begin_at(p, &p->units[u], s->ranks, r + 1);
            RAVEL_ASSERT(begin <= end);
            if (r == s->rank) places[u] = all;
            counts[u * s->ranks + r] = end - begin;
            s->most_of_unit = train__max(s->most_of_unit, end - begin);
            all += end - begin;
        }
        if (r == s->rank) places[p->unit_count] = all;
        s->most = train__max(s->most, all);
    }
    s->counts = counts;
    s->places = places;
}

/* The runs of a unit cover it, and this rank's runs follow one another. */
static int shares_ok(const train_shares *s) {
    for (int64_t u = 0; u < s->params->unit_count; u++) {
        int64_t sum = 0;
        for (int32_t r = 0; r < s->ranks; r++) sum += s->counts[u * s->ranks + r];
        if (sum != s->params->units[u].count) return 0;
        if (s->places[u + 1] - s->places[u] != s->counts[u * s->ranks + s->rank]) return 0;
    }
    return s->places[0] == 0 && s->places[s->params->unit_count] <= s->most && s->most_of_unit <= s->most;
}

ravel_status train_shares_create(const train_params *params, int32_t ranks, int32_t rank,
                                 const ravel_allocator *allocator, train_shares **shares, ravel_error *err) {
    if (ranks <= 0) ranks = 1;
    RAVEL_ASSERT(rank >= 0 && rank < ranks && params->unit_count > 0);
    size_t lists = (size_t)(params->unit_count * (ranks + 1) + 1), bytes = sizeof **shares + lists * sizeof(int64_t);
    train_shares *s = ravel__alloc(allocator, bytes);
    if (!s) return ravel__no_memory(err, bytes, "shares of the parameters");
    int64_t *counts = (int64_t *)(void *)(s + 1);
    *s = (train_shares){.params = params, .ranks = ranks, .rank = rank, .bytes = bytes, .allocator = allocator};
    fill(s, counts, counts + params->unit_count * ranks);
    *shares = s;
    RAVEL_ASSERT(shares_ok(s));
    return RAVEL_OK;
}

void train_shares_free(train_shares *s) {
    if (s) ravel__release(s->allocator, s, s->bytes);
}

train_runs train_shares_runs(const train_shares *s, int64_t unit, int64_t *counts) {
    const int64_t *all = s->counts + unit * s->ranks;
    int32_t ep = s->params->part.ep, first = s->params->part.ep_rank;
    if (!s->params->units[unit].experts || s->ranks == 1 || ep == 1) return (train_runs){all, s->ranks, s->rank};
    for (int32_t r = first; r < s->ranks; r += ep) counts[r / ep] = all[r];
    return (train_runs){counts, s->ranks / ep, s->rank / ep};
}

int64_t train_shares_begin(const train_shares *s, int64_t unit, int32_t rank) {
    RAVEL_ASSERT(unit >= 0 && unit < s->params->unit_count && rank >= 0 && rank <= s->ranks);
    int64_t begin = s->params->units[unit].first;
    for (int32_t r = 0; r < rank; r++) begin += s->counts[unit * s->ranks + r];
    return begin;
}

int train_shares_cut(const train_shares *s, int32_t rank, int64_t *begin, int64_t *end) {
    RAVEL_ASSERT(*begin >= 0 && *begin <= *end && rank >= 0 && rank < s->ranks);
    int64_t unit = train_params_unit(s->params, *begin), first = train_shares_begin(s, unit, rank);
    *begin = train__max(*begin, first);
    *end = train__min(*end, first + s->counts[unit * s->ranks + rank]);
    return *begin < *end;
}

int64_t train_shares_local(const train_shares *s, int64_t element) {
    int64_t unit = train_params_unit(s->params, element), first = train_shares_begin(s, unit, s->rank);
    RAVEL_ASSERT(element >= first && element <= first + s->counts[unit * s->ranks + s->rank]);
    return s->places[unit] + element - first;
}

void *train_array_at(const train_array *a, int64_t element) {
    RAVEL_ASSERT(element >= 0 && a->data);
    return train__at(a->data, a->dtype, a->shares ? train_shares_local(a->shares, element) : element);
}
