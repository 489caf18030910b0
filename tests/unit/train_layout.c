#include "tests/unit/train_layout.h"
#include "tests/unit/train_support.h"

#include "base/model/family.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char mock[] =
    "{\"mode\": \"distribution\", \"type\": \"uniform\", \"min_seq_len\": 3, \"max_seq_len\": 40, "
    "\"count\": 64, \"seed\": 5, \"prompt_share\": 0.3}";

uint64_t layout_draw(uint64_t *state, uint64_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (*state >> 33) % below;
}

/* One update, its loss and the first moment. */
bool layout_run_once(train_config *c, train_kind kind, int32_t ranks, layout_outcome *out) {
    char folder[64], path[160];
    curve loss, norm, shared, load;
    ravel_safetensors *file = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    job_folder(folder);
    c->run.run = folder;
    *out = (layout_outcome){0};
    bool ok = job_run(c, kind, ranks, "train/loss", &loss);
    if (ok) {
        job_curve(folder, "train/grad_norm", &norm);
        out->loss = loss.values[loss.count - 1];
        out->norm = norm.values[norm.count - 1];
        job_curve(folder, "tokens/shared", &shared);
        for (int i = 0; i < shared.count; i++) out->shared += shared.values[i];
        job_curve(folder, "router/load_loss", &load);
        if (load.count) out->load = load.values[load.count - 1];
        (void)snprintf(path, sizeof path, "%s/checkpoints/step-%08d/optimizer.safetensors", folder, (int)c->run.steps);
        ok = ravel_safetensors_open(path, NULL, &file, &err) == RAVEL_OK;
        if (!ok) check_fail(__FILE__, __LINE__, "%s", err.message);
    }
    if (ok) {
        const ravel_safetensor *t = ravel_safetensors_find(file, "moment1");
        out->count = t->count;
        out->moment = malloc((size_t)t->count * sizeof(float));
        ok = EXPECT(ravel_safetensor_read(t, 0, t->count, RAVEL_F32, out->moment, NULL) == RAVEL_OK);
    }
    ravel_safetensors_free(file);
    job_wipe(folder);
    c->run.run = NULL;
    return ok;
}

void layout_small_job(train_config *c) {
    job_config(c, NULL);
    c->run.steps = 1;
    c->run.checkpoint_end = 1;
    c->model.hidden = 24;
    c->model.layers = 4;
    c->model.heads = 6;
    c->model.kv_heads = 2;
    c->model.head_dim = 8;
    c->model.ffn = 36;
    c->model.init_std = 0.2;
    c->learn.clip_grad = 0.5;
    c->sft.task = NULL;
    c->source.mock = mock;
    c->sft.batch = 12;
    c->plan.budget = 64;
}

bool layout_adapt(train_config *c, train_kind kind, uint64_t *seed, char folder[64], char path[128]) {
    static const char *const targets[][2] = {{NULL, NULL},
                                             {NULL, NULL},
                                             {"q,v", "qkv_proj"},
                                             {"o_proj,down_proj", "o_proj,down_proj"},
                                             {"k,gate,down", "qkv,down"},
                                             {"up,o", "gate_up_proj,o"}};
    train_config first = *c;
    ravel_shape shape;
    curve loss;
    job_folder(folder);
    if (!EXPECT(train_shape(&c->model, &shape, NULL) == RAVEL_OK)) return false;
    first.run.run = folder;
    first.run.steps = 2;
    first.learn.lr = 0.05;
    first.model.lora_rank = 1 + (int32_t)layout_draw(seed, 6);
    first.model.lora_targets = targets[layout_draw(seed, 6)][ravel__shape_family(&shape)->fused];
    first.model.lora_rslora = (int32_t)layout_draw(seed, 2);
    (void)snprintf(path, 128, "%s/checkpoints/step-00000002", folder);
    c->model.adapter = path;
    return job_run(&first, kind, kind == TRAIN_GRPO ? 2 : 1, "train/loss", &loss);
}

double layout_distance(const layout_outcome *one, const layout_outcome *many) {
    double off = one->count == many->count ? relative_distance(many->moment, one->moment, one->count) : INFINITY;
    off = fmax(off, fabs(many->loss - one->loss) / (1 + fabs(one->loss)));
    off = fmax(off, fabs(many->load - one->load));
    return fmax(off, fabs(many->norm - one->norm) / (1 + fabs(one->norm)));
}

void layout_compare(const char *what, const layout_outcome *one, const layout_outcome *many, double most) {
    EXPECT(fabs(one->loss) > 1e-6 && one->norm > 1e-6); /* zeros would agree with anything that is broken */
    double off = one->count == many->count ? relative_distance(many->moment, one->moment, one->count) : INFINITY;
    if (!EXPECT(layout_distance(one, many) <= most))
        printf("    %s: loss %.9g, not %.9g; norm %.9g, not %.9g; load loss %.9g, not %.9g; gradients off by %.3g\n",
               what, many->loss, one->loss, many->norm, one->norm, many->load, one->load, off);
}

/* A mesh of at most `most` ranks that the model allows. */
int32_t layout_random_mesh(uint64_t *seed, const ravel_shape *shape, int32_t most, ravel_mesh_options *m) {
    ravel_mesh_layout layout;
    for (;;) {
        ravel_mesh_options_default(m);
        m->tp = 1 + (int32_t)layout_draw(seed, 6);
        m->cp = 1 + (int32_t)layout_draw(seed, 3);
        m->pp = 1 + (int32_t)layout_draw(seed, 4);
        m->vpp = 1 + (int32_t)layout_draw(seed, 2);
        m->dp = 1 + (int32_t)layout_draw(seed, 4);
        if (train_layout_plan(m, 0, shape, &layout, NULL) == RAVEL_OK && layout.ranks <= most && layout.ranks > 1)
            return layout.ranks;
    }
}
