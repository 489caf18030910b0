#include "http/parse.h"

#include "base/assert.h"

#include <string.h>
#include <strings.h>

static const struct {
    int code;
    const char *reason;
} reasons[] = {{100, "Continue"},
               {200, "OK"},
               {204, "No Content"},
               {302, "Found"},
               {400, "Bad Request"},
               {401, "Unauthorized"},
               {404, "Not Found"},
               {405, "Method Not Allowed"},
               {408, "Request Timeout"},
               {413, "Content Too Large"},
               {417, "Expectation Failed"},
               {429, "Too Many Requests"},
               {431, "Request Header Fields Too Large"},
               {500, "Internal Server Error"},
               {501, "Not Implemented"},
               {503, "Service Unavailable"},
               {505, "HTTP Version Not Supported"}};

const char *ravel__http_reason(int code) {
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].code == code) return reasons[i].reason;
    return "Error";
}

/* ---- lines ---------------------------------------------------------------------------------------------- */

size_t ravel__http_head_bytes(const char *data, size_t bytes, size_t *seen) {
    for (size_t i = *seen; i + 1 < bytes; i++) {
        if (data[i] != '\n') continue;
        if (data[i + 1] == '\n') return i + 2;
        if (data[i + 1] == '\r' && i + 2 < bytes && data[i + 2] == '\n') return i + 3;
    }
    *seen = bytes < 3 ? 0 : bytes - 3;
    return 0;
}

