/* The JSON reader: one pass over the text, an explicit stack, a flat array of nodes.
 *
 *     {"a": [1, 2], "b": "x"}
 *
 *     node   kind      key  count  skip      skip: how many nodes to the next sibling, so that a whole subtree is
 *      0     OBJECT    -    2      5         stepped over in one go
 *      1     ARRAY     a    2      3
 *      2     INTEGER   -           1
 *      3     INTEGER   -           1
 *      4     STRING    b           1
 *
 * Decoded strings go to a pool that is as long as the text: a string and its NUL never take more than the text of
 * the string with its quotes. */
#include "base/json.h"

#include "base/assert.h"
#include "base/memory.h"
#include "base/number.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

enum { DEPTH = 64, LONGEST_NUMBER = 128 };

struct ravel__json {
    const ravel_allocator *allocator;
    ravel__json_node *nodes;
    size_t count, room;
    char *pool;
    size_t pool_room;
};

typedef struct parser {
    const char *text, *at, *end;
    char *pool; /* next free byte */
    ravel__json *doc;
    ravel_error *err;
} parser;

/* ---- errors --------------------------------------------------------------------------------------------- */

static ravel_status bad(const parser *p, const char *expected) {
    RAVEL_ASSERT(p->text <= p->at && p->at <= p->end);
    size_t line = 1, column = 1;
    for (const char *c = p->text; c < p->at && c < p->end; c++) {
        column++;
        if (*c == '\n') line++, column = 1;
    }
    char found[24] = "the end";
    if (p->at < p->end) {
        unsigned char c = (unsigned char)*p->at;
        (void)snprintf(found, sizeof found, c >= 32 && c < 127 ? "'%c'" : "byte 0x%02x", c);
    }
    return ravel_error_set(p->err, RAVEL_E_DATA, "JSON, line %zu, column %zu: expected %s, found %s", line, column,
                           expected, found);
}

/* ---- pieces --------------------------------------------------------------------------------------------- */

static void skip_space(parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\t' || *p->at == '\r')) p->at++;
}

/* The next node, or NULL when memory is short. */
static ravel__json_node *push(ravel__json *doc, const char *key) {
    RAVEL_ASSERT(doc->count <= doc->room);
    if (doc->count == doc->room) {
        size_t room = doc->room ? doc->room * 2 : 16, each = sizeof *doc->nodes;
        ravel__json_node *grown = ravel__resize(doc->allocator, doc->nodes, doc->room * each, room * each);
        if (!grown) return NULL;
        doc->nodes = grown;
        doc->room = room;
    }
    ravel__json_node *node = &doc->nodes[doc->count++];
    memset(node, 0, sizeof *node);
    node->key = key;
    node->skip = 1;
    return node;
}

static int hex4(const char *s, uint32_t *code) {
    *code = 0;
    for (int i = 0; i < 4; i++) {
        char c = s[i];
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 16;
        if (digit == 16) return 0;
        *code = *code << 4 | digit;
    }
    return 1;
}

static char *put_utf8(char *out, uint32_t code) {
    RAVEL_ASSERT(code < 0x110000 && (code < 0xd800 || code > 0xdfff));
    if (code < 0x80) {
        *out++ = (char)code;
    } else if (code < 0x800) {
        *out++ = (char)(0xc0 | code >> 6);
        *out++ = (char)(0x80 | (code & 63));
    } else if (code < 0x10000) {
        *out++ = (char)(0xe0 | code >> 12);
        *out++ = (char)(0x80 | (code >> 6 & 63));
        *out++ = (char)(0x80 | (code & 63));
    } else {
        *out++ = (char)(0xf0 | code >> 18);
        *out++ = (char)(0x80 | (code >> 12 & 63));
        *out++ = (char)(0x80 | (code >> 6 & 63));
        *out++ = (char)(0x80 | (code & 63));
    }
    return out;
}

