/* The model beyond the golden vectors: shapes that they do not have, hooks, packing, threads, memory, bad batches. */
#include "tests/unit/train_support.h"

#include "base/rng.h"
#include "tests/unit/normal.h"

#include <math.h>
#include <stdlib.h>

static ravel__rng rng;

enum { TOKENS = 60, PARTS = 4 };
static const int32_t cuts[PARTS + 1] = {0, 17, 18, 40, 60};

typedef struct data {
    int32_t tokens[TOKENS];
    float weights[TOKENS];
} data;

static data random_data(const ravel_shape *shape) {
    data d;
    for (int i = 0; i < TOKENS; i++) {
        d.tokens[i] = (int32_t)ravel__rng_below(&rng, (uint64_t)shape->vocab);
        d.weights[i] = ravel__rng_below(&rng, 3) ? (float)ravel__rng_unit(&rng) : 0;
    }
    return d;
}

static train_batch whole(const data *d) {
    return (train_batch){.samples = PARTS, .tokens = d->tokens, .cu_seqlens = cuts, .weights = d->weights};
}

static train_model_options with_budget(int64_t budget) {
    train_model_options o;
    train_model_options_default(&o);
    o.budget = budget;
    return o;
}

static bool open_random(rig *r, const char *set, int32_t threads, const ravel_shape *shape,
                        const train_model_options *o) {
    return rig_open(r, set, threads, shape, o) && EXPECT(train_model_init(r->model, 3, 0.2, NULL) == RAVEL_OK);
}

/* ---- shapes --------------------------------------------------------------------------------------------- */

static double loss_of(rig *r, const train_batch *b) {
    train_result result = {0};
    return EXPECT(train_model_score(r->model, b, &result, NULL) == RAVEL_OK) ? result.loss : NAN;
}

/* The central difference of the loss along a tensor's gradient, h times it each way. */
static double difference(rig *r, const train_batch *b, const train_tensor *t, const float *g, double h) {
    float *weights = train_model_weights(r->model), *at = weights + t->offset;
    size_t bytes = (size_t)t->count * sizeof *at;
    float *keep = malloc(bytes);
    double values[2];
    memcpy(keep, at, bytes);
    for (int side = 0; side < 2; side++) {
        for (int64_t e = 0; e < t->count; e++) at[e] = (float)(keep[e] + (side ? -h : h) * g[e]);
        values[side] = loss_of(r, b);
    }
    memcpy(at, keep, bytes);
    free(keep);
    return (values[0] - values[1]) / (2 * h);
}

/* The slope of the loss along each tensor's own gradient is that gradient's squared length: central differences of the
 * whole model in float, so to about a hundredth. Their error grows with the square of the step: if that is too much, half
 * the step tells how much it is (Richardson). */
static void slopes(const char *set, const ravel_shape *shape) {
    rig r;
    train_model_options o = with_budget(TOKENS);
    data d = random_data(shape);
    train_batch b = whole(&d);
    train_result result = {0};
    CHECK(open_random(&r, set, 1, shape, &o));
    CHECK(train_model_learn(r.model, &b, NULL, &result, NULL) == RAVEL_OK);
    const train_params *params = train_model_params(r.model);
    float *grads = rig_grads(&r);
    for (int64_t i = 0; i < params->count; i++) {
        const train_tensor *t = params->tensors + i;
        const float *g = grads + t->offset;
        double squares = 0;
        for (int64_t e = 0; e < t->count; e++) squares += (double)g[e] * g[e];
        if (!EXPECT(squares > 0)) printf("    %s has no gradient\n", t->name);
        double h = 0.02 / sqrt(squares), slope = difference(&r, &b, t, g, h);
        if (!(fabs(slope / squares - 1) < 0.02)) slope += 4 * (difference(&r, &b, t, g, h / 2) - slope) / 3;
        if (!(fabs(slope / squares - 1) < 0.02))
            check_fail(__FILE__, __LINE__, "%s: slope along %s is %g, not %g", set, t->name, slope, squares);
    }
    free(grads);
    rig_close(&r);
}

