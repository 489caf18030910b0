/* Experience: parts of one rollout count once in their group, and have one advantage. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "train/rl/experience.h"

#include <math.h>
#include <stdlib.h>

enum { GROUPS = 3, MEMBERS = 4, MOST = GROUPS * MEMBERS * 3 };

static void load(const train_rollout *items, int64_t count, train_experience *x) {
    static const int32_t tokens[] = {1, 2, 3};
    train_rollouts rollouts = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    for (int64_t i = 0; i < count; i++)
        CHECK_OK(train_rollouts_add(&rollouts, &items[i], tokens, NULL, NULL, &err), &err);
    train_rollouts_sort(&rollouts);
    CHECK_OK(train_experience_load(x, &rollouts, 1, &err), &err);
    train_rollouts_free(&rollouts);
}

/* Against the same rollouts without further parts. */
TEST(experience_of_parts_has_the_advantages_of_rollouts) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_scale(50, 1000); round++) {
        train_rollout whole[GROUPS * MEMBERS], parts[MOST];
        int64_t n = 0, at = 0;
        train_experience one = {0}, several = {0};
        train_policy policy = {.advantage = (int32_t)ravel__rng_below(&rng, 3)};
        for (int64_t i = 0; i < GROUPS * MEMBERS; i++) {
            whole[i] = (train_rollout){.length = 3,
                                       .prompt = 1,
                                       .group = i / MEMBERS,
                                       .member = i % MEMBERS,
                                       .version = 1,
                                       .scored = 1,
                                       .reward = (double)ravel__rng_below(&rng, 5)};
            int64_t count = 1 + (int64_t)ravel__rng_below(&rng, 3);
            for (int64_t k = count; k-- > 0; n++) {
                parts[n] = whole[i];
                parts[n].part = k;
            }
        }
        load(whole, GROUPS * MEMBERS, &one);
        load(parts, n, &several);
        train_experience_advantages(&one, &policy);
        train_experience_advantages(&several, &policy);
        CHECK_EQ(several.count, n);
        CHECK_EQ(several.rollouts, one.count);
        for (int64_t i = 0; i < one.count; i++)
            CHECK(several.once_rewards[i] == one.rewards[i] && several.once_groups[i] == one.groups[i]);
        for (int64_t i = 0; i < n; i++) {
            CHECK(at < one.count && several.groups[i] == one.groups[at] && several.rewards[i] == one.rewards[at]);
            CHECK(several.advantage[i] == one.advantage[at] && isfinite(one.advantage[at]));
            at += several.last[i];
        }
        CHECK_EQ(at, one.count);
        train_experience_free(&one);
        train_experience_free(&several);
    }
}
