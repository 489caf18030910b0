/* Pens: whatever the pieces, the alignment and the way of storing, the bytes come out the same. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "batch/writer.h"

#include <ravel/batch.h>

#include <stdlib.h>

enum { ROOM = 4096, EDGE = 64 };

/* Writes random pieces with the writer, and the same with plain stores into `want`. Returns the bytes written. */
static size_t scribble(ravel__rng *r, ravel__writer *writer, unsigned char *want, int64_t element) {
    static unsigned char source[2 * ROOM];
    if (!source[1])
        for (size_t i = 0; i < sizeof source; i++) source[i] = (unsigned char)(ravel__mix64(i) | 1);
    size_t used = 0;
    for (;;) {
        int64_t count = (int64_t)ravel__rng_below(r, ravel__rng_below(r, 3) ? 9 : 120),
                first = (int64_t)ravel__rng_below(r, 1000);
        int64_t step = 1 + (int64_t)ravel__rng_below(r, 3);
        int what = (int)ravel__rng_below(r, 4);
        size_t each = what == 3 ? 4 : (size_t)element, bytes = (size_t)count * each;
        const unsigned char *from = source + ravel__rng_below(r, 64);
        if (used + bytes > ROOM) return used;
        if (what == 0) {
            ravel__writer_copy(writer, from, bytes);
            memcpy(want + used, from, bytes);
        } else if (what == 1) {
            ravel__writer_take(writer, (const char *)from, count, step, each);
            for (int64_t i = 0; i < count; i++)
                memcpy(want + used + (size_t)i * each, from + (size_t)(i * step) * each, each);
        } else if (what == 2 && (element & (element - 1)) == 0) {
            ravel__writer_fill(writer, from, (int32_t)element, count);
            for (int64_t i = 0; i < count; i++) memcpy(want + used + (size_t)i * each, from, each);
        } else if (what == 3) {
            ravel__writer_count_up(writer, first, step, count);
            for (int64_t i = 0; i < count; i++) {
                int32_t number = (int32_t)(first + i * step);
                memcpy(want + used + (size_t)i * 4, &number, 4);
            }
        } else {
            continue;
        }
        used += bytes;
    }
}

TEST(batch_writers_write_the_same_bytes_streamed_or_not) {
    static _Alignas(64) unsigned char have[ROOM + 3 * EDGE], want[ROOM];
    ravel__rng r = ravel__rng_seed(check_seed() + 3);
    for (int64_t round = 0; round < check_rounds(4000, 400000); round++) {
        static const int64_t elements[] = {1, 2, 4, 8, 12, 3};
        int64_t element = elements[round % 6];
        unsigned char *array = have + EDGE + ravel__rng_below(&r, EDGE); /* elements need not be aligned either */
        ravel__writer writer;
        memset(have, 0xee, sizeof have);
        ravel__writer_open(&writer, array, round & 1);
        size_t used = scribble(&r, &writer, want, element);
        CHECK_EQ(writer.at - (char *)array, used);
        ravel__writer_close(&writer);
        CHECK(memcmp(array, want, used) == 0);
        for (unsigned char *p = have; p < have + sizeof have; p++) /* and nothing beside it is touched */
            CHECK(*p == 0xee || (p >= array && p < array + used));
    }
}

/* Large enough to be streamed, if the processor has streaming stores: whole, as shards, and back. */
TEST(batch_large_bins_are_right) {
    enum { N = 700, LENGTH = 2003 };
    const int64_t tokens = (int64_t)N * LENGTH;
    int64_t offsets[N + 1];
    int32_t order[N], *ids = malloc((size_t)tokens * sizeof *ids), *back = calloc((size_t)tokens, sizeof *back);
    for (int i = 0; i <= N; i++) offsets[i] = (int64_t)i * LENGTH;
    for (int i = 0; i < N; i++) order[i] = (i * 331) % N;
    for (int64_t i = 0; i < tokens; i++) ids[i] = (int32_t)i;
    const ravel_field fields[] = {
        {.name = "tokens", .dtype = RAVEL_I32, .data = ids, .pad = -1},
        {.name = "labels", .kind = RAVEL_FIELD_NEXT, .dtype = RAVEL_I32, .data = ids, .pad = -100}};
    const ravel_ragged ragged = {
        .size = sizeof ragged, .count = N, .offsets = offsets, .fields = fields, .field_count = 2};
    const ravel_bin bin = {order, N};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_thd_options options;
    ravel_thd_options_default(&options);
    options.align = 4;
    options.cp = 2;
    options.arrays = RAVEL_THD_POSITIONS;
    ravel_thd t = {.size = sizeof t};
    CHECK_OK(ravel_thd_measure(&ragged, &bin, &options, &t, &err), &err);
#if defined(__SSE2__)
    CHECK(ravel__writer_streams(3 * (size_t)t.tokens * 4));
#endif
    void *block = malloc(ravel_thd_bytes(&ragged, &options, &t));
    ravel_thd_place(&ragged, &options, block, &t);
    CHECK_OK(ravel_thd_pack(&ragged, &bin, &options, &t, &err), &err);
    const int32_t *packed = t.fields[0], *labels = t.fields[1];
    for (int64_t i = 0; i < N; i++)
        for (int64_t p = 0; p < 2004; p++) {
            int64_t at = i * 2004 + p, id = offsets[order[i]] + p;
            CHECK_EQ(packed[at], p < LENGTH ? id : -1);
            CHECK_EQ(labels[at], p < LENGTH - 1 ? id + 1 : -100);
            CHECK_EQ(t.positions[at], p < LENGTH ? p : 0);
        }
    for (int32_t rank = 0; rank < 2; rank++) {
        ravel_thd_options mine = options;
        mine.cp_rank = rank;
        ravel_thd s = {.size = sizeof s};
        CHECK_OK(ravel_thd_measure(&ragged, &bin, &mine, &s, &err), &err);
        void *shard = malloc(ravel_thd_bytes(&ragged, &mine, &s));
        ravel_thd_place(&ragged, &mine, shard, &s);
        CHECK_OK(ravel_thd_pack(&ragged, &bin, &mine, &s, &err), &err);
        CHECK_OK(ravel_thd_unpack(&ragged, &mine, &s, &fields[0], s.fields[0], back, &err), &err);
        free(shard);
    }
    CHECK(memcmp(back, ids, (size_t)tokens * sizeof *ids) == 0);
    free(block);
    free(ids);
    free(back);
}
