/* Tensors of a model folder, in and out. The config and the other files are hf_config.c's. */
#include "train/model/hf/hf.h"

#include "base/assert.h"
#include "io/safetensors_writer.h"
#include "train/kernels/arena.h"
#include "train/model/hf/files.h"
#include "train/model/ranks/shares.h"

#include "base/system/file.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- tensors -------------------------------------------------------------------------------------------- */

/* The first of `count` elements that is NaN or infinite; `count` where all are finite. */
static int64_t first_not_finite(int32_t dtype, const void *data, int64_t count) {
    int64_t i = 0;
    if (dtype == RAVEL_F32) {
        const float *x = data;
        while (i < count && isfinite(x[i])) i++;
    } else if (dtype == RAVEL_BF16) {
        const uint16_t *x = data;
        while (i < count && (x[i] & 0x7f80) != 0x7f80) i++;
    } else {
        return count;
    }
    return i;
}

/* With weights that are not finite every loss is NaN. */
static ravel_status check_finite(const ravel_safetensor *source, const train_array *to, int64_t from, int64_t count,
                                 const void *piece, ravel_error *err) {
    int64_t at = first_not_finite(to->dtype, piece, count), element = from + at;
    RAVEL_ASSERT(at >= 0 && at <= count);
    if (at == count) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_DATA, "%s holds NaN or infinity, first in element %lld of %lld", source->name,
                           (long long)element, (long long)source->count);
}

/* `count` elements of the file from `from` on, to `at` in the array, as far as this rank has them. */
static ravel_status load_run(const train_tensor_file *file, const train_array *to, int64_t at, int64_t from,
                             int64_t count, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    int64_t begin = at, end = at + count;
    if (to->shares && !train_shares_cut(to->shares, to->shares->rank, &begin, &end)) return RAVEL_OK;
    char *data = train_array_at(to, begin);
    from += begin - at;
    RAVEL_ASSERT(begin >= at && end <= at + count);
    count = end - begin;
    for (int64_t done = 0; done < count && !status;) {
        int64_t n = train__min(count - done, TRAIN_PIECE);
        status = ravel_safetensor_read(file->tensor, from + done, n, to->dtype, file->piece, err);
        if (!status && file->finite) status = check_finite(file->tensor, to, from + done, n, file->piece, err);
        if (!status)
            to->kernels->upload(to->device, train__at(data, to->dtype, done), file->piece,
                                (size_t)(n * ravel_dtype_bytes(to->dtype)));
        done += n;
    }
    return status;
}

/* A part of whole rows is one run of the file; of columns, a run per row. */
ravel_status train_tensor_load(const train_tensor *t, const train_tensor_file *file, const train_array *to,
                               ravel_error *err) {
    int64_t from = file->first + t->first[0] * t->whole[1] + t->first[1];
    ravel_status status = RAVEL_OK;
    if (t->dims[1] == t->whole[1]) return load_run(file, to, t->offset, from, t->count, err);
    for (int64_t r = 0; r < t->dims[0] && !status; r++)
        status = load_run(file, to, t->offset + r * t->dims[1], from + r * t->whole[1], t->dims[1], err);
    return status;
}

/* Tensors that a file may hold beside those of the table: frequencies that old checkpoints kept, and a head that is the
 * embedding. */
static int may_be_left(const train_params *params, const char *name) {
    static const char tail[] = ".rotary_emb.inv_freq";
    size_t n = strlen(name), m = sizeof tail - 1;
    if (n > m && strcmp(name + n - m, tail) == 0) return 1;
    return strcmp(name, "lm_head.weight") == 0 && params->head == params->embedding;
}

