#include "train/run/answers/published.h"

#include "base/assert.h"
#include "base/log.h"
#include "train/kernels/host.h"
#include "train/model/hf/lora.h"

#include <string.h>

enum { VERSIONS = 2, PIECE = 1 << 16 };

struct train_published {
    ravel_refit_tensor *tensors; /* [count] in host memory, in the dtypes that travel */
    int64_t count, room, config; /* config: index of the configuration; -1: there is none */
    size_t bytes;                /* of all data */
    char *block;
    ravel_refit_sink sink;
    train_lora lora;
    ravel_puller *puller; /* of the last version */
    int64_t version;
    int32_t commit, versions;
    /* after attach */
    const train_kernels *kernels;
    train_device *device;
    train_generator *generator;
    train_adapter *adapters; /* [versions] */
    int64_t *places;         /* [params->count] index into tensors */
    void *piece;             /* [PIECE] in the dtype of the kernels' weights */
    int32_t first, live;     /* live: of adapters; -1: none yet */
};

/* ---- one adapter ----------------------------------------------------------------------------------------- */

ravel_status train_adapter_open(train_adapter *a, const train_kernels *kernels, train_device *device,
                                const ravel_shape *shape, const train_lora *lora, ravel_error *err) {
    *a = (train_adapter){.kernels = kernels, .device = device};
    ravel_status status = train_lora_check_kernels(lora, kernels, err);
    if (!status) status = train_trained_params(shape, NULL, lora, NULL, &a->params, err);
    if (status) return status;
    a->bytes = (size_t)(a->params->elements * ravel_dtype_bytes(kernels->types.weight));
    RAVEL_ASSERT(a->bytes > 0);
    status = kernels->alloc(device, a->bytes, &a->weights, err);
    if (!status) kernels->zero(device, a->weights, a->bytes);
    return status;
}

void train_adapter_close(train_adapter *a) {
    if (a->weights) a->kernels->release(a->device, a->weights, a->bytes);
    train_params_free(a->params);
    *a = (train_adapter){0};
}

/* ---- what is published ----------------------------------------------------------------------------------- */

static int64_t bytes_of(const ravel_refit_tensor *t) {
    return train__round_up(ravel_refit_tensor_elements(t) * ravel_dtype_bytes(t->dtype), 64);
}

static ravel_status note(void *user, const ravel_refit_tensor *tensor, ravel_error *err) {
    train_published *p = user;
    ravel_refit_tensor *grown = train__grown(NULL, p->tensors, &p->room, p->count, p->count + 1, sizeof *grown);
    if (!grown) return ravel__no_memory(err, sizeof *grown, "the list of tensors");
    p->tensors = grown;
    size_t bytes = strlen(tensor->name) + 1;
    char *name = ravel__alloc(NULL, bytes);
    if (!name) return ravel__no_memory(err, bytes, "the name of a tensor");
    memcpy(name, tensor->name, bytes);
    grown[p->count] = *tensor;
    grown[p->count].name = name;
    if (strcmp(name, TRAIN_ADAPTER_CONFIG) == 0 && tensor->dtype == RAVEL_U8 && tensor->ndim == 1) p->config = p->count;
    p->bytes += (size_t)bytes_of(tensor);
    p->count++;
    return RAVEL_OK;
}

static void forget_tensors(train_published *p) {
    for (int64_t i = 0; i < p->count; i++) {
        char *name = (char *)p->tensors[i].name;
        ravel__release(NULL, name, strlen(name) + 1);
    }
    ravel__release(NULL, p->tensors, (size_t)p->room * sizeof *p->tensors);
    p->tensors = NULL;
    p->count = p->room = 0;
    p->bytes = 0;
    p->config = -1;
}

/* Of the last attempt the reason alone: its address and seconds are those of the whole, or none that the user gave. */
static ravel_status not_reached(const train_pulled_options *options, ravel_error *err) {
    const char *reason = strstr(err->message, " s: ");
    ravel_error last = *err;
    ravel_error_clear(err);
    return ravel_error_set(err, RAVEL_E_TIMEOUT, "no trainer was reached at %s within %g s: %s", options->address,
                           options->timeout, last.message + (reason ? reason + 4 - err->message : 0));
}

/* Attempts become longer, and none is so long that a user who interrupts it waits. One that ends before its time was answered:
 * by a trainer that refuses, for example. */
