/* Reading this rank's share, and the integers per sample that planning needs on every rank:
 *
 *     mine   length and loss tokens in one word, id [part] [weight] [group] [update] [cost] [prompt]      a row per sample
 *     all    the rows of all dp ranks, in rank order: one all-gather of counts, one of rows
 *     at[]   the same as columns, a word each
 *
 * Every rank gets every row, so a row is kept short: parts travel only if some row has several samples. */
#include "feed/feed.h"

#include "base/assert.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- reading -------------------------------------------------------------------------------------------- */

/* The rows of the batch that this rank reads: its dp rank's share, or all of them on the root. */
static ravel_status take_rows(ravel_feed *feed, int64_t total, int64_t *count, ravel_error *err) {
    int all = feed->options.owners == RAVEL_OWNERS_ROOT_ONLY;
    int64_t begin = all ? 0 : ravel_share(total, feed->plan.dp, feed->place.at.dp);
    int64_t end = all ? total : ravel_share(total, feed->plan.dp, feed->place.at.dp + 1);
    ravel_status status =
        ravel__buffer_reserve(&feed->work.rows, feed->allocator, end - begin, sizeof(int64_t), "rows", err);
    if (status) return status;
    if (end > begin) ravel_order_rows(&feed->order, feed->work.cursor, begin, end - begin, feed->work.rows.at);
    *count = end - begin;
    return RAVEL_OK;
}

/* Samples of the caller must have the fields that were declared. */
static ravel_status check_submitted(const ravel_feed *feed, const ravel_samples *samples, ravel_error *err) {
    const ravel_ragged *ragged = &samples->ragged;
    ravel_status status = ravel_ragged_check(ragged, err);
    if (status) return status;
    if (!ragged->offsets && !feed->fields.fixed)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the samples have no offsets, and the feed has tokens");
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

/* Samples without tokens are one position each. */
static ravel_status set_places(ravel_feed *feed, ravel_ragged *ragged, ravel_error *err) {
    if (ragged->offsets && ragged->offsets[ragged->count] != ragged->count)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the samples have lengths, and the feed was made for samples without tokens: what they "
                               "take goes into a field cost:i64:sample");
    ravel_status status = ravel__buffer_reserve(&feed->work.places, feed->allocator, ragged->count + 1, sizeof(int64_t),
                                                "the places of samples", err);
    if (status) return status;
    int64_t *places = feed->work.places.at;
    for (int64_t i = 0; i <= ragged->count; i++) places[i] = i;
    ragged->offsets = places;
    return RAVEL_OK;
}

ravel_status ravel__feed_read(ravel_feed *feed, ravel_error *err) {
    int64_t count = 0;
    feed->work.mine = NULL;
    if (!feed->by_rows && !feed->submission.pending)
        return ravel_error_set(err, RAVEL_E_STATE, "no samples were submitted for the next batch on this rank");
    if (!feed->place.owner) return RAVEL_OK;
    feed->work.mine = &feed->work.empty;
    if (!feed->source) {
        const ravel_ragged *given = &feed->submission.samples.ragged;
        if (given->size == 0 && given->count == 0) return RAVEL_OK; /* this rank has no samples */
        feed->work.mine = &feed->submission.samples;
        ravel_status valid = check_submitted(feed, feed->work.mine, err);
        return valid || !feed->fields.fixed ? valid : set_places(feed, &feed->submission.samples.ragged, err);
    }
    int64_t total = ravel_order_take(&feed->order, feed->work.cursor, feed->options.samples, &feed->work.next);
    feed->work.end = total == 0;
    ravel_status status = take_rows(feed, total, &count, err);
    if (!status) status = ravel_reader_read(feed->reader, feed->work.rows.at, count, &feed->work.mine, err);
    return status;
}

/* ---- columns -------------------------------------------------------------------------------------------- */

int ravel__columns_have_parts(const ravel_samples *samples) {
    int32_t any = 0;
    for (int64_t i = 0; samples->parts && i < samples->ragged.count; i++) any |= samples->parts[i];
    return any != 0;
}

