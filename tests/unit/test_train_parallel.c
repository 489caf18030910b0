/* One loss in any layout: tensor-parallel ranks as threads against one rank, on every golden architecture. */
#include "tests/unit/train_support.h"

#include <ravel/comm.h>

#include "train/model/ring.h"

#include <math.h>
#include <stdlib.h>

enum { BUDGET = 96, TOKENS = 71, SAMPLES_OF = 4 };

/* What all ranks run, and where rank 0 puts what it found. */
typedef struct layout {
    const char *folder; /* of a golden model; NULL: new weights of the shape */
    ravel_shape shape;
    int policy;   /* GRPO's loss rather than the likelihood */
    int sequence; /* sequence parallel */
    int recompute;
    double loss, squares;
    float logprob[TOKENS];
    float *grads; /* of the whole model, in the order of its table */
} layout;

static const int32_t cu[SAMPLES_OF + 1] = {0, 23, 24, 64, TOKENS};

static void fill(int32_t *tokens, float *weights, float *old, float *advantages) {
    for (int i = 0; i < TOKENS; i++) {
        tokens[i] = (int32_t)(i * 37 + i * i % 11) % 64;
        weights[i] = (float)(1 + i % 3) / 100;
        old[i] = -2 - (float)(i % 7) * 0.5f;
    }
    for (int i = 0; i < SAMPLES_OF; i++) advantages[i] = (float)(i % 2 ? -0.7 : 0.4);
}

/* A part's gradients to their places in the whole model's flat array. */
static void place_grads(const train_params *whole, const train_params *part, const float *grads, float *all) {
    for (int64_t i = 0; i < part->count; i++) {
        const train_tensor *t = part->tensors + i, *w = train_params_find(whole, t->name);
        for (int64_t r = 0; r < t->dims[0]; r++)
            for (int64_t c = 0; c < t->dims[1]; c++)
                all[w->offset + (t->first[0] + r) * w->dims[1] + t->first[1] + c] =
                    grads[t->offset + r * t->dims[1] + c];
    }
}

static ravel_status run_batch(train_model *m, layout *l, int keep, ravel_error *err) {
    static const train_policy_terms terms = {
        .kl_kind = TRAIN_KL_K3, .clip_low = 0.2, .clip_high = 0.28, .entropy = 0.01};
    int32_t tokens[TOKENS];
    float weights[TOKENS], old[TOKENS], advantages[SAMPLES_OF], logprob[TOKENS];
    fill(tokens, weights, old, advantages);
    train_batch b = {.samples = SAMPLES_OF, .tokens = tokens, .cu_seqlens = cu, .weights = weights};
    train_loss policy = {.policy = terms, .old = old, .advantages = advantages};
    train_result result = {.logprob = logprob};
    train_update update;
    train_model_clear_grads(m);
    ravel_status status = train_model_learn(m, &b, l->policy ? &policy : NULL, &result, err);
    if (!status) status = train_model_sum_grads(m, NULL, err);
    if (!status) status = train_model_read(m, &update, err);
    if (!status && keep) {
        l->loss = update.sums.loss;
        memcpy(l->logprob, logprob, sizeof logprob);
    }
    return status;
}

static ravel_status make_model(const layout *l, ravel_comm *tp, const train_kernels **k, train_device **device,
                               train_model **m, ravel_error *err) {
    train_model_options o;
    train_model_options_default(&o);
    o.budget = BUDGET;
    o.logits_rows = 16;
    o.tp = tp;
    o.sequence = l->sequence;
    o.recompute = l->recompute;
    ravel_status status = train_kernels_find("cpu", k, err);
    if (!status) status = (*k)->open(&(train_device_options){.threads = 1}, device, err);
    if (!status) status = train_model_create(*k, *device, &l->shape, &o, m, err);
    if (status) return status;
    if (!l->folder) return train_model_init(*m, 3, 0.2, err);
    train_array weights = train_model_array(*m);
    return train_tensors_load(train_model_params(*m), &weights, l->folder, err);
}