static ravel_status list_tensors(train_published *p, const train_pulled_options *options, ravel_error *err) {
    static const double longest = 5;
    ravel_pull_options pull = train_pulled_connection(options);
    double until = train__now() + options->timeout;
    int waits = 0;
    for (pull.timeout = 1;; pull.timeout = pull.timeout < longest / 2 ? 2 * pull.timeout : longest) {
        double begun = train__now();
        if (until - begun < pull.timeout) pull.timeout = until > begun ? until - begun : 0;
        ravel_status status = ravel_publication_list(options->address, &pull, note, p, err);
        int again = (status == RAVEL_E_IO || status == RAVEL_E_TIMEOUT) && train__now() - begun >= 0.9 * pull.timeout;
        if (again && options->stop && *options->stop) {
            ravel_error_clear(err);
            return ravel_error_set(err, RAVEL_E_STATE, "stopped before a trainer was reached at %s", options->address);
        }
        if (!again) return status;
        if (until - train__now() < 0.1) return not_reached(options, err);
        if (!waits++) ravel__log(options->logger, RAVEL_LOG_INFO, "waiting for a trainer: %s", err->message);
        forget_tensors(p);
        ravel_error_clear(err);
    }
}

ravel_status train_published_look(const train_pulled_options *options, train_published **published, ravel_error *err) {
    train_published *p = ravel__calloc(NULL, 1, sizeof *p);
    *published = NULL;
    if (!p) return ravel__no_memory(err, sizeof *p, "an adapter");
    p->config = p->live = -1;
    p->commit = options->commit;
    p->versions = options->versions > 0 ? options->versions : VERSIONS;
    if (p->commit != TRAIN_COMMIT_AUTO && p->commit != TRAIN_COMMIT_ANSWER) p->versions = 1;
    ravel_status status = list_tensors(p, options, err);
    if (status || p->config < 0) {
        train_published_free(p);
        return status;
    }
    p->block = ravel__calloc(NULL, 1, p->bytes);
    if (!p->block) {
        status = ravel__no_memory(err, p->bytes, "an adapter");
        train_published_free(p);
        return status;
    }
    int64_t at = 0;
    for (int64_t i = 0; i < p->count; at += bytes_of(&p->tensors[i++])) p->tensors[i].data = p->block + at;
    RAVEL_ASSERT((size_t)at == p->bytes);
    p->sink = (ravel_refit_sink){.size = sizeof p->sink, .tensors = p->tensors, .count = p->count};
    *published = p;
    return RAVEL_OK;
}

void train_published_free(train_published *p) {
    if (!p) return;
    if (p->adapters) {
        ravel__release(NULL, p->places, (size_t)p->adapters[0].params->count * sizeof *p->places);
        ravel__release(NULL, p->piece, PIECE * (size_t)ravel_dtype_bytes(p->kernels->types.weight));
        for (int32_t i = 0; i < p->versions; i++) train_adapter_close(&p->adapters[i]);
        ravel__release(NULL, p->adapters, (size_t)p->versions * sizeof *p->adapters);
    }
    ravel__release(NULL, p->block, p->bytes);
    forget_tensors(p);
    ravel__release(NULL, p, sizeof *p);
}

const train_lora *train_published_lora(const train_published *p) {
    return &p->lora;
}

int32_t train_published_versions(const train_published *p) {
    return p->versions;
}

/* ---- versions -------------------------------------------------------------------------------------------- */

static ravel_status copy_tensor(const train_published *p, const train_adapter *to, const train_tensor *t,
                                const ravel_refit_tensor *from, const char *data, ravel_error *err) {
    int32_t type = p->kernels->types.weight;
    int64_t each = ravel_dtype_bytes(type), from_each = ravel_dtype_bytes(from->dtype);
    if (from->dims[0] != t->dims[0]) data += t->file_first * t->dims[1] * from_each; /* the files' tensor */
    ravel_status status = RAVEL_OK;
    for (int64_t done = 0, n; done < t->count && !status; done += n) {
        n = train__min(PIECE, t->count - done);
        status = ravel_dtype_convert(from->dtype, data + done * from_each, type, p->piece, n, err);
        if (!status)
            p->kernels->upload(p->device, train__at(to->weights, type, t->offset + done), p->piece, (size_t)(n * each));
    }
    return status;
}

/* A place that no running answer uses and, while there is another one, that is not live; -1: none. */
static int32_t free_place(const train_published *p) {
    for (int32_t i = 0; i < p->versions; i++)
        if ((i != p->live || p->versions == 1) && train_generator_users(p->generator, p->first + i) == 0) return i;
    return -1;
}

static ravel_status put_version(train_published *p, ravel_error *err) {
    int32_t to = p->versions == 1 ? 0 : free_place(p);
    RAVEL_ASSERT(to >= 0);
    const train_adapter *a = &p->adapters[to];
    ravel_status status = RAVEL_OK;
    for (int64_t i = 0; i < a->params->count && !status; i++) {
        const int64_t from = p->places[i];
        status = copy_tensor(p, a, &a->params->tensors[i], &p->tensors[from], ravel_puller_data(p->puller, from), err);
    }
    if (!status) status = p->kernels->sync(p->device, err);
    if (status) return status;
    train_generator_set_adapter(p->generator, p->first + to, a->params, a->weights, p->version);
    train_generator_use_adapter(p->generator, p->first + to);
    p->live = to;
    return RAVEL_OK;
}

