#include "base/yaml.h"

#include "base/assert.h"
#include "base/json.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* JSON text in the making, of a fixed room that no input exceeds. */
typedef struct out {
    char *text;
    size_t used, room, members;
    int waits, listed; /* the last name has no value yet; its value is a list */
} out;

static void put(out *o, const char *text, size_t bytes) {
    RAVEL_ASSERT(o->used + bytes < o->room);
    memcpy(o->text + o->used, text, bytes);
    o->used += bytes;
}

static void put_string(out *o, const char *text, size_t bytes) {
    o->used += ravel__json_quote(text, bytes, o->text + o->used, o->room - o->used);
    RAVEL_ASSERT(o->used < o->room);
}

/* A piece of a line. */
typedef struct piece {
    const char *at;
    size_t bytes;
} piece;

static piece trim(piece p) {
    while (p.bytes && (*p.at == ' ' || *p.at == '\t')) p.at++, p.bytes--;
    while (p.bytes && strchr(" \t\r", p.at[p.bytes - 1])) p.bytes--;
    return p;
}

static int is_word(piece p, const char *words) {
    size_t length;
    for (const char *w = words; *w; w += length + (w[length] != '\0')) {
        length = strcspn(w, "|");
        if (length == p.bytes && memcmp(w, p.at, length) == 0) return 1;
    }
    return 0;
}

/* Whether JSON takes it as it is. */
static int is_literal(piece p) {
    ravel__json *doc = NULL;
    if (!p.bytes || !strchr("-0123456789", *p.at)) return is_word(p, "true|false|null");
    int good = ravel__json_parse(p.at, p.bytes, NULL, &doc, NULL) == RAVEL_OK;
    ravel__json_free(doc);
    return good;
}

static ravel_status refuse(int64_t line, const char *why, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_DATA, "line %lld: %s", (long long)line, why);
}

/* Without the comment, which begins with a '#' after a blank. */
static piece cut_comment(piece p) {
    for (size_t i = 0; i < p.bytes; i++)
        if (p.at[i] == '#' && (i == 0 || p.at[i - 1] == ' ' || p.at[i - 1] == '\t')) p.bytes = i;
    return trim(p);
}

/* The quoted text that p begins with, of which *taken bytes are it. */
static ravel_status put_quoted(out *o, piece p, int64_t line, size_t *taken, ravel_error *err) {
    char quote = *p.at;
    size_t end = 1, start = o->used;
    for (; end < p.bytes && (p.at[end] != quote || (quote == '\'' && end + 1 < p.bytes && p.at[end + 1] == '\''));
         end++)
        end += (quote == '\'' && p.at[end] == '\'') || (quote == '"' && p.at[end] == '\\');
    if (end >= p.bytes) return refuse(line, "a quote is not closed", err);
    *taken = end + 1;
    if (quote == '"') { /* JSON's escapes are YAML's */
        ravel__json *doc = NULL;
        put(o, p.at, *taken);
        int good = ravel__json_parse(o->text + start, *taken, NULL, &doc, NULL) == RAVEL_OK;
        ravel__json_free(doc);
        return good ? RAVEL_OK : refuse(line, "the text in quotes has an escape that JSON does not know", err);
    }
    char *plain = malloc(end);
    if (!plain) return ravel__no_memory(err, end, "a configuration");
    size_t bytes = 0;
    for (size_t i = 1; i < end; i += 1 + (p.at[i] == '\'')) plain[bytes++] = p.at[i];
    put_string(o, plain, bytes);
    free(plain);
    return RAVEL_OK;
}

/* p: without blanks around it. */
static ravel_status put_plain(out *o, piece p, int64_t line, ravel_error *err) {
    if (p.bytes == 0 || is_word(p, "~|null|Null|NULL"))
        put(o, "null", 4);
    else if (strchr("[{&*!|>%@`", *p.at) || (p.bytes > 1 && p.at[0] == '-' && p.at[1] == ' '))
        return refuse(line, "a value is a number, a word, true, false, a text in quotes, or a list of these", err);
    else if (is_literal(p))
        put(o, p.at, p.bytes);
    else
        put_string(o, p.at, p.bytes);
    return RAVEL_OK;
}

static ravel_status put_scalar(out *o, piece p, int64_t line, ravel_error *err) {
    size_t taken = 0;
    if (!p.bytes || (*p.at != '"' && *p.at != '\'')) return put_plain(o, cut_comment(p), line, err);
    ravel_status status = put_quoted(o, p, line, &taken, err);
    piece rest = {p.at + taken, p.bytes - taken};
    if (!status && cut_comment(rest).bytes) status = refuse(line, "there is text after the quoted value", err);
    return status;
}

