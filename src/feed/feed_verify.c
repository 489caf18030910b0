/* The current update computed again, on this rank alone: all rows of the batch are read, planned and packed with the
 * pure functions, and every array that the feed gave is compared with that.
 *
 *     feed       share of the rows -> gather -> plan -> exchange -> pack own bins -> broadcast
 *     here       all rows                    -> plan -> pack own bins straight from the whole store
 */
#include "feed/pack.h"

#include "base/assert.h"

#include <inttypes.h>
#include <string.h>

/* Everything that is recomputed. */
typedef struct again {
    const ravel_feed *feed;
    const ravel__prepared *slot;
    const ravel_samples *all;
    ravel__columns columns;
    ravel__plan_scratch scratch;
    ravel_plan *made;
    ravel_plan plan;
    ravel__buffer rows, block, weights, sample_weights, order;
    ravel_field fields[RAVEL__FIELDS_MAX + 2];
    ravel_error *err;
} again;

static ravel_status differs(const again *a, int64_t step, int32_t chunk, const char *what) {
    return ravel_error_set(a->err, RAVEL_E_INTERNAL,
                           "update %" PRId64 ", micro-step %" PRId64
                           ", chunk %d, dp %d, cp %d, tp %d, pp %d: %s is not "
                           "what a single rank works out",
                           a->feed->consumer.view.number, step, chunk, a->feed->place.at.dp, a->feed->place.at.cp,
                           a->feed->place.at.tp, a->feed->place.at.pp, what);
}

/* ---- the plan again ------------------------------------------------------------------------------------- */

/* Reads each dp rank's share to learn how many samples it has, then all of them. */
static ravel_status read_all(again *a, ravel_reader *reader) {
    const ravel_feed *feed = a->feed;
    ravel_cursor next;
    int64_t total = ravel_order_take(&feed->order, a->slot->begin, feed->options.samples, &next);
    int32_t dp = feed->plan.dp;
    ravel_status status = ravel__buffer_reserve(&a->rows, feed->allocator, total, sizeof(int64_t), "rows", a->err);
    if (!status)
        status = ravel__buffer_reserve(&a->columns.ranks, feed->allocator, dp + 1, sizeof(int64_t), "counts", a->err);
    if (status) return status;
    a->columns.counts = a->columns.ranks.at;
    if (!a->columns.counts) return ravel__no_memory(a->err, 0, "counts"); /* never: dp is at least 1 */
    for (int32_t r = 0; r <= dp; r++) a->columns.counts[r] = 0;
    ravel_order_rows(&feed->order, a->slot->begin, 0, total, a->rows.at);
    for (int32_t r = 0; r < dp && feed->options.owners != RAVEL_OWNERS_ROOT_ONLY && !status; r++) {
        int64_t first = ravel_share(total, dp, r), end = ravel_share(total, dp, r + 1);
        status = ravel_reader_read(reader, (int64_t *)a->rows.at + first, end - first, &a->all, a->err);
        if (!status) a->columns.counts[r] = a->all->ragged.count;
    }
    if (!status) status = ravel_reader_read(reader, a->rows.at, total, &a->all, a->err);
    if (!status && feed->options.owners == RAVEL_OWNERS_ROOT_ONLY) a->columns.counts[0] = a->all->ragged.count;
    return status;
}

/* ---- shared prefixes, by comparing tokens ----------------------------------------------------------------- */

/* The first byte of a sample in which a field of kind TOKEN differs says which sample is first. *same: tokens in
 * common. */
static int compare_tokens(const again *a, int32_t x, int32_t y, int64_t *same) {
    const ravel_ragged *r = &a->all->ragged;
    int64_t lengths[] = {r->offsets[x + 1] - r->offsets[x], r->offsets[y + 1] - r->offsets[y]};
    for (int64_t t = 0; t < lengths[0] && t < lengths[1]; t++)
        for (int64_t f = 0; f < r->field_count; f++) {
            const char *data = r->fields[f].data;
            size_t each = (size_t)ravel__field_each(&r->fields[f]);
            if (r->fields[f].kind != RAVEL_FIELD_TOKEN) continue;
            int differs =
                memcmp(data + (size_t)(r->offsets[x] + t) * each, data + (size_t)(r->offsets[y] + t) * each, each);
            *same = t;
            if (differs) return differs;
        }
    *same = lengths[0] < lengths[1] ? lengths[0] : lengths[1];
    return lengths[0] < lengths[1] ? -1 : lengths[0] > lengths[1];
}

static void merge(const again *a, const int32_t *from, int32_t *to, int64_t begin, int64_t middle, int64_t end) {
    int64_t same;
    for (int64_t i = begin, j = middle, k = begin; k < end; k++)
        to[k] = j == end || (i < middle && compare_tokens(a, from[i], from[j], &same) <= 0) ? from[i++] : from[j++];
}

