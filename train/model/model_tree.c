/* Batches whose samples share prefixes: every shared token is one row (ravel/tree_batch.h).
 *
 *     samples    a b c d     a b e          flat places 0 .. 6, shared 0, 2
 *     rows       a b c d e                  layers, attention and head see these alone
 *     scored     c d e                      one row of the head per token that some sample scores: source and target
 *     losses     c d e of sample 0; e ...   one per sample and scored token, with that sample's weight and advantage
 *
 * Attention goes level by level of the tree. Keys are the rows of a node, queries these and all rows below it, which are one
 * range; a query that is n rows after the first sees the first n + 1 keys. So nodes of a level are the samples of one call.
 * Outputs of levels are merged by their log-sum-exps; in backward every key is in one call only, and queries add up. */
#include "train/model/model_internal.h"

#include "train/kernels/assert.h"

#include <string.h>

static int32_t start_of(const train_batch *b, int64_t i) {
    return (b->cu_seqlens_padded ? b->cu_seqlens_padded : b->cu_seqlens)[i];
}

static ravel_tree_bin bin_of(const train_batch *b) {
    return (ravel_tree_bin){b->cu_seqlens, b->shared, b->samples};
}

/* ---- memory --------------------------------------------------------------------------------------------- */

/* The largest tree of the model's options. */
static ravel_tree_batch largest(const train_model *m) {
    int64_t t = m->sizes.tokens, flat = m->sizes.flat;
    return (ravel_tree_batch){
        .samples = flat, .tokens = t, .path_tokens = flat, .runs = t, .keys = flat, .nodes_most = t};
}

int64_t train__tree_bytes(const train_model *m) {
    ravel_tree_batch most = largest(m);
    if (!m->options.flat_tokens) return 0;
    return (int64_t)ravel_tree_bytes(&most) + 4 * (m->sizes.tokens + 1) * (1 + m->options.in_flight) +
           4 * m->sizes.flat * m->options.in_flight;
}

ravel_status train__tree_open(train_model *m, ravel_error *err) {
    ravel_tree_batch most = largest(m);
    if (!m->options.flat_tokens) return RAVEL_OK;
    m->tree.block = train__arena_take(&m->arena, ravel_tree_bytes(&most));
    TRAIN__TAKE(&m->arena, m->tree.marks, m->sizes.tokens + 1);
    for (int i = 0; i < m->options.in_flight; i++) {
        TRAIN__TAKE(&m->arena, m->flights[i].levels.offsets, m->sizes.tokens + 1);
        TRAIN__TAKE(&m->arena, m->flights[i].rows_of, m->sizes.flat);
    }
    return train__arena_status(&m->arena, "trees of samples", err);
}

/* ---- checks --------------------------------------------------------------------------------------------- */

/* Tokens that are said to be shared must be equal: their rows are computed once. */
static ravel_status compare(const train_batch *b, int64_t i, ravel_error *err) {
    size_t bytes = (size_t)b->shared[i] * sizeof *b->tokens;
    if (!bytes || !b->tokens) return RAVEL_OK;
    if (memcmp(b->tokens + start_of(b, i), b->tokens + start_of(b, i - 1), bytes) == 0) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_DATA,
                           "sample %lld does not begin with the same %d tokens as the sample before it, which `shared` "
                           "says it does",
                           (long long)i, b->shared[i]);
}

ravel_status train__tree_check(train_model *m, const train_batch *b, ravel_error *err) {
    ravel_tree_bin bin = bin_of(b);
    if (!m->options.flat_tokens)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "samples share prefixes; the model was made without flat_tokens");
    m->tree.batch = (ravel_tree_batch){.size = sizeof m->tree.batch};
    ravel_status status = ravel_tree_measure(&bin, 1, &m->tree.batch, err);
    if (status) return status;
    if (m->tree.batch.tokens > m->sizes.tokens)
        return ravel_error_set(err, RAVEL_E_OVERSIZE,
                               "the batch has %lld tokens, shared ones counted once; the budget is %lld tokens",
                               (long long)m->tree.batch.tokens, (long long)m->sizes.tokens);
    for (int64_t i = 1; i < b->samples && !status; i++) status = compare(b, i, err);
    return status;
}

/* ---- layout --------------------------------------------------------------------------------------------- */