/* Whether another pipeline stage has the tensor. */
static int of_another_stage(const train_params *params, const char *name) {
    static const char layers[] = "model.layers.", adapted[] = "base_model.model.";
    const train_slice *p = &params->part;
    if (params->lora.rank && strncmp(name, adapted, sizeof adapted - 1) == 0) name += sizeof adapted - 1;
    if (strncmp(name, layers, sizeof layers - 1) != 0) return p->first_layer > 0 || params->head < 0;
    int64_t layer = strtoll(name + sizeof layers - 1, NULL, 10);
    return layer < p->first_layer || (layer >= p->last_layer && params->head < 0);
}

/* Whether it is an expert's, of those that other ranks have. */
static int of_another_expert(const train_params *params, const char *name) {
    char own[256];
    const char *end = NULL;
    for (const char *at = strstr(name, "experts."); at; at = strstr(at + 1, "experts.")) end = at + strlen("experts.");
    if (params->part.ep <= 1 || !end) return 0;
    const char *rest = end + strspn(end, "0123456789");
    (void)snprintf(own, sizeof own, "%.*s%lld%s", (int)(end - name), name, (long long)params->expert_first, rest);
    return strtoll(end, NULL, 10) < params->expert_count * params->part.ep && train_params_find(params, own) != NULL;
}

static int is_of_a_file(const train_params *params, const char *name) {
    if (train_params_find(params, name) || of_another_expert(params, name)) return 1;
    for (int64_t i = 0; i < params->count; i++) {
        const train_tensor *t = params->tensors + i;
        if (strcmp(t->file_name, name) == 0 || (t->stacked && strcmp(t->stacked, name) == 0)) return 1;
    }
    return 0;
}

/* Models with images have this before the names of the model of text, and other tensors beside it. */
static const char text_model[] = "language_model.";

static int of_text_model(const char *name) {
    return strncmp(name, text_model, sizeof text_model - 1) == 0;
}

static const ravel_safetensor *weights_find(const ravel_safetensors *file, const char *name) {
    char inside[512];
    const ravel_safetensor *t = ravel_safetensors_find(file, name);
    (void)snprintf(inside, sizeof inside, "%s%s", text_model, name);
    return t ? t : ravel_safetensors_find(file, inside);
}

static ravel_status check_all_used(const train_params *params, const ravel_safetensors *file, ravel_error *err) {
    int64_t extra = 0, count = ravel_safetensors_count(file), images = 0;
    const char *first = NULL;
    for (int64_t i = 0; i < count && !images; i++) images = of_text_model(ravel_safetensors_at(file, i)->name);
    for (int64_t i = 0; i < count; i++) {
        const char *name = ravel_safetensors_at(file, i)->name;
        if (images && !of_text_model(name)) continue;
        if (images) name += sizeof text_model - 1;
        if (is_of_a_file(params, name) || may_be_left(params, name) || of_another_stage(params, name)) continue;
        if (!first) first = name;
        extra++;
    }
    if (!extra) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                           "%s and %lld other tensors are not part of the model that the config describes", first,
                           (long long)extra - 1);
}

/* Of a folder, the index or model.safetensors if there is one: a checkpoint has other files beside it. */
static void weights_path(const char *path, char *out) {
    static const char *const names[] = {"model.safetensors.index.json", "model.safetensors"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!train_path_join(out, path, names[i], NULL) && train_path_exists(out)) return;
    (void)snprintf(out, TRAIN_PATH, "%.*s", TRAIN_PATH - 1, path);
}

ravel_status train_weights_open(const char *path, ravel_safetensors **file, ravel_error *err) {
    char name[TRAIN_PATH];
    weights_path(path, name);
    return ravel_safetensors_open(name, NULL, file, err);
}

int32_t train_weights_dtype(const char *path) {
    ravel_safetensors *file = NULL;
    if (train_weights_open(path, &file, NULL)) return -1;
    const ravel_safetensor *largest = NULL;
    for (int64_t i = 0; i < ravel_safetensors_count(file); i++) {
        const ravel_safetensor *t = ravel_safetensors_at(file, i);
        if (!largest || t->bytes > largest->bytes) largest = t;
    }
    int32_t dtype = largest ? largest->dtype : -1;
    ravel_safetensors_free(file);
    return dtype;
}

