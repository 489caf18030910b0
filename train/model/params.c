/* The table is made in two rounds of the same walk: one that counts tensors and bytes of names, one that fills. */
#include "train/model/params.h"

#include "train/kernels/assert.h"
#include "train/kernels/arena.h"

#include <stdio.h>
#include <string.h>

enum { GAP = 16 }; /* elements: a cache line of floats */

typedef struct table {
    train_params view; /* first: what the caller sees */
    train__arena arena;
    int64_t *layer_offsets; /* [layers, TRAIN_LAYER_TENSORS] or -1 */
} table;

static const struct {
    const char *name;
    int decay;
    train_split split;
} layer_rows[TRAIN_LAYER_TENSORS] = {
#define X(NAME, name, rows, columns, decay, split) {name, decay, TRAIN_SPLIT_##split},
    TRAIN_LAYER_LIST(X)
#undef X
};
_Static_assert(TRAIN_K == TRAIN_Q + 1 && TRAIN_V == TRAIN_Q + 2 && TRAIN_UP == TRAIN_GATE + 1, "q k v, and gate up");

static void layer_dims(const ravel_shape *shape, int64_t dims[TRAIN_LAYER_TENSORS][2]) {
    int64_t hidden = shape->hidden, head_dim = shape->head_dim, ffn = shape->ffn;
    int64_t q_width = shape->heads * head_dim, kv_width = shape->kv_heads * head_dim;
#define X(NAME, name, rows, columns, decay, split) \
    dims[TRAIN_##NAME][0] = rows;                  \
    dims[TRAIN_##NAME][1] = columns;
    TRAIN_LAYER_LIST(X)
#undef X
}

static int has(const ravel_shape *shape, int which) {
    if (which >= TRAIN_Q_BIAS && which <= TRAIN_V_BIAS) return shape->attention_bias;
    if (which == TRAIN_Q_NORM || which == TRAIN_K_NORM) return shape->qk_norm;
    return 1;
}

/* These continue the matrix (or bias) before them, without a gap. */
static int joined(int which) {
    return which == TRAIN_K || which == TRAIN_V || which == TRAIN_K_BIAS || which == TRAIN_V_BIAS || which == TRAIN_UP;
}

/* ---- parts ---------------------------------------------------------------------------------------------- */

static train_slice filled_in(const ravel_shape *whole, const train_slice *part) {
    train_slice p = part ? *part : (train_slice){0};
    if (p.tp <= 0) p.tp = 1;
    if (p.last_layer <= 0) p.last_layer = whole->layers;
    return p;
}

int64_t train_slice_vocab(const ravel_shape *whole, const train_slice *part) {
    train_slice p = filled_in(whole, part);
    return whole->vocab * p.tp_rank / p.tp;
}

ravel_status train_slice_shape(const ravel_shape *whole, const train_slice *part, ravel_shape *local,
                               ravel_error *err) {
    train_slice p = filled_in(whole, part), next = p;
    *local = *whole;
    if (p.tp_rank < 0 || p.tp_rank >= p.tp || p.first_layer < 0 || p.first_layer >= p.last_layer ||
        p.last_layer > whole->layers)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "rank %d of tp %d with layers %lld to %lld; the model has %lld layers", p.tp_rank, p.tp,
                               (long long)p.first_layer, (long long)p.last_layer, (long long)whole->layers);
    if (whole->heads % p.tp || whole->ffn % p.tp || p.tp > whole->vocab ||
        (whole->kv_heads % p.tp && p.tp % whole->kv_heads))
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "tp %d does not divide %lld heads and %lld feed-forward columns, or neither divides nor is "
            "a multiple of %lld kv heads",
            p.tp, (long long)whole->heads, (long long)whole->ffn, (long long)whole->kv_heads);
    next.tp_rank++;
    TRAIN_ASSERT(p.tp >= 1 && p.tp_rank < p.tp);
    local->heads = whole->heads / p.tp;
    local->kv_heads = train__max(whole->kv_heads / p.tp, 1);
    local->ffn = whole->ffn / p.tp;
    local->vocab = train_slice_vocab(whole, &next) - train_slice_vocab(whole, &p);
    TRAIN_ASSERT(local->heads * p.tp == whole->heads && local->ffn * p.tp == whole->ffn);
    TRAIN_ASSERT(local->heads % local->kv_heads == 0 && local->vocab > 0);
    return RAVEL_OK;
}

