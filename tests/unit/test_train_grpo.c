/* GRPO as whole runs: on-policy after every refit, every option does to the figures what it says, errors reach all. */
#include "tests/unit/train_job.h"

#include "train/rl/prompts.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* A reward that differs within every group, whatever the model says: the place of the answer in the batch. */
#define BY_PLACE "sed -u 's/{\"id\": \\([0-9]*\\),.*/{\"id\": \\1, \"reward\": \\1}/'"
/* The length of the answer: equal wherever all answers of a group were cut off. */
#define BY_LENGTH "sed -u 's/{\"id\": \\([0-9]*\\),.*\"tokens\": \\([0-9]*\\),.*/{\"id\": \\1, \"reward\": \\2}/'"
/* One token in twenty ends an answer of a model that knows nothing. */
#define SOME_END "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"

enum { SHORT = 4 };

static void configure(train_config *c, const char *folder) {
    job_config(c, folder);
    c->run.steps = SHORT;
    c->run.checkpoint_end = 0;
    c->grpo.reward_command = BY_PLACE;
    c->grpo.eval_prompts = 0;
}

/* Runs with two trainers and reads a few metrics. */
static bool run(train_config *c, const char *const *metrics, curve *curves, int count) {
    char folder[64];
    job_folder(folder);
    c->run.run = folder;
    bool ran = job_run(c, TRAIN_GRPO, c->grpo.generators + 2, metrics[0], &curves[0]);
    for (int i = 1; ran && i < count; i++) job_curve(folder, metrics[i], &curves[i]);
    job_wipe(folder);
    return ran;
}

/* One metric of the update `step` (from 1); NAN where the run failed or has none. */
static double figure(train_config *c, const char *metric, int step) {
    curve k;
    return run(c, &metric, &k, 1) && k.count >= step ? k.values[step - 1] : NAN;
}

