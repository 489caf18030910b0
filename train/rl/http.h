/* train/rl/http.h: one POST to a plain HTTP server, with a deadline. */
#ifndef TRAIN_HTTP_H
#define TRAIN_HTTP_H

#include <ravel/base.h>

/* E_ARGUMENT where `url` is not http://host[:port][/path]. */
ravel_status train_http_check(const char *url, ravel_error *err);
/* Sends body[bytes] as JSON lines and returns the body of the answer in *answer, for free(), with a NUL behind it.
 * E_CALLBACK for an answer other than 200, E_TIMEOUT after `seconds`, E_IO where no server answers. */
ravel_status train_http_post(const char *url, const char *body, size_t bytes, double seconds, char **answer,
                             size_t *answer_bytes, ravel_error *err);

#endif
