/* The character map of sentencepiece files ("precompiled_charsmap"): texts and what stands for them.
 *
 *     bytes   0 .. 3        size of the trie in bytes, little endian
 *             4 ..          the trie: a double array of 32-bit units (darts-clone)
 *             behind it     the replacements, each ends with a NUL
 *
 * It is read in two ways. sentencepiece takes the longest entry at each place. The `tokenizers` package looks at
 * graphemes: one of fewer than six bytes becomes what its shortest entry says, and of longer ones each character
 * does. */
#include "text/normal.h"

#include "base/assert.h"
#include "text/unicode/unicode.h"

#include <string.h>

enum { SMALL_GRAPHEME = 6 };

/* Unit `at`; 0 out of bounds, which has no label of a character, and no leaf. */
static uint32_t unit(const ravel__charsmap *map, size_t at) {
    uint32_t value = 0;
    if (at < map->unit_count) memcpy(&value, map->units + 4 * at, 4);
    return value;
}

static size_t offset(uint32_t u) {
    return (size_t)(u >> 10) << ((u & 1u << 9) >> 6);
}

/* Whether each leaf of the trie begins a text: the first one, or one behind a NUL. */
static int leaves_begin_texts(const ravel__charsmap *map) {
    for (size_t at = 1; at < map->unit_count; at++) {
        uint32_t u = unit(map, at);
        if (u >> 31 || !(u >> 8 & 1)) continue; /* a value, or no leaf */
        size_t value = unit(map, at ^ offset(u)) & 0x7fffffff;
        if (value >= map->text_bytes || (value && map->texts[value - 1])) return 0;
    }
    return 1;
}

ravel_status ravel__charsmap_open(const char *blob, size_t bytes, ravel__charsmap *map, ravel_error *err) {
    const unsigned char *u = (const unsigned char *)blob;
    size_t trie = bytes < 4 ? 0 : (size_t)u[0] | (size_t)u[1] << 8 | (size_t)u[2] << 16 | (size_t)u[3] << 24;
    int seen;
    memset(map, 0, sizeof *map);
    if (bytes == 0) return RAVEL_OK;
    if (trie < 4 || trie % 4 || trie > bytes - 4 || bytes == 4 + trie || blob[bytes - 1] != '\0')
        return ravel_error_set(
            err, RAVEL_E_DATA,
            "the character map of %zu bytes has a trie of %zu bytes; it must be 4 + trie + texts that "
            "end with a NUL",
            bytes, trie);
    ravel__charsmap opened = {blob + 4, blob + 4 + trie, trie / 4, bytes - 4 - trie};
    if (ravel__utf8_scan(opened.texts, opened.text_bytes, &seen) != opened.text_bytes)
        return ravel_error_set(err, RAVEL_E_DATA, "the character map has replacements that are not UTF-8");
    if (!leaves_begin_texts(&opened))
        return ravel_error_set(err, RAVEL_E_DATA,
                               "the character map has an entry whose value is not the first byte of a replacement");
    *map = opened;
    return RAVEL_OK;
}

const char *ravel__charsmap_find(const ravel__charsmap *map, const char *text, size_t bytes, int longest,
                                 size_t *used) {
    const char *found = NULL;
    size_t at = offset(unit(map, 0));
    for (size_t i = 0; i < bytes && map->unit_count; i++) {
        unsigned char byte = (unsigned char)text[i];
        at ^= byte;
        uint32_t u = unit(map, at);
        if (byte == 0 || (u & (1u << 31 | 0xff)) != byte) break;
        at ^= offset(u);
        int inside = i + 1 < bytes && ((unsigned char)text[i + 1] & 0xc0) == 0x80; /* of a character */
        if (!(u >> 8 & 1) || inside) continue;
        found = map->texts + (unit(map, at) & 0x7fffffff);
        *used = i + 1;
        if (!longest) break;
    }
    return found;
}

/* ---- as the package does ---------------------------------------------------------------------------------- */

/* Whether the character at text[0] may be joined by what follows: the rest are graphemes of their own. */
static size_t grapheme(const ravel__normal *step, ravel__regex_state *state, const char *text, size_t bytes, size_t n) {
    size_t begin, end;
    unsigned char first = (unsigned char)text[0], next = n < bytes ? (unsigned char)text[n] : 0;
    int plain = first < 0xd8 && next < 0xcc; /* below U+0600, followed by one below U+0300 */
    if (n == bytes || (plain && !(first == '\r' && next == '\n'))) return n;
    size_t look = bytes < 64 ? bytes : 64; /* a small grapheme ends long before */
    while (look < bytes && ((unsigned char)text[look] & 0xc0) == 0x80) look--;
    if (ravel__regex_search(step->regex, state, text, look, 0, &begin, &end) != 1 || begin) return n;
    return end;
}

