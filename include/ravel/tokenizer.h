/* ravel/tokenizer.h (experimental): text to token ids and back, by the tokenizer of a Hugging Face model folder.
 *
 * Nouns
 *   tokenizer   the content of tokenizer.json and tokenizer_config.json. It is read-only once it is open; all threads
 *               of a process may use it at once.
 *   encoder     one thread's memory for turning text into ids: buffers and a cache of words. It allocates only while
 *               its buffers are still growing.
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
 * U+2581 for spaces and byte fallback (Llama 2, Mistral, Gemma, Phi-3), and Unigram (T5, XLM-R), with the
 * pre-tokenizers Split, ByteLevel, Metaspace, WhitespaceSplit, Digits and sequences of them, the normalizers NFC,
 * Precompiled, Replace, Prepend and Strip, added and special tokens, and the post-processors ByteLevel and
 * TemplateProcessing. Folders without a tokenizer.json may have a tokenizer.model of sentencepiece, a tekken.json, or a
 * file of ranks (*.tiktoken). The ids are those of the packages `tokenizers`, sentencepiece, mistral_common and
 * tiktoken. Everything else (WordPiece, other normalizers, ...) is E_UNSUPPORTED with its name. Regular expressions
 * need libpcre2-8, which is loaded when the first tokenizer is opened.
 */
#ifndef RAVEL_TOKENIZER_H
#define RAVEL_TOKENIZER_H

#include <ravel/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ravel_tokenizer ravel_tokenizer;
typedef struct ravel_encoder ravel_encoder;

/* ---- the tokenizer -------------------------------------------------------------------------------------- */

/* `path`: a model folder, of which the first of tokenizer.json, tekken.json, tokenizer.model and *.tiktoken is read; or
 * such a file (ravel_tokenizer_file). The files beside it are read too if they are there: tokenizer_config.json for
 * the names of bos, eos and pad, add_bos_token and the chat template; chat_template.jinja.
 * E_IO if the file cannot be read, E_DATA if it is wrong, E_UNSUPPORTED with the name of the part that is
 * not supported. `allocator` must outlive the tokenizer. */
RAVEL_API ravel_status ravel_tokenizer_open(const char *path, const ravel_allocator *allocator,
                                            ravel_tokenizer **tokenizer, ravel_error *err);
/* Which file of a folder that is, into out[room] as snprintf does: the bytes of its path, or 0 and "": none is
 * there. */
RAVEL_API size_t ravel_tokenizer_file(const char *folder, char *out, size_t room);
RAVEL_API void ravel_tokenizer_free(ravel_tokenizer *tokenizer);

/* Ids are 0 .. size-1; some may stand for nothing. */
RAVEL_API int32_t ravel_tokenizer_size(const ravel_tokenizer *tokenizer);
/* The id of a token by its text in tokenizer.json ("<|im_end|>"; a space is a character of the byte-level alphabet
 * there); -1: there is none. */
RAVEL_API int32_t ravel_tokenizer_id(const ravel_tokenizer *tokenizer, const char *text, size_t bytes);
/* What an id decodes to: bytes that may be part of a character. NULL if the id stands for nothing. Valid as long as
 * the tokenizer. */
RAVEL_API const char *ravel_tokenizer_bytes(const ravel_tokenizer *tokenizer, int32_t id, size_t *bytes);
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

#ifdef __cplusplus
}
#endif
#endif
