/* Sinks that write lines: numbers, JSONL, CSV, the log and the progress line; how a resumed run continues. */
#include "tests/unit/check.h"
#include "tests/unit/metrics_place.h"

#include "base/rng.h"
#include "metrics/text.h"

#include "base/json.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

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
    for (int64_t i = 0; i < check_rounds(200000, 5000000); i++) {
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
    ravel_metrics *m = place_metrics(&p, NULL);
    CHECK_OK(place_sink(m, &p, "jsonl", "/m.jsonl", &err), &err);
    place_update(m, 1);
    place_update(m, 2);
    size_t bytes;
    char *text = place_read(&p, "/m.jsonl", &bytes); /* already there: a crash now would lose nothing */
    CHECK_EQ(place_lines(text), 2);
    free(text);
    ravel_metrics_add(m, RAVEL_METRIC_TRAIN_GRAD_NORM, NAN, 1);
    place_update(m, 3);
    ravel_metrics_free(m);
    CHECK(place_append(&p, "/m.jsonl", "{\"step\":4,\"time\":17")); /* killed in the middle of a line */
    m = place_metrics(&p, NULL);
    CHECK_OK(place_sink(m, &p, "jsonl", "/m.jsonl", &err), &err);
    place_update(m, 4);
    ravel_metrics_free(m);
    text = place_read(&p, "/m.jsonl", &bytes);
    CHECK_EQ(place_lines(text), 4);
    ravel__json *doc = NULL;
    int64_t step = 0, whole;
    for (char *line = text; *line; line = strchr(line, '\n') + 1) {
        double real;
        CHECK_OK(ravel__json_parse(line, strcspn(line, "\n"), NULL, &doc, &err), &err);
        const ravel__json_node *root = ravel__json_root(doc);
        CHECK(ravel__json_integer(ravel__json_get(doc, root, "step"), &whole) && whole == ++step);
        CHECK(ravel__json_integer(ravel__json_get(doc, root, "tokens/actual"), &whole) && whole == 128);
        CHECK(ravel__json_real(ravel__json_get(doc, root, "train/loss"), &real) && real == 1.0 / (double)step);
        CHECK(ravel__json_real(ravel__json_get(doc, root, "reward/mean"), &real) &&
              fabs(real - 0.1 * (double)step) < 1e-15);
        CHECK(!ravel__json_get(doc, root, "eval/loss"));
        const ravel__json_node *norm = ravel__json_get(doc, root, "train/grad_norm");
        CHECK(step == 3 ? norm && norm->kind == RAVEL__JSON_NULL : !norm);
        const ravel__json_node *busy = ravel__json_path(doc, root, "ranks.busy_sec");
        CHECK(busy && busy->count == 1);
    }
    ravel__json_free(doc);
    free(text);
    place_remove(&p);
}

TEST(metrics_csv_has_a_column_a_metric_and_keeps_other_files) {
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    for (int run = 0; run < 2; run++) {
        ravel_metrics *m = place_metrics(&p, NULL);
        CHECK_OK(place_sink(m, &p, "csv", "/m.csv", &err), &err);
        place_update(m, run + 1);
        ravel_metrics_free(m);
    }
    size_t bytes;
    char *text = place_read(&p, "/m.csv", &bytes);
    CHECK_EQ(place_lines(text), 3); /* one header, two rows */
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
    CHECK_OK(place_sink(m, &p, "csv", "/m.csv", &err), &err); /* other columns: m.csv.2 */
    CHECK_HAS(p.log, "has other columns and is left alone");
    place_update(m, 1);
    ravel_metrics_free(m);
    text = place_read(&p, "/m.csv.2", &bytes);
    CHECK_EQ(place_lines(text), 2);
    CHECK_HAS(text, ",\"my,\"\"own\"\"\"\n");
    free(text);
    place_remove(&p);
}

/* ---- the log and the progress line ---------------------------------------------------------------------- */