/* Length of the valid UTF-8 sequence at s, 0 if there is none. */
static size_t utf8_length(const char *s, const char *end) {
    RAVEL_ASSERT(s < end);
    const unsigned char *u = (const unsigned char *)s;
    size_t room = (size_t)(end - s), n = u[0] < 0x80   ? 1
                                         : u[0] < 0xc2 ? 0
                                         : u[0] < 0xe0 ? 2
                                         : u[0] < 0xf0 ? 3
                                         : u[0] < 0xf5 ? 4
                                                       : 0;
    if (n == 0 || n > room) return 0;
    for (size_t i = 1; i < n; i++)
        if ((u[i] & 0xc0) != 0x80) return 0;
    if (n == 3 && ((u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xed && u[1] >= 0xa0))) return 0;
    if (n == 4 && ((u[0] == 0xf0 && u[1] < 0x90) || (u[0] == 0xf4 && u[1] >= 0x90))) return 0;
    return n;
}

/* After the backslash. */
static ravel_status unescape(parser *p) {
    RAVEL_ASSERT(p->at > p->text && p->at[-1] == '\\');
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (p->at == p->end) return bad(p, "an escape");
    const char *simple = strchr(from, *p->at);
    if (simple && *p->at) {
        *p->pool++ = to[simple - from];
        p->at++;
        return RAVEL_OK;
    }
    uint32_t code, low;
    if (*p->at != 'u' || p->end - p->at < 5 || !hex4(p->at + 1, &code)) return bad(p, "an escape");
    if (code >= 0xdc00 && code < 0xe000) return bad(p, "the first half of a surrogate pair");
    if (code >= 0xd800 && code < 0xdc00) {
        if (p->end - p->at < 11 || p->at[5] != '\\' || p->at[6] != 'u' || !hex4(p->at + 7, &low) || low < 0xdc00 ||
            low >= 0xe000)
            return bad(p, "both halves of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        p->at += 6;
    }
    p->at += 5;
    p->pool = put_utf8(p->pool, code);
    return RAVEL_OK;
}

/* At the opening quote; leaves `at` behind the closing one. */
static ravel_status string(parser *p, const char **text, uint32_t *bytes) {
    if (p->at == p->end || *p->at != '"') return bad(p, "'\"'");
    p->at++;
    char *start = p->pool;
    for (;;) {
        if (p->at == p->end) return bad(p, "'\"'");
        unsigned char c = (unsigned char)*p->at;
        if (c == '"') break;
        if (c < 32) return bad(p, "an escape instead of a control character");
        if (c == '\\') {
            p->at++;
            ravel_status status = unescape(p);
            if (status) return status;
            continue;
        }
        size_t n = utf8_length(p->at, p->end);
        if (n == 0) return bad(p, "valid UTF-8");
        memcpy(p->pool, p->at, n);
        p->pool += n;
        p->at += n;
    }
    p->at++;
    *text = start;
    *bytes = (uint32_t)(p->pool - start);
    *p->pool++ = '\0';
    RAVEL_ASSERT(p->pool <= p->doc->pool + p->doc->pool_room);
    RAVEL_ASSERT(p->pool - p->doc->pool <= p->at - p->text); /* a string takes no more than its text */
    return RAVEL_OK;
}

static int digits(parser *p) {
    const char *start = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;
    RAVEL_ASSERT(p->at <= p->end);
    return p->at > start;
}

static ravel_status number(parser *p, ravel__json_node *node) {
    RAVEL_ASSERT(p->at < p->end && (*p->at == '-' || (*p->at >= '0' && *p->at <= '9')));
    const char *start = p->at;
    int whole = 1;
    if (*p->at == '-') p->at++;
    const char *first = p->at;
    if (!digits(p)) return bad(p, "a digit");
    if (*first == '0' && p->at - first > 1) {
        p->at = first + 1;
        return bad(p, "no digit after a leading 0");
    }
    if (p->at < p->end && *p->at == '.') {
        whole = 0;
        p->at++;
        if (!digits(p)) return bad(p, "a digit");
    }
    if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
        whole = 0;
        p->at++;
        if (p->at < p->end && (*p->at == '+' || *p->at == '-')) p->at++;
        if (!digits(p)) return bad(p, "a digit");
    }
    size_t length = (size_t)(p->at - start);
    if (whole && length < 18) { /* no room for overflow: the fast path for token ids */
        int64_t value = 0;
        for (const char *c = first; c < p->at; c++) value = value * 10 + (*c - '0');
        node->kind = RAVEL__JSON_INTEGER;
        node->as.integer = *start == '-' ? -value : value;
        return RAVEL_OK;
    }
    char text[LONGEST_NUMBER + 1]; /* strtod needs an end, and the text may be a view without one */
    if (length > LONGEST_NUMBER) return bad(p, "a shorter number");
    memcpy(text, start, length);
    RAVEL_ASSERT(length < sizeof text);
    text[length] = '\0';
    errno = 0;
    long long integer = whole ? strtoll(text, NULL, 10) : 0;
    if (whole && errno != ERANGE) {
        node->kind = RAVEL__JSON_INTEGER;
        node->as.integer = integer;
        return RAVEL_OK;
    }
    node->kind = RAVEL__JSON_REAL;
    node->as.real = ravel__number_read(text, NULL);
    if (!isfinite(node->as.real)) return bad(p, "a number that fits a double");
    return RAVEL_OK;
}

