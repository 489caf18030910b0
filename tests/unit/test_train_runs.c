/* Whole runs on a small model: the same losses however the work is cut, and after any interruption. */
#include "tests/unit/check.h"

#include "train/grpo.h"
#include "train/sft.h"

#include <ravel/comm.h>
#include <ravel/json.h>

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEPS = 50 };

typedef struct curve {
    double values[4 * STEPS];
    int count;
} curve;

typedef struct job {
    train_kind kind;
    const train_config *config;
    train_summary summary;
    const volatile int *stop;
} job;

static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
    job *j = user;
    train_summary summary;
    train_hooks hooks = {.stop = j->stop, .config_text = "{}"};
    ravel_status status = j->kind == TRAIN_SFT ? train_sft(j->config, comm, &hooks, &summary, err)
                                               : train_grpo(j->config, comm, &hooks, &summary, err);
    if (!status && ravel_comm_rank(comm) == 0) j->summary = summary;
    return status;
}

static void small(train_config *c, const char *folder) {
    train_config_default(c);
    c->run.run = folder;
    c->run.quiet = 1;
    c->run.sinks = "jsonl";
    c->run.steps = STEPS;
    c->run.keep = 2;
    c->model.kernels = "cpu";
    c->model.hidden = 32;
    c->model.layers = 2;
    c->model.heads = 2;
    c->model.kv_heads = 1;
    c->model.head_dim = 16;
    c->model.ffn = 64;
    c->learn.lr = 0.003;
    c->sft.task = "sort";
    c->sft.batch = 24;
    c->plan.budget = 128;
    c->grpo.task = "sort";
    c->grpo.prompts = 6;
    c->grpo.group_size = 4;
    c->grpo.max_tokens = 6;
    c->grpo.eval_prompts = 4;
}

static void folder_name(char *path) {
    strcpy(path, "/tmp/ravel-train-XXXXXX");
    if (!mkdtemp(path)) check_fail(__FILE__, __LINE__, "no scratch folder");
}

static void wipe(const char *path) {
    char command[256];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", path);
    EXPECT(system(command) == 0);
}

/* A metric of every update, from metrics.jsonl; a step that is there twice (after a resume) counts once, the last. */
static void read_curve(const char *folder, const char *metric, curve *c) {
    char path[256], *line = NULL;
    size_t room = 0;
    ravel_json *doc = NULL;
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *f = fopen(path, "r");
    c->count = 0;
    for (ssize_t n; f && (n = getline(&line, &room, f)) > 0;) {
        int64_t step;
        double value;
        if (ravel_json_parse(line, (size_t)n, NULL, &doc, NULL)) continue;
        const ravel_json_node *root = ravel_json_root(doc);
        if (!ravel_json_integer(ravel_json_get(doc, root, "step"), &step) || step < 1 || step > 4 * STEPS) continue;
        if (!ravel_json_real(ravel_json_get(doc, root, metric), &value)) continue;
        c->values[step - 1] = value;
        if (step > c->count) c->count = (int)step;
    }
    ravel_json_free(doc);
    free(line);
    if (f) (void)fclose(f);
}

static bool run_on(const train_config *config, train_kind kind, int32_t ranks, const char *metric, curve *c) {
    job j = {.kind = kind, .config = config};
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel_threads_run(ranks, NULL, work, &j, &err) != RAVEL_OK) {
        check_fail(__FILE__, __LINE__, "%s", err.message);
        return false;
    }
    read_curve(config->run.run, metric, c);
    return true;
}

static double worst_difference(const curve *a, const curve *b) {
    double worst = a->count == b->count && a->count > 0 ? 0 : INFINITY;
    for (int i = 0; i < a->count && i < b->count; i++) {
        double d = fabs(a->values[i] - b->values[i]) / (1e-12 + fabs(a->values[i]));
        if (d > worst) worst = d;
    }
    return worst;
}

/* ---- cutting -------------------------------------------------------------------------------------------- */

