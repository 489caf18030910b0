/* Model configs of any bytes: a shape that is read passes its own check and can be counted. */
#include <ravel/shape.h>

#include "base/model/shape.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_shape shape;
    if (ravel_shape_parse((const char *)data, bytes, &shape, &err) != RAVEL_OK) {
        if (err.message[0] == '\0') abort();
        return 0;
    }
    if (ravel_shape_check(&shape, NULL) != RAVEL_OK) abort();
    int64_t all = ravel_shape_parameters(&shape), active = ravel__shape_matmul_weights(&shape);
    if (all < 1 || active < 1 || active > all || ravel__shape_attention_width(&shape) < 1) abort();
    return 0;
}
