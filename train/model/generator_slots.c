/* Sequences, slots and pages.
 *
 * A page is held by the slots whose lists it is in, and by the prefix. Sequences of one request share the prompt's full
 * pages; the page that their answers begin in is copied for each:
 *
 *     prefix    P0  P1  p2            100 tokens and a half-full page
 *     slot 0    P0  P1  c3  c4        c3: a copy of p2, then the answer
 *     slot 1    P0  P1  c5
 *
 * There are always enough pages: a slot holds at most pages_per_slot, and prefixes add one per slot and one list. */
#include "train/model/generator_internal.h"

#include "train/kernels/assert.h"

#include <string.h>

int train__generator_ok(const train_generator *g) {
    return g->free_count >= 0 && g->free_count < g->pages && g->retired_count >= 0 && g->retired_count <= g->pages &&
           g->copy_count >= 0 && g->copy_count <= g->options.slots && g->running >= 0 &&
           g->running <= g->options.slots && g->waiting >= 0 &&
           g->pages_per_slot * TRAIN_PAGE >= g->options.slot_tokens;
}

/* ---- pages ---------------------------------------------------------------------------------------------- */

static int32_t take_page(train_generator *g) {
    TRAIN_ASSERT(g->free_count > 0);
    int32_t page = g->free_pages[--g->free_count];
    TRAIN_ASSERT(g->references[page] == 0);
    g->references[page] = 1;
    return page;
}

static void drop_page(train_generator *g, int32_t page) {
    TRAIN_ASSERT(page >= 0 && page < g->pages - 1 && g->references[page] > 0);
    if (--g->references[page] == 0) g->free_pages[g->free_count++] = page;
    TRAIN_ASSERT(g->free_count <= g->pages - 1);
}

static int64_t pages_for(int64_t tokens) {
    TRAIN_ASSERT(tokens >= 0);
    return (tokens + TRAIN_PAGE - 1) / TRAIN_PAGE;
}

void train__generator_grow(train_generator *g, int32_t slot) {
    int64_t place = g->sequences[slot].cached;
    TRAIN_ASSERT(place < g->options.slot_tokens);
    if (place % TRAIN_PAGE == 0) g->table[slot * g->pages_per_slot + place / TRAIN_PAGE] = take_page(g);
}

static void free_slot(train_generator *g, int32_t slot) {
    const int32_t *pages = g->table + slot * g->pages_per_slot;
    TRAIN_ASSERT(g->sequences[slot].request >= 0 && g->running > 0);
    for (int64_t i = 0; i < pages_for(g->sequences[slot].cached); i++) drop_page(g, pages[i]);
    g->sequences[slot].request = -1;
    g->sequences[slot].serial++;
    g->running--;
    TRAIN_ASSERT(train__generator_ok(g));
}

void train__generator_reset(train_generator *g) {
    for (int64_t i = 0; i < g->options.slots; i++) {
        g->sequences[i].request = -1;
        g->sequences[i].serial++;
    }
    int64_t pages = g->pages - 1; /* the last one is reserved for padding rows */
    for (int64_t i = 0; i < pages; i++) {
        g->references[i] = 0;
        g->free_pages[i] = (int32_t)(pages - 1 - i);
    }
    g->free_count = pages;
    g->retired_count = g->copy_count = 0;
    g->prefix.request = -1;
    g->running = 0;
}

/* ---- the prefix ----------------------------------------------------------------------------------------- */

void train__generator_new_prefix(train_generator *g) {
    train__generator_drop_prefix(g);
    g->prefix.request = g->next_request;
    g->prefix.tokens = g->requests[g->next_request].count - 1;
    TRAIN_ASSERT(g->prefix.tokens >= 0 && pages_for(g->prefix.tokens) <= g->pages_per_slot);
    for (int64_t i = 0; i < pages_for(g->prefix.tokens); i++) g->prefix.pages[i] = take_page(g);
}

void train__generator_drop_prefix(train_generator *g) {
    if (g->prefix.request < 0) return;
    TRAIN_ASSERT(g->retired_count + pages_for(g->prefix.tokens) <= g->pages);
    for (int64_t i = 0; i < pages_for(g->prefix.tokens); i++) g->retired[g->retired_count++] = g->prefix.pages[i];
    g->prefix.request = -1;
}

void train__generator_free_retired(train_generator *g) {
    while (g->retired_count) drop_page(g, g->retired[--g->retired_count]);
}

