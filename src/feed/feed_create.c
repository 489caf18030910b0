/* Making a feed: each rank's own checks, the agreement of all ranks, and the feed's own communicators.
 *
 *     each rank    options on this mesh, fields of its source, memory
 *     all          agree (status, digest of the options), on the mesh's communicator
 *                  a communicator and a mesh of the feed's own
 *                  which chunks ask for tokens; the fields and the number of rows, from rank 0, which is always an owner
 *                  agree (status, digest of the owners' sources)
 */
#include "comm/agree.h"
#include "feed/feed.h"

#include "base/assert.h"
#include "feed/source/order.h"
#include "base/hash.h"
#include "base/log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The fields of the samples as they go over the wire. */
typedef struct field_record {
    char name[RAVEL__NAME_BYTES];
    int64_t kind, dtype, width;
    double pad;
} field_record;

typedef struct field_message {
    int64_t count, rows, by_rows;
    field_record fields[RAVEL__FIELDS_MAX];
} field_message;

/* ---- each rank ------------------------------------------------------------------------------------------ */

static int reads(const ravel_feed *feed) {
    switch ((ravel_owners)feed->options.owners) {
    case RAVEL_OWNERS_EVERY_RANK: return 1;
    case RAVEL_OWNERS_ROOT_ONLY:
        return feed->place.at.tp + feed->place.at.cp + feed->place.at.dp + feed->place.at.pp == 0;
    case RAVEL_OWNERS_TP0_FIRST_LAST:
    default:
        return feed->place.at.tp == 0 &&
               (feed->place.at.pp == 0 || feed->place.at.pp == feed->place.layout.sizes[3] - 1);
    }
}

static ravel_status take_fields(ravel_feed *feed, const ravel_source *source, const ravel_feed_options *options,
                                ravel_error *err) {
    if (!source && !options->fields)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "this rank reads samples (owners) and has no source, and no fields of submitted ones");
    feed->source = source;
    feed->by_rows = source != NULL;
    feed->order.count = source ? ravel_source_count(source) : 0;
    ravel_status status = source ? ravel__order_check(&feed->order, err) : RAVEL_OK;
    if (!status)
        status = source ? ravel__fields_init(&feed->fields, ravel_source_fields(source),
                                             ravel_source_field_count(source), options, err)
                        : ravel__fields_init(&feed->fields, options->fields, options->field_count, options, err);
    if (!status && source) status = ravel_reader_create(source, feed->allocator, feed->logger, &feed->reader, err);
    return status;
}

static ravel_status make_room(ravel_feed *feed, ravel_error *err) {
    RAVEL_ASSERT(feed->place.layout.sizes[3] > 0 && !feed->place.stage_roles);
    size_t stages = (size_t)feed->place.layout.sizes[3];
    feed->place.stage_roles = ravel__calloc(feed->allocator, 2 * stages, sizeof *feed->place.stage_roles);
    if (!feed->place.stage_roles) return ravel__no_memory(err, 2 * stages * sizeof *feed->place.stage_roles, "a feed");
    feed->place.stage_asks = feed->place.stage_roles + stages;
    ravel_status status = ravel__buffer_reserve(&feed->work.columns.ranks, feed->allocator, feed->place.layout.sizes[2],
                                                sizeof(int64_t), "the counts of ranks", err);
    if (status) return status;
    feed->work.columns.counts = feed->work.columns.ranks.at;
    /* which chunks ask, one word per rank */
    return ravel__buffer_reserve(&feed->work.rows, feed->allocator, feed->place.layout.ranks, sizeof(uint64_t),
                                 "a feed", err);
}

static ravel_status init(ravel_feed *feed, const ravel_mesh *mesh, const ravel_source *source,
                         const ravel_feed_options *options, ravel_error *err) {
    feed->place.layout = *ravel_mesh_get_layout(mesh);
    feed->place.at = ravel_mesh_coords(mesh);
    feed->consumer.current = -1;
    ravel_status status = ravel__feed_resolve(feed, options, err);
    if (status) return status;
    for (int32_t i = 0; i < RAVEL__SLOTS; i++) feed->slots[i].words.allocator = feed->allocator;
    if (feed->thd.cp > 1) feed->thd.cp_rank = feed->place.at.cp;
    feed->place.owner = reads(feed);
    if (feed->place.owner) status = take_fields(feed, source, options, err);
    return status ? status : make_room(feed, err);
}

/* ---- communicators -------------------------------------------------------------------------------------- */

