/* The back end between processes over a wire that is made up: one rank, whose transport fails when it is told to. What a
 * real MPI hardly ever does, and the suite `mpi` cannot make it do. */
#include "tests/unit/check.h"

#include "comm/remote.h"

#include <stdlib.h>

/* What the wire does, and what it was asked for. */
static struct {
    int begin, dup, start;       /* codes to return */
    int32_t size;                /* ranks that it claims to have */
    ravel__wire_verdict verdict; /* of every test */
    int code;                    /* with it */
    int channels, insides;       /* alive */
} fake;

struct ravel__channel {
    int nothing;
};

static int fake_begin(int32_t *rank, int32_t *size, int32_t *ours) {
    *rank = 0, *size = fake.size, *ours = 0;
    return fake.begin;
}
static int fake_is_over(void) {
    return 0;
}
static void fake_end(void) {}
static void fake_describe(int code, char *text, size_t bytes) {
    (void)snprintf(text, bytes, "the cable is out (%d)", code);
}
static int fake_dup(ravel__channel *from, ravel__channel **channel) {
    (void)from;
    if (fake.dup && fake.channels == 2) return fake.dup; /* the third one fails */
    *channel = calloc(1, sizeof **channel);
    fake.channels++;
    return 0;
}
static int fake_group(ravel__channel *from, const int32_t *members, int32_t count, int32_t tag,
                      ravel__channel **channel) {
    (void)members, (void)count, (void)tag;
    return fake_dup(from, channel);
}
static void fake_drop(ravel__channel *channel) {
    fake.channels -= channel != NULL;
    free(channel);
}
static int add(ravel__bundle *bundle) {
    if (!bundle->inside) bundle->inside = calloc(1, 8), fake.insides++;
    bundle->count++;
    return fake.start;
}
static int fake_send(ravel__channel *c, ravel__bundle *b, const void *data, int32_t bytes, int32_t peer, int32_t tag) {
    (void)c, (void)data, (void)bytes, (void)peer, (void)tag;
    return add(b);
}
/* Leave messages never come: the bundle that listens stays empty. */
static int fake_recv(ravel__channel *c, ravel__bundle *b, void *data, int32_t bytes, int32_t peer, int32_t tag) {
    (void)c, (void)data, (void)bytes, (void)tag;
    return peer < 0 ? 0 : add(b);
}
static int fake_broadcast(ravel__channel *c, ravel__bundle *b, void *data, int32_t bytes, int32_t root) {
    (void)c, (void)data, (void)bytes, (void)root;
    return add(b);
}
static int fake_gather(ravel__channel *c, ravel__bundle *b, const void *send, const int64_t *sizes, void *recv) {
    (void)c;
    memcpy(recv, send, (size_t)sizes[0]);
    return add(b);
}
static int fake_sum(ravel__channel *c, ravel__bundle *b, const uint64_t *in, uint64_t *out, int32_t count) {
    (void)c;
    memcpy(out, in, (size_t)count * sizeof *in);
    return add(b);
}
static ravel__wire_verdict fake_test(ravel__bundle *bundle, int *code) {
    *code = fake.verdict == RAVEL__WIRE_BROKEN ? fake.code : 0;
    if (bundle->count && (fake.verdict == RAVEL__WIRE_DONE || fake.verdict == RAVEL__WIRE_MISMATCH)) bundle->count = 0;
    return bundle->count ? fake.verdict : fake.verdict == RAVEL__WIRE_MISMATCH ? fake.verdict : RAVEL__WIRE_DONE;
}
static void fake_cancel(ravel__bundle *bundle) {
    bundle->count = 0;
}
static void fake_discard(ravel__bundle *bundle) {
    fake.insides -= bundle->inside != NULL;
    free(bundle->inside);
    bundle->inside = NULL;
}

