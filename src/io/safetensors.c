/* Reading safetensors: the header is parsed and checked whole, then tensors are views into the bytes.
 *
 * Checks, in this order, so that the error names the first fault:
 *
 *   the first 8 bytes   other known formats (a Git LFS pointer, a zip, ...); the header's length against the
 *                       file's and against the limit
 *   the JSON            an object of entries, each with dtype, shape and data_offsets
 *   each entry          a known dtype; whole dims, their product in range; offsets inside the file; bytes = product
 *   names               none twice
 *   all offsets         sorted, each tensor begins where the one before ends, and the last ends the file
 */
#include "io/safetensors.h"

#include "base/assert.h"
#include "base/dtype.h"
#include "base/options.h"
#include "base/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the first bytes ------------------------------------------------------------------------------------ */

static ravel_status not_safetensors(const char *bytes, size_t size, ravel_error *err) {
    static const struct {
        const char *begins, *is;
    } known[] = {
        {"version https://git-lfs", "a Git LFS pointer, not the file itself; `git lfs pull` fetches it"},
        {"PK\x03\x04", "a zip archive, probably a PyTorch .bin or .pt; it has to be converted to safetensors"},
        {"\x80\x02", "a Python pickle; it has to be converted to safetensors"},
        {"GGUF", "a GGUF file, not safetensors"},
        {"\x93NUMPY", "a NumPy .npy file, not safetensors"},
        {"{", "JSON text, not safetensors; an index must be named *.index.json"},
        {"<", "HTML or XML text, not safetensors; probably a download that went wrong"},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(known[i].begins);
        if (size >= n && memcmp(bytes, known[i].begins, n) == 0)
            return ravel_error_set(err, RAVEL_E_DATA, "this is %s", known[i].is);
    }
    return RAVEL_OK;
}

/* The header's length, or an error about the file's first bytes. */
static ravel_status header_length(const char *bytes, size_t size, size_t *length, ravel_error *err) {
    RAVEL_ASSERT(bytes || !size);
    if (size == 0) return ravel_error_set(err, RAVEL_E_DATA, "the file is empty");
    uint64_t n = 0;
    if (size >= 8) memcpy(&n, bytes, 8);
    if (size < 8 || n > RAVEL_SAFETENSORS_HEADER_MOST || n > size - 8 || (n > 0 && bytes[8] != '{')) {
        ravel_status status = not_safetensors(bytes, size, err);
        if (status) return status;
    }
    if (size < 8)
        return ravel_error_set(err, RAVEL_E_DATA,
                               "the file is cut short: %zu bytes, and a safetensors file has at least 10", size);
    if (n > RAVEL_SAFETENSORS_HEADER_MOST)
        return ravel_error_set(
            err, RAVEL_E_DATA,
            "the first 8 bytes say that the header has %llu bytes, over the limit of %d; this is not "
            "a safetensors file",
            (unsigned long long)n, RAVEL_SAFETENSORS_HEADER_MOST);
    if (n > size - 8)
        return ravel_error_set(err, RAVEL_E_DATA, "the file is cut short: a header of %llu bytes, and %zu bytes follow",
                               (unsigned long long)n, size - 8);
    if (n < 2 || bytes[8] != '{')
        return ravel_error_set(err, RAVEL_E_DATA, "the header must be a JSON object that begins with '{' at byte 8");
    *length = (size_t)n;
    RAVEL_ASSERT(*length <= size - 8);
    return RAVEL_OK;
}

/* ---- one entry ------------------------------------------------------------------------------------------ */

typedef struct parsing {
    ravel_safetensors *file;
    const ravel__json *doc;
    const char *data; /* behind the header */
    int64_t data_bytes;
    ravel_error *err;
} parsing;

static ravel_status bad(const parsing *p, const char *name, const char *what) {
    return ravel_error_set(p->err, RAVEL_E_DATA, "tensor \"%.200s\": %s", name, what);
}

