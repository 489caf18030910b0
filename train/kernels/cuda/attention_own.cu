/* Attention for what cuDNN's fused kernels do not cover here: head sizes that cuDNN does not take, samples without
 * keys, shifts that are neither none nor all keys; and what goes with context-parallel blocks: the merge of two
 * results, gradients that add.
 *
 * One warp per query row and head (forward, dQ) or per key row and key head (dK, dV). Scores are made 32 at a time, one
 * key per lane; the sums over keys are made with one slice of the head's elements per lane. Everything is added in the
 * order of the rows, in f32, so bits repeat. */
#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/vec.cuh"

enum { WARPS = 4, MOST_SLICES = 8 }; /* head_dim up to 256: eight elements per lane */

/* The sample that has this row, or -1: starts ascend. */
__device__ static int sample_of(const int32_t *starts, const int32_t *lengths, int samples, int row) {
    int low = 0, high = samples - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (starts[middle] <= row)
            low = middle;
        else
            high = middle - 1;
    }
    return samples > 0 && row >= starts[low] && row < starts[low] + lengths[low] ? low : -1;
}

__device__ static float dot(const float *x, const bf16 *y, int dim) {
    float total = 0;
    for (int i = 0; i < dim; i += 8) {
        vec8 v = load8(y + i);
#pragma unroll
        for (int j = 0; j < 8; j++) total += x[i + j] * v.x[j];
    }
    return total;
}

/* A row of `dim` elements as floats in shared memory. */
__device__ static void stage_row(float *to, const bf16 *from, int dim) {
    for (int i = threadIdx.x % 32; i < dim; i += 32) to[i] = __bfloat162float(from[i]);
    __syncwarp();
}

/* sum[slice] += weight * row's elements lane, lane + 32, ... */
__device__ static inline void add_row(float *sum, float weight, const bf16 *row, int dim) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < MOST_SLICES; s++)
        if (s * 32 + lane < dim) sum[s] += weight * __bfloat162float(row[s * 32 + lane]);
}

__device__ static inline void put_row(bf16 *to, const float *sum, int dim, bool add) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int s = 0; s < MOST_SLICES; s++)
        if (s * 32 + lane < dim) {
            bf16 *place = to + s * 32 + lane;
            *place = __float2bfloat16(add ? __bfloat162float(*place) + sum[s] : sum[s]);
        }
}

/* Keys first .. last - 1 of a sample's keys that query row r of the sample sees. */
__device__ static void seen(const train_attention &a, int sample, int r, int *first, int *last) {
    int shift = a.shifts ? a.shifts[sample] : 0, keys = a.keys.lengths[sample];
    *last = max(0, min(keys, r + shift + 1));
    *first = a.window > 0 ? max(0, r + shift - a.window + 1) : 0;
}

__global__ static void forward(train_attention a) {
    __shared__ float queries[WARPS][256];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = a.head_dim;
    int64_t place = (int64_t)blockIdx.x * WARPS + warp;
    int row = (int)(place / a.heads), head = (int)(place % a.heads), kv = head / (a.heads / a.kv_heads);
    if (row >= a.queries.tokens) return;
    int sample = sample_of(a.queries.starts, a.queries.lengths, a.samples, row);
    if (sample < 0) return;
    float *q = queries[warp];
    stage_row(q, (const bf16 *)a.q + row * a.ld_q + head * dim, dim);
    int first, last;
    seen(a, sample, row - a.queries.starts[sample], &first, &last);
    const bf16 *k = (const bf16 *)a.k + a.keys.starts[sample] * a.ld_k + kv * dim;
    const bf16 *v = (const bf16 *)a.v + a.keys.starts[sample] * a.ld_v + kv * dim;
    float most = -INFINITY, sum = 0, o[MOST_SLICES] = {};
    for (int base = first; base < last; base += 32) {
        int j = base + lane;
        float s = j < last ? a.scale * dot(q, k + j * a.ld_k, dim) : -INFINITY;
        float now = fmaxf(most, lane_max<32>(s)), keep = __expf(most - now), p = __expf(s - now);
        sum = sum * keep + lane_sum<32>(p);
#pragma unroll
        for (int i = 0; i < MOST_SLICES; i++) o[i] *= keep;
        for (int i = 0; i < min(32, last - base); i++)
            add_row(o, __shfl_sync(0xffffffffu, p, i), v + (base + i) * a.ld_v, dim);
        most = now;
    }
#pragma unroll
    for (int i = 0; i < MOST_SLICES; i++) o[i] = sum > 0 ? o[i] / sum : 0;
    put_row((bf16 *)a.o + ((int64_t)row * a.heads + head) * dim, o, dim, false);
    if (lane == 0) a.lse[(int64_t)row * a.heads + head] = sum > 0 ? most + __logf(sum) : -INFINITY;
}

