/* The bytes on the wire are those of docs/refit-wire.md: what the encoders write is read here at the page's offsets, by
 * plain arithmetic, so that writer and reader cannot change together unnoticed. */
#include "tests/unit/check.h"

#include "base/xxh3.h"
#include "refit/wire/block.h"
#include "refit/wire/frame.h"
#include "refit/session/hello.h"
#include "refit/model/directory.h"

#include <stdlib.h>

static uint64_t at(const unsigned char *p, size_t offset, size_t bytes) {
    uint64_t x = 0;
    for (size_t i = bytes; i-- > 0;) x = x << 8 | p[offset + i];
    return x;
}

TEST(refit_wire_hello) {
    ravel__hello h = {.roles = 2, .sequential = 1, .cast = 11, .delta = 12, .ignore_extra = 13, .reads_live = 14};
    h.settings = (ravel__settings){5, 6, 0x1122334455667788, 18, 19};
    h.manifest_bytes[0] = 20, h.manifest_bytes[1] = 21, h.digest[0] = 22, h.digest[1] = 23;
    h.held = (ravel_refit_identity){24, 25, 26}, h.prepared = (ravel_refit_identity){27, 28, 29}, h.host = 30;
    ravel__hello_seal(&h);
    const unsigned char *b = (const unsigned char *)&h;
    CHECK(sizeof h == 160 && at(b, 0, 8) == ravel__xxh3_of(b + 8, 152) && memcmp(b + 8, "RVLH", 4) == 0);
    CHECK(at(b, 12, 4) == 5 && at(b, 16, 4) == 2 && at(b, 20, 4) == 1);
    for (size_t i = 0; i < 4; i++) CHECK_EQ(at(b, 24 + 4 * i, 4), 11 + i);
    CHECK(at(b, 40, 4) == 5 && at(b, 44, 4) == 6 && at(b, 48, 8) == 0x1122334455667788);
    for (size_t i = 0; i < 13; i++) CHECK_EQ(at(b, 56 + 8 * i, 8), 18 + i);
}

TEST(refit_wire_manifest) {
    ravel_refit_tensor t = {.name = "ab", .dtype = RAVEL_BF16, .ndim = 2, .dims = {10, 8}, .parts = {5}, .index = {2}};
    ravel__arena arena;
    ravel__holding h = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    unsigned char *b = NULL;
    size_t size = 0;
    ravel__arena_init(&arena, NULL, 1024);
    CHECK_OK(ravel__holding_make(&t, 1, NULL, 0, 1, "sink", &arena, &h, &err), &err);
    CHECK_OK(ravel__manifest_make(&h, -1, NULL, &b, &size, &err), &err);
    CHECK_EQ(size, 48 + 10 + (8 + 16 + 4 + 32) + (8 + 2));
    CHECK(memcmp(b, "RVLD", 4) == 0 && at(b, 4, 2) == 3 && at(b, 8, 4) == 1 && at(b, 16, 8) == 1 && at(b, 24, 8) == 1);
    CHECK(at(b, 32, 8) == size && at(b, 48, 8) == 0 && at(b, 56, 2) == 0);
    CHECK(at(b, 58, 4) == 2 && at(b, 62, 4) == 1 && at(b, 66, 8) == 10 && at(b, 74, 8) == 8 && at(b, 82, 4) == 0);
    CHECK(at(b, 86, 8) == 4 && at(b, 94, 8) == 0 && at(b, 102, 8) == 2 && at(b, 110, 8) == 8);
    CHECK(at(b, 118, 4) == 0 && at(b, 122, 2) == RAVEL_BF16 && at(b, 124, 2) == 2 && memcmp(b + 126, "ab", 2) == 0);
    free(b);
    ravel__holding_free(&h, NULL);
    ravel__arena_free(&arena);
}

TEST(refit_wire_frame) {
    unsigned char *b = aligned_alloc(256, 512);
    CHECK(b);
    ravel__frame *f = (ravel__frame *)(void *)b;
    *f = (ravel__frame){.flags = 3, .window = 5, .sequence = 6, .version = 7, .sender = 8, .entries = 2, .bytes = 512};
    f->entry[0] = (ravel__frame_entry){RAVEL__BLOCK_DATA, 12, 75, 300, 14};
    f->entry[1] = (ravel__frame_entry){RAVEL__BLOCK_KEEP, 22, 23, 0, 0};
    ravel__frame_seal(f, 512);
    CHECK_EQ(at(b, 0, 8), ravel__xxh3_of(b + 8, 56));
    CHECK(memcmp(b + 8, "RVLF", 4) == 0 && at(b, 12, 4) == 2 && at(b, 16, 4) == 3 && at(b, 20, 4) == 5);
    CHECK(at(b, 24, 8) == 6 && at(b, 32, 8) == 7 && at(b, 40, 4) == 8 && at(b, 44, 4) == 2 && at(b, 48, 8) == 512);
    CHECK_EQ(at(b, 56, 8), ravel__xxh3_of(b + 64, 448));
    const unsigned char *one = b + 64, *two = b + 96;
    CHECK(at(one, 0, 4) == 0 && at(one, 4, 4) == 12 && at(one, 8, 8) == 75);
    CHECK(at(one, 16, 8) == 300 && at(one, 24, 8) == 14);
    CHECK(at(two, 0, 4) == 1 && at(two, 4, 4) == 22 && at(two, 8, 8) == 23 && at(two, 16, 8) == 0);
    for (size_t i = 128; i < 512; i++) CHECK_EQ(b[i], 0);
    CHECK(ravel__frame_head_bytes(4096) == 512 && ravel__frame_head_bytes(1 << 20) == 4096);
    CHECK(ravel__frame_head_bytes(64 << 20) == 16384);
    free(b);
}
