/* The weights of the trainers to generators: those of the run, by a collective refit or by publish and pull (grpo_pull.h), and
 * with --publish, as the same versions, generators that were not launched with the run. Those may connect, leave or be slow at
 * any time: publishing copies the weights and returns. Where both kinds pull, it is from one publication. */
#include "train/run/grpo_internal.h"

#include "train/kernels/assert.h"
#include "train/kernels/host.h"

#include <time.h>

/* ---- opening and closing --------------------------------------------------------------------------------- */

/* Bytes of the weights that this rank holds of a part. */
static size_t part_bytes(const train_model *part) {
    const train_shares *shares = train_model_shares(part);
    const train_params *params = train_model_params(part);
    TRAIN_ASSERT(!shares || shares->places[params->unit_count] <= params->elements);
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
    g->tensors = train__calloc(NULL, (size_t)g->tensor_room, sizeof *g->tensors);
    if (!g->tensors) status = train__no_memory(err, (size_t)g->tensor_room * sizeof *g->tensors, "the list of tensors");
    if (!status && !pulls) status = make_copy(g, err);
    for (int32_t i = 0; i < train_parts_count(parts) && !status; i++) {
        train_model *part = train_parts_model(parts, i);
        train_array weights = train_model_array(part);
        if (g->host_weights) weights.data = (char *)g->host_weights + copied;
        copied += part_bytes(part);
        TRAIN_ASSERT(!g->host_weights || copied <= g->host_bytes);
        train_refit_tensors(train_model_params(part), &weights, NULL, train_place_of(&g->place), g->tensors,
                            &g->tensor_count);
    }
    g->source = (ravel_refit_source){.size = sizeof g->source, .tensors = g->tensors, .count = g->tensor_count};
    TRAIN_ASSERT(g->tensor_count >= 0 && g->tensor_count <= g->tensor_room);
    return status;
}

static ravel_publish_options publication_of(const train__grpo *g) {
    const train_grpo_options *o = &g->config->grpo;
    ravel_publish_options options;
    ravel_publish_options_default(&options);
    options.keep = o->publish_keep;
    options.open = o->publish_open;
    options.tls = o->publish_tls;
    options.allow = o->publish_allow;
    options.host = o->publish_host;
    options.logger = g->run.hooks.logger;
    return options;
}

/* Step by step with the generators (grpo_generate.c, open_refit). */
ravel_status train__grpo_refit_open(train__grpo *g, ravel_error *err) {
    const train_grpo_options *o = &g->config->grpo;
    const ravel_refit_options options = train__grpo_buffers(g->config);
    int pulls = 0;
    ravel_status status = ravel_agree(g->world, RAVEL_OK, err);
    const train_kernels *kernels = train_parts_kernels(train_learner_parts(g->learner));
    if (!status) status = train__grpo_way(g->config, kernels, g->config->model.gpu, g->world, &g->place, &pulls, err);
    if (status) return status;
    status = ravel_agree(g->world, list_tensors(g, pulls, err), err);
    if (status) return status;
    status = pulls ? train__grpo_serve(g->world, g->trainers, &g->source, o->publish, publication_of(g), &g->meeting,
                                       &g->publisher, err)
                   : ravel_refit_create(g->world, &g->source, NULL, &options, &g->refit, err);
    if (status || !o->publish) return status;
    const ravel_publish_options publication = publication_of(g);
    if (!pulls)
        status = ravel_publisher_create(g->trainers, g->rank == 0 ? o->publish : NULL, &g->source, &publication,
                                        &g->publisher, err);
    if (status || g->rank != 0) return status;
    train_log(publication.logger, RAVEL_LOG_INFO, "publishing at %s, %d versions of %.1f MiB kept per trainer",
              ravel_publisher_address(g->publisher), o->publish_keep,
              (double)ravel_publisher_version_bytes(g->publisher) / 0x1p20);
    return RAVEL_OK;
}

void train__grpo_refit_close(train__grpo *g) {
    ravel_publisher_free(g->publisher);
    ravel_refit_free(g->refit);
    train_place_close(&g->place);
    if (g->host_weights) {
        train_parts *parts = train_learner_parts(g->learner);
        train_parts_kernels(parts)->release_host(train_parts_device(parts), g->host_weights, g->host_bytes);
    }
    train__release(NULL, g->tensors, (size_t)g->tensor_room * sizeof *g->tensors);
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
    TRAIN_ASSERT(to && !kernels->host_memory);
    for (int32_t i = 0; i < train_parts_count(parts); i++) {
        train_model *part = train_parts_model(parts, i);
        size_t bytes = part_bytes(part);
        kernels->download(train_parts_device(parts), to, train_model_weights(part), bytes);
        to += bytes;
    }
    TRAIN_ASSERT(to == (char *)g->host_weights + g->host_bytes);
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
    TRAIN_ASSERT(version >= 1 && (g->refit || g->publisher));
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
    TRAIN_ASSERT(count >= 0);
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
