/* Faults on the way: at each message and each step in turn, something is dropped, changed, cut short, late, or a rank
 * dies. Whatever happens, the receivers that are left are on one version, whole; and the next refit works.
 *
 * A trial has three parts, each over a communicator of its own:
 *     1. everybody gets version 1
 *     2. version 2, with one fault
 *     3. version 3, without; a rank that died is replaced by a new one
 *
 * The fault sits in the transport, between the refit and the communicator. */
#include "tests/unit/refit_case.h"

#include "comm/nccl_comm.h"
#include "refit/session/session.h"
#include "tests/unit/mock_nccl.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

typedef enum fault_kind { DROP, CHANGE, TRUNCATE, DELAY, KILL, FAULT_KINDS } fault_kind;
static const char *const kind_names[] = {"drop", "change a byte of", "truncate", "delay", "die at"};

typedef struct fault {
    int32_t kind;
    int32_t rank;
    int32_t step;    /* >= 0: at this step, or the collective after it */
    int64_t message; /* step < 0: at this message that the rank sends */
    uint64_t where;  /* which byte */
} fault;

enum { RANKS_MOST = 6, KEPT_MOST = 4 };

typedef struct trial trial;

/* One rank's part; outlives communicators. */
typedef struct fault_rank {
    trial *t;
    int32_t rank;
    case_side from, to;
    ravel_refit_source source;
    ravel_refit_sink sink;
    ravel_refit *refit;
    ravel_comm *comm;
    ravel_device *device; /* NULL: tensors are in host memory */
    ravel_stream *stream;
    ravel__transport transport;
    ravel_refit_report report;
    int32_t step;     /* where the protocol is */
    int64_t messages; /* sent so far in this part */
    int32_t dead;
    void *kept[KEPT_MOST]; /* changed copies of messages */
    int32_t kept_count;
    uint64_t looks;
    ravel_status status;
    ravel_error err;
} fault_rank;

struct trial {
    refit_case c;
    int32_t ranks;
    int32_t armed;
    double timeout;  /* of part 2 */
    int32_t borrows; /* receivers read frames in the senders' buffers, or copy them */
    int32_t nccl;    /* payloads travel over a mock of NCCL */
    fault f;
    int64_t version;
    fault_rank r[RANKS_MOST];
    int64_t seen[RANKS_MOST]; /* messages in part 2 */
};

/* ---- the faulty transport ------------------------------------------------------------------------------- */

static void pause_for(double seconds) {
    struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    (void)nanosleep(&t, NULL);
}

static ravel_status die(fault_rank *r, ravel_error *err) {
    r->dead = 1;
    return ravel_error_set(err, RAVEL_E_DEAD, "killed by the test");
}

static int strikes(const fault_rank *r, int64_t message) {
    const fault *f = &r->t->f;
    return r->t->armed && f->rank == r->rank && f->step < 0 && f->message == message;
}

/* A copy with one bit turned; the original may be in use elsewhere. */
static const void *changed_copy(fault_rank *r, const void *data, int64_t bytes) {
    if (r->kept_count == KEPT_MOST || bytes == 0) return data;
    unsigned char *copy = malloc((size_t)bytes);
    if (!copy) return data;
    memcpy(copy, data, (size_t)bytes);
    copy[r->t->f.where % (uint64_t)bytes] ^= (unsigned char)(1u << r->t->f.where % 8);
    r->kept[r->kept_count++] = copy;
    return copy;
}

static ravel_status faulty_isend(void *user, ravel_comm *comm, const void *data, int64_t bytes, int32_t peer,
                                 int32_t tag, ravel_request **request, ravel_error *err) {
    fault_rank *r = user;
    if (strikes(r, r->messages++)) {
        int32_t kind = r->t->f.kind;
        if (kind == KILL) return die(r, err);
        if (kind == DELAY) pause_for(r->t->timeout * 2);
        if (kind == CHANGE) data = changed_copy(r, data, bytes);
        if (kind == TRUNCATE) bytes -= 1 + (int64_t)(r->t->f.where % (uint64_t)bytes);
        if (kind == DROP) {
            *request = NULL;
            return RAVEL_OK;
        }
    }
    return ravel_comm_isend(comm, data, bytes, RAVEL_U8, peer, tag, request, err);
}

