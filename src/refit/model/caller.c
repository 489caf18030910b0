#include "refit/model/caller.h"

#include "base/clock.h"
#include "base/rng.h"
#include "comm/machine.h"

#include <string.h>
#include <sys/random.h>
#include <unistd.h>

ravel_status ravel__struct_take(void *to, size_t bytes, const void *from, size_t size, const char *what,
                                ravel_error *err) {
    if (size < sizeof size || size > 65536)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s.size is %zu; set it to sizeof the struct", what, size);
    memcpy(to, from, size < bytes ? size : bytes);
    return RAVEL_OK;
}

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

ravel_status ravel__source_check(const ravel_refit_source *source, const ravel__holding *holding, ravel_error *err) {
    const ravel_refit_tensor *t = source->iterate ? NULL : ravel__holding_without_data(holding, source->tensors);
    if (!t) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT, "source tensor \"%s\" has no data, and the source no iterate",
                           t->name);
}
