/* owners = root-only: rank 0 has all samples. For every dp rank, cp rank and stage with data it packs that stage's
 * shards into one of two buffers and sends them, packing the next while the last is on its way:
 *
 *     buffer 0   pack (dp 0, cp 1, stage 0)  send ......................  pack (dp 0, cp 1, stage 2)  send
 *     buffer 1                               pack (dp 0, cp 0, stage 2)  send ......................
 *
 * The layout of a buffer is that of the receiver's shared part, which both work out from the same sizes. */
#include "feed/pack.h"

#include "base/assert.h"

#include <string.h>

enum { TAG_SHARDS = 1, BUFFERS = 2 };

/* The micro-batches of one dp rank: sizes, and tables of places. */
typedef struct outgoing {
    ravel_thd *thds; /* [micro_steps] */
    void **tables;   /* [micro_steps][field] */
    char *buffers[BUFFERS];
    size_t room; /* of a buffer */
    ravel_request *requests[BUFFERS];
    int64_t turn;
} outgoing;

/* The samples of a dp rank in a micro-step, and the packing options of its cp rank `cp`. */
static ravel_bin bin_of(const ravel_feed *feed, int64_t step, int32_t dp, int32_t cp, ravel_thd_options *options) {
    ravel_group group = ravel_plan_group(&feed->work.routed, step, dp);
    *options = ravel__bin_thd(feed, feed->work.routed.shared && group.count, group.width,
                              feed->plan.cp_pool ? dp - group.first : cp);
    return (ravel_bin){group.samples, group.count};
}

static ravel_status measure(ravel_feed *feed, int32_t dp, outgoing *out, ravel_error *err) {
    const ravel_plan *plan = &feed->work.routed;
    ravel_status status = RAVEL_OK;
    for (int64_t s = 0; s < plan->micro_steps && !status; s++) {
        ravel_thd_options options;
        ravel_bin bin = bin_of(feed, s, dp, 0, &options);
        out->thds[s] = (ravel_thd){.size = sizeof(ravel_thd)};
        status = ravel_thd_measure(&feed->work.mine->ragged, &bin, &options, &out->thds[s], err);
        out->thds[s].fields = out->tables + s * feed->fields.count;
    }
    return status;
}

/* Bytes of a shared part; sets the places where base is not NULL. */
static size_t place(const ravel_feed *feed, int32_t roles, char *base, outgoing *out) {
    ravel__cutter cutter = ravel__cutter_begin(base);
    size_t begin = cutter.used;
    for (int64_t s = 0; s < feed->work.routed.micro_steps; s++)
        ravel__place_fields(&feed->fields, roles, &out->thds[s], &cutter);
    return cutter.used == SIZE_MAX ? SIZE_MAX : cutter.used - begin;
}

/* Where the index of `outgoing` and its buffers lie in feed->work.staging. */
static ravel_status lay_out(ravel_feed *feed, size_t room, outgoing *out, ravel_error *err) {
    int64_t steps = feed->work.routed.micro_steps;
    size_t thds = ravel__round_up((size_t)steps * sizeof *out->thds, 16);
    size_t tables = ravel__round_up((size_t)(steps * feed->fields.count) * sizeof *out->tables, 16);
    size_t need = thds + tables + BUFFERS * room + (BUFFERS + 1) * RAVEL__PIECE_ALIGN;
    ravel_status status =
        ravel__buffer_reserve(&feed->work.staging, feed->allocator, (int64_t)need, 1, "shards to send", err);
    if (status) return status;
    char *at = feed->work.staging.at;
    out->thds = (ravel_thd *)(void *)at;
    out->tables = (void **)(void *)(at + thds);
    at += thds + tables;
    for (int i = 0; i < BUFFERS; i++) {
        at += (RAVEL__PIECE_ALIGN - (uintptr_t)at % RAVEL__PIECE_ALIGN) % RAVEL__PIECE_ALIGN;
        out->buffers[i] = at;
        at += room;
    }
    out->room = room;
    RAVEL_ASSERT(at <= (char *)feed->work.staging.at + feed->work.staging.room);
    return RAVEL_OK;
}

static int is_self(const ravel_feed *feed, int32_t dp, int32_t cp, int32_t pp) {
    return dp == feed->place.at.dp && cp == feed->place.at.cp && pp == feed->place.at.pp;
}

/* The largest shared part of any receiver, so that buffers can be made before the agreement. */
ravel_status ravel__root_reserve(ravel_feed *feed, ravel_error *err) {
    RAVEL_ASSERT(feed->options.owners == RAVEL_OWNERS_ROOT_ONLY && feed->place.owner);
    const ravel_ragged *mine = &feed->work.mine->ragged;
    outgoing out = {0};
    size_t room = 0;
    ravel_status status = ravel__weights_reserve(feed, mine->count, mine->count ? mine->offsets[mine->count] : 0, err);
    if (!status) status = lay_out(feed, 0, &out, err);
    for (int32_t dp = 0; dp < feed->plan.dp && !status; dp++) {
        status = measure(feed, dp, &out, err);
        for (int32_t p = 0; p < feed->place.layout.sizes[3] && !status; p++) {
            size_t bytes = place(feed, feed->place.stage_roles[p], NULL, &out);
            if (bytes == SIZE_MAX) return ravel__no_memory(err, bytes, "shards to send");
            if (bytes > room) room = bytes;
        }
    }
    return status ? status : lay_out(feed, room, &out, err);
}

