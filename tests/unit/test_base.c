/* Errors, memory, random numbers, JSON, option tables. */
#include "tests/unit/check.h"

#include "base/hash.h"
#include "base/memory.h"
#include "base/rng.h"
#include "tests/unit/normal.h"

#include "base/json.h"
#include "base/options.h"
#include <ravel/options.h>

TEST(error_first_one_wins_and_long_ones_are_cut) {
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_error_set(&err, RAVEL_E_DATA, "row %d is odd", 3), RAVEL_E_DATA);
    CHECK_EQ(ravel_error_set(&err, RAVEL_E_IO, "later"), RAVEL_E_IO);
    CHECK_EQ(err.status, RAVEL_E_DATA);
    ravel_error_prefix(&err, "file.csv");
    CHECK_STR(err.message, "file.csv: row 3 is odd");
    ravel_error_clear(&err);
    char big[3000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = '\0';
    ravel_error_set(&err, RAVEL_E_DATA, "%s", big);
    CHECK_EQ(strlen(err.message), RAVEL_ERROR_MESSAGE_BYTES - 1);
    CHECK_STR(err.message + RAVEL_ERROR_MESSAGE_BYTES - 4, "...");
    CHECK_STR(ravel_status_name(RAVEL_E_PEER_LOST), "E_PEER_LOST");
    CHECK_STR(ravel_status_name((ravel_status)999), "E_UNKNOWN");
}

TEST(arena_pieces_are_aligned_and_do_not_overlap) {
    check_memory memory;
    check_memory_init(&memory);
    ravel__arena arena;
    ravel__arena_init(&arena, &memory.allocator, 256);
    unsigned char *pieces[50];
    for (int i = 0; i < 50; i++) {
        pieces[i] = ravel__arena_push(&arena, (size_t)i, 7);
        CHECK(pieces[i] && (uintptr_t)pieces[i] % RAVEL__ALIGN == 0);
        memset(pieces[i], i, (size_t)i * 7);
    }
    for (int i = 0; i < 50; i++)
        for (int j = 0; j < i * 7; j++) CHECK_EQ(pieces[i][j], i);
    ravel__mark mark = ravel__arena_mark(&arena);
    int64_t live = memory.live;
    CHECK(ravel__arena_push(&arena, 1, 10000));
    ravel__arena_rewind(&arena, mark);
    CHECK_EQ(memory.live, live);
    CHECK(!ravel__arena_push(&arena, SIZE_MAX / 2, 3));
    ravel__arena_free(&arena);
    CHECK_EQ(memory.blocks, 0);
}

TEST(rng_is_the_same_everywhere_and_below_is_in_range) {
    ravel__rng r = ravel__rng_seed(1); /* fixed: its first number is known */
    uint64_t fixed = ravel__rng_next(&r);
    CHECK(fixed == UINT64_C(12966619160104079557)); /* a change here changes every mock data set */
    for (int i = 0; i < 1000; i++) CHECK(ravel__rng_below(&r, 7) < 7);
    double sum = 0, square = 0;
    for (int i = 0; i < 20000; i++) {
        double x = ravel__rng_normal(&r);
        sum += x;
        square += x * x;
    }
    CHECK(sum / 20000 < 0.05 && sum / 20000 > -0.05 && square / 20000 > 0.95 && square / 20000 < 1.05);
}

TEST(hash_depends_on_order_and_length) {
    const int64_t a[] = {1, 2, 3}, b[] = {2, 1, 3};
    ravel__hash x = ravel__hash_begin(0), y = x, z = x;
    ravel__hash_i64s(&x, a, 3);
    ravel__hash_i64s(&y, b, 3);
    ravel__hash_i64s(&z, a, 2);
    CHECK(ravel__hash_end(x) != ravel__hash_end(y));
    CHECK(ravel__hash_end(x) != ravel__hash_end(z));
}

/* ---- JSON ----------------------------------------------------------------------------------------------- */

static ravel_status parse(const char *text, ravel__json **doc, ravel_error *err) {
    return ravel__json_parse(text, strlen(text), NULL, doc, err);
}