void train__tree_lay_out(train_model *m, const train_batch *b, int32_t *ids, int32_t *positions) {
    ravel_tree_batch *t = &m->tree.batch;
    ravel_tree_bin bin = bin_of(b);
    ravel_tree_place(m->tree.block, t);
    t->cu_seqlens_q = t->cu_seqlens_k = t->gather = NULL; /* of the other way of attention */
    t->positions = positions;
    ravel_status status = ravel_tree_pack(&bin, t, NULL);
    TRAIN_ASSERT(status == RAVEL_OK && t->levels >= 1 && t->nodes <= m->sizes.tokens);
    (void)status; /* train__tree_check has measured the same bin */
    for (int64_t i = 0; i < b->samples && b->tokens; i++)
        memcpy(ids + t->starts[i], b->tokens + start_of(b, i) + b->shared[i],
               (size_t)(t->starts[i + 1] - t->starts[i]) * sizeof *ids);
}

void train__tree_stage_levels(train_model *m) {
    const ravel_tree_batch *t = &m->tree.batch;
    train__levels *l = &m->now.levels;
    int32_t *starts = train__staging_take(&m->staging, t->nodes, 4, &l->queries.starts);
    int32_t *queries = train__staging_take(&m->staging, t->nodes, 4, &l->queries.lengths);
    int32_t *keys = train__staging_take(&m->staging, t->nodes, 4, &l->keys.lengths);
    for (int64_t i = 0; i < t->nodes; i++) {
        int32_t node = t->level_nodes[i];
        starts[i] = t->node_first[node];
        queries[i] = t->node_end[node] - t->node_first[node];
        keys[i] = t->node_last[node] - t->node_first[node];
    }
    l->keys.starts = l->queries.starts;
    l->queries.host_lengths = queries;
    l->keys.host_lengths = keys;
    l->queries.tokens = l->keys.tokens = m->now.ragged.tokens;
    l->count = t->levels;
    memcpy(l->offsets, t->level_offsets, (size_t)(t->levels + 1) * sizeof *l->offsets);
}

/* The row that the loss at flat place `at` of sample i is predicted by, and the row that it predicts. */
static ravel_status edge_of(const train_model *m, const train_batch *b, int32_t i, int32_t at, int32_t *from,
                            int32_t *to, ravel_error *err) {
    int32_t t = at - start_of(b, i) + (b->targets != NULL), length = b->cu_seqlens[i + 1] - b->cu_seqlens[i];
    const int32_t *path = m->tree.batch.path + b->cu_seqlens[i];
    if (t >= length)
        return ravel_error_set(
            err, RAVEL_E_DATA,
            "the last token of sample %d has a target; where prefixes are shared, targets are tokens "
            "of the sample",
            i);
    *from = path[t - 1];
    *to = path[t];
    return RAVEL_OK;
}

/* Predicted rows get numbers in their order: rows of the head. */
static void number_rows(train_model *m, int32_t *marks) {
    m->now.scored = 0;
    for (int32_t p = 0; p < m->now.ragged.tokens; p++) marks[p] = marks[p] ? (int32_t)m->now.scored++ : -1;
}

/* For each row the list of its losses. */
static void list_losses(train_model *m, int32_t *first, int32_t *list) {
    memset(first, 0, (size_t)(m->now.scored + 1) * sizeof *first);
    for (int64_t j = 0; j < m->now.losses; j++) first[m->now.rows_of[j] + 1]++;
    for (int64_t r = 0; r < m->now.scored; r++) first[r + 1] += first[r];
    for (int64_t j = 0; j < m->now.losses; j++) list[first[m->now.rows_of[j]]++] = (int32_t)j;
    memmove(first + 1, first, (size_t)m->now.scored * sizeof *first);
    first[0] = 0;
}

/* For each row that predicts, the head's rows that it has: several where samples part. */
static void stage_sources(train_model *m, const int32_t *rows) {
    train__staged *s = &m->now.staged;
    int32_t *marks = m->tree.marks, n = 0;
    int32_t *sources = train__staging_take(&m->staging, m->now.scored, 4, &s->sources);
    int32_t *first = train__staging_take(&m->staging, m->now.scored + 1, 4, &s->source_first);
    int32_t *list = train__staging_take(&m->staging, m->now.scored, 4, &s->source_list);
    memset(marks, 0, (size_t)m->now.ragged.tokens * sizeof *marks);
    for (int64_t r = 0; r < m->now.scored; r++) marks[rows[r]]++;
    first[0] = 0;
    for (int32_t p = 0; p < m->now.ragged.tokens; p++) {
        if (!marks[p]) continue;
        sources[n] = p;
        first[n + 1] = first[n] + marks[p];
        marks[p] = first[n++];
    }
    for (int32_t r = 0; r < m->now.scored; r++) list[marks[rows[r]]++] = r;
    m->now.sources = n;
}

