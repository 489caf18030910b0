#include "train/run/answers/pulled.h"

#include "base/assert.h"
#include "train/kernels/host.h"
#include "base/log.h"

#include <math.h>

static const double note_seconds = 1;  /* between two notes of the speed */
static const double retry_seconds = 1; /* between a stage that failed and the next */
static const double slice_seconds = 0.2;

struct train_pulled {
    train_pulled_options options;
    train_pulled_to to;
    ravel_comm *comm;
    ravel_puller *puller;
    train_pulled_stats stats;
    double noted_at, stage_after;
    int64_t noted_tokens;
};

static ravel_status commit(train_pulled *p, ravel_error *err) {
    ravel_pull_report report = {.size = sizeof report};
    double began = train__now();
    ravel_status status = ravel_puller_commit(p->puller, &report, err);
    if (!status) status = p->to.install(p->to.user, p->puller, &report, err);
    if (status) return status;
    double pause = train__now() - began;
    RAVEL_ASSERT(pause >= 0 && report.live >= 0 && report.live <= 1);
    train_pulled_stats *s = &p->stats;
    s->version = report.identity.version;
    s->commits++;
    s->bytes += report.bytes_pulled;
    s->prepare_most = fmax(s->prepare_most, report.prepare_seconds);
    s->pause_most = fmax(s->pause_most, pause);
    s->pause_sum += pause;
    ravel__log(p->options.logger, RAVEL_LOG_INFO, "version %lld: %.4g MB pulled, prepared in %.4f s, pause %.3f ms",
               (long long)s->version, (double)report.bytes_pulled * 1e-6, report.prepare_seconds, 1e3 * pause);
    return RAVEL_OK;
}

/* Errors worth a retry: a lost link, a version that was replaced meanwhile, bytes that did not match. */
static int may_try_again(ravel_status status) {
    return status == RAVEL_E_IO || status == RAVEL_E_STATE || status == RAVEL_E_CHECKSUM || status == RAVEL_E_DATA;
}

static ravel_status stage_failed(train_pulled *p, ravel_status status, ravel_error *err) {
    if (!may_try_again(status)) return status;
    ravel__log(p->options.logger, RAVEL_LOG_WARN, "%s; staging again", err->message);
    ravel_error_clear(err);
    p->stage_after = train__now() + retry_seconds;
    return RAVEL_OK;
}

static int asked_to_stop(const train_pulled *p) {
    return p->options.stop && *p->options.stop;
}

/* E_TIMEOUT with the reason of the last attempt that failed, if one did. */
static ravel_status no_version(const train_pulled *p, const ravel_error *last, ravel_error *err) {
    const char *join = last->status ? "; the last attempt: " : "";
    ravel_error_clear(err);
    if (asked_to_stop(p)) return ravel_error_set(err, RAVEL_E_STATE, "stopped before the first version came");
    return ravel_error_set(err, RAVEL_E_TIMEOUT, "no version was published at %s within %g s%s%s", p->options.address,
                           p->options.timeout, join, last->message);
}

static ravel_status first_version(train_pulled *p, ravel_error *err) {
    double until = train__now() + p->options.timeout;
    RAVEL_ASSERT(p->options.timeout >= 0 && p->stats.commits == 0);
    ravel_status status = RAVEL_E_TIMEOUT;
    ravel_error last = RAVEL_ERROR_INIT;
    while (status == RAVEL_E_TIMEOUT && !asked_to_stop(p) && train__now() < until) {
        ravel_error_clear(err);
        status = ravel_puller_wait(p->puller, slice_seconds, err);
        if (!may_try_again(status)) continue;
        last = *err;
        status = RAVEL_E_TIMEOUT;
    }
    if (status == RAVEL_E_TIMEOUT) return no_version(p, &last, err);
    return status ? status : commit(p, err);
}

static ravel_status switch_sets(void *user, ravel_puller *puller, const ravel_pull_report *report, ravel_error *err) {
    (void)puller;
    return train_weight_sets_switch(user, report->live, report->identity.version, err);
}

train_pulled_to train_pulled_sets(train_weight_sets *sets) {
    return (train_pulled_to){.sink = &sets->sink, .install = switch_sets, .user = sets};
}

ravel_pull_options train_pulled_connection(const train_pulled_options *options) {
    ravel_pull_options pull;
    ravel_pull_options_default(&pull);
    pull.cast = RAVEL_REFIT_NARROW;
    pull.timeout = options->timeout;
    pull.tls = options->tls;
    pull.logger = options->logger;
    return pull;
}

ravel_status train_pulled_open(const train_pulled_options *options, const train_pulled_to *to, train_pulled **pulled,
                               ravel_error *err) {
    const ravel_pull_options pull = train_pulled_connection(options);
    if (options->commit == TRAIN_COMMIT_ANSWER && !to->room)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "%s publishes a whole model, of which one version is held: commit it by step or idle "
                               "(--pull-commit); answer is for adapters",
                               options->address);
    train_pulled *p = ravel__calloc(NULL, 1, sizeof *p);
    if (!p) return ravel__no_memory(err, sizeof *p, "a puller");
    p->options = *options;
    p->to = *to;
    if (p->options.commit == TRAIN_COMMIT_AUTO) p->options.commit = to->room ? TRAIN_COMMIT_ANSWER : TRAIN_COMMIT_STEP;
    ravel_status status = ravel_comm_self(NULL, &p->comm, err);
    if (!status) status = ravel_puller_create(p->comm, options->address, to->sink, &pull, &p->puller, err);
    if (!status) status = first_version(p, err);
    if (status) {
        train_pulled_free(p);
        return status;
    }
    p->noted_at = train__now();
    RAVEL_ASSERT(p->stats.commits == 1);
    *pulled = p;
    return RAVEL_OK;
}

void train_pulled_free(train_pulled *p) {
    if (!p) return;
    ravel_puller_free(p->puller);
    ravel_comm_free(p->comm);
    ravel__release(NULL, p, sizeof *p);
}

static void note_speed(train_pulled *p, int64_t tokens) {
    double time = train__now(), seconds = time - p->noted_at;
    RAVEL_ASSERT(seconds >= 0 && tokens >= p->noted_tokens);
    if (seconds < note_seconds) return;
    p->stats.tokens_per_sec = (double)(tokens - p->noted_tokens) / seconds;
    p->noted_at = time;
    p->noted_tokens = tokens;
    ravel_puller_note(p->puller, p->stats.tokens_per_sec);
}

static int may_commit(const train_pulled *p, int idle) {
    if (p->options.commit == TRAIN_COMMIT_ANSWER) return p->to.room(p->to.user);
    return idle || p->options.commit == TRAIN_COMMIT_STEP;
}

ravel_status train_pulled_step(train_pulled *p, int idle, int64_t tokens, ravel_error *err) {
    int32_t state = RAVEL_PULL_IDLE;
    RAVEL_ASSERT(p->puller && p->to.install);
    note_speed(p, tokens);
    ravel_status status = ravel_puller_poll(p->puller, &state, err);
    if (!status && state == RAVEL_PULL_NEWER && train__now() >= p->stage_after)
        status = ravel_puller_stage(p->puller, 0, err);
    if (status) return stage_failed(p, status, err);
    if (state == RAVEL_PULL_READY && may_commit(p, idle)) return commit(p, err);
    return RAVEL_OK;
}

train_pulled_stats train_pulled_counts(const train_pulled *p) {
    return p->stats;
}
