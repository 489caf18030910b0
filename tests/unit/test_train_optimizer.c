/* Shares of an optimiser against the whole; schedules by hand. */
#include "tests/unit/check.h"

#include "train/learn/optimizer.h"

#include <math.h>
#include <stdlib.h>

enum { RANKS = 3 };

static const ravel_shape shape = {.hidden = 16,
                                  .layers = 2,
                                  .heads = 2,
                                  .kv_heads = 1,
                                  .head_dim = 8,
                                  .ffn = 24,
                                  .vocab = 32,
                                  .tied = 1,
                                  .qk_norm = 1,
                                  .gated = 1,
                                  .rope_theta = 1e4,
                                  .norm_eps = 1e-6};

static train_model *make(const char *set, train_device **device, const train_kernels **k, ravel_error *err) {
    train_model *model = NULL;
    train_device_options device_options = {.threads = 1};
    train_model_options options;
    train_model_options_default(&options);
    options.budget = 32;
    if (train_kernels_find(set, k, err) || (*k)->open(&device_options, device, err)) return NULL;
    if (train_model_create(*k, *device, &shape, &options, &model, err)) return NULL;
    return train_model_init(model, 5, 0.1, err) ? NULL : model;
}

static void shares_are_the_whole(train_moments moments) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_device *devices[2];
    const train_kernels *k;
    train_model *models[2];
    for (int i = 0; i < 2; i++) CHECK((models[i] = make("ref", &devices[i], &k, &err)));
    int64_t n = train_model_params(models[0])->elements;
    train_optimizer_options o;
    train_optimizer_options_default(&o);
    o.decay = 0.1;
    o.moments = (int32_t)moments;
    train_optimizer *whole = NULL, *parts[RANKS] = {NULL};
    CHECK_OK(train_optimizer_create(models[0], &o, NULL, &whole, &err), &err);
    o.ranks = RANKS;
    for (o.rank = 0; o.rank < RANKS; o.rank++)
        CHECK_OK(train_optimizer_create(models[1], &o, NULL, &parts[o.rank], &err), &err);
    for (int step = 0; step < 5; step++) {
        for (int m = 0; m < 2; m++)
            for (int64_t i = 0; i < n; i++)
                ((float *)train_model_grads(models[m]))[i] = (float)sin((double)(i * 7 + step));
        int64_t count;
        const double *sums = train_optimizer_squares(whole, &count);
        double *first = train_optimizer_squares(parts[0], &count);
        for (int p = 1; p < RANKS; p++) { /* put together as an all-reduce would */
            const double *more = train_optimizer_squares(parts[p], &count);
            for (int64_t i = 0; i < count; i++) first[i] += more[i];
        }
        CHECK(memcmp(sums, first, (size_t)count * sizeof *sums) == 0);
        train_optimizer_clip(whole, NULL, 0, 0.5);
        train_optimizer_step(whole, 0.01);
        train_optimizer_clip(parts[0], NULL, 0, 0.5);
        for (int p = 0; p < RANKS; p++) train_optimizer_step(parts[p], 0.01);
        CHECK(train_model_update(models[0])->clip.scale < 1);
        CHECK(memcmp(&train_model_update(models[0])->clip, &train_model_update(models[1])->clip, sizeof(train_clip)) ==
              0);
    }
    CHECK(memcmp(train_model_weights(models[0]), train_model_weights(models[1]), (size_t)n * sizeof(float)) == 0);
    train_optimizer_free(whole);
    for (int i = 0; i < RANKS; i++) train_optimizer_free(parts[i]);
    for (int i = 0; i < 2; i++) train_model_free(models[i]);
    for (int i = 0; i < 2; i++) k->close(devices[i]);
}

TEST(train_optimizer_shares_are_the_whole) {
    shares_are_the_whole(TRAIN_MOMENTS_F32);
    shares_are_the_whole(TRAIN_MOMENTS_BF16);
}

/* Two optimisers with the same gradients, one of them with moments in bf16. After one step the moments are the other's,
 * rounded, and the weights are the other's, because a step computes before it rounds. Later they are near. */
