/* Connecting over one communicator: the ranks agree on everything before the first weight moves.
 *
 *     hello       agree, then all-gather, 160 bytes per rank: settings, sizes, digests, versions
 *     manifests   of the senders, to rank 0, which sends the directory of them to all
 *     plan        each receiver plans what it wants, as a generator of a publication does
 *     terms       all-reduce: bytes, and which tensors move; a difference on any rank is an error on every rank
 *     streams     receivers ask their senders
 *     buffers
 *     ready       all-reduce: is every rank ready? */
#include "refit/session/session.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "comm/agree.h"
#include "comm/nccl_comm.h"
#include "base/bytes.h"
#include "base/system/team.h"
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
    ravel__refit_give_all_back(refit);
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

ravel_status ravel__refit_gather(ravel_refit *refit, int32_t step, void *mine, void *all, size_t bytes,
                                 const char *what, ravel_error *err) {
    const uint64_t sum = ravel__sum_of(mine, bytes);
    ravel_error failure = RAVEL_ERROR_INIT;
    memcpy(mine, &sum, sizeof sum);
    ravel_status status = ravel__take_step(refit->transport, refit->comm, step, &failure);
    if (status == RAVEL_OK)
        status = ravel__allgather(refit->transport, refit->comm, mine, all, (int64_t)bytes, &failure);
    if (status != RAVEL_OK) {
        if (err) *err = failure;
        return lost(refit, status, err);
    }
    for (int32_t r = 0; r < refit->ranks && status == RAVEL_OK; r++) {
        const unsigned char *theirs = (const unsigned char *)all + (size_t)r * bytes;
        if (ravel__get64(theirs) != ravel__sum_of(theirs, bytes))
            status = ravel_error_set(err, RAVEL_E_CHECKSUM, "the %s of rank %d arrived changed", what, r);
    }
    return status;
}

/* The rank's manifests, of source and sink, in memory of the allocator. */
typedef struct manifests {
    unsigned char *bytes[2];
    size_t size[2];
} manifests;

static ravel_status encode_manifests(const ravel_refit *refit, manifests *m, ravel_error *err) {
    const ravel_allocator *allocator = &refit->memory.allocator;
    ravel_status status = RAVEL_OK;
    if (refit->source)
        status = ravel__manifest_make(&refit->source_holding, -1, allocator, &m->bytes[0], &m->size[0], err);
    if (status == RAVEL_OK && refit->sink)
        status = ravel__manifest_make(&refit->sink_holding, -1, allocator, &m->bytes[1], &m->size[1], err);
    return status;
}

static ravel__hello make_hello(const ravel_refit *refit, const manifests *own) {
    const ravel_refit_options *o = &refit->options;
    ravel__hello h = {.cast = o->cast, .delta = o->delta, .ignore_extra = o->ignore_extra};
    h.settings = refit->settings;
    h.host = refit->host;
    h.roles = (refit->source ? RAVEL__SOURCE : 0) | (refit->sink ? RAVEL__SINK : 0);
    h.sequential = refit->source && refit->source->iterate;
    h.reads_live = ravel__stage_patches(&refit->stage);
    h.held = refit->stage.held;
    h.prepared = refit->stage.prepared;
    for (int side = 0; side < 2; side++) {
        h.manifest_bytes[side] = (int64_t)own->size[side];
        h.digest[side] = own->size[side] ? ravel__xxh3_of(own->bytes[side], own->size[side]) : 0;
    }
    ravel__hello_seal(&h);
    return h;
}

static ravel_status exchange_hellos(ravel_refit *refit, const manifests *own, ravel__hello *hellos, ravel_error *err) {
    ravel__hello mine = make_hello(refit, own);
    ravel_status status = ravel__refit_gather(refit, RAVEL__REFIT_STEP_HELLO, &mine, hellos, sizeof mine, "hello", err);
    for (int32_t r = 0; r < refit->ranks && status == RAVEL_OK; r++) {
        status = ravel__hello_check(&hellos[r], err);
        if (status != RAVEL_OK) ravel_error_prefix(err, "rank %d", r);
    }
    return status;
}

