#include "tests/unit/refit_device_body.h"

#include "tests/unit/refit_case.h"

#include <ravel/publish.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { VERSIONS = 3, WAIT = 60 };

/* One rank's tensors, on the device or on the host, with host memory to fill and to look at them. */
typedef struct placed {
    case_side side;       /* what refit gets */
    case_side host;       /* the same on the host */
    ravel_device *device; /* NULL: host */
    ravel_stream *stream;
} placed;

static size_t bytes_of(const placed *p, int64_t i) {
    int64_t count = p->host.elements[i] > 0 ? p->host.elements[i] : 1;
    return (size_t)count * (size_t)ravel_dtype_bytes(p->host.tensors[i].dtype);
}

static bool place(const refit_case *c, int side, int32_t rank, ravel_device *device, placed *p) {
    ravel_error err = RAVEL_ERROR_INIT;
    memset(p, 0, sizeof *p);
    if (!case_side_make(c, side, rank, 0, &p->host)) return false;
    p->side = p->host;
    p->device = device;
    if (!device) return true;
    if (!EXPECT(ravel_stream_create(device, &p->stream, &err) == RAVEL_OK)) return false;
    for (int64_t i = 0; i < p->side.count; i++) {
        ravel_refit_tensor *t = &p->side.tensors[i];
        t->place = (ravel_place){.kind = RAVEL_DEVICE, .stream = p->stream};
        t->data = NULL;
        if (!EXPECT(ravel_device_alloc(device, RAVEL_DEVICE, bytes_of(p, i), p->stream, &t->data, &err) == RAVEL_OK))
            return false;
    }
    return true;
}

static void unplace(placed *p) {
    for (int64_t i = 0; p->device && i < p->side.count; i++)
        ravel_device_release(p->device, p->side.tensors[i].data, p->stream);
    ravel_stream_free(p->stream);
    case_side_free(&p->host);
}

/* Puts a version's contents there; on a device they are only queued. */
static ravel_status fill(const refit_case *c, placed *p, int64_t version, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    case_fill(c, &p->host, version);
    for (int64_t i = 0; p->device && i < p->side.count && status == RAVEL_OK; i++)
        status = ravel_device_copy(p->device, p->side.tensors[i].data, p->host.tensors[i].data, bytes_of(p, i),
                                   p->stream, err);
    return status;
}

static int64_t wrong_in(const placed *p, int64_t i, const void *data, int64_t version) {
    if (!p->device || p->host.elements[i] == 0) return case_wrong(&p->host, i, data, version);
    void *back = p->host.tensors[i].data;
    if (!EXPECT(ravel_device_copy(p->device, back, data, bytes_of(p, i), p->stream, NULL) == RAVEL_OK) ||
        !EXPECT(ravel_stream_wait(p->stream, WAIT, NULL) == RAVEL_OK))
        return 1;
    return case_wrong(&p->host, i, back, version);
}

/* ---- publish and pull ----------------------------------------------------------------------------------- */

typedef struct meeting {
    refit_case c;
    ravel_device *device[2]; /* of trainers and of generators */
    char address[64];
    ravel_publish_options publish;
    ravel_pull_options pull;
    _Atomic int32_t held, done;
    _Atomic int64_t wrong, mapped;
    pthread_mutex_t lock;
    ravel_error err;
} meeting;

static void pause_ms(int ms) {
    struct timespec t = {0, ms * 1000000L};
    (void)nanosleep(&t, NULL);
}

static ravel_status trainer(ravel_comm *comm, void *user, ravel_error *err) {
    meeting *m = user;
    placed p;
    ravel_publisher *publisher = NULL;
    int32_t rank = ravel_comm_rank(comm);
    if (!place(&m->c, 0, rank, m->device[0], &p)) return RAVEL_E_MEMORY;
    ravel_refit_source source = {.size = sizeof source, .tensors = p.side.tensors, .count = p.side.count};
    ravel_status status =
        ravel_publisher_create(comm, rank == 0 ? m->address : NULL, &source, &m->publish, &publisher, err);
    for (int64_t version = 1; version <= VERSIONS && status == RAVEL_OK; version++) {
        status = fill(&m->c, &p, version, err);
        if (status == RAVEL_OK) status = ravel_publisher_publish(publisher, version, err);
        if (status == RAVEL_OK) status = fill(&m->c, &p, 99, err); /* what comes after publish must not matter */
        while (status == RAVEL_OK && atomic_load(&m->held) < version && !atomic_load(&m->done)) pause_ms(1);
    }
    while (status == RAVEL_OK && !atomic_load(&m->done)) pause_ms(1);
    if (status == RAVEL_OK) status = ravel_comm_barrier(comm, err);
    ravel_publisher_free(publisher);
    unplace(&p);
    return status;
}

