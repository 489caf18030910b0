/* Text files for the commands: their texts one by one, and their lengths in tokens. */
#ifndef CLI_TEXT_H
#define CLI_TEXT_H

#include "cli/cli.h"

#include <ravel/chat.h>
#include <ravel/lengths.h>

/* How a file is read: as one text; with `field`, a text per line of JSON; with `rows`, a row of ravel/chat.h per
 * line. */
typedef struct text_options {
    const char *tokenizer; /* a model folder */
    const char *field, *chat_format, *chat_args;
    int32_t rows, train_on;
    int32_t flags; /* RAVEL_ENCODE_*, of texts */
    int64_t limit; /* lines; 0: all */
} text_options;

/* One text's tokens: of a pair, the chosen part and then the rejected one. `mask` is NULL if there is none. */
typedef ravel_status (*text_take)(void *user, const int32_t *ids, const uint8_t *mask, int64_t count, ravel_error *err);

typedef struct text_reader text_reader;
ravel_status text_open(const text_options *options, text_reader **reader, ravel_error *err);
void text_close(text_reader *reader);
const ravel_tokenizer *text_tokenizer(const text_reader *reader);
/* "-" is standard input. A wrong line is an error that begins with file:line. */
ravel_status text_read_file(text_reader *reader, const char *path, text_take take, void *user, ravel_error *err);
ravel_status text_read(text_reader *reader, const char *text, size_t bytes, text_take take, void *user,
                       ravel_error *err);

/* The lengths of a JSON-lines file's texts (options->field) or rows, and (*lines)[count], from malloc: the line of each
 * in its file. The lines of *lengths are those of a column that was made in between. */
ravel_status text_lengths(const char *path, const text_options *options, ravel_lengths **lengths, int64_t **lines,
                          ravel_error *err);

#endif
