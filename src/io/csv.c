/* CSV: records of RFC 4180, from which one or two columns of integers are taken.
 *
 * The first record decides: which of ',', ';' and tab separates, whether it is a header (no cell begins like a number),
 * and which columns are taken. A first row that begins like a number and is not one ("12x") is an error and never taken
 * for a header, so that no sample gets lost. */
#include "io/integers.h"

#include "base/assert.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

/* Longer than this, a quoted cell was never closed. */
enum { LONGEST_RECORD = 64 << 20 };

typedef struct cell {
    const char *text;
    size_t bytes;
} cell;

typedef struct csv {
    ravel__lines lines;
    ravel__integers *table;
    const char *record;
    size_t bytes;
    char separator;
    int header;
    int index;       /* the header's first cell is empty: the row numbers that pandas writes */
    int64_t take[2]; /* column numbers from 0 */
} csv;

/* ---- records and cells ---------------------------------------------------------------------------------- */

static int odd_quotes(const char *text, size_t bytes) {
    int odd = 0;
    if (!bytes) return 0;
    for (const char *at = text; (at = memchr(at, '"', bytes - (size_t)(at - text))) != NULL;) {
        odd = !odd;
        if ((size_t)(++at - text) == bytes) break;
    }
    return odd;
}

static int blank(const char *text, size_t bytes) {
    if (bytes && *text == '#') return 1;
    for (size_t i = 0; i < bytes; i++)
        if (!isspace((unsigned char)text[i])) return 0;
    return 1;
}

/* The next record that is not blank; E_END after the last. Each line is scanned once, however many lines the record
 * has. */
static ravel_status next_record(csv *c, ravel_error *err) {
    RAVEL_ASSERT(c->lines.source && c->table);
    size_t seen = 0;
    int open = 0;
    do {
        ravel_status status = ravel__lines_next(&c->lines, &c->record, &c->bytes, err);
        if (status) return status;
    } while (blank(c->record, c->bytes));
    for (;;) {
        RAVEL_ASSERT(seen <= c->bytes);
        open ^= odd_quotes(c->record + seen, c->bytes - seen);
        if (!open) return RAVEL_OK;
        seen = c->bytes;
        ravel_status status =
            c->bytes > LONGEST_RECORD ? RAVEL_E_END : ravel__lines_more(&c->lines, &c->record, &c->bytes, err);
        if (status == RAVEL_E_END)
            return ravel_error_set(err, RAVEL_E_DATA, "%s:%lld: a quote is opened here and never closed",
                                   c->lines.source->name, (long long)c->lines.number);
        if (status) return status;
    }
}

static cell trim(const char *text, const char *end) {
    RAVEL_ASSERT(text <= end);
    for (int quotes = 1; quotes >= 0; quotes--) {
        while (text < end && isspace((unsigned char)*text)) text++;
        while (end > text && isspace((unsigned char)end[-1])) end--;
        if (end - text < 2 || *text != '"' || end[-1] != '"' || !quotes) break;
        text++;
        end--;
    }
    RAVEL_ASSERT(text <= end);
    cell result = {text, (size_t)(end - text)};
    return result;
}

/* The cell at *at, trimmed, quotes off; moves *at behind its separator, or to NULL after the last. */
static cell next_cell(const csv *c, const char **at) {
    const char *start = *at, *end = c->record + c->bytes;
    RAVEL_ASSERT(start >= c->record && start <= end && c->separator);
    int quoted = 0;
    for (const char *p = start; p < end; p++) {
        if (*p == '"') quoted = !quoted;
        if (*p == c->separator && !quoted) {
            *at = p + 1;
            return trim(start, p);
        }
    }
    *at = NULL;
    return trim(start, end);
}

static int64_t count_cells(const csv *c) {
    int64_t count = 0;
    for (const char *at = c->record; at; count++) (void)next_cell(c, &at);
    return count;
}

/* Column `column` of the record; 0 if the record has fewer. */
static int get_cell(const csv *c, int64_t column, cell *out) {
    RAVEL_ASSERT(column >= 0);
    const char *at = c->record;
    for (int64_t i = 0; at; i++) {
        cell found = next_cell(c, &at);
        if (i == column) {
            *out = found;
            return 1;
        }
    }
    RAVEL_ASSERT(column >= count_cells(c));
    return 0;
}