/* d_q, and the row sums of d_o * o that the keys' kernel needs. */
__global__ static void backward_queries(train_attention a, float *row_sums) {
    __shared__ float queries[WARPS][256], outputs[WARPS][256];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = a.head_dim;
    int64_t place = (int64_t)blockIdx.x * WARPS + warp;
    int row = (int)(place / a.heads), head = (int)(place % a.heads), kv = head / (a.heads / a.kv_heads);
    if (row >= a.queries.tokens) return;
    int sample = sample_of(a.queries.starts, a.queries.lengths, a.samples, row);
    if (sample < 0) return;
    int64_t at = ((int64_t)row * a.heads + head) * dim;
    stage_row(queries[warp], (const bf16 *)a.q + row * a.ld_q + head * dim, dim);
    stage_row(outputs[warp], (const bf16 *)a.d_o + at, dim);
    float total = 0;
    for (int i = lane; i < dim; i += 32) total += outputs[warp][i] * __bfloat162float(((const bf16 *)a.o)[at + i]);
    total = lane_sum<32>(total);
    if (lane == 0) row_sums[place] = total;
    int first, last;
    seen(a, sample, row - a.queries.starts[sample], &first, &last);
    const bf16 *k = (const bf16 *)a.k + a.keys.starts[sample] * a.ld_k + kv * dim;
    const bf16 *v = (const bf16 *)a.v + a.keys.starts[sample] * a.ld_v + kv * dim;
    float lse = a.lse[place], d_q[MOST_SLICES] = {};
    for (int base = first; base < last; base += 32) {
        int j = base + lane;
        float d_s = 0;
        if (j < last) {
            float p = __expf(a.scale * dot(queries[warp], k + j * a.ld_k, dim) - lse);
            d_s = p * (dot(outputs[warp], v + j * a.ld_v, dim) - total) * a.scale;
        }
        for (int i = 0; i < min(32, last - base); i++)
            add_row(d_q, __shfl_sync(0xffffffffu, d_s, i), k + (base + i) * a.ld_k, dim);
    }
    put_row((bf16 *)a.d_q + row * a.ld_dq + head * dim, d_q, dim, a.add);
}

__global__ static void backward_keys(train_attention a, const float *row_sums) {
    __shared__ float keys[WARPS][256], values[WARPS][256];
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dim = a.head_dim, group = a.heads / a.kv_heads;
    int64_t place = (int64_t)blockIdx.x * WARPS + warp;
    int row = (int)(place / a.kv_heads), kv = (int)(place % a.kv_heads);
    if (row >= a.keys.tokens) return;
    int sample = sample_of(a.keys.starts, a.keys.lengths, a.samples, row);
    if (sample < 0) return;
    stage_row(keys[warp], (const bf16 *)a.k + row * a.ld_k + kv * dim, dim);
    stage_row(values[warp], (const bf16 *)a.v + row * a.ld_v + kv * dim, dim);
    int shift = a.shifts ? a.shifts[sample] : 0, key = row - a.keys.starts[sample], count = a.queries.lengths[sample];
    int first = max(0, key - shift), last = a.window > 0 ? min(count, key - shift + a.window) : count;
    float d_k[MOST_SLICES] = {}, d_v[MOST_SLICES] = {};
    for (int head = kv * group; head < (kv + 1) * group; head++)
        for (int base = first; base < last; base += 32) {
            int r = a.queries.starts[sample] + base + lane;
            float p = 0, d_s = 0;
            if (base + lane < last) {
                int64_t at = (int64_t)r * a.heads + head;
                p = __expf(a.scale * dot(keys[warp], (const bf16 *)a.q + r * a.ld_q + head * dim, dim) - a.lse[at]);
                d_s = p * (dot(values[warp], (const bf16 *)a.d_o + at * dim, dim) - row_sums[at]) * a.scale;
            }
            for (int i = 0; i < min(32, last - base); i++) {
                int64_t from = a.queries.starts[sample] + base + i;
                add_row(d_v, __shfl_sync(0xffffffffu, p, i), (const bf16 *)a.d_o + (from * a.heads + head) * dim, dim);
                add_row(d_k, __shfl_sync(0xffffffffu, d_s, i), (const bf16 *)a.q + from * a.ld_q + head * dim, dim);
            }
        }
    put_row((bf16 *)a.d_k + row * a.ld_dk + kv * dim, d_k, dim, false);
    put_row((bf16 *)a.d_v + row * a.ld_dv + kv * dim, d_v, dim, false);
}

static unsigned warps_for(int64_t rows, int heads) {
    return (unsigned)((rows * heads + WARPS - 1) / WARPS);
}

extern "C" void cuda_attention_own(cudaStream_t stream, const train_attention *a) {
    if (a->queries.tokens > 0) forward<<<warps_for(a->queries.tokens, a->heads), WARPS * 32, 0, stream>>>(*a);
}

