#include "train/rl/policy.h"

#include "base/assert.h"
#include "base/options.h"

#define ROW(...) RAVEL__ROW(train_policy, __VA_ARGS__)

static const ravel_option table[] = {
    ROW("advantage", ENUM, advantage, "grpo", 0, 0, RAVEL_ADVANTAGE_CHOICES,
        "how rewards of a group become advantages"),
    ROW("ratio", ENUM, ratio, "token", 0, 0, RAVEL_RATIO_CHOICES, "importance ratio of each token, or of the sample"),
    ROW("clip-low", F64, clip_low, "0.2", 0, 1, NULL, "the ratio is clipped at 1 - this"),
    ROW("clip-high", F64, clip_high, "0.2", 0, 1e6, NULL, "the ratio is clipped at 1 + this (DAPO: 0.28)"),
    ROW("dual-clip", F64, dual_clip, "0", 0, 1e6, NULL, "bound of the loss for negative advantages; 0: none"),
    ROW("kl", F64, kl, "0", 0, 1e6, NULL, "weight of the divergence from the reference model"),
    ROW("kl-kind", ENUM, kl_kind, "k3", 0, 0, TRAIN_KL_CHOICES, "estimator of that divergence"),
    ROW("correction", ENUM, correction, "none", 0, 0, RAVEL_CORRECTION_CHOICES,
        "how tokens (or seq-: samples) are weighed by trainer / generator: truncated, masked, or as a paper has it"),
    ROW("correction-low", F64, correction_low, "0", 0, 1, NULL,
        "lower limit of that weight; 0: the correction's own (icepop 0.5, else none)"),
    ROW("correction-high", F64, correction_high, "0", 0, 1e6, NULL,
        "upper limit; 0: the correction's own (icepop and cispo 5, else 2)"),
    ROW("overlong-buffer", I64, overlong_buffer, "0", 0, 1e9, NULL,
        "tokens before the limit over which the length penalty grows; 0: off"),
    ROW("overlong-penalty", F64, overlong_penalty, "1", 0, 1e6, NULL, "length penalty at the limit"),
    {0}};

ravel_option_table train_policy_option_table(void) {
    return table;
}

double train_overlong(const train_policy *policy, int64_t tokens, int64_t limit) {
    int64_t over = tokens - (limit - policy->overlong_buffer);
    if (policy->overlong_buffer <= 0 || over <= 0) return 0;
    double share = (double)over / (double)policy->overlong_buffer;
    RAVEL_ASSERT(share > 0);
    return -policy->overlong_penalty * (share < 1 ? share : 1);
}

train_policy_terms train_policy_terms_of(const train_policy *p, train_gap gap, double entropy) {
    ravel_correction correction;
    ravel_status status =
        ravel_policy_get_correction(p->correction, p->correction_low, p->correction_high, &correction, NULL);
    RAVEL_ASSERT(!status);
    (void)status;
    RAVEL_ASSERT(p->clip_low >= 0 && p->clip_high >= 0 && p->kl >= 0 && entropy >= 0);
    return (train_policy_terms){.sequence = p->ratio == RAVEL_RATIO_SEQUENCE,
                                .kl_kind = p->kl_kind == TRAIN_POLICY_K2 ? TRAIN_KL_K2 : TRAIN_KL_K3,
                                .gap = (int32_t)gap,
                                .clip_low = p->clip_low,
                                .clip_high = p->clip_high,
                                .dual_clip = p->dual_clip,
                                .kl = p->kl,
                                .entropy = entropy,
                                .correction = correction};
}
