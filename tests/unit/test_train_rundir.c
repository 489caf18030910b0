/* Run folders and checkpoints: whatever is interrupted, a folder called step-N is whole. */
#include "tests/unit/check.h"

#include "train/run/rundir.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void scratch(char *path) {
    strcpy(path, "/tmp/ravel-rundir-XXXXXX");
    if (!mkdtemp(path)) check_fail(__FILE__, __LINE__, "no scratch folder");
}

static void wipe(const char *path) {
    char command[TRAIN_PATH + 16];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", path);
    EXPECT(system(command) == 0);
}

/* A checkpoint of two files; dies after `parts` of its steps when that is positive. */
static ravel_status save(const char *run, int64_t step, int64_t keep, int parts, ravel_error *err) {
    char folder[TRAIN_PATH], path[TRAIN_PATH + 32];
    ravel_status status = train_checkpoint_begin(run, step, folder, err);
    if (status) return status;
    for (int i = 0; i < 2; i++) {
        if (parts == i + 1) _exit(0);
        (void)snprintf(path, sizeof path, "%s/file-%d", folder, i);
        FILE *f = fopen(path, "w");
        if (!f) return RAVEL_E_IO;
        (void)fprintf(f, "%lld", (long long)step);
        (void)fclose(f);
    }
    if (parts == 3) _exit(0);
    return train_checkpoint_commit(run, step, keep, -1, err);
}

static int exists(const char *run, const char *name) {
    char path[TRAIN_PATH + 64];
    struct stat s;
    (void)snprintf(path, sizeof path, "%s/%s", run, name);
    return stat(path, &s) == 0;
}

static bool write_file(const char *run, const char *name) {
    char path[TRAIN_PATH];
    FILE *f = train_path_join(path, run, name, NULL) ? NULL : train_file_create(path, NULL);
    return f && fputs("{}", f) >= 0 && train_file_close(f, path, NULL) == RAVEL_OK;
}

static ravel_status open_and_close(const char *run, int resume, int keep, ravel_error *err) {
    train_rundir dir;
    ravel_status status = train_rundir_open(&dir, run, resume, err);
    if (!status) train_rundir_close(&dir, keep);
    return status;
}

TEST(rundir_is_not_written_over) {
    char run[64];
    ravel_error err = RAVEL_ERROR_INIT;
    scratch(run);
    CHECK_EQ(open_and_close(run, 1, 1, &err), RAVEL_E_STATE);
    CHECK_HAS(err.message, "has no config.json");
    ravel_error_clear(&err);
    CHECK_OK(open_and_close(run, 0, 1, &err), &err);
    CHECK(write_file(run, "config.json"));
    CHECK_EQ(open_and_close(run, 0, 0, &err), RAVEL_E_STATE);
    CHECK_HAS(err.message, "holds a run already, without a checkpoint");
    ravel_error_clear(&err);
    CHECK_EQ(open_and_close(run, 1, 1, &err), RAVEL_E_STATE);
    CHECK_HAS(err.message, "has no checkpoint to resume from");
    ravel_error_clear(&err);
    CHECK_OK(save(run, 7, 0, 0, &err), &err);
    CHECK_OK(open_and_close(run, 1, 1, &err), &err);
    CHECK_EQ(open_and_close(run, 0, 0, &err), RAVEL_E_STATE);
    CHECK_HAS(err.message, "resume it");
    CHECK(exists(run, "checkpoints/step-00000007/file-0"));
    ravel_error_clear(&err);
    CHECK_EQ(open_and_close("/dev/null/x", 0, 1, &err), RAVEL_E_IO);
    wipe(run);
}

/* A folder that a run made and left nothing in goes; one that held something stays. */
TEST(rundir_of_a_run_that_did_nothing_is_removed) {
    char run[64], inside[128];
    ravel_error err = RAVEL_ERROR_INIT;
    scratch(run);
    (void)snprintf(inside, sizeof inside, "%s/a/b", run);
    CHECK_OK(open_and_close(inside, 0, 0, &err), &err);
    CHECK(!exists(run, "a/b") && exists(run, "a"));
    CHECK(write_file(run, "notes.txt"));
    CHECK_OK(open_and_close(run, 0, 0, &err), &err);
    CHECK(exists(run, "notes.txt"));
    wipe(run);
}

TEST(rundir_holds_one_process) {
    char run[64], process[32];
    train_rundir dir;
    ravel_error err = RAVEL_ERROR_INIT;
    scratch(run);
    CHECK_OK(train_rundir_open(&dir, run, 0, &err), &err);
    CHECK_EQ(open_and_close(run, 0, 1, &err), RAVEL_E_STATE);
    (void)snprintf(process, sizeof process, "process %lld on this", (long long)getpid());
    CHECK_HAS(err.message, process);
    for (int i = 0; i < 2; i++) { /* to resume: before it has its config.json, and before its first checkpoint */
        ravel_error_clear(&err);
        CHECK_EQ(open_and_close(run, 1, 1, &err), RAVEL_E_STATE);
        CHECK_HAS(err.message, process);
        CHECK(write_file(run, "config.json"));
    }
    CHECK_EQ(train_rundir_free_to_use(run, NULL), RAVEL_E_STATE);
    train_rundir_close(&dir, 1);
    CHECK_EQ(train_rundir_free_to_use(run, NULL), RAVEL_OK);
    char config[128];
    (void)snprintf(config, sizeof config, "%s/config.json", run);
    CHECK(unlink(config) == 0);
    ravel_error_clear(&err);
    CHECK_OK(open_and_close(run, 0, 1, &err), &err);
    wipe(run);
}

TEST(checkpoints_keep_the_newest) {
    char run[64], path[TRAIN_PATH];
    int64_t step;
    ravel_error err = RAVEL_ERROR_INIT;
    scratch(run);
    CHECK_OK(open_and_close(run, 0, 1, &err), &err);
    CHECK_EQ(train_checkpoint_latest(run, &step, path, &err), RAVEL_E_END);
    ravel_error_clear(&err);
    for (int64_t s = 10; s <= 50; s += 10) CHECK_OK(save(run, s, 2, 0, &err), &err);
    CHECK_OK(save(run, 50, 2, 0, &err), &err); /* the same step again */
    CHECK_OK(train_checkpoint_latest(run, &step, path, &err), &err);
    CHECK_EQ(step, 50);
    CHECK(exists(run, "checkpoints/step-00000050/file-1") && exists(run, "checkpoints/step-00000040/file-1"));
    CHECK(!exists(run, "checkpoints/step-00000030"));
    CHECK_OK(train_checkpoint_begin(run, 60, path, &err), &err);
    train_checkpoint_abort(run, 60);
    CHECK(!exists(run, "checkpoints/writing-00000060"));
    wipe(run);
}

TEST(checkpoints_survive_death_at_any_step) {
    char run[64], path[TRAIN_PATH];
    int64_t step;
    ravel_error err = RAVEL_ERROR_INIT;
    scratch(run);
    CHECK_OK(open_and_close(run, 0, 1, &err), &err);
    CHECK_OK(save(run, 1, 3, 0, &err), &err);
    for (int parts = 1; parts <= 3; parts++) {
        pid_t child = fork();
        if (child == 0) {
            save(run, 100 + parts, 3, parts, NULL);
            _exit(1);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        CHECK_OK(train_checkpoint_latest(run, &step, path, &err), &err);
        CHECK_EQ(step, parts); /* the last one that was committed */
        CHECK_OK(save(run, parts + 1, 3, 0, &err), &err);
        CHECK(!exists(run, "checkpoints/writing-00000101"));
    }
    wipe(run);
}