/* Where a rank's part begins along its split axis, and how many ranks have the same. */
static int64_t part_first(const ravel_shape *whole, const ravel_shape *local, const train_slice *p, train_split split,
                          int32_t *copies) {
    *copies = 1;
    switch (split) {
    case TRAIN_SPLIT_HEADS:
    case TRAIN_SPLIT_HEADS_IN: return p->tp_rank * local->heads * whole->head_dim;
    case TRAIN_SPLIT_FFN:
    case TRAIN_SPLIT_FFN_IN: return p->tp_rank * local->ffn;
    case TRAIN_SPLIT_VOCAB: return train_slice_vocab(whole, p);
    case TRAIN_SPLIT_KV_HEADS:
        if (whole->kv_heads < p->tp) *copies = (int32_t)(p->tp / whole->kv_heads);
        return p->tp_rank / *copies * local->kv_heads * whole->head_dim;
    default: *copies = p->tp; return 0;
    }
}

/* ---- the walk ------------------------------------------------------------------------------------------- */

/* With tensors == NULL it only counts. */
typedef struct walk {
    const ravel_shape *whole;
    ravel_shape local;
    train_tensor *tensors;
    char *names;
    size_t names_used;
    int64_t number;  /* of the next tensor in the whole model */
    train_params to; /* what has been added so far */
} walk;

/* Properties that all tensors of a kind share. */
typedef struct kind {
    const char *name;
    int decay, gap, partial;
    int again; /* another stage has the same tensor */
    train_split split;
} kind;

static int64_t add(walk *w, const char *prefix, const kind *k, const int64_t dims[2], const int64_t whole[2]) {
    size_t bytes = strlen(prefix) + strlen(k->name) + 1;
    int64_t count = dims[1] ? dims[0] * dims[1] : dims[0];
    int64_t offset = k->gap ? train__round_up(w->to.elements, GAP) : w->to.elements;
    TRAIN_ASSERT(dims[0] > 0 && dims[0] <= whole[0] && dims[1] <= whole[1]);
    TRAIN_ASSERT(offset >= w->to.elements && offset % (k->gap ? GAP : 1) == 0);
    if (w->tensors) {
        train_tensor *t = w->tensors + w->to.count;
        int axis = k->split == TRAIN_SPLIT_HEADS_IN || k->split == TRAIN_SPLIT_FFN_IN;
        char *text = w->names + w->names_used;
        (void)snprintf(text, bytes, "%s%s", prefix, k->name);
        *t = (train_tensor){.name = text,
                            .rank = dims[1] ? 2 : 1,
                            .decay = k->decay,
                            .dims = {dims[0], dims[1] ? dims[1] : 1},
                            .offset = offset,
                            .count = count,
                            .number = w->number,
                            .whole = {whole[0], whole[1] ? whole[1] : 1}};
        t->first[axis] = part_first(w->whole, &w->local, &w->to.part, k->split, &t->copies);
        TRAIN_ASSERT(t->copies >= 1 && w->to.part.tp % t->copies == 0);
        t->counted = !k->again && w->to.part.tp_rank % t->copies == 0;
        t->partial = t->copies > 1 && (k->partial || k->split == TRAIN_SPLIT_KV_HEADS);
    }
    w->names_used += bytes;
    w->to.elements = offset + count;
    w->to.parameters += count;
    w->to.count++;
    w->number++;
    return offset;
}

