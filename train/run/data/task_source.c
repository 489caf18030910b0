/* A verifiable task as a data set: row i is question i with its answer, the prompt not to be learnt. */
#include "train/run/sft/sft.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/rl/task.h"

typedef struct rows {
    const train_task *task;
    uint64_t seed;
    int64_t first;
    int32_t level;
} rows;

static ravel_status read_row(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    const rows *r = user;
    train_question question;
    int32_t tokens[TRAIN_TASK_TOKENS];
    uint8_t mask[TRAIN_TASK_TOKENS];
    int64_t prompt = 0;
    train_task_make(r->task, r->seed, r->first + row, r->level, &question);
    int64_t count = train_task_tokens(&question, 1, tokens, &prompt);
    RAVEL_ASSERT(count > prompt && prompt > 0 && count <= TRAIN_TASK_TOKENS);
    for (int64_t i = 0; i < count; i++) mask[i] = i >= prompt;
    const void *data[] = {tokens, mask};
    return ravel_collector_add(collector, count, data, err);
}

static void close_rows(void *user) {
    ravel__release(NULL, user, sizeof(rows));
}

ravel_status train_task_source(const char *task, uint64_t seed, int32_t level, int64_t first, int64_t count,
                               ravel_source **source, ravel_error *err) {
    static const ravel_field fields[] = {
        {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32},
        {.name = "loss_mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_U8},
    };
    rows *r = ravel__calloc(NULL, 1, sizeof *r);
    RAVEL_ASSERT(first >= 0 && count >= 0);
    if (!r) return ravel__no_memory(err, sizeof *r, "a task");
    *r = (rows){.seed = seed, .first = first, .level = level};
    ravel_source_hooks hooks = {.size = sizeof hooks,
                                .user = r,
                                .count = count,
                                .fields = fields,
                                .field_count = 2,
                                .read = read_row,
                                .close = close_rows};
    ravel_status status = train_task_find(task, &r->task, err);
    if (!status) status = ravel_source_callbacks(&hooks, source, err);
    if (status) close_rows(r);
    return status;
}
