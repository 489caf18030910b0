/* The weights of the trainers to generators: those of the run, by a collective refit or by publish and pull (pull.h),
 * and with --publish, as the same versions, generators that were not launched with the run. Those may connect, leave or
 * be slow at any time: publishing copies the weights and returns. Where both kinds pull, it is from one publication. */
#include "train/run/grpo/internal.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "train/model/hf/lora.h"

#include <stdlib.h>
#include <time.h>

/* ---- opening and closing --------------------------------------------------------------------------------- */

/* Bytes of the weights that this rank holds of a part. */
static size_t part_bytes(const train_model *part) {
    const train_shares *shares = train_model_shares(part);
    const train_params *params = train_model_params(part);
    RAVEL_ASSERT(!shares || shares->places[params->unit_count] <= params->elements);
    return (size_t)(shares ? shares->places[params->unit_count] : params->elements) *
           (size_t)ravel_dtype_bytes(train_model_kernels(part)->types.weight);
}

/* Where the kernels' memory is not the host's: room for a copy of all parts, one behind the other. */
static ravel_status make_copy(train__grpo *g, ravel_error *err) {
    train_parts *parts = train_learner_parts(g->learner);
    const train_kernels *kernels = train_parts_kernels(parts);
    if (kernels->host_memory) return RAVEL_OK;
    for (int32_t i = 0; i < train_parts_count(parts); i++) g->host_bytes += part_bytes(train_parts_model(parts, i));
    return kernels->alloc_host(train_parts_device(parts), g->host_bytes, &g->host_weights, err);
}

/* Each trainer sends its parts of tensors; replicas hold the same parts, or, with --shard params, rows of them. */
static ravel_status list_tensors(train__grpo *g, int pulls, ravel_error *err) {
    train_parts *parts = train_learner_parts(g->learner);
    size_t copied = 0;
    ravel_status status = RAVEL_OK;
    for (int32_t i = 0; i < train_parts_count(parts); i++)
        g->tensor_room += train_model_params(train_parts_model(parts, i))->count;
    g->tensor_room += 1; /* the configuration of an adapter */
    g->tensors = ravel__calloc(NULL, (size_t)g->tensor_room, sizeof *g->tensors);
    if (!g->tensors) status = ravel__no_memory(err, (size_t)g->tensor_room * sizeof *g->tensors, "the list of tensors");
    if (!status && !pulls) status = make_copy(g, err);
    for (int32_t i = 0; i < train_parts_count(parts) && !status; i++) {
        train_model *part = train_parts_model(parts, i);
        train_array weights = train_model_array(part);
        if (g->host_weights) weights.data = (char *)g->host_weights + copied;
        copied += part_bytes(part);
        RAVEL_ASSERT(!g->host_weights || copied <= g->host_bytes);
        train_refit_tensors(train_model_params(part), &weights, NULL, train_place_of(&g->place), g->tensors,
                            &g->tensor_count);
    }
    g->source = (ravel_refit_source){.size = sizeof g->source, .tensors = g->tensors, .count = g->tensor_count};
    RAVEL_ASSERT(g->tensor_count >= 0 && g->tensor_count < g->tensor_room);
    g->published = g->source;
    return status;
}

/* Of an adapter, rank 0 publishes the configuration as one more tensor, so that a generator needs nothing but the
 * address. */
static ravel_status list_config(train__grpo *g, ravel_error *err) {
    const train_model_choice *m = &g->config->model;
    train_parts *parts = train_learner_parts(g->learner);
    const train_kernels *kernels = train_parts_kernels(parts);
    if (!m->lora.rank || g->rank != 0) return RAVEL_OK;
    ravel_status status = train_adapter_print(&train_model_params(train_parts_model(parts, 0))->lora, m->model,
                                              &g->adapter_config, &g->config_bytes, err);
    if (status) return status;
    ravel_place place = train_place_of(&g->place);
    if (place.stream) {
        status = kernels->alloc(train_parts_device(parts), g->config_bytes, &g->config_there, err);
        if (status) return status;
        kernels->upload(train_parts_device(parts), g->config_there, g->adapter_config, g->config_bytes);
        status = kernels->sync(train_parts_device(parts), err);
    }
    g->tensors[g->tensor_count] = (ravel_refit_tensor){.name = TRAIN_ADAPTER_CONFIG,
                                                       .dtype = RAVEL_U8,
                                                       .ndim = 1,
                                                       .dims = {(int64_t)g->config_bytes},
                                                       .extent = {(int64_t)g->config_bytes},
                                                       .place = place,
                                                       .data = g->config_there ? g->config_there : g->adapter_config};
    g->published.count = g->tensor_count + 1;
    return status;
}

