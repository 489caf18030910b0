/* Connecting over one communicator: the ranks agree on everything before the first weight moves.
 *
 *     hello       all-gather, 640 bytes per rank: settings, sizes, digests, versions, and failures
 *     manifests   one broadcast per distinct manifest
 *     catalog, terms, plan: computed alike on every rank; a difference is an error on every rank
 *     buffers
 *     ready       all-reduce: is every rank ready, and has it the same plan? */
#include "refit/session.h"

#include "base/assert.h"
#include "base/clock.h"
#include "comm/agree.h"
#include "comm/nccl_comm.h"
#include "refit/bytes.h"
#include "refit/workers.h"
#include "base/xxh3.h"

#include <stdio.h>
#include <string.h>

static int is_loss(ravel_status status) {
    return status == RAVEL_E_PEER_LOST || status == RAVEL_E_TIMEOUT || status == RAVEL_E_DEAD;
}

void ravel__refit_leave(ravel_refit *refit, const ravel_error *why, int tell) {
    if (!refit->comm) return;
    RAVEL_ASSERT(!refit->data || refit->data != refit->comm);
    if (tell) ravel_comm_abort(refit->comm, why);
    ravel_comm_free(refit->data); /* cancels requests: nothing writes the buffers after this */
    ravel_comm_free(refit->comm);
    refit->comm = refit->data = NULL;
}

/* Leaves the communicator after a failed call. After E_TIMEOUT, which only this rank saw, aborts it for the others. */
static ravel_status lost(ravel_refit *refit, ravel_status status, ravel_error *err) {
    ravel__refit_leave(refit, err, status == RAVEL_E_TIMEOUT || !is_loss(status));
    return status;
}

/* ---- agreement ------------------------------------------------------------------------------------------ */

/* A difference is found by every rank itself, so each keeps its own sentence. */
ravel_status ravel__refit_agree(ravel_refit *refit, ravel_status status, ravel_error *err) {
    RAVEL_ASSERT(refit->comm);
    ravel_error loss = RAVEL_ERROR_INIT, own = err ? *err : loss;
    ravel_status result = ravel__agree_or_lost(refit->comm, status, &loss, err);
    if (loss.status) {
        if (err) *err = loss; /* the loss of the communicator matters more than what failed here */
        return lost(refit, (ravel_status)loss.status, err);
    }
    if (status != RAVEL_E_MISMATCH || result == RAVEL_OK) return result;
    if (err) *err = own;
    return status;
}

/* ---- hello ---------------------------------------------------------------------------------------------- */

static ravel__hello make_hello(const ravel_refit *refit, ravel_status status, const ravel_error *err) {
    const ravel_refit_options *o = &refit->options;
    ravel__hello h = {
        .status = status, .settings = refit->settings, .host = refit->host, .checksum = RAVEL__CHECKSUM_XXH3};
    if (status != RAVEL_OK && err)
        (void)snprintf(h.message, sizeof h.message, "%.*s", RAVEL__HELLO_MESSAGE - 1, err->message);
    h.roles = (refit->source ? RAVEL__SOURCE : 0) | (refit->sink ? RAVEL__SINK : 0);
    h.sequential = refit->source && refit->source->iterate;
    h.cast = o->cast, h.delta = o->delta, h.ignore_extra = o->ignore_extra;
    h.held = refit->stage.held;
    h.prepared = refit->stage.prepared;
    return h;
}

/* The rank's two manifests, one after the other, in memory of the allocator. */
typedef struct manifests {
    unsigned char *bytes;
    size_t size[2];
} manifests;

static ravel_status encode_manifests(const ravel_refit *refit, manifests *m, ravel_error *err) {
    const ravel__holding *holdings[2] = {&refit->source_holding, &refit->sink_holding};
    int has[2] = {refit->source != NULL, refit->sink != NULL};
    for (int side = 0; side < 2; side++) m->size[side] = has[side] ? ravel__manifest_bytes(holdings[side]) : 0;
    m->bytes = ravel__alloc(&refit->memory.allocator, m->size[0] + m->size[1]);
    if (!m->bytes && m->size[0] + m->size[1] > 0) {
        size_t bytes = m->size[0] + m->size[1];
        m->size[0] = m->size[1] = 0;
        return ravel__no_memory(err, bytes, "the manifest");
    }
    if (has[0]) ravel__manifest_encode(holdings[0], RAVEL__SOURCE, m->bytes);
    if (has[1]) ravel__manifest_encode(holdings[1], RAVEL__SINK, m->bytes + m->size[0]);
    return RAVEL_OK;
}

