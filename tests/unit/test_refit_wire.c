/* The bytes on the wire are those of docs/refit-wire.md: what the encoders write is read here at the page's offsets, by
 * plain arithmetic, so that writer and reader cannot change together unnoticed. */
#include "tests/unit/check.h"

#include "refit/wire/frame.h"
#include "refit/session/hello.h"
#include "refit/model/manifest.h"

#include <stdlib.h>

static uint64_t at(const unsigned char *p, size_t offset, size_t bytes) {
    uint64_t x = 0;
    for (size_t i = bytes; i-- > 0;) x = x << 8 | p[offset + i];
    return x;
}

TEST(refit_wire_hello) {
    unsigned char b[RAVEL__HELLO_BYTES];
    ravel__hello h = {.status = 3, .message = "why", .roles = 2, .sequential = 1};
    h.settings = (ravel__settings){4, 2, 0x1122334455667788, 0x2233};
    h.cast = 11, h.delta = 12, h.ignore_extra = 13;
    h.manifest_bytes[0] = 21, h.manifest_bytes[1] = 22, h.digest[0] = 23, h.digest[1] = 24;
    h.held.version = 31, h.prepared.version = 32, h.held.nonce = 33, h.prepared.nonce = 34, h.host = 35;
    h.checksum = RAVEL__CHECKSUM_XXH3;
    ravel__hello_encode(&h, b);
    CHECK(sizeof b == 640 && memcmp(b, "RVLH", 4) == 0);
    CHECK_EQ(at(b, 4, 2), 2);
    CHECK_EQ(at(b, 6, 2), 3);
    CHECK_STR((const char *)b + 16, "why");
    CHECK(at(b, 416, 4) == 2 && at(b, 420, 4) == 1 && at(b, 424, 4) == 4 && at(b, 428, 4) == 2);
    CHECK(at(b, 432, 8) == 0x1122334455667788 && at(b, 440, 8) == 0x2233);
    for (size_t i = 0; i < 3; i++) CHECK_EQ(at(b, 448 + 4 * i, 4), 11 + i);
    for (size_t i = 0; i < 4; i++) CHECK_EQ(at(b, 460 + 8 * i, 8), 21 + i);
    for (size_t i = 0; i < 5; i++) CHECK_EQ(at(b, 492 + 8 * i, 8), 31 + i);
    CHECK_EQ(at(b, 532, 4), 1);
    for (size_t i = 536; i < sizeof b; i++) CHECK_EQ(b[i], 0);
}

TEST(refit_wire_manifest) {
    ravel_refit_tensor t = {.name = "ab", .dtype = RAVEL_BF16, .ndim = 2, .dims = {10, 8}, .parts = {5}, .index = {2}};
    ravel__arena arena;
    ravel__holding h = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    unsigned char b[128] = {0};
    ravel__arena_init(&arena, NULL, 1024);
    CHECK_OK(ravel__holding_make(&t, 1, NULL, 0, 1, "sink", &arena, &h, &err), &err);
    CHECK_EQ(ravel__manifest_bytes(&h), 32 + 4 + 2 + 2 * 24);
    ravel__manifest_encode(&h, RAVEL__SINK, b);
    CHECK(memcmp(b, "RVLM", 4) == 0 && at(b, 4, 2) == 1 && at(b, 6, 2) == 2);
    CHECK(at(b, 8, 8) == 1 && at(b, 16, 8) == 86);
    CHECK(at(b, 32, 2) == 2 && b[34] == RAVEL_BF16 && b[35] == 2 && memcmp(b + 36, "ab", 2) == 0);
    CHECK(at(b, 38, 8) == 10 && at(b, 46, 8) == 4 && at(b, 54, 8) == 2);
    CHECK(at(b, 62, 8) == 8 && at(b, 70, 8) == 0 && at(b, 78, 8) == 8);
    ravel__holding_free(&h, NULL);
    ravel__arena_free(&arena);
}

TEST(refit_wire_frame_and_notice) {
    unsigned char *b = aligned_alloc(256, 4096), *place, n[RAVEL__NOTICE_BYTES];
    ravel__frame_writer w;
    ravel__frame_head head = {.flags = 3, .window = 5, .sequence = 6, .version = 7, .sender = 8};
    ravel__notice notice = {.flags = 3, .window = 5, .sequence = 6, .bytes = 864};
    ravel__frame_entry e = {.tensor = 11, .slice = 12, .dtype = RAVEL_F32, .first = 13, .count = 75, .checksum = 14};
    CHECK(b);
    ravel__frame_begin(&w, b, 4096);
    CHECK(ravel__frame_room(&w, &place) >= 300 && place == b + 256);
    memset(place, 0xab, 300);
    ravel__frame_add(&w, &e, 300);
    ravel__frame_entry keep = {.tensor = 21, .slice = 22, .kind = RAVEL__ENTRY_KEEP, .dtype = RAVEL_U8, .count = 23};
    ravel__frame_add(&w, &keep, 0);
    CHECK_EQ(ravel__frame_end(&w, &head), 256 + 512 + 2 * 48);
    CHECK(memcmp(b, "RVLF", 4) == 0 && at(b, 4, 2) == 1 && at(b, 6, 2) == 256);
    CHECK(at(b, 8, 4) == 3 && at(b, 12, 4) == 5 && at(b, 16, 8) == 6 && at(b, 24, 8) == 7);
    CHECK(at(b, 32, 4) == 8 && at(b, 36, 4) == 2 && at(b, 40, 8) == 864 && at(b, 48, 8) == 768);
    const unsigned char *one = b + 768, *two = b + 816;
    CHECK(at(one, 0, 4) == 11 && at(one, 4, 4) == 12 && at(one, 8, 2) == 0 && at(one, 10, 2) == RAVEL_F32);
    CHECK(at(one, 16, 8) == 13 && at(one, 24, 8) == 75 && at(one, 32, 8) == 256 && at(one, 40, 8) == 14);
    CHECK(at(two, 0, 4) == 21 && at(two, 8, 2) == 1 && at(two, 24, 8) == 23);
    ravel__notice_encode(&notice, n);
    CHECK(sizeof n == 40 && memcmp(n, "RVLN", 4) == 0 && at(n, 4, 4) == 3 && at(n, 8, 4) == 5);
    CHECK(at(n, 12, 4) == 1 && at(n, 16, 8) == 6 && at(n, 24, 8) == 864);
    free(b);
}

/* Another kind of checksum on one side is a difference, before anything is checked with it. */
TEST(refit_wire_checksum_kind_is_agreed_on) {
    ravel__hello hellos[2] = {{.roles = RAVEL__SOURCE, .checksum = RAVEL__CHECKSUM_XXH3},
                              {.roles = RAVEL__SINK, .checksum = 2}};
    ravel__differences list;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__differences_init(&list, NULL);
    ravel__hello_compare(hellos, 2, &list);
    CHECK_EQ(ravel__differences_end(&list, &err), RAVEL_E_MISMATCH);
    CHECK_HAS(err.message, "checksum: xxh3 on rank 0 (sender), 2 on rank 1 (receiver)");
}
