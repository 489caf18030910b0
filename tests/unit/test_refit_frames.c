/* Frames, settings and lists of differences, each by itself. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "base/xxh3.h"
#include "base/options.h"
#include "refit/model/differences.h"
#include "refit/wire/block.h"
#include "refit/wire/frame.h"
#include "refit/session/hello.h"

#include <stdlib.h>

/* ---- frames --------------------------------------------------------------------------------------------- */

enum { HEAD = 512, MOST = 1 << 20 };

/* A head in an array of its own length. */
static ravel__frame *make_head(uint32_t entries) {
    ravel__frame *f = aligned_alloc(256, HEAD);
    if (!f) return NULL;
    memset(f, 0xee, HEAD);
    f->flags = 3, f->window = 2, f->sequence = 77, f->version = 12, f->sender = 4, f->entries = entries, f->bytes = 0;
    for (uint32_t i = 0; i < entries; i++) {
        uint64_t size = i % 3 == 1 ? 0 : 1 + i * 370 % 3000;
        uint32_t kind = i % 3 == 0 ? RAVEL__BLOCK_DATA : i % 3 == 1 ? RAVEL__BLOCK_KEEP : RAVEL__BLOCK_SPARSE;
        f->entry[i] = (ravel__frame_entry){kind, i, i + 1, size, i * 5};
        f->bytes += ravel__frame_align(size);
    }
    ravel__frame_seal(f, HEAD);
    return f;
}

static ravel_status check_all(const ravel__frame *f, ravel_error *err) {
    ravel_status status = ravel__frame_check(f, HEAD, MOST, err);
    return status == RAVEL_OK ? ravel__frame_check_entries(f, HEAD, err) : status;
}

TEST(refit_frames_are_accepted_unless_a_byte_changed) {
    for (uint32_t entries = 0; entries <= ravel__frame_entries_most(HEAD); entries++) {
        ravel__frame *f = make_head(entries);
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK(f);
        CHECK_OK(check_all(f, &err), &err);
        for (size_t i = 0; i < HEAD; i++) {
            ((unsigned char *)f)[i] ^= 0x80;
            CHECK(check_all(f, NULL) != RAVEL_OK);
            /* What the length of the payloads is taken from is checked before them. */
            if (i < RAVEL__FRAME_HEADER) CHECK(ravel__frame_check(f, HEAD, MOST, NULL) != RAVEL_OK);
            ((unsigned char *)f)[i] ^= 0x80;
        }
        free(f);
    }
}

/* With the right sums: what does not fit together is refused all the same. */
TEST(refit_frames_refuse_absurd_numbers) {
    static const char *const words[] = {"an unknown kind", "counts wrongly",      "counts wrongly",
                                        "outside of it",   "outside of it",       "not as long as its header",
                                        "unknown flags",   "larger than a buffer"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        ravel__frame *f = make_head(6);
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK(f);
        if (i == 0) f->entry[2].kind = 9;
        if (i == 1) f->entry[2].count = 0;
        if (i == 2) f->entry[2].count = UINT64_MAX;
        if (i == 3) f->entry[2].size = UINT64_MAX;
        if (i == 4) f->entry[1].size = 3; /* of KEEP */
        if (i == 5) f->bytes += 256;
        if (i == 6) f->flags = 8;
        if (i == 7) f->bytes = MOST + 1;
        ravel__frame_seal(f, HEAD);
        CHECK_EQ(check_all(f, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, words[i]);
        free(f);
    }
}

/* The head is a small part of a buffer of any size, and leaves room for payloads. */
TEST(refit_heads_fit_buffers) {
    for (int64_t bytes = 4096; bytes <= (int64_t)1 << 40; bytes += bytes / 7) {
        size_t head = ravel__frame_head_bytes(bytes);
        CHECK(head >= 512 && head % 256 == 0 && (int64_t)head * 8 <= bytes && ravel__frame_entries_most(head) >= 14);
        CHECK(bytes < 524288 || (int64_t)head * 256 <= bytes);
    }
}

/* ---- settings ------------------------------------------------------------------------------------------- */

/* N and B of a rank that is alone, on a machine of `memory` bytes. */
static int64_t memory = (int64_t)100 << 30;

static ravel_status alone(const ravel_refit_options *options, int64_t bytes, ravel__terms *terms, ravel_error *err) {
    ravel_refit_options o;
    ravel__hello hello = {0};
    ravel_status status = ravel__options_take(options, &o, err);
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
    CHECK_HAS(err.message, "buffer-bytes is 100; allowed is a number of bytes from 4k");
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
