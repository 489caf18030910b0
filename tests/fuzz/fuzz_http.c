/* HTTP on any bytes: a head is found at the same place when bytes come one by one; what the parser accepts lies inside the head;
 * chunks give the same body in any pieces. */
#include "http/parse.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void must(int condition) {
    if (!condition) abort();
}

static void inside(ravel__http_span s, size_t bytes) {
    must(s.at <= bytes && s.bytes <= bytes - s.at);
}

static size_t find_head(const char *data, size_t bytes) {
    size_t whole_seen = 0, seen = 0, early = 0;
    size_t whole = ravel__http_head_bytes(data, bytes, &whole_seen);
    for (size_t n = 0; n <= bytes && !early; n++) {
        char *exact = malloc(n ? n : 1);
        must(exact != NULL);
        memcpy(exact, data, n);
        early = ravel__http_head_bytes(exact, n, &seen);
        free(exact);
    }
    must(early == whole && whole <= bytes);
    return whole;
}

static void parse_head(const char *data, size_t head) {
    static const int codes[] = {0, 400, 417, 431, 501, 505};
    ravel__http_head h;
    char *exact = malloc(head);
    int known = 0;
    must(exact != NULL);
    memcpy(exact, data, head);
    int code = ravel__http_parse_request(exact, head, &h);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) known |= code == codes[i];
    must(known);
    if (code == 0) {
        inside(h.method, head);
        inside(h.path, head);
        inside(h.query, head);
        must(h.count >= 0 && h.count <= RAVEL__HTTP_FIELDS && !(h.chunked && h.length >= 0));
        for (int32_t i = 0; i < h.count; i++) {
            inside(h.fields[i].name, head);
            inside(h.fields[i].value, head - 1); /* a NUL after it is inside too */
        }
    }
    if (ravel__http_parse_response(exact, head, &h) == 0) must(h.code >= 100 && h.code <= 999);
    free(exact);
}

static void unchunk(const char *data, size_t bytes, size_t piece) {
    ravel__http_chunks a = {0}, b = {0};
    char *whole = malloc(bytes + 1), *parts = malloc(bytes + 1);
    size_t used = 0, made = 0, at = 0, total = 0;
    must(whole && parts);
    int first = ravel__http_unchunk(&a, data, bytes, whole, &used, &made), state = 0;
    while (state == 0 && at < bytes) {
        size_t n = bytes - at < piece ? bytes - at : piece, took = 0, gave = 0;
        state = ravel__http_unchunk(&b, data + at, n, parts + total, &took, &gave);
        if (state < 0) break;
        must(took <= n && gave <= took && (state == 1 || took == n));
        at += took;
        total += gave;
    }
    must(first == state);
    if (first >= 0) must(used == at && made == total && memcmp(whole, parts, made) == 0);
    free(whole);
    free(parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    if (bytes > 4096) bytes = 4096;
    const char *text = (const char *)data;
    size_t head = find_head(text, bytes);
    if (head) parse_head(text, head);
    unchunk(text + head, bytes - head, 1);
    unchunk(text + head, bytes - head, 7);
    return 0;
}