/* One rank: run, then hand the gradients to rank 0, which puts them together. */
static ravel_status tp_rank(ravel_comm *comm, void *user, ravel_error *err) {
    layout *l = user;
    const train_kernels *k = NULL;
    train_device *device = NULL;
    train_model *m = NULL;
    train_params *whole = NULL;
    ravel_status status = make_model(l, comm, &k, &device, &m, err);
    if (!status) status = run_batch(m, l, ravel_comm_rank(comm) == 0, err);
    if (!status) status = train_params_create(&l->shape, NULL, NULL, &whole, err);
    for (int32_t r = 0; r < ravel_comm_size(comm) && !status; r++) { /* one rank after the other */
        if (r == ravel_comm_rank(comm)) place_grads(whole, train_model_params(m), train_model_grads(m), l->grads);
        status = ravel_comm_barrier(comm, err);
    }
    train_params_free(whole);
    train_model_free(m);
    if (k) k->close(device);
    return status;
}

static bool one_rank(layout *l, int64_t *elements) {
    const train_kernels *k = NULL;
    train_device *device = NULL;
    train_model *m = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status status = make_model(l, NULL, &k, &device, &m, &err);
    if (!status) status = run_batch(m, l, 1, &err);
    if (status) return check_fail(__FILE__, __LINE__, "%s", err.message), false;
    *elements = train_model_params(m)->elements;
    l->grads = malloc((size_t)*elements * sizeof(float));
    memcpy(l->grads, train_model_grads(m), (size_t)*elements * sizeof(float));
    train_model_free(m);
    k->close(device);
    return true;
}

static void compare(const char *folder, const ravel_shape *shape, int32_t ranks, int policy, int sequence) {
    int64_t n = 0;
    ravel_error err = RAVEL_ERROR_INIT;
    layout one = {.folder = folder, .shape = *shape, .policy = policy, .sequence = sequence}, many = one;
    many.recompute = sequence ? (int)(shape->vocab + ranks + policy) % 3 : TRAIN_RECOMPUTE_LIGHT;
    one.recompute = TRAIN_RECOMPUTE_LIGHT;
    CHECK(one_rank(&one, &n));
    many.grads = calloc((size_t)n, sizeof(float));
    CHECK_OK(ravel_threads_run(ranks, NULL, tp_rank, &many, &err), &err);
    CHECK(fabs(many.loss - one.loss) < 1e-5 * (1 + fabs(one.loss)));
    CHECK(largest_difference(many.logprob, one.logprob, TOKENS) < 1e-5);
    double off = relative_distance(many.grads, one.grads, n);
    if (off > 1e-5) check_fail(__FILE__, __LINE__, "tp %d: gradients are off by %g", ranks, off);
    free(one.grads), free(many.grads);
}

/* Every golden model on two ranks, the likelihood and a policy loss. */
TEST(train_parallel_tensor_ranks_have_one_loss) {
    static const char *const models[] = {"llama2", "llama3", "qwen2", "qwen3", "mistral"};
    for (int i = 0; i < 10; i++) {
        char folder[256];
        ravel_shape shape;
        (void)snprintf(folder, sizeof folder, "tests/golden/archs/%s", models[i / 2]);
        CHECK(train_config_read(folder, &shape, NULL) == RAVEL_OK);
        compare(folder, &shape, 2, i % 2, 0);
        compare(folder, &shape, 2, i % 2, 1);
    }
}

/* Fewer key heads than ranks, a vocabulary that no number of ranks divides, tied and not; new weights are the same numbers
 * in every layout. */
TEST(train_parallel_tensor_ranks_of_every_number) {
    for (int i = 0; i < 12; i++) {
        static const int32_t ranks[] = {2, 3, 6};
        ravel_shape shape = small_shape();
        shape.head_dim = 8;
        shape.ffn = 36;
        shape.vocab = 67;
        shape.heads = 6;
        shape.kv_heads = ranks[i % 3] == 3 ? 3 : i & 1 ? 2 : 1;
        shape.tied = i & 1;
        shape.qk_norm = i / 3 & 1;
        shape.attention_bias = !shape.qk_norm;
        compare(NULL, &shape, ranks[i % 3], i / 6, 0);
        compare(NULL, &shape, ranks[i % 3], i / 6, 1); /* 71 tokens: no number of ranks divides them */
    }
}

