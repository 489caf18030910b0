/* Refit on the device: tensors to and from a packed buffer, cast and hashed (XXH3-64 of blocks) in one pass.
 *
 * XXH3 of more than 240 bytes: for every KiB a sum over its 16 stripes of 64 bytes, which depends on nothing before it;
 * then a chain over KiBs, acc = scramble(acc + sum). So a CTA takes one block (256 KiB, say) and 32 KiB of it per step:
 *
 *     128 threads = 32 groups of 4       a group sums one KiB; thread j of it has bytes 16j .. 16j+15 of every stripe,
 *                                        that is lanes 2j and 2j + 1 of the accumulator
 *     threads 0 .. 3                     also run the chain over the 32 sums of the step before, while the loads of
 *                                        this step are under way
 *
 * The last stripe of a block (its last 64 bytes, wherever they begin) and blocks of at most 240 bytes are read again
 * from memory by a few threads.
 *
 * Casting: KiBs that lie within one piece whose tensor is aligned there take the fast way, 16 bytes at a time; the
 * others go element by element. */
#include "device/cuda.h"

#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace {

enum { THREADS = 128, GROUPS = 32, KIB = 1024, STRIPE = 64, UNITS = 16, SMALL = 240, HELD = 48 };

constexpr uint64_t PRIME32_1 = 0x9e3779b1u, PRIME64_1 = 0x9e3779b185ebca87u, PRIME64_2 = 0xc2b2ae3d27d4eb4fu,
                   PRIME64_3 = 0x165667b19e3779f9u, PRIME_MX1 = 0x165667919e3779f9u, PRIME_MX2 = 0x9fb21c651e98df25u;

__constant__ const unsigned char secret[192] = {
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
    0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
    0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
    0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
    0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
    0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
    0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
    0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
    0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
    0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e};
__constant__ const uint64_t initial[8] = {0xc2b2ae3du,         PRIME64_1,   PRIME64_2,           PRIME64_3,
                                          0x85ebca77c2b2ae63u, 0x85ebca77u, 0x27d4eb2f165667c5u, PRIME32_1};

/* ---- XXH3, scalar parts --------------------------------------------------------------------------------- */

__device__ uint64_t read64(const unsigned char *p) {
    uint64_t x = 0;
    for (int i = 0; i < 8; i++) x |= (uint64_t)p[i] << 8 * i;
    return x;
}

__device__ uint32_t read32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

__device__ uint64_t rotate(uint64_t x, int bits) {
    return x << bits | x >> (64 - bits);
}

__device__ uint64_t fold(uint64_t a, uint64_t b) {
    return (a * b) ^ __umul64hi(a, b);
}

__device__ uint64_t avalanche(uint64_t x) {
    x = (x ^ x >> 37) * PRIME_MX1;
    return x ^ x >> 32;
}

__device__ uint64_t avalanche_xxh64(uint64_t x) {
    x = (x ^ x >> 33) * PRIME64_2;
    x = (x ^ x >> 29) * PRIME64_3;
    return x ^ x >> 32;
}

__device__ uint64_t swap_bytes(uint64_t x) {
    return (uint64_t)__byte_perm((uint32_t)x, 0, 0x0123) << 32 | __byte_perm((uint32_t)(x >> 32), 0, 0x0123);
}

__device__ uint64_t mix(const unsigned char *p, int at) {
    return fold(read64(p) ^ read64(secret + at), read64(p + 8) ^ read64(secret + at + 8));
}

__device__ uint64_t hash_tiny(const unsigned char *p, int n) {
    if (n == 0) return avalanche_xxh64(read64(secret + 56) ^ read64(secret + 64));
    if (n <= 3) {
        uint32_t mixed = p[n - 1] | (uint32_t)n << 8 | (uint32_t)p[0] << 16 | (uint32_t)p[n >> 1] << 24;
        return avalanche_xxh64((read32(secret) ^ read32(secret + 4)) ^ (uint64_t)mixed);
    }
    if (n <= 8) {
        uint64_t x = (read64(secret + 8) ^ read64(secret + 16)) ^ (read32(p + n - 4) | (uint64_t)read32(p) << 32);
        x = (x ^ rotate(x, 49) ^ rotate(x, 24)) * PRIME_MX2;
        x = (x ^ ((x >> 35) + n)) * PRIME_MX2;
        return x ^ x >> 28;
    }
    uint64_t low = (read64(secret + 24) ^ read64(secret + 32)) ^ read64(p);
    uint64_t high = (read64(secret + 40) ^ read64(secret + 48)) ^ read64(p + n - 8);
    return avalanche(n + swap_bytes(low) + high + fold(low, high));
}

