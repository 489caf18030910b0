/* JSONL: one JSON value per line, from which one or two members are taken; or a file that is one JSON array of them.
 *
 * The first line decides which members; from then on every line must have them. A member is a path of keys and, inside
 * arrays, of indices: "turns.0.ids". */
#include "io/integers.h"

#include "base/assert.h"
#include "base/memory.h"

#include "base/json.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

typedef struct jsonl {
    ravel__lines lines;
    ravel__integers *table;
    ravel__json *doc;
    int chosen, bare;   /* bare: values are plain numbers */
    char paths[2][256]; /* the members that are taken */
} jsonl;

static const ravel__json_node *step(const ravel__json *doc, const ravel__json_node *node, const char *key) {
    int64_t index;
    if (node->kind != RAVEL__JSON_ARRAY) return ravel__json_get(doc, node, key);
    if (!ravel__parse_integer(key, strlen(key), &index) || index < 0) return NULL;
    node = ravel__json_first(doc, node);
    while (node && index-- > 0) node = ravel__json_next(doc, node);
    return node;
}

/* A key that contains dots is looked up whole before the dots are read as path steps. */
static const ravel__json_node *follow(const ravel__json *doc, const ravel__json_node *node, const char *path) {
    RAVEL_ASSERT(doc && node && path);
    const ravel__json_node *whole = ravel__json_get(doc, node, path);
    char key[256];
    if (whole) return whole;
    while (node && *path) {
        size_t length = strcspn(path, ".");
        if (length >= sizeof key) return NULL;
        memcpy(key, path, length);
        key[length] = '\0';
        node = step(doc, node, key);
        path += path[length] ? length + 1 : length;
    }
    return node;
}

/* ---- the first line ------------------------------------------------------------------------------------- */

static void list_members(const jsonl *j, const ravel__json_node *root, char *out, size_t room) {
    RAVEL_ASSERT(room > 0);
    size_t used = 0;
    for (const ravel__json_node *n = ravel__json_first(j->doc, root); n && used < room;
         n = ravel__json_next(j->doc, n)) {
        int length = snprintf(out + used, room - used, "%s%.40s", used ? ", " : "", n->key);
        used += length > 0 ? (size_t)length : 0;
    }
}

static ravel_status no_member(const jsonl *j, const ravel__json_node *root, const char *name, ravel_error *err) {
    char members[400] = "";
    list_members(j, root, members, sizeof members);
    if (name) return ravel_error_set(err, RAVEL_E_DATA, "there is no \"%.60s\"; the members are %s", name, members);
    return ravel_error_set(err, RAVEL_E_DATA, "which member is meant? Name it with --field; the members are %s",
                           members);
}

/* The object's member with this name, whatever its case and punctuation. */
static const char *find_name(const jsonl *j, const ravel__json_node *root, const char *name) {
    for (const ravel__json_node *n = ravel__json_first(j->doc, root); n; n = ravel__json_next(j->doc, n))
        if (ravel__same_name(n->key, strlen(n->key), name, strlen(name)) &&
            (n->kind == RAVEL__JSON_INTEGER || n->kind == RAVEL__JSON_REAL || n->kind == RAVEL__JSON_ARRAY))
            return n->key;
    return NULL;
}

static int keep(jsonl *j, int i, const char *path, size_t bytes) {
    RAVEL_ASSERT(i == 0 || i == 1);
    if (bytes >= sizeof j->paths[i]) return 0;
    memcpy(j->paths[i], path, bytes);
    j->paths[i][bytes] = '\0';
    return 1;
}

static ravel_status choose_fields(jsonl *j, ravel_error *err) {
    RAVEL_ASSERT(j->table->ask->field);
    const char *parts[2], *field = j->table->ask->field;
    size_t bytes[2];
    int count = ravel__field_parts(field, parts, bytes);
    if (count == 0 || count > 1 + j->table->ask->pairs)
        return ravel_error_set(err, RAVEL_E_DATA, "the field must be one path or two with a comma, not \"%.60s\"",
                               field);
    for (int i = 0; i < count; i++)
        if (!keep(j, i, parts[i], bytes[i]))
            return ravel_error_set(err, RAVEL_E_DATA, "the path \"%.60s...\" is too long", parts[i]);
    ravel__integers_choose(j->table, j->paths[0], count == 2 ? j->paths[1] : NULL);
    return RAVEL_OK;
}

