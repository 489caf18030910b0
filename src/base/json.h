/* A small strict JSON reader and a string writer.
 *
 * The reader takes RFC 8259 text (UTF-8, nothing after the value, depth at most 64) and makes one flat array of nodes
 * in document order. Keys and strings are decoded into memory of the document and NUL-terminated, so the text may be
 * freed. Untrusted input is expected: it is fuzzed, does not recurse, and never takes more than a fixed multiple of the
 * text. A document can be used again for the next text (JSONL), without allocating once it is large enough.
 *
 *     ravel__json *doc = NULL;
 *     if (ravel__json_parse(text, bytes, NULL, &doc, &err)) ...
 *     const ravel__json_node *root = ravel__json_root(doc);
 *     const ravel__json_node *dim = ravel__json_get(doc, root, "head_dim");
 *     for (const ravel__json_node *x = ravel__json_first(doc, list); x; x = ravel__json_next(doc, x)) ...
 */
#ifndef RAVEL_BASE_JSON_H
#define RAVEL_BASE_JSON_H

#include <ravel/base.h>

typedef enum ravel__json_kind {
    RAVEL__JSON_NULL,
    RAVEL__JSON_FALSE,
    RAVEL__JSON_TRUE,
    RAVEL__JSON_INTEGER, /* fits int64_t and was written without '.', 'e' */
    RAVEL__JSON_REAL,
    RAVEL__JSON_STRING,
    RAVEL__JSON_ARRAY,
    RAVEL__JSON_OBJECT
} ravel__json_kind;

typedef struct ravel__json ravel__json;

/* Read-only; step with the functions below. */
typedef struct ravel__json_node {
    int16_t kind;    /* ravel__json_kind */
    int16_t last;    /* of its array or object */
    int32_t count;   /* members of an object, items of an array */
    uint32_t skip;   /* nodes to the next sibling */
    uint32_t bytes;  /* of the string */
    const char *key; /* member name, NUL-terminated, or NULL outside objects */
    union {
        int64_t integer;
        double real;
        const char *string; /* decoded UTF-8, `bytes` long, NUL-terminated; it may also hold NULs */
    } as;
} ravel__json_node;

/* *doc is NULL, or an earlier document whose memory is used again (its nodes become invalid, also on error; it stays
 * the caller's to free). E_DATA names the line and column and what was expected there. Texts below 4 GiB. */
ravel_status ravel__json_parse(const char *text, size_t bytes, const ravel_allocator *allocator, ravel__json **doc,
                               ravel_error *err);
void ravel__json_free(ravel__json *doc);

const ravel__json_node *ravel__json_root(const ravel__json *doc);
/* First and next item of an array or member of an object; NULL at the end. */
const ravel__json_node *ravel__json_first(const ravel__json *doc, const ravel__json_node *node);
const ravel__json_node *ravel__json_next(const ravel__json *doc, const ravel__json_node *node);
/* The member called `key` (the last one, where a key is repeated); NULL if none or not an object. */
const ravel__json_node *ravel__json_get(const ravel__json *doc, const ravel__json_node *node, const char *key);
/* A path of members, "extra.usage.total"; NULL if a step is missing. */
const ravel__json_node *ravel__json_path(const ravel__json *doc, const ravel__json_node *node, const char *path);

/* 1 and the value, or 0 when the node is NULL or of another kind. A REAL that is a whole number is an integer too;
 * any number is a real. */
int ravel__json_integer(const ravel__json_node *node, int64_t *value);
int ravel__json_real(const ravel__json_node *node, double *value);
int ravel__json_boolean(const ravel__json_node *node, int *value);
/* Whether the node is the string `text`. */
int ravel__json_is(const ravel__json_node *node, const char *text);

/* Writes `bytes` of text as a quoted JSON string. Invalid UTF-8 becomes U+FFFD. Returns the length needed without
 * the NUL, like snprintf; `out` may be NULL when `out_bytes` is 0. */
size_t ravel__json_quote(const char *text, size_t bytes, char *out, size_t out_bytes);

#endif
