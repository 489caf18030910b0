/* Kernels over rows and flat arrays: gated units, biases, row copies, the embedding's gradient, casts, the gradient's norm
 * and AdamW. All but the embedding's gradient are one pass at memory speed, 16 bytes per access. */
#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/vec.cuh"

enum { THREADS = 256 };

static unsigned blocks_for(int64_t threads) {
    return (unsigned)((threads + THREADS - 1) / THREADS);
}

/* Group i of eight columns, of rows of `ffn`, as an element of the array. Arrays with 2^32 groups fit no GPU, and 32
 * bits matter: a division of 64 takes longer than the memory. */
struct group_at {
    unsigned row;
    int column;
};
__device__ static inline group_at group_of(unsigned i, int ffn) {
    unsigned each = (unsigned)ffn / 8, row = i / each;
    return {row, (int)(i - row * each) * 8};
}

/* ---- gated units ------------------------------------------------------------------------------------------ */

/* Of both activations, gate * sigmoid(s): s is the gate, or twice the argument of gelu's tanh. */
__constant__ const float gelu_a = 1.5957691216057308f, gelu_b = .0713548162726009f;
template <bool GELU> __device__ static inline float turn(float gate) {
    return GELU ? gate * (gelu_a + gelu_b * gate * gate) : gate;
}

/* By the approximate reciprocal: within two units in the last place of f32. Where exp(-x) overflows it is 0. */
__device__ static inline float sigmoid(float x) {
    return __fdividef(1, 1 + __expf(-x));
}

template <bool GELU> __global__ static void gated(bf16 *h, const bf16 *gate_up, unsigned groups, int ffn) {
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= groups) return;
    group_at at = group_of(i, ffn);
    int64_t row = at.row, column = at.column;
    vec8 gate = load8(gate_up + row * 2 * ffn + column), up = load8(gate_up + row * 2 * ffn + ffn + column);
#pragma unroll
    for (int j = 0; j < 8; j++) gate.x[j] = gate.x[j] * sigmoid(turn<GELU>(gate.x[j])) * up.x[j];
    store8(h + row * ffn + column, gate);
}

/* With s = sigmoid(t), t' its slope: d_up = d_h gate s; d_gate = d_h up s (1 + gate t' (1 - s)). d_gate_up may be
 * gate_up. */
template <bool GELU>
__global__ static void gated_backward(bf16 *d_gate_up, bf16 *h, const bf16 *d_h, const bf16 *gate_up, unsigned groups,
                                      int ffn) {
    unsigned i = blockIdx.x * THREADS + threadIdx.x;
    if (i >= groups) return;
    group_at place = group_of(i, ffn);
    int64_t row = place.row, column = place.column, at = row * 2 * ffn + column;
    vec8 gate = load8(gate_up + at), up = load8(gate_up + at + ffn), d = load8(d_h + row * ffn + column), d_gate, d_up,
         out;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        float g = gate.x[j], s = sigmoid(turn<GELU>(g)), y = g * s, slope = GELU ? gelu_a + 3 * gelu_b * g * g : 1;
        out.x[j] = y * up.x[j];
        d_up.x[j] = d.x[j] * y;
        d_gate.x[j] = d.x[j] * up.x[j] * s * (1 + g * slope * (1 - s));
    }
    store8(d_gate_up + at, d_gate);
    store8(d_gate_up + at + ffn, d_up);
    if (h) store8(h + row * ffn + column, out);
}

extern "C" void cuda_gated(cudaStream_t stream, const train_gated *x) {
    int64_t groups = x->rows * x->ffn / 8;
    auto kernel = x->gelu ? gated<true> : gated<false>;
    if (groups)
        kernel<<<blocks_for(groups), THREADS, 0, stream>>>((bf16 *)x->h, (const bf16 *)x->gate_up, (unsigned)groups,
                                                           (int)x->ffn);
}

