/* Ranks: the same work on N threads of this process, or on the processes that mpirun started.
 *
 *     03_ranks                 4 ranks in this process
 *     03_ranks 8               8 ranks in this process
 *     mpirun -n 4 03_ranks     4 processes; detected from the environment
 *
 * Every rank brings samples of different lengths. They gather all lengths, and each sends its samples to the rank that
 * has the number of tokens modulo the number of ranks: one all-gather, one all-to-all. Then they lay themselves out as
 * a mesh and sum over a part of it. */
#include <ravel/mesh.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 3, MOST = 64 };

/* tokens[] of this rank's samples, one after the other, to the rank that each sample belongs to. */
static ravel_status exchange(ravel_comm *comm, const int64_t *lengths, ravel_error *err) {
    int32_t n = ravel_comm_size(comm), me = ravel_comm_rank(comm);
    int64_t all[MOST * SAMPLES], send_counts[MOST] = {0}, recv_counts[MOST] = {0};
    ravel_status status = ravel_comm_allgather(comm, lengths, all, SAMPLES, RAVEL_I64, err);
    if (status) return status;
    int64_t received = 0;
    for (int32_t r = 0; r < n; r++)
        for (int i = 0; i < SAMPLES; i++) {
            int64_t length = all[r * SAMPLES + i];
            if (r == me) send_counts[length % n] += length;
            if (length % n == me) recv_counts[r] += length, received += length;
        }
    int32_t send[MOST * SAMPLES] = {0}, *recv = malloc((size_t)received * sizeof *recv + 1), at = 0;
    for (int32_t r = 0; r < n; r++) /* in the order of their destinations */
        for (int64_t k = 0; k < send_counts[r]; k++) send[at++] = me;
    status = recv ? ravel_comm_alltoallv(comm, send, send_counts, NULL, recv, recv_counts, NULL, RAVEL_I32, err)
                  : ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    free(recv);
    if (!status) printf("rank %d received %lld tokens\n", me, (long long)received);
    return status;
}

static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
    int64_t lengths[SAMPLES];
    (void)user;
    for (int i = 0; i < SAMPLES; i++) lengths[i] = 1 + (ravel_comm_rank(comm) * 7 + i * 5) % 20;
    ravel_status status = exchange(comm, lengths, err);
    if (status) return status;

    ravel_mesh_options options;
    ravel_mesh *mesh = NULL;
    ravel_mesh_options_default(&options);
    options.tp = ravel_comm_size(comm) % 2 == 0 ? 2 : 1; /* dp is what is left */
    status = ravel_mesh_create(comm, &options, &mesh, err);
    if (status) return status;
    int64_t sum = lengths[0];
    status = ravel_comm_allreduce(ravel_mesh_comm(mesh, RAVEL_AXIS_DP), &sum, &sum, 1, RAVEL_I64, RAVEL_SUM, err);
    ravel_mesh_coord at = ravel_mesh_coords(mesh);
    if (!status)
        printf("rank %d is tp %d, dp %d; the first samples of its dp group have %lld tokens\n", ravel_comm_rank(comm),
               at.tp, at.dp, (long long)sum);
    ravel_mesh_free(mesh);
    return status;
}

int main(int argc, char **argv) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *comm = NULL;
    int ranks = argc > 1 ? atoi(argv[1]) : 4;
    ravel_status status;
    if (ranks < 1 || ranks > MOST) return (void)fprintf(stderr, "usage: 03_ranks [1 .. %d]\n", MOST), 2;
    if (strcmp(ravel_comm_auto_kind(NULL), "mpi") == 0) {
        status = ravel_comm_open("auto", NULL, &comm, &err);
        if (!status && ravel_comm_size(comm) > MOST)
            status = ravel_error_set(&err, RAVEL_E_ARGUMENT, "at most %d ranks, please", MOST);
        if (!status) status = work(comm, NULL, &err);
        if (status && comm) ravel_comm_abort(comm, &err); /* the other ranks get this rank's error */
        ravel_comm_free(comm);
    } else {
        status = ravel_threads_run(ranks, NULL, work, NULL, &err);
    }
    if (status) (void)fprintf(stderr, "03_ranks: %s\n", err.message);
    return status != RAVEL_OK;
}
