/* Mock descriptions of any bytes: what is accepted gives samples within its own limits. Mode file is left out, since a
 * fuzzer would read the machine's files. */
#include <ravel/mock.h>

#include "io/mock.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_mock *mock = NULL;
    for (size_t i = 0; i + 4 <= bytes; i++)
        if (memcmp(data + i, "file", 4) == 0 || data[i] == '\\') return 0;
    if (ravel__mock_parse((const char *)data, bytes, NULL, &mock, &err) != RAVEL_OK) {
        if (err.message[0] == '\0' || mock) abort();
        return 0;
    }
    const ravel_mock_options *o = ravel_mock_described(mock);
    for (int64_t i = 0; i < 50; i++) {
        int64_t length = ravel_mock_length(mock, i * i * i), prompt = ravel_mock_prompt(mock, i * i * i);
        if (length < o->min_seq_len || length > o->max_seq_len || length < 1 || prompt < 0 || prompt > length) abort();
    }
    ravel_mock_free(mock);
    return 0;
}