static ravel_status make_mesh(ravel_feed *feed, ravel_mesh *mesh, ravel_error *err) {
    RAVEL_ASSERT(!feed->place.world && !feed->place.mesh);
    static const char *const names[] = {"tp", "cp", "dp", "pp"};
    const ravel_mesh_layout *l = &feed->place.layout;
    char order[16];
    ravel_mesh_options options;
    ravel_mesh_options_default(&options);
    (void)snprintf(order, sizeof order, "%s-%s-%s-%s", names[l->order[0]], names[l->order[1]], names[l->order[2]],
                   names[l->order[3]]);
    options.tp = l->sizes[0];
    options.cp = l->sizes[1];
    options.dp = l->sizes[2];
    options.pp = l->sizes[3];
    options.vpp = l->vpp;
    options.order = order;
    ravel_status status = ravel_comm_dup(ravel_mesh_world(mesh), &feed->place.world, err);
    if (!status) status = ravel_mesh_create(feed->place.world, &options, &feed->place.mesh, err);
    if (status) return status;
    ravel_comm_set_name(feed->place.world, "feed");
    feed->place.tp = ravel_mesh_comm(feed->place.mesh, RAVEL_AXIS_TP);
    feed->place.dp = ravel_mesh_comm(feed->place.mesh, RAVEL_AXIS_DP);
    feed->place.pp = ravel_mesh_comm(feed->place.mesh, RAVEL_AXIS_PP);
    return RAVEL_OK;
}

/* ---- fields per part of the model ----
---------------------------------------------------------------------------------- */

/* The asks of all ranks, or-ed per stage; and from them the roles of this rank's chunks and of every stage. */
static ravel_status find_roles(ravel_feed *feed, ravel_error *err) {
    uint64_t *asks = feed->work.rows.at, mine = feed->options.ask;
    RAVEL_ASSERT(feed->work.rows.room >= (size_t)feed->place.layout.ranks * sizeof *asks &&
                 feed->place.layout.vpp <= 64);
    int32_t stages = feed->place.layout.sizes[3], chunks = feed->place.layout.vpp, asked = 0;
    ravel_status status = ravel_comm_allgather(feed->place.world, &mine, asks, 1, RAVEL_U64, err);
    if (status) return status;
    for (int32_t p = 0; p < stages; p++) {
        uint64_t bits = 0;
        for (int32_t r = 0; r < feed->place.layout.ranks; r++)
            if (ravel_mesh_locate(&feed->place.layout, r).pp == p) bits |= asks[r];
        for (int32_t c = 0; c < chunks; c++) {
            int32_t roles = (p == 0 && c == 0 ? ROLE_FIRST : 0) | (p == stages - 1 && c == chunks - 1 ? ROLE_LAST : 0) |
                            (bits >> c & 1 ? ROLE_ASK : 0);
            feed->place.stage_roles[p] |= roles;
            if (p == feed->place.at.pp) feed->place.chunk_roles[c] = roles;
        }
        feed->place.stage_asks[p] = p > 0 && p < stages - 1 && (feed->place.stage_roles[p] & ROLE_ASK);
        asked |= feed->place.stage_asks[p];
    }
    feed->place.have = feed->place.stage_roles[feed->place.at.pp];
    if (asked && feed->options.owners == RAVEL_OWNERS_TP0_FIRST_LAST && feed->place.at.pp == stages - 1)
        feed->place.have |= ROLE_ASK; /* it sends to those that asked */
    return RAVEL_OK;
}

static void set_weighs(ravel_feed *feed) {
    RAVEL_ASSERT(feed->fields.weights >= feed->fields.given && feed->fields.weights < feed->fields.count);
    int32_t roles = feed->place.have;
    for (int32_t p = 0; p < feed->place.layout.sizes[3] && feed->options.owners == RAVEL_OWNERS_ROOT_ONLY; p++)
        roles |= feed->place.stage_roles[p];
    feed->place.weighs = feed->place.owner && ravel__fields_wanted(&feed->fields, feed->fields.weights, roles);
}

/* ---- the fields, from rank 0 ---------------------------------------------------------------------------- */

static void describe_fields(const ravel_feed *feed, field_message *in) {
    RAVEL_ASSERT(feed->fields.given >= 1 && feed->fields.given <= RAVEL__FIELDS_MAX);
    in->count = feed->fields.given;
    in->rows = feed->order.count;
    in->by_rows = feed->by_rows;
    for (int64_t f = 0; f < in->count; f++) {
        const ravel_field *field = &feed->fields.list[f];
        memcpy(in->fields[f].name, feed->fields.names[f], RAVEL__NAME_BYTES);
        in->fields[f].kind = field->kind;
        in->fields[f].dtype = field->dtype;
        in->fields[f].width = field->width;
        in->fields[f].pad = field->pad;
    }
}

