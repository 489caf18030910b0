/* The roles of ranks (sender, receiver), and the tensors of one rank, from a file or a model's shape, cut as tensor
 * parallelism cuts them. */
#include "cli/refit/refit.h"

#include "train/run/config/resolve.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64, CHUNK = 1 << 16 };

ravel_status refit_settle(refit_job *job, int32_t ranks, ravel_error *err) {
    refit_flags *f = &job->flags;
    job->receivers = ranks - f->senders;
    if (job->receivers < 1)
        return CLI_REFUSE(err, "%d senders of %d ranks leave no rank to receive", f->senders, ranks);
    if (f->send_tp == 0) f->send_tp = f->senders;
    if (f->senders % f->send_tp != 0)
        return CLI_REFUSE(err, "%d senders are no multiple of send-tp %d", f->senders, f->send_tp);
    if (job->receivers % f->receive_tp != 0)
        return CLI_REFUSE(err, "%d receivers are no multiple of receive-tp %d", job->receivers, f->receive_tp);
    return RAVEL_OK;
}

refit_place refit_place_of(const refit_job *job, int32_t rank) {
    int32_t side = rank >= job->flags.senders, number = side ? rank - job->flags.senders : rank;
    int32_t tp = side ? job->flags.receive_tp : job->flags.send_tp;
    RAVEL_ASSERT(tp > 0 && number >= 0);
    return (refit_place){side, tp, number % tp, number / tp};
}

/* ---- cutting -------------------------------------------------------------------------------------------- */

static int ends_with(const char *name, const char *end) {
    size_t a = strlen(name), b = strlen(end);
    return a >= b && strcmp(name + a - b, end) == 0;
}

/* The dimension along which a tensor is cut: rows, but columns for what comes behind an all-reduce; -1: not at all. */
static int32_t cut_of(const ravel_safetensor *t, int32_t tp) {
    static const char *const columns[] = {"o_proj.weight", "down_proj.weight", "c_proj.weight", "w2.weight"};
    int32_t cut = t->rank >= 2 ? 0 : -1;
    for (size_t i = 0; i < sizeof columns / sizeof *columns && t->rank == 2; i++)
        if (ends_with(t->name, columns[i])) cut = 1;
    return cut >= 0 && t->dims[cut] >= tp ? cut : -1;
}

static ravel_status describe(const ravel_safetensor *t, int32_t tp, int32_t index, ravel_refit_tensor *out,
                             ravel_error *err) {
    if (t->rank > RAVEL_REFIT_DIMS)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "%s has %d dimensions; at most %d can be refitted", t->name,
                               t->rank, RAVEL_REFIT_DIMS);
    int32_t cut = cut_of(t, tp);
    RAVEL_ASSERT(tp > 0 && index >= 0 && index < tp && cut < t->rank);
    *out = (ravel_refit_tensor){.name = t->name, .dtype = t->dtype, .ndim = t->rank};
    for (int32_t d = 0; d < t->rank; d++) out->dims[d] = t->dims[d];
    if (cut < 0 || tp == 1) return RAVEL_OK;
    out->parts[cut] = tp;
    out->index[cut] = index;
    return RAVEL_OK;
}

static ravel_status new_set(int64_t count, refit_set *set, ravel_error *err) {
    memset(set, 0, sizeof *set);
    set->count = count;
    RAVEL_ASSERT(count >= 0);
    set->tensors = calloc((size_t)count + 1, sizeof *set->tensors);
    return set->tensors ? RAVEL_OK
                        : ravel_error_set(err, RAVEL_E_MEMORY, "out of memory for %lld tensors", (long long)count);
}

void refit_set_free(refit_set *set) {
    free(set->tensors);
    free(set->names);
    free(set->block);
    free(set->spare);
    memset(set, 0, sizeof *set);
}

static int64_t bytes_of(const ravel_refit_tensor *t) {
    RAVEL_ASSERT(t->ndim >= 0 && t->ndim <= RAVEL_REFIT_DIMS);
    return ravel_refit_tensor_elements(t) * ravel_dtype_bytes(t->dtype);
}

