/* --tree: samples that share prefixes, from JSON lines.
 *
 *     {"group": 3, "path": [[0, 1147], [1, 278], [5, 855]]}    nodes from the root, each a number and its tokens: two samples
 *                                                             share the nodes that both paths begin with
 *     {"input_ids": [1, 5, 9, 2]}   or   [1, 5, 9, 2]          token ids: two samples share the ids that both begin with
 *
 * A path is a text whose letters are nodes, so ravel_tree_order finds the order of either. */
#include "cli/plan/plan.h"

#include "base/system/file.h"
#include "io/columns.h"
#include "base/json.h"
#include <ravel/tree.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_BYTES ((size_t)1 << 40)

typedef struct growing {
    int64_t count, room;
} growing;

typedef struct reader {
    const char *name;
    int64_t *offsets; /* [samples + 1] into letters */
    int32_t *letters; /* nodes or ids */
    int64_t *weight;  /* [letters] tokens of a node; NULL: ids */
    int64_t *groups;
    growing samples, used;
    int paths, grouped;
    ravel__json *doc;
} reader;

static ravel_status no_memory(const reader *r, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory for the samples of %s", r->name);
}

static int grow(void **array, size_t each, int64_t room) {
    void *grown = realloc(*array, (size_t)room * each);
    if (grown) *array = grown;
    return grown != NULL;
}

/* Room for a sample of `letters` more. */
static ravel_status reserve(reader *r, int64_t letters, ravel_error *err) {
    if (r->samples.count + 2 > r->samples.room) {
        int64_t room = r->samples.room ? 2 * r->samples.room : 1024;
        if (!grow((void **)&r->offsets, sizeof *r->offsets, room) ||
            !grow((void **)&r->groups, sizeof *r->groups, room))
            return no_memory(r, err);
        r->samples.room = room;
    }
    if (r->used.count + letters > r->used.room) {
        int64_t room = r->used.room ? 2 * r->used.room : 4096;
        while (room < r->used.count + letters) room *= 2;
        if (!grow((void **)&r->letters, sizeof *r->letters, room) ||
            (r->paths && !grow((void **)&r->weight, sizeof *r->weight, room)))
            return no_memory(r, err);
        r->used.room = room;
    }
    return RAVEL_OK;
}

static ravel_status bad_row(const reader *r, int64_t line, const char *why, ravel_error *err) {
    return ravel_error_set(
        err, RAVEL_E_DATA,
        "%s:%lld: %s; a row of --tree is {\"path\":[[node,tokens],...]}, {\"input_ids\":[...]} or an array of ids",
        r->name, (long long)line, why);
}

static ravel_status read_path(reader *r, const ravel__json_node *path, int64_t line, ravel_error *err) {
    for (const ravel__json_node *x = ravel__json_first(r->doc, path); x; x = ravel__json_next(r->doc, x)) {
        int64_t node = 0, tokens = 0;
        const ravel__json_node *first = x->kind == RAVEL__JSON_ARRAY ? ravel__json_first(r->doc, x) : NULL;
        if (!first || x->count != 2 || !ravel__json_integer(first, &node) ||
            !ravel__json_integer(ravel__json_next(r->doc, first), &tokens))
            return bad_row(r, line, "the path has something that is not [node, tokens]", err);
        if (node < 0 || node > INT32_MAX || tokens < 1 || tokens > INT64_C(1) << 31)
            return bad_row(r, line, "a node's number must be from 0 to 2^31 - 1 and its tokens from 1 to 2^31", err);
        r->letters[r->used.count] = (int32_t)node;
        r->weight[r->used.count++] = tokens;
    }
    return RAVEL_OK;
}

static ravel_status read_ids(reader *r, const ravel__json_node *ids, int64_t line, ravel_error *err) {
    for (const ravel__json_node *x = ravel__json_first(r->doc, ids); x; x = ravel__json_next(r->doc, x)) {
        int64_t id = 0;
        if (!ravel__json_integer(x, &id) || id < INT32_MIN || id > INT32_MAX)
            return bad_row(r, line, "an id is not a 32-bit number", err);
        r->letters[r->used.count++] = (int32_t)id;
    }
    return RAVEL_OK;
}

static ravel_status read_row(reader *r, const char *text, size_t bytes, int64_t line, ravel_error *err) {
    ravel_error why = RAVEL_ERROR_INIT;
    if (ravel__json_parse(text, bytes, NULL, &r->doc, &why)) return bad_row(r, line, why.message, err);
    const ravel__json_node *root = ravel__json_root(r->doc), *path = ravel__json_get(r->doc, root, "path");
    const ravel__json_node *ids = root->kind == RAVEL__JSON_ARRAY ? root : ravel__json_get(r->doc, root, "input_ids");
    const ravel__json_node *list = path ? path : ids;
    if (!list || list->kind != RAVEL__JSON_ARRAY || !list->count) return bad_row(r, line, "there are no tokens", err);
    if (!r->samples.count) r->paths = path != NULL;
    if (r->paths != (path != NULL)) return bad_row(r, line, "paths and ids in one file", err);
    ravel_status status = reserve(r, list->count, err);
    if (status) return status;
    int64_t group = 0;
    int grouped = ravel__json_integer(ravel__json_get(r->doc, root, "group"), &group);
    r->grouped = (r->grouped || !r->samples.count) && grouped;
    r->groups[r->samples.count] = group;
    r->offsets[r->samples.count] = r->used.count;
    status = path ? read_path(r, list, line, err) : read_ids(r, list, line, err);
    r->offsets[++r->samples.count] = r->used.count;
    return status;
}

