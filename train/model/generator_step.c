/* One step of a generator.
 *
 *   admit    while slots are free and prompts fit one pass: sequences that follow one another with the same request share
 *            one run of the prompt. Prompts go side by side as a ragged batch; their keys and values are copied to the
 *            cache rows of every slot that wants them; the last row of each prompt gives the first token.
 *   decode   one row for each running sequence: its last token, at its next place, over its slot of the cache. */
#include "train/model/generator_internal.h"

#include "train/kernels/host.h"

/* What differs between the two kinds of pass. */
typedef struct pass {
    int64_t rows;    /* tokens that run through the layers */
    int64_t heads;   /* rows whose next token is drawn, host.order[i] being their slots */
    int64_t writes;  /* rows that go into the cache */
    int32_t prompts; /* of a prefill pass; 0: decode */
    int32_t longest; /* prompt, or cached sequence */
} pass;

static void upload(train_generator *g, void *block, const void *host, int64_t count) {
    g->net.kernels->upload(g->net.device, block, host, (size_t)count * sizeof(int32_t));
}

/* ---- the layers ----------------------------------------------------------------------------------------- */

/* Keys and values of the pass's rows to their places in the layer's cache. */
static void write_cache(train_generator *g, const pass *p, int64_t layer) {
    const train__net *n = &g->net;
    int64_t at = layer * g->options.slots * g->options.slot_tokens * n->kv_width;
    train_rows rows = {.rows = p->writes, .width = n->kv_width, .from_ids = g->pass.from, .to_ids = g->pass.to};
    rows.to = g->pass.k_cache + at;
    rows.from = g->pass.k;
    n->kernels->copy_rows(n->device, &rows);
    rows.to = g->pass.v_cache + at;
    rows.from = g->pass.qkv + n->q_width + n->kv_width;
    rows.ld_from = n->qkv_width;
    n->kernels->copy_rows(n->device, &rows);
}

static void attend_prompts(train_generator *g, const pass *p) {
    const train__net *n = &g->net;
    train_ragged batch = {.tokens = (int32_t)p->rows,
                          .samples = p->prompts,
                          .longest = p->longest,
                          .starts = g->pass.starts,
                          .lengths = g->pass.lengths,
                          .positions = g->pass.positions};
    train_attention x = {.batch = batch,
                         .heads = (int32_t)n->shape.heads,
                         .kv_heads = (int32_t)n->shape.kv_heads,
                         .head_dim = (int32_t)n->shape.head_dim,
                         .scale = n->scale,
                         .q = g->pass.q,
                         .k = g->pass.k,
                         .v = g->pass.qkv + n->q_width + n->kv_width,
                         .o = g->pass.o,
                         .lse = g->pass.lse,
                         .ld_q = n->q_width,
                         .ld_k = n->kv_width,
                         .ld_v = n->qkv_width};
    n->kernels->attention(n->device, &x);
}

static void attend_cache(train_generator *g, const pass *p, int64_t layer) {
    const train__net *n = &g->net;
    int64_t at = layer * g->options.slots * g->options.slot_tokens * n->kv_width;
    train_cached x = {.rows = (int32_t)p->rows,
                      .heads = (int32_t)n->shape.heads,
                      .kv_heads = (int32_t)n->shape.kv_heads,
                      .head_dim = (int32_t)n->shape.head_dim,
                      .scale = n->scale,
                      .slot_tokens = g->options.slot_tokens,
                      .longest = p->longest,
                      .q = g->pass.q,
                      .ld_q = n->q_width,
                      .k_cache = g->pass.k_cache + at,
                      .v_cache = g->pass.v_cache + at,
                      .slots = g->pass.slots,
                      .lengths = g->pass.lengths,
                      .o = g->pass.o};
    n->kernels->attention_cached(n->device, &x);
}

static const train_real *norm_weight(const train__net *n, int64_t layer) {
    if (layer == n->shape.layers) return n->weights + train_params_norm(n->params);
    return train__net_weight(n, layer, TRAIN_NORM_IN);
}

