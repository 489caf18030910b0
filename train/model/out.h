/* Text that grows: JSON for servers and their clients. A failed allocation is noted once and everything after it does
 * nothing. */
#ifndef TRAIN_OUT_H
#define TRAIN_OUT_H

#include "base/json.h"

typedef struct train_out {
    char *data; /* [used], without a NUL */
    size_t used, room;
    int failed;
} train_out;

void train_out_free(train_out *out);
void train_out_put(train_out *out, const char *text, size_t bytes);
/* Room for more bytes, which the caller fills; NULL: there is no memory. */
char *train_out_take(train_out *out, size_t bytes);
void train_out_puts(train_out *out, const char *text);
void train_out_print(train_out *out, const char *format, ...) RAVEL_PRINTF(2, 3); /* up to 500 bytes */
void train_out_quote(train_out *out, const char *text, size_t bytes);             /* as a JSON string */
void train_out_json(train_out *out, const ravel__json *doc, const ravel__json_node *node);
void train_out_tokens(train_out *out, const int32_t *ids, int64_t count); /* as a JSON list */

#endif