static int whole(const ravel__json_node *node, int64_t *value) {
    return node && node->kind == RAVEL__JSON_INTEGER && ravel__json_integer(node, value) && *value >= 0;
}

static const char *keep_text(ravel_safetensors *file, const char *text, size_t bytes) {
    RAVEL_ASSERT(text[bytes] == '\0');
    char *copy = ravel__arena_push(&file->arena, bytes + 1, 1);
    if (copy) memcpy(copy, text, bytes + 1);
    return copy;
}

static ravel_status read_dtype(const parsing *p, const ravel__json_node *node, ravel_safetensor *t) {
    RAVEL_ASSERT(t->name);
    if (!node || node->kind != RAVEL__JSON_STRING) return bad(p, t->name, "\"dtype\" must be a text like \"F32\"");
    for (int32_t d = 0; d < RAVEL_DTYPE_COUNT; d++)
        if (ravel__json_is(node, ravel__dtype_tag(d))) {
            t->dtype = d;
            return RAVEL_OK;
        }
    return ravel_error_set(p->err, RAVEL_E_DATA, "tensor \"%.200s\": dtype \"%.40s\" is not one that Ravel reads",
                           t->name, node->as.string);
}

static ravel_status read_shape(const parsing *p, const ravel__json_node *node, ravel_safetensor *t) {
    RAVEL_ASSERT(ravel_dtype_bytes(t->dtype) >= 1);
    if (!node || node->kind != RAVEL__JSON_ARRAY) return bad(p, t->name, "\"shape\" must be a list of whole numbers");
    int64_t *dims = ravel__arena_push(&p->file->arena, (size_t)node->count, sizeof *dims), count = 1;
    if (!dims) return ravel__no_memory(p->err, (size_t)node->count * sizeof *dims, "a tensor's dims");
    t->rank = 0;
    for (const ravel__json_node *n = ravel__json_first(p->doc, node); n; n = ravel__json_next(p->doc, n)) {
        int64_t dim;
        if (!whole(n, &dim)) return bad(p, t->name, "\"shape\" must be a list of whole numbers");
        if (__builtin_mul_overflow(count, dim, &count)) return bad(p, t->name, "the product of its shape overflows");
        RAVEL_ASSERT(t->rank < node->count);
        dims[t->rank++] = dim;
    }
    RAVEL_ASSERT(t->rank == node->count && count >= 0);
    t->dims = dims;
    t->count = count;
    if (__builtin_mul_overflow(count, ravel_dtype_bytes(t->dtype), &t->bytes))
        return bad(p, t->name, "its size in bytes overflows");
    return RAVEL_OK;
}

static ravel_status read_offsets(const parsing *p, const ravel__json_node *node, ravel_safetensor *t) {
    RAVEL_ASSERT(p->data_bytes >= 0 && t->bytes >= 0);
    int64_t begin, end;
    const ravel__json_node *first = node && node->kind == RAVEL__JSON_ARRAY && node->count == 2 ? node + 1 : NULL;
    if (!first || !whole(first, &begin) || !whole(ravel__json_next(p->doc, first), &end))
        return bad(p, t->name, "\"data_offsets\" must be two whole numbers");
    if (begin > end) return bad(p, t->name, "it ends before it begins");
    if (end > p->data_bytes)
        return ravel_error_set(p->err, RAVEL_E_DATA,
                               "tensor \"%.200s\" ends at byte %lld of the data, and the file has only %lld: it is cut "
                               "short",
                               t->name, (long long)end, (long long)p->data_bytes);
    if (end - begin != t->bytes)
        return ravel_error_set(p->err, RAVEL_E_DATA,
                               "tensor \"%.200s\": its shape needs %lld bytes, its offsets give %lld", t->name,
                               (long long)t->bytes, (long long)(end - begin));
    RAVEL_ASSERT(begin >= 0 && t->bytes == t->count * ravel_dtype_bytes(t->dtype));
    t->data = p->data + begin;
    t->aligned = (uintptr_t)t->data % (uintptr_t)ravel_dtype_bytes(t->dtype) == 0;
    return RAVEL_OK;
}

