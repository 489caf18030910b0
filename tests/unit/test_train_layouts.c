/* One loss in any layout: whole updates on random meshes against one rank. An update's gradients are compared through its
 * checkpoint: after one step the first moment is the clipped gradient times 1 - beta1, gathered from whatever ranks had it. */
#include "tests/unit/train_layout.h"
#include "tests/unit/train_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The data-parallel ranks as a pool of groups with their own widths: half of the meshes that can be one. A rank's budget
 * holds some of the samples; the others need several ranks. */
static void random_pool(uint64_t *seed, train_config *c) {
    if (c->mesh.cp > 1 || c->mesh.dp < 2 || layout_draw(seed, 2)) return;
    c->plan.cp_pool = c->mesh.dp;
    c->plan.budget = c->mesh.dp == 2 ? 24 : 16;
    c->plan.cp_empty = (int32_t)layout_draw(seed, 2);
    c->run.single = 0;
}

/* SFT on golden models and on new ones of more layers, every aggregation, budgets, sharding and orders of micro-batches. */
static void random_layouts(uint64_t seed, int count, int32_t most) {
    static const char *const folders[] = {NULL,     "llama3",  "qwen2",     "mistral", NULL,        "qwen3", "smollm",
                                          "llama2", "mistral", "gemma3",    "smollm3", "olmo2",     "phi3",  "granite",
                                          "gemma3", NULL,      "qwen3_moe", "mixtral", "qwen3_moe", "olmoe"};
    enum { FOLDERS = sizeof folders / sizeof *folders };
    uint64_t other = ~seed; /* what adapters draw */
    for (int i = 0; i < count; i++) {
        train_config c;
        ravel_shape shape;
        layout_outcome one, many;
        char folder[128], what[160];
        layout_small_job(&c);
        const char *name = folders[layout_draw(&seed, FOLDERS)];
        (void)snprintf(folder, sizeof folder, "tests/golden/archs/%s", name ? name : "");
        if (name) c.model.model = folder;
        c.learn.aggregation = (int32_t)layout_draw(&seed, 3);
        c.model.recompute = (int32_t)layout_draw(&seed, 3);
        CHECK(train_shape(&c.model, &shape, NULL) == RAVEL_OK);
        char adapter[64] = "", path[128];
        if (shape.experts) { /* half with their load loss */
            c.learn.router_aux = (double)layout_draw(&other, 2) * 0.5;
            c.learn.router_scope = (int32_t)layout_draw(&other, 2);
        }
        if (layout_draw(&other, 3) == 0 && !layout_adapt(&c, TRAIN_SFT, &other, adapter, path)) return;
        if (!layout_run_once(&c, TRAIN_SFT, 1, &one)) return;
        int32_t ranks = layout_random_mesh(&seed, &shape, most, &c.mesh);
        c.plan.budget = 40 + (int64_t)layout_draw(&seed, 3) * 40;
        c.plan.min_micro_steps = 1 + (int64_t)layout_draw(&seed, 5);
        c.learn.shard = (int32_t)layout_draw(&seed, 3);
        c.run.single = layout_draw(&seed, 4) == 0;
        c.model.sequence = (int32_t)layout_draw(&seed, 2);
        random_pool(&seed, &c);
        (void)snprintf(what, sizeof what, "%s%s%s, tp %d%s cp %d dp %d pp %d vpp %d, pool %d, shard %d, budget %d",
                       name ? name : "new", adapter[0] ? " with an adapter" : "",
                       c.learn.router_aux > 0 ? " with the load loss" : "", c.mesh.tp,
                       c.model.sequence ? " (sequence parallel)" : "", c.mesh.cp, c.mesh.dp, c.mesh.pp, c.mesh.vpp,
                       c.plan.cp_pool, c.learn.shard, (int)c.plan.budget);
        if (getenv("RAVEL_VERBOSE")) printf("    %s\n", what);
        if (layout_run_once(&c, TRAIN_SFT, ranks, &many))
            layout_compare(what, &one, &many, 1e-5);
        else
            printf("    %s\n", what);
        free(one.moment), free(many.moment);
        if (adapter[0]) job_wipe(adapter);
    }
}

