/* The terms of the policy loss (ravel/policy.h), for one token. */
#ifndef RAVEL_BATCH_POLICY_TERMS_H
#define RAVEL_BATCH_POLICY_TERMS_H

#include <ravel/policy.h>

/* The parts by themselves, for one token: value, and derivative by log(ratio), by l; and c, with x in *raw. The
 * logarithm of x is taken as -20 to 20. */
double ravel__policy_surrogate(double ratio, double advantage, double clip_low, double clip_high, double dual_clip,
                               double *slope);
double ravel__policy_divergence(int32_t kind, double logprob, double reference, double *slope);
double ravel__policy_weight(const ravel_correction *correction, double log_ratio, double *raw);

#endif
