#include "tests/unit/train_job.h"

#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

ravel_status job_work(ravel_comm *comm, void *user, ravel_error *err) {
    job *j = user;
    train_summary summary;
    train_hooks hooks = {.stop = j->stop, .config_text = "{}"};
    ravel_status status = j->kind == TRAIN_GRPO ? train_grpo(j->config, comm, &hooks, &summary, err)
                                                : train_tune(j->kind, j->config, comm, &hooks, &summary, err);
    if (ravel_comm_rank(comm) == 0) j->summary = summary;
    return status;
}

void job_config(train_config *c, const char *folder) {
    train_config_default(c);
    c->run.run = folder;
    c->run.quiet = 1;
    c->run.sinks = "jsonl";
    c->run.steps = JOB_STEPS;
    c->run.keep = 2;
    c->run.checkpoint_every = "0";
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
    c->grpo.scoring.max_tokens = 6;
    c->grpo.eval_prompts = 4;
}

/* The chosen answer counts up from the prompt, the rejected one down, for another number of digits. */
void job_pairs(char path[64]) {
    strcpy(path, "/tmp/ravel-pairs-XXXXXX");
    FILE *f = fdopen(mkstemp(path), "w");
    for (int row = 0; row < JOB_PAIRS; row++) {
        int lengths[] = {3 + row % 5, 2 + row * 5 % 9}, digit = row % 10;
        (void)fprintf(f, "{\"input_ids\": [");
        for (int part = 0; part < 2; part++) {
            (void)fprintf(f, "%s256, %d", part ? ", " : "", '0' + digit);
            for (int i = 1; i <= lengths[part]; i++) (void)fprintf(f, ", %d", '0' + (digit + (part ? 10 - i : i)) % 10);
        }
        (void)fprintf(f, "], \"cu_seqlens\": [0, %d, %d], \"prompt_length\": [2, 2]}\n", 2 + lengths[0],
                      4 + lengths[0] + lengths[1]);
    }
    (void)fclose(f);
}

void job_folder(char path[64]) {
    strcpy(path, "/tmp/ravel-train-XXXXXX");
    if (!mkdtemp(path)) check_fail(__FILE__, __LINE__, "no scratch folder");
}

void job_wipe(const char *path) {
    char command[256];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", path);
    EXPECT(system(command) == 0);
}

void job_curve(const char *folder, const char *metric, curve *c) {
    char path[256], *line = NULL;
    size_t room = 0;
    ravel__json *doc = NULL;
    (void)snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    FILE *f = fopen(path, "r");
    c->count = 0;
    for (ssize_t n; f && (n = getline(&line, &room, f)) > 0;) {
        int64_t step;
        double value;
        if (ravel__json_parse(line, (size_t)n, NULL, &doc, NULL)) continue;
        const ravel__json_node *root = ravel__json_root(doc);
        if (!ravel__json_integer(ravel__json_get(doc, root, "step"), &step) || step < 1 || step > 4 * JOB_STEPS)
            continue;
        if (!ravel__json_real(ravel__json_get(doc, root, metric), &value)) continue;
        c->values[step - 1] = value;
        if (step > c->count) c->count = (int)step;
    }
    ravel__json_free(doc);
    free(line);
    if (f) (void)fclose(f);
}

bool job_run(const train_config *config, train_kind kind, int32_t ranks, const char *metric, curve *c) {
    job j = {.kind = kind, .config = config};
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel_threads_run(ranks, NULL, job_work, &j, &err) != RAVEL_OK) {
        check_fail(__FILE__, __LINE__, "%s", err.message);
        return false;
    }
    job_curve(config->run.run, metric, c);
    return true;
}

double curve_distance(const curve *a, const curve *b) {
    double worst = a->count == b->count && a->count > 0 ? 0 : INFINITY;
    for (int i = 0; i < a->count && i < b->count; i++) {
        double d = fabs(a->values[i] - b->values[i]) / (1e-12 + fabs(a->values[i]));
        if (d > worst) worst = d;
    }
    return worst;
}