/* Now and then a request looks unfinished though it is not, so that several finish at once. */
static ravel_status faulty_test(void *user, ravel_request *request, int32_t *done, ravel_error *err) {
    fault_rank *r = user;
    r->looks = ravel__mix64(r->looks);
    if (r->looks % 4 < 2) {
        *done = 0;
        return RAVEL_OK;
    }
    return ravel_request_test(request, done, err);
}

static int strikes_collective(const fault_rank *r) {
    const fault *f = &r->t->f;
    return r->t->armed && f->rank == r->rank && f->step == r->step && f->kind == CHANGE;
}

static ravel_status faulty_allgather(void *user, ravel_comm *comm, const void *send, void *recv, int64_t bytes,
                                     ravel_error *err) {
    fault_rank *r = user;
    if (strikes_collective(r)) send = changed_copy(r, send, bytes);
    return ravel_comm_allgather(comm, send, recv, bytes, RAVEL_U8, err);
}

static ravel_status faulty_step(void *user, ravel_comm *comm, int32_t step, ravel_error *err) {
    fault_rank *r = user;
    const fault *f = &r->t->f;
    (void)comm;
    r->step = step;
    if (!r->t->armed || f->rank != r->rank || f->step != step) return RAVEL_OK;
    if (f->kind == KILL) return die(r, err);
    if (f->kind == DELAY) pause_for(r->t->timeout * 2);
    return RAVEL_OK;
}

/* ---- ranks ---------------------------------------------------------------------------------------------- */

/* The host as a device: its memory is any memory. */
static bool place_tensors(fault_rank *r) {
    ravel_error err = RAVEL_ERROR_INIT;
    if (!EXPECT(ravel_device_open("host", &r->device, &err) == RAVEL_OK) ||
        !EXPECT(ravel_stream_create(r->device, &r->stream, &err) == RAVEL_OK))
        return false;
    const ravel_place place = {.kind = RAVEL_DEVICE, .stream = r->stream};
    for (int64_t i = 0; i < r->from.count; i++) r->from.tensors[i].place = place;
    for (int64_t i = 0; i < r->to.count; i++) r->to.tensors[i].place = place;
    return true;
}

static bool make_rank(trial *t, int32_t rank) {
    fault_rank *r = &t->r[rank];
    memset(r, 0, sizeof *r);
    r->t = t;
    r->rank = rank;
    r->looks = (uint64_t)rank;
    if (case_side_rank(&t->c, 0, rank) >= 0 && !case_side_make(&t->c, 0, rank, 0, &r->from)) return false;
    if (case_side_rank(&t->c, 1, rank) >= 0 && !case_side_make(&t->c, 1, rank, 0, &r->to)) return false;
    if (t->nccl && !place_tensors(r)) return false;
    r->source = (ravel_refit_source){.size = sizeof r->source, .tensors = r->from.tensors, .count = r->from.count};
    r->sink = (ravel_refit_sink){.size = sizeof r->sink, .tensors = r->to.tensors, .count = r->to.count};
    r->transport = (ravel__transport){.user = r,
                                      .isend = faulty_isend,
                                      .no_loans = !t->borrows,
                                      .test = faulty_test,
                                      .allgather = faulty_allgather,
                                      .step = faulty_step};
    return true;
}

static void drop_copies(fault_rank *r) {
    while (r->kept_count > 0) free(r->kept[--r->kept_count]);
}

static void free_rank(fault_rank *r) {
    ravel_refit_free(r->refit);
    r->refit = NULL;
    drop_copies(r);
    ravel_stream_free(r->stream);
    ravel_device_free(r->device);
    case_side_free(&r->from);
    case_side_free(&r->to);
}