/* Sorts the samples by their tokens, whatever the feed found: neighbours then share as much as any two do. */
static ravel_status check_tree(again *a) {
    int64_t n = a->columns.count, begin, block, most = 0, found = 0;
    ravel_status status = ravel__buffer_reserve(&a->order, a->feed->allocator, n, 8, "samples in order", a->err);
    if (status) return status;
    int32_t *order = a->order.at, *other = order + n;
    for (int64_t i = 0; i < n; i++) order[i] = (int32_t)i;
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t i = 0; i < n; i += 2 * width)
            merge(a, order, other, i, i + width < n ? i + width : n, i + 2 * width < n ? i + 2 * width : n);
        int32_t *swap = order;
        order = other;
        other = swap;
    }
    ravel__tree_blocks(&a->columns, &begin, &block);
    for (int64_t i = 1, same; i < n; i++) {
        found += a->columns.shared[i];
        (void)compare_tokens(a, order[i - 1], order[i], &same);
        if (same >= begin) most += same / block * block;
    }
    if (found <= most && found >= most - most / 100) return RAVEL_OK; /* 32 bits of a hash may be equal by chance */
    return differs(a, -1, -1, "the number of tokens that samples share");
}

static ravel_status plan_again(again *a) {
    RAVEL_ASSERT(a->columns.counts && a->all);
    const ravel_feed *feed = a->feed;
    ravel__columns *c = &a->columns;
    c->count = a->all->ragged.count;
    c->has_parts = ravel__columns_have_parts(a->all);
    size_t width = (size_t)ravel__columns_width(&feed->fields, c->has_parts);
    ravel_status status = ravel__buffer_reserve(&c->all, feed->allocator, c->count, width * sizeof(int64_t),
                                                "the lengths of all samples", a->err);
    if (!status) status = ravel__columns_fill(&feed->fields, a->all, c->has_parts, c->all.at, a->err);
    if (!status) status = ravel__columns_split(c, &feed->fields, feed->allocator, a->err);
    int trees = feed->options.share_prefix != RAVEL_SHARE_OFF && c->count;
    if (!status && trees) status = ravel__tree_find(feed, c, a->all, NULL, NULL, a->err);
    if (!status && trees) status = check_tree(a);
    if (!status) status = ravel__plan_columns(feed, c, &a->scratch, &a->made, &a->plan, a->err);
    if (status) return status;
    if (a->plan.updates != a->slot->meta.updates || a->plan.micro_steps != a->slot->meta.micro_steps)
        return differs(a, -1, -1, "the number of updates or micro-steps");
    return RAVEL_OK;
}

static ravel_bin bin_at(const ravel_plan *plan, int64_t bin) {
    RAVEL_ASSERT(bin >= 0 && bin < plan->bins);
    return (ravel_bin){plan->samples + plan->bin_offsets[bin], plan->bin_offsets[bin + 1] - plan->bin_offsets[bin]};
}

/* ---- weights again -------------------------------------------------------------------------------------- */

static ravel_status weigh_again(again *a) {
    const ravel_feed *feed = a->feed;
    const ravel_plan *plan = &a->plan;
    const ravel__fields *fields = &feed->fields;
    const ravel_ragged weighed = ravel__fields_to_weigh(fields, &a->all->ragged), *store = &weighed;
    const ravel_field *mask = fields->mask >= 0 ? &store->fields[fields->mask] : NULL;
    int64_t tokens = a->all->ragged.offsets[store->count], update = feed->consumer.update;
    int64_t begin = plan->update_offsets[update] * plan->dp, end = plan->update_offsets[update + 1] * plan->dp;
    ravel_counts counts = {0};
    ravel_weights_options options = feed->weights;
    options.micro_steps = plan->update_offsets[update + 1] - plan->update_offsets[update];
    ravel_status status =
        ravel__buffer_reserve(&a->weights, feed->allocator, tokens + 1, sizeof(float), "weights", a->err);
    if (!status)
        status = ravel__buffer_reserve(&a->sample_weights, feed->allocator, store->count + 1, 8, "weights", a->err);
    if (status) return status;
    double *own = fields->sample_weight >= 0 ? a->sample_weights.at : NULL;
    for (int64_t i = 0; own && i < store->count; i++) {
        const ravel_field *f = &store->fields[fields->sample_weight];
        (void)ravel_dtype_load(f->dtype, (const char *)f->data + i * ravel_dtype_bytes(f->dtype), &own[i]);
    }
    for (int64_t bin = begin; bin < end && !status; bin++) {
        ravel_bin b = bin_at(plan, bin);
        if (b.count) status = ravel_counts_add(store, &b, mask, own, &counts, a->err);
    }
    if (!status && memcmp(&counts, &feed->consumer.view.loss_counts, sizeof counts) != 0)
        return differs(a, -1, -1, "the count of loss tokens or weights");
    for (int64_t bin = begin; bin < end && !status; bin++) {
        ravel_bin b = bin_at(plan, bin);
        if (b.count)
            status = ravel_weights_fill(store, &b, mask, own, &counts, &options, RAVEL_F32, a->weights.at, a->err);
    }
    return status;
}

