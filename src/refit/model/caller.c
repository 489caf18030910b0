#include "refit/model/caller.h"

#include "base/system/clock.h"
#include "base/rng.h"
#include "comm/machine.h"

#include <string.h>
#include <sys/random.h>
#include <unistd.h>

static void *counted_resize(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    ravel__counted *c = user;
    void *result = ravel__resize(c->inner, ptr, old_bytes, new_bytes);
    if (!result && new_bytes > 0) return NULL;
    int64_t change = (int64_t)new_bytes - (int64_t)old_bytes;
    int64_t live = atomic_fetch_add(&c->live, change) + change, peak = atomic_load(&c->peak);
    while (live > peak && !atomic_compare_exchange_weak(&c->peak, &peak, live)) {}
    return result;
}

void ravel__counted_init(ravel__counted *counted, const ravel_allocator *inner) {
    counted->allocator = (ravel_allocator){counted_resize, counted};
    counted->inner = inner;
    atomic_init(&counted->live, 0);
    atomic_init(&counted->peak, 0);
}

uint64_t ravel__fresh_nonce(void) {
    uint64_t x = 0;
    if (getrandom(&x, sizeof x, GRND_NONBLOCK) != (ssize_t)sizeof x)
        x = ravel__mix64((uint64_t)ravel__clock_ns() ^ (uint64_t)getpid() << 40) ^ ravel__machine_number();
    return x ? x : 1;
}

/* A source or sink of the caller, which begins with its size and may be older, and so shorter, than this library's. */
static ravel_status take_struct(void *to, size_t bytes, const void *from, const char *what, ravel_error *err) {
    size_t size;
    memcpy(&size, from, sizeof size);
    if (size < sizeof size || size > 4096)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s.size is %zu; set it to sizeof the struct", what, size);
    memcpy(to, from, size < bytes ? size : bytes);
    memcpy(to, &bytes, sizeof bytes);
    return RAVEL_OK;
}

ravel_status ravel__source_take(const ravel_refit_source *from, ravel_refit_source *s, ravel__arena *arena,
                                ravel__holding *holding, ravel_error *err) {
    ravel_status status = take_struct(s, sizeof *s, from, "source", err);
    if (status == RAVEL_OK)
        status = ravel__holding_make(s->tensors, s->count, s->rules, s->rule_count, 0, "source", arena, holding, err);
    const ravel_refit_tensor *t =
        status != RAVEL_OK || s->iterate ? NULL : ravel__holding_without_data(holding, s->tensors);
    if (!t) return status;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "source tensor \"%s\" has no data, and the source no iterate",
                           t->name);
}

ravel_status ravel__sink_take(const ravel_refit_sink *from, ravel_refit_sink *s, ravel__arena *arena,
                              ravel__holding *holding, ravel_error *err) {
    ravel_status status = take_struct(s, sizeof *s, from, "sink", err);
    if (status != RAVEL_OK) return status;
    return ravel__holding_make(s->tensors, s->count, s->rules, s->rule_count, s->load != NULL, "sink", arena, holding,
                               err);
}
