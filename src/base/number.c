/* The C locale is static in the C library: getting it by name allocates nothing, and it is not freed. */
#include "base/assert.h"
#include "base/number.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

static locale_t c_locale(void) {
    return newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

double ravel__number_read(const char *text, char **end) {
    return strtod_l(text, end, c_locale());
}

int ravel__number_vprint(char *text, size_t room, const char *format, va_list args) {
    RAVEL_ASSERT(room > 0 && format);
    locale_t before = uselocale(c_locale()); /* of this thread alone */
    int length = vsnprintf(text, room, format, args);
    (void)uselocale(before);
    return length;
}

int ravel__number_print(char *text, size_t room, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int length = ravel__number_vprint(text, room, format, args);
    va_end(args);
    return length;
}

void ravel__number_shortest(double x, int least_digits, char text[RAVEL__NUMBER_BYTES]) {
    RAVEL_ASSERT(least_digits >= 1 && least_digits <= 17);
    for (int digits = least_digits; digits <= 17; digits++) {
        (void)ravel__number_print(text, RAVEL__NUMBER_BYTES, "%.*g", digits, x);
        if (ravel__number_read(text, NULL) == x) break;
    }
}

ravel__grouped ravel__thousands(int64_t value) {
    ravel__grouped out = {""};
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)value), used = 0;
    RAVEL_ASSERT(length > 0 && length < (int)sizeof digits);
    for (int i = 0; i < length; i++) {
        if (i > (value < 0) && (length - i) % 3 == 0) out.text[used++] = ',';
        out.text[used++] = digits[i];
    }
    return out;
}
