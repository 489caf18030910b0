/* The request parser of the metrics endpoint on any bytes: the answer is one of the known codes; bytes that arrive one
 * by one get no answer before the request is whole, and then the same one. */
#include "metrics/http.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int is_known(int code) {
    static const int codes[] = {0, 200, 204, 302, 400, 404, 405, 431, 505};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i] == code) return 1;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes > RAVEL__HTTP_REQUEST_BYTES) bytes = RAVEL__HTTP_REQUEST_BYTES;
    int head, code = ravel__http_answer((const char *)data, bytes, &head), early = 0, early_head = 0;
    if (!is_known(code) || (head != 0 && head != 1)) abort();
    for (size_t n = 0; n <= bytes && !early; n++) {
        char *exact = malloc(n ? n : 1);
        if (!exact) abort();
        memcpy(exact, data, n);
        early = ravel__http_answer(exact, n, &early_head);
        free(exact);
    }
    if (early != code || early_head != head) abort();
    return 0;
}