TEST(train_model_slopes_of_every_kind_of_shape) {
    rng = ravel__rng_seed(check_seed());
    for (int kind = 0; kind < 8; kind++) {
        ravel_shape shape = small_shape();
        shape.tied = kind & 1;
        shape.qk_norm = kind >> 1 & 1;
        shape.attention_bias = kind >> 2 & 1;
        slopes(kind % 3 ? "cpu" : "ref", &shape);
    }
}

TEST(train_model_shapes_that_it_has_no_kernels_for) {
    train_params *params = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_shape shape = small_shape();
    shape.gated = 0;
    CHECK_EQ(train_params_create(&shape, NULL, NULL, &params, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "without a gate");
    shape = small_shape();
    shape.experts = 4;
    shape.experts_active = 2;
    shape.expert_ffn = shape.shared_ffn = 8;
    ravel_error_clear(&err);
    CHECK_EQ(train_params_create(&shape, NULL, NULL, &params, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "experts that every token goes to");
}

/* Names, order and contiguity of the table; every element belongs to one tensor or to a gap. */
TEST(train_model_parameters_are_one_flat_array) {
    for (int kind = 0; kind < 8; kind++) {
        ravel_shape shape = small_shape();
        train_params *p = NULL;
        shape.tied = kind & 1;
        shape.qk_norm = kind >> 1 & 1;
        shape.attention_bias = kind >> 2 & 1;
        CHECK(train_params_create(&shape, NULL, NULL, &p, NULL) == RAVEL_OK);
        CHECK_EQ(p->parameters, ravel_shape_parameters(&shape));
        CHECK(p->elements % 16 == 0);
        int64_t end = 0;
        for (int64_t i = 0; i < p->count; i++) {
            CHECK(p->tensors[i].offset >= end && p->tensors[i].offset < end + 16);
            CHECK(train_params_find(p, p->tensors[i].name) == p->tensors + i);
            end = p->tensors[i].offset + p->tensors[i].count;
        }
        CHECK(p->elements >= end && p->elements < end + 16);
        CHECK_STR(p->tensors[0].name, "model.embed_tokens.weight");
        CHECK_STR(p->tensors[p->count - 1].name, shape.tied ? "model.norm.weight" : "lm_head.weight");
        CHECK((train_params_find(p, "model.layers.1.self_attn.q_norm.weight") != NULL) == shape.qk_norm);
        CHECK((train_params_layer(p, 1, TRAIN_V_BIAS) >= 0) == shape.attention_bias);
        CHECK_EQ(train_params_layer(p, 0, TRAIN_K), train_params_layer(p, 0, TRAIN_Q) + 60 * 24);
        CHECK_EQ(train_params_layer(p, 0, TRAIN_UP), train_params_layer(p, 0, TRAIN_GATE) + 35 * 24);
        train_params_free(p);
    }
}

/* ---- the same whatever the way -------------------------------------------------------------------------- */

static float *learn_all(rig *r, const train_batch *b, double *loss) {
    train_result result = {0};
    train_model_clear_grads(r->model);
    if (!EXPECT(train_model_learn(r->model, b, NULL, &result, NULL) == RAVEL_OK)) return NULL;
    *loss = result.loss;
    return rig_grads(r);
}

/* Threads and recomputing change no bit; so does doing it twice. */
TEST(train_model_threads_and_recomputing_change_no_bit) {
    rng = ravel__rng_seed(check_seed());
    ravel_shape shape = small_shape();
    shape.layers = 3;
    data d = random_data(&shape);
    train_batch b = whole(&d);
    float *first = NULL;
    double first_loss = 0;
    for (int way = 0; way < 6; way++) {
        rig r;
        double loss;
        train_model_options o = with_budget(TOKENS + 3 * way);
        o.recompute = way % 3;
        CHECK(open_random(&r, "cpu", way > 2 ? 3 : 1, &shape, &o));
        for (int twice = 0; twice < 2; twice++) {
            float *grads = learn_all(&r, &b, &loss);
            size_t bytes = (size_t)train_model_params(r.model)->elements * sizeof *grads;
            if (!first) first = grads, first_loss = loss;
            EXPECT(memcmp(first, grads, bytes) == 0 && loss == first_loss);
            if (grads != first) free(grads);
        }
        rig_close(&r);
    }
    free(first);
}

/* One at a time, in any order, and with gaps: the same sum of gradients up to rounding. A filler adds nothing at all. */
TEST(train_model_packing_and_fillers) {
    rng = ravel__rng_seed(check_seed());
    ravel_shape shape = small_shape();
    data d = random_data(&shape);
    train_batch b = whole(&d);
    rig r;
    double loss, sum = 0;
    train_model_options o = with_budget(TOKENS);
    CHECK(open_random(&r, "cpu", 1, &shape, &o));
    int64_t n = train_model_params(r.model)->elements;
    float *packed = learn_all(&r, &b, &loss);
    train_model_clear_grads(r.model);
    for (int i = PARTS - 1; i >= 0; i--) {
        int32_t cu[2] = {0, cuts[i + 1] - cuts[i]};
        train_batch one = {
            .samples = 1, .tokens = d.tokens + cuts[i], .cu_seqlens = cu, .weights = d.weights + cuts[i]};
        train_result result = {0};
        CHECK(train_model_learn(r.model, &one, NULL, &result, NULL) == RAVEL_OK);
        sum += result.loss;
    }
    float *single = rig_grads(&r);
    CHECK(relative_distance(single, packed, n) < 2e-6 && fabs(sum / loss - 1) < 1e-6);
    int32_t token = 4, cu[2] = {0, 1};
    float weight = 0;
    train_batch filler = {.samples = 1, .tokens = &token, .cu_seqlens = cu, .weights = &weight};
    train_result result = {.loss = 9, .scored = 9};
    CHECK(train_model_learn(r.model, &filler, NULL, &result, NULL) == RAVEL_OK);
    CHECK(result.loss == 0 && result.scored == 0);
    float *after = rig_grads(&r);
    CHECK(memcmp(after, single, (size_t)n * sizeof *after) == 0);
    free(packed), free(single), free(after);
    rig_close(&r);
}

/* ---- policy losses -------------------------------------------------------------------------------------- */

/* The loss kernel on host arrays, in the order of the tokens, as a loss of the caller's. */
typedef struct by_hand {
    const rig *r;
    const train_batch *b;
    const train_loss *loss;
    train_loss_sums sums;
} by_hand;

static ravel_status weigh_by_hand(void *user, int64_t tag, const float *logprob, float *coef, ravel_error *err) {
    by_hand *h = user;
    const train_batch *b = h->b;
    const train_loss *l = h->loss;
    float now[TOKENS], w[TOKENS], o[TOKENS], g[TOKENS], f[TOKENS], a[TOKENS], c[TOKENS];
    int32_t samples[TOKENS], places[TOKENS], scored = 0;
    (void)tag, (void)err;
    for (int32_t s = 0; s < b->samples; s++)
        for (int32_t t = b->cu_seqlens[s] + 1; t < b->cu_seqlens[s + 1]; t++) {
            if (b->weights && b->weights[t] == 0) continue;
            now[scored] = logprob[t], w[scored] = b->weights ? b->weights[t] : 1;
            o[scored] = l->old[t], g[scored] = l->generator[t], f[scored] = l->reference[t];
            a[scored] = l->advantages[s];
            samples[scored] = s, places[scored++] = t;
        }
    train_sequence_sums sequences[TOKENS] = {{0}};
    train_loss_rows rows = {scored,  &l->policy, now, NULL, w,        o, g,    f,    a,
                            samples, sequences,  c,   NULL, &h->sums, 0, NULL, NULL, NULL};
    if (train__terms_couple(&l->policy)) h->r->kernels->sequence_sums(h->r->device, &rows, sequences);
    h->r->kernels->loss(h->r->device, &rows);
    for (int32_t i = 0; i < scored; i++) coef[places[i]] = c[i];
    return RAVEL_OK;
}

/* The sum of weight * entropy with the weights moved by `step` along a direction. */
static double entropy_at(rig *r, const train_batch *b, const float *direction, double step) {
    float entropy[TOKENS], *weights = train_model_weights(r->model);
    int64_t n = train_model_params(r->model)->elements;
    train_result result = {.entropy = entropy};
    double sum = 0;
    for (int64_t i = 0; i < n; i++) weights[i] += (float)(step * direction[i]);
    (void)EXPECT(train_model_score(r->model, b, &result, NULL) == RAVEL_OK);
    for (int64_t i = 0; i < n; i++) weights[i] -= (float)(step * direction[i]);
    for (int i = 0; i < TOKENS; i++) sum += (double)entropy[i] * (b->weights ? (double)b->weights[i] : 1);
    return sum;
}

/* What a bonus adds to the gradient, against differences of the entropy itself: its derivative along this direction is the
 * direction's square over the bonus. */
static void entropy_against_differences(rig *r, const train_batch *b, train_loss loss, const float *without) {
    int64_t n = train_model_params(r->model)->elements;
    double square = 0;
    loss.policy.entropy = 0.5;
    train_model_clear_grads(r->model);
    CHECK(train_model_learn(r->model, b, &loss, NULL, NULL) == RAVEL_OK);
    float *added = rig_grads(r);
    for (int64_t i = 0; i < n; i++) added[i] -= without[i], square += (double)added[i] * added[i];
    double step = 2e-3 / sqrt(square); /* the weights move by 2e-3 */
    double change = (entropy_at(r, b, added, step) - entropy_at(r, b, added, -step)) / (2 * step);
    if (!EXPECT(square > 0 && fabs(-0.5 * change / square - 1) < 0.02))
        printf("    the entropy changes by %g along a gradient of square %g\n", change, square);
    free(added);
}

/* The loss on the device, chunk by chunk or by sequence, and the caller's with the same coefficients give the same gradients. */
static void policy_and_by_hand(rig *r, train_batch *b, int sequence, int32_t correction) {
    ravel_error err = RAVEL_ERROR_INIT;
    int64_t n = train_model_params(r->model)->elements;
    float logprob[TOKENS];
    float old[TOKENS], generator[TOKENS], reference[TOKENS], advantages[TOKENS];
    train_result result = {.logprob = logprob};
    CHECK_OK(train_model_score(r->model, b, &result, &err), &err);
    for (int i = 0; i < TOKENS; i++) {
        old[i] = logprob[i] + 0.1f * (float)ravel__rng_normal(&rng);
        generator[i] = old[i] + 0.05f * (float)ravel__rng_normal(&rng);
        reference[i] = logprob[i] + 0.2f * (float)ravel__rng_normal(&rng);
        advantages[i] = (float)ravel__rng_normal(&rng);
    }
    train_policy_terms terms = {.sequence = sequence, .kl_kind = TRAIN_KL_K3, .gap = TRAIN_GAP_OLD, .kl = 0.1};
    terms.clip_low = terms.clip_high = 0.2;
    CHECK_OK(ravel_policy_get_correction(correction, 0, 1.05, &terms.correction, &err), &err);
    train_loss loss = {.policy = terms,
                       .old = old,
                       .generator = generator,
                       .reference = reference,
                       .advantages = advantages,
                       .entropy = 1};
    train_model_clear_grads(r->model);
    CHECK_OK(train_model_learn(r->model, b, &loss, NULL, &err), &err);
    train_update update;
    CHECK_OK(train_model_read(r->model, &update, &err), &err);
    CHECK(update.sums.tokens == (double)result.scored && update.sums.gap_tokens == update.sums.tokens);
    float *learnt = rig_grads(r);
    by_hand h = {.r = r, .b = b, .loss = &loss};
    train_loss coupled = {.couple = weigh_by_hand, .user = &h};
    train_model_clear_grads(r->model);
    CHECK_OK(train_model_learn(r->model, b, &coupled, NULL, &err), &err);
    CHECK(fabs(h.sums.loss - update.sums.loss) < 1e-6 * (1 + fabs(h.sums.loss)));
    CHECK(h.sums.clipped == update.sums.clipped);
    float *twice = rig_grads(r);
    CHECK(relative_distance(twice, learnt, n) < 1e-6);
    entropy_against_differences(r, b, loss, learnt);
    free(learnt), free(twice);
}

TEST(train_model_policy_loss_and_the_callers_agree) {
    rng = ravel__rng_seed(check_seed());
    ravel_shape shape = small_shape();
    data d = random_data(&shape);
    train_batch b = whole(&d);
    b.temperature = 0.7;
    rig r;
    train_model_options o = with_budget(TOKENS);
    o.logits_rows = 9;
    CHECK(open_random(&r, "cpu", 1, &shape, &o));
    policy_and_by_hand(&r, &b, 0, RAVEL_CORRECTION_TIS);
    policy_and_by_hand(&r, &b, 0, RAVEL_CORRECTION_SEQ_MIS);
    policy_and_by_hand(&r, &b, 1, RAVEL_CORRECTION_SEQ_TIS);
    rig_close(&r);
}

TEST(train_model_calls_out_of_order) {
    rng = ravel__rng_seed(check_seed());
    ravel_shape shape = small_shape();
    data d = random_data(&shape);
    train_batch b = whole(&d);
    rig r;
    ravel_error err = RAVEL_ERROR_INIT;
    train_model_options o = with_budget(TOKENS);
    CHECK(open_random(&r, "cpu", 1, &shape, &o));
    CHECK_EQ(train_model_stage_backward(r.model, 0, NULL), RAVEL_E_STATE);
    CHECK_OK(train_model_stage_forward(r.model, 0, &b, NULL, &err), &err);
    CHECK_OK(train_model_stage_backward(r.model, 0, &err), &err);
    CHECK_EQ(train_model_stage_backward(r.model, 0, NULL), RAVEL_E_STATE); /* once for each forward */
    rig_close(&r);
}

/* ---- memory --------------------------------------------------------------------------------------------- */

/* What was told beforehand is what is allocated, within 10 % (in truth: the tables of names and 72 bytes a block). */
TEST(train_model_memory_is_as_told) {
    static const int64_t budgets[] = {64, 500, 3000};
    const train_kernels *k = NULL;
    CHECK(train_kernels_find("cpu", &k, NULL) == RAVEL_OK);
    int64_t activations[3][2];
    for (int i = 0; i < 12; i++) {
        check_memory memory;
        check_memory_init(&memory);
        ravel_shape shape = small_shape();
        train_model_options o = with_budget(budgets[i / 4]);
        train_memory told;
        rig r;
        o.recompute = i & 1 ? TRAIN_RECOMPUTE_FULL : TRAIN_RECOMPUTE_NONE;
        o.inference = i >> 1 & 1;
        o.allocator = &memory.allocator;
        CHECK(train_model_memory(k, 1, &shape, &o, &told, NULL) == RAVEL_OK);
        CHECK(rig_open(&r, "cpu", 1, &shape, &o));
        CHECK(fabs((double)memory.live / (double)told.total - 1) < 0.1);
        if (!o.inference) activations[i / 4][i & 1] = told.activations;
        int64_t before = memory.calls, live = memory.live;
        data d = random_data(&shape);
        train_batch b = whole(&d);
        train_result result = {0};
        CHECK((o.inference ? train_model_score(r.model, &b, &result, NULL)
                           : train_model_learn(r.model, &b, NULL, &result, NULL)) == RAVEL_OK);
        CHECK(memory.calls == before && memory.live == live); /* nothing is allocated in a run */
        rig_close(&r);
        CHECK(memory.live == 0 && memory.blocks == 0);
    }
    for (int recompute = 0; recompute < 2; recompute++) /* proportional to the budget, not to its square */
        CHECK(fabs((double)activations[2][recompute] / (double)activations[1][recompute] - 6) < 0.1);
    CHECK(activations[2][1] < activations[2][0]);
}

static ravel_status life(const ravel_allocator *allocator, void *user) {
    const train_kernels *k = user;
    train_device *device = NULL;
    train_model *model = NULL;
    train_device_options d = {.threads = 2, .allocator = allocator};
    ravel_shape shape = small_shape();
    train_model_options o = with_budget(40);
    o.allocator = allocator;
    ravel_status status = k->open(&d, &device, NULL);
    if (!status) status = train_model_create(k, device, &shape, &o, &model, NULL);
    train_model_free(model);
    k->close(device);
    return status;
}

TEST(train_model_every_allocation_may_fail) {
    static const char *const sets[] = {"ref", "cpu"};
    for (int i = 0; i < 2; i++) {
        const train_kernels *k = NULL;
        CHECK(train_kernels_find(sets[i], &k, NULL) == RAVEL_OK);
        CHECK(check_every_allocation(life, (void *)k) > 8);
    }
}

/* ---- bad input ------------------------------------------------------------------------------------------ */

TEST(train_model_bad_batches) {
    ravel_shape shape = small_shape();
    rig r;
    train_model_options o = with_budget(20);
    o.longest = 8;
    CHECK(rig_open(&r, "cpu", 1, &shape, &o));
    static const int32_t tokens[40] = {1, 2, 3, 53}, zero[] = {0, 0}, wide[] = {0, 9}, over[] = {0, 7, 14, 21};
    static const int32_t good[] = {0, 4}, tight[] = {0, 3}, late[] = {1, 4};
    struct {
        train_batch batch;
        ravel_status status;
        const char *says;
    } rows[] = {
        {{.samples = 0, .tokens = tokens, .cu_seqlens = good}, RAVEL_E_ARGUMENT, "at least one sample"},
        {{.samples = 1, .tokens = tokens, .cu_seqlens = late}, RAVEL_E_DATA, "begin with 0"},
        {{.samples = 1, .tokens = tokens, .cu_seqlens = zero}, RAVEL_E_DATA, "sample 0 has 0 tokens"},
        {{.samples = 1, .tokens = tokens, .cu_seqlens = wide}, RAVEL_E_OVERSIZE, "option longest"},
        {{.samples = 3, .tokens = tokens, .cu_seqlens = over}, RAVEL_E_OVERSIZE, "the budget is 20"},
        {{.samples = 1, .tokens = tokens, .cu_seqlens = good}, RAVEL_E_DATA, "token 3 of sample 0 is 53"},
        {{.samples = 1, .tokens = tokens, .cu_seqlens = good, .cu_seqlens_padded = tight}, RAVEL_E_DATA, "slot of 3"},
        {{.samples = 1, .tokens = tokens, .cu_seqlens = good, .temperature = -1}, RAVEL_E_ARGUMENT, "temperature"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        train_result result = {0};
        CHECK_EQ(train_model_score(r.model, &rows[i].batch, &result, &err), rows[i].status);
        CHECK_HAS(err.message, rows[i].says);
    }
    rig_close(&r);
    ravel_error err = RAVEL_ERROR_INIT;
    const train_kernels *k = NULL;
    CHECK_EQ(train_kernels_find("gpu", &k, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "ref, cpu");
    train_memory told;
    o.budget = 0;
    ravel_error_clear(&err);
    CHECK(train_kernels_find("cpu", &k, NULL) == RAVEL_OK);
    CHECK_EQ(train_model_memory(k, 1, &shape, &o, &told, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "budget is 0");
}
