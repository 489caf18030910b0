#include "train/model/hf/gguf.h"

#include "base/assert.h"
#include "base/model/family.h"
#include "base/model/shape.h"
#include "base/system/file.h"
#include "train/kernels/host.h"
#include "train/model/hf/arch.h"
#include "train/model/hf/files.h"
#include "train/model/hf/hf.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

enum { ALIGN = 32, BLOCK = 32, NAME = 64 };
enum { GGML_F32 = 0, GGML_F16 = 1, GGML_Q8_0 = 8, GGML_BF16 = 30 };

/* ---- families -------------------------------------------------------------------------------------------------- */

/* Families of llama.cpp. `norms` are the names of ravel__family's, in their order. */
typedef struct gguf_family {
    const char *model_type, *name;
    int permuted; /* rows of q and k in pairs of the two halves of a head */
    int square;   /* all heads together are as wide as the model */
    const char *norms[RAVEL__LAYER_NORMS];
} gguf_family;

/* clang-format off */ /* versions differ on the braces of a macro */
#define BEFORE {"attn_norm", NULL, "ffn_norm", NULL}
#define AROUND {"attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"}
/* clang-format on */

static const gguf_family families[] = {
    {"llama", "llama", 1, 0, BEFORE},     {"mistral", "llama", 1, 0, BEFORE},
    {"mixtral", "llama", 1, 0, BEFORE},   {"smollm3", "smollm3", 1, 0, BEFORE},
    {"granite", "granite", 1, 0, BEFORE}, {"qwen2", "qwen2", 0, 1, BEFORE},
    {"qwen3", "qwen3", 0, 0, BEFORE},     {"qwen3_moe", "qwen3moe", 0, 0, BEFORE},
    {"olmoe", "olmoe", 0, 1, BEFORE},     {"gemma3_text", "gemma3", 0, 0, AROUND},
    {"olmo2", "olmo2", 0, 1, AROUND},     {"phi3", "phi3", 0, 1, BEFORE},
};

/* Tensors of a layer: parts whose rows follow one another. */
typedef enum head_kind { PLAIN, OF_Q, OF_K } head_kind;
typedef struct layer_row {
    const char *name, *parts[3];
    head_kind heads; /* whose rows are permuted where the family's are */
    int fused;       /* 1: of families with fused tensors, 0: of the others, 2: of all */
} layer_row;

static const layer_row layer_rows[] = {
    {"attn_q.weight", {"self_attn.q_proj.weight"}, OF_Q, 0},
    {"attn_k.weight", {"self_attn.k_proj.weight"}, OF_K, 0},
    {"attn_v.weight", {"self_attn.v_proj.weight"}, PLAIN, 0},
    {"attn_qkv.weight", {"self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"}, PLAIN, 1},
    {"attn_q.bias", {"self_attn.q_proj.bias"}, PLAIN, 2},
    {"attn_k.bias", {"self_attn.k_proj.bias"}, PLAIN, 2},
    {"attn_v.bias", {"self_attn.v_proj.bias"}, PLAIN, 2},
    {"attn_output.weight", {"self_attn.o_proj.weight"}, PLAIN, 2},
    {"attn_q_norm.weight", {"self_attn.q_norm.weight"}, PLAIN, 2},
    {"attn_k_norm.weight", {"self_attn.k_norm.weight"}, PLAIN, 2},
    {"ffn_gate.weight", {"mlp.gate_proj.weight"}, PLAIN, 0},
    {"ffn_up.weight", {"mlp.up_proj.weight"}, PLAIN, 0},
    {"ffn_up.weight", {"mlp.gate_proj.weight", "mlp.up_proj.weight"}, PLAIN, 1},
    {"ffn_down.weight", {"mlp.down_proj.weight"}, PLAIN, 2},
};

static ravel_status lacks(ravel_error *err, const char *what) {
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "llama.cpp has no %s", what);
}

