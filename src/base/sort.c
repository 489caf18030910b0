/* Least significant digit first, 11 bits per pass (2048 counters of 4 bytes fit the first-level cache). Before the
 * passes one scan finds the bits in which the keys differ; a pass whose digit is the same in all keys is skipped. Each
 * pass reads the keys twice: it counts its digit, then moves keys and values. Arrays of up to SHORT keys are sorted by
 * insertion, which is cheaper than clearing the counters. */
#include "base/assert.h"
#include "base/sort.h"

#include <string.h>

enum { BITS = 11, BUCKETS = 1 << BITS, SHORT = 48 };

#define DEFINE_SORT(name, type, passes)                                                                            \
    static inline int name##_done(const type *keys, size_t count) {                                                \
        for (size_t i = 1; i < count; i++)                                                                         \
            if (keys[i - 1] > keys[i]) return 0;                                                                   \
        return 1;                                                                                                  \
    }                                                                                                              \
    static void name##_short(type *keys, int32_t *values, size_t count) {                                          \
        for (size_t i = 1; i < count; i++) {                                                                       \
            type key = keys[i];                                                                                    \
            int32_t value = values[i];                                                                             \
            size_t j = i;                                                                                          \
            for (; j > 0 && keys[j - 1] > key; j--) {                                                              \
                keys[j] = keys[j - 1];                                                                             \
                values[j] = values[j - 1];                                                                         \
            }                                                                                                      \
            keys[j] = key;                                                                                         \
            values[j] = value;                                                                                     \
        }                                                                                                          \
    }                                                                                                              \
    static void name##_pass(const type *keys, const int32_t *values, type *to_keys, int32_t *to_values, int shift, \
                            size_t count) {                                                                        \
        uint32_t at[BUCKETS] = {0}, sum = 0;                                                                       \
        for (size_t i = 0; i < count; i++) at[(keys[i] >> shift) & (BUCKETS - 1)]++;                               \
        for (int b = 0; b < BUCKETS; b++) {                                                                        \
            uint32_t here = at[b];                                                                                 \
            at[b] = sum;                                                                                           \
            sum += here;                                                                                           \
        }                                                                                                          \
        RAVEL_ASSERT(sum == count);                                                                                \
        for (size_t i = 0; i < count; i++) {                                                                       \
            uint32_t to = at[(keys[i] >> shift) & (BUCKETS - 1)]++;                                                \
            to_keys[to] = keys[i];                                                                                 \
            to_values[to] = values[i];                                                                             \
        }                                                                                                          \
    }                                                                                                              \
    void name(type *keys, int32_t *values, type *spare_keys, int32_t *spare_values, size_t count) {                \
        if (count < 2) return;                                                                                     \
        RAVEL_ASSERT(count <= UINT32_MAX && keys != spare_keys && values != spare_values);                         \
        if (count <= SHORT) {                                                                                      \
            name##_short(keys, values, count);                                                                     \
            RAVEL_ASSERT(name##_done(keys, count));                                                                \
            return;                                                                                                \
        }                                                                                                          \
        type differ = 0, *from = keys, *to = spare_keys;                                                           \
        int32_t *from_values = values, *to_values = spare_values;                                                  \
        for (size_t i = 1; i < count; i++) differ |= keys[i] ^ keys[0];                                            \
        for (int pass = 0; pass < (passes); pass++) {                                                              \
            if (!((differ >> (pass * BITS)) & (BUCKETS - 1))) continue;                                            \
            name##_pass(from, from_values, to, to_values, pass *BITS, count);                                      \
            type *keys_swap = from;                                                                                \
            int32_t *values_swap = from_values;                                                                    \
            from = to;                                                                                             \
            from_values = to_values;                                                                               \
            to = keys_swap;                                                                                        \
            to_values = values_swap;                                                                               \
        }                                                                                                          \
        if (from != keys) {                                                                                        \
            memcpy(keys, from, count * sizeof *keys);                                                              \
            memcpy(values, from_values, count * sizeof *values);                                                   \
        }                                                                                                          \
        RAVEL_ASSERT(name##_done(keys, count));                                                                    \
    }

DEFINE_SORT(ravel__sort_u32, uint32_t, 3)
DEFINE_SORT(ravel__sort_u64, uint64_t, 6)
