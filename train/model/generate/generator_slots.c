/* Sequences, slots and pages.
 *
 * A page is held by the slots whose lists it is in, and by the prefix. Sequences of one request share the prompt's full
 * pages; the page that their answers begin in is copied for each:
 *
 *     prefix    P0  P1  p2            100 tokens and a half-full page
 *     slot 0    P0  P1  c3  c4        c3: a copy of p2, then the answer
 *     slot 1    P0  P1  c5
 *
 * There are always enough pages: a slot holds at most pages_per_slot, and prefixes add one per slot and one list; pages
 * that are kept and that nobody holds are taken when no other is free. */
#include "train/model/generate/generator_internal.h"

#include "base/assert.h"

#include <string.h>

int train__generator_ok(const train_generator *g) {
    return g->free_count >= 0 && g->free_count < g->pages && g->retired_count >= 0 && g->retired_count <= g->pages &&
           g->copy_count >= 0 && g->copy_count <= g->options.slots && g->running >= 0 &&
           g->running <= g->options.slots && g->waiting >= 0 &&
           g->pages_per_slot * TRAIN_PAGE >= g->options.slot_tokens;
}

/* ---- pages ---------------------------------------------------------------------------------------------- */

static int32_t take_page(train_generator *g) {
    int32_t page = g->free_count ? g->free_pages[--g->free_count] : train__kept_oldest(g);
    RAVEL_ASSERT(page >= 0 && g->references[page] == 0);
    g->references[page] = 1;
    return page;
}

static void drop_page(train_generator *g, int32_t page) {
    RAVEL_ASSERT(page >= 0 && page < g->pages - 1 && g->references[page] > 0);
    if (--g->references[page] == 0 && !train__kept_rest(g, page)) g->free_pages[g->free_count++] = page;
    RAVEL_ASSERT(g->free_count <= g->pages - 1);
}

static int64_t pages_for(int64_t tokens) {
    RAVEL_ASSERT(tokens >= 0);
    return (tokens + TRAIN_PAGE - 1) / TRAIN_PAGE;
}

void train__generator_grow(train_generator *g, int32_t slot) {
    int64_t place = g->sequences[slot].cached;
    RAVEL_ASSERT(place < g->options.slot_tokens);
    if (place % TRAIN_PAGE == 0) g->table[slot * g->pages_per_slot + place / TRAIN_PAGE] = take_page(g);
}

/* Notes what is in the full pages of a slot: the prompt, and the answer as far as the host has seen it. */
static void note_pages(train_generator *g, int32_t slot) {
    const train__sequence *s = g->sequences + slot;
    const train_request *r = g->requests + s->request;
    const int32_t *pages = g->table + slot * g->pages_per_slot, *answer = g->answer + slot * g->options.slot_tokens;
    int64_t known = train__min(s->cached, r->count + s->drawn);
    uint64_t id = s->root;
    if (!g->kept.pages || id != g->sets[s->adapter].root) return; /* its first keys are of other weights */
    for (int64_t i = 0; i < known / TRAIN_PAGE; i++) {
        int32_t tokens[TRAIN_PAGE];
        for (int64_t k = 0, t = i * TRAIN_PAGE; k < TRAIN_PAGE; k++, t++)
            tokens[k] = t < r->count ? r->prompt[t] : answer[t - r->count];
        id = train__kept_note(g, pages[i], id, tokens);
    }
}

/* Later pages first: they are forgotten first. */
static void free_slot(train_generator *g, int32_t slot) {
    const int32_t *pages = g->table + slot * g->pages_per_slot;
    RAVEL_ASSERT(g->sequences[slot].request >= 0 && g->running > 0);
    note_pages(g, slot);
    for (int64_t i = pages_for(g->sequences[slot].cached); i-- > 0;) drop_page(g, pages[i]);
    g->sets[g->sequences[slot].adapter].users--;
    RAVEL_ASSERT(g->sets[g->sequences[slot].adapter].users >= 0);
    g->sequences[slot].request = -1;
    g->sequences[slot].serial++;
    g->running--;
    RAVEL_ASSERT(train__generator_ok(g));
}

void train__generator_reset(train_generator *g) {
    for (int32_t i = 0; i < 2 + g->options.adapters; i++) g->sets[i].users = 0;
    for (int64_t i = 0; i < g->options.slots; i++) {
        g->sequences[i].request = -1;
        g->sequences[i].serial++;
    }
    g->free_count = 0;
    for (int64_t page = g->pages - 1; page-- > 0;) { /* the last one is reserved for padding rows */
        int kept = g->kept.pages && g->kept.ids[page] && (!g->references[page] || train__kept_rest(g, (int32_t)page));
        if (!kept) g->free_pages[g->free_count++] = (int32_t)page;
        g->references[page] = 0;
    }
    g->retired_count = g->copy_count = 0;
    g->prefix.request = -1;
    g->running = 0;
}

