/* Where prompts come from: tasks within their bound, files in an order of their own each time, evaluation apart. */
#include "tests/unit/check.h"

#include "train/rl/prompts.h"

#include <stdlib.h>
#include <unistd.h>

enum { ROWS = 10 };

static void write_rows(char *path, const char *bad) {
    strcpy(path, "/tmp/ravel-prompts-XXXXXX");
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    for (int i = 0; i < ROWS; i++) (void)fprintf(f, "{\"prompt\": \"q%d\", \"answer\": \"a%d\"}\n\n", i, i);
    if (bad) (void)fprintf(f, "%s\n", bad);
    (void)fclose(f);
}

/* The row that question `index` is, by its prompt; the answer must be of the same row. */
static int row_of(const train_prompts *p, int64_t index) {
    train_rollouts rollouts;
    train_question q;
    size_t bytes;
    memset(&rollouts, 0, sizeof rollouts);
    ravel_error err = RAVEL_ERROR_INIT;
    if (!EXPECT(train_prompts_add(p, index, &rollouts, &err) == RAVEL_OK)) return -1;
    EXPECT(rollouts.items[0].group == index && rollouts.items[0].prompt == 3 && rollouts.tokens[0] == TRAIN_TOKEN_BOS);
    int row = rollouts.tokens[2] - '0';
    const char *answer = train_prompts_answer(p, index, &q, &bytes);
    EXPECT(bytes == 2 && answer[0] == 'a' && answer[1] == '0' + row);
    train_rollouts_free(&rollouts);
    return row;
}

