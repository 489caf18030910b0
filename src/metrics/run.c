/* A run directory: config.json, environment.json, and the sinks that write into it. `ravel report` reads it. */
#include "metrics/sink.h"

#include "base/assert.h"
#include "base/json.h"
#include "base/system/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static ravel_status write_file(ravel_metrics *m, const char *folder, const char *name, const char *text, size_t bytes,
                               ravel_error *err) {
    char path[4200];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    RAVEL_ASSERT(text || !bytes);
    ravel__writing w = {.fd = -1};
    ravel_status status = ravel__writing_open(&w, path, 1, m->options.allocator, err);
    if (!status) status = ravel__writing_put(&w, 0, text, bytes, err);
    if (!status) status = ravel__writing_commit(&w, 0, err);
    ravel__writing_discard(&w);
    return status;
}

/* ---- environment.json ----------------------------------------------------------------------------------- */

static void put_member(ravel__text *t, const char *key, const char *value) {
    RAVEL_ASSERT(t->used >= 1 && value);
    ravel__text_puts(t, t->used > 1 ? ",\n " : "\n ");
    ravel__text_quote(t, key);
    ravel__text_puts(t, ": ");
    ravel__text_quote(t, value);
}

static void put_number(ravel__text *t, const char *key, double value) {
    RAVEL_ASSERT(t->used >= 1);
    ravel__text_puts(t, t->used > 1 ? ",\n " : "\n ");
    ravel__text_quote(t, key);
    ravel__text_puts(t, ": ");
    ravel__text_real(t, value);
}

static void put_processor(ravel__text *t) {
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    while (f && fgets(line, sizeof line, f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        colon[strcspn(colon, "\n")] = '\0';
        put_member(t, "cpu", colon + 2);
        break;
    }
    if (f) (void)fclose(f);
}

/* The command line, its words joined by spaces. */
static void put_command(ravel__text *t) {
    char text[2048];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0) (void)close(fd);
    for (ssize_t i = 0; i + 1 < got; i++)
        if (text[i] == '\0') text[i] = ' ';
    if (got <= 0) return;
    RAVEL_ASSERT((size_t)got < sizeof text);
    text[got] = '\0';
    put_member(t, "command", text);
}

static void put_environment(const ravel_metrics *m, ravel__text *t) {
    struct utsname name;
    char when[32];
    time_t now = time(NULL);
    struct tm utc;
    ravel__text_puts(t, "{");
    put_member(t, "ravel", ravel_version());
    if (gmtime_r(&now, &utc) && strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", &utc)) put_member(t, "started", when);
    if (uname(&name) == 0) {
        put_member(t, "host", name.nodename);
        put_member(t, "system", name.sysname);
        put_member(t, "kernel", name.release);
        put_member(t, "machine", name.machine);
    }
    put_processor(t);
    put_number(t, "cores", (double)sysconf(_SC_NPROCESSORS_ONLN));
    put_number(t, "memory_bytes", (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE));
    put_number(t, "ranks", m->reducer.size);
    put_number(t, "world", (double)m->world);
    if (m->options.updates > 0) put_number(t, "updates", (double)m->options.updates); /* planned, in all */
    if (m->options.gpu) put_member(t, "gpu", m->options.gpu);
    if (m->peak > 0) put_number(t, "gpu_peak_flops", m->peak);
    put_command(t);
    ravel__text_puts(t, "\n}\n");
}

/* ---- the run -------------------------------------------------------------------------------------------- */

static ravel_status write_description(ravel_metrics *m, const char *folder, const char *config, ravel_error *err) {
    char text[8192];
    ravel__text t = ravel__text_begin(text, sizeof text);
    put_environment(m, &t);
    RAVEL_ASSERT(t.used > 2 && t.data[0] == '{');
    ravel_status status = write_file(m, folder, "environment.json", t.data, t.used, err);
    if (status || !config) return status;
    ravel__json *doc = NULL;
    status = ravel__json_parse(config, strlen(config), m->options.allocator, &doc, err);
    if (status) ravel_error_prefix(err, "the config of the run");
    ravel__json_free(doc);
    return status ? status : write_file(m, folder, "config.json", config, strlen(config), err);
}

/* "jsonl" -> "jsonl:FOLDER/metrics.jsonl" and so on; other kinds have no place in a run directory. */
static ravel_status add_named(ravel_metrics *m, const char *folder, const char *word, size_t length, ravel_error *err) {
    static const struct {
        const char *word, *place;
    } places[] = {{"jsonl", "/metrics.jsonl"},     {"csv", "/metrics.csv"},
                  {"tensorboard", "/tensorboard"}, {"trace", ""},
                  {"log", "/train.log"},           {"prometheus", "/metrics.prom"}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (strlen(places[i].word) != length || memcmp(places[i].word, word, length) != 0) continue;
        char spec[4200];
        (void)snprintf(spec, sizeof spec, "%s:%s%s", places[i].word, folder, places[i].place);
        return ravel_metrics_sink(m, spec, err);
    }
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "\"%.*s\" has no place in a run directory; these do: jsonl, csv, tensorboard, trace, log, "
                           "prometheus",
                           (int)(length < 60 ? length : 60), word);
}

ravel_status ravel_metrics_run(ravel_metrics *m, const char *folder, const char *config, const char *sinks,
                               ravel_error *err) {
    ravel_status status = ravel__folder_make(folder, err);
    if (!status && m->reducer.rank == 0) status = write_description(m, folder, config, err);
    for (const char *word = sinks ? sinks : "jsonl"; !status && *word;) {
        size_t length = strcspn(word, ",");
        status = add_named(m, folder, word, length, err);
        word += length + (word[length] == ',');
    }
    return status;
}