static ravel_status generator(ravel_comm *comm, void *user, ravel_error *err) {
    meeting *m = user;
    placed p;
    ravel_puller *puller = NULL;
    int32_t rank = ravel_comm_rank(comm);
    refit_case c = m->c;
    c.senders = c.both = 0;
    if (!place(&c, 1, rank, m->device[1], &p)) return RAVEL_E_MEMORY;
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = p.side.tensors, .count = p.side.count};
    ravel_status status = ravel_puller_create(comm, m->address, &sink, &m->pull, &puller, err);
    while (status == RAVEL_OK && ravel_puller_identity(puller).version < VERSIONS) {
        ravel_pull_report report = {.size = sizeof report};
        status = ravel_puller_wait(puller, WAIT, err);
        if (status == RAVEL_OK) status = ravel_puller_commit(puller, &report, err);
        if (status == RAVEL_OK && m->pull.audit) status = ravel_puller_audit(puller, err);
        if (status != RAVEL_OK) break;
        for (int64_t i = 0; i < p.side.count; i++)
            atomic_fetch_add(&m->wrong, wrong_in(&p, i, ravel_puller_data(puller, i), report.identity.version));
        atomic_fetch_add(&m->wrong,
                         report.bytes_pulled - report.bytes_changes + report.bytes_sparse + report.bytes_kept !=
                             report.bytes_needed);
        atomic_fetch_add(&m->mapped, report.mapped);
        if (ravel_comm_size(comm) > 1) status = ravel_comm_barrier(comm, err);
        if (rank == 0) atomic_fetch_add(&m->held, 1);
    }
    ravel_puller_free(puller);
    unplace(&p);
    return status;
}

static void note(meeting *m, const char *who, ravel_status status, const ravel_error *err) {
    pthread_mutex_lock(&m->lock);
    if (status != RAVEL_OK) ravel_error_set(&m->err, status, "%s: %s", who, err->message);
    pthread_mutex_unlock(&m->lock);
}

static void *run_trainers(void *argument) {
    meeting *m = argument;
    ravel_error err = RAVEL_ERROR_INIT;
    note(m, "trainers", ravel_threads_run(m->c.senders, NULL, trainer, m, &err), &err);
    return NULL;
}

static void run_meeting(meeting *m, int64_t round) {
    pthread_t trainers;
    ravel_error err = RAVEL_ERROR_INIT;
    pthread_mutex_init(&m->lock, NULL);
    (void)snprintf(m->address, sizeof m->address, "unix:@ravel-device-%d-%lld", (int)getpid(), (long long)round);
    if (!EXPECT(pthread_create(&trainers, NULL, run_trainers, m) == 0)) return;
    note(m, "generator", ravel_threads_run(m->c.receivers, NULL, generator, m, &err), &err);
    atomic_store(&m->done, 1);
    (void)pthread_join(trainers, NULL);
    pthread_mutex_destroy(&m->lock);
    if (m->err.status != RAVEL_OK || m->wrong)
        check_fail(__FILE__, __LINE__,
                   "round %lld: %lld wrong; %s; trainers %d on %s, generators %d on %s, stage %d, delta %d",
                   (long long)round, (long long)m->wrong, m->err.message, m->c.senders,
                   m->device[0] ? "the device" : "the host", m->c.receivers, m->device[1] ? "the device" : "the host",
                   m->pull.stage, m->pull.delta);
}

