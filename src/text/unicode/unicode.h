/* Unicode for tokenizers: valid UTF-8, white space, NFC, and characters newer than the regex library.
 *
 * The regex library's tables are as old as the system (Unicode 14 in Debian 12), those of the `tokenizers` package are
 * of Unicode 16. A character between the two would be no letter here and a letter there. So before a search each such
 * character is replaced by an older one of the same category and the same number of bytes: positions stay the same. */
#ifndef RAVEL_TEXT_UNICODE_H
#define RAVEL_TEXT_UNICODE_H

#include "base/buffer.h"

enum {
    RAVEL__TEXT_RECENT = 1, /* there is a character newer than Unicode 14 */
    RAVEL__TEXT_SUSPECT = 2 /* the text may not be in NFC */
};

/* How many bytes from the start are valid UTF-8, and what was seen in them. */
size_t ravel__utf8_scan(const char *text, size_t bytes, int *seen);
/* Length of the valid sequence at text[bytes]; 0: none. */
size_t ravel__utf8_length(const char *text, size_t bytes);
/* Decodes a valid sequence. */
size_t ravel__utf8_get(const char *text, uint32_t *point);
/* Bytes of the character at text[bytes], at most `bytes`. Where only the length counts: it reads one byte. */
size_t ravel__utf8_width(const char *text, size_t bytes);
size_t ravel__utf8_put(char *out, uint32_t point);

int ravel__is_space(uint32_t point); /* White_Space */
/* Bytes of white space at the end, at the start. */
size_t ravel__spaces_before(const char *text, size_t bytes);
size_t ravel__spaces_after(const char *text, size_t bytes);

/* Replaces characters newer than Unicode 14, in place. */
void ravel__utf8_age(char *text, size_t bytes);

typedef struct ravel__nfc {
    ravel__buffer points, origins;    /* of the text being worked on: uint32_t */
    ravel__buffer text, text_origins; /* the result: bytes, and of each byte where its character began, uint32_t */
    size_t bytes;
} ravel__nfc;

/* The text in NFC, into nfc->text. */
ravel_status ravel__nfc_apply(ravel__nfc *nfc, const char *text, size_t bytes, const ravel_allocator *allocator,
                              ravel_error *err);
void ravel__nfc_free(ravel__nfc *nfc, const ravel_allocator *allocator);

#endif
