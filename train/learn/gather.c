#include "train/learn/gather.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/hf/lora.h"

#include <string.h>

enum { TAG_GATHER = 21 };

train_array train__array_of(const train_learner *l, int32_t chunk, int32_t which) {
    RAVEL_ASSERT(chunk >= 0 && chunk < l->count && which >= TRAIN_MOMENT1 && which <= TRAIN__WEIGHTS);
    const train__part *p = &l->part[chunk];
    if (which == TRAIN__WEIGHTS) return train_model_array(p->model);
    return train_optimizer_array(p->optimizer, (train_states)which);
}

static int32_t type_of(const train__gather *g) {
    return train__array_of(g->l, 0, g->which).dtype;
}

/* Whether each replica has a share of the array only. */
static int is_sharded(const train__gather *g) {
    const train_shares *shares = train__array_of(g->l, 0, g->which).shares;
    return shares && shares->ranks > 1;
}

/* The elements of a part that the rows from `first` on lie in: *count of them; their first row in the tensor is
 * *row. */
static int64_t part_of_block(const train_tensor *t, int64_t first, int64_t rows, int64_t *row, int64_t *count) {
    int64_t from = train__max(first, t->first[0]), to = train__min(first + rows, t->first[0] + t->dims[0]);
    RAVEL_ASSERT(rows > 0 && t->dims[1] > 0);
    *row = from;
    *count = to > from ? (to - from) * t->dims[1] : 0;
    return t->offset + (from - t->first[0]) * t->dims[1];
}

/* ---- rank 0 --------------------------------------------------------------------------------------------- */

/* Elements first .. of a part's array, from the rank that has them: itself, or by a message. */
static ravel_status take(train__gather *g, int32_t chunk, int32_t owner, int64_t first, int64_t count, void *to,
                         ravel_error *err) {
    train_learner *l = g->l;
    if (owner != 0) return ravel_comm_recv(l->world, to, count, type_of(g), owner, TAG_GATHER, err);
    train_array from = train__array_of(l, chunk, g->which);
    l->kernels->download(l->device, to, train_array_at(&from, first), (size_t)(count * ravel_dtype_bytes(from.dtype)));
    return RAVEL_OK;
}

/* Table i: part and tensor-parallel rank as without experts on several ranks, then the rank among those that share them
 * out. */
static int32_t tables_per_ep(const train_learner *l) {
    const ravel_mesh_layout *layout = ravel_mesh_get_layout(l->mesh);
    return train_layout_tp(layout) * train_layout_parts(layout);
}

/* The same where the array may be sharded over replicas: receives the share of each. */
static ravel_status take_all(train__gather *g, int32_t table, int64_t first, int64_t count, void *to,
                             ravel_error *err) {
    train_learner *l = g->l;
    const ravel_mesh_layout *layout = ravel_mesh_get_layout(l->mesh);
    const int32_t axes = RAVEL_AXIS_DP | RAVEL_AXIS_CP, pp = train_layout_pp(layout), tp = train_layout_tp(layout);
    int32_t ep_rank = table / tables_per_ep(l);
    table %= tables_per_ep(l);
    int32_t one = ravel_mesh_rank_at(layout, (ravel_mesh_coord){.tp = table % tp, .pp = table / tp % pp});
    RAVEL_ASSERT(table >= 0 && table < g->table_count && one >= 0 && one < layout->ranks);
    const int32_t *replicas = g->members + (int64_t)ravel_mesh_group_of(layout, axes, one) * l->ranks;
    ravel_status status = RAVEL_OK;
    if (!is_sharded(g)) return take(g, table / tp / pp, replicas[ep_rank], first, count, to, err);
    for (int32_t r = 0; r < l->ranks && !status; r++) {
        int64_t begin = first, end = first + count;
        if (train_shares_cut(g->shares[table + ep_rank * tables_per_ep(l)], r, &begin, &end))
            status = take(g, table / tp / pp, replicas[r], begin, end - begin, train__at(to, type_of(g), begin - first),
                          err);
    }
    return status;
}

/* Columns of a part's rows to their places in whole rows. */
static void place_columns(const train__gather *g, const train_tensor *t, int64_t rows, const void *from, void *to) {
    int64_t each = ravel_dtype_bytes(type_of(g));
    RAVEL_ASSERT(t->first[1] + t->dims[1] <= t->whole[1]);
    for (int64_t r = 0; r < rows; r++)
        memcpy((char *)to + (r * t->whole[1] + t->first[1]) * each, (const char *)from + r * t->dims[1] * each,
               (size_t)(t->dims[1] * each));
}

static ravel_status take_part(train__gather *g, int32_t table, const train_tensor *t, int64_t first, int64_t rows,
                              void *to, ravel_error *err) {
    int64_t row, count, at = part_of_block(t, first, rows, &row, &count);
    if (count == 0) return RAVEL_OK;
    int direct = t->dims[1] == t->whole[1];
    RAVEL_ASSERT(count * ravel_dtype_bytes(type_of(g)) <= g->piece_bytes && row >= first);
    void *place = train__at(to, type_of(g), (row - first) * t->whole[1]);
    ravel_status status = take_all(g, table, at, count, direct ? place : g->piece, err);
    if (!status && !direct) place_columns(g, t, count / t->dims[1], g->piece, place);
    return status;
}

static ravel_status read_rows(void *user, const train_tensor *whole, int64_t first, int64_t rows, void *to,
                              ravel_error *err) {
    train__gather *g = user;
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < g->table_count && !status; i++) {
        const train_tensor *t = train_params_find(g->tables[i], whole->name);
        if (t && t->counted && (t->expert || i < tables_per_ep(g->l)))
            status = take_part(g, i, t, first, rows, to, err);
    }
    RAVEL_ASSERT(first + rows <= whole->dims[0]);
    g->row = first + rows;
    g->tensor = whole - g->whole->tensors;
    RAVEL_ASSERT(g->tensor >= 0 && g->tensor < g->whole->count);
    return status;
}

