/* Models with experts: one update in any layout, with and without the load loss; router replay. */
#include "tests/unit/train_layout.h"
#include "tests/unit/train_support.h"

#include "base/model/shape.h"
#include "train/model/hf/lora.h"
#include "train/model/generate/generator.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A new model of random experts, or one of the golden ones; small[128] is its folder. */
static const char *random_model(uint64_t *seed, train_config *c, char *folder) {
    static const char *const folders[] = {"qwen3_moe", "mixtral", "olmoe", NULL, NULL, NULL};
    const char *name = folders[layout_draw(seed, 6)];
    c->learn.aggregation = (int32_t)layout_draw(seed, 3);
    c->model.recompute = (int32_t)layout_draw(seed, 3);
    c->learn.router_aux = layout_draw(seed, 3) ? 0.5 : 0;
    c->learn.router_scope = (int32_t)layout_draw(seed, 2);
    if (name) {
        (void)snprintf(folder, 128, "tests/golden/archs/%s", name);
        c->model.model = folder;
        return name;
    }
    c->model.experts = 4 + 2 * (int64_t)layout_draw(seed, 5);
    c->model.experts_active = 1 + (int64_t)layout_draw(seed, 3);
    c->model.expert_ffn = 12;
    return "new";
}

/* Rows that share prompts, or pairs of answers. */
static void write_rows(uint64_t *seed, int pairs, char *path) {
    strcpy(path, "/tmp/ravel-experts-XXXXXX");
    FILE *f = fdopen(mkstemp(path), "w");
    for (int row = 0; row < 24; row++) {
        int prompt = 3 + row % 4 * 3,
            lengths[] = {prompt + 1 + (int)layout_draw(seed, 8), pairs ? prompt + 1 + (int)layout_draw(seed, 8) : 0};
        (void)fprintf(f, "{\"input_ids\": [");
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < lengths[k]; i++)
                (void)fprintf(f, "%s%d", k + i ? ", " : "",
                              i < prompt ? 7 * (row % 4) + i : (int)layout_draw(seed, 40));
        if (pairs)
            (void)fprintf(f, "], \"cu_seqlens\": [0, %d, %d], \"prompt_length\": [%d, %d]}\n", lengths[0],
                          lengths[0] + lengths[1], prompt, prompt);
        else
            (void)fprintf(f, "], \"prompt_length\": %d}\n", prompt);
    }
    (void)fclose(f);
}

/* Ranks that share out the experts: half of the meshes that can. */
static int32_t random_ep(uint64_t *seed, const train_config *c, const ravel_shape *shape) {
    int32_t ranks = c->mesh.dp * c->mesh.cp, ep = ranks;
    while (ranks % ep || shape->experts % ep || (ep > 2 && layout_draw(seed, 3) == 0)) ep--;
    return layout_draw(seed, 4) ? ep : 1;
}

