/* Lengths from CSV, JSONL and NPY. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "io/columns.h"
#include "io/source.h"

#include <ravel/lengths.h>

#include <stdlib.h>
#include <unistd.h>

static ravel_status parse(const char *name, const char *text, const char *field, ravel_lengths **lengths,
                          ravel_error *err) {
    ravel_read_options options;
    ravel_read_options_default(&options);
    options.field = field;
    return ravel__lengths_parse(name, text, strlen(text), &options, lengths, err);
}

/* "12 3+4 ": what was read, for comparing with a text. */
static const char *shown(const ravel_lengths *l, char *out, size_t room) {
    size_t used = 0;
    out[0] = '\0';
    for (int64_t i = 0; i < l->count && used + 50 < room; i++)
        used += (size_t)(l->lengths ? snprintf(out + used, room - used, "%lld ", (long long)l->lengths[i])
                                    : snprintf(out + used, room - used, "%lld+%lld ", (long long)l->prompts[i],
                                               (long long)l->responses[i]));
    return out;
}

TEST(io_lengths_good_files) {
    static const struct {
        const char *name, *text, *field, *shows, *columns;
    } cases[] = {
        {"a.csv", "1\n2\n3\n", NULL, "1 2 3 ", "column 1"},
        {"a.csv", "1\r\n2\r\n\r\n3", NULL, "1 2 3 ", "column 1"},
        {"a.csv", "\xef\xbb\xbflength\n7\n", NULL, "7 ", "length"},
        {"a.csv", "# made by hand\nlength\n 7 \n\"8\"\n+9\n10.0\n", NULL, "7 8 9 10 ", "length"},
        {"a.csv", "prompt_len,response_len\n374,44\n0,1\n1,0\n", NULL, "374+44 0+1 1+0 ", "prompt_len + response_len"},
        {"a.csv", "374,44\n396,109\n", NULL, "374+44 396+109 ", "column 1 + column 2"},
        {"a.csv", "374;44\n", NULL, "374+44 ", "column 1 + column 2"},
        {"a.tsv", "Context Tokens\tGenerated Tokens\n1\t2\n", NULL, "1+2 ", "Context Tokens + Generated Tokens"},
        {"a.csv", "id,tokens\n900,5\n901,6\n", NULL, "5 6 ", "tokens"},
        {"a.csv", "id,text,n\n1,\"a,\"\"b\"\"\nc\",3\n2,,4\n", "n", "3 4 ", "n"},
        {"a.csv", "1,2,3\n4,5,6\n", "3", "3 6 ", "column 3"},
        {"a.csv", "1,2,3\n4,5,6\n", "3,1", "3+1 6+4 ", "column 3 + column 1"},
        {"a.csv", "a,b,c\n4,5,6\n", "c,a", "6+4 ", "c + a"},
        {"a.csv", "2147483648\n", NULL, "2147483648 ", "column 1"},
        {"a.csv", ",prompt_len,response_len\n0,374,44\n1,5,6\n", NULL, "374+44 5+6 ", "prompt_len + response_len"},
        {"a.csv", ",n\n0,5\n1,6\n", NULL, "5 6 ", "n"},
        {"a.json", "[{\"length\": 3},\n {\"length\": 4}]", NULL, "3 4 ", "length"},
        {"pipe", " [5, 6, 7]\n", NULL, "5 6 7 ", "length"},
        {"a.jsonl", "3\n4\n\n5", NULL, "3 4 5 ", "length"},
        {"a.jsonl", "{\"length\": 3}\n{\"x\": 1, \"length\": 4.0}\n", NULL, "3 4 ", "length"},
        {"a.jsonl", "{\"input_ids\": [9, 9, 9]}\n", NULL, "3 ", "input_ids"},
        {"a.jsonl", "{\"prompt_ids\": [1], \"response_ids\": [2, 3]}\n", NULL, "1+2 ", "prompt_ids + response_ids"},
        {"a.jsonl", "{\"prompt\": \"text\", \"num_tokens\": 4}\n", NULL, "4 ", "num_tokens"},
        {"a.jsonl", "{\"usage\": {\"in\": 5, \"out\": 2}}\n", "usage.in,usage.out", "5+2 ", "usage.in + usage.out"},
        {"a.jsonl", "{\"turns\": [{\"ids\": [1]}, {\"ids\": [1, 2]}]}\n", "turns.1.ids", "2 ", "turns.1.ids"},
        {"a.jsonl", "{\"a.b\": 6}\n", "a.b", "6 ", "a.b"},
        {"pipe", "12\n13\n", NULL, "12 13 ", "column 1"},
        {"pipe", "{\"len\": 1}\n", NULL, "1 ", "len"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_lengths *l = NULL;
        CHECK_OK(parse(cases[i].name, cases[i].text, cases[i].field, &l, &err), &err);
        CHECK_STR(shown(l, text, sizeof text), cases[i].shows);
        CHECK_STR(l->columns, cases[i].columns);
        ravel_lengths_free(l);
    }
}

TEST(io_lengths_bad_files_say_where) {
    static const struct {
        const char *name, *text, *field, *says;
    } cases[] = {
        {"a.csv", "", NULL, "a.csv: it has no rows"},
        {"a.csv", "length\n", NULL, "a.csv: it has no rows"},
        {"a.csv", "1\n2x\n", NULL, "a.csv:2: \"2x\" is not a whole number"},
        {"a.csv", "12x\n2\n", NULL, "a.csv:1: \"12x\" is not a whole number"},
        {"a.csv", "n\n1.5\n", NULL, "a.csv:2: \"1.5\" is not a whole number"},
        {"a.csv", "1\n\n-3\n", NULL, "a.csv:3: length -3; it must be from 1 to 2147483648"},
        {"a.csv", "0\n", NULL, "length 0; it must be from 1"},
        {"a.csv", "2147483649\n", NULL, "length 2147483649; it must be"},
        {"a.csv", "99999999999999999999\n", NULL, "is not a whole number"},
        {"a.csv", "9223372036854775808\n", NULL, "\"9223372036854775808\" is not a whole number"},
        {"a.csv", "-9223372036854775808\n", NULL, "length -9223372036854775808; it must be"},
        {"a.csv", "1,2\n3\n", NULL, "a.csv:2: column 2 is missing"},
        {"a.csv", "1\n3,4\n", NULL, "a.csv:2: 2 columns, but 1 in the first row"},
        {"a.csv", "1,2\n0,0\n", NULL, "a.csv:2: prompt 0 and response 0; their sum must be from 1"},
        {"a.csv", "1,2\n-1,5\n", NULL, "a.csv:2: prompt -1 and response 5; neither may be negative"},
        {"a.csv", "prompt,response\n2147483648,1\n", NULL, "their sum must be from 1 to 2147483648"},
        {"a.csv", "a,b,c\n1,2,3\n", NULL, "which column is meant? Name it with --field; the columns are a, b, c"},
        {"a.csv", "a,b,c\n1,2,3\n", "d", "there is no column \"d\"; the columns are a, b, c"},
        {"a.csv", "1,2,3\n", "4", "there is no column \"4\"; the columns are 1, 2, 3"},
        {"a.csv", "1,2,3\n", "1,2,3", "the field must be one column or two"},
        {"a.csv", "1,2,3\n", "", "the field must be one column or two"},
        {"a.csv", "id,n\n1,\"2\n3,4\n", "n", "a.csv:2: a quote is opened here and never closed"},
        {"a.csv", "length\n7,\n,\n", NULL, "a.csv:3: \"\" is not a whole number"},
        {"a.jsonl", "{\"length\": 3}\n{\"length\": }\n", NULL, "a.jsonl:2: JSON, line 1, column 12: expected a value"},
        {"a.jsonl", "{\"length\": 3}\n{\"len\": 3}\n", NULL, "a.jsonl:2: there is no \"length\"; the members are len"},
        {"a.jsonl", "{\"a\": 3, \"b\": 4}\n", NULL,
         "which member is meant? Name it with --field; the members are a, b"},
        {"a.jsonl", "{\"length\": 3.5}\n", NULL, "\"length\" must be a whole number"},
        {"a.jsonl", "{\"text\": \"hello\"}\n", "text", "text has to be tokenized first"},
        {"a.jsonl", "[1, 2]\n", NULL, "a line must be a JSON object or a number"},
        {"a.jsonl", "3\n{}\n", NULL, "a.jsonl:2: the value must be a whole number"},
        {"a.jsonl", "{\"length\": 0}\n", NULL, "a.jsonl:1: length 0; it must be"},
        {"a.jsonl", "{\"a\": [[1]]}\n", "a.1.0", "there is no \"a.1.0\""},
        {"a.npy", "1\n2\n", NULL, "not an NPY file"},
        {"a.npy", "0123456789ab", NULL, "does not begin with"},
        {"a.csv", "a,b\n1,2\n", NULL, "are these prompt and response? Name the columns"},
        {"a.csv", ",a,b\n0,1,2\n", NULL, "are these prompt and response? Name the columns"},
        {"a.csv", "\x1f\x8b\x08", NULL, "a.csv is compressed with gzip; unpack it first: gunzip -k 'a.csv'"},
        {"a.jsonl", "\x28\xb5\x2f\xfd", NULL, "a.jsonl is compressed with zstd; unpack it first: unzstd 'a.jsonl'"},
        {"pipe", "PAR1", NULL, "pipe is a Parquet file; make CSV of it first: python3"},
        {"pipe", "PK\x03\x04", NULL, "pipe is a zip archive (npz is one)"},
        {"a.csv", "\x93NUMPY", NULL, "a.csv is an NPY file where text is wanted"},
        {"a.csv",
         "\xff\xfe"
         "1",
         NULL, "a.csv is UTF-16 text"},
        {"a.csv", "1\x01\n", NULL, "a.csv is binary data, not text"},
        {"a.jsonl", "{\"length\": [5, 6]}\n", NULL, "\"length\" is an array of 2 values; each row has one number"},
        {"a.jsonl", "{\"length\": \"551\"}\n", NULL, "\"length\" is the text \"551\"; write the number without quotes"},
        {"a.jsonl", "{\"prompt\": \"hello\"}\n", NULL, "\"prompt\" is text; it has to be tokenized first"},
        {"a.json", "{\n\"length\": 5}", NULL, "a row is one line, or the whole file is one JSON array"},
        {"a.json", "[1, 2", NULL, "a.json: JSON, line 1, column 6: expected ',' or ']'"},
        {"a.json", "[1, 0]", NULL, "a.json: item 2: length 0; it must be"},
        {"a.json", "[]", NULL, "a.json: it has no rows"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_lengths *l = NULL;
        CHECK_EQ(parse(cases[i].name, cases[i].text, cases[i].field, &l, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, cases[i].says);
        CHECK(!l);
    }
}

/* ---- NPY ------------------------------------------------------------------------------------------------ */

/* An array as NumPy would write it. `values` are [rows][columns]. */
static size_t make_npy(unsigned char *out, int version, const char *descr, int fortran, int rows, int columns,
                       const int64_t *values) {
    char header[160];
    int each = descr[2] - '0', big = descr[0] == '>';
    int n = columns ? snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': %s, 'shape': (%d, %d), }",
                               descr, fortran ? "True" : "False", rows, columns)
                    : snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': %s, 'shape': (%d,), }", descr,
                               fortran ? "True" : "False", rows);
    size_t at = 0, lead = version == 1 ? 10 : 12, padded = (lead + (size_t)n + 1 + 63) / 64 * 64 - lead;
    memcpy(out, "\x93NUMPY", 6);
    out[6] = (unsigned char)version;
    out[7] = 0;
    for (size_t i = 8; i < lead; i++) out[i] = (unsigned char)(padded >> (8 * (i - 8)));
    memset(out + lead, ' ', padded);
    memcpy(out + lead, header, (size_t)n);
    out[lead + padded - 1] = '\n';
    at = lead + padded;
    int wide = columns ? columns : 1;
    for (int i = 0; i < rows * wide; i++) {
        int index = fortran ? i % rows * wide + i / rows : i;
        for (int b = 0; b < each; b++)
            out[at++] = (unsigned char)((uint64_t)values[index] >> (8 * (big ? each - 1 - b : b)));
    }
    return at;
}

TEST(io_lengths_npy_of_every_kind) {
    static const char *const kinds[] = {"<i8", ">i8", "<i4", ">i4", "<i2", ">u2", "|u1", "|i1", "<u4", "<u8", "=i4"};
    const int64_t values[] = {1, 100, 3, 7, 127, 6};
    unsigned char file[1024];
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int version = 1; version <= 3; version++)
            for (int shape = 0; shape < 4; shape++) { /* [6], [6, 1], [3, 2], [3, 2] in Fortran order */
                int columns = shape == 0 ? 0 : shape == 1 ? 1 : 2, rows = columns == 2 ? 3 : 6;
                size_t bytes = make_npy(file, version, kinds[k], shape == 3, rows, columns, values);
                ravel_error err = RAVEL_ERROR_INIT;
                ravel_lengths *l = NULL;
                char text[256];
                CHECK_OK(ravel__lengths_parse("x.npy", file, bytes, NULL, &l, &err), &err);
                CHECK_STR(shown(l, text, sizeof text), columns == 2 ? "1+100 3+7 127+6 " : "1 100 3 7 127 6 ");
                CHECK_EQ(l->total, 244);
                ravel_lengths_free(l);
                for (size_t cut = 0; cut < bytes; cut++) { /* cut anywhere: an error, never a shorter array */
                    l = NULL;
                    CHECK_EQ(ravel__lengths_parse("x.npy", file, cut, NULL, &l, NULL), RAVEL_E_DATA);
                }
                file[bytes] = 0;
                CHECK_EQ(ravel__lengths_parse("x.npy", file, bytes + 1, NULL, &l, NULL), RAVEL_E_DATA);
            }
}

