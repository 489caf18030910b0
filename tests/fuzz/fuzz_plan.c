/* Packed plans of any bytes. The hash of half the inputs is made right first, so that the fuzzer gets behind it; what
 * is taken must be walkable and pack to the same bytes. */
#include <ravel/plan.h>

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void repair(int64_t *words, size_t count) {
    words[2] = (int64_t)count;
    ravel__hash h = ravel__hash_begin((uint64_t)words[0]);
    ravel__hash_i64s(&h, words, count - 1);
    words[count - 1] = (int64_t)ravel__hash_end(h);
}

static void use(const ravel_plan *plan, const void *bytes, size_t size) {
    int64_t sum = 0;
    for (int64_t b = 0; b < plan->bins; b++)
        for (int64_t i = plan->bin_offsets[b]; i < plan->bin_offsets[b + 1]; i++)
            sum += plan->samples[i] >= plan->count;
    for (int64_t b = 0; plan->hybrid && b < plan->bins; b++)
        if (plan->hybrid->rank_group[b] >= 0) sum += plan->hybrid->group_width[plan->hybrid->rank_group[b]] < 1;
    void *again = malloc(size);
    if (sum || !again || ravel_plan_packed_bytes(plan) != size) abort();
    if (ravel_plan_pack(plan, again, size, NULL) != RAVEL_OK || memcmp(again, bytes, 16) != 0) abort();
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    size_t count = bytes ? (bytes - 1) / 8 : 0;
    int64_t *words = malloc(count * sizeof *words + 8);
    ravel_plan *plan = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    if (!words) return 0;
    if (count) memcpy(words, data + 1, count * sizeof *words);
    if (count > 3 && data[0] % 2) repair(words, count);
    if (ravel_plan_unpack(words, count * sizeof *words, NULL, &plan, &err) == RAVEL_OK)
        use(plan, words, count * sizeof *words);
    else if (err.message[0] == '\0')
        abort();
    ravel_plan_free(plan);
    free(words);
    return 0;
}
