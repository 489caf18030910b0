/* Writing safetensors: declared tensors fix the header, so every tensor's offset is known before the first byte is
 * written.
 *
 *     declare, declare, metadata  ->  begin (places, header)  ->  write, write, ...  ->  finish
 *              DECLARING                                 WRITING                        FINISHED
 *
 * Places: larger dtypes first and the header a multiple of 8, so that every tensor is aligned to its own elements. */
#include "base/dtype.h"
#include "base/json.h"
#include "io/safetensors_writer.h"
#include <ravel/safetensors.h>

#include "base/assert.h"
#include "base/system/file.h"
#include "base/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct entry {
    const char *name;
    int32_t dtype, rank;
    const int64_t *dims;
    int64_t bytes, offset, written; /* offset: in the data */
} entry;

typedef enum writer_state { DECLARING, WRITING, FINISHED, FAILED } writer_state;

struct ravel__safetensors_writer {
    const ravel_allocator *allocator;
    ravel__arena arena;
    ravel__writing out;
    int32_t durability;
    writer_state state;
    entry *entries;
    size_t count, room;
    const char **metadata; /* key, value, ... */
    size_t metadata_count, metadata_room;
    int64_t data_at; /* where the data begins in the file */
};

void ravel_safetensors_options_default(ravel_safetensors_options *options) {
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
}

/* ---- declaring ------------------------------------------------------------------------------------------ */

/* A list of `each`-sized items with room for `more`; the list is moved when it grows. 0 when memory is short. */
static int make_room(const ravel_allocator *allocator, void *list, size_t *room, size_t need, size_t each) {
    if (need <= *room) return 1;
    size_t grown_room = need < 16 ? 16 : 2 * need;
    void *old, *grown;
    memcpy(&old, list, sizeof old);
    grown = ravel__resize(allocator, old, *room * each, grown_room * each);
    if (!grown) return 0;
    memcpy(list, &grown, sizeof grown);
    *room = grown_room;
    RAVEL_ASSERT(*room >= need);
    return 1;
}

/* A copy of the text; E_ARGUMENT if it is not UTF-8, which the JSON header requires. */
static ravel_status keep(ravel__safetensors_writer *w, const char *text, const char **kept, ravel_error *err) {
    size_t bytes = strlen(text), quoted = ravel__json_quote(text, bytes, NULL, 0);
    ravel__mark mark = ravel__arena_mark(&w->arena);
    char *check = ravel__arena_push(&w->arena, quoted + 1, 1);
    if (!check) return ravel__no_memory(err, quoted + 1, "a name");
    ravel__json_quote(text, bytes, check, quoted + 1);
    int changed = strstr(check, "\xef\xbf\xbd") && !strstr(text, "\xef\xbf\xbd");
    ravel__arena_rewind(&w->arena, mark);
    if (changed) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a name or text in a safetensors file must be UTF-8");
    char *copy = ravel__arena_push(&w->arena, bytes + 1, 1);
    if (!copy) return ravel__no_memory(err, bytes + 1, "a name");
    memcpy(copy, text, bytes + 1);
    *kept = copy;
    return RAVEL_OK;
}

static ravel_status must_be(const ravel__safetensors_writer *w, writer_state state, const char *call,
                            ravel_error *err) {
    static const char *const names[] = {"tensors may still be declared", "writing has begun", "it is finished",
                                        "an earlier call failed"};
    if (w->state == state) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_STATE, "%s: %s cannot come now: %s", w->out.path, call, names[w->state]);
}

ravel_status ravel__safetensors_writer_metadata(ravel__safetensors_writer *writer, const char *key, const char *value,
                                                ravel_error *err) {
    ravel_status status = must_be(writer, DECLARING, "metadata", err);
    const char *kept_key = NULL, *kept_value = NULL;
    if (!status) status = keep(writer, key, &kept_key, err);
    if (!status) status = keep(writer, value, &kept_value, err);
    if (status) return status;
    for (size_t i = 0; i < writer->metadata_count; i++)
        if (strcmp(writer->metadata[2 * i], key) == 0) {
            writer->metadata[2 * i + 1] = kept_value;
            return RAVEL_OK;
        }
    if (!make_room(writer->allocator, &writer->metadata, &writer->metadata_room, 2 * (writer->metadata_count + 1),
                   sizeof *writer->metadata))
        return ravel__no_memory(err, writer->metadata_room * sizeof *writer->metadata, "metadata");
    writer->metadata[2 * writer->metadata_count] = kept_key;
    writer->metadata[2 * writer->metadata_count + 1] = kept_value;
    writer->metadata_count++;
    return RAVEL_OK;
}

