/* Publish and pull: trainers and generators that share nothing but an address. Models, cuts and contents are those of
 * refit_case.c. Every generator has a communicator of its own. */
#include "tests/unit/refit_case.h"
#include "tests/unit/ports.h"

#include "refit/publish/store.h"
#include "refit/pull/pull.h"

#include <math.h>
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

enum { VERSIONS = 6 };

enum { GENERATORS = 2 };

typedef struct meeting meeting;

typedef struct seat {
    meeting *m;
    _Atomic int64_t held; /* version; INT64_MAX: it has ended */
} seat;

struct meeting {
    refit_case c;
    char address[64];
    ravel_publish_options publish;
    ravel_pull_options pull;
    int32_t generators, burst; /* trainers wait for all of them after so many versions */
    seat seats[GENERATORS];
    pthread_mutex_t lock;
    ravel_error err; /* the first */
    int64_t wrong;
};

static void wait_for_generators(const meeting *m, int64_t version) {
    for (int32_t g = 0; g < m->generators; g++)
        while (atomic_load(&m->seats[g].held) < version) pause_ms(1);
}

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
        if (status == RAVEL_OK && (version - 1) % m->burst == 0) wait_for_generators(m, version);
    }
    if (status == RAVEL_OK) wait_for_generators(m, INT64_MAX);
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
    seat *own = user;
    meeting *m = own->m;
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
        if (m->burst > 1 && (status == RAVEL_E_STATE || status == RAVEL_E_IO)) { /* it was replaced meanwhile */
            ravel_error_clear(err);
            status = RAVEL_OK;
            continue;
        }
        if (status == RAVEL_OK) status = ravel_puller_commit(puller, &report, err);
        if (status != RAVEL_OK) break;
        int64_t wrong = wrong_elements(&m->c, &side, puller, report.identity.version);
        wrong +=
            report.bytes_pulled - report.bytes_changes + report.bytes_sparse + report.bytes_kept != report.bytes_needed;
        if (m->pull.audit) status = ravel_puller_audit(puller, err);
        pthread_mutex_lock(&m->lock);
        m->wrong += wrong;
        pthread_mutex_unlock(&m->lock);
        if (rank == 0) atomic_store(&own->held, report.identity.version);
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
    seat *own = argument;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = ravel_threads_run(own->m->c.receivers, NULL, generator, own, &err);
    if (status != RAVEL_OK) note_error(own->m, "generator", status, &err);
    atomic_store(&own->held, INT64_MAX);
    return NULL;
}

static void random_meeting(meeting *m, ravel__rng *rng) {
    memset(m, 0, sizeof *m);
    case_random(&m->c, rng);
    m->c.both = 0;
    if (m->c.receivers > 3) m->c.receivers = 2, m->c.tp[1] = 2;
    make_address(m->address);
    pthread_mutex_init(&m->lock, NULL);
    m->generators = 1 + (int32_t)ravel__rng_below(rng, GENERATORS);
    m->burst = 1 + (int32_t)ravel__rng_below(rng, VERSIONS - 1);
    ravel_publish_options_default(&m->publish);
    m->publish.keep = 1 + (int32_t)ravel__rng_below(rng, 3);
    m->publish.threads = 1 + (int32_t)ravel__rng_below(rng, 2);
    m->publish.block_bytes = 4096;
    ravel_pull_options_default(&m->pull);
    m->pull.threads = 1 + (int32_t)ravel__rng_below(rng, 3);
    m->pull.cast = m->c.options.cast;
    if (m->pull.cast == RAVEL_REFIT_NARROW && ravel__rng_below(rng, 2)) m->publish.dtype = RAVEL_BF16;
    m->pull.stage = m->c.options.stage;
    m->pull.delta = (int32_t)ravel__rng_below(rng, 2);
    m->pull.audit = (int32_t)ravel__rng_below(rng, 2);
    m->pull.timeout = 60;
}