/* A name that means a number, so that an array there is not a list of token ids. */
static int means_number(const char *name) {
    static const char *const parts[] = {"len", "num", "count", "total", "n_tokens"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strstr(name, parts[i])) return 1;
    return 0;
}

/* No member with a well-known name is a number or an array: reports those that are text. */
static ravel_status none_known(const jsonl *j, const ravel__json_node *root, ravel_error *err) {
    int64_t number;
    for (const ravel__json_node *n = ravel__json_first(j->doc, root); n; n = ravel__json_next(j->doc, n))
        for (const char *const(*name)[2] = j->table->ask->names; (*name)[0] && n->kind == RAVEL__JSON_STRING; name++) {
            if (!ravel__same_name(n->key, strlen(n->key), (*name)[0], strlen((*name)[0]))) continue;
            if (ravel__parse_integer(n->as.string, n->bytes, &number))
                return ravel_error_set(err, RAVEL_E_DATA,
                                       "\"%.60s\" is the text \"%.40s\"; write the number without quotes", n->key,
                                       n->as.string);
            return ravel_error_set(err, RAVEL_E_DATA, "\"%.60s\" is text; it has to be tokenized first", n->key);
        }
    return no_member(j, root, NULL, err);
}

static ravel_status choose_known(jsonl *j, const ravel__json_node *root, ravel_error *err) {
    for (const char *const(*name)[2] = j->table->ask->names; (*name)[0]; name++) {
        const char *first = find_name(j, root, (*name)[0]);
        const char *second = first && (*name)[1] ? find_name(j, root, (*name)[1]) : NULL;
        if (!first || ((*name)[1] && !second) || !keep(j, 0, first, strlen(first))) continue;
        if (second && !keep(j, 1, second, strlen(second))) continue;
        ravel__integers_choose(j->table, first, second);
        return RAVEL_OK;
    }
    return none_known(j, root, err);
}

static ravel_status choose(jsonl *j, const ravel__json_node *root, ravel_error *err) {
    RAVEL_ASSERT(!j->chosen);
    j->chosen = 1;
    j->bare = !j->table->ask->field && (root->kind == RAVEL__JSON_INTEGER || root->kind == RAVEL__JSON_REAL);
    if (j->bare) {
        ravel__integers_choose(j->table, j->table->ask->what, NULL);
        return RAVEL_OK;
    }
    if (j->table->ask->field) return choose_fields(j, err);
    if (root->kind != RAVEL__JSON_OBJECT)
        return ravel_error_set(err, RAVEL_E_DATA, "a line must be a JSON object or a number");
    return choose_known(j, root, err);
}

/* ---- rows ----------------------------------------------------------------------------------------------- */

static ravel_status take_value(const jsonl *j, const ravel__json_node *root, const char *path, int64_t *value,
                               ravel_error *err) {
    RAVEL_ASSERT(j->chosen && (j->bare || *path));
    const ravel__json_node *node = j->bare ? root : follow(j->doc, root, path);
    if (!node) return no_member(j, root, path, err);
    if (node->kind == RAVEL__JSON_ARRAY) {
        if (!j->table->ask->field && means_number(path))
            return ravel_error_set(err, RAVEL_E_DATA,
                                   "\"%s\" is an array of %d values; each row has one number, as in {\"%s\": 551}",
                                   path, node->count, path);
        *value = node->count;
        return RAVEL_OK;
    }
    if (ravel__json_integer(node, value)) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_DATA, "%s%s%s must be a whole number%s", j->bare ? "" : "\"",
                           j->bare ? "the value" : path, j->bare ? "" : "\"",
                           node->kind == RAVEL__JSON_STRING
                               ? " or an array of token ids; text has to be tokenized first"
                               : " or an array");
}

static ravel_status take_row(jsonl *j, const ravel__json_node *root, ravel_error *err) {
    int64_t values[2] = {0, 0};
    ravel_status status = j->chosen ? RAVEL_OK : choose(j, root, err);
    for (int i = 0; i < j->table->width && !status; i++) status = take_value(j, root, j->paths[i], &values[i], err);
    RAVEL_ASSERT(status || j->table->width >= 1);
    return status ? status : ravel__integers_push(j->table, values[0], values[1], err);
}

static ravel_status take_line(jsonl *j, const char *line, size_t bytes, ravel_error *err) {
    ravel_status status = ravel__json_parse(line, bytes, j->table->ask->allocator, &j->doc, err);
    return status ? status : take_row(j, ravel__json_root(j->doc), err);
}

