/* Normalizers: what becomes of a text before it is cut into words. A tokenizer has a list of them, each a row:
 *
 *     "ﬁ  x"   --Precompiled-->   "fi  x"   --Replace " {2,}" by "\u2581"-->   "fi\u2581x"
 *
 * and each byte of the result knows the byte of the text that it comes from. */
#ifndef RAVEL_TEXT_NORMAL_H
#define RAVEL_TEXT_NORMAL_H

#include "text/tokenizer.h"

/* One rewriting on its way. */
struct ravel__rewriting {
    ravel__rewritten *out;
    const uint32_t *origins; /* of the bytes that are read; NULL: their own */
    int is_start;            /* what is read begins the whole text */
    ravel__nfc *nfc;
    ravel__regex_state *state; /* NULL: no step has a pattern */
    const ravel_allocator *allocator;
    ravel_error *err;
};

/* text[bytes], all of it from byte `at` of what is read, goes to the end of the result. */
ravel_status ravel__rewriting_put(ravel__rewriting *r, const char *text, size_t bytes, size_t at);

/* The rows. They fill r->out; bytes > 0. */
ravel_status ravel__normal_nfc(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes);
ravel_status ravel__normal_spaces(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes);
ravel_status ravel__normal_replace(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes);
ravel_status ravel__normal_prepend(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes);
ravel_status ravel__normal_strip(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes);
ravel_status ravel__normal_precompiled(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes);
ravel_status ravel__normal_sentencepiece(ravel__rewriting *r, const ravel__normal *step, const char *text,
                                         size_t bytes);

/* Checks the sizes; `blob` must outlive the map. No bytes: a map without entries. */
ravel_status ravel__charsmap_open(const char *blob, size_t bytes, ravel__charsmap *map, ravel_error *err);
/* What stands for the longest, or the shortest, entry that text[bytes] begins with, and the bytes of the entry; NULL:
 * none. */
const char *ravel__charsmap_find(const ravel__charsmap *map, const char *text, size_t bytes, int longest, size_t *used);

#endif
