/* Communicators over self and threads: the body that every back end runs. */
#include "tests/unit/check.h"
#include "tests/unit/comm_ranks.h"

#include <stdlib.h>
#include <sys/mman.h>

static void run_bodies(int32_t ranks, const char *only, comm_job job) {
    for (const comm_body *body = comm_body_next(comm_bodies); body->name; body = comm_body_next(body + 1)) {
        ravel_error err = RAVEL_ERROR_INIT;
        if (only && strcmp(only, body->name) != 0) continue;
        ravel_status status = ravel_threads_run(ranks, NULL, body->run, &job, &err);
        if (status)
            check_fail(__FILE__, __LINE__, "%d threads, %s: %s: %s", ranks, body->name, ravel_status_name(status),
                       err.message);
    }
}

static comm_job job_of(int32_t rounds, int64_t most) {
    comm_job job = {check_seed(), rounds, most, 0, 0};
    return job;
}

TEST(comm_self_runs_the_body) {
    comm_job job = job_of(200, 3000);
    for (const comm_body *body = comm_body_next(comm_bodies); body->name; body = comm_body_next(body + 1)) {
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
    for (int i = 0; i < 5; i++) run_bodies(sizes[i], NULL, job_of((int32_t)check_rounds(150, 3000), 3000));
}

TEST(comm_threads_of_24_and_64_run_the_body) {
    run_bodies(24, "every operation", job_of(0, 300));
    run_bodies(24, "random operations", job_of((int32_t)check_rounds(60, 1000), 300));
    run_bodies(24, "splitting", job_of(0, 0));
    run_bodies(64, "every operation", job_of(0, 100));
    run_bodies(64, "random operations", job_of((int32_t)check_rounds(40, 500), 50));
    run_bodies(64, "disagreement", job_of(0, 100));
}

/* ---- finding MPI ---------------------------------------------------------------------------------------- */

TEST(comm_world_kind_reads_the_launchers_marks) {
    static const char *const marks[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMI_RANK", "PMIX_RANK"};
    char *saved[4];
    for (int i = 0; i < 4; i++) {
        const char *value = getenv(marks[i]);
        saved[i] = value ? strdup(value) : NULL;
        unsetenv(marks[i]);
    }
    CHECK_STR(ravel_comm_auto_kind(NULL), "self");
    for (int i = 0; i < 4; i++) {
        setenv(marks[i], "2", 1);
        CHECK_STR(ravel_comm_auto_kind(NULL), "mpi");
        unsetenv(marks[i]);
    }
    for (int i = 0; i < 4; i++) {
        if (saved[i]) setenv(marks[i], saved[i], 1);
        free(saved[i]);
    }
}

TEST(comm_modules_that_cannot_be_loaded_are_named) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options options;
    ravel_comm *comm = NULL;
    ravel_comm_options_default(&options);
    options.module = "/nowhere/libravel_openmpi.so";
    CHECK_EQ(ravel_comm_mpi(&options, &comm, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "/nowhere/libravel_openmpi.so");
    CHECK_HAS(err.message, "no such file");
    ravel_error_clear(&err);
    setenv("RAVEL_MPI_MODULE", "/proc/self/status", 1); /* a file, but no library */
    CHECK_EQ(ravel_comm_mpi(NULL, &comm, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "/proc/self/status");
    unsetenv("RAVEL_MPI_MODULE");
}

/* ---- long arrays ---------------------------------------------------------------------------------------- */

/* More than 2^31 elements, in make soak. What is sent is never touched, so that only what is received costs memory. */
static ravel_status send_much(ravel_comm *comm, void *user, ravel_error *err) {
    const int64_t count = *(const int64_t *)user;
    int32_t me = ravel_comm_rank(comm);
    uint8_t *data =
        mmap(NULL, (size_t)count, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return ravel_error_set(err, RAVEL_E_MEMORY, "no memory");
    if (me == 0) data[count - 1] = 42;
    ravel_status status = ravel_comm_broadcast(comm, data, count, RAVEL_U8, 0, err);
    if (!status && data[count - 1] != 42) status = ravel_error_set(err, RAVEL_E_INTERNAL, "the end did not arrive");
    int64_t counts[2] = {count, 0}, none[2] = {0, 0};
    if (me == 0) data[count - 1] = 43;
    if (!status && me == 0)
        status = ravel_comm_alltoallv(comm, data, (int64_t[]){0, count}, NULL, NULL, none, NULL, RAVEL_U8, err);
    if (!status && me == 1) status = ravel_comm_alltoallv(comm, NULL, none, NULL, data, counts, NULL, RAVEL_U8, err);
    if (!status && data[count - 1] != 43) status = ravel_error_set(err, RAVEL_E_INTERNAL, "the end did not arrive");
    munmap(data, (size_t)count);
    return status;
}

TEST(comm_long_arrays_to_their_last_element) {
    ravel_error err = RAVEL_ERROR_INIT;
    int64_t count = check_scale(1 << 20, (int64_t)1 << 31) + 4099; /* in full it needs 2 GiB */
    CHECK_OK(ravel_threads_run(2, NULL, send_much, &count, &err), &err);
}