static void set_fields(again *a) {
    const ravel__fields *fields = &a->feed->fields;
    for (int64_t f = 0; f < fields->count; f++) {
        a->fields[f] = fields->list[f];
        if (f < fields->given) a->fields[f].data = a->all->ragged.fields[f].data;
    }
    if (fields->labels >= fields->given) a->fields[fields->labels].data = a->fields[fields->tokens].data;
    a->fields[fields->weights].data = a->weights.at;
}

/* ---- comparing ------------------------------------------------------------------------------------------ */

static int same(const void *x, const void *y, int64_t count, size_t each) {
    if (!x != !y) return 0;
    return !x || count == 0 || memcmp(x, y, (size_t)count * each) == 0;
}

static ravel_status compare_shape(const again *a, const ravel_micro_batch *m, const ravel_thd *t) {
    const ravel_thd *g = m->thd;
    int64_t n = t->local_tokens;
    if (g->samples_count != t->samples_count || g->sequences != t->sequences || g->tokens != t->tokens ||
        g->local_tokens != n || g->actual_tokens != t->actual_tokens || g->max_seqlen != t->max_seqlen ||
        g->max_length != t->max_length)
        return differs(a, m->step, m->chunk, "the size of the micro-batch");
    if (!same(g->cu_seqlens, t->cu_seqlens, t->sequences + 1, sizeof *t->cu_seqlens) ||
        !same(g->cu_seqlens_padded, t->cu_seqlens_padded, t->sequences + 1, sizeof *t->cu_seqlens_padded))
        return differs(a, m->step, m->chunk, "cu_seqlens");
    if (!same(g->positions, t->positions, n, sizeof *t->positions) ||
        !same(g->segments, t->segments, n, sizeof *t->segments) || !same(g->padding, t->padding, n, 1))
        return differs(a, m->step, m->chunk, "positions, segments or padding");
    return RAVEL_OK;
}

/* thd->samples counts from 0 in the micro-batch; here they are numbers in the whole store. */
static ravel_status compare_samples(const again *a, const ravel_micro_batch *m, const ravel_thd *t,
                                    const ravel_bin *bin) {
    const ravel__columns *c = &a->columns;
    for (int64_t i = 0; i < t->sequences; i++)
        if (m->thd->samples[i] != (i < bin->count ? (int32_t)i : -1))
            return differs(a, m->step, m->chunk, "the list of samples");
    for (int64_t i = 0; i < bin->count; i++) {
        int32_t s = bin->samples[i];
        if (m->lengths[i] != c->at[COLUMN_LENGTH][s] || m->ids[i] != c->at[COLUMN_ID][s] ||
            m->parts[i] != c->at[COLUMN_PART][s] || m->loss_tokens[i] != c->at[COLUMN_LOSS][s] ||
            (m->prompts && m->prompts[i] != c->at[COLUMN_PROMPT][s]) ||
            m->offsets[i + 1] - m->offsets[i] != m->lengths[i])
            return differs(a, m->step, m->chunk, "a sample's id, length or loss tokens");
        int64_t shared = a->plan.shared ? a->plan.shared[bin->samples - a->plan.samples + i] : 0;
        if (shared != (m->shared ? m->shared[i] : 0))
            return differs(a, m->step, m->chunk, "what a sample shares with the one before it");
    }
    return RAVEL_OK;
}

static ravel_status compare_fields(const again *a, const ravel_micro_batch *m, const ravel_thd *t) {
    const ravel_feed *feed = a->feed;
    for (int64_t f = 0; f < feed->fields.count; f++) {
        int wanted = ravel__fields_wanted(&feed->fields, f, feed->place.chunk_roles[m->chunk]);
        const void *got = m->thd->fields[f];
        if (!wanted != !got) return differs(a, m->step, m->chunk, "which fields there are");
        if (got && memcmp(got, t->fields[f], ravel_thd_field_bytes(t, &a->fields[f])) != 0)
            return differs(a, m->step, m->chunk, feed->fields.list[f].name);
    }
    return RAVEL_OK;
}

