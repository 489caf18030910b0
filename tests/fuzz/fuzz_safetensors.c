/* The safetensors reader on any bytes: every tensor lies inside the file, behind the one before it, can be found by
 * its name and read to its last byte. */
#include "io/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void walk(const ravel_safetensors *file, const uint8_t *data, size_t bytes) {
    const uint8_t *at = NULL;
    uint64_t sum = 0;
    for (int64_t i = 0; i < ravel_safetensors_count(file); i++) {
        const ravel_safetensor *t = ravel_safetensors_at(file, i);
        const uint8_t *p = t->data;
        if (at && p != at) abort();
        if (p < data + 8 || p + t->bytes > data + bytes) abort();
        int64_t count = 1;
        for (int32_t d = 0; d < t->rank; d++) count *= t->dims[d];
        if (count != t->count || count * ravel_dtype_bytes(t->dtype) != t->bytes) abort();
        if (ravel_safetensors_find(file, t->name) != t) abort();
        for (int64_t b = 0; b < t->bytes; b++) sum += p[b];
        double value[4];
        if (t->count && ravel_dtype_kind(t->dtype) == 'f')
            if (ravel_safetensor_read(t, t->count - 1, 1, RAVEL_F64, value, NULL)) abort();
        at = p + t->bytes;
    }
    if (at && at != data + bytes) abort();
    for (int64_t i = 0; i < ravel_safetensors_metadata_count(file); i++)
        sum += strlen(ravel_safetensors_metadata_key(file, i)) + strlen(ravel_safetensors_metadata_value(file, i));
    volatile uint64_t keep = sum;
    (void)keep;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    ravel_safetensors *file = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    const ravel_safetensor *none = NULL;
    if (ravel__safetensors_view(data, bytes, NULL, &file, &err) == RAVEL_OK) {
        walk(file, data, bytes);
        if (ravel_safetensors_get(file, "\x01 no such name", -1, NULL, &none, &err) == RAVEL_OK) abort();
    } else if (err.message[0] == '\0') {
        abort();
    }
    ravel_safetensors_free(file);
    return 0;
}
