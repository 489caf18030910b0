/* The likeliest tokens beside the drawn one (train_sampling.top): the rows of logits that are asked for come to the
 * host with the step's results, and are scanned there once per token. A row costs its vocabulary in copies and
 * comparisons, so it is for requests that want to look, not for rollouts. */
#include "train/model/generate/generator_internal.h"

#include "base/assert.h"

#include <math.h>

size_t train__generator_logit_bytes(const train_generator *g) {
    return g->options.top ? (size_t)g->options.slots * train__net_bytes(&g->net, g->whole.vocab) : 0;
}

/* How many the sequence in the slot wants; 0: it has ended. */
static int32_t wanted(const train_generator *g, int32_t slot) {
    const train__sequence *s = g->sequences + slot;
    return s->request < 0 ? 0 : g->requests[s->request].sampling->top;
}

void train__generator_fetch_logits(train_generator *g, const train__step *step) {
    size_t row = train__net_bytes(&g->net, g->whole.vocab);
    RAVEL_ASSERT(step->logits && step->rows <= g->options.slots);
    for (int64_t i = 0; i < step->rows; i++)
        if (wanted(g, step->slots[i]) > 0)
            g->net.kernels->fetch(g->net.device, TRAIN__STAGE_GENERATOR + g->turn,
                                  (char *)step->logits + (size_t)i * row,
                                  train__net_at(&g->net, g->pass.logits, i * g->whole.vocab), row);
}

float train__generator_logit(const train_generator *g, const void *row, int64_t i) {
    if (g->net.types.activation != RAVEL_BF16) return ((const float *)row)[i];
    union {
        uint32_t bits;
        float value;
    } x = {(uint32_t)((const uint16_t *)row)[i] << 16};
    return x.value;
}

/* Inserts a token into best[*count], which has room for `most`, best first; of equal ones the lower id comes first. */
static void insert(train_top *best, int32_t *count, int32_t most, int32_t token, float value) {
    if (*count == most && !(value > best[most - 1].logprob)) return;
    int32_t at = *count < most ? (*count)++ : most - 1;
    for (; at > 0 && value > best[at - 1].logprob; at--) best[at] = best[at - 1];
    best[at] = (train_top){token, value};
}

int32_t train__generator_top(const train_generator *g, const void *logits, int32_t most, train_top *best) {
    int32_t count = 0;
    RAVEL_ASSERT(most >= 0 && most <= g->options.top && most <= g->whole.vocab);
    for (int64_t i = 0; i < g->whole.vocab && most; i++)
        insert(best, &count, most, (int32_t)i, train__generator_logit(g, logits, i));
    return count;
}

void train__generator_set_top(train_generator *g, const train__step *step, int64_t row) {
    int32_t slot = step->slots[row], most = wanted(g, slot);
    if (most == 0) return;
    const train__sequence *s = g->sequences + slot;
    const char *logits = (const char *)step->logits + (size_t)row * train__net_bytes(&g->net, g->whole.vocab);
    train_top *best = g->top + (slot * g->options.slot_tokens + s->drawn) * g->options.top;
    double t = g->requests[s->request].sampling->temperature, sum = 0;
    int32_t count = train__generator_top(g, logits, most, best);
    t = t > 0 ? t : 1;
    double largest = (double)best[0].logprob;
    for (int64_t i = 0; i < g->whole.vocab; i++)
        sum += exp(((double)train__generator_logit(g, logits, i) - largest) / t);
    for (int32_t i = 0; i < count; i++) best[i].logprob = (float)(((double)best[i].logprob - largest) / t - log(sum));
}
