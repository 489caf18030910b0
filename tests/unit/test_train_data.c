/* The check of all rows before the first update: the same findings on any number of ranks, all problems in one error with
 * file and line, progress, and a file that changes is noticed. */
#include "tests/unit/train_job.h"

#include "train/run/data.h"

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
        CHECK_HAS(err.message, "1 samples over the budget, the longest has 40 tokens");
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
        CHECK_HAS(j.said, "1 samples over the budget are skipped");
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
