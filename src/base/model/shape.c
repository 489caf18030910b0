/* From a transformer's shape alone: whether it is consistent, how many weights it has and uses. The planner's
 * costs, the metrics' FLOPs and the trainer's sizes all come from here; reading a config.json is src/io/shape.c's. */
#include <ravel/shape.h>

#include "base/assert.h"
#include "base/model/shape.h"
#include "base/model/family.h"

#include <math.h>

#define TWO_PI 6.283185307179586476925

/* One row per field: {name, value, least}. */
ravel_status ravel_shape_check(const ravel_shape *s, ravel_error *err) {
    const struct {
        const char *name;
        int64_t value, least;
    } rows[] = {{"hidden", s->hidden, 1},
                {"layers", s->layers, 1},
                {"heads", s->heads, 1},
                {"kv_heads", s->kv_heads, 1},
                {"head_dim", s->head_dim, 2},
                {"ffn", s->ffn, 1},
                {"vocab", s->vocab, 1},
                {"experts", s->experts, 0},
                {"experts_active", s->experts_active, s->experts ? 1 : 0},
                {"expert_ffn", s->expert_ffn, s->experts ? 1 : 0},
                {"shared_ffn", s->shared_ffn, 0},
                {"dense_layers", s->dense_layers, 0},
                {"max_positions", s->max_positions, 0},
                {"q_rank", s->q_rank, 0},
                {"kv_rank", s->kv_rank, 0},
                {"rope_dim", s->rope_dim, s->kv_rank ? 1 : 0},
                {"v_dim", s->v_dim, s->kv_rank ? 1 : 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].value < rows[i].least || rows[i].value > INT64_C(1) << 31)
            return ravel_error_set(err, RAVEL_E_DATA, "model shape: %s is %lld; it must be from %lld to 2^31",
                                   rows[i].name, (long long)rows[i].value, (long long)rows[i].least);
    if (s->layers > 65536)
        return ravel_error_set(err, RAVEL_E_DATA, "model shape: %lld layers are more than 65536", (long long)s->layers);
    if (s->heads % s->kv_heads)
        return ravel_error_set(err, RAVEL_E_DATA, "model shape: %lld heads are not a multiple of %lld kv_heads",
                               (long long)s->heads, (long long)s->kv_heads);
    if (s->head_dim % 2)
        return ravel_error_set(err, RAVEL_E_DATA, "model shape: head_dim is %lld; rotary positions need it even",
                               (long long)s->head_dim);
    if (s->rope_dim % 2 || (s->rope == RAVEL_ROPE_LONG && ravel__shape_rotated(s) > 2 * RAVEL_ROPE_PAIRS))
        return ravel_error_set(err, RAVEL_E_DATA,
                               "model shape: %lld elements of a head are rotated; their number must be even, and at "
                               "most %d with a longrope",
                               (long long)ravel__shape_rotated(s), 2 * RAVEL_ROPE_PAIRS);
    if (s->experts_active > s->experts || s->dense_layers > s->layers || s->rope_dim > s->head_dim)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "model shape: experts_active, dense_layers and rope_dim must not be more than experts "
                               "(%lld), layers (%lld) and head_dim (%lld)",
                               (long long)s->experts, (long long)s->layers, (long long)s->head_dim);
    return RAVEL_OK;
}

int32_t ravel_shape_has_experts(const ravel_shape *s, int64_t layer) {
    RAVEL_ASSERT(layer >= 0 && layer < s->layers);
    if (!s->experts) return 0;
    if (!s->dense_mask[0] && !s->dense_mask[1]) return layer >= s->dense_layers;
    return layer >= 128 || !(s->dense_mask[layer / 64] >> layer % 64 & 1);
}

/* ---- rotary positions ------------------------------------------------------------------------------------- */

int64_t ravel__shape_rotated(const ravel_shape *s) {
    return s->rope_dim ? s->rope_dim : s->head_dim;
}

double ravel__shape_plain_frequency(const ravel_shape *s, double theta, int64_t pair) {
    return pow(theta, -2 * (double)pair / (double)ravel__shape_rotated(s));
}

/* Between the pairs that turn rope_high and rope_low times within the first training, the share of the divided
 * frequency rises from 0 to 1. */
static double yarn(const ravel_shape *s, int64_t pair, double plain) {
    double dim = (double)ravel__shape_rotated(s), ends[2], turns[2] = {s->rope_high, s->rope_low};
    for (int i = 0; i < 2; i++) {
        ends[i] = dim * log((double)s->rope_positions / (turns[i] * TWO_PI)) / (2 * log(s->rope_theta));
        if (!s->rope_exact) ends[i] = i ? ceil(ends[i]) : floor(ends[i]);
    }
    ends[0] = fmax(ends[0], 0), ends[1] = fmin(ends[1], dim - 1);
    double width = ends[1] == ends[0] ? .001 : ends[1] - ends[0];
    double share = fmin(fmax(((double)pair - ends[0]) / width, 0), 1);
    return share * plain / s->rope_factor + (1 - share) * plain;
}