ravel_status train_tensor_find(const train_tensor *t, const ravel_safetensors *file, train_tensor_file *from,
                               ravel_error *err) {
    const int64_t dims[2] = {t->file_rows, t->whole[1]};
    const ravel_safetensor *own = weights_find(file, t->file_name),
                           *stack = own || !t->stacked ? NULL : weights_find(file, t->stacked);
    const char *name = stack ? stack->name : own ? own->name : t->file_name;
    from->first = stack ? t->stacked_first : t->file_first * t->whole[1];
    return ravel_safetensors_get(file, name,
                                 !stack               ? t->rank
                                 : t->stacked_dims[2] ? 3
                                                      : 2,
                                 stack ? t->stacked_dims : dims, &from->tensor, err);
}

ravel_status train_tensors_load(const train_params *params, const train_array *to, const char *path, ravel_error *err) {
    ravel_safetensors *file = NULL;
    ravel_status status = train_weights_open(path, &file, err);
    if (status) return status;
    train__arena arena = {0};
    train_tensor_file from = {.finite = 1};
    from.piece = train__arena_take_array(&arena, TRAIN_PIECE, (size_t)ravel_dtype_bytes(to->dtype));
    status = train__arena_status(&arena, "a piece of a tensor", err);
    for (int64_t i = 0; i < params->count && !status; i++) {
        status = train_tensor_find(params->tensors + i, file, &from, err);
        if (!status) status = train_tensor_load(params->tensors + i, &from, to, err);
    }
    if (!status) status = check_all_used(params, file, err);
    if (status && err) ravel_error_prefix(err, "%s", path);
    train__arena_free(&arena);
    ravel_safetensors_free(file);
    return status ? status : to->kernels->sync(to->device, err);
}

/* ---- tensors that stay in the map ------------------------------------------------------------------------ */

static int64_t vector_room(const train_tensor *t) {
    return t->rank == 1 ? (t->count + 15) / 16 * 16 : 0;
}

int64_t train_vectors(const train_params *params) {
    int64_t sum = 0;
    for (int64_t i = 0; i < params->count; i++) sum += vector_room(params->tensors + i);
    return sum;
}

int train_tensors_mappable(const train_params *params, int32_t dtype, const ravel_safetensors *file) {
    for (int64_t i = 0; i < params->count; i++) {
        const train_tensor *t = params->tensors + i;
        train_tensor_file from = {0};
        if (t->rank == 1) continue;
        if (train_tensor_find(t, file, &from, NULL) || from.tensor->dtype != dtype || !from.tensor->aligned) return 0;
    }
    return 1;
}

/* The whole tensor is read next, to look for what is not finite: in large pieces rather than page by page. */
static void read_ahead(const void *data, size_t bytes) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (uintptr_t)data % page;
    union { /* advice changes nothing */
        const void *given;
        char *at;
    } u = {data};
    (void)posix_madvise(u.at - inside, bytes + inside, POSIX_MADV_WILLNEED);
}

ravel_status train_tensors_map(const train_params *params, int32_t dtype, const ravel_safetensors *file,
                               const void **places, void *vectors, ravel_error *err) {
    ravel_status status = check_all_used(params, file, err);
    train_array to = {.dtype = dtype};
    for (int64_t i = 0, used = 0; i < params->count && !status; i++) {
        const train_tensor *t = params->tensors + i;
        train_tensor_file from = {0};
        status = train_tensor_find(t, file, &from, err);
        if (status) return status;
        int64_t first = from.first + t->first[0] * t->whole[1], count = t->dims[0] * t->whole[1];
        void *vector = train__at(vectors, dtype, used);
        const void *rows = t->rank == 1 ? vector : train__at(from.tensor->data, dtype, first);
        if (t->rank > 1) read_ahead(rows, (size_t)(count * ravel_dtype_bytes(dtype)));
        if (t->rank == 1) status = ravel_safetensor_read(from.tensor, first, count, dtype, vector, err);
        if (!status) status = check_finite(from.tensor, &to, first, count, rows, err);
        places[i] = train__at(rows, dtype, t->first[1]);
        used += vector_room(t);
    }
    return status;
}