/* Up to 240 bytes. */
__device__ uint64_t hash_small(const unsigned char *p, int n) {
    if (n <= 16) return hash_tiny(p, n);
    uint64_t acc = n * PRIME64_1;
    if (n <= 128) {
        for (int i = (n - 1) >> 5; i >= 0; i--) acc += mix(p + i * 16, i * 32) + mix(p + n - i * 16 - 16, i * 32 + 16);
        return avalanche(acc);
    }
    for (int i = 0; i < 8; i++) acc += mix(p + i * 16, i * 16);
    acc = avalanche(acc);
    for (int i = 8; i < n >> 4; i++) acc += mix(p + i * 16, (i - 8) * 16 + 3);
    return avalanche(acc + mix(p + n - 16, 119));
}

/* ---- XXH3, the lanes ------------------------------------------------------------------------------------ */

/* The secret as words, in shared memory: stripe s of thread j is mixed with words s + 2j and s + 2j + 1. */
enum { KEYS = 24 };
__device__ void load_keys(uint64_t *keys) {
    if (threadIdx.x < KEYS) keys[threadIdx.x] = read64(secret + 8 * threadIdx.x);
    __syncthreads();
}

__device__ __forceinline__ void add_stripe(ulonglong2 &a, uint4 v, uint64_t key0, uint64_t key1) {
    uint64_t x0 = (uint64_t)v.y << 32 | v.x, x1 = (uint64_t)v.w << 32 | v.z, y0 = x0 ^ key0, y1 = x1 ^ key1;
    a.x += x1 + (uint64_t)(uint32_t)y0 * (uint32_t)(y0 >> 32);
    a.y += x0 + (uint64_t)(uint32_t)y1 * (uint32_t)(y1 >> 32);
}

/* A block that is being hashed: the chain's state in threads 0 .. 3 of the CTA. */
struct Hash {
    int64_t bytes, kibs; /* kibs: those before the last, which alone is not scrambled */
    int j;
    ulonglong2 acc;
    uint64_t end0, end1; /* keys of the scramble */

    __device__ Hash(int64_t n, int lane) : bytes(n), kibs(n > 0 ? (n - 1) / KIB : 0), j(lane) {
        acc = make_ulonglong2(initial[2 * j], initial[2 * j + 1]);
        end0 = read64(secret + 128 + 16 * j);
        end1 = read64(secret + 136 + 16 * j);
    }
    /* How many of a KiB's stripes count: all 16 but in the last, where the last stripe is taken apart. */
    __device__ int stripes(int64_t kib) const {
        return kib < kibs ? UNITS : kib == kibs ? (int)((bytes - 1 - kib * KIB) / STRIPE) : 0;
    }
    __device__ void chain(const ulonglong2 (*sums)[4], int64_t first_kib) {
        for (int b = 0; b < GROUPS && first_kib + b <= kibs; b++) {
            ulonglong2 sum = sums[b][j];
            acc.x += sum.x;
            acc.y += sum.y;
            if (first_kib + b == kibs) return;
            acc.x = (acc.x ^ acc.x >> 47 ^ end0) * PRIME32_1;
            acc.y = (acc.y ^ acc.y >> 47 ^ end1) * PRIME32_1;
        }
    }
    /* By the first warp: its first four threads have the state, the others go along. */
    __device__ uint64_t finish(const unsigned char *block) {
        const unsigned char *p = block + bytes - STRIPE + 16 * j;
        uint4 v = make_uint4(read32(p), read32(p + 4), read32(p + 8), read32(p + 12));
        add_stripe(acc, v, read64(secret + 121 + 16 * j), read64(secret + 129 + 16 * j));
        uint64_t h = fold(acc.x ^ read64(secret + 11 + 16 * j), acc.y ^ read64(secret + 19 + 16 * j));
        h += __shfl_xor_sync(~0u, h, 1);
        h += __shfl_xor_sync(~0u, h, 2);
        return avalanche(h + (uint64_t)bytes * PRIME64_1);
    }
};