/* A sample over the budget has a micro-batch of its own. */
TEST(train_layouts_oversize_alone_changes_no_update) {
    train_config c;
    layout_outcome one, many;
    layout_small_job(&c);
    CHECK(layout_run_once(&c, TRAIN_SFT, 1, &one));
    c.plan.budget = 16;
    c.plan.oversize = RAVEL_OVERSIZE_ALONE;
    c.mesh.dp = 2;
    CHECK(layout_run_once(&c, TRAIN_SFT, 2, &many));
    layout_compare("oversize alone", &one, &many, 1e-5);
    free(many.moment);
    c.mesh.cp = 2;
    CHECK(layout_run_once(&c, TRAIN_SFT, 4, &many));
    layout_compare("oversize alone, cp 2", &one, &many, 1e-5);
    free(one.moment), free(many.moment);
}

/* Micro-batches that fit as padded rows are others, their update is the same. */
TEST(train_layouts_padded_change_no_update) {
    train_config c;
    layout_outcome one, many;
    ravel_error err = RAVEL_ERROR_INIT;
    for (int kind = 0; kind < 2; kind++) {
        layout_small_job(&c);
        CHECK(layout_run_once(&c, TRAIN_SFT, 1, &one));
        c.plan.layout = kind ? RAVEL_LAYOUT_PADDED_2D : RAVEL_LAYOUT_PADDED;
        c.mesh.dp = 1 + kind;
        CHECK(layout_run_once(&c, TRAIN_SFT, 1 + kind, &many));
        layout_compare(kind ? "padded-2d" : "padded", &one, &many, 1e-5);
        free(one.moment), free(many.moment);
    }
    c.mesh.cp = 2;
    CHECK_EQ(train_config_check(&c, TRAIN_SFT, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "padded-2d are not possible with --cp");
    c.mesh.cp = 1, err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_EQ(train_config_check(&c, TRAIN_DPO, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "not possible with dpo");
}

/* 24 ranks, with every axis above 1, and with groups of their own widths. */
TEST(train_layouts_of_24_ranks_have_one_update) {
    static const int32_t meshes[][5] = {{2, 2, 3, 2, 0}, {2, 1, 4, 3, 4}};
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        train_config c;
        layout_outcome one, many;
        layout_small_job(&c);
        if (!layout_run_once(&c, TRAIN_SFT, 1, &one)) return;
        c.mesh.tp = meshes[i][0], c.mesh.cp = meshes[i][1], c.mesh.dp = meshes[i][2], c.mesh.pp = meshes[i][3];
        c.plan.cp_pool = meshes[i][4];
        c.plan.budget = c.plan.cp_pool ? 16 : 64;
        c.learn.shard = TRAIN_SHARD_PARAMS;
        if (layout_run_once(&c, TRAIN_SFT, 24, &many))
            layout_compare(i ? "24 ranks, a pool" : "24 ranks", &one, &many, 1e-5);
        free(one.moment), free(many.moment);
    }
}

/* A sliding window (of 6 tokens) with every kind of context parallelism. */
TEST(train_layouts_windows_on_context_ranks) {
    static const int32_t meshes[][6] = {
        {1, 4, 1, 1, 0, 0}, {2, 2, 1, 2, 0, 0}, {1, 3, 2, 1, 0, 2}, {1, 1, 4, 1, 4, 1}, {1, 1, 2, 2, 2, 2}};
    train_config c;
    layout_outcome one, many;
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        char what[64];
        layout_small_job(&c);
        c.model.model = "tests/golden/archs/mistral";
        if (!layout_run_once(&c, TRAIN_SFT, 1, &one)) return;
        c.mesh.tp = meshes[i][0], c.mesh.cp = meshes[i][1], c.mesh.dp = meshes[i][2], c.mesh.pp = meshes[i][3];
        c.plan.cp_pool = meshes[i][4];
        c.learn.shard = meshes[i][5];
        if (c.plan.cp_pool) c.plan.budget = c.plan.cp_pool == 2 ? 24 : 16;
        (void)snprintf(what, sizeof what, "a window, mesh %zu", i);
        if (layout_run_once(&c, TRAIN_SFT, c.mesh.tp * c.mesh.cp * c.mesh.dp * c.mesh.pp, &many))
            layout_compare(what, &one, &many, 1e-5);
        free(one.moment), free(many.moment);
    }
}

