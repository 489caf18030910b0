/* Whole runs on a small model: the same losses however the work is cut, and after any interruption. */
#include "tests/unit/train_job.h"

#include "train/rl/rollout.h"

#include <ravel/safetensors.h>

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

enum { STEPS = JOB_STEPS };

/* ---- cutting -------------------------------------------------------------------------------------------- */

TEST(train_runs_have_one_loss_curve_however_they_are_cut) {
    static const struct {
        const char *what;
        int32_t ranks, single, zero, recompute;
        int64_t budget, fill;
    } cuts[] = {
        {"one rank, one bin", 1, 0, 0, 0, 1024, 1},
        {"one sample per micro-batch", 1, 1, 0, 0, 128, 1},
        {"two ranks", 2, 0, 0, 0, 128, 1},
        {"four ranks, sharded", 4, 0, 1, 0, 64, 1},
        {"fillers", 3, 0, 0, 0, 128, 9},
        {"recomputed", 2, 0, 1, 1, 96, 1},
    };
    curve first, other;
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        char folder[64];
        train_config c;
        job_folder(folder);
        job_config(&c, folder);
        c.run.checkpoint_end = 0;
        c.run.steps = check_rounds(STEPS, STEPS);
        c.run.single = cuts[i].single;
        c.learn.shard = cuts[i].zero;
        c.model.recompute = cuts[i].recompute;
        c.plan.budget = cuts[i].budget;
        c.plan.min_micro_steps = cuts[i].fill;
        if (!job_run(&c, TRAIN_SFT, cuts[i].ranks, "train/loss", i ? &other : &first)) return;
        if (i == 0) CHECK_EQ(first.count, c.run.steps);
        if (i > 0 && !EXPECT(curve_distance(&first, &other) < 1e-5))
            printf("    %s: %g\n", cuts[i].what, curve_distance(&first, &other));
        job_wipe(folder);
    }
    CHECK(first.values[STEPS - 1] < 0.7 * first.values[0]);
}

/* Micro-batches of --count samples, with a budget and without one: DPO over a file, whose longest pair makes the room. GRPO one
 * answer at a time. */
TEST(train_runs_by_count_and_one_by_one_have_the_same_losses) {
    curve curves[5];
    char pairs[64];
    job_pairs(pairs);
    for (int i = 0; i < 5; i++) {
        char folder[64];
        train_config c;
        job_folder(folder);
        job_config(&c, folder);
        c.run.steps = 6;
        c.run.checkpoint_end = 0;
        c.run.single = i == 4;
        c.grpo.entropy = 0.05;
        if (i < 3) {
            c.sft.task = NULL;
            c.source.data = pairs;
            c.source.bos = c.source.eos = -1;
            c.sft.batch = 8;
            c.plan.budget = i == 2 ? 0 : 128;
            c.plan.count = i ? 3 : 1;
            c.plan.method = i ? RAVEL_METHOD_FIXED_COUNT : RAVEL_METHOD_RAVEL;
        }
        if (!job_run(&c, i < 3 ? TRAIN_DPO : TRAIN_GRPO, 2, "train/loss", &curves[i])) return;
        curve bins;
        job_curve(folder, i < 3 ? "batch/bins" : "throughput/avg_seq_length", &bins);
        if (i == 1 || i == 2) CHECK(bins.values[5] >= 3 && bins.values[5] <= 4);
        job_wipe(folder);
    }
    CHECK(curve_distance(&curves[0], &curves[1]) < 1e-5 && curve_distance(&curves[0], &curves[2]) < 1e-5);
    CHECK(curve_distance(&curves[3], &curves[4]) < 1e-4);
    (void)unlink(pairs);
}

TEST(train_aggregation_modes_do_not_depend_on_ranks) {
    for (int32_t mode = 0; mode < 4; mode++) {
        curve curves[2];
        for (int i = 0; i < 2; i++) {
            char folder[64];
            train_config c;
            job_folder(folder);
            job_config(&c, folder);
            c.run.checkpoint_end = 0;
            c.run.steps = 8;
            c.learn.aggregation = mode;
            c.learn.norm = 6;
            if (!job_run(&c, TRAIN_SFT, i ? 3 : 1, "train/loss", &curves[i])) return;
            job_wipe(folder);
        }
        CHECK(curve_distance(&curves[0], &curves[1]) < 1e-5);
    }
}