__device__ __forceinline__ ulonglong2 sum_kib(const uint4 (&v)[UNITS], const uint64_t *keys, int stripes) {
    ulonglong2 sum = make_ulonglong2(0, 0);
#pragma unroll
    for (int s = 0; s < UNITS; s++)
        if (s < stripes) add_stripe(sum, v[s], keys[s], keys[s + 1]);
    return sum;
}

/* The value of a block, once all of its bytes are in memory and all sums but the last step's are in the chain. */
__device__ void put_hash(Hash &hash, const ulonglong2 (*sums)[4], int64_t last_step, const void *block, uint64_t *out) {
    const unsigned char *bytes = static_cast<const unsigned char *>(block);
    if (threadIdx.x >= 32) return;
    if (hash.bytes <= SMALL) {
        if (threadIdx.x == 0) *out = hash_small(bytes, (int)hash.bytes);
        return;
    }
    hash.chain(sums, last_step * GROUPS);
    uint64_t value = hash.finish(bytes);
    if (threadIdx.x == 0) *out = value;
}

/* ---- elements ------------------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t bf16_bits(uint32_t x) {
    uint32_t rounded = (x + 0x7fff + (x >> 16 & 1)) >> 16;
    return (x & 0x7fffffff) > 0x7f800000 ? x >> 16 | 0x40 : rounded;
}

__device__ __forceinline__ uint32_t f16_bits(uint32_t x) {
    uint32_t code = __half_as_ushort(__float2half_rn(__uint_as_float(x)));
    uint32_t nan = (x >> 16 & 0x8000) | 0x7e00 | (x >> 13 & 0x3ff);
    return (x & 0x7fffffff) > 0x7f800000 ? nan : code;
}

/* Bytes of a tensor's element and of its packed form. */
__device__ __forceinline__ int wide_bytes(int kind) {
    return kind == RAVEL__CAST_COPY ? 1 : 4;
}

__device__ __forceinline__ int packed_bytes(int kind) {
    return kind == RAVEL__CAST_COPY ? 1 : 2;
}

template <int KIND> __device__ __forceinline__ uint32_t pair_of(uint32_t low, uint32_t high) {
    return KIND == RAVEL__CAST_F32_BF16 ? bf16_bits(low) | bf16_bits(high) << 16 : f16_bits(low) | f16_bits(high) << 16;
}

template <int KIND> __device__ __forceinline__ float float_of(uint32_t code) {
    return KIND == RAVEL__CAST_F32_BF16 ? __uint_as_float(code << 16) : __half2float(__ushort_as_half((uint16_t)code));
}

/* ---- a KiB of one piece: the fast way -------------------------------------------------------------------- */

/* Tensor to packed. `source` is the tensor at the KiB's begin; unit s of thread j is packed bytes 64s + 16j. */
template <int KIND> __device__ __forceinline__ void pack_pairs(const uint4 *source, int j, uint4 (&v)[UNITS]) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint4 a[UNITS / 2], b[UNITS / 2];
#pragma unroll
        for (int s = 0; s < UNITS / 2; s++) {
            const uint4 *at = source + ((half * 8 + s) * 4 + j) * 2;
            a[s] = __ldcs(at);
            b[s] = __ldcs(at + 1);
        }
#pragma unroll
        for (int s = 0; s < UNITS / 2; s++)
            v[half * 8 + s] = make_uint4(pair_of<KIND>(a[s].x, a[s].y), pair_of<KIND>(a[s].z, a[s].w),
                                         pair_of<KIND>(b[s].x, b[s].y), pair_of<KIND>(b[s].z, b[s].w));
    }
}

__device__ __forceinline__ void load_units(const uint4 *source, int j, uint4 (&v)[UNITS]) {
#pragma unroll
    for (int s = 0; s < UNITS; s++) v[s] = __ldcs(source + s * 4 + j);
}

__device__ __forceinline__ void store_units(uint4 *target, int j, const uint4 (&v)[UNITS]) {
#pragma unroll
    for (int s = 0; s < UNITS; s++) __stcs(target + s * 4 + j, v[s]);
}