/* What llama.cpp takes as given of a family. */
static ravel_status check(const ravel_shape *s, const gguf_family *r, ravel_error *err) {
    double scale = s->attention_scale > 0 ? s->attention_scale * sqrt((double)s->head_dim) : 1;
    int always = strcmp(r->name, "qwen3moe") == 0 || strcmp(r->model_type, "mixtral") == 0;
    if (s->window && s->window_every && s->window_every != 6)
        return lacks(err, "models whose layers see all keys other than every sixth");
    if (s->rope_local > 0 && s->rope_local != 1e4) return lacks(err, "local rope base other than 10000");
    if (s->rope_every && s->rope_every != 4) return lacks(err, "layers without rope other than every fourth");
    if (s->rope_local > 0 && fabs(scale - 1) > 1e-6) return lacks(err, "such a scale of attention scores");
    int usual = s->rope_low == 1 && s->rope_high == 32 && !s->rope_exact &&
                fabs(s->rope_attention - .1 * log(s->rope_factor) - 1) < 1e-6;
    if (s->rope == RAVEL_ROPE_YARN && !usual) return lacks(err, "such a yarn: beta_fast 32 and beta_slow 1 alone");
    if (s->experts && (s->dense_layers || s->shared_ffn))
        return lacks(err, "dense layers or shared experts beside these");
    if (r->square && s->heads * s->head_dim != s->hidden)
        return lacks(err, "models of this family whose heads together are not as wide as the model (head_dim)");
    if (strcmp(r->name, "olmoe") == 0 && s->kv_heads != s->heads)
        return lacks(err, "models of this family with fewer key heads than heads");
    if (s->experts && always != (s->router_norm != 0)) return lacks(err, "such weights of experts (norm_topk_prob)");
    return RAVEL_OK;
}

/* Up to so many tokens it computes the same: of sliding windows it has those of Gemma 3 alone. */
static int64_t context_of(const ravel_shape *s, const gguf_family *r) {
    int all = !s->window || strcmp(r->name, "gemma3") == 0;
    return all ? s->max_positions : s->max_positions ? train__min(s->max_positions, s->window) : s->window;
}

/* ---- metadata -------------------------------------------------------------------------------------------------- */

void train_gguf_put(train_gguf_head *h, const void *bytes, size_t count) {
    if (!h->status)
        h->status = ravel__buffer_reserve(&h->text, NULL, (int64_t)(h->bytes + count), 1, "metadata", h->err);
    if (h->status || count == 0) return;
    RAVEL_ASSERT(h->text.at);
    memcpy((char *)h->text.at + h->bytes, bytes, count);
    h->bytes += count;
}

void train_gguf_put_text(train_gguf_head *h, const char *text, size_t bytes) {
    uint64_t length = bytes;
    train_gguf_put(h, &length, sizeof length);
    train_gguf_put(h, text, bytes);
}

static void put_key(train_gguf_head *h, const char *key, uint32_t type) {
    train_gguf_put_text(h, key, strlen(key));
    train_gguf_put(h, &type, sizeof type);
    h->count++;
}

void train_gguf_text(train_gguf_head *h, const char *key, const char *value, size_t bytes) {
    put_key(h, key, 8);
    train_gguf_put_text(h, value, bytes);
}

void train_gguf_u32(train_gguf_head *h, const char *key, int64_t value) {
    uint32_t number = (uint32_t)value;
    put_key(h, key, 4);
    train_gguf_put(h, &number, sizeof number);
}

void train_gguf_f32(train_gguf_head *h, const char *key, double value) {
    float number = (float)value;
    put_key(h, key, 6);
    train_gguf_put(h, &number, sizeof number);
}

void train_gguf_bool(train_gguf_head *h, const char *key, int value) {
    uint8_t flag = value != 0;
    put_key(h, key, 7);
    train_gguf_put(h, &flag, 1);
}

void train_gguf_list(train_gguf_head *h, const char *key, uint32_t type, uint64_t count) {
    put_key(h, key, 9);
    train_gguf_put(h, &type, sizeof type);
    train_gguf_put(h, &count, sizeof count);
}

typedef struct named {
    const char *key;
    double value;
    int real, there;
} named;

/* The folder's own name. */
static void put_name(train_gguf_head *h, const char *model) {
    size_t end = strlen(model), first;
    while (end > 1 && model[end - 1] == '/') end--;
    for (first = end; first > 0 && model[first - 1] != '/';) first--;
    train_gguf_text(h, "general.type", "model", 5);
    train_gguf_text(h, "general.name", model + first, end - first);
}