static const ravel__wire wire = {RAVEL__WIRE_VERSION, sizeof wire, fake_begin,     fake_is_over, fake_end,
                                 fake_describe,       fake_dup,    fake_group,     fake_drop,    fake_drop,
                                 fake_send,           fake_recv,   fake_broadcast, fake_gather,  fake_sum,
                                 fake_test,           fake_cancel, fake_discard};

static ravel_status open_fake(double timeout, int32_t expected, ravel_comm **comm, ravel_error *err) {
    ravel_comm_options options;
    ravel_comm_options_default(&options);
    options.timeout = timeout;
    return ravel__remote_open(&wire, &options, expected, comm, err);
}

/* The wire is well, and the process has not lost hope of it. */
static void fake_default(void) {
    memset(&fake, 0, sizeof fake);
    ravel__remote.hopeless = ravel__remote.broken = 0;
    fake.size = 1;
    fake.verdict = RAVEL__WIRE_DONE;
}

TEST(comm_wire_that_cannot_begin_is_said_and_leaves_nothing) {
    static const struct {
        int begin, dup;
        int32_t expected;
        ravel_status status;
        const char *says;
    } cases[] = {
        {RAVEL__WIRE_OVER, 0, 0, RAVEL_E_STATE, "finalised"},
        {RAVEL__WIRE_THREADS, 0, 0, RAVEL_E_UNSUPPORTED, "MPI_THREAD_SERIALIZED"},
        {17, 0, 0, RAVEL_E_PEER_LOST, "starting MPI failed: the cable is out (17)"},
        {0, 18, 0, RAVEL_E_PEER_LOST, "making a communicator failed: the cable is out (18)"},
        {0, RAVEL__WIRE_MEMORY, 0, RAVEL_E_MEMORY, "out of memory"},
        {0, 0, 4, RAVEL_E_UNSUPPORTED, "started 4 ranks"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_comm *comm = NULL;
        fake_default();
        fake.begin = cases[i].begin, fake.dup = cases[i].dup;
        CHECK_EQ(open_fake(1, cases[i].expected, &comm, &err), cases[i].status);
        CHECK_HAS(err.message, cases[i].says);
        CHECK(!comm && fake.channels == 0 && fake.insides == 0);
    }
}

TEST(comm_wire_that_breaks_makes_the_communicator_dead) {
    static const struct {
        ravel__wire_verdict verdict;
        int start;
        ravel_status status;
        const char *says;
    } cases[] = {
        {RAVEL__WIRE_BROKEN, 0, RAVEL_E_PEER_LOST, "MPI failed in an operation: the cable is out (21)"},
        {RAVEL__WIRE_TORN, 0, RAVEL_E_PEER_LOST, "pieces of a message"},
        {RAVEL__WIRE_DONE, 22, RAVEL_E_PEER_LOST, "MPI failed in starting an operation: the cable is out (22)"},
        {RAVEL__WIRE_DONE, RAVEL__WIRE_MEMORY, RAVEL_E_PEER_LOST, "out of memory"},
        {RAVEL__WIRE_MISMATCH, 0, RAVEL_E_MISMATCH, "another number of bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_comm *comm = NULL;
        char byte = 0;
        fake_default();
        CHECK_OK(open_fake(1, 0, &comm, &err), &err);
        CHECK_OK(ravel_comm_barrier(comm, &err), &err);
        fake.verdict = cases[i].verdict, fake.code = 21, fake.start = cases[i].start;
        ravel_status status = ravel_comm_broadcast(comm, &byte, 1, RAVEL_U8, 0, &err);
        CHECK_EQ(status, cases[i].status);
        CHECK_HAS(err.message, cases[i].says);
        int channels = fake.channels, hopeless = ravel__remote.hopeless;
        fake_default();
        fake.channels = channels, ravel__remote.hopeless = hopeless;
        CHECK_EQ(ravel_comm_barrier(comm, NULL), status == RAVEL_E_MISMATCH ? RAVEL_OK : RAVEL_E_DEAD);
        ravel_comm_free(comm);
        CHECK(fake.channels <= 1); /* the one for leave messages may be kept */
    }
}
