/* From raw q and k of a token to normalised and rotated ones, and back.
 *
 * A head is a group of head_dim / 8 lanes. Lane j holds elements 4j .. 4j+3 of the first half and their partners, half
 * a head further on, so a pair is rotated inside one thread and the sum of squares is a shuffle over the group. Queries
 * and keys are done by one launch: heads 0 .. heads-1 are queries, the rest keys. */
#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/vec.cuh"

enum { THREADS = 256 };

struct quad {
    float x[4];
};

__device__ static inline quad load4(const bf16 *p) {
    uint2 raw = *reinterpret_cast<const uint2 *>(p);
    const __nv_bfloat162 *pair = reinterpret_cast<const __nv_bfloat162 *>(&raw);
    float2 a = __bfloat1622float2(pair[0]), b = __bfloat1622float2(pair[1]);
    return {{a.x, a.y, b.x, b.y}};
}

__device__ static inline void store4(bf16 *p, const quad &v) {
    uint2 raw;
    __nv_bfloat162 *pair = reinterpret_cast<__nv_bfloat162 *>(&raw);
    pair[0] = __floats2bfloat162_rn(v.x[0], v.x[1]);
    pair[1] = __floats2bfloat162_rn(v.x[2], v.x[3]);
    *reinterpret_cast<uint2 *>(p) = raw;
}

__device__ static inline quad load4(const float *p) {
    float4 f = *reinterpret_cast<const float4 *>(p);
    return {{f.x, f.y, f.z, f.w}};
}

template <int LANES> __global__ static void __launch_bounds__(THREADS) rotate(cuda_rope_args a) {
    constexpr int half = LANES * 4, dim = 2 * half;
    unsigned all = (unsigned)(a.heads + a.kv_heads); /* 32 bits: a division of 64 takes longer than the memory */
    unsigned place = blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES;
    int lane = threadIdx.x % LANES;
    int64_t token = place / all;
    if (token >= a.tokens) return;
    int head = (int)(place % all);
    bool query = head < a.heads;
    const bf16 *from =
        (const bf16 *)a.qkv + token * (int64_t)(a.heads + 2 * a.kv_heads) * dim + (int64_t)head * dim + lane * 4;
    quad lo = load4(from), hi = load4(from + half);
    const bf16 *weight = (const bf16 *)(query ? a.q_weight : a.k_weight);
    if (weight) {
        float squares = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) squares += lo.x[i] * lo.x[i] + hi.x[i] * hi.x[i];
        unsigned mask = __activemask();
#pragma unroll
        for (int step = LANES / 2; step > 0; step /= 2) squares += __shfl_xor_sync(mask, squares, step);
        float scale = rsqrtf(squares / dim + a.eps);
        quad w_lo = load4(weight + lane * 4), w_hi = load4(weight + half + lane * 4);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            lo.x[i] *= scale * w_lo.x[i];
            hi.x[i] *= scale * w_hi.x[i];
        }
    }
    int64_t at = (int64_t)a.positions[token] * half + lane * 4;
    quad c = load4(a.cosine + at), s = load4(a.sine + at), out_lo, out_hi;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        out_lo.x[i] = lo.x[i] * c.x[i] - hi.x[i] * s.x[i];
        out_hi.x[i] = hi.x[i] * c.x[i] + lo.x[i] * s.x[i];
    }
    bf16 *to = query ? (bf16 *)a.q + (token * a.heads + head) * dim
                     : (bf16 *)a.k + (token * a.kv_heads + head - a.heads) * dim;
    store4(to + lane * 4, out_lo);
    store4(to + half + lane * 4, out_hi);
}

/* Turns a gradient back by the same angle, then through the norm: with r = 1 / rms, n = x r,
 * d_x = r (w d - n mean(n w d)) and d_w += n d. A group walks over every token of its head's stride, so that the
 * weight's gradient stays in registers; blocks leave one row of partial sums per kind (queries first, then keys). */
