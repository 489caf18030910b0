/* Processes that were not launched together: start this program by hand, in as many terminals as there are ranks, or on
 * several machines (then with RAVEL_TOKEN set to the same word everywhere, and an address that all can reach).
 *
 *     08_tcp 127.0.0.1:7000 3 0 &        where they meet, how many ranks, which one this is
 *     08_tcp 127.0.0.1:7000 3 1 &
 *     08_tcp 127.0.0.1:7000 3 2
 *
 * Under srun or torchrun it needs no arguments. Without launcher and arguments it starts all three ranks itself. */
#include <ravel/comm.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static ravel_status work(ravel_comm *comm, ravel_error *err) {
    int64_t mine = ravel_comm_rank(comm) + 1, sum = 0;
    ravel_status status = ravel_comm_allreduce(comm, &mine, &sum, 1, RAVEL_I64, RAVEL_SUM, err);
    if (!status && ravel_comm_rank(comm) == 0)
        printf("%d ranks over %s: the sum of 1 to %d is %lld\n", ravel_comm_size(comm), ravel_comm_kind(comm),
               ravel_comm_size(comm), (long long)sum);
    return status;
}

static int run(const char *rendezvous, int ranks, int rank) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options options;
    ravel_comm *comm = NULL;
    ravel_comm_options_default(&options);
    options.timeout = 30;
    options.rendezvous = rendezvous;
    options.ranks = ranks;
    options.rank = rank;
    ravel_status status = ravel_comm_open("auto", &options, &comm, &err);
    if (!status) status = work(comm, &err);
    ravel_comm_free(comm);
    if (status) (void)fprintf(stderr, "%s: %s\n", ravel_status_name(status), err.message);
    return status != RAVEL_OK;
}

/* Three unrelated processes that find one another by a file. */
static int run_all(void) {
    char place[64];
    int code = 0, bad = 0;
    (void)snprintf(place, sizeof place, "file:/tmp/ravel-example-%ld", (long)getpid());
    for (int rank = 1; rank < 3; rank++)
        if (fork() == 0) _exit(run(place, 3, rank));
    bad = run(place, 3, 0);
    while (wait(&code) > 0) bad |= code != 0;
    return bad;
}

int main(int argc, char **argv) {
    if (argc == 4) return run(argv[1], atoi(argv[2]), atoi(argv[3]));
    const char *kind = ravel_comm_auto_kind(NULL);
    return kind[0] == 's' ? run_all() : run(NULL, 0, -1);
}
