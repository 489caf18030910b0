/* One step of a generator.
 *
 *   prefill   prompts of sequences that get a slot, side by side as a ragged batch: their keys and values go to the
 *             pages of the prefix. Nothing is drawn. Prompts that begin in kept pages are a pass of their own: their
 *             other tokens are rows that read the cache.
 *   decode    one row per running sequence: its last token, at its next place, over its pages; one token drawn. */
#include "train/model/generate/generator_internal.h"

#include "base/assert.h"

#include <string.h>

/* The rows of a pass, on the device. */
typedef struct pass {
    train_generator *g;
    int64_t rows;
    int32_t samples, longest;
    int32_t known;       /* prompts that begin in kept pages */
    int32_t whole;       /* above 0: a part of a prompt, of which so many tokens are in the cache then */
    const int32_t *span; /* of a part: `whole`, and the tokens before it */
    const int32_t *tokens, *positions;
    const int32_t *slots; /* [rows] whose pages; of `table` */
    const int32_t *starts;
    const int32_t *lengths; /* [samples] of prompts, or [rows] of cached tokens */
    const int32_t *table;
} pass;

static train_cache cache_of(const pass *p, int64_t layer) {
    const train_generator *g = p->g;
    size_t at = (size_t)layer * (size_t)g->pages * g->page_bytes;
    RAVEL_ASSERT(layer >= 0 && layer < g->net.shape.layers && p->table);
    return (train_cache){.k = g->pass.k_pages + at,
                         .v = g->pass.v_pages + at,
                         .table = p->table,
                         .pages_per_slot = g->pages_per_slot,
                         .kv_heads = (int32_t)g->net.shape.kv_heads,
                         .head_dim = (int32_t)g->net.shape.head_dim};
}

static void write_cache(const pass *p, int64_t layer, const train__acts *a) {
    const train__net *n = &p->g->net;
    n->kernels->cache_write(n->device, &(train_cache_write){.cache = cache_of(p, layer),
                                                            .rows = p->rows,
                                                            .k = a->k,
                                                            .v = train__net_at(n, a->qkv, n->q_width + n->kv_width),
                                                            .ld_k = n->kv_width,
                                                            .ld_v = n->qkv_width,
                                                            .slots = p->slots,
                                                            .positions = p->positions});
}

static void attend_rows(const pass *p, int64_t layer, const train__acts *a) {
    const train__net *n = &p->g->net;
    n->kernels->attention_cached(n->device, &(train_cached){.cache = cache_of(p, layer),
                                                            .rows = (int32_t)p->rows,
                                                            .heads = (int32_t)n->shape.heads,
                                                            .scale = n->scale,
                                                            .window = train__net_window(n, layer),
                                                            .longest = p->longest,
                                                            .q = a->q,
                                                            .ld_q = n->q_width,
                                                            .slots = p->slots,
                                                            .lengths = p->lengths,
                                                            .o = a->o});
}

/* A layer's arrays, with where its routes go. */
static const train__acts *acts_of(train_generator *g, int64_t layer) {
    train__routes *r = &g->pass.acts.routes;
    r->record = g->route_width ? g->routes + layer * g->net.shape.experts_active : NULL;
    r->record_rows = g->route_rows;
    r->record_stride = g->route_width;
    return &g->pass.acts;
}

/* ---- prompts -------------------------------------------------------------------------------------------- */

/* The keys of a part are those of the whole prompt so far, side by side. */
static void attend_whole(const pass *p, int64_t layer, train_attention *x) {
    const train__net *n = &p->g->net;
    train_cache_write back = {
        .cache = cache_of(p, layer), .rows = p->whole, .k = p->g->pass.k_whole, .v = p->g->pass.v_whole, .back = 1};
    back.ld_k = back.ld_v = n->kv_width;
    n->kernels->cache_write(n->device, &back);
    x->k = back.k;
    x->v = back.v;
    x->ld_k = x->ld_v = n->kv_width;
    x->keys = (train_ragged){p->whole, p->whole, p->starts, p->span, NULL};
    x->shifts = p->span + 1;
}

