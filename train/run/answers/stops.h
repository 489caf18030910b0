/* train/run/answers/stops.h: texts that end an answer.
 *
 * An answer is cut before the text that is complete first; of several that end at the same byte, before the longest. So
 * the result does not depend on the pieces in which an answer comes. A stream of pieces shows an answer as it grows
 * without showing any part of such a text: a possible beginning of one is held back until the next pieces decide.
 *
 *     const train_stop_texts stops = {texts, 2};                "\n\n" and "Question:"
 *     train_stop_stream_init(&stream, &stops);
 *     while (more) {
 *         train_stop_stream_push(&stream, piece, bytes, &shown, &shown_bytes, &err);
 *         print(shown, shown_bytes);                            "the answer is 4\n" holds back its newline
 *     }
 *     train_stop_stream_flush(&stream, &shown, &shown_bytes);   the rest that was held back
 *     train_stop_stream_free(&stream);
 */
#ifndef TRAIN_STOPS_H
#define TRAIN_STOPS_H

#include "train/rl/text.h"

/* Texts with at least one byte each, borrowed. */
typedef struct train_stop_texts {
    const char *const *texts; /* [count] */
    int32_t count;
} train_stop_texts;

/* Where the one that ends first in text[bytes] begins; `bytes` where none is in it. */
size_t train_stop_find(const train_stop_texts *stops, const char *text, size_t bytes);
/* How many bytes at the end of text[bytes] may be the beginning of one. */
size_t train_stop_held(const train_stop_texts *stops, const char *text, size_t bytes);
/* Bytes of the longest. */
size_t train_stop_longest(const train_stop_texts *stops);
/* Whether the answer tokens[count] holds one. It was asked before for all tokens but the last, so it looks at the end
 * alone. Any thread may ask. */
int train_stop_reached(const train_stop_texts *stops, const train_text *text, const int32_t *tokens, int64_t count);
/* Special tokens give no text: those whose names are among the texts, added at ids[*count]. E_ARGUMENT if they are
 * more than `room` then. */
ravel_status train_stop_specials(const train_stop_texts *stops, const train_text *text, int32_t *ids, int32_t *count,
                                 int32_t room, ravel_error *err);

typedef struct train_stop_stream {
    const train_stop_texts *stops;
    char *text; /* [room] what came last: shown, then held back */
    size_t shown, used, room;
    int ended; /* one of the texts has come; nothing more is shown */
} train_stop_stream;

void train_stop_stream_init(train_stop_stream *stream, const train_stop_texts *stops);
void train_stop_stream_free(train_stop_stream *stream);
/* *out[*out_bytes] can be shown now; it is valid until the next call. */
ravel_status train_stop_stream_push(train_stop_stream *stream, const char *piece, size_t bytes, const char **out,
                                    size_t *out_bytes, ravel_error *err);
/* The answer is over: what is left to show. */
void train_stop_stream_flush(train_stop_stream *stream, const char **out, size_t *out_bytes);

#endif
