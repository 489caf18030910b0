/* A folder, a logger, an object with sinks in it: for tests of what metrics write. */
#ifndef TESTS_METRICS_PLACE_H
#define TESTS_METRICS_PLACE_H

#include <ravel/metrics.h>

typedef struct place {
    char folder[64];
    char log[4096]; /* what the logger was told */
    int lines;
    ravel_logger logger;
} place;

void place_make(place *p); /* the folder is new */
void place_remove(const place *p);
/* An RL run of 100 updates that reports to the place's logger. */
ravel_metrics *place_metrics(place *p, const ravel_allocator *allocator);
/* A sink whose target is `name` in the folder. */
ravel_status place_sink(ravel_metrics *m, const place *p, const char *kind, const char *name, ravel_error *err);
/* Two samples, a loss of 1 / step, two phases; then ravel_metrics_update. */
void place_update(ravel_metrics *m, int64_t step);
/* The file as a string of the caller's; "" when it cannot be read. */
char *place_read(const place *p, const char *name, size_t *bytes);
int place_append(const place *p, const char *name, const char *text);
int place_lines(const char *text);

#endif
