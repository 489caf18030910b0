/* Pages that are kept for prompts to come (train_generator_options.keep).
 *
 * A full page is known by an id of its own. It is found by its tokens and the id of the page before it, so that equal
 * ids mean equal tokens from the beginning on; tokens are compared, a hash only says where to look. A page that is
 * taken for something else loses its id, and pages that came after it are never found again.
 *
 *     prompt       | s s s s | a a b b |            the next turn begins with all of it:
 *     ids               1    <-   2                 | s s s s | a a b b | c c ...     starts at c
 *     other turn   | s s s s | d d
 *
 * Pages that nobody holds are a ring in the order in which they were given up; the oldest is taken first. */
#include "train/model/generate/generator_internal.h"

#include "base/assert.h"

#include <string.h>

static int64_t bucket_of(const train__kept_pages *k, uint64_t parent, const int32_t *tokens) {
    uint64_t h = parent + 0x9e3779b97f4a7c15u;
    for (int i = 0; i < TRAIN_PAGE; i++) {
        h = (h ^ (uint32_t)tokens[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    RAVEL_ASSERT(k->buckets > 0);
    return (int64_t)(h & (uint64_t)(k->buckets - 1));
}

static const int32_t *tokens_of(const train__kept_pages *k, int32_t page) {
    return k->tokens + (int64_t)page * TRAIN_PAGE;
}

void train__kept_reset(train_generator *g) {
    train__kept_pages *k = &g->kept;
    int32_t end = (int32_t)g->pages;
    if (!k->pages) return;
    for (int32_t page = k->newer[end]; k->last && page != end; page = k->newer[page])
        g->free_pages[g->free_count++] = page;
    for (int64_t b = 0; b < k->buckets; b++) k->heads[b] = -1;
    memset(k->ids, 0, (size_t)g->pages * sizeof *k->ids);
    k->older[end] = k->newer[end] = end;
    k->last++; /* no id is given twice */
}

int32_t train__kept_find(const train_generator *g, uint64_t parent, const int32_t *tokens) {
    const train__kept_pages *k = &g->kept;
    int32_t page = k->heads[bucket_of(k, parent, tokens)];
    while (page >= 0 &&
           (k->parents[page] != parent || memcmp(tokens_of(k, page), tokens, TRAIN_PAGE * sizeof *tokens) != 0))
        page = k->next[page];
    return page;
}

static void forget(train__kept_pages *k, int32_t page) {
    int32_t *at = &k->heads[bucket_of(k, k->parents[page], tokens_of(k, page))];
    while (*at != page) at = &k->next[*at];
    *at = k->next[page];
    k->ids[page] = 0;
}

uint64_t train__kept_note(train_generator *g, int32_t page, uint64_t parent, const int32_t *tokens) {
    train__kept_pages *k = &g->kept;
    int32_t there = train__kept_find(g, parent, tokens);
    if (there >= 0) return k->ids[there];
    int64_t bucket = bucket_of(k, parent, tokens);
    RAVEL_ASSERT(g->references[page] > 0);
    if (k->ids[page]) forget(k, page); /* known after a page that was forgotten */
    memcpy(k->tokens + (int64_t)page * TRAIN_PAGE, tokens, TRAIN_PAGE * sizeof *tokens);
    k->parents[page] = parent;
    k->next[page] = k->heads[bucket];
    k->heads[bucket] = page;
    return k->ids[page] = ++k->last;
}

int train__kept_rest(train_generator *g, int32_t page) {
    train__kept_pages *k = &g->kept;
    int32_t end = (int32_t)g->pages;
    if (!k->pages || !k->ids[page]) return 0;
    k->older[page] = k->older[end];
    k->newer[page] = end;
    k->newer[k->older[end]] = page;
    k->older[end] = page;
    return 1;
}

void train__kept_wake(train_generator *g, int32_t page) {
    train__kept_pages *k = &g->kept;
    k->newer[k->older[page]] = k->newer[page];
    k->older[k->newer[page]] = k->older[page];
}

int32_t train__kept_oldest(train_generator *g) {
    train__kept_pages *k = &g->kept;
    if (!k->pages || k->newer[g->pages] == g->pages) return -1;
    int32_t page = k->newer[g->pages];
    train__kept_wake(g, page);
    forget(k, page);
    return page;
}

/* Rows that read the cache are slower than prompts in one piece: not for a small part of a long prompt. */
int64_t train__kept_known(const train_generator *g, const train_request *r) {
    uint64_t id = g->sets[train__generator_set_of(g, r)].root;
    int64_t tokens = 0;
    if (r->prompt_logprob) return 0; /* pages have no logits */
    while (g->kept.pages && tokens + TRAIN_PAGE <= r->count - 1) {
        int32_t page = train__kept_find(g, id, r->prompt + tokens);
        if (page < 0) break;
        id = g->kept.ids[page];
        tokens += TRAIN_PAGE;
    }
    return 4 * tokens >= r->count ? tokens : 0;
}
