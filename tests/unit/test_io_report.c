/* A plan as JSON, CSV, page and still picture. What the JSON says is recounted from outside in tests/cli. */
#include "tests/unit/check.h"

#include "base/json.h"

#include <ravel/mock.h>
#include <ravel/report.h>

#include <stdlib.h>

typedef struct sink {
    char *text;
    size_t used, room;
    int64_t fail_after; /* bytes; -1: never */
} sink;

static ravel_status take(void *user, const char *text, size_t bytes, ravel_error *err) {
    sink *s = user;
    if (s->fail_after >= 0 && (int64_t)(s->used + bytes) > s->fail_after)
        return ravel_error_set(err, RAVEL_E_IO, "the disk is full");
    if (s->used + bytes + 1 > s->room) {
        s->room = (s->used + bytes) * 2 + 1024;
        s->text = realloc(s->text, s->room);
    }
    memcpy(s->text + s->used, text, bytes);
    s->used += bytes;
    s->text[s->used] = '\0';
    return RAVEL_OK;
}

typedef struct fixture {
    ravel_lengths *lengths;
    ravel_plan_input input;
    ravel_plan_options options;
    ravel_plan *plan;
} fixture;

static bool set_up(fixture *f, const char *mock_text, int64_t budget, int32_t dp) {
    ravel_mock *mock = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    memset(f, 0, sizeof *f);
    ravel_plan_options_default(&f->options);
    f->options.budget = budget;
    f->options.dp = dp;
    f->options.oversize = RAVEL_OVERSIZE_SKIP;
    bool good = ravel_mock_open(mock_text, NULL, &mock, &err) == RAVEL_OK &&
                ravel_mock_lengths(mock, &f->lengths, &err) == RAVEL_OK;
    ravel_mock_free(mock);
    if (!EXPECT(good)) return false;
    f->input.size = sizeof f->input;
    f->input.count = f->lengths->count;
    f->input.lengths = f->lengths->lengths;
    f->input.prompts = f->lengths->prompts;
    f->input.responses = f->lengths->responses;
    return EXPECT(ravel_plan_create(&f->input, &f->options, &f->plan, &err) == RAVEL_OK);
}

static void tear_down(fixture *f) {
    ravel_plan_free(f->plan);
    ravel_lengths_free(f->lengths);
}

