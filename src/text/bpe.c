/* Byte-pair encoding of one word.
 *
 *     word   h  e  l  l  o          symbols, one per byte to begin with
 *     rank    7  -  2  9            of each neighbouring pair; "-": not in the merges
 *                   ^ lowest        merged first; of equal ranks the leftmost
 *            h  e  ll   o           and its two new neighbours are looked up
 *
 * A short word is searched for its lowest rank again and again, in one small array. A long one (text without spaces)
 * uses a heap of (rank, place) and a linked list, so that its time grows as n log n. */
#include "text/tokenizer.h"

#include "base/assert.h"
#include "base/buffer.h"
#include "base/heap.h"
#include "text/unicode/unicode.h"

#include <string.h>

#define EMPTY   UINT64_MAX
#define NO_RANK RAVEL__NO_RANK

enum { SHORT = 40 };

struct ravel__bpe_scratch {
    const ravel_allocator *allocator;
    int32_t ids[SHORT];
    ravel__buffer symbols, ranks, next, previous, heap, text;
};

/* ---- pairs ---------------------------------------------------------------------------------------------- */

static uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

static uint64_t pair_hash(uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    return key ^ key >> 32;
}

ravel_status ravel__bpe_init(ravel__bpe *bpe, ravel__arena *arena, int64_t merges, ravel_error *err) {
    RAVEL_ASSERT(merges >= 0);
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)merges) slots *= 2;
    bpe->pairs = ravel__arena_push(arena, slots, sizeof *bpe->pairs);
    if (!bpe->pairs) return ravel__no_memory(err, slots * sizeof *bpe->pairs, "the merges of a tokenizer");
    memset(bpe->pairs, 0xff, slots * sizeof *bpe->pairs);
    bpe->mask = slots - 1;
    RAVEL_ASSERT((slots & bpe->mask) == 0 && slots > (uint64_t)merges); /* a search always meets an empty slot */
    return RAVEL_OK;
}

static ravel__pair *pair_slot(const ravel__bpe *bpe, uint64_t key) {
    RAVEL_ASSERT(key != EMPTY);
    uint64_t at = pair_hash(key) & bpe->mask;
    while (bpe->pairs[at].key != key && bpe->pairs[at].key != EMPTY) at = (at + 1) & bpe->mask;
    return &bpe->pairs[at];
}

void ravel__bpe_add(ravel__bpe *bpe, int32_t left, int32_t right, uint32_t rank, int32_t whole) {
    uint64_t key = pair_key(left, right);
    ravel__pair *slot = pair_slot(bpe, key);
    RAVEL_ASSERT(key != EMPTY && rank != NO_RANK && whole >= 0);
    slot->key = key;
    slot->rank = rank;
    slot->whole = (uint32_t)whole;
}

/* An empty slot has all bits set, so its rank is NO_RANK. */
static uint32_t rank_of(const ravel__bpe *bpe, int32_t left, int32_t right) {
    return pair_slot(bpe, pair_key(left, right))->rank;
}

static int32_t whole_of(const ravel__bpe *bpe, int32_t left, int32_t right) {
    RAVEL_ASSERT(rank_of(bpe, left, right) != NO_RANK); /* only pairs of the merges become one */
    return (int32_t)pair_slot(bpe, pair_key(left, right))->whole;
}

enum { LONGEST_TOKEN = 1 << 14 };

