/* Attention over the paged cache by blocks that stay: a ring of chunks in shared memory, filled by bulk copies.
 *
 * Work is cut as in decode.cu: one row, one key head, one split of SPLIT tokens. A multiprocessor has BLOCKS blocks, and
 * block b works on pieces b, b + blocks, ... The last warp of a block asks for keys and values, CHUNK tokens at a time,
 * and runs up to STAGES chunks ahead, into the block's next piece too; four warps compute:
 *
 *     warp 4      wait until stage is empty | bulk copies of keys and values -> full[stage]
 *     warps 0-3   wait until stage is full  | to registers | empty[stage] | add to the running softmax
 *
 * So memory is never idle at the beginning and the end of a piece. Of the blocks that work on one row and key head, the
 * one that comes last joins the splits; it reads all of them from memory in order, so the bits do not depend on which one
 * it is. They are the bits of decode.cu. */
#include "train/kernels/cuda/decode.cuh"

enum { LANES = 16, DIM = 128, CHUNK = 32, STAGES = 4, BLOCKS = 3, WARPS = TEAM_THREADS / 32 };
enum { TEAMS = TEAM_THREADS / LANES, BULK_THREADS = TEAM_THREADS + 32 };
static_assert(TEAMS * UNROLL == CHUNK, "a chunk is one step of every team");
static_assert(PAGE % CHUNK == 0 && SPLIT / PAGE <= 32, "a chunk is in one page; a lane per page of a split");

/* ---- barriers in shared memory --------------------------------------------------------------------------- */

__device__ static inline uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ static inline void barrier_init(uint64_t *barrier, uint32_t arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ static inline void barrier_arrive(uint64_t *barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

/* Arrives, and lets the barrier wait for `bytes` of copies too. */
__device__ static inline void barrier_expect(uint64_t *barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}

/* Until the barrier's phase of that parity is over. */
__device__ static inline void barrier_wait(uint64_t *barrier, uint32_t parity) {
    uint32_t done = 0;
    while (!done)
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}\n"
                     : "=r"(done)
                     : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
}

/* bytes: a multiple of 16 */
__device__ static inline void bulk_copy(void *to, const void *from, uint32_t bytes, uint64_t *barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(shared_address(barrier))
                 : "memory");
}

/* ---- pieces ---------------------------------------------------------------------------------------------- */

struct stage {
    bf16 k[CHUNK * DIM], v[CHUNK * DIM];
};

/* One row, key head and split. Splits are the slowest index: the last splits of rows are the short ones. */
struct piece {
    int row, kv, split, length, begin, end;
};

/* Whether piece `i` has anything to do. An empty row has one, which writes zeros. */
__device__ static inline bool piece_at(const cuda_decode_args &a, int64_t i, piece &p) {
    int64_t pairs = (int64_t)a.rows * a.kv_heads;
    p.split = (int)(i / pairs);
    p.kv = (int)(i % pairs / a.rows);
    p.row = (int)(i % a.rows);
    p.length = a.lengths[p.row];
    p.begin = p.split * SPLIT;
    p.end = min(p.length, p.begin + SPLIT);
    return p.begin < p.end || (p.split == 0 && p.length == 0);
}

__device__ static inline int64_t pieces_of(const cuda_decode_args &a) {
    return (int64_t)a.rows * a.kv_heads * ((a.longest + SPLIT - 1) / SPLIT);
}

/* Warp 4: every chunk of every piece of this block, in order. */
__device__ static void fill(const cuda_decode_args &a, stage *ring, uint64_t *full, uint64_t *empty) {
    int lane = threadIdx.x % 32;
    uint32_t count = 0;
    piece p;
    for (int64_t i = blockIdx.x; i < pieces_of(a); i += gridDim.x) {
        if (!piece_at(a, i, p)) continue;
        const int32_t *table = a.table + (int64_t)a.slots[p.row] * a.pages_per_slot + p.begin / PAGE;
        int pages = (p.end - p.begin + PAGE - 1) / PAGE, mine = lane < pages ? table[lane] : 0;
        for (int base = p.begin; base < p.end; base += CHUNK, count++) {
            int page = __shfl_sync(0xffffffffu, mine, (base - p.begin) / PAGE);
            if (lane == 0) {
                stage *to = ring + count % STAGES;
                uint64_t *barrier = full + count % STAGES;
                uint32_t bytes = (uint32_t)min(CHUNK, p.end - base) * DIM * 2;
                int64_t at = (((int64_t)page * a.kv_heads + p.kv) * PAGE + base % PAGE) * DIM;
                barrier_wait(empty + count % STAGES, count / STAGES % 2 ^ 1); /* the first round waits for nothing */
                barrier_expect(barrier, 2 * bytes);
                bulk_copy(to->k, (const bf16 *)a.k + at, bytes, barrier);
                bulk_copy(to->v, (const bf16 *)a.v + at, bytes, barrier);
            }
            __syncwarp();
        }
    }
}

