/* The table is made in two rounds of the same walk: one that counts tensors and bytes of names, one that fills. */
#include "train/model/params.h"

#include "base/assert.h"
#include "base/model/family.h"
#include "train/kernels/arena.h"
#include "train/model/hf/lora.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 16 }; /* elements: a cache line of floats */

typedef struct table {
    train_params view; /* first: what the caller sees */
    train__arena arena;
    int64_t *layer_offsets; /* [layers, TRAIN_LAYER_TENSORS], of an adapter [layers, 2, TRAIN_LAYER_TENSORS]; or -1 */
    const train_tensor **by_name; /* [count] in the order of their names */
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
_Static_assert(TRAIN_NORM_IN + RAVEL__LAYER_NORMS == TRAIN_LAYER_TENSORS, "norms are last");
_Static_assert(TRAIN_K == TRAIN_Q + 1 && TRAIN_V == TRAIN_Q + 2 && TRAIN_UP == TRAIN_GATE + 1, "q k v, and gate up");

/* `sparse`: of a layer with experts, whose gate, up and down are one expert's. */
static void layer_dims(const ravel_shape *shape, int sparse, int64_t dims[TRAIN_LAYER_TENSORS][2]) {
    int64_t hidden = shape->hidden, head_dim = shape->head_dim, ffn = sparse ? shape->expert_ffn : shape->ffn;
    int64_t q_width = shape->heads * head_dim, kv_width = shape->kv_heads * head_dim;
    int whole = shape->qk_norm == RAVEL_QK_NORM_WHOLE;
    int64_t q_norm = whole ? q_width : head_dim, k_norm = whole ? kv_width : head_dim, experts = shape->experts;
#define X(NAME, name, rows, columns, decay, split) \
    dims[TRAIN_##NAME][0] = rows;                  \
    dims[TRAIN_##NAME][1] = columns;
    TRAIN_LAYER_LIST(X)
#undef X
}

static int is_feed(int which) {
    return which >= TRAIN_GATE && which <= TRAIN_DOWN;
}

static int has(const ravel_shape *shape, int64_t layer, int which) {
    if (which == TRAIN_ROUTER) return ravel_shape_has_experts(shape, layer);
    if (which >= TRAIN_Q_BIAS && which <= TRAIN_V_BIAS) return shape->attention_bias;
    if (which == TRAIN_Q_NORM || which == TRAIN_K_NORM) return shape->qk_norm != RAVEL_QK_NORM_NONE;
    if (which >= TRAIN_NORM_IN) return ravel__shape_family(shape)->norms[which - TRAIN_NORM_IN] != NULL;
    return 1;
}

/* name[64] of a layer's tensor, within the layer; `expert` below 0: of none. */
static const char *name_of(const ravel_shape *shape, int which, int64_t expert, char *name) {
    const ravel__family *f = ravel__shape_family(shape);
    if (which == TRAIN_ROUTER)
        (void)snprintf(name, 64, "%s.weight", f->router);
    else if (expert >= 0)
        (void)snprintf(name, 64, "%s.%lld.%s.weight", f->experts[0], (long long)expert,
                       f->experts[1 + which - TRAIN_GATE]);
    else if (which >= TRAIN_NORM_IN)
        (void)snprintf(name, 64, "%s.weight", f->norms[which - TRAIN_NORM_IN]);
    else
        return layer_rows[which].name;
    return name;
}

/* These continue the matrix (or bias) before them, without a gap. */
static int joined(int which) {
    return which == TRAIN_K || which == TRAIN_V || which == TRAIN_K_BIAS || which == TRAIN_V_BIAS || which == TRAIN_UP;
}

/* ---- parts ---------------------------------------------------------------------------------------------- */

static train_slice filled_in(const ravel_shape *whole, const train_slice *part) {
    train_slice p = part ? *part : (train_slice){0};
    if (p.tp <= 0) p.tp = 1;
    if (p.ep <= 0) p.ep = 1;
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
    if (p.ep_rank < 0 || p.ep_rank >= p.ep || (p.ep > 1 && (!whole->experts || whole->experts % p.ep)))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "ep %d does not divide %lld experts", p.ep,
                               (long long)whole->experts);
    int64_t ffn =
        whole->experts && !whole->dense_layers ? whole->expert_ffn : whole->ffn; /* of the blocks that there are */
    if (whole->heads % p.tp || ffn % p.tp || (whole->experts && whole->expert_ffn % p.tp) || p.tp > whole->vocab ||
        (whole->kv_heads % p.tp && p.tp % whole->kv_heads))
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "tp %d does not divide %lld heads and %lld feed-forward columns, or neither divides nor is "
            "a multiple of %lld kv heads",
            p.tp, (long long)whole->heads, (long long)(whole->experts ? whole->expert_ffn : ffn),
            (long long)whole->kv_heads);
    if (p.tp > 1 && whole->qk_norm == RAVEL_QK_NORM_WHOLE)
        return ravel_error_set(
            err, RAVEL_E_UNSUPPORTED,
            "tp %d is not possible for %s: a norm of its queries spans all heads; use --dp, --pp, --cp "
            "or --shard",
            p.tp, ravel__shape_family(whole)->model_type);
    next.tp_rank++;
    RAVEL_ASSERT(p.tp >= 1 && p.tp_rank < p.tp);
    local->heads = whole->heads / p.tp;
    local->kv_heads = train__max(whole->kv_heads / p.tp, 1);
    local->ffn = train__max(whole->ffn / p.tp, 1);
    local->expert_ffn = whole->expert_ffn / p.tp;
    local->vocab = train_slice_vocab(whole, &next) - train_slice_vocab(whole, &p);
    RAVEL_ASSERT(local->heads * p.tp == whole->heads && ffn % p.tp == 0);
    RAVEL_ASSERT(local->heads % local->kv_heads == 0 && local->vocab > 0);
    return RAVEL_OK;
}

/* Where a rank's part begins along its split axis, and how many ranks have the same. */
static int64_t part_first(const ravel_shape *whole, const ravel_shape *local, const train_slice *p, train_split split,
                          int64_t width, int32_t *copies) {
    *copies = 1;
    switch (split) {
    case TRAIN_SPLIT_HEADS:
    case TRAIN_SPLIT_HEADS_IN: return p->tp_rank * local->heads * whole->head_dim;
    case TRAIN_SPLIT_FFN:
    case TRAIN_SPLIT_FFN_IN: return p->tp_rank * width;
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
    int64_t number;     /* of the next tensor in the whole model */
    int64_t of_experts; /* parameters that have been added */
    train_params to;    /* what has been added so far */
} walk;

/* Properties that all tensors of a kind share. */
typedef struct kind {
    const char *name;
    int decay, gap, partial;
    int again; /* another stage has the same tensor */
    int expert;
    train_split split;
    const char *file_name; /* NULL: `name` */
    int64_t file_first, file_rows;
    const char *stacked; /* NULL: none */
    int64_t stacked_dims[3], stacked_first;
} kind;

/* `name` after `prefix`, in the table's memory. */
static const char *keep_name(walk *w, const char *prefix, const char *name) {
    size_t bytes = strlen(prefix) + strlen(name) + 1;
    char *text = w->names ? w->names + w->names_used : NULL;
    if (text) (void)snprintf(text, bytes, "%s%s", prefix, name);
    w->names_used += bytes;
    return text;
}

static int64_t add(walk *w, const char *prefix, const kind *k, const int64_t dims[2], const int64_t whole[2]) {
    const char *name = keep_name(w, prefix, k->name);
    const char *file_name = k->file_name ? keep_name(w, prefix, k->file_name) : name;
    const char *stacked = k->stacked ? keep_name(w, prefix, k->stacked) : NULL;
    int64_t count = dims[1] ? dims[0] * dims[1] : dims[0];
    int64_t offset = k->gap ? train__round_up(w->to.elements, GAP) : w->to.elements;
    RAVEL_ASSERT(dims[0] > 0 && dims[0] <= whole[0] && dims[1] <= whole[1]);
    RAVEL_ASSERT(offset >= w->to.elements && offset % (k->gap ? GAP : 1) == 0);
    if (w->tensors) {
        train_tensor *t = w->tensors + w->to.count;
        int axis = k->split == TRAIN_SPLIT_HEADS_IN || k->split == TRAIN_SPLIT_FFN_IN;
        *t = (train_tensor){.name = name,
                            .rank = dims[1] ? 2 : 1,
                            .decay = k->decay,
                            .dims = {dims[0], dims[1] ? dims[1] : 1},
                            .offset = offset,
                            .count = count,
                            .number = w->number,
                            .expert = k->expert,
                            .file_name = file_name,
                            .file_first = k->file_first,
                            .file_rows = k->file_name ? k->file_rows : whole[0],
                            .whole = {whole[0], whole[1] ? whole[1] : 1}};
        t->first[axis] = part_first(w->whole, &w->local, &w->to.part, k->split, t->dims[axis], &t->copies);
        t->stacked = stacked;
        memcpy(t->stacked_dims, k->stacked_dims, sizeof t->stacked_dims);
        t->stacked_first = k->stacked_first;
        RAVEL_ASSERT(t->copies >= 1 && w->to.part.tp % t->copies == 0);
        t->counted = !k->again && w->to.part.tp_rank % t->copies == 0;
        t->partial = t->copies > 1 && (k->partial || k->split == TRAIN_SPLIT_KV_HEADS);
    }
    w->to.elements = offset + count;
    w->to.parameters += count;
    w->to.count++;
    w->number++;
    return offset;
}

static const struct {
    int first, last;
    const char *name;
} fused_rows[] = {{TRAIN_Q, TRAIN_V, "self_attn.qkv_proj.weight"}, {TRAIN_GATE, TRAIN_UP, "mlp.gate_up_proj.weight"}};
enum { FUSED = sizeof fused_rows / sizeof *fused_rows };

/* Where a family's files have q, k and v as one tensor, and gate and up. */
static void fuse(kind *k, int which, int64_t whole[TRAIN_LAYER_TENSORS][2]) {
    for (int i = 0; i < FUSED; i++) {
        if (which < fused_rows[i].first || which > fused_rows[i].last) continue;
        k->file_name = fused_rows[i].name;
        for (int t = fused_rows[i].first; t <= fused_rows[i].last; t++) {
            if (t < which) k->file_first += whole[t][0];
            k->file_rows += whole[t][0];
        }
    }
}

/* Where transformers keeps the experts of a layer in two tensors, gate and up one after the other. */
static void stack(kind *k, const ravel_shape *shape, int which, int64_t expert) {
    int64_t rows = which == TRAIN_DOWN ? shape->hidden : 2 * shape->expert_ffn;
    int64_t columns = which == TRAIN_DOWN ? shape->expert_ffn : shape->hidden;
    k->stacked = which == TRAIN_DOWN ? "mlp.experts.down_proj" : "mlp.experts.gate_up_proj";
    k->stacked_dims[0] = shape->experts;
    k->stacked_dims[1] = rows;
    k->stacked_dims[2] = columns;
    k->stacked_first = (expert * rows + (which == TRAIN_UP ? shape->expert_ffn : 0)) * columns;
}

typedef struct layer_walk {
    walk *w;
    const char *prefix;
    int64_t layer;
    int64_t dims[TRAIN_LAYER_TENSORS][2], whole[TRAIN_LAYER_TENSORS][2];
} layer_walk;

static int64_t add_tensor(layer_walk *l, int which, int64_t expert) {
    const ravel_shape *shape = l->w->whole;
    char name[64];
    kind k = {.name = name_of(shape, which, expert, name),
              .decay = layer_rows[which].decay,
              .gap = !joined(which),
              .split = layer_rows[which].split};
    if (ravel__shape_family(shape)->fused) fuse(&k, which, l->whole);
    k.expert = expert >= 0;
    if (expert >= 0) stack(&k, shape, which, expert);
    if (which == TRAIN_ROUTER) {
        k.stacked = "mlp.gate.weight";
        memcpy(k.stacked_dims, l->whole[which], sizeof l->whole[which]);
    }
    /* each rank sees its own heads, and what its part of every expert does to the weights of experts */
    k.partial = which == TRAIN_Q_NORM || which == TRAIN_K_NORM || which == TRAIN_ROUTER;
    return add(l->w, l->prefix, &k, l->dims[which], l->whole[which]);
}

/* ---- adapters: A of all targets that are one matrix to the model follow one another, then each one's B ---------
 * Where such targets are one tensor of the family's files they have one A, and their B are one matrix. */

static int is_target(const train_lora *l, int which) {
    return (int)(l->targets >> which & 1);
}

static train_split in_split(train_split split) {
    return split == TRAIN_SPLIT_HEADS_IN || split == TRAIN_SPLIT_FFN_IN ? split : TRAIN_SPLIT_NONE;
}

/* Targets that are one matrix have this half in common. */
static int shares_half(const train_lora *l, int half) {
    return l->family->fused && half == TRAIN_LORA_A;
}

/* name[64] of a half of the target whose weight is called so. */
static const char *half_name(char *name, const char *weight, int half) {
    (void)snprintf(name, 64, "%.*slora_%c.weight", (int)(strlen(weight) - strlen("weight")), weight,
                   half == TRAIN_LORA_B ? 'B' : 'A');
    return name;
}

static int64_t add_half(layer_walk *w, int which, int half, int64_t expert, int gap) {
    const int64_t rank = w->w->to.lora.rank, *local = w->dims[which], *whole = w->whole[which];
    char own[64], name[64], file_name[64];
    train_split split = in_split(layer_rows[which].split);
    int64_t dims[2] = {rank, local[1]}, all[2] = {rank, whole[1]};
    if (half == TRAIN_LORA_B) {
        split = split ? TRAIN_SPLIT_NONE : layer_rows[which].split;
        dims[0] = local[0], all[0] = whole[0];
        dims[1] = all[1] = rank;
    }
    kind k = {.name = half_name(name, name_of(w->w->whole, which, expert, own), half), .decay = 1, .gap = gap};
    k.split = split;
    k.partial = split == TRAIN_SPLIT_NONE;
    k.expert = expert >= 0;
    if (w->w->to.lora.family->fused) fuse(&k, which, w->whole);
    if (k.file_name) k.file_name = half_name(file_name, k.file_name, half);
    if (k.file_name && half == TRAIN_LORA_A) k.name = k.file_name, k.file_name = NULL, k.file_first = 0;
    return add(w->w, w->prefix, &k, dims, all);
}

static void add_halves(layer_walk *l, int first, int end, int64_t expert, int64_t *offsets) {
    const train_lora *lora = &l->w->to.lora;
    for (int half = TRAIN_LORA_A; half <= TRAIN_LORA_B; half++)
        for (int which = first, joins = 0; which < end; which++) {
            if (!is_target(lora, which) || (joins && shares_half(lora, half))) continue;
            int gap = !joins || (half == TRAIN_LORA_B && !lora->family->fused);
            int64_t at = add_half(l, which, half, expert, gap);
            if (offsets) offsets[half * TRAIN_LAYER_TENSORS + which] = at;
            joins = 1;
        }
}

/* ---- layers, of a model or of its adapter ----------------------------------------------------------------- */

/* Tensors of a layer's `which`. */
static int64_t tensors_of_one(const walk *w, int64_t layer, int which) {
    const train_lora *l = &w->to.lora;
    if (!l->rank) return has(w->whole, layer, which);
    return is_target(l, which) ? 2 - (joined(which) && shares_half(l, TRAIN_LORA_A)) : 0;
}

/* Tensors first .. end - 1 of a layer; of all its experts, or of one. */
static int64_t tensors_of(const walk *w, int64_t layer, int first, int end) {
    int64_t count = 0;
    for (int which = first; which < end; which++) count += tensors_of_one(w, layer, which);
    return count;
}

static int64_t tensors_of_layer(const walk *w, int64_t layer) {
    int64_t experts = ravel_shape_has_experts(w->whole, layer) ? w->whole->experts : 1;
    return tensors_of(w, layer, 0, TRAIN_LAYER_TENSORS) +
           (experts - 1) * tensors_of(w, layer, TRAIN_GATE, TRAIN_DOWN + 1);
}

/* The first tensor after `first` that does not continue its matrix. */
static int group_end(int first) {
    int end = first + 1;
    while (end < TRAIN_LAYER_TENSORS && joined(end)) end++;
    return end;
}

/* What is one matrix: that tensor and those that continue it. */
static void add_group(layer_walk *l, int first, int64_t expert, int64_t *offsets) {
    const int end = group_end(first);
    if (l->w->to.lora.rank) {
        add_halves(l, first, end, expert, offsets);
        return;
    }
    for (int which = first; which < end; which++) {
        if (!has(l->w->whole, l->layer, which)) continue;
        int64_t at = add_tensor(l, which, expert);
        if (offsets) offsets[which] = at;
    }
}

/* gate, up and down of every expert. */
static void add_experts(layer_walk *l, int64_t *offsets) {
    train_params *to = &l->w->to;
    const int64_t each = tensors_of(l->w, l->layer, TRAIN_GATE, TRAIN_DOWN + 1), begin = to->expert_first;
    const int64_t end = begin + to->expert_count, before = to->parameters;
    int64_t first = -1;
    l->w->number += each * begin;
    for (int64_t e = begin; e < end; e++) {
        int64_t at = train__round_up(to->elements, GAP);
        if (e == begin) first = at;
        if (e == begin + 1) to->expert_stride = at - first;
        add_group(l, TRAIN_GATE, e, e == begin ? offsets : NULL);
        add_group(l, TRAIN_DOWN, e, e == begin ? offsets : NULL);
    }
    l->w->number += each * (l->w->whole->experts - end);
    l->w->of_experts += to->parameters - before;
}

static void add_layer(walk *w, table *t, int64_t layer) {
    char prefix[80];
    int sparse = ravel_shape_has_experts(w->whole, layer), halves = w->to.lora.rank ? 2 : 1;
    layer_walk l = {.w = w, .prefix = prefix, .layer = layer};
    int64_t *offsets = t ? t->layer_offsets + halves * layer * TRAIN_LAYER_TENSORS : NULL, experts = -1;
    (void)snprintf(prefix, sizeof prefix, "%smodel.layers.%lld.", w->to.lora.rank ? "base_model.model." : "",
                   (long long)layer);
    layer_dims(&w->local, sparse, l.dims);
    layer_dims(w->whole, sparse, l.whole);
    for (int first = 0; first < TRAIN_LAYER_TENSORS; first = group_end(first)) {
        if (!sparse || !is_feed(first))
            add_group(&l, first, -1, offsets);
        else if (first == TRAIN_GATE && w->to.part.ep == 1)
            add_experts(&l, offsets);
        else if (first == TRAIN_GATE) {
            experts = w->number;
            w->number += w->whole->experts * tensors_of(w, layer, TRAIN_GATE, TRAIN_DOWN + 1);
        }
    }
    if (experts < 0) return;
    int64_t end = w->number;
    w->number = experts;
    add_experts(&l, offsets);
    w->number = end;
}

static void add_all(walk *w, table *t) {
    const ravel_shape *s = w->whole;
    const int64_t matrix[2] = {w->local.vocab, s->hidden}, whole[2] = {s->vocab, s->hidden}, vector[2] = {s->hidden, 0};
    int model = !w->to.lora.rank; /* else layers alone */
    int first = model && w->to.part.first_layer == 0, last = model && w->to.part.last_layer == s->layers;
    const kind embed = {
        .name = "model.embed_tokens.weight", .decay = 1, .gap = 1, .again = !first, .split = TRAIN_SPLIT_VOCAB};
    const kind norm = {.name = "model.norm.weight", .gap = 1};
    const kind head = {.name = "lm_head.weight", .decay = 1, .gap = 1, .split = TRAIN_SPLIT_VOCAB};
    w->to.embedding = w->to.norm = w->to.head = -1;
    if (first || (last && s->tied)) w->to.embedding = add(w, "", &embed, matrix, whole);
    w->number = model;
    for (int64_t layer = 0; layer < w->to.part.first_layer; layer++) w->number += tensors_of_layer(w, layer);
    for (int64_t layer = w->to.part.first_layer; layer < w->to.part.last_layer; layer++) add_layer(w, t, layer);
    if (last) w->to.norm = add(w, "", &norm, vector, vector);
    if (last) w->to.head = s->tied ? w->to.embedding : add(w, "", &head, matrix, whole);
    w->to.elements = train__round_up(w->to.elements, GAP);
}

/* ---- calls ---------------------------------------------------------------------------------------------- */

static ravel_status check(const ravel_shape *shape, ravel_error *err) {
    ravel_status status = ravel_shape_check(shape, err);
    if (status) return status;
    const char *what = shape->kv_rank      ? "latent attention"
                       : shape->shared_ffn ? "experts that every token goes to"
                                           : NULL;
    if (shape->experts && !ravel__shape_family(shape)->router) what = "the experts of this model_type";
    if (!shape->gated) what = "a feed-forward block without a gate";
    if (shape->rope == RAVEL_ROPE_OTHER) what = "this kind of rope scaling";
    if (what)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the trainer has no kernels for %s; it takes models with gated feed-forward blocks "
                               "or experts",
                               what);
    if (shape->experts * shape->layers > 1 << 20) /* of at most 2^31 and 65536; the table has a row for each matrix */
        return ravel_error_set(err, RAVEL_E_OVERFLOW, "the model has more than 2^20 experts in its %lld layers",
                               (long long)shape->layers);
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
    RAVEL_ASSERT(tensor < t->view.count);
    units[(*count)++] = (train_unit){.first = offset, .tensor = tensor};
}

/* Where the first of a layer's tensors first .. end - 1 begins; -1: it has none of them. */
static int64_t layer_begin(const table *t, int64_t layer, int first, int end) {
    int halves = t->view.lora.rank ? 2 : 1;
    const int64_t *offsets = t->layer_offsets + halves * layer * TRAIN_LAYER_TENSORS;
    int64_t least = -1;
    for (int half = 0; half < halves; half++, offsets += TRAIN_LAYER_TENSORS)
        for (int i = first; i < end; i++)
            if (offsets[i] >= 0 && (least < 0 || offsets[i] < least)) least = offsets[i];
    return least;
}

/* Where a layer's experts begin; `tensor` is the layer's first one. -1: it has none. */
static int64_t experts_begin(const table *t, int64_t layer, int64_t tensor) {
    int64_t at = layer_begin(t, layer, TRAIN_GATE, TRAIN_DOWN + 1);
    while (at >= 0 && t->view.tensors[tensor].offset != at) tensor++;
    return at >= 0 && t->view.tensors[tensor].expert ? at : -1;
}

static void fill_units(table *t, train_unit *units) {
    train_params *p = &t->view;
    int64_t count = 0;
    begin_unit(t, units, &count, p->embedding);
    for (int64_t layer = p->part.first_layer; layer < p->part.last_layer; layer++) {
        begin_unit(t, units, &count, layer_begin(t, layer, 0, TRAIN_LAYER_TENSORS));
        int64_t experts = p->part.ep == 1 ? -1 : experts_begin(t, layer, units[count - 1].tensor);
        if (experts < 0) continue;
        begin_unit(t, units, &count, experts);
        units[count - 1].experts = 1;
    }
    begin_unit(t, units, &count, p->norm);
    for (int64_t i = 0; i < count; i++) {
        train_unit *u = &units[i];
        u->count = (i + 1 < count ? units[i + 1].first : p->elements) - u->first;
        u->tensors = (i + 1 < count ? units[i + 1].tensor : p->count) - u->tensor;
    }
    for (int64_t i = 0; i < count; i++) RAVEL_ASSERT(units[i].count > 0 && units[i].tensors > 0);
    p->units = units;
    p->unit_count = count;
}

static int compare_names(const void *a, const void *b) {
    return strcmp((*(const train_tensor *const *)a)->name, (*(const train_tensor *const *)b)->name);
}

ravel_status train_params_create(const ravel_shape *shape, const train_slice *part, const ravel_allocator *allocator,
                                 train_params **params, ravel_error *err) {
    return train_trained_params(shape, part, NULL, allocator, params, err);
}

/* Targets that are one tensor of the files are one target; and a layer has more than what ranks share out. */
static ravel_status check_targets(const train_lora *l, int32_t ep, ravel_error *err) {
    for (int i = 0; i < FUSED && l->family->fused; i++) {
        uint32_t all = (UINT32_C(2) << fused_rows[i].last) - (UINT32_C(1) << fused_rows[i].first);
        if ((l->targets & all) == 0 || (l->targets & all) == all) continue;
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "targets of an adapter of %s are qkv_proj, o_proj, gate_up_proj and down_proj: q, k and v "
            "are one tensor of its files, and gate and up, with one adapter",
            l->family->model_type);
    }
    if (ep == 1 || l->targets & ((UINT32_C(1) << TRAIN_GATE) - 1)) return RAVEL_OK;
    return ravel_error_set(
        err, RAVEL_E_ARGUMENT,
        "with --ep an adapter needs a target beside the experts: add q_proj, k_proj, v_proj or o_proj");
}

