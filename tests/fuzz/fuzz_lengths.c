/* The readers of lengths on any bytes. The first byte picks the format and whether a field is asked for; whatever is
 * read keeps what the header promises. */
#include <ravel/lengths.h>

#include "io/columns.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check(const ravel_lengths *l) {
    int64_t total = 0;
    if (l->count < 1 || (l->lengths ? 1 : 0) == (l->prompts ? 1 : 0) || !l->prompts != !l->responses) abort();
    for (int64_t i = 0; i < l->count; i++) {
        int64_t length = l->lengths ? l->lengths[i] : l->prompts[i] + l->responses[i];
        if (length < 1 || length > INT64_C(1) << 31 || length > l->longest) abort();
        if (l->prompts && (l->prompts[i] < 0 || l->responses[i] < 0)) abort();
        total += length;
    }
    if (total != l->total || memchr(l->columns, 0, sizeof l->columns) == NULL) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const fields[] = {NULL, "a", "a,b", "2", "x.0.y"};
    if (bytes == 0) return 0;
    ravel_read_options options;
    ravel_read_options_default(&options);
    options.format = data[0] % 4;
    options.field = fields[data[0] / 4 % 5];
    options.limit = data[0] & 128 ? 3 : 0;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_lengths *l = NULL;
    if (ravel__lengths_parse("input", data + 1, bytes - 1, &options, &l, &err) == RAVEL_OK)
        check(l);
    else if (err.message[0] == '\0' || l)
        abort();
    ravel_lengths_free(l);
    return 0;
}