TEST(train_grpo_is_on_policy_after_every_refit) {
    static const char *const metrics[] = {"policy/ratio_mean", "token_mult_prob_error"};
    static const struct {
        double temperature, top_p;
        int32_t top_k, updates, recompute;
    } cases[] = {{1, 1, 0, 1, 0}, {0.7, 1, 0, 1, 0}, {1.3, 0.8, 20, 1, 0}, {1, 1, 0, 2, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        curve curves[2];
        train_config c;
        configure(&c, "");
        c.grpo.temperature = cases[i].temperature;
        c.grpo.top_p = cases[i].top_p;
        c.grpo.top_k = cases[i].top_k;
        c.grpo.updates = cases[i].updates;
        c.grpo.old = cases[i].recompute ? TRAIN_OLD_TRAINER : TRAIN_OLD_GENERATOR;
        if (!run(&c, metrics, curves, 2)) return;
        CHECK_EQ(curves[0].count, SHORT);
        for (int step = 0; step < SHORT; step++) {
            int fresh = step % cases[i].updates == 0; /* the first update of its batch */
            CHECK(fresh == (fabs(curves[0].values[step] - 1) < 1e-5));
            if (fresh) CHECK(fabs(curves[1].values[step] - 1) < 1e-4);
        }
    }
}

/* ---- what options do ------------------------------------------------------------------------------------ */

TEST(train_grpo_importance_weights_are_capped) {
    static const char *const metrics[] = {"train/grad_norm", "policy/correction_mean",
                                          "policy/correction_truncated_share"};
    curve plain, on[3], capped[3], cut[3];
    train_config c;
    configure(&c, "");
    c.run.steps = 1;
    c.grpo.old = TRAIN_OLD_TRAINER;
    if (!run(&c, metrics, &plain, 1)) return;
    c.grpo.old = TRAIN_OLD_AUTO; /* a correction does so by itself */
    c.policy.correction = RAVEL_CORRECTION_TIS;
    if (!run(&c, metrics, on, 3)) return; /* trainer and generator agree: nothing to correct */
    CHECK(curve_distance(&plain, &on[0]) < 1e-4 && fabs(on[1].values[0] - 1) < 1e-4 && on[2].values[0] == 0);
    c.grpo.top_p = 0.5; /* drawn from half of the distribution: weights are about 0.5 */
    if (!run(&c, metrics, cut, 3)) return;
    CHECK(cut[1].values[0] > 0.4 && cut[1].values[0] < 0.7 && cut[2].values[0] == 0);
    c.policy.correction_high = 0.1;
    if (!run(&c, metrics, capped, 3)) return;
    CHECK(fabs(capped[1].values[0] - 0.1) < 1e-9 && capped[2].values[0] == 1);
    CHECK(fabs(capped[0].values[0] / cut[0].values[0] - 0.1 / cut[1].values[0]) < 0.05);
}

TEST(train_grpo_overlong_answers_carry_no_loss) {
    static const char *const metrics[] = {"tokens/loss", "response/truncated_share", "rollout/tokens"};
    curve all[3], some[3];
    train_config c;
    configure(&c, "");
    c.run.steps = 1;
    c.grpo.stop = SOME_END;
    if (!run(&c, metrics, all, 3)) return;
    CHECK(all[1].values[0] > 0 && all[1].values[0] < 1 && all[0].values[0] == all[2].values[0]);
    c.grpo.scoring.overlong_filter = 1;
    if (!run(&c, metrics, some, 3)) return;
    double cut_off = all[1].values[0] * (double)(c.grpo.prompts * c.grpo.group_size * c.grpo.scoring.max_tokens);
    CHECK(fabs(some[0].values[0] - (all[0].values[0] - cut_off)) < 1e-6);
}

TEST(train_grpo_dynamic_sampling_replaces_flat_groups) {
    static const char *const metrics[] = {"reward/zero_variance_group_share", "batch/samples"};
    curve plain[2], dynamic[2];
    train_config c;
    configure(&c, "");
    c.run.steps = 2;
    c.grpo.stop = SOME_END;
    c.grpo.reward_command = BY_LENGTH;
    if (!run(&c, metrics, plain, 2)) return;
    CHECK(plain[0].values[0] + plain[0].values[1] > 0);
    c.grpo.dynamic_sampling = 1;
    if (!run(&c, metrics, dynamic, 2)) return;
    for (int i = 0; i < 2; i++) {
        CHECK(dynamic[0].values[i] == 0);
        CHECK(dynamic[1].values[i] == (double)(c.grpo.prompts * c.grpo.group_size));
    }
    c.grpo.reward_command = NULL; /* nobody is ever right: nothing to learn, and no end in tears */
    c.grpo.scoring.partial = 0;
    c.grpo.stop = NULL;
    CHECK(figure(&c, "batch/samples", 2) == 0);
}

/* Groups are kept for their accuracy: rewards that differ by length, or by how much of an answer is right, keep none. */
TEST(train_grpo_dynamic_sampling_looks_at_accuracy) {
    static const struct {
        const char *command;
        int keeps;
    } cases[] = {
        {"sed -u 's/{\"id\": \\([0-9]*\\),.*/{\"id\": \\1, \"reward\": \\1, \"accuracy\": 0}/'", 0},
        {"sed -u -E 's/\\{\"id\": ([0-9]*)([0-9]),.*/{\"id\": \\1\\2, \"reward\": 0.5, \"accuracy\": \\2}/'", 1},
        {NULL, 0}}; /* a task: nobody is ever right, but parts of answers are */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const char *const metrics[] = {"batch/samples", "rollout/tokens"};
        curve curves[2];
        train_config c;
        configure(&c, "");
        c.run.steps = 1;
        c.grpo.reward_command = cases[i].command;
        c.grpo.scoring.partial = 0.5;
        c.grpo.dynamic_sampling = 1;
        c.grpo.dynamic_rounds = 2;
        c.policy.overlong_buffer = 3; /* answers of different lengths are worth more and less */
        c.grpo.stop = cases[i].command ? SOME_END : NULL;
        if (!run(&c, metrics, curves, 2)) return;
        double whole = (double)(c.grpo.prompts * c.grpo.group_size);
        CHECK(curves[0].values[0] == (cases[i].keeps ? whole : 0));
        if (!cases[i].command) CHECK(curves[1].values[0] == 3 * whole * (double)c.grpo.scoring.max_tokens);
    }
}

