/* Regular expressions of pre-tokenizers: searches over UTF-8 that give the same pieces as the `tokenizers` package,
 * which uses Oniguruma.
 *
 *     tokenizer.json          dialect.c                  regex_pcre2.c
 *     Oniguruma pattern  -->  the same for PCRE2   -->   compiled (JIT where the machine allows it), searched
 *
 * PCRE2 is optional and loaded when the first pattern is compiled; libravel does not link it. */
#ifndef RAVEL_TEXT_REGEX_H
#define RAVEL_TEXT_REGEX_H

#include <ravel/base.h>

typedef struct ravel__regex ravel__regex;
typedef struct ravel__regex_state ravel__regex_state; /* one thread's memory for searches with any regex */

/* A compiled regex does not change and may be searched by every thread. E_UNSUPPORTED names what the dialect does not
 * translate, or the package that is missing; E_DATA says what is wrong with the pattern. */
ravel_status ravel__regex_compile(const char *pattern, const ravel_allocator *allocator, ravel__regex **regex,
                                  ravel_error *err);
void ravel__regex_free(ravel__regex *regex);

ravel_status ravel__regex_state_create(const ravel_allocator *allocator, ravel__regex_state **state, ravel_error *err);
void ravel__regex_state_free(ravel__regex_state *state);

/* The first match in text[bytes] (valid UTF-8) at or after `from`: 1 and its bounds, 0 if there is none, -1 where
 * the search took too many steps. */
int ravel__regex_search(const ravel__regex *regex, ravel__regex_state *state, const char *text, size_t bytes,
                        size_t from, size_t *begin, size_t *end);

/* Writes an Oniguruma pattern for PCRE2 into out[room], NUL-terminated; E_UNSUPPORTED names what cannot be written. */
ravel_status ravel__regex_translate(const char *pattern, char *out, size_t room, ravel_error *err);
/* Room that is enough for any pattern of this length. */
size_t ravel__regex_translate_bound(size_t pattern_bytes);

#endif