/* "[a, b]", p without its first bracket. */
static ravel_status put_list(out *o, piece p, int64_t line, ravel_error *err) {
    put(o, "[", 1);
    for (int first = 1;; first = 0) {
        size_t taken = 0;
        p = trim(p);
        if (!p.bytes) return refuse(line, "a list ends with \"]\" on the same line", err);
        if (first && *p.at == ']') break;
        if (!first) put(o, ",", 1);
        ravel_status status = RAVEL_OK;
        if (*p.at == '"' || *p.at == '\'') {
            status = put_quoted(o, p, line, &taken, err);
        } else {
            while (taken < p.bytes && !strchr(",]", p.at[taken])) taken++;
            status = put_plain(o, trim((piece){p.at, taken}), line, err);
        }
        p = trim((piece){p.at + taken, p.bytes - taken});
        if (!status && (!p.bytes || !strchr(",]", *p.at))) status = refuse(line, "a list is \"[a, b]\"", err);
        if (status) return status;
        if (*p.at == ']') break;
        p.at++, p.bytes--;
    }
    put(o, "]", 1);
    return cut_comment((piece){p.at + 1, p.bytes - 1}).bytes ? refuse(line, "there is text after the list", err)
                                                             : RAVEL_OK;
}

static ravel_status put_value(out *o, piece p, int64_t line, ravel_error *err) {
    if (cut_comment(p).bytes == 0) {
        o->waits = 1;
        return RAVEL_OK;
    }
    return *p.at == '[' ? put_list(o, (piece){p.at + 1, p.bytes - 1}, line, err) : put_scalar(o, p, line, err);
}

/* After "name:" alone its value is null, or the items in the lines that follow. */
static void end_list(out *o) {
    if (o->waits) put(o, "null", 4);
    if (o->listed) put(o, "]", 1);
    o->waits = o->listed = 0;
}

static ravel_status put_item(out *o, piece p, int64_t line, ravel_error *err) {
    put(o, o->waits ? "[" : ",", 1);
    o->waits = 0;
    o->listed = 1;
    return put_scalar(o, trim((piece){p.at + 1, p.bytes - 1}), line, err);
}

static ravel_status put_line(out *o, piece p, int64_t line, ravel_error *err) {
    size_t colon = 0, taken = 0;
    piece item = trim(p);
    if ((o->waits || o->listed) && item.at[0] == '-' && (item.bytes == 1 || item.at[1] == ' '))
        return put_item(o, item, line, err);
    end_list(o);
    if (*p.at == ' ' || *p.at == '\t')
        return refuse(line, "it is indented; options stand at the beginning of a line", err);
    if (p.at[0] == '-' && (p.bytes == 1 || p.at[1] == ' '))
        return refuse(line, "a list; options are lines of \"name: value\"", err);
    if (o->members++) put(o, ",", 1);
    if (*p.at == '"' || *p.at == '\'') {
        ravel_status status = put_quoted(o, p, line, &taken, err);
        if (status) return status;
        colon = taken;
    } else {
        while (colon < p.bytes && (p.at[colon] != ':' || (colon + 1 < p.bytes && p.at[colon + 1] != ' '))) colon++;
        put_string(o, p.at, trim((piece){p.at, colon}).bytes);
    }
    if (colon >= p.bytes || p.at[colon] != ':') return refuse(line, "an option is a line of \"name: value\"", err);
    put(o, ":", 1);
    return put_value(o, trim((piece){p.at + colon + 1, p.bytes - colon - 1}), line, err);
}

ravel_status ravel__yaml_to_json(const char *text, size_t bytes, char **json, size_t *json_bytes, ravel_error *err) {
    out o = {.room = 7 * bytes + 64}; /* a control character takes six */
    const char *end = text + bytes;
    ravel_status status = RAVEL_OK;
    o.text = malloc(o.room);
    if (!o.text) return ravel__no_memory(err, o.room, "a configuration");
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) text += 3;
    put(&o, "{", 1);
    for (int64_t line = 1; text < end && !status; line++) {
        const char *newline = memchr(text, '\n', (size_t)(end - text)), *stop = newline ? newline : end;
        piece p = {text, (size_t)(stop - text)}, seen = cut_comment(p);
        while (p.bytes && strchr(" \t\r", p.at[p.bytes - 1])) p.bytes--;
        if (seen.bytes && !is_word(seen, "---|...")) status = put_line(&o, p, line, err);
        if (newline && !status) put(&o, "\n", 1);
        text = newline ? newline + 1 : end;
    }
    end_list(&o);
    put(&o, "}", 1);
    o.text[o.used] = '\0';
    if (status) {
        free(o.text);
        return status;
    }
    *json = o.text;
    *json_bytes = o.used;
    return RAVEL_OK;
}