extern "C" void cuda_gated_backward(cudaStream_t stream, const train_gated *x) {
    int64_t groups = x->rows * x->ffn / 8;
    auto kernel = x->gelu ? gated_backward<true> : gated_backward<false>;
    if (groups)
        kernel<<<blocks_for(groups), THREADS, 0, stream>>>((bf16 *)x->d_gate_up, (bf16 *)x->h, (const bf16 *)x->d_h,
                                                           (const bf16 *)x->gate_up, (unsigned)groups, (int)x->ffn);
}

/* ---- biases ---------------------------------------------------------------------------------------------- */

__global__ static void add_bias(bf16 *x, const bf16 *bias, int64_t groups, int width, int64_t ld) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= groups) return;
    int64_t row = i * 8 / width, column = i * 8 % width;
    vec8 v = load8(x + row * ld + column), b = load8(bias + column);
#pragma unroll
    for (int j = 0; j < 8; j++) v.x[j] += b.x[j];
    store8(x + row * ld + column, v);
}

extern "C" void cuda_bias(cudaStream_t stream, void *x, const void *bias, int64_t rows, int64_t width, int64_t ld) {
    int64_t groups = rows * width / 8;
    if (groups)
        add_bias<<<blocks_for(groups), THREADS, 0, stream>>>((bf16 *)x, (const bf16 *)bias, groups, (int)width, ld);
}

/* A block adds the rows of its part, in order, for 256 columns. */
__global__ static void bias_parts(float *parts, const bf16 *d_x, int64_t rows, int width, int64_t ld, int64_t each) {
    int column = blockIdx.x * THREADS + threadIdx.x;
    if (column >= width) return;
    int64_t first = blockIdx.y * each, last = min(rows, first + each);
    float total = 0;
    for (int64_t row = first; row < last; row++) total += __bfloat162float(d_x[row * ld + column]);
    parts[(int64_t)blockIdx.y * width + column] = total;
}

extern "C" void cuda_bias_backward(cudaStream_t stream, float *d_bias, const void *d_x, int64_t rows, int64_t width,
                                   int64_t ld, float *parts) {
    if (rows <= 0) return;
    int64_t count = cuda_norm_parts(rows), each = (rows + count - 1) / count;
    dim3 grid(blocks_for(width), (unsigned)count);
    bias_parts<<<grid, THREADS, 0, stream>>>(parts, (const bf16 *)d_x, rows, (int)width, ld, each);
    cuda_add_parts(stream, d_bias, NULL, parts, count, width, width);
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

/* to[to_ids[r]] = from[from_ids[r]], `words` times 16 bytes per row. */
__global__ static void copy_rows(uint4 *to, const uint4 *from, const int32_t *to_ids, const int32_t *from_ids,
                                 int64_t rows, int words, int64_t ld_to, int64_t ld_from) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows * words) return;
    int64_t row = i / words, word = i % words;
    int64_t to_row = to_ids ? to_ids[row] : row, from_row = from_ids ? from_ids[row] : row;
    to[to_row * ld_to + word] = from[from_row * ld_from + word];
}

/* to[to_ids[r]] = the sum of from[list[k]], k = first[r] .. first[r + 1] - 1. A thread per element, of `width` in a
 * row. */
__global__ static void sum_rows(bf16 *to, const bf16 *from, const int32_t *to_ids, const int32_t *first,
                                const int32_t *list, int64_t rows, int64_t width, int64_t ld_to, int64_t ld_from) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows * width) return;
    int64_t row = i / width, column = i % width;
    float sum = 0;
    for (int32_t k = first[row]; k < first[row + 1]; k++) sum += __bfloat162float(from[list[k] * ld_from + column]);
    to[(to_ids ? to_ids[row] : row) * ld_to + column] = __float2bfloat16(sum);
}

extern "C" void cuda_sum_rows(cudaStream_t stream, void *to, const void *from, const int32_t *to_ids,
                              const int32_t *first, const int32_t *list, int64_t rows, int64_t width, int64_t ld_to,
                              int64_t ld_from) {
    if (rows > 0 && width > 0)
        sum_rows<<<blocks_for(rows * width), THREADS, 0, stream>>>((bf16 *)to, (const bf16 *)from, to_ids, first, list,
                                                                   rows, width, ld_to, ld_from);
}