/* Every way to make a token of two others, into list; how many. */
static ravel_status list_parts(const ravel__vocab *vocab, const uint32_t *ranks, int32_t id, ravel__buffer *list,
                               int64_t *count, const ravel_allocator *allocator, ravel_error *err) {
    const ravel__token *token = &vocab->tokens[id];
    if (token->text_bytes > LONGEST_TOKEN) /* the ways to cut it are looked up, each by all of its bytes */
        return ravel_error_set(err, RAVEL_E_DATA, "token %d has %u bytes, over the limit of %d", (int)id,
                               (unsigned)token->text_bytes, LONGEST_TOKEN);
    ravel_status status =
        ravel__buffer_reserve(list, allocator, *count + token->text_bytes, sizeof(ravel__pair), "merges", err);
    for (size_t at = 1; at < token->text_bytes && !status; at++) {
        if (((unsigned char)token->text[at] & 0xc0) == 0x80) continue;
        int32_t left = ravel__vocab_find(vocab, token->text, at), right = RAVEL__NO_ID;
        if (left == RAVEL__NO_ID || ranks[left] == NO_RANK) continue;
        right = ravel__vocab_find(vocab, token->text + at, token->text_bytes - at);
        if (right == RAVEL__NO_ID || ranks[right] == NO_RANK) continue;
        ((ravel__pair *)list->at)[(*count)++] = (ravel__pair){pair_key(left, right), ranks[id], (uint32_t)id};
    }
    return status;
}

ravel_status ravel__bpe_derive(ravel__bpe *bpe, const ravel__vocab *vocab, const uint32_t *ranks, ravel__arena *arena,
                               const ravel_allocator *allocator, ravel_error *err) {
    ravel__buffer list = {0};
    int64_t count = 0;
    ravel_status status = RAVEL_OK;
    for (int32_t id = 0; id < vocab->size && !status; id++)
        if (ranks[id] != NO_RANK && vocab->tokens[id].text)
            status = list_parts(vocab, ranks, id, &list, &count, allocator, err);
    if (!status) status = ravel__bpe_init(bpe, arena, count, err);
    const ravel__pair *parts = list.at;
    for (int64_t i = 0; i < count && !status; i++)
        ravel__bpe_add(bpe, (int32_t)(parts[i].key >> 32), (int32_t)(uint32_t)parts[i].key, parts[i].rank,
                       (int32_t)parts[i].whole);
    ravel__buffer_free(&list, allocator);
    return status;
}

/* ---- symbols -------------------------------------------------------------------------------------------- */

/* Characters to symbols: one in no token becomes the tokens of its bytes, if all of them are there, else the unknown
 * token. */
static size_t first_characters(const ravel__bpe *bpe, const ravel__vocab *vocab, const char *word, size_t bytes,
                               int32_t *symbols) {
    size_t count = 0;
    int in_run = 0;
    for (size_t at = 0, n; at < bytes; at += n) {
        unsigned char first = (unsigned char)word[at];
        n = ravel__utf8_width(word + at, bytes - at);
        int32_t id = first < 128 ? bpe->byte_ids[first] : ravel__vocab_find(vocab, word + at, n);
        size_t missing = 0;
        for (size_t i = 0; id == RAVEL__NO_ID && i < n; i++)
            missing += bpe->fallback[(unsigned char)word[at + i]] == RAVEL__NO_ID;
        if (id == RAVEL__NO_ID && !missing) {
            for (size_t i = 0; i < n; i++) symbols[count++] = bpe->fallback[(unsigned char)word[at + i]];
            in_run = 0;
            continue;
        }
        int unknown = id == RAVEL__NO_ID;
        if (unknown && !(in_run && bpe->fuse_unknown)) id = bpe->unknown;
        if (id != RAVEL__NO_ID) symbols[count++] = id;
        in_run = unknown;
    }
    RAVEL_ASSERT(count <= bytes);
    return count;
}

/* Bytes to symbols; a byte that is in no token becomes the unknown token, once per run where that is asked for, or
 * nothing. */
static size_t first_symbols(const ravel__bpe *bpe, const ravel__vocab *vocab, const char *word, size_t bytes,
                            int32_t *symbols) {
    if (bpe->by_character) return first_characters(bpe, vocab, word, bytes, symbols);
    size_t count = 0;
    int in_run = 0;
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = bpe->byte_ids[(unsigned char)word[i]];
        int unknown = id == RAVEL__NO_ID;
        if (unknown && !(in_run && bpe->fuse_unknown)) id = bpe->unknown;
        if (id != RAVEL__NO_ID) symbols[count++] = id;
        in_run = unknown;
    }
    RAVEL_ASSERT(count <= bytes);
    return count;
}

