#include "train/model/out.h"

#include "base/assert.h"
#include "base/json.h"
#include "base/number.h"

#include <stdlib.h>
#include <string.h>

void train_out_free(train_out *o) {
    free(o->data);
    *o = (train_out){0};
}

static int grow(train_out *o, size_t more) {
    size_t room = o->room ? o->room : 512;
    if (o->failed) return 0;
    if (o->used + more <= o->room) return 1;
    while (room < o->used + more) room *= 2;
    char *data = realloc(o->data, room);
    if (!data) {
        o->failed = 1;
        return 0;
    }
    o->data = data;
    o->room = room;
    return 1;
}

void train_out_put(train_out *o, const char *text, size_t bytes) {
    if (!bytes || !grow(o, bytes)) return;
    memcpy(o->data + o->used, text, bytes);
    o->used += bytes;
}

void train_out_puts(train_out *o, const char *text) {
    train_out_put(o, text, strlen(text));
}

void train_out_print(train_out *o, const char *format, ...) {
    char text[512];
    va_list args;
    va_start(args, format);
    int bytes = ravel__number_vprint(text, sizeof text, format, args);
    va_end(args);
    RAVEL_ASSERT(bytes >= 0 && bytes < (int)sizeof text);
    train_out_put(o, text, (size_t)bytes);
}

void train_out_quote(train_out *o, const char *text, size_t bytes) {
    if (!grow(o, bytes + 16)) return; /* often enough */
    size_t need = ravel__json_quote(text, bytes, o->data + o->used, o->room - o->used);
    if (need >= o->room - o->used) {
        if (!grow(o, need + 1)) return;
        (void)ravel__json_quote(text, bytes, o->data + o->used, o->room - o->used);
    }
    o->used += need;
}
