/* exp: x = k ln 2 + r with |r| <= ln 2 / 2, then the series of e^r. log: x = m 2^k with m near 1, then the series of
 * atanh((m - 1) / (m + 1)). */
#include "base/assert.h"
#include "base/real.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* ln 2 in two parts: the first has trailing zeros, so that k times it is exact. */
static const double ln2_high = 0x1.62e42fee00000p-1, ln2_low = 0x1.a39ef35793c76p-33;

static double scale(double x, int64_t exponent) {
    RAVEL_ASSERT(exponent > -1023 && exponent < 1024);
    uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return x * power;
}

double ravel__real_exp(double x) {
    if (x < -700) return 0;
    if (x > 709) return INFINITY;
    double k = floor(x * 0x1.71547652b82fep+0 + 0.5), r = (x - k * ln2_high) - k * ln2_low, sum = 1, term = 1;
    RAVEL_ASSERT(r > -0.35 && r < 0.35);
    for (int i = 1; i <= 14; i++) {
        term = term * r / i;
        sum += term;
    }
    return scale(sum, (int64_t)k);
}

double ravel__real_log(double x) {
    if (!(x > 0)) return -INFINITY;
    if (x < 0x1p-1000)
        return ravel__real_log(x * 0x1p100) - 100 * (ln2_high + ln2_low); /* subnormal: no exponent to read */
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t k = (int64_t)(bits >> 52) - 1023;
    double m = scale(x, -k);
    if (m > 0x1.6a09e667f3bcdp+0) {
        m /= 2;
        k++;
    }
    RAVEL_ASSERT(m > 0.7 && m < 1.42);
    double z = (m - 1) / (m + 1), square = z * z, sum = 0, power = z;
    for (int i = 1; i <= 23; i += 2) {
        sum += power / i;
        power *= square;
    }
    return (double)k * ln2_high + (2 * sum + (double)k * ln2_low);
}
