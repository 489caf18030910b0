/* The order of reading, cursors, and every kind of source. */
#include "tests/unit/check.h"

#include "feed/source/line_index.h"

#include "base/memory.h"
#include "feed/source/source.h"
#include "feed/source/order.h"
#include "base/rng.h"

#include <ravel/order.h>
#include <ravel/source.h>

#include <stdlib.h>
#include <unistd.h>

/* ---- order ---------------------------------------------------------------------------------------------- */

static ravel_order order_of(int64_t count, uint64_t seed) {
    ravel_order order = {.size = sizeof order, .count = count, .seed = seed, .shuffle = 1};
    return order;
}

TEST(order_is_a_permutation_for_every_count) {
    static unsigned char seen[5000];
    for (int64_t count = 1; count < check_scale(600, 5000); count++) {
        ravel_order order = order_of(count, (uint64_t)count * 7);
        memset(seen, 0, sizeof seen);
        for (int64_t i = 0; i < count; i++) {
            int64_t row = ravel_order_row(&order, 3, i);
            CHECK(row >= 0 && row < count && !seen[row]);
            seen[row] = 1;
        }
    }
}

TEST(order_mixes_and_depends_on_seed_and_epoch) {
    enum { N = 4096 };
    int64_t fixed = 0, same_epoch = 0, same_seed = 0, neighbours = 0;
    ravel_order order = order_of(N, 1), other = order_of(N, 2);
    for (int64_t i = 0; i < N; i++) {
        int64_t row = ravel_order_row(&order, 0, i);
        fixed += row == i;
        same_epoch += row == ravel_order_row(&order, 1, i);
        same_seed += row == ravel_order_row(&other, 0, i);
        neighbours += i > 0 && row == ravel_order_row(&order, 0, i - 1) + 1;
    }
    CHECK(fixed < 12 && same_epoch < 12 && same_seed < 12 && neighbours < 12); /* each is 1 on average */
    order.shuffle = 0;
    for (int64_t i = 0; i < N; i++) CHECK_EQ(ravel_order_row(&order, 5, i), i);
}

TEST(order_stays_what_it_is) {
    ravel_order order = order_of(1000000007, 42); /* a change here changes what every resumed run reads next */
    CHECK_EQ(ravel_order_row(&order, 0, 0), 582124572);
    CHECK_EQ(ravel_order_row(&order, 9, 999999999), 31018964);
}

TEST(order_first_place_is_even_over_seeds) {
    int counts[5] = {0};
    for (uint64_t seed = 0; seed < 5000; seed++) {
        ravel_order order = order_of(5, seed);
        counts[ravel_order_row(&order, 0, 0)]++;
    }
    for (int i = 0; i < 5; i++) CHECK(counts[i] > 850 && counts[i] < 1150);
}

/* The stream by its definition: epoch after epoch. */
static int64_t reference_row(const ravel_order *order, ravel_cursor cursor, int64_t i) {
    int64_t at = cursor.epoch * order->count + cursor.position + i;
    return ravel_order_row(order, at / order->count, at % order->count);
}

TEST(order_updates_are_the_same_rows_for_any_number_of_ranks) {
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int64_t trial = 0; trial < check_rounds(400, 20000); trial++) {
        ravel_order order = order_of(1 + (int64_t)ravel__rng_below(&r, 60), ravel__rng_next(&r));
        order.shuffle = (int32_t)ravel__rng_below(&r, 2);
        order.epochs = (int64_t)ravel__rng_below(&r, 4);
        order.drop_last = (int32_t)ravel__rng_below(&r, 2);
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK_OK(ravel__order_check(&order, &err), &err);
        int64_t wanted = 1 + (int64_t)ravel__rng_below(&r, 100), dp = 1 + (int64_t)ravel__rng_below(&r, 9), total = 0;
        ravel_cursor cursor = {0, 0}, next;
        for (int update = 0; update < 8; update++) {
            int64_t n = ravel_order_take(&order, cursor, wanted, &next), rows[100], at = 0;
            for (int64_t rank = 0; rank < dp; rank++) {
                int64_t begin = ravel_share(n, dp, rank), end = ravel_share(n, dp, rank + 1);
                CHECK_EQ(begin, at);
                CHECK(end - begin >= n / dp && end - begin <= n / dp + 1);
                ravel_order_rows(&order, cursor, begin, end - begin, rows + at);
                at = end;
            }
            CHECK_EQ(at, n);
            for (int64_t i = 0; i < n; i++) CHECK_EQ(rows[i], reference_row(&order, cursor, i));
            total += n;
            CHECK_EQ(next.epoch * order.count + next.position, total);
            CHECK(next.position >= 0 && next.position < order.count);
            cursor = next;
        }
        int64_t all = order.epochs * order.count;
        if (order.drop_last) all -= all % wanted;
        if (order.epochs) CHECK_EQ(total, all < 8 * wanted ? all : 8 * wanted);
    }
    ravel_order empty = order_of(0, 1);
    ravel_cursor next;
    CHECK_EQ(ravel_order_take(&empty, (ravel_cursor){0, 0}, 5, &next), 0);
}