template <int LANES> __global__ static void __launch_bounds__(THREADS) rotate_back(cuda_rope_args a, float *parts) {
    constexpr int half = LANES * 4, dim = 2 * half, groups = THREADS / LANES;
    extern __shared__ float all_w[]; /* [groups, 2, dim] */
    int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    unsigned all = (unsigned)(a.heads + a.kv_heads), places = (unsigned)(a.tokens * all), stride = gridDim.x * groups;
    float sum_lo[2][4] = {}, sum_hi[2][4] = {};
    /* Every lane of a warp takes part in each round, because shuffles need them. */
    for (unsigned first = blockIdx.x * groups; first < places; first += stride) {
        unsigned place = first + group;
        bool active = place < places;
        int64_t token = active ? place / all : 0;
        int head = active ? (int)(place % all) : 0;
        bool query = head < a.heads;
        int64_t row = (int64_t)(a.heads + 2 * a.kv_heads) * dim;
        const bf16 *from = query ? (const bf16 *)a.d_q + (token * a.heads + head) * dim
                                 : (const bf16 *)a.d_k + (token * a.kv_heads + head - a.heads) * dim;
        quad g_lo = load4(from + lane * 4), g_hi = load4(from + half + lane * 4);
        int64_t at = (int64_t)a.positions[token] * half + lane * 4;
        quad c = load4(a.cosine + at), s = load4(a.sine + at), lo, hi;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            lo.x[i] = g_lo.x[i] * c.x[i] + g_hi.x[i] * s.x[i];
            hi.x[i] = g_hi.x[i] * c.x[i] - g_lo.x[i] * s.x[i];
        }
        const bf16 *weight = (const bf16 *)(query ? a.q_weight : a.k_weight);
        if (a.q_weight) {
            const bf16 *x = (const bf16 *)a.qkv + token * row + (int64_t)head * dim + lane * 4;
            quad x_lo = load4(x), x_hi = load4(x + half), w_lo = load4(weight + lane * 4),
                 w_hi = load4(weight + half + lane * 4);
            float squares = 0, product = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                squares += x_lo.x[i] * x_lo.x[i] + x_hi.x[i] * x_hi.x[i];
                product += x_lo.x[i] * w_lo.x[i] * lo.x[i] + x_hi.x[i] * w_hi.x[i] * hi.x[i];
            }
            squares = lane_sum<LANES>(squares);
            product = lane_sum<LANES>(product);
            float scale = rsqrtf(squares / dim + a.eps), mean = product * scale / dim;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float n_lo = x_lo.x[i] * scale, n_hi = x_hi.x[i] * scale;
                float add_lo = active ? n_lo * lo.x[i] : 0, add_hi = active ? n_hi * hi.x[i] : 0;
                sum_lo[0][i] += query ? add_lo : 0; /* no index that is known only at run time: sums are in registers */
                sum_hi[0][i] += query ? add_hi : 0;
                sum_lo[1][i] += query ? 0 : add_lo;
                sum_hi[1][i] += query ? 0 : add_hi;
                lo.x[i] = scale * (w_lo.x[i] * lo.x[i] - n_lo * mean);
                hi.x[i] = scale * (w_hi.x[i] * hi.x[i] - n_hi * mean);
            }
        }
        if (!active) continue;
        bf16 *to = (bf16 *)a.d_qkv + token * row + (int64_t)head * dim + lane * 4;
        store4(to, lo);
        store4(to + half, hi);
    }
    if (!a.q_weight) return;
#pragma unroll
    for (int kind = 0; kind < 2; kind++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            all_w[(group * 2 + kind) * dim + lane * 4 + i] = sum_lo[kind][i];
            all_w[(group * 2 + kind) * dim + half + lane * 4 + i] = sum_hi[kind][i];
        }
    __syncthreads();
    for (int column = threadIdx.x; column < 2 * dim; column += THREADS) {
        float total = 0;
        for (int g = 0; g < groups; g++) total += all_w[g * 2 * dim + column];
        parts[(int64_t)blockIdx.x * 2 * dim + column] = total;
    }
}

/* Blocks of the backward pass; a function of the tokens alone. */
extern "C" int64_t cuda_rope_parts(int64_t tokens) {
    return tokens < 528 ? tokens : 528;
}

#define EACH_DIM(X)        \
    switch (a->head_dim) { \
    case 8: X(1) break;    \
    case 16: X(2) break;   \
    case 32: X(4) break;   \
    case 64: X(8) break;   \
    case 128: X(16) break; \
    case 256: X(32) break; \
    }

extern "C" void cuda_rope(cudaStream_t stream, const cuda_rope_args *a) {
    if (a->tokens <= 0) return;
#define LAUNCH(LANES)                                                                                                 \
    rotate<LANES>                                                                                                     \
        <<<(unsigned)((a->tokens * (a->heads + a->kv_heads) * LANES + THREADS - 1) / THREADS), THREADS, 0, stream>>>( \
            *a);
    EACH_DIM(LAUNCH)
#undef LAUNCH
}

extern "C" void cuda_rope_backward(cudaStream_t stream, const cuda_rope_args *a, float *parts) {
    if (a->tokens <= 0) return;
    int64_t blocks = cuda_rope_parts(a->tokens);
#define LAUNCH(LANES) \
    rotate_back<LANES><<<(unsigned)blocks, THREADS, (size_t)THREADS / LANES * 2 * LANES * 8 * 4, stream>>>(*a, parts);
    EACH_DIM(LAUNCH)
#undef LAUNCH
    if (!a->q_weight) return;
    /* The partial rows hold the queries' sums, then the keys'. */
    cuda_add_parts(stream, a->d_q_weight, a->d_k_weight, parts, blocks, a->head_dim, 2 * a->head_dim);
}
