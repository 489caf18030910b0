/* Batches whose samples share prefixes: every shared token is one row (ravel/tree_batch.h).
 *
 *     samples    a b c d     a b e          flat places 0 .. 6, shared 0, 2
 *     rows       a b c d e                  layers, attention and head see these alone
 *     scored     c d e                      one row of the head per token that some sample scores: source and target
 *     losses     c d e of sample 0; e ...   one per sample and scored token, with that sample's weight and advantage
 *
 * Attention goes level by level of the tree, or over copies of each sample's keys (model_tree_keys.c), whichever moves
 * fewer bytes. Levels: keys are the rows of a node, queries these and all rows below it, which are one range; a query
 * that is n rows after the first sees the first n + 1 keys. So nodes of a level are the samples of one call. Outputs of
 * levels are merged by their log-sum-exps; in backward every key is in one call only, and queries add up.
 *
 * With context parallelism every rank is given the whole bin, deals its places in the same way, and has the rows of its
 * own:
 *
 *     places     0 1 | 2 3 | 4 5 | 6 .        chunks, dealt to ranks 0 1 1 0
 *     rows       of rank 0: 0 1 6 .           of rank 1: 2 3 4 5
 *
 * A token is scored by the rank that has the row which predicts it. */
#include "train/model/model_internal.h"

#include "base/assert.h"

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
    int64_t t = train__tree_bin(m), flat = m->sizes.flat;
    return (ravel_tree_batch){
        .samples = flat, .tokens = t, .path_tokens = flat, .runs = t, .keys = flat, .nodes_most = t};
}

/* The largest piece: runs are cut where chunks end. */
static ravel_tree_piece largest_piece(const train_model *m) {
    return (ravel_tree_piece){.tokens = m->sizes.tokens, .runs = m->sizes.tokens, .keys = train__tree_path_keys(m)};
}

static int64_t chunks_of(const train_model *m) {
    return RAVEL_TREE_CHUNKS * (int64_t)m->cp_most;
}

int64_t train__tree_bytes(const train_model *m) {
    ravel_tree_batch most = largest(m);
    if (!m->options.flat_tokens) return 0;
    ravel_tree_piece piece = largest_piece(m);
    int64_t own = piece.tokens + 3 * piece.runs + 2 + piece.keys + 3 * chunks_of(m) + train__tree_bin(m) + 1;
    int64_t flight =
        4 * (m->sizes.tokens + 1 + m->sizes.flat) + train__tree_parts(m) * (int64_t)sizeof(train__tree_part);
    return (int64_t)ravel_tree_bytes(&most) + 4 * own + flight * m->options.in_flight;
}

ravel_status train__tree_open(train_model *m, ravel_error *err) {
    ravel_tree_batch most = largest(m);
    if (!m->options.flat_tokens) return RAVEL_OK;
    m->tree.block = train__arena_take(&m->arena, ravel_tree_bytes(&most));
    ravel_tree_piece piece = largest_piece(m), *p = &m->tree.piece;
    TRAIN__TAKE(&m->arena, m->tree.marks, train__tree_bin(m) + 1);
    TRAIN__TAKE(&m->arena, m->tree.owners, chunks_of(m));
    TRAIN__TAKE(&m->arena, m->tree.chunk_here, chunks_of(m));
    TRAIN__TAKE(&m->arena, m->tree.chunk_all, chunks_of(m));
    TRAIN__TAKE(&m->arena, p->places, piece.tokens);
    TRAIN__TAKE(&m->arena, p->query_starts, piece.runs);
    TRAIN__TAKE(&m->arena, p->cu_seqlens_q, piece.runs + 1);
    TRAIN__TAKE(&m->arena, p->cu_seqlens_k, piece.runs + 1);
    TRAIN__TAKE(&m->arena, p->gather, piece.keys);
    for (int i = 0; i < m->options.in_flight; i++) {
        TRAIN__TAKE(&m->arena, m->flights[i].levels.offsets, m->sizes.tokens + 1);
        TRAIN__TAKE(&m->arena, m->flights[i].rows_of, m->sizes.flat);
        TRAIN__TAKE(&m->arena, m->flights[i].tree_parts, train__tree_parts(m));
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
    ravel_comm *ring = b->cp ? b->cp : m->options.cp;
    int32_t ranks = ring ? ravel_comm_size(ring) : 1;
    if (!m->options.flat_tokens)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "samples share prefixes; the model was made without flat_tokens");
    m->tree.batch = (ravel_tree_batch){.size = sizeof m->tree.batch};
    ravel_status status = ravel_tree_measure(&bin, ranks > 1 ? RAVEL_TREE_CHUNKS * ranks : 1, &m->tree.batch, err);
    if (status) return status;
    if (m->tree.batch.tokens > m->sizes.tokens * ranks)
        return ravel_error_set(err, RAVEL_E_OVERSIZE,
                               "the batch has %lld tokens, shared ones counted once; the budget is %lld tokens on %d "
                               "ranks",
                               (long long)m->tree.batch.tokens, (long long)m->sizes.tokens, ranks);
    for (int64_t i = 1; i < b->samples && !status; i++) status = compare(b, i, err);
    return status;
}