TEST(order_refuses_what_it_cannot_count) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_order order = order_of(-1, 0);
    CHECK_EQ(ravel__order_check(&order, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "-1 rows");
    order = order_of(INT64_C(1) << 60, 0);
    order.epochs = 1 << 20;
    CHECK_EQ(ravel__order_check(&order, NULL), RAVEL_E_ARGUMENT);
    order.epochs = -2;
    CHECK_EQ(ravel__order_check(&order, NULL), RAVEL_E_ARGUMENT);
}

TEST(cursor_goes_through_json_and_knows_its_stream) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_order order = order_of(100, UINT64_MAX - 3), other = order;
    char text[200];
    size_t bytes = ravel_cursor_format(&order, (ravel_cursor){4, 17}, text, sizeof text);
    CHECK_STR(text, "{\"epoch\":4,\"position\":17,\"count\":100,\"seed\":\"18446744073709551612\",\"shuffle\":true}");
    ravel_cursor cursor = {0, 0};
    CHECK_OK(ravel_cursor_parse(&order, text, bytes, &cursor, &err), &err);
    CHECK(cursor.epoch == 4 && cursor.position == 17);
    other.seed = 1844674407370955161; /* a prefix of the other */
    CHECK_EQ(ravel_cursor_parse(&other, text, bytes, &cursor, &err), RAVEL_E_MISMATCH);
    CHECK_HAS(err.message, "seed");
    other = order;
    other.count = 99;
    ravel_error_clear(&err);
    CHECK_EQ(ravel_cursor_parse(&other, text, bytes, &cursor, &err), RAVEL_E_MISMATCH);
    CHECK_HAS(err.message, "100 rows, this one has 99");
    static const char *const bad[] = {"",
                                      "[]",
                                      "{\"epoch\":1}",
                                      "{\"epoch\":1,\"position\":-1,\"count\":100,\"seed\":\"5\",\"shuffle\":true}",
                                      "{\"epoch\":1,\"position\":100,\"count\":100,\"seed\":\"5\",\"shuffle\":true}",
                                      "{\"epoch\":9223372036854775807,\"position\":0,\"count\":100,\"seed\":\"5\","
                                      "\"shuffle\":true}",
                                      "{\"epoch\":1.5,\"position\":0,\"count\":100,\"seed\":\"5\",\"shuffle\":true}",
                                      "{\"epoch\":1,\"position\":0,\"count\":100,\"seed\":\"5\"}"};
    order.seed = 5;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        ravel_error_clear(&err);
        CHECK_EQ(ravel_cursor_parse(&order, bad[i], strlen(bad[i]), &cursor, &err), RAVEL_E_DATA);
        CHECK(err.message[0]);
    }
}

/* ---- reading -------------------------------------------------------------------------------------------- */

/* A file in the build folder's neighbourhood that goes away with the test. */
static const char *temporary_file(const char *text, char *path, size_t bytes) {
    (void)snprintf(path, bytes, "/tmp/ravel-source-%d.jsonl", (int)getpid());
    FILE *f = fopen(path, "wb");
    if (!f) return NULL;
    (void)fwrite(text, 1, strlen(text), f);
    (void)fclose(f);
    return path;
}

static ravel_source_options options_for(const char *data) {
    ravel_source_options options;
    ravel_source_options_default(&options);
    options.data = data;
    return options;
}

/* Opens, reads all rows in order and hands the first error back. */
static ravel_status read_all(const ravel_source_options *options, const ravel_logger *logger, ravel_source **source,
                             ravel_reader **reader, const ravel_samples **samples, ravel_error *err) {
    int64_t rows[64];
    ravel_status status = ravel_source_open(options, source, err);
    if (!status) status = ravel_reader_create(*source, options->allocator, logger, reader, err);
    if (status) return status;
    for (int64_t i = 0; i < ravel_source_count(*source) && i < 64; i++) rows[i] = i;
    return ravel_reader_read(*reader, rows, ravel_source_count(*source), samples, err);
}

static bool sample_is(const ravel_samples *s, int64_t i, const char *tokens, const char *mask) {
    const int32_t *ids = (const int32_t *)s->ragged.fields[0].data + s->ragged.offsets[i];
    const unsigned char *learnt = (const unsigned char *)s->ragged.fields[1].data + s->ragged.offsets[i];
    char got_tokens[256] = "", got_mask[256] = "";
    size_t a = 0, b = 0;
    for (int64_t k = 0; k < s->ragged.offsets[i + 1] - s->ragged.offsets[i]; k++) {
        a += (size_t)snprintf(got_tokens + a, sizeof got_tokens - a, k ? " %d" : "%d", ids[k]);
        b += (size_t)snprintf(got_mask + b, sizeof got_mask - b, "%d", learnt[k]);
    }
    if (strcmp(got_tokens, tokens) == 0 && strcmp(got_mask, mask) == 0) return true;
    printf("    sample %lld is [%s] %s, not [%s] %s\n", (long long)i, got_tokens, got_mask, tokens, mask);
    return false;
}