int64_t ravel__columns_width(const ravel__fields *fields, int has_parts) {
    return 2 + has_parts + (fields->sample_weight >= 0) + (fields->group >= 0) + (fields->update >= 0) +
           (fields->cost >= 0) + fields->prompts;
}

/* A number of a per-sample field; integers are not converted to double. */
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

/* Tokens of the prompt: as the samples say, else those before the first one that is learnt. */
static ravel_status prompt_of(const ravel_ragged *r, int64_t i, const ravel_field *mask, int64_t *prompt,
                              ravel_error *err) {
    int64_t begin = r->offsets[i], length = r->offsets[i + 1] - begin, each = 0;
    *prompt = length;
    if (r->prompts) *prompt = r->prompts[i];
    if (r->prompts) return RAVEL_OK;
    if (!mask)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "layout padded-2d needs to know where prompts end: samples need prompts or a loss_mask");
    each = ravel_dtype_bytes(mask->dtype);
    if (mask->kind == RAVEL_FIELD_STEP) begin -= i + 1; /* an element less per sample, none for the first token */
    for (int64_t t = 1; t < length; t++) {
        double learnt = 0;
        (void)ravel_dtype_load(mask->dtype, (const char *)mask->data + (begin + t) * each, &learnt);
        if (learnt == 0) continue;
        *prompt = t;
        return RAVEL_OK;
    }
    return RAVEL_OK;
}

static ravel_status fill_row(const ravel__fields *fields, const ravel_samples *samples, int64_t i, int has_parts,
                             int64_t *out, ravel_error *err) {
    const ravel_ragged *r = &samples->ragged;
    const ravel_field *mask = fields->mask >= 0 ? &r->fields[fields->mask] : NULL;
    int64_t loss = 0, length = r->offsets[i + 1] - r->offsets[i];
    RAVEL_ASSERT(length >= 0 && length <= INT64_C(1) << 31);
    const ravel_ragged weighed = ravel__fields_to_weigh(fields, r);
    ravel_status status = ravel_counts_sample(&weighed, i, mask, &loss, err);
    *out++ = (int64_t)((uint64_t)loss << 32 | (uint64_t)length); /* a length has at most 32 bits, 2^31 included */
    *out++ = id_of(samples, i);
    if (has_parts) *out++ = samples->parts ? samples->parts[i] : 0;
    if (!status && fields->sample_weight >= 0) status = fixed_weight(&r->fields[fields->sample_weight], i, out++, err);
    if (fields->group >= 0) *out++ = whole(&r->fields[fields->group], i);
    if (fields->update >= 0) *out++ = whole(&r->fields[fields->update], i);
    if (fields->cost >= 0) *out++ = whole(&r->fields[fields->cost], i);
    if (!status && fields->prompts) status = prompt_of(r, i, mask, out, err);
    return status;
}

ravel_status ravel__columns_fill(const ravel__fields *fields, const ravel_samples *samples, int has_parts, int64_t *out,
                                 ravel_error *err) {
    int64_t width = ravel__columns_width(fields, has_parts);
    for (int64_t i = 0; i < samples->ragged.count; i++) {
        ravel_status status = fill_row(fields, samples, i, has_parts, out + i * width, err);
        if (status) {
            ravel_error_prefix(err, "row %" PRId64, samples->rows ? samples->rows[i] : i);
            return status;
        }
    }
    return RAVEL_OK;
}

static void split_row(ravel__columns *c, int64_t i, const int64_t *row) {
    RAVEL_ASSERT(i >= 0 && i < c->count);
    uint64_t lengths = (uint64_t)*row++;
    c->at[COLUMN_LENGTH][i] = (int64_t)(uint32_t)lengths;
    c->at[COLUMN_LOSS][i] = (int64_t)(lengths >> 32);
    c->at[COLUMN_ID][i] = *row == RAVEL__NO_ID ? i : *row;
    row++;
    c->at[COLUMN_PART][i] = c->has_parts ? *row++ : 0;
    for (int k = COLUMN_WEIGHT; k < COLUMNS; k++)
        if (c->at[k]) c->at[k][i] = *row++;
}

