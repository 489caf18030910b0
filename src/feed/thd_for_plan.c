/* From the planner's options to the packer's, so that the cap which the planner kept is the one that packing keeps. */
#include <ravel/feed.h>

#include "base/assert.h"

static ravel_status make(const ravel_plan_options *plan, int32_t cp, int64_t align, int32_t fixed,
                         ravel_thd_options *options, ravel_error *err) {
    if (align < 1 || align > 1 << 30)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "align %d with cp %d makes slots of more than 2^30 tokens",
                               plan->align, cp);
    if (fixed && plan->max_samples < 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a fixed shape needs the plan's max-samples");
    ravel_thd_options fresh;
    ravel_thd_options_default(&fresh);
    fresh.align = (int32_t)align;
    fresh.cp = cp;
    fresh.cp_kind = plan->cp_split == RAVEL_CP_SPLIT_ZIGZAG ? RAVEL_CP_ZIGZAG : RAVEL_CP_CONTIGUOUS;
    if (fixed) {
        fresh.fixed_tokens = cp * plan->budget / align * align;
        if (fresh.fixed_tokens == 0) fresh.fixed_tokens = align; /* a group below min-cp holds a filler at most */
        fresh.max_samples = plan->max_samples;
    }
    RAVEL_ASSERT(fresh.fixed_tokens % align == 0);
    *options = fresh;
    return RAVEL_OK;
}

ravel_status ravel_thd_options_for_plan(const ravel_plan_options *plan, int32_t fixed, ravel_thd_options *options,
                                        ravel_error *err) {
    return make(plan, plan->cp, ravel_plan_align(plan), fixed, options, err);
}

ravel_status ravel_thd_options_for_group(const ravel_plan_options *plan, int32_t width, int32_t cp_rank, int32_t fixed,
                                         ravel_thd_options *options, ravel_error *err) {
    if (width < 1 || width > 1 << 20 || cp_rank < -1 || cp_rank >= width)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "rank %d of a group of width %d; it must be from 0 to width - 1, or -1 for all", cp_rank,
                               width);
    ravel_status status = make(plan, width, ravel_plan_slot(plan, 1, width), fixed, options, err);
    if (!status) options->cp_rank = width > 1 ? cp_rank : -1;
    return status;
}