static void attend_prompts(void *user, int64_t layer, const train__acts *a) {
    const pass *p = user;
    const train__net *n = &p->g->net;
    write_cache(p, layer, a);
    if (layer == n->shape.layers - 1 && !p->g->route_width && !p->g->scored_count)
        return; /* nothing reads the last layer's output */
    if (p->known && !p->whole) {
        attend_rows(p, layer, a);
        return;
    }
    train_attention x = train__net_attention(n, a);
    x.window = train__net_window(n, layer);
    x.samples = p->samples;
    x.queries = x.keys = (train_ragged){(int32_t)p->rows, p->longest, p->starts, p->lengths, NULL};
    if (p->whole) attend_whole(p, layer, &x);
    n->kernels->attention(n->device, &x);
}

/* The prompts of one pass while it is put together. Their pages are rows of a table of their own, because a prefix is
 * not in a slot. */
typedef struct prompts {
    pass pass;
    int32_t *tokens, *positions, *slots, *starts, *lengths, *table, *span;
    int32_t *from, *to; /* [copies, layers] pages of all layers */
    const int32_t *from_there, *to_there;
} prompts;

/* `known`: of prompts that begin in kept pages. */
static prompts begin_prompts(train_generator *g, int known) {
    prompts p = {.pass = {.g = g, .known = known}};
    train__staging *s = &g->staging;
    int64_t slots = g->options.slots;
    train__staging_begin(s);
    g->net.adapter.run_count = 0;
    g->scored_count = 0;
    p.tokens = train__staging_take(s, g->rows, sizeof *p.tokens, &p.pass.tokens);
    p.positions = train__staging_take(s, g->rows, sizeof *p.positions, &p.pass.positions);
    p.slots = train__staging_take(s, g->rows, sizeof *p.slots, &p.pass.slots);
    p.starts = train__staging_take(s, slots, sizeof *p.starts, &p.pass.starts);
    p.lengths = train__staging_take(s, known ? g->rows : slots, sizeof *p.lengths, &p.pass.lengths);
    p.table = train__staging_take(s, slots * g->pages_per_slot, sizeof *p.table, &p.pass.table);
    p.span = train__staging_take(s, 2, sizeof *p.span, &p.pass.span);
    p.from = train__staging_take(s, slots * g->net.shape.layers, sizeof *p.from, &p.from_there);
    p.to = train__staging_take(s, slots * g->net.shape.layers, sizeof *p.to, &p.to_there);
    return p;
}

/* `count` more tokens of the prefix become sample `samples` of the pass. */
static void add_prompt(prompts *p, int32_t count) {
    train_generator *g = p->pass.g;
    int part = g->prefix.parts;
    const train_request *r = g->requests + g->prefix.request;
    int32_t known = (int32_t)g->prefix.known, first = (int32_t)p->pass.rows, sample = p->pass.samples;
    if (r->prompt_logprob) r->prompt_logprob[0] = 0;
    if (count == 0) return;
    RAVEL_ASSERT(sample < g->options.slots && first + count <= g->rows && (part || !p->pass.known == !known));
    p->starts[sample] = first;
    if (!known || part) p->lengths[sample] = count;
    memcpy(p->tokens + first, r->prompt + known, (size_t)count * sizeof *p->tokens);
    for (int32_t t = 0; t < count; t++) {
        p->positions[first + t] = known + t;
        p->slots[first + t] = sample;
        if (known && !part) p->lengths[first + t] = known + t + 1;
        if (g->route_width) {
            int32_t place = known + t, page = g->prefix.pages[place / TRAIN_PAGE];
            g->route_rows[first + t] = page * TRAIN_PAGE + place % TRAIN_PAGE;
        }
    }
    if (part) {
        RAVEL_ASSERT(first == 0);
        p->span[0] = p->pass.whole = known + count;
        p->span[1] = known;
    }
    memcpy(p->table + sample * g->pages_per_slot, g->prefix.pages, (size_t)g->pages_per_slot * sizeof *p->table);
    train__generator_add_rows(g, train__generator_set_of(g, r), count);
    if (r->prompt_logprob) g->scored[g->scored_count++] = (train__scored){g->prefix.request, first, known, count};
    train__generator_extend_prefix(g, count);
    p->pass.rows += count;
    p->pass.samples++;
    if (part && count > p->pass.longest) p->pass.longest = count;
    if (!part && known + count > p->pass.longest) p->pass.longest = known + count;
    g->stats.prompt_tokens += count;
}