static void run_layers(train_generator *g, const pass *p) {
    const train__net *n = &g->net;
    const train__pass *b = &g->pass;
    n->kernels->copy_rows(n->device, &(train_rows){.rows = p->rows,
                                                   .width = n->hidden,
                                                   .to = b->x,
                                                   .from = n->weights + train_params_embedding(n->params),
                                                   .from_ids = b->tokens});
    train__net_norm(n, b->xn, NULL, b->x, NULL, norm_weight(n, 0), p->rows);
    for (int64_t layer = 0; layer < n->shape.layers; layer++) {
        train__net_qkv(n, layer, b->qkv, b->xn, p->rows);
        train_rope rope = train__net_rope(n, layer, b->q, b->k, b->qkv, b->positions, p->rows);
        n->kernels->rope(n->device, &rope);
        write_cache(g, p, layer);
        if (p->prompts)
            attend_prompts(g, p);
        else
            attend_cache(g, p, layer);
        train__net_project(n, layer, b->y, b->o, p->rows);
        train__net_norm(n, b->xn, b->x_mid, b->x, b->y, train__net_weight(n, layer, TRAIN_NORM_OUT), p->rows);
        train__net_feed_forward(n, layer, b->y, b->gate_up, b->h, b->xn, p->rows);
        train__net_norm(n, b->xn, b->x, b->x_mid, b->y, norm_weight(n, layer + 1), p->rows);
    }
}

/* ---- drawing -------------------------------------------------------------------------------------------- */

static void fill_choices(train_generator *g, const pass *p) {
    for (int64_t i = 0; i < p->heads; i++) {
        const train__sequence *s = g->host.sequences + g->host.order[i];
        const train_sampling *o = g->requests[s->request].sampling;
        g->host.choices[i] = (train_choice){.temperature = (train_real)o->temperature,
                                            .top_p = (train_real)o->top_p,
                                            .top_k = o->top_k,
                                            .uniform = train__random_unit(o->seed, s->stream, (uint64_t)s->drawn)};
    }
    g->net.kernels->upload(g->net.device, g->pass.choices, g->host.choices, (size_t)p->heads * sizeof *g->host.choices);
}

/* Logits of the head rows, one token of each; appended to their answers. */
static ravel_status draw(train_generator *g, const pass *p, train_answer_fn answer, void *user, ravel_error *err) {
    const train__net *n = &g->net;
    const train__pass *b = &g->pass;
    size_t numbers = (size_t)p->heads * sizeof(float);
    n->kernels->copy_rows(
        n->device,
        &(train_rows){.rows = p->heads, .width = n->hidden, .to = b->head, .from = b->xn, .from_ids = b->head_rows});
    train__net_linear(n, b->logits, b->head, n->weights + train_params_head(n->params), p->heads, n->shape.vocab,
                      n->hidden);
    fill_choices(g, p);
    train_sample sample = {.rows = p->heads,
                           .vocab = n->shape.vocab,
                           .logits = b->logits,
                           .choices = b->choices,
                           .tokens = b->drawn,
                           .logprob = b->logprob,
                           .kept_logprob = b->kept_logprob};
    n->kernels->sample(n->device, &sample);
    n->kernels->download(n->device, g->host.drawn, b->drawn, (size_t)p->heads * sizeof *g->host.drawn);
    n->kernels->download(n->device, g->host.drawn_logprob, b->logprob, numbers);
    n->kernels->download(n->device, g->host.drawn_kept, b->kept_logprob, numbers);
    ravel_status status = n->kernels->sync(n->device, err);
    for (int64_t i = 0; i < p->heads && !status; i++)
        status = train__generator_append(g, g->host.order[i], g->host.drawn[i], g->host.drawn_logprob[i],
                                         g->host.drawn_kept[i], answer, user, err);
    return status;
}