static int is_blank(const char *text, size_t bytes) {
    while (bytes && strchr(" \t\r", text[bytes - 1])) bytes--;
    return !bytes;
}

/* Also writes the length of each row on a line of its own, blank lines staying, so that lines keep their numbers. */
static ravel_status read_rows(reader *r, const char *text, size_t bytes, int64_t limit, char **lengths, size_t *size,
                              ravel_error *err) {
    FILE *out = open_memstream(lengths, size);
    if (!out) return no_memory(r, err);
    ravel_status status = RAVEL_OK;
    int64_t line = 1;
    for (size_t at = 0; at < bytes && !status && (!limit || r->samples.count < limit); line++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end ? (size_t)(end - text) - at : bytes - at;
        if (!is_blank(text + at, length)) {
            status = read_row(r, text + at, length, line, err);
            int64_t tokens = 0, last = r->samples.count - 1;
            for (int64_t i = status ? 0 : r->offsets[last]; !status && i < r->offsets[last + 1]; i++)
                tokens += r->paths ? r->weight[i] : 1;
            if (!status) (void)fprintf(out, "%lld", (long long)tokens);
        }
        (void)fputc('\n', out);
        at += length + 1;
    }
    if (fclose(out) && !status) status = no_memory(r, err);
    if (!status && !r->samples.count) status = ravel_error_set(err, RAVEL_E_DATA, "%s has no rows", r->name);
    return status;
}

/* ---- order ------------------------------------------------------------------------------------------------------ */

/* From shared nodes to shared tokens. A node that two rows give different tokens is an error. */
static ravel_status weigh_shared(const reader *r, plan_data *data, ravel_error *err) {
    for (int64_t i = 1; i < r->samples.count; i++) {
        const int64_t *here = r->weight + r->offsets[data->tree_order[i]];
        const int64_t *before = r->weight + r->offsets[data->tree_order[i - 1]];
        int64_t nodes = data->tree_shared[i], tokens = 0;
        for (int64_t k = 0; k < nodes; k++) {
            if (here[k] != before[k])
                return ravel_error_set(err, RAVEL_E_DATA,
                                       "%s: node %d has %lld tokens in row %d and %lld in row %d (rows from 0)",
                                       r->name, r->letters[r->offsets[data->tree_order[i]] + k], (long long)here[k],
                                       data->tree_order[i], (long long)before[k], data->tree_order[i - 1]);
            tokens += here[k];
        }
        data->tree_shared[i] = tokens;
    }
    return RAVEL_OK;
}

static ravel_status find_order(const reader *r, plan_data *data, ravel_error *err) {
    size_t n = (size_t)r->samples.count;
    RAVEL_ASSERT(n > 0); /* read_rows wants a row */
    data->tree_order = malloc((n + 1) * sizeof *data->tree_order);
    data->tree_shared = malloc((n + 1) * sizeof *data->tree_shared);
    if (!data->tree_order || !data->tree_shared) return no_memory(r, err);
    const ravel_tree_input in = {
        .size = sizeof in, .count = r->samples.count, .offsets = r->offsets, .ids = r->letters};
    ravel_status status = ravel_tree_order(&in, data->tree_order, data->tree_shared, err);
    return status || !r->paths ? status : weigh_shared(r, data, err);
}

/* ---- front ------------------------------------------------------------------------------------------------------ */

static void free_reader(reader *r) {
    free(r->offsets);
    free(r->letters);
    free(r->weight);
    free(r->groups);
    ravel__json_free(r->doc);
}

static void describe(const plan_flags *flags, const reader *r, plan_data *data) {
    const char *slash = strrchr(r->name, '/');
    data->file = r->name;
    (void)snprintf(data->source, sizeof data->source, "%s: %s", r->name, r->paths ? "paths" : "token ids");
    (void)snprintf(data->title, sizeof data->title, "%.250s", slash ? slash + 1 : flags->tree);
}

ravel_status plan_tree_read(const plan_flags *flags, const ravel_read_options *read, plan_data *data,
                            ravel_error *err) {
    reader r = {.name = strcmp(flags->tree, "-") == 0 ? "standard input" : flags->tree};
    char *text = NULL, *lengths = NULL;
    size_t bytes = 0, size = 0;
    ravel_status status = ravel__file_read(flags->tree, MOST_BYTES, NULL, &text, &bytes, err);
    if (!status) status = read_rows(&r, text, bytes, read->limit, &lengths, &size, err);
    ravel__file_free(NULL, text, bytes);
    if (!status) {
        ravel_read_options plain;
        ravel_read_options_default(&plain);
        plain.format = RAVEL_FORMAT_JSONL;
        status = ravel__lengths_parse(r.name, lengths, size, &plain, &data->lengths, err);
    }
    free(lengths);
    if (!status) status = find_order(&r, data, err);
    if (!status) describe(flags, &r, data);
    if (!status && r.grouped) {
        data->tree_groups = r.groups;
        r.groups = NULL;
    }
    free_reader(&r);
    return status;
}
