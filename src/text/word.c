/* One word to ids, by the tokenizer's model. Words that came before are in a cache, which is most of them in real
 * text. */
#include "text/tokenizer.h"

#include "base/assert.h"

#include <string.h>

enum { CACHE_BITS = 14, CACHE_WORD = 18, CACHE_IDS = 10 };

/* One line of the processor's cache. */
typedef struct cached {
    uint32_t hash;
    uint8_t bytes, count; /* bytes 0: empty */
    char word[CACHE_WORD];
    int32_t ids[CACHE_IDS];
} cached;

struct ravel__words {
    const ravel_allocator *allocator;
    cached *cache; /* [2^CACHE_BITS]: a word goes to the one place that its hash says */
    ravel__bpe_scratch *merging;
    ravel__paths paths;
};

static uint32_t word_hash(const char *word, size_t bytes) {
    uint64_t h = bytes * 0x9e3779b97f4a7c15u, x;
    for (; bytes >= 8; word += 8, bytes -= 8) {
        memcpy(&x, word, 8);
        h = (h ^ x) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    x = 0;
    memcpy(&x, word, bytes);
    h = (h ^ x) * 0xff51afd7ed558ccdu;
    return (uint32_t)(h >> 32);
}

static ravel_status encode(ravel__words *w, const ravel_tokenizer *t, const char *word, size_t bytes,
                           const int32_t **ids, size_t *count, ravel_error *err) {
    if (t->unigram.edges)
        return ravel__unigram_encode(&t->unigram, &t->vocab, &w->paths, word, bytes, w->allocator, ids, count, err);
    return ravel__bpe_encode(&t->bpe, &t->vocab, w->merging, word, bytes, ids, count, err);
}

ravel_status ravel__words_encode(ravel__words *w, const ravel_tokenizer *t, const char *word, size_t bytes,
                                 const int32_t **ids, size_t *count, ravel_error *err) {
    if (bytes == 0 || bytes > CACHE_WORD) return encode(w, t, word, bytes, ids, count, err);
    uint32_t hash = word_hash(word, bytes);
    cached *c = &w->cache[hash >> (32 - CACHE_BITS)];
    RAVEL_ASSERT(c->count <= CACHE_IDS && c->bytes <= CACHE_WORD);
    if (c->hash == hash && c->bytes == bytes && memcmp(c->word, word, bytes) == 0) {
        *ids = c->ids;
        *count = c->count;
        return RAVEL_OK;
    }
    ravel_status status = encode(w, t, word, bytes, ids, count, err);
    if (status || *count > CACHE_IDS) return status;
    RAVEL_ASSERT(*ids != c->ids);
    c->hash = hash;
    c->bytes = (uint8_t)bytes;
    c->count = (uint8_t)*count;
    memcpy(c->word, word, bytes);
    memcpy(c->ids, *ids, *count * sizeof **ids);
    return RAVEL_OK;
}

ravel_status ravel__words_create(const ravel_allocator *allocator, ravel__words **words, ravel_error *err) {
    _Static_assert(sizeof(cached) == 64, "a cached word fills one cache line");
    ravel__words *w = ravel__calloc(allocator, 1, sizeof *w);
    if (!w) return ravel__no_memory(err, sizeof *w, "an encoder");
    w->allocator = allocator;
    w->cache = ravel__calloc(allocator, (size_t)1 << CACHE_BITS, sizeof *w->cache);
    ravel_status status = w->cache ? ravel__bpe_scratch_create(allocator, &w->merging, err)
                                   : ravel__no_memory(err, sizeof *w->cache << CACHE_BITS, "an encoder's cache");
    if (status)
        ravel__words_free(w);
    else
        *words = w;
    return status;
}

void ravel__words_free(ravel__words *w) {
    if (!w) return;
    ravel__bpe_scratch_free(w->merging);
    ravel__paths_free(&w->paths, w->allocator);
    ravel__release(w->allocator, w->cache, sizeof *w->cache << CACHE_BITS);
    ravel__release(w->allocator, w, sizeof *w);
}