/* ---- layout --------------------------------------------------------------------------------------------- */

/* Where chunks are, on this rank and where the rows of all ranks follow one another. */
static void number_chunks(train_model *m, int32_t ranks, int32_t rank) {
    train__tree *t = &m->tree;
    int32_t chunks = ranks > 1 ? ranks * RAVEL_TREE_CHUNKS : 1;
    t->chunk = (int32_t)(t->batch.tokens / chunks);
    for (int32_t r = 0, row = 0; r < ranks; r++)
        for (int32_t c = 0, here = 0; c < chunks; c++) {
            if (t->owners[c] != r) continue;
            t->chunk_all[c] = row;
            t->chunk_here[c] = r != rank ? -1 : here;
            row += t->chunk;
            here += t->chunk;
        }
}

/* The row of a place on this rank; -1: another one has it. */
static int32_t row_here(const train_model *m, int32_t place) {
    int32_t first = m->tree.chunk_here[place / m->tree.chunk];
    return first < 0 ? -1 : first + place % m->tree.chunk;
}

/* This rank's places, and attention for them. */
static void deal(train_model *m, const train__micro *mb, const ravel_tree_bin *bin) {
    train__tree *t = &m->tree;
    int32_t ranks = mb->cp.ranks, rank = mb->cp.rank, *owners = ranks > 1 ? t->owners : NULL;
    t->owners[0] = 0;
    t->piece.size = sizeof t->piece;
    ravel_status status = owners ? ravel_tree_deal(&t->batch, ranks, owners, NULL, NULL) : RAVEL_OK;
    if (!status) status = ravel_tree_piece_measure(bin, &t->batch, owners, ranks, rank, &t->piece, NULL);
    RAVEL_ASSERT(status == RAVEL_OK && t->piece.runs <= m->sizes.tokens && t->piece.keys <= train__tree_path_keys(m));
    if (!status) status = ravel_tree_piece_pack(bin, &t->batch, owners, ranks, rank, &t->piece, NULL);
    RAVEL_ASSERT(status == RAVEL_OK);
    number_chunks(m, ranks, rank);
}

void train__tree_lay_out(train_model *m, const train__micro *mb, const train_batch *b, int32_t *ids,
                         int32_t *positions) {
    ravel_tree_batch *t = &m->tree.batch;
    ravel_tree_bin bin = bin_of(b);
    ravel_tree_place(m->tree.block, t);
    t->cu_seqlens_q = t->cu_seqlens_k = t->gather = NULL; /* of the piece */
    ravel_status status = ravel_tree_pack(&bin, t, NULL);
    RAVEL_ASSERT(status == RAVEL_OK && t->levels >= 1 && t->nodes <= train__tree_bin(m));
    (void)status; /* train__tree_check has measured the same bin */
    deal(m, mb, &bin);
    for (int32_t row = 0; row < mb->ragged.tokens; row++) positions[row] = t->positions[m->tree.piece.places[row]];
    for (int64_t i = 0; i < b->samples && b->tokens; i++)
        for (int32_t p = t->starts[i]; p < t->starts[i + 1]; p++) {
            int32_t row = row_here(m, p);
            if (row >= 0) ids[row] = b->tokens[start_of(b, i) + b->shared[i] + p - t->starts[i]];
        }
}

int64_t train__tree_rows(const train_model *m, const train__micro *mb) {
    return m->tree.batch.tokens / mb->cp.ranks;
}

int64_t train__tree_list_rows(const train_model *m, const train__micro *mb, int32_t *rows) {
    int64_t n = 0;
    for (int32_t row = 0; row < mb->ragged.tokens; row++)
        if (m->tree.piece.places[row] < m->tree.batch.unique) rows[n++] = row;
    return n;
}

