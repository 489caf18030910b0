/* Text that grows: JSON for servers and their clients. A failed allocation is noted once and everything after it does
 * nothing. */
#ifndef TRAIN_OUT_H
#define TRAIN_OUT_H

#include <ravel/base.h>

typedef struct train_out {
    char *data; /* [used], without a NUL */
    size_t used, room;
    int failed;
} train_out;

void train_out_free(train_out *out);
void train_out_put(train_out *out, const char *text, size_t bytes);
void train_out_puts(train_out *out, const char *text);
void train_out_print(train_out *out, const char *format, ...) RAVEL_PRINTF(2, 3); /* up to 500 bytes */
void train_out_quote(train_out *out, const char *text, size_t bytes);             /* as a JSON string */

#endif
