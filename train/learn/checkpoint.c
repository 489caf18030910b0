/* The arrays are written in the order of the whole model's table, for any distribution over ranks (gather.h). */
#include "train/learn/checkpoint.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"
#include "train/learn/gather.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 4096, MOMENTS = 2, ARRAYS = 3, CHUNK = 1 << 16 };
static const char *const names[ARRAYS] = {"moment1", "moment2", "weights"};
_Static_assert((int)TRAIN__MOMENT1 == 0 && (int)TRAIN__MASTER == ARRAYS - 1, "names by train__which");

static ravel_status join(char *path, const char *folder, const char *name, ravel_error *err) {
    if ((size_t)snprintf(path, PATH, "%s/%s", folder, name) < PATH) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "the path %.100s... is too long", folder);
}

/* ---- saving --------------------------------------------------------------------------------------------- */

/* Rank 0's part of a checkpoint. */
typedef struct saver {
    train__gather *g;
    ravel_safetensors_writer *writer;
    int64_t indices[ARRAYS];
    float *rows; /* a block as the file holds it */
    int64_t most;
} saver;

static ravel_status save_model(train__gather *g, const char *folder, ravel_error *err) {
    const train_learner *l = g->l;
    train_folder_options model = {.dtype = l->options.save_dtype,
                                  .eos = l->eos,
                                  .shard_bytes = l->options.save_shard,
                                  .source = l->options.model->model};
    return train_folder_save_rows(folder, &l->shape, g->whole, &g->rows, &model, err);
}

/* Master weights are saved where the model's file does not have all of their bits. */
static int saves_array(const train_learner *l, int which) {
    return which < MOMENTS || l->options.save_dtype != l->kernels->types.weight || l->options.save_dtype != RAVEL_F32;
}

static ravel_status open_states(saver *s, const char *folder, ravel_error *err) {
    char path[PATH], steps[32];
    train_learner *l = s->g->l;
    ravel_safetensors_options options;
    ravel_safetensors_options_default(&options);
    options.durability = RAVEL_IN_PLACE; /* the folder gets its name when all of it is on the disk */
    ravel_status status = join(path, folder, "optimizer.safetensors", err);
    if (!status) status = ravel_safetensors_writer_create(path, &options, &s->writer, err);
    (void)snprintf(steps, sizeof steps, "%lld", (long long)train_optimizer_steps(l->part[0].optimizer));
    if (!status) status = ravel_safetensors_writer_metadata(s->writer, "steps", steps, err);
    for (int i = 0; i < ARRAYS && !status; i++)
        if (saves_array(l, i))
            status = ravel_safetensors_writer_declare(s->writer, names[i], RAVEL_F32, 1, &s->g->whole->elements,
                                                      &s->indices[i], err);
    for (int64_t i = 0; i < s->g->whole->count; i++)
        s->most = train__max(s->most, train_block_rows(&s->g->whole->tensors[i]) * s->g->whole->tensors[i].dims[1]);
    TRAIN__TAKE(&s->g->arena, s->rows, s->most);
    return status ? status : train__arena_status(&s->g->arena, "a checkpoint", err);
}

static ravel_status write_floats(saver *s, int which, const float *values, int64_t count, ravel_error *err) {
    TRAIN_ASSERT(s->writer && values && count > 0);
    return ravel_safetensors_writer_write(s->writer, s->indices[which], values, count * (int64_t)sizeof *values, err);
}

/* Zeros between tensors. */
static ravel_status write_gap(saver *s, int which, int64_t count, ravel_error *err) {
    TRAIN_ASSERT(count >= 0 && which >= 0 && which < ARRAYS);
    static const float zeros[64];
    ravel_status status = RAVEL_OK;
    for (int64_t n; count > 0 && !status; count -= n) {
        n = train__min(count, 64);
        status = write_floats(s, which, zeros, n, err);
    }
    return status;
}

