/* What the two decode kernels (decode.cu, decode_bulk.cu) share: the running softmax of a team of lanes, and joining the
 * teams of a split and the splits of a row, each in a fixed order. Both kernels give a row the same bits. Internal to the
 * CUDA set. */
#ifndef TRAIN_CUDA_DECODE_CUH
#define TRAIN_CUDA_DECODE_CUH

#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/vec.cuh"

enum { PAGE = 64, SPLIT = 512, TEAM_THREADS = 128, UNROLL = 4 };

/* Waits for the TEAM_THREADS threads that hold teams; others of the block take no part. */
__device__ static inline void teams_sync() {
    asm volatile("bar.sync 1, %0;" ::"n"((int)TEAM_THREADS) : "memory");
}

/* Eight values of keys and of values, for each of UNROLL tokens, as they are in memory. */
struct step {
    uint4 k[UNROLL], v[UNROLL];
};

/* A lane's share of its team's running softmax, for the GROUP query heads of a key head. */
template <int GROUP> struct running {
    vec8 q[GROUP];
    float most[GROUP], sum[GROUP], o[GROUP][8];
};

template <int LANES, int GROUP>
__device__ static inline void begin_row(running<GROUP> &r, const cuda_decode_args &a, int row, int kv, int lane) {
    int group = a.heads / a.kv_heads;
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        r.most[g] = -INFINITY;
        r.sum[g] = 0;
        int head = kv * group + min(g, group - 1);
        r.q[g] = load8((const bf16 *)a.q + row * a.ld_q + head * LANES * 8 + lane * 8);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            r.q[g].x[i] *= a.scale;
            r.o[g][i] = 0;
        }
    }
}

/* Tokens first, first + stride, ...; those from `end` on count as none. */
template <int LANES, int GROUP>
__device__ static inline void add_tokens(running<GROUP> &r, const vec8 *k, const vec8 *v, int first, int stride,
                                         int end) {
    float s[GROUP][UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
#pragma unroll
        for (int g = 0; g < GROUP; g++) {
            float total = 0;
#pragma unroll
            for (int i = 0; i < 8; i++) total += r.q[g].x[i] * k[u].x[i];
            total = lane_sum<LANES>(total);
            s[g][u] = first + u * stride < end ? total : -INFINITY;
        }
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        float now = r.most[g];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) now = fmaxf(now, s[g][u]);
        if (now == -INFINITY) continue;
        float keep = __expf(r.most[g] - now);
        r.sum[g] *= keep;
#pragma unroll
        for (int i = 0; i < 8; i++) r.o[g][i] *= keep;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float p = __expf(s[g][u] - now);
            r.sum[g] += p;
#pragma unroll
            for (int i = 0; i < 8; i++) r.o[g][i] += p * v[u].x[i];
        }
        r.most[g] = now;
    }
}

/* Shared memory in which the teams of a block are joined. */
template <int LANES, int GROUP> struct joint {
    static constexpr int teams = TEAM_THREADS / LANES, dim = LANES * 8;
    float most[teams][GROUP], sum[teams][GROUP];
    float o[teams][dim + 1];
};

/* The floats of a split's partial result: dim values, then the maximum and the sum. */
__device__ static inline float *partial_of(const cuda_decode_args &a, int row, int head, int split) {
    int splits = (a.longest + SPLIT - 1) / SPLIT;
    return a.partial + (((int64_t)row * a.heads + head) * splits + split) * (a.head_dim + 2);
}

/* Joins the teams' results of one split, first team to last: into the output where it is the row's only split, else into
 * the partial results. */
template <int LANES, int GROUP>
__device__ static void join_teams(joint<LANES, GROUP> &shared, const running<GROUP> &r, const cuda_decode_args &a,
                                  int row, int kv, int split, int length) {
    constexpr int teams = joint<LANES, GROUP>::teams, dim = joint<LANES, GROUP>::dim;
    int group = a.heads / a.kv_heads, team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
#pragma unroll
    for (int g = 0; g < GROUP; g++)
        if (lane == 0) {
            shared.most[team][g] = r.most[g];
            shared.sum[team][g] = r.sum[g];
        }
    for (int g = 0; g < group; g++) {
        teams_sync();
#pragma unroll
        for (int x = 0; x < GROUP; x++)
            if (x == g)
#pragma unroll
                for (int i = 0; i < 8; i++) shared.o[team][lane * 8 + i] = r.o[x][i];
        teams_sync();
        float all = -INFINITY, total = 0;
        for (int t = 0; t < teams; t++) all = fmaxf(all, shared.most[t][g]);
        for (int t = 0; t < teams; t++)
            total += all > -INFINITY ? shared.sum[t][g] * __expf(shared.most[t][g] - all) : 0;
        float *partial = partial_of(a, row, kv * group + g, split);
        for (int i = threadIdx.x; i < dim; i += TEAM_THREADS) {
            float value = 0;
            for (int t = 0; t < teams; t++)
                if (shared.most[t][g] > -INFINITY) value += shared.o[t][i] * __expf(shared.most[t][g] - all);
            if (length <= SPLIT)
                ((bf16 *)a.o)[((int64_t)row * a.heads + kv * group + g) * dim + i] =
                    __float2bfloat16(total > 0 ? value / total : 0);
            else
                partial[i] = value;
        }
        if (threadIdx.x == 0 && length > SPLIT) {
            partial[dim] = all;
            partial[dim + 1] = total;
        }
    }
}

/* Joins the splits of a row's head, first to last, by `threads` threads of which this is number `thread`. */
__device__ static inline void join_splits(const cuda_decode_args &a, int row, int head, int length, int thread,
                                          int threads) {
    int dim = a.head_dim, first = a.window > 0 ? max(0, length - a.window) / SPLIT : 0;
    int last = (length + SPLIT - 1) / SPLIT;
    const float *from = partial_of(a, row, head, 0);
    float most = -INFINITY, total = 0;
    for (int s = first; s < last; s++) most = fmaxf(most, __ldcg(from + s * (dim + 2) + dim));
    for (int s = first; s < last; s++)
        total += __ldcg(from + s * (dim + 2) + dim + 1) * __expf(__ldcg(from + s * (dim + 2) + dim) - most);
    for (int i = thread; i < dim; i += threads) {
        float value = 0;
        for (int s = first; s < last; s++)
            value += __ldcg(from + s * (dim + 2) + i) * __expf(__ldcg(from + s * (dim + 2) + dim) - most);
        ((bf16 *)a.o)[((int64_t)row * a.heads + head) * dim + i] = __float2bfloat16(total > 0 ? value / total : 0);
    }
}

#endif