static ravel_status read_entry(const parsing *p, const ravel__json_node *node, ravel_safetensor *t) {
    memset(t, 0, sizeof *t);
    RAVEL_ASSERT(node->key);
    t->name = keep_text(p->file, node->key, strlen(node->key));
    if (!t->name) return ravel__no_memory(p->err, strlen(node->key) + 1, "a tensor's name");
    t->shard = p->file->shards;
    if (node->kind != RAVEL__JSON_OBJECT)
        return bad(p, t->name, "its entry must be an object with \"dtype\", \"shape\" and \"data_offsets\"");
    ravel_status status = read_dtype(p, ravel__json_get(p->doc, node, "dtype"), t);
    if (!status) status = read_shape(p, ravel__json_get(p->doc, node, "shape"), t);
    if (!status) status = read_offsets(p, ravel__json_get(p->doc, node, "data_offsets"), t);
    return status;
}

/* ---- metadata ------------------------------------------------------------------------------------------- */

static ravel_status read_metadata(const parsing *p, const ravel__json_node *node) {
    ravel_safetensors *file = p->file;
    if (node->kind != RAVEL__JSON_OBJECT)
        return ravel_error_set(p->err, RAVEL_E_DATA, "\"__metadata__\" must be an object of texts");
    for (const ravel__json_node *n = ravel__json_first(p->doc, node); n; n = ravel__json_next(p->doc, n))
        if (n->kind != RAVEL__JSON_STRING)
            return ravel_error_set(p->err, RAVEL_E_DATA, "\"__metadata__\": the value of \"%.200s\" must be a text",
                                   n->key);
    if (file->shards > 0) return RAVEL_OK; /* the first shard's counts */
    file->metadata = ravel__arena_push(&file->arena, 2 * (size_t)node->count, sizeof *file->metadata);
    if (!file->metadata) return ravel__no_memory(p->err, 2 * (size_t)node->count * sizeof *file->metadata, "metadata");
    for (const ravel__json_node *n = ravel__json_first(p->doc, node); n; n = ravel__json_next(p->doc, n)) {
        const char *key = keep_text(file, n->key, strlen(n->key)), *value = keep_text(file, n->as.string, n->bytes);
        RAVEL_ASSERT(file->metadata_count < node->count);
        if (!key || !value) return ravel__no_memory(p->err, n->bytes, "metadata");
        file->metadata[2 * file->metadata_count] = key;
        file->metadata[2 * file->metadata_count + 1] = value;
        file->metadata_count++;
    }
    RAVEL_ASSERT(file->metadata_count == node->count);
    return RAVEL_OK;
}

/* ---- the whole header ----------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b) {
    const ravel_safetensor *x = a, *y = b;
    uintptr_t left = (uintptr_t)x->data, right = (uintptr_t)y->data;
    if (left != right) return left < right ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; /* an empty one before what begins there too */
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b) {
    const ravel_safetensor *const *x = a, *const *y = b;
    int order = strcmp((*x)->name, (*y)->name);
    if (order) return order;
    return ((*x)->shard > (*y)->shard) - ((*x)->shard < (*y)->shard);
}

/* Tensors must lie back to back from the first byte of the data to the last. */
static ravel_status check_places(const parsing *p, size_t first) {
    RAVEL_ASSERT(first <= p->file->count);
    const ravel_safetensor *t = p->file->tensors;
    int64_t at = 0;
    for (size_t i = first; t && i < p->file->count; i++) {
        int64_t begin = (const char *)t[i].data - p->data;
        RAVEL_ASSERT(begin >= 0 && begin <= p->data_bytes);
        if (begin < at)
            return ravel_error_set(p->err, RAVEL_E_DATA, "tensor \"%.200s\" overlaps tensor \"%.200s\"", t[i].name,
                                   t[i - 1].name);
        if (begin > at)
            return ravel_error_set(p->err, RAVEL_E_DATA, "there is a hole of %lld bytes before tensor \"%.200s\"",
                                   (long long)(begin - at), t[i].name);
        at += t[i].bytes;
        RAVEL_ASSERT(at <= p->data_bytes);
    }
    if (at < p->data_bytes)
        return ravel_error_set(p->err, RAVEL_E_DATA, "%lld bytes at the end of the file belong to no tensor",
                               (long long)(p->data_bytes - at));
    return RAVEL_OK;
}

