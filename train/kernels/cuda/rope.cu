/* From raw q and k of a token to normalised and rotated ones, and back.
 *
 * A head is a group of head_dim / 8 lanes. Lane j holds elements 4j .. 4j+3 of the first half and their partners, half
 * a head further on, so a pair is rotated inside one thread and the sum of squares is a shuffle over the group. Queries
 * and keys are done by one launch: heads 0 .. heads-1 are queries, the rest keys.
 *
 * A warp has one token and a chunk of its heads at a time, HEADS per group: it reads the token's angles once for all of
 * them, and has all their reads under way before it waits for the first. */
#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/vec.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, HEADS = 4 };

struct quad {
    float x[4];
};

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

/* A lane's eight elements of a head, as they are in memory. */
struct raw_head {
    uint2 lo, hi;
};
struct head {
    quad lo, hi;
};

template <int LANES> __device__ static inline raw_head raw_of(const bf16 *head, int lane) {
    const bf16 *lo = head + lane * 4;
    return {*reinterpret_cast<const uint2 *>(lo), *reinterpret_cast<const uint2 *>(lo + LANES * 4)};
}

__device__ static inline quad wide4(const uint2 &raw) {
    const __nv_bfloat162 *pair = reinterpret_cast<const __nv_bfloat162 *>(&raw);
    float2 a = __bfloat1622float2(pair[0]), b = __bfloat1622float2(pair[1]);
    return {{a.x, a.y, b.x, b.y}};
}

__device__ static inline head wide_head(const raw_head &raw) {
    return {wide4(raw.lo), wide4(raw.hi)};
}

template <int LANES> __device__ static inline void store_head(bf16 *to, int lane, const head &h) {
    store4(to + lane * 4, h.lo);
    store4(to + LANES * 4 + lane * 4, h.hi);
}

/* What a warp does at a time: heads first, first + stride, ... of a token. */
template <int LANES> struct chunk {
    static constexpr unsigned stride = 32 / LANES, heads = stride * HEADS;
    int64_t token;
    unsigned first;
};

template <int LANES> __device__ static inline unsigned chunks_of(const cuda_rope_args &a) {
    return ((unsigned)(a.heads + a.kv_heads) + chunk<LANES>::heads - 1) / chunk<LANES>::heads;
}

/* 32 bits: a division of 64 takes longer than the memory. */
template <int LANES> __device__ static inline chunk<LANES> chunk_at(unsigned place, unsigned chunks) {
    unsigned token = place / chunks, group = threadIdx.x % 32 / LANES;
    return {token, (place - token * chunks) * chunk<LANES>::heads + group};
}

/* A head of the queries or, after them, of the keys; [tokens, heads] of each kind. */
__device__ static inline int64_t place_of(const cuda_rope_args &a, int64_t token, unsigned h, bool query) {
    return query ? token * a.heads + h : token * a.kv_heads + h - a.heads;
}

template <int LANES> __global__ static void __launch_bounds__(THREADS) rotate(cuda_rope_args a) {
    constexpr int half = LANES * 4, dim = 2 * half;
    unsigned all = (unsigned)(a.heads + a.kv_heads), chunks = chunks_of<LANES>(a);
    chunk<LANES> at = chunk_at<LANES>(blockIdx.x * WARPS + threadIdx.x / 32, chunks);
    if (at.token >= a.tokens) return; /* whole warps: shuffles need every lane */
    int lane = threadIdx.x % LANES;
    const bf16 *row = (const bf16 *)a.qkv + at.token * (int64_t)(a.heads + 2 * a.kv_heads) * dim;
    raw_head raw[HEADS] = {};
#pragma unroll
    for (int u = 0; u < HEADS; u++)
        if (at.first + u * at.stride < all) raw[u] = raw_of<LANES>(row + (at.first + u * at.stride) * dim, lane);
    int64_t angle = (int64_t)a.positions[at.token] * half + lane * 4;
    quad c = load4(a.cosine + angle), s = load4(a.sine + angle);
#pragma unroll
    for (int u = 0; u < HEADS; u++) {
        unsigned h = at.first + u * at.stride;
        bool query = h < (unsigned)a.heads;
        head x = wide_head(raw[u]), y;
        const bf16 *weight = (const bf16 *)(query ? a.q_weight : a.k_weight);
        if (weight) {
            float squares = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) squares += x.lo.x[i] * x.lo.x[i] + x.hi.x[i] * x.hi.x[i];
            float scale = rsqrtf(lane_sum<LANES>(squares) / dim + a.eps);
            head w = wide_head(raw_of<LANES>(weight, lane));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x.lo.x[i] *= scale * w.lo.x[i];
                x.hi.x[i] *= scale * w.hi.x[i];
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            y.lo.x[i] = x.lo.x[i] * c.x[i] - x.hi.x[i] * s.x[i];
            y.hi.x[i] = x.hi.x[i] * c.x[i] + x.lo.x[i] * s.x[i];
        }
        if (h < all) store_head<LANES>((bf16 *)(query ? a.q : a.k) + place_of(a, at.token, h, query) * dim, lane, y);
    }
}

