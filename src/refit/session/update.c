/* One version, from the senders' memory to the receivers' switch.
 *
 *     begin     all-gather: which version is wanted, which is there; receivers open their stage; agree
 *     stream    everything moves (stream.c)
 *     totals    all-reduce of the report's numbers
 *     vote      all-reduce: did everything arrive and match, on every rank?
 *     switch
 *
 * Up to the vote every failure leaves the old version live. The vote's one all-reduce is the point of decision: on the
 * `threads` back end it completes on all ranks or on none. */
#include "refit/model/carrier.h"
#include "refit/session/session.h"

#include "base/assert.h"
#include "base/system/clock.h"

#include <string.h>

/* A rank's opening message, as it travels. */
typedef struct opening {
    uint64_t sum;                /* XXH3 of all that follows */
    ravel_refit_identity wanted; /* version that it asks for, 0: the senders'; a sender's nonce for it */
    ravel_refit_identity held;   /* by its sink */
    int32_t status;              /* of its arguments */
    int32_t reserved;
} opening;

/* The state of one update; one allocation. */
typedef struct plan_of_update {
    opening *openings;           /* [ranks] */
    int32_t *nodes;              /* [ranks + 1] */
    char *skip;                  /* [ranks] */
    char *active_out, *has_base; /* [plan.out_count] */
    char *active_in;             /* [plan.in_count] */
    size_t bytes;
    ravel_refit_identity next; /* the root's */
    int32_t served;
} plan_of_update;

static ravel_status make_room(ravel_refit *refit, plan_of_update *u, ravel_error *err) {
    size_t ranks = (size_t)refit->ranks, out = (size_t)refit->streams.out_count, in = (size_t)refit->streams.in_count;
    u->bytes = ranks * (sizeof *u->openings + sizeof *u->nodes + 1) + sizeof *u->nodes + 2 * out + in;
    u->openings = ravel__calloc(&refit->memory.allocator, 1, u->bytes);
    if (!u->openings) return ravel__no_memory(err, u->bytes, "an update");
    u->nodes = (int32_t *)(void *)(u->openings + ranks);
    u->skip = (char *)(u->nodes + ranks + 1);
    u->active_out = u->skip + ranks;
    u->has_base = u->active_out + out;
    u->active_in = u->has_base + out;
    RAVEL_ASSERT((size_t)(u->active_in + in - (char *)u->openings) == u->bytes);
    return RAVEL_OK;
}

static ravel_status step(ravel_refit *refit, int32_t which, ravel_error *err) {
    RAVEL_ASSERT(refit->comm);
    ravel_status status = ravel__take_step(refit->transport, refit->comm, which, err);
    if (status != RAVEL_OK) ravel__refit_leave(refit, err, 0);
    return status;
}

/* ---- begin ---------------------------------------------------------------------------------------------- */

static ravel_status check_versions(const ravel_refit *refit, const plan_of_update *u, ravel_error *err) {
    RAVEL_ASSERT(refit->root >= 0 && (refit->roles[refit->root] & RAVEL__SOURCE));
    for (int32_t r = 0; r < refit->ranks; r++) {
        const opening o = u->openings[r];
        int is_sender = refit->roles[r] & RAVEL__SOURCE;
        if (o.wanted.version == u->next.version || (o.wanted.version == 0 && !is_sender)) continue;
        return ravel_error_set(err, RAVEL_E_MISMATCH, "version %lld on rank %d (%s), %lld on rank %d (%s)",
                               (long long)u->next.version, refit->root, ravel__role_name(refit->roles[refit->root]),
                               (long long)o.wanted.version, r, ravel__role_name(refit->roles[r]));
    }
    return RAVEL_OK;
}

/* Which receivers have the version already, and which streams go to receivers that all hold the version that was sent
 * last. */
static void decide(ravel_refit *refit, plan_of_update *u) {
    for (int32_t r = 0; r < refit->ranks; r++) {
        const opening o = u->openings[r];
        int receives = refit->roles[r] & RAVEL__SINK;
        u->skip[r] = receives && ravel__identity_equal(o.held, u->next);
        u->served += receives && !u->skip[r];
    }
    RAVEL_ASSERT(u->served >= 0 && u->served <= refit->receivers);
    ravel__refit_trees(refit, u->skip, u->nodes, u->active_out, u->active_in);
    for (int32_t i = 0; i < refit->streams.out_count; i++) {
        const ravel__stream *s = &refit->streams.out[i];
        u->has_base[i] = 1;
        for (int32_t m = 0; m < s->member_count; m++) {
            const opening o = u->openings[s->members[m]];
            RAVEL_ASSERT(s->members[m] >= 0 && s->members[m] < refit->ranks);
            if (u->skip[s->members[m]]) continue;
            u->has_base[i] &= ravel__identity_equal(o.held, refit->packer.deltas[i].base);
        }
    }
}