TEST(train_parallel_layouts_that_cannot_be) {
    ravel_shape shape = small_shape(), local;
    ravel_error err = RAVEL_ERROR_INIT;
    static const train_slice bad[] = {
        {.tp = 4}, {.tp = 2, .tp_rank = 2}, {.tp = 5}, {.first_layer = 2}, {.first_layer = 1, .last_layer = 9}};
    shape.ffn = 36;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_EQ(train_slice_shape(&shape, &bad[i], &local, &err), RAVEL_E_ARGUMENT);
    CHECK_OK(train_slice_shape(&shape, &(train_slice){.tp = 6, .tp_rank = 5}, &local, &err), &err);
    CHECK(local.heads == 1 && local.kv_heads == 1 && local.ffn == 6 && local.layers == 2);
}

/* ---- stages --------------------------------------------------------------------------------------------- */

/* The batch in two: samples 0 and 1, 2 and 3. */
static train_batch half_batch(int half, const int32_t *tokens, const float *weights) {
    static const int32_t first[] = {0, 23, 24}, second[] = {0, 40, 47};
    int32_t at = half ? cu[2] : 0;
    return (train_batch){
        .samples = 2, .tokens = tokens + at, .cu_seqlens = half ? second : first, .weights = weights + at};
}

/* Two stages of one layer each, two micro-batches in flight, forwards first and backwards in the other order: the same
 * loss and gradients as the whole model. The embedding of a tied model is on both stages, and its gradients add up. */
static void two_stages(const char *folder, int32_t recompute, int policy) {
    static const train_policy_terms terms = {.kl_kind = TRAIN_KL_K3, .clip_low = 0.2, .clip_high = 0.28};
    int32_t tokens[TOKENS];
    float weights[TOKENS], old[TOKENS], advantages[SAMPLES_OF];
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_shape shape;
    train_model_options o;
    const train_kernels *k = NULL;
    train_device *device = NULL;
    train_model *models[3] = {NULL, NULL, NULL};
    train_update updates[3];
    fill(tokens, weights, old, advantages);
    train_model_options_default(&o);
    o.budget = BUDGET;
    o.recompute = recompute;
    CHECK_OK(train_config_read(folder, &shape, &err), &err);
    CHECK_OK(train_kernels_find("cpu", &k, &err), &err);
    CHECK_OK(k->open(&(train_device_options){.threads = 1}, &device, &err), &err);
    for (int i = 0; i < 3; i++) { /* the whole model, then the stages */
        o.first_layer = i == 2;
        o.last_layer = i == 1;
        o.in_flight = i ? 2 : 0;
        CHECK_OK(train_model_create(k, device, &shape, &o, &models[i], &err), &err);
        train_array to = train_model_array(models[i]);
        CHECK_OK(train_tensors_load(train_model_params(models[i]), &to, folder, &err), &err);
    }
    train_batch batches[2] = {half_batch(0, tokens, weights), half_batch(1, tokens, weights)};
    train_loss losses[2] = {{.policy = terms, .old = old, .advantages = advantages},
                            {.policy = terms, .old = old + cu[2], .advantages = advantages + 2}};
    const train_loss *loss[2] = {policy ? &losses[0] : NULL, policy ? &losses[1] : NULL};
    for (int i = 0; i < 2; i++) CHECK_OK(train_model_learn(models[0], &batches[i], loss[i], NULL, &err), &err);
    for (int i = 0; i < 2; i++) CHECK_OK(train_model_stage_forward(models[1], i, &batches[i], loss[i], &err), &err);
    for (int i = 0; i < 2; i++) {
        size_t bytes = (size_t)train_model_stage_elements(models[1], batches[i].cu_seqlens[2]) * sizeof(float);
        k->copy(device, train_model_stage_input(models[2], i), train_model_stage_output(models[1], i), bytes);
        CHECK_OK(train_model_stage_forward(models[2], i, &batches[i], loss[i], &err), &err);
    }
    for (int i = 1; i >= 0; i--) {
        size_t bytes = (size_t)train_model_stage_elements(models[1], batches[i].cu_seqlens[2]) * sizeof(float);
        CHECK_OK(train_model_stage_backward(models[2], i, &err), &err);
        k->copy(device, train_model_stage_output(models[1], i), train_model_stage_input(models[2], i), bytes);
        CHECK_OK(train_model_stage_backward(models[1], i, &err), &err);
    }
    CHECK_EQ(train_model_stage_backward(models[1], 0, NULL), RAVEL_E_STATE);
    CHECK_EQ(train_model_stage_backward(models[1], 2, NULL), RAVEL_E_ARGUMENT);
    for (int i = 0; i < 3; i++) CHECK_OK(train_model_read(models[i], &updates[i], &err), &err);
    CHECK(fabs(updates[0].sums.loss - updates[2].sums.loss) < 1e-6 * (1 + fabs(updates[0].sums.loss)));
    const train_params *whole = train_model_params(models[0]);
    float *all = calloc((size_t)whole->elements, sizeof *all), *part = calloc((size_t)whole->elements, sizeof *part);
    for (int i = 1; i < 3; i++) {
        memset(part, 0, (size_t)whole->elements * sizeof *part);
        place_grads(whole, train_model_params(models[i]), train_model_grads(models[i]), part);
        for (int64_t e = 0; e < whole->elements; e++) all[e] += part[e];
    }
    double off = relative_distance(all, train_model_grads(models[0]), whole->elements);
    if (off > 1e-6) check_fail(__FILE__, __LINE__, "%s in two stages: gradients are off by %g", folder, off);
    for (int i = 0; i < 3; i++) train_model_free(models[i]);
    free(all), free(part);
    k->close(device);
}

