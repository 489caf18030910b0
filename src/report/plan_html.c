/* The page of a plan: page.html with what belongs to this plan put in at its marks. Figures stand in the HTML itself,
 * so that they are there without a script; the bins go in as JSON, from which the script draws. */
#include "report/page.h"
#include "report/plan_svg.h"
#include "report/printer.h"

#include "base/assert.h"
#include "base/number.h"
#include "base/options.h"

#include <stdio.h>
#include <string.h>

typedef struct page {
    ravel__printer out;
    const ravel_plan_input *input;
    const ravel_plan_options *options;
    const ravel_plan *plan;
    const char *title;
    int64_t steps;   /* micro-steps that are shown */
    int64_t samples; /* samples in them */
} page;

/* ---- figures -------------------------------------------------------------------------------------------- */

/* A card: title, figure, and a note to compare it with. */
static void card(page *p, const char *name, const char *value, const char *beside) {
    ravel__printer_string(&p->out, "<div class=\"card\"><dt>");
    ravel__printer_html(&p->out, name);
    ravel__printer_string(&p->out, "</dt><dd>");
    ravel__printer_html(&p->out, value);
    ravel__printer_string(&p->out, "<small>");
    ravel__printer_html(&p->out, beside);
    ravel__printer_string(&p->out, "</small></dd></div>\n");
}

static void count_card(page *p, const char *name, int64_t value, const char *word, int64_t beside) {
    char line[80];
    (void)snprintf(line, sizeof line, "%s %s", word, ravel__thousands(beside).text);
    card(p, name, ravel__thousands(value).text, line);
}

static void share_card(page *p, const char *name, double share, const char *beside) {
    RAVEL_ASSERT(share > -1e-9 && share < 1 + 1e-9);
    char text[32];
    (void)ravel__number_print(text, sizeof text, share < 0.1 ? "%.2f %%" : "%.1f %%", 100 * share);
    card(p, name, text, beside);
}

static void put_figures(page *p) {
    const ravel_plan_stats *s = &p->plan->stats;
    char text[32], beside[80];
    int per_step = p->options->sync == RAVEL_SYNC_MICRO_STEP;
    RAVEL_ASSERT(p->plan->dp >= 1 && s->actual_tokens <= s->padded_tokens && s->bins + s->fillers <= p->plan->bins);
    count_card(p, "samples", s->samples, "longest", s->longest);
    count_card(p, "tokens", s->actual_tokens, "padded", s->padded_tokens);
    count_card(p, "bins", s->bins, "lower bound", s->bins_lower_bound);
    count_card(p, "micro-steps", s->micro_steps, "lower bound", s->micro_steps_lower_bound);
    if (p->plan->shared) {
        double flat = s->flat_tokens > 0 ? (double)s->flat_tokens : 1;
        share_card(p, "shared", 1 - (double)s->actual_tokens / flat, "of the samples' tokens are computed with others");
        count_card(p, "repeated by cuts", s->actual_tokens - s->unique_tokens, "of", s->actual_tokens);
    }
    share_card(p, "fill", s->fill, "of the budget is real tokens");
    share_card(p, "padding", s->padding, "of the slots is padding");
    share_card(p, per_step ? "idle" : "idle per micro-step", s->idle_micro_step,
               per_step ? "of rank time, ranks meeting every micro-step" : "if ranks met every micro-step");
    share_card(p, per_step ? "idle per update" : "idle", s->idle_update,
               per_step ? "if ranks met once per update" : "of rank time, ranks meeting once per update");
    double perfect = (double)s->cost / p->plan->dp;
    (void)ravel__number_print(text, sizeof text, "%.4f", perfect > 0 ? (double)s->time / perfect : 1);
    (void)ravel__number_print(beside, sizeof beside, "x perfect balance; bound %.4f",
                              perfect > 0 ? (double)s->time_lower_bound / perfect : 1);
    card(p, "predicted time", text, beside);
    if (s->fillers) count_card(p, "fillers", s->fillers, "bins in all", p->plan->bins);
    if (p->input->homes) {
        share_card(p, "tokens moved", s->actual_tokens ? (double)s->tokens_moved / (double)s->actual_tokens : 0,
                   "leave their home rank");
    }
    (void)snprintf(text, sizeof text, "%016llx", (unsigned long long)p->plan->digest);
    (void)snprintf(beside, sizeof beside, "%.8s of inputs and plan", text + 8);
    text[8] = '\0';
    card(p, "digest", text, beside);
}