static ravel_status sort_names(ravel_safetensors *file, size_t first, const ravel_safetensor ***sorted,
                               ravel_error *err) {
    RAVEL_ASSERT(first <= file->count);
    size_t count = file->count - first;
    const ravel_safetensor **names = ravel__arena_push(&file->arena, count, sizeof(void *));
    if (!names) return ravel__no_memory(err, count * sizeof(void *), "an index of tensors");
    for (size_t i = 0; i < count; i++) names[i] = &file->tensors[first + i];
    if (count > 1) qsort(names, count, sizeof(void *), by_name);
    for (size_t i = 1; i < count; i++)
        if (strcmp(names[i]->name, names[i - 1]->name) == 0)
            return ravel_error_set(err, RAVEL_E_DATA, "tensor \"%.200s\" is there twice%s", names[i]->name,
                                   names[i]->shard != names[i - 1]->shard ? ", in two shards" : "");
    *sorted = names;
    return RAVEL_OK;
}

static ravel_status reserve(ravel_safetensors *file, size_t more, ravel_error *err) {
    RAVEL_ASSERT(file->count <= file->room);
    size_t room = file->count + more, each = sizeof *file->tensors;
    if (room <= file->room) return RAVEL_OK;
    ravel_safetensor *grown = ravel__resize(file->allocator, file->tensors, file->room * each, room * each);
    if (!grown) return ravel__no_memory(err, room * each, "a list of tensors");
    file->tensors = grown;
    file->room = room;
    return RAVEL_OK;
}

static ravel_status read_header(const parsing *p) {
    ravel_safetensors *file = p->file;
    const ravel__json_node *root = ravel__json_root(p->doc);
    size_t first = file->count;
    ravel_status status = reserve(file, (size_t)root->count, p->err);
    int metadata_seen = 0;
    for (const ravel__json_node *n = ravel__json_first(p->doc, root); n && !status; n = ravel__json_next(p->doc, n)) {
        RAVEL_ASSERT(file->count < file->room);
        if (strcmp(n->key, "__metadata__") != 0)
            status = read_entry(p, n, &file->tensors[file->count++]);
        else if (metadata_seen++)
            status = ravel_error_set(p->err, RAVEL_E_DATA, "\"__metadata__\" is there twice");
        else
            status = read_metadata(p, n);
    }
    RAVEL_ASSERT(file->count <= file->room);
    if (status) return status;
    ravel__mark mark = ravel__arena_mark(&file->arena);
    const ravel_safetensor **names;
    status = sort_names(file, first, &names, p->err);
    if (status) return status;
    ravel__arena_rewind(&file->arena, mark);
    if (file->tensors) qsort(file->tensors + first, file->count - first, sizeof *file->tensors, by_place);
    return check_places(p, first);
}

static ravel_status add(ravel_safetensors *file, const void *bytes, size_t size, ravel_error *err) {
    size_t length = 0;
    ravel_status status = header_length(bytes, size, &length, err);
    if (status) return status;
    if (size > INT64_MAX) return ravel_error_set(err, RAVEL_E_OVERFLOW, "%zu bytes are too many", size);
    RAVEL_ASSERT(8 + length <= size);
    const char *header = (const char *)bytes + 8;
    ravel__json *doc = NULL;
    status = ravel__json_parse(header, length, file->allocator, &doc, err);
    if (status) {
        ravel_error_prefix(err, "the header");
        return status;
    }
    parsing p = {file, doc, header + length, (int64_t)(size - 8 - length), err};
    status = read_header(&p);
    ravel__json_free(doc);
    if (status == RAVEL_OK) file->shards++;
    return status;
}

