/* The end of the model: softmax statistics over a row of logits, their combination over ranks, and the gradient in place.
 *
 * One block of 1024 threads has a row of logits (part.cuh). A row of a large vocabulary (300 KB) does not fit a
 * multiprocessor, so the gradient reads it again. The fused form has two kernels:
 *   softmax_once    a cluster of blocks holds the row in shared memory and reads it once;
 *   softmax_fused   for rows that do not fit or are not aligned: one row per multiprocessor, read again while it is still in
 *                   the second-level cache: from the end, which was read last, to the beginning, and with writes that do
 *                   not stay in the cache.
 * A thread of a row adds the same columns in the same order in all of them, so the log-sum-exp has the same bits. */
#include <cooperative_groups.h>

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

/* What the gradient of a row's logits needs. With p = exp(s x - lse):
 * s (coef (onehot - p) - entropy_coef p (log p + entropy)). */
struct slope {
    float scale, lse, plain, bonus, entropy; /* plain, bonus: the coefficients times s */
};

/* Of a logit x; `hot` is s coef at the target, else 0. */
__device__ static inline float gradient_of(float x, const slope &s, float hot) {
    float d = fmaf(x, s.scale * LOG2_E, -s.lse * LOG2_E), p = exp2_of(d), g = fmaf(-s.plain, p, hot);
    return s.bonus != 0 ? g - s.bonus * p * (d * LN_2 + s.entropy) : g;
}

__device__ static inline uint4 gradient8(uint4 raw, const slope &s) {
    vec8 v = wide8(raw);
#pragma unroll
    for (int j = 0; j < 8; j++) v.x[j] = gradient_of(v.x[j], s, 0);
    return narrow8(v);
}

/* Whether the target is one of a thread's columns. It may be none of the row's: another rank's. */
__device__ static inline bool owns(int thread, int target, int columns) {
    return target >= 0 && target < columns && target / 8 % ROW_THREADS == thread;
}

template <bool VECTOR> __device__ static void row_gradient(bf16 *row, int columns, int target, const slope &s) {
    if constexpr (VECTOR) {
        bool mine = owns(threadIdx.x, target, columns);
        float logit = mine ? __bfloat162float(row[target]) : 0;
        for (int i = (columns - 1) / (STEP * AHEAD) * (STEP * AHEAD) + threadIdx.x * 8; i >= 0; i -= STEP * AHEAD) {
            uint4 raw[AHEAD];
            read_ahead(raw, row, i, columns);
#pragma unroll
            for (int k = AHEAD - 1; k >= 0; k--)
                if (i + k * STEP < columns) __stcs(reinterpret_cast<uint4 *>(row + i + k * STEP), gradient8(raw[k], s));
        }
        if (mine) row[target] = __float2bfloat16(gradient_of(logit, s, s.plain)); /* after its neighbours and its own */
    } else {
        for (int i = threadIdx.x; i < columns; i += THREADS)
            row[i] = __float2bfloat16(gradient_of(__bfloat162float(row[i]), s, i == target ? s.plain : 0));
    }
}

template <bool VECTOR> __global__ static void __launch_bounds__(THREADS) softmax_backward(cuda_softmax_args a) {
    int64_t row = blockIdx.x;
    float bonus = a.entropy_coef ? a.scale * a.entropy_coef[row] : 0, entropy = a.entropy ? a.entropy[row] : 0;
    row_gradient<VECTOR>((bf16 *)a.logits + row * a.columns, (int)a.columns, (int)(a.targets[row] - a.first),
                         {a.scale, a.lse[row], a.scale * a.coef[row], bonus, entropy});
}

/* One block per multiprocessor walks over rows, so that few rows are in flight and the second reading finds its row in
 * the second-level cache. */
template <bool VECTOR> __global__ static void __launch_bounds__(THREADS) softmax_fused(cuda_softmax_args a) {
    __shared__ part slots[WARPS];
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        bf16 *x = (bf16 *)a.logits + row * a.columns;
        part p = row_part<VECTOR, false>(x, (int)a.columns, a.scale, slots);
        float log_sum = logf(p.sum), lse = p.most + log_sum;
        int target = a.targets[row];
        if (threadIdx.x == 0) {
            a.lse[row] = lse;
            a.logprob[row] = (a.scale * __bfloat162float(x[target]) - p.most) - log_sum;
        }
        __syncthreads(); /* the target's logit is read before its gradient is written */
        row_gradient<VECTOR>(x, (int)a.columns, target, {a.scale, lse, a.scale * a.coef[row], 0, 0});
    }
}

