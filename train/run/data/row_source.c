/* The rows of a run: of one file or of several with weights, all or the part that is learnt or evaluated; for dpo they
 * must be pairs.
 *
 *     --data a.jsonl:3 b.jsonl:1 --eval-share 0.25
 *
 *     a.jsonl   [ in a shuffled order: learnt ............ | evaluated ]      the last quarter of the order of each file
 *     b.jsonl   [ learnt ... | evaluated ]
 *     an epoch  [ a a a a a a a a a | b b b ]                                 as many rows of each as the weights say:
 *                                                                             at least every row of every file once
 *
 * The feed shuffles an epoch, so each update is a mixture. Several threads may read at once: each call borrows a set of
 * readers from a short list. */
#include "train/run/data/data.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/rl/prompts.h"

#include <ravel/order.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 64 };

/* The readers of one call. */
typedef struct worker {
    ravel_reader *readers[TRAIN_FILES];
} worker;

/* Positions first .. first + count - 1 of the order of a file's rows, repeated up to the row `end` of the whole. */
typedef struct file_rows {
    ravel_source *source;
    ravel_order order;
    int64_t first, count, end;
} file_rows;

typedef struct rows {
    file_rows files[TRAIN_FILES];
    int32_t file_count;
    int32_t pairs, skip; /* bad rows count as having no samples; train_data_check has named them */
    pthread_mutex_t lock;
    worker *idle[WORKERS];
    int32_t idle_count;
} rows;

static void free_worker(worker *w) {
    for (int32_t i = 0; w && i < TRAIN_FILES; i++) ravel_reader_free(w->readers[i]);
    free(w);
}

static worker *borrow(rows *r) {
    (void)pthread_mutex_lock(&r->lock);
    RAVEL_ASSERT(r->idle_count >= 0 && r->idle_count <= WORKERS);
    worker *w = r->idle_count > 0 ? r->idle[--r->idle_count] : NULL;
    (void)pthread_mutex_unlock(&r->lock);
    return w ? w : calloc(1, sizeof *w);
}

static void give_back(rows *r, worker *w) {
    (void)pthread_mutex_lock(&r->lock);
    int kept = r->idle_count < WORKERS;
    RAVEL_ASSERT(r->idle_count >= 0 && w);
    if (kept) r->idle[r->idle_count++] = w;
    (void)pthread_mutex_unlock(&r->lock);
    if (!kept) free_worker(w);
}

/* The file that has this row of the whole, and the row's number there. */
static int32_t locate(const rows *r, int64_t row, int64_t *own) {
    int32_t f = 0;
    while (row >= r->files[f].end) f++;
    const file_rows *file = &r->files[f];
    int64_t at = file->first + (row - (f ? r->files[f - 1].end : 0)) % file->count;
    RAVEL_ASSERT(f < r->file_count && at < file->order.count);
    *own = file->order.shuffle ? ravel_order_row(&file->order, 0, at) : at;
    return f;
}

static size_t where_row(void *user, int64_t row, char *text, size_t bytes) {
    const rows *r = user;
    int64_t own;
    int32_t f = locate(r, row, &own);
    return ravel_source_where(r->files[f].source, own, text, bytes);
}

/* The samples as they are. */
static ravel_status pass_on(const ravel_ragged *r, ravel_collector *collector, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < r->count && !status; i++) {
        int64_t from = r->offsets[i];
        const void *data[] = {(const int32_t *)r->fields[0].data + from, (const uint8_t *)r->fields[1].data + from};
        status = ravel_collector_add(collector, r->offsets[i + 1] - from, data, err);
    }
    return status;
}

static ravel_status no_pair(const ravel_source *source, int64_t row, const char *why, ravel_error *err) {
    char where[256];
    (void)ravel_source_where(source, row, where, sizeof where);
    return ravel_error_set(err, RAVEL_E_DATA, "%s: %s", where, why);
}

/* A row of two different answers, or of none: a bad row that is skipped. */
static ravel_status check_pair(const ravel_source *source, int64_t row, const ravel_ragged *r, ravel_error *err) {
    if (r->count == 0) return RAVEL_OK;
    if (r->count != 2) return no_pair(source, row, "this row is not a pair: it needs \"chosen\" and \"rejected\"", err);
    int64_t from = r->offsets[0], chosen = r->offsets[1] - from;
    const int32_t *tokens = (const int32_t *)r->fields[0].data + from;
    if (2 * chosen == r->offsets[2] - from && memcmp(tokens, tokens + chosen, (size_t)chosen * sizeof *tokens) == 0)
        return no_pair(source, row, "chosen and rejected are the same: there is nothing to prefer", err);
    return RAVEL_OK;
}

