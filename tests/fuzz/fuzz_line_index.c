/* An index file of any content: what is taken as good has begins that rise inside the data. */
#include "feed/source/line_index.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    size_t count = size / sizeof(int64_t);
    int64_t *words = malloc(count * sizeof *words + 1), rows = 0;
    if (!words) return 0;
    memcpy(words, data, count * sizeof *words);
    int64_t bytes = count > 2 ? words[2] : 0, seconds = count > 3 ? words[3] : 0,
            nanoseconds = count > 4 ? words[4] : 0;
    if (ravel__line_index_valid(words, count, bytes, seconds, nanoseconds, &rows))
        for (int64_t i = 0; i < rows; i++)
            if (words[RAVEL__INDEX_HEAD + i] < 0 || words[RAVEL__INDEX_HEAD + i] >= bytes) abort();
    free(words);
    return 0;
}
