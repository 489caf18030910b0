/* JSON lines, or an array of rows: the index (line_index.h) says where each row begins; a row is read when it is asked
 * for.
 *
 * A row ends at its newline (of an array: its comma), which is looked for again when it is read; the number of its line
 * is counted only for a sentence. */
#include "feed/source/jsonl_row.h"

#include "base/assert.h"
#include "base/system/file.h"
#include "feed/source/line_index.h"
#include "io/foreign.h"
#include "text/chat.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct jsonl_source {
    ravel_source base;
    ravel__reading file;
    char *path;
    size_t path_bytes;
    ravel__line_index index;
    ravel__row_rules rules;
    ravel_tokenizer *tokenizer; /* NULL: text is bytes */
    ravel_chat_format *format;  /* named by the options; NULL: the tokenizer's, or none */
    char *chat_args;            /* a copy; NULL: none */
    ravel_error no_format;      /* why conversations cannot be written */
    ravel_error no_text;        /* why no text can be read */
} jsonl_source;

/* Counts newlines; a file that was cut short gives a smaller number. */
static int64_t line_number(const jsonl_source *s, int64_t row) {
    char piece[4096];
    size_t begin = 0, end, bytes;
    int64_t number = 1;
    RAVEL_ASSERT(row >= 0 && row < s->index.rows);
    if (ravel__line_index_find(&s->index, row, &begin, &end, NULL)) return 0;
    for (size_t at = 0; at < begin; at += bytes) {
        bytes = begin - at < sizeof piece ? begin - at : sizeof piece;
        if (ravel__reading_get(&s->file, at, piece, bytes, NULL)) break;
        for (size_t i = 0; i < bytes; i++) number += piece[i] == '\n';
    }
    return number;
}

static ravel_status jsonl_read(const ravel_source *source, void *scratch, int64_t row, ravel_collector *collector,
                               ravel_error *err) {
    const jsonl_source *s = (const jsonl_source *)source;
    ravel__buffer *text = &((ravel__row_scratch *)scratch)->text;
    size_t begin = 0, end = 0;
    ravel_status status = ravel__line_index_find(&s->index, row, &begin, &end, err);
    size_t bytes = end - begin;
    if (!status) status = ravel__buffer_reserve(text, collector->allocator, (int64_t)bytes, 1, "a row", err);
    if (!status) status = ravel__reading_get(&s->file, begin, text->at, bytes, err);
    if (!status) status = ravel__reading_check(&s->file, err);
    if (status) return status;
    bytes = ravel__line_index_text(&s->index, row, text->at, bytes);
    status = ravel__row_read(text->at, bytes, &s->rules, scratch, collector, err);
    if (status) ravel_error_prefix(err, "%s:%" PRId64, s->path, line_number(s, row));
    return status;
}

static size_t jsonl_where(const ravel_source *source, int64_t row, char *text, size_t bytes) {
    const jsonl_source *s = (const jsonl_source *)source;
    return (size_t)snprintf(text, bytes, "%s:%" PRId64, s->path, line_number(s, row));
}

static void jsonl_scratch_free(const ravel_allocator *allocator, void *scratch) {
    ravel__row_scratch_free(allocator, scratch);
}

static void jsonl_close(ravel_source *source) {
    jsonl_source *s = (jsonl_source *)source;
    ravel__reading_close(&s->file);
    ravel_tokenizer_free(s->tokenizer);
    ravel__release(source->allocator, s->path, s->path_bytes);
    if (s->chat_args) ravel__release(source->allocator, s->chat_args, strlen(s->chat_args) + 1);
    ravel_chat_format_free(s->format);
    ravel__line_index_close(&s->index, source->allocator);
}

static const ravel__source_kind jsonl_kind = {
    "jsonl", sizeof(ravel__row_scratch), jsonl_read, jsonl_scratch_free, jsonl_close, jsonl_where};

/* Whether rows of token ids can be read without it: the folder is a model's, and its tokenizer is of a kind that is not
 * supported, or has no tokenizer.json (T5, or a folder with only a tokenizer.model). */
