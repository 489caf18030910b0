/* Shared by packing and unpacking of the THD layout. */
#ifndef RAVEL_BATCH_THD_H
#define RAVEL_BATCH_THD_H

#include "batch/slot.h"

/* The caller's options, checked, with defaults where an older caller has no field. */
ravel_status ravel__thd_options_read(const ravel_thd_options *options, ravel_thd_options *own, ravel_error *err);
/* The caller's record, with 0 if an older caller has no field. */
ravel_status ravel__thd_read(const ravel_thd *thd, ravel_thd *own, ravel_error *err);

/* Sequence i, and the length of its slot when `begin` of `tokens` tokens came before. The bin has been checked. */
ravel__sequence ravel__thd_sequence(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_thd_options *options,
                                    int64_t tokens, int64_t i, int64_t begin, int64_t *slot);
/* Packing into device memory, everything having been checked but the fields. */
ravel_status ravel__thd_pack_device(const ravel_ragged *ragged, const ravel_bin *bin, const ravel_thd_options *options,
                                    const ravel_thd *thd, ravel_error *err);

static inline ravel_cp ravel__thd_cp(const ravel_thd_options *options) {
    ravel_cp cp = {options->cp, options->cp_kind};
    return cp;
}

#endif
