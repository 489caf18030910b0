/* Text to ids:
 *
 *     text                  "Hi<|im_end|>x"
 *     added tokens, raw      "Hi"  [<|im_end|>]  "x"       tokens found in the text as it came
 *     normalizers, again     each piece                    tokens found in the normalized text
 *     words                  "Hi"                          by the pre-tokenizers
 *     ids                    17250                         by the model
 *
 * The start of each token is kept too, in bytes of the caller's text. */
#include "text/tokenizer.h"

#include "base/assert.h"
#include "base/buffer.h"
#include "text/unicode/unicode.h"

#include <inttypes.h>
#include <string.h>

struct ravel_encoder {
    const ravel_tokenizer *tokenizer;
    const ravel_allocator *allocator;
    ravel__regex_state *state;
    ravel__words *words;
    ravel__nfc nfc;
    ravel__rewritten normal[2], spaced; /* by the normalizers in turn, by the pre-tokenizer */
    ravel__buffer ids, begins, prefixed, aged;
    ravel_encoding encoding;
    int64_t count;
    int32_t flags;
    /* the piece that is being cut into words */
    const char *piece;
    size_t origin;           /* where it begins in the caller's text */
    const uint32_t *origins; /* of its bytes, counted from `origin`; NULL: each byte is its own */
    size_t shift;            /* bytes put before it */
};

static ravel_status push(ravel_encoder *e, const int32_t *ids, size_t count, ravel_error *err) {
    RAVEL_ASSERT(e->count >= 0 && (ids || !count));
    ravel_status status =
        ravel__buffer_reserve(&e->ids, e->allocator, (size_t)e->count + count + 1, sizeof(int32_t), "a text", err);
    if (!status)
        status = ravel__buffer_reserve(&e->begins, e->allocator, (size_t)e->count + count + 1, sizeof(uint32_t),
                                       "a text", err);
    if (status) return status;
    for (size_t i = 0; i < count; i++) RAVEL_ASSERT(ids[i] >= 0 && ids[i] < e->tokenizer->vocab.size);
    memcpy((int32_t *)e->ids.at + e->count, ids, count * sizeof *ids);
    return RAVEL_OK;
}

/* Where byte `at` of the piece is in the caller's text. */
static uint32_t place(const ravel_encoder *e, size_t at) {
    at = at > e->shift ? at - e->shift : 0;
    RAVEL_ASSERT(e->shift <= 1);
    return (uint32_t)(e->origin + (e->origins ? e->origins[at] : at));
}

/* ---- words ---------------------------------------------------------------------------------------------- */

/* How many bytes a token takes of what is left of the word. */
static size_t width(const ravel_tokenizer *t, int32_t id, const char *at, size_t bytes) {
    const ravel__token *token = &t->vocab.tokens[id];
    if (!t->vocab.spaced || (token->byte_count == 1 && token->text_bytes == 6)) return token->byte_count;
    return id == t->bpe.unknown ? ravel__utf8_width(at, bytes) : token->text_bytes;
}

static ravel_status encode_word(ravel_encoder *e, const char *word, size_t bytes, ravel_error *err) {
    const ravel_tokenizer *t = e->tokenizer;
    const int32_t *ids;
    size_t count;
    ravel_status status = ravel__words_encode(e->words, t, word, bytes, &ids, &count, err);
    if (!status) status = push(e, ids, count, err);
    if (status) return status;
    size_t at = (size_t)(word - e->piece), end = at + bytes;
    RAVEL_ASSERT(bytes > 0 && word >= e->piece);
    uint32_t *begins = e->begins.at;
    for (size_t i = 0; i < count; i++) {
        begins[e->count++] = place(e, at);
        size_t next = at + width(t, ids[i], e->piece + at, end - at);
        at = next < end ? next : end - 1; /* an unknown token may be longer than what it stands for */
    }
    return RAVEL_OK;
}

/* A word of the pre-tokenizers; in tokenizers of characters it may be cut once more. */
static ravel_status take_word(void *user, const char *word, size_t bytes, ravel_error *err) {
    ravel_encoder *e = user;
    int split = e->tokenizer->split_spaces;
    ravel_status status = RAVEL_OK;
    while (split && bytes && !status) {
        size_t n = ravel__spaces_word(word, bytes, split == 2);
        status = encode_word(e, word, n, err);
        word += n;
        bytes -= n;
    }
    return bytes && !status ? encode_word(e, word, bytes, err) : status;
}