static int may_be_left_out(const char *folder, ravel_status status) {
    char path[4096];
    if (status == RAVEL_E_UNSUPPORTED) return 1;
    (void)snprintf(path, sizeof path, "%.4000s/tokenizer.json", folder);
    if (access(path, F_OK) == 0) return 0;
    (void)snprintf(path, sizeof path, "%.4000s/config.json", folder);
    return access(path, F_OK) == 0;
}

static char *copy_text(const char *text, const ravel_allocator *allocator) {
    size_t bytes = strlen(text) + 1;
    char *copy = ravel__alloc(allocator, bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

/* A tokenizer that cannot be used is an error only of rows of text, a template that is not known only of
 * conversations. */
static ravel_status open_tokenizer(jsonl_source *s, const ravel_source_options *options, ravel_error *err) {
    ravel__row_rules *rules = &s->rules;
    if (!options->tokenizer && !options->chat_format) return RAVEL_OK;
    if (!options->tokenizer || options->bos >= 0 || options->eos >= 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               options->tokenizer ? "bos and eos are the tokenizer's; leave them out"
                                                  : "a chat format needs a tokenizer");
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = ravel_tokenizer_open(options->tokenizer, s->base.allocator, &s->tokenizer, &why);
    if (status && may_be_left_out(options->tokenizer, status)) {
        (void)ravel_error_set(&s->no_text, RAVEL_E_UNSUPPORTED, "%.300s; " RAVEL__BRIDGE, why.message);
        rules->no_text = s->no_text.message;
        return RAVEL_OK;
    }
    if (status) return ravel_error_set(err, status, "%s", why.message);
    rules->tokenizer = s->tokenizer;
    rules->train_on = options->train_on;
    rules->no_format = s->no_format.message;
    if (options->chat_args && !(s->chat_args = copy_text(options->chat_args, s->base.allocator)))
        return ravel__no_memory(err, strlen(options->chat_args), "the chat template's variables");
    rules->variables = s->chat_args;
    rules->now = (int64_t)time(NULL);
    if (!options->chat_format) {
        (void)ravel_chat_format_of(s->tokenizer, &rules->format, &s->no_format);
        return RAVEL_OK;
    }
    status = ravel_chat_format_open(options->chat_format, s->base.allocator, &s->format, err);
    rules->format = s->format;
    return status;
}

static ravel_status jsonl_init(jsonl_source *s, const ravel_source_options *options, ravel_error *err) {
    s->file.fd = s->index.file.fd = -1;
    s->path_bytes = strlen(options->data) + 1;
    s->path = ravel__alloc(s->base.allocator, s->path_bytes);
    if (!s->path) return ravel__no_memory(err, s->path_bytes, "the name of a file");
    memcpy(s->path, options->data, s->path_bytes);
    s->rules = (ravel__row_rules){
        .vocab = options->vocab, .bos = options->bos, .eos = options->eos, .no_pairs = options->no_pairs};
    char first[RAVEL__FOREIGN_BYTES];
    ravel_status status = ravel__reading_open(s->path, &s->file, err);
    size_t bytes = s->file.bytes < sizeof first ? s->file.bytes : sizeof first;
    if (!status) status = ravel__reading_get(&s->file, 0, first, bytes, err);
    if (!status) status = ravel__foreign_check(s->path, first, bytes, RAVEL__WANTED_ROWS, err);
    if (!status) status = ravel__line_index_open(&s->index, &s->file, options->index, s->base.allocator, err);
    if (!status) status = open_tokenizer(s, options, err);
    return status ? status : ravel__source_range(&s->base, s->index.rows, options, err);
}

ravel_status ravel__source_open_jsonl(const ravel_source_options *options, const ravel_field *fields,
                                      int64_t field_count, ravel_source **source, ravel_error *err) {
    ravel_source *s;
    ravel_status status =
        ravel__source_create(&jsonl_kind, sizeof(jsonl_source), fields, field_count, options->allocator, &s, err);
    if (status) return status;
    status = jsonl_init((jsonl_source *)s, options, err);
    if (status)
        ravel_source_free(s);
    else
        *source = s;
    return status;
}