static ravel_status fill_weights(ravel_feed *feed, const ravel_meta *meta, const ravel__pack_input *input,
                                 ravel_error *err) {
    const ravel_plan *plan = &feed->work.routed;
    const ravel_field *mask = feed->fields.mask >= 0 ? &input->fields[feed->fields.mask] : NULL;
    const ravel_ragged store = ravel__fields_to_weigh(&feed->fields, input->store);
    ravel_status status = RAVEL_OK;
    for (int64_t u = 0; u < plan->updates; u++) {
        ravel_weights_options options = ravel__weights_of(feed, meta, u);
        for (int64_t s = plan->update_offsets[u]; s < plan->update_offsets[u + 1]; s++)
            for (int64_t b = s * plan->dp; b < (s + 1) * plan->dp && !status; b++) { /* each sample once */
                ravel_bin bin = {plan->samples + plan->bin_offsets[b], plan->bin_offsets[b + 1] - plan->bin_offsets[b]};
                if (bin.count)
                    status = ravel_weights_fill(&store, &bin, mask, input->sample_weights, &meta->loss_counts[u],
                                                &options, RAVEL_F32, input->weights, err);
            }
    }
    return status;
}

/* Packs the micro-batches of one dp rank, for one cp rank, into the places of `out`. */
static ravel_status pack(ravel_feed *feed, const ravel__pack_input *input, int32_t dp, int32_t cp, const outgoing *out,
                         ravel_error *err) {
    ravel_ragged store = *input->store;
    ravel_thd_options options;
    ravel_status status = RAVEL_OK;
    store.fields = input->fields;
    store.field_count = feed->fields.count;
    for (int64_t s = 0; s < feed->work.routed.micro_steps && !status; s++) {
        ravel_bin bin = bin_of(feed, s, dp, cp, &options);
        status = ravel_thd_pack(&store, &bin, &options, &out->thds[s], err);
    }
    return status;
}

static ravel_status send_one(ravel_feed *feed, ravel__prepared *slot, const ravel__pack_input *input,
                             ravel_mesh_coord to, outgoing *out, ravel_error *err) {
    RAVEL_ASSERT(!is_self(feed, to.dp, to.cp, to.pp) && to.tp == 0);
    int64_t k = out->turn++ % BUFFERS;
    ravel_status status = ravel_request_wait(out->requests[k], err);
    out->requests[k] = NULL;
    if (status) return status;
    size_t bytes = place(feed, feed->place.stage_roles[to.pp], out->buffers[k], out);
    RAVEL_ASSERT(bytes <= out->room); /* room for the largest was made before the agreement */
    status = pack(feed, input, to.dp, to.cp, out, err);
    if (status) return status;
    slot->update.sent_bytes += (int64_t)bytes;
    for (int64_t s = 0; s < feed->work.routed.micro_steps; s++)
        slot->update.needed_bytes += ravel__element_bytes(&feed->fields, feed->place.stage_roles[to.pp], &out->thds[s]);
    return ravel_comm_isend(feed->place.world, out->buffers[k], (int64_t)bytes, RAVEL_U8,
                            ravel_mesh_rank_at(&feed->place.layout, to), TAG_SHARDS, &out->requests[k], err);
}

/* The root's own arrays: the same packing, into the slot. */
static ravel_status keep_own(ravel_feed *feed, ravel__prepared *slot, const ravel__pack_input *input, outgoing *out,
                             ravel_error *err) {
    RAVEL_ASSERT(slot->shared);
    (void)place(feed, feed->place.have, slot->shared, out);
    return pack(feed, input, feed->place.at.dp, feed->place.at.cp, out, err);
}

static ravel_status send_all(ravel_feed *feed, ravel__prepared *slot, const ravel__pack_input *input, outgoing *out,
                             ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int32_t dp = 0; dp < feed->plan.dp && !status; dp++) {
        status = measure(feed, dp, out, err);
        for (int32_t p = 0; p < feed->place.layout.sizes[3]; p++)
            for (int32_t cp = 0; cp < feed->place.layout.sizes[1] && feed->place.stage_roles[p] && !status; cp++) {
                ravel_mesh_coord to = {0, cp, dp, p};
                status = is_self(feed, dp, cp, p) ? keep_own(feed, slot, input, out, err)
                                                  : send_one(feed, slot, input, to, out, err);
            }
    }
    return status;
}

ravel_status ravel__root_send(ravel_feed *feed, ravel__prepared *slot, ravel_error *err) {
    RAVEL_ASSERT(feed->place.owner && feed->work.mine);
    ravel__pack_input input;
    outgoing out = {0};
    size_t steps = (size_t)feed->work.routed.micro_steps, thds = ravel__round_up(steps * sizeof *out.thds, 16);
    size_t tables = ravel__round_up(steps * (size_t)feed->fields.count * sizeof *out.tables, 16);
    size_t room = (feed->work.staging.room - thds - tables - (BUFFERS + 1) * RAVEL__PIECE_ALIGN) / BUFFERS;
    ravel_status status = lay_out(feed, room / RAVEL__PIECE_ALIGN * RAVEL__PIECE_ALIGN, &out, err);
    if (status) return status;
    ravel__pack_input_init(feed, &feed->work.mine->ragged, NULL, &input);
    if (feed->place.weighs) {
        ravel__pack_input_weigh(feed, &input);
        status = fill_weights(feed, &slot->meta, &input, err);
    }
    if (!status) status = send_all(feed, slot, &input, &out, err);
    for (int k = 0; k < BUFFERS; k++) {
        ravel_status sent = ravel_request_wait(out.requests[k], status ? NULL : err);
        if (!status) status = sent;
    }
    return status;
}