TEST(train_parallel_stages_have_one_loss) {
    static const char *const folders[] = {"llama3", "smollm", "mistral", "qwen2", "qwen3"};
    for (int i = 0; i < 15; i++) {
        char folder[256];
        (void)snprintf(folder, sizeof folder, "tests/golden/archs/%s", folders[i / 3]);
        two_stages(folder, i % 3, i & 1);
    }
}

/* ---- context parallel ----------------------------------------------------------------------------------- */

typedef struct ring_job {
    const char *folder;
    int policy;     /* 0: likelihood, 1: per token, 2: per sequence */
    int64_t window; /* in place of the model's */
    double loss;
    float *grads;
} ring_job;

/* This rank's chunks of every sample, each padded to a multiple of 2R tokens. Arrays stand at the tokens that predict. */
typedef struct shard {
    int32_t cu[SAMPLES_OF + 1], tokens[2 * BUDGET], positions[2 * BUDGET], targets[2 * BUDGET];
    float weights[2 * BUDGET], old[2 * BUDGET], generator[2 * BUDGET], reference[2 * BUDGET];
} shard;

static void fill_shard(shard *s, int32_t ranks, int32_t rank, const int32_t *tokens, const float *weights,
                       const float *old) {
    int32_t used = 0;
    memset(s, 0, sizeof *s);
    for (int i = 0; i < SAMPLES_OF; i++) {
        int32_t length = cu[i + 1] - cu[i], chunk = (length + 2 * ranks - 1) / (2 * ranks);
        for (int half = 0; half < 2; half++)
            for (int32_t t = 0; t < chunk; t++, used++) {
                int32_t place = (half ? 2 * ranks - 1 - rank : rank) * chunk + t, at = cu[i] + place;
                s->positions[used] = place;
                if (place >= length) continue; /* alignment: token 0, no weight */
                s->tokens[used] = tokens[at];
                if (place + 1 >= length) continue;
                s->targets[used] = tokens[at + 1];
                s->weights[used] = weights[at + 1];
                s->old[used] = old[at + 1];
            }
        s->cu[i + 1] = used;
    }
}

static train_policy_terms ring_terms(int policy) {
    return (train_policy_terms){.sequence = policy == 2, .kl_kind = TRAIN_KL_K3, .clip_low = 0.9, .clip_high = 5};
}