/* ---- the first record ----------------------------------------------------------------------------------- */

static char find_separator(const csv *c) {
    static const char separators[] = "\t;,";
    for (const char *s = separators; *s; s++)
        if (memchr(c->record, *s, c->bytes)) return *s;
    return ',';
}

/* A header has a name, and no cell that begins like a number; its first cell may be empty. */
static int is_header(const csv *c) {
    int names = 0;
    int64_t column = 0;
    for (const char *at = c->record; at; column++) {
        cell found = next_cell(c, &at);
        if (found.bytes ? strchr("+-.0123456789", *found.text) != NULL : column > 0) return 0;
        names += found.bytes > 0;
    }
    return names > 0;
}

static int has_index(const csv *c) {
    cell first = {"", 0};
    return c->header && get_cell(c, 0, &first) && !first.bytes;
}

/* The column with this name, or -1. */
static int64_t find_name(const csv *c, const char *name, size_t bytes) {
    const char *at = c->record;
    for (int64_t i = 0; at; i++) {
        cell found = next_cell(c, &at);
        if (ravel__same_name(found.text, found.bytes, name, bytes)) return i;
    }
    return -1;
}

/* A caller's field: a name of the header, or a number from 1. */
static int64_t find_field(const csv *c, const char *name, size_t bytes) {
    int64_t number, column = c->header ? find_name(c, name, bytes) : -1;
    if (column < 0 && ravel__parse_integer(name, bytes, &number) && number >= 1 && number <= count_cells(c))
        return number - 1;
    return column;
}

static void list_columns(const csv *c, char *out, size_t room) {
    RAVEL_ASSERT(room > 0);
    size_t used = 0;
    const char *at = c->record;
    for (int64_t i = 0; at && used < room; i++) {
        cell found = next_cell(c, &at);
        int n = c->header ? snprintf(out + used, room - used, "%s%.*s", i ? ", " : "",
                                     found.bytes > 40 ? 40 : (int)found.bytes, found.text)
                          : snprintf(out + used, room - used, "%s%lld", i ? ", " : "", (long long)i + 1);
        used += n > 0 ? (size_t)n : 0;
    }
}

static ravel_status no_column(const csv *c, const char *problem, const char *name, size_t bytes, ravel_error *err) {
    char columns[400] = "";
    list_columns(c, columns, sizeof columns);
    return ravel_error_set(err, RAVEL_E_DATA, "%s:%lld: %s%s%.*s%s; the columns are %s", c->lines.source->name,
                           (long long)c->lines.number, problem, bytes ? " \"" : "", bytes > 60 ? 60 : (int)bytes,
                           name ? name : "", bytes ? "\"" : "", columns);
}

static ravel_status take_fields(csv *c, ravel_error *err) {
    RAVEL_ASSERT(c->table->ask->field);
    const char *parts[2];
    size_t bytes[2];
    int count = ravel__field_parts(c->table->ask->field, parts, bytes);
    if (count == 0 || count > 1 + c->table->ask->pairs)
        return no_column(c, "the field must be one column or two with a comma, not", c->table->ask->field,
                         strlen(c->table->ask->field), err);
    for (int i = 0; i < count; i++) {
        c->take[i] = find_field(c, parts[i], bytes[i]);
        if (c->take[i] < 0) return no_column(c, "there is no column", parts[i], bytes[i], err);
        RAVEL_ASSERT(c->take[i] < count_cells(c));
    }
    c->table->width = count;
    return RAVEL_OK;
}

/* By well-known names; 0 if none is there. */
static int take_known(csv *c) {
    for (const char *const(*name)[2] = c->table->ask->names; c->header && (*name)[0]; name++) {
        c->take[0] = find_name(c, (*name)[0], strlen((*name)[0]));
        c->take[1] = (*name)[1] ? find_name(c, (*name)[1], strlen((*name)[1])) : 0;
        if (c->take[0] < 0 || c->take[1] < 0) continue;
        c->table->width = (*name)[1] ? 2 : 1;
        return 1;
    }
    return 0;
}

