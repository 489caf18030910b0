/* The table is made in two rounds of the same walk: one that counts tensors and bytes of names, one that fills. */
#include "train/model/params.h"

#include "train/kernels/host.h"

#include <stdio.h>
#include <string.h>

enum { GAP = 16 }; /* elements: a cache line of floats */

typedef struct table {
    train_params view; /* first: what the caller sees */
    const ravel_allocator *allocator;
    train_tensor *tensors;
    int64_t *layer_offsets; /* [layers, TRAIN_LAYER_TENSORS] or -1 */
    char *names;
    size_t tensors_bytes, offsets_bytes, names_bytes;
    int64_t embedding, norm, head;
} table;

static const struct {
    const char *name;
    int decay;
} layer_rows[TRAIN_LAYER_TENSORS] = {
#define X(NAME, name, rows, columns, decay) {name, decay},
    TRAIN_LAYER_LIST(X)
#undef X
};

static void layer_dims(const ravel_shape *shape, int64_t dims[TRAIN_LAYER_TENSORS][2]) {
    int64_t hidden = shape->hidden, head_dim = shape->head_dim, ffn = shape->ffn;
    int64_t q_width = shape->heads * head_dim, kv_width = shape->kv_heads * head_dim;
#define X(NAME, name, rows, columns, decay) \
    dims[TRAIN_##NAME][0] = rows;           \
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

/* ---- the walk ------------------------------------------------------------------------------------------- */

/* With tensors == NULL it only counts. */
typedef struct walk {
    train_tensor *tensors;
    char *names;
    int64_t count, elements, parameters;
    size_t names_used;
} walk;

static int64_t add(walk *w, const char *prefix, const char *name, const int64_t dims[2], int decay, int gap) {
    size_t bytes = strlen(prefix) + strlen(name) + 1;
    int64_t count = dims[1] ? dims[0] * dims[1] : dims[0];
    int64_t offset = gap ? train__round_up(w->elements, GAP) : w->elements;
    if (w->tensors) {
        char *text = w->names + w->names_used;
        (void)snprintf(text, bytes, "%s%s", prefix, name);
        w->tensors[w->count] = (train_tensor){.name = text,
                                              .rank = dims[1] ? 2 : 1,
                                              .decay = decay,
                                              .dims = {dims[0], dims[1] ? dims[1] : 1},
                                              .offset = offset,
                                              .count = count};
    }
    w->names_used += bytes;
    w->elements = offset + count;
    w->parameters += count;
    w->count++;
    return offset;
}

static void add_layer(walk *w, table *t, const ravel_shape *shape, int64_t layer) {
    int64_t dims[TRAIN_LAYER_TENSORS][2];
    char prefix[64];
    (void)snprintf(prefix, sizeof prefix, "model.layers.%lld.", (long long)layer);
    layer_dims(shape, dims);
    for (int which = 0; which < TRAIN_LAYER_TENSORS; which++) {
        int64_t offset = -1;
        if (has(shape, which))
            offset = add(w, prefix, layer_rows[which].name, dims[which], layer_rows[which].decay, !joined(which));
        if (t) t->layer_offsets[layer * TRAIN_LAYER_TENSORS + which] = offset;
    }
}

static void add_all(walk *w, table *t, const ravel_shape *shape) {
    const int64_t matrix[2] = {shape->vocab, shape->hidden}, vector[2] = {shape->hidden, 0};
    int64_t embedding = add(w, "", "model.embed_tokens.weight", matrix, 1, 1);
    for (int64_t layer = 0; layer < shape->layers; layer++) add_layer(w, t, shape, layer);
    int64_t norm = add(w, "", "model.norm.weight", vector, 0, 1);
    int64_t head = shape->tied ? embedding : add(w, "", "lm_head.weight", matrix, 1, 1);
    w->elements = train__round_up(w->elements, GAP);
    if (!t) return;
    t->embedding = embedding;
    t->norm = norm;
    t->head = head;
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

static ravel_status allocate(table *t, const walk *w, int64_t layers, ravel_error *err) {
    t->tensors_bytes = (size_t)w->count * sizeof *t->tensors;
    t->offsets_bytes = (size_t)layers * TRAIN_LAYER_TENSORS * sizeof *t->layer_offsets;
    t->names_bytes = w->names_used;
    t->tensors = train__alloc(t->allocator, t->tensors_bytes);
    t->layer_offsets = train__alloc(t->allocator, t->offsets_bytes);
    t->names = train__alloc(t->allocator, t->names_bytes);
    if (t->tensors && t->layer_offsets && t->names) return RAVEL_OK;
    return train__no_memory(err, t->tensors_bytes + t->offsets_bytes + t->names_bytes, "the table of parameters");
}

ravel_status train_params_create(const ravel_shape *shape, const ravel_allocator *allocator, train_params **params,
                                 ravel_error *err) {
    ravel_status status = check(shape, err);
    if (status) return status;
    table *t = train__calloc(allocator, 1, sizeof *t);
    if (!t) return train__no_memory(err, sizeof *t, "the table of parameters");
    t->allocator = allocator;
    walk sizes = {0}, fill = {0};
    add_all(&sizes, NULL, shape);
    status = allocate(t, &sizes, shape->layers, err);
    if (status) {
        train_params_free(&t->view);
        return status;
    }
    fill.tensors = t->tensors;
    fill.names = t->names;
    add_all(&fill, t, shape);
    t->view = (train_params){fill.elements, fill.count, t->tensors, fill.parameters};
    *params = &t->view;
    return RAVEL_OK;
}

void train_params_free(train_params *params) {
    if (!params) return;
    table *t = (table *)params;
    train__release(t->allocator, t->tensors, t->tensors_bytes);
    train__release(t->allocator, t->layer_offsets, t->offsets_bytes);
    train__release(t->allocator, t->names, t->names_bytes);
    train__release(t->allocator, t, sizeof *t);
}

const train_tensor *train_params_find(const train_params *params, const char *name) {
    for (int64_t i = 0; i < params->count; i++)
        if (strcmp(params->tensors[i].name, name) == 0) return params->tensors + i;
    return NULL;
}

int64_t train_params_layer(const train_params *params, int64_t layer, train_layer_tensor which) {
    return ((const table *)params)->layer_offsets[layer * TRAIN_LAYER_TENSORS + (int)which];
}

int64_t train_params_embedding(const train_params *params) {
    return ((const table *)params)->embedding;
}

int64_t train_params_norm(const train_params *params) {
    return ((const table *)params)->norm;
}

int64_t train_params_head(const train_params *params) {
    return ((const table *)params)->head;
}
