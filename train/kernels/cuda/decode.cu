/* Attention of single rows over the paged cache, and writing the cache.
 *
 * A page holds TRAIN_PAGE tokens; inside it a key head's tokens lie together: [kv_heads, TRAIN_PAGE, head_dim], so a
 * block reads whole runs of 16 KB. One block works on one row, one key head and one split of SPLIT tokens, for all
 * query heads of the group, which share the loads:
 *
 *     keys   | split 0 ............ | split 1 ............ | split 2 ...|
 *     block          (r, h, 0)              (r, h, 1)         (r, h, 2)     -> combined, in order, by a second kernel
 *
 * The split is a fixed number of tokens, not a share of the row, so a row's bits depend on its own keys alone. A token
 * is read by a team of head_dim / 8 lanes, 16 bytes each; teams walk over the split's tokens and keep their own running
 * softmax, and the block joins the teams' at the end in a fixed order.
 *
 * How a block waits for memory (RAVEL_CUDA_DECODE; the arithmetic is the same, and so are the bits):
 *
 *     plain    every step reads the page table, then keys and values: two waits, one after the other
 *     pages    the split's page numbers are read once, into shared memory: one wait per step (the default)
 *     ahead    the same, and the next step's keys and values are read before this step's are used: more registers
 *     bulk     another kernel, decode_bulk.cu: the copy engine fills a ring in shared memory */
#include "train/kernels/cuda/decode.cuh"

#include <stdlib.h>
#include <string.h>

extern "C" int64_t cuda_decode_splits(int64_t longest) {
    return (longest + SPLIT - 1) / SPLIT;
}

extern "C" size_t cuda_decode_scratch(int64_t rows, int64_t heads, int64_t dim, int64_t longest) {
    return (size_t)(rows * heads * cuda_decode_splits(longest)) * (size_t)(dim + 2) * sizeof(float);
}

enum wait_kind { PLAIN, PAGES, AHEAD };

/* LANES lanes per token (head_dim = 8 LANES), GROUP query heads per key head at most. */
template <int LANES, int GROUP, int WAIT>
__global__ static void __launch_bounds__(TEAM_THREADS) decode(cuda_decode_args a) {
    constexpr int teams = TEAM_THREADS / LANES, dim = LANES * 8;
    __shared__ joint<LANES, GROUP> shared;
    __shared__ int32_t pages[SPLIT / PAGE];
    int row = blockIdx.x, kv = blockIdx.y, split = blockIdx.z;
    int team = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    int length = a.lengths[row], first = a.window > 0 ? max(0, length - a.window) : 0;
    int begin = max(first, split * SPLIT), end = min(length, (split + 1) * SPLIT);
    if (begin >= end && !(split == 0 && length == 0)) return; /* the combining kernel skips empty splits */
    const int32_t *table = a.table + (int64_t)a.slots[row] * a.pages_per_slot;
    const int first_page = begin / PAGE;
    if (WAIT != PLAIN) {
        if (begin < end && (int)threadIdx.x <= (end - 1) / PAGE - first_page)
            pages[threadIdx.x] = table[first_page + threadIdx.x];
        __syncthreads();
    }
    auto read = [&](int base) {
        step s;
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int token = min(base + u * teams + team, end - 1), page = token / PAGE;
            int64_t number = WAIT == PLAIN ? table[page] : pages[page - first_page];
            int64_t at = ((number * a.kv_heads + kv) * PAGE + token % PAGE) * dim + lane * 8;
            s.k[u] = *reinterpret_cast<const uint4 *>((const bf16 *)a.k + at);
            s.v[u] = *reinterpret_cast<const uint4 *>((const bf16 *)a.v + at);
        }
        return s;
    };
    step next;
    if (WAIT == AHEAD && begin < end) next = read(begin);
    running<GROUP> r;
    begin_row<LANES>(r, a, row, kv, lane);
    for (int base = begin; base < end; base += teams * UNROLL) {
        vec8 k[UNROLL], v[UNROLL];
        if (WAIT != AHEAD) next = read(base);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            k[u] = wide8(next.k[u]);
            v[u] = wide8(next.v[u]);
        }
        if (WAIT == AHEAD && base + teams * UNROLL < end) next = read(base + teams * UNROLL);
        add_tokens<LANES>(r, k, v, base + team, teams, end);
    }
    join_teams<LANES>(shared, r, a, row, kv, split, length);
}

