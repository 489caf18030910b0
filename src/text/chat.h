/* A conversation as the text of a chat format.
 *
 *     chat_formats.c   the table: markers of each family, and the digests of the templates it was compared with
 *     chat.c           messages --> text, and which parts of it are answers
 *     rows.c           JSON rows --> messages or texts --> tokens and a loss mask */
#ifndef RAVEL_TEXT_CHAT_H
#define RAVEL_TEXT_CHAT_H

#include <ravel/chat.h>

#include "base/buffer.h"

enum { RAVEL__SYSTEM, RAVEL__USER, RAVEL__ASSISTANT, RAVEL__ROLES };

/* Where the text of a system message goes. */
typedef enum ravel__system_rule {
    RAVEL__SYSTEM_TURN,     /* a turn like the others; where the first is none, one with `system_default` comes first */
    RAVEL__SYSTEM_PREAMBLE, /* the first turn is always a system turn, and begins with `system_default` */
    RAVEL__SYSTEM_FRONT,    /* the last system message of all, before the first turn and without markers */
    RAVEL__SYSTEM_JOINED,   /* all system messages, there and so, with a blank line between them */
    RAVEL__SYSTEM_LAST_USER, /* if it is the first message: in the last turn, if that is the user's, before its text */
    RAVEL__SYSTEM_NONE       /* refused */
} ravel__system_rule;

/* What happens to "<think>...</think>" in answers. */
typedef enum ravel__think_rule {
    RAVEL__THINK_KEEP,
    RAVEL__THINK_DROP,       /* text before the last </think> is removed */
    RAVEL__THINK_DROP_FIRST, /* text before the first </think> is removed */
    RAVEL__THINK_QWEN3       /* as DROP before the last question; after it thoughts are written in a fixed form */
} ravel__think_rule;

enum {
    RAVEL__CHAT_BOS = 1,        /* the bos token goes first */
    RAVEL__CHAT_TRIM = 2,       /* white space around contents goes */
    RAVEL__CHAT_ALTERNATE = 4,  /* user and assistant must alternate, the user first */
    RAVEL__CHAT_AFTER_USER = 8, /* what begins an answer is written after a user's turn only */
    RAVEL__CHAT_OPENED = 16     /* `after` of a user's turn begins the answer; `answer` is for other turns */
};

struct ravel_chat_format {
    const char *name;
    int32_t flags, system_rule, think_rule;
    const char *system_default;       /* NULL: none */
    const char *before[RAVEL__ROLES]; /* markers before a turn's content */
    const char *after[RAVEL__ROLES]; /* and after it, as far as they end the turn: an answer learns them; "\1" is eos */
    const char *tail;                /* after every turn, never learnt */
    const char *answer;              /* begins an answer that is to be generated */
    const uint64_t *digests;         /* of templates that were compared with this row, 0 ends */
};

typedef struct ravel__message {
    int role;
    const char *content, *reasoning; /* reasoning: NULL where it is not a field of its own */
    size_t bytes, reasoning_bytes;
} ravel__message;

/* Bytes begin .. end of the text are an answer. */
typedef struct ravel__answer {
    size_t begin, end;
} ravel__answer;

typedef struct ravel__script {
    ravel__buffer text, answers; /* char, ravel__answer */
    size_t bytes, answer_count;
} ravel__script;

/* Writes messages[count]; `open` adds the beginning of an answer. */
ravel_status ravel__chat_write(const ravel_chat_format *format, const ravel_tokenizer *tokenizer,
                               const ravel__message *messages, size_t count, int open, ravel__script *script,
                               const ravel_allocator *allocator, ravel_error *err);
ravel_status ravel__script_put(ravel__script *script, const char *text, size_t bytes, const ravel_allocator *allocator,
                               ravel_error *err);

/* The end of every sentence about what is left to transformers. */
#define RAVEL__BRIDGE \
    "prepare the data with transformers instead: python -m ravel.prepare --model FOLDER chat.jsonl out.jsonl"
/* The same of prompts. */
#define RAVEL__BRIDGE_PROMPTS                                                                                       \
    "prepare the data with transformers instead: python -m ravel.prepare --model FOLDER --prompts questions.jsonl " \
    "out.jsonl"

#endif
