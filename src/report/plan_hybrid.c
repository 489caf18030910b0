/* Hybrid plans: the groups as CSR arrays, and again under the names of Megatron's draft of an execution plan
 * (PackDescriptor, PackAssignment, ExecutionGroup, ExecutionPlan), so that other schedulers' readers can take them. */
#include "report/plan_hybrid.h"

#include "base/assert.h"

/* ---- arrays ------------------------------------------------------------------------------------------------- */

static void put_wide(ravel__printer *t, const char *name, const int64_t *x, int64_t count) {
    RAVEL_ASSERT(count >= 0 && (x || !count));
    ravel__printer_format(t, ",\n\"%s\":[", name);
    for (int64_t i = 0; i < count && !t->status; i++) {
        if (i) ravel__printer_put(t, ",", 1);
        ravel__printer_integer(t, x[i]);
    }
    ravel__printer_put(t, "]", 1);
}

static void put_narrow(ravel__printer *t, const char *name, const int32_t *x, int64_t count) {
    RAVEL_ASSERT(count >= 0 && (x || !count));
    ravel__printer_format(t, ",\n\"%s\":[", name);
    for (int64_t i = 0; i < count && !t->status; i++) {
        if (i) ravel__printer_put(t, ",", 1);
        ravel__printer_integer(t, x[i]);
    }
    ravel__printer_put(t, "]", 1);
}

/* ---- Megatron's draft --------------------------------------------------------------------------------------- */

static int64_t length_of(const ravel_plan_input *in, int32_t row) {
    RAVEL_ASSERT(row >= 0 && row < in->count && (in->lengths || (in->prompts && in->responses)));
    return in->lengths ? in->lengths[row] : in->prompts[row] + in->responses[row];
}

enum { IDS, LENGTHS, PADDED };

static void put_members(ravel__printer *t, const ravel_plan_input *in, const ravel_plan_options *options,
                        const ravel_plan *plan, int64_t group, int what) {
    const ravel_hybrid *h = plan->hybrid;
    RAVEL_ASSERT(group >= 0 && group < h->groups && what >= IDS && what <= PADDED);
    for (int64_t i = h->group_sample_offsets[group]; i < h->group_sample_offsets[group + 1]; i++) {
        RAVEL_ASSERT(i < plan->stats.samples);
        int32_t row = plan->samples[i];
        if (i > h->group_sample_offsets[group]) ravel__printer_put(t, ",", 1);
        ravel__printer_integer(t, what == IDS ? row
                                  : what == LENGTHS
                                      ? length_of(in, row)
                                      : ravel_plan_slot(options, length_of(in, row), h->group_width[group]));
    }
}

static void put_packs(ravel__printer *t, const ravel_plan_input *in, const ravel_plan_options *options,
                      const ravel_plan *plan) {
    ravel__printer_string(t, "\"packs\":[");
    for (int64_t g = 0; g < plan->hybrid->groups && !t->status; g++) {
        ravel__printer_format(t, "%s{\"pack_id\":%lld,\"sample_ids\":[", g ? ",\n" : "\n", (long long)g);
        put_members(t, in, options, plan, g, IDS);
        ravel__printer_string(t, "],\"sequence_lengths\":[");
        put_members(t, in, options, plan, g, LENGTHS);
        ravel__printer_string(t, "],\"padded_sequence_lengths\":[");
        put_members(t, in, options, plan, g, PADDED);
        ravel__printer_string(t, "]}");
    }
    ravel__printer_string(t, "]");
}

static void put_assignment(ravel__printer *t, const ravel_hybrid *h, int64_t g) {
    RAVEL_ASSERT(h->group_width[g] >= 1 && h->group_first[g] >= 0 && h->group_first[g] + h->group_width[g] <= h->pool);
    ravel__printer_format(t, "{\"pack_id\":%lld,\"placement_kind\":\"dynamic_cp\",\"executor_ranks\":[", (long long)g);
    for (int32_t k = 0; k < h->group_width[g]; k++) {
        if (k) ravel__printer_put(t, ",", 1);
        ravel__printer_integer(t, h->group_first[g] + k);
    }
    ravel__printer_format(t, "],\"rank_group_id\":%lld,\"local_cp_size\":%d}", (long long)g, h->group_width[g]);
}

