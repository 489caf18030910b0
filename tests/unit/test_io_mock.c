/* Mock data sets. */
#include "tests/unit/check.h"

#include "base/hash.h"
#include "io/mock.h"
#include "base/real.h"
#include "base/rng.h"

#include <ravel/mock.h>

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static ravel_status open_mock(const char *text, ravel_mock **mock, ravel_error *err) {
    return ravel_mock_open(text, NULL, mock, err);
}

TEST(real_exp_and_log_are_near_the_c_library) {
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int i = 0; i < 100000; i++) {
        double x = (ravel__rng_unit(&r) - 0.5) * 1400, e = exp(x), got = ravel__real_exp(x);
        CHECK(fabs(got - e) <= 1e-13 * e);
        double y = ravel__real_exp((ravel__rng_unit(&r) - 0.5) * 1400), l = log(y);
        CHECK(fabs(ravel__real_log(y) - l) <= 1e-13 * (1 + fabs(l)));
    }
    CHECK(ravel__real_exp(0) == 1 && ravel__real_log(1) == 0 && ravel__real_exp(-800) == 0 &&
          ravel__real_log(0) < -1e300);
    CHECK(fabs(ravel__real_log(0x1p-1070) + 1070 * log(2)) < 1e-9);
}

TEST(mock_lognormal_is_megatrons) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_mock *mock = NULL;
    ravel_lengths *l = NULL;
    CHECK_OK(open_mock("{\"mode\":\"distribution\",\"type\":\"lognormal\",\"min_seq_len\":1024,\"max_seq_len\":8192,"
                       "\"mean_seq_len\":4096,\"lognormal_sigma\":1.1,\"count\":200000}",
                       &mock, &err),
             &err);
    CHECK_OK(ravel_mock_lengths(mock, &l, &err), &err);
    int64_t low = 0, high = 0, below_median = 0;
    for (int64_t i = 0; i < l->count; i++) {
        CHECK(l->lengths[i] >= 1024 && l->lengths[i] <= 8192 && l->lengths[i] == ravel_mock_length(mock, i));
        low += l->lengths[i] == 1024;
        high += l->lengths[i] == 8192;
        below_median += l->lengths[i] < 2236; /* exp(ln 4096 - 1.1^2 / 2) */
    }
    /* the normal distribution's tails at the clips: 23.9 % and 11.9 % */
    double n = (double)l->count;
    CHECK(fabs((double)low / n - 0.2389) < 0.004 && fabs((double)high / n - 0.1191) < 0.004);
    CHECK(fabs((double)below_median / n - 0.5) < 0.005);
    CHECK(fabs((double)l->total / n - 3256) < 15); /* as of NumPy's samples with the same numbers */
    ravel_lengths_free(l);
    ravel_mock_free(mock);
    /* what is left out means the same */
    CHECK_OK(open_mock("{}", &mock, &err), &err);
    const ravel_mock_options *o = ravel_mock_described(mock);
    CHECK(o->min_seq_len == 1024 && o->max_seq_len == 8192 && o->mean_seq_len == 4096 && o->lognormal_sigma == 1.1 &&
          o->count == 4096);
    ravel_mock_free(mock);
}

/* A change here changes every mock data set, and with it every figure in the documents. */
TEST(mock_samples_are_the_same_everywhere) {
    static const struct {
        const char *text;
        uint64_t digest;
    } cases[] = {{"{}", 0x85a0aeb4a71c1703u},
                 {"{\"seed\": 7}", 0x2739b2681e0a2e58u},
                 {"{\"type\": \"uniform\"}", 0x2b646be662b5eb65u},
                 {"{\"type\": \"zipf\"}", 0x691df4bbc0b27641u},
                 {"{\"type\": \"bimodal\", \"prompt_share\": 0.3}", 0x109f64cb3614d760u}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_mock *mock = NULL;
        int32_t tokens[64];
        ravel__hash h = ravel__hash_begin(0);
        CHECK_OK(open_mock(cases[i].text, &mock, &err), &err);
        for (int64_t s = 0; s < 1000; s++) {
            ravel__hash_u64(&h, (uint64_t)ravel_mock_length(mock, s));
            ravel__hash_u64(&h, (uint64_t)ravel_mock_prompt(mock, s));
        }
        ravel_mock_tokens(mock, 3, 151936, 64, tokens);
        ravel__hash_i32s(&h, tokens, 64);
        if (!EXPECT(ravel__hash_end(h) == cases[i].digest))
            printf("    %s: 0x%016llxu\n", cases[i].text, (unsigned long long)ravel__hash_end(h));
        ravel_mock_free(mock);
    }
}

static int64_t samples_of(const char *text, int64_t count, int64_t *low, int64_t *high) {
    ravel_mock *mock = NULL;
    int64_t sum = 0;
    if (!EXPECT(open_mock(text, &mock, NULL) == RAVEL_OK)) return 0;
    *low = INT64_MAX;
    *high = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t x = ravel_mock_length(mock, i);
        sum += x;
        if (x < *low) *low = x;
        if (x > *high) *high = x;
    }
    ravel_mock_free(mock);
    return sum;
}