/* The norm of the first and of the last update's gradient under a change of one option. */
TEST(train_grpo_loss_options_change_the_gradient) {
    for (int32_t ratio = RAVEL_RATIO_TOKEN; ratio <= RAVEL_RATIO_SEQUENCE; ratio++) {
        train_config c;
        curve plain, other[2];
        static const char *const metrics[] = {"train/grad_norm", "policy/kl_ref"};
        configure(&c, "");
        c.policy.ratio = ratio;
        if (!run(&c, metrics, &plain, 1)) return;
        c.grpo.entropy = 1;
        if (!run(&c, metrics, other, 1)) return;
        CHECK(curve_distance(&plain, other) > 1e-4);
        c.grpo.entropy = 0;
        c.policy.kl = 0.5;
        if (!run(&c, metrics, other, 2)) return;
        CHECK(other[1].values[0] < 1e-9 && other[1].values[SHORT - 1] > 1e-6); /* it begins as its own reference */
        CHECK(fabs(plain.values[SHORT - 1] / other[0].values[SHORT - 1] - 1) > 1e-4);
    }
}

TEST(train_grpo_async_is_one_version_behind) {
    curve k[2];
    static const char *const metrics[] = {"rollout/staleness_mean", "eval/reward"};
    train_config c;
    configure(&c, "");
    c.grpo.async = 1;
    c.grpo.eval_prompts = 3;
    c.grpo.eval_every = 3;
    if (!run(&c, metrics, k, 2)) return;
    CHECK_EQ(k[0].count, SHORT);
    for (int i = 0; i < SHORT; i++) CHECK(k[0].values[i] == (i > 0));
    CHECK_EQ(k[1].count, SHORT); /* at the third update and at the last */
}

/* Answers of any length, few slots, two generators: the bound holds for every token, it is used, nothing is lost, and a second
 * run is the same. */
TEST(train_grpo_async_keeps_its_bound) {
    enum { STEPS = 9, BOUND = 4 };
    static const char *const metrics[] = {
        "train/loss",    "rollout/token_staleness_max", "rollout/token_staleness_mean",
        "batch/samples", "rollout/continued_share",     "rollout/dropped_tokens_share"};
    for (int32_t generators = 1; generators <= 2; generators++) {
        curve k[2][6];
        double worst = 0, continued = 0;
        for (int again = 0; again < 2; again++) {
            train_config c;
            configure(&c, "");
            c.run.steps = STEPS;
            c.grpo.async = BOUND;
            c.grpo.generators = generators;
            c.grpo.slots = 30;
            c.grpo.stop = SOME_END;
            c.grpo.eval_prompts = 3;
            c.grpo.eval_every = 2;
            c.policy.correction = RAVEL_CORRECTION_TIS;
            c.grpo.scoring.max_tokens = 30;
            if (!run(&c, metrics, k[again], 6)) return;
        }
        CHECK_EQ(k[0][0].count, STEPS);
        for (int i = 0; i < STEPS; i++) {
            CHECK(k[0][0].values[i] == k[1][0].values[i]);
            CHECK(k[0][1].values[i] <= (i < BOUND ? i : BOUND) && k[0][2].values[i] <= k[0][1].values[i]);
            CHECK(k[0][3].values[i] == 24 && k[0][5].values[i] == 0);
            worst = fmax(worst, k[0][1].values[i]);
            continued += k[0][4].values[i];
        }
        CHECK(worst > 1 && continued > 0);
    }
}

/* If weights stay as they are, it changes nothing how far ahead generators are: answers that paused go on as if they had not. */
TEST(train_grpo_async_answers_go_on) {
    static const char *const metrics[] = {"response/length_mean", "policy/entropy", "rollout/continued_share"};
    curve k[2][3];
    double continued = 0;
    for (int i = 0; i < 2; i++) {
        train_config c;
        configure(&c, "");
        c.run.steps = 6;
        c.learn.lr = c.learn.min_lr = 1e-30;
        c.grpo.async = i ? 3 : 0;
        c.grpo.slots = 30;
        c.grpo.stop = SOME_END;
        c.grpo.scoring.max_tokens = 30;
        if (!run(&c, metrics, k[i], 3)) return;
        CHECK_EQ(k[i][0].count, 6);
    }
    for (int step = 0; step < 6; step++) {
        CHECK(k[0][0].values[step] == k[1][0].values[step]);
        CHECK(fabs(k[0][1].values[step] - k[1][1].values[step]) < 1e-5);
        continued += k[1][2].values[step];
        CHECK(k[0][2].values[step] == 0);
    }
    CHECK(continued > 0);
}

