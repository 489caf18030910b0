#include <ravel/ravel.h>
#include <assert.h>
#include <stdio.h>

#define training   (version <= 3)
#define train(...) (void)0
static uint16_t memory[3][4096 * 4096];

static ravel_status once(ravel_comm *comm, void *user, ravel_error *e) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_report report = {.size = sizeof report};
    int rank = ravel_comm_rank(comm);
    uint16_t *w = memory[rank];
    w[7] = rank == 0 ? 42 : 0;
#define ravel_refit_run(comm, source, sink, options, version, report, err)                      \
    ((source) ? rank == 0 && ravel_refit_run(comm, source, sink, options, version, report, err) \
              : rank == 1 && ravel_refit_run(comm, source, sink, options, version, report, err))
    //@ include/ravel/refit.h 1
    assert(!err.status && w[7] == 42);
    return err.status;
}

static ravel_status often(ravel_comm *comm, void *user, ravel_error *e) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit *refit = NULL;
    ravel_refit_options options;
    ravel_refit_report report = {.size = sizeof report};
    int rank = ravel_comm_rank(comm);
    void *weights = NULL;
    const int64_t tensor = 0;
    float mine[16] = {1, 2, 3}, spare[16];
    ravel_refit_tensor t = {.name = "w", .dtype = RAVEL_F32, .ndim = 1, .dims = {16}, .data = mine};
    if (rank == 1) t.spare = spare;
    ravel_refit_source source = {.size = sizeof source, .tensors = &t, .count = 1};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    ravel_refit_options_default(&options);
#define ravel_refit_create(c, a, b, o, r, e) \
    ravel_refit_create(c, rank == 0 ? (a) : NULL, rank == 1 ? (b) : NULL, o, r, e)
    {
        //@ include/ravel/refit.h 2
    }
    refit = NULL;
    {
        //@ docs/refit.md 1
    }
    assert(!err.status && (rank == 0 || weights == mine || weights == spare));
    ravel_refit_free(refit);
    return err.status;
}

int main(void) {
    ravel_error err = RAVEL_ERROR_INIT;
    int failed = ravel_threads_run(2, NULL, once, NULL, &err) || ravel_threads_run(2, NULL, often, NULL, &err);
    if (failed) fprintf(stderr, "%s\n", err.message);
    return failed;
}
