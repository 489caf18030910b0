/* What a failing sink does: full disks, closed pipes, torn writes, wrong targets. */
#include "tests/unit/check.h"
#include "tests/unit/metrics_place.h"

#include "metrics/sink.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

TEST(metrics_a_full_disk_is_reported_once_and_stops_nothing) {
    if (access("/dev/full", W_OK) != 0) {
        check_skip("there is no /dev/full here");
        return;
    }
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = place_metrics(&p, NULL);
    CHECK_OK(ravel_metrics_sink(m, "jsonl:/dev/full", &err), &err);
    CHECK_OK(place_sink(m, &p, "jsonl", "/good.jsonl", &err), &err);
    CHECK_EQ(ravel_metrics_sink(m, "csv:/dev/full", &err), RAVEL_E_IO); /* its header cannot be written */
    CHECK_HAS(err.message, "sink csv: cannot write: No space left");
    for (int step = 1; step <= 5; step++) place_update(m, step);
    CHECK_EQ(p.lines, 1);
    CHECK_HAS(p.log,
              "metrics sink jsonl:/dev/full: cannot write: No space left on device; training goes on without it");
    CHECK_EQ(ravel_metrics_sinks_failed(m), 1);
    ravel_metrics_free(m);
    size_t bytes;
    char *text = place_read(&p, "/good.jsonl", &bytes);
    CHECK_EQ(place_lines(text), 5);
    free(text);
    place_remove(&p);
}

TEST(metrics_a_closed_pipe_is_no_signal_and_a_reader_may_come_back) {
    place p;
    place_make(&p);
    char path[128], spec[160];
    (void)snprintf(path, sizeof path, "%s/fifo", p.folder);
    CHECK(mkfifo(path, 0600) == 0);
    (void)snprintf(spec, sizeof spec, "jsonl:%s", path);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = place_metrics(&p, NULL);
    CHECK_EQ(ravel_metrics_sink(m, spec, &err), RAVEL_E_IO); /* nobody reads: said now, and nothing blocks */
    ravel_error_clear(&err);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    CHECK_OK(ravel_metrics_sink(m, spec, &err), &err);
    struct sigaction before, plain = {.sa_handler = SIG_DFL};
    sigaction(SIGPIPE, &plain, &before); /* the default: death */
    place_update(m, 1);
    char text[16384];
    CHECK(read(reader, text, sizeof text) > 100);
    (void)close(reader);
    place_update(m, 2);
    place_update(m, 3);
    CHECK_EQ(p.lines, 1);
    CHECK_HAS(p.log, "Broken pipe");
    reader = open(path, O_RDONLY | O_NONBLOCK);
    place_update(m, 4);
    CHECK(read(reader, text, sizeof text) > 100 && strncmp(text, "{\"step\":4", 9) == 0);
    CHECK_EQ(p.lines, 2);
    CHECK_HAS(p.log, "works again; 2 updates were not written");
    for (int step = 5; step < 200; step++)
        place_update(m, step); /* a reader that is too slow: lines are lost, not time */
    CHECK_EQ(ravel_metrics_sinks_failed(m), 1);
    ravel_metrics_free(m);
    sigset_t pending;
    sigpending(&pending);
    CHECK(sigismember(&pending, SIGPIPE) == 0);
    sigaction(SIGPIPE, &before, NULL);
    (void)close(reader);
    place_remove(&p);
}

TEST(metrics_a_torn_write_is_cut_off_again) {
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    char path[128];
    (void)snprintf(path, sizeof path, "%s/file", p.folder);
    ravel__appender a;
    CHECK_OK(ravel__appender_open(&a, path, -1, &err), &err);
    CHECK_OK(ravel__appender_put(&a, "whole line\n", 11, &err), &err);
    /* A limit on the size of files stands for a disk with room for a third of a line. */
    struct rlimit before, small;
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = before;
    small.rlim_cur = 15;
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
    ravel_status status = ravel__appender_put(&a, "another line\n", 13, &err);
    CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
    (void)signal(SIGXFSZ, handler);
    CHECK_EQ(status, RAVEL_E_IO);
    ravel_error_clear(&err);
    CHECK_OK(ravel__appender_put(&a, "third line\n", 11, &err), &err);
    ravel__appender_close(&a);
    size_t bytes;
    char *text = place_read(&p, "/file", &bytes);
    CHECK_STR(text, "whole line\nthird line\n");
    free(text);
    place_remove(&p);
}

/* A pipe that takes a part of a line: it cannot be taken back, so the next line begins on its own. */
TEST(metrics_a_line_that_a_pipe_took_half_of_is_ended) {
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    char path[128], *big = calloc(1, 1 << 20), *text = calloc(1, 1 << 20);
    (void)snprintf(path, sizeof path, "%s/fifo", p.folder);
    CHECK(big && text && mkfifo(path, 0600) == 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    ravel__appender a;
    CHECK_OK(ravel__appender_open(&a, path, -1, &err), &err);
    memset(big, 'x', 1 << 20);
    CHECK_EQ(ravel__appender_put(&a, big, 1 << 20, &err), RAVEL_E_IO); /* more than a pipe holds */
    ravel_error_clear(&err);
    ssize_t got = read(reader, text, 1 << 20);
    CHECK(got > 0 && got < 1 << 20 && text[got - 1] == 'x');
    CHECK_OK(ravel__appender_put(&a, "next\n", 5, &err), &err);
    CHECK_OK(ravel__appender_put(&a, "last\n", 5, &err), &err);
    got = read(reader, text, 1 << 20);
    CHECK(got == 11 && memcmp(text, "\nnext\nlast\n", 11) == 0);
    ravel__appender_close(&a);
    (void)close(reader);
    free(big);
    free(text);
    place_remove(&p);
}

TEST(metrics_sinks_refuse_with_a_sentence) {
    static const struct {
        const char *spec, *says;
    } cases[] = {{"jsnol:x", "there is no sink \"jsnol\"; did you mean \"jsonl\"?"},
                 {"jsonl:", "it needs a file"},
                 {"jsonl:/no/such/folder/x", "cannot open"},
                 {"jsonl:/tmp", "sink jsonl"},
                 {"tensorboard:", "it needs a folder"},
                 {"tensorboard:/no/such/folder/x", "cannot make the folder"},
                 {"prometheus:-", "it needs a file"},
                 {"prometheus:/no/such/folder/x", "cannot create"},
                 {"http:", "is not a port"},
                 {"http:99999", "is not a port"},
                 {"http:banana:80", "is not a port"},
                 {"http:12x", "is not a port"},
                 {"trace:", "it needs a folder"},
                 {"", "a sink is KIND:TARGET"}};
    place p;
    place_make(&p);
    ravel_metrics *m = place_metrics(&p, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK(ravel_metrics_sink(m, cases[i].spec, &err) != RAVEL_OK);
        CHECK_HAS(err.message, cases[i].says);
    }
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_EQ(ravel_metrics_sink_every(m, "log", 0, &err), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
    for (int i = 0; i < 16; i++) CHECK_OK(ravel_metrics_sink_every(m, "log", 10, &err), &err);
    CHECK_EQ(ravel_metrics_sink(m, "log", &err), RAVEL_E_ARGUMENT);
    for (int step = 1; step <= 20; step++) place_update(m, step);
    CHECK_EQ(p.lines, 32); /* updates 10 and 20, sixteen times */
    ravel_metrics_free(m);
    place_remove(&p);
}