/* ---- how long, how fast --------------------------------------------------------------------------------- */

/* Ten rows in fours, twice: five updates, which the schedule spans. --steps may end it earlier. */
TEST(train_epochs_settle_the_steps_and_the_schedule) {
    static const int64_t steps[] = {0, 3, 50}, expected[] = {5, 3, 5};
    for (int32_t i = 0; i < 3; i++) {
        char folder[64], path[96];
        curve lr;
        train_config c;
        job_folder(folder);
        (void)snprintf(path, sizeof path, "%s.jsonl", folder);
        FILE *f = fopen(path, "w");
        CHECK(f != NULL);
        for (int row = 0; row < 10; row++) (void)fprintf(f, "{\"prompt\": \"%d\", \"response\": \"abc\"}\n", row);
        (void)fclose(f);
        job_config(&c, folder);
        c.sft.task = NULL;
        c.source.data = path;
        c.sft.batch = 4;
        c.sft.epochs = 2;
        c.run.steps = steps[i];
        c.run.checkpoint_end = 0;
        c.learn.schedule = i;
        c.learn.warmup = 2;
        c.learn.min_lr = 0.001;
        if (!job_run(&c, TRAIN_SFT, 2, "train/learning_rate", &lr)) return;
        CHECK_EQ(lr.count, expected[i]);
        for (int step = 1; step <= lr.count; step++)
            CHECK(lr.values[step - 1] ==
                  train_learning_rate((train_schedule)i, c.learn.lr, c.learn.min_lr, 2, step, expected[i]));
        CHECK(unlink(path) == 0);
        CHECK(lr.values[0] < c.learn.lr && lr.values[2] == c.learn.lr && lr.values[lr.count - 1] > c.learn.min_lr);
        job_wipe(folder);
    }
}

/* ---- interruptions -------------------------------------------------------------------------------------- */

