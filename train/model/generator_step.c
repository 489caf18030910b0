/* One step of a generator.
 *
 *   prefill   prompts of sequences that get a slot, side by side as a ragged batch: their keys and values go to the
 *             pages of the prefix. Nothing is drawn.
 *   decode    one row per running sequence: its last token, at its next place, over its pages; one token drawn. */
#include "train/model/generator_internal.h"

#include "train/kernels/assert.h"

#include <string.h>

/* The rows of a pass, on the device. */
typedef struct pass {
    train_generator *g;
    int64_t rows;
    int32_t samples, longest;
    const int32_t *tokens, *positions;
    const int32_t *slots;            /* [rows] whose pages; of `table` */
    const int32_t *starts, *lengths; /* [samples] of prompts, or [rows] of cached tokens */
    const int32_t *table;
} pass;

static train_cache cache_of(const pass *p, int64_t layer) {
    const train_generator *g = p->g;
    size_t at = (size_t)layer * (size_t)g->pages * g->page_bytes;
    TRAIN_ASSERT(layer >= 0 && layer < g->net.shape.layers && p->table);
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

/* ---- prompts -------------------------------------------------------------------------------------------- */

static void attend_prompts(void *user, int64_t layer, const train__acts *a) {
    const pass *p = user;
    const train__net *n = &p->g->net;
    write_cache(p, layer, a);
    if (layer == n->shape.layers - 1) return; /* nothing reads the last layer's output */
    train_attention x = train__net_attention(n, a);
    x.samples = p->samples;
    x.queries = x.keys = (train_ragged){(int32_t)p->rows, p->longest, p->starts, p->lengths, NULL};
    n->kernels->attention(n->device, &x);
}

/* The prompts of one pass while it is put together. Their pages are rows of a table of their own, because a prefix is
 * not in a slot. */
typedef struct prompts {
    pass pass;
    int32_t *tokens, *positions, *slots, *starts, *lengths, *table;
    int32_t *from, *to; /* [copies, layers] pages of all layers */
    const int32_t *from_there, *to_there;
} prompts;

static prompts begin_prompts(train_generator *g) {
    prompts p = {.pass = {.g = g}};
    train__staging *s = &g->staging;
    int64_t slots = g->options.slots;
    train__staging_begin(s);
    p.tokens = train__staging_take(s, g->rows, sizeof *p.tokens, &p.pass.tokens);
    p.positions = train__staging_take(s, g->rows, sizeof *p.positions, &p.pass.positions);
    p.slots = train__staging_take(s, g->rows, sizeof *p.slots, &p.pass.slots);
    p.starts = train__staging_take(s, slots, sizeof *p.starts, &p.pass.starts);
    p.lengths = train__staging_take(s, slots, sizeof *p.lengths, &p.pass.lengths);
    p.table = train__staging_take(s, slots * g->pages_per_slot, sizeof *p.table, &p.pass.table);
    p.from = train__staging_take(s, slots * g->net.shape.layers, sizeof *p.from, &p.from_there);
    p.to = train__staging_take(s, slots * g->net.shape.layers, sizeof *p.to, &p.to_there);
    return p;
}

/* The prefix becomes sample `samples` of the pass. */
static void add_prompt(prompts *p) {
    train_generator *g = p->pass.g;
    const train_request *r = g->requests + g->prefix.request;
    int32_t count = (int32_t)g->prefix.tokens, first = (int32_t)p->pass.rows, sample = p->pass.samples;
    if (count == 0) return;
    TRAIN_ASSERT(sample < g->options.slots && first + count <= g->rows);
    p->starts[sample] = first;
    p->lengths[sample] = count;
    memcpy(p->tokens + first, r->prompt, (size_t)count * sizeof *p->tokens);
    for (int32_t t = 0; t < count; t++) {
        p->positions[first + t] = t;
        p->slots[first + t] = sample;
    }
    memcpy(p->table + sample * g->pages_per_slot, g->prefix.pages, (size_t)g->pages_per_slot * sizeof *p->table);
    p->pass.rows += count;
    p->pass.samples++;
    if (count > p->pass.longest) p->pass.longest = count;
    g->stats.prompt_tokens += count;
}

static void embed_rows(const pass *p, const int32_t *ids, const int32_t *picks) {
    TRAIN_ASSERT(p->rows > 0 && p->rows <= p->g->rows && ids);
    const train__net *n = &p->g->net;
    const train__acts *a = &p->g->pass.acts;
    train__net_embed(n, a->x, a->x, ids, picks, p->rows);
    train__net_norm(n, a->xn, NULL, a->x, NULL, 0, TRAIN_NORM_IN, p->rows);
}

/* Of the last layer, nothing but the cache is read. */
static void run_prompt_layers(pass *p) {
    const train__net *n = &p->g->net;
    const train__acts *a = &p->g->pass.acts;
    train__rows_of rows = {p->rows, p->positions, attend_prompts, p};
    TRAIN_ASSERT(p->samples > 0 && p->samples <= p->g->options.slots && p->longest <= p->g->options.slot_tokens);
    embed_rows(p, p->tokens, NULL);
    for (int64_t layer = 0; layer + 1 < n->shape.layers; layer++) train__net_layer(n, layer, a, &rows);
    train__net_attend(n, n->shape.layers - 1, a, &rows);
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
    TRAIN_ASSERT(p->pass.rows <= g->rows && g->copy_count <= g->options.slots);
    stage_copies(p);
    train__staging_send(&g->staging);
    if (p->pass.rows) run_prompt_layers(&p->pass);
    if (g->copy_count) {
        copy_pages(p, g->pass.k_pages);
        copy_pages(p, g->pass.v_pages);
    }
    train__staging_release_all(&g->staging);
    g->copy_count = 0;
    train__generator_free_retired(g);
    TRAIN_ASSERT(train__generator_ok(g) && g->retired_count == 0);
}

/* Fills free slots, in passes of at most `prefill` prompt tokens. */
static void admit(train_generator *g) {
    const train_request *next;
    while ((next = train__generator_next(g)) && g->running < g->options.slots) {
        prompts p = begin_prompts(g);
        for (; next && g->running < g->options.slots; next = train__generator_next(g)) {
            if (g->prefix.request != g->next_request) {
                if (p.pass.rows + next->count - 1 > g->options.prefill) break;
                train__generator_new_prefix(g);
                add_prompt(&p);
            }
            if (train__generator_admit(g) < 0) break;
        }
        run_prompts(&p);
    }
    if (!g->waiting) train__generator_drop_prefix(g);
    train__generator_free_retired(g);
}

/* ---- one token each ------------------------------------------------------------------------------------- */

static void attend_cache(void *user, int64_t layer, const train__acts *a) {
    const pass *p = user;
    const train__net *n = &p->g->net;
    write_cache(p, layer, a);
    n->kernels->attention_cached(n->device, &(train_cached){.cache = cache_of(p, layer),
                                                            .rows = (int32_t)p->rows,
                                                            .heads = (int32_t)n->shape.heads,
                                                            .scale = n->scale,
                                                            .window = n->window,
                                                            .longest = p->longest,
                                                            .q = a->q,
                                                            .ld_q = n->q_width,
                                                            .slots = p->slots,
                                                            .lengths = p->lengths,
                                                            .o = a->o});
}

static train_choice choice_of(const train_generator *g, const train__sequence *s) {
    const train_sampling *o = g->requests[s->request].sampling;
    return (train_choice){.temperature = (float)o->temperature,
                          .top_p = (float)o->top_p,
                          .top_k = o->top_k,
                          .min_p = (float)o->min_p,
                          .uniform = train__random_unit(o->seed, s->stream, (uint64_t)s->begun)};
}

/* Rows of a step: every sequence that wants a token more. */
static const train_choice *stage_rows(train_generator *g, pass *p, train__step *step) {
    train__staging *st = &g->rows_of_steps;
    const train_choice *there = NULL;
    int64_t most = g->options.slots;
    train__staging_begin(st);
    int32_t *positions = train__staging_take(st, most, sizeof *positions, &p->positions);
    int32_t *slots = train__staging_take(st, most, sizeof *slots, &p->slots);
    int32_t *lengths = train__staging_take(st, most, sizeof *lengths, &p->lengths);
    train_choice *choices = train__staging_take(st, most, sizeof *choices, &there);
    for (int32_t slot = 0; slot < most; slot++) {
        train__sequence *s = g->sequences + slot;
        if (s->request < 0 || s->begun == train__generator_room(g, g->requests + s->request)) continue;
        train__generator_grow(g, slot);
        int64_t i = p->rows++, place = s->cached++;
        TRAIN_ASSERT(i < most && place < g->options.slot_tokens);
        positions[i] = (int32_t)place;
        slots[i] = step->slots[i] = slot;
        step->serials[i] = s->serial;
        lengths[i] = (int32_t)place + 1;
        choices[i] = choice_of(g, s);
        s->begun++;
        if (place + 1 > p->longest) p->longest = (int32_t)place + 1;
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
        choices[p->rows] = (train_choice){.top_p = 1};
    }
    p->longest = train__generator_longest(g, p->longest);
    TRAIN_ASSERT(st->turn == g->turn);
    train__staging_send(st);
    return there;
}

/* Where the three arrays of a step's results are. */
static void results_of(const train_generator *g, char *block, int32_t **tokens, float **logprob, float **kept) {
    train__cut cut = {block, 0};
    *tokens = train__cut_take(&cut, g->options.slots, sizeof **tokens);
    *logprob = train__cut_take(&cut, g->options.slots, sizeof **logprob);
    *kept = train__cut_take(&cut, g->options.slots, sizeof **kept);
    TRAIN_ASSERT(cut.used <= g->result_bytes);
}

int64_t train__generator_vocab_share(const train_generator *g) {
    return (g->whole.vocab + g->tp.ranks - 1) / g->tp.ranks;
}

/* The logits of every rank's part of the vocabulary, [rows, its tokens] each, into rows of the whole vocabulary. */
static void gather_logits(train_generator *g, int64_t rows) {
    const train__net *n = &g->net;
    int64_t each = rows * train__generator_vocab_share(g);
    TRAIN_ASSERT(rows > 0 && rows <= g->options.slots && g->pass.parts);
    train__link_gather(&g->tp, g->pass.part, g->pass.parts, each, n->types.activation);
    for (int32_t r = 0; r < g->tp.ranks; r++) {
        train_slice here = {.tp = g->tp.ranks, .tp_rank = r}, next = {.tp = g->tp.ranks, .tp_rank = r + 1};
        int64_t first = train_slice_vocab(&g->whole, &here), width = train_slice_vocab(&g->whole, &next) - first;
        TRAIN_ASSERT(width > 0 && rows * width <= each && first + width <= g->whole.vocab);
        n->kernels->copy_rows(n->device, &(train_rows){.rows = rows,
                                                       .width = width,
                                                       .to = train__net_at(n, g->pass.logits, first),
                                                       .from = train__net_at(n, g->pass.parts, r * each),
                                                       .ld_to = g->whole.vocab,
                                                       .ld_from = width});
    }
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
    void *logits = g->tp.ranks > 1 ? g->pass.part : g->pass.logits;
    train__net_linear(n, logits, g->pass.acts.xn, train__net_weight(n, n->params->head), p->rows, n->shape.vocab,
                      n->hidden);
    if (g->tp.ranks > 1) gather_logits(g, p->rows);
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
    TRAIN_ASSERT(d->pass.rows > 0 && d->pass.rows <= g->options.slots && d->choices);
    train__rows_of rows = {d->pass.rows, d->pass.positions, attend_cache, &d->pass};
    embed_rows(&d->pass, g->pass.last, d->pass.slots);
    for (int64_t layer = 0; layer < g->net.shape.layers; layer++)
        train__net_layer(&g->net, layer, &g->pass.acts, &rows);
    draw(g, &d->pass, d->choices, g->pass.results[g->turn]);
}

/* Calls the kernels of a step; its tokens are fetched into `step`. */
static void begin_step(train_generator *g, train__step *step) {
    decode d = {.pass = {.g = g}};
    TRAIN_ASSERT(step->rows == 0 && g->rows_of_steps.count == TRAIN__STAGES);
    d.choices = stage_rows(g, &d.pass, step);
    if (step->rows) {
        train__generator_replay(g, d.pass.rows, d.pass.longest, run_decode, &d);
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
    TRAIN_ASSERT(step->rows > 0 && step->rows <= g->options.slots && step->host);
    g->net.kernels->fetch_wait(g->net.device, TRAIN__STAGE_GENERATOR + turn);
    results_of(g, step->host, &tokens, &logprob, &kept);
    for (int64_t i = 0; i < step->rows && !status; i++)
        if (g->sequences[step->slots[i]].serial == step->serials[i])
            status = train__generator_append(g, step->slots[i], tokens[i], logprob[i], kept[i], answer, user, err);
    step->rows = 0;
    return status;
}

ravel_status train_generator_step(train_generator *g, train_answer_fn answer, void *user, ravel_error *err) {
    TRAIN_ASSERT(g->net.weights && answer && train__generator_ok(g));
    admit(g);
    begin_step(g, g->steps + g->turn);
    g->turn = (g->turn + 1) % TRAIN__STAGES;
    TRAIN_ASSERT(g->turn >= 0 && g->turn < TRAIN__STAGES);
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