/* What a rank does in one part: connect (or create) and bring everybody to the version. */
static void part_over(fault_rank *r, ravel_comm *comm) {
    const trial *t = r->t;
    r->messages = 0;
    ravel_error_clear(&r->err);
    if (r->from.count > 0) case_fill(&t->c, &r->from, t->version);
    if (r->refit)
        r->status = ravel_refit_connect(r->refit, comm, &r->err);
    else
        r->status =
            ravel__refit_create_over(comm, r->from.count > 0 ? &r->source : NULL, r->to.count > 0 ? &r->sink : NULL,
                                     &t->c.options, &r->transport, &r->refit, &r->err);
    r->report = (ravel_refit_report){.size = sizeof r->report};
    if (r->status == RAVEL_OK) r->status = ravel_refit_update(r->refit, t->version, &r->report, &r->err);
}

static void *part_body(void *argument) {
    fault_rank *r = argument;
    ravel_comm *nccl = NULL;
    if (r->t->nccl) {
        ravel_comm_options o;
        ravel_comm_options_default(&o);
        o.timeout = ravel_comm_timeout(r->comm);
        r->status = ravel__comm_nccl_with(&mock_nccl_table, r->comm, r->stream, &o, &nccl, &r->err);
    }
    if (!r->t->nccl || nccl) part_over(r, nccl ? nccl : r->comm);
    ravel_comm_free(nccl); /* the refit has its own */
    /* A communicator that failed goes at once; a good one when all are done. */
    if (r->status != RAVEL_OK) {
        ravel_comm_free(r->comm);
        r->comm = NULL;
    }
    return NULL;
}

static bool run_part(trial *t, double timeout) {
    ravel_comm *comms[RANKS_MOST];
    pthread_t threads[RANKS_MOST];
    ravel_comm_options o;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options_default(&o);
    o.timeout = timeout;
    if (!EXPECT(ravel_comm_threads(t->ranks, &o, comms, &err) == RAVEL_OK)) return false;
    for (int32_t i = 0; i < t->ranks; i++) {
        t->r[i].comm = comms[i];
        if (!EXPECT(pthread_create(&threads[i], NULL, part_body, &t->r[i]) == 0)) return false;
    }
    for (int32_t i = 0; i < t->ranks; i++) pthread_join(threads[i], NULL);
    for (int32_t i = 0; i < t->ranks; i++) {
        t->seen[i] = t->r[i].messages;
        ravel_comm_free(t->r[i].comm);
        drop_copies(&t->r[i]);
    }
    return true;
}

/* ---- what must hold ------------------------------------------------------------------------------------- */

/* Every receiver that is left is on the same one of the two versions, with right contents and checksums. */
static bool check_survivors(trial *t, int64_t low, int64_t high) {
    int64_t common = -1;
    for (int32_t i = 0; i < t->ranks; i++) {
        fault_rank *r = &t->r[i];
        if (r->dead || r->to.count == 0 || !r->refit) continue;
        int64_t version = ravel_refit_version(r->refit);
        if (!EXPECT(version == low || version == high)) return false;
        if (common < 0) common = version;
        if (!EXPECT(version == common)) return false;
        if (!EXPECT(case_wrong_live(&t->c, &r->to, r->refit, version) == 0)) return false;
        if (!EXPECT(ravel_refit_audit(r->refit, NULL) == RAVEL_OK)) return false;
        if (!EXPECT((r->status == RAVEL_OK) == (version == high))) return false;
    }
    return true;
}

static bool all_succeeded(const trial *t) {
    for (int32_t i = 0; i < t->ranks; i++)
        if (!EXPECT(t->r[i].status == RAVEL_OK)) {
            printf("    rank %d: %s: %s\n", i, ravel_status_name(t->r[i].status), t->r[i].err.message);
            return false;
        }
    return true;
}