TEST(refit_publish_pull_random_models) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    int rounds = (int)check_rounds(12, 200);
    for (int i = 0; i < rounds; i++) {
        meeting m;
        pthread_t trainers, generators[GENERATORS];
        random_meeting(&m, &rng);
        CHECK_EQ(pthread_create(&trainers, NULL, run_trainers, &m), 0);
        for (int32_t g = 0; g < m.generators; g++) {
            m.seats[g].m = &m;
            CHECK_EQ(pthread_create(&generators[g], NULL, run_generator, &m.seats[g]), 0);
        }
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

/* ---- one trainer, one generator, step by step ------------------------------------------------------------ */

/* A publisher and a puller of one rank each, in this thread. */
typedef struct pair {
    char address[64];
    float *from, *to;
    ravel_refit_tensor source_tensor, sink_tensor;
    ravel_refit_source source;
    ravel_refit_sink sink;
    ravel_publish_options publish;
    ravel_pull_options pull;
    ravel_comm *self;
    ravel_publisher *publisher;
    ravel_puller *puller;
    ravel_error err;
} pair;

enum { PAIR_FLOATS = 300000 };

static bool pair_open(pair *p) {
    memset(p, 0, sizeof *p);
    make_address(p->address);
    p->from = calloc(PAIR_FLOATS, sizeof *p->from);
    p->to = calloc(PAIR_FLOATS, sizeof *p->to);
    if (!p->from || !p->to) return false;
    p->source_tensor = float_tensor("w", p->from, PAIR_FLOATS);
    p->sink_tensor = float_tensor("w", p->to, PAIR_FLOATS);
    p->source = (ravel_refit_source){.size = sizeof p->source, .tensors = &p->source_tensor, .count = 1};
    p->sink = (ravel_refit_sink){.size = sizeof p->sink, .tensors = &p->sink_tensor, .count = 1};
    ravel_publish_options_default(&p->publish);
    ravel_pull_options_default(&p->pull);
    p->publish.threads = p->pull.threads = 1;
    p->pull.timeout = 60;
    return ravel_comm_self(NULL, &p->self, &p->err) == RAVEL_OK;
}

static bool pair_meet(pair *p) {
    return ravel_publisher_create(p->self, p->address, &p->source, &p->publish, &p->publisher, &p->err) == RAVEL_OK &&
           ravel_puller_create(p->self, p->address, &p->sink, &p->pull, &p->puller, &p->err) == RAVEL_OK;
}

static void pair_close(pair *p) {
    ravel_puller_free(p->puller);
    ravel_publisher_free(p->publisher);
    ravel_comm_free(p->self);
    free(p->from);
    free(p->to);
}

static ravel_status pair_publish(pair *p, int64_t version) {
    fill_floats(p->from, PAIR_FLOATS, (float)version);
    return ravel_publisher_publish(p->publisher, version, &p->err);
}

static ravel_status pair_pull(pair *p) {
    ravel_status status = ravel_puller_wait(p->puller, 20, &p->err);
    return status == RAVEL_OK ? ravel_puller_commit(p->puller, NULL, &p->err) : status;
}

static bool pair_holds(const pair *p, int64_t version) {
    return ravel_puller_identity(p->puller).version == version &&
           floats_are(ravel_puller_data(p->puller, 0), PAIR_FLOATS, (float)version);
}

TEST(refit_pull_gets_the_newest_when_it_comes_late) {
    pair p;
    CHECK(pair_open(&p));
    CHECK_EQ(ravel_publisher_create(p.self, p.address, &p.source, &p.publish, &p.publisher, &p.err), RAVEL_OK);
    for (int64_t v = 1; v <= 5; v++) CHECK_OK(pair_publish(&p, v), &p.err);
    CHECK_EQ(ravel_publisher_publish(p.publisher, 5, NULL), RAVEL_E_ARGUMENT); /* versions rise */
    CHECK_OK(ravel_puller_create(p.self, p.address, &p.sink, &p.pull, &p.puller, &p.err), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    CHECK(pair_holds(&p, 5));
    CHECK_EQ(ravel_puller_stage(p.puller, 0, NULL), RAVEL_E_STATE); /* it is live already */
    CHECK_EQ(ravel_puller_stage(p.puller, 2, NULL), RAVEL_E_STATE); /* it is not kept any more */
    CHECK_OK(ravel_puller_stage(p.puller, 4, &p.err), &p.err);      /* an older one that is kept */
    CHECK_OK(pair_pull(&p), &p.err);
    CHECK(pair_holds(&p, 4));
    ravel_generator_report report;
    for (int i = 0; i < 1500 && (ravel_publisher_generators(p.publisher, &report, 1) < 1 || report.commits < 2); i++)
        pause_ms(10);
    CHECK(report.held.version == 4 && report.lag == 1 && report.connected && report.commits == 2);
    pair_close(&p);
}

/* A program may clear a secret as soon as it has been handed over. */
TEST(refit_pull_keeps_its_own_copy_of_the_token) {
    pair p;
    char secrets[2][8] = {"secret", "secret"};
    CHECK(pair_open(&p));
    p.publish.token = secrets[0];
    p.pull.token = secrets[1];
    CHECK(pair_meet(&p));
    memset(secrets, 'x', sizeof secrets - 1);
    CHECK_OK(pair_publish(&p, 1), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    CHECK(pair_holds(&p, 1));
    pair_close(&p);
}

/* Forever is a time to wait, too. */
TEST(refit_pull_waits_any_time) {
    pair p;
    CHECK(pair_open(&p) && pair_meet(&p));
    CHECK_OK(pair_publish(&p, 1), &p.err);
    CHECK_OK(ravel_puller_wait(p.puller, INFINITY, &p.err), &p.err);
    CHECK_OK(ravel_puller_commit(p.puller, NULL, &p.err), &p.err);
    CHECK_EQ(ravel_puller_wait(p.puller, -1e300, NULL), RAVEL_E_TIMEOUT);
    CHECK_EQ(ravel_puller_wait(p.puller, 0, NULL), RAVEL_E_TIMEOUT);
    CHECK_EQ(ravel_puller_wait(p.puller, NAN, NULL), RAVEL_E_ARGUMENT);
    pair_close(&p);
}

static bool reports_are(pair *p, int64_t count, int64_t commits) {
    ravel_generator_report reports[4];
    for (int i = 0; i < 1500; i++, pause_ms(10))
        if (ravel_publisher_generators(p->publisher, reports, 4) == count && reports[0].commits == commits) return true;
    return false;
}

/* Numbers of versions may have gaps: steps of training. A second generator reports last, and so comes first. */
TEST(refit_publisher_says_how_far_generators_are_behind) {
    pair p;
    ravel_generator_report report;
    ravel_puller *second = NULL;
    float *other = calloc(PAIR_FLOATS, sizeof *other);
    CHECK(other && pair_open(&p));
    p.publish.keep = 4;
    CHECK(pair_meet(&p));
    CHECK_OK(pair_publish(&p, 100), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    CHECK(reports_are(&p, 1, 1));
    for (int64_t v = 200; v <= 400; v += 100) CHECK_OK(pair_publish(&p, v), &p.err);
    CHECK_EQ(ravel_publisher_generators(p.publisher, &report, 1), 1);
    CHECK(report.held.version == 100 && report.lag == 3);
    ravel_refit_tensor t = float_tensor("w", other, PAIR_FLOATS);
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = &t, .count = 1};
    CHECK_OK(ravel_puller_create(p.self, p.address, &sink, &p.pull, &second, &p.err), &p.err);
    CHECK(reports_are(&p, 2, 0));
    CHECK_EQ(ravel_publisher_generators(p.publisher, &report, 1),
             2); /* the newest report, though only one is asked for */
    CHECK(report.held.version == 0 && report.lag == 4);
    ravel_pull_report pulled = {.size = sizeof pulled};
    ravel_status status = ravel_puller_wait(second, 20, &p.err);
    CHECK_OK(status, &p.err);
    CHECK_OK(pair_publish(&p, 1000), &p.err);
    for (int i = 0; i < 1500 && ravel_puller_newest(second).version < 1000; i++) pause_ms(10);
    CHECK_OK(ravel_puller_commit(second, &pulled, &p.err), &p.err);
    CHECK(pulled.identity.version == 400 && pulled.lag == 1);
    ravel_puller_free(second);
    free(other);
    pair_close(&p);
}

TEST(refit_pull_of_every_stage_kind) {
    for (int32_t kind = 0; kind < 3; kind++) {
        pair p;
        CHECK(pair_open(&p));
        p.pull.stage = kind;
        CHECK(pair_meet(&p));
        for (int64_t v = 1; v <= 3; v++) {
            CHECK_OK(pair_publish(&p, v), &p.err);
            CHECK_OK(pair_pull(&p), &p.err);
            CHECK(pair_holds(&p, v));
        }
        if (kind != RAVEL_REFIT_SPARE) CHECK(ravel_puller_data(p.puller, 0) == p.to); /* the address never changes */
        pair_close(&p);
    }
}

/* A piece without elements needs no memory, in either set, on either side; its name is still published. */
TEST(refit_pull_of_pieces_without_elements) {
    for (int given = 0; given < 2; given++) {
        pair p;
        float *spare = calloc(PAIR_FLOATS, sizeof *spare);
        CHECK(spare && pair_open(&p));
        ravel_refit_tensor nothing = {.name = "nothing", .dtype = RAVEL_F32, .ndim = 2, .dims = {0, 4}};
        ravel_refit_tensor from[] = {nothing, p.source_tensor}, to[] = {nothing, p.sink_tensor};
        if (given) to[1].spare = spare;
        p.source.tensors = from, p.sink.tensors = to;
        p.source.count = p.sink.count = 2;
        CHECK(pair_meet(&p));
        for (int64_t v = 1; v <= 3; v++) {
            CHECK_OK(pair_publish(&p, v), &p.err);
            CHECK_OK(pair_pull(&p), &p.err);
            CHECK_EQ(ravel_puller_identity(p.puller).version, v);
            CHECK(floats_are(ravel_puller_data(p.puller, 1), PAIR_FLOATS, (float)v));
            if (given) CHECK(ravel_puller_data(p.puller, 1) == (v == 2 ? (void *)spare : (void *)p.to));
        }
        pair_close(&p);
        free(spare);
    }
}

TEST(refit_pull_sends_only_blocks_that_changed) {
    pair p;
    ravel_pull_report report = {.size = sizeof report};
    CHECK(pair_open(&p));
    p.publish.block_bytes = 4096;
    p.publish.keep = 1;
    CHECK(pair_meet(&p));
    CHECK_OK(pair_publish(&p, 1), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    p.from[0] = p.from[1024 * 7 + 3] = -1; /* blocks 0 and 7 */
    CHECK_OK(ravel_publisher_publish(p.publisher, 2, &p.err), &p.err);
    CHECK_OK(ravel_puller_wait(p.puller, 20, &p.err), &p.err);
    CHECK_OK(ravel_puller_commit(p.puller, &report, &p.err), &p.err);
    CHECK_EQ(report.bytes_pulled, 2 * 4096);
    CHECK_EQ(report.bytes_kept, 4 * PAIR_FLOATS - 2 * 4096);
    CHECK(memcmp(ravel_puller_data(p.puller, 0), p.from, sizeof(float) * PAIR_FLOATS) == 0);
    pair_close(&p);
}

/* Sends what a hundredth of the elements became, and the base is compared by content: the same number of other trainers
 * is none. */
TEST(refit_pull_sends_only_elements_that_changed) {
    pair p;
    ravel_pull_report report = {.size = sizeof report};
    int64_t changed = 0;
    CHECK(pair_open(&p));
    p.publish.block_bytes = 512 * 1024; /* more than is compared at once */
    CHECK(pair_meet(&p));
    CHECK_OK(pair_publish(&p, 1), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    for (int64_t v = 2; v <= 4; v++) {
        changed = 0;
        for (int64_t i = v; i < PAIR_FLOATS; i += 100 + v, changed++) p.from[i] += 1;
        CHECK_OK(ravel_publisher_publish(p.publisher, v, &p.err), &p.err);
        CHECK_OK(ravel_puller_wait(p.puller, 20, &p.err), &p.err);
        CHECK_OK(ravel_puller_commit(p.puller, &report, &p.err), &p.err);
        CHECK_EQ(report.changed, changed);
        CHECK_EQ(report.elements, PAIR_FLOATS);
        CHECK_EQ(report.compared, PAIR_FLOATS);
        CHECK_EQ(report.bytes_sparse, 4 * PAIR_FLOATS);
        CHECK(report.bytes_changes == report.bytes_pulled && report.bytes_pulled < .03 * 4 * PAIR_FLOATS);
        CHECK(memcmp(ravel_puller_data(p.puller, 0), p.from, sizeof(float) * PAIR_FLOATS) == 0);
    }
    pair_close(&p);
}

/* The bytes of the version that a generator holds are long gone. Where they changed is known for eight versions. */
TEST(refit_pull_of_changes_since_versions_that_are_gone) {
    for (int32_t behind = 1; behind <= RAVEL__STORE_LISTS + 1; behind++) {
        pair p;
        ravel_pull_report report = {.size = sizeof report};
        int64_t different = 0;
        CHECK(pair_open(&p));
        p.publish.block_bytes = 65536;
        CHECK(pair_meet(&p));
        CHECK_OK(pair_publish(&p, 1), &p.err);
        CHECK_OK(pair_pull(&p), &p.err);
        const float *old = ravel_puller_data(p.puller, 0);
        for (int32_t v = 2; v <= behind + 1; v++) {
            for (int64_t i = v; i < PAIR_FLOATS; i += 200 + v) p.from[i] += v % 2 ? 1 : -1; /* some go and come back */
            CHECK_OK(ravel_publisher_publish(p.publisher, v, &p.err), &p.err);
        }
        for (int64_t i = 0; i < PAIR_FLOATS; i++) different += p.from[i] != old[i];
        for (int i = 0; i < 1500 && ravel_puller_newest(p.puller).version <= behind; i++) pause_ms(10);
        CHECK_OK(ravel_puller_wait(p.puller, 20, &p.err), &p.err);
        CHECK_OK(ravel_puller_commit(p.puller, &report, &p.err), &p.err);
        CHECK_EQ(report.bytes_sparse, behind <= RAVEL__STORE_LISTS ? 4 * PAIR_FLOATS : 0);
        CHECK(report.bytes_sparse == 0 || (report.changed >= different && report.bytes_pulled < .08 * 4 * PAIR_FLOATS));
        CHECK(memcmp(ravel_puller_data(p.puller, 0), p.from, sizeof(float) * PAIR_FLOATS) == 0);
        pair_close(&p);
    }
}

/* The second set of weights is made while the first version comes, so that the first changes are as fast as the next. */
TEST(refit_pull_makes_room_for_the_next_version) {
    for (int32_t kind = 0; kind < 3; kind++) {
        pair p;
        CHECK(pair_open(&p));
        p.pull.stage = kind;
        CHECK(pair_meet(&p));
        CHECK_OK(pair_publish(&p, 1), &p.err);
        CHECK_OK(pair_pull(&p), &p.err);
        CHECK_EQ(p.puller->stage.spares != NULL, kind != RAVEL_REFIT_UNDO);
        CHECK(pair_holds(&p, 1));
        pair_close(&p);
    }
}

/* f32 on both sides and bf16 between them: what does not change a bf16 value is not sent, and the rest as changes of what is held. */
TEST(refit_pull_of_a_narrow_publication_into_wide_tensors) {
    pair p;
    ravel_pull_report report = {.size = sizeof report};
    CHECK(pair_open(&p));
    p.publish.dtype = RAVEL_BF16;
    p.pull.cast = RAVEL_REFIT_NARROW;
    CHECK(pair_meet(&p));
    CHECK_OK(pair_publish(&p, 1), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    for (int64_t i = 0; i < PAIR_FLOATS; i++) p.from[i] *= i % 100 ? 1.0001f : 2;
    CHECK_OK(ravel_publisher_publish(p.publisher, 2, &p.err), &p.err);
    CHECK_OK(ravel_puller_wait(p.puller, 20, &p.err), &p.err);
    CHECK_OK(ravel_puller_commit(p.puller, &report, &p.err), &p.err);
    CHECK_EQ(report.bytes_sparse, 2 * PAIR_FLOATS);
    CHECK_EQ(report.changed, PAIR_FLOATS / 100);
    const float *live = ravel_puller_data(p.puller, 0);
    for (int64_t i = 0; i < PAIR_FLOATS; i++) CHECK_EQ(live[i], (1 + i % 7) * (i % 100 ? 1 : 2));
    pair_close(&p);
}

static double last_of(ravel_metrics *m, int32_t row) {
    double value = -1;
    return ravel_metrics_value(m, row, &value) ? value : -1;
}

/* Behind a stretch in which everything changed, changes are found in the very next block; and what was sent whole does not count as
 * changed. */
TEST(refit_pull_finds_changes_after_a_dense_stretch) {
    enum { BLOCK = 1024, DENSE = 20 };
    pair p;
    ravel_pull_report report = {.size = sizeof report};
    ravel_metrics *metrics = NULL;
    ravel_metrics_options o;
    ravel_metrics_options_default(&o);
    CHECK(pair_open(&p));
    p.publish.block_bytes = 4 * BLOCK;
    CHECK(pair_meet(&p));
    CHECK_OK(ravel_metrics_create(&o, &metrics, &p.err), &p.err);
    CHECK_OK(pair_publish(&p, 1), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    ravel_publisher_count(p.publisher, metrics);
    CHECK_OK(ravel_metrics_update(metrics, 1, &p.err), &p.err);
    CHECK_EQ(last_of(metrics, RAVEL_METRIC_REFIT_COMPARED), 0); /* there was nothing to compare with */
    CHECK_EQ(last_of(metrics, RAVEL_METRIC_REFIT_CHANGED), -1);
    for (int64_t i = 0; i < DENSE * BLOCK; i++) p.from[i] += 1;
    for (int64_t i = DENSE * BLOCK; i < PAIR_FLOATS; i += 256) p.from[i] += 1;
    CHECK_OK(ravel_publisher_publish(p.publisher, 2, &p.err), &p.err);
    CHECK_OK(ravel_puller_wait(p.puller, 20, &p.err), &p.err);
    CHECK_OK(ravel_puller_commit(p.puller, &report, &p.err), &p.err);
    CHECK_EQ(report.bytes_sparse, 4 * (PAIR_FLOATS - DENSE * BLOCK));
    CHECK_EQ(report.compared, PAIR_FLOATS - DENSE * BLOCK);
    CHECK_EQ(report.changed, (PAIR_FLOATS - DENSE * BLOCK + 255) / 256);
    ravel_publisher_count(p.publisher, metrics);
    CHECK_OK(ravel_metrics_update(metrics, 2, &p.err), &p.err);
    CHECK(fabs(last_of(metrics, RAVEL_METRIC_REFIT_COMPARED) - (double)report.compared / PAIR_FLOATS) < 1e-6);
    CHECK(fabs(last_of(metrics, RAVEL_METRIC_REFIT_CHANGED) - (double)report.changed / (double)report.compared) < 1e-6);
    ravel_metrics_free(metrics);
    pair_close(&p);
}

/* Weights that were written to by somebody else are no base: what comes out is found to be wrong, nothing is committed, and
 * everything is asked for. */
TEST(refit_pull_never_commits_changes_of_another_base) {
    for (int32_t kind = 0; kind < 3; kind++) {
        pair p;
        CHECK(pair_open(&p));
        p.pull.stage = kind;
        CHECK(pair_meet(&p));
        CHECK_OK(pair_publish(&p, 1), &p.err);
        CHECK_OK(pair_pull(&p), &p.err);
        float *live = ravel_puller_data(p.puller, 0);
        live[PAIR_FLOATS / 2 + 1] += 1;
        for (int64_t i = 0; i < PAIR_FLOATS; i += 1000) p.from[i] += 5;
        CHECK_OK(ravel_publisher_publish(p.publisher, 2, &p.err), &p.err);
        CHECK_EQ(pair_pull(&p), RAVEL_E_CHECKSUM);
        CHECK_HAS(p.err.message, "arrived changed");
        ravel_error_clear(&p.err);
        live[PAIR_FLOATS / 2 + 1] -= 1;
        CHECK(pair_holds(&p, 1));
        live[PAIR_FLOATS / 2 + 1] += 1;
        CHECK_OK(pair_pull(&p), &p.err);
        CHECK(memcmp(ravel_puller_data(p.puller, 0), p.from, sizeof(float) * PAIR_FLOATS) == 0);
        pair_close(&p);
    }
}

/* The publisher is never held up: a version that is being pulled goes when its slot is needed, and the generator, which
 * still holds the one before, whole, stages again. */
TEST(refit_pull_of_a_replaced_version_fails_and_starts_again) {
    pair p;
    CHECK(pair_open(&p));
    p.publish.keep = 1;
    CHECK(pair_meet(&p));
    CHECK_OK(pair_publish(&p, 1), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    int64_t version = 1, failures = 0;
    for (int round = 0; round < 30; round++) {
        CHECK_OK(pair_publish(&p, ++version), &p.err);
        int32_t state = RAVEL_PULL_IDLE;
        ravel_error err = RAVEL_ERROR_INIT;
        while (state != RAVEL_PULL_NEWER && state != RAVEL_PULL_STAGING)
            CHECK_OK(ravel_puller_poll(p.puller, &state, &p.err), &p.err);
        ravel_status status = ravel_puller_stage(p.puller, 0, &err);
        CHECK_OK(pair_publish(&p, ++version), &p.err);
        if (status == RAVEL_OK) status = ravel_puller_wait(p.puller, 20, &err);
        if (status == RAVEL_OK) status = ravel_puller_commit(p.puller, NULL, &err);
        failures += status != RAVEL_OK;
        CHECK(status == RAVEL_OK || status == RAVEL_E_IO || status == RAVEL_E_STATE);
        CHECK(pair_holds(&p, ravel_puller_identity(p.puller).version));
        ravel_error_clear(&err);
        for (int again = 0; ravel_puller_identity(p.puller).version != version && again < 1000; again++) {
            ravel_error_clear(&err);
            if (again > 0) pause_ms(5); /* a busy machine may need some attempts */
            if (ravel_puller_wait(p.puller, 20, &err) == RAVEL_OK) (void)ravel_puller_commit(p.puller, NULL, &err);
        }
        CHECK(pair_holds(&p, version));
    }
    pair_close(&p);
}

/* ---- faults ------------------------------------------------------------------------------------------------ */

/* Weights of a version: a few elements of every block differ from those of the one before. */
static float weight_of(int64_t i, int64_t version) {
    return (float)((version + (i * 7919) % 61) / 61);
}

static bool pair_is_whole(const pair *p) {
    const float *live = ravel_puller_data(p->puller, 0);
    int64_t version = ravel_puller_identity(p->puller).version;
    for (int64_t i = 0; i < PAIR_FLOATS && version > 0; i++)
        if (live[i] != weight_of(i, version)) return false;
    return true;
}

static ravel_status publish_more(pair *p, int64_t *version, int64_t count) {
    ravel_status status = RAVEL_OK;
    for (; count > 0 && status == RAVEL_OK; count--) {
        ++*version;
        for (int64_t i = 0; i < PAIR_FLOATS; i++) p->from[i] = weight_of(i, *version);
        status = ravel_publisher_publish(p->publisher, *version, &p->err);
    }
    return status;
}

static bool is_fault(ravel_status status) {
    return status == RAVEL_OK || status == RAVEL_E_IO || status == RAVEL_E_STATE || status == RAVEL_E_CHECKSUM ||
           status == RAVEL_E_TIMEOUT;
}

/* While changes come in: the base goes, base and version go, the trainers go, the generator drops what it has, its base was
 * written to. Then it holds a version, whole. */
TEST(refit_pull_of_changes_survives_faults) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    pair p;
    int64_t version = 0, rounds = check_rounds(60, 1000);
    CHECK(pair_open(&p));
    p.publish.block_bytes = 8192;
    CHECK(pair_meet(&p));
    CHECK_OK(publish_more(&p, &version, 1), &p.err);
    for (int64_t round = 0; round < rounds; round++) {
        ravel_error err = RAVEL_ERROR_INIT;
        int64_t fault = ravel__rng_below(&rng, 6), torn = ravel__rng_below(&rng, PAIR_FLOATS);
        int32_t state;
        if (fault == 5) (void)ravel_puller_drop(p.puller, &err); /* a stage reads what is written here */
        ravel_status status = ravel_puller_poll(p.puller, &state, &err);
        float *live = ravel_puller_data(p.puller, 0);
        if (fault == 5) live[torn] += 1;
        if (status == RAVEL_OK && state == RAVEL_PULL_NEWER) status = ravel_puller_stage(p.puller, 0, &err);
        if (fault == 1 || fault == 2) CHECK_OK(publish_more(&p, &version, fault), &p.err);
        if (fault == 3) {
            ravel_publisher_free(p.publisher);
            CHECK_OK(ravel_publisher_create(p.self, p.address, &p.source, &p.publish, &p.publisher, &p.err), &p.err);
            CHECK_OK(publish_more(&p, &version, 1), &p.err);
        }
        if (fault == 4) (void)ravel_puller_drop(p.puller, &err);
        if (status == RAVEL_OK) status = ravel_puller_wait(p.puller, .02, &err);
        if (status == RAVEL_OK) status = ravel_puller_commit(p.puller, NULL, &err);
        CHECK(is_fault(status));
        if (fault == 5) (void)ravel_puller_drop(p.puller, &err);
        if (fault == 5 && ravel_puller_data(p.puller, 0) == live)
            live[torn] = weight_of(torn, ravel_puller_identity(p.puller).version);
        CHECK(pair_is_whole(&p));
        CHECK_OK(publish_more(&p, &version, 1), &p.err);
    }
    for (int i = 0; i < 1000 && ravel_puller_identity(p.puller).version < version; i++) {
        ravel_error_clear(&p.err);
        (void)pair_pull(&p);
    }
    CHECK_EQ(ravel_puller_identity(p.puller).version, version);
    CHECK(pair_is_whole(&p));
    pair_close(&p);
}

/* Trainers that come back are other ones: the same number has other weights, and the generator takes them. */
TEST(refit_pull_from_trainers_that_were_started_anew) {
    pair p;
    CHECK(pair_open(&p) && pair_meet(&p));
    CHECK_OK(pair_publish(&p, 7), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    ravel_refit_identity before = ravel_puller_identity(p.puller);
    ravel_publisher_free(p.publisher);
    p.publisher = NULL;
    CHECK_OK(ravel_publisher_create(p.self, p.address, &p.source, &p.publish, &p.publisher, &p.err), &p.err);
    fill_floats(p.from, PAIR_FLOATS, 70);
    CHECK_OK(ravel_publisher_publish(p.publisher, 7, &p.err), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    ravel_refit_identity after = ravel_puller_identity(p.puller);
    CHECK(after.version == 7 && after.nonce != before.nonce && after.digest != before.digest);
    CHECK(floats_are(ravel_puller_data(p.puller, 0), PAIR_FLOATS, 70));
    pair_close(&p);
}

/* Staging begins while the trainers are away. Those that come back do not know the version; the puller lives on. */
TEST(refit_pull_goes_on_when_trainers_restart_under_it) {
    pair p;
    int32_t state = RAVEL_PULL_IDLE;
    CHECK(pair_open(&p));
    (void)snprintf(p.address, sizeof p.address, "127.0.0.1:%d", ports_free("127.0.0.1"));
    p.publish.threads = 2; /* the second listens at a port of its own, which is another one after a restart */
    CHECK(pair_meet(&p));
    CHECK_OK(pair_publish(&p, 1), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    CHECK_OK(pair_publish(&p, 2), &p.err);
    while (state != RAVEL_PULL_NEWER) CHECK_OK(ravel_puller_poll(p.puller, &state, &p.err), &p.err);
    ravel_publisher_free(p.publisher);
    p.publisher = NULL;
    CHECK_OK(ravel_puller_stage(p.puller, 2, &p.err), &p.err);
    CHECK_OK(ravel_publisher_create(p.self, p.address, &p.source, &p.publish, &p.publisher, &p.err), &p.err);
    CHECK_EQ(ravel_puller_wait(p.puller, 20, &p.err), RAVEL_E_STATE);
    CHECK(strstr(p.err.message, "restarted"));
    ravel_error_clear(&p.err);
    CHECK(pair_holds(&p, 1));
    CHECK_OK(pair_publish(&p, 1), &p.err);
    while (pair_pull(&p) != RAVEL_OK) { /* the watch may announce the old version once more */
        CHECK_EQ(p.err.status, RAVEL_E_STATE);
        ravel_error_clear(&p.err);
    }
    CHECK(pair_holds(&p, 1));
    pair_close(&p);
}

TEST(refit_pull_says_what_differs) {
    pair p;
    CHECK(pair_open(&p));
    p.sink_tensor.dims[0]--;
    CHECK(!pair_meet(&p));
    CHECK_EQ(p.err.status, RAVEL_E_MISMATCH);
    CHECK(strstr(p.err.message, "\"w\""));
    ravel_error_clear(&p.err);
    p.sink_tensor.dims[0]++;
    p.sink_tensor.name = "v";
    CHECK_EQ(ravel_puller_create(p.self, p.address, &p.sink, &p.pull, &p.puller, &p.err), RAVEL_E_MISMATCH);
    CHECK(strstr(p.err.message, "rank 0 (generator) wants it, no sender has it"));
    ravel_error_clear(&p.err);
    p.pull.timeout = 0.2;
    CHECK_EQ(ravel_puller_create(p.self, "unix:@ravel-nobody-here", &p.sink, &p.pull, &p.puller, &p.err), RAVEL_E_IO);
    pair_close(&p);
}

/* ---- a sink with callbacks -------------------------------------------------------------------------------- */

typedef struct loaded {
    float staged[PAIR_FLOATS], live[PAIR_FLOATS];
    int32_t begun, commits, aborts, fails_at;
} loaded;

static ravel_status load_begin(void *user, int64_t version, ravel_error *err) {
    loaded *l = user;
    (void)version, (void)err;
    l->begun++;
    memcpy(l->staged, l->live, sizeof l->staged); /* what is kept stays */
    return RAVEL_OK;
}

static ravel_status load_piece(void *user, const ravel_refit_piece *piece, ravel_error *err) {
    loaded *l = user;
    if (l->fails_at > 0 && --l->fails_at == 0) return ravel_error_set(err, RAVEL_E_IO, "the device is full");
    if (piece->data) memcpy(l->staged + piece->first, piece->data, (size_t)piece->count * sizeof(float));
    return RAVEL_OK;
}

static void load_commit(void *user, int64_t version) {
    loaded *l = user;
    (void)version;
    l->commits++;
    memcpy(l->live, l->staged, sizeof l->live);
}

static void load_abort(void *user, int64_t version) {
    loaded *l = user;
    (void)version;
    l->aborts++;
}

TEST(refit_pull_into_callbacks) {
    static loaded l;
    pair p;
    memset(&l, 0, sizeof l);
    CHECK(pair_open(&p));
    p.sink.begin = load_begin;
    p.sink.load = load_piece;
    p.sink.commit = load_commit;
    p.sink.abort = load_abort;
    p.sink.user = &l;
    p.pull.threads = 3;
    CHECK(pair_meet(&p));
    for (int64_t v = 1; v <= 2; v++) {
        CHECK_OK(pair_publish(&p, v), &p.err);
        CHECK_OK(pair_pull(&p), &p.err);
        CHECK(floats_are(l.live, PAIR_FLOATS, (float)v));
    }
    l.fails_at = 2;
    CHECK_OK(pair_publish(&p, 3), &p.err);
    CHECK_EQ(pair_pull(&p), RAVEL_E_CALLBACK);
    CHECK(floats_are(l.live, PAIR_FLOATS, 2));
    CHECK(l.aborts == 1 && l.commits == 2);
    ravel_error_clear(&p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    CHECK(floats_are(l.live, PAIR_FLOATS, 3));
    pair_close(&p);
}
