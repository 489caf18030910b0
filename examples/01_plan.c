/* The smallest use of the library: lengths in, plan out, and the samples that each rank runs.
 *
 *     cc 01_plan.c $(pkg-config --cflags --libs ravel) && ./a.out
 */
#include <ravel/plan.h>

#include <stdio.h>

int main(void) {
    const int64_t lengths[] = {700, 300, 900, 120, 450, 800, 60, 530, 990, 410, 220, 640};
    ravel_plan_input input = {.size = sizeof input, .count = sizeof lengths / sizeof *lengths, .lengths = lengths};
    ravel_plan_options options;
    ravel_plan_options_default(&options);
    options.budget = 1024; /* tokens in one micro-batch, never more */
    options.dp = 2;        /* data-parallel ranks */

    ravel_error err = RAVEL_ERROR_INIT;
    ravel_plan *plan = NULL;
    if (ravel_plan_create(&input, &options, &plan, &err)) {
        (void)fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    for (int64_t bin = 0; bin < plan->bins; bin++) {
        printf("micro-step %lld, rank %lld: %4lld tokens, samples", (long long)(bin / plan->dp),
               (long long)(bin % plan->dp), (long long)plan->bin_tokens[bin]);
        for (int64_t i = plan->bin_offsets[bin]; i < plan->bin_offsets[bin + 1]; i++) printf(" %d", plan->samples[i]);
        printf("\n");
    }
    printf("fill %.1f %%, idle %.1f %%, digest %016llx\n", 100 * plan->stats.fill, 100 * plan->stats.idle_micro_step,
           (unsigned long long)plan->digest);
    ravel_plan_free(plan);
    return 0;
}