static void put_sizes(train_gguf_head *h, const ravel_shape *s, const gguf_family *r, int32_t type) {
    static const int32_t file_types[] = {0, 32, 1, 7};
    const int linear = s->rope == RAVEL_ROPE_LINEAR, yarn = s->rope == RAVEL_ROPE_YARN;
    const named list[] = {
        {"vocab_size", (double)s->vocab, 0, 1},
        {"context_length", (double)context_of(s, r), 0, context_of(s, r) > 0},
        {"embedding_length", (double)s->hidden, 0, 1},
        {"block_count", (double)s->layers, 0, 1},
        {"feed_forward_length", (double)(s->ffn ? s->ffn : s->expert_ffn), 0, 1},
        {"attention.head_count", (double)s->heads, 0, 1},
        {"attention.head_count_kv", (double)s->kv_heads, 0, 1},
        {"attention.key_length", (double)s->head_dim, 0, 1},
        {"attention.value_length", (double)s->head_dim, 0, 1},
        {"rope.dimension_count", (double)ravel__shape_rotated(s), 0, 1},
        {"rope.freq_base", s->rope_theta, 1, 1},
        {"attention.layer_norm_rms_epsilon", s->norm_eps, 1, 1},
        {"rope.scaling.factor", s->rope_factor, 1, linear || yarn},
        {"rope.scaling.attn_factor", s->rope_attention, 1, s->rope == RAVEL_ROPE_LONG},
        {"rope.scaling.original_context_length", (double)s->rope_positions, 0, yarn || s->rope == RAVEL_ROPE_LONG},
        {"attention.sliding_window", (double)s->window, 0,
         strcmp(r->name, "phi3") == 0 || (s->window > 0 && strcmp(r->name, "gemma3") == 0)},
        {"expert_count", (double)s->experts, 0, s->experts > 0},
        {"expert_used_count", (double)s->experts_active, 0, s->experts > 0},
        {"expert_feed_forward_length", (double)s->expert_ffn, 0, s->experts > 0},
        {"attention.scale", s->attention_scale, 1, strcmp(r->name, "granite") == 0},
        {"embedding_scale", s->embedding_scale, 1, strcmp(r->name, "granite") == 0},
        {"residual_scale", s->residual_scale, 1, strcmp(r->name, "granite") == 0},
        {"logit_scale", s->logits_scale, 1, strcmp(r->name, "granite") == 0}};
    char key[NAME];
    train_gguf_text(h, "general.architecture", r->name, strlen(r->name));
    train_gguf_u32(h, "general.file_type", file_types[type]);
    if (type == TRAIN_GGUF_Q8_0) train_gguf_u32(h, "general.quantization_version", 2);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        (void)snprintf(key, sizeof key, "%s.%s", r->name, list[i].key);
        if (list[i].there && list[i].real && list[i].value != 0) train_gguf_f32(h, key, list[i].value);
        if (list[i].there && !list[i].real) train_gguf_u32(h, key, (int64_t)list[i].value);
    }
    (void)snprintf(key, sizeof key, "%s.rope.scaling.type", r->name);
    if (linear || yarn) train_gguf_text(h, key, linear ? "linear" : "yarn", linear ? 6 : 4);
}

/* ---- tensors --------------------------------------------------------------------------------------------------- */

typedef struct tensor {
    char name[NAME];
    int64_t first, count; /* of the parts in export.parts */
    int64_t dims[3];      /* columns first */
    int32_t rank, type;   /* of ggml */
    head_kind heads;
    const float *numbers; /* instead of parts */
    int norm;             /* a vector that multiplies, with 1 added where the family's files lack it */
    int64_t offset;
} tensor;

typedef struct export {
    ravel_shape shape;
    const ravel__family *family;
    const gguf_family *row;
    train_params *params;
    ravel_safetensors *file;
    int32_t type;
    ravel__buffer tensors, parts; /* tensor; const train_tensor * */
    int64_t tensor_count, part_count;
    float *rope; /* [rotated / 2] of llama3's rope; NULL: none */
    ravel_error *err;
}
export;

