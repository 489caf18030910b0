#include "device/handle.h"

#include "base/assert.h"

const char *ravel__memory_name(int32_t kind) {
    static const char *const names[RAVEL__KINDS] = {"host", "pinned", "device"};
    _Static_assert(RAVEL__KINDS == RAVEL_DEVICE + 1, "a name and a list per kind of memory");
    return kind >= 0 && kind < RAVEL__KINDS ? names[kind] : "unknown";
}

ravel_status ravel__place_check(const ravel_place *place, uint32_t kinds, const char *what, ravel_error *err) {
    RAVEL_ASSERT(kinds != 0 && (kinds & ~RAVEL__ALL_KINDS) == 0 && what);
    if (place->kind < RAVEL_HOST || place->kind > RAVEL_DEVICE)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "%s: memory kind %d is none of " RAVEL_MEMORY_CHOICES, what,
                               place->kind);
    if (place->kind == RAVEL_DEVICE && !place->stream)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "%s is in device memory; place.stream must say which device and when it is ready", what);
    if (!(kinds >> place->kind & 1))
        return ravel_error_set(err, RAVEL_E_UNSUPPORTED, "%s is in %s memory, which cannot be used here", what,
                               ravel__memory_name(place->kind));
    return RAVEL_OK;
}