/* One block for all tensors, and a second one where wanted. */
static ravel_status give_memory(refit_set *set, int spare, ravel_error *err) {
    int64_t room = 0;
    set->bytes = 0;
    for (int64_t i = 0; i < set->count; i++) {
        set->bytes += bytes_of(&set->tensors[i]);
        room += (bytes_of(&set->tensors[i]) + ALIGN - 1) / ALIGN * ALIGN;
    }
    set->block = malloc((size_t)room + 1);
    set->spare = spare ? malloc((size_t)room + 1) : NULL;
    if (!set->block || (spare && !set->spare))
        return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory for %lld bytes of weights", (long long)room);
    int64_t at = 0;
    for (int64_t i = 0; i < set->count; i++) {
        set->tensors[i].data = set->block + at;
        set->tensors[i].spare = spare ? set->spare + at : NULL;
        at += (bytes_of(&set->tensors[i]) + ALIGN - 1) / ALIGN * ALIGN;
    }
    RAVEL_ASSERT(at == room && set->bytes <= room);
    return RAVEL_OK;
}

ravel_status refit_from(const char **from, ravel_error *err) {
    static char path[TRAIN_PATH];
    int64_t step;
    ravel_status status = train_run_resolve(*from, path, &step, err);
    if (!status) *from = path;
    return status;
}

/* ---- from a file ---------------------------------------------------------------------------------------- */

/* A view of the mapped tensor: its own strides, beginning where this rank's piece does. */
static void view_of(const ravel_safetensor *t, ravel_refit_tensor *out) {
    int64_t step = 1, first = 0;
    for (int32_t d = t->rank - 1; d >= 0; d--) {
        int64_t parts = out->parts[d] > 0 ? out->parts[d] : 1;
        out->strides[d] = step;
        first += t->dims[d] * out->index[d] / parts * step;
        step *= t->dims[d];
    }
    /* The map is read-only, and a source is only read. */
    char *base;
    memcpy(&base, &t->data, sizeof base);
    out->data = base + first * ravel_dtype_bytes(t->dtype);
}

ravel_status refit_set_of_file(const ravel_safetensors *file, int32_t tp, int32_t index, refit_set *set,
                               ravel_error *err) {
    ravel_status status = new_set(ravel_safetensors_count(file), set, err);
    for (int64_t i = 0; i < set->count && status == RAVEL_OK; i++) {
        const ravel_safetensor *t = ravel_safetensors_at(file, i);
        status = describe(t, tp, index, &set->tensors[i], err);
        if (status) break;
        view_of(t, &set->tensors[i]);
        set->bytes += bytes_of(&set->tensors[i]);
    }
    return status;
}

ravel_status refit_set_like_file(const ravel_safetensors *file, int32_t dtype, int32_t tp, int32_t index, int spare,
                                 refit_set *set, ravel_error *err) {
    ravel_status status = new_set(ravel_safetensors_count(file), set, err);
    for (int64_t i = 0; i < set->count && status == RAVEL_OK; i++) {
        const ravel_safetensor *t = ravel_safetensors_at(file, i);
        status = describe(t, tp, index, &set->tensors[i], err);
        int casts = ravel_dtype_kind(t->dtype) == 'f' && ravel_dtype_bytes(t->dtype) >= 2;
        if (dtype >= 0 && casts) set->tensors[i].dtype = dtype;
    }
    return status == RAVEL_OK ? give_memory(set, spare, err) : status;
}

/* ---- from a shape --------------------------------------------------------------------------------------- */

ravel_status refit_set_of_shape(const ravel_shape *shape, int32_t dtype, int32_t tp, int32_t index, int spare,
                                refit_set *set, ravel_error *err) {
    int64_t count = ravel_refit_shape_tensors(shape, dtype, tp, index, NULL, NULL, 0);
    ravel_status status = new_set(count, set, err);
    if (status != RAVEL_OK) return status;
    set->names = malloc((size_t)count * RAVEL_REFIT_NAME_BYTES);
    if (!set->names) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory for names");
    (void)ravel_refit_shape_tensors(shape, dtype, tp, index, set->tensors, set->names, count);
    status = give_memory(set, spare, err);
    if (status != RAVEL_OK) return status;
    memset(set->block, 1, (size_t)set->bytes);
    if (spare) memset(set->spare, 1, (size_t)set->bytes);
    return RAVEL_OK;
}

