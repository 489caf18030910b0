/* Tokenizers of characters (Llama 2, Mistral, Gemma, ...): a space is a character of its own, U+2581, which the
 * normalizer or the pre-tokenizer puts in its place and before a text.
 *
 *     Hello  world   -->   _Hello__world      ("_" for U+2581; where bytes come from: 0 0 1 2 3 4 5 6 7 ...)
 *
 * In most of them the whole text is one word of the merges. It is cut before each run of U+2581 all the same, if no
 * token has one after another character: no merge can then reach across, and the words meet the cache. */
#include "text/tokenizer.h"

#include "base/assert.h"
#include "text/unicode/unicode.h"

#include <string.h>

enum { SPACE = 3 }; /* bytes of U+2581 */

static int is_space(const char *text, size_t bytes) {
    return bytes >= SPACE && memcmp(text, RAVEL__SPACE, SPACE) == 0;
}

static size_t put(ravel__rewritten *out, size_t at, const char *text, size_t bytes, uint32_t origin) {
    memcpy((char *)out->text.at + at, text, bytes);
    for (size_t i = 0; i < bytes; i++) ((uint32_t *)out->origins.at)[at + i] = origin;
    return at + bytes;
}

static int prepends(int rule, const char *text, size_t bytes, int replaced, int is_start) {
    int there = is_space(text, bytes) || (replaced && *text == ' ');
    if (rule == RAVEL__PREPEND_ALWAYS) return 1;
    return !there && (rule == RAVEL__PREPEND_MISSING || (rule == RAVEL__PREPEND_FIRST && is_start));
}

/* Each word with U+2581 before it; white space goes. */
static void write_words(ravel__rewritten *out, const char *text, size_t bytes, const uint32_t *origins) {
    size_t at = 0;
    for (size_t i = ravel__spaces_after(text, bytes), n; i < bytes; i += ravel__spaces_after(text + i, bytes - i)) {
        if (!is_space(text + i, bytes - i)) at = put(out, at, RAVEL__SPACE, SPACE, origins ? origins[i] : (uint32_t)i);
        do {
            n = ravel__utf8_width(text + i, bytes - i);
            for (size_t k = 0; k < n; k++, i++) at = put(out, at, text + i, 1, origins ? origins[i] : (uint32_t)i);
        } while (i < bytes && !ravel__spaces_after(text + i, bytes - i));
    }
    out->bytes = at;
}

ravel_status ravel__spaces_write(ravel__rewritten *out, const ravel__spacing *spacing, const char *text, size_t bytes,
                                 const uint32_t *origins, int is_start, const ravel_allocator *allocator,
                                 ravel_error *err) {
    RAVEL_ASSERT(bytes > 0);
    int64_t room = (int64_t)(SPACE * (bytes + 1));
    ravel_status status = ravel__buffer_reserve(&out->text, allocator, room, 1, "a text", err);
    if (!status) status = ravel__buffer_reserve(&out->origins, allocator, room, sizeof(uint32_t), "a text", err);
    if (status) return status;
    size_t at = 0;
    if (spacing->words) return write_words(out, text, bytes, origins), RAVEL_OK;
    if (prepends(spacing->prepend, text, bytes, spacing->replace, is_start))
        at = put(out, at, RAVEL__SPACE, SPACE, origins ? origins[0] : 0);
    for (size_t i = 0; i < bytes; i++) {
        int space = spacing->replace && text[i] == ' ';
        at = put(out, at, space ? RAVEL__SPACE : text + i, space ? SPACE : 1, origins ? origins[i] : (uint32_t)i);
    }
    RAVEL_ASSERT((int64_t)at <= room);
    out->bytes = at;
    return RAVEL_OK;
}

size_t ravel__spaces_word(const char *text, size_t bytes, int runs) {
    size_t at = is_space(text, bytes) ? SPACE : 0;
    while (runs && is_space(text + at, bytes - at)) at += SPACE; /* a run begins the word */
    for (; at < bytes; at++)
        if (at && is_space(text + at, bytes - at)) return at;
    return bytes;
}

static int is_inside(const ravel__token *t) {
    int after_other = 0;
    for (size_t at = 0; t->text && at < t->text_bytes;) {
        uint32_t point;
        int space = is_space(t->text + at, t->text_bytes - at);
        if (space && after_other) return 1;
        after_other = !space;
        at += ravel__utf8_get(t->text + at, &point);
    }
    return 0;
}

int ravel__spaces_may_split(const ravel_tokenizer *t) {
    if (t->unigram.edges && ravel__vocab_find(&t->vocab, RAVEL__SPACE, SPACE) == RAVEL__NO_ID) return 0;
    for (int32_t id = 0; id < t->vocab.size; id++)
        if (is_inside(&t->vocab.tokens[id])) return 0;
    return 1;
}

void ravel__rewritten_free(ravel__rewritten *out, const ravel_allocator *allocator) {
    ravel__buffer_free(&out->text, allocator);
    ravel__buffer_free(&out->origins, allocator);
}