void refit_device_body_pull(ravel_device *device, int64_t rounds) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    int64_t mapped = 0, may_map = 0;
    for (int64_t round = 0; round < rounds; round++) {
        meeting m;
        memset(&m, 0, sizeof m);
        case_random(&m.c, &rng);
        m.c.both = 0;
        if (m.c.receivers > 3) m.c.receivers = 2, m.c.tp[1] = 2;
        m.device[0] = round % 3 == 2 ? NULL : device; /* device to device, device to host, host to device */
        m.device[1] = round % 3 == 1 ? NULL : device;
        ravel_publish_options_default(&m.publish);
        m.publish.keep = 1 + (int32_t)ravel__rng_below(&rng, 3);
        m.publish.threads = 1 + (int32_t)ravel__rng_below(&rng, 2);
        m.publish.block_bytes = 4096 << ravel__rng_below(&rng, 2);
        if (m.c.options.cast == RAVEL_REFIT_NARROW && ravel__rng_below(&rng, 2)) m.publish.dtype = RAVEL_BF16;
        ravel_pull_options_default(&m.pull);
        m.pull.threads = 1 + (int32_t)ravel__rng_below(&rng, 3);
        m.pull.cast = m.c.options.cast;
        m.pull.stage = m.c.options.stage;
        m.pull.delta = (int32_t)ravel__rng_below(&rng, 2);
        m.pull.audit = (int32_t)ravel__rng_below(&rng, 2);
        m.pull.timeout = WAIT;
        run_meeting(&m, round);
        mapped += m.mapped;
        may_map += m.device[0] && m.device[1] && m.pull.stage != RAVEL_REFIT_UNDO && m.pull.cast == RAVEL_REFIT_EXACT;
    }
    EXPECT(may_map == 0 || mapped > 0);
}

/* ---- another trainer ------------------------------------------------------------------------------------- */

static ravel_publisher *publish_once(ravel_comm *self, const char *address, placed *p, const refit_case *c,
                                     int64_t contents, ravel_error *err) {
    ravel_refit_source source = {.size = sizeof source, .tensors = p->side.tensors, .count = p->side.count};
    ravel_publisher *publisher = NULL;
    EXPECT(ravel_publisher_create(self, address, &source, NULL, &publisher, err) == RAVEL_OK);
    EXPECT(fill(c, p, contents, err) == RAVEL_OK);
    if (publisher) EXPECT(ravel_publisher_publish(publisher, 1, err) == RAVEL_OK);
    return publisher;
}

/* Pulls until the contents are those; what the trainer before kept may come first. */
static bool pulls(ravel_puller *puller, placed *p, int64_t contents, int32_t *mapped, ravel_error *err) {
    for (int i = 0; i < 200; i++) {
        ravel_pull_report report = {.size = sizeof report};
        int64_t wrong = 0;
        ravel_error_clear(err);
        if (ravel_puller_wait(puller, 1, err) != RAVEL_OK || ravel_puller_commit(puller, &report, err) != RAVEL_OK) {
            pause_ms(5);
            continue;
        }
        for (int64_t t = 0; t < p->side.count; t++) wrong += wrong_in(p, t, ravel_puller_data(puller, t), contents);
        *mapped = report.mapped;
        if (wrong == 0) return true;
    }
    return false;
}

static int64_t elements_of(const refit_case *c) {
    int64_t sum = 0;
    for (int32_t t = 0; t < c->count; t++) {
        int64_t count = 1;
        for (int32_t d = 0; d < c->tensors[t].ndim; d++) count *= c->tensors[t].dims[d];
        sum += count;
    }
    return sum;
}

void refit_device_body_restart(ravel_device *device, int32_t maps) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    refit_case c;
    placed from, to;
    char address[64];
    ravel_comm *self = NULL;
    ravel_puller *puller = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    int32_t mapped = 0;
    do case_random(&c, &rng);
    while (elements_of(&c) == 0); /* there is nothing to map */
    c.senders = c.receivers = c.tp[0] = c.tp[1] = 1;
    c.both = 0;
    for (int32_t i = 0; i < c.count; i++) c.tensors[i].dtype[1] = c.tensors[i].dtype[0];
    (void)snprintf(address, sizeof address, "unix:@ravel-restart-%d", (int)getpid());
    if (!place(&c, 0, 0, device, &from) || !place(&c, 1, 1, device, &to)) return;
    EXPECT(ravel_comm_self(NULL, &self, &err) == RAVEL_OK);
    ravel_publisher *publisher = publish_once(self, address, &from, &c, 1, &err);
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = to.side.tensors, .count = to.side.count};
    EXPECT(ravel_puller_create(self, address, &sink, NULL, &puller, &err) == RAVEL_OK);
    EXPECT(puller && pulls(puller, &to, 1, &mapped, &err) && mapped == maps);
    ravel_publisher_free(publisher);
    publisher = publish_once(self, address, &from, &c, 2, &err);
    EXPECT(puller && pulls(puller, &to, 2, &mapped, &err) && mapped == maps);
    ravel_puller_free(puller);
    ravel_publisher_free(publisher);
    ravel_comm_free(self);
    unplace(&from);
    unplace(&to);
}