static ravel_status word(parser *p, const char *text, int16_t kind, ravel__json_node *node) {
    size_t n = strlen(text);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, text, n) != 0) return bad(p, "a value");
    p->at += n;
    node->kind = kind;
    return RAVEL_OK;
}

static ravel_status scalar(parser *p, ravel__json_node *node) {
    RAVEL_ASSERT(p->at < p->end);
    switch (*p->at) {
    case '"': node->kind = RAVEL__JSON_STRING; return string(p, &node->as.string, &node->bytes);
    case 't': return word(p, "true", RAVEL__JSON_TRUE, node);
    case 'f': return word(p, "false", RAVEL__JSON_FALSE, node);
    case 'n': return word(p, "null", RAVEL__JSON_NULL, node);
    default:
        if (*p->at != '-' && (*p->at < '0' || *p->at > '9')) return bad(p, "a value");
        return number(p, node);
    }
}

/* ---- the loop ------------------------------------------------------------------------------------------- */

static ravel_status member_key(parser *p, const char **key) {
    uint32_t bytes = 0;
    skip_space(p);
    ravel_status status = string(p, key, &bytes);
    if (status) return status;
    if (strlen(*key) != bytes) return bad(p, "a key without NUL");
    skip_space(p);
    if (p->at == p->end || *p->at != ':') return bad(p, "':'");
    p->at++;
    return RAVEL_OK;
}