static void put_execution(ravel__printer *t, const ravel_plan_input *in, const ravel_plan *plan) {
    const ravel_hybrid *h = plan->hybrid;
    double squares = 0;
    RAVEL_ASSERT(h->group_offsets[0] == 0 && h->group_offsets[plan->micro_steps] == h->groups);
    for (int64_t i = 0; i < plan->stats.samples; i++) {
        double length = (double)length_of(in, plan->samples[i]);
        squares += length * length;
    }
    ravel__printer_format(t, ",\n\"num_microbatches\":%lld,\"total_tokens\":%lld,\"sequence_square_sum\":",
                          (long long)plan->micro_steps, (long long)plan->stats.actual_tokens);
    ravel__printer_double(t, squares);
    ravel__printer_string(t, ",\n\"groups\":[");
    for (int64_t s = 0; s < plan->micro_steps && !t->status; s++) {
        ravel__printer_format(t, "%s{\"assignments\":[", s ? ",\n" : "\n");
        RAVEL_ASSERT(h->group_offsets[s] <= h->group_offsets[s + 1]);
        for (int64_t g = h->group_offsets[s]; g < h->group_offsets[s + 1]; g++) {
            if (g > h->group_offsets[s]) ravel__printer_put(t, ",", 1);
            put_assignment(t, h, g);
        }
        ravel__printer_string(t, "],\"requires_barrier_after\":true}");
    }
    ravel__printer_string(t, "]");
}

void ravel__hybrid_json(ravel__printer *t, const ravel_plan_input *input, const ravel_plan_options *options,
                        const ravel_plan *plan) {
    const ravel_hybrid *h = plan->hybrid;
    if (!h) return;
    RAVEL_ASSERT(h->pool == plan->dp && h->group_sample_offsets[h->groups] == plan->stats.samples);
    ravel__printer_format(t, ",\n\"hybrid\":{\"pool\":%d,\"groups\":%lld", h->pool, (long long)h->groups);
    put_wide(t, "group_offsets", h->group_offsets, plan->micro_steps + 1);
    put_narrow(t, "group_first", h->group_first, h->groups);
    put_narrow(t, "group_width", h->group_width, h->groups);
    put_wide(t, "group_sample_offsets", h->group_sample_offsets, h->groups + 1);
    put_narrow(t, "samples", plan->samples, plan->stats.samples);
    ravel__printer_format(t, ",\n\"bounds\":{\"micro_steps\":%lld,\"area\":%lld,\"longest\":%lld,\"canonical\":%lld}",
                          (long long)h->bound_micro_steps, (long long)h->bound_area, (long long)h->bound_longest,
                          (long long)h->bound_canonical);
    ravel__printer_string(t, ",\n\"execution_plan\":{");
    put_packs(t, input, options, plan);
    put_execution(t, input, plan);
    ravel__printer_string(t, "}}");
}

/* ---- the picture -------------------------------------------------------------------------------------------- */

void ravel__hybrid_boxes(ravel__printer *t, const ravel_plan *plan, double left, double top, double width,
                         double height) {
    const ravel_hybrid *h = plan->hybrid;
    RAVEL_ASSERT(h && width > 0 && height > 0);
    ravel__printer_string(t, "<path class=\"rv-group\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"1\" d=\"");
    for (int64_t s = 0; s < plan->micro_steps && !t->status; s++)
        for (int64_t g = h->group_offsets[s]; g < h->group_offsets[s + 1]; g++)
            ravel__printer_format(t, "M%.1f %.1fh%.1fv%.1fh%.1fz", left + (double)s * width,
                                  top + h->group_first[g] * height, width - 1, h->group_width[g] * height - 1,
                                  1 - width);
    ravel__printer_string(t, "\"/>\n");
}