/* From losses by flat place (places, targets) to rows of the head. `rows` and `targets` are overwritten. */
ravel_status train__tree_stage_scored(train_model *m, const train_batch *b, int32_t *rows, int32_t *targets,
                                      ravel_error *err) {
    train__staged *s = &m->now.staged;
    int32_t *marks = m->tree.marks, *to = m->now.rows_of, from, sample = 0;
    int64_t losses = m->now.losses;
    int32_t *first = train__staging_take(&m->staging, m->now.ragged.tokens + 1, 4, &s->first);
    int32_t *list = train__staging_take(&m->staging, losses, 4, &s->list);
    int32_t *row_of = train__staging_take(&m->staging, losses, 4, &s->row_of);
    memset(marks, 0, (size_t)(m->now.ragged.tokens + 1) * sizeof *marks);
    for (int64_t j = 0; j < losses; j++) {
        while (m->now.places[j] >= start_of(b, sample + 1)) sample++;
        ravel_status status = edge_of(m, b, sample, m->now.places[j], &from, to + j, err);
        if (status) return status;
        marks[to[j]] = 1;
    }
    number_rows(m, marks);
    for (int64_t j = 0; j < m->now.scored; j++) first[j] = -1;
    for (int64_t j = 0; j < losses; j++) { /* list: targets by loss, as rows and targets become those of the head */
        list[j] = targets[j];
    }
    for (int64_t j = 0; j < losses; j++) {
        int32_t predicted = to[j], row = marks[predicted];
        if (first[row] >= 0 && list[first[row]] != list[j])
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "a token that samples share is to predict %d in one of them and %d in another",
                                   list[first[row]], list[j]);
        if (first[row] < 0) first[row] = (int32_t)j;
        rows[row] = m->tree.batch.parents[predicted];
        targets[row] = list[j];
        to[j] = row_of[j] = row;
    }
    list_losses(m, first, list);
    stage_sources(m, rows);
    return RAVEL_OK;
}

/* ---- attention ------------------------------------------------------------------------------------------ */

static train_ragged part_of(const train_ragged *whole, int32_t first, int32_t count) {
    train_ragged part = *whole;
    part.longest = 0;
    part.starts += first;
    part.lengths += first;
    part.host_lengths += first;
    for (int32_t i = 0; i < count; i++)
        if (part.host_lengths[i] > part.longest) part.longest = part.host_lengths[i];
    return part;
}

/* The call of one level. */
static train_attention level_of(const train_model *m, const train_attention *whole, int64_t level) {
    const train__levels *l = &m->now.levels;
    int32_t first = l->offsets[level], count = l->offsets[level + 1] - first;
    train_attention x = *whole;
    TRAIN_ASSERT(level < l->count && count > 0);
    x.samples = count;
    x.queries = part_of(&l->queries, first, count);
    x.keys = part_of(&l->keys, first, count);
    x.shifts = NULL;
    x.add = level > 0;
    return x;
}

void train__tree_attend(const train_model *m, const train__acts *a) {
    const train__net *n = &m->net;
    train_attention whole = train__net_attention(n, a);
    TRAIN_ASSERT(!n->window && m->tree.o && m->tree.lse);
    for (int64_t level = 0; level < m->now.levels.count; level++) {
        train_attention x = level_of(m, &whole, level);
        if (level) x.o = m->tree.o, x.lse = m->tree.lse;
        n->kernels->attention(n->device, &x);
        if (level)
            n->kernels->attention_merge(
                n->device, &(train_merge){x.samples, x.heads, x.head_dim, x.queries, a->o, a->lse, x.o, x.lse});
    }
}

void train__tree_attend_backward(const train_model *m, const train_attention *whole) {
    for (int64_t level = 0; level < m->now.levels.count; level++) {
        train_attention x = level_of(m, whole, level);
        m->net.kernels->attention_backward(m->net.device, &x);
    }
}
