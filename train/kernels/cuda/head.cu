/* The end of the model: softmax statistics over a row of logits, their combination over ranks, the gradient in place,
 * and the losses.
 *
 * One block of 1024 threads reads a row of logits, AHEAD times 16 bytes per thread and step, keeping a running maximum and
 * sums scaled to it. A row of a large vocabulary (300 KB) does not fit a multiprocessor, so the gradient reads it again; the
 * fused form does so at once, one row per multiprocessor, while the row is still in the second-level cache: from the end,
 * which was read last, to the beginning, and with writes that do not stay in the cache.
 *
 * The exponentials are of base 2: exp(s x - m) = 2^(x s log2 e - m log2 e), a multiply-add and one special function. */
#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/vec.cuh"

enum { THREADS = 1024, WARPS = THREADS / 32, AHEAD = 4, STEP = THREADS * 8 };

/* Of s x over some columns: the largest, the sum of exp(s x - most), and that of exp(s x - most) (s x - most). */
struct part {
    float most, sum, mean;
};

__device__ static inline part empty_part(void) {
    return {-INFINITY, 0, 0};
}

/* To another maximum `most` at least as large as p's. */
__device__ static inline part shifted(part p, float most) {
    if (p.most == -INFINITY) return {most, 0, 0};
    float d = p.most - most, e = __expf(d);
    return {most, p.sum * e, (p.mean + p.sum * d) * e};
}

__device__ static inline part joined(part a, part b) {
    float most = fmaxf(a.most, b.most);
    if (most == -INFINITY) return a;
    part x = shifted(a, most), y = shifted(b, most);
    return {most, x.sum + y.sum, x.mean + y.mean};
}

__device__ static inline part block_part(part p, part *slots) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        part other = {__shfl_xor_sync(0xffffffffu, p.most, step), __shfl_xor_sync(0xffffffffu, p.sum, step),
                      __shfl_xor_sync(0xffffffffu, p.mean, step)};
        p = threadIdx.x & step ? joined(other, p) : joined(p, other); /* the same order in both lanes */
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = p;
    __syncthreads();
    p = slots[0];
    for (int i = 1; i < WARPS; i++) p = joined(p, slots[i]);
    return p;
}

/* Columns i, i + STEP, ... i + 7 of each; minus infinity past the end. */
__device__ static inline void read_ahead(uint4 *raw, const bf16 *row, int i, int columns) {
    constexpr unsigned none = 0xff80ff80u;
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        raw[k] = i + k * STEP < columns ? raw8(row + i + k * STEP) : make_uint4(none, none, none, none);
}

/* VECTOR: the row begins at a multiple of 16 bytes and has a multiple of eight columns. Without MEAN, p.mean is not made; the
 * other two have the same bits. `scale` is above 0. */
template <bool VECTOR, bool MEAN>
__device__ static part row_part(const bf16 *row, int columns, float scale, part *slots) {
    part p = empty_part();
    if constexpr (VECTOR) {
        float unit = scale * LOG2_E;
        for (int i = threadIdx.x * 8; i < columns; i += STEP * AHEAD) {
            uint4 raw[AHEAD];
            read_ahead(raw, row, i, columns);
            float largest = -INFINITY;
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                vec8 v = wide8(raw[k]);
#pragma unroll
                for (int j = 0; j < 8; j++) largest = fmaxf(largest, v.x[j]);
            }
            float most = fmaxf(p.most, largest * scale), shift = most * LOG2_E;
            p = shifted(p, most);
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                vec8 v = wide8(raw[k]);
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    float d = fmaf(v.x[j], unit, -shift), e = exp2_of(d);
                    p.sum += e;
                    if (MEAN) p.mean += e > 0 ? e * (d * LN_2) : 0;
                }
            }
        }
    } else
        for (int i = threadIdx.x; i < columns; i += THREADS) p = joined(p, {scale * __bfloat162float(row[i]), 1, 0});
    return block_part(p, slots);
}

template <bool VECTOR> __global__ static void __launch_bounds__(THREADS) softmax_parts(cuda_softmax_args a) {
    __shared__ part slots[WARPS];
    int64_t row = blockIdx.x;
    const bf16 *x = (const bf16 *)a.logits + row * a.columns;
    part p = row_part<VECTOR, true>(x, (int)a.columns, a.scale, slots);
    if (threadIdx.x > 0) return;
    int64_t target = a.targets[row] - a.first;
    a.parts[row] = p.most;
    a.parts[a.rows + row] = p.sum;
    a.parts[2 * a.rows + row] = p.mean;
    a.parts[3 * a.rows + row] =
        target >= 0 && target < a.columns ? a.scale * __bfloat162float(x[target]) - p.most : -INFINITY;
}