TEST(json_reads_values) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__json *doc = NULL;
    CHECK_OK(
        parse(" {\"a\": [1, -2.5, {\"b\": \"x\\u00e9\\ud83d\\ude00\"}], \"n\": {\"deep\": {\"er\": 7}}, \"t\": true}",
              &doc, &err),
        &err);
    const ravel__json_node *root = ravel__json_root(doc), *a = ravel__json_get(doc, root, "a");
    CHECK_EQ(root->count, 3);
    CHECK_EQ(a->count, 3);
    const ravel__json_node *item = ravel__json_first(doc, a);
    int64_t whole;
    double real;
    int flag;
    CHECK(ravel__json_integer(item, &whole) && whole == 1);
    item = ravel__json_next(doc, item);
    CHECK(!ravel__json_integer(item, &whole) && ravel__json_real(item, &real) && real == -2.5);
    item = ravel__json_next(doc, item);
    CHECK(ravel__json_is(ravel__json_get(doc, item, "b"), "x\xc3\xa9\xf0\x9f\x98\x80"));
    CHECK(!ravel__json_next(doc, item));
    CHECK(ravel__json_integer(ravel__json_path(doc, root, "n.deep.er"), &whole) && whole == 7);
    CHECK(!ravel__json_path(doc, root, "n.shallow.er"));
    CHECK(ravel__json_boolean(ravel__json_get(doc, root, "t"), &flag) && flag);
    CHECK_OK(parse("[9223372036854775807, 9223372036854775808, 1e400]", &doc, &err) == RAVEL_E_DATA ? RAVEL_OK
                                                                                                    : RAVEL_E_INTERNAL,
             &err);
    ravel_error_clear(&err);
    CHECK_OK(parse("[9223372036854775807, 9223372036854775808]", &doc, &err), &err);
    item = ravel__json_first(doc, ravel__json_root(doc));
    CHECK(item->kind == RAVEL__JSON_INTEGER && item->as.integer == INT64_MAX);
    CHECK(ravel__json_next(doc, item)->kind == RAVEL__JSON_REAL);
    ravel__json_free(doc);
}

