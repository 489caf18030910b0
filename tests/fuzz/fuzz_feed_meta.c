/* The metadata decoder on any words. The checksum of half the inputs is made right first, so that the fuzzer gets
 * behind it; whatever is taken must be inside the message, keep its promises and encode to the same words. */
#include <ravel/meta.h>

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void mend(int64_t *words, int64_t count) {
    words[0] = RAVEL_META_MAGIC;
    if (count > 1) words[1] = RAVEL_META_VERSION;
    if (count > 2) words[2] = count;
    ravel__hash h = ravel__hash_begin(RAVEL_META_MAGIC);
    ravel__hash_i64s(&h, words, (size_t)count - 1);
    words[count - 1] = (int64_t)ravel__hash_end(h);
}

static void use(const ravel_meta *meta, const int64_t *words, int64_t count) {
    int64_t samples = 0, steps = 0;
    for (int64_t s = 0; s < meta->micro_steps; s++) samples += meta->bin_samples[s];
    for (int64_t u = 0; u < meta->updates; u++) steps += meta->counts[u].micro_steps;
    if (samples != meta->samples || steps != meta->micro_steps || ravel_meta_words(meta) != count) abort();
    for (int64_t i = 0; i < meta->samples; i++)
        if (meta->lengths[i] < 1 || meta->loss_tokens[i] > meta->lengths[i] || meta->parts[i] < 0) abort();
    for (int64_t s = 0; meta->group_width && s < meta->micro_steps; s++)
        if (meta->group_width[s] < 1 || meta->group_first[s] < 0 || meta->group_first[s] % meta->group_width[s])
            abort();
    int64_t *again = malloc((size_t)count * sizeof *again);
    if (!again || ravel_meta_encode(meta, again, count, NULL) != RAVEL_OK) abort();
    if (memcmp(again + 12, words + 12, (size_t)(count - 13) * sizeof *again) != 0) abort();
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    int64_t count = bytes ? (int64_t)((bytes - 1) / 8) : 0;
    int64_t *words = malloc((size_t)count * sizeof *words + 1);
    ravel_meta meta = {.size = sizeof meta};
    ravel_error err = RAVEL_ERROR_INIT;
    if (!words) return 0;
    if (count) memcpy(words, data + 1, (size_t)count * sizeof *words);
    if (count && data[0] % 2) mend(words, count);
    if (ravel_meta_decode(words, count, &meta, &err) == RAVEL_OK)
        use(&meta, words, count);
    else if (err.message[0] == '\0')
        abort();
    free(words);
    return 0;
}
