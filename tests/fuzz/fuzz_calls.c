/* An answer of a model in which calls of tools are looked for: the first byte says the form and where it is cut. However it is cut, what
 * is found is the same. */
#include "train/rl/calls.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void must(int condition) {
    if (!condition) abort();
}

/* In one piece, or cut there. */
static train_calls read_answer(const train_calls_options *options, const char *text, size_t bytes, size_t cut) {
    train_calls c = {0};
    if (cut) train_calls_read(&c, options, text, cut < bytes ? cut : bytes, 0);
    train_calls_read(&c, options, text, bytes, 1);
    must(c.at == bytes);
    for (int64_t i = 0; i < c.count; i++) {
        const train_call *x = &c.all[i];
        ravel__json *doc = NULL;
        must(x->name_bytes > 0 && x->arguments + x->arguments_bytes <= c.parts.used);
        must(ravel__json_parse(c.parts.data + x->arguments, x->arguments_bytes, NULL, &doc, NULL) == RAVEL_OK);
        must(ravel__json_root(doc)->kind == RAVEL__JSON_OBJECT);
        ravel__json_free(doc);
    }
    return c;
}

static int same(const train_out *a, const train_out *b) {
    return a->used == b->used && (!a->used || memcmp(a->data, b->data, a->used) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char tools[] =
        "[{\"function\": {\"name\": \"f\", \"parameters\": {\"properties\": {\"n\": {\"type\": \"integer\"}}}}}]";
    if (bytes == 0) return 0;
    ravel__json *doc = NULL;
    must(ravel__json_parse(tools, sizeof tools - 1, NULL, &doc, NULL) == RAVEL_OK);
    const train_calls_options options = {data[0] & 1 ? TRAIN_CALLS_TAGGED : TRAIN_CALLS_BARE, 3, doc,
                                         ravel__json_root(doc)};
    const char *text = (const char *)data + 1;
    train_calls whole = read_answer(&options, text, bytes - 1, 0),
                cut = read_answer(&options, text, bytes - 1, data[0] >> 1);
    must(whole.count == cut.count && same(&whole.text, &cut.text) && same(&whole.parts, &cut.parts));
    train_calls_free(&whole);
    train_calls_free(&cut);
    ravel__json_free(doc);
    return 0;
}
