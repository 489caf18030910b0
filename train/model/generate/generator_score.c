/* Log-probs of prompts (train_request.prompt_logprob): the rows of a prompt's pass go through the head, as many at a
 * time as there are slots, because there is memory for so many rows of logits. Row t predicts token t + 1. The host
 * waits for each part. */
#include "train/model/generate/generator_internal.h"

#include "base/assert.h"

/* The likeliest tokens of a row of g->pass.logits. The step to be begun next lends its memory: it has no rows yet. */
static void set_top(train_generator *g, const train_request *r, int64_t row, int64_t token, train_real lse) {
    size_t bytes = train__net_bytes(&g->net, g->whole.vocab);
    void *logits = g->steps[g->turn].logits;
    train_top *best = r->prompt_top + token * r->prompt_top_count;
    RAVEL_ASSERT(logits && g->steps[g->turn].rows == 0);
    g->net.kernels->download(g->net.device, logits, train__net_at(&g->net, g->pass.logits, row * g->whole.vocab),
                             bytes);
    int32_t count = train__generator_top(g, logits, r->prompt_top_count, best);
    for (int32_t i = 0; i < count; i++) best[i].logprob -= (float)lse;
}

/* Log-probs of tokens first ... first + count - 1, which rows `row` and after predict. */
static void score_rows(train_generator *g, const train_request *r, int64_t row, int64_t first, int64_t count) {
    const train_kernels *k = g->net.kernels;
    int64_t slots = g->options.slots;
    train_softmax softmax = {.rows = count,
                             .columns = g->whole.vocab,
                             .logits = g->pass.logits,
                             .scale = 1,
                             .targets = g->pass.targets,
                             .parts = g->pass.parts_of_rows,
                             .ranks = 1,
                             .logprob = g->pass.scores,
                             .lse = g->pass.scores + slots};
    RAVEL_ASSERT(count > 0 && count <= slots && first > 0 && first + count <= r->count);
    train__generator_logits(g, row, count);
    k->upload(g->net.device, g->pass.targets, r->prompt + first, (size_t)count * sizeof *r->prompt);
    k->softmax_parts(g->net.device, &softmax);
    k->softmax_combine(g->net.device, &softmax);
    k->download(g->net.device, g->scores, g->pass.scores, (size_t)(slots + count) * sizeof *g->scores);
    for (int64_t i = 0; i < count; i++) {
        r->prompt_logprob[first + i] = (float)g->scores[i];
        if (r->prompt_top_count) set_top(g, r, i, first + i, g->scores[slots + i]);
    }
}

void train__generator_score(train_generator *g, int64_t rows) {
    for (int64_t s = 0; s < g->scored_count; s++) {
        const train_request *r = g->requests + g->scored[s].request;
        const train__scored *x = &g->scored[s];
        RAVEL_ASSERT(x->first + x->count <= rows && x->from + x->count < r->count);
        for (int64_t t = 0; t < x->count; t += g->options.slots)
            score_rows(g, r, x->first + t, x->from + t + 1, train__min(g->options.slots, x->count - t));
    }
    g->scored_count = 0;
}
