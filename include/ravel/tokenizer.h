/* ravel/tokenizer.h: text to token ids and back, by the tokenizer of a Hugging Face model folder.
 *
 * Nouns
 *   tokenizer   the content of tokenizer.json and tokenizer_config.json. It is read-only once it is open; all threads
 *               of a process may use it at once.
 *   encoder     one thread's memory for turning text into ids: buffers and a cache of words. It allocates only while
 *               its buffers are still growing.
 *   decoder     one stream of ids turned back into text, character by character: an id may end in the middle of a
 *               character, whose bytes are then held back until the rest has come.
 *
 *     ravel_tokenizer *tokenizer = NULL;
 *     ravel_encoder *encoder = NULL;
 *     const ravel_encoding *e;
 *     if (ravel_tokenizer_open("models/SmolLM2-135M-Instruct", NULL, &tokenizer, &err)) ...
 *     if (ravel_encoder_create(tokenizer, NULL, &encoder, &err)) ...
 *     while (more)
 *         if (ravel_encoder_encode(encoder, text, bytes, RAVEL_ENCODE_TEMPLATE, &e, &err) == RAVEL_OK)
 *             use(e->ids, e->count);
 *     ravel_encoder_free(encoder);
 *     ravel_tokenizer_free(tokenizer);
 *
 * What is read: BPE of bytes (the families of GPT-2, Llama 3, Qwen 2 and 3, SmolLM, DeepSeek) and of characters with
 * U+2581 for spaces and byte fallback (Llama 2, Mistral, Gemma, Phi-3), with the pre-tokenizers Split, ByteLevel,
 * Metaspace, Digits and sequences of them, the normalizers NFC, Prepend and Replace of U+2581, added and special
 * tokens, and the post-processors ByteLevel and TemplateProcessing. The ids are those of the `tokenizers` package.
 * Everything else (Unigram, WordPiece, other normalizers, ...) is E_UNSUPPORTED with its name. Regular expressions need
 * libpcre2-8, which is loaded when the first tokenizer is opened.
 */
#ifndef RAVEL_TOKENIZER_H
#define RAVEL_TOKENIZER_H

#include <ravel/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ravel_tokenizer ravel_tokenizer;
typedef struct ravel_encoder ravel_encoder;
typedef struct ravel_decoder ravel_decoder;

/* ---- the tokenizer -------------------------------------------------------------------------------------- */

/* `path`: a model folder, or a tokenizer.json (the files beside it are read too where they are there:
 * tokenizer_config.json for the names of bos, eos and pad, add_bos_token and the chat template; chat_template.jinja).
 * E_IO where tokenizer.json cannot be read, E_DATA where it is wrong, E_UNSUPPORTED with the name of the part that is
 * not supported. `allocator` must outlive the tokenizer. */
RAVEL_API ravel_status ravel_tokenizer_open(const char *path, const ravel_allocator *allocator,
                                            ravel_tokenizer **tokenizer, ravel_error *err);
/* The same from memory: the content of tokenizer.json, and of tokenizer_config.json or NULL. */
RAVEL_API ravel_status ravel_tokenizer_parse(const char *json, size_t bytes, const char *config, size_t config_bytes,
                                             const ravel_allocator *allocator, ravel_tokenizer **tokenizer,
                                             ravel_error *err);
RAVEL_API void ravel_tokenizer_free(ravel_tokenizer *tokenizer);

/* Ids are 0 .. size-1; some may stand for nothing. */
RAVEL_API int32_t ravel_tokenizer_size(const ravel_tokenizer *tokenizer);
/* The id of a token by its text in tokenizer.json ("<|im_end|>"; a space is a character of the byte-level alphabet
 * there); -1: there is none. */
RAVEL_API int32_t ravel_tokenizer_id(const ravel_tokenizer *tokenizer, const char *text, size_t bytes);
/* What an id decodes to: bytes that may be part of a character. NULL where the id stands for nothing. Valid as long as
 * the tokenizer. */
RAVEL_API const char *ravel_tokenizer_bytes(const ravel_tokenizer *tokenizer, int32_t id, size_t *bytes);
/* 1 for special tokens (<|im_end|> and the like). */
RAVEL_API int32_t ravel_tokenizer_is_special(const ravel_tokenizer *tokenizer, int32_t id);
/* The ids that tokenizer_config.json names as bos_token, eos_token and pad_token; -1: none. */
RAVEL_API int32_t ravel_tokenizer_bos(const ravel_tokenizer *tokenizer);
RAVEL_API int32_t ravel_tokenizer_eos(const ravel_tokenizer *tokenizer);
RAVEL_API int32_t ravel_tokenizer_pad(const ravel_tokenizer *tokenizer);
/* The chat template's text (Jinja), NUL-terminated, or NULL; see ravel/chat.h. Valid as long as the tokenizer. */
RAVEL_API const char *ravel_tokenizer_chat_template(const ravel_tokenizer *tokenizer);

/* ---- encoding ------------------------------------------------------------------------------------------- */

/* Read-only; belongs to the encoder. */
typedef struct ravel_encoding {
    int64_t count;
    const int32_t *ids;     /* [count] */
    const uint32_t *begins; /* [count] where the token begins in the text, in bytes; does not go down */
} ravel_encoding;

typedef enum ravel_encode_flags {
    RAVEL_ENCODE_TEMPLATE = 1, /* with bos and eos where the tokenizer's post-processor puts them */
    RAVEL_ENCODE_PLAIN = 2     /* special tokens in the text are text like any other: for text that is not trusted */
} ravel_encode_flags;

/* The tokenizer must outlive the encoder. */
RAVEL_API ravel_status ravel_encoder_create(const ravel_tokenizer *tokenizer, const ravel_allocator *allocator,
                                            ravel_encoder **encoder, ravel_error *err);
RAVEL_API void ravel_encoder_free(ravel_encoder *encoder);

/* text[bytes] is UTF-8, below 2^31 bytes; `flags` is a sum of RAVEL_ENCODE_*. *encoding is valid until the next call.
 * E_DATA says where the text is not valid UTF-8. */
RAVEL_API ravel_status ravel_encoder_encode(ravel_encoder *encoder, const char *text, size_t bytes, int32_t flags,
                                            const ravel_encoding **encoding, ravel_error *err);

/* ---- decoding ------------------------------------------------------------------------------------------- */

typedef enum ravel_decode_flags {
    RAVEL_DECODE_SKIP_SPECIAL = 1 /* special tokens give no text */
} ravel_decode_flags;

/* ids[count] to text, like snprintf: writes at most `room` bytes with a NUL and returns how many bytes the text has
 * without it. Bytes that are not UTF-8 become U+FFFD, ids that stand for nothing give nothing. */
RAVEL_API size_t ravel_tokenizer_decode(const ravel_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                                        int32_t flags, char *out, size_t room);

/* The tokenizer must outlive the decoder. */
RAVEL_API ravel_status ravel_decoder_create(const ravel_tokenizer *tokenizer, int32_t flags,
                                            const ravel_allocator *allocator, ravel_decoder **decoder,
                                            ravel_error *err);
RAVEL_API void ravel_decoder_free(ravel_decoder *decoder);
/* Takes one id; *text[*bytes] is what can be shown now, possibly nothing, valid until the next call. All of it
 * together, with the flush at the end, is what ravel_tokenizer_decode writes. */
RAVEL_API void ravel_decoder_push(ravel_decoder *decoder, int32_t id, const char **text, size_t *bytes);
/* Returns the bytes held back, as U+FFFD where they are no character, and resets the decoder. */
RAVEL_API void ravel_decoder_flush(ravel_decoder *decoder, const char **text, size_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
