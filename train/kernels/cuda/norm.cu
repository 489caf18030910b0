/* RMSNorm with the residual sum before it, and its backward.
 *
 * A row is held in registers by one warp (width up to 2048) or one block of 256 threads (up to 16384): thread t owns
 * the groups of eight columns t, t + threads, ... so every access is 16 bytes wide and a row is read once.
 *
 * The weight's gradient is a sum over rows. Each of `cuda_norm_parts` blocks adds its own rows in order, per column,
 * into one row of partial sums; a second kernel adds the partial rows. Both orders depend on sizes alone. */
#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/vec.cuh"

enum { WARPS = 8, SLOTS = WARPS * sizeof(float) }; /* of a block: rows at a time, or one row; memory for its sums */

template <int THREADS> __device__ static inline float row_sum(float x, float *slots) {
    return THREADS == 32 ? lane_sum<32>(x) : block_sum<WARPS * 32>(x, slots);
}

template <int THREADS, int GROUPS> __global__ static void __launch_bounds__(WARPS * 32) norm_rows(train_norm a) {
    __shared__ float slots[WARPS];
    bf16 *y = (bf16 *)a.y, *sum = (bf16 *)a.sum;
    const bf16 *x = (const bf16 *)a.x, *add = (const bf16 *)a.add, *weight = (const bf16 *)a.weight;
    int width = (int)a.width;
    constexpr int per_block = WARPS * 32 / THREADS;
    int64_t row = (int64_t)blockIdx.x * per_block + threadIdx.x / THREADS;
    if (row >= a.rows) return; /* whole warps, or the whole block */
    int lane = threadIdx.x % THREADS;
    uint4 kept[GROUPS], more[GROUPS] = {}; /* as in memory. All reads come first: `sum` may be x or add, so the compiler
                                              moves no read before a write */
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        int column = (g * THREADS + lane) * 8;
        if (column < width) kept[g] = raw8(x + row * a.ld_x + column);
    }
    if (add) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            int column = (g * THREADS + lane) * 8;
            if (column < width) more[g] = raw8(add + row * width + column);
        }
    }
    float squares = 0;
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        int column = (g * THREADS + lane) * 8;
        if (column >= width) continue;
        vec8 v = wide8(kept[g]);
        if (add) {
            vec8 other = wide8(more[g]);
#pragma unroll
            for (int i = 0; i < 8; i++) v.x[i] += other.x[i];
            kept[g] = narrow8(v); /* the sum as it is rounded */
            *reinterpret_cast<uint4 *>(sum + row * width + column) = kept[g];
            v = wide8(kept[g]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) squares += v.x[i] * v.x[i];
    }
    if (!y) return; /* only the sum is wanted: the end of a pipeline stage, gradients of a ring */
    float scale = rsqrtf(row_sum<THREADS>(squares, slots) / (float)width + a.eps);
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        int column = (g * THREADS + lane) * 8;
        if (column >= width) continue;
        vec8 v = wide8(kept[g]), w = load8(weight + column);
#pragma unroll
        for (int i = 0; i < 8; i++) v.x[i] *= scale * (w.x[i] + a.shift);
        store8(y + row * a.ld_y + column, v);
    }
}

/* Bytes of shared memory in which the threads of a block keep rows of x, d_y and d_x. */
static constexpr size_t kept_bytes(int rows, int groups) {
    return (size_t)rows * 3 * groups * WARPS * 32 * sizeof(uint4);
}

/* With r = 1 / rms, n = x r and w the weight and its shift:  d_x += r (w d_y - n mean(n w d_y)),  d_w += n d_y.
 * A thread fetches its columns of the row after the next into shared memory, where it alone reads them, so that a row
 * at least is on its way while it works on another. With ROWS 1, for GPUs whose blocks have less memory, the next row
 * is. */
