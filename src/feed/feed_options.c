/* Options of a feed, and their values on a mesh. */
#include "feed/feed.h"

#include "base/assert.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/options.h"

#include <inttypes.h>
#include <string.h>

#define ROW(...) RAVEL__ROW(ravel_feed_options, __VA_ARGS__)
static const ravel_option table[] = {
    ROW("owners", ENUM, owners, "tp0-first-last", 0, 0, RAVEL_OWNERS_CHOICES, "which ranks read samples"),
    ROW("prefetch", I32, prefetch, "4", 0, RAVEL__PREFETCH_MOST, NULL,
        "batches prepared ahead in the background; 0: none"),
    ROW("samples", I64, samples, "256", 1, 1e12, NULL, "rows per batch, over all dp ranks"),
    ROW("updates", I64, updates, "0", 0, 1e15, NULL, "stop after this many updates; 0: at the end of the source"),
    ROW("epochs", I64, epochs, "0", 0, 1e9, NULL, "passes over the source; 0: without end"),
    ROW("shuffle", BOOL, shuffle, "true", 0, 0, NULL, "read rows in a shuffled order, else as they are"),
    ROW("shuffle-seed", U64, shuffle_seed, "1", 0, 0, NULL, "seed of that order"),
    ROW("drop-last", BOOL, drop_last, "false", 0, 0, NULL, "leave out a last batch that is not full"),
    ROW("cp-kind", ENUM, cp_kind, "zig-zag", 0, 0, RAVEL_CP_CHOICES, "how positions are distributed over cp ranks"),
    ROW("segments", BOOL, segments, "false", 0, 0, NULL, "make segment ids"),
    ROW("padding", BOOL, padding, "false", 0, 0, NULL, "make a padding mask"),
    ROW("fixed-shape", BOOL, fixed_shape, "false", 0, 0, NULL,
        "pad every micro-batch to cp * budget tokens and max-samples samples"),
    ROW("total-multiple", I64, total_multiple, "0", 0, 2147483647, NULL,
        "pad a micro-batch to a multiple of this many tokens"),
    ROW("pad-token", I32, pad_token, "0", 0, 2147483647, NULL, "token id of padding"),
    ROW("first-fields", STRING, first_fields, "tokens", 0, 0, "LIST",
        "fields for the first part of the model, separated by commas; *: all"),
    ROW("last-fields", STRING, last_fields, "*", 0, 0, "LIST",
        "fields for the last part of the model; *: all but tokens"),
    ROW("share-prefix", ENUM, share_prefix, "off", 0, 0, RAVEL_SHARE_CHOICES,
        "plan so that what samples share is computed once; auto: if the plan is then faster"),
    ROW("share-limit", I64, share_limit, "0", 0, 2147483647, NULL,
        "with shared prefixes, limit of a bin's tokens when every sample is counted whole; 0: none"),
    ROW("keep-rows", BOOL, keep_rows, "false", 0, 0, NULL,
        "samples of a row stay in one micro-batch, side by side (pairs of answers)"),
    {NULL, 0, 0, NULL, 0, 0, NULL, NULL},
};
#undef AT

ravel_option_table ravel_feed_option_table(void) {
    return table;
}

void ravel_feed_options_default(ravel_feed_options *options) {
    ravel__options_preset(table, options, sizeof *options);
}

/* ---- on this mesh --------------------------------------------------------------------------------------- */

int64_t ravel__common_multiple(int64_t a, int64_t b) {
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return a / x * b;
}

/* Whether bins of this layout can be fed. */
static ravel_status check_layout(const ravel_plan_options *plan, ravel_error *err) {
    if (plan->layout == RAVEL_LAYOUT_PACKED) return RAVEL_OK;
    if (plan->cp > 1)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "padded rows cannot be cut for context parallelism; cp is %d",
                               plan->cp);
    if (plan->method == RAVEL_METHOD_AS_IS)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "method as-is keeps packed rows, and padded layouts have none");
    return RAVEL_OK;
}

static int32_t position_of(const ravel_mesh_layout *layout, int32_t axis) {
    int32_t i = 0;
    while (layout->order[i] != axis) i++;
    return i;
}

/* Hybrid widths: cp and dp become one axis, dp, of all ranks of the pool. It has the place of the faster of the two, so
 * no other axis may lie between them. */