static void add_layer(walk *w, table *t, int64_t layer) {
    int64_t dims[TRAIN_LAYER_TENSORS][2], whole[TRAIN_LAYER_TENSORS][2];
    char prefix[64];
    (void)snprintf(prefix, sizeof prefix, "model.layers.%lld.", (long long)layer);
    layer_dims(&w->local, dims);
    layer_dims(w->whole, whole);
    for (int which = 0; which < TRAIN_LAYER_TENSORS; which++) {
        kind k = {layer_rows[which].name, layer_rows[which].decay, !joined(which), 0, 0, layer_rows[which].split};
        k.partial = which == TRAIN_Q_NORM || which == TRAIN_K_NORM; /* each rank sees its own heads */
        if (!has(w->whole, which)) continue;
        int64_t offset = add(w, prefix, &k, dims[which], whole[which]);
        if (t) t->layer_offsets[layer * TRAIN_LAYER_TENSORS + which] = offset;
    }
}

static void add_all(walk *w, table *t) {
    const ravel_shape *s = w->whole;
    const int64_t matrix[2] = {w->local.vocab, s->hidden}, whole[2] = {s->vocab, s->hidden}, vector[2] = {s->hidden, 0};
    int first = w->to.part.first_layer == 0, last = w->to.part.last_layer == s->layers;
    const kind embed = {"model.embed_tokens.weight", 1, 1, 0, !first, TRAIN_SPLIT_VOCAB},
               norm = {"model.norm.weight", 0, 1, 0, 0, 0};
    const kind head = {"lm_head.weight", 1, 1, 0, 0, TRAIN_SPLIT_VOCAB};
    int64_t each = 0;
    w->to.embedding = w->to.norm = w->to.head = -1;
    if (first || (last && s->tied)) w->to.embedding = add(w, "", &embed, matrix, whole);
    for (int which = 0; which < TRAIN_LAYER_TENSORS; which++) each += has(s, which);
    w->number = 1 + w->to.part.first_layer * each;
    for (int64_t layer = w->to.part.first_layer; layer < w->to.part.last_layer; layer++) add_layer(w, t, layer);
    if (last) w->to.norm = add(w, "", &norm, vector, vector);
    if (last) w->to.head = s->tied ? w->to.embedding : add(w, "", &head, matrix, whole);
    w->to.elements = train__round_up(w->to.elements, GAP);
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

static ravel_status check(const ravel_shape *shape, ravel_error *err) {
    ravel_status status = ravel_shape_check(shape, err);
    if (status) return status;
    const char *what = shape->experts ? "experts" : shape->kv_rank ? "latent attention" : NULL;
    if (!shape->gated) what = "a feed-forward block without a gate";
    if (shape->rope == RAVEL_ROPE_OTHER) what = "this kind of rope scaling";
    if (what)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the trainer has no kernels for %s; it takes dense models with gated feed-forward "
                               "blocks (Llama, Mistral, Qwen2, Qwen3)",
                               what);
    if (ravel_shape_parameters(shape) > INT64_MAX / 64)
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "the model has more parameters than can be addressed");
    return RAVEL_OK;
}

/* Units follow one another and cover the array; tensors rise and stay within it. */
static int params_ok(const train_params *p) {
    int64_t at = 0, tensor = 0, end = 0;
    for (int64_t i = 0; i < p->unit_count; i++) {
        if (p->units[i].first < at || p->units[i].tensor != tensor) return 0;
        at = p->units[i].first + p->units[i].count;
        tensor += p->units[i].tensors;
    }
    for (int64_t i = 0; i < p->count; i++) {
        if (p->tensors[i].offset < end || p->tensors[i].count < 1) return 0;
        end = p->tensors[i].offset + p->tensors[i].count;
    }
    return at == p->elements && tensor == p->count && end <= p->elements && p->elements % GAP == 0;
}

/* Begins a unit at the tensor of that offset. */
static void begin_unit(const table *t, train_unit *units, int64_t *count, int64_t offset) {
    int64_t tensor = *count ? units[*count - 1].tensor : 0;
    if (offset < 0) return;
    while (t->view.tensors[tensor].offset != offset) tensor++;
    TRAIN_ASSERT(tensor < t->view.count);
    units[(*count)++] = (train_unit){.first = offset, .tensor = tensor};
}