static void embed_rows(const pass *p, const int32_t *ids, const int32_t *picks) {
    RAVEL_ASSERT(p->rows > 0 && p->rows <= p->g->rows && ids);
    const train__net *n = &p->g->net;
    const train__acts *a = &p->g->pass.acts;
    train__net_embed(n, a->x, a->x, ids, picks, p->rows);
    train__net_norm(n, a->xn, NULL, a->x, NULL, 0, TRAIN_NORM_IN, p->rows);
}

/* Of the last layer, nothing but the cache is read; and its routes; and all of it where log-probs are wanted. */
static void run_prompt_layers(pass *p) {
    const train__net *n = &p->g->net;
    train__rows_of rows = {p->rows, p->positions, attend_prompts, p};
    RAVEL_ASSERT(p->samples > 0 && p->samples <= p->g->options.slots && p->longest <= p->g->options.slot_tokens);
    embed_rows(p, p->tokens, NULL);
    for (int64_t layer = 0; layer + 1 < n->shape.layers; layer++)
        train__net_layer(n, layer, acts_of(p->g, layer), &rows);
    train__acts last = *acts_of(p->g, n->shape.layers - 1);
    if (!p->g->scored_count) last.next = NULL;
    (p->g->route_width || p->g->scored_count ? train__net_layer : train__net_attend)(n, n->shape.layers - 1, &last,
                                                                                     &rows);
}

/* The pages that answers begin in, of every layer. */
static void stage_copies(const prompts *p) {
    const train_generator *g = p->pass.g;
    int64_t layers = g->net.shape.layers;
    for (int64_t i = 0; i < g->copy_count; i++)
        for (int64_t layer = 0; layer < layers; layer++) {
            p->from[i * layers + layer] = (int32_t)(layer * g->pages + g->copies[2 * i]);
            p->to[i * layers + layer] = (int32_t)(layer * g->pages + g->copies[2 * i + 1]);
        }
}

static void copy_pages(const prompts *p, char *pages) {
    const train_generator *g = p->pass.g;
    g->net.kernels->copy_rows(g->net.device, &(train_rows){.rows = g->copy_count * g->net.shape.layers,
                                                           .width = TRAIN_PAGE * g->net.kv_width,
                                                           .to = pages,
                                                           .from = pages,
                                                           .to_ids = p->to_there,
                                                           .from_ids = p->from_there});
}

static void run_prompts(prompts *p) {
    train_generator *g = p->pass.g;
    g->net.batch_invariant = TRAIN_INVARIANT_MANY;
    RAVEL_ASSERT(p->pass.rows <= g->rows && g->copy_count <= g->options.slots);
    stage_copies(p);
    train__staging_send(&g->staging);
    if (p->pass.rows) run_prompt_layers(&p->pass);
    if (g->scored_count) train__generator_score(g, p->pass.rows);
    if (g->copy_count) {
        copy_pages(p, g->pass.k_pages);
        copy_pages(p, g->pass.v_pages);
    }
    int64_t each = TRAIN_PAGE * g->route_width;
    for (int64_t i = 0; i < g->copy_count && each; i++)
        memcpy(g->routes + g->copies[2 * i + 1] * each, g->routes + g->copies[2 * i] * each,
               (size_t)each * sizeof *g->routes);
    train__staging_release_all(&g->staging);
    g->copy_count = 0;
    train__generator_free_retired(g);
    RAVEL_ASSERT(train__generator_ok(g) && g->retired_count == 0);
}

/* How many tokens of the prefix the pass takes. A prompt above a step's limit is a pass of its own, in parts, whatever
 * else there is to run: its bits do not depend on others. */
