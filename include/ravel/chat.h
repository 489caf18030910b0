/* ravel/chat.h (experimental): conversations and other rows of text to tokens and a loss mask.
 *
 * Nouns
 *   format     how a model family writes a conversation: a chat template in Jinja, compiled. A model folder's own
 *              belongs to its tokenizer; others are opened by name or from a file. It gives the text that transformers'
 *              apply_chat_template gives, tools and contents of several parts included.
 *   row        one JSON object of a data set, in any of the forms below.
 *   rows       one thread's memory for turning rows into tokens.
 *
 *     const ravel_chat_format *format = NULL;
 *     if (ravel_chat_format_of(tokenizer, &format, &err)) ...        no template, or one that cannot be used: E_UNSUPPORTED
 *     ravel_rows_options options;
 *     ravel_rows_options_default(&options);
 *     options.tokenizer = tokenizer;
 *     options.format = format;
 *     ravel_rows_create(&options, &rows, &err);
 *     while (more) {
 *         if (ravel_rows_encode(rows, line, bytes, &row, &err)) ...
 *         use(row->parts[0].tokens, row->parts[0].loss_mask, row->parts[0].count);
 *     }
 *     ravel_rows_free(rows);
 *
 * Forms of a row, the first that fits:
 *     {"input_ids": [..]}                      tokens as they are; optional "loss_mask" (0, 1), "labels" (-100: no loss)
 *                                              or "prompt_length" (the first of them, without loss)
 *     {"chosen": C, "rejected": R}             two answers, for DPO; optional "prompt". Texts, or lists of messages. A
 *                                              prompt that is a text goes before a list that begins with the answer
 *     {"messages": [{"role", "content"}, ..]}  a conversation; the template says which roles there are
 *     {"conversations": [{"from", "value"}..]} the same with other keys; human and gpt are user and assistant
 *     {"prompt": P, "completion": C}           texts, written one after the other, or lists of messages; "response" is
 *                                              another name for "completion"
 *     {"instruction", "input", "output"}       one user turn and one answer; "input" may be missing or empty
 *     {"text": T}                              all of it has loss
 * "tools" (a list of schemas), "documents" and "chat_template_kwargs" (an object) of a row are the template's
 * variables. A row that fits none is E_DATA with the keys that it has. Texts that are no conversation begin with bos
 * if the tokenizer puts one and end with eos if it has one.
 *
 * What has loss: of a conversation the answers, each with the token that ends its turn; of prompt and completion the
 * completion. A token that begins before an answer does not belong to it. Where answers stand: if the template marks
 * them ({% generation %}), there. Else an answer is what the template writes for a message with the role assistant
 * after the text that asks for an answer (add_generation_prompt), thoughts and calls of tools included.
 */
#ifndef RAVEL_CHAT_H
#define RAVEL_CHAT_H

#include <ravel/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ravel_chat_format ravel_chat_format;
typedef struct ravel_rows ravel_rows;

/* ---- formats -------------------------------------------------------------------------------------------- */

/* The tokenizer's chat template; it belongs to the tokenizer. E_UNSUPPORTED if there is none, or if it uses what
 * Jinja's sandbox or this interpreter does not have: the sentence says the line. */
RAVEL_API ravel_status ravel_chat_format_of(const ravel_tokenizer *tokenizer, const ravel_chat_format **format,
                                            ravel_error *err);
/* A format by name ("chatml", "llama3", "qwen3", ...), or from a file of a Jinja template. The caller frees it. */
RAVEL_API ravel_status ravel_chat_format_open(const char *name, const ravel_allocator *allocator,
                                              ravel_chat_format **format, ravel_error *err);
RAVEL_API void ravel_chat_format_free(ravel_chat_format *format);
/* The index-th name; NULL at the end. */
RAVEL_API const char *ravel_chat_format_at(int32_t index);
RAVEL_API const char *ravel_chat_format_name(const ravel_chat_format *format);

/* ---- rows ----------------------------------------------------------------------------------------------- */

/* Which turns of a conversation are learnt. */
typedef enum ravel_train_on {
    RAVEL_TRAIN_ON_ASSISTANT, /* every answer */
    RAVEL_TRAIN_ON_LAST,      /* the last answer */
    RAVEL_TRAIN_ON_ALL        /* every token */
} ravel_train_on;
#define RAVEL_TRAIN_ON_CHOICES "assistant|last|all"

typedef struct ravel_rows_options {
    size_t size; /* sizeof(ravel_rows_options), set by ravel_rows_options_default */
    const ravel_tokenizer *tokenizer;
    const ravel_chat_format *format; /* NULL: a row that is a conversation is E_UNSUPPORTED */
    int32_t train_on;                /* ravel_train_on */
    int32_t reserved;
    const ravel_allocator *allocator; /* NULL: malloc */
    const char *variables; /* more variables of the template, a JSON object: {"enable_thinking": false}; NULL: none */
    int64_t now;           /* seconds since 1970 that strftime_now() is given; 0: the clock's */
} ravel_rows_options;

RAVEL_API void ravel_rows_options_default(ravel_rows_options *options);

typedef struct ravel_row_part {
    int64_t count;
    const int32_t *tokens;    /* [count] */
    const uint8_t *loss_mask; /* [count] 1: this token has loss */
} ravel_row_part;

/* Read-only; belongs to the rows and is valid until the next call. */
typedef struct ravel_row {
    int32_t pair;              /* 1: parts[0] is the chosen answer, parts[1] the rejected one */
    int32_t inserted;          /* answers that begin with text of the template's own, which has loss, */
    ravel_row_part parts[2];   /* one, or two of a pair */
    const char *inserted_text; /* the first such text, as "<think>\n\n</think>\n\n"; cut at 63 bytes */
} ravel_row;

/* Tokenizer and format must outlive it. */
RAVEL_API ravel_status ravel_rows_create(const ravel_rows_options *options, ravel_rows **rows, ravel_error *err);
RAVEL_API void ravel_rows_free(ravel_rows *rows);

/* The text of one JSON object to tokens. "input_ids" are taken as they are: whether a model has them is for the caller
 * to check. E_DATA says what is wrong with the row, or why the template refuses it; E_UNSUPPORTED if there is no format
 * for a conversation. */
RAVEL_API ravel_status ravel_rows_encode(ravel_rows *rows, const char *json, size_t bytes, const ravel_row **row,
                                         ravel_error *err);

/* The tokens that a model is to continue: of "messages" (or "conversations", or "prompt" as a list) the conversation
 * without the answers at its end, then the beginning of an answer; of "prompt" as a text that text, as a user turn
 * if there is a format. No token has loss. */
RAVEL_API ravel_status ravel_rows_prompt(ravel_rows *rows, const char *json, size_t bytes, const ravel_row **row,
                                         ravel_error *err);

/* Writes a conversation as text, as apply_chat_template does: `json` is a list of messages, or an object with
 * "messages" and optionally "tools", "documents" and "chat_template_kwargs"; `answer` 1 adds the beginning of an
 * answer. *text[*text_bytes] belongs to the rows until the next call. */
RAVEL_API ravel_status ravel_rows_render(ravel_rows *rows, const char *json, size_t bytes, int32_t answer,
                                         const char **text, size_t *text_bytes, ravel_error *err);

#ifdef __cplusplus
}
#endif
#endif