static ravel_status parse(parser *p) {
    size_t open[DEPTH];         /* indices of the containers that we are in */
    size_t newest[DEPTH] = {0}; /* and of the latest child of each */
    int depth = 0;
    const char *key = NULL;
    for (;;) { /* one value per turn */
        skip_space(p);
        if (p->at == p->end) return bad(p, "a value");
        ravel_status status;
        ravel__json_node *node = push(p->doc, key);
        if (!node) return ravel__no_memory(p->err, p->doc->room * 2 * sizeof *node, "a JSON document");
        key = NULL;
        if (depth) newest[depth - 1] = p->doc->count - 1;
        int opened = *p->at == '{' || *p->at == '[';
        if (opened) {
            if (depth == DEPTH) return bad(p, "at most 64 levels");
            node->kind = *p->at == '{' ? RAVEL__JSON_OBJECT : RAVEL__JSON_ARRAY;
            RAVEL_ASSERT(depth < DEPTH);
            open[depth++] = p->doc->count - 1;
            p->at++;
        } else {
            status = scalar(p, node);
            if (status) return status;
        }
        for (;;) { /* then whatever closes after it */
            if (depth == 0) {
                p->doc->nodes[0].last = 1;
                skip_space(p);
                return p->at == p->end ? RAVEL_OK : bad(p, "nothing after the value");
            }
            RAVEL_ASSERT(depth > 0 && depth <= DEPTH && open[depth - 1] < p->doc->count);
            ravel__json_node *in = &p->doc->nodes[open[depth - 1]];
            if (!opened) in->count++;
            char close = in->kind == RAVEL__JSON_OBJECT ? '}' : ']';
            skip_space(p);
            if (p->at < p->end && *p->at == close) {
                p->at++;
                if (in->count) p->doc->nodes[newest[depth - 1]].last = 1;
                RAVEL_ASSERT(!in->count || newest[depth - 1] > open[depth - 1]);
                in->skip = (uint32_t)(p->doc->count - open[depth - 1]);
                RAVEL_ASSERT((int64_t)in->skip > in->count); /* itself and at least one node per child */
                depth--;
                opened = 0; /* the container itself is now a finished value of the one around it */
                continue;
            }
            if (!opened) {
                if (p->at == p->end || *p->at != ',') return bad(p, close == '}' ? "',' or '}'" : "',' or ']'");
                p->at++;
            }
            if (close == '}') {
                status = member_key(p, &key);
                if (status) return status;
            }
            break;
        }
    }
}

static ravel_status prepare(ravel__json *doc, size_t bytes, ravel_error *err) {
    doc->count = 0;
    if (doc->pool_room >= bytes + 1) return RAVEL_OK;
    ravel__release(doc->allocator, doc->pool, doc->pool_room);
    doc->pool_room = 0;
    doc->pool = ravel__alloc(doc->allocator, bytes + 1);
    if (!doc->pool) return ravel__no_memory(err, bytes + 1, "the strings of a JSON document");
    doc->pool_room = bytes + 1;
    return RAVEL_OK;
}

ravel_status ravel__json_parse(const char *text, size_t bytes, const ravel_allocator *allocator, ravel__json **doc,
                               ravel_error *err) {
    if (bytes >= UINT32_MAX)
        return ravel_error_set(err, RAVEL_E_DATA, "JSON: %zu bytes are over the limit of 4 GiB", bytes);
    ravel__json *fresh = *doc ? *doc : ravel__calloc(allocator, 1, sizeof **doc);
    if (!fresh) return ravel__no_memory(err, sizeof **doc, "a JSON document");
    if (!*doc) fresh->allocator = allocator;
    ravel_status status = prepare(fresh, bytes, err);
    if (status == RAVEL_OK) {
        parser p = {text, text, text + bytes, fresh->pool, fresh, err};
        RAVEL_ASSERT(fresh->pool && fresh->pool_room > bytes && fresh->count == 0);
        status = parse(&p);
    }
    if (status == RAVEL_OK) {
        RAVEL_ASSERT(fresh->count >= 1 && fresh->nodes[0].skip == fresh->count);
        *doc = fresh;
    } else {
        fresh->count = 0;
        if (!*doc) ravel__json_free(fresh);
    }
    return status;
}

void ravel__json_free(ravel__json *doc) {
    RAVEL_ASSERT(!doc || doc->count <= doc->room);
    if (!doc) return;
    ravel__release(doc->allocator, doc->nodes, doc->room * sizeof *doc->nodes);
    ravel__release(doc->allocator, doc->pool, doc->pool_room);
    ravel__release(doc->allocator, doc, sizeof *doc);
}

/* ---- reading -------------------------------------------------------------------------------------------- */

const ravel__json_node *ravel__json_root(const ravel__json *doc) {
    return doc && doc->count ? doc->nodes : NULL;
}

const ravel__json_node *ravel__json_first(const ravel__json *doc, const ravel__json_node *node) {
    (void)doc;
    RAVEL_ASSERT(!doc || !node || (node >= doc->nodes && node < doc->nodes + doc->count));
    return node && node->kind >= RAVEL__JSON_ARRAY && node->count ? node + 1 : NULL;
}