extern "C" void cuda_copy_rows(cudaStream_t stream, void *to, const void *from, const int32_t *to_ids,
                               const int32_t *from_ids, int64_t rows, int64_t bytes, int64_t ld_to, int64_t ld_from) {
    int64_t words = bytes / 16;
    if (rows > 0 && words > 0)
        copy_rows<<<blocks_for(rows * words), THREADS, 0, stream>>>((uint4 *)to, (const uint4 *)from, to_ids, from_ids,
                                                                    rows, (int)words, ld_to / 16, ld_from / 16);
}

/* y[r] = table[ids[r] - first], or zeros where the id is not one of `count` rows. */
__global__ static void embed(uint4 *y, const uint4 *table, const int32_t *ids, const int32_t *picks, int64_t rows,
                             int words, int64_t first, int64_t count) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= rows * words) return;
    int64_t row = i / words, word = i % words, id = ids[picks ? picks[row] : row] - first;
    y[i] = id >= 0 && id < count ? table[id * words + word] : make_uint4(0, 0, 0, 0);
}

/* `order` lists rows sorted by id. The block at the first row of an id adds all rows of that id, in order, to the id's
 * row of the table; the other blocks have nothing to do. */
__global__ static void embed_backward(float *table, const bf16 *d_y, const int32_t *ids, const int32_t *order,
                                      int64_t ordered, int width, int64_t first, int64_t count) {
    int64_t begin = blockIdx.x, id = ids[order[begin]] - first;
    if (id < 0 || id >= count || (begin > 0 && ids[order[begin - 1]] - first == id)) return;
    int64_t end = begin + 1;
    while (end < ordered && ids[order[end]] - first == id) end++;
    for (int column = threadIdx.x * 8; column < width; column += THREADS * 8) {
        float total[8];
        float *to = table + id * width + column;
#pragma unroll
        for (int j = 0; j < 8; j++) total[j] = to[j];
#pragma unroll 4
        for (int64_t i = begin; i < end; i++) {
            vec8 v = load8(d_y + (int64_t)order[i] * width + column);
#pragma unroll
            for (int j = 0; j < 8; j++) total[j] += v.x[j];
        }
#pragma unroll
        for (int j = 0; j < 8; j++) to[j] = total[j];
    }
}

extern "C" void cuda_embed(cudaStream_t stream, void *y, const void *table, const int32_t *ids, const int32_t *picks,
                           int64_t rows, int64_t width, int64_t first, int64_t count) {
    int64_t words = width / 8;
    if (rows > 0)
        embed<<<blocks_for(rows * words), THREADS, 0, stream>>>((uint4 *)y, (const uint4 *)table, ids, picks, rows,
                                                                (int)words, first, count);
}

extern "C" void cuda_embed_backward(cudaStream_t stream, float *table, const void *d_y, const int32_t *ids,
                                    const int32_t *order, int64_t ordered, int64_t width, int64_t first,
                                    int64_t count) {
    if (ordered > 0)
        embed_backward<<<(unsigned)ordered, THREADS, 0, stream>>>(table, (const bf16 *)d_y, ids, order, ordered,
                                                                  (int)width, first, count);
}

/* ---- flat arrays ----------------------------------------------------------------------------------------- */

__global__ static void cast_to_bf16(bf16 *to, const float *from, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
    if (i + 8 <= n) {
        vec8 v;
        float4 a = *(const float4 *)(from + i), b = *(const float4 *)(from + i + 4);
        v.x[0] = a.x, v.x[1] = a.y, v.x[2] = a.z, v.x[3] = a.w, v.x[4] = b.x, v.x[5] = b.y, v.x[6] = b.z, v.x[7] = b.w;
        store8(to + i, v);
        return;
    }
    for (; i < n; i++) to[i] = __float2bfloat16(from[i]);
}

__global__ static void cast_to_f32(float *to, const bf16 *from, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) to[i] = __bfloat162float(from[i]);
}

__global__ static void add(float *to, const float *from, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) to[i] += from[i];
}

