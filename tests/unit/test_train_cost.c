/* What samples cost in the trainer: the model's own work by default, and ranks that wait less for it. */
#include "tests/unit/train_job.h"

#include "base/rng.h"
#include "train/model/hf/lora.h"
#include "train/run/config/cost.h"

#include <ravel/exchange.h>
#include <ravel/shape.h>

#include <math.h>
#include <stdlib.h>

/* linear / quadratic: the length at which attention costs as much as everything else. */
static double break_even(const train_config *c, train_kind kind, double scored) {
    ravel_shape shape;
    ravel_cost cost = {0, 0, 0};
    EXPECT(ravel_shape_named("qwen3-0.6b", &shape, NULL) == RAVEL_OK);
    EXPECT(train_cost_of_model(c, kind, &shape, scored, &cost, NULL) == RAVEL_OK);
    return (double)cost.linear / (double)cost.quadratic;
}

TEST(train_cost_counts_what_the_model_does) {
    train_config c;
    job_config(&c, "");
    double plain = break_even(&c, TRAIN_SFT, 1), full, dpo;
    CHECK(plain > 1000 && plain < 20000);
    CHECK(break_even(&c, TRAIN_SFT, 0.1) < plain); /* the head runs on fewer tokens */
    c.model.recompute = TRAIN_RECOMPUTE_FULL;
    full = break_even(&c, TRAIN_SFT, 1);
    CHECK(full < plain * 1.05 && full > plain * 0.9); /* layers and attention once more, the head not */
    c.model.recompute = TRAIN_RECOMPUTE_LIGHT;
    dpo = break_even(&c, TRAIN_DPO, 1);
    CHECK(dpo > plain && dpo < 1.1 * plain); /* the reference has no backward pass; answers are samples */
    double grpo = break_even(&c, TRAIN_GRPO, 1);
    CHECK(grpo == plain);
    c.policy.kl = 0.1;
    CHECK(break_even(&c, TRAIN_GRPO, 1) > grpo); /* the reference has no backward pass */
}

/* Frozen products have no gradient of their weights: 2 passes of 3, and those of the adapter; attention has all of its own. */
TEST(train_cost_counts_what_an_adapter_needs) {
    train_config c;
    job_config(&c, "");
    double whole = break_even(&c, TRAIN_SFT, 1);
    c.model.lora = (train_lora){.rank = 16, .alpha = 32, .targets = train_lora_all()};
    double adapted = break_even(&c, TRAIN_SFT, 1), head = break_even(&c, TRAIN_SFT, 0.5);
    CHECK(adapted > whole * 2 / 3 && adapted < whole * 0.7);
    CHECK(head < adapted * 0.95);
    c.model.lora.rank = 256; /* a third of the layers' weights, three times */
    CHECK(break_even(&c, TRAIN_SFT, 1) > adapted * 1.2);
    c.model.lora.rank = 16;
    c.model.recompute = TRAIN_RECOMPUTE_FULL;
    CHECK(break_even(&c, TRAIN_SFT, 1) > adapted);
    c.model.recompute = TRAIN_RECOMPUTE_LIGHT;
    c.policy.kl = 0.1;
    CHECK(break_even(&c, TRAIN_GRPO, 1) > adapted); /* the reference is the model itself: a forward pass */
}

TEST(train_idle_share_is_of_what_ranks_wait_for) {
    const double seconds[] = {1, 3, 3, 1}; /* two ranks, two micro-steps */
    CHECK(train_idle_share(seconds, 2, 2, 0) == 0);
    CHECK(fabs(train_idle_share(seconds, 2, 2, 1) - 1.0 / 3) < 1e-12);
    CHECK(train_idle_share((const double[]){4, 2}, 2, 1, 0) == 0.25);
    CHECK(train_idle_share(seconds, 4, 0, 1) == 0);
}

TEST(train_cost_words) {
    static const char *const good[] = {"model", "fit", "tokens", "5000:1", "5000:1:100", "qwen3-0.6b"};
    ravel_error err = RAVEL_ERROR_INIT;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) CHECK_OK(train_cost_check(good[i], &err), &err);
    CHECK(train_cost_check("modle", &err) != RAVEL_OK);
    CHECK_HAS(err.message, "cost \"modle\"");
}