template <int KIND> __device__ __forceinline__ void unpack_pairs(float4 *target, int j, const uint4 (&v)[UNITS]) {
#pragma unroll
    for (int s = 0; s < UNITS; s++) {
        float4 *at = target + (s * 4 + j) * 2;
        const uint4 x = v[s];
        __stcs(at, make_float4(float_of<KIND>(x.x & 0xffff), float_of<KIND>(x.x >> 16), float_of<KIND>(x.y & 0xffff),
                               float_of<KIND>(x.y >> 16)));
        __stcs(at + 1, make_float4(float_of<KIND>(x.z & 0xffff), float_of<KIND>(x.z >> 16),
                                   float_of<KIND>(x.w & 0xffff), float_of<KIND>(x.w >> 16)));
    }
}

/* ---- unit by unit --------------------------------------------------------------------------------------- */

__device__ void pack_element(const ravel__cast_piece &p, int64_t element, unsigned char *to) {
    if (p.kind == RAVEL__CAST_COPY) {
        *to = static_cast<const unsigned char *>(p.tensor)[element];
        return;
    }
    uint32_t x = static_cast<const uint32_t *>(p.tensor)[element];
    uint32_t code = p.kind == RAVEL__CAST_F32_BF16 ? bf16_bits(x) : f16_bits(x);
    to[0] = (unsigned char)code;
    to[1] = (unsigned char)(code >> 8);
}

__device__ void unpack_element(const ravel__cast_piece &p, int64_t element, const unsigned char *from) {
    if (p.kind == RAVEL__CAST_COPY) {
        static_cast<unsigned char *>(p.tensor)[element] = *from;
        return;
    }
    uint32_t code = (uint32_t)from[0] | (uint32_t)from[1] << 8;
    static_cast<float *>(p.tensor)[element] =
        p.kind == RAVEL__CAST_F32_BF16 ? float_of<RAVEL__CAST_F32_BF16>(code) : float_of<RAVEL__CAST_F32_F16>(code);
}

/* The piece that holds packed byte `at`, or NULL: padding. `list` begins with the first piece of the block. */
__device__ const ravel__cast_piece *piece_at(const ravel__cast_piece *list, int count, int64_t at) {
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (list[middle].at + list[middle].bytes <= at)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && list[low].at <= at ? &list[low] : nullptr;
}

/* The pieces of a CTA's block: in shared memory where they are few. */
struct Pieces {
    const ravel__cast_piece *list;
    int count;
};

/* 16 packed bytes, element by element: pieces may begin and end within them. */
__device__ void move_unit(const Pieces &pieces, int64_t at, int64_t end, uint4 *packed, bool unpack) {
    union {
        uint4 whole;
        unsigned char byte[16];
    } u;
    u.whole = unpack ? *packed : make_uint4(0, 0, 0, 0);
    const int64_t last = at + 16 < end ? at + 16 : end;
    const ravel__cast_piece *p = nullptr;
    for (int64_t byte = at; byte < last;) {
        if (!p || byte >= p->at + p->bytes) p = piece_at(pieces.list, pieces.count, byte);
        if (!p) {
            byte++; /* padding */
            continue;
        }
        const int each = packed_bytes(p->kind);
        if (unpack)
            unpack_element(*p, (byte - p->at) / each, u.byte + (byte - at));
        else
            pack_element(*p, (byte - p->at) / each, u.byte + (byte - at));
        byte += each;
    }
    if (!unpack) *packed = u.whole;
}

/* A KiB of several pieces, or of one that is not aligned. */
__device__ __noinline__ void move_units(const Pieces &pieces, int64_t at, int64_t end, int j, uint4 *packed,
                                        bool unpack) {
#pragma unroll 1
    for (int s = 0; s < UNITS; s++) {
        int64_t unit = at + s * STRIPE + j * 16;
        if (unit < end) move_unit(pieces, unit, end, packed + s * 4 + j, unpack);
    }
}

/* ---- the kernels ---------------------------------------------------------------------------------------- */

