/* The clocks of whole runs: phases are a partition of the time, and throughput is of the updates alone. */
#include "tests/unit/train_job.h"

#include "base/rng.h"

#include <math.h>
#include <unistd.h>

enum { UPDATES = 4 };

typedef struct choice {
    train_kind kind;
    int32_t trainers, eval, reference, checkpoints, publish;
} choice;

static void configure(train_config *c, const choice *x, const char *folder, const char *pairs, char address[64]) {
    job_config(c, folder);
    c->run.steps = UPDATES;
    c->run.checkpoint_end = 0;
    c->run.checkpoint_every = x->checkpoints ? "1" : "0";
    c->sft.batch = 8;
    c->sft.eval_every = c->grpo.eval_every = x->eval;
    c->grpo.eval_prompts = x->eval ? 4 : 0;
    c->grpo.prompts = 4;
    c->policy.kl = x->reference ? 0.1 : 0;
    if (x->kind == TRAIN_DPO) {
        c->sft.task = NULL;
        c->source.data = pairs;
        c->source.bos = c->source.eos = -1;
        c->sft.eval_share = 0.25;
    }
    (void)snprintf(address, 64, "unix:@ravel-phases-%d-%s", (int)getpid(), folder + strlen(folder) - 6);
    c->grpo.publish = x->publish ? address : NULL;
    c->grpo.publish_linger = 0;
}

/* The values of a metric, NAN where an update has none. */
static double at(const char *folder, const char *metric, int step) {
    curve c;
    for (int i = 0; i < UPDATES; i++) c.values[i] = NAN;
    job_curve(folder, metric, &c);
    return c.values[step];
}

static double phase_at(const char *folder, const char *phase, const char *kind, int step) {
    char name[64];
    (void)snprintf(name, sizeof name, "time/%s_%s_sec", phase, kind);
    double seconds = at(folder, name, step);
    return isnan(seconds) ? 0 : seconds;
}

/* What every rank spent in the phase at least: `ranks` times the mean, less the longest of the others. */
static double least_at(const char *folder, const char *phase, int32_t ranks, int step) {
    double mean = phase_at(folder, phase, "mean", step), most = phase_at(folder, phase, "max", step);
    return fmax(ranks * mean - (ranks - 1) * most, 0);
}

static void check_row(const char *folder, const choice *x, int step) {
    double wall = at(folder, "time/wall_sec", step), update = at(folder, "time/update_sec", step);
    double sum = at(folder, "time/other_sec", step), tokens = at(folder, "tokens/actual", step);
    for (int i = 0; i < RAVEL_PHASES; i++) sum += phase_at(folder, ravel_phase_name(i), "self", step);
    CHECK(fabs(sum - wall) <= 0.01 * wall && update > 0 && tokens > 0);
    double aside = least_at(folder, "eval", x->trainers, step) + least_at(folder, "checkpoint", x->trainers, step);
    CHECK(update <= (wall - aside) * (1 + 1e-6));
    CHECK(fabs(at(folder, "throughput/actual_tokens_per_sec", step) * update - tokens) <= 1e-6 * tokens);
    int reference = x->kind == TRAIN_DPO || (x->kind == TRAIN_GRPO && x->reference);
    CHECK((phase_at(folder, "reference", "mean", step) > 0) == reference);
    int always = x->kind != TRAIN_GRPO && step + 1 == UPDATES; /* of SFT and DPO */
    CHECK((phase_at(folder, "eval", "mean", step) > 0) == (x->eval || always));
    CHECK((phase_at(folder, "refit", "mean", step) > 0) == (x->kind == TRAIN_GRPO));
    if (step > 0) CHECK((phase_at(folder, "checkpoint", "mean", step) > 0) == x->checkpoints);
}

/* The evaluation before training is a row of its own, and no update. */
static void check_first(const char *folder, const choice *x) {
    char path[96], line[4096] = "";
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *f = fopen(path, "r");
    CHECK(f && fgets(line, sizeof line, f));
    if (f) (void)fclose(f);
    int always = x->kind != TRAIN_GRPO;
    CHECK((strstr(line, "\"step\":0,") || strstr(line, "\"step\": 0,")) == (x->eval || always));
    CHECK(!strstr(line, "\"eval/") == !(x->eval || always) && !strstr(line, "time/update_sec") == (x->eval || always));
    CHECK(at(folder, "run/updates", UPDATES - 1) == UPDATES);
}

static bool run_one(const choice *x, const char *folder, const char *pairs) {
    char address[64];
    train_config c;
    curve loss;
    configure(&c, x, folder, pairs, address);
    return job_run(&c, x->kind, x->trainers + (x->kind == TRAIN_GRPO), "train/loss", &loss);
}

/* SFT, DPO and GRPO with every combination of evaluation, reference, checkpoints and publishing. Evaluation changes nothing of
 * what is counted and learnt. */
TEST(train_phases_are_a_partition_of_the_time) {
    static const char *const same[] = {"train/loss",    "tokens/actual", "tokens/padded",
                                       "batch/samples", "batch/bins",    "flops/model"};
    ravel__rng r = ravel__rng_seed(check_seed());
    char pairs[64];
    job_pairs(pairs);
    for (int64_t i = 0; i < check_scale(6, 200); i++) {
        choice x = {
            (train_kind)(i % TRAIN_KINDS),    1 + (int32_t)ravel__rng_below(&r, 3), 1,
            (int32_t)ravel__rng_below(&r, 2), (int32_t)ravel__rng_below(&r, 2),     (int32_t)ravel__rng_below(&r, 2)};
        char with[64], without[64];
        job_folder(with);
        job_folder(without);
        bool ran = run_one(&x, with, pairs);
        for (int step = 0; step < UPDATES && ran; step++) check_row(with, &x, step);
        if (ran) check_first(with, &x);
        x.eval = 0;
        ran = ran && run_one(&x, without, pairs);
        for (int step = 0; step < UPDATES && ran; step++) {
            check_row(without, &x, step);
            for (size_t k = 0; k < sizeof same / sizeof *same; k++)
                EXPECT(at(with, same[k], step) == at(without, same[k], step));
        }
        if (!ran)
            printf("    kind %d, %d trainers, reference %d, checkpoints %d, publish %d\n", x.kind, x.trainers,
                   x.reference, x.checkpoints, x.publish);
        job_wipe(with);
        job_wipe(without);
    }
    (void)unlink(pairs);
}