static ravel_status read_fields(ravel_feed *feed, field_message *in, ravel_error *err) {
    ravel_field fields[RAVEL__FIELDS_MAX];
    if (in->count < 1 || in->count > RAVEL__FIELDS_MAX)
        return ravel_error_set(err, RAVEL_E_INTERNAL, "rank 0 has %" PRId64 " fields", in->count);
    for (int64_t f = 0; f < in->count; f++) {
        in->fields[f].name[RAVEL__NAME_BYTES - 1] = '\0';
        fields[f] = (ravel_field){.name = in->fields[f].name,
                                  .kind = (int32_t)in->fields[f].kind,
                                  .dtype = (int32_t)in->fields[f].dtype,
                                  .width = in->fields[f].width,
                                  .pad = in->fields[f].pad};
    }
    feed->order.count = in->rows;
    feed->by_rows = in->by_rows != 0;
    return ravel__fields_init(&feed->fields, fields, in->count, &feed->options, err);
}

/* What samples of a fixed shape, and the caller's costs, rule out. */
static ravel_status check_fixed(ravel_feed *feed, ravel_error *err) {
    const ravel_plan_options *plan = &feed->plan;
    const char *what = feed->fields.fixed ? "samples without tokens" : "a field \"cost\"";
    int32_t *share = &feed->options.share_prefix;
    if (!feed->fields.fixed && feed->fields.cost < 0) return RAVEL_OK;
    if (*share == RAVEL_SHARE_ON)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "share-prefix on is not possible with %s", what);
    *share = RAVEL_SHARE_OFF;
    if (feed->fields.fixed && (plan->cp > 1 || plan->cp_pool || plan->align > 1 || plan->layout != RAVEL_LAYOUT_PACKED))
        return ravel_error_set(
            err, RAVEL_E_UNSUPPORTED,
            "%s cannot be cut, aligned or padded: cp, cp-pool and align must be 1 and the layout packed; "
            "the budget is a number of samples",
            what);
    return RAVEL_OK;
}

/* Rank 0's fields to those that have none, and the owners' digests compared. */
static ravel_status meet(ravel_feed *feed, ravel_error *err) {
    field_message in;
    memset(&in, 0, sizeof in);
    if (feed->place.owner) describe_fields(feed, &in);
    ravel__hash h = ravel__hash_begin(4);
    ravel__hash_bytes(&h, &in, sizeof in);
    uint64_t digest = ravel__hash_end(h);
    ravel_status status = ravel_comm_broadcast(feed->place.world, &in, sizeof in, RAVEL_U8, 0, err);
    if (status) return status;
    if (!feed->place.owner) status = read_fields(feed, &in, err);
    if (!status) status = check_fixed(feed, err);
    return ravel__agree(feed->place.world, status, feed->place.owner ? &digest : NULL,
                        "another source (fields or number of rows)", feed->allocator, err);
}

/* ---- create ------------------------------------------------------------------------------------------ */

static ravel_status create(ravel_feed *feed, ravel_mesh *mesh, ravel_status status, ravel_error *err) {
    uint64_t digest = status ? 0 : ravel__feed_digest(feed);
    status = ravel__agree(ravel_mesh_world(mesh), status, &digest, "other feed options", NULL, err);
    if (!status) status = make_mesh(feed, mesh, err);
    if (!status) status = find_roles(feed, err);
    if (!status) status = meet(feed, err);
    if (status) return status;
    set_weighs(feed);
    feed->work.empty.ragged = (ravel_ragged){.size = sizeof(ravel_ragged),
                                             .offsets = feed->submission.no_offsets,
                                             .fields = feed->fields.list,
                                             .field_count = feed->fields.given};
    RAVEL_ASSERT(feed->place.at.pp < feed->place.layout.sizes[3] && feed->consumer.current == -1);
    ravel__queue_start(feed);
    return RAVEL_OK;
}

ravel_status ravel_feed_create(ravel_mesh *mesh, const ravel_source *source, const ravel_feed_options *options,
                               ravel_feed **feed, ravel_error *err) {
    const ravel_allocator *allocator = options ? options->allocator : NULL;
    ravel_feed *f = ravel__calloc(allocator, 1, sizeof *f);
    if (!f) { /* the other ranks must get the error */
        ravel_status none = ravel__no_memory(err, sizeof *f, "a feed");
        return ravel_agree(ravel_mesh_world(mesh), none, err);
    }
    f->allocator = allocator;
    (void)pthread_mutex_init(&f->queue.lock, NULL);
    (void)pthread_cond_init(&f->queue.changed, NULL);
    ravel_status status = create(f, mesh, init(f, mesh, source, options, err), err);
    if (status) {
        ravel_feed_free(f);
        return status;
    }
    *feed = f;
    return RAVEL_OK;
}
