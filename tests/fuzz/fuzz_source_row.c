/* A row of a JSON-lines file, any bytes: whatever is taken has samples of at least one token, masks of 0 and 1, and all
 * fields; whatever is refused leaves nothing behind. */
#include "feed/source/jsonl_row.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void use(const ravel_collector *c) {
    const int64_t *offsets = c->offsets.at;
    for (int64_t i = 0; i < c->count; i++) {
        if (offsets[i + 1] <= offsets[i]) abort();
        for (int64_t t = offsets[i]; t < offsets[i + 1]; t++) {
            if (((const int32_t *)c->data[RAVEL__FIELD_TOKENS].at)[t] < 0) abort();
            if (((const uint8_t *)c->data[RAVEL__FIELD_MASK].at)[t] > 1) abort();
        }
        float reward = ((const float *)c->data[2].at)[i];
        (void)reward;
    }
    if (offsets[c->count] != c->tokens) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const ravel_field fields[] = {
        {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32, .width = 1},
        {.name = "loss_mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_U8, .width = 1},
        {.name = "reward", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_F32, .width = 1},
        {.name = "logp", .kind = RAVEL_FIELD_STEP, .dtype = RAVEL_F32, .width = 1},
        {.name = "top", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I64, .width = 2},
    };
    const ravel__row_rules rules = {.bos = 256, .eos = 257};
    ravel__row_scratch scratch;
    ravel_collector collector;
    ravel_error err = RAVEL_ERROR_INIT;
    if (bytes < 1) return 0;
    int32_t count = data[0] % 3 == 0 ? 2 : data[0] % 3 == 1 ? 3 : 5; /* fewer fields make more rows pass */
    memset(&scratch, 0, sizeof scratch);
    if (ravel__collector_init(&collector, fields, count, NULL, NULL)) return 0;
    collector.truncate = data[0] & 64 ? 3 : 0;
    ravel_status status = ravel__row_read((const char *)data + 1, bytes - 1, &rules, &scratch, &collector, &err);
    if (status == RAVEL_OK && count >= 3) use(&collector);
    if (status != RAVEL_OK && err.message[0] == '\0') abort();
    ravel__row_scratch_free(NULL, &scratch);
    ravel__collector_free(&collector);
    return 0;
}