TEST(train_layouts_random_meshes_have_one_update) {
    random_layouts(check_seed(), (int)check_rounds(20, 500), (int32_t)check_scale(8, 24));
}

/* Pairs of answers of random lengths. */
static void write_pairs(uint64_t *seed, char *path) {
    strcpy(path, "/tmp/ravel-pairs-XXXXXX");
    FILE *f = fdopen(mkstemp(path), "w");
    for (int row = 0; row < 32; row++) {
        int lengths[] = {2 + (int)layout_draw(seed, 17), 2 + (int)layout_draw(seed, 17)};
        (void)fprintf(f, "{\"input_ids\": [");
        for (int i = 0; i < lengths[0] + lengths[1]; i++)
            (void)fprintf(f, "%s%d", i ? ", " : "", (int)layout_draw(seed, 60));
        (void)fprintf(f, "], \"cu_seqlens\": [0, %d, %d], \"prompt_length\": [1, 1]}\n", lengths[0],
                      lengths[0] + lengths[1]);
    }
    (void)fclose(f);
}

/* DPO with and without a sliding window, on any mesh and with groups of their own widths. */
static void random_pairs(uint64_t seed, int count, int32_t most) {
    uint64_t other = ~seed; /* what adapters draw */
    for (int i = 0; i < count; i++) {
        train_config c;
        ravel_shape shape;
        layout_outcome one, many;
        char data[64], what[160];
        layout_small_job(&c);
        write_pairs(&seed, data);
        c.source.mock = NULL;
        c.source.data = data;
        const char *model = layout_draw(&seed, 2) ? "tests/golden/archs/mistral" : NULL;
        c.model.model = model;
        CHECK(train_shape(&c.model, &shape, NULL) == RAVEL_OK);
        char adapter[64] = "", path[128];
        bool ran = layout_draw(&other, 3) || layout_adapt(&c, TRAIN_DPO, &other, adapter, path);
        ran = ran && layout_run_once(&c, TRAIN_DPO, 1, &one);
        int32_t ranks = layout_random_mesh(&seed, &shape, most, &c.mesh);
        c.plan.budget = 40 + (int64_t)layout_draw(&seed, 3) * 40;
        c.learn.shard = (int32_t)layout_draw(&seed, 3);
        random_pool(&seed, &c);
        (void)snprintf(what, sizeof what, "dpo, %s%s, tp %d cp %d dp %d pp %d vpp %d, pool %d, shard %d, budget %d",
                       model ? "mistral" : "new", adapter[0] ? " with an adapter" : "", c.mesh.tp, c.mesh.cp, c.mesh.dp,
                       c.mesh.pp, c.mesh.vpp, c.plan.cp_pool, c.learn.shard, (int)c.plan.budget);
        if (getenv("RAVEL_VERBOSE")) printf("    %s\n", what);
        ran = ran && layout_run_once(&c, TRAIN_DPO, ranks, &many);
        if (ran)
            layout_compare(what, &one, &many, 1e-5);
        else
            printf("    %s\n", what);
        CHECK(unlink(data) == 0);
        if (adapter[0]) job_wipe(adapter);
        if (!ran) return;
        free(one.moment), free(many.moment);
    }
}

TEST(train_layouts_dpo_on_random_meshes) {
    random_pairs(check_seed(), (int)check_rounds(10, 200), (int32_t)check_scale(8, 24));
}

static void grpo_job(train_config *c) {
    layout_small_job(c);
    c->source.mock = NULL;
    c->policy.kl = 0.05;
    c->grpo.entropy = 0.02;
    c->grpo.updates = 1;
    c->grpo.eval_prompts = 2;
    c->run.steps = 1;
}

/* One trainer with one generator, and a mesh of `ranks` ranks. The logits of a generator of several ranks are rounded
 * differently: rarely, a random number lies between the edges of two tokens, and an answer goes another way. Other random
 * numbers then have to agree. */