static ravel_status write_tensor(saver *s, int which, const train_tensor *t, ravel_error *err) {
    const train_rows_source *from = &s->g->rows;
    int64_t block = train_block_rows(t);
    ravel_status status = RAVEL_OK;
    for (int64_t row = 0; row < t->dims[0] && !status; row += block) {
        int64_t rows = train__min(block, t->dims[0] - row), count = rows * t->dims[1];
        TRAIN_ASSERT(rows > 0 && count <= s->most);
        status = from->read(from->user, t, row, rows, s->g->block, err);
        if (!status) status = ravel_dtype_convert(from->dtype, s->g->block, RAVEL_F32, s->rows, count, err);
        if (!status) status = write_floats(s, which, s->rows, count, err);
    }
    return status;
}

static ravel_status write_array(saver *s, int which, ravel_error *err) {
    const train_params *whole = s->g->whole;
    ravel_status status = RAVEL_OK;
    int64_t done = 0;
    for (int64_t i = 0; i < whole->count && !status; i++) {
        const train_tensor *t = whole->tensors + i;
        status = write_gap(s, which, t->offset - done, err);
        if (!status) status = write_tensor(s, which, t, err);
        done = t->offset + t->count;
    }
    return status ? status : write_gap(s, which, whole->elements - done, err);
}

/* Rank 0. After a write error it still receives, so that no sender blocks; a lost peer ends it. */
static ravel_status save_all(saver *s, const char *folder, ravel_error *err) {
    ravel_error lost = RAVEL_ERROR_INIT;
    train__gather_begin(s->g, TRAIN__WEIGHTS);
    ravel_status status = save_model(s->g, folder, err), drained = train__gather_drain(s->g, &lost);
    if (!status && !drained) status = open_states(s, folder, err);
    for (int i = 0; i < ARRAYS && !drained; i++) {
        if (!saves_array(s->g->l, i)) continue;
        train__gather_begin(s->g, (train__which)i);
        if (!status) status = write_array(s, i, err);
        drained = train__gather_drain(s->g, &lost);
    }
    if (!status && drained) status = ravel_error_set(err, drained, "%s", lost.message);
    return status ? status : ravel_safetensors_writer_finish(s->writer, err);
}

static ravel_status send_all(train__gather *g, ravel_error *err) {
    train__gather_begin(g, TRAIN__WEIGHTS);
    ravel_status status = train__gather_send(g, err);
    for (int i = 0; i < ARRAYS && !status; i++) {
        if (!saves_array(g->l, i)) continue;
        train__gather_begin(g, (train__which)i);
        status = train__gather_send(g, err);
    }
    return status;
}

/* Whether rank 0 has all that is saved. */
static ravel_status check_alone(const train_learner *l, ravel_error *err) {
    if (l->sharers)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the ranks that are lost have parts of the model (--tp, --pp)");
    if (l->part[0].shares->ranks > 1)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the optimiser states are sharded over ranks (--shard) that are lost");
    return RAVEL_OK;
}

ravel_status train_learner_save(train_learner *l, const char *folder, int alone, ravel_error *err) {
    train__gather g;
    saver s = {.g = &g};
    if (alone && check_alone(l, err)) return RAVEL_E_UNSUPPORTED;
    ravel_status status = train__gather_open(&g, l, err);
    if (!alone) status = ravel_agree(l->world, status, err);
    if (!status) {
        status = ravel_comm_rank(l->world) == 0 ? save_all(&s, folder, err) : send_all(&g, err);
        if (!alone) status = ravel_agree(l->world, status, err);
    }
    ravel_safetensors_writer_free(s.writer);
    train__gather_close(&g);
    return status;
}

/* ---- loading -------------------------------------------------------------------------------------------- */

typedef struct loader {
    train_learner *l;
    const train_params *whole;
    const ravel_safetensor *from;
    train_array to; /* of a part */
    void *buffer;   /* [CHUNK] */
} loader;

