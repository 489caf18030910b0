/* The list of sinks: adding, writing, reporting a failure once. */
#include "metrics/sink.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"

#include <stdio.h>

static const ravel__sink_type *const types[RAVEL_SINKS] = {
    [RAVEL_SINK_LOG] = &ravel__sink_log,
    [RAVEL_SINK_PROGRESS] = &ravel__sink_progress,
    [RAVEL_SINK_JSONL] = &ravel__sink_jsonl,
    [RAVEL_SINK_CSV] = &ravel__sink_csv,
    [RAVEL_SINK_TENSORBOARD] = &ravel__sink_tensorboard,
    [RAVEL_SINK_PROMETHEUS] = &ravel__sink_prometheus,
    [RAVEL_SINK_HTTP] = &ravel__sink_http,
    [RAVEL_SINK_TRACE] = &ravel__sink_trace,
};

static const char *const words[RAVEL_SINKS] = {
#define X(id, word, target, sentence) word,
    RAVEL_SINK_LIST(X)
#undef X
};

#define X(id, word, target, sentence) word " "
static const char word_list[] = RAVEL_SINK_LIST(X);
#undef X

static const ravel__sink_type *find_type(const char *spec, size_t length) {
    for (int i = 0; i < RAVEL_SINKS; i++)
        if (strlen(words[i]) == length && memcmp(words[i], spec, length) == 0) return types[i];
    return NULL;
}

static void free_sink(ravel__sink *sink) {
    RAVEL_ASSERT(sink->type && sink->metrics);
    const ravel_allocator *a = sink->metrics->options.allocator;
    sink->type->close(sink);
    ravel__release(a, sink->text, sink->text_room);
    ravel__release(a, sink->target, sink->target_bytes);
    ravel__release(a, sink, sink->type->bytes);
}

ravel_status ravel__sink_room(ravel__sink *sink, size_t bytes, ravel_error *err) {
    RAVEL_ASSERT(!sink->text && bytes > 0);
    sink->text = ravel__alloc(sink->metrics->options.allocator, bytes);
    if (!sink->text) return ravel__no_memory(err, bytes, "the text of a sink");
    sink->text_room = bytes;
    return RAVEL_OK;
}

static ravel_status open_sink(ravel_metrics *m, const ravel__sink_type *type, const char *target, int64_t every,
                              ravel_error *err) {
    RAVEL_ASSERT(m->sink_count >= 0 && m->sink_count < RAVEL__SINKS_MAX && every >= 1 &&
                 type->bytes >= sizeof(ravel__sink));
    const ravel_allocator *a = m->options.allocator;
    size_t bytes = strlen(target) + 1;
    ravel__sink *sink = ravel__calloc(a, 1, type->bytes);
    char *copy = ravel__alloc(a, bytes);
    if (!sink || !copy) {
        ravel__release(a, sink, type->bytes);
        ravel__release(a, copy, bytes);
        return ravel__no_memory(err, type->bytes + bytes, "a sink");
    }
    sink->type = type;
    sink->metrics = m;
    sink->every = every;
    sink->target = memcpy(copy, target, bytes);
    sink->target_bytes = bytes;
    ravel_status status = type->open(sink, sink->target, err);
    if (status) {
        ravel_error_prefix(err, "sink %s", type->word);
        free_sink(sink);
        return status;
    }
    m->sinks[m->sink_count++] = sink;
    return RAVEL_OK;
}

ravel_status ravel_metrics_sink_every(ravel_metrics *m, const char *spec, int64_t every, ravel_error *err) {
    size_t length = strcspn(spec, ":");
    const ravel__sink_type *type = find_type(spec, length);
    if (!type) {
        char word[64];
        (void)snprintf(word, sizeof word, "%.*s", (int)(length < 60 ? length : 60), spec);
        const char *near = ravel__suggest(word, words, RAVEL_SINKS);
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "there is no sink \"%s\"%s%s%s; a sink is KIND:TARGET, kinds are %s", word,
                               near ? "; did you mean \"" : "", near ? near : "", near ? "\"?" : "", word_list);
    }
    if (every < 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "sink %s: every %lld updates; it must be at least 1", type->word,
                               (long long)every);
    if (m->sink_count == RAVEL__SINKS_MAX)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "there are %d sinks already, the maximum", RAVEL__SINKS_MAX);
    if (!type->every_rank && m->reducer.rank != 0) return RAVEL_OK;
    return open_sink(m, type, spec[length] ? spec + length + 1 : "", every, err);
}

ravel_status ravel_metrics_sink(ravel_metrics *m, const char *spec, ravel_error *err) {
    return ravel_metrics_sink_every(m, spec, 1, err);
}

/* Only the first failure and the first recovery are logged, so a sink that fails repeatedly does not fill the log. */
static void note(ravel__sink *sink, ravel_status status, const ravel_error *err) {
    ravel_metrics *m = sink->metrics;
    const ravel_logger *logger = m->options.logger;
    int failing = status != RAVEL_OK;
    sink->lost += failing;
    if (failing == sink->failing) return;
    sink->failing = failing;
    m->sinks_failed += failing ? 1 : -1;
    RAVEL_ASSERT(m->sinks_failed >= 0 && m->sinks_failed <= m->sink_count);
    if (failing && sink->reported == 0)
        ravel__log(logger, RAVEL_LOG_WARN, "metrics sink %s:%s: %s; training goes on without it", sink->type->word,
                   sink->target, err->message);
    if (!failing && sink->reported == 1)
        ravel__log(logger, RAVEL_LOG_INFO, "metrics sink %s:%s works again; %lld updates were not written",
                   sink->type->word, sink->target, (long long)sink->lost);
    sink->reported++;
}

void ravel__sinks_write(ravel_metrics *m) {
    for (int32_t i = 0; i < m->sink_count; i++) {
        ravel__sink *sink = m->sinks[i];
        RAVEL_ASSERT(sink->metrics == m && sink->every >= 1);
        if (m->next.step % sink->every != 0) continue;
        ravel_error err = RAVEL_ERROR_INIT;
        note(sink, sink->type->write(sink, &m->next, &err), &err);
    }
}

void ravel__sinks_close(ravel_metrics *m) {
    while (m->sink_count > 0) free_sink(m->sinks[--m->sink_count]);
}

int32_t ravel_metrics_sinks_failed(const ravel_metrics *m) {
    return m->sinks_failed;
}

int32_t ravel_metrics_http_port(const ravel_metrics *m) {
    for (int32_t i = 0; i < m->sink_count; i++)
        if (m->sinks[i]->type == &ravel__sink_http) return ravel__http_sink_port(m->sinks[i]);
    return 0;
}

void ravel__put_value(ravel__text *t, const ravel_metrics *m, const ravel__snapshot *u, int32_t id) {
    RAVEL_ASSERT(id >= 0 && id < m->rows && u->values[id].present);
    if (m->row[id].kind == RAVEL_KIND_COUNTER)
        ravel__text_integer(t, u->values[id].integer);
    else
        ravel__text_real(t, u->values[id].real);
}