static ravel_status make_pool(ravel__mesh_position *place, int32_t pool, ravel_error *err) {
    enum { CP = 1, DP = 2 };
    ravel_mesh_layout *l = &place->layout;
    int32_t cp = position_of(l, CP), dp = position_of(l, DP), both = l->sizes[CP] > 1 && l->sizes[DP] > 1;
    if (l->sizes[CP] * l->sizes[DP] != pool)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "cp-pool is %d, but the mesh has dp %d x cp %d ranks", pool,
                               l->sizes[DP], l->sizes[CP]);
    for (int32_t i = (cp < dp ? cp : dp) + 1; both && i < (cp < dp ? dp : cp); i++)
        if (l->sizes[l->order[i]] > 1)
            return ravel_error_set(
                err, RAVEL_E_UNSUPPORTED,
                "with cp-pool the mesh's cp and dp must follow each other in its order; another axis "
                "lies between them");
    place->at.dp = ravel_mesh_index_in(l, RAVEL_AXIS_CP | RAVEL_AXIS_DP, ravel_mesh_rank_at(l, place->at));
    place->at.cp = 0;
    if (l->sizes[CP] > 1 && (cp < dp || l->sizes[DP] == 1)) {
        l->order[cp] = DP;
        l->order[dp] = CP;
        l->strides[DP] = l->strides[CP];
    }
    l->sizes[DP] = pool;
    l->sizes[CP] = 1;
    return RAVEL_OK;
}

static ravel_status resolve_plan(ravel_feed *feed, const ravel_plan_options *plan, ravel_error *err) {
    const ravel_mesh_layout *layout = &feed->place.layout;
    if (!plan || plan->size == 0 || plan->size > sizeof feed->plan)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "a feed needs plan options (ravel_plan_options_default, then at least a budget)");
    ravel_plan_options_default(&feed->plan);
    memcpy(&feed->plan, plan, plan->size);
    feed->plan.size = sizeof feed->plan;
    feed->plan.allocator = feed->allocator;
    ravel_status status = feed->plan.cp_pool ? make_pool(&feed->place, feed->plan.cp_pool, err) : RAVEL_OK;
    feed->plan.cp = layout->sizes[1];
    feed->plan.dp = layout->sizes[2];
    if (!status) status = check_layout(&feed->plan, err);
    if (status) return status;
    int32_t cp = feed->plan.cp, even = cp == 1 ? 1 : feed->options.cp_kind == RAVEL_CP_ZIGZAG ? 2 * cp : cp;
    if (feed->plan.align < 1 || feed->plan.align > 1 << 20 || feed->plan.multiple < 1 || feed->plan.multiple > 1 << 20)
        return RAVEL_OK; /* the planner says what is wrong with them */
    feed->plan.align = (int32_t)ravel__common_multiple(feed->plan.align, even);
    feed->plan.cp_split = feed->options.cp_kind == RAVEL_CP_ZIGZAG ? RAVEL_CP_SPLIT_ZIGZAG : RAVEL_CP_SPLIT_CONTIGUOUS;
    if (layout->vpp > 1) feed->plan.multiple = (int32_t)ravel__common_multiple(feed->plan.multiple, layout->sizes[3]);
    return RAVEL_OK;
}

static ravel_status check_rows(const ravel_feed *feed, ravel_error *err) {
    if (!feed->options.keep_rows || (feed->plan.layout == RAVEL_LAYOUT_PACKED && !feed->options.fixed_shape))
        return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "keep-rows is not possible with padded layouts and fixed shapes");
}

/* Where prefixes cannot be shared: an error if that was asked for, else they are not. */
static ravel_status resolve_share(ravel_feed *feed, ravel_error *err) {
    const ravel_plan_options *plan = &feed->plan;
    const char *why = plan->oversize == RAVEL_OVERSIZE_ALONE ? "oversize alone"
                      : plan->layout != RAVEL_LAYOUT_PACKED  ? "a padded layout"
                      : plan->method == RAVEL_METHOD_AS_IS   ? "method as-is"
                      : feed->options.fixed_shape            ? "a fixed shape"
                                                             : NULL;
    if (!why || feed->options.share_prefix == RAVEL_SHARE_OFF) return RAVEL_OK;
    if (feed->options.share_prefix == RAVEL_SHARE_ON)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "share-prefix on is not possible with %s; set it to auto or off", why);
    ravel__log(feed->logger, RAVEL_LOG_INFO, "share-prefix auto: nothing is shared with %s", why);
    feed->options.share_prefix = RAVEL_SHARE_OFF;
    return RAVEL_OK;
}