static ravel_status check_call(const ravel_refit *refit, int64_t version, ravel_error *err) {
    if (version < 0 || (refit->source && version == 0))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "version %lld; senders give one above 0, receivers the same or 0",
                               (long long)version);
    return RAVEL_OK;
}

/* The same version again has the nonce that it was sent with; any other version gets a new one, also an old number
 * after a rollback. */
static ravel_refit_identity wanted_identity(const ravel_refit *refit, int64_t version) {
    if (!refit->source) return (ravel_refit_identity){.version = version};
    if (version == refit->sent.version) return refit->sent;
    return (ravel_refit_identity){.version = version, .nonce = ravel__fresh_nonce()};
}

/* What the ranks' openings come to. */
static ravel_status open_version(ravel_refit *refit, plan_of_update *u, ravel_error *err) {
    ravel_status status = check_versions(refit, u, err);
    if (status != RAVEL_OK) return status;
    decide(refit, u);
    if (!u->skip[refit->rank]) status = ravel__stage_begin(&refit->stage, u->next, err);
    if (status == RAVEL_OK && refit->data && refit->stage.active && !refit->stage.now->direct)
        status = ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                                 "stage \"%s\" keeps old bytes in host memory; over nccl stage with spare or copy",
                                 refit->stage.now->name);
    return status == RAVEL_OK ? ravel__carrier_follow(refit->source_holding.carrier, err) : status;
}

static ravel_status begin(ravel_refit *refit, int64_t version, plan_of_update *u, ravel_error *err) {
    ravel_error failure = RAVEL_ERROR_INIT;
    ravel_status mine = check_call(refit, version, err);
    opening o = {.wanted = wanted_identity(refit, version), .held = refit->stage.held, .status = mine};
    ravel_status status =
        ravel__refit_gather(refit, RAVEL__REFIT_STEP_BEGIN, &o, u->openings, sizeof o, "opening message", &failure);
    if (!refit->comm) {
        if (err) *err = failure;
        return status;
    }
    RAVEL_ASSERT(refit->root >= 0 && refit->root < refit->ranks);
    u->next = u->openings[refit->root].wanted;
    int all_can = status == RAVEL_OK;
    for (int32_t r = 0; r < refit->ranks; r++) all_can &= u->openings[r].status == RAVEL_OK;
    if (mine != RAVEL_OK)
        status = mine;
    else if (status != RAVEL_OK)
        ravel_error_set(err, status, "%s", failure.message);
    else if (all_can)
        status = open_version(refit, u, err);
    return ravel__refit_agree(refit, status, err);
}

/* ---- totals and report ---------------------------------------------------------------------------------- */

enum { SUM_NEEDED, SUM_MOVED, SUM_KEPT, SUM_SPARSE, SUM_COMPARED, SUMS };

enum { MOST_MEMORY = RAVEL_REFIT_PHASES, MOSTS }; /* after the phases */

typedef struct totals {
    int64_t sum[SUMS];
    double most[MOSTS];
} totals;

/* Kept bytes count once per receiver, as needed ones do. */
static void own_numbers(const ravel_refit *refit, const plan_of_update *u, totals *t) {
    for (int32_t i = 0; i < refit->streams.in_count; i++)
        t->sum[SUM_NEEDED] += u->active_in[i] ? refit->streams.in[i].bytes : 0;
    t->sum[SUM_MOVED] = refit->wire.bytes_sent;
    t->sum[SUM_KEPT] = refit->loader.kept_bytes;
    t->sum[SUM_SPARSE] = refit->loader.sparse_bytes;
    for (int32_t i = 0; i < refit->streams.out_count; i++) t->sum[SUM_COMPARED] += refit->packer.cursors[i].comparing;
    double *p = t->most;
    p[RAVEL_REFIT_ITERATE] = (double)refit->packer.iterate_ns * 1e-9;
    p[RAVEL_REFIT_PACK] = (double)refit->packer.pack_ns * 1e-9;
    p[RAVEL_REFIT_SEND] = (double)refit->wire.send_ns * 1e-9;
    p[RAVEL_REFIT_RECEIVE] = (double)refit->wire.receive_ns * 1e-9;
    p[RAVEL_REFIT_VERIFY] = (double)refit->loader.verify_ns * 1e-9;
    p[RAVEL_REFIT_LOAD] = (double)refit->loader.load_ns * 1e-9;
    p[MOST_MEMORY] = (double)atomic_load(&refit->memory.peak);
}

