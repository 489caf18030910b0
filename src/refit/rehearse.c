/* A pull without trainers: the directory and the plan alone. */
#include "refit/pull_plan.h"
#include "refit/session.h"

#include "base/clock.h"

#include <ravel/publish.h>

#include <string.h>

static double seconds_since(int64_t began) {
    return (double)(ravel__clock_ns() - began) * 1e-9;
}

/* One trainer's manifest into the directory; only reading it is measured. */
static ravel_status add_trainer(ravel__directory_builder *b, int32_t rank, const ravel_refit_source *source,
                                ravel__differences *list, double *seconds, ravel_error *err) {
    const ravel_allocator *allocator = b->arena.allocator;
    ravel__arena arena;
    ravel__holding holding = {0};
    ravel__arena_init(&arena, allocator, 4096);
    ravel_status status = ravel__holding_make(source->tensors, source->count, source->rules, source->rule_count, 0,
                                              "source", &arena, &holding, err);
    size_t size = status == RAVEL_OK ? ravel__manifest_bytes(&holding) : 0;
    unsigned char *manifest = ravel__alloc(allocator, size);
    if (status == RAVEL_OK && !manifest) status = ravel__no_memory(err, size, "a manifest");
    if (status == RAVEL_OK) {
        ravel__manifest_encode(&holding, RAVEL__SOURCE, manifest);
        int64_t began = ravel__clock_ns();
        status = ravel__directory_add(b, rank, manifest, size, list, err);
        *seconds += seconds_since(began);
    }
    ravel__release(allocator, manifest, size);
    ravel__holding_free(&holding, allocator);
    ravel__arena_free(&arena);
    return status;
}

static ravel_status make_directory(int32_t trainers, const ravel_refit_source *(*source)(void *user, int32_t rank),
                                   void *user, const ravel_allocator *allocator, unsigned char **bytes, size_t *size,
                                   double *seconds, ravel_error *err) {
    ravel__directory_builder b;
    ravel__differences list;
    ravel_status status = RAVEL_OK;
    const char **addresses = ravel__calloc(allocator, (size_t)trainers, sizeof *addresses);
    uint64_t *machines = ravel__calloc(allocator, (size_t)trainers, sizeof *machines);
    if (!addresses || !machines) status = ravel__no_memory(err, (size_t)trainers * 16, "the trainers");
    ravel__directory_begin(&b, allocator);
    ravel__differences_init(&list, NULL);
    for (int32_t r = 0; r < trainers && status == RAVEL_OK; r++) {
        const ravel_refit_source *s = source(user, r);
        addresses[r] = "rehearsal:0";
        machines[r] = (uint64_t)r + 1;
        status = s ? add_trainer(&b, r, s, &list, seconds, err)
                   : ravel_error_set(err, RAVEL_E_CALLBACK, "there is no source of trainer rank %d", r);
    }
    if (status == RAVEL_OK) status = ravel__differences_end(&list, err);
    int64_t began = ravel__clock_ns();
    if (status == RAVEL_OK) status = ravel__directory_encode(&b, trainers, addresses, machines, bytes, size, err);
    *seconds += seconds_since(began);
    ravel__directory_end(&b);
    ravel__release(allocator, addresses, (size_t)trainers * sizeof *addresses);
    ravel__release(allocator, machines, (size_t)trainers * sizeof *machines);
    return status;
}

static void add_up(const ravel__pull_plan *plan, ravel_pull_rehearsal *r) {
    r->bytes = plan->bytes;
    r->slices = plan->want_count;
    for (int32_t s = 0; s < plan->senders; s++) {
        int64_t bytes = 0;
        for (int64_t w = plan->first_want[s]; w < plan->first_want[s + 1]; w++)
            bytes += ravel__want_bytes(plan, &plan->wants[w]);
        r->senders += bytes > 0;
        if (bytes > r->most_bytes) r->most_bytes = bytes;
    }
}

static ravel_status plan_sink(const unsigned char *bytes, size_t size, const ravel_refit_sink *sink,
                              const ravel_pull_options *o, ravel_pull_rehearsal *r, ravel_error *err) {
    ravel__pull_place place = {.cast = o->cast};
    ravel__arena arena;
    ravel__holding holding = {0};
    ravel__directory directory;
    ravel__differences list;
    ravel__pull_plan plan;
    ravel__arena_init(&arena, o->allocator, 4096);
    ravel__differences_init(&list, o->logger);
    ravel_status status = ravel__holding_make(sink->tensors, sink->count, sink->rules, sink->rule_count, 1, "sink",
                                              &arena, &holding, err);
    int64_t began = ravel__clock_ns();
    if (status == RAVEL_OK) status = ravel__directory_decode(bytes, size, o->allocator, &directory, err);
    if (status == RAVEL_OK) {
        status = ravel__pull_plan_make(&directory, &holding, &place, o->allocator, &plan, &list, err);
        r->plan_seconds = seconds_since(began);
        if (status == RAVEL_OK) {
            add_up(&plan, r);
            ravel__pull_plan_free(&plan);
            status = ravel__differences_end(&list, err);
        }
        ravel__directory_free(&directory);
    }
    ravel__holding_free(&holding, o->allocator);
    ravel__arena_free(&arena);
    return status;
}

ravel_status ravel_pull_rehearse(int32_t trainers, const ravel_refit_source *(*source)(void *user, int32_t rank),
                                 void *user, const ravel_refit_sink *sink, const ravel_pull_options *options,
                                 ravel_pull_rehearsal *result, ravel_error *err) {
    ravel_pull_options o;
    ravel_pull_rehearsal r = {0};
    unsigned char *bytes = NULL;
    size_t size = 0;
    ravel_pull_options_default(&o);
    if (trainers < 1 || !source || !sink || !result || result->size < sizeof result->size)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a rehearsal needs trainers, their sources, a sink and a result");
    ravel_status status = options ? ravel__struct_take(&o, sizeof o, options, options->size, "options", err) : RAVEL_OK;
    if (status == RAVEL_OK)
        status = make_directory(trainers, source, user, o.allocator, &bytes, &size, &r.directory_seconds, err);
    if (status == RAVEL_OK) status = plan_sink(bytes, size, sink, &o, &r, err);
    ravel__release(o.allocator, bytes, size);
    if (status != RAVEL_OK) return status;
    r.size = result->size;
    r.directory_bytes = (int64_t)size;
    memcpy(result, &r, result->size < sizeof r ? result->size : sizeof r);
    return RAVEL_OK;
}
