#include "base/assert.h"
#include "report/printer.h"

#include "base/json.h"
#include "base/memory.h"
#include "base/number.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ravel__printer_begin(ravel__printer *text, ravel_write write, void *user, ravel_error *err) {
    text->write = write;
    text->user = user;
    text->err = err;
    text->status = RAVEL_OK;
    text->used = 0;
}

static void flush(ravel__printer *text) {
    RAVEL_ASSERT(text->used <= sizeof text->buffer);
    if (!text->status && text->used) text->status = text->write(text->user, text->buffer, text->used, text->err);
    text->used = 0;
}

ravel_status ravel__printer_end(ravel__printer *text) {
    flush(text);
    RAVEL_ASSERT(text->used == 0);
    return text->status;
}

void ravel__printer_put(ravel__printer *text, const char *bytes, size_t count) {
    RAVEL_ASSERT(bytes || !count);
    if (count > sizeof text->buffer - text->used) flush(text);
    if (count > sizeof text->buffer) {
        if (!text->status) text->status = text->write(text->user, bytes, count, text->err);
        return;
    }
    RAVEL_ASSERT(text->used + count <= sizeof text->buffer);
    memcpy(text->buffer + text->used, bytes, count);
    text->used += count;
}

void ravel__printer_string(ravel__printer *text, const char *string) {
    ravel__printer_put(text, string, strlen(string));
}

void ravel__printer_format(ravel__printer *text, const char *format, ...) {
    char line[1024]; /* every format of ours is short; strings that are not go through ravel__printer_string */
    va_list args;
    va_start(args, format);
    int length = ravel__number_vprint(line, sizeof line, format, args);
    va_end(args);
    RAVEL_ASSERT(length >= 0 && (size_t)length < sizeof line);
    if (length > 0) ravel__printer_put(text, line, (size_t)length < sizeof line ? (size_t)length : sizeof line - 1);
}

void ravel__printer_integer(ravel__printer *text, int64_t value) {
    char digits[24], *at = digits + sizeof digits;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do *--at = (char)('0' + left % 10);
    while (left /= 10);
    if (value < 0) *--at = '-';
    RAVEL_ASSERT(at >= digits && at < digits + sizeof digits);
    ravel__printer_put(text, at, (size_t)(digits + sizeof digits - at));
}

void ravel__printer_double(ravel__printer *text, double value) {
    char digits[RAVEL__NUMBER_BYTES];
    ravel__number_shortest(value, 6, digits);
    RAVEL_ASSERT(strlen(digits) < sizeof digits);
    ravel__printer_string(text, digits);
}

void ravel__printer_html(ravel__printer *text, const char *string) {
    for (; *string; string++) {
        switch (*string) {
        case '<': ravel__printer_string(text, "&lt;"); break;
        case '>': ravel__printer_string(text, "&gt;"); break;
        case '&': ravel__printer_string(text, "&amp;"); break;
        case '"': ravel__printer_string(text, "&quot;"); break;
        default: ravel__printer_put(text, string, 1);
        }
    }
}

void ravel__printer_json(ravel__printer *text, const char *json, size_t bytes) {
    for (size_t at = 0, length; at < bytes; at += length + 1) { /* '<' stands in strings alone */
        const char *angle = memchr(json + at, '<', bytes - at);
        length = angle ? (size_t)(angle - json) - at : bytes - at;
        ravel__printer_put(text, json + at, length);
        if (angle) ravel__printer_string(text, "\\u003c");
    }
}

void ravel__printer_quote(ravel__printer *text, const char *string) {
    size_t bytes = strlen(string), need = ravel__json_quote(string, bytes, NULL, 0);
    char *quoted = ravel__alloc(NULL, need + 1);
    if (!quoted) {
        if (!text->status) text->status = ravel__no_memory(text->err, need, "a text");
        return;
    }
    (void)ravel__json_quote(string, bytes, quoted, need + 1);
    ravel__printer_json(text, quoted, need);
    ravel__release(NULL, quoted, need + 1);
}