/* ---- manifests ------------------------------------------------------------------------------------------ */

/* The directory of all senders, which are numbered by their ranks. A failure ends the communicator. */
static ravel_status read_manifests(ravel_refit *refit, const manifests *own, const ravel__hello *hellos,
                                   ravel__directory *directory, ravel__differences *list, ravel_error *err) {
    const ravel_allocator *allocator = &refit->memory.allocator;
    size_t ranks = (size_t)refit->ranks, size = 0;
    unsigned char *bytes = NULL;
    ravel__sender *senders = ravel__calloc(allocator, ranks, sizeof *senders);
    ravel_status status = senders ? RAVEL_OK : ravel__no_memory(err, ranks * sizeof *senders, "the senders");
    for (size_t r = 0; r < ranks && status == RAVEL_OK; r++)
        senders[r] = (ravel__sender){hellos[r].host, hellos[r].digest[0], hellos[r].manifest_bytes[0], 0, ""};
    if (status == RAVEL_OK) status = ravel__take_step(refit->transport, refit->comm, RAVEL__REFIT_STEP_MANIFEST, err);
    if (status == RAVEL_OK)
        status = ravel__directory_share(refit->comm, senders, own->bytes[0], allocator, list, &bytes, &size, err);
    ravel__release(allocator, senders, ranks * sizeof *senders);
    if (status == RAVEL_OK) status = ravel__directory_decode(bytes, size, allocator, directory, err);
    ravel__release(allocator, bytes, bytes ? size : 0);
    return status == RAVEL_OK ? RAVEL_OK : lost(refit, status, err);
}

/* ---- buffers -------------------------------------------------------------------------------------------- */

static void free_pool(ravel_refit *refit, ravel__buffers *pool) {
    ravel__release(&refit->memory.allocator, pool->block, pool->block_bytes);
    ravel__release(&refit->memory.allocator, pool->slots, (size_t)pool->count * sizeof *pool->slots);
    *pool = (ravel__buffers){0};
}

/* N slots, each with a head and, unless payloads are elsewhere, room for them: together B bytes. Existing ones of this
 * size are kept. */
static ravel_status make_pool(ravel_refit *refit, ravel__buffers *pool, int wanted, int elsewhere, ravel_error *err) {
    size_t bytes = ravel__frame_align(elsewhere ? refit->head_bytes : (size_t)refit->terms.buffer_bytes);
    int32_t count = wanted ? refit->terms.num_buffers : 0;
    RAVEL_ASSERT(bytes >= refit->head_bytes && count >= 0);
    if (pool->count != count || pool->bytes != bytes) {
        free_pool(refit, pool);
        if (count == 0) return RAVEL_OK;
        size_t need = bytes * (size_t)count + RAVEL__FRAME_ALIGN;
        pool->count = count;
        pool->bytes = bytes;
        pool->slots = ravel__calloc(&refit->memory.allocator, (size_t)count, sizeof *pool->slots);
        pool->block = pool->slots ? ravel__alloc(&refit->memory.allocator, need) : NULL;
        pool->block_bytes = pool->block ? need : 0;
        if (!pool->block) {
            free_pool(refit, pool);
            return ravel__no_memory(err, need, "the refit buffers");
        }
    }
    unsigned char *first = pool->block;
    if (count > 0) first += (RAVEL__FRAME_ALIGN - (uintptr_t)first % RAVEL__FRAME_ALIGN) % RAVEL__FRAME_ALIGN;
    for (int32_t i = 0; i < count; i++) {
        unsigned char *at = first + (size_t)i * bytes;
        pool->slots[i] = (ravel__refit_buffer){.head = (ravel__frame *)(void *)at};
        if (!elsewhere) pool->slots[i].buffer = at + refit->head_bytes;
    }
    return RAVEL_OK;
}

/* A receiver that borrows keeps the sender waiting while it loads, so it borrows only if loading is a copy in
 * memory: no callbacks. */
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

