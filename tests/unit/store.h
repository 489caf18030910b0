/* Random ragged stores for the tests of batches and weights, with a slow and plain reading of what packing means. */
#ifndef TESTS_STORE_H
#define TESTS_STORE_H

#include "base/rng.h"
#include "tests/unit/check.h"

#include <ravel/batch.h>

enum { STORE_FIELDS = 40, STORE_SAMPLES = 200 };

typedef struct store {
    ravel_ragged ragged;
    int64_t offsets[STORE_SAMPLES + 1], prompts[STORE_SAMPLES], lengths[STORE_SAMPLES];
    int32_t everyone[STORE_SAMPLES]; /* 0, 1, 2, ... */
    ravel_field fields[STORE_FIELDS];
    char names[STORE_FIELDS][16];
    unsigned char *data[STORE_FIELDS];
} store;

/* `count` samples of 1 .. longest tokens (1 is frequent), all kinds of fields of random dtype, width, pad and content.
 */
void store_make(store *s, ravel__rng *r, int64_t count, int64_t longest);
void store_free(store *s);

/* Bytes of one position of a field. */
size_t store_each(const ravel_field *field);

/* What must stand at position t (from the sample's first token) of a field when `sample` (-1: nobody) is packed: a
 * pointer to its element, or to `pad`, which receives the pad pattern. */
const unsigned char *store_expect(const store *s, int64_t field, int64_t sample, int64_t t, unsigned char *pad);

/* Whether two arrays of the field's kind over the store are the same, wherever packing carries something. */
bool store_same(const store *s, int64_t field, const unsigned char *a, const unsigned char *b);

#endif
