/* What the files that read tokenizer.json share. */
#ifndef RAVEL_TEXT_LOAD_H
#define RAVEL_TEXT_LOAD_H

#include "text/tokenizer.h"

#include "base/json.h"

typedef struct ravel__loading {
    ravel_tokenizer *t;
    const ravel__json *doc;
    ravel_error *err;
} ravel__loading;

/* A member that is there and not null, or NULL; `of` may be NULL. */
const ravel__json_node *ravel__load_member(const ravel__loading *l, const ravel__json_node *of, const char *key);
int ravel__load_true(const ravel__loading *l, const ravel__json_node *of, const char *key);
/* Of a text, else "". */
const char *ravel__load_text(const ravel__json_node *n);
/* "WordPiece": what the part is called in the file. */
const char *ravel__load_type(const ravel__loading *l, const ravel__json_node *part);
ravel_status ravel__load_wrong(const ravel__loading *l, const char *what);
ravel_status ravel__load_refuse(const ravel__loading *l, const char *part, const char *name, const char *known);
/* A text as a pattern that matches just it, NUL-terminated; E_UNSUPPORTED: too long. */
ravel_status ravel__load_literal(const ravel__loading *l, const ravel__json_node *text, char *pattern, size_t room);
/* Standard base64 without spaces, into out[bytes / 4 * 3]; SIZE_MAX: it is none. */
size_t ravel__base64_decode(const char *text, size_t bytes, char *out);

ravel_status ravel__load_normalizer(const ravel__loading *l, const ravel__json_node *n);

#endif
