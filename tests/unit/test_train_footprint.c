/* What a run says it will take, against what its allocator sees; and the threads that it chooses. */
#include "tests/unit/check.h"

#include "train/run/config/footprint.h"
#include "train/run/grpo/pull.h"
#include "train/model/hf/hf.h"
#include "train/model/generate/generator.h"

#include <ravel/comm.h>
#include <ravel/safetensors.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    train_learner_options options = train_config_learner(&j->config, TRAIN_SFT);
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
        int32_t ranks, zero, recompute, threads, tp, experts, ep;
    } cases[] = {
        {64, 3, 160, 320, 256, 1, 1, 0, 0, 1, 1, 0, 1},   {64, 3, 160, 320, 2048, 1, 1, 0, 0, 1, 1, 0, 1},
        {64, 3, 160, 320, 2048, 64, 1, 0, 1, 1, 1, 0, 1}, {128, 2, 256, 5000, 512, 1, 2, 1, 0, 2, 1, 0, 1},
        {96, 5, 200, 1000, 1024, 7, 4, 1, 1, 1, 1, 0, 1}, {256, 2, 512, 320, 256, 1, 2, 0, 0, 3, 1, 0, 1},
        {96, 5, 200, 1000, 512, 7, 4, 2, 1, 1, 1, 0, 1},  {128, 8, 256, 400, 128, 1, 3, 2, 2, 1, 1, 0, 1},
        {96, 4, 200, 1000, 1023, 7, 4, 0, 0, 1, 4, 0, 1}, {96, 4, 200, 1000, 512, 7, 1, 0, 1, 1, 1, 8, 1},
        {96, 4, 200, 1000, 512, 7, 4, 0, 1, 1, 1, 8, 4},  {96, 4, 200, 1000, 512, 7, 4, 1, 2, 1, 1, 8, 2},
        {96, 4, 200, 1000, 512, 7, 4, 2, 0, 1, 1, 8, 2},
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
        c->model.experts = cases[i].experts;
        c->model.experts_active = 2;
        c->learn.ep = cases[i].ep;
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

/* Weights, gradients and moments of a rank, as told and as allocated, with --shard params at dp 4: at most .35 of what
 * they are unsharded. Budgets are small, so that these are most of the memory. */
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
        /* inputs of the layers alone: from T * hidden to T / 4 * hidden, and the head's two rows go to the working
         * block */
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

/* Published versions in the dtype of the publication, and the two copies of --refit-delta elements, which auto is for bf16 weights of
 * several machines. */
TEST(train_footprint_of_what_is_kept_for_generators) {
    static const struct {
        const char *kernels, *publish;
        int32_t refit, delta, dtype, one_machine;
        int64_t times; /* bytes per weight */
    } cases[] = {
        {"cpu", NULL, TRAIN_REFIT_AUTO, TRAIN_DELTA_AUTO, 0, 0, 0},
        {"cpu", NULL, TRAIN_REFIT_PULL, TRAIN_DELTA_ELEMENTS, 0, 0, 4},
        {"cpu", ":0", TRAIN_REFIT_AUTO, TRAIN_DELTA_AUTO, 0, 1, 3 * 4},
        {"cpu", ":0", TRAIN_REFIT_PULL, TRAIN_DELTA_AUTO, 2, 1, 3 * 2},
        {"cpu", NULL, TRAIN_REFIT_AUTO, TRAIN_DELTA_ELEMENTS, 0, 1, 2 * 4},
        {"cpu", NULL, TRAIN_REFIT_AUTO, TRAIN_DELTA_BLOCKS, 0, 1, 0},
        {"cpu-bf16", NULL, TRAIN_REFIT_AUTO, TRAIN_DELTA_AUTO, 0, 0, 2 * 2},
        {"cpu-bf16", NULL, TRAIN_REFIT_AUTO, TRAIN_DELTA_AUTO, 0, 1, 0},
        {"cpu-bf16", ":0", TRAIN_REFIT_AUTO, TRAIN_DELTA_NO, 2, 0, 3 * 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_config c;
        ravel_shape shape;
        train_footprint f;
        ravel_mesh_layout one;
        ravel_error err = RAVEL_ERROR_INIT;
        train_config_default(&c);
        c.model.kernels = cases[i].kernels;
        c.grpo.publish = cases[i].publish;
        c.grpo.publish_keep = 3;
        c.grpo.publish_dtype = cases[i].dtype;
        c.grpo.refit = cases[i].refit;
        c.grpo.refit_delta = cases[i].delta;
        train__grpo_settle_delta(&c, cases[i].one_machine);
        CHECK_OK(train_shape(&c.model, &shape, &err), &err);
        CHECK_OK(train_layout_plan(&c.mesh, 1, &shape, &one, &err), &err);
        CHECK_OK(train_footprint_of(&c, TRAIN_GRPO, &shape, &one, 32, &f, &err), &err);
        int64_t least = cases[i].times * ravel_shape_parameters(&shape);
        CHECK(f.published >= least && f.published <= least + least / 10); /* tensors begin at multiples */
    }
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

/* What a run needs is compared with what the machine has before anything is allocated, and the sentence names options
 * with which it fits; those do. */
TEST(train_footprint_says_what_would_fit) {
    ravel_shape shape;
    train_config c;
    ravel_mesh_layout layout;
    ravel_error err = RAVEL_ERROR_INIT;
    train_room vast = {4, 0, INT64_C(1) << 45, "this machine"}, small = {4, 0, INT64_C(40) << 30, "GPU 3"};
    train_config_default(&c);
    c.source.data = "x";
    c.plan.budget = 32768;
    c.mesh.dp = 4;
    CHECK_OK(ravel_shape_named("qwen3-0.6b", &shape, &err), &err);
    CHECK_OK(train_layout_plan(&c.mesh, 4, &shape, &layout, &err), &err);
    CHECK_OK(train_footprint_fits(&c, TRAIN_SFT, &shape, &layout, 0, &vast, &err), &err);
    vast.bytes = INT64_C(70) << 30;
    CHECK_EQ(train_footprint_fits(&c, TRAIN_SFT, &shape, &layout, 0, &vast, &err), RAVEL_E_MEMORY);
    CHECK_HAS(err.message, "; 1 of them fits");
    ravel_error_clear(&err);
    CHECK_EQ(train_footprint_fits(&c, TRAIN_SFT, &shape, &layout, 0, &small, &err), RAVEL_E_MEMORY);
    CHECK_HAS(err.message, "on GPU 3 (4 ranks), which has 40.0 GiB; try --recompute full --shard params --budget ");
    c.model.recompute = TRAIN_RECOMPUTE_FULL;
    c.learn.shard = TRAIN_SHARD_PARAMS;
    c.plan.budget = atoll(strstr(err.message, "--budget ") + 9);
    CHECK(c.plan.budget > 0 && c.plan.budget < 32768);
    ravel_error_clear(&err);
    CHECK_OK(train_footprint_fits(&c, TRAIN_SFT, &shape, &layout, 0, &small, &err), &err);
    small.bytes =
        INT64_C(6) << 30; /* an adapter has no moments of the model, and is offered after budgets have been tried */
    CHECK_EQ(train_footprint_fits(&c, TRAIN_SFT, &shape, &layout, 0, &small, &err), RAVEL_E_MEMORY);
    CHECK_HAS(err.message, "fewer ranks, more machines");
    ravel_error_clear(&err);
    c.model.model = "folder";
    small.bytes = INT64_C(12) << 30;
    CHECK_EQ(train_footprint_fits(&c, TRAIN_SFT, &shape, &layout, 0, &small, &err), RAVEL_E_MEMORY);
    CHECK_HAS(err.message, "; try --lora-rank 16");
    ravel_error_clear(&err);
    small.bytes = 1 << 20;
    CHECK_EQ(train_footprint_fits(&c, TRAIN_SFT, &shape, &layout, 0, &small, &err), RAVEL_E_MEMORY);
    CHECK_HAS(err.message, "fewer ranks, more machines");
    ravel_error_clear(&err);
    small = (train_room){1, 0, 1 << 20, "this machine"};
    CHECK_OK(train_layout_plan(&c.mesh, 4, &shape, &layout, &err), &err);
    CHECK_EQ(train_footprint_fits(&c, TRAIN_SFT, &shape, &layout, 0, &small, &err), RAVEL_E_MEMORY);
    CHECK_HAS(err.message, "either: take more machines");
}

/* Weights of a model, all 0, in bf16. */
static void write_model(const char *folder, const ravel_shape *shape) {
    char path[256];
    train_params *params = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(train_params_create(shape, NULL, NULL, &params, &err), &err);
    ravel_safetensor *list = calloc((size_t)params->count, sizeof *list);
    void *zeros = calloc((size_t)params->elements, 2);
    for (int64_t i = 0; i < params->count; i++) {
        const train_tensor *t = &params->tensors[i];
        list[i] = (ravel_safetensor){.name = t->name, .dtype = RAVEL_BF16, .rank = t->rank, .data = zeros};
        list[i].dims = t->dims;
        list[i].count = t->count, list[i].bytes = 2 * t->count;
    }
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    CHECK_OK(ravel_safetensors_write(path, list, params->count, NULL, 0, NULL, &err), &err);
    free(list), free(zeros);
    train_params_free(params);
}

/* Frozen weights in bf16: auto maps them, and where f32 was asked for the sentence says what to ask for instead. */
TEST(train_footprint_of_frozen_weights) {
    char folder[] = "/tmp/ravel-footprint-XXXXXX", doomed[64];
    ravel_shape shape;
    train_config c;
    train_footprint mapped, loaded;
    ravel_mesh_layout one;
    ravel_error err = RAVEL_ERROR_INIT;
    train_config_default(&c);
    c.model.layers = 24;
    c.model.hidden = 256;
    c.model.recompute = TRAIN_RECOMPUTE_FULL;
    c.plan.budget = 256;
    CHECK(mkdtemp(folder) != NULL);
    CHECK_OK(train_shape(&c.model, &shape, &err), &err);
    write_model(folder, &shape);
    c.model.model = folder;
    c.model.lora_rank = 4;
    CHECK_OK(train_layout_plan(&c.mesh, 1, &shape, &one, &err), &err);
    CHECK_OK(train_choice_settle(&c.model, 0, &err), &err);
    CHECK(strstr(c.model.set, "bf16"));
    CHECK_OK(train_footprint_of(&c, TRAIN_SFT, &shape, &one, 0, &mapped, &err), &err);
    CHECK_EQ(mapped.mapped, 2 * ravel_shape_parameters(&shape));
    c.model.kernels = "cpu";
    CHECK_OK(train_choice_settle(&c.model, 0, &err), &err);
    CHECK_OK(train_footprint_of(&c, TRAIN_SFT, &shape, &one, 0, &loaded, &err), &err);
    CHECK_EQ(loaded.mapped, 0);
    CHECK(loaded.fixed - mapped.fixed > 4 * ravel_shape_parameters(&shape) * 9 / 10);
    train_room room = {1, 0, (mapped.trainer + loaded.trainer) / 2, "this machine"};
    CHECK_EQ(train_footprint_fits(&c, TRAIN_SFT, &shape, &one, 0, &room, &err), RAVEL_E_MEMORY);
    CHECK_HAS(err.message, "; try --kernels cpu-bf16");
    ravel_error_clear(&err);
    c.model.kernels = "auto";
    c.model.lora_rank = 0; /* all weights are trained: in f32, as they always were */
    CHECK_OK(train_choice_settle(&c.model, 0, &err), &err);
    CHECK_STR(c.model.set, "cpu");
    CHECK_OK(train_choice_settle(&c.model, 1, &err), &err);
    CHECK(strstr(c.model.set, "bf16"));
    (void)snprintf(doomed, sizeof doomed, "rm -r %s", folder);
    CHECK(system(doomed) == 0);
}

/* A generator's cache is made smaller before a model is changed. */
TEST(train_footprint_of_too_many_slots) {
    ravel_shape shape;
    train_config c;
    train_footprint p;
    ravel_mesh_layout one;
    ravel_error err = RAVEL_ERROR_INIT;
    train_config_default(&c);
    c.plan.budget = 256;
    c.grpo.slots = 4096;
    c.model.recompute = TRAIN_RECOMPUTE_FULL;
    CHECK_OK(train_shape(&c.model, &shape, &err), &err);
    CHECK_OK(train_layout_plan(&c.mesh, 1, &shape, &one, &err), &err);
    CHECK_OK(train_footprint_of(&c, TRAIN_GRPO, &shape, &one, 500, &p, &err), &err);
    const train_room room = {1, 1, p.trainer + p.generator / 3, "this machine"};
    CHECK_EQ(train_footprint_fits(&c, TRAIN_GRPO, &shape, &one, 500, &room, &err), RAVEL_E_MEMORY);
    CHECK_HAS(err.message, "; try --slots 1024");
    ravel_error_clear(&err);
    c.grpo.slots = 1024;
    CHECK_OK(train_footprint_fits(&c, TRAIN_GRPO, &shape, &one, 500, &room, &err), &err);
}

/* ---- disk ------------------------------------------------------------------------------------------------- */

static const char *warned;

static void note_warning(void *user, ravel_log_level level, const char *text) {
    static char kept[512];
    (void)user;
    if (level == RAVEL_LOG_WARN) warned = strncpy(kept, text, sizeof kept - 1);
}

/* Checkpoints of 10 MB, `steps` updates with one after each `every`. */
static ravel_status disk_of(int64_t keep, const char *every, train_disk disk, int64_t megabytes, ravel_error *err) {
    ravel_shape shape;
    train_config c;
    const ravel_logger logger = {note_warning, NULL};
    train_config_default(&c);
    c.run.keep = keep;
    c.run.checkpoint_every = every;
    EXPECT(train_shape(&c.model, &shape, NULL) == RAVEL_OK); /* 0.8 M parameters, 12 bytes each */
    disk.bytes = megabytes * 1000000;
    warned = NULL;
    ravel_error_clear(err);
    return train_checkpoints_fit(&c, &shape, &disk, &logger, err);
}

TEST(train_footprint_of_checkpoints) {
    ravel_error err = RAVEL_ERROR_INIT;
    const train_disk begins = {.steps = 1000}, resumed = {.there = 2, .done = 500, .steps = 1000};
    CHECK_OK(disk_of(2, "10m", begins, 31, &err), &err);
    CHECK_EQ(disk_of(2, "10m", begins, 21, &err), RAVEL_E_IO);
    CHECK_HAS(err.message, "up to 3 are there at a time (--keep 2");
    CHECK_OK(disk_of(2, "10m", resumed, 11, &err), &err); /* two are there: one more */
    CHECK_EQ(disk_of(2, "10m", resumed, 5, &err), RAVEL_E_IO);
    CHECK_OK(disk_of(1000, "10m", (train_disk){.steps = 2}, 21, &err), &err); /* two updates write two at most */
    CHECK_OK(disk_of(1000, "500", begins, 31, &err), &err);
    CHECK_EQ(disk_of(1000, "100", begins, 31, &err), RAVEL_E_IO);
    CHECK(!warned);
    CHECK_OK(disk_of(0, "100", begins, 31, &err), &err); /* all are kept, and some fit */
    CHECK(warned && strstr(warned, "up to 11 will be written"));
    CHECK_OK(disk_of(0, "500", begins, 31, &err), &err);
    CHECK(!warned);
    CHECK_EQ(disk_of(0, "500", begins, 11, &err), RAVEL_E_IO);
    CHECK_OK(disk_of(2, "10m", (train_disk){.there = 2, .done = 1000, .steps = 1000}, 0, &err),
             &err); /* none to come */
}

/* ---- the machine ------------------------------------------------------------------------------------------ */

static void put(const char *root, const char *path, const char *text) {
    char whole[300], command[400];
    (void)snprintf(whole, sizeof whole, "%s/%s", root, path);
    (void)snprintf(command, sizeof command, "mkdir -p $(dirname '%s')", whole);
    FILE *f = system(command) == 0 ? fopen(whole, "w") : NULL;
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

TEST(train_footprint_of_the_machine_and_its_groups) {
    char root[] = "/tmp/ravel-machine-XXXXXX", doomed[64];
    CHECK(mkdtemp(root) != NULL);
    CHECK(train_machine_look(root).memory == INT64_MAX && train_machine_look(root).available == INT64_MAX);
    put(root, "proc/meminfo", "MemTotal:       1000 kB\nMemFree: 100 kB\nMemAvailable: 600 kB\n");
    CHECK_EQ(train_machine_look(root).memory, 1000 * 1024);
    CHECK_EQ(train_machine_look(root).available, 600 * 1024);
    put(root, "proc/self/cgroup", "0::/user.slice/a/job\n"); /* version 2 */
    put(root, "sys/fs/cgroup/user.slice/a/job/memory.max", "max\n");
    CHECK_EQ(train_machine_look(root).memory, 1000 * 1024);
    put(root, "sys/fs/cgroup/user.slice/memory.max", "700000\n"); /* of a group above it */
    CHECK_EQ(train_machine_look(root).memory, 700000);
    put(root, "sys/fs/cgroup/user.slice/a/job/memory.max", "500000\n");
    CHECK_EQ(train_machine_look(root).memory, 500000);
    put(root, "proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/slurm/job_7\n1:cpu:/\n0::/\n"); /* version 1 */
    CHECK_EQ(train_machine_look(root).memory, 1000 * 1024);
    put(root, "sys/fs/cgroup/memory/slurm/memory.limit_in_bytes", "400000\n");
    CHECK_EQ(train_machine_look(root).memory, 400000);
    put(root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n"); /* a container's own root */
    CHECK_EQ(train_machine_look(root).memory, 300000);
    put(root, "proc/self/cgroup", "nonsense\n::\n0\n");
    CHECK_EQ(train_machine_look(root).memory, 1000 * 1024);
    CHECK(train_machine_look("").memory > 0 && train_machine_disk("/tmp") > 0);
    (void)snprintf(doomed, sizeof doomed, "rm -r %s", root);
    CHECK(system(doomed) == 0);
}

TEST(train_footprint_warns_of_what_is_slow) {
    const ravel_logger logger = {note_warning, NULL};
    const train_machine m = {.memory = 1000, .available = 800};
    ravel_error err = RAVEL_ERROR_INIT;
    const struct {
        int64_t bytes, mapped;
        const char *says;
    } cases[] = {{700, 0, NULL},
                 {700, 300, NULL},
                 {700, 301, "of mapped files are more than"},
                 {900, 0, "other processes leave"}};
    for (int i = 0; i < 4; i++) {
        warned = NULL;
        train_machine_warn(&m, cases[i].bytes, cases[i].mapped, &logger);
        CHECK(!warned == !cases[i].says && (!warned || strstr(warned, cases[i].says)));
    }
    CHECK_OK(train_machine_fits(&m, 1000, "it", "try less", &err), &err);
    CHECK_EQ(train_machine_fits(&m, 1001, "it", "try less", &err), RAVEL_E_MEMORY);
    CHECK_STR(err.message, "it needs 1001 B on this machine, which has 1000 B; try less");
}
