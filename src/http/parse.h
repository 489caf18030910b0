/* HTTP/1.x heads and chunks as pure functions on bytes, for server and client; fuzzed (tests/fuzz/fuzz_http.c).
 *
 *     GET SP target SP HTTP/1.x CRLF *(name ":" value CRLF) CRLF          a lone LF ends a line too
 *     HTTP/1.x SP code SP reason CRLF *(name ":" value CRLF) CRLF */
#ifndef RAVEL_HTTP_PARSE_H
#define RAVEL_HTTP_PARSE_H

#include <stddef.h>
#include <stdint.h>

/* data[at, at + bytes) of a head. */
typedef struct ravel__http_span {
    uint32_t at, bytes;
} ravel__http_span;

typedef struct ravel__http_field {
    ravel__http_span name, value; /* the value without blanks around it */
} ravel__http_field;

enum { RAVEL__HTTP_FIELDS = 64 };

typedef struct ravel__http_head {
    ravel__http_span method, path, query; /* of a request */
    int32_t code;                         /* of a response */
    int32_t minor;                        /* 0 or 1 */
    int64_t length;                       /* Content-Length; -1: none */
    int32_t chunked, keep;                /* the body comes in chunks; the connection stays open */
    int32_t expects;                      /* "Expect: 100-continue" */
    int32_t count;
    ravel__http_field fields[RAVEL__HTTP_FIELDS];
} ravel__http_head;

/* Bytes of the head, its empty line included; 0: it is not whole. *seen: bytes that need not be looked at again; 0
 * first. */
size_t ravel__http_head_bytes(const char *data, size_t bytes, size_t *seen);
/* A whole head. 0, or the code to answer with: 400, 417, 431, 501, 505. */
int ravel__http_parse_request(const char *data, size_t bytes, ravel__http_head *head);
/* 0, or -1 where it is not HTTP/1.x. */
int ravel__http_parse_response(const char *data, size_t bytes, ravel__http_head *head);
/* A header by its name in any case; NULL: none. */
const ravel__http_field *ravel__http_find(const ravel__http_head *head, const char *data, const char *name);

/* Chunks, as they come. All zero at the beginning. */
typedef struct ravel__http_chunks {
    int32_t state;
    int32_t digits;   /* of the size so far; bytes of the trailer's line */
    uint64_t left;    /* of the chunk */
    uint64_t trailer; /* bytes of extensions and of the trailer, of the whole body */
} ravel__http_chunks;

/* Takes *used of data[bytes] and writes *made bytes to `out`, which may be `data`. 1: the body has ended; -1: it is
 * malformed; 0: it goes on. */
int ravel__http_unchunk(ravel__http_chunks *chunks, const char *data, size_t bytes, char *out, size_t *used,
                        size_t *made);

/* "Not Found" */
const char *ravel__http_reason(int code);

#endif