static ravel_status tensor_bytes(const char *name, int32_t dtype, int32_t rank, const int64_t *dims, int64_t *bytes,
                                 ravel_error *err) {
    if (!ravel_dtype_bytes(dtype))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "tensor \"%.200s\": dtype %d is none of RAVEL_DTYPE_LIST", name,
                               dtype);
    if (strcmp(name, "__metadata__") == 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a tensor cannot be called \"__metadata__\"");
    if (rank < 0) return ravel_error_set(err, RAVEL_E_ARGUMENT, "tensor \"%.200s\": rank %d", name, rank);
    int64_t total = ravel_dtype_bytes(dtype);
    for (int32_t i = 0; i < rank; i++) {
        if (dims[i] < 0)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "tensor \"%.200s\": dim %d is %lld", name, i,
                                   (long long)dims[i]);
        if (__builtin_mul_overflow(total, dims[i], &total))
            return ravel_error_set(err, RAVEL_E_OVERFLOW, "tensor \"%.200s\": its size in bytes overflows", name);
    }
    *bytes = total;
    return RAVEL_OK;
}

ravel_status ravel__safetensors_writer_declare(ravel__safetensors_writer *writer, const char *name, int32_t dtype,
                                               int32_t rank, const int64_t *dims, int64_t *index, ravel_error *err) {
    entry e = {NULL, dtype, rank, NULL, 0, 0, 0};
    ravel_status status = must_be(writer, DECLARING, "a declaration", err);
    if (!status) status = tensor_bytes(name, dtype, rank, dims, &e.bytes, err);
    if (!status) status = keep(writer, name, &e.name, err);
    if (status) return status;
    int64_t *kept = ravel__arena_push(&writer->arena, (size_t)rank, sizeof *kept);
    if (!kept || !make_room(writer->allocator, &writer->entries, &writer->room, writer->count + 1, sizeof e))
        return ravel__no_memory(err, (writer->count + 1) * sizeof e, "a list of tensors");
    if (rank) memcpy(kept, dims, (size_t)rank * sizeof *kept);
    e.dims = kept;
    writer->entries[writer->count] = e;
    if (index) *index = (int64_t)writer->count;
    writer->count++;
    return RAVEL_OK;
}

/* ---- the header ----------------------------------------------------------------------------------------- */

/* Text that grows; `failed` is checked once, at the end. */
typedef struct text {
    const ravel_allocator *allocator;
    char *at;
    size_t used, room;
    int failed;
} text;

static void put_quoted(text *t, const char *name) {
    size_t need = ravel__json_quote(name, strlen(name), NULL, 0);
    if (t->failed || !make_room(t->allocator, &t->at, &t->room, t->used + need + 1, 1)) {
        t->failed = 1;
        return;
    }
    size_t wrote = ravel__json_quote(name, strlen(name), t->at + t->used, need + 1);
    RAVEL_ASSERT(wrote == need && t->used + need < t->room);
    (void)wrote;
    t->used += need;
}

static void put(text *t, const char *words) {
    size_t need = strlen(words);
    if (t->failed || !make_room(t->allocator, &t->at, &t->room, t->used + need, 1)) {
        t->failed = 1;
        return;
    }
    memcpy(t->at + t->used, words, need);
    t->used += need;
}

static void put_number(text *t, int64_t number) {
    char digits[24];
    (void)snprintf(digits, sizeof digits, "%lld", (long long)number);
    put(t, digits);
}

static void put_entry(text *t, const entry *e) {
    put_quoted(t, e->name);
    put(t, ":{\"dtype\":\"");
    put(t, ravel__dtype_tag(e->dtype));
    put(t, "\",\"shape\":[");
    for (int32_t i = 0; i < e->rank; i++) {
        if (i) put(t, ",");
        put_number(t, e->dims[i]);
    }
    put(t, "],\"data_offsets\":[");
    put_number(t, e->offset);
    put(t, ",");
    put_number(t, e->offset + e->bytes);
    put(t, "]}");
}

