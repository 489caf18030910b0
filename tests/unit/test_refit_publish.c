/* Publish and pull: trainers and generators that share nothing but an address. Models, cuts and contents are those of
 * refit_case.c. Every generator has a communicator of its own. */
#include "tests/unit/refit_case.h"

#include "refit/pull.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static void pause_ms(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    (void)nanosleep(&t, NULL);
}

/* A name that no other test of this machine uses. */
static void make_address(char text[64]) {
    static _Atomic int next;
    (void)snprintf(text, 64, "unix:@ravel-test-%d-%d", (int)getpid(), atomic_fetch_add(&next, 1));
}

/* ---- random models -------------------------------------------------------------------------------------- */

enum { VERSIONS = 3 };

typedef struct meeting {
    refit_case c;
    char address[64];
    ravel_publish_options publish;
    ravel_pull_options pull;
    _Atomic int32_t generators_done;
    int32_t generators;
    _Atomic int64_t held; /* least version that all generators hold: trainers wait for it */
    pthread_mutex_t lock;
    ravel_error err; /* the first */
    int64_t wrong;
} meeting;

static void note_error(meeting *m, const char *who, ravel_status status, const ravel_error *err) {
    pthread_mutex_lock(&m->lock);
    ravel_error_set(&m->err, status, "%s: %s", who, err->message);
    pthread_mutex_unlock(&m->lock);
}

static ravel_status trainer(ravel_comm *comm, void *user, ravel_error *err) {
    meeting *m = user;
    case_side side;
    ravel_publisher *publisher = NULL;
    int32_t rank = ravel_comm_rank(comm);
    if (!case_side_make(&m->c, 0, rank, 0, &side)) return RAVEL_E_MEMORY;
    ravel_refit_source source = {.size = sizeof source, .tensors = side.tensors, .count = side.count};
    ravel_status status =
        ravel_publisher_create(comm, rank == 0 ? m->address : NULL, &source, &m->publish, &publisher, err);
    for (int64_t version = 1; version <= VERSIONS && status == RAVEL_OK; version++) {
        case_fill(&m->c, &side, version);
        status = ravel_publisher_publish(publisher, version, err);
        case_fill(&m->c, &side, 99); /* what comes after publish must not matter */
        while (status == RAVEL_OK && atomic_load(&m->held) < version * m->generators &&
               atomic_load(&m->generators_done) < m->generators)
            pause_ms(1);
    }
    while (status == RAVEL_OK && atomic_load(&m->generators_done) < m->generators) pause_ms(1);
    if (status == RAVEL_OK) status = ravel_comm_barrier(comm, err);
    ravel_publisher_free(publisher);
    case_side_free(&side);
    return status;
}

static int64_t wrong_elements(const refit_case *c, const case_side *side, const ravel_puller *p, int64_t version) {
    int64_t wrong = 0;
    for (int32_t i = 0; i < c->count; i++) wrong += case_wrong(side, i, ravel_puller_data(p, i), version);
    return wrong;
}

static ravel_status generator(ravel_comm *comm, void *user, ravel_error *err) {
    meeting *m = user;
    case_side side;
    ravel_puller *puller = NULL;
    int32_t rank = ravel_comm_rank(comm);
    /* Ranks of this generator are the receivers of the case. */
    refit_case c = m->c;
    c.senders = 0;
    c.both = 0;
    if (!case_side_make(&c, 1, rank, 0, &side)) return RAVEL_E_MEMORY;
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = side.tensors, .count = side.count};
    ravel_status status = ravel_puller_create(comm, m->address, &sink, &m->pull, &puller, err);
    while (status == RAVEL_OK && ravel_puller_identity(puller).version < VERSIONS) {
        ravel_pull_report report = {.size = sizeof report};
        status = ravel_puller_wait(puller, 20, err);
        if (status == RAVEL_OK) status = ravel_puller_commit(puller, &report, err);
        if (status != RAVEL_OK) break;
        int64_t wrong = wrong_elements(&m->c, &side, puller, report.identity.version);
        wrong += report.bytes_pulled + report.bytes_kept != report.bytes_needed;
        if (m->pull.audit) status = ravel_puller_audit(puller, err);
        pthread_mutex_lock(&m->lock);
        m->wrong += wrong;
        pthread_mutex_unlock(&m->lock);
        if (rank == 0) atomic_fetch_add(&m->held, 1);
    }
    ravel_puller_free(puller);
    case_side_free(&side);
    return status;
}

static void *run_trainers(void *argument) {
    meeting *m = argument;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = ravel_threads_run(m->c.senders, NULL, trainer, m, &err);
    if (status != RAVEL_OK) note_error(m, "trainers", status, &err);
    return NULL;
}

static void *run_generator(void *argument) {
    meeting *m = argument;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = ravel_threads_run(m->c.receivers, NULL, generator, m, &err);
    if (status != RAVEL_OK) note_error(m, "generator", status, &err);
    atomic_fetch_add(&m->generators_done, 1);
    return NULL;
}

static void random_meeting(meeting *m, ravel__rng *rng) {
    memset(m, 0, sizeof *m);
    case_random(&m->c, rng);
    m->c.both = 0;
    if (m->c.receivers > 3) m->c.receivers = 2, m->c.tp[1] = 2;
    make_address(m->address);
    pthread_mutex_init(&m->lock, NULL);
    m->generators = 1 + (int32_t)ravel__rng_below(rng, 2);
    ravel_publish_options_default(&m->publish);
    m->publish.keep = 1 + (int32_t)ravel__rng_below(rng, 3);
    m->publish.threads = 1 + (int32_t)ravel__rng_below(rng, 2);
    m->publish.block_bytes = 4096;
    ravel_pull_options_default(&m->pull);
    m->pull.threads = 1 + (int32_t)ravel__rng_below(rng, 3);
    m->pull.cast = m->c.options.cast;
    m->pull.stage = m->c.options.stage;
    m->pull.delta = (int32_t)ravel__rng_below(rng, 2);
    m->pull.audit = (int32_t)ravel__rng_below(rng, 2);
    m->pull.timeout = 20;
}

TEST(refit_publish_pull_random_models) {
    ravel__rng rng = ravel__rng_seed(20261115);
    int rounds = getenv("RAVEL_SOAK") ? 200 : 12;
    for (int i = 0; i < rounds; i++) {
        meeting m;
        pthread_t trainers, generators[2];
        random_meeting(&m, &rng);
        CHECK_EQ(pthread_create(&trainers, NULL, run_trainers, &m), 0);
        for (int32_t g = 0; g < m.generators; g++) CHECK_EQ(pthread_create(&generators[g], NULL, run_generator, &m), 0);
        for (int32_t g = 0; g < m.generators; g++) (void)pthread_join(generators[g], NULL);
        (void)pthread_join(trainers, NULL);
        if (m.err.status != RAVEL_OK || m.wrong)
            printf("    round %d: %d trainers, %d generators of %d; keep %d, stage %d, delta %d\n", i, m.c.senders,
                   m.generators, m.c.receivers, m.publish.keep, m.pull.stage, m.pull.delta);
        CHECK_OK((ravel_status)m.err.status, &m.err);
        CHECK_EQ(m.wrong, 0);
        pthread_mutex_destroy(&m.lock);
    }
}
