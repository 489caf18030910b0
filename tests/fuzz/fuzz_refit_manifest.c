/* The manifest and hello decoders on any bytes, as they are and with the right checksum put in. What is accepted goes
 * on into a directory of two senders, which may not take more memory than a fixed multiple of the input. */
#include "refit/model/bytes.h"
#include "base/xxh3.h"
#include "refit/model/directory.h"
#include "refit/session/hello.h"

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

/* Two senders with the same manifest. */
static void build(unsigned char *bytes, size_t size) {
    meter m = {0, 64 * size + (1 << 19)};
    ravel_allocator allocator = {metered, &m};
    static const char *const addresses[] = {"", "x"};
    static const uint64_t machines[] = {1, 2};
    ravel__directory_builder b;
    ravel__differences list;
    ravel__directory directory;
    unsigned char *coded = NULL;
    size_t coded_bytes = 0;
    ravel__xxh3 state;
    ravel__put16(bytes + 6, RAVEL__SOURCE);
    ravel__xxh3_begin(&state);
    ravel__xxh3_add(&state, bytes, 24);
    ravel__xxh3_add(&state, bytes + RAVEL__MANIFEST_HEADER, size - RAVEL__MANIFEST_HEADER);
    ravel__put64(bytes + 24, ravel__xxh3_end(&state));
    walk(bytes, size);
    ravel__differences_init(&list, NULL);
    ravel__directory_begin(&b, &allocator);
    ravel_status status = RAVEL_OK;
    for (int32_t sender = 0; sender < 2 && status == RAVEL_OK; sender++)
        status = ravel__directory_add(&b, sender, bytes, size, &list, NULL);
    if (status == RAVEL_OK) status = ravel__directory_encode(&b, 2, addresses, machines, &coded, &coded_bytes, NULL);
    ravel__directory_end(&b);
    if (status == RAVEL_OK && ravel__directory_decode(coded, coded_bytes, &allocator, &directory, NULL) == RAVEL_OK)
        ravel__directory_free(&directory);
    ravel__release(&allocator, coded, coded_bytes);
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
        build(copy, bytes);
    }
    free(copy);
    return 0;
}
