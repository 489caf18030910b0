/* Texts of files to tokens, for ravel tokenize and ravel plan. */
#include "cli/text.h"

#include "base/json.h"
#include "io/columns.h"
#include "train/run/config/resolve.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct text_reader {
    text_options options;
    ravel_tokenizer *tokenizer;
    ravel_encoder *encoder;
    ravel_chat_format *format; /* named by the options; NULL: the tokenizer's, or none */
    ravel_rows *rows;
    ravel__json *doc;
    int64_t line; /* that is being read, from 1 */
};

/* ---- the reader ----------------------------------------------------------------------------------------- */

static ravel_status open_rows(text_reader *r, ravel_error *err) {
    ravel_rows_options options;
    ravel_error none = RAVEL_ERROR_INIT;
    ravel_rows_options_default(&options);
    options.tokenizer = r->tokenizer;
    options.train_on = r->options.train_on;
    if (!r->options.chat_format)
        (void)ravel_chat_format_of(r->tokenizer, &options.format, &none); /* a conversation is then an error */
    else if (ravel_chat_format_open(r->options.chat_format, NULL, &r->format, err))
        return RAVEL_E_ARGUMENT;
    if (r->format) options.format = r->format;
    options.variables = r->options.chat_args;
    return ravel_rows_create(&options, &r->rows, err);
}

ravel_status text_open(const text_options *options, text_reader **reader, ravel_error *err) {
    text_reader *r = calloc(1, sizeof *r);
    if (!r) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    r->options = *options;
    RAVEL_ASSERT(options->tokenizer && !(options->rows && options->field));
    train_model_path path = {0}; /* of a run, or of an adapter: the model's */
    ravel_status status = train_model_resolve(options->tokenizer, &path, err);
    if (!status) status = ravel_tokenizer_open(path.model, NULL, &r->tokenizer, err);
    if (!status)
        status = options->rows ? open_rows(r, err) : ravel_encoder_create(r->tokenizer, NULL, &r->encoder, err);
    if (status)
        text_close(r);
    else
        *reader = r;
    return status;
}

void text_close(text_reader *reader) {
    if (!reader) return;
    ravel__json_free(reader->doc);
    ravel_rows_free(reader->rows);
    ravel_chat_format_free(reader->format);
    ravel_encoder_free(reader->encoder);
    ravel_tokenizer_free(reader->tokenizer);
    free(reader);
}

const ravel_tokenizer *text_tokenizer(const text_reader *reader) {
    return reader->tokenizer;
}

/* ---- texts ---------------------------------------------------------------------------------------------- */

ravel_status text_read(text_reader *r, const char *text, size_t bytes, text_take take, void *user, ravel_error *err) {
    RAVEL_ASSERT(r->encoder && take && (text || bytes == 0));
    const ravel_encoding *e;
    ravel_status status = ravel_encoder_encode(r->encoder, text, bytes, r->options.flags, &e, err);
    return status ? status : take(user, e->ids, NULL, e->count, err);
}

static ravel_status read_row(text_reader *r, const char *line, size_t bytes, text_take take, void *user,
                             ravel_error *err) {
    const ravel_row *row;
    ravel_status status = ravel_rows_encode(r->rows, line, bytes, &row, err);
    for (int i = 0; i <= (status ? -1 : row->pair) && !status; i++)
        status = take(user, row->parts[i].tokens, row->parts[i].loss_mask, row->parts[i].count, err);
    return status;
}

static ravel_status read_line(text_reader *r, const char *line, size_t bytes, text_take take, void *user,
                              ravel_error *err) {
    if (r->options.rows) return read_row(r, line, bytes, take, user, err);
    ravel_status status = ravel__json_parse(line, bytes, NULL, &r->doc, err);
    if (status) return status;
    const ravel__json_node *n = ravel__json_path(r->doc, ravel__json_root(r->doc), r->options.field);
    if (!n || n->kind != RAVEL__JSON_STRING)
        return ravel_error_set(err, RAVEL_E_DATA, "there is no text \"%.60s\" in the line", r->options.field);
    return text_read(r, n->as.string, n->bytes, take, user, err);
}