extern "C" void cuda_add(cudaStream_t stream, float *to, const float *from, int64_t n) {
    if (n > 0) add<<<blocks_for(n), THREADS, 0, stream>>>(to, from, n);
}

__global__ static void scale_all(bf16 *y, const bf16 *x, float by, int64_t n) {
    int64_t i = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 8;
    if (i + 8 <= n) {
        vec8 v = load8(x + i);
#pragma unroll
        for (int j = 0; j < 8; j++) v.x[j] *= by;
        store8(y + i, v);
    } else {
        for (; i < n; i++) y[i] = __float2bfloat16(by * __bfloat162float(x[i]));
    }
}

extern "C" void cuda_scale(cudaStream_t stream, void *y, const void *x, float by, int64_t n) {
    if (n > 0) scale_all<<<blocks_for((n + 7) / 8), THREADS, 0, stream>>>((bf16 *)y, (const bf16 *)x, by, n);
}

extern "C" void cuda_cast_to_bf16(cudaStream_t stream, void *to, const float *from, int64_t n) {
    if (n > 0) cast_to_bf16<<<blocks_for((n + 7) / 8), THREADS, 0, stream>>>((bf16 *)to, from, n);
}

extern "C" void cuda_cast_to_f32(cudaStream_t stream, float *to, const void *from, int64_t n) {
    if (n > 0) cast_to_f32<<<blocks_for(n), THREADS, 0, stream>>>(to, (const bf16 *)from, n);
}

