/* Any bytes as text, through a tokenizer with NFC, added tokens and the Llama 3 pattern: the ids are of the vocabulary,
 * where tokens begin never goes down, and a stream decodes to the same text as one call. */
#include <ravel/tokenizer.h>

#include "text/decoder.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char json[] =
    "{\"added_tokens\":[{\"id\":5,\"content\":\"<s>\",\"special\":true,\"normalized\":false,\"lstrip\":true},"
    "{\"id\":6,\"content\":\"e\\u0301x\",\"normalized\":true,\"rstrip\":true}],\"normalizer\":{\"type\":\"NFC\"},"
    "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\","
    "\"pattern\":{\"Regex\":\"(?i:'s|'ll)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| ?[^\\\\s\\\\p{L}\\\\p{N}]+"
    "[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,"
    "\"use_regex\":false}]},\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"a\":1,\"b\":2,\"ab\":3,"
    "\"aba\":4,\"\\u00c3\":7,\"\\u00a9\":8,\"\\u00c3\\u00a9\":9,\"\\u00f0\":10},"
    "\"merges\":[\"a b\",\"ab a\",\"\\u00c3 \\u00a9\"]}}";

static void decode(const ravel_tokenizer *t, const ravel_encoding *e) {
    size_t need = ravel_tokenizer_decode(t, e->ids, e->count, 0, NULL, 0), used = 0, got;
    char *whole = malloc(need + 1);
    ravel__decoder *d = NULL;
    const char *part;
    (void)ravel_tokenizer_decode(t, e->ids, e->count, 0, whole, need + 1);
    if (ravel__decoder_create(t, 0, NULL, &d, NULL)) abort();
    for (int64_t i = 0; i <= e->count; i++) {
        if (i < e->count)
            ravel__decoder_push(d, e->ids[i], &part, &got);
        else
            ravel__decoder_flush(d, &part, &got);
        if (used + got > need || memcmp(whole + used, part, got) != 0) abort();
        used += got;
    }
    if (used != need) abort();
    ravel__decoder_free(d);
    free(whole);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static ravel_tokenizer *t;
    static ravel_encoder *encoder;
    const ravel_encoding *e;
    ravel_error err = RAVEL_ERROR_INIT;
    if (!t && (ravel__tokenizer_parse(json, sizeof json - 1, NULL, 0, NULL, &t, &err) ||
               ravel_encoder_create(t, NULL, &encoder, &err))) {
        if (err.status == RAVEL_E_UNSUPPORTED) return 0; /* no PCRE2 */
        abort();
    }
    if (bytes < 1) return 0;
    ravel_status status =
        ravel_encoder_encode(encoder, (const char *)data + 1, bytes - 1, data[0] & RAVEL_ENCODE_PLAIN, &e, &err);
    if (status != RAVEL_OK && err.message[0] == '\0') abort();
    if (status != RAVEL_OK) return 0;
    for (int64_t i = 0; i < e->count; i++)
        if (e->ids[i] < 0 || e->ids[i] >= ravel_tokenizer_size(t) || e->begins[i] > bytes - 1 ||
            (i && e->begins[i] < e->begins[i - 1]))
            abort();
    decode(t, e);
    return 0;
}