void train__tree_count_rows(train_model *m, const train__micro *mb, const train_batch *b, int32_t *times) {
    int32_t *marks = m->tree.marks, total = b->cu_seqlens[b->samples];
    memset(marks, 0, (size_t)(m->tree.batch.unique + 1) * sizeof *marks);
    for (int32_t t = 0; t < total; t++) marks[m->tree.batch.path[t]]++;
    for (int32_t row = 0; row < mb->ragged.tokens; row++) {
        int32_t place = m->tree.piece.places[row];
        times[row] = place < m->tree.batch.unique ? marks[place] : 0;
    }
}

/* Bytes that attention moves beside the attention itself: levels write, read and merge the outputs of all rows below
 * the first one; copies of keys and values are written, and their gradients written and added. */
static int gathers(const train_model *m, const train__micro *mb) {
    const ravel_tree_batch *t = &m->tree.batch;
    int64_t below = 0;
    if (mb->cp.ranks > 1 || m->net.shape.window || m->options.tree_attention == TRAIN_TREE_KEYS) return 1;
    if (m->options.tree_attention == TRAIN_TREE_LEVELS) return 0;
    for (int64_t i = 0; i < t->nodes; i++)
        if (t->node_level[i]) below += t->node_end[i] - t->node_first[i];
    return m->tree.piece.keys * m->net.kv_width < below * m->net.q_width;
}

static void stage_levels(train_model *m, train__micro *mb) {
    const ravel_tree_batch *t = &m->tree.batch;
    train__levels *l = &mb->levels;
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
    l->queries.tokens = l->keys.tokens = mb->ragged.tokens;
    l->count = t->levels;
    memcpy(l->offsets, t->level_offsets, (size_t)(t->levels + 1) * sizeof *l->offsets);
}

void train__tree_stage_attention(train_model *m, train__micro *mb) {
    mb->levels.count = mb->tree_count = 0;
    (gathers(m, mb) ? train__tree_stage_keys : stage_levels)(m, mb);
}

/* The place that the loss at flat place `at` of sample i is predicted by, and the place that it predicts. */
static ravel_status edge_of(const train_model *m, const train_batch *b, int32_t i, int32_t at, int32_t *from,
                            int32_t *to, ravel_error *err) {
    int32_t t = at - start_of(b, i) + (b->targets != NULL), length = b->cu_seqlens[i + 1] - b->cu_seqlens[i];
    const int32_t *path = m->tree.batch.path + b->cu_seqlens[i];
    if (t >= length)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "the last token of sample %d has a target; if prefixes are shared, targets are tokens "
                               "of the sample",
                               i);
    *from = path[t - 1];
    *to = path[t];
    return RAVEL_OK;
}

/* Predicted places get numbers in their order: rows of the head. */
static void number_rows(const train_model *m, train__micro *mb, int32_t *marks) {
    mb->scored = 0;
    for (int64_t p = 0; p < m->tree.batch.unique; p++) marks[p] = marks[p] ? (int32_t)mb->scored++ : -1;
}

/* For each row the list of its losses. */
static void list_losses(train__micro *mb, int32_t *first, int32_t *list) {
    memset(first, 0, (size_t)(mb->scored + 1) * sizeof *first);
    for (int64_t j = 0; j < mb->losses; j++) first[mb->rows_of[j] + 1]++;
    for (int64_t r = 0; r < mb->scored; r++) first[r + 1] += first[r];
    for (int64_t j = 0; j < mb->losses; j++) list[first[mb->rows_of[j]]++] = (int32_t)j;
    memmove(first + 1, first, (size_t)mb->scored * sizeof *first);
    first[0] = 0;
}

/* For each row that predicts, the head's rows that it has: several where samples part. */
static void stage_sources(train_model *m, train__micro *mb, const int32_t *rows) {
    train__staged *s = &mb->staged;
    int32_t *marks = m->tree.marks, n = 0;
    int32_t *sources = train__staging_take(&m->staging, mb->scored, 4, &s->sources);
    int32_t *first = train__staging_take(&m->staging, mb->scored + 1, 4, &s->source_first);
    int32_t *list = train__staging_take(&m->staging, mb->scored, 4, &s->source_list);
    memset(marks, 0, (size_t)mb->ragged.tokens * sizeof *marks);
    for (int64_t r = 0; r < mb->scored; r++) marks[rows[r]]++;
    first[0] = 0;
    for (int32_t p = 0; p < mb->ragged.tokens; p++) {
        if (!marks[p]) continue;
        sources[n] = p;
        first[n + 1] = first[n] + marks[p];
        marks[p] = first[n++];
    }
    for (int32_t r = 0; r < mb->scored; r++) list[marks[rows[r]]++] = r;
    mb->sources = n;
}