static ravel_publish_options publication_of(const train__grpo *g) {
    const train_grpo_options *o = &g->config->grpo;
    ravel_publish_options options;
    ravel_publish_options_default(&options);
    options.keep = o->publish_keep;
    options.sparse = o->publish_sparse;
    options.dtype = train__grpo_published_dtype(g->config, train_parts_kernels(train_learner_parts(g->learner)));
    options.open = o->publish_open;
    options.tls = o->publish_tls;
    options.allow = o->publish_allow;
    options.host = o->publish_host;
    options.logger = g->run.hooks.logger;
    return options;
}

/* --rollout: servers pull, and the ranks that ask them need to know where. Step by step with remote.c. */
static ravel_status publish_for_servers(train__grpo *g, ravel_error *err) {
    const ravel_publish_options publication = publication_of(g);
    ravel_status status = ravel_agree(g->world, list_tensors(g, 1, err), err);
    if (!status)
        status = ravel_agree(g->world,
                             ravel_publisher_create(g->trainers, g->rank == 0 ? g->config->grpo.publish : NULL,
                                                    &g->source, &publication, &g->publisher, err),
                             err);
    if (!status && g->rank == 0)
        (void)snprintf(g->meeting.address, sizeof g->meeting.address, "%s", ravel_publisher_address(g->publisher));
    g->meeting.dtype = publication.dtype;
    return status ? status : ravel_comm_broadcast(g->world, &g->meeting, sizeof g->meeting, RAVEL_U8, 0, err);
}

/* Step by step with the generators (generate.c, open_refit). */
ravel_status train__grpo_refit_open(train__grpo *g, ravel_error *err) {
    const train_grpo_options *o = &g->config->grpo;
    const ravel_refit_options options = train__grpo_buffers(g->config);
    int pulls = 0;
    ravel_status status = ravel_agree(g->world, RAVEL_OK, err);
    const train_kernels *kernels = train_parts_kernels(train_learner_parts(g->learner));
    if (!status && o->rollout) return publish_for_servers(g, err);
    if (!status) status = train__grpo_way(g->config, kernels, g->config->model.gpu, g->world, &g->place, &pulls, err);
    if (status) return status;
    status = list_tensors(g, pulls, err);
    if (!status && (pulls || o->publish)) status = list_config(g, err);
    status = ravel_agree(g->world, status, err);
    if (status) return status;
    status = pulls ? train__grpo_serve(g->world, g->trainers, &g->published, o->publish, publication_of(g), &g->meeting,
                                       &g->publisher, err)
                   : ravel_refit_create(g->world, &g->source, NULL, &options, &g->refit, err);
    if (status || !o->publish) return status;
    const ravel_publish_options publication = publication_of(g);
    if (!pulls)
        status = ravel_publisher_create(g->trainers, g->rank == 0 ? o->publish : NULL, &g->published, &publication,
                                        &g->publisher, err);
    if (status || g->rank != 0) return status;
    ravel__log(publication.logger, RAVEL_LOG_INFO, "publishing at %s, %d versions of %.1f MiB kept per trainer",
               ravel_publisher_address(g->publisher), o->publish_keep,
               (double)ravel_publisher_version_bytes(g->publisher) / 0x1p20);
    return RAVEL_OK;
}

void train__grpo_refit_close(train__grpo *g) {
    ravel_publisher_free(g->publisher);
    ravel_refit_free(g->refit);
    train_parts *parts = g->learner ? train_learner_parts(g->learner) : NULL;
    if (g->config_there)
        train_parts_kernels(parts)->release(train_parts_device(parts), g->config_there, g->config_bytes);
    train_place_close(&g->place);
    free(g->adapter_config);
    if (g->host_weights) {
        train_parts_kernels(parts)->release_host(train_parts_device(parts), g->host_weights, g->host_bytes);
    }
    ravel__release(NULL, g->tensors, (size_t)g->tensor_room * sizeof *g->tensors);
}