/* The hellos of all ranks. A failure in one of them is the result. */
static ravel_status exchange_hellos(ravel_refit *refit, const ravel__hello *mine, ravel__hello *hellos,
                                    unsigned char *coded, ravel_error *err) {
    const ravel__transport *t = refit->transport;
    ravel_error failure = RAVEL_ERROR_INIT;
    unsigned char own[RAVEL__HELLO_BYTES];
    ravel__hello_encode(mine, own);
    ravel_status status = ravel__take_step(t, refit->comm, RAVEL__STEP_HELLO, &failure);
    if (status == RAVEL_OK) status = ravel__allgather(t, refit->comm, own, coded, RAVEL__HELLO_BYTES, &failure);
    if (status != RAVEL_OK) {
        if (err) *err = failure;
        return lost(refit, status, err);
    }
    for (int32_t r = 0; r < refit->ranks; r++) {
        status = ravel__hello_decode(coded + (size_t)r * RAVEL__HELLO_BYTES, &hellos[r], &failure);
        if (status == RAVEL_OK && hellos[r].status != RAVEL_OK)
            status = ravel_error_set(&failure, (ravel_status)hellos[r].status, "%s", hellos[r].message);
        if (status == RAVEL_OK) continue;
        if (mine->status != RAVEL_OK && r == refit->rank) return (ravel_status)mine->status;
        if (err) ravel_error_clear(err);
        return ravel_error_set(err, status, "rank %d: %s", r, failure.message);
    }
    return RAVEL_OK;
}

/* ---- manifests ------------------------------------------------------------------------------------------ */

static size_t largest_manifest(const ravel__hello *hellos, int32_t ranks) {
    int64_t most = 0;
    for (int32_t r = 0; r < ranks; r++)
        for (int side = 0; side < 2; side++)
            if (hellos[r].manifest_bytes[side] > most) most = hellos[r].manifest_bytes[side];
    return (size_t)most;
}

static ravel_status read_manifests(ravel_refit *refit, const manifests *own, ravel__catalog *catalog,
                                   ravel__differences *list, ravel_error *err) {
    const ravel__transport *t = refit->transport;
    size_t most = largest_manifest(catalog->hellos, refit->ranks);
    unsigned char *buffer = ravel__alloc(&refit->memory.allocator, most);
    ravel_status status = RAVEL_OK;
    if (!buffer && most > 0) status = ravel__no_memory(err, most, "a manifest");
    if (status == RAVEL_OK) status = ravel__take_step(t, refit->comm, RAVEL__STEP_MANIFEST, err);
    for (int32_t p = 0; p < catalog->party_count && status == RAVEL_OK; p++) {
        const ravel__party *party = &catalog->parties[p];
        int32_t from = party->ranks[0];
        int64_t bytes = catalog->hellos[from].manifest_bytes[party->side];
        if (from == refit->rank && buffer && own->bytes)
            memcpy(buffer, own->bytes + (party->side == RAVEL__OF_SINK ? own->size[0] : 0), (size_t)bytes);
        status = ravel__broadcast(t, refit->comm, buffer, bytes, from, err);
        if (status == RAVEL_OK) status = ravel__catalog_add(catalog, p, buffer, (size_t)bytes, list, err);
    }
    ravel__release(&refit->memory.allocator, buffer, most);
    /* A rank that fails here cannot report it in step with the others, so the failure ends the communicator. */
    return status == RAVEL_OK ? RAVEL_OK : lost(refit, status, err);
}

/* ---- buffers -------------------------------------------------------------------------------------------- */

static void free_pool(ravel_refit *refit, ravel__pool *pool) {
    ravel__release(&refit->memory.allocator, pool->block, pool->block_bytes);
    ravel__release(&refit->memory.allocator, pool->slots, (size_t)pool->count * sizeof *pool->slots);
    *pool = (ravel__pool){0};
}

