/* Reading this rank's share, and the integers that every planner must have of every sample:
 *
 *     mine   length id part loss [weight] [group] [update]   one row a sample
 *     all    the rows of all dp ranks, in rank order          one all-gather of counts, one of rows
 *     at[]   the same as columns
 */
#include "feed/feed.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- reading -------------------------------------------------------------------------------------------- */

/* The rows of the batch that this rank reads: its dp rank's share, or all of them on the root. */
static ravel_status take_rows(ravel_feed *feed, int64_t total, int64_t *count, ravel_error *err) {
    int all = feed->options.owners == RAVEL_OWNERS_ROOT_ONLY;
    int64_t begin = all ? 0 : ravel_share(total, feed->plan.dp, feed->at.dp);
    int64_t end = all ? total : ravel_share(total, feed->plan.dp, feed->at.dp + 1);
    ravel_status status = ravel__pile_reserve(&feed->rows, feed->allocator, end - begin, sizeof(int64_t), "rows", err);
    if (status) return status;
    if (end > begin) ravel_order_rows(&feed->order, feed->cursor, begin, end - begin, feed->rows.at);
    *count = end - begin;
    return RAVEL_OK;
}

/* Samples of the caller must have the fields that were declared. */
static ravel_status check_submitted(const ravel_feed *feed, const ravel_samples *samples, ravel_error *err) {
    const ravel_ragged *ragged = &samples->ragged;
    ravel_status status = ravel_ragged_check(ragged, err);
    if (status) return status;
    if (ragged->field_count != feed->fields.given)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the samples have %" PRId64 " fields, %" PRId64 " were declared",
                               ragged->field_count, feed->fields.given);
    for (int64_t f = 0; f < ragged->field_count; f++) {
        const ravel_field *a = &ragged->fields[f], *b = &feed->fields.list[f];
        if (strcmp(a->name, b->name) != 0 || a->dtype != b->dtype || a->kind != b->kind ||
            (a->width > 1 ? a->width : 1) != b->width)
            return ravel_error_set(err, RAVEL_E_ARGUMENT,
                                   "field %" PRId64 " of the samples, \"%s\", is not what was declared, \"%s\"", f,
                                   a->name, b->name);
    }
    return RAVEL_OK;
}

ravel_status ravel__feed_read(ravel_feed *feed, ravel_error *err) {
    int64_t count = 0;
    feed->mine = NULL;
    if (!feed->by_rows && !feed->has_submitted)
        return ravel_error_set(err, RAVEL_E_STATE, "no samples were submitted for the next batch on this rank");
    if (!feed->owner) return RAVEL_OK;
    feed->mine = &feed->empty;
    if (!feed->source) {
        if (feed->submitted.ragged.size == 0) return RAVEL_OK; /* nothing: this rank has no samples */
        feed->mine = &feed->submitted;
        return check_submitted(feed, feed->mine, err);
    }
    int64_t total = ravel_order_take(&feed->order, feed->cursor, feed->options.samples, &feed->next);
    feed->end = total == 0;
    ravel_status status = take_rows(feed, total, &count, err);
    if (!status) status = ravel_reader_read(feed->reader, feed->rows.at, count, &feed->mine, err);
    return status;
}

/* ---- columns -------------------------------------------------------------------------------------------- */

int64_t ravel__columns_width(const ravel__fields *fields) {
    return COLUMN_WEIGHT + (fields->sample_weight >= 0) + (fields->group >= 0) + (fields->update >= 0);
}

/* A number of a per-sample field; integers without a detour through a double. */
static int64_t whole(const ravel_field *field, int64_t i) {
    const char *at = (const char *)field->data + i * ravel_dtype_bytes(field->dtype);
    double value = 0;
    int64_t exact;
    if (ravel_dtype_bytes(field->dtype) == 8) return memcpy(&exact, at, sizeof exact), exact;
    (void)ravel_dtype_load(field->dtype, at, &value);
    return (int64_t)value;
}

/* A weight in 2^-40ths, as ravel/weights.h counts them. */
static ravel_status fixed_weight(const ravel_field *field, int64_t i, int64_t *out, ravel_error *err) {
    double value = 0;
    (void)ravel_dtype_load(field->dtype, (const char *)field->data + i * ravel_dtype_bytes(field->dtype), &value);
    if (!(value >= 0 && value <= 4096))
        return ravel_error_set(err, RAVEL_E_DATA,
                               "sample %" PRId64 " has a sample_weight of %g; 0 to 4096 are possible", i, value);
    *out = llround(ldexp(value, 40));
    return RAVEL_OK;
}

static int64_t id_of(const ravel_samples *samples, int64_t i) {
    return samples->rows ? samples->rows[i] : RAVEL__NO_ID;
}

ravel_status ravel__columns_fill(const ravel__fields *fields, const ravel_samples *samples, int64_t width, int64_t *out,
                                 ravel_error *err) {
    const ravel_ragged *r = &samples->ragged;
    const ravel_field *mask = fields->mask >= 0 ? &r->fields[fields->mask] : NULL;
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < r->count && !status; i++, out += width) {
        int64_t at = COLUMN_WEIGHT;
        out[COLUMN_LENGTH] = r->offsets[i + 1] - r->offsets[i];
        out[COLUMN_ID] = id_of(samples, i);
        out[COLUMN_PART] = samples->parts ? samples->parts[i] : 0;
        status = ravel_counts_sample(r, i, mask, &out[COLUMN_LOSS], err);
        if (!status && fields->sample_weight >= 0)
            status = fixed_weight(&r->fields[fields->sample_weight], i, &out[at++], err);
        if (fields->group >= 0) out[at++] = whole(&r->fields[fields->group], i);
        if (fields->update >= 0) out[at++] = whole(&r->fields[fields->update], i);
        if (status) ravel_error_prefix(err, "row %" PRId64, samples->rows ? samples->rows[i] : i);
    }
    return status;
}

