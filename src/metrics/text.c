#include "base/assert.h"
#include "metrics/text.h"

#include "base/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ravel__text ravel__text_begin(char *data, size_t room) { /* NOLINT(readability-non-const-parameter): it is written to */
    RAVEL_ASSERT(data && room > 0);
    ravel__text t = {data, 0, room, 0};
    return t;
}

void ravel__text_put(ravel__text *t, const char *data, size_t bytes) {
    RAVEL_ASSERT(t->used <= t->room);
    size_t left = t->room - t->used;
    if (bytes > left) {
        t->cut = 1;
        bytes = left;
    }
    RAVEL_ASSERT(t->used + bytes <= t->room);
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
    RAVEL_ASSERT(at < sizeof digits);
    ravel__text_put(t, digits + at, sizeof digits - at);
}

void ravel__text_real(ravel__text *t, double x) {
    char digits[RAVEL__NUMBER_BYTES];
    if (isnan(x))
        ravel__text_puts(t, "nan");
    else if (isinf(x))
        ravel__text_puts(t, x > 0 ? "inf" : "-inf");
    else if (fabs(x) < 1e15 && x == (double)(int64_t)x && (x != 0 || !signbit(x)))
        ravel__text_integer(t, (int64_t)x);
    else {
        ravel__number_shortest(x, 15, digits);
        ravel__text_puts(t, digits);
    }
}

void ravel__text_quote(ravel__text *t, const char *text) {
    RAVEL_ASSERT(t->used <= t->room);
    size_t bytes = strlen(text), left = t->room - t->used, need = ravel__json_quote(text, bytes, NULL, 0);
    if (need >= left) { /* the quoting also writes a NUL */
        t->cut = 1;
        return;
    }
    (void)ravel__json_quote(text, bytes, t->data + t->used, left);
    RAVEL_ASSERT(t->data[t->used] == '"');
    t->used += need;
}
