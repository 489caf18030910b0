/* Any JSON as a row of a data set, written and tokenized in the format that the first byte names: what comes out is
 * tokens of the vocabulary (except "input_ids", which are taken as they are) and a mask of 0 and 1, or a sentence. */
#include "text/chat.h"

#include "base/json.h"
#include "text/decoder.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char json[] =
    "{\"added_tokens\":[{\"id\":4,\"content\":\"<|im_start|>\",\"special\":true},"
    "{\"id\":5,\"content\":\"<|im_end|>\",\"special\":true},{\"id\":6,\"content\":\"<s>\",\"special\":true},"
    "{\"id\":7,\"content\":\"</s>\",\"special\":true}],"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
    "\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"u\":0,\"a\":1,\"b\":2,\"ab\":3},\"merges\":[\"a b\"]}}";
static const char config[] = "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}";

enum { FORMATS = 64 };

static ravel_tokenizer *tokenizer;
static ravel_rows *rows[FORMATS]; /* the last one without a format */
static int count;

static int open_all(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status =
        ravel__tokenizer_parse(json, sizeof json - 1, config, sizeof config - 1, NULL, &tokenizer, &err);
    if (status == RAVEL_E_UNSUPPORTED) return 0; /* no PCRE2 */
    if (status) abort();
    for (ravel_chat_format *format = NULL;; count++, format = NULL) {
        const char *name = count + 1 < FORMATS ? ravel_chat_format_at(count) : NULL;
        if (name && ravel_chat_format_open(name, NULL, &format, &err)) abort();
        ravel_rows_options options;
        ravel_rows_options_default(&options);
        options.tokenizer = tokenizer;
        options.format = format;
        options.train_on = count % 3;
        if (ravel_rows_create(&options, &rows[count], &err)) abort();
        if (!format) break;
    }
    count++;
    return 1;
}

static void check_part(const ravel_row_part *part, int64_t vocab) {
    for (int64_t i = 0; i < part->count; i++)
        if (part->loss_mask[i] > 1 || part->tokens[i] < 0 || part->tokens[i] >= vocab) abort();
}

typedef ravel_status encode_fn(ravel_rows *rows, const ravel__json *doc, const ravel__json_node *object,
                               const ravel_row **row, ravel_error *err);

static void encode(encode_fn *how, ravel_rows *with, const ravel__json *doc) {
    const ravel_row *row = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    if (how(with, doc, ravel__json_root(doc), &row, &err)) {
        if (err.message[0] == '\0') abort();
        return;
    }
    int64_t vocab =
        ravel__json_get(doc, ravel__json_root(doc), "input_ids") ? INT64_C(1) << 31 : ravel_tokenizer_size(tokenizer);
    check_part(&row->parts[0], vocab);
    if (row->pair) check_part(&row->parts[1], vocab);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    ravel__json *doc = NULL;
    if (!tokenizer && !open_all()) return 0;
    if (bytes < 1 || ravel__json_parse((const char *)data + 1, bytes - 1, NULL, &doc, NULL)) return 0;
    ravel_rows *with = rows[data[0] % count];
    encode(ravel__rows_encode, with, doc);
    encode(ravel__rows_prompt, with, doc);
    ravel__json_free(doc);
    return 0;
}