const ravel__json_node *ravel__json_next(const ravel__json *doc, const ravel__json_node *node) {
    (void)doc;
    RAVEL_ASSERT(node->skip >= 1);
    RAVEL_ASSERT(!doc || (size_t)(node - doc->nodes) + node->skip <= doc->count);
    return node->last ? NULL : node + node->skip;
}

const ravel__json_node *ravel__json_get(const ravel__json *doc, const ravel__json_node *node, const char *key) {
    const ravel__json_node *found = NULL;
    if (!node || node->kind != RAVEL__JSON_OBJECT) return NULL;
    for (const ravel__json_node *n = ravel__json_first(doc, node); n; n = ravel__json_next(doc, n))
        if (strcmp(n->key, key) == 0) found = n;
    return found;
}

const ravel__json_node *ravel__json_path(const ravel__json *doc, const ravel__json_node *node, const char *path) {
    char key[256];
    while (node && *path) {
        size_t length = strcspn(path, ".");
        if (length >= sizeof key) return NULL;
        memcpy(key, path, length);
        key[length] = '\0';
        node = ravel__json_get(doc, node, key);
        path += path[length] ? length + 1 : length;
    }
    return node;
}

int ravel__json_integer(const ravel__json_node *node, int64_t *value) {
    if (!node) return 0;
    if (node->kind == RAVEL__JSON_REAL && node->as.real == floor(node->as.real) && fabs(node->as.real) <= 0x1p53) {
        *value = (int64_t)node->as.real;
        return 1;
    }
    if (node->kind != RAVEL__JSON_INTEGER) return 0;
    *value = node->as.integer;
    return 1;
}

int ravel__json_real(const ravel__json_node *node, double *value) {
    if (!node || (node->kind != RAVEL__JSON_REAL && node->kind != RAVEL__JSON_INTEGER)) return 0;
    *value = node->kind == RAVEL__JSON_REAL ? node->as.real : (double)node->as.integer;
    return 1;
}

int ravel__json_boolean(const ravel__json_node *node, int *value) {
    if (!node || (node->kind != RAVEL__JSON_TRUE && node->kind != RAVEL__JSON_FALSE)) return 0;
    *value = node->kind == RAVEL__JSON_TRUE;
    return 1;
}

int ravel__json_is(const ravel__json_node *node, const char *text) {
    return node && node->kind == RAVEL__JSON_STRING && node->bytes == strlen(text) &&
           memcmp(node->as.string, text, node->bytes) == 0;
}

/* ---- writing -------------------------------------------------------------------------------------------- */

typedef struct sink {
    char *out;
    size_t room, need;
} sink;

static void put(sink *s, const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++, s->need++)
        if (s->need + 1 < s->room) s->out[s->need] = text[i];
}

size_t ravel__json_quote(const char *text, size_t bytes, char *out, size_t out_bytes) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    sink s = {out, out_bytes, 0};
    const char *end = text + bytes;
    put(&s, "\"", 1);
    while (text < end) {
        unsigned char c = (unsigned char)*text;
        const char *simple = c ? strchr(from, c) : NULL;
        char escape[8];
        size_t n = utf8_length(text, end);
        if (simple) {
            escape[0] = '\\';
            escape[1] = to[simple - from];
            put(&s, escape, 2);
        } else if (c < 32) {
            int length = snprintf(escape, sizeof escape, "\\u%04x", c);
            put(&s, escape, (size_t)length);
        } else if (n == 0) {
            put(&s, "\xef\xbf\xbd", 3);
        } else {
            put(&s, text, n);
        }
        text += n ? n : 1;
    }
    put(&s, "\"", 1);
    RAVEL_ASSERT(text == end && s.need >= bytes + 2);
    if (out_bytes) out[s.need < out_bytes ? s.need : out_bytes - 1] = '\0';
    return s.need;
}