/* Counts this block among those of the row and key head; whether it is the last one. Its partial results are written. */
__device__ static bool last_of_row(const cuda_decode_args &a, const piece &p, int *flag) {
    uint32_t splits = (uint32_t)((p.length + SPLIT - 1) / SPLIT);
    uint32_t *arrived = a.arrived + (int64_t)p.row * a.kv_heads + p.kv;
    __threadfence();
    teams_sync();
    if (threadIdx.x == 0) {
        *flag = atomicAdd(arrived, 1u) == splits - 1;
        if (*flag) *arrived = 0;
    }
    teams_sync();
    bool last = *flag != 0;
    __threadfence();
    return last;
}

template <int GROUP> __global__ static void __launch_bounds__(BULK_THREADS, BLOCKS) decode_bulk(cuda_decode_args a) {
    extern __shared__ __align__(128) unsigned char memory[];
    __shared__ joint<LANES, GROUP> shared;
    __shared__ uint64_t full[STAGES], empty[STAGES];
    __shared__ int flag;
    stage *ring = reinterpret_cast<stage *>(memory);
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) {
            barrier_init(full + i, 1);
            barrier_init(empty + i, WARPS);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= TEAM_THREADS) {
        fill(a, ring, full, empty);
        return;
    }
    int team = threadIdx.x / LANES, lane = threadIdx.x % LANES, group = a.heads / a.kv_heads;
    uint32_t count = 0;
    piece p;
    for (int64_t i = blockIdx.x; i < pieces_of(a); i += gridDim.x) {
        if (!piece_at(a, i, p)) continue;
        running<GROUP> r;
        begin_row<LANES>(r, a, p.row, p.kv, lane);
        for (int base = p.begin; base < p.end; base += CHUNK, count++) {
            const stage *from = ring + count % STAGES;
            vec8 k[UNROLL], v[UNROLL];
            barrier_wait(full + count % STAGES, count / STAGES % 2);
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
                int at = min(u * TEAMS + team, p.end - 1 - base) * DIM + lane * 8;
                k[u] = load8(from->k + at);
                v[u] = load8(from->v + at);
            }
            __syncwarp();
            if (threadIdx.x % 32 == 0) barrier_arrive(empty + count % STAGES);
            add_tokens<LANES>(r, k, v, base + team, TEAMS, p.end);
        }
        join_teams<LANES>(shared, r, a, p.row, p.kv, p.split, p.length);
        if (p.length > SPLIT && last_of_row(a, p, &flag))
            for (int g = 0; g < group; g++)
                join_splits(a, p.row, p.kv * group + g, p.length, threadIdx.x, TEAM_THREADS);
        teams_sync(); /* shared memory is free for the next piece */
    }
}

template <int GROUP> static int launch(cudaStream_t stream, const cuda_decode_args *a) {
    const int bytes = STAGES * (int)sizeof(stage);
    int64_t pieces = (int64_t)a->rows * a->kv_heads * cuda_decode_splits(a->longest);
    int64_t blocks = (int64_t)a->multiprocessors * BLOCKS;
    if (cudaFuncSetAttribute(decode_bulk<GROUP>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)) return 0;
    decode_bulk<GROUP><<<(unsigned)(blocks < pieces ? blocks : pieces), BULK_THREADS, bytes, stream>>>(*a);
    return 1;
}

extern "C" int cuda_decode_bulk(cudaStream_t stream, const cuda_decode_args *a) {
    int group = a->heads / a->kv_heads;
    if (a->head_dim != DIM || a->window > 0 || group > 4 || !a->arrived) return 0;
    return group == 1 ? launch<1>(stream, a) : group == 2 ? launch<2>(stream, a) : launch<4>(stream, a);
}