TEST(train_prompts_of_a_file_come_in_another_order_each_time) {
    char path[64];
    train_prompts *p = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    write_rows(path, NULL);
    train_text *text = NULL;
    CHECK_OK(train_text_open(NULL, 320, NULL, NULL, &text, &err), &err);
    train_prompts_options o = {.data = path, .text = text, .vocab = 320, .seed = 5, .eval_share = 0.25};
    CHECK_OK(train_prompts_open(&o, &p, &err), &err);
    CHECK(train_prompts_longest(p) == 3 && train_prompts_eval_apart(p));
    CHECK(train_prompts_eval_count(p, 64) == 2 && train_prompts_eval_count(p, 1) == 1);
    CHECK(row_of(p, TRAIN_EVAL_FIRST) == 8 && row_of(p, TRAIN_EVAL_FIRST + 1) == 9);
    int moved = 0;
    for (int epoch = 0; epoch < 3; epoch++) { /* rows 0 .. 7, each once, never those of the evaluation */
        int seen[ROWS] = {0};
        for (int i = 0; i < 8; i++) {
            int row = row_of(p, epoch * 8 + i);
            CHECK(row < 8 && !seen[row]++);
            moved += row != row_of(p, i);
        }
    }
    CHECK(moved > 0);
    train_prompts_free(p);
    o.eval_share = 0;
    o.eval_data = path; /* all of its rows, behind all of the others */
    CHECK_OK(train_prompts_open(&o, &p, &err), &err);
    CHECK(train_prompts_eval_apart(p) && train_prompts_eval_count(p, 64) == ROWS && train_prompts_rows(p) == 2 * ROWS);
    for (int i = 0; i < ROWS; i++) CHECK(row_of(p, TRAIN_EVAL_FIRST + i) == i && row_of(p, i) < ROWS);
    train_prompts_free(p);
    o.eval_data = NULL;
    CHECK_OK(train_prompts_open(&o, &p, &err), &err);
    CHECK(!train_prompts_eval_apart(p) && train_prompts_eval_count(p, 64) == ROWS);
    train_prompts_free(p);
    o.eval_share = 0.01;
    CHECK_EQ(train_prompts_open(&o, &p, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "leaves nothing to evaluate");
    train_text_free(text);
    (void)unlink(path);
}

TEST(train_prompts_bad_rows_are_named) {
    static const char *const rows[] = {"{\"text\": \"x\"}", "{\"input_ids\": [1, 320]}", "{\"input_ids\": []}",
                                       "nonsense"};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[64];
        train_prompts *p = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        train_text *text = NULL;
        write_rows(path, rows[i]);
        CHECK_OK(train_text_open(NULL, 320, NULL, NULL, &text, &err), &err);
        train_prompts_options o = {.data = path, .text = text, .vocab = 320};
        CHECK_EQ(train_prompts_open(&o, &p, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, ":21: ");
        CHECK_HAS(err.message, "1 of 11 rows");
        o.bad_rows = RAVEL_BAD_ROWS_SKIP;
        ravel_error_clear(&err);
        CHECK_OK(train_prompts_open(&o, &p, &err), &err);
        CHECK(train_prompts_rows(p) == ROWS && train_prompts_left_out(p)->count == 1);
        train_prompts_free(p);
        train_text_free(text);
        (void)unlink(path);
    }
}

TEST(train_prompts_of_tasks_keep_their_bound) {
    for (int32_t t = 0; train_task_name(t); t++)
        for (int32_t level = 1; level <= 12; level++) {
            train_prompts *p = NULL;
            ravel_error err = RAVEL_ERROR_INIT;
            train_prompts_options o = {.task = train_task_name(t), .level = level, .vocab = 320};
            CHECK_OK(train_prompts_open(&o, &p, &err), &err);
            train_rollouts rollouts;
            memset(&rollouts, 0, sizeof rollouts);
            for (int64_t i = 0; i < 100; i++) {
                train_rollouts_clear(&rollouts);
                CHECK_OK(train_prompts_add(p, i, &rollouts, &err), &err);
                CHECK(rollouts.items[0].length <= train_prompts_longest(p));
            }
            train_rollouts_free(&rollouts);
            train_prompts_free(p);
        }
}

/* Numbers and booleans are answers too; without one, and without a command that scores, a row cannot be used. */
TEST(train_prompts_answers_of_every_kind) {
    static const struct {
        const char *row, *answer;
    } rows[] = {{"{\"prompt\": \"a\", \"answer\": 42}", "42"},     {"{\"prompt\": \"a\", \"answer\": true}", "true"},
                {"{\"prompt\": \"a\", \"answer\": -0.5}", "-0.5"}, {"{\"prompt\": \"a\", \"answer\": \"\"}", ""},
                {"{\"prompt\": \"a\", \"answer\": null}", NULL},   {"{\"prompt\": \"a\"}", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char path[64] = "/tmp/ravel-prompts-XXXXXX";
        train_prompts *p = NULL;
        train_text *text = NULL;
        train_question q;
        size_t bytes;
        ravel_error err = RAVEL_ERROR_INIT;
        FILE *f = fdopen(mkstemp(path), "w");
        (void)fprintf(f, "%s\n", rows[i].row);
        (void)fclose(f);
        CHECK_OK(train_text_open(NULL, 320, NULL, NULL, &text, &err), &err);
        train_prompts_options o = {.data = path, .text = text, .vocab = 320, .need_answers = 1};
        ravel_status status = train_prompts_open(&o, &p, &err);
        CHECK_EQ(status, rows[i].answer ? RAVEL_OK : RAVEL_E_DATA);
        if (!status) CHECK_STR(train_prompts_answer(p, 0, &q, &bytes), rows[i].answer);
        train_prompts_free(p);
        train_text_free(text);
        (void)unlink(path);
    }
}

/* Rows are kept as they are for a reward command; an answer that is no text is then in the row alone. */
TEST(train_prompts_keep_their_rows) {
    static const char row[] = "{\"prompt\": \"a\", \"answer\": {\"tests\": [\"x\\ny\"]}, \"level\": 3}";
    char path[64] = "/tmp/ravel-prompts-XXXXXX";
    train_prompts *p = NULL;
    train_text *text = NULL;
    train_question q;
    size_t bytes;
    ravel_error err = RAVEL_ERROR_INIT;
    FILE *f = fdopen(mkstemp(path), "w");
    (void)fprintf(f, "  %s \r\n", row);
    (void)fclose(f);
    CHECK_OK(train_text_open(NULL, 320, NULL, NULL, &text, &err), &err);
    train_prompts_options o = {.data = path, .text = text, .vocab = 320, .keep_lines = 1};
    CHECK_OK(train_prompts_open(&o, &p, &err), &err);
    CHECK_STR(train_prompts_line(p, 0), row);
    CHECK(train_prompts_answer(p, 0, &q, &bytes) == NULL && bytes == 0);
    train_prompts_free(p);
    o.keep_lines = 0, o.need_answers = 1;
    CHECK_EQ(train_prompts_open(&o, &p, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "that is a text, a number or a boolean");
    train_text_free(text);
    (void)unlink(path);
}

/* A model folder without a tokenizer that can be read: ids are shown, texts are refused with the way out. */
TEST(train_text_without_a_tokenizer_shows_ids) {
    static const int32_t ids[] = {5, 31999, 0};
    char folder[] = "/tmp/ravel-text-XXXXXX", out[16];
    const char *piece;
    const int32_t *tokens;
    int64_t count;
    size_t bytes;
    train_text *text = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK(mkdtemp(folder) != NULL);
    CHECK_OK(train_text_open(folder, 32000, NULL, NULL, &text, &err), &err);
    CHECK_HAS(train_text_missing(text), "no tokenizer (tokenizer.json");
    CHECK_EQ(train_text_decode(text, ids, 3, NULL, 0), 9);
    CHECK_EQ(train_text_decode(text, ids, 3, out, sizeof out), 9);
    CHECK_STR(out, "5 31999 0");
    CHECK_EQ(train_text_decode(text, ids, 3, out, 5), 9);
    CHECK_STR(out, "5 31");
    train_text_stream stream;
    CHECK_OK(train_text_stream_open(text, &stream, &err), &err);
    train_text_stream_push(&stream, 31999, &piece, &bytes);
    CHECK(bytes == 6 && memcmp(piece, "31999 ", 6) == 0);
    CHECK_EQ(train_text_encode(text, "a", 1, &tokens, &count, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "ravel.prepare --prompts");
    train_text_free(text);
    CHECK_OK(train_text_open(folder, 320, NULL, NULL, &text, &err), &err); /* a byte model */
    CHECK(train_text_missing(text) == NULL);
    train_text_free(text);
    CHECK(rmdir(folder) == 0);
}