/* A copy of the piece in which a space goes first. */
static ravel_status put_space(ravel_encoder *e, const char **text, size_t *bytes, ravel_error *err) {
    ravel_status status = ravel__buffer_reserve(&e->prefixed, e->allocator, *bytes + 1, 1, "a text", err);
    if (status) return status;
    char *copy = e->prefixed.at;
    copy[0] = ' ';
    memcpy(copy + 1, *text, *bytes);
    *text = copy;
    *bytes += 1;
    e->shift = 1;
    return RAVEL_OK;
}

/* What is searched: the text, or a copy without characters that the regex library may not know. */
static ravel_status searchable(ravel_encoder *e, const char *text, size_t bytes, int seen, const char **searched,
                               ravel_error *err) {
    *searched = text;
    if (!(seen & RAVEL__TEXT_RECENT)) return RAVEL_OK;
    ravel_status status = ravel__buffer_reserve(&e->aged, e->allocator, bytes, 1, "a text", err);
    if (status) return status;
    memcpy(e->aged.at, text, bytes);
    ravel__utf8_age(e->aged.at, bytes);
    *searched = e->aged.at;
    return RAVEL_OK;
}

static ravel_status encode_words(ravel_encoder *e, const char *text, size_t bytes, int seen, ravel_error *err) {
    const ravel__cutter cutter = {e->tokenizer, e->state, take_word, e};
    const char *searched;
    ravel_status status = RAVEL_OK;
    if (bytes == 0) return RAVEL_OK;
    e->shift = 0;
    if (e->tokenizer->prefix_space && text[0] != ' ') status = put_space(e, &text, &bytes, err);
    const ravel__spacing *spacing = &e->tokenizer->metaspace;
    if (!status && (spacing->replace || spacing->prepend)) {
        ravel__rewritten *out = &e->spaced;
        int is_start = e->origin + (e->origins ? e->origins[0] : 0) == 0;
        status = ravel__spaces_write(out, spacing, text, bytes, e->origins, is_start, e->allocator, err);
        if (status) return status;
        text = out->text.at;
        bytes = out->bytes;
        e->origins = out->origins.at;
        if (bytes == 0) return RAVEL_OK; /* white space alone, which the pre-tokenizer leaves out */
    }
    e->piece = text;
    RAVEL_ASSERT(status || e->shift == 0 || text[0] == ' ');
    if (!status) status = searchable(e, text, bytes, seen, &searched, err);
    return status ? status : ravel__cut_words(&cutter, 0, text, searched, bytes, err);
}

/* ---- pieces --------------------------------------------------------------------------------------------- */

typedef ravel_status (*take_piece)(ravel_encoder *e, const char *text, size_t bytes, size_t origin, int seen,
                                   ravel_error *err);

/* Cuts a text at its added tokens. Tokens that take white space with them may overlap the next one; both are given. */
static ravel_status cut_added(ravel_encoder *e, const ravel__added *added, const char *text, size_t bytes, int seen,
                              take_piece take, const uint32_t *origins, size_t origin, ravel_error *err) {
    size_t done = 0, from = 0, begin, end;
    int32_t id;
    int flags;
    ravel_status status = RAVEL_OK;
    while (!status && ravel__added_find(added, text, bytes, from, &begin, &end, &id, &flags)) {
        from = end;
        RAVEL_ASSERT(begin < end && end <= bytes && id < e->tokenizer->vocab.size);
        if ((e->flags & RAVEL_ENCODE_PLAIN) && e->tokenizer->vocab.tokens[id].special) continue;
        if (flags & RAVEL__ADDED_LEFT) begin -= ravel__spaces_before(text, begin);
        if ((flags & RAVEL__ADDED_LEFT) && begin < done) begin = done;
        if (flags & RAVEL__ADDED_RIGHT) end += ravel__spaces_after(text + end, bytes - end);
        e->origins = origins ? origins + done : NULL;
        RAVEL_ASSERT(done <= bytes && end <= bytes);
        if (done < begin) status = take(e, text + done, begin - done, origin + (origins ? 0 : done), seen, err);
        if (!status) status = push(e, &id, 1, err);
        if (status) return status;
        ((uint32_t *)e->begins.at)[e->count++] = (uint32_t)(origin + (origins ? origins[begin] : begin));
        done = end;
    }
    e->origins = origins ? origins + done : NULL;
    if (!status && done < bytes) status = take(e, text + done, bytes - done, origin + (origins ? 0 : done), seen, err);
    return status;
}

