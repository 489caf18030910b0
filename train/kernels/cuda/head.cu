/* The end of the model: softmax statistics over a row of logits, their combination over ranks, the gradient in place,
 * and the losses.
 *
 * One block of 1024 threads has a row of logits (part.cuh). A row of a large vocabulary (300 KB) does not fit a
 * multiprocessor, so the gradient reads it again; the fused form does so at once, one row per multiprocessor, while the row
 * is still in the second-level cache: from the end, which was read last, to the beginning, and with writes that do not stay
 * in the cache. */
#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/part.cuh"

enum { THREADS = ROW_THREADS, WARPS = THREADS / 32 };

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
