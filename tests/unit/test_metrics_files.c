/* TensorBoard events, the trace, the run directory. (Prometheus and HTTP: test_metrics_http.c.) */
#include "tests/unit/check.h"
#include "tests/unit/metrics_place.h"

#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

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
        ravel_metrics *m = place_metrics(&p, NULL);
        CHECK_OK(place_sink(m, &p, "tensorboard", "/tb", &err), &err);
        place_update(m, 1);
        place_update(m, 300);
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
    unsigned char *data = (unsigned char *)place_read(&p, name, &bytes);
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
    CHECK(at == bytes && records == 4); /* version, START, two updates */
    CHECK(memmem(data, bytes, "brain.Event:2", 13) && memmem(data, bytes, "train/loss", 10));
    free(data);
    place_remove(&p);
}

/* ---- the trace ------------------------------------------------------------------------------------------ */

static int trace_is_whole(const place *p, int *events, ravel_error *err) {
    size_t bytes;
    char *text = place_read(p, "/trace-0.json", &bytes);
    ravel__json *doc = NULL;
    int ok = ravel__json_parse(text, bytes, NULL, &doc, err) == RAVEL_OK;
    *events = ok ? ravel__json_root(doc)->count : -1;
    const ravel__json_node *node = ok ? ravel__json_first(doc, ravel__json_root(doc)) : NULL;
    for (; node; node = ravel__json_next(doc, node)) {
        double ts, dur;
        if (ravel__json_is(ravel__json_get(doc, node, "ph"), "X"))
            ok &= ravel__json_real(ravel__json_get(doc, node, "ts"), &ts) && ts > 1e12 &&
                  ravel__json_real(ravel__json_get(doc, node, "dur"), &dur) && dur >= 0;
        ok &= ravel__json_get(doc, node, "pid") && ravel__json_get(doc, node, "name");
    }
    ravel__json_free(doc);
    free(text);
    return ok;
}

TEST(metrics_trace_is_json_at_every_moment) {
    place p;
    place_make(&p);
    ravel_error err = RAVEL_ERROR_INIT;
    int events, expected = 1; /* the process's name */
    ravel_metrics *m = place_metrics(&p, NULL);
    CHECK_OK(place_sink(m, &p, "trace", "", &err), &err);
    CHECK(trace_is_whole(&p, &events, &err) && events == expected);
    for (int step = 1; step <= 3; step++) {
        place_update(m, step);
        expected += 5; /* the update, two phases, two counters */
        CHECK(trace_is_whole(&p, &events, &err));
        CHECK_EQ(events, expected);
    }
    CHECK_EQ(place_sink(m, &p, "trace", "", &err), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
    ravel_metrics_free(m);
    /* Cut the file anywhere: the resumed run makes it whole again and goes on. */
    size_t bytes;
    char path[128], *text = place_read(&p, "/trace-0.json", &bytes);
    (void)snprintf(path, sizeof path, "%s/trace-0.json", p.folder);
    for (size_t cut = 0; cut <= bytes; cut += cut < 300 ? 1 : 37) {
        FILE *f = fopen(path, "wb");
        CHECK(f && fwrite(text, 1, cut, f) == cut && fclose(f) == 0);
        m = place_metrics(&p, NULL);
        CHECK_OK(place_sink(m, &p, "trace", "", &err), &err);
        place_update(m, 4);
        ravel_metrics_free(m);
        if (!trace_is_whole(&p, &events, &err) || events < 6) {
            check_fail(__FILE__, __LINE__, "cut at %zu: %d events, %s", cut, events, err.message);
            break;
        }
    }
    free(text);
    for (int i = 0; i < 300; i++)
        CHECK(place_append(&p, "/trace-0.json", "{ a long torn line that never ends, and more of it "));
    m = place_metrics(&p, NULL);
    CHECK_OK(place_sink(m, &p, "trace", "", &err), &err); /* nothing of it is left behind the shorter new end */
    place_update(m, 5);
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
    ravel_metrics *m = place_metrics(&p, NULL);
    CHECK_EQ(ravel_metrics_run(m, folder, "{\"a\": 1", NULL, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "the config of the run: JSON, line 1");
    ravel_error_clear(&err);
    CHECK_EQ(ravel_metrics_run(m, folder, NULL, "jsonl,http", &err), RAVEL_E_ARGUMENT);
    ravel_metrics_free(m);
    ravel_error_clear(&err);
    m = place_metrics(&p, NULL);
    CHECK_OK(ravel_metrics_run(m, folder, "{\"lr\": 1e-5}", "jsonl,csv,tensorboard,trace,log,prometheus", &err), &err);
    place_update(m, 1);
    ravel_metrics_free(m);
    static const char *const files[] = {"config.json",  "environment.json", "metrics.jsonl", "metrics.csv",
                                        "trace-0.json", "train.log",        "metrics.prom"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char name[64];
        size_t bytes;
        (void)snprintf(name, sizeof name, "/deep/er/run/%s", files[i]);
        char *text = place_read(&p, name, &bytes);
        if (bytes == 0) check_fail(__FILE__, __LINE__, "%s is empty", files[i]);
        ravel__json *doc = NULL;
        if (strstr(files[i], ".json") && !strstr(files[i], ".jsonl"))
            CHECK_OK(ravel__json_parse(text, bytes, NULL, &doc, &err), &err);
        if (i == 1) CHECK(ravel__json_is(ravel__json_get(doc, ravel__json_root(doc), "ravel"), ravel_version()));
        ravel__json_free(doc);
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
        status = place_sink(m, p, kinds[i], name, &err);
    }
    if (!status) status = ravel_metrics_sink(m, "http:0", &err);
    if (!status) {
        check_memory *memory = allocator->user;
        int64_t before = memory->calls;
        for (int step = 1; step <= 3; step++) place_update(m, step);
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
