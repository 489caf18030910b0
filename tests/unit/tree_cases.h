/* Random forests for the tests of prefix trees. */
#ifndef TESTS_TREE_CASES_H
#define TESTS_TREE_CASES_H

#include "base/rng.h"

#include <ravel/plan.h>
#include <ravel/tree.h>

enum { TREE_CASE_SAMPLES = 300, TREE_CASE_TOKENS = 40000 };

typedef struct tree_case {
    ravel_plan_input input;
    ravel_plan_options options;
    int64_t lengths[TREE_CASE_SAMPLES], shared[TREE_CASE_SAMPLES], groups[TREE_CASE_SAMPLES], costs[TREE_CASE_SAMPLES];
    int32_t order[TREE_CASE_SAMPLES], updates[TREE_CASE_SAMPLES], homes[TREE_CASE_SAMPLES];
} tree_case;

/* Lengths and shared tokens of at most `most` samples in tree order, of a random kind: groups, deep trees, chains, equal
 * samples, nothing shared. */
void tree_case_draw(tree_case *c, ravel__rng *rng, int32_t most);
/* Options and columns beside them: any that planning takes with trees. Every sample fits, or is skipped. */
void tree_case_options(tree_case *c, ravel__rng *rng);

#endif