static ravel_status add_up(ravel_refit *refit, totals *t, ravel_error *err) {
    ravel_error failure = RAVEL_ERROR_INIT;
    ravel_status status = step(refit, RAVEL__REFIT_STEP_TOTALS, &failure);
    if (status == RAVEL_OK)
        status = ravel_comm_allreduce(refit->comm, t->sum, t->sum, SUMS, RAVEL_I64, RAVEL_SUM, &failure);
    if (status == RAVEL_OK)
        status = ravel_comm_allreduce(refit->comm, t->most, t->most, MOSTS, RAVEL_F64, RAVEL_MAX, &failure);
    if (status == RAVEL_OK) return RAVEL_OK;
    ravel__refit_leave(refit, &failure, status == RAVEL_E_TIMEOUT);
    if (err) *err = failure;
    return status;
}

/* Of the three stages of the pipeline, how much of the two shorter ones was hidden behind the longest. */
static double overlap_of(const double *phase, double seconds) {
    double stages[3] = {phase[RAVEL_REFIT_ITERATE] + phase[RAVEL_REFIT_PACK], phase[RAVEL_REFIT_RECEIVE],
                        phase[RAVEL_REFIT_VERIFY] + phase[RAVEL_REFIT_LOAD]};
    double sum = 0, most = 0;
    for (int i = 0; i < 3; i++) {
        sum += stages[i];
        if (stages[i] > most) most = stages[i];
    }
    double hidden = sum > most ? (sum - seconds) / (sum - most) : 0;
    RAVEL_ASSERT(sum >= most);
    return hidden < 0 ? 0 : hidden > 1 ? 1 : hidden;
}

static void fill_report(const ravel_refit *refit, const plan_of_update *u, const totals *mine, const totals *all,
                        ravel_refit_report *out) {
    RAVEL_ASSERT(u->served <= refit->receivers);
    ravel_refit_report r = {.size = out->size};
    double seconds = (double)(ravel__clock_ns() - refit->began_ns) * 1e-9;
    r.version = ravel_refit_version(refit);
    r.bytes_needed = all->sum[SUM_NEEDED];
    r.bytes_moved = all->sum[SUM_MOVED];
    r.bytes_kept = all->sum[SUM_KEPT];
    r.bytes_sparse = all->sum[SUM_SPARSE];
    r.delta = all->sum[SUM_COMPARED] > 0;
    r.frames = refit->wire.frames;
    r.my_bytes = refit->wire.bytes_sent + refit->wire.bytes_received;
    r.tensors = (refit->source ? refit->source->count : 0) + (refit->sink ? refit->sink->count : 0);
    r.buffer_bytes = refit->terms.buffer_bytes;
    r.num_buffers = refit->terms.num_buffers;
    r.live = refit->stage.live;
    r.senders = refit->senders;
    r.receivers = refit->receivers;
    r.served = u->served;
    r.seconds = seconds;
    memcpy(r.phase, mine->most, sizeof r.phase);
    memcpy(r.phase_most, all->most, sizeof r.phase_most);
    r.phase[RAVEL_REFIT_VOTE] = r.phase_most[RAVEL_REFIT_VOTE] = (double)refit->vote_ns * 1e-9;
    r.overlap = overlap_of(r.phase_most, (double)refit->stream_ns * 1e-9);
    r.gb_per_second = seconds > 0 ? (double)r.bytes_needed / seconds * 1e-9 : 0;
    r.peak_bytes = atomic_load(&refit->memory.peak);
    r.stage_bytes = atomic_load(&refit->stage_memory.peak);
    r.peak_most = (int64_t)all->most[MOST_MEMORY];
    memcpy(out, &r, out->size < sizeof r ? out->size : sizeof r);
}

/* ---- the update ----------------------------------------------------------------------------------------- */