/* Distillation: the divergence from a teacher of another shape falls, on any mesh alike, without any reward. A model that is its
 * own teacher has nothing to learn. */
TEST(train_grpo_distils_a_teacher) {
    enum { STEPS = 24 };
    static const char *const metrics[] = {"policy/kl_ref", "train/grad_norm", "train/loss"};
    char folder[64], path[TRAIN_PATH];
    int64_t step;
    ravel_error err = RAVEL_ERROR_INIT;
    curve k, own[3], one[3], two[3], top[3];
    train_config c;
    job_folder(folder);
    job_config(&c, folder);
    c.model.hidden = 48; /* not the student's */
    c.model.heads = 4;
    c.run.steps = 30;
    if (!job_run(&c, TRAIN_SFT, 1, "train/loss", &k)) return;
    CHECK_OK(train_checkpoint_latest(folder, &step, path, &err), &err);
    configure(&c, "");
    c.run.steps = STEPS;
    c.grpo.reward_command = NULL;
    c.grpo.teacher = path;
    c.grpo.max_flat = 2;
    c.learn.lr = 0.02;
    c.grpo.prompts = 16;
    train_config_settle(&c, TRAIN_GRPO);
    CHECK_OK(train_config_check(&c, TRAIN_GRPO, &err), &err);
    if (!run(&c, metrics, one, 3)) return;
    CHECK_EQ(one[0].count, STEPS);
    CHECK(one[0].values[0] > 0.1 && one[0].values[STEPS - 1] < 0.7 * one[0].values[0]);
    for (int i = 0; i < 3; i++) CHECK(fabs(one[2].values[i] / one[0].values[i] - 1) < 1e-5); /* it is all of the loss */
    c.mesh.tp = 2;
    if (!run(&c, metrics, two, 3)) return;
    for (int i = 0; i < 3; i++) CHECK(fabs(two[1].values[i] / one[1].values[i] - 1) < 1e-3);
    c.mesh.tp = 1;
    c.grpo.teacher_topk = 8; /* the forward divergence of the likeliest tokens */
    CHECK_OK(train_config_check(&c, TRAIN_GRPO, &err), &err);
    if (!run(&c, metrics, top, 3)) return;
    CHECK(top[0].values[0] > 0.1 && top[0].values[STEPS - 1] < 0.5 * top[0].values[0]);
    for (int i = 0; i < 3; i++) CHECK(fabs(top[2].values[i] / top[0].values[i] - 1) < 1e-5);
    for (int i = 0; i < 4; i++) { /* vocabulary shards, stages, shards of samples, and other packing */
        c.mesh.tp = i == 0 ? 2 : 1;
        c.mesh.pp = i == 1 ? 2 : 1;
        c.mesh.cp = c.plan.cp = i == 2 ? 2 : 1;
        c.plan.budget = i == 3 ? 2 * c.plan.budget : c.plan.budget;
        if (!run(&c, metrics, two, 3)) return;
        for (int j = 0; j < 3; j++) CHECK(fabs(two[1].values[j] / top[1].values[j] - 1) < 1e-3);
        for (int j = 0; j < 3; j++) CHECK(fabs(two[0].values[j] / top[0].values[j] - 1) < 1e-3);
    }
    c.model.model = path;
    c.run.steps = 1;
    if (!run(&c, metrics, own, 3)) return;
    CHECK(own[0].values[0] < 1e-6 && own[1].values[0] < 1e-4);
    c.grpo.teacher_topk = 0;
    if (!run(&c, metrics, own, 3)) return;
    CHECK(own[0].values[0] < 1e-9 && own[1].values[0] < 1e-4);
    job_wipe(folder);
}

