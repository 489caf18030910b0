#include "train/rl/problems.h"

#include "base/assert.h"

#include <stdio.h>
#include <string.h>

void train_problems_add(train_problems *p, ravel_error *err) {
    RAVEL_ASSERT(p->count >= 0 && err->message[0]);
    if (p->count < TRAIN_PROBLEMS_SHOWN)
        (void)snprintf(p->first[p->count], TRAIN_PROBLEM_BYTES, "%.*s", TRAIN_PROBLEM_BYTES - 1, err->message);
    p->count++;
    ravel_error_clear(err);
}

void train_problems_merge(train_problems *p, const train_problems *later) {
    RAVEL_ASSERT(p->count >= 0 && later->count >= 0 && p != later);
    for (int64_t i = 0; i < later->count && i < TRAIN_PROBLEMS_SHOWN && p->count + i < TRAIN_PROBLEMS_SHOWN; i++)
        memcpy(p->first[p->count + i], later->first[i], TRAIN_PROBLEM_BYTES);
    p->count += later->count;
}

size_t train_problems_text(const train_problems *p, char *text, size_t bytes) {
    enum { MORE = 40, AROUND = 8 }; /* bytes of the last line, and around each sentence */
    size_t used = 0, shown = p->count < TRAIN_PROBLEMS_SHOWN ? (size_t)p->count : TRAIN_PROBLEMS_SHOWN;
    RAVEL_ASSERT(bytes > MORE + TRAIN_PROBLEMS_SHOWN * 2 * AROUND);
    for (size_t i = 0; i < shown; i++) {
        size_t room = (bytes - MORE - used) / (shown - i) - AROUND, length = strlen(p->first[i]);
        used += (size_t)snprintf(text + used, bytes - used, "\n  %.*s%s", (int)(length < room ? length : room),
                                 p->first[i], length > room ? "..." : "");
    }
    if (p->count > TRAIN_PROBLEMS_SHOWN)
        used += (size_t)snprintf(text + used, bytes - used, "\n  ... and %lld more",
                                 (long long)(p->count - TRAIN_PROBLEMS_SHOWN));
    if (!shown) text[0] = '\0';
    return used;
}

ravel_status train_problems_error(const train_problems *p, const char *path, int64_t rows, ravel_error *err) {
    char list[850];
    RAVEL_ASSERT(p->count <= rows);
    if (p->count == 0) return RAVEL_OK;
    (void)train_problems_text(p, list, sizeof list);
    return ravel_error_set(err, RAVEL_E_DATA,
                           "%lld of %lld rows of %.60s cannot be used; correct or remove them "
                           "(train grpo: --bad-rows skip leaves them out):%s",
                           (long long)p->count, (long long)rows, path, list);
}
