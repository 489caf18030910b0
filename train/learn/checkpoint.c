/* The arrays are written in the order of the parameters, share after share: rank 0 writes its own, then receives each
 * other rank's and writes it, so no rank holds more than one share beside its own. */
#include "train/learn/checkpoint.h"

#include "train/learn/learner_internal.h"

#include "train/model/hf.h"
#include "train/kernels/host.h"

#include <ravel/exchange.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH = 4096, TAG_MOMENTS = 21, MOMENTS = 2, WEIGHTS = 2, ARRAYS = 3 };
static const char *const names[ARRAYS] = {"moment1", "moment2", "weights"};

static ravel_status join(char *path, const char *folder, const char *name, ravel_error *err) {
    if ((size_t)snprintf(path, PATH, "%s/%s", folder, name) < PATH) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "the path %.100s... is too long", folder);
}

/* Where this rank's share of an array is on the device. */
static void *array_of(train_learner *l, int which) {
    if (which == WEIGHTS) return train_optimizer_master(l->optimizer);
    return which == 0 ? train_optimizer_first_moment(l->optimizer) : train_optimizer_second_moment(l->optimizer);
}

/* ---- saving --------------------------------------------------------------------------------------------- */

typedef struct saver {
    train_learner *l;
    float *buffer; /* [largest share] */
    int64_t largest;
    int32_t owners;                   /* ranks whose shares make up the whole: all of them with ZeRO, else one */
    ravel_safetensors_writer *writer; /* on rank 0 */
    int64_t indices[ARRAYS];
    ravel_status failed; /* of writing: kept until the end, so that no rank sends to one that has left */
    ravel_error why;
} saver;

static ravel_status declare(saver *s, int32_t dtype, ravel_error *err) {
    int64_t elements = train_model_params(s->l->model)->elements;
    ravel_status status = RAVEL_OK;
    for (int i = 0; i < ARRAYS && !status; i++) {
        s->indices[i] = -1;
        if (i < MOMENTS || dtype != s->l->kernels->types.weight || dtype != RAVEL_F32)
            status =
                ravel_safetensors_writer_declare(s->writer, names[i], RAVEL_F32, 1, &elements, &s->indices[i], err);
    }
    return status;
}

static ravel_status save_begin(saver *s, const char *folder, ravel_error *err) {
    char path[PATH], steps[32];
    train_learner *l = s->l;
    ravel_safetensors_options options;
    ravel_safetensors_options_default(&options);
    options.durability = RAVEL_IN_PLACE; /* the folder gets its name when all of it is on the disk */
    int32_t dtype = l->options.save_dtype;
    train_array weights = train_model_array(l->model);
    train_folder_options model = {.dtype = dtype, .eos = l->eos, .source = l->options.model->model};
    ravel_status status = train_folder_save(folder, &l->shape, train_model_params(l->model), &weights, &model, err);
    if (!status) status = join(path, folder, "optimizer.safetensors", err);
    if (!status) status = ravel_safetensors_writer_create(path, &options, &s->writer, err);
    (void)snprintf(steps, sizeof steps, "%lld", (long long)train_optimizer_steps(l->optimizer));
    if (!status) status = ravel_safetensors_writer_metadata(s->writer, "steps", steps, err);
    return status ? status : declare(s, dtype, err);
}

/* One share of one array from its owner to the file. The status is the communicator's. */
static ravel_status save_share(saver *s, int which, int32_t owner, ravel_error *err) {
    train_learner *l = s->l;
    int64_t count = l->counts[owner];
    ravel_status status = RAVEL_OK;
    if (l->rank == owner)
        l->kernels->download(l->device, s->buffer, array_of(l, which), (size_t)count * sizeof *s->buffer);
    if (owner != 0 && l->rank == owner)
        status = ravel_comm_send(l->comm, s->buffer, count, RAVEL_F32, 0, TAG_MOMENTS, err);
    if (owner != 0 && l->rank == 0)
        status = ravel_comm_recv(l->comm, s->buffer, count, RAVEL_F32, owner, TAG_MOMENTS, err);
    if (!status && l->rank == 0 && !s->failed && s->indices[which] >= 0)
        s->failed = ravel_safetensors_writer_write(s->writer, s->indices[which], s->buffer,
                                                   count * (int64_t)sizeof *s->buffer, &s->why);
    return status;
}