/* ---- a version ------------------------------------------------------------------------------------------- */

static ravel_status publish(train__grpo *g, int64_t version, ravel_error *err) {
    ravel_status status = ravel_publisher_publish(g->publisher, version, err);
    if (!status) status = train_place_wait(&g->place, err); /* the next update may write */
    if (!status) ravel_publisher_count(g->publisher, g->run.metrics);
    return status;
}

/* Refit reads host memory: the weights of a GPU are copied there first. */
static ravel_status fetch_weights(train__grpo *g, ravel_error *err) {
    train_parts *parts = train_learner_parts(g->learner);
    const train_kernels *kernels = train_parts_kernels(parts);
    char *to = g->host_weights;
    RAVEL_ASSERT(to && !kernels->host_memory);
    for (int32_t i = 0; i < train_parts_count(parts); i++) {
        train_model *part = train_parts_model(parts, i);
        size_t bytes = part_bytes(part);
        kernels->download(train_parts_device(parts), to, train_model_weights(part), bytes);
        to += bytes;
    }
    RAVEL_ASSERT(to == (char *)g->host_weights + g->host_bytes);
    return kernels->sync(train_parts_device(parts), err);
}

static ravel_status refit_together(train__grpo *g, train_order order, ravel_error *err) {
    ravel_status status = train__grpo_send(g, order, 0, 0, err);
    g->report = (ravel_refit_report){.size = sizeof g->report};
    if (!status && g->host_weights) status = fetch_weights(g, err);
    if (!status) status = ravel_refit_update(g->refit, order.version, &g->report, err);
    if (status) return status;
    g->refits += 1;
    g->overlap += g->report.overlap;
    g->gb_per_sec += g->report.gb_per_second;
    ravel_refit_count(&g->report, g->run.metrics);
    return RAVEL_OK;
}

/* Published before it is ordered, so that generators wait for nothing. The trainer goes on while they pull. */
static ravel_status refit_by_pull(train__grpo *g, train_order order, ravel_error *err) {
    train_parts *parts = train_learner_parts(g->learner);
    ravel_status status = train_parts_kernels(parts)->sync(train_parts_device(parts), err); /* the update is done */
    if (!status) status = publish(g, order.version, err);
    return status ? status : train__grpo_send(g, order, 0, 0, err);
}

ravel_status train__grpo_refit(train__grpo *g, int64_t version, ravel_error *err) {
    train_order order = {.kind = TRAIN_ORDER_REFIT, .version = version};
    RAVEL_ASSERT(version >= 1 && (g->refit || g->publisher));
    ravel_status status = train__grpo_drain(g, err);
    (void)ravel_metrics_phase_begin(g->run.metrics, RAVEL_PHASE_REFIT, NULL);
    if (!status) status = g->refit ? refit_together(g, order, err) : refit_by_pull(g, order, err);
    if (!status) g->run.state.version = version;
    if (!status && g->refit && g->publisher) status = publish(g, version, err);
    (void)ravel_metrics_phase_end(g->run.metrics, RAVEL_PHASE_REFIT, NULL);
    return status;
}

/* The connected generators that do not hold the version. */
static int64_t behind(ravel_publisher *publisher, int64_t version) {
    ravel_generator_report reports[256];
    int64_t count = ravel_publisher_generators(publisher, reports, 256), late = 0;
    RAVEL_ASSERT(count >= 0);
    for (int64_t i = 0; i < count && i < 256; i++) late += reports[i].connected && reports[i].held.version < version;
    return late;
}

ravel_status train__grpo_linger(train__grpo *g, ravel_error *err) {
    const struct timespec moment = {0, 50 * 1000 * 1000};
    double left = g->config->grpo.publish_linger;
    if (!g->config->grpo.publish) return RAVEL_OK;
    for (; g->rank == 0 && left > 0; left -= 0.05) {
        if (behind(g->publisher, g->run.state.version) == 0) break;
        (void)nanosleep(&moment, NULL);
    }
    return ravel_comm_barrier(g->trainers, err); /* every trainer serves until rank 0 has seen them all */
}