/* One number per span of elements, so that shares of the array give the numbers that the whole would. */
__global__ static void span_squares(double *sums, const float *x, int64_t n, int span) {
    __shared__ double slots[THREADS / 32];
    int64_t first = (int64_t)blockIdx.x * span, last = min(n, first + span);
    double total = 0;
    for (int64_t i = first + threadIdx.x * 4; i < last; i += THREADS * 4) {
        float run = 0; /* four squares in f32, the rest in double */
        if (i + 4 <= last) {
            float4 v = *(const float4 *)(x + i);
            run = v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
        } else
            for (int64_t j = i; j < last; j++) run += x[j] * x[j];
        total += run;
    }
    total = block_sum_double<THREADS>(total, slots);
    if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

/* Thread t adds sums t, t + 1024, ...; then the threads' totals are added in a fixed tree. */
__global__ static void clip_norm(train_clip *clip, const double *sums, int64_t count, double most) {
    __shared__ double slots[32];
    double total = 0;
    for (int64_t i = threadIdx.x; i < count; i += 1024) total += sums[i];
    total = block_sum_double<1024>(total, slots);
    if (threadIdx.x > 0) return;
    double norm = sqrt(total);
    bool finite = isfinite(norm);
    clip->norm = norm;
    clip->finite = finite ? 1 : 0;
    clip->scale = finite && most > 0 && norm > most ? most / (norm + 1e-6) : 1;
}

extern "C" void cuda_sum_squares(cudaStream_t stream, double *sums, const float *x, int64_t n, int64_t span) {
    if (n > 0) span_squares<<<(unsigned)((n + span - 1) / span), THREADS, 0, stream>>>(sums, x, n, (int)span);
}

extern "C" void cuda_clip_norm(cudaStream_t stream, train_clip *clip, const double *sums, int64_t count, double most) {
    clip_norm<<<1, 1024, 0, stream>>>(clip, sums, count, most);
}

/* ---- AdamW ----------------------------------------------------------------------------------------------- */

struct four {
    float x[4];
};

__device__ static inline four load_four(const float *p) {
    float4 v = *reinterpret_cast<const float4 *>(p);
    return {{v.x, v.y, v.z, v.w}};
}
__device__ static inline four load_four(const bf16 *p) {
    uint2 raw = *reinterpret_cast<const uint2 *>(p);
    const __nv_bfloat162 *pair = reinterpret_cast<const __nv_bfloat162 *>(&raw);
    float2 a = __bfloat1622float2(pair[0]), b = __bfloat1622float2(pair[1]);
    return {{a.x, a.y, b.x, b.y}};
}
__device__ static inline void store_four(float *p, const four &v) {
    *reinterpret_cast<float4 *>(p) = make_float4(v.x[0], v.x[1], v.x[2], v.x[3]);
}
__device__ static inline void store_four(bf16 *p, const four &v) {
    uint2 raw;
    __nv_bfloat162 *pair = reinterpret_cast<__nv_bfloat162 *>(&raw);
    pair[0] = __floats2bfloat162_rn(v.x[0], v.x[1]);
    pair[1] = __floats2bfloat162_rn(v.x[2], v.x[3]);
    *reinterpret_cast<uint2 *>(p) = raw;
}

__device__ static inline float wide(float x) {
    return x;
}
__device__ static inline float wide(bf16 x) {
    return __bfloat162float(x);
}
__device__ static inline void put(float *to, float x) {
    *to = x;
}
__device__ static inline void put(bf16 *to, float x) {
    *to = __float2bfloat16(x);
}

__device__ static inline void adamw_element(const cuda_adamw_args &a, float scale, float grad, float &w, float &m,
                                            float &v) {
    float g = scale * grad;
    m = a.beta1 * m + (1 - a.beta1) * g;
    v = a.beta2 * v + (1 - a.beta2) * g * g;
    w -= a.lr * (m / a.correct1 / (sqrtf(v / a.correct2) + a.eps) + a.decay * w);
}

/* Moments of type M. VECTOR: every array is aligned for four elements at a time; what is left at the end goes one by
 * one. */
template <typename M, bool VECTOR> __global__ static void __launch_bounds__(THREADS) adamw(cuda_adamw_args a) {
    if (a.clip && a.clip->finite == 0) return; /* this update is skipped on every rank */
    float scale = a.clip ? (float)a.clip->scale : 1.0f;
    float *w = a.master;
    M *m = (M *)a.m, *v = (M *)a.v;
    bf16 *copy = (bf16 *)a.weight;
    int64_t stride = (int64_t)gridDim.x * THREADS, thread = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    int64_t whole = VECTOR ? a.n / 4 * 4 : 0;
    for (int64_t i = thread * 4; i < whole; i += stride * 4) {
        four g = load_four(a.grad + i), x = load_four(w + i), m1 = load_four(m + i), v1 = load_four(v + i);
#pragma unroll
        for (int j = 0; j < 4; j++) adamw_element(a, scale, g.x[j], x.x[j], m1.x[j], v1.x[j]);
        store_four(w + i, x);
        store_four(m + i, m1);
        store_four(v + i, v1);
        if (copy) store_four(copy + i, x);
    }
    for (int64_t i = whole + thread; i < a.n; i += stride) {
        float x = w[i], m1 = wide(m[i]), v1 = wide(v[i]);
        adamw_element(a, scale, a.grad[i], x, m1, v1);
        w[i] = x;
        put(m + i, m1);
        put(v + i, v1);
        if (copy) put(copy + i, x);
    }
}

static bool aligned_for_four(const cuda_adamw_args *a) {
    uintptr_t moment = a->bf16_moments ? 8 : 16;
    return (uintptr_t)a->master % 16 == 0 && (uintptr_t)a->grad % 16 == 0 && (uintptr_t)a->weight % 8 == 0 &&
           (uintptr_t)a->m % moment == 0 && (uintptr_t)a->v % moment == 0;
}

template <typename M> static void launch_adamw(cudaStream_t stream, const cuda_adamw_args *a) {
    bool vector = aligned_for_four(a);
    unsigned wanted = blocks_for(vector ? (a->n + 3) / 4 : a->n), blocks = wanted < 132 * 16 ? wanted : 132 * 16;
    if (vector)
        adamw<M, true><<<blocks, THREADS, 0, stream>>>(*a);
    else
        adamw<M, false><<<blocks, THREADS, 0, stream>>>(*a);
}

extern "C" void cuda_adamw(cudaStream_t stream, const cuda_adamw_args *a) {
    if (a->n <= 0) return;
    if (a->bf16_moments)
        launch_adamw<bf16>(stream, a);
    else
        launch_adamw<float>(stream, a);
}
