/* Frames, notices, settings and lists of differences, each by itself. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "base/xxh3.h"
#include "refit/model/differences.h"
#include "refit/wire/frame.h"
#include "refit/session/hello.h"
#include "refit/model/manifest.h"

#include <stdlib.h>

/* ---- frames --------------------------------------------------------------------------------------------- */

enum { FRAME = 8192 };

static size_t write_frame(unsigned char *buffer, size_t bytes, int32_t entries, ravel__frame_head *head) {
    ravel__frame_writer w;
    ravel__frame_begin(&w, buffer, bytes);
    for (int32_t i = 0; i < entries; i++) {
        unsigned char *place;
        size_t room = ravel__frame_room(&w, &place), payload = 4 * ((size_t)i * 37 % 300 + 1);
        if (payload > room) break;
        memset(place, i + 1, payload);
        ravel__frame_entry e = {
            .tensor = (uint32_t)i, .slice = 5, .dtype = RAVEL_F32, .first = 10, .count = payload / 4};
        e.checksum = ravel__xxh3_of(place, payload);
        ravel__frame_add(&w, &e, payload);
        if (i % 3 == 0 && ravel__frame_room(&w, &place) > 0) {
            ravel__frame_entry keep = {.slice = 9, .kind = RAVEL__ENTRY_KEEP, .count = 3, .dtype = RAVEL_U8};
            ravel__frame_add(&w, &keep, 0);
            ravel__frame_keep_more(&w, 4);
        }
    }
    return ravel__frame_end(&w, head);
}

TEST(refit_frames_come_back) {
    for (int32_t wanted = 0; wanted < 40; wanted++) {
        unsigned char *buffer = aligned_alloc(256, FRAME);
        ravel__frame_head head = {.flags = 3, .window = 2, .sequence = 77, .version = 12, .sender = 4}, back;
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK(buffer);
        size_t size = write_frame(buffer, FRAME, wanted, &head);
        CHECK(size <= FRAME);
        CHECK_OK(ravel__frame_open(buffer, size, &back, &err), &err);
        CHECK(back.flags == 3 && back.window == 2 && back.sequence == 77 && back.version == 12 && back.sender == 4);
        uint32_t data = 0;
        for (uint32_t i = 0; i < back.entries; i++) {
            ravel__frame_entry e;
            CHECK_OK(ravel__frame_entry_at(buffer, &back, i, &e, &err), &err);
            if (e.kind == RAVEL__ENTRY_KEEP) {
                CHECK(e.count == 7 && e.slice == 9);
                continue;
            }
            CHECK_EQ(e.tensor, data++);
            CHECK_EQ(e.offset % 256, 0);
            CHECK_EQ(buffer[e.offset], e.tensor + 1);
            CHECK(ravel__xxh3_of(buffer + e.offset, (size_t)e.count * 4) == e.checksum);
        }
        free(buffer);
    }
}

/* A changed byte of header or entries is seen when the frame is opened; one of a payload by the entry's checksum. */
TEST(refit_frames_refuse_what_was_changed) {
    unsigned char *buffer = aligned_alloc(256, FRAME);
    ravel__frame_head head = {.sequence = 1}, back;
    CHECK(buffer);
    size_t size = write_frame(buffer, FRAME, 8, &head);
    int64_t padding = 0;
    for (size_t i = 0; i < size; i++) {
        ravel__frame_entry e;
        int seen = 0;
        buffer[i] ^= 0x80;
        seen = ravel__frame_open(buffer, size, &back, NULL) != RAVEL_OK;
        for (uint32_t k = 0; !seen && k < back.entries; k++) {
            seen = ravel__frame_entry_at(buffer, &back, k, &e, NULL) != RAVEL_OK;
            if (!seen && e.kind == RAVEL__ENTRY_DATA)
                seen = ravel__xxh3_of(buffer + e.offset, (size_t)e.count * 4) != e.checksum;
        }
        padding += !seen;
        if (!seen) CHECK_EQ(buffer[i], 0x80); /* only padding, which is zero and means nothing */
        buffer[i] ^= 0x80;
    }
    CHECK(padding < (int64_t)size / 2);
    for (size_t n = 0; n < size; n++) CHECK(ravel__frame_open(buffer, n, &back, NULL) != RAVEL_OK);
    free(buffer);
}

