/* From the planner's options to the packer's, so that the cap which the planner kept is the one that packing keeps. */
#include <ravel/feed.h>

ravel_status ravel_thd_options_for_plan(const ravel_plan_options *plan, int32_t fixed, ravel_thd_options *options,
                                        ravel_error *err) {
    int32_t align = ravel_plan_align(plan);
    if (align < 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "align %d with cp %d makes slots of more than 2^30 tokens",
                               plan->align, plan->cp);
    if (fixed && plan->max_samples < 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a fixed shape needs the plan's max-samples");
    ravel_thd_options fresh;
    ravel_thd_options_default(&fresh);
    fresh.align = align;
    fresh.cp = plan->cp;
    fresh.cp_kind = plan->cp_split == RAVEL_CP_SPLIT_ZIGZAG ? RAVEL_CP_ZIGZAG : RAVEL_CP_CONTIGUOUS;
    if (fixed) {
        fresh.fixed_tokens = plan->cp * plan->budget / align * align;
        fresh.max_samples = plan->max_samples;
    }
    *options = fresh;
    return RAVEL_OK;
}