static ravel_status save_arrays(saver *s, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int which = 0; which < ARRAYS && !status; which++)
        for (int32_t owner = 0; owner < s->owners && !status; owner++)
            if (s->l->rank == 0 || s->l->rank == owner) status = save_share(s, which, owner, err);
    if (!status && s->l->rank == 0 && !s->failed) s->failed = ravel_safetensors_writer_finish(s->writer, &s->why);
    return status;
}

static ravel_status saver_open(saver *s, train_learner *l, ravel_error *err) {
    memset(s, 0, sizeof *s);
    s->l = l;
    s->owners = l->share ? l->ranks : 1;
    for (int32_t r = 0; r < s->owners; r++) s->largest = train__max(s->largest, l->counts[r]);
    s->buffer = train__alloc(l->options.allocator, (size_t)s->largest * sizeof *s->buffer);
    return s->buffer ? RAVEL_OK : train__no_memory(err, (size_t)s->largest * sizeof *s->buffer, "a checkpoint");
}

static void saver_close(saver *s) {
    ravel_safetensors_writer_free(s->writer);
    train__release(s->l->options.allocator, s->buffer, (size_t)s->largest * sizeof *s->buffer);
}

ravel_status train_learner_save(train_learner *l, const char *folder, ravel_error *err) {
    saver s;
    ravel_status status = saver_open(&s, l, err);
    if (!status && l->rank == 0) status = save_begin(&s, folder, err);
    status = ravel_agree(l->comm, status, err);
    if (!status) status = save_arrays(&s, err);
    if (!status) {
        if (s.failed) ravel_error_set(err, s.failed, "%s", s.why.message);
        status = ravel_agree(l->comm, s.failed, err);
    }
    saver_close(&s);
    return status;
}

ravel_status train_learner_save_alone(train_learner *l, const char *folder, ravel_error *err) {
    saver s;
    if (l->share)
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED,
                               "the optimiser states are sharded over ranks (--zero) that are lost");
    ravel_status status = saver_open(&s, l, err);
    if (!status) status = save_begin(&s, folder, err);
    if (!status) status = save_arrays(&s, err);
    if (!status && s.failed) status = ravel_error_set(err, s.failed, "%s", s.why.message);
    saver_close(&s);
    return status;
}

/* ---- loading -------------------------------------------------------------------------------------------- */

/* This rank's share of one array. */
static ravel_status load_array(train_learner *l, const ravel_safetensors *file, int which, ravel_error *err) {
    int64_t elements = train_model_params(l->model)->elements, count = l->counts[l->rank], first = l->first;
    const ravel_safetensor *tensor;
    void *to = array_of(l, which);
    if (which == WEIGHTS && l->kernels->types.master == l->kernels->types.weight) { /* every rank holds all of them */
        to = train_model_weights(l->model);
        first = 0;
        count = elements;
    }
    ravel_status status = ravel_safetensors_get(file, names[which], 1, &elements, &tensor, err);
    if (status) return status;
    enum { CHUNK = 1 << 16 };
    float *buffer = train__alloc(l->options.allocator, CHUNK * sizeof *buffer);
    if (!buffer) return train__no_memory(err, CHUNK * sizeof *buffer, "loading a checkpoint");
    for (int64_t at = 0; at < count && !status; at += CHUNK) {
        int64_t n = train__min(CHUNK, count - at);
        status = ravel_safetensor_read(tensor, first + at, n, RAVEL_F32, buffer, err);
        if (!status) l->kernels->upload(l->device, train__at(to, RAVEL_F32, at), buffer, (size_t)n * sizeof *buffer);
    }
    train__release(l->options.allocator, buffer, CHUNK * sizeof *buffer);
    return status;
}

ravel_status train_learner_load(train_learner *l, const char *folder, ravel_error *err) {
    char path[PATH];
    ravel_safetensors *file = NULL;
    train_array weights = train_model_array(l->model);
    ravel_status status = train_tensors_load(train_model_params(l->model), &weights, folder, err);
    if (!status) status = join(path, folder, "optimizer.safetensors", err);
    if (!status) status = ravel_safetensors_open(path, l->options.allocator, &file, err);
    for (int i = 0; i < ARRAYS && !status; i++)
        if (i < MOMENTS || ravel_safetensors_find(file, names[i])) status = load_array(l, file, i, err);
    const char *steps = status ? NULL : ravel_safetensors_metadata(file, "steps");
    if (steps)
        train_optimizer_set_steps(l->optimizer, strtoll(steps, NULL, 10));
    else if (!status)
        status = ravel_error_set(err, RAVEL_E_DATA, "%s does not say how many steps it is from", path);
    ravel_safetensors_free(file);
    return status;
}