/* ---- tables --------------------------------------------------------------------------------------------- */

static void row(page *p, const char *name, const char *value, const char *doc) {
    ravel__printer_string(&p->out, "<tr><td>");
    ravel__printer_html(&p->out, name);
    ravel__printer_string(&p->out, "</td><td class=\"n\">");
    ravel__printer_html(&p->out, value);
    ravel__printer_string(&p->out, "</td><td class=\"soft\">");
    ravel__printer_html(&p->out, doc);
    ravel__printer_string(&p->out, "</td></tr>\n");
}

static void row_int64_t(page *p, const char *name, int64_t value, const char *doc) {
    row(p, name, ravel__thousands(value).text, doc);
}

static void row_double(page *p, const char *name, double value, const char *doc) {
    char text[32];
    (void)ravel__number_print(text, sizeof text, "%.6f", value);
    row(p, name, text, doc);
}

static void put_stats(page *p) {
#define X(type, name, doc) row_##type(p, #name, p->plan->stats.name, doc);
    RAVEL_PLAN_STATS_LIST(X)
#undef X
}

static void put_options(page *p) {
    char value[128];
    for (const ravel_option *o = ravel_plan_option_table(); o->name; o++) {
        ravel_option_format(o, p->options, value, sizeof value);
        row(p, o->name, value, o->doc);
    }
    (void)snprintf(value, sizeof value, "%lld:%lld:%lld", (long long)p->options->cost.linear,
                   (long long)p->options->cost.quadratic, (long long)p->options->cost.overhead);
    row(p, "cost", value, p->input->costs ? "the caller's own costs were used" : "linear, quadratic, per micro-step");
}

static void put_title(page *p) {
    ravel__printer_html(&p->out, p->title);
}

static void put_subtitle(page *p) {
    char sync[32], layout[32];
    const ravel_plan_options *o = p->options;
    (void)ravel__choice_word(RAVEL_SYNC_CHOICES, o->sync, sync, sizeof sync);
    (void)ravel__choice_word(RAVEL_LAYOUT_CHOICES, o->layout, layout, sizeof layout);
    ravel__printer_format(&p->out, "%s %s rank%s, %s tokens per %s, %s, sync %s, method %s, %lld update%s",
                          ravel__thousands(p->plan->dp).text,
                          p->plan->hybrid ? "pooled context-parallel" : "data-parallel", p->plan->dp == 1 ? "" : "s",
                          ravel__thousands(o->cp * o->budget).text, p->plan->hybrid ? "rank" : "bin", layout, sync,
                          ravel_method_name(o->method), (long long)p->plan->updates, p->plan->updates == 1 ? "" : "s");
}

static void put_warnings(page *p) {
    const ravel_plan *plan = p->plan;
    RAVEL_ASSERT(p->steps >= 0 && plan->stats.skipped >= 0 && plan->stats.skipped <= plan->count);
    if (plan->stats.skipped) {
        int64_t most = plan->stats.skipped < 50 ? plan->stats.skipped : 50;
        ravel__printer_format(&p->out, "<div class=\"warn\"><b>%s samples fit no bin and were left out:</b>",
                              ravel__thousands(plan->stats.skipped).text);
        for (int64_t i = 0; i < most; i++) ravel__printer_format(&p->out, " %d", plan->skipped[i]);
        ravel__printer_string(&p->out, most < plan->stats.skipped ? " ...</div>\n" : "</div>\n");
    }
    if (p->steps < plan->micro_steps)
        ravel__printer_format(
            &p->out,
            "<div class=\"warn\">The picture shows the first %s of %s micro-steps; all figures are of "
            "the whole plan.</div>\n",
            ravel__thousands(p->steps).text, ravel__thousands(plan->micro_steps).text);
}