/* The slot's pages on top of the prefix. */
static void attach(train_generator *g, int32_t slot) {
    int32_t *pages = g->table + slot * g->pages_per_slot;
    int64_t full = g->prefix.tokens / TRAIN_PAGE;
    TRAIN_ASSERT(g->prefix.request >= 0 && g->copy_count < g->options.slots);
    for (int64_t i = 0; i < full; i++) {
        pages[i] = g->prefix.pages[i];
        g->references[pages[i]]++;
    }
    if (g->prefix.tokens % TRAIN_PAGE == 0) return;
    pages[full] = take_page(g);
    TRAIN_ASSERT(full < g->pages_per_slot && pages[full] != g->prefix.pages[full]);
    g->copies[2 * g->copy_count] = g->prefix.pages[full];
    g->copies[2 * g->copy_count++ + 1] = pages[full];
}

/* ---- sequences ------------------------------------------------------------------------------------------ */

const train_request *train__generator_next(const train_generator *g) {
    return g->waiting ? g->requests + g->next_request : NULL;
}

int32_t train__generator_admit(train_generator *g) {
    int32_t slot = 0;
    TRAIN_ASSERT(g->waiting && g->prefix.request == g->next_request);
    if (g->running == g->options.slots) return -1;
    while (g->sequences[slot].request >= 0) slot++;
    TRAIN_ASSERT(slot < g->options.slots);
    const train_request *r = g->requests + g->next_request;
    int32_t sample = r->first_sample + g->next_sample;
    g->sequences[slot] = (train__sequence){.request = g->next_request,
                                           .version = g->version,
                                           .cached = g->prefix.tokens,
                                           .stream = train__random((uint64_t)r->id, (uint64_t)sample, 0),
                                           .sample = sample,
                                           .serial = g->sequences[slot].serial};
    attach(g, slot);
    g->net.kernels->upload(g->net.device, g->pass.last + slot, r->prompt + r->count - 1, sizeof *r->prompt);
    g->waiting--;
    g->running++;
    for (g->next_sample++; g->next_request < g->request_count;) { /* to the next request that wants answers */
        if (g->next_sample < g->requests[g->next_request].samples) break;
        g->next_request++;
        g->next_sample = 0;
    }
    TRAIN_ASSERT(train__generator_ok(g) && (g->waiting == 0 || g->next_request < g->request_count));
    return slot;
}

/* As train_answer.ended. */
static int32_t how_it_ends(const train_sampling *s, const int32_t *tokens, int64_t count) {
    for (int32_t i = 0; i < s->stops; i++)
        if (s->stop[i] == tokens[count - 1]) return 1;
    return s->ends && s->ends(s->user, tokens, count) ? 2 : 0;
}

int64_t train__generator_room(const train_generator *g, const train_request *r) {
    int64_t room = g->options.slot_tokens - r->count, asked = r->sampling->max_tokens;
    TRAIN_ASSERT(room > 0 && asked >= 0);
    return asked ? train__min(asked, room) : room;
}

ravel_status train__generator_append(train_generator *g, int32_t slot, int32_t token, float logprob, float kept,
                                     train_answer_fn answer, void *user, ravel_error *err) {
    train__sequence *s = g->sequences + slot;
    const train_request *r = g->requests + s->request;
    int64_t first = slot * g->options.slot_tokens, at = first + s->drawn++;
    TRAIN_ASSERT(s->request >= 0 && s->drawn <= s->begun && s->drawn <= g->options.slot_tokens);
    g->answer[at] = token;
    g->logprob[at] = logprob;
    g->kept_logprob[at] = kept;
    g->stats.tokens++;
    int32_t ended = how_it_ends(r->sampling, g->answer + first, s->drawn);
    if (!ended && s->drawn < train__generator_room(g, r)) return RAVEL_OK;
    train_answer a = {.request = s->request,
                      .id = r->id,
                      .sample = s->sample,
                      .ended = ended,
                      .count = s->drawn,
                      .tokens = g->answer + first,
                      .logprob = g->logprob + first,
                      .kept_logprob = g->kept_logprob + first,
                      .version = s->version};
    TRAIN_ASSERT(a.count >= 1 && a.count <= train__generator_room(g, r));
    free_slot(g, slot);
    g->stats.answers++;
    return answer(user, &a, err);
}

const int32_t *train_generator_partial(const train_generator *g, int64_t request, int32_t sample, int64_t *count) {
    for (int64_t slot = 0; slot < g->options.slots; slot++) {
        const train__sequence *s = &g->sequences[slot];
        if (s->request != request || s->sample != sample) continue;
        *count = s->drawn;
        return g->answer + slot * g->options.slot_tokens;
    }
    return NULL;
}