static int64_t take_of(const prompts *p, int64_t left) {
    const train_generator *g = p->pass.g;
    int64_t need = g->prefix.tokens - g->prefix.known;
    if (g->prefix.parts) return p->pass.rows ? 0 : train__min(need, left);
    int fits = p->pass.rows + need <= g->options.prefill && need <= left && !p->pass.whole;
    return fits && !p->pass.known == !g->prefix.known ? need : 0;
}

/* Fills a pass, and slots; *left: rows that the step may have. Returns whether there was anything. */
static int fill_pass(prompts *p, int64_t *left) {
    train_generator *g = p->pass.g;
    int any = 0;
    while (train__generator_next(g) && g->running < g->options.slots) {
        if (g->prefix.request != g->next_request) train__generator_new_prefix(g);
        int64_t need = g->prefix.tokens - g->prefix.known, count = take_of(p, *left);
        if (need && !count) break;
        if (need || g->next_sample == 0) add_prompt(p, (int32_t)count);
        *left -= count;
        any = 1;
        if (count < need || train__generator_admit(g) < 0) break;
    }
    return any;
}

/* Fills free slots, in passes of at most `prefill` prompt tokens, and steps of at most `prefill_rows`. */
static void admit(train_generator *g) {
    int64_t left = g->options.prefill_rows ? g->options.prefill_rows : INT64_MAX;
    for (int any = 1; any && left > 0 && train__generator_next(g) && g->running < g->options.slots;) {
        if (g->prefix.request != g->next_request) train__generator_new_prefix(g);
        prompts p = begin_prompts(g, g->prefix.known > 0);
        any = fill_pass(&p, &left);
        run_prompts(&p);
    }
    if (!g->waiting) train__generator_drop_prefix(g);
    train__generator_free_retired(g);
}

/* ---- one token each ------------------------------------------------------------------------------------- */

static void attend_cache(void *user, int64_t layer, const train__acts *a) {
    write_cache(user, layer, a);
    attend_rows(user, layer, a);
}

static train_choice choice_of(const train_generator *g, const train__sequence *s) {
    const train_request *r = g->requests + s->request;
    const train_sampling *o = r->sampling;
    return (train_choice){.temperature = (float)o->temperature,
                          .top_p = (float)o->top_p,
                          .top_k = o->top_k,
                          .min_p = (float)o->min_p,
                          .uniform = train__random_unit(o->seed, s->stream, (uint64_t)(r->earlier + s->begun))};
}

/* Rows of a step: every sequence that wants a token more, those of one set side by side. */
static const train_choice *stage_rows(train_generator *g, pass *p, train__step *step) {
    train__staging *st = &g->rows_of_steps;
    const train_choice *there = NULL;
    int64_t most = g->options.slots;
    train__staging_begin(st);
    int32_t *positions = train__staging_take(st, most, sizeof *positions, &p->positions);
    int32_t *slots = train__staging_take(st, most, sizeof *slots, &p->slots);
    int32_t *lengths = train__staging_take(st, most, sizeof *lengths, &p->lengths);
    train_choice *choices = train__staging_take(st, most, sizeof *choices, &there);
    g->net.adapter.run_count = 0;
    for (int32_t set = 0; set < 2 + g->options.adapters; set++) {
        const int64_t before = p->rows;
        for (int32_t slot = 0; slot < most && g->sets[set].users; slot++) {
            train__sequence *s = g->sequences + slot;
            if (s->request < 0 || s->adapter != set || s->begun == train__generator_room(g, g->requests + s->request))
                continue;
            train__generator_grow(g, slot);
            int64_t i = p->rows++, place = s->cached++;
            RAVEL_ASSERT(i < most && place < g->options.slot_tokens);
            positions[i] = (int32_t)place;
            slots[i] = step->slots[i] = slot;
            step->serials[i] = s->serial;
            step->versions[i] = g->sets[set].version;
            lengths[i] = (int32_t)place + 1;
            if (g->route_width)
                g->route_rows[i] = g->table[slot * g->pages_per_slot + place / TRAIN_PAGE] * TRAIN_PAGE +
                                   (int32_t)(place % TRAIN_PAGE);
            choices[i] = choice_of(g, s);
            s->begun++;
            if (place + 1 > p->longest) p->longest = (int32_t)place + 1;
        }
        train__generator_add_rows(g, set, p->rows - before);
    }
    step->rows = p->rows;
    int32_t *table = train__staging_take(st, (most + 1) * g->pages_per_slot, sizeof *table, &p->table);
    memcpy(table, g->table, (size_t)(most * g->pages_per_slot) * sizeof *table);
    /* Rows that pad the step: one token of a slot that no sequence has, in a page of its own. */
    for (int64_t i = 0; i < g->pages_per_slot; i++) table[most * g->pages_per_slot + i] = (int32_t)g->pages - 1;
    for (int64_t end = train__generator_bucket(g, p->rows); p->rows < end; p->rows++) {
        positions[p->rows] = 0;
        slots[p->rows] = (int32_t)most;
        lengths[p->rows] = 1;
        if (g->route_width) g->route_rows[p->rows] = (int32_t)(g->pages - 1) * TRAIN_PAGE;
        choices[p->rows] = (train_choice){.top_p = 1};
    }
    if (g->net.adapter.run_count) g->runs[g->net.adapter.run_count - 1].rows += p->rows - step->rows;
    p->longest = train__generator_longest(g, p->longest);
    RAVEL_ASSERT(st->turn == g->turn);
    train__staging_send(st);
    return there;
}