/* What is walked over: the checks, and the shape of the part. */
static ravel_status begin_walk(walk *w, const ravel_shape *shape, const train_slice *part, const train_lora *lora,
                               ravel_error *err) {
    *w = (walk){.whole = shape, .to.part = filled_in(shape, part)};
    if (lora) w->to.lora = *lora;
    train_lora *l = &w->to.lora;
    ravel_status status = check(shape, err);
    if (!status && l->rank) status = train_lora_check(lora, err);
    l->family = ravel__shape_family(shape);
    if (!status && l->rank) status = check_targets(l, w->to.part.ep, err);
    if (!status) status = train_slice_shape(shape, part, &w->local, err);
    w->to.expert_count = shape->experts / w->to.part.ep;
    w->to.expert_first = w->to.expert_count * w->to.part.ep_rank;
    return status;
}

int64_t train_trained_parameters(const ravel_shape *shape, const train_lora *lora, int active) {
    walk w;
    if (begin_walk(&w, shape, NULL, lora, NULL)) return 0;
    add_all(&w, NULL);
    if (!active) return w.to.parameters;
    return w.to.parameters -
           (shape->experts ? w.of_experts / shape->experts * (shape->experts - shape->experts_active) : 0);
}

ravel_status train_trained_params(const ravel_shape *shape, const train_slice *part, const train_lora *lora,
                                  const ravel_allocator *allocator, train_params **params, ravel_error *err) {
    walk sizes;
    ravel_status status = begin_walk(&sizes, shape, part, lora, err);
    if (status) return status;
    int64_t places = shape->layers * TRAIN_LAYER_TENSORS * (sizes.to.lora.rank ? 2 : 1);
    walk fill = sizes;
    add_all(&sizes, NULL);
    train__arena arena = {.allocator = allocator};
    table *t = train__arena_take(&arena, sizeof *t);
    int64_t *offsets = train__arena_take_array(&arena, places, sizeof *offsets);
    TRAIN__TAKE(&arena, fill.tensors, sizes.to.count);
    TRAIN__TAKE(&arena, fill.names, (int64_t)sizes.names_used);
    train_unit *units = train__arena_take_array(&arena, 2 * shape->layers + 2, sizeof *units);
    const train_tensor **by_name = train__arena_take_array(&arena, sizes.to.count, sizeof(train_tensor *));
    status = train__arena_status(&arena, "the table of parameters", err);
    if (status) {
        train__arena_free(&arena);
        return status;
    }
    for (int64_t i = 0; i < places; i++) offsets[i] = -1;
    t->layer_offsets = offsets;
    add_all(&fill, t);
    RAVEL_ASSERT(fill.to.count == sizes.to.count && fill.to.elements == sizes.to.elements &&
                 fill.names_used == sizes.names_used);
    t->view = fill.to;
    t->view.unit_norms = ravel__shape_family(shape)->unit_norms;
    t->view.tensors = fill.tensors;
    fill_units(t, units);
    t->by_name = by_name;
    for (int64_t i = 0; i < fill.to.count; i++) by_name[i] = fill.tensors + i;
    qsort(by_name, (size_t)fill.to.count, sizeof(train_tensor *), compare_names);
    t->arena = arena;
    RAVEL_ASSERT(params_ok(&t->view));
    *params = &t->view;
    return RAVEL_OK;
}

