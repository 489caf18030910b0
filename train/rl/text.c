#include "train/rl/text.h"

#include "train/kernels/host.h"
#include "train/learn/choice.h"

struct train_text {
    int32_t *tokens;
    int64_t room;
    char byte;
};

ravel_status train_text_open(const char *folder, train_text **text, ravel_error *err) {
    (void)folder;
    *text = train__calloc(NULL, 1, sizeof **text);
    return *text ? RAVEL_OK : train__no_memory(err, sizeof **text, "a text");
}

void train_text_free(train_text *t) {
    if (!t) return;
    train__release(NULL, t->tokens, (size_t)t->room * sizeof *t->tokens);
    train__release(NULL, t, sizeof *t);
}

int train_text_is_bytes(const train_text *t) {
    (void)t;
    return 1;
}

static int is_byte(int32_t token) {
    return token >= 0 && token < 256;
}

ravel_status train_text_encode(train_text *t, const char *prompt, size_t bytes, const int32_t **tokens, int64_t *count,
                               ravel_error *err) {
    int64_t need = (int64_t)bytes + 1;
    if (need > t->room) {
        train__release(NULL, t->tokens, (size_t)t->room * sizeof *t->tokens);
        t->room = 0;
        t->tokens = train__alloc(NULL, (size_t)need * sizeof *t->tokens);
        if (!t->tokens) return train__no_memory(err, (size_t)need * sizeof *t->tokens, "a prompt");
        t->room = need;
    }
    t->tokens[0] = TRAIN_TOKEN_BOS;
    for (size_t i = 0; i < bytes; i++) t->tokens[i + 1] = (unsigned char)prompt[i];
    *tokens = t->tokens;
    *count = need;
    return RAVEL_OK;
}

size_t train_text_decode(const train_text *t, const int32_t *tokens, int64_t count, char *out, size_t room) {
    size_t used = 0;
    (void)t;
    for (int64_t i = 0; i < count; i++) {
        if (!is_byte(tokens[i])) continue;
        if (used < room) out[used] = (char)tokens[i];
        used++;
    }
    return used;
}

ravel_status train_text_begin(train_text *t, ravel_error *err) {
    (void)t;
    (void)err;
    return RAVEL_OK;
}

void train_text_push(train_text *t, int32_t token, const char **piece, size_t *bytes) {
    t->byte = (char)token;
    *piece = &t->byte;
    *bytes = is_byte(token);
}

void train_text_flush(train_text *t, const char **piece, size_t *bytes) {
    *piece = &t->byte;
    *bytes = 0;
}
