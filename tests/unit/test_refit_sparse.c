/* Sparse blocks: every set writes the bytes of the format as sparse.h has it, and they turn the base into the new version. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "base/sparse.h"

#include <stdlib.h>

/* ---- the format, written down once more ------------------------------------------------------------------- */

static size_t expected(const unsigned char *base, const unsigned char *fresh, size_t count, size_t each,
                       unsigned char *out) {
    size_t bytes = 8, changed = 0, gap = 0;
    for (size_t i = 0; i < count; i++, gap++) {
        if (memcmp(base + i * each, fresh + i * each, each) == 0) continue;
        for (; gap >= 255; gap -= 255) out[bytes++] = 255;
        out[bytes++] = (unsigned char)gap;
        for (size_t b = 0; b < each; b++) out[bytes++] = fresh[i * each + b];
        changed++;
        gap = SIZE_MAX;
    }
    for (size_t b = 0; b < 4; b++)
        out[b] = (unsigned char)(count >> 8 * b), out[4 + b] = (unsigned char)(changed >> 8 * b);
    return bytes < count * each ? bytes : 0;
}

enum { MOST = 40000, PATTERNS = 8 };

/* Elements that differ: none, all, a share, runs, the first, the last, one in the middle, far apart. */
static void change(ravel__rng *rng, int pattern, unsigned char *fresh, size_t count, size_t each) {
    size_t share = (size_t)1 << ravel__rng_below(rng, 10), run = 0;
    for (size_t i = 0; i < count; i++) {
        if (run == 0 && ravel__rng_below(rng, 200) == 0) run = (size_t)ravel__rng_below(rng, 90);
        int differs = pattern == 1   ? 1
                      : pattern == 2 ? ravel__rng_below(rng, share) == 0
                      : pattern == 3 ? run > 0
                      : pattern == 4 ? i == 0
                      : pattern == 5 ? i == count - 1
                      : pattern == 6 ? i == count / 2
                      : pattern == 7 ? i % 765 == 1
                                     : 0;
        run -= run > 0;
        if (differs)
            fresh[i * each + (size_t)ravel__rng_below(rng, each)] ^= (unsigned char)(1 << ravel__rng_below(rng, 8));
    }
}

/* In pieces of any size: as it stands after the first time, and after the second. */
static bool turns_into(ravel__rng *rng, const unsigned char *bytes, size_t size, unsigned char *block,
                       const unsigned char *fresh, size_t count, size_t each) {
    for (int times = 0; times < 2; times++) {
        ravel__sparse s;
        ravel_error err = RAVEL_ERROR_INIT;
        if (!EXPECT(ravel__sparse_open(&s, bytes, size, count, each, &err) == RAVEL_OK)) return false;
        for (size_t at = 0, n; at < count; at += n) {
            n = 1 + (size_t)ravel__rng_below(rng, count - at);
            if (!EXPECT(ravel__sparse_apply(&s, block + at * each, at, n, &err) == RAVEL_OK)) return false;
        }
        if (!EXPECT(ravel__sparse_end(&s, &err) == RAVEL_OK) || !EXPECT(memcmp(block, fresh, count * each) == 0))
            return false;
    }
    return true;
}

/* Positions alone say what changed, and with them the new version alone is enough for the same bytes. */
static bool marks_are_right(const unsigned char *base, const unsigned char *fresh, size_t count, size_t each,
                            const unsigned char *want, size_t size, size_t differ) {
    static uint64_t bits[MOST / 64 + 1];
    unsigned char *gaps = malloc(count + count / 255 + 1), *out = malloc(count * each);
    size_t changed = 0, marked = 0;
    int64_t n = ravel__sparse_positions(base, fresh, count, each, gaps, count + count / 255 + 1);
    bool fine = EXPECT(gaps && out && n >= (int64_t)differ);
    const unsigned char *at = gaps;
    memset(bits, 0, sizeof bits);
    for (size_t p = SIZE_MAX; fine && ravel__sparse_next(&at, gaps + n, &p); marked++) {
        fine = EXPECT(p < count && memcmp(base + p * each, fresh + p * each, each) != 0);
        bits[p / 64] |= (uint64_t)1 << p % 64;
    }
    fine = fine && EXPECT(marked == differ) &&
           EXPECT(ravel__sparse_encode_marked(bits, fresh, count, each, out, &changed) == size) &&
           EXPECT(changed == differ && memcmp(out, want, size) == 0);
    for (size_t room = 0; fine && room < (size_t)n && room < 40; room++)
        fine = EXPECT(ravel__sparse_positions(base, fresh, count, each, gaps, room) == -1);
    free(gaps);
    free(out);
    return fine;
}