__global__ static void softmax_combine(cuda_softmax_args a) {
    int64_t row = (int64_t)blockIdx.x * 256 + threadIdx.x;
    if (row >= a.rows) return;
    part p = empty_part();
    float target = -INFINITY;
    for (int64_t rank = 0; rank < a.ranks; rank++) {
        const float *from = a.parts + rank * 4 * a.rows + row;
        p = joined(p, {from[0], from[a.rows], from[2 * a.rows]});
        if (from[3 * a.rows] > -INFINITY) target = from[3 * a.rows] + from[0];
    }
    float log_sum = logf(p.sum);
    a.lse[row] = p.most + log_sum;
    a.logprob[row] = (target - p.most) - log_sum;
    if (a.entropy) a.entropy[row] = log_sum - p.mean / p.sum; /* lse - sum p s x */
}

/* With p = exp(s x - lse):  s (coef (onehot - p) - entropy_coef p (log p + entropy)). */
template <bool VECTOR>
__device__ static void row_gradient(bf16 *row, int columns, float scale, int64_t target, float lse, float coef,
                                    float entropy_coef, float entropy) {
    float bonus = scale * entropy_coef, plain = scale * coef;
    if constexpr (VECTOR) {
        float unit = scale * LOG2_E, shift = lse * LOG2_E;
        for (int i = (columns - 1) / (STEP * AHEAD) * (STEP * AHEAD) + threadIdx.x * 8; i >= 0; i -= STEP * AHEAD) {
            uint4 raw[AHEAD];
            read_ahead(raw, row, i, columns);
#pragma unroll
            for (int k = AHEAD - 1; k >= 0; k--) {
                int first = i + k * STEP;
                if (first >= columns) continue;
                vec8 v = wide8(raw[k]);
#pragma unroll
                for (int j = 0; j < 8; j++) {
                    float d = fmaf(v.x[j], unit, -shift), p = exp2_of(d);
                    v.x[j] = -plain * p;
                    if (bonus != 0) v.x[j] -= bonus * p * (d * LN_2 + entropy);
                }
                if (target >= first && target < first + 8) {
#pragma unroll
                    for (int j = 0; j < 8; j++) v.x[j] += first + j == target ? plain : 0;
                }
                __stcs(reinterpret_cast<uint4 *>(row + first), narrow8(v));
            }
        }
    } else {
        for (int i = threadIdx.x; i < columns; i += THREADS) {
            float log_p = scale * __bfloat162float(row[i]) - lse, p = __expf(log_p);
            float g = plain * ((i == target ? 1 : 0) - p);
            if (bonus != 0) g -= bonus * p * (log_p + entropy);
            row[i] = __float2bfloat16(g);
        }
    }
}

template <bool VECTOR> __global__ static void __launch_bounds__(THREADS) softmax_backward(cuda_softmax_args a) {
    int64_t row = blockIdx.x;
    row_gradient<VECTOR>((bf16 *)a.logits + row * a.columns, (int)a.columns, a.scale, a.targets[row] - a.first,
                         a.lse[row], a.coef[row], a.entropy_coef ? a.entropy_coef[row] : 0,
                         a.entropy ? a.entropy[row] : 0);
}

/* One block per multiprocessor walks over rows, so that few rows are in flight and the second reading finds its row in
 * the second-level cache. */
template <bool VECTOR> __global__ static void __launch_bounds__(THREADS) softmax_fused(cuda_softmax_args a) {
    __shared__ part slots[WARPS];
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        bf16 *x = (bf16 *)a.logits + row * a.columns;
        part p = row_part<VECTOR, false>(x, (int)a.columns, a.scale, slots);
        float log_sum = logf(p.sum), lse = p.most + log_sum;
        int64_t target = a.targets[row];
        if (threadIdx.x == 0) {
            a.lse[row] = lse;
            a.logprob[row] = (a.scale * __bfloat162float(x[target]) - p.most) - log_sum;
        }
        __syncthreads(); /* the target's logit is read before its gradient is written */
        row_gradient<VECTOR>(x, (int)a.columns, a.scale, target, lse, a.coef[row], 0, 0);
    }
}

#define EACH_ALIGNMENT(KERNEL, ...)        \
    if (a->columns % 8 == 0)               \
        KERNEL<true><<<__VA_ARGS__>>>(*a); \
    else                                   \
        KERNEL<false><<<__VA_ARGS__>>>(*a);

extern "C" void cuda_softmax_parts(cudaStream_t stream, const cuda_softmax_args *a) {
    if (a->rows <= 0) return;
    EACH_ALIGNMENT(softmax_parts, (unsigned)a->rows, THREADS, 0, stream)
}

extern "C" void cuda_softmax_combine(cudaStream_t stream, const cuda_softmax_args *a) {
    if (a->rows > 0) softmax_combine<<<(unsigned)((a->rows + 255) / 256), 256, 0, stream>>>(*a);
}

extern "C" void cuda_softmax_backward(cudaStream_t stream, const cuda_softmax_args *a) {
    if (a->rows <= 0) return;
    EACH_ALIGNMENT(softmax_backward, (unsigned)a->rows, THREADS, 0, stream)
}

extern "C" void cuda_softmax_fused(cudaStream_t stream, const cuda_softmax_args *a, int multiprocessors) {
    if (a->rows <= 0) return;
    unsigned blocks = (unsigned)(a->rows < multiprocessors ? a->rows : multiprocessors);
    EACH_ALIGNMENT(softmax_fused, blocks, THREADS, 0, stream)
}