/* N aligned buffers of B bytes, or slots without memory if frames are borrowed. Existing buffers of this size are kept.
*/
static ravel_status make_pool(ravel_refit *refit, ravel__pool *pool, int wanted, int borrowed, ravel_error *err) {
    size_t whole = refit->data ? RAVEL__APART_BYTES : (size_t)refit->terms.buffer_bytes;
    size_t bytes = borrowed ? 0 : ravel__round_up(whole, RAVEL__FRAME_ALIGN);
    int32_t count = wanted ? refit->terms.num_buffers : 0;
    if (pool->count == count && (count == 0 || pool->bytes == bytes)) {
        for (int32_t i = 0; i < count; i++) pool->slots[i] = (ravel__refit_buffer){.buffer = pool->slots[i].buffer};
        return RAVEL_OK;
    }
    RAVEL_ASSERT(whole > RAVEL__FRAME_HEADER + RAVEL__FRAME_ENTRY && count >= 0);
    free_pool(refit, pool);
    if (count == 0) return RAVEL_OK;
    pool->count = count;
    pool->bytes = bytes;
    pool->slots = ravel__calloc(&refit->memory.allocator, (size_t)count, sizeof *pool->slots);
    if (pool->slots && borrowed) return RAVEL_OK;
    pool->block_bytes = bytes * (size_t)count + RAVEL__FRAME_ALIGN;
    pool->block = pool->slots ? ravel__alloc(&refit->memory.allocator, pool->block_bytes) : NULL;
    if (!pool->block) {
        size_t asked = pool->block_bytes;
        pool->block_bytes = 0;
        free_pool(refit, pool);
        return ravel__no_memory(err, asked, "the refit buffers");
    }
    unsigned char *first = pool->block;
    first += (RAVEL__FRAME_ALIGN - (uintptr_t)pool->block % RAVEL__FRAME_ALIGN) % RAVEL__FRAME_ALIGN;
    for (int32_t i = 0; i < count; i++) pool->slots[i].buffer = first + (size_t)i * bytes;
    return RAVEL_OK;
}

/* A receiver that borrows keeps the sender waiting while it loads, so it borrows only where loading is a copy in memory:
 * no callbacks. */
static int may_borrow(const ravel_refit *refit) {
    return !refit->data && !(refit->transport && refit->transport->no_loans) && ravel__comm_lends(refit->comm) &&
           refit->sink && !refit->sink->load;
}

/* ---- payloads in device memory -------------------------------------------------------------------------- */

static ravel_status check_side(const ravel_refit *refit, const ravel__holding *holding, const char *what,
                               ravel_error *err) {
    const ravel_device *device = ravel_stream_device(ravel__comm_nccl_stream(refit->data));
    if (holding->count == 0) return RAVEL_OK;
    if (!holding->carrier)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the %s is in host memory, which cannot travel over nccl; ravel_comm_host gives the "
                               "communicator for it",
                               what);
    if (ravel__carrier_device(holding->carrier) == device) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "the %s is on another device than the NCCL communicator", what);
}

static ravel_status check_casts(const ravel_refit *refit, const ravel__stream *s, const ravel__holding *holding,
                                int unpack, ravel_error *err) {
    for (int64_t i = 0; i < s->slices; i++) {
        const ravel__slice *slice = &refit->plan.slices[s->first + i];
        const ravel__item *item = &holding->items[slice->item];
        if (ravel__payload_can(item->view.dtype, slice->dtype, unpack)) continue;
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "\"%s\": no kernel casts between %s and %s on the device",
                               item->name, ravel_dtype_name(item->view.dtype), ravel_dtype_name(slice->dtype));
    }
    return RAVEL_OK;
}

/* Whether this rank's part can go from device memory to device memory. */
static ravel_status check_apart(const ravel_refit *refit, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (refit->options.delta)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "delta leaves blocks out of frames in host memory: not over nccl");
    if (refit->source) status = check_side(refit, &refit->source_holding, "source", err);
    if (status == RAVEL_OK && refit->sink) status = check_side(refit, &refit->sink_holding, "sink", err);
    for (int32_t i = 0; i < refit->plan.out_count && status == RAVEL_OK; i++)
        status = check_casts(refit, &refit->plan.out[i], &refit->source_holding, 0, err);
    for (int32_t i = 0; i < refit->plan.in_count && status == RAVEL_OK; i++)
        status = check_casts(refit, &refit->plan.in[i], &refit->sink_holding, 1, err);
    return status;
}