static int64_t columns_of(const train_tensor *t) {
    return t->rank == 2 ? t->whole[1] : t->whole[0];
}

static int64_t rows_of(const train_tensor *t) {
    return t->rank == 2 ? t->whole[0] : 1;
}

static int32_t type_of(const export *e, int64_t columns, int32_t rank) {
    static const int32_t types[] = {GGML_F32, GGML_BF16, GGML_F16, GGML_Q8_0};
    if (rank == 1) return GGML_F32;
    return e->type == TRAIN_GGUF_Q8_0 && columns % BLOCK ? GGML_F16 : types[e->type];
}

static int64_t row_bytes(int32_t type, int64_t columns) {
    return type == GGML_F32 ? 4 * columns : type == GGML_Q8_0 ? columns / BLOCK * (BLOCK + 2) : 2 * columns;
}

static tensor *push(export *e, ravel_status *status) {
    *status = ravel__buffer_reserve(&e->tensors, NULL, e->tensor_count + 1, sizeof(tensor), "tensors", e->err);
    if (*status) return NULL;
    tensor *t = (tensor *)e->tensors.at + e->tensor_count++;
    *t = (tensor){.first = e->part_count};
    return t;
}

/* A tensor of the parts that there are; of none: no tensor. `stack`: as many matrices of a third dimension. */
static ravel_status add(export *e, const char *name, const train_tensor *const *parts, int64_t count, int64_t stack,
                        head_kind heads, int norm) {
    ravel_status status;
    if (count == 0) return RAVEL_OK;
    tensor *t = push(e, &status);
    if (!t) return status;
    status = ravel__buffer_reserve(&e->parts, NULL, e->part_count + count, sizeof(train_tensor *), "tensors", e->err);
    if (status) return status;
    int64_t rows = 0;
    for (int64_t i = 0; i < count; i++) {
        ((const train_tensor **)e->parts.at)[e->part_count++] = parts[i];
        rows += rows_of(parts[i]);
    }
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->count = count;
    t->rank = stack ? 3 : parts[0]->rank;
    t->dims[0] = columns_of(parts[0]);
    t->dims[1] = stack ? rows / stack : t->rank == 2 ? rows : 1;
    t->dims[2] = stack ? stack : 1;
    t->heads = heads;
    t->norm = norm;
    /* routers stay exact, as the converter of llama.cpp has it */
    t->type = strstr(name, "ffn_gate_inp") ? GGML_F32 : type_of(e, t->dims[0], t->rank);
    return RAVEL_OK;
}

static ravel_status add_one(export *e, const char *name, const char *from, head_kind heads, int norm) {
    const train_tensor *t = train_params_find(e->params, from);
    return add(e, name, &t, t ? 1 : 0, 0, heads, norm);
}

static ravel_status add_experts(export *e, int64_t layer) {
    static const char *const names[] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    const ravel__family *f = e->family;
    const train_tensor *parts[1024];
    char from[160], name[NAME];
    if (e->shape.experts > 1024) return lacks(e->err, "more than 1024 experts");
    (void)snprintf(from, sizeof from, "model.layers.%lld.%s.weight", (long long)layer, f->router);
    (void)snprintf(name, sizeof name, "blk.%lld.ffn_gate_inp.weight", (long long)layer);
    ravel_status status = add_one(e, name, from, PLAIN, 0);
    for (int k = 0; k < 3 && !status; k++) {
        int64_t count = 0;
        for (int64_t i = 0; i < e->shape.experts; i++) {
            (void)snprintf(from, sizeof from, "model.layers.%lld.%s.%lld.%s.weight", (long long)layer, f->experts[0],
                           (long long)i, f->experts[k + 1]);
            parts[count] = train_params_find(e->params, from);
            count += parts[count] != NULL;
        }
        (void)snprintf(name, sizeof name, "blk.%lld.%s.weight", (long long)layer, names[k]);
        RAVEL_ASSERT(count == e->shape.experts);
        status = add(e, name, parts, count, count, PLAIN, 0);
    }
    return status;
}