int64_t train_block_rows(const train_tensor *t) {
    RAVEL_ASSERT(t->whole[1] > 0);
    return train__max(TRAIN_PIECE / t->whole[1], 1);
}

ravel_status train_tensor_save(const train_tensor_writer *w, int64_t index, const train_tensor *t, ravel_error *err) {
    int64_t block = train_block_rows(t);
    ravel_status status = RAVEL_OK;
    for (int64_t row = 0; row < t->dims[0] && !status; row += block) {
        int64_t rows = train__min(block, t->dims[0] - row), count = rows * t->dims[1];
        RAVEL_ASSERT(rows > 0 && count <= train__max(TRAIN_PIECE, t->dims[1]));
        status = w->from->read(w->from->user, t, row, rows, w->piece, err);
        if (!status) status = ravel_dtype_convert(w->from->dtype, w->piece, w->dtype, w->converted, count, err);
        if (!status)
            status = ravel__safetensors_writer_write(w->writer, index, w->converted,
                                                     count * ravel_dtype_bytes(w->dtype), err);
    }
    return status;
}

/* Whether a tensor of a file begins with it: parts of one follow one another. */
static int begins_in_file(const train_tensor *t) {
    return t->file_first == 0;
}

/* Tensors first .. last - 1 of the table as one file. */
static ravel_status save_range(train_tensor_writer *w, const char *path, const train_params *params, int64_t first,
                               int64_t last, ravel_error *err) {
    int64_t index = 0;
    RAVEL_ASSERT(first < last && last <= params->count);
    ravel_status status = ravel__safetensors_writer_create(path, NULL, &w->writer, err);
    if (status) return status;
    status = ravel__safetensors_writer_metadata(w->writer, "format", "pt", err);
    for (int64_t i = first; i < last && !status; i++) {
        const train_tensor *t = params->tensors + i;
        const int64_t dims[2] = {t->file_rows, t->dims[1]};
        if (begins_in_file(t))
            status = ravel__safetensors_writer_declare(w->writer, t->file_name, w->dtype, t->rank, dims, &index, err);
    }
    index = -1;
    for (int64_t i = first; i < last && !status; i++) { /* declared in this order, so numbered 0, 1, ... */
        index += begins_in_file(params->tensors + i);
        status = train_tensor_save(w, index, params->tensors + i, err);
    }
    if (!status) status = ravel__safetensors_writer_finish(w->writer, err);
    ravel__safetensors_writer_free(w->writer);
    return status;
}

/* ---- folders -------------------------------------------------------------------------------------------- */

/* The first tensor of each shard, and the number of tensors after the last: starts[0 .. *shards]. A shard holds as many
 * tensors as fit `most` bytes, at least one. */
static void cut_shards(const train_params *params, int32_t dtype, int64_t most, int64_t *starts, int64_t *shards) {
    int64_t used = 0;
    *shards = 0;
    for (int64_t i = 0; i < params->count; i++) {
        int64_t bytes = params->tensors[i].count * ravel_dtype_bytes(dtype);
        if (i == 0 || (used + bytes > most && begins_in_file(params->tensors + i))) {
            starts[(*shards)++] = i;
            used = 0;
        }
        used += bytes;
    }
    starts[*shards] = params->count;
    RAVEL_ASSERT(*shards >= 1 && *shards <= params->count);
}

static void shard_name(char *name, size_t room, int64_t shard, int64_t shards) {
    RAVEL_ASSERT(shard >= 0 && shard < shards);
    if (shards == 1)
        (void)snprintf(name, room, "model.safetensors");
    else
        (void)snprintf(name, room, "model-%05lld-of-%05lld.safetensors", (long long)shard + 1, (long long)shards);
}

