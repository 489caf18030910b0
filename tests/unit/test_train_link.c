/* Arrays of a device over communicators: through host memory, in chunks, the result is the communicator's own. */
#include "tests/unit/check.h"

#include "train/model/ranks/link.h"

#include <string.h>

enum { RANKS = 4, MOST = 97, ROUNDS = 60 };

typedef struct job {
    train_kernels kernels; /* the CPU's, said to work on memory that is not the host's */
    uint64_t seed;
} job;

static uint64_t next(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

/* Small sums that differ by the order of addition. */
static void fill(uint64_t *state, int32_t dtype, void *array, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float value = ((float)next(state) - 1e9f) * 1e-9f;
        if (dtype == RAVEL_F32)
            memcpy((float *)array + i, &value, sizeof value);
        else
            (void)ravel_dtype_convert(RAVEL_F32, &value, dtype, (char *)array + i * ravel_dtype_bytes(dtype), 1, NULL);
    }
}

typedef struct arrays {
    double mine[MOST * RANKS], given[MOST * RANKS], wanted[MOST * RANKS], got[MOST * RANKS];
} arrays;

static int same(const arrays *a, int64_t count, int32_t dtype) {
    return memcmp(a->wanted, a->got, (size_t)(count * ravel_dtype_bytes(dtype))) == 0;
}

static ravel_status judge(int ok, const char *what, ravel_error *err) {
    return ok ? RAVEL_OK : ravel_error_set(err, RAVEL_E_MISMATCH, "%s differ", what);
}

/* The same operation straight and in chunks. */
static ravel_status compare(const train__port *x, ravel_comm *comm, train__pieces pieces, int64_t all, int32_t dtype,
                            uint64_t *own, arrays *a, ravel_error *err) {
    const train__port straight = {.kernels = x->kernels};
    int64_t mine = pieces.counts ? pieces.counts[ravel_comm_rank(comm)] : pieces.each;
    memset(a, 0, sizeof *a);
    fill(own, dtype, a->given, all);
    memcpy(a->wanted, a->given, sizeof a->given);
    memcpy(a->got, a->given, sizeof a->given);
    ravel_status status = train__port_sum(&straight, comm, a->wanted, all, dtype, err);
    if (!status) status = train__port_sum(x, comm, a->got, all, dtype, err);
    if (!status) status = judge(same(a, all, dtype), "sums", err);
    if (!status) status = train__port_gather(&straight, comm, a->given, a->wanted, pieces, dtype, err);
    if (!status) status = train__port_gather(x, comm, a->given, a->got, pieces, dtype, err);
    if (!status) status = judge(same(a, all, dtype), "gathered arrays", err);
    if (!status) status = train__port_scatter(&straight, comm, a->given, a->wanted, pieces, dtype, err);
    if (!status) status = train__port_scatter(x, comm, a->given, a->got, pieces, dtype, err);
    return status ? status : judge(same(a, mine, dtype), "pieces of sums", err);
}

/* Two messages at a time, around the ring. */
static ravel_status shift(const train__port *x, ravel_comm *comm, int64_t count, int32_t dtype, uint64_t *own,
                          arrays *a, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    train__parcel in = {count, dtype, (rank + RANKS - 1) % RANKS, 7, 0}, out = {count, dtype, (rank + 1) % RANKS, 7, 1};
    train__message arriving, leaving;
    fill(own, dtype, a->mine, count);
    ravel_status status = train__port_receive(x, comm, a->got, &in, &arriving, err);
    if (!status) status = train__port_send(x, comm, a->mine, &out, &leaving, err);
    if (!status) status = train__port_end(x, &arriving, err);
    if (!status) status = train__port_end(x, &leaving, err);
    if (!status) status = ravel_comm_allgather(comm, a->mine, a->given, count, dtype, err);
    memcpy(a->wanted, (char *)a->given + in.peer * count * ravel_dtype_bytes(dtype),
           (size_t)(count * ravel_dtype_bytes(dtype)));
    return status ? status : judge(same(a, count, dtype), "messages", err);
}

/* Pieces of their own sizes between all ranks, with gaps, straight and in chunks; what was not received stays. */
static ravel_status trade(const train__port *x, ravel_comm *comm, int32_t dtype, uint64_t *shared, uint64_t *own,
                          arrays *a, ravel_error *err) {
    int64_t between[RANKS][RANKS], sizes[4][RANKS], most = 0, rank = ravel_comm_rank(comm);
    const train__port straight = {.kernels = x->kernels};
    for (int i = 0; i < RANKS * RANKS; i++) {
        between[i / RANKS][i % RANKS] = next(shared) % 3 ? (int64_t)next(shared) % MOST : 0;
        most = between[i / RANKS][i % RANKS] > most ? between[i / RANKS][i % RANKS] : most;
    }
    for (int r = 0; r < RANKS; r++) {
        sizes[0][r] = between[rank][r], sizes[2][r] = between[r][rank];
        sizes[1][r] = MOST * (RANKS - 1 - r), sizes[3][r] = MOST * r;
    }
    memset(a, 0, sizeof *a);
    fill(own, dtype, a->given, MOST * RANKS);
    train__link wanted = train__link_over(comm, &straight), got = train__link_over(comm, x);
    train__link_exchange(&wanted, a->given, sizes[0], sizes[1], a->wanted, sizes[2], sizes[3], most, dtype);
    train__link_exchange(&got, a->given, sizes[0], sizes[1], a->got, sizes[2], sizes[3], most, dtype);
    ravel_status status = train__link_status(&wanted, err);
    if (!status) status = train__link_status(&got, err);
    return status ? status : judge(same(a, MOST * RANKS, dtype), "traded pieces", err);
}

static ravel_status exchange(ravel_comm *comm, void *user, ravel_error *err) {
    static const int32_t types[] = {RAVEL_F32, RAVEL_BF16, RAVEL_F64};
    job *j = user;
    uint64_t shared = j->seed, own = j->seed + (uint64_t)ravel_comm_rank(comm) + 1;
    ravel_status status = RAVEL_OK;
    for (int round = 0; round < ROUNDS && !status; round++) {
        int64_t counts[RANKS], all = 0, each = (int64_t)next(&shared) % MOST;
        int32_t dtype = types[next(&shared) % 3];
        train__port x = {.kernels = &j->kernels, .ranks = RANKS, .places = 2};
        _Alignas(64) char host[8192];
        arrays a;
        x.chunk_bytes = 16 * (RANKS + 1 + next(&shared) % 40);
        x.message_bytes = MOST * sizeof(double);
        x.host = host;
        status = judge(train__port_bytes(&x) <= sizeof host, "sizes", err);
        for (int r = 0; r < RANKS; r++) all += counts[r] = next(&shared) % 3 ? (int64_t)next(&shared) % MOST : 0;
        if (!status) status = compare(&x, comm, (train__pieces){counts, 0}, all, dtype, &own, &a, err);
        if (!status) status = compare(&x, comm, (train__pieces){.each = each}, each * RANKS, dtype, &own, &a, err);
        if (!status) status = shift(&x, comm, each, dtype, &own, &a, err);
        if (!status) status = trade(&x, comm, dtype, &shared, &own, &a, err);
    }
    return status;
}

TEST(train_link_in_chunks_is_the_communicators) {
    ravel_error err = RAVEL_ERROR_INIT;
    const train_kernels *cpu;
    job j = {.seed = 11};
    CHECK_OK(train_kernels_find("ref", &cpu, &err), &err);
    j.kernels = *cpu;
    j.kernels.host_memory = 0;
    CHECK_OK(ravel_threads_run(RANKS, NULL, exchange, &j, &err), &err);
}
