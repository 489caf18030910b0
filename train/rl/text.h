/* train/rl/text.h: the text of a model: its tokenizer, or bytes where it has none.
 *
 *     byte model (train/learn/choice.h)   a byte is a token; TRAIN_TOKEN_BOS goes before a prompt
 *     a folder with tokenizer.json        ravel/tokenizer.h
 *
 * It does not change once it is open; an encoder and a decoder belong to one thread each. */
#ifndef TRAIN_TEXT_H
#define TRAIN_TEXT_H

#include <ravel/base.h>

typedef struct train_text train_text;

/* folder: of the model; NULL, or without a tokenizer.json: bytes. */
ravel_status train_text_open(const char *folder, train_text **text, ravel_error *err);
void train_text_free(train_text *text);
/* 1: a token is a byte. */
int train_text_is_bytes(const train_text *text);

/* A prompt as tokens, with the token that begins a sample. *tokens belongs to the text and is valid until the next call. */
ravel_status train_text_encode(train_text *text, const char *prompt, size_t bytes, const int32_t **tokens,
                               int64_t *count, ravel_error *err);
/* tokens[count] as text, special tokens left out. Writes at most `room` bytes and returns how many there are. */
size_t train_text_decode(const train_text *text, const int32_t *tokens, int64_t count, char *out, size_t room);

/* One answer as it grows: what of the next token can be shown now. *piece is valid until the next call. */
ravel_status train_text_begin(train_text *text, ravel_error *err);
void train_text_push(train_text *text, int32_t token, const char **piece, size_t *bytes);
/* What was held back because a character was not whole. */
void train_text_flush(train_text *text, const char **piece, size_t *bytes);

#endif