static ravel_status take_normalized(ravel_encoder *e, const char *text, size_t bytes, size_t origin, int seen,
                                    ravel_error *err) {
    RAVEL_ASSERT(bytes > 0);
    e->origin = origin;
    return encode_words(e, text, bytes, seen, err);
}

static ravel_status take_raw(ravel_encoder *e, const char *text, size_t bytes, size_t origin, int seen,
                             ravel_error *err) {
    const uint32_t *origins = NULL;
    ravel_status status = ravel__normalize(e->tokenizer, e->normal, &e->nfc, e->state, seen, origin == 0, &text, &bytes,
                                           &origins, e->allocator, err);
    if (status) return status;
    return cut_added(e, &e->tokenizer->added[1], text, bytes, seen, take_normalized, origins, origin, err);
}

/* ---- the call ------------------------------------------------------------------------------------------- */

/* Tokens of the template, all at one place. */
static ravel_status push_template(ravel_encoder *e, const int32_t *ids, int32_t count, size_t at, ravel_error *err) {
    RAVEL_ASSERT(count >= 0);
    if (!(e->flags & RAVEL_ENCODE_TEMPLATE) || count == 0) return RAVEL_OK;
    ravel_status status = push(e, ids, (size_t)count, err);
    for (int32_t i = 0; i < count && !status; i++) ((uint32_t *)e->begins.at)[e->count++] = (uint32_t)at;
    return status;
}

ravel_status ravel_encoder_encode(ravel_encoder *e, const char *text, size_t bytes, int32_t flags,
                                  const ravel_encoding **encoding, ravel_error *err) {
    const ravel_tokenizer *t = e->tokenizer;
    int seen;
    if (bytes > INT32_MAX)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "a text of %zu bytes is too long; at most 2147483647", bytes);
    size_t valid = ravel__utf8_scan(text, bytes, &seen);
    if (valid < bytes)
        return ravel_error_set(err, RAVEL_E_DATA, "the text is not valid UTF-8: byte 0x%02x at %zu",
                               (unsigned char)text[valid], valid);
    e->count = 0;
    e->flags = flags;
    ravel_status status = push_template(e, t->prefix, t->prefix_count, 0, err);
    if (!status) status = cut_added(e, &t->added[0], text, bytes, seen, take_raw, NULL, 0, err);
    if (!status) status = push_template(e, t->suffix, t->suffix_count, bytes, err);
    if (status) return status;
    RAVEL_ASSERT(e->count == 0 || (e->ids.at && e->begins.at));
    e->encoding = (ravel_encoding){e->count, e->ids.at, e->begins.at};
    *encoding = &e->encoding;
    return RAVEL_OK;
}

ravel_status ravel_encoder_create(const ravel_tokenizer *tokenizer, const ravel_allocator *allocator,
                                  ravel_encoder **encoder, ravel_error *err) {
    ravel_encoder *e = ravel__calloc(allocator, 1, sizeof *e);
    if (!e) return ravel__no_memory(err, sizeof *e, "an encoder");
    e->tokenizer = tokenizer;
    e->allocator = allocator;
    ravel_status status = ravel__words_create(allocator, &e->words, err);
    if (!status && tokenizer->patterns) status = ravel__regex_state_create(allocator, &e->state, err);
    if (status)
        ravel_encoder_free(e);
    else
        *encoder = e;
    return status;
}

void ravel_encoder_free(ravel_encoder *e) {
    if (!e) return;
    ravel__buffer *each[] = {&e->ids, &e->begins, &e->prefixed, &e->aged};
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) ravel__buffer_free(each[i], e->allocator);
    ravel__nfc_free(&e->nfc, e->allocator);
    for (int i = 0; i < 2; i++) ravel__rewritten_free(&e->normal[i], e->allocator);
    ravel__rewritten_free(&e->spaced, e->allocator);
    ravel__words_free(e->words);
    ravel__regex_state_free(e->state);
    ravel__release(e->allocator, e, sizeof *e);
}
