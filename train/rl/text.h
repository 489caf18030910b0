/* train/rl/text.h: the text of a model: its tokenizer, or bytes where it has none.
 *
 *     byte model (train/learn/choice.h)   a byte is a token; TRAIN_TOKEN_BOS goes before a prompt
 *     a folder with tokenizer.json        ravel/tokenizer.h
 *     any other folder                    no text: rows must hold input_ids, and tokens are shown as their ids. So the
 *                                         tokenizers that ravel/tokenizer.h refuses by name need transformers for the
 *                                         data alone (python -m ravel.prepare)
 *
 * What is const may be called from all threads at once; its encoder and each stream belong to one thread. */
#ifndef TRAIN_TEXT_H
#define TRAIN_TEXT_H

#include "text/decoder.h"

#include <ravel/chat.h>

typedef struct train_text train_text;

/* folder: of the model; NULL: bytes. vocab: of the model; above TRAIN_BYTE_VOCAB it is not of bytes. chat_format: how
 * conversations are written, a name or a file; NULL: as the folder's template says. chat_args: variables of the
 * template, a JSON object; NULL: none. */
ravel_status train_text_open(const char *folder, int64_t vocab, const char *chat_format, const char *chat_args,
                             train_text **text, ravel_error *err);
void train_text_free(train_text *text);
/* NULL: bytes, or no text. */
const ravel_tokenizer *train_text_tokenizer(const train_text *text);
/* NULL, or why there is no text. */
const char *train_text_missing(const train_text *text);
/* NULL, or why conversations cannot be written; one is tried. */
const char *train_text_no_chat(train_text *text);

/* The row of a file that a model is to answer, as tokens: "messages", "conversations" or "prompt", which is a user's
 * turn where the model has a chat format. E_DATA if it has none of them.
 * `json` is the row, `prompt` its text "prompt" or NULL. *tokens is valid until the next call. */
ravel_status train_text_prompt(train_text *text, const char *json, size_t bytes, const char *prompt,
                               size_t prompt_bytes, const int32_t **tokens, int64_t *count, ravel_error *err);
/* A prompt as tokens, with the token that begins a sample. *tokens belongs to the text and is valid until the next
 * call. E_UNSUPPORTED for a model that has neither a tokenizer nor a vocabulary of bytes. */
ravel_status train_text_encode(train_text *text, const char *prompt, size_t bytes, const int32_t **tokens,
                               int64_t *count, ravel_error *err);
/* A piece of text inside a sample, without the token that begins one; special tokens in it are tokens. As above. */
ravel_status train_text_fragment(train_text *text, const char *piece, size_t bytes, const int32_t **tokens,
                                 int64_t *count, ravel_error *err);
/* Whether conversations can be written. */
int train_text_has_format(const train_text *text);
/* A conversation as the chat format writes it, with the beginning of an answer: ravel_rows_render. The text lives until
 * the next call. */
ravel_status train_text_render(train_text *text, const char *json, size_t bytes, const char **out, size_t *out_bytes,
                               ravel_error *err);
/* tokens[count] as text, special tokens left out, like snprintf: at most `room` bytes with a NUL are written, and the
 * length without it is returned. */
size_t train_text_decode(const train_text *text, const int32_t *tokens, int64_t count, char *out, size_t room);

/* One answer as it grows, in whole characters. It belongs to one thread; several may be open. All zero is a closed
 * one. */
typedef struct train_text_stream {
    const train_text *text;  /* must outlive it */
    ravel__decoder *decoder; /* NULL: of bytes, or of ids */
    char held[16];           /* of bytes: the beginning of a character; of ids: the last one */
    size_t bytes;
} train_text_stream;

ravel_status train_text_stream_open(const train_text *text, train_text_stream *stream, ravel_error *err);
void train_text_stream_close(train_text_stream *stream);
/* What can be shown of the next token, *piece[*bytes], valid until the next call. */
void train_text_stream_push(train_text_stream *stream, int32_t token, const char **piece, size_t *bytes);
/* The bytes of an incomplete character; the next push starts an answer. */
void train_text_stream_flush(train_text_stream *stream, const char **piece, size_t *bytes);

#endif