TEST(train_runs_have_one_loss_curve_however_they_are_cut) {
    static const struct {
        const char *what;
        int32_t ranks, single, zero, recompute;
        int64_t budget, fill;
    } cuts[] = {
        {"one rank, one bin", 1, 0, 0, 0, 1024, 1},
        {"one sample a micro-batch", 1, 1, 0, 0, 128, 1},
        {"two ranks", 2, 0, 0, 0, 128, 1},
        {"four ranks, sharded", 4, 0, 1, 0, 64, 1},
        {"fillers", 3, 0, 0, 0, 128, 9},
        {"recomputed", 2, 0, 1, 1, 96, 1},
    };
    curve first, other;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        char folder[64];
        train_config c;
        folder_name(folder);
        small(&c, folder);
        c.run.checkpoint_end = 0;
        c.sft.single = cuts[i].single;
        c.learn.zero = cuts[i].zero;
        c.model.recompute = cuts[i].recompute;
        c.plan.budget = cuts[i].budget;
        c.plan.min_micro_steps = cuts[i].fill;
        if (!run_on(&c, TRAIN_SFT, cuts[i].ranks, "train/loss", i ? &other : &first)) return;
        if (i == 0) CHECK_EQ(first.count, STEPS);
        if (i > 0 && !EXPECT(worst_difference(&first, &other) < 1e-5))
            printf("    %s: %g\n", cuts[i].what, worst_difference(&first, &other));
        wipe(folder);
    }
    CHECK(first.values[STEPS - 1] < 0.7 * first.values[0]);
}

TEST(train_aggregation_modes_do_not_depend_on_ranks) {
    for (int32_t mode = 0; mode < 4; mode++) {
        curve curves[2];
        for (int i = 0; i < 2; i++) {
            char folder[64];
            train_config c;
            folder_name(folder);
            small(&c, folder);
            c.run.checkpoint_end = 0;
            c.run.steps = 8;
            c.learn.aggregation = mode;
            c.learn.norm = 6;
            if (!run_on(&c, TRAIN_SFT, i ? 3 : 1, "train/loss", &curves[i])) return;
            wipe(folder);
        }
        CHECK(worst_difference(&curves[0], &curves[1]) < 1e-5);
    }
}

/* ---- interruptions -------------------------------------------------------------------------------------- */

/* Stops after `first` steps, resumes to the end; the losses must be those of a run that was never stopped, bit for bit. */
static void check_resume(train_kind kind, int32_t ranks, int32_t zero, int32_t async, int64_t first, int64_t all) {
    curve whole, parts;
    for (int interrupted = 0; interrupted < 2; interrupted++) {
        char folder[64];
        train_config c;
        folder_name(folder);
        small(&c, folder);
        c.run.steps = all;
        c.run.checkpoint_every = first; /* the same pauses in both runs */
        c.learn.zero = zero;
        c.grpo.async = async;
        c.policy.tis = async ? 2 : 0;
        if (interrupted) { /* a run that dies right after its checkpoint at `first`: later updates are done again */
            char doomed[128];
            if (!run_on(&c, kind, ranks, "train/loss", &parts)) return;
            (void)snprintf(doomed, sizeof doomed, "rm -rf '%s'/checkpoints/step-%08lld", folder, (long long)all);
            CHECK(system(doomed) == 0);
            c.run.resume = 1;
        }
        if (!run_on(&c, kind, ranks, "train/loss", interrupted ? &parts : &whole)) return;
        wipe(folder);
    }
    CHECK_EQ(whole.count, all);
    CHECK_EQ(parts.count, all);
    for (int i = 0; i < all; i++) CHECK(whole.values[i] == parts.values[i]);
}

TEST(train_sft_resumes_bit_for_bit) {
    check_resume(TRAIN_SFT, 1, 0, 0, 7, 12);
    check_resume(TRAIN_SFT, 3, 1, 0, 6, 11);
}

