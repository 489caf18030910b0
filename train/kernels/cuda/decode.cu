/* Attention of single rows over the paged cache, and writing the cache.
 *
 * A page holds TRAIN_PAGE tokens; inside it a key head's tokens lie together: [kv_heads, TRAIN_PAGE, head_dim], so a
 * block reads whole runs of 16 KB. One block works on one row, one key head and one split of SPLIT tokens, for all
 * query heads of the group, or for MOST of them, which share the loads:
 *
 *     keys   | split 0 ............ | split 1 ............ | split 2 ...|
 *     block          (r, h, 0)              (r, h, 1)         (r, h, 2)     -> joined, in order, by the last to finish
 *
 * The split is a fixed number of tokens, not a share of the row, so a row's bits depend on its own keys alone. A token
 * is read by a team of head_dim / 8 lanes, 16 bytes each (in teams of the next power of two: the last lanes have
 * nothing); teams walk over the split's tokens and keep their own running softmax, and the block joins the teams' at
 * the end in a fixed order. */
#include "train/kernels/cuda/launch.h"
#include "train/kernels/cuda/vec.cuh"

enum { PAGE = TRAIN_PAGE, SPLIT = 512, THREADS = 128, UNROLL = 4, MOST = CUDA_DECODE_HEADS };

extern "C" int64_t cuda_decode_splits(int64_t longest) {
    return (longest + SPLIT - 1) / SPLIT;
}

extern "C" size_t cuda_decode_scratch(int64_t rows, int64_t heads, int64_t dim, int64_t longest) {
    return (size_t)(rows * heads * cuda_decode_splits(longest)) * (size_t)(dim + 2) * sizeof(float);
}

/* A lane's share of its team's running softmax, for the GROUP query heads of a key head. Scores are times log2 e, so
 * that their exponentials are powers of two. */
template <int GROUP> struct running {
    vec8 q[GROUP];
    float most[GROUP], sum[GROUP], o[GROUP][8];
};

template <int DIM> __device__ static inline vec8 load_lane(const bf16 *head) {
    int lane = threadIdx.x % lanes_of<DIM>::all;
    return lane < lanes_of<DIM>::used ? load8(head + lane * 8) : vec8{};
}

/* What a block works on: query heads first .. first + count - 1 of the key head. */
struct work {
    int row, kv, part, first, count;
};

__device__ static inline work work_of(const cuda_decode_args &a) {
    int group = a.heads / a.kv_heads, parts = (group + MOST - 1) / MOST;
    int kv = (int)blockIdx.y / parts, part = (int)blockIdx.y % parts;
    return {(int)blockIdx.x, kv, part, kv * group + part * MOST, min(MOST, group - part * MOST)};
}

template <int DIM, int GROUP>
__device__ static inline void begin_row(running<GROUP> &r, const cuda_decode_args &a, const work &w) {
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        r.most[g] = -INFINITY;
        r.sum[g] = 0;
        r.q[g] = load_lane<DIM>((const bf16 *)a.q + w.row * a.ld_q + (w.first + min(g, w.count - 1)) * DIM);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            r.q[g].x[i] *= a.scale * LOG2_E;
            r.o[g][i] = 0;
        }
    }
}

/* Sums of COUNT values (a power of two) over a team of LANES lanes; every lane gets all of them, each with the bits of
 * lane_sum. At every distance a lane gives away half of the values that it still sums, so 2 COUNT exchanges do for
 * COUNT log2 LANES. */
template <int LANES, int COUNT> __device__ static inline void team_sums(float *x) {
    int count = COUNT, where[COUNT] = {}; /* of each value: the lane in which its sum ends up */
#pragma unroll
    for (int step = LANES / 2; step > 0; step /= 2) {
        bool upper = threadIdx.x & step;
        if (count == 1) {
            x[0] += __shfl_xor_sync(0xffffffffu, x[0], step);
            continue;
        }
        count /= 2;
#pragma unroll
        for (int i = 0; i < COUNT; i++) where[i] += i / count % 2 ? step : 0;
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++)
            if (i < count)
                x[i] = (upper ? x[i + count] : x[i]) + __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + count], step);
    }
    float sums[COUNT];
#pragma unroll
    for (int i = 0; i < COUNT; i++) sums[i] = __shfl_sync(0xffffffffu, x[i % count], where[i], LANES);
#pragma unroll
    for (int i = 0; i < COUNT; i++) x[i] = sums[i];
}

/* Tokens first, first + stride, ...; those from `end` on count as none. */
template <int LANES, int GROUP>
__device__ static inline void add_tokens(running<GROUP> &r, const vec8 *k, const vec8 *v, int first, int stride,
                                         int end) {
    float scores[GROUP * UNROLL] = {}, s[GROUP][UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
#pragma unroll
        for (int g = 0; g < GROUP; g++)
#pragma unroll
            for (int i = 0; i < 8; i++) scores[g * UNROLL + u] += r.q[g].x[i] * k[u].x[i];
    team_sums<LANES, GROUP * UNROLL>(scores);
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
#pragma unroll
        for (int g = 0; g < GROUP; g++) s[g][u] = first + u * stride < end ? scores[g * UNROLL + u] : -INFINITY;
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        float now = r.most[g];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) now = fmaxf(now, s[g][u]);
        if (now == -INFINITY) continue;
        float keep = exp2_of(r.most[g] - now);
        r.sum[g] *= keep;
#pragma unroll
        for (int i = 0; i < 8; i++) r.o[g][i] *= keep;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float p = exp2_of(s[g][u] - now);
            r.sum[g] += p;
#pragma unroll
            for (int i = 0; i < 8; i++) r.o[g][i] += p * v[u].x[i];
        }
        r.most[g] = now;
    }
}

