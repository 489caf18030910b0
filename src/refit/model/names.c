#include "refit/model/names.h"

#include "base/assert.h"
#include "base/xxh3.h"

#include <string.h>

void ravel__names_init(ravel__names *names, const ravel_allocator *allocator) {
    memset(names, 0, sizeof *names);
    names->allocator = allocator;
}

void ravel__names_free(ravel__names *names) {
    ravel__release(names->allocator, (void *)names->keys, names->slots * sizeof *names->keys);
    ravel__release(names->allocator, names->values, names->slots * sizeof *names->values);
    ravel__names_init(names, names->allocator);
}

/* The slot that holds the key, or the free one where it belongs. */
static size_t slot_of(const ravel__names *names, const char *key) {
    RAVEL_ASSERT(names->slots > names->used && (names->slots & (names->slots - 1)) == 0);
    size_t i = (size_t)ravel__xxh3_of(key, strlen(key)) & (names->slots - 1);
    while (names->keys[i] && strcmp(names->keys[i], key) != 0) i = (i + 1) & (names->slots - 1);
    return i;
}

int64_t ravel__names_find(const ravel__names *names, const char *key) {
    if (names->slots == 0) return -1;
    size_t i = slot_of(names, key);
    return names->keys[i] ? names->values[i] : -1;
}

static int grow(ravel__names *names) {
    ravel__names larger = {.allocator = names->allocator, .slots = names->slots ? names->slots * 2 : 64};
    larger.keys = ravel__calloc(names->allocator, larger.slots, sizeof *larger.keys);
    larger.values = ravel__calloc(names->allocator, larger.slots, sizeof *larger.values);
    if (!larger.keys || !larger.values) {
        ravel__names_free(&larger);
        return 0;
    }
    for (size_t i = 0; i < names->slots; i++)
        if (names->keys[i]) (void)ravel__names_add(&larger, names->keys[i], names->values[i]);
    ravel__names_free(names);
    *names = larger;
    return 1;
}

int ravel__names_add(ravel__names *names, const char *key, int64_t value) {
    if (2 * (names->used + 1) > names->slots && !grow(names)) return 0;
    size_t i = slot_of(names, key);
    RAVEL_ASSERT(!names->keys[i] && names->used < names->slots);
    names->keys[i] = key;
    names->values[i] = value;
    names->used++;
    return 1;
}
