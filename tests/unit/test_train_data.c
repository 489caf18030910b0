/* The check of all rows before the first update: the same findings on any number of ranks, all problems in one error with
 * file and line, progress, and a file that changes is noticed. */
#include "tests/unit/train_job.h"

#include "train/run/data/data.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROWS = 1000 };

typedef struct check_job {
    train_data_rules rules;
    const char *path;
    train_data_file file;
    train_data_found found;
    int calls, wrong; /* of progress */
    char said[400];   /* by the logger */
} check_job;

static void note_progress(void *user, const char *what, double done, double total) {
    check_job *j = user;
    j->calls++;
    j->wrong += done < 0 || done > total || !strstr(what, j->path) ||
                (strncmp(what, "reading ", 8) && strncmp(what, "checking ", 9));
}

static void note_remark(void *user, ravel_log_level level, const char *text) {
    check_job *j = user;
    if (level == RAVEL_LOG_WARN) (void)snprintf(j->said, sizeof j->said, "%s", text);
}

static ravel_status look(ravel_comm *comm, void *user, ravel_error *err) {
    check_job *j = user;
    int first = ravel_comm_rank(comm) == 0;
    train_progress progress = {note_progress, j, NULL};
    ravel_logger logger = {note_remark, j};
    train_data_file file;
    train_data_found found = {0};
    ravel_status status = train_data_open(j->path, comm, first ? &progress : NULL, &file, err);
    if (!status) status = train_data_check(&j->rules, comm, first ? &progress : NULL, &logger, &found, err);
    if (first) j->file = file;
    if (first) j->found = found;
    return status;
}

/* Row i has i % 7 + 2 tokens; every 100th is bad, and row 555 too long. */
static void write_rows(char *path, int bad) {
    strcpy(path, "/tmp/ravel-rows-XXXXXX");
    FILE *f = fdopen(mkstemp(path), "w");
    for (int i = 0; i < ROWS; i++) {
        if (bad && i % 100 == 50) {
            (void)fprintf(f, "{\"tokens\": 3}\n\n");
            continue;
        }
        (void)fprintf(f, "{\"input_ids\": [1");
        for (int t = 1; t < (bad && i == 555 ? 40 : i % 7 + 2); t++) (void)fprintf(f, ", 5");
        (void)fprintf(f, "]}\n");
    }
    (void)fclose(f);
}

static void job_for(check_job *j, ravel_source_options *source, ravel_plan_options *plan, const char *path) {
    ravel_source_options_default(source);
    ravel_plan_options_default(plan);
    source->data = path;
    plan->budget = 16;
    *j = (check_job){.path = path, .rules = {.source = source, .plan = plan}};
}