/* Stops after `first` steps, resumes to the end; the losses must be those of a run that was never stopped, bit for bit. */
static void check_resume(train_kind kind, int32_t ranks, int32_t zero, int32_t async, int64_t first, int64_t all) {
    curve whole, parts;
    for (int interrupted = 0; interrupted < 2; interrupted++) {
        char folder[64], every[24];
        train_config c;
        job_folder(folder);
        job_config(&c, folder);
        c.run.steps = all;
        (void)snprintf(every, sizeof every, "%lld", (long long)first);
        c.run.checkpoint_every = every; /* the same pauses in both runs */
        c.learn.shard = zero;
        c.grpo.async = async;
        if (async > 1) { /* answers of any length: some go on over a refit, also over the checkpoint */
            c.grpo.stop = "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16";
            c.grpo.scoring.max_tokens = 30;
            c.grpo.slots = 40;
            c.grpo.entropy = 0.05; /* the loss of equal rewards */
        }
        c.policy.correction = async ? RAVEL_CORRECTION_TIS : RAVEL_CORRECTION_NONE;
        if (interrupted) { /* a run that dies right after its checkpoint at `first`: later updates are done again */
            char doomed[128];
            if (!job_run(&c, kind, ranks, "train/loss", &parts)) return;
            (void)snprintf(doomed, sizeof doomed, "rm -rf '%s'/checkpoints/step-%08lld", folder, (long long)all);
            CHECK(system(doomed) == 0);
            c.run.resume = 1;
        }
        if (!job_run(&c, kind, ranks, "train/loss", interrupted ? &parts : &whole)) return;
        job_wipe(folder);
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
    check_resume(TRAIN_GRPO, 3, 0, 4, 6, 11);
}

/* Where a file of rollouts differs from what was written: eight bytes at a place of its header or of an array. */
typedef struct damage {
    const char *array; /* NULL: the dtype of the tokens */
    int64_t at, value;
    const char *sentence;
} damage;

static void damage_file(const char *path, const damage *d) {
    char header[4096] = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_safetensors *file = NULL;
    CHECK_OK(ravel_safetensors_open(path, NULL, &file, &err), &err);
    const ravel_safetensor *first = ravel_safetensors_at(file, 0), *t = ravel_safetensors_find(file, "tokens");
    if (d->array) t = ravel_safetensors_find(file, d->array);
    int64_t begin = (const char *)t->data - (const char *)first->data, size = 0;
    ravel_safetensors_free(file);
    FILE *f = fopen(path, "r+b");
    CHECK(f != NULL);
    CHECK_EQ(fread(&size, sizeof size, 1, f), 1);
    CHECK(size < (int64_t)sizeof header);
    CHECK_EQ(fread(header, (size_t)size, 1, f), 1);
    const char *dtype = strstr(header, "I32");
    CHECK(dtype != NULL);
    if (d->array) {
        CHECK_EQ(fseek(f, (long)(8 + size + begin + d->at), SEEK_SET), 0);
        CHECK_EQ(fwrite(&d->value, sizeof d->value, 1, f), 1);
    } else {
        CHECK_EQ(fseek(f, (long)(8 + (dtype - header)), SEEK_SET), 0);
        CHECK_EQ(fwrite("U32", 3, 1, f), 1);
    }
    CHECK_EQ(fclose(f), 0);
}

/* Rollouts that waited in a checkpoint are read back whole, or refused with a sentence. */
TEST(train_grpo_refuses_damaged_rollouts) {
    static const damage cases[] = {
        {"items", 0, INT64_C(1) << 40, "rollout 0 is outside of the"},
        {"items", sizeof(train_rollout), -1, "rollout 1 is outside of the"},
        {"items", 8, INT64_MAX, "rollout 0 is outside of the"},
        {"items", 8, 0, "rollout 0 is outside of the"},
        {"items", sizeof(train_rollout) + 16, INT64_C(1) << 40, "rollout 1 is outside of the"},
        {"tokens", 8, INT64_C(0x7fffffff), "token 2 is 2147483647; it must be from 0 to"},
        {"tokens", 8, -1, "token 2 is -1; it must be from 0 to"},
        {NULL, 0, 0, "it must hold a batch, items as i64 [n, 19], tokens as i32"},
    };
    char folder[64], path[TRAIN_PATH], command[2 * TRAIN_PATH];
    train_config c;
    curve k;
    job_folder(folder);
    job_config(&c, folder);
    c.run.steps = 2;
    c.run.checkpoint_every = "1";
    c.grpo.async = 1;
    c.policy.correction = RAVEL_CORRECTION_TIS;
    if (!job_run(&c, TRAIN_GRPO, 2, "train/loss", &k)) return;
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-00000001/rollouts.safetensors", folder);
    (void)snprintf(command, sizeof command, "rm -rf '%s'/checkpoints/step-00000002 && cp '%s' '%s/good'", folder, path,
                   folder);
    CHECK(system(command) == 0);
    c.run.resume = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        job j = {.kind = TRAIN_GRPO, .config = &c};
        (void)snprintf(command, sizeof command, "cp '%s/good' '%s'", folder, path);
        CHECK(system(command) == 0);
        damage_file(path, &cases[i]);
        CHECK_EQ(ravel_threads_run(2, NULL, job_work, &j, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, cases[i].sentence);
        CHECK_HAS(err.message, path);
    }
    job_wipe(folder);
}

/* The same for rollouts that generators had begun (--async above 1). */
TEST(train_grpo_refuses_damaged_rollouts_that_were_begun) {
    static const damage cases[] = {
        {"begun_items", 0, INT64_C(1) << 40, "rollout 0 is outside of the"},
        {"begun_items", offsetof(train_rollout, progress), 7, "rollout 0 that was begun is none"},
        {"begun_items", offsetof(train_rollout, prompt), 0, "rollout 0 that was begun is none"},
        {"begun_items", offsetof(train_rollout, generator), -1, "rollout 0 that was begun is none"},
        {"begun_tokens", 0, -1, "token 0 is -1; it must be from 0 to"},
    };
    char folder[64], path[TRAIN_PATH], command[2 * TRAIN_PATH];
    train_config c;
    curve k;
    job_folder(folder);
    job_config(&c, folder);
    c.run.steps = 5;
    c.run.keep = 9;
    c.run.checkpoint_every = "1";
    c.grpo.async = 4;
    if (!job_run(&c, TRAIN_GRPO, 2, "train/loss", &k)) return;
    (void)snprintf(path, sizeof path, "%s/checkpoints/step-00000001/rollouts.safetensors", folder);
    (void)snprintf(command, sizeof command, "rm -rf '%s'/checkpoints/step-0000000[2-5] && cp '%s' '%s/good'", folder,
                   path, folder);
    CHECK(system(command) == 0);
    c.run.resume = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        job j = {.kind = TRAIN_GRPO, .config = &c};
        (void)snprintf(command, sizeof command, "cp '%s/good' '%s'", folder, path);
        CHECK(system(command) == 0);
        damage_file(path, &cases[i]);
        CHECK_EQ(ravel_threads_run(2, NULL, job_work, &j, &err), RAVEL_E_DATA);
        CHECK_HAS(err.message, cases[i].sentence);
    }
    job_wipe(folder);
}

