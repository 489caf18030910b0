#include "train/run/config/devices.h"

#include "train/kernels/host.h"

#include <stdio.h>
#include <string.h>

/* A rank's GPU, gathered over ranks. */
typedef struct seat {
    uint8_t uuid[16];
    int32_t gpu, trains;
    int64_t free_bytes;
} seat;

/* ---- this rank's GPU ------------------------------------------------------------------------------------ */

/* Its number among the ranks of its machine: all of them, or those of its kind where generators have a list of their
 * own. */
static ravel_status local_rank(ravel_comm *comm, int by_kind, int32_t trainers, int32_t *local, ravel_error *err) {
    int32_t rank = ravel_comm_rank(comm);
    ravel_comm *kind = NULL;
    if (!by_kind) return ravel_comm_local_rank(comm, local, err);
    ravel_status status = ravel_comm_split(comm, rank >= trainers, rank, &kind, err);
    if (!status) status = ravel_comm_local_rank(kind, local, err);
    ravel_comm_free(kind);
    return status;
}

static ravel_status choose(const train_config *c, const train_kernels *kernels, int generates, int32_t local,
                           seat *mine, ravel_error *err) {
    uint8_t uuids[TRAIN_GPUS][16];
    int own = generates && c->grpo.generator_devices;
    const char *text = own ? c->grpo.generator_devices : c->model.devices;
    const char *name = own ? "generator-device" : "device";
    int32_t list[TRAIN_GPUS], count = 0, seen = 0;
    ravel_status status = train_gpus_parse(name, text, list, &count, err);
    if (!status) status = kernels->gpus(TRAIN_GPUS, uuids, &seen, err);
    if (status) return status;
    seen = (int32_t)train__min(seen, TRAIN_GPUS);
    mine->gpu = count ? list[local % count] : local % seen;
    if (mine->gpu >= seen)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "--%s %.60s: rank %d of this machine would be on GPU %d, and it has %s%d", name, text,
                               local, mine->gpu, seen > 1 ? "GPUs 0 to " : "only GPU ", seen - 1);
    memcpy(mine->uuid, uuids[mine->gpu], sizeof mine->uuid);
    return RAVEL_OK;
}

/* INT64_MAX if the devices' module is not there: then nobody compares. */
static int64_t find_free_bytes(const train_kernels *kernels, int32_t gpu) {
    char name[64];
    ravel_device *device = NULL;
    ravel_device_info info = {.size = sizeof info};
    (void)snprintf(name, sizeof name, "%s:%d", kernels->name, gpu);
    ravel_status status = ravel_device_open(name, &device, NULL);
    if (!status) status = ravel_device_get_info(device, &info, NULL);
    ravel_device_free(device);
    return status ? INT64_MAX : info.free_bytes;
}

/* ---- ranks that share a GPU --------------------------------------------------------------------------------- */

static int is_same(const seat *a, const seat *b) {
    return memcmp(a->uuid, b->uuid, sizeof a->uuid) == 0;
}

static void count_ranks(const seat *seats, int32_t ranks, train_devices *d) {
    *d = (train_devices){.trainers_apart = 1};
    for (int32_t i = 0; i < ranks; i++) {
        int32_t trainers = 0, generators = 0, first = 1;
        for (int32_t j = 0; j < ranks; j++) {
            if (!is_same(&seats[i], &seats[j])) continue;
            first &= j >= i;
            trainers += seats[j].trains;
            generators += !seats[j].trains;
        }
        d->gpus += first;
        if (trainers > 1) d->trainers_apart = 0;
        int32_t most = d->trainers + d->generators;
        if (trainers + generators < most || (trainers + generators == most && seats[i].free_bytes >= d->free_bytes))
            continue;
        d->trainers = trainers;
        d->generators = generators;
        d->crowded = seats[i].gpu;
        d->free_bytes = seats[i].free_bytes;
    }
}