/* Losses that this rank predicts, the others being dropped: to[losses] the place that each predicts, which is
 * marked. */
static ravel_status keep_own(train_model *m, train__micro *mb, const train_batch *b, int32_t *to, int32_t *targets,
                             ravel_error *err) {
    int32_t *marks = m->tree.marks, from = -1, sample = 0;
    int64_t kept = 0;
    memset(marks, 0, (size_t)(m->tree.batch.unique + 1) * sizeof *marks);
    for (int64_t j = 0; j < mb->losses; j++) {
        while (mb->places[j] >= start_of(b, sample + 1)) sample++;
        ravel_status status = edge_of(m, b, sample, mb->places[j], &from, to + kept, err);
        if (status) return status;
        if (row_here(m, from) < 0) continue;
        marks[to[kept]] = 1;
        mb->places[kept] = mb->places[j];
        targets[kept++] = targets[j];
    }
    mb->losses = kept;
    return RAVEL_OK;
}

/* From losses by flat place (places, targets) to rows of the head. `rows` and `targets` are overwritten. */
ravel_status train__tree_stage_scored(train_model *m, train__micro *mb, const train_batch *b, int32_t *rows,
                                      int32_t *targets, ravel_error *err) {
    train__staged *s = &mb->staged;
    int32_t *marks = m->tree.marks, *to = mb->rows_of;
    ravel_status status = keep_own(m, mb, b, to, targets, err);
    if (status) return status;
    int64_t losses = mb->losses;
    number_rows(m, mb, marks);
    if (mb->scored > m->sizes.scored)
        return ravel_error_set(err, RAVEL_E_OVERSIZE,
                               "%lld tokens follow those of one context-parallel rank, over %lld: raise the budget, or "
                               "share no prefixes",
                               (long long)mb->scored, (long long)m->sizes.scored);
    int32_t *first = train__staging_take(&m->staging, mb->scored + 1, 4, &s->first);
    int32_t *list = train__staging_take(&m->staging, losses, 4, &s->list);
    int32_t *row_of = train__staging_take(&m->staging, losses, 4, &s->row_of);
    for (int64_t j = 0; j < mb->scored; j++) first[j] = -1;
    memcpy(list, targets, (size_t)losses * sizeof *list); /* by loss: rows and targets become those of the head */
    for (int64_t j = 0; j < losses; j++) {
        int32_t predicted = to[j], row = marks[predicted];
        if (first[row] >= 0 && list[first[row]] != list[j])
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "a token that samples share is to predict %d in one of them and %d in another",
                                   list[first[row]], list[j]);
        if (first[row] < 0) first[row] = (int32_t)j;
        rows[row] = row_here(m, m->tree.batch.parents[predicted]);
        targets[row] = list[j];
        to[j] = row_of[j] = row;
    }
    list_losses(mb, first, list);
    stage_sources(m, mb, rows);
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
static train_attention level_of(const train__micro *mb, const train_attention *whole, int64_t level) {
    const train__levels *l = &mb->levels;
    int32_t first = l->offsets[level], count = l->offsets[level + 1] - first;
    train_attention x = *whole;
    RAVEL_ASSERT(level < l->count && count > 0);
    x.samples = count;
    x.queries = part_of(&l->queries, first, count);
    x.keys = part_of(&l->keys, first, count);
    x.shifts = NULL;
    x.add = level > 0;
    return x;
}

void train__tree_attend(const train_model *m, train__micro *mb, const train__acts *a) {
    const train__net *n = &m->net;
    train_attention whole = train__net_attention(n, a);
    RAVEL_ASSERT(m->tree.o && m->tree.lse);
    if (!mb->levels.count) train__tree_keys_attend(m, mb, a);
    for (int64_t level = 0; level < mb->levels.count; level++) {
        train_attention x = level_of(mb, &whole, level);
        if (level) x.o = m->tree.o, x.lse = m->tree.lse;
        n->kernels->attention(n->device, &x);
        if (level)
            n->kernels->attention_merge(
                n->device, &(train_merge){x.samples, x.heads, x.head_dim, x.queries, a->o, a->lse, x.o, x.lse});
    }
}

void train__tree_attend_backward(const train_model *m, train__micro *mb, const train__acts *a,
                                 const train_attention *whole) {
    if (!mb->levels.count) train__tree_keys_attend_backward(m, mb, a);
    for (int64_t level = 0; level < mb->levels.count; level++) {
        train_attention x = level_of(mb, whole, level);
        m->net.kernels->attention_backward(m->net.device, &x);
    }
}
