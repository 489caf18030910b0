/* Communicators over self and threads: the body that every back end runs. */
#include "tests/unit/check.h"
#include "tests/unit/comm_body.h"

#include <stdlib.h>

static void run_bodies(int32_t ranks, const char *only, comm_job job) {
    for (const comm_body *body = comm_bodies; body->name; body++) {
        ravel_error err = RAVEL_ERROR_INIT;
        if (only && strcmp(only, body->name) != 0) continue;
        ravel_status status = ravel_threads_run(ranks, NULL, body->run, &job, &err);
        if (status)
            check_fail(__FILE__, __LINE__, "%d threads, %s: %s: %s", ranks, body->name, ravel_status_name(status),
                       err.message);
    }
}

static comm_job job_of(int32_t rounds, int64_t most) {
    comm_job job = {check_seed(), rounds, most, 0};
    return job;
}

TEST(comm_self_runs_the_body) {
    comm_job job = job_of(200, 3000);
    for (const comm_body *body = comm_bodies; body->name; body++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_comm *comm = NULL;
        CHECK_OK(ravel_comm_self(NULL, &comm, &err), &err);
        CHECK_STR(ravel_comm_kind(comm), "self");
        ravel_status status = body->run(comm, &job, &err);
        if (status) check_fail(__FILE__, __LINE__, "%s: %s", body->name, err.message);
        ravel_comm_free(comm);
    }
}

TEST(comm_threads_of_1_2_3_4_8_run_the_body) {
    static const int32_t sizes[] = {1, 2, 3, 4, 8};
    for (int i = 0; i < 5; i++) run_bodies(sizes[i], NULL, job_of((int32_t)check_scale(150, 3000), 3000));
}

TEST(comm_threads_of_24_and_64_run_the_body) {
    run_bodies(24, "every operation", job_of(0, 300));
    run_bodies(24, "random operations", job_of((int32_t)check_scale(60, 1000), 300));
    run_bodies(24, "splitting", job_of(0, 0));
    run_bodies(64, "every operation", job_of(0, 100));
    run_bodies(64, "random operations", job_of((int32_t)check_scale(40, 500), 50));
    run_bodies(64, "disagreement", job_of(0, 100));
}