/* ---- changes --------------------------------------------------------------------------------------------- */

enum { CHANGING = 5, CHANGED_VERSIONS = 6 };

/* Tensors of f32 on the device, published as bf16 and pulled to the host. Values are small integers, so bf16 has them. */
typedef struct changing {
    ravel_refit_tensor from[CHANGING], to[CHANGING];
    int64_t count[CHANGING], elements; /* of each, of all */
    float *host, *there;               /* what the trainer has */
    uint16_t *pulled, *taken;          /* by the generator; on the device, or NULL: in `pulled` */
    ravel_stream *stream;
    ravel_comm *self;
    ravel_publisher *publisher;
    ravel_puller *puller;
} changing;

/* The generator's tensors are on the device in every third round, and every other time its own only to write to, so that they are not
 * mapped. */
static bool changing_open(changing *x, ravel_device *device, ravel__rng *rng, int64_t round, ravel_error *err) {
    static const char *const names[CHANGING] = {"a", "b", "c", "d", "e"};
    static const int64_t least[CHANGING] = {1, 270000, 1, 1, 1}, spread[CHANGING] = {9, 200000, 131072, 1, 40000};
    char address[64];
    memset(x, 0, sizeof *x);
    for (int i = 0; i < CHANGING; i++)
        x->elements += x->count[i] = least[i] + (int64_t)ravel__rng_below(rng, (uint64_t)spread[i]);
    x->host = calloc((size_t)x->elements, sizeof *x->host);
    x->pulled = calloc((size_t)x->elements, sizeof *x->pulled);
    void *there = NULL;
    if (!x->host || !x->pulled || ravel_stream_create(device, &x->stream, err) != RAVEL_OK ||
        ravel_device_alloc(device, RAVEL_DEVICE, (size_t)x->elements * sizeof *x->host, x->stream, &there, err) !=
            RAVEL_OK)
        return false;
    x->there = there;
    there = NULL;
    if (round % 3 == 1 && ravel_device_alloc(device, RAVEL_DEVICE, (size_t)x->elements * sizeof *x->pulled, x->stream,
                                             &there, err) != RAVEL_OK)
        return false;
    x->taken = there;
    for (int64_t i = 0, at = 0; i < CHANGING; at += x->count[i++]) {
        x->from[i] = float_tensor(names[i], x->there + at, x->count[i]);
        x->from[i].place = (ravel_place){.kind = RAVEL_DEVICE, .stream = x->stream};
        x->to[i] = float_tensor(names[i], x->host, x->count[i]);
        x->to[i].dtype = RAVEL_BF16;
        x->to[i].data = (x->taken ? x->taken : x->pulled) + at;
        if (x->taken) x->to[i].place = x->from[i].place;
    }
    (void)snprintf(address, sizeof address, "unix:@ravel-changes-%d", (int)getpid());
    ravel_refit_source source = {.size = sizeof source, .tensors = x->from, .count = CHANGING};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = x->to, .count = CHANGING};
    ravel_publish_options options;
    ravel_publish_options_default(&options);
    options.dtype = RAVEL_BF16;
    options.threads = 2;
    if (round % 2) options.block_bytes = 4096; /* more of them than are compared at once */
    ravel_pull_options pull;
    ravel_pull_options_default(&pull);
    if (x->taken && round % 2) pull.stage = RAVEL_REFIT_UNDO;
    return ravel_comm_self(NULL, &x->self, err) == RAVEL_OK &&
           ravel_publisher_create(x->self, address, &source, &options, &x->publisher, err) == RAVEL_OK &&
           ravel_puller_create(x->self, address, &sink, &pull, &x->puller, err) == RAVEL_OK;
}

static void changing_close(changing *x, ravel_device *device) {
    ravel_puller_free(x->puller);
    ravel_publisher_free(x->publisher);
    ravel_comm_free(x->self);
    ravel_device_release(device, x->there, x->stream);
    ravel_device_release(device, x->taken, x->stream);
    ravel_stream_free(x->stream);
    free(x->host);
    free(x->pulled);
}

