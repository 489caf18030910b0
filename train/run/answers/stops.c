#include "train/run/answers/stops.h"

#include "base/assert.h"
#include "text/decoder.h"
#include "train/kernels/host.h"

#include <stdlib.h>
#include <string.h>

size_t train_stop_find(const train_stop_texts *stops, const char *text, size_t bytes) {
    size_t begin = bytes, end = bytes + 1;
    for (int32_t i = 0; i < stops->count; i++) {
        size_t length = strlen(stops->texts[i]);
        const char *found = memmem(text, bytes, stops->texts[i], length);
        if (!found) continue;
        size_t at = (size_t)(found - text);
        if (at + length > end || (at + length == end && at > begin)) continue;
        begin = at;
        end = at + length;
    }
    RAVEL_ASSERT(begin <= bytes && begin < end);
    return begin;
}

size_t train_stop_held(const train_stop_texts *stops, const char *text, size_t bytes) {
    size_t held = 0;
    for (int32_t i = 0; i < stops->count; i++) {
        size_t length = strlen(stops->texts[i]);
        for (size_t n = length - 1 < bytes ? length - 1 : bytes; n > held; n--)
            if (memcmp(text + bytes - n, stops->texts[i], n) == 0) held = n;
    }
    RAVEL_ASSERT(held <= bytes);
    return held;
}

size_t train_stop_longest(const train_stop_texts *stops) {
    size_t longest = 0;
    for (int32_t i = 0; i < stops->count; i++) {
        size_t length = strlen(stops->texts[i]);
        longest = length > longest ? length : longest;
    }
    return longest;
}

void train_stop_stream_init(train_stop_stream *s, const train_stop_texts *stops) {
    *s = (train_stop_stream){.stops = stops};
}

void train_stop_stream_free(train_stop_stream *s) {
    free(s->text);
    s->text = NULL;
}

/* Drops the text that was shown, and appends the piece to the text that is held back. */
static ravel_status append(train_stop_stream *s, const char *piece, size_t bytes, ravel_error *err) {
    RAVEL_ASSERT(s->shown <= s->used);
    size_t held = s->used - s->shown;
    if (held) memmove(s->text, s->text + s->shown, held);
    RAVEL_ASSERT(held <= s->room);
    s->shown = 0;
    s->used = held;
    if (held + bytes > s->room) {
        size_t room = 2 * (held + bytes);
        char *grown = realloc(s->text, room);
        if (!grown) return ravel__no_memory(err, room, "a piece of an answer");
        s->text = grown;
        s->room = room;
    }
    if (bytes) memcpy(s->text + held, piece, bytes);
    s->used += bytes;
    RAVEL_ASSERT(s->used <= s->room || s->used == 0);
    return RAVEL_OK;
}

ravel_status train_stop_stream_push(train_stop_stream *s, const char *piece, size_t bytes, const char **out,
                                    size_t *out_bytes, ravel_error *err) {
    *out_bytes = 0;
    *out = piece;
    if (s->ended) return RAVEL_OK;
    ravel_status status = append(s, piece, bytes, err);
    if (status || s->used == 0) return status;
    s->shown = train_stop_find(s->stops, s->text, s->used);
    s->ended = s->shown < s->used;
    if (!s->ended) s->shown = s->used - train_stop_held(s->stops, s->text, s->used);
    RAVEL_ASSERT(s->shown <= s->used);
    *out = s->text;
    *out_bytes = s->shown;
    return RAVEL_OK;
}

void train_stop_stream_flush(train_stop_stream *s, const char **out, size_t *out_bytes) {
    RAVEL_ASSERT(s->shown <= s->used && s->used <= s->room);
    *out = s->text ? s->text + s->shown : "";
    *out_bytes = s->ended ? 0 : s->used - s->shown;
    s->shown = s->used;
}

/* ---- of tokens ------------------------------------------------------------------------------------------ */

/* The end of the answer: as many tokens as the longest text has bytes, more where some of them give no text, and their
 * text as far as it fits. */
int train_stop_reached(const train_stop_texts *stops, const train_text *text, const int32_t *tokens, int64_t count) {
    char out[4096];
    size_t longest = train_stop_longest(stops),
           need = longest + train_text_decode(text, tokens + count - 1, 1, NULL, 0);
    int64_t window = train__min(count, (int64_t)longest + 1);
    RAVEL_ASSERT(count > 0 && window > 0 && window <= count);
    size_t bytes = train_text_decode(text, tokens + count - window, window, out, sizeof out);
    while (bytes < need && window < count) {
        window = train__min(count, 2 * window);
        bytes = train_text_decode(text, tokens + count - window, window, out, sizeof out);
    }
    for (; bytes >= sizeof out && window > 1; window /= 2)
        bytes = train_text_decode(text, tokens + count - window / 2, window / 2, out, sizeof out);
    bytes = bytes < sizeof out ? bytes : sizeof out - 1;
    return train_stop_find(stops, out, bytes) < bytes;
}

ravel_status train_stop_specials(const train_stop_texts *stops, const train_text *text, int32_t *ids, int32_t *count,
                                 int32_t room, ravel_error *err) {
    const ravel_tokenizer *tokenizer = train_text_tokenizer(text);
    for (int32_t i = 0; i < stops->count; i++) {
        int32_t id = tokenizer ? ravel_tokenizer_id(tokenizer, stops->texts[i], strlen(stops->texts[i])) : -1;
        if (id < 0 || !ravel__tokenizer_is_special(tokenizer, id)) continue;
        if (*count == room) return ravel_error_set(err, RAVEL_E_ARGUMENT, "%d tokens can end an answer at most", room);
        ids[(*count)++] = id;
    }
    return RAVEL_OK;
}