static ravel_status write_index(const char *path, const train_params *params, int32_t dtype, const int64_t *starts,
                                int64_t shards, ravel_error *err) {
    char name[64];
    const char *before = "";
    FILE *f = train_file_create(path, err);
    if (!f) return RAVEL_E_IO;
    (void)fprintf(f, "{\n  \"metadata\": {\"total_size\": %lld},\n  \"weight_map\": {",
                  (long long)params->parameters * (long long)ravel_dtype_bytes(dtype));
    for (int64_t shard = 0; shard < shards; shard++) {
        shard_name(name, sizeof name, shard, shards);
        for (int64_t i = starts[shard]; i < starts[shard + 1]; i++, before = ",")
            if (begins_in_file(params->tensors + i))
                (void)fprintf(f, "%s\n    \"%s\": \"%s\"", before, params->tensors[i].file_name, name);
    }
    (void)fputs("\n  }\n}\n", f);
    return train_file_close(f, path, err);
}

static train_tensor_writer make_writer(train__arena *arena, const train_params *params, const train_rows_source *from,
                                       int32_t dtype) {
    int64_t most = TRAIN_PIECE;
    train_tensor_writer w = {.from = from, .dtype = dtype};
    for (int64_t i = 0; i < params->count; i++) most = train__max(most, params->tensors[i].dims[1]);
    w.piece = train__arena_take_array(arena, most, (size_t)ravel_dtype_bytes(from->dtype));
    w.converted = train__arena_take_array(arena, most, (size_t)ravel_dtype_bytes(dtype));
    return w;
}

ravel_status train_tensors_save(const char *path, const train_params *params, const train_rows_source *from,
                                int32_t dtype, ravel_error *err) {
    train__arena arena = {0};
    train_tensor_writer w = make_writer(&arena, params, from, dtype);
    ravel_status status = train__arena_status(&arena, "a piece of a tensor", err);
    if (!status) status = save_range(&w, path, params, 0, params->count, err);
    train__arena_free(&arena);
    return status;
}

static ravel_status save_shards(const char *folder, const train_params *params, const train_rows_source *from,
                                const train_folder_options *options, ravel_error *err) {
    train__arena arena = {0};
    char path[TRAIN_PATH], name[64];
    int32_t dtype = options->dtype;
    int64_t shards = 0, *starts = NULL;
    train_tensor_writer w = make_writer(&arena, params, from, dtype);
    TRAIN__TAKE(&arena, starts, params->count + 1);
    ravel_status status = train__arena_status(&arena, "a piece of a tensor", err);
    if (!status)
        cut_shards(params, dtype, options->shard_bytes > 0 ? options->shard_bytes : INT64_C(5) << 30, starts, &shards);
    for (int64_t i = 0; i < shards && !status; i++) {
        shard_name(name, sizeof name, i, shards);
        status = train_path_join(path, folder, name, err);
        if (!status) status = save_range(&w, path, params, starts[i], starts[i + 1], err);
    }
    if (!status) status = train_path_join(path, folder, "model.safetensors.index.json", err);
    if (!status && shards > 1) status = write_index(path, params, dtype, starts, shards, err);
    if (!status && shards == 1) (void)unlink(path); /* an index of earlier shards would be read instead */
    train__arena_free(&arena);
    return status;
}

ravel_status train_folder_save(const char *folder, const ravel_shape *shape, const train_params *params,
                               const train_rows_source *from, const train_folder_options *options, ravel_error *err) {
    char path[TRAIN_PATH];
    ravel_status status = ravel__folder_make(folder, err);
    if (!status) status = train_path_join(path, folder, "config.json", err);
    if (!status) status = train_config_write(path, shape, options->dtype, options->eos, err);
    if (!status) status = save_shards(folder, params, from, options, err);
    if (!status && options->source) status = train_folder_copy_rest(options->source, folder, options->dtype, err);
    return status;
}
