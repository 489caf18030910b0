/* Sparse blocks of any bytes: applied in two pieces, they change nothing beside the block. The first byte says how large an
 * element is, the second how many there are. What is accepted is encoded again from its result, and comes to the same. */
#include "base/bytes.h"
#include "base/sparse.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static ravel_status apply(const uint8_t *data, size_t bytes, unsigned char *block, size_t count, size_t each) {
    ravel__sparse s;
    ravel_error err = RAVEL_ERROR_INIT;
    size_t half = count / 2;
    ravel_status status = ravel__sparse_open(&s, data, bytes, count, each, &err);
    if (status == RAVEL_OK) status = ravel__sparse_apply(&s, block, 0, half, &err);
    if (status == RAVEL_OK) status = ravel__sparse_apply(&s, block + half * each, half, count - half, &err);
    if (status == RAVEL_OK) status = ravel__sparse_end(&s, &err);
    if (status != RAVEL_OK && (status != RAVEL_E_DATA || !err.message[0])) abort();
    return status;
}

static void check(const uint8_t *data, size_t bytes, size_t count, size_t each) {
    unsigned char *base = calloc(count, each), *block = calloc(count, each), *out = malloc(count * each);
    size_t changed;
    if (base && block && out && apply(data, bytes, block, count, each) == RAVEL_OK) {
        size_t size = ravel__sparse_encode(base, block, count, each, out, &changed);
        memset(base, 0, count * each);
        if (size > 0 && (apply(out, size, base, count, each) != RAVEL_OK || memcmp(base, block, count * each) != 0))
            abort();
    }
    free(base);
    free(block);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes < 3) return 0;
    size_t each = (size_t)1 << data[0] % 4, count = 1 + 7 * (size_t)data[1];
    unsigned char *copy = malloc(bytes - 2);
    if (!copy) return 0;
    memcpy(copy, data + 2, bytes - 2);
    check(copy, bytes - 2, count, each);
    if (bytes >= 6) { /* with the right number of elements, so that the records are read */
        ravel__put32(copy, (uint32_t)count);
        check(copy, bytes - 2, count, each);
    }
    free(copy);
    return 0;
}
