/* --publish: every version that the run's own generators get is published, too, for generators that were not launched with
 * the run. They may connect, leave or be slow at any time: publishing copies the weights and returns. */
#include "train/run/grpo_internal.h"

#include "train/kernels/assert.h"

#include <time.h>

ravel_status train__grpo_publish_open(train__grpo *g, ravel_error *err) {
    const train_grpo_options *o = &g->config->grpo;
    ravel_publish_options options;
    TRAIN_ASSERT(!g->publisher && g->source.size == sizeof g->source);
    if (!o->publish) return RAVEL_OK;
    ravel_publish_options_default(&options);
    options.keep = o->publish_keep;
    options.open = o->publish_open;
    options.allow = o->publish_allow;
    options.host = o->publish_host;
    options.logger = g->run.hooks.logger;
    ravel_status status =
        ravel_publisher_create(g->trainers, g->rank == 0 ? o->publish : NULL, &g->source, &options, &g->publisher, err);
    if (status || g->rank != 0) return status;
    train_log(options.logger, RAVEL_LOG_INFO, "publishing at %s, %d versions of %.1f MiB kept per trainer",
              ravel_publisher_address(g->publisher), o->publish_keep,
              (double)ravel_publisher_version_bytes(g->publisher) / 0x1p20);
    return RAVEL_OK;
}

ravel_status train__grpo_publish(train__grpo *g, int64_t version, ravel_error *err) {
    if (!g->publisher) return RAVEL_OK;
    ravel_status status = ravel_publisher_publish(g->publisher, version, err);
    if (!status) status = train_place_wait(&g->place, err);
    if (!status) ravel_publisher_count(g->publisher, g->run.metrics);
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

ravel_status train__grpo_publish_linger(train__grpo *g, ravel_error *err) {
    const struct timespec moment = {0, 50 * 1000 * 1000};
    double left = g->config->grpo.publish_linger;
    if (!g->publisher) return RAVEL_OK;
    for (; g->rank == 0 && left > 0; left -= 0.05) {
        if (behind(g->publisher, g->run.state.version) == 0) break;
        (void)nanosleep(&moment, NULL);
    }
    return ravel_comm_barrier(g->trainers, err); /* every trainer serves until rank 0 has seen them all */
}