static ravel_status cp_rank(ravel_comm *comm, void *user, ravel_error *err) {
    ring_job *j = user;
    shard s;
    int32_t tokens[TOKENS];
    float weights[TOKENS], old[TOKENS], advantages[SAMPLES_OF];
    const train_kernels *k = NULL;
    train_device *device = NULL;
    train_model *m = NULL;
    train_model_options o;
    ravel_shape shape;
    train_update update;
    fill(tokens, weights, old, advantages);
    fill_shard(&s, ravel_comm_size(comm), ravel_comm_rank(comm), tokens, weights, old);
    train_model_options_default(&o);
    o.budget = 2 * BUDGET;
    o.cp = comm;
    ravel_status status = train_config_read(j->folder, &shape, err);
    shape.window = j->window;
    if (!status) status = train_kernels_find("cpu", &k, err);
    if (!status) status = k->open(&(train_device_options){.threads = 1}, &device, err);
    if (!status) status = train_model_create(k, device, &shape, &o, &m, err);
    if (status) return status;
    train_array to = train_model_array(m);
    status = train_tensors_load(train_model_params(m), &to, j->folder, err);
    train_batch b = {.samples = SAMPLES_OF, .tokens = s.tokens, .cu_seqlens = s.cu, .weights = s.weights};
    b.positions = s.positions;
    b.targets = s.targets;
    train_loss loss = {.policy = ring_terms(j->policy), .old = s.old, .advantages = advantages};
    if (!status) status = train_model_learn(m, &b, j->policy ? &loss : NULL, NULL, err);
    if (!status) status = train_model_read(m, &update, err);
    int64_t n = train_model_params(m)->elements;
    float *grads = train_model_grads(m);
    if (!status) status = ravel_comm_allreduce(comm, grads, grads, n, RAVEL_F32, RAVEL_SUM, err);
    if (!status)
        status = ravel_comm_allreduce(comm, &update.sums.loss, &update.sums.loss, 1, RAVEL_F64, RAVEL_SUM, err);
    if (!status && ravel_comm_rank(comm) == 0) {
        memcpy(j->grads, grads, (size_t)n * sizeof *grads);
        j->loss = update.sums.loss;
    }
    if (!status) status = ravel_comm_barrier(comm, err);
    train_model_free(m);
    k->close(device);
    return status;
}

static void ring_against_one(const char *folder, int32_t ranks, int policy, int64_t window) {
    int32_t tokens[TOKENS];
    float weights[TOKENS], old[TOKENS], advantages[SAMPLES_OF];
    rig r;
    ravel_shape shape;
    ravel_error err = RAVEL_ERROR_INIT;
    train_model_options o;
    train_update update;
    fill(tokens, weights, old, advantages);
    train_model_options_default(&o);
    o.budget = BUDGET;
    CHECK_OK(train_config_read(folder, &shape, &err), &err);
    shape.window = window;
    CHECK(rig_open(&r, "cpu", 1, &shape, &o));
    train_array to = train_model_array(r.model);
    CHECK_OK(train_tensors_load(train_model_params(r.model), &to, folder, &err), &err);
    train_batch b = {.samples = SAMPLES_OF, .tokens = tokens, .cu_seqlens = cu, .weights = weights};
    train_loss loss = {.policy = ring_terms(policy), .old = old, .advantages = advantages};
    CHECK_OK(train_model_learn(r.model, &b, policy ? &loss : NULL, NULL, &err), &err);
    CHECK_OK(train_model_read(r.model, &update, &err), &err);
    int64_t n = train_model_params(r.model)->elements;
    ring_job job = {.folder = folder, .policy = policy, .window = window, .grads = calloc((size_t)n, sizeof(float))};
    CHECK(fabs(update.sums.loss) > 1e-2);
    CHECK_OK(ravel_threads_run(ranks, NULL, cp_rank, &job, &err), &err);
    CHECK(fabs(job.loss - update.sums.loss) < 1e-5 * (1 + fabs(update.sums.loss)));
    double off = relative_distance(job.grads, train_model_grads(r.model), n);
    if (!(off <= 1e-5))
        check_fail(__FILE__, __LINE__, "%s, cp %d, window %d: gradients are off by %g", folder, ranks, (int)window,
                   off);
    free(job.grads);
    rig_close(&r);
}