TEST(train_grpo_resumes_bit_for_bit) {
    check_resume(TRAIN_GRPO, 3, 0, 0, 4, 7);
    check_resume(TRAIN_GRPO, 3, 1, 1, 4, 7);
}

TEST(train_stops_when_told_and_goes_on) {
    static volatile int stop;
    char folder[64];
    train_config c;
    curve k;
    ravel_error err = RAVEL_ERROR_INIT;
    folder_name(folder);
    small(&c, folder);
    stop = 1;
    job j = {.kind = TRAIN_SFT, .config = &c, .stop = &stop};
    CHECK_OK(ravel_threads_run(2, NULL, work, &j, &err), &err);
    CHECK(j.summary.stopped && j.summary.steps == 1);
    stop = 0;
    c.run.resume = 1;
    c.run.steps = 5;
    CHECK_OK(ravel_threads_run(2, NULL, work, &j, &err), &err);
    CHECK(!j.summary.stopped && j.summary.steps == 5);
    read_curve(folder, "train/loss", &k);
    CHECK_EQ(k.count, 5);
    wipe(folder);
}

/* ---- GRPO ----------------------------------------------------------------------------------------------- */

TEST(train_grpo_is_on_policy_after_every_refit) {
    curve ratio, gap;
    char folder[64];
    train_config c;
    folder_name(folder);
    small(&c, folder);
    c.run.steps = 6;
    c.run.checkpoint_end = 0;
    if (!run_on(&c, TRAIN_GRPO, 4, "policy/ratio_mean", &ratio)) return; /* three trainers */
    read_curve(folder, "token_mult_prob_error", &gap);
    CHECK_EQ(ratio.count, 6);
    for (int i = 0; i < 6; i++) CHECK(fabs(ratio.values[i] - 1) < 1e-5 && fabs(gap.values[i] - 1) < 1e-4);
    wipe(folder);
}

/* Every option that changes the loop is run at least once, two generators, several updates a batch. */
TEST(train_grpo_options_run) {
    for (int i = 0; i < 7; i++) {
        curve loss;
        char folder[64];
        train_config c;
        folder_name(folder);
        small(&c, folder);
        c.run.steps = 4;
        c.run.checkpoint_end = i == 0;
        c.grpo.generators = 1 + i % 2;
        c.grpo.updates = 1 + i % 3;
        c.grpo.async = i == 1;
        c.grpo.dynamic_sampling = i == 2;
        c.grpo.overlong_filter = i == 3;
        c.grpo.recompute_old = i == 4;
        c.policy.kl = i == 4 ? 0.1 : 0;
        c.policy.ratio = i == 5 ? TRAIN_RATIO_SEQUENCE : TRAIN_RATIO_TOKEN;
        c.policy.advantage = i % 3;
        c.policy.overlong_buffer = i == 3 ? 2 : 0;
        c.grpo.entropy = i == 6 ? 0.01 : 0;
        c.grpo.top_k = i == 6 ? 20 : 0;
        c.grpo.eval_every = i == 1 ? 2 : 0;
        c.grpo.reward_command =
            i == 6 ? "sed -u 's/{\"id\": \\([0-9]*\\),.*\"tokens\": \\([0-9]*\\),.*/{\"id\": \\1, \"reward\": \\2}/'"
                   : NULL;
        if (!run_on(&c, TRAIN_GRPO, c.grpo.generators + 2, "train/loss", &loss)) {
            printf("    case %d\n", i);
            return;
        }
        CHECK_EQ(loss.count, 4);
        wipe(folder);
    }
}

TEST(train_grpo_errors_reach_every_rank) {
    char folder[64];
    train_config c;
    ravel_error err = RAVEL_ERROR_INIT;
    folder_name(folder);
    small(&c, folder);
    c.grpo.reward_command = "exit 7";
    job j = {.kind = TRAIN_GRPO, .config = &c};
    CHECK(ravel_threads_run(3, NULL, work, &j, &err) != RAVEL_OK);
    CHECK_HAS(err.message, "exit code 7");
    wipe(folder);
}
