/* From raw q and k of a token to normalised and rotated ones, and back.
 *
 * A head is a group of head_dim / 8 lanes, or of the next power of two, whose last lanes have nothing. Lane j holds
 * pairs
 * 4j .. 4j+3: their first elements and their partners, half a head further on (of a head that turns in part: half of
 * that part), so a pair is rotated inside one thread and the sum of squares is a shuffle over the group. Queries and
 * keys are done by one launch: heads 0 .. heads-1 are queries, the rest keys.
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

/* The elements of a lane's pairs: from `lo` on, and `apart` further. */
struct lane_pairs {
    int lo, apart;
    bool used;
};

template <int DIM> __device__ static inline lane_pairs pairs_of(const train_rope &a) {
    int pair = threadIdx.x % lanes_of<DIM>::all * 4, turns = a.rotated / 2;
    bool used = pair < DIM / 2;
    if (pair < turns) return {pair, turns, used};
    return {pair + turns, DIM / 2 - turns, used};
}

__device__ static inline raw_head raw_of(const bf16 *head, const lane_pairs &at) {
    return {*reinterpret_cast<const uint2 *>(head + at.lo), *reinterpret_cast<const uint2 *>(head + at.lo + at.apart)};
}

__device__ static inline quad wide4(const uint2 &raw) {
    return {{low_half(raw.x), high_half(raw.x), low_half(raw.y), high_half(raw.y)}};
}

__device__ static inline head wide_head(const raw_head &raw) {
    return {wide4(raw.lo), wide4(raw.hi)};
}

/* A lane's weights with their shift. */
__device__ static inline head weights_of(const void *weight, float shift, const lane_pairs &at) {
    if (!at.used) return {};
    head w = wide_head(raw_of((const bf16 *)weight, at));
#pragma unroll
    for (int i = 0; i < 4; i++) w.lo.x[i] += shift, w.hi.x[i] += shift;
    return w;
}

__device__ static inline void store_head(bf16 *to, const lane_pairs &at, const head &h) {
    store4(to + at.lo, h.lo);
    store4(to + at.lo + at.apart, h.hi);
}

/* A lane's cosines or sines at a position. */
template <int DIM> __device__ static inline quad angles_of(const float *table, int64_t position) {
    int pair = threadIdx.x % lanes_of<DIM>::all * 4;
    if (pair >= DIM / 2) return {};
    return load4(table + position * (DIM / 2) + pair);
}

/* What a warp does at a time: heads first, first + stride, ... of a token's queries or of its keys, never of both. */
template <int DIM> struct chunk {
    static constexpr int stride = 32 / lanes_of<DIM>::all, heads = stride * HEADS, dim = DIM;
    int64_t token;
    int first, count; /* of the `count` heads of the kind */
    bool query;
    lane_pairs pairs;
    /* Of the first head, in arrays of one kind, and in rows of both and the values. The others follow by distances that
     * are known when this is compiled. */
    int64_t apart, joined;

    __device__ bool has(int u) const {
        return pairs.used && first + u * stride < count;
    }
};

template <int DIM> __host__ __device__ static inline unsigned chunks_of(const train_rope &a) {
    constexpr int heads = chunk<DIM>::heads;
    return (unsigned)((a.heads + heads - 1) / heads + (a.kv_heads + heads - 1) / heads);
}

/* 32 bits: a division of 64 takes longer than the memory. */
template <int DIM> __device__ static inline chunk<DIM> chunk_at(const train_rope &a, unsigned place, unsigned chunks) {
    constexpr int heads = chunk<DIM>::heads, dim = DIM;
    unsigned token = place / chunks;
    int number = (int)(place - token * chunks), of_queries = (a.heads + heads - 1) / heads;
    bool query = number < of_queries;
    int first = (query ? number : number - of_queries) * heads + (int)threadIdx.x % 32 / lanes_of<DIM>::all;
    int count = query ? a.heads : a.kv_heads, before = query ? 0 : a.heads;
    int64_t apart = ((int64_t)token * count + first) * dim;
    int64_t joined = ((int64_t)token * (a.heads + 2 * a.kv_heads) + before + first) * dim;
    return {token, first, count, query, pairs_of<DIM>(a), apart, joined};
}

/* A lane's elements of the chunk's heads; zeros where there is no head. */
template <int DIM>
__device__ static inline void read_heads(raw_head *raw, const chunk<DIM> &at, const void *from, int64_t place) {
#pragma unroll
    for (int u = 0; u < HEADS; u++) {
        raw[u] = {};
        if (at.has(u)) raw[u] = raw_of((const bf16 *)from + place + u * at.stride * at.dim, at.pairs);
    }
}

