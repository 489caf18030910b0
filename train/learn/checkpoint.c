/* The arrays are written in the order of the whole model's table, for any distribution over ranks (gather.h). */
#include "train/learn/checkpoint.h"

#include "base/assert.h"
#include "io/safetensors_writer.h"
#include "train/kernels/host.h"
#include "train/learn/gather.h"
#include "train/model/hf/files.h"
#include "train/model/hf/lora.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOMENTS = 2, ARRAYS = 3 };
static const char *const names[ARRAYS] = {"moment1", "moment2", "weights"};
_Static_assert(TRAIN_MOMENT1 == 0 && TRAIN_MASTER == ARRAYS - 1, "names by train_states");

/* ---- saving --------------------------------------------------------------------------------------------- */

/* Rank 0's part of a checkpoint. */
typedef struct saver {
    train__gather *g;
    train_tensor_writer out; /* optimizer.safetensors */
    int64_t indices[ARRAYS];
} saver;

static ravel_status save_model(train__gather *g, const char *folder, ravel_error *err) {
    const train_learner *l = g->l;
    if (g->whole->lora.rank)
        return train_adapter_save(folder, g->whole, l->options.model->model, &g->rows, l->options.save_dtype, err);
    train_folder_options model = {.dtype = l->options.save_dtype,
                                  .eos = l->eos,
                                  .shard_bytes = l->options.save_shard,
                                  .source = l->options.model->model};
    return train_folder_save(folder, &l->shape, g->whole, &g->rows, &model, err);
}

/* Master weights are saved where the model's file does not have all of their bits. */
static int saves_array(const train_learner *l, int which) {
    return which < MOMENTS || l->options.save_dtype != l->kernels->types.weight || l->options.save_dtype != RAVEL_F32;
}

static ravel_status open_states(saver *s, const char *folder, ravel_error *err) {
    char path[TRAIN_PATH], steps[32];
    train_learner *l = s->g->l;
    ravel_safetensors_options options;
    s->out = (train_tensor_writer){.from = &s->g->rows, .dtype = RAVEL_F32, .piece = s->g->block};
    ravel_safetensors_options_default(&options);
    options.durability = RAVEL_IN_PLACE; /* the folder gets its name when all of it is on the disk */
    ravel_status status = train_path_join(path, folder, "optimizer.safetensors", err);
    if (!status) status = ravel__safetensors_writer_create(path, &options, &s->out.writer, err);
    (void)snprintf(steps, sizeof steps, "%lld", (long long)*train_optimizer_steps(l->part[0].optimizer));
    if (!status) status = ravel__safetensors_writer_metadata(s->out.writer, "steps", steps, err);
    for (int i = 0; i < ARRAYS && !status; i++)
        if (saves_array(l, i))
            status = ravel__safetensors_writer_declare(s->out.writer, names[i], RAVEL_F32, 1, &s->g->whole->elements,
                                                       &s->indices[i], err);
    s->out.converted = train__arena_take(&s->g->arena, (size_t)s->g->piece_bytes);
    return status ? status : train__arena_status(&s->g->arena, "a checkpoint", err);
}

/* Zeros between tensors. */
static ravel_status write_gap(saver *s, int which, int64_t count, ravel_error *err) {
    RAVEL_ASSERT(count >= 0 && which >= 0 && which < ARRAYS);
    static const float zeros[64];
    ravel_status status = RAVEL_OK;
    for (int64_t n; count > 0 && !status; count -= n) {
        n = train__min(count, 64);
        status =
            ravel__safetensors_writer_write(s->out.writer, s->indices[which], zeros, n * (int64_t)sizeof *zeros, err);
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
        if (!status) status = train_tensor_save(&s->out, s->indices[which], t, err);
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
        train__gather_begin(s->g, i);
        if (!status) status = write_array(s, i, err);
        drained = train__gather_drain(s->g, &lost);
    }
    if (!status && drained) status = ravel_error_set(err, drained, "%s", lost.message);
    return status ? status : ravel__safetensors_writer_finish(s->out.writer, err);
}