static ravel_status check_cast(const ravel__item *item, int32_t dtype, ravel_error *err) {
    if (ravel__casts_can(item->view.dtype, dtype)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "\"%s\": no kernel casts between %s and %s on the device",
                           item->name, ravel_dtype_name(item->view.dtype), ravel_dtype_name(dtype));
}

/* Whether this rank's part can go from device memory to device memory. */
static ravel_status check_apart(const ravel_refit *refit, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    if (refit->options.delta)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "delta compares blocks in host memory: not over nccl");
    if (refit->source) status = check_side(refit, &refit->source_holding, "source", err);
    if (status == RAVEL_OK && refit->sink) status = check_side(refit, &refit->sink_holding, "sink", err);
    for (int32_t i = 0; i < refit->streams.out_count; i++) {
        const ravel__stream *s = &refit->streams.out[i];
        for (int64_t k = 0; k < s->count && status == RAVEL_OK; k++)
            status = check_cast(&refit->source_holding.items[s->asked[k].item], s->asked[k].dtype, err);
    }
    for (int64_t i = 0; i < refit->plan.want_count && status == RAVEL_OK; i++) {
        int32_t item = refit->plan.wants[i].item;
        status = check_cast(&refit->sink_holding.items[item], refit->plan.dtypes[item], err);
    }
    return status;
}

static ravel_status make_payloads(ravel_refit *refit, ravel__buffers *pool, ravel_error *err) {
    RAVEL_ASSERT(refit->data && !pool->device_block);
    ravel_stream *stream = ravel__comm_nccl_stream(refit->data);
    size_t bytes = ravel__frame_capacity(refit);
    if (pool->count == 0) return RAVEL_OK;
    ravel_status status = ravel_device_alloc(ravel_stream_device(stream), RAVEL_DEVICE, bytes * (size_t)pool->count,
                                             stream, &pool->device_block, err);
    for (int32_t i = 0; i < pool->count && status == RAVEL_OK; i++)
        pool->slots[i].buffer = (unsigned char *)pool->device_block + (size_t)i * bytes;
    return status;
}

static void free_payloads(ravel_refit *refit, ravel__buffers *pool) {
    const ravel__carrier *carrier =
        refit->source_holding.carrier ? refit->source_holding.carrier : refit->sink_holding.carrier;
    RAVEL_ASSERT(!pool->device_block || carrier);
    if (pool->device_block) ravel_device_release(ravel__carrier_device(carrier), pool->device_block, NULL);
    pool->device_block = NULL;
}

