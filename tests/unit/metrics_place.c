#include "tests/unit/metrics_place.h"

#include "tests/unit/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void keep_line(void *user, ravel_log_level level, const char *text) {
    place *p = user;
    (void)level;
    p->lines++;
    size_t used = strlen(p->log);
    (void)snprintf(p->log + used, sizeof p->log - used, "%s\n", text);
}

void place_make(place *p) {
    memset(p, 0, sizeof *p);
    (void)snprintf(p->folder, sizeof p->folder, "/tmp/ravel-metrics-XXXXXX");
    if (!mkdtemp(p->folder)) check_fail(__FILE__, __LINE__, "no folder");
    p->logger.write = keep_line;
    p->logger.user = p;
}

void place_remove(const place *p) {
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf %s", p->folder);
    if (system(command) != 0) check_fail(__FILE__, __LINE__, "cannot remove %s", p->folder);
}

ravel_metrics *place_metrics(place *p, const ravel_allocator *allocator) {
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

ravel_status place_sink(ravel_metrics *m, const place *p, const char *kind, const char *name, ravel_error *err) {
    char spec[256];
    (void)snprintf(spec, sizeof spec, "%s:%s%s", kind, p->folder, name);
    return ravel_metrics_sink(m, spec, err);
}

void place_update(ravel_metrics *m, int64_t step) {
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

char *place_read(const place *p, const char *name, size_t *bytes) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s%s", p->folder, name);
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    *bytes = f && text ? fread(text, 1, (1 << 20) - 1, f) : 0;
    if (f) (void)fclose(f);
    return text;
}

int place_append(const place *p, const char *name, const char *text) {
    char path[256];
    (void)snprintf(path, sizeof path, "%s%s", p->folder, name);
    FILE *f = fopen(path, "ab");
    int ok = f && fputs(text, f) >= 0;
    return f && fclose(f) == 0 && ok;
}

int place_lines(const char *text) {
    int count = 0;
    for (; *text; text++) count += *text == '\n';
    return count;
}
