/* The front of every source: fields, row ranges, readers, what happens to bad rows. The kinds are in source_*.c. */
#include "feed/source/source.h"

#include "base/options.h"

#include <ravel/chat.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- options -------------------------------------------------------------------------------------------- */

#define ROW(...) RAVEL__ROW(ravel_source_options, __VA_ARGS__)
static const ravel_option table[] = {
    ROW("data", STRING, data, NULL, 0, 0, "FILE", "read samples from this JSON-lines file"),
    ROW("mock", STRING, mock, NULL, 0, 0, "JSON",
        "or synthetic samples: JSON as in ravel plan --mock, or @file with it"),
    ROW("vocab", I64, vocab, "0", 0, 2147483647, NULL,
        "mock tokens are below this (0: 32000); a larger token in a file is an error (0: any)"),
    ROW("fields", STRING, fields, NULL, 0, 0, "LIST",
        "more fields of the samples, name:dtype[:kind[:width]] (kind: " RAVEL__FIELD_KIND_CHOICES
        "), separated by commas"),
    ROW("bos", I32, bos, "-1", -1, 2147483647, NULL, "token before text, -1: none"),
    ROW("eos", I32, eos, "-1", -1, 2147483647, NULL, "token after text, -1: none"),
    ROW("truncate", I64, truncate, "0", 0, 2147483648.0, NULL, "cut samples to this many tokens, 0: never"),
    ROW("bad-rows", ENUM, bad_rows, "error", 0, 0, RAVEL_BAD_ROWS_CHOICES, "what to do with a row that cannot be used"),
    ROW("first-row", I64, first_row, "0", 0, 1e15, NULL, "use only the rows from this one on"),
    ROW("end-row", I64, end_row, "0", 0, 1e15, NULL, "use only the rows before this one, 0: to the last"),
    ROW("tokenizer", STRING, tokenizer, NULL, 0, 0, "FOLDER",
        "text becomes the tokens of this model folder; without it, bytes"),
    ROW("chat-format", STRING, chat_format, NULL, 0, 0, "NAME",
        "how conversations are written: chatml, llama3, ..., or a file of a Jinja template; without it, the folder's"),
    ROW("chat-args", STRING, chat_args, NULL, 0, 0, "JSON",
        "variables of the chat template, such as {\"enable_thinking\": false}"),
    ROW("train-on", ENUM, train_on, "assistant", 0, 0, RAVEL_TRAIN_ON_CHOICES,
        "which tokens of a conversation get loss: every answer, the last one, or all"),
    ROW("index", ENUM, index, "auto", 0, 0, RAVEL_INDEX_CHOICES,
        "keep FILE.rows, the place of every row, beside the data; auto: for files of 16 MiB and more"),
    {NULL, 0, 0, NULL, 0, 0, NULL, NULL},
};
#undef AT

ravel_option_table ravel_source_option_table(void) {
    return table;
}

void ravel_source_options_default(ravel_source_options *options) {
    ravel__options_preset(table, options, sizeof *options);
}

static const ravel_field built_in[RAVEL__FIELDS_BUILT_IN] = {
    {.name = "tokens", .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I32, .width = 1},
    {.name = "loss_mask", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_U8, .width = 1},
};

/* ---- the object ----------------------------------------------------------------------------------------- */

ravel_status ravel__source_create(const ravel__source_kind *kind, size_t bytes, const ravel_field *fields,
                                  int64_t count, const ravel_allocator *allocator, ravel_source **source,
                                  ravel_error *err) {
    ravel_status status = ravel__fields_check(fields, count, err);
    if (status) return status;
    ravel_source *s = ravel__calloc(allocator, 1, bytes);
    if (!s) return ravel__no_memory(err, bytes, "a source");
    s->kind = kind;
    s->allocator = allocator;
    s->bytes = bytes;
    s->field_count = (int32_t)count;
    s->fields = ravel__fields_copy(fields, count, allocator, &s->fields_bytes);
    if (!s->fields) {
        size_t need = s->fields_bytes;
        ravel__release(allocator, s, bytes);
        return ravel__no_memory(err, need, "the fields of a source");
    }
    *source = s;
    return RAVEL_OK;
}

ravel_status ravel__source_range(ravel_source *source, int64_t rows, const ravel_source_options *options,
                                 ravel_error *err) {
    int64_t first = options->first_row, end = options->end_row ? options->end_row : rows;
    if (first > end || end > rows)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "rows %" PRId64 " to %" PRId64 " were asked for, the data has %" PRId64, first, end,
                               rows);
    source->first_row = first;
    source->count = end - first;
    source->truncate = options->truncate;
    source->bad_rows = options->bad_rows;
    return RAVEL_OK;
}

ravel_status ravel_source_open(const ravel_source_options *options, ravel_source **source, ravel_error *err) {
    ravel_field fields[RAVEL__FIELDS_MAX];
    char pool[RAVEL__FIELD_POOL];
    int64_t count = RAVEL__FIELDS_BUILT_IN;
    ravel_source_options own;
    ravel_source_options_default(&own);
    ravel_status status = ravel__take_options(table, "source", options, &own, sizeof own, err);
    if (status) return status;
    options = &own;
    if (!options->data == !options->mock)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a source needs either a data file or mock data%s",
                               options->data ? ", not both" : "");
    memcpy(fields, built_in, sizeof built_in);
    status = ravel__fields_parse(options->fields, fields, &count, pool, err);
    if (status) return status;
    if (options->data) return ravel__source_open_jsonl(options, fields, count, source, err);
    return ravel__source_open_mock(options, fields, count, source, err);
}

void ravel_source_free(ravel_source *source) {
    if (!source) return;
    const ravel_allocator *allocator = source->allocator;
    if (source->kind->close) source->kind->close(source);
    ravel__release(allocator, source->fields, source->fields_bytes);
    ravel__release(allocator, source, source->bytes);
}

int64_t ravel_source_count(const ravel_source *source) {
    return source->count;
}

const char *ravel_source_kind(const ravel_source *source) {
    return source->kind->name;
}

size_t ravel_source_where(const ravel_source *source, int64_t row, char *text, size_t bytes) {
    if (source->kind->where) return source->kind->where(source, source->first_row + row, text, bytes);
    return (size_t)snprintf(text, bytes, "row %" PRId64, row);
}

int32_t ravel_source_field_count(const ravel_source *source) {
    return source->field_count;
}

const ravel_field *ravel_source_fields(const ravel_source *source) {
    return source->fields;
}