/* `share` of 1000 elements become others; the rest change less than bf16 shows. */
static void change_elements(changing *x, ravel__rng *rng, uint64_t share) {
    for (int64_t i = 0; i < x->elements; i++) {
        float whole = (float)(int)x->host[i];
        if (ravel__rng_below(rng, 1000) < share)
            whole = (float)(1 + ((int)whole + (int)ravel__rng_below(rng, 98)) % 99);
        x->host[i] = whole + (float)ravel__rng_below(rng, 3) * whole / 4096; /* less than half of a bf16 step */
    }
}

static int64_t wrong_pulled(const changing *x, ravel_device *device) {
    int64_t wrong = 0;
    for (int64_t i = 0, at = 0; i < CHANGING && x->taken; at += x->count[i++])
        wrong += ravel_device_copy(device, x->pulled + at, ravel_puller_data(x->puller, i),
                                   (size_t)x->count[i] * sizeof *x->pulled, x->stream, NULL) != RAVEL_OK;
    wrong += ravel_stream_wait(x->stream, WAIT, NULL) != RAVEL_OK;
    for (int64_t i = 0, at = 0; i < CHANGING; at += x->count[i++]) {
        const uint16_t *bits = x->taken ? x->pulled + at : ravel_puller_data(x->puller, i);
        for (int64_t e = 0; e < x->count[i]; e++) {
            uint32_t word = (uint32_t)bits[e] << 16;
            float value;
            memcpy(&value, &word, sizeof value);
            wrong += value != (float)(int)x->host[at + e];
        }
    }
    return wrong;
}

void refit_device_body_changes(ravel_device *device, int64_t rounds) {
    static const uint64_t shares[] = {0, 2, 10, 30, 200, 1000};
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < rounds; round++) {
        changing x;
        ravel_error err = RAVEL_ERROR_INIT;
        bool good = EXPECT(changing_open(&x, device, &rng, round, &err));
        for (int64_t version = 1; version <= CHANGED_VERSIONS && good; version++) {
            uint64_t share = version == 1 ? 1000 : shares[ravel__rng_below(&rng, 6)];
            ravel_pull_report report = {.size = sizeof report};
            change_elements(&x, &rng, share);
            size_t bytes = (size_t)x.elements * sizeof *x.host;
            good = EXPECT(ravel_device_copy(device, x.there, x.host, bytes, x.stream, &err) == RAVEL_OK) &&
                   EXPECT(ravel_publisher_publish(x.publisher, version, &err) == RAVEL_OK) &&
                   EXPECT(ravel_puller_wait(x.puller, WAIT, &err) == RAVEL_OK) &&
                   EXPECT(ravel_puller_commit(x.puller, &report, &err) == RAVEL_OK) &&
                   EXPECT(wrong_pulled(&x, device) == 0);
            if (version == 1 || report.mapped > 0) continue;
            if (share <= 30) good = EXPECT(report.bytes_pulled <= x.elements * 2 / 8 + 200) && good;
            if (share == 0) good = EXPECT(report.bytes_pulled == 0) && good;
        }
        if (!good) fprintf(stderr, "    round %lld: %s\n", (long long)round, err.message);
        changing_close(&x, device);
    }
}

/* ---- the collective form --------------------------------------------------------------------------------- */

typedef struct session {
    refit_case c;
    ravel_device *device[2];
    nccl_maker make; /* NULL: over the communicator itself */
    _Atomic int64_t wrong;
} session;

static ravel_status take_part(ravel_comm *comm, void *user, ravel_error *err) {
    session *s = user;
    int32_t rank = ravel_comm_rank(comm);
    int sends = case_side_rank(&s->c, 0, rank) >= 0, receives = case_side_rank(&s->c, 1, rank) >= 0;
    placed from, to;
    ravel_refit *refit = NULL;
    if (sends && !place(&s->c, 0, rank, s->device[0], &from)) return RAVEL_E_MEMORY;
    if (receives && !place(&s->c, 1, rank, s->device[1], &to)) return RAVEL_E_MEMORY;
    ravel_refit_source source = {.size = sizeof source};
    ravel_refit_sink sink = {.size = sizeof sink};
    if (sends) source.tensors = from.side.tensors, source.count = from.side.count;
    if (receives) sink.tensors = to.side.tensors, sink.count = to.side.count;
    ravel_status status =
        ravel_refit_create(comm, sends ? &source : NULL, receives ? &sink : NULL, &s->c.options, &refit, err);
    for (int64_t version = 1; version <= VERSIONS && status == RAVEL_OK; version++) {
        if (sends) status = fill(&s->c, &from, version, err);
        if (status == RAVEL_OK) status = ravel_refit_update(refit, version, NULL, err);
        for (int64_t i = 0; receives && status == RAVEL_OK && i < to.side.count; i++)
            atomic_fetch_add(&s->wrong, wrong_in(&to, i, ravel_refit_data(refit, i), version));
        if (status == RAVEL_OK && receives && s->c.options.audit) status = ravel_refit_audit(refit, err);
    }
    ravel_refit_free(refit);
    if (sends) unplace(&from);
    if (receives) unplace(&to);
    return status;
}