static ravel_status resolve_thd(ravel_feed *feed, ravel_error *err) {
    const ravel_feed_options *o = &feed->options;
    ravel_thd_options *thd = &feed->thd;
    ravel_thd_options_default(thd);
    thd->align = feed->plan.layout == RAVEL_LAYOUT_PACKED ? feed->plan.align : 1; /* their columns are aligned */
    thd->arrays = RAVEL_THD_POSITIONS | (o->segments ? RAVEL_THD_SEGMENTS : 0) | (o->padding ? RAVEL_THD_PADDING : 0);
    thd->total_multiple = o->total_multiple ? o->total_multiple : 1;
    thd->cp = feed->plan.cp;
    thd->cp_rank = thd->cp > 1 ? 0 : -1; /* each rank sets its own */
    thd->cp_kind = o->cp_kind;
    if (o->fixed_shape && feed->plan.oversize == RAVEL_OVERSIZE_ALONE)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "a fixed shape holds no sample that is over the budget: set "
                               "oversize to error or skip");
    if (o->fixed_shape) {
        int64_t room = feed->plan.budget > INT32_MAX ? INT64_MAX : feed->plan.budget * feed->plan.cp;
        thd->fixed_tokens = room / thd->align * thd->align;
        thd->max_samples = feed->plan.max_samples;
        if (thd->max_samples < 1)
            return ravel_error_set(err, RAVEL_E_ARGUMENT,
                                   "fixed-shape needs max-samples, the most samples that a micro-batch may hold");
    }
    return RAVEL_OK;
}

ravel_thd_options ravel__group_thd(const ravel_feed *feed, int32_t width, int32_t cp_rank) {
    ravel_thd_options thd = feed->thd, group = thd;
    if (!feed->plan.cp_pool) {
        if (thd.cp > 1) thd.cp_rank = cp_rank;
        return thd;
    }
    ravel_status status =
        ravel_thd_options_for_group(&feed->plan, width, cp_rank, feed->options.fixed_shape, &group, NULL);
    RAVEL_ASSERT(status == RAVEL_OK); /* widths and ranks are a plan's */
    (void)status;
    group.arrays = thd.arrays;
    group.cp_kind = thd.cp_kind;
    group.total_multiple = thd.total_multiple;
    if (group.total_multiple > 1) group.total_multiple = ravel__common_multiple(group.total_multiple, group.align);
    return group;
}

ravel_thd_options ravel__bin_thd(const ravel_feed *feed, int whole, int32_t width, int32_t cp_rank) {
    ravel_thd_options thd = ravel__group_thd(feed, width, cp_rank);
    if (!whole) return thd;
    thd.cp = 1;
    thd.cp_rank = -1;
    return thd;
}

static ravel_status resolve_weights(ravel_feed *feed, const ravel_weights_options *weights, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    ravel_weights_options_default(&feed->weights);
    if (weights)
        status =
            ravel__take_options(ravel_weights_option_table(), "weights", weights, &feed->weights, sizeof *weights, err);
    feed->weights.dp = feed->plan.dp;
    feed->weights.cp = feed->plan.cp;
    return status;
}

ravel_status ravel__feed_resolve(ravel_feed *feed, const ravel_feed_options *options, ravel_error *err) {
    ravel_feed_options_default(&feed->options);
    ravel_status status = ravel__take_options(table, "feed", options, &feed->options, sizeof feed->options, err);
    if (status) return status;
    options = &feed->options;
    feed->allocator = options->allocator;
    feed->logger = options->logger;
    if (feed->place.layout.vpp > 64)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "%d vpp chunks; up to 64 are possible",
                               feed->place.layout.vpp);
    status = resolve_plan(feed, options->plan, err);
    if (!status) status = check_rows(feed, err);
    if (!status) status = resolve_share(feed, err);
    if (!status) status = resolve_thd(feed, err);
    if (!status) status = resolve_weights(feed, options->weights, err);
    feed->order = (ravel_order){.size = sizeof feed->order,
                                .epochs = options->epochs,
                                .seed = options->shuffle_seed,
                                .shuffle = options->shuffle != 0,
                                .drop_last = options->drop_last != 0};
    return status;
}

/* ---- digest --------------------------------------------------------------------------------------------- */

static void hash_options(ravel__hash *h, ravel_option_table rows, const void *options) {
    char text[512];
    for (const ravel_option *row = rows; row->name; row++) {
        size_t bytes = ravel_option_format(row, options, text, sizeof text);
        ravel__hash_bytes(h, text, bytes < sizeof text ? bytes : sizeof text - 1);
    }
}

uint64_t ravel__feed_digest(const ravel_feed *feed) {
    ravel__hash h = ravel__hash_begin(1);
    hash_options(&h, table, &feed->options);
    hash_options(&h, ravel_plan_option_table(), &feed->plan);
    hash_options(&h, ravel_weights_option_table(), &feed->weights);
    ravel__hash_u64(&h, (uint64_t)feed->plan.cost.linear);
    ravel__hash_u64(&h, (uint64_t)feed->plan.cost.quadratic);
    ravel__hash_u64(&h, (uint64_t)feed->plan.cost.overhead);
    return ravel__hash_end(h);
}
