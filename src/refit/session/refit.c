/* Creating, connecting and freeing a session, and its getters. */
#include "refit/session/session.h"

#include "base/system/clock.h"
#include "base/rng.h"
#include "comm/machine.h"
#include "base/xxh3.h"
#include "base/options.h"

#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* ---- create --------------------------------------------------------------------------------------------- */

static ravel_status prepare(ravel_refit *refit, const ravel_refit_source *source, const ravel_refit_sink *sink,
                            const ravel_refit_options *options, ravel_error *err) {
    ravel_status status = ravel__options_take(options, &refit->options, err);
    if (status == RAVEL_OK && source)
        status = ravel__source_take(source, &refit->source_copy, &refit->arena, &refit->source_holding, err);
    refit->source = source ? &refit->source_copy : NULL;
    if (status == RAVEL_OK && sink)
        status = ravel__sink_take(sink, &refit->sink_copy, &refit->arena, &refit->sink_holding, err);
    refit->sink = sink ? &refit->sink_copy : NULL;
    if (status == RAVEL_OK)
        status = ravel__stage_init(&refit->stage, refit->sink, &refit->sink_holding, &refit->options,
                                   &refit->stage_memory.allocator, err);
    if (status == RAVEL_OK && refit->options.trace) {
        refit->trace.events = ravel__alloc(&refit->memory.allocator, RAVEL__TRACE_EVENTS * sizeof *refit->trace.events);
        if (!refit->trace.events)
            status = ravel__no_memory(err, RAVEL__TRACE_EVENTS * sizeof *refit->trace.events, "the trace");
    }
    return status;
}

ravel_status ravel__refit_create_over(ravel_comm *comm, const ravel_refit_source *source, const ravel_refit_sink *sink,
                                      const ravel_refit_options *options, const ravel__transport *transport,
                                      ravel_refit **refit, ravel_error *err) {
    ravel_error own = RAVEL_ERROR_INIT;
    ravel_refit_options o; /* for the allocator, which is needed before an error can be reported to the ranks */
    const ravel_allocator *allocator = ravel__options_take(options, &o, NULL) == RAVEL_OK ? o.allocator : NULL;
    if (!comm) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a refit needs a communicator");
    ravel_refit *r = ravel__calloc(allocator, 1, sizeof *r);
    if (!r) {
        ravel__no_memory(&own, sizeof *r, "a refit");
        ravel_comm_abort(comm, &own);
        return ravel_error_set(err, RAVEL_E_MEMORY, "%s", own.message);
    }
    ravel__counted_init(&r->memory, allocator);
    ravel__counted_init(&r->stage_memory, allocator);
    ravel__arena_init(&r->arena, &r->memory.allocator, 4096);
    r->transport = transport;
    r->host = ravel__machine_number();
    ravel_status status = prepare(r, source, sink, options, &own);
    status = ravel__refit_connect(r, comm, status, &own);
    if (status != RAVEL_OK) {
        ravel_error_set(err, status, "%s", own.message);
        ravel_refit_free(r);
        return status;
    }
    *refit = r;
    return RAVEL_OK;
}

ravel_status ravel_refit_create(ravel_comm *comm, const ravel_refit_source *source, const ravel_refit_sink *sink,
                                const ravel_refit_options *options, ravel_refit **refit, ravel_error *err) {
    return ravel__refit_create_over(comm, source, sink, options, NULL, refit, err);
}

ravel_status ravel_refit_connect(ravel_refit *refit, ravel_comm *comm, ravel_error *err) {
    ravel_error own = RAVEL_ERROR_INIT;
    ravel_status status = ravel__refit_connect(refit, comm, RAVEL_OK, &own);
    if (status != RAVEL_OK) ravel_error_set(err, status, "%s", own.message);
    return status;
}

void ravel_refit_free(ravel_refit *refit) {
    if (!refit) return;
    const ravel_allocator *allocator = refit->memory.inner, *own = &refit->memory.allocator;
    ravel__refit_disconnect(refit);
    ravel__refit_free_buffers(refit);
    ravel__deltas_forget(refit);
    ravel__stage_free(&refit->stage);
    ravel__release(own, refit->trace.events, RAVEL__TRACE_EVENTS * sizeof *refit->trace.events);
    ravel__holding_free(&refit->source_holding, own);
    ravel__holding_free(&refit->sink_holding, own);
    ravel__arena_free(&refit->arena);
    ravel__release(allocator, refit, sizeof *refit);
}

ravel_status ravel_refit_run(ravel_comm *comm, const ravel_refit_source *source, const ravel_refit_sink *sink,
                             const ravel_refit_options *options, int64_t version, ravel_refit_report *report,
                             ravel_error *err) {
    ravel_refit_options o;
    ravel_refit *refit = NULL;
    int fine = ravel__options_take(options, &o, NULL) == RAVEL_OK;
    o.stage = RAVEL_REFIT_UNDO; /* so that everything ends up in data */
    ravel_status status = ravel_refit_create(comm, source, sink, fine ? &o : options, &refit, err);
    if (status == RAVEL_OK) status = ravel_refit_update(refit, version, report, err);
    ravel_refit_free(refit);
    return status;
}

/* ---- small calls ---------------------------------------------------------------------------------------- */

int64_t ravel_refit_version(const ravel_refit *refit) {
    return refit->sink ? refit->stage.held.version : refit->sent.version;
}

void *ravel_refit_data(const ravel_refit *refit, int64_t index) {
    return ravel__stage_data(&refit->stage, index);
}

int ravel_refit_lost(const ravel_refit *refit) {
    return refit->comm == NULL;
}

ravel_status ravel_refit_audit(const ravel_refit *refit, ravel_error *err) {
    return ravel__stage_audit(&refit->stage, err);
}
