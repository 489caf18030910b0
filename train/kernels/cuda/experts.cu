/* Routing and the weights of what experts give: a warp for each row. */
#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/vec.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS };

static unsigned blocks_for(int64_t rows) {
    return (unsigned)((rows + WARPS - 1) / WARPS);
}

__device__ static inline int64_t row_of_warp(void) {
    return (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
}

/* The larger of two logits with the lower of their experts; `taken` is below every expert. */
__device__ static inline void better(float &value, int &expert, float other, int other_expert) {
    bool wins = other_expert >= 0 && (expert < 0 || other > value || (other == value && other_expert < expert));
    value = wins ? other : value;
    expert = wins ? other_expert : expert;
}

/* log of the sum of exp(row), the same on all lanes */
__device__ static inline float log_sum(const bf16 *row, int experts, int lane) {
    float most = -INFINITY, sum = 0;
    for (int e = lane; e < experts; e += 32) most = fmaxf(most, __bfloat162float(row[e]));
    most = lane_max<32>(most);
    for (int e = lane; e < experts; e += 32) sum += __expf(__bfloat162float(row[e]) - most);
    return most + __logf(lane_sum<32>(sum));
}

/* The next expert: the largest logit after (value, expert) in the order of choice. */
__device__ static inline void next_expert(const bf16 *row, int experts, int lane, float &value, int &expert) {
    float best = 0;
    int at = -1;
    for (int e = lane; e < experts; e += 32) {
        float x = __bfloat162float(row[e]);
        bool after = expert < 0 || x < value || (x == value && e > expert);
        if (after) better(best, at, x, e);
    }
    for (int step = 16; step > 0; step /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, best, step);
        int other_expert = __shfl_xor_sync(0xffffffffu, at, step);
        better(best, at, other, other_expert);
    }
    value = best;
    expert = at;
}

__global__ static void route(train_route x) {
    int64_t r = row_of_warp();
    int lane = threadIdx.x % 32;
    if (r >= x.rows) return;
    const bf16 *row = (const bf16 *)x.logits + r * x.experts;
    int32_t *ids = x.ids + r * x.active;
    float *weights = x.weights + r * x.active, total = log_sum(row, x.experts, lane), sum = 0, value = 0;
    int choose = !x.given || ids[0] < 0, expert = -1;
    for (int i = 0; i < x.active; i++) {
        if (choose)
            next_expert(row, x.experts, lane, value, expert);
        else
            expert = ids[i];
        sum += __expf(__bfloat162float(row[expert]) - total);
        if (choose && lane == 0) ids[i] = expert;
    }
    __syncwarp();
    for (int i = lane; i < x.active; i += 32)
        weights[i] = __expf(__bfloat162float(row[ids[i]]) - total) / (x.normalise ? sum : 1);
}

extern "C" void cuda_route(cudaStream_t stream, const train_route *args) {
    if (args->rows > 0) route<<<blocks_for(args->rows), THREADS, 0, stream>>>(*args);
}

/* With p the probabilities and g their gradient: the gradient of a logit is p (g - sum of p g); see the reference. */
__global__ static void route_backward(train_route x) {
    int64_t r = row_of_warp();
    int lane = threadIdx.x % 32;
    if (r >= x.rows) return;
    const bf16 *row = (const bf16 *)x.logits + r * x.experts;
    const int32_t *ids = x.ids + r * x.active;
    const float *d_w = x.d_weights + r * x.active;
    bf16 *to = (bf16 *)x.d_logits + r * x.experts;
    float times = !x.balance ? 0 : x.counted ? (float)x.counted[r] : 1;
    float total = log_sum(row, x.experts, lane), sum = 0, pull = 0, mean = 0, loss = 0;
    for (int i = 0; i < x.active; i++) {
        float p = __expf(__bfloat162float(row[ids[i]]) - total);
        sum += p;
        pull += p * d_w[i];
    }
    if (!x.normalise) sum = 1;
    pull = x.normalise ? pull / sum : 0;
    for (int i = 0; i < x.active; i++) mean += __expf(__bfloat162float(row[ids[i]]) - total) * (d_w[i] - pull) / sum;
    for (int e = lane; e < x.experts && times > 0; e += 32)
        loss += times * __expf(__bfloat162float(row[e]) - total) * x.balance[e];
    loss = lane_sum<32>(loss);
    for (int e = lane; e < x.experts; e += 32) {
        float g = times > 0 ? times * x.balance[e] : 0;
        for (int i = 0; i < x.active; i++)
            if (ids[i] == e) g += (d_w[i] - pull) / sum;
        to[e] = __float2bfloat16(__expf(__bfloat162float(row[e]) - total) * (g - mean - loss));
    }
    if (x.row_loss && lane == 0) x.row_loss[r] += loss;
}

extern "C" void cuda_route_backward(cudaStream_t stream, const train_route *args) {
    if (args->rows > 0) route_backward<<<blocks_for(args->rows), THREADS, 0, stream>>>(*args);
}

__global__ static void weigh(train_weigh a) {
    int64_t r = row_of_warp();
    int lane = threadIdx.x % 32;
    if (r >= a.rows) return;
    bf16 *x = (bf16 *)a.x + r * a.width, *d_y = a.d_y ? (bf16 *)a.d_y + r * a.width : NULL;
    int64_t place = a.places ? a.places[r] : r;
    float weight = a.weights[place], dot = 0;
    for (int64_t i = lane * 8; i < a.width; i += 32 * 8) {
        vec8 row = load8(x + i), d = d_y ? load8(d_y + i) : row;
#pragma unroll
        for (int j = 0; j < 8; j++) {
            dot += row.x[j] * d.x[j];
            row.x[j] *= weight;
            d.x[j] *= weight;
        }
        store8(x + i, row);
        if (d_y) store8(d_y + i, d);
    }
    dot = lane_sum<32>(dot);
    if (d_y && lane == 0) a.d_weights[place] = dot;
}

extern "C" void cuda_weigh(cudaStream_t stream, const train_weigh *args) {
    if (args->rows > 0) weigh<<<blocks_for(args->rows), THREADS, 0, stream>>>(*args);
}