/* Where the three arrays of a step's results are. */
static void results_of(const train_generator *g, char *block, int32_t **tokens, float **logprob, float **kept) {
    train__cut cut = {block, 0};
    *tokens = train__cut_take(&cut, g->options.slots, sizeof **tokens);
    *logprob = train__cut_take(&cut, g->options.slots, sizeof **logprob);
    *kept = train__cut_take(&cut, g->options.slots, sizeof **kept);
    RAVEL_ASSERT(cut.used <= g->result_bytes);
}

int64_t train__generator_vocab_share(const train_generator *g) {
    return (g->whole.vocab + g->tp.ranks - 1) / g->tp.ranks;
}

/* The logits of every rank's part of the vocabulary, [rows, its tokens] each, into rows of the whole vocabulary. */
static void gather_logits(train_generator *g, int64_t rows) {
    const train__net *n = &g->net;
    int64_t each = rows * train__generator_vocab_share(g);
    RAVEL_ASSERT(rows > 0 && rows <= g->options.slots && g->pass.parts);
    train__link_gather(&g->tp, g->pass.part, g->pass.parts, each, n->types.activation);
    for (int32_t r = 0; r < g->tp.ranks; r++) {
        train_slice here = {.tp = g->tp.ranks, .tp_rank = r}, next = {.tp = g->tp.ranks, .tp_rank = r + 1};
        int64_t first = train_slice_vocab(&g->whole, &here), width = train_slice_vocab(&g->whole, &next) - first;
        RAVEL_ASSERT(width > 0 && rows * width <= each && first + width <= g->whole.vocab);
        n->kernels->copy_rows(n->device, &(train_rows){.rows = rows,
                                                       .width = width,
                                                       .to = train__net_at(n, g->pass.logits, first),
                                                       .from = train__net_at(n, g->pass.parts, r * each),
                                                       .ld_to = g->whole.vocab,
                                                       .ld_from = width});
    }
}

void train__generator_logits(train_generator *g, int64_t first, int64_t count) {
    const train__net *n = &g->net;
    void *logits = g->tp.ranks > 1 ? g->pass.part : g->pass.logits;
    void *xn = train__net_at(n, g->pass.acts.xn, first * n->hidden);
    RAVEL_ASSERT(first >= 0 && first + count <= g->rows);
    train__net_scale(n, xn, n->logits_scale, count * n->hidden);
    train__net_linear(n, logits, xn, n->params->head, count, n->shape.vocab, n->hidden);
    if (g->tp.ranks > 1) gather_logits(g, count);
}