/* ---- data ----------------------------------------------------------------------------------------------- */

static void put_list(page *p, const char *name, const int64_t *list, int64_t count) {
    RAVEL_ASSERT(count >= 0 && (list || !count));
    ravel__printer_format(&p->out, ",\n\"%s\":[", name);
    for (int64_t i = 0; i < count; i++) {
        if (i) ravel__printer_put(&p->out, ",", 1);
        ravel__printer_integer(&p->out, list[i]);
    }
    ravel__printer_put(&p->out, "]", 1);
}

/* One number for every sample that is shown, in the order of the bins. */
static void put_each(page *p, const char *name, int64_t (*value)(const page *p, int64_t sample)) {
    RAVEL_ASSERT(p->samples >= 0 && p->samples <= p->plan->stats.samples);
    ravel__printer_format(&p->out, ",\n\"%s\":[", name);
    for (int64_t i = 0; i < p->samples; i++) {
        if (i) ravel__printer_put(&p->out, ",", 1);
        ravel__printer_integer(&p->out, value(p, p->plan->samples[i]));
    }
    ravel__printer_put(&p->out, "]", 1);
}

static int64_t id_of(const page *p, int64_t sample) {
    (void)p;
    return sample;
}

static int64_t length_of(const page *p, int64_t sample) {
    const ravel_plan_input *in = p->input;
    RAVEL_ASSERT(sample >= 0 && sample < in->count);
    return in->prompts ? in->prompts[sample] + in->responses[sample] : in->lengths[sample];
}

static int64_t prompt_of(const page *p, int64_t sample) {
    RAVEL_ASSERT(sample >= 0 && sample < p->input->count);
    return p->input->prompts[sample];
}

static int64_t cost_of(const page *p, int64_t sample) {
    RAVEL_ASSERT(sample >= 0 && sample < p->input->count && p->input->costs[sample] >= 0);
    return p->input->costs[sample];
}

/* The group of every bin, and the multiple of slots at each width. A filler is a group of one. */
static void put_groups(page *p, int64_t bins) {
    const ravel_hybrid *h = p->plan->hybrid;
    RAVEL_ASSERT(h->pool >= 1 && h->pool == p->plan->dp && bins % h->pool == 0);
    for (int what = 0; what < 2; what++) {
        ravel__printer_format(&p->out, ",\n\"%s\":[", what ? "group_width" : "group_first");
        for (int64_t b = 0; b < bins; b++) {
            ravel_group group = ravel_plan_group(p->plan, b / h->pool, (int32_t)(b % h->pool));
            RAVEL_ASSERT(group.width >= 1 && group.first >= 0 && group.first + group.width <= h->pool);
            if (b) ravel__printer_put(&p->out, ",", 1);
            ravel__printer_integer(&p->out, what ? group.width : group.first);
        }
        ravel__printer_put(&p->out, "]", 1);
    }
    ravel__printer_format(&p->out, ",\n\"overhead\":%lld,\"multiples\":{", (long long)p->options->cost.overhead);
    for (int32_t width = 1; width <= h->pool; width++) {
        int64_t g = 0;
        while (g < h->groups && h->group_width[g] != width) g++;
        if (g < h->groups || width == 1)
            ravel__printer_format(&p->out, "%s\"%d\":%lld", width > 1 ? "," : "", width,
                                  (long long)ravel_plan_slot(p->options, 1, width));
    }
    ravel__printer_put(&p->out, "}", 1);
}