void train_params_free(train_params *params) {
    if (!params) return;
    train__arena arena = ((table *)params)->arena; /* which holds the table itself */
    train__arena_free(&arena);
}

const train_tensor *train_params_find(const train_params *params, const char *name) {
    const train_tensor *const *sorted = ((const table *)params)->by_name;
    int64_t low = 0, high = params->count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        int order = strcmp(sorted[middle]->name, name);
        if (order == 0) return sorted[middle];
        *(order < 0 ? &low : &high) = order < 0 ? middle + 1 : middle;
    }
    return NULL;
}

int64_t train_params_layer(const train_params *params, int64_t layer, train_layer_tensor which) {
    RAVEL_ASSERT(layer >= 0 && which >= 0 && which < TRAIN_LAYER_TENSORS && !params->lora.rank);
    return ((const table *)params)->layer_offsets[layer * TRAIN_LAYER_TENSORS + (int)which];
}

int64_t train_params_lora(const train_params *params, int64_t layer, train_layer_tensor which, int half) {
    RAVEL_ASSERT(layer >= 0 && which >= 0 && which < TRAIN_LAYER_TENSORS && params->lora.rank);
    return ((const table *)params)->layer_offsets[(2 * layer + half) * TRAIN_LAYER_TENSORS + (int)which];
}

int64_t train_params_unit(const train_params *params, int64_t offset) {
    int64_t low = 0, high = params->unit_count;
    RAVEL_ASSERT(offset >= 0 && offset < params->elements);
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (params->units[middle].first <= offset)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int64_t train_params_tensor_at(const train_params *params, int64_t offset) {
    const train_unit *u = &params->units[train_params_unit(params, offset)];
    int64_t i = u->tensor;
    while (i + 1 < u->tensor + u->tensors && params->tensors[i + 1].offset <= offset) i++;
    return i;
}

int64_t train_params_layer_unit(const train_params *params, int64_t layer) {
    RAVEL_ASSERT(layer >= params->part.first_layer && layer < params->part.last_layer);
    if (params->part.ep == 1) return (params->embedding >= 0) + layer - params->part.first_layer;
    return train_params_unit(params, layer_begin((const table *)params, layer, 0, TRAIN_LAYER_TENSORS));
}

int64_t train_params_expert_unit(const train_params *params, int64_t layer) {
    int64_t unit = train_params_layer_unit(params, layer) + 1;
    return unit < params->unit_count && params->units[unit].experts ? unit : -1;
}