static ravel_status make_payloads(ravel_refit *refit, ravel__pool *pool, ravel_error *err) {
    RAVEL_ASSERT(refit->data && !pool->device_block);
    ravel_stream *stream = ravel__comm_nccl_stream(refit->data);
    size_t bytes = ravel__round_up((size_t)refit->terms.buffer_bytes, RAVEL__FRAME_ALIGN);
    if (pool->count == 0) return RAVEL_OK;
    ravel_status status = ravel_device_alloc(ravel_stream_device(stream), RAVEL_DEVICE, bytes * (size_t)pool->count,
                                             stream, &pool->device_block, err);
    for (int32_t i = 0; i < pool->count && status == RAVEL_OK; i++)
        pool->slots[i].payload = (unsigned char *)pool->device_block + (size_t)i * bytes;
    return status;
}

static void free_payloads(ravel_refit *refit, ravel__pool *pool) {
    const ravel__carrier *carrier =
        refit->source_holding.carrier ? refit->source_holding.carrier : refit->sink_holding.carrier;
    RAVEL_ASSERT(!pool->device_block || carrier);
    if (pool->device_block) ravel_device_release(ravel__carrier_device(carrier), pool->device_block, NULL);
    pool->device_block = NULL;
}

static ravel_status make_streams(ravel_refit *refit, ravel_error *err) {
    const ravel_allocator *allocator = &refit->memory.allocator;
    size_t in = (size_t)refit->plan.in_count, out = (size_t)refit->plan.out_count;
    RAVEL_ASSERT(!refit->in_states && !refit->out_states && refit->comm);
    refit->in_states = ravel__calloc(allocator, in, sizeof *refit->in_states);
    refit->out_states = ravel__calloc(allocator, out, sizeof *refit->out_states);
    if ((in > 0 && !refit->in_states) || (out > 0 && !refit->out_states))
        return ravel__no_memory(err, 0, "the streams");
    ravel_status status = refit->data ? check_apart(refit, err) : RAVEL_OK;
    if (status == RAVEL_OK) status = ravel__packer_init(&refit->packer, refit, err);
    if (status == RAVEL_OK) status = ravel__loader_init(&refit->loader, refit, err);
    refit->borrows = may_borrow(refit);
    if (status == RAVEL_OK) status = make_pool(refit, &refit->out_pool, out > 0, 0, err);
    if (status == RAVEL_OK) status = make_pool(refit, &refit->in_pool, in > 0, refit->borrows, err);
    if (status == RAVEL_OK && refit->data) status = make_payloads(refit, &refit->out_pool, err);
    if (status == RAVEL_OK && refit->data) status = make_payloads(refit, &refit->in_pool, err);
    return status;
}

/* ---- threads -------------------------------------------------------------------------------------------- */

/* Threads that pack, and that load, on this rank. By default this rank's share of the cores; between processes one
 * thread of a rank moves the bytes, and two threads already pack or load faster than that. */
static int32_t choose_threads(const ravel_refit *refit, const ravel__hello *hellos) {
    enum { MOST_LENT = 8, MOST_WIRE = 2, CORES_MOST = 1024 };
    if (refit->transport && refit->transport->no_helpers) return 1;
    if (refit->options.threads > 0) return refit->options.threads;
    int32_t here = 0;
    for (int32_t r = 0; r < refit->ranks; r++) {
        if (hellos[r].host != refit->host) continue;
        here += ((hellos[r].roles & RAVEL__SOURCE) != 0) + ((hellos[r].roles & RAVEL__SINK) != 0);
    }
    int32_t most = ravel__comm_lends(refit->comm) ? MOST_LENT : MOST_WIRE;
    RAVEL_ASSERT(here <= 2 * refit->ranks);
    int32_t share = ravel__workers_default(CORES_MOST) / (here > 0 ? here : 1);
    return share < 1 ? 1 : share > most ? most : share;
}

