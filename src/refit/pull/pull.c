/* The puller's calls. Every collective one decides with one agreement of the generator's ranks. */
#include "refit/pull/pull.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/rng.h"
#include "base/options.h"
#include "comm/link/address.h"
#include "comm/link/token.h"
#include "base/bytes.h"
#include "base/system/team.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ROW(...) RAVEL__ROW(ravel_pull_options, __VA_ARGS__)

static const ravel_option table[] = {
    ROW("threads", I32, threads, "0", 0, 64, NULL,
        "connections, each with a thread that receives, verifies and loads; 0: by cores, at most 8"),
    ROW("stage", ENUM, stage, "spare", 0, 0, RAVEL_REFIT_STAGE_CHOICES,
        "spare: into a second set of weights; undo: in place, with a log of what was there; copy: into a staging set that "
        "the commit copies to fixed addresses"),
    ROW("cast", ENUM, cast, "exact", 0, 0, RAVEL_REFIT_CAST_CHOICES,
        "exact: the same dtype on both sides; narrow: f64, f32, bf16, f16 may differ, the narrower travels"),
    ROW("delta", BOOL, delta, "yes", 0, 0, NULL,
        "do not send what did not change since the live version: whole blocks, and elements of blocks"),
    ROW("audit", BOOL, audit, "no", 0, 0, NULL, "hash every tensor when it is complete"),
    ROW("timeout", F64, timeout, "60", 0.01, 86400, NULL,
        "seconds without progress after which a stage, or the first connection, fails"),
    ROW("token", STRING, token, "", 0, 0, "SECRET",
        "shared secret of trainers and generators, or the word none; by default RAVEL_TOKEN or RAVEL_TOKEN_FILE"),
    ROW("tls", BOOL, tls, "no", 0, 0, NULL, "encrypt connections over TCP, on both sides; also RAVEL_TLS=1"),
    {0},
};

ravel_option_table ravel_pull_option_table(void) {
    return table;
}

void ravel_pull_options_default(ravel_pull_options *options) {
    ravel__options_preset(table, options, sizeof *options);
    options->token = NULL;
}

/* ---- create --------------------------------------------------------------------------------------------- */