/* What a name may have (RFC 9110, token). */
static int is_token_byte(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int is_blank(char c) {
    return c == ' ' || c == '\t';
}

/* The next line without its end; *at moves after it. The head is whole, so there is one. */
static ravel__http_span next_line(const char *data, size_t bytes, size_t *at) {
    const char *end = memchr(data + *at, '\n', bytes - *at);
    RAVEL_ASSERT(end && *at < bytes);
    size_t stop = (size_t)(end - data);
    ravel__http_span line = {(uint32_t)*at, (uint32_t)(stop - *at)};
    if (line.bytes && data[stop - 1] == '\r') line.bytes--;
    *at = stop + 1;
    return line;
}

/* The bytes of a line up to the next space, and after it. */
static ravel__http_span next_word(const char *data, ravel__http_span *line) {
    const char *space = memchr(data + line->at, ' ', line->bytes);
    ravel__http_span word = *line;
    if (space) word.bytes = (uint32_t)(space - data) - line->at;
    uint32_t taken = word.bytes + (space != NULL);
    line->at += taken;
    line->bytes -= taken;
    return word;
}

static int is(const char *data, ravel__http_span s, const char *text) {
    return s.bytes == strlen(text) && memcmp(data + s.at, text, s.bytes) == 0;
}

static int same(const char *data, ravel__http_span s, const char *text) {
    return s.bytes == strlen(text) && strncasecmp(data + s.at, text, s.bytes) == 0;
}

/* Whether a list "a, b" has the word. */
static int lists(const char *data, ravel__http_span s, const char *word) {
    for (uint32_t i = 0, from = 0; i <= s.bytes; i++) {
        if (i < s.bytes && data[s.at + i] != ',') continue;
        ravel__http_span item = {s.at + from, i - from};
        while (item.bytes && is_blank(data[item.at])) item.at++, item.bytes--;
        while (item.bytes && is_blank(data[item.at + item.bytes - 1])) item.bytes--;
        if (same(data, item, word)) return 1;
        from = i + 1;
    }
    return 0;
}

/* ---- headers -------------------------------------------------------------------------------------------- */

static int parse_field(const char *data, ravel__http_span line, ravel__http_field *field) {
    uint32_t n = 0;
    while (n < line.bytes && is_token_byte(data[line.at + n])) n++;
    if (n == 0 || n == line.bytes || data[line.at + n] != ':') return 400; /* also a line that continues another */
    field->name = (ravel__http_span){line.at, n};
    ravel__http_span value = {line.at + n + 1, line.bytes - n - 1};
    while (value.bytes && is_blank(data[value.at])) value.at++, value.bytes--;
    while (value.bytes && is_blank(data[value.at + value.bytes - 1])) value.bytes--;
    for (uint32_t i = 0; i < value.bytes; i++) {
        unsigned char c = (unsigned char)data[value.at + i];
        if ((c < 32 && c != '\t') || c == 127) return 400;
    }
    field->value = value;
    return 0;
}

static int parse_length(const char *data, ravel__http_span s, int64_t *length) {
    int64_t value = 0;
    if (s.bytes == 0 || s.bytes > 15) return 400;
    for (uint32_t i = 0; i < s.bytes; i++) {
        char c = data[s.at + i];
        if (c < '0' || c > '9') return 400;
        value = value * 10 + (c - '0');
    }
    if (*length >= 0 && *length != value) return 400;
    *length = value;
    return 0;
}

/* What a header says about the message itself. */
static int apply_field(const char *data, const ravel__http_field *f, ravel__http_head *head) {
    if (same(data, f->name, "Content-Length")) return parse_length(data, f->value, &head->length);
    if (same(data, f->name, "Transfer-Encoding")) {
        if (head->chunked || !same(data, f->value, "chunked")) return 501;
        head->chunked = 1;
    } else if (same(data, f->name, "Connection")) {
        if (lists(data, f->value, "close")) head->keep = 0;
        if (head->minor == 0 && lists(data, f->value, "keep-alive")) head->keep = 1;
    } else if (same(data, f->name, "Expect")) {
        if (!same(data, f->value, "100-continue")) return 417;
        head->expects = 1;
    }
    return 0;
}

static int parse_fields(const char *data, size_t bytes, size_t at, ravel__http_head *head) {
    for (;;) {
        ravel__http_span line = next_line(data, bytes, &at);
        if (line.bytes == 0) break;
        if (head->count == RAVEL__HTTP_FIELDS) return 431;
        ravel__http_field *field = &head->fields[head->count];
        int code = parse_field(data, line, field);
        if (!code) code = apply_field(data, field, head);
        if (code) return code;
        head->count++;
    }
    RAVEL_ASSERT(at == bytes);
    return head->chunked && (head->length >= 0 || head->minor == 0) ? 400 : 0;
}

static int parse_version(const char *data, ravel__http_span s, ravel__http_head *head) {
    if (s.bytes != 8 || memcmp(data + s.at, "HTTP/", 5) != 0) return 400;
    if (!is(data, s, "HTTP/1.1") && !is(data, s, "HTTP/1.0")) return 505;
    head->keep = head->minor = data[s.at + 7] - '0';
    return 0;
}

static int is_method(const char *data, ravel__http_span s) {
    for (uint32_t i = 0; i < s.bytes; i++)
        if (data[s.at + i] < 'A' || data[s.at + i] > 'Z') return 0;
    return s.bytes > 0 && s.bytes <= 16;
}

static int is_target(const char *data, ravel__http_span s) {
    for (uint32_t i = 0; i < s.bytes; i++)
        if ((unsigned char)data[s.at + i] <= 32 || (unsigned char)data[s.at + i] >= 127) return 0;
    return s.bytes > 0 && data[s.at] == '/';
}

int ravel__http_parse_request(const char *data, size_t bytes, ravel__http_head *head) {
    size_t at = 0;
    *head = (ravel__http_head){.length = -1};
    ravel__http_span line = next_line(data, bytes, &at);
    ravel__http_span method = next_word(data, &line), target = next_word(data, &line);
    if (!is_method(data, method) || !is_target(data, target)) return 400;
    int code = parse_version(data, line, head);
    if (code) return code;
    const char *mark = memchr(data + target.at, '?', target.bytes);
    head->method = method;
    head->path = head->query = target;
    head->query.at = target.at + target.bytes;
    head->query.bytes = 0;
    if (mark) {
        head->path.bytes = (uint32_t)(mark - data) - target.at;
        head->query.at = target.at + head->path.bytes + 1;
        head->query.bytes = target.bytes - head->path.bytes - 1;
    }
    return parse_fields(data, bytes, at, head);
}

int ravel__http_parse_response(const char *data, size_t bytes, ravel__http_head *head) {
    size_t at = 0;
    *head = (ravel__http_head){.length = -1};
    ravel__http_span line = next_line(data, bytes, &at), version = next_word(data, &line);
    ravel__http_span code = next_word(data, &line);
    int64_t number = -1;
    if (parse_version(data, version, head) || code.bytes != 3 || parse_length(data, code, &number)) return -1;
    if (number < 100) return -1;
    head->code = (int32_t)number;
    return parse_fields(data, bytes, at, head) ? -1 : 0;
}

const ravel__http_field *ravel__http_find(const ravel__http_head *head, const char *data, const char *name) {
    for (int32_t i = 0; i < head->count; i++)
        if (same(data, head->fields[i].name, name)) return &head->fields[i];
    return NULL;
}

/* ---- chunks --------------------------------------------------------------------------------------------- */

/*     SIZE *(hex) -> EXTENSION ";..." -> SIZE_END CR -> LF -> DATA -> CR -> LF -> SIZE ...   a size of 0: TRAILER lines up to an empty one */
enum { SIZE, EXTENSION, SIZE_END, DATA, DATA_END, TRAILER, DONE, TRAILER_MOST = 8192, SIZE_DIGITS = 12 };

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

static int size_ended(ravel__http_chunks *c) {
    if (c->digits == 0) return -1;
    c->state = c->left ? DATA : TRAILER;
    c->digits = 0;
    return 0;
}

static int take_size(ravel__http_chunks *c, char byte) {
    int digit = hex(byte);
    if (digit >= 0) {
        c->left = c->left * 16 + (uint64_t)digit;
        return ++c->digits > SIZE_DIGITS ? -1 : 0;
    }
    if (byte == '\n') return size_ended(c);
    if (byte != '\r' && byte != ';' && !is_blank(byte)) return -1;
    c->state = byte == '\r' ? SIZE_END : EXTENSION;
    return 0;
}

static int take_control(ravel__http_chunks *c, char byte) {
    if (c->state == SIZE) return take_size(c, byte);
    if (c->state == EXTENSION) {
        if (byte == '\n') return size_ended(c); /* not counted: a body may have any number of chunks */
        if (byte == '\r') c->state = SIZE_END;
        return ++c->trailer > TRAILER_MOST ? -1 : 0;
    }
    if (c->state == SIZE_END) return byte == '\n' ? size_ended(c) : -1; /* others may take a lone CR for an end */
    if (c->state == DATA_END) {
        if (byte == '\r') return c->digits++ ? -1 : 0;
        if (byte != '\n') return -1;
        c->state = SIZE;
        c->digits = 0;
        return 0;
    }
    RAVEL_ASSERT(c->state == TRAILER);
    if (++c->trailer > TRAILER_MOST) return -1;
    if (byte == '\n') {
        if (c->digits == 0) c->state = DONE;
        c->digits = 0;
    } else if (byte != '\r') {
        c->digits = 1;
    }
    return 0;
}

int ravel__http_unchunk(ravel__http_chunks *c, const char *data, size_t bytes, char *out, size_t *used, size_t *made) {
    size_t at = 0;
    *made = 0;
    while (at < bytes && c->state != DONE) {
        if (c->state != DATA) {
            if (take_control(c, data[at++])) return -1;
            continue;
        }
        size_t n = bytes - at < c->left ? bytes - at : (size_t)c->left;
        memmove(out + *made, data + at, n);
        at += n;
        *made += n;
        c->left -= n;
        if (c->left == 0) c->state = DATA_END;
    }
    *used = at;
    return c->state == DONE;
}