/* What a teacher's likeliest tokens need. */
TEST(train_grpo_likeliest_tokens_are_refused) {
    static const char *const says[] = {"say which model", "as a folder", "a loss per token", "share-prefix off"};
    for (int i = 0; i < 4; i++) {
        train_config c;
        ravel_error err = RAVEL_ERROR_INIT;
        configure(&c, "");
        c.grpo.teacher_topk = 4;
        c.grpo.teacher = i == 0 ? NULL : i == 1 ? "http://localhost:1" : "folder";
        if (i == 2) c.policy.ratio = RAVEL_RATIO_SEQUENCE;
        if (i == 3) c.learn.share_prefix = RAVEL_SHARE_ON;
        train_config_settle(&c, TRAIN_GRPO);
        CHECK_EQ(train_config_check(&c, TRAIN_GRPO, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, says[i]);
    }
}

/* Every option that changes the loop is run at least once, two generators, several updates a batch. */
TEST(train_grpo_options_run) {
    for (int i = 0; i < 7; i++) {
        curve loss;
        char folder[64];
        train_config c;
        job_folder(folder);
        job_config(&c, folder);
        c.run.steps = SHORT;
        c.run.checkpoint_end = i == 0;
        c.grpo.generators = 1 + i % 2;
        c.grpo.updates = 1 + i % 3;
        c.grpo.async = i == 1;
        c.grpo.dynamic_sampling = i == 2;
        c.grpo.scoring.overlong_filter = i == 3;
        c.grpo.old = i == 4 ? TRAIN_OLD_TRAINER : TRAIN_OLD_AUTO;
        c.policy.kl = i == 4 ? 0.1 : 0;
        c.policy.ratio = i == 5 ? RAVEL_RATIO_SEQUENCE : RAVEL_RATIO_TOKEN;
        c.policy.advantage = i % 3;
        c.policy.overlong_buffer = i == 3 ? 2 : 0;
        c.grpo.entropy = i >= 5 ? 0.01 : 0;
        c.grpo.top_k = i == 6 ? 20 : 0;
        c.grpo.eval_every = i == 1 ? 2 : 0;
        c.grpo.reward_command = i == 6 ? BY_LENGTH : NULL;
        if (!job_run(&c, TRAIN_GRPO, c.grpo.generators + 2, "train/loss", &loss)) {
            printf("    case %d\n", i);
            return;
        }
        CHECK_EQ(loss.count, SHORT);
        job_wipe(folder);
    }
}

/* ---- what is refused ------------------------------------------------------------------------------------ */

TEST(train_grpo_errors_reach_every_rank) {
    static const struct {
        const char *command, *stop, *says;
        int64_t max_tokens;
    } cases[] = {{"exit 7", NULL, "exit code 7", 6},
                 {NULL, "3,x", "stop-ids is \"3,x\"", 6},
                 {NULL, "320", "below 320", 6},
                 {NULL, NULL, "do not fit a budget of 128", 100}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[64];
        train_config c;
        ravel_error err = RAVEL_ERROR_INIT;
        job_folder(folder);
        job_config(&c, folder);
        c.grpo.reward_command = cases[i].command;
        c.grpo.stop = cases[i].stop;
        c.grpo.scoring.max_tokens = cases[i].max_tokens;
        job j = {.kind = TRAIN_GRPO, .config = &c};
        CHECK(ravel_threads_run(3, NULL, job_work, &j, &err) != RAVEL_OK);
        CHECK_HAS(err.message, cases[i].says);
        job_wipe(folder);
    }
}

/* Old log-probs of the trainer are those of the same pass, or of the same micro-batches before the first update: the ratio
 * of a batch's first update is 1 to the last bit, whatever the packing, and a reference that equals the model has no
 * divergence. */
TEST(train_grpo_first_ratio_is_exactly_one) {
    static const char *const metrics[] = {"policy/ratio_mean", "policy/ratio_max", "policy/approx_kl", "policy/kl_ref"};
    static const int32_t ratios[] = {RAVEL_RATIO_TOKEN, RAVEL_RATIO_SEQUENCE};
    for (int32_t updates = 1; updates <= 3; updates++)
        for (int i = 0; i < 2; i++) {
            curve curves[4];
            train_config c;
            configure(&c, "");
            c.grpo.updates = updates;
            c.policy.ratio = ratios[i];
            c.policy.kl = 0.1;
            c.run.steps = 2 * updates;
            if (!run(&c, metrics, curves, 4)) return;
            CHECK_EQ(curves[0].count, 2 * updates);
            for (int step = 0; step < curves[0].count; step++) {
                int first = step % updates == 0;
                CHECK((curves[0].values[step] == 1) == first);
                CHECK((curves[1].values[step] == 1) == first);
                CHECK((curves[2].values[step] == 0) == first);
            }
            CHECK(curves[3].values[0] == 0 && curves[3].values[curves[3].count - 1] > 0);
        }
}

/* A command that fails is asked again for what is missing; answers that it never scores are left out and counted. */
TEST(train_grpo_failing_rewards_are_retried_then_dropped) {
    static const char *const metrics[] = {"reward/dropped_share", "reward/mean"};
    char marker[64] = "/tmp/ravel-reward-XXXXXX", command[512];
    curve curves[2];
    train_config c;
    configure(&c, "");
    c.run.steps = 2;
    CHECK(mkdtemp(marker) != NULL);
    /* each of the two ranks' commands fails when it is started first */
    (void)snprintf(command, sizeof command,
                   "mkdir %s/a 2>/dev/null && exit 5; mkdir %s/b 2>/dev/null && exit 5; exec %s", marker, marker,
                   BY_PLACE);
    c.grpo.reward_command = command;
    if (!run(&c, metrics, curves, 2)) return;
    CHECK(curves[0].count == 2 && curves[0].values[0] == 0 && curves[0].values[1] == 0);
    job_wipe(marker);
    c.grpo.reward_command = "sed -u -n 's/{\"id\": \\([0-9]*[02468]\\),.*/{\"id\": \\1, \"reward\": \\1}/p'";
    c.grpo.max_dropped = 0.5;
    c.grpo.reward_seconds = 4; /* sed must have started by then, on a busy machine too */
    c.grpo.reward_retries = 1;
    c.run.steps = 1;
    if (!run(&c, metrics, curves, 2)) return;
    CHECK(curves[0].values[0] == 0.5 && curves[1].values[0] > 0);
    char folder[64];
    ravel_error err = RAVEL_ERROR_INIT;
    job_folder(folder);
    c.run.run = folder;
    c.grpo.max_dropped = 0.25; /* the default */
    job j = {.kind = TRAIN_GRPO, .config = &c};
    CHECK_EQ(ravel_threads_run(2 + c.grpo.generators, NULL, job_work, &j, &err), RAVEL_E_CALLBACK);
    CHECK_HAS(err.message, "12 of 24 answers could not be scored (--max-dropped 0.25): ");
    CHECK(j.summary.dropped == 0.5);
    job_wipe(folder);
}

/* Parts are measured here and by the command; each is a metric, and their weighted sum is the reward. */
TEST(train_grpo_rewards_have_parts) {
    static const char *const metrics[] = {"reward/mean",   "reward/ended",         "reward/length",
                                          "reward/digits", "response/length_mean", "response/truncated_share"};
    curve k[6];
    train_config c;
    configure(&c, "");
    c.run.steps = 2;
    c.grpo.stop = SOME_END;
    c.grpo.reward = "ended:2,exact,length:-0.5,digits:3";
    c.grpo.reward_command = "sed -u 's/{\"id\": \\([0-9]*\\),.*/{\"id\": \\1, \"rewards\": {\"digits\": \\1}}/'";
    c.grpo.scoring.partial = 0;
    if (!run(&c, metrics, k, 6)) return;
    double most = (double)(c.grpo.prompts * c.grpo.group_size - 1);
    for (int i = 0; i < 2; i++) {
        double ended = k[1].values[i], length = k[2].values[i], digits = k[3].values[i];
        CHECK(ended > 0 && fabs(ended - (1 - k[5].values[i])) < 1e-9);
        CHECK(fabs(length - k[4].values[i] / (double)c.grpo.scoring.max_tokens) < 1e-9);
        CHECK(digits > 0 && digits < most);
        CHECK(fabs(k[0].values[i] - (2 * ended - 0.5 * length + 3 * digits)) < 1e-6); /* nobody is right */
    }
}

/* With dynamic sampling further rounds add answers; those that are there are not scored again. */
TEST(train_grpo_each_answer_is_scored_once) {
    static const char *const metrics[] = {"rollout/tokens"};
    char lines[64] = "/tmp/ravel-lines-XXXXXX", command[512];
    curve tokens;
    int64_t scored = 0, generated = 0;
    train_config c;
    configure(&c, "");
    CHECK(close(mkstemp(lines)) == 0);
    (void)snprintf(command, sizeof command, "tee -a %s | %s", lines, BY_LENGTH);
    c.grpo.reward_command = command;
    c.grpo.stop = SOME_END;
    c.grpo.dynamic_sampling = 1;
    c.grpo.dynamic_rounds = 3;
    c.run.steps = 3;
    if (!run(&c, metrics, &tokens, 1)) return;
    FILE *f = fopen(lines, "r");
    char *line = NULL;
    size_t room = 0;
    while (f && getline(&line, &room, f) > 0) {
        const char *at = strstr(line, "\"tokens\": ");
        if (at) scored += atoll(at + 10);
    }
    for (int i = 0; i < tokens.count; i++) generated += (int64_t)tokens.values[i];
    CHECK(tokens.count == 3 && generated > 0);
    CHECK_EQ(scored, generated); /* all tokens that were generated, each seen once by the command */
    free(line);
    if (f) (void)fclose(f);
    (void)unlink(lines);
}

/* --async 1: a run that fails, before or after an update of the batch, saves the answers that wait, so that the resumed
 * run learns from those of the same weights: its losses are those of a run that never failed. */
TEST(train_grpo_async_goes_on_as_if_it_had_never_failed) {
    static const char one[] = "sed -u 's/{\"id\": \\([0-9]*\\),.*/{\"id\": \\1, \"reward\": 1}/'";
    static const struct {
        const char *command; /* of the run that fails */
        int32_t flat;
        ravel_status status;
        int saved;
    } cases[] = {
        {"sed -u 72q | sed -u 's/{\"id\": \\([0-9]*\\),.*/{\"id\": \\1, \"reward\": 1}/'", 0, RAVEL_E_CALLBACK, 3},
        {one, 3, RAVEL_E_DATA, 3}};
    curve whole, parts;
    for (size_t i = 0; i <= sizeof cases / sizeof *cases; i++) {
        char folder[64], path[TRAIN_PATH];
        int64_t step;
        ravel_error err = RAVEL_ERROR_INIT;
        train_config c;
        job_folder(folder);
        configure(&c, folder);
        c.run.steps = 5;
        c.grpo.async = 1;
        c.grpo.entropy = 0.05; /* the loss of equal rewards */
        c.grpo.reward_retries = 0;
        if (i > 0) {
            job j = {.kind = TRAIN_GRPO, .config = &c};
            c.grpo.reward_command = cases[i - 1].command;
            c.grpo.max_flat = cases[i - 1].flat;
            CHECK_EQ(ravel_threads_run(2, NULL, job_work, &j, &err), cases[i - 1].status);
            ravel_error_clear(&err);
            CHECK_OK(train_checkpoint_latest(folder, &step, path, &err), &err);
            CHECK_EQ(step, cases[i - 1].saved);
            c.run.resume = 1;
        }
        c.grpo.reward_command = one;
        c.grpo.max_flat = 0;
        if (!job_run(&c, TRAIN_GRPO, 2, "train/loss", i ? &parts : &whole)) return;
        CHECK(whole.count == 5 && fabs(whole.values[4]) > 0);
        if (i > 0) CHECK_EQ(parts.count, 5);
        for (int k = 0; i > 0 && k < 5; k++) CHECK(whole.values[k] == parts.values[k]);
        job_wipe(folder);
    }
}
