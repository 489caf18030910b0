/* Unigram: of all ways to cut a word into tokens, the one with the largest sum of scores.
 *
 *     ends at   1  2  3  4  5        for each place, the best way to get there: its sum, and where its last token begins
 *     h e l l o                       from each place all tokens are tried that begin there, by a trie of their texts
 *
 * A character that begins no token of its own length costs the smallest score less ten, and becomes the unknown token,
 * one for a run of them, or the tokens of the run's bytes. */
#include "text/tokenizer.h"

#include "base/assert.h"
#include "text/unicode/unicode.h"

#include <string.h>

#define EMPTY UINT64_MAX

enum { FEWEST = 1 << 10 };

/* ---- the trie -------------------------------------------------------------------------------------------- */

static uint64_t edge_hash(uint64_t key) {
    key *= 0x9e3779b97f4a7c15u;
    return key ^ key >> 32;
}

/* The edge that leaves a node by a byte, or the empty slot where it would go. */
static ravel__pair *edge_at(const ravel__unigram *u, uint32_t from, unsigned char byte) {
    uint64_t key = (uint64_t)from << 8 | byte, at = edge_hash(key) & u->mask;
    while (u->edges[at].key != key && u->edges[at].key != EMPTY) at = (at + 1) & u->mask;
    return &u->edges[at];
}

/* Doubles the number of slots. */
static ravel_status grow(ravel__unigram *u, const ravel_allocator *allocator, ravel_error *err) {
    ravel__unigram larger = *u;
    uint64_t slots = u->edges ? 2 * (u->mask + 1) : FEWEST;
    larger.edges = ravel__alloc(allocator, slots * sizeof *larger.edges);
    if (!larger.edges) return ravel__no_memory(err, slots * sizeof *larger.edges, "the pieces of a tokenizer");
    memset(larger.edges, 0xff, slots * sizeof *larger.edges);
    larger.mask = slots - 1;
    for (uint64_t i = 0; u->edges && i <= u->mask; i++)
        if (u->edges[i].key != EMPTY)
            *edge_at(&larger, (uint32_t)(u->edges[i].key >> 8), (unsigned char)u->edges[i].key) = u->edges[i];
    ravel__unigram_free(u, allocator);
    *u = larger;
    return RAVEL_OK;
}

ravel_status ravel__unigram_add(ravel__unigram *u, const char *text, size_t bytes, int32_t id,
                                const ravel_allocator *allocator, ravel_error *err) {
    uint32_t node = 0;
    ravel_status status = RAVEL_OK;
    for (size_t i = 0; i < bytes && !status; i++) {
        if (!u->edges || 2 * (uint64_t)u->nodes > u->mask) status = grow(u, allocator, err);
        if (status) return status;
        ravel__pair *edge = edge_at(u, node, (unsigned char)text[i]);
        if (edge->key == EMPTY) *edge = (ravel__pair){(uint64_t)node << 8 | (unsigned char)text[i], 0, ++u->nodes};
        if (i + 1 == bytes) edge->rank = (uint32_t)id + 1;
        node = edge->whole;
    }
    return status;
}

void ravel__unigram_free(ravel__unigram *u, const ravel_allocator *allocator) {
    if (u->edges) ravel__release(allocator, u->edges, (u->mask + 1) * sizeof *u->edges);
    u->edges = NULL;
}

/* ---- the best path --------------------------------------------------------------------------------------- */

typedef struct place {
    double score;
    int32_t id, from; /* of the last token; from -1: not reached */
} place;

static double sum_of(const ravel__unigram *u, double a, double b) {
    return u->single ? (double)((float)a + (float)b) : a + b;
}

static void offer(place *to, double score, int32_t id, size_t from) {
    if (to->from < 0 || score > to->score) *to = (place){score, id, (int32_t)from};
}

static void find_path(const ravel__unigram *u, const char *word, size_t bytes, place *places) {
    for (size_t i = 0; i <= bytes; i++) places[i] = (place){0, 0, -1};
    for (size_t at = 0, n; at < bytes; at += n) {
        uint32_t node = 0;
        int single = 0;
        n = ravel__utf8_width(word + at, bytes - at);
        for (size_t end = at; end < bytes;) {
            const ravel__pair *edge = edge_at(u, node, (unsigned char)word[end++]);
            if (edge->key == EMPTY) break;
            node = edge->whole;
            if (!edge->rank) continue;
            int32_t id = (int32_t)edge->rank - 1;
            offer(&places[end], sum_of(u, u->scores[id], places[at].score), id, at);
            single |= end == at + n;
        }
        if (!single) offer(&places[at + n], sum_of(u, u->unknown_score, places[at].score), u->unknown, at);
    }
}

/* What a run of unknown characters becomes, written backwards from out[count]; the new count. */
static size_t put_unknown(const ravel__unigram *u, const ravel__vocab *vocab, const char *run, size_t bytes,
                          int32_t *out, size_t count) {
    int32_t id = ravel__vocab_find(vocab, run, bytes);
    size_t missing = 0;
    for (size_t i = 0; i < bytes; i++) missing += u->fallback[(unsigned char)run[i]] == RAVEL__NO_ID;
    if (id != RAVEL__NO_ID || missing) return out[count++] = id != RAVEL__NO_ID ? id : u->unknown, count;
    while (bytes) out[count++] = u->fallback[(unsigned char)run[--bytes]];
    return count;
}

/* The ids of the best path, last one first. */
static size_t follow(const ravel__unigram *u, const ravel__vocab *vocab, const char *word, size_t bytes,
                     const place *places, int32_t *out) {
    size_t count = 0;
    for (size_t end = bytes; end > 0;) {
        size_t from = (size_t)places[end].from;
        RAVEL_ASSERT(places[end].from >= 0 && from < end);
        if (places[end].id != u->unknown) {
            out[count++] = places[end].id;
        } else {
            while (from > 0 && places[from].id == u->unknown) from = (size_t)places[from].from;
            count = put_unknown(u, vocab, word + from, end - from, out, count);
        }
        end = from;
    }
    RAVEL_ASSERT(count <= bytes);
    return count;
}

ravel_status ravel__unigram_encode(const ravel__unigram *u, const ravel__vocab *vocab, ravel__paths *paths,
                                   const char *word, size_t bytes, const ravel_allocator *allocator,
                                   const int32_t **ids, size_t *count, ravel_error *err) {
    ravel_status status = ravel__buffer_reserve(&paths->places, allocator, bytes + 1, sizeof(place), "a text", err);
    if (!status) status = ravel__buffer_reserve(&paths->ids, allocator, bytes + 1, sizeof(int32_t), "a text", err);
    if (status) return status;
    int32_t *out = paths->ids.at;
    find_path(u, word, bytes, paths->places.at);
    *count = follow(u, vocab, word, bytes, paths->places.at, out);
    for (size_t i = 0; i < *count / 2; i++) {
        int32_t last = out[*count - 1 - i];
        out[*count - 1 - i] = out[i];
        out[i] = last;
    }
    *ids = out;
    return RAVEL_OK;
}

void ravel__paths_free(ravel__paths *paths, const ravel_allocator *allocator) {
    ravel__buffer_free(&paths->places, allocator);
    ravel__buffer_free(&paths->ids, allocator);
}
