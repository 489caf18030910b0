/* Maximum and sums of a row's softmax, by a block of ROW_THREADS threads. Internal to the CUDA set. The head and the
 * sampler share it, so the log-sum-exp of the same logits has the same bits in both.
 *
 * A row is read AHEAD times 16 bytes per thread and step, keeping a running maximum and sums scaled to it. The
 * exponentials are of base 2: exp(s x - m) = 2^(x s log2 e - m log2 e), a multiply-add and one special function. */
#ifndef TRAIN_CUDA_PART_CUH
#define TRAIN_CUDA_PART_CUH

#include "train/kernels/cuda/vec.cuh"

enum { ROW_THREADS = 1024, AHEAD = 4, STEP = ROW_THREADS * 8 };

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

/* Every lane gets the parts of its warp's lanes, joined. */
__device__ static inline part warp_part(part p) {
    float most = lane_max<32>(p.most);
    p = shifted(p, most);
    return {most, lane_sum<32>(p.sum), lane_sum<32>(p.mean)};
}

/* Every thread gets the parts of all threads, joined: of a warp's lanes, then of the 32 warps; `slots` is shared memory
 * for those. */
__device__ static inline part block_part(part p, part *slots) {
    static_assert(ROW_THREADS == 32 * 32, "a lane for each warp");
    p = warp_part(p);
    __syncthreads();
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = p;
    __syncthreads();
    return warp_part(slots[threadIdx.x % 32]);
}

/* Eight times minus infinity: columns past the end. */
__device__ static inline uint4 none8(void) {
    constexpr unsigned none = 0xff80ff80u;
    return make_uint4(none, none, none, none);
}

/* Columns i, i + STEP, ... i + 7 of each. */
__device__ static inline void read_ahead(uint4 *raw, const bf16 *row, int i, int columns) {
#pragma unroll
    for (int k = 0; k < AHEAD; k++) raw[k] = i + k * STEP < columns ? raw8(row + i + k * STEP) : none8();
}

/* The largest of eight values, each half by itself. */
__device__ static inline __nv_bfloat162 largest8(__nv_bfloat162 so_far, uint4 raw) {
    const __nv_bfloat162 *pair = reinterpret_cast<const __nv_bfloat162 *>(&raw);
    return __hmax2(so_far, __hmax2(__hmax2(pair[0], pair[1]), __hmax2(pair[2], pair[3])));
}

/* A thread's part with the columns of one step added. */
template <bool MEAN> __device__ static inline part with_step(part p, const uint4 *raw, float scale) {
    float unit = scale * LOG2_E;
    __nv_bfloat162 pair = {__ushort_as_bfloat16(0xff80), __ushort_as_bfloat16(0xff80)};
#pragma unroll
    for (int k = 0; k < AHEAD; k++) pair = largest8(pair, raw[k]);
    float largest = fmaxf(__low2float(pair), __high2float(pair));
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
    return p;
}

/* VECTOR: the row begins at a multiple of 16 bytes and has a multiple of eight columns. Without MEAN, p.mean is not
 * made; the other two have the same bits. `scale` is above 0. */
template <bool VECTOR, bool MEAN>
__device__ static part row_part(const bf16 *row, int columns, float scale, part *slots) {
    part p = empty_part();
    if constexpr (VECTOR) {
        for (int i = threadIdx.x * 8; i < columns; i += STEP * AHEAD) {
            uint4 raw[AHEAD];
            read_ahead(raw, row, i, columns);
            p = with_step<MEAN>(p, raw, scale);
        }
    } else
        for (int i = threadIdx.x; i < columns; i += ROW_THREADS)
            p = joined(p, {scale * __bfloat162float(row[i]), 1, 0});
    return block_part(p, slots);
}

#endif