/* Shared memory in which the teams of a block are joined. */
template <int DIM, int GROUP> struct joint {
    static constexpr int teams = THREADS / lanes_of<DIM>::all, dim = DIM;
    float most[teams][GROUP], sum[teams][GROUP];
    float o[teams][dim + 1];
};

/* The floats of a split's partial result: dim values, then the maximum and the sum. */
__device__ static inline float *partial_of(const cuda_decode_args &a, int row, int head, int split) {
    int splits = (a.longest + SPLIT - 1) / SPLIT;
    return a.partial + (((int64_t)row * a.heads + head) * splits + split) * (a.head_dim + 2);
}

/* Joins the teams' results of one split, first team to last: into the output where it is the row's only split, else
 * into the partial results. */
template <int DIM, int GROUP>
__device__ static void join_teams(joint<DIM, GROUP> &shared, const running<GROUP> &r, const cuda_decode_args &a,
                                  const work &w, int split, int length) {
    constexpr int teams = joint<DIM, GROUP>::teams, dim = DIM, lanes = lanes_of<DIM>::all;
    int team = threadIdx.x / lanes, lane = threadIdx.x % lanes;
#pragma unroll
    for (int g = 0; g < GROUP; g++)
        if (lane == 0) {
            shared.most[team][g] = r.most[g];
            shared.sum[team][g] = r.sum[g];
        }
    for (int g = 0; g < w.count; g++) {
        __syncthreads();
#pragma unroll
        for (int x = 0; x < GROUP; x++)
            if (x == g && lane < lanes_of<DIM>::used)
#pragma unroll
                for (int i = 0; i < 8; i++) shared.o[team][lane * 8 + i] = r.o[x][i];
        __syncthreads();
        float all = -INFINITY, total = 0;
        for (int t = 0; t < teams; t++) all = fmaxf(all, shared.most[t][g]);
        for (int t = 0; t < teams; t++)
            total += all > -INFINITY ? shared.sum[t][g] * exp2_of(shared.most[t][g] - all) : 0;
        float *partial = partial_of(a, w.row, w.first + g, split);
        for (int i = threadIdx.x; i < dim; i += THREADS) {
            float value = 0;
            for (int t = 0; t < teams; t++)
                if (shared.most[t][g] > -INFINITY) value += shared.o[t][i] * exp2_of(shared.most[t][g] - all);
            if (length <= SPLIT)
                ((bf16 *)a.o)[((int64_t)w.row * a.heads + w.first + g) * dim + i] =
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

/* The row's first split that has keys, and the one after the last. */
struct span {
    int first, last;
};
__device__ static inline span splits_of(const cuda_decode_args &a, int length) {
    return {a.window > 0 ? max(0, length - a.window) / SPLIT : 0, min((length + SPLIT - 1) / SPLIT, (int)gridDim.z)};
}

/* Joins the splits of a row's head, first to last. Other blocks wrote them while this one ran, so they are read past
 * the first-level cache. */
__device__ static inline void join_splits(const cuda_decode_args &a, int row, int head, span splits) {
    int dim = a.head_dim;
    const float *from = partial_of(a, row, head, 0);
    float most = -INFINITY, total = 0;
    for (int s = splits.first; s < splits.last; s++) most = fmaxf(most, __ldcg(from + s * (dim + 2) + dim));
    for (int s = splits.first; s < splits.last; s++)
        total += __ldcg(from + s * (dim + 2) + dim + 1) * exp2_of(__ldcg(from + s * (dim + 2) + dim) - most);
    for (int i = threadIdx.x; i < dim; i += THREADS) {
        float value = 0;
        for (int s = splits.first; s < splits.last; s++)
            value += __ldcg(from + s * (dim + 2) + i) * exp2_of(__ldcg(from + s * (dim + 2) + dim) - most);
        ((bf16 *)a.o)[((int64_t)row * a.heads + head) * dim + i] = __float2bfloat16(total > 0 ? value / total : 0);
    }
}

/* Called by every block of a row and its heads with more than SPLIT keys, after its partial results. The last of them
 * joins the splits, whichever it is, and leaves the ticket at 0 for the next launch. */
__device__ static void join_if_last(const cuda_decode_args &a, const work &w, int length) {
    __shared__ bool last;
    span splits = splits_of(a, length);
    unsigned *ticket = a.tickets + (int64_t)w.row * gridDim.y + blockIdx.y;
    __threadfence(); /* each thread's own partial results, before the block's ticket */
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(ticket, 1u) == (unsigned)(splits.last - splits.first) - 1;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int g = 0; g < w.count; g++) join_splits(a, w.row, w.first + g, splits);
    if (threadIdx.x == 0) *ticket = 0;
}

/* GROUP query heads at most. The split's page numbers are read
 * once, into shared memory: a step then waits for memory once. */
template <int DIM, int GROUP>
__global__ static void __launch_bounds__(THREADS, GROUP > 4   ? 2
                                                  : GROUP > 2 ? 4
                                                              : 5) decode(cuda_decode_args a) {
    constexpr int lanes = lanes_of<DIM>::all, teams = THREADS / lanes, dim = DIM;
    __shared__ joint<DIM, GROUP> shared;
    __shared__ int64_t pages[SPLIT / PAGE]; /* elements before the key head's tokens */
    const work w = work_of(a);
    int split = blockIdx.z, team = threadIdx.x / lanes;
    int length = a.lengths[w.row], first = a.window > 0 ? max(0, length - a.window) : 0;
    int begin = max(first, split * SPLIT), end = min(length, (split + 1) * SPLIT);
    if (begin >= end && !(split == 0 && length == 0)) return; /* splits_of leaves empty splits out */
    const int32_t *table = a.table + (int64_t)a.slots[w.row] * a.pages_per_slot;
    const int first_page = begin / PAGE;
    if (begin < end && (int)threadIdx.x <= (end - 1) / PAGE - first_page)
        pages[threadIdx.x] = ((int64_t)table[first_page + threadIdx.x] * a.kv_heads + w.kv) * PAGE * dim;
    __syncthreads();
    running<GROUP> r;
    begin_row<DIM>(r, a, w);
    for (int base = begin; base < end; base += teams * UNROLL) {
        vec8 k[UNROLL], v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int token = min(base + u * teams + team, end - 1);
            int64_t at = pages[token / PAGE - first_page] + token % PAGE * dim;
            k[u] = load_lane<DIM>((const bf16 *)a.k + at);
            v[u] = load_lane<DIM>((const bf16 *)a.v + at);
        }
        add_tokens<lanes>(r, k, v, base + team, teams, end);
    }
    join_teams<DIM>(shared, r, a, w, split, length);
    if (length > SPLIT) join_if_last(a, w, length);
}

template <int DIM> static void launch(cudaStream_t stream, const cuda_decode_args *a) {
    int group = a->heads / a->kv_heads, parts = (group + MOST - 1) / MOST;
    dim3 grid((unsigned)a->rows, (unsigned)(a->kv_heads * parts), (unsigned)cuda_decode_splits(a->longest));
    if (group == 1)
        decode<DIM, 1><<<grid, THREADS, 0, stream>>>(*a);
    else if (group == 2)
        decode<DIM, 2><<<grid, THREADS, 0, stream>>>(*a);
    else if (group <= 4)
        decode<DIM, 4><<<grid, THREADS, 0, stream>>>(*a);
    else
        decode<DIM, 8><<<grid, THREADS, 0, stream>>>(*a);
}

extern "C" void cuda_decode(cudaStream_t stream, const cuda_decode_args *a) {
    if (a->rows <= 0 || a->longest <= 0) return;
    switch (a->head_dim) {
    case 8: launch<8>(stream, a); break;
    case 16: launch<16>(stream, a); break;
    case 32: launch<32>(stream, a); break;
    case 64: launch<64>(stream, a); break;
    case 96: launch<96>(stream, a); break;
    case 128: launch<128>(stream, a); break;
    case 256: launch<256>(stream, a); break;
    }
}

/* ---- writing --------------------------------------------------------------------------------------------- */

__global__ static void cache_write(train_cache_write a) {
    int words = a.cache.head_dim / 8, each = a.cache.kv_heads * words;
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, r = i / each;
    if (r >= a.rows || (!a.back && a.slots[r] < 0)) return;
    int kv = (int)(i % each) / words, word = (int)(i % each) % words, token = a.back ? (int)r : a.positions[r];
    int64_t row = a.from ? a.from[r] : r, slot = a.back ? 0 : a.slots[r];
    int64_t page = a.cache.table[slot * a.cache.pages_per_slot + token / PAGE];
    int64_t column = (int64_t)kv * a.cache.head_dim + word * 8;
    uint4 *k_there =
        (uint4 *)a.cache.k + (((page * a.cache.kv_heads + kv) * PAGE + token % PAGE) * a.cache.head_dim) / 8 + word;
    uint4 *v_there = (uint4 *)a.cache.v + (k_there - (uint4 *)a.cache.k);
    uint4 *k = (uint4 *)((bf16 *)a.k + row * a.ld_k + column), *v = (uint4 *)((bf16 *)a.v + row * a.ld_v + column);
    *(a.back ? k : k_there) = *(a.back ? k_there : k);
    *(a.back ? v : v_there) = *(a.back ? v_there : v);
}

extern "C" void cuda_cache_write(cudaStream_t stream, const train_cache_write *a) {
    int64_t threads = a->rows * a->cache.kv_heads * (a->cache.head_dim / 8);
    if (threads > 0) cache_write<<<(unsigned)((threads + 255) / 256), 256, 0, stream>>>(*a);
}
