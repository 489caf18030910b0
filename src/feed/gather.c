/* Gathering integers; a list of words that grows. */
#include <ravel/exchange.h>

#include "base/assert.h"
#include "base/memory.h"

#include <inttypes.h>

ravel_status ravel_gather_counts(ravel_comm *comm, int64_t mine, int64_t *counts, ravel_error *err) {
    if (mine < 0) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a rank cannot have %" PRId64 " samples", mine);
    return ravel_comm_allgather(comm, &mine, counts, 1, RAVEL_I64, err);
}

ravel_status ravel_gather(ravel_comm *comm, const int64_t *mine, const int64_t *counts, int64_t width, int64_t *all,
                          ravel_error *err) {
    enum { STACK = 256 };
    int64_t few[STACK], *words = few;
    int32_t size = ravel_comm_size(comm);
    size_t bytes = (size_t)size * sizeof *words;
    if (width < 1) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a gather of %" PRId64 " integers per sample", width);
    if (size > STACK) words = ravel__alloc(NULL, bytes);
    if (!words) return ravel__no_memory(err, bytes, "the counts of a gather");
    ravel_status status = RAVEL_OK;
    for (int32_t r = 0; r < size && !status; r++)
        if (counts[r] < 0 || __builtin_mul_overflow(counts[r], width, &words[r]))
            status = ravel_error_set(err, RAVEL_E_ARGUMENT, "rank %d cannot have %" PRId64 " samples", r, counts[r]);
    if (!status) status = ravel_comm_allgatherv(comm, mine, all, words, NULL, RAVEL_I64, err);
    if (words != few) ravel__release(NULL, words, bytes);
    return status;
}

ravel_status ravel_words_resize(ravel_words *words, int64_t count, ravel_error *err) {
    size_t need;
    if (count < 0 || !ravel__size_mul((size_t)count, sizeof *words->at, &need) || need > SIZE_MAX / 4)
        return ravel__no_memory(err, SIZE_MAX, "a message");
    if (need > words->room) {
        size_t room = need < 2 * words->room ? 2 * words->room : need;
        int64_t *at = ravel__resize(words->allocator, words->at, words->room, room);
        if (!at) return ravel__no_memory(err, room, "a message");
        words->at = at;
        words->room = room;
    }
    RAVEL_ASSERT(need <= words->room);
    words->count = count;
    return RAVEL_OK;
}

void ravel_words_free(ravel_words *words) {
    ravel__release(words->allocator, words->at, words->room);
    words->at = NULL;
    words->count = 0;
    words->room = 0;
}