TEST(json_says_where_it_is_wrong) {
    static const struct {
        const char *text, *says;
    } cases[] = {{"", "expected a value, found the end"},
                 {"{\"a\":1,\n \"b\" 2}", "line 2, column 6: expected ':'"},
                 {"[1,2", "',' or ']'"},
                 {"[1,]", "expected a value"},
                 {"{\"a\":1,}", "'\"'"},
                 {"01", "leading 0"},
                 {"1 2", "nothing after"},
                 {"\"\\x\"", "escape"},
                 {"\"\\udc00\"", "surrogate"},
                 {"\"\xff\"", "UTF-8"},
                 {"nul", "a value"},
                 {"-", "a digit"},
                 {"\"a\nb\"", "control character"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel__json *doc = NULL;
        CHECK_EQ(parse(cases[i].text, &doc, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, cases[i].says);
        CHECK(!doc);
    }
}

static ravel_status json_body(const ravel_allocator *allocator, void *user) {
    ravel__json *doc = NULL;
    ravel_status status = ravel__json_parse(user, strlen(user), allocator, &doc, NULL);
    ravel__json_free(doc);
    return status;
}

TEST(json_survives_every_failed_allocation) {
    char text[] = "[[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18],\"x\"]";
    CHECK(check_every_allocation(json_body, text) >= 3);
}

TEST(json_quotes) {
    char out[64];
    CHECK_EQ(ravel__json_quote("a\"\n\x01\xff", 5, out, sizeof out), strlen("\"a\\\"\\n\\u0001\xef\xbf\xbd\""));
    CHECK_STR(out, "\"a\\\"\\n\\u0001\xef\xbf\xbd\"");
    CHECK_EQ(ravel__json_quote("abc", 3, out, 3), 5);
    CHECK_STR(out, "\"a");
}

/* ---- options -------------------------------------------------------------------------------------------- */

typedef struct sample_options {
    int64_t budget;
    int32_t dp, sync, flag;
    uint64_t seed;
    double ratio;
    const char *path;
} sample_options;

static const ravel_option sample_table[] = {
    {"budget", RAVEL_OPTION_I64, offsetof(sample_options, budget), "8k", 1, 1e12, NULL, "tokens"},
    {"dp", RAVEL_OPTION_I32, offsetof(sample_options, dp), "1", 1, 1 << 20, NULL, "ranks"},
    {"sync-kind", RAVEL_OPTION_ENUM, offsetof(sample_options, sync), "update", 0, 0, "micro-step|update|pipeline", "x"},
    {"flag", RAVEL_OPTION_BOOL, offsetof(sample_options, flag), "false", 0, 0, NULL, "x"},
    {"seed", RAVEL_OPTION_U64, offsetof(sample_options, seed), "0", 0, 0, NULL, "x"},
    {"ratio", RAVEL_OPTION_F64, offsetof(sample_options, ratio), "0.02", 0, 1, NULL, "x"},
    {"path", RAVEL_OPTION_STRING, offsetof(sample_options, path), NULL, 0, 0, NULL, "x"},
    {0}};

TEST(options_come_from_the_table) {
    sample_options o;
    memset(&o, 0xff, sizeof o);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_options_default(sample_table, &o);
    CHECK(o.budget == 8192 && o.dp == 1 && o.sync == 1 && !o.flag && o.ratio == 0.02 && !o.path);
    CHECK_OK(ravel_option_set(sample_table, &o, "budget", "16k", &err), &err);
    CHECK_EQ(o.budget, 16384);
    CHECK_OK(ravel_option_set(sample_table, &o, "sync_kind", "micro_step", &err), &err);
    CHECK_EQ(o.sync, 0);
    CHECK_OK(ravel_option_set(sample_table, &o, "seed", "0xffffffffffffffff", &err), &err);
    CHECK(o.seed == UINT64_MAX);
    ravel__json *doc = NULL;
    CHECK_OK(parse("{\"dp\": 4, \"flag\": true, \"ratio\": 0.5, \"path\": \"a\\\"b\", \"budget\": \"1M\"}", &doc, &err),
             &err);
    CHECK_OK(ravel__options_from_json(sample_table, &o, doc, ravel__json_root(doc), &err), &err);
    CHECK(o.dp == 4 && o.flag && o.ratio == 0.5 && strcmp(o.path, "a\"b") == 0 && o.budget == 1048576);
    char text[64];
    ravel_option_format(ravel_option_find(sample_table, "ratio"), &o, text, sizeof text);
    CHECK_STR(text, "0.5");
    ravel__json_free(doc);
}

TEST(options_refuse_with_a_sentence) {
    static const struct {
        const char *name, *value, *says;
    } cases[] = {{"budget", "16q", "budget: \"16q\" is not a whole number"},
                 {"budget", "0", "budget is 0; it must be from 1 to"},
                 {"bugdet", "1", "did you mean \"budget\"?"},
                 {"sync-kind", "never", "must be one of micro-step|update|pipeline"},
                 {"dp", "99999999999", "does not fit 32 bits"},
                 {"budget", "99999999999999999999", "does not fit 64 bits"},
                 {"flag", "maybe", "neither true nor false"},
                 {"ratio", "2", "it must be from 0 to 1"},
                 {"ratio", "nan", "not a number"},
                 {"seed", "-1", "non-negative"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sample_options o;
        ravel_options_default(sample_table, &o);
        sample_options before = o;
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK(ravel_option_set(sample_table, &o, cases[i].name, cases[i].value, &err) != RAVEL_OK);
        CHECK_HAS(err.message, cases[i].says);
        CHECK(memcmp(&o, &before, sizeof o) == 0);
    }
}

TEST(sizes_take_suffixes) {
    static const struct {
        const char *text;
        int64_t value;
    } good[] = {{"0", 0},     {"-3", -3}, {"16k", 16384}, {"1M", 1 << 20}, {"1.5k", 1536}, {"2GiB", INT64_C(2) << 30},
                {"4KB", 4096}};
    ravel_error err = RAVEL_ERROR_INIT;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        int64_t value = -1;
        CHECK_OK(ravel__parse_size(good[i].text, &value, &err), &err);
        CHECK_EQ(value, good[i].value);
    }
    static const char *const bad[] = {"", " 1", "k", "1kk", "1.3", "1e3", "0x10", "8388608T", "1 k"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t value;
        CHECK(ravel__parse_size(bad[i], &value, NULL) != RAVEL_OK);
    }
}
