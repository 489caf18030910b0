/* Eight bf16 values as floats, read and written 16 bytes at a time; sums over a warp and a block in a fixed order.
 * Internal to the CUDA set. Every kernel here adds in an order that depends on sizes alone, so that a call on the same
 * data gives the same bits on every run. */
#ifndef TRAIN_CUDA_VEC_CUH
#define TRAIN_CUDA_VEC_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;

struct vec8 {
    float x[8];
};

/* Two bf16 values of a word; one instruction each. */
__device__ static inline float low_half(unsigned word) {
    return __uint_as_float(word << 16);
}
__device__ static inline float high_half(unsigned word) {
    return __uint_as_float(word & 0xffff0000u);
}

/* Eight values as they are in memory. By value: through a reference the compiler reads four bytes at a time. */
__device__ static inline vec8 wide8(uint4 raw) {
    return {{low_half(raw.x), high_half(raw.x), low_half(raw.y), high_half(raw.y), low_half(raw.z), high_half(raw.z),
             low_half(raw.w), high_half(raw.w)}};
}

__device__ static inline vec8 load8(const bf16 *p) {
    return wide8(*reinterpret_cast<const uint4 *>(p));
}

__device__ static inline uint4 raw8(const bf16 *p) {
    return *reinterpret_cast<const uint4 *>(p);
}

__device__ static inline uint4 narrow8(const vec8 &v) {
    uint4 raw;
    __nv_bfloat162 *pair = reinterpret_cast<__nv_bfloat162 *>(&raw);
#pragma unroll
    for (int i = 0; i < 4; i++) pair[i] = __floats2bfloat162_rn(v.x[2 * i], v.x[2 * i + 1]);
    return raw;
}

__device__ static inline void store8(bf16 *p, const vec8 &v) {
    *reinterpret_cast<uint4 *>(p) = narrow8(v);
}

/* Eight values into shared memory, without a register and without waiting. fetches_end closes a group of fetches (which
 * may be empty); fetches_wait waits until at most LATEST groups of this thread are under way. The thread that fetched
 * may then read. */
__device__ static inline unsigned shared_address(const void *p) {
    return (unsigned)__cvta_generic_to_shared(p);
}
__device__ static inline void fetch8(uint4 *to, const bf16 *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
__device__ static inline void fetches_end(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LATEST> __device__ static inline void fetches_wait(void) {
    asm volatile("cp.async.wait_group %0;" ::"n"(LATEST) : "memory");
}

/* 2^x, one instruction; numbers below 2^-126 are 0. */
__device__ static inline float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#define LOG2_E 1.4426950408889634f
#define LN_2   0.6931471805599453f

/* Every lane gets the sum over its group of LANES lanes (a power of two). */
template <int LANES> __device__ static inline float lane_sum(float x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}
template <int LANES> __device__ static inline float lane_max(float x) {
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Every thread gets the sum over its block of THREADS threads; `slots` is shared memory for THREADS / 32 floats. */
template <int THREADS> __device__ static inline float block_sum(float x, float *slots) {
    x = lane_sum<32>(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < THREADS / 32; i++) sum += slots[i];
    return sum;
}
template <int THREADS> __device__ static inline float block_max(float x, float *slots) {
    x = lane_max<32>(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
    __syncthreads();
    float most = slots[0];
#pragma unroll
    for (int i = 1; i < THREADS / 32; i++) most = fmaxf(most, slots[i]);
    return most;
}

/* The same sum in double; `slots` is shared memory for THREADS / 32 doubles. */
template <int THREADS> __device__ static inline double block_sum_double(double x, double *slots) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    __syncthreads();
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = x;
    __syncthreads();
    double sum = 0;
    for (int i = 0; i < THREADS / 32; i++) sum += slots[i];
    return sum;
}

/* Lanes that have a head of DIM elements, 8 each: a power of two, of which `used` have something. */
template <int DIM> struct lanes_of {
    static constexpr int used = DIM / 8, all = used <= 1    ? 1
                                               : used <= 2  ? 2
                                               : used <= 4  ? 4
                                               : used <= 8  ? 8
                                               : used <= 16 ? 16
                                                            : 32;
};

#endif
