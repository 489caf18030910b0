/* Texts that end an answer: what a stream shows is the text before the first of them, however it is cut into pieces. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "train/run/answers/stops.h"

enum { MOST = 64 };

/* By the definition: the first end, and the longest text that has it. */
static size_t first_place(const train_stop_texts *stops, const char *text, size_t bytes) {
    for (size_t end = 1; end <= bytes; end++) {
        size_t longest = 0;
        for (int32_t i = 0; i < stops->count; i++) {
            size_t n = strlen(stops->texts[i]);
            if (n <= end && n > longest && memcmp(text + end - n, stops->texts[i], n) == 0) longest = n;
        }
        if (longest) return end - longest;
    }
    return bytes;
}

static size_t draw_text(ravel__rng *rng, size_t least, size_t most, char *out) {
    size_t bytes = least + (size_t)ravel__rng_below(rng, most - least + 1);
    for (size_t i = 0; i < bytes; i++)
        out[i] = (char)('a' + ravel__rng_below(rng, 2)); /* two letters: many near misses */
    out[bytes] = '\0';
    return bytes;
}

static bool stream_is_right(const train_stop_texts *stops, const char *text, size_t bytes, ravel__rng *rng) {
    train_stop_stream s;
    ravel_error err = RAVEL_ERROR_INIT;
    char shown[MOST + 1];
    size_t used = 0, want = first_place(stops, text, bytes), out_bytes;
    const char *out;
    train_stop_stream_init(&s, stops);
    for (size_t at = 0; at < bytes;) {
        size_t n = (size_t)ravel__rng_below(rng, 5);
        n = n < bytes - at ? n : bytes - at;
        EXPECT(train_stop_stream_push(&s, text + at, n, &out, &out_bytes, &err) == RAVEL_OK);
        memcpy(shown + used, out, out_bytes);
        used += out_bytes;
        at += n;
        EXPECT(used <= want); /* no byte of a stop text, at any time */
        EXPECT(s.ended == (first_place(stops, text, at) < at));
    }
    train_stop_stream_flush(&s, &out, &out_bytes);
    memcpy(shown + used, out, out_bytes);
    used += out_bytes;
    train_stop_stream_free(&s);
    return used == want && memcmp(shown, text, want) == 0;
}

TEST(train_stops_show_what_comes_before_them) {
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_scale(20000, 1000000); round++) {
        char texts[3][8], text[MOST + 1];
        const char *list[3] = {texts[0], texts[1], texts[2]};
        for (int i = 0; i < 3; i++) (void)draw_text(&rng, 1, 7, texts[i]);
        train_stop_texts stops = {list, (int32_t)ravel__rng_below(&rng, 4)};
        size_t bytes = draw_text(&rng, 0, MOST, text);
        CHECK_EQ(train_stop_find(&stops, text, bytes), first_place(&stops, text, bytes));
        CHECK(stream_is_right(&stops, text, bytes, &rng));
    }
}

/* What is held back is no more than it must be. */
TEST(train_stops_hold_back_what_may_begin_one) {
    static const char *const texts[] = {"</s>", "\n\n", "Question:"};
    static const struct {
        const char *text;
        size_t held;
    } rows[] = {{"", 0}, {"4", 0}, {"4\n", 1}, {"4 <", 1}, {"4 </s", 3}, {"Que", 3}, {"Quest ", 0}, {"a\nQ", 1}};
    train_stop_texts stops = {texts, 3};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        CHECK_EQ(train_stop_held(&stops, rows[i].text, strlen(rows[i].text)), rows[i].held);
    CHECK_EQ(train_stop_longest(&stops), 9);
    CHECK_EQ(train_stop_longest(&(train_stop_texts){NULL, 0}), 0);
}
