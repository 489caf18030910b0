/* A plan as JSON and as CSV. The JSON is a contract with other programs: members are only ever added. */
#include "report/plan_hybrid.h"

#include "base/assert.h"
#include "report/plan_json.h"

#include <ravel/options.h>

#include <string.h>

/* ---- options and stats ---------------------------------------------------------------------------------- */

/* "max-samples" as a member is "max_samples". */
static void put_name(ravel__printer *t, const char *name) {
    ravel__printer_put(t, "\"", 1);
    for (; *name; name++) ravel__printer_put(t, *name == '-' ? "_" : name, 1);
    ravel__printer_put(t, "\":", 2);
}

void ravel__plan_options_json(ravel__printer *t, const ravel_plan_options *options) {
    char value[512]; /* 14 widths and their prices are the longest */
    ravel__printer_put(t, "{", 1);
    for (const ravel_option *row = ravel_plan_option_table(); row->name; row++) {
        int quoted = row->type == RAVEL_OPTION_ENUM || row->type == RAVEL_OPTION_STRING;
        ravel_option_format(row, options, value, sizeof value);
        put_name(t, row->name);
        ravel__printer_format(t, quoted ? "\"%s\"," : "%s,", value);
    }
    ravel__printer_format(t, "\"cost\":{\"linear\":%lld,\"quadratic\":%lld,\"overhead\":%lld}}",
                          (long long)options->cost.linear, (long long)options->cost.quadratic,
                          (long long)options->cost.overhead);
}

#define PUT_int64_t(t, value) ravel__printer_integer(t, value)
#define PUT_double(t, value)  ravel__printer_double(t, value)

