/* One loss in any layout: tensor-parallel ranks as threads against one rank, on every golden architecture. */
#include "tests/unit/train_support.h"

#include <ravel/comm.h>

#include <math.h>
#include <stdlib.h>

enum { BUDGET = 96, TOKENS = 71, SAMPLES_OF = 4 };

/* What all ranks run, and where rank 0 puts what it found. */
typedef struct layout {
    const char *folder; /* of a golden model; NULL: new weights of the shape */
    ravel_shape shape;
    int policy; /* GRPO's loss rather than the likelihood */
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
    if (!status) status = train_model_sum_grads(m, err);
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

static void compare(const char *folder, const ravel_shape *shape, int32_t ranks, int policy) {
    int64_t n = 0;
    ravel_error err = RAVEL_ERROR_INIT;
    layout one = {.folder = folder, .shape = *shape, .policy = policy}, many = one;
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
        compare(folder, &shape, 2, i % 2);
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
        compare(NULL, &shape, ranks[i % 3], i / 6);
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
