#include "train/run/grpo/pull.h"

#include "base/assert.h"
#include "train/model/hf/hf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static const double pull_seconds = 300; /* for a version that is published already */

ravel_refit_options train__grpo_buffers(const train_config *c) {
    ravel_refit_options options;
    ravel_refit_options_default(&options);
    options.num_buffers = c->grpo.refit_buffers;
    options.buffer_bytes = c->grpo.refit_buffer_size;
    options.memory_ratio = c->grpo.refit_memory;
    options.delta = c->grpo.refit_delta >= TRAIN_DELTA_BLOCKS;
    options.sparse = c->grpo.refit_delta == TRAIN_DELTA_ELEMENTS;
    return options;
}

/* Of f32 weights every update changes nearly all. */
void train__grpo_settle_delta(train_config *c, int one_machine) {
    const train_kernels *kernels = NULL;
    if (c->grpo.refit_delta != TRAIN_DELTA_AUTO) return;
    int narrow = !train_kernels_find(c->model.kernels, &kernels, NULL) && ravel_dtype_bytes(kernels->types.weight) == 2;
    c->grpo.refit_delta = narrow && !one_machine ? TRAIN_DELTA_ELEMENTS : TRAIN_DELTA_NO;
}

int32_t train__grpo_published_dtype(const train_config *c, const train_kernels *kernels) {
    static const int32_t dtypes[] = {-1, -1, RAVEL_BF16, RAVEL_F16};
    const train_grpo_options *o = &c->grpo;
    RAVEL_ASSERT(o->publish_dtype >= 0 && o->publish_dtype < (int32_t)(sizeof dtypes / sizeof *dtypes));
    int32_t dtype = dtypes[o->publish_dtype];
    if (!o->publish_dtype && o->rollout && !c->model.lora.rank && train_config_dtype(c->model.model) == RAVEL_BF16)
        dtype = RAVEL_BF16;
    return dtype >= 0 && ravel_dtype_bytes(dtype) < ravel_dtype_bytes(kernels->types.weight) ? dtype : -1;
}

int train__grpo_pulls(const train_config *c, const train_kernels *kernels) {
    return c->grpo.refit == TRAIN_REFIT_PULL || (c->grpo.refit == TRAIN_REFIT_AUTO && !kernels->host_memory);
}

ravel_status train__grpo_way(const train_config *c, const train_kernels *kernels, int32_t gpu, ravel_comm *world,
                             train_place *place, int *pulls, ravel_error *err) {
    train_refit_way way = (train_refit_way)c->grpo.refit;
    RAVEL_ASSERT(way >= TRAIN_REFIT_AUTO && way <= TRAIN_REFIT_PULL);
    ravel_error why = RAVEL_ERROR_INIT;
    int32_t together = 0;
    int wanted = train__grpo_pulls(c, kernels);
    ravel_status opened = wanted ? train_place_open(place, kernels, gpu, &why) : RAVEL_OK, status = opened;
    if (way != TRAIN_REFIT_PULL) status = RAVEL_OK; /* auto: then through host memory */
    if (status) ravel_error_set(err, status, "--refit pull: %s", why.message);
    status = ravel_agree(world, status, err);
    if (!status) status = ravel_comm_neighbours(world, &together, err);
    int one_machine = together == ravel_comm_size(world);
    int64_t mine = wanted && !opened, all = 0;
    if (!status) status = ravel_comm_allreduce(world, &mine, &all, 1, RAVEL_I64, RAVEL_MIN, err);
    if (!status && way == TRAIN_REFIT_PULL && !one_machine)
        status = ravel_error_set(err, RAVEL_E_ARGUMENT,
                                 "--refit pull is for ranks of one machine; these are on several: say --refit auto");
    *pulls = !status && all && one_machine;
    if (!*pulls) train_place_close(place);
    return status;
}

