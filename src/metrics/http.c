/* HTTP/1.x requests, as far as a metrics endpoint needs them: the request line is parsed, headers are skipped, a body
 * is not read (the connection is closed after the answer).
 *
 *     GET SP target SP HTTP/1.x CRLF *(header CRLF) CRLF          a lone LF ends a line too */
#include "metrics/http.h"

#include "base/assert.h"

#include <string.h>

static const struct {
    int code;
    const char *reason;
} reasons[] = {{200, "OK"},
               {204, "No Content"},
               {302, "Found"},
               {400, "Bad Request"},
               {404, "Not Found"},
               {405, "Method Not Allowed"},
               {408, "Request Timeout"},
               {431, "Request Header Fields Too Large"},
               {505, "HTTP Version Not Supported"}};

const char *ravel__http_reason(int code) {
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].code == code) return reasons[i].reason;
    return "Error";
}

/* Whether an empty line has come. */
static int is_whole(const char *data, size_t bytes) {
    for (size_t i = 0; i + 1 < bytes; i++)
        if (data[i] == '\n' && (data[i + 1] == '\n' || (data[i + 1] == '\r' && i + 2 < bytes && data[i + 2] == '\n')))
            return 1;
    return 0;
}

typedef struct piece {
    const char *at;
    size_t bytes;
} piece;

static int is(piece p, const char *text) {
    return p.bytes == strlen(text) && memcmp(p.at, text, p.bytes) == 0;
}

/* The bytes up to the next space or the end, and past it. */
static piece next_word(const char **at, const char *end) {
    RAVEL_ASSERT(*at <= end);
    const char *space = memchr(*at, ' ', (size_t)(end - *at));
    piece word = {*at, (size_t)((space ? space : end) - *at)};
    *at = space ? space + 1 : end;
    return word;
}

static int is_token(piece p) {
    for (size_t i = 0; i < p.bytes; i++)
        if (p.at[i] < 'A' || p.at[i] > 'Z') return 0;
    return p.bytes > 0 && p.bytes <= 16;
}

static int is_target(piece p) {
    for (size_t i = 0; i < p.bytes; i++)
        if ((unsigned char)p.at[i] <= 32 || (unsigned char)p.at[i] >= 127) return 0;
    return p.bytes > 0 && p.at[0] == '/';
}

static int answer_path(piece target) {
    RAVEL_ASSERT(target.bytes > 0 && target.at[0] == '/');
    const char *query = memchr(target.at, '?', target.bytes);
    if (query) target.bytes = (size_t)(query - target.at);
    return is(target, "/metrics") ? 200 : is(target, "/healthz") ? 204 : is(target, "/") ? 302 : 404;
}

int ravel__http_answer(const char *data, size_t bytes, int *head_only) {
    *head_only = 0;
    if (!is_whole(data, bytes)) return bytes >= RAVEL__HTTP_REQUEST_BYTES ? 431 : 0;
    const char *end = memchr(data, '\n', bytes), *at = data;
    RAVEL_ASSERT(end); /* a whole request has a line end */
    if (end > data && end[-1] == '\r') end--;
    piece method = next_word(&at, end), target = next_word(&at, end), version = {at, (size_t)(end - at)};
    if (!is_token(method) || !is_target(target) || version.bytes != 8 || memcmp(version.at, "HTTP/", 5) != 0)
        return 400;
    if (!is(version, "HTTP/1.1") && !is(version, "HTTP/1.0")) return 505;
    RAVEL_ASSERT(method.at + method.bytes < target.at && target.at + target.bytes < version.at);
    *head_only = is(method, "HEAD");
    return *head_only || is(method, "GET") ? answer_path(target) : 405;
}
