/* Attention over shared prefixes by gathered keys: the queries of a run (tokens that one sample adds to the tree) see
 * copies of the keys of its path, which are one sequence.
 *
 *     all       keys and values of every place, those of other context-parallel ranks included (an all-gather)
 *     copies    of each run's path, run after run; as many runs at a time as there is room for: a part
 *     backward  gradients of the copies are added up per place, parts one after the other, and go back by reduce-scatter
 *
 * With context parallelism a rank has chunks of places (ravel_tree_deal), and a run is cut where chunks end: its keys
 * end with its last query, so the mask is causal at the bottom right for pieces too. */
#include "train/model/ring.h"

#include "base/assert.h"

#include <string.h>

static int64_t width_of(const train_model *m) {
    return 2 * m->net.kv_width;
}

/* ---- sizes ---------------------------------------------------------------------------------------------- */

int64_t train__tree_bin(const train_model *m) {
    return m->sizes.tokens * m->cp_most;
}

int64_t train__tree_path_keys(const train_model *m) {
    return m->sizes.flat + (m->cp_most > 1 ? RAVEL_TREE_CHUNKS * m->sizes.positions : 0);
}

/* Copies at a time: at least the longest path, and half of it is filled by every part but the last. */
int64_t train__tree_copies(const train_model *m) {
    return 2 * train__max(m->sizes.tokens, m->sizes.positions);
}

int64_t train__tree_parts(const train_model *m) {
    return 2 * train__tree_path_keys(m) / train__tree_copies(m) + 1;
}

/* Five arrays of runs; from, to, first and list of keys. */
size_t train__tree_staged(const train_model *m) {
    int64_t runs = m->sizes.tokens + train__tree_parts(m), keys = train__tree_path_keys(m) + train__tree_parts(m);
    return (size_t)(5 * runs + 4 * keys) * 4 + (size_t)(9 * train__tree_parts(m)) * TRAIN_ALIGN;
}

void train__tree_cut_keys(train_model *m, train__cut *cut) {
    train__tree *t = &m->tree;
    int64_t bin = train__tree_bin(m), width = width_of(m);
    int learns = !m->options.inference;
    void **arrays[] = {&t->all, &t->copies, &t->own, &t->d_all, &t->d_copies, &t->spare};
    const int64_t rows[] = {bin,
                            train__tree_copies(m),
                            m->cp_most > 1 ? m->sizes.tokens : 0,
                            learns ? bin : 0,
                            learns ? train__tree_copies(m) : 0,
                            learns ? bin : 0};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        *arrays[i] = train__cut_take(cut, rows[i] > 0, train__net_bytes(&m->net, rows[i] * width));
}

/* ---- staging -------------------------------------------------------------------------------------------- */

/* The row of a place in `all`, where the rows of one rank come after those of another. */
static int32_t row_in_all(const train_model *m, int32_t place) {
    return m->tree.chunk_all[place / m->tree.chunk] + place % m->tree.chunk;
}

/* For each row of `all` that some copy is of, the list of its copies. */
static void list_copies(train_model *m, const train__micro *mb, train__tree_part *part, const int32_t *from) {
    int32_t rows = mb->ragged.tokens * (mb->cp.ranks > 1 ? mb->cp.ranks : 1), n = 0, sum = 0;
    int32_t *counts = m->tree.marks;
    memset(counts, 0, (size_t)rows * sizeof *counts);
    for (int32_t k = 0; k < part->copies; k++) n += counts[from[k]]++ == 0;
    int32_t *to = train__staging_take(&m->staging, n, 4, &part->to);
    int32_t *first = train__staging_take(&m->staging, n + 1, 4, &part->first);
    int32_t *list = train__staging_take(&m->staging, part->copies, 4, &part->list);
    part->rows = n;
    n = 0;
    for (int32_t row = 0; row < rows; row++) {
        int32_t count = counts[row];
        if (!count) continue;
        to[n] = row;
        first[n++] = counts[row] = sum;
        sum += count;
    }
    first[n] = sum;
    for (int32_t k = 0; k < part->copies; k++) list[counts[from[k]]++] = k;
}

