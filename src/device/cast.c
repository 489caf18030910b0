/* Casts on a device: see kernels.h. */
#include "device/cast.h"

#include "base/assert.h"

static const struct cast {
    int32_t dtype, packed, kind;
} casts[] = {{RAVEL_F32, RAVEL_BF16, RAVEL__CAST_F32_BF16}, {RAVEL_F32, RAVEL_F16, RAVEL__CAST_F32_F16}};

int32_t ravel__cast_of(int32_t dtype, int32_t packed) {
    if (dtype == packed) return RAVEL__CAST_COPY;
    for (size_t i = 0; i < sizeof casts / sizeof *casts; i++)
        if (casts[i].dtype == dtype && casts[i].packed == packed) return casts[i].kind;
    return -1;
}

void ravel__cast_first(const ravel__cast_piece *pieces, int64_t count, const ravel__cast_span *spans, int64_t blocks,
                       int64_t block, int32_t *first) {
    int32_t piece = 0;
    for (int64_t b = 0; b < blocks; b++) {
        int64_t at = spans ? spans[b].at : b * block;
        RAVEL_ASSERT(at >= 0 && (b == 0 || at >= (spans ? spans[b - 1].at : (b - 1) * block))); /* pieces only go on */
        while (piece < count && pieces[piece].at + pieces[piece].bytes <= at) piece++;
        first[b] = piece;
        RAVEL_ASSERT(piece <= count && (piece == 0 || pieces[piece - 1].at + pieces[piece - 1].bytes <= at));
    }
}