/* ---- short words ---------------------------------------------------------------------------------------- */

static size_t merge_short(const ravel__bpe *bpe, int32_t *symbols, size_t count) {
    uint32_t ranks[SHORT + 1];
    RAVEL_ASSERT(count <= SHORT);
    for (size_t i = 0; i + 1 < count; i++) ranks[i] = rank_of(bpe, symbols[i], symbols[i + 1]);
    RAVEL_ASSERT(count == 0 || symbols[0] >= 0);
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++)
            if (ranks[i] < ranks[best]) best = i;
        if (ranks[best] == NO_RANK) break;
        RAVEL_ASSERT(best + 1 < count);
        symbols[best] = whole_of(bpe, symbols[best], symbols[best + 1]);
        count--;
        memmove(symbols + best + 1, symbols + best + 2, (count - best - 1) * sizeof *symbols);
        if (count > best + 2) memmove(ranks + best + 1, ranks + best + 2, (count - best - 2) * sizeof *ranks);
        if (best + 1 < count) ranks[best] = rank_of(bpe, symbols[best], symbols[best + 1]);
        if (best > 0) ranks[best - 1] = rank_of(bpe, symbols[best - 1], symbols[best]);
    }
    return count;
}

/* ---- long words ----------------------------------------------------------------------------------------- */

typedef struct chain {
    const ravel__bpe *bpe;
    int32_t *symbols, *next, *previous; /* [count]; -1: none */
    uint32_t *ranks;                    /* of the pair that begins here, NO_RANK: none, or merged away */
    ravel__heap heap;
} chain;

/* Looks the pair at `at` up; lower ranks, then lower places, have larger keys. */
static void rank_pair(chain *c, int32_t at) {
    int32_t next = c->next[at];
    c->ranks[at] = next < 0 ? NO_RANK : rank_of(c->bpe, c->symbols[at], c->symbols[next]);
    RAVEL_ASSERT(next < 0 || c->previous[next] == at);
    if (c->ranks[at] != NO_RANK) ravel__heap_push(&c->heap, -((int64_t)c->ranks[at] << 32 | (int64_t)at), at);
}

static void merge_at(chain *c, int32_t at) {
    int32_t next = c->next[at], after = c->next[next];
    RAVEL_ASSERT(next > at && (after < 0 || after > next) && c->previous[next] == at);
    c->symbols[at] = whole_of(c->bpe, c->symbols[at], c->symbols[next]);
    c->ranks[next] = NO_RANK;
    c->next[at] = after;
    if (after >= 0) c->previous[after] = at;
    rank_pair(c, at);
    if (c->previous[at] >= 0) rank_pair(c, c->previous[at]);
}

static size_t merge_long(chain *c, size_t count) {
    RAVEL_ASSERT(count <= INT32_MAX && c->heap.count == 0);
    for (int32_t i = 0; i < (int32_t)count; i++) {
        c->next[i] = i + 1 < (int32_t)count ? i + 1 : -1;
        c->previous[i] = i - 1;
    }
    for (int32_t i = 0; i < (int32_t)count; i++) rank_pair(c, i);
    while (c->heap.count) {
        uint32_t rank = (uint32_t)(-c->heap.at[0].key >> 32);
        int32_t at = ravel__heap_pop(&c->heap);
        RAVEL_ASSERT(at >= 0 && (size_t)at < count);
        if (c->ranks[at] == rank) merge_at(c, at); /* else the pair has changed since */
    }
    size_t kept = 0;
    for (int32_t i = count ? 0 : -1; i >= 0; i = c->next[i]) c->symbols[kept++] = c->symbols[i];
    RAVEL_ASSERT(kept <= count);
    return kept;
}