/* Checks one file's bytes and appends its tensors; `name` for sentences, NULL for bytes in memory. */
static ravel_status add_bytes(ravel_safetensors *file, const void *bytes, size_t size, const char *name,
                              ravel_error *err) {
    ravel_error inner = RAVEL_ERROR_INIT;
    ravel_status status = add(file, bytes, size, &inner);
    if (status == RAVEL_OK) return RAVEL_OK;
    if (name) ravel_error_prefix(&inner, "%s", name);
    return ravel_error_set(err, status, "%s", inner.message);
}

ravel_status ravel__safetensors_add_path(ravel_safetensors *file, const char *path, ravel_error *err) {
    if (file->maps_count == file->maps_room) {
        size_t room = file->maps_room ? 2 * file->maps_room : 4, each = sizeof *file->maps;
        ravel__map *grown = ravel__resize(file->allocator, file->maps, file->maps_room * each, room * each);
        if (!grown) return ravel__no_memory(err, room * each, "a list of files");
        file->maps = grown;
        file->maps_room = room;
    }
    RAVEL_ASSERT(file->maps_count < file->maps_room);
    ravel__map *map = &file->maps[file->maps_count];
    ravel_status status = ravel__map_open(path, map, err);
    if (status) return status;
    file->maps_count++;
    RAVEL_ASSERT(file->maps_count <= file->maps_room);
    return add_bytes(file, map->data, map->bytes, path, err);
}

ravel_status ravel__safetensors_index(ravel_safetensors *file, ravel_error *err) {
    RAVEL_ASSERT(!file->by_name);
    return sort_names(file, 0, &file->by_name, err);
}

/* ---- the object ----------------------------------------------------------------------------------------- */

ravel_safetensors *ravel__safetensors_new(const ravel_allocator *allocator, ravel_error *err) {
    ravel_safetensors *fresh = ravel__calloc(allocator, 1, sizeof *fresh);
    if (!fresh) {
        (void)ravel__no_memory(err, sizeof *fresh, "a safetensors reader");
        return NULL;
    }
    fresh->allocator = allocator;
    ravel__arena_init(&fresh->arena, allocator, 4096);
    return fresh;
}

ravel_status ravel__safetensors_view(const void *bytes, size_t size, const ravel_allocator *allocator,
                                     ravel_safetensors **file, ravel_error *err) {
    ravel_safetensors *fresh = ravel__safetensors_new(allocator, err);
    if (!fresh) return RAVEL_E_MEMORY;
    ravel_status status = add_bytes(fresh, bytes, size, NULL, err);
    if (status == RAVEL_OK) status = ravel__safetensors_index(fresh, err);
    if (status == RAVEL_OK)
        *file = fresh;
    else
        ravel_safetensors_free(fresh);
    return status;
}

void ravel_safetensors_free(ravel_safetensors *file) {
    if (!file) return;
    for (size_t i = 0; i < file->maps_count; i++) ravel__map_close(&file->maps[i]);
    ravel__release(file->allocator, file->maps, file->maps_room * sizeof *file->maps);
    ravel__release(file->allocator, file->tensors, file->room * sizeof *file->tensors);
    ravel__arena_free(&file->arena);
    ravel__release(file->allocator, file, sizeof *file);
}

/* ---- reading -------------------------------------------------------------------------------------------- */

int64_t ravel_safetensors_count(const ravel_safetensors *file) {
    return (int64_t)file->count;
}

const ravel_safetensor *ravel_safetensors_at(const ravel_safetensors *file, int64_t index) {
    return index >= 0 && (size_t)index < file->count ? &file->tensors[index] : NULL;
}

