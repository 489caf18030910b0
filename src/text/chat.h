/* A conversation as the text of a chat template, and where its answers stand.
 *
 *     chat_formats.c   formats that are chosen by name: templates of our own
 *     chat.c           messages --jinja/--> text, whose bytes know the message that they came from; answers by that
 *     rows.c           JSON rows --> messages or texts --> tokens and a loss mask */
#ifndef RAVEL_TEXT_CHAT_H
#define RAVEL_TEXT_CHAT_H

#include <ravel/chat.h>

#include "base/buffer.h"
#include "base/json.h"
#include "text/jinja/jinja.h"

struct ravel_chat_format {
    const ravel_allocator *allocator;
    jinja_template *plain, *tools; /* tools: for rows with tools; NULL: plain does both */
    char name[64];
};

/* tool_text may be NULL. */
ravel_status ravel__chat_format_create(const char *name, const char *text, size_t bytes, const char *tool_text,
                                       size_t tool_bytes, const ravel_allocator *allocator, ravel_chat_format **format,
                                       ravel_error *err);

typedef struct ravel__message {
    const ravel__json_node *object; /* as the row has it; NULL: role and content make one */
    const char *role, *content;
    size_t bytes;
    int is_answer; /* role assistant */
} ravel__message;

/* Bytes begin .. end of the text are an answer; those before `own` come from no message. */
typedef struct ravel__answer {
    size_t begin, end, own;
} ravel__answer;

typedef struct ravel__script {
    ravel__buffer text, answers; /* char, ravel__answer */
    size_t bytes, answer_count;
} ravel__script;

/* What a conversation is written from. */
typedef struct ravel__chat {
    const ravel_chat_format *format;
    const ravel_tokenizer *tokenizer;
    const ravel__json *doc;       /* of the messages and of `row` */
    const ravel__json_node *row;  /* its tools, documents and chat_template_kwargs become variables; NULL: none */
    const ravel__json *variables; /* more of them, an object; NULL: none */
    const ravel__message *messages;
    size_t count;
    int64_t now;
} ravel__chat;

/* One thread's memory for writing conversations. */
typedef struct ravel__chat_writer {
    jinja_run run;
    ravel__buffer owned;   /* jinja_owned of the whole text */
    ravel__buffer headers; /* what was found once per kind of turn, see chat.c */
    size_t header_count;
    ravel__buffer header_text;
    size_t header_bytes;
} ravel__chat_writer;

void ravel__chat_writer_init(ravel__chat_writer *w, const ravel_allocator *allocator);
void ravel__chat_writer_free(ravel__chat_writer *w);

/* Writes the messages; `open` adds the beginning of an answer, `find` looks for answers. */
ravel_status ravel__chat_write(ravel__chat_writer *w, const ravel__chat *chat, int open, int find,
                               ravel__script *script, const ravel_allocator *allocator, ravel_error *err);
ravel_status ravel__script_put(ravel__script *script, const char *text, size_t bytes, const ravel_allocator *allocator,
                               ravel_error *err);

/* Rows that are parsed: what ravel_rows_encode, _prompt and _render do with the text of one. */
ravel_status ravel__rows_encode(ravel_rows *rows, const ravel__json *doc, const ravel__json_node *object,
                                const ravel_row **row, ravel_error *err);
ravel_status ravel__rows_prompt(ravel_rows *rows, const ravel__json *doc, const ravel__json_node *object,
                                const ravel_row **row, ravel_error *err);
ravel_status ravel__rows_render(ravel_rows *rows, const ravel__json *doc, const ravel__json_node *row, int32_t answer,
                                const char **text, size_t *bytes, ravel_error *err);

/* The end of every sentence about a tokenizer that is left to transformers. */
#define RAVEL__BRIDGE \
    "prepare the data with transformers instead: python -m ravel.prepare --model FOLDER chat.jsonl out.jsonl"

#endif