static ravel_status add_layer(export *e, int64_t layer) {
    char name[NAME], from[160];
    ravel_status status = RAVEL_OK;
    for (size_t i = 0; i < sizeof layer_rows / sizeof *layer_rows && !status; i++) {
        const layer_row *l = &layer_rows[i];
        const train_tensor *parts[3];
        int64_t count = 0;
        if (l->fused != 2 && l->fused != (e->family->fused != 0)) continue;
        for (int k = 0; k < 3 && l->parts[k]; k++) {
            (void)snprintf(from, sizeof from, "model.layers.%lld.%s", (long long)layer, l->parts[k]);
            parts[count] = train_params_find(e->params, from);
            count += parts[count] != NULL;
        }
        (void)snprintf(name, sizeof name, "blk.%lld.%s", (long long)layer, l->name);
        status = add(e, name, parts, count, 0, e->row->permuted ? l->heads : PLAIN, strstr(l->name, "norm") != NULL);
    }
    for (int i = 0; i < RAVEL__LAYER_NORMS && !status; i++) {
        if (!e->family->norms[i]) continue;
        RAVEL_ASSERT(e->row->norms[i]);
        (void)snprintf(from, sizeof from, "model.layers.%lld.%s.weight", (long long)layer, e->family->norms[i]);
        (void)snprintf(name, sizeof name, "blk.%lld.%s.weight", (long long)layer, e->row->norms[i]);
        status = add_one(e, name, from, PLAIN, 1);
    }
    return status || !e->shape.experts ? status : add_experts(e, layer);
}

static ravel_status add_numbers(export *e, const char *name, const float *numbers, int64_t count) {
    ravel_status status;
    tensor *t = push(e, &status);
    if (!t) return status;
    (void)snprintf(t->name, sizeof t->name, "%s", name);
    t->numbers = numbers;
    t->rank = 1;
    t->dims[0] = count;
    t->dims[1] = t->dims[2] = 1;
    return RAVEL_OK;
}

/* What each frequency of a llama3 or longrope is divided by. */
static ravel_status add_rope(export *e) {
    const ravel_shape *s = &e->shape;
    int64_t half = ravel__shape_rotated(s) / 2;
    if (s->rope == RAVEL_ROPE_LONG) {
        ravel_status status = add_numbers(e, "rope_factors_long.weight", s->rope_long, half);
        return status ? status : add_numbers(e, "rope_factors_short.weight", s->rope_short, half);
    }
    if (s->rope != RAVEL_ROPE_LLAMA3) return RAVEL_OK;
    e->rope = ravel__calloc(NULL, (size_t)half, sizeof *e->rope);
    if (!e->rope) return ravel__no_memory(e->err, (size_t)half * 4, "rope");
    for (int64_t i = 0; i < half; i++)
        e->rope[i] = (float)(ravel__shape_plain_frequency(s, s->rope_theta, i) / ravel__shape_frequency(s, 0, i));
    return add_numbers(e, "rope_freqs.weight", e->rope, half);
}

static ravel_status list_tensors(export *e) {
    ravel_status status = add_one(e, "token_embd.weight", "model.embed_tokens.weight", PLAIN, 0);
    if (!status) status = add_one(e, "output_norm.weight", "model.norm.weight", PLAIN, 1);
    if (!status) status = add_one(e, "output.weight", "lm_head.weight", PLAIN, 0);
    if (!status) status = add_rope(e);
    for (int64_t layer = 0; layer < e->shape.layers && !status; layer++) status = add_layer(e, layer);
    int64_t at = 0;
    for (int64_t i = 0; i < e->tensor_count; i++) {
        tensor *t = (tensor *)e->tensors.at + i;
        t->offset = at;
        at += train__round_up(row_bytes(t->type, t->dims[0]) * t->dims[1] * t->dims[2], ALIGN);
    }
    return status;
}

/* ---- data ------------------------------------------------------------------------------------------------------ */

/* Row `row` of a tensor of the table, from the folder's files. */
static ravel_status read_row(const export *e, const train_tensor *t, int64_t row, float *to) {
    const int64_t columns = columns_of(t);
    train_tensor_file from = {0};
    ravel_status status = train_tensor_find(t, e->file, &from, e->err);
    if (status) return status;
    return ravel_safetensor_read(from.tensor, from.first + row * columns, columns, RAVEL_F32, to, e->err);
}