/* ---- connect ------------------------------------------------------------------------------------------ */

static void count_sides(ravel_refit *refit, const ravel__hello *hellos, ravel__differences *list) {
    refit->senders = refit->receivers = 0;
    refit->root = -1;
    for (int32_t r = 0; r < refit->ranks; r++) {
        refit->roles[r] = (char)hellos[r].roles;
        if (hellos[r].roles & RAVEL__SOURCE) {
            if (refit->root < 0) refit->root = r;
            refit->senders++;
        }
        refit->receivers += (hellos[r].roles & RAVEL__SINK) != 0;
    }
    RAVEL_ASSERT(refit->senders <= refit->ranks && refit->receivers <= refit->ranks);
    RAVEL_ASSERT((refit->root >= 0) == (refit->senders > 0));
    if (refit->senders == 0) ravel__differences_add(list, "no rank has a source");
    if (refit->receivers == 0) ravel__differences_add(list, "no rank has a sink");
}

/* If any peer committed our prepared version, commit it too; otherwise drop it. */
static void resolve_doubt(ravel_refit *refit, const ravel__hello *hellos) {
    const ravel_refit_identity prepared = refit->stage.prepared;
    RAVEL_ASSERT(!refit->stage.active);
    int committed = 0;
    for (int32_t r = 0; r < refit->ranks; r++)
        committed |= prepared.version > 0 && ravel__identity_equal(hellos[r].held, prepared);
    ravel__stage_resolve(&refit->stage, committed);
}

/* Whether all ranks have the same plan: the least and the greatest digest are one. */
static ravel_status compare_plans(ravel_refit *refit, ravel_error *err) {
    RAVEL_ASSERT(refit->comm && refit->plan.slice_count >= 0);
    int64_t both[2] = {(int64_t)refit->plan.digest, ~(int64_t)refit->plan.digest};
    ravel_status status = ravel_comm_allreduce(refit->comm, both, both, 2, RAVEL_I64, RAVEL_MIN, err);
    if (status != RAVEL_OK) return lost(refit, status, err);
    if (both[0] == ~both[1]) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_MISMATCH,
                           "the ranks planned differently; do all run the same version of Ravel?");
}

static ravel_status plan_it(ravel_refit *refit, ravel__catalog *catalog, ravel__differences *list, ravel_error *err) {
    ravel__catalog_check(catalog, list);
    refit->terms = ravel__hello_terms(catalog->hellos, refit->ranks, ravel__catalog_stream_bytes(catalog));
    ravel__hello_afford(catalog->hellos, refit->ranks, &refit->terms, list);
    return ravel__refit_plan_make(catalog, refit->rank, refit->source ? &refit->source_holding : NULL,
                                  refit->sink ? &refit->sink_holding : NULL, refit->terms.buffer_bytes,
                                  &refit->memory.allocator, &refit->plan, list, err);
}

static ravel_status negotiate(ravel_refit *refit, const manifests *own, const ravel__hello *hellos, ravel_error *err) {
    const ravel__transport *t = refit->transport;
    ravel__differences list;
    ravel__catalog catalog;
    ravel__differences_init(&list, refit->options.logger);
    count_sides(refit, hellos, &list);
    refit->threads = choose_threads(refit, hellos);
    ravel__hello_compare(hellos, refit->ranks, &list);
    ravel_status status = ravel__catalog_init(&catalog, hellos, refit->ranks, &refit->memory.allocator, err);
    if (status != RAVEL_OK) return lost(refit, status, err);
    status = read_manifests(refit, own, &catalog, &list, err);
    if (status == RAVEL_OK) status = plan_it(refit, &catalog, &list, err);
    if (status == RAVEL_OK) status = ravel__differences_end(&list, err);
    ravel__catalog_free(&catalog);
    if (!refit->comm) return status;
    if (status == RAVEL_OK) status = make_streams(refit, err);
    ravel_status step = ravel__take_step(t, refit->comm, RAVEL__STEP_READY, err);
    if (step != RAVEL_OK) return lost(refit, step, err);
    status = ravel__refit_agree(refit, status, err);
    return status == RAVEL_OK ? compare_plans(refit, err) : status;
}