/* This rank's own verdict on what was streamed. */
static ravel_status verdict(ravel_refit *refit, ravel_error *err) {
    ravel_status status = refit->packer.status;
    const ravel_error *why = &refit->packer.why;
    if (status == RAVEL_OK && refit->streams.in_count > 0) {
        status = ravel__loader_end(&refit->loader);
        why = &refit->loader.why;
    }
    if (status != RAVEL_OK) return ravel_error_set(err, status, "%s", why->message);
    ravel__stage_seal(&refit->stage);
    return RAVEL_OK;
}

/* Back to the version before; the first error is reported. */
static ravel_status give_up(ravel_refit *refit, ravel_status status, ravel_error *err) {
    ravel__stage_give_up(&refit->stage, err);
    ravel__packer_end(&refit->packer, 0);
    return status;
}

static ravel_status vote(ravel_refit *refit, totals *all, ravel_error *err) {
    int64_t began = ravel__clock_ns();
    ravel_status mine = verdict(refit, err), status = add_up(refit, all, err);
    if (status == RAVEL_OK) status = step(refit, RAVEL__REFIT_STEP_VOTE, err);
    if (status != RAVEL_OK) return give_up(refit, status, err);
    status = ravel__refit_agree(refit, mine, err);
    refit->vote_ns += ravel__clock_ns() - began;
    if (status == RAVEL_OK) return RAVEL_OK;
    /* The vote itself failed: this rank does not know whether other ranks have its result. */
    if (!refit->comm && mine == RAVEL_OK) {
        ravel__packer_end(&refit->packer, 0);
        (void)ravel__stage_doubt(&refit->stage, err);
        return status;
    }
    return give_up(refit, status, err);
}

static ravel_status run(ravel_refit *refit, int64_t version, plan_of_update *u, totals *mine, totals *all,
                        ravel_error *err) {
    ravel_status status = begin(refit, version, u, err);
    refit->vote_ns = ravel__clock_ns() - refit->began_ns;
    if (status != RAVEL_OK) return give_up(refit, status, err);
    RAVEL_ASSERT(u->next.version > 0 && refit->comm);
    ravel__packer_begin(&refit->packer, u->next, u->active_out, u->has_base);
    ravel__loader_begin(&refit->loader, u->next.version, u->active_in);
    status = step(refit, RAVEL__REFIT_STEP_STREAM, err);
    int64_t began = ravel__clock_ns();
    if (status == RAVEL_OK) {
        ravel_error failure = RAVEL_ERROR_INIT;
        status = ravel__refit_stream(refit, &failure);
        if (status != RAVEL_OK) ravel__refit_leave(refit, &failure, status != RAVEL_E_DEAD);
        if (status != RAVEL_OK && err) *err = failure;
    }
    refit->stream_ns = ravel__clock_ns() - began;
    own_numbers(refit, u, mine);
    *all = *mine;
    if (status != RAVEL_OK) return give_up(refit, status, err);
    status = vote(refit, all, err);
    if (status != RAVEL_OK) return status;
    RAVEL_ASSERT(refit->packer.status == RAVEL_OK && refit->loader.status == RAVEL_OK);
    RAVEL_ASSERT(!refit->stage.active || ravel__identity_equal(refit->stage.next, u->next));
    (void)step(refit, RAVEL__REFIT_STEP_COMMIT, NULL); /* decided: only a copy on a device can fail now */
    status = ravel__stage_commit(&refit->stage, err);
    ravel__packer_end(&refit->packer, 1);
    refit->sent = u->next;
    return status;
}

ravel_status ravel_refit_update(ravel_refit *refit, int64_t version, ravel_refit_report *report, ravel_error *err) {
    ravel_error own = RAVEL_ERROR_INIT;
    plan_of_update u = {0};
    totals mine = {0}, all = {0};
    if (!refit->comm)
        return ravel_error_set(err, RAVEL_E_DEAD, "the refit has no communicator; ravel_refit_connect gives it one");
    refit->began_ns = ravel__clock_ns();
    refit->vote_ns = refit->stream_ns = 0;
    atomic_store(&refit->trace.count, 0);
    memset(&refit->wire, 0, sizeof refit->wire);
    ravel_status status = make_room(refit, &u, &own);
    if (status == RAVEL_OK)
        status = run(refit, version, &u, &mine, &all, &own);
    else
        ravel__refit_leave(refit, &own, 1);
    if (report && report->size >= sizeof report->size) fill_report(refit, &u, &mine, &all, report);
    ravel__release(&refit->memory.allocator, u.openings, u.bytes);
    if (status != RAVEL_OK) ravel_error_set(err, status, "%s", own.message);
    return status;
}