/* ---- comparing and writing ------------------------------------------------------------------------------ */

/* A run of elements of the whole tensor against memory. */
static ravel_status compare_run(const ravel_safetensor *t, int64_t first, int64_t count, int32_t dtype,
                                const char *here, char *chunk, ravel_error *err) {
    int64_t each = ravel_dtype_bytes(dtype), step = CHUNK / 8;
    RAVEL_ASSERT(each > 0 && each <= 8 && first >= 0);
    for (int64_t done = 0; done < count; done += step) {
        int64_t n = count - done < step ? count - done : step;
        ravel_status status = ravel_safetensor_read(t, first + done, n, dtype, chunk, err);
        if (status != RAVEL_OK) return status;
        if (memcmp(chunk, here + done * each, (size_t)(n * each)) == 0) continue;
        long long at = first + done;
        for (int64_t k = 0; memcmp(chunk + k * each, here + (done + k) * each, (size_t)each) == 0; k++) at++;
        return ravel_error_set(err, RAVEL_E_CHECKSUM, "%s: element %lld differs from the file", t->name, at);
    }
    return RAVEL_OK;
}

/* All but the last dimension are walked; what is cut behind the first is a piece of every row. */
static ravel_status compare_tensor(const ravel_refit_tensor *x, const ravel_safetensor *t, const char *here,
                                   char *chunk, ravel_error *err) {
    int64_t rows = 1, outer_start = 0, columns = 1, start = 0, extent = 1, each = ravel_dtype_bytes(x->dtype);
    if (t->rank == 2 && x->parts[1] > 1) {
        rows = t->dims[0];
        columns = t->dims[1];
        start = columns * x->index[1] / x->parts[1];
        extent = columns * (x->index[1] + 1) / x->parts[1] - start;
    } else {
        extent = ravel_refit_tensor_elements(x);
        for (int32_t d = 1; d < t->rank; d++) columns *= t->dims[d];
        if (t->rank > 0 && x->parts[0] > 1) outer_start = t->dims[0] * x->index[0] / x->parts[0] * columns;
    }
    for (int64_t r = 0; r < rows; r++) {
        ravel_status status =
            compare_run(t, outer_start + r * columns + start, extent, x->dtype, here + r * extent * each, chunk, err);
        if (status != RAVEL_OK) return status;
    }
    return RAVEL_OK;
}

ravel_status refit_set_compare(const refit_set *set, const void *(*live)(const void *owner, int64_t tensor),
                               const void *owner, const ravel_safetensors *file, ravel_error *err) {
    char *chunk = malloc(CHUNK);
    ravel_status status = RAVEL_OK;
    if (!chunk) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    for (int64_t i = 0; i < set->count && status == RAVEL_OK; i++)
        status = compare_tensor(&set->tensors[i], ravel_safetensors_at(file, i), live(owner, i), chunk, err);
    free(chunk);
    return status;
}

ravel_status refit_set_write(const refit_set *set, const ravel_safetensors *file, const char *path, ravel_error *err) {
    int64_t pairs = ravel_safetensors_metadata_count(file);
    ravel_safetensor *list = calloc((size_t)set->count + 1, sizeof *list);
    const char **metadata = calloc(2 * (size_t)pairs + 1, sizeof *metadata);
    ravel_status status = RAVEL_E_MEMORY;
    for (int64_t i = 0; i < pairs && metadata; i++) {
        metadata[2 * i] = ravel_safetensors_metadata_key(file, i);
        metadata[2 * i + 1] = ravel_safetensors_metadata_value(file, i);
    }
    for (int64_t i = 0; i < set->count && list; i++) {
        const ravel_refit_tensor *t = &set->tensors[i];
        list[i] = (ravel_safetensor){.name = t->name, .dtype = t->dtype, .rank = t->ndim, .dims = t->dims};
        list[i].data = t->data;
        list[i].count = ravel_refit_tensor_elements(t);
        list[i].bytes = bytes_of(t);
    }
    if (list && metadata)
        status = ravel_safetensors_write(path, list, set->count, metadata, pairs, NULL, err);
    else
        ravel_error_set(err, status, "out of memory");
    free(list);
    free((void *)metadata);
    return status;
}
