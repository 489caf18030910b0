/* Text in small pieces to a caller's writer. The first failure sticks: after it nothing more is written, and
 * ravel__text_end returns it. */
#ifndef RAVEL_IO_TEXT_H
#define RAVEL_IO_TEXT_H

#include <ravel/report.h>

typedef struct ravel__text {
    ravel_write write;
    void *user;
    ravel_error *err;
    ravel_status status;
    size_t used;
    char buffer[8192];
} ravel__text;

void ravel__text_begin(ravel__text *text, ravel_write write, void *user, ravel_error *err);
ravel_status ravel__text_end(ravel__text *text);

void ravel__text_put(ravel__text *text, const char *bytes, size_t count);
void ravel__text_string(ravel__text *text, const char *string);
void ravel__text_format(ravel__text *text, const char *format, ...) RAVEL_PRINTF(2, 3);
void ravel__text_integer(ravel__text *text, int64_t value);
/* The fewest digits that read back as the same double. */
void ravel__text_real(ravel__text *text, double value);
/* With <, > and & and quotes written as entities. */
void ravel__text_html(ravel__text *text, const char *string);
/* 1,234,567 */
const char *ravel__text_thousands(int64_t value, char *out, size_t room);

#endif