template <int THREADS, int GROUPS, int ROWS>
__global__ static void __launch_bounds__(WARPS * 32, GROUPS > 4 ? 1 : 2)
    norm_rows_backward(train_norm a, float *parts) {
    __shared__ float slots[WARPS];
    bf16 *d_x = (bf16 *)a.d_x;
    const bf16 *d_y = (const bf16 *)a.d_y, *x = (const bf16 *)a.x, *weight = (const bf16 *)a.weight;
    int width = (int)a.width;
    extern __shared__ uint4 kept[];                   /* [ROWS, 3, GROUPS, threads] */
    float *columns = reinterpret_cast<float *>(kept); /* at the end: [warps, width] where a warp has a row */
    constexpr int per_block = WARPS * 32 / THREADS, array = GROUPS * WARPS * 32;
    int lane = threadIdx.x % THREADS, turn = 0;
    float d_w[GROUPS][8] = {}, each = 1 / (float)width;
    int64_t stride = (int64_t)gridDim.x * per_block;
    auto has = [&](int g) { return (g * THREADS + lane) * 8 < width; };
    auto fetch = [&](int64_t row, int to) {
        uint4 *own = kept + to * 3 * array + threadIdx.x;
        if (row < a.rows) {
#pragma unroll
            for (int g = 0; g < GROUPS; g++) {
                if (!has(g)) continue;
                int column = (g * THREADS + lane) * 8;
                fetch8(own + g * WARPS * 32, x + row * a.ld_x + column);
                fetch8(own + array + g * WARPS * 32, d_y + row * a.ld_y + column);
                fetch8(own + 2 * array + g * WARPS * 32, d_x + row * width + column);
            }
        }
        fetches_end();
    };
    int64_t row = (int64_t)blockIdx.x * per_block + threadIdx.x / THREADS;
    fetch(row, 0);
    if (ROWS > 1) fetch(row + stride, 1);
    uint4 w_raw[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        if (has(g)) w_raw[g] = raw8(weight + (g * THREADS + lane) * 8);
    for (; row < a.rows; row += stride, turn ^= ROWS - 1) {
        const uint4 *own = kept + turn * 3 * array + threadIdx.x;
        bf16 *to = d_x + row * width + lane * 8;
        float squares = 0, product = 0;
        fetches_wait<ROWS - 1>();
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            if (!has(g)) continue;
            vec8 v = wide8(own[g * WARPS * 32]), g_y = wide8(own[array + g * WARPS * 32]), w = wide8(w_raw[g]);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                squares += v.x[i] * v.x[i];
                product += v.x[i] * ((w.x[i] + a.shift) * g_y.x[i]);
            }
        }
        float scale = rsqrtf(row_sum<THREADS>(squares, slots) * each + a.eps);
        float mean = row_sum<THREADS>(product, slots) * scale * each, back = -scale * mean;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            if (!has(g)) continue;
            vec8 v = wide8(own[g * WARPS * 32]), g_y = wide8(own[array + g * WARPS * 32]), w = wide8(w_raw[g]),
                 d = wide8(own[2 * array + g * WARPS * 32]);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float n = v.x[i] * scale;
                d_w[g][i] += n * g_y.x[i];
                d.x[i] += scale * ((w.x[i] + a.shift) * g_y.x[i]) + back * n;
            }
            store8(to + g * THREADS * 8, d);
        }
        fetch(row + ROWS * stride, turn);
    }
    float *part = parts + (int64_t)blockIdx.x * width;
    if (THREADS > 32) {
#pragma unroll
        for (int g = 0; g < GROUPS; g++)
            for (int i = 0; i < 8; i++) {
                int column = (g * THREADS + lane) * 8 + i;
                if (column < width) part[column] = d_w[g][i];
            }
        return;
    }
    __syncthreads(); /* nobody reads rows any more */
    float *own = columns + (threadIdx.x / 32) * width;
#pragma unroll
    for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < 8; i++) {
            int column = (g * THREADS + lane) * 8 + i;
            if (column < width) own[column] = d_w[g][i];
        }
    __syncthreads();
    for (int column = threadIdx.x; column < width; column += WARPS * 32) {
        float total = 0;
        for (int warp = 0; warp < WARPS; warp++) total += columns[warp * width + column];
        part[column] = total;
    }
}

