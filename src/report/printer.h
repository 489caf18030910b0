/* Text in small pieces to a caller's writer. The first failure sticks: after it nothing more is written, and
 * ravel__printer_end returns it. */
#ifndef RAVEL_REPORT_PRINTER_H
#define RAVEL_REPORT_PRINTER_H

#include <ravel/report.h>

typedef struct ravel__printer {
    ravel_write write;
    void *user;
    ravel_error *err;
    ravel_status status;
    size_t used;
    char buffer[8192];
} ravel__printer;

void ravel__printer_begin(ravel__printer *text, ravel_write write, void *user, ravel_error *err);
ravel_status ravel__printer_end(ravel__printer *text);

void ravel__printer_put(ravel__printer *text, const char *bytes, size_t count);
void ravel__printer_string(ravel__printer *text, const char *string);
void ravel__printer_format(ravel__printer *text, const char *format, ...) RAVEL_PRINTF(2, 3);
void ravel__printer_integer(ravel__printer *text, int64_t value);
/* The fewest digits that read back as the same double. */
void ravel__printer_double(ravel__printer *text, double value);
/* With <, > and & and quotes written as entities. */
void ravel__printer_html(ravel__printer *text, const char *string);
/* As a JSON string, and JSON as it stands; both may be inside a script of a page: '<' is \u003c. */
void ravel__printer_quote(ravel__printer *text, const char *string);
void ravel__printer_json(ravel__printer *text, const char *json, size_t bytes);

#endif