static ravel_status compare_seats(const seat *mine, ravel_comm *comm, train_devices *devices, ravel_error *err) {
    int32_t ranks = ravel_comm_size(comm);
    size_t bytes = (size_t)ranks * sizeof(seat);
    seat *all = ravel__alloc(NULL, bytes);
    ravel_status status = ravel_agree(comm, all ? RAVEL_OK : ravel__no_memory(err, bytes, "the ranks' GPUs"), err);
    if (!status && all) status = ravel_comm_allgather(comm, mine, all, (int64_t)sizeof *mine, RAVEL_U8, err);
    if (!status && all) count_ranks(all, ranks, devices);
    ravel__release(NULL, all, bytes);
    return status;
}

/* ---- NCCL or host memory ---------------------------------------------------------------------------------- */

/* Whether this rank can load NCCL, and the driver that its streams need. */
static ravel_status try_modules(const train_kernels *kernels, int32_t gpu, ravel_error *err) {
    ravel_device *device = NULL;
    char name[64];
    (void)snprintf(name, sizeof name, "%s:%d", kernels->name, gpu);
    ravel_status status = ravel_comm_nccl_find(err);
    if (!status) status = ravel_device_open(name, &device, err);
    ravel_device_free(device);
    return status;
}

/* Why NCCL cannot be had, about the same on every rank; "": it can, on all. Collective. */
static ravel_status find_nccl(const train_kernels *kernels, int32_t gpu, const train_devices *d, ravel_comm *comm,
                              char *why, size_t bytes, ravel_error *err) {
    ravel_error missing = RAVEL_ERROR_INIT;
    int64_t mine = try_modules(kernels, gpu, &missing) == RAVEL_OK, all = 0;
    why[0] = '\0';
    ravel_status status = ravel_comm_allreduce(comm, &mine, &all, 1, RAVEL_I64, RAVEL_MIN, err);
    if (status) return status;
    if (!kernels->stream || !kernels->watch)
        (void)snprintf(why, bytes, "the kernels have no stream");
    else if (!d->trainers_apart)
        (void)snprintf(why, bytes, "trainers share GPU %d, and NCCL takes one rank per GPU", d->crowded);
    else if (!all)
        (void)snprintf(why, bytes, "%.160s", mine ? "another rank cannot load NCCL" : missing.message);
    return RAVEL_OK;
}

static ravel_status choose_wire(train_config *c, const train_kernels *kernels, int32_t trainers, ravel_comm *comm,
                                train_devices *d, ravel_error *err) {
    char why[sizeof d->wire - 64];
    train_wire wanted = (train_wire)c->model.wire;
    c->model.wire = TRAIN_WIRE_HOST;
    if (wanted == TRAIN_WIRE_HOST || (wanted == TRAIN_WIRE_AUTO && trainers == 1)) return RAVEL_OK;
    ravel_status status = find_nccl(kernels, c->model.gpu, d, comm, why, sizeof why, err);
    if (status) return status;
    if (why[0] && wanted == TRAIN_WIRE_NCCL)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "--comm-device nccl: %s; say --comm-device host", why);
    if (!why[0]) c->model.wire = TRAIN_WIRE_NCCL;
    (void)snprintf(d->wire, sizeof d->wire, "trainers exchange arrays %s%s",
                   why[0] ? "through host memory: " : "over NCCL", why);
    return RAVEL_OK;
}

/* ----------------------------------------------------------------------------------------------------------- */

ravel_status train_devices_assign(train_config *c, int32_t trainers, ravel_comm *comm, train_devices *devices,
                                  ravel_error *err) {
    const train_kernels *kernels = NULL;
    int32_t local = 0, generates = ravel_comm_rank(comm) >= trainers;
    seat mine = {.trains = !generates};
    *devices = (train_devices){0};
    ravel_status status = ravel_agree(comm, train_choice_kernels(&c->model, &kernels, err), err);
    if (status || !kernels->gpus) return status; /* every rank has the same set */
    status = local_rank(comm, c->grpo.generator_devices != NULL, trainers, &local, err);
    if (!status) status = ravel_agree(comm, choose(c, kernels, generates, local, &mine, err), err);
    if (!status) mine.free_bytes = find_free_bytes(kernels, mine.gpu);
    if (!status) status = compare_seats(&mine, comm, devices, err);
    c->model.gpu = mine.gpu;
    return status ? status : choose_wire(c, kernels, trainers, comm, devices, err);
}