/* ---- rows that are read once ----------------------------------------------------------------------------- */

/* A row is cut into pieces of STEP columns, eight per thread of a cluster; their number is rounded up to whole steps of AHEAD
 * pieces. Each thread has a ring of its own in shared memory, with room for the row and SPARE pieces more:
 *
 *     ring   | row r: piece 0, 1, ... last | the cluster's next row: piece 0, ... SPARE - 1 |
 *
 * When it has written the gradients of a step, it asks for the pieces that come into the same places. So SPARE pieces are
 * under way (64 KB per multiprocessor, more than the memory's latency needs) while the sums are made, and no thread waits for
 * another but once per row, when the cluster's blocks exchange their maxima and sums. */
enum { SPARE = 2 * AHEAD };

/* A cluster's blocks send each other their warps' parts: 16 bytes per warp and block, which count towards a barrier in the
 * memory of the block that gets them. No fence is needed, so nobody waits for gradients that are still on their way. */
struct exchange {
    float4 parts[2][WARPS]; /* of this row and of the one before, which a slower warp may still read */
    uint64_t barrier;
};

__device__ static inline void barrier_begin(uint64_t *barrier) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/* One thread per block and row. */
__device__ static inline void barrier_expect(uint64_t *barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

__device__ static inline void barrier_wait(uint64_t *barrier, unsigned turn) {
    unsigned done = 0;
    while (!done)
        asm volatile("{ .reg .pred p;\n"
                     "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(turn)
                     : "memory");
}

/* To the same place in the memory of `block`. */
__device__ static inline void send_part(part p, float4 *to, uint64_t *barrier, unsigned block) {
    asm volatile(
        "{ .reg .b32 to, barrier;\n"
        "mapa.shared::cluster.u32 to, %0, %2;\n"
        "mapa.shared::cluster.u32 barrier, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %5}, [barrier]; }" ::"r"(
            shared_address(to)),
        "r"(shared_address(barrier)), "r"(block), "f"(p.most), "f"(p.sum), "f"(p.mean)
        : "memory");
}

/* Asks for a thread's part of the piece at `column` of a row, or fills it up where it is past the row's end. */
__device__ static inline void ask(uint4 *to, const bf16 *row, int column, int columns) {
    if (column < columns)
        fetch8(to, row + column);
    else
        *to = none8();
}

template <int BLOCKS>
__global__ static void __cluster_dims__(BLOCKS, 1, 1) __launch_bounds__(ROW_THREADS / BLOCKS)
    softmax_once(cuda_softmax_args a, int pieces) {
    constexpr int threads = ROW_THREADS / BLOCKS;
    extern __shared__ uint4 rings[]; /* [pieces + SPARE, threads] */
    __shared__ exchange shared;
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    int thread = (int)cluster.block_rank() * threads + threadIdx.x, lane = threadIdx.x % 32, columns = (int)a.columns;
    int steps = pieces / AHEAD, places = steps + SPARE / AHEAD, place = 0; /* of a step in the ring */
    unsigned turn = 0;
    int64_t first = blockIdx.x / BLOCKS, clusters = gridDim.x / BLOCKS, apart = clusters * a.columns;
    auto at = [&](int step) -> uint4 * { return rings + threadIdx.x + step * AHEAD * threads; };
    auto ask_step = [&](int where, const bf16 *row, int64_t index, int step) {
        if (index < a.rows) {
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                ask(at(where) + k * threads, row, (step * AHEAD + k) * STEP + thread * 8, columns);
        }
        fetches_end();
    };
    bf16 *x = (bf16 *)a.logits + first * a.columns;
    for (int step = 0; step < steps; step++) ask_step(step, x, first, step);
    for (int step = 0; step < SPARE / AHEAD; step++) ask_step(steps + step, x + apart, first + clusters, step);
    if (threadIdx.x == 0) barrier_begin(&shared.barrier);
    cluster.sync(); /* every block is there before another writes into its memory */
    int64_t last = a.rows - 1;
    int next_target = a.targets[min(first, last)]; /* a row ahead: nothing waits for it */
    float next_coef = a.coef[min(first, last)];
    for (int64_t row = first; row < a.rows; row += clusters, x += apart, turn ^= 1) {
        int target = next_target;
        float plain = a.scale * next_coef, logit = 0;
        next_target = a.targets[min(row + clusters, last)];
        next_coef = a.coef[min(row + clusters, last)];
        bool mine = owns(thread, target, columns);
        int begin = place;
        fetches_wait<SPARE / AHEAD>();
        part p = empty_part();
        for (int step = 0; step < steps; step++) {
            uint4 raw[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) raw[k] = at(place)[k * threads];
            p = with_step<false>(p, raw, a.scale);
            place = place + 1 < places ? place + 1 : 0;
        }
        p = warp_part(p);
        if (threadIdx.x == 0) barrier_expect(&shared.barrier, sizeof shared.parts[turn]);
        if (lane < BLOCKS) send_part(p, &shared.parts[turn][thread / 32], &shared.barrier, lane);
        barrier_wait(&shared.barrier, turn);
        float4 other = shared.parts[turn][lane];
        p = warp_part({other.x, other.y, other.z});
        float log_sum = logf(p.sum), lse = p.most + log_sum;
        slope s = {a.scale, lse, plain, 0, 0};
        if (thread == 0) a.lse[row] = lse;
        if (mine) {
            int piece = target / STEP, where = begin + piece / AHEAD;
            const uint4 *own = at(where < places ? where : where - places) + piece % AHEAD * threads;
            logit = __bfloat162float(reinterpret_cast<const bf16 *>(own)[target % 8]);
            a.logprob[row] = (a.scale * logit - p.most) - log_sum;
        }
        place = begin;
        for (int step = 0; step < steps; step++) {
            int i = step * AHEAD * STEP + thread * 8, ahead = step + SPARE / AHEAD;
            uint4 raw[AHEAD];
#pragma unroll
            for (int k = 0; k < AHEAD; k++) raw[k] = at(place)[k * threads];
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                if (i + k * STEP < columns) __stcs(reinterpret_cast<uint4 *>(x + i + k * STEP), gradient8(raw[k], s));
            if (ahead < steps)
                ask_step(place, x + apart, row + clusters, ahead);
            else
                ask_step(place, x + 2 * apart, row + 2 * clusters, ahead - steps);
            place = place + 1 < places ? place + 1 : 0;
        }
        if (mine) x[target] = __float2bfloat16(gradient_of(logit, s, plain)); /* after its neighbours and its own */
    }
}

/* Whether it was launched: else the row does not fit. As many clusters as run at a time. */
template <int BLOCKS> static bool launch_once(cudaStream_t stream, const cuda_softmax_args *a) {
    constexpr int threads = ROW_THREADS / BLOCKS;
    int steps = (int)((a->columns + STEP * AHEAD - 1) / (STEP * AHEAD)), pieces = steps * AHEAD, most = 0, clusters = 0;
    size_t bytes = (size_t)(pieces + SPARE) * threads * sizeof(uint4);
    cudaFuncAttributes kernel;
    if (pieces < SPARE || cudaFuncGetAttributes(&kernel, softmax_once<BLOCKS>) || cudaGetDevice(&most) ||
        cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, most) ||
        bytes + kernel.sharedSizeBytes > (size_t)most)
        return false;
    cudaFuncSetAttribute(softmax_once<BLOCKS>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    cudaLaunchConfig_t config = {dim3(BLOCKS), dim3(threads), bytes, stream, NULL, 0};
    if (cudaOccupancyMaxActiveClusters(&clusters, softmax_once<BLOCKS>, &config) || clusters < 1) {
        (void)cudaGetLastError(); /* no failure: the row goes another way */
        return false;
    }
    unsigned count = (unsigned)(a->rows < clusters ? a->rows : clusters);
    softmax_once<BLOCKS><<<count * BLOCKS, threads, bytes, stream>>>(*a, pieces);
    return true;
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
    if (a->columns % 8 == 0 && (launch_once<2>(stream, a) || launch_once<4>(stream, a))) return;
    unsigned blocks = (unsigned)(a->rows < multiprocessors ? a->rows : multiprocessors);
    EACH_ALIGNMENT(softmax_fused, blocks, THREADS, 0, stream)
}