static void compare_grpo(const char *what, train_config one, train_config many, int32_t ranks) {
    int tries = many.grpo.generator_tp > 1 ? 2 : 1;
    for (int i = 0; i < tries; i++) {
        layout_outcome a, b;
        if (!layout_run_once(&one, TRAIN_GRPO, 2, &a)) return;
        if (!layout_run_once(&many, TRAIN_GRPO, ranks, &b)) {
            printf("    %s\n", what);
            free(a.moment);
            return;
        }
        bool agrees = layout_distance(&a, &b) <= 1e-5;
        if (i + 1 == tries) layout_compare(what, &a, &b, 1e-5);
        free(a.moment), free(b.moment);
        if (agrees) return;
        one.run.seed = ++many.run.seed;
    }
}

TEST(train_layouts_grpo_has_one_update) {
    static const struct {
        int32_t tp, cp, dp, pp, vpp, shard, ratio, updates, budget, pool, generators, generator_tp;
    } cases[] = {{2, 1, 1, 1, 1, 0, 0, 1, 64, 0, 1, 1}, {1, 2, 1, 1, 1, 2, 1, 1, 64, 0, 2, 2},
                 {1, 1, 1, 2, 1, 1, 0, 2, 64, 0, 1, 1}, {2, 1, 1, 2, 2, 0, 1, 1, 64, 0, 4, 2},
                 {1, 2, 2, 2, 1, 1, 1, 2, 64, 0, 1, 1}, {6, 1, 1, 1, 1, 0, 0, 2, 64, 0, 3, 1},
                 {1, 1, 3, 1, 1, 2, 0, 1, 64, 0, 6, 6}, {2, 1, 2, 2, 1, 2, 1, 2, 64, 0, 2, 2},
                 {1, 1, 2, 1, 1, 0, 1, 3, 24, 2, 1, 1}, {1, 1, 4, 2, 1, 1, 1, 1, 16, 4, 2, 2},
                 {1, 1, 4, 1, 1, 2, 1, 1, 16, 4, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_config c, one;
        char what[96];
        grpo_job(&c);
        c.policy.ratio = cases[i].ratio;
        c.grpo.updates = cases[i].updates;
        c.run.steps = cases[i].updates;
        c.learn.lr =
            cases[i].updates > 1 ? 1e-6 : c.learn.lr; /* the second update's gradient is at about the same weights */
        one = c;
        c.mesh.tp = cases[i].tp, c.mesh.cp = cases[i].cp, c.mesh.dp = cases[i].dp, c.mesh.pp = cases[i].pp;
        c.mesh.vpp = cases[i].vpp;
        c.learn.shard = cases[i].shard;
        c.plan.budget = cases[i].budget;
        c.plan.cp_pool = cases[i].pool;
        c.grpo.generators = cases[i].generators;
        c.grpo.generator_tp = cases[i].generator_tp;
        (void)snprintf(what, sizeof what, "grpo, tp %d cp %d dp %d pp %d vpp %d pool %d, generator tp %d", c.mesh.tp,
                       c.mesh.cp, c.mesh.dp, c.mesh.pp, c.mesh.vpp, c.plan.cp_pool, c.grpo.generator_tp);
        compare_grpo(what, one, c, c.mesh.tp * c.mesh.cp * c.mesh.dp * c.mesh.pp + c.grpo.generators);
    }
}

/* ---- shared prefixes ------------------------------------------------------------------------------------ */

/* Rows of few tokens after one of four prompts, some of them twice; or pairs of answers that begin alike. */
static void write_shared(uint64_t *seed, int pairs, char *path) {
    strcpy(path, "/tmp/ravel-shared-XXXXXX");
    FILE *f = fdopen(mkstemp(path), "w");
    for (int row = 0; row < 24; row++) {
        int prompt = 3 + row % 4 * 3, parts = pairs ? 2 : 1, ends[3] = {0};
        (void)fprintf(f, "{\"input_ids\": [");
        for (int part = 0; part < parts; part++) {
            int length = prompt + 1 + (int)layout_draw(seed, 8);
            for (int i = 0; i < length; i++)
                (void)fprintf(f, "%s%d", part + i ? ", " : "",
                              i < prompt             ? 7 * (row % 4) + i
                              : i == prompt && pairs ? part
                                                     : (int)layout_draw(seed, i == prompt ? 2 : 60));
            ends[part + 1] = ends[part] + length;
        }
        if (pairs)
            (void)fprintf(f, "], \"cu_seqlens\": [0, %d, %d], \"prompt_length\": [%d, %d]}\n", ends[1], ends[2], prompt,
                          prompt);
        else
            (void)fprintf(f, "], \"prompt_length\": %d}\n", row % 5 ? prompt : 1);
    }
    (void)fclose(f);
}

/* Shared prefixes on random meshes against one rank that shares nothing. */
static void random_shared(uint64_t seed, train_kind kind, int count, int32_t most) {
    for (int i = 0; i < count; i++) {
        train_config c;
        ravel_shape shape;
        layout_outcome one, many;
        char data[64], what[160];
        layout_small_job(&c);
        write_shared(&seed, kind == TRAIN_DPO, data);
        c.source.mock = NULL;
        c.source.data = data;
        c.learn.aggregation = (int32_t)layout_draw(&seed, 3);
        c.model.recompute = (int32_t)layout_draw(&seed, 3);
        c.learn.share_prefix = RAVEL_SHARE_OFF;
        CHECK(train_shape(&c.model, &shape, NULL) == RAVEL_OK);
        bool ran = layout_run_once(&c, kind, 1, &one);
        c.learn.share_prefix = RAVEL_SHARE_ON;
        int32_t ranks = layout_random_mesh(&seed, &shape, most, &c.mesh);
        c.plan.budget = 40 + (int64_t)layout_draw(&seed, 3) * 40;
        int pool = layout_draw(&seed, 3) == 0;
        if (pool) { /* the dp ranks in groups of their own widths */
            c.mesh.dp *= c.mesh.cp;
            c.plan.cp_pool = c.mesh.dp;
            c.mesh.cp = 1;
        }
        if (kind == TRAIN_DPO && c.plan.cp_pool + c.mesh.cp > 2) c.plan.budget -= 16; /* less than some pairs */
        c.learn.share_limit = 16;
        c.learn.shard = (int32_t)layout_draw(&seed, 3);
        c.model.sequence = (int32_t)layout_draw(&seed, 2);
        (void)snprintf(
            what, sizeof what, "shared, kind %d, pool %d tp %d cp %d dp %d pp %d vpp %d, shard %d, budget %d", kind,
            c.plan.cp_pool, c.mesh.tp, c.mesh.cp, c.mesh.dp, c.mesh.pp, c.mesh.vpp, c.learn.shard, (int)c.plan.budget);
        if (getenv("RAVEL_VERBOSE")) printf("    %s\n", what);
        ran = ran && layout_run_once(&c, kind, ranks, &many);
        if (ran)
            layout_compare(what, &one, &many, 1e-5);
        else
            printf("    %s\n", what);
        CHECK(unlink(data) == 0);
        if (!ran) return;
        CHECK(one.shared == 0 && many.shared > 0);
        free(one.moment), free(many.moment);
    }
}

TEST(train_layouts_shared_prefixes_change_no_update) {
    random_shared(check_seed(), TRAIN_SFT, (int)check_rounds(6, 250), (int32_t)check_scale(8, 24));
    random_shared(check_seed(), TRAIN_DPO, (int)check_rounds(3, 50), (int32_t)check_scale(8, 24));
}

/* A reference, an entropy bonus, and with two updates old log-probs too: all by the plan that shares. */
TEST(train_layouts_shared_prefixes_change_no_grpo) {
    static const int32_t cases[][8] = {{1, 1, 1, 0, 0, 1, 2, 0},
                                       {2, 2, 1, 1, 1, 2, 1, 0},
                                       {1, 2, 2, 2, 0, 2, 1, 0},
                                       {1, 1, 1, 2, 1, 2, 3, 0},
                                       {1, 4, 1, 0, 0, 2, 1, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_config c, one;
        char what[64];
        grpo_job(&c);
        c.learn.share_prefix = RAVEL_SHARE_OFF;
        c.policy.ratio = cases[i][4];
        c.grpo.updates = cases[i][5];
        c.run.steps = cases[i][5];
        if (cases[i][5] > 1) c.learn.lr = 1e-6;
        one = c;
        c.learn.share_prefix = RAVEL_SHARE_ON;
        c.mesh.tp = cases[i][0], c.mesh.dp = cases[i][1], c.mesh.pp = cases[i][2], c.mesh.cp = cases[i][6];
        c.plan.cp_pool = cases[i][7];
        c.learn.shard = cases[i][3];
        (void)snprintf(what, sizeof what, "grpo with shared prefixes, case %zu", i);
        compare_grpo(what, one, c, c.mesh.tp * c.mesh.cp * c.mesh.dp * c.mesh.pp + c.grpo.generators);
    }
}

TEST(train_layouts_shared_prefixes_are_refused_where_impossible) {
    train_config c;
    ravel_error err = RAVEL_ERROR_INIT;
    layout_small_job(&c);
    c.learn.share_prefix = RAVEL_SHARE_ON;
    c.run.single = 1;
    CHECK_EQ(train_config_check(&c, TRAIN_DPO, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "--share-prefix on is not possible with --single");
}

/* GRPO with a reference and an entropy bonus: ratios per token and per sequence, all aggregations, pools, sequence
 * parallelism. */
static void random_grpo(uint64_t seed, int count, int32_t most) {
    uint64_t other = ~seed; /* what adapters draw */
    for (int i = 0; i < count; i++) {
        train_config c, one;
        ravel_shape shape;
        char what[160];
        grpo_job(&c);
        c.policy.ratio = (int32_t)layout_draw(&seed, 2);
        c.learn.aggregation = (int32_t)layout_draw(&seed, 3);
        CHECK(train_shape(&c.model, &shape, NULL) == RAVEL_OK);
        char adapter[64] = "", path[128];
        if (layout_draw(&other, 2) == 0 && !layout_adapt(&c, TRAIN_GRPO, &other, adapter, path)) return;
        one = c;
        int32_t ranks = layout_random_mesh(&seed, &shape, most, &c.mesh);
        c.grpo.generator_tp = (int32_t)layout_draw(&seed, 2) + 1;
        c.grpo.generators = c.grpo.generator_tp * ((int32_t)layout_draw(&seed, 2) + 1);
        ranks += c.grpo.generators;
        c.learn.shard = (int32_t)layout_draw(&seed, 3);
        c.model.sequence = (int32_t)layout_draw(&seed, 2);
        random_pool(&seed, &c);
        (void)snprintf(what, sizeof what,
                       "grpo%s, tp %d%s cp %d dp %d pp %d vpp %d, pool %d, ratio %d, aggregation %d, generator tp %d",
                       adapter[0] ? " with an adapter" : "", c.mesh.tp, c.model.sequence ? " (sequence parallel)" : "",
                       c.mesh.cp, c.mesh.dp, c.mesh.pp, c.mesh.vpp, c.plan.cp_pool, c.policy.ratio, c.learn.aggregation,
                       c.grpo.generator_tp);
        compare_grpo(what, one, c, ranks);
        if (adapter[0]) job_wipe(adapter);
    }
}

TEST(train_layouts_grpo_on_random_meshes) {
    random_grpo(check_seed(), (int)check_rounds(4, 100), (int32_t)check_scale(8, 24));
}

/* 9 heads and 3 key heads, tied, on tp 3 x pp 2, as SmolLM2 has them, sequence parallel or not: ten updates on the curve of one rank. */
TEST(train_layouts_nine_heads_on_three_times_two) {
    curve curves[3];
    for (int i = 0; i < 3; i++) {
        char folder[64];
        train_config c;
        layout_small_job(&c);
        job_folder(folder);
        c.run.run = folder;
        c.run.steps = 10;
        c.run.checkpoint_end = 0;
        c.model.hidden = 36;
        c.model.heads = 9;
        c.model.kv_heads = 3;
        c.model.head_dim = 4;
        c.model.layers = 6;
        c.model.init_std = 0.02;
        c.mesh.tp = i ? 3 : 1;
        c.mesh.pp = i ? 2 : 1;
        c.model.sequence = i == 2;
        if (!job_run(&c, TRAIN_SFT, i ? 6 : 1, "train/loss", &curves[i])) return;
        job_wipe(folder);
        if (!EXPECT(curve_distance(&curves[0], &curves[i]) < 1e-5))
            printf("    off by %g\n", curve_distance(&curves[0], &curves[i]));
    }
}

/* Sharded or not, the same bits: losses and norms of ten updates. Sharded parameters with one micro-batch per update, which
 * a pipeline does not have. */
TEST(train_layouts_sharding_changes_no_bit) {
    static const int32_t meshes[][6] = {
        {1, 1, 4, 1, 1, 3}, {2, 1, 2, 1, 1, 3}, {1, 2, 2, 1, 1, 3}, {1, 1, 2, 2, 2, 2}, {1, 1, 4, 1, 1, 2}};
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        curve loss[3], norm[3];
        for (int shard = 0; shard < meshes[i][5]; shard++) {
            char folder[64];
            train_config c;
            layout_small_job(&c);
            job_folder(folder);
            c.run.run = folder;
            c.run.steps = 10;
            c.run.checkpoint_end = 0;
            c.mesh.tp = meshes[i][0], c.mesh.cp = meshes[i][1], c.mesh.dp = meshes[i][2], c.mesh.pp = meshes[i][3];
            c.mesh.vpp = meshes[i][4];
            c.learn.shard = shard;
            if (meshes[i][5] == 3) c.sft.batch = 4, c.plan.budget = 160;
            int32_t ranks = c.mesh.tp * c.mesh.cp * c.mesh.dp * c.mesh.pp;
            if (!job_run(&c, TRAIN_SFT, ranks, "train/loss", &loss[shard])) return;
            job_curve(folder, "train/grad_norm", &norm[shard]);
            job_wipe(folder);
        }
        CHECK_EQ(loss[0].count, 10);
        for (int u = 0; u < 10; u++)
            for (int shard = 1; shard < meshes[i][5]; shard++)
                if (!EXPECT(loss[0].values[u] == loss[shard].values[u] && norm[0].values[u] == norm[shard].values[u]))
                    printf("    mesh %zu, shard %d, update %d: loss %.17g, not %.17g; norm %.17g, not %.17g\n", i,
                           shard, u, loss[shard].values[u], loss[0].values[u], norm[shard].values[u],
                           norm[0].values[u]);
    }
}

/* A run that stops and goes on with another mesh and other sharding stays on the curve of one rank. */
TEST(train_layouts_resume_on_another_mesh) {
    static const int32_t meshes[][6] = {
        {1, 1, 1, 1, 1, 0}, {2, 1, 2, 2, 1, 2}, {1, 2, 2, 1, 1, 1}, {1, 1, 2, 2, 2, 2}, {6, 1, 1, 1, 1, 0}};
    curve whole, parts;
    char folder[64];
    train_config c;
    layout_small_job(&c);
    job_folder(folder);
    c.run.run = folder;
    c.run.steps = 10;
    c.learn.schedule = TRAIN_CONSTANT;
    if (!job_run(&c, TRAIN_SFT, 1, "train/loss", &whole)) return;
    job_wipe(folder);
    job_folder(folder);
    for (int i = 0; i < 5; i++) {
        c.run.steps = 2 * (i + 1);
        c.run.resume = i > 0;
        c.mesh.tp = meshes[i][0], c.mesh.cp = meshes[i][1], c.mesh.dp = meshes[i][2], c.mesh.pp = meshes[i][3];
        c.mesh.vpp = meshes[i][4];
        c.learn.shard = meshes[i][5];
        if (!job_run(&c, TRAIN_SFT, c.mesh.tp * c.mesh.cp * c.mesh.dp * c.mesh.pp, "train/loss", &parts)) return;
    }
    CHECK_EQ(parts.count, 10);
    if (!EXPECT(curve_distance(&whole, &parts) < 1e-5)) printf("    off by %g\n", curve_distance(&whole, &parts));
    job_wipe(folder);
}
