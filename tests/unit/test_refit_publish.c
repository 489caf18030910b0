/* Publish and pull: trainers and generators that share nothing but an address. Models, cuts and contents are those of
 * refit_case.c. Every generator has a communicator of its own. */
#include "tests/unit/refit_case.h"
#include "tests/unit/ports.h"

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
    m->pull.timeout = 60;
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

TEST(refit_pull_does_not_write_what_is_pinned) {
    pair p;
    CHECK(pair_open(&p) && pair_meet(&p));
    CHECK_OK(pair_publish(&p, 1), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    int32_t first = ravel_puller_pin(p.puller);
    const float *held = ravel_puller_data(p.puller, 0);
    CHECK_OK(pair_publish(&p, 2), &p.err);
    CHECK_OK(pair_pull(&p), &p.err); /* goes to the other set */
    CHECK(pair_holds(&p, 2) && floats_are(held, PAIR_FLOATS, 1));
    CHECK_OK(pair_publish(&p, 3), &p.err);
    int32_t state = RAVEL_PULL_IDLE;
    while (state != RAVEL_PULL_NEWER) CHECK_OK(ravel_puller_poll(p.puller, &state, &p.err), &p.err);
    CHECK_EQ(ravel_puller_stage(p.puller, 0, NULL), RAVEL_E_STATE); /* this one would be written */
    CHECK(floats_are(held, PAIR_FLOATS, 1));
    ravel_puller_unpin(p.puller, first);
    CHECK_OK(pair_pull(&p), &p.err);
    CHECK(pair_holds(&p, 3));
    pair_close(&p);
    /* copy on commit: staging is free to go on, the commit waits for the reader */
    CHECK(pair_open(&p));
    p.pull.stage = RAVEL_REFIT_COPY;
    CHECK(pair_meet(&p));
    CHECK_OK(pair_publish(&p, 1), &p.err);
    CHECK_OK(pair_pull(&p), &p.err);
    int32_t pin = ravel_puller_pin(p.puller);
    CHECK_OK(pair_publish(&p, 2), &p.err);
    CHECK_OK(ravel_puller_wait(p.puller, 20, &p.err), &p.err);
    CHECK_EQ(ravel_puller_commit(p.puller, NULL, NULL), RAVEL_E_STATE);
    CHECK(pair_holds(&p, 1));
    ravel_puller_unpin(p.puller, pin);
    CHECK_OK(ravel_puller_commit(p.puller, NULL, &p.err), &p.err);
    CHECK(pair_holds(&p, 2));
    pair_close(&p);
}

static void nap(void) {
    struct timespec t = {0, 20 * 1000};
    (void)nanosleep(&t, NULL);
}

/* A reader on a thread of its own: every set that it has pinned is one version, as long as it is pinned. */
typedef struct reading {
    ravel_puller *puller;
    _Atomic int32_t stop, mixed, reads;
} reading;

static void *read_pinned(void *argument) {
    reading *r = argument;
    while (!atomic_load(&r->stop)) {
        int32_t pin = ravel_puller_pin(r->puller);
        const float *p = ravel_puller_data(r->puller, 0);
        if (!floats_are(p, PAIR_FLOATS, p[0])) atomic_store(&r->mixed, 1);
        ravel_puller_unpin(r->puller, pin);
        atomic_fetch_add(&r->reads, 1);
        nap(); /* shorter than a commit's copy */
    }
    return NULL;
}

/* As a generator does: where a set is pinned, it stages or commits a little later. */
static ravel_status pull_beside_reader(pair *p) {
    ravel_status status = RAVEL_E_STATE;
    bool ready = false;
    for (int i = 0; i < 100000 && status == RAVEL_E_STATE; i++) {
        ravel_error_clear(&p->err);
        status = ready ? ravel_puller_commit(p->puller, NULL, &p->err) : ravel_puller_wait(p->puller, 20, &p->err);
        if (status == RAVEL_E_STATE) nap();
        if (status != RAVEL_OK || ready) continue;
        ready = true;
        status = RAVEL_E_STATE;
    }
    return status;
}

TEST(refit_pull_never_mixes_what_a_reader_pinned) {
    static const int32_t kinds[] = {RAVEL_REFIT_SPARE, RAVEL_REFIT_COPY};
    for (int k = 0; k < 2; k++) {
        pair p;
        reading r = {0};
        pthread_t reader;
        CHECK(pair_open(&p));
        p.pull.stage = kinds[k];
        CHECK(pair_meet(&p));
        CHECK_OK(pair_publish(&p, 1), &p.err);
        CHECK_OK(pair_pull(&p), &p.err);
        r.puller = p.puller;
        CHECK_EQ(pthread_create(&reader, NULL, read_pinned, &r), 0);
        ravel_status status = RAVEL_OK;
        for (int64_t v = 2; v <= 25 && status == RAVEL_OK; v++) {
            status = pair_publish(&p, v);
            if (status == RAVEL_OK) status = pull_beside_reader(&p);
        }
        atomic_store(&r.stop, 1);
        (void)pthread_join(reader, NULL);
        CHECK_OK(status, &p.err);
        CHECK(pair_holds(&p, 25) && atomic_load(&r.reads) > 0);
        CHECK_EQ(atomic_load(&r.mixed), 0);
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