static char *copy_text(ravel_puller *p, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = ravel__alloc(&p->memory.allocator, bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

static void free_text(ravel_puller *p, char *text) {
    ravel__release(&p->memory.allocator, text, text ? strlen(text) + 1 : 0);
}

static ravel_status find_token(ravel_puller *p, ravel_error *err) {
    char token[RAVEL__TOKEN_MOST] = "";
    ravel_status status = ravel__token_find(p->options.token, NULL, token, err);
    if (status != RAVEL_OK || !token[0]) return status;
    p->token = copy_text(p, token);
    return p->token ? RAVEL_OK : ravel__no_memory(err, strlen(token) + 1, "a token");
}

static ravel_status take_sink(ravel_puller *p, const ravel_refit_sink *sink, ravel_error *err) {
    ravel_refit_options o;
    if (!sink) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a puller needs a sink");
    ravel_status status = ravel__sink_take(sink, &p->sink_copy, &p->arena, &p->holding, err);
    ravel_refit_options_default(&o);
    o.stage = p->options.stage;
    o.audit = p->options.audit;
    if (status == RAVEL_OK)
        status = ravel__stage_init(&p->stage, &p->sink_copy, &p->holding, &o, &p->stage_memory.allocator, err);
    return status;
}

static ravel_status take_address(ravel_puller *p, const char *address, ravel_error *err) {
    size_t bytes = address ? strlen(address) + 1 : 0;
    if (bytes < 2) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a puller needs the trainers' address");
    /* An unknown host name may resolve later; a malformed address never will. */
    ravel__address parsed;
    ravel_error why = RAVEL_ERROR_INIT;
    if (ravel__address_parse(address, bytes - 1, &parsed, &why) == RAVEL_E_ARGUMENT)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s", why.message);
    p->address = copy_text(p, address);
    return p->address ? RAVEL_OK : ravel__no_memory(err, bytes, "an address");
}

static ravel_status start_watch(ravel_puller *p, ravel_error *err) {
    RAVEL_ASSERT(!p->watch.running);
    if (p->rank != 0) return RAVEL_OK;
    p->watch.address = p->address;
    p->watch.token = p->token;
    p->watch.tls = p->options.tls;
    p->watch.allocator = &p->memory.allocator;
    p->watch.report = (ravel__pull_report){.generator = p->generator, .ranks = p->ranks};
    return ravel__watch_start(&p->watch, err);
}

static ravel_status prepare(ravel_puller *p, const char *address, const ravel_refit_sink *sink, ravel_error *err) {
    ravel_status status = find_token(p, err);
    if (status == RAVEL_OK) status = take_address(p, address, err);
    if (status == RAVEL_OK) status = take_sink(p, sink, err);
    if (status == RAVEL_OK) status = ravel__pull_meet(p, err);
    return status;
}

static ravel_status join(ravel_puller *p, ravel_comm *comm, ravel_error *err) {
    ravel_status status = ravel_comm_dup(comm, &p->comm, err);
    if (status != RAVEL_OK) return status;
    ravel_comm_set_name(p->comm, "generator");
    p->rank = ravel_comm_rank(p->comm);
    p->ranks = ravel_comm_size(p->comm);
    p->generator = ravel__fresh_nonce();
    return p->ranks > 1 ? ravel_comm_broadcast(p->comm, &p->generator, 1, RAVEL_U64, 0, err) : RAVEL_OK;
}

/* *puller is there, also with wrong options: NULL only without memory. */
static ravel_status make(const ravel_pull_options *options, ravel_puller **puller, ravel_error *err) {
    ravel_pull_options o;
    ravel_pull_options_default(&o);
    ravel_status status = options ? ravel__take_options(table, "pull", options, &o, sizeof o, err) : RAVEL_OK;
    ravel_puller *p = *puller = ravel__calloc(o.allocator, 1, sizeof *p);
    if (!p) return ravel__no_memory(err, sizeof *p, "a puller");
    ravel__counted_init(&p->memory, o.allocator);
    ravel__counted_init(&p->stage_memory, o.allocator);
    ravel__arena_init(&p->arena, &p->memory.allocator, 4096);
    pthread_mutex_init(&p->lock, NULL);
    p->options = o;
    p->threads = o.threads > 0 ? o.threads : ravel__processors(8);
    return status;
}

static ravel_status list(const ravel__directory *d,
                         ravel_status (*each)(void *user, const ravel_refit_tensor *tensor, ravel_error *err),
                         void *user, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < d->count && status == RAVEL_OK; i++) {
        const ravel__cut *cut = &d->cuts[d->tensors[i].cut];
        ravel_refit_tensor t = {.name = d->tensors[i].name, .dtype = d->tensors[i].dtype, .ndim = cut->ndim};
        for (int32_t k = 0; k < cut->ndim; k++) t.dims[k] = t.extent[k] = cut->dims[k];
        status = each(user, &t, err);
    }
    return status;
}

ravel_status ravel_publication_list(const char *address, const ravel_pull_options *options,
                                    ravel_status (*each)(void *user, const ravel_refit_tensor *tensor,
                                                         ravel_error *err),
                                    void *user, ravel_error *err) {
    ravel_puller *p = NULL;
    ravel__directory d;
    ravel_status status = make(options, &p, err);
    if (status == RAVEL_OK) status = find_token(p, err);
    if (status == RAVEL_OK) status = take_address(p, address, err);
    if (status == RAVEL_OK) status = ravel__pull_directory(p, &d, err);
    if (status == RAVEL_OK) {
        status = list(&d, each, user, err);
        ravel__directory_free(&d);
    }
    ravel_puller_free(p);
    return status;
}

ravel_status ravel_puller_create(ravel_comm *comm, const char *address, const ravel_refit_sink *sink,
                                 const ravel_pull_options *options, ravel_puller **puller, ravel_error *err) {
    ravel_error own = RAVEL_ERROR_INIT;
    ravel_puller *p = NULL;
    if (!comm) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a puller needs its generator's communicator");
    ravel_status taken = make(options, &p, &own), status = p ? join(p, comm, &own) : taken;
    if (status == RAVEL_OK) {
        status = taken == RAVEL_OK ? prepare(p, address, sink, &own) : taken;
        if (p->ranks > 1) status = ravel_agree(p->comm, status, &own);
    }
    if (status == RAVEL_OK) status = start_watch(p, &own);
    if (status != RAVEL_OK) {
        ravel_puller_free(p);
        return ravel_error_set(err, status, "%s", own.message);
    }
    *puller = p;
    return RAVEL_OK;
}

void ravel_puller_free(ravel_puller *p) {
    if (!p) return;
    const ravel_allocator *own = &p->memory.allocator, *allocator = p->memory.inner;
    ravel__watch_stop(&p->watch);
    ravel__pull_stop(p);
    ravel__pull_unmap(p);
    ravel__stage_free(&p->stage);
    if (p->session) ravel__refit_plan_free(&p->plan);
    if (p->session) ravel__directory_free(&p->directory);
    ravel__release(own, p->tasks, (size_t)p->task_room * sizeof *p->tasks);
    free_text(p, p->address);
    free_text(p, p->token);
    ravel__holding_free(&p->holding, own);
    ravel__arena_free(&p->arena);
    ravel_comm_free(p->comm);
    pthread_mutex_destroy(&p->lock);
    ravel__release(allocator, p, sizeof *p);
}

/* ---- poll ----------------------------------------------------------------------------------------------- */

static ravel_refit_identity newest(ravel_puller *p) {
    ravel__versions v = {0};
    if (p->watch.running) v = ravel__watch_versions(&p->watch);
    return v.count > 0 ? v.list[0] : (ravel_refit_identity){0};
}

static int is_newer(ravel_puller *p) {
    ravel_refit_identity n = newest(p);
    return n.version > 0 && !ravel__identity_equal(n, p->stage.held);
}

/* Drops the staged version after the failure `why`; ends the threads first. */
static void drop(ravel_puller *p, ravel_error *why) {
    ravel__pull_stop(p);
    RAVEL_ASSERT(atomic_load(&p->progress) == RAVEL__PULL_NONE && !p->coordinating);
    ravel__stage_give_up(&p->stage, why);
}

/* Ranks reduce their states: the minimum of (broken, none, running, done), and whether rank 0 knows a newer version. */
enum { FAR_BROKEN, FAR_NONE, FAR_RUNNING, FAR_DONE };

static int64_t how_far(const ravel_puller *p) {
    static const int64_t far[] = {FAR_NONE, FAR_RUNNING, FAR_DONE, FAR_BROKEN};
    RAVEL_ASSERT((size_t)atomic_load(&p->progress) < sizeof far / sizeof *far);
    return far[atomic_load(&p->progress)];
}

ravel_status ravel_puller_poll(ravel_puller *p, int32_t *state, ravel_error *err) {
    int64_t both[2] = {how_far(p), p->rank == 0 ? is_newer(p) : 1};
    ravel_status status = RAVEL_OK;
    if (p->ranks > 1) status = ravel_comm_allreduce(p->comm, both, both, 2, RAVEL_I64, RAVEL_MIN, err);
    if (status != RAVEL_OK) return status;
    if (both[0] == FAR_BROKEN) {
        ravel_error why = RAVEL_ERROR_INIT;
        ravel__pull_stop(p);
        p->distrust = p->base.version > 0 && (p->status == RAVEL_E_CHECKSUM || p->status == RAVEL_E_DATA);
        if (p->status != RAVEL_OK && p->status != RAVEL_E_END)
            status = ravel_error_set(&why, p->status, "%s", p->why.message);
        if (p->ranks > 1) status = ravel_agree(p->comm, status, &why);
        drop(p, &why);
        return ravel_error_set(err, status, "%s", why.message);
    }
    if (both[0] == FAR_NONE)
        *state = both[1] ? RAVEL_PULL_NEWER : RAVEL_PULL_IDLE;
    else
        *state = both[0] == FAR_DONE ? RAVEL_PULL_READY : RAVEL_PULL_STAGING;
    return RAVEL_OK;
}

/* ---- stage ---------------------------------------------------------------------------------------------- */

/* The version that all ranks stage, chosen by rank 0; version 0: none. */
typedef struct order {
    ravel_refit_identity identity;
    uint64_t session;
} order;

static ravel_status choose(ravel_puller *p, int64_t version, order *o, ravel_error *err) {
    RAVEL_ASSERT(p->rank == 0);
    ravel__versions v = ravel__watch_versions(&p->watch);
    o->session = v.session;
    for (int32_t i = 0; i < v.count; i++) {
        if (version > 0 && v.list[i].version != version) continue;
        if (ravel__identity_equal(v.list[i], p->stage.held))
            return ravel_error_set(err, RAVEL_E_STATE, "version %lld is live already", (long long)v.list[i].version);
        o->identity = v.list[i];
        return RAVEL_OK;
    }
    if (version == 0) return ravel_error_set(err, RAVEL_E_STATE, "no version is known to be published yet");
    return ravel_error_set(err, RAVEL_E_STATE, "version %lld is not among the %d that the trainers keep",
                           (long long)version, v.count);
}

ravel_status ravel_puller_stage(ravel_puller *p, int64_t version, ravel_error *err) {
    ravel_error own = RAVEL_ERROR_INIT;
    order o = {0};
    ravel_status status = RAVEL_OK;
    if (atomic_load(&p->progress) != RAVEL__PULL_NONE)
        return ravel_error_set(err, RAVEL_E_STATE, "version %lld is being staged; commit or drop it first",
                               (long long)p->next.version);
    if (p->rank == 0) status = choose(p, version, &o, &own);
    if (p->ranks > 1) {
        ravel_status sent = ravel_comm_broadcast(p->comm, &o, (int64_t)sizeof o, RAVEL_U8, 0, err);
        if (sent != RAVEL_OK) return sent;
    }
    if (status == RAVEL_OK && o.identity.version > 0) {
        p->next = o.identity;
        p->next_session = o.session;
        RAVEL_ASSERT(!p->coordinating && !p->stage.active);
        p->base = p->options.delta && !p->distrust ? p->stage.held : (ravel_refit_identity){0};
        p->distrust = 0;
        if (p->base.nonce == 0) p->base = (ravel_refit_identity){0}; /* nothing that the trainers know of */
        status = ravel__stage_begin(&p->stage, p->next, &own);
        if (status == RAVEL_OK) status = ravel__pull_start(p, &own);
    }
    if (p->ranks > 1) status = ravel_agree(p->comm, status, &own);
    if (status == RAVEL_OK) return RAVEL_OK;
    drop(p, &own);
    return ravel_error_set(err, status, "%s", own.message);
}

ravel_status ravel_puller_wait(ravel_puller *p, double seconds, ravel_error *err) {
    int64_t began = ravel__clock_ns();
    if (isnan(seconds)) return ravel_error_set(err, RAVEL_E_ARGUMENT, "the seconds to wait are not a number");
    for (;;) {
        int32_t state = RAVEL_PULL_IDLE;
        ravel_status status = ravel_puller_poll(p, &state, err);
        if (status == RAVEL_OK && state == RAVEL_PULL_NEWER) status = ravel_puller_stage(p, 0, err);
        if (status != RAVEL_OK || state == RAVEL_PULL_READY) return status;
        int64_t late = (double)(ravel__clock_ns() - began) * 1e-9 > seconds;
        if (p->ranks > 1) status = ravel_comm_broadcast(p->comm, &late, 1, RAVEL_I64, 0, err);
        if (status != RAVEL_OK) return status;
        if (late) return ravel_error_set(err, RAVEL_E_TIMEOUT, "no version was ready within %.3g s", seconds);
        struct timespec pause = {0, 1000 * 1000};
        (void)nanosleep(&pause, NULL);
    }
}

ravel_status ravel_puller_drop(ravel_puller *p, ravel_error *err) {
    ravel_error own = RAVEL_ERROR_INIT;
    ravel__pull_stop(p);
    ravel_status status = ravel__stage_abort(&p->stage, &own);
    if (p->ranks > 1) status = ravel_agree(p->comm, status, &own);
    return status == RAVEL_OK ? RAVEL_OK : ravel_error_set(err, status, "%s", own.message);
}

/* ---- commit --------------------------------------------------------------------------------------------- */

static void tell_trainers(ravel_puller *p, const ravel_pull_report *r) {
    if (!p->watch.running) return;
    ravel__pull_report report = {.generator = p->generator, .held = p->stage.held, .ranks = p->ranks};
    report.prepare_seconds = r->prepare_seconds;
    report.pause_seconds = r->pause_seconds;
    report.tokens_per_second = p->tokens_per_second;
    report.bytes = r->bytes_pulled;
    report.needed = r->bytes_needed;
    report.changed_share = r->compared > 0 ? (double)r->changed / (double)r->compared : 0;
    report.commits = p->commits;
    ravel__watch_report(&p->watch, &report);
}

/* Kept versions that are newer than the live one. */
static int64_t lag_of(ravel_puller *p) {
    ravel__versions v = {0};
    int64_t lag = 0;
    if (p->watch.running) v = ravel__watch_versions(&p->watch);
    for (int32_t i = 0; i < v.count; i++) lag += v.list[i].version > p->stage.held.version;
    return lag;
}

static void count_forms(ravel_puller *p, ravel_pull_report *r) {
    ravel__tally *t = &p->tally;
    r->bytes_changes = atomic_load(&t->moved[RAVEL__BLOCK_SPARSE]);
    r->bytes_pulled = atomic_load(&t->moved[RAVEL__BLOCK_DATA]) + r->bytes_changes;
    r->bytes_kept = atomic_load(&t->bytes[RAVEL__BLOCK_KEEP]);
    r->bytes_sparse = atomic_load(&t->bytes[RAVEL__BLOCK_SPARSE]);
    r->elements = atomic_load(&t->elements);
    r->compared = atomic_load(&t->compared);
    r->changed = atomic_load(&t->changed);
    RAVEL_ASSERT(r->bytes_pulled - r->bytes_changes + r->bytes_sparse + r->bytes_kept == r->bytes_needed);
}

ravel_status ravel_puller_commit(ravel_puller *p, ravel_pull_report *report, ravel_error *err) {
    ravel_error own = RAVEL_ERROR_INIT;
    int64_t began = ravel__clock_ns();
    ravel_status status = atomic_load(&p->progress) == RAVEL__PULL_DONE
                              ? RAVEL_OK
                              : ravel_error_set(&own, RAVEL_E_STATE, "no version is ready to be committed");
    if (p->ranks > 1) status = ravel_agree(p->comm, status, &own);
    if (status != RAVEL_OK) return ravel_error_set(err, status, "%s", own.message);
    RAVEL_ASSERT(p->stage.active && ravel__identity_equal(p->stage.next, p->next) && p->done_ns >= p->began_ns);
    status = ravel__stage_commit(&p->stage, err);
    if (status != RAVEL_OK) {
        ravel__pull_stop(p);
        return status;
    }
    ravel_pull_report r = {.identity = p->stage.held, .live = p->stage.live, .senders = p->senders};
    ravel__pull_stop(p); /* the threads have ended */
    r.pause_seconds = (double)(ravel__clock_ns() - began) * 1e-9;
    p->commits++;
    r.bytes_needed = p->plan.bytes;
    count_forms(p, &r);
    r.prepare_seconds = (double)(p->done_ns - p->began_ns) * 1e-9;
    r.mapped = atomic_load(&p->mapped);
    r.lag = lag_of(p);
    tell_trainers(p, &r);
    if (report && report->size >= sizeof report->size) {
        r.size = report->size;
        memcpy(report, &r, report->size < sizeof r ? report->size : sizeof r);
    }
    return RAVEL_OK;
}

/* ---- small calls ---------------------------------------------------------------------------------------- */

ravel_refit_identity ravel_puller_identity(const ravel_puller *p) {
    return p->stage.held;
}

ravel_refit_identity ravel_puller_newest(ravel_puller *p) {
    return newest(p);
}

void *ravel_puller_data(const ravel_puller *p, int64_t index) {
    return ravel__stage_data(&p->stage, index);
}

void ravel_puller_note(ravel_puller *p, double tokens_per_second) {
    if (!(tokens_per_second >= 0)) return;
    p->tokens_per_second = tokens_per_second;
    if (p->watch.running) ravel__watch_speed(&p->watch, tokens_per_second);
}

ravel_status ravel_puller_audit(const ravel_puller *p, ravel_error *err) {
    return ravel__stage_audit(&p->stage, err);
}
