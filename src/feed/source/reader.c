/* A reader: one thread's collector and scratch, and the rule for bad rows. */
#include "feed/source/source.h"

#include "base/assert.h"
#include "base/log.h"

#include <inttypes.h>
#include <string.h>

struct ravel_reader {
    const ravel_source *source;
    const ravel_allocator *allocator;
    const ravel_logger *logger;
    ravel_collector collector;
    ravel_samples view;
    ravel_field *fields; /* the source's, with this reader's data */
    size_t fields_bytes;
    void *scratch;
    ravel_reader_stats stats;
};

static ravel_status reader_init(ravel_reader *r, ravel_error *err) {
    const ravel_source *source = r->source;
    ravel_status status = ravel__collector_init(&r->collector, source->fields, source->field_count, r->allocator, err);
    r->collector.truncate = source->truncate;
    if (status) return status;
    r->fields = ravel__fields_copy(source->fields, source->field_count, r->allocator, &r->fields_bytes);
    if (!r->fields) return ravel__no_memory(err, r->fields_bytes, "the fields of a reader");
    if (source->kind->scratch_bytes) {
        r->scratch = ravel__calloc(r->allocator, 1, source->kind->scratch_bytes);
        if (!r->scratch) status = ravel__no_memory(err, source->kind->scratch_bytes, "a reader's scratch");
    }
    return status;
}

ravel_status ravel_reader_create(const ravel_source *source, const ravel_allocator *allocator,
                                 const ravel_logger *logger, ravel_reader **reader, ravel_error *err) {
    ravel_reader *r = ravel__calloc(allocator, 1, sizeof *r);
    if (!r) return ravel__no_memory(err, sizeof *r, "a reader");
    r->source = source;
    r->allocator = allocator;
    r->logger = logger;
    ravel_status status = reader_init(r, err);
    if (status) {
        ravel_reader_free(r);
        return status;
    }
    *reader = r;
    return RAVEL_OK;
}

void ravel_reader_free(ravel_reader *reader) {
    if (!reader) return;
    const ravel_allocator *allocator = reader->allocator;
    const ravel__source_kind *kind = reader->source->kind;
    if (reader->scratch) {
        if (kind->scratch_free) kind->scratch_free(allocator, reader->scratch);
        ravel__release(allocator, reader->scratch, kind->scratch_bytes);
    }
    ravel__collector_free(&reader->collector);
    ravel__release(allocator, reader->fields, reader->fields_bytes);
    ravel__release(allocator, reader, sizeof *reader);
}

/* One row; the samples of a bad one are removed, and it is a warning if the source skips bad rows. */
static ravel_status read_row(ravel_reader *r, int64_t row, ravel_error *err) {
    RAVEL_ASSERT(row >= 0 && row < r->source->count);
    const ravel_source *source = r->source;
    ravel_error local = RAVEL_ERROR_INIT;
    r->collector.row = row;
    r->collector.first = r->collector.count;
    RAVEL_ASSERT(((const int64_t *)r->collector.offsets.at)[r->collector.count] == r->collector.tokens);
    ravel_status status = source->kind->read(source, r->scratch, row + source->first_row, &r->collector, &local);
    if (!status) return RAVEL_OK;
    ravel__collector_rewind(&r->collector, r->collector.first);
    if (local.status == RAVEL_OK) /* a callback that failed without a sentence */
        (void)ravel_error_set(&local, status, "the source failed at row %" PRId64 ": %s", row,
                              ravel_status_text(status));
    if (status == RAVEL_E_END || status >= RAVEL_E_PEER_LOST)
        status = RAVEL_E_CALLBACK; /* these statuses have another meaning here */
    if (status != RAVEL_E_DATA || source->bad_rows != RAVEL_BAD_ROWS_SKIP)
        return ravel_error_set(err, status, "%s", local.message);
    r->stats.skipped++;
    ravel__log(r->logger, RAVEL_LOG_WARN, "%s; the row is skipped", local.message);
    return RAVEL_OK;
}

static ravel_status check_row(const ravel_reader *r, int64_t row, ravel_error *err) {
    if (row >= 0 && row < r->source->count) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "row %" PRId64 " was asked for, the source has %" PRId64, row,
                           r->source->count);
}

static const ravel_samples *make_view(ravel_reader *r) {
    RAVEL_ASSERT(r->collector.tokens >= r->collector.count && r->collector.field_count == r->source->field_count);
    for (int32_t f = 0; f < r->collector.field_count; f++) r->fields[f].data = r->collector.data[f].at;
    r->view.ragged = (ravel_ragged){.size = sizeof r->view.ragged,
                                    .count = r->collector.count,
                                    .offsets = r->collector.offsets.at,
                                    .fields = r->fields,
                                    .field_count = r->collector.field_count};
    r->view.rows = r->collector.rows.at;
    r->view.parts = r->collector.parts.at;
    r->view.inserted = r->collector.inserted;
    r->view.inserted_text = r->collector.inserted ? r->collector.inserted_text : NULL;
    return &r->view;
}

ravel_status ravel_reader_read(ravel_reader *reader, const int64_t *rows, int64_t count, const ravel_samples **samples,
                               ravel_error *err) {
    ravel_status status = RAVEL_OK;
    ravel__collector_clear(&reader->collector);
    for (int64_t i = 0; i < count && !status; i++) {
        status = check_row(reader, rows[i], err);
        if (!status) status = read_row(reader, rows[i], err);
    }
    if (status) {
        ravel__collector_clear(&reader->collector);
        return status;
    }
    reader->stats.rows += count;
    reader->stats.samples += reader->collector.count;
    reader->stats.tokens += reader->collector.tokens;
    reader->stats.truncated = reader->collector.truncated;
    *samples = make_view(reader);
    return RAVEL_OK;
}

void ravel__reader_read_stats(const ravel_reader *reader, ravel_reader_stats *stats) {
    *stats = reader->stats;
}