static void put_data(page *p) {
    const ravel_plan *plan = p->plan;
    const ravel_plan_options *o = p->options;
    int64_t bins = p->steps * plan->dp, capacity = o->cp * o->budget;
    char sync[32], layout[32];
    RAVEL_ASSERT(bins <= plan->bins && plan->stats.cost_shift >= 0 && plan->stats.cost_shift < 64);
    (void)ravel__choice_word(RAVEL_SYNC_CHOICES, o->sync, sync, sizeof sync);
    (void)ravel__choice_word(RAVEL_LAYOUT_CHOICES, o->layout, layout, sizeof layout);
    ravel__printer_format(&p->out,
                          "{\"dp\":%d,\"steps\":%lld,\"capacity\":%lld,\"align\":%d,\"layout\":\"%s\",\"sync\":\"%s\","
                          "\"linear\":%lld,\"quadratic\":%lld,\"scale\":%llu",
                          plan->dp, (long long)p->steps, (long long)capacity, o->align, layout, sync,
                          (long long)o->cost.linear, (long long)o->cost.quadratic, 1ull << plan->stats.cost_shift);
    put_list(p, "update_offsets", plan->update_offsets, plan->updates + 1);
    ravel__printer_string(&p->out, ",\n\"bin_samples\":[");
    for (int64_t b = 0; b < bins; b++) {
        if (b) ravel__printer_put(&p->out, ",", 1);
        ravel__printer_integer(&p->out, plan->bin_offsets[b + 1] - plan->bin_offsets[b]);
    }
    ravel__printer_put(&p->out, "]", 1);
    put_list(p, "bin_tokens", plan->bin_tokens, bins);
    put_list(p, "bin_slots", plan->bin_slots, bins);
    put_list(p, "bin_costs", plan->bin_costs, bins);
    if (plan->hybrid) put_groups(p, bins);
    if (p->samples <= RAVEL_HTML_SAMPLES) {
        put_each(p, "ids", id_of);
        put_each(p, "lengths", length_of);
        if (p->input->prompts) put_each(p, "prompts", prompt_of);
        if (plan->shared) put_list(p, "shared", plan->shared, p->samples);
        if (p->input->costs) put_each(p, "sample_costs", cost_of);
    }
    ravel__printer_put(&p->out, "}", 1);
}

static void put_svg(page *p) {
    ravel__picture_svg(&p->out, p->options, p->plan);
}

/* ---- the page ------------------------------------------------------------------------------------------- */

static const struct {
    const char *mark;
    void (*put)(page *p);
} marks[] = {{"title", put_title}, {"subtitle", put_subtitle}, {"warnings", put_warnings}, {"figures", put_figures},
             {"svg", put_svg},     {"stats", put_stats},       {"options", put_options},   {"data", put_data}};
enum { MARKS = sizeof marks / sizeof *marks };

/* Puts in what belongs at the mark at `at` and returns what follows it. */
static const char *put_mark(page *p, const char *at) {
    size_t length = strcspn(at, "-"), i = 0;
    while (i < MARKS && (strlen(marks[i].mark) != length || memcmp(marks[i].mark, at, length) != 0)) i++;
    RAVEL_ASSERT(i < MARKS && memcmp(at + length, "-->", 3) == 0); /* page.html has no other marks */
    if (i < MARKS) marks[i].put(p);
    return at + length + 3;
}

ravel_status ravel_plan_html(const ravel_plan_input *input, const ravel_plan_options *options, const ravel_plan *plan,
                             const char *title, ravel_write write, void *user, ravel_error *err) {
    RAVEL_ASSERT(plan->dp >= 1 && plan->bins == plan->micro_steps * plan->dp);
    page p;
    p.input = input;
    p.options = options;
    p.plan = plan;
    p.title = title ? title : "Ravel plan";
    p.steps = plan->bins <= RAVEL_HTML_BINS ? plan->micro_steps : RAVEL_HTML_BINS / plan->dp;
    if (p.steps == 0 && plan->micro_steps) p.steps = 1;
    p.samples = plan->bin_offsets[p.steps * plan->dp];
    RAVEL_ASSERT(p.steps <= plan->micro_steps && p.samples <= plan->count);
    ravel__printer_begin(&p.out, write, user, err);
    const char *at = ravel__page;
    for (const char *mark; (mark = strstr(at, "<!--@")) != NULL && !p.out.status;) {
        ravel__printer_put(&p.out, at, (size_t)(mark - at));
        at = put_mark(&p, mark + 5);
    }
    ravel__printer_string(&p.out, at);
    return ravel__printer_end(&p.out);
}