/* SFT of mock rows, of rows whose prompts are computed once, and DPO. */
static void random_experts(uint64_t seed, int count, int32_t most) {
    uint64_t other = ~seed; /* what adapters draw */
    static const char *const kinds[] = {"sft", "sft with shared prompts", "dpo"};
    for (int i = 0; i < count; i++) {
        train_config c;
        ravel_shape shape;
        layout_outcome one = {0}, many = {0};
        char folder[128], data[64] = "", adapter[64] = "", path[128], what[200];
        int kind = (int)layout_draw(&seed, 3);
        layout_small_job(&c);
        const char *name = random_model(&seed, &c, folder);
        if (kind) {
            write_rows(&seed, kind == 2, data);
            c.source.mock = NULL;
            c.source.data = data;
        }
        if (kind == 2) c.learn.aggregation = 0;
        c.learn.share_prefix = RAVEL_SHARE_OFF;
        CHECK(train_shape(&c.model, &shape, NULL) == RAVEL_OK);
        if (layout_draw(&other, 2) && !layout_adapt(&c, kind == 2 ? TRAIN_DPO : TRAIN_SFT, &other, adapter, path))
            return;
        bool ran = layout_run_once(&c, kind == 2 ? TRAIN_DPO : TRAIN_SFT, 1, &one);
        int32_t ranks = layout_random_mesh(&seed, &shape, most, &c.mesh);
        if (kind == 1) c.learn.share_prefix = RAVEL_SHARE_ON;
        c.plan.budget = 48 + (int64_t)layout_draw(&seed, 3) * 40;
        c.plan.min_micro_steps = 1 + (int64_t)layout_draw(&seed, 3);
        c.learn.shard = (int32_t)layout_draw(&seed, 3);
        c.model.sequence = (int32_t)layout_draw(&seed, 2);
        if (kind == 0 && c.mesh.cp == 1 && c.mesh.dp > 1 && layout_draw(&seed, 2)) {
            c.plan.cp_pool = c.mesh.dp;
            c.plan.budget = c.mesh.dp == 2 ? 24 : 16;
        }
        c.learn.ep = random_ep(&seed, &c, &shape);
        (void)snprintf(
            what, sizeof what,
            "%s, %s%s, load loss %g %s, ep %d, tp %d%s cp %d dp %d pp %d vpp %d, pool %d, shard %d, budget %d",
            kinds[kind], name, adapter[0] ? " with an adapter" : "", c.learn.router_aux,
            c.learn.router_scope ? "by layer" : "", c.learn.ep, c.mesh.tp,
            c.model.sequence ? " (sequence parallel)" : "", c.mesh.cp, c.mesh.dp, c.mesh.pp, c.mesh.vpp, c.plan.cp_pool,
            c.learn.shard, (int)c.plan.budget);
        if (getenv("RAVEL_VERBOSE")) printf("    %s\n", what);
        ran = ran && layout_run_once(&c, kind == 2 ? TRAIN_DPO : TRAIN_SFT, ranks, &many);
        CHECK(!ran || !(c.learn.router_aux > 0) == !(one.load > 0.5)); /* at least 1 where it is even */
        if (ran)
            layout_compare(what, &one, &many, 1e-5);
        else
            printf("    %s\n", what);
        if (kind) CHECK(unlink(data) == 0);
        if (adapter[0]) job_wipe(adapter);
        free(one.moment), free(many.moment);
        if (!ran) return;
    }
}

TEST(train_experts_have_one_update_on_random_meshes) {
    random_experts(check_seed(), (int)check_rounds(12, 200), (int32_t)check_scale(8, 24));
}

/* ---- router replay -------------------------------------------------------------------------------------- */

static void replay_job(train_config *c) {
    layout_small_job(c);
    c->source.mock = NULL;
    c->model.experts = 8;
    c->model.experts_active = 2;
    c->model.expert_ffn = 12;
    c->policy.kl = 0.05;
    c->grpo.entropy = 0.02;
    c->grpo.updates = 1;
    c->grpo.eval_prompts = 2;
}

/* A metric of a run, summed over its updates. */
static double replay_sum(train_config *c, int32_t ranks, const char *metric) {
    char folder[64];
    curve values = {.count = 0};
    double sum = 0;
    job_folder(folder);
    c->run.run = folder;
    if (!job_run(c, TRAIN_GRPO, ranks, metric, &values)) check_fail(__FILE__, __LINE__, "no %s", metric);
    for (int i = 0; i < values.count; i++) sum += values.values[i];
    job_wipe(folder);
    c->run.run = NULL;
    return sum;
}

/* The generator's routes, on meshes against one rank: prompts and answers, several turns of refits, updates and sub-
 * batches. */
TEST(train_experts_replay_is_one_update_on_any_mesh) {
    static const int32_t meshes[][6] = {{1, 1, 2, 1, 1, 1}, {2, 1, 1, 2, 1, 2}, {1, 2, 1, 2, 2, 1}, {1, 1, 4, 1, 2, 1}};
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        for (int32_t replay = TRAIN_REPLAY_FIRST; replay <= TRAIN_REPLAY_ROLLOUT; replay++) {
            train_config c, one;
            layout_outcome a = {0}, b = {0};
            replay_job(&c);
            c.grpo.replay = replay;
            c.grpo.updates = replay == TRAIN_REPLAY_FIRST ? 2 : meshes[i][4];
            c.run.steps = c.grpo.updates;
            if (c.grpo.updates > 1) c.learn.lr = 1e-6;
            one = c;
            c.mesh.tp = meshes[i][0], c.mesh.cp = meshes[i][1], c.mesh.dp = meshes[i][2], c.mesh.pp = meshes[i][3];
            c.grpo.generators = meshes[i][5];
            int32_t ranks = c.mesh.tp * c.mesh.cp * c.mesh.dp * c.mesh.pp + c.grpo.generators;
            if (layout_run_once(&one, TRAIN_GRPO, 2, &a) && layout_run_once(&c, TRAIN_GRPO, ranks, &b))
                layout_compare("replay", &a, &b, 1e-5);
            free(a.moment), free(b.moment);
        }
}