template <int DIM> __global__ static void __launch_bounds__(THREADS) rotate(train_rope a) {
    constexpr int dim = DIM, lanes = lanes_of<DIM>::all;
    chunk<DIM> at = chunk_at<DIM>(a, blockIdx.x * WARPS + threadIdx.x / 32, chunks_of<DIM>(a));
    if (at.token >= a.tokens) return; /* whole warps: shuffles need every lane */
    raw_head raw[HEADS];
    read_heads(raw, at, a.qkv, at.joined);
    int64_t position = a.positions[at.token];
    quad c = angles_of<DIM>(a.cosine, position), s = angles_of<DIM>(a.sine, position);
    const bf16 *weight = (const bf16 *)(at.query ? a.q_weight : a.k_weight);
    bf16 *to = (bf16 *)(at.query ? a.q : a.k) + at.apart;
    head w = {};
    if (weight) w = weights_of(weight, a.shift, at.pairs);
#pragma unroll
    for (int u = 0; u < HEADS; u++) {
        head x = wide_head(raw[u]), y;
        if (weight) {
            float squares = 0;
#pragma unroll
            for (int i = 0; i < 4; i++) squares += x.lo.x[i] * x.lo.x[i] + x.hi.x[i] * x.hi.x[i];
            float scale = rsqrtf(lane_sum<lanes>(squares) / dim + a.eps);
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
        if (at.has(u)) store_head(to + u * at.stride * dim, at.pairs, y);
    }
}

/* The gradient d of a normalised head, with respect to the head x itself: with r = 1 / rms and n = x r,
 * r (w d - n mean(n w d)). The weight's gradient n d is added to `sum`. */
template <int DIM>
__device__ static inline void norm_back(quad &d_lo, quad &d_hi, const head &x, const head &w, float eps, head &sum) {
    constexpr int dim = DIM, lanes = lanes_of<DIM>::all;
    float squares = 0, product = 0;
    head wd;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        wd.lo.x[i] = w.lo.x[i] * d_lo.x[i];
        wd.hi.x[i] = w.hi.x[i] * d_hi.x[i];
        squares += x.lo.x[i] * x.lo.x[i] + x.hi.x[i] * x.hi.x[i];
        product += x.lo.x[i] * wd.lo.x[i] + x.hi.x[i] * wd.hi.x[i];
    }
    squares = lane_sum<lanes>(squares);
    product = lane_sum<lanes>(product);
    float scale = rsqrtf(squares / dim + eps), mean = product * scale / dim, back = -scale * mean;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float n_lo = x.lo.x[i] * scale, n_hi = x.hi.x[i] * scale;
        sum.lo.x[i] += n_lo * d_lo.x[i];
        sum.hi.x[i] += n_hi * d_hi.x[i];
        d_lo.x[i] = scale * wd.lo.x[i] + back * n_lo;
        d_hi.x[i] = scale * wd.hi.x[i] + back * n_hi;
    }
}

__device__ static inline void add_head(head &to, const head &from, bool add) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        to.lo.x[i] += add ? from.lo.x[i] : 0;
        to.hi.x[i] += add ? from.hi.x[i] : 0;
    }
}

/* The block's row of partial sums, of both kinds: those of its groups, added in order. */
template <int DIM> __device__ static inline void leave_sums(const train_rope &a, const head *sums, float *parts) {
    constexpr int dim = DIM, groups = THREADS / lanes_of<DIM>::all;
    extern __shared__ float all_w[]; /* [groups, 2, dim] */
    const lane_pairs at = pairs_of<DIM>(a);
    int group = threadIdx.x / lanes_of<DIM>::all;
#pragma unroll
    for (int kind = 0; kind < 2; kind++)
#pragma unroll
        for (int i = 0; at.used && i < 4; i++) {
            all_w[(group * 2 + kind) * dim + at.lo + i] = sums[kind].lo.x[i];
            all_w[(group * 2 + kind) * dim + at.lo + at.apart + i] = sums[kind].hi.x[i];
        }
    __syncthreads();
    for (int column = threadIdx.x; column < 2 * dim; column += THREADS) {
        float total = 0;
        for (int g = 0; g < groups; g++) total += all_w[g * 2 * dim + column];
        parts[(int64_t)blockIdx.x * 2 * dim + column] = total;
    }
}