static void say(const trial *t) {
    const fault *f = &t->f;
    printf("    fault: %s ", kind_names[f->kind]);
    if (f->step >= 0)
        printf("step %d", f->step);
    else
        printf("message %lld", (long long)f->message);
    printf(" on rank %d (byte %llu); %d senders, %d receivers, N %d, stage %d, delta %d\n", f->rank,
           (unsigned long long)f->where, t->c.senders, t->c.receivers, t->c.options.num_buffers, t->c.options.stage,
           t->c.options.delta);
    for (int32_t i = 0; i < t->ranks; i++)
        printf("    rank %d%s: version %lld, %s: %s\n", i, t->r[i].dead ? " (dead)" : "",
               t->r[i].refit ? (long long)ravel_refit_version(t->r[i].refit) : -1, ravel_status_name(t->r[i].status),
               t->r[i].err.message);
}

static void random_case(trial *t, ravel__rng *rng) {
    do case_random(&t->c, rng);
    while (case_ranks(&t->c) > RANKS_MOST || case_ranks(&t->c) < 2 || t->c.receivers < 1 || t->c.both);
    t->c.options.audit = 1;
    t->c.options.buffer_bytes = 4096;
    t->ranks = case_ranks(&t->c);
    t->timeout = 0.06;
    t->borrows = (int32_t)ravel__rng_below(rng, 2);
}

/* A fault at any place of part 2: at one of the messages that a clean run was seen to send, or at a step. */
static void random_fault(trial *t, ravel__rng *rng, int64_t turn) {
    fault *f = &t->f;
    f->kind = (int32_t)(turn % FAULT_KINDS);
    f->rank = (int32_t)ravel__rng_below(rng, (uint64_t)t->ranks);
    f->where = ravel__rng_next(rng) >> 3;
    f->step = -1;
    int64_t sent = t->seen[f->rank];
    int at_step = f->kind == CHANGE || f->kind == DELAY || f->kind == KILL ? ravel__rng_below(rng, 3) == 0 : 0;
    for (int32_t i = 0; i < t->ranks && sent == 0 && !at_step; i++) { /* somebody who sends */
        f->rank = i;
        sent = t->seen[i];
    }
    if (at_step || sent == 0) {
        f->step = (int32_t)ravel__rng_below(rng, RAVEL__REFIT_STEPS);
        if (f->kind == DROP || f->kind == TRUNCATE) f->kind = KILL;
    } else {
        f->message = (int64_t)ravel__rng_below(rng, (uint64_t)sent);
    }
}

static bool first_part(trial *t) {
    bool fine = true;
    for (int32_t i = 0; i < t->ranks && fine; i++) fine = make_rank(t, i);
    t->version = 1;
    return fine && run_part(t, 60) && all_succeeded(t) && check_survivors(t, 0, 1);
}

/* The fault has been chosen; t->seen says what a clean part sends. */
static bool other_parts(trial *t) {
    bool fine = true;
    t->version = 2;
    t->armed = 1;
    fine = fine && run_part(t, t->timeout);
    t->armed = 0;
    fine = fine && check_survivors(t, 1, 2);
    for (int32_t i = 0; i < t->ranks && fine; i++) {
        if (!t->r[i].dead) continue;
        free_rank(&t->r[i]);
        fine = make_rank(t, i);
    }
    t->version = 3;
    fine = fine && run_part(t, 60) && all_succeeded(t) && check_survivors(t, 2, 3);
    if (!fine) say(t);
    for (int32_t i = 0; i < t->ranks; i++) free_rank(&t->r[i]);
    return fine;
}

TEST(refit_faults_leave_one_whole_version) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t turn = 0; turn < check_rounds(100, 2500); turn++) {
        trial *t = calloc(1, sizeof *t);
        CHECK(t);
        random_case(t, &rng);
        bool fine = first_part(t);
        random_fault(t, &rng, turn);
        fine = fine && other_parts(t);
        free(t);
        CHECK(fine);
    }
}

