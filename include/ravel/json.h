/* ravel/json.h: a small strict JSON reader and a string writer.
 *
 * The reader takes RFC 8259 text (UTF-8, nothing after the value, depth at most 64) and makes one flat array of nodes
 * in document order. Keys and strings are decoded into memory of the document and NUL-terminated, so the text may be
 * freed. Untrusted input is expected: it is fuzzed, does not recurse, and never takes more than a fixed multiple of the
 * text. A document can be used again for the next text (JSONL), without allocating once it is large enough.
 *
 *     ravel_json *doc = NULL;
 *     if (ravel_json_parse(text, bytes, NULL, &doc, &err)) ...
 *     const ravel_json_node *root = ravel_json_root(doc);
 *     const ravel_json_node *dim = ravel_json_get(doc, root, "head_dim");
 *     for (const ravel_json_node *x = ravel_json_first(doc, list); x; x = ravel_json_next(doc, x)) ...
 */
#ifndef RAVEL_JSON_H
#define RAVEL_JSON_H

#include <ravel/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ravel_json_kind {
    RAVEL_JSON_NULL,
    RAVEL_JSON_FALSE,
    RAVEL_JSON_TRUE,
    RAVEL_JSON_INTEGER, /* fits int64_t and was written without '.', 'e' */
    RAVEL_JSON_REAL,
    RAVEL_JSON_STRING,
    RAVEL_JSON_ARRAY,
    RAVEL_JSON_OBJECT
} ravel_json_kind;

typedef struct ravel_json ravel_json;

/* Read-only; step with the functions below. */
typedef struct ravel_json_node {
    int16_t kind;    /* ravel_json_kind */
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
} ravel_json_node;

/* *doc is NULL, or an earlier document whose memory is used again (its nodes become invalid, also on error; it stays
 * the caller's to free). E_DATA names the line and column and what was expected there. Texts below 4 GiB. */
RAVEL_API ravel_status ravel_json_parse(const char *text, size_t bytes, const ravel_allocator *allocator,
                                        ravel_json **doc, ravel_error *err);
RAVEL_API void ravel_json_free(ravel_json *doc);

RAVEL_API const ravel_json_node *ravel_json_root(const ravel_json *doc);
/* First and next item of an array or member of an object; NULL at the end. */
RAVEL_API const ravel_json_node *ravel_json_first(const ravel_json *doc, const ravel_json_node *node);
RAVEL_API const ravel_json_node *ravel_json_next(const ravel_json *doc, const ravel_json_node *node);
/* The member called `key` (the last one, where a key is repeated); NULL if none or not an object. */
RAVEL_API const ravel_json_node *ravel_json_get(const ravel_json *doc, const ravel_json_node *node, const char *key);
/* A path of members, "extra.usage.total"; NULL where a step is missing. */
RAVEL_API const ravel_json_node *ravel_json_path(const ravel_json *doc, const ravel_json_node *node, const char *path);

/* 1 and the value, or 0 when the node is NULL or of another kind. A REAL that is a whole number is an integer too;
 * any number is a real. */
RAVEL_API int ravel_json_integer(const ravel_json_node *node, int64_t *value);
RAVEL_API int ravel_json_real(const ravel_json_node *node, double *value);
RAVEL_API int ravel_json_boolean(const ravel_json_node *node, int *value);
/* Whether the node is the string `text`. */
RAVEL_API int ravel_json_is(const ravel_json_node *node, const char *text);

/* Writes `bytes` of text as a quoted JSON string. Invalid UTF-8 becomes U+FFFD. Returns the length needed without
 * the NUL, like snprintf; `out` may be NULL when `out_bytes` is 0. */
RAVEL_API size_t ravel_json_quote(const char *text, size_t bytes, char *out, size_t out_bytes);

#ifdef __cplusplus
}
#endif
#endif
