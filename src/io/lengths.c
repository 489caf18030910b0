/* Lengths and other columns from files: which format, which columns, and the arrays that come out. */
#include <ravel/lengths.h>

#include "base/assert.h"
#include "io/columns.h"
#include "base/memory.h"
#include "base/options.h"
#include "io/holder.h"
#include "io/foreign.h"
#include "io/integers.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* ---- options -------------------------------------------------------------------------------------------- */

#define ROW(...) RAVEL__ROW(ravel_read_options, __VA_ARGS__)
static const ravel_option read_table[] = {
    ROW("format", ENUM, format, "auto", 0, 0, RAVEL_FORMAT_CHOICES,
        "format of the file of lengths; auto goes by its name"),
    ROW("field", STRING, field, NULL, 0, 0, NULL,
        "what to read: a column, a JSONL path such as usage.total, or two with a comma: prompt,response"),
    ROW("limit", I64, limit, "0", 0, 1e15, NULL, "limit of rows to read; 0: all"),
    {0}};

ravel_option_table ravel_read_option_table(void) {
    return read_table;
}

void ravel_read_options_default(ravel_read_options *options) {
    ravel__options_preset(read_table, options, sizeof *options);
}

/* ---- formats -------------------------------------------------------------------------------------------- */

typedef ravel_status (*reader)(ravel__source *source, ravel__integers *table, ravel_error *err);

static const struct {
    int32_t format;
    reader read;
    const char *extensions[4];
} formats[] = {{RAVEL_FORMAT_CSV, ravel__csv_read, {".csv", ".tsv", ".txt"}},
               {RAVEL_FORMAT_JSONL, ravel__jsonl_read, {".jsonl", ".ndjson", ".json"}},
               {RAVEL_FORMAT_NPY, ravel__npy_read, {".npy"}}};
enum { FORMATS = sizeof formats / sizeof *formats };

static int ends_with(const char *text, const char *end) {
    size_t a = strlen(text), b = strlen(end);
    if (a < b) return 0;
    for (size_t i = 0; i < b; i++)
        if (tolower((unsigned char)text[a - b + i]) != end[i]) return 0;
    return 1;
}

static reader reader_of(int32_t format) {
    RAVEL_ASSERT(format != RAVEL_FORMAT_AUTO);
    for (int i = 0; i < FORMATS; i++)
        if (formats[i].format == format) return formats[i].read;
    return NULL;
}

static reader by_extension(const char *name) {
    for (int i = 0; i < FORMATS; i++)
        for (const char *const *e = formats[i].extensions; *e; e++)
            if (ends_with(name, *e)) return formats[i].read;
    return NULL;
}

/* ---- reading -------------------------------------------------------------------------------------------- */

/* Where the name says nothing (a pipe, say): NPY has its magic, JSON begins with a brace or bracket, the rest is
 * CSV. */
static reader by_content(const char *bytes, size_t count) {
    size_t at = 0;
    if (count >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) at = 3;
    while (at < count && isspace((unsigned char)bytes[at])) at++;
    char first = at < count ? bytes[at] : '0';
    if (first == '\x93') return reader_of(RAVEL_FORMAT_NPY);
    return reader_of(first == '{' || first == '[' ? RAVEL_FORMAT_JSONL : RAVEL_FORMAT_CSV);
}

static ravel_status find_reader(ravel__source *source, int32_t format, reader *read, ravel_error *err) {
    const char *bytes;
    size_t count;
    ravel_status status = ravel__source_peek(source, &bytes, &count, err);
    if (status) return status;
    *read = format == RAVEL_FORMAT_AUTO ? by_extension(source->name) : reader_of(format);
    if (*read != ravel__npy_read)
        status =
            ravel__foreign_check(source->name, bytes, count, *read ? RAVEL__WANTED_TEXT : RAVEL__WANTED_ARRAY, err);
    if (status) return status;
    if (!*read && format == RAVEL_FORMAT_AUTO) *read = by_content(bytes, count);
    if (*read) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "format %d is none of %s", (int)format, RAVEL_FORMAT_CHOICES);
}

