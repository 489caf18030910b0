/* The end of the model: softmax statistics over a row of logits, their combination over ranks, and the gradient in
 * place.
 *
 * One block of 1024 threads has a row of logits (part.cuh). A row of a large vocabulary (300 KB) does not fit a
 * multiprocessor, so the gradient reads it again. The fused form has two kernels:
 *   softmax_once    a cluster of two blocks holds the row in shared memory and reads it once;
 *   softmax_fused   for rows that do not fit or are not aligned: one row per multiprocessor, read again while it is still in
 *                   the second-level cache: from the end, which was read last, to the beginning, and with writes that do
 *                   not stay in the cache.
 * A thread of a row adds the same columns in the same order in all of them, so the log-sum-exp has the same bits. */
#include <cooperative_groups.h>

#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/part.cuh"

enum { THREADS = ROW_THREADS, WARPS = THREADS / 32 };

template <bool VECTOR> __global__ static void __launch_bounds__(THREADS) softmax_parts(train_softmax a) {
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

__global__ static void softmax_combine(train_softmax a) {
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
    if (a.entropy) a.entropy[row] = log_sum - p.mean / p.sum;                   /* lse - sum p s x */
    if (a.right) a.right[row] = target - p.most > -1e-6F * (1 + fabsf(p.most)); /* TRAIN_RIGHT_GAP */
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

template <bool VECTOR> __global__ static void __launch_bounds__(THREADS) softmax_backward(train_softmax a) {
    int64_t row = blockIdx.x;
    float bonus = a.entropy_coef ? a.scale * a.entropy_coef[row] : 0, entropy = a.entropy ? a.entropy[row] : 0;
    row_gradient<VECTOR>((bf16 *)a.logits + row * a.columns, (int)a.columns, (int)(a.targets[row] - a.first),
                         {a.scale, a.lse[row], a.scale * a.coef[row], bonus, entropy});
}

/* One block per multiprocessor walks over rows, so that few rows are in flight and the second reading finds its row in
 * the second-level cache. */
template <bool VECTOR> __global__ static void __launch_bounds__(THREADS) softmax_fused(train_softmax a) {
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

/* A row is cut into steps of AHEAD times STEP columns, AHEAD times eight per thread of a cluster. Each thread has a
 * ring of its own in shared memory, with room for the row and SPARE steps more:
 *
 *     ring   | row r: step 0, 1, ... last | the cluster's next row: step 0, ... SPARE - 1 |
 *
 * When it has written the gradients of a step, it asks for the step that comes into the same place. So SPARE steps are
 * under way (64 KB per multiprocessor, more than the memory's latency needs) while the sums are made, and no thread
 * waits for another but once per row, when the cluster's blocks exchange their maxima and sums. */
enum { BLOCKS = 2, SHARE = ROW_THREADS / BLOCKS, SPARE = 2 }; /* blocks of a cluster, threads of a block, steps */

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define CLUSTER __cluster_dims__(BLOCKS, 1, 1)
/* A cluster's blocks send each other their warps' parts: 16 bytes per warp and block, which count towards a barrier in
 * the memory of the block that gets them. No fence is needed, so nobody waits for gradients that are still on their
 * way. */
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

/* A thread's ring. Its columns of a step lie SHARE apart at the step's place. */
struct ring_of_steps {
    uint4 *own;
    int thread, columns, steps, places;
    int64_t rows;

    __device__ uint4 *at(int place) const {
        return own + (place < places ? place : place - places) * AHEAD * SHARE;
    }
    __device__ void read(uint4 *raw, int place) const {
#pragma unroll
        for (int k = 0; k < AHEAD; k++) raw[k] = at(place)[k * SHARE];
    }
    /* Asks for a step of row number `index` at x; past the row's end it fills it up. */
    __device__ void ask(int place, const bf16 *x, int64_t index, int step) const {
        if (index < rows) {
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                int column = (step * AHEAD + k) * STEP + thread * 8;
                if (column < columns)
                    fetch8(at(place) + k * SHARE, x + column);
                else
                    at(place)[k * SHARE] = none8();
            }
        }
        fetches_end();
    }
    __device__ float logit(int begin, int column) const {
        const uint4 *eight = at(begin + column / STEP / AHEAD) + column / STEP % AHEAD * SHARE;
        return __bfloat162float(reinterpret_cast<const bf16 *>(eight)[column % 8]);
    }
};

/* The part of the whole row, whose first step is at place `begin`. Every thread of the cluster gets it. */
__device__ static inline part cluster_part(const ring_of_steps &ring, int begin, float scale, exchange &shared,
                                           unsigned turn) {
    int lane = threadIdx.x % 32;
    part p = empty_part();
    for (int step = 0; step < ring.steps; step++) {
        uint4 raw[AHEAD];
        ring.read(raw, begin + step);
        p = with_step<false>(p, raw, scale);
    }
    p = warp_part(p);
    if (threadIdx.x == 0) barrier_expect(&shared.barrier, sizeof shared.parts[turn]);
    if (lane < BLOCKS) send_part(p, &shared.parts[turn][ring.thread / 32], &shared.barrier, lane);
    barrier_wait(&shared.barrier, turn);
    float4 other = shared.parts[turn][lane];
    return warp_part({other.x, other.y, other.z});
}

__global__ static void CLUSTER __launch_bounds__(SHARE) softmax_once(train_softmax a, int steps) {
    extern __shared__ uint4 rings[]; /* [steps + SPARE, AHEAD, SHARE] */
    __shared__ exchange shared;
    cooperative_groups::cluster_group cluster = cooperative_groups::this_cluster();
    int thread = (int)cluster.block_rank() * SHARE + threadIdx.x, columns = (int)a.columns, begin = 0;
    int64_t first = blockIdx.x / BLOCKS, clusters = gridDim.x / BLOCKS, apart = clusters * a.columns, last = a.rows - 1;
    ring_of_steps ring = {rings + threadIdx.x, thread, columns, steps, steps + SPARE, a.rows};
    bf16 *x = (bf16 *)a.logits + first * a.columns;
    for (int step = 0; step < steps; step++) ring.ask(step, x, first, step);
    for (int step = 0; step < SPARE; step++) ring.ask(steps + step, x + apart, first + clusters, step);
    if (threadIdx.x == 0) barrier_begin(&shared.barrier);
    cluster.sync();                                /* every block is there before another writes into its memory */
    int next_target = a.targets[min(first, last)]; /* a row ahead: nothing waits for it */
    float next_coef = a.coef[min(first, last)];
    unsigned turn = 0;
    for (int64_t row = first; row < a.rows; row += clusters, x += apart, turn ^= 1) {
        int target = next_target;
        float plain = a.scale * next_coef, logit = 0;
        next_target = a.targets[min(row + clusters, last)];
        next_coef = a.coef[min(row + clusters, last)];
        fetches_wait<SPARE>();
        part p = cluster_part(ring, begin, a.scale, shared, turn);
        float log_sum = logf(p.sum), lse = p.most + log_sum;
        bool mine = owns(thread, target, columns);
        if (thread == 0) a.lse[row] = lse;
        if (mine) {
            logit = ring.logit(begin, target);
            a.logprob[row] = (a.scale * logit - p.most) - log_sum;
        }
        slope s = {a.scale, lse, plain, 0, 0};
        for (int step = 0; step < steps; step++) {
            uint4 raw[AHEAD];
            ring.read(raw, begin);
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                int column = (step * AHEAD + k) * STEP + thread * 8;
                if (column < columns) __stcs(reinterpret_cast<uint4 *>(x + column), gradient8(raw[k], s));
            }
            if (step + SPARE < steps)
                ring.ask(begin, x + apart, row + clusters, step + SPARE);
            else
                ring.ask(begin, x + 2 * apart, row + 2 * clusters, step + SPARE - steps);
            begin = begin + 1 < ring.places ? begin + 1 : 0;
        }
        if (mine) x[target] = __float2bfloat16(gradient_of(logit, s, plain)); /* after its neighbours and its own */
    }
}

#else /* before Hopper there are no clusters: the kernel is a name that nothing launches */
__global__ static void softmax_once(train_softmax, int) {}
#endif

/* Whether it was launched: else the GPU or the code (PTX of 8.0) has no clusters, or the row does not fit. As many
 * clusters as run at a time. */
static bool launch_once(cudaStream_t stream, const train_softmax *a) {
    cuda_forms here = cuda_forms_here();
    int steps = (int)((a->columns + STEP * AHEAD - 1) / (STEP * AHEAD)), clusters = 0;
    size_t bytes = (size_t)(steps + SPARE) * AHEAD * SHARE * sizeof(uint4);
    cudaFuncAttributes kernel;
    if (!here.clusters || steps < SPARE || cudaFuncGetAttributes(&kernel, softmax_once) || kernel.ptxVersion < 90 ||
        bytes + kernel.sharedSizeBytes > here.shared)
        return false;
    cudaFuncSetAttribute(softmax_once, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    cudaLaunchConfig_t config = {dim3(BLOCKS), dim3(SHARE), bytes, stream, NULL, 0};
    if (cudaOccupancyMaxActiveClusters(&clusters, softmax_once, &config) || clusters < 1) {
        (void)cudaGetLastError(); /* no failure: the row goes another way */
        return false;
    }
    unsigned count = (unsigned)(a->rows < clusters ? a->rows : clusters);
    softmax_once<<<count * BLOCKS, SHARE, bytes, stream>>>(*a, steps);
    return true;
}

#define EACH_ALIGNMENT(KERNEL, ...)        \
    if (a->columns % 8 == 0)               \
        KERNEL<true><<<__VA_ARGS__>>>(*a); \
    else                                   \
        KERNEL<false><<<__VA_ARGS__>>>(*a);

extern "C" void cuda_softmax_parts(cudaStream_t stream, const train_softmax *a) {
    if (a->rows <= 0) return;
    EACH_ALIGNMENT(softmax_parts, (unsigned)a->rows, THREADS, 0, stream)
}

extern "C" void cuda_softmax_combine(cudaStream_t stream, const train_softmax *a) {
    if (a->rows > 0) softmax_combine<<<(unsigned)((a->rows + 255) / 256), 256, 0, stream>>>(*a);
}

extern "C" void cuda_softmax_backward(cudaStream_t stream, const train_softmax *a) {
    if (a->rows <= 0) return;
    EACH_ALIGNMENT(softmax_backward, (unsigned)a->rows, THREADS, 0, stream)
}

extern "C" void cuda_softmax_fused(cudaStream_t stream, const train_softmax *a, int multiprocessors) {
    if (a->rows <= 0) return;
    if (a->columns % 8 == 0 && launch_once(stream, a)) return;
    unsigned blocks = (unsigned)(a->rows < multiprocessors ? a->rows : multiprocessors);
    EACH_ALIGNMENT(softmax_fused, blocks, THREADS, 0, stream)
}
