/* A cost model by a word: numbers, a model's shape, or a file that ravel plan --fit wrote. */
#include "base/json.h"
#include <ravel/report.h>
#include <ravel/shape.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* ---- a file of --fit -------------------------------------------------------------------------------------- */

/* Copies the prices to `prices` if the file has any. */
static ravel_status take_fit(const ravel__json *doc, const char *path, ravel_cost *cost, char *prices, size_t room,
                             ravel_error *err) {
    const ravel__json_node *root = ravel__json_root(doc), *text = ravel__json_get(doc, root, "cp_price");
    ravel_cost read = {0, 0, 0};
    if (!ravel__json_integer(ravel__json_get(doc, root, "linear"), &read.linear) ||
        !ravel__json_integer(ravel__json_get(doc, root, "quadratic"), &read.quadratic) ||
        !ravel__json_integer(ravel__json_get(doc, root, "overhead"), &read.overhead))
        return ravel_error_set(err, RAVEL_E_DATA, "%.900s: linear, quadratic and overhead must be whole numbers", path);
    if (text && text->kind == RAVEL__JSON_STRING && text->bytes < room)
        memcpy(prices, text->as.string, text->bytes + 1);
    *cost = read;
    return RAVEL_OK;
}

/* *found is 0 for a file of another kind. */
static ravel_status read_fit(const char *path, ravel_cost *cost, char *prices, size_t room, int *found,
                             ravel_error *err) {
    char text[4096];
    ravel__json *doc = NULL;
    FILE *file = fopen(path, "r");
    if (!file) return RAVEL_OK;
    size_t bytes = fread(text, 1, sizeof text, file);
    (void)fclose(file);
    ravel_status status = RAVEL_OK;
    if (bytes < sizeof text && ravel__json_parse(text, bytes, NULL, &doc, NULL) == RAVEL_OK &&
        ravel__json_get(doc, ravel__json_root(doc), "ravel_cost")) {
        *found = 1;
        status = take_fit(doc, path, cost, prices, room, err);
    }
    ravel__json_free(doc);
    return status;
}

/* ---- a shape ---------------------------------------------------------------------------------------------- */

/* Something with a path in it, or a file that is there. */
static int is_file(const char *text) {
    struct stat info;
    size_t length = strlen(text);
    return strchr(text, '/') || (length > 5 && strcmp(text + length - 5, ".json") == 0) || stat(text, &info) == 0;
}

static ravel_status read_shape(const char *text, ravel_shape *shape, ravel_error *err) {
    ravel_error inner = RAVEL_ERROR_INIT;
    if (is_file(text)) return ravel_shape_read(text, shape, err);
    ravel_status status = ravel_shape_named(text, shape, &inner);
    if (!status) return RAVEL_OK;
    return ravel_error_set(err, status,
                           "cost \"%.60s\" is not LIN:QUAD, tokens, a model's config.json or a known shape: %s", text,
                           inner.message);
}

ravel_status ravel_cost_read(const char *text, ravel_cost *cost, char *prices, size_t room, ravel_error *err) {
    ravel_shape shape;
    ravel_cost read;
    int found = 0;
    if (room) prices[0] = '\0';
    ravel_status status = read_fit(text, &read, prices, room, &found, err);
    if (!status && !found && (strcmp(text, "tokens") == 0 || (*text >= '0' && *text <= '9'))) {
        status = ravel_cost_parse(text, &read, err);
    } else if (!status && !found) {
        status = read_shape(text, &shape, err);
        if (!status) status = ravel_cost_from_shape(&shape, &read, err);
    }
    if (!status) *cost = read;
    return status;
}
