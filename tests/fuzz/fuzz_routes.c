/* Experts' routes in a server's answer, any bytes: what is accepted are experts of the model, no two of a token alike. */
#include "train/rl/routes_read.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void must(int condition) {
    if (!condition) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    ravel_error err = RAVEL_ERROR_INIT;
    if (bytes < 2) return 0;
    train_routes r = {.layers = 1 + data[0] % 4, .topk = 1 + data[0] / 4 % 3, .experts = 4 + data[0] / 16};
    const int64_t tokens = 1 + data[1] % 16;
    if (train_routes_read(&r, (const char *)data + 2, bytes - 2, tokens, &err) == RAVEL_OK) {
        must(r.count == tokens - 1);
        for (int64_t i = 0; i < r.count * r.layers * r.topk; i++) must(r.rows[i] >= -1 && r.rows[i] < r.experts);
        for (int64_t i = 1; i < r.count * r.layers * r.topk; i++)
            must(i % r.topk == 0 || r.rows[i] < 0 || r.rows[i] != r.rows[i - 1]);
    } else {
        must(err.message[0] != '\0' && r.count == 0);
    }
    train_routes_free(&r);
    return 0;
}
