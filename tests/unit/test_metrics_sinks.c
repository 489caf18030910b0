/* Sinks: what they write, how a resumed run continues, what a failing one does. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "metrics/sink.h"

#include <ravel/json.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- a folder, a logger, an object ---------------------------------------------------------------------- */

typedef struct place {
    char folder[64];
    char log[4096]; /* what the logger was told */
    int lines;
    ravel_logger logger;
} place;

static void keep_line(void *user, ravel_log_level level, const char *text) {
    place *p = user;
    (void)level;
    p->lines++;
    size_t used = strlen(p->log);
    (void)snprintf(p->log + used, sizeof p->log - used, "%s\n", text);
}

static void place_make(place *p) {
    memset(p, 0, sizeof *p);
    (void)snprintf(p->folder, sizeof p->folder, "/tmp/ravel-metrics-XXXXXX");
    if (!mkdtemp(p->folder)) check_fail(__FILE__, __LINE__, "no folder");
    p->logger.write = keep_line;
    p->logger.user = p;
}

static void place_remove(const place *p) {
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", p->folder);
    if (system(command) != 0) check_fail(__FILE__, __LINE__, "cannot remove %s", p->folder);
}

static ravel_metrics *make_on(place *p, const ravel_allocator *allocator) {
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.logger = &p->logger;
    o.updates = 100;
    o.rl = 1;
    o.allocator = allocator;
    ravel_metrics *m = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel_metrics_create(&o, &m, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
    return m;
}

static ravel_status add_sink(ravel_metrics *m, const place *p, const char *kind, const char *name, ravel_error *err) {
    char spec[256];
    (void)snprintf(spec, sizeof spec, "%s:%s%s", kind, p->folder, name);
    return ravel_metrics_sink(m, spec, err);
}

static void one_update(ravel_metrics *m, int64_t step) {
    const int64_t lengths[] = {100, 28};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics_batch b = {.size = sizeof b,
                             .lengths = lengths,
                             .samples = 2,
                             .capacity = 256,
                             .padded = 128,
                             .loss = 120,
                             .bins = 1,
                             .micro_steps = 1};
    ravel_metrics_add_batch(m, &b);
    ravel_metrics_add(m, RAVEL_METRIC_TRAIN_LOSS, 1.0 / (double)step, 1);
    ravel_metrics_add(m, RAVEL_METRIC_REWARD_MEAN, 0.1 * (double)step, 1);
    (void)ravel_metrics_phase_begin(m, RAVEL_PHASE_BACKWARD, &err);
    (void)ravel_metrics_phase_begin(m, RAVEL_PHASE_ALL_REDUCE, &err);
    (void)ravel_metrics_phase_end(m, RAVEL_PHASE_ALL_REDUCE, &err);
    (void)ravel_metrics_phase_end(m, RAVEL_PHASE_BACKWARD, &err);
    if (ravel_metrics_update(m, step, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
}

/* The file as a string of the caller's; "" when it cannot be read. */
static char *slurp(const place *p, const char *name, size_t *bytes) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s%s", p->folder, name);
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    *bytes = f && text ? fread(text, 1, (1 << 20) - 1, f) : 0;
    if (f) (void)fclose(f);
    return text;
}

static int append(const place *p, const char *name, const char *text) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s%s", p->folder, name);
    FILE *f = fopen(path, "ab");
    int ok = f && fputs(text, f) >= 0;
    return f && fclose(f) == 0 && ok;
}

static int lines_of(const char *text) {
    int count = 0;
    for (; *text; text++) count += *text == '\n';
    return count;
}

/* ---- numbers -------------------------------------------------------------------------------------------- */

TEST(metrics_text_prints_the_shortest_digits_that_read_back) {
    static const struct {
        double x;
        const char *text;
    } cases[] = {{0, "0"},
                 {-0.0, "-0"},
                 {1, "1"},
                 {0.1, "0.1"},
                 {1e15, "1e+15"},
                 {-3, "-3"},
                 {1.0 / 3, "0.333333333333333"},
                 {1e-300, "1e-300"},
                 {NAN, "nan"},
                 {-INFINITY, "-inf"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char room[64];
        ravel__text t = ravel__text_begin(room, sizeof room - 1);
        ravel__text_real(&t, cases[i].x);
        room[t.used] = '\0';
        if (i != 6) CHECK_STR(room, cases[i].text);
        CHECK(isnan(cases[i].x) || strtod(room, NULL) == cases[i].x);
    }
    ravel__rng r = ravel__rng_seed(check_seed());
    for (int64_t i = 0; i < check_scale(200000, 5000000); i++) {
        double x = ldexp(ravel__rng_unit(&r) - 0.5, (int)ravel__rng_below(&r, i % 4 ? 64 : 1000) - (i % 4 ? 20 : 500));
        if (i % 5 == 0) x = ldexp(1, (int)(i % 60) - 18) * (i % 10 ? 1 : 1 + 0x1p-52);
        if (i % 7 == 0) x = (double)ravel__rng_below(&r, 100000) / 1000;
        if (i % 11 == 0) x = nextafter(pow(10, (int)(i % 17) - 5), i % 2 ? 0 : 1e99);
        char text[64];
        ravel__text t = ravel__text_begin(text, sizeof text - 1);
        ravel__text_real(&t, x);
        text[t.used] = '\0';
        char plain[64];
        (void)snprintf(plain, sizeof plain, "%.15g", x);
        if (strtod(text, NULL) != x || (strtod(plain, NULL) == x && strlen(text) > strlen(plain) + 4)) {
            check_fail(__FILE__, __LINE__, "%a is printed as %s", x, text);
            return;
        }
    }
    char room[64];
    ravel__text t = ravel__text_begin(room, 5);
    ravel__text_integer(&t, INT64_MIN);
    CHECK(t.cut && t.used == 5 && memcmp(room, "-9223", 5) == 0);
}

/* ---- JSONL and CSV -------------------------------------------------------------------------------------- */

TEST(metrics_jsonl_is_one_whole_object_an_update_and_continues) {
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = make_on(&p, NULL);
    CHECK_OK(add_sink(m, &p, "jsonl", "/m.jsonl", &err), &err);
    one_update(m, 1);
    one_update(m, 2);
    size_t bytes;
    char *text = slurp(&p, "/m.jsonl", &bytes); /* already there: a crash now would lose nothing */
    CHECK_EQ(lines_of(text), 2);
    free(text);
    ravel_metrics_add(m, RAVEL_METRIC_TRAIN_GRAD_NORM, NAN, 1);
    one_update(m, 3);
    ravel_metrics_free(m);
    CHECK(append(&p, "/m.jsonl", "{\"step\":4,\"time\":17")); /* killed in the middle of a line */
    m = make_on(&p, NULL);
    CHECK_OK(add_sink(m, &p, "jsonl", "/m.jsonl", &err), &err);
    one_update(m, 4);
    ravel_metrics_free(m);
    text = slurp(&p, "/m.jsonl", &bytes);
    CHECK_EQ(lines_of(text), 4);
    ravel_json *doc = NULL;
    int64_t step = 0, whole;
    for (char *line = text; *line; line = strchr(line, '\n') + 1) {
        double real;
        CHECK_OK(ravel_json_parse(line, strcspn(line, "\n"), NULL, &doc, &err), &err);
        const ravel_json_node *root = ravel_json_root(doc);
        CHECK(ravel_json_integer(ravel_json_get(doc, root, "step"), &whole) && whole == ++step);
        CHECK(ravel_json_integer(ravel_json_get(doc, root, "tokens/actual"), &whole) && whole == 128);
        CHECK(ravel_json_real(ravel_json_get(doc, root, "train/loss"), &real) && real == 1.0 / (double)step);
        CHECK(ravel_json_real(ravel_json_get(doc, root, "reward/mean"), &real) &&
              fabs(real - 0.1 * (double)step) < 1e-15);
        CHECK(!ravel_json_get(doc, root, "eval/loss"));
        const ravel_json_node *norm = ravel_json_get(doc, root, "train/grad_norm");
        CHECK(step == 3 ? norm && norm->kind == RAVEL_JSON_NULL : !norm);
        const ravel_json_node *busy = ravel_json_path(doc, root, "ranks.busy_sec");
        CHECK(busy && busy->count == 1);
    }
    ravel_json_free(doc);
    free(text);
    place_remove(&p);
}

TEST(metrics_csv_has_a_column_a_metric_and_keeps_other_files) {
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    for (int run = 0; run < 2; run++) {
        ravel_metrics *m = make_on(&p, NULL);
        CHECK_OK(add_sink(m, &p, "csv", "/m.csv", &err), &err);
        one_update(m, run + 1);
        ravel_metrics_free(m);
    }
    size_t bytes;
    char *text = slurp(&p, "/m.csv", &bytes);
    CHECK_EQ(lines_of(text), 3); /* one header, two rows */
    CHECK(strncmp(text, "step,time,tokens/capacity,", 26) == 0);
    int commas[3] = {0}, line = 0;
    for (const char *c = text; *c; c++) {
        if (*c == ',') commas[line]++;
        if (*c == '\n') line++;
    }
    CHECK(commas[0] == RAVEL_METRICS + 1 && commas[1] == commas[0] && commas[2] == commas[0]);
    free(text);
    static const ravel_metric odd = {"my,\"own\"", "", "", RAVEL_KIND_GAUGE, RAVEL_RULE_MAX, 0, 0};
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.logger = &p.logger;
    o.extra = &odd;
    o.extra_count = 1;
    ravel_metrics *m = NULL;
    CHECK_OK(ravel_metrics_create(&o, &m, &err), &err);
    CHECK_OK(add_sink(m, &p, "csv", "/m.csv", &err), &err); /* other columns: m.csv.2 */
    CHECK_HAS(p.log, "has other columns and is left alone");
    one_update(m, 1);
    ravel_metrics_free(m);
    text = slurp(&p, "/m.csv.2", &bytes);
    CHECK_EQ(lines_of(text), 2);
    CHECK_HAS(text, ",\"my,\"\"own\"\"\"\n");
    free(text);
    place_remove(&p);
}

/* ---- the log and the progress line ---------------------------------------------------------------------- */

TEST(metrics_log_line_looks_like_megatrons) {
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = make_on(&p, NULL);
    char line[2048] = "x";
    CHECK_EQ(ravel_metrics_line(m, line, sizeof line), 0);
    CHECK_OK(ravel_metrics_sink(m, "log", &err), &err);
    CHECK_OK(add_sink(m, &p, "log", "/train.log", &err), &err);
    one_update(m, 12);
    CHECK(strncmp(p.log, " iteration 12/100 | consumed samples: 2 | elapsed time per iteration (ms): ", 70) == 0);
    CHECK_HAS(p.log, " | toks/s: ");
    CHECK_HAS(p.log, " | toks/s/gpu: ");
    CHECK_HAS(p.log, " | packing_eff: 50.0% | avg_seq_len: 64.0 | ");
    CHECK_HAS(p.log, " | loss: 0.0833 | reward: 1.2000 | ");
    CHECK(!strstr(p.log, "mfu"));
    size_t bytes;
    char *text = slurp(&p, "/train.log", &bytes);
    CHECK_STR(text, p.log);
    free(text);
    CHECK_EQ(ravel_metrics_line(m, line, sizeof line), strlen(p.log) - 1);
    CHECK(strncmp(line, p.log, strlen(line)) == 0);
    ravel_metrics_free(m);
    place_remove(&p);
}

TEST(metrics_progress_is_plain_lines_in_a_file) {
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = make_on(&p, NULL);
    CHECK_OK(add_sink(m, &p, "progress", "/progress", &err), &err);
    one_update(m, 1);
    one_update(m, 2);
    ravel_metrics_free(m);
    size_t bytes;
    char *text = slurp(&p, "/progress", &bytes);
    CHECK_EQ(lines_of(text), 2);
    CHECK(!strchr(text, '\033') && !strchr(text, '\r'));
    CHECK(strncmp(text, "update 1/100 | ", 15) == 0);
    CHECK_HAS(text, " left | ");
    CHECK_HAS(text, " tok/s | packing 50.0% | loss 1.0000 | reward 0.1000\n");
    free(text);
    place_remove(&p);
}

/* What comes out of a terminal until it has been silent for a while. */
static size_t drain(int fd, char *text, size_t room) {
    size_t used = 0;
    struct pollfd wait = {fd, POLLIN, 0};
    while (used + 1 < room && poll(&wait, 1, 200) > 0) {
        ssize_t got = read(fd, text + used, room - 1 - used);
        if (got <= 0) break;
        used += (size_t)got;
    }
    text[used] = '\0';
    return used;
}

TEST(metrics_progress_is_one_live_line_on_a_terminal) {
    int control = posix_openpt(O_RDWR | O_NOCTTY);
    if (control < 0 || grantpt(control) != 0 || unlockpt(control) != 0) {
        check_skip("no pseudo-terminal can be opened here");
        if (control >= 0) (void)close(control);
        return;
    }
    char spec[128], name[96];
    CHECK(ptsname_r(control, name, sizeof name) == 0);
    struct winsize size = {.ws_row = 24, .ws_col = 40};
    (void)ioctl(control, TIOCSWINSZ, &size);
    (void)snprintf(spec, sizeof spec, "progress:%s", name);
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = make_on(&p, NULL);
    CHECK_OK(ravel_metrics_sink(m, spec, &err), &err);
    one_update(m, 50);
    one_update(m, 51); /* drawn or not, as fast as this machine is */
    one_update(m, 100);
    char text[1024] = "";
    size_t got = drain(control, text, sizeof text);
    CHECK(strncmp(text, "\r\033[K50/100 ========-------- ", 28) == 0);
    CHECK(strstr(text, "\r\033[K100/100 ================ 0s left")); /* the last one always */
    for (const char *line = text; line; line = strstr(line + 4, "\r\033[K")) {
        const char *next = strstr(line + 4, "\r\033[K");
        CHECK((next ? next : text + got) - line <= 4 + 39); /* cut to the width */
    }
    CHECK(!strchr(text, '\n'));
    ravel_metrics_free(m);
    got = drain(control, text, sizeof text); /* the line stays, with its newline */
    CHECK(got >= 1 && text[got - 1] == '\n');
    (void)close(control);
    place_remove(&p);
}

/* ---- failing sinks -------------------------------------------------------------------------------------- */

TEST(metrics_a_full_disk_is_reported_once_and_stops_nothing) {
    if (access("/dev/full", W_OK) != 0) {
        check_skip("there is no /dev/full here");
        return;
    }
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = make_on(&p, NULL);
    CHECK_OK(ravel_metrics_sink(m, "jsonl:/dev/full", &err), &err);
    CHECK_OK(add_sink(m, &p, "jsonl", "/good.jsonl", &err), &err);
    CHECK_EQ(ravel_metrics_sink(m, "csv:/dev/full", &err), RAVEL_E_IO); /* its header cannot be written */
    CHECK_HAS(err.message, "sink csv: cannot write: No space left");
    for (int step = 1; step <= 5; step++) one_update(m, step);
    CHECK_EQ(p.lines, 1);
    CHECK_HAS(p.log,
              "metrics sink jsonl:/dev/full: cannot write: No space left on device; training goes on without it");
    CHECK_EQ(ravel_metrics_sinks_failed(m), 1);
    ravel_metrics_free(m);
    size_t bytes;
    char *text = slurp(&p, "/good.jsonl", &bytes);
    CHECK_EQ(lines_of(text), 5);
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
    ravel_metrics *m = make_on(&p, NULL);
    CHECK_EQ(ravel_metrics_sink(m, spec, &err), RAVEL_E_IO); /* nobody reads: said now, and nothing blocks */
    ravel_error_clear(&err);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    CHECK_OK(ravel_metrics_sink(m, spec, &err), &err);
    struct sigaction before, plain = {.sa_handler = SIG_DFL};
    sigaction(SIGPIPE, &plain, &before); /* the default: death */
    one_update(m, 1);
    char text[16384];
    CHECK(read(reader, text, sizeof text) > 100);
    (void)close(reader);
    one_update(m, 2);
    one_update(m, 3);
    CHECK_EQ(p.lines, 1);
    CHECK_HAS(p.log, "Broken pipe");
    reader = open(path, O_RDONLY | O_NONBLOCK);
    one_update(m, 4);
    CHECK(read(reader, text, sizeof text) > 100 && strncmp(text, "{\"step\":4", 9) == 0);
    CHECK_EQ(p.lines, 2);
    CHECK_HAS(p.log, "works again; 2 updates were not written");
    for (int step = 5; step < 200; step++)
        one_update(m, step); /* a reader that is too slow: lines are lost, not time */
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
    char *text = slurp(&p, "/file", &bytes);
    CHECK_STR(text, "whole line\nthird line\n");
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
    ravel_metrics *m = make_on(&p, NULL);
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
    for (int step = 1; step <= 20; step++) one_update(m, step);
    CHECK_EQ(p.lines, 32); /* updates 10 and 20, sixteen times */
    ravel_metrics_free(m);
    place_remove(&p);
}

/* ---- TensorBoard ---------------------------------------------------------------------------------------- */

/* CRC-32C bit by bit: another road than the sink's table. */
static uint32_t masked_crc(const unsigned char *data, size_t bytes) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes * 8; i++) {
        uint32_t bit = (crc ^ (uint32_t)(data[i / 8] >> (i % 8))) & 1;
        crc = crc >> 1 ^ (bit ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static uint32_t little(const unsigned char *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

TEST(metrics_tensorboard_records_are_framed) {
    CHECK(masked_crc((const unsigned char *)"123456789", 9) == (0xe3069283u >> 15 | 0xe3069283u << 17) + 0xa282ead8u);
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    char command[256], name[256] = "";
    for (int run = 0; run < 2; run++) { /* a resumed run gets a new file */
        ravel_metrics *m = make_on(&p, NULL);
        CHECK_OK(add_sink(m, &p, "tensorboard", "/tb", &err), &err);
        one_update(m, 1);
        one_update(m, 300);
        ravel_metrics_free(m);
    }
    (void)snprintf(command, sizeof command, "ls %s/tb", p.folder);
    FILE *list = popen(command, "r");
    int files = 0;
    char line[200];
    while (list && fgets(line, sizeof line, list)) {
        CHECK(strncmp(line, "events.out.tfevents.", 20) == 0);
        (void)snprintf(name, sizeof name, "/tb/%.*s", (int)strcspn(line, "\n"), line);
        files++;
    }
    if (list) (void)pclose(list);
    CHECK_EQ(files, 2);
    size_t bytes, at = 0;
    unsigned char *data = (unsigned char *)slurp(&p, name, &bytes);
    int records = 0;
    while (at + 16 <= bytes) {
        uint32_t length = little(data + at);
        CHECK_EQ(little(data + at + 4), 0);
        CHECK(little(data + at + 8) == masked_crc(data + at, 8));
        CHECK(at + 16 + length <= bytes);
        CHECK(little(data + at + 12 + length) == masked_crc(data + at + 12, length));
        at += 16 + length;
        records++;
    }
    CHECK(at == bytes && records == 3);
    CHECK(memmem(data, bytes, "brain.Event:2", 13) && memmem(data, bytes, "train/loss", 10));
    free(data);
    place_remove(&p);
}

/* ---- Prometheus and HTTP are in test_metrics_http.c; the trace ------------------------------------------- */

static int trace_is_whole(const place *p, int *events, ravel_error *err) {
    size_t bytes;
    char *text = slurp(p, "/trace-0.json", &bytes);
    ravel_json *doc = NULL;
    int ok = ravel_json_parse(text, bytes, NULL, &doc, err) == RAVEL_OK;
    *events = ok ? ravel_json_root(doc)->count : -1;
    const ravel_json_node *node = ok ? ravel_json_first(doc, ravel_json_root(doc)) : NULL;
    for (; node; node = ravel_json_next(doc, node)) {
        double ts, dur;
        if (ravel_json_is(ravel_json_get(doc, node, "ph"), "X"))
            ok &= ravel_json_real(ravel_json_get(doc, node, "ts"), &ts) && ts > 1e12 &&
                  ravel_json_real(ravel_json_get(doc, node, "dur"), &dur) && dur >= 0;
        ok &= ravel_json_get(doc, node, "pid") && ravel_json_get(doc, node, "name");
    }
    ravel_json_free(doc);
    free(text);
    return ok;
}

TEST(metrics_trace_is_json_at_every_moment) {
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    int events, expected = 1; /* the process's name */
    ravel_metrics *m = make_on(&p, NULL);
    CHECK_OK(add_sink(m, &p, "trace", "", &err), &err);
    CHECK(trace_is_whole(&p, &events, &err) && events == expected);
    for (int step = 1; step <= 3; step++) {
        one_update(m, step);
        expected += 5; /* the update, two phases, two counters */
        CHECK(trace_is_whole(&p, &events, &err));
        CHECK_EQ(events, expected);
    }
    CHECK_EQ(add_sink(m, &p, "trace", "", &err), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
    ravel_metrics_free(m);
    /* Cut the file anywhere: the resumed run makes it whole again and goes on. */
    size_t bytes;
    char path[128], *text = slurp(&p, "/trace-0.json", &bytes);
    (void)snprintf(path, sizeof path, "%s/trace-0.json", p.folder);
    for (size_t cut = 0; cut <= bytes; cut += cut < 300 ? 1 : 37) {
        FILE *f = fopen(path, "wb");
        CHECK(f && fwrite(text, 1, cut, f) == cut && fclose(f) == 0);
        m = make_on(&p, NULL);
        CHECK_OK(add_sink(m, &p, "trace", "", &err), &err);
        one_update(m, 4);
        ravel_metrics_free(m);
        if (!trace_is_whole(&p, &events, &err) || events < 6) {
            check_fail(__FILE__, __LINE__, "cut at %zu: %d events, %s", cut, events, err.message);
            break;
        }
    }
    free(text);
    for (int i = 0; i < 300; i++)
        CHECK(append(&p, "/trace-0.json", "{ a long torn line that never ends, and more of it "));
    m = make_on(&p, NULL);
    CHECK_OK(add_sink(m, &p, "trace", "", &err), &err); /* nothing of it is left behind the shorter new end */
    one_update(m, 5);
    ravel_metrics_free(m);
    CHECK(trace_is_whole(&p, &events, &err));
    place_remove(&p);
}

/* ---- run directories ------------------------------------------------------------------------------------ */

TEST(metrics_run_directory_has_all_that_a_report_needs) {
    place p;
    place_make(&p);
    char folder[128];
    (void)snprintf(folder, sizeof folder, "%s/deep/er/run", p.folder);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = make_on(&p, NULL);
    CHECK_EQ(ravel_metrics_run(m, folder, "{\"a\": 1", NULL, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "the config of the run: JSON, line 1");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_metrics_run(m, folder, NULL, "jsonl,http", &err), RAVEL_E_ARGUMENT);
    ravel_metrics_free(m);
    ravel_error_clear(&err);
    m = make_on(&p, NULL);
    CHECK_OK(ravel_metrics_run(m, folder, "{\"lr\": 1e-5}", "jsonl,csv,tensorboard,trace,log,prometheus", &err), &err);
    one_update(m, 1);
    ravel_metrics_free(m);
    static const char *const files[] = {"config.json",  "environment.json", "metrics.jsonl", "metrics.csv",
                                        "trace-0.json", "train.log",        "metrics.prom"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[64];
        size_t bytes;
        (void)snprintf(name, sizeof name, "/deep/er/run/%s", files[i]);
        char *text = slurp(&p, name, &bytes);
        if (bytes == 0) check_fail(__FILE__, __LINE__, "%s is empty", files[i]);
        ravel_json *doc = NULL;
        if (strstr(files[i], ".json") && !strstr(files[i], ".jsonl"))
            CHECK_OK(ravel_json_parse(text, bytes, NULL, &doc, &err), &err);
        if (i == 1) CHECK(ravel_json_is(ravel_json_get(doc, ravel_json_root(doc), "ravel"), ravel_version()));
        ravel_json_free(doc);
        free(text);
    }
    place_remove(&p);
}

/* ---- memory --------------------------------------------------------------------------------------------- */

static ravel_status with_every_sink(const ravel_allocator *allocator, void *user) {
    place *p = user;
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    o.allocator = allocator;
    ravel_metrics *m = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = ravel_metrics_create(&o, &m, &err);
    static const char *const kinds[] = {"log", "progress", "jsonl", "csv", "tensorboard", "prometheus", "trace"};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !status; i++) {
        char name[32];
        (void)snprintf(name, sizeof name, "/%s", kinds[i]);
        status = add_sink(m, p, kinds[i], name, &err);
    }
    if (!status) status = ravel_metrics_sink(m, "http:0", &err);
    if (!status) {
        check_memory *memory = allocator->user;
        int64_t before = memory->calls;
        for (int step = 1; step <= 3; step++) one_update(m, step);
        if (memory->calls != before) check_fail(__FILE__, __LINE__, "a sink allocated while writing");
    }
    ravel_metrics_free(m);
    return status;
}

TEST(metrics_sinks_survive_every_failed_allocation_and_do_not_allocate_later) {
    place p;
    place_make(&p);
    CHECK(check_every_allocation(with_every_sink, &p) >= 20);
    place_remove(&p);
}