ravel_status train__gather_drain(train__gather *g, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (; g->tensor < g->whole->count && !status; g->tensor++, g->row = 0) {
        const train_tensor *t = g->whole->tensors + g->tensor;
        int64_t block = train_block_rows(t), i = g->tensor;
        for (int64_t row = g->row; row < t->dims[0] && !status; row += block)
            status = read_rows(g, t, row, train__min(block, t->dims[0] - row), g->block, err);
        g->tensor = i;
    }
    RAVEL_ASSERT(status || g->tensor == g->whole->count);
    return status;
}

/* ---- the others ----------------------------------------------------------------------------------------- */

/* Sends this rank's elements of a block; the others come from other ranks. */
static ravel_status send_part(train__gather *g, int32_t chunk, const train_tensor *t, int64_t first, int64_t rows,
                              ravel_error *err) {
    train_learner *l = g->l;
    int64_t row, count, begin = part_of_block(t, first, rows, &row, &count), end = begin + count;
    train_array from = train__array_of(l, chunk, g->which);
    int32_t owner = t->expert ? train_model_params(l->part[chunk].model)->part.ep_rank : 0; /* the first that has it */
    if (count == 0 || (is_sharded(g) ? !train_shares_cut(from.shares, l->rank, &begin, &end) : l->rank != owner))
        return RAVEL_OK;
    RAVEL_ASSERT((end - begin) * ravel_dtype_bytes(from.dtype) <= g->piece_bytes);
    l->kernels->download(l->device, g->piece, train_array_at(&from, begin),
                         (size_t)((end - begin) * ravel_dtype_bytes(from.dtype)));
    return ravel_comm_send(l->world, g->piece, end - begin, from.dtype, 0, TAG_GATHER, err);
}

ravel_status train__gather_send(train__gather *g, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < g->whole->count && !status; i++) {
        const train_tensor *whole = g->whole->tensors + i;
        int64_t block = train_block_rows(whole);
        for (int32_t chunk = 0; chunk < g->l->count && !status; chunk++) {
            const train_tensor *t = train_params_find(train_model_params(g->l->part[chunk].model), whole->name);
            if (!t || !t->counted) continue;
            for (int64_t row = 0; row < whole->dims[0] && !status; row += block)
                status = send_part(g, chunk, t, row, train__min(block, whole->dims[0] - row), err);
        }
    }
    return status;
}

/* ---- create and free ------------------------------------------------------------------------------------- */

void train__gather_begin(train__gather *g, int32_t which) {
    g->which = which;
    g->tensor = g->row = 0;
    g->rows = (train_rows_source){read_rows, g, type_of(g)};
}

ravel_status train__learner_params(const train_learner *l, const train_slice *part, train_params **params,
                                   ravel_error *err) {
    return train_trained_params(&l->shape, part, &l->options.model->lora, l->options.allocator, params, err);
}

static ravel_status make_tables(train__gather *g, ravel_error *err) {
    train_learner *l = g->l;
    const ravel_mesh_layout *layout = ravel_mesh_get_layout(l->mesh);
    int32_t tp = train_layout_tp(layout), each = tables_per_ep(l), ep = (int32_t)train__max(l->options.learn->ep, 1);
    int32_t count = each * ep;
    ravel_status status = RAVEL_OK;
    g->tables = train__arena_take_array(&g->arena, count, sizeof(train_params *));
    g->shares = train__arena_take_array(&g->arena, count, sizeof(train_shares *));
    TRAIN__TAKE(&g->arena, g->members, layout->ranks);
    status = train__arena_status(&g->arena, "a checkpoint", err);
    if (status) return status;
    g->table_count = count;
    ravel_mesh_groups(layout, RAVEL_AXIS_DP | RAVEL_AXIS_CP, g->members);
    for (int32_t i = 0; i < count && !status; i++) {
        train_slice part = train_layout_slice(layout, &l->shape, i % each / tp, i % tp);
        part.ep = ep;
        part.ep_rank = i / each;
        status = train__learner_params(l, &part, &g->tables[i], err);
        if (!status) status = train_shares_create(g->tables[i], l->ranks, 0, l->options.allocator, &g->shares[i], err);
    }
    return status;
}

ravel_status train__gather_open(train__gather *g, train_learner *l, ravel_error *err) {
    int64_t most = 0;
    *g = (train__gather){.l = l, .arena = {.allocator = l->options.allocator}};
    ravel_status status = train__learner_params(l, NULL, &g->whole, err);
    if (!status && ravel_comm_rank(l->world) == 0) status = make_tables(g, err);
    if (status) return status;
    for (int64_t i = 0; i < g->whole->count; i++)
        most = train__max(most, train_block_rows(&g->whole->tensors[i]) * g->whole->tensors[i].whole[1]);
    g->piece_bytes = most * (int64_t)sizeof(double);
    RAVEL_ASSERT(most > 0);
    g->piece = train__arena_take(&g->arena, (size_t)g->piece_bytes);
    g->block = train__arena_take(&g->arena, (size_t)g->piece_bytes);
    return train__arena_status(&g->arena, "a checkpoint", err);
}

void train__gather_close(train__gather *g) {
    for (int32_t i = 0; i < g->table_count; i++) {
        train_shares_free(g->shares[i]);
        train_params_free(g->tables[i]);
    }
    train_params_free(g->whole);
    train__arena_free(&g->arena);
}