static int blank(const char *text, size_t bytes) {
    for (size_t i = 0; i < bytes; i++)
        if (!isspace((unsigned char)text[i])) return 0;
    return 1;
}

static ravel_status read_rows(jsonl *j, ravel_error *err) {
    const char *line;
    size_t bytes;
    while (!ravel__integers_full(j->table)) {
        ravel_status status = ravel__lines_next(&j->lines, &line, &bytes, err);
        if (status) return status;
        if (blank(line, bytes)) continue;
        ravel_error inner = RAVEL_ERROR_INIT;
        j->table->line = j->lines.number;
        status = take_line(j, line, bytes, &inner);
        if (status)
            return ravel_error_set(err, status, "%s:%lld: %s%s", j->lines.source->name, (long long)j->lines.number,
                                   inner.message,
                                   j->chosen ? "" : " (a row is one line, or the whole file is one JSON array)");
    }
    return RAVEL_OK;
}

/* ---- a file that is one array ---------------------------------------------------------------------------- */

enum { FIRST_ROOM = 1 << 16 };

static ravel_status read_all(ravel__source *source, const ravel_allocator *allocator, char **text, size_t *room,
                             size_t *used, ravel_error *err) {
    for (size_t got = 1; got; *used += got) {
        RAVEL_ASSERT(*used <= *room);
        if (*used == *room) {
            size_t larger = *room ? *room * 2 : FIRST_ROOM;
            char *grown = ravel__resize(allocator, *text, *room, larger);
            if (!grown) return ravel__no_memory(err, larger, source->name);
            *text = grown;
            *room = larger;
        }
        ravel_status status = ravel__source_read(source, *text + *used, *room - *used, &got, err);
        if (status) return status;
    }
    return RAVEL_OK;
}

static ravel_status take_items(jsonl *j, ravel_error *err) {
    int64_t number = 0;
    const ravel__json_node *item = ravel__json_first(j->doc, ravel__json_root(j->doc));
    for (; item && !ravel__integers_full(j->table); item = ravel__json_next(j->doc, item)) {
        ravel_error inner = RAVEL_ERROR_INIT;
        ravel_status status = take_row(j, item, &inner);
        number++;
        if (status)
            return ravel_error_set(err, status, "%s: item %lld: %s", j->lines.source->name, (long long)number,
                                   inner.message);
    }
    return RAVEL_OK;
}

static ravel_status read_array(jsonl *j, ravel_error *err) {
    const ravel_allocator *allocator = j->table->ask->allocator;
    ravel_error inner = RAVEL_ERROR_INIT;
    char *text = NULL;
    size_t room = 0, used = 0;
    ravel_status status = read_all(j->lines.source, allocator, &text, &room, &used, err);
    RAVEL_ASSERT(status || text);
    if (!status) {
        size_t mark = used >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0; /* of the byte order */
        RAVEL_ASSERT(mark <= used);
        status = ravel__json_parse(text + mark, used - mark, allocator, &j->doc, &inner);
        if (status) ravel_error_set(err, status, "%s: %s", j->lines.source->name, inner.message);
    }
    ravel__release(allocator, text, room);
    return status ? status : take_items(j, err);
}

/* A file name that implies one value per line (.jsonl): an array is then a row, not the whole file. */
static int promises_lines(const char *name) {
    const char *dot = strrchr(name, '.');
    return dot && (strcmp(dot, ".jsonl") == 0 || strcmp(dot, ".ndjson") == 0);
}

static ravel_status is_array(ravel__source *source, int *array, ravel_error *err) {
    const char *bytes;
    size_t count, at = 0;
    ravel_status status = ravel__source_peek(source, &bytes, &count, err);
    if (status) return status;
    if (count >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0) at = 3;
    while (at < count && isspace((unsigned char)bytes[at])) at++;
    *array = at < count && bytes[at] == '[' && !promises_lines(source->name);
    return RAVEL_OK;
}

ravel_status ravel__jsonl_read(ravel__source *source, ravel__integers *table, ravel_error *err) {
    jsonl j;
    memset(&j, 0, sizeof j);
    j.table = table;
    ravel__lines_init(&j.lines, source, table->ask->allocator);
    int array = 0;
    ravel_status status = is_array(source, &array, err);
    if (!status) status = array ? read_array(&j, err) : read_rows(&j, err);
    ravel__json_free(j.doc);
    ravel__lines_free(&j.lines);
    return status == RAVEL_E_END ? RAVEL_OK : status;
}