static void moments_in_bf16(const char *set) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_device *devices[2];
    const train_kernels *k;
    train_model *models[2];
    train_optimizer *optimizers[2];
    for (int i = 0; i < 2; i++) {
        train_optimizer_options o;
        train_optimizer_options_default(&o);
        o.moments = i ? TRAIN_MOMENTS_BF16 : TRAIN_MOMENTS_F32;
        CHECK((models[i] = make(set, &devices[i], &k, &err)));
        CHECK_OK(train_optimizer_create(models[i], &o, NULL, &optimizers[i], &err), &err);
    }
    int64_t n = train_model_params(models[0])->elements, count;
    uint16_t *rounded = malloc((size_t)n * sizeof *rounded);
    CHECK(rounded);
    for (int step = 0; step < 8; step++) {
        for (int m = 0; m < 2; m++) {
            for (int64_t i = 0; i < n; i++)
                ((float *)train_model_grads(models[m]))[i] = (float)sin((double)(i * 7 + step));
            (void)train_optimizer_squares(optimizers[m], &count);
            train_optimizer_clip(optimizers[m], NULL, 0, 0);
            train_optimizer_step(optimizers[m], 0.01);
        }
        if (step > 0) continue;
        train_array plain[2] = {train_optimizer_array(optimizers[0], TRAIN_MOMENT1),
                                train_optimizer_array(optimizers[0], TRAIN_MOMENT2)};
        train_array small[2] = {train_optimizer_array(optimizers[1], TRAIN_MOMENT1),
                                train_optimizer_array(optimizers[1], TRAIN_MOMENT2)};
        for (int i = 0; i < 2; i++) {
            CHECK(plain[i].dtype == RAVEL_F32 && small[i].dtype == RAVEL_BF16);
            CHECK_OK(ravel_dtype_convert(RAVEL_F32, plain[i].data, RAVEL_BF16, rounded, n, &err), &err);
            CHECK(memcmp(rounded, small[i].data, (size_t)n * sizeof *rounded) == 0);
        }
        CHECK(memcmp(train_model_weights(models[0]), train_model_weights(models[1]), (size_t)n * sizeof(float)) == 0);
    }
    const float *a = train_model_weights(models[0]), *b = train_model_weights(models[1]);
    double far = 0, moved = 0;
    for (int64_t i = 0; i < n; i++) {
        far += fabs((double)a[i] - (double)b[i]);
        moved += 8 * 0.01;
    }
    CHECK(far > 0 && far < 0.01 * moved);
    const train_shares *shares = train_optimizer_shares(optimizers[0]);
    CHECK(train_optimizer_bytes(k, shares, TRAIN_MOMENTS_F32) - train_optimizer_bytes(k, shares, TRAIN_MOMENTS_BF16) ==
          4 * shares->most);
    free(rounded);
    for (int i = 0; i < 2; i++) train_optimizer_free(optimizers[i]);
    for (int i = 0; i < 2; i++) train_model_free(models[i]);
    for (int i = 0; i < 2; i++) k->close(devices[i]);
}

TEST(train_optimizer_moments_in_bf16) {
    moments_in_bf16("ref");
    moments_in_bf16("cpu");
}

/* Random models and ranks: every element has one rank, runs begin at spans, and local places are one after the other. */
TEST(train_shares_hold_every_element_once) {
    uint64_t seed = 9;
    for (int round = 0; round < 60; round++) {
        ravel_shape s = shape;
        train_params *params = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        s.hidden = 8 + (int64_t)(seed >> 33) % 200;
        s.ffn = 8 + (int64_t)(seed >> 40) % 500;
        s.vocab = 16 + (int64_t)(seed >> 45) % 3000;
        s.tied = (int32_t)(seed >> 37) % 2;
        s.attention_bias = (int32_t)(seed >> 38) % 2;
        int32_t ranks = 1 + (int32_t)(seed >> 50) % 9;
        CHECK_OK(train_params_create(&s, NULL, NULL, &params, &err), &err);
        CHECK_EQ(params->unit_count, 2 + s.layers);
        int64_t all = 0, most = 0;
        for (int32_t r = 0; r < ranks; r++) {
            train_shares *shares = NULL;
            CHECK_OK(train_shares_create(params, ranks, r, NULL, &shares, &err), &err);
            int64_t place = 0, mine = shares->places[params->unit_count];
            for (int64_t i = 0; i < params->count; i++) {
                const train_tensor *t = &params->tensors[i];
                int64_t begin = t->offset, end = begin + t->count;
                if (!train_shares_cut(shares, r, &begin, &end)) continue;
                CHECK_EQ((begin - t->offset) % train_tensor_span(t), 0);
                CHECK_EQ((end - t->offset) % t->dims[1], 0);
                CHECK(train_shares_local(shares, begin) >= place);
                place = train_shares_local(shares, begin) + end - begin;
                CHECK(place <= mine);
            }
            all += mine;
            most = mine > most ? mine : most;
            CHECK(mine <= shares->most);
            if (r == ranks - 1) CHECK_EQ(most, shares->most);
            train_shares_free(shares);
        }
        CHECK_EQ(all, params->elements);
        train_params_free(params);
    }
}

TEST(train_learning_rates_by_hand) {
    CHECK(train_learning_rate(TRAIN_COSINE, 1, 0, 9, 5, 100) == 0.5);
    CHECK(train_learning_rate(TRAIN_COSINE, 1, 0, 10, 11, 100) == 1);
    CHECK(fabs(train_learning_rate(TRAIN_COSINE, 1, 0.1, 10, 56, 100) - 0.55) < 1e-12);
    CHECK(fabs(train_learning_rate(TRAIN_COSINE, 1, 0.1, 10, 101, 100) - 0.1) < 1e-12);
    CHECK(fabs(train_learning_rate(TRAIN_LINEAR, 1, 0, 0, 26, 100) - 0.75) < 1e-12);
    CHECK(train_learning_rate(TRAIN_CONSTANT, 1, 0, 0, 77, 100) == 1);
    for (int schedule = TRAIN_CONSTANT; schedule <= TRAIN_COSINE; schedule++) { /* no update learns nothing */
        CHECK(train_learning_rate((train_schedule)schedule, 1, 0, 0, 1, 1) == 1);
        for (int step = 1; step <= 7; step++)
            CHECK(train_learning_rate((train_schedule)schedule, 1, 0, 3, step, 7) > 0);
    }
}
