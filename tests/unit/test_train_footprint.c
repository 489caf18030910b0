/* What a run says it will take, against what its allocator sees; and the threads that it chooses. */
#include "tests/unit/check.h"

#include "train/run/footprint.h"
#include "train/model/generator.h"

#include <ravel/comm.h>

#include <math.h>
#include <stdlib.h>

typedef struct job {
    train_config config;
    ravel_shape shape;
    int64_t samples;   /* that fill the budget: 1 is one long sample */
    int64_t peak[4];   /* of each rank's allocator */
    int64_t growth[4]; /* after creation */
} job;

/* One micro-batch of the whole budget, forward, backward and step. */
static ravel_status learn(job *j, train_learner *l, ravel_error *err) {
    int32_t budget = (int32_t)j->config.plan.budget, *cu = calloc((size_t)j->samples + 1, sizeof *cu);
    int32_t *tokens = calloc((size_t)budget, sizeof *tokens), skipped;
    double norm;
    for (int64_t i = 0; i <= j->samples; i++) cu[i] = (int32_t)(i * budget / j->samples);
    train_batch batch = {.samples = (int32_t)j->samples, .tokens = tokens, .cu_seqlens = cu};
    train_result result = {0};
    train_learner_begin(l);
    ravel_status status = train_model_learn(train_parts_model(train_learner_parts(l), 0), &batch, NULL, &result, err);
    if (!status) status = train_learner_reduce(l, NULL, err);
    if (!status) status = train_learner_step(l, 1e-3, NULL, &norm, &skipped, err);
    free(cu);
    free(tokens);
    return status;
}

static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
    job *j = user;
    int32_t rank = ravel_comm_rank(comm);
    check_memory memory;
    train_learner *l = NULL;
    ravel_mesh *mesh = NULL;
    check_memory_init(&memory);
    train_learner_options options = train_config_learner(&j->config, TRAIN_SFT, &j->shape);
    options.allocator = &memory.allocator;
    ravel_status status = ravel_mesh_create(comm, &j->config.mesh, &mesh, err);
    if (!status) status = train_learner_create(&options, &j->shape, mesh, &l, err);
    if (status) return status;
    int64_t created = memory.peak;
    status = learn(j, l, err);
    j->peak[rank] = memory.peak;
    j->growth[rank] = memory.peak - created;
    train_learner_free(l);
    ravel_mesh_free(mesh);
    return status;
}

/* Shapes, budgets, long samples and short ones, sharded or not: the trainer's figure is true to 10 %, and activations
 * grow with the budget alone. */
