#include "cli/live.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

ravel_status cli_live_open(cli_live *l, const train_text *text, const train_stop_texts *stops, ravel_error *err) {
    train_stop_stream_init(&l->stops, stops);
    return train_text_stream_open(text, &l->letters, err);
}

void cli_live_close(cli_live *l) {
    train_text_stream_close(&l->letters);
    train_stop_stream_free(&l->stops);
}

static ravel_status print(const char *text, size_t bytes, ravel_error *err) {
    if (bytes == 0 || (fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_IO, "standard output: %s", strerror(errno));
}

/* Up to a possible beginning of a stop text. */
static ravel_status push(cli_live *l, const char *piece, size_t bytes, ravel_error *err) {
    ravel_status status = train_stop_stream_push(&l->stops, piece, bytes, &piece, &bytes, err);
    return status ? status : print(piece, bytes, err);
}

ravel_status cli_live_show(cli_live *l, const int32_t *tokens, int64_t count, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    RAVEL_ASSERT(l->shown >= 0 && count >= 0);
    for (; l->shown < count && !status; l->shown++) {
        const char *piece;
        size_t bytes;
        train_text_stream_push(&l->letters, tokens[l->shown], &piece, &bytes);
        status = push(l, piece, bytes, err);
    }
    return status;
}

ravel_status cli_live_end(cli_live *l, ravel_error *err) {
    const train_stop_texts *stops = l->stops.stops;
    const char *piece;
    size_t bytes;
    train_text_stream_flush(&l->letters, &piece, &bytes);
    ravel_status status = push(l, piece, bytes, err);
    train_stop_stream_flush(&l->stops, &piece, &bytes);
    if (!status) status = print(piece, bytes, err);
    train_stop_stream_free(&l->stops);
    train_stop_stream_init(&l->stops, stops);
    l->shown = 0;
    return status ? status : print("\n", 1, err);
}
