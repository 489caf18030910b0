/* Opens a path: a safetensors file, the index of a sharded checkpoint, or a folder with either in it.
 *
 *     {"metadata": {...}, "weight_map": {"model.embed_tokens.weight": "model-00001-of-00003.safetensors", ...}}
 *
 * The files of a set are opened in the order of their names, so that the order of tensors is the same everywhere. */
#include "io/safetensors.h"

#include "base/assert.h"
#include "base/json.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

enum { PATH_ROOM = 4096 };

static int ends_with(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static ravel_status join(const char *folder, const char *name, char *path, ravel_error *err) {
    RAVEL_ASSERT(*name);
    int n = snprintf(path, PATH_ROOM, "%s%s%s", folder, *folder && !ends_with(folder, "/") ? "/" : "", name);
    if (n < 0 || n >= PATH_ROOM)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%.200s...: the path is too long", folder);
    return RAVEL_OK;
}

static int by_text(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Opens each of the sorted names once. */
static ravel_status add_names(ravel_safetensors *file, const char *folder, const char **names, size_t count,
                              ravel_error *err) {
    RAVEL_ASSERT(count >= 1);
    char path[PATH_ROOM];
    if (count > 1) qsort(names, count, sizeof *names, by_text);
    for (size_t i = 0; i < count; i++) {
        RAVEL_ASSERT(i == 0 || strcmp(names[i - 1], names[i]) <= 0);
        if (i > 0 && strcmp(names[i], names[i - 1]) == 0) continue;
        ravel_status status = join(folder, names[i], path, err);
        if (status == RAVEL_OK) status = ravel__safetensors_add_path(file, path, err);
        if (status) return status;
    }
    return RAVEL_OK;
}

/* ---- an index ------------------------------------------------------------------------------------------- */

/* The files that an index names, as many times as it names them; the texts belong to the document. */
static ravel_status index_files(const ravel__json *doc, const ravel__json_node *map, const char **names,
                                ravel_error *err) {
    size_t count = 0;
    for (const ravel__json_node *n = ravel__json_first(doc, map); n; n = ravel__json_next(doc, n)) {
        if (n->kind != RAVEL__JSON_STRING || n->bytes == 0)
            return ravel_error_set(err, RAVEL_E_DATA, "\"weight_map\": the file of \"%.200s\" must be a text", n->key);
        if (n->as.string[0] == '/' || strstr(n->as.string, "..") || strlen(n->as.string) != n->bytes)
            return ravel_error_set(err, RAVEL_E_DATA, "\"weight_map\": \"%.200s\" is not a file beside the index",
                                   n->as.string);
        RAVEL_ASSERT(count < (size_t)map->count);
        names[count++] = n->as.string;
    }
    RAVEL_ASSERT(count == (size_t)map->count);
    return RAVEL_OK;
}

static ravel_status check_index(const ravel_safetensors *file, const ravel__json *doc, const ravel__json_node *map,
                                ravel_error *err) {
    for (const ravel__json_node *n = ravel__json_first(doc, map); n; n = ravel__json_next(doc, n))
        if (!ravel_safetensors_find(file, n->key))
            return ravel_error_set(err, RAVEL_E_DATA, "tensor \"%.200s\" should be in \"%.200s\", and is not", n->key,
                                   n->as.string);
    return RAVEL_OK;
}

static ravel_status add_index(ravel_safetensors *file, const char *folder, const ravel__json *doc, ravel_error *err) {
    const ravel__json_node *map = ravel__json_get(doc, ravel__json_root(doc), "weight_map");
    if (!map || map->kind != RAVEL__JSON_OBJECT || map->count == 0)
        return ravel_error_set(err, RAVEL_E_DATA, "an index must have a \"weight_map\" of tensor names to files");
    const char **names = ravel__arena_push(&file->arena, (size_t)map->count, sizeof *names);
    if (!names) return ravel__no_memory(err, (size_t)map->count * sizeof *names, "an index of shards");
    ravel_status status = index_files(doc, map, names, err);
    if (status == RAVEL_OK) status = add_names(file, folder, names, (size_t)map->count, err);
    if (status == RAVEL_OK) status = ravel__safetensors_index(file, err);
    if (status == RAVEL_OK) status = check_index(file, doc, map, err);
    return status;
}

static ravel_status open_index(ravel_safetensors *file, const char *path, ravel_error *err) {
    char folder[PATH_ROOM];
    const char *slash = strrchr(path, '/');
    int n = snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path + 1) : 0, path);
    if (n < 0 || n >= PATH_ROOM) return ravel_error_set(err, RAVEL_E_ARGUMENT, "%.200s...: the path is too long", path);
    ravel__map text;
    ravel_status status = ravel__map_open(path, &text, err);
    if (status) return status;
    ravel__json *doc = NULL;
    ravel_error inner = RAVEL_ERROR_INIT;
    status = ravel__json_parse(text.data ? text.data : "", text.bytes, file->allocator, &doc, &inner);
    if (status == RAVEL_OK) status = add_index(file, folder, doc, &inner);
    ravel__json_free(doc);
    ravel__map_close(&text);
    if (status) ravel_error_prefix(&inner, "%s", path);
    return status ? ravel_error_set(err, status, "%s", inner.message) : RAVEL_OK;
}