static void to_q8(const float *x, int64_t columns, uint8_t *out) {
    for (int64_t b = 0; b < columns; b += BLOCK, out += BLOCK + 2) {
        float most = 0;
        for (int i = 0; i < BLOCK; i++) most = fmaxf(most, fabsf(x[b + i]));
        float scale = most / 127, inverse = scale > 0 ? 1 / scale : 0;
        (void)ravel_dtype_convert(RAVEL_F32, &scale, RAVEL_F16, out, 1, NULL);
        for (int i = 0; i < BLOCK; i++) out[2 + i] = (uint8_t)(int8_t)roundf(x[b + i] * inverse);
    }
}

/* What is larger would become infinite. */
static float largest(int32_t type) {
    return type == GGML_F16 ? 65504 : type == GGML_Q8_0 ? 127 * 65504.F : type == GGML_BF16 ? 3.3895314e38F : FLT_MAX;
}

static ravel_status check_row(const tensor *t, const float *x, ravel_error *err) {
    const float most = largest(t->type);
    for (int64_t i = 0; i < t->dims[0]; i++) {
        if (fabsf(x[i]) <= most) continue;
        if (!isfinite(x[i])) return ravel_error_set(err, RAVEL_E_DATA, "%s holds NaN or infinity", t->name);
        return ravel_error_set(err, RAVEL_E_DATA, "%s holds %g, which this type cannot: take another --type", t->name,
                               (double)x[i]);
    }
    return RAVEL_OK;
}

static ravel_status convert(int32_t type, const float *x, int64_t columns, void *out, ravel_error *err) {
    if (type == GGML_Q8_0) return to_q8(x, columns, out), RAVEL_OK;
    return ravel_dtype_convert(RAVEL_F32, x,
                               type == GGML_F32   ? RAVEL_F32
                               : type == GGML_F16 ? RAVEL_F16
                                                  : RAVEL_BF16,
                               out, columns, err);
}

/* The row that stands at place `row` of a permuted matrix: pairs (i, i + d / 2) of a head become neighbours. */
static int64_t source_row(int64_t row, int64_t dim) {
    int64_t in = row % dim;
    return row - in + in % 2 * (dim / 2) + in / 2;
}

static ravel_status write_tensor(const export *e, const tensor *t, float *x, void *out, FILE *file) {
    const train_tensor *const *parts = (const train_tensor *const *)e->parts.at + t->first;
    size_t bytes = (size_t)row_bytes(t->type, t->dims[0]), written = 0;
    static const char zeros[ALIGN];
    ravel_status status = RAVEL_OK;
    if (!t->count) written = fwrite(t->numbers, 1, bytes, file);
    for (int64_t p = 0; p < t->count && !status; p++)
        for (int64_t r = 0; r < rows_of(parts[p]) && !status; r++) {
            status = read_row(e, parts[p], t->heads != PLAIN ? source_row(r, e->shape.head_dim) : r, x);
            for (int64_t i = 0; t->norm && e->family->unit_norms && i < t->dims[0]; i++) x[i] += 1;
            if (!status) status = check_row(t, x, e->err);
            if (!status) status = convert(t->type, x, t->dims[0], out, e->err);
            if (!status) written += fwrite(out, 1, bytes, file);
        }
    (void)fwrite(zeros, 1, (ALIGN - written % ALIGN) % ALIGN, file); /* a failure shows when the file is closed */
    return status;
}

static void put_infos(train_gguf_head *h, const export *e) {
    for (int64_t i = 0; i < e->tensor_count; i++) {
        const tensor *t = (const tensor *)e->tensors.at + i;
        uint32_t rank = (uint32_t)t->rank, type = (uint32_t)t->type;
        uint64_t offset = (uint64_t)t->offset;
        train_gguf_put_text(h, t->name, strlen(t->name));
        train_gguf_put(h, &rank, sizeof rank);
        for (int k = 0; k < t->rank; k++) train_gguf_put(h, &t->dims[k], sizeof t->dims[k]);
        train_gguf_put(h, &type, sizeof type);
        train_gguf_put(h, &offset, sizeof offset);
    }
}