/* Compares the group that the micro-batch reports. */
static ravel_status compare_group(const again *a, const ravel_micro_batch *m, const ravel_group *group) {
    const ravel__mesh_position *place = &a->feed->place;
    int hybrid = a->plan.hybrid != NULL;
    if (m->cp != (hybrid ? group->width : a->feed->plan.cp) || m->cp_first != (hybrid ? group->first : -1) ||
        m->cp_rank != (hybrid ? place->at.dp - group->first : place->at.cp))
        return differs(a, m->step, m->chunk, "the context-parallel group");
    return RAVEL_OK;
}

static ravel_status compare_step(again *a, int64_t step) {
    RAVEL_ASSERT(step >= 0 && a->feed->consumer.update < a->plan.updates);
    const ravel_feed *feed = a->feed;
    const ravel_group group =
        ravel_plan_group(&a->plan, a->plan.update_offsets[feed->consumer.update] + step, feed->place.at.dp);
    ravel_bin bin = {group.samples, group.count};
    ravel_thd_options options = ravel__bin_thd(feed, a->plan.shared && group.count, group.width,
                                               a->plan.hybrid ? feed->place.at.dp - group.first : feed->place.at.cp);
    ravel_ragged store = a->all->ragged;
    ravel_thd t = {.size = sizeof t};
    store.fields = a->fields;
    store.field_count = feed->fields.count;
    ravel_status status = ravel_thd_measure(&store, &bin, &options, &t, a->err);
    if (status) return status;
    size_t bytes = ravel_thd_bytes(&store, &options, &t);
    status = ravel__buffer_reserve(&a->block, feed->allocator, (int64_t)bytes, 1, "a micro-batch", a->err);
    if (status) return status;
    ravel_thd_place(&store, &options, a->block.at, &t);
    status = ravel_thd_pack(&store, &bin, &options, &t, a->err);
    for (int32_t chunk = 0; chunk < feed->place.layout.vpp && !status; chunk++) {
        ravel_micro_batch m;
        status = ravel_feed_micro(feed, chunk, step, &m, a->err);
        if (!status) status = compare_group(a, &m, &group);
        if (!status) status = compare_shape(a, &m, &t);
        if (!status) status = compare_samples(a, &m, &t, &bin);
        if (!status) status = compare_fields(a, &m, &t);
    }
    return status;
}

static ravel_status compare_counts(const again *a) {
    ravel_update_counts all, mine;
    ravel_counts unused;
    ravel__count_update(a->feed, &a->columns, &a->plan, a->feed->consumer.update, -1, &all, &unused);
    ravel__count_update(a->feed, &a->columns, &a->plan, a->feed->consumer.update, a->feed->place.at.dp, &mine, &unused);
    if (a->feed->consumer.update == 0) all.skipped = a->made->stats.skipped;
    if (memcmp(&all, &a->feed->consumer.view.counts, sizeof all) != 0)
        return differs(a, -1, -1, "a count over all ranks");
    if (memcmp(&mine, &a->feed->consumer.view.mine, sizeof mine) != 0)
        return differs(a, -1, -1, "a count of this dp rank");
    return RAVEL_OK;
}

/* ---- the call ------------------------------------------------------------------------------------------- */

static ravel_status verify(again *a, ravel_reader *reader) {
    ravel_status status = read_all(a, reader);
    if (!status) status = plan_again(a);
    if (!status) status = compare_counts(a);
    if (!status) status = weigh_again(a);
    if (status) return status;
    set_fields(a);
    int64_t steps =
        a->plan.update_offsets[a->feed->consumer.update + 1] - a->plan.update_offsets[a->feed->consumer.update];
    for (int64_t s = 0; s < steps && !status; s++) status = compare_step(a, s);
    return status;
}

ravel_status ravel_feed_verify(const ravel_feed *feed, const ravel_source *source, ravel_error *err) {
    if (feed->consumer.current < 0) return ravel_error_set(err, RAVEL_E_STATE, "the feed has no update to verify");
    if (!source || !feed->by_rows)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "an update is verified against its source; submitted samples "
                               "have none");
    again a = {.feed = feed, .slot = &feed->slots[feed->consumer.current], .all = &feed->work.empty, .err = err};
    ravel_reader *reader = NULL;
    ravel_status status = ravel_reader_create(source, feed->allocator, NULL, &reader, err);
    if (!status) status = verify(&a, reader);
    ravel_reader_free(reader);
    ravel_plan_free(a.made);
    ravel__columns_free(&a.columns, feed->allocator);
    ravel__buffer *buffers[] = {&a.scratch.input, &a.scratch.expanded, &a.rows, &a.block, &a.weights,
                                &a.order,         &a.sample_weights,   NULL};
    for (ravel__buffer **buffer = buffers; *buffer; buffer++) ravel__buffer_free(*buffer, feed->allocator);
    return status;
}
