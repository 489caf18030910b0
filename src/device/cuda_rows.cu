/* Rows on the device: one launch for all arrays of a micro-batch.
 *
 * A CTA does one tile: 2,048 units of one track's packed side (512 where there are few), eight per thread, 256 apart,
 * so that a warp's loads and stores lie side by side. It finds its track (a few comparisons), then the first and the
 * last run of the tile (two binary searches), and every unit looks for its run between those two: mostly there is one.
 *
 * Loads of a thread are all issued before its first store: eight in flight per thread hide the memory's latency. */
#include "device/cuda.h"

#include <cuda_runtime.h>

namespace {

struct Job {
    const ravel__rows_head *head;
    __device__ const char *bytes() const {
        return reinterpret_cast<const char *>(head);
    }
    __device__ const ravel__row_track *tracks() const {
        return reinterpret_cast<const ravel__row_track *>(bytes() + head->tracks_at);
    }
    __device__ const ravel__row_run *runs() const {
        return reinterpret_cast<const ravel__row_run *>(bytes() + head->runs_at);
    }
    __device__ const int32_t *samples() const {
        return reinterpret_cast<const int32_t *>(bytes() + head->samples_at);
    }
    __device__ const double *values() const {
        return reinterpret_cast<const double *>(bytes() + head->values_at);
    }
};

/* The units of a tile that this thread does: `first` + i * RAVEL__ROW_THREADS, and the runs that they can be in. */
struct Tile {
    int64_t first_unit; /* of the tile */
    int64_t units;      /* where it ends: with the tile, or with the track */
    int64_t position;   /* of first_unit */
    uint32_t rest;      /* units of that position before first_unit */
    int32_t low, high;  /* runs */
};

__device__ Tile make_tile(const Job &job, const ravel__row_track &t) {
    Tile tile;
    const int64_t size = t.items * RAVEL__ROW_THREADS, all = t.positions * t.units;
    tile.first_unit = (blockIdx.x - t.first_tile) * size;
    tile.units = tile.first_unit + size < all ? tile.first_unit + size : all;
    tile.position = t.units == 1 ? tile.first_unit : tile.first_unit / t.units;
    tile.rest = (uint32_t)(tile.first_unit - tile.position * t.units);
    tile.low = tile.high = 0;
    if (job.head->runs > 1 && t.kind != RAVEL__ROW_SAMPLE && t.kind != RAVEL__ROW_COPY) {
        tile.low = ravel__row_find(job.runs(), 0, job.head->runs - 1, tile.position);
        tile.high = ravel__row_find(job.runs(), tile.low, job.head->runs - 1, (tile.units - 1) / t.units);
    }
    return tile;
}

/* Which element of the store stands at a position; -1: the pad. */
__device__ int64_t element_of(const Job &job, const ravel__row_track &t, const Tile &tile, int64_t position) {
    if (t.kind == RAVEL__ROW_SAMPLE) return job.samples()[position];
    const ravel__row_run *run = &job.runs()[ravel__row_find(job.runs(), tile.low, tile.high, position)];
    return ravel__row_element(t.kind, run, position - run->at);
}

template <class U> __device__ void move_units(const Job &job, const ravel__row_track &t, const Tile &tile) {
    const U *source = static_cast<const U *>(t.source);
    U *target = static_cast<U *>(t.target), value[RAVEL__ROW_ITEMS];
    int64_t place[RAVEL__ROW_ITEMS];
    const bool scatter = job.head->scatter;
#pragma unroll
    for (int i = 0; i < RAVEL__ROW_ITEMS; i++) {
        uint32_t local = threadIdx.x + i * RAVEL__ROW_THREADS, within = 0;
        int64_t unit = tile.first_unit + local, position = unit;
        place[i] = -1;
        if (unit >= tile.units) continue;
        if (t.units > 1) {
            uint32_t step = (tile.rest + local) / (uint32_t)t.units;
            position = tile.position + step;
            within = tile.rest + local - step * (uint32_t)t.units;
        }
        int64_t element = element_of(job, t, tile, position), stored = element * t.units + within;
        place[i] = scatter ? (element < 0 ? -1 : stored) : unit;
        if (element >= 0)
            value[i] = __ldcs(source + (scatter ? unit : stored));
        else if (!scatter)
            value[i] = *reinterpret_cast<const U *>(t.pad + (unit * sizeof(U)) % sizeof t.pad);
    }
#pragma unroll
    for (int i = 0; i < RAVEL__ROW_ITEMS; i++)
        if (place[i] >= 0) target[place[i]] = value[i];
}

/* Positions, segments, masks: nothing is read but the runs. */
template <class U> __device__ void derive_units(const Job &job, const ravel__row_track &t, const Tile &tile) {
    U *target = static_cast<U *>(t.target);
#pragma unroll
    for (int i = 0; i < RAVEL__ROW_ITEMS; i++) {
        int64_t position = tile.first_unit + threadIdx.x + i * RAVEL__ROW_THREADS;
        if (position >= tile.units) continue;
        const ravel__row_run *run = &job.runs()[ravel__row_find(job.runs(), tile.low, tile.high, position)];
        target[position] = (U)ravel__row_derived(t.kind, run, position - run->at);
    }
}

__device__ uint64_t mask_bits(const void *mask, int32_t bytes, int64_t element) {
    switch (bytes) {
    case 1: return static_cast<const uint8_t *>(mask)[element];
    case 2: return static_cast<const uint16_t *>(mask)[element];
    case 4: return static_cast<const uint32_t *>(mask)[element];
    default: return static_cast<const uint64_t *>(mask)[element];
    }
}

template <class R> __device__ void weigh_units(const Job &job, const ravel__row_track &t, const Tile &tile) {
    R *target = static_cast<R *>(t.target);
    const uint64_t one = *reinterpret_cast<const uint64_t *>(t.pad);
#pragma unroll
    for (int i = 0; i < RAVEL__ROW_ITEMS; i++) {
        int64_t position = tile.first_unit + threadIdx.x + i * RAVEL__ROW_THREADS;
        if (position >= tile.units) continue;
        int32_t index = ravel__row_find(job.runs(), tile.low, tile.high, position);
        const ravel__row_run *run = &job.runs()[index];
        int64_t token = position - run->at;
        bool counts = token > 0 &&
                      (t.source ? mask_bits(t.source, t.mask_bytes, ravel__mask_element(t.mask_kind, run, token)) == one
                                : token >= ravel__first_response(run));
        target[run->offset + token] = counts ? (R)job.values()[index] : (R)0;
    }
}

/* Bytes of the block itself: cu_seqlens and the like. */
template <class U> __device__ void copy_units(const Job &job, const ravel__row_track &t, const Tile &tile) {
    const U *source = reinterpret_cast<const U *>(job.bytes() + t.offset);
    U *target = static_cast<U *>(t.target);
    for (int i = 0; i < RAVEL__ROW_ITEMS; i++) {
        int64_t unit = tile.first_unit + threadIdx.x + i * RAVEL__ROW_THREADS;
        if (unit < tile.units) target[unit] = source[unit];
    }
}

__device__ void do_tile(const Job &job) {
    int32_t track = 0;
    while (track + 1 < job.head->tracks && job.tracks()[track + 1].first_tile <= (int32_t)blockIdx.x) track++;
    const ravel__row_track &t = job.tracks()[track];
    const Tile tile = make_tile(job, t);
    if (t.kind == RAVEL__ROW_COPY) return copy_units<uint32_t>(job, t, tile);
    if (t.kind == RAVEL__ROW_WEIGHT)
        return t.unit == 4 ? weigh_units<float>(job, t, tile) : weigh_units<double>(job, t, tile);
    if (t.kind >= RAVEL__ROW_POSITIONS)
        return t.unit == 4 ? derive_units<uint32_t>(job, t, tile) : derive_units<uint8_t>(job, t, tile);
    switch (t.unit) {
    case 1: return move_units<uint8_t>(job, t, tile);
    case 2: return move_units<uint16_t>(job, t, tile);
    case 4: return move_units<uint32_t>(job, t, tile);
    case 8: return move_units<uint2>(job, t, tile);
    default: return move_units<uint4>(job, t, tile);
    }
}

/* The block in the launch's own parameters, in four sizes: launching costs time by size. */
/* clang-format off */
template <int BYTES> struct Block { alignas(16) char bytes[BYTES]; };
/* clang-format on */

template <int BYTES>
__global__ void __launch_bounds__(RAVEL__ROW_THREADS) rows_in_launch(const __grid_constant__ Block<BYTES> block) {
    do_tile(Job{reinterpret_cast<const ravel__rows_head *>(block.bytes)});
}

__global__ void __launch_bounds__(RAVEL__ROW_THREADS) rows_in_memory(const ravel__rows_head *head) {
    do_tile(Job{head});
}

template <int BYTES> int launch_with(const ravel__rows_head *head, cudaStream_t stream) {
    Block<BYTES> block;
    memcpy(block.bytes, head, (size_t)head->bytes);
    rows_in_launch<BYTES><<<head->tiles, RAVEL__ROW_THREADS, 0, stream>>>(block);
    return (int)cudaGetLastError();
}

/* ---- loss tokens ---------------------------------------------------------------------------------------- */

/* A CTA per sample: ones, and the first token that is neither 0 nor 1. */
__global__ void __launch_bounds__(256) count_mask(const ravel__mask_job job) {
    __shared__ unsigned long long ones, bad;
    const ravel__row_run &run = job.runs[blockIdx.x];
    if (threadIdx.x == 0) ones = 0, bad = ~0ull;
    __syncthreads();
    unsigned long long mine = 0, first = ~0ull;
    for (int64_t t = 1 + threadIdx.x; t < run.length; t += blockDim.x) {
        uint64_t bits = mask_bits(job.mask, job.mask_bytes, ravel__mask_element(job.mask_kind, &run, t));
        mine += bits == job.one;
        if (bits != 0 && bits != job.one && bits != job.minus && (unsigned long long)t < first) first = t;
    }
    if (mine) atomicAdd(&ones, mine);
    if (first != ~0ull) atomicMin(&bad, first);
    __syncthreads();
    if (threadIdx.x == 0) job.counts[blockIdx.x] = bad == ~0ull ? (int64_t)ones : -(int64_t)bad;
}

} // namespace

int ravel__cuda_rows(const ravel__rows *rows, void *stream) {
    cudaStream_t s = static_cast<cudaStream_t>(stream);
    const ravel__rows_head *head = rows->block;
    if (rows->device_side) {
        rows_in_memory<<<head->tiles, RAVEL__ROW_THREADS, 0, s>>>(rows->device_side);
        return (int)cudaGetLastError();
    }
    if (head->bytes <= 3 << 10) return launch_with<3 << 10>(head, s);
    if (head->bytes <= 7 << 10) return launch_with<7 << 10>(head, s);
    return head->bytes <= 14 << 10 ? launch_with<14 << 10>(head, s) : launch_with<RAVEL__ROWS_IN_LAUNCH>(head, s);
}

int ravel__cuda_count_mask(const ravel__mask_job *job, void *stream) {
    count_mask<<<job->count, 256, 0, static_cast<cudaStream_t>(stream)>>>(*job);
    return (int)cudaGetLastError();
}