static double llama3(const ravel_shape *s, double plain) {
    double turns = (double)s->rope_positions * plain / TWO_PI; /* within the first training */
    if (turns < s->rope_low) return plain / s->rope_factor;
    if (turns > s->rope_high) return plain;
    double smooth = (turns - s->rope_low) / (s->rope_high - s->rope_low);
    return (1 - smooth) * plain / s->rope_factor + smooth * plain;
}

int ravel__shape_is_long(const ravel_shape *s, int64_t length) {
    if (s->rope != RAVEL_ROPE_LONG) return 0;
    return s->rope_always ? s->rope_always > 0 : length > s->rope_positions;
}

void ravel__shape_settle_rope(ravel_shape *s, int64_t longest) {
    if (s->rope == RAVEL_ROPE_LONG) s->rope_always = ravel__shape_is_long(s, longest) ? 1 : -1;
}

double ravel__shape_frequency(const ravel_shape *s, int longer, int64_t pair) {
    double plain = ravel__shape_plain_frequency(s, s->rope_theta, pair);
    RAVEL_ASSERT(s->rope != RAVEL_ROPE_OTHER && pair >= 0 && 2 * pair < ravel__shape_rotated(s));
    switch (s->rope) {
    case RAVEL_ROPE_LINEAR: return plain / s->rope_factor;
    case RAVEL_ROPE_LLAMA3: return llama3(s, plain);
    case RAVEL_ROPE_YARN: return yarn(s, pair, plain);
    case RAVEL_ROPE_LONG: return plain / (double)(longer ? s->rope_long : s->rope_short)[pair];
    default: return plain;
    }
}

/* ---- counting ------------------------------------------------------------------------------------------- */

/* A product that stays at the top instead of overflowing; all factors are at least 0. */
static int64_t times(int64_t a, int64_t b) {
    RAVEL_ASSERT(a >= 0 && b >= 0);
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static int64_t plus(int64_t a, int64_t b) {
    RAVEL_ASSERT(a >= 0 && b >= 0);
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? INT64_MAX : sum;
}

static int64_t value_dim(const ravel_shape *s) {
    return s->kv_rank ? s->v_dim : s->head_dim;
}

/* The matrices of one layer's attention. */
static int64_t attention_weights(const ravel_shape *s) {
    int64_t q = times(s->heads, s->head_dim), out = times(times(s->heads, value_dim(s)), s->hidden);
    if (!s->kv_rank) return plus(times(s->hidden, plus(q, times(2 * s->kv_heads, s->head_dim))), out);
    int64_t queries = s->q_rank ? times(s->q_rank, plus(s->hidden, q)) : times(s->hidden, q);
    int64_t down = times(s->hidden, s->kv_rank + s->rope_dim);
    int64_t up = times(times(s->kv_rank, s->heads), s->head_dim - s->rope_dim + s->v_dim);
    return plus(plus(queries, out), plus(down, up));
}

static int64_t attention_vectors(const ravel_shape *s) {
    int64_t vectors = s->qk_norm ? 2 * s->head_dim : 0;
    if (s->qk_norm == RAVEL_QK_NORM_WHOLE) vectors = times(s->heads + s->kv_heads, s->head_dim);
    if (s->attention_bias) vectors = plus(vectors, times(s->heads + 2 * s->kv_heads, s->head_dim));
    return s->kv_rank ? vectors + s->kv_rank + s->q_rank : vectors;
}

static int64_t block_weights(const ravel_shape *s, int64_t ffn) {
    return times(times(s->gated ? 3 : 2, s->hidden), ffn);
}

/* One layer's experts, `count` of them, with the router and whatever is always on. */
static int64_t expert_weights(const ravel_shape *s, int64_t count) {
    return plus(plus(times(count, block_weights(s, s->expert_ffn)), block_weights(s, s->shared_ffn)),
                times(s->hidden, s->experts));
}

static int64_t layer_weights(const ravel_shape *s, int64_t experts) {
    int64_t dense = s->experts ? s->dense_layers : s->layers;
    int64_t blocks = plus(times(dense, block_weights(s, s->ffn)), times(s->layers - dense, expert_weights(s, experts)));
    return plus(times(s->layers, attention_weights(s)), blocks);
}

static int64_t layer_norms(const ravel_shape *s) {
    const ravel__family *f = ravel__shape_family(s);
    int64_t count = 0;
    for (int i = 0; i < RAVEL__LAYER_NORMS; i++) count += f->norms[i] != NULL;
    return count;
}

int64_t ravel_shape_parameters(const ravel_shape *shape) {
    int64_t embeddings = times(times(shape->tied ? 1 : 2, shape->vocab), shape->hidden);
    int64_t norms = layer_norms(shape) * shape->hidden;
    int64_t vectors = plus(times(shape->layers, plus(norms, attention_vectors(shape))), shape->hidden);
    return plus(plus(embeddings, vectors), layer_weights(shape, shape->experts));
}

int64_t ravel__shape_matmul_weights(const ravel_shape *shape) {
    return plus(layer_weights(shape, shape->experts_active), times(shape->vocab, shape->hidden));
}

int64_t ravel__shape_attention_width(const ravel_shape *shape) {
    return times(times(shape->layers, shape->heads), shape->head_dim + value_dim(shape));
}