static void fill_units(table *t, train_unit *units) {
    train_params *p = &t->view;
    int64_t count = 0;
    begin_unit(t, units, &count, p->embedding);
    for (int64_t layer = p->part.first_layer; layer < p->part.last_layer; layer++)
        begin_unit(t, units, &count, t->layer_offsets[layer * TRAIN_LAYER_TENSORS + TRAIN_Q]);
    begin_unit(t, units, &count, p->norm);
    for (int64_t i = 0; i < count; i++) {
        train_unit *u = &units[i];
        u->count = (i + 1 < count ? units[i + 1].first : p->elements) - u->first;
        u->tensors = (i + 1 < count ? units[i + 1].tensor : p->count) - u->tensor;
    }
    for (int64_t i = 0; i < count; i++) TRAIN_ASSERT(units[i].count > 0 && units[i].tensors > 0);
    p->units = units;
    p->unit_count = count;
}

ravel_status train_params_create(const ravel_shape *shape, const train_slice *part, const ravel_allocator *allocator,
                                 train_params **params, ravel_error *err) {
    walk sizes = {.whole = shape, .to.part = filled_in(shape, part)};
    ravel_status status = check(shape, err);
    if (!status) status = train_slice_shape(shape, part, &sizes.local, err);
    if (status) return status;
    walk fill = sizes;
    add_all(&sizes, NULL);
    train__arena arena = {.allocator = allocator};
    table *t = train__arena_take(&arena, sizeof *t);
    int64_t *offsets = train__arena_take_array(&arena, shape->layers * TRAIN_LAYER_TENSORS, sizeof *offsets);
    TRAIN__TAKE(&arena, fill.tensors, sizes.to.count);
    TRAIN__TAKE(&arena, fill.names, (int64_t)sizes.names_used);
    train_unit *units = train__arena_take_array(&arena, shape->layers + 2, sizeof *units);
    status = train__arena_status(&arena, "the table of parameters", err);
    if (status) {
        train__arena_free(&arena);
        return status;
    }
    for (int64_t i = 0; i < shape->layers * TRAIN_LAYER_TENSORS; i++) offsets[i] = -1;
    t->layer_offsets = offsets;
    add_all(&fill, t);
    TRAIN_ASSERT(fill.to.count == sizes.to.count && fill.to.elements == sizes.to.elements &&
                 fill.names_used == sizes.names_used);
    t->view = fill.to;
    t->view.tensors = fill.tensors;
    fill_units(t, units);
    t->arena = arena;
    TRAIN_ASSERT(params_ok(&t->view));
    *params = &t->view;
    return RAVEL_OK;
}

void train_params_free(train_params *params) {
    if (!params) return;
    train__arena arena = ((table *)params)->arena; /* which holds the table itself */
    train__arena_free(&arena);
}

const train_tensor *train_params_find(const train_params *params, const char *name) {
    for (int64_t i = 0; i < params->count; i++)
        if (strcmp(params->tensors[i].name, name) == 0) return params->tensors + i;
    return NULL;
}

int64_t train_params_layer(const train_params *params, int64_t layer, train_layer_tensor which) {
    TRAIN_ASSERT(layer >= 0 && which >= 0 && which < TRAIN_LAYER_TENSORS);
    return ((const table *)params)->layer_offsets[layer * TRAIN_LAYER_TENSORS + (int)which];
}

int64_t train_params_unit(const train_params *params, int64_t offset) {
    int64_t low = 0, high = params->unit_count;
    TRAIN_ASSERT(offset >= 0 && offset < params->elements);
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (params->units[middle].first <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int64_t train_params_layer_unit(const train_params *params, int64_t layer) {
    TRAIN_ASSERT(layer >= params->part.first_layer && layer < params->part.last_layer);
    return (params->embedding >= 0) + layer - params->part.first_layer;
}