const ravel_safetensor *ravel_safetensors_find(const ravel_safetensors *file, const char *name) {
    size_t low = 0, high = file->count;
    RAVEL_ASSERT(file->by_name || !file->count);
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        RAVEL_ASSERT(!middle || strcmp(file->by_name[middle - 1]->name, file->by_name[middle]->name) < 0);
        int order = strcmp(name, file->by_name[middle]->name);
        if (order == 0) return file->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

/* The nearest name in the file: the best of each batch of names, then the best of those. */
static const char *nearest(const ravel_safetensors *file, const char *name) {
    enum { BATCH = 256 };
    const char *names[BATCH] = {0};
    size_t count = 0;
    for (size_t i = 0; i < file->count; i++) {
        names[count++] = file->tensors[i].name;
        if (count < BATCH) continue;
        const char *winner = ravel__suggest(name, names, count);
        count = 0;
        if (winner) names[count++] = winner;
    }
    return ravel__suggest(name, names, count);
}

static ravel_status missing(const ravel_safetensors *file, const char *name, ravel_error *err) {
    const char *near = nearest(file, name);
    return ravel_error_set(err, RAVEL_E_DATA, "there is no tensor \"%.200s\" among the %zu in the file%s%s%s", name,
                           file->count, near ? "; the nearest is \"" : "", near ? near : "", near ? "\"" : "");
}

static void format_dims(const int64_t *dims, int32_t rank, char *text, size_t room) {
    RAVEL_ASSERT(room > 1 && rank >= 0);
    size_t used = (size_t)snprintf(text, room, "[");
    for (int32_t i = 0; i < rank && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%lld", i ? ", " : "", (long long)dims[i]);
    if (used < room) (void)snprintf(text + used, room - used, "]");
}

ravel_status ravel_safetensors_get(const ravel_safetensors *file, const char *name, int32_t rank, const int64_t *dims,
                                   const ravel_safetensor **tensor, ravel_error *err) {
    const ravel_safetensor *t = ravel_safetensors_find(file, name);
    if (!t) return missing(file, name, err);
    int same = rank < 0 || t->rank == rank;
    for (int32_t i = 0; i < rank && same; i++) same = t->dims[i] == dims[i];
    if (!same) {
        char is[160], should[160];
        format_dims(t->dims, t->rank, is, sizeof is);
        format_dims(dims, rank, should, sizeof should);
        return ravel_error_set(err, RAVEL_E_DATA, "tensor \"%.200s\" has shape %s; it must be %s", name, is, should);
    }
    *tensor = t;
    return RAVEL_OK;
}

ravel_status ravel_safetensor_read(const ravel_safetensor *tensor, int64_t first, int64_t count, int32_t dtype,
                                   void *out, ravel_error *err) {
    if (first < 0 || count < 0 || first > tensor->count || count > tensor->count - first)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "tensor \"%.200s\" has %lld elements; %lld from %lld are not there", tensor->name,
                               (long long)tensor->count, (long long)count, (long long)first);
    const char *from = (const char *)tensor->data + first * ravel_dtype_bytes(tensor->dtype);
    return ravel_dtype_convert(tensor->dtype, from, dtype, out, count, err);
}

int64_t ravel_safetensors_metadata_count(const ravel_safetensors *file) {
    return file->metadata_count;
}

const char *ravel_safetensors_metadata_key(const ravel_safetensors *file, int64_t index) {
    return index >= 0 && index < file->metadata_count ? file->metadata[2 * index] : NULL;
}

const char *ravel_safetensors_metadata_value(const ravel_safetensors *file, int64_t index) {
    return index >= 0 && index < file->metadata_count ? file->metadata[2 * index + 1] : NULL;
}

const char *ravel_safetensors_metadata(const ravel_safetensors *file, const char *key) {
    for (int64_t i = 0; i < file->metadata_count; i++)
        if (strcmp(file->metadata[2 * i], key) == 0) return file->metadata[2 * i + 1];
    return NULL;
}
