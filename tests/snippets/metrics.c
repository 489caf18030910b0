#include <ravel/ravel.h>
#include <assert.h>
#include <stdio.h>
#include <sys/stat.h>

enum { updates = 3 };
static const int64_t lengths[] = {5, 9};
static ravel_metrics_reducer reducer = {.rank = 0, .size = 1};
static ravel_shape shape;
static const double loss = 2.5;
static const char *config_json = "{}";

//@ docs/metrics.md 2

static int header(ravel_comm *comm) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_lengths_sum sum = {0};
    ravel_lengths_add(&sum, lengths, 2);
    ravel_metrics_batch batch = {.size = sizeof batch, .sum = &sum, .capacity = 32, .padded = 16};
    ravel_metrics *m = NULL;
    //@ include/ravel/metrics.h 1
    if (err.status) fprintf(stderr, "%s\n", err.message);
    return err.status;
}

static int page(ravel_comm *comm) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_lengths_sum sum = {0};
    ravel_lengths_add(&sum, lengths, 2);
    ravel_metrics_batch batch = {.size = sizeof batch, .sum = &sum, .capacity = 32, .padded = 16};
    ravel_metrics *m = NULL;
    double mfu = 0;
    //@ docs/metrics.md 1
    ravel_metrics_free(m);
    if (err.status) fprintf(stderr, "%s\n", err.message);
    return err.status;
}

static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
    reducer.all_reduce = reduce;
    reducer.user = comm;
    return header(comm) || page(comm) ? RAVEL_E_STATE : RAVEL_OK;
}

int main(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel_shape_named("qwen3-8b", &shape, &err)) return 1;
    (void)mkdir("runs", 0777);
    (void)mkdir("runs/a", 0777);
    return ravel_threads_run(1, NULL, work, NULL, &err);
}
