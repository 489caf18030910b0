/* A stream of ids turned back into text, character by character: an id may end in the middle of a character, whose
 * bytes are held back until the rest has come. */
#ifndef RAVEL_TEXT_DECODER_H
#define RAVEL_TEXT_DECODER_H

#include <ravel/tokenizer.h>

typedef struct ravel__decoder ravel__decoder;

/* The tokenizer must outlive the decoder. */
ravel_status ravel__decoder_create(const ravel_tokenizer *tokenizer, int32_t flags, const ravel_allocator *allocator,
                                   ravel__decoder **decoder, ravel_error *err);
void ravel__decoder_free(ravel__decoder *decoder);
/* Takes one id; *text[*bytes] is what can be shown now, possibly nothing, valid until the next call. All of it
 * together, with the flush at the end, is what ravel_tokenizer_decode writes, but for runs of tokens of bytes
 * ("<0x0A>") that are not UTF-8: one call writes one U+FFFD per byte, a stream shows the characters that come before
 * the error. */
void ravel__decoder_push(ravel__decoder *decoder, int32_t id, const char **text, size_t *bytes);
/* Returns the bytes held back, as U+FFFD where they are no character, and resets the decoder. */
void ravel__decoder_flush(ravel__decoder *decoder, const char **text, size_t *bytes);
/* 1 for special tokens (<|im_end|> and the like). */
int32_t ravel__tokenizer_is_special(const ravel_tokenizer *tokenizer, int32_t id);
/* As ravel_tokenizer_open, from memory: the content of the file, and of tokenizer_config.json or NULL. */
ravel_status ravel__tokenizer_parse(const char *json, size_t bytes, const char *config, size_t config_bytes,
                                    const ravel_allocator *allocator, ravel_tokenizer **tokenizer, ravel_error *err);

#endif