static ravel_status encode_long(const ravel__bpe *bpe, const ravel__vocab *vocab, ravel__bpe_scratch *s,
                                const char *word, size_t bytes, const int32_t **ids, size_t *count, ravel_error *err) {
    ravel__buffer *each[] = {&s->symbols, &s->ranks, &s->next, &s->previous};
    ravel_status status = RAVEL_OK;
    for (int i = 0; i < 4 && !status; i++)
        status = ravel__buffer_reserve(each[i], s->allocator, bytes, sizeof(int32_t), "a text", err);
    /* one entry per first pair, two per merge, one taken out before each merge */
    if (!status)
        status = ravel__buffer_reserve(&s->heap, s->allocator, 2 * bytes + 2, sizeof(ravel__node), "a text", err);
    if (status) return status;
    chain c = {bpe, s->symbols.at, s->next.at, s->previous.at, s->ranks.at, {s->heap.at, 0}};
    size_t symbols = first_symbols(bpe, vocab, word, bytes, c.symbols);
    RAVEL_ASSERT(symbols <= bytes);
    *count = merge_long(&c, symbols);
    RAVEL_ASSERT(c.heap.count == 0 && *count <= symbols);
    *ids = c.symbols;
    return RAVEL_OK;
}

/* ---- one word ------------------------------------------------------------------------------------------- */

static ravel_status find_whole(const ravel__vocab *vocab, ravel__bpe_scratch *s, const char *word, size_t bytes,
                               int32_t *id, ravel_error *err) {
    const ravel__alphabet *alphabet = ravel__byte_alphabet();
    ravel_status status = ravel__buffer_reserve(&s->text, s->allocator, bytes, 2, "a text", err);
    if (status) return status;
    char *out = s->text.at;
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)word[i];
        memcpy(out, alphabet->text[byte], alphabet->length[byte]);
        out += alphabet->length[byte];
    }
    RAVEL_ASSERT((size_t)(out - (char *)s->text.at) <= s->text.room);
    *id = ravel__vocab_find(vocab, s->text.at, (size_t)(out - (char *)s->text.at));
    return RAVEL_OK;
}

ravel_status ravel__bpe_encode(const ravel__bpe *bpe, const ravel__vocab *vocab, ravel__bpe_scratch *s,
                               const char *word, size_t bytes, const int32_t **ids, size_t *count, ravel_error *err) {
    int32_t id = RAVEL__NO_ID;
    ravel_status status = RAVEL_OK;
    if (bpe->whole_words && bpe->by_character)
        id = ravel__vocab_find(vocab, word, bytes);
    else if (bpe->whole_words)
        status = find_whole(vocab, s, word, bytes, &id, err);
    if (status) return status;
    *ids = s->ids;
    *count = 1;
    if (id != RAVEL__NO_ID) {
        s->ids[0] = id;
        return RAVEL_OK;
    }
    RAVEL_ASSERT(word || !bytes);
    if (bytes > SHORT) return encode_long(bpe, vocab, s, word, bytes, ids, count, err);
    *count = merge_short(bpe, s->ids, first_symbols(bpe, vocab, word, bytes, s->ids));
    return RAVEL_OK;
}

/* ---- memory --------------------------------------------------------------------------------------------- */

ravel_status ravel__bpe_scratch_create(const ravel_allocator *allocator, ravel__bpe_scratch **scratch,
                                       ravel_error *err) {
    ravel__bpe_scratch *s = ravel__calloc(allocator, 1, sizeof *s);
    if (!s) return ravel__no_memory(err, sizeof *s, "an encoder");
    s->allocator = allocator;
    *scratch = s;
    return RAVEL_OK;
}

void ravel__bpe_scratch_free(ravel__bpe_scratch *s) {
    if (!s) return;
    ravel__buffer *each[] = {&s->symbols, &s->ranks, &s->next, &s->previous, &s->heap, &s->text};
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++) ravel__buffer_free(each[i], s->allocator);
    ravel__release(s->allocator, s, sizeof *s);
}
