#include "metrics/text.h"

#include <ravel/json.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ravel__text ravel__text_begin(char *data, size_t room) { /* NOLINT(readability-non-const-parameter): it is written to */
    ravel__text t = {data, 0, room, 0};
    return t;
}

void ravel__text_put(ravel__text *t, const char *data, size_t bytes) {
    size_t left = t->room - t->used;
    if (bytes > left) {
        t->cut = 1;
        bytes = left;
    }
    memcpy(t->data + t->used, data, bytes);
    t->used += bytes;
}

void ravel__text_puts(ravel__text *t, const char *text) {
    ravel__text_put(t, text, strlen(text));
}

void ravel__text_printf(ravel__text *t, const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    int length = ravel__number_vprint(line, sizeof line, format, args);
    va_end(args);
    if (length < 0) return;
    if ((size_t)length >= sizeof line) t->cut = 1;
    ravel__text_put(t, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

void ravel__text_integer(ravel__text *t, int64_t x) {
    char digits[24];
    size_t at = sizeof digits;
    uint64_t rest = x < 0 ? 0 - (uint64_t)x : (uint64_t)x;
    do digits[--at] = (char)('0' + rest % 10);
    while (rest /= 10);
    if (x < 0) digits[--at] = '-';
    ravel__text_put(t, digits + at, sizeof digits - at);
}

/* ---- real numbers --------------------------------------------------------------------------------------- */

typedef unsigned __int128 u128;

enum { DIGITS = 17, LEAST_POWER = -5 };

static const uint64_t tens[20] = {1,
                                  10,
                                  100,
                                  1000,
                                  10000,
                                  100000,
                                  1000000,
                                  10000000,
                                  100000000,
                                  1000000000,
                                  10000000000,
                                  100000000000,
                                  1000000000000,
                                  10000000000000,
                                  100000000000000,
                                  1000000000000000,
                                  10000000000000000,
                                  100000000000000000,
                                  1000000000000000000,
                                  10000000000000000000U};

static u128 power_of_ten(int n) {
    return n < 20 ? (u128)tens[n] : (u128)tens[19] * tens[n - 19];
}

/* x = mantissa / 2^shift lies in [10^power, 10^(power+1)). Scaled by 10^k, k = 16 - power, its whole part has 17
 * digits, and everything is an exact integer of 128 bits: mantissa * 10^k has at most 53 + 70. A candidate of 15 or 16
 * digits reads back as x if it is nearer to x than half a unit of x's last place, which scaled is 10^k / 2. */
static int shortest_digits(uint64_t mantissa, int shift, int power, uint64_t *digits, int *count) {
    u128 scale = power_of_ten(DIGITS - 1 - power), exact = scale * mantissa;
    u128 room = mantissa == UINT64_C(1) << 52 ? scale / 2 : scale; /* below a power of two doubles lie closer */
    uint64_t all = (uint64_t)((exact + ((u128)1 << (shift - 1))) >> shift);
    for (int n = 15; n <= DIGITS; n++) {
        uint64_t unit = tens[DIGITS - n], candidate = (all + unit / 2) / unit;
        u128 back = (u128)(candidate * unit) << shift, off = back > exact ? back - exact : exact - back;
        if (2 * off < room && candidate >= tens[n - 1] && candidate < tens[n]) {
            *digits = candidate;
            *count = n;
            return 1;
        }
    }
    return 0;
}

/* Wrong by one where a bound is not a double; then the count of digits is wrong, and printf takes over. */
static int power_below(double x) {
    static const double bounds[] = {1e-4, 1e-3, 1e-2, 1e-1, 1e0, 1e1, 1e2,  1e3,
                                    1e4,  1e5,  1e6,  1e7,  1e8, 1e9, 1e10, 1e11};
    int power = LEAST_POWER;
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds && x >= bounds[i]; i++) power++;
    return power;
}

/* d.ddd at the right place, trailing zeros dropped: "0.00012", "12.5". */
static void put_digits(ravel__text *t, uint64_t digits, int count, int power) {
    char text[48];
    size_t used = 0;
    while (count > 1 && digits % 10 == 0) digits /= 10, count--;
    for (int zeros = power; zeros < 0; zeros++) {
        if (used == 1) text[used++] = '.';
        text[used++] = '0';
    }
    if (used == 1) text[used++] = '.'; /* "0." and no further zero */
    for (int i = 0; i < count || i <= power; i++) {
        if (power >= 0 && i == power + 1) text[used++] = '.';
        text[used++] = (char)(i < count ? '0' + digits / tens[count - 1 - i] % 10 : '0');
    }
    ravel__text_put(t, text, used);
}

/* The common range in integer arithmetic, about ten times faster than printf. 1 if it was printed. */
static int put_common(ravel__text *t, double x) {
    double size = fabs(x);
    if (!(size >= 1e-5 && size < 1e12)) return 0;
    int exponent, power = power_below(size), count;
    uint64_t mantissa = (uint64_t)(frexp(size, &exponent) * 0x1p53), digits;
    int shift = 53 - exponent;
    if (!shortest_digits(mantissa, shift, power, &digits, &count)) return 0;
    if (x < 0) ravel__text_put(t, "-", 1);
    put_digits(t, digits, count, power);
    return 1;
}

static void put_any(ravel__text *t, double x) {
    char digits[RAVEL__NUMBER_BYTES];
    ravel__number_shortest(x, 15, digits);
    ravel__text_puts(t, digits);
}

void ravel__text_real(ravel__text *t, double x) {
    if (isnan(x))
        ravel__text_puts(t, "nan");
    else if (isinf(x))
        ravel__text_puts(t, x > 0 ? "inf" : "-inf");
    else if (fabs(x) < 1e15 && x == (double)(int64_t)x && (x != 0 || !signbit(x)))
        ravel__text_integer(t, (int64_t)x);
    else if (!put_common(t, x))
        put_any(t, x);
}

void ravel__text_quote(ravel__text *t, const char *text) {
    size_t bytes = strlen(text), left = t->room - t->used, need = ravel_json_quote(text, bytes, NULL, 0);
    if (need >= left) { /* the quoting also writes a NUL */
        t->cut = 1;
        return;
    }
    (void)ravel_json_quote(text, bytes, t->data + t->used, left);
    t->used += need;
}
