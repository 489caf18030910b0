/* Text in small pieces to a caller's writer. The first failure sticks: after it nothing more is written, and
 * ravel__pen_end returns it. */
#ifndef RAVEL_IO_PEN_H
#define RAVEL_IO_PEN_H

#include <ravel/report.h>

typedef struct ravel__pen {
    ravel_write write;
    void *user;
    ravel_error *err;
    ravel_status status;
    size_t used;
    char buffer[8192];
} ravel__pen;

void ravel__pen_begin(ravel__pen *text, ravel_write write, void *user, ravel_error *err);
ravel_status ravel__pen_end(ravel__pen *text);

void ravel__pen_put(ravel__pen *text, const char *bytes, size_t count);
void ravel__pen_string(ravel__pen *text, const char *string);
void ravel__pen_format(ravel__pen *text, const char *format, ...) RAVEL_PRINTF(2, 3);
void ravel__pen_integer(ravel__pen *text, int64_t value);
/* The fewest digits that read back as the same double. */
void ravel__pen_real(ravel__pen *text, double value);
/* With <, > and & and quotes written as entities. */
void ravel__pen_html(ravel__pen *text, const char *string);
/* 1,234,567 */
const char *ravel__pen_thousands(int64_t value, char *out, size_t room);

#endif