TEST(refit_sparse_sets_write_the_same_bytes) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    unsigned char *memory = malloc(4 * 8 * MOST + 64);
    CHECK(memory);
    for (int64_t round = 0; round < check_rounds(200, 20000); round++) {
        size_t each = (size_t)1 << ravel__rng_below(&rng, 4), changed;
        size_t count = 1 + (size_t)ravel__rng_below(&rng, round % 3 ? 300 : MOST), bytes = count * each;
        unsigned char *base = memory + ravel__rng_below(&rng, 16), *fresh = base + bytes, *want = fresh + bytes;
        unsigned char *block = malloc(bytes),
                      *out = malloc(bytes); /* of exactly this size: a sanitizer watches their ends */
        CHECK(block && out);
        for (size_t i = 0; i < bytes; i++) base[i] = (unsigned char)ravel__rng_below(&rng, 256);
        memcpy(fresh, base, bytes);
        change(&rng, (int)(round % PATTERNS), fresh, count, each);
        size_t size = expected(base, fresh, count, each, want);
        size_t differ = 0;
        for (size_t i = 0; i < count; i++) differ += memcmp(base + i * each, fresh + i * each, each) != 0;
        for (int set = 0; set < RAVEL__SPARSE_SETS; set++) {
            int64_t got = ravel__sparse_encode_by(set, base, fresh, count, each, out, &changed);
            if (got < 0) continue;
            CHECK_EQ(got, size);
            CHECK_EQ(changed, differ);
            CHECK(memcmp(out, want, size) == 0);
        }
        CHECK_EQ(ravel__sparse_encode(base, fresh, count, each, out, &changed), size);
        CHECK(marks_are_right(base, fresh, count, each, want, size, differ));
        memcpy(block, base, bytes);
        CHECK(size == 0 || turns_into(&rng, out, size, block, fresh, count, each));
        CHECK(size == 0 || ravel__sparse_count(out, size, NULL) == count);
        free(block);
        free(out);
    }
    free(memory);
}

/* What one change in a hundred costs: the number that docs/refit.md has. */
TEST(refit_sparse_takes_a_small_share) {
    enum { COUNT = 131072 };
    ravel__rng rng = ravel__rng_seed(check_seed());
    uint16_t *base = calloc(COUNT, 2), *fresh = calloc(COUNT, 2);
    unsigned char *out = malloc(2 * COUNT);
    size_t changed, each_hundredth = 0;
    CHECK(base && fresh && out);
    for (size_t i = 0; i < COUNT; i++)
        if (ravel__rng_below(&rng, 100) == 0) fresh[i] = 1, each_hundredth++;
    size_t size = ravel__sparse_encode(base, fresh, COUNT, 2, out, &changed);
    CHECK_EQ(changed, each_hundredth);
    CHECK(size > 2 * changed && size < .03 * 2 * COUNT);
    free(base);
    free(fresh);
    free(out);
}

/* Blocks that changed everywhere are not tried; those with an unchanged eighth are, wherever it lies. */
TEST(refit_sparse_tries_what_may_pay) {
    enum { BYTES = 65536 };
    ravel__rng rng = ravel__rng_seed(check_seed());
    static unsigned char base[BYTES], fresh[BYTES];
    for (int64_t round = 0; round < check_rounds(300, 10000); round++) {
        size_t each = (size_t)1 << ravel__rng_below(&rng, 4), count = (size_t)ravel__rng_below(&rng, BYTES / each) + 1;
        size_t bytes = count * each, eighth = (bytes / each / 8) * each, at;
        for (size_t i = 0; i < bytes; i++) fresh[i] = (unsigned char)~(base[i] = (unsigned char)ravel__rng_next(&rng));
        CHECK_EQ(ravel__sparse_pays(base, fresh, count, each), bytes < 4096);
        at = (size_t)ravel__rng_below(&rng, (bytes - eighth) / each + 1) * each;
        memcpy(fresh + at, base + at, eighth);
        CHECK(ravel__sparse_pays(base, fresh, count, each));
    }
}

/* Every byte of a block changed, and every end: a block, or an error, and never a byte beside it. */
TEST(refit_sparse_refuses_broken_records) {
    enum { COUNT = 1200 };
    ravel__rng rng = ravel__rng_seed(check_seed());
    uint16_t base[COUNT] = {0}, fresh[COUNT] = {0};
    unsigned char out[2 * COUNT];
    size_t changed;
    for (size_t i = 0; i < COUNT; i += 1 + (size_t)ravel__rng_below(&rng, 400)) fresh[i] = (uint16_t)(i + 1);
    size_t size = ravel__sparse_encode(base, fresh, COUNT, 2, out, &changed);
    CHECK(size > 8);
    for (size_t round = 0; round < 257 * size; round++) {
        size_t cut = round < size ? round : size;
        unsigned char *bytes = malloc(cut ? cut : 1);
        uint16_t *block = calloc(COUNT, 2);
        ravel__sparse s;
        ravel_error err = RAVEL_ERROR_INIT;
        CHECK(bytes && block);
        memcpy(bytes, out, cut);
        if (round >= size) bytes[(round - size) / 256] = (unsigned char)round;
        ravel_status status = ravel__sparse_open(&s, bytes, cut, COUNT, 2, &err);
        if (status == RAVEL_OK) status = ravel__sparse_apply(&s, block, 0, COUNT, &err);
        if (status == RAVEL_OK) status = ravel__sparse_end(&s, &err);
        CHECK(status == RAVEL_OK || (status == RAVEL_E_DATA && strstr(err.message, "a sparse block is broken: ")));
        CHECK(cut == size || status == RAVEL_E_DATA);
        free(bytes);
        free(block);
    }
    ravel__sparse s;
    CHECK_EQ(ravel__sparse_open(&s, out, size, COUNT - 1, 2, NULL), RAVEL_E_DATA);
}