TEST(train_stops_when_told_and_goes_on) {
    static volatile int stop;
    char folder[64], pairs[64];
    train_config c;
    curve k;
    ravel_error err = RAVEL_ERROR_INIT;
    job_folder(folder);
    job_pairs(pairs);
    job_config(&c, folder);
    stop = 1;
    job j = {.kind = TRAIN_SFT, .config = &c, .stop = &stop};
    CHECK_EQ(ravel_threads_run(2, NULL, job_work, &j, &err), RAVEL_E_STATE); /* in the evaluation before it */
    CHECK_HAS(err.message, "before the first update");
    ravel_error_clear(&err);
    j.kind = TRAIN_DPO;
    c.sft.task = NULL;
    c.source.data = pairs;
    CHECK_OK(ravel_threads_run(2, NULL, job_work, &j, &err), &err);
    CHECK(j.summary.stopped && j.summary.steps == 1);
    stop = 0;
    c.run.resume = 1;
    c.run.steps = 5;
    CHECK_OK(ravel_threads_run(2, NULL, job_work, &j, &err), &err);
    CHECK(!j.summary.stopped && j.summary.steps == 5);
    job_curve(folder, "train/loss", &k);
    CHECK_EQ(k.count, 5);
    job_wipe(folder);
    (void)remove(pairs);
}

/* A run whose gradients are not finite leaves its weights alone, counts the updates, and gives up after a few. What was
 * learnt before is saved. */
