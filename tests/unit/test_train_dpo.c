/* Preference pairs: the loss by hand and by finite differences, whole runs that begin at log 2, do not depend on how the
 * work is cut, and go on bit for bit after an interruption. */
#include "tests/unit/train_job.h"

#include "train/rl/dpo.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

TEST(dpo_loss_and_its_slope) {
    double slope, ignored;
    CHECK(train_dpo_loss(0, &slope) == log(2.0) && slope == -0.5);
    for (double margin = -40; margin <= 40; margin += 0.37) {
        double h = 1e-5, loss = train_dpo_loss(margin, &slope);
        double difference = (train_dpo_loss(margin + h, &ignored) - train_dpo_loss(margin - h, &ignored)) / (2 * h);
        CHECK(fabs(loss + log(1 / (1 + exp(-margin)))) < 1e-9 * (1 + loss) || margin < -30);
        CHECK(fabs(difference - slope) < 1e-6);
    }
    CHECK(isfinite(train_dpo_loss(-1e6, &slope)) && slope == -1);
    CHECK(train_dpo_loss(1e6, &slope) == 0 && slope <= 0);
}

enum { ROWS = JOB_PAIRS };

static void configure(train_config *c, const char *folder, const char *data) {
    job_config(c, folder);
    c->sft.task = NULL;
    c->source.data = data;
    c->sft.batch = 8;
    c->run.steps = 12;
    c->dpo.beta = 0.5;
}

static bool run_dpo(const train_config *from, int32_t ranks, curve *loss, curve *accuracy, curve *margin) {
    char folder[64];
    curve chosen, rejected;
    train_config c = *from;
    job_folder(folder);
    c.run.run = folder;
    bool ran = job_run(&c, TRAIN_DPO, ranks, "train/loss", loss);
    job_curve(folder, "dpo/accuracy", accuracy);
    job_curve(folder, "dpo/margin", margin);
    job_curve(folder, "dpo/chosen_reward", &chosen);
    job_curve(folder, "dpo/rejected_reward", &rejected);
    ran &= EXPECT(chosen.count == margin->count && rejected.count == margin->count && chosen.count > 0);
    for (int i = 0; i < chosen.count; i++) /* both from one base: the margin is what is between them */
        ran &= EXPECT(fabs(chosen.values[i] - rejected.values[i] - margin->values[i]) < 1e-6);
    ran = ran && EXPECT(chosen.values[chosen.count - 1] > 0 && rejected.values[chosen.count - 1] < 0);
    job_wipe(folder);
    return ran;
}

TEST(train_dpo_begins_at_log_two_however_it_is_cut) {
    char path[64];
    curve loss, first, accuracy, margin;
    static const struct {
        int32_t ranks;
        int64_t budget;
    } cuts[] = {{1, 1024}, {1, 24}, {2, 64}, {3, 48}};
    job_pairs(path);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        train_config c;
        configure(&c, "", path);
        c.plan.budget = cuts[i].budget;
        if (!run_dpo(&c, cuts[i].ranks, &loss, &accuracy, &margin)) return;
        CHECK_EQ(loss.count, 12);
        CHECK(fabs(loss.values[0] - log(2.0)) < 1e-7 && margin.values[0] == 0 && accuracy.values[0] == 0);
        CHECK(loss.values[11] < 0.9 * log(2.0) && accuracy.values[11] > 0.9 && margin.values[11] > 0);
        if (i == 0) first = loss;
        CHECK(curve_distance(&first, &loss) < 1e-4);
    }
    (void)unlink(path);
}

TEST(train_dpo_resumes_bit_for_bit) {
    char path[64], folder[64], folder2[64];
    curve whole, parts;
    train_config c;
    job_pairs(path);
    job_folder(folder);
    job_folder(folder2);
    configure(&c, folder, path);
    if (!job_run(&c, TRAIN_DPO, 2, "train/loss", &whole)) return;
    c.run.run = folder2;
    c.run.checkpoint_every = "5";
    if (!job_run(&c, TRAIN_DPO, 2, "train/loss", &parts)) return;
    char gone[128];
    (void)snprintf(gone, sizeof gone, "rm -rf '%s'/checkpoints/step-%08d", folder2, 12);
    CHECK(system(gone) == 0);
    c.run.resume = 1;
    if (!job_run(&c, TRAIN_DPO, 2, "train/loss", &parts)) return;
    CHECK_EQ(parts.count, 12);
    for (int i = 0; i < 12; i++) CHECK(whole.values[i] == parts.values[i]);
    job_wipe(folder);
    job_wipe(folder2);
    (void)unlink(path);
}

/* All pairs have one prompt, which is computed once in each micro-batch: metrics count what is computed, and a budget
 * holds more pairs. */