static ravel_status meet(ravel_refit *refit, ravel_status status, ravel_error *err) {
    size_t ranks = (size_t)refit->ranks, each = sizeof(ravel__hello) + RAVEL__HELLO_BYTES;
    const ravel_allocator *allocator = &refit->memory.allocator;
    manifests own = {0};
    ravel__hello *hellos = ravel__alloc(allocator, ranks * each);
    refit->roles = ravel__calloc(allocator, ranks, 1);
    if (!hellos || !refit->roles) {
        ravel__release(allocator, hellos, ranks * each);
        return lost(refit, ravel__no_memory(err, ranks * each, "the ranks' hellos"), err);
    }
    if (status == RAVEL_OK) status = encode_manifests(refit, &own, err);
    ravel__hello mine = make_hello(refit, status, err);
    for (int side = 0; side < 2; side++) {
        const unsigned char *bytes = own.bytes ? own.bytes + (side ? own.size[0] : 0) : NULL;
        mine.manifest_bytes[side] = (int64_t)own.size[side];
        mine.digest[side] = own.size[side] ? ravel__xxh3_of(bytes, own.size[side]) : 0;
    }
    status = exchange_hellos(refit, &mine, hellos, (unsigned char *)(hellos + ranks), err);
    if (status == RAVEL_OK) {
        resolve_doubt(refit, hellos);
        status = negotiate(refit, &own, hellos, err);
    }
    ravel__release(allocator, own.bytes, own.size[0] + own.size[1]);
    ravel__release(allocator, hellos, ranks * each);
    return status;
}

static void drop_streams(ravel_refit *refit) {
    RAVEL_ASSERT(!refit->comm && !refit->data); /* nothing may still write the buffers */
    const ravel_allocator *allocator = &refit->memory.allocator;
    ravel__packer_free(&refit->packer);
    ravel__loader_free(&refit->loader);
    free_payloads(refit, &refit->out_pool);
    free_payloads(refit, &refit->in_pool);
    ravel__release(allocator, refit->in_states, (size_t)refit->plan.in_count * sizeof *refit->in_states);
    ravel__release(allocator, refit->out_states, (size_t)refit->plan.out_count * sizeof *refit->out_states);
    refit->in_states = NULL;
    refit->out_states = NULL;
    ravel__refit_plan_free(&refit->plan);
    ravel__release(allocator, refit->roles, (size_t)refit->ranks);
    refit->roles = NULL;
}

void ravel__refit_free_buffers(ravel_refit *refit) {
    free_pool(refit, &refit->out_pool);
    free_pool(refit, &refit->in_pool);
}

void ravel__refit_disconnect(ravel_refit *refit) {
    ravel__refit_leave(refit, NULL, 0);
    drop_streams(refit);
}

ravel_status ravel__refit_connect(ravel_refit *refit, ravel_comm *comm, ravel_status status, ravel_error *err) {
    ravel_error failure = RAVEL_ERROR_INIT;
    ravel__refit_disconnect(refit);
    RAVEL_ASSERT(!refit->comm && !refit->in_states && !refit->out_states && !refit->roles);
    ravel_comm *host = ravel_comm_host(comm);
    ravel_status dup = ravel_comm_dup(host, &refit->comm, &failure);
    if (dup == RAVEL_OK && host != comm) dup = ravel_comm_dup(comm, &refit->data, &failure);
    if (dup != RAVEL_OK) {
        ravel__refit_leave(refit, &failure, 1);
        ravel_error_set(err, dup, "%s", failure.message);
        return dup;
    }
    ravel_comm_set_name(refit->comm, "refit");
    if (refit->options.timeout > 0) ravel_comm_set_timeout(refit->comm, refit->options.timeout);
    if (refit->options.timeout > 0 && refit->data) ravel_comm_set_timeout(refit->data, refit->options.timeout);
    refit->rank = ravel_comm_rank(refit->comm);
    refit->ranks = ravel_comm_size(refit->comm);
    RAVEL_ASSERT(refit->rank >= 0 && refit->rank < refit->ranks);
    status = meet(refit, status, err);
    if (status != RAVEL_OK) ravel__refit_disconnect(refit);
    return status;
}