/* Moves the table's arrays to the holder. */
static void take_over(ravel__holder *h, const ravel__integers *table) {
    RAVEL_ASSERT(table->count <= table->rooms[0] && (!table->lines || table->count <= table->line_room));
    RAVEL_ASSERT(table->count >= 1 && (table->width == 2) == (table->columns[1] != NULL));
    h->allocator = table->ask->allocator;
    memcpy(h->columns, table->columns, sizeof h->columns);
    memcpy(h->rooms, table->rooms, sizeof h->rooms);
    h->lines = table->lines;
    h->line_room = table->line_room;
    h->as.lengths.count = table->count; /* the same place in a column */
    (void)snprintf(h->as.lengths.columns, sizeof h->as.lengths.columns, "%s", table->label);
}

static ravel_status read_table_from(ravel__source *source, int32_t format, const ravel__ask *ask, ravel__holder **out,
                                    ravel_error *err) {
    reader read = NULL;
    ravel__integers table;
    ravel_status status = find_reader(source, format, &read, err);
    if (status) return status;
    RAVEL_ASSERT(read);
    ravel__holder *h = ravel__calloc(ask->allocator, 1, sizeof *h);
    if (!h) return ravel__no_memory(err, sizeof *h, "a column of numbers");
    ravel__integers_init(&table, ask);
    status = read(source, &table, err);
    if (!status && table.count == 0) status = ravel_error_set(err, RAVEL_E_DATA, "%s: it has no rows", source->name);
    if (status) {
        ravel__integers_free(&table);
        ravel__release(ask->allocator, h, sizeof *h);
        return status;
    }
    take_over(h, &table);
    *out = h;
    return RAVEL_OK;
}

void ravel__holder_free(ravel__holder *h) {
    if (!h) return;
    RAVEL_ASSERT(h->rooms[0] >= 0 && h->rooms[1] >= 0 && h->line_room >= 0);
    for (int i = 0; i < 2; i++) ravel__release(h->allocator, h->columns[i], (size_t)h->rooms[i] * sizeof(int64_t));
    ravel__release(h->allocator, h->lines, (size_t)h->line_room * sizeof(int64_t));
    ravel__release(h->allocator, h, sizeof *h);
}

/* The caller's struct may be older and so shorter than ours. */
static ravel_read_options settle(const ravel_read_options *options) {
    ravel_read_options o;
    ravel_read_options_default(&o);
    if (options) memcpy(&o, options, options->size < sizeof o ? options->size : sizeof o);
    return o;
}

/* ---- lengths -------------------------------------------------------------------------------------------- */

static const char *const length_names[][2] = {{"prompt_len", "response_len"},
                                              {"prompt_length", "response_length"},
                                              {"prompt_tokens", "response_tokens"},
                                              {"prompt_tokens", "completion_tokens"},
                                              {"prompt_ids", "response_ids"},
                                              {"prompt_token_ids", "response_token_ids"},
                                              {"prompt", "response"},
                                              {"input_len", "output_len"},
                                              {"input_length", "output_length"},
                                              {"input_tokens", "output_tokens"},
                                              {"context_tokens", "generated_tokens"},
                                              {"request_tokens", "response_tokens"},
                                              {"num_prefill_tokens", "num_decode_tokens"},
                                              {"length", NULL},
                                              {"lengths", NULL},
                                              {"len", NULL},
                                              {"seq_len", NULL},
                                              {"seqlen", NULL},
                                              {"sequence_length", NULL},
                                              {"num_tokens", NULL},
                                              {"n_tokens", NULL},
                                              {"token_count", NULL},
                                              {"total_tokens", NULL},
                                              {"tokens", NULL},
                                              {"input_ids", NULL},
                                              {"token_ids", NULL},
                                              {NULL, NULL}};