__device__ Pieces take_pieces(const ravel__cast_job &job, ravel__cast_piece *held, int *count, int64_t end) {
    const int32_t first = job.first[blockIdx.x];
    if (threadIdx.x == 0) {
        int n = 0;
        while (first + n < job.count && job.pieces[first + n].at < end) n++;
        *count = n;
    }
    __syncthreads();
    Pieces p = {job.pieces + first, *count};
    if (p.count <= HELD) {
        for (int i = threadIdx.x; i < p.count; i += THREADS) held[i] = p.list[i];
        p.list = held;
    }
    __syncthreads();
    return p;
}

template <bool UNPACK>
__device__ __forceinline__ void move_kib(const Pieces &pieces, int64_t at, int64_t end, int j, char *packed,
                                         uint4 (&v)[UNITS]) {
    uint4 *there = reinterpret_cast<uint4 *>(packed + at);
    const ravel__cast_piece *p = piece_at(pieces.list, pieces.count, at);
    const int kind = p ? p->kind : 0;
    char *tensor = p ? static_cast<char *>(p->tensor) + (at - p->at) / packed_bytes(kind) * wide_bytes(kind) : nullptr;
    if (p && at + KIB <= p->at + p->bytes && at + KIB <= end && (uintptr_t)tensor % 16 == 0) {
        if (UNPACK) {
            load_units(there, j, v);
            if (kind == RAVEL__CAST_COPY)
                store_units(reinterpret_cast<uint4 *>(tensor), j, v);
            else if (kind == RAVEL__CAST_F32_BF16)
                unpack_pairs<RAVEL__CAST_F32_BF16>(reinterpret_cast<float4 *>(tensor), j, v);
            else
                unpack_pairs<RAVEL__CAST_F32_F16>(reinterpret_cast<float4 *>(tensor), j, v);
            return;
        }
        const uint4 *from = reinterpret_cast<const uint4 *>(tensor);
        if (kind == RAVEL__CAST_COPY)
            load_units(from, j, v);
        else if (kind == RAVEL__CAST_F32_BF16)
            pack_pairs<RAVEL__CAST_F32_BF16>(from, j, v);
        else
            pack_pairs<RAVEL__CAST_F32_F16>(from, j, v);
        store_units(there, j, v);
        return;
    }
    move_units(pieces, at, end, j, there, UNPACK);
#pragma unroll
    for (int s = 0; s < UNITS; s++) /* for the hash; what was packed, this thread has just written */
        if (at + s * STRIPE + j * 16 < end) v[s] = there[s * 4 + j];
}

template <bool UNPACK> __global__ void __launch_bounds__(THREADS, 4) cast_blocks(const ravel__cast_job job) {
    __shared__ ulonglong2 sums[2][GROUPS][4];
    __shared__ uint64_t keys[KEYS];
    __shared__ ravel__cast_piece held[HELD];
    __shared__ int count;
    const int g = threadIdx.x >> 2, j = threadIdx.x & 3;
    const ravel__cast_span span = ravel__cast_block(&job, blockIdx.x);
    const int64_t begin = span.at, end = span.at + span.bytes;
    char *packed = static_cast<char *>(job.packed);
    const Pieces pieces = take_pieces(job, held, &count, end);
    Hash hash(end - begin, j);
    load_keys(keys);
    const int64_t steps = hash.kibs / GROUPS + 1;
    for (int64_t step = 0; step < steps; step++) {
        const int64_t kib = step * GROUPS + g;
        uint4 v[UNITS];
        if (kib <= hash.kibs) move_kib<UNPACK>(pieces, begin + kib * KIB, end, j, packed, v);
        if (step > 0 && threadIdx.x < 4) hash.chain(sums[(step - 1) & 1], (step - 1) * GROUPS);
        sums[step & 1][g][j] = sum_kib(v, keys + 2 * j, hash.stripes(kib));
        __syncthreads();
    }
    if (job.hashes) put_hash(hash, sums[(steps - 1) & 1], steps - 1, packed + begin, job.hashes + blockIdx.x);
}

} // namespace

int ravel__cuda_cast(const ravel__cast_job *job, void *stream) {
    cudaStream_t s = static_cast<cudaStream_t>(stream);
    unsigned blocks = (unsigned)job->blocks;
    if (job->unpack)
        cast_blocks<true><<<blocks, THREADS, 0, s>>>(*job);
    else
        cast_blocks<false><<<blocks, THREADS, 0, s>>>(*job);
    return (int)cudaGetLastError();
}
