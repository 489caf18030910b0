#include "train/kernels/host.h"

#include "base/assert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

void *train__grown(const ravel_allocator *allocator, void *old, int64_t *room, int64_t used, int64_t need,
                   size_t each) {
    RAVEL_ASSERT(used >= 0 && used <= *room && need >= 0 && each > 0 && (old || used == 0));
    if (need <= *room && old) return old;
    int64_t more = *room ? *room : 64;
    while (more < need) more *= 2;
    void *array = ravel__alloc(allocator, (size_t)more * each);
    if (!array) return NULL;
    if (used) memcpy(array, old, (size_t)used * each);
    ravel__release(allocator, old, (size_t)*room * each);
    *room = more;
    return array;
}

/* An aligned block keeps the address that it was cut from in the word below it:
 *
 *     base ... | base | block (64-byte aligned) ... */
_Static_assert((TRAIN_ALIGN & (TRAIN_ALIGN - 1)) == 0 && TRAIN_ALIGN >= sizeof(void *), "a power of two");
static size_t aligned_bytes(size_t bytes) {
    return bytes + TRAIN_ALIGN + sizeof(void *);
}

/* Products and norms walk through matrices: with pages of 2 MiB they miss the address cache less often, above all on
 * virtual machines. Without such pages the only difference is speed. */
static void want_large_pages(char *base, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = (uintptr_t)2 << 20, first = ((uintptr_t)base + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)base + bytes) / page * page;
    if (first < end) (void)madvise(base + (first - (uintptr_t)base), end - first, MADV_HUGEPAGE);
#else
    (void)base, (void)bytes;
#endif
}

void *train__alloc_aligned(const ravel_allocator *allocator, size_t bytes) {
    if (bytes == 0 || bytes > SIZE_MAX / 2) return NULL;
    char *base = ravel__alloc(allocator, aligned_bytes(bytes));
    if (!base) return NULL;
    if (!allocator) want_large_pages(base, aligned_bytes(bytes));
    uintptr_t first = (uintptr_t)base + sizeof(void *);
    char *block = base + ((first + TRAIN_ALIGN - 1) / TRAIN_ALIGN * TRAIN_ALIGN - (uintptr_t)base);
    RAVEL_ASSERT((uintptr_t)block % TRAIN_ALIGN == 0 && block >= base + sizeof base);
    RAVEL_ASSERT(block + bytes <= base + aligned_bytes(bytes));
    memcpy(block - sizeof base, &base, sizeof base);
    return block;
}

void train__release_aligned(const ravel_allocator *allocator, void *ptr, size_t bytes) {
    if (!ptr) return;
    char *base;
    memcpy(&base, (char *)ptr - sizeof base, sizeof base);
    RAVEL_ASSERT(base < (char *)ptr && (char *)ptr - base <= TRAIN_ALIGN + (ptrdiff_t)sizeof base);
    ravel__release(allocator, base, aligned_bytes(bytes));
}

double train__now(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* SplitMix64's finaliser, once per part of the place. */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t train__random(uint64_t seed, uint64_t stream, uint64_t index) {
    return mix(mix(mix(seed) ^ stream) ^ index);
}

float train__random_unit(uint64_t seed, uint64_t stream, uint64_t index) {
    return (float)(train__random(seed, stream, index) >> 40) * 0x1p-24f;
}

double train__random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    uint64_t x = train__random(seed, stream, index);
    double u = ((double)(x >> 32) + 1) * 0x1p-32, v = (double)(x & 0xffffffffu) * 0x1p-32;
    RAVEL_ASSERT(u > 0 && u <= 1 && v >= 0 && v < 1);
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}