TEST(train_data_is_checked_as_a_whole) {
    char path[64], where[128];
    check_job j;
    ravel_source_options source;
    ravel_plan_options plan;
    write_rows(path, 1);
    for (int32_t ranks = 1; ranks <= 3; ranks++) {
        ravel_error err = RAVEL_ERROR_INIT;
        job_for(&j, &source, &plan, path);
        CHECK_EQ(ravel_threads_run(ranks, NULL, look, &j, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, "10 bad rows");
        CHECK_HAS(err.message, "1 sample over the budget, the longest has 40 tokens");
        (void)snprintf(where, sizeof where, "%s:51: ", path); /* lines as an editor counts them */
        CHECK_HAS(err.message, where);
        (void)snprintf(where, sizeof where, "%s:152: ", path); /* a blank line came before it */
        CHECK_HAS(err.message, where);
        CHECK_HAS(err.message, "and 6 more");
        CHECK(j.calls > 1 && j.wrong == 0);
        ravel_error_clear(&err);
        job_for(&j, &source, &plan, path);
        source.bad_rows = RAVEL_BAD_ROWS_SKIP;
        plan.oversize = RAVEL_OVERSIZE_SKIP;
        CHECK_OK(ravel_threads_run(ranks, NULL, look, &j, &err), &err);
        CHECK(j.found.rows == ROWS && j.found.bad == 10 && j.found.oversize == 1 && j.found.samples == ROWS - 10);
        CHECK(j.found.longest == 40 && j.found.loss_tokens == j.found.tokens - (ROWS - 11) && j.found.lossless == 0);
        CHECK_HAS(j.said, "1 sample over the budget is skipped");
    }
    (void)unlink(path);
}

TEST(train_data_that_changes_is_noticed) {
    char path[64], other[64];
    check_job j, again;
    ravel_source_options source;
    ravel_plan_options plan;
    ravel_error err = RAVEL_ERROR_INIT;
    write_rows(path, 0);
    write_rows(other, 0);
    job_for(&j, &source, &plan, path);
    CHECK_OK(ravel_threads_run(2, NULL, look, &j, &err), &err);
    j.file.path = path;
    CHECK(!train_data_changed(&j.file));
    job_for(&again, &source, &plan, other);
    CHECK_OK(ravel_threads_run(3, NULL, look, &again, &err), &err);
    CHECK(again.file.bytes == j.file.bytes && again.file.digest == j.file.digest); /* the same content */
    FILE *f = fopen(other, "r+");
    (void)fputs("{\"input_ids\": [2", f);
    (void)fclose(f);
    again.file.path = other;
    CHECK(train_data_changed(&again.file));
    uint64_t before = again.file.digest;
    CHECK_OK(ravel_threads_run(1, NULL, look, &again, &err), &err);
    CHECK(again.file.bytes == j.file.bytes && again.file.digest != before); /* one byte of another value */
    (void)unlink(path);
    (void)unlink(other);
    CHECK(train_data_changed(&j.file));
}

/* ---- several files, and what is evaluated --------------------------------------------------------------- */

/* A file of rows whose one token is `first`, first + 1, ... */
static void write_numbers(char *path, int first, int rows) {
    strcpy(path, "/tmp/ravel-rows-XXXXXX");
    FILE *f = fdopen(mkstemp(path), "w");
    for (int i = 0; i < rows; i++) (void)fprintf(f, "{\"input_ids\": [%d, 1]}\n", first + i);
    (void)fclose(f);
}

/* How often each number is in a source. */
static void count_numbers(const train_rows_options *o, train_rows_part part, int *times, int most, int64_t *total) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source *source = NULL;
    ravel_reader *reader = NULL;
    memset(times, 0, (size_t)most * sizeof *times);
    CHECK_OK(train_rows_open(o, part, &source, &err), &err);
    if (!source) return;
    CHECK_OK(ravel_reader_create(source, NULL, NULL, &reader, &err), &err);
    int64_t count = ravel_source_count(source);
    for (int64_t row = 0; row < count; row++) {
        const ravel_samples *samples;
        CHECK_OK(ravel_reader_read(reader, &row, 1, &samples, &err), &err);
        int32_t number = ((const int32_t *)samples->ragged.fields[0].data)[0];
        CHECK(number >= 0 && number < most);
        times[number]++;
    }
    ravel_reader_free(reader);
    ravel_source_free(source);
    *total = count;
}