static ravel_status send_all(train__gather *g, ravel_error *err) {
    train__gather_begin(g, TRAIN__WEIGHTS);
    ravel_status status = train__gather_send(g, err);
    for (int i = 0; i < ARRAYS && !status; i++) {
        if (!saves_array(g->l, i)) continue;
        train__gather_begin(g, i);
        status = train__gather_send(g, err);
    }
    return status;
}

/* Whether rank 0 has all that is saved. */
static ravel_status check_alone(const train_learner *l, ravel_error *err) {
    if (l->sharers || l->options.learn->ep > 1)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the ranks that are lost have parts of the model (--tp, --pp, --ep)");
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
    ravel__safetensors_writer_free(s.out.writer);
    train__gather_close(&g);
    return status;
}

/* ---- loading -------------------------------------------------------------------------------------------- */

/* One array of one part, from an array of the whole model. */
static ravel_status load_array(train_learner *l, const ravel_safetensors *file, const train_params *whole,
                               int32_t chunk, int which, void *piece, ravel_error *err) {
    const train_params *params = train_model_params(l->part[chunk].model);
    train_array to = train__array_of(l, chunk, which);
    train_tensor_file from = {.piece = piece};
    ravel_status status = ravel_safetensors_get(file, names[which], 1, &whole->elements, &from.tensor, err);
    for (int64_t i = 0; i < params->count && !status; i++) {
        const train_tensor *t = params->tensors + i, *in_file = train_params_find(whole, t->name);
        RAVEL_ASSERT(in_file && in_file->dims[0] == t->whole[0] && in_file->dims[1] == t->whole[1]);
        from.first = in_file->offset;
        status = train_tensor_load(t, &from, &to, err);
    }
    return status;
}

static ravel_status load_states(train_learner *l, const char *folder, const train_params *whole, ravel_error *err) {
    char path[TRAIN_PATH];
    ravel_safetensors *file = NULL;
    train__arena arena = {.allocator = l->options.allocator};
    void *piece = train__arena_take_array(&arena, TRAIN_PIECE, sizeof(double));
    ravel_status status = train__arena_status(&arena, "loading a checkpoint", err);
    if (!status) status = train_path_join(path, folder, "optimizer.safetensors", err);
    if (!status) status = ravel_safetensors_open(path, l->options.allocator, &file, err);
    for (int32_t chunk = 0; chunk < l->count && !status; chunk++)
        for (int i = 0; i < ARRAYS && !status; i++)
            if (i < MOMENTS || ravel_safetensors_find(file, names[i]))
                status = load_array(l, file, whole, chunk, i, piece, err);
    const char *steps = status ? NULL : ravel_safetensors_metadata(file, "steps");
    for (int32_t chunk = 0; chunk < l->count && steps; chunk++)
        *train_optimizer_steps(l->part[chunk].optimizer) = strtoll(steps, NULL, 10);
    if (!status && !steps)
        status = ravel_error_set(err, RAVEL_E_DATA, "%s does not say how many steps it is from", path);
    train__arena_free(&arena);
    ravel_safetensors_free(file);
    return status;
}

ravel_status train_learner_load(train_learner *l, const char *folder, ravel_error *err) {
    train_params *whole = NULL;
    ravel_status status = train__learner_params(l, NULL, &whole, err);
    for (int32_t chunk = 0; chunk < l->count && !status; chunk++) {
        train_array weights = train_model_array(l->part[chunk].model);
        const train_params *params = train_model_params(l->part[chunk].model);
        status = (params->lora.rank ? train_adapter_load : train_tensors_load)(params, &weights, folder, err);
    }
    for (int32_t chunk = 0; chunk < l->count && !status; chunk++) /* load_states may replace them */
        train_optimizer_take_weights(l->part[chunk].optimizer);
    if (!status) status = load_states(l, folder, whole, err);
    train_params_free(whole);
    return status;
}