/* Turns a gradient back by the same angle, then goes through the norm. A warp walks over chunks, so that the weights'
 * gradients stay in registers; blocks leave one row of partial sums per kind (queries first, then keys). */
template <int DIM, bool NORM>
__global__ static void __launch_bounds__(THREADS, 2) rotate_back(train_rope a, float *parts) {
    constexpr int dim = DIM;
    unsigned chunks = chunks_of<DIM>(a), places = (unsigned)a.tokens * chunks;
    unsigned place = blockIdx.x * WARPS + threadIdx.x / 32, apart = gridDim.x * WARPS;
    /* The position is read one chunk ahead: no read of a chunk waits for another. */
    int64_t position = place < places ? a.positions[place / chunks] : 0;
    head sums[2] = {}; /* no index that is known only at run time: they are in registers */
    for (; place < places; place += apart) {
        chunk<DIM> at = chunk_at<DIM>(a, place, chunks);
        raw_head g_raw[HEADS], x_raw[HEADS];
        read_heads(g_raw, at, at.query ? a.d_q : a.d_k, at.apart);
        if constexpr (NORM) read_heads(x_raw, at, a.qkv, at.joined);
        quad c = angles_of<DIM>(a.cosine, position), s = angles_of<DIM>(a.sine, position);
        if (place + apart < places) position = a.positions[(place + apart) / chunks];
        head w, sum = {};
        if constexpr (NORM) w = weights_of(at.query ? a.q_weight : a.k_weight, a.shift, at.pairs);
        bf16 *to = (bf16 *)a.d_qkv + at.joined;
#pragma unroll
        for (int u = 0; u < HEADS; u++) {
            head g = wide_head(g_raw[u]), d;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                d.lo.x[i] = g.lo.x[i] * c.x[i] + g.hi.x[i] * s.x[i];
                d.hi.x[i] = g.hi.x[i] * c.x[i] - g.lo.x[i] * s.x[i];
            }
            if constexpr (NORM) norm_back<DIM>(d.lo, d.hi, wide_head(x_raw[u]), w, a.eps, sum);
            if (at.has(u)) store_head(to + u * at.stride * dim, at.pairs, d);
        }
        if constexpr (NORM) {
            add_head(sums[0], sum, at.query);
            add_head(sums[1], sum, !at.query);
        }
    }
    if constexpr (NORM) leave_sums<DIM>(a, sums, parts);
}

/* Blocks of the backward pass, two per multiprocessor; a function of the tokens alone. */
extern "C" int64_t cuda_rope_parts(int64_t tokens) {
    return tokens < 264 ? tokens : 264;
}

#define EACH_DIM(X)         \
    switch (a->head_dim) {  \
    case 8: X(8) break;     \
    case 16: X(16) break;   \
    case 32: X(32) break;   \
    case 64: X(64) break;   \
    case 96: X(96) break;   \
    case 128: X(128) break; \
    case 256: X(256) break; \
    }

extern "C" void cuda_rope(cudaStream_t stream, const train_rope *a) {
    if (a->tokens <= 0) return;
#define LAUNCH(DIM)                                                                                    \
    {                                                                                                  \
        int64_t chunks = chunks_of<DIM>(*a);                                                           \
        rotate<DIM><<<(unsigned)((a->tokens * chunks + WARPS - 1) / WARPS), THREADS, 0, stream>>>(*a); \
    }
    EACH_DIM(LAUNCH)
#undef LAUNCH
}

extern "C" void cuda_rope_backward(cudaStream_t stream, const train_rope *a, float *parts) {
    if (a->tokens <= 0) return;
    int64_t blocks = cuda_rope_parts(a->tokens);
#define LAUNCH(DIM)                                                                                      \
    if (a->q_weight)                                                                                     \
        rotate_back<DIM, true>                                                                           \
            <<<(unsigned)blocks, THREADS, (size_t)THREADS * 2 * 8 * sizeof(float), stream>>>(*a, parts); \
    else                                                                                                 \
        rotate_back<DIM, false><<<(unsigned)blocks, THREADS, 0, stream>>>(*a, parts);
    EACH_DIM(LAUNCH)
#undef LAUNCH
    if (!a->q_weight) return;
    /* The partial rows hold the queries' sums, then the keys'. */
    cuda_add_parts(stream, (float *)a->d_q_weight, (float *)a->d_k_weight, parts, blocks, a->head_dim, 2 * a->head_dim);
}