TEST(report_json_is_read_back) {
    fixture f;
    sink s = {NULL, 0, 0, -1};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__json *doc = NULL;
    if (!set_up(&f, "{\"count\": 3000, \"max_seq_len\": 9000}", 8192, 4)) return;
    CHECK(f.plan->stats.skipped > 0);
    CHECK_OK(ravel_plan_json(&f.input, &f.options, f.plan, take, &s, &err), &err);
    CHECK_OK(ravel__json_parse(s.text, s.used, NULL, &doc, &err), &err);
    const ravel__json_node *root = ravel__json_root(doc), *bins = ravel__json_get(doc, root, "bins");
    int64_t value, bin = 0, sample = 0;
    CHECK(ravel__json_integer(ravel__json_get(doc, root, "version"), &value) && value == 1);
    CHECK(ravel__json_integer(ravel__json_path(doc, root, "options.cost.linear"), &value) && value == 1);
    CHECK(ravel__json_is(ravel__json_path(doc, root, "options.sync"), "micro-step"));
    CHECK(ravel__json_integer(ravel__json_path(doc, root, "options.max_samples"), &value) && value == 0);
    CHECK_EQ(bins->count, f.plan->bins);
    for (const ravel__json_node *b = ravel__json_first(doc, bins); b; b = ravel__json_next(doc, b), bin++) {
        CHECK(ravel__json_integer(ravel__json_get(doc, b, "rank"), &value) && value == bin % 4);
        CHECK(ravel__json_integer(ravel__json_get(doc, b, "cost"), &value) && value == f.plan->bin_costs[bin]);
        const ravel__json_node *list = ravel__json_get(doc, b, "samples");
        for (const ravel__json_node *n = ravel__json_first(doc, list); n; n = ravel__json_next(doc, n))
            CHECK(ravel__json_integer(n, &value) && value == f.plan->samples[sample++]);
    }
    CHECK_EQ(ravel__json_path(doc, root, "stats.skipped_samples")->count, f.plan->stats.skipped);
#define INTEGER_int64_t(name)                                                                              \
    CHECK(ravel__json_integer(ravel__json_get(doc, ravel__json_get(doc, root, "stats"), #name), &value) && \
          value == f.plan->stats.name);
#define INTEGER_double(name)                                                                               \
    do {                                                                                                   \
        double real;                                                                                       \
        CHECK(ravel__json_real(ravel__json_get(doc, ravel__json_get(doc, root, "stats"), #name), &real) && \
              real == f.plan->stats.name);                                                                 \
    } while (0);
#define X(type, name, sentence) INTEGER_##type(name)
    RAVEL_PLAN_STATS_LIST(X)
#undef X
    ravel__json_free(doc);
    free(s.text);
    tear_down(&f);
}

typedef ravel_status (*writer)(const ravel_plan_input *, const ravel_plan_options *, const ravel_plan *, ravel_write,
                               void *, ravel_error *);

static ravel_status html(const ravel_plan_input *input, const ravel_plan_options *options, const ravel_plan *plan,
                         ravel_write write, void *user, ravel_error *err) {
    return ravel_plan_html(input, options, plan, "a </script> & b", write, user, err);
}

static const writer writers[] = {ravel_plan_json, ravel_plan_csv, html, ravel_plan_svg};

TEST(report_stops_where_the_writer_fails) {
    fixture f;
    if (!set_up(&f, "{\"prompt_share\": 0.5}", 8192, 4)) return;
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        sink whole = {NULL, 0, 0, -1};
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(writers[i](&f.input, &f.options, f.plan, take, &whole, &err), &err);
        for (int64_t at = 0; at < (int64_t)whole.used; at += 1 + (int64_t)whole.used / 20) {
            sink s = {NULL, 0, 0, at};
            ravel_error_clear(&err);
            CHECK_EQ(writers[i](&f.input, &f.options, f.plan, take, &s, &err), RAVEL_E_IO);
            CHECK_STR(err.message, "the disk is full");
            CHECK(memcmp(s.text ? s.text : "", whole.text, s.used) == 0);
            free(s.text);
        }
        free(whole.text);
    }
    tear_down(&f);
}

TEST(report_csv_has_a_row_a_bin) {
    fixture f;
    sink s = {NULL, 0, 0, -1};
    ravel_error err = RAVEL_ERROR_INIT;
    if (!set_up(&f, "{\"count\": 20}", 8192, 7)) return;
    CHECK_OK(ravel_plan_csv(&f.input, &f.options, f.plan, take, &s, &err), &err);
    int64_t lines = 0;
    for (const char *c = s.text; *c; c++) lines += *c == '\n';
    CHECK_EQ(lines, f.plan->bins + 1);
    CHECK_HAS(s.text, "update,micro_step,rank,samples,tokens,slot_tokens,cost,filler,sample_ids\n0,0,0,");
    free(s.text);
    tear_down(&f);
}

TEST(report_page_of_plans_of_every_size) {
    static const struct {
        const char *mock;
        int64_t budget;
        int32_t dp, updates;
        const char *has;
    } cases[] = {
        {"{\"count\": 1}", 8192, 1, 1, "<dd>1<small>longest"},
        {"{\"count\": 5}", 8192, 64, 1, "\"dp\":64,\"steps\":1"},
        {"{\"count\": 5}", 100, 2, 1, "5 samples fit no bin and were left out:</b> 0 1 2 3 4</div>"},
        {"{\"count\": 3000, \"prompt_share\": 0.2}", 8192, 2, 7, "\"prompts\":["},
        {"{\"count\": 30, \"max_seq_len\": 8}", 8, 300000, 4, "The picture shows the first 1 of 4 micro-steps"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        sink s = {NULL, 0, 0, -1}, v = {NULL, 0, 0, -1};
        ravel_error err = RAVEL_ERROR_INIT;
        if (!set_up(&f, cases[i].mock, cases[i].budget, cases[i].dp)) return;
        ravel_plan_free(f.plan);
        f.options.updates = cases[i].updates;
        CHECK_OK(ravel_plan_create(&f.input, &f.options, &f.plan, &err), &err);
        CHECK_OK(html(&f.input, &f.options, f.plan, take, &s, &err), &err);
        CHECK_HAS(s.text, cases[i].has);
        CHECK_HAS(s.text, "a &lt;/script&gt; &amp; b");
        CHECK_HAS(s.text, "</html>\n");
        CHECK(!strstr(s.text, "<!--@"));
        CHECK(!strstr(s.text, "nan") && !strstr(s.text, "-0.00"));
        CHECK_OK(ravel_plan_svg(&f.input, &f.options, f.plan, take, &v, &err), &err);
        CHECK_HAS(v.text, "</svg>");
        CHECK(v.used < 600000);
        free(s.text);
        free(v.text);
        tear_down(&f);
    }
}