static ravel_status read_row(void *user, int64_t row, ravel_collector *collector, ravel_error *err) {
    rows *r = user;
    int64_t own;
    int32_t f = locate(r, row, &own);
    const ravel_source *source = r->files[f].source;
    const ravel_samples *samples;
    worker *w = borrow(r);
    if (!w) return ravel__no_memory(err, sizeof *w, "a reader");
    ravel_status status = w->readers[f] ? RAVEL_OK : ravel_reader_create(source, NULL, NULL, &w->readers[f], err);
    if (!status) status = ravel_reader_read(w->readers[f], &own, 1, &samples, err);
    if (!status && r->pairs) status = check_pair(source, own, &samples->ragged, err);
    if (!status) status = pass_on(&samples->ragged, collector, err);
    if (!status) ravel_collector_inserted(collector, samples->inserted, samples->inserted_text);
    give_back(r, w);
    if (status != RAVEL_E_DATA || !r->skip) return status;
    ravel_error_clear(err);
    return RAVEL_OK;
}

static void close_rows(void *user) {
    rows *r = user;
    for (int32_t i = 0; i < r->idle_count; i++) free_worker(r->idle[i]);
    for (int32_t i = 0; i < r->file_count; i++) ravel_source_free(r->files[i].source);
    (void)pthread_mutex_destroy(&r->lock);
    free(r);
}

/* ---- which rows ----------------------------------------------------------------------------------------- */

/* The part of each file. Shares are rounded down per file, so a file of few rows may have none to evaluate. */
static ravel_status choose_part(rows *r, const train_rows_options *o, train_rows_part part, ravel_error *err) {
    const uint64_t split =
        UINT64_C(0x6576616c); /* not the run's seed: every run on these files evaluates the same rows */
    int64_t all = 0, apart = 0, kept;
    for (int32_t i = 0; i < r->file_count; i++) {
        file_rows *f = &r->files[i];
        int64_t count = ravel_source_count(f->source);
        int64_t evaluated = part == TRAIN_ROWS_ALL ? 0 : (int64_t)((double)count * o->eval_share);
        int shuffled = part != TRAIN_ROWS_ALL && o->eval_share > 0 && o->eval_shuffle;
        f->order = (ravel_order){.size = sizeof f->order, .count = count, .seed = split, .shuffle = shuffled};
        f->first = part == TRAIN_ROWS_EVAL ? count - evaluated : 0;
        f->count = part == TRAIN_ROWS_EVAL ? evaluated : count - evaluated;
        all += count;
        apart += evaluated;
    }
    if (part == TRAIN_ROWS_ALL || o->eval_share <= 0 || (apart > 0 && apart < all)) return RAVEL_OK;
    return train_eval_rows(all, apart ? 1 : 1e-300, &kept, err); /* it has the sentence */
}

/* Rows of each file in an epoch: its own, or with weights, of as many that the file which lacks rows most has all of
 * them. */
static void choose_epoch(rows *r, const train_files *files, int weighted) {
    double sum = 0, epoch = 0;
    int64_t end = 0;
    for (int32_t i = 0; i < r->file_count; i++) sum += files->weights[i];
    for (int32_t i = 0; i < r->file_count && weighted; i++)
        epoch = fmax(epoch, (double)r->files[i].count * sum / files->weights[i]);
    for (int32_t i = 0; i < r->file_count; i++) {
        file_rows *f = &r->files[i];
        double share = weighted ? epoch * files->weights[i] / sum : 0;
        int64_t count = weighted && f->count ? train__max(f->count, (int64_t)(share + 0.5)) : f->count;
        RAVEL_ASSERT(count >= f->count && share < 9e15);
        f->end = end += count;
    }
}

static ravel_status make_source(rows *r, ravel_source **source, ravel_error *err) {
    static const ravel_field fields[] = {
        {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32},
        {.name = "loss_mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_U8},
    };
    ravel_source_hooks hooks = {.size = sizeof hooks,
                                .user = r,
                                .count = r->files[r->file_count - 1].end,
                                .fields = fields,
                                .field_count = 2,
                                .read = read_row,
                                .close = close_rows,
                                .where = where_row};
    return ravel_source_callbacks(&hooks, source, err);
}

static ravel_status open_files(rows *r, const train_rows_options *o, const train_files *files, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    ravel_source_options own = *o->source;
    for (int32_t i = 0; i < (files->count ? files->count : 1) && !status; i++) {
        if (files->count) own.data = files->paths[i];
        status = ravel_source_open(&own, &r->files[i].source, err);
        if (!status) r->file_count++;
    }
    return status;
}

ravel_status train_rows_open(const train_rows_options *options, train_rows_part part, ravel_source **source,
                             ravel_error *err) {
    train_files files;
    ravel_status status = train_files_parse(options->source->data, &files, err);
    if (status) return status;
    rows *r = calloc(1, sizeof *r);
    if (!r) return ravel__no_memory(err, sizeof *r, "a source of rows");
    r->pairs = options->pairs;
    r->skip = options->source->bad_rows == RAVEL_BAD_ROWS_SKIP;
    (void)pthread_mutex_init(&r->lock, NULL);
    status = open_files(r, options, &files, err);
    if (!status) status = choose_part(r, options, part, err);
    if (!status) choose_epoch(r, &files, files.weighted && part == TRAIN_ROWS_LEARN);
    if (!status) status = make_source(r, source, err);
    if (status) close_rows(r);
    return status;
}