/* ---- a folder ------------------------------------------------------------------------------------------- */

typedef struct name_list {
    const char **names;
    size_t count, room;
} name_list;

static ravel_status keep_name(ravel_safetensors *file, name_list *list, const char *name, ravel_error *err) {
    RAVEL_ASSERT(list->count <= list->room);
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 16;
        const char **grown = ravel__arena_push(&file->arena, room, sizeof *grown);
        if (!grown) return ravel__no_memory(err, room * sizeof *grown, "a list of files");
        if (list->count) memcpy(grown, list->names, list->count * sizeof *grown);
        list->names = grown;
        list->room = room;
    }
    char *copy = ravel__arena_push(&file->arena, strlen(name) + 1, 1);
    if (!copy) return ravel__no_memory(err, strlen(name) + 1, "a file's name");
    memcpy(copy, name, strlen(name) + 1);
    RAVEL_ASSERT(list->count < list->room);
    list->names[list->count++] = copy;
    return RAVEL_OK;
}

static ravel_status open_folder(ravel_safetensors *file, const char *path, ravel_error *err) {
    char index[PATH_ROOM];
    struct stat st;
    ravel_status status = join(path, "model.safetensors.index.json", index, err);
    if (status) return status;
    if (stat(index, &st) == 0) return open_index(file, index, err);
    DIR *folder = opendir(path);
    if (!folder) return ravel__file_error(err, path, "cannot open it", errno);
    name_list list = {NULL, 0, 0};
    for (struct dirent *e; status == RAVEL_OK && (e = readdir(folder));)
        if (ends_with(e->d_name, ".safetensors") && e->d_name[0] != '.')
            status = keep_name(file, &list, e->d_name, err);
    (void)closedir(folder);
    if (status) return status;
    if (list.count == 0) return ravel_error_set(err, RAVEL_E_DATA, "%s: the folder holds no *.safetensors file", path);
    return add_names(file, path, list.names, list.count, err);
}

/* ---- any of them ---------------------------------------------------------------------------------------- */

static ravel_status open_any(ravel_safetensors *file, const char *path, ravel_error *err) {
    struct stat st;
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return open_folder(file, path, err);
    if (ends_with(path, ".index.json")) return open_index(file, path, err);
    return ravel__safetensors_add_path(file, path, err);
}

ravel_status ravel_safetensors_open(const char *path, const ravel_allocator *allocator, ravel_safetensors **file,
                                    ravel_error *err) {
    ravel_safetensors *fresh = ravel__safetensors_new(allocator, err);
    if (!fresh) return RAVEL_E_MEMORY;
    ravel_status status = open_any(fresh, path, err);
    RAVEL_ASSERT(status || fresh->shards >= 1);
    if (status == RAVEL_OK && !fresh->by_name) {
        ravel_error inner = RAVEL_ERROR_INIT;
        status = ravel__safetensors_index(fresh, &inner);
        if (status) {
            ravel_error_prefix(&inner, "%s", path);
            ravel_error_set(err, status, "%s", inner.message);
        }
    }
    if (status == RAVEL_OK)
        *file = fresh;
    else
        ravel_safetensors_free(fresh);
    return status;
}