static void run_session(session *s, int64_t round, ravel_status (*body)(ravel_comm *, void *, ravel_error *)) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = ravel_threads_run(case_ranks(&s->c), NULL, body, s, &err);
    if (status != RAVEL_OK || s->wrong)
        check_fail(__FILE__, __LINE__, "round %lld: %lld wrong; %s; %d senders, %d receivers, stage %d",
                   (long long)round, (long long)s->wrong, err.message, s->c.senders, s->c.receivers,
                   s->c.options.stage);
}

void refit_device_body_collective(ravel_device *device, int64_t rounds) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < rounds; round++) {
        session s;
        memset(&s, 0, sizeof s);
        case_random(&s.c, &rng);
        s.device[0] = round % 3 == 2 ? NULL : device;
        s.device[1] = round % 3 == 1 ? NULL : device;
        run_session(&s, round, take_part);
    }
}

/* ---- over NCCL ------------------------------------------------------------------------------------------- */

static ravel_status take_part_over_nccl(ravel_comm *host, void *user, ravel_error *err) {
    session *s = user;
    ravel_stream *stream = NULL;
    ravel_comm *comm = NULL;
    ravel_status status = ravel_stream_create(s->device[0], &stream, err);
    if (status == RAVEL_OK) status = s->make(host, stream, NULL, &comm, err);
    if (status == RAVEL_OK) status = take_part(comm, s, err);
    ravel_comm_free(comm);
    ravel_stream_free(stream);
    return status;
}

void refit_device_body_nccl(ravel_device *device, nccl_maker make, int32_t most, int64_t rounds) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < rounds; round++) {
        session s = {.device = {device, device}, .make = make};
        case_random(&s.c, &rng);
        case_for_nccl(&s.c);
        if (case_ranks(&s.c) > most) s.c.senders = s.c.receivers = s.c.both = s.c.tp[0] = s.c.tp[1] = 1;
        run_session(&s, round, take_part_over_nccl);
    }
}

/* ---- refusals -------------------------------------------------------------------------------------------- */

static ravel_status load_nothing(void *user, const ravel_refit_piece *piece, ravel_error *err) {
    (void)user, (void)piece, (void)err;
    return RAVEL_OK;
}

static void end_nothing(void *user, int64_t version) {
    (void)user, (void)version;
}

static void refused(const ravel_refit_source *source, const ravel_refit_sink *sink, const char *words) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm *self = NULL;
    ravel_refit *refit = NULL;
    EXPECT(ravel_comm_self(NULL, &self, &err) == RAVEL_OK);
    ravel_status status = ravel_refit_create(self, source, sink, NULL, &refit, &err);
    EXPECT(status == RAVEL_E_ARGUMENT || status == RAVEL_E_UNSUPPORTED);
    if (!strstr(err.message, words)) check_fail(__FILE__, __LINE__, "\"%s\" lacks \"%s\"", err.message, words);
    ravel_comm_free(self);
}

void refit_device_body_refusals(ravel_device *device) {
    float data[8] = {0};
    ravel_stream *stream = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    if (!EXPECT(ravel_stream_create(device, &stream, &err) == RAVEL_OK)) return;
    ravel_refit_tensor two[2] = {float_tensor("a", data, 4), float_tensor("b", data + 4, 4)};
    ravel_refit_source source = {.size = sizeof source, .tensors = two, .count = 2};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = two, .count = 2};
    two[1].place = (ravel_place){.kind = RAVEL_DEVICE, .stream = stream};
    refused(&source, &sink, "all on one device");
    two[0].place = two[1].place;
    two[0].place.stream = NULL;
    refused(&source, &sink, "place.stream");
    two[0].place.kind = 7;
    refused(&source, &sink, "memory kind 7");
    two[0].place = two[1].place;
    sink.load = load_nothing;
    sink.commit = sink.abort = end_nothing;
    refused(NULL, &sink, "the sink has load");
    ravel_stream_free(stream);
}