/* `count` elements of the file from `from` on, to element `at` of the part, as far as this rank has them. */
static ravel_status load_run(const loader *d, int64_t at, int64_t from, int64_t count, ravel_error *err) {
    int64_t begin = at, end = at + count;
    int32_t type = d->to.dtype;
    ravel_status status = RAVEL_OK;
    if (d->to.shares && !train_shares_cut(d->to.shares, d->to.shares->rank, &begin, &end)) return RAVEL_OK;
    TRAIN_ASSERT(begin >= at && end <= at + count && d->buffer);
    for (int64_t n; begin < end && !status; begin += n) {
        n = train__min(CHUNK, end - begin);
        status = ravel_safetensor_read(d->from, from + begin - at, n, type, d->buffer, err);
        if (!status)
            d->l->kernels->upload(d->l->device, train_array_at(&d->to, begin), d->buffer,
                                  (size_t)(n * ravel_dtype_bytes(type)));
    }
    return status;
}

static ravel_status load_tensor(const loader *d, const train_tensor *t, ravel_error *err) {
    const train_tensor *whole = train_params_find(d->whole, t->name);
    TRAIN_ASSERT(whole);
    ravel_status status = RAVEL_OK;
    int64_t from = whole->offset + t->first[0] * whole->dims[1] + t->first[1];
    TRAIN_ASSERT(whole->dims[0] == t->whole[0] && whole->dims[1] == t->whole[1]);
    if (t->dims[1] == whole->dims[1]) return load_run(d, t->offset, from, t->count, err);
    for (int64_t r = 0; r < t->dims[0] && !status; r++)
        status = load_run(d, t->offset + r * t->dims[1], from + r * whole->dims[1], t->dims[1], err);
    return status;
}

/* One array of one part. */
static ravel_status load_array(loader *d, const ravel_safetensors *file, int32_t chunk, int which, ravel_error *err) {
    train_learner *l = d->l;
    const train_params *params = train_model_params(l->part[chunk].model);
    d->to = train__array_of(l, chunk, (train__which)which);
    ravel_status status = ravel_safetensors_get(file, names[which], 1, &d->whole->elements, &d->from, err);
    for (int64_t i = 0; i < params->count && !status; i++) status = load_tensor(d, params->tensors + i, err);
    return status;
}

static ravel_status load_states(train_learner *l, const char *folder, const train_params *whole, ravel_error *err) {
    char path[PATH];
    ravel_safetensors *file = NULL;
    loader d = {.l = l, .whole = whole};
    ravel_status status = join(path, folder, "optimizer.safetensors", err);
    if (!status) status = ravel_safetensors_open(path, l->options.allocator, &file, err);
    d.buffer = train__alloc(l->options.allocator, CHUNK * sizeof(double));
    if (!status && !d.buffer) status = train__no_memory(err, CHUNK * sizeof(double), "loading a checkpoint");
    for (int32_t chunk = 0; chunk < l->count && !status; chunk++)
        for (int i = 0; i < ARRAYS && !status; i++)
            if (i < MOMENTS || ravel_safetensors_find(file, names[i])) status = load_array(&d, file, chunk, i, err);
    const char *steps = status ? NULL : ravel_safetensors_metadata(file, "steps");
    for (int32_t chunk = 0; chunk < l->count && steps; chunk++)
        train_optimizer_set_steps(l->part[chunk].optimizer, strtoll(steps, NULL, 10));
    if (!status && !steps)
        status = ravel_error_set(err, RAVEL_E_DATA, "%s does not say how many steps it is from", path);
    train__release(l->options.allocator, d.buffer, CHUNK * sizeof(double));
    ravel_safetensors_free(file);
    return status;
}

ravel_status train_learner_load(train_learner *l, const char *folder, ravel_error *err) {
    train_params *whole = NULL;
    ravel_status status = train_params_create(&l->shape, NULL, l->options.allocator, &whole, err);
    for (int32_t chunk = 0; chunk < l->count && !status; chunk++) {
        train_array weights = train_model_array(l->part[chunk].model);
        status = train_tensors_load(train_model_params(l->part[chunk].model), &weights, folder, err);
    }
    for (int32_t chunk = 0; chunk < l->count && !status; chunk++) /* load_states may replace them */
        train_optimizer_take_weights(l->part[chunk].optimizer);
    if (!status) status = load_states(l, folder, whole, err);
    train_params_free(whole);
    return status;
}