static ravel_status make_streams(ravel_refit *refit, ravel_error *err) {
    const ravel_allocator *allocator = &refit->memory.allocator;
    size_t in = (size_t)refit->streams.in_count, out = (size_t)refit->streams.out_count;
    RAVEL_ASSERT(!refit->in_states && !refit->out_states && refit->comm);
    refit->in_states = ravel__calloc(allocator, in, sizeof *refit->in_states);
    refit->out_states = ravel__calloc(allocator, out, sizeof *refit->out_states);
    if ((in > 0 && !refit->in_states) || (out > 0 && !refit->out_states))
        return ravel__no_memory(err, 0, "the streams");
    ravel_status status = refit->data ? check_apart(refit, err) : RAVEL_OK;
    if (status == RAVEL_OK) status = ravel__packer_init(&refit->packer, refit, err);
    if (status == RAVEL_OK) status = ravel__loader_init(&refit->loader, refit, err);
    refit->borrows = may_borrow(refit);
    int apart = refit->data != NULL;
    if (status == RAVEL_OK) status = make_pool(refit, &refit->out_pool, out > 0, apart, err);
    if (status == RAVEL_OK) status = make_pool(refit, &refit->in_pool, in > 0, apart || refit->borrows, err);
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
    int32_t share = ravel__processors(CORES_MOST) / (here > 0 ? here : 1);
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

/* What the ranks find out together. */
typedef struct finding {
    ravel__groups groups;
    ravel__directory directory;
    char *moves;  /* [directory.count]: 1 where any receiver wants the tensor */
    int64_t most; /* bytes of the receiver that takes most */
} finding;

static void free_finding(const ravel_refit *refit, finding *f) {
    ravel__release(&refit->memory.allocator, f->moves, f->moves ? (size_t)f->directory.count + 1 : 0);
    ravel__directory_free(&f->directory);
    ravel__groups_free(&f->groups);
}

/* This rank's own plan. */
static ravel_status plan_wants(ravel_refit *refit, const ravel__hello *hellos, finding *f, ravel__differences *list,
                               ravel_error *err) {
    char who[48];
    ravel__refit_plan_place place = ravel__groups_place(&f->groups, hellos, refit->rank);
    (void)snprintf(who, sizeof who, "rank %d (receiver)", refit->rank);
    place.who = who;
    ravel_status status = ravel__refit_plan_make(&f->directory, &refit->sink_holding, &place, &refit->memory.allocator,
                                                 &refit->plan, list, err);
    /* A tensor that differs is wanted, too: it is no further difference that nobody takes it. */
    for (int64_t i = 0; i < refit->sink_holding.count; i++) {
        int64_t tensor = ravel__names_find(&f->directory.names, refit->sink_holding.items[i].name);
        if (tensor >= 0) f->moves[tensor] = 1;
    }
    return status;
}

static void list_extras(const ravel_refit *refit, const finding *f, ravel__differences *list) {
    const ravel__directory *d = &f->directory;
    for (int64_t i = 0; i < d->count && !refit->options.ignore_extra; i++)
        if (!f->moves[i])
            ravel__differences_add(list, "\"%s\": rank %d (sender) has it, no receiver wants it", d->tensors[i].name,
                                   ravel__cut_first(&d->cuts[d->tensors[i].cut]));
}

/* Collective: every receiver plans, and all ranks learn which tensors move and how much. `mine`: how it went here. */
static ravel_status plan_together(ravel_refit *refit, const ravel__hello *hellos, finding *f, ravel__differences *list,
                                  ravel_status *mine, ravel_error *err) {
    size_t room = (size_t)f->directory.count + 1;
    ravel_status status =
        ravel__groups_make(hellos, refit->ranks, refit->rank, &refit->memory.allocator, &f->groups, err);
    f->moves = status == RAVEL_OK ? ravel__calloc(&refit->memory.allocator, room, 1) : NULL;
    if (status == RAVEL_OK && !f->moves) status = ravel__no_memory(err, room, "the tensors that move");
    if (status != RAVEL_OK) return lost(refit, status, err);
    *mine = refit->sink ? plan_wants(refit, hellos, f, list, err) : RAVEL_OK;
    ravel_error failure = RAVEL_ERROR_INIT;
    f->most = refit->plan.bytes;
    status = ravel_comm_allreduce(refit->comm, f->moves, f->moves, (int64_t)room, RAVEL_U8, RAVEL_MAX, &failure);
    if (status == RAVEL_OK)
        status = ravel_comm_allreduce(refit->comm, &f->most, &f->most, 1, RAVEL_I64, RAVEL_MAX, &failure);
    if (status == RAVEL_OK) {
        list_extras(refit, f, list);
        refit->terms =
            ravel__hello_terms(hellos, refit->ranks, ravel_comm_kind(refit->data ? refit->data : refit->comm), f->most);
        refit->head_bytes = ravel__frame_head_bytes(refit->terms.buffer_bytes);
        ravel__hello_afford(hellos, refit->ranks, &refit->terms, list);
        status = ravel__differences_share(list, refit->comm, &failure);
    }
    if (status == RAVEL_OK) return RAVEL_OK;
    if (err) *err = failure;
    return lost(refit, status, err);
}

static ravel_status ask_senders(ravel_refit *refit, const ravel__hello *hellos, const finding *f, ravel_error *err) {
    ravel__streams_from from = {.comm = refit->comm, .hellos = hellos, .groups = &f->groups, .moves = f->moves};
    from.directory = &f->directory;
    from.source = refit->source ? &refit->source_holding : NULL;
    from.sink = refit->sink ? &refit->sink_holding : NULL;
    from.plan = refit->sink ? &refit->plan : NULL;
    from.buffer_bytes = refit->terms.buffer_bytes;
    ravel_status status = ravel__streams_make(&from, &refit->memory.allocator, &refit->streams, err);
    return status == RAVEL_OK ? RAVEL_OK : lost(refit, status, err);
}

static ravel_status settle(ravel_refit *refit, const manifests *own, const ravel__hello *hellos, finding *f,
                           ravel_error *err) {
    ravel__differences list;
    ravel_status mine = RAVEL_OK;
    ravel__differences_init(&list, refit->options.logger);
    count_sides(refit, hellos, &list);
    refit->threads = choose_threads(refit, hellos);
    ravel__hello_compare(hellos, refit->ranks, &list);
    ravel_status status = read_manifests(refit, own, hellos, &f->directory, &list, err);
    if (status == RAVEL_OK) status = plan_together(refit, hellos, f, &list, &mine, err);
    if (status != RAVEL_OK) return status;
    if (mine == RAVEL_OK) mine = ravel__differences_end(&list, err);
    return ravel__refit_agree(refit, mine, err);
}

static ravel_status negotiate(ravel_refit *refit, const manifests *own, const ravel__hello *hellos, ravel_error *err) {
    finding f = {0};
    ravel_status status = settle(refit, own, hellos, &f, err);
    if (status == RAVEL_OK) status = ask_senders(refit, hellos, &f, err);
    if (status == RAVEL_OK) {
        status = make_streams(refit, err);
        ravel_status step = ravel__take_step(refit->transport, refit->comm, RAVEL__REFIT_STEP_READY, err);
        status = step == RAVEL_OK ? ravel__refit_agree(refit, status, err) : lost(refit, step, err);
    }
    free_finding(refit, &f);
    return status;
}

static ravel_status meet(ravel_refit *refit, ravel_status status, ravel_error *err) {
    size_t ranks = (size_t)refit->ranks, each = sizeof(ravel__hello);
    const ravel_allocator *allocator = &refit->memory.allocator;
    manifests own = {0};
    ravel__hello *hellos = ravel__alloc(allocator, ranks * each);
    refit->roles = ravel__calloc(allocator, ranks, 1);
    ravel_comm *buffers = refit->data ? refit->data : refit->comm;
    if (status == RAVEL_OK && (!hellos || !refit->roles))
        status = ravel__no_memory(err, ranks * each, "the ranks' hellos");
    if (status == RAVEL_OK)
        status = ravel__settings_take(&refit->options, ravel__buffer_memory(buffers), &refit->settings, err);
    if (status == RAVEL_OK) status = encode_manifests(refit, &own, err);
    status = ravel__refit_agree(refit, status, err);
    RAVEL_ASSERT(status != RAVEL_OK || (hellos && refit->roles));
    if (status == RAVEL_OK) status = exchange_hellos(refit, &own, hellos, err);
    if (status == RAVEL_OK) {
        resolve_doubt(refit, hellos);
        status = negotiate(refit, &own, hellos, err);
    }
    for (int side = 0; side < 2; side++) ravel__release(allocator, own.bytes[side], own.size[side]);
    ravel__release(allocator, hellos, hellos ? ranks * each : 0);
    return status;
}

static void drop_streams(ravel_refit *refit) {
    RAVEL_ASSERT(!refit->comm && !refit->data); /* nothing may still write the buffers */
    const ravel_allocator *allocator = &refit->memory.allocator;
    ravel__packer_free(&refit->packer);
    ravel__loader_free(&refit->loader);
    free_payloads(refit, &refit->out_pool);
    free_payloads(refit, &refit->in_pool);
    ravel__release(allocator, refit->in_states, (size_t)refit->streams.in_count * sizeof *refit->in_states);
    ravel__release(allocator, refit->out_states, (size_t)refit->streams.out_count * sizeof *refit->out_states);
    refit->in_states = NULL;
    refit->out_states = NULL;
    ravel__streams_free(&refit->streams);
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