/* to[column] += the column's partial sums; blockIdx.y 1: `second` += those of `width` columns further on. A block has
 * 32 columns and 32 runs of parts, so a thread waits for memory about once. Runs are added by a tree. */
__global__ static void __launch_bounds__(1024)
    add_parts(float *to, float *second, const float *parts, int count, int width, int ld) {
    __shared__ float runs[32][33];
    int lane = threadIdx.x % 32, run = threadIdx.x / 32, each = (count + 31) / 32, first = blockIdx.x * 32;
    int last = min(count, (run + 1) * each);
    const float *from = parts + (blockIdx.y ? width : 0) + first + lane;
    float total = 0;
    if (first + lane < width) {
#pragma unroll 8
        for (int p = run * each; p < last; p++) total += from[(int64_t)p * ld];
    }
    runs[run][lane] = total;
    __syncthreads();
    total = lane_sum<32>(runs[lane][run]); /* of column first + run */
    if (lane == 0 && first + run < width) (blockIdx.y ? second : to)[first + run] += total;
}

extern "C" void cuda_add_parts(cudaStream_t stream, float *to, float *second, const float *parts, int64_t count,
                               int64_t width, int64_t ld) {
    dim3 grid((unsigned)((width + 31) / 32), second ? 2 : 1);
    add_parts<<<grid, 1024, 0, stream>>>(to, second, parts, (int)count, (int)width, (int)ld);
}

/* Blocks of the backward pass: two per multiprocessor of the largest part, and never more than there are rows for. A
 * function of the rows alone. */
extern "C" int64_t cuda_norm_parts(int64_t rows) {
    int64_t blocks = (rows + WARPS - 1) / WARPS;
    return blocks < 264 ? blocks : 264;
}

#define EACH_WIDTH(X)           \
    if (width <= 256) {         \
        X(32, 1)                \
    } else if (width <= 512) {  \
        X(32, 2)                \
    } else if (width <= 1024) { \
        X(32, 4)                \
    } else if (width <= 2048) { \
        X(32, 8)                \
    } else if (width <= 4096) { \
        X(256, 2)               \
    } else if (width <= 8192) { \
        X(256, 4)               \
    } else {                    \
        X(256, 8)               \
    }

extern "C" void cuda_rmsnorm(cudaStream_t stream, const train_norm *a) {
    int64_t rows = a->rows, width = a->width;
    if (rows <= 0) return;
#define LAUNCH(THREADS, GROUPS) \
    norm_rows<THREADS, GROUPS>  \
        <<<(unsigned)((rows * THREADS + WARPS * 32 - 1) / (WARPS * 32)), WARPS * 32, 0, stream>>>(*a);
    EACH_WIDTH(LAUNCH)
#undef LAUNCH
}

extern "C" void cuda_rmsnorm_backward(cudaStream_t stream, const train_norm *a, float *parts) {
    int64_t width = a->width;
    if (a->rows <= 0) return;
    unsigned blocks = (unsigned)cuda_norm_parts(a->rows);
    size_t most = cuda_forms_here().shared;
    auto launch = [&](auto *kernel, size_t bytes) {
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
        kernel<<<blocks, WARPS * 32, bytes, stream>>>(*a, parts);
    };
#define LAUNCH(THREADS, GROUPS)                                                    \
    {                                                                              \
        if (kept_bytes(2, GROUPS) + SLOTS <= most)                                 \
            launch(norm_rows_backward<THREADS, GROUPS, 2>, kept_bytes(2, GROUPS)); \
        else                                                                       \
            launch(norm_rows_backward<THREADS, GROUPS, 1>, kept_bytes(1, GROUPS)); \
    }
    EACH_WIDTH(LAUNCH)
#undef LAUNCH
    cuda_add_parts(stream, (float *)a->d_weight, NULL, parts, blocks, width, width);
}