static void label(csv *c) {
    RAVEL_ASSERT(c->table->width == 1 || c->table->width == 2);
    char names[2][44];
    for (int i = 0; i < c->table->width; i++) {
        cell found = {"", 0};
        if (c->header) (void)get_cell(c, c->take[i], &found);
        if (found.bytes)
            (void)snprintf(names[i], sizeof names[i], "%.*s", found.bytes > 40 ? 40 : (int)found.bytes, found.text);
        else
            (void)snprintf(names[i], sizeof names[i], "column %lld", (long long)c->take[i] + 1);
    }
    ravel__integers_choose(c->table, names[0], c->table->width == 2 ? names[1] : NULL);
}

static ravel_status choose_columns(csv *c, ravel_error *err) {
    c->separator = find_separator(c);
    c->header = is_header(c);
    c->index = has_index(c);
    if (c->table->ask->field) {
        ravel_status status = take_fields(c, err);
        if (status) return status;
    } else if (!take_known(c)) {
        RAVEL_ASSERT(count_cells(c) > c->index);
        int64_t cells = count_cells(c) - c->index;
        if (cells > 1 + c->table->ask->pairs)
            return no_column(c, "which column is meant? Name it with --field", NULL, 0, err);
        if (c->header && cells > 1)
            return no_column(c, "are these prompt and response? Name the columns that are meant with --field", NULL, 0,
                             err);
        c->take[0] = c->index;
        c->take[1] = c->index + 1;
        c->table->width = (int32_t)cells;
    }
    label(c);
    return RAVEL_OK;
}

/* ---- rows ----------------------------------------------------------------------------------------------- */

static ravel_status take_row(csv *c, ravel_error *err) {
    RAVEL_ASSERT(c->table->width >= 1 && c->table->width <= 1 + c->table->ask->pairs);
    int64_t values[2] = {0, 0};
    ravel_error inner = RAVEL_ERROR_INIT;
    ravel_status status = RAVEL_OK;
    for (int i = 0; i < c->table->width && !status; i++) {
        cell found;
        if (!get_cell(c, c->take[i], &found))
            status = ravel_error_set(&inner, RAVEL_E_DATA, "column %lld is missing", (long long)c->take[i] + 1);
        else if (!ravel__parse_integer(found.text, found.bytes, &values[i]))
            status = ravel_error_set(&inner, RAVEL_E_DATA, "\"%.*s\" is not a whole number",
                                     found.bytes > 40 ? 40 : (int)found.bytes, found.text);
    }
    /* the first row had one column, this one has more: an error, so that no column is ignored */
    if (!status && !c->table->ask->field && !c->header && count_cells(c) != c->table->width)
        status = ravel_error_set(&inner, RAVEL_E_DATA, "%lld columns, but %d in the first row",
                                 (long long)count_cells(c), c->table->width);
    RAVEL_ASSERT(c->lines.number >= 1);
    c->table->line = c->lines.number;
    if (!status) status = ravel__integers_push(c->table, values[0], values[1], &inner);
    if (!status) return RAVEL_OK;
    return ravel_error_set(err, status, "%s:%lld: %s", c->lines.source->name, (long long)c->lines.number,
                           inner.message);
}

static ravel_status read_rows(csv *c, ravel_error *err) {
    ravel_status status = next_record(c, err);
    if (status) return status;
    status = choose_columns(c, err);
    if (!status && !c->header) status = take_row(c, err);
    while (!status && !ravel__integers_full(c->table)) {
        status = next_record(c, err);
        if (!status) status = take_row(c, err);
    }
    return status;
}

ravel_status ravel__csv_read(ravel__source *source, ravel__integers *table, ravel_error *err) {
    csv c;
    memset(&c, 0, sizeof c);
    c.table = table;
    ravel__lines_init(&c.lines, source, table->ask->allocator);
    ravel_status status = read_rows(&c, err);
    ravel__lines_free(&c.lines);
    return status == RAVEL_E_END ? RAVEL_OK : status;
}
