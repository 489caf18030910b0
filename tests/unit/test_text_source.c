/* A JSON-lines source with a tokenizer: conversations and pairs become samples. */
#include "tests/unit/check.h"

#include <ravel/chat.h>
#include <ravel/source.h>

#include <stdlib.h>
#include <unistd.h>

#define FOLDER "tests/golden/text/qwen"

static const char data[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Hello!\"}]}\n"
    "{\"text\": \"plain\"}\n"
    "{\"prompt\": \"2+2=\", \"chosen\": \"4\", \"rejected\": \"five\"}\n"
    "{\"input_ids\": [1, 2, 3]}\n";

typedef struct opened {
    char path[64];
    ravel_source *source;
    ravel_reader *reader;
    const ravel_samples *samples;
} opened;

static ravel_status open_text(opened *o, const char *text, ravel_source_options *options, ravel_error *err) {
    int64_t rows[16];
    memset(o, 0, sizeof *o);
    (void)snprintf(o->path, sizeof o->path, "/tmp/ravel-text-XXXXXX");
    int fd = mkstemp(o->path);
    if (fd < 0 || write(fd, text, strlen(text)) < 0) return RAVEL_E_IO;
    (void)close(fd);
    options->data = o->path;
    ravel_status status = ravel_source_open(options, &o->source, err);
    if (!status) status = ravel_reader_create(o->source, NULL, NULL, &o->reader, err);
    for (int64_t i = 0; i < 16; i++) rows[i] = i;
    return status ? status : ravel_reader_read(o->reader, rows, ravel_source_count(o->source), &o->samples, err);
}

static void close_text(opened *o) {
    ravel_reader_free(o->reader);
    ravel_source_free(o->source);
    (void)unlink(o->path);
}

/* The sample's text with what is learnt in [ ]. */
static const char *show(const ravel_samples *s, int64_t i, const ravel_tokenizer *t, char *out) {
    const int32_t *ids = s->ragged.fields[0].data;
    const uint8_t *mask = s->ragged.fields[1].data;
    size_t used = 0, bytes;
    for (int64_t k = s->ragged.offsets[i]; k < s->ragged.offsets[i + 1]; k++) {
        int before = k > s->ragged.offsets[i] && mask[k - 1];
        if (mask[k] != before) out[used++] = mask[k] ? '[' : ']';
        const char *text = ravel_tokenizer_bytes(t, ids[k], &bytes);
        memcpy(out + used, text, bytes);
        used += bytes;
        if (mask[k] && k + 1 == s->ragged.offsets[i + 1]) out[used++] = ']';
    }
    out[used] = '\0';
    return out;
}

static ravel_source_options with_tokenizer(void) {
    ravel_source_options options;
    ravel_source_options_default(&options);
    options.tokenizer = FOLDER;
    return options;
}

TEST(source_with_a_tokenizer_reads_conversations_texts_and_pairs) {
    ravel_source_options options = with_tokenizer();
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_tokenizer *t = NULL;
    opened o;
    char text[512];
    if (ravel_tokenizer_open(FOLDER, NULL, &t, &err)) {
        if (strstr(err.message, "pcre2")) return check_skip("PCRE2 is not installed (Debian: libpcre2-dev)");
        return check_fail(__FILE__, __LINE__, "%s", err.message);
    }
    CHECK_OK(open_text(&o, data, &options, &err), &err);
    CHECK_EQ(o.samples->ragged.count, 5);
    CHECK_STR(show(o.samples, 0, t, text),
              "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n[Hello!<|im_end|>]\n");
    CHECK_STR(show(o.samples, 1, t, text), "[plain<|im_end|>]");
    CHECK_STR(show(o.samples, 2, t, text), "2+2=[4<|im_end|>]");
    CHECK_STR(show(o.samples, 3, t, text), "2+2=[five<|im_end|>]");
    CHECK(o.samples->rows[2] == 2 && o.samples->parts[2] == 0 && o.samples->rows[3] == 2 && o.samples->parts[3] == 1);
    close_text(&o);
    ravel_tokenizer_free(t);
}

TEST(source_with_a_tokenizer_says_what_it_cannot_do) {
    static const struct {
        const char *text, *format, *says;
        int64_t vocab;
        int32_t eos;
        ravel_status status;
    } cases[] = {
        {data, "no-such", "no chat format \"no-such\"", 0, -1, RAVEL_E_ARGUMENT},
        {data, NULL, "tokenizer's", 0, 5, RAVEL_E_ARGUMENT},
        {data, NULL, "the model has only 4", 4, -1, RAVEL_E_DATA},
        {"{\"x\": 1}\n", NULL, "this one has \"x\"", 0, -1, RAVEL_E_DATA},
        {"{\"messages\": [{\"role\": \"tool\", \"content\": \"\"}]}\n", NULL, "ravel.prepare", 0, -1,
         RAVEL_E_UNSUPPORTED},
    };
    ravel_tokenizer *t = NULL;
    ravel_error none = RAVEL_ERROR_INIT;
    if (ravel_tokenizer_open(FOLDER, NULL, &t, &none))
        return check_skip("PCRE2 is not installed (Debian: libpcre2-dev)");
    ravel_tokenizer_free(t);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_source_options options = with_tokenizer();
        ravel_error err = RAVEL_ERROR_INIT;
        opened o;
        options.chat_format = cases[i].format;
        options.vocab = cases[i].vocab;
        options.eos = cases[i].eos;
        CHECK_EQ(open_text(&o, cases[i].text, &options, &err), cases[i].status);
        CHECK_HAS(err.message, cases[i].says);
        close_text(&o);
    }
}