TEST(source_jsonl_reads_every_form_of_row) {
    char path[100];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source_options options = options_for(temporary_file(
        "\xef\xbb\xbf{\"input_ids\": [5, 6, 7]}\n"
        "\n"
        "{\"input_ids\": [5, 6, 7], \"labels\": [-100, 6, 7]}\r\n"
        "{\"input_ids\": [5, 6, 7], \"loss_mask\": [0, true, 0], \"labels\": null}\n"
        "   \t\n"
        "{\"input_ids\": [5, 6, 7], \"prompt_length\": 2, \"extra\": {\"a\": [1]}}\n"
        "{\"prompt\": \"ab\", \"response\": \"\\u00e9\"}\n"
        "{\"prompt\": \"a\", \"completion\": \"b\"}\n"
        "{\"text\": \"hi\"}\n"
        "{\"input_ids\": [1,2,3,4,5,0,0], \"cu_seqlens\": [0,2,2,5]}\n"
        "{\"input_ids\": [1,2,0,4,5,0], \"cu_seqlens\": [0,2,4], \"cu_seqlens_padded\": [0,3,6], \"prompt_length\": [1,0]}\n"
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"cc\"}\n"
        "{\"chosen\": \"b\", \"rejected\": \"\"}",
        path, sizeof path));
    options.bos = 256;
    options.eos = 257;
    ravel_source *source = NULL;
    ravel_reader *reader = NULL;
    const ravel_samples *s = NULL;
    CHECK_OK(read_all(&options, NULL, &source, &reader, &s, &err), &err);
    CHECK_EQ(ravel_source_count(source), 11);
    CHECK_STR(ravel_source_kind(source), "jsonl");
    CHECK_EQ(s->ragged.count, 15);
    CHECK(sample_is(s, 0, "5 6 7", "111"));
    CHECK(sample_is(s, 1, "5 6 7", "011"));
    CHECK(sample_is(s, 2, "5 6 7", "010"));
    CHECK(sample_is(s, 3, "5 6 7", "001"));
    CHECK(sample_is(s, 4, "256 97 98 195 169 257", "000111"));
    CHECK(sample_is(s, 5, "256 97 98 257", "0011"));
    CHECK(sample_is(s, 6, "256 104 105 257", "0111"));
    CHECK(sample_is(s, 7, "1 2", "11"));
    CHECK(sample_is(s, 8, "3 4 5", "111"));
    CHECK(sample_is(s, 9, "1 2", "01"));
    CHECK(sample_is(s, 10, "4 5", "11"));
    CHECK(sample_is(s, 11, "256 97 98 257", "0011"));
    CHECK(sample_is(s, 12, "256 97 99 99 257", "00111"));
    CHECK(sample_is(s, 13, "256 98 257", "011"));
    CHECK(sample_is(s, 14, "256 257", "01"));
    CHECK(s->rows[11] == 9 && s->parts[11] == 0 && s->parts[12] == 1);
    CHECK(s->rows[7] == 7 && s->rows[8] == 7 && s->parts[7] == 0 && s->parts[8] == 1 && s->rows[10] == 8);
    ravel_reader_free(reader);
    ravel_source_free(source);
    unlink(path);
}

TEST(source_jsonl_reads_declared_fields_and_cuts) {
    char path[100];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source_options options = options_for(temporary_file(
        "{\"input_ids\": [1,2,3], \"adv\": [0.5, -1, 2], \"reward\": 1.25, \"group\": 9007199254740993}\n"
        "{\"input_ids\": [4,5,6,7], \"adv\": [1,2,3,4], \"reward\": [7, 8], \"group\": 3, \"cu_seqlens\": [0,1,4]}\n",
        path, sizeof path));
    options.fields = "adv:f32:next,reward:f64:sample,group:i64:sample";
    options.truncate = 2;
    options.first_row = 0;
    ravel_source *source = NULL;
    ravel_reader *reader = NULL;
    const ravel_samples *s = NULL;
    CHECK_OK(read_all(&options, NULL, &source, &reader, &s, &err), &err);
    CHECK_EQ(s->ragged.count, 3);
    CHECK_EQ(s->ragged.field_count, 5);
    CHECK(sample_is(s, 0, "1 2", "11") && sample_is(s, 1, "4", "1") && sample_is(s, 2, "5 6", "11"));
    const float *adv = s->ragged.fields[2].data;
    const double *reward = s->ragged.fields[3].data;
    const int64_t *group = s->ragged.fields[4].data;
    CHECK(adv[0] == 0.5f && adv[1] == -1 && adv[2] == 1 && adv[3] == 2 && adv[4] == 3);
    CHECK(reward[0] == 1.25 && reward[1] == 7 && reward[2] == 8);
    CHECK(group[0] == 9007199254740993 && group[1] == 3 && group[2] == 3);
    ravel_reader_stats stats;
    ravel__reader_read_stats(reader, &stats);
    CHECK(stats.rows == 2 && stats.samples == 3 && stats.tokens == 5 && stats.truncated == 2 && stats.skipped == 0);
    ravel_reader_free(reader);
    ravel_source_free(source);
    unlink(path);
}

