/* train/rl/turns.h: the tokens between two answers of a conversation. Token in, token out: what the model drew is never
 * tokenised again.
 *
 *     held      <|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n A<|im_end|>
 *     rendered  <|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n A<|im_end|>\n<|im_start|>user\nO<|im_end|>\n<|im_start|>assistant\n
 *     appended                                                                    ^------------------------------------------------------^
 *
 * The conversation is rendered by the chat format with the observation O, and what it writes beyond the text of the
 * held tokens is tokenised and appended. If the rendered text does not begin with the held one (a format that drops
 * thoughts of earlier turns, or trims), or begins with it in other tokens, the turn is counted as one that differs;
 * what is appended is then what the format writes after an answer of one word. Without a chat format, and for models of
 * bytes, the text of an observation is appended as it is. */
#ifndef TRAIN_TURNS_H
#define TRAIN_TURNS_H

#include "train/model/out.h"
#include "train/rl/text.h"

/* A conversation so far. All zero is an empty one. */
typedef struct train_turns {
    train_out messages;     /* a JSON list without its last bracket */
    train_out more;         /* further members of the row for the template: tools and so on */
    int32_t count, unknown; /* unknown: the prompt has no messages, only tokens */
} train_turns;

void train_turns_free(train_turns *turns);

typedef struct train_said {
    const char *text; /* [bytes] */
    size_t bytes;
    const char *role;
    int listed; /* it is a list of messages, as JSON */
} train_said;

/* Tokens before the first answer: prompt[count], those of the row `line`, and what the environment said first. line
 * NULL: there is no row, prompt[] is a begin token where the model has one. said NULL: nothing. *tokens lives until the
 * next call with `text`, or is prompt. E_DATA if the row cannot be followed by an observation, or the template
 * refuses it. */
ravel_status train_turns_begin(train_text *text, train_turns *turns, const char *line, const int32_t *prompt,
                               int64_t count, const train_said *said, const int32_t **tokens, int64_t *n,
                               ravel_error *err);
/* Tokens of a conversation in place of the one so far: `context`, a list of messages as JSON, then what was said; said NULL:
 * nothing. As above. */
ravel_status train_turns_replace(train_text *text, train_turns *turns, const char *context, size_t bytes,
                                 const train_said *said, const int32_t **tokens, int64_t *n, ravel_error *err);
/* Tokens after an answer, the last `drawn` of held[count], ended by a stop token or not. *differs: see above. */
ravel_status train_turns_answer(train_text *text, train_turns *turns, const int32_t *held, int64_t count, int64_t drawn,
                                int ended, const train_said *said, const int32_t **tokens, int64_t *n, int *differs,
                                ravel_error *err);

#endif