/* The same where payloads go from device memory to device memory. */
TEST(refit_faults_over_nccl) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    mock_nccl_reset();
    for (int64_t turn = 0; turn < check_rounds(40, 1000); turn++) {
        trial *t = calloc(1, sizeof *t);
        CHECK(t);
        random_case(t, &rng);
        case_for_nccl(&t->c);
        t->nccl = 1;
        bool fine = first_part(t);
        random_fault(t, &rng, turn);
        fine = fine && other_parts(t);
        free(t);
        CHECK(fine);
    }
    CHECK_EQ(mock_nccl.live, 0);
}

/* One small case, every place in turn: all messages of all ranks with every kind of fault, all steps of all ranks. */
typedef struct sweep {
    int64_t place, stride; /* only every stride-th place is tried */
    int64_t tried;
} sweep;

/* Of kind 3 frames carry changes. Variants 4 to 7 are 0 to 3 with borrowed frames. */
enum { KINDS = 4 };

static void fixed_case(trial *t, int32_t variant) {
    ravel_refit_options *o = &t->c.options;
    int32_t kind = variant % KINDS;
    memset(t, 0, sizeof *t);
    ravel_refit_options_default(o);
    t->c.senders = kind == 0 ? 1 : 2;
    t->c.receivers = 2;
    t->c.tp[0] = t->c.senders;
    t->c.tp[1] = kind == 0 ? 1 : 2;
    t->c.count = 5;
    for (int32_t i = 0; i < t->c.count; i++) {
        t->c.tensors[i] = (case_tensor){.ndim = 2, .dims = {i == 4 ? 90 : 6, 14}, .dim = {0, kind == 2 ? 1 : 0}};
        t->c.tensors[i].dtype[0] = t->c.tensors[i].dtype[1] = i % 2 ? RAVEL_BF16 : RAVEL_F32;
        (void)snprintf(t->c.tensors[i].name, sizeof t->c.tensors[i].name, "w%d", i);
    }
    o->delta = o->sparse = kind == 3;
    o->delta_block = 256;
    o->stage = kind == 1 ? RAVEL_REFIT_UNDO : RAVEL_REFIT_SPARE;
    o->audit = 1;
    o->buffer_bytes = 4096;
    t->ranks = case_ranks(&t->c);
    t->timeout = 0.06;
    t->borrows = variant >= KINDS;
}

static bool sweep_one(sweep *w, int32_t variant, const fault *f) {
    if (w->place++ % w->stride != 0) return true;
    trial *t = calloc(1, sizeof *t);
    if (!EXPECT(t != NULL)) return false;
    fixed_case(t, variant);
    bool fine = first_part(t);
    t->f = *f;
    fine = fine && other_parts(t);
    w->tried++;
    free(t);
    return fine;
}

TEST(refit_faults_at_every_place_in_turn) {
    sweep w = {.stride = check_scale(7, 1)};
    for (int32_t variant = 0; variant < 2 * KINDS; variant++) {
        trial *t = calloc(1, sizeof *t);
        CHECK(t);
        fixed_case(t, variant);
        bool fine = first_part(t);
        int32_t ranks = t->ranks;
        int64_t seen[RANKS_MOST];
        t->version = 2;
        fine = fine && run_part(t, 60) && all_succeeded(t);
        memcpy(seen, t->seen, sizeof seen);
        if (t->c.options.sparse) fine = fine && EXPECT(t->r[ranks - 1].report.bytes_sparse > 0);
        for (int32_t i = 0; i < ranks; i++) free_rank(&t->r[i]);
        free(t);
        CHECK(fine);
        for (int32_t rank = 0; rank < ranks; rank++)
            for (int32_t kind = 0; kind < FAULT_KINDS; kind++) {
                fault f = {.kind = kind, .rank = rank, .step = -1, .where = (uint64_t)(kind * 1000 + rank)};
                for (f.message = 0; f.message < seen[rank]; f.message++, f.where += 37)
                    CHECK(sweep_one(&w, variant, &f));
                if (kind == DROP || kind == TRUNCATE) continue;
                for (f.step = 0; f.step < RAVEL__REFIT_STEPS; f.step++) CHECK(sweep_one(&w, variant, &f));
            }
    }
    printf("    %lld faults\n", (long long)w.tried);
}
