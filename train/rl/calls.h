/* train/rl/calls.h: calls of tools in the text of an answer, found as it grows.
 *
 *   TAGGED   Let me see. <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>, any number of them, or inside the tags
 *            <function=f><parameter=x>1</parameter></function>             Qwen 2.5 and 3, Qwen3-Coder, Hermes, SmolLM3, Granite 4
 *   BARE     {"name": "f", "parameters": {"x": 1}}, several with ";" between them or as a list, and nothing else
 *                                                                          Llama 3, Mistral (its marker is a special token)
 *
 * Which of them a model writes is seen in what its chat template writes for a call. What is no call stays text. */
#ifndef TRAIN_CALLS_H
#define TRAIN_CALLS_H

#include "train/model/out.h"
#include "train/rl/text.h"

typedef enum train_calls_form { TRAIN_CALLS_NONE, TRAIN_CALLS_TAGGED, TRAIN_CALLS_BARE } train_calls_form;

/* NONE also where the template writes no calls, or others. */
train_calls_form train_calls_form_of(train_text *text);

/* Offsets in `parts`. */
typedef struct train_call {
    size_t name, name_bytes;
    size_t arguments, arguments_bytes; /* a JSON object */
} train_call;

/* Of one answer. All zero is an empty one. */
typedef struct train_calls {
    train_out text; /* without the calls */
    train_out parts;
    train_call *all; /* [count] */
    int64_t count, room;
    size_t at; /* bytes of the answer that are in `text` or in calls */
} train_calls;

void train_calls_free(train_calls *calls);

typedef struct train_calls_options {
    train_calls_form form;
    int64_t most;                  /* calls beyond it are left out */
    const ravel__json *doc;        /* of the schemas, */
    const ravel__json_node *tools; /* a list as a request has it; NULL: none */
} train_calls_options;

/* text[bytes] is the answer so far; `ended`: all of it. What may be the beginning of a call waits. Short memory is noted
 * in `text`. */
void train_calls_read(train_calls *calls, const train_calls_options *options, const char *text, size_t bytes,
                      int ended);

/* Whether the template takes the content of a message as text alone: what it writes for a list of parts is not their
 * text. */
int train_calls_flat(train_text *text);
/* A request for the chat template. Arguments of earlier calls, which clients send as text, become the objects that templates
 * expect; `flat`: a content that is a list of texts becomes one text, by lines. 0: a list holds something else. */
int train_calls_conversation(train_out *out, const ravel__json *doc, const ravel__json_node *root, int flat);

#endif