/* Trainer and generator differ where their weights do: routes of another answer would be far away. With the generator's
 * routes the gap of log-probs is that of rounding, as without; after an update that moves the router, old routes make
 * the difference. */
TEST(train_experts_replay_takes_the_given_routes) {
    static const char *const sets[] = {"ref", "cpu"};
    enum { N = 40, LAYERS = 2, ACTIVE = 2 };
    for (int k = 0; k < 2; k++) {
        rig r;
        ravel_error err = RAVEL_ERROR_INIT;
        train_config c;
        ravel_shape shape;
        train_model_options o;
        layout_small_job(&c);
        c.model.layers = LAYERS;
        c.model.experts = 8, c.model.experts_active = ACTIVE, c.model.expert_ffn = 12;
        CHECK(train_shape(&c.model, &shape, NULL) == RAVEL_OK);
        train_model_options_default(&o);
        o.budget = N;
        o.replay = 1;
        CHECK(rig_open(&r, sets[k], 1, &shape, &o));
        CHECK_OK(train_model_init(r.model, 3, 0.2, &err), &err);
        int32_t tokens[N], cu[] = {0, 15, N};
        int16_t taken[N * LAYERS * ACTIVE], again[N * LAYERS * ACTIVE];
        float plain[N], other[N];
        for (int i = 0; i < N; i++) tokens[i] = (i * 37 + 11) % 250;
        train_batch b = {.samples = 2, .tokens = tokens, .cu_seqlens = cu, .routes_stride = LAYERS * ACTIVE};
        train_result result = {.logprob = plain, .routes = taken};
        CHECK_OK(train_model_score(r.model, &b, &result, &err), &err);
        for (int i = 0; i < N * LAYERS * ACTIVE; i++) CHECK(taken[i] >= 0 && taken[i] < 8);
        /* the same routes change no bit; others are taken, and change the scores; a row of -1 chooses */
        b.routes = taken;
        result = (train_result){.logprob = other, .routes = again};
        CHECK_OK(train_model_score(r.model, &b, &result, &err), &err);
        CHECK(memcmp(plain, other, sizeof plain) == 0 && memcmp(taken, again, sizeof taken) == 0);
        int16_t moved[N * LAYERS * ACTIVE];
        for (int i = 0; i < N * LAYERS * ACTIVE; i++) moved[i] = (int16_t)((taken[i] + 1) % 8);
        for (int i = 0; i < 3 * LAYERS * ACTIVE; i++) moved[i] = -1;
        b.routes = moved;
        CHECK_OK(train_model_score(r.model, &b, &result, &err), &err);
        CHECK(memcmp(moved + 3 * LAYERS * ACTIVE, again + 3 * LAYERS * ACTIVE, (N - 3) * LAYERS * ACTIVE * 2) == 0);
        CHECK(memcmp(taken, again, 3 * LAYERS * ACTIVE * 2) == 0 && memcmp(plain, other, sizeof plain) != 0);
        CHECK(memcmp(plain, other, 3 * sizeof *plain) == 0); /* what came before the first of these */
        moved[9 * LAYERS * ACTIVE] = 8;
        CHECK_EQ(train_model_score(r.model, &b, &result, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, "the route of row 9 in layer 0 is not 2 of 8 experts");
        rig_close(&r);
    }
}

enum { PROMPT = 100, ROOM = 160 };
typedef struct recorded {
    train_model *model;
    int32_t prompt[ROOM];
    int64_t count, width, answers;
    int32_t last[ROOM]; /* prompt and answer of the last one */
    int64_t last_count;
} recorded;

/* The model scores what the generator read, and takes the routes that were recorded, but for the last token. */
static ravel_status on_recorded(void *user, const train_answer *a, ravel_error *err) {
    recorded *r = user;
    int16_t routes[ROOM * 16];
    float logprob[ROOM];
    int32_t cu[] = {0, (int32_t)(r->count + a->count)};
    memcpy(r->last, r->prompt, (size_t)r->count * sizeof *r->last);
    memcpy(r->last + r->count, a->tokens, (size_t)a->count * sizeof *r->last);
    r->last_count = cu[1];
    r->answers++;
    EXPECT(a->route_count == cu[1] - 1);
    train_batch b = {.samples = 1, .tokens = r->last, .cu_seqlens = cu};
    train_result result = {.logprob = logprob, .routes = routes};
    ravel_status status = train_model_score(r->model, &b, &result, err);
    int64_t off = 0;
    for (int64_t i = 0; i < a->route_count * r->width; i++) off += routes[i] != a->routes[i];
    if (off > 4) check_fail(__FILE__, __LINE__, "%d of %d routes differ", (int)off, (int)(a->route_count * r->width));
    return status;
}

/* Prompts of more than a page, answers that share it, and a second turn whose first pages are kept. */
TEST(train_experts_generator_records_routes) {
    rig r;
    ravel_error err = RAVEL_ERROR_INIT;
    train_config c;
    ravel_shape shape;
    train_model_options o;
    train_generator_options go;
    train_generator *g = NULL;
    train_sampling sampling;
    recorded rec = {.count = PROMPT, .width = 3 * 2};
    layout_small_job(&c);
    c.model.layers = 3;
    c.model.experts = 8, c.model.experts_active = 2, c.model.expert_ffn = 12;
    CHECK(train_shape(&c.model, &shape, NULL) == RAVEL_OK);
    train_model_options_default(&o);
    o.budget = ROOM;
    o.replay = 1;
    CHECK(rig_open(&r, "cpu", 1, &shape, &o));
    CHECK_OK(train_model_init(r.model, 3, 0.2, &err), &err);
    train_generator_options_default(&go);
    train_sampling_default(&sampling);
    go.slots = 3;
    go.slot_tokens = ROOM;
    go.keep = 4 * ROOM;
    go.routes = 1;
    CHECK_OK(train_generator_create(r.kernels, r.device, &shape, &go, &g, &err), &err);
    train_generator_set_weights(g, train_model_weights(r.model), 1);
    rec.model = r.model;
    for (int i = 0; i < PROMPT; i++) rec.prompt[i] = (i * 37 + 11) % 250;
    sampling.max_tokens = 35;
    train_request request = {.prompt = rec.prompt, .count = PROMPT, .samples = 5, .sampling = &sampling};
    CHECK_OK(train_generator_run(g, &request, 1, on_recorded, &rec, &err), &err);
    CHECK_EQ(rec.answers, 5);
    memcpy(rec.prompt, rec.last, sizeof rec.last);
    request.count = rec.count = rec.last_count;
    request.samples = 2;
    sampling.max_tokens = 20;
    CHECK_OK(train_generator_run(g, &request, 1, on_recorded, &rec, &err), &err);
    CHECK(rec.answers == 7 && train_generator_counts(g).kept_tokens >= 64);
    train_generator_free(g);
    rig_close(&r);
}

/* The gap of generator and trainer summed over the updates of a run, with the generator's routes over that without. */
static double replay_ratio(train_config *c) {
    c->grpo.replay = TRAIN_REPLAY_OFF;
    double off = replay_sum(c, 2, "policy/logprob_gap_mean");
    c->grpo.replay = TRAIN_REPLAY_ROLLOUT;
    double on = replay_sum(c, 2, "policy/logprob_gap_mean");
    if (getenv("RAVEL_VERBOSE")) printf("    %s, async %d: %g and %g\n", c->model.kernels, c->grpo.async, off, on);
    return on > 0 ? on / off : INFINITY;
}

/* Trainer and generator choose other experts where their products round otherwise, or where their weights are of other
 * versions: docs/routes.md has the gaps of such runs. */
TEST(train_experts_replay_makes_the_gap_smaller) {
    train_config c;
    job_config(&c, NULL);
    c.run.steps = 6;
    c.run.seed = 3;
    c.model.hidden = 64, c.model.layers = 3, c.model.ffn = 384;
    c.model.heads = 4, c.model.kv_heads = 2, c.model.head_dim = 32;
    c.model.experts = 16, c.model.experts_active = 2;
    c.model.init_std = 0.2;
    c.grpo.prompts = c.grpo.group_size = 8;
    c.grpo.scoring.max_tokens = 16;
    c.grpo.eval_prompts = c.grpo.max_flat = 0;
    c.plan.budget = 2048;
    const train_kernels *bf16;
    if (train_kernels_find("cpu-avx512bf16", &bf16, NULL) == RAVEL_OK) {
        c.model.kernels = "cpu-avx512bf16";
        CHECK(replay_ratio(&c) < 0.8);
    }
    c.model.kernels = "cpu";
    c.grpo.async = 2;
    c.grpo.old = TRAIN_OLD_TRAINER;
    CHECK(replay_ratio(&c) < 0.8);
}

TEST(train_experts_replay_is_refused_where_it_has_no_effect) {
    train_config c;
    ravel_error err = RAVEL_ERROR_INIT;
    replay_job(&c);
    c.grpo.replay = TRAIN_REPLAY_FIRST;
    CHECK_EQ(train_config_check(&c, TRAIN_GRPO, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "needs --updates-per-batch above 1");
    c.grpo.replay = TRAIN_REPLAY_ROLLOUT;
    c.learn.share_prefix = RAVEL_SHARE_ON;
    err = (ravel_error)RAVEL_ERROR_INIT;
    CHECK_EQ(train_config_check(&c, TRAIN_GRPO, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "--router-replay rollout");
}

/* ---- experts on several ranks ----------------------------------------------------------------------------- */

/* A checkpoint belongs to no layout: every two updates on other ranks, the curve is that of one rank. */
TEST(train_experts_resume_on_other_ranks) {
    static const int32_t meshes[][7] = {{1, 1, 1, 1, 1, 0, 1},
                                        {2, 1, 2, 2, 1, 2, 2},
                                        {1, 2, 2, 1, 1, 1, 4},
                                        {1, 1, 4, 2, 2, 2, 2},
                                        {1, 1, 4, 1, 1, 0, 4}};
    curve whole, parts;
    char folder[64];
    train_config c;
    layout_small_job(&c);
    c.model.experts = 8, c.model.experts_active = 2, c.model.expert_ffn = 12;
    c.learn.router_aux = 0.01;
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
        c.learn.ep = meshes[i][6];
        if (!job_run(&c, TRAIN_SFT, c.mesh.tp * c.mesh.cp * c.mesh.dp * c.mesh.pp, "train/loss", &parts)) return;
    }
    CHECK_EQ(parts.count, 10);
    if (!EXPECT(curve_distance(&whole, &parts) < 1e-5)) printf("    off by %g\n", curve_distance(&whole, &parts));
    job_wipe(folder);
}

/* Generators get the experts of all ranks: a second batch is answered by the weights of the first update. */
TEST(train_experts_on_several_ranks_are_refit) {
    static const int32_t meshes[][6] = {{1, 1, 2, 1, 2, 0}, {1, 2, 2, 1, 4, 2}, {2, 1, 2, 1, 2, 1}, {1, 1, 2, 2, 2, 2}};
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++) {
        train_config c, one;
        layout_outcome a = {0}, b = {0};
        replay_job(&c);
        c.run.steps = 2;
        c.grpo.replay = i % 2 ? TRAIN_REPLAY_ROLLOUT : TRAIN_REPLAY_OFF;
        c.grpo.refit = i > 1 ? TRAIN_REFIT_PULL : TRAIN_REFIT_COLLECTIVE;
        one = c;
        c.mesh.tp = meshes[i][0], c.mesh.cp = meshes[i][1], c.mesh.dp = meshes[i][2], c.mesh.pp = meshes[i][3];
        c.learn.ep = meshes[i][4];
        c.learn.shard = meshes[i][5];
        int32_t ranks = c.mesh.tp * c.mesh.cp * c.mesh.dp * c.mesh.pp + 1;
        if (layout_run_once(&one, TRAIN_GRPO, 2, &a) && layout_run_once(&c, TRAIN_GRPO, ranks, &b))
            layout_compare("refit of experts", &a, &b, 2e-5);
        free(a.moment), free(b.moment);
    }
}

TEST(train_experts_ranks_are_checked) {
    train_config c;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_mesh_layout layout;
    ravel_shape shape;
    layout_small_job(&c);
    c.model.experts = 8, c.model.experts_active = 2, c.model.expert_ffn = 12;
    CHECK(train_shape(&c.model, &shape, NULL) == RAVEL_OK);
    c.mesh.dp = 6;
    CHECK_OK(train_layout_plan(&c.mesh, 6, &shape, &layout, &err), &err);
    CHECK_EQ(train_layout_check_ep(&layout, &shape, 4, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "--ep 4 does not divide 6 ranks of dp x cp and 8 experts; --ep 2 does");
    CHECK(train_layout_check_ep(&layout, &shape, 2, &err) == RAVEL_OK);
}

/* ---- FLOPs ------------------------------------------------------------------------------------------------- */

static double multiplied; /* multiply-adds of products since it was 0 */
static void (*plain_matmul)(train_device *device, const train_matmul *product);
static void count_matmul(train_device *device, const train_matmul *product) {
    multiplied += (double)product->m * (double)product->n * (double)product->k;
    plain_matmul(device, product);
}

/* An adapter's u and d_u are made a second time for the gradients of A and B, and in the first layer nothing is made for the
 * input of q, k and v (net_lora.c). */
static double made_again(const train_params *p, int64_t adapter, int64_t tokens) {
    double weights = (double)adapter;
    for (int which = TRAIN_Q; which <= TRAIN_V; which++)
        for (int64_t i = 0; i < p->count; i++)
            for (int half = 0; half < 2; half++)
                if (p->tensors[i].offset == train_params_lora(p, 0, (train_layer_tensor)which, half))
                    weights -= (double)p->tensors[i].count;
    return 2 * weights * (double)tokens;
}

/* The products of an update, with active experts alone, are those of train_model_flops, which metrics and costs count too; and
 * those beside a frozen model. */
TEST(train_experts_products_are_what_flops_say) {
    static const char *const folders[] = {"qwen3_moe", "mixtral", "olmoe", "qwen3", "qwen3", "qwen3_moe"};
    for (int i = 0; i < 6; i++) {
        enum { N = 40 };
        char folder[128];
        const train_kernels *cpu;
        train_kernels counting;
        train_device *device = NULL;
        train_model *model = NULL;
        train_model_options o;
        ravel_shape shape;
        ravel_error err = RAVEL_ERROR_INIT;
        int32_t tokens[N], cu[] = {0, 15, N};
        (void)snprintf(folder, sizeof folder, "tests/golden/archs/%s", folders[i]);
        CHECK_OK(train_config_read(folder, &shape, &err), &err);
        CHECK_OK(train_kernels_find("ref", &cpu, &err), &err);
        counting = *cpu;
        plain_matmul = cpu->matmul;
        counting.matmul = count_matmul;
        train_device_options device_options = {.threads = 1};
        train_model_options_default(&o);
        o.budget = N;
        if (i > 3) o.lora = (train_lora){.rank = 3, .alpha = 8, .targets = train_lora_all()};
        const int64_t adapter = o.lora.rank ? train_trained_parameters(&shape, &o.lora, 1) : 0;
        CHECK_OK(counting.open(&device_options, &device, &err), &err);
        CHECK_OK(train_model_create(&counting, device, &shape, &o, &model, &err), &err);
        CHECK_OK(train_model_init(model, 3, 0.2, &err), &err);
        for (int t = 0; t < N; t++) tokens[t] = t;
        train_batch b = {.samples = 2, .tokens = tokens, .cu_seqlens = cu};
        multiplied = 0;
        CHECK_OK(train_model_learn(model, &b, NULL, NULL, &err), &err);
        double pairs = 0, attention = 6 * (double)ravel__shape_attention_width(&shape);
        for (int s = 0; s < 2; s++) pairs += (double)(cu[s + 1] - cu[s]) * (cu[s + 1] - cu[s] + 1) / 2;
        double told = train_model_flops(&shape, adapter, 2, (int64_t[]){15, 25}, N - 2) - attention * pairs;
        if (adapter) told += made_again(train_model_params(model), adapter, N);
        if (!EXPECT(fabs(2 * multiplied - told) < 1e-9 * told))
            printf("    %s: %.0f multiplied, %.0f told\n", folders[i], 2 * multiplied, told);
        train_model_free(model);
        counting.close(device);
    }
}