static ravel_status read_lines(text_reader *r, FILE *file, const char *name, text_take take, void *user,
                               ravel_error *err) {
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    int64_t taken = 0;
    ravel_status status = RAVEL_OK;
    r->line = 0;
    while (!status && (r->options.limit == 0 || taken < r->options.limit) &&
           (bytes = getline(&line, &room, file)) >= 0) {
        ravel_error inner = RAVEL_ERROR_INIT;
        r->line++;
        size_t mark = r->line == 1 && strncmp(line, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* of the byte order */
        if (strspn(line + mark, " \t\r\n") + mark == (size_t)bytes) continue;
        status = read_line(r, line + mark, (size_t)bytes - mark, take, user, &inner);
        if (status) (void)ravel_error_set(err, status, "%s:%lld: %s", name, (long long)r->line, inner.message);
        taken++;
    }
    free(line);
    return status;
}

static ravel_status read_whole(text_reader *r, FILE *file, const char *name, text_take take, void *user,
                               ravel_error *err) {
    char *text = NULL;
    size_t room = 0, used = 0;
    while (!feof(file) && !ferror(file)) {
        if (room - used < 1 << 16) {
            char *grown = realloc(text, room = 2 * room + (1 << 17));
            if (!grown) {
                free(text);
                return ravel_error_set(err, RAVEL_E_MEMORY, "%s: out of memory", name);
            }
            text = grown;
        }
        used += fread(text + used, 1, room - used, file);
        RAVEL_ASSERT(used <= room);
    }
    if (ferror(file)) { /* a part of a text is not printed */
        free(text);
        return ravel_error_set(err, RAVEL_E_IO, "%s: cannot read it", name);
    }
    ravel_error inner = RAVEL_ERROR_INIT;
    ravel_status status = text_read(r, text, used, take, user, &inner);
    if (status) (void)ravel_error_set(err, status, "%s: %s", name, inner.message);
    free(text);
    return status;
}

ravel_status text_read_file(text_reader *r, const char *path, text_take take, void *user, ravel_error *err) {
    int standard = strcmp(path, "-") == 0;
    const char *name = standard ? "standard input" : path;
    FILE *file = standard ? stdin : fopen(path, "rb");
    if (!file) return ravel_error_set(err, RAVEL_E_IO, "%s: cannot open: %s", path, strerror(errno));
    ravel_status status = r->options.field || r->options.rows ? read_lines(r, file, name, take, user, err)
                                                              : read_whole(r, file, name, take, user, err);
    if (!status && ferror(file)) status = ravel_error_set(err, RAVEL_E_IO, "%s: cannot read it", name);
    if (!standard) (void)fclose(file);
    return status;
}

/* ---- lengths -------------------------------------------------------------------------------------------- */

/* A column of numbers as text, which the reader of lengths takes. */
typedef struct column {
    const text_reader *reader;
    char *text;
    size_t used, room;
    int64_t *lines;
    int64_t count, line_room;
} column;

static ravel_status grow(column *c, ravel_error *err) {
    if (c->room - c->used < 64) {
        char *grown = realloc(c->text, c->room = 2 * c->room + 4096);
        if (!grown) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
        c->text = grown;
    }
    if (c->count == c->line_room) {
        int64_t *grown = realloc(c->lines, (size_t)(c->line_room = 2 * c->line_room + 512) * sizeof *grown);
        if (!grown) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
        c->lines = grown;
    }
    return RAVEL_OK;
}

static ravel_status take_length(void *user, const int32_t *ids, const uint8_t *mask, int64_t count, ravel_error *err) {
    column *c = user;
    (void)ids, (void)mask; /* the numbers alone; the first line is the column's name */
    if (count == 0) return ravel_error_set(err, RAVEL_E_DATA, "the text has no tokens");
    ravel_status status = grow(c, err);
    if (status) return status;
    RAVEL_ASSERT(c->room - c->used >= 64 && c->count < c->line_room);
    if (c->used == 0) c->used = (size_t)snprintf(c->text, 32, "num_tokens\n");
    c->used += (size_t)snprintf(c->text + c->used, 32, "%lld\n", (long long)count);
    c->lines[c->count++] = c->reader->line;
    return RAVEL_OK;
}

ravel_status text_lengths(const char *path, const text_options *options, ravel_lengths **lengths, int64_t **lines,
                          ravel_error *err) {
    text_reader *reader = NULL;
    ravel_read_options read;
    ravel_read_options_default(&read);
    read.format = RAVEL_FORMAT_CSV;
    ravel_status status = text_open(options, &reader, err);
    if (!reader) return status;
    column c = {.reader = reader};
    status = text_read_file(reader, path, take_length, &c, err);
    if (!status && c.used == 0) status = ravel_error_set(err, RAVEL_E_DATA, "%s: it has no rows", path);
    if (!status) status = ravel__lengths_parse(path, c.text, c.used, &read, lengths, err);
    RAVEL_ASSERT(status || (*lengths)->count == c.count);
    if (status)
        free(c.lines);
    else
        *lines = c.lines;
    text_close(reader);
    free(c.text);
    return status;
}