static void put_metadata(text *t, const ravel__safetensors_writer *w) {
    put(t, "\"__metadata__\":{");
    for (size_t i = 0; i < w->metadata_count; i++) {
        if (i) put(t, ",");
        put_quoted(t, w->metadata[2 * i]);
        put(t, ":");
        put_quoted(t, w->metadata[2 * i + 1]);
    }
    put(t, "}");
}

/* 8 bytes of length, the JSON, blanks up to a multiple of 8. */
static ravel_status write_header(ravel__safetensors_writer *w, entry *const *order, ravel_error *err) {
    text t = {w->allocator, NULL, 0, 0, 0};
    put(&t, "        {");
    if (w->metadata_count) put_metadata(&t, w);
    for (size_t i = 0; i < w->count; i++) {
        if (i || w->metadata_count) put(&t, ",");
        put_entry(&t, order[i]);
    }
    put(&t, "}");
    while (t.used % 8 && !t.failed) put(&t, " ");
    ravel_status status = RAVEL_OK;
    uint64_t length = t.used - 8;
    if (t.failed) {
        status = ravel__no_memory(err, t.used, "a header");
    } else if (length > RAVEL_SAFETENSORS_HEADER_MOST) {
        status = ravel_error_set(err, RAVEL_E_OVERFLOW, "%s: a header of %llu bytes is over the limit of %d",
                                 w->out.path, (unsigned long long)length, RAVEL_SAFETENSORS_HEADER_MOST);
    } else {
        RAVEL_ASSERT(length % 8 == 0 && t.at[8] == '{');
        memcpy(t.at, &length, 8);
        status = ravel__writing_put(&w->out, 0, t.at, t.used, err);
    }
    w->data_at = (int64_t)t.used;
    ravel__release(w->allocator, t.at, t.room);
    return status;
}

static int by_size(const void *a, const void *b) {
    const entry *x = *(entry *const *)a, *y = *(entry *const *)b;
    int32_t left = ravel_dtype_bytes(x->dtype), right = ravel_dtype_bytes(y->dtype);
    if (left != right) return left > right ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(entry *const *)a)->name, (*(entry *const *)b)->name);
}

static ravel_status place(ravel__safetensors_writer *w, entry **order, ravel_error *err) {
    for (size_t i = 0; i < w->count; i++) order[i] = &w->entries[i];
    if (w->count > 1) qsort(order, w->count, sizeof(void *), by_name);
    for (size_t i = 1; i < w->count; i++)
        if (strcmp(order[i]->name, order[i - 1]->name) == 0)
            return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s: tensor \"%.200s\" is declared twice", w->out.path,
                                   order[i]->name);
    if (w->count > 1) qsort(order, w->count, sizeof(void *), by_size);
    int64_t at = 0;
    for (size_t i = 0; i < w->count; i++) {
        order[i]->offset = at;
        RAVEL_ASSERT(at % ravel_dtype_bytes(order[i]->dtype) == 0); /* aligned to its own elements */
        if (__builtin_add_overflow(at, order[i]->bytes, &at) || at > INT64_MAX - 2 * RAVEL_SAFETENSORS_HEADER_MOST)
            return ravel_error_set(err, RAVEL_E_OVERFLOW, "%s: all tensors together are too large", w->out.path);
    }
    return RAVEL_OK;
}

static ravel_status begin(ravel__safetensors_writer *w, ravel_error *err) {
    entry **order = ravel__arena_push(&w->arena, w->count, sizeof(void *));
    if (!order) return ravel__no_memory(err, w->count * sizeof(void *), "the order of tensors");
    ravel_status status = place(w, order, err);
    if (status == RAVEL_OK) status = write_header(w, order, err);
    w->state = status == RAVEL_OK ? WRITING : FAILED;
    return status;
}

/* ---- writing -------------------------------------------------------------------------------------------- */

ravel_status ravel__safetensors_writer_create(const char *path, const ravel_safetensors_options *options,
                                              ravel__safetensors_writer **writer, ravel_error *err) {
    ravel_safetensors_options chosen;
    ravel_safetensors_options_default(&chosen);
    if (options) memcpy(&chosen, options, options->size < sizeof chosen ? options->size : sizeof chosen);
    if (chosen.durability < RAVEL_DURABLE || chosen.durability > RAVEL_IN_PLACE)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s: durability %d is none of ravel_durability", path,
                               chosen.durability);
    ravel__safetensors_writer *w = ravel__calloc(chosen.allocator, 1, sizeof *w);
    if (!w) return ravel__no_memory(err, sizeof *w, "a safetensors writer");
    w->allocator = chosen.allocator;
    w->durability = chosen.durability;
    ravel__arena_init(&w->arena, w->allocator, 4096);
    ravel_status status = ravel__writing_open(&w->out, path, w->durability != RAVEL_IN_PLACE, w->allocator, err);
    if (status == RAVEL_OK)
        *writer = w;
    else
        ravel__safetensors_writer_free(w);
    return status;
}