TEST(metrics_log_line_looks_like_megatrons) {
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = place_metrics(&p, NULL);
    char line[2048] = "x";
    CHECK_EQ(ravel_metrics_line(m, line, sizeof line), 0);
    CHECK_OK(ravel_metrics_sink(m, "log", &err), &err);
    CHECK_OK(place_sink(m, &p, "log", "/train.log", &err), &err);
    place_update(m, 12);
    CHECK(strncmp(p.log, " iteration 12/100 | consumed samples: 2 | elapsed time per iteration (ms): ", 70) == 0);
    CHECK_HAS(p.log, " | toks/s: ");
    CHECK_HAS(p.log, " | toks/s/gpu: ");
    CHECK_HAS(p.log, " | packing_eff: 50.0% | avg_seq_len: 64.0 | ");
    CHECK_HAS(p.log, " | loss: 0.0833 | reward: 1.2000 | ");
    CHECK(!strstr(p.log, "mfu"));
    size_t bytes;
    char *text = place_read(&p, "/train.log", &bytes);
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
    ravel_metrics *m = place_metrics(&p, NULL);
    CHECK_OK(place_sink(m, &p, "progress", "/progress", &err), &err);
    place_update(m, 1);
    place_update(m, 2);
    ravel_metrics_free(m);
    size_t bytes;
    char *text = place_read(&p, "/progress", &bytes);
    CHECK_EQ(place_lines(text), 2);
    CHECK(!strchr(text, '\033') && !strchr(text, '\r'));
    CHECK(strncmp(text, "update 1/100 | ", 15) == 0);
    CHECK_HAS(text, " left | ");
    CHECK_HAS(text, " tok/s | packing 50.0% | loss 1.0000 | reward 0.1000\n");
    free(text);
    place_remove(&p);
}

/* What comes out of a terminal until `last` has come and it is silent for a while, or until a minute is over: the kernel hands it
 * on in a thread of its own, which a loaded machine delays. */
static size_t drain(int fd, const char *last, char *text, size_t room) {
    size_t used = 0;
    struct pollfd wait = {fd, POLLIN, 0};
    text[0] = '\0';
    while (used + 1 < room && poll(&wait, 1, strstr(text, last) ? 200 : 60000) > 0) {
        ssize_t got = read(fd, text + used, room - 1 - used);
        if (got <= 0) break;
        used += (size_t)got;
        text[used] = '\0';
    }
    return used;
}

TEST(metrics_progress_is_one_live_line_on_a_terminal) {
    char spec[128], name[96];
    int control = posix_openpt(O_RDWR | O_NOCTTY);
    if (control < 0 || grantpt(control) != 0 || unlockpt(control) != 0 || ptsname_r(control, name, sizeof name) != 0 ||
        access(name, R_OK | W_OK) != 0) { /* the last where /dev/ptmx and /dev/pts are of two mounts */
        check_skip("no pseudo-terminal can be opened here");
        if (control >= 0) (void)close(control);
        return;
    }
    const char *term = getenv("TERM");
    char *before = term ? strdup(term) : NULL;
    setenv("TERM", "xterm", 1); /* whatever this terminal is, or none: no live line where it is dumb */
    struct winsize size = {.ws_row = 24, .ws_col = 40};
    (void)ioctl(control, TIOCSWINSZ, &size);
    (void)snprintf(spec, sizeof spec, "progress:%s", name);
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_metrics *m = place_metrics(&p, NULL);
    CHECK_OK(ravel_metrics_sink(m, spec, &err), &err);
    place_update(m, 50);
    place_update(m, 51); /* drawn or not, as fast as this machine is */
    place_update(m, 100);
    char text[1024] = "";
    size_t got = drain(control, "100/100", text, sizeof text);
    CHECK(strncmp(text, "\r\033[K50/100 ========-------- ", 28) == 0);
    CHECK(strstr(text, "\r\033[K100/100 ================ 0s left")); /* the last one always */
    for (const char *line = text; line; line = strstr(line + 4, "\r\033[K")) {
        const char *next = strstr(line + 4, "\r\033[K");
        CHECK((next ? next : text + got) - line <= 4 + 39); /* cut to the width */
    }
    CHECK(!strchr(text, '\n'));
    ravel_metrics_free(m);
    got = drain(control, "\n", text, sizeof text); /* the line stays, with its newline */
    CHECK(got >= 1 && text[got - 1] == '\n');
    (void)close(control);
    before ? setenv("TERM", before, 1) : unsetenv("TERM");
    free(before);
    place_remove(&p);
}