TEST(train_dpo_pairs_share_with_one_another) {
    enum { PROMPT = 40, PAIRS = 16 };
    char path[64] = "/tmp/ravel-pairs-XXXXXX", folder[64];
    FILE *f = fdopen(mkstemp(path), "w");
    for (int row = 0; row < PAIRS; row++) {
        (void)fprintf(f, "{\"input_ids\": [");
        for (int i = 0; i < 2 * (PROMPT + 2); i++) {
            int at = i % (PROMPT + 2), answer = i / (PROMPT + 2);
            (void)fprintf(f, "%s%d", i ? ", " : "", at < PROMPT ? at : at == PROMPT ? 100 + answer : row);
        }
        (void)fprintf(f, "], \"cu_seqlens\": [0, %d, %d], \"prompt_length\": [%d, %d]}\n", PROMPT + 2, 2 * (PROMPT + 2),
                      PROMPT, PROMPT);
    }
    (void)fclose(f);
    curve loss[2], tokens[2], shared[2], steps[2];
    for (int on = 0; on < 2; on++) {
        train_config c;
        job_folder(folder);
        configure(&c, folder, path);
        c.sft.batch = PAIRS;
        c.run.steps = 1;
        c.plan.budget = 120; /* a pair has 84 tokens, of which 44 are different */
        c.learn.share_prefix = on ? RAVEL_SHARE_ON : RAVEL_SHARE_OFF;
        if (!job_run(&c, TRAIN_DPO, 1, "train/loss", &loss[on])) return;
        job_curve(folder, "tokens/actual", &tokens[on]);
        job_curve(folder, "tokens/shared", &shared[on]);
        job_curve(folder, "batch/micro_steps", &steps[on]);
        job_wipe(folder);
    }
    CHECK(tokens[0].values[0] == PAIRS * 84 && tokens[1].values[0] == PAIRS * 84 && shared[0].values[0] == 0);
    CHECK(shared[1].values[0] == (2 * PAIRS - 1) * PROMPT); /* one bin */
    CHECK(steps[0].values[0] == PAIRS && steps[1].values[0] == 1);
    CHECK(fabs(loss[0].values[0] - loss[1].values[0]) < 1e-6);
    (void)unlink(path);
}

TEST(train_dpo_rows_must_be_pairs) {
    char path[64] = "/tmp/ravel-pairs-XXXXXX", folder[64];
    train_config c;
    ravel_error err = RAVEL_ERROR_INIT;
    FILE *f = fdopen(mkstemp(path), "w");
    (void)fprintf(f, "{\"prompt\": \"a\", \"response\": \"b\"}\n");
    (void)fclose(f);
    job_folder(folder);
    configure(&c, folder, path);
    job j = {.kind = TRAIN_DPO, .config = &c};
    CHECK_EQ(ravel_threads_run(1, NULL, job_work, &j, &err), RAVEL_E_DATA);
    CHECK_HAS(err.message, ":1: this row is not a pair");
    job_wipe(folder);
    (void)unlink(path);
}

/* Every kind of ranks: the curves of one rank. Answers of context-parallel ranks begin anywhere in a chunk. */
TEST(train_dpo_on_meshes) {
    static const struct {
        int32_t tp, cp, pp, vpp, dp, pool;
    } meshes[] = {{1, 1, 1, 1, 1, 0}, {2, 1, 2, 1, 1, 0}, {1, 1, 2, 2, 2, 0}, {1, 2, 1, 1, 1, 0}, {1, 4, 1, 1, 1, 0},
                  {2, 3, 1, 1, 1, 0}, {1, 2, 2, 1, 2, 0}, {1, 1, 1, 1, 2, 2}, {1, 1, 1, 1, 4, 4}};
    enum { MESHES = sizeof meshes / sizeof *meshes };
    curve loss[MESHES], accuracy, margin[MESHES];
    char data[64];
    train_config c;
    job_pairs(data);
    for (int i = 0; i < MESHES; i++) {
        configure(&c, NULL, data);
        c.model.layers = 4;
        c.mesh.tp = meshes[i].tp, c.mesh.cp = meshes[i].cp, c.mesh.pp = meshes[i].pp, c.mesh.vpp = meshes[i].vpp;
        c.mesh.dp = meshes[i].dp;
        c.plan.cp_pool = meshes[i].pool;
        if (c.plan.cp_pool) c.plan.budget = c.plan.cp_pool == 2 ? 16 : 12;
        c.learn.shard = i % 3;
        if (!run_dpo(&c, c.mesh.tp * c.mesh.cp * c.mesh.pp * c.mesh.dp, &loss[i], &accuracy, &margin[i])) break;
        CHECK_EQ(loss[i].count, 12);
        double off = curve_distance(&loss[0], &loss[i]), apart = fabs(margin[0].values[11] - margin[i].values[11]);
        CHECK(fabs(margin[i].values[11]) > 0.1);
        if (!EXPECT(off < 1e-5 && apart < 1e-4 * (1 + fabs(margin[0].values[11]))))
            printf("    mesh %d: the loss is off by %g, the margin by %g\n", i, off, apart);
    }
    CHECK(unlink(data) == 0);
}