void ravel__safetensors_writer_free(ravel__safetensors_writer *writer) {
    if (!writer) return;
    ravel__writing_discard(&writer->out);
    ravel__release(writer->allocator, writer->entries, writer->room * sizeof *writer->entries);
    ravel__release(writer->allocator, writer->metadata, writer->metadata_room * sizeof *writer->metadata);
    ravel__arena_free(&writer->arena);
    ravel__release(writer->allocator, writer, sizeof *writer);
}

ravel_status ravel__safetensors_writer_write(ravel__safetensors_writer *writer, int64_t index, const void *data,
                                             int64_t bytes, ravel_error *err) {
    if (index < 0 || (size_t)index >= writer->count || bytes < 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s: %lld bytes for tensor number %lld of %zu", writer->out.path,
                               (long long)bytes, (long long)index, writer->count);
    ravel_status status = writer->state == DECLARING ? begin(writer, err) : RAVEL_OK;
    if (!status) status = must_be(writer, WRITING, "a write", err);
    if (status) return status;
    entry *e = &writer->entries[index];
    RAVEL_ASSERT(writer->data_at > 8 && e->written >= 0 && e->written <= e->bytes);
    if (bytes > e->bytes - e->written)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "%s: tensor \"%.200s\" has %lld bytes, %lld of them are written, and %lld more came",
                               writer->out.path, e->name, (long long)e->bytes, (long long)e->written, (long long)bytes);
    status = ravel__writing_put(&writer->out, writer->data_at + e->offset + e->written, data, (size_t)bytes, err);
    if (status)
        writer->state = FAILED;
    else
        e->written += bytes;
    return status;
}

ravel_status ravel__safetensors_writer_finish(ravel__safetensors_writer *writer, ravel_error *err) {
    ravel_status status = writer->state == DECLARING ? begin(writer, err) : RAVEL_OK;
    if (!status) status = must_be(writer, WRITING, "a finish", err);
    if (status) return status;
    for (size_t i = 0; i < writer->count; i++) {
        const entry *e = &writer->entries[i];
        if (e->written != e->bytes)
            return ravel_error_set(err, RAVEL_E_STATE, "%s: tensor \"%.200s\" has %lld bytes, and only %lld came",
                                   writer->out.path, e->name, (long long)e->bytes, (long long)e->written);
    }
    status = ravel__writing_commit(&writer->out, writer->durability == RAVEL_DURABLE, err);
    writer->state = status == RAVEL_OK ? FINISHED : FAILED;
    return status;
}

/* ---- all at once ---------------------------------------------------------------------------------------- */

static ravel_status write_all(ravel__safetensors_writer *w, const ravel_safetensor *tensors, int64_t count,
                              const char *const *metadata, int64_t metadata_count, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < metadata_count && !status; i++)
        status = ravel__safetensors_writer_metadata(w, metadata[2 * i], metadata[2 * i + 1], err);
    for (int64_t i = 0; i < count && !status; i++)
        status = ravel__safetensors_writer_declare(w, tensors[i].name, tensors[i].dtype, tensors[i].rank,
                                                   tensors[i].dims, NULL, err);
    for (int64_t i = 0; i < count && !status; i++)
        status = ravel__safetensors_writer_write(w, i, tensors[i].data, w->entries[i].bytes, err);
    return status ? status : ravel__safetensors_writer_finish(w, err);
}

ravel_status ravel_safetensors_write(const char *path, const ravel_safetensor *tensors, int64_t count,
                                     const char *const *metadata, int64_t metadata_count,
                                     const ravel_safetensors_options *options, ravel_error *err) {
    ravel__safetensors_writer *w = NULL;
    ravel_status status = ravel__safetensors_writer_create(path, options, &w, err);
    if (status || !w) return status;
    status = write_all(w, tensors, count, metadata, metadata_count, err);
    ravel__safetensors_writer_free(w);
    return status;
}