/* ---- eight ranks, long-tailed lengths ------------------------------------------------------------------------ */

enum { RANKS = 8, BATCH = 256, UPDATES = 4 };

typedef struct trial {
    const char *cost;
    ravel_sync sync;
    double idle[UPDATES], predicted[UPDATES];
} trial;

/* A model whose time is that of the work of Qwen3-0.6B. */
static double seconds_of(const ravel_shape *shape, const ravel_micro_batch *micro) {
    int64_t tokens = 0;
    for (int64_t i = 0; i < micro->thd->samples_count; i++) tokens += micro->lengths[i];
    return micro->filler ? 0 : train_model_flops(shape, 0, micro->thd->samples_count, micro->lengths, tokens) / 1e15;
}

static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
    trial *t = user;
    train_config own;
    train_cost cost;
    ravel_shape shape;
    ravel_mesh *mesh = NULL;
    ravel_source *source = NULL;
    ravel_feed *feed = NULL;
    ravel_mesh_options layout;
    ravel_source_options rows;
    ravel_feed_options options;
    const ravel_feed_update *update;
    train_config_default(&own);
    ravel_mesh_options_default(&layout);
    ravel_source_options_default(&rows);
    ravel_feed_options_default(&options);
    own.run.cost = t->cost;
    own.plan.budget = 32768;
    own.plan.sync = t->sync;
    rows.mock = "{\"mode\": \"distribution\", \"type\": \"lognormal\", \"min_seq_len\": 16, \"max_seq_len\": 30000, "
                "\"mean_seq_len\": 3000, \"lognormal_sigma\": 1.3, \"count\": 1024}";
    rows.bos = rows.eos = -1;
    options.plan = &own.plan;
    options.owners = RAVEL_OWNERS_EVERY_RANK;
    options.samples = BATCH;
    ravel_status status = ravel_shape_named("qwen3-0.6b", &shape, err);
    if (!status) status = train_cost_open(&cost, &own, TRAIN_SFT, &shape, 1, comm, err);
    if (!status) status = ravel_mesh_create(comm, &layout, &mesh, err);
    if (!status) status = ravel_source_open(&rows, &source, err);
    if (!status) status = ravel_feed_create(mesh, source, &options, &feed, err);
    for (int u = 0; u < UPDATES && !status; u++) {
        double own_seconds[256], all[RANKS * 256];
        status = ravel_feed_next(feed, &update, err);
        int64_t steps = status ? 0 : update->mine.micro_steps;
        EXPECT(steps <= 256);
        for (int64_t m = 0; m < steps; m++) {
            ravel_micro_batch micro;
            if (!ravel_feed_micro(feed, 0, m, &micro, err)) own_seconds[m] = seconds_of(&shape, &micro);
        }
        if (!status) status = ravel_comm_allgather(comm, own_seconds, all, steps, RAVEL_F64, err);
        if (status || ravel_comm_rank(comm) != 0) continue;
        t->idle[u] = train_idle_share(all, RANKS, steps, t->sync == RAVEL_SYNC_MICRO_STEP);
        t->predicted[u] = t->sync == RAVEL_SYNC_MICRO_STEP ? update->plan->idle_micro_step : update->plan->idle_update;
    }
    ravel_feed_free(feed);
    ravel_source_free(source);
    ravel_mesh_free(mesh);
    train_cost_close(&cost);
    return status;
}