/* The same frame with its payloads apart: header and entries are those of the whole one, and as well guarded. */
TEST(refit_frames_with_payloads_apart) {
    enum { ENTRIES = 7, REST = RAVEL__FRAME_HEADER + ENTRIES * RAVEL__FRAME_ENTRY };
    unsigned char whole[FRAME], rest[REST], *place;
    ravel__frame_writer one, two;
    ravel__frame_head head[2] = {{.sequence = 3, .version = 9}, {.sequence = 3, .version = 9}}, back;
    ravel_error err = RAVEL_ERROR_INIT;
    memset(whole, 0, sizeof whole);
    ravel__frame_begin(&one, whole, sizeof whole);
    ravel__frame_begin_apart(&two, rest, sizeof rest, FRAME / 2);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        ravel__frame_entry e = {.tensor = i, .dtype = RAVEL_U8, .first = i, .count = 100 + 60 * i, .checksum = i * 77};
        CHECK(ravel__frame_room(&two, &place) >= e.count && !place);
        ravel__frame_add(&one, &e, (size_t)e.count);
        e.checksum = 0;
        ravel__frame_add(&two, &e, (size_t)e.count);
        ravel__frame_set_checksum(&two, i, i * 77);
    }
    CHECK_EQ(ravel__frame_room(&two, &place), 0); /* no room for another entry */
    size_t size = ravel__frame_end(&one, &head[0]);
    CHECK_EQ(ravel__frame_end(&two, &head[1]), REST);
    CHECK_EQ(memcmp(whole, rest, RAVEL__FRAME_HEADER), 0);
    CHECK_EQ(
        memcmp(whole + size - ENTRIES * RAVEL__FRAME_ENTRY, rest + RAVEL__FRAME_HEADER, REST - RAVEL__FRAME_HEADER), 0);
    CHECK_OK(ravel__frame_open_apart(rest, REST, &back, &err), &err);
    CHECK(back.bytes == size && back.entries == ENTRIES && back.table == head[0].table);
    for (uint32_t i = 0; i < ENTRIES; i++) {
        ravel__frame_entry e;
        CHECK_OK(ravel__frame_entry_at(rest, &back, i, &e, &err), &err);
        CHECK(e.tensor == i && e.checksum == i * 77 && e.count == 100 + 60 * i && e.offset + e.count <= back.table);
    }
    CHECK(ravel__frame_open(rest, REST, &back, NULL) != RAVEL_OK);
    CHECK(ravel__frame_open_apart(whole, size, &back, NULL) != RAVEL_OK);
    for (size_t i = 0; i < REST; i++) {
        rest[i] ^= 1;
        int means = i < 64 || i >= RAVEL__FRAME_HEADER; /* the rest of the header is 0 and means nothing */
        CHECK(!means || ravel__frame_open_apart(rest, REST, &back, NULL) != RAVEL_OK);
        rest[i] ^= 1;
    }
}

TEST(refit_notices_come_back) {
    ravel__notice n = {.flags = 5, .window = 3, .sequence = 1ull << 40, .bytes = 4096}, back;
    unsigned char bytes[RAVEL__NOTICE_BYTES];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__notice_encode(&n, bytes);
    CHECK_OK(ravel__notice_decode(bytes, &back, &err), &err);
    CHECK(back.flags == 5 && back.window == 3 && back.sequence == 1ull << 40 && back.bytes == 4096);
    for (size_t i = 0; i < sizeof bytes; i++) {
        bytes[i] ^= 4;
        CHECK(ravel__notice_decode(bytes, &back, NULL) != RAVEL_OK);
        bytes[i] ^= 4;
    }
}

/* ---- settings ------------------------------------------------------------------------------------------- */

/* N and B of a rank that is alone, on a machine of `memory` bytes. */
static int64_t memory = (int64_t)100 << 30;

static ravel_status alone(const ravel_refit_options *options, int64_t bytes, ravel__terms *terms, ravel_error *err) {
    ravel_refit_options o;
    ravel__hello hello = {0};
    ravel_status status = ravel__options_take(options, &o, err);
    if (!status) status = ravel__options_check(&o, err);
    if (!status) status = ravel__settings_take(&o, memory, &hello.settings, err);
    if (!status) *terms = ravel__hello_terms(&hello, 1, "threads", bytes);
    return status;
}

static void expect_setting(const char *variable, const char *value, const char *words) {
    ravel__terms terms = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    setenv(variable, value, 1);
    ravel_status status = alone(NULL, 1 << 30, &terms, &err);
    unsetenv(variable);
    CHECK_EQ(status, RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, variable);
    CHECK_HAS(err.message, value);
    CHECK_HAS(err.message, words);
}

