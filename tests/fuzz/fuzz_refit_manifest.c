/* The manifest and hello decoders on any bytes, as they are and with the right checksum put in. What is accepted goes on
 * into a catalog and a plan, with the same manifest on both sides: neither may take more memory than a fixed multiple of
 * the input, or lose its way. */
#include "refit/bytes.h"
#include "base/xxh3.h"
#include "refit/plan.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* malloc that adds up and gives up. */
typedef struct meter {
    size_t live, most;
} meter;

static void *metered(void *user, void *ptr, size_t old_bytes, size_t new_bytes) {
    meter *m = user;
    if (m->live - old_bytes + new_bytes > m->most) abort();
    m->live = m->live - old_bytes + new_bytes;
    if (new_bytes) return realloc(ptr, new_bytes);
    free(ptr);
    return NULL;
}

static void walk(const unsigned char *bytes, size_t size) {
    ravel__manifest_reader reader;
    ravel__entry entry;
    ravel_status status = ravel__manifest_open(bytes, size, &reader, NULL);
    int64_t count = 0;
    if (status != RAVEL_OK) return;
    while ((status = ravel__manifest_next(&reader, &entry, NULL)) == RAVEL_OK) {
        if (memchr(entry.name, '\0', sizeof entry.name) == NULL || entry.ndim > RAVEL_REFIT_DIMS) abort();
        for (int32_t d = 0; d < entry.ndim; d++)
            if (entry.box.start[d] + entry.box.extent[d] > entry.dims[d]) abort();
        count++;
    }
    if (status == RAVEL_E_END && count != reader.count) abort();
}

/* One sender and one receiver with the same manifest (but for its side). */
static void plan(unsigned char *bytes, size_t size) {
    meter m = {0, 64 * size + (1 << 16)};
    ravel_allocator allocator = {metered, &m};
    ravel__hello hellos[2] = {{.roles = RAVEL__SOURCE}, {.roles = RAVEL__SINK}};
    ravel__differences list;
    ravel__catalog catalog;
    ravel__refit_plan made;
    hellos[0].manifest_bytes[0] = hellos[1].manifest_bytes[1] = (int64_t)size;
    ravel__differences_init(&list, NULL);
    if (ravel__catalog_init(&catalog, hellos, 2, &allocator, NULL) != RAVEL_OK) abort();
    ravel_status status = RAVEL_OK;
    for (int32_t party = 0; party < 2 && status == RAVEL_OK; party++) {
        ravel__xxh3 state;
        ravel__put16(bytes + 6, (uint16_t)(party ? RAVEL__SINK : RAVEL__SOURCE));
        ravel__xxh3_begin(&state);
        ravel__xxh3_add(&state, bytes, 24);
        ravel__xxh3_add(&state, bytes + RAVEL__MANIFEST_HEADER, size - RAVEL__MANIFEST_HEADER);
        ravel__put64(bytes + 24, ravel__xxh3_end(&state));
        walk(bytes, size);
        status = ravel__catalog_add(&catalog, party, bytes, size, &list, NULL);
    }
    if (status == RAVEL_OK) {
        ravel__catalog_check(&catalog, &list);
        status = ravel__refit_plan_make(&catalog, 2, NULL, NULL, 4096, &allocator, &made, &list, NULL);
        if (status == RAVEL_OK) ravel__refit_plan_free(&made);
    }
    ravel__catalog_free(&catalog);
    if (m.live != 0) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    unsigned char *copy = calloc(1, bytes ? bytes : 1);
    if (!copy) return 0;
    if (bytes > 0) memcpy(copy, data, bytes);
    walk(copy, bytes);
    if (bytes >= RAVEL__HELLO_BYTES) {
        ravel__hello hello;
        (void)ravel__hello_decode(copy, &hello, NULL);
    }
    if (bytes >= RAVEL__MANIFEST_HEADER) {
        memcpy(copy, "RVLM", 4);
        ravel__put16(copy + 4, RAVEL__MANIFEST_FORMAT);
        ravel__put64(copy + 16, bytes);
        plan(copy, bytes);
    }
    free(copy);
    return 0;
}