/* One warp per row and head with more than one split. */
__global__ static void combine(cuda_decode_args a) {
    int64_t place = ((int64_t)blockIdx.x * 128 + threadIdx.x) / 32, row = place / a.heads;
    if (row >= a.rows) return;
    int length = a.lengths[row];
    if (length > SPLIT) join_splits(a, (int)row, (int)(place % a.heads), length, threadIdx.x % 32, 32);
}

template <int LANES, int WAIT> static void launch_group(cudaStream_t stream, const cuda_decode_args *a) {
    dim3 grid((unsigned)a->rows, (unsigned)a->kv_heads, (unsigned)cuda_decode_splits(a->longest));
    int group = a->heads / a->kv_heads;
    if (group == 1)
        decode<LANES, 1, WAIT><<<grid, TEAM_THREADS, 0, stream>>>(*a);
    else if (group == 2)
        decode<LANES, 2, WAIT><<<grid, TEAM_THREADS, 0, stream>>>(*a);
    else if (group <= 4)
        decode<LANES, 4, WAIT><<<grid, TEAM_THREADS, 0, stream>>>(*a);
    else
        decode<LANES, 8, WAIT><<<grid, TEAM_THREADS, 0, stream>>>(*a);
}

/* Other head sizes than 128 have the default alone. */
template <int LANES> static void launch(cudaStream_t stream, const cuda_decode_args *a) {
    if constexpr (LANES == 16) {
        const char *asked = getenv("RAVEL_CUDA_DECODE");
        if (asked && strcmp(asked, "plain") == 0) return launch_group<LANES, PLAIN>(stream, a);
        if (asked && strcmp(asked, "ahead") == 0) return launch_group<LANES, AHEAD>(stream, a);
    }
    launch_group<LANES, PAGES>(stream, a);
}

static bool wants_bulk(void) {
    const char *asked = getenv("RAVEL_CUDA_DECODE");
    return asked && strcmp(asked, "bulk") == 0;
}

extern "C" void cuda_decode(cudaStream_t stream, const cuda_decode_args *a) {
    if (a->rows <= 0 || a->longest <= 0) return;
    if (wants_bulk() && cuda_decode_bulk(stream, a)) return;
    switch (a->head_dim) {
    case 8: launch<1>(stream, a); break;
    case 16: launch<2>(stream, a); break;
    case 32: launch<4>(stream, a); break;
    case 64: launch<8>(stream, a); break;
    case 128: launch<16>(stream, a); break;
    case 256: launch<32>(stream, a); break;
    }
    if (a->longest > SPLIT) combine<<<(unsigned)(((int64_t)a->rows * a->heads + 3) / 4), 128, 0, stream>>>(*a);
}

/* ---- writing --------------------------------------------------------------------------------------------- */

__global__ static void cache_write(cuda_cache_write_args a) {
    int words = a.head_dim / 8, each = a.kv_heads * words;
    int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x, r = i / each;
    if (r >= a.rows || a.slots[r] < 0) return;
    int kv = (int)(i % each) / words, word = (int)(i % each) % words, token = a.positions[r];
    int64_t from = a.from ? a.from[r] : r, page = a.table[(int64_t)a.slots[r] * a.pages_per_slot + token / PAGE];
    int64_t to = (((page * a.kv_heads + kv) * PAGE + token % PAGE) * a.head_dim) / 8 + word;
    int64_t column = (int64_t)kv * a.head_dim + word * 8;
    ((uint4 *)a.cache_k)[to] = *(const uint4 *)((const bf16 *)a.k + from * a.ld_k + column);
    ((uint4 *)a.cache_v)[to] = *(const uint4 *)((const bf16 *)a.v + from * a.ld_v + column);
}

extern "C" void cuda_cache_write(cudaStream_t stream, const cuda_cache_write_args *a) {
    int64_t threads = a->rows * a->kv_heads * (a->head_dim / 8);
    if (threads > 0) cache_write<<<(unsigned)((threads + 255) / 256), 256, 0, stream>>>(*a);
}
