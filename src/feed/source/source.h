/* Shared by the kinds of sources: the table behind a ravel_source, and the collector that samples are put into.
 *
 *   ravel_source           shared, read-only   --- kind->read(source, scratch, row, collector) --->   a reader's collector
 *   scratch                one reader's own memory for a kind (a JSON document, decoded arrays)
 *
 * A kind embeds ravel_source as its first member. */
#ifndef RAVEL_FEED_SOURCE_H
#define RAVEL_FEED_SOURCE_H

#include <ravel/source.h>

#include "feed/source/field.h"
#include "base/buffer.h"

typedef struct ravel__source_kind {
    const char *name;
    size_t scratch_bytes; /* zeroed before the first read; 0: none */
    /* Puts the samples of a row (0 .. count-1 of this source's rows, first_row already added) into the collector.
     * Thread-safe. On an error the front takes back what was put. */
    ravel_status (*read)(const ravel_source *source, void *scratch, int64_t row, ravel_collector *collector,
                         ravel_error *err);
    void (*scratch_free)(const ravel_allocator *allocator, void *scratch); /* its content; may be NULL */
    void (*close)(ravel_source *source);                                   /* what it owns; may be NULL */
    /* "file:line" of a row, first_row already added, like snprintf; NULL: a source without a file. */
    size_t (*where)(const ravel_source *source, int64_t row, char *text, size_t bytes);
} ravel__source_kind;

struct ravel_source {
    const ravel__source_kind *kind;
    const ravel_allocator *allocator;
    size_t bytes; /* of the whole object */
    int64_t count, first_row;
    int64_t truncate;
    int32_t bad_rows;
    int32_t field_count;
    ravel_field *fields;
    size_t fields_bytes; /* the fields with their names */
};

/* An object of `bytes` that begins with a ravel_source whose fields are a copy of fields[count]. */
ravel_status ravel__source_create(const ravel__source_kind *kind, size_t bytes, const ravel_field *fields,
                                  int64_t count, const ravel_allocator *allocator, ravel_source **source,
                                  ravel_error *err);
/* Keeps only the rows that options.first_row and end_row leave of `rows`. */
ravel_status ravel__source_range(ravel_source *source, int64_t rows, const ravel_source_options *options,
                                 ravel_error *err);

ravel_status ravel__source_open_jsonl(const ravel_source_options *options, const ravel_field *fields,
                                      int64_t field_count, ravel_source **source, ravel_error *err);
ravel_status ravel__source_open_mock(const ravel_source_options *options, const ravel_field *fields,
                                     int64_t field_count, ravel_source **source, ravel_error *err);

/* Fields that every source by options has, in this order. */
enum { RAVEL__FIELD_TOKENS, RAVEL__FIELD_MASK, RAVEL__FIELDS_BUILT_IN };

/* ---- the collector ------------------------------------------------------------------------------------------- */

struct ravel_collector {
    const ravel_allocator *allocator;
    const ravel_field *fields;
    int32_t field_count;
    int64_t row;       /* that is being read */
    int64_t first;     /* its first sample */
    int64_t truncate;  /* 0: never */
    int64_t truncated; /* samples that were cut */
    int64_t count, tokens;
    ravel__buffer offsets, rows, parts;
    ravel__buffer *data; /* [field_count] */
    int64_t inserted;
    char inserted_text[64];
};

ravel_status ravel__collector_init(ravel_collector *collector, const ravel_field *fields, int32_t field_count,
                                   const ravel_allocator *allocator, ravel_error *err);
void ravel__collector_free(ravel_collector *collector);
void ravel__collector_clear(ravel_collector *collector);
/* How long a sample of `length` tokens will be. */
int64_t ravel__collector_cut(const ravel_collector *collector, int64_t length);
/* Makes room for one more sample of `length` tokens, already cut, and says where field f of it goes. */
ravel_status ravel__collector_room(ravel_collector *collector, int64_t length, ravel_error *err);
void *ravel__collector_place(const ravel_collector *collector, int32_t field);
/* The sample whose places were filled is there. */
void ravel__collector_push(ravel_collector *collector, int64_t length);
/* Back to `count` samples. */
void ravel__collector_rewind(ravel_collector *collector, int64_t count);

void ravel__reader_read_stats(const ravel_reader *reader, ravel_reader_stats *stats);

#endif