/* ---- the prefix ----------------------------------------------------------------------------------------- */

/* Takes the kept pages that the prefix begins with. */
static void hold_known(train_generator *g) {
    const train_request *r = g->requests + g->prefix.request;
    uint64_t id = g->sets[train__generator_set_of(g, r)].root;
    g->prefix.known = train__kept_known(g, r);
    for (int64_t i = 0; i < g->prefix.known / TRAIN_PAGE; i++) {
        int32_t page = train__kept_find(g, id, r->prompt + i * TRAIN_PAGE);
        RAVEL_ASSERT(page >= 0 && g->kept.ids[page]);
        if (g->references[page]++ == 0) train__kept_wake(g, page);
        g->prefix.pages[i] = page;
        id = g->kept.ids[page];
    }
    g->stats.kept_tokens += g->prefix.known;
    g->prefix.id = id;
}

void train__generator_new_prefix(train_generator *g) {
    train__generator_drop_prefix(g);
    g->prefix.request = g->next_request;
    g->prefix.tokens = g->requests[g->next_request].count - 1;
    RAVEL_ASSERT(g->prefix.tokens >= 0 && pages_for(g->prefix.tokens) <= g->pages_per_slot);
    hold_known(g);
    int64_t limit = g->options.prefill_rows;
    g->prefix.parts = limit && g->prefix.tokens - g->prefix.known > limit;
    for (int64_t i = g->prefix.known / TRAIN_PAGE; i < pages_for(g->prefix.tokens); i++)
        g->prefix.pages[i] = take_page(g);
}

void train__generator_extend_prefix(train_generator *g, int64_t count) {
    train__prefix *x = &g->prefix;
    const int32_t *prompt = g->requests[x->request].prompt;
    int64_t i = x->known / TRAIN_PAGE;
    x->known += count;
    RAVEL_ASSERT(count >= 0 && x->known <= x->tokens);
    for (; g->kept.pages && (i + 1) * TRAIN_PAGE <= x->known; i++)
        x->id = train__kept_note(g, x->pages[i], x->id, prompt + i * TRAIN_PAGE);
}

void train__generator_drop_prefix(train_generator *g) {
    if (g->prefix.request < 0) return;
    RAVEL_ASSERT(g->retired_count + pages_for(g->prefix.tokens) <= g->pages);
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
    RAVEL_ASSERT(g->prefix.request >= 0 && g->copy_count < g->options.slots);
    for (int64_t i = 0; i < full; i++) {
        pages[i] = g->prefix.pages[i];
        g->references[pages[i]]++;
    }
    if (g->prefix.tokens % TRAIN_PAGE == 0) return;
    pages[full] = take_page(g);
    RAVEL_ASSERT(full < g->pages_per_slot && pages[full] != g->prefix.pages[full]);
    g->copies[2 * g->copy_count] = g->prefix.pages[full];
    g->copies[2 * g->copy_count++ + 1] = pages[full];
}

/* ---- sets ----------------------------------------------------------------------------------------------- */

int32_t train__generator_set_of(const train_generator *g, const train_request *r) {
    if (r->adapter == TRAIN_NO_ADAPTER) return 1 + g->options.adapters;
    return r->adapter ? r->adapter : g->used;
}

void train__generator_add_rows(train_generator *g, int32_t set, int64_t rows) {
    train__adapter *a = &g->net.adapter;
    const train__set *s = &g->sets[set];
    if (!a->rank || rows == 0) return;
    a->runs = g->runs;
    if (a->run_count == 0 || g->runs[a->run_count - 1].weights != s->weights) {
        RAVEL_ASSERT(a->run_count <= g->options.slots);
        g->runs[a->run_count++] = (train__adapter_run){.params = s->params, .weights = s->weights};
    }
    g->runs[a->run_count - 1].rows += rows;
}

/* ---- sequences ------------------------------------------------------------------------------------------ */

const train_request *train__generator_next(const train_generator *g) {
    return g->waiting ? g->requests + g->next_request : NULL;
}

static int is_cancelled(const train_generator *g, int64_t request) {
    for (int64_t i = 0; i < g->cancelled_count; i++)
        if (g->cancelled[i] == request) return 1;
    return 0;
}

void train__generator_wait_for(train_generator *g, int64_t i) {
    while (i < g->request_count && (g->requests[i].samples == 0 || is_cancelled(g, i))) i++;
    g->next_request = i;
    g->next_sample = 0;
}

