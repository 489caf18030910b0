/* The request parser of the metrics endpoint: a pure function, so that it can be fuzzed. */
#ifndef RAVEL_METRICS_HTTP_H
#define RAVEL_METRICS_HTTP_H

#include <stddef.h>

enum { RAVEL__HTTP_REQUEST_BYTES = 4096 };

/* The status code for the bytes received so far; 0 while the request is incomplete: 200 (GET
 * /metrics), 204 (GET /healthz), 302 (GET /), 400, 404, 405, 431 (longer than RAVEL__HTTP_REQUEST_BYTES), 505.
 * *head_only: the method was HEAD. */
int ravel__http_answer(const char *data, size_t bytes, int *head_only);

/* The reason phrase. */
const char *ravel__http_reason(int code);

#endif