static ravel_status write_data(const export *e, FILE *file) {
    int64_t widest = 1;
    for (int64_t i = 0; i < e->tensor_count; i++)
        widest = train__max(widest, ((const tensor *)e->tensors.at)[i].dims[0]);
    float *x = ravel__calloc(NULL, (size_t)widest, sizeof *x), *out = ravel__calloc(NULL, (size_t)widest, sizeof *out);
    ravel_status status = x && out ? RAVEL_OK : ravel__no_memory(e->err, (size_t)widest * 8, "a row");
    for (int64_t i = 0; i < e->tensor_count && !status; i++)
        status = write_tensor(e, (const tensor *)e->tensors.at + i, x, out, file);
    ravel__release(NULL, x, (size_t)widest * sizeof *x);
    ravel__release(NULL, out, (size_t)widest * sizeof *out);
    return status;
}

static ravel_status write_file(const export *e, train_gguf_head *h, const char *out) {
    ravel__writing w = {.fd = -1};
    const uint32_t version = 3;
    const uint64_t counts[] = {(uint64_t)e->tensor_count, h->count};
    static const char zeros[ALIGN];
    put_infos(h, e);
    if (h->status) return h->status;
    ravel_status status = ravel__writing_open(&w, out, 1, NULL, e->err);
    if (status) return status;
    int fd = dup(w.fd);
    FILE *file = fd >= 0 ? fdopen(fd, "wb") : NULL;
    if (!file) {
        if (fd >= 0) (void)close(fd);
        ravel__writing_discard(&w);
        return train_file_error(e->err, "opened", out);
    }
    size_t before = 4 + sizeof version + sizeof counts + h->bytes;
    (void)fwrite("GGUF", 1, 4, file);
    (void)fwrite(&version, sizeof version, 1, file);
    (void)fwrite(counts, sizeof counts, 1, file);
    (void)fwrite(h->text.at, 1, h->bytes, file);
    (void)fwrite(zeros, 1, (ALIGN - before % ALIGN) % ALIGN, file);
    status = write_data(e, file);
    if (!status && (fflush(file) != 0 || ferror(file))) status = train_file_error(e->err, "written", out);
    (void)fclose(file);
    if (!status) status = ravel__writing_commit(&w, 1, e->err);
    ravel__writing_discard(&w);
    return status;
}

ravel_status train_gguf_export(const char *model, const char *out, int32_t type, const char *pre, int64_t *context,
                               ravel_error *err) {
    export e = {.type = type, .err = err};
    train_gguf_head head = {.err = err};
    ravel_status status = train_config_read(model, &e.shape, err);
    if (status) return status;
    e.family = ravel__shape_family(&e.shape);
    for (size_t i = 0; i < sizeof families / sizeof *families && !e.row; i++)
        if (strcmp(families[i].model_type, e.family->model_type) == 0) e.row = &families[i];
    if (!e.row) return lacks(err, "models of this model_type that are known here");
    status = check(&e.shape, e.row, err);
    if (!status) status = train_params_create(&e.shape, NULL, NULL, &e.params, err);
    if (!status) status = train_weights_open(model, &e.file, err);
    if (!status) status = list_tensors(&e);
    if (!status) put_name(&head, model);
    if (!status) put_sizes(&head, &e.shape, e.row, type);
    if (!status) status = train_gguf_tokenizer(&head, model, e.shape.vocab, pre, err);
    if (!status) status = head.status;
    if (!status) status = write_file(&e, &head, out);
    *context = e.shape.max_positions == context_of(&e.shape, e.row) ? 0 : context_of(&e.shape, e.row);
    ravel__release(NULL, e.rope, (size_t)(ravel__shape_rotated(&e.shape) / 2) * sizeof *e.rope);
    ravel__buffer_free(&head.text, NULL);
    ravel__buffer_free(&e.tensors, NULL);
    ravel__buffer_free(&e.parts, NULL);
    ravel_safetensors_free(e.file);
    train_params_free(e.params);
    return status;
}
