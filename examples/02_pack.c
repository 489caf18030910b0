/* From a plan's bins to the arrays of a training step, and back: three prompts with responses, packed for two
 * data-parallel ranks, with loss weights that make the packed loss exactly the mean over all response tokens.
 *
 *     cc 02_pack.c $(pkg-config --cflags --libs ravel) && ./a.out
 */
#include <ravel/batch.h>
#include <ravel/plan.h>
#include <ravel/weights.h>

#include <stdio.h>
#include <stdlib.h>

enum { SAMPLES = 3, TOKENS = 14 };

/* The samples: one flat array for each field, and offsets. All of it is ours. */
static const int32_t ids[TOKENS] = {101, 102, 103, 104, 105, 201, 202, 203, 301, 302, 303, 304, 305, 306};
static const int64_t offsets[SAMPLES + 1] = {0, 5, 8, 14}, lengths[SAMPLES] = {5, 3, 6};
static const int64_t prompts[SAMPLES] = {2, 1, 3};
static float weights[TOKENS];

static const ravel_field fields[] = {
    {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32, .data = ids, .pad = 0},
    {.name = "labels", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_I32, .data = ids, .pad = -100},
    {.name = "weights", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_F32, .data = weights},
};
static const ravel_ragged ragged = {.size = sizeof ragged,
                                    .count = SAMPLES,
                                    .offsets = offsets,
                                    .prompts = prompts,
                                    .fields = fields,
                                    .field_count = 3};

static int fail(const ravel_error *err) {
    (void)fprintf(stderr, "%s\n", err->message);
    return 1;
}

/* Packs one bin into a block that it allocates, prints the arrays, and takes "log-probs" back to the samples. */
static int run_bin(const ravel_bin *bin, float *logprobs, ravel_error *err) {
    ravel_thd_options options;
    ravel_thd_options_default(&options);
    options.align = 4; /* e.g. 2 * cp for cp = 2 */
    ravel_thd thd = {.size = sizeof thd};
    if (ravel_thd_measure(&ragged, bin, &options, &thd, err)) return fail(err);
    void *block = malloc(ravel_thd_bytes(&ragged, &options, &thd));
    float *packed = calloc((size_t)thd.tokens, sizeof *packed);
    if (!block || !packed) return free(block), free(packed), 1;
    ravel_thd_place(&ragged, &options, block, &thd);
    ravel_status status = ravel_thd_pack(&ragged, bin, &options, &thd, err);

    const int32_t *tokens = thd.fields[0], *labels = thd.fields[1];
    const float *weight = thd.fields[2];
    for (int64_t i = 0; i < thd.tokens && !status; i++) {
        printf("  token %3d  position %d  segment %d  label %4d  weight %.4f\n", tokens[i], thd.positions[i],
               thd.segments[i], labels[i], weight[i]);
        packed[i] = -0.01f * (float)labels[i]; /* stands in for the model's output */
    }
    /* Position t predicts token t + 1: next-token results are one shorter than the sample. */
    const ravel_field result = {.name = "logprobs", .kind = RAVEL_FIELD_STEP, .dtype = RAVEL_F32};
    if (!status) status = ravel_thd_unpack(&ragged, &options, &thd, &result, packed, logprobs, err);
    free(packed);
    free(block);
    return status ? fail(err) : 0;
}

int main(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan_options plan_options;
    ravel_plan_options_default(&plan_options);
    plan_options.budget = 16;
    plan_options.align = 4;
    plan_options.dp = 2;
    const ravel_plan_input input = {.size = sizeof input, .count = SAMPLES, .lengths = lengths};
    ravel_plan *plan = NULL;
    if (ravel_plan_create(&input, &plan_options, &plan, &err)) return fail(&err);

    /* Weights: once per update, from counts over all ranks. This framework averages gradients over dp. */
    ravel_counts counts = {0};
    ravel_weights_options weighting;
    ravel_weights_options_default(&weighting);
    weighting.mode = RAVEL_TOKEN_MEAN;
    weighting.dp = plan->dp;
    weighting.dp_reduce = RAVEL_FRAMEWORK_MEAN;
    if (ravel_counts_add(&ragged, NULL, NULL, NULL, &counts, &err) ||
        ravel_weights_fill(&ragged, NULL, NULL, NULL, &counts, &weighting, RAVEL_F32, weights, &err))
        return fail(&err);
    printf("%lld of %lld tokens count\n", (long long)counts.loss_tokens, (long long)counts.tokens);

    float logprobs[TOKENS - SAMPLES] = {0};
    int failed = 0;
    for (int64_t b = 0; b < plan->bins && !failed; b++) {
        const ravel_bin bin = {plan->samples + plan->bin_offsets[b], plan->bin_offsets[b + 1] - plan->bin_offsets[b]};
        printf("rank %lld, micro-step %lld:\n", (long long)(b % plan->dp), (long long)(b / plan->dp));
        failed = run_bin(&bin, logprobs, &err);
    }
    printf("back in sample order:");
    for (int i = 0; i < TOKENS - SAMPLES; i++) printf(" %.2f", (double)logprobs[i]);
    printf("\n");
    ravel_plan_free(plan);
    return failed;
}