/* Zig-zag shards on 2, 3 and 4 ranks, a sample of one token among them: the loss and gradients of one rank. */
TEST(train_parallel_context_ranks_have_one_loss) {
    static const char *const folders[] = {"llama3", "smollm", "qwen2", "qwen3"};
    for (int i = 0; i < 12; i++) {
        char folder[256];
        (void)snprintf(folder, sizeof folder, "tests/golden/archs/%s", folders[i / 3]);
        ring_against_one(folder, 2 + i % 3, i / 2 % 3, 0);
    }
}

/* Windows of one token, of less and more than a chunk, of the whole batch. */
TEST(train_parallel_context_ranks_with_a_window_have_one_loss) {
    static const int64_t windows[] = {1, 2, 3, 6, 11, 25, 1000};
    for (int i = 0; i < 28; i++) ring_against_one("tests/golden/archs/mistral", 2 + i % 4, i % 3, windows[i / 4]);
}

/* Which steps are left out, by looking at every query and key of a sample: those at which no rank sees a key. */
TEST(train_parallel_context_steps_beyond_the_window_are_left_out) {
    for (int32_t i = 0; i < 500; i++) {
        int32_t ranks = 2 + i % 7, chunk = 1 + i / 7 % 5, window = 1 + i % 37;
        int seen[8] = {1};
        for (int32_t q = 0; q < 2 * ranks * chunk; q++)
            for (int32_t k = q; k >= 0 && k > q - window; k--) {
                int32_t at = q / chunk, of = k / chunk;
                if (at >= ranks) at = 2 * ranks - 1 - at;
                if (of >= ranks) of = 2 * ranks - 1 - of;
                seen[(at - of + ranks) % ranks] = 1;
            }
        for (int32_t step = 0, next; step < ranks; step = next) {
            next = train__ring_step_after(ranks, step, window, chunk);
            for (int32_t s = step + 1; s < next; s++) CHECK(!seen[s]);
            CHECK(next == ranks || seen[next]);
        }
    }
}

/* ---- sharded parameters --------------------------------------------------------------------------------- */

/* Both ranks learn; then rank 1 fails, and rank 0 waits for its share of the weights. */
static ravel_status lose_a_share(ravel_comm *comm, void *user, ravel_error *err) {
    ravel_status *seen = user;
    layout l = {.shape = {.hidden = 16, .layers = 5, .heads = 2, .kv_heads = 1, .head_dim = 8, .ffn = 24, .vocab = 64}};
    const train_kernels *k = NULL;
    train_device *device = NULL;
    train_model *m = NULL;
    train_model_options o;
    l.shape.gated = l.shape.tied = 1;
    l.shape.rope_theta = 1e4;
    l.shape.norm_eps = 1e-6;
    train_model_options_default(&o);
    o.budget = BUDGET;
    o.shard = comm;
    ravel_status status = train_kernels_find("cpu", &k, err);
    if (!status) status = k->open(&(train_device_options){.threads = 1}, &device, err);
    if (!status) status = train_model_create(k, device, &l.shape, &o, &m, err);
    if (!status) status = train_model_init(m, 3, 0.2, err);
    if (!status) status = run_batch(m, &l, 0, err);
    if (!status && ravel_comm_rank(comm) == 1) status = ravel_error_set(err, RAVEL_E_DATA, "on purpose");
    if (!status) {
        (void)train_model_array(m); /* nothing that was gathered stays */
        *seen = run_batch(m, &l, 0, NULL);
    }
    train_model_free(m);
    if (k) k->close(device);
    return status;
}

TEST(train_parallel_a_lost_share_is_an_error) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_status seen = RAVEL_OK;
    CHECK_EQ(ravel_threads_run(2, NULL, lose_a_share, &seen, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "on purpose");
    CHECK_EQ(seen, RAVEL_E_PEER_LOST);
}
