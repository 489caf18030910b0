/* Ids to text. A token's bytes may end inside a character, so a decoder holds back the bytes of a character that is not
 * whole yet, at most three. Bytes that cannot become a character give U+FFFD: one per longest start of a sequence,
 * as Unicode recommends and the `tokenizers` package does.
 *
 * Tokens of single bytes ("<0x0A>") are another matter there: a run of them that is not UTF-8 as a whole is one U+FFFD
 * per byte. One call does the same. A stream has shown the run's first characters by then, so it goes on as with any
 * bytes. */
#include "text/tokenizer.h"

#include "base/assert.h"
#include "text/decoder.h"
#include "text/unicode/unicode.h"

#include <string.h>

static const char replacement[] = "\xef\xbf\xbd";

/* How far the bytes at text[bytes], which begin no whole character, are the start of one: 1 .. 3, all of them possibly
 * to be continued; *open says whether they reach the end. */
static size_t broken_length(const char *text, size_t bytes, int *open) {
    RAVEL_ASSERT(bytes > 0);
    const unsigned char *u = (const unsigned char *)text;
    size_t want = u[0] >= 0xc2 && u[0] < 0xe0   ? 2
                  : u[0] >= 0xe0 && u[0] < 0xf0 ? 3
                  : u[0] >= 0xf0 && u[0] < 0xf5 ? 4
                                                : 1;
    unsigned char low = u[0] == 0xe0 ? 0xa0 : u[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high = u[0] == 0xed ? 0x9f : u[0] == 0xf4 ? 0x8f : 0xbf;
    size_t n = 1;
    for (; n < want && n < bytes && u[n] >= low && u[n] <= high; n++) low = 0x80, high = 0xbf;
    *open = n == bytes && n < want;
    RAVEL_ASSERT(n >= 1 && n <= bytes && n < 4);
    return n;
}

/* Where text goes: a caller's buffer that may be too small, or one that is always large enough. */
typedef struct sink {
    char *out;
    size_t room, need;
} sink;

static void put(sink *s, const char *text, size_t bytes) {
    if (s->need < s->room) {
        size_t fits = s->room - s->need;
        memcpy(s->out + s->need, text, bytes < fits ? bytes : fits);
    }
    s->need += bytes;
}

/* The first character of text[bytes], or U+FFFD for its broken start, is written; how many bytes it took. 0: it may
 * still be continued, and this is not the end. */
static size_t put_one(sink *s, const char *text, size_t bytes, int last) {
    RAVEL_ASSERT(bytes > 0);
    int open;
    size_t n = ravel__utf8_length(text, bytes);
    if (n) return put(s, text, n), n;
    n = broken_length(text, bytes, &open);
    if (open && !last) return 0;
    return put(s, replacement, 3), n;
}

/* Writes what is whole of held[*held_bytes] followed by text[bytes]; the rest, the start of a character, is then
 * held. */
static void feed(sink *s, char held[4], size_t *held_bytes, const char *text, size_t bytes, int last) {
    RAVEL_ASSERT(*held_bytes < 4);
    if (*held_bytes) {
        char joint[4];
        size_t before = *held_bytes, more = bytes < 4 - before ? bytes : 4 - before;
        memcpy(joint, held, before);
        if (more) memcpy(joint + before, text, more);
        size_t n = put_one(s, joint, before + more, last);
        RAVEL_ASSERT(n == 0 || n >= before);
        memcpy(held, joint, *held_bytes = n ? 0 : before + more);
        n = n ? n - before : more; /* what was held is the start of a character, so n is never less */
        if (!bytes) return;
        text += n;
        bytes -= n;
    }
    while (bytes) {
        size_t n = put_one(s, text, bytes, last);
        RAVEL_ASSERT(n > 0 || (bytes < 4 && !last)); /* only the start of a character is held */
        if (n == 0) memcpy(held, text, *held_bytes = n = bytes);
        text += n;
        bytes -= n;
    }
}

static const char *visible(const ravel_tokenizer *t, int32_t id, int32_t flags, size_t *bytes) {
    const char *text = ravel_tokenizer_bytes(t, id, bytes);
    if ((flags & RAVEL_DECODE_SKIP_SPECIAL) && ravel__tokenizer_is_special(t, id)) *bytes = 0;
    return text;
}

/* The first token of a text, as the tokenizer's decoder begins it. */
static void begin_text(const ravel_tokenizer *t, const char **text, size_t *bytes, int *begun) {
    if (*begun || t->strip == RAVEL__STRIP_NOTHING || *bytes == 0) return;
    *begun = 1;
    size_t most = t->strip == RAVEL__STRIP_SPACE ? 1 : *bytes;
    for (; most && *bytes && **text == ' '; most--) ++*text, --*bytes;
}

static int is_byte(const ravel_tokenizer *t, int32_t id) {
    const ravel__token *token = id >= 0 && id < t->vocab.size ? &t->vocab.tokens[id] : NULL;
    return token && token->byte_count == 1 && token->text_bytes == 6;
}

/* Where the run of tokens of bytes that begins at ids[0] ends, tokens without text included; *valid: it is UTF-8. */
static int64_t byte_run(const ravel_tokenizer *t, const int32_t *ids, int64_t count, int32_t flags, int *valid) {
    char held[4];
    size_t bytes, used = 0;
    int open;
    int64_t i = 0;
    *valid = 1;
    for (; i < count; i++) {
        const char *text = visible(t, ids[i], flags, &bytes);
        if (bytes == 0) continue;
        if (!is_byte(t, ids[i])) break;
        held[used++] = *text;
        if (ravel__utf8_length(held, used) == used)
            used = 0;
        else if (broken_length(held, used, &open), !open)
            *valid = used = 0;
        used = *valid ? used : 0;
    }
    *valid &= used == 0;
    return i;
}

size_t ravel_tokenizer_decode(const ravel_tokenizer *tokenizer, const int32_t *ids, int64_t count, int32_t flags,
                              char *out, size_t room) {
    sink s = {out, room, 0};
    char held[4];
    size_t held_bytes = 0, bytes;
    int begun = 0, valid = 1;
    for (int64_t i = 0, run_end = 0; i < count; i++) {
        const char *text = visible(tokenizer, ids[i], flags, &bytes);
        if (tokenizer->fallback && i >= run_end && is_byte(tokenizer, ids[i]))
            run_end = i + byte_run(tokenizer, ids + i, count - i, flags, &valid);
        if (!valid && i < run_end) {
            if (bytes) put(&s, replacement, 3), begun = 1;
            continue;
        }
        begin_text(tokenizer, &text, &bytes, &begun);
        if (bytes) feed(&s, held, &held_bytes, text, bytes, 0);
    }
    feed(&s, held, &held_bytes, NULL, 0, 1);
    if (room) out[s.need < room ? s.need : room - 1] = '\0';
    return s.need;
}

/* ---- streams -------------------------------------------------------------------------------------------- */

struct ravel__decoder {
    const ravel_tokenizer *tokenizer;
    const ravel_allocator *allocator;
    size_t bytes; /* of the whole object */
    int32_t flags;
    int begun;
    char held[4];
    size_t held_bytes, room;
    char out[]; /* three bytes for each byte of the longest token, and what was held */
};

static size_t longest_token(const ravel_tokenizer *t) {
    size_t longest = 0;
    for (int32_t id = 0; id < t->vocab.size; id++)
        if (t->vocab.tokens[id].byte_count > longest) longest = t->vocab.tokens[id].byte_count;
    return longest;
}

ravel_status ravel__decoder_create(const ravel_tokenizer *tokenizer, int32_t flags, const ravel_allocator *allocator,
                                   ravel__decoder **decoder, ravel_error *err) {
    size_t room = 3 * (longest_token(tokenizer) + 4), bytes = sizeof(ravel__decoder) + room;
    ravel__decoder *d = ravel__calloc(allocator, 1, bytes);
    if (!d) return ravel__no_memory(err, bytes, "a decoder");
    d->tokenizer = tokenizer;
    d->allocator = allocator;
    d->bytes = bytes;
    d->flags = flags;
    d->room = room;
    *decoder = d;
    return RAVEL_OK;
}

void ravel__decoder_free(ravel__decoder *decoder) {
    if (decoder) ravel__release(decoder->allocator, decoder, decoder->bytes);
}

static void show(ravel__decoder *d, const char *token, size_t token_bytes, int last, const char **text, size_t *bytes) {
    RAVEL_ASSERT(token || !token_bytes);
    sink s = {d->out, d->room, 0};
    feed(&s, d->held, &d->held_bytes, token, token_bytes, last);
    RAVEL_ASSERT(s.need <= d->room);
    *text = d->out;
    *bytes = s.need;
}

void ravel__decoder_push(ravel__decoder *decoder, int32_t id, const char **text, size_t *bytes) {
    size_t count;
    const char *token = visible(decoder->tokenizer, id, decoder->flags, &count);
    begin_text(decoder->tokenizer, &token, &count, &decoder->begun);
    show(decoder, token, count, 0, text, bytes);
}

void ravel__decoder_flush(ravel__decoder *decoder, const char **text, size_t *bytes) {
    show(decoder, NULL, 0, 1, text, bytes);
    decoder->begun = 0;
}