ravel_status ravel__columns_split(ravel__columns *c, const ravel__fields *fields, const ravel_allocator *allocator,
                                  ravel_error *err) {
    const int present[COLUMNS] = {1,
                                  1,
                                  1,
                                  1,
                                  fields->sample_weight >= 0,
                                  fields->group >= 0,
                                  fields->update >= 0,
                                  fields->cost >= 0,
                                  fields->prompts};
    int64_t width = ravel__columns_width(fields, c->has_parts), columns = 0;
    for (int k = 0; k < COLUMNS; k++) columns += present[k];
    RAVEL_ASSERT(columns == width + 2 - c->has_parts && columns <= COLUMNS); /* a row has length and loss in one word */
    ravel_status status = ravel__buffer_reserve(&c->columns, allocator, c->count, (size_t)columns * sizeof(int64_t),
                                                "the lengths of all samples", err);
    if (status) return status;
    c->column_count = columns;
    for (int64_t k = 0, from = 0; k < COLUMNS; k++)
        c->at[k] = present[k] && c->count ? (int64_t *)c->columns.at + from++ * c->count : NULL;
    for (int64_t i = 0; i < c->count; i++) {
        split_row(c, i, (const int64_t *)c->all.at + i * width);
        RAVEL_ASSERT(c->at[COLUMN_LOSS][i] <= c->at[COLUMN_LENGTH][i] && c->at[COLUMN_PART][i] >= 0);
    }
    return RAVEL_OK;
}

void ravel__columns_free(ravel__columns *c, const ravel_allocator *allocator) {
    ravel__buffer_free(&c->mine, allocator);
    ravel__buffer_free(&c->all, allocator);
    ravel__buffer_free(&c->columns, allocator);
    ravel__buffer_free(&c->ranks, allocator);
    ravel__buffer_free(&c->tree, allocator);
}

/* ---- gathering ------------------------------------------------------------------------------------------ */

/* This rank's rows of integers. */
static ravel_status fill_mine(ravel_feed *feed, ravel_error *err) {
    RAVEL_ASSERT(feed->place.owner && feed->work.mine);
    ravel__columns *c = &feed->work.columns;
    int64_t width = ravel__columns_width(&feed->fields, c->has_parts);
    ravel_status status = ravel__buffer_reserve(&c->mine, feed->allocator, feed->work.mine->ragged.count,
                                                (size_t)width * sizeof(int64_t), "the lengths of samples", err);
    return status ? status : ravel__columns_fill(&feed->fields, feed->work.mine, c->has_parts, c->mine.at, err);
}

/* The root has read all samples. */
static ravel_status keep_mine(ravel_feed *feed, ravel_error *err) {
    RAVEL_ASSERT(feed->options.owners == RAVEL_OWNERS_ROOT_ONLY);
    ravel__columns *c = &feed->work.columns;
    c->count = feed->work.mine->ragged.count;
    ravel__buffer all = c->all;
    c->all = c->mine;
    c->mine = all;
    memset(c->counts, 0, (size_t)feed->plan.dp * sizeof *c->counts);
    c->counts[0] = c->count;
    return ravel__columns_split(c, &feed->fields, feed->allocator, err);
}

static ravel_status gather_rows(ravel_feed *feed, ravel_error *err) {
    RAVEL_ASSERT(feed->work.columns.count >= feed->work.columns.counts[feed->place.at.dp]);
    ravel__columns *c = &feed->work.columns;
    int64_t width = ravel__columns_width(&feed->fields, c->has_parts);
    ravel_status status = ravel__buffer_reserve(&c->all, feed->allocator, c->count, (size_t)width * sizeof(int64_t),
                                                "the lengths of all samples", err);
    if (status) { /* the others are on their way into the gather */
        ravel_comm_abort(feed->place.world, err);
        return status;
    }
    feed->work.gathered_bytes =
        (1 + c->counts[feed->place.at.dp] * width) * (int64_t)sizeof(int64_t) * (feed->plan.dp - 1);
    status = ravel_gather(feed->place.dp, c->mine.at, c->counts, width, c->all.at, err);
    return status ? status : ravel__columns_split(c, &feed->fields, feed->allocator, err);
}