typedef struct heard {
    char text[400];
    int count;
} heard;

static void hear(void *user, ravel_log_level level, const char *text) {
    heard *h = user;
    if (level == RAVEL_LOG_WARN) h->count++;
    (void)snprintf(h->text, sizeof h->text, "%s", text);
}

TEST(source_jsonl_names_file_and_line_of_a_bad_row_or_skips_it_loudly) {
    static const struct {
        const char *row, *says;
    } bad[] = {
        {"{\"input_ids\": [1, 2}", "JSON"},
        {"[1, 2]", "must be a JSON object"},
        {"{\"ids\": [1]}", "needs \"input_ids\""},
        {"{\"input_ids\": 3}", "must be an array"},
        {"{\"input_ids\": []}", "at least one token"},
        {"{\"text\": \"\"}", "at least one token"},
        {"{\"prompt\": \"a\"}", "needs \"input_ids\""},
        {"{\"input_ids\": [1, -2]}", "\"input_ids\"[1] must be a token id from 0 to 999"},
        {"{\"input_ids\": [1, 1000]}", "\"input_ids\"[1]"},
        {"{\"input_ids\": [1.5]}", "\"input_ids\"[0]"},
        {"{\"input_ids\": [1, 2], \"labels\": [1]}", "\"labels\" has 1 elements, there are 2 tokens"},
        {"{\"input_ids\": [1, 2], \"labels\": [2, -100]}", "\"labels\"[0] must be the token itself (1) or -100"},
        {"{\"input_ids\": [1, 2], \"loss_mask\": [1, 2]}", "\"loss_mask\"[1] must be 0 or 1"},
        {"{\"input_ids\": [1, 2], \"loss_mask\": [1]}", "\"loss_mask\" has 1"},
        {"{\"input_ids\": [1, 2], \"loss_mask\": 1}", "must be an array"},
        {"{\"input_ids\": [1, 2], \"prompt_length\": 3}", "from 0 to 2"},
        {"{\"input_ids\": [1, 2], \"prompt_length\": 1, \"loss_mask\": [1, 1]}", "not several"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0, 3]}", "\"cu_seqlens\"[1]"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0]}", "at least one boundary"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [1, 2]}", "must begin with 0"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0, 2, 1]}", "must not go down"},
        {"{\"input_ids\": [1, 2, 3], \"cu_seqlens\": [0, 2, 3], \"cu_seqlens_padded\": [0, 1, 3]}", "too little room"},
        {"{\"input_ids\": [1, 2, 3], \"cu_seqlens\": [0, 2, 3], \"cu_seqlens_padded\": [0, 3]}", "boundaries"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0, 1, 2], \"prompt_length\": 1}", "must be an array"},
        {"{\"input_ids\": [1, 2], \"cu_seqlens\": [0, 1, 2], \"prompt_length\": [2, 0]}", "from 0 to 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[100], text[500], where[120];
        (void)snprintf(text, sizeof text, "{\"input_ids\": [1]}\n\n%s\n{\"input_ids\": [2]}\n", bad[i].row);
        ravel_source_options options = options_for(temporary_file(text, path, sizeof path));
        options.vocab = 1000;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_source *source = NULL;
        ravel_reader *reader = NULL;
        const ravel_samples *s = NULL;
        CHECK_EQ(read_all(&options, NULL, &source, &reader, &s, &err), RAVEL_E_DATA);
        (void)snprintf(where, sizeof where, "%s:3: ", path);
        CHECK(strncmp(err.message, where, strlen(where)) == 0);
        CHECK_HAS(err.message, bad[i].says);
        CHECK(!s);
        ravel_reader_free(reader);
        ravel_source_free(source);
        options.bad_rows = RAVEL_BAD_ROWS_SKIP;
        heard h = {"", 0};
        ravel_logger logger = {hear, &h};
        ravel_error_clear(&err);
        CHECK_OK(read_all(&options, &logger, &source, &reader, &s, &err), &err);
        CHECK_EQ(s->ragged.count, 2);
        CHECK(sample_is(s, 0, "1", "1") && sample_is(s, 1, "2", "1"));
        CHECK_EQ(h.count, 1);
        CHECK_HAS(h.text, where);
        ravel_reader_free(reader);
        ravel_source_free(source);
        unlink(path);
    }
}

