/* Hybrid plans: the groups as CSR arrays. */
#include "report/plan_hybrid.h"

#include "base/assert.h"

/* Numbers of 64 bits, or of 32 (`wide` NULL). */
static void put_array(ravel__printer *t, const char *name, const int64_t *wide, const int32_t *narrow, int64_t count) {
    RAVEL_ASSERT(count >= 0 && (wide || narrow || !count));
    ravel__printer_format(t, ",\n\"%s\":[", name);
    for (int64_t i = 0; i < count && !t->status; i++) {
        if (i) ravel__printer_put(t, ",", 1);
        ravel__printer_integer(t, wide ? wide[i] : narrow[i]);
    }
    ravel__printer_put(t, "]", 1);
}

void ravel__hybrid_json(ravel__printer *t, const ravel_plan *plan) {
    const ravel_hybrid *h = plan->hybrid;
    if (!h) return;
    RAVEL_ASSERT(h->pool == plan->dp && h->group_sample_offsets[h->groups] == plan->stats.samples);
    ravel__printer_format(t, ",\n\"hybrid\":{\"pool\":%d,\"groups\":%lld", h->pool, (long long)h->groups);
    put_array(t, "group_offsets", h->group_offsets, NULL, plan->micro_steps + 1);
    put_array(t, "group_first", NULL, h->group_first, h->groups);
    put_array(t, "group_width", NULL, h->group_width, h->groups);
    put_array(t, "group_sample_offsets", h->group_sample_offsets, NULL, h->groups + 1);
    put_array(t, "samples", NULL, plan->samples, plan->stats.samples);
    ravel__printer_format(t, ",\n\"bounds\":{\"micro_steps\":%lld,\"area\":%lld,\"longest\":%lld,\"canonical\":%lld}",
                          (long long)h->bound_micro_steps, (long long)h->bound_area, (long long)h->bound_longest,
                          (long long)h->bound_canonical);
    ravel__printer_string(t, "}");
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