/* Turns a gradient back by the same angle, then through the norm: with r = 1 / rms, n = x r,
 * d_x = r (w d - n mean(n w d)) and d_w += n d. A warp walks over chunks, so that the weight's gradient stays in registers;
 * blocks leave one row of partial sums per kind (queries first, then keys). */
template <int LANES> __global__ static void __launch_bounds__(THREADS, 2) rotate_back(cuda_rope_args a, float *parts) {
    constexpr int half = LANES * 4, dim = 2 * half, groups = THREADS / LANES;
    extern __shared__ float all_w[]; /* [groups, 2, dim] */
    int lane = threadIdx.x % LANES, group = threadIdx.x / LANES;
    unsigned all = (unsigned)(a.heads + a.kv_heads), chunks = chunks_of<LANES>(a), places = (unsigned)a.tokens * chunks;
    int64_t row = (int64_t)(a.heads + 2 * a.kv_heads) * dim;
    float sum_lo[2][4] = {}, sum_hi[2][4] = {};
    for (unsigned place = blockIdx.x * WARPS + threadIdx.x / 32; place < places; place += gridDim.x * WARPS) {
        chunk<LANES> at = chunk_at<LANES>(place, chunks);
        raw_head g_raw[HEADS] = {}, x_raw[HEADS] = {};
#pragma unroll
        for (int u = 0; u < HEADS; u++) {
            unsigned h = at.first + u * at.stride;
            bool query = h < (unsigned)a.heads;
            if (h >= all) continue;
            g_raw[u] =
                raw_of<LANES>((const bf16 *)(query ? a.d_q : a.d_k) + place_of(a, at.token, h, query) * dim, lane);
            if (a.q_weight) x_raw[u] = raw_of<LANES>((const bf16 *)a.qkv + at.token * row + h * dim, lane);
        }
        int64_t angle = (int64_t)a.positions[at.token] * half + lane * 4;
        quad c = load4(a.cosine + angle), s = load4(a.sine + angle);
#pragma unroll
        for (int u = 0; u < HEADS; u++) {
            unsigned h = at.first + u * at.stride;
            bool query = h < (unsigned)a.heads, here = h < all;
            head g = wide_head(g_raw[u]), d;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                d.lo.x[i] = g.lo.x[i] * c.x[i] + g.hi.x[i] * s.x[i];
                d.hi.x[i] = g.hi.x[i] * c.x[i] - g.lo.x[i] * s.x[i];
            }
            if (a.q_weight) {
                head x = wide_head(x_raw[u]);
                head w = wide_head(raw_of<LANES>((const bf16 *)(query ? a.q_weight : a.k_weight), lane));
                float squares = 0, product = 0;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    squares += x.lo.x[i] * x.lo.x[i] + x.hi.x[i] * x.hi.x[i];
                    product += x.lo.x[i] * w.lo.x[i] * d.lo.x[i] + x.hi.x[i] * w.hi.x[i] * d.hi.x[i];
                }
                squares = lane_sum<LANES>(squares);
                product = lane_sum<LANES>(product);
                float scale = rsqrtf(squares / dim + a.eps), mean = product * scale / dim;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    float n_lo = x.lo.x[i] * scale, n_hi = x.hi.x[i] * scale;
                    float add_lo = here ? n_lo * d.lo.x[i] : 0, add_hi = here ? n_hi * d.hi.x[i] : 0;
                    sum_lo[0][i] +=
                        query ? add_lo : 0; /* no index that is known only at run time: sums are in registers */
                    sum_hi[0][i] += query ? add_hi : 0;
                    sum_lo[1][i] += query ? 0 : add_lo;
                    sum_hi[1][i] += query ? 0 : add_hi;
                    d.lo.x[i] = scale * (w.lo.x[i] * d.lo.x[i] - n_lo * mean);
                    d.hi.x[i] = scale * (w.hi.x[i] * d.hi.x[i] - n_hi * mean);
                }
            }
            if (here) store_head<LANES>((bf16 *)a.d_qkv + at.token * row + h * dim, lane, d);
        }
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

/* Blocks of the backward pass, two per multiprocessor; a function of the tokens alone. */
extern "C" int64_t cuda_rope_parts(int64_t tokens) {
    return tokens < 264 ? tokens : 264;
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
#define LAUNCH(LANES)                                                                                    \
    {                                                                                                    \
        int64_t heads = 32 / LANES * HEADS, chunks = (a->heads + a->kv_heads + heads - 1) / heads;       \
        rotate<LANES><<<(unsigned)((a->tokens * chunks + WARPS - 1) / WARPS), THREADS, 0, stream>>>(*a); \
    }
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