TEST(source_options_are_checked) {
    char path[100];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source *source = NULL;
    ravel_source_options options = options_for(NULL);
    CHECK_EQ(ravel_source_open(&options, &source, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "either a data file or mock data");
    options = options_for("/nowhere/at/all.jsonl");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_source_open(&options, &source, &err), RAVEL_E_IO);
    CHECK_HAS(err.message, "/nowhere/at/all.jsonl");
    options = options_for(temporary_file("\n \n", path, sizeof path));
    ravel_error_clear(&err);
    CHECK_EQ(ravel_source_open(&options, &source, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "no rows");
    static const struct {
        const char *fields, *says;
    } bad[] = {{"x", "name:dtype"},           {"x:f31", "field \"x\""},
               {"x:f32:row", "kind \"row\""}, {"tokens:f32", "two fields \"tokens\""},
               {":f32", "name:dtype"},        {"a:f32,a:i32", "two fields \"a\""}};
    temporary_file("{\"text\":\"a\"}\n{\"text\":\"b\"}\n", path, sizeof path);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        options.fields = bad[i].fields;
        ravel_error_clear(&err);
        CHECK_EQ(ravel_source_open(&options, &source, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, bad[i].says);
    }
    options.fields = NULL;
    options.first_row = 1;
    options.end_row = 3;
    ravel_error_clear(&err);
    CHECK_EQ(ravel_source_open(&options, &source, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "the data has 2");
    options.end_row = 0;
    ravel_error_clear(&err);
    ravel_reader *reader = NULL;
    const ravel_samples *s = NULL;
    CHECK_OK(read_all(&options, NULL, &source, &reader, &s, &err), &err);
    CHECK(s->ragged.count == 1 && sample_is(s, 0, "98", "1"));
    int64_t past = 1;
    CHECK_EQ(ravel_reader_read(reader, &past, 1, &s, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "row 1 was asked for, the source has 1");
    ravel_reader_free(reader);
    ravel_source_free(source);
    unlink(path);
}

static ravel_status read_twice(const ravel_allocator *allocator, void *user) {
    ravel_source_options options = options_for(user);
    options.allocator = allocator;
    options.fields = "adv:f32";
    ravel_source *source = NULL;
    ravel_reader *reader = NULL;
    const ravel_samples *s = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = read_all(&options, NULL, &source, &reader, &s, &err);
    if (!status) status = ravel_reader_read(reader, (const int64_t[]){1, 0, 1, 0, 1}, 5, &s, &err);
    ravel_reader_free(reader);
    ravel_source_free(source);
    return status;
}

TEST(source_jsonl_survives_every_failed_allocation) {
    char path[100];
    temporary_file("{\"input_ids\": [1,2,3], \"cu_seqlens\": [0,1,3], \"adv\": [1,2,3]}\n"
                   "{\"text\": \"abc\", \"adv\": [1,2,3]}\n",
                   path, sizeof path);
    CHECK(check_every_allocation(read_twice, path) > 10);
    unlink(path);
}

/* ---- callbacks and memory ------------------------------------------------------------------------------- */

/* Row r holds r % 3 samples of lengths r + 1, r + 2; row 13 fails. */
static ravel_status read_numbers(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    int32_t tokens[64];
    float score = (float)row / 2;
    ++*(int *)user;
    if (row == 13) return ravel_error_set(err, RAVEL_E_CALLBACK, "unlucky");
    if (row == 14) return RAVEL_E_CALLBACK;
    for (int64_t k = 0; k < row % 3; k++) {
        for (int i = 0; i < 64; i++) tokens[i] = (int32_t)(row * 100 + k);
        const void *data[] = {&score, tokens, NULL};
        ravel_status status = ravel_collector_add(collector, row + k + 1, data, err);
        if (status) return status;
    }
    return RAVEL_OK;
}

static void close_numbers(void *user) {
    *(int *)user = -1;
}

TEST(source_callbacks_hand_over_any_samples_and_their_errors) {
    ravel_error err = RAVEL_ERROR_INIT;
    int calls = 0;
    const ravel_field fields[] = {{.name = "score", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_F32},
                                  {.name = "tokens", .dtype = RAVEL_I32},
                                  {.name = "weight", .dtype = RAVEL_F32, .pad = 0.5}};
    ravel_source_hooks hooks = {.size = sizeof hooks,
                                .user = &calls,
                                .count = 20,
                                .fields = fields,
                                .field_count = 3,
                                .read = read_numbers,
                                .close = close_numbers};
    ravel_source *source = NULL;
    ravel_reader *reader = NULL;
    const ravel_samples *s = NULL;
    CHECK_OK(ravel_source_callbacks(&hooks, &source, &err), &err);
    CHECK_OK(ravel_reader_create(source, NULL, NULL, &reader, &err), &err);
    CHECK_OK(ravel_reader_read(reader, (const int64_t[]){5, 3, 4}, 3, &s, &err), &err);
    CHECK_EQ(s->ragged.count, 3);
    CHECK(s->rows[0] == 5 && s->rows[1] == 5 && s->rows[2] == 4 && s->parts[1] == 1);
    CHECK(s->ragged.offsets[1] == 6 && s->ragged.offsets[2] == 13 && s->ragged.offsets[3] == 18);
    CHECK(((const float *)s->ragged.fields[0].data)[2] == 2 && ((const int32_t *)s->ragged.fields[1].data)[6] == 501);
    CHECK(((const float *)s->ragged.fields[2].data)[17] == 0.5f);
    CHECK_EQ(ravel_reader_read(reader, (const int64_t[]){1, 13}, 2, &s, &err), RAVEL_E_CALLBACK);
    CHECK_STR(err.message, "row 13: unlucky");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_reader_read(reader, (const int64_t[]){14}, 1, &s, &err), RAVEL_E_CALLBACK);
    CHECK_HAS(err.message, "row 14");
    ravel_reader_free(reader);
    ravel_source_free(source);
    CHECK_EQ(calls, -1);
    hooks.fields++;
    hooks.field_count = 0;
    CHECK_EQ(ravel_source_callbacks(&hooks, &source, NULL), RAVEL_E_ARGUMENT);
    hooks.fields = fields + 2; /* per token, and not tokens */
    hooks.field_count = 1;
    ravel_error_clear(&err);
    CHECK_EQ(ravel_source_callbacks(&hooks, &source, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "\"tokens\"");
}

TEST(source_over_samples_gives_them_back) {
    ravel_error err = RAVEL_ERROR_INIT;
    const int64_t offsets[] = {0, 3, 4, 9};
    const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    const double reward[] = {0.5, 1.5, 2.5}, steps[] = {0, 1, 10, 11, 12, 13};
    const ravel_field fields[] = {{.name = "tokens", .dtype = RAVEL_I32, .data = tokens},
                                  {.name = "reward", .kind = RAVEL_FIELD_SAMPLE, .dtype = RAVEL_F64, .data = reward},
                                  {.name = "steps", .kind = RAVEL_FIELD_STEP, .dtype = RAVEL_F64, .data = steps}};
    ravel_samples samples = {
        .ragged = {.size = sizeof(ravel_ragged), .count = 3, .field_count = 3, .fields = fields, .offsets = offsets}};
    ravel_source *source = NULL;
    ravel_reader *reader = NULL;
    const ravel_samples *s = NULL;
    CHECK_OK(ravel_source_samples(&samples, NULL, &source, &err), &err);
    CHECK_OK(ravel_reader_create(source, NULL, NULL, &reader, &err), &err);
    CHECK_OK(ravel_reader_read(reader, (const int64_t[]){2, 0}, 2, &s, &err), &err);
    CHECK(s->ragged.count == 2 && s->ragged.offsets[1] == 5 && s->ragged.offsets[2] == 8 && s->rows[0] == 2);
    CHECK(((const int32_t *)s->ragged.fields[0].data)[0] == 5 && ((const int32_t *)s->ragged.fields[0].data)[5] == 1);
    CHECK(((const double *)s->ragged.fields[1].data)[0] == 2.5);
    CHECK(((const double *)s->ragged.fields[2].data)[0] == 10 && ((const double *)s->ragged.fields[2].data)[5] == 1);
    ravel_reader_free(reader);
    ravel_source_free(source);
}

/* ---- the index beside the data -------------------------------------------------------------------------- */

/* Opens the index of a file: 1 where it had to scan, 0 where it did not, -1 where it is wrong. */
static int index_made(const char *path, int32_t keep, int64_t rows, int64_t last) {
    ravel__reading data;
    ravel__line_index index;
    size_t begin = 0, end = 0;
    if (ravel__reading_open(path, &data, NULL)) return -1;
    ravel_status status = ravel__line_index_open(&index, &data, keep, NULL, NULL);
    if (!status) status = ravel__line_index_find(&index, rows - 1, &begin, &end, NULL);
    int good = !status && index.rows == rows && (int64_t)begin == last && end == data.bytes, made = index.made;
    ravel__line_index_close(&index, NULL);
    ravel__reading_close(&data);
    return good ? made : -1;
}

static void write_text(const char *path, const char *mode, const char *text) {
    FILE *f = fopen(path, mode);
    CHECK(f != NULL);
    if (f) CHECK(fputs(text, f) >= 0 && fclose(f) == 0);
}

TEST(source_index_is_made_once_and_anew_when_the_data_changes) {
    char path[64], rows[80];
    temporary_file("{\"a\":1}\n\n{\"a\":2}\n", path, sizeof path);
    (void)snprintf(rows, sizeof rows, "%s.rows", path);
    CHECK_EQ(index_made(path, RAVEL_INDEX_AUTO, 2, 9), 1); /* a small file: none is kept */
    CHECK(access(rows, F_OK) != 0);
    CHECK_EQ(index_made(path, RAVEL_INDEX_ALWAYS, 2, 9), 1);
    CHECK(access(rows, F_OK) == 0);
    CHECK_EQ(index_made(path, RAVEL_INDEX_ALWAYS, 2, 9), 0);
    CHECK_EQ(index_made(path, RAVEL_INDEX_NEVER, 2, 9), 1);
    write_text(path, "a", "{\"a\":3}\n"); /* another size */
    CHECK_EQ(index_made(path, RAVEL_INDEX_ALWAYS, 3, 17), 1);
    CHECK_EQ(index_made(path, RAVEL_INDEX_ALWAYS, 3, 17), 0);
    (void)usleep(20000);
    write_text(path, "w", "{\"a\":1}\n{\"aaaaaa\":22222}\n"); /* the same size at another time */
    CHECK_EQ(index_made(path, RAVEL_INDEX_ALWAYS, 2, 8), 1);
    write_text(rows, "r+", "x"); /* a broken index */
    CHECK_EQ(index_made(path, RAVEL_INDEX_ALWAYS, 2, 8), 1);
    CHECK_EQ(index_made(path, RAVEL_INDEX_ALWAYS, 2, 8), 0);
    (void)unlink(rows);
    (void)unlink(path);
}

/* Lines of any length, blank ones among them, over several of the pieces that a scan reads: every row is where it was
 * written, with an index in memory and with one beside the data. */
TEST(source_finds_every_row_of_a_large_file) {
    enum { ROWS = 4000 };
    static size_t begins[ROWS];
    char path[64], rows[80];
    ravel__rng dice = ravel__rng_seed(check_seed());
    ravel__reading data;
    ravel__line_index index;
    temporary_file("", path, sizeof path);
    (void)snprintf(rows, sizeof rows, "%s.rows", path);
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    if (!f) return;
    for (int64_t i = 0; i < ROWS; i++) {
        while (ravel__rng_below(&dice, 4) == 0) (void)fputs(ravel__rng_below(&dice, 2) ? " \t\r\n" : "\n", f);
        for (uint64_t blanks = ravel__rng_below(&dice, 3); blanks > 0; blanks--) (void)fputc(' ', f);
        begins[i] = (size_t)ftell(f);
        for (uint64_t n = 1 + ravel__rng_below(&dice, 1200); n > 0; n--) (void)fputc('x', f);
        if (i + 1 < ROWS) (void)fputc('\n', f);
    }
    CHECK(fclose(f) == 0);
    for (int keep = 0; keep < 3; keep++) { /* never; made; read */
        size_t begin, end;
        CHECK_EQ(ravel__reading_open(path, &data, NULL), RAVEL_OK);
        CHECK_EQ(ravel__line_index_open(&index, &data, keep ? RAVEL_INDEX_ALWAYS : RAVEL_INDEX_NEVER, NULL, NULL),
                 RAVEL_OK);
        CHECK_EQ(index.rows, ROWS);
        for (int64_t i = 0; i < ROWS; i++) {
            CHECK_EQ(ravel__line_index_find(&index, i, &begin, &end, NULL), RAVEL_OK);
            CHECK(begin <= begins[i] && begin + 2 >= begins[i] && end > begins[i]);
        }
        ravel__line_index_close(&index, NULL);
        ravel__reading_close(&data);
    }
    (void)unlink(rows);
    (void)unlink(path);
}

/* A file that is cut short, or written to, while it is open: reading it is an error from then on. */
TEST(source_file_that_changes_is_an_error) {
    char path[64];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source_options options;
    ravel_source *source;
    ravel_reader *reader;
    const ravel_samples *s;
    temporary_file("{\"input_ids\": [1]}\n{\"input_ids\": [2, 3]}\n{\"input_ids\": [4]}\n", path, sizeof path);
    ravel_source_options_default(&options);
    options.data = path;
    CHECK_OK(ravel_source_open(&options, &source, &err), &err);
    CHECK_OK(ravel_reader_create(source, NULL, NULL, &reader, &err), &err);
    CHECK_OK(ravel_reader_read(reader, (const int64_t[]){1}, 1, &s, &err), &err);
    CHECK(truncate(path, 30) == 0); /* within the second row */
    for (int64_t row = 0; row < 3; row++) {
        ravel_error_clear(&err);
        CHECK_EQ(ravel_reader_read(reader, &row, 1, &s, &err), RAVEL_E_IO);
        CHECK_HAS(err.message, row ? "cut short" : "changed");
    }
    write_text(path, "w", "{\"input_ids\": [1]}\n{\"input_ids\": [2, 4]}\n{\"input_ids\": [4]}\n"); /* the same size */
    ravel_error_clear(&err);
    CHECK_EQ(ravel_reader_read(reader, (const int64_t[]){1}, 1, &s, &err), RAVEL_E_IO);
    CHECK_HAS(err.message, "changed while it was being read");
    ravel_reader_free(reader);
    ravel_source_free(source);
    (void)unlink(path);
}

/* Every word of an index that is changed makes it a bad one; none of them is believed. */
TEST(source_index_survives_any_change) {
    char path[64], rows[80];
    int64_t words[10], bad[10], count = 0;
    temporary_file("{\"a\":1}\n{\"a\":2}\n{\"a\":3}\n", path, sizeof path);
    (void)snprintf(rows, sizeof rows, "%s.rows", path);
    CHECK_EQ(index_made(path, RAVEL_INDEX_ALWAYS, 3, 16), 1);
    FILE *f = fopen(rows, "rb");
    CHECK(f && fread(words, sizeof *words, 10, f) == 10);
    if (f) (void)fclose(f);
    CHECK(ravel__line_index_valid(words, 10, words[2], words[3], words[4], &count) && count == 3);
    for (int i = 0; i < 10; i++)
        for (int bit = 0; bit < 64; bit += 7) {
            memcpy(bad, words, sizeof bad);
            bad[i] ^= (int64_t)(UINT64_C(1) << bit);
            CHECK(!ravel__line_index_valid(bad, 10, words[2], words[3], words[4], &count));
        }
    for (size_t n = 0; n < 10; n++) CHECK(!ravel__line_index_valid(words, n, words[2], words[3], words[4], &count));
    (void)unlink(rows);
    (void)unlink(path);
}

/* ---- arrays --------------------------------------------------------------------------------------------- */

static size_t add_blanks(ravel__rng *dice, char *text, size_t used) {
    static const char *const blanks[] = {"", " ", "\n", "\r\n\t", "   \n\n"};
    const char *blank = blanks[ravel__rng_below(dice, 5)];
    memcpy(text + used, blank, strlen(blank));
    return used + strlen(blank);
}

/* The same rows as lines and as an array with any blanks between them give the same samples. */
TEST(source_array_is_read_like_lines) {
    static const char *const forms[] = {"{\"input_ids\": [5, %d]}", "{\"text\": \"a,] } \\\" \\\\ [%d\"}",
                                        "{\"prompt\": \"{[,%d\", \"response\": \"x\", \"more\": [[1], {\"a\": []}]}"};
    ravel__rng dice = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_scale(30, 2000); round++) {
        char lines[8192] = "", array[8192], path[100];
        int64_t count = 1 + (int64_t)ravel__rng_below(&dice, 40), tokens[2] = {0, 0};
        uint64_t hashes[2] = {0, 0};
        size_t l = 0, a = add_blanks(&dice, array, 0);
        array[a++] = '[';
        for (int64_t i = 0; i < count; i++) {
            char row[200];
            (void)snprintf(row, sizeof row, forms[ravel__rng_below(&dice, 3)], (int)i); /* NOLINT */
            l += (size_t)snprintf(lines + l, sizeof lines - l, "%s\n", row);
            a = add_blanks(&dice, array, a);
            a += (size_t)snprintf(array + a, sizeof array - a, "%s", row);
            a = add_blanks(&dice, array, a);
            array[a++] = i + 1 < count ? ',' : ']';
        }
        a = add_blanks(&dice, array, a);
        array[a] = '\0';
        for (int form = 0; form < 2; form++) {
            ravel_error err = RAVEL_ERROR_INIT;
            ravel_source *source = NULL;
            ravel_reader *reader = NULL;
            const ravel_samples *s = NULL;
            ravel_source_options options = options_for(temporary_file(form ? array : lines, path, sizeof path));
            CHECK_OK(read_all(&options, NULL, &source, &reader, &s, &err), &err);
            CHECK(s && s->ragged.count == count);
            tokens[form] = s ? s->ragged.offsets[s->ragged.count] : -1;
            for (int64_t t = 0; t < tokens[form]; t++)
                hashes[form] = hashes[form] * 31 + (uint64_t)((const int32_t *)s->ragged.fields[0].data)[t];
            ravel_reader_free(reader);
            ravel_source_free(source);
            (void)unlink(path);
        }
        CHECK(tokens[0] == tokens[1] && hashes[0] == hashes[1]);
    }
}

TEST(source_array_that_is_broken_is_refused) {
    static const struct {
        const char *text, *says;
    } cases[] = {{"[]", "has no rows"},
                 {"[{\"text\": \"a\"}", "does not end"},
                 {"[{\"text\": \"a]", "does not end"},
                 {"[{\"text\": \"a\"}]\n{\"text\": \"b\"}\n", "after the end of the array"},
                 {"[{\"text\": \"a\"}\n {\"text\": \"b\"}]", ".jsonl:1"},
                 {"[{\"text\": \"a\"},\n\n {\"text\": 3}]", ".jsonl:3"},
                 {"[{\"text\": \"a\"},\n 7]", ".jsonl:2"},
                 {"[{\"text\": \"a\"},,\n {\"text\": \"b\"}]", ".jsonl:1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[100];
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_source *source = NULL;
        ravel_reader *reader = NULL;
        const ravel_samples *s = NULL;
        ravel_source_options options = options_for(temporary_file(cases[i].text, path, sizeof path));
        CHECK_EQ(read_all(&options, NULL, &source, &reader, &s, &err), RAVEL_E_DATA);
        CHECK(strstr(err.message, cases[i].says));
        if (!strstr(err.message, cases[i].says)) printf("    %s: %s\n", cases[i].text, err.message);
        ravel_reader_free(reader);
        ravel_source_free(source);
        (void)unlink(path);
    }
}

/* A program that was compiled when the options had fewer fields. */
TEST(source_options_of_an_older_program) {
    ravel_source_options o;
    ravel_source *source = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source_options_default(&o);
    o.mock = "{\"mode\": \"distribution\", \"type\": \"constant\", \"mean_seq_len\": 7, \"count\": 3}";
    o.size = offsetof(ravel_source_options, index);
    o.index = 99; /* after its end: not read */
    CHECK_OK(ravel_source_open(&o, &source, &err), &err);
    CHECK_EQ(ravel_source_count(source), 3);
    ravel_source_free(source);
    source = NULL;
    o.size = 0;
    CHECK_EQ(ravel_source_open(&o, &source, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "source options: size is 0; fill them with ravel_source_options_default");
    CHECK(!source);
}