int32_t train__generator_admit(train_generator *g) {
    int32_t slot = 0;
    RAVEL_ASSERT(g->waiting && g->prefix.request == g->next_request && g->prefix.known == g->prefix.tokens);
    if (g->running == g->options.slots) return -1;
    while (g->sequences[slot].request >= 0) slot++;
    RAVEL_ASSERT(slot < g->options.slots);
    const train_request *r = g->requests + g->next_request;
    int32_t sample = r->first_sample + g->next_sample, adapter = train__generator_set_of(g, r);
    g->sequences[slot] = (train__sequence){.request = g->next_request,
                                           .version = g->sets[adapter].version,
                                           .adapter = adapter,
                                           .root = g->sets[adapter].root,
                                           .cached = g->prefix.tokens,
                                           .stream = train__random((uint64_t)r->id, (uint64_t)sample, 0),
                                           .sample = sample,
                                           .serial = g->sequences[slot].serial};
    attach(g, slot);
    g->net.kernels->upload(g->net.device, g->pass.last + slot, r->prompt + r->count - 1, sizeof *r->prompt);
    g->sets[adapter].users++;
    g->waiting--;
    g->running++;
    if (++g->next_sample == r->samples) train__generator_wait_for(g, g->next_request + 1);
    RAVEL_ASSERT(train__generator_ok(g) && (g->waiting == 0 || g->next_request < g->request_count));
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
    RAVEL_ASSERT(room > 0 && asked >= 0 && (!asked || r->earlier < asked));
    return asked ? train__min(asked - r->earlier, room) : room;
}

/* The routes of a slot's prompt and answer, but for the last token; they are valid until those of another slot are
 * asked for. */
static int64_t gather_routes(const train_generator *g, int64_t slot) {
    const train__sequence *s = g->sequences + slot;
    const int32_t *pages = g->table + slot * g->pages_per_slot;
    int64_t count = g->requests[s->request].count + s->drawn - 1, width = g->route_width;
    for (int64_t t = 0; t < count && width; t++) {
        RAVEL_ASSERT(t < s->cached && pages[t / TRAIN_PAGE] < g->pages);
        memcpy(g->answer_routes + t * width, g->routes + (pages[t / TRAIN_PAGE] * TRAIN_PAGE + t % TRAIN_PAGE) * width,
               (size_t)width * sizeof *g->routes);
    }
    return width ? count : 0;
}

/* What the slot's sequence has so far. */
static train_answer answer_of(const train_generator *g, int64_t slot, int32_t ended) {
    const train__sequence *s = g->sequences + slot;
    int64_t first = slot * g->options.slot_tokens;
    RAVEL_ASSERT(s->request >= 0 && s->request < g->request_count);
    return (train_answer){.request = s->request,
                          .id = g->requests[s->request].id,
                          .sample = s->sample,
                          .ended = ended,
                          .count = s->drawn,
                          .tokens = g->answer + first,
                          .logprob = g->logprob + first,
                          .kept_logprob = g->kept_logprob + first,
                          .version = s->version,
                          .versions = g->versions + first,
                          .routes = g->route_width ? g->answer_routes : NULL,
                          .route_count = gather_routes(g, slot),
                          .top = g->options.top ? g->top + first * g->options.top : NULL};
}

ravel_status train__generator_append(train_generator *g, int32_t slot, int32_t token, float logprob, float kept,
                                     train_answer_fn answer, void *user, ravel_error *err) {
    train__sequence *s = g->sequences + slot;
    const train_request *r = g->requests + s->request;
    int64_t first = slot * g->options.slot_tokens, at = first + s->drawn++;
    RAVEL_ASSERT(s->request >= 0 && s->drawn <= s->begun && s->drawn <= g->options.slot_tokens);
    g->answer[at] = token;
    g->logprob[at] = logprob;
    g->kept_logprob[at] = kept;
    g->stats.tokens++;
    int32_t ended = how_it_ends(r->sampling, g->answer + first, s->drawn);
    if (!ended && s->drawn < train__generator_room(g, r)) return RAVEL_OK;
    train_answer a = answer_of(g, slot, ended);
    RAVEL_ASSERT(a.count >= 1 && a.count <= train__generator_room(g, r));
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

int train_generator_running(const train_generator *g, int64_t slot, train_answer *answer) {
    RAVEL_ASSERT(slot >= 0 && slot < g->options.slots);
    if (g->sequences[slot].request < 0 || g->sequences[slot].drawn == 0) return 0;
    *answer = answer_of(g, slot, 0);
    return 1;
}

void train_generator_cancel(train_generator *g, int64_t request) {
    RAVEL_ASSERT(request >= 0 && request < g->request_count);
    for (int32_t slot = 0; slot < g->options.slots; slot++)
        if (g->sequences[slot].request == request) free_slot(g, slot);
    if (!g->waiting || request < g->next_request || is_cancelled(g, request)) return;
    int current = request == g->next_request;
    g->waiting -= g->requests[request].samples - (current ? g->next_sample : 0);
    RAVEL_ASSERT(g->waiting >= 0 && g->cancelled_count < g->options.slots);
    g->cancelled[g->cancelled_count++] = request;
    if (!current) return;
    if (g->prefix.request == request) train__generator_drop_prefix(g);
    train__generator_free_retired(g);
    train__generator_wait_for(g, request + 1);
}
