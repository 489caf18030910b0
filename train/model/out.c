#include "train/model/out.h"

#include "base/assert.h"
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

char *train_out_take(train_out *o, size_t bytes) {
    if (!grow(o, bytes)) return NULL;
    o->used += bytes;
    return o->data + o->used - bytes;
}

void train_out_put(train_out *o, const char *text, size_t bytes) {
    char *to = bytes ? train_out_take(o, bytes) : NULL;
    if (to) memcpy(to, text, bytes);
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

/* A real stays one. */
static void put_real(train_out *o, double value) {
    char text[RAVEL__NUMBER_BYTES];
    ravel__number_shortest(value, 1, text);
    train_out_puts(o, text);
    if (!strpbrk(text, ".en")) train_out_puts(o, ".0");
}

static void put_scalar(train_out *o, const ravel__json_node *n) {
    if (n->kind == RAVEL__JSON_STRING)
        train_out_quote(o, n->as.string, n->bytes);
    else if (n->kind == RAVEL__JSON_INTEGER)
        train_out_print(o, "%lld", (long long)n->as.integer);
    else if (n->kind == RAVEL__JSON_REAL)
        put_real(o, n->as.real);
    else
        train_out_puts(o, n->kind == RAVEL__JSON_TRUE ? "true" : n->kind == RAVEL__JSON_FALSE ? "false" : "null");
}

/* Not deeper than the reader goes. */
void train_out_json(train_out *o, const ravel__json *doc, const ravel__json_node *n) {
    int list = n->kind == RAVEL__JSON_ARRAY;
    if (!list && n->kind != RAVEL__JSON_OBJECT) {
        put_scalar(o, n);
        return;
    }
    train_out_puts(o, list ? "[" : "{");
    const ravel__json_node *first = ravel__json_first(doc, n);
    for (const ravel__json_node *x = first; x; x = ravel__json_next(doc, x)) {
        if (x != first) train_out_puts(o, ", ");
        if (!list) train_out_quote(o, x->key, strlen(x->key));
        if (!list) train_out_puts(o, ": ");
        train_out_json(o, doc, x);
    }
    train_out_puts(o, list ? "]" : "}");
}

void train_out_tokens(train_out *o, const int32_t *ids, int64_t count) {
    train_out_puts(o, "[");
    for (int64_t i = 0; i < count; i++) train_out_print(o, i ? ", %d" : "%d", ids[i]);
    train_out_puts(o, "]");
}
