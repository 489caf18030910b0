/* Refit on the device: what changed between two versions, in the bytes of base/sparse.h.
 *
 *     CTA     a block, tile by tile      pass 1: the size of its changes; then its place in `out`; pass 2: the records
 *     tile    4 KiB of both versions     thread t has bytes 16t .. 16t+15 of it
 *
 * A record's gap reaches back to the changed element before it, wherever that is: a scan over the tile's threads for
 * the last changed element of those before (and the tiles before), and in pass 2 one for the bytes of their records.
 * Tiles in which nothing changed cost their loads alone. The second pass finds most of what it loads in the cache. */
#include "device/cuda.h"

#include <cuda_runtime.h>

namespace {

enum { THREADS = 256, WARPS = THREADS / 32, ESCAPE = 255, HEADER = 8 };

struct Scans {
    int last[WARPS], bytes[WARPS];
};

/* What one pass has found so far; the same in every thread. */
struct Walk {
    int before; /* the last changed element of the tiles before; -1: none */
    int at;     /* pass 2: where the next tile's records begin */
};

/* The last changed element of the threads before this one, of which each has `last`, or of the tiles before. */
__device__ int last_before(int last, Walk &walk, int *lasts) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int x = last;
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(~0u, x, d);
        if (lane >= d) x = max(x, other);
    }
    if (lane == 31) lasts[warp] = x;
    int found = __shfl_up_sync(~0u, x, 1);
    found = max(lane == 0 ? -1 : found, walk.before);
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) found = max(found, lasts[w]);
        walk.before = max(walk.before, lasts[w]);
    }
    return found;
}

/* Where the records of this thread begin, which are `bytes` long. */
__device__ int place_of(int bytes, Walk &walk, int *sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int x = bytes;
    for (int d = 1; d < 32; d *= 2) {
        int other = __shfl_up_sync(~0u, x, d);
        if (lane >= d) x += other;
    }
    if (lane == 31) sums[warp] = x;
    int found = walk.at + x - bytes;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) {
        if (w < warp) found += sums[w];
        walk.at += sums[w];
    }
    return found;
}

template <typename T> union Unit {
    uint4 whole;
    T element[16 / sizeof(T)];
};

template <typename T> __device__ void put_record(unsigned char *&to, int gap, T value) {
    for (; gap >= ESCAPE; gap -= ESCAPE) *to++ = ESCAPE;
    *to++ = (unsigned char)gap;
#pragma unroll
    for (int b = 0; b < (int)sizeof(T); b++) *to++ = (unsigned char)((uint64_t)value >> 8 * b);
}

/* Pass 1 adds to *bytes, of records, and *changed, elements, of this thread; pass 2 writes the records behind the
 * header at `out`. */
template <typename T, bool WRITE>
__device__ void walk_block(const char *fresh, const char *base, int count, unsigned char *out, Scans &scans, int *bytes,
                           int *changed) {
    constexpr int PER = 16 / sizeof(T);
    Walk walk = {-1, HEADER};
    for (int tile = 0; tile < count; tile += THREADS * PER) {
        const int first = tile + (int)threadIdx.x * PER;
        unsigned mask = 0;
        Unit<T> now, then;
        if (first < count) {
            now.whole = reinterpret_cast<const uint4 *>(fresh)[first / PER];
            then.whole = reinterpret_cast<const uint4 *>(base)[first / PER];
#pragma unroll
            for (int i = 0; i < PER; i++)
                mask |= (unsigned)(first + i < count && now.element[i] != then.element[i]) << i;
        }
        if (!__syncthreads_or((int)mask)) continue; /* also: what the scans left has been read */
        const int before = last_before(mask ? first + 31 - __clz((int)mask) : -1, walk, scans.last);
        int records = 0, next = before + 1;
        for (unsigned m = mask; m; m &= m - 1) {
            const int element = first + __ffs((int)m) - 1;
            records += (element - next) / ESCAPE + 1 + (int)sizeof(T);
            next = element + 1;
        }
        if (!WRITE) {
            *bytes += records;
            *changed += __popc(mask);
            continue;
        }
        unsigned char *to = out + place_of(records, walk, scans.bytes);
        next = before + 1;
#pragma unroll
        for (int i = 0; i < PER; i++) {
            if (!(mask >> i & 1)) continue;
            put_record<T>(to, first + i - next, now.element[i]);
            next = first + i + 1;
        }
    }
}

__device__ void put_number(unsigned char *to, uint32_t x) {
    for (int b = 0; b < 4; b++) to[b] = (unsigned char)(x >> 8 * b);
}

template <typename T> __device__ void compare_block(const ravel__compare_job &job, ravel__compare_span &span) {
    __shared__ Scans scans;
    __shared__ int records, changes;
    __shared__ unsigned long long place;
    const char *fresh = static_cast<const char *>(job.fresh) + span.at;
    const char *base = static_cast<const char *>(job.base) + span.at;
    const int block = span.bytes, count = block / (int)sizeof(T);
    int bytes = 0, changed = 0;
    if (threadIdx.x == 0) records = HEADER, changes = 0;
    __syncthreads();
    walk_block<T, false>(fresh, base, count, nullptr, scans, &bytes, &changed);
    if (bytes) atomicAdd(&records, bytes);
    if (changed) atomicAdd(&changes, changed);
    __syncthreads();
    const int size = records < block ? records : block;
    if (threadIdx.x == 0) {
        place =
            atomicAdd(reinterpret_cast<unsigned long long *>(job.used), (unsigned long long)((size + 15) / 16 * 16));
        span.found = (int64_t)place;
        span.size = size;
        span.changed = changes;
    }
    __syncthreads();
    unsigned char *out = job.out + place;
    if (size == block) {
        for (int i = (int)threadIdx.x; i < (block + 15) / 16; i += THREADS)
            reinterpret_cast<uint4 *>(out)[i] = reinterpret_cast<const uint4 *>(fresh)[i];
        return;
    }
    if (threadIdx.x == 0) {
        put_number(out, (uint32_t)count);
        put_number(out + 4, (uint32_t)changes);
    }
    walk_block<T, true>(fresh, base, count, out, scans, &bytes, &changed);
}

__global__ void __launch_bounds__(THREADS) compare_blocks(const ravel__compare_job job) {
    ravel__compare_span &span = job.spans[blockIdx.x];
    switch (span.each) {
    case 1: compare_block<uint8_t>(job, span); break;
    case 2: compare_block<uint16_t>(job, span); break;
    case 4: compare_block<uint32_t>(job, span); break;
    default: compare_block<uint64_t>(job, span);
    }
}

} // namespace

int ravel__cuda_compare(const ravel__compare_job *job, void *stream) {
    compare_blocks<<<(unsigned)job->blocks, THREADS, 0, static_cast<cudaStream_t>(stream)>>>(*job);
    return (int)cudaGetLastError();
}