/* Each character of text[at .. end). */
static ravel_status map_characters(ravel__rewriting *r, const ravel__charsmap *map, const char *text, size_t at,
                                   size_t end) {
    ravel_status status = RAVEL_OK;
    for (size_t n, used; at < end && !status; at += n) {
        n = ravel__utf8_width(text + at, end - at);
        const char *to = ravel__charsmap_find(map, text + at, n, 0, &used);
        status = to ? ravel__rewriting_put(r, to, strlen(to), at) : ravel__rewriting_put(r, text + at, n, at);
    }
    return status;
}

ravel_status ravel__normal_precompiled(ravel__rewriting *r, const ravel__normal *step, const char *text, size_t bytes) {
    ravel_status status = RAVEL_OK;
    for (size_t at = 0, n; at < bytes && !status; at += n) {
        size_t used, one = ravel__utf8_width(text + at, bytes - at);
        n = grapheme(step, r->state, text + at, bytes - at, one);
        const char *to = NULL;
        if (n > one && n < SMALL_GRAPHEME) to = ravel__charsmap_find(&step->map, text + at, n, 0, &used);
        status = to ? ravel__rewriting_put(r, to, strlen(to), at) : map_characters(r, &step->map, text, at, at + n);
    }
    return status;
}

/* ---- as sentencepiece does --------------------------------------------------------------------------------- */

/* One entry of the map, one symbol that stays as it is, or one character: what stands for it, and the bytes it took. */
typedef struct taken {
    const char *text;
    size_t bytes, used;
} taken;

typedef struct reading {
    const ravel__normal *step;
    const char *text;
    size_t bytes, symbol, symbol_end; /* the next symbol at or after the place; symbol SIZE_MAX: none */
} reading;

static taken take(reading *in, size_t at) {
    taken t = {in->text + at, 0, 0};
    int32_t id;
    int flags;
    if (in->symbol != SIZE_MAX && in->symbol < at &&
        !ravel__added_find(in->step->symbols, in->text, in->bytes, at, &in->symbol, &in->symbol_end, &id, &flags))
        in->symbol = SIZE_MAX;
    if (in->symbol == at) {
        t.bytes = t.used = in->symbol_end - at;
        return t;
    }
    const char *to = ravel__charsmap_find(&in->step->map, in->text + at, in->bytes - at, 1, &t.used);
    if (to) return t.text = to, t.bytes = strlen(to), t;
    t.bytes = t.used = ravel__utf8_width(in->text + at, in->bytes - at);
    return t;
}

static ravel_status put_escaped(ravel__rewriting *r, const taken *t, size_t at) {
    ravel_status status = RAVEL_OK;
    for (size_t i = 0, n; i < t->bytes && !status; i += n) {
        const char *space = memchr(t->text + i, ' ', t->bytes - i);
        n = space == t->text + i ? 1 : space ? (size_t)(space - t->text) - i : t->bytes - i;
        status = space == t->text + i ? ravel__rewriting_put(r, RAVEL__SPACE, 3, at)
                                      : ravel__rewriting_put(r, t->text + i, n, at);
    }
    return status;
}

ravel_status ravel__normal_sentencepiece(ravel__rewriting *r, const ravel__normal *step, const char *text,
                                         size_t bytes) {
    reading in = {step, text, bytes, SIZE_MAX, 0};
    ravel_status status = RAVEL_OK;
    int32_t id;
    int flags, tidy = step->tidy, after_space = tidy;
    size_t at = 0;
    (void)(ravel__added_find(step->symbols, text, bytes, 0, &in.symbol, &in.symbol_end, &id, &flags) ||
           (in.symbol = SIZE_MAX));
    for (taken t; tidy && at < bytes; at += t.used) {
        t = take(&in, at);
        if (t.bytes != 1 || *t.text != ' ') break;
    }
    if (at < bytes && step->dummy && r->is_start) status = ravel__rewriting_put(r, RAVEL__SPACE, 3, at);
    for (taken t; at < bytes && !status; at += t.used) {
        t = take(&in, at);
        for (; after_space && t.bytes && *t.text == ' '; t.bytes--) t.text++;
        if (t.bytes) after_space = tidy && t.text[t.bytes - 1] == ' ';
        status = put_escaped(r, &t, at);
    }
    while (tidy && r->out->bytes >= 3 && memcmp((char *)r->out->text.at + r->out->bytes - 3, RAVEL__SPACE, 3) == 0)
        r->out->bytes -= 3;
    return status;
}