static ravel_status run_pass(train_generator *g, const pass *p, train_answer_fn answer, void *user, ravel_error *err) {
    upload(g, g->pass.tokens, g->host.tokens, p->rows);
    upload(g, g->pass.positions, g->host.positions, p->rows);
    upload(g, g->pass.lengths, g->host.lengths, p->prompts ? p->prompts : p->rows);
    if (p->prompts)
        upload(g, g->pass.starts, g->host.starts, p->prompts);
    else
        upload(g, g->pass.slots, g->host.slots, p->rows);
    upload(g, g->pass.head_rows, g->host.head_rows, p->heads);
    upload(g, g->pass.from, g->host.from, p->writes);
    upload(g, g->pass.to, g->host.to, p->writes);
    run_layers(g, p);
    return draw(g, p, answer, user, err);
}

/* ---- the two kinds of pass ------------------------------------------------------------------------------ */

static void stage_prompt(train_generator *g, pass *p, const train_request *r) {
    train__host *h = &g->host;
    h->starts[p->prompts] = (int32_t)p->rows;
    h->lengths[p->prompts++] = (int32_t)r->count;
    for (int64_t t = 0; t < r->count; t++) {
        h->tokens[p->rows + t] = r->prompt[t];
        h->positions[p->rows + t] = (int32_t)t;
    }
    p->rows += r->count;
    if (r->count > p->longest) p->longest = (int32_t)r->count;
    g->stats.prompt_tokens += r->count;
}

/* The prompt staged last, for one more sequence: where its rows go in the cache, and its head row. */
static void stage_sequence(train_generator *g, pass *p, int32_t slot, int64_t count) {
    train__host *h = &g->host;
    int64_t first = p->rows - count;
    for (int64_t t = 0; t < count; t++, p->writes++) {
        h->from[p->writes] = (int32_t)(first + t);
        h->to[p->writes] = (int32_t)(slot * g->options.slot_tokens + t);
    }
    h->order[p->heads] = slot;
    h->head_rows[p->heads++] = (int32_t)(p->rows - 1);
}

/* Fills free slots with one pass of prompts; p->heads is 0 when nothing was admitted. */
static pass stage_prompts(train_generator *g) {
    pass p = {0};
    const train_request *next, *staged = NULL;
    int32_t slot;
    while ((next = train__generator_next(g))) {
        if (next != staged && p.rows + next->count > g->options.prefill) break;
        if (!train__generator_admit(g, &slot)) break;
        if (next != staged) stage_prompt(g, &p, next);
        staged = next;
        stage_sequence(g, &p, slot, next->count);
    }
    return p;
}

static pass stage_decode(train_generator *g) {
    train__host *h = &g->host;
    pass p = {0};
    for (int32_t slot = 0; slot < g->options.slots; slot++) {
        train__sequence *s = h->sequences + slot;
        if (s->request < 0) continue;
        int64_t i = p.rows++, place = s->cached++;
        h->tokens[i] = s->last;
        h->positions[i] = (int32_t)place;
        h->slots[i] = slot;
        h->lengths[i] = (int32_t)place + 1;
        h->from[i] = (int32_t)i;
        h->to[i] = (int32_t)(slot * g->options.slot_tokens + place);
        h->order[i] = slot;
        h->head_rows[i] = (int32_t)i;
        if (place + 1 > p.longest) p.longest = (int32_t)place + 1;
    }
    p.heads = p.writes = p.rows;
    return p;
}

ravel_status train_generator_step(train_generator *g, train_answer_fn answer, void *user, ravel_error *err) {
    for (pass p = stage_prompts(g); p.heads; p = stage_prompts(g)) {
        ravel_status status = run_pass(g, &p, answer, user, err);
        if (status) return status;
    }
    if (!g->running) return RAVEL_OK;
    g->stats.steps++;
    g->stats.slot_steps += g->running;
    pass p = stage_decode(g);
    return run_pass(g, &p, answer, user, err);
}

ravel_status train_generator_run(train_generator *g, const train_request *requests, int64_t count,
                                 train_answer_fn answer, void *user, ravel_error *err) {
    ravel_status status = train_generator_begin(g, requests, count, err);
    while (!status && train_generator_busy(g)) status = train_generator_step(g, answer, user, err);
    return status;
}