static void draw(train_generator *g, const pass *p, const train_choice *choices, char *results) {
    const train__net *n = &g->net;
    train_sample sample = {.rows = p->rows,
                           .vocab = g->whole.vocab,
                           .logits = g->pass.logits,
                           .choices = choices,
                           .last = g->pass.last,
                           .places = p->slots};
    results_of(g, results, &sample.tokens, &sample.logprob, &sample.kept_logprob);
    train__generator_logits(g, 0, p->rows);
    n->kernels->sample(n->device, &sample);
}

typedef struct decode {
    pass pass;
    const train_choice *choices;
} decode;

static void run_decode(void *user) {
    decode *d = user;
    train_generator *g = d->pass.g;
    g->net.batch_invariant = TRAIN_INVARIANT_FEW;
    RAVEL_ASSERT(d->pass.rows > 0 && d->pass.rows <= g->options.slots && d->choices);
    train__rows_of rows = {d->pass.rows, d->pass.positions, attend_cache, &d->pass};
    embed_rows(&d->pass, g->pass.last, d->pass.slots);
    for (int64_t layer = 0; layer < g->net.shape.layers; layer++)
        train__net_layer(&g->net, layer, acts_of(g, layer), &rows);
    draw(g, &d->pass, d->choices, g->pass.results[g->turn]);
}

/* Calls the kernels of a step; its tokens are fetched into `step`. */
static void begin_step(train_generator *g, train__step *step) {
    decode d = {.pass = {.g = g}};
    RAVEL_ASSERT(step->rows == 0 && g->rows_of_steps.count == TRAIN__STAGES);
    d.choices = stage_rows(g, &d.pass, step);
    if (step->rows) {
        train__generator_replay(g, d.pass.rows, d.pass.longest, run_decode, &d);
        if (g->options.top) train__generator_fetch_logits(g, step);
        g->net.kernels->fetch(g->net.device, TRAIN__STAGE_GENERATOR + g->turn, step->host, g->pass.results[g->turn],
                              g->result_bytes);
        g->stats.steps++;
        g->stats.slot_steps += step->rows;
    }
    train__staging_release_all(&g->rows_of_steps);
}

/* Appends the tokens of a step to their answers. */
static ravel_status finish_step(train_generator *g, int32_t turn, train_answer_fn answer, void *user,
                                ravel_error *err) {
    train__step *step = g->steps + turn;
    int32_t *tokens;
    float *logprob, *kept;
    ravel_status status = RAVEL_OK;
    if (!step->rows) return RAVEL_OK;
    RAVEL_ASSERT(step->rows > 0 && step->rows <= g->options.slots && step->host);
    g->net.kernels->fetch_wait(g->net.device, TRAIN__STAGE_GENERATOR + turn);
    results_of(g, step->host, &tokens, &logprob, &kept);
    for (int64_t i = 0; i < step->rows && !status; i++) {
        int32_t slot = step->slots[i];
        const train__sequence *s = g->sequences + slot;
        if (s->serial != step->serials[i]) continue;
        g->versions[slot * g->options.slot_tokens + s->drawn] = step->versions[i];
        if (g->options.top) train__generator_set_top(g, step, i);
        status = train__generator_append(g, slot, tokens[i], logprob[i], kept[i], answer, user, err);
    }
    step->rows = 0;
    return status;
}

ravel_status train_generator_step(train_generator *g, train_answer_fn answer, void *user, ravel_error *err) {
    RAVEL_ASSERT((g->net.weights || g->net.places) && answer && train__generator_ok(g));
    admit(g);
    begin_step(g, g->steps + g->turn);
    g->turn = (g->turn + 1) % TRAIN__STAGES;
    RAVEL_ASSERT(g->turn >= 0 && g->turn < TRAIN__STAGES);
    ravel_status status = train__link_status(&g->tp, err);
    if (!status) status = finish_step(g, g->turn, answer, user, err);
    if (!status && !train_generator_busy(g)) status = g->net.kernels->sync(g->net.device, err);
    return status;
}

ravel_status train_generator_run(train_generator *g, const train_request *requests, int64_t count,
                                 train_answer_fn answer, void *user, ravel_error *err) {
    ravel_status status = train_generator_begin(g, requests, count, err);
    while (!status && train_generator_busy(g)) status = train_generator_step(g, answer, user, err);
    return status;
}