/* Runs from `run` on, as many as there is room for; returns the first one that is left. */
static int32_t stage_part(train_model *m, const train__micro *mb, train__tree_part *part, int32_t run) {
    const ravel_tree_piece *p = &m->tree.piece;
    int32_t end = run, begin = p->cu_seqlens_k[run], longest = 0;
    while (end < p->runs && p->cu_seqlens_k[end + 1] - begin <= train__tree_copies(m)) end++;
    RAVEL_ASSERT(end > run);
    *part = (train__tree_part){.runs = end - run, .copies = p->cu_seqlens_k[end] - begin};
    part->queries.tokens = part->keys.tokens = mb->ragged.tokens;
    int32_t *starts = train__staging_take(&m->staging, part->runs, 4, &part->queries.starts);
    int32_t *lengths = train__staging_take(&m->staging, part->runs, 4, &part->queries.lengths);
    int32_t *key_starts = train__staging_take(&m->staging, part->runs, 4, &part->keys.starts);
    int32_t *key_lengths = train__staging_take(&m->staging, part->runs, 4, &part->keys.lengths);
    int32_t *shifts = train__staging_take(&m->staging, part->runs, 4, &part->shifts);
    int32_t *from = train__staging_take(&m->staging, part->copies, 4, &part->from);
    for (int32_t i = 0; i < part->runs; i++) {
        starts[i] = p->query_starts[run + i];
        lengths[i] = p->cu_seqlens_q[run + i + 1] - p->cu_seqlens_q[run + i];
        key_starts[i] = p->cu_seqlens_k[run + i] - begin;
        key_lengths[i] = p->cu_seqlens_k[run + i + 1] - p->cu_seqlens_k[run + i];
        shifts[i] = key_lengths[i] - lengths[i];
        part->queries.longest = (int32_t)train__max(part->queries.longest, lengths[i]);
        longest = (int32_t)train__max(longest, key_lengths[i]);
    }
    part->keys.tokens = part->copies;
    part->keys.longest = longest;
    part->queries.host_lengths = lengths;
    part->keys.host_lengths = key_lengths;
    for (int32_t k = 0; k < part->copies; k++) from[k] = row_in_all(m, p->gather[begin + k]);
    if (!m->options.inference) list_copies(m, mb, part, from);
    return end;
}

void train__tree_stage_keys(train_model *m, train__micro *mb) {
    mb->tree_count = 0;
    for (int32_t run = 0; run < m->tree.piece.runs;) {
        RAVEL_ASSERT(mb->tree_count < train__tree_parts(m));
        run = stage_part(m, mb, &mb->tree_parts[mb->tree_count++], run);
    }
}

/* ---- attention ------------------------------------------------------------------------------------------ */

/* Keys and values of all ranks. */
static void gather_all(const train_model *m, train__micro *mb, const train__acts *a) {
    const train__tree *t = &m->tree;
    int64_t count = mb->ragged.tokens * width_of(m);
    train__ring_pack(m, mb, mb->cp.ranks > 1 ? t->own : t->all, a);
    if (mb->cp.ranks > 1) train__link_gather(&mb->cp, t->own, t->all, count, m->net.types.activation);
}

/* Attention of a part, its keys being copied. */
static train_attention part_of(const train_model *m, const train__acts *a, const train__tree_part *part) {
    const train__net *n = &m->net;
    train_rows rows = {.rows = part->copies, .width = width_of(m), .from_ids = part->from};
    rows.to = m->tree.copies;
    rows.from = m->tree.all;
    n->kernels->copy_rows(n->device, &rows);
    train_attention x = train__net_attention(n, a);
    x.k = m->tree.copies;
    x.v = train__net_at(n, m->tree.copies, n->kv_width);
    x.ld_k = x.ld_v = width_of(m);
    x.samples = part->runs;
    x.queries = part->queries;
    x.keys = part->keys;
    x.shifts = part->shifts;
    x.at_end = 1;
    return x;
}

void train__tree_keys_attend(const train_model *m, train__micro *mb, const train__acts *a) {
    gather_all(m, mb, a);
    for (int32_t i = 0; i < mb->tree_count; i++) {
        train_attention x = part_of(m, a, &mb->tree_parts[i]);
        m->net.kernels->attention(m->net.device, &x);
    }
}

static void zero(const train_model *m, void *block, int64_t rows) {
    m->net.kernels->zero(m->net.device, block, train__net_bytes(&m->net, rows * width_of(m)));
}

/* Gradients of the copies to those of the rows that they are of; parts after the first are added. */
static void add_copies(const train_model *m, const train__tree_part *part, int first, int64_t all) {
    const train__net *n = &m->net;
    const train__tree *t = &m->tree;
    void *to = first ? t->d_all : t->spare;
    train_rows rows = {.rows = part->rows, .width = width_of(m), .to = to, .from = t->d_copies};
    rows.to_ids = part->to;
    rows.from_ids = part->list;
    rows.first = part->first;
    zero(m, to, all);
    n->kernels->copy_rows(n->device, &rows);
    if (!first)
        n->kernels->rmsnorm(
            n->device,
            &(train_norm){.rows = all, .width = width_of(m), .x = t->d_all, .add = t->spare, .sum = t->d_all});
}

void train__tree_keys_attend_backward(const train_model *m, train__micro *mb, const train__acts *a) {
    const train__tree *t = &m->tree;
    int64_t rows = mb->ragged.tokens, all = rows * (mb->cp.ranks > 1 ? mb->cp.ranks : 1);
    RAVEL_ASSERT(!m->options.inference && t->d_all && all <= train__tree_bin(m));
    gather_all(m, mb, a);
    if (!mb->tree_count) zero(m, t->d_all, all);
    for (int32_t i = 0; i < mb->tree_count; i++) {
        train_attention x = part_of(m, a, &mb->tree_parts[i]);
        train__ring_gradients(m, &x, t->d_copies);
        m->net.kernels->attention_backward(m->net.device, &x);
        add_copies(m, &mb->tree_parts[i], i == 0, all);
    }
    if (mb->cp.ranks > 1) train__link_scatter(&mb->cp, t->d_all, t->own, rows * width_of(m), m->net.types.activation);
    train__ring_unpack(m, mb, mb->cp.ranks > 1 ? t->own : t->d_all);
}
