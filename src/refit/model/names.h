/* A map from names to numbers: open addressing over strings that live elsewhere. */
#ifndef RAVEL_REFIT_NAMES_H
#define RAVEL_REFIT_NAMES_H

#include "base/memory.h"

typedef struct ravel__names {
    const ravel_allocator *allocator;
    const char **keys; /* [slots], NULL: free; not owned */
    int64_t *values;   /* [slots] */
    size_t slots;      /* a power of two, or 0 */
    size_t used;
} ravel__names;

void ravel__names_init(ravel__names *names, const ravel_allocator *allocator);
void ravel__names_free(ravel__names *names);
/* The value of `key`, or -1. */
int64_t ravel__names_find(const ravel__names *names, const char *key);
/* Adds a key that is not there yet; 0 when memory is short. The string must stay. */
int ravel__names_add(ravel__names *names, const char *key, int64_t value);

#endif