/* Rows of `width` words become shorter by the third. */
static void drop_parts(ravel__columns *c, int64_t count, int64_t width) {
    RAVEL_ASSERT(count >= 0 && width >= 3);
    int64_t *to = c->mine.at;
    for (int64_t i = 0; i < count; i++) {
        const int64_t *from = (const int64_t *)c->mine.at + i * width;
        *to++ = from[0];
        *to++ = from[1];
        for (int64_t k = 3; k < width; k++) *to++ = from[k];
    }
}

/* One word per rank: the number of its samples, whether they have prompts, whether some row has several samples. */
enum { COUNTS_PROMPTS = 1, COUNTS_PARTS = 2, COUNTS_COUNT = 4 };
#define COUNTS_FAILED INT64_C(-1)

static int64_t counts_word(const ravel_samples *samples) {
    RAVEL_ASSERT(samples->ragged.count >= 0 && samples->ragged.count <= INT64_MAX / COUNTS_COUNT - 1);
    return COUNTS_COUNT * samples->ragged.count + (samples->ragged.prompts ? COUNTS_PROMPTS : 0) +
           (ravel__columns_have_parts(samples) ? COUNTS_PARTS : 0);
}

/* Samples have prompts everywhere or nowhere; those of a rank without samples are like the others'. */
static ravel_status read_prompt_kinds(ravel_feed *feed, ravel_error *err) {
    ravel__columns *c = &feed->work.columns;
    int32_t with = -1, without = -1;
    c->count = 0;
    c->has_parts = 0;
    for (int32_t r = 0; r < feed->plan.dp; r++) {
        if (c->counts[r] >= COUNTS_COUNT) *(c->counts[r] & COUNTS_PROMPTS ? &with : &without) = r;
        c->has_parts |= (c->counts[r] & COUNTS_PARTS) != 0;
        c->counts[r] /= COUNTS_COUNT;
        c->count += c->counts[r];
    }
    RAVEL_ASSERT(c->counts[feed->place.at.dp] == feed->work.mine->ragged.count);
    feed->work.has_prompts = with >= 0;
    if (with < 0 || without < 0) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "the samples of dp rank %d come with prompts, those of %d without",
                           with, without);
}

/* Words of all dp ranks into columns.counts. */
static ravel_status exchange_words(ravel_feed *feed, ravel_status mine, int *failed, ravel_error *err) {
    int64_t word = mine ? COUNTS_FAILED : counts_word(feed->work.mine);
    ravel_error lost = RAVEL_ERROR_INIT;
    ravel_status status = ravel_comm_allgather(feed->place.dp, &word, feed->work.columns.counts, 1, RAVEL_I64, &lost);
    if (status) return mine ? mine : ravel_error_set(err, status, "%s", lost.message);
    for (int32_t r = 0; r < feed->plan.dp; r++) *failed |= feed->work.columns.counts[r] == COUNTS_FAILED;
    if (*failed) return mine;
    mine = read_prompt_kinds(feed, err); /* every rank of the group gets the same words, and so the same error */
    *failed = mine != RAVEL_OK;
    return mine;
}

/* Rows are made with parts, in case other ranks have them; they are rewritten without, in place, where no rank has. */
ravel_status ravel__feed_gather(ravel_feed *feed, ravel_status mine, int *failed, ravel_error *err) {
    ravel__columns *c = &feed->work.columns;
    feed->work.gathered_bytes = 0;
    feed->work.columns.shared = NULL;
    if (!feed->place.owner) return mine;
    c->has_parts = 1;
    if (!mine) mine = fill_mine(feed, err);
    if (feed->options.owners == RAVEL_OWNERS_ROOT_ONLY) {
        *failed = mine != RAVEL_OK;
        return mine ? mine : keep_mine(feed, err);
    }
    mine = exchange_words(feed, mine, failed, err);
    if (mine || *failed) return mine;
    if (!c->has_parts) drop_parts(c, feed->work.mine->ragged.count, ravel__columns_width(&feed->fields, 1));
    return gather_rows(feed, err);
}
