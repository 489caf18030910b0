/* Text into a buffer of fixed size. Text that does not fit is cut and `cut` is set; sinks size their buffers so that
 * this never happens. Nothing here allocates. */
#ifndef RAVEL_METRICS_TEXT_H
#define RAVEL_METRICS_TEXT_H

#include "base/number.h"

typedef struct ravel__text {
    char *data;
    size_t used, room;
    int cut;
} ravel__text;

ravel__text ravel__text_begin(char *data, size_t room);
void ravel__text_put(ravel__text *t, const char *data, size_t bytes);
void ravel__text_puts(ravel__text *t, const char *text);
void ravel__text_printf(ravel__text *t, const char *format, ...) RAVEL_PRINTF(2, 3);
void ravel__text_integer(ravel__text *t, int64_t x);
/* The shortest digits that read back as x; "nan", "inf", "-inf" otherwise. */
void ravel__text_real(ravel__text *t, double x);
/* A quoted JSON string. */
void ravel__text_quote(ravel__text *t, const char *text);

#endif