void ravel__holder_lengths(ravel__holder *h) {
    ravel_lengths *l = &h->as.lengths;
    RAVEL_ASSERT(h->columns[0] && l->count >= 0);
    l->lines = h->lines;
    if (h->columns[1]) {
        l->prompts = h->columns[0];
        l->responses = h->columns[1];
    } else {
        l->lengths = h->columns[0];
    }
    RAVEL_ASSERT(l->count <= h->rooms[0] && (!h->columns[1] || l->count <= h->rooms[1]));
    for (int64_t i = 0; i < l->count; i++) {
        int64_t length = h->columns[0][i] + (h->columns[1] ? h->columns[1][i] : 0);
        RAVEL_ASSERT(length >= 0 && length <= INT64_C(1) << 31);
        l->total += length; /* at most 2^31 each, and 2^32 of them do not fit memory */
        if (length > l->longest) l->longest = length;
    }
    RAVEL_ASSERT(l->total >= l->longest && l->longest <= 2 * (INT64_C(1) << 31));
}

static ravel_status read_lengths(ravel__source *source, const ravel_read_options *o, ravel_lengths **lengths,
                                 ravel_error *err) {
    ravel__ask ask = {"length", o->field, length_names, 1, INT64_C(1) << 31, 1, 0, o->limit, o->allocator};
    ravel__holder *h = NULL;
    source->progress = o->progress;
    source->user = o->user;
    ravel_status status = read_table_from(source, o->format, &ask, &h, err);
    if (!h) return status;
    ravel__holder_lengths(h);
    *lengths = &h->as.lengths;
    return RAVEL_OK;
}

ravel_status ravel_lengths_read(const char *path, const ravel_read_options *options, ravel_lengths **lengths,
                                ravel_error *err) {
    ravel_read_options o = settle(options);
    ravel__source source;
    ravel_status status = ravel__source_open(&source, path, err);
    if (status) return status;
    status = read_lengths(&source, &o, lengths, err);
    ravel__source_close(&source);
    return status;
}

ravel_status ravel__lengths_parse(const char *name, const void *data, size_t bytes, const ravel_read_options *options,
                                  ravel_lengths **lengths, ravel_error *err) {
    ravel_read_options o = settle(options);
    ravel__source source;
    ravel__source_memory(&source, name ? name : "lengths", data, bytes);
    return read_lengths(&source, &o, lengths, err);
}

void ravel_lengths_free(ravel_lengths *lengths) {
    ravel__holder_free((ravel__holder *)lengths);
}

/* ---- other columns -------------------------------------------------------------------------------------- */

ravel_status ravel__column_read(const char *path, const char *name, int64_t min, int64_t max,
                                const ravel_read_options *options, ravel__column **column, ravel_error *err) {
    ravel_read_options o = settle(options);
    char variants[3][80];
    static const char *const patterns[] = {"%s", "%s_id", "%s_rank"};
    const char *names[4][2] = {{0}};
    for (int i = 0; i < 3; i++) {
        (void)snprintf(variants[i], sizeof variants[i], patterns[i], name);
        names[i][0] = variants[i];
    }
    ravel__ask ask = {name, o.field, (const char *const(*)[2])names, min, max, 0, 0, o.limit, o.allocator};
    ravel__source source;
    ravel__holder *h = NULL;
    ravel_status status = ravel__source_open(&source, path, err);
    if (status) return status;
    source.progress = o.progress;
    source.user = o.user;
    status = read_table_from(&source, o.format, &ask, &h, err);
    ravel__source_close(&source);
    if (!h) return status;
    RAVEL_ASSERT(h->columns[0] && !h->columns[1]);
    h->as.column.values = h->columns[0];
    *column = &h->as.column;
    return RAVEL_OK;
}

void ravel__column_free(ravel__column *column) {
    ravel__holder_free((ravel__holder *)column);
}
