/* The manifest and hello decoders on any bytes, as they are and with the right checksum put in. What is accepted goes
 * on into a directory of two senders, which may not take more memory than a fixed multiple of the input. */
#include "base/bytes.h"
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

/* Two senders with the same manifest. */
static void build(unsigned char *bytes, size_t size) {
    meter m = {0, 64 * size + (1 << 19)};
    ravel_allocator allocator = {metered, &m};
    static const ravel__sender senders[] = {{1, 0, 0, 0, ""}, {2, 0, 0, 0, "x"}};
    ravel__directory_builder b;
    ravel__differences list;
    ravel__directory directory;
    unsigned char *coded = NULL;
    size_t coded_bytes = 0;
    ravel__xxh3 state;
    ravel__xxh3_begin(&state);
    ravel__xxh3_add(&state, bytes, 40);
    ravel__xxh3_add(&state, bytes + RAVEL__DIRECTORY_HEADER, size - RAVEL__DIRECTORY_HEADER);
    ravel__put64(bytes + 40, ravel__xxh3_end(&state));
    ravel__differences_init(&list, NULL);
    ravel__directory_begin(&b, &allocator);
    ravel_status status = RAVEL_OK;
    for (int32_t sender = 0; sender < 2 && status == RAVEL_OK; sender++)
        status = ravel__directory_add(&b, sender, bytes, size, &list, NULL);
    if (status == RAVEL_OK) status = ravel__directory_encode(&b, senders, 2, &coded, &coded_bytes, NULL);
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
    ravel__hello hello;
    if (bytes >= sizeof hello) {
        memcpy(&hello, copy, sizeof hello);
        (void)ravel__hello_check(&hello, NULL);
        ravel__hello_seal(&hello);
        (void)ravel__hello_check(&hello, NULL);
    }
    if (bytes >= RAVEL__DIRECTORY_HEADER) {
        memcpy(copy, "RVLD", 4);
        ravel__put16(copy + 4, RAVEL__DIRECTORY_FORMAT);
        ravel__put64(copy + 32, bytes);
        build(copy, bytes);
    }
    free(copy);
    return 0;
}
