/* What packing and unpacking of the THD layout share. */
#ifndef RAVEL_BATCH_THD_H
#define RAVEL_BATCH_THD_H

#include <ravel/batch.h>

/* The caller's options, checked, with defaults where an older caller has no field. */
ravel_status ravel__thd_options_read(const ravel_thd_options *options, ravel_thd_options *own, ravel_error *err);
ravel_status ravel__thd_check_size(const ravel_thd *thd, ravel_error *err);

static inline ravel_cp ravel__thd_cp(const ravel_thd_options *options) {
    ravel_cp cp = {options->cp, options->cp_kind};
    return cp;
}

#endif