void ravel__plan_stats_json(ravel__printer *t, const ravel_plan *plan) {
    RAVEL_ASSERT(plan->stats.skipped >= 0 &&
                 plan->stats.samples >= 0); /* of a table's row there is no more of the plan */
    ravel__printer_put(t, "{", 1);
#define X(type, name, doc)                      \
    ravel__printer_string(t, "\"" #name "\":"); \
    PUT_##type(t, plan->stats.name);            \
    ravel__printer_put(t, ",", 1);
    RAVEL_PLAN_STATS_LIST(X)
#undef X
    ravel__printer_string(t, "\"skipped_samples\":[");
    for (int64_t i = 0; i < plan->stats.skipped; i++) {
        if (i) ravel__printer_put(t, ",", 1);
        ravel__printer_integer(t, plan->skipped[i]);
    }
    ravel__printer_string(t, "]}");
}

/* ---- bins ----------------------------------------------------------------------------------------------- */

/* Where a bin stands: its update, and its micro-step inside the update. */
typedef struct place {
    int64_t update, step, rank;
} place;

static place place_of(const ravel_plan *plan, int64_t bin, int64_t *update) {
    RAVEL_ASSERT(bin >= 0 && bin < plan->bins && *update >= 0);
    int64_t step = bin / plan->dp;
    while (step >= plan->update_offsets[*update + 1]) ++*update;
    RAVEL_ASSERT(*update < plan->updates && step >= plan->update_offsets[*update]);
    place p = {*update, step - plan->update_offsets[*update], bin % plan->dp};
    return p;
}

static void put_samples(ravel__printer *t, const ravel_plan *plan, int64_t bin, char separator) {
    RAVEL_ASSERT(bin >= 0 && bin < plan->bins && plan->bin_offsets[bin] <= plan->bin_offsets[bin + 1]);
    for (int64_t i = plan->bin_offsets[bin]; i < plan->bin_offsets[bin + 1]; i++) {
        if (i > plan->bin_offsets[bin]) ravel__printer_put(t, &separator, 1);
        ravel__printer_integer(t, plan->samples[i]);
    }
}

/* A rank that runs a filler. The other members of a wide group hold no samples of their own, but they work. */
static int is_filler(const ravel_plan *plan, int64_t bin) {
    RAVEL_ASSERT(bin >= 0 && bin < plan->bins);
    if (plan->hybrid) return plan->hybrid->rank_group[bin] < 0;
    return plan->bin_offsets[bin] == plan->bin_offsets[bin + 1];
}

static void put_bin(ravel__printer *t, const ravel_plan *plan, int64_t bin, place p) {
    int filler = is_filler(plan, bin);
    RAVEL_ASSERT(p.update >= 0 && p.step >= 0 && p.rank >= 0 && p.rank < plan->dp);
    ravel__printer_format(t, "{\"update\":%lld,\"micro_step\":%lld,\"rank\":%lld,\"samples\":[", (long long)p.update,
                          (long long)p.step, (long long)p.rank);
    put_samples(t, plan, bin, ',');
    if (plan->shared) {
        ravel__printer_string(t, "],\"shared\":[");
        for (int64_t i = plan->bin_offsets[bin]; i < plan->bin_offsets[bin + 1]; i++) {
            if (i > plan->bin_offsets[bin]) ravel__printer_put(t, ",", 1);
            ravel__printer_integer(t, plan->shared[i]);
        }
    }
    ravel__printer_format(t, "],\"tokens\":%lld,\"slot_tokens\":%lld,\"cost\":%lld,\"filler\":%s}",
                          (long long)plan->bin_tokens[bin], (long long)plan->bin_slots[bin],
                          (long long)plan->bin_costs[bin], filler ? "true" : "false");
}

ravel_status ravel_plan_json(const ravel_plan_input *input, const ravel_plan_options *options, const ravel_plan *plan,
                             ravel_write write, void *user, ravel_error *err) {
    (void)input; /* the calls of report.h take the same arguments */
    ravel__printer t;
    int64_t update = 0;
    RAVEL_ASSERT(plan->dp >= 1 && plan->bins == plan->micro_steps * plan->dp);
    ravel__printer_begin(&t, write, user, err);
    ravel__printer_string(&t, "{\"version\":1,\n\"options\":");
    ravel__plan_options_json(&t, options);
    ravel__printer_format(&t, ",\n\"digest\":\"%016llx\",\n\"bins\":[", (unsigned long long)plan->digest);
    for (int64_t bin = 0; bin < plan->bins && !t.status; bin++) {
        ravel__printer_string(&t, bin ? ",\n" : "\n");
        put_bin(&t, plan, bin, place_of(plan, bin, &update));
    }
    ravel__printer_string(&t, "],\n\"stats\":");
    ravel__plan_stats_json(&t, plan);
    ravel__hybrid_json(&t, plan);
    ravel__printer_string(&t, "}\n");
    return ravel__printer_end(&t);
}

ravel_status ravel_plan_csv(const ravel_plan_input *input, const ravel_plan_options *options, const ravel_plan *plan,
                            ravel_write write, void *user, ravel_error *err) {
    ravel__printer t;
    int64_t update = 0;
    (void)input;
    (void)options;
    RAVEL_ASSERT(plan->dp >= 1 && plan->bins == plan->micro_steps * plan->dp);
    ravel__printer_begin(&t, write, user, err);
    ravel__printer_string(&t, "update,micro_step,rank,samples,tokens,slot_tokens,cost,filler,sample_ids\n");
    for (int64_t bin = 0; bin < plan->bins && !t.status; bin++) {
        place p = place_of(plan, bin, &update);
        int64_t samples = plan->bin_offsets[bin + 1] - plan->bin_offsets[bin];
        ravel__printer_format(&t, "%lld,%lld,%lld,%lld,%lld,%lld,%lld,%s,", (long long)p.update, (long long)p.step,
                              (long long)p.rank, (long long)samples, (long long)plan->bin_tokens[bin],
                              (long long)plan->bin_slots[bin], (long long)plan->bin_costs[bin],
                              is_filler(plan, bin) ? "1" : "0");
        put_samples(&t, plan, bin, ' ');
        ravel__printer_put(&t, "\n", 1);
    }
    return ravel__printer_end(&t);
}