TEST(train_gives_up_after_skipped_updates) {
    char folder[64], path[TRAIN_PATH];
    train_config c;
    int64_t step;
    ravel_error err = RAVEL_ERROR_INIT;
    job_folder(folder);
    job_config(&c, folder);
    c.run.max_skipped = 3;
    c.learn.lr = 1e30;
    c.learn.clip_grad = 0;
    job j = {.kind = TRAIN_SFT, .config = &c};
    CHECK_EQ(ravel_threads_run(2, NULL, job_work, &j, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, "is not finite");
    CHECK(j.summary.skipped == 4 && j.summary.steps > 4 && j.summary.steps < JOB_STEPS);
    CHECK_HAS(j.summary.checkpoint, "step-000000");
    ravel_error_clear(&err);
    CHECK_OK(train_checkpoint_latest(folder, &step, path, &err), &err);
    CHECK_EQ(step, j.summary.steps);
    job_wipe(folder);
}

/* A run that fails before its first update leaves no folder; one that fails later says where its work is. */
TEST(train_leaves_no_folder_of_a_run_that_never_began) {
    char folder[64], inside[96];
    train_config c;
    ravel_error err = RAVEL_ERROR_INIT;
    job_folder(folder);
    (void)snprintf(inside, sizeof inside, "%s/run", folder);
    job_config(&c, inside);
    c.run.sinks = "jsonl,nothing";
    job j = {.kind = TRAIN_SFT, .config = &c};
    CHECK_EQ(ravel_threads_run(2, NULL, job_work, &j, &err), RAVEL_E_ARGUMENT);
    CHECK(access(inside, F_OK) != 0);
    job_wipe(folder);
}

/* The totals of a run go on after it is resumed. */
TEST(train_totals_go_on_after_a_resume) {
    char folder[64];
    curve elapsed, forward;
    train_config c;
    job_folder(folder);
    job_config(&c, folder);
    c.run.steps = 3;
    if (!job_run(&c, TRAIN_SFT, 1, "run/elapsed_sec", &elapsed)) return;
    c.run.steps = 6;
    c.run.resume = 1;
    if (!job_run(&c, TRAIN_SFT, 1, "time_total/forward_sec", &forward)) return;
    job_curve(folder, "run/elapsed_sec", &elapsed);
    CHECK(elapsed.count == 6 && forward.count == 6);
    for (int i = 1; i < 6; i++)
        CHECK(elapsed.values[i] > elapsed.values[i - 1] && forward.values[i] > forward.values[i - 1]);
    job_wipe(folder);
}

/* --keep-best: the checkpoint with the lowest evaluation loss stays, also when newer ones push the others out. */
TEST(train_keeps_the_best_checkpoint) {
    char folder[64], path[TRAIN_PATH];
    train_config c;
    curve eval;
    job_folder(folder);
    job_config(&c, folder);
    c.run.keep = 1;
    c.run.keep_best = 1;
    c.run.steps = 12;
    c.sft.eval_every = 2;
    c.learn.lr = 0.05; /* so high that the loss rises again now and then */
    c.learn.schedule = TRAIN_CONSTANT;
    job j = {.kind = TRAIN_SFT, .config = &c};
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_threads_run(2, NULL, job_work, &j, &err), &err);
    job_curve(folder, "eval/loss", &eval);
    int best = 2;
    for (int step = 2; step <= 12; step += 2)
        if (eval.values[step - 1] < eval.values[best - 1]) best = step;
    CHECK_OK(train_checkpoint_folder(folder, best, path, &err), &err);
    CHECK_STR(j.summary.best, path);
    CHECK(access(path, F_OK) == 0 && j.summary.best_value == eval.values[best - 1]);
    CHECK(j.summary.eval_first > log(100) && j.summary.eval_loss == eval.values[11]); /* new weights know nothing */
    CHECK_OK(train_checkpoint_folder(folder, 12, path, &err), &err);
    CHECK(access(path, F_OK) == 0);
    job_wipe(folder);
}

/* The same for the greedy reward of GRPO: here that of a command, which falls from answer to answer and rises again. */
TEST(train_keeps_the_checkpoint_with_the_best_reward) {
    static const double rewards[] = {0, 0.25, 0.75, 0.5,
                                     0.75}; /* before, then after each update: of equal ones the first */
    char folder[64], path[TRAIN_PATH], command[512];
    train_config c;
    curve eval;
    job_folder(folder);
    job_config(&c, folder);
    c.run.keep = 1;
    c.run.keep_best = 1;
    c.run.steps = 4;
    c.grpo.eval_every = 1;
    c.grpo.eval_prompts = 1; /* a batch of one line is an evaluation */
    c.grpo.max_flat = 0;
    /* an evaluation is one line, then come those of a batch */
    (void)snprintf(
        command, sizeof command,
        "set -- %g %g %g %g %g; left=0; while read -r line; do if [ $left -gt 0 ]; then left=$((left - 1)); v=0; "
        "else v=$1; [ $# = 1 ] || shift; left=%d; fi; id=${line#*: }; "
        "echo \"{\\\"id\\\": ${id%%%%,*}, \\\"reward\\\": $v}\"; done",
        rewards[0], rewards[1], rewards[2], rewards[3], rewards[4], (int)(c.grpo.prompts * c.grpo.group_size));
    c.grpo.reward_command = command;
    job j = {.kind = TRAIN_GRPO, .config = &c};
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel_threads_run(2, NULL, job_work, &j, &err), &err); /* one trainer, one generator: one command */
    job_curve(folder, "eval/reward", &eval);
    CHECK(eval.count == 4 && j.summary.best_value == 0.75 && j.summary.reward_first == 0);
    CHECK_OK(train_checkpoint_folder(folder, 2, path, &err), &err);
    CHECK_STR(j.summary.best, path);
    CHECK(access(path, F_OK) == 0);
    CHECK_OK(train_checkpoint_folder(folder, 4, path, &err), &err);
    CHECK(access(path, F_OK) == 0);
    job_wipe(folder);
}