TEST(train_data_mixes_files_by_weight) {
    enum { MOST = 400, CASES = 3 };
    static const double weights[CASES][2] = {{1, 1}, {0.7, 0.3}, {0.01, 0.99}};
    char a[64], b[64], data[200];
    int times[MOST], again[MOST];
    int64_t count = 0;
    write_numbers(a, 0, 100);
    write_numbers(b, 100, 290);
    ravel_source_options source;
    ravel_source_options_default(&source);
    source.data = data;
    train_rows_options o = {.source = &source};
    (void)snprintf(data, sizeof data, "%s %s", a, b); /* without weights: all rows once */
    count_numbers(&o, TRAIN_ROWS_LEARN, times, MOST, &count);
    CHECK_EQ(count, 390);
    for (int i = 0; i < 390; i++) CHECK_EQ(times[i], 1);
    for (int c = 0; c < CASES; c++) {
        (void)snprintf(data, sizeof data, "%s:%g  %s:%g", a, weights[c][0], b, weights[c][1]);
        int64_t of_a = 0;
        count_numbers(&o, TRAIN_ROWS_LEARN, times, MOST, &count);
        int least[2] = {1000, 1000}, most[2] = {0, 0};
        for (int i = 0; i < 390; i++) {
            int f = i >= 100;
            of_a += f ? 0 : times[i];
            least[f] = times[i] < least[f] ? times[i] : least[f];
            most[f] = times[i] > most[f] ? times[i] : most[f];
        }
        double share = weights[c][0] / (weights[c][0] + weights[c][1]);
        CHECK(fabs((double)of_a - share * (double)count) <= 1);
        CHECK(least[0] >= 1 && least[1] >= 1 &&
              (least[0] == 1 || least[1] == 1)); /* no row is lost, one file is once */
        CHECK(most[0] - least[0] <= 1 && most[1] - least[1] <= 1);
        int64_t all = 0;
        count_numbers(&o, TRAIN_ROWS_ALL, again, MOST, &all);
        CHECK_EQ(all, 390);
    }
    (void)unlink(a);
    (void)unlink(b);
}

TEST(train_data_keeps_rows_apart_for_evaluation) {
    enum { MOST = 400 };
    char a[64], b[64], data[200];
    int learnt[MOST], evaluated[MOST], tail = 0;
    int64_t count = 0;
    write_numbers(a, 0, 100);
    write_numbers(b, 100, 290);
    (void)snprintf(data, sizeof data, "%s:3 %s:1", a, b);
    ravel_source_options source;
    ravel_source_options_default(&source);
    source.data = data;
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        train_rows_options o = {&source, 0, 0.1, shuffle};
        count_numbers(&o, TRAIN_ROWS_LEARN, learnt, MOST, &count);
        count_numbers(&o, TRAIN_ROWS_EVAL, evaluated, MOST, &count);
        CHECK_EQ(count, 39); /* 10 and 29, each once */
        for (int i = 0; i < 390; i++) CHECK((learnt[i] > 0) != (evaluated[i] > 0) && evaluated[i] <= 1);
        tail = 0;
        for (int i = 90; i < 100; i++) tail += evaluated[i];
        CHECK(shuffle ? tail < 10 : tail == 10);
    }
    (void)unlink(a);
    (void)unlink(b);
}

TEST(train_data_names_are_read) {
    static const struct {
        const char *data, *says;
        int count, weighted;
    } cases[] = {{"a.jsonl", NULL, 1, 0},
                 {"a.jsonl b.jsonl", NULL, 2, 0},
                 {"a:0.7 b:0.3", NULL, 2, 1},
                 {"a\\ b:1 c:2", NULL, 2, 1},
                 {"a:0.7", NULL, 1, 0},
                 {"a:0 b:1", "1 of 2 files in --data have a weight", 0, 0},
                 {"a b:1", "have a weight", 0, 0},
                 {" ", "is empty", 0, 0},
                 {"a:x b:y", NULL, 2, 0},
                 {"1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17", "at most", 0, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_files files;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_status status = train_files_parse(cases[i].data, &files, &err);
        CHECK_EQ(status, cases[i].says ? RAVEL_E_ARGUMENT : RAVEL_OK);
        if (cases[i].says) CHECK(strstr(err.message, cases[i].says));
        if (!status) CHECK(files.count == cases[i].count && files.weighted == cases[i].weighted);
    }
    train_files files;
    CHECK(!train_files_parse("a\\ b:0.25 c:2", &files, NULL));
    CHECK_STR(files.paths[0], "a b");
    CHECK(files.weights[0] == 0.25 && files.weights[1] == 2);
}