TEST(train_footprint_is_as_told) {
    static const struct {
        int64_t hidden, layers, ffn, vocab, budget, samples;
        int32_t ranks, zero, recompute, threads, tp;
    } cases[] = {
        {64, 3, 160, 320, 256, 1, 1, 0, 0, 1, 1},   {64, 3, 160, 320, 2048, 1, 1, 0, 0, 1, 1},
        {64, 3, 160, 320, 2048, 64, 1, 0, 1, 1, 1}, {128, 2, 256, 5000, 512, 1, 2, 1, 0, 2, 1},
        {96, 5, 200, 1000, 1024, 7, 4, 1, 1, 1, 1}, {256, 2, 512, 320, 256, 1, 2, 0, 0, 3, 1},
        {96, 5, 200, 1000, 512, 7, 4, 2, 1, 1, 1},  {128, 8, 256, 400, 128, 1, 3, 2, 2, 1, 1},
        {96, 4, 200, 1000, 1023, 7, 4, 0, 0, 1, 4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static job j;
        train_footprint told;
        ravel_mesh_layout layout;
        ravel_error err = RAVEL_ERROR_INIT;
        j = (job){.samples = cases[i].samples};
        train_config *c = &j.config;
        train_config_default(c);
        c->model.hidden = cases[i].hidden;
        c->model.layers = cases[i].layers;
        c->model.ffn = cases[i].ffn;
        c->model.vocab = cases[i].vocab;
        c->model.threads = cases[i].threads;
        c->model.recompute = cases[i].recompute;
        c->learn.shard = cases[i].zero;
        c->plan.budget = cases[i].budget > 256 ? check_rounds(cases[i].budget, cases[i].budget) : cases[i].budget;
        c->mesh.tp = cases[i].tp;
        CHECK_OK(train_shape(&c->model, &j.shape, &err), &err);
        CHECK_OK(train_layout_plan(&c->mesh, cases[i].ranks, &j.shape, &layout, &err), &err);
        CHECK_OK(train_footprint_of(c, TRAIN_SFT, &j.shape, &layout, 0, &told, &err), &err);
        CHECK_EQ(told.fixed + told.activations + told.working, told.trainer);
        CHECK_OK(ravel_threads_run(cases[i].ranks, NULL, work, &j, &err), &err);
        for (int32_t r = 0; r < cases[i].ranks; r++) {
            if (!EXPECT(fabs((double)j.peak[r] / (double)told.trainer - 1) < 0.1))
                printf("    case %zu, rank %d: %lld told, %lld taken\n", i, r, (long long)told.trainer,
                       (long long)j.peak[r]);
            CHECK_EQ(j.growth[r], 0); /* an update takes nothing */
        }
    }
}

/* Weights, gradients and moments of a rank, as told and as allocated, with --shard params at dp 4: at most .35 of what they are
 * unsharded. Budgets are small, so that these are most of the memory. */
TEST(train_footprint_of_sharded_parameters) {
    int64_t told[3], taken[3], rest[3];
    for (int shard = TRAIN_SHARD_NONE; shard <= TRAIN_SHARD_PARAMS; shard++) {
        static job j;
        train_footprint f;
        ravel_mesh_layout layout;
        ravel_error err = RAVEL_ERROR_INIT;
        j = (job){.samples = 2};
        train_config *c = &j.config;
        train_config_default(c);
        c->model.hidden = 128;
        c->model.layers = 24;
        c->model.ffn = 384;
        c->model.vocab = 400;
        c->model.threads = 1;
        c->learn.shard = shard;
        c->plan.budget = 8;
        CHECK_OK(train_shape(&c->model, &j.shape, &err), &err);
        CHECK_OK(train_layout_plan(&c->mesh, 4, &j.shape, &layout, &err), &err);
        CHECK_OK(train_footprint_of(c, TRAIN_SFT, &j.shape, &layout, 0, &f, &err), &err);
        CHECK_OK(ravel_threads_run(4, NULL, work, &j, &err), &err);
        told[shard] = f.fixed;
        rest[shard] = f.trainer - f.fixed;
        taken[shard] = 0;
        for (int r = 0; r < 4; r++) taken[shard] = j.peak[r] > taken[shard] ? j.peak[r] : taken[shard];
    }
    double states = (double)told[TRAIN_SHARD_STATES] / (double)told[TRAIN_SHARD_NONE];
    double params = (double)told[TRAIN_SHARD_PARAMS] / (double)told[TRAIN_SHARD_NONE];
    double used = (double)(taken[TRAIN_SHARD_PARAMS] - rest[TRAIN_SHARD_PARAMS]) /
                  (double)(taken[TRAIN_SHARD_NONE] - rest[TRAIN_SHARD_NONE]);
    if (!EXPECT(states < 0.66) || !EXPECT(params <= 0.35) || !EXPECT(used <= 0.35))
        printf("    states %.3f, params %.3f told, %.3f used\n", states, params, used);
}

/* What a tensor-parallel rank keeps between products is divided by their number with sequence parallelism. */
TEST(train_footprint_of_sequence_parallel_ranks) {
    train_config c;
    ravel_shape shape;
    train_footprint whole, shared;
    ravel_mesh_layout layout;
    ravel_error err = RAVEL_ERROR_INIT;
    train_config_default(&c);
    c.mesh.tp = 4;
    CHECK_OK(train_shape(&c.model, &shape, &err), &err);
    CHECK_OK(train_layout_plan(&c.mesh, 4, &shape, &layout, &err), &err);
    for (int32_t recompute = 0; recompute < 3; recompute++) {
        c.model.recompute = recompute;
        c.model.sequence = 0;
        CHECK_OK(train_footprint_of(&c, TRAIN_SFT, &shape, &layout, 0, &whole, &err), &err);
        c.model.sequence = 1;
        CHECK_OK(train_footprint_of(&c, TRAIN_SFT, &shape, &layout, 0, &shared, &err), &err);
        CHECK_EQ(shared.fixed, whole.fixed);
        /* inputs of the layers alone: from T * hidden to T / 4 * hidden, and the head's two rows go to the working block */
        int64_t saved = (shape.layers + 1) * c.plan.budget * shape.hidden * 4 * 3 / 4;
        CHECK(whole.activations - shared.activations >= saved);
        CHECK(shared.trainer < whole.trainer);
    }
}

/* The generator's: two sets of weights and what train_generator_create takes. */
TEST(train_footprint_of_generators_and_references) {
    train_config c;
    ravel_shape shape;
    train_footprint plain, longer, with_kl;
    ravel_mesh_layout one;
    ravel_error err = RAVEL_ERROR_INIT;
    train_config_default(&c);
    CHECK_OK(train_shape(&c.model, &shape, &err), &err);
    CHECK_OK(train_layout_plan(&c.mesh, 1, &shape, &one, &err), &err);
    CHECK_OK(train_footprint_of(&c, TRAIN_GRPO, &shape, &one, 32, &plain, &err), &err);
    CHECK_OK(train_footprint_of(&c, TRAIN_GRPO, &shape, &one, 1032, &longer, &err), &err);
    int64_t weights = 2 * 4 * ravel_shape_parameters(&shape), slot = 2 * shape.layers * shape.kv_heads * shape.head_dim;
    CHECK(plain.generator > weights && plain.reference == 0);
    CHECK(longer.generator - plain.generator > 1000 * c.grpo.slots * slot * 4); /* the cache of 64 slots */
    c.policy.kl = 0.1;
    CHECK_OK(train_footprint_of(&c, TRAIN_GRPO, &shape, &one, 32, &with_kl, &err), &err);
    CHECK(with_kl.reference > weights / 2 && with_kl.trainer == plain.trainer + with_kl.reference);
}

TEST(train_threads_share_processors_where_there_is_work) {
    train_config c;
    ravel_shape shape;
    train_config_default(&c);
    CHECK(train_shape(&c.model, &shape, NULL) == RAVEL_OK); /* 0.8 M parameters, budget 4096: 20 GFLOP */
    CHECK_EQ(train_threads(&c.model, &shape, c.plan.budget, 8, 1), 8);
    CHECK_EQ(train_threads(&c.model, &shape, c.plan.budget, 8, 3), 2);
    CHECK_EQ(train_threads(&c.model, &shape, c.plan.budget, 2, 4), 1);
    CHECK_EQ(train_threads(&c.model, &shape, c.plan.budget, 64, 1), 20);
    c.plan.budget = 256; /* too little work for a second one */
    CHECK_EQ(train_threads(&c.model, &shape, c.plan.budget, 8, 1), 1);
    c.model.threads = 5;
    CHECK_EQ(train_threads(&c.model, &shape, c.plan.budget, 2, 4), 5);
}

/* What a run needs is compared with what the machine has before anything is allocated, and the sentence names options with
 * which it fits; those do. */
TEST(train_footprint_says_what_would_fit) {
    ravel_shape shape;
    train_config c;
    ravel_mesh_layout layout;
    ravel_error err = RAVEL_ERROR_INIT;
    train_config_default(&c);
    c.source.data = "x";
    c.plan.budget = 32768;
    c.mesh.dp = 4;
    CHECK_OK(ravel_shape_named("qwen3-0.6b", &shape, &err), &err);
    CHECK_OK(train_layout_plan(&c.mesh, 4, &shape, &layout, &err), &err);
    CHECK_OK(train_footprint_fits(&c, TRAIN_SFT, &shape, &layout, 0, 4, INT64_C(1) << 45, &err), &err);
    CHECK_EQ(train_footprint_fits(&c, TRAIN_SFT, &shape, &layout, 0, 4, INT64_C(40) << 30, &err), RAVEL_E_MEMORY);
    CHECK_HAS(err.message,
              "on this machine (4 ranks), which has 40.0 GiB; try --recompute full --shard params --budget ");
    c.model.recompute = TRAIN_RECOMPUTE_FULL;
    c.learn.shard = TRAIN_SHARD_PARAMS;
    c.plan.budget = atoll(strstr(err.message, "--budget ") + 9);
    CHECK(c.plan.budget > 0 && c.plan.budget < 32768);
    ravel_error_clear(&err);
    CHECK_OK(train_footprint_fits(&c, TRAIN_SFT, &shape, &layout, 0, 4, INT64_C(40) << 30, &err), &err);
    CHECK_EQ(train_footprint_fits(&c, TRAIN_SFT, &shape, &layout, 0, 4, 1 << 20, &err), RAVEL_E_MEMORY);
    CHECK_HAS(err.message, "fewer ranks, more machines");
    ravel_error_clear(&err);
    CHECK_OK(train_checkpoints_fit(&c, &shape, INT64_C(40) << 30, &err), &err);
    CHECK_EQ(train_checkpoints_fit(&c, &shape, INT64_C(10) << 30, &err), RAVEL_E_IO);
    CHECK_HAS(err.message, "up to 3 are there at a time (--keep 2");
    c.run.keep = 0;
    c.run.checkpoint_end = 0;
    c.run.checkpoint_every = "0";
    ravel_error_clear(&err);
    CHECK_OK(train_checkpoints_fit(&c, &shape, 0, &err), &err);
}
