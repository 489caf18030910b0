/* A matrix to fp8 with a scale per block of 128 x 128 elements: a CTA takes a block, keeps it in registers between the search for
 * its largest value and the cast, and so reads memory once. A maximum does not depend on the order, and division is
 * correctly rounded, so the bits equal the host's (host_cast.c). */
#include "device/cuda.h"

#include <cuda_fp8.h>

namespace {

enum { THREADS = 256, SIDE = RAVEL__FP8_BLOCK, LANES = THREADS / SIDE, EACH = SIDE / LANES, WARPS = THREADS / 32 };

template <bool BF16> __device__ __forceinline__ float element(const void *data, int64_t at) {
    if (BF16) return __uint_as_float(static_cast<uint32_t>(static_cast<const uint16_t *>(data)[at]) << 16);
    return static_cast<const float *>(data)[at];
}

/* The largest of all threads' values, in all threads. */
__device__ float largest(float most) {
    __shared__ float warps[WARPS];
    for (int offset = 16; offset > 0; offset /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = most;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) most = fmaxf(most, warps[i]);
    return most;
}

/* The sign is that of x: a NaN has lost it. */
__device__ __forceinline__ uint8_t code_of(float x, float scale) {
    uint8_t code = __nv_cvt_float_to_fp8(__fdiv_rn(x, scale), __NV_NOSAT, __NV_E4M3);
    return (code & 0x7f) | (__float_as_uint(x) >> 24 & 0x80);
}

/* A thread has every second row of one column. */
template <bool BF16> __global__ void __launch_bounds__(THREADS) pack_blocks(const ravel__fp8_job job) {
    const int64_t across = (job.cols + SIDE - 1) / SIDE;
    const int64_t first = blockIdx.x / across * SIDE + threadIdx.x / SIDE;
    const int64_t col = blockIdx.x % across * SIDE + threadIdx.x % SIDE;
    float values[EACH], most = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int64_t row = first + i * LANES;
        values[i] = row < job.rows && col < job.cols ? element<BF16>(job.data, row * job.stride + col) : 0.0f;
        most = fmaxf(most, fabsf(values[i]));
    }
    const float scale = ravel__fp8_scale(largest(most));
    if (threadIdx.x == 0) job.scale_inv[blockIdx.x] = scale;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int64_t row = first + i * LANES;
        if (row < job.rows && col < job.cols)
            static_cast<uint8_t *>(job.weight)[row * job.cols + col] = code_of(values[i], scale);
    }
}

} // namespace

int ravel__cuda_fp8(const ravel__fp8_job *job, void *stream) {
    cudaStream_t s = static_cast<cudaStream_t>(stream);
    unsigned blocks = (unsigned)((job->rows + SIDE - 1) / SIDE * ((job->cols + SIDE - 1) / SIDE));
    if (job->bf16)
        pack_blocks<true><<<blocks, THREADS, 0, s>>>(*job);
    else
        pack_blocks<false><<<blocks, THREADS, 0, s>>>(*job);
    return (int)cudaGetLastError();
}