TEST(refit_settings_quote_what_is_wrong) {
    static const char *const wrong[] = {"0", "17", "two", "2.5", "-1", "2 buffers", "99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect_setting("RAVEL_REFIT_NUM_BUFFERS", wrong[i], "from 1 to 16");
    expect_setting("RAVEL_REFIT_BUFFER_BYTES", "4095", "from 4k (4096) to 1T");
    expect_setting("RAVEL_REFIT_BUFFER_BYTES", "lots", "from 4k (4096) to 1T");
    expect_setting("RAVEL_REFIT_BUFFER_BYTES", "2T", "from 4k (4096) to 1T");
    expect_setting("RAVEL_REFIT_BUFFER_MEMORY_RATIO", "0", "from 0.000001 to 0.5");
    expect_setting("RAVEL_REFIT_BUFFER_MEMORY_RATIO", "nan", "from 0.000001 to 0.5");
    expect_setting("RAVEL_REFIT_BUFFER_MEMORY_RATIO", "2%", "from 0.000001 to 0.5");
    expect_setting("RAVEL_REFIT_BUFFER_MEMORY_RATIO", "0.51", "from 0.000001 to 0.5");
}

TEST(refit_settings_options_over_environment_over_defaults) {
    ravel_refit_options o;
    ravel__terms terms = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&o);
    CHECK_OK(alone(&o, (int64_t)1 << 30, &terms, &err), &err);
    CHECK_EQ(terms.num_buffers, 2);
    CHECK_EQ(terms.buffer_bytes, 4 << 20); /* a sixty-fourth of the stream would be more than is good */
    CHECK_OK(alone(&o, 1000, &terms, &err), &err);
    CHECK_EQ(terms.buffer_bytes, 1 << 20);
    memory = 64 << 20; /* a small machine: 0.02 of it, in two */
    CHECK_OK(alone(&o, (int64_t)1 << 30, &terms, &err), &err);
    CHECK_EQ(terms.buffer_bytes, (int64_t)(0.02 * (64 << 20)) / 2 / 4096 * 4096);
    setenv("RAVEL_REFIT_NUM_BUFFERS", "4", 1);
    setenv("RAVEL_REFIT_BUFFER_MEMORY_RATIO", "0.25", 1);
    ravel_status status = alone(&o, (int64_t)1 << 30, &terms, &err);
    CHECK_EQ(terms.buffer_bytes, 4 << 20); /* all of the ratio, in four */
    setenv("RAVEL_REFIT_BUFFER_BYTES", "64k", 1);
    o.num_buffers = 3;
    if (status == RAVEL_OK) status = alone(&o, (int64_t)1 << 30, &terms, &err);
    int64_t from_env = terms.buffer_bytes;
    o.buffer_bytes = 8192;
    if (status == RAVEL_OK) status = alone(&o, (int64_t)1 << 30, &terms, &err);
    unsetenv("RAVEL_REFIT_NUM_BUFFERS");
    unsetenv("RAVEL_REFIT_BUFFER_MEMORY_RATIO");
    unsetenv("RAVEL_REFIT_BUFFER_BYTES");
    CHECK_OK(status, &err);
    CHECK_EQ(from_env, 65536);
    CHECK_EQ(terms.num_buffers, 3);
    CHECK_EQ(terms.buffer_bytes, 8192);
    o.buffer_bytes = 100;
    CHECK_EQ(alone(&o, 0, &terms, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "buffer-bytes is 100; allowed is 4k");
    memory = (int64_t)100 << 30;
}

TEST(refit_settings_by_transport) {
    static const struct {
        const char *kind;
        int64_t stream, bytes;
    } rows[] = {{"threads", 1 << 30, 4 << 20}, {"mpi", 1 << 30, 4 << 20},   {"mpi", 1 << 20, 1 << 20},
                {"tcp", 1 << 30, 1 << 20},     {"nccl", 1 << 30, 64 << 20}, {"nccl", 64 << 20, 8 << 20}};
    ravel_refit_options o;
    ravel__hello hello = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_refit_options_default(&o);
    CHECK_OK(ravel__settings_take(&o, memory, &hello.settings, &err), &err);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_EQ(ravel__hello_terms(&hello, 1, rows[i].kind, rows[i].stream).buffer_bytes, rows[i].bytes);
}

TEST(refit_differences_are_one_sentence) {
    ravel__differences list;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__differences_init(&list, NULL);
    CHECK_EQ(ravel__differences_end(&list, &err), RAVEL_OK);
    ravel__differences_add(&list, "one of %d", 3);
    ravel__differences_add(&list, "two");
    CHECK_EQ(ravel__differences_end(&list, &err), RAVEL_E_MISMATCH);
    CHECK_STR(err.message, "senders and receivers differ in 2 ways: one of 3; two");
    for (int i = 0; i < 200; i++) ravel__differences_add(&list, "tensor number %d has another shape", i);
    ravel_error_clear(&err);
    CHECK_EQ(ravel__differences_end(&list, &err), RAVEL_E_MISMATCH);
    CHECK_HAS(err.message, "202 ways");
    CHECK_HAS(err.message, " more");
    CHECK(strlen(err.message) < sizeof err.message - 1);
}