extern "C" void cuda_attention_own_backward(cudaStream_t stream, const train_attention *a, float *row_sums) {
    if (a->queries.tokens > 0)
        backward_queries<<<warps_for(a->queries.tokens, a->heads), WARPS * 32, 0, stream>>>(*a, row_sums);
    if (a->keys.tokens > 0)
        backward_keys<<<warps_for(a->keys.tokens, a->kv_heads), WARPS * 32, 0, stream>>>(*a, row_sums);
}

/* ---- blocks of a ring ------------------------------------------------------------------------------------ */

__device__ static bool is_row(const cuda_rows &of, int64_t row) {
    return row < of.tokens && sample_of(of.starts, of.lengths, of.samples, (int)row) >= 0;
}

__global__ static void merge(bf16 *o, const float *lse, const bf16 *other_o, const float *other_lse, cuda_rows queries,
                             int heads, int dim) {
    int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 8, place = i / dim;
    if (!is_row(queries, place / heads)) return;
    float a = lse[place], b = other_lse[place], most = fmaxf(a, b);
    if (b == -INFINITY) return;
    float x = __expf(a - most), y = __expf(b - most), sum = x + y;
    vec8 v = load8(o + i), w = load8(other_o + i);
#pragma unroll
    for (int j = 0; j < 8; j++) v.x[j] = (x * v.x[j] + y * w.x[j]) / sum;
    store8(o + i, v);
}

__global__ static void merge_lse(float *lse, const float *other, cuda_rows queries, int heads) {
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (!is_row(queries, i / heads) || other[i] == -INFINITY) return;
    float most = fmaxf(lse[i], other[i]);
    lse[i] = most + __logf(__expf(lse[i] - most) + __expf(other[i] - most));
}

extern "C" void cuda_attention_merge(cudaStream_t stream, void *o, float *lse, const void *other_o,
                                     const float *other_lse, cuda_rows queries, int64_t heads, int64_t dim) {
    int64_t places = queries.tokens * heads;
    if (places <= 0) return;
    merge<<<(unsigned)((places * dim / 8 + 255) / 256), 256, 0, stream>>>((bf16 *)o, lse, (const bf16 *)other_o,
                                                                          other_lse, queries, (int)heads, (int)dim);
    merge_lse<<<(unsigned)((places + 255) / 256), 256, 0, stream>>>(lse, other_lse, queries, (int)heads);
}

__global__ static void add_rows(bf16 *to, const bf16 *from, cuda_rows of, int64_t width) {
    int64_t i = ((int64_t)blockIdx.x * 256 + threadIdx.x) * 8;
    if (!is_row(of, i / width)) return;
    vec8 v = load8(to + i), w = load8(from + i);
#pragma unroll
    for (int j = 0; j < 8; j++) v.x[j] += w.x[j];
    store8(to + i, v);
}

extern "C" void cuda_attention_add(cudaStream_t stream, void *to, const void *from, cuda_rows of, int64_t width) {
    int64_t threads = of.tokens * width / 8;
    if (threads > 0)
        add_rows<<<(unsigned)((threads + 255) / 256), 256, 0, stream>>>((bf16 *)to, (const bf16 *)from, of, width);
}

/* ---- offsets for cuDNN ----------------------------------------------------------------------------------- */

/* Where entry i of samples first .. first + count - 1 begins; those past the count begin where the last one ends. */
__device__ static int64_t entry_start(const cuda_offsets_args &a, const int32_t *starts, const int32_t *lengths,
                                      int i) {
    int last = a.first + a.count - 1;
    return i < a.count ? starts[a.first + i] : (int64_t)starts[last] + lengths[last];
}

/* Entries past the count have length 0. */
__global__ static void offsets(cuda_offsets_args a) {
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i > a.entries) return;
    if (i < a.entries) {
        a.to_lengths[i] = i < a.count ? a.query_lengths[a.first + i] : 0;
        a.to_lengths[a.entries + i] = i < a.count ? a.key_lengths[a.first + i] : 0;
    }
    int64_t query = entry_start(a, a.query_starts, a.query_lengths, i);
    int64_t key = entry_start(a, a.key_starts, a.key_lengths, i), *to = a.to_offsets + i;
    for (int t = 0; t < CUDA_QUERY_OFFSETS; t++, to += a.entries + 1) *to = query * a.query_ld[t];
    for (int t = 0; t < CUDA_KEY_OFFSETS; t++, to += a.entries + 1) *to = key * a.key_ld[t];
}

extern "C" void cuda_attention_offsets(cudaStream_t stream, const cuda_offsets_args *a) {
    offsets<<<(unsigned)(a->entries / 256 + 1), 256, 0, stream>>>(*a);
}
