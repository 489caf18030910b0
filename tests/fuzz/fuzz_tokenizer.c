/* A tokenizer.json, a tokenizer.model, a tekken.json or a file of ranks of any bytes: what is taken encodes and decodes a text without harm, what is refused says why. */
#include <ravel/tokenizer.h>

#include "text/decoder.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char text[] =
    "Hello <|a|>  world 12345 e\xcc\x81 \xf0\xb1\x8d\x90\n\n'll \xef\xac\x81<sep>\r\n\xe2\x96\x81x ";

static void use(const ravel_tokenizer *t) {
    ravel_encoder *encoder = NULL;
    const ravel_encoding *e;
    char out[512];
    if (ravel_encoder_create(t, NULL, &encoder, NULL)) return;
    if (ravel_encoder_encode(encoder, text, sizeof text - 1, RAVEL_ENCODE_TEMPLATE, &e, NULL) == RAVEL_OK) {
        for (int64_t i = 0; i < e->count; i++)
            if (e->ids[i] < 0 || e->ids[i] >= ravel_tokenizer_size(t) || e->begins[i] > sizeof text - 1 ||
                (i && e->begins[i] < e->begins[i - 1]))
                abort();
        (void)ravel_tokenizer_decode(t, e->ids, e->count, 0, out, sizeof out);
    }
    ravel_encoder_free(encoder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    ravel_tokenizer *t = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    const char *json = (const char *)data, *split = bytes && *json != '\n' ? memchr(json, '\0', bytes) : NULL;
    size_t first = split ? (size_t)(split - json) : bytes; /* after a NUL: tokenizer_config.json */
    ravel_status status =
        ravel__tokenizer_parse(json, first, split ? split + 1 : NULL, split ? bytes - first - 1 : 0, NULL, &t, &err);
    if (status == RAVEL_OK) use(t);
    if (status != RAVEL_OK && err.message[0] == '\0') abort();
    ravel_tokenizer_free(t);
    return 0;
}
