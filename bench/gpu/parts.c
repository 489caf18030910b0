#include "bench/gpu/parts.h"

static const train_kernels *real;
static train_kernels table;
static uint32_t kept, watched;
static int64_t head;
static int32_t current; /* phase, as the model said */
static parts_traffic traffic;

static void some_products(train_device *d, const train_matmul *p) {
    int of_head = p->m == head || p->n == head || p->k == head;
    if (kept & (of_head ? PART_HEAD : PART_LAYERS)) real->matmul(d, p);
}

static void some_attention(train_device *d, const train_attention *a) {
    if (kept & PART_ATTENTION) real->attention(d, a);
}

static void some_attention_backward(train_device *d, const train_attention *a) {
    if (kept & PART_ATTENTION) real->attention_backward(d, a);
}

/* ---- watching -------------------------------------------------------------------------------------------- */

static void phase(train_device *d, int32_t now) {
    current = now;
    real->phase(d, now);
}

/* Before and after a call of `part` that moves `elements` bf16 numbers. Whether it is to be made. */
static int begin(train_device *d, uint32_t part, int64_t elements) {
    if (part & watched) {
        traffic.calls++;
        traffic.bytes += 2.0 * (double)elements;
        real->phase(d, TRAIN_PHASE_OPTIMIZER);
    }
    return (kept & part) != 0;
}

static void end(train_device *d, uint32_t part) {
    if (part & watched) real->phase(d, current);
}

/* One wrapper per slot of one argument. */
#define WATCHED(slot, type, part, elements)                        \
    static void some_##slot(train_device *d, const type *x) {      \
        if (begin(d, part, (int64_t)(elements))) real->slot(d, x); \
        end(d, part);                                              \
    }
#define ROPE_WIDTH ((int64_t)(x->heads + x->kv_heads) * x->head_dim)

WATCHED(copy_rows, train_rows, PART_EMBED, 2 * x->rows * x->width)
WATCHED(embed, train_embedding, PART_EMBED, 2 * x->rows * x->width)
WATCHED(embed_backward, train_embedding, PART_EMBED, 5 * x->ordered * x->width) /* at most: an id may occur twice */
WATCHED(rmsnorm, train_norm, PART_NORM, (x->add ? 4 : 2) * x->rows * x->width)
WATCHED(rmsnorm_backward, train_norm, PART_NORM_BACK, 4 * x->rows * x->width)
WATCHED(rope, train_rope, PART_ROPE, 2 * x->tokens * ROPE_WIDTH)
WATCHED(rope_backward, train_rope, PART_ROPE_BACK, 3 * x->tokens * ROPE_WIDTH)
WATCHED(softmax_parts, train_softmax, PART_LOSS, x->rows * x->columns)
WATCHED(softmax_combine, train_softmax, PART_LOSS, 8 * x->rows)
WATCHED(softmax_backward, train_softmax, PART_LOSS, 2 * x->rows * x->columns)
WATCHED(softmax_fused, train_softmax, PART_LOSS, 2 * x->rows * x->columns)
WATCHED(loss, train_loss_rows, PART_LOSS, 6 * x->rows)
WATCHED(adamw, train_adamw, PART_OPTIMIZER, 15 * x->n)

static void some_bias(train_device *d, void *x, const void *b, int64_t rows, int64_t width, int64_t ld) {
    if (begin(d, PART_EMBED, 2 * rows * width)) real->bias(d, x, b, rows, width, ld);
    end(d, PART_EMBED);
}

static void some_bias_backward(train_device *d, void *d_bias, const void *d_x, int64_t rows, int64_t width,
                               int64_t ld) {
    if (begin(d, PART_EMBED, rows * width)) real->bias_backward(d, d_bias, d_x, rows, width, ld);
    end(d, PART_EMBED);
}

static void some_gated(train_device *d, const train_gated *x) {
    if (begin(d, PART_SWIGLU, 3 * x->rows * x->ffn)) real->gated(d, x);
    end(d, PART_SWIGLU);
}

static void some_gated_backward(train_device *d, const train_gated *x) {
    if (begin(d, PART_SWIGLU_BACK, (x->h ? 6 : 5) * x->rows * x->ffn)) real->gated_backward(d, x);
    end(d, PART_SWIGLU_BACK);
}

static void some_squares(train_device *d, const void *grads, int64_t n, int64_t span, double *sums) {
    if (begin(d, PART_OPTIMIZER, 2 * n)) real->sum_squares(d, grads, n, span, sums);
    end(d, PART_OPTIMIZER);
}

static void some_clip(train_device *d, const double *sums, int64_t count, double most, train_clip *clip) {
    if (begin(d, PART_OPTIMIZER, 4 * count)) real->clip(d, sums, count, most, clip);
    end(d, PART_OPTIMIZER);
}

void parts_watch(uint32_t part) {
    watched = part;
    traffic = (parts_traffic){0, 0};
}

parts_traffic parts_watched(void) {
    return traffic;
}

/* ---- the table ------------------------------------------------------------------------------------------- */

void parts_keep(uint32_t parts) {
    kept = parts;
}

const train_kernels *parts_of(const train_kernels *kernels, int64_t vocab) {
    real = kernels;
    head = vocab;
    table = *kernels;
    table.phase = phase;
    table.matmul = some_products;
    table.attention = some_attention;
    table.attention_backward = some_attention_backward;
    table.copy_rows = some_copy_rows;
    table.embed = some_embed;
    table.embed_backward = some_embed_backward;
    table.bias = some_bias;
    table.bias_backward = some_bias_backward;
    table.rmsnorm = some_rmsnorm;
    table.rmsnorm_backward = some_rmsnorm_backward;
    table.rope = some_rope;
    table.rope_backward = some_rope_backward;
    table.gated = some_gated;
    table.gated_backward = some_gated_backward;
    table.softmax_parts = some_softmax_parts;
    table.softmax_combine = some_softmax_combine;
    table.softmax_backward = some_softmax_backward;
    if (table.softmax_fused) table.softmax_fused = some_softmax_fused;
    table.loss = some_loss;
    table.sum_squares = some_squares;
    table.clip = some_clip;
    table.adamw = some_adamw;
    parts_keep(PART_ALL);
    parts_watch(0);
    return &table;
}