static double mean_idle(const char *word, ravel_sync sync, double *predicted) {
    trial t = {.cost = word, .sync = sync};
    ravel_error err = RAVEL_ERROR_INIT;
    double sum = 0;
    *predicted = 0;
    if (ravel_threads_run(RANKS, NULL, work, &t, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
    for (int u = 0; u < UPDATES; u++) {
        sum += t.idle[u] / UPDATES;
        *predicted += t.predicted[u] / UPDATES;
    }
    return sum;
}

/* Balanced by tokens, ranks wait, and the plan does not know; balanced by the work of the model, they hardly do, and it does. */
TEST(train_cost_of_the_model_lets_eight_ranks_wait_less) {
    for (int every = 0; every < 2; every++) {
        ravel_sync sync = every ? RAVEL_SYNC_MICRO_STEP : RAVEL_SYNC_UPDATE;
        double said_before, said, before = mean_idle("tokens", sync, &said_before),
                                  after = mean_idle("model", sync, &said);
        if (getenv("RAVEL_SHOW"))
            printf("    dp 8, %s: idle %.3f by tokens, %.3f by the model's cost (predicted %.3f and %.3f)\n",
                   every ? "micro-step" : "update", before, after, said_before, said);
        CHECK(before > 0.04 && after < before / 2 + 0.005);
        CHECK(fabs(said - after) < 0.02);
    }
}

/* ---- fitted ---------------------------------------------------------------------------------------------- */

/* Micro-batches of groups of answers to one prompt, on a clock that runs by 4 * tokens + squares / 1000 of what is computed. */
static void measure_groups(ravel__rng *rng, int share, ravel_cost_fit *fit) {
    enum { BATCHES = 64, MOST = 24 };
    ravel_cost_sample samples[BATCHES] = {{0}};
    ravel_error err = RAVEL_ERROR_INIT;
    for (int b = 0; b < BATCHES; b++) {
        int64_t lengths[MOST], prompt = 0, count = 1 + (int64_t)ravel__rng_below(rng, MOST);
        int32_t shared[MOST];
        double seconds = 30;
        for (int64_t i = 0; i < count; i++) {
            shared[i] = i % 8 && share ? (int32_t)prompt : 0;
            if (i % 8 == 0) prompt = 100 + (int64_t)ravel__rng_below(rng, 2000);
            lengths[i] = prompt + 1 + (int64_t)ravel__rng_below(rng, 1000);
            double length = (double)lengths[i], before = shared[i];
            seconds += 4 * (length - before) + (length * length - before * before) / 1000;
        }
        const ravel_thd thd = {.samples_count = count};
        const ravel_micro_batch micro = {.thd = &thd, .lengths = lengths, .shared = share ? shared : NULL, .cp = 1};
        samples[b].seconds = seconds / 1e6;
        train_cost_add_sizes(&samples[b], &micro);
    }
    *fit = (ravel_cost_fit){.size = sizeof *fit};
    CHECK_OK(ravel_cost_fit_make(samples, BATCHES, fit, &err), &err);
}

TEST(train_cost_fit_counts_what_samples_share_once) {
    ravel__rng rng;
    rng = ravel__rng_seed(check_seed());
    ravel_cost_fit fits[2];
    for (int share = 0; share < 2; share++) {
        measure_groups(&rng, share, &fits[share]);
        double even = (double)fits[share].cost.linear / (double)fits[share].cost.quadratic;
        CHECK(even > 4000 * 0.9 && even < 4000 * 1.1 && fits[share].error < 0.01);
    }
}

/* Fitted costs change the plans and nothing else; a run that goes on has the one that was found. */
TEST(train_cost_fit_changes_plans_alone) {
    curve curves[3];
    for (int i = 0; i < 3; i++) { /* by tokens; fitted; fitted, interrupted */
        char folder[64];
        train_config c;
        job_folder(folder);
        job_config(&c, folder);
        c.run.steps = 8;
        c.run.checkpoint_every = "6";
        c.run.cost = i ? "fit" : "tokens";
        c.sft.batch = 48;
        c.learn.shard = i == 1 ? TRAIN_SHARD_PARAMS : TRAIN_SHARD_NONE;
        if (!job_run(&c, TRAIN_SFT, 2, "train/loss", &curves[i])) return;
        if (i == 2) { /* as if it had died after its checkpoint at 6 */
            char doomed[128];
            (void)snprintf(doomed, sizeof doomed, "rm -rf '%s'/checkpoints/step-00000008", folder);
            CHECK(system(doomed) == 0);
            c.run.resume = 1;
            if (!job_run(&c, TRAIN_SFT, 2, "train/loss", &curves[i])) return;
        }
        curve idle;
        job_curve(folder, "plan/idle_measured", &idle);
        CHECK(idle.count == 8 && idle.values[7] >= 0 && idle.values[7] <= 1);
        job_wipe(folder);
    }
    CHECK(curves[0].count == 8 && curve_distance(&curves[0], &curves[1]) < 1e-4);
    CHECK(curve_distance(&curves[0], &curves[2]) < 1e-4);
}