static ravel_status install(void *user, ravel_puller *puller, const ravel_pull_report *report, ravel_error *err) {
    train_published *p = user;
    const ravel_refit_tensor *config = &p->tensors[p->config];
    train_lora lora;
    p->puller = puller;
    p->version = report->identity.version;
    ravel_status status =
        train_adapter_parse(ravel_puller_data(puller, p->config), (size_t)config->dims[0], &lora, err);
    if (status) return status;
    if (!p->generator) {
        p->lora = lora;
        return RAVEL_OK;
    }
    if (lora.rank != p->lora.rank || lora.alpha != p->lora.alpha || lora.rslora != p->lora.rslora ||
        lora.targets != p->lora.targets)
        return ravel_error_set(err, RAVEL_E_MISMATCH,
                               "version %lld of the adapter has another rank, alpha or targets than the one before; "
                               "start this generator again",
                               (long long)p->version);
    return put_version(p, err);
}

static int room(void *user) {
    const train_published *p = user;
    return free_place(p) >= 0;
}

ravel_status train_published_open(train_published *p, const train_pulled_options *options, train_pulled **pulled,
                                  ravel_error *err) {
    const train_pulled_to to = {.sink = &p->sink, .install = install, .room = room, .user = p};
    return train_pulled_open(options, &to, pulled, err);
}

/* ---- in a generator -------------------------------------------------------------------------------------- */

/* By its own name, or as the tensor that files have where it is a part of one; 0: it is not of the adapter. */
static int place(train_published *p, const train_params *params, int64_t tensor) {
    const char *name = p->tensors[tensor].name;
    const train_tensor *found = train_params_find(params, name);
    int places = found != NULL;
    if (found) p->places[found - params->tensors] = tensor;
    for (int64_t i = 0; i < params->count && !found; i++) {
        if (strcmp(params->tensors[i].file_name, name) != 0) continue;
        p->places[i] = tensor;
        places = 1;
    }
    return places;
}

/* Every tensor of the adapter is published with its shape, and nothing else is. */
static ravel_status match(train_published *p, const train_params *params, ravel_error *err) {
    int64_t used = 0;
    for (int64_t i = 0; i < params->count; i++) p->places[i] = -1;
    for (int64_t i = 0; i < p->count; i++) used += i != p->config && place(p, params, i);
    for (int64_t i = 0; i < params->count; i++) {
        const train_tensor *t = &params->tensors[i];
        const ravel_refit_tensor *r = p->places[i] < 0 ? NULL : &p->tensors[p->places[i]];
        int own = r && strcmp(r->name, t->name) == 0;
        if (!r || r->ndim != t->rank || r->dims[0] != (own ? t->dims[0] : t->file_rows) || r->dims[1] != t->dims[1])
            return ravel_error_set(err, RAVEL_E_MISMATCH,
                                   "the adapter that is published is not one of this model: %s must be [%lld, %lld]%s",
                                   t->file_name, (long long)t->file_rows, (long long)t->dims[1],
                                   r ? "" : ", and is not there");
    }
    if (used + 1 == p->count) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_MISMATCH,
                           "the adapter that is published has %lld tensors; its configuration describes %lld",
                           (long long)p->count - 1, (long long)used);
}

ravel_status train_published_attach(train_published *p, const train_kernels *kernels, train_device *device,
                                    train_generator *generator, const ravel_shape *shape, int32_t first,
                                    ravel_error *err) {
    ravel_status status = RAVEL_OK;
    p->kernels = kernels;
    p->device = device;
    p->generator = generator;
    p->first = first;
    train_adapter *adapters = ravel__calloc(NULL, (size_t)p->versions, sizeof *adapters);
    if (!adapters) return ravel__no_memory(err, (size_t)p->versions * sizeof *adapters, "adapters");
    for (int32_t i = 0; i < p->versions && !status; i++)
        status = train_adapter_open(&adapters[i], kernels, device, shape, &p->lora, err);
    if (!adapters[0].params) {
        ravel__release(NULL, adapters, (size_t)p->versions * sizeof *adapters);
        return status;
    }
    p->adapters = adapters;
    int64_t count = adapters[0].params->count;
    p->places = ravel__calloc(NULL, (size_t)count, sizeof *p->places);
    p->piece = ravel__alloc(NULL, PIECE * (size_t)ravel_dtype_bytes(kernels->types.weight));
    if (!status && (!p->places || !p->piece)) status = ravel__no_memory(err, PIECE * 4, "an adapter");
    if (!status) status = match(p, adapters[0].params, err);
    return status ? status : put_version(p, err);
}
