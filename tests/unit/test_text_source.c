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
        {data, "no-such", "no chat format \"no-such\", and no file", 0, -1, RAVEL_E_ARGUMENT},
        {data, NULL, "tokenizer's", 0, 5, RAVEL_E_ARGUMENT},
        {data, NULL, "the model has only 4", 4, -1, RAVEL_E_DATA},
        {"{\"x\": 1}\n", NULL, "this one has \"x\"", 0, -1, RAVEL_E_DATA},
        {"{\"messages\": [{\"role\": \"tool\", \"content\": \"\"}]}\n", NULL, "no answer", 0, -1, RAVEL_E_DATA},
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

/* Token ids of a sample, those that are learnt with a dot. */
static const char *show_ids(const ravel_samples *s, int64_t i, char *out) {
    const int32_t *ids = s->ragged.fields[0].data;
    const uint8_t *mask = s->ragged.fields[1].data;
    char *at = out;
    *at = '\0';
    for (int64_t k = s->ragged.offsets[i]; k < s->ragged.offsets[i + 1]; k++)
        at += sprintf(at, mask[k] ? "%d. " : "%d ", ids[k]);
    return out;
}

/* A pair of token ids, with and without a prompt, with and without a tokenizer. */
TEST(source_reads_pairs_of_token_ids) {
    static const char text[] = "{\"prompt\": [7, 8], \"chosen\": [1, 2, 3], \"rejected\": [4]}\n"
                               "{\"chosen\": [5], \"rejected\": [6, 9]}\n";
    static const char *const want[] = {"7 8 1. 2. 3. ", "7 8 4. ", "5. ", "6. 9. "};
    static const struct {
        const char *row, *says;
    } bad[] = {{"{\"prompt\": \"x\", \"chosen\": [1], \"rejected\": [2]}\n", "\"prompt\" must be a list of token ids"},
               {"{\"chosen\": [1, 10], \"rejected\": [2]}\n", "\"chosen\"[1] must be a token id from 0 to 9"},
               {"{\"prompt\": [1], \"chosen\": [1], \"rejected\": [2, -1]}\n", "\"rejected\"[1] must be a token id"}};
    char line[128];
    ravel_error err = RAVEL_ERROR_INIT;
    opened o;
    ravel_source_options options;
    ravel_source_options_default(&options);
    options.vocab = 10;
    CHECK_OK(open_text(&o, text, &options, &err), &err);
    CHECK_EQ(o.samples->ragged.count, 4);
    for (int64_t i = 0; i < 4; i++) CHECK_STR(show_ids(o.samples, i, line), want[i]);
    close_text(&o);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ravel_error_clear(&err);
        CHECK_EQ(open_text(&o, bad[i].row, &options, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, bad[i].says);
        close_text(&o);
    }
}

static void put_file(const char *folder, const char *name, const char *text) {
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    if (f) (void)fputs(text, f), (void)fclose(f);
}

/* A model whose tokenizer is refused, or that has none, can be trained on token ids; text is an error that says why. */
TEST(source_without_its_tokenizer_reads_token_ids) {
    static const char unknown[] = "{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}}}";
    static const char *const says[] = {"\"WordLevel\" is not supported", "tokenizer.json: cannot open it"};
    static const char *const rows[] = {"{\"text\": \"a\"}\n", "{\"messages\": []}\n",
                                       "{\"prompt\": \"a\", \"response\": \"b\"}\n"};
    char folder[] = "/tmp/ravel-folder-XXXXXX", path[128];
    CHECK(mkdtemp(folder) != NULL);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source_options options = with_tokenizer();
    options.tokenizer = folder;
    opened o;
    CHECK(open_text(&o, "{\"input_ids\": [1]}\n", &options, &err) != RAVEL_OK); /* no model folder */
    close_text(&o);
    put_file(folder, "config.json", "{}");
    for (int kind = 1; kind >= 0; kind--) {
        if (kind == 0) put_file(folder, "tokenizer.json", unknown);
        ravel_error_clear(&err);
        CHECK_OK(open_text(&o, "{\"input_ids\": [1, 2]}\n{\"chosen\": [1], \"rejected\": [2]}\n", &options, &err),
                 &err);
        CHECK_EQ(o.samples->ragged.count, 3);
        close_text(&o);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            CHECK_EQ(open_text(&o, rows[i], &options, &err), RAVEL_E_UNSUPPORTED);
            CHECK_HAS(err.message, says[kind]);
            CHECK_HAS(err.message, "ravel.prepare");
            close_text(&o);
            ravel_error_clear(&err);
        }
    }
    put_file(folder, "tokenizer.json", "{"); /* a supported kind that is broken is an error at once */
    CHECK(open_text(&o, "{\"input_ids\": [1]}\n", &options, &err) != RAVEL_OK);
    close_text(&o);
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", folder), (void)unlink(path);
    (void)snprintf(path, sizeof path, "%s/config.json", folder), (void)unlink(path);
    CHECK(rmdir(folder) == 0);
}

/* A row that no template can take is skipped like any other that cannot be used. */
TEST(source_skips_rows_that_cannot_be_used) {
    static const char tools[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"tools\": 7}\n"
                                "{\"text\": \"plain\"}\n";
    ravel_source_options options = with_tokenizer();
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_tokenizer *t = NULL;
    opened o;
    if (ravel_tokenizer_open(FOLDER, NULL, &t, &err))
        return check_skip("PCRE2 is not installed (Debian: libpcre2-dev)");
    ravel_tokenizer_free(t);
    CHECK_EQ(open_text(&o, tools, &options, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "\"tools\" must be a list");
    close_text(&o);
    options.bad_rows = RAVEL_BAD_ROWS_SKIP;
    ravel_error_clear(&err);
    CHECK_OK(open_text(&o, tools, &options, &err), &err);
    CHECK_EQ(o.samples->ragged.count, 1);
    close_text(&o);
}
