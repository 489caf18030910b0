#include "bench/gpu/parts.h"

static const train_kernels *real;
static train_kernels table;
static uint32_t kept;
static int64_t head;

static void some_products(train_device *d, const train_matmul *p) {
    int of_head = p->m == head || p->n == head || p->k == head;
    if (kept & (of_head ? PART_HEAD : PART_LAYERS)) real->matmul(d, p);
}

#define NOTHING(name, type)                              \
    static void name(train_device *d, const type *job) { \
        (void)d, (void)job;                              \
    }
NOTHING(no_attention, train_attention)
NOTHING(no_rows, train_rows)
NOTHING(no_embedding, train_embedding)
NOTHING(no_norm, train_norm)
NOTHING(no_rope, train_rope)
NOTHING(no_softmax, train_softmax)
NOTHING(no_loss, train_loss_rows)
NOTHING(no_adamw, train_adamw)

static void no_bias(train_device *d, void *x, const void *b, int64_t rows, int64_t width, int64_t ld) {
    (void)d, (void)x, (void)b, (void)rows, (void)width, (void)ld;
}

static void no_swiglu(train_device *d, void *h, const void *gate_up, int64_t rows, int64_t ffn) {
    (void)d, (void)h, (void)gate_up, (void)rows, (void)ffn;
}

static void no_swiglu_backward(train_device *d, void *d_gate_up, void *h, const void *d_h, const void *gate_up,
                               int64_t rows, int64_t ffn) {
    (void)d, (void)d_gate_up, (void)h, (void)d_h, (void)gate_up, (void)rows, (void)ffn;
}

static void no_squares(train_device *d, const void *grads, int64_t n, int64_t span, double *sums) {
    (void)d, (void)grads, (void)n, (void)span, (void)sums;
}

static void no_clip(train_device *d, const double *sums, int64_t count, double most, train_clip *clip) {
    (void)d, (void)sums, (void)count, (void)most, (void)clip;
}

static void leave_rows_out(void) {
    table.copy_rows = no_rows;
    table.embed = table.embed_backward = no_embedding;
    table.bias = table.bias_backward = no_bias;
    table.rmsnorm = table.rmsnorm_backward = no_norm;
    table.rope = table.rope_backward = no_rope;
    table.swiglu = no_swiglu;
    table.swiglu_backward = no_swiglu_backward;
}

static void leave_loss_out(void) {
    table.softmax_parts = table.softmax_combine = table.softmax_backward = no_softmax;
    if (table.softmax_fused) table.softmax_fused = no_softmax;
    table.loss = no_loss;
}

void parts_keep(uint32_t parts) {
    kept = parts;
    table = *real;
    table.matmul = some_products;
    if (!(parts & PART_ATTENTION)) table.attention = table.attention_backward = no_attention;
    if (!(parts & PART_ROWS)) leave_rows_out();
    if (!(parts & PART_LOSS)) leave_loss_out();
    if (!(parts & PART_OPTIMIZER)) {
        table.sum_squares = no_squares;
        table.clip = no_clip;
        table.adamw = no_adamw;
    }
}

const train_kernels *parts_of(const train_kernels *kernels, int64_t vocab) {
    real = kernels;
    head = vocab;
    parts_keep(PART_ALL);
    return &table;
}
