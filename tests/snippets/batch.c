#include <ravel/ravel.h>
#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { n = 2, b = 0, pad_id = 0 };
static const int32_t ids[] = {1, 2, 3, 4, 5, 6, 7, 8};
static const int64_t offsets[] = {0, 3, 8}, lengths[] = {3, 5};
static float weights[8];

static int batch_header(const ravel_plan *plan) {
    ravel_error err = RAVEL_ERROR_INIT;
    static _Alignas(256) char block[1 << 16];
    static float packed[64], ragged_result[8];
    const ravel_field field = {.name = "loss", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_F32};
    //@ include/ravel/batch.h 1
    assert(!err.status && bytes <= sizeof block && thd.tokens >= 8);
    return 0;
}

static int routes_header(void) {
    enum { count = 2, sequences = 2, width = 48 * 8 };
    ravel_error err = RAVEL_ERROR_INIT;
    static int16_t rows[8 * 48 * 8];
    static const int32_t positions[] = {0, 1, 2, 0, 1, 2, 3, 4}, segments[] = {1, 1, 1, 2, 2, 2, 2, 2},
                         samples[] = {0, 1};
    const int32_t *tokens = ids, *packed_tokens = ids;
    const int16_t *packed_rows = rows;
    int64_t sums[sequences], sample_ids[count], *packed_ids = sample_ids;
    const ravel_thd thd = {.local_tokens = 8,
                           .positions = (int32_t *)positions,
                           .segments = (int32_t *)segments,
                           .samples = (int32_t *)samples};
    for (int i = 0; i < 8 * width; i++) rows[i] = (int16_t)(i % 8 + 5 * (i / width));
#define ids sample_ids
    (void)0;
    //@ include/ravel/routes.h 1
#undef ids
    assert(!err.status && routes.width == width && hashes.kind == RAVEL_FIELD_SAMPLE);
    rows[0] = 77;
    sums[0] = sums[1] = 0;
    assert(!ravel_routes_add(&shape, 8, tokens, positions, segments, rows, 2, sums, &err));
    return ravel_routes_compare(2, samples, sample_ids, sums, &err) != RAVEL_E_DATA;
}

static ravel_status no_other_rank(void *user, int64_t *values, size_t count, ravel_error *err) {
    return RAVEL_OK;
}

static int weights_header(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    static const int8_t ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const ravel_field mask = {.name = "mask", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I8, .data = ones};
    const ravel_ragged ragged = {.size = sizeof ragged, .count = n, .offsets = offsets};
    const int32_t first[] = {0}, second[] = {1};
    const ravel_bin bins[] = {{first, 1}, {second, 1}};
    const int bin_count = 2;
    const ravel_sum_hook hook = {no_other_rank, NULL};
    ravel_weights_options options;
    ravel_weights_options_default(&options);
    //@ include/ravel/weights.h 1
    double sum = 0;
    for (int i = 0; i < 8; i++) sum += weights[i];
    assert(!err.status && sum > 0.999 && sum < 1.001);
    return 0;
}

static int policy_header(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    enum { count = 4, tokens = 4 };
    static const double rewards[count] = {1, 0, 2, 2};
    static const int64_t groups[count] = {7, 7, 8, 8};
    static const float now[tokens] = {-1, -2, -1, -1}, old[tokens] = {-1, -2, -1, -1};
    static const float advantages_of_tokens[tokens] = {1, -1, 0, 0}, weights[tokens] = {.25f, .25f, .25f, .25f};
    double advantages[count];
    int64_t scratch[2 * count];
    float slopes[tokens];
    ravel_policy_sums sums;
    //@ include/ravel/policy.h 1
    assert(!err.status && advantages[2] == 0 && sums.tokens > 0 && slopes[0] < 0 && slopes[1] > 0);
    return 0;
}

static int feed_group(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    enum { micro_step = 0, rank = 1 };
    const ravel_plan_input input = {.size = sizeof input, .count = n, .lengths = lengths};
    const ravel_field fields[] = {{.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32, .data = ids}};
    const ravel_ragged ragged = {
        .size = sizeof ragged, .count = n, .offsets = offsets, .fields = fields, .field_count = 1};
    ravel_thd thd = {.size = sizeof thd};
    ravel_thd_options options;
    ravel_plan_options plan_options;
    ravel_plan *plan = NULL;
    ravel_plan_options_default(&plan_options);
    plan_options.budget = 16;
    plan_options.cp_pool = 2;
    if (ravel_plan_create(&input, &plan_options, &plan, &err)) return 1;
    //@ include/ravel/feed.h 2
    assert(!err.status && group.width >= 1 && group.width <= 2 && thd.local_tokens * group.width == thd.tokens);
    ravel_plan_free(plan);
    return 0;
}

int main(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan_options options;
    ravel_plan *plan = NULL;
    ravel_plan_options_default(&options);
    options.budget = 16;
    const ravel_plan_input input = {.size = sizeof input, .count = n, .lengths = lengths};
    if (ravel_plan_create(&input, &options, &plan, &err)) return 1;
    int failed = batch_header(plan) || weights_header() || policy_header() || feed_group() || routes_header();
    ravel_plan_free(plan);
    return failed;
}