TEST(mock_kinds_have_their_shapes) {
    int64_t low, high, n = 100000, sum;
    sum = samples_of("{\"type\":\"uniform\",\"min_seq_len\":1,\"max_seq_len\":100}", n, &low, &high);
    CHECK(low == 1 && high == 100 && llabs(sum - n * 101 / 2) < n / 2);
    sum = samples_of("{\"type\":\"constant\",\"mean_seq_len\":777}", n, &low, &high);
    CHECK(low == 777 && high == 777 && sum == n * 777);
    /* sum of k^-1 from 1 to 10 is 2.929, so the mean is 10 / 2.929 in the exact zipf; the continuous one is near */
    sum = samples_of("{\"type\":\"zipf\",\"zipf_exponent\":1,\"min_seq_len\":100,\"max_seq_len\":999}", n, &low, &high);
    CHECK(low == 100 && high == 999 && fabs((double)sum / (double)n - 900 / log(10) + 0.5) < 5);
    sum =
        samples_of("{\"type\":\"zipf\",\"zipf_exponent\":3,\"min_seq_len\":1,\"max_seq_len\":1048576}", n, &low, &high);
    CHECK(low == 1 && sum < 2 * n);
    sum = samples_of("{\"type\":\"bimodal\",\"min_seq_len\":1,\"max_seq_len\":100000,\"mean_seq_len\":1000,"
                     "\"long_seq_len\":50000,\"long_share\":0.1}",
                     n, &low, &high);
    CHECK(fabs((double)sum / (double)n - 5900) < 100);
    (void)samples_of("{\"max_seq_len\":4}", 1000, &low, &high);
    CHECK(low == 1 && high == 4);
}

TEST(mock_prompts_are_a_share) {
    ravel_mock *mock = NULL;
    ravel_lengths *l = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(open_mock("{\"prompt_share\": 0.25, \"count\": 20000}", &mock, &err), &err);
    CHECK_OK(ravel_mock_lengths(mock, &l, &err), &err);
    int64_t prompts = 0;
    for (int64_t i = 0; i < l->count; i++) {
        prompts += l->prompts[i];
        CHECK(l->prompts[i] >= 1 && l->responses[i] >= 0);
        CHECK_EQ(l->prompts[i] + l->responses[i], ravel_mock_length(mock, i));
    }
    CHECK(fabs((double)prompts / (double)l->total - 0.25) < 0.01);
    ravel_lengths_free(l);
    ravel_mock_free(mock);
}

TEST(mock_from_files) {
    char path[] = "/tmp/ravel-mock-XXXXXX.csv", spec[] = "/tmp/ravel-spec-XXXXXX", text[256];
    FILE *f = fdopen(mkstemps(path, 4), "w");
    fprintf(f, "lengths\n5\n6\n7\n");
    fclose(f);
    (void)snprintf(text, sizeof text, "{\"mode\": \"file\", \"path\": \"%s\"}", path);
    ravel_mock *mock = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(open_mock(text, &mock, &err), &err);
    CHECK(ravel_mock_described(mock)->count == 3 && ravel_mock_length(mock, 1) == 6 && ravel_mock_length(mock, 5) == 7);
    ravel__mock_recount(mock, 7);
    ravel_lengths *l = NULL;
    CHECK_OK(ravel_mock_lengths(mock, &l, &err), &err);
    CHECK(l->count == 7 && l->total == 18 + 18 + 5);
    ravel_lengths_free(l);
    ravel_mock_free(mock);
    f = fdopen(mkstemp(spec), "w");
    fprintf(f, "%s", text);
    fclose(f);
    (void)snprintf(text, sizeof text, "@%s", spec);
    CHECK_OK(open_mock(text, &mock, &err), &err);
    ravel_mock_free(mock);
    unlink(path);
    CHECK_EQ(open_mock(text, &mock, &err), RAVEL_E_IO);
    CHECK_HAS(err.message, "cannot open it");
    unlink(spec);
}

TEST(mock_refuses_with_a_sentence) {
    static const struct {
        const char *text, *says;
        int status;
    } cases[] = {{"{\"type\": \"lognormals\"}", "must be one of lognormal|uniform", RAVEL_E_ARGUMENT},
                 {"{\"max_seqlen\": 5}", "did you mean \"max-seq-len\"?", RAVEL_E_ARGUMENT},
                 {"{\"min_seq_len\": 9, \"max_seq_len\": 8}", "min_seq_len is 9, over max_seq_len", RAVEL_E_ARGUMENT},
                 {"{\"mean_seq_len\": 0.5}", "mean_seq_len is 0.5", RAVEL_E_ARGUMENT},
                 {"{\"mode\": \"file\"}", "needs a \"path\"", RAVEL_E_ARGUMENT},
                 {"{\"lognormal_sigma\": 1e9}", "it must be from -1 to 20", RAVEL_E_ARGUMENT},
                 {"{\"max_seq_len\": -5}", "it must be from 0", RAVEL_E_ARGUMENT},
                 {"[1]", "must be a JSON object", RAVEL_E_ARGUMENT},
                 {"{\"type\": ", "mock: JSON, line 1", RAVEL_E_ARGUMENT},
                 {"@/no/such", "/no/such: cannot open it", RAVEL_E_IO}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_mock *mock = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_EQ(open_mock(cases[i].text, &mock, &err), cases[i].status);
        CHECK_HAS(err.message, cases[i].says);
        CHECK(!mock);
    }
}

static ravel_status mock_body(const ravel_allocator *allocator, void *user) {
    ravel_mock *mock = NULL;
    ravel_lengths *l = NULL;
    ravel_status status = ravel_mock_open(user, allocator, &mock, NULL);
    if (!status) status = ravel_mock_lengths(mock, &l, NULL);
    ravel_lengths_free(l);
    ravel_mock_free(mock);
    return status;
}

TEST(mock_survives_every_failed_allocation) {
    char text[] = "{\"type\": \"zipf\", \"prompt_share\": 0.5, \"field\": \"x\"}";
    CHECK(check_every_allocation(mock_body, text) >= 5);
}
