#include "train/rl/problems.h"

#include "train/kernels/assert.h"

#include <stdio.h>
#include <string.h>

void train_problems_add(train_problems *p, ravel_error *err) {
    TRAIN_ASSERT(p->count >= 0 && err->message[0]);
    if (p->count < TRAIN_PROBLEMS_SHOWN)
        (void)snprintf(p->first[p->count], TRAIN_PROBLEM_BYTES, "%.*s", TRAIN_PROBLEM_BYTES - 1, err->message);
    p->count++;
    ravel_error_clear(err);
}

void train_problems_merge(train_problems *p, const train_problems *later) {
    TRAIN_ASSERT(p->count >= 0 && later->count >= 0 && p != later);
    for (int64_t i = 0; i < later->count && i < TRAIN_PROBLEMS_SHOWN && p->count + i < TRAIN_PROBLEMS_SHOWN; i++)
        memcpy(p->first[p->count + i], later->first[i], TRAIN_PROBLEM_BYTES);
    p->count += later->count;
}

size_t train_problems_text(const train_problems *p, char *text, size_t bytes) {
    size_t used = 0;
    for (int64_t i = 0; i < p->count && i < TRAIN_PROBLEMS_SHOWN; i++)
        used +=
            (size_t)snprintf(used < bytes ? text + used : NULL, used < bytes ? bytes - used : 0, "\n  %s", p->first[i]);
    if (p->count > TRAIN_PROBLEMS_SHOWN)
        used += (size_t)snprintf(used < bytes ? text + used : NULL, used < bytes ? bytes - used : 0,
                                 "\n  ... and %lld more", (long long)(p->count - TRAIN_PROBLEMS_SHOWN));
    return used;
}

ravel_status train_problems_error(const train_problems *p, const char *path, int64_t rows, ravel_error *err) {
    char list[TRAIN_PROBLEMS_SHOWN * (TRAIN_PROBLEM_BYTES + 4) + 64];
    TRAIN_ASSERT(p->count <= rows);
    if (p->count == 0) return RAVEL_OK;
    (void)train_problems_text(p, list, sizeof list);
    return ravel_error_set(err, RAVEL_E_DATA,
                           "%lld of %lld rows of %.60s cannot be used; correct or remove them "
                           "(train grpo: --bad-rows skip leaves them out):%s",
                           (long long)p->count, (long long)rows, path, list);
}