static ravel_status choose_meeting(train__meeting *m, ravel_error *err) {
    unsigned char secret[16];
    if (getrandom(secret, sizeof secret, 0) != (ssize_t)sizeof secret)
        return ravel_error_set(err, RAVEL_E_IO, "the system gave no random numbers");
    (void)snprintf(m->address, sizeof m->address, "unix:@ravel-grpo-%d-%02x%02x%02x%02x", (int)getpid(), secret[0],
                   secret[1], secret[2], secret[3]);
    for (size_t i = 0; i < sizeof secret; i++) (void)snprintf(m->token + 2 * i, 3, "%02x", secret[15 - i]);
    RAVEL_ASSERT(strlen(m->token) == 2 * sizeof secret && strlen(m->address) < sizeof m->address);
    return RAVEL_OK;
}

/* The user's address; the token is the environment's, as for generators from elsewhere. */
static ravel_status take_meeting(train__meeting *m, const char *address, ravel_error *err) {
    const char *token = getenv("RAVEL_TOKEN");
    if (!token) token = "";
    if (strlen(address) >= sizeof m->address || strlen(token) >= sizeof m->token)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "--publish takes at most %zu bytes, RAVEL_TOKEN %zu",
                               sizeof m->address - 1, sizeof m->token - 1);
    memcpy(m->address, address, strlen(address) + 1);
    memcpy(m->token, token, strlen(token) + 1);
    return RAVEL_OK;
}

ravel_status train__grpo_serve(ravel_comm *world, ravel_comm *trainers, const ravel_refit_source *source,
                               const char *address, ravel_publish_options options, train__meeting *m,
                               ravel_publisher **publisher, ravel_error *err) {
    int first = ravel_comm_rank(trainers) == 0;
    ravel_status status = RAVEL_OK;
    if (first) status = address ? take_meeting(m, address, err) : choose_meeting(m, err);
    if (!address) options.keep = 1; /* a generator of the run has pulled a version before the next is published */
    status = ravel_agree(world, status, err);
    if (!status) status = ravel_comm_broadcast(world, m, sizeof *m, RAVEL_U8, 0, err);
    options.token = m->token[0] ? m->token : NULL;
    if (!status) status = ravel_publisher_create(trainers, first ? m->address : NULL, source, &options, publisher, err);
    status = ravel_agree(world, status, err);
    if (status) return status;
    if (first) (void)snprintf(m->address, sizeof m->address, "%s", ravel_publisher_address(*publisher));
    status = ravel_comm_broadcast(world, m, sizeof *m, RAVEL_U8, 0, err); /* with the real port */
    return status ? status : ravel_agree(world, RAVEL_OK, err);           /* generators connect */
}

ravel_status train__grpo_connect(ravel_comm *world, ravel_comm *comm, const ravel_refit_sink *sink, train__meeting *m,
                                 ravel_puller **puller, ravel_error *err) {
    ravel_pull_options options;
    ravel_pull_options_default(&options);
    options.cast = RAVEL_REFIT_NARROW;
    ravel_status status = ravel_agree(world, RAVEL_OK, err);
    if (!status) status = ravel_comm_broadcast(world, m, sizeof *m, RAVEL_U8, 0, err);
    if (!status) status = ravel_agree(world, RAVEL_OK, err); /* trainers publish */
    if (!status) status = ravel_comm_broadcast(world, m, sizeof *m, RAVEL_U8, 0, err);
    if (status) return status;
    options.token = m->token[0] ? m->token : NULL;
    return ravel_agree(world, ravel_puller_create(comm, m->address, sink, &options, puller, err), err);
}

ravel_status train__grpo_pull(ravel_puller *puller, int64_t version, ravel_pull_report *report, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    *report = (ravel_pull_report){.size = sizeof *report};
    RAVEL_ASSERT(puller && version >= 1);
    while (!status && report->identity.version < version) {
        status = ravel_puller_wait(puller, pull_seconds, err);
        if (!status) status = ravel_puller_commit(puller, report, err);
    }
    RAVEL_ASSERT(status || report->identity.version == version); /* the next one is ordered after this one's answers */
    return status;
}
