/* Tokens by text and by id, and the byte-level alphabet. */
#include "text/tokenizer.h"

#include "base/assert.h"
#include "text/unicode/unicode.h"

#include <pthread.h>
#include <string.h>

/* ---- the table ------------------------------------------------------------------------------------------ */

static uint32_t hash(const char *text, size_t bytes) {
    uint64_t h = 0xcbf29ce484222325u ^ bytes;
    for (size_t i = 0; i < bytes; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return (uint32_t)(h ^ h >> 32);
}

ravel_status ravel__vocab_init(ravel__vocab *vocab, ravel__arena *arena, int32_t size, size_t text_bytes, int64_t texts,
                               ravel_error *err) {
    RAVEL_ASSERT(size >= 1 && texts >= 0);
    uint32_t slots = 16;
    while (slots < 2 * (uint64_t)texts) slots *= 2;
    vocab->room = 2 * text_bytes + (size_t)texts;
    vocab->tokens = ravel__arena_push(arena, (size_t)size, sizeof *vocab->tokens);
    vocab->slots = vocab->tokens ? ravel__arena_push(arena, slots, sizeof *vocab->slots) : NULL;
    vocab->pool = vocab->slots ? ravel__arena_push(arena, vocab->room, 1) : NULL;
    if (!vocab->pool) return ravel__no_memory(err, (size_t)size * sizeof *vocab->tokens, "a vocabulary");
    memset(vocab->tokens, 0, (size_t)size * sizeof *vocab->tokens);
    memset(vocab->slots, 0, slots * sizeof *vocab->slots);
    vocab->size = size;
    vocab->mask = slots - 1;
    RAVEL_ASSERT((slots & vocab->mask) == 0 && slots > (uint64_t)texts);
    return RAVEL_OK;
}

/* The slot that holds the text, or the empty one where it would go. */
static uint32_t *slot_of(const ravel__vocab *vocab, const char *text, size_t bytes) {
    uint32_t at = hash(text, bytes) & vocab->mask;
    for (; vocab->slots[at]; at = (at + 1) & vocab->mask) {
        RAVEL_ASSERT(vocab->slots[at] <= (uint32_t)vocab->size);
        const ravel__token *token = &vocab->tokens[vocab->slots[at] - 1];
        if (token->text_bytes == bytes && memcmp(token->text, text, bytes) == 0) break;
    }
    return &vocab->slots[at];
}

int32_t ravel__vocab_find(const ravel__vocab *vocab, const char *text, size_t bytes) {
    return (int32_t)*slot_of(vocab, text, bytes) - 1;
}

static char *take(ravel__vocab *vocab, size_t bytes) {
    RAVEL_ASSERT(bytes <= vocab->room - vocab->used);
    char *at = vocab->pool + vocab->used;
    vocab->used += bytes;
    RAVEL_ASSERT(vocab->used <= vocab->room);
    return at;
}

static int hex(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0x0A>" is a byte; 0: it is none. */
static int is_byte_token(const char *t, size_t bytes, char *byte) {
    if (bytes != 6 || memcmp(t, "<0x", 3) != 0 || t[5] != '>' || hex(t[3]) < 0 || hex(t[4]) < 0) return 0;
    *byte = (char)(hex(t[3]) * 16 + hex(t[4]));
    return 1;
}

/* The bytes of a token of characters: spaces for "\u2581". */
static size_t spell_spaced(const char *text, size_t text_bytes, char *out) {
    size_t count = 0;
    if (is_byte_token(text, text_bytes, out)) return 1;
    for (size_t at = 0; at < text_bytes;) {
        int space = text_bytes - at >= 3 && memcmp(text + at, RAVEL__SPACE, 3) == 0;
        out[count++] = space ? ' ' : text[at];
        at += space ? 3 : 1;
    }
    return count;
}

size_t ravel__vocab_spell(const ravel__vocab *vocab, const char *text, size_t text_bytes, char *out) {
    if (vocab->spaced) return spell_spaced(text, text_bytes, out);
    size_t count = ravel__alphabet_decode(ravel__byte_alphabet(), text, text_bytes, out);
    if (count == SIZE_MAX) memcpy(out, text, count = text_bytes);
    RAVEL_ASSERT(count <= text_bytes); /* a character of the alphabet is one byte */
    return count;
}

ravel_status ravel__vocab_add(ravel__vocab *vocab, const char *text, size_t bytes, int32_t id, ravel_error *err) {
    uint32_t *slot = slot_of(vocab, text, bytes);
    RAVEL_ASSERT(id >= 0 && id < vocab->size);
    ravel__token *token = &vocab->tokens[id];
    int shown = (int)(bytes < 60 ? bytes : 60); /* a text out of a file has no NUL behind it */
    if (*slot)
        return ravel_error_set(err, RAVEL_E_DATA, "the token \"%.*s\" has two ids, %d and %d", shown, text,
                               (int)(*slot - 1), (int)id);
    if (token->text)
        return ravel_error_set(err, RAVEL_E_DATA, "the id %d is given to two tokens, \"%.60s\" and \"%.*s\"", (int)id,
                               token->text, shown, text);
    char *copy = take(vocab, bytes + 1);
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    token->text = copy;
    token->text_bytes = (uint32_t)bytes;
    *slot = (uint32_t)id + 1;
    char *spelled = take(vocab, bytes);
    token->bytes = spelled;
    token->byte_count = (uint32_t)ravel__vocab_spell(vocab, copy, bytes, spelled);
    return RAVEL_OK;
}

/* ---- the alphabet --------------------------------------------------------------------------------------- */

static int is_printable(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
}

static ravel__alphabet byte_alphabet;

static void fill_alphabet(void) {
    ravel__alphabet *a = &byte_alphabet;
    uint32_t next = 256;
    memset(a->byte_of, 0xff, sizeof a->byte_of);
    for (int byte = 0; byte < 256; byte++) {
        uint32_t point = is_printable(byte) ? (uint32_t)byte : next++;
        a->length[byte] = (uint8_t)ravel__utf8_put(a->text[byte], point);
        RAVEL_ASSERT(point < sizeof a->byte_of / sizeof *a->byte_of && a->byte_of[point] < 0);
        a->byte_of[point] = (int16_t)byte;
    }
}

const ravel__alphabet *ravel__byte_alphabet(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, fill_alphabet);
    return &byte_alphabet;
}

size_t ravel__alphabet_decode(const ravel__alphabet *alphabet, const char *text, size_t bytes, char *out) {
    size_t count = 0;
    uint32_t point;
    for (size_t at = 0; at < bytes;) {
        at += ravel__utf8_get(text + at, &point);
        int byte = point < sizeof alphabet->byte_of / sizeof *alphabet->byte_of ? alphabet->byte_of[point] : -1;
        if (byte < 0) return SIZE_MAX;
        out[count++] = (char)byte;
    }
    return count;
}
