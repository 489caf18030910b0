/* The JSON reader on any bytes: every node is walked and every string read to its end; whatever was parsed can be
 * quoted and parsed again. */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static size_t walk(const ravel__json *doc, const ravel__json_node *node, int depth) {
    if (!node || depth > 64) abort();
    size_t sum = node->key ? strlen(node->key) : 0;
    if (node->kind == RAVEL__JSON_STRING) {
        if (node->as.string[node->bytes] != '\0') abort();
        size_t need = ravel__json_quote(node->as.string, node->bytes, NULL, 0);
        char *text = malloc(need + 1);
        if (!text || ravel__json_quote(node->as.string, node->bytes, text, need + 1) != need) abort();
        ravel__json *again = NULL;
        if (ravel__json_parse(text, need, NULL, &again, NULL) != RAVEL_OK) abort();
        const ravel__json_node *root = ravel__json_root(again);
        if (root->bytes != node->bytes || memcmp(root->as.string, node->as.string, node->bytes) != 0) abort();
        ravel__json_free(again);
        free(text);
    }
    int32_t count = 0;
    for (const ravel__json_node *n = ravel__json_first(doc, node); n; n = ravel__json_next(doc, n), count++)
        sum += walk(doc, n, depth + 1);
    if (node->kind >= RAVEL__JSON_ARRAY && count != node->count) abort();
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    ravel__json *doc = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel__json_parse((const char *)data, bytes, NULL, &doc, &err) == RAVEL_OK)
        walk(doc, ravel__json_root(doc), 0);
    else if (err.message[0] == '\0')
        abort();
    ravel__json_free(doc);
    return 0;
}