ravel_status ravel__columns_split(ravel__columns *c, const ravel__fields *fields, const ravel_allocator *allocator,
                                  ravel_error *err) {
    ravel_status status = ravel__pile_reserve(&c->columns, allocator, c->count, (size_t)c->width * sizeof(int64_t),
                                              "the lengths of all samples", err);
    if (status) return status;
    const int present[COLUMNS] = {1, 1, 1, 1, fields->sample_weight >= 0, fields->group >= 0, fields->update >= 0};
    const int64_t *rows = c->all.at;
    for (int64_t k = 0, from = 0; k < COLUMNS; k++) {
        c->at[k] = present[k] && c->count ? (int64_t *)c->columns.at + from * c->count : NULL;
        if (!present[k]) continue;
        for (int64_t i = 0; i < c->count; i++) c->at[k][i] = rows[i * c->width + from];
        from++;
    }
    for (int64_t i = 0; i < c->count; i++)
        if (c->at[COLUMN_ID][i] == RAVEL__NO_ID) c->at[COLUMN_ID][i] = i;
    return RAVEL_OK;
}

void ravel__columns_free(ravel__columns *c, const ravel_allocator *allocator) {
    ravel__pile_free(&c->mine, allocator);
    ravel__pile_free(&c->all, allocator);
    ravel__pile_free(&c->columns, allocator);
    ravel__pile_free(&c->ranks, allocator);
}

/* ---- gathering ------------------------------------------------------------------------------------------ */

/* This rank's rows of integers, and room for the counts of all. */
static ravel_status fill_mine(ravel_feed *feed, ravel_error *err) {
    ravel__columns *c = &feed->columns;
    c->width = ravel__columns_width(&feed->fields);
    ravel_status status = ravel__pile_reserve(&c->mine, feed->allocator, feed->mine->ragged.count,
                                              (size_t)c->width * sizeof(int64_t), "the lengths of samples", err);
    return status ? status : ravel__columns_fill(&feed->fields, feed->mine, c->width, c->mine.at, err);
}

/* The root has everything: what it read is what there is. */
static ravel_status keep_mine(ravel_feed *feed, ravel_error *err) {
    ravel__columns *c = &feed->columns;
    c->count = feed->mine->ragged.count;
    ravel__pile all = c->all;
    c->all = c->mine;
    c->mine = all;
    memset(c->counts, 0, (size_t)feed->plan.dp * sizeof *c->counts);
    c->counts[0] = c->count;
    return ravel__columns_split(c, &feed->fields, feed->allocator, err);
}

static ravel_status gather_rows(ravel_feed *feed, ravel_error *err) {
    ravel__columns *c = &feed->columns;
    c->count = 0;
    for (int32_t r = 0; r < feed->plan.dp; r++) c->count += c->counts[r];
    ravel_status status = ravel__pile_reserve(&c->all, feed->allocator, c->count, (size_t)c->width * sizeof(int64_t),
                                              "the lengths of all samples", err);
    if (status) { /* the others are on their way into the gather */
        ravel_comm_abort(feed->world, err);
        return status;
    }
    feed->gathered_bytes = (1 + c->counts[feed->at.dp] * c->width) * (int64_t)sizeof(int64_t) * (feed->plan.dp - 1);
    status = ravel_gather(feed->dp, c->mine.at, c->counts, c->width, c->all.at, err);
    return status ? status : ravel__columns_split(c, &feed->fields, feed->allocator, err);
}

/* Samples have prompts everywhere or nowhere; those of a rank without samples are like the others'. */
static ravel_status read_counts(ravel_feed *feed, ravel_error *err) {
    int64_t *counts = feed->columns.counts;
    int32_t with = -1, without = -1;
    for (int32_t r = 0; r < feed->plan.dp; r++) {
        if (counts[r] > 1) *(counts[r] & 1 ? &with : &without) = r;
        counts[r] /= 2;
    }
    feed->has_prompts = with >= 0;
    if (with < 0 || without < 0) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "the samples of dp rank %d come with prompts, those of %d without",
                           with, without);
}

ravel_status ravel__feed_gather(ravel_feed *feed, ravel_status mine, int *failed, ravel_error *err) {
    ravel__columns *c = &feed->columns;
    feed->gathered_bytes = 0;
    if (!feed->owner) return mine;
    if (!mine) mine = fill_mine(feed, err);
    if (feed->options.owners == RAVEL_OWNERS_ROOT_ONLY) {
        *failed = mine != RAVEL_OK;
        return mine ? mine : keep_mine(feed, err);
    }
    /* twice the count, and one more where prompts come with the samples; -1: this rank failed */
    int64_t word = mine ? -1 : 2 * feed->mine->ragged.count + (feed->mine->ragged.prompts != NULL);
    ravel_error lost = RAVEL_ERROR_INIT;
    ravel_status status = ravel_comm_allgather(feed->dp, &word, c->counts, 1, RAVEL_I64, &lost);
    if (status) return mine ? mine : ravel_error_set(err, status, "%s", lost.message);
    for (int32_t r = 0; r < feed->plan.dp; r++) *failed |= c->counts[r] < 0;
    if (*failed) return mine;
    mine = read_counts(feed, err);
    if (mine) { /* every rank of the group sees the same counts, and the same error */
        *failed = 1;
        return mine;
    }
    return gather_rows(feed, err);
}
