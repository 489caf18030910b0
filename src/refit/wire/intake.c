#include "refit/wire/intake.h"

#include "base/assert.h"

static ravel_status wrong(const ravel__intake *in, const char *what, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_DATA, "%s %d %s", in->role, in->sender, what);
}

int64_t ravel__intake_elements(const ravel__intake *in, int64_t bytes) {
    if (ravel__intake_is_over(in)) return 0;
    int64_t each = ravel_dtype_bytes(ravel__intake_dtype(in)),
            left = ravel__intake_want(in)->piece->count - in->element;
    return bytes % each == 0 && bytes / each <= left ? bytes / each : 0;
}

ravel_status ravel__intake_next(ravel__intake *in, int32_t kind, uint64_t elements, uint64_t bytes, uint64_t hash,
                                ravel__refit_block *block, ravel_error *err) {
    RAVEL_ASSERT(kind >= 0 && kind < RAVEL__BLOCK_KINDS && in->at <= in->count);
    int64_t count = 0, each = ravel__intake_is_over(in) ? 0 : ravel_dtype_bytes(ravel__intake_dtype(in));
    if (kind == RAVEL__BLOCK_DATA)
        count = bytes <= INT64_MAX ? ravel__intake_elements(in, (int64_t)bytes) : 0;
    else if (elements <= INT64_MAX / 16)
        count = ravel__intake_elements(in, (int64_t)elements * each);
    if (count == 0) return wrong(in, "sent a block that does not continue the one before", err);
    if (kind != RAVEL__BLOCK_DATA && !in->based)
        return wrong(in, "keeps or changes elements that it was not told are held here", err);
    *block = (ravel__refit_block){.span = ravel__intake_span(in, count), .kind = kind, .hash = hash};
    block->dtype = ravel__intake_dtype(in);
    block->size = (size_t)bytes;
    block->role = in->role;
    block->sender = in->sender;
    in->element += count;
    if (in->element < ravel__intake_want(in)->piece->count) return RAVEL_OK;
    in->at++;
    in->element = 0;
    return RAVEL_OK;
}