TEST(io_lengths_npy_refusals) {
    const int64_t values[] = {-1, 5, 3, 7};
    unsigned char file[512];
    static const struct {
        const char *descr;
        int rows, columns;
        const char *says;
    } cases[] = {{"<f8", 2, 0, "numbers of type '<f8'; integers are wanted: save array.astype('int64')"},
                 {"|b1", 2, 0, "integers are wanted"},
                 {"<i3", 2, 0, "integers are wanted"},
                 {"<i4", 1, 3, "the shape must be [n], [n, 1] or [n, 2]"},
                 {"<i4", 2, 0, "x.npy: row 0: length -1; it must be"},
                 {"<i4", 2, 2, "x.npy: row 0: prompt -1 and response 5"},
                 {"<u8", 2, 0, "row 0: a number above 2^63"},
                 {"<i4", 0, 0, "it has no rows"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_lengths *l = NULL;
        size_t bytes = make_npy(file, 1, cases[i].descr, 0, cases[i].rows, cases[i].columns, values);
        CHECK_EQ(ravel__lengths_parse("x.npy", file, bytes, NULL, &l, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, cases[i].says);
    }
}

/* ---- files, limits, memory ------------------------------------------------------------------------------ */

static void add_progress(void *user, int64_t done, int64_t total) {
    int64_t *seen = user;
    if (done >= seen[0]) seen[0] = done;
    seen[1] = total;
}

TEST(io_lengths_of_a_large_file_with_limit_and_progress) {
    char path[] = "/tmp/ravel-lengths-XXXXXX.csv";
    int fd = mkstemps(path, 4);
    FILE *f = fdopen(fd, "w");
    CHECK(f);
    enum { ROWS = 200000 };
    ravel__rng r = ravel__rng_seed(check_seed());
    int64_t *expected = malloc(ROWS * sizeof *expected), total = 0;
    for (int i = 0; i < ROWS; i++) {
        expected[i] = 1 + (int64_t)ravel__rng_below(&r, i % 7 ? 9000 : 2147483648u);
        total += expected[i];
        fprintf(f, "%lld\n", (long long)expected[i]);
    }
    int64_t seen[2] = {0, 0}, size = ftell(f);
    fclose(f);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_lengths *l = NULL;
    ravel_read_options options;
    ravel_read_options_default(&options);
    options.progress = add_progress;
    options.user = seen;
    CHECK_OK(ravel_lengths_read(path, &options, &l, &err), &err);
    CHECK(l->count == ROWS && l->total == total && memcmp(l->lengths, expected, ROWS * sizeof *expected) == 0);
    CHECK(seen[0] == size && seen[1] == size);
    ravel_lengths_free(l);
    options.limit = 1000;
    CHECK_OK(ravel_lengths_read(path, &options, &l, &err), &err);
    CHECK(l->count == 1000 && l->lengths[999] == expected[999]);
    ravel_lengths_free(l);
    unlink(path);
    free(expected);
    CHECK_EQ(ravel_lengths_read(path, NULL, &l, &err), RAVEL_E_IO);
    CHECK_HAS(err.message, "cannot open it");
}

/* Lines of all lengths, some longer than the buffer, ended by \n or \r\n or by nothing; now and then two at a time. */
TEST(io_lines_come_back_as_they_were) {
    enum { LINES = 3000 };
    ravel__rng r = ravel__rng_seed(check_seed());
    char *text = malloc(LINES * 80 + 10 * 200000);
    size_t starts[LINES + 1], lengths[LINES], used = 0;
    for (int i = 0; i < LINES; i++) {
        lengths[i] = ravel__rng_below(&r, i % 300 == 150 ? 200000 : 70);
        starts[i] = used;
        for (size_t j = 0; j < lengths[i]; j++) text[used++] = (char)('a' + ravel__rng_below(&r, 26));
        if (i == LINES - 1 && lengths[i] == 0) text[used++] = 'x', lengths[i] = 1;
        if (i < LINES - 1 && ravel__rng_below(&r, 2)) text[used++] = '\r';
        if (i < LINES - 1) text[used++] = '\n';
    }
    ravel__source source;
    ravel__lines lines;
    ravel_error err = RAVEL_ERROR_INIT;
    const char *line;
    size_t bytes;
    ravel__source_memory(&source, "text", text, used);
    ravel__lines_init(&lines, &source, NULL);
    for (int i = 0; i < LINES; i++) {
        CHECK_OK(ravel__lines_next(&lines, &line, &bytes, &err), &err);
        CHECK_EQ(lines.number, i + 1);
        CHECK(bytes == lengths[i] && memcmp(line, text + starts[i], bytes) == 0);
        if (i % 5 || i + 1 >= LINES) continue;
        CHECK_OK(ravel__lines_more(&lines, &line, &bytes, &err), &err);
        CHECK_EQ(bytes, starts[i + 1] + lengths[i + 1] - starts[i]);
        CHECK(memcmp(line, text + starts[i], bytes) == 0);
        i++;
    }
    CHECK_EQ(ravel__lines_next(&lines, &line, &bytes, &err), RAVEL_E_END);
    CHECK_EQ(ravel__lines_more(&lines, &line, &bytes, &err), RAVEL_E_END);
    CHECK_EQ(err.status, RAVEL_OK);
    ravel__lines_free(&lines);
    free(text);
}

TEST(io_lengths_lines_longer_than_the_buffer) {
    enum { LONG = 200000 };
    char *text = malloc(LONG + 100);
    int n = snprintf(text, 100, "{\"length\": 5, \"text\": \"");
    memset(text + n, 'x', LONG);
    n = n + LONG + snprintf(text + n + LONG, 50, "\"}\n{\"length\": 6}");
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_lengths *l = NULL;
    CHECK_OK(ravel__lengths_parse("a.jsonl", text, (size_t)n, NULL, &l, &err), &err);
    CHECK(l->count == 2 && l->lengths[0] == 5 && l->lengths[1] == 6);
    ravel_lengths_free(l);
    free(text);
}

TEST(io_columns_by_name) {
    char path[] = "/tmp/ravel-column-XXXXXX.csv";
    FILE *f = fdopen(mkstemps(path, 4), "w");
    CHECK(f);
    fprintf(f, "prompt_len,response_len,home_rank,group\n5,6,-1,77\n7,8,3,-9\n");
    fclose(f);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__column *c = NULL;
    ravel_lengths *l = NULL;
    CHECK_OK(ravel__column_read(path, "home", -1, 3, NULL, &c, &err), &err);
    CHECK(c->count == 2 && c->values[0] == -1 && c->values[1] == 3);
    ravel__column_free(c);
    CHECK_OK(ravel__column_read(path, "group", INT64_MIN, INT64_MAX, NULL, &c, &err), &err);
    CHECK(c->values[1] == -9);
    ravel__column_free(c);
    CHECK_OK(ravel_lengths_read(path, NULL, &l, &err), &err);
    CHECK(l->prompts[1] == 7 && l->responses[1] == 8);
    ravel_lengths_free(l);
    CHECK_EQ(ravel__column_read(path, "home", -1, 2, NULL, &c, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, ".csv:3: home 3; it must be from -1 to 2");
    ravel_error_clear(&err);
    CHECK_EQ(ravel__column_read(path, "update", 0, 2, NULL, &c, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "which column is meant?");
    unlink(path);
}

typedef struct memory_case {
    const char *name, *field;
    const void *data;
    size_t bytes;
} memory_case;

static ravel_status memory_body(const ravel_allocator *allocator, void *user) {
    const memory_case *c = user;
    ravel_lengths *l = NULL;
    ravel_read_options options;
    ravel_read_options_default(&options);
    options.allocator = allocator;
    options.field = c->field;
    ravel_status status = ravel__lengths_parse(c->name, c->data, c->bytes, &options, &l, NULL);
    ravel_lengths_free(l);
    return status;
}

TEST(io_lengths_survive_every_failed_allocation) {
    static char pairs[3000 * 4 + 1];
    for (int i = 0; i < 3000; i++) memcpy(pairs + i * 4, "1,2\n", 4);
    unsigned char file[512];
    const int64_t values[] = {1, 2, 3, 4};
    memory_case cases[] = {{"a.csv", NULL, pairs, 12000},
                           {"a.jsonl", "a", "{\"a\": 3}\n{\"a\": [1]}\n", 20},
                           {"a.npy", NULL, file, make_npy(file, 1, "<i4", 0, 2, 2, values)}};
    for (int i = 0; i < 3; i++) CHECK(check_every_allocation(memory_body, &cases[i]) >= 3);
    cases[2].bytes = make_npy(file, 1, "<i4", 1, 2, 2, values);
    CHECK(check_every_allocation(memory_body, &cases[2]) >= 3);
}

/* Lines as an editor counts them: the header, blank lines, comments and line ends in quotes are lines too. */
TEST(io_lengths_know_their_lines) {
    ravel_lengths *l = NULL;
    CHECK_EQ(parse("a.csv", "id,text,n\n1,\"a\nb\",3\n\n# remark\n2,c,4\n", "n", &l, NULL), RAVEL_OK);
    CHECK(l && l->lines && l->lines[0] == 2 && l->lines[1] == 6);
    ravel_lengths_free(l);
    l = NULL;
    CHECK_EQ(parse("a.jsonl", "3\n\n4\n", NULL, &l, NULL), RAVEL_OK);
    CHECK(l && l->lines && l->lines[0] == 1 && l->lines[1] == 3);
    ravel_lengths_free(l);
    l = NULL;
    CHECK_EQ(parse("a.json", "[3, 4]", NULL, &l, NULL), RAVEL_OK);
    CHECK(l && !l->lines);
    ravel_lengths_free(l);
}
